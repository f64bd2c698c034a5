//! Decimal numbers as Redis prints them, read and written. Pure functions; called by the parsers,
//! and by `hashes`, which keeps a text that is a number as one.

/// A number by Redis's rules: exactly the form in which it would be printed.
pub fn strict_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [b'0'] => return (!negative).then_some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value = 0i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        let digit = i64::from(digit - b'0');
        // Downwards: the smallest number has no positive counterpart.
        value = value.checked_mul(10)?.checked_sub(digit)?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// Bytes of the longest decimal form of a number.
pub const DECIMAL_BYTES_MAX: usize = 20;

/// The decimal form of a number, written to the end of `room`.
pub fn decimal(value: i64, room: &mut [u8; DECIMAL_BYTES_MAX]) -> &[u8] {
    let (mut at, mut rest) = (room.len(), value.unsigned_abs());
    loop {
        at -= 1;
        room[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        room[at] = b'-';
    }
    &room[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        for value in [0, 7, -7, 10, -10, 1_234_567_890, i64::MAX, i64::MIN] {
            let mut room = [0; DECIMAL_BYTES_MAX];
            let text = decimal(value, &mut room);
            assert_eq!(text, value.to_string().as_bytes());
            assert_eq!(strict_i64(text), Some(value));
        }
    }
}
