//! LZF, by which Redis shortens strings in dumps. A byte below 32 stands before so many bytes and
//! one more; others are a reference: 3 bits of length, 13 of distance, both one byte longer where
//! the length does not fit.

/// Greatest distance of a reference.
const DISTANCE_MAX: usize = 1 << 13;
/// Shortest and longest text of a reference.
const MATCH_BYTES_MIN: usize = 3;
const MATCH_BYTES_MAX: usize = 264;
/// Longest text that stands as it is.
const LITERAL_BYTES_MAX: usize = 32;
/// Lengths from this one on are in a byte of their own, less this.
const LONG_LENGTH: usize = 7;
const TABLE_BITS: u32 = 14;

/// The short form of a text, if it has at most so many bytes.
pub fn compress(text: &[u8], bytes_max: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes_max.min(text.len() / 2));
    // Where each three bytes stood last, from 1 on, by their hash.
    let mut places = vec![0u32; 1 << TABLE_BITS];
    let (mut at, mut literals) = (0, 0);
    while let Some(three) = text.get(at..at + MATCH_BYTES_MIN) {
        let place = &mut places[hash(three)];
        let earlier = (*place as usize).checked_sub(1);
        *place = at as u32 + 1;
        let fits = |start: &usize| {
            at - start <= DISTANCE_MAX && text[*start..*start + MATCH_BYTES_MIN] == *three
        };
        let Some(start) = earlier.filter(fits) else {
            at += 1;
            continue;
        };
        let pairs = text[start..].iter().zip(&text[at..]).take(MATCH_BYTES_MAX);
        let length = pairs.take_while(|(earlier, here)| earlier == here).count();
        push_literals(&mut out, &text[literals..at]);
        push_reference(&mut out, at - start, length);
        at += length;
        literals = at;
        if out.len() > bytes_max {
            return None;
        }
    }
    push_literals(&mut out, &text[literals..]);
    (out.len() <= bytes_max).then_some(out)
}

fn hash(three: &[u8]) -> usize {
    let number = three.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
    (number.wrapping_mul(0x9e37_79b1) >> (u32::BITS - TABLE_BITS)) as usize
}

fn push_literals(out: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.chunks(LITERAL_BYTES_MAX) {
        out.push(chunk.len() as u8 - 1);
        out.extend_from_slice(chunk);
    }
}

fn push_reference(out: &mut Vec<u8>, distance: usize, length: usize) {
    let (length, distance) = (length - 2, distance - 1);
    let high = (distance >> 8) as u8;
    if length < LONG_LENGTH {
        out.push((length as u8) << 5 | high);
    } else {
        out.extend([(LONG_LENGTH as u8) << 5 | high, (length - LONG_LENGTH) as u8]);
    }
    out.push(distance as u8);
}

/// The text of so many bytes that this is the short form of.
pub fn decompress(mut short: &[u8], bytes: usize) -> Option<Vec<u8>> {
    // A reference of 3 bytes gives at most 264: no announced length makes more be taken.
    if bytes / MATCH_BYTES_MAX > short.len() {
        return None;
    }
    let mut text = Vec::with_capacity(bytes);
    while let Some(control) = take(&mut short) {
        if usize::from(control) < LITERAL_BYTES_MAX {
            let (literals, rest) = short.split_at_checked(usize::from(control) + 1)?;
            text.extend_from_slice(literals);
            short = rest;
        } else {
            let mut length = usize::from(control >> 5);
            if length == LONG_LENGTH {
                length += usize::from(take(&mut short)?);
            }
            length += 2;
            let distance = usize::from(control & 0x1f) << 8 | usize::from(take(&mut short)?);
            let start = text.len().checked_sub(distance + 1)?;
            if text.len() + length > bytes {
                return None;
            }
            // The text may reach into what it is repeated to.
            for index in start..start + length {
                text.push(text[index]);
            }
        }
    }
    (text.len() == bytes).then_some(text)
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (first, behind) = rest.split_first()?;
    *rest = behind;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_are_read_also_where_they_overlap() {
        assert_eq!(decompress(b"\x01aa\xe0\x03\x00", 14), Some(vec![b'a'; 14]));
        assert_eq!(decompress(b"\x02abc\x20\x02", 6), Some(b"abcabc".to_vec()));
        assert_eq!(decompress(b"", 0), Some(Vec::new()));
    }

    #[test]
    fn what_is_no_short_form_of_that_length_is_refused() {
        for bad in ["\x02ab", "\x00a\x20", "\x00a\x20\x01", "\x00a\x20\x00", "\x00a\u{1f}", "\x20"]
        {
            assert_eq!(decompress(bad.as_bytes(), 3), None, "{bad:?}");
        }
        assert_eq!(decompress(b"\x02abc\x20\x02", 5), None);
        assert_eq!(decompress(b"\x02abc\x20\x02", 7), None);
        assert_eq!(decompress(b"\x00a", usize::MAX), None);
    }

    #[test]
    fn what_repeats_becomes_short_and_other_texts_do_not() {
        let text = b"abcdefgh".repeat(1000);
        let short = compress(&text, text.len()).unwrap();
        assert!(short.len() < 150);
        assert_eq!(decompress(&short, text.len()), Some(text));
        assert_eq!(compress(b"abcdefghijklmnopqrstuvwxyz", 22), None);
        assert!(compress(&[0; 100_000], 2000).is_some());
    }

    proptest! {
        #[test]
        fn what_is_shortened_is_read_back(
            pieces in proptest::collection::vec("[ab]{0,40}|[a-z]{0,300}", 0..60),
            bytes_max in 0usize..9000,
        ) {
            let text = pieces.concat();
            if let Some(short) = compress(text.as_bytes(), bytes_max) {
                prop_assert!(short.len() <= bytes_max);
                prop_assert_eq!(decompress(&short, text.len()), Some(text.into_bytes()));
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..60),
            length in 0usize..600,
        ) {
            let text = decompress(&bytes, length);
            prop_assert!(text.is_none_or(|text| text.len() == length));
        }
    }
}
