//! Redis's commands on parts of strings, what two strings have in common, and numbers with a point:
//! `GETRANGE`, `SUBSTR`, `SETRANGE`, `LCS`, `INCRBYFLOAT`. In: a [`RespCall`]. Out: its answer, or
//! an error's text.

use super::core::Output;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax};
use super::redis_values::{at_once, bytes_max, change, read_all};
use super::resp::{failed, push_array, push_bulk, push_bulk_head, push_integer, push_map};
use super::values::lcs::{Lcs, LcsMatch};
use super::values::{long_double, range};
use crate::cache::{Error, Item};
use crate::constants::{PIN_BYTES_MIN, RESP_BULK_BYTES_MAX};
use std::ops::Range;

/// `GETRANGE key start end`, `SUBSTR key start end`
pub fn getrange(call: &mut RespCall<'_>) -> CommandResult {
    let (start, end) = (call.number(2)?, call.number(3)?);
    let key = call.args.get(call.input, 1);
    let core = &mut *call.core;
    let out = &mut core.out;
    let shown = core
        .db
        .get(key, core.now, |item| push_part(out, item, range::shown(item.len(), start, end)));
    call.counted(shown.is_some());
    match shown {
        Some(Ok(())) => {}
        Some(Err(error)) => return Err(failed(&error)),
        None => push_bulk(&mut call.core.out.bytes, b""),
    }
    Ok(())
}

/// Appends a part of a value as a bulk string: a copy, or a reference to it if it is long.
fn push_part(out: &mut Output, item: &Item<'_>, part: Range<u64>) -> Result<(), Error> {
    let (bytes, before) = (part.end - part.start, out.bytes.len());
    push_bulk_head(&mut out.bytes, bytes);
    let pushed = if bytes >= PIN_BYTES_MIN {
        let pinned = item.pin().and_then(|pinned| pinned.part(part));
        pinned.map(|pinned| out.push_pinned(pinned, item.is_far()))
    } else {
        let from = out.bytes.len();
        out.bytes.resize(from + bytes as usize, 0);
        item.copy_to(part.start, &mut out.bytes[from..]).map(drop)
    };
    match pushed {
        Ok(()) => out.bytes.extend_from_slice(b"\r\n"),
        Err(_) => out.fail(before),
    }
    pushed
}

/// `SETRANGE key offset value`
pub fn setrange(call: &mut RespCall<'_>) -> CommandResult {
    let (offset, most) = (call.number(2)?, bytes_max(call));
    let bytes = call.args.get(call.input, 3);
    let len = change(call, |value, _| {
        let is_changed = range::overwrite(value, offset, bytes, most)?;
        Ok((is_changed, value.len()))
    })?;
    call.integer(len as i64)
}

/// `INCRBYFLOAT key number`
pub fn incrbyfloat(call: &mut RespCall<'_>) -> CommandResult {
    let by = call.args.get(call.input, 2);
    let sum = change(call, |value, is_there| {
        *value = long_double::add(is_there.then_some(&value[..]), by)?;
        Ok((true, value.clone()))
    })?;
    push_bulk(&mut call.core.out.bytes, &sum);
    Ok(())
}

/// What `LCS` answers with.
#[derive(Clone, Copy, Debug, Default)]
struct LcsOptions {
    is_length: bool,
    is_index: bool,
    has_lengths: bool,
    bytes_min: u64,
}

impl LcsOptions {
    fn read(call: &RespCall<'_>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut index = 3;
        while index < call.count() {
            let is = |word| call.is(index, word);
            match () {
                () if is("idx") => options.is_index = true,
                () if is("len") => options.is_length = true,
                () if is("withmatchlen") => options.has_lengths = true,
                () if is("minmatchlen") && index + 1 < call.count() => {
                    index += 1;
                    options.bytes_min = call.number(index)?.max(0) as u64;
                }
                () => return Err(syntax()),
            }
            index += 1;
        }
        if options.is_length && options.is_index {
            let text = "ERR If you want both the length and indexes, please just use IDX.";
            return Err(text.into());
        }
        Ok(options)
    }
}

/// `LCS key key [LEN] [IDX] [MINMATCHLEN bytes] [WITHMATCHLEN]`
pub fn lcs(call: &mut RespCall<'_>) -> CommandResult {
    let options = LcsOptions::read(call)?;
    let mut texts = Vec::new();
    at_once(call, 1..=2, |call| {
        read_all(call.core, call.args.words(call.input).skip(1).take(2), |value| {
            texts.push(value.unwrap_or_default());
            Ok(())
        })
    })?;
    let (index, bytes) = (texts[0].len() as u64, texts.concat());
    let is_traced = !options.is_length;
    let lcs = Lcs::new(&texts[0], &texts[1], is_traced, RESP_BULK_BYTES_MAX as u64);
    let lcs = Some(Box::new(lcs.map_err(|error| error.to_string())?));
    lcs_from(call, ResumePoint { index, bytes, lcs, ..ResumePoint::default() })
}

/// Pairs of bytes between two looks at the clock, of 1 ns or so each.
const PAIRS_AT_ONCE: u64 = 100_000;

/// Goes on with two texts, which lie in the part's bytes; the second one begins at its index.
fn lcs_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let mut lcs = part.lcs.take().expect("it was begun");
    loop {
        let (first, second) = part.bytes.split_at(part.index as usize);
        if lcs.advance(first, second, PAIRS_AT_ONCE) {
            return answer_lcs(call, &lcs, first, second);
        }
        if call.is_to_pause() {
            part.lcs = Some(lcs);
            return call.go_on_later(part, lcs_from);
        }
    }
}

fn answer_lcs(call: &mut RespCall<'_>, lcs: &Lcs, first: &[u8], second: &[u8]) -> CommandResult {
    let options = LcsOptions::read(call)?;
    let version = call.client.version;
    let out = &mut call.core.out.bytes;
    if options.is_length {
        push_integer(out, lcs.length() as i64);
    } else if options.is_index {
        let matches = lcs.matches(first, second, options.bytes_min);
        push_map(out, 2, version);
        push_bulk(out, b"matches");
        push_array(out, matches.len());
        matches.iter().for_each(|found| push_match(out, found, options.has_lengths));
        push_bulk(out, b"len");
        push_integer(out, lcs.length() as i64);
    } else {
        push_bulk(out, &lcs.bytes(first, second));
    }
    Ok(())
}

fn push_match(out: &mut Vec<u8>, found: &LcsMatch, has_length: bool) {
    push_array(out, 2 + usize::from(has_length));
    for (first, last) in [found.first, found.second] {
        push_array(out, 2);
        push_integer(out, first as i64);
        push_integer(out, last as i64);
    }
    if has_length {
        push_integer(out, found.length() as i64);
    }
}
