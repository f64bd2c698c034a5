//! Randomness of a run: one generator for each purpose, all derived from the run's seed, so that
//! a draw more in one place changes nothing in another.
//!
//! The generator is xoshiro256++ (Blackman and Vigna, 2019), seeded by SplitMix64.

use crate::time::Ps;
use rackpool_stats::random::mix64;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// What a generator is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// The shape of the run: sizes, counts, knobs.
    Shape = 1,
    /// Where a processor is interrupted and for how long.
    Schedule = 2,
    /// When stores leave a store buffer and lines leave a cache.
    Memory = 3,
    /// What the network does to a packet.
    Network = 4,
    Faults = 5,
    /// Which rare branches are forced.
    Rare = 6,
    Workload = 7,
    /// Choices that the engines are handed as a seed.
    Engine = 8,
}

#[derive(Clone, Debug)]
pub struct Rng {
    state: Xoshiro256PlusPlus,
}

impl Rng {
    /// The generator of `purpose` number `index` in the run of `seed`.
    pub fn new(seed: u64, purpose: Purpose, index: u64) -> Rng {
        let mut mix = seed ^ (purpose as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let mut words = [0; 32];
        for word in words.chunks_exact_mut(8) {
            mix = mix.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = mix64(mix ^ index.wrapping_mul(0xa076_1d64_78bd_642f));
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        // A state of zeros would stay one.
        words[24] |= 1;
        Rng { state: Xoshiro256PlusPlus::from_seed(words) }
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state.next_u64()
    }

    /// A number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with this probability, in parts per million.
    #[inline]
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// A duration from `low` to `high`.
    pub fn duration(&mut self, low: Ps, high: Ps) -> Ps {
        Ps(self.between(low.0, high.0))
    }

    /// An exponentially distributed duration of this mean.
    pub fn exponential(&mut self, mean: Ps) -> Ps {
        let uniform = ((self.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        Ps((-uniform.ln() * mean.0 as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_purpose_give_one_sequence_and_others_give_others() {
        let first = |seed, purpose, index| Rng::new(seed, purpose, index).next_u64();
        let one = first(1, Purpose::Schedule, 0);
        assert_eq!(one, first(1, Purpose::Schedule, 0));
        assert_ne!(one, first(2, Purpose::Schedule, 0));
        assert_ne!(one, first(1, Purpose::Network, 0));
        assert_ne!(one, first(1, Purpose::Schedule, 1));
    }

    #[test]
    fn a_run_draws_what_it_always_drew() {
        let mut rng = Rng::new(7, Purpose::Workload, 3);
        let drawn = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        let before =
            [7_015_069_141_901_211_003, 14_442_314_782_595_299_252, 5_719_265_898_216_378_231];
        assert_eq!(drawn, before);
    }

    #[test]
    fn draws_are_uniform_and_exponentials_have_their_mean() {
        let mut rng = Rng::new(7, Purpose::Workload, 0);
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[rng.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
        let sum: u64 = (0..100_000).map(|_| rng.exponential(Ps::us(1)).0).sum();
        let mean_ns = sum / 100_000 / 1000;
        assert!((985..1015).contains(&mean_ns), "{mean_ns} ns");
    }
}
