//! Items in far memory: what goes there, what comes back, and that none is lost or mixed up.

use rackpool_cache::{
    Bandwidths, Cache, Error, FarMemory, Options, PartitionShare, Policy, far_bytes_in,
};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub const MIB: u64 = 1 << 20;

pub fn options(near: u64, far: u64) -> Options {
    let far = Some(FarMemory { memory: far * MIB, placement: None, bandwidths: None });
    Options { memory: near * MIB, seed: 5, far, ..Options::default() }
}

pub fn value(key: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (key.wrapping_mul(31) ^ at) as u8).collect()
}

pub fn is_whole(cache: &Cache, key: u64, bytes: u64, now: u64) -> bool {
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
pub fn idle(cache: &Cache, now: &mut u64, seconds: u64) {
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
    assert_eq!(stats.moved_far_bytes, 0, "far memory has room: {stats:?}");
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
fn idle_turns_keep_to_their_pace_also_where_items_are_long() {
    // Of one piece, for which rounds make room near; of several, with room there.
    for (near, far, count, bytes) in [(4, 32, 450_u64, 60_000), (16, 60, 200, 200_000)] {
        let cache = Cache::new(options(near, far)).unwrap();
        let (keys, mut now, seconds) = (0..count, 1, 4);
        for key in keys.clone() {
            cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
        }
        let is_far = |key: &u64| cache.lies_far(&key.to_le_bytes()) == Some(true);
        let far: Vec<u64> = keys.filter(is_far).collect();
        for key in (0..10).flat_map(|_| &far) {
            cache.get(&key.to_le_bytes(), now, |_| ()).unwrap();
        }
        let before = cache.stats();
        idle(&cache, &mut now, seconds);
        let after = cache.stats();
        assert!(after.promotions > before.promotions, "{after:?}");
        // One MiB a second is the least for a partition, and a step may be a little longer.
        let moved_bytes = after.moved_bytes - before.moved_bytes;
        assert!(moved_bytes < (seconds + 1) * MIB, "{moved_bytes} bytes of {bytes} moved");
    }
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
fn what_is_read_often_comes_near_without_idle_turns_at_a_bounded_pace() {
    let cache = Cache::new(options(4, 64)).unwrap();
    let (count, bytes, hot) = (60_000_u64, 400, 30_000..32_000_u64);
    let mut now = 1;
    for key in 0..count {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    let is_near = |key: &u64| cache.lies_far(&key.to_le_bytes()) == Some(false);
    let near_before = hot.clone().filter(is_near).count();
    let before = cache.stats();
    // Each key is met once in 31 times, and rounds that make room take some of these.
    for seconds in 1..=3 {
        now += 1000;
        for _ in 0..60 {
            assert!(hot.clone().all(|key| is_whole(&cache, key, bytes, now)));
        }
        let moved_bytes = cache.stats().moved_bytes - before.moved_bytes;
        // A second beforehand, and one step that is longer.
        assert!(moved_bytes < (seconds + 1) * 16 * MIB + MIB, "{moved_bytes} bytes");
    }
    let near = hot.filter(is_near).count();
    assert!(near > 1900, "{near} of 2000 are near, {near_before} before: {:?}", cache.stats());
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
    let stats = cache.stats();
    assert!(stats.evictions > 50_000);
    // Rounds of far memory move what stays there; that crosses nothing.
    assert!(stats.moved_far_bytes > 0, "{stats:?}");
    assert!(stats.crossed_bytes + stats.moved_far_bytes < stats.moved_bytes, "{stats:?}");
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
    assert_eq!((far_bytes_in(&path), far_bytes_in(Path::new("/dev/shm"))), (Some(16 * MIB), None));
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
    let far = Some(FarMemory { memory: 1000, placement: None, bandwidths: None });
    assert!(text(Options { far, ..options(2, 8) }).contains("far memory is 1000"));
}

#[test]
fn the_entries_of_a_large_far_memory_leave_room_in_the_near_one() {
    let cache = Cache::new(options(1, 12)).unwrap();
    let keys = 0..300_000_u64;
    for key in keys.clone() {
        cache.set(&key.to_le_bytes(), &value(key, 1), 0, 0, 1).unwrap();
    }
    let stats = cache.stats();
    assert!(stats.index_evictions > 0 && stats.evictions == 0, "{stats:?}");
    assert_eq!(stats.items + stats.index_evictions, 300_000);
    let found = keys.filter(|key| is_whole(&cache, *key, 1, 1)).count() as u64;
    assert_eq!(found, stats.items);
}

#[test]
fn items_of_all_lengths_and_lives_leave_a_small_near_memory_and_none_is_dropped() {
    let cache = Cache::new(options(2, 64)).unwrap();
    let length = |key: u64| 1 + key * 7919 % 60_000;
    let expires = |key: u64| [0, 20_000, 100_000, 1_000_000, 10_000_000, 1 << 40][key as usize % 6];
    for key in 0..1500_u64 {
        cache.set(&key.to_le_bytes(), &value(key, length(key)), 0, expires(key), 1).unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.items, stats.evictions), (1500, 0), "{stats:?}");
    assert!((0..1500).all(|key| is_whole(&cache, key, length(key), 1)));
}

#[test]
fn what_was_worth_much_once_keeps_nothing_out_of_far_memory_that_is_empty() {
    let cache = Cache::new(options(2, 16)).unwrap();
    let bytes = 500;
    for key in 0..40_000_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, 1).unwrap();
        assert!((0..3).all(|_| is_whole(&cache, key, bytes, 1)));
    }
    (0..40_000_u64).for_each(|key| _ = cache.remove(&key.to_le_bytes(), 1));
    let before = cache.stats().evictions;
    assert!(before > 0 && cache.is_empty());
    for key in 100_000..125_000_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, 1).unwrap();
    }
    assert_eq!(cache.stats().evictions, before, "{:?}", cache.stats());
    assert!((100_000..125_000).all(|key| is_whole(&cache, key, bytes, 1)));
}

#[test]
fn a_hot_set_that_shifts_in_full_memories_drops_little() {
    let cache = Cache::new(options(4, 32)).unwrap();
    let (bytes, mut now) = (400, 1);
    let mut kept = Vec::new();
    for key in 0..110_000_u64 {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, now).unwrap();
    }
    kept.extend((0..110_000_u64).filter(|key| is_whole(&cache, *key, bytes, now)));
    let before = cache.stats();
    assert!(before.evictions > 10_000, "{before:?}");
    // Of every segment of far memory some.
    for turn in 0..3 {
        let hot: Vec<u64> = kept.iter().copied().skip(turn).step_by(30).collect();
        for _ in 0..60 {
            for _ in 0..3 {
                hot.iter().for_each(|key| _ = is_whole(&cache, *key, bytes, now));
            }
            idle(&cache, &mut now, 2);
        }
    }
    let stats = cache.stats();
    let (came, gone) = (stats.promotions - before.promotions, stats.evictions - before.evictions);
    assert!(came > 5000, "{stats:?}");
    // Where items came from lie holes, too small to be used: something goes, but less than came.
    assert!(gone < came * 3 / 4, "{gone} items were dropped, {came} came near: {stats:?}");
}

/// Two memories that deliver so many bytes a second, and readers that ask again as soon as they are
/// answered, up to a demand; in virtual time.
struct Readers {
    bandwidths: Bandwidths,
    random: u64,
    now: u64,
    crossed_bytes_max: u64,
}

/// Bytes of a value whose item takes whole cache lines, with header and key.
const VALUE_BYTES: u64 = 1008;

impl Readers {
    /// What was read from near and from far memory in the last of these seconds, bytes: of each
    /// item its lines, and the line of its bucket.
    fn read(&mut self, cache: &Cache, hot: &Range<u64>, demand: u64, seconds: u64) -> [u64; 2] {
        let mut read = [0; 2];
        for _ in 0..seconds {
            read = [0; 2];
            let Bandwidths { near, far } = self.bandwidths;
            let before = cache.stats().crossed_bytes;
            while read[0] < near && read[1] < far && read[0] + read[1] < demand {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let key = hot.start + (self.random >> 33) % (hot.end - hot.start);
                let key = key.to_le_bytes();
                let is_far = cache.lies_far(&key).unwrap();
                let len = cache.get(&key, self.now, |item| item.len());
                assert_eq!(len, Some(VALUE_BYTES));
                read[0] += 64;
                read[usize::from(is_far)] += VALUE_BYTES + 16;
            }
            self.now += 1000;
            cache.tidy(PartitionShare::ALL, self.now, || true);
            let crossed = cache.stats().crossed_bytes - before;
            self.crossed_bytes_max = self.crossed_bytes_max.max(crossed);
        }
        read
    }
}

#[test]
fn reads_end_at_the_best_split_of_two_bandwidths_while_the_hot_set_shifts() {
    let bandwidths = Bandwidths { near: 16_000_000, far: 4_000_000 };
    let both = bandwidths.near + bandwidths.far;
    for (partitions, shared_reads) in [(1, false), (2, true)] {
        let far = FarMemory { memory: 64 * MIB, placement: None, bandwidths: Some(bandwidths) };
        let far = Some(far);
        let cache =
            Cache::new(Options { far, partitions, shared_reads, ..options(6, 64) }).unwrap();
        let mut readers = Readers { bandwidths, random: 7, now: 1000, crossed_bytes_max: 0 };
        for key in 0..30_000_u64 {
            cache.set(&key.to_le_bytes(), &value(key, VALUE_BYTES), 0, 0, 1000).unwrap();
        }
        // With bandwidth to spare what is hot comes near.
        let first = 10_000..12_000;
        let [near, far] = readers.read(&cache, &first, 8_000_000, 100);
        assert!(far * 20 < near, "{near} and {far} bytes: {:?}", cache.stats());
        for hot in [first, 20_000..22_000] {
            let before = cache.stats().crossed_bytes;
            let [near, far] = readers.read(&cache, &hot, u64::MAX, 150);
            let best = bandwidths.far_part(near + far);
            assert!(far.abs_diff(best) * 20 <= best, "{far} of {near}: {:?}", cache.stats());
            assert!((near + far) * 100 >= both * 95, "{near} and {far} bytes a second");
            // The hot set once, what made room for it, and some that was moved in vain.
            let crossed = cache.stats().crossed_bytes - before;
            assert!(crossed < 8_000_000, "{crossed} bytes moved");
        }
        let [near, far] = readers.read(&cache, &(20_000..22_000), 8_000_000, 100);
        assert!(far * 20 < near, "{near} and {far} bytes: {:?}", cache.stats());
        let most = 2 * MIB * u64::from(partitions) + bandwidths.near / 64;
        assert!(readers.crossed_bytes_max <= most, "{} in a second", readers.crossed_bytes_max);
        assert_eq!((cache.stats().evictions, cache.stats().misses), (0, 0));
    }
}

#[test]
fn what_a_look_up_touches_is_its_bucket_and_all_pieces_where_they_lie() {
    let cache = Cache::new(options(2, 64)).unwrap();
    for (key, bytes) in [(1_u64, 100), (2, 3 * MIB)] {
        cache.set(&key.to_le_bytes(), &value(key, bytes), 0, 0, 1).unwrap();
        let runs = cache.touched(&key.to_le_bytes());
        let items: Vec<_> = runs.iter().filter(|run| !run.is_bucket).collect();
        let all: u64 = items.iter().map(|run| run.bytes).sum();
        assert!(runs[0].is_bucket && !runs[0].is_far && runs[0].at.is_multiple_of(64), "{runs:?}");
        assert!((bytes..bytes + 40 * (1 + bytes / 60_000)).contains(&all), "{all} bytes");
        let is_far = cache.lies_far(&key.to_le_bytes()).unwrap();
        assert!(items.iter().all(|run| run.is_far == is_far) && is_far == (key == 2));
    }
    let missing = cache.touched(b"none");
    assert!(missing.len() == 1 && missing[0].is_bucket, "{missing:?}");
    assert_eq!(cache.stats().hits, 0, "no use is counted");
}
