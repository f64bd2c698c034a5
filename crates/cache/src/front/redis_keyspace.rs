//! Redis's commands on several keys at one moment (`RENAME`, `COPY`, `MSETNX`), and on keys that
//! are not named (`KEYS`, `RANDOMKEY`). In: a [`RespCall`]. Out: its answer, or an error's text.

use super::atomic::Keys;
use super::core::Core;
use super::glob::Glob;
use super::redis::{CommandResult, RespCall, Resume, ResumePoint, send_found, syntax};
use super::redis_keys::database;
use super::redis_strings::check_pairs;
use super::redis_values::{Stored, at_once, read_item};
use super::resp::{failed, push_bulk};
use crate::cache::{Cache, Item, KEY_BYTES_MAX};
use rackpool_mem::process::monotonic_ns;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// `RENAME key name`, `RENAMENX key name`
pub fn rename(call: &mut RespCall<'_>, is_kept: bool) -> CommandResult {
    at_once(call, 1..=2, |call| {
        let (core, key, name) = (&*call.core, call.arg(1), call.arg(2));
        let stored = read_item(core, &core.db, key)?.ok_or("ERR no such key")?;
        let is_renamed = key != name && put_item(core, &core.db, name, &stored, !is_kept)?;
        if is_renamed {
            core.db.remove(key, core.now);
        }
        if is_kept { call.integer(i64::from(is_renamed)) } else { call.status("OK") }
    })
}

/// Stores what another key has; not if there is something that is not to be replaced (`false`).
fn put_item(
    core: &Core,
    database: &Cache,
    key: &[u8],
    stored: &Stored,
    replaces: bool,
) -> Result<bool, String> {
    let mut entry = database.entry(key, core.now).map_err(|error| failed(&error))?;
    if !replaces && entry.item().is_some() {
        return Ok(false);
    }
    let put = entry.put(&[&stored.value[..]], stored.flags, stored.expires);
    put.map(|_| true).map_err(|error| failed(&error))
}

/// `COPY key target [DB database] [REPLACE]`
pub fn copy(call: &mut RespCall<'_>) -> CommandResult {
    let (mut number, mut replaces, mut index) = (call.client.database, false, 3);
    while index < call.count() {
        if call.is(index, "replace") {
            replaces = true;
        } else if call.is(index, "db") && index + 1 < call.count() {
            index += 1;
            number = database(call, index, "")?;
        } else {
            return Err(syntax());
        }
        index += 1;
    }
    let (key, target) = (call.args.get(call.input, 1), call.args.get(call.input, 2));
    if number == call.client.database && key == target {
        return Err("ERR source and destination objects are the same".into());
    }
    let keys = [(call.client.database, key), (number, target)];
    call.atomically(Keys::Named(&keys), |call| {
        let core = &*call.core;
        let stored = read_item(core, &core.db, key)?;
        let to = core.db.in_database(number);
        let is_copied = match &stored {
            None => false,
            Some(stored) => put_item(core, &to, target, stored, replaces)?,
        };
        call.counted(stored.is_some());
        call.integer(i64::from(is_copied))
    })
}

/// `MSETNX key value [key value ...]`
pub fn msetnx(call: &mut RespCall<'_>) -> CommandResult {
    check_pairs(call, "msetnx")?;
    at_once(call, (1..call.count()).step_by(2), |call| {
        let core = &*call.core;
        let (args, input) = (call.args, call.input);
        let keys = || (1..args.len()).step_by(2).map(move |index| args.get(input, index));
        let is_there = |key| core.db.entry(key, core.now).is_ok_and(|entry| entry.item().is_some());
        let is_free = !keys().any(is_there);
        for (nth, key) in keys().enumerate().filter(|_| is_free) {
            if let Err(error) = core.db.set(key, args.get(input, 2 * nth + 2), 0, 0, core.now) {
                // There was none of them before.
                keys().take(nth + 1).for_each(|key| _ = core.db.remove(key, core.now));
                return Err(failed(&error));
            }
        }
        call.integer(i64::from(is_free))
    })
}

/// Items that `KEYS` visits between two looks at the clock.
const KEYS_AT_ONCE: usize = 64;

/// `KEYS pattern`
pub fn keys(call: &mut RespCall<'_>) -> CommandResult {
    keys_from(call, ResumePoint::default())
}

/// Looks for keys from the cursor that is the part's index on; then answers with all.
fn keys_from(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let pattern = call.args.get(call.input, 1);
    let glob = (pattern != b"*").then(|| Glob::new(pattern, KEY_BYTES_MAX));
    let mut some_keys = Vec::new();
    loop {
        let visited = |item: &Item<'_>| some_keys.push(item.key());
        part.index = call.core.cache().scan(part.index, KEYS_AT_ONCE, call.core.now, visited);
        // Compared when the cache is not locked any more.
        for key in some_keys.drain(..) {
            if glob.as_ref().is_none_or(|glob| glob.matches(&key)) {
                push_bulk(&mut part.bytes, &key);
                part.sum += 1;
            }
        }
        if part.index == 0 {
            call.array(part.sum as usize);
            return send_found(call, part);
        }
        if call.is_to_pause() {
            return call.go_on_later(part, keys_from);
        }
    }
}

/// Keys of which `RANDOMKEY` takes one, each with the same chance: those that follow a random
/// place. If the first one were taken, those that lie far behind others would be more often.
const CANDIDATES: u64 = 16;

/// `RANDOMKEY`
pub fn randomkey(call: &mut RespCall<'_>) -> CommandResult {
    let cursor = call.core.cache().cursor_at(random(call, 0));
    to_the_end(call, ResumePoint::at(cursor))
}

/// A number by chance, from the clock.
fn random(call: &RespCall<'_>, nth: i64) -> u64 {
    let seed = (call.core.thread as u64) << 32 | nth as u64;
    xxh3_64_with_seed(&monotonic_ns().to_le_bytes(), seed)
}

/// Looks for candidates from the part's cursor on, and then once more from the start.
fn to_the_end(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    look_for_any(call, part, to_the_end, from_the_start)
}

fn from_the_start(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    look_for_any(call, part, from_the_start, answer_any)
}

/// Takes one of the keys from the part's cursor on, each with the same chance: of `sum` that were
/// seen, the last one with one in so many.
fn look_for_any(
    call: &mut RespCall<'_>,
    mut part: ResumePoint,
    again: Resume,
    at_end: Resume,
) -> CommandResult {
    let wanted = call.core.cache().items_of(call.client.database).min(CANDIDATES);
    let mut some_keys = Vec::new();
    while (part.sum as u64) < wanted {
        let visited = |item: &Item<'_>| some_keys.push(item.key());
        let cache = call.core.cache();
        part.index = cache.scan(part.index, CANDIDATES as usize, call.core.now, visited);
        for key in some_keys.drain(..) {
            part.sum += 1;
            if random(call, part.sum).is_multiple_of(part.sum as u64) {
                part.bytes = key;
            }
        }
        if part.index == 0 {
            return at_end(call, part);
        }
        if call.is_to_pause() {
            return call.go_on_later(part, again);
        }
    }
    answer_any(call, part)
}

fn answer_any(call: &mut RespCall<'_>, part: ResumePoint) -> CommandResult {
    if part.sum == 0 {
        return call.null();
    }
    push_bulk(&mut call.core.out.bytes, &part.bytes);
    Ok(())
}

/// `WAIT replicas milliseconds`
pub fn wait(call: &mut RespCall<'_>) -> CommandResult {
    call.number(1)?;
    match call.number(2) {
        Ok(0..) => call.integer(0),
        Ok(_) => Err("ERR timeout is negative".into()),
        Err(_) => Err("ERR timeout is not an integer or out of range".into()),
    }
}
