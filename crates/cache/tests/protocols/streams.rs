//! Random streams of commands for each protocol. They hold what clients send and what they should
//! not; what is left out, because the real servers contradict themselves there, is named.

#![allow(dead_code)]

use crate::peers::Rng;

/// A piece of a stream.
pub enum Part {
    /// The same for both servers.
    Bytes(Vec<u8>),
    /// The version of a key that the server told last (or, `old`, before that).
    Cas { key: Vec<u8>, old: bool, binary: bool },
}

/// Commands, and how their answers end.
pub struct Stream {
    pub parts: Vec<Part>,
    /// The last answer: of a command that nothing else answers like.
    pub end: Vec<u8>,
    pub is_binary: bool,
    /// The server ends the connection at its end.
    pub ends_connection: bool,
    pub commands: usize,
    /// Key of each binary request, by its opaque.
    pub keys: Vec<Vec<u8>>,
}

impl Stream {
    fn new(is_binary: bool) -> Self {
        let (parts, end, keys) = (Vec::new(), Vec::new(), Vec::new());
        Self { parts, end, is_binary, ends_connection: false, commands: 0, keys }
    }

    fn push(&mut self, bytes: impl AsRef<[u8]>) {
        if let Some(Part::Bytes(last)) = self.parts.last_mut() {
            return last.extend_from_slice(bytes.as_ref());
        }
        self.parts.push(Part::Bytes(bytes.as_ref().to_vec()));
    }

    fn push_cas(&mut self, key: &str, rng: &mut Rng, binary: bool) {
        let (key, old) = (key.as_bytes().to_vec(), rng.chance(3));
        self.parts.push(Part::Cas { key, old, binary });
    }
}

fn key(rng: &mut Rng) -> String {
    match rng.below(30) {
        0 => "k".repeat(250),
        1 => "\u{e9}\t".into(),
        n => format!("key{}", n % 8),
    }
}

fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.below(12) {
        0 => Vec::new(),
        1 => vec![b'x'; rng.below(3000)],
        2 if rng.chance(8) => vec![b'L'; 60_000 + rng.below(20_000)],
        3..=6 => {
            let bits = rng.below(40);
            rng.below(1 << bits).to_string().into_bytes()
        }
        7 => format!("{} ", rng.below(1000)).into_bytes(),
        8 => rng.pick(&["-1", "18446744073709551615", "9223372036854775807", "1x", " 12"]).into(),
        _ => (0..rng.below(40)).map(|_| b'a' + rng.below(26) as u8).collect(),
    }
}

fn exptime(rng: &mut Rng) -> &'static str {
    rng.pick(&["0", "0", "0", "0", "1000", "2000000", "2000000000", "-1", "1000000000"])
}

fn noreply(rng: &mut Rng) -> &'static str {
    if rng.chance(6) { " noreply" } else { "" }
}

fn line_end(rng: &mut Rng) -> &'static str {
    if rng.chance(15) { "\n" } else { "\r\n" }
}

/// The end of a stream of text: a look-up of nothing, with a name of its own.
fn finish_text(stream: &mut Stream, index: usize) {
    // Last, since memcached counts otherwise while a number waits to be sent: a number that gets
    // shorter keeps its length only if no client holds it.
    if index.is_multiple_of(4) {
        stream.push("get num0 num1 num2 num3 metanum0 metanum1 metanum2 metanum3\r\n");
    }
    stream.push(format!("mg absent Oend{index}\r\n"));
    stream.end = format!("EN Oend{index}\r\n").into_bytes();
}

/// Lines that cannot be meant, or not quite.
const NONSENSE: &[&str] = &[
    "\r\n",
    "get\r\n",
    "gets \r\n",
    "set a 0 0\r\n",
    "set a b 0 1\r\n",
    "set a 0 0 -1\r\n",
    "cas a 0 0 1\r\n",
    "cas a 0 0 1 x\r\n",
    "incr a\r\n",
    "touch a\r\n",
    "gat\r\n",
    "nonsense a b c\r\n",
    "g\r\n",
    "shutdown\r\n",
    "  get   key1 \r\n",
    "get key1\0key2\r\n",
    "delete\r\n",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z\r\n",
];

/// memcached's text protocol. Left out: `stats` and `version` (they differ), delayed `flush_all`
/// (memcached lets flushed items come back), a key that is too long behind other commands
/// (memcached drops their answers as well).
pub fn text(rng: &mut Rng, index: usize) -> Stream {
    let mut stream = Stream::new(false);
    if rng.chance(50) {
        stream.push(format!("get {} key1\r\n", "k".repeat(251)));
        finish_text(&mut stream, index);
        return stream;
    }
    for _ in 0..1 + rng.below(12) {
        stream.commands += 1;
        let key = key(rng);
        match rng.below(20) {
            0..=4 => text_get(&mut stream, rng),
            5..=8 => text_store(&mut stream, rng, &key),
            9 | 10 => {
                let key = format!("num{}", rng.below(4));
                text_store(&mut stream, rng, &key);
            }
            11 | 12 => {
                let verb = rng.pick(&["incr", "decr"]);
                let delta = rng.pick(&["1", "5", "0", "18446744073709551615", "-1", "x", "12a"]);
                let key = format!("num{}", rng.below(4));
                stream.push(format!("{verb} {key} {delta}{}{}", noreply(rng), line_end(rng)));
            }
            13 | 14 => {
                let hold = rng.pick(&["", "", "", " 0", " 1", " x"]);
                stream.push(format!("delete {key}{hold}{}{}", noreply(rng), line_end(rng)));
            }
            15 => {
                let time = rng.pick(&["0", "1000", "-1", "x", "2000000000"]);
                stream.push(format!("touch {key} {time}{}{}", noreply(rng), line_end(rng)));
            }
            16 => {
                let verb = rng.pick(&["gat", "gats"]);
                let time = rng.pick(&["0", "1000", "-1", "x", "2000000000"]);
                let other = self::key(rng);
                stream.push(format!("{verb} {time} {key} {other}{}", line_end(rng)));
            }
            17 => stream.push(rng.pick(&[
                "verbosity 0\r\n",
                "verbosity\r\n",
                "verbosity x noreply\r\n",
                "flush_all 0\r\n",
                "flush_all x\r\n",
                "flush_all noreply\r\n",
                "mn\r\n",
            ])),
            18 => stream.push(rng.pick(NONSENSE)),
            _ => stream.push(format!("set {} 0 0 1\r\n", "q".repeat(251))),
        }
    }
    finish_text(&mut stream, index);
    stream
}

fn text_get(stream: &mut Stream, rng: &mut Rng) {
    stream.push(rng.pick(&["get", "gets"]));
    let count = if rng.chance(10) { 1 + rng.below(60) } else { 1 + rng.below(4) };
    for _ in 0..count {
        stream.push(format!(" {}", key(rng)));
    }
    stream.push(line_end(rng));
}

fn text_store(stream: &mut Stream, rng: &mut Rng, key: &str) {
    let verb = rng.pick(&["set", "set", "set", "add", "replace", "append", "prepend", "cas"]);
    let value = value(rng);
    let flags = rng.pick(&["0", "0", "7", "4294967295", "4294967296", " 5"]);
    stream.push(format!("{verb} {key} {flags} {} {}", exptime(rng), value.len()));
    if verb == "cas" {
        stream.push(" ");
        stream.push_cas(key, rng, false);
    }
    stream.push(format!("{}{}", noreply(rng), line_end(rng)));
    stream.push(&value);
    stream.push(if rng.chance(40) { "xx" } else { "\r\n" });
}

/// memcached's meta commands. Left out: `l` and `h` (memcached's own times of use), keys that are
/// stored in base64 and asked for without, or the other way round, `ma` with a time and a number
/// that may get longer (memcached copies it into a new item then, and gives the time to the old
/// one: 7, `ma n T1000 D5`, then `ma n t` tells -1).
pub fn meta(rng: &mut Rng, index: usize) -> Stream {
    let mut stream = Stream::new(false);
    for _ in 0..1 + rng.below(10) {
        stream.commands += 1;
        let key = format!("meta{}", rng.below(8));
        match rng.below(12) {
            0..=3 => {
                stream.push(format!("mg {key}"));
                for _ in 0..rng.below(7) {
                    let flag = rng.pick(&[
                        "v", "v", "f", "s", "t", "k", "q", "Oabc", "T1000", "T0", "N1000", "N0",
                        "R30", "R5000", "u", "c",
                    ]);
                    stream.push(format!(" {flag}"));
                }
            }
            4 | 5 => meta_set(&mut stream, rng, &key),
            6 => {
                let key = format!("metanum{}", rng.below(4));
                meta_set(&mut stream, rng, &key);
            }
            7 | 8 => {
                stream.push(format!("md {key}"));
                for _ in 0..rng.below(4) {
                    let flag = rng.pick(&["q", "I", "T1000", "Oxyz", "k", "C0"]);
                    stream.push(format!(" {flag}"));
                }
                if rng.chance(4) {
                    stream.push(" C");
                    stream.push_cas(&key, rng, false);
                }
            }
            9 | 10 => {
                stream.push(format!("ma metanum{}", rng.below(4)));
                for _ in 0..rng.below(6) {
                    let flag = rng.pick(&[
                        "v", "t", "k", "q", "Oabc", "T1000 D0", "N1000", "N0", "J13", "D5", "MI",
                        "MD", "M+", "M-", "Mx", "Dx", "c",
                    ]);
                    stream.push(format!(" {flag}"));
                }
            }
            _ => stream.push(rng.pick(&[
                "mg",
                "mg meta1 v v",
                "mg meta1 !",
                "mg meta1 Tx",
                "mg meta1 Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "ms meta1",
                "ms meta1 x",
                "ms meta1 -1",
                "md",
                "md meta1 x x",
                "ma",
                "ma meta1 =",
                "mx a",
                "me",
                "me absent",
                "mn",
                "mg bWV0YWI= b k v",
                "mg a=b b",
                "gets meta0 meta1 meta2 meta3",
                "gets meta4 meta5 meta6 meta7",
            ])),
        }
        stream.push(line_end(rng));
    }
    finish_text(&mut stream, index);
    stream
}

fn meta_set(stream: &mut Stream, rng: &mut Rng, key: &str) {
    let value = value(rng);
    let binary = rng.chance(8);
    let key = if binary { "bWV0YWI=" } else { key };
    stream.push(format!("ms {key} {}", value.len()));
    if binary {
        stream.push(" b");
    }
    for _ in 0..rng.below(5) {
        let flag = rng.pick(&[
            "c", "F7", "I", "k", "Oabc", "q", "T0", "T1000", "ME", "MA", "MP", "MR", "MS", "Mx",
            "M", "Tx", "C0", "Fx",
        ]);
        // What is appended to it makes memcached forget how its key was sent.
        let flag = if binary && matches!(flag, "MA" | "MP") { "MS" } else { flag };
        stream.push(format!(" {flag}"));
    }
    if rng.chance(4) {
        stream.push(" C");
        stream.push_cas(key, rng, false);
    }
    stream.push("\r\n");
    stream.push(&value);
    if rng.chance(40) {
        stream.push("xx");
    } else {
        stream.push("\r\n");
    }
}

/// memcached's binary protocol. Left out: `stat` and `version` (they differ), unknown commands with
/// a key (memcached then loses its place).
pub fn binary(rng: &mut Rng, index: usize) -> Stream {
    let mut stream = Stream::new(true);
    for _ in 0..1 + rng.below(12) {
        stream.commands += 1;
        let key = format!("bin{}", rng.below(8));
        let expires: u32 = [0, 0, 0, 1000, 2_000_000_000, u32::MAX][rng.below(6)];
        match rng.below(16) {
            0..=3 => {
                let opcode = [0x00, 0x09, 0x0c, 0x0d][rng.below(4)];
                request(&mut stream, rng, opcode, b"", &key, b"", false);
            }
            4..=8 => {
                let opcode = [0x01, 0x01, 0x02, 0x03, 0x11, 0x12, 0x13][rng.below(7)];
                let mut extras = (rng.below(9) as u32).to_be_bytes().to_vec();
                extras.extend_from_slice(&expires.to_be_bytes());
                let (value, cas) = (value(rng), rng.chance(4));
                let number = format!("binnum{}", rng.below(4));
                let key = if rng.chance(4) { &number } else { &key };
                request(&mut stream, rng, opcode, &extras, key, &value, cas);
            }
            9 => {
                let opcode = [0x0e, 0x0f, 0x19, 0x1a][rng.below(4)];
                let (value, cas) = (value(rng), rng.chance(4));
                request(&mut stream, rng, opcode, b"", &key, &value, cas);
            }
            10 => {
                let (opcode, cas) = ([0x04, 0x14][rng.below(2)], rng.chance(4));
                request(&mut stream, rng, opcode, b"", &key, b"", cas);
            }
            11 | 12 => {
                let opcode = [0x05, 0x06, 0x15, 0x16][rng.below(4)];
                let mut extras = (rng.below(100) as u64).to_be_bytes().to_vec();
                extras.extend_from_slice(&(rng.below(100) as u64).to_be_bytes());
                extras.extend_from_slice(&expires.to_be_bytes());
                let (key, cas) = (format!("binnum{}", rng.below(4)), rng.chance(4));
                request(&mut stream, rng, opcode, &extras, &key, b"", cas);
            }
            13 => {
                let opcode = [0x1c, 0x1d, 0x1e, 0x23, 0x24][rng.below(5)];
                request(&mut stream, rng, opcode, &expires.to_be_bytes(), &key, b"", false);
            }
            14 => {
                let opcode = [0x0a, 0x08, 0x18, 0x20, 0x7f, 0xee][rng.below(6)];
                request(&mut stream, rng, opcode, b"", "", b"", false);
            }
            _ if rng.chance(10) => {
                // Cannot be meant: an answer, then the end.
                request(&mut stream, rng, 0x01, b"", &key, b"", false);
                stream.ends_connection = true;
                break;
            }
            _ => {}
        }
    }
    if index.is_multiple_of(4) && !stream.ends_connection {
        for number in 0..4 {
            request(&mut stream, rng, 0x00, b"", &format!("binnum{number}"), b"", false);
        }
    }
    request(&mut stream, rng, 0x0a, b"", "", b"", false);
    let mut end = vec![0; 24];
    (end[0], end[1]) = (0x81, 0x0a);
    end[12..16].copy_from_slice(&(stream.keys.len() as u32 - 1).to_be_bytes());
    stream.end = end;
    stream
}

fn request(
    stream: &mut Stream,
    rng: &mut Rng,
    opcode: u8,
    extras: &[u8],
    key: &str,
    value: &[u8],
    cas: bool,
) {
    let mut head = vec![0x80, opcode];
    head.extend_from_slice(&(key.len() as u16).to_be_bytes());
    head.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    head.extend_from_slice(&((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    head.extend_from_slice(&(stream.keys.len() as u32).to_be_bytes());
    stream.push(head);
    if cas {
        stream.push_cas(key, rng, true);
    } else {
        stream.push(0u64.to_be_bytes());
    }
    stream.push(extras);
    stream.push(key);
    stream.push(value);
    stream.keys.push(key.as_bytes().to_vec());
}

/// Redis's protocol. Left out: what lists everything in its own order, what differs by nature
/// (`INFO`, `COMMAND`, `CONFIG`, `TIME`, `DBSIZE`), commands of types that are not offered, ranges of
/// `GETRANGE` that end before the value (Redis has changed what they show), dumps (which may be
/// shortened in several ways), how values are kept.
pub fn resp(rng: &mut Rng, index: usize) -> Stream {
    let mut stream = Stream::new(false);
    for _ in 0..1 + rng.below(14) {
        stream.commands += 1;
        let words = resp_words(rng);
        let printable = words.iter().all(|word| {
            // A line of 64 KiB is too long or not, depending on how it arrives.
            (1..1000).contains(&word.len())
                && word.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"')
        });
        let printable = printable && !words.iter().any(|word| word.contains(&b'\''));
        if rng.chance(6) && printable {
            let quote = rng.pick(&["", "\"", "'"]);
            for word in &words {
                stream.push(quote);
                stream.push(word);
                stream.push(quote);
                stream.push(" ");
            }
            stream.push("\r\n");
        } else {
            stream.push(format!("*{}\r\n", words.len()));
            for word in words {
                stream.push(format!("${}\r\n", word.len()));
                stream.push(word);
                stream.push("\r\n");
            }
        }
    }
    if rng.chance(60) {
        stream.push(rng.pick(&[
            "*1\r\n+PING\r\n",
            "*x\r\n",
            "*1\r\n$-5\r\n",
            "*1\r\n$9999999999\r\n",
            "get 'a\r\n",
            "set \"a\"b c\r\n",
            "*9999999999\r\n",
        ]));
        stream.ends_connection = true;
        stream.end = b"no answer ends like this".to_vec();
        return stream;
    }
    // An open transaction would let it wait.
    stream.push("discard\r\n");
    stream.push(format!("*2\r\n$4\r\nECHO\r\n$9\r\nend{index:06}\r\n"));
    stream.end = format!("$9\r\nend{index:06}\r\n").into_bytes();
    stream
}

/// Commands; capital letters stand for a key, a value, a time in seconds, one in milliseconds, a
/// number, an option, a condition. `gt` and `lt` stand with points in time: 500 seconds from now,
/// said twice, is equal or later, depending on how many milliseconds are between.
const TEMPLATES: &[&str] = &[
    "get K",
    "get K",
    "get K",
    "set K V",
    "set K V",
    "set K V",
    "set K V O",
    "set K V O O",
    "set K V ex T",
    "set K V px M",
    "set K V exat T",
    "set K V pxat 9000000000000 O",
    "set K V O ex T",
    "set K V keepttl O",
    "setex K T V",
    "psetex K M V",
    "setnx K V",
    "getset K V",
    "getdel K",
    "getex K",
    "getex K ex T",
    "getex K persist",
    "getex K px M",
    "getex K O",
    "mget K K K",
    "mget K",
    "mset K V K V",
    "mset K V K",
    "del K K",
    "unlink K",
    "exists K K K",
    "touch K K",
    "expire K T",
    "expire K T C",
    "expire K T C C",
    "pexpireat K 5000000000000 gt",
    "expireat K 5000000000 LT",
    "expire K 9000 gt lt",
    "pexpire K M",
    "pexpire K M C",
    "expireat K 9000000000",
    "expireat K 5 C",
    "pexpireat K 9000000000000",
    "ttl K",
    "pttl K",
    "persist K",
    "type K",
    "incr K",
    "decr K",
    "incrby K N",
    "decrby K N",
    "append K V",
    "strlen K",
    "ping",
    "ping V",
    "echo V",
    "select 0",
    "select 1",
    "select x",
    "select 99",
    "move K 0",
    "move K 1",
    "move K 99",
    "swapdb 0 1",
    "swapdb 1 K",
    "flushdb",
    "flushall",
    "flushdb async",
    "flushall now",
    "multi",
    "multi",
    "exec",
    "exec",
    "exec",
    "discard",
    "watch K",
    "watch K K",
    "unwatch",
    "exec K",
    "discard K",
    "watch",
    "reset",
    "client setname some",
    "client getname",
    "client setname N",
    "auth x",
    "auth a b c",
    "get",
    "get K K",
    "set K",
    "nonsense V K V",
    "nonsense",
    "incr",
    "mset",
    "hello 9",
    "hello x",
    "expiretime K",
    "pexpiretime K",
    "memory usage",
    "client nonsense",
    "expire K",
    "scan x",
    "scan 0 count 0",
    "scan 0 match",
    "config get",
    "getrange K I E",
    "substr K I E",
    "setrange K R V",
    "incrbyfloat K F",
    "setbit K B D",
    "getbit K B",
    "bitcount K",
    "bitcount K I I",
    "bitcount K I I bit",
    "bitcount K I",
    "bitpos K D",
    "bitpos K D I",
    "bitpos K D I I",
    "bitpos K D I I BIT",
    "bitop and K K K",
    "bitop OR K K K",
    "bitop xor K K K K",
    "bitop not K K",
    "bitop not K K K",
    "bitop nand K K",
    "bitfield K get u8 0 set i5 3 7 incrby u4 #1 3",
    "bitfield K overflow fail incrby u2 B N",
    "bitfield K overflow sat set i8 B N get u8 B",
    "bitfield K set u63 B N",
    "bitfield K get u64 0",
    "bitfield_ro K get u16 B",
    "bitfield_ro K set u8 0 1",
    "pfadd H V V",
    "pfadd H",
    "pfadd K V",
    "pfcount H",
    "pfcount H H K",
    "pfmerge H H",
    "get H",
    "msetnx K V K V",
    "msetnx K V K",
    "rename K K",
    "renamenx K K",
    "copy K K",
    "copy K K replace",
    "copy K K db 1 replace",
    "copy K K DB 99",
    "copy K K x",
    "lcs K K",
    "lcs K K len",
    "lcs K K idx minmatchlen 2 withmatchlen",
    "lcs K K idx len",
    "keys r0",
    "keys nonsense*",
    "restore K 0 V",
    "restore K N V",
    "restore K 0 V x",
    "object encoding",
    "object nonsense K",
    "wait 0 0",
    "wait x 0",
    "wait 0 -1",
    "wait 0 x",
];

fn resp_words(rng: &mut Rng) -> Vec<Vec<u8>> {
    let key = |rng: &mut Rng| match rng.below(25) {
        0 => vec![b'K'; 300],
        1 => b"\x00\r\n\xff".to_vec(),
        2 => Vec::new(),
        n => format!("r{}", n % 8).into_bytes(),
    };
    let value = |rng: &mut Rng| match rng.below(20) {
        0 => b"\r\n\0\xff".to_vec(),
        _ => value(rng),
    };
    let time = |rng: &mut Rng| {
        rng.pick(&["1000", "1000", "2000000", "0", "-1", "x", "9223372036854775807"]).to_owned()
    };
    // None that passes while streams run: the servers are asked one after the other.
    let millis = |rng: &mut Rng| {
        rng.pick(&["1000000", "1000000", "2000000", "0", "-1", "x", "9223372036854775807"])
    };
    let number = |rng: &mut Rng| {
        let some = ["1", "-7", "100", "x", "9223372036854775807", "-9223372036854775808", "01"];
        rng.pick(&some).to_owned()
    };
    let template = rng.pick(TEMPLATES);
    let words = template.split(' ').enumerate().map(|(index, word)| match word {
        "K" => key(rng),
        "V" => value(rng),
        "T" => time(rng).into_bytes(),
        "M" => millis(rng).into(),
        "N" => number(rng).into_bytes(),
        "O" => rng.pick(&["nx", "XX", "get", "KEEPTTL", "ex", "bad", "persist"]).into(),
        "C" => rng.pick(&["nx", "XX", "bad"]).into(),
        "I" => rng.pick(&["0", "1", "-1", "-3", "5", "100", "x"]).into(),
        "E" => rng.pick(&["0", "3", "10", "-1", "100000"]).into(),
        "R" => rng.pick(&["0", "1", "5", "100", "-1", "x"]).into(),
        "B" => rng.pick(&["0", "7", "8", "100", "999", "4294967296", "-1", "x"]).into(),
        "D" => rng.pick(&["0", "1", "1", "0", "2", "x"]).into(),
        "F" => rng.pick(&["1.5", "-0.25", "3.0e3", "0.1", "1e40", "inf", "x"]).into(),
        "H" => rng.pick(&["h0", "h1", "h2", "h3"]).into(),
        name if index == 0 && rng.chance(3) => name.to_ascii_uppercase().into_bytes(),
        word => word.as_bytes().to_vec(),
    });
    words.collect()
}
