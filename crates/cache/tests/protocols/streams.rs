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

/// What the servers that are compared with know of newer commands: versions as numbers, of which
/// 70,015 is 7.0.15.
#[derive(Clone, Copy)]
pub struct PeerVersions {
    pub redis: u32,
    pub memcached: u32,
}

/// What makes a stream: with random numbers, its place among all, and for which servers.
pub type MakeStream = fn(&mut Rng, usize, PeerVersions) -> Stream;

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
    pub fn new(is_binary: bool) -> Self {
        let (parts, end, keys) = (Vec::new(), Vec::new(), Vec::new());
        Self { parts, end, is_binary, ends_connection: false, commands: 0, keys }
    }

    pub fn push(&mut self, bytes: impl AsRef<[u8]>) {
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

pub fn value(rng: &mut Rng) -> Vec<u8> {
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
    "set a 0 0 -1\r\n",
    "nonsense a b c\r\n",
    "verbosity 0\r\n",
    "verbosity x noreply\r\n",
    "flush_all 0\r\n",
    "flush_all x\r\n",
    "flush_all noreply\r\n",
    "mn\r\n",
    "cache_memlimit 1\r\n",
    "cache_memlimit 2000000000\r\n",
    "cache_memlimit x noreply\r\n",
    "stats detail\r\n",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z\r\n",
];

/// Such lines with the values behind them: older servers take the value of a line that they refuse
/// for commands, read numbers with C's library and have other words for some errors.
const NEWER_NONSENSE: &[&str] = &[
    "\r\n",
    "g\r\n",
    "mn\n",
    "get\r\n",
    "gets \r\n",
    "gat\r\n",
    "gat 0\r\n",
    "gat +1 key1\r\n",
    "incr a\r\n",
    "incr num1 +1\r\n",
    "touch a\r\n",
    "touch key1 +1\r\n",
    "touch key1 2147483648\r\n",
    "delete\r\n",
    "delete key2 1\r\n",
    "delete key2 x noreply\r\n",
    "delete noreply\r\n",
    "verbosity\r\n",
    "verbosity +1\r\n",
    "cache_memlimit noreply\r\n",
    "shutdown\r\n",
    "shutdown graceful\r\n",
    "nonsense noreply\r\n",
    "  get   key1 \r\n",
    "  verbosity 0\r\n",
    "get key1\0key2\r\n",
    "set a 0 0\r\n",
    "set a 0 0 x noreply\r\n",
    "set a 0 0 +1\r\n",
    "set a 0 0 2147483648\r\n",
    "set a b 0 9\r\nversion\r\n\r\n",
    "set key1 +1 +2000 1 more words\r\nx\r\n",
    "add key1 0 1x 9 noreply\r\nversion\r\n\r\n",
    "cas a 0 0 3\r\nget\r\n",
    "cas a 0 0 3 x\r\nget\r\n",
    "cas a 0 0 3 +1 noreply\r\nget\r\n",
];

/// memcached's text protocol. Left out: `stats` and `version` (they differ), delayed `flush_all`
/// (memcached lets flushed items come back), a key that is too long behind other commands
/// (memcached drops their answers as well; newer ones end the answer with two lines).
pub fn text(rng: &mut Rng, index: usize, peers: PeerVersions) -> Stream {
    let mut stream = Stream::new(false);
    let newer = peers.memcached >= MEMCACHED_NEWER;
    if !newer && rng.chance(50) {
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
                let hold = rng.pick(&["", "", "", " 0"]);
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
            17 => stream.push(rng.pick(NONSENSE)),
            18 if newer => stream.push(rng.pick(NEWER_NONSENSE)),
            _ if newer => {
                let (key, noreply) = ("q".repeat(251), noreply(rng));
                stream.push(format!("set {key} 0 0 4{noreply}\r\nmn\r\n\r\n"));
            }
            _ => {}
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

/// Lines of meta commands that cannot be meant, or not quite, and those of one key in base64.
const META_LINES: &[&str] = &[
    "mg meta1 v v",
    "mg meta1 Tx",
    "mg meta1 Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ms meta1",
    "ms meta1 x",
    "ms meta1 -1",
    "mx a",
    "me",
    "me absent",
    "mg bWV0YWI= b k v",
    "mg bWV0YWI= T1000 b k t",
    "mg metab k v s",
    "md metab I",
    "mg a=b b",
    "gets meta0 meta1 meta2 meta3",
    "gets meta4 meta5 meta6 meta7",
];

/// Such lines for newer servers, with values that look like commands.
const NEWER_META_LINES: &[&str] = &[
    "mn",
    "mg",
    "mg meta1 !",
    "mg meta1 {",
    "mg meta1 0",
    "mg meta1 -",
    "mg meta1 T+1",
    "mg meta1 T2147483648",
    "mg meta1 Mlong",
    "md",
    "md meta1 x x",
    "md meta1 Fx",
    "md meta1 Fx Tx",
    "md meta1 y",
    "ma",
    "ma meta1 =",
    "ma metanum1 MDecrement",
    "ma metanum1 D+1",
    "ma metanum1 Mx Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ms meta1 +1",
    "ms meta1 4 !\r\nmn",
    "ms meta1 4 F4294967296\r\nmn\r\n\r\n",
    "ms meta1 4 C+1\r\nmn\r\n\r\n",
    "ms meta1 4 M\r\nmn\r\n\r\n",
    "ms meta1 4 MSet\r\nmn\r\n\r\n",
    "ms meta1 4 Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nmn\r\n\r\n",
    "mg meta1 Oa b c d e f g h i j k l m n o p q r s t u v w x y z",
    "ma meta1 Oa b c d e f g h i j k l m n o p q r s t u v w x y z",
];

/// The first version of memcached that has all of the flags that are offered.
pub const MEMCACHED_NEWER: u32 = 10_645;

/// memcached's meta commands. Left out: `l` and `h` (memcached's own times of use), `ma` with a
/// time and a number that may get longer (memcached copies it into a new item then, and gives the
/// time to the old one: 7, `ma n T1000 D5`, then `ma n t` tells -1), and with both `q` and `N`
/// (Debian's is not quiet if it made the item); of newer ones `ms` with `I` and a version: whether
/// that is older than the item's depends on the server where clients have given versions (`E`).
pub fn meta(rng: &mut Rng, index: usize, peers: PeerVersions) -> Stream {
    let mut stream = Stream::new(false);
    let newer = peers.memcached >= MEMCACHED_NEWER;
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
                if newer && rng.chance(6) {
                    stream.push(" C");
                    stream.push_cas(&key, rng, false);
                }
            }
            4..=6 => {
                let number = format!("metanum{}", rng.below(4));
                let key = if rng.chance(3) { &number } else { &key };
                meta_set(&mut stream, rng, key, newer);
                continue;
            }
            7 | 8 => {
                stream.push(format!("md {key}"));
                // Older ones have other words for a flag that comes twice.
                let mut flags = vec!["q", "I", "T1000", "Oxyz", "k", "C0"];
                for _ in 0..rng.below(4) {
                    let at = rng.below(flags.len());
                    stream.push(format!(" {}", flags[at]));
                    if !newer {
                        flags.remove(at);
                    }
                }
                if newer && rng.chance(3) {
                    stream.push(rng.pick(&[" x", " x I", " E5000000000", " I E5000000001", " Ex"]));
                }
                if rng.chance(4) && (newer || flags.contains(&"C0")) {
                    stream.push(" C");
                    stream.push_cas(&key, rng, false);
                }
            }
            9 | 10 => meta_count(&mut stream, rng),
            _ if newer && rng.chance(2) => {
                let long = "q".repeat(251);
                stream
                    .push(rng.pick(NEWER_META_LINES).replace("meta1", rng.pick(&["meta1", &long])));
            }
            _ => stream.push(rng.pick(META_LINES)),
        }
        stream.push(line_end(rng));
    }
    finish_text(&mut stream, index);
    stream
}

fn meta_count(stream: &mut Stream, rng: &mut Rng) {
    stream.push(format!("ma metanum{}", rng.below(4)));
    let quiet_or_made = rng.pick(&["q", "N1000", "N0"]);
    let flags = [
        ["v", "t", "k", quiet_or_made],
        ["Oabc", "T1000 D0", quiet_or_made, "J13"],
        ["D5", "MI", "MD", "M+"],
        ["M-", "Mx", "Dx", "c"],
    ];
    for _ in 0..rng.below(6) {
        stream.push(format!(" {}", rng.pick(flags.as_flattened())));
    }
}

fn meta_set(stream: &mut Stream, rng: &mut Rng, key: &str, newer: bool) {
    let value = value(rng);
    let binary = rng.chance(8);
    let key = match binary {
        true => "bWV0YWI=",
        false if rng.chance(10) => "metab",
        false => key,
    };
    stream.push(format!("ms {key} {}", value.len()));
    if binary {
        stream.push(" b");
    }
    let mut is_stale = false;
    for _ in 0..rng.below(5) {
        let flag = rng.pick(&[
            "c", "F7", "I", "k", "Oabc", "q", "T0", "T1000", "ME", "MA", "MP", "MR", "MS", "Mx",
            "Tx", "C0", "Fx",
        ]);
        // What is appended to it makes memcached forget how its key was sent.
        let flag = if binary && matches!(flag, "MA" | "MP") { "MS" } else { flag };
        is_stale |= flag == "I";
        stream.push(format!(" {flag}"));
    }
    if rng.chance(4) && !(newer && is_stale) {
        stream.push(" C");
        stream.push_cas(key, rng, false);
    }
    if newer && rng.chance(4) {
        stream.push(rng.pick(&[" E5000000002", " E5000000003", " s", " s c", " Ex"]));
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
pub fn binary(rng: &mut Rng, index: usize, _: PeerVersions) -> Stream {
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
