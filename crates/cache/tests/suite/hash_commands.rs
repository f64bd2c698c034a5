//! Commands on hashes beside redis-server's answers to the same; those that are newer than Debian's
//! redis beside a model.

use crate::peers::{
    self, Rng, ask, ask_text, connect, memcached_of, ours, ours_of, resp_of, words,
};
use rackpool_cache::front::Settings;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

const END: &[u8] = b"$7\r\nthe end\r\n";

/// The answer to commands, one a line, their words with blanks between.
fn told(stream: &mut TcpStream, commands: &str) -> String {
    let mut bytes = Vec::new();
    for line in commands.lines().filter(|line| !line.trim().is_empty()) {
        let split: Vec<_> = line.trim().split(' ').map(str::as_bytes).collect();
        bytes.extend(words(&split));
    }
    bytes.extend(words(&[b"ECHO", b"the end"]));
    let all = ask(stream, &bytes, END);
    String::from_utf8_lossy(&all[..all.len() - END.len()]).into_owned()
}

#[test]
fn commands_on_small_hashes_are_answered_as_by_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    for hello in ["HELLO 2", "HELLO 3"] {
        let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
        told(&mut theirs, hello);
        told(&mut client, hello);
        for commands in [
            "DEL h s n\nHSET h a 1 b two c 3.5\nHGET h a\nHGET h x\nHGET n a\nTYPE h\nEXISTS h",
            "HMGET h a x c\nHMGET n a b\nHGETALL h\nHKEYS h\nHVALS h\nHGETALL n\nHKEYS n\nHVALS n",
            "HLEN h\nHLEN n\nHSTRLEN h b\nHSTRLEN h x\nHSTRLEN n x\nHEXISTS h a\nHEXISTS h x",
            "HSET h a 2 d 4\nHSETNX h a 9\nHSETNX h e 9\nHGETALL h\nHDEL h a x b\nHGETALL h",
            "HINCRBY h d 5\nHINCRBY h new -3\nHINCRBY h c 1\nHINCRBY h d 9223372036854775807",
            "HINCRBY h d x\nHINCRBYFLOAT h c 0.1\nHINCRBYFLOAT h c x\nHINCRBYFLOAT h c inf",
            "HSET h text word\nHINCRBYFLOAT h text 1\nHINCRBYFLOAT h f 1e3\nHGETALL h",
            "HMSET h a 1 b 2\nHSET h a\nHMSET h a\nHSET h a b c\nHGET h\nHDEL h\nHLEN h h",
            "SET s text\nHGET s a\nHSET s a b\nHGETALL s\nHLEN s\nHDEL s a\nHMGET s a\nHSCAN s 0",
            "HINCRBY s a 1\nHINCRBYFLOAT s a 1\nHSETNX s a b\nHRANDFIELD s\nHSTRLEN s a\nHKEYS s",
            "GET h\nAPPEND h x\nINCR h\nDECRBY h 1\nSTRLEN h\nGETSET h x\nGETDEL h\nGETEX h",
            "SET h x GET\nSETNX h x\nMGET h s n\nTYPE h\nHGETALL h\nPERSIST h\nTTL h",
            "EXPIRE h 100\nTTL h\nHSET h z 1\nTTL h\nPERSIST h\nTTL h\nMOVE h 3\nEXISTS h",
            "SELECT 3\nHGETALL h\nTYPE h\nDBSIZE\nMOVE h 0\nDBSIZE\nSELECT 0\nHLEN h",
            "HSCAN h 0 COUNT 100\nHSCAN h 0 MATCH a*\nHSCAN n 0\nHSCAN h x\nHSCAN h 0 COUNT 0",
            "HSCAN h 0 MATCH\nHSCAN h 0 NONSENSE 1\nHSCAN h 0 COUNT x\nHSCAN n 0 COUNT 0",
            "HRANDFIELD n\nHRANDFIELD n 5\nHRANDFIELD n -5\nHRANDFIELD h 0\nHRANDFIELD h x",
            "HRANDFIELD h 1 x\nHRANDFIELD h 1 WITHVALUES x\nHRANDFIELD h 9223372036854775808",
            "HRANDFIELD h 100\nHRANDFIELD h 100 WITHVALUES\nHSET one f v\nHRANDFIELD one",
            "HRANDFIELD one -3\nHRANDFIELD one -3 WITHVALUES\nHRANDFIELD one 1 WITHVALUES",
            "HRANDFIELD h -9223372036854775808\nHRANDFIELD h -9223372036854775807 WITHVALUES",
            "HDEL one f\nEXISTS one\nTYPE one\nSET h x\nTYPE h\nDEL h s one\nDBSIZE",
        ] {
            let expected = told(&mut theirs, commands);
            assert_eq!(told(&mut client, commands), expected, "{hello}: {commands}");
        }
    }
}

/// Elements of an array, as texts, sorted; of a map pairs.
fn sorted(answer: &str, pairs: bool) -> Vec<String> {
    let lines: Vec<_> = answer.split("\r\n").skip(1).collect();
    let texts: Vec<_> = lines.chunks(2).filter(|two| two.len() == 2).map(|two| two[1]).collect();
    let step = if pairs { 2 } else { 1 };
    let mut all: Vec<_> = texts.chunks(step).map(|some| some.join("=")).collect();
    all.sort();
    all
}

#[test]
fn commands_on_hashes_that_grow_and_shrink_are_answered_as_by_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for seed in 0..4 {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        told(&mut theirs, "FLUSHALL");
        told(&mut client, "FLUSHALL");
        for round in 0..600 {
            let of = if round / 200 % 2 == 0 { 800 } else { 30 };
            let mut commands = String::new();
            for _ in 0..40 {
                let (key, field) = (rng.below(3), rng.below(of));
                let value = match rng.below(6) {
                    0 => "v".repeat(rng.below(2000)),
                    1 => rng.below(1_000_000).to_string(),
                    _ => "w".repeat(1 + rng.below(40)),
                };
                commands += &match rng.below(if of == 800 { 9 } else { 12 }) {
                    0..=3 => format!("HSET h{key} f{field} x{value} g{field} 7\n"),
                    4 => format!("HGET h{key} f{field}\nHSTRLEN h{key} f{field}\n"),
                    5 => format!("HINCRBY h{key} n{field} {}\n", rng.below(100)),
                    6 => format!("HMGET h{key} f{field} g{field} n{field}\nHLEN h{key}\n"),
                    7 => format!("HSETNX h{key} f{field} x\nHEXISTS h{key} n{field}\n"),
                    8 => format!("HINCRBYFLOAT h{key} n{field} 0.5\nTYPE h{key}\n"),
                    _ => format!("HDEL h{key} f{field} g{field} n{field}\nEXISTS h{key}\n"),
                };
            }
            if of == 30 {
                // Those that are only there from the time before.
                for field in 0..20 {
                    let field = (round % 200 * 20 + field) % 800;
                    commands += &format!("HDEL h{} f{field} g{field} n{field}\n", rng.below(3));
                }
            }
            let expected = told(&mut theirs, &commands);
            assert_eq!(told(&mut client, &commands), expected, "round {round}");
            if round % 50 == 0 {
                for key in 0..3 {
                    let all = |stream: &mut TcpStream, command: &str, pairs| {
                        sorted(&told(stream, &format!("{command} h{key}")), pairs)
                    };
                    for (command, pairs) in [("HGETALL", true), ("HKEYS", false), ("HVALS", false)]
                    {
                        let expected = all(&mut theirs, command, pairs);
                        assert_eq!(all(&mut client, command, pairs), expected, "{command}");
                    }
                }
            }
        }
        assert_eq!(told(&mut client, "DBSIZE"), told(&mut theirs, "DBSIZE"));
    }
}

/// What one answer of `HSCAN` says: the next cursor, and the fields.
fn scanned(stream: &mut TcpStream, command: &str) -> (u64, Vec<String>) {
    let answer = told(stream, command);
    let lines: Vec<_> = answer.split("\r\n").collect();
    let fields = lines[4..].chunks(2).filter(|two| two.len() == 2).map(|two| two[1].to_owned());
    (lines[2].parse().unwrap(), fields.collect())
}

#[test]
fn scans_and_draws_of_a_large_hash_give_its_fields() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    let mut set = String::from("HSET h");
    (0..5000).for_each(|index| set += &format!(" f{index} v{index}"));
    assert_eq!(told(&mut client, &set), ":5000\r\n");
    let (mut cursor, mut seen) = (0, BTreeMap::new());
    loop {
        let (next, fields) = scanned(&mut client, &format!("HSCAN h {cursor} COUNT 100"));
        for pair in fields.chunks(2) {
            *seen.entry(pair.to_vec()).or_insert(0) += 1;
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
        // Others are changed meanwhile.
        told(&mut client, "HSET h other 1\nHDEL h other");
    }
    assert!(seen.len() >= 5000 && seen.values().all(|count| *count == 1));
    let (_, found) = scanned(&mut client, "HSCAN h 0 COUNT 10000 MATCH f77* NOVALUES");
    assert_eq!(found.len(), 11);
    for count in [1, 10, 500, 4999] {
        let drawn = sorted(&told(&mut client, &format!("HRANDFIELD h {count}")), false);
        let mut distinct = drawn.clone();
        distinct.dedup();
        assert_eq!((drawn.len(), distinct.len()), (count, count));
    }
    assert_eq!(sorted(&told(&mut client, "HRANDFIELD h 6000 WITHVALUES"), true).len(), 5000);
    assert_eq!(sorted(&told(&mut client, "HRANDFIELD h -700"), false).len(), 700);
    assert_eq!(sorted(&told(&mut client, "HGETALL h"), true).len(), 5000);
}

#[test]
fn others_are_answered_while_all_of_a_large_hash_is() {
    let server = ours_of(512 << 20, Settings::default());
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    for some in 0..100 {
        let mut set = String::from("HSET h");
        (0..2000).for_each(|index| set += &format!(" field:{some}:{index} value:{index}"));
        assert_eq!(told(&mut client, &set), ":2000\r\n");
    }
    let reader = std::thread::spawn(move || told(&mut client, "HGETALL h"));
    let mut longest = std::time::Duration::ZERO;
    while !reader.is_finished() {
        let begin = std::time::Instant::now();
        told(&mut other, "HSET h field:1:1 changed\nHDEL h field:2:2\nGET text");
        longest = longest.max(begin.elapsed());
    }
    let answer = reader.join().unwrap();
    // The removal may have come first.
    let count = sorted(&answer, true).len();
    assert!([199_999, 200_000].contains(&count), "{count} fields");
    assert!(answer.starts_with(&format!("*{}\r\n", 2 * count)), "{}", &answer[..20]);
    println!("the longest answer meanwhile took {longest:?}");
    assert!(longest.as_millis() < 1000, "{longest:?}");
}

#[test]
fn an_answer_that_has_begun_is_whole_though_all_is_flushed_meanwhile() {
    let server = ours_of(512 << 20, Settings::default());
    let (mut client, mut other) = (resp_of(&server), resp_of(&server));
    for flush in ["FLUSHALL", "FLUSHDB"] {
        for some in 0..50 {
            let mut set = String::from("HSET h");
            (0..2000).for_each(|index| set += &format!(" field:{some}:{index} {index:0>200}"));
            assert_eq!(told(&mut other, &set), ":2000\r\n");
        }
        let asked = [words(&[b"HGETALL", b"h"]), words(&[b"ECHO", b"the end"])].concat();
        client.write_all(&asked).unwrap();
        let mut answer = vec![0];
        client.read_exact(&mut answer).unwrap();
        // More than the sockets hold is still to come.
        assert_eq!(told(&mut other, &format!("{flush}\nHSET h new 1")), "+OK\r\n:1\r\n");
        answer.extend(peers::read_until(&mut client, |all| all.ends_with(END)));
        let answer = String::from_utf8_lossy(&answer[..answer.len() - END.len()]);
        assert!(answer.starts_with("*200000\r\n"), "{}", &answer[..20]);
        assert_eq!(sorted(&answer, true).len(), 100_000, "{flush}");
        assert_eq!(told(&mut other, "DEL h\nDBSIZE"), ":1\r\n:0\r\n");
    }
}

#[test]
fn memcached_has_a_hash_as_a_key_without_a_value() {
    let server = ours(Settings::default());
    let (mut m, mut client) = (memcached_of(&server), resp_of(&server));
    told(&mut client, "HSET h a 1");
    for (command, answer) in [
        ("get h", "END\r\n"),
        ("gat 100 h", "END\r\n"),
        ("mg h v", "EN\r\n"),
        ("add h 0 0 1\r\nx", "NOT_STORED\r\n"),
        ("append h 0 0 1\r\nx", "NOT_STORED\r\n"),
        ("prepend h 0 0 1\r\nx", "NOT_STORED\r\n"),
        ("incr h 1", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("touch h 0", "TOUCHED\r\n"),
        ("delete h", "DELETED\r\n"),
        ("delete h", "NOT_FOUND\r\n"),
    ] {
        let told = ask_text(&mut m, format!("{command}\r\n").as_bytes(), b"\r\n");
        assert_eq!(told, answer, "{command}");
    }
    told(&mut client, "HSET h a 1");
    assert_eq!(ask(&mut m, b"set h 0 0 1\r\nx\r\n", b"\r\n"), b"STORED\r\n");
    assert_eq!(told(&mut client, "GET h\nTYPE h"), "$1\r\nx\r\n+string\r\n");
}

#[test]
fn keys_are_told_by_their_type_and_parts_are_no_keys() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    let mut set = String::from("HSET large");
    (0..3000).for_each(|index| set += &format!(" f{index} {}", "v".repeat(index % 900)));
    told(&mut client, &set);
    told(&mut client, "HSET small a 1\nSET text x");
    assert_eq!(told(&mut client, "DBSIZE"), ":3\r\n");
    let keys = |client: &mut TcpStream, of: &str| {
        let (mut cursor, mut count) = (0, 0);
        loop {
            let (next, some) = scanned(client, &format!("SCAN {cursor} COUNT 1000{of}"));
            (cursor, count) = (next, count + some.len());
            if cursor == 0 {
                return count;
            }
        }
    };
    assert_eq!(keys(&mut client, ""), 3);
    assert_eq!(keys(&mut client, " TYPE hash"), 2);
    assert_eq!(keys(&mut client, " TYPE string"), 1);
    assert_eq!(keys(&mut client, " TYPE list"), 0);
    let usage = told(&mut client, "MEMORY USAGE large");
    assert!(usage[1..].trim_end().parse::<u64>().unwrap() > 1_000_000, "{usage}");
    assert_eq!(told(&mut client, "MOVE large 1\nSELECT 1\nMOVE large 0\nSELECT 0"), {
        ":1\r\n+OK\r\n:1\r\n+OK\r\n"
    });
    assert_eq!(told(&mut client, "DEL large small\nDBSIZE"), ":2\r\n:1\r\n");
    let stats = told(&mut client, "INFO keyspace");
    assert!(stats.contains("db0:keys=1"), "{stats}");
}

/// Commands on one hash, one row after the other, and what Redis 8 answers.
const FIELDS_EXPIRE: &[(&str, &str)] = &[
    ("HSET h a 1 b 2 c 3", ":3\r\n"),
    ("HTTL h FIELDS 2 a x", "*2\r\n:-1\r\n:-2\r\n"),
    ("HTTL n FIELDS 1 a", "*1\r\n:-2\r\n"),
    ("HEXPIRE h 100 FIELDS 2 a x", "*2\r\n:1\r\n:-2\r\n"),
    ("HEXPIRE h 100 NX FIELDS 2 a b", "*2\r\n:0\r\n:1\r\n"),
    ("HEXPIRE h 50 XX FIELDS 2 a c", "*2\r\n:1\r\n:0\r\n"),
    ("HEXPIRE h 40 GT FIELDS 1 a", "*1\r\n:0\r\n"),
    ("HEXPIRE h 40 LT FIELDS 2 a c", "*2\r\n:1\r\n:1\r\n"),
    ("HTTL h FIELDS 3 a b c", "*3\r\n:40\r\n:100\r\n:40\r\n"),
    ("HPERSIST h FIELDS 3 a c x", "*3\r\n:1\r\n:1\r\n:-2\r\n"),
    ("HPERSIST h FIELDS 1 a", "*1\r\n:-1\r\n"),
    ("HEXPIREAT h 4000000000 FIELDS 1 a", "*1\r\n:1\r\n"),
    ("HEXPIRETIME h FIELDS 1 a", "*1\r\n:4000000000\r\n"),
    ("HPEXPIRETIME h FIELDS 1 a", "*1\r\n:4000000000000\r\n"),
    ("HPEXPIREAT h 4000000000123 FIELDS 1 a", "*1\r\n:1\r\n"),
    ("HPEXPIRETIME h FIELDS 1 a", "*1\r\n:4000000000123\r\n"),
    ("HSET h a 1\nHTTL h FIELDS 1 a", ":0\r\n*1\r\n:-1\r\n"),
    ("HEXPIRE h 100 FIELDS 1 a\nHINCRBY h a 1", "*1\r\n:1\r\n:2\r\n"),
    ("HTTL h FIELDS 1 a", "*1\r\n:100\r\n"),
    ("HEXPIRE h 0 FIELDS 1 a\nHLEN h", "*1\r\n:2\r\n:2\r\n"),
    ("HSET h a 1\nHGETDEL h FIELDS 2 a x", ":1\r\n*2\r\n$1\r\n1\r\n$-1\r\n"),
    ("HGETDEL n FIELDS 1 a\nHEXISTS h a", "*1\r\n$-1\r\n:0\r\n"),
    ("HSET h a 1\nHGETEX h EX 100 FIELDS 1 a", ":1\r\n*1\r\n$1\r\n1\r\n"),
    ("HTTL h FIELDS 1 a\nHGETEX h PERSIST FIELDS 1 a", "*1\r\n:100\r\n*1\r\n$1\r\n1\r\n"),
    ("HTTL h FIELDS 1 a\nHGETEX h FIELDS 1 a", "*1\r\n:-1\r\n*1\r\n$1\r\n1\r\n"),
    ("HSETEX h EX 100 FIELDS 2 a 1 d 4", ":1\r\n"),
    ("HTTL h FIELDS 2 a d", "*2\r\n:100\r\n:100\r\n"),
    ("HSETEX h KEEPTTL FIELDS 1 a 2\nHTTL h FIELDS 1 a", ":1\r\n*1\r\n:100\r\n"),
    ("HSETEX h FNX FIELDS 2 a 3 e 5\nHEXISTS h e", ":0\r\n:0\r\n"),
    ("HSETEX h FXX FIELDS 2 a 3 e 5\nHSETEX n FXX FIELDS 1 a 1", ":0\r\n:0\r\n"),
    ("HSETEX h FXX FIELDS 1 a 3\nHTTL h FIELDS 1 a", ":1\r\n*1\r\n:-1\r\n"),
    ("HSETEX h FNX FIELDS 1 e 5\nHGET h e", ":1\r\n$1\r\n5\r\n"),
    ("HSETEX h PXAT 1 FIELDS 1 e 5\nHGET h e", ":1\r\n$-1\r\n"),
    ("HEXPIRE h x FIELDS 1 a", "-ERR value is not an integer or out of range\r\n"),
    ("HEXPIRE h -1 FIELDS 1 a", "-ERR invalid expire time, must be >= 0\r\n"),
    (
        "HPEXPIREAT h 99999999999999999 FIELDS 1 a",
        "-ERR invalid expire time in 'hpexpireat' command\r\n",
    ),
    ("HEXPIRE h 1 FIELDS 0 a", "-ERR Parameter `numFields` should be greater than 0\r\n"),
    ("HTTL h FIELDS 0 a", "-ERR Number of fields must be a positive integer\r\n"),
    ("HTTL h FIELDS 2 a", "-ERR The `numfields` parameter must match the number of arguments\r\n"),
    (
        "HTTL h NONSENSE 1 a",
        "-ERR Mandatory argument FIELDS is missing or not at the right position\r\n",
    ),
    ("HSETEX h FIELDS x a 1", "-ERR invalid number of fields\r\n"),
    ("HSETEX h FIELDS 2 a 1", "-ERR wrong number of arguments for 'hsetex' command\r\n"),
    ("HSETEX h BAD FIELDS 1 a 1", "-ERR unknown argument: BAD\r\n"),
    ("HSETEX h FNX FXX FIELDS 1 a 1", "-ERR Only one of FXX or FNX arguments can be specified\r\n"),
    (
        "HSETEX h EX 1 KEEPTTL FIELDS 1 a 1",
        "-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified\r\n",
    ),
    ("DEL h\nHSET h a 1\nHGET h a", ":1\r\n:1\r\n$1\r\n1\r\n"),
];

#[test]
fn fields_expire_as_redis_8_has_it() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    for (commands, answer) in FIELDS_EXPIRE {
        assert_eq!(told(&mut client, commands), *answer, "{commands}");
    }
    told(&mut client, "SET text x");
    for command in ["HEXPIRE text 1", "HTTL text", "HPERSIST text", "HGETDEL text", "HGETEX text"] {
        let answer = told(&mut client, &format!("{command} FIELDS 1 a"));
        assert!(answer.starts_with("-WRONGTYPE"), "{command}: {answer}");
    }
    // Small, and large.
    for count in [20, 3000] {
        let mut set = String::from("HSET h");
        (0..count).for_each(|index| set += &format!(" f{index} {index}"));
        told(&mut client, &format!("DEL h\n{set}\nHPEXPIRE h 60 FIELDS 2 f1 f2"));
        std::thread::sleep(std::time::Duration::from_millis(80));
        assert_eq!(told(&mut client, "HGET h f1\nHEXISTS h f2"), "$-1\r\n:0\r\n");
        assert_eq!(sorted(&told(&mut client, "HGETALL h"), true).len(), count - 2);
        peers::wait_until("what has expired is not counted", || {
            told(&mut client, "HLEN h") == format!(":{}\r\n", count - 2)
        });
        for some in (0..count).collect::<Vec<_>>().chunks(500) {
            let fields: Vec<_> = some.iter().map(|index| format!("f{index}")).collect();
            let line = format!("HPEXPIRE h 50 FIELDS {} {}", some.len(), fields.join(" "));
            told(&mut client, &line);
        }
        peers::wait_until("a hash without fields is gone", || {
            told(&mut client, "EXISTS h") == ":0\r\n"
        });
    }
}
