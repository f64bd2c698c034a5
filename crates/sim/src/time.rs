//! Virtual time in picoseconds: 64 bits last 213 days.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A moment since the start of the run, or a duration, in picoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Ps(pub u64);

impl Ps {
    pub const ZERO: Ps = Ps(0);

    pub const fn ns(ns: u64) -> Ps {
        Ps(ns * 1_000)
    }

    pub const fn us(us: u64) -> Ps {
        Ps(us * 1_000_000)
    }

    pub const fn ms(ms: u64) -> Ps {
        Ps(ms * 1_000_000_000)
    }

    /// Whole nanoseconds, rounded down: what the engines are handed as time.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1_000
    }

    /// Nanoseconds with fraction, for reports.
    pub fn as_ns_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    pub const fn saturating_sub(self, other: Ps) -> Ps {
        Ps(self.0.saturating_sub(other.0))
    }

    pub const fn times(self, count: u64) -> Ps {
        Ps(self.0 * count)
    }
}

impl Add for Ps {
    type Output = Ps;
    fn add(self, other: Ps) -> Ps {
        Ps(self.0 + other.0)
    }
}

impl AddAssign for Ps {
    fn add_assign(&mut self, other: Ps) {
        self.0 += other.0;
    }
}

impl Sub for Ps {
    type Output = Ps;
    fn sub(self, other: Ps) -> Ps {
        Ps(self.0 - other.0)
    }
}

impl fmt::Display for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ns", self.as_ns_f64())
    }
}
