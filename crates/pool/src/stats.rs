//! What the pool tells about itself: where an address lives and why, counters of handles, daemons
//! and the master. Taken when asked, at the edges; nothing is counted inside a warm access to
//! mapped memory.

use crate::clock;
use crate::error::Result;
use crate::handle::Handle;
use crate::paths::PathStats;
use rackpool_core::RackId;
use rackpool_core::client::{CoupledStats, DaemonQuery};
use rackpool_core::tier::TierReport;
use rackpool_core::wire::{DaemonStats, MasterStats};
use serde::Serialize;
use std::fmt;

/// Where an address lives and how a handle reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explain {
    /// The address asked for.
    pub addr: String,
    /// Its page.
    pub page: u64,
    /// Its offset in the page, bytes.
    pub offset_bytes: u64,
    /// The page's home rack.
    pub rack: u16,
    /// Which of that rack's shards, from 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub shard: u16,
    /// How many shards that rack has; 1 if its memory is not divided.
    #[serde(skip_serializing_if = "is_one")]
    pub shards: u16,
    /// Whether that is the handle's own rack.
    pub own_rack: bool,
    /// `mapped`: loads and stores; `tcp` or `verbs`: one-sided operations.
    pub path: String,
    /// Why this path.
    pub why: String,
    /// The frame in the home rack.
    pub frame: u32,
    /// Which of the rack's memories the frame is in, from 0 for the nearest; missing where the rack
    /// has one memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<u8>,
    /// The memory node of that tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u16>,
    /// Whether the page was in the rack's spill file when it was asked for: it is in memory now.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub was_spilled: bool,
    /// The frame's generation.
    pub generation: u64,
    /// Whether the page has replicas in other racks.
    pub replicated: bool,
    /// Whether the handle knew the page before it was asked.
    pub translation_cached: bool,
    /// Latency injected on this path, ns; 0 is none.
    pub emulated_latency_ns: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn is_zero(n: &u16) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn is_one(n: &u16) -> bool {
    *n == 1
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "addr={}", self.addr)?;
        writeln!(f, "page={}", self.page)?;
        writeln!(f, "offset_bytes={}", self.offset_bytes)?;
        writeln!(f, "rack={}", self.rack)?;
        if self.shards > 1 {
            writeln!(f, "shard={}", self.shard)?;
            writeln!(f, "shards={}", self.shards)?;
        }
        writeln!(f, "own_rack={}", self.own_rack)?;
        writeln!(f, "path={}", self.path)?;
        writeln!(f, "why={}", self.why)?;
        writeln!(f, "frame={}", self.frame)?;
        if let (Some(tier), Some(node)) = (self.tier, self.node) {
            writeln!(f, "tier={tier}")?;
            writeln!(f, "node={node}")?;
        }
        if self.was_spilled {
            writeln!(f, "was_spilled=true")?;
        }
        writeln!(f, "generation={}", self.generation)?;
        writeln!(f, "replicated={}", self.replicated)?;
        writeln!(f, "translation_cached={}", self.translation_cached)?;
        write!(f, "emulated_latency_ns={}", self.emulated_latency_ns)
    }
}

/// What one handle sent since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HandleStats {
    /// Its slot at the own rack's daemon.
    pub slot: u32,
    /// Requests through rings.
    pub ring_requests: u64,
    /// Requests to the master.
    pub master_requests: u64,
    /// One-sided operations and messages of the fabric.
    pub fabric_operations: u64,
    /// System calls that sent something on the fabric; with shared connections, of all handles.
    pub fabric_send_calls: u64,
    /// System calls that received something on the fabric; as those that sent.
    pub fabric_receive_calls: u64,
    /// Accesses by the path that they took.
    pub paths: PathStats,
    /// Writes that were buffered and reads that were cached, under locks of ranges.
    pub coupled: CoupledStats,
    /// Reads of other racks' pages that found a replica in the own rack.
    pub replica_reads: u64,
}

/// One rack in [`PoolStats`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RackStats {
    /// The rack, or one shard of it.
    pub rack: RackId,
    /// Whether its daemon is connected to the master.
    pub alive: bool,
    /// How it is reached from other racks.
    pub fabric: String,
    /// Its fabric address.
    pub fabric_addr: String,
    /// Its daemon's counters; missing if it could not be asked.
    pub daemon: Option<DaemonStats>,
    /// The rack's memories, if it has several and could be asked.
    #[serde(skip_serializing_if = "TierReport::is_empty")]
    pub tiers: TierReport,
    /// Why it could not be asked.
    pub error: Option<String>,
}

/// Counters of the whole pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolStats {
    /// The master's.
    pub master: MasterStats,
    /// The racks'.
    pub racks: Vec<RackStats>,
    /// Of the handle that asked.
    pub handle: HandleStats,
}

impl PoolStats {
    /// Bytes of the pages of all racks that were asked.
    pub fn bytes(&self) -> u64 {
        let daemons = self.racks.iter().filter_map(|rack| rack.daemon.as_ref());
        daemons.map(|daemon| daemon.frames * daemon.page_bytes).sum()
    }

    /// The same as text in the exposition format of Prometheus, version 0.0.4.
    pub fn prometheus(&self) -> String {
        crate::metrics::pool_text(self)
    }
}

impl Handle {
    /// Asks every living rack that this handle has a session in, so that one with a restarted
    /// daemon is taken up again before its grace (30 s by default) is over and what it owns goes.
    /// For handles that own memory and may not be used for as long. Blocks for at most
    /// `timeout_ms`.
    ///
    /// # Errors
    /// Of the first rack that did not answer, when all were asked; `timeout` of the master.
    pub fn keep_sessions(&mut self, timeout_ms: u64) -> Result<()> {
        let deadline_ns = clock::deadline_ns(timeout_ms);
        let mut racks = self.links.racks(deadline_ns)?;
        racks.retain(|info| info.alive && self.client.link_of(info.rack).is_some());
        let mut outcome = Ok(());
        for (index, info) in racks.iter().enumerate() {
            // One that cannot be reached takes its own part of the time only.
            let left_ns = deadline_ns.saturating_sub(clock::now_ns());
            let until_ns = clock::now_ns() + left_ns / (racks.len() - index) as u64;
            outcome = outcome.and(self.query(info.rack, &DaemonQuery::ping(), until_ns));
        }
        Ok(outcome?)
    }
}
