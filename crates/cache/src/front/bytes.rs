//! Numbers and words in bytes: how C's `strtoul` reads them (memcached's rules), how Redis reads
//! them (nothing but the shortest decimal form), and fast decimal output. Pure functions; called
//! by the parsers and by the commands.

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;

pub use crate::decimal::strict_i64;

/// Characters of a number that is read as [`digits`] …
const DIGITS_MAX: usize = 22;
/// … and of one that has 32 bits.
const DIGITS32_MAX: usize = 11;

/// A blank by the C library's `isspace`.
const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// What C's `strtoull` finds at the beginning: sign, magnitude, and where it ended. `None` without
/// digits, or when the magnitude leaves 64 bits, or when something else than a blank follows.
fn c_integer(text: &[u8]) -> Option<(bool, u64)> {
    let mut rest = text;
    while let [first, tail @ ..] = rest
        && is_space(*first)
    {
        rest = tail;
    }
    let (negative, digits) = match rest {
        [b'-', tail @ ..] => (true, tail),
        [b'+', tail @ ..] => (false, tail),
        _ => (false, rest),
    };
    let mut value = 0u64;
    let mut count = 0;
    while let Some(digit) = digits.get(count).filter(|byte| byte.is_ascii_digit()) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        count += 1;
    }
    let ended = digits.get(count).is_none_or(|byte| is_space(*byte) || *byte == 0);
    (count > 0 && ended).then_some((negative, value))
}

/// An unsigned number by memcached's rules: a sign and blanks are allowed, a minus wraps around
/// unless the result looks negative.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, value) = c_integer(text)?;
    let value = if negative { value.wrapping_neg() } else { value };
    let looks_negative = value > i64::MAX as u64 && text.contains(&b'-');
    (!looks_negative).then_some(value)
}

/// Digits and nothing else: how memcached reads what it does not leave to C's library.
pub fn digits(text: &[u8]) -> Option<u64> {
    let step = |value: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    };
    // Zeros in front may be many, but not so many.
    let is_number = !text.is_empty() && text.len() <= DIGITS_MAX;
    is_number.then(|| text.iter().try_fold(0, step)).flatten()
}

/// As [`digits`], of a number that has 32 bits.
pub fn digits32(text: &[u8]) -> Option<u32> {
    digits(text).filter(|_| text.len() <= DIGITS32_MAX)?.try_into().ok()
}

/// As [`digits32`], with a minus in front if it is negative.
pub fn signed_digits32(text: &[u8]) -> Option<i32> {
    match text {
        [b'-'] => Some(0),
        [b'-', rest @ ..] if text.len() <= DIGITS32_MAX => {
            0i64.checked_sub_unsigned(digits(rest)?)?.try_into().ok()
        }
        _ => i32::try_from(digits32(text)?).ok(),
    }
}

/// As [`unsigned`], of which memcached keeps the low 32 bits.
pub fn unsigned32(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| value as u32)
}

/// A signed number by memcached's rules, of which it keeps the low 32 bits.
pub fn signed32(text: &[u8]) -> Option<i32> {
    let (negative, value) = c_integer(text)?;
    let signed =
        if negative { 0i64.checked_sub_unsigned(value)? } else { i64::try_from(value).ok()? };
    Some(signed as i32)
}

/// The length of a value by memcached's rules.
pub fn value_bytes(text: &[u8]) -> Option<u32> {
    let length = signed_digits32(text).and_then(|length| u32::try_from(length).ok());
    length.filter(|length| *length <= i32::MAX as u32 - 2)
}

pub fn push_u64(out: &mut Vec<u8>, value: u64) {
    // Lengths and flags are mostly of one digit or two.
    if value < 10 {
        out.push(b'0' + value as u8);
    } else if value < 100 {
        out.extend_from_slice(&[b'0' + (value / 10) as u8, b'0' + (value % 10) as u8]);
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }
}

pub fn push_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Whether a key can stand in a line of memcached's text protocol.
pub fn is_line_key(key: &[u8]) -> bool {
    key.iter().all(|byte| *byte > b' ' && *byte != 0x7f)
}

/// Appends `bytes` with `%` and two digits for all that is no letter, no digit and none of `-._~`.
pub fn push_uri(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(*byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

/// Appends `bytes` in base64 with padding.
pub fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
}

/// Decodes base64 into `out`; how many bytes it is. `None` if it is none, empty, or longer than
/// `out`. Bytes outside the alphabet are passed over, as memcached does.
pub fn base64_into(text: &[u8], out: &mut [u8]) -> Option<usize> {
    let symbols = || text.iter().filter(|byte| **byte == b'=' || sextet(**byte).is_some());
    let (mut rest, count, mut length) = (symbols(), symbols().count(), 0);
    if !count.is_multiple_of(4) {
        return None;
    }
    for _ in 0..count / 4 {
        let four: [u8; 4] = std::array::from_fn(|_| *rest.next().expect("four a turn"));
        let padding = four.iter().filter(|symbol| **symbol == b'=').count();
        let word = four.iter().fold(0u32, |word, symbol| word << 6 | sextet(*symbol).unwrap_or(0));
        if padding > 2 {
            return None;
        }
        let bytes = &word.to_be_bytes()[1..4 - padding];
        out.get_mut(length..length + bytes.len())?.copy_from_slice(bytes);
        length += bytes.len();
        if padding > 0 {
            break;
        }
    }
    (length > 0).then_some(length)
}

fn sextet(byte: u8) -> Option<u32> {
    memchr::memchr(byte, alphabet::STANDARD.as_str().as_bytes()).map(|index| index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_read_as_memcached_reads_them() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"-0"), Some(0));
        assert_eq!(unsigned(b" \t+12 x"), Some(12));
        assert_eq!(unsigned(b"12x"), None);
        assert_eq!(unsigned(b""), None);
        assert_eq!(unsigned32(b"4294967297"), Some(1));
        assert_eq!(signed32(b"-1"), Some(-1));
        assert_eq!(signed32(b"4294967295"), Some(-1));
        assert_eq!(signed32(b"9223372036854775808"), None);
        assert_eq!(signed32(b"-9223372036854775808"), Some(0));
    }

    #[test]
    fn words_of_digits_are_read_as_memcached_reads_them() {
        assert_eq!(digits(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(digits(b"0018446744073709551615"), Some(u64::MAX));
        assert_eq!(digits32(b"04294967295"), Some(u32::MAX));
        assert_eq!(signed_digits32(b"-2147483648"), Some(i32::MIN));
        assert_eq!(signed_digits32(b"2147483647"), Some(i32::MAX));
        // A minus alone is 0.
        assert_eq!(signed_digits32(b"-"), Some(0));
        for bad in ["", "+1", "-1", "1x", " 1", "0x1", "18446744073709551616"] {
            assert_eq!(digits(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(digits(&[b'0'; 23]), None);
        for bad in ["4294967296", "000000000001", "-1"] {
            assert_eq!(digits32(bad.as_bytes()), None, "{bad}");
        }
        for bad in ["2147483648", "-2147483649", "-00000000001", "--1", "+1", ""] {
            assert_eq!(signed_digits32(bad.as_bytes()), None, "{bad}");
        }
        let lengths = ["2147483645", "2147483646", "-1", "+3"].map(|t| value_bytes(t.as_bytes()));
        assert_eq!(lengths, [Some(i32::MAX as u32 - 2), None, None, None]);
    }

    #[test]
    fn numbers_are_read_as_redis_reads_them() {
        assert_eq!(strict_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(strict_i64(b"9223372036854775808"), None);
        for bad in ["", "-", "-0", "00", "+1", " 1", "1 ", "1x", "99999999999999999999"] {
            assert_eq!(strict_i64(bad.as_bytes()), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(value: i64) {
            let mut out = Vec::new();
            push_i64(&mut out, value);
            prop_assert_eq!(&out, &value.to_string().into_bytes());
            prop_assert_eq!(strict_i64(&out), Some(value));
            out.clear();
            push_u64(&mut out, value as u64);
            prop_assert_eq!(unsigned(&out), Some(value as u64));
        }

        #[test]
        fn what_is_written_for_uris_is_read_back(bytes: Vec<u8>) {
            let mut out = Vec::new();
            push_uri(&mut out, &bytes);
            let mut parts = out.split(|byte| *byte == b'%');
            let mut read = parts.next().unwrap().to_vec();
            for part in parts {
                let digits = std::str::from_utf8(&part[..2]).unwrap();
                read.push(u8::from_str_radix(digits, 16).unwrap());
                read.extend_from_slice(&part[2..]);
            }
            prop_assert_eq!(read, bytes);
        }

        #[test]
        fn base64_is_read_back(bytes in proptest::collection::vec(any::<u8>(), 1..250)) {
            let mut text = Vec::new();
            push_base64(&mut text, &bytes);
            let mut out = [0; 250];
            let length = base64_into(&text, &mut out).unwrap();
            prop_assert_eq!(&out[..length], &bytes[..]);
        }

        #[test]
        fn no_text_makes_the_readers_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = (unsigned(&bytes), signed32(&bytes), strict_i64(&bytes));
            let _ = (digits(&bytes), digits32(&bytes), signed_digits32(&bytes));
            let _ = base64_into(&bytes, &mut [0; 8]);
        }
    }
}
