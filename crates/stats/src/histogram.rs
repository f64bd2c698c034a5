//! Latencies without clipping: every sample is kept, from one nanosecond to centuries.
//!
//! A [`Histogram`] covers all of `u64` with three significant digits (error below 0.1 %), so that
//! nothing can be out of range and nothing is allocated after it was made (some 450 KiB). Count,
//! sum, smallest and largest value are exact. Each process records its own; [`Histogram::merge`]
//! joins them, and between processes they travel as JSON `{digits, min, max, sum, counts}` with
//! (value, count) pairs, since the dependency is built without its own wire format.

use hdrhistogram::Histogram as Hdr;
use serde::{Deserialize, Serialize};

const SIGNIFICANT_DIGITS: u8 = 3;

/// Samples of one kind, in a unit that the caller knows (nanoseconds as a rule).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(try_from = "Packed", into = "Packed")]
pub struct Histogram {
    buckets: Hdr<u64>,
    min: u64,
    max: u64,
    sum: u128,
}

/// The numbers that every report shows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub n: u64,
    pub mean: f64,
    pub p50: u64,
    /// 99 of 100 samples are at most this.
    pub p99: u64,
    /// 999 of 1000 samples are at most this.
    pub p999: u64,
    pub max: u64,
}

/// Why a text is no histogram. None of these goes away by a retry.
#[derive(Debug, thiserror::Error)]
pub enum HistogramError {
    #[error("a histogram of {found} digits, not {SIGNIFICANT_DIGITS}")]
    Digits { found: u8 },
    /// Smallest, largest, sum and counts contradict each other.
    #[error("the histogram contradicts itself: {what}")]
    Inconsistent { what: &'static str },
    /// Not the JSON of a histogram.
    #[error("not the JSON of a histogram: {0}")]
    Json(#[from] serde_json::Error),
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty histogram; the only call that allocates.
    ///
    /// # Panics
    /// Never: the bounds are constants that the dependency accepts.
    #[must_use]
    pub fn new() -> Self {
        let buckets = match Hdr::new_with_bounds(1, u64::MAX, SIGNIFICANT_DIGITS) {
            Ok(buckets) => buckets,
            Err(error) => unreachable!("constant bounds were refused: {error}"),
        };
        Self { buckets, min: u64::MAX, max: 0, sum: 0 }
    }

    #[inline]
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    #[inline]
    pub fn record_n(&mut self, value: u64, count: u64) {
        if count == 0 {
            return;
        }
        // The range is all of `u64`: "saturating" has nothing to saturate.
        self.buckets.saturating_record_n(value, count);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.sum += u128::from(value) * u128::from(count);
    }

    /// Adds all samples of `other`.
    pub fn merge(&mut self, other: &Self) {
        for step in other.buckets.iter_recorded() {
            let value = step.value_iterated_to();
            self.buckets.saturating_record_n(value, step.count_at_value());
        }
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// Forgets all samples, keeps the memory.
    pub fn clear(&mut self) {
        self.buckets.reset();
        (self.min, self.max, self.sum) = (u64::MAX, 0, 0);
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The value that a share `quantile` (0 to 1) of the samples does not exceed, within 0.1 %;
    /// 0 without samples.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.buckets.value_at_quantile(quantile).clamp(self.min, self.max)
    }

    /// Smallest sample, exact; 0 without samples.
    #[must_use]
    pub fn min(&self) -> u64 {
        if self.is_empty() { 0 } else { self.min }
    }

    /// Largest sample, exact; 0 without samples.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Arithmetic mean, exact; 0 without samples.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.is_empty() { 0.0 } else { self.sum as f64 / self.count() as f64 }
    }

    /// The numbers that every report shows.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            n: self.count(),
            mean: self.mean(),
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: self.max(),
        }
    }

    /// Points `(quantile, value)` for a percentile chart: 0, 0.5, 0.9, 0.99 … with
    /// `steps_per_nine` points to each further nine, as far as the samples reach, then the
    /// largest at quantile 1.
    #[must_use]
    pub fn percentile_curve(&self, steps_per_nine: u32) -> Vec<(f64, u64)> {
        let mut curve = Vec::new();
        if self.is_empty() {
            return curve;
        }
        let smallest_share = 1.0 / self.count() as f64;
        for step in 0.. {
            let above = 10f64.powf(-f64::from(step) / f64::from(steps_per_nine.max(1)));
            if above < smallest_share {
                break;
            }
            curve.push((1.0 - above, self.quantile(1.0 - above)));
        }
        curve.push((1.0, self.max));
        curve
    }

    /// The histogram as one line of JSON.
    ///
    /// # Errors
    /// [`HistogramError::Json`], never in practice.
    pub fn to_json(&self) -> Result<String, HistogramError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Reads what [`Histogram::to_json`] wrote, in another process as a rule.
    ///
    /// # Errors
    /// [`HistogramError`] when the text is no histogram or contradicts itself.
    pub fn from_json(text: &str) -> Result<Self, HistogramError> {
        Ok(serde_json::from_str(text)?)
    }
}

/// What travels between processes. The sum is text: JSON readers may not hold 128 bits.
#[derive(Serialize, Deserialize)]
struct Packed {
    digits: u8,
    min: u64,
    max: u64,
    sum: String,
    counts: Vec<(u64, u64)>,
}

impl From<Histogram> for Packed {
    fn from(histogram: Histogram) -> Self {
        let steps = histogram.buckets.iter_recorded();
        Self {
            digits: SIGNIFICANT_DIGITS,
            min: histogram.min(),
            max: histogram.max,
            sum: histogram.sum.to_string(),
            counts: steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect(),
        }
    }
}

impl TryFrom<Packed> for Histogram {
    type Error = HistogramError;

    fn try_from(packed: Packed) -> Result<Self, HistogramError> {
        let wrong = |what| HistogramError::Inconsistent { what };
        if packed.digits != SIGNIFICANT_DIGITS {
            return Err(HistogramError::Digits { found: packed.digits });
        }
        let mut histogram = Self::new();
        let mut samples = 0u64;
        for &(value, count) in &packed.counts {
            samples = samples.checked_add(count).ok_or(wrong("more samples than 64 bits count"))?;
            histogram.record_n(value, count);
        }
        if histogram.is_empty() {
            return Ok(histogram);
        }
        if !histogram.buckets.equivalent(histogram.min, packed.min) {
            return Err(wrong("the smallest value is not in the counts"));
        }
        if !histogram.buckets.equivalent(histogram.max, packed.max) {
            return Err(wrong("the largest value is not in the counts"));
        }
        let sum = packed.sum.parse::<u128>().map_err(|_| wrong("the sum is no number"))?;
        let (least, most) = (u128::from(packed.min), u128::from(packed.max));
        if sum < least * u128::from(samples) || sum > most * u128::from(samples) {
            return Err(wrong("the sum is not between the smallest and the largest value"));
        }
        (histogram.min, histogram.max, histogram.sum) = (packed.min, packed.max, sum);
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    #[test]
    fn a_sample_of_thirty_seconds_and_one_of_a_day_are_kept() {
        let mut histogram = Histogram::new();
        for _ in 0..98 {
            histogram.record(100);
        }
        histogram.record(30_000_000_000);
        histogram.record(86_400_000_000_000);
        assert_eq!(histogram.max(), 86_400_000_000_000);
        let p99 = histogram.quantile(0.99);
        assert!(p99.abs_diff(30_000_000_000) <= 30_000_000, "{p99}");
        assert_eq!(histogram.quantile(0.5), 100);
        assert_eq!(histogram.count(), 100);
    }

    /// Whether all samples are in the numbers of a report.
    fn reports_all(record: fn(&mut Histogram, u64)) -> bool {
        let samples = [100, 199_999, 200_000, 200_001, 1_000_000, 30_000_000_000, u64::MAX];
        let mut histogram = Histogram::new();
        samples.iter().for_each(|sample| record(&mut histogram, *sample));
        let Summary { n, mean, p50, max, .. } = histogram.summary();
        let sum = samples.iter().map(|sample| u128::from(*sample)).sum::<u128>() as f64;
        (n, mean, max) == (7, sum / 7.0, u64::MAX) && p50 > 200_000
    }

    #[test]
    fn latencies_above_200_us_were_dropped_from_reports() {
        assert!(reports_all(Histogram::record));
        // As it was published; and a histogram with an upper end.
        assert!(!reports_all(|histogram, ns| {
            if ns <= 200_000 {
                histogram.record(ns);
            }
        }));
        assert!(!reports_all(|histogram, ns| histogram.record(ns.min(200_000))));
    }

    #[test]
    fn the_ends_of_the_range_are_kept() {
        let mut histogram = Histogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!((histogram.min(), histogram.max(), histogram.count()), (0, u64::MAX, 2));
    }

    #[test]
    fn percentiles_are_within_a_thousandth_of_the_sorted_samples() {
        let mut rng = Rng::new(11);
        let mut histogram = Histogram::new();
        let mut samples: Vec<u64> =
            (0..100_000).map(|_| 50 + (rng.next_f64().powi(6) * 1e8) as u64).collect();
        for &sample in &samples {
            histogram.record(sample);
        }
        samples.sort_unstable();
        for quantile in [0.5, 0.9, 0.99, 0.999] {
            let exact = samples[(quantile * 100_000.0) as usize - 1] as f64;
            let seen = histogram.quantile(quantile) as f64;
            assert!((seen / exact - 1.0).abs() < 0.001, "{quantile}: {seen}, exactly {exact}");
        }
        let mean = samples.iter().sum::<u64>() as f64 / 1e5;
        assert!((histogram.mean() - mean).abs() < 1e-6 * mean);
    }

    #[test]
    fn merged_histograms_equal_one_that_saw_everything() {
        let mut rng = Rng::new(12);
        let (mut whole, mut parts) = (Histogram::new(), [Histogram::new(), Histogram::new()]);
        for index in 0..20_000 {
            let sample = rng.below(1 << (1 + index % 40));
            whole.record(sample);
            parts[index % 2].record(sample);
        }
        let mut joined = Histogram::new();
        for part in &parts {
            let travelled = Histogram::from_json(&part.to_json().unwrap()).unwrap();
            joined.merge(&travelled);
        }
        assert_eq!(joined.summary(), whole.summary());
        assert_eq!(joined.percentile_curve(4), whole.percentile_curve(4));
    }

    #[test]
    fn an_empty_histogram_answers_zero_and_travels() {
        let empty = Histogram::from_json(&Histogram::new().to_json().unwrap()).unwrap();
        assert_eq!((empty.count(), empty.min(), empty.max(), empty.quantile(0.99)), (0, 0, 0, 0));
        assert!(empty.percentile_curve(4).is_empty());
        let mut sample = Histogram::new();
        sample.record(5);
        sample.merge(&empty);
        assert_eq!((sample.min(), sample.max()), (5, 5));
    }

    #[test]
    fn a_histogram_that_contradicts_itself_is_refused() {
        let good = r#"{"digits":3,"min":5,"max":9,"sum":"14","counts":[[5,1],[9,1]]}"#;
        assert!(Histogram::from_json(good).is_ok());
        for (from, to) in [
            ("\"digits\":3", "\"digits\":2"),
            ("\"min\":5", "\"min\":6"),
            ("\"max\":9", "\"max\":90000"),
            ("\"14\"", "\"400\""),
            ("\"14\"", "\"-1\""),
            ("[5,1]", "[5,18446744073709551615]"),
            ("counts", "count"),
        ] {
            assert!(Histogram::from_json(&good.replace(from, to)).is_err(), "{from} as {to}");
        }
    }

    #[test]
    fn the_percentile_curve_rises_and_ends_at_the_largest_sample() {
        let mut histogram = Histogram::new();
        for value in 1..=10_000 {
            histogram.record(value);
        }
        let curve = histogram.percentile_curve(8);
        assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
        assert_eq!(curve.last(), Some(&(1.0, 10_000)));
        assert_eq!(curve.len(), 8 * 4 + 2);
    }

    #[test]
    fn a_cleared_histogram_is_as_new() {
        let mut histogram = Histogram::new();
        histogram.record(77);
        histogram.clear();
        assert!(histogram.is_empty() && histogram.min() == 0 && histogram.max() == 0);
    }
}
