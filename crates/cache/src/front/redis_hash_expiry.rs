//! Redis's commands on the expiry of fields, and those that read or store fields and change it.
//! In: a [`RespCall`]. Out: its answer, or an error's text; the words are those of redis 8.
//!
//! A command of many fields holds the key's partition for some of them at a time.

use super::redis::{CommandResult, RespCall, ResumePoint, syntax, wrong_arity};
use super::redis_hashes::{check_field, push_element};
use super::redis_strings::{Unit, invalid_expiry, past_or};
use super::resp::{failed, push_array, push_error, push_integer, push_null};
use crate::cache::{Cache, Error, HashEntry, Millis};
use crate::clock::{PAST, Times, time_left};
use crate::constants::BATCH_KEYS_MAX;
use crate::hashes::{Condition, Expired, FieldExpiry, Persisted};

/// Latest expiry of a field, milliseconds since the epoch: Redis's.
const EXPIRES_MAX: i64 = (1 << 46) - 1;

const NUMBER_OF_FIELDS: &str = "ERR Number of fields must be a positive integer";
const NUM_FIELDS: &str = "ERR Parameter `numFields` should be greater than 0";

/// Fails if the key has a value of another type: that is told before all else.
fn check_type(call: &RespCall<'_>) -> CommandResult {
    let hash = call.core.db.hash_entry(call.arg(1), call.core.times());
    hash.map(drop).map_err(|error| failed(&error))
}

/// The first field, where `FIELDS count` stands at word `at` and all behind it are fields; `wrong`
/// is said of a count that is none.
fn first_field(call: &RespCall<'_>, at: usize, wrong: &str) -> Result<usize, String> {
    if at + 1 >= call.count() || !call.is(at, "fields") {
        let text = "ERR Mandatory argument FIELDS is missing or not at the right position";
        return Err(text.into());
    }
    let count = call.number(at + 1).ok().filter(|count| *count > 0).ok_or(wrong)?;
    if usize::try_from(count) != Ok(call.count() - at - 2) {
        return Err("ERR The `numfields` parameter must match the number of arguments".into());
    }
    Ok(at + 2)
}

/// The expiry that word `index` says; [`PAST`] if that is over.
fn field_expiry(
    call: &RespCall<'_>,
    index: usize,
    unit: Unit,
    command: &str,
) -> Result<Millis, String> {
    let number = call.number(index)?;
    if number < 0 {
        return Err("ERR invalid expire time, must be >= 0".into());
    }
    let times = call.core.times();
    let base = if unit.absolute { 0 } else { times.wall as i64 };
    let ms = if unit.seconds { number.checked_mul(1000) } else { Some(number) };
    let at = ms.filter(|ms| *ms <= EXPIRES_MAX - base).ok_or_else(|| invalid_expiry(command))?;
    Ok(past_or((at + base) as u64, unit.absolute, times))
}

/// Answers an array of what `each` does to the fields from the part's on, as numbers.
fn each_field(
    call: &mut RespCall<'_>,
    part: &mut ResumePoint,
    first: usize,
    each: impl Fn(&Cache, &mut HashEntry<'_>, &[u8]) -> Result<i64, Error>,
) -> Result<bool, String> {
    let (input, args) = (call.input, call.args);
    while (part.index as usize) < args.len() {
        let start = part.index as usize;
        let end = args.len().min(start + BATCH_KEYS_MAX);
        let core = &mut *call.core;
        let (times, out) = (core.times(), &mut core.out.bytes);
        let hash = core.db.hash_entry(args.get(input, 1), times);
        let mut hash = match hash {
            Err(error) if start == first => return Err(failed(&error)),
            hash => hash.ok(),
        };
        let begin = out.len();
        if start == first {
            push_array(out, args.len() - first);
        }
        for index in start..end {
            let done = hash.as_mut().map(|hash| each(&core.db, hash, args.get(input, index)));
            match done {
                Some(Ok(number)) => push_integer(out, number),
                Some(Err(error)) => push_error(out, failed(&error).as_bytes()),
                None => push_integer(out, NO_FIELD),
            }
        }
        if let Some(Err(error)) = hash.map(HashEntry::finish) {
            out.truncate(begin);
            push_failures(out, &error, if start == first { 0 } else { end - start })?;
        }
        part.index = end as u64;
        if end < args.len() && call.is_to_pause() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Answers that `count` elements of an array have failed, which has begun; else fails.
fn push_failures(out: &mut Vec<u8>, error: &Error, count: usize) -> CommandResult {
    let text = failed(error);
    (0..count).for_each(|_| push_error(out, text.as_bytes()));
    if count == 0 { Err(text) } else { Ok(()) }
}

/// What is answered of a field that is not there, and of one that never expires.
const NO_FIELD: i64 = -2;
const NO_EXPIRY: i64 = -1;

/// The condition that word 3 of `HEXPIRE` says, and the word behind it.
fn condition(call: &RespCall<'_>) -> (Condition, usize) {
    let all = [
        ("nx", Condition::IfNone),
        ("xx", Condition::IfSome),
        ("gt", Condition::IfLater),
        ("lt", Condition::IfEarlier),
    ];
    let found = all.into_iter().find(|(word, _)| call.is(3, word));
    found.map_or((Condition::Always, 3), |(_, condition)| (condition, 4))
}

/// The unit that the name of `HEXPIRE` and its kin says.
fn unit_of(call: &RespCall<'_>) -> Unit {
    let is = |name: &str| call.is(0, name);
    Unit {
        seconds: is("hexpire") || is("hexpireat"),
        absolute: is("hexpireat") || is("hpexpireat"),
    }
}

/// `HEXPIRE key time [NX|XX|GT|LT] FIELDS count field [field ...]`, `HPEXPIRE`, `HEXPIREAT`,
/// `HPEXPIREAT`
pub fn hexpire(call: &mut RespCall<'_>) -> CommandResult {
    check_type(call)?;
    field_expiry(call, 2, unit_of(call), &call.name())?;
    let first = first_field(call, condition(call).1, NUM_FIELDS)?;
    hexpire_from(call, ResumePoint::at(first as u64))
}

fn hexpire_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let expires = field_expiry(call, 2, unit_of(call), &call.name())?;
    let (condition, at) = condition(call);
    let is_done = each_field(call, &mut part, at + 2, |_, hash, field| {
        Ok(match hash.expire(field, expires, condition)? {
            Expired::NoField => NO_FIELD,
            Expired::NotMet => 0,
            Expired::Set => 1,
            Expired::Deleted => 2,
        })
    })?;
    if is_done { Ok(()) } else { call.go_on_later(part, hexpire_from) }
}

/// Which word of `HTTL`, `HPERSIST` and `HGETDEL` is the first field.
const FIRST: usize = 4;

/// `HTTL key FIELDS count field [field ...]`, `HPTTL`, `HEXPIRETIME`, `HPEXPIRETIME`
pub fn httl(call: &mut RespCall<'_>) -> CommandResult {
    check_type(call)?;
    first_field(call, 2, NUMBER_OF_FIELDS)?;
    httl_from(call, ResumePoint::at(FIRST as u64))
}

fn httl_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is = |name: &str| call.is(0, name);
    let is_left = is("httl") || is("hpttl");
    let is_seconds = is("httl") || is("hexpiretime");
    let times = call.core.times();
    let shown = move |cache: &Cache, expires: Millis| {
        let ms = if is_left { time_left(expires, times) } else { cache.expiry_at_wall(expires) };
        if is_seconds { ms.div_ceil(1000) as i64 } else { ms as i64 }
    };
    let is_done = each_field(call, &mut part, FIRST, |cache, hash, field| {
        Ok(match hash.get(field, |_, expires| expires)? {
            None => NO_FIELD,
            Some(0) => NO_EXPIRY,
            Some(expires) => shown(cache, expires),
        })
    })?;
    if is_done { Ok(()) } else { call.go_on_later(part, httl_from) }
}

/// `HPERSIST key FIELDS count field [field ...]`
pub fn hpersist(call: &mut RespCall<'_>) -> CommandResult {
    check_type(call)?;
    first_field(call, 2, NUMBER_OF_FIELDS)?;
    hpersist_from(call, ResumePoint::at(FIRST as u64))
}

fn hpersist_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = each_field(call, &mut part, FIRST, |_, hash, field| {
        Ok(match hash.persist(field)? {
            Persisted::NoField => NO_FIELD,
            Persisted::NoExpiry => NO_EXPIRY,
            Persisted::Done => 1,
        })
    })?;
    if is_done { Ok(()) } else { call.go_on_later(part, hpersist_from) }
}

/// Answers with the values of the fields from the part's on, the first of which is word `first`,
/// and does `then` to those that are there. Whether all are done.
fn read_fields(
    call: &mut RespCall<'_>,
    part: &mut ResumePoint,
    first: usize,
    then: impl Fn(&mut HashEntry<'_>, &[u8]) -> Result<(), Error>,
) -> Result<bool, String> {
    let (input, args, version) = (call.input, call.args, call.client.version);
    while (part.index as usize) < args.len() {
        let start = part.index as usize;
        let end = args.len().min(start + BATCH_KEYS_MAX);
        let core = &mut *call.core;
        let times = core.times();
        let mut hash = match core.db.hash_entry(args.get(input, 1), times) {
            Err(error) if start == first => return Err(failed(&error)),
            hash => hash.ok(),
        };
        let out = &mut core.out;
        let batch_begin = out.bytes.len();
        if start == first {
            push_array(&mut out.bytes, args.len() - first);
        }
        for index in start..end {
            let Some(hash) = &mut hash else {
                push_null(&mut out.bytes, version);
                continue;
            };
            let (field, begin) = (args.get(input, index), out.bytes.len());
            if push_element(out, hash, field, version)
                && let Err(error) = then(hash, field)
            {
                // The error is the answer, and not the value as well.
                out.truncate(begin);
                push_error(&mut out.bytes, failed(&error).as_bytes());
            }
        }
        if let Some(Err(error)) = hash.map(HashEntry::finish) {
            out.truncate(batch_begin);
            push_failures(&mut out.bytes, &error, if start == first { 0 } else { end - start })?;
        }
        part.index = end as u64;
        if end < args.len() && call.is_to_pause() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `HGETDEL key FIELDS count field [field ...]`
pub fn hgetdel(call: &mut RespCall<'_>) -> CommandResult {
    check_type(call)?;
    first_field(call, 2, NUMBER_OF_FIELDS)?;
    hgetdel_from(call, ResumePoint::at(FIRST as u64))
}

fn hgetdel_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = read_fields(call, &mut part, FIRST, |hash, field| hash.remove(field).map(drop))?;
    if is_done { Ok(()) } else { call.go_on_later(part, hgetdel_from) }
}

/// What `HGETEX` does to the expiry of what it reads, and the word that is to be `FIELDS`.
fn renewal(call: &RespCall<'_>) -> Result<(Option<Millis>, usize), String> {
    if call.is(2, "persist") {
        return Ok((Some(0), 3));
    }
    match Unit::of(call.arg(2)) {
        Some(unit) => Ok((Some(field_expiry(call, 3, unit, "hgetex")?), 4)),
        None => Ok((None, 2)),
    }
}

/// `HGETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST] FIELDS count field [field ...]`
pub fn hgetex(call: &mut RespCall<'_>) -> CommandResult {
    check_type(call)?;
    let (_, at) = renewal(call)?;
    let first = first_field(call, at, NUMBER_OF_FIELDS)?;
    hgetex_from(call, ResumePoint::at(first as u64))
}

fn hgetex_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let (renewed, at) = renewal(call)?;
    let is_done = read_fields(call, &mut part, at + 2, |hash, field| match renewed {
        None => Ok(()),
        Some(0) => hash.persist(field).map(drop),
        Some(expires) => hash.expire(field, expires, Condition::Always).map(drop),
    })?;
    if is_done { Ok(()) } else { call.go_on_later(part, hgetex_from) }
}

/// What stands before the fields of `HSETEX`.
struct SetOptions {
    /// Whether all fields must be there, or none.
    must_be: Option<bool>,
    expiry: FieldExpiry,
    first: usize,
}

impl SetOptions {
    fn read(call: &RespCall<'_>) -> Result<SetOptions, String> {
        let mut options = SetOptions { must_be: None, expiry: FieldExpiry::Set(0), first: 0 };
        let (mut index, mut has_expiry) = (2, false);
        while index < call.count() {
            let unit = Unit::of(call.arg(index));
            if call.is(index, "fields") {
                options.first = index + 2;
                return Self::check_count(call, index).map(|()| options);
            } else if unit.is_some() || call.is(index, "keepttl") {
                if has_expiry {
                    let text = "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be \
                                specified";
                    return Err(text.into());
                }
                has_expiry = true;
                options.expiry = match unit {
                    None => FieldExpiry::Keep,
                    Some(_) if index + 1 >= call.count() => {
                        return Err("ERR missing expire time".into());
                    }
                    Some(unit) => {
                        index += 1;
                        FieldExpiry::Set(field_expiry(call, index, unit, "hsetex")?)
                    }
                };
            } else if call.is(index, "fxx") || call.is(index, "fnx") {
                if options.must_be.is_some() {
                    let text = "ERR Only one of FXX or FNX arguments can be specified";
                    return Err(text.into());
                }
                options.must_be = Some(call.is(index, "fxx"));
            } else {
                let word = String::from_utf8_lossy(call.arg(index)).into_owned();
                return Err(format!("ERR unknown argument: {word}"));
            }
            index += 1;
        }
        Err(syntax())
    }

    fn check_count(call: &RespCall<'_>, at: usize) -> CommandResult {
        if at + 3 >= call.count() {
            return Err(wrong_arity("hsetex"));
        }
        let count =
            call.number(at + 1).ok().filter(|count| (1..=i64::from(i32::MAX)).contains(count));
        let count = count.ok_or("ERR invalid number of fields")?;
        let words = call.count() - at - 2;
        if !words.is_multiple_of(2) || count as usize != words / 2 {
            return Err(wrong_arity("hsetex"));
        }
        Ok(())
    }
}

/// `HSETEX key [FNX|FXX] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL] FIELDS count field value
/// [field value ...]`
pub fn hsetex(call: &mut RespCall<'_>) -> CommandResult {
    let options = SetOptions::read(call)?;
    check_type(call)?;
    let first = options.first as u64;
    match options.must_be {
        Some(_) => hsetex_check_from(call, ResumePoint::at(first)),
        None => hsetex_from(call, ResumePoint::at(first)),
    }
}

/// The hash under word 1, to be changed.
fn entry<'e>(call: &'e RespCall<'_>, times: Times) -> Result<HashEntry<'e>, String> {
    call.core.db.hash_entry(call.arg(1), times).map_err(|error| failed(&error))
}

/// Looks whether the fields from the part's on are there, or not, as all must be.
fn hsetex_check_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let SetOptions { must_be, first, .. } = SetOptions::read(call)?;
    while (part.index as usize) < call.count() {
        let start = part.index as usize;
        let end = call.count().min(start + 2 * BATCH_KEYS_MAX);
        let mut hash = entry(call, call.core.times())?;
        for index in (start..end).step_by(2) {
            let found = hash.get(call.arg(index), |_, _| ()).map_err(|error| failed(&error))?;
            if must_be.is_some_and(|must_be| must_be != found.is_some()) {
                drop(hash);
                return call.integer(0);
            }
        }
        drop(hash);
        part.index = end as u64;
        if end < call.count() && call.is_to_pause() {
            return call.go_on_later(part, hsetex_check_from);
        }
    }
    hsetex_from(call, ResumePoint::at(first as u64))
}

/// Stores the pairs of words from the part's on.
fn hsetex_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let SetOptions { expiry, .. } = SetOptions::read(call)?;
    while (part.index as usize) < call.count() {
        let start = part.index as usize;
        let end = call.count().min(start + 2 * BATCH_KEYS_MAX);
        (start..end).step_by(2).try_for_each(|index| check_field(call.arg(index)))?;
        let mut hash = entry(call, call.core.times())?;
        let set: Result<(), Error> = (start..end).step_by(2).try_for_each(|index| {
            let (field, value) = (call.arg(index), call.arg(index + 1));
            match expiry {
                // It is gone as soon as it is there.
                FieldExpiry::Set(PAST) => hash.remove(field).map(drop),
                expiry => hash.set(field, value, expiry).map(drop),
            }
        });
        let finished = hash.finish();
        set.and(finished).map_err(|error| failed(&error))?;
        part.index = end as u64;
        if end < call.count() && call.is_to_pause() {
            return call.go_on_later(part, hsetex_from);
        }
    }
    call.integer(1)
}
