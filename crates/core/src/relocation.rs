//! What a daemon and the worker that moves pages for its rack tell each other: the worker says what
//! came of the last relocation and asks for the next one. Travels in [`crate::wire`].

use crate::addr::{PageId, RackId};
use crate::member::{DrainReport, PoolLoad};
use crate::policy::{AccessCosts, MoveAsk, MoveReport};
use serde::{Deserialize, Serialize};

/// A question for the next relocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelocationQuery {
    /// What accesses and copies cost, as measured last; zeroes before.
    pub costs: AccessCosts,
    /// What came of the relocation before.
    pub last: Option<RelocationReport>,
    /// Whether a cold page may go to a rack with more room, and what that depends on.
    pub balance: Option<BalanceQuery>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalanceQuery {
    pub load: PoolLoad,
    /// What a copy carries, bytes a second, as measured last.
    pub bytes_per_second: u64,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relocation {
    /// A hot page of another rack is to come, if its home lets it go.
    Pull(Box<MoveAsk>),
    /// A cold page is to go to a rack with more room.
    Push { page: PageId, to: RackId },
    /// A page is to go to any other rack: this one is being drained.
    Evacuate(PageId),
    /// All pages of the draining rack were tried; what came of it.
    PassOver(DrainReport),
    /// The draining rack has no page and may leave the pool.
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelocationReport {
    Pulled(MoveReport),
    /// Of a page that was to go.
    Sent(PageId, SendResult),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SendResult {
    Moved,
    /// It was freed, or another process moved it.
    Gone,
    /// It stays for now, for this reason.
    Stays(String),
}
