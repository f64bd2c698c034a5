//! Counters that daemons and the master keep of what they answer and decide, since their process
//! started. Plain numbers that the engines add to where a message is served anyway; they travel in
//! [`wire`](crate::wire), which also has those by kind of message, and never decide anything.

use crate::error::Error;
use crate::policy::Decision;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the master refused, by the word of the error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Refusals(pub BTreeMap<String, u64>);

impl Refusals {
    pub fn note(&mut self, error: &Error) {
        note_refusal(&mut self.0, error);
    }
}

/// What a daemon decided about its pages, and what came of the pages that it asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveCounts {
    /// Pages of which use is known.
    pub heat_pages: u64,
    /// Pages that this rack asked others for.
    pub asked: u64,
    /// Pages moved for this rack: those it asked for and those that made room.
    pub moved: u64,
    pub moved_bytes: u64,
    /// Pages that were to be moved for this rack, and were not.
    pub failed: u64,
    /// Decisions that a page of this rack goes into a free frame elsewhere.
    pub decided_move: u64,
    /// Decisions that a page of this rack and another change places.
    pub decided_swap: u64,
    /// Decisions that another rack gets a copy.
    pub decided_copy: u64,
    /// Decisions that a page stays, by the word of their reason, such as `even`.
    pub left: BTreeMap<String, u64>,
}

impl MoveCounts {
    pub fn note(&mut self, decision: Decision) {
        match decision {
            Decision::Move { .. } => self.decided_move += 1,
            Decision::Swap { .. } => self.decided_swap += 1,
            Decision::Replicate { .. } => self.decided_copy += 1,
            Decision::Leave(reason) => *self.left.entry(reason.code().into()).or_default() += 1,
        }
    }
}

/// What a daemon's fabric endpoint served. Zero where the world does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricCounts {
    pub operations: u64,
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// System calls that sent something.
    pub send_calls: u64,
    /// System calls that received something.
    pub receive_calls: u64,
    /// Connections (queue pairs) of others now.
    pub connections: u64,
}

/// What a daemon did for clients that have no fabric endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyCounts {
    /// Connections to other racks now, which all clients of the rack share.
    pub uplinks: u64,
    /// Channels of clients over them now.
    pub channels: u64,
    /// Work requests posted since the process started.
    pub operations: u64,
}

/// Bounded by the number of error words.
pub(crate) fn note_refusal(refused: &mut BTreeMap<String, u64>, error: &Error) {
    match refused.get_mut(error.code()) {
        Some(count) => *count += 1,
        None => drop(refused.insert(error.code().to_owned(), 1)),
    }
}
