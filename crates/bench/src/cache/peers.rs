//! Other caches under the same operations, each by its own published interface.

use super::ratio::{Contender, Test};
use super::workload::Op;

/// Entries by which the cost of an entry is measured.
const ENTRIES: u64 = 200_000;
const KEY_BYTES: usize = 32;
const VALUE_BYTES: usize = 96;

/// What an entry costs beside key and value, bytes.
pub(crate) struct Costs {
    quick_cache: u64,
    moka: u64,
    pub(crate) foyer: u64,
}

/// Resident memory of this process, bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|word| word.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Bytes an entry by which the process grows while `fill` puts so many in.
fn cost<T>(fill: impl FnOnce() -> T) -> (u64, T) {
    let before = resident_bytes();
    let filled = fill();
    let grown = resident_bytes().saturating_sub(before) / ENTRIES;
    (grown.saturating_sub((KEY_BYTES + VALUE_BYTES) as u64), filled)
}

fn entry(index: u64) -> (Box<[u8]>, Box<[u8]>) {
    let mut key = vec![1; KEY_BYTES].into_boxed_slice();
    key[..8].copy_from_slice(&index.to_le_bytes());
    (key, vec![2; VALUE_BYTES].into_boxed_slice())
}

impl Costs {
    pub(crate) fn measure(_memory: u64) -> Costs {
        // All three are kept until the last has been measured: freed memory would not grow again.
        let (quick_cache, first) = cost(|| {
            let cache = quick_cache::sync::Cache::<Box<[u8]>, Box<[u8]>>::new(ENTRIES as usize * 2);
            (0..ENTRIES).map(entry).for_each(|(key, value)| cache.insert(key, value));
            cache
        });
        let (moka, second) = cost(|| {
            let cache = moka::sync::Cache::<Box<[u8]>, std::sync::Arc<[u8]>>::new(ENTRIES * 2);
            for (key, value) in (0..ENTRIES).map(entry) {
                cache.insert(key, value.into());
            }
            cache.run_pending_tasks();
            cache
        });
        let (foyer, third) = cost(|| {
            let cache: foyer::Cache<Box<[u8]>, Box<[u8]>> =
                foyer::CacheBuilder::new(ENTRIES as usize * 2).with_shards(1).build();
            for (key, value) in (0..ENTRIES).map(entry) {
                cache.insert(key, value);
            }
            cache
        });
        drop((first, second, third));
        Costs { quick_cache, moka, foyer }
    }

    /// The ratio of each, by name, and what an entry costs it.
    pub(super) fn ratios(&self, memory: u64, test: &Test<'_>) -> Vec<(&'static str, f64)> {
        let weigher = |cost: u64| move |lengths: &u64| lengths + cost;
        let estimated = (memory / 400) as usize;
        let quick = weigher(self.quick_cache);
        let mut quick = Quick(quick_cache::unsync::Cache::with_weighter(
            estimated,
            memory,
            Weighter(Box::new(quick)),
        ));
        let cost = self.moka;
        let moka = moka::sync::Cache::builder()
            .max_capacity(memory)
            .weigher(move |_: &u64, lengths: &u64| (lengths + cost) as u32)
            .build();
        let foyer = |eviction: foyer::EvictionConfig| {
            let cost = self.foyer as usize;
            let cache: foyer::Cache<u64, u64> = foyer::CacheBuilder::new(memory as usize)
                .with_shards(1)
                .with_eviction_config(eviction)
                .with_weighter(move |_: &u64, lengths: &u64| *lengths as usize + cost)
                .build();
            Foyer(cache)
        };
        vec![
            ("quick_cache", test.ratio(&mut quick)),
            ("moka", test.ratio(&mut Moka(moka, 0))),
            ("foyer_s3fifo", test.ratio(&mut foyer(foyer::S3FifoConfig::default().into()))),
            ("foyer_lfu", test.ratio(&mut foyer(foyer::LfuConfig::default().into()))),
        ]
    }
}

fn lengths(op: &Op) -> u64 {
    u64::from(op.key.key_bytes) + u64::from(op.key.value_bytes)
}

/// Weighs an entry of these lengths.
struct Weighter(Box<dyn Fn(&u64) -> u64>);

impl Clone for Weighter {
    fn clone(&self) -> Self {
        unreachable!("a cache of one thread has one weighter")
    }
}

impl quick_cache::Weighter<u64, u64> for Weighter {
    fn weight(&self, _: &u64, lengths: &u64) -> u64 {
        (self.0)(lengths)
    }
}

struct Quick(quick_cache::unsync::Cache<u64, u64, Weighter>);

impl Contender for Quick {
    fn get(&mut self, op: &Op) -> bool {
        self.0.get(&op.key.id).is_some()
    }

    fn set(&mut self, op: &Op) {
        self.0.insert(op.key.id, lengths(op));
    }
}

struct Moka(moka::sync::Cache<u64, u64>, u64);

impl Contender for Moka {
    fn get(&mut self, op: &Op) -> bool {
        self.0.get(&op.key.id).is_some()
    }

    fn set(&mut self, op: &Op) {
        self.0.insert(op.key.id, lengths(op));
        // Its evictions are deferred; a busy server would have done them by now.
        self.1 += 1;
        if self.1.is_multiple_of(64) {
            self.0.run_pending_tasks();
        }
    }
}

struct Foyer(foyer::Cache<u64, u64>);

impl Contender for Foyer {
    fn get(&mut self, op: &Op) -> bool {
        self.0.get(&op.key.id).is_some()
    }

    fn set(&mut self, op: &Op) {
        self.0.insert(op.key.id, lengths(op));
    }
}
