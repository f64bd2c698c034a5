//! Ours and the reference, slice by slice in turn, so that both see the same machine.
//!
//! [`compare`] runs pairs of slices in random order, asks a [`Probe`] before and after each pair
//! what else the machine did, and sets pairs aside that a [`Rules`] fixed beforehand calls
//! disturbed. The ratio is the median over pairs of ours/reference. The loop is pure: time,
//! counters and randomness are the caller's ([`crate::probe::SystemProbe`] is the real one).
//!
//! A comparison never improves by running longer: the number of tries is bounded, and if too few
//! pairs were quiet then *all* are kept and the result says so.

use rackpool_stats::random::Rng;
use rackpool_stats::sample::quantile;
use serde::{Deserialize, Serialize};

/// Pairs that a comparison keeps at least (DESIGN §5).
pub const PAIRS_MIN: usize = 15;

/// What the machine had done up to a moment; only differences matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sample {
    /// Time since some origin.
    pub wall_ns: u64,
    /// CPU time of all processes on all cores, without interrupts.
    pub busy_ns: u64,
    /// CPU time of this measurement's own processes.
    pub own_ns: u64,
    /// Times that the measuring thread was taken off its core against its will.
    pub involuntary_switches: u64,
}

pub trait Probe {
    fn sample(&mut self) -> Sample;
}

/// What counts as disturbed and how long to try; fixed before the first slice runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rules {
    /// Quiet pairs to collect; at least [`PAIRS_MIN`] unless the run is a smoke test.
    pub pairs: usize,
    /// Pairs that may be run again in place of disturbed ones.
    pub retries_max: usize,
    /// Pairs run first and thrown away: caches, branch predictors, page tables.
    pub warmup_pairs: usize,
    /// Foreign CPU time over wall time that disturbs: 0.05 is a twentieth of one core.
    pub foreign_cpu_max: f64,
    /// Foreign CPU time below which nothing is disturbed, since the kernel counts in ticks.
    pub foreign_cpu_slack_ns: u64,
    /// Involuntary context switches a second that disturb; none asked when absent.
    pub involuntary_per_second_max: Option<f64>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            pairs: PAIRS_MIN,
            retries_max: PAIRS_MIN,
            warmup_pairs: 1,
            foreign_cpu_max: 0.05,
            foreign_cpu_slack_ns: 20_000_000,
            involuntary_per_second_max: Some(50.0),
        }
    }
}

impl Rules {
    /// Few pairs and no retries: for tests and `--quick`; the results say how few.
    #[must_use]
    pub fn quick() -> Self {
        Self { pairs: 5, retries_max: 2, ..Self::default() }
    }

    /// What disturbed the time between two samples, if anything did.
    #[must_use]
    pub fn disturbance(&self, before: Sample, after: Sample) -> Option<Disturbance> {
        let wall_ns = after.wall_ns.saturating_sub(before.wall_ns).max(1);
        let busy_ns = after.busy_ns.saturating_sub(before.busy_ns);
        let own_ns = after.own_ns.saturating_sub(before.own_ns);
        let foreign_ns = busy_ns.saturating_sub(own_ns);
        let allowed_ns =
            (self.foreign_cpu_max * wall_ns as f64).max(self.foreign_cpu_slack_ns as f64);
        if foreign_ns as f64 > allowed_ns {
            return Some(Disturbance::ForeignCpu);
        }
        let switches = after.involuntary_switches.saturating_sub(before.involuntary_switches);
        let per_second = switches as f64 / (wall_ns as f64 / 1e9);
        match self.involuntary_per_second_max {
            // One switch in a short slice is a large rate and no disturbance.
            Some(limit) if switches > 1 && per_second > limit => Some(Disturbance::Preempted),
            _ => None,
        }
    }
}

/// Why a pair was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Disturbance {
    /// Others used more CPU than the rules allow.
    ForeignCpu,
    /// The measuring thread was taken off its core too often.
    Preempted,
}

/// One slice of each, in the order that the coin chose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub ours: f64,
    pub reference: f64,
    pub ours_first: bool,
    /// Set when the pair was disturbed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disturbance: Option<Disturbance>,
}

/// The outcome: medians over the pairs that were kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub ours: f64,
    pub reference: f64,
    /// Median over pairs of ours/reference; not the quotient of the two medians.
    pub ratio: f64,
    /// First quartile of the pairs' ratios.
    pub ratio_p25: f64,
    /// Third quartile of the pairs' ratios.
    pub ratio_p75: f64,
    pub kept: usize,
    pub disturbed: usize,
    /// Too many pairs were disturbed: the medians are over all of them.
    pub disturbed_kept: bool,
    /// Every pair, in the order in which they ran.
    pub pairs: Vec<Pair>,
}

impl Comparison {
    /// Of what one side has noted in each of its slices, warm-up first, that of pairs that count.
    pub fn counted<'a, T>(&self, rules: &Rules, noted: &'a [T]) -> impl Iterator<Item = &'a T> {
        let counts = |pair: &Pair| self.disturbed_kept || pair.disturbance.is_none();
        let noted = self.pairs.iter().zip(&noted[rules.warmup_pairs..]);
        noted.filter(move |(pair, _)| counts(pair)).map(|(_, it)| it)
    }
}

/// Runs `ours` and `reference` in turn by `rules`; each call is one slice and gives one number in
/// the same unit (ns an operation, or a rate). `seed` chooses which one goes first in each pair:
/// half of the pairs each way.
///
/// # Errors
/// The first error of either side, at once.
///
/// # Panics
/// When `rules` ask for no pairs.
pub fn compare<E>(
    rules: &Rules,
    seed: u64,
    probe: &mut dyn Probe,
    mut ours: impl FnMut() -> Result<f64, E>,
    mut reference: impl FnMut() -> Result<f64, E>,
) -> Result<Comparison, E> {
    assert!(rules.pairs > 0, "a comparison needs a pair");
    let mut rng = Rng::new(seed);
    let mut run_pair = |ours_first: bool| -> Result<Pair, E> {
        let (ours, reference) = if ours_first {
            let ours = ours()?;
            (ours, reference()?)
        } else {
            let reference = reference()?;
            (ours()?, reference)
        };
        Ok(Pair { ours, reference, ours_first, disturbance: None })
    };
    for _ in 0..rules.warmup_pairs {
        run_pair(true)?;
    }
    let tries_max = rules.pairs + rules.retries_max;
    let mut pairs = Vec::with_capacity(tries_max);
    let (mut quiet, mut ours_first) = (0, false);
    while quiet < rules.pairs && pairs.len() < tries_max {
        // A coin for each couple of pairs: unpredictable and yet balanced.
        ours_first = if pairs.len().is_multiple_of(2) { rng.below(2) == 0 } else { !ours_first };
        let before = probe.sample();
        let mut pair = run_pair(ours_first)?;
        pair.disturbance = rules.disturbance(before, probe.sample());
        quiet += usize::from(pair.disturbance.is_none());
        pairs.push(pair);
    }
    Ok(conclude(pairs, quiet, rules.pairs))
}

fn conclude(pairs: Vec<Pair>, quiet: usize, wanted: usize) -> Comparison {
    let disturbed_kept = quiet < wanted;
    let counts = |pair: &&Pair| disturbed_kept || pair.disturbance.is_none();
    let of = |value: fn(&Pair) -> f64| pairs.iter().filter(counts).map(value).collect::<Vec<_>>();
    let ratios = of(|pair| pair.ours / pair.reference);
    Comparison {
        ours: quantile(&of(|pair| pair.ours), 0.5),
        reference: quantile(&of(|pair| pair.reference), 0.5),
        ratio: quantile(&ratios, 0.5),
        ratio_p25: quantile(&ratios, 0.25),
        ratio_p75: quantile(&ratios, 0.75),
        kept: ratios.len(),
        disturbed: pairs.len() - quiet,
        disturbed_kept,
        pairs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::convert::Infallible;

    /// Each sample is 100 ms later; `foreign` says whether pair number n was disturbed.
    struct Scripted<F> {
        samples: u64,
        busy_ns: u64,
        own_ns: u64,
        switches: u64,
        disturb: F,
    }

    const STEP_NS: u64 = 1_000_000_000;

    impl<F: FnMut(u64) -> (u64, u64)> Probe for Scripted<F> {
        fn sample(&mut self) -> Sample {
            // The second sample of each pair ends it.
            if self.samples % 2 == 1 {
                let (foreign_ns, switches) = (self.disturb)(self.samples / 2);
                self.busy_ns += STEP_NS + foreign_ns;
                self.own_ns += STEP_NS;
                self.switches += switches;
            }
            self.samples += 1;
            Sample {
                wall_ns: self.samples * STEP_NS,
                busy_ns: self.busy_ns,
                own_ns: self.own_ns,
                involuntary_switches: self.switches,
            }
        }
    }

    fn probe<F: FnMut(u64) -> (u64, u64)>(disturb: F) -> Scripted<F> {
        Scripted { samples: 0, busy_ns: 0, own_ns: 0, switches: 0, disturb }
    }

    fn constant(value: f64) -> impl FnMut() -> Result<f64, Infallible> {
        move || Ok(value)
    }

    #[test]
    fn a_quiet_machine_gives_fifteen_pairs_and_the_median_of_their_ratios() {
        let turn = Cell::new(0.0);
        let ours = || {
            turn.set(turn.get() + 1.0);
            Ok::<_, Infallible>(turn.get())
        };
        let rules = Rules { warmup_pairs: 0, ..Rules::default() };
        let result = compare(&rules, 1, &mut probe(|_| (0, 0)), ours, constant(2.0)).unwrap();
        assert_eq!((result.kept, result.disturbed, result.disturbed_kept), (15, 0, false));
        assert_eq!((result.ours, result.reference, result.ratio), (8.0, 2.0, 4.0));
        assert_eq!((result.ratio_p25, result.ratio_p75), (2.25, 5.75));
    }

    #[test]
    fn what_is_noted_in_warm_up_and_disturbed_pairs_does_not_count() {
        let rules = Rules { pairs: 3, retries_max: 2, warmup_pairs: 2, ..Rules::default() };
        let noted = RefCell::new(Vec::new());
        let ours = || {
            let slice = noted.borrow().len();
            noted.borrow_mut().push(slice);
            Ok::<_, Infallible>(1.0)
        };
        let mut second = probe(|pair| if pair == 1 { (STEP_NS, 0) } else { (0, 0) });
        let result = compare(&rules, 1, &mut second, ours, constant(1.0)).unwrap();
        let counted: Vec<_> = result.counted(&rules, &noted.borrow()).copied().collect();
        assert_eq!((counted, result.disturbed), (vec![2, 4, 5], 1));
        let mut all = probe(|_| (STEP_NS, 0));
        let result = compare(&rules, 1, &mut all, constant(1.0), constant(1.0)).unwrap();
        assert_eq!(result.counted(&rules, &[0, 1, 2, 3, 4, 5, 6]).count(), 5);
    }

    #[test]
    fn the_ratio_is_the_median_of_ratios_and_not_the_ratio_of_medians() {
        let values = RefCell::new(vec![(9.0, 3.0), (4.0, 4.0), (1.0, 2.0)]);
        let rules = Rules { pairs: 3, warmup_pairs: 0, ..Rules::default() };
        let pairs = values.borrow().clone();
        let concluded = conclude(
            pairs
                .iter()
                .map(|&(ours, reference)| Pair {
                    ours,
                    reference,
                    ours_first: true,
                    disturbance: None,
                })
                .collect(),
            3,
            rules.pairs,
        );
        assert_eq!((concluded.ours, concluded.reference, concluded.ratio), (4.0, 3.0, 1.0));
    }

    #[test]
    fn disturbed_pairs_are_run_again_and_counted() {
        let mut probe = probe(|pair| if pair % 3 == 0 { (60_000_000, 0) } else { (0, 0) });
        let result =
            compare(&Rules::default(), 1, &mut probe, constant(1.0), constant(1.0)).unwrap();
        assert_eq!((result.kept, result.disturbed, result.disturbed_kept), (15, 8, false));
        assert_eq!(result.pairs.len(), 23);
        assert_eq!(result.pairs[0].disturbance, Some(Disturbance::ForeignCpu));
        assert_eq!(result.pairs[1].disturbance, None);
    }

    #[test]
    fn a_machine_that_is_never_quiet_ends_the_run_with_all_pairs_and_says_so() {
        let mut probe = probe(|_| (0, 1000));
        let result =
            compare(&Rules::default(), 1, &mut probe, constant(3.0), constant(2.0)).unwrap();
        assert_eq!((result.kept, result.disturbed, result.disturbed_kept), (30, 30, true));
        assert_eq!(result.pairs[7].disturbance, Some(Disturbance::Preempted));
        assert_eq!(result.ratio, 1.5);
        let json = serde_json::to_string(&result).unwrap();
        assert!(json.contains(r#""kept":30,"disturbed":30,"disturbed_kept":true"#), "{json}");
    }

    #[test]
    fn half_of_the_pairs_begin_with_ours_in_an_order_that_the_seed_chooses() {
        let order = |seed| {
            let rules = Rules { pairs: 20, ..Rules::default() };
            let mut probe = probe(|_| (0, 0));
            let result = compare(&rules, seed, &mut probe, constant(1.0), constant(1.0)).unwrap();
            result.pairs.iter().map(|pair| pair.ours_first).collect::<Vec<_>>()
        };
        assert_eq!(order(5).iter().filter(|&&first| first).count(), 10);
        assert_eq!(order(5), order(5));
        assert_ne!(order(5), order(6));
    }

    #[test]
    fn the_order_in_the_result_is_the_order_of_the_calls() {
        let calls = RefCell::new(Vec::new());
        let rules = Rules { warmup_pairs: 2, ..Rules::default() };
        let note = |side: char| calls.borrow_mut().push(side);
        let ours = || {
            note('o');
            Ok::<_, Infallible>(1.0)
        };
        let reference = || {
            note('r');
            Ok(1.0)
        };
        let result = compare(&rules, 9, &mut probe(|_| (0, 0)), ours, reference).unwrap();
        let calls = calls.into_inner();
        assert_eq!(calls.len(), 2 * (15 + 2));
        for (pair, call) in result.pairs.iter().zip(calls[4..].chunks(2)) {
            assert_eq!(pair.ours_first, call[0] == 'o');
        }
    }

    #[test]
    fn an_error_of_either_side_ends_the_comparison() {
        let fail = || Err("the pool is gone");
        let result = compare(&Rules::default(), 1, &mut probe(|_| (0, 0)), fail, || Ok(1.0));
        assert_eq!(result.unwrap_err(), "the pool is gone");
    }

    #[test]
    fn the_rule_allows_what_the_kernel_cannot_count_and_no_more() {
        let rules = Rules::default();
        let before = Sample::default();
        let after = |wall_ns, busy_ns, own_ns, involuntary_switches| Sample {
            wall_ns,
            busy_ns,
            own_ns,
            involuntary_switches,
        };
        let judge = |sample| rules.disturbance(before, sample);
        // Two ticks of 10 ms are noise of the clock, three in 100 ms are another process.
        assert_eq!(judge(after(100_000_000, 120_000_000, 100_000_000, 0)), None);
        let third = judge(after(100_000_000, 130_000_000, 100_000_000, 0));
        assert_eq!(third, Some(Disturbance::ForeignCpu));
        // A twentieth of a core over ten seconds.
        assert_eq!(judge(after(10_000_000_000, 500_000_000, 0, 0)), None);
        assert!(judge(after(10_000_000_000, 500_000_001, 0, 0)).is_some());
        // Own time that was counted late is no disturbance.
        assert_eq!(judge(after(100_000_000, 90_000_000, 100_000_000, 0)), None);
        assert_eq!(judge(after(1_000_000, 0, 0, 1)), None);
        assert_eq!(judge(after(1_000_000, 0, 0, 2)), Some(Disturbance::Preempted));
        let deaf = Rules { involuntary_per_second_max: None, ..rules };
        assert_eq!(deaf.disturbance(before, after(1_000_000, 0, 0, 99)), None);
    }
}
