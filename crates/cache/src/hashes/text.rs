//! How one field or value is kept: a head byte, which says what follows, and that.
//!
//! ```text
//! 00-3f  bytes, 0 to 63 of them            d0-d7  a number, 1 to 8 bytes behind
//! 40-bf  the number 0 to 127               d8     a text that is an item of its own
//! c0-cf  the number 128 to 4223            e0-ef  bytes, 64 to 4159 of them
//!        (4 bits here, 8 behind)           f0     bytes, their count in 4 bytes behind
//! ```
//!
//! A text that is a number in the form in which it would be printed is always kept as one, so equal
//! texts are kept as equal bytes.

use crate::decimal::{DECIMAL_BYTES_MAX, decimal, strict_i64};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const SMALL_NUMBER: u8 = 0x40;
const SMALL_NUMBER_END: i64 = 128;
const MIDDLE_NUMBER: u8 = 0xc0;
const MIDDLE_NUMBER_END: i64 = SMALL_NUMBER_END + (1 << 12);
const NUMBER: u8 = 0xd0;
const LONG: u8 = 0xd8;
const MIDDLE_BYTES: u8 = 0xe0;
const MANY_BYTES: u8 = 0xf0;
/// Lengths from here on do not fit the head alone.
const FEW_BYTES_END: usize = 64;
/// Lengths from here on need a count of four bytes.
const MIDDLE_BYTES_END: usize = FEW_BYTES_END + (1 << 12);
const SERIAL_BYTES: usize = 6;
const LONG_BYTES: usize = 1 + SERIAL_BYTES + 4;

/// A field or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// Any bytes but those of a number in its printed form.
    Bytes(&'a [u8]),
    /// Kept as a number, read by clients in its printed form.
    Number(i64),
    /// A value that is an item of its own. No field is.
    Long(LongValue),
}

/// Names a value that is an item of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongValue {
    /// Its number in its hash, below 2^48.
    pub serial: u64,
    pub bytes: u32,
}

impl<'a> Text<'a> {
    /// The text of these bytes.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Text<'a> {
        strict_i64(bytes).map_or(Text::Bytes(bytes), Text::Number)
    }

    /// Its length as a client sees it, bytes.
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Text::Bytes(bytes) => bytes.len(),
            Text::Number(value) => decimal(value, &mut [0; DECIMAL_BYTES_MAX]).len(),
            Text::Long(long) => long.bytes as usize,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// What `f` makes of its bytes; `None` of one that is an item of its own.
    pub fn with_bytes<R>(self, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match self {
            Text::Bytes(bytes) => Some(f(bytes)),
            Text::Number(value) => Some(f(decimal(value, &mut [0; DECIMAL_BYTES_MAX]))),
            Text::Long(_) => None,
        }
    }

    /// The hash of a field; `None` of what is none.
    pub(super) fn hash(self, seed: u64) -> Option<u64> {
        self.with_bytes(|bytes| xxh3_64_with_seed(bytes, seed))
    }

    pub(super) fn kept_bytes(self) -> usize {
        match self {
            Text::Bytes(bytes) => match bytes.len() {
                count @ 0..FEW_BYTES_END => 1 + count,
                count @ FEW_BYTES_END..MIDDLE_BYTES_END => 2 + count,
                count => 5 + count,
            },
            Text::Number(0..SMALL_NUMBER_END) => 1,
            Text::Number(SMALL_NUMBER_END..MIDDLE_NUMBER_END) => 2,
            Text::Number(value) => 1 + bytes_of(folded(value)),
            Text::Long(_) => LONG_BYTES,
        }
    }

    pub(super) fn append_to(self, out: &mut Vec<u8>) {
        match self {
            Text::Bytes(bytes) => {
                match bytes.len() {
                    count @ 0..FEW_BYTES_END => out.push(count as u8),
                    count @ FEW_BYTES_END..MIDDLE_BYTES_END => {
                        let [low, high] = ((count - FEW_BYTES_END) as u16).to_le_bytes();
                        out.extend_from_slice(&[MIDDLE_BYTES | high, low]);
                    }
                    count => {
                        out.push(MANY_BYTES);
                        out.extend_from_slice(&(count as u32).to_le_bytes());
                    }
                }
                out.extend_from_slice(bytes);
            }
            Text::Number(value @ 0..SMALL_NUMBER_END) => out.push(SMALL_NUMBER + value as u8),
            Text::Number(value @ SMALL_NUMBER_END..MIDDLE_NUMBER_END) => {
                let [low, high] = ((value - SMALL_NUMBER_END) as u16).to_le_bytes();
                out.extend_from_slice(&[MIDDLE_NUMBER | high, low]);
            }
            Text::Number(value) => {
                let count = bytes_of(folded(value));
                out.push(NUMBER | (count - 1) as u8);
                out.extend_from_slice(&folded(value).to_le_bytes()[..count]);
            }
            Text::Long(long) => {
                out.push(LONG);
                out.extend_from_slice(&long.serial.to_le_bytes()[..SERIAL_BYTES]);
                out.extend_from_slice(&long.bytes.to_le_bytes());
            }
        }
    }
}

/// The text that begins here, and how many bytes it takes; `None` if none does.
#[inline]
pub(super) fn read(kept: &[u8]) -> Option<(Text<'_>, usize)> {
    let (head, rest) = kept.split_first()?;
    let low_bits = usize::from(head & 0xf) << 8;
    match *head {
        0..SMALL_NUMBER => literal(kept, 1, usize::from(*head)),
        SMALL_NUMBER..MIDDLE_NUMBER => Some((Text::Number(i64::from(head - SMALL_NUMBER)), 1)),
        MIDDLE_NUMBER..NUMBER => {
            let value = low_bits | usize::from(*rest.first()?);
            Some((Text::Number(SMALL_NUMBER_END + value as i64), 2))
        }
        NUMBER..LONG => {
            let count = usize::from(head - NUMBER) + 1;
            Some((Text::Number(unfolded(little(rest.get(..count)?))), 1 + count))
        }
        LONG => {
            let serial = little(rest.get(..SERIAL_BYTES)?);
            let bytes = little(rest.get(SERIAL_BYTES..LONG_BYTES - 1)?) as u32;
            Some((Text::Long(LongValue { serial, bytes }), LONG_BYTES))
        }
        MIDDLE_BYTES..MANY_BYTES => {
            literal(kept, 2, FEW_BYTES_END + (low_bits | usize::from(*rest.first()?)))
        }
        MANY_BYTES => literal(kept, 5, little(rest.get(..4)?) as usize),
        _ => None,
    }
}

/// Whether an item of its own lies here.
pub(super) fn is_long(kept: &[u8]) -> bool {
    kept.first() == Some(&LONG)
}

/// How many bytes of these [`read`] takes; `None` where that finds nothing.
#[inline]
pub(super) fn skip(kept: &[u8]) -> Option<usize> {
    let head = *kept.first()?;
    let low_bits = usize::from(head & 0xf) << 8;
    let bytes = match head {
        0..SMALL_NUMBER => 1 + usize::from(head),
        SMALL_NUMBER..MIDDLE_NUMBER => 1,
        MIDDLE_NUMBER..NUMBER => 2,
        NUMBER..LONG => 2 + usize::from(head - NUMBER),
        LONG => LONG_BYTES,
        MIDDLE_BYTES..MANY_BYTES => 2 + FEW_BYTES_END + (low_bits | usize::from(*kept.get(1)?)),
        MANY_BYTES => 5 + little(kept.get(1..5)?) as usize,
        _ => return None,
    };
    (bytes <= kept.len()).then_some(bytes)
}

fn literal(kept: &[u8], at: usize, count: usize) -> Option<(Text<'_>, usize)> {
    Some((Text::Bytes(kept.get(at..at + count)?), at + count))
}

/// The number in up to eight bytes, the lowest first.
pub(super) fn little(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Numbers near 0, of either sign, to small ones.
fn folded(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unfolded(folded: u64) -> i64 {
    (folded >> 1) as i64 ^ -((folded & 1) as i64)
}

/// Bytes of a number without its highest ones that are 0, at least one.
fn bytes_of(value: u64) -> usize {
    ((u64::BITS - value.leading_zeros()).div_ceil(8) as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(text: Text<'_>) -> Vec<u8> {
        let mut kept = Vec::new();
        text.append_to(&mut kept);
        assert_eq!(kept.len(), text.kept_bytes());
        assert_eq!(read(&kept), Some((text, kept.len())));
        // None of its beginnings is a text.
        (0..kept.len()).for_each(|end| assert_eq!(read(&kept[..end]), None));
        kept
    }

    #[test]
    fn what_is_skipped_is_what_is_read_whatever_the_bytes_are() {
        let mut kept = [1; 5000];
        for head in 0..=u8::MAX {
            kept[0] = head;
            for len in [0, 1, 2, 4, 5, 9, 11, 70, 5000] {
                assert_eq!(skip(&kept[..len]), read(&kept[..len]).map(|it| it.1), "{head} {len}");
            }
        }
    }

    #[test]
    fn texts_come_back_and_take_what_their_head_says() {
        let bytes = vec![b'x'; 5000];
        for (count, head) in [(0, 1), (63, 1), (64, 2), (4159, 2), (4160, 5), (5000, 5)] {
            assert_eq!(kept(Text::of(&bytes[..count])).len(), head + count);
        }
        let edges = [(0, 1), (127, 1), (128, 2), (4223, 2), (4224, 3), (-1, 2), (-128, 2)];
        let wide = [(-129, 3), (40_000, 4), (-8_388_608, 4), (i64::MAX, 9), (i64::MIN, 9)];
        for (value, length) in edges.into_iter().chain(wide) {
            assert_eq!(Text::of(value.to_string().as_bytes()), Text::Number(value));
            assert_eq!(kept(Text::Number(value)).len(), length, "{value}");
        }
        kept(Text::Long(LongValue { serial: (1 << 48) - 1, bytes: u32::MAX }));
        for other in ["", "-0", "01", "+1", " 1", "1 ", "9223372036854775808", "1.5"] {
            assert_eq!(Text::of(other.as_bytes()), Text::Bytes(other.as_bytes()));
        }
    }

    #[test]
    fn no_bytes_make_reading_fail_otherwise_than_by_none() {
        for head in 0..=u8::MAX {
            for fill in [0, 0x7f, 0xff] {
                (0..12).for_each(|count| {
                    let mut kept = vec![head];
                    kept.resize(1 + count, fill);
                    assert!(read(&kept).is_none_or(|(_, bytes)| bytes <= kept.len()));
                });
            }
        }
    }
}
