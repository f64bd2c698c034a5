//! What racks tell one another about a page that might move. The rack that wants a page knows its
//! own use and room ([`MoveAsk`]), the page's home adds its own and decides, and the page's mover
//! says what came of it ([`MoveReport`]). Times stay with the clock that they were taken from.

use super::{AccessCosts, Decision, HeatEffect, Reason, Use, Victim};
use crate::addr::{PageId, RackId};
use serde::{Deserialize, Serialize};

/// A rack asks for a page of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveAsk {
    pub page: PageId,
    pub asker: RackId,
    /// Use by the rack's clients.
    pub asker_use: Use,
    /// Whether the rack has a free frame.
    pub free_frame: bool,
    /// Its coldest page, if no frame is free. The home adds its own use of it.
    pub victim: Option<Victim>,
    /// What is missing from the rack's full allowance now, bytes.
    pub missing_bytes: u64,
    /// What accesses and copies cost between the two racks, as measured by the asker.
    pub costs: AccessCosts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// What is to be done.
    pub decision: Decision,
    /// What becomes of the heat that led to it. The home has done its part.
    pub effect: HeatEffect,
}

/// What came of it, for the rack that asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// The page that was asked for.
    pub page: PageId,
    /// What was decided; `None` if the home could not be asked.
    pub decided: Option<Decided>,
    /// Bytes that were moved, in both directions together.
    pub moved_bytes: u64,
    /// The page that could not be moved, or not be asked for.
    pub failed: Option<PageId>,
}

impl Reason {
    /// A word for counters.
    pub fn code(self) -> &'static str {
        match self {
            Reason::Off => "off",
            Reason::OwnRack => "own-rack",
            Reason::UnderWay => "under-way",
            Reason::NotHot => "not-hot",
            Reason::NoRoom => "no-room",
            Reason::VictimHot => "victim-hot",
            Reason::HomeHotter => "home-hotter",
            Reason::Even => "even",
            Reason::NoGain => "no-gain",
            Reason::MovedLately => "moved-lately",
            Reason::OverAllowance => "over-allowance",
            Reason::Unmeasured => "unmeasured",
        }
    }
}
