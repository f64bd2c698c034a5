//! Random streams of commands, split at random bytes, to ours and to Debian's memcached and
//! redis-server: every reply is compared. What may differ is named where it is excused: versions of
//! items (the same relation between them must hold), seconds left (by one), and memcached's finding
//! that a number from 2^63 on is none: it looks for a minus sign also in what lies behind an item.

use crate::peers::{self, Rng, connect, try_read_until};
use crate::resp_streams::resp;
use crate::streams::{self, MakeStream, Part, PeerVersions, Stream};
use rackpool_cache::front::Settings;
use std::collections::HashMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

/// Streams of an ordinary run.
const STREAMS: usize = 60_000;

/// Streams of a thousand, at most, in which memcached may take a number for none.
const EXCUSED_OF_1000: usize = 1;

pub fn run(count: Option<u64>, seed: u64, only: Option<u64>) {
    let count = count.map_or(STREAMS, |count| count as usize);
    let (Some(memcached), Some(redis)) = (peers::memcached(1), peers::redis()) else { return };
    let versions = PeerVersions {
        memcached: version(memcached.addr, "version\r\n", "VERSION "),
        redis: version(redis.addr, "INFO server\r\n", "redis_version:"),
    };
    println!(
        "differential: {count} streams, seed {seed}, beside memcached {} and Redis {}",
        versions.memcached, versions.redis
    );
    use_old_versions_up(memcached.addr);
    let settings = Settings { value_bytes_max: 1 << 20, ..Settings::default() };
    let server = peers::ours(settings);
    let (our_memcached, our_resp) = server.addrs();
    let doors = [
        (streams::text as MakeStream, our_memcached.unwrap(), memcached.addr),
        (streams::meta, our_memcached.unwrap(), memcached.addr),
        (streams::binary, our_memcached.unwrap(), memcached.addr),
        (resp, our_resp.unwrap(), redis.addr),
    ];
    let (mut commands, mut excused) = (0, 0);
    for (place, (make, ours, theirs)) in doors.into_iter().enumerate() {
        if only.is_some_and(|only| only != place as u64) {
            continue;
        }
        // Redis knows nothing of what memcached's protocols stored.
        if theirs == redis.addr {
            server.shared().cache.clear(0);
        }
        let numbers = (theirs == memcached.addr).then(|| connect(theirs));
        let mut pair = Pair::new(ours, theirs, numbers);
        for index in 0..count / doors.len() {
            let seed = seed.wrapping_mul(1_000_003) + (place * count + index) as u64;
            let mut rng = Rng(seed);
            let stream = make(&mut rng, index, versions);
            commands += stream.commands;
            if let Err(difference) = pair.run(&stream, &mut rng) {
                panic!("door {place}, stream {index}, seed {seed}: {difference}");
            }
        }
        excused += pair.excused;
    }
    println!("differential: {count} streams, {commands} commands, no difference");
    println!("differential: memcached took a number from 2^63 on for none in {excused} streams");
    assert!(excused <= count * EXCUSED_OF_1000 / 1000 + 1, "that is more than its defect makes");
}

const HELLO_3: (&[u8], &[u8]) = (b"hello 3\r\n", b"modules\r\n*0\r\n");

/// The version that a server tells behind this name, as a number.
fn version(addr: SocketAddr, asked: &str, name: &str) -> u32 {
    let mut stream = connect(addr);
    stream.write_all(asked.as_bytes()).expect("it reads");
    let told = |all: &[u8]| -> Option<u32> {
        let text = String::from_utf8_lossy(all).into_owned();
        let (text, _) = text.split_once(name)?.1.split_once("\r\n")?;
        Some(text.split('.').fold(0, |all, part| 100 * all + part.parse::<u32>().unwrap_or(0)))
    };
    let said = peers::read_until(&mut stream, |all| told(all).is_some());
    told(&said).expect("a version")
}

/// A version that no item has any more: memcached counts from 1 on, and as many were stored before.
const OLD_CAS: u64 = 7;

const NUMBERS: [&str; 12] = [
    "num0", "num1", "num2", "num3", "metanum0", "metanum1", "metanum2", "metanum3", "binnum0",
    "binnum1", "binnum2", "binnum3",
];

/// Numbers that a memcached holds.
fn held_numbers(stream: &mut TcpStream) -> Vec<u8> {
    peers::ask(stream, format!("get {}\r\n", NUMBERS.join(" ")).as_bytes(), b"END\r\n")
}

/// Numbers from 2^63 on in what was said.
fn long_numbers(all: &[u8]) -> Vec<u64> {
    let words = all.split(|letter| !letter.is_ascii_digit());
    // In a binary packet the digit at the end of a key stands before the first one of its value.
    let read = |word| number(word).or_else(|| number(word.get(1..)?));
    words.filter_map(read).filter(|value| value >> 63 == 1).collect()
}

/// Whether memcached said that it took a number for none, or what we and it have said shows that we
/// have counted on from a long one and it has not.
fn took_a_number_for_none(ours: &[u8], theirs: &[u8]) -> bool {
    let refusals =
        |all: &[u8]| String::from_utf8_lossy(all).to_lowercase().matches("non-numeric").count();
    refusals(theirs) > refusals(ours) || long_numbers(theirs) != long_numbers(ours)
}

/// Uses versions up to [`OLD_CAS`] up.
fn use_old_versions_up(memcached: SocketAddr) {
    let mut stream = connect(memcached);
    for _ in 0..=OLD_CAS {
        assert_eq!(peers::ask(&mut stream, b"set old 0 0 1\r\nx\r\n", b"\r\n"), b"STORED\r\n");
    }
    assert_eq!(peers::ask(&mut stream, b"delete old\r\n", b"\r\n"), b"DELETED\r\n");
}

fn forget_numbers(addr: SocketAddr) {
    let mut stream = connect(addr);
    for key in NUMBERS {
        peers::ask(&mut stream, format!("delete {key}\r\n").as_bytes(), b"\r\n");
    }
}

/// One server of a pair, as its client sees it.
struct Side {
    addr: SocketAddr,
    stream: Option<TcpStream>,
    /// Versions of each key, the last and the one before.
    cas: HashMap<Vec<u8>, (u64, u64)>,
    sent: Vec<u8>,
    /// What each connection begins with, and how the answer to it ends.
    first: Option<(&'static [u8], &'static [u8])>,
}

impl Side {
    fn new(addr: SocketAddr) -> Self {
        Self { addr, stream: None, cas: HashMap::new(), sent: Vec::new(), first: None }
    }

    fn note(&mut self, key: &[u8], cas: u64) {
        let (last, before) = self.cas.entry(key.to_vec()).or_insert((cas, cas));
        if *last != cas {
            (*last, *before) = (cas, *last);
        }
    }

    /// The stream with this server's versions in it.
    fn bytes(&self, stream: &Stream) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in &stream.parts {
            match part {
                Part::Bytes(some) => bytes.extend_from_slice(some),
                Part::Cas { key, old, binary } => {
                    let (last, before) = self.cas.get(key).copied().unwrap_or((OLD_CAS, OLD_CAS));
                    let cas = if *old { before } else { last };
                    match binary {
                        true => bytes.extend_from_slice(&cas.to_be_bytes()),
                        false => bytes.extend_from_slice(cas.to_string().as_bytes()),
                    }
                }
            }
        }
        bytes
    }

    /// What the server answers; all that it said, if it then says nothing for too long.
    fn exchange(&mut self, stream: &Stream, splits: &[u64]) -> (Vec<u8>, Option<std::io::Error>) {
        let bytes = self.bytes(stream);
        let socket = self.stream.get_or_insert_with(|| {
            let mut stream = connect(self.addr);
            if let Some((said, end)) = self.first {
                peers::ask(&mut stream, said, end);
            }
            stream
        });
        let mut at: Vec<usize> =
            splits.iter().map(|split| (split % (bytes.len() as u64 + 1)) as usize).collect();
        at.sort_unstable();
        at.push(bytes.len());
        let mut from = 0;
        for to in at {
            // A server that has ended the connection says so when it is read.
            if socket.write_all(&bytes[from..to]).is_err() {
                break;
            }
            from = to;
            if !splits.is_empty() {
                std::thread::yield_now();
            }
        }
        let (said, silence) = try_read_until(socket, |all| all.ends_with(&stream.end));
        if !said.ends_with(&stream.end) || stream.ends_connection {
            self.stream = None;
        }
        self.sent = bytes;
        (said, silence)
    }
}

struct Pair {
    ours: Side,
    theirs: Side,
    /// Versions that stand for each other.
    forth: HashMap<u64, u64>,
    back: HashMap<u64, u64>,
    /// Where numbers of their server are asked for, if that is a memcached.
    numbers: Option<TcpStream>,
    /// Streams that differed because memcached took a number for none.
    excused: usize,
}

impl Pair {
    fn new(ours: SocketAddr, theirs: SocketAddr, numbers: Option<TcpStream>) -> Self {
        let (forth, back) = (HashMap::new(), HashMap::new());
        let (ours, theirs) = (Side::new(ours), Side::new(theirs));
        Self { ours, theirs, forth, back, numbers, excused: 0 }
    }

    fn run(&mut self, stream: &Stream, rng: &mut Rng) -> Result<(), String> {
        let count = rng.below(4);
        let splits: Vec<u64> = (0..count).map(|_| rng.next()).collect();
        // Clients of Redis of both versions.
        let first = (self.numbers.is_none() && rng.chance(3)).then_some(HELLO_3);
        (self.ours.first, self.theirs.first) = (first, first);
        // Before, since what the stream does may leave no trace of it.
        let held = self.numbers.as_mut().map(held_numbers);
        let (ours, our_silence) = self.ours.exchange(stream, &splits);
        let (theirs, their_silence) = self.theirs.exchange(stream, &splits);
        if rng.chance(40) {
            (self.ours.stream, self.theirs.stream) = (None, None);
        }
        let same = match stream.is_binary {
            _ if our_silence.is_some() || their_silence.is_some() => {
                Err(format!("silent: ours {our_silence:?}, theirs {their_silence:?}"))
            }
            true => self.same_packets(stream, &ours, &theirs),
            false => self.same_text(&ours, &theirs),
        };
        let is_long = |all: &[u8]| !long_numbers(all).is_empty();
        if same.is_err()
            && let Some(held) = held
            && took_a_number_for_none(&ours, &theirs)
            && [&held, &self.theirs.sent, &ours, &theirs].into_iter().any(|all| is_long(all))
        {
            self.excused += 1;
            forget_numbers(self.ours.addr);
            forget_numbers(self.theirs.addr);
            return Ok(());
        }
        same.map_err(|why| {
            format!(
                "{why}\nsplits: {splits:?}\nsent:   {}\nours:   {}\ntheirs: {}",
                self.ours.sent.escape_ascii(),
                ours.escape_ascii(),
                theirs.escape_ascii()
            )
        })
    }

    fn stand_for_each_other(&mut self, ours: u64, theirs: u64) -> bool {
        if (ours == 0) != (theirs == 0) {
            return false;
        }
        *self.forth.entry(ours).or_insert(theirs) == theirs
            && *self.back.entry(theirs).or_insert(ours) == ours
    }

    fn same_packets(&mut self, stream: &Stream, ours: &[u8], theirs: &[u8]) -> Result<(), String> {
        let (mut a, mut b) = (ours, theirs);
        while !a.is_empty() || !b.is_empty() {
            let (Some(x), Some(y)) = (packet(&mut a), packet(&mut b)) else {
                return Err("one says more".into());
            };
            let cas = |packet: &[u8]| u64::from_be_bytes(packet[16..24].try_into().unwrap());
            let opaque = u32::from_be_bytes(x[12..16].try_into().unwrap()) as usize;
            if x[..16] != y[..16] || x[24..] != y[24..] {
                return Err(format!("packet {opaque} differs"));
            }
            if !self.stand_for_each_other(cas(x), cas(y)) {
                return Err(format!("packet {opaque}: versions {} and {}", cas(x), cas(y)));
            }
            if let Some(key) = stream.keys.get(opaque).filter(|_| cas(x) != 0) {
                self.ours.note(key, cas(x));
                self.theirs.note(key, cas(y));
            }
        }
        Ok(())
    }

    fn same_text(&mut self, ours: &[u8], theirs: &[u8]) -> Result<(), String> {
        let lines = |all: &[u8]| -> Vec<Vec<u8>> {
            all.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
        };
        let (a, b) = (lines(ours), lines(theirs));
        if a.len() != b.len() {
            return Err(format!("{} and {} lines", a.len(), b.len()));
        }
        for (x, y) in a.iter().zip(&b) {
            if x != y {
                self.same_line(x, y)?;
            }
            self.note_versions(x, y);
        }
        Ok(())
    }

    fn note_versions(&mut self, ours: &[u8], theirs: &[u8]) {
        let version = |line: &[u8]| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let is = words.first() == Some(&&b"VALUE"[..]) && words.len() == 5;
            is.then(|| (words[1].to_vec(), number(words[4]).unwrap_or(0)))
        };
        if let (Some((key, x)), Some((_, y))) = (version(ours), version(theirs)) {
            self.ours.note(&key, x);
            self.theirs.note(&key, y);
        }
    }

    fn same_line(&mut self, ours: &[u8], theirs: &[u8]) -> Result<(), String> {
        let words = |line: &[u8]| -> Vec<Vec<u8>> {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            line.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect()
        };
        let (a, b) = (words(ours), words(theirs));
        let differ =
            || Err(format!("lines differ: {} and {}", ours.escape_ascii(), theirs.escape_ascii()));
        if a.len() != b.len() {
            return differ();
        }
        for (index, (x, y)) in a.iter().zip(&b).enumerate() {
            let value = a[0] == b"VALUE" && index == 4;
            let letter = x.first().filter(|letter| y.first() == Some(*letter));
            let (p, q) = (number(&x[1.min(x.len())..]), number(&y[1.min(y.len())..]));
            let excused = x == y
                || value
                    && matches!((number(x), number(y)), (Some(p), Some(q))
                        if self.stand_for_each_other(p, q))
                || match (letter, p, q) {
                    (Some(b'c'), Some(p), Some(q)) => self.stand_for_each_other(p, q),
                    (Some(b't'), Some(p), Some(q)) => p.abs_diff(q) <= 1,
                    // Answers of `TTL` in seconds, of `PTTL` in milliseconds.
                    (Some(b':'), Some(p), Some(q)) => {
                        p > 100 && p.abs_diff(q) <= if p > 100_000 { 3000 } else { 1 }
                    }
                    _ => false,
                };
            if !excused {
                return differ();
            }
        }
        Ok(())
    }
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn packet<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let body = u32::from_be_bytes(bytes.get(8..12)?.try_into().ok()?) as usize;
    let (packet, rest) = bytes.split_at_checked(24 + body)?;
    *bytes = rest;
    Some(packet)
}
