//! Values and commands that are too long: each is answered at its length, with the reason, and
//! passed over.

use crate::peers::{ask, ask_text, memcached_of, ours, resp_of, set, words};
use rackpool_cache::front::{Count, Server, Settings};
use std::io::{Read, Write};

const MAX: usize = 1 << 20;

fn with_max() -> Server {
    ours(Settings { value_bytes_max: MAX as u64, ..Settings::default() })
}

/// memcached's binary request that sets `k`, up to its value.
fn binary_set(len: usize) -> Vec<u8> {
    let mut head = vec![0x80, 1, 0, 1, 8, 0, 0, 0];
    head.extend_from_slice(&((8 + 1 + len) as u32).to_be_bytes());
    head.extend_from_slice(&[0; 12 + 8]);
    head.push(b'k');
    head
}

#[test]
fn a_value_over_max_value_is_refused_at_its_length_in_every_protocol() {
    let server = with_max();
    let long = vec![b'x'; MAX + 1];
    let mut r = resp_of(&server);
    assert_eq!(ask(&mut r, &words(&[b"SET", b"k", b"old"]), b"\r\n"), b"+OK\r\n");
    // All but the value and what is behind it: the answer waits for nothing.
    let head = format!("*5\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", long.len());
    let said = ask_text(&mut r, head.as_bytes(), b"\r\n");
    assert_eq!(said, format!("-ERR a value of {} bytes: --max-value is {MAX}\r\n", long.len()));
    for piece in [&long[..], b"\r\n$2\r\nE", b"X\r\n$1\r", b"\n9\r", b"\nPING\r\n"] {
        r.write_all(piece).unwrap();
    }
    assert_eq!(ask(&mut r, b"GET k\r\n", b"old\r\n"), b"+PONG\r\n$3\r\nold\r\n");
    // One that just fits is stored.
    assert_eq!(ask(&mut r, &words(&[b"SET", b"k", &long[1..]]), b"\r\n"), b"+OK\r\n");

    let mut m = memcached_of(&server);
    let head = format!("set k 0 0 {}\r\n", long.len());
    let said = ask(&mut m, head.as_bytes(), b"\r\n");
    assert_eq!(said, b"SERVER_ERROR object too large for cache\r\n");
    // What it would replace is gone.
    m.write_all(&[&long[..], b"\r\n"].concat()).unwrap();
    assert_eq!(ask(&mut m, b"get k\r\nmn\r\n", b"MN\r\n"), b"END\r\nMN\r\n");

    let mut b = memcached_of(&server);
    b.write_all(&binary_set(long.len())).unwrap();
    let mut said = [0; 24 + 10];
    b.read_exact(&mut said).unwrap();
    assert_eq!((said[6..8].to_vec(), &said[24..]), (vec![0, 3], &b"Too large."[..]));
    let mut no_op = [0; 24];
    (no_op[0], no_op[1]) = (0x80, 10);
    b.write_all(&[&long[..], &no_op].concat()).unwrap();
    b.read_exact(&mut said[..24]).unwrap();
    assert_eq!((said[1], &said[6..8]), (10, &[0, 0][..]));
    assert_eq!(server.shared().count(Count::TooLarge), 3);
}

#[test]
fn a_command_of_which_too_much_would_be_held_is_refused_and_passed_over() {
    let (held_bytes_max, value_bytes_max) = (16 << 20, 16 << 20);
    let server = ours(Settings { held_bytes_max, value_bytes_max, ..Settings::default() });
    let long = vec![b'x'; 9_000_000];
    let mut r = resp_of(&server);
    let head = format!("*3\r\n$6\r\nAPPEND\r\n$1\r\nk\r\n${}\r\n", long.len());
    let said = ask_text(&mut r, head.as_bytes(), b"\r\n");
    assert!(said.starts_with("-ERR a command of ") && said.contains(" are held "), "{said}");
    r.write_all(&long).unwrap();
    assert_eq!(ask(&mut r, b"\r\nEXISTS k\r\n", b"\r\n"), b":0\r\n");
    // Many words, of which none is long.
    let word = vec![b'w'; 1 << 20];
    let mut command = vec![&b"MSET"[..]];
    command.extend((0..20).map(|_| &word[..]));
    let said = ask_text(&mut r, &words(&command), b"\r\n");
    assert!(said.starts_with("-ERR a command of "), "{said}");
    assert_eq!(ask(&mut r, b"DBSIZE\r\n", b"\r\n"), b":0\r\n");
    // A value that is written into the cache as it arrives may be as long.
    assert_eq!(ask(&mut r, &words(&[b"SET", b"k", &long]), b"\r\n"), b"+OK\r\n");

    let mut m = memcached_of(&server);
    let said = ask_text(&mut m, format!("append k 0 0 {}\r\n", long.len()).as_bytes(), b"\r\n");
    assert!(said.starts_with("SERVER_ERROR object too large for cache: up to "), "{said}");
    m.write_all(&[&long[..], b"\r\n"].concat()).unwrap();
    assert_eq!(ask(&mut m, b"mn\r\n", b"\r\n"), b"MN\r\n");
    assert_eq!(ask(&mut m, &set("k", &long), b"\r\n"), b"STORED\r\n");
    assert_eq!(ask_text(&mut r, b"STRLEN k\r\n", b"\r\n"), format!(":{}\r\n", long.len()));
}

#[test]
fn what_is_passed_over_has_to_be_words() {
    let server = with_max();
    let mut r = resp_of(&server);
    let head = format!("*4\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", MAX + 1);
    r.write_all(&[head.as_bytes(), &vec![b'x'; MAX + 1], b"\r\n+PING\r\n"].concat()).unwrap();
    let mut said = String::new();
    r.read_to_string(&mut said).unwrap();
    let end = "-ERR Protocol error: expected '$', got '+'\r\n";
    assert!(said.starts_with("-ERR a value of ") && said.ends_with(end), "{said}");
}
