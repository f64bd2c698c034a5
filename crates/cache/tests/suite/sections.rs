//! Sections: what one thread does with several keys is one step to all who read and change them,
//! with and without locks; and watches of keys.

use crate::peers::Rng;
use rackpool_cache::{Cache, Item, Options, PartitionShare, SectionKeys};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;

fn cache(partitions: u32, shared_reads: bool) -> Cache {
    let options =
        Options { memory: 16 << 20, partitions, shared_reads, seed: 7, ..Options::default() };
    Cache::new(options).unwrap()
}

fn keys_of(cache: &Cache, keys: &[&[u8]]) -> SectionKeys {
    let mut all = SectionKeys::default();
    keys.iter().for_each(|key| all.add(cache, key));
    all
}

fn number(cache: &Cache, key: &[u8]) -> u64 {
    cache.get(key, 1, first_number).unwrap_or(0)
}

fn first_number(item: &Item<'_>) -> u64 {
    let mut number = [0; 8];
    assert_eq!(item.copy_to(0, &mut number).unwrap(), 8);
    u64::from_le_bytes(number)
}

fn set(cache: &Cache, key: &[u8], number: u64, len: usize) {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + len, 1);
    cache.set(key, &value, 0, 0, 1).unwrap();
}

/// Keys of several partitions, which one thread raises together.
const KEYS: [&[u8]; 4] = [b"a", b"b", b"a longer key than those", b"d"];

/// Raises all keys together; now and then each is gone before, inside.
fn write(cache: &Cache, is_over: &AtomicBool) {
    let mut rng = Rng(11);
    for round in 1..3_000 {
        let section = cache.hold(keys_of(cache, &KEYS));
        let mut inside = cache.clone();
        inside.enter_section(Some(&section));
        let is_removed = rng.chance(20);
        // Lengths for copies, for the lock alone, and for several pieces.
        let len = [0, 100, 5_000, 70_000][rng.below(4)];
        for key in KEYS {
            if is_removed {
                inside.remove(key, 1);
            }
            set(&inside, key, round, len);
        }
    }
    // Relaxed: a flag without data.
    is_over.store(true, Ordering::Relaxed);
}

fn see_no_half(partitions: u32, shared_reads: bool) {
    let cache = cache(partitions, shared_reads);
    let (is_over, seen) = (&AtomicBool::new(false), &AtomicU64::new(0));
    scope(|scope| {
        let writer = &cache;
        scope.spawn(move || write(writer, is_over));
        for thread in 0..3 {
            let cache = cache.clone();
            scope.spawn(move || {
                let mut rng = Rng(thread);
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    // One after the other, in any order: none is older than one that was read.
                    let mut before = last;
                    for _ in 0..4 {
                        let key = KEYS[rng.below(KEYS.len())];
                        let now = match rng.below(3) {
                            0 => number(&cache, key),
                            1 => {
                                let entry = cache.entry(key, 1).unwrap();
                                entry.item().map_or(0, |item| first_number(&item))
                            }
                            _ => one_of_many(&cache, key),
                        };
                        assert!(now >= before, "{now} after {before}");
                        before = now;
                    }
                    last = before;
                    // Together: between two equal counts all are of one moment.
                    let ended = cache.sections_ended();
                    let mut all = Vec::new();
                    cache.get_many(&KEYS, 1, |_, item| {
                        all.push(item.map_or(0, first_number));
                    });
                    assert!(all.is_sorted(), "in this order they are read: {all:?}");
                    if ended == cache.sections_ended() {
                        assert!(all.iter().all(|it| *it == all[0]), "{all:?}");
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(seen.load(Ordering::Relaxed) > 0 || partitions > 1, "no look was of one moment");
}

fn one_of_many(cache: &Cache, key: &[u8]) -> u64 {
    let mut found = 0;
    cache.get_many_unordered(&[key, b"of none"], 1, |index, item| {
        if let (0, Some(item)) = (index, item) {
            found = first_number(item);
        }
    });
    found
}

#[test]
fn readers_without_a_lock_see_no_half_of_a_section() {
    see_no_half(8, true);
}

#[test]
fn readers_of_one_partition_see_no_half_of_a_section() {
    see_no_half(1, true);
    see_no_half(1, false);
}

/// Sections over the same keys in different orders, over all, with moves, flushes and swaps beside:
/// they all end, and each counter was raised as often as was said.
#[test]
fn sections_end_whatever_they_hold_and_lose_nothing() {
    let cache = cache(8, true);
    const ROUNDS: u64 = 2_000;
    scope(|scope| {
        for thread in 0..4_u64 {
            let cache = cache.in_database(0);
            scope.spawn(move || {
                let mut rng = Rng(thread);
                for _ in 0..ROUNDS {
                    let some: Vec<_> = (0..3).map(|_| KEYS[rng.below(KEYS.len())]).collect();
                    let section = match rng.chance(50) {
                        true => cache.hold_all(),
                        false => cache.hold(keys_of(&cache, &[&some[..], &[&b"sum"[..]]].concat())),
                    };
                    let mut inside = cache.clone();
                    inside.enter_section(Some(&section));
                    assert!(section.holds(&inside, b"sum"));
                    let sum = number(&inside, b"sum");
                    some.iter().for_each(|key| set(&inside, key, sum, 0));
                    set(&inside, b"sum", sum + 1, 0);
                }
            });
        }
        let others = cache.clone();
        scope.spawn(move || {
            for round in 0..300 {
                let (five, six) = (others.in_database(5), others.in_database(6));
                set(&five, KEYS[round % 4], 1, 0);
                five.move_to(&six, KEYS[round % 4], 1).unwrap();
                others.swap_databases(5, 6, 1);
                if round % 10 == 0 {
                    others.flush_database(5, 1);
                    others.tidy(PartitionShare::ALL, 1, || true);
                }
            }
        });
    });
    assert_eq!(number(&cache.in_database(0), b"sum"), 4 * ROUNDS);
}

#[test]
fn a_section_holds_more_unless_another_one_does() {
    let cache = cache(4, false);
    let mut one = cache.hold(keys_of(&cache, &[b"a"]));
    let two = cache.hold(keys_of(&cache, &[b"b"]));
    assert!(!one.hold_more(keys_of(&cache, &[b"c", b"b"])) && !one.holds(&cache, b"c"));
    assert!(one.hold_more(keys_of(&cache, &[b"c", b"a"])) && one.holds(&cache, b"c"));
    drop(two);
    assert!(one.hold_more(keys_of(&cache, &[b"b"])));
    let waits = AtomicBool::new(true);
    scope(|scope| {
        scope.spawn(|| {
            set(&cache, b"b", 1, 0);
            assert!(!waits.load(Ordering::Relaxed), "the key was held");
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        waits.store(false, Ordering::Relaxed);
        drop(one);
    });
    // A panic inside lets go, too.
    let panics = || {
        let _section = cache.hold_all();
        panic!("in a section");
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
    assert_eq!(number(&cache, b"b"), 1);
}

#[test]
fn a_watch_sees_changes_and_nothing_else() {
    for partitions in [1, 4] {
        let cache = cache(partitions, false);
        let base = cache.in_database(0);
        let watch = |key: &[u8]| cache.watch(0, key, 1).unwrap();
        set(&base, b"k", 1, 0);
        let (there, absent) = (watch(b"k"), watch(b"none"));
        number(&base, b"k");
        base.entry(b"k", 1).unwrap().set_expiry(0).unwrap();
        set(&base, b"other", 1, 0);
        base.remove(b"none", 1);
        assert!(there.is_unchanged(1) && absent.is_unchanged(1));
        assert_eq!(there.key(), (0, &b"k"[..]));
        set(&base, b"none", 1, 0);
        base.remove(b"none", 1);
        assert!(!absent.is_unchanged(1), "it came and went");
        base.entry(b"k", 1).unwrap().set_expiry(1000).unwrap();
        base.entry(b"k", 1).unwrap().set_expiry(0).unwrap();
        assert!(!there.is_unchanged(1), "its expiry was another one");
        drop((there, absent));
        base.entry(b"k", 1).unwrap().set_expiry(10).unwrap();
        let (expires, stale) = (watch(b"k"), cache.watch(0, b"k", 10).unwrap());
        assert!(!expires.is_unchanged(10) && stale.is_unchanged(11));
    }
}

#[test]
fn a_watch_follows_its_database() {
    let cache = cache(4, false);
    let database = |number| cache.in_database(number);
    let watch = |number, key: &[u8]| cache.watch(number, key, 1).unwrap();
    for number in [0, 1] {
        set(&database(number), b"kept", 1, 0);
    }
    set(&database(1), b"only in 1", 1, 0);
    let [absent, kept, swapped] = [&b"absent"[..], b"kept", b"only in 1"].map(|key| watch(0, key));
    let of_other = watch(2, b"absent");
    cache.swap_databases(0, 1, 1);
    assert!(absent.is_unchanged(1) && of_other.is_unchanged(1));
    assert!(!kept.is_unchanged(1) && !swapped.is_unchanged(1));
    // What was absent is watched in the space that its database has now.
    set(&database(1), b"absent", 1, 0);
    assert!(absent.is_unchanged(1));
    set(&database(0), b"absent", 1, 0);
    database(0).remove(b"absent", 1);
    assert!(!absent.is_unchanged(1));

    let [absent, kept] = [&b"absent"[..], b"kept"].map(|key| watch(0, key));
    cache.flush_database(0, 1);
    assert!(absent.is_unchanged(1) && !kept.is_unchanged(1));
    set(&database(0), b"absent", 1, 0);
    database(0).remove(b"absent", 1);
    assert!(!absent.is_unchanged(1));

    set(&database(0), b"kept", 1, 0);
    let [absent, kept] = [&b"absent"[..], b"kept"].map(|key| watch(0, key));
    cache.flush_all();
    assert!(absent.is_unchanged(1) && !kept.is_unchanged(1));
}
