//! What clients see of each other and do to each other, beside redis-server where it says it in the
//! same words.

use crate::commands::{Answer, told};
use crate::peers::{self, ask, ask_text, connect, ours, read_until, resp_of, wait_until, words};
use rackpool_cache::front::{Count, Server, Settings};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Words that clients send to learn of each other, or by mistake.
const SAME: &[&str] = &[
    "CLIENT KILL a",
    "CLIENT KILL ID x",
    "CLIENT KILL ID 0",
    "CLIENT KILL TYPE nonsense",
    "CLIENT KILL USER nonsense",
    "CLIENT KILL SKIPME nonsense",
    "CLIENT KILL nonsense a",
    "CLIENT KILL ID 77777 ADDR",
    "CLIENT KILL ID 77777",
    "CLIENT KILL TYPE master",
    "CLIENT KILL TYPE pubsub SKIPME no",
    "CLIENT KILL ADDR 1.2.3.4:5 SKIPME no",
    "CLIENT PAUSE x",
    "CLIENT PAUSE -1",
    "CLIENT PAUSE 10 nonsense",
    "CLIENT PAUSE 10 WRITE x",
    "CLIENT PAUSE",
    "CLIENT PAUSE 0 write",
    "CLIENT UNPAUSE",
    "CLIENT REPLY nonsense",
    "CLIENT REPLY ON",
    "CLIENT REPLY",
    "CLIENT NO-EVICT on",
    "CLIENT NO-EVICT off",
    "CLIENT NO-EVICT nonsense",
    "CLIENT UNBLOCK 7",
    "CLIENT UNBLOCK x",
    "CLIENT UNBLOCK 7 nonsense",
    "CLIENT UNBLOCK 7 ERROR x",
    "CLIENT LIST TYPE nonsense",
    "CLIENT LIST TYPE master",
    "CLIENT LIST ID x",
    "CLIENT LIST ID 77777",
    "CLIENT LIST nonsense",
    "CLIENT SETNAME a\tb",
    "CLIENT SETNAME name",
    "CLIENT GETNAME",
    "RESET",
    "CLIENT GETNAME",
    "RESET x",
    "ROLE",
    "ROLE x",
    "LASTSAVE x",
    "MONITOR x",
];

#[test]
fn clients_are_answered_about_clients_as_by_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for command in SAME {
        assert_eq!(told(&mut client, command), told(&mut theirs, command), "{command}");
    }
}

/// The fields of the line of a client that is named so.
fn fields(stream: &mut TcpStream, name: &str) -> BTreeMap<String, String> {
    let list = told(stream, "CLIENT LIST");
    let line = list.text().lines().find(|line| line.contains(&format!(" name={name} ")));
    let pairs = line.unwrap_or_else(|| panic!("{name} in {list:?}")).split(' ');
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').expect("a pair");
        (name.to_owned(), value.to_owned())
    };
    pairs.map(pair).collect()
}

#[test]
fn a_client_is_listed_as_it_is() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    told(&mut other, "CLIENT SETNAME other");
    told(&mut other, "CLIENT SETINFO LIB-NAME some-lib");
    told(&mut other, "SELECT 3");
    ask(&mut other, &words(&[b"GET", b"key"]), b"\r\n");
    let mut of = |name: &str| fields(&mut client, "other")[name].clone();
    wait_until("its last command is shown", || of("cmd") == "get");
    let (addr, local) = (other.local_addr().unwrap(), other.peer_addr().unwrap());
    for (name, value) in [
        ("addr", addr.to_string()),
        ("laddr", local.to_string()),
        ("db", "3".into()),
        ("resp", "2".into()),
        ("lib-name", "some-lib".into()),
        ("flags", "N".into()),
        ("events", "r".into()),
        ("qbuf", "0".into()),
        ("tot-mem", "0".into()),
        ("user", "default".into()),
    ] {
        assert_eq!(of(name), value, "{name}");
    }
    assert!(of("fd").parse::<u32>().unwrap() > 2);
    // Half a command waits in a buffer.
    other.write_all(b"*2\r\n$3\r\nGET\r\n$100\r\nhalf of it").unwrap();
    wait_until("its buffer is shown", || of("qbuf") == "29");
    assert!(of("tot-mem").parse::<u64>().unwrap() >= 29);
    let mut own = resp_of(&server);
    told(&mut own, "CLIENT SETNAME own");
    told(&mut own, "CLIENT NO-EVICT ON");
    let own = fields(&mut own, "own");
    assert_eq!((&*own["cmd"], &*own["flags"]), ("client|list", "e"));
    // The command that asks, and the end of `told`.
    assert_eq!(own["qbuf"], (26 + 27).to_string());
}

#[test]
fn the_fields_of_a_client_are_those_of_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let names = |mut stream: TcpStream| {
        told(&mut stream, "CLIENT SETNAME me");
        fields(&mut stream, "me").into_keys().collect::<Vec<_>>()
    };
    let (mut theirs, own) = (names(connect(redis.addr)), names(resp_of(&server)));
    // What came with 7.2.
    theirs.extend(["lib-name", "lib-ver"].map(str::to_owned));
    theirs.sort();
    assert_eq!(own, theirs);
}

fn has_ended(stream: &mut TcpStream) -> bool {
    read_until(stream, |_| false).is_empty()
}

#[test]
fn clients_are_killed_by_number_address_and_age_on_every_thread() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let mut client = resp_of(&server);
    let mut others: Vec<_> = (0..4).map(|_| resp_of(&server)).collect();
    let numbers: Vec<_> = others
        .iter_mut()
        .map(|other| match told(other, "CLIENT ID") {
            Answer::Number(number) => number,
            answer => panic!("{answer:?}"),
        })
        .collect();
    let kill =
        |client: &mut TcpStream, words: String| told(client, &format!("CLIENT KILL {words}"));
    let one = Answer::Number(1);
    assert_eq!(kill(&mut client, format!("ID {}", numbers[0])), one);
    assert!(has_ended(&mut others[0]));
    // It is gone at once for everyone that asks.
    assert_eq!(kill(&mut client, format!("ID {}", numbers[0])), Answer::Number(0));
    let addr = others[1].local_addr().unwrap();
    assert_eq!(kill(&mut client, addr.to_string()), Answer::Text("OK".into()));
    assert!(has_ended(&mut others[1]));
    let local = client.peer_addr().unwrap();
    assert_eq!(kill(&mut client, format!("LADDR {local} MAXAGE 1000")), Answer::Number(0));
    assert_eq!(kill(&mut client, format!("LADDR {local} USER default")), Answer::Number(2));
    assert!(has_ended(&mut others[2]) && has_ended(&mut others[3]));
    assert_eq!(told(&mut client, "CLIENT LIST").text().lines().count(), 1);
    // One that kills itself is answered first.
    client.write_all(b"CLIENT KILL TYPE normal SKIPME no\r\nPING\r\n").unwrap();
    assert_eq!(read_until(&mut client, |_| false), b":1\r\n");
    wait_until("all have gone", || server.shared().connections() == 0);
}

/// Whether an answer comes within a tenth of a second.
fn is_answered(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let came = stream.peek(&mut [0]).is_ok();
    stream.set_read_timeout(Some(peers::WITHIN)).unwrap();
    came
}

fn paused(server: &Server, threads: usize, order: &str, is_held: fn(&str) -> bool) {
    let mut client = resp_of(server);
    let mut others: Vec<_> = (0..2 * threads).map(|_| resp_of(server)).collect();
    let texts = ["SET key value\r\n", "GET key\r\n", "INCR number\r\n", "PING\r\n"];
    let sent: Vec<_> = others.iter().zip(texts.iter().cycle()).map(|(_, text)| *text).collect();
    assert_eq!(ask(&mut client, format!("{order}\r\n").as_bytes(), b"\r\n"), b"+OK\r\n");
    for (other, text) in others.iter_mut().zip(&sent) {
        other.write_all(text.as_bytes()).unwrap();
    }
    for (other, text) in others.iter_mut().zip(&sent) {
        assert_eq!(is_answered(other), !is_held(text), "{order}: {text}");
    }
    for (other, text) in others.iter_mut().zip(&sent) {
        // Behind it, in the same buffer, or read later.
        other.write_all(b"PING\r\n").unwrap();
        let said = read_until(other, |all| all.ends_with(b"+PONG\r\n") && all.len() > 7);
        assert!(said.ends_with(b"+PONG\r\n"), "{text}: {}", said.escape_ascii());
        if text.starts_with("PING") {
            assert_eq!(said, b"+PONG\r\n+PONG\r\n");
        }
    }
}

#[test]
fn clients_that_are_paused_wait_and_go_on() {
    let threads = 2;
    let server = ours(Settings { threads, ..Settings::default() });
    let writes = |text: &str| text.starts_with("SET") || text.starts_with("INCR");
    let start = Instant::now();
    paused(&server, threads, "CLIENT PAUSE 900 WRITE", writes);
    paused(&server, threads, "CLIENT PAUSE 900", |_| true);
    assert!(start.elapsed() > Duration::from_millis(1700));
    // What comes behind the order in one read waits, too; a pause of writes can be ended.
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    let order = b"CLIENT PAUSE 60000 WRITE\r\nGET none\r\nSET key other\r\nGET key\r\n";
    client.write_all(order).unwrap();
    assert_eq!(read_until(&mut client, |all| all.len() >= 10), b"+OK\r\n$-1\r\n");
    other.write_all(&words(&[b"SET", b"long", &[b'x'; 200_000]])).unwrap();
    assert!(!is_answered(&mut client) && !is_answered(&mut other));
    assert_eq!(told(&mut resp_of(&server), "CLIENT UNPAUSE"), Answer::Text("OK".into()));
    let said = read_until(&mut client, |all| all.ends_with(b"other\r\n"));
    assert_eq!(said, b"+OK\r\n$5\r\nother\r\n");
    assert_eq!(read_until(&mut other, |all| all.ends_with(b"\r\n")), b"+OK\r\n");
}

#[test]
fn a_client_that_wants_no_answers_gets_none() {
    let redis = peers::redis();
    let server = ours(Settings::default());
    let get = String::from_utf8(words(&[b"GET", b"key"])).unwrap();
    let long = String::from_utf8(words(&[b"SET", b"long", &[b'x'; 100_000]])).unwrap();
    let mget = format!("MGET {}\r\n", "key ".repeat(3000));
    for commands in [
        format!(
            "SET key a\r\nCLIENT REPLY OFF\r\n{get}{get}PING\r\nINCR key\r\nCLIENT REPLY ON\r\n"
        ),
        format!("{get}CLIENT REPLY SKIP\r\n{get}{get}PING\r\n"),
        format!("{get}CLIENT REPLY SKIP\r\nPING\r\nPING\r\nCLIENT REPLY SKIP\r\n{long}{get}"),
        format!(
            "CLIENT REPLY OFF\r\n{long}{mget}CLIENT REPLY SKIP\r\n{get}CLIENT REPLY ON\r\n{get}"
        ),
        format!("CLIENT REPLY SKIP\r\n{mget}{get}CLIENT REPLY SKIP\r\nCLIENT REPLY ON\r\n{get}"),
        format!("CLIENT REPLY OFF\r\n{get}RESET\r\n{get}"),
        format!("CLIENT REPLY SKIP\r\nCLIENT REPLY SKIP\r\n{get}{get}"),
    ] {
        let commands = format!("{commands}ECHO end\r\n");
        let said = ask_text(&mut resp_of(&server), commands.as_bytes(), b"end\r\n");
        if let Some(redis) = &redis {
            let theirs = ask_text(&mut connect(redis.addr), commands.as_bytes(), b"end\r\n");
            assert_eq!(said, theirs, "{}", &commands[..commands.len().min(300)]);
        }
    }
}

/// Lines of a monitor without times, databases and addresses; those of scripts' commands say so.
fn told_lines(monitor: &mut TcpStream, end: &str) -> Vec<String> {
    let all = read_until(monitor, |all| all.ends_with(format!("\"{end}\"\r\n").as_bytes()));
    let all = String::from_utf8(all).unwrap();
    let without = |line: &str| match line.split_once("] ") {
        Some((head, it)) if head.ends_with(" lua") => format!("lua {it}"),
        Some((_, it)) => it.to_owned(),
        None => line.to_owned(),
    };
    all.lines().map(without).collect()
}

#[test]
fn a_monitor_is_told_the_commands_of_all_clients() {
    let redis = peers::redis();
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let commands = |stream: &mut TcpStream| {
        let some =
            [&words(&[b"GET", b"a\"\\\x01"])[..], &words(&[b"SET", b"b", b"\xff\n"])].concat();
        let rest = b"SELECT 1\r\nnonsense\r\nGET\r\nCONFIG GET save\r\nAUTH secret\r\n\
                     EVAL \"return redis.call('GET', KEYS[1])\" 1 a\r\nECHO end\r\n";
        stream.write_all(&[&some[..], rest].concat()).unwrap();
    };
    let addrs = [server.addrs().1].into_iter().chain(redis.iter().map(|redis| Some(redis.addr)));
    let all: Vec<_> = addrs
        .map(|addr| {
            let addr = addr.unwrap();
            let (mut monitor, mut clients) = (connect(addr), [connect(addr), connect(addr)]);
            assert_eq!(ask(&mut monitor, b"MONITOR\r\n", b"\r\n"), b"+OK\r\n");
            clients.iter_mut().for_each(|client| {
                commands(client);
                read_until(client, |all| all.ends_with(b"end\r\n"));
            });
            let lines = told_lines(&mut monitor, "end");
            let mut all = lines.clone();
            // Those of the second client may come a moment later.
            if lines.iter().filter(|line| line.contains("end")).count() < 2 {
                all.extend(told_lines(&mut monitor, "end"));
            }
            all.sort();
            all
        })
        .collect();
    assert!(all[0].contains(&"\"AUTH\" \"(redacted)\"".to_owned()), "{:?}", all[0]);
    assert!(all[0].contains(&"\"GET\" \"a\\\"\\\\\\x01\"".to_owned()), "{:?}", all[0]);
    assert!(all[0].contains(&"lua \"GET\" \"a\"".to_owned()), "{:?}", all[0]);
    if let [own, theirs] = &all[..] {
        assert_eq!(own, theirs);
    }
    // It may be reset, and tells nothing then.
    let (mut monitor, mut client) = (resp_of(&server), resp_of(&server));
    ask(&mut monitor, b"MONITOR\r\nRESET\r\n", b"+RESET\r\n");
    ask(&mut client, b"PING\r\n", b"\r\n");
    assert_eq!(ask(&mut monitor, b"PING\r\n", b"\r\n"), b"+PONG\r\n");
}

#[test]
fn a_monitor_that_reads_nothing_keeps_no_one_waiting_and_is_ended() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let (mut monitor, mut client) = (resp_of(&server), resp_of(&server));
    assert_eq!(ask(&mut monitor, b"MONITOR\r\n", b"\r\n"), b"+OK\r\n");
    let some = words(&[b"SET", b"key", &[b'x'; 3000]]).repeat(100);
    let answers = b"+OK\r\n".repeat(100);
    let start = Instant::now();
    while server.shared().count(Count::SlowReaders) == 0 {
        assert!(start.elapsed() < peers::WITHIN, "it is not ended");
        assert_eq!(ask(&mut client, &some, &answers).len(), answers.len());
    }
    assert!(server.shared().held_bytes.load(std::sync::atomic::Ordering::Relaxed) < 16 << 20);
    assert_eq!(told(&mut client, "PING"), Answer::Text("PONG".into()));
}
