//! Redis's commands on strings. In: a [`RespCall`]. Out: its answer, or an error's text.

use super::atomic::Keys;
use super::bytes::strict_i64;
use super::core::{ReplyFormat, push_resp_item};
use super::redis::{CommandResult, RespCall, ResumePoint, not_an_integer, syntax, wrong_arity};
use super::redis_compare::Comparison;
use super::resp::{failed, push_integer, push_null, push_status};
use super::store::{StoreValue, commit, set_expiry};
use crate::cache::{Entry, Error, Item, KEY_BYTES_MAX, Millis, Writer, at_wall};
use crate::clock::{PAST, Times};
use crate::constants::BATCH_KEYS_MAX;
use std::ops::Range;

/// What may stand behind `SET key value` and `GETEX key`.
#[derive(Clone, Copy, Debug, Default)]
struct Extra {
    if_absent: bool,
    if_present: bool,
    get: bool,
    keep: bool,
    persist: bool,
    /// On which value there is, and the word that it is compared with.
    comparison: Option<(Comparison, usize)>,
    /// When the item expires, and whether that was given as a point in time.
    expires: Option<Millis>,
}

impl Extra {
    fn has_condition(&self) -> bool {
        self.if_absent || self.if_present || self.comparison.is_some()
    }
}

/// Reads the words from `first` on. `set`: as for `SET`, else as for `GETEX`.
fn extra(call: &RespCall<'_>, first: usize, set: bool) -> Result<Extra, String> {
    let mut extra = Extra::default();
    let mut time = None;
    let mut index = first;
    while index < call.count() {
        let is = |word| call.is(index, word);
        let timeless = time.is_none() && !extra.keep && !extra.persist;
        if set && is("nx") && !extra.if_present && extra.comparison.is_none() {
            extra.if_absent = true;
        } else if set && is("xx") && !extra.if_absent && extra.comparison.is_none() {
            extra.if_present = true;
        } else if set
            && let Some(comparison) = Comparison::of(call.arg(index))
            && index + 1 < call.count()
            && !extra.has_condition()
        {
            extra.comparison = Some((comparison, index + 1));
            index += 1;
        } else if set && is("get") {
            extra.get = true;
        } else if set && is("keepttl") && time.is_none() {
            extra.keep = true;
        } else if !set && is("persist") && time.is_none() {
            extra.persist = true;
        } else if let Some(unit) = Unit::of(call.arg(index))
            && index + 1 < call.count()
            && (timeless || !extra.keep && !extra.persist && time.is_some_and(|(u, _)| u == unit))
        {
            time = Some((unit, index + 1));
            index += 1;
        } else {
            return Err(syntax());
        }
        index += 1;
    }
    if let Some((unit, index)) = time {
        let absent = || call.core.cache().get(call.arg(1), call.core.now, |_| ()).is_none();
        // The time of what is not there is not looked at.
        if set || !absent() {
            let command = if set { "set" } else { "getex" };
            extra.expires = Some(unit.expires(call, index, || command.into())?);
        }
    }
    Ok(extra)
}

/// The unit of an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub seconds: bool,
    pub absolute: bool,
}

impl Unit {
    pub const EX: Unit = Unit { seconds: true, absolute: false };
    pub const PX: Unit = Unit { seconds: false, absolute: false };
    pub const EXAT: Unit = Unit { seconds: true, absolute: true };
    pub const PXAT: Unit = Unit { seconds: false, absolute: true };

    fn of(word: &[u8]) -> Option<Self> {
        let all = [("ex", Unit::EX), ("px", Unit::PX), ("exat", Unit::EXAT), ("pxat", Unit::PXAT)];
        let found = all.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|(_, unit)| unit)
    }

    /// The point in time by the wall clock that word `index` says; `command` is asked for the name
    /// if that is none.
    pub fn at(
        self,
        call: &RespCall<'_>,
        index: usize,
        command: impl Fn() -> String,
    ) -> Result<i64, String> {
        let number = call.number(index)?;
        let ms = if self.seconds { number.checked_mul(1000) } else { Some(number) };
        let base = if self.absolute { 0 } else { call.core.times().wall as i64 };
        ms.and_then(|ms| ms.checked_add(base)).ok_or_else(|| invalid_expiry(&command()))
    }

    /// The expiry that word `index` says, which is not over.
    fn expires(
        self,
        call: &RespCall<'_>,
        index: usize,
        command: impl Fn() -> String,
    ) -> Result<Millis, String> {
        let at = self.at(call, index, &command)?;
        if call.number(index)? <= 0 {
            return Err(invalid_expiry(&command()));
        }
        Ok(past_or(at as u64, self.absolute, call.core.times()))
    }
}

fn invalid_expiry(command: &str) -> String {
    format!("ERR invalid expire time in '{command}' command")
}

/// The expiry at a point in time by the wall clock, which it counts by only if that was given
/// (`absolute`), and not how long it is until then; one that is over is [`PAST`].
pub fn past_or(at: u64, absolute: bool, times: Times) -> Millis {
    match at.checked_sub(times.wall) {
        None | Some(0) => PAST,
        Some(_) if absolute => at_wall(at),
        Some(left) => times.now.saturating_add(left),
    }
}

/// Stores a value whatever was there; at once expired, it removes what was there.
fn put(entry: &mut Entry<'_>, value: StoreValue<'_>, expires: Millis) -> Result<(), Error> {
    if expires == PAST {
        entry.put_expired();
        return Ok(());
    }
    match value {
        StoreValue::Bytes(bytes) => entry.put(&[bytes], 0, expires).map(drop),
        StoreValue::Written(writer) => commit(entry, writer, expires).map(drop),
    }
}

/// `SET key value [NX|XX|IFEQ value|...] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
pub fn set(call: &mut RespCall<'_>) -> CommandResult {
    let extra = extra(call, 3, true)?;
    let (key, value) = (call.args.get(call.input, 1), call.args.get(call.input, 2));
    set_with(call, key, StoreValue::Bytes(value), extra)
}

/// `SET` with a streamed value; the words are those behind it.
pub fn set_streamed(call: &mut RespCall<'_>, writer: Writer) -> CommandResult {
    let extra = extra(call, 0, true)?;
    let key = writer.key().to_vec();
    set_with(call, &key, StoreValue::Written(writer), extra)
}

fn set_with(
    call: &mut RespCall<'_>,
    key: &[u8],
    value: StoreValue<'_>,
    extra: Extra,
) -> CommandResult {
    let version = call.client.version;
    let (args, input) = (call.args, call.input);
    let core = &mut *call.core;
    let mut entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    let item = entry.item();
    let there = item.is_some();
    let holds = match extra.comparison {
        None => true,
        Some((comparison, index)) => {
            comparison.holds(item.as_ref(), args.get(input, index), &mut core.scratch)?
        }
    };
    let kept = item.as_ref().map_or(0, |item| item.expires());
    let start = core.out.bytes.len();
    if extra.get && !push_resp_item(&mut core.out, item.as_ref(), version) && there {
        // The old value could not be read, which was answered: nothing is stored.
        return Ok(());
    }
    if extra.if_absent && there || extra.if_present && !there || !holds {
        if !extra.get {
            push_null(&mut core.out.bytes, version);
        }
        return Ok(());
    }
    let expires = if extra.keep { kept } else { extra.expires.unwrap_or(0) };
    if let Err(error) = put(&mut entry, value, expires) {
        core.out.truncate(start);
        return Err(failed(&error));
    }
    if !extra.get {
        push_status(&mut core.out.bytes, "OK");
    }
    Ok(())
}

/// `SETNX key value`
pub fn setnx(call: &mut RespCall<'_>) -> CommandResult {
    let (key, value) = (call.args.get(call.input, 1), call.args.get(call.input, 2));
    let mut entry = entry(call, key)?;
    let absent = entry.item().is_none();
    if absent {
        entry.put(&[value], 0, 0).map_err(|error| failed(&error))?;
    }
    drop(entry);
    call.integer(i64::from(absent))
}

fn entry<'e>(call: &'e RespCall<'_>, key: &'e [u8]) -> Result<Entry<'e>, String> {
    call.core.db.entry(key, call.core.now).map_err(|error| failed(&error))
}

/// `SETEX key seconds value`, `PSETEX key milliseconds value`
pub fn set_for(call: &mut RespCall<'_>, unit: Unit) -> CommandResult {
    let expires = unit.expires(call, 2, || call.name())?;
    let (key, value) = (call.args.get(call.input, 1), call.args.get(call.input, 3));
    let extra = Extra { expires: Some(expires), ..Extra::default() };
    set_with(call, key, StoreValue::Bytes(value), extra)
}

/// `GETSET key value`
pub fn getset(call: &mut RespCall<'_>) -> CommandResult {
    let (key, value) = (call.args.get(call.input, 1), call.args.get(call.input, 2));
    set_with(call, key, StoreValue::Bytes(value), Extra { get: true, ..Extra::default() })
}

/// `MSET key value [key value ...]`
pub fn mset(call: &mut RespCall<'_>) -> CommandResult {
    check_pairs(call, "mset")?;
    mset_from(call, ResumePoint::at(1))
}

/// Refuses keys and values that cannot be stored, before any of them is.
pub fn check_pairs(call: &RespCall<'_>, command: &str) -> CommandResult {
    if call.count().is_multiple_of(2) {
        return Err(wrong_arity(command));
    }
    let max_bytes = call.core.cache().longest_value();
    for index in (1..call.count()).step_by(2) {
        let (key, bytes) = (call.arg(index).len(), call.arg(index + 1).len() as u64);
        if key > KEY_BYTES_MAX {
            let (bytes, max_bytes) = (key as u64, KEY_BYTES_MAX as u64);
            return Err(failed(&Error::KeySize { bytes, max_bytes }));
        }
        if bytes > max_bytes {
            return Err(failed(&Error::TooLarge { bytes, max_bytes }));
        }
    }
    Ok(())
}

/// Stores the values from this part on.
fn mset_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 2, |call, index, sum| {
        let (key, value) = (call.arg(index), call.arg(index + 1));
        let set = call.core.db.set(key, value, 0, 0, call.core.now);
        set.map(|_| sum).map_err(|error| failed(&error))
    })?;
    if is_done { call.status("OK") } else { call.go_on_later(part, mset_from) }
}

/// `GET key`, where it could not wait in the batch.
pub fn get(call: &mut RespCall<'_>) -> CommandResult {
    read(call, |_| Ok(()))
}

pub fn getdel(call: &mut RespCall<'_>) -> CommandResult {
    read(call, |entry| {
        entry.remove();
        Ok(())
    })
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`
pub fn getex(call: &mut RespCall<'_>) -> CommandResult {
    let extra = extra(call, 2, false)?;
    read(call, |entry| {
        let expires = extra.expires.or(extra.persist.then_some(0));
        let renewed = expires.map_or(Ok(()), |expires| set_expiry(entry, expires));
        renewed.map_err(|error| failed(&error))
    })
}

/// Answers with the value of word 1 and does something to the item.
fn read(
    call: &mut RespCall<'_>,
    then: impl FnOnce(&mut Entry<'_>) -> CommandResult,
) -> CommandResult {
    let key = call.args.get(call.input, 1);
    let version = call.client.version;
    let core = &mut *call.core;
    let start = core.out.bytes.len();
    let found = core.db.entry(key, core.now).ok().and_then(|mut entry| {
        let shown = push_resp_item(&mut core.out, Some(&entry.read()?), version);
        // What could not be read stays as it is: the answer says so.
        Some(if shown { then(&mut entry) } else { Ok(()) })
    });
    if let Some(Err(_)) = &found {
        // The error is the answer, and not the value as well.
        core.out.truncate(start);
    }
    call.counted(found.is_some());
    found.unwrap_or_else(|| call.null())
}

/// `MGET key [key ...]`
pub fn mget(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() - 1 <= BATCH_KEYS_MAX {
        return mget_at_once(call, ResumePoint::default());
    }
    call.array(call.count() - 1);
    mget_from(call, ResumePoint::at(1))
}

/// Answers with the values of one moment.
fn mget_at_once(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    if call.is_to_pause() {
        return call.go_on_later(part, mget_at_once);
    }
    let (count, start) = (call.count(), call.core.out.bytes.len());
    let ended = call.core.db.sections_ended();
    call.array(count - 1);
    mget_some(call, 1..count)?;
    if ended == call.core.db.sections_ended() {
        return Ok(());
    }
    // Some may be from before another's step, and some from behind it.
    call.core.out.truncate(start);
    let (args, input, database) = (call.args, call.input, call.client.database);
    let keys: Vec<_> = args.words(input).skip(1).map(|key| (database, key)).collect();
    call.atomically(Keys::Named(&keys), |call| {
        call.array(count - 1);
        mget_some(call, 1..count)
    })
}

/// Answers with the values from this part on.
fn mget_from(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    let mut index = part.index as usize;
    while index < call.count() {
        if call.is_to_pause() {
            return call.go_on_later(ResumePoint::at(index as u64), mget_from);
        }
        let end = call.count().min(index + BATCH_KEYS_MAX);
        mget_some(call, index..end)?;
        index = end;
    }
    Ok(())
}

/// Answers with the values of the keys that these words are.
fn mget_some(call: &mut RespCall<'_>, words: Range<usize>) -> CommandResult {
    let version = call.client.version;
    let (input, args) = (call.input, call.args);
    for index in words {
        match args.span(index) {
            Some((start, len)) => {
                call.core.batch.push(start as usize, len as usize, ReplyFormat::Resp(version));
            }
            None => mget_one(call, index)?,
        }
    }
    call.core.flush_batch(input);
    Ok(())
}

/// Answers with the value of a key that lies outside the input.
fn mget_one(call: &mut RespCall<'_>, index: usize) -> CommandResult {
    let version = call.client.version;
    let core = &mut *call.core;
    let out = &mut core.out;
    let show = |item: &Item<'_>| push_resp_item(out, Some(item), version);
    let found = core.db.get(call.args.get(call.input, index), core.now, show);
    call.counted(found.is_some());
    if found.is_none() { call.null() } else { Ok(()) }
}

pub fn strlen(call: &mut RespCall<'_>) -> CommandResult {
    let found = call.core.cache().get(call.arg(1), call.core.now, |item| item.len());
    call.counted(found.is_some());
    call.integer(found.unwrap_or(0) as i64)
}

/// `APPEND key value`
pub fn append(call: &mut RespCall<'_>) -> CommandResult {
    let (key, value) = (call.args.get(call.input, 1), call.args.get(call.input, 2));
    let core = &mut *call.core;
    let old = &mut core.scratch;
    old.clear();
    let mut entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    let (mut flags, mut expires) = (0, 0);
    if let Some(item) = entry.item() {
        item.append_to(old).map_err(|error| failed(&error))?;
        (flags, expires) = (item.flags(), item.expires());
    }
    entry.put(&[old, value], flags, expires).map_err(|error| failed(&error))?;
    let len = old.len() + value.len();
    push_integer(&mut core.out.bytes, len as i64);
    Ok(())
}

/// `DECRBY key number`
pub fn decrby(call: &mut RespCall<'_>) -> CommandResult {
    let by = call.number(2)?.checked_neg().ok_or("ERR decrement would overflow")?;
    count(call, by)
}

const NUMBER_BYTES_MAX: u64 = 20;

/// `INCR key`, `DECR key`, `INCRBY key number`
pub fn count(call: &mut RespCall<'_>, by: i64) -> CommandResult {
    let key = call.args.get(call.input, 1);
    let core = &mut *call.core;
    let mut entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    let (mut value, mut flags, mut expires) = (0, 0, 0);
    if let Some(item) = entry.item() {
        if item.len() > NUMBER_BYTES_MAX {
            return Err(not_an_integer());
        }
        core.scratch.clear();
        item.append_to(&mut core.scratch).map_err(|error| failed(&error))?;
        value = strict_i64(&core.scratch).ok_or_else(not_an_integer)?;
        (flags, expires) = (item.flags(), item.expires());
    }
    let value = value.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
    let mut digits = itoa::Buffer::new();
    entry
        .put(&[digits.format(value).as_bytes()], flags, expires)
        .map_err(|error| failed(&error))?;
    push_integer(&mut core.out.bytes, value);
    Ok(())
}
