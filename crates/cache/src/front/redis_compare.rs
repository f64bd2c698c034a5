//! Conditions on what a value is, as Redis 8.4 and Valkey 9 have them: those of `SET` (`IFEQ`,
//! `IFNE`, `IFDEQ`, `IFDNE`), and `DELEX`, `DELIFEQ`, `DIGEST`. In: a [`RespCall`]. Out: its
//! answer, or an error's text.

use super::redis::{CommandResult, RespCall, wrong_arity};
use super::redis_values::read;
use super::resp::{WRONG_TYPE, failed, push_bulk};
use crate::cache::Item;
use xxhash_rust::xxh3::xxh3_64;

/// That a value, or its digest, is the one that a word says, or is not.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    is_digest: bool,
    is_equal: bool,
}

impl Comparison {
    pub const IFEQ: Comparison = Comparison { is_digest: false, is_equal: true };

    pub fn of(word: &[u8]) -> Option<Self> {
        let all = ["ifeq", "ifne", "ifdeq", "ifdne"];
        let found = all.iter().position(|name| word.eq_ignore_ascii_case(name.as_bytes()));
        found.map(|index| Self { is_digest: index >= 2, is_equal: index % 2 == 0 })
    }

    /// Whether it holds of an item (its value is read into `scratch`); one that is not there has
    /// no value that could be equal.
    pub fn holds(
        self,
        item: Option<&Item<'_>>,
        word: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<bool, String> {
        let Some(item) = item else { return Ok(!self.is_equal) };
        if item.is_typed() {
            return Err(WRONG_TYPE.into());
        }
        if self.is_digest && word.len() != DIGEST_BYTES {
            return Err("ERR digest must be exactly 16 hexadecimal characters".into());
        }
        if !self.is_digest && item.len() != word.len() as u64 {
            return Ok(!self.is_equal);
        }
        scratch.clear();
        item.append_to(scratch).map_err(|error| failed(&error))?;
        let is_same = if self.is_digest {
            digest(scratch).as_bytes().eq_ignore_ascii_case(word)
        } else {
            scratch[..] == *word
        };
        Ok(is_same == self.is_equal)
    }
}

const DIGEST_BYTES: usize = 16;

fn digest(value: &[u8]) -> String {
    format!("{:016x}", xxh3_64(value))
}

pub fn digest_of(call: &mut RespCall<'_>) -> CommandResult {
    if !read(call, 1)? {
        return call.null();
    }
    let digest = digest(&call.core.scratch);
    push_bulk(&mut call.core.out.bytes, digest.as_bytes());
    Ok(())
}

/// `DELEX key [IFEQ value|IFNE value|IFDEQ digest|IFDNE digest]`
pub fn delex(call: &mut RespCall<'_>) -> CommandResult {
    match call.count() {
        2 => {
            let removed = call.core.cache().remove(call.arg(1), call.core.now);
            call.integer(i64::from(removed))
        }
        4 => {
            let unknown = "ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE";
            let comparison = Comparison::of(call.arg(2));
            remove_if(call, comparison.ok_or_else(|| unknown.to_owned()), 3)
        }
        _ => Err(wrong_arity("delex")),
    }
}

pub fn delifeq(call: &mut RespCall<'_>) -> CommandResult {
    remove_if(call, Ok(Comparison::IFEQ), 2)
}

/// Removes word 1 if its value compares so with word `index`; of what is not there no condition is
/// looked at.
fn remove_if(
    call: &mut RespCall<'_>,
    comparison: Result<Comparison, String>,
    index: usize,
) -> CommandResult {
    let (key, word) = (call.args.get(call.input, 1), call.args.get(call.input, index));
    let core = &mut *call.core;
    let mut entry = core.db.entry(key, core.now).map_err(|error| failed(&error))?;
    let holds = match entry.item() {
        None => false,
        Some(item) => comparison?.holds(Some(&item), word, &mut core.scratch)?,
    };
    let removed = holds && entry.remove();
    drop(entry);
    call.integer(i64::from(removed))
}
