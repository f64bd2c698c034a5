//! Parsers behind those of the protocols: words of commands with their options, dumps, packed
//! hashes, and what scripts decode. Bytes are changed where they are looked at: behind the lengths
//! of words, and below checksums, which are made anew.

use crate::fuzz::{self, NEWEST};
use crate::peers::{Rng, words};
use crate::resp_streams::resp_words;
use rackpool_cache::clock::Times;
use rackpool_cache::front::values::dump::{HashField, Restored, dump_hash, dump_string, restore};
use rackpool_cache::front::{ClientInfo, Core, Protocol, Session, Settings, Shared};
use rackpool_cache::hashes::{FieldExpiry, FieldName, Packed, PackedHash, PackedLimits, Text};
use rackpool_cache::{Cache, Options};
use std::sync::Arc;

/// What is parsed, and its fuzzer.
type Fuzzed = (&'static str, fn(u64, u64));

pub const PARSERS: [Fuzzed; 4] = [
    ("words of commands", change_words),
    ("dumps", change_dumps),
    ("packed hashes", change_packed),
    ("what scripts decode", change_decoded),
];

/// Options of all commands, and numbers at the ends of their ranges.
const OPTIONS: &str = "\
    nx xx gt lt ex px exat pxat keepttl persist get set incrby overflow wrap sat fail u8 i64 u63 \
    u64 i0 #1 #-1 fields fnx fxx 0 1 2 -1 9223372036854775807 -9223372036854775808 \
    9223372036854775808 18446744073709551616 4294967296 1e308 inf nan 0x1p3 match count type \
    withvalues novalues replace absttl idletime freq db len idx minmatchlen withmatchlen ifeq ifne \
    ifdeq bit byte [ * r1 f1 and not diff1 ";

/// A client of a cache of its own.
struct Client {
    core: Core,
    session: Session,
}

impl Client {
    fn new() -> Self {
        let options = Options { memory: 16 << 20, max_value: 1 << 20, ..Options::default() };
        let settings = Settings { value_bytes_max: 1 << 20, ..Settings::default() };
        let cache = Cache::new(options).unwrap();
        let core = Core::new(Arc::new(Shared::new(cache, settings, (0, 1))), 0, 1_000_000);
        Self { core, session: session() }
    }

    /// What is answered to a command.
    fn say(&mut self, command: &[&[u8]]) -> Vec<u8> {
        let bytes = words(command);
        let mut from = 0;
        let mut said = Vec::new();
        loop {
            let used = self.session.feed(&mut self.core, &bytes[from..]);
            from += used;
            let piece = std::mem::take(&mut self.core.out.bytes);
            self.core.out.clear();
            if piece.is_empty() && used == 0 || said.len() > 1 << 16 {
                break;
            }
            said.extend_from_slice(&piece);
        }
        if from < bytes.len() || self.session.is_closing() {
            self.session = session();
        }
        self.core.now += 1;
        said
    }
}

fn session() -> Session {
    Session::new(Protocol::Resp, ClientInfo { known: true, ..ClientInfo::default() })
}

/// Changes some bytes.
fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            1 if at < bytes.len() => bytes[at] = rng.next() as u8,
            2 => bytes.insert(at, rng.next() as u8),
            3 => drop(bytes.drain(at..(at + rng.below(9)).min(bytes.len()))),
            _ => bytes.extend_from_within(at..(at + rng.below(20)).min(bytes.len())),
        }
    }
}

/// Commands with words that lack, come twice, or are others.
fn change_words(inputs: u64, seed: u64) {
    let (mut rng, mut client) = (Rng(seed), Client::new());
    let options: Vec<&str> = OPTIONS.split(' ').collect();
    for number in 0..inputs {
        let mut command = resp_words(&mut rng, NEWEST);
        for _ in 0..1 + rng.below(3) {
            let at = 1 + rng.below(command.len());
            let word = rng.pick(&options).as_bytes().to_vec();
            match rng.below(4) {
                0 if at < command.len() => drop(command.remove(at)),
                1 if at < command.len() => change(&mut rng, &mut command[at]),
                2 if at < command.len() => command[at] = word,
                _ => command.insert(at, word),
            }
        }
        let borrowed: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        client.say(&borrowed);
        if number % 50_000 == 0 {
            fuzz::check_cache(&client.core.shared.cache, client.core.now);
        }
    }
}

/// CRC-64 as dumps end with it, by a table.
struct Checksum([u64; 256]);

impl Checksum {
    fn new() -> Self {
        let step = |sum: u64| (sum >> 1) ^ if sum & 1 == 1 { 0x95ac_9329_ac4b_c9b5 } else { 0 };
        Self(std::array::from_fn(|byte| (0..8).fold(byte as u64, |sum, _| step(sum))))
    }

    fn of(&self, bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |sum, byte| self.0[(sum as u8 ^ byte) as usize] ^ (sum >> 8))
    }
}

fn text(rng: &mut Rng) -> Vec<u8> {
    match rng.below(4) {
        0 => rng.next().to_string().into_bytes(),
        1 => vec![b'z'; rng.below(120)],
        2 => (rng.next() as i8).to_string().into_bytes(),
        _ => (0..rng.below(20)).map(|_| rng.next() as u8).collect(),
    }
}

fn fields(rng: &mut Rng) -> Vec<HashField<Vec<u8>>> {
    let is_mortal = rng.chance(2);
    let some = 1 + rng.below(12);
    let field = |index: usize, rng: &mut Rng| {
        let expires_ms = (is_mortal && rng.chance(2)).then(|| 1 + (rng.next() >> 17));
        let name = [format!("{index}").as_bytes(), &text(rng)].concat();
        HashField { name, value: text(rng), expires_ms }
    };
    (0..some).map(|index| field(index, rng)).collect()
}

/// Dumps with changed bytes and a right checksum. What is read is dumped and read as the same.
fn change_dumps(inputs: u64, seed: u64) {
    let (mut rng, mut client, checksum) = (Rng(seed), Client::new(), Checksum::new());
    let sample = dump_string(b"a text");
    let (body, sum) = sample.split_at(sample.len() - 8);
    assert_eq!(checksum.of(body).to_le_bytes(), sum);
    let sorted = |mut fields: Vec<HashField<Vec<u8>>>| {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        fields
    };
    let mut read = 0;
    for number in 0..inputs {
        let mut dump =
            if rng.chance(4) { dump_string(&text(&mut rng)) } else { dump_hash(&fields(&mut rng)) };
        dump.truncate(dump.len() - 10);
        let version = [10u16, 10, 12, 9, 80][rng.below(5)];
        if rng.chance(8) {
            dump[0] = [0, 4, 13, 16, 24, 25][rng.below(6)];
        }
        change(&mut rng, &mut dump);
        dump.extend_from_slice(&version.to_le_bytes());
        let sum = checksum.of(&dump);
        dump.extend_from_slice(&sum.to_le_bytes());
        match restore(&dump, 1 << 20) {
            Ok(Restored::String(text)) => {
                read += 1;
                assert_eq!(restore(&dump_string(&text), 1 << 20), Ok(Restored::String(text)));
            }
            Ok(Restored::Hash(fields)) => {
                read += 1;
                let Ok(Restored::Hash(again)) = restore(&dump_hash(&fields), 1 << 20) else {
                    panic!("input {number}: {fields:?} is not read again");
                };
                assert_eq!(sorted(again), sorted(fields), "input {number}");
            }
            Err(_) => {}
        }
        if number % 16 == 0 {
            client.say(&[b"RESTORE", b"k", b"0", &dump, b"REPLACE"]);
            client.say(&[b"HGETALL", b"k"]);
            client.say(&[b"DUMP", b"k"]);
        }
    }
    assert!(inputs < 100 || read > inputs / 10, "{read} were read");
    fuzz::check_cache(&client.core.shared.cache, client.core.now);
}

/// Packed hashes with changed bytes are read, or found to be damaged, and edited.
fn change_packed(inputs: u64, seed: u64) {
    let mut rng = Rng(seed);
    let times = Times { now: 1000, wall: 2_000_000 };
    let mut damaged = 0;
    for _ in 0..inputs {
        let mut made = PackedHash::new();
        for field in fields(&mut rng) {
            let name = FieldName::new(&field.name, 7);
            let expiry = FieldExpiry::Set(field.expires_ms.unwrap_or(0));
            made.set(&name, Text::Bytes(&field.value), expiry, PackedLimits::SMALL);
        }
        let mut kept = made.kept().to_vec();
        change(&mut rng, &mut kept);
        let Ok(packed) = Packed::new(&kept) else {
            damaged += 1;
            continue;
        };
        let count = packed.fields().take(1 << 16).filter(Result::is_ok).count();
        assert!(count <= packed.count());
        let name = FieldName::new(b"0", 7);
        let _ = (packed.get(&name, times), packed.live_count(times));
        if let Ok(mut hash) = PackedHash::open(kept, times) {
            hash.set(&name, Text::Bytes(b"value"), FieldExpiry::Set(0), PackedLimits::SMALL);
            hash.remove(&name);
        }
    }
    println!("fuzz: {damaged} packed hashes were too short");
}

/// What is decoded, with the script that does it.
const DECODERS: [&str; 5] = [
    "return {cmsgpack.unpack(ARGV[1])}",
    "return {cmsgpack.unpack_limit(ARGV[1], 3, 1)}",
    "return cjson.encode(cjson.decode(ARGV[1]))",
    "return {struct.unpack(ARGV[2], ARGV[1])}",
    "return {struct.pack(ARGV[2], 1, 2, ARGV[1]), struct.size(ARGV[2])}",
];

fn change_decoded(inputs: u64, seed: u64) {
    let (mut rng, mut client) = (Rng(seed), Client::new());
    let packed: &[u8] =
        b"\x96\x01\xa1a\x83\xa1b\xcb@\x09!\xfbTD-\x18\xa1c\xc0\xa1d\x93\xcd\x01\0\xd9\x03abc\
        \xdc\0\x01\xff\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc3\xde\0\x01\x01\x02";
    let json: &[u8] = br#"{"a":[1,-2.5e3,true,null,"\u00e9\ud83d\ude00\n"],"b":{"c":[[],{}]}}"#;
    for _ in 0..inputs {
        let which = rng.below(DECODERS.len());
        let mut input = if which == 2 { json.to_vec() } else { packed.to_vec() };
        change(&mut rng, &mut input);
        let mut format = b">I2bs!4hi8dc0c3xLx".to_vec();
        change(&mut rng, &mut format);
        client.say(&[b"EVAL", DECODERS[which].as_bytes(), b"0", &input, &format]);
    }
}
