//! Redis's commands on hashes, field by field. In: a [`RespCall`]. Out: its answer, or an error's
//! text. What goes over all of a hash is in `redis_hash_walks.rs`, expiry of fields in
//! `redis_hash_expiry.rs`.
//!
//! A command of many fields holds the key's partition for some of them at a time.

use super::core::{Output, push_value};
use super::redis::{CommandResult, RespCall, ResumePoint, wrong_arity};
use super::resp::{
    Version, failed, push_array, push_bulk, push_bulk_head, push_integer, push_null,
};
use super::values::ValueError;
use super::values::long_double::{self, Parsed};
use crate::cache::{Error, HashEntry, HashValue};
use crate::constants::BATCH_KEYS_MAX;
use crate::hashes::{FIELD_BYTES_MAX, FieldExpiry, Stored, Text};

/// Appends a value as a bulk string.
pub fn push_hash_value(out: &mut Output, value: HashValue<'_>) -> Result<(), Error> {
    match value {
        HashValue::Text(text) => {
            let pushed = text.with_bytes(|bytes| push_bulk(&mut out.bytes, bytes));
            return pushed.ok_or(Error::HashLost);
        }
        HashValue::Item(item) => {
            push_bulk_head(&mut out.bytes, item.len());
            push_value(out, item, item.len())?;
        }
        HashValue::Pinned(pinned) => {
            push_bulk_head(&mut out.bytes, pinned.len());
            out.push_pinned(pinned, false);
        }
    }
    out.bytes.extend_from_slice(b"\r\n");
    Ok(())
}

/// Appends a field's value, or null; whether it is the value.
pub fn push_field(
    out: &mut Output,
    hash: &mut HashEntry<'_>,
    field: &[u8],
    version: Version,
) -> Result<bool, Error> {
    let start = out.bytes.len();
    let pushed = hash.get(field, |value, _| push_hash_value(out, value));
    match pushed.and_then(Option::transpose) {
        Ok(Some(())) => Ok(true),
        Ok(None) => {
            push_null(&mut out.bytes, version);
            Ok(false)
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// As [`push_field`] among others, after their number: null also where the value is lost.
pub fn push_element(
    out: &mut Output,
    hash: &mut HashEntry<'_>,
    field: &[u8],
    version: Version,
) -> bool {
    push_field(out, hash, field, version).unwrap_or_else(|_| {
        push_null(&mut out.bytes, version);
        false
    })
}

/// Whether a field may be stored.
pub fn check_field(field: &[u8]) -> CommandResult {
    if field.len() <= FIELD_BYTES_MAX {
        return Ok(());
    }
    let bytes = field.len();
    Err(format!("ERR a field of {bytes} bytes: up to {FIELD_BYTES_MAX} bytes can be stored"))
}

pub fn hget(call: &mut RespCall<'_>) -> CommandResult {
    let (input, args, version) = (call.input, call.args, call.client.version);
    let core = &mut *call.core;
    let times = core.times();
    let hash = core.db.hash_reader(args.get(input, 1), times);
    let mut hash = hash.map_err(|error| failed(&error))?;
    let is_there = hash.is_there();
    let pushed = push_field(&mut core.out, &mut hash, args.get(input, 2), version);
    drop(hash);
    call.counted(is_there);
    pushed.map(drop).map_err(|error| failed(&error))
}

/// What `f` makes of the value of word 2, if there is one.
fn read<R>(
    call: &mut RespCall<'_>,
    f: impl FnOnce(HashValue<'_>) -> R,
) -> Result<Option<R>, String> {
    let (core, key, field) = (&*call.core, call.arg(1), call.arg(2));
    let hash = core.db.hash_reader(key, core.times());
    let mut hash = hash.map_err(|error| failed(&error))?;
    let is_there = hash.is_there();
    let found = hash.get(field, |value, _| f(value));
    drop(hash);
    call.counted(is_there);
    found.map_err(|error| failed(&error))
}

pub fn hexists(call: &mut RespCall<'_>) -> CommandResult {
    let found = read(call, |_| ())?;
    call.integer(i64::from(found.is_some()))
}

pub fn hstrlen(call: &mut RespCall<'_>) -> CommandResult {
    let len = read(call, |value| match value {
        HashValue::Text(text) => text.len() as u64,
        HashValue::Item(item) => item.len(),
        HashValue::Pinned(pinned) => pinned.len(),
    })?;
    call.integer(len.unwrap_or(0) as i64)
}

pub fn hlen(call: &mut RespCall<'_>) -> CommandResult {
    let (core, key) = (&*call.core, call.arg(1));
    let hash = core.db.hash_reader(key, core.times()).map_err(|error| failed(&error))?;
    let (is_there, count) = (hash.is_there(), hash.count());
    drop(hash);
    call.counted(is_there);
    call.integer(count.map_err(|error| failed(&error))? as i64)
}

/// `HMGET key field [field ...]`
pub fn hmget(call: &mut RespCall<'_>) -> CommandResult {
    hmget_from(call, ResumePoint::at(FIRST))
}

/// Which word is the first field.
const FIRST: u64 = 2;

/// Answers with the values of the fields from this part on.
fn hmget_from(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    let (input, args, version) = (call.input, call.args, call.client.version);
    let (mut index, mut is_first) = (part.index as usize, part.index == FIRST);
    while index < args.len() {
        let end = args.len().min(index + BATCH_KEYS_MAX);
        let core = &mut *call.core;
        let times = core.times();
        let mut hash = match core.db.hash_reader(args.get(input, 1), times) {
            Err(error) if is_first => return Err(failed(&error)),
            // It was one when the answer began.
            hash => hash.ok(),
        };
        let is_there = hash.as_ref().is_some_and(HashEntry::is_there);
        if is_first {
            push_array(&mut core.out.bytes, args.len() - FIRST as usize);
        }
        for index in index..end {
            match &mut hash {
                Some(hash) => {
                    push_element(&mut core.out, hash, args.get(input, index), version);
                }
                None => push_null(&mut core.out.bytes, version),
            }
        }
        drop(hash);
        if is_first {
            call.counted(is_there);
        }
        (index, is_first) = (end, false);
        if index < args.len() && call.is_to_pause() {
            return call.go_on_later(ResumePoint::at(index as u64), hmget_from);
        }
    }
    Ok(())
}

/// Stores the pairs of words from the part's on, and counts those fields that are new. Whether all
/// are done; else the command is to pause.
fn set_pairs(call: &mut RespCall<'_>, part: &mut ResumePoint) -> Result<bool, String> {
    let (input, args) = (call.input, call.args);
    while (part.index as usize) < args.len() {
        let start = part.index as usize;
        let end = args.len().min(start + 2 * BATCH_KEYS_MAX);
        (start..end).step_by(2).try_for_each(|index| check_field(args.get(input, index)))?;
        let (core, key) = (&*call.core, args.get(input, 1));
        let hash = core.db.hash_entry(key, core.times());
        let mut hash = hash.map_err(|error| failed(&error))?;
        let set: Result<(), Error> = (start..end).step_by(2).try_for_each(|index| {
            let (field, value) = (args.get(input, index), args.get(input, index + 1));
            let stored = hash.set(field, value, FieldExpiry::Set(0))?;
            part.sum += i64::from(stored == Stored::Added);
            Ok(())
        });
        // What was stored before one that could not be stays.
        let finished = hash.finish();
        set.and(finished).map_err(|error| failed(&error))?;
        part.index = end as u64;
        if end < args.len() && call.is_to_pause() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `HSET key field value [field value ...]`
pub fn hset(call: &mut RespCall<'_>) -> CommandResult {
    if !call.count().is_multiple_of(2) {
        return Err(wrong_arity("hset"));
    }
    hset_from(call, ResumePoint::at(FIRST))
}

fn hset_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = set_pairs(call, &mut part)?;
    if is_done { call.integer(part.sum) } else { call.go_on_later(part, hset_from) }
}

/// `HMSET key field value [field value ...]`
pub fn hmset(call: &mut RespCall<'_>) -> CommandResult {
    if !call.count().is_multiple_of(2) {
        return Err(wrong_arity("hmset"));
    }
    hmset_from(call, ResumePoint::at(FIRST))
}

fn hmset_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = set_pairs(call, &mut part)?;
    if is_done { call.status("OK") } else { call.go_on_later(part, hmset_from) }
}

/// Changes word 2 of the hash under word 1.
fn change<R>(
    call: &RespCall<'_>,
    f: impl FnOnce(&mut HashEntry<'_>, &[u8]) -> Result<R, String>,
) -> Result<R, String> {
    let (core, key, field) = (&*call.core, call.arg(1), call.arg(2));
    check_field(field)?;
    let hash = core.db.hash_entry(key, core.times());
    let mut hash = hash.map_err(|error| failed(&error))?;
    let changed = f(&mut hash, field)?;
    hash.finish().map_err(|error| failed(&error))?;
    Ok(changed)
}

pub fn hsetnx(call: &mut RespCall<'_>) -> CommandResult {
    let is_new = change(call, |hash, field| {
        let found = hash.get(field, |_, _| ()).map_err(|error| failed(&error))?;
        if found.is_none() {
            let set = hash.set(field, call.arg(3), FieldExpiry::Set(0));
            set.map_err(|error| failed(&error))?;
        }
        Ok(found.is_none())
    })?;
    call.integer(i64::from(is_new))
}

/// `HDEL key field [field ...]`
pub fn hdel(call: &mut RespCall<'_>) -> CommandResult {
    hdel_from(call, ResumePoint::at(FIRST))
}

fn hdel_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let (input, args) = (call.input, call.args);
    while (part.index as usize) < args.len() {
        let start = part.index as usize;
        let end = args.len().min(start + BATCH_KEYS_MAX);
        let (core, key) = (&*call.core, args.get(input, 1));
        let hash = core.db.hash_entry(key, core.times());
        let mut hash = hash.map_err(|error| failed(&error))?;
        let removed: Result<(), Error> = (start..end).try_for_each(|index| {
            part.sum += i64::from(hash.remove(args.get(input, index))?);
            Ok(())
        });
        let finished = hash.finish();
        removed.and(finished).map_err(|error| failed(&error))?;
        part.index = end as u64;
        if end < args.len() && call.is_to_pause() {
            return call.go_on_later(part, hdel_from);
        }
    }
    call.integer(part.sum)
}

pub fn hincrby(call: &mut RespCall<'_>) -> CommandResult {
    let by = call.number(3)?;
    let value = change(call, |hash, field| {
        let number = |value: HashValue<'_>| match value {
            HashValue::Text(Text::Number(number)) => Some(number),
            _ => None,
        };
        let old = hash.get(field, |value, _| number(value)).map_err(|error| failed(&error))?;
        let old = old.unwrap_or(Some(0)).ok_or("ERR hash value is not an integer")?;
        let value = old.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        let mut digits = itoa::Buffer::new();
        let set = hash.set(field, digits.format(value).as_bytes(), FieldExpiry::Keep);
        set.map_err(|error| failed(&error))?;
        Ok(value)
    })?;
    push_integer(&mut call.core.out.bytes, value);
    Ok(())
}

pub fn hincrbyfloat(call: &mut RespCall<'_>) -> CommandResult {
    let by = match Parsed::of(call.arg(3)) {
        None => return Err(ValueError::NotAFloat.to_string()),
        Some(Parsed::Infinite) => return Err("ERR value is NaN or Infinity".into()),
        Some(Parsed::Finite(_)) => call.arg(3),
    };
    let value = change(call, |hash, field| {
        let text = |value: HashValue<'_>| match value {
            HashValue::Text(text) => text.with_bytes(<[u8]>::to_vec),
            // No number is that long.
            _ => None,
        };
        let old = hash.get(field, |value, _| text(value)).map_err(|error| failed(&error))?;
        let old = match old {
            Some(text) => text.filter(|text| Parsed::of(text).is_some()).map(Some),
            None => Some(None),
        };
        let old = old.ok_or("ERR hash value is not a float")?;
        let value = long_double::add(old.as_deref(), by).map_err(|error| error.to_string())?;
        let set = hash.set(field, &value, FieldExpiry::Keep);
        set.map_err(|error| failed(&error))?;
        Ok(value)
    })?;
    push_bulk(&mut call.core.out.bytes, &value);
    Ok(())
}
