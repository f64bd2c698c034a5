//! Redis's commands on keys of any kind: removal, expiry, listing. In: a [`RespCall`]. Out: its
//! answer, or an error's text.

use super::core::Core;
use super::counters::Count;
use super::glob::Glob;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax};
use super::redis_strings::{Unit, past_or};
use super::resp::{failed, push_array, push_bulk};
use super::store::set_expiry;
use crate::cache::{Item, KEY_BYTES_MAX, Millis};
use crate::clock::time_left;

/// `DEL key [key ...]`, `UNLINK key [key ...]`
pub fn del(call: &mut RespCall<'_>) -> CommandResult {
    del_from(call, ResumePoint::at(1))
}

fn del_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 1, |call, index, sum| {
        Ok(sum + i64::from(call.core.cache().remove(call.arg(index), call.core.now)))
    })?;
    if is_done { call.integer(part.sum) } else { call.go_on_later(part, del_from) }
}

/// `EXISTS key [key ...]`, `TOUCH key [key ...]`
pub fn exists(call: &mut RespCall<'_>) -> CommandResult {
    exists_from(call, ResumePoint::at(1))
}

fn exists_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let is_done = call.each_word(&mut part, 1, |call, index, sum| {
        let there = call.core.cache().get(call.arg(index), call.core.now, |_| ()).is_some();
        call.counted(there);
        Ok(sum + i64::from(there))
    })?;
    if is_done { call.integer(part.sum) } else { call.go_on_later(part, exists_from) }
}

pub fn type_of(call: &mut RespCall<'_>) -> CommandResult {
    let kind = |item: Item<'_>| if item.is_typed() { "hash" } else { "string" };
    let entry = call.core.db.entry(call.arg(1), call.core.now).ok();
    let kind = entry.and_then(|entry| entry.item().map(kind)).unwrap_or("none");
    call.status(kind)
}

/// When word 1 expires (0 = never), if there is such an item; counts nothing.
fn expires(call: &RespCall<'_>) -> Option<Millis> {
    let entry = call.core.db.entry(call.arg(1), call.core.now).ok()?;
    entry.item().map(|item| item.expires())
}

/// `TTL key`, `PTTL key`, `EXPIRETIME key`, `PEXPIRETIME key`: answers with what `show` makes of
/// the time that is left, and of the wall's when it is over.
pub fn left(call: &mut RespCall<'_>, show: fn(Millis, Millis) -> Millis) -> CommandResult {
    let expires = expires(call);
    call.counted(expires.is_some());
    call.integer(match expires {
        None => -2,
        Some(0) => -1,
        Some(expires) => {
            let at = call.core.cache().expiry_at_wall(expires);
            show(time_left(expires, call.core.times()), at) as i64
        }
    })
}

/// On which condition an expiry is changed.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_earlier: bool,
}

impl Conditions {
    fn read(call: &RespCall<'_>, first: usize) -> Result<Self, String> {
        let mut all = Self::default();
        for index in first..call.count() {
            let is = |word| call.is(index, word);
            match () {
                () if is("nx") => all.if_none = true,
                () if is("xx") => all.if_some = true,
                () if is("gt") => all.if_later = true,
                () if is("lt") => all.if_earlier = true,
                () => {
                    let word = String::from_utf8_lossy(call.arg(index)).into_owned();
                    return Err(format!("ERR Unsupported option {word}"));
                }
            }
        }
        if all.if_none && (all.if_some || all.if_later || all.if_earlier) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(text.into());
        }
        if all.if_later && all.if_earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(all)
    }

    fn hold(self, before: Millis, after: i64) -> bool {
        // Never is later than any time.
        let before = if before == 0 { i64::MAX } else { before as i64 };
        let none = before == i64::MAX;
        !(self.if_none && !none
            || self.if_some && none
            || self.if_later && after <= before
            || self.if_earlier && after >= before)
    }
}

/// `EXPIRE key seconds [NX|XX|GT|LT]`, `PEXPIRE`, `EXPIREAT`, `PEXPIREAT`
pub fn expire(call: &mut RespCall<'_>, unit: Unit) -> CommandResult {
    let conditions = Conditions::read(call, 3)?;
    // By the wall clock, as conditions compare.
    let at = unit.at(call, 2, || call.name())?;
    let (expires, now) =
        (past_or(at.max(0) as u64, unit.absolute, call.core.times()), call.core.now);
    let Ok(mut entry) = call.core.db.entry(call.args.get(call.input, 1), now) else {
        return call.integer(0);
    };
    let before = entry.item().map(|item| call.core.cache().expiry_at_wall(item.expires()));
    let holds = before.is_some_and(|before| conditions.hold(before, at));
    if holds {
        set_expiry(&mut entry, expires).map_err(|e| failed(&e))?;
    }
    drop(entry);
    call.integer(i64::from(holds))
}

pub fn persist(call: &mut RespCall<'_>) -> CommandResult {
    let now = call.core.now;
    let Ok(mut entry) = call.core.db.entry(call.args.get(call.input, 1), now) else {
        return call.integer(0);
    };
    let had = entry.item().is_some_and(|item| item.expires() != 0);
    if had {
        set_expiry(&mut entry, 0).map_err(|error| failed(&error))?;
    }
    drop(entry);
    call.integer(i64::from(had))
}

pub fn dbsize(call: &mut RespCall<'_>) -> CommandResult {
    let items = call.core.cache().items_of(call.client.database);
    call.integer(items as i64)
}

/// `FLUSHALL [ASYNC|SYNC]`, `FLUSHDB [ASYNC|SYNC]`: empties by `flush`.
pub fn flush(call: &mut RespCall<'_>, flush: fn(&mut Core)) -> CommandResult {
    if call.count() > 2 || call.count() == 2 && !call.is(1, "async") && !call.is(1, "sync") {
        return Err(syntax());
    }
    call.core.count(Count::CmdFlush);
    flush(call.core);
    call.status("OK")
}

/// The database that word `index` names; `which` of several.
pub fn database(call: &RespCall<'_>, index: usize, which: &str) -> Result<u8, String> {
    known_database(call, database_number(call, index, which)?)
}

fn database_number(call: &RespCall<'_>, index: usize, which: &str) -> Result<i64, String> {
    match (call.number(index), which) {
        (Ok(number), _) if i32::try_from(number).is_ok() => Ok(number),
        (Ok(_), "") => {
            let (least, most) = (i32::MIN, i32::MAX);
            Err(format!("ERR value is out of range, value must between {least} and {most}"))
        }
        (Err(error), "") => Err(error),
        (_, which) => Err(format!("ERR invalid {which} DB index")),
    }
}

fn known_database(call: &RespCall<'_>, number: i64) -> Result<u8, String> {
    let number = u8::try_from(number).ok();
    let known = number.filter(|number| *number < call.core.shared.settings.databases);
    known.ok_or_else(|| "ERR DB index is out of range".into())
}

pub fn swapdb(call: &mut RespCall<'_>) -> CommandResult {
    let one = database_number(call, 1, "first")?;
    let other = database_number(call, 2, "second")?;
    let (one, other) = (known_database(call, one)?, known_database(call, other)?);
    call.core.swap_databases(one, other);
    call.status("OK")
}

/// Items that one `SCAN` looks at, at most.
const SCAN_COUNT_MAX: i64 = 10_000;
/// Items that take as long as the buckets that were looked into where few items were found.
const SCAN_EMPTY: usize = 1000;
/// Items between two looks at how long the answer is, and what it took.
const SCAN_AT_ONCE: u64 = 64;
/// Bytes of keys after which a `SCAN` answers with what it has.
const SCAN_BYTES_MAX: u64 = 1 << 20;
/// Steps of comparing keys after which a `SCAN` answers with what it has: some ms.
const SCAN_STEPS_MAX: u64 = 4 << 20;

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub fn scan(call: &mut RespCall<'_>) -> CommandResult {
    let cursor = std::str::from_utf8(call.arg(1)).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    let (mut count, mut pattern, mut wanted) = (10, None, [true; 2]);
    let mut index = 2;
    while index < call.count() {
        if index + 1 == call.count() {
            return Err(syntax());
        }
        if call.is(index, "count") {
            count = call.number(index + 1)?;
            if count < 1 {
                return Err(syntax());
            }
        } else if call.is(index, "match") {
            pattern = Some(index + 1);
        } else if call.is(index, "type") {
            wanted = ["string", "hash"].map(|word| call.is(index + 1, word));
        } else {
            return Err(syntax());
        }
        index += 2;
    }
    let pattern = pattern.map(|index| Glob::new(call.args.get(call.input, index), KEY_BYTES_MAX));
    let (mut keys, mut some_keys) = (Vec::new(), Vec::new());
    let (mut bytes, mut steps) = (0, 0);
    let dearest = pattern.as_ref().map_or(0, |pattern| pattern.steps(KEY_BYTES_MAX));
    let at_once = (SCAN_STEPS_MAX / dearest.max(1)).clamp(1, SCAN_AT_ONCE) as usize;
    let (mut next, mut left) = (cursor, count.min(SCAN_COUNT_MAX) as usize);
    // Few at once: where keys are long, or compared with a long pattern, an answer has fewer.
    while left > 0 && bytes < SCAN_BYTES_MAX && steps < SCAN_STEPS_MAX {
        let (some, mut seen) = (left.min(at_once), 0);
        let scanned = |item: &Item<'_>| {
            seen += 1;
            if wanted[usize::from(item.is_typed())] {
                some_keys.push(item.key());
            }
        };
        next = call.core.cache().scan(next, some, call.core.now, scanned);
        left = left.saturating_sub(if seen < some { SCAN_EMPTY } else { some });
        // Compared when the cache is not locked any more.
        for key in some_keys.drain(..) {
            steps += pattern.as_ref().map_or(0, |pattern| pattern.steps(key.len()));
            if pattern.as_ref().is_none_or(|pattern| pattern.matches(&key)) {
                bytes += key.len() as u64;
                keys.push(key);
            }
        }
        if next == 0 {
            break;
        }
    }
    let out = &mut call.core.out.bytes;
    push_array(out, 2);
    push_bulk(out, next.to_string().as_bytes());
    push_array(out, keys.len());
    keys.iter().for_each(|key| push_bulk(out, key));
    Ok(())
}

/// `MEMORY USAGE key [SAMPLES count]`
pub fn memory_usage(call: &mut RespCall<'_>) -> CommandResult {
    let samples = call.count() == 5 && call.is(3, "samples");
    if call.count() != 3 && !samples || samples && call.number(4)? < 0 {
        return Err(syntax());
    }
    let key = call.args.get(call.input, 2);
    let entry = call.core.db.entry(key, call.core.now).map_err(|e| failed(&e))?;
    let bytes = entry.item().map(|item| item.whole_bytes() + key.len() as u64 + ITEM_BYTES);
    drop(entry);
    match bytes {
        Some(bytes) => call.integer(bytes as i64),
        None => call.null(),
    }
}

/// What an item costs beside key and value: header and index entry.
const ITEM_BYTES: u64 = 16;
