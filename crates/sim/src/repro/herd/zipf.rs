//! Keys as clients draw them: uniformly or by a zipfian, and the partition of each.
//!
//! Source: HERD, workloads: parameter 0.99 as YCSB makes it, 8 Mi keys for each client. The draw is
//! the one of Gray et al. (SIGMOD 1994), which YCSB uses.

use crate::repro::herd::baselines::hash;
use crate::rng::Rng;

/// The skew. Source: HERD, workloads.
pub const ZIPF: f64 = 0.99;
/// Terms of the sum that are added one by one; the rest is an integral.
const SUMMED: u64 = 100_000;

#[derive(Clone, Debug)]
pub struct Keys {
    count: u64,
    skew: Option<Skew>,
    /// Which way the keys are divided.
    division: u64,
}

#[derive(Clone, Debug)]
struct Skew {
    zeta: f64,
    alpha: f64,
    eta: f64,
}

/// Generalized harmonic number of `count`. The rest of a long sum is the integral between the
/// middles of its steps.
fn zeta(count: u64) -> f64 {
    let summed = count.min(SUMMED);
    let sum: f64 = (1..=summed).map(|rank| (rank as f64).powf(-ZIPF)).sum();
    let at = |rank: u64| (rank as f64 + 0.5).powf(1.0 - ZIPF) / (1.0 - ZIPF);
    sum + at(count) - at(summed)
}

impl Keys {
    /// `count` keys, drawn equally often or not, divided in some way.
    pub fn new(count: u64, is_zipfian: bool, division: u64) -> Keys {
        let skew = is_zipfian.then(|| {
            let zeta_of_all = zeta(count);
            let share = (2.0 / count as f64).powf(1.0 - ZIPF);
            Skew {
                zeta: zeta_of_all,
                alpha: 1.0 / (1.0 - ZIPF),
                eta: (1.0 - share) / (1.0 - zeta(2) / zeta_of_all),
            }
        });
        Keys { count, skew, division }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// How much more often than the mean the first key is drawn.
    pub fn hottest(&self) -> f64 {
        self.skew.as_ref().map_or(1.0, |skew| self.count as f64 / skew.zeta)
    }

    /// A key, from 1: a key hash is never 0.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let Some(skew) = &self.skew else { return 1 + rng.below(self.count) };
        let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let share = uniform * skew.zeta;
        if share < 1.0 {
            return 1;
        }
        if share < 1.0 + 0.5f64.powf(ZIPF) {
            return 2;
        }
        let rank = self.count as f64 * (skew.eta * uniform - skew.eta + 1.0).powf(skew.alpha);
        1 + (rank as u64).min(self.count - 1)
    }

    /// The server process that has a key.
    pub fn partition(&self, key: u64, servers: u32) -> u32 {
        ((u128::from(hash(key, self.division << 8)) * u128::from(servers)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    #[test]
    fn the_sum_is_that_of_its_terms() {
        let count = 3 * SUMMED;
        let exact: f64 = (1..=count).map(|rank| (rank as f64).powf(-ZIPF)).sum();
        assert!((zeta(count) / exact - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_first_keys_are_drawn_as_often_as_a_zipfian_says() {
        let keys = Keys::new(1 << 23, true, 1);
        let mut rng = Rng::new(3, Purpose::Workload, 0);
        let mut counts = [0u64; 4];
        let draws = 1_000_000;
        for _ in 0..draws {
            let key = keys.draw(&mut rng) as usize;
            if key < counts.len() {
                counts[key] += 1;
            }
        }
        let share = |rank: f64| rank.powf(-ZIPF) / zeta(1 << 23);
        for (rank, count) in counts.iter().enumerate().skip(1).take(2) {
            let got = *count as f64 / draws as f64;
            assert!((got / share(rank as f64) - 1.0).abs() < 0.02, "{rank}: {got}");
        }
        assert_eq!(counts[0], 0, "a key hash is never 0");
    }
}
