//! Items in far memory: what goes there, what comes back, and that none is lost or mixed up.

use rackpool_cache::{Cache, Error, FarMemory, Options, PartitionShare, Policy};
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

fn options(near: u64, far: u64) -> Options {
    let far = Some(FarMemory { memory: far * MIB, placement: None });
    Options { memory: near * MIB, seed: 5, far, ..Options::default() }
}

fn value(key: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (key.wrapping_mul(31) ^ at) as u8).collect()
}

fn is_whole(cache: &Cache, key: u64, bytes: u64, now: u64) -> bool {
    let read = cache.get(&key.to_le_bytes(), now, |item| {
        let mut read = Vec::new();
        item.append_to(&mut read).unwrap();
        read
    });
    read.is_some_and(|read| {
        assert_eq!(read, value(key, bytes), "the value of another key");
        true
    })
}

/// Some idle turns, as of a server: a second each.
fn idle(cache: &Cache, now: &mut u64, seconds: u64) {
    for _ in 0..seconds {
        *now += 1000;
        cache.tidy(PartitionShare::ALL, *now, || true);
    }
}

#[test]
fn values_of_every_length_go_far_and_none_is_dropped_while_there_is_room() {
    let cache = Cache::new(options(2, 64)).unwrap();
    let length = |key: u64| 1 + key * 7 % 3000;
    let keys = 0..20_000_u64;
    for key in keys.clone() {
        cache.set(&key.to_le_bytes(), &value(key, length(key)), 3, 0, 1).unwrap();
    }
    assert!(keys.clone().all(|key| is_whole(&cache, key, length(key), 1)));
    let stats = cache.stats();
    assert_eq!((stats.items, stats.evictions, stats.misses), (20_000, 0, 0));
    assert!(stats.far_bytes > 28 * MIB && stats.demotions > 15_000, "{stats:?}");
    let far = keys.filter(|key| cache.lies_far(&key.to_le_bytes()) == Some(true));
    assert!(far.count() > 15_000);
    assert_eq!(cache.lies_far(b"none"), None);
}

#[test]
fn long_values_go_far_at_once_and_are_limited_by_its_size() {
    let cache = Cache::new(options(2, 64)).unwrap();
    let bytes = 3 * MIB + 17;
    cache.set(&7_u64.to_le_bytes(), &value(7, bytes), 0, 0, 1).unwrap();
    assert_eq!(cache.lies_far(&7_u64.to_le_bytes()), Some(true));
    assert!(is_whole(&cache, 7, bytes, 1));
    let error = cache.set(b"long", &vec![0; 17 << 20], 0, 0, 1).unwrap_err();
    assert!(matches!(error, Error::TooLarge { max_bytes, .. } if max_bytes == 16 * MIB));
}

#[test]
fn what_is_read_often_comes_near_and_goes_far_again_when_others_are() {
    let cache = Cache::new(options(4, 64)).unwrap();
    let (count, bytes, mut now) = (60_000_u64, 400, 1);
    for key in 0..count {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    assert_eq!(cache.stats().evictions, 0);
    let near = |keys: std::ops::Range<u64>| {
        keys.filter(|key| cache.lies_far(&key.to_le_bytes()) == Some(false)).count()
    };
    // Nothing is stored any more; the second set of hot keys takes the place of the first.
    for hot in [0..2000, 30_000..32_000] {
        for _ in 0..60 {
            for _ in 0..3 {
                assert!(hot.clone().all(|key| is_whole(&cache, key, bytes, now)));
            }
            idle(&cache, &mut now, 2);
        }
        assert!(near(hot.clone()) > 1900, "{} of 2000 are near: {:?}", near(hot), cache.stats());
    }
    assert_eq!((cache.stats().evictions, cache.stats().misses), (0, 0));
}

#[test]
fn both_memories_full_the_least_used_go_and_the_rest_stays_right() {
    let cache = Cache::new(options(2, 8)).unwrap();
    let (bytes, hot) = (500, 0..3000_u64);
    let mut now = 1;
    for key in hot.clone() {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    for cold in (100_000..200_000_u64).step_by(100) {
        for key in cold..cold + 100 {
            cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
        }
        for key in hot.clone().step_by(10) {
            is_whole(&cache, key + cold / 100 % 10, bytes, now);
        }
        now += 1;
    }
    let kept = hot.filter(|key| is_whole(&cache, *key, bytes, now)).count();
    assert!(kept > 2700, "{kept} of 3000 that were read are there: {:?}", cache.stats());
    assert!(cache.stats().evictions > 50_000);
}

#[test]
fn a_file_with_far_memory_comes_back_and_only_with_as_much_of_it() {
    let name = format!("/dev/shm/rackpool-far-test-{}", std::process::id());
    let path = PathBuf::from(name);
    let (cache, _) = Cache::open(options(2, 16), &path).unwrap();
    let keys = 0..10_000_u64;
    for key in keys.clone() {
        cache.set(&key.to_le_bytes(), &value(key, 600), 0, 0, 1).unwrap();
    }
    let far = |cache: &Cache| {
        keys.clone().filter(|key| cache.lies_far(&key.to_le_bytes()) == Some(true)).count()
    };
    let before = far(&cache);
    assert!(before > 5000, "{before}");
    drop(cache);
    for other in [options(2, 8), Options { far: None, ..options(2, 16) }] {
        let error = Cache::open(other, &path).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
    let (cache, recovered) = Cache::open(options(2, 16), &path).unwrap();
    assert_eq!((recovered.items, recovered.lost, far(&cache)), (10_000, 0, before));
    assert!(keys.clone().all(|key| is_whole(&cache, key, 600, 1)));
    for key in keys.clone() {
        cache.set(&key.to_le_bytes(), &value(key, 700), 0, 0, 1).unwrap();
    }
    assert!(keys.clone().all(|key| is_whole(&cache, key, 700, 1)));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn far_memory_is_refused_where_its_policy_is_missing_or_it_is_too_small() {
    let text = |options: Options| Cache::new(options).unwrap_err().to_string();
    assert!(text(Options { policy: Policy::Fifo, ..options(2, 8) }).contains("far memory"));
    let far = Some(FarMemory { memory: 1000, placement: None });
    assert!(text(Options { far, ..options(2, 8) }).contains("far memory is 1000"));
}
