//! Sizes and times as a plan's file writes them: a number and a unit, such as `"512 GiB"` or
//! `"800 ns"`. A number alone, a negative one and a unit of something else are refused.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A size, bytes. As text a whole number with `B`, `KiB`, `MiB`, `GiB` or `TiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(pub u64);

/// A length of time, ns. As text a whole number with `ns`, `us`, `ms`, `s`, `min`, `h` or `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(pub u64);

const SIZES: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
const SPANS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

fn parse(text: &str, units: &[(&str, u64)], what: &str) -> Result<u64, String> {
    let text = text.trim();
    let names = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    if text.starts_with('-') {
        return Err(format!("\"{text}\" is negative; {what} is not"));
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..end]
        .parse()
        .map_err(|_| format!("\"{text}\" is not a whole number and a unit of {}", names()))?;
    let unit = text[end..].trim();
    let Some((_, times)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("the unit of \"{text}\" is none of {what}: {}", names()));
    };
    number.checked_mul(*times).ok_or_else(|| format!("\"{text}\" is too large"))
}

/// With the largest unit that leaves a whole number.
fn show(value: u64, units: &[(&str, u64)]) -> String {
    let whole = |(_, times): &&(&str, u64)| value.is_multiple_of(*times) && value >= *times;
    let (name, times) = units.iter().rev().find(whole).unwrap_or(&units[0]);
    format!("{} {name}", value / times)
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Size, String> {
        parse(&text, &SIZES, "a size").map(Size)
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Span, String> {
        parse(&text, &SPANS, "a time").map(Span)
    }
}

impl From<Size> for String {
    fn from(size: Size) -> String {
        size.to_string()
    }
}

impl From<Span> for String {
    fn from(span: Span) -> String {
        span.to_string()
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0, &SIZES))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self.0, &SPANS))
    }
}

impl Size {
    /// Whole MiB, rounded down.
    pub fn mib(self) -> u64 {
        self.0 >> 20
    }

    pub fn gib(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units_and_are_written_as_they_are_read() {
        let size = |text: &str| Size::try_from(text.to_owned());
        let span = |text: &str| Span::try_from(text.to_owned());
        assert_eq!(size("512 GiB"), Ok(Size(512 << 30)));
        assert_eq!(size("64KiB").unwrap().to_string(), "64 KiB");
        assert_eq!(span("15 min").unwrap().to_string(), "15 min");
        assert_eq!(span("1500 ns").unwrap().to_string(), "1500 ns");
        assert!(size("512 ns").unwrap_err().contains("none of a size"));
        assert!(span("5 GiB").unwrap_err().contains("none of a time"));
        assert!(size("-5 GiB").unwrap_err().contains("negative"));
        assert!(size("512").unwrap_err().contains("unit"));
        assert!(size("much").is_err() && size("99999999 TiB").is_err() && size("1.5 GiB").is_err());
    }
}
