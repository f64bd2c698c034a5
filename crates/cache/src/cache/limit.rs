//! The limit of a cache's memory while it serves: near units beyond it are kept out of use. In: a
//! limit, at any time; of two the later one holds. Out, in idle turns: units that are free, or
//! become so as they do for a change, and whose memory goes back to the system; where the limit is
//! raised, units that may be used again.

use super::error::Result;
use super::{Cache, LockedPartition, check};
use std::sync::atomic::Ordering;

impl Cache {
    /// Has the cache use so many bytes of [`Options::memory`](super::Options::memory) from now on.
    /// Items go, and memory with them, by [`Cache::tidy`] and at its pace. A file is opened again
    /// with all of it.
    ///
    /// # Errors
    /// [`Error::BadOption`](super::Error::BadOption): more than the cache was made with, or less
    /// than its index and a few items need.
    pub fn limit_memory(&self, bytes: u64) -> Result<()> {
        self.limit_to(bytes, false).map(drop)
    }

    /// As [`Cache::limit_memory`], where less than the cache needs is what it needs; the limit that
    /// holds.
    ///
    /// # Errors
    /// [`Error::BadOption`](super::Error::BadOption): more than the cache was made with.
    pub fn limit_memory_near(&self, bytes: u64) -> Result<u64> {
        self.limit_to(bytes, true)
    }

    fn limit_to(&self, bytes: u64, is_raised: bool) -> Result<u64> {
        let most = self.options.memory;
        let mut all: Vec<_> = self.partitions.iter().map(LockedPartition::lock).collect();
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        let least = all.iter().map(|partition| {
            let near_units = u64::from(partition.segments.near_units());
            product(partition.least_units(), most).div_ceil(near_units.into()) as u64
        });
        let least = least.max().unwrap_or(0).min(most);
        let bytes = if is_raised { bytes.max(least) } else { bytes };
        check("memory limit", bytes, least, most)?;
        for partition in &mut all {
            let near_units = partition.segments.near_units();
            let used = (product(near_units.into(), bytes) / u128::from(most)) as usize;
            partition.segments.withhold(near_units as usize - used);
        }
        // Relaxed: a number for display.
        self.limit.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Bytes of near memory that the cache may use.
    pub fn memory_limit(&self) -> u64 {
        // Relaxed: as above.
        self.limit.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cache, Options};

    #[test]
    fn a_lower_limit_drives_items_out_and_a_higher_one_takes_more_in() {
        let cache = Cache::new(Options { memory: 32 << 20, ..Options::default() }).unwrap();
        let value = [7; 1000];
        let fill = |first: u64| {
            for key in first..first + 40_000 {
                cache.set(&key.to_le_bytes(), &value, 0, 0, 1).unwrap();
            }
            cache.expire(2);
            cache.stats()
        };
        let full = fill(0);
        assert!(full.live_bytes > 24 << 20, "{full:?}");
        cache.limit_memory(12 << 20).unwrap();
        cache.expire(2);
        let limited = cache.stats();
        assert!(limited.live_bytes < 12 << 20 && limited.items > 5_000, "{limited:?}");
        assert_eq!((limited.memory_bytes, cache.memory_limit()), (12 << 20, 12 << 20));
        assert!(limited.units * (64 << 10) <= 12 << 20, "{limited:?}");
        let still = fill(50_000);
        assert!(still.live_bytes < 12 << 20 && still.items > 5_000, "{still:?}");
        cache.limit_memory(32 << 20).unwrap();
        cache.expire(2);
        let raised = fill(100_000);
        assert!(raised.live_bytes > 24 << 20, "{raised:?}");
        for wrong in [1 << 16, 33 << 20] {
            assert!(cache.limit_memory(wrong).is_err(), "{wrong}");
        }
        assert_eq!(cache.memory_limit(), 32 << 20);
        // As little as it can do with: a few items stay, and others come in.
        let least = cache.limit_memory_near(1).unwrap();
        assert_eq!(cache.memory_limit(), least);
        assert!(least < 12 << 20 && cache.limit_memory(least - 1).is_err());
        assert!(cache.limit_memory_near(33 << 20).is_err());
        let little = fill(200_000);
        assert!(little.live_bytes < least && little.items > 0, "{little:?}");
    }
}
