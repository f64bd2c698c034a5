//! The reference model of every byte: what was acknowledged, what may still arrive, what may
//! therefore be read. Fed by the world with each call and its outcome; it speaks at the first read
//! that nothing explains.
//!
//! Rules (docs/semantics.md): memory is zero when it is handed out; an acknowledged write is seen
//! by every read that is called later; a write under way, or one with an unknown outcome, may be
//! seen or not, and may land again until it is over; a byte that one client saw is there for all
//! clients after that; accesses of exactly 1, 2, 4 or 8 aligned bytes are one piece, others tear at
//! any byte; freed pages are an error for ever, freed objects hold anything.
//!
//! A store that waits in a store buffer is acknowledged to its own client before it is visible to
//! the others, so [`Bytes::write_done`] takes both times. Words under atomics belong to
//! [`words`](super::words), not here. Source: Lamport, "On interprocess communication" (1986),
//! regular registers.

mod allocation;
mod piece;

use super::Violation;
use crate::time::Ps;
use allocation::{Allocation, Life};
use piece::Look;
use std::collections::BTreeMap;

pub(super) const CHECKER: &str = "bytes";

/// What shares one store buffer: a client.
pub type ClientId = u32;

/// A write that was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

/// How an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    NotMapped,
    /// The page was on a region that is gone.
    Lost,
}

/// What an allocation is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Whole pages; their ids are never used again.
    Pages,
    /// An object in a slab page; its address is handed out again.
    Object,
}

/// What the model knows of a write.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) writer: ClientId,
    called: Ps,
    /// When its own client was told that it is done.
    acknowledged: Option<Ps>,
    /// When it was done for all clients, so that nothing of it can land later.
    over: Option<Ps>,
    /// Whether it is one access.
    pub(super) single: bool,
    /// Words of the model that hold a part of it.
    words: u64,
    addr: u64,
    bytes: u64,
}

impl Write {
    /// Whether everything of this landed before anything of `later` could.
    pub(super) fn is_before(&self, later: &Write) -> bool {
        let own = self.writer == later.writer;
        self.over.is_some_and(|over| over < later.called)
            || own && self.acknowledged.is_some_and(|at| at <= later.called)
    }

    /// Whether a read that `reader` calls at `called` finds it, or something later.
    pub(super) fn is_there_for(&self, reader: Option<ClientId>, called: Ps) -> bool {
        // A write of unknown outcome is over without having been acknowledged.
        let Some(acknowledged) = self.acknowledged else { return false };
        self.over.is_some_and(|over| over < called)
            || reader == Some(self.writer) && acknowledged <= called
    }
}

/// The writes that some word still knows.
pub(super) type Writes = BTreeMap<WriteId, Write>;

/// How much the model has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Bytes of reads that were explained.
    pub bytes: u64,
    /// Of these, bytes that only one value was allowed for.
    pub bytes_certain: u64,
    /// Aligned pieces that were looked at as a whole.
    pub pieces: u64,
    /// Pieces with too many explanations to try; their bytes were looked at one by one.
    pub pieces_skipped: u64,
    pub refusals: u64,
}

#[derive(Debug, Default)]
pub struct Bytes {
    /// By their first address; dead ones stay until their addresses are handed out again.
    allocations: BTreeMap<u64, Allocation>,
    writes: Writes,
    writes_called: u64,
    looked: Looked,
}

/// An allocation that lives, or may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    pub addr: u64,
    pub bytes: u64,
    /// What it is made of.
    pub backing: Backing,
    /// A free was called and its outcome is not known.
    pub perhaps_freed: bool,
}

fn broken<T>(at: Ps, text: String) -> Result<T, Violation> {
    Err(Violation::new(CHECKER, at, text))
}

impl Bytes {
    /// How much was looked at.
    pub fn looked(&self) -> Looked {
        self.looked
    }

    /// Every allocation that lives or may, if its memory is not gone, by address.
    pub fn live(&self) -> impl Iterator<Item = Live> + '_ {
        let live = |(addr, allocation): (&u64, &Allocation)| {
            let perhaps_freed = match allocation.life {
                Life::Live => false,
                Life::FreeCalled(_) => true,
                Life::Freed(_) | Life::Lost { .. } => return None,
            };
            let Allocation { bytes, backing, .. } = *allocation;
            Some(Live { addr: *addr, bytes, backing, perhaps_freed })
        };
        self.allocations.iter().filter_map(live)
    }

    /// Memory was handed out. No other allocation may have it; of whole pages, none may ever have
    /// had it.
    pub fn allocated(
        &mut self,
        addr: u64,
        bytes: u64,
        backing: Backing,
        at: Ps,
    ) -> Result<(), Violation> {
        let end = addr.saturating_add(bytes);
        if addr == 0 || bytes == 0 || end == u64::MAX {
            return broken(at, format!("{bytes} bytes at {addr:#x} were handed out"));
        }
        let before = self.allocations.range(..end).rev();
        let overlaps = before.take_while(|(first, old)| **first + old.bytes > addr);
        let overlaps: Vec<u64> = overlaps.map(|(first, _)| *first).collect();
        for first in overlaps {
            let old = &self.allocations[&first];
            let again = backing == Backing::Object && old.backing == Backing::Object;
            if !again || matches!(old.life, Life::Live | Life::Lost { .. }) {
                let text = format!(
                    "{bytes} bytes at {addr:#x} ({backing:?}) were handed out again: they overlap \
                     {} bytes at {first:#x} ({:?}, {})",
                    old.bytes, old.backing, old.life
                );
                return broken(at, text);
            }
            self.forget_allocation(first);
        }
        self.allocations.insert(addr, Allocation::new(bytes, backing));
        Ok(())
    }

    /// A free of the allocation at `addr` was called.
    pub fn free_called(&mut self, addr: u64, at: Ps) {
        if let Some(allocation) = self.allocations.get_mut(&addr)
            && allocation.life == Life::Live
        {
            allocation.life = Life::FreeCalled(at);
        }
    }

    /// It was answered: the allocation is gone. (Without an answer, say nothing.)
    pub fn freed(&mut self, addr: u64, at: Ps) {
        let Some(allocation) = self.allocations.get_mut(&addr) else { return };
        if matches!(allocation.life, Life::Live | Life::FreeCalled(_)) {
            allocation.life = Life::Freed(at);
        }
    }

    /// It was refused, and nothing was done.
    pub fn free_refused(&mut self, addr: u64) {
        if let Some(allocation) = self.allocations.get_mut(&addr)
            && matches!(allocation.life, Life::FreeCalled(_))
        {
            allocation.life = Life::Live;
        }
    }

    /// Memory lost its contents: every allocation that `is_gone` names by its address and size.
    pub fn lost(&mut self, is_gone: impl Fn(u64, u64) -> bool, at: Ps) {
        for (addr, allocation) in &mut self.allocations {
            let freeing = match allocation.life {
                Life::Freed(_) | Life::Lost { .. } => continue,
                Life::FreeCalled(_) => true,
                Life::Live => false,
            };
            if is_gone(*addr, allocation.bytes) {
                allocation.life = Life::Lost { at, freeing };
            }
        }
    }

    /// A write was called. From now on it may be seen.
    pub fn write_called(
        &mut self,
        writer: ClientId,
        addr: u64,
        bytes: &[u8],
        at: Ps,
    ) -> Result<WriteId, Violation> {
        let Some((first, allocation)) = find(&mut self.allocations, addr, bytes.len()) else {
            let text = format!("{} bytes at {addr:#x} belong to no allocation", bytes.len());
            return broken(at, text);
        };
        let id = WriteId(self.writes_called);
        self.writes_called += 1;
        let words = allocation.write(id, addr - first, bytes);
        let single = is_single(addr, bytes.len());
        let bytes = bytes.len() as u64;
        let write = Write {
            writer,
            called: at,
            acknowledged: None,
            over: None,
            single,
            words,
            addr,
            bytes,
        };
        self.writes.insert(id, write);
        Ok(id)
    }

    /// The write was acknowledged to its client, and was visible to all clients from `visible` on
    /// (the same moment, unless it waited in a store buffer).
    pub fn write_done(&mut self, id: WriteId, acknowledged: Ps, visible: Ps) {
        if let Some(write) = self.writes.get_mut(&id) {
            (write.acknowledged, write.over) = (Some(acknowledged), Some(visible));
        }
    }

    /// The write was acknowledged to its client and waits in a store buffer.
    pub fn write_buffered(&mut self, id: WriteId, acknowledged: Ps) {
        if let Some(write) = self.writes.get_mut(&id) {
            write.acknowledged = Some(acknowledged);
        }
    }

    /// A buffered write became visible to all clients.
    pub fn write_visible(&mut self, id: WriteId, visible: Ps) {
        if let Some(write) = self.writes.get_mut(&id) {
            write.over = Some(visible);
        }
    }

    /// Whatever its outcome, nothing of this write can land any more: its handle has reached the
    /// rack again, or its process is dead and what it sent has ended. (A write that ended with an
    /// error may land until then: say nothing before.)
    pub fn write_over(&mut self, id: WriteId, at: Ps) {
        if let Some(write) = self.writes.get_mut(&id) {
            write.over.get_or_insert(at);
        }
    }

    /// The write was refused, and nothing was done.
    pub fn write_refused(&mut self, id: WriteId) {
        let Some(write) = self.writes.get(&id) else { return };
        let (addr, bytes) = (write.addr, write.bytes as usize);
        if let Some((first, allocation)) = find(&mut self.allocations, addr, bytes) {
            let words = allocation.unwrite(id, addr - first, bytes);
            release(&mut self.writes, &words);
        }
    }

    /// A read that `reader` called at `called` answered `bytes` at `returned`.
    pub fn read(
        &mut self,
        reader: ClientId,
        addr: u64,
        bytes: &[u8],
        called: Ps,
        returned: Ps,
    ) -> Result<(), Violation> {
        let Some((first, allocation)) = find(&mut self.allocations, addr, bytes.len()) else {
            let text = format!("{} bytes at {addr:#x} belong to no allocation", bytes.len());
            return broken(returned, text);
        };
        match allocation.life {
            Life::Lost { at, .. } if at < called => {
                let text = format!(
                    "client {reader} read {} bytes at {addr:#x}, called at {called}: their memory \
                     was lost at {at}",
                    bytes.len()
                );
                return broken(returned, text);
            }
            Life::Freed(at) if at < called && allocation.backing == Backing::Pages => {
                let text = format!(
                    "client {reader} read {} bytes at {addr:#x}, called at {called}: the pages \
                     were freed at {at}",
                    bytes.len()
                );
                return broken(returned, text);
            }
            Life::FreeCalled(at) | Life::Freed(at)
                if at <= returned && allocation.backing == Backing::Object =>
            {
                // Use after free of an object: anything may be there.
                return Ok(());
            }
            _ => {}
        }
        let single = is_single(addr, bytes.len());
        let mut look = Look {
            writes: &self.writes,
            looked: &mut self.looked,
            reader,
            called,
            returned,
            single,
        };
        look.at(allocation, first, addr, bytes)
    }

    /// An access that was called at `called` was refused at `returned`: only what was freed may be
    /// not mapped, and only what is gone may be lost.
    pub fn refused(
        &mut self,
        client: ClientId,
        addr: u64,
        refusal: Refusal,
        called: Ps,
        returned: Ps,
    ) -> Result<(), Violation> {
        let found = find(&mut self.allocations, addr, 1);
        let justified = match found.as_ref().map(|(_, allocation)| (refusal, allocation.life)) {
            None => true,
            Some((Refusal::NotMapped, Life::FreeCalled(at) | Life::Freed(at))) => at <= returned,
            Some((Refusal::Lost, Life::Lost { at, .. })) => at <= returned,
            Some((Refusal::NotMapped, Life::Lost { at, freeing: true })) => at <= returned,
            // Freed, and then its memory went: either may be said.
            Some((Refusal::Lost, Life::FreeCalled(_) | Life::Freed(_))) => true,
            Some(_) => false,
        };
        self.looked.refusals += u64::from(justified);
        if justified {
            return Ok(());
        }
        let life = found.map_or(String::new(), |(_, allocation)| allocation.life.to_string());
        let text = format!(
            "client {client} called at {called} and was told {refusal:?} at {addr:#x}, which is \
             {life}"
        );
        broken(returned, text)
    }

    /// Forgets what no read can show any more. No read that was called before `oldest_called` may
    /// be reported after this.
    pub fn forget(&mut self, oldest_called: Ps) {
        for allocation in self.allocations.values_mut() {
            let words = match allocation.life {
                Life::Freed(at) | Life::Lost { at, .. } if at < oldest_called => allocation.clear(),
                _ => allocation.forget(&self.writes, oldest_called),
            };
            release(&mut self.writes, &words);
        }
    }

    /// Writes that the model still remembers.
    pub fn writes_known(&self) -> usize {
        self.writes.len()
    }

    fn forget_allocation(&mut self, addr: u64) {
        if let Some(mut allocation) = self.allocations.remove(&addr) {
            release(&mut self.writes, &allocation.clear());
        }
    }
}

/// The allocation that holds all of these bytes, with its address.
fn find(
    allocations: &mut BTreeMap<u64, Allocation>,
    addr: u64,
    bytes: usize,
) -> Option<(u64, &mut Allocation)> {
    let (first, allocation) = allocations.range_mut(..=addr).next_back()?;
    let end = addr.checked_add(bytes as u64)?;
    (end <= first + allocation.bytes).then_some((*first, allocation))
}

/// Takes the words off the counts of their writes; a write that no word knows is forgotten.
fn release(writes: &mut Writes, words: &[WriteId]) {
    for id in words {
        if let Some(write) = writes.get_mut(id) {
            write.words -= 1;
            if write.words == 0 {
                writes.remove(id);
            }
        }
    }
}

/// Whether an access is one piece for all clients.
fn is_single(addr: u64, bytes: usize) -> bool {
    matches!(bytes, 1 | 2 | 4 | 8) && addr.is_multiple_of(bytes as u64)
}

#[cfg(test)]
mod tests;
