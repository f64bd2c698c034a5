//! What samples say together.

/// The value at `quantile` (0 to 1) of `values`, between neighbours by proportion; NaN of none.
#[must_use]
pub fn quantile(values: &[f64], quantile: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let position = quantile.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (position - below as f64)
}

/// The middle of `values`, or the mean of the two in the middle; NaN of none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(&values.into_iter().collect::<Vec<_>>(), 0.5)
}

/// The least value that `percent` of a hundred values do not exceed; 0 without values.
pub fn percentile(values: &mut [u64], percent: f64) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let rank = (values.len() as f64 * percent / 100.0).ceil() as usize;
    let index = rank.clamp(1, values.len()) - 1;
    *values.select_nth_unstable(index).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), 2.5);
        assert_eq!(quantile(&[4.0], 0.99), 4.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn percentiles_are_values_that_were_there() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut values, 99.0), 198);
        assert_eq!(percentile(&mut values, 100.0), 200);
        assert_eq!(percentile(&mut values, 0.1), 1);
        assert_eq!(percentile(&mut [], 50.0), 0);
    }
}
