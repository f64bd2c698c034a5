//! Which items stay when room is needed: policies on one log, and what they remember of items that
//! are gone.
//!
//! A policy sees whole segments, oldest first, and decides for each live item in them: drop it, or
//! move it to a younger place. `evict.rs` carries that out; here are the names, the ghosts (hashes
//! of what was dropped lately) and the sketch (about how often each key was asked for).
//!
//! Source: HERD (FIFO), MICA (FIFO with reinsertion), SIEVE, S3-FIFO, TinyLFU.

use super::error::Result;
use super::layout::FREQ_MAX;
use super::{Mode, check};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
/// After so many counts the sketch forgets half of a block, one block after the other: of each when
/// there were some five for each item.
const COUNTS_PER_HALVING: u64 = BLOCK_COUNTERS as u64;

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
            // Each of the segments that it weighs comes back as soon as it is judged.
            Policy::TinyLfu if mode == Mode::Cache => 2.min(units as usize / 8),
            // What is compacted may grow: an item keeps its cas then, if that was told.
            _ if mode == Mode::Store => 2,
            _ => 1,
        }
    }

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

#[derive(Debug)]
pub(crate) struct PolicyState {
    ghosts: Vec<[u32; GHOST_WAYS]>,
    pub sketch: Arc<Sketch>,
}

impl PolicyState {
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
        PolicyState { ghosts: vec![[0; GHOST_WAYS]; ghosts], sketch: Arc::new(Sketch::new(blocks)) }
    }

    fn fingerprint(hash: u64) -> u32 {
        (hash as u32).max(1)
    }

    pub fn bury(&mut self, hash: u64) {
        if self.ghosts.is_empty() {
            return;
        }
        let place = place(hash, self.ghosts.len());
        let ghosts = &mut self.ghosts[place];
        ghosts.rotate_right(1);
        ghosts[0] = Self::fingerprint(hash);
    }

    /// Whether an item was dropped lately; it is forgotten then.
    pub fn exhume(&mut self, hash: u64) -> bool {
        if self.ghosts.is_empty() {
            return false;
        }
        let place = place(hash, self.ghosts.len());
        let found = self.ghosts[place].iter_mut().find(|it| **it == Self::fingerprint(hash));
        found.map(|ghost| *ghost = 0).is_some()
    }
}

/// About how often each key was used lately. Readers without a lock count as well; a use that is
/// counted at the same time as another one may be lost.
#[derive(Debug)]
pub(crate) struct Sketch {
    blocks: Box<[Block]>,
    counts: AtomicU64,
}

/// Counters of a byte each, eight to a word.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Block([AtomicU64; BLOCK_COUNTERS / 8]);

impl Sketch {
    /// One of so many blocks; without any it counts nothing.
    fn new(blocks: usize) -> Sketch {
        let blocks = (0..blocks).map(|_| Block::default()).collect();
        Sketch { blocks, counts: AtomicU64::new(0) }
    }

    #[inline]
    pub fn missed(&self, hash: u64) {
        if !self.blocks.is_empty() {
            self.count(hash, 1);
        }
    }

    pub fn count(&self, hash: u64, times: u8) {
        let block = &self.blocks[place(hash, self.blocks.len())];
        for row in 0..SKETCH_ROWS {
            let (word, shift) = block.counter(hash, row);
            // Relaxed: an estimate, in which a use may be lost.
            let old = word.load(Ordering::Relaxed);
            let step = times.min(u8::MAX - (old >> shift) as u8);
            // Relaxed: as above.
            word.store(old + (u64::from(step) << shift), Ordering::Relaxed);
        }
        // Relaxed: as above.
        let before = self.counts.load(Ordering::Relaxed);
        let counts = before + u64::from(times);
        // Relaxed: as above.
        self.counts.store(counts, Ordering::Relaxed);
        if counts / COUNTS_PER_HALVING != before / COUNTS_PER_HALVING {
            self.halve(counts / COUNTS_PER_HALVING);
        }
    }

    /// Halves the next block in turn, but not in the first round: there is little yet.
    #[cold]
    fn halve(&self, turn: u64) {
        let blocks = self.blocks.len() as u64;
        if turn < blocks {
            return;
        }
        for word in &self.blocks[(turn % blocks) as usize].0 {
            // Relaxed: see `Sketch::count`.
            let halved = word.load(Ordering::Relaxed) >> 1 & 0x7f7f_7f7f_7f7f_7f7f;
            // Relaxed: as above.
            word.store(halved, Ordering::Relaxed);
        }
    }

    /// About how often a key was used lately: never too few, but for what was halved or lost.
    pub fn estimate(&self, hash: u64) -> u8 {
        let block = &self.blocks[place(hash, self.blocks.len())];
        let counters = (0..SKETCH_ROWS).map(|row| {
            let (word, shift) = block.counter(hash, row);
            // Relaxed: see `Sketch::count`.
            (word.load(Ordering::Relaxed) >> shift) as u8
        });
        counters.min().expect("there are rows")
    }
}

impl Block {
    /// The counter of a key in a row, which has a quarter of the block: its word, and its place
    /// there.
    fn counter(&self, hash: u64, row: u32) -> (&AtomicU64, u32) {
        let in_row = (hash >> (8 * row + 4)) as usize % (BLOCK_COUNTERS / SKETCH_ROWS as usize);
        let counter = row as usize * (BLOCK_COUNTERS / SKETCH_ROWS as usize) + in_row;
        (&self.0[counter / 8], 8 * (counter % 8) as u32)
    }
}

fn place(hash: u64, places: usize) -> usize {
    ((u128::from(hash.wrapping_mul(0xd6e8_feb8_6659_fd93)) * places as u128) >> 64) as usize
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
        let state = PolicyState::new(Policy::TinyLfu, 4);
        let hash = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0..200).for_each(|i| state.sketch.count(hash(i), (i % 7) as u8));
        assert!((0..200).all(|i| state.sketch.estimate(hash(i)) >= (i % 7) as u8));
        let exact = (0..200).filter(|i| state.sketch.estimate(hash(*i)) == (*i % 7) as u8).count();
        assert!(exact > 150, "{exact} of 200 are exact");
        let before = state.sketch.estimate(hash(6));
        (0..9000).for_each(|_| state.sketch.count(hash(1_000_000), 1));
        assert!(state.sketch.estimate(hash(6)) <= before.div_ceil(2));
    }
}
