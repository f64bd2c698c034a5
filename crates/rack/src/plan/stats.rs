//! What several seeds say together: means with Student's t intervals.

use serde::Serialize;

/// A mean over seeds, with the interval that holds the true mean at the plan's confidence if the
/// seeds' values are normally distributed (Student's t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    pub mean: f64,
    pub low: f64,
    pub high: f64,
    /// Standard deviation of one seed's value.
    pub deviation: f64,
    pub seeds: u32,
    /// The factor of Student's distribution.
    pub t: f64,
}

impl Estimate {
    /// Of one value for each seed, two at least.
    ///
    /// # Panics
    /// With fewer.
    pub fn of(values: &[f64], confidence_percent: f64) -> Estimate {
        assert!(values.len() >= 2, "an interval needs two seeds");
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / (count - 1.0)).sqrt();
        let t = student(values.len() as u32 - 1, confidence_percent / 100.0);
        let half = t * deviation / count.sqrt();
        let seeds = values.len() as u32;
        Estimate { mean, low: mean - half, high: mean + half, deviation, seeds, t }
    }

    /// The same for values that are bought in steps: what lies within a step is not seen, and is
    /// taken as spread evenly over it (a variance of step²/12), so that seeds that end on the same
    /// step do not say that nothing is uncertain. `steps` are in the values' unit.
    pub fn in_steps(self, steps: &[f64]) -> Estimate {
        let hidden: f64 = steps.iter().map(|step| step * step / 12.0).sum();
        let deviation = (self.deviation.powi(2) + hidden).sqrt();
        let half = self.t * deviation / f64::from(self.seeds).sqrt();
        Estimate { low: self.mean - half, high: self.mean + half, deviation, ..self }
    }

    /// Where the mean of so many other seeds is to be expected, at the same confidence.
    pub fn of_others(&self, seeds: u32) -> (f64, f64) {
        let spread = (1.0 / f64::from(self.seeds) + 1.0 / f64::from(seeds.max(1))).sqrt();
        let half = self.t * self.deviation * spread;
        (self.mean - half, self.mean + half)
    }
}

/// The factor t for which Student's distribution of `freedom` degrees holds `share` of its mass
/// in -t to t.
pub fn student(freedom: u32, share: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1000.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        match mass(freedom, middle) < share {
            true => low = middle,
            false => high = middle,
        }
    }
    (low + high) / 2.0
}

/// Mass within -t to t, by Simpson's rule. With t = √ν·tan θ the integrand is cos^(ν-1) θ, over
/// a finite range.
fn mass(freedom: u32, t: f64) -> f64 {
    const STEPS: u32 = 400;
    let integral = |end: f64| {
        let step = end / f64::from(STEPS);
        let at = |index: u32| (step * f64::from(index)).cos().max(0.0).powi(freedom as i32 - 1);
        let inner: f64 =
            (1..STEPS).map(|index| at(index) * if index % 2 == 1 { 4.0 } else { 2.0 }).sum();
        (at(0) + inner + at(STEPS)) * step / 3.0
    };
    let end = (t / f64::from(freedom).sqrt()).atan();
    integral(end) / integral(std::f64::consts::FRAC_PI_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_factors_are_those_of_tables() {
        for (freedom, share, t) in [
            (1, 0.95, 12.706),
            (4, 0.95, 2.776),
            (9, 0.90, 1.833),
            (9, 0.95, 2.262),
            (9, 0.99, 3.250),
            (30, 0.95, 2.042),
        ] {
            let ours = student(freedom, share);
            assert!((ours / t - 1.0).abs() < 1e-3, "{freedom}: {ours}, not {t}");
        }
    }

    #[test]
    fn an_interval_is_around_its_mean_and_nothing_spreads_it_without_differences() {
        let one = Estimate::of(&[1.0, 2.0, 3.0, 4.0], 95.0);
        assert!((one.mean - 2.5).abs() < 1e-12);
        assert!((one.high - 2.5 - 3.182 * one.deviation / 2.0).abs() < 1e-3);
        let same = Estimate::of(&[7.0; 10], 95.0);
        assert_eq!((same.low, same.high), (7.0, 7.0));
        let (low, high) = one.of_others(4);
        assert!(low < one.low && high > one.high);
    }

    /// A size falls on the next step with some probability: how often the interval of ten seeds
    /// holds the true mean.
    #[test]
    fn intervals_of_what_is_bought_in_steps_hold_the_mean_as_often_as_they_say() {
        let mut state = 11u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let mut missed_without = 0;
        for share in [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95] {
            let (mut held, mut plain) = (0, 0);
            for _ in 0..2_000 {
                let values: Vec<f64> =
                    (0..10).map(|_| f64::from(u8::from(uniform() < share))).collect();
                let one = Estimate::of(&values, 95.0);
                let holds = |one: Estimate| i32::from(one.low <= share && share <= one.high);
                plain += holds(one);
                held += holds(one.in_steps(&[1.0]));
            }
            assert!(held >= 1_800, "{share}: {held} of 2000");
            missed_without += i32::from(plain < 1_800);
        }
        assert!(missed_without >= 4, "without it the interval misses: {missed_without}");
    }
}
