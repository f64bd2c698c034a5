//! Deterministic random numbers: the same seed gives the same run on every machine.
//!
//! [`SplitMix64`] turns one seed into many and fills values; [`Rng`] (xoshiro256**) drives the
//! workloads. Neither is meant to keep a secret. Both live on the caller's stack and never
//! allocate. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
//! OOPSLA 2014; Blackman, Vigna, "Scrambled linear pseudorandom number generators", 2021.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes one 64-bit word so that every input bit touches every output bit; a bijection.
#[inline]
#[must_use]
pub const fn mix64(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// A counter that is mixed at every step: eight bytes of state.
#[derive(Debug, Clone)]
pub struct SplitMix64(rand_xoshiro::SplitMix64);

impl SplitMix64 {
    /// A stream that `seed` names completely.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(rand_xoshiro::SplitMix64::seed_from_u64(seed))
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

/// The generator behind every workload: xoshiro256**, period 2^256 − 1.
#[derive(Debug, Clone)]
pub struct Rng(Xoshiro256StarStar);

impl Rng {
    /// A stream that `seed` names completely; neighbouring seeds give unrelated streams.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256StarStar::seed_from_u64(seed))
    }

    /// A stream for one of several parties (clients, threads) of the run that `seed` names.
    #[must_use]
    pub fn for_party(seed: u64, party: u64) -> Self {
        Self::new(mix64(seed) ^ mix64(party.wrapping_add(1).wrapping_mul(GOLDEN_GAMMA)))
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `[0, 1)` with 53 random bits.
    #[inline]
    pub fn next_f64(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * STEP
    }

    /// A number in `0..bound`, without bias (Lemire's multiplication with rejection).
    ///
    /// # Panics
    /// When `bound` is 0: there is no such number.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        let mut product = self.next_u64() as u128 * bound as u128;
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = self.next_u64() as u128 * bound as u128;
            }
        }
        (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_stream_that_it_always_gave() {
        let mut rng = Rng::new(7);
        assert_eq!(
            [rng.next_u64(), rng.next_u64(), rng.next_u64()],
            [12_923_355_070_828_475_994, 5_142_052_590_334_782_674, 15_488_392_906_492_639_638,]
        );
        assert_eq!(SplitMix64::new(1_234_567).next_u64(), 6_457_827_717_110_365_317);
    }

    #[test]
    fn bounded_numbers_stay_below_the_bound_and_reach_each_value_equally() {
        let mut rng = Rng::new(7);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[rng.below(10) as usize] += 1;
        }
        // Standard deviation is 95; five of them leave a false alarm in a million runs.
        for count in counts {
            assert!(count.abs_diff(10_000) < 475, "seed 7: {counts:?}");
        }
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn fractions_lie_in_the_half_open_unit_interval() {
        let mut rng = Rng::new(8);
        let sum: f64 = (0..100_000)
            .map(|_| {
                let fraction = rng.next_f64();
                assert!((0.0..1.0).contains(&fraction));
                fraction
            })
            .sum();
        assert!((sum / 100_000.0 - 0.5).abs() < 0.005);
    }

    #[test]
    fn parties_of_one_run_get_different_streams() {
        let firsts: std::collections::HashSet<u64> =
            (0..1000).map(|party| Rng::for_party(1, party).next_u64()).collect();
        assert_eq!(firsts.len(), 1000);
    }
}
