//! Long values, which are sent from where they lie: what a client reads, however late, is what the
//! value was when it was asked for.

use crate::peers::{self, ask, connect, ours_of};
use rackpool_cache::front::{Server, Settings};
use std::io::{Read, Write};
use std::net::TcpStream;

const VALUE_BYTES: usize = 1_000_000;
const TAIL: &[u8] = b"\r\nEND\r\n";

/// A value that is like that of no other version anywhere.
fn value(version: u32, bytes: usize) -> Vec<u8> {
    let mut value = format!("{version:08}").repeat(bytes / 8 + 1).into_bytes();
    value.truncate(bytes);
    value
}

fn server(memory: u64) -> Server {
    ours_of(memory, Settings { value_bytes_max: 1 << 20, ..Settings::default() })
}

fn set(stream: &mut TcpStream, key: &str, version: u32, bytes: usize) {
    let set = peers::set(key, &value(version, bytes));
    assert_eq!(ask(stream, &set, b"\r\n"), b"STORED\r\n");
}

/// Reads one answer to `get`; which version it holds, whole.
fn read_version(stream: &mut TcpStream, key: &str, bytes: usize) -> u32 {
    let head = format!("VALUE {key} 0 {bytes}\r\n");
    let mut answer = vec![0; head.len() + bytes + TAIL.len()];
    stream.read_exact(&mut answer).expect("an answer");
    assert!(answer.starts_with(head.as_bytes()) && answer.ends_with(TAIL));
    let held = &answer[head.len()..][..bytes];
    let version = std::str::from_utf8(&held[..8]).expect("digits").parse().expect("a version");
    if let Some(at) = held.iter().zip(value(version, bytes)).position(|(a, b)| *a != b) {
        let found = held[at..][..8.min(bytes - at)].escape_ascii();
        panic!("version {version} at its start, {found} at byte {at}");
    }
    version
}

fn get(stream: &mut TcpStream, key: &str, bytes: usize) -> u32 {
    stream.write_all(format!("get {key}\r\n").as_bytes()).expect("it reads");
    read_version(stream, key, bytes)
}

/// The answers that lie in sockets while the cache uses its memory several times for other values.
#[test]
fn a_client_that_reads_late_gets_what_the_value_was() {
    let server = server(16 << 20);
    let addr = server.addrs().0.expect("a door");
    let (mut writer, mut reader) = (connect(addr), connect(addr));
    for round in 0..12_u32 {
        let version = round * 1000;
        set(&mut writer, "large", version, VALUE_BYTES);
        for _ in 0..3 {
            assert_eq!(get(&mut reader, "large", VALUE_BYTES), version);
        }
        reader.write_all(&b"get large\r\n".repeat(6)).expect("it reads");
        // Sent as far as the sockets take it, before it changes.
        assert_eq!(get(&mut writer, "large", VALUE_BYTES), version);
        for change in 1..=40 {
            set(&mut writer, "large", version + change, VALUE_BYTES);
            set(&mut writer, &format!("other{}", change % 20), 99_000 + change, 600_000);
        }
        let mut last = version;
        for _ in 0..6 {
            let read = read_version(&mut reader, "large", VALUE_BYTES);
            assert!(read >= last && read <= version + 40, "{read} after {last}");
            last = read;
        }
    }
}

/// Values of several long ones between short ones, by the other protocol, in one command.
#[test]
fn long_and_short_values_stand_in_order() {
    let server = server(64 << 20);
    let (memcached, resp) = server.addrs();
    let mut writer = connect(memcached.expect("a door"));
    let sizes = [10, 300_000, 40_000, 1_000_000, 262_144, 1];
    for (key, bytes) in sizes.into_iter().enumerate() {
        set(&mut writer, &format!("k{key}"), key as u32, bytes);
    }
    let mut words = b"*7\r\n$4\r\nMGET\r\n".to_vec();
    let mut wanted = b"*6\r\n".to_vec();
    for (key, bytes) in sizes.into_iter().enumerate() {
        words.extend_from_slice(format!("$2\r\nk{key}\r\n").as_bytes());
        wanted.extend_from_slice(format!("${bytes}\r\n").as_bytes());
        wanted.extend_from_slice(&value(key as u32, bytes));
        wanted.extend_from_slice(b"\r\n");
    }
    let mut client = connect(resp.expect("a door"));
    for round in 0..6 {
        client.write_all(&words).expect("it reads");
        let mut answer = vec![0; wanted.len()];
        client.read_exact(&mut answer).expect("an answer");
        assert!(answer == wanted, "round {round}");
    }
}
