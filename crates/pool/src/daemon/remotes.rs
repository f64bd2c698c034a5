//! Clients that come over the fabric: which connection belongs to which session record. A closed
//! connection keeps its record for a while, because the client may come back and ask for the
//! answer that it missed; after that what the session owned is freed.

use rackpool_core::SessionId;
use rackpool_core::constants::SLOTS_MAX;
use rackpool_core::daemon::Daemon;
use rackpool_core::error::{Error, Result};
use rackpool_core::seam::{Nanos, PeerId};
use std::collections::BTreeMap;

use super::world::RegionWorld;

/// What came of a join.
pub(super) struct Join {
    /// Whether the session was known.
    pub known: bool,
    /// The session's connection until now.
    pub replaced: Option<PeerId>,
}

/// All clients of the fabric.
pub(super) struct Remotes {
    /// How long a session outlives its connection.
    grace_ns: Nanos,
    record_of: BTreeMap<PeerId, u32>,
    peer_of: BTreeMap<u32, PeerId>,
    closed: BTreeMap<u32, Nanos>,
}

impl Remotes {
    /// Nobody yet; sessions outlive their connections for `grace_ms`.
    pub(super) fn new(grace_ms: u64) -> Self {
        Self {
            grace_ns: grace_ms.saturating_mul(1_000_000),
            record_of: BTreeMap::new(),
            peer_of: BTreeMap::new(),
            closed: BTreeMap::new(),
        }
    }

    /// After an attach: the records that the region knows get their grace.
    pub(super) fn recover(&mut self, engine: &Daemon, now: Nanos) {
        let remote = engine.sessions().filter(|info| info.record >= SLOTS_MAX);
        let over = now.saturating_add(self.grace_ns);
        self.closed.extend(remote.map(|info| (info.record, over)));
    }

    /// A client says which session and process it is and what it has taken.
    pub(super) fn join(
        &mut self,
        peer: PeerId,
        (session, pid, consumed_seq): (SessionId, u32, u64),
        engine: &mut Daemon,
        world: &mut RegionWorld,
    ) -> Result<Join> {
        if let Some(record) = self.record(peer) {
            let reason = format!("it joined before, as record {record}");
            return Err(Error::Protocol { peer: "client".into(), reason });
        }
        let (record, known) = engine.join_remote(session, pid, world)?;
        engine.note_consumed(record, consumed_seq);
        let replaced = self.peer_of.insert(record, peer);
        if let Some(old) = replaced {
            self.record_of.remove(&old);
        }
        self.record_of.insert(peer, record);
        self.closed.remove(&record);
        Ok(Join { known, replaced })
    }

    /// A client leaves on purpose.
    pub(super) fn leave(&mut self, peer: PeerId, engine: &mut Daemon, world: &mut RegionWorld) {
        if let Some(record) = self.record_of.remove(&peer) {
            self.peer_of.remove(&record);
            engine.end_remote(record, world);
        }
    }

    /// The session record behind a connection.
    pub(super) fn record(&self, peer: PeerId) -> Option<u32> {
        self.record_of.get(&peer).copied()
    }

    /// The connection of a session record.
    pub(super) fn peer(&self, record: u32) -> Option<PeerId> {
        self.peer_of.get(&record).copied()
    }

    /// A connection closed.
    pub(super) fn on_closed(&mut self, peer: PeerId, engine: &mut Daemon, now: Nanos) {
        if let Some(record) = self.record_of.remove(&peer) {
            self.peer_of.remove(&record);
            self.closed.insert(record, now.saturating_add(self.grace_ns));
            engine.leave_remote(record);
        }
    }

    /// Ends sessions whose grace is over.
    pub(super) fn expire(&mut self, now: Nanos, engine: &mut Daemon, world: &mut RegionWorld) {
        let over: Vec<u32> = self
            .closed
            .iter()
            .filter(|(_, deadline)| **deadline <= now)
            .map(|(record, _)| *record)
            .collect();
        for record in over {
            self.closed.remove(&record);
            engine.end_remote(record, world);
        }
    }
}
