//! The cache beside a map: whatever it serves is what was stored last, and as long as memory
//! suffices (and always in store mode) it serves everything.

mod flush;

use proptest::prelude::*;
use rackpool_cache::{Cache, Error, FarMemory, Item, Mode, Options, Pinned, Policy, Put, Writer};
use rackpool_mem::window::Piece;
use std::collections::{BTreeMap, HashSet};

const POLICIES: [Policy; 5] = [
    Policy::Fifo,
    Policy::FifoReinsertion { threshold: 1 },
    Policy::Sieve,
    Policy::S3Fifo,
    Policy::TinyLfu,
];

#[derive(Clone, Debug)]
enum Op {
    Set { key: u16, len: u32, ttl: u64, flags: u32 },
    SetWithCas { key: u16, cas: u64 },
    SetMany { keys: Vec<u16>, len: u32 },
    Get { key: u16 },
    GetMany { from: u16 },
    Remove { key: u16 },
    SetExpiry { key: u16, ttl: u64 },
    Mark { key: u16, stale: bool, won: bool },
    Reserve { key: u16, len: u32 },
    Commit,
    Abandon,
    Pin { key: u16 },
    Unpin,
    Wait { ms: u64 },
    Expire,
    Scan { count: usize },
    Clear,
}

fn op(longest: u32, keys: u16) -> impl Strategy<Value = Op> {
    let key = 0..keys;
    let len = prop_oneof![8 => 0_u32..200, 3 => 0_u32..6000, 1 => 0..longest];
    let ttl = prop_oneof![4 => Just(0_u64), 1 => 1_u64..100, 1 => 1_u64..200_000];
    let flags = prop_oneof![3 => Just(0_u32), 1 => any::<u32>(), 1 => 0_u32..65536];
    prop_oneof![
        40 => (key.clone(), len.clone(), ttl.clone(), flags)
            .prop_map(|(key, len, ttl, flags)| Op::Set { key, len, ttl, flags }),
        2 => (key.clone(), 1..u64::MAX).prop_map(|(key, cas)| Op::SetWithCas { key, cas }),
        4 => (prop::collection::vec(key.clone(), 1..90), 0_u32..300)
            .prop_map(|(keys, len)| Op::SetMany { keys, len }),
        20 => key.clone().prop_map(|key| Op::Get { key }),
        4 => key.clone().prop_map(|from| Op::GetMany { from }),
        6 => key.clone().prop_map(|key| Op::Remove { key }),
        4 => (key.clone(), ttl).prop_map(|(key, ttl)| Op::SetExpiry { key, ttl }),
        2 => (key.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(key, stale, won)| Op::Mark { key, stale, won }),
        3 => (key.clone(), len).prop_map(|(key, len)| Op::Reserve { key, len }),
        3 => Just(Op::Commit),
        1 => Just(Op::Abandon),
        2 => key.prop_map(|key| Op::Pin { key }),
        2 => Just(Op::Unpin),
        2 => (1_u64..5000).prop_map(|ms| Op::Wait { ms }),
        1 => Just(Op::Expire),
        1 => (1_usize..50).prop_map(|count| Op::Scan { count }),
        1 => Just(Op::Clear),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Expected {
    value: Vec<u8>,
    flags: u32,
    expires: u64,
    cas: u64,
    marks: (bool, bool),
}

struct Bed {
    cache: Cache,
    model: BTreeMap<u16, Expected>,
    may_lose: bool,
    /// Whether memory may be full though nothing is lost.
    may_refuse: bool,
    writer: Option<(Writer, u16, Vec<u8>)>,
    pinned: Vec<(Pinned, Vec<u8>)>,
    now: u64,
    stamp: u32,
    used_cas: HashSet<(u16, u64)>,
}

fn name(key: u16) -> Vec<u8> {
    let mut name = format!("key:{key}").into_bytes();
    // Some keys are long.
    if key.is_multiple_of(97) {
        name.resize(300 + usize::from(key % 700), b'k');
    }
    name
}

fn bytes_of(pinned: &Pinned) -> Vec<u8> {
    let mut value = Vec::new();
    let is_whole = pinned.pieces(0, |piece| {
        match piece {
            Piece::Shared(window, at, bytes) => window.append_to(at, bytes, &mut value),
            Piece::Private(bytes) => value.extend_from_slice(bytes),
        }
        true
    });
    assert!(is_whole);
    value
}

impl Bed {
    fn new(options: Options, may_lose: bool) -> Bed {
        Bed {
            cache: Cache::new(options).unwrap(),
            model: BTreeMap::new(),
            may_lose,
            may_refuse: false,
            writer: None,
            pinned: Vec::new(),
            now: 1_000_000,
            stamp: 0,
            used_cas: HashSet::new(),
        }
    }

    fn value(&mut self, len: u32) -> Vec<u8> {
        self.stamp += 1;
        let stamp = self.stamp.to_le_bytes();
        (0..len as usize).map(|i| stamp[i % 4] ^ (i / 4) as u8).collect()
    }

    fn expires(&self, ttl: u64) -> u64 {
        if ttl == 0 { 0 } else { self.now + ttl }
    }

    fn fresh(&mut self, key: u16) -> Option<&Expected> {
        let now = self.now;
        let is_over = |item: &Expected| item.expires != 0 && item.expires <= now;
        if self.model.get(&key).is_some_and(is_over) {
            self.model.remove(&key);
        }
        self.model.get(&key)
    }

    fn stored(&mut self, key: u16, result: Result<u64, Error>, expected: Expected) {
        match result {
            Ok(cas) => {
                assert!(cas != 0);
                if expected.cas == 0 {
                    assert!(self.used_cas.insert((key, cas)), "cas {cas} of key {key} again");
                }
                self.model.insert(key, Expected { cas, ..expected });
            }
            Err(Error::Evicted { .. }) => {}
            Err(Error::OutOfMemory { .. }) => {
                // The old value stays, or is gone where items may be lost.
                assert!(self.may_be_full());
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn may_be_full(&self) -> bool {
        self.may_lose || self.may_refuse || !self.pinned.is_empty() || self.writer.is_some()
    }

    /// What a look-up has to answer.
    fn check(&mut self, key: u16, seen: Option<(Vec<u8>, Expected)>) {
        let may_lose = self.may_lose;
        let expected = self.fresh(key).cloned();
        match (seen, expected) {
            (None, None) => {}
            (Some((name_seen, item)), Some(expected)) => {
                assert_eq!(name_seen, name(key));
                assert_eq!(item, expected, "key {key}");
            }
            (Some(_), None) => panic!("key {key} was served and is not there"),
            (None, Some(_)) => {
                assert!(may_lose, "key {key} was lost");
                self.model.remove(&key);
            }
        }
    }

    fn get(&mut self, key: u16) {
        let seen = self.cache.get(&name(key), self.now, seen_of);
        self.check(key, seen);
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Set { key, len, ttl, flags } => {
                let (value, expires) = (self.value(len), self.expires(ttl));
                let name = name(key);
                let mut entry = self.cache.entry(&name, self.now).unwrap();
                let result = entry.put(&[&value], flags, expires);
                entry.keep_cas();
                drop(entry);
                let marks = (false, false);
                self.stored(key, result, Expected { value, flags, expires, cas: 0, marks });
            }
            Op::SetWithCas { key, cas } => {
                let value = self.value(40);
                let name = name(key);
                let mut entry = self.cache.entry(&name, self.now).unwrap();
                let (a, b) = value.split_at(13);
                let result = entry.put_with_cas(&[a, b], 7, 0, cas);
                drop(entry);
                let marks = (false, false);
                self.stored(key, result, Expected { value, flags: 7, expires: 0, cas, marks });
            }
            Op::SetMany { ref keys, len } => self.set_many(keys, len),
            Op::Get { key } => self.get(key),
            Op::GetMany { from } => self.get_many(from),
            Op::Remove { key } => {
                let was_there = self.cache.remove(&name(key), self.now);
                let expected = self.fresh(key).is_some();
                assert!(was_there == expected || (expected && self.may_lose));
                self.model.remove(&key);
            }
            Op::SetExpiry { key, ttl } => self.set_expiry(key, self.expires(ttl)),
            Op::Mark { key, stale, won } => {
                let name = name(key);
                let mut entry = self.cache.entry(&name, self.now).unwrap();
                entry.mark(stale, won);
                let is_there = entry.item().is_some();
                drop(entry);
                if let (true, Some(item)) = (is_there, self.model.get_mut(&key)) {
                    item.marks = (stale, won);
                }
            }
            Op::Scan { count } => self.scan(count),
            Op::Clear if self.stamp.is_multiple_of(3) => {
                self.cache.clear(self.now);
                assert!(self.cache.is_empty());
                self.model.clear();
            }
            Op::Clear if self.stamp.is_multiple_of(2) => {
                // What it leaves to do is done beside what comes, or by the next `Expire`.
                self.cache.flush_all();
                assert!(self.cache.is_empty());
                self.model.clear();
            }
            Op::Clear => {}
            Op::Wait { ms } => self.now += ms,
            Op::Expire => self.cache.expire(self.now),
            ref op => self.run_large(op),
        }
    }

    fn run_large(&mut self, op: &Op) {
        match *op {
            Op::Reserve { key, len } => {
                let value = self.value(len);
                let writer = self.cache.reserve(&name(key), value.len() as u64, 3, 0, self.now);
                if let Ok(mut writer) = writer {
                    writer.write(&value[..value.len() / 3]);
                    self.writer = Some((writer, key, value));
                }
            }
            Op::Commit => {
                let Some((mut writer, key, value)) = self.writer.take() else { return };
                writer.write(&value[value.len() / 3..]);
                let name = name(key);
                let mut entry = self.cache.entry(&name, self.now).unwrap();
                let result = entry.commit(writer);
                entry.keep_cas();
                drop(entry);
                let marks = (false, false);
                let expected = Expected { value, flags: 3, expires: 0, cas: 0, marks };
                self.stored(key, result, expected);
            }
            Op::Abandon => self.writer = None,
            Op::Pin { key } if self.pinned.len() < 2 => {
                let pinned = self.cache.get(&name(key), self.now, |item| item.pin().unwrap());
                if let (Some(pinned), Some(item)) = (pinned, self.fresh(key)) {
                    let value = item.value.clone();
                    self.pinned.push((pinned, value));
                }
            }
            Op::Unpin => {
                if let Some((pinned, value)) = self.pinned.pop() {
                    assert_eq!(bytes_of(&pinned), value, "a pinned value changed");
                }
            }
            _ => {}
        }
    }

    fn get_many(&mut self, from: u16) {
        let names: Vec<Vec<u8>> = (from..from + 70).map(name).collect();
        let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut seen = Vec::new();
        let note = |index, item: Option<&Item<'_>>| seen.push((index, item.map(seen_of)));
        if from.is_multiple_of(2) {
            self.cache.get_many(&keys, self.now, note);
        } else {
            self.cache.get_many_unordered(&keys, self.now, note);
            seen.sort_by_key(|(index, _)| *index);
        }
        assert!(seen.iter().map(|(index, _)| *index).eq(0..keys.len()));
        for (key, (_, seen)) in (from..).zip(seen) {
            self.check(key, seen);
        }
    }

    /// Some keys come twice: the later value stays.
    fn set_many(&mut self, keys: &[u16], len: u32) {
        let names: Vec<Vec<u8>> = keys.iter().copied().map(name).collect();
        let items: Vec<Expected> = (0..keys.len() as u32)
            .map(|index| Expected {
                value: self.value((len + 37 * index) % 300),
                flags: index % 3,
                expires: self.expires(u64::from(index % 4) * 50),
                cas: 0,
                marks: (false, false),
            })
            .collect();
        let put = |index: usize| {
            let Expected { value, flags, expires, .. } = &items[index];
            Put { key: &names[index], value, flags: *flags, expires: *expires }
        };
        let mut results = Vec::new();
        self.cache.set_many(keys.len(), put, self.now, |index, result| {
            assert_eq!(index, results.len(), "in their order");
            results.push(result);
        });
        assert_eq!(results.len(), keys.len());
        for ((key, result), item) in keys.iter().zip(results).zip(items) {
            self.stored(*key, result, item);
        }
        // One that those behind it have moved has another cas.
        for (key, name) in keys.iter().zip(&names) {
            let mut entry = self.cache.entry(name, self.now).unwrap();
            let cas = entry.item().map(|item| item.cas());
            entry.keep_cas();
            if let (Some(cas), Some(item)) = (cas, self.model.get_mut(key)) {
                item.cas = cas;
            }
        }
    }

    fn set_expiry(&mut self, key: u16, expires: u64) {
        let name = name(key);
        let mut entry = self.cache.entry(&name, self.now).unwrap();
        let had = entry.item().is_some();
        let result = entry.set_expiry(expires);
        drop(entry);
        match result {
            Ok(()) if had => {
                if let Some(item) = self.model.get_mut(&key) {
                    item.expires = expires;
                }
            }
            Ok(()) => {}
            Err(_) => assert!(self.may_be_full()),
        }
    }

    fn scan(&mut self, count: usize) {
        let (mut cursor, mut seen) = (0, HashSet::new());
        loop {
            cursor = self.cache.scan(cursor, count, self.now, |item| {
                seen.insert(item.key());
            });
            if cursor == 0 {
                break;
            }
        }
        let keys: Vec<u16> = self.model.keys().copied().collect();
        let mut known = HashSet::new();
        for key in keys {
            if self.fresh(key).is_some() {
                known.insert(name(key));
                assert!(self.may_lose || seen.contains(&name(key)), "the scan missed {key}");
            }
        }
        assert!(seen.is_subset(&known), "the scan met a key that is not there");
    }

    fn finish(&mut self, keys: u16) {
        self.pinned.clear();
        self.writer = None;
        (0..keys).for_each(|key| self.get(key));
        let live = self.cache.len();
        assert!(live as usize == self.model.len(), "{live} items, {}", self.model.len());
    }
}

fn seen_of(item: &Item<'_>) -> (Vec<u8>, Expected) {
    let mut value = Vec::new();
    item.append_to(&mut value).unwrap();
    let meta = item.meta();
    assert_eq!((meta.len, item.flags(), item.expires()), (item.len(), meta.flags, meta.expires));
    let mut part = vec![0; value.len() / 2];
    let from = value.len() as u64 / 4;
    assert_eq!(item.copy_to(from, &mut part).unwrap(), part.len());
    assert_eq!(part, value[from as usize..][..part.len()]);
    let marks = (meta.stale, meta.won);
    (item.key(), Expected { value, flags: meta.flags, expires: meta.expires, cas: meta.cas, marks })
}

fn options(partitions: u32, units: u64) -> Options {
    let memory = u64::from(partitions) * (140 * 1024 + units * 65_700);
    Options { memory, partitions, seed: 42, ..Options::default() }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_store_serves_everything_that_was_stored_last(
        ops in prop::collection::vec(op(60_000, 300), 1..700),
        shared_reads in any::<bool>(),
    ) {
        let options = Options { mode: Mode::Store, shared_reads, ..options(2, 120) };
        let mut bed = Bed::new(options, false);
        ops.iter().for_each(|op| bed.run(op));
        bed.finish(400);
    }

    #[test]
    fn a_full_store_refuses_and_never_loses(
        ops in prop::collection::vec(op(150_000, 1500), 300..1500),
    ) {
        let mut bed = Bed::new(Options { mode: Mode::Store, ..options(1, 30) }, false);
        bed.may_refuse = true;
        ops.iter().for_each(|op| bed.run(op));
        bed.finish(1600);
    }

    #[test]
    fn a_cache_serves_what_was_stored_last_or_nothing(
        ops in prop::collection::vec(op(120_000, 2000), 1..1500),
        policy in 0..POLICIES.len(),
        partitions in 1_u32..4,
        // Of 40 units, a partition makes rounds in steps.
        units in prop_oneof![Just(12), Just(40)],
        keeps_access in any::<bool>(),
        shared_reads in any::<bool>(),
        far_units in prop_oneof![Just(0), Just(9), Just(60)],
    ) {
        let has_far = far_units > 0;
        let policy = if has_far { Policy::TinyLfu } else { POLICIES[policy] };
        let memory = u64::from(partitions) * (far_units << 16);
        let far = has_far.then_some(FarMemory { memory, placement: None, bandwidths: None });
        let options = options(partitions, units);
        let options = Options { policy, keeps_access, shared_reads, far, ..options };
        let mut bed = Bed::new(options, true);
        ops.iter().for_each(|op| bed.run(op));
        bed.finish(2100);
    }

    #[test]
    fn a_lossy_index_serves_what_was_stored_last_or_nothing(
        ops in prop::collection::vec(op(2_000, 20_000), 1..1500),
    ) {
        let mut bed = Bed::new(Options { is_lossy: true, ..options(1, 40) }, true);
        for key in 0..12_000 {
            bed.run(&Op::Set { key, len: 20, ttl: 0, flags: 0 });
        }
        ops.iter().for_each(|op| bed.run(op));
        bed.finish(20_000);
    }
}

#[test]
fn the_index_grows_from_one_unit_and_no_scan_misses_what_stays() {
    let cache = Cache::new(Options { memory: 64 << 20, ..Options::default() }).unwrap();
    let key = |i: u32| i.to_le_bytes();
    for i in 0..2000 {
        cache.set(&key(i), b"stays", 0, 0, 1).unwrap();
    }
    let (mut cursor, mut seen, mut next) = (0, HashSet::new(), 2000);
    loop {
        cursor = cache.scan(cursor, 10, 1, |item| {
            seen.insert(item.key());
        });
        for _ in 0..if next < 40_000 { 100 } else { 0 } {
            cache.set(&key(next), b"new", 0, 0, 1).unwrap();
            next += 1;
        }
        if cursor == 0 {
            break;
        }
    }
    assert!(next > 20_000, "{next} keys");
    assert!((0..2000).all(|i| seen.contains(key(i).as_slice())));
    assert!((0..next).all(|i| cache.get(&key(i), 1, |_| ()).is_some()));
    assert!(cache.stats().index_units > 2);
}

#[test]
fn what_is_out_of_range_is_refused_with_numbers() {
    let text = |options: Options| Cache::new(options).unwrap_err().to_string();
    let base = Options::default;
    assert!(text(Options { memory: 1000, ..base() }).contains("memory is 1000"));
    assert!(text(Options { partitions: 0, ..base() }).contains("1 to 64"));
    assert!(text(Options { partitions: 65, ..base() }).contains("65"));
    assert!(text(Options { max_value: 1 << 30, ..base() }).contains("max_value"));
    let policy = Policy::FifoReinsertion { threshold: 16 };
    assert!(text(Options { policy, ..base() }).contains("threshold"));
    let cache = Cache::new(Options { max_value: 100, ..base() }).unwrap();
    let error = cache.set(&[1; 40_000], b"", 0, 0, 1).unwrap_err();
    assert!(matches!(error, Error::KeySize { bytes: 40_000, max_bytes: 32_766 }), "{error}");
    let error = cache.set(b"k", &[1; 101], 0, 0, 1).unwrap_err();
    assert!(matches!(error, Error::TooLarge { bytes: 101, max_bytes: 100 }), "{error}");
    assert!(cache.get(&[], 1, |_| ()).is_none());
}

#[test]
fn a_full_store_refuses_and_keeps_what_it_has_and_has_room_again_after_removals() {
    let cache = Cache::new(Options { mode: Mode::Store, ..options(1, 30) }).unwrap();
    let value = [7; 1000];
    let mut count = 0_u32;
    let error = loop {
        match cache.set(&count.to_le_bytes(), &value, 0, 0, 1) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::OutOfMemory { .. }) && error.may_retry(), "{error}");
    assert!(count > 1500, "{count} items of 1 KB in 30 units");
    assert!((0..count).all(|i| cache.get(&i.to_le_bytes(), 1, |_| ()).is_some()));
    assert!((0..count).step_by(2).all(|i| cache.remove(&i.to_le_bytes(), 1)));
    for i in 0..count / 3 {
        cache.set(&(1_000_000 + i).to_le_bytes(), &value, 0, 0, 1).unwrap();
    }
    assert!((0..count).all(|i| cache.get(&i.to_le_bytes(), 1, |_| ()).is_some() == (i % 2 == 1)));
}

/// A store of these units that is full of such values, and how many there are.
fn full_store(units: u64, value: &[u8]) -> (Cache, u32) {
    let cache = Cache::new(Options { mode: Mode::Store, ..options(1, units) }).unwrap();
    let count = (0_u32..).find(|i| cache.set(&i.to_le_bytes(), value, 0, 0, 1).is_err());
    (cache, count.expect("it is full some time"))
}

#[test]
fn a_store_loses_nothing_where_items_grow_by_the_cas_that_was_told() {
    let (cache, count) = full_store(30, &[7; 4]);
    for i in 0..count {
        assert!(cache.get(&i.to_le_bytes(), 1, |item| item.cas()).is_some());
    }
    (0..count).step_by(15).for_each(|i| assert!(cache.remove(&i.to_le_bytes(), 1)));
    let mut more = 0;
    while more < count && cache.set(&(count + more).to_le_bytes(), &[7; 4], 0, 0, 1).is_ok() {
        more += 1;
    }
    for i in 0..count + more {
        let is_there = cache.get(&i.to_le_bytes(), 1, |_| ()).is_some();
        assert_eq!(is_there, i >= count || i % 15 != 0, "{i} of {count} and {more}");
    }
    assert_eq!(cache.stats().evictions, 0);
}

#[test]
fn a_full_store_has_room_again_after_removals_whatever_the_length_of_its_values() {
    for len in [300, 5000, 40_000, 70_000, 300_000] {
        let value = vec![7; len];
        let (cache, count) = full_store(80, &value);
        if (5000..=40_000).contains(&len) {
            // A twentieth of a segment is dead: room for as much.
            assert!([0_u32, 1].iter().all(|i| cache.remove(&i.to_le_bytes(), 1)));
            for i in [0_u32, 1] {
                assert!(cache.set(&i.to_le_bytes(), &value, 0, 0, 1).is_ok(), "{len} bytes");
            }
        }
        assert!((0..count).step_by(2).all(|i| cache.remove(&i.to_le_bytes(), 1)));
        for i in 0..count / 3 {
            let put = cache.set(&(count + i).to_le_bytes(), &value, 0, 0, 1);
            assert!(put.is_ok(), "{i} of {count} values of {len} bytes");
        }
        let is_there = |i: u32| cache.get(&i.to_le_bytes(), 1, |_| ()).is_some();
        assert!((0..count).all(|i| is_there(i) == (i % 2 == 1)));
    }
}

#[test]
fn a_value_that_comes_piece_by_piece_takes_its_room_once() {
    let (cache, count) = full_store(80, &[7; 60_000]);
    assert!((0..15).all(|i: u32| cache.remove(&i.to_le_bytes(), 1)));
    let mut writer = cache.reserve(b"long", 600_000, 0, 0, 1).unwrap();
    writer.write(&vec![9; 600_000]);
    writer.commit(&cache, 1).unwrap();
    assert_eq!(cache.get(b"long", 1, |item| item.len()), Some(600_000));
    assert!((15..count).all(|i| cache.get(&i.to_le_bytes(), 1, |_| ()).is_some()));
}

#[test]
fn a_value_whose_pieces_have_expired_is_gone_also_for_who_reads_an_older_clock() {
    let cache = Cache::new(options(1, 40)).unwrap();
    // The head lies in a segment that expires later than the ones with the rest.
    cache.set(b"filler", &[1; 1000], 0, 5000, 1).unwrap();
    cache.set(b"long", &[2; 200_000], 0, 1000, 1).unwrap();
    assert_eq!(cache.get(b"long", 999, |item| item.len()), Some(200_000));
    cache.set(b"other", b"value", 0, 0, 1000).unwrap();
    assert!(cache.get(b"long", 999, |_| ()).is_none());
    assert!(cache.entry(b"long", 999).unwrap().item().is_none());
    assert_eq!(cache.get(b"filler", 999, |item| item.len()), Some(1000));
}

#[test]
fn segments_of_expired_items_come_back_without_a_look_up() {
    let cache = Cache::new(options(1, 300)).unwrap();
    for i in 0..5000_u32 {
        let ttl = if i % 2 == 0 { 30_000 } else { 100_000_000 };
        cache.set(&i.to_le_bytes(), &[1; 1000], 0, 1000 + ttl, 1000).unwrap();
    }
    let free = cache.stats().free_units;
    cache.expire(32_000);
    let stats = cache.stats();
    assert_eq!((stats.items, stats.expired), (2500, 2500));
    assert!(stats.free_units > free + 35, "{} of {free}", stats.free_units);
}

#[test]
fn the_cas_that_was_told_survives_a_move_and_changes_at_each_put() {
    let policy = Policy::FifoReinsertion { threshold: 1 };
    let cache = Cache::new(Options { policy, ..options(1, 12) }).unwrap();
    cache.set(b"told", b"value", 5, 0, 1).unwrap();
    let cas = cache.get(b"told", 1, |item| item.cas()).unwrap();
    let mut moved = 0;
    for i in 0..20_000_u32 {
        cache.set(&i.to_le_bytes(), &[1; 200], 0, 0, 1).unwrap();
        let seen = cache.get(b"told", 1, |item| (item.cas(), item.flags())).unwrap();
        assert_eq!(seen, (cas, 5));
        moved = cache.stats().moved;
    }
    assert!(moved > 3, "{moved} moves");
    assert_ne!(cache.set(b"told", b"value", 5, 0, 1).unwrap(), cas);
}

/// Published: an insertion into a bucket of a lossy index displaces another entry by the Poisson
/// bound, and nothing else is lost.
#[test]
fn a_lossy_index_misses_as_often_as_the_poisson_bound_says() {
    let (slots, units) = (7_f64, 8_f64);
    for load in [3.0, 4.0, 5.0] {
        let buckets = 1024.0 * units;
        let count = (buckets * load) as u64;
        // The index is made for 68 of 100 slots, in whole units.
        let items_expected = (buckets * slots * 0.67) as u64;
        let options = Options { is_lossy: true, items_expected, memory: 32 << 20, ..base() };
        let cache = Cache::new(options).unwrap();
        (0..count).for_each(|key| {
            cache.set(&key.to_le_bytes(), b"value", 0, 0, 1).unwrap();
        });
        let missing = (0..count).filter(|key| cache.get(&key.to_le_bytes(), 1, |_| ()).is_none());
        let share = missing.count() as f64 / count as f64;
        // Expected entries beyond seven in a bucket, a bucket's entries being Poisson(load).
        let (mut probability, mut bound) = ((-load).exp(), 0.0);
        for entries in 1..60 {
            probability *= load / f64::from(entries);
            bound += probability * (f64::from(entries) - slots).max(0.0) / load;
        }
        assert!((share - bound).abs() < 0.1 * bound + 0.001, "{load}: {share}, bound {bound}");
        assert_eq!(cache.stats().index_units, units as u64);
        assert_eq!(cache.stats().index_evictions, count - cache.len());
    }
}

fn base() -> Options {
    Options { seed: 7, policy: Policy::Fifo, ..Options::default() }
}

/// Published defects of such caches: writing past the log's end after its first lap; and stale
/// duplicates, a second entry of a key that shows its old value when the new one is gone.
#[test]
fn a_log_is_never_overrun_and_no_old_value_comes_back_in_many_laps() {
    for policy in POLICIES {
        let cache = Cache::new(Options { policy, ..options(1, 12) }).unwrap();
        let mut newest = vec![0_u32; 5000];
        for version in 1..150_000_u32 {
            let key = version.wrapping_mul(2_654_435_761) % 5000;
            newest[key as usize] = version;
            let mut value = version.to_le_bytes().to_vec();
            value.resize(4 + (version % 700) as usize, version as u8);
            cache.set(&key.to_le_bytes(), &value, 0, 0, 1).unwrap();
            let probe = version.wrapping_mul(40_503) % 5000;
            cache.get(&probe.to_le_bytes(), 1, |item| {
                let mut value = Vec::new();
                item.append_to(&mut value).unwrap();
                let found = u32::from_le_bytes(value[..4].try_into().unwrap());
                assert_eq!(found, newest[probe as usize], "{policy:?}: an old value");
                assert!(value[4..].iter().all(|byte| *byte == found as u8), "a torn value");
            });
        }
        assert!(cache.stats().evictions > 10_000, "{policy:?}");
    }
}

/// Published: keys are dropped by what their bytes are (a zero at the end means empty), the first
/// slot is never used, and a miss is compared with what an earlier look-up left behind.
#[test]
fn keys_of_any_bytes_are_found_and_strangers_are_not_taken_for_them() {
    let cache = Cache::new(Options { mode: Mode::Store, ..options(1, 40) }).unwrap();
    for byte in 0..=255_u8 {
        for len in [1, 7, 8, 9, 16, 250] {
            let key = vec![byte; len];
            cache.set(&key, &[byte, len as u8], 0, 0, 1).unwrap();
        }
    }
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for byte in 0..=255_u8 {
        keys.extend([1, 2, 7, 8, 9, 10, 16, 17, 250].map(|len| vec![byte; len]));
    }
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    cache.get_many(&slices, 1, |index, item| {
        let key = &keys[index];
        let is_there = [1, 7, 8, 9, 16, 250].contains(&key.len());
        assert_eq!(item.is_some(), is_there, "{key:?}");
        if let Some(item) = item {
            let mut value = Vec::new();
            item.append_to(&mut value).unwrap();
            assert_eq!((item.key(), value), (key.clone(), vec![key[0], key.len() as u8]));
        }
    });
}

#[test]
fn an_update_leaves_one_entry_of_its_key_whatever_slots_became_empty_before() {
    let cache = Cache::new(Options { is_lossy: true, items_expected: 5000, ..base() }).unwrap();
    let key = |i: u32| i.to_le_bytes();
    (0..2000).for_each(|i| _ = cache.set(&key(i), b"old", 0, 0, 1).unwrap());
    // Every other key goes, so that most buckets have had holes; then the rest is updated.
    (0..2000).step_by(2).for_each(|i| _ = cache.remove(&key(i), 1));
    let stays: Vec<u32> =
        (1..2000).step_by(2).filter(|i| cache.get(&key(*i), 1, |_| ()).is_some()).collect();
    stays.iter().for_each(|i| _ = cache.set(&key(*i), b"new", 0, 0, 1).unwrap());
    assert_eq!(cache.len(), stays.len() as u64);
    // Between keys that are there, one that is not must not be answered with its neighbour's item.
    let keys: Vec<_> = (0..2000).map(key).collect();
    let slices: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
    let mut found = Vec::new();
    cache.get_many(&slices, 1, |index, item| {
        let mut value = Vec::new();
        if let Some(item) = item {
            item.append_to(&mut value).unwrap();
            assert_eq!((item.key(), &value[..]), (keys[index].to_vec(), &b"new"[..]));
            found.push(index as u32);
        }
    });
    assert_eq!(found, stays);
    stays.iter().for_each(|i| assert!(cache.remove(&key(*i), 1) && !cache.remove(&key(*i), 1)));
    assert!(cache.is_empty() && keys.iter().all(|key| cache.get(key, 1, |_| ()).is_none()));
}

/// Also while the index has grown, where buckets are crowded, and where an item in the midst of a
/// batch has expired, so that its neighbours' entries move.
#[test]
fn a_batch_counts_each_key_once_and_tells_its_own_item_whatever_that_has_beside() {
    for (items_expected, ordered) in [(0, true), (3000, true), (0, false), (3000, false)] {
        let cache = Cache::new(Options { items_expected, ..base() }).unwrap();
        let keys: Vec<[u8; 16]> = (0..3200_u128).map(|i| (i % 3000).to_le_bytes()).collect();
        for (i, key) in (0..3000_u64).zip(&keys) {
            let (flags, expires) =
                ([0, 7, 0x12_3456][i as usize % 3], [0, 0, 50, 1000][i as usize % 4]);
            cache.set(key, &i.to_le_bytes(), flags, expires, 1).unwrap();
        }
        let slices: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let before = cache.stats();
        let mut found = 0;
        let look = |index: usize, item: Option<&Item<'_>>| {
            let i = index as u64 % 3000;
            assert_eq!(item.is_some(), i % 4 != 2, "{i}");
            let Some(item) = item else { return };
            let mut value = [0; 8];
            assert_eq!((item.copy_to(0, &mut value).unwrap(), item.len()), (8, 8));
            assert_eq!((u64::from_le_bytes(value), item.key()), (i, keys[index].to_vec()));
            assert_eq!(item.flags(), [0, 7, 0x12_3456][i as usize % 3]);
            assert_eq!(item.expires(), [0, 0, 0, 1000][i as usize % 4]);
            found += 1;
        };
        match ordered {
            true => cache.get_many(&slices, 60, look),
            false => cache.get_many_unordered(&slices, 60, look),
        }
        let after = cache.stats();
        let counted = (after.hits - before.hits, after.misses - before.misses);
        assert_eq!(counted, (found, 3200 - found));
        assert_eq!((found, after.expired, cache.len()), (2400, 750, 2250));
    }
}
