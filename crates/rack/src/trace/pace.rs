//! Times for records that have none.
//!
//! How records are injected drives every queueing result, so it is never chosen silently.

use super::error::Cause;
use super::{Header, Unit};
use std::fmt;
use std::str::FromStr;

/// How records without times are injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceInjection {
    /// The same time from each record to the next.
    Gap { ps: u64 },
    /// The same time for each instruction, for formats that count instructions: a processor's
    /// cycles for an instruction, at its clock.
    Instruction { ps: u64 },
    /// No times: the replay keeps this many accesses under way, and begins the next one when one
    /// of them ends.
    Closed {
        /// Accesses under way, at least 1.
        window: u32,
    },
}

impl fmt::Display for TraceInjection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceInjection::Gap { ps } => write!(f, "gap:{ps}ps"),
            TraceInjection::Instruction { ps } => write!(f, "instruction:{ps}ps"),
            TraceInjection::Closed { window } => write!(f, "closed:{window}"),
        }
    }
}

impl FromStr for TraceInjection {
    type Err = String;

    /// `gap:TIME`, `instruction:TIME`, `cpi:N@CLOCK` or `closed:WINDOW`, as in `gap:2.5ns`,
    /// `cpi:1.2@3.6GHz`, `closed:16`.
    fn from_str(text: &str) -> Result<TraceInjection, String> {
        let wrong = || {
            format!(
                "`{text}` is no injection: gap:TIME, cpi:N@CLOCK or closed:WINDOW, \
                     as gap:10ns, cpi:1.5@3.6GHz, closed:16"
            )
        };
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        match kind {
            "gap" => Ok(TraceInjection::Gap { ps: ps(rest).ok_or_else(wrong)? }),
            "instruction" => Ok(TraceInjection::Instruction { ps: ps(rest).ok_or_else(wrong)? }),
            "cpi" => {
                let (cpi, clock) = rest.split_once('@').ok_or_else(wrong)?;
                let cpi: f64 = cpi.parse().map_err(|_| wrong())?;
                let hz = parse_hz(clock).map_err(|_| wrong())?;
                let ps = (cpi * 1e12 / hz as f64).round();
                let sensible = cpi > 0.0 && (1.0..1e12).contains(&ps);
                sensible.then_some(TraceInjection::Instruction { ps: ps as u64 }).ok_or_else(wrong)
            }
            "closed" => match rest.parse() {
                Ok(window) if window > 0 => Ok(TraceInjection::Closed { window }),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }
}

/// A time with its unit, in picoseconds; up to a second.
fn ps(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ps" => 1.0,
        "ns" => 1e3,
        "us" => 1e6,
        "ms" => 1e9,
        _ => return None,
    };
    let value: f64 = digits.parse().ok()?;
    (0.0..=1e12).contains(&(value * unit)).then(|| (value * unit).round() as u64)
}

/// A frequency as `3600000000`, `3.6GHz`, `1200MHz`; at least 1 kHz and at most 1 THz.
///
/// # Errors
/// A sentence if it is none.
pub fn parse_hz(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "hz" => 1.0,
        "khz" => 1e3,
        "mhz" => 1e6,
        "ghz" => 1e9,
        _ => f64::NAN,
    };
    let hz = digits.parse().unwrap_or(f64::NAN) * unit;
    let sensible = (1e3..=1e12).contains(&hz);
    sensible.then(|| hz.round() as u64).ok_or_else(|| format!("`{text}` is no clock, as 3.6GHz is"))
}

#[derive(Debug)]
pub(crate) struct Pace {
    injection: TraceInjection,
    /// Of the record that comes next, in picoseconds.
    ps: u64,
}

impl Pace {
    /// For a format without times.
    pub(crate) fn new(
        injection: Option<TraceInjection>,
        instructions: bool,
    ) -> Result<Pace, Cause> {
        match injection {
            None => Err(Cause::Untimed { instructions }),
            Some(TraceInjection::Instruction { .. }) if !instructions => Err(Cause::NoInstructions),
            Some(injection) => Ok(Pace { injection, ps: 0 }),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Header {
        Header { name: name.to_owned(), unit: Unit::Ns, injection: Some(self.injection) }
    }

    /// Whether only instructions let time pass.
    pub(crate) fn needs_instructions(&self) -> bool {
        matches!(self.injection, TraceInjection::Instruction { .. })
    }

    /// The next record's time, in nanoseconds.
    pub(crate) fn record(&mut self) -> Result<u64, Cause> {
        let at = self.ps / 1000;
        if let TraceInjection::Gap { ps } = self.injection {
            self.pass(1, ps)?;
        }
        Ok(at)
    }

    pub(crate) fn instructions(&mut self, count: u64) -> Result<(), Cause> {
        match self.injection {
            TraceInjection::Instruction { ps } => self.pass(count, ps),
            _ => Ok(()),
        }
    }

    fn pass(&mut self, count: u64, ps: u64) -> Result<(), Cause> {
        let sum = count.checked_mul(ps).and_then(|more| self.ps.checked_add(more));
        let max = u64::MAX / 1_000_000_000_000;
        let what = "time in seconds";
        self.ps = sum.ok_or(Cause::Oversized { what, value: max + 1, max })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn injections_are_read_as_they_are_written() {
        for (text, injection) in [
            ("gap:2.5ns", TraceInjection::Gap { ps: 2500 }),
            ("gap:0ns", TraceInjection::Gap { ps: 0 }),
            ("cpi:1.8@3.6GHz", TraceInjection::Instruction { ps: 500 }),
            ("closed:16", TraceInjection::Closed { window: 16 }),
        ] {
            assert_eq!(text.parse(), Ok(injection), "{text}");
            assert_eq!(injection.to_string().parse(), Ok(injection), "{text}");
        }
        for text in ["", "gap", "gap:5", "gap:-1ns", "closed:0", "cpi:1", "cpi:0@1GHz", "gap:NaNns"]
        {
            assert!(text.parse::<TraceInjection>().is_err(), "{text}");
        }
    }

    #[test]
    fn clocks_have_units() {
        assert_eq!(parse_hz("3.6GHz"), Ok(3_600_000_000));
        assert_eq!(parse_hz("1200mhz"), Ok(1_200_000_000));
        assert_eq!(parse_hz("1000000"), Ok(1_000_000));
        for text in ["", "GHz", "0", "-1GHz", "3.6 parsecs", "1e300"] {
            assert!(parse_hz(text).is_err(), "{text}");
        }
    }

    #[test]
    fn time_passes_by_records_or_by_instructions_and_ends_with_an_error() {
        let mut gap = Pace::new(Some(TraceInjection::Gap { ps: 1500 }), false).unwrap();
        let times: Vec<u64> = (0..4).map(|_| gap.record().unwrap()).collect();
        assert_eq!(times, [0, 1, 3, 4]);
        let mut cpi = Pace::new(Some(TraceInjection::Instruction { ps: 500 }), true).unwrap();
        cpi.instructions(5).unwrap();
        assert_eq!((cpi.record().unwrap(), cpi.record().unwrap()), (2, 2));
        assert!(matches!(cpi.instructions(u64::MAX), Err(Cause::Oversized { .. })));
        assert!(matches!(Pace::new(None, true), Err(Cause::Untimed { instructions: true })));
        let cpi = Some(TraceInjection::Instruction { ps: 1 });
        assert!(matches!(Pace::new(cpi, false), Err(Cause::NoInstructions)));
    }
}
