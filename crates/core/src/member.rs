//! Racks as members of a pool: what they are to it, how they come and go, and what a daemon tells
//! of its leaving. Shared by clients, daemons and the master; travels in [`crate::wire`].
//!
//! ```text
//!            drain              leave: no page of it is in the directory
//! serving ----------> draining ---------> left        a new region serves again
//!    ^  <-- undrain --   |
//!    |                   | forget: its daemon is dead
//!    +---- forget -------+--------------> lost        a new region serves again
//! ```

use crate::addr::{PageId, RackId};
use serde::{Deserialize, Serialize};

/// How a rack is reached from elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FabricKind {
    /// Its pages are mapped by clients of the same host.
    Shm,
    Tcp,
    Verbs,
}

/// A rack as the master knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RackInfo {
    pub rack: RackId,
    pub region_id: [u64; 2],
    pub epoch: u64,
    /// log2 of the page size.
    pub page_shift: u8,
    pub frame_count: u32,
    /// Frames free at the last heartbeat.
    pub frames_free: u32,
    /// Boot identity of its host: equal strings are one host.
    pub host: String,
    /// Name of its control socket (abstract unix socket of that host).
    pub control: String,
    /// How clients of other racks are to reach it.
    pub fabric: FabricKind,
    /// Address of its fabric endpoint, such as `127.0.0.1:45123`.
    pub fabric_addr: String,
    /// Whether its daemon is connected now.
    pub alive: bool,
}

/// What a rack is to its pool. The master stores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RackState {
    #[default]
    Serving,
    /// It takes none, and its pages go to other racks.
    Draining,
    /// It has no pages and is no member any more; another region may join in its place.
    Left,
    /// An operator has given up its region: its pages are lost, and it may not come back.
    Lost,
}

impl RackState {
    /// The state of a rack with shards in these states: that of the shard with the longest way to
    /// go.
    pub fn of_shards(shards: impl IntoIterator<Item = RackState>) -> RackState {
        let way_to_go = |standing: &RackState| match standing {
            RackState::Left => 0,
            RackState::Lost => 1,
            RackState::Serving => 2,
            RackState::Draining => 3,
        };
        shards.into_iter().max_by_key(way_to_go).unwrap_or_default()
    }

    /// All of them, in order.
    pub const ALL: [RackState; 4] =
        [RackState::Serving, RackState::Draining, RackState::Left, RackState::Lost];

    /// A word for people and counters.
    pub fn name(self) -> &'static str {
        match self {
            RackState::Serving => "serving",
            RackState::Draining => "draining",
            RackState::Left => "left",
            RackState::Lost => "lost",
        }
    }

    /// Whether the pool counts on the rack.
    pub fn is_member(self) -> bool {
        matches!(self, RackState::Serving | RackState::Draining)
    }
}

/// A rack as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The rack, with its present or last region.
    pub info: RackInfo,
    /// What it is to the pool.
    pub standing: RackState,
    /// Pages of the directory that live there.
    pub pages: u64,
    /// Pages of the directory that lived there and are lost.
    pub pages_lost: u64,
}

/// Calls to the master about members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberCall {
    /// All racks that ever joined: for people, since the answer grows with the cluster.
    List,
    /// A rack takes no new memory any more, and its daemon moves its pages away.
    Drain(RackId),
    /// A draining rack serves again.
    Undrain(RackId),
    /// A draining rack leaves; `Denied` while the directory has a page of it.
    Leave(RackId),
    /// A rack's region is given up; `Denied` while its daemon is alive or may come back.
    Forget(RackId),
    /// How full the racks are that serve and are alive.
    Load,
}

/// The master's answers to [`MemberCall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberAnswer {
    /// To `List`, by number.
    List(Vec<Member>),
    /// To all others, and to a daemon's heartbeat: what the rack is now.
    RackState(RackState),
    Load(PoolLoad),
}

/// How full the racks of a pool are that serve and are alive, at their last heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolLoad {
    pub racks: u32,
    /// Share of all their frames that is in use, thousandths.
    pub mean_milli: u32,
    /// The one with the smallest share in use, and that share.
    pub emptiest: Option<(RackId, u32)>,
}

/// What came of a pass over the pages of a rack that is being drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    pub moved: u64,
    pub stayed: u64,
    /// Of these, the first `DRAIN_REASONS_MAX` with their reasons.
    pub reasons: Vec<(PageId, String)>,
}

impl DrainReport {
    /// Why pages stay, each reason once, with the number of pages that stay for it, among those
    /// with a known reason.
    pub fn lines(&self) -> Vec<String> {
        let mut counts: Vec<(&str, u64)> = Vec::new();
        for (_, reason) in &self.reasons {
            match counts.iter_mut().find(|(known, _)| known == reason) {
                Some((_, count)) => *count += 1,
                None => counts.push((reason, 1)),
            }
        }
        let line = |(reason, count): (&str, u64)| match count {
            1 => reason.to_owned(),
            count => format!("{count} pages: {reason}"),
        };
        let mut lines: Vec<String> = counts.into_iter().map(line).collect();
        let more = self.stayed.saturating_sub(self.reasons.len() as u64);
        if more > 0 {
            lines.push(format!("{more} more pages stay"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_many_pages_have_is_said_once() {
        let reason = |page, text: &str| (PageId(page), text.to_owned());
        let reasons = vec![reason(1, "full"), reason(2, "locked"), reason(3, "full")];
        let report = DrainReport { moved: 0, stayed: 5, reasons };
        assert_eq!(report.lines(), ["2 pages: full", "locked", "2 more pages stay"]);
        assert!(DrainReport::default().lines().is_empty());
    }
}
