//! When a figure is good enough: one run says nothing on a machine that others use too. Pure.

use rackpool_stats::sample::{median, quantile};
use serde::{Deserialize, Serialize};

/// A figure is measured again until its last runs agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoiseRule {
    /// The distance of the quartiles over the median that the last runs may have.
    pub bound: f64,
    /// How many runs are looked at.
    pub last: u32,
    /// After so many a figure is taken as it is.
    pub runs_max: u32,
}

impl Default for NoiseRule {
    fn default() -> Self {
        Self { bound: 0.03, last: 5, runs_max: 25 }
    }
}

/// A median with what is known about its noise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The median of the last runs; of all if they never agreed.
    pub value: f64,
    /// The distance of the quartiles over the median, of the same runs.
    pub spread: f64,
    pub runs: u32,
    /// Whether the last runs agreed within the bound.
    pub is_settled: bool,
}

/// Runs `measure` until its last runs agree, or as often as the rule allows.
///
/// # Errors
/// The first one of `measure`, at once.
///
/// # Panics
/// If the rule looks at no run, or at more than it allows.
pub fn settle<E>(
    rule: NoiseRule,
    mut measure: impl FnMut() -> Result<f64, E>,
) -> Result<Figure, E> {
    let last = rule.last as usize;
    assert!(last > 0 && rule.runs_max >= rule.last, "no runs to look at: {rule:?}");
    let mut values = Vec::with_capacity(rule.runs_max as usize);
    for runs in 1..=rule.runs_max {
        values.push(measure()?);
        if values.len() >= last {
            let looked_at = &values[values.len() - last..];
            let spread = spread(looked_at);
            if spread <= rule.bound {
                let value = median(looked_at.iter().copied());
                return Ok(Figure { value, spread, runs, is_settled: true });
            }
        }
    }
    let (value, spread) = (median(values.iter().copied()), spread(&values));
    Ok(Figure { value, spread, runs: rule.runs_max, is_settled: false })
}

fn spread(values: &[f64]) -> f64 {
    let quartiles = quantile(values, 0.75) - quantile(values, 0.25);
    // 0 of 0 agree.
    if quartiles == 0.0 { 0.0 } else { quartiles / median(values.iter().copied()).abs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[f64], rule: NoiseRule) -> Figure {
        let mut values = values.iter();
        settle(rule, || values.next().copied().ok_or("asked for too many")).unwrap()
    }

    #[test]
    fn runs_that_agree_at_once_are_not_repeated() {
        let figure = of(&[10.0, 10.1, 10.0, 9.9, 10.0], NoiseRule::default());
        assert_eq!((figure.value, figure.runs, figure.is_settled), (10.0, 5, true));
        assert!(figure.spread < 0.01);
    }

    #[test]
    fn a_disturbed_beginning_is_left_behind() {
        let rule = NoiseRule::default();
        let figure = of(&[30.0, 17.0, 25.0, 12.0, 10.0, 10.0, 10.1, 10.0, 11.0], rule);
        // One of five may be far off: it is outside of the quartiles.
        assert_eq!((figure.value, figure.runs, figure.is_settled), (10.0, 8, true));
    }

    #[test]
    fn a_figure_that_never_settles_says_so() {
        let rule = NoiseRule { runs_max: 6, ..NoiseRule::default() };
        let figure = of(&[10.0, 20.0, 10.0, 20.0, 10.0, 20.0], rule);
        assert_eq!((figure.value, figure.runs, figure.is_settled), (15.0, 6, false));
        assert!(figure.spread > 0.5);
    }

    #[test]
    fn an_error_ends_it() {
        let mut runs = 0;
        let failed = settle(NoiseRule::default(), || {
            runs += 1;
            if runs == 2 { Err("broken") } else { Ok(1.0) }
        });
        assert_eq!((failed, runs), (Err("broken"), 2));
    }
}
