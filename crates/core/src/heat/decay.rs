//! `e^(-λΔt)` in integers, so that every machine gives the same answer. Pure functions.
//!
//! The power is written as `2^-(k + f)`: `k` is a shift, `2^-f` comes from a table of 128 steps
//! with straight lines between them. A line lies above the curve by at most (ln 2 / 128)² / 8 of
//! its value, 3.7 millionths; rounding adds at most 2^-31. The table itself is right to 2^-56.
//!
//! Source: Rcmp §5.3 (the decay `α`).

use crate::constants::NS_PER_SECOND;

/// 1 as [`decay_q32`] says it.
pub const ONE_Q32: u64 = 1 << 32;

const STEP_BITS: u32 = 7;
const STEPS: usize = 1 << STEP_BITS;
/// Bits of a fraction in Q32 below the table's index.
const REST_BITS: u32 = 32 - STEP_BITS;

/// `2^(-i/128)` in Q32 for `i` in `0..=128`.
static POWERS_Q32: [u64; STEPS + 1] = powers_q32();

/// The binary logarithm of e in Q62.
const LOG2_E_Q62: u128 = 6_653_256_548_922_161_246;

/// Millionths of a nanosecond's share of a second: what `λΔt` is counted in.
const UNITS_OF_ONE: u128 = 1_000_000 * NS_PER_SECOND as u128;
/// From this exponent on the power is less than 2^-33 and counts as 0.
const EXPONENT_MAX: u128 = 23;

const fn powers_q32() -> [u64; STEPS + 1] {
    // 2^-(1/128) in Q64: one half, and seven square roots of it.
    let mut step_q64: u128 = 1 << 63;
    let mut root = 0;
    while root < STEP_BITS {
        step_q64 = (step_q64 << 64).isqrt();
        root += 1;
    }
    let mut powers = [0; STEPS + 1];
    powers[0] = ONE_Q32;
    let mut power_q64 = step_q64;
    let mut index = 1;
    while index <= STEPS {
        powers[index] = ((power_q64 + (1 << 31)) >> 32) as u64;
        power_q64 = (power_q64 * step_q64) >> 64;
        index += 1;
    }
    powers
}

/// `e^(-λΔt)` in Q32, at most [`ONE_Q32`]; λ in millionths per second, Δt in nanoseconds.
/// Relative error below 4 millionths, and 2^-31 beside it. Never rises with `elapsed_ns`.
pub fn decay_q32(decay_per_second_micro: u64, elapsed_ns: u64) -> u64 {
    let exponent = u128::from(decay_per_second_micro) * u128::from(elapsed_ns);
    if exponent >= EXPONENT_MAX * UNITS_OF_ONE {
        return 0;
    }
    exp2_neg_q32(((exponent * LOG2_E_Q62 / UNITS_OF_ONE) >> 30) as u64)
}

/// `2^-x` in Q32 for `x` in Q32.
pub fn exp2_neg_q32(x_q32: u64) -> u64 {
    let shift = x_q32 >> 32;
    if shift > 33 {
        return 0;
    }
    let fraction = x_q32 & (ONE_Q32 - 1);
    let index = (fraction >> REST_BITS) as usize;
    let rest = fraction & ((1 << REST_BITS) - 1);
    let (above, below) = (POWERS_Q32[index], POWERS_Q32[index + 1]);
    (above - (((above - below) * rest) >> REST_BITS)) >> shift
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `e^-x` in Q60 by its series, for `x` below 8 in millionths.
    fn series_q60(x_micro: u64) -> i128 {
        let mut term: i128 = 1 << 60;
        let mut sum = term;
        for n in 1..80 {
            term = -(term * i128::from(x_micro) / (n * 1_000_000));
            sum += term;
        }
        sum
    }

    #[test]
    fn powers_of_e_are_those_of_the_tables() {
        let second = NS_PER_SECOND;
        assert_eq!(decay_q32(40_000, 0), ONE_Q32);
        // e^-1 = 0.36787944, e^-4 = 0.01831564: 100 s at 0.04 per second.
        let near = |got: u64, e9: u64| {
            let want = u128::from(e9) * u128::from(ONE_Q32) / 1_000_000_000;
            let off = u128::from(got).abs_diff(want);
            assert!(off * 250_000 <= want + 250_000 * 8, "{got} is not {want}");
        };
        near(decay_q32(40_000, 25 * second), 367_879_441);
        near(decay_q32(40_000, 100 * second), 18_315_639);
        near(exp2_neg_q32(ONE_Q32 / 2), 707_106_781);
        assert_eq!(exp2_neg_q32(3 * ONE_Q32), ONE_Q32 / 8);
        // To the bit, on every machine.
        assert_eq!(decay_q32(40_000, 25 * second), 1_580_035_333);
        assert_eq!(decay_q32(u64::MAX, u64::MAX), 0);
        assert_eq!(exp2_neg_q32(u64::MAX), 0);
    }

    proptest! {
        #[test]
        fn the_error_is_below_four_millionths(x_micro in 0_u64..8_000_000) {
            let got = i128::from(decay_q32(x_micro, NS_PER_SECOND)) << 28;
            let want = series_q60(x_micro);
            let allowed = want / 250_000 + (1 << 29);
            prop_assert!((got - want).abs() <= allowed, "e^-{x_micro}e-6: {got}, not {want}");
        }

        #[test]
        fn more_time_never_means_more_heat([a, b, rate] in any::<[u64; 3]>()) {
            let (early, late) = (a.min(b), a.max(b));
            prop_assert!(decay_q32(rate, early) >= decay_q32(rate, late));
            let (early, late) = (early % (200 * NS_PER_SECOND), late % (200 * NS_PER_SECOND));
            let (early, late) = (early.min(late), early.max(late));
            prop_assert!(decay_q32(40_000, early) >= decay_q32(40_000, late));
        }
    }
}
