//! What an audit of the pool's allocations asks of a daemon (`rackpool fsck`, and the sweep after a
//! client died in the middle of a change).

use crate::addr::{PageId, SessionId};
use crate::layout::AllocationKind;
use serde::{Deserialize, Serialize};

/// A request about the allocations of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditRequest {
    /// How many sweeps are due.
    Due,
    /// Begins a watch: from now on the daemon remembers which of the allocations of the kind
    /// `Table` that live now were freed since. The oldest of more than `AUDIT_WATCHES_MAX` ends.
    Begin,
    End {
        watch: u64,
    },
    /// What lives in some frames.
    Pieces {
        watch: u64,
        /// The first frame of interest; in it, the first word of the bitmap.
        from: (u32, u32),
    },
    /// Sessions that are in the middle of a change.
    Changing,
    /// So many sweeps that were due have been made.
    Swept {
        count: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditReply {
    /// To `Due`, `End` and `Swept`.
    Due {
        /// Sessions that ended in the middle of a change since the last sweep.
        count: u64,
    },
    Begun {
        /// The number of the watch.
        watch: u64,
    },
    Pieces {
        /// Live allocations of the kind `Table` that the watch sees, at most `AUDIT_PIECES_MAX`.
        pieces: Vec<AllocationPiece>,
        /// What the frames hold that this answer has gone through, by kind.
        totals: Vec<KindTotal>,
        /// Where to go on; `None` at the end.
        next: Option<(u32, u32)>,
    },
    Changing(Vec<ChangingSession>),
}

/// Allocations in one page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationPiece {
    /// The page; of a run, its first one.
    pub page: PageId,
    /// log2 of the object size; 0 for a run.
    pub shift: u8,
    /// Pages of the run; 0 for objects.
    pub run_pages: u32,
    /// The number of the first object that the words stand for.
    pub first_object: u32,
    /// Which objects live, one bit each; empty for a run.
    pub objects: Vec<u64>,
}

/// What lives of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindTotal {
    pub kind: AllocationKind,
    pub allocations: u64,
    /// Their bytes, as they take them: size classes and whole pages.
    pub bytes: u64,
}

/// A session that is in the middle of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangingSession {
    pub session: SessionId,
    pub pid: u32,
    /// Its word `Changing`: another value says that it has gone on since.
    pub count: u64,
}
