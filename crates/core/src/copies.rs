//! Words of the private section in three copies, so that damaged memory is found and mended.
//!
//! The section has three parts of one length, which hold the same words. All offsets of `layout.rs`
//! lie in the first. Only the superblock stands once, it has a checksum. Two copies that agree are
//! the word: any damage to one part, be it one bit or all of it, is outvoted, and what has no
//! majority is an error and never a value.
//!
//! A store goes to the third copy, the second, the first. A process that dies in between leaves two
//! copies that agree, on the old value or on the new one: to a daemon that attaches, it is one
//! store. Called by the daemon's engine for each word that it keeps, and by those that read a
//! region without its daemon. Decision 0051.
//!
//! On memory that outlives a loss of power a store is durable when it returns, before the word can
//! change again: so after a loss of power each copy is the old value or the new one, and two agree.
//! Sessions and locks are not made durable, since nothing of them is used after that.

use crate::constants::BLOCK_BYTES;
use crate::error::{Error, Result};
pub use crate::layout::COPIES;
use crate::layout::is_volatile;
use crate::persist::Persist;
use crate::seam::{Mem, Mutation};

/// Where the copies of a word lie in a private section of `bytes` bytes.
pub const fn places(bytes: u64, offset: u64) -> [u64; COPIES as usize] {
    let part = bytes / COPIES;
    [offset, offset + part, offset + 2 * part]
}

/// The word at `offset` of a section of `bytes` bytes, where `word` answers each word; `None` if no
/// two copies agree.
pub fn read(bytes: u64, offset: u64, word: impl Fn(u64) -> u64) -> Option<u64> {
    let [first, second, third] = places(bytes, offset);
    let (first, second) = (word(first), word(second));
    if first == second { Some(first) } else { vote([first, second, word(third)]) }
}

/// Whether the copies of a word agree.
pub fn agree([first, second, third]: [u64; COPIES as usize]) -> bool {
    first == second && first == third
}

/// What two of the copies of a word say, if two agree.
pub fn vote([first, second, third]: [u64; COPIES as usize]) -> Option<u64> {
    match () {
        () if first == second || first == third => Some(first),
        () if second == third => Some(second),
        () => None,
    }
}

/// Loads a word.
///
/// # Errors
/// `BadRegion` if its copies disagree.
pub fn load<M: Mem>(mem: &M, offset: u64) -> Result<u64> {
    if mem.mutated(Mutation::TrustOneCopy) {
        return Ok(mem.load(offset));
    }
    read(mem.bytes(), offset, |at| mem.load(at)).ok_or_else(|| damaged(offset))
}

/// The error of a word with copies that disagree.
pub fn damaged(offset: u64) -> Error {
    let reason = format!("the word at {offset:#x} is damaged in two of its three copies");
    Error::BadRegion { reason }
}

pub fn store<M: Persist>(mem: &M, offset: u64, value: u64) {
    put(mem, offset, value);
    if !mem.mutated(Mutation::StoreUndurably) {
        persist(mem, offset, 8);
    }
}

/// As [`store`], but durable when [`persist`] has returned for the word, which has to be before it
/// changes again.
pub fn put<M: Mem>(mem: &M, offset: u64, value: u64) {
    let [first, second, third] = places(mem.bytes(), offset);
    mem.store(third, value);
    mem.store(second, value);
    mem.store(first, value);
}

/// Makes a range durable in all its copies, where the memory can do that.
///
/// # Panics
/// If it cannot any more: the daemon ends, since what it would acknowledge from now on could be
/// lost. What it acknowledged before is there for the next one.
pub fn persist<M: Persist>(mem: &M, offset: u64, bytes: u64) {
    if !mem.is_persistent() || is_volatile(offset) {
        return;
    }
    write_back(mem, offset, bytes);
    fence(mem);
}

/// Sends all copies of a range on their way to the medium, until [`fence`].
pub fn write_back<M: Persist>(mem: &M, offset: u64, bytes: u64) {
    places(mem.bytes(), offset).into_iter().for_each(|place| mem.write_back(place, bytes));
}

/// Waits for what [`write_back`] has sent, where the memory persists.
///
/// # Panics
/// As [`persist`].
pub fn fence<M: Persist>(mem: &M) {
    if mem.is_persistent()
        && let Err(error) = mem.persist_fence()
    {
        panic!("the region's metadata cannot be made durable: {error}");
    }
}

/// What was found in a part of the section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Words that had one wrong copy, which is right now.
    pub repaired: u64,
    /// Words without a majority.
    pub damaged: Vec<u64>,
}

/// Compares the copies of all words in a range, which are not being stored meanwhile, and mends
/// single ones that are wrong.
pub fn check<M: Persist>(mem: &M, offset: u64, bytes: u64, checked: &mut Checked) {
    if mem.mutated(Mutation::TrustOneCopy) {
        return;
    }
    let end = offset + bytes;
    for at in (offset..end).step_by(BLOCK_BYTES as usize) {
        let here = BLOCK_BYTES.min(end - at);
        let [first, second, third] = places(mem.bytes(), at);
        if !mem.equal(first, second, here) || !mem.equal(first, third, here) {
            (at..at + here).step_by(8).for_each(|word| check_word(mem, word, checked));
        }
    }
}

fn check_word<M: Persist>(mem: &M, offset: u64, checked: &mut Checked) {
    let raw = places(mem.bytes(), offset).map(|at| mem.load(at));
    match vote(raw) {
        Some(_) if agree(raw) => {}
        Some(value) => {
            store(mem, offset, value);
            checked.repaired += 1;
        }
        None => checked.damaged.push(offset),
    }
}
