//! Single bits of a string, and how many or where: `SETBIT`, `GETBIT`, `BITCOUNT`, `BITPOS`. Bit 0
//! is the highest one of the first byte.

use super::super::bytes::strict_i64;
use super::ValueError;

/// What indices of a range count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexUnit {
    Byte,
    Bit,
}

/// A range of `BITCOUNT`, both ends included, negative ones from the value's end.
#[derive(Clone, Copy, Debug)]
pub struct BitRange {
    pub start: i64,
    pub end: i64,
    pub unit: IndexUnit,
}

/// A range of `BITPOS`: without an end zeros are thought to follow the value.
#[derive(Clone, Copy, Debug)]
pub struct SearchRange {
    pub start: i64,
    pub end: Option<i64>,
    pub unit: IndexUnit,
}

/// Reads a bit's offset. With the width of a field (`bits`), `#n` is the offset of the n-th such
/// field. `bytes_max`: longest value.
pub fn offset(text: &[u8], bits: Option<u32>, bytes_max: u64) -> Result<u64, ValueError> {
    let (digits, times) = match (text, bits) {
        ([b'#', digits @ ..], Some(bits)) => (digits, i64::from(bits)),
        _ => (text, 1),
    };
    let offset = strict_i64(digits).and_then(|number| number.checked_mul(times));
    let offset = offset.and_then(|offset| u64::try_from(offset).ok());
    offset.filter(|offset| offset / 8 < bytes_max).ok_or(ValueError::BitOffset)
}

pub fn get(value: &[u8], offset: u64) -> bool {
    let byte = usize::try_from(offset / 8).ok().and_then(|index| value.get(index));
    byte.is_some_and(|byte| byte & mask(offset) != 0)
}

/// Sets a bit, behind zeros where the value was shorter; returns what it was.
pub fn set(value: &mut Vec<u8>, offset: u64, bit: bool) -> bool {
    let index = (offset / 8) as usize;
    if value.len() <= index {
        value.resize(index + 1, 0);
    }
    let byte = &mut value[index];
    let was = *byte & mask(offset) != 0;
    if bit {
        *byte |= mask(offset);
    } else {
        *byte &= !mask(offset);
    }
    was
}

const fn mask(offset: u64) -> u8 {
    0x80 >> (offset % 8)
}

/// How many bits are set in a range, or in all of the value.
pub fn count(value: &[u8], range: Option<BitRange>) -> u64 {
    let range = range.unwrap_or(BitRange { start: 0, end: -1, unit: IndexUnit::Byte });
    if range.start < 0 && range.end < 0 && range.start > range.end {
        return 0;
    }
    let Some((first, last)) = bits_of(value, range) else { return 0 };
    let (from, head, to, tail) = edges(first, last);
    if from == to {
        return u64::from((value[from] & head & tail).count_ones());
    }
    let (words, rest) = value[from + 1..to].as_chunks::<8>();
    let words: u64 = words.iter().map(|word| u64::from_ne_bytes(*word).count_ones() as u64).sum();
    let rest: u32 = rest.iter().map(|byte| byte.count_ones()).sum();
    let ends = (value[from] & head).count_ones() + (value[to] & tail).count_ones();
    words + u64::from(rest) + u64::from(ends)
}

/// Where the first such bit is; a missing value is one of zeros without end.
pub fn position(value: Option<&[u8]>, bit: bool, range: Option<SearchRange>) -> Option<u64> {
    let Some(value) = value else { return (!bit).then_some(0) };
    let range = range.unwrap_or(SearchRange { start: 0, end: None, unit: IndexUnit::Byte });
    let SearchRange { start, end, unit } = range;
    let (first, last) = bits_of(value, BitRange { start, end: end.unwrap_or(-1), unit })?;
    let found = find(value, first, last, bit);
    // The first zero behind a value of ones.
    found.or_else(|| (!bit && end.is_none()).then_some(last + 1))
}

/// The first and the last bit of a range, if it has any. An end that lies before the value counts
/// as its beginning.
fn bits_of(value: &[u8], range: BitRange) -> Option<(u64, u64)> {
    let bits_each = if range.unit == IndexUnit::Bit { 1 } else { 8 };
    let count = value.len() as i64 * 8 / bits_each;
    let from_start = |index: i64| if index < 0 { (index + count).max(0) } else { index };
    let (start, end) = (from_start(range.start), from_start(range.end).min(count - 1));
    (start <= end).then(|| ((start * bits_each) as u64, ((end + 1) * bits_each - 1) as u64))
}

/// The bytes of the first and the last bit, and what of each of the two is meant.
fn edges(first: u64, last: u64) -> (usize, u8, usize, u8) {
    ((first / 8) as usize, 0xff >> (first % 8), (last / 8) as usize, 0xff << (7 - last % 8))
}

fn find(value: &[u8], first: u64, last: u64, bit: bool) -> Option<u64> {
    // A byte that has none of what is looked for.
    let without = if bit { 0 } else { 0xff };
    let at = |index: usize, mask: u8| {
        let found = (value[index] ^ without) & mask;
        (found != 0).then(|| index as u64 * 8 + u64::from(found.leading_zeros()))
    };
    let (from, head, to, tail) = edges(first, last);
    if from == to {
        return at(from, head & tail);
    }
    let whole = || {
        let between = &value[from + 1..to];
        let (words, _) = between.as_chunks::<8>();
        let passed = words.iter().position(|word| *word != [without; 8]).unwrap_or(words.len()) * 8;
        let found = between[passed..].iter().position(|byte| *byte != without)?;
        at(from + 1 + passed + found, 0xff)
    };
    at(from, head).or_else(whole).or_else(|| at(to, tail))
}

#[cfg(test)]
mod tests {
    use super::IndexUnit::{Bit, Byte};
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MAX: u64 = 512 << 20;

    #[test]
    fn an_offset_is_within_the_longest_value() {
        assert_eq!(offset(b"0", None, MAX), Ok(0));
        assert_eq!(offset(b"4294967295", None, MAX), Ok(4_294_967_295));
        assert_eq!(offset(b"4294967296", None, MAX), Err(ValueError::BitOffset));
        assert_eq!(offset(b"#3", Some(5), MAX), Ok(15));
        for bad in ["-1", "", "x", "#", "#-1", "#9223372036854775807"] {
            assert_eq!(offset(bad.as_bytes(), Some(8), MAX), Err(ValueError::BitOffset), "{bad}");
        }
        assert_eq!(offset(b"#1", None, MAX), Err(ValueError::BitOffset));
    }

    #[test]
    fn a_bit_is_set_and_read_from_the_highest_one_on() {
        let mut value = Vec::new();
        assert!(!set(&mut value, 1, true));
        assert_eq!(value, b"@");
        assert!(!set(&mut value, 2, true));
        assert!(set(&mut value, 1, false));
        assert_eq!(value, b" ");
        assert!(!set(&mut value, 23, false));
        assert_eq!(value, b" \0\0");
        assert!(get(&value, 2) && !get(&value, 3) && !get(&value, 24) && !get(&value, u64::MAX));
    }

    #[test]
    fn set_bits_are_counted_in_ranges_of_bytes_and_bits() {
        let counted = |start, end, unit| count(b"foobar", Some(BitRange { start, end, unit }));
        assert_eq!((count(b"", None), count(b"\xaa\0\xff\x55", None)), (0, 16));
        assert_eq!(count(b"foobar", None), 26);
        assert_eq!((counted(0, 0, Byte), counted(1, 1, Byte), counted(0, -5, Byte)), (4, 6, 10));
        assert_eq!((counted(5, 30, Bit), counted(1, 1, Byte), counted(0, -1, Bit)), (17, 6, 26));
        assert_eq!(
            (counted(-2, -3, Byte), counted(10, 20, Byte), counted(0, -100, Byte)),
            (0, 0, 4)
        );
    }

    #[test]
    fn a_missing_value_is_of_zeros_and_what_follows_a_value_counts_without_an_end() {
        let find = |value: &'static [u8], bit, start, end| {
            position(Some(value), bit, Some(SearchRange { start, end, unit: Byte }))
        };
        assert_eq!((position(None, false, None), position(None, true, None)), (Some(0), None));
        assert_eq!(position(Some(b""), false, None), None);
        assert_eq!(position(Some(b"\xff\xf0\0"), false, None), Some(12));
        assert_eq!(position(Some(b"\0\x0f\0"), true, None), Some(12));
        assert_eq!(find(b"\0\xff\xf0", true, 0, None), Some(8));
        assert_eq!(find(b"\0\xff\xf0", true, 2, None), Some(16));
        assert_eq!(find(b"\0\0\0", true, 0, None), None);
        assert_eq!(find(b"\xff\xff\xff", false, 0, None), Some(24));
        assert_eq!(find(b"\xff\xff\xff", false, 0, Some(-1)), None);
        assert_eq!(find(b"\xff\xff\xff", false, 3, None), None);
        let bits = SearchRange { start: 7, end: Some(15), unit: Bit };
        assert_eq!(position(Some(b"\0\xff\xf0"), true, Some(bits)), Some(8));
        let bits = SearchRange { start: 7, end: Some(-3), unit: Bit };
        assert_eq!(position(Some(b"\0\xff\xf0"), true, Some(bits)), Some(8));
    }

    proptest! {
        #[test]
        fn counts_and_positions_are_those_that_single_bits_say(
            value in vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..40),
            start in -400i64..400,
            end in -400i64..400,
            is_bits: bool,
            bit: bool,
        ) {
            let unit = if is_bits { Bit } else { Byte };
            let each = if is_bits { 1 } else { 8 };
            let total = value.len() as i64 * 8 / each;
            let low = if start < 0 { (start + total).max(0) } else { start };
            let high = (if end < 0 { (end + total).max(0) } else { end }).min(total - 1);
            let range = (low * each).max(0)..((high + 1) * each);
            let mut places = range.filter(|at| get(&value, *at as u64) == bit);
            let search = SearchRange { start, end: Some(end), unit };
            let expected = places.clone().next().map(|at| at as u64);
            prop_assert_eq!(position(Some(&value), bit, Some(search)), expected);
            if bit && !(start < 0 && end < 0 && start > end) {
                let expected = places.by_ref().count() as u64;
                prop_assert_eq!(count(&value, Some(BitRange { start, end, unit })), expected);
            }
        }
    }
}
