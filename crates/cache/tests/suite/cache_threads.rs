//! The cache used by several threads at once, without shared reads: each takes locks.

use rackpool_cache::{Cache, Options, Put};

const KEYS: u32 = 501;

/// Threads that look up, store, and store batches, each over the partitions in an order of its own:
/// values are whole, and no two threads wait for each other's partition.
#[test]
fn many_threads_see_only_whole_values() {
    let options = Options { memory: 24 << 20, partitions: 8, seed: 42, ..Options::default() };
    let cache = Cache::new(options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let cache = cache.clone();
            scope.spawn(move || {
                for round in 0..20_000_u32 {
                    let key = (round * 7 % KEYS).to_le_bytes();
                    let value = vec![thread; 1 + (round % 3000) as usize];
                    if round % 30 == 0 {
                        let at = |index: u32| (round / 30 + index * (3 + u32::from(thread))) % KEYS;
                        let keys: Vec<[u8; 4]> = (0..64).map(|i| at(i).to_le_bytes()).collect();
                        let put =
                            |i: usize| Put { key: &keys[i], value: &value, flags: 0, expires: 0 };
                        cache.set_many(keys.len(), put, 1, |_, stored| _ = stored.unwrap());
                    } else if round % 3 == 0 {
                        cache.set(&key, &value, 0, 0, 1).unwrap();
                    } else {
                        cache.get(&key, 1, |item| {
                            let mut value = Vec::new();
                            item.append_to(&mut value).unwrap();
                            assert!(value.iter().all(|byte| *byte == value[0]));
                        });
                    }
                }
            });
        }
    });
    assert!(cache.len() > 100 && cache.stats().hits > 10_000, "{:?}", cache.stats());
}
