//! Redis's commands on how a value is kept, and on its form for other servers: `OBJECT`, `DUMP`,
//! `RESTORE`, and what is harmless of `DEBUG`. In: a [`RespCall`]. Out: its answer, or an error's
//! text.

use super::bytes::strict_i64;
use super::redis::{CommandResult, RespCall, ResumePoint, syntax};
use super::redis_hashes::check_field;
use super::redis_strings::past_or;
use super::redis_values::bytes_max;
use super::redis_whole::{WholeField, WholeItem, WholeValue, is_large_hash, put_whole, read_whole};
use super::resp::{Version, failed, push_bulk, push_error, push_status};
use super::values::dump::{self, HashField, Restored};
use crate::cache::{Error, HashValue, Item, Millis, at_wall};
use crate::clock::PAST;
use crate::constants::{BATCH_KEYS_MAX, EXEC_AT_ONCE_BYTES_MAX};

/// Longest values that Redis keeps as a number, and in one piece with its object.
const NUMBER_BYTES_MAX: u64 = 20;
const EMBEDDED_BYTES_MAX: u64 = 44;
/// Most fields, and longest ones, of hashes that it keeps as one text.
const LISTPACK_FIELDS_MAX: u64 = 128;
const LISTPACK_BYTES_MAX: usize = 64;

/// What `look` finds at the item of word `index`, if there is one; counts nothing.
fn at_item<R>(
    call: &mut RespCall<'_>,
    index: usize,
    look: impl FnOnce(&Item<'_>, &mut Vec<u8>) -> Result<R, Error>,
) -> Result<Option<R>, String> {
    let key = call.args.get(call.input, index);
    let core = &mut *call.core;
    let scratch = &mut core.scratch;
    scratch.clear();
    let entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    let found = entry.item().map(|item| look(&item, scratch)).transpose();
    found.map_err(|error| failed(&error))
}

/// How Redis keeps such a value that was set as a whole.
fn encoding(item: &Item<'_>, scratch: &mut Vec<u8>) -> Result<&'static str, Error> {
    if item.is_typed() {
        return Ok("hashtable");
    }
    if item.len() > EMBEDDED_BYTES_MAX {
        return Ok("raw");
    }
    item.append_to(scratch)?;
    let is_number = item.len() <= NUMBER_BYTES_MAX && strict_i64(scratch).is_some();
    Ok(if is_number { "int" } else { "embstr" })
}

pub fn object_encoding(call: &mut RespCall<'_>) -> CommandResult {
    let mut found = at_item(call, 2, encoding)?;
    if found == Some("hashtable") && is_listpack(call)? {
        found = Some("listpack");
    }
    match found {
        Some(encoding) => push_bulk(&mut call.core.out.bytes, encoding.as_bytes()),
        None => return call.null(),
    }
    Ok(())
}

/// Whether Redis would keep the hash of word 2 as one text.
fn is_listpack(call: &RespCall<'_>) -> Result<bool, String> {
    let hash = call.core.db.hash_entry(call.arg(2), call.core.times());
    let mut hash = hash.map_err(|error| failed(&error))?;
    let count = hash.count().map_err(|error| failed(&error))?;
    if hash.is_large() || count > LISTPACK_FIELDS_MAX {
        return Ok(false);
    }
    let mut is_listpack = true;
    let visited = hash.visit(0, |name, value| {
        let HashValue::Text(value) = value else { return Ok(()) };
        is_listpack &= name.len().max(value.len()) <= LISTPACK_BYTES_MAX;
        Ok(())
    });
    visited.map(|_| is_listpack).map_err(|error| failed(&error))
}

pub fn object_refcount(call: &mut RespCall<'_>) -> CommandResult {
    object_number(call, |_| 1)
}

pub fn object_idletime(call: &mut RespCall<'_>) -> CommandResult {
    object_number(call, |item| i64::from(item.idle_s()))
}

pub fn object_freq(call: &mut RespCall<'_>) -> CommandResult {
    object_number(call, |item| item.uses() as i64)
}

fn object_number(call: &mut RespCall<'_>, number: fn(&Item<'_>) -> i64) -> CommandResult {
    match at_item(call, 2, |item, _| Ok(number(item)))? {
        Some(number) => call.integer(number),
        None => call.null(),
    }
}

pub fn dump(call: &mut RespCall<'_>) -> CommandResult {
    if is_large_hash(call, 1) { call.run_words_apart(dump_held) } else { dump_held(call) }
}

fn dump_held(call: &mut RespCall<'_>) -> CommandResult {
    call.at_once([1], |call| {
        let core = &*call.core;
        let item = read_whole(&core.db, call.arg(1), core.times())?;
        call.counted(item.is_some());
        let dump = match item.map(|item| item.value) {
            None => return call.null(),
            Some(WholeValue::String(value)) => dump::dump_string(&value),
            Some(WholeValue::Hash(fields)) => {
                let at_wall = |expires| call.core.cache().expiry_at_wall(expires);
                let dumped = |WholeField { name, value, expires }| {
                    let expires_ms = (expires != 0).then(|| at_wall(expires));
                    HashField { name, value, expires_ms }
                };
                dump::dump_hash(&fields.into_iter().map(dumped).collect::<Vec<_>>())
            }
        };
        push_bulk(&mut call.core.out.bytes, &dump);
        Ok(())
    })
}

/// `RESTORE key ms dump [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
pub fn restore(call: &mut RespCall<'_>) -> CommandResult {
    // One of many fields takes long.
    match call.arg(3).len() > EXEC_AT_ONCE_BYTES_MAX {
        true => call.run_words_apart(restore_here),
        false => restore_here(call),
    }
}

fn restore_here(call: &mut RespCall<'_>) -> CommandResult {
    let (replaces, is_absolute) = restore_options(call)?;
    let expires = restored_expiry(call, is_absolute);
    let (key, payload) = (call.args.get(call.input, 1), call.args.get(call.input, 3));
    // Read before the key is locked, though errors are told in Redis's order.
    let restored = dump::restore(payload, bytes_max(call));
    let core = &mut *call.core;
    let mut entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    if !replaces && entry.item().is_some() {
        return Err("BUSYKEY Target key name already exists.".into());
    }
    let expires = expires?;
    let value = match restored.map_err(|error| error.to_string())? {
        Restored::String(value) => value,
        Restored::Hash(fields) => {
            drop(entry);
            return call.at_once([1], |call| restore_hash(call, fields, expires, replaces));
        }
    };
    if expires == PAST {
        entry.remove();
    } else {
        entry.put(&[&value[..]], 0, expires).map_err(|error| failed(&error))?;
    }
    drop(entry);
    call.status("OK")
}

fn restore_hash(
    call: &mut RespCall<'_>,
    fields: Vec<HashField<Vec<u8>>>,
    expires: Millis,
    replaces: bool,
) -> CommandResult {
    fields.iter().try_for_each(|field| check_field(&field.name))?;
    let (core, key, times) = (&*call.core, call.arg(1), call.core.times());
    let is_there = |field: &HashField<_>| field.expires_ms.is_none_or(|at| at > times.wall);
    let kept = |HashField { name, value, expires_ms }| WholeField {
        name,
        value,
        expires: expires_ms.map_or(0, at_wall),
    };
    let fields: Vec<_> = fields.into_iter().filter(is_there).map(kept).collect();
    if expires == PAST || fields.is_empty() {
        core.db.remove(key, times.now);
    } else {
        let item = WholeItem { value: WholeValue::Hash(fields), flags: 0, expires };
        if !put_whole(&core.db, key, &item, replaces, times)? {
            return Err("BUSYKEY Target key name already exists.".into());
        }
    }
    call.status("OK")
}

/// Whether what is there is replaced, and whether the expiry is a point in time. How long the value
/// was idle, or how often it was used, is not kept.
fn restore_options(call: &RespCall<'_>) -> Result<(bool, bool), String> {
    let (mut replaces, mut is_absolute) = (false, false);
    let (mut has_idle, mut has_uses, mut index) = (false, false, 4);
    while index < call.count() {
        let has_more = index + 1 < call.count();
        if call.is(index, "replace") {
            replaces = true;
        } else if call.is(index, "absttl") {
            is_absolute = true;
        } else if call.is(index, "idletime") && has_more && !has_uses {
            (has_idle, index) = (true, index + 1);
            if call.number(index)? < 0 {
                return Err("ERR Invalid IDLETIME value, must be >= 0".into());
            }
        } else if call.is(index, "freq") && has_more && !has_idle {
            (has_uses, index) = (true, index + 1);
            if !(0..=255).contains(&call.number(index)?) {
                return Err("ERR Invalid FREQ value, must be >= 0 and <= 255".into());
            }
        } else {
            return Err(syntax());
        }
        index += 1;
    }
    Ok((replaces, is_absolute))
}

fn restored_expiry(call: &RespCall<'_>, is_absolute: bool) -> Result<u64, String> {
    let times = call.core.times();
    match u64::try_from(call.number(2)?) {
        Ok(0) => Ok(0),
        Ok(at) if is_absolute => Ok(past_or(at, true, times)),
        Ok(ms) => Ok(past_or(times.wall.saturating_add(ms), false, times)),
        Err(_) => Err("ERR Invalid TTL value, must be >= 0".into()),
    }
}

/// `DEBUG POPULATE count [prefix [bytes]]`, `DEBUG OBJECT key`, `DEBUG ERROR text`,
/// `DEBUG PROTOCOL type`, `DEBUG HELP`
pub fn debug(call: &mut RespCall<'_>) -> CommandResult {
    match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"populate", 3..=5) => debug_populate(call, ResumePoint::default()),
        (b"object", 3) => debug_object(call),
        (b"protocol", 3) => debug_protocol(call),
        (b"error", 3) => {
            let text = call.args.get(call.input, 2);
            push_error(&mut call.core.out.bytes, text);
            Ok(())
        }
        (b"help", 2) => {
            push_lines(call, &DEBUG_HELP);
            Ok(())
        }
        _ => {
            let word = String::from_utf8_lossy(call.arg(1)).into_owned();
            Err(format!(
                "ERR unknown subcommand or wrong number of arguments for '{word}'. Try DEBUG HELP."
            ))
        }
    }
}

fn push_lines(call: &mut RespCall<'_>, lines: &[&str]) {
    call.array(lines.len());
    lines.iter().for_each(|line| push_status(&mut call.core.out.bytes, line));
}

/// `OBJECT HELP`, in Redis's words.
pub fn object_help(call: &mut RespCall<'_>) -> CommandResult {
    push_lines(call, &OBJECT_HELP);
    Ok(())
}

const OBJECT_HELP: [&str; 15] = [
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Return the access frequency index of the <key>. The returned integer is",
    "    proportional to the logarithm of the recent access frequency of the key.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "REFCOUNT <key>",
    "    Return the number of references of the value associated with the specified",
    "    <key>.",
    "HELP",
    "    Prints this help.",
];

const DEBUG_HELP: [&str; 11] = [
    "DEBUG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ERROR <string>",
    "    Answers with an error of this text.",
    "OBJECT <key>",
    "    Tells how a value is kept.",
    "POPULATE <count> [<prefix>] [<size>]",
    "    Stores so many values under the keys <prefix>:<number>, if there are none.",
    "PROTOCOL <type>",
    "    Answers with a value of this type: string, integer, double, bignum, null, array, set,",
    "    map, attrib, push, verbatim, true, false.",
    "HELP",
];

fn debug_object(call: &mut RespCall<'_>) -> CommandResult {
    /// Kind, version and checksum of a dump.
    const FRAME_BYTES: usize = 11;
    let about = at_item(call, 2, |item, scratch| {
        let (encoding, idle_s) = (encoding(item, scratch)?, item.idle_s());
        scratch.clear();
        let bytes = match item.is_typed() {
            true => item.whole_bytes(),
            false => {
                item.append_to(scratch)?;
                (dump::dump_string(scratch).len() - FRAME_BYTES) as u64
            }
        };
        Ok(format!(
            "refcount:1 encoding:{encoding} serializedlength:{bytes} lru_seconds_idle:{idle_s}"
        ))
    })?;
    call.status(&about.ok_or("ERR no such key")?)
}

/// Stores values from the number on that is the part's index.
fn debug_populate(call: &mut RespCall<'_>, mut part: ResumePoint) -> CommandResult {
    let count = not_negative(call, 2)?;
    let bytes = if call.count() > 4 { not_negative(call, 4)? } else { 0 };
    let max_bytes = bytes_max(call);
    if bytes > max_bytes {
        return Err(failed(&Error::TooLarge { bytes, max_bytes }));
    }
    let prefix = if call.count() > 3 { call.args.get(call.input, 3) } else { &b"key"[..] };
    while part.index < count {
        let end = count.min(part.index + BATCH_KEYS_MAX as u64);
        // One alone where it is long.
        let end = if bytes > POPULATED_BYTES { part.index + 1 } else { end };
        for number in part.index..end {
            let key = [prefix, format!(":{number}").as_bytes()].concat();
            let mut value = format!("value:{number}").into_bytes();
            if bytes > 0 {
                value.resize(bytes as usize, 0);
            }
            let core = &*call.core;
            let mut entry = core.db.entry(&key, core.now).map_err(|error| failed(&error))?;
            if entry.item().is_none() {
                entry.put(&[&value[..]], 0, 0).map_err(|error| failed(&error))?;
            }
        }
        part.index = end;
        if call.is_to_pause() {
            return call.go_on_later(part, debug_populate);
        }
    }
    call.status("OK")
}

/// Values from this length on are stored one at a time, bytes.
const POPULATED_BYTES: u64 = 4096;

fn not_negative(call: &RespCall<'_>, index: usize) -> Result<u64, String> {
    let number = call.number(index).ok().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| "ERR value is out of range, must be positive".into())
}

fn debug_protocol(call: &mut RespCall<'_>) -> CommandResult {
    let is_three = call.client.version == Version::Three;
    let pick = |two: &'static str, three: &'static str| if is_three { three } else { two };
    let name = call.arg(2).to_ascii_lowercase();
    let answer = match &name[..] {
        b"string" => "$11\r\nHello World\r\n",
        b"integer" => ":12345\r\n",
        b"double" => pick("$5\r\n3.141\r\n", ",3.141\r\n"),
        b"bignum" => pick(
            "$37\r\n1234567999999999999999999999999999999\r\n",
            "(1234567999999999999999999999999999999\r\n",
        ),
        b"null" => return call.null(),
        b"array" => "*3\r\n:0\r\n:1\r\n:2\r\n",
        b"set" => pick("*3\r\n:0\r\n:1\r\n:2\r\n", "~3\r\n:0\r\n:1\r\n:2\r\n"),
        b"map" => pick(
            "*6\r\n:0\r\n:0\r\n:1\r\n:1\r\n:2\r\n:0\r\n",
            "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n",
        ),
        b"attrib" => pick(
            "$39\r\nSome real reply following the attribute\r\n",
            "|1\r\n$14\r\nkey-popularity\r\n*2\r\n$7\r\nkey:123\r\n:90\r\n\
             $39\r\nSome real reply following the attribute\r\n",
        ),
        b"push" if is_three => {
            ">2\r\n$16\r\nserver-cpu-usage\r\n:42\r\n\
             $40\r\nSome real reply following the push reply\r\n"
        }
        b"push" => return Err("ERR RESP2 is not supported by this command".into()),
        b"verbatim" => pick(
            "$25\r\nThis is a verbatim\nstring\r\n",
            "=29\r\ntxt:This is a verbatim\nstring\r\n",
        ),
        b"true" => pick(":1\r\n", "#t\r\n"),
        b"false" => pick(":0\r\n", "#f\r\n"),
        _ => return Err(PROTOCOL_TYPES.into()),
    };
    call.core.out.bytes.extend_from_slice(answer.as_bytes());
    Ok(())
}

const PROTOCOL_TYPES: &str = "ERR Wrong protocol type name. Please use one of the following: \
                              string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|\
                              true|false";
