//! What a host does for others on memory that no hardware keeps coherent between them (shared CXL
//! memory of today): the only file that says when lines are written back and when they are dropped.
//!
//! In: words and ranges of a [`Mem`]. Out: the same accesses with [`Mem::flush`] after stores and
//! [`Mem::invalidate`] before loads. Called by both ends of everything that hosts share: rings,
//! cells, the table, pages. On coherent memory each of these is the plain access.
//!
//! The rules, each with the safeguard ([`Mutation`]) by which a test leaves it out:
//! - *A store that others wait for is written back at once*, and before what says that it is there.
//! - *Before a load of what others store the line is dropped*: it may be old, whenever it came.
//! - *What is stored into a page is written back before its announcement is withdrawn.* A changed
//!   line that stayed behind would be written over the frame's next page, whenever it is evicted.
//! - *Lines are dropped before a part of them is stored to*, since they go back as a whole.
//! - *A section that was made anew is dropped as a whole* by the client that is welcomed to it.
//! - *No other host stores to a line meanwhile*: each line has one host that writes it at a time,
//!   by the layout, by an atomic at its home, or by a lock.
//! - *A process that died in the midst leaves changed lines in its host's cache*: they are written
//!   back before any process is told that it is dead (see [`crash`](crate::crash)).
//!
//! Source: decision 0040.

use crate::seam::{ByteRange, Mem, Mutation};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What keeps the caches of the hosts that share a memory in agreement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coherence {
    /// The hardware: a store that left its processor is seen by all.
    #[default]
    Hardware,
    /// The software, by writing lines back and dropping them; within a host the hardware.
    Software,
}

impl Coherence {
    /// Of a memory that was mapped.
    pub fn of<M: Mem>(mem: &M) -> Self {
        if mem.is_coherent() { Self::Hardware } else { Self::Software }
    }

    /// Whether it is the hardware's.
    pub fn is_hardware(self) -> bool {
        self == Self::Hardware
    }
}

impl fmt::Display for Coherence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
        })
    }
}

/// Shows a range that was stored to, unless a test hides it.
#[inline(always)]
pub fn show<M: Mem>(mem: &M, hidden: Mutation, offset: u64, bytes: u64) {
    if !mem.is_coherent() && !mem.mutated(hidden) {
        mem.flush(offset, bytes);
    }
}

/// Drops the lines of a range that is about to be loaded, unless a test keeps them.
#[inline(always)]
pub fn renew<M: Mem>(mem: &M, kept: Mutation, offset: u64, bytes: u64) {
    if !mem.is_coherent() && !mem.mutated(kept) {
        mem.invalidate(offset, bytes);
    }
}

/// Loads a word as it is where all hosts see it.
#[inline(always)]
pub fn load<M: Mem>(mem: &M, kept: Mutation, offset: u64) -> u64 {
    renew(mem, kept, offset, 8);
    mem.load(offset)
}

/// Stores a word so that all hosts see it. The line has one host that writes it.
#[inline(always)]
pub fn store<M: Mem>(mem: &M, hidden: Mutation, offset: u64, value: u64) {
    mem.store(offset, value);
    show(mem, hidden, offset, 8);
}

/// Runs `access`, which reads a range of a page.
#[inline(always)]
pub fn reading<M: Mem, R>(pages: &M, range: ByteRange, access: impl FnOnce(&M) -> R) -> R {
    renew(pages, Mutation::KeepPageLines, range.offset, range.bytes);
    access(pages)
}

/// Runs `access`, which writes a range of a page. All lines are dropped before: one that is evicted
/// half written must not bring back what others have overwritten.
#[inline(always)]
pub fn writing<M: Mem, R>(pages: &M, range: ByteRange, access: impl FnOnce(&M) -> R) -> R {
    renew(pages, Mutation::WriteIntoOldLines, range.offset, range.bytes);
    let result = access(pages);
    show(pages, Mutation::HidePageStores, range.offset, range.bytes);
    result
}
