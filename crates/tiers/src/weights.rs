//! Weights of interleaving from the bandwidth of each memory.
//!
//! Pages are dealt out in the proportion of the weights, so that a program that reads them evenly
//! loads memory `i` by `w_i / sum(w)`. The memory with the least `b_i / w_i` is full first, and all
//! together give `min(b_i / w_i) * sum(w)`. [`solve`] finds the weights for which that is largest;
//! [`rounded`] is what HMSDK does, for comparison. In: bandwidths, from a profile
//! ([`crate::measure`]), firmware or the user. Out: weights. Pure.
//!
//! Source: HMSDK (bandwidth-aware interleaving), `tools/iw_ratio.py` for its rounding.

use serde::{Deserialize, Serialize};

/// The largest weight that the kernel takes.
pub const WEIGHT_MAX: u32 = 255;
/// What is used unless the user says otherwise: larger weights gain little, and a turn of theirs is
/// longer than many allocations.
pub const WEIGHT_MAX_DEFAULT: u32 = 16;
pub const MEMORIES_MAX: usize = 64;
/// The largest bandwidth, MB/s, that bytes a second are counted for.
const MBPS_MAX: f64 = 1e12;
/// HMSDK halves until no weight is above this.
const ROUNDED_SOFT_MAX: f64 = 10.0;

/// Why there are no weights. A retry does not help.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    #[error("no bandwidth is given: one of each memory is needed, in MB/s")]
    NoMemory,
    /// Not numbers with commas between them.
    #[error("{part:?} is no bandwidth: numbers in MB/s with commas between them are needed")]
    Text { part: String },
    #[error("{count} memories are given, at most {MEMORIES_MAX} can be weighed")]
    TooMany { count: usize },
    /// Not a number, infinite, zero, negative, less than 1 B/s or more than 10^12 MB/s.
    #[error("the bandwidth of memory {index} (from 0) is {mbps} MB/s: it must be above 0, finite")]
    Bandwidth { index: usize, mbps: f64 },
    #[error("the largest weight is {max}: it must be from 1 to {WEIGHT_MAX}")]
    Max { max: u32 },
    /// As many weights as bandwidths are needed, each above 0.
    #[error("weights {weights:?} for {memories} memories: one above 0 is needed for each")]
    Weights { weights: Vec<u32>, memories: usize },
    #[error("reads are {share} of the traffic: it must be from 0 to 1")]
    ReadShare { share: f64 },
    /// A mix needs the bandwidth of reads or of writes at least.
    #[error("no bandwidth of this memory is known")]
    NoPoint,
    /// Not a number, infinite or negative.
    #[error("{what} is {value}: it must be finite and not negative")]
    Figure { what: &'static str, value: f64 },
}

/// A weight for each memory, in the order of the bandwidths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weights {
    pub weights: Vec<u32>,
    /// The bandwidth that these weights reach, over that of all memories together; at most 1.
    pub utilisation: f64,
}

/// The best weights with HMSDK's beside them: what `rackpool tiers weights --json` writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub best: Weights,
    /// Null where HMSDK refuses: see [`rounded`].
    pub rounded: Option<Weights>,
}

impl Report {
    /// # Errors
    /// As [`solve`].
    pub fn of(bandwidths_mbps: &[f64], weight_max: u32) -> Result<Report, WeightsError> {
        let best = solve(bandwidths_mbps, weight_max)?;
        Ok(Report { best, rounded: rounded(bandwidths_mbps)? })
    }
}

/// The bandwidths of a text such as `300000,100000`, MB/s.
///
/// # Errors
/// [`WeightsError::Text`]; numbers that are no bandwidths are refused by [`solve`].
pub fn parse_bandwidths(text: &str) -> Result<Vec<f64>, WeightsError> {
    let parse = |part: &str| {
        let wrong = |_| WeightsError::Text { part: part.to_owned() };
        part.trim().parse().map_err(wrong)
    };
    text.split(',').map(parse).collect()
}

/// The weights from 1 to `weight_max` with the greatest utilisation; of several, those with the
/// smallest sum, of which there is only one. Exact, to 1 B/s of each bandwidth in MB/s.
///
/// ```
/// let found = rackpool_tiers::weights::solve(&[300_000.0, 100_000.0], 16)?;
/// assert_eq!((found.weights, found.utilisation), (vec![3, 1], 1.0));
/// # Ok::<(), rackpool_tiers::weights::WeightsError>(())
/// ```
///
/// # Errors
/// [`WeightsError`] of the bandwidths, of their number, or of `weight_max`.
pub fn solve(bandwidths_mbps: &[f64], weight_max: u32) -> Result<Weights, WeightsError> {
    if !(1..=WEIGHT_MAX).contains(&weight_max) {
        return Err(WeightsError::Max { max: weight_max });
    }
    let bandwidths = bytes_per_s(bandwidths_mbps)?;
    // Some memory j with some weight k is full first, at t = b_j / k a unit of weight. Then no
    // weight is above b_i / t, and the greatest sum under that bound takes each as large as it may
    // be. So the best weights are among memories x weight_max candidates, one for each t, instead
    // of weight_max ^ memories; all that are equally good are among them, and two with one sum have
    // one t, hence are the same.
    let mut best: Option<Candidate> = None;
    for (full, bandwidth) in bandwidths.iter().enumerate() {
        for weight in 1..=weight_max {
            let largest = |of: &u128| (of * u128::from(weight) / bandwidth).min(weight_max.into());
            let weights: Vec<u32> = bandwidths.iter().map(|of| largest(of) as u32).collect();
            if weights.contains(&0) {
                continue;
            }
            debug_assert_eq!(weights[full], weight);
            let candidate = Candidate::of(&bandwidths, weights);
            if best.as_ref().is_none_or(|best| candidate.is_better_than(best)) {
                best = Some(candidate);
            }
        }
    }
    // With weight 1 for the slowest memory every weight is 1 or more.
    let best = best.expect("the slowest memory's weight 1 is a candidate");
    Ok(best.weights(&bandwidths))
}

/// HMSDK's weights: bandwidths in whole MB/s are halved until none is above 10, or until one would
/// be 1 or less, rounded (a half to the even neighbour), and divided by their greatest common
/// divisor. None where that tool refuses: for a memory of less than 1 MB/s, and where it rounds a
/// weight to 0. Weights may be above [`WEIGHT_MAX`], which the kernel then refuses.
///
/// # Errors
/// [`WeightsError`] of the bandwidths and of their number.
pub fn rounded(bandwidths_mbps: &[f64]) -> Result<Option<Weights>, WeightsError> {
    let bandwidths = bytes_per_s(bandwidths_mbps)?;
    let mut halved: Vec<f64> = bandwidths_mbps.iter().map(|mbps| mbps.trunc()).collect();
    while halved.iter().any(|value| *value > ROUNDED_SOFT_MAX) {
        let next: Vec<f64> = halved.iter().map(|value| value / 2.0).collect();
        if next.iter().any(|value| *value > 0.0 && *value <= 1.0) {
            break;
        }
        halved = next;
    }
    let whole: Vec<u64> = halved.iter().map(|value| value.round_ties_even() as u64).collect();
    let divisor = whole.iter().copied().fold(0, common_divisor).max(1);
    let weights: Option<Vec<u32>> = whole
        .iter()
        .map(|value| u32::try_from(value / divisor).ok().filter(|weight| *weight > 0))
        .collect();
    Ok(weights.map(|weights| Candidate::of(&bandwidths, weights).weights(&bandwidths)))
}

/// What given weights reach, over the bandwidth of all memories together.
///
/// # Errors
/// [`WeightsError`] of the bandwidths, of their number, or of the weights.
pub fn utilisation(bandwidths_mbps: &[f64], weights: &[u32]) -> Result<f64, WeightsError> {
    let bandwidths = bytes_per_s(bandwidths_mbps)?;
    if weights.len() != bandwidths.len() || weights.contains(&0) {
        let memories = bandwidths.len();
        return Err(WeightsError::Weights { weights: weights.to_vec(), memories });
    }
    Ok(Candidate::of(&bandwidths, weights.to_vec()).weights(&bandwidths).utilisation)
}

/// The bandwidth of one memory for a mix of which reads are `share`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MixPoint {
    /// Bytes that are read over bytes that are read or written: 1 for reads alone.
    pub read_share: f64,
    pub mbps: f64,
}

/// The bandwidth, MB/s, of one memory for traffic of which reads are `read_share`, from what is
/// known for other shares, in any order; outside of them as for the nearest.
///
/// Between two neighbours times are added: a byte of the mix takes a part of the time of each, so
/// that the bandwidth is their harmonic mean, weighted by bytes. That is what a bus does which
/// carries reads and writes in turn (DDR), less what it loses when it turns around. A CXL link
/// carries both at once, and the mean of reads alone and writes alone is too low for it, up to by
/// half: points measured at 3:1 and 1:1 take care of both, since times are added only between
/// neighbours then.
///
/// # Errors
/// [`WeightsError::ReadShare`], [`WeightsError::NoPoint`], [`WeightsError::Bandwidth`] with the
/// index of the point.
pub fn mixed_mbps(points: &[MixPoint], read_share: f64) -> Result<f64, WeightsError> {
    let shares = points.iter().map(|point| point.read_share).chain([read_share]);
    if let Some(share) = shares.into_iter().find(|share| !(0.0..=1.0).contains(share)) {
        return Err(WeightsError::ReadShare { share });
    }
    for (index, point) in points.iter().enumerate() {
        checked(index, point.mbps)?;
    }
    let nearest = |a: &&MixPoint, b: &&MixPoint| a.read_share.total_cmp(&b.read_share);
    let below = points.iter().filter(|point| point.read_share <= read_share).max_by(nearest);
    let above = points.iter().filter(|point| point.read_share >= read_share).min_by(nearest);
    let (below, above) = match (below, above) {
        (Some(below), Some(above)) => (below, above),
        (Some(only), None) | (None, Some(only)) => return Ok(only.mbps),
        (None, None) => return Err(WeightsError::NoPoint),
    };
    let width = above.read_share - below.read_share;
    if width == 0.0 {
        return Ok(below.mbps);
    }
    let part = (read_share - below.read_share) / width;
    Ok(1.0 / (part / above.mbps + (1.0 - part) / below.mbps))
}

/// Weights with what they reach together, as the quotient `reached / full_weight` in B/s.
struct Candidate {
    weights: Vec<u32>,
    sum: u128,
    /// Bandwidth of the memory that is full first, times the sum of all weights.
    reached: u128,
    /// The weight of that memory.
    full_weight: u128,
}

impl Candidate {
    fn of(bandwidths: &[u128], weights: Vec<u32>) -> Self {
        let sum = weights.iter().map(|weight| u128::from(*weight)).sum();
        let (bandwidth, weight) = bandwidths
            .iter()
            .zip(&weights)
            .map(|(bandwidth, weight)| (*bandwidth, u128::from(*weight)))
            // b / w < b' / w'
            .min_by(|(b, w), (other_b, other_w)| (b * other_w).cmp(&(other_b * w)))
            .expect("there is a memory");
        Self { weights, sum, reached: bandwidth * sum, full_weight: weight }
    }

    fn is_better_than(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.reached * other.full_weight, other.reached * self.full_weight);
        ours > theirs || (ours == theirs && self.sum < other.sum)
    }

    fn weights(self, bandwidths: &[u128]) -> Weights {
        let all = self.full_weight * bandwidths.iter().sum::<u128>();
        Weights { weights: self.weights, utilisation: self.reached as f64 / all as f64 }
    }
}

/// Whole bytes a second, of which products are exact.
fn bytes_per_s(bandwidths_mbps: &[f64]) -> Result<Vec<u128>, WeightsError> {
    match bandwidths_mbps.len() {
        0 => Err(WeightsError::NoMemory),
        count if count > MEMORIES_MAX => Err(WeightsError::TooMany { count }),
        _ => {
            bandwidths_mbps.iter().enumerate().map(|(index, mbps)| checked(index, *mbps)).collect()
        }
    }
}

/// # Errors
/// [`WeightsError::Bandwidth`].
pub(crate) fn checked(index: usize, mbps: f64) -> Result<u128, WeightsError> {
    let bytes = (mbps * 1e6).round();
    if bytes.is_finite() && bytes >= 1.0 && mbps <= MBPS_MAX {
        Ok(bytes as u128)
    } else {
        Err(WeightsError::Bandwidth { index, mbps })
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests;
