//! What clients that are hostile, slow or gone cost the server: measured in pages of this process,
//! so that these tests have one of their own and take turns.

mod peers;

use peers::{WITHIN, ask, connect, ours, ours_of, read_until};
use rackpool_kv::front::core::Settings;
use rackpool_kv::front::counters::Count;
use rackpool_kv::front::server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Held by the test whose turn it is.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn memcached(server: &Server) -> TcpStream {
    connect(server.addrs().0.unwrap())
}

fn resp(server: &Server) -> TcpStream {
    connect(server.addrs().1.unwrap())
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < WITHIN, "{what}: not within {WITHIN:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Memory of this process that lies in pages, bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn a_key_of_a_gigabyte_is_refused_at_once() {
    let _turn = turn();
    let server = ours(Settings::default());
    let before = resident();
    for head in [
        "*2\r\n$3\r\nGET\r\n$1000000000\r\n",
        "*3\r\n$3\r\nSET\r\n$500000000\r\n",
        "*1048576\r\n$500000000\r\n",
    ] {
        let mut r = resp(&server);
        r.write_all(head.as_bytes()).unwrap();
        // Refused, whatever else is sent.
        let _ = r.write_all(&vec![b'k'; 1 << 20]);
        let answer = read_until(&mut r, |_| false);
        let text = answer.escape_ascii().to_string();
        assert!(answer.is_empty() || answer.starts_with(b"-ERR Protocol error"), "{text}");
    }
    let mut m = memcached(&server);
    let _ = m.write_all(&vec![b'k'; 1 << 20]);
    assert_eq!(read_until(&mut m, |_| false), b"");
    assert!(resident() < before + (32 << 20));
    assert!(server.shared().count(Count::ProtocolErrors) >= 3);
}

#[test]
fn a_client_that_never_reads_costs_a_bounded_amount() {
    let _turn = turn();
    let server = ours(Settings { value_bytes_max: 1 << 20, ..Settings::default() });
    let mut m = memcached(&server);
    let value = vec![b'v'; 20_000];
    let mut set = b"set v 0 0 20000\r\n".to_vec();
    set.extend_from_slice(&value);
    set.extend_from_slice(b"\r\n");
    assert_eq!(ask(&mut m, &set, b"\r\n"), b"STORED\r\n");
    let before = resident();
    m.set_nonblocking(true).unwrap();
    let asks = b"get v\r\n".repeat(10_000);
    // 200 MB of answers for each of these; soon the server does not read any more.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        let sent = m.write(&asks);
        if sent.is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(resident() < before + (32 << 20), "{} -> {}", before, resident());
    // Others are served meanwhile.
    assert_eq!(ask(&mut resp(&server), b"PING\r\n", b"\r\n"), b"+PONG\r\n");
    // It was only slow: everything that was asked for is answered.
    m.set_nonblocking(false).unwrap();
    let mut read = 0;
    let mut buffer = vec![0; 1 << 20];
    while read < 50_000_000 {
        read += m.read(&mut buffer).unwrap();
    }
}

#[test]
fn ten_thousand_connections_leave_no_memory_behind() {
    let _turn = turn();
    // A small cache, all of whose memory is in use before anything is measured.
    let server = ours_of(16 << 20, Settings::default());
    let mut fill = memcached(&server);
    for index in 0..500 {
        let mut set = format!("set fill{index} 0 0 50000\r\n").into_bytes();
        set.resize(set.len() + 50_000, b'f');
        set.extend_from_slice(b"\r\n");
        assert_eq!(ask(&mut fill, &set, b"\r\n"), b"STORED\r\n");
    }
    drop(fill);
    let mut visited = server.shared().count(Count::Accepted);
    let mut visit = |count: usize| {
        visited += count as u64;
        for index in 0..count {
            let mut client = if index % 2 == 0 { memcached(&server) } else { resp(&server) };
            if index % 3 == 0 {
                // Gone in the midst of a command.
                client.write_all(b"set a 0 0 100000\r\nhalf of it").unwrap();
            } else if index % 3 == 1 {
                client.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$70000\r\nhalf of it").unwrap();
            }
        }
        let accepted = || server.shared().count(Count::Accepted);
        wait_until("all came", || accepted() == visited);
        wait_until("all are gone", || server.shared().connections() == 0);
    };
    visit(2000);
    let before = resident();
    visit(10_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes more");
}
