//! Operations under way: one slab entry a work request, shared by the requester, the packets and
//! the responder, freed when none of them refers to it any more. Entries and payload vectors are
//! used again, so nothing is allocated in steady state.

use rackpool_core::constants::FABRIC_SGES_MAX;
use rackpool_core::seam::{BufId, Exposure, RemoteAddr, Sge, Verb, WorkStatus};
use std::ops::{Index, IndexMut};

/// Vectors above this are freed instead of kept, so that a burst of pages does not stay.
const KEPT_BYTES: usize = 16 << 10;
const SPARES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed<'a> {
    /// A READ's bytes.
    Data(&'a [u8]),
    Done,
    /// The old value, of an atomic.
    Old(u64),
    /// The key was not valid; nothing was done.
    BadKey,
    /// Outside the frame; nothing was done.
    BadRange,
}

#[derive(Debug)]
pub struct Operation {
    pub(super) verb: Verb,
    pub(super) id: u64,
    pub(super) bytes: u64,
    pub(super) payload: Vec<u8>,
    /// A SEND with a payload that goes into a buffer of the other end instead of to its user.
    pub(super) exposed: Option<Exposure>,
    pub(super) local: [Sge; FABRIC_SGES_MAX],
    pub(super) local_count: u8,
    pub(super) side: u8,
    pub(super) signalled: bool,
    pub(super) inline: bool,
    pub(super) is_reliable: bool,
    pub(super) queued: bool,
    /// On its card, but held back by the limit of READs.
    pub(super) waiting: bool,
    pub(super) reading: bool,
    pub(super) sent: bool,
    pub(super) executing: bool,
    pub(super) executed: bool,
    pub(super) done: bool,
    /// Only the first packets took effect, for good.
    pub(super) torn: bool,
    pub(super) pair: u32,
    /// Its number on the connection.
    pub(super) sequence: u32,
    pub(super) refs: u32,
    /// Packets that are at the target, without a gap.
    pub(super) arrived: u32,
    /// Packets of the answer that are back.
    pub(super) answered: u32,
    /// Both, when the timer last looked.
    pub(super) seen: u32,
    pub(super) outcome: WorkStatus,
}

const NO_PIECE: Sge = Sge { buf: BufId(0), offset: 0, bytes: 0 };

impl Operation {
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// Length, bytes; 8 for atomics.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where, if it is one-sided.
    pub fn at(&self) -> Option<RemoteAddr> {
        match self.verb {
            Verb::Read(at) | Verb::Write(at) | Verb::WriteImm(at, _) => Some(at),
            Verb::Cas { at, .. } | Verb::FetchAdd { at, .. } => Some(at),
            Verb::Send => None,
        }
    }

    /// The bytes to write. Shorter than [`Operation::bytes`] if only a part of them arrived
    /// before the connection ended.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Makes this entry another operation's, in place.
    fn begin(&mut self, verb: Verb, id: u64) {
        (self.verb, self.id, self.bytes) = (verb, id, 0);
        self.payload.clear();
        self.exposed = None;
        (self.local_count, self.side) = (0, 0);
        (self.signalled, self.inline, self.is_reliable, self.queued) = (false, false, false, true);
        (self.waiting, self.reading, self.sent, self.executing) = (false, false, false, false);
        (self.executed, self.done, self.torn) = (false, false, false);
        (self.pair, self.sequence, self.refs) = (0, 0, 1);
        (self.arrived, self.answered, self.seen) = (0, 0, 0);
        self.outcome = WorkStatus::Done(0);
    }

    pub(super) fn pieces(&self) -> &[Sge] {
        &self.local[..self.local_count as usize]
    }

    pub(super) fn is_read_or_atomic(&self) -> bool {
        matches!(self.verb, Verb::Read(_) | Verb::Cas { .. } | Verb::FetchAdd { .. })
    }

    pub(super) fn is_read(&self) -> bool {
        matches!(self.verb, Verb::Read(_))
    }

    pub(super) fn carries_payload(&self) -> bool {
        matches!(self.verb, Verb::Write(_) | Verb::WriteImm(..) | Verb::Send) && self.bytes > 0
    }
}

#[derive(Default)]
pub(super) struct Slab {
    entries: Vec<Operation>,
    free: Vec<u32>,
    spares: Vec<Vec<u8>>,
}

impl Slab {
    /// A fresh entry with one reference, the send queue's.
    pub fn insert(&mut self, verb: Verb, id: u64) -> u32 {
        let token = self.free.pop().unwrap_or(self.entries.len() as u32);
        if token as usize == self.entries.len() {
            self.entries.push(blank(verb, id));
        } else {
            self.entries[token as usize].begin(verb, id);
        }
        token
    }

    /// One reference less; whether the entry was freed.
    pub fn release(&mut self, token: u32) {
        let entry = &mut self.entries[token as usize];
        entry.refs -= 1;
        if entry.refs == 0 {
            if entry.payload.capacity() > KEPT_BYTES {
                entry.payload = Vec::new();
            }
            self.free.push(token);
        }
    }

    pub fn alive(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// A vector for a message, from those that came back.
    pub fn spare(&mut self) -> Vec<u8> {
        self.spares.pop().unwrap_or_default()
    }

    pub fn recycle(&mut self, mut message: Vec<u8>) {
        if self.spares.len() < SPARES_MAX && message.capacity() <= KEPT_BYTES {
            message.clear();
            self.spares.push(message);
        }
    }
}

fn blank(verb: Verb, id: u64) -> Operation {
    Operation {
        verb,
        id,
        bytes: 0,
        payload: Vec::new(),
        exposed: None,
        local: [NO_PIECE; FABRIC_SGES_MAX],
        local_count: 0,
        side: 0,
        signalled: false,
        inline: false,
        is_reliable: false,
        queued: true,
        waiting: false,
        reading: false,
        sent: false,
        executing: false,
        executed: false,
        done: false,
        torn: false,
        pair: 0,
        sequence: 0,
        refs: 1,
        arrived: 0,
        answered: 0,
        seen: 0,
        outcome: WorkStatus::Done(0),
    }
}

impl Index<u32> for Slab {
    type Output = Operation;
    fn index(&self, token: u32) -> &Operation {
        &self.entries[token as usize]
    }
}

impl IndexMut<u32> for Slab {
    fn index_mut(&mut self, token: u32) -> &mut Operation {
        &mut self.entries[token as usize]
    }
}
