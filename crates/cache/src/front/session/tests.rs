//! Reads that end at any byte: the answers are those to one read of everything.

use super::*;
use crate::cache::{Cache, Options};
use crate::front::shared::{Settings, Shared};
use std::sync::Arc;

/// Longer than what is taken from one read: its memory is set aside, and it comes in pieces.
const LONG: usize = 70_000;

/// What a new server answers to a client that sends its bytes in these pieces.
fn answers(protocol: Protocol, pieces: &[&[u8]]) -> Vec<u8> {
    let cache = Cache::new(Options { memory: 4 << 20, ..Options::default() }).unwrap();
    let shared = Arc::new(Shared::new(cache, Settings::default(), (0, 1)));
    let mut core = Core::new(shared, 0, 1_700_000_000_000);
    let mut session = Session::new(protocol, ClientInfo { known: true, ..ClientInfo::default() });
    let (mut held, mut said) = (Vec::new(), Vec::new());
    for piece in pieces {
        held.extend_from_slice(piece);
        while !held.is_empty() && held.len() >= session.need() && !session.is_closing() {
            let used = session.feed(&mut core, &held);
            held.drain(..used);
            said.extend_from_slice(core.out.own_bytes().expect("no answer is long"));
            core.out.clear();
            if used == 0 {
                break;
            }
        }
    }
    assert!(held.is_empty() || session.is_closing(), "{} bytes were not understood", held.len());
    said
}

/// Compares one read with two, for each of these places between them.
fn compare(protocol: Protocol, input: &[u8], splits: impl Iterator<Item = usize>) -> Vec<u8> {
    let whole = answers(protocol, &[input]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for split in splits {
        let (first, second) = input.split_at(split);
        let parted = answers(protocol, &[first, second]);
        assert_eq!(text(&parted), text(&whole), "parted behind {:?}", text(first));
    }
    whole
}

/// Compares one read with two, wherever they are parted, and with as many as there are bytes.
fn at_each_byte(protocol: Protocol, input: &[u8]) -> Vec<u8> {
    let whole = compare(protocol, input, 1..input.len());
    assert_eq!(answers(protocol, &input.chunks(1).collect::<Vec<_>>()), whole, "byte by byte");
    whole
}

#[test]
fn text_and_meta_commands_may_be_parted_at_each_byte() {
    let said = at_each_byte(
        Protocol::Memcached,
        b"set a 5 0 5\r\nhello\r\nget a b\r\nappend a 0 0 1\r\n!\r\ngets a b a\r\n\
          add a 0 0 1\r\nx\r\nset n 0 0 1 noreply\r\n1\r\nincr n 41\r\ndecr n 100\r\n\
          incr a 1\r\ntouch n 10\r\ngat 0 n a\r\ncas a 1 0 1 99\r\ny\r\ndelete a noreply\r\n\
          delete a\r\nnonsense\r\nset bad 0 0 x\r\nset c 0 0 3\r\ntoo long\r\nverbosity 1\r\n\
          get c\r\nms k 3 T60 F7 k O1\r\nabc\r\nmg k v f t s k q\r\nmg none v q\r\n\
          ms k 2 MA\r\nde\r\nmg k v E7\r\nma i N0 J5 v\r\nma i D2 v\r\nmd k I T9\r\n\
          mg k v c\r\nmd i q\r\nme k\r\nmg\r\nms k bad\r\nmn\r\nflush_all 0\r\nget n\r\n\
          version\r\n",
    );
    let said = String::from_utf8(said).unwrap();
    for line in ["VALUE a 5 5\r\nhello\r\nEND\r\n", "VALUE a 5 6 ", "42\r\n", "MN\r\n", "VERSION "]
    {
        assert!(said.contains(line), "{line:?} in {said}");
    }
}

#[test]
fn binary_packets_may_be_parted_at_each_byte() {
    let packet = |opcode: u8, extras: &[u8], key: &[u8], value: &[u8]| {
        let body = (extras.len() + key.len() + value.len()) as u32;
        let mut packet = vec![0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
        packet.extend(body.to_be_bytes());
        packet.extend([9, 9, 9, 9]);
        packet.extend([0; 8]);
        [&packet, extras, key, value].concat()
    };
    let counter = [&2u64.to_be_bytes()[..], &40u64.to_be_bytes(), &[0; 4]].concat();
    let said = at_each_byte(
        Protocol::Memcached,
        &[
            packet(0x01, &[0; 8], b"a", b"hello"),
            packet(0x00, &[], b"a", b""),
            packet(0x0c, &[], b"a", b""),
            packet(0x09, &[], b"none", b""),
            packet(0x0e, &[], b"a", b"!"),
            packet(0x0d, &[], b"a", b""),
            packet(0x05, &counter, b"n", b""),
            packet(0x05, &counter, b"n", b""),
            packet(0x04, &[], b"a", b""),
            packet(0x00, &[], b"a", b""),
            packet(0x77, &[], b"", b""),
            packet(0x0b, &[], b"", b""),
            packet(0x0a, &[], b"", b""),
        ]
        .concat(),
    );
    let contains = |part: &[u8]| said.windows(part.len()).any(|window| window == part);
    assert!(contains(b"hello!") && contains(&42u64.to_be_bytes()), "{said:?}");
}

#[test]
fn commands_of_resp_may_be_parted_at_each_byte() {
    let command = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let words_in = |all: String, word: &&str| all + &format!("${}\r\n{word}\r\n", word.len());
        words.iter().fold(format!("*{}\r\n", words.len()), words_in)
    };
    let said = at_each_byte(
        Protocol::Resp,
        [
            "PING\r\n".to_owned(),
            command("SET a he\r\no"),
            command("get a"),
            command("GET none"),
            command("MSET b 1 c "),
            command("MGET b c d"),
            command("INCR b"),
            command("INCR a"),
            command("SET e x EX 10"),
            command("TTL e"),
            "SET inline 'a b'\r\nGET inline\r\n*0\r\n".to_owned(),
            command("LPUSH a b"),
            command("HELLO 3"),
            command("GET none"),
            command("TIME"),
            command("MGET b c d"),
            command("DEL a"),
            "*1\r\n$x\r\n".to_owned(),
        ]
        .concat()
        .as_bytes(),
    );
    let said = String::from_utf8(said).unwrap();
    for part in ["+PONG\r\n+OK\r\n$5\r\nhe\r\no\r\n$-1\r\n", "$3\r\na b\r\n", "-ERR Protocol error"]
    {
        assert!(said.contains(part), "{part:?} in {said}");
    }
}

#[test]
fn a_value_that_comes_in_pieces_may_be_parted_near_its_ends_and_between() {
    let value = vec![b'v'; LONG];
    let text = [format!("set a 0 0 {LONG}\r\n").as_bytes(), &value, b"\r\nget b\r\n"].concat();
    let resp = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${LONG}\r\n");
    let resp = [resp.as_bytes(), &value, b"\r\n*2\r\n$6\r\nSTRLEN\r\n$1\r\na\r\n"].concat();
    for (protocol, input, answer) in [
        (Protocol::Memcached, text, "STORED\r\nEND\r\n".to_owned()),
        (Protocol::Resp, resp, format!("+OK\r\n:{LONG}\r\n")),
    ] {
        let near_ends = (1..100).chain(input.len() - 100..input.len());
        let splits = near_ends.chain((100..input.len() - 100).step_by(1009));
        assert_eq!(compare(protocol, &input, splits), answer.as_bytes());
    }
}
