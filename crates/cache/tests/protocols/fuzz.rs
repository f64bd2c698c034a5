//! Every parser with what clients say and worse: streams of commands with bytes that are changed,
//! cut, repeated and mixed, in pieces of any length, executed on a cache. Nothing panics, what is
//! asked for stays bounded, and the cache is whole at the end.

use crate::parser_fuzz::PARSERS;
use crate::peers::Rng;
use crate::resp_streams;
use crate::streams::{self, MakeStream, Part, PeerVersions, Stream};
use rackpool_cache::constants::{INPUT_BYTES_MAX, OUTPUT_SOFT_BYTES};
use rackpool_cache::front::{ClientInfo, Core, Protocol, Session, Settings, Shared};
use rackpool_cache::herd::message::{Head, MessageKind};
use rackpool_cache::herd::{
    ClientSlots, Engine, Geometry, HerdCounter, SlotFormat, ThreadCounters,
};
use rackpool_cache::{Cache, Error, Options};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::sync::Arc;

/// Inputs for each protocol in an ordinary run.
const INPUTS: u64 = 40_000;
/// Inputs for each parser behind the protocols in an ordinary run.
const PARSED: u64 = 5_000;
/// Streams that inputs are made of.
const SEEDS: usize = 4000;
/// Longest value: answers are no longer than this beyond their bound.
const VALUE_BYTES_MAX: u64 = 256 << 10;
/// All commands.
pub const NEWEST: PeerVersions = PeerVersions { redis: u32::MAX, memcached: u32::MAX };
/// Words that have a meaning somewhere.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"$-1\r\n",
    b"*0\r\n",
    b"*-1\r\n",
    b"$0\r\n\r\n",
    b"*1048576\r\n",
    b"$536870912\r\n",
    b"18446744073709551615",
    b"-9223372036854775808",
    b"4294967296",
    b"noreply",
    b"get ",
    b"set a 0 0 70000\r\n",
    b"mg a s v f t k O1 q\r\n",
    b"ms a 100000\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n",
    b"\x80\x01\0\x03\x08\0\0\0",
    b"HELLO 3\r\n",
    b"quit\r\n",
    b"cas a 0 0 1 1\r\n",
    b"md a x I E5 ",
    b"watch fetchers mutations\r\n",
    b"lru_crawler metadump all\r\n",
    b"lru_crawler mgdump hash\r\n",
    b"stats sizes\r\n",
    b"stats detail on\r\n",
    b"cache_memlimit 9\r\n",
    SAID_BY_TEXT,
    SAID_BY_RESP,
];
/// The password, as text clients and those of RESP say it.
const SAID_BY_TEXT: &[u8] = b"set x 0 0 10\r\nann secret\r\n";
const SAID_BY_RESP: &[u8] = b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n";

pub fn run(inputs: Option<u64>, seed: u64, only: Option<u64>) {
    let is_long = inputs.is_some();
    let inputs = inputs.unwrap_or(INPUTS);
    let doors: [(&str, Protocol, MakeStream); 4] = [
        ("text", Protocol::Memcached, streams::text),
        ("meta", Protocol::Memcached, streams::meta),
        ("binary", Protocol::Memcached, streams::binary),
        ("RESP", Protocol::Resp, resp_streams::resp),
    ];
    for (place, (name, door, make)) in doors.into_iter().enumerate() {
        if only.is_some_and(|only| only != place as u64) {
            continue;
        }
        let bytes = fuzz(inputs, seed, door, make);
        println!("fuzz: {inputs} inputs of {bytes} bytes to {name} (seed {seed}): no panic");
    }
    if only.is_none_or(|only| only == doors.len() as u64) {
        let served = fuzz_slots(inputs, seed);
        println!("fuzz: {inputs} contents of slots (seed {seed}): {served} requests, no panic");
    }
    for (place, (name, fuzz)) in PARSERS.into_iter().enumerate() {
        if only.is_none_or(|only| only == (doors.len() + 1 + place) as u64) {
            let inputs = if is_long { inputs } else { PARSED };
            fuzz(inputs, seed);
            println!("fuzz: {inputs} inputs of {name} (seed {seed}): no panic");
        }
    }
}

/// Slots with random contents, and with requests of which some bytes were changed: the engine takes
/// what is a request, refuses what is none, and goes on. How many were requests.
fn fuzz_slots(inputs: u64, seed: u64) -> u64 {
    let mut rng = Rng(seed | 1);
    let cache = Cache::new(Options { memory: 16 << 20, ..Options::default() }).unwrap();
    let geometry = Geometry { servers: 1, clients: 1, windows: 4, value_bytes: 1000 };
    let requests = Window::heap(geometry.bytes());
    let (replies, apart) = (requests.clone(), Window::heap(geometry.apart_bytes()));
    let tally = ThreadCounters::default();
    let mut engine = Engine::new(cache.clone(), SlotFormat::Ordered, geometry, 1);
    for number in 0..inputs {
        if number % 500 == 0 {
            let form = if rng.chance(2) { SlotFormat::Ordered } else { SlotFormat::Sealed };
            engine = Engine::new(cache.clone(), form, geometry, 1);
        }
        // Numbers begin anew: what was random may have been the last of all.
        if number % 20 == 0 {
            let slots = ClientSlots::new(requests.clone(), replies.clone());
            engine.enter(0, ClientSlots { apart: Some(apart.clone()), ..slots });
        }
        let form = if rng.chance(2) { SlotFormat::Ordered } else { SlotFormat::Sealed };
        let at = geometry.offset(0, 0, rng.next());
        write_slot(&mut rng, form, &requests, at, &geometry);
        let found = engine.gather(0, &tally);
        let mut replied = 0;
        engine.run(number, &tally, &mut |_| replied += 1);
        assert!(replied <= found && engine.gathered() == 0);
        if number % 50_000 == 0 {
            check_cache(&cache, number);
        }
    }
    check_cache(&cache, inputs);
    [HerdCounter::Gets, HerdCounter::Puts, HerdCounter::Deletes]
        .iter()
        .map(|what| tally.get(*what))
        .sum()
}

/// Writes a request into a slot, then changes some of its bytes; or writes anything.
fn write_slot(rng: &mut Rng, form: SlotFormat, to: &Window, at: u64, geometry: &Geometry) {
    let (key_bytes, value_bytes) = (rng.below(256) as u8, rng.below(1001) as u16);
    let kinds = [
        MessageKind::Get,
        MessageKind::Put,
        MessageKind::Delete,
        MessageKind::PutPart,
        MessageKind::GetPart,
        MessageKind::Found,
    ];
    let kind = kinds[rng.below(kinds.len())];
    let is_part = matches!(kind, MessageKind::PutPart | MessageKind::GetPart);
    let value_bytes = match kind {
        MessageKind::Put | MessageKind::PutPart => value_bytes,
        MessageKind::GetPart => 24,
        _ if rng.chance(4) => value_bytes,
        _ => 0,
    };
    let head = Head::new(rng.next() >> rng.below(64), kind).with_lengths(key_bytes, value_bytes);
    let mut message = head.bytes().to_vec();
    message.resize(message.len() + usize::from(key_bytes), 0x6b);
    if is_part {
        // Values with the same few numbers, so that parts of one meet.
        let words = [rng.below(4), 20 * rng.below(4), [20, 40, 5000][rng.below(3)]];
        message.extend(words.iter().flat_map(|word| (*word as u64).to_le_bytes()));
    }
    let bytes = message.len().max(24 + usize::from(key_bytes) + usize::from(value_bytes));
    message.resize(bytes, 0x6b);
    if message.len() <= geometry.message_bytes() {
        form.publish(to, at, geometry, &message);
    }
    for _ in 0..rng.below(4) {
        // The first and the last words decide most.
        let words = (geometry.slot_bytes() / 8) as usize;
        let word = match rng.below(3) {
            0 => rng.below(4),
            1 => words - 1,
            _ => rng.below(words),
        };
        let place = at + 8 * word as u64;
        let changed = match rng.below(3) {
            0 => to.load(place) ^ (1 << rng.below(64)),
            1 => rng.next(),
            _ => rng.next() >> rng.below(64),
        };
        to.store(place, changed);
    }
}

/// What a client would have said.
fn seeds(rng: &mut Rng, make: MakeStream) -> Vec<Vec<u8>> {
    let bytes = |stream: Stream| {
        let mut bytes = Vec::new();
        for part in &stream.parts {
            match part {
                Part::Bytes(part) => bytes.extend_from_slice(part),
                Part::Cas { binary: true, .. } => {
                    bytes.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 7])
                }
                Part::Cas { .. } => bytes.extend_from_slice(b"7"),
            }
        }
        bytes.truncate(4000);
        bytes
    };
    (0..SEEDS)
        .map(|index| bytes(make(rng, index, NEWEST)))
        .filter(|seed| !seed.is_empty())
        .collect()
}

fn fuzz(inputs: u64, seed: u64, door: Protocol, make: MakeStream) -> u64 {
    let mut rng = Rng(seed | 1);
    let seeds = seeds(&mut rng, make);
    let options = Options { memory: 16 << 20, max_value: VALUE_BYTES_MAX, ..Options::default() };
    let settings = Settings { value_bytes_max: VALUE_BYTES_MAX, ..Settings::default() };
    let guarded = Settings {
        users: vec![("ann".into(), "secret".into())],
        password: Some("secret".into()),
        ..settings.clone()
    };
    let cache = Cache::new(options).unwrap();
    let shared = Arc::new(Shared::new(cache.clone(), settings, (0, 1)));
    let mut core = Core::new(Arc::clone(&shared), 0, 1_000_000);
    // The same cache, behind passwords.
    let guarded = Arc::new(Shared::new(cache, guarded, (0, 1)));
    let mut guarded = Core::new(guarded, 0, 1_000_000);
    let said = if door == Protocol::Resp { SAID_BY_RESP } else { SAID_BY_TEXT };
    let mut let_in = 0;
    let (mut input, mut bytes) = (Vec::new(), 0);
    for number in 0..inputs {
        core.now += 1;
        shared.flush_if_due(core.now);
        change(&mut rng, &seeds, &mut input);
        bytes += input.len() as u64;
        if number % 4 == 0 {
            // Half of these clients say the password first, or what became of it.
            if number % 8 == 0 {
                input.splice(0..0, said.iter().copied());
                let at = rng.below(input.len());
                if rng.chance(2) {
                    input[at] = rng.next() as u8;
                }
            }
            guarded.now = core.now;
            let_in += u64::from(converse(&mut rng, &mut guarded, door, &input, false));
        } else {
            converse(&mut rng, &mut core, door, &input, true);
        }
        if number % 50_000 == 0 {
            check_cache(&shared.cache, core.now);
        }
    }
    check_cache(&shared.cache, core.now);
    // Some come in, and some do not.
    assert!(inputs < 1000 || (inputs / 20..inputs / 5).contains(&let_in), "{let_in} were let in");
    bytes
}

/// Makes an input of the seeds.
fn change(rng: &mut Rng, seeds: &[Vec<u8>], input: &mut Vec<u8>) {
    input.clear();
    let piece = |rng: &mut Rng| {
        let seed = &seeds[rng.below(seeds.len())];
        let from = if rng.chance(2) { 0 } else { rng.below(seed.len()) };
        &seed[from..from + rng.below(seed.len() - from) + 1]
    };
    input.extend_from_slice(piece(rng));
    for _ in 0..rng.below(6) {
        let at = rng.below(input.len() + 1);
        match rng.below(7) {
            0 if at < input.len() => input[at] ^= 1 << rng.below(8),
            1 if at < input.len() => input[at] = rng.next() as u8,
            2 => {
                let end = (at + rng.below(20)).min(input.len());
                input.drain(at..end);
            }
            3 => drop(input.splice(at..at, WORDS[rng.below(WORDS.len())].iter().copied())),
            4 => {
                let other = piece(rng);
                drop(input.splice(at..at, other.iter().copied()));
            }
            5 => {
                let end = (at + rng.below(60)).min(input.len());
                input.extend_from_within(at..end);
            }
            _ => input.truncate(at),
        }
    }
}

/// Gives the input to a conversation as a socket would, piece by piece; whether the client is one
/// that is let in at its end.
fn converse(rng: &mut Rng, core: &mut Core, door: Protocol, input: &[u8], known: bool) -> bool {
    let client = ClientInfo { known, ..ClientInfo::default() };
    let mut session = Session::new(door, client);
    let (mut from, mut end) = (0, 0);
    while end < input.len() && !session.is_closing() {
        end = if rng.chance(3) { input.len() } else { (end + 1 + rng.below(200)).min(input.len()) };
        if session.need() > end - from && end < input.len() {
            continue;
        }
        loop {
            let used = session.feed(core, &input[from..end]);
            assert!(used <= end - from, "{used} bytes of {} were understood", end - from);
            from += used;
            let bound = 2 * OUTPUT_SOFT_BYTES + VALUE_BYTES_MAX;
            assert!(core.out.len() <= bound, "{} bytes of answers", core.out.len());
            // More to do once answers were sent.
            let stopped = core.out.len() >= OUTPUT_SOFT_BYTES;
            core.out.clear();
            if !stopped || used == 0 {
                break;
            }
        }
        if session.need() > INPUT_BYTES_MAX {
            break;
        }
    }
    session.client.known
}

/// Whether the cache finds each item that it has.
pub fn check_cache(cache: &Cache, now: u64) {
    let (mut keys, mut cursor) = (Vec::new(), 0);
    loop {
        cursor = cache.scan(cursor, 1000, now, |item| {
            keys.push(item.key());
        });
        if cursor == 0 {
            break;
        }
    }
    for key in keys {
        let found = cache.get(&key, now, |item| {
            let mut value = Vec::new();
            match item.append_to(&mut value) {
                Ok(_) => value.len() as u64 == item.len(),
                // A hash has no value to be read so.
                Err(error) => matches!(error, Error::WrongType),
            }
        });
        assert!(found == Some(true), "{key:?} is in the index and is not found");
    }
}
