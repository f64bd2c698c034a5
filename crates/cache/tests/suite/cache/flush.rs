//! What a flush leaves to do, and what it costs.

use super::{POLICIES, options};
use rackpool_cache::{Cache, Mode, Options, PartitionShare, Policy};

fn put_many(cache: &Cache, count: u32, value: &[u8]) {
    for i in 0..count {
        cache.set(&i.to_le_bytes(), value, 0, 0, 1).unwrap();
    }
}

#[test]
fn a_flush_is_over_at_once_and_what_it_leaves_to_do_is_done_in_small_steps() {
    const COUNT: u32 = 200_000;
    for (partitions, shared_reads) in [(1, false), (2, false), (2, true)] {
        let units = 1600 / u64::from(partitions);
        let cache = Cache::new(Options { shared_reads, ..options(partitions, units) }).unwrap();
        let unused = cache.stats().free_units;
        put_many(&cache, COUNT, &[1; 100]);
        cache.flush_all();
        let stats = cache.stats();
        assert_eq!((cache.len(), stats.items, stats.live_bytes), (0, 0, 0));
        let get = |i: u32| cache.get(&i.to_le_bytes(), 1, |item| item.len());
        assert!((0..COUNT).step_by(7).all(|i| get(i).is_none()));
        let keys: Vec<[u8; 4]> = (1..50_u32).map(u32::to_le_bytes).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        cache.get_many(&keys, 1, |_, item| assert!(item.is_none()));
        let mut cursor = 0;
        loop {
            cursor = cache.scan(cursor, 100, 1, |_| panic!("nothing is there"));
            if cursor == 0 {
                break;
            }
        }
        // What is put between two steps stays; a second flush ends what came before it, too.
        let (mut steps, mut flushes) = (0_u32, 0);
        loop {
            let is_left = cache.tidy(PartitionShare::ALL, 1, || {
                steps += 1;
                !steps.is_multiple_of(4)
            });
            if !is_left {
                break;
            }
            cache.set(&steps.to_le_bytes(), &[2; 50], 0, 0, 1).unwrap();
            assert_eq!(get(steps), Some(50));
            if steps == 40 {
                cache.flush_all();
                assert_eq!((cache.len(), get(steps)), (0, None));
                flushes = 1;
            }
        }
        let stats = cache.stats();
        // A step goes through 512 buckets or 64 segments.
        let least = stats.index_units as u32 * 1024 / 512 + (COUNT / 500) / 64;
        assert!(flushes == 1 && steps > least, "{steps} steps, {least} at least");
        assert!((44..steps).step_by(4).all(|i| get(i) == Some(50)), "what came later is there");
        assert_eq!(u64::from(steps / 4 - 10), cache.len());
        assert!(stats.free_units + stats.index_units + 8 > unused, "{stats:?}");
        assert_eq!((stats.expired, stats.evictions), (0, 0));
    }
}

#[test]
fn what_was_flushed_makes_room_before_anything_else_goes() {
    for policy in POLICIES {
        for mode in [Mode::Cache, Mode::Store] {
            let policy = if mode == Mode::Store { Policy::Fifo } else { policy };
            let cache = Cache::new(Options { policy, mode, ..options(1, 200) }).unwrap();
            for round in 0..4_u8 {
                // Long ones are in pieces over several segments.
                put_many(&cache, 20_000, &[round; 400]);
                let long = vec![round; 1 << 20];
                cache.set(b"long", &long, 0, 0, 1).unwrap();
                let holds = |key: &[u8], expected: &[u8]| {
                    let mut value = Vec::new();
                    let found = cache.get(key, 1, |item| item.append_to(&mut value));
                    found.is_some_and(|read| read.is_ok()) && value == expected
                };
                let found = (0..20_000_u32).filter(|i| holds(&i.to_le_bytes(), &[round; 400]));
                assert_eq!(found.count(), 20_000, "{policy:?}, {mode:?}, round {round}");
                assert!(holds(b"long", &long));
                assert_eq!(cache.stats().evictions, 0, "{policy:?}, {mode:?}, round {round}");
                cache.flush_all();
            }
        }
    }
}
