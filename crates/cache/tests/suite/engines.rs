//! Several caches in one process, of unlike sizes and memories: none sees or counts what is in
//! another.

use crate::far::{MIB, options};
use rackpool_cache::{Cache, Options, PartitionShare, Put, Stats};
use std::collections::HashMap;

const KEYS: u64 = 4000;

/// What an engine stores of a key.
fn value(engine: u8, key: u64, version: u64) -> Vec<u8> {
    let bytes = 30 + (key * 37 + u64::from(engine) * 11) % 900;
    let mut value = vec![engine; bytes as usize];
    value[..8].copy_from_slice(&version.to_le_bytes());
    value
}

fn read(cache: &Cache, key: u64) -> Option<Vec<u8>> {
    cache.get(&key.to_le_bytes(), 1, |item| {
        let mut value = Vec::new();
        item.append_to(&mut value).unwrap();
        value
    })
}

fn engines() -> [Cache; 3] {
    let transparent = Some("numa:0=1".parse().unwrap());
    let all = [
        Options { memory: 16 * MIB, partitions: 4, seed: 1, ..Options::default() },
        Options { placement: transparent, seed: 2, shared_reads: true, ..Options::default() },
        Options { partitions: 2, shared_reads: true, ..options(3, 24) },
    ];
    all.map(|options| Cache::new(options).unwrap())
}

/// Stores, looks up and removes keys that all engines have; what it has stored and not removed, by
/// version, and how often it looked up.
fn work(cache: &Cache, engine: u8) -> (HashMap<u64, u64>, u64) {
    let (mut stored, mut gets, mut random) = (HashMap::new(), 0, u64::from(engine));
    for round in 0..60_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = (random >> 33) % KEYS;
        let name = key.to_le_bytes();
        match round % 8 {
            0..3 => {
                cache.set(&name, &value(engine, key, round), 0, 0, 1).unwrap();
                stored.insert(key, round);
            }
            3 => {
                let new = value(engine, key, round);
                let put = |_: usize| Put { key: &name, value: &new, flags: 0, expires: 0 };
                cache.set_many(1, put, 1, |_, stored| _ = stored.unwrap());
                stored.insert(key, round);
            }
            4 if round % 64 == 4 => {
                cache.remove(&name, 1);
                stored.remove(&key);
            }
            _ => {
                let expected = stored.get(&key).map(|version| value(engine, key, *version));
                assert_eq!(read(cache, key), expected, "engine {engine}, key {key}");
                gets += 1;
            }
        }
        if round % 1000 == 0 {
            cache.tidy(PartitionShare::ALL, round, || true);
        }
    }
    (stored, gets)
}

#[test]
fn three_engines_of_unlike_memories_share_nothing() {
    let engines = engines();
    let done: Vec<_> = std::thread::scope(|scope| {
        let start = |(number, cache): (u8, &Cache)| {
            let cache = cache.clone();
            scope.spawn(move || work(&cache, number))
        };
        let threads: Vec<_> = (0..).zip(&engines).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (cache, (stored, gets)) in engines.iter().zip(&done) {
        let Stats { items, hits, misses, evictions, .. } = cache.stats();
        assert_eq!((items, hits + misses, evictions), (stored.len() as u64, *gets, 0));
    }
    assert!(engines[2].stats().far_units > 0 && engines[0].stats().far_units == 0);
    // One is asked while the item of another is in hand.
    let [dram, transparent, data] = &engines;
    let of = |engine: u8, key: u64| {
        let version = done[usize::from(engine)].0.get(&key)?;
        Some(value(engine, key, *version))
    };
    for key in (0..KEYS).filter(|key| of(0, *key).is_some() && of(1, *key).is_some()) {
        let inner = dram.get(&key.to_le_bytes(), 1, |item| {
            let inner = transparent.get(&key.to_le_bytes(), 1, |other| {
                assert_eq!(read(data, key), of(2, key));
                let mut value = Vec::new();
                other.append_to(&mut value).unwrap();
                value
            });
            let mut value = Vec::new();
            item.append_to(&mut value).unwrap();
            assert_eq!(Some(value), of(0, key));
            inner.unwrap()
        });
        assert_eq!(inner, of(1, key));
    }
    // The end of one, or its flush, is no other's.
    let [dram, transparent, data] = engines;
    drop(dram);
    data.clear(1);
    assert!(data.is_empty());
    assert!((0..KEYS).all(|key| read(&transparent, key) == of(1, key)));
}
