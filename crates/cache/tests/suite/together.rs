//! What the families of commands do to each other: hashes in transactions, scripts and watches, and
//! as a whole under other keys, beside redis-server's answers to the same.

use crate::peers::{self, ask, connect, ours, resp_of, words};
use rackpool_cache::front::Settings;
use std::net::TcpStream;

const END: &[u8] = b"$7\r\nthe end\r\n";
/// Fields of a hash that has parts.
const MANY: usize = 2000;

/// The answer to commands, one a line, their words with blanks between.
fn said(stream: &mut TcpStream, commands: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in commands.lines() {
        let split: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        bytes.extend(words(&split));
    }
    bytes.extend(words(&[b"ECHO", b"the end"]));
    let mut all = ask(stream, &bytes, END);
    all.truncate(all.len() - END.len());
    all
}

fn text(stream: &mut TcpStream, commands: &str) -> String {
    String::from_utf8_lossy(&said(stream, commands)).into_owned()
}

fn fill(stream: &mut TcpStream, key: &str, count: usize) {
    for some in (0..count).collect::<Vec<_>>().chunks(100) {
        let fields: Vec<_> = some.iter().map(|nth| format!("field:{nth} value:{nth}")).collect();
        let added = text(stream, &format!("HSET {key} {}", fields.join(" ")));
        assert_eq!(added, format!(":{}\r\n", some.len()));
    }
}

#[test]
fn hashes_are_changed_in_transactions_and_scripts_as_in_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for commands in [
        "MULTI\nHSET h a 1 b 2\nHINCRBY h a 5\nHGETALL h\nGET h\nHDEL h b\nEXEC\nHGETALL h",
        "MULTI\nHSET h a\nEXEC\nMULTI\nRENAME h i\nCOPY i j\nHLEN j\nDUMP j\nEXEC\nEXISTS h i j",
        "WATCH i\nHSET i a 6\nMULTI\nHLEN i\nEXEC\nUNWATCH",
        "MULTI\nSELECT 1\nHSET h a 1\nMOVE h 2\nSELECT 2\nHGETALL h\nDEL h\nSELECT 0\nEXEC",
        "MULTI\nMSET k 1 l 2\nMSETNX l 3 m 4\nBITOP OR o k l\nPFADD p x\nPFCOUNT p none\nEXEC",
        "MULTI\nMONITOR\nRESET\nPING",
    ] {
        assert_eq!(text(&mut client, commands), text(&mut theirs, commands), "{commands}");
    }
    let script = "redis.call('HSET', KEYS[1], 'a', ARGV[1], 'b', 'two') \
                  redis.call('HINCRBY', KEYS[1], 'a', 1) \
                  redis.call('RENAME', KEYS[1], KEYS[2]) \
                  return redis.call('HGETALL', KEYS[2])";
    let eval = words(&[b"EVAL", script.as_bytes(), b"2", b"one", b"two", b"41"]);
    let end = b"\r\n$3\r\ntwo\r\n";
    assert_eq!(ask(&mut client, &eval, end), ask(&mut theirs, &eval, end));
}

#[test]
fn a_watch_sees_each_change_of_a_large_hash_and_no_reading_of_it() {
    let server = ours(Settings::default());
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    fill(&mut client, "h", MANY);
    for (change, is_seen) in [
        ("HGET h field:7\nHLEN h\nHDEL h none\nHSETNX h field:7 x", false),
        ("HSET h field:7 value:8", true),
        ("HINCRBY h number 1", true),
        ("HDEL h field:9", true),
        ("DEL h", true),
    ] {
        assert_eq!(text(&mut client, "WATCH h"), "+OK\r\n");
        text(&mut other, change);
        let done = text(&mut client, "MULTI\nPING\nEXEC");
        assert_eq!(done.ends_with("*-1\r\n"), is_seen, "{change}: {done}");
    }
}

#[test]
fn hashes_of_all_sizes_go_to_other_keys_databases_and_servers_whole() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings { threads: 2, ..Settings::default() });
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for count in [3, 100, MANY] {
        fill(&mut client, "h", count);
        text(&mut client, "HSET h number 12345 empty \nPEXPIREAT h 9000000000000");
        let all = |client: &mut TcpStream, key: &str| {
            let all = text(client, &format!("HGETALL {key}"));
            let mut lines: Vec<_> = all.lines().skip(1).map(str::to_owned).collect();
            lines.sort_unstable();
            assert_eq!(lines.len(), 4 * (count + 2), "{key}");
            lines
        };
        let whole = all(&mut client, "h");
        assert_eq!(text(&mut client, "COPY h i\nCOPY h i\nPEXPIRETIME i"), {
            ":1\r\n:0\r\n:9000000000000\r\n"
        });
        assert_eq!(all(&mut client, "i"), whole);
        assert_eq!(text(&mut client, "RENAMENX i h\nRENAME i j\nEXISTS i"), ":0\r\n+OK\r\n:0\r\n");
        assert_eq!(all(&mut client, "j"), whole);
        assert_eq!(text(&mut client, "MOVE j 3\nEXISTS j\nSELECT 3"), ":1\r\n:0\r\n+OK\r\n");
        assert_eq!(all(&mut client, "j"), whole);
        assert_eq!(text(&mut client, "COPY j j DB 0\nDEL j\nSELECT 0"), ":1\r\n:1\r\n+OK\r\n");
        assert_eq!(all(&mut client, "j"), whole);
        // What one of both dumps, the other restores.
        let dump = |from: &mut TcpStream| {
            let dump = said(from, "DUMP h");
            let start = dump.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            dump[start..dump.len() - 2].to_vec()
        };
        let restore = |to: &mut TcpStream, key: &[u8], dump: &[u8]| {
            let restored = ask(to, &words(&[b"RESTORE", key, b"0", dump]), b"\r\n");
            assert_eq!(restored, b"+OK\r\n");
        };
        restore(&mut theirs, b"h", &dump(&mut client));
        assert_eq!(all(&mut theirs, "h"), whole);
        restore(&mut client, b"k", &dump(&mut theirs));
        assert_eq!(all(&mut client, "k"), whole);
        for stream in [&mut theirs, &mut client] {
            assert!(!text(stream, "DEL h j k").starts_with(":0"));
        }
    }
}

#[test]
fn a_list_of_clients_says_which_are_in_transactions() {
    let server = ours(Settings::default());
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    assert_eq!(text(&mut other, "CLIENT SETNAME other"), "+OK\r\n");
    let waiting = [words(&[b"MULTI"]), words(&[b"GET", b"a"]), words(&[b"GET", b"b"])].concat();
    ask(&mut other, &waiting, b"+QUEUED\r\n+QUEUED\r\n");
    let listed = text(&mut client, "CLIENT LIST");
    let line = listed.lines().find(|line| line.contains(" name=other ")).unwrap();
    assert!(line.contains(" flags=x ") && line.contains(" multi=2 "), "{line}");
    let own = listed.lines().find(|line| line.contains(" cmd=client|list ")).unwrap();
    assert!(own.contains(" flags=N ") && own.contains(" multi=-1 "), "{own}");
}
