//! The number format of `INCRBYFLOAT` and `HINCRBYFLOAT`. Redis adds in the C library's long
//! double, on x86 64 bits of precision, and prints 17 places behind the point without zeros at the
//! end: 3 and 1.1 are 4.1, where doubles of 53 bits would give 4.09999999999999964. This is that
//! arithmetic on integers, bit for bit the one of x86. Redis on ARM computes with 113 bits, which
//! shows in the last places of great numbers.

use super::ValueError;
use super::natural::Natural;

/// `mantissa` times 2 to the `exponent`; the highest bit of the mantissa is set, unless the
/// exponent is `EXPONENT_MIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    is_negative: bool,
    mantissa: u64,
    exponent: i32,
}

const MANTISSA_BITS: i32 = u64::BITS as i32;
const EXPONENT_MIN: i32 = -16_445;
const EXPONENT_MAX: i32 = 16_320;
/// Texts of this length on are no numbers to Redis.
const TEXT_BYTES_MAX: usize = 5 << 10;
/// Numbers of more places before the point are infinite …
const PLACES_MAX: i64 = 4_933;
/// … and those with more zeros behind it are zero.
const ZEROS_MAX: i64 = 4_952;
const DECIMALS: usize = 17;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    Finite(LongDouble),
    /// `inf` or `infinity`: a number to Redis, to which nothing can be added.
    Infinite,
}

/// The sum of two numbers as texts, as a text; a missing value is zero.
pub fn add(value: Option<&[u8]>, increment: &[u8]) -> Result<Vec<u8>, ValueError> {
    let number = |text| Parsed::of(text).ok_or(ValueError::NotAFloat);
    let (value, increment) = (number(value.unwrap_or(b"0"))?, number(increment)?);
    let (Parsed::Finite(value), Parsed::Finite(increment)) = (value, increment) else {
        return Err(ValueError::Infinite);
    };
    value.plus(increment).map(LongDouble::text).ok_or(ValueError::Infinite)
}

impl Parsed {
    /// Reads what C's `strtold` reads, if it is all of the text, neither not a number nor out of
    /// range.
    pub fn of(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_BYTES_MAX {
            return None;
        }
        let (is_negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] => (false, digits),
            _ => (false, text),
        };
        if [b"inf".as_slice(), b"infinity"].iter().any(|word| digits.eq_ignore_ascii_case(word)) {
            return Some(Parsed::Infinite);
        }
        let number = match digits {
            [b'0', b'x' | b'X', digits @ ..] => hexadecimal(is_negative, digits),
            _ => decimal(is_negative, digits),
        };
        number.map(Parsed::Finite)
    }
}

/// Digits before and behind a point, and what follows them.
struct Digits<'t> {
    /// All of them, without zeros at the beginning.
    digits: Vec<u8>,
    /// How many of them are behind the point.
    decimals: i64,
    rest: &'t [u8],
}

impl<'t> Digits<'t> {
    fn of(text: &'t [u8], is_digit: fn(&u8) -> bool) -> Option<Self> {
        let count = |text: &[u8]| text.iter().take_while(|byte| is_digit(byte)).count();
        let (whole, rest) = text.split_at(count(text));
        let (decimals, rest) = match rest {
            [b'.', rest @ ..] => rest.split_at(count(rest)),
            _ => (&rest[..0], rest),
        };
        let all = whole.iter().chain(decimals);
        let digits = all.copied().skip_while(|digit| *digit == b'0').collect();
        let is_number = !whole.is_empty() || !decimals.is_empty();
        is_number.then_some(Self { digits, decimals: decimals.len() as i64, rest })
    }

    /// The exponent behind this letter, 0 if the text ends before; what is too great is cut to what
    /// no digits make up for.
    fn exponent(&self, letter: u8) -> Option<i64> {
        const FAR: i64 = 1 << 32;
        let [first, number @ ..] = self.rest else { return Some(0) };
        let (sign, digits) = match number {
            [b'-', digits @ ..] => (-1, digits),
            [b'+', digits @ ..] => (1, digits),
            _ => (1, number),
        };
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let add = |sum: i64, digit: &u8| (sum * 10 + i64::from(digit - b'0')).min(FAR);
        let is_exponent = is_number && first.eq_ignore_ascii_case(&letter);
        is_exponent.then(|| sign * digits.iter().fold(0, add))
    }
}

fn decimal(is_negative: bool, text: &[u8]) -> Option<LongDouble> {
    let digits = Digits::of(text, u8::is_ascii_digit)?;
    let exponent = digits.exponent(b'e')? - digits.decimals;
    if digits.digits.is_empty() {
        return Some(LongDouble { is_negative, mantissa: 0, exponent: EXPONENT_MIN });
    }
    let places = digits.digits.len() as i64 + exponent;
    if !(-ZEROS_MAX..=PLACES_MAX).contains(&places) {
        return None;
    }
    let mut number = Natural::of_decimal(&digits.digits);
    // The digits are less than 5120 and their places within limits, and so is the exponent.
    let (top, exponent, is_inexact) = if exponent >= 0 {
        number.multiply_by_ten_to(exponent as u32);
        let (top, below, is_inexact) = number.top();
        (top, below as i32, is_inexact)
    } else {
        let mut divisor = Natural::shifted(1, 0);
        divisor.multiply_by_ten_to(exponent.unsigned_abs() as u32);
        number.divide(divisor)
    };
    in_range(LongDouble::rounded(is_negative, top, exponent, is_inexact))
}

fn hexadecimal(is_negative: bool, text: &[u8]) -> Option<LongDouble> {
    let digits = Digits::of(text, u8::is_ascii_hexdigit)?;
    let exponent = digits.exponent(b'p')? - 4 * digits.decimals;
    if digits.digits.is_empty() {
        return Some(LongDouble { is_negative, mantissa: 0, exponent: EXPONENT_MIN });
    }
    let (first, others) = digits.digits.split_at(digits.digits.len().min(32));
    let number = |digit: &u8| u128::from((*digit as char).to_digit(16).unwrap_or(0));
    let top = first.iter().fold(0, |top, digit| top << 4 | number(digit));
    let is_inexact = others.iter().any(|digit| number(digit) != 0);
    let exponent = exponent + 4 * others.len() as i64;
    // What is cut is out of range in either case.
    let exponent = exponent.clamp(-100_000, 100_000) as i32;
    in_range(LongDouble::rounded(is_negative, top, exponent, is_inexact))
}

/// Of digits that are not all zero: neither infinite nor rounded to nothing.
fn in_range(number: Option<LongDouble>) -> Option<LongDouble> {
    number.filter(|number| number.mantissa != 0)
}

impl LongDouble {
    /// The nearest number to `top` and, if `is_inexact`, something below its lowest bit, times 2 to
    /// the `exponent`; of two that are as near the even one. `None` if it is infinite. What is
    /// inexact has at least 66 bits, or is below the smallest number with all of them.
    fn rounded(is_negative: bool, top: u128, exponent: i32, is_inexact: bool) -> Option<Self> {
        let bits = (u128::BITS - top.leading_zeros()) as i32;
        let mut dropped = (bits - MANTISSA_BITS).max(EXPONENT_MIN - exponent);
        let mut mantissa = match u32::try_from(dropped) {
            Ok(dropped) => half_even(top, dropped, is_inexact),
            Err(_) => top << dropped.unsigned_abs(),
        };
        if mantissa >> MANTISSA_BITS != 0 {
            mantissa >>= 1;
            dropped += 1;
        }
        let exponent = exponent + dropped;
        let mantissa = mantissa as u64;
        (exponent <= EXPONENT_MAX).then_some(Self { is_negative, mantissa, exponent })
    }

    fn plus(self, other: Self) -> Option<Self> {
        let (great, small) =
            if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        // 63 bits of room below the greater one; what is lower than that only says where to round.
        let apart = (great.exponent - small.exponent) as u32;
        let room = apart.min(63);
        let high = u128::from(great.mantissa) << room;
        let low = shifted_right(u128::from(small.mantissa), apart - room);
        let is_inexact = shifted_left(low, apart - room) != u128::from(small.mantissa);
        let exponent = great.exponent - room as i32;
        let (is_negative, sum) = if great.is_negative == small.is_negative {
            (great.is_negative, high + low)
        } else if high >= low {
            // What is cut off is taken as well: one less, and something above that.
            (great.is_negative, high - low - u128::from(is_inexact))
        } else {
            (small.is_negative, low - high)
        };
        if sum == 0 {
            return Some(Self { is_negative: false, mantissa: 0, exponent: EXPONENT_MIN });
        }
        Self::rounded(is_negative, sum, exponent, is_inexact)
    }

    /// At most 17 places behind the point, rounded half to even, without zeros at the end.
    fn text(self) -> Vec<u8> {
        let (mut whole, mut decimals) = if self.exponent >= 0 {
            (Natural::shifted(self.mantissa, self.exponent as u32).decimal(), String::new())
        } else {
            let scale = 10u128.pow(DECIMALS as u32);
            // Below 2^121.
            let scaled = u128::from(self.mantissa) * scale;
            let rounded = half_even(scaled, self.exponent.unsigned_abs(), false);
            ((rounded / scale).to_string(), format!(".{:017}", rounded % scale))
        };
        decimals.truncate(decimals.trim_end_matches('0').trim_end_matches('.').len());
        let is_zero = whole == "0" && decimals.is_empty();
        if self.is_negative && !is_zero {
            whole.insert(0, '-');
        }
        whole.push_str(&decimals);
        whole.into_bytes()
    }
}

/// A number without its lowest bits, rounded to the nearest one, if there are two to the even one.
/// `is_inexact`: something is below all bits.
fn half_even(number: u128, bits: u32, is_inexact: bool) -> u128 {
    let Some(below_half) = bits.checked_sub(1) else { return number };
    let kept = shifted_right(number, bits);
    let is_half = shifted_right(number, below_half) & 1 == 1;
    let half = shifted_left(shifted_right(number, below_half), below_half);
    let is_above = is_inexact || number != half;
    kept + u128::from(is_half && (is_above || kept & 1 == 1))
}

fn shifted_right(number: u128, bits: u32) -> u128 {
    number.checked_shr(bits).unwrap_or(0)
}

fn shifted_left(number: u128, bits: u32) -> u128 {
    number.checked_shl(bits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(value: &str, increment: &str) -> Result<String, ValueError> {
        add(Some(value.as_bytes()), increment.as_bytes()).map(|sum| String::from_utf8(sum).unwrap())
    }

    #[test]
    fn sums_are_printed_as_redis_prints_them() {
        assert_eq!(add(None, b"0.25"), Ok(b"0.25".to_vec()));
        for (value, increment, expected) in [
            ("3", "1.1", "4.1"),
            ("1", "-1.1", "-0.1"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("17179869184", "1.5", "17179869185.5"),
            ("17179869184", "17179869184", "34359738368"),
            ("9223372036854775807", "1", "9223372036854775808"),
            (".5", "+5.", "5.5"),
            ("-0", "0", "0"),
            ("0e99999999999999999999", "1E+2", "100"),
            ("0.024390243902439025", "-0.024390243902439025", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("-1e-18", "0", "0"),
            ("1e-4950", "-0", "0"),
            ("0x1.8p1", "0XA", "13"),
        ] {
            assert_eq!(sum(value, increment).as_deref(), Ok(expected), "{value} {increment}");
        }
    }

    #[test]
    fn sums_are_rounded_to_64_bits_half_to_even() {
        let power = "18446744073709551616";
        for (increment, expected) in [
            ("-0.25", power),
            ("-0.5", power),
            ("-0.5000000000000000001", "18446744073709551615"),
            ("-0.75", "18446744073709551615"),
            ("1", power),
            ("1.0000000000000000001", "18446744073709551618"),
            ("3", "18446744073709551620"),
            ("1e-4940", power),
            ("-1e-4940", power),
        ] {
            assert_eq!(sum(power, increment).as_deref(), Ok(expected), "{increment}");
        }
        let great = Natural::shifted(1, 16_383).decimal();
        assert_eq!((sum("0x1p16383", "0"), great.len()), (Ok(great), 4932));
    }

    #[test]
    fn what_is_no_number_or_out_of_range_is_refused() {
        for bad in [
            "",
            " 1",
            "1 ",
            "1\0",
            "1\n",
            "+",
            "-",
            ".",
            "e5",
            "1e",
            "1e+",
            "1.1.1",
            "--1",
            "0x",
            "0x.p1",
            "0x1g",
            "nan",
            "infinit",
            "1e4933",
            "-1.2e4932",
            "0x1p16384",
            "1e-4952",
            "1,5",
        ] {
            assert_eq!(sum("1", bad), Err(ValueError::NotAFloat), "{bad}");
        }
        assert_eq!(sum("1", &"1".repeat(TEXT_BYTES_MAX)), Err(ValueError::NotAFloat));
        for infinite in ["inf", "+INF", "-Infinity"] {
            assert_eq!(sum("1", infinite), Err(ValueError::Infinite), "{infinite}");
        }
        assert_eq!(sum("1.1e4932", "1.1e4932"), Err(ValueError::Infinite));
    }

    proptest! {
        #[test]
        fn small_decimals_add_up_exactly(a in -3999i64..4000, b in -3999i64..4000) {
            let text = |number: i64| {
                let sign = if number < 0 { "-" } else { "" };
                let (whole, rest) = (number.abs() / 1000, number.abs() % 1000);
                let text = format!("{sign}{whole}.{rest:03}");
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            };
            prop_assert_eq!(sum(&text(a), &text(b)), Ok(text(a + b)));
        }

        #[test]
        fn a_double_is_printed_as_it_is(mantissa: i64, exponent in -120i32..200) {
            let double = mantissa as f64 * 2f64.powi(exponent);
            let printed = format!("{double:.17}");
            let printed = printed.trim_end_matches('0').trim_end_matches('.');
            let expected = if printed == "-0" { "0" } else { printed };
            prop_assert_eq!(sum(&format!("{double:.120}"), "0"), Ok(expected.to_owned()));
        }

        #[test]
        fn a_sum_is_the_nearest_number(a: u64, b: u64, apart in 0i32..62, is_difference: bool) {
            let number = |mantissa: u64, exponent, is_negative| LongDouble {
                is_negative,
                mantissa: mantissa | 1 << 63,
                exponent,
            };
            let (a, b) = (number(a, apart, false), number(b, 0, is_difference));
            let exact = |number: LongDouble| {
                let magnitude = i128::from(number.mantissa) << number.exponent;
                if number.is_negative { -magnitude } else { magnitude }
            };
            let sum = a.plus(b).unwrap();
            prop_assert_eq!(Some(sum), b.plus(a));
            let expected = exact(a) + exact(b);
            if sum.exponent <= 0 {
                // A difference of which all bits are there.
                let magnitude = i128::from(sum.mantissa) >> sum.exponent.unsigned_abs().min(127);
                prop_assert_eq!(magnitude, expected.abs());
                prop_assert_eq!(sum.is_negative, expected < 0);
            } else {
                let off = 2 * (exact(sum) - expected).abs();
                let step = 1i128 << sum.exponent;
                prop_assert!(off < step || off == step && sum.mantissa & 1 == 0);
            }
        }
    }
}
