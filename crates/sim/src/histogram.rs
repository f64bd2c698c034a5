//! Counts of durations in buckets that are at most 1/32 of their value wide, so that a percentile
//! is never further off than that; nothing is clipped.

use serde::{Deserialize, Serialize};

/// Bits of a value that a bucket tells apart.
const PRECISION_BITS: u32 = 5;
const SUB_BUCKETS: usize = 1 << PRECISION_BITS;
const BUCKETS: usize = (64 - PRECISION_BITS as usize + 1) * SUB_BUCKETS;

/// A histogram of whole numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    min: u64,
    max: u64,
    sum: u128,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS], count: 0, min: u64::MAX, max: 0, sum: 0 }
    }
}

impl Histogram {
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.count += 1;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += u128::from(value);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean, `None` without values.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The value that `ppm` millionths of the values do not exceed: the middle of its bucket, but
    /// never outside of what was recorded. `None` without values.
    pub fn percentile(&self, ppm: u64) -> Option<u64> {
        let rank = (u128::from(self.count) * u128::from(ppm)).div_ceil(1_000_000).max(1);
        let mut seen = 0;
        let index = self.counts.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        })?;
        Some(middle(index).clamp(self.min, self.max))
    }
}

fn bucket(value: u64) -> usize {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(PRECISION_BITS + 1);
    let within = (value >> shift) as usize;
    shift as usize * SUB_BUCKETS + within
}

fn middle(index: usize) -> u64 {
    if index < 2 * SUB_BUCKETS {
        return index as u64;
    }
    let shift = index / SUB_BUCKETS - 1;
    let within = (index - shift * SUB_BUCKETS) as u64;
    (within << shift) + (1u64 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_within_a_thirty_second_of_the_value() {
        let mut histogram = Histogram::default();
        (1..=100_000u64).for_each(|value| histogram.record(value * 37));
        for (ppm, exact) in [(500_000, 1_850_000.0), (990_000, 3_663_000.0), (10, 37.0)] {
            let got = histogram.percentile(ppm).unwrap() as f64;
            assert!((got / exact - 1.0).abs() < 1.0 / 32.0, "{ppm}: {got} instead of {exact}");
        }
        assert_eq!(histogram.percentile(1_000_000), Some(3_700_000));
        assert_eq!(histogram.count(), 100_000);
        assert_eq!(Histogram::default().percentile(1), None);
    }

    #[test]
    fn every_value_has_a_bucket_that_holds_it() {
        for value in (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, 3 << bit >> 1]) {
            let middle = middle(bucket(value));
            assert!(middle.abs_diff(value) <= value / 32, "{value} is in the bucket of {middle}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }
}
