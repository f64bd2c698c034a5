//! The kinds of numbers in a profile: durations, rates, bandwidths, bytes and counts, each with
//! the units that a file may write it in. Conversions round to the nearest picosecond (durations,
//! rates) or femtosecond per byte (bandwidths); service times of bytes round up.

use crate::time::Ps;

/// How often a stage can do something, as the time that it takes for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Time that the stage is busy with one.
    pub service: Ps,
}

/// Bytes per time of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Femtoseconds for one byte: 80,000 at 100 Gb/s.
    pub fs_per_byte: u64,
}

impl Bandwidth {
    /// How long `bytes` take, rounded up to a picosecond.
    #[inline]
    pub const fn time(self, bytes: u64) -> Ps {
        Ps((bytes * self.fs_per_byte).div_ceil(1_000))
    }

    /// How many whole bytes go through in `time`.
    #[inline]
    pub const fn bytes_in(self, time: Ps) -> u64 {
        (time.0 as u128 * 1_000 / self.fs_per_byte as u128) as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

/// A kind of number that a profile can hold.
pub trait Kind: Sized {
    /// What it is called in messages.
    const NAME: &'static str;
    /// The units that are understood.
    const UNITS: &'static [&'static str];
    /// From a finite number that is not negative, in one of [`Kind::UNITS`]. `None` if the number
    /// makes no sense: a rate or bandwidth of 0, or too large or too small to be represented.
    fn from_value(value: f64, unit: &str) -> Option<Self>;
}

/// A count of units that is small enough to be exact.
fn rounded(value: f64) -> Option<u64> {
    (value.is_finite() && (0.0..9e15).contains(&value)).then(|| value.round() as u64)
}

impl Kind for Ps {
    const NAME: &'static str = "duration";
    const UNITS: &'static [&'static str] = &["ps", "ns", "us", "ms", "s"];
    fn from_value(value: f64, unit: &str) -> Option<Self> {
        let ps = match unit {
            "ps" => 1.0,
            "ns" => 1e3,
            "us" => 1e6,
            "ms" => 1e9,
            _ => 1e12,
        };
        rounded(value * ps).map(Ps)
    }
}

impl Kind for Rate {
    const NAME: &'static str = "rate";
    const UNITS: &'static [&'static str] = &["M/s", "k/s"];
    fn from_value(value: f64, unit: &str) -> Option<Self> {
        let ps = if unit == "M/s" { 1e6 } else { 1e9 };
        let service = rounded(ps / value)?;
        (service > 0).then_some(Rate { service: Ps(service) })
    }
}

impl Kind for Bandwidth {
    const NAME: &'static str = "bandwidth";
    const UNITS: &'static [&'static str] = &["Gb/s", "GB/s", "MB/s"];
    fn from_value(value: f64, unit: &str) -> Option<Self> {
        let fs_per_byte = match unit {
            "Gb/s" => 8e6 / value,
            "GB/s" => 1e6 / value,
            _ => 1e9 / value,
        };
        // More than a microsecond for a byte is not a device but a slip of the unit, and would
        // let the products above overflow.
        let fs_per_byte = rounded(fs_per_byte)?;
        (1..=1_000_000_000).contains(&fs_per_byte).then_some(Bandwidth { fs_per_byte })
    }
}

impl Kind for Bytes {
    const NAME: &'static str = "size";
    const UNITS: &'static [&'static str] = &["B", "KiB", "MiB"];
    fn from_value(value: f64, unit: &str) -> Option<Self> {
        let bytes = match unit {
            "B" => 1.0,
            "KiB" => 1024.0,
            _ => 1024.0 * 1024.0,
        };
        rounded(value * bytes).map(Bytes)
    }
}

impl Kind for Count {
    const NAME: &'static str = "count";
    const UNITS: &'static [&'static str] = &["1"];
    fn from_value(value: f64, _unit: &str) -> Option<Self> {
        (value.fract() == 0.0).then(|| rounded(value)).flatten().map(Count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_converts_its_units() {
        assert_eq!(Ps::from_value(138.5, "ns"), Some(Ps(138_500)));
        assert_eq!(Rate::from_value(35.0, "M/s"), Some(Rate { service: Ps(28_571) }));
        let link = Bandwidth::from_value(100.0, "Gb/s").unwrap();
        assert_eq!(link.fs_per_byte, 80_000);
        assert_eq!(link.time(4096), Ps(327_680));
        assert_eq!(link.time(1), Ps(80));
        assert_eq!(link.bytes_in(Ps(327_680)), 4096);
        assert_eq!(Bytes::from_value(2.0, "MiB"), Some(Bytes(2 << 20)));
        assert_eq!(Count::from_value(6.0, "1"), Some(Count(6)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(Rate::from_value(0.0, "M/s"), None);
        assert_eq!(Bandwidth::from_value(0.0, "Gb/s"), None);
        assert_eq!(Bandwidth::from_value(1e-9, "GB/s"), None);
        assert_eq!(Count::from_value(1.5, "1"), None);
        assert_eq!(Ps::from_value(1e9, "s"), None);
    }
}
