//! Redis's commands on several keys at one moment (`RENAME`, `COPY`, `MOVE`, `MSETNX`), and on keys that
//! are not named (`KEYS`, `RANDOMKEY`). In: a [`RespCall`]. Out: its answer, or an error's text.

use super::atomic::Keys;
use super::glob::Glob;
use super::redis::{CommandResult, RespCall, Resume, ResumePoint, send_found, syntax};
use super::redis_keys::database;
use super::redis_strings::check_pairs;
use super::redis_whole::{is_large_hash, put_whole, read_whole};
use super::resp::{failed, push_bulk};
use crate::cache::{Error, Item, KEY_BYTES_MAX};
use rackpool_mem::process::monotonic_ns;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// `RENAME key name`, `RENAMENX key name`
pub fn rename(call: &mut RespCall<'_>, is_kept: bool) -> CommandResult {
    let rename: fn(&mut RespCall<'_>) -> CommandResult = match is_kept {
        true => |call| call.at_once([1, 2], |call| rename_here(call, true)),
        false => |call| call.at_once([1, 2], |call| rename_here(call, false)),
    };
    if is_large_hash(call, 1) { call.run_words_apart(rename) } else { rename(call) }
}

fn rename_here(call: &mut RespCall<'_>, is_kept: bool) -> CommandResult {
    let (key, name) = (call.args.get(call.input, 1), call.args.get(call.input, 2));
    let (database, times) = (&call.core.db, call.core.times());
    let item = read_whole(database, key, times)?.ok_or("ERR no such key")?;
    let is_renamed = key != name && put_whole(database, name, &item, !is_kept, times)?;
    if is_renamed {
        database.remove(key, times.now);
    }
    if is_kept { call.integer(i64::from(is_renamed)) } else { call.status("OK") }
}

/// `COPY key target [DB database] [REPLACE]`
pub fn copy(call: &mut RespCall<'_>) -> CommandResult {
    let (number, _) = copy_options(call)?;
    if number == call.client.database && call.arg(1) == call.arg(2) {
        return Err("ERR source and destination objects are the same".into());
    }
    if is_large_hash(call, 1) { call.run_words_apart(copy_held) } else { copy_held(call) }
}

/// The database of the target, and whether it is replaced.
fn copy_options(call: &RespCall<'_>) -> Result<(u8, bool), String> {
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
    Ok((number, replaces))
}

fn copy_held(call: &mut RespCall<'_>) -> CommandResult {
    let (number, replaces) = copy_options(call)?;
    let (key, target) = (call.args.get(call.input, 1), call.args.get(call.input, 2));
    let keys = [(call.client.database, key), (number, target)];
    call.atomically(Keys::Named(&keys), |call| {
        let (from, times) = (&call.core.db, call.core.times());
        let item = read_whole(from, key, times)?;
        let is_copied = match &item {
            None => false,
            Some(item) => put_whole(&from.in_database(number), target, item, replaces, times)?,
        };
        call.counted(item.is_some());
        call.integer(i64::from(is_copied))
    })
}

pub fn move_key(call: &mut RespCall<'_>) -> CommandResult {
    let number = database(call, 2, "")?;
    if number == call.client.database {
        return Err("ERR source and destination objects are the same".into());
    }
    let to = call.core.cache().in_database(number);
    match call.core.cache().move_to(&to, call.arg(1), call.core.now) {
        Err(Error::LargeHash) => call.run_words_apart(move_held),
        moved => call.integer(i64::from(moved.map_err(|error| failed(&error))?)),
    }
}

fn move_held(call: &mut RespCall<'_>) -> CommandResult {
    let number = database(call, 2, "")?;
    let key = call.args.get(call.input, 1);
    let keys = [(call.client.database, key), (number, key)];
    call.atomically(Keys::Named(&keys), |call| {
        let (from, times) = (&call.core.db, call.core.times());
        let Some(item) = read_whole(from, key, times)? else { return call.integer(0) };
        let is_moved = put_whole(&from.in_database(number), key, &item, false, times)?;
        if is_moved {
            from.remove(key, times.now);
        }
        call.integer(i64::from(is_moved))
    })
}

/// `MSETNX key value [key value ...]`
pub fn msetnx(call: &mut RespCall<'_>) -> CommandResult {
    check_pairs(call, "msetnx")?;
    call.at_once((1..call.count()).step_by(2), msetnx_here)
}

fn msetnx_here(call: &mut RespCall<'_>) -> CommandResult {
    let (args, input) = (call.args, call.input);
    let (database, now) = (&call.core.db, call.core.now);
    let keys = || (1..args.len()).step_by(2).map(move |index| args.get(input, index));
    for key in keys() {
        let entry = database.entry(key, now).map_err(|error| failed(&error))?;
        if entry.item().is_some() {
            drop(entry);
            return call.integer(0);
        }
    }
    for (nth, key) in keys().enumerate() {
        if let Err(error) = database.set(key, args.get(input, 2 * nth + 2), 0, 0, now) {
            // There was none of them before.
            for key in keys().take(nth) {
                database.remove(key, now);
            }
            return Err(failed(&error));
        }
    }
    call.integer(1)
}

/// Items that `KEYS` visits between two looks at the clock.
const KEYS_AT_ONCE: usize = 64;

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

pub fn wait(call: &mut RespCall<'_>) -> CommandResult {
    call.number(1)?;
    match call.number(2) {
        Ok(0..) => call.integer(0),
        Ok(_) => Err("ERR timeout is negative".into()),
        Err(_) => Err("ERR timeout is not an integer or out of range".into()),
    }
}
