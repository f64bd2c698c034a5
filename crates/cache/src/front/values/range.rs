//! Parts of a string: which bytes `GETRANGE` and `SUBSTR` show, what `SETRANGE` writes.

use std::ops::Range;

use super::ValueError;

/// The bytes from `start` to `end`, both included, of a value of so many; negative indices count
/// from its end. Redis 7.0 takes an end that lies before the first byte for the first byte; since
/// 8.0 nothing is shown then.
pub fn shown(bytes: u64, start: i64, end: i64) -> Range<u64> {
    let count = bytes as i64;
    let from_start = |index: i64| if index < 0 { index + count } else { index };
    let (start, end) = (from_start(start).max(0), from_start(end).min(count - 1));
    if start > end { 0..0 } else { start as u64..end as u64 + 1 }
}

/// Writes `bytes` at an offset, behind zeros where the value was shorter; whether it did, which an
/// empty text does not. `bytes_max`: longest value.
pub fn overwrite(
    value: &mut Vec<u8>,
    offset: i64,
    bytes: &[u8],
    bytes_max: u64,
) -> Result<bool, ValueError> {
    let offset = u64::try_from(offset).map_err(|_| ValueError::Offset)?;
    if bytes.is_empty() {
        return Ok(false);
    }
    // Both are below 2^63.
    let end = offset + bytes.len() as u64;
    if end > bytes_max {
        return Err(ValueError::TooLong);
    }
    let (offset, end) = (offset as usize, end as usize);
    if value.len() < end {
        value.resize(end, 0);
    }
    value[offset..end].copy_from_slice(bytes);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_counts_from_either_end_and_is_cut_to_the_value() {
        let value = b"Hello World";
        for (start, end, expected) in [
            (0, 3, "Hell"),
            (0, -1, "Hello World"),
            (-4, -1, "orld"),
            (5, 3, ""),
            (5, 5000, " World"),
            (-5000, 10000, "Hello World"),
            (0, -100, ""),
            (1, -100, ""),
            (-1, -100, ""),
            (-100, -99, ""),
            (-100, -100, ""),
            (11, 20, ""),
            (i64::MIN, i64::MAX, "Hello World"),
            (i64::MAX, i64::MIN, ""),
        ] {
            let range = shown(value.len() as u64, start, end);
            let shown = &value[range.start as usize..range.end as usize];
            assert_eq!(shown, expected.as_bytes(), "{start} {end}");
        }
        assert_eq!((shown(0, 0, -1), shown(0, -3, 9)), (0..0, 0..0));
    }

    #[test]
    fn a_text_is_written_at_its_offset_behind_zeros() {
        let write = |old: &[u8], offset, bytes: &[u8]| {
            let mut value = old.to_vec();
            overwrite(&mut value, offset, bytes, 20).map(|written| (written, value))
        };
        assert_eq!(write(b"foo", 1, b"o"), Ok((true, b"foo".to_vec())));
        assert_eq!(write(b"1234", 2, b"2"), Ok((true, b"1224".to_vec())));
        assert_eq!(write(b"1234", 5, b"2"), Ok((true, b"1234\x002".to_vec())));
        assert_eq!(write(b"foo", 3, b"bar"), Ok((true, b"foobar".to_vec())));
        assert_eq!(write(b"", 1, b"a"), Ok((true, b"\0a".to_vec())));
        assert_eq!(write(b"foo", 100, b""), Ok((false, b"foo".to_vec())));
        assert_eq!(write(b"", 19, b"a").map(|(_, value)| value.len()), Ok(20));
        assert_eq!(write(b"", 20, b"a"), Err(ValueError::TooLong));
        assert_eq!(write(b"", i64::MAX, b"a"), Err(ValueError::TooLong));
        assert_eq!(write(b"", -1, b""), Err(ValueError::Offset));
    }
}
