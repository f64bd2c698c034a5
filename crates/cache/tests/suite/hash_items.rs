//! Hashes in a cache beside a model: in all sizes, with fields that expire, evicted, gone over
//! while they change.

use crate::peers::Rng;
use rackpool_cache::clock::Times;
use rackpool_cache::hashes::{Condition, Expired, FieldExpiry, Persisted, Stored};
use rackpool_cache::{Cache, Error, HashValue, Mode, Options, PartitionShare, Policy};
use std::collections::BTreeMap;

pub type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn times(now: u64) -> Times {
    Times { now, wall: now }
}

fn bytes_of(value: HashValue<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match value {
        HashValue::Text(text) => bytes = text.with_bytes(<[u8]>::to_vec).expect("it is here"),
        HashValue::Item(item) => item.append_to(&mut bytes).expect("it is here"),
        HashValue::Pinned(pinned) => {
            pinned.pieces(0, |piece| {
                match piece {
                    rackpool_mem::window::Piece::Private(some) => bytes.extend_from_slice(some),
                    rackpool_mem::window::Piece::Shared(window, at, count) => {
                        window.append_to(at, count, &mut bytes);
                    }
                }
                true
            });
        }
    }
    bytes
}

/// All fields of a hash, and how many it says that it has.
pub fn all_of(cache: &Cache, key: &[u8], now: u64) -> Result<(u64, Fields), Error> {
    let mut hash = cache.hash_reader(key, times(now))?;
    let (count, mut fields, mut next) = (hash.count()?, Fields::new(), Some(0));
    while let Some(at) = next {
        next = hash.visit(at, |name, value| {
            let name = name.with_bytes(<[u8]>::to_vec).expect("fields are here");
            assert!(fields.insert(name, bytes_of(value)).is_none(), "a field twice");
            Ok(())
        })?;
    }
    Ok((count, fields))
}

pub fn set(cache: &Cache, key: &[u8], fields: &[(Vec<u8>, Vec<u8>)]) -> Result<(), Error> {
    let mut hash = cache.hash_entry(key, times(1))?;
    for (field, value) in fields {
        hash.set(field, value, FieldExpiry::Set(0))?;
    }
    hash.finish()
}

/// A value as they come: numbers, short and long ones.
pub fn value(rng: &mut Rng) -> Vec<u8> {
    match rng.below(12) {
        0 => (rng.next() as i64).to_string().into_bytes(),
        1 => vec![b'v'; rng.below(3000)],
        _ => vec![b'a' + rng.below(26) as u8; rng.below(60)],
    }
}

fn field(rng: &mut Rng, of: usize) -> Vec<u8> {
    let number = rng.below(of);
    if number.is_multiple_of(3) { number.to_string() } else { format!("a field {number}") }
        .into_bytes()
}

type Model = BTreeMap<Vec<u8>, (Vec<u8>, u64)>;

fn change(cache: &Cache, model: &mut Model, rng: &mut Rng, now: u64, of: usize) {
    let mut hash = cache.hash_entry(b"hash", times(now)).unwrap();
    for _ in 0..1 + rng.below(4) {
        let (name, value) = (field(rng, of), value(rng));
        let before = model.get(&name).cloned();
        match rng.below(10) {
            0..=4 => {
                let expires = if rng.chance(8) { now + 1 + rng.next() % 500 } else { 0 };
                let stored = hash.set(&name, &value, FieldExpiry::Set(expires)).unwrap();
                let expected = if before.is_some() { Stored::Replaced } else { Stored::Added };
                assert_eq!(stored, expected);
                model.insert(name, (value, expires));
            }
            5..=7 => {
                assert_eq!(hash.remove(&name).unwrap(), before.is_some());
                model.remove(&name);
            }
            8 => {
                let expires = now + 1 + rng.next() % 500;
                let expected = if before.is_some() { Expired::Set } else { Expired::NoField };
                let done = hash.expire(&name, expires, Condition::Always).unwrap();
                assert_eq!(done, expected);
                model.entry(name).and_modify(|(_, at)| *at = expires);
            }
            _ => {
                let expected = match before {
                    None => Persisted::NoField,
                    Some((_, 0)) => Persisted::NoExpiry,
                    Some(_) => Persisted::Done,
                };
                assert_eq!(hash.persist(&name).unwrap(), expected);
                model.entry(name).and_modify(|(_, at)| *at = 0);
            }
        }
    }
    hash.finish().unwrap();
}

#[test]
fn a_hash_is_as_its_model_in_all_sizes_and_forms() {
    for seed in 0..6 {
        println!("seed {seed}");
        let (mut rng, mut now) = (Rng(seed), 1000);
        let options = Options { memory: 32 << 20, partitions: 2, ..Options::default() };
        let cache = Cache::new(options).unwrap().in_space(seed as u8 % 2);
        let mut model = Model::new();
        for round in 0..4000 {
            // Grows and shrinks.
            let of = if round / 500 % 2 == 0 { 3000 } else { 20 };
            if round % 500 == 499 {
                for name in model.keys() {
                    let mut hash = cache.hash_entry(b"hash", times(now)).unwrap();
                    assert!(hash.remove(name).unwrap());
                    hash.finish().unwrap();
                }
                model.clear();
                // Of a large one what has expired may still be there.
                cache.expire(now);
                assert_eq!(cache.len(), 0);
            }
            now += rng.next() % 3;
            model.retain(|_, (_, expires)| *expires == 0 || *expires > now);
            change(&cache, &mut model, &mut rng, now, of);
            let name = field(&mut rng, of);
            let mut hash = cache.hash_reader(b"hash", times(now)).unwrap();
            let found = hash.get(&name, |value, expires| (bytes_of(value), expires)).unwrap();
            assert_eq!(found.as_ref(), model.get(&name));
            drop(hash);
            if round % 97 == 0 {
                let (count, fields) = all_of(&cache, b"hash", now).unwrap();
                let live = model.iter().map(|(name, (value, _))| (name.clone(), value.clone()));
                assert_eq!(fields, live.collect::<Fields>(), "round {round}");
                assert!(count >= fields.len() as u64);
                cache.tidy(PartitionShare::ALL, now, || true);
            }
        }
        // What expires goes by itself.
        cache.expire(now + 1000);
        let (count, fields) = all_of(&cache, b"hash", now + 1000).unwrap();
        assert_eq!(count, fields.len() as u64);
        cache.remove(b"hash", now);
        cache.tidy(PartitionShare::ALL, now, || true);
        assert_eq!((cache.len(), cache.stats().live_bytes), (0, 0), "what a hash had is gone");
    }
}

#[test]
fn strings_and_hashes_are_told_apart() {
    let cache = Cache::new(Options { memory: 8 << 20, ..Options::default() }).unwrap();
    cache.set(b"text", b"value", 0, 0, 1).unwrap();
    let refused = cache.hash_entry(b"text", times(1)).map(drop);
    assert!(matches!(refused, Err(Error::WrongType)));
    set(&cache, b"hash", &[(b"field".to_vec(), b"value".to_vec())]).unwrap();
    let read = cache.get(b"hash", 1, |item| item.append_to(&mut Vec::new())).unwrap();
    assert!(matches!(read, Err(Error::WrongType)));
    cache.get_many(&[b"hash", b"text"], 1, |index, item| {
        assert_eq!(item.unwrap().is_typed(), index == 0);
    });
    cache.set(b"hash", b"text", 0, 0, 1).unwrap();
    assert!(!cache.get(b"hash", 1, |item| item.is_typed()).unwrap());
}

#[test]
fn a_small_hash_without_a_field_that_lasts_is_gone() {
    let cache = Cache::new(Options { memory: 8 << 20, ..Options::default() }).unwrap();
    let mut hash = cache.hash_entry(b"hash", times(1)).unwrap();
    hash.set(b"one", b"1", FieldExpiry::Set(10)).unwrap();
    hash.set(b"two", b"2", FieldExpiry::Set(20)).unwrap();
    hash.finish().unwrap();
    assert!(cache.get(b"hash", 19, |_| ()).is_some());
    assert!(cache.get(b"hash", 20, |_| ()).is_none());
    assert_eq!(cache.len(), 0);
}

/// Fields of a large hash of some number.
pub fn fields_of(number: usize, count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rng = Rng(number as u64);
    let field = |index: usize| format!("{number}: field {index}").into_bytes();
    (0..count).map(|index| (field(index), value(&mut rng))).collect()
}

#[test]
fn a_hash_is_evicted_whole() {
    for policy in [
        Policy::Fifo,
        Policy::FifoReinsertion { threshold: 1 },
        Policy::Sieve,
        Policy::S3Fifo,
        Policy::TinyLfu,
    ] {
        let options = Options { memory: 8 << 20, policy, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        let mut found = 0;
        for number in 0..120 {
            let (key, fields) = (format!("hash {number}"), fields_of(number, 1000));
            for some in fields.chunks(50) {
                set(&cache, key.as_bytes(), some).unwrap();
            }
            for text in 0..200 {
                cache.set(format!("{number} {text}").as_bytes(), &[7; 100], 0, 0, 1).unwrap();
            }
            // The first is read all the time.
            let _ = all_of(&cache, b"hash 0", 1).unwrap();
        }
        for number in 0..120 {
            let (count, fields) = all_of(&cache, format!("hash {number}").as_bytes(), 1).unwrap();
            assert_eq!(count, fields.len() as u64, "{policy:?}, {number}");
            let written: Fields = fields_of(number, 1000).into_iter().collect();
            // A hash that went while it was written begins anew.
            assert!(fields.iter().all(|(name, value)| written.get(name) == Some(value)));
            found += usize::from(count == 1000);
        }
        println!("{policy:?}: {found} of 120 hashes are whole");
        assert!(found > 5 && found < 120, "{policy:?}: {found}");
    }
}

#[test]
fn a_store_keeps_all_hashes_or_says_that_it_cannot() {
    let options = Options { memory: 8 << 20, mode: Mode::Store, ..Options::default() };
    let cache = Cache::new(options).unwrap();
    let mut stored: BTreeMap<usize, Fields> = BTreeMap::new();
    for round in 0..400 {
        let number = round % 100;
        for (name, value) in fields_of(number, 300) {
            match set(&cache, format!("hash {number}").as_bytes(), &[(name.clone(), value.clone())])
            {
                Ok(()) => drop(stored.entry(number).or_default().insert(name, value)),
                Err(Error::OutOfMemory { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        if round % 3 == 0 {
            cache.remove(format!("hash {number}").as_bytes(), 1);
            stored.remove(&number);
        }
    }
    for number in 0..100 {
        let (count, fields) = all_of(&cache, format!("hash {number}").as_bytes(), 1).unwrap();
        assert_eq!(count, fields.len() as u64);
        assert_eq!(fields, stored.remove(&number).unwrap_or_default(), "hash {number}");
    }
}

#[test]
fn a_stream_shows_one_moment_whatever_happens_to_the_hash() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let options = Options { memory: 32 << 20, partitions: 2, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        let fields = fields_of(1, 2000);
        set(&cache, b"hash", &fields).unwrap();
        let mut hash = cache.hash_reader(b"hash", times(1)).unwrap();
        let (count, stream) = (hash.count().unwrap(), hash.stream().unwrap());
        drop(hash);
        let (mut shown, mut step) = (Fields::new(), 0);
        loop {
            let more = cache.next_of_hash(&stream, |name, value| {
                let name = name.with_bytes(<[u8]>::to_vec).unwrap();
                assert!(shown.insert(name, bytes_of(value)).is_none());
                Ok(())
            });
            if !more.unwrap() {
                break;
            }
            step += 1;
            for _ in 0..20 {
                let (name, _) = &fields[rng.below(fields.len())];
                let mut hash = cache.hash_entry(b"hash", times(1)).unwrap();
                match rng.below(4) {
                    0 => drop(hash.set(name, &value(&mut rng), FieldExpiry::Set(0)).unwrap()),
                    1 => {
                        let new = format!("new {}", rng.next()).into_bytes();
                        hash.set(&new, &value(&mut rng), FieldExpiry::Set(0)).unwrap();
                    }
                    _ => drop(hash.remove(name).unwrap()),
                }
                hash.finish().unwrap();
            }
            match (seed % 5, step) {
                (0, 20) => _ = cache.remove(b"hash", 1),
                (1, 20) => cache.flush_all(),
                (2, 20) => cache.flush_database(0, 1),
                _ => {}
            }
            if seed % 4 == 0 {
                cache.tidy(PartitionShare::ALL, 1, || true);
            }
        }
        assert_eq!((count, shown), (2000, fields.into_iter().collect()));
        drop(stream);
        cache.remove(b"hash", 1);
        cache.tidy(PartitionShare::ALL, 1, || true);
        assert_eq!(cache.stats().live_bytes, 0);
    }
}

/// Changes a hash, or what lies under its key, in one of several ways.
fn change_any(database: &Cache, key: &[u8], rng: &mut Rng, now: u64) {
    match rng.below(16) {
        0 => _ = database.remove(key, now),
        1 => _ = database.set(key, b"text", 0, 0, now),
        2 => {
            let mut entry = database.entry(key, now).unwrap();
            let _ = entry.set_expiry(now + 1 + rng.next() % 300);
        }
        kind => {
            let Ok(mut hash) = database.hash_entry(key, times(now)) else { return };
            for _ in 0..30 {
                let (name, value) = (field(rng, 600), value(rng));
                let expires = if rng.chance(20) { now + 1 + rng.next() % 300 } else { 0 };
                // What finds no room is as it was.
                let done = match kind {
                    3..5 => hash.remove(&name).map(drop),
                    _ => hash.set(&name, &value, FieldExpiry::Set(expires)).map(drop),
                };
                if done.is_err() {
                    break;
                }
            }
            let _ = hash.finish();
        }
    }
}

#[test]
fn nothing_of_a_hash_stays_when_it_is_gone_however_it_went() {
    for (seed, policy) in
        [Policy::Fifo, Policy::Sieve, Policy::S3Fifo, Policy::TinyLfu].into_iter().enumerate()
    {
        for (mode, is_lossy) in [(Mode::Cache, false), (Mode::Cache, true), (Mode::Store, false)] {
            println!("{policy:?}, {mode:?}, lossy: {is_lossy}");
            let (mut rng, mut now, mut streams) = (Rng(seed as u64), 1000, Vec::new());
            let options = Options { memory: 4 << 20, policy, mode, is_lossy, ..Options::default() };
            let cache = Cache::new(options).unwrap();
            for _ in 0..3000 {
                let key = format!("hash {}", rng.below(12));
                let database = cache.in_database(rng.below(2) as u8);
                change_any(&database, key.as_bytes(), &mut rng, now);
                now += rng.next() % 4;
                match rng.below(300) {
                    0 => cache.flush_all(),
                    1..4 => cache.flush_database(rng.below(2) as u8, now),
                    4..7 => cache.swap_databases(0, 1, now),
                    7..40 => _ = cache.tidy(PartitionShare::ALL, now, || rng.chance(2)),
                    40..70 => {
                        let hash = database.hash_reader(key.as_bytes(), times(now));
                        streams.extend(hash.ok().and_then(|mut hash| hash.stream()));
                    }
                    70..100 if !streams.is_empty() => {
                        drop(streams.swap_remove(rng.below(streams.len())));
                    }
                    _ => {}
                }
                if let Some(stream) = streams.last() {
                    let _ = database.next_of_hash(stream, |_, _| Ok(()));
                }
            }
            drop(streams);
            for (number, key) in (0..12).flat_map(|key| [(0, key), (1, key)]) {
                cache.in_database(number).remove(format!("hash {key}").as_bytes(), now);
            }
            cache.expire(now);
            assert_eq!((cache.len(), cache.stats().live_bytes), (0, 0));
        }
    }
}

#[test]
fn a_field_that_is_written_over_is_a_change_and_all_others_stay() {
    let options = Options { memory: 4 << 20, mode: Mode::Store, ..Options::default() };
    let cache = Cache::new(options).unwrap();
    let fields = |last: u8| -> Vec<_> {
        (0..10).map(|n| (vec![b'f', n], vec![if n == 7 { last } else { n }; 100])).collect()
    };
    set(&cache, b"hash", &fields(7)).unwrap();
    cache.set(b"other", &[1; 100], 0, 0, 1).unwrap();
    for last in [1, 2, 3] {
        let watch = cache.watch(0, b"hash", 1).unwrap();
        assert!(watch.is_unchanged(1));
        set(&cache, b"hash", &fields(last)[7..8]).unwrap();
        assert!(!watch.is_unchanged(1), "a change is seen");
        let all = fields(last).into_iter().collect::<Fields>();
        assert_eq!(all_of(&cache, b"hash", 1).unwrap(), (10, all));
    }
    // Of another length it is written anew.
    set(&cache, b"hash", &[(vec![b'f', 7], vec![9; 50])]).unwrap();
    assert_eq!(all_of(&cache, b"hash", 1).unwrap().1[&vec![b'f', 7]], [9; 50]);
    let other = cache.get(b"other", 1, |item| item.len()).unwrap();
    assert_eq!(other, 100);
}
