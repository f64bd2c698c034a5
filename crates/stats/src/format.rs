//! Numbers for people: three significant digits and the unit that fits.
//!
//! Used by the terminal table and the HTML report, so that both show the same text.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Time; shown as ns, µs, ms or s.
    Nanoseconds,
    /// Time; shown as ns, µs, ms or s.
    Seconds,
    /// Amount of data; shown in binary multiples (KiB, MiB …).
    Bytes,
    /// Bandwidth; shown in decimal multiples (MB/s, GB/s).
    BytesPerSecond,
    /// Rate of operations; shown as ops/s with k or M.
    OpsPerSecond,
    /// A whole number, digits in groups of three.
    Count,
    /// Ours divided by the reference.
    Ratio,
    /// Any other unit, shown after the number.
    Other(String),
}

impl Unit {
    /// The unit that a report's `unit` field names.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        match name {
            "ns" | "ns/op" => Self::Nanoseconds,
            "s" => Self::Seconds,
            "bytes" | "B" => Self::Bytes,
            "B/s" | "bytes/s" => Self::BytesPerSecond,
            "ops/s" => Self::OpsPerSecond,
            "count" => Self::Count,
            "ratio" => Self::Ratio,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The number as people write it; a number that is none is a dash.
    #[must_use]
    pub fn show(&self, number: f64) -> String {
        const TIMES: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
        const RATES: [(f64, &str); 4] = [(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")];
        const OPS: [(f64, &str); 3] = [(1e6, "M ops/s"), (1e3, "k ops/s"), (1.0, "ops/s")];
        const SIZES: [(f64, &str); 5] = [
            ((1u64 << 40) as f64, "TiB"),
            ((1u64 << 30) as f64, "GiB"),
            ((1u64 << 20) as f64, "MiB"),
            (1024.0, "KiB"),
            (1.0, "B"),
        ];
        if !number.is_finite() {
            return "–".to_owned();
        }
        match self {
            Self::Nanoseconds => scaled(number, &TIMES),
            Self::Seconds => scaled(number * 1e9, &TIMES),
            Self::Bytes => scaled(number, &SIZES),
            Self::BytesPerSecond => scaled(number, &RATES),
            Self::OpsPerSecond => scaled(number, &OPS),
            Self::Count => grouped(number),
            Self::Ratio => format!("{} ×", digits(number)),
            Self::Other(unit) if unit.is_empty() => digits(number),
            Self::Other(unit) => format!("{} {unit}", digits(number)),
        }
    }
}

/// `number` with three significant digits, more only for whole digits before the point.
#[must_use]
pub fn digits(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && size < 0.001 {
        return format!("{number:.1e}");
    }
    match size {
        s if s == 0.0 || s >= 99.95 => format!("{number:.0}"),
        s if s >= 9.995 => format!("{number:.1}"),
        s if s >= 0.9995 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

fn scaled(number: f64, steps: &[(f64, &str)]) -> String {
    // 0.9995 so that 999.7 ns is not rounded to "1000 ns".
    let fits = |(size, _): &&(f64, &str)| number.abs() >= size * 0.9995;
    match steps.iter().find(fits).or(steps.last()) {
        Some((size, unit)) => format!("{} {unit}", digits(number / size)),
        None => digits(number),
    }
}

fn grouped(number: f64) -> String {
    let plain = format!("{:.0}", number.abs());
    let mut text = String::with_capacity(plain.len() * 4 / 3 + 1);
    if number <= -0.5 {
        text.push('-');
    }
    for (index, digit) in plain.chars().enumerate() {
        if index > 0 && (plain.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_gets_the_unit_that_fits() {
        for (unit, number, text) in [
            (Unit::Nanoseconds, 0.0, "0 ns"),
            (Unit::Nanoseconds, 7.256, "7.26 ns"),
            (Unit::Nanoseconds, 92.04, "92.0 ns"),
            (Unit::Nanoseconds, 999.7, "1.00 µs"),
            (Unit::Nanoseconds, 6_612.0, "6.61 µs"),
            (Unit::Nanoseconds, 3e10, "30.0 s"),
            (Unit::Seconds, 0.25, "250 ms"),
            (Unit::Bytes, 2_097_152.0, "2.00 MiB"),
            (Unit::BytesPerSecond, 9.4e9, "9.40 GB/s"),
            (Unit::OpsPerSecond, 1_234_567.0, "1.23 M ops/s"),
            (Unit::Count, 1_234_567.0, "1\u{202f}234\u{202f}567"),
            (Unit::Count, 12.0, "12"),
            (Unit::Ratio, 1.0456, "1.05 ×"),
            (Unit::Other("files".into()), 3.0, "3.00 files"),
            (Unit::Ratio, f64::NAN, "–"),
        ] {
            assert_eq!(unit.show(number), text);
        }
    }

    #[test]
    fn units_of_reports_are_known_by_name() {
        assert_eq!(Unit::from_name("ns"), Unit::Nanoseconds);
        assert_eq!(Unit::from_name("furlongs"), Unit::Other("furlongs".into()));
    }
}
