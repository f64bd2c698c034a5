//! Which items stay when room is needed: policies on one log, and what they remember of items that
//! are gone.
//!
//! A policy sees whole segments, oldest first, and decides for each live item in them: drop it, or
//! move it to a younger place. `evict.rs` carries that out; here are the names, the ghosts (hashes
//! of what was dropped lately) and the sketch (about how often each key was asked for).
//!
//! Source: HERD (FIFO), MICA (FIFO with reinsertion), SIEVE, S3-FIFO, TinyLFU.

use super::error::Result;
use super::evict::COMPETITORS;
use super::layout::FREQ_MAX;
use super::{Mode, check};

/// Ghosts that are kept for each unit: about the items of a unit.
const GHOSTS_PER_UNIT: u64 = 128;
/// Ghosts that share a place.
const GHOST_WAYS: usize = 4;
/// Counters of the sketch for each unit: some five for each item of 400 bytes.
const COUNTERS_PER_UNIT: u64 = 768;
/// Counters that a key has.
const SKETCH_ROWS: u32 = 4;
/// Counters of a block, a cache line: all of a key's are in one.
const BLOCK_COUNTERS: usize = 64;
/// The sketch forgets half of everything after so many counts for each counter: 10 for each item.
const COUNTS_PER_COUNTER: u64 = 2;

/// Which items stay when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The oldest go, whatever their use.
    Fifo,
    /// Of the oldest, those that were used at least `threshold` times since they were last judged
    /// go to the young end once more.
    FifoReinsertion {
        /// Uses that save an item, 1 to 15.
        threshold: u8,
    },
    /// A hand goes from old to young and round again; what was not used since it last came by goes,
    /// the rest keeps its place.
    Sieve,
    /// What is new has to prove itself in a small queue, or come back soon after it was dropped
    /// from there, before it may stay for as long as it is used.
    S3Fifo,
    /// What leaves a small window competes with the oldest of the rest: those stay that were asked
    /// for most often, for their size, remembered also from the time when they were not here.
    TinyLfu,
}

impl Policy {
    /// Checks its numbers.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Policy::FifoReinsertion { threshold } => {
                check("threshold", u64::from(threshold), 1, FREQ_MAX)
            }
            _ => Ok(()),
        }
    }

    /// Free units that it needs for what it moves before it gives others back.
    pub(crate) fn reserve_units(self, mode: Mode, units: u64) -> usize {
        match self {
            Policy::TinyLfu if mode == Mode::Cache => (COMPETITORS + 1).min(units as usize / 8),
            _ => 1,
        }
    }

    /// How far uses are counted.
    pub(crate) fn freq_max(self) -> u64 {
        match self {
            Policy::Fifo => 0,
            Policy::FifoReinsertion { threshold } => u64::from(threshold),
            Policy::Sieve => 1,
            Policy::S3Fifo => 3,
            Policy::TinyLfu => FREQ_MAX,
        }
    }
}

/// What a policy keeps beside the items.
#[derive(Debug)]
pub(crate) struct PolicyState {
    ghosts: Vec<[u32; GHOST_WAYS]>,
    sketch: Vec<[u8; BLOCK_COUNTERS]>,
    counts: u64,
}

impl PolicyState {
    /// Private bytes for each unit.
    pub fn unit_bytes(policy: Policy) -> u64 {
        match policy {
            Policy::S3Fifo => GHOSTS_PER_UNIT * size_of::<u32>() as u64,
            Policy::TinyLfu => COUNTERS_PER_UNIT,
            _ => 0,
        }
    }

    pub fn new(policy: Policy, units: u64) -> PolicyState {
        let bytes = Self::unit_bytes(policy) * units;
        let ghosts = bytes as usize / size_of::<[u32; GHOST_WAYS]>();
        let blocks = bytes as usize / BLOCK_COUNTERS;
        let (ghosts, blocks) = if policy == Policy::S3Fifo { (ghosts, 0) } else { (0, blocks) };
        PolicyState {
            ghosts: vec![[0; GHOST_WAYS]; ghosts],
            sketch: vec![[0; BLOCK_COUNTERS]; blocks],
            counts: 0,
        }
    }

    /// A look-up found nothing.
    #[inline]
    pub fn missed(&mut self, hash: u64) {
        if !self.sketch.is_empty() {
            self.count(hash, 1);
        }
    }

    fn place(hash: u64, places: usize) -> usize {
        ((u128::from(hash.wrapping_mul(0xd6e8_feb8_6659_fd93)) * places as u128) >> 64) as usize
    }

    fn fingerprint(hash: u64) -> u32 {
        (hash as u32).max(1)
    }

    /// Remembers that an item was dropped.
    pub fn bury(&mut self, hash: u64) {
        if self.ghosts.is_empty() {
            return;
        }
        let place = Self::place(hash, self.ghosts.len());
        let ghosts = &mut self.ghosts[place];
        ghosts.rotate_right(1);
        ghosts[0] = Self::fingerprint(hash);
    }

    /// Whether an item was dropped lately; it is forgotten then.
    pub fn exhume(&mut self, hash: u64) -> bool {
        if self.ghosts.is_empty() {
            return false;
        }
        let place = Self::place(hash, self.ghosts.len());
        let found = self.ghosts[place].iter_mut().find(|it| **it == Self::fingerprint(hash));
        found.map(|ghost| *ghost = 0).is_some()
    }

    /// Counts `times` uses of a key.
    pub fn count(&mut self, hash: u64, times: u8) {
        let block = Self::place(hash, self.sketch.len());
        for row in 0..SKETCH_ROWS {
            let counter = &mut self.sketch[block][Self::counter(hash, row)];
            *counter = counter.saturating_add(times);
        }
        self.counts += u64::from(times);
        if self.counts >= self.sketch.len() as u64 * BLOCK_COUNTERS as u64 * COUNTS_PER_COUNTER {
            self.counts /= 2;
            self.sketch.as_flattened_mut().iter_mut().for_each(|counter| *counter /= 2);
        }
    }

    fn counter(hash: u64, row: u32) -> usize {
        // Each row has a quarter of the block.
        let in_row = (hash >> (8 * row + 4)) as usize % (BLOCK_COUNTERS / SKETCH_ROWS as usize);
        row as usize * (BLOCK_COUNTERS / SKETCH_ROWS as usize) + in_row
    }

    /// About how often a key was used lately: never too few, but for what was halved.
    pub fn estimate(&self, hash: u64) -> u8 {
        let block = &self.sketch[Self::place(hash, self.sketch.len())];
        let counters = (0..SKETCH_ROWS).map(|row| block[Self::counter(hash, row)]);
        counters.min().expect("there are rows")
    }

    pub fn clear(&mut self) {
        self.ghosts.fill([0; GHOST_WAYS]);
        self.sketch.as_flattened_mut().fill(0);
        self.counts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ghosts_are_found_once_and_the_oldest_are_forgotten() {
        let mut state = PolicyState::new(Policy::S3Fifo, 4);
        (1..=100_u64).for_each(|hash| state.bury(hash << 32 | hash));
        let found = (1..=100_u64).filter(|hash| state.exhume(hash << 32 | hash)).count();
        assert!(found > 80, "{found} of 100 ghosts");
        assert!(!(1..=100_u64).any(|hash| state.exhume(hash << 32 | hash)));
    }

    #[test]
    fn the_sketch_never_counts_too_few_and_forgets_by_half() {
        let mut state = PolicyState::new(Policy::TinyLfu, 4);
        let hash = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..200).for_each(|i| state.count(hash(i), (i % 7) as u8));
        assert!((0..200).all(|i| state.estimate(hash(i)) >= (i % 7) as u8));
        let exact = (0..200).filter(|i| state.estimate(hash(*i)) == (*i % 7) as u8).count();
        assert!(exact > 150, "{exact} of 200 are exact");
        let before = state.estimate(hash(6));
        (0..9000).for_each(|_| state.count(hash(1_000_000), 1));
        assert!(state.estimate(hash(6)) <= before.div_ceil(2));
    }
}
