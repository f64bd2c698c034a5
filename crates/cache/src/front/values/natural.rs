//! Natural numbers of any length, for what does not fit 128 bits on the way from a decimal text to
//! a long double and back. Digits of 32 bits, the lowest first, the highest not zero.

use std::cmp::Ordering;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Natural(Vec<u32>);

/// The greatest power of ten in a digit, and its exponent.
const TEN_POWER: u32 = 1_000_000_000;
const TEN_POWER_DIGITS: usize = 9;

impl Natural {
    /// The number of these decimal digits.
    pub fn of_decimal(digits: &[u8]) -> Self {
        let mut natural = Self::default();
        for chunk in digits.chunks(TEN_POWER_DIGITS) {
            let number = chunk.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
            natural.multiply_add(10u32.pow(chunk.len() as u32), number);
        }
        natural
    }

    /// `number` times 2 to the `bits`.
    pub fn shifted(number: u64, bits: u32) -> Self {
        let mut natural = Self(vec![number as u32, (number >> 32) as u32]);
        natural.trim();
        natural.shift_left(bits);
        natural
    }

    pub fn multiply_by_ten_to(&mut self, mut exponent: u32) {
        while exponent > 0 {
            let step = exponent.min(TEN_POWER_DIGITS as u32);
            self.multiply_add(10u32.pow(step), 0);
            exponent -= step;
        }
    }

    fn multiply_add(&mut self, factor: u32, number: u32) {
        let mut carry = u64::from(number);
        for digit in &mut self.0 {
            carry += u64::from(*digit) * u64::from(factor);
            *digit = carry as u32;
            carry >>= 32;
        }
        self.0.push(carry as u32);
        self.trim();
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    pub fn bits(&self) -> u32 {
        self.0.last().map_or(0, |high| 32 * self.0.len() as u32 - high.leading_zeros())
    }

    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    pub fn shift_left(&mut self, bits: u32) {
        if self.is_zero() {
            return;
        }
        let mut carry = 0;
        if !bits.is_multiple_of(32) {
            for digit in &mut self.0 {
                let wide = u64::from(*digit) << (bits % 32) | carry;
                *digit = wide as u32;
                carry = wide >> 32;
            }
            self.0.push(carry as u32);
            self.trim();
        }
        self.0.splice(0..0, std::iter::repeat_n(0, (bits / 32) as usize));
    }

    /// The highest bits of the number, 128 at most, how many there are below them, and whether any
    /// of those is set.
    pub fn top(&self) -> (u128, u32, bool) {
        let below = self.bits().saturating_sub(128);
        let (digits, rest) = ((below / 32) as usize, below % 32);
        let is_set = |digit: &u32| *digit != 0;
        let mut is_inexact = self.0.iter().take(digits).any(is_set);
        let mut top = 0;
        for (index, digit) in self.0.iter().skip(digits).enumerate() {
            let place = 32 * index as u32;
            top |= match place.checked_sub(rest) {
                Some(place) => u128::from(*digit) << place,
                None => u128::from(*digit >> (rest - place)),
            };
        }
        if let Some(lowest) = self.0.get(digits)
            && rest > 0
        {
            is_inexact |= lowest << (32 - rest) != 0;
        }
        (top, below, is_inexact)
    }

    /// Subtracts what is not greater.
    fn subtract(&mut self, other: &Self) {
        let mut borrow = 0;
        for (index, digit) in self.0.iter_mut().enumerate() {
            let taken = u64::from(other.0.get(index).copied().unwrap_or(0)) + borrow;
            let (difference, is_short) = u64::from(*digit).overflowing_sub(taken);
            *digit = difference as u32;
            borrow = u64::from(is_short);
        }
        self.trim();
    }

    /// A quotient of which at least 67 bits are known: its highest ones, the exponent of 2 by which
    /// they are multiplied, and whether there is a rest. The divisor is not zero.
    pub fn divide(mut self, mut divisor: Self) -> (u128, i32, bool) {
        const QUOTIENT_BITS: i32 = 68;
        let shift = self.bits() as i32 - divisor.bits() as i32;
        if shift > 0 {
            divisor.shift_left(shift as u32);
        } else {
            self.shift_left(shift.unsigned_abs());
        }
        // Both have as many bits now, so that the first bit or the second one is set.
        let mut quotient = 0;
        for _ in 0..QUOTIENT_BITS {
            quotient <<= 1;
            if self >= divisor {
                self.subtract(&divisor);
                quotient |= 1;
            }
            self.shift_left(1);
        }
        (quotient, shift - (QUOTIENT_BITS - 1), !self.is_zero())
    }

    pub fn decimal(mut self) -> String {
        let mut chunks = Vec::new();
        while !self.is_zero() {
            let mut rest = 0;
            for digit in self.0.iter_mut().rev() {
                let wide = rest << 32 | u64::from(*digit);
                *digit = (wide / u64::from(TEN_POWER)) as u32;
                rest = wide % u64::from(TEN_POWER);
            }
            self.trim();
            chunks.push(rest);
        }
        let mut text = chunks.pop().unwrap_or(0).to_string();
        for chunk in chunks.iter().rev() {
            text.push_str(&format!("{chunk:09}"));
        }
        text
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Natural {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_digits = || self.0.iter().rev().cmp(other.0.iter().rev());
        self.0.len().cmp(&other.0.len()).then_with(by_digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_read_is_printed() {
        let digits = "1234567890123456789012345678901234567890123456789000000000000000000001";
        assert_eq!(Natural::of_decimal(digits.as_bytes()).decimal(), digits);
        assert_eq!(Natural::of_decimal(b"0").decimal(), "0");
        assert_eq!(Natural::shifted(3, 100).decimal(), (3u128 << 100).to_string());
        let mut number = Natural::of_decimal(b"7");
        number.multiply_by_ten_to(40);
        assert_eq!(number.decimal(), format!("7{}", "0".repeat(40)));
    }

    proptest! {
        #[test]
        fn a_number_is_its_top_bits_and_those_below(number: u64, bits in 0u32..400, low: bool) {
            let number = number | 1 << 63;
            let mut natural = Natural::shifted(number, bits);
            if low && bits > 0 {
                natural.0[0] |= 1;
            }
            let (top, below, is_inexact) = natural.top();
            let below_expected = (64 + bits).saturating_sub(128);
            prop_assert_eq!(natural.bits(), 64 + bits);
            prop_assert_eq!(below, below_expected);
            prop_assert_eq!(is_inexact, low && below > 0);
            let lowest = u128::from(low && bits > 0 && below == 0);
            prop_assert_eq!(top, u128::from(number) << (bits - below) | lowest);
        }

        #[test]
        fn a_quotient_times_its_divisor_is_the_number_but_for_the_rest(number: u64, divisor: u64) {
            let (number, divisor) = (number | 1, divisor | 1);
            let (quotient, exponent, is_inexact) =
                Natural::shifted(number, 0).divide(Natural::shifted(divisor, 0));
            prop_assert!(quotient >> 66 > 0 && quotient >> 68 == 0);
            // number = (quotient + rest) * divisor * 2^exponent, 0 <= rest < 1
            let wide = |factor: u128, bits: i32| {
                let mut natural = Natural::of_decimal(factor.to_string().as_bytes());
                natural.shift_left(bits as u32);
                natural
            };
            let scale = -exponent.min(0);
            let exact = wide(u128::from(number), scale);
            let times = |quotient: u128| {
                let mut product = Natural::default();
                for bit in 0..128 {
                    if quotient >> bit & 1 == 1 {
                        product = sum(&product, &wide(u128::from(divisor), bit));
                    }
                }
                product.shift_left((exponent + scale) as u32);
                product
            };
            let (low, high) = (times(quotient), times(quotient + 1));
            prop_assert!(low <= exact && exact < high);
            prop_assert_eq!(low == exact, !is_inexact);
        }
    }

    fn sum(a: &Natural, b: &Natural) -> Natural {
        let (mut digits, mut carry) = (Vec::new(), 0);
        for index in 0..a.0.len().max(b.0.len()) + 1 {
            let at = |natural: &Natural| u64::from(natural.0.get(index).copied().unwrap_or(0));
            carry += at(a) + at(b);
            digits.push(carry as u32);
            carry >>= 32;
        }
        let mut natural = Natural(digits);
        natural.trim();
        natural
    }
}
