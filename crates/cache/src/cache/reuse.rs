//! How much a cache has to hold to answer the reads that come: hits by capacity, for the advice on
//! tiers.
//!
//! Only keys with a hash below a threshold are looked at. They lie in the order of their last use,
//! at most [`KEYS_MAX`]; where there would be more, the key with the greatest hash goes and its
//! hash is the threshold from then on. The bytes of the keys before one that is read again, times
//! the keys that each stands for, are what a cache that drops the oldest has to hold to have it. An
//! item that was removed or has expired counts as if it were there; a key that was never stored
//! does not: no cache answers its reads.
//!
//! In: hashes of keys that are read or stored, and items' bytes. Out: counts. Called by `mod.rs`
//! and `many.rs` for look-ups, by `partition.rs` under its lock for stores; takes no other lock.
//!
//! Source: Mattson et al. 1970 (stack distances); SHARDS, FAST 2015 (sampled by hash, fixed size).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keys that are kept. Each sampled read passes those that were used since: some microseconds.
const KEYS_MAX: usize = 4096;
/// One key in so many is looked at, at most: of few keys there would be a look for every read.
const KEYS_PER_SAMPLE_MIN: u64 = 64;
/// What was used so long ago is forgotten, of the capacity: advice is asked about far memory of
/// many times that. [`KEYS_MAX`] bounds what it costs.
const HORIZON: u64 = 32;
/// Capacities that are told apart: four for each doubling, from 64 KiB to 16 TiB.
const FIRST_SHIFT: u32 = 16;
const STEPS_PER_DOUBLING: u64 = 4;
const STEPS: usize = 1 + 28 * STEPS_PER_DOUBLING as usize;
/// Lengths of items that are told apart: powers of two.
const SIZES: usize = 41;

/// Reads since the cache was made, estimated: each that was sampled counts for those that it stands
/// for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Capacities, bytes of items, and the reads that such a cache answers and the one before does
    /// not, if what was used longest ago goes.
    pub by_capacity: Vec<(u64, u64)>,
    /// Reads that none of them answers.
    pub first_reads: u64,
    /// Longest item, bytes, and the reads that found an item up to there, longer than the one
    /// before.
    pub by_item: Vec<(u64, u64)>,
    /// Bytes of the items that they found.
    pub found_bytes: u64,
}

/// Looks at a sample of keys: one in 64 at most.
#[derive(Debug)]
pub struct ReuseSampler {
    /// Keys with a hash below this are looked at.
    below: AtomicU64,
    horizon_bytes: u64,
    state: Mutex<ReuseState>,
}

#[derive(Debug)]
struct ReuseState {
    /// The last used one first.
    keys: Vec<SampledKey>,
    /// Of all of them.
    bytes: u64,
    by_capacity: [u64; STEPS],
    first_reads: u64,
    by_item: [u64; SIZES],
    found_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct SampledKey {
    hash: u64,
    /// 0 until they are known.
    bytes: u64,
}

/// The first capacity that is at least so many bytes.
fn step_of(bytes: u64) -> usize {
    let at = bytes.saturating_sub(1);
    if at >> FIRST_SHIFT == 0 {
        return 0;
    }
    let doubling = at.ilog2();
    let part = (at >> (doubling - STEPS_PER_DOUBLING.ilog2())) % STEPS_PER_DOUBLING;
    let step = u64::from(doubling - FIRST_SHIFT) * STEPS_PER_DOUBLING + part;
    (1 + step as usize).min(STEPS - 1)
}

fn capacity_of(step: usize) -> u64 {
    let Some(step) = (step as u64).checked_sub(1) else { return 1 << FIRST_SHIFT };
    let doubling = FIRST_SHIFT + (step / STEPS_PER_DOUBLING) as u32;
    let parts = STEPS_PER_DOUBLING + step % STEPS_PER_DOUBLING + 1;
    parts << (doubling - STEPS_PER_DOUBLING.ilog2())
}

/// What a part of all keys, those with a hash below `below`, stands for.
fn scaled(part: u64, below: u64) -> u64 {
    let all = (u128::from(part) << 64) / u128::from(below.max(1));
    u64::try_from(all).unwrap_or(u64::MAX)
}

impl ReuseSampler {
    /// Of a cache with so many bytes of memory.
    pub fn new(memory_bytes: u64) -> ReuseSampler {
        ReuseSampler {
            below: AtomicU64::new(u64::MAX / KEYS_PER_SAMPLE_MIN),
            horizon_bytes: memory_bytes.saturating_mul(HORIZON),
            state: Mutex::new(ReuseState {
                keys: Vec::with_capacity(KEYS_MAX + 1),
                bytes: 0,
                by_capacity: [0; STEPS],
                first_reads: 0,
                by_item: [0; SIZES],
                found_bytes: 0,
            }),
        }
    }

    /// Whether a key with this hash is looked at.
    #[inline(always)]
    pub fn wants(&self, hash: u64) -> bool {
        // Relaxed: one that does not count any more is left out under the lock.
        hash < self.below.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, ReuseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A key is read; the bytes of its item, if there is one.
    pub fn read(&self, hash: u64, found_bytes: Option<u64>) {
        let mut state = self.lock();
        // Relaxed: changed under the lock alone.
        let below = self.below.load(Ordering::Relaxed);
        if hash >= below {
            return;
        }
        let reads = scaled(1, below);
        match state.use_key(hash, found_bytes) {
            Some(bytes) => state.by_capacity[step_of(scaled(bytes, below))] += reads,
            None => state.first_reads += reads,
        }
        if let Some(bytes) = found_bytes {
            let size = bytes.max(1).next_power_of_two().ilog2() as usize;
            state.by_item[size.min(SIZES - 1)] += reads;
            state.found_bytes = state.found_bytes.saturating_add(bytes.saturating_mul(reads));
        }
        self.trim(&mut state, below);
    }

    /// An item is stored.
    pub fn stored(&self, hash: u64, bytes: u64) {
        let mut state = self.lock();
        // Relaxed: as above.
        let below = self.below.load(Ordering::Relaxed);
        if hash < below {
            state.use_key(hash, Some(bytes));
            self.trim(&mut state, below);
        }
    }

    fn trim(&self, state: &mut ReuseState, below: u64) {
        while scaled(state.bytes, below) > self.horizon_bytes {
            let Some(oldest) = state.keys.pop() else { break };
            state.bytes -= oldest.bytes;
        }
        if state.keys.len() > KEYS_MAX {
            let greatest = (0..state.keys.len()).max_by_key(|at| state.keys[*at].hash);
            let greatest = state.keys.remove(greatest.expect("there are keys"));
            state.bytes -= greatest.bytes;
            // Relaxed: the lock is held.
            self.below.store(greatest.hash, Ordering::Relaxed);
        }
    }

    /// What was read.
    pub fn counts(&self) -> Reuse {
        let state = self.lock();
        let capacities = (0..).map(capacity_of);
        let sizes = (0..).map(|size: u32| 1_u64 << size);
        Reuse {
            by_capacity: capacities.zip(state.by_capacity).collect(),
            first_reads: state.first_reads,
            by_item: sizes.zip(state.by_item).collect(),
            found_bytes: state.found_bytes,
        }
    }
}

impl ReuseState {
    /// Puts a key first. If it was there with an item: the bytes of all before it, and its own.
    fn use_key(&mut self, hash: u64, bytes: Option<u64>) -> Option<u64> {
        let mut passed_bytes = 0;
        let at = self.keys.iter().position(|key| {
            passed_bytes += key.bytes;
            key.hash == hash
        });
        match at {
            Some(at) => self.keys[..=at].rotate_right(1),
            None => self.keys.insert(0, SampledKey { hash, bytes: 0 }),
        }
        if let Some(bytes) = bytes {
            self.bytes = self.bytes - self.keys[0].bytes + bytes;
            self.keys[0].bytes = bytes;
        }
        at.filter(|_| self.keys[0].bytes > 0).map(|_| passed_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of a key of a test: spread as hashes are.
    fn hash(key: u64) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&key.to_le_bytes())
    }

    fn answered(reuse: &Reuse, capacity_bytes: u64) -> u64 {
        let below = reuse.by_capacity.iter().filter(|(bytes, _)| *bytes <= capacity_bytes);
        below.map(|(_, reads)| reads).sum()
    }

    #[test]
    fn capacities_rise_and_each_number_of_bytes_belongs_to_the_first_that_holds_it() {
        for step in 0..STEPS - 1 {
            let capacity = capacity_of(step);
            assert!(capacity < capacity_of(step + 1));
            assert_eq!((step_of(capacity), step_of(capacity + 1)), (step, step + 1));
        }
        assert_eq!((capacity_of(0), capacity_of(STEPS - 1)), (64 << 10, 16 << 40));
        assert_eq!((step_of(0), step_of(u64::MAX)), (0, STEPS - 1));
    }

    #[test]
    fn keys_that_are_read_in_turn_hit_from_the_capacity_on_that_holds_all() {
        const KEYS: u64 = 200_000;
        let sampler = ReuseSampler::new(1 << 30);
        for key in (0..4).flat_map(|_| 0..KEYS) {
            if sampler.wants(hash(key)) {
                sampler.read(hash(key), Some(1000));
            }
        }
        let reuse = sampler.counts();
        // A sample of some 3000 keys: 2 % off, mostly.
        let close = |found: u64, expected: u64| found.abs_diff(expected) * 10 < expected;
        assert!(close(reuse.first_reads, KEYS), "{reuse:?}");
        assert_eq!(answered(&reuse, KEYS * 1000 * 7 / 10), 0);
        assert!(close(answered(&reuse, KEYS * 1000 * 14 / 10), 3 * KEYS), "{reuse:?}");
        let by_item: Vec<_> = reuse.by_item.iter().filter(|(_, reads)| *reads > 0).collect();
        assert!(matches!(by_item[..], [(1024, reads)] if close(*reads, 4 * KEYS)), "{by_item:?}");
        assert!(close(reuse.found_bytes, 4 * KEYS * 1000));
    }

    #[test]
    fn however_many_keys_there_are_a_fixed_number_is_kept_and_stands_for_all() {
        const KEYS: u64 = 1_000_000;
        let sampler = ReuseSampler::new(1 << 40);
        for key in (0..2).flat_map(|_| 0..KEYS) {
            if sampler.wants(hash(key)) {
                sampler.stored(hash(key), 100);
                sampler.read(hash(key), None);
            }
        }
        assert!(sampler.lock().keys.len() <= KEYS_MAX);
        let below = sampler.below.load(Ordering::Relaxed);
        let all = scaled(sampler.lock().keys.len() as u64, below);
        assert!(all.abs_diff(KEYS) * 10 < KEYS, "{all} keys");
    }

    #[test]
    fn what_was_used_too_long_ago_is_forgotten() {
        let sampler = ReuseSampler::new(1 << 20);
        let all: Vec<u64> = (0..100_000).map(hash).filter(|hash| sampler.wants(*hash)).collect();
        for hash in all.iter().chain(&all) {
            sampler.read(*hash, Some(1000));
        }
        let state = sampler.lock();
        assert!(state.bytes <= HORIZON << 20 >> 6 && state.by_capacity == [0; STEPS]);
    }

    #[test]
    fn reads_of_a_key_that_is_never_stored_are_answered_by_no_capacity() {
        let sampler = ReuseSampler::new(1 << 20);
        let key = (0..).map(hash).find(|hash| sampler.wants(*hash)).unwrap();
        (0..3).for_each(|_| sampler.read(key, None));
        let before = sampler.counts();
        assert!(before.first_reads > 0 && answered(&before, u64::MAX) == 0, "{before:?}");
        sampler.stored(key, 100);
        sampler.read(key, Some(100));
        let now = sampler.counts();
        assert_eq!(now.first_reads, before.first_reads);
        assert_eq!(answered(&now, u64::MAX) * 3, before.first_reads);
    }
}
