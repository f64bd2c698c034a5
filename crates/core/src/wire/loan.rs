//! What a handle with a slot asks of a daemon about the objects that it hands out itself, and about
//! frees that wait in its slot. Each may be repeated: the slot says what is lent.

use crate::addr::{FrameIndex, GAddr, Generation};
use crate::layout::AllocationKind;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoanRequest {
    /// Objects for allocations of `bytes` bytes.
    Lend {
        bytes: u64,
        kind: AllocationKind,
        /// How many, as far as groups allow.
        objects: u32,
        /// Loans that end, because others are to take their place; at most `LOANS_RETURNED_MAX`.
        ended: Vec<u16>,
    },
    /// Ends loans: what is free there is the daemon's again. At most `LOANS_RETURNED_MAX`.
    End { loans: Vec<u16> },
    /// Frees what waits in the slot's queue.
    EmptyQueue,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoanReply {
    /// To `Lend`: at most `LEND_GROUPS_MAX`; none if there is no room, or nothing is lent here now.
    Lent(Vec<LentGroup>),
    Ended,
    Emptied {
        /// Whether frees may wait there.
        is_open: bool,
        /// The first of those that name no allocation: its address, and the bytes of its size.
        bad: Option<(GAddr, u64)>,
    },
}

/// A group of objects that is lent, and where its page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentGroup {
    /// The number of the loan in the slot, which says which of them are free.
    pub loan: u16,
    pub addr: GAddr,
    pub frame: FrameIndex,
    pub generation: Generation,
}
