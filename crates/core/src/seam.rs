//! The only interfaces between the protocol and the world: [`Mem`] for memory that others see and
//! [`Fabric`] for one-sided operations on memory that is elsewhere. Time is handed in as
//! nanoseconds, randomness as a seed. Three worlds implement these traits: the real one and the
//! emulated one (`rackpool-mem`, `rackpool-fabric`), and the simulated one.
//!
//! Everything here is statically dispatched.

use crate::addr::Generation;
pub use crate::probe::{Mutation, Probe, Race, Rare};
use serde::{Deserialize, Serialize};

/// Monotonic time in nanoseconds, handed to every call that needs it.
pub type Nanos = u64;

/// A window of memory that other processes may read and write at the same time. Offsets are in
/// bytes from the window's start. An offset outside the window is a bug of the caller and panics; a
/// caller that took the offset from a message has to check it first.
///
/// Through [`Probe`] it also answers the questions by which a test proves that its checks bite.
pub trait Mem: Probe {
    /// Length of the window, bytes.
    fn bytes(&self) -> u64;
    /// Loads an aligned word with acquire order.
    fn load(&self, offset: u64) -> u64;
    /// Stores an aligned word with release order.
    fn store(&self, offset: u64, value: u64);
    /// Stores an aligned word such that the following loads of this thread see what a mover wrote
    /// before its barrier, or the mover sees this store. On one
    /// host a compiler fence (the mover pays with `membarrier`), else a full fence.
    fn announce(&self, offset: u64, value: u64);
    /// Replaces `expected` by `new` in an aligned word, sequentially consistent.
    /// `Err` carries the value that was there.
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64>;
    /// Adds to an aligned word, wrapping, sequentially consistent; the old value.
    fn fetch_add(&self, offset: u64, n: u64) -> u64;
    /// Copies out of the window. Aligned pieces of 1, 2, 4 or 8 bytes are single-copy atomic,
    /// longer ones may tear. Later loads do not pass it (acquire).
    fn copy_out(&self, offset: u64, to: &mut [u8]);
    /// Copies into the window, under the same rules. Earlier stores do not pass it (release).
    fn copy_in(&self, offset: u64, from: &[u8]);
    fn zero(&self, offset: u64, bytes: u64);
    /// Whether two ranges are equal. No process stores to them meanwhile.
    fn equal(&self, first: u64, second: u64, bytes: u64) -> bool {
        let mut pieces = [[0; 512]; 2];
        (0..bytes).step_by(512).all(|at| {
            let here = (bytes - at).min(512) as usize;
            for (start, piece) in [first, second].into_iter().zip(&mut pieces) {
                self.copy_out(start + at, &mut piece[..here]);
            }
            pieces[0][..here] == pieces[1][..here]
        })
    }
    /// Asks for the line at `offset` to be brought near. May do nothing.
    fn prefetch(&self, offset: u64);
    /// Orders everything before against everything after.
    fn fence(&self);
    /// Whether all that share the window see what is stored in it without further calls. If not,
    /// hosts see one another's stores by [`Mem::flush`] and [`Mem::invalidate`] alone: see
    /// `coherence.rs`.
    #[inline(always)]
    fn is_coherent(&self) -> bool {
        true
    }
    /// Writes the lines of a range back to where other hosts see them, whole lines, and waits for
    /// that; what follows comes after it. Nothing on coherent memory.
    fn flush(&self, offset: u64, bytes: u64);
    /// Writes the lines of a range back and drops this host's copies of them, so that the loads
    /// that follow see what other hosts have written back. Nothing on coherent memory.
    #[inline(always)]
    fn invalidate(&self, _offset: u64, _bytes: u64) {}
}

/// A window that can be divided.
pub trait Section: Mem + Clone {
    /// A part of it. `offset` is a multiple of 8 bytes.
    ///
    /// # Panics
    /// If the part is not inside.
    fn slice(&self, offset: u64, bytes: u64) -> Self;
}

/// A connection of a fabric endpoint, counted by the endpoint, never reused in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

/// A registered local buffer of a fabric endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufId(pub u32);

/// A piece of a registered local buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    pub buf: BufId,
    pub offset: u64,
    pub bytes: u64,
}

/// A piece of a local buffer of an initiator that the other end of one connection may write into,
/// until it is concealed. Without the connection these numbers are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposure {
    /// The initiator's number for it.
    pub id: u32,
    /// Given out once by an endpoint: what comes under an old one is discarded.
    pub key: u64,
    pub bytes: u64,
}

/// Memory of the pages for a buffer that an initiator has exposed, and the messages after it.
#[derive(Clone, Debug)]
pub struct EncodedWriteBack {
    pub to: Exposure,
    /// What, as an initiator would name it.
    pub from: RemoteAddr,
    pub bytes: u64,
    /// Sent after the last byte.
    pub done: Vec<u8>,
    /// Sent instead if the key was not valid to the end.
    pub refused: Vec<u8>,
}

/// Memory at the target of a one-sided operation: an offset in the target's pages section and the
/// key of the frame there. The target executes an operation only if its key is the frame's present
/// generation at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Offset in the target's pages, bytes.
    pub offset: u64,
    pub key: Generation,
}

/// A range of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Where it begins in the section, bytes.
    pub offset: u64,
    pub bytes: u64,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Remote memory into the local pieces, in order.
    Read(RemoteAddr),
    /// Local pieces into remote memory.
    Write(RemoteAddr),
    /// As `Write`; the target's application then receives `imm`.
    WriteImm(RemoteAddr, u32),
    /// Local pieces as one message to the target's application.
    Send,
    /// Compare and swap of an aligned word; the completion carries the old value.
    Cas { at: RemoteAddr, expected: u64, new: u64 },
    /// Wrapping add to an aligned word; the completion carries the old value.
    FetchAdd { at: RemoteAddr, n: u64 },
}

/// One work request. `id` comes back in its completion.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequest<'a> {
    pub id: u64,
    pub verb: Verb,
    /// Local pieces; empty for atomics. At most `FABRIC_SGES_MAX`.
    pub local: &'a [Sge],
    /// Whether success is to be completed as well; failures always are.
    pub signalled: bool,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkStatus {
    /// Done; for atomics the old value, else 0.
    Done(u64),
    /// The key was not valid when the operation ran: nothing was done. Resolve again.
    BadKey,
    /// Outside the frame, misaligned or too long: nothing was done.
    BadRange,
    /// The connection ended. `executed` says what is known: `Some(false)` it was never sent.
    Flushed {
        /// `None` if it may have been executed.
        executed: Option<bool>,
    },
}

/// What a fabric endpoint tells its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// A work request of ours ended.
    Completed {
        peer: PeerId,
        id: u64,
        status: WorkStatus,
    },
    Received {
        peer: PeerId,
        message: Vec<u8>,
    },
    /// The peer's WRITE_IMM was executed here.
    ReceivedImm {
        peer: PeerId,
        imm: u32,
    },
    Connected {
        peer: PeerId,
    },
    /// A connection is down; all its work requests have completed before this.
    Closed {
        peer: PeerId,
        cause: crate::error::DeathCause,
    },
}

/// What a fabric can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Short name, such as `tcp`.
    pub name: &'static str,
    /// Whether remote atomics are atomic with the target's own processors.
    pub atomics_global: bool,
    /// Whether the target's pages are mapped here, so that loads and stores do it.
    pub mapped: bool,
    /// Longest message that travels inside the work request, bytes.
    pub inline_bytes_max: u32,
    /// Largest packet, bytes; 0 if it does not matter.
    pub mtu_bytes: u32,
    /// Work requests outstanding on one connection.
    pub outstanding_max: u32,
}

/// Why a batch was not posted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// The send queue is full: poll, then post the rest.
    Busy,
    Down,
}

/// One end of a fabric, used by one thread. Reliable-connected: operations of one connection run
/// in order, none is lost without an end of the connection.
pub trait Fabric {
    /// What this fabric can do.
    fn capabilities(&self) -> Capabilities;
    /// Posts a batch under one doorbell. `Ok` posted all; `Err` carries how many were posted.
    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)>;
    /// Makes progress without blocking and appends what happened to `events`; how many.
    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize;
    /// Lets the target behind `peer` write into a piece of a registered buffer, until
    /// [`Fabric::conceal`], until the buffer is taken back, or until the connection ends. `None`
    /// if the fabric cannot do that, has no room for it, or the connection is down.
    fn expose(&mut self, _peer: PeerId, _piece: &Sge) -> Option<Exposure> {
        None
    }
    /// Ends an exposure: what the target still writes is discarded from now on. Answers how many
    /// bytes it has written, without a gap from the start; 0 if the exposure has ended before.
    fn conceal(&mut self, _peer: PeerId, _exposure: Exposure) -> u64 {
        0
    }
}
