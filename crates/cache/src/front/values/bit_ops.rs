//! `BITOP`: one string from several, bit by bit. Strings that are shorter than the longest one are
//! thought to end in zeros, missing ones to be empty.

use super::ValueError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitOp {
    And,
    Or,
    Xor,
    Not,
    /// What is in the first and in none of the others.
    Diff,
    /// What is in others and not in the first.
    Diff1,
    /// What is in the first and in any of the others.
    AndOr,
    /// What is in exactly one.
    One,
}

impl BitOp {
    /// The operation of this name, in any case.
    pub fn of(word: &[u8]) -> Option<Self> {
        let all = [
            ("and", BitOp::And),
            ("or", BitOp::Or),
            ("xor", BitOp::Xor),
            ("not", BitOp::Not),
            ("diff", BitOp::Diff),
            ("diff1", BitOp::Diff1),
            ("andor", BitOp::AndOr),
            ("one", BitOp::One),
        ];
        let found = all.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, op)| op)
    }

    /// Whether it can be done with so many strings.
    pub fn check_sources(self, count: usize) -> Result<(), ValueError> {
        match self {
            BitOp::Not if count != 1 => Err(ValueError::OneSource),
            BitOp::Diff if count < 2 => Err(ValueError::TwoSources("DIFF")),
            BitOp::Diff1 if count < 2 => Err(ValueError::TwoSources("DIFF1")),
            BitOp::AndOr if count < 2 => Err(ValueError::TwoSources("ANDOR")),
            _ => Ok(()),
        }
    }

    /// The result, as long as the longest string; an empty one is stored nowhere.
    pub fn apply<S: AsRef<[u8]>>(self, sources: &[S]) -> Vec<u8> {
        let bytes = sources.iter().map(|source| source.as_ref().len()).max().unwrap_or(0);
        let Some((first, others)) = sources.split_first() else { return Vec::new() };
        let (first, others) = (first.as_ref(), others.iter().map(S::as_ref));
        let mut result = vec![0; bytes];
        result[..first.len()].copy_from_slice(first);
        match self {
            BitOp::And => others.for_each(|other| {
                combine(&mut result, other, |a, b| a & b);
                result[other.len()..].fill(0);
            }),
            BitOp::Or => others.for_each(|other| combine(&mut result, other, |a, b| a | b)),
            BitOp::Xor => others.for_each(|other| combine(&mut result, other, |a, b| a ^ b)),
            BitOp::Not => result.iter_mut().for_each(|byte| *byte = !*byte),
            BitOp::Diff | BitOp::Diff1 | BitOp::AndOr => {
                let mut any = vec![0; bytes];
                others.for_each(|other| combine(&mut any, other, |a, b| a | b));
                match self {
                    BitOp::Diff => combine(&mut result, &any, |a, b| a & !b),
                    BitOp::Diff1 => combine(&mut result, &any, |a, b| !a & b),
                    _ => combine(&mut result, &any, |a, b| a & b),
                }
            }
            BitOp::One => {
                // What was in two or more is in none again.
                let mut repeated = vec![0; bytes];
                for other in others {
                    let both = repeated.iter_mut().zip(&result).zip(other);
                    both.for_each(|((repeated, a), b)| *repeated |= a & b);
                    combine(&mut result, other, |a, b| a | b);
                }
                combine(&mut result, &repeated, |a, b| a & !b);
            }
        }
        result
    }
}

/// Changes the bytes of `result` that `other` has as well.
fn combine(result: &mut [u8], other: &[u8], op: impl Fn(u8, u8) -> u8) {
    result.iter_mut().zip(other).for_each(|(byte, other)| *byte = op(*byte, *other));
}

#[cfg(test)]
mod tests {
    use super::super::bits::get;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn strings_are_combined_byte_by_byte_and_end_in_zeros() {
        let apply = |op: BitOp, sources: &[&[u8]]| op.apply(sources);
        assert_eq!(apply(BitOp::Not, &[b"\xaa\0\xff\x55"]), b"\x55\xff\0\xaa");
        assert_eq!(apply(BitOp::And, &[b"\x01\x02\xff", b"\x01\x02\xff"]), b"\x01\x02\xff");
        assert_eq!(apply(BitOp::Or, &[b"\x01\x02\xff", b"\x01\x02\x03"]), b"\x01\x02\xff");
        assert_eq!(apply(BitOp::Xor, &[b"\x01\x02\xff", b"\x01\x02\xff"]), b"\0\0\0");
        assert_eq!(apply(BitOp::And, &[b"\x01\x02\xff\xff", b"\x01\x02\xff"]), b"\x01\x02\xff\0");
        assert_eq!(apply(BitOp::Or, &[b"a", b"", b"\0b"]), b"ab");
        assert_eq!(apply(BitOp::One, &[b"\x17", b"\x26", b"\x4d"]), b"\x78");
        assert_eq!(apply(BitOp::And, &[b"", b""]), b"");
        assert_eq!(apply(BitOp::AndOr, &[b"", b"ab"]), b"\0\0");
    }

    #[test]
    fn an_operation_has_a_name_and_a_number_of_sources() {
        assert_eq!((BitOp::of(b"DIFF1"), BitOp::of(b"nor")), (Some(BitOp::Diff1), None));
        assert_eq!(BitOp::Not.check_sources(2), Err(ValueError::OneSource));
        assert_eq!(BitOp::AndOr.check_sources(1), Err(ValueError::TwoSources("ANDOR")));
        assert_eq!((BitOp::One.check_sources(1), BitOp::Diff.check_sources(2)), (Ok(()), Ok(())));
    }

    proptest! {
        #[test]
        fn each_bit_is_what_the_operation_makes_of_it(
            sources in vec(vec(any::<u8>(), 0..20), 1..5),
        ) {
            let bytes = sources.iter().map(Vec::len).max().unwrap();
            let names = ["and", "or", "xor", "diff", "diff1", "andor", "one"];
            for op in names.map(|name| BitOp::of(name.as_bytes()).unwrap()) {
                let result = op.apply(&sources);
                prop_assert_eq!(result.len(), bytes);
                for at in 0..bytes as u64 * 8 {
                    let bits: Vec<bool> = sources.iter().map(|source| get(source, at)).collect();
                    let (first, others) = (bits[0], bits[1..].contains(&true));
                    let ones = bits.iter().filter(|bit| **bit).count();
                    let expected = match op {
                        BitOp::And => ones == bits.len(),
                        BitOp::Or => ones > 0,
                        BitOp::Xor => ones % 2 == 1,
                        BitOp::Diff => first && !others,
                        BitOp::Diff1 => !first && others,
                        BitOp::AndOr => first && others,
                        BitOp::One | BitOp::Not => ones == 1,
                    };
                    prop_assert_eq!(get(&result, at), expected, "{:?} {}", op, at);
                }
            }
        }
    }
}
