//! Conservation, when all is quiet: every frame is free or holds one page that the directory alone
//! knows, every piece of memory handed out belongs to one allocation of the model, and nothing is
//! on its way.
//!
//! The world fills plain structures in; [`frames_of`] reads them from a region's bytes, in words
//! of its own and not by the daemon's. Quiet means: no fault, no operation under way, no session
//! in its time of grace, and the daemons have had time for what they do behind.

mod audit;
mod read;

pub use audit::check;
pub use read::frames_of;

use rackpool_core::layout::FrameState;
use rackpool_core::wire::DaemonStats;

/// A frame of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameAudit {
    pub frame: u32,
    pub state: FrameState,
    pub page: u64,
    /// Its generation in the private section.
    pub generation: u64,
    /// log2 of the object size; 0 for whole pages.
    pub shift: u8,
    /// Whether it is the first page of a run.
    pub first: bool,
    /// Pages of the run in its first page, the index in the run in later ones.
    pub span: u32,
    /// The session that owns it, 0 for none.
    pub owner: u64,
    /// Its generation in the table that clients read.
    pub table_generation: u64,
    /// Whether memory is behind it; `None` if that is not known.
    pub backed: Option<bool>,
    /// Objects that live in it, by index, ascending.
    pub objects: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RackAudit {
    pub rack: u16,
    pub frames: Vec<FrameAudit>,
    /// What its daemon says of itself.
    pub stats: DaemonStats,
    /// Sessions that its daemon knows.
    pub sessions: Vec<u64>,
    /// Sessions of clients that live and have one with this rack.
    pub sessions_expected: Vec<u64>,
}

/// A page as the master knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeAudit {
    pub page: u64,
    pub rack: u16,
    pub frame: u32,
    pub generation: u64,
    /// Whether the region that held it is gone.
    pub lost: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryAudit {
    /// Every page, in any order.
    pub homes: Vec<HomeAudit>,
}

/// Memory that the model knows to be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationAudit {
    pub addr: u64,
    /// Its size in bytes, as it was asked for.
    pub bytes: u64,
    /// The session that owns it, 0 for none.
    pub owner: u64,
    /// Whether it lives for sure; otherwise the outcome of a free is not known.
    pub certain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolAudit {
    /// log2 of the page size.
    pub page_shift: u8,
    /// The racks that have their daemons up.
    pub racks: Vec<RackAudit>,
    pub directory: DirectoryAudit,
    /// What was handed out and is not on memory that is gone.
    pub allocations: Vec<AllocationAudit>,
    /// Allocations of which no client ever took the answer and which nothing takes back
    /// (docs/semantics.md names the case: over a fabric, a daemon that was restarted after it had
    /// answered).
    pub unclaimed_max: u64,
    /// A rack lost its memory: what is left of a run that began there has no owner.
    pub loses_parts: bool,
}

#[cfg(test)]
mod tests;
