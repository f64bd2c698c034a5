//! How far a work request of an endpoint is, and what the device's work requests for it are named
//! by. Used by `connection.rs`, which owns the queue of them.

use super::local::STAGED_BYTES_MAX;
use super::queue::Operation;
use rackpool_core::fabric::work_queue::Work;
use rackpool_core::seam::{Verb, WorkStatus};

/// What a work request of the device was for.
#[derive(Clone, Copy, Debug)]
pub(super) enum WorkTag {
    /// A part of the work of that number, and whether it is the last one.
    Part { work: u64, is_last: bool },
    /// The message of the work of that number.
    Message { work: u64 },
    /// A question for a key.
    Open,
    /// Nothing that anybody waits for.
    Credit,
}

/// How far a work request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not posted, or not to its end.
    Queued,
    /// With the device; an answer has to come as well.
    Posted {
        is_done: bool,
        is_answered: bool,
    },
    Ended(WorkStatus),
}

/// What the queue keeps of a work request besides.
pub(super) struct Posting {
    pub(super) state: State,
    /// Staging slot that it uses.
    pub(super) slot: Option<u16>,
    /// Bytes that are with the device, and its work requests for them that have not ended.
    pub(super) posted_bytes: u64,
    pub(super) parts: u32,
}

impl Posting {
    pub(super) fn new() -> Self {
        Self { state: State::Queued, slot: None, posted_bytes: 0, parts: 0 }
    }

    pub(super) fn is_staged(work: &VerbsWork) -> bool {
        work.bytes <= STAGED_BYTES_MAX
    }

    /// Whether the device uses the buffers of `work` themselves now.
    pub(super) fn is_direct(work: &VerbsWork) -> bool {
        !Self::is_staged(work) && work.state.parts > 0 && !work.discard
    }
}

pub(super) type VerbsWork = Work<Posting>;

/// The device's operation for a part of a work request.
pub(super) fn operation_of(
    verb: &Verb,
    address: u64,
    key: u32,
    is_last: bool,
) -> Operation<'static> {
    match *verb {
        Verb::Read(_) => Operation::Read { address, key },
        Verb::WriteImm(_, imm) if is_last => Operation::WriteImm { address, key, imm },
        Verb::Write(_) | Verb::WriteImm(..) => Operation::Write { address, key },
        Verb::Cas { expected, new, .. } => Operation::Cas { address, key, expected, new },
        Verb::FetchAdd { n, .. } => Operation::FetchAdd { address, key, n },
        Verb::Send => unreachable!("a message"),
    }
}
