//! Hits by capacity, from a sample of reads.

use rackpool_cache::{Cache, Options};

const KEYS: u64 = 50_000;

/// Some 800 keys are sampled.
fn is_close(found: u64, expected: u64) -> bool {
    found.abs_diff(expected) * 6 < expected
}

#[test]
fn reads_of_every_kind_are_sampled_if_that_is_asked_for() {
    for shared_reads in [false, true] {
        let options = Options {
            memory: 64 << 20,
            samples_reuse: true,
            shared_reads,
            seed: 3,
            ..Options::default()
        };
        let cache = Cache::new(options).unwrap();
        let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_le_bytes).collect();
        for key in &keys {
            assert!(cache.get(key, 1, |_| ()).is_none());
            cache.set(key, &[7; 200], 0, 0, 1).unwrap();
        }
        for keys in keys.chunks(100) {
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            cache.get_many(&keys, 1, |_, item| assert!(item.is_some()));
        }
        for key in &keys {
            assert!(cache.entry(key, 1).unwrap().read().is_some());
        }
        let reuse = cache.reuse().unwrap();
        let reads = |up_to: u64| {
            let capacities = reuse.by_capacity.iter().filter(|(bytes, _)| *bytes <= up_to);
            capacities.map(|(_, reads)| reads).sum::<u64>()
        };
        assert!(is_close(reuse.first_reads, KEYS), "{reuse:?}");
        // All keys lie between two reads of one.
        assert_eq!(reads(KEYS * 100), 0);
        assert!(is_close(reads(KEYS * 400), 2 * KEYS), "{reuse:?}");
        assert!(is_close(reuse.found_bytes, 2 * KEYS * 216), "{reuse:?}");
    }
    assert_eq!(Cache::new(Options::default()).unwrap().reuse(), None);
}
