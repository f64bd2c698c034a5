//! Read-only replicas of pages of another rack: what their home and their keeper tell each other,
//! and the directory in which the clients of the keeper's rack find them.
//!
//! A keeper is a client with memory of its own rack, which it owns: pages for the replicas, and the
//! directory. It asks the home what to do ([`Poll`]) and does it ([`Orders`]); its next poll says
//! that all of that is done. A replica is readable while no client writes to it, by its word in the
//! directory, and until the time in the directory's head: see [`Client::read_replica`] for the
//! reader's part and its proof.
//!
//! ```text
//! head:  until (ns, the host's clock) | log2 of the entries | reserved, 6 words
//! entry: word | page | address of the replica | reserved
//! word:  begun, 24 bits | ended, 24 bits | placement, 16 bits
//! ```
//!
//! The word is a lock and a count of writes in one. A writer of the page adds [`EntryWord::BEGIN`]
//! in each replica's word: if no other was at it, the replica is closed and the writer's until it
//! adds [`EntryWord::END`]; else the writer takes its addition back. The keeper's addition stays
//! where it is and is its turn as soon as all others have ended. So all writes to a replica come
//! one after another, in the order in which they write to the page.
//!
//! [`Client::read_replica`]: crate::client::Client::read_replica

use crate::addr::PageHome;
use crate::addr::{GAddr, Generation, PageId, RackId};
use crate::constants::{PAGE_ID_LEASE, REPLICA_HOMES};
use crate::rrpc::Bytes;
use serde::{Deserialize, Serialize};

/// Bytes of a directory's head.
pub const HEAD_BYTES: u64 = 64;
/// Offset in the head of the time until which replicas are readable.
pub const HEAD_UNTIL: u64 = 0;
/// Offset in the head of the number of entries, log2.
pub const HEAD_BITS: u64 = 8;
pub const ENTRY_BYTES: u64 = 32;
/// Offset in an entry of its [`EntryWord`].
pub const ENTRY_WORD: u64 = 0;
/// Offset in an entry of its page.
pub const ENTRY_PAGE: u64 = 8;
/// Offset in an entry of the replica's address.
pub const ENTRY_DATA: u64 = 16;

/// How far apart the pages of two leased ranges of ids start in a directory.
const RANGE_STRIDE: u64 = 613;

/// Offset of a page's entry in a directory of `1 << bits` entries. A page has one place: pages of
/// one allocation never want the same.
#[inline]
pub fn entry_offset(page: PageId, bits: u32) -> u64 {
    let place = page.0.wrapping_add((page.0 / PAGE_ID_LEASE).wrapping_mul(RANGE_STRIDE));
    HEAD_BYTES + ENTRY_BYTES * (place & ((1 << bits) - 1))
}

/// Which word behind a rack's page table names the directory of a home's replicas.
#[inline]
pub fn home_index(home: RackId) -> u64 {
    (u64::from(home.number()) + 8 * u64::from(home.shard())) % REPLICA_HOMES
}

/// The word of an entry: how many have begun to write to the replica, how many have ended, and
/// which of the entry's replicas it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryWord(pub u64);

impl EntryWord {
    /// What a writer adds when it begins.
    pub const BEGIN: u64 = 1;
    pub const UNDO: u64 = u64::MAX;
    /// What a writer adds when it has ended.
    pub const END: u64 = 1 << Self::COUNT_BITS;
    const COUNT_BITS: u32 = 24;
    const COUNT_MASK: u64 = Self::END - 1;

    /// A new replica, closed by its keeper.
    pub fn placed(placement: u16) -> EntryWord {
        EntryWord(u64::from(placement) << (2 * Self::COUNT_BITS) | Self::BEGIN)
    }

    /// Which of the entry's replicas it is; 0: none yet.
    pub fn placement(self) -> u16 {
        (self.0 >> (2 * Self::COUNT_BITS)) as u16
    }

    pub fn begun(self) -> u64 {
        self.0 & Self::COUNT_MASK
    }

    /// How many have begun and not ended.
    pub fn in_flight(self) -> u64 {
        let ended = self.0 >> Self::COUNT_BITS & Self::COUNT_MASK;
        self.begun().wrapping_sub(ended) & Self::COUNT_MASK
    }

    /// Whether it may be read, or written by a client that has found it so with
    /// [`EntryWord::BEGIN`].
    #[inline]
    pub fn is_open(self) -> bool {
        self.in_flight() == 0 && self.placement() != 0
    }

    /// Whether the counts have come so far that the replica should be placed anew.
    pub fn is_worn(self) -> bool {
        self.begun() > Self::COUNT_MASK / 2
    }
}

/// Where a replica is, for the writers of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaLocation {
    pub rack: RackId,
    /// Its entry's word.
    pub word: GAddr,
    pub data: GAddr,
    /// Which of the entry's replicas it is.
    pub placement: u16,
}

/// What a keeper tells a home.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poll {
    /// Counts from 1; at 1 the keeper has no replica. A keeper that says a number has done what the
    /// answer to the previous one told.
    pub number: u64,
    pub rack: RackId,
    /// For how many more replicas it has memory.
    pub room: u32,
    /// Replicas that it has closed for good, or could not make.
    pub gone: Vec<PageId>,
    /// Replicas that it has made.
    pub made: Vec<(PageId, ReplicaLocation)>,
}

/// What a home tells a keeper.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The home knows nothing of the keeper's replicas: they end, and it begins anew.
    pub reset: bool,
    /// What is to be done, in this order.
    pub orders: Vec<ReplicaOrder>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReplicaOrder {
    /// Fill a replica, and say where it is; it stays closed.
    Fetch(PageHome),
    /// It may not be read until it is opened.
    Close(PageId),
    /// Write into a closed replica.
    Update {
        page: PageId,
        offset: u64,
        data: Bytes,
    },
    /// It equals the page: it may be read.
    Open(PageId),
    Drop(PageId),
}

impl ReplicaOrder {
    pub fn page(&self) -> PageId {
        match self {
            ReplicaOrder::Fetch(home) => home.page,
            ReplicaOrder::Close(page) | ReplicaOrder::Open(page) | ReplicaOrder::Drop(page) => {
                *page
            }
            ReplicaOrder::Update { page, .. } => *page,
        }
    }

    /// Bytes of it in a message, at most.
    pub fn wire_bytes(&self) -> usize {
        let data = match self {
            ReplicaOrder::Update { data, .. } => data.0.len(),
            // The answer, that it is made, is longer.
            ReplicaOrder::Fetch(_) => 48,
            _ => 0,
        };
        48 + data
    }
}

/// What a page's home says to clients that want to write to the page and its replicas themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharers {
    /// The page's key for which this holds: as long as it is valid, there are no other replicas.
    pub key: Generation,
    /// Its replicas. None: the home has to write.
    pub places: Vec<ReplicaLocation>,
}

/// What a daemon has done about replicas since it started, as home and as their rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaCounts {
    /// Frames of this rack in which replicas of other racks' pages and their directories are: a
    /// cache, which gives way to allocations.
    pub frames: u64,
    /// Pages of this rack that have replicas now.
    pub shared_pages: u64,
    /// Replicas of pages of this rack that were made.
    pub made: u64,
    /// Replicas of pages of this rack that were dropped, or lost with their keeper.
    pub dropped: u64,
    /// Writes to pages of this rack that were sent to replicas.
    pub updates: u64,
    /// Requests that waited until replicas were closed.
    pub waited: u64,
    /// Of these, those that waited for a lease to run out.
    pub leases_waited: u64,
}
