//! What Redis's commands on values have in common: how a value is read, how it is changed under the
//! lock of its key, and how the values of several keys are seen at one moment. What a command makes
//! of a value is in `values`.

use super::atomic::Keys;
use super::core::Core;
use super::counters::Count;
use super::redis::{CommandResult, RespCall};
use super::resp::failed;
use super::values::ValueError;
use crate::cache::{Cache, Millis};
use crate::constants::RESP_BULK_BYTES_MAX;

/// The longest value that a command may make, bytes.
pub fn bytes_max(call: &RespCall<'_>) -> u64 {
    call.core.cache().longest_value().min(RESP_BULK_BYTES_MAX as u64)
}

/// Reads the value of the key that word `index` is into the scratch memory; whether there is one.
pub fn read(call: &mut RespCall<'_>, index: usize) -> Result<bool, String> {
    let key = call.args.get(call.input, index);
    let core = &mut *call.core;
    let value = &mut core.scratch;
    value.clear();
    let found = core.db.get(key, core.now, |item| item.append_to(value));
    call.counted(found.is_some());
    match found {
        None => Ok(false),
        Some(Ok(())) => Ok(true),
        Some(Err(error)) => Err(failed(&error)),
    }
}

/// Has `change` make another value of that of word 1, of an empty one if there is none (`false`).
/// If it says that it did, that is stored, with the flags and the expiry that there were. Its
/// answer.
pub fn change<R>(
    call: &mut RespCall<'_>,
    change: impl FnOnce(&mut Vec<u8>, bool) -> Result<(bool, R), ValueError>,
) -> Result<R, String> {
    let key = call.args.get(call.input, 1);
    let core = &mut *call.core;
    let value = &mut core.scratch;
    value.clear();
    let mut entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    let (mut is_there, mut flags, mut expires) = (false, 0, 0);
    if let Some(item) = entry.item() {
        item.append_to(value).map_err(|error| failed(&error))?;
        (is_there, flags, expires) = (true, item.flags(), item.expires());
    }
    let (is_changed, answer) = change(value, is_there).map_err(|error| error.to_string())?;
    if is_changed {
        entry.put(&[&value[..]], flags, expires).map_err(|error| failed(&error))?;
    }
    Ok(answer)
}

/// What an item holds.
#[derive(Debug, Default)]
pub struct Stored {
    pub value: Vec<u8>,
    pub flags: u32,
    pub expires: Millis,
}

/// Runs `f` as one step on the keys that these words are; it must not go on later.
pub fn at_once(
    call: &mut RespCall<'_>,
    words: impl Iterator<Item = usize>,
    f: impl FnOnce(&mut RespCall<'_>) -> CommandResult,
) -> CommandResult {
    let (args, input, database) = (call.args, call.input, call.client.database);
    let keys: Vec<_> = words.map(|index| (database, args.get(input, index))).collect();
    call.atomically(Keys::Named(&keys), f)
}

/// Reads the item of a key; counted by the cache as used.
pub fn read_item(core: &Core, database: &Cache, key: &[u8]) -> Result<Option<Stored>, String> {
    let mut entry = database.entry(key, core.now).map_err(|error| failed(&error))?;
    let Some(item) = entry.read() else { return Ok(None) };
    let mut value = Vec::new();
    item.append_to(&mut value).map_err(|error| failed(&error))?;
    Ok(Some(Stored { value, flags: item.flags(), expires: item.expires() }))
}

/// Calls `each` with the value of each of these keys, if it has one, the one after the other.
pub fn read_all<'k>(
    core: &Core,
    keys: impl Iterator<Item = &'k [u8]>,
    mut each: impl FnMut(Option<Vec<u8>>) -> Result<(), ValueError>,
) -> Result<(), String> {
    let mut bytes = 0;
    for key in keys {
        let stored = read_item(core, &core.db, key)?;
        core.count(if stored.is_some() { Count::KeyHits } else { Count::KeyMisses });
        let value = stored.map(|stored| stored.value);
        bytes += value.as_ref().map_or(0, |value| value.len() as u64);
        if bytes > JOINED_BYTES_MAX {
            return Err(format!("ERR the values of all keys are longer than {JOINED_BYTES_MAX}"));
        }
        each(value).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Bytes of all values that one command sees at one moment, at most: they are worked on while
/// others wait, some 100 ms for so many.
const JOINED_BYTES_MAX: u64 = RESP_BULK_BYTES_MAX as u64;
