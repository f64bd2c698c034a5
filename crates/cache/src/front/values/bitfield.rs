//! `BITFIELD` and `BITFIELD_RO`: integers of 1 to 64 bits at any bit of a string, the highest bit
//! first. In: the command's words ([`parse`]), then the value ([`apply`], [`FieldOp::get`]).

use super::super::bytes::strict_i64;
use super::{ValueError, bits};

/// `i1` to `i64`, `u1` to `u63`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldType {
    signed: bool,
    bits: u32,
}

impl FieldType {
    pub fn of(word: &[u8]) -> Result<Self, ValueError> {
        let (signed, digits, bits_max) = match word {
            [b'i', digits @ ..] => (true, digits, 64),
            [b'u', digits @ ..] => (false, digits, 63),
            _ => return Err(ValueError::FieldType),
        };
        let bits = strict_i64(digits).filter(|bits| (1..=bits_max).contains(bits));
        bits.map(|bits| Self { signed, bits: bits as u32 }).ok_or(ValueError::FieldType)
    }

    fn limits(self) -> (i128, i128) {
        if self.signed {
            let half = 1i128 << (self.bits - 1);
            (-half, half - 1)
        } else {
            (0, (1i128 << self.bits) - 1)
        }
    }

    /// What a field that is set to a number is to hold, before it is made to fit. As in Redis a
    /// negative number is a great one to an unsigned field, and so is to a signed one what lies
    /// 2^63 or more below its greatest value, because the difference is taken in 64 bits.
    fn meant(self, number: i64) -> i128 {
        let (_, max) = self.limits();
        let exact = i128::from(number);
        let is_great = if self.signed {
            self.bits < 64 && max - exact > i128::from(i64::MAX)
        } else {
            number < 0
        };
        if is_great { exact + (1 << 64) } else { exact }
    }

    fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        let (min, max) = self.limits();
        if (min..=max).contains(&number) {
            return Some(number as i64);
        }
        match overflow {
            Overflow::Wrap => {
                let unused = 64 - self.bits;
                let high = (number as i64) << unused;
                Some(if self.signed { high >> unused } else { (high as u64 >> unused) as i64 })
            }
            Overflow::Saturate => Some(number.clamp(min, max) as i64),
            Overflow::Fail => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    Wrap,
    Saturate,
    /// The field stays as it is and the answer is null.
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldAction {
    Get,
    /// Answers with what the field held.
    Set(i64),
    /// Answers with what the field then holds.
    Increment(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldOp {
    pub field: FieldType,
    /// Offset of the first bit.
    pub offset: u64,
    pub action: FieldAction,
    pub overflow: Overflow,
}

/// Reads the words behind the key. `bytes_max`: longest value.
pub fn parse<W: AsRef<[u8]>>(
    words: &[W],
    is_read_only: bool,
    bytes_max: u64,
) -> Result<Vec<FieldOp>, ValueError> {
    let (mut ops, mut overflow) = (Vec::new(), Overflow::Wrap);
    let mut rest = words;
    while let Some((word, behind)) = rest.split_first() {
        let is = |name: &str| word.as_ref().eq_ignore_ascii_case(name.as_bytes());
        let taken = if is("overflow") && !behind.is_empty() {
            overflow = overflow_of(behind[0].as_ref())?;
            1
        } else {
            let (count, action): (usize, fn(i64) -> FieldAction) = if is("get") {
                (2, |_| FieldAction::Get)
            } else if is("set") {
                (3, FieldAction::Set)
            } else if is("incrby") {
                (3, FieldAction::Increment)
            } else {
                return Err(ValueError::Syntax);
            };
            let of_op = behind.get(..count).ok_or(ValueError::Syntax)?;
            let field = FieldType::of(of_op[0].as_ref())?;
            let offset = bits::offset(of_op[1].as_ref(), Some(field.bits), bytes_max)?;
            let number = of_op.get(2).map_or(Some(0), |word| strict_i64(word.as_ref()));
            let action = action(number.ok_or(ValueError::NotAnInteger)?);
            ops.push(FieldOp { field, offset, action, overflow });
            count
        };
        rest = &behind[taken..];
    }
    let writes = ops.iter().any(|op| op.action != FieldAction::Get);
    if is_read_only && writes { Err(ValueError::ReadOnly) } else { Ok(ops) }
}

fn overflow_of(word: &[u8]) -> Result<Overflow, ValueError> {
    let all = [("wrap", Overflow::Wrap), ("sat", Overflow::Saturate), ("fail", Overflow::Fail)];
    let found = all.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(_, overflow)| overflow).ok_or(ValueError::Overflow)
}

/// How long a value becomes by these operations, which is 0 if none of them writes.
pub fn bytes_written(ops: &[FieldOp]) -> u64 {
    let writes = ops.iter().filter(|op| op.action != FieldAction::Get);
    writes.map(|op| (op.offset + u64::from(op.field.bits) - 1) / 8 + 1).max().unwrap_or(0)
}

/// Does the operations in their order and hands each answer out, `None` for one that failed;
/// whether the value is another one then. It is made as long as all writes need, also if they fail.
pub fn apply(value: &mut Vec<u8>, ops: &[FieldOp], mut answer: impl FnMut(Option<i64>)) -> bool {
    let bytes = bytes_written(ops) as usize;
    let mut is_changed = value.len() < bytes;
    if is_changed {
        value.resize(bytes, 0);
    }
    for op in ops {
        let old = op.get(value);
        let number = match op.action {
            FieldAction::Get => {
                answer(Some(old));
                continue;
            }
            FieldAction::Set(number) => op.field.meant(number),
            FieldAction::Increment(by) => i128::from(old) + i128::from(by),
        };
        let new = op.field.fit(number, op.overflow);
        if let Some(new) = new {
            op.set(value, new);
            is_changed |= new != old;
        }
        let shows_old = matches!(op.action, FieldAction::Set(_));
        answer(new.map(|new| if shows_old { old } else { new }));
    }
    is_changed
}

/// The bytes from this one on, as many as the widest field can lie in, and zeros.
fn window(value: &[u8], byte: usize) -> u128 {
    let mut bytes = [0; 16];
    let there = value.get(byte..).unwrap_or_default();
    let count = there.len().min(WINDOW_BYTES);
    bytes[..count].copy_from_slice(&there[..count]);
    u128::from_be_bytes(bytes)
}

/// Bytes in which a field of 64 bits may lie.
const WINDOW_BYTES: usize = 9;

impl FieldOp {
    fn byte(&self) -> usize {
        (self.offset / 8) as usize
    }

    /// The field's number; what lies behind the value's end is zero.
    pub fn get(&self, value: &[u8]) -> i64 {
        let high = window(value, self.byte()) << (self.offset % 8);
        let unused = 128 - self.field.bits;
        if self.field.signed { (high as i128 >> unused) as i64 } else { (high >> unused) as i64 }
    }

    /// Writes a number that fits to a value that is long enough.
    fn set(&self, value: &mut [u8], number: i64) {
        let below = 128 - self.field.bits - (self.offset % 8) as u32;
        let mask = ((1u128 << self.field.bits) - 1) << below;
        let others = window(value, self.byte()) & !mask;
        let bytes = (others | (number as u128) << below & mask).to_be_bytes();
        let there = &mut value[self.byte()..];
        let count = there.len().min(WINDOW_BYTES);
        there[..count].copy_from_slice(&bytes[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MAX: u64 = 512 << 20;

    /// The answers to words with blanks between them.
    fn run(value: &mut Vec<u8>, words: &str) -> Vec<Option<i64>> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let ops = parse(&words, false, MAX).unwrap();
        let mut answers = Vec::new();
        apply(value, &ops, |answer| answers.push(answer));
        answers
    }

    fn refused(words: &[&str], is_read_only: bool) -> ValueError {
        parse(words, is_read_only, MAX).unwrap_err()
    }

    #[test]
    fn fields_are_read_set_and_incremented_in_their_order() {
        let mut value = Vec::new();
        assert_eq!(run(&mut value, "set i8 0 -100"), [Some(0)]);
        assert_eq!(run(&mut value, "SET i8 0 101 get i8 0 get u4 #1"), [-100, 101, 5].map(Some));
        let mut value = Vec::new();
        assert_eq!(run(&mut value, "set i8 0 255 set i8 0 100 get i8 0"), [0, -1, 100].map(Some));
        let mut value = Vec::new();
        assert_eq!(run(&mut value, "set u8 0 255 incrby u8 0 100 get u8 0"), [0, 99, 99].map(Some));
        let mut value = Vec::new();
        run(&mut value, "set u8 #0 65 set u8 #1 66 set u8 #2 67");
        assert_eq!(value, b"ABC");
        assert_eq!(run(&mut value, "get i64 60000 get u63 23"), [0, 1 << 62].map(Some));
        assert_eq!((run(&mut value, ""), value.len()), (Vec::new(), 3));
        assert_eq!(run(&mut Vec::new(), "incrby i5 100 1 get u4 0"), [1, 0].map(Some));
    }

    #[test]
    fn what_does_not_fit_wraps_saturates_or_fails() {
        for (words, expected) in [
            ("set u8 0 100 overflow wrap incrby u8 0 257 incrby u8 0 255", [0, 101, 100]),
            ("set u8 0 100 overflow sat incrby u8 0 257 incrby u8 0 -256", [0, 255, 0]),
            ("set i8 0 100 overflow wrap incrby i8 0 257 incrby i8 0 255", [0, 101, 100]),
            ("set i8 0 100 overflow sat incrby i8 0 257 incrby i8 0 -256", [0, 127, -128]),
            ("set i64 0 9223372036854775807 incrby i64 0 1 get u1 0", [0, i64::MIN, 1]),
            ("overflow sat set u8 0 -1 get u8 0 get i8 0", [0, 255, -1]),
            ("overflow sat set i8 0 -129 get i8 0 get u8 0", [0, -128, 128]),
            ("overflow sat set i8 0 -9223372036854775808 get i8 0 get u8 0", [0, 127, 127]),
            ("set u63 0 -1 incrby u63 0 1 get u63 0", [0, 0, 0]),
        ] {
            assert_eq!(run(&mut Vec::new(), words), expected.map(Some), "{words}");
        }
        let mut value = Vec::new();
        let words = "overflow fail set u2 0 4 incrby u2 0 3 incrby u2 0 1";
        assert_eq!(run(&mut value, words), [None, Some(3), None]);
        assert_eq!(value, [0xc0]);
        // The value is there although nothing was written to it.
        let mut value = Vec::new();
        assert_eq!(run(&mut value, "overflow fail incrby i8 8 128"), [None]);
        assert_eq!(value, [0, 0]);
    }

    #[test]
    fn words_that_are_no_operation_are_refused() {
        assert_eq!(refused(&["get"], false), ValueError::Syntax);
        assert_eq!(refused(&["set", "u8", "0"], false), ValueError::Syntax);
        assert_eq!(refused(&["put", "u8", "0", "1"], false), ValueError::Syntax);
        assert_eq!(refused(&["overflow", "up"], false), ValueError::Overflow);
        assert_eq!(refused(&["overflow"], false), ValueError::Syntax);
        for bad in ["u64", "i65", "u0", "i", "f8", "", "U8", "u-1"] {
            assert_eq!(refused(&["get", bad, "0"], false), ValueError::FieldType, "{bad}");
        }
        assert_eq!(refused(&["get", "u8", "-1"], false), ValueError::BitOffset);
        assert_eq!(refused(&["set", "u8", "0", "x"], false), ValueError::NotAnInteger);
        assert_eq!(refused(&["get", "u8", "0", "set", "u8", "0", "1"], true), ValueError::ReadOnly);
        assert!(parse(&["overflow", "sat", "get", "u8", "0"], true, MAX).is_ok());
    }

    proptest! {
        #[test]
        fn a_field_holds_its_number_and_nothing_beside_it_changes(
            before in vec(any::<u8>(), 30),
            offset in 0u64..170,
            bits in 1u32..=64,
            signed: bool,
            number: i64,
        ) {
            let field = FieldType { signed: signed || bits == 64, bits };
            let op = |action| FieldOp { field, offset, action, overflow: Overflow::Wrap };
            let mut value = before.clone();
            apply(&mut value, &[op(FieldAction::Set(number))], |_| ());
            let unused = 64 - bits;
            let high = number << unused;
            let unsigned = (high as u64 >> unused) as i64;
            let wrapped = if field.signed { high >> unused } else { unsigned };
            prop_assert_eq!(op(FieldAction::Get).get(&value), wrapped);
            for at in 0..30 * 8 {
                let bit = bits::get(&value, at);
                if (offset..offset + u64::from(bits)).contains(&at) {
                    let place = offset + u64::from(bits) - 1 - at;
                    prop_assert_eq!(bit, number as u64 >> place & 1 == 1);
                } else {
                    prop_assert_eq!(bit, bits::get(&before, at));
                }
            }
        }

        #[test]
        fn an_increment_is_exact_or_brought_into_the_limits(
            bits in 1u32..=64,
            signed: bool,
            start: i64,
            by: i64,
        ) {
            let field = FieldType { signed: signed || bits == 64, bits };
            let op = |action, overflow| FieldOp { field, offset: 3, action, overflow };
            let (min, max) = field.limits();
            for overflow in [Overflow::Wrap, Overflow::Saturate, Overflow::Fail] {
                let mut value = Vec::new();
                apply(&mut value, &[op(FieldAction::Set(start), Overflow::Wrap)], |_| ());
                let old = i128::from(op(FieldAction::Get, overflow).get(&value));
                let mut answer = None;
                apply(&mut value, &[op(FieldAction::Increment(by), overflow)], |got| answer = got);
                let sum = old + i128::from(by);
                let range = max - min + 1;
                let expected = match overflow {
                    _ if (min..=max).contains(&sum) => Some(sum),
                    Overflow::Wrap => Some((sum - min).rem_euclid(range) + min),
                    Overflow::Saturate => Some(sum.clamp(min, max)),
                    Overflow::Fail => None,
                };
                prop_assert_eq!(answer.map(i128::from), expected);
            }
        }
    }
}
