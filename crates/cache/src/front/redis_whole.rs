//! Values as a whole, of either type: for `COPY`, `RENAME`, `MOVE`, `DUMP`, `RESTORE`. In: keys
//! that the caller holds (`atomic.rs`). Out: what lies there. A hash that has parts is read and
//! stored some fields at a time, so that its partition is not locked for long.

use super::redis::RespCall;
use super::redis_values::JOINED_BYTES_MAX;
use super::resp::failed;
use crate::cache::{Cache, Error, HashValue, Millis};
use crate::clock::Times;
use crate::constants::BATCH_KEYS_MAX;
use crate::hashes::FieldExpiry;

#[derive(Debug, Default)]
pub struct WholeField {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    /// 0 = never.
    pub expires: Millis,
}

#[derive(Debug)]
pub enum WholeValue {
    String(Vec<u8>),
    Hash(Vec<WholeField>),
}

#[derive(Debug)]
pub struct WholeItem {
    pub value: WholeValue,
    pub flags: u32,
    pub expires: Millis,
}

/// Whether the key that word `index` is has a hash with parts: commands on all of it take long.
pub fn is_large_hash(call: &RespCall<'_>, index: usize) -> bool {
    let entry = call.core.db.entry(call.arg(index), call.core.now);
    entry.is_ok_and(|entry| entry.item().is_some_and(|item| item.is_large_hash()))
}

/// Reads the item of a key; counted by the cache as used.
pub fn read_whole(database: &Cache, key: &[u8], times: Times) -> Result<Option<WholeItem>, String> {
    let mut entry = database.entry(key, times.now).map_err(|error| failed(&error))?;
    let Some(item) = entry.read() else { return Ok(None) };
    let (flags, expires, is_hash) = (item.flags(), item.expires(), item.is_typed());
    let mut text = Vec::new();
    if !is_hash {
        item.append_to(&mut text).map_err(|error| failed(&error))?;
    }
    drop(entry);
    let value = match is_hash {
        false => WholeValue::String(text),
        true => WholeValue::Hash(read_hash(database, key, times)?),
    };
    Ok(Some(WholeItem { value, flags, expires }))
}

fn read_hash(database: &Cache, key: &[u8], times: Times) -> Result<Vec<WholeField>, String> {
    let (mut fields, mut bytes, mut at) = (Vec::new(), 0, Some(0));
    while let Some(from) = at {
        let first = fields.len();
        at =
            read_fields(database, key, from, times, &mut fields).map_err(|error| failed(&error))?;
        let some = fields[first..].iter();
        bytes += some.map(|field: &WholeField| field.name.len() + field.value.len()).sum::<usize>();
        if bytes as u64 > JOINED_BYTES_MAX {
            return Err(format!("ERR the fields of the hash are longer than {JOINED_BYTES_MAX}"));
        }
    }
    Ok(fields)
}

/// Appends the fields of the part from `at` on; where the next one begins.
fn read_fields(
    database: &Cache,
    key: &[u8],
    at: u64,
    times: Times,
    fields: &mut Vec<WholeField>,
) -> Result<Option<u64>, Error> {
    let mut hash = database.hash_entry(key, times)?;
    let first = fields.len();
    let next = hash.visit(at, |name, _| {
        let name = name.with_bytes(<[u8]>::to_vec).ok_or(Error::HashLost)?;
        fields.push(WholeField { name, ..WholeField::default() });
        Ok(())
    })?;
    for field in &mut fields[first..] {
        let found = hash.get(&field.name, |value, expires| Ok((bytes_of(value)?, expires)))?;
        (field.value, field.expires) = found.unwrap_or(Err(Error::HashLost))?;
    }
    Ok(next)
}

fn bytes_of(value: HashValue<'_>) -> Result<Vec<u8>, Error> {
    match value {
        HashValue::Text(text) => text.with_bytes(<[u8]>::to_vec).ok_or(Error::HashLost),
        HashValue::Item(item) => {
            let mut bytes = Vec::new();
            item.append_to(&mut bytes)?;
            Ok(bytes)
        }
        // Streams alone have these.
        HashValue::Pinned(_) => Err(Error::HashLost),
    }
}

/// Stores what another key has; not if there is something that is not to be replaced (`false`).
pub fn put_whole(
    database: &Cache,
    key: &[u8],
    item: &WholeItem,
    replaces: bool,
    times: Times,
) -> Result<bool, String> {
    let mut entry = database.entry(key, times.now).map_err(|error| failed(&error))?;
    if !replaces && entry.item().is_some() {
        return Ok(false);
    }
    let put = match &item.value {
        WholeValue::String(value) => entry.put(&[&value[..]], item.flags, item.expires).map(drop),
        WholeValue::Hash(fields) => {
            entry.remove();
            drop(entry);
            let put = put_hash(database, key, fields, item.expires, times);
            // Not a part of it.
            put.inspect_err(|_| {
                database.remove(key, times.now);
            })
        }
    };
    put.map(|()| true).map_err(|error| failed(&error))
}

fn put_hash(
    database: &Cache,
    key: &[u8],
    fields: &[WholeField],
    expires: Millis,
    times: Times,
) -> Result<(), Error> {
    for some in fields.chunks(BATCH_KEYS_MAX) {
        let mut hash = database.hash_entry(key, times)?;
        for field in some {
            hash.set(&field.name, &field.value, FieldExpiry::Set(field.expires))?;
        }
        hash.finish()?;
    }
    database.entry(key, times.now)?.set_expiry(expires)
}
