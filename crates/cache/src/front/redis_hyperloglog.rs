//! Redis's commands on HyperLogLogs: `PFADD`, `PFCOUNT`, `PFMERGE`. In: a [`RespCall`]. Out: its
//! answer, or an error's text.

use super::redis::{CommandResult, RespCall};
use super::redis_values::{at_once, change, read_all};
use super::resp::failed;
use super::values::hyperloglog::{self, SPARSE_BYTES_MAX, Union};

/// `PFADD key [text ...]`
pub fn pfadd(call: &mut RespCall<'_>) -> CommandResult {
    let texts = call.args.words(call.input).skip(2);
    let is_changed = change(call, |value, is_there| {
        if is_there {
            hyperloglog::check(value)?;
        } else {
            *value = hyperloglog::empty();
        }
        let mut is_changed = !is_there;
        for text in texts {
            is_changed |= hyperloglog::add(value, text, SPARSE_BYTES_MAX)?;
        }
        Ok((is_changed, is_changed))
    })?;
    call.integer(i64::from(is_changed))
}

/// `PFCOUNT key [key ...]`
pub fn pfcount(call: &mut RespCall<'_>) -> CommandResult {
    if call.count() == 2 {
        return count_one(call);
    }
    at_once(call, 1..call.count(), |call| {
        let count = union(call)?.count();
        call.integer(count as i64)
    })
}

/// What the values of all words but the name have seen.
fn union(call: &RespCall<'_>) -> Result<Union, String> {
    let mut union = Union::default();
    let keys = call.args.words(call.input).skip(1);
    read_all(call.core, keys, |value| value.map_or(Ok(()), |value| union.add(&value)))?;
    Ok(union)
}

/// Counts what one value has seen, and has it know that until it changes.
fn count_one(call: &mut RespCall<'_>) -> CommandResult {
    let key = call.args.get(call.input, 1);
    let core = &mut *call.core;
    let value = &mut core.scratch;
    value.clear();
    let mut entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    let Some(item) = entry.read() else {
        drop(entry);
        call.counted(false);
        return call.integer(0);
    };
    item.append_to(value).map_err(|error| failed(&error))?;
    let (flags, expires) = (item.flags(), item.expires());
    let counted = hyperloglog::count(value).map_err(|error| error.to_string())?;
    if !counted.is_kept {
        hyperloglog::keep_count(value, counted.count);
        // Where there is no memory for it, it is counted again the next time.
        let _ = entry.put(&[&value[..]], flags, expires);
    }
    drop(entry);
    call.counted(true);
    call.integer(counted.count as i64)
}

/// `PFMERGE target [key ...]`
pub fn pfmerge(call: &mut RespCall<'_>) -> CommandResult {
    at_once(call, 1..call.count(), |call| {
        let union = union(call)?;
        change(call, |value, is_there| {
            if !is_there {
                *value = hyperloglog::empty();
            }
            union.store_in(value, SPARSE_BYTES_MAX).map(|()| (true, ()))
        })?;
        call.status("OK")
    })
}
