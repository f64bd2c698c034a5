//! Redis's commands on the bits of strings: `SETBIT`, `GETBIT`, `BITCOUNT`, `BITPOS`, `BITOP`,
//! `BITFIELD`, `BITFIELD_RO`. In: a [`RespCall`]. Out: its answer, or an error's text.

use super::redis::{CommandResult, RespCall, syntax};
use super::redis_values::{at_once, bytes_max, change, read, read_all};
use super::resp::{failed, push_integer, push_null};
use super::values::bit_ops::BitOp;
use super::values::bits::{self, BitRange, IndexUnit, SearchRange};
use super::values::{ValueError, bitfield};

fn offset(call: &RespCall<'_>, index: usize) -> Result<u64, String> {
    bits::offset(call.arg(index), None, bytes_max(call)).map_err(|error| error.to_string())
}

/// `SETBIT key offset bit`
pub fn setbit(call: &mut RespCall<'_>) -> CommandResult {
    let offset = offset(call, 2)?;
    let bit = match call.number(3) {
        Ok(0) => false,
        Ok(1) => true,
        _ => return Err("ERR bit is not an integer or out of range".into()),
    };
    let was = change(call, |value, _| {
        let bytes = value.len();
        let was = bits::set(value, offset, bit);
        Ok((value.len() > bytes || was != bit, was))
    })?;
    call.integer(i64::from(was))
}

/// `GETBIT key offset`
pub fn getbit(call: &mut RespCall<'_>) -> CommandResult {
    let offset = offset(call, 2)?;
    let mut byte = [0];
    let found = call
        .core
        .cache()
        .get(call.arg(1), call.core.now, |item| item.copy_to(offset / 8, &mut byte));
    call.counted(found.is_some());
    match found {
        Some(Err(error)) => Err(failed(&error)),
        _ => call.integer(i64::from(bits::get(&byte, offset % 8))),
    }
}

fn unit(call: &RespCall<'_>, index: usize) -> Result<IndexUnit, String> {
    match () {
        () if call.count() == index || call.is(index, "byte") => Ok(IndexUnit::Byte),
        () if call.is(index, "bit") => Ok(IndexUnit::Bit),
        () => Err(syntax()),
    }
}

/// `BITCOUNT key [start end [BYTE|BIT]]`
pub fn bitcount(call: &mut RespCall<'_>) -> CommandResult {
    if !read(call, 1)? {
        return call.integer(0);
    }
    let range = match call.count() {
        2 => None,
        4 | 5 => {
            let (start, end) = (call.number(2)?, call.number(3)?);
            Some(BitRange { start, end, unit: unit(call, 4)? })
        }
        _ => return Err(syntax()),
    };
    let count = bits::count(&call.core.scratch, range);
    call.integer(count as i64)
}

/// `BITPOS key bit [start [end [BYTE|BIT]]]`
pub fn bitpos(call: &mut RespCall<'_>) -> CommandResult {
    let bit = match call.number(2)? {
        0 => false,
        1 => true,
        _ => return Err("ERR The bit argument must be 1 or 0.".into()),
    };
    let is_there = read(call, 1)?;
    let range = match call.count() {
        _ if !is_there => None,
        3 => None,
        4 => Some(SearchRange { start: call.number(3)?, end: None, unit: IndexUnit::Byte }),
        5 | 6 => {
            let (start, unit) = (call.number(3)?, unit(call, 5)?);
            Some(SearchRange { start, end: Some(call.number(4)?), unit })
        }
        _ => return Err(syntax()),
    };
    let value = is_there.then_some(&call.core.scratch[..]);
    let position = bits::position(value, bit, range);
    call.integer(position.map_or(-1, |position| position as i64))
}

/// `BITOP AND|OR|XOR|NOT|DIFF|DIFF1|ANDOR|ONE target key [key ...]`
pub fn bitop(call: &mut RespCall<'_>) -> CommandResult {
    let op = BitOp::of(call.arg(1)).ok_or_else(syntax)?;
    op.check_sources(call.count() - 3).map_err(|error| error.to_string())?;
    at_once(call, 2..call.count(), |call| {
        let mut joined = Joined::new(op);
        read_all(call.core, call.args.words(call.input).skip(3), |value| {
            joined.add(value.unwrap_or_default());
            Ok(())
        })?;
        let result = joined.finish();
        let (core, target) = (&*call.core, call.args.get(call.input, 2));
        if result.is_empty() {
            core.db.remove(target, core.now);
        } else {
            let put = core.db.set(target, &result, 0, 0, core.now);
            put.map_err(|error| failed(&error))?;
        }
        call.integer(result.len() as i64)
    })
}

/// The values of an operation, one after the other, so that no more than a few are in memory.
struct Joined {
    op: BitOp,
    first: Option<Vec<u8>>,
    /// Of all but the first …
    others: Vec<u8>,
    /// … and, for `ONE`, what is in several.
    several: Vec<u8>,
    is_alone: bool,
}

impl Joined {
    fn new(op: BitOp) -> Self {
        Self { op, first: None, others: Vec::new(), several: Vec::new(), is_alone: true }
    }

    fn add(&mut self, value: Vec<u8>) {
        let Some(first) = &mut self.first else {
            self.first = Some(value);
            return;
        };
        self.is_alone = false;
        match self.op {
            BitOp::And | BitOp::Or | BitOp::Xor => *first = self.op.apply(&[&first[..], &value]),
            BitOp::One => {
                let twice = BitOp::And.apply(&[&first[..], &value]);
                self.several = BitOp::Or.apply(&[&self.several, &twice]);
                *first = BitOp::Or.apply(&[&first[..], &value]);
            }
            BitOp::Not | BitOp::Diff | BitOp::Diff1 | BitOp::AndOr => {
                self.others = BitOp::Or.apply(&[&self.others, &value]);
            }
        }
    }

    fn finish(self) -> Vec<u8> {
        let first = self.first.unwrap_or_default();
        match self.op {
            BitOp::And | BitOp::Or | BitOp::Xor => first,
            BitOp::One => BitOp::Diff.apply(&[first, self.several]),
            op if self.is_alone => op.apply(&[first]),
            op => op.apply(&[first, self.others]),
        }
    }
}

/// `BITFIELD key [GET type offset|[OVERFLOW ...] SET type offset number|INCRBY ...]`
pub fn bitfield(call: &mut RespCall<'_>) -> CommandResult {
    fields(call, false)
}

/// `BITFIELD_RO key [GET type offset ...]`
pub fn bitfield_ro(call: &mut RespCall<'_>) -> CommandResult {
    fields(call, true)
}

fn fields(call: &mut RespCall<'_>, is_read_only: bool) -> CommandResult {
    let words: Vec<&[u8]> = call.args.words(call.input).skip(2).collect();
    let text = |error: ValueError| error.to_string();
    let ops = bitfield::parse(&words, is_read_only, bytes_max(call)).map_err(text)?;
    let answers: Vec<Option<i64>> = if bitfield::bytes_written(&ops) == 0 {
        read(call, 1)?;
        let value = &call.core.scratch;
        ops.iter().map(|op| Some(op.get(value))).collect()
    } else {
        change(call, |value, _| {
            let mut answers = Vec::with_capacity(ops.len());
            let is_changed = bitfield::apply(value, &ops, |answer| answers.push(answer));
            Ok((is_changed, answers))
        })?
    };
    call.array(answers.len());
    let version = call.client.version;
    let out = &mut call.core.out.bytes;
    for answer in answers {
        match answer {
            Some(number) => push_integer(out, number),
            None => push_null(out, version),
        }
    }
    Ok(())
}
