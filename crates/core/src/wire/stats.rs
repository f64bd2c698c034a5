//! What a daemon counts, as it reports it to any process that asks.

use super::counts::{AnswerCounts, RequestCounts};
use crate::addr::RackId;
use crate::coherence::Coherence;
use crate::counts::{FabricCounts, MoveCounts, ProxyCounts};
use crate::replica::ReplicaCounts;
use serde::{Deserialize, Serialize};

/// What a daemon found when it compared the copies of its metadata, since its process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataChecks {
    /// Rounds over all of it.
    pub rounds: u64,
    /// Words that were wrong in one place and are right again.
    pub repaired: u64,
    /// Words that are lost. What they were about is not handed out any more.
    pub damaged: u64,
}

/// Counters of a daemon, bytes and counts since its region was made unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStats {
    pub rack: RackId,
    /// What keeps the caches of the hosts that share its memory in agreement.
    pub coherence: Coherence,
    /// Attach count of the region.
    pub epoch: u64,
    pub page_bytes: u64,
    pub frames: u64,
    pub frames_free: u64,
    /// Of these, the ones that the host can give memory to now.
    pub frames_backable: u64,
    /// Frames that wait for a stopped reader or writer.
    pub frames_quarantined: u64,
    pub frames_slab: u64,
    /// Bytes of live allocations (slab objects by their class, whole pages).
    pub allocated_bytes: u64,
    pub allocations: u64,
    /// What one client may have of the rack's memory, bytes; 0 for no limit.
    pub client_quota_bytes: u64,
    /// The most that one client has of what counts for that limit, bytes.
    pub client_held_bytes_max: u64,
    /// Backed bytes of the metadata sections.
    pub metadata_bytes: u64,
    /// What comparing the metadata's copies has found.
    pub metadata: MetadataChecks,
    pub slots_used: u64,
    /// Sessions of remote clients known.
    pub remote_sessions: u64,
    /// Pages that came from other racks since this process started.
    pub pages_came: u64,
    /// Pages that went to other racks since this process started.
    pub pages_went: u64,
    /// Pages that are shut or awaited now.
    pub pages_moving: u64,
    /// What was decided about moving pages, and done, since this process started.
    pub moves: MoveCounts,
    /// What was done about replicas of this rack's pages since this process started.
    pub replicas: ReplicaCounts,
    pub locks_held: u64,
    /// Requests that wait for a lock.
    pub lock_waiters: u64,
    /// Requests served since this process started.
    pub requests: u64,
    /// Sessions reaped since this process started.
    pub sessions_reaped: u64,
    /// Sessions made since this process started.
    pub sessions_made: u64,
    /// Requests by kind since this process started.
    pub requests_by_kind: RequestCounts,
    /// Answers since this process started.
    pub answers: AnswerCounts,
    /// What the fabric endpoint served since this process started.
    pub fabric: FabricCounts,
    /// What was done for clients that have no fabric endpoint.
    pub proxy: ProxyCounts,
}
