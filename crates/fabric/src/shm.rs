//! The shm fabric: the other rack is on this host and mapped here, so that one-sided means a copy
//! by this processor. Owns an endpoint ([`ShmEndpoint`]) on the access protocol of the core
//! (`rackpool_core::target`), which the target of the tcp fabric uses too.
//!
//! In: windows of the other rack's pages and table and an announce cell of ours there. Out: data,
//! and completions in the order of posting; everything is executed when it is posted.
//!
//! Source: DESIGN §3 (moving a page), §1 (`Fabric`).

use super::buffers::{BufferOwner, Buffers};
use super::{FabricError, FabricStats, spin_for};
use rackpool_core::constants::{
    FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX, FABRIC_SGES_MAX, MESSAGE_BYTES_MAX,
};
use rackpool_core::error::DeathCause;
use rackpool_core::fabric::peers::PeerTable;
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Mem, Nanos, PeerId, PostError, RemoteAddr, Sge, Verb,
    WorkRequest, WorkStatus,
};
use rackpool_core::target::TargetMemory;
use rackpool_mem::window::Window;
use std::collections::VecDeque;

/// A mapped rack: its pages, its table and a cell of ours there.
pub type ShmPeer = TargetMemory<Window>;

/// Where SEND and WRITE_IMM of a [`ShmEndpoint`] go: a queue to the other rack's application.
/// It has one producer, so what has room keeps it until something is put in.
pub trait HandOff {
    /// Whether one more message fits.
    fn room(&mut self) -> Result<(), HandOffError>;
    /// Takes a message, or says that the queue is full.
    fn message(&mut self, message: &[u8]) -> Result<(), HandOffError>;
    /// Takes an immediate value, or says that the queue is full.
    fn imm(&mut self, imm: u32) -> Result<(), HandOffError>;
    /// A message of the other side, if there is one.
    fn receive(&mut self) -> Option<Vec<u8>>;
}

/// Why a hand-off took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOffError {
    Busy,
    /// The other side is gone.
    Down,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ShmOptions {
    /// Injected latency: each batch of one-sided operations takes this much longer, nanoseconds.
    pub emulate_rdma_ns: u32,
}

struct Mapped<H> {
    memory: ShmPeer,
    hand_off: H,
    done: VecDeque<(u64, WorkStatus)>,
    connected: bool,
    down: bool,
}

/// An endpoint with mapped peers. `post` executes; `poll` only delivers the completions. A
/// completion counts as outstanding until it was polled.
pub struct ShmEndpoint<H> {
    options: ShmOptions,
    buffers: Buffers,
    peers: PeerTable<Mapped<H>>,
    scratch: Vec<u8>,
    stats: FabricStats,
}

impl<H: HandOff> ShmEndpoint<H> {
    /// An endpoint without peers.
    pub fn new(options: ShmOptions) -> Self {
        Self {
            options,
            buffers: Buffers::new(),
            peers: PeerTable::new(FABRIC_PEERS_MAX),
            scratch: Vec::with_capacity(MESSAGE_BYTES_MAX as usize),
            stats: FabricStats::default(),
        }
    }

    /// Adds a mapped rack; its `Connected` event comes with the next poll. Errors: `PeersFull`.
    pub fn connect(&mut self, memory: ShmPeer, hand_off: H) -> Result<PeerId, FabricError> {
        let limit = self.peers.limit();
        let done = VecDeque::with_capacity(FABRIC_OUTSTANDING_MAX as usize);
        let mapped = Mapped { memory, hand_off, done, connected: false, down: false };
        self.peers.insert(mapped).map_err(|_| FabricError::PeersFull { limit })
    }

    /// Ends a connection: because the caller leaves, or because it learned that the other rack's
    /// daemon is dead. What was posted has been executed; its completions and `Closed` come with
    /// the next poll.
    pub fn close(&mut self, peer: PeerId) {
        if let Some(mapped) = self.peers.get_mut(peer) {
            mapped.down = true;
        }
    }

    /// The access protocol of a peer, for accesses that need no completion.
    #[inline]
    pub fn peer(&mut self, peer: PeerId) -> Option<&ShmPeer> {
        self.peers.get_mut(peer).filter(|mapped| !mapped.down).map(|mapped| &mapped.memory)
    }

    /// Counters; no system call is ever made.
    pub fn stats(&self) -> FabricStats {
        self.stats
    }
}

/// Executes one work request; the error is the hand-off's.
fn execute<H: HandOff>(
    mapped: &mut Mapped<H>,
    buffers: &mut Buffers,
    scratch: &mut Vec<u8>,
    work: &WorkRequest<'_>,
) -> Result<WorkStatus, PostError> {
    let memory = &mapped.memory;
    Ok(match work.verb {
        Verb::Read(at) => read_pieces(memory, buffers, at, work.local),
        Verb::Write(at) => write_pieces(memory, buffers, at, work.local),
        Verb::Cas { at, expected, new } => memory.cas(at.offset, at.key, expected, new),
        Verb::FetchAdd { at, n } => memory.fetch_add(at.offset, at.key, n),
        Verb::WriteImm(at, imm) => {
            // The value is handed over after the data, and the data is written only if there is
            // room for the value: a refused request leaves no trace.
            mapped.hand_off.room().map_err(post_error)?;
            let status = write_pieces(memory, buffers, at, work.local);
            if matches!(status, WorkStatus::Done(_)) {
                mapped.hand_off.imm(imm).map_err(post_error)?;
            }
            status
        }
        Verb::Send => {
            let bytes: u64 = work.local.iter().map(|piece| piece.bytes).sum();
            if bytes > u64::from(MESSAGE_BYTES_MAX) {
                return Ok(WorkStatus::BadRange);
            }
            scratch.clear();
            for piece in work.local {
                scratch.extend_from_slice(buffers.slice(piece));
            }
            mapped.hand_off.message(scratch).map_err(post_error)?;
            WorkStatus::Done(0)
        }
    })
}

fn post_error(error: HandOffError) -> PostError {
    match error {
        HandOffError::Busy => PostError::Busy,
        HandOffError::Down => PostError::Down,
    }
}

fn read_pieces(
    memory: &ShmPeer,
    buffers: &mut Buffers,
    at: RemoteAddr,
    pieces: &[Sge],
) -> WorkStatus {
    let bytes = pieces.iter().map(|piece| piece.bytes).sum();
    let done = memory.reading(at, bytes, |pages| {
        let mut offset = at.offset;
        for piece in pieces {
            pages.copy_out(offset, buffers.slice_mut(piece));
            offset += piece.bytes;
        }
    });
    done.map_or_else(WorkStatus::from, |()| WorkStatus::Done(0))
}

fn write_pieces(memory: &ShmPeer, buffers: &Buffers, at: RemoteAddr, pieces: &[Sge]) -> WorkStatus {
    let bytes = pieces.iter().map(|piece| piece.bytes).sum();
    let done = memory.writing(at, bytes, |pages| {
        let mut offset = at.offset;
        for piece in pieces {
            pages.copy_in(offset, buffers.slice(piece));
            offset += piece.bytes;
        }
    });
    done.map_or_else(WorkStatus::from, |()| WorkStatus::Done(0))
}

impl<H: HandOff> Fabric for ShmEndpoint<H> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "shm",
            atomics_global: true,
            mapped: true,
            inline_bytes_max: MESSAGE_BYTES_MAX,
            mtu_bytes: 0,
            outstanding_max: FABRIC_OUTSTANDING_MAX,
        }
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        let mapped = self.peers.get_mut(peer).filter(|mapped| !mapped.down);
        let mapped = mapped.ok_or((0, PostError::Down))?;
        let mut result = Ok(());
        let mut one_sided = false;
        for (posted, work) in batch.iter().enumerate() {
            check_work(&self.buffers, work);
            if mapped.done.len() == FABRIC_OUTSTANDING_MAX as usize {
                result = Err((posted, PostError::Busy));
                break;
            }
            match execute(mapped, &mut self.buffers, &mut self.scratch, work) {
                Ok(status) => {
                    one_sided |= work.verb != Verb::Send;
                    self.stats.ops += 1;
                    if work.signalled || !matches!(status, WorkStatus::Done(_)) {
                        mapped.done.push_back((work.id, status));
                    }
                }
                Err(error) => {
                    mapped.down |= error == PostError::Down;
                    result = Err((posted, error));
                    break;
                }
            }
        }
        if one_sided && self.options.emulate_rdma_ns > 0 {
            spin_for(self.options.emulate_rdma_ns);
        }
        result
    }

    fn poll(&mut self, _now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        for slot in 0..self.peers.slots() {
            let Some((peer, mapped)) = self.peers.at_mut(slot) else { continue };
            if !mapped.connected {
                mapped.connected = true;
                events.push(FabricEvent::Connected { peer });
            }
            for (id, status) in mapped.done.drain(..) {
                events.push(FabricEvent::Completed { peer, id, status });
            }
            for _ in 0..FABRIC_OUTSTANDING_MAX {
                let Some(message) = mapped.hand_off.receive() else { break };
                events.push(FabricEvent::Received { peer, message });
            }
            if mapped.down {
                events.push(FabricEvent::Closed { peer, cause: DeathCause::Closed });
                self.peers.remove(peer);
            }
        }
        events.len() - before
    }
}

/// Panics on a work request that no correct program posts.
#[inline]
pub(super) fn check_work(buffers: &Buffers, work: &WorkRequest<'_>) {
    assert!(work.local.len() <= FABRIC_SGES_MAX, "{} local pieces", work.local.len());
    let atomic = matches!(work.verb, Verb::Cas { .. } | Verb::FetchAdd { .. });
    assert!(!atomic || work.local.is_empty(), "an atomic has no local pieces");
    let writable = matches!(work.verb, Verb::Read(_));
    for piece in work.local {
        buffers.check(piece, writable);
    }
}

impl<H: HandOff> BufferOwner for ShmEndpoint<H> {
    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }
    fn let_go(&mut self, _named: impl Fn(BufId) -> bool) {
        // Nothing is under way after `post`.
    }
}
