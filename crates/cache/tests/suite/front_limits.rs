//! What one client can take from others: nothing that is executed for it unasked, no turn of a
//! thread, no place, no memory for long.

use crate::peers::{
    WITHIN, ask, ask_text, memcached_of as memcached, ours, ours_of, read_until, resp_of as resp,
    try_read_until, wait_until, words,
};
use rackpool_cache::front::{ClientInfo, Core, Count, Protocol, Server, Session, Settings, Shared};
use rackpool_cache::{Cache, Options};
use rustix::net::{AddressFamily, SocketType, bind, connect as connect_to, socket};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn http_ends_a_connection_at_its_first_line_and_nothing_of_it_is_executed() {
    let server = ours(Settings::default());
    let own = [
        ("SET owned yes\r\n", resp as fn(&Server) -> TcpStream),
        ("set owned 0 0 3\r\nyes\r\nms owned 3\r\nyes\r\n", memcached),
    ];
    let heads = [
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n",
        "GET /?a b HTTP/1.1\r\nX: y\r\n\r\n",
        "get /a HTTP/1.1\r\n",
        "DELETE /owned HTTP/1.0\r\n\r\n",
        "SET /owned HTTP/1.1\r\n\r\n",
        "touch /owned HTTP/1.1\r\n\r\n",
        "mg /owned HTTP/1.1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT cache:6379 HTTP/1.1\r\n\r\n",
        "POST /\r\n",
        "\r\nPOST / HTTP/1.1\r\n\r\n",
        "Host: x\r\n",
        "cookie: x\r\n",
    ];
    for (body, port) in own {
        for head in heads {
            let mut client = port(&server);
            client.write_all(format!("{head}{body}").as_bytes()).unwrap();
            let (said, _) = try_read_until(&mut client, |_| false);
            let lines = said.iter().filter(|byte| **byte == b'\n').count();
            assert!(lines <= 1, "{head:?} is answered {}", said.escape_ascii());
            assert_eq!(ask(&mut resp(&server), b"EXISTS owned /owned\r\n", b"\r\n"), b":0\r\n");
        }
    }
    assert_eq!(server.shared().count(Count::HttpRefused), heads.len() as u64 * 2);
    // Words of HTTP in commands are data.
    let mut client = resp(&server);
    assert_eq!(ask(&mut client, b"SET a HTTP/1.1\r\n", b"\r\n"), b"+OK\r\n");
    let set = words(&[b"SET", b"/path", b"HTTP/1.1"]);
    assert_eq!(ask(&mut client, &set, b"\r\n"), b"+OK\r\n");
    assert_eq!(ask(&mut memcached(&server), b"get /path HTTP\r\n", b"END\r\n").len(), 32);
}

#[test]
fn no_pattern_keeps_a_thread_for_long() {
    let server = ours(Settings::default());
    let mut client = resp(&server);
    for byte in b"ka" {
        let set = words(&[b"SET", &[*byte; 30_000], b"x"]);
        assert_eq!(ask(&mut client, &set, b"\r\n"), b"+OK\r\n");
    }
    let start = Instant::now();
    for pattern in [
        [b"*[", &[b'y'; 32_000][..], b"]"].concat(),
        [b"*", &[b'a'; 29_000][..], b"b"].concat(),
        b"*a?".repeat(10_000),
        b"*[a-z]b".repeat(4_000),
        b"[^b]".repeat(30_000),
    ] {
        let mut cursor = b"0".to_vec();
        let mut found = 0;
        loop {
            let scan = words(&[b"SCAN", &cursor, b"MATCH", &pattern, b"COUNT", b"1000"]);
            let said = ask_text(&mut client, &[&scan[..], b"PING\r\n"].concat(), b"+PONG\r\n");
            found += said.matches("$30000\r\n").count();
            cursor = said.split("\r\n").nth(2).unwrap().as_bytes().to_vec();
            if cursor == b"0" {
                break;
            }
        }
        let expected = match pattern[..] {
            [b'[', ..] => 2,
            [b'*', b'a', b'?', ..] => 1,
            _ => 0,
        };
        assert_eq!(found, expected, "{}", pattern[..4].escape_ascii());
    }
    // It took a minute and more.
    assert!(start.elapsed() < WITHIN, "{:?}", start.elapsed());
}

#[test]
fn a_pipeline_of_costly_commands_leaves_others_their_turn() {
    const COMMANDS: usize = 8000;
    let server = ours(Settings::default());
    for key in 0..2000_u32 {
        server.shared().cache.set(&key.to_le_bytes(), b"value", 0, 0, 1).unwrap();
    }
    let scan = b"SCAN 0 MATCH none* COUNT 1000\r\n";
    let mut greedy = resp(&server);
    let answer = ask(&mut greedy, &[&scan[..], b"PING\r\n"].concat(), b"+PONG\r\n");
    let answer = &answer[..answer.len() - 7];
    let before = server.shared().resp_commands();
    let done = || server.shared().resp_commands() - before;
    greedy.write_all(&scan.repeat(COMMANDS)).unwrap();
    wait_until("it has begun", || done() > 0);
    assert_eq!(ask(&mut resp(&server), b"PING\r\n", b"\r\n"), b"+PONG\r\n");
    let by_then = done();
    assert!(by_then < COMMANDS as u64, "all {by_then} commands were before");
    let said = ask(&mut greedy, b"PING\r\n", b"+PONG\r\n");
    assert!(said == [&answer.repeat(COMMANDS)[..], b"+PONG\r\n"].concat());
}

#[test]
fn a_flush_of_a_large_cache_is_answered_at_once_and_leaves_others_their_turn() {
    const COUNT: u32 = 1_000_000;
    let server = ours_of(256 << 20, Settings::default());
    let cache = &server.shared().cache;
    let (mut m, mut r) = (memcached(&server), resp(&server));
    for (flush, answer) in [("FLUSHALL\r\n", "+OK\r\n"), ("flush_all\r\n", "OK\r\n")] {
        for key in 0..COUNT {
            cache.set(format!("key{key}").as_bytes(), &[b'v'; 100], 0, 0, 1).unwrap();
        }
        let unused = cache.stats().free_units;
        let client = if flush.starts_with('F') { &mut r } else { &mut m };
        assert_eq!(ask(client, flush.as_bytes(), b"\r\n"), answer.as_bytes());
        // Nothing is there for any client, and what comes now stays.
        assert_eq!(ask(&mut r, b"DBSIZE\r\n", b"\r\n"), b":0\r\n");
        for key in (0..COUNT).step_by((COUNT / 500) as usize) {
            let asked = format!("get key{key}\r\n");
            assert_eq!(ask(&mut m, asked.as_bytes(), b"END\r\n"), b"END\r\n");
        }
        assert_eq!(ask(&mut m, b"set key0 0 0 1\r\nw\r\n", b"\r\n"), b"STORED\r\n");
        wait_until("its memory is back", || cache.stats().free_units > unused + 1500);
        assert_eq!(ask(&mut r, b"GET key0\r\nDBSIZE\r\n", b":1\r\n"), b"$1\r\nw\r\n:1\r\n");
    }
    // All in some microseconds: the log has what took longer than 10 ms.
    let log = ask_text(&mut r, b"SLOWLOG GET\r\nPING\r\n", b"+PONG\r\n");
    assert!(!log.to_lowercase().contains("flush"), "{log}");
}

#[test]
fn room_for_a_long_value_is_made_in_turns() {
    let text = b"set k 0 0 25000000\r\n".to_vec();
    let mut binary = vec![0x80, 1, 0, 1, 8, 0, 0, 0, 1, 0x7d, 0x78, 0x49];
    binary.extend_from_slice(&[0; 20]);
    binary.extend_from_slice(b"b");
    let words = b"*3\r\n$3\r\nSET\r\n$1\r\nr\r\n$25000000\r\n".to_vec();
    for (door, head) in
        [(Protocol::Memcached, text), (Protocol::Memcached, binary), (Protocol::Resp, words)]
    {
        let options = Options { memory: 128 << 20, max_value: 30 << 20, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        for key in 0..750_000_u32 {
            cache.set(&key.to_le_bytes(), &[b'v'; 150], 0, 0, 1).unwrap();
        }
        let settings = Settings { value_bytes_max: 30 << 20, ..Settings::default() };
        let mut core = Core::new(Arc::new(Shared::new(cache, settings, (0, 1))), 0, 1);
        let mut session = Session::new(door, ClientInfo { known: true, ..ClientInfo::default() });
        let mut turns = 0;
        loop {
            core.timer.begin_turn();
            turns += 1;
            let used = session.feed(&mut core, &head);
            assert!(turns < 5000 && core.out.is_empty());
            if used == head.len() {
                break;
            }
            assert_eq!((used, session.need()), (0, 0));
        }
        assert!(turns > 5, "{turns} turns for the {} bytes of a head", head.len());
        for _ in 0..250 {
            core.timer.begin_turn();
            assert_eq!(session.feed(&mut core, &vec![b'v'; 100_000]), 100_000);
        }
        let end: &[u8] = if head[0] == 0x80 { b"" } else { b"\r\n" };
        session.feed(&mut core, end);
        let said = std::mem::take(&mut core.out).bytes;
        let is_stored = match head[0] {
            0x80 => said[6..8] == [0, 0],
            b'*' => said == b"+OK\r\n",
            _ => said == b"STORED\r\n",
        };
        assert!(is_stored, "{}", said.escape_ascii());
    }
}

#[test]
fn a_command_of_many_words_leaves_others_their_turn_and_is_answered_as_if_it_were_alone() {
    let server = ours(Settings::default());
    let mut client = resp(&server);
    let many = 1 << 19;
    let of = |head: &[&[u8]], word: &[u8], count: usize| {
        let mut all = head.to_vec();
        all.resize(head.len() + count, word);
        words(&all)
    };
    assert_eq!(ask(&mut client, b"MSET a 1 b 2\r\n", b"\r\n"), b"+OK\r\n");
    let id = ask(&mut client, b"CLIENT ID\r\n", b"\r\n");
    let id = &id[1..id.len() - 2];
    for (command, expected) in [
        (of(&[b"EXISTS", b"b"], b"a", many), &b":524289\r\n"[..]),
        (of(&[b"MSET"], b"a", many), b"+OK\r\n"),
        (of(&[b"DEL", b"b"], b"a", many), b":2\r\n"),
        (of(&[b"INFO", b"x"], b"cluster", many), b"$30\r\n# Cluster\r\ncluster_enabled:0\r\n\r\n"),
        (of(&[b"CONFIG", b"GET"], b"sav*", many), b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        (of(&[b"COMMAND", b"DOCS"], b"none", many), b"*0\r\n"),
        (of(&[b"CLIENT", b"LIST", b"ID"], b"0", many), b"$0\r\n\r\n"),
    ] {
        let name = command[..40].escape_ascii().to_string();
        // A machine that is busy may let it end before another client was able to ask.
        let has_left_turns = (0..5).any(|_| {
            ask(&mut client, b"MSET a 1 b 2\r\n", b"\r\n");
            let mut greedy = resp(&server);
            let before = server.shared().count(Count::BytesRead);
            greedy.write_all(&command).unwrap();
            let came = || server.shared().count(Count::BytesRead) - before;
            wait_until("it has come", || came() >= command.len() as u64);
            assert_eq!(ask(&mut client, b"PING\r\n", b"\r\n"), b"+PONG\r\n");
            greedy.set_nonblocking(true).unwrap();
            let is_first = greedy.peek(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
            greedy.set_nonblocking(false).unwrap();
            let mut said = vec![0; expected.len()];
            greedy.read_exact(&mut said).unwrap();
            assert_eq!(said.escape_ascii().to_string(), expected.escape_ascii().to_string());
            assert_eq!(ask(&mut greedy, b"PING\r\n", b"\r\n"), b"+PONG\r\n");
            is_first
        });
        assert!(has_left_turns, "{name}");
    }
    let line = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        text.split_once(" qbuf=").expect("a line").0.to_owned()
    };
    let one = line(ask(&mut client, &words(&[b"CLIENT", b"LIST", b"ID", id]), b"lib-ver=\n\r\n"));
    assert_eq!(one, line(ask(&mut client, b"CLIENT INFO\r\n", b"lib-ver=\n\r\n")));
}

#[test]
fn clients_are_listed_a_few_at_a_time_and_none_is_left_out() {
    let server = ours(Settings::default());
    let held: Vec<TcpStream> = (0..300).map(|_| resp(&server)).collect();
    wait_until("all came", || server.shared().connections() == 300);
    let mut client = resp(&server);
    let said = ask_text(&mut client, b"CLIENT LIST\r\nPING\r\n", b"+PONG\r\n");
    assert_eq!(said.matches("\nid=").count(), 301);
    for one in &held {
        let addr = one.local_addr().unwrap();
        assert!(said.contains(&format!(" addr={addr} ")), "{addr}");
    }
}

#[test]
fn where_all_places_are_taken_a_silent_client_makes_room_and_a_busy_one_does_not() {
    let settings = Settings { connections_max: 3, evicted_idle_ms: 400, ..Settings::default() };
    let server = ours(settings);
    let mut busy = resp(&server);
    let mut quiet = resp(&server);
    assert_eq!(ask(&mut quiet, b"PING\r\n", b"\r\n"), b"+PONG\r\n");
    // Never said anything, so it goes before one that did and is silent for longer.
    let mut silent = memcached(&server);
    wait_until("all came", || server.shared().connections() == 3);
    let mut ping =
        |client: &mut TcpStream| assert_eq!(ask(client, b"PING\r\n", b"\r\n"), b"+PONG\r\n");
    ping(&mut busy);
    assert!(read_until(&mut resp(&server), |_| false).starts_with(b"-ERR max number of clients"));
    std::thread::sleep(Duration::from_millis(600));
    ping(&mut busy);
    let mut first = resp(&server);
    ping(&mut first);
    assert_eq!(read_until(&mut silent, |_| false), b"");
    ping(&mut busy);
    let mut second = resp(&server);
    ping(&mut second);
    assert_eq!(read_until(&mut quiet, |_| false), b"");
    [&mut busy, &mut first, &mut second].into_iter().for_each(&mut ping);
    let refused = read_until(&mut memcached(&server), |_| false);
    assert_eq!(refused, b"ERROR Too many open connections\r\n");
    assert_eq!(server.shared().count(Count::IdleEvictions), 2);
    assert_eq!(server.shared().count(Count::Rejected), 2);
}

/// A connection from another address of this host.
fn from(ip: [u8; 4], to: SocketAddr) -> TcpStream {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::from((ip, 0))).unwrap();
    connect_to(&fd, &to).unwrap();
    let stream = TcpStream::from(fd);
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream
}

#[test]
fn an_address_has_its_share_of_the_places_and_cannot_push_others_out() {
    let settings = Settings {
        connections_max: 4,
        address_max: Some(3),
        evicted_idle_ms: 0,
        ..Settings::default()
    };
    let server = ours(settings);
    let addr = server.addrs().1.unwrap();
    let pong = |client: &mut TcpStream| ask(client, b"PING\r\n", b"\r\n") == b"+PONG\r\n";
    let mut many: Vec<TcpStream> = (0..3).map(|_| from([127, 0, 0, 2], addr)).collect();
    assert!(many.iter_mut().all(pong));
    let refused = read_until(&mut from([127, 0, 0, 2], addr), |_| false);
    assert_eq!(refused, b"-ERR max number of clients reached\r\n");
    assert_eq!(server.shared().count(Count::AddressRejected), 1);
    let mut other = from([127, 0, 0, 3], addr);
    assert!(pong(&mut other));
    drop(many.pop());
    wait_until("it is gone", || server.shared().connections() == 3);
    many.push(from([127, 0, 0, 2], addr));
    assert!(many.iter_mut().all(pong));
    // All places are taken. One of the many goes, since theirs are more.
    std::thread::sleep(Duration::from_millis(10));
    let mut third = from([127, 0, 0, 4], addr);
    assert!(pong(&mut third) && pong(&mut other));
    assert_eq!(server.shared().count(Count::IdleEvictions), 1);
}

#[test]
fn who_does_not_say_the_password_in_time_is_let_go_of() {
    let settings = Settings {
        password: Some("secret".into()),
        users: vec![("user".into(), "secret".into())],
        handshake_ms: 500,
        ..Settings::default()
    };
    let server = ours(settings);
    let mut known = resp(&server);
    assert_eq!(ask(&mut known, b"AUTH secret\r\n", b"\r\n"), b"+OK\r\n");
    let mut strangers = [resp(&server), memcached(&server), resp(&server)];
    // Sending more does not help.
    assert!(ask(&mut strangers[2], b"PING\r\n", b"\r\n").starts_with(b"-NOAUTH"));
    for stranger in &mut strangers {
        assert_eq!(read_until(stranger, |_| false), b"");
    }
    assert_eq!(server.shared().count(Count::HandshakeTimeouts), 3);
    assert_eq!(ask(&mut known, b"PING\r\n", b"\r\n"), b"+PONG\r\n");
}

#[test]
fn half_a_command_is_waited_for_as_long_as_it_goes_on_fast_enough() {
    let server = ours(Settings { stall_ms: 500, ..Settings::default() });
    let halves: [&[u8]; 4] = [
        b"*2\r\n$4\r\nECHO\r\n$100000\r\n",
        b"GET a line without",
        b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n",
        b"*2",
    ];
    let mut idle = resp(&server);
    let start = Instant::now();
    let mut slow: Vec<TcpStream> = halves.iter().map(|_| resp(&server)).collect();
    for (client, half) in slow.iter_mut().zip(halves) {
        client.write_all(half).unwrap();
    }
    while server.shared().count(Count::SlowWriters) < halves.len() as u64 {
        assert!(start.elapsed() < WITHIN, "{}", server.shared().count(Count::SlowWriters));
        // Byte by byte, but not the last one, which says nothing more.
        for client in &mut slow[..3] {
            let _ = client.write(b"1");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // A client without an unfinished command may be silent.
    assert_eq!(ask(&mut idle, b"PING\r\n", b"\r\n"), b"+PONG\r\n");
}
