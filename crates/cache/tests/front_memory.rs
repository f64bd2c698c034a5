//! What clients that are hostile, slow or gone cost the server: measured in pages of this process,
//! so that these tests have one of their own and take turns.

#[path = "suite/peers/mod.rs"]
mod peers;

use peers::{
    ask, ask_text, memcached_of as memcached, ours, ours_of, read_until, resp_of as resp, set,
    wait_until, words,
};
use rackpool_cache::front::{Count, Server, Settings};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Held by the running test.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
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
        let answer = read_until(&mut r, |all| all.ends_with(b"\r\n"));
        let text = answer.escape_ascii().to_string();
        let is_refusal = [&b"-ERR Protocol error"[..], b"-ERR a command of 5000000"]
            .iter()
            .any(|refusal| answer.starts_with(refusal));
        assert!(answer.is_empty() || is_refusal, "{text}");
    }
    let mut m = memcached(&server);
    let _ = m.write_all(&vec![b'k'; 1 << 20]);
    assert_eq!(read_until(&mut m, |_| false), b"");
    assert!(resident() < before + (32 << 20));
    assert!(server.shared().count(Count::ProtocolErrors) >= 2);
}

#[test]
fn a_client_that_never_reads_costs_a_bounded_amount() {
    let _turn = turn();
    let server = ours(Settings { value_bytes_max: 1 << 20, ..Settings::default() });
    let mut m = memcached(&server);
    assert_eq!(ask(&mut m, &set("v", &[b'v'; 20_000]), b"\r\n"), b"STORED\r\n");
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
fn half_sent_commands_of_many_clients_take_no_more_than_all_may() {
    let _turn = turn();
    let server = ours(Settings { held_bytes_max: 16 << 20, ..Settings::default() });
    let before = resident();
    let mut most = 0;
    let clients: Vec<TcpStream> = (0..100)
        .map(|index| {
            let mut client = resp(&server);
            // Values, keys and commands of many words; some clients come again and again.
            let head = match index % 3 {
                0 => "*2\r\n$4\r\nECHO\r\n$3000000\r\n",
                1 => "*500000\r\n$4\r\nMSET\r\n",
                _ => "*3\r\n$3\r\nSET\r\n$3000000\r\n",
            };
            let body: &[u8] = if index % 3 == 1 { b"$1\r\na\r\n" } else { b"seven b" };
            client.write_all(head.as_bytes()).unwrap();
            // It may be ended in the midst of this.
            let _ = client.write_all(&body.repeat(400_000));
            most = most.max(resident().saturating_sub(before));
            client
        })
        .collect();
    assert!(most < 48 << 20, "{most} bytes more");
    wait_until("most were ended", || server.shared().count(Count::HeldTooMuch) > 50);
    assert_eq!(ask(&mut resp(&server), b"PING\r\n", b"\r\n"), b"+PONG\r\n");
    drop(clients);
}

#[test]
fn ten_thousand_connections_leave_no_memory_behind() {
    let _turn = turn();
    // A small cache, with all of its memory in use before anything is measured.
    let server = ours_of(16 << 20, Settings::default());
    let mut fill = memcached(&server);
    for index in 0..500 {
        let set = set(&format!("fill{index}"), &[b'f'; 50_000]);
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

/// How many values one command asks for, in the tests of such commands.
const ASKED: usize = 8000;

/// Sends a command without reading its answer, which must not cost what it is long; then reads it.
fn bounded_answer(
    server: &Server,
    mut client: TcpStream,
    command: &[u8],
    expected: &[&[u8]],
    bytes_max: u64,
) {
    let before = resident();
    let read = server.shared().count(Count::BytesRead);
    client.write_all(command).unwrap();
    let came = || server.shared().count(Count::BytesRead) - read;
    wait_until("the command has come", || came() == command.len() as u64);
    // It has been begun by now, or is so soon.
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(2));
        let grown = resident().saturating_sub(before);
        assert!(grown < bytes_max, "{grown} bytes more for one command");
    }
    // Others are served meanwhile.
    assert_eq!(ask(&mut resp(server), b"PING\r\n", b"\r\n"), b"+PONG\r\n");
    let mut buffer = Vec::new();
    for (index, part) in expected.iter().enumerate() {
        buffer.resize(part.len(), 0);
        client.read_exact(&mut buffer).unwrap();
        assert!(buffer == *part, "part {index} is another one");
    }
    let held = resident().saturating_sub(before);
    assert!(held < bytes_max, "{held} bytes more while it was read");
    let end = if expected[0].starts_with(b"V") { "mn\r\n" } else { "PING\r\n" };
    let answer = ask(&mut client, end.as_bytes(), b"\r\n");
    assert!(answer == b"MN\r\n" || answer == b"+PONG\r\n", "{}", answer.escape_ascii());
}

#[test]
fn a_line_that_asks_for_many_values_costs_a_bounded_amount() {
    let _turn = turn();
    let server = ours(Settings::default());
    let mut m = memcached(&server);
    // The longest ones that are copied.
    for (key, byte) in [("k", b'v'), ("l", b'w')] {
        assert_eq!(ask(&mut m, &set(key, &[byte; 32_767]), b"\r\n"), b"STORED\r\n");
    }
    let text = |key: &str, byte: u8| {
        [format!("VALUE {key} 0 32767\r\n").as_bytes(), &[byte; 32_767], b"\r\n"].concat()
    };
    let (k, l) = (text("k", b'v'), text("l", b'w'));
    // A line of `gat` is a short one.
    for (name, count) in [("get", ASKED), ("gat 0", 1000)] {
        let mut expected = vec![&k[..], &l];
        expected.resize_with(count, || &k);
        expected.push(b"END\r\n");
        let keys = [&b" k l absent"[..], &b" k".repeat(count - 2)].concat();
        let line = [name.as_bytes(), &keys, b"\r\n"].concat();
        bounded_answer(&server, memcached(&server), &line, &expected, 16 << 20);
    }
    assert_eq!(server.shared().count(Count::GetHits), ASKED as u64);
    assert_eq!(server.shared().count(Count::GetMisses), 1);
}

#[test]
fn a_command_of_resp_that_asks_for_many_values_costs_a_bounded_amount() {
    let _turn = turn();
    let server = ours(Settings::default());
    let mut r = resp(&server);
    for (key, byte) in [("k", b'v'), ("l", b'w')] {
        let set = words(&[b"SET", key.as_bytes(), &[byte; 32_767]]);
        assert_eq!(ask(&mut r, &set, b"\r\n"), b"+OK\r\n");
    }
    let bulk = |byte: u8| [&b"$32767\r\n"[..], &[byte; 32_767], b"\r\n"].concat();
    let (head, k, l) = (format!("*{}\r\n", ASKED + 1), bulk(b'v'), bulk(b'w'));
    let mut expected = vec![head.as_bytes(), &k, &l, b"$-1\r\n"];
    expected.resize_with(ASKED + 2, || &k);
    let words = b"$1\r\nk\r\n".repeat(ASKED - 2);
    let head = format!("*{}\r\n$4\r\nMGET\r\n$1\r\nk\r\n$1\r\nl\r\n$6\r\nabsent\r\n", ASKED + 2);
    let command = [head.as_bytes(), &words].concat();
    bounded_answer(&server, resp(&server), &command, &expected, 16 << 20);
    // As a person types it, with a word in quotes.
    let line = [&b"mget \"k\" l absent"[..], &b" k".repeat(ASKED - 2), b"\r\n"].concat();
    bounded_answer(&server, resp(&server), &line, &expected, 16 << 20);
    assert_eq!(server.shared().count(Count::KeyHits), 2 * ASKED as u64);

    // What commands are: the command itself is long, and so is the list of its words.
    let told = ask(&mut resp(&server), b"COMMAND INFO get\r\nPING\r\n", b"+PONG\r\n");
    let get = told[b"*1\r\n".len()..told.len() - b"+PONG\r\n".len()].to_vec();
    let count = 1 << 18;
    let mut command = format!("*{count}\r\n$7\r\nCOMMAND\r\n$4\r\nINFO\r\n").into_bytes();
    command.extend_from_slice(&b"$1\r\nx\r\n".repeat(2));
    command.extend_from_slice(&b"$3\r\nget\r\n".repeat(count - 4));
    let head = format!("*{}\r\n*-1\r\n*-1\r\n", count - 2);
    let (many, some) = (get.repeat(1000), get.repeat((count - 4) % 1000));
    let mut expected = vec![head.as_bytes(), &some];
    expected.resize_with(2 + (count - 4) / 1000, || &many);
    bounded_answer(&server, resp(&server), &command, &expected, 40 << 20);
}

#[test]
fn a_scan_of_long_keys_costs_a_bounded_amount() {
    let _turn = turn();
    let server = ours(Settings::default());
    let mut r = resp(&server);
    for index in 0..2000 {
        let set = words(&[b"SET", format!("{index:030000}").as_bytes(), b"v"]);
        assert_eq!(ask(&mut r, &set, b"\r\n"), b"+OK\r\n");
    }
    let (mut cursor, mut seen) = ("0".to_owned(), std::collections::BTreeSet::new());
    loop {
        let asked = format!("scan {cursor} count 10000\r\nPING\r\n");
        let text = ask_text(&mut r, asked.as_bytes(), b"+PONG\r\n");
        assert!(text.len() < 8 << 20, "{} bytes", text.len());
        let mut words = text.split("\r\n").filter(|word| !word.starts_with(['*', '$', '+']));
        cursor = words.next().unwrap().to_owned();
        seen.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 2000);
}
