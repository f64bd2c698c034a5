//! Which slot comes next: dependent chains for latency, independent streams for rate.
//!
//! Ours and the raw reference walk the same stream, so that both miss the same caches. A chain is
//! one cycle through all slots in random order: each slot holds the index of the next, and the
//! next access cannot start before the last one has answered.

use rackpool_stats::random::{Rng, SplitMix64};

/// A random permutation of `0..slots` that is one single cycle: `next[i]` follows `i`, and the
/// walk from any slot visits all slots before it returns (Sattolo's algorithm).
///
/// # Panics
/// When there are no slots.
#[must_use]
pub fn random_cycle(slots: u32, seed: u64) -> Vec<u32> {
    assert!(slots > 0, "a cycle needs a slot");
    let mut rng = Rng::new(seed);
    let mut next: Vec<u32> = (0..slots).collect();
    for index in (1..next.len()).rev() {
        // Strictly below `index`: what makes it one cycle instead of any permutation.
        let other = rng.below(index as u64) as usize;
        next.swap(index, other);
    }
    next
}

/// Independent uniform indices below a power of two: one multiplication short of free, so that
/// the stream does not hide what is measured.
#[derive(Debug, Clone)]
pub struct IndexStream {
    mixer: SplitMix64,
    mask: u64,
}

impl IndexStream {
    /// Indices in `0..slots`.
    ///
    /// # Panics
    /// When `slots` is no power of two.
    #[must_use]
    pub fn new(slots: u64, seed: u64) -> Self {
        assert!(slots.is_power_of_two(), "the number of slots must be a power of two");
        Self { mixer: SplitMix64::new(seed), mask: slots - 1 }
    }

    #[inline]
    pub fn next_index(&mut self) -> u64 {
        self.mixer.next_u64() & self.mask
    }

    /// Fills a batch of independent indices.
    #[inline]
    pub fn fill(&mut self, batch: &mut [u64]) {
        for index in batch {
            *index = self.next_index();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_visits_every_slot_once_before_it_returns() {
        for slots in [1u32, 2, 3, 10, 4097] {
            let next = random_cycle(slots, u64::from(slots));
            let mut seen = vec![false; slots as usize];
            let mut at = 0u32;
            for _ in 0..slots {
                assert!(!std::mem::replace(&mut seen[at as usize], true));
                at = next[at as usize];
            }
            assert_eq!(at, 0, "{slots} slots");
        }
    }

    #[test]
    fn a_chain_jumps_far() {
        let next = random_cycle(1 << 16, 5);
        let near = next.iter().enumerate().filter(|&(i, &n)| (i as u32).abs_diff(n) < 16).count();
        assert!(near < 100, "seed 5: {near} of 65536 steps are near");
    }

    #[test]
    fn streams_repeat_with_their_seed_and_fill_their_range() {
        let (mut one, mut two) = (IndexStream::new(64, 9), IndexStream::new(64, 9));
        let mut batch = [0; 32];
        two.fill(&mut batch);
        assert!(batch.iter().all(|&index| index == one.next_index()));
        let seen: std::collections::HashSet<u64> = (0..1000).map(|_| one.next_index()).collect();
        assert_eq!(seen.len(), 64);
    }

    #[test]
    #[should_panic(expected = "power of two")]
    fn an_odd_number_of_slots_is_refused() {
        let _ = IndexStream::new(100, 1);
    }
}
