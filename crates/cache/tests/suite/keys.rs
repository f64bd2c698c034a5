//! Redis's commands on strings, bits and keys, beside redis-server's answers to the same; what they
//! do to long values, and what others see of those that change several keys.

use crate::commands::{Answer, told};
use crate::peers::{self, Rng, ask, connect, ours, resp_of, words};
use crate::tier::tiered;
use rackpool_cache::front::{ListenConfig, Server, Settings};
use rackpool_cache::{Cache, Options};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

/// All that is answered to a command.
fn answer(stream: &mut TcpStream, command: &[&[u8]]) -> Vec<u8> {
    let end = b"$7\r\nthe end\r\n";
    let bytes = [words(command), words(&[b"ECHO", b"the end"])].concat();
    let mut all = ask(stream, &bytes, end);
    all.truncate(all.len() - end.len());
    all
}

/// As [`answer`], to words with blanks between.
fn say(stream: &mut TcpStream, command: &str) -> String {
    let split: Vec<_> = command.split(' ').map(str::as_bytes).collect();
    answer(stream, &split).escape_ascii().to_string()
}

fn bulk(value: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn serve(cache: Cache, threads: usize) -> Server {
    let resp = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let settings = Settings { threads, ..Settings::default() };
    Server::start(cache, settings, &ListenConfig { resp, ..ListenConfig::default() }).unwrap()
}

fn partitioned(partitions: u32) -> Server {
    serve(Cache::new(Options { partitions, ..Options::default() }).unwrap(), 2)
}

/// In this order.
const COMMANDS: &str = "
SET a Hello|GETRANGE a 0 3|GETRANGE a -3 -1|GETRANGE a 3 1|GETRANGE a 0 -9|GETRANGE none 0 -1
GETRANGE a x 1|SUBSTR a 1 2|SETRANGE a 3 xyz!|GET a|SETRANGE a 536870912 x|SETRANGE a -1 x
SETRANGE new 3 x|GET new|STRLEN new|SETRANGE a x y
INCRBYFLOAT n 3|INCRBYFLOAT n 1.1|INCRBYFLOAT n -4.1e0|INCRBYFLOAT a 1|INCRBYFLOAT n inf|GET n
PEXPIREAT n 9000000000000|INCRBYFLOAT n 10.5|PEXPIRETIME n|INCRBYFLOAT n nan
SETBIT b 7 1|SETBIT b 7 0|SETBIT b 100 1|GETBIT b 100|GETBIT b 1000|SETBIT b 1 2|SETBIT b -1 1
BITCOUNT b|BITCOUNT b 0 0|BITCOUNT b 1 -1 BIT|BITCOUNT b 1|BITCOUNT none 1|BITCOUNT b 0 1 nothing
BITPOS b 1|BITPOS b 0 1|BITPOS b 1 0 -1 BIT|BITPOS none 1|BITPOS none 0|BITPOS b 2|BITPOS b x
BITOP AND t a b|GET t|BITOP NOT t b|GET t|BITOP NOT t a b|BITOP XOR t a b none|GET t|BITOP OR t a a
BITOP OR t none none2|EXISTS t|BITOP NAND t a
BITFIELD f SET u8 0 255 GET i4 0 OVERFLOW FAIL INCRBY u8 0 1 OVERFLOW SAT INCRBY u8 0 9|GET f
BITFIELD f GET u64 0|BITFIELD f GET u8|BITFIELD f|BITFIELD_RO f GET u8 0|BITFIELD_RO f SET u8 0 1
BITFIELD none GET u8 9|EXISTS none|BITFIELD f INCRBY i64 #1 x|BITFIELD f OVERFLOW some
PFADD h a b c d|PFADD h a|PFCOUNT h|PFADD i e f|PFCOUNT h i none|PFMERGE j h i|PFCOUNT j|GET j|GET h
PFADD a x|PFCOUNT a|PFCOUNT a h|PFMERGE k|GET k|PFMERGE k a|PFADD l|GET l|PFADD a
MSETNX m1 1 m2 2|MSETNX m2 3 m3 3|MGET m1 m2 m3|MSETNX m1|MSETNX m1 2 m3|MSETNX m9 1 m9 2|GET m9
RENAME none x|RENAME m1 m4|RENAME m4 m4|RENAMENX m4 m4|RENAMENX m4 m2|RENAMENX m4 m5|MGET m4 m5
PEXPIREAT m5 9000000000000|RENAME m5 m6|PEXPIRETIME m6|RENAMENX none none2
COPY m6 m7|COPY m6 m7|COPY m6 m2 REPLACE|PEXPIRETIME m2|COPY m6 m6|COPY m6 m6 DB 1|COPY m6 m6 DB 1
SWAPDB 44 55|SWAPDB 44 a|SWAPDB a 55|SWAPDB a b
COPY m6 x DB 99|COPY m6 x DB x|COPY m6 x y|COPY none x|SELECT 1|KEYS *|GET m6|SELECT 0
LCS x y|SET x ohmytext|SET y mynewtext|LCS x y|LCS x y LEN|LCS x y IDX|LCS x y LEN IDX
LCS x y IDX MINMATCHLEN 4 WITHMATCHLEN|LCS x y MINMATCHLEN|LCS x y MINMATCHLEN x
OBJECT ENCODING x|OBJECT REFCOUNT x|OBJECT ENCODING none|OBJECT IDLETIME none|OBJECT|OBJECT some x
SET o 12345678|OBJECT ENCODING o|DUMP o|SET o a-text-of-more-than-forty-four-bytes-is-kept-apart
OBJECT ENCODING o|WAIT 0 0|WAIT x 0|WAIT 0 -1|WAIT 0 x
DUMP none|RESTORE r 0 some|RESTORE x 0 some|RESTORE r -1 some|RESTORE r x some
RESTORE r 0 some BAD|RESTORE r 0 some IDLETIME -1|RESTORE r 0 some FREQ 256|RESTORE r 0 some FREQ
KEYS none*|KEYS m[67]x|KEYS y|TOUCH x none|UNLINK x none|RANDOMKEY x|FLUSHALL|RANDOMKEY|KEYS *";

#[test]
fn commands_on_strings_bits_and_keys_answer_as_those_of_redis() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    for command in COMMANDS.trim().split(['|', '\n']) {
        // Redis 8 shows nothing of what ends before the value.
        let expected = match command {
            "GETRANGE a 0 -9" => "$0\\r\\n\\r\\n".to_owned(),
            command => say(&mut theirs, command),
        };
        assert_eq!(say(&mut client, command), expected, "{command}");
    }
}

#[test]
fn dumps_are_read_by_redis_and_those_of_redis_are_read() {
    let Some(redis) = peers::redis() else { return };
    let server = ours(Settings::default());
    let (mut theirs, mut client) = (connect(redis.addr), resp_of(&server));
    let long = b"a text that comes again and again, ".repeat(3000);
    let values: [&[u8]; 7] =
        [b"", b"12", b"-129", b"70000", b"\0\xff", b"a text of its own", &long];
    for value in values {
        for (from, to) in [(true, false), (false, true)] {
            let mut of = |is_ours: bool, command: &[&[u8]]| {
                answer(if is_ours { &mut client } else { &mut theirs }, command)
            };
            assert_eq!(of(from, &[b"SET", b"dumped", value]), b"+OK\r\n");
            let dump = of(from, &[b"DUMP", b"dumped"]);
            let head = dump.iter().position(|byte| *byte == b'\n').unwrap() + 1;
            let dump = &dump[head..dump.len() - 2];
            let restored = of(to, &[b"RESTORE", b"restored", b"9000000", dump, b"REPLACE"]);
            assert_eq!(restored, b"+OK\r\n", "{}", value.escape_ascii());
            assert!(of(to, &[b"GET", b"restored"]) == bulk(value), "{}", value.escape_ascii());
            assert_eq!(of(to, &[b"PERSIST", b"restored"]), b":1\r\n");
            let expired = of(to, &[b"RESTORE", b"restored", b"1000", dump, b"REPLACE", b"ABSTTL"]);
            assert_eq!(
                (expired, of(to, &[b"EXISTS", b"restored"])),
                (b"+OK\r\n".into(), b":0\r\n".into())
            );
        }
    }
}

#[test]
fn values_are_changed_and_removed_if_they_are_what_was_thought() {
    let server = ours(Settings::default());
    let mut client = resp_of(&server);
    for (command, expected) in [
        ("SET a one IFEQ one", "$-1\\r\\n"),
        ("SET a one IFNE one", "+OK\\r\\n"),
        ("SET a two IFEQ other", "$-1\\r\\n"),
        ("SET a two IFEQ one GET", "$3\\r\\none\\r\\n"),
        ("SET a three IFEQ one GET", "$3\\r\\ntwo\\r\\n"),
        ("GET a", "$3\\r\\ntwo\\r\\n"),
        ("SET a three IFNE two", "$-1\\r\\n"),
        ("SET a hello IFNE one EX 1000", "+OK\\r\\n"),
        ("DIGEST a", "$16\\r\\n9555e8555c62dcfd\\r\\n"),
        ("SET a hello IFDEQ 9555E8555C62DCFD KEEPTTL", "+OK\\r\\n"),
        ("TTL a", ":1000\\r\\n"),
        ("SET a one IFDNE 9555e8555c62dcfd", "$-1\\r\\n"),
        ("SET a one IFDEQ 9", "-ERR digest must be exactly 16 hexadecimal characters\\r\\n"),
        ("SET a one IFEQ hello NX", "-ERR syntax error\\r\\n"),
        ("SET a one XX IFEQ hello", "-ERR syntax error\\r\\n"),
        ("SET a one IFEQ", "-ERR syntax error\\r\\n"),
        ("DELEX a IFEQ one", ":0\\r\\n"),
        ("DELEX a some one", "-ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE\\r\\n"),
        ("DELEX a IFEQ", "-ERR wrong number of arguments for \\'delex\\' command\\r\\n"),
        ("DELEX a IFDNE 9555e8555c62dcfd", ":0\\r\\n"),
        ("DELEX a IFNE one", ":1\\r\\n"),
        ("DELEX a some one", ":0\\r\\n"),
        ("SET a one", "+OK\\r\\n"),
        ("DELIFEQ a two", ":0\\r\\n"),
        ("DELIFEQ a one", ":1\\r\\n"),
        ("DELIFEQ a one", ":0\\r\\n"),
        ("SET a one", "+OK\\r\\n"),
        ("DELEX a", ":1\\r\\n"),
        ("DIGEST a", "$-1\\r\\n"),
    ] {
        assert_eq!(say(&mut client, command), expected, "{command}");
    }
    // A value that is written as it comes, with its condition behind it.
    let long = [b'x'; 100_000];
    assert_eq!(answer(&mut client, &[b"SET", b"a", &long, b"IFEQ", b"y"]), b"$-1\r\n");
    assert_eq!(answer(&mut client, &[b"SET", b"a", &long, b"IFNE", b"y"]), b"+OK\r\n");
    assert_eq!(answer(&mut client, &[b"SET", b"a", b"y", b"IFEQ", &long]), b"+OK\r\n");
}

/// Parts of a value of several segments, also of one that lies in another tier.
fn look_at_a_long_value(server: &Server) {
    let mut client = resp_of(server);
    let mut ask = |command: &[&[u8]]| answer(&mut client, command);
    let mut value: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(ask(&[b"SET", b"long", &value]), b"+OK\r\n");
    assert_eq!(ask(&[b"SETRANGE", b"long", b"150000", b"a text"]), b":300000\r\n");
    value[150_000..150_006].copy_from_slice(b"a text");
    assert_eq!(ask(&[b"SETBIT", b"long", b"2408001", b"1"]), b":0\r\n");
    value.resize(301_001, 0);
    value[301_000] = 0x40;
    for (start, end) in [
        (0, 301_001),
        (1, 301_000),
        (65_000, 66_000),
        (100_000, 200_000),
        (299_999, 301_001),
        (0, 40_000),
        (250_000, 301_001),
        (149_999, 150_010),
    ] {
        let (first, last) = (start.to_string(), (end - 1).to_string());
        let range = ask(&[b"GETRANGE", b"long", first.as_bytes(), last.as_bytes()]);
        assert!(range == bulk(&value[start..end]), "{start} to {end}");
    }
    let ones: u32 = value.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(ask(&[b"BITCOUNT", b"long"]), format!(":{ones}\r\n").into_bytes());
    assert_eq!(ask(&[b"GETBIT", b"long", b"2408001"]), b":1\r\n");
    assert_eq!(ask(&[b"BITPOS", b"long", b"1", b"300000"]), b":2408001\r\n");
    assert_eq!(ask(&[b"RENAME", b"long", b"renamed"]), b"+OK\r\n");
    assert_eq!(ask(&[b"COPY", b"renamed", b"copied"]), b":1\r\n");
    assert_eq!(ask(&[b"BITOP", b"XOR", b"none", b"renamed", b"copied"]), b":301001\r\n");
    assert_eq!(ask(&[b"BITCOUNT", b"none"]), b":0\r\n");
    assert_eq!(ask(&[b"DELIFEQ", b"copied", &value]), b":1\r\n");
    assert!(ask(&[b"GET", b"renamed"]) == bulk(&value));
    // The answers that wait while the value changes are of one moment.
    let rename = [words(&[b"GETRANGE", b"renamed", b"0", b"200000"]), words(&[b"DEL", b"renamed"])];
    let expected = [bulk(&value[..200_001]), b":1\r\n".to_vec()].concat();
    let said = peers::ask(&mut client, &rename.concat(), b":1\r\n");
    assert!(said == expected, "{} bytes", said.len());
}

#[test]
fn long_values_are_read_in_parts_and_changed() {
    look_at_a_long_value(&serve(Cache::new(Options::default()).unwrap(), 1));
    let (cache, _) = tiered(Options::default(), 64 << 20);
    look_at_a_long_value(&serve(cache, 1));
}

#[test]
fn a_renamed_key_is_at_every_moment_under_one_of_its_names() {
    let server = partitioned(8);
    let mut observer = resp_of(&server);
    for pair in 0..4 {
        let (a, b) = (format!("{pair} a"), format!("{pair} b"));
        let [a, b] = [a.as_bytes(), b.as_bytes()];
        assert_eq!(answer(&mut observer, &[b"SET", a, b"x"]), b"+OK\r\n");
        std::thread::scope(|scope| {
            let renaming = scope.spawn(|| {
                let mut client = resp_of(&server);
                for _ in 0..300 {
                    assert_eq!(answer(&mut client, &[b"RENAME", a, b]), b"+OK\r\n");
                    assert_eq!(answer(&mut client, &[b"RENAMENX", b, a]), b":1\r\n");
                }
            });
            while !renaming.is_finished() {
                let length = answer(&mut observer, &[b"BITOP", b"XOR", b"seen", b, a]);
                let value = answer(&mut observer, &[b"GET", b"seen"]);
                assert_eq!((length, value), (b":1\r\n".to_vec(), bulk(b"x")));
            }
        });
    }
}

#[test]
fn of_several_that_set_the_same_keys_if_there_are_none_one_sets_all() {
    const ROUNDS: usize = 200;
    let server = partitioned(8);
    let key = |round: usize, index: usize| format!("{round} {}", index % 5).into_bytes();
    let set_all = |thread: usize| {
        let mut client = resp_of(&server);
        let mine = thread.to_string();
        let set = |round: &usize| {
            let keys: Vec<_> = (0..5).map(|index| key(*round, thread + index)).collect();
            let mut command = vec![&b"MSETNX"[..]];
            keys.iter().for_each(|key| command.extend([&key[..], mine.as_bytes()]));
            answer(&mut client, &command) == b":1\r\n"
        };
        (0..ROUNDS).filter(set).count()
    };
    let sum: usize = std::thread::scope(|scope| {
        let threads = [0, 1, 2, 3].map(|thread| scope.spawn(move || set_all(thread)));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(sum, ROUNDS);
    let mut client = resp_of(&server);
    for round in 0..ROUNDS {
        let values =
            [0, 1, 2, 3, 4].map(|index| answer(&mut client, &[b"GET", &key(round, index)]));
        assert!(values.iter().all(|value| *value == values[0]), "{round}");
    }
}

#[test]
fn all_keys_are_told_in_turns_and_one_of_them_by_chance() {
    let server = partitioned(4);
    let mut client = resp_of(&server);
    assert_eq!(say(&mut client, "DEBUG POPULATE 30000"), "+OK\\r\\n");
    assert_eq!(say(&mut client, "DEBUG POPULATE 3 key 10"), "+OK\\r\\n");
    assert_eq!(say(&mut client, "DEBUG POPULATE 2 other 12"), "+OK\\r\\n");
    assert_eq!(say(&mut client, "GET key:29999"), "$11\\r\\nvalue:29999\\r\\n");
    assert_eq!(say(&mut client, "GET other:1"), "$12\\r\\nvalue:1\\x00\\x00\\x00\\x00\\x00\\r\\n");
    let keys = |client: &mut TcpStream, pattern: &str| {
        let all = told(client, &format!("KEYS {pattern}"));
        let mut keys: Vec<_> = all.array().iter().map(|key| key.text().to_owned()).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all.array().len(), "a key is told twice");
        keys.len()
    };
    let told_of = ["*", "key:1??", "key:???99", "other:*", "nothing"];
    assert_eq!(told_of.map(|pattern| keys(&mut client, pattern)), [30_002, 100, 200, 2, 0]);
    let debug = told(&mut client, "DEBUG OBJECT key:1");
    assert!(debug.text().contains("encoding:embstr serializedlength:8 "), "{debug:?}");
    assert_eq!(say(&mut client, "DEBUG ERROR some"), "-some\\r\\n");

    assert_eq!(say(&mut client, "FLUSHALL"), "+OK\\r\\n");
    assert_eq!(say(&mut client, "DEBUG POPULATE 10"), "+OK\\r\\n");
    let mut counts = [0; 10];
    for _ in 0..1000 {
        let Answer::Text(key) = told(&mut client, "RANDOMKEY") else { panic!() };
        counts[key["key:".len()..].parse::<usize>().unwrap()] += 1;
    }
    assert!(counts.iter().all(|count| (50..170).contains(count)), "{counts:?}");
}

#[test]
fn the_empty_key_is_one_like_others_also_after_a_restart() {
    let server = partitioned(2);
    let mut client = resp_of(&server);
    let mut ask = |command: &[&[u8]]| answer(&mut client, command).escape_ascii().to_string();
    for value in [&b""[..], b"value"] {
        assert_eq!(ask(&[b"SET", b"", value]), "+OK\\r\\n");
        assert_eq!(ask(&[b"GET", b""]), bulk(value).escape_ascii().to_string());
        assert_eq!(ask(&[b"KEYS", b"*"]), "*1\\r\\n$0\\r\\n\\r\\n");
        assert_eq!(ask(&[b"EXPIRE", b"", b"100"]), ":1\\r\\n");
        assert_eq!(ask(&[b"PERSIST", b""]), ":1\\r\\n");
        assert_eq!(ask(&[b"RENAME", b"", b"other"]), "+OK\\r\\n");
        assert_eq!(ask(&[b"EXISTS", b"", b"other"]), ":1\\r\\n");
        assert_eq!(ask(&[b"MSET", b"", value, b"more", b"x"]), "+OK\\r\\n");
        assert_eq!(ask(&[b"DEL", b"", b"other", b"more"]), ":3\\r\\n");
    }
    let path = format!("/dev/shm/rackpool-cache-test-{}-empty", std::process::id());
    let options = Options { memory: 16 << 20, ..Options::default() };
    let open = || Cache::open(options.clone(), Path::new(&path)).unwrap();
    for value in [&b""[..], b"value"] {
        let (cache, _) = open();
        for number in 0..2 {
            // Moved to another place, and with marks, it is the same.
            cache.in_database(number).set(b"", value, 0, 0, 1).unwrap();
            cache.in_database(number).entry(b"", 1).unwrap().set_expiry(9).unwrap();
            cache.in_database(number).entry(b"", 1).unwrap().set_expiry(0).unwrap();
        }
        cache.set(b"other", b"", 0, 0, 1).unwrap();
        drop(cache);
        let (cache, recovered) = open();
        assert_eq!((recovered.items, recovered.lost, cache.len()), (3, 0, 3));
        for number in 0..2 {
            let mut found = None;
            let mut many = |_: usize, item: Option<&rackpool_cache::Item<'_>>| {
                found = item.map(|item| {
                    let mut bytes = Vec::new();
                    item.append_to(&mut bytes).map(|()| bytes).unwrap()
                });
            };
            cache.in_database(number).get_many(&[b""], 1, &mut many);
            assert_eq!(found.as_deref(), Some(value));
        }
        std::fs::remove_file(&path).unwrap();
    }
}

/// Random changes of one value beside a model of it.
#[test]
fn a_value_is_what_all_changes_of_its_parts_made_of_it() {
    let server = ours(Settings::default());
    let (mut client, mut rng, mut model) = (resp_of(&server), Rng(7), Vec::new());
    for _ in 0..2000 {
        let at = rng.below(3000);
        let text = at.to_string();
        match rng.below(4) {
            0 => {
                let bytes = vec![rng.below(256) as u8; rng.below(200)];
                answer(&mut client, &[b"SETRANGE", b"k", text.as_bytes(), &bytes]);
                if !bytes.is_empty() {
                    model.resize(model.len().max(at + bytes.len()), 0);
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            1 => {
                answer(&mut client, &[b"SETBIT", b"k", text.as_bytes(), b"1"]);
                model.resize(model.len().max(at / 8 + 1), 0);
                model[at / 8] |= 0x80 >> (at % 8);
            }
            2 => {
                answer(&mut client, &[b"BITFIELD", b"k", b"SET", b"u8", text.as_bytes(), b"0"]);
                model.resize(model.len().max(at.div_ceil(8) + 1), 0);
                for bit in at..at + 8 {
                    model[bit / 8] &= !(0x80 >> (bit % 8));
                }
            }
            _ => {
                let range = answer(&mut client, &[b"GETRANGE", b"k", text.as_bytes(), b"-1"]);
                assert!(range == bulk(model.get(at..).unwrap_or_default()), "from {at}");
            }
        }
    }
    assert!(answer(&mut client, &[b"GET", b"k"]) == bulk(&model));
}
