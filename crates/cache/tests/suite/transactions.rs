//! `MULTI`, `EXEC`, `WATCH` and the others of their kind: beside redis-server, and as clients of
//! every protocol see them.

use crate::herd::{ShmClient, unique};
use crate::peers::{
    ask, ask_text, connect, memcached_of, ours, read_until, redis, resp_of, wait_until, words,
};
use rackpool_cache::front::{
    ClientInfo, Core, ListenConfig, Protocol, Server, Session, Settings, Shared,
};
use rackpool_cache::herd::ServerOptions;
use rackpool_cache::{Cache, Mode, Options};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;

/// What is answered to these lines, up to an echo behind them.
fn told(stream: &mut TcpStream, lines: &[&str]) -> String {
    let all: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let end = b"$7\r\nthe end\r\n";
    ask_text(stream, &[all.as_bytes(), &words(&[b"ECHO", b"the end"])].concat(), end)
}

#[test]
fn rules_and_errors_are_those_of_redis() {
    let Some(redis) = redis() else { return };
    let server = ours(Settings { threads: 2, ..Settings::default() });
    for lines in [
        &["exec"][..],
        &["exec a"],
        &["discard"],
        &["discard x"],
        &["multi x"],
        &["watch"],
        &["unwatch x"],
        &["unwatch"],
        &["multi", "exec"],
        &["multi", "multi", "set a 1", "exec"],
        &["multi", "watch a", "set a 1", "exec"],
        &["multi", "exec a", "exec"],
        &["watch a", "set a 1", "exec a", "multi", "get a", "exec"],
        &["multi", "discard x", "exec"],
        &["multi", "nonsense", "set a 2", "exec", "get a"],
        &["multi", "nonsense", "set a", "discard", "get a"],
        &["multi", "set a", "exec", "exec"],
        &["multi", "client nonsense", "exec"],
        &["multi", "set b 1", "incr b", "append b x", "incr b", "get b", "exec", "get b"],
        &["multi", "set e v ex 0", "set e v", "strlen e", "exec"],
        &["multi", "unwatch", "exec"],
        &["multi", "select 1", "set x 1", "exec", "get x", "select 0", "get x"],
        &["multi", "select 99", "incr n", "select 3", "select x", "incr n", "exec", "incr n"],
        &["multi", "get nokey", "mget a b nokey", "exists a b nokey", "exec"],
        &["multi", "mset m1 1 m2 2", "del m1 m2 m3", "mset m1", "exec"],
        &["multi", "set f 1", "flushall", "dbsize", "set f 2", "dbsize", "exec", "get f"],
        &["multi", "set f 1", "move f 4", "get f", "select 4", "get f", "exec", "select 0"],
        &["multi", "swapdb 4 5", "select 5", "get f", "select 0", "exec"],
        &["multi", "set a 1", "reset", "exec", "get a"],
        &["multi", "reset x", "exec"],
        &["select 3", "client setname some", "reset", "client getname", "get n"],
        &["multi", "auth a b", "ping", "ping text", "echo text", "exec"],
        &["multi", "client setname a", "client getname", "exec", "client getname"],
        &["multi", "expire a 100", "ttl a", "persist a", "ttl a", "exec"],
        &["multi", "getdel a", "getdel a", "getset a 3", "setnx a 4", "exec"],
        &["watch a", "watch a a b", "unwatch", "set a 5", "multi", "get a", "exec"],
        &["watch a", "set a 5", "discard", "multi", "get a", "discard", "multi", "get a", "exec"],
        &["command getkeys watch a b", "multi", "command count x", "exec"],
    ] {
        let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
        assert_eq!(told(&mut client, lines), told(&mut theirs, lines), "{lines:?}");
    }
    // Quoted words, and words that are no text.
    let line = ["multi", "set q \"a \\x00 b\"", "get q", "exec"];
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    assert_eq!(told(&mut client, &line), told(&mut theirs, &line));
    let quits = b"multi\r\nset a 1\r\nquit\r\nexec\r\n";
    assert_eq!(ask(&mut client, quits, b"no end"), ask(&mut theirs, quits, b"no end"));
}

#[test]
fn both_versions_of_the_protocol_say_that_nothing_was_executed() {
    let server = ours(Settings::default());
    for (hello, nothing) in [("ping", "*-1\r\n"), ("hello 3", "_\r\n")] {
        let (mut client, mut other) = (resp_of(&server), resp_of(&server));
        told(&mut client, &[hello, "watch k"]);
        told(&mut other, &["incr k"]);
        let said = told(&mut client, &["multi", "get k", "exec", "multi", "get k", "exec"]);
        assert!(said.contains(nothing) && said.contains("*1\r\n$1\r\n"), "{said}");
    }
}

/// What two clients say, in turn; `A` watches and executes.
type Case = &'static [(char, &'static str)];

/// Whether `EXEC` does nothing, here and in Redis.
const WATCHED: &[Case] = &[
    &[('A', "watch k")],
    &[('A', "watch k"), ('B', "get k"), ('B', "touch k"), ('B', "set other 1")],
    &[('A', "watch k"), ('B', "set k 1")],
    &[('A', "watch k"), ('A', "set k 1")],
    &[('A', "watch j k"), ('B', "append j x")],
    // What was there.
    &[('B', "set k v"), ('A', "watch k"), ('B', "set k v")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "setnx k w"), ('B', "set k w nx")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "del k")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "del k"), ('B', "set k v")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "incr k")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "getex k")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "getex k persist"), ('B', "persist k")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "expire k 100")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "expire k 100 xx")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "expire k 100"), ('B', "persist k")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "getdel k")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "expire k -1")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "move k 2")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "append k \"\"")],
    &[('B', "set k v pxat 9000000000000"), ('A', "watch k"), ('B', "pexpireat k 9000000000000")],
    // What was not.
    &[('A', "watch k"), ('B', "del k"), ('B', "expire k 100"), ('B', "getdel k")],
    &[('A', "watch k"), ('B', "set k v"), ('B', "del k")],
    &[('A', "watch k"), ('B', "set k v exat 1")],
    &[('A', "watch k"), ('B', "set k v xx")],
    &[('A', "watch k"), ('B', "select 2"), ('B', "set k v"), ('B', "move k 0")],
    // Other databases.
    &[('A', "watch k"), ('B', "select 2"), ('B', "set k v")],
    &[('A', "select 2"), ('A', "watch k"), ('A', "select 0"), ('B', "set k v")],
    &[('A', "select 2"), ('A', "watch k"), ('A', "select 0"), ('B', "select 2"), ('B', "set k v")],
    // Whole databases.
    &[('A', "watch k"), ('B', "flushall")],
    &[('A', "watch k"), ('B', "set j 1"), ('B', "flushdb")],
    &[('A', "watch k"), ('B', "set j 1"), ('B', "flushdb"), ('B', "set k v"), ('B', "del k")],
    &[
        ('B', "select 2"),
        ('B', "set j 1"),
        ('B', "select 0"),
        ('B', "set j 1"),
        ('A', "watch k"),
        ('B', "flushdb"),
        ('B', "set k v"),
        ('B', "del k"),
    ],
    &[('B', "set k v"), ('A', "watch k"), ('B', "flushdb")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "flushall"), ('B', "set k v")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "select 2"), ('B', "flushdb")],
    &[('A', "watch k"), ('B', "swapdb 0 2")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "swapdb 0 2")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "swapdb 0 2"), ('B', "swapdb 2 0")],
    &[('B', "set k v"), ('A', "watch k"), ('B', "swapdb 0 0"), ('B', "swapdb 3 2")],
    &[('B', "select 2"), ('B', "set k v"), ('A', "watch k"), ('B', "swapdb 2 0")],
    &[('A', "watch k"), ('B', "swapdb 0 2"), ('B', "set k v"), ('B', "del k")],
    &[('A', "watch k"), ('B', "swapdb 0 2"), ('B', "select 2"), ('B', "set k v")],
    // What ends a watch.
    &[('A', "watch k"), ('B', "set k v"), ('A', "unwatch")],
    &[('A', "watch k"), ('B', "set k v"), ('A', "multi\r\ndiscard")],
    &[('A', "watch k"), ('B', "set k v"), ('A', "multi\r\nexec")],
    &[('A', "watch k"), ('B', "set k v"), ('A', "discard")],
    &[('A', "watch k"), ('B', "set k v"), ('A', "reset")],
    &[('A', "watch k"), ('B', "set k v"), ('A', "multi\r\nunwatch\r\nexec")],
];

#[test]
fn a_watched_key_that_was_changed_keeps_a_transaction_from_being_executed_as_in_redis() {
    let Some(redis) = redis() else { return };
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let addrs = [server.addrs().1.unwrap(), redis.addr];
    let mut refused = 0;
    for case in WATCHED {
        let [ours, theirs] = addrs.map(|addr| {
            let (mut a, mut b) = (connect(addr), connect(addr));
            told(&mut b, &["flushall"]);
            for (client, line) in *case {
                told(if *client == 'A' { &mut a } else { &mut b }, &[*line]);
            }
            told(&mut a, &["multi", "incr done", "exec"])
        });
        assert_eq!(ours, theirs, "{case:?}");
        refused += usize::from(ours.contains("*-1"));
    }
    assert!(refused > 15 && refused < WATCHED.len() - 15, "{refused} were refused");
}

#[test]
fn other_protocols_change_watched_keys_too_and_time_takes_them() {
    let server = ours(Settings::default());
    let (mut client, mut text) = (resp_of(&server), memcached_of(&server));
    let mut is_refused = |text: &mut dyn FnMut()| {
        told(&mut client, &["set k 1 px 50000", "watch k"]);
        text();
        told(&mut client, &["multi", "get k", "exec"]).contains("*-1")
    };
    for line in ["set k 0 0 1\r\nv", "incr k 1", "touch k 100", "delete k", "md k", "ms k 1\r\nx"] {
        let line = format!("{line}\r\nmn\r\n");
        assert!(is_refused(&mut || _ = ask(&mut text, line.as_bytes(), b"MN\r\n")), "{line}");
    }
    for line in ["get k", "gets k", "mg k v t", "add k 0 0 1\r\nv", "cas k 0 0 1 1\r\nv"] {
        let line = format!("{line}\r\nmn\r\n");
        assert!(!is_refused(&mut || _ = ask(&mut text, line.as_bytes(), b"MN\r\n")), "{line}");
    }
    told(&mut client, &["set k 1 px 300", "watch k"]);
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(told(&mut client, &["multi", "exec"]).contains("*-1"));
    // It was over when the watch began.
    assert!(told(&mut client, &["watch k", "multi", "exec"]).contains("*0"));
}

/// A server with several partitions, for every protocol.
fn open_to_all(name: &str) -> Server {
    let options = Options {
        memory: 64 << 20,
        partitions: 8,
        shared_reads: true,
        keeps_access: true,
        ..Options::default()
    };
    let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let herd = Some(ServerOptions { clients: 4, ..ServerOptions::new(name) });
    let listen = ListenConfig { memcached: any, resp: any, herd, ..ListenConfig::default() };
    let settings = Settings { threads: 2, ..Settings::default() };
    Server::start(Cache::new(options).unwrap(), settings, &listen).unwrap()
}

/// Keys of two partitions that are raised together.
const PAIR: [&str; 2] = ["one", "another"];

/// The lines of an answer that are numbers.
fn numbers(answer: &[u8]) -> Vec<u64> {
    String::from_utf8_lossy(answer).lines().filter_map(|line| line.parse().ok()).collect()
}

/// A request of memcached's binary protocol for a key; the number in the answer.
fn binary_get(stream: &mut TcpStream, key: &str) -> u64 {
    let mut request = vec![0x80, 0, 0, key.len() as u8, 0, 0, 0, 0];
    request.extend_from_slice(&(key.len() as u32).to_be_bytes());
    request.resize(24, 0);
    request.extend_from_slice(key.as_bytes());
    stream.write_all(&request).unwrap();
    let is_whole = |all: &[u8]| {
        let body = all.get(8..12).map(|bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
        body.is_some_and(|body| all.len() == 24 + body as usize)
    };
    let answer = read_until(stream, is_whole);
    // Behind four bytes of flags.
    numbers(&answer[28..])[0]
}

/// Looks at both keys, in turns, until it is over: the one that is looked at second is never older.
fn observe(is_over: &AtomicBool, mut look: impl FnMut(&str) -> u64) {
    let mut rounds = 0;
    // Relaxed: a flag without data.
    while !is_over.load(Ordering::Relaxed) || rounds < 10 {
        let [first, second] = if rounds % 2 == 0 { PAIR } else { [PAIR[1], PAIR[0]] };
        let (before, after) = (look(first), look(second));
        assert!(after >= before, "{second} is {after} after {first} was {before}");
        rounds += 1;
    }
}

/// Raises both keys in transactions: some are executed where they came, some by the thread for what
/// takes long.
fn raise(server: &Server, rounds: usize, is_over: &AtomicBool) {
    let mut client = resp_of(server);
    for round in 0..rounds {
        let more = if round % 50 == 7 { 200 } else { 0 };
        let mut all = b"multi\r\n".to_vec();
        all.extend_from_slice(format!("incr {}\r\n", PAIR[0]).as_bytes());
        (0..more).for_each(|_| all.extend_from_slice(b"strlen x\r\n"));
        all.extend_from_slice(format!("incr {}\r\nexec\r\n", PAIR[1]).as_bytes());
        all.extend_from_slice(&words(&[b"ECHO", b"done"]));
        ask(&mut client, &all, b"$4\r\ndone\r\n");
    }
    // Relaxed: a flag without data.
    is_over.store(true, Ordering::Relaxed);
}

#[test]
fn clients_of_every_protocol_see_all_of_a_transaction_or_nothing() {
    let name = unique("transactions");
    let (server, is_over) = (&open_to_all(&name), &AtomicBool::new(false));
    let cache = &server.shared().cache;
    assert_ne!(cache.partition_of(PAIR[0].as_bytes()), cache.partition_of(PAIR[1].as_bytes()));
    told(&mut resp_of(server), &["mset one 0 another 0"]);
    scope(|scope| {
        scope.spawn(move || raise(server, 2_000, is_over));
        scope.spawn(move || raise(server, 2_000, is_over));
        scope.spawn(move || {
            let mut client = resp_of(server);
            let get = |key: &str| format!("get {key}\r\necho .\r\n").into_bytes();
            observe(is_over, |key| numbers(&ask(&mut client, &get(key), b"$1\r\n.\r\n"))[0]);
        });
        scope.spawn(move || {
            let mut client = resp_of(server);
            let get = b"mget one another\r\nmulti\r\nget another\r\nget one\r\nexec\r\necho .\r\n";
            // Relaxed: a flag without data.
            while !is_over.load(Ordering::Relaxed) {
                let all = numbers(&ask(&mut client, get, b"$1\r\n.\r\n"));
                assert_eq!((all[0], all[2]), (all[1], all[3]), "each two are of one moment");
            }
        });
        scope.spawn(move || {
            let mut client = memcached_of(server);
            let get = |key: &str| format!("get {key}\r\n").into_bytes();
            observe(is_over, |key| numbers(&ask(&mut client, &get(key), b"END\r\n"))[0]);
            let get = |key: &str| format!("mg {key} v\r\nmn\r\n").into_bytes();
            observe(is_over, |key| numbers(&ask(&mut client, &get(key), b"MN\r\n"))[0]);
        });
        scope.spawn(move || {
            let mut client = memcached_of(server);
            let get = |key: &str| format!("mg {key} v t\r\nmn\r\n").into_bytes();
            observe(is_over, |key| numbers(&ask(&mut client, &get(key), b"MN\r\n"))[0]);
        });
        scope.spawn(move || {
            let mut client = memcached_of(server);
            observe(is_over, |key| binary_get(&mut client, key));
        });
        let name = &name;
        scope.spawn(move || {
            let (mut client, mut value) = (ShmClient::connect(name).unwrap(), Vec::new());
            observe(is_over, |key| {
                value.clear();
                assert!(client.get(key.as_bytes(), &mut value).unwrap().is_some());
                numbers(&value)[0]
            });
        });
    });
    let said = told(&mut resp_of(server), &["mget one another"]);
    assert_eq!(numbers(said.as_bytes()), [4_000, 4_000]);
}

/// Those that change both keys, one after the other, are not part of anything: a transaction that
/// read one and writes the other is repeated until nothing came between.
#[test]
fn what_is_watched_read_and_written_back_is_never_lost() {
    let server = &open_to_all(&unique("watches"));
    const ROUNDS: u64 = 200;
    scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                let mut client = resp_of(server);
                for _ in 0..ROUNDS {
                    loop {
                        let said = told(&mut client, &["watch one", "get one"]);
                        let before = numbers(said.as_bytes()).first().copied().unwrap_or(0);
                        let set = format!("set one {}", before + 1);
                        if !told(&mut client, &["multi", &set, "exec"]).contains("*-1") {
                            break;
                        }
                    }
                }
            });
        }
        scope.spawn(move || {
            let mut text = memcached_of(server);
            for round in 0..ROUNDS {
                let said = ask_text(&mut text, b"incr one 1\r\nmn\r\n", b"MN\r\n");
                // It may not be there yet.
                if said.starts_with("NOT_FOUND") {
                    let add = ask_text(&mut text, b"add one 0 0 1\r\n1\r\nmn\r\n", b"MN\r\n");
                    assert!(round == 0, "{add}");
                    if add.starts_with("NOT_STORED") {
                        ask(&mut text, b"incr one 1\r\nmn\r\n", b"MN\r\n");
                    }
                }
            }
        });
    });
    let said = told(&mut resp_of(server), &["get one"]);
    assert_eq!(numbers(said.as_bytes()), [4 * ROUNDS]);
}

/// Sends a transaction of so many commands, up to `EXEC`, which is not sent yet.
fn queue(client: &mut TcpStream, command: &[u8], count: usize) {
    let commands = [b"multi\r\n", &command.repeat(count)[..]].concat();
    client.write_all(&commands).unwrap();
    let answers = b"+OK\r\n".len() + count * b"+QUEUED\r\n".len();
    let said = read_until(client, |all| all.len() >= answers);
    assert_eq!(said.len(), answers, "{}", String::from_utf8_lossy(&said[said.len() - 100..]));
}

#[test]
fn a_long_transaction_does_not_hold_up_others_of_its_thread() {
    let server = ours(Settings { threads: 1, ..Settings::default() });
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    let (is_over, looks) = (&AtomicBool::new(false), &AtomicU64::new(0));
    scope(|scope| {
        scope.spawn(move || {
            // Relaxed: a flag and a counter.
            while !is_over.load(Ordering::Relaxed) {
                ask(&mut other, b"get other\r\n", b"$-1\r\n");
                looks.fetch_add(1, Ordering::Relaxed);
            }
        });
        queue(&mut client, b"incr long\r\n", 100_000);
        // Relaxed: as above.
        let before = looks.load(Ordering::Relaxed);
        let said = ask(&mut client, b"exec\r\nget long\r\n", b"$6\r\n100000\r\n");
        let during = looks.load(Ordering::Relaxed) - before;
        is_over.store(true, Ordering::Relaxed);
        assert!(said.starts_with(b"*100000\r\n:1\r\n:2\r\n") && during > 10, "{during} looks");
    });
}

#[test]
fn what_follows_a_long_transaction_waits_for_it() {
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let value = vec![b'v'; 40_000];
    let mut client = resp_of(&server);
    ask(&mut client, &words(&[b"SET", b"long", &value]), b"+OK\r\n");
    queue(&mut client, b"get long\r\n", 200);
    // The database and the version that it leaves are those of what follows.
    let mut rest = b"select 3\r\nset k 1\r\nhello 3\r\nexec\r\nget k\r\nget nokey\r\n".to_vec();
    rest.extend_from_slice(b"incr k\r\necho .\r\n");
    let said = ask(&mut client, &rest, b"$1\r\n.\r\n");
    let head = b"+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*203\r\n$40000\r\nvvv";
    assert!(said.starts_with(head), "{}", said[..60].escape_ascii());
    let values = said.windows(8).filter(|part| part == b"$40000\r\n").count();
    assert_eq!(values, 200);
    assert!(said.ends_with(b"$1\r\n1\r\n_\r\n:2\r\n$1\r\n.\r\n"));

    // A client that does not wait for its end: all of it is done.
    let mut leaves = resp_of(&server);
    queue(&mut leaves, b"incr done\r\n", 5_000);
    leaves.write_all(b"exec\r\n").unwrap();
    drop(leaves);
    let mut other = resp_of(&server);
    wait_until("all is done", || told(&mut other, &["get done"]).contains("\r\n5000\r\n"));
    wait_until("it is gone", || told(&mut other, &["client list"]).matches(" age=").count() == 2);
}

#[test]
fn a_queue_that_is_full_refuses_and_lets_go_of_all() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    queue(&mut client, b"incr k\r\n", 128 << 10);
    let said = told(&mut client, &["incr k", "incr k", "exec", "exists k"]);
    assert!(said.starts_with("-ERR more than 131072 commands in a transaction\r\n+QUEUED\r\n"));
    assert!(
        said.contains("\r\n-EXECABORT Transaction discarded because of previous errors.\r\n:0")
    );

    let value = vec![b'v'; 1 << 20];
    ask(&mut client, b"multi\r\n", b"+OK\r\n");
    let set = words(&[b"SET", b"k", &value]);
    for _ in 0..31 {
        assert_eq!(ask(&mut client, &set, b"\r\n"), b"+QUEUED\r\n");
    }
    let said = ask_text(&mut client, &set, b"\r\n");
    assert!(said.starts_with("-ERR the commands of a transaction have more than"), "{said}");
    let said = told(&mut client, &["exec", "exists k"]);
    assert!(said.starts_with("-EXECABORT") && said.contains(":0\r\n"), "{said}");

    let keys: Vec<_> = (0..1025).map(|key| format!("key{key}")).collect();
    let said = told(&mut client, &[&format!("watch {}", keys[..1024].join(" "))]);
    assert!(said.starts_with("+OK"), "{said}");
    let said = told(&mut client, &["watch key0 key1", "watch key1024"]);
    assert!(said.starts_with("+OK\r\n-ERR more than 1024 keys are watched"), "{said}");
}

#[test]
fn long_values_wait_with_their_commands() {
    let server = ours(Settings::default());
    let (mut client, value) = (resp_of(&server), vec![b'v'; 200_000]);
    let all = [
        &b"multi\r\n"[..],
        &words(&[b"SET", b"k", &value, b"EX", b"100"]),
        &words(&[b"APPEND", b"k", &value]),
        b"strlen k\r\nexec\r\nttl k\r\n",
    ];
    let said = ask_text(&mut client, &all.concat(), b":100\r\n");
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
    assert_eq!(said, format!("{queued}*3\r\n+OK\r\n:400000\r\n:400000\r\n:100\r\n"));
    let set = words(&[b"SET", b"k", &value]);
    let refused = [&b"multi\r\n"[..], &set, b"discard\r\nstrlen k\r\n"].concat();
    assert_eq!(ask(&mut client, &refused, b":400000\r\n"), b"+OK\r\n+QUEUED\r\n+OK\r\n:400000\r\n");
}

/// Without sockets, and without a thread for what takes long.
fn say(core: &mut Core, session: &mut Session, lines: &str) -> String {
    let said = lines.replace('|', "\r\n") + "\r\n";
    assert_eq!(session.feed(core, said.as_bytes()), said.len());
    String::from_utf8(std::mem::take(&mut core.out.bytes)).unwrap().replace("\r\n", "|")
}

#[test]
fn a_store_that_is_full_refuses_transactions_that_store_and_a_cache_evicts() {
    for mode in [Mode::Store, Mode::Cache] {
        let options = Options { memory: 4 << 20, mode, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        let shared = Arc::new(Shared::new(cache, Settings::default(), (0, 1)));
        let mut core = Core::new(shared, 0, 1_000_000);
        let client = ClientInfo { known: true, ..ClientInfo::default() };
        let session = &mut Session::new(Protocol::Resp, client);
        let value = "v".repeat(60_000);
        let mut stored = 0;
        while stored < 200 && say(&mut core, session, &format!("set {stored} {value}")) == "+OK|" {
            stored += 1;
        }
        assert_eq!(stored == 200, mode == Mode::Cache, "{stored}");
        let lines = format!("multi|incr n|set big {value}|get n|exec");
        let said = say(&mut core, session, &lines);
        let queued = "+OK|+QUEUED|+QUEUED|+QUEUED|";
        let answer = match mode {
            Mode::Cache => "*3|:1|+OK|$1|1|",
            Mode::Store => {
                "-EXECABORT Transaction discarded because of: OOM command not allowed when used \
                 memory > 'maxmemory'.|"
            }
        };
        assert_eq!(said, format!("{queued}{answer}"));
        // What stores nothing is executed, and what makes room lets others in.
        let count = u8::from(mode == Mode::Cache);
        let said = say(&mut core, session, "multi|exists n|exec");
        assert_eq!(said, format!("+OK|+QUEUED|*1|:{count}|"));
        if mode == Mode::Store {
            say(&mut core, session, "del 0 1 2 3 4 5 6 7 8 9");
            assert_eq!(say(&mut core, session, &lines), format!("{queued}*3|:1|+OK|$1|1|"));
        }
    }
}
