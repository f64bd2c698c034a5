//! How conversations end: what was answered before the end arrives, whatever is still sent behind
//! it, and a client that does not end its side is disconnected.

use crate::peers::{ask, connect, memcached_of, ours, set, wait_until};
use rackpool_cache::front::{Server, Settings};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const VALUE_BYTES: usize = 500_000;

/// A request of memcached's binary protocol that cannot be meant: a SET without a word on it.
const NO_SET: [u8; 24] = {
    let mut bytes = [0; 24];
    (bytes[0], bytes[1]) = (0x80, 0x01);
    bytes
};
/// A GET of `v`.
const BINARY_GET: [u8; 25] = {
    let mut bytes = [0; 25];
    (bytes[0], bytes[3], bytes[11], bytes[24]) = (0x80, 1, 1, b'v');
    bytes
};

/// Ours, which holds a long value.
fn holding() -> Server {
    let server = ours(Settings::default());
    let set = set("v", &[b'v'; VALUE_BYTES]);
    assert_eq!(ask(&mut memcached_of(&server), &set, b"\r\n"), b"STORED\r\n");
    server
}

/// All that comes until a proper end, asked for by `bytes` of a client that talks on before it
/// reads.
fn said_after(mut client: TcpStream, bytes: &[u8], server: &mut Option<&mut Server>) -> Vec<u8> {
    client.write_all(bytes).unwrap();
    // It has begun to answer.
    let mut all = vec![0; 10];
    client.read_exact(&mut all).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    client.write_all(bytes).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    std::thread::scope(|scope| {
        if let Some(server) = server {
            scope.spawn(|| server.stop());
        }
        client.read_to_end(&mut all).expect("no reset");
    });
    all
}

#[test]
fn what_was_answered_before_the_end_comes_whatever_is_sent_behind_it() {
    let server = holding();
    let (memcached, resp) = (server.addrs().0.unwrap(), server.addrs().1.unwrap());
    let cases: [(_, &[u8], usize, &[u8]); 5] = [
        (memcached, b"get v\r\nquit\r\n", 18, b"END\r\n"),
        (memcached, &[&BINARY_GET[..], &NO_SET].concat(), 28, b"Invalid arguments"),
        (resp, b"GET v\r\nQUIT\r\n", 10, b"+OK\r\n"),
        (resp, b"GET v\r\n*1\r\n!\r\n", 10, b"-ERR Protocol error: expected '$', got '!'\r\n"),
        // Cut: the end is in what was sent first, of which a part is not read yet.
        (memcached, b"get v\r\nquit\r\nget v\r\nget", 18, b"END\r\n"),
    ];
    for (addr, bytes, before, last) in cases {
        let said = said_after(connect(addr), bytes, &mut None);
        let shown = said.escape_ascii().to_string();
        assert!(said.len() > before + VALUE_BYTES, "{} bytes for {bytes:?}", said.len());
        assert!(said.ends_with(last), "…{}", &shown[shown.len() - 60..]);
    }
}

#[test]
fn a_server_that_ends_throws_away_nothing_that_it_answered() {
    let mut server = holding();
    let client = memcached_of(&server);
    let said = said_after(client, &b"get v\r\n".repeat(30), &mut Some(&mut server));
    let lead = format!("VALUE v 0 {VALUE_BYTES}\r\n").len();
    let each = lead + VALUE_BYTES + b"\r\nEND\r\n".len();
    // Those are answered that were heard before the end.
    assert!(
        said.len() >= each && said.len().is_multiple_of(each),
        "{} bytes of {each}",
        said.len()
    );
}

#[test]
fn who_does_not_end_its_side_is_let_go_of() {
    let server = ours(Settings::default());
    let (memcached, resp) = (server.addrs().0.unwrap(), server.addrs().1.unwrap());
    let mut silent = [(memcached, &b"quit\r\n"[..]), (resp, b"QUIT\r\n")].map(|(addr, quit)| {
        let mut client = connect(addr);
        client.write_all(quit).unwrap();
        client
    });
    for client in &mut silent {
        // It is answered at once all the same.
        client.read_to_end(&mut Vec::new()).unwrap();
    }
    wait_until("all are gone", || server.shared().connections() == 0);
}

#[test]
fn who_sends_without_end_behind_the_end_is_cut_off() {
    let server = ours(Settings::default());
    let mut client = memcached_of(&server);
    client.write_all(b"quit\r\n").unwrap();
    let (bytes, mut sent) = (vec![b'x'; 1 << 20], 0_u64);
    let error = loop {
        match client.write(&bytes) {
            Ok(count) => sent += count as u64,
            Err(error) => break error,
        }
        assert!(sent < 1 << 30, "it hears for ever");
    };
    let kind = error.kind();
    assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    assert_eq!(server.shared().connections(), 0);
}
