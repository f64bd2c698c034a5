//! When a figure is good enough: one run says nothing on a machine that others use too. Pure.

use rackpool_stats::sample::{median, quantile};
use serde::{Deserialize, Serialize};

/// A figure is measured again until its last runs agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoiseRule {
    /// The distance of the quartiles over the median that the last runs may have.
    pub bound: f64,
    /// How many runs are looked at, of those that nothing disturbed.
    pub last: u32,
    /// After so many, disturbed or not, a figure is taken as it is.
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
    /// The median of the last runs; if they never agreed, of all that nothing disturbed; if there
    /// are too few of those, of all. To a thousandth.
    pub value: f64,
    /// The distance of the quartiles over the median, of the same runs.
    pub spread: f64,
    pub runs: u32,
    /// How many of them were disturbed: another program had a core of theirs.
    pub disturbed: u32,
    /// Whether the last runs agreed within the bound.
    pub is_settled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    pub value: f64,
    pub is_disturbed: bool,
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
    mut measure: impl FnMut() -> Result<Run, E>,
) -> Result<Figure, E> {
    let last = rule.last as usize;
    assert!(last > 0 && rule.runs_max >= rule.last, "no runs to look at: {rule:?}");
    let (mut all, mut quiet) = (Vec::new(), Vec::new());
    for _ in 0..rule.runs_max {
        let run = measure()?;
        all.push(run.value);
        if run.is_disturbed {
            continue;
        }
        quiet.push(run.value);
        let looked_at = &quiet[quiet.len().saturating_sub(last)..];
        if looked_at.len() == last && spread(looked_at) <= rule.bound {
            return Ok(Figure::of(looked_at, true).after(&all, &quiet));
        }
    }
    let values = if quiet.len() < last { &all } else { &quiet };
    Ok(Figure::of(values, false).after(&all, &quiet))
}

impl Figure {
    fn of(values: &[f64], is_settled: bool) -> Figure {
        let value = round(median(values.iter().copied()), 1e3);
        let spread = round(spread(values), 1e6);
        Figure { value, spread, runs: 0, disturbed: 0, is_settled }
    }

    fn after(self, all: &[f64], quiet: &[f64]) -> Figure {
        let disturbed = (all.len() - quiet.len()) as u32;
        Figure { runs: all.len() as u32, disturbed, ..self }
    }
}

/// More digits would claim too much, and a text of them does not give the same number back.
pub(super) fn round(value: f64, parts: f64) -> f64 {
    (value * parts).round() / parts
}

fn spread(values: &[f64]) -> f64 {
    let quartiles = quantile(values, 0.75) - quantile(values, 0.25);
    // 0 of 0 agree.
    if quartiles == 0.0 { 0.0 } else { quartiles / median(values.iter().copied()).abs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disturbed runs are those below 0.
    fn of(values: &[f64], rule: NoiseRule) -> Figure {
        let mut values = values.iter();
        let run = |value: &f64| Run { value: value.abs(), is_disturbed: *value < 0.0 };
        settle(rule, || values.next().map(run).ok_or("asked for too many")).unwrap()
    }

    #[test]
    fn runs_that_agree_at_once_are_not_repeated() {
        let figure = of(&[10.0, 10.1, 10.0, 9.9, 10.0], NoiseRule::default());
        assert_eq!((figure.value, figure.runs, figure.is_settled), (10.0, 5, true));
        assert!(figure.spread < 0.01);
    }

    #[test]
    fn a_restless_beginning_is_left_behind() {
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
    fn disturbed_runs_are_set_aside_while_there_are_others() {
        let rule = NoiseRule { last: 2, runs_max: 4, ..NoiseRule::default() };
        let figure = of(&[-3.0, 10.0, -4.0, 10.0], rule);
        assert_eq!((figure.value, figure.disturbed, figure.is_settled), (10.0, 2, true));
        let figure = of(&[-3.0, 10.0, -4.0, -5.0], rule);
        assert_eq!((figure.value, figure.disturbed, figure.is_settled), (4.5, 3, false));
    }

    #[test]
    fn an_error_ends_it() {
        let mut runs = 0;
        let failed = settle(NoiseRule::default(), || {
            runs += 1;
            if runs == 2 { Err("broken") } else { Ok(Run { value: 1.0, is_disturbed: false }) }
        });
        assert_eq!((failed, runs), (Err("broken"), 2));
    }
}
