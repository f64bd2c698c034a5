//! The master's engine: page directory, membership, roots, placement. Pure: it takes calls with
//! the time and the connection they came on, and hands out what a runtime has to store and send.
//!
//! ```text
//! on_call --read--------------------------------> answer from applied state
//!    \---mutating--> Proposal --take_batch--> [log] --apply--> StateWrites --[store]--> committed
//!                                                                                  -> answers
//! ```
//! Owns the replicated [`State`] and, beside it, what only a leader knows: connections, leases,
//! free frames. Called by the runtime in `pool::master` and by a simulated one.
//!
//! Ordering rule: between [`Master::apply`] and [`Master::committed`] nothing else may be called,
//! so no answer shows what is not stored, and none is sent before.
//!
//! Source: Rcmp §4.1, §5.1 (MS: page directory, membership, placement); leases: DESIGN §3.

mod deferred_free;
pub mod directory;
mod members;
mod moves;
mod pick;
pub mod record;
mod state;

pub use record::{StateError, StateWrite, Table};
pub use state::{Applied, Command, Loader, State};

use crate::addr::{PageGeometry, PageId, RackId, SessionId};
use crate::constants::{
    COMMIT_PAGES_MAX, MASTER_BATCH_COMMANDS_MAX, MASTER_BATCH_PAGES_MAX, PAGE_ID_LEASE,
    RACK_NAME_BYTES_MAX, RACKS_MAX, RESOLVE_PAGES_MAX, ROOT_NAME_BYTES_MAX, ROOTS_ANSWER_MAX,
};
use crate::counts::Refusals;
use crate::error::{DeathCause, Error, Result};
use crate::member::RackState;
use crate::placement::{Policy, Recorder};
use crate::seam::{Mutation, Nanos, Probe, Race, Rare};
use crate::wire::CallCounts;
use crate::wire::{
    self, MasterAnswer, MasterCall, MasterReply, MasterRequest, MasterStats, RackInfo, WIRE_VERSION,
};
use deferred_free::FreeWaiters;
use moves::MoveClaims;
use std::collections::BTreeMap;

/// A master that runs looks at leases at least so often in one. Longer intervals are pauses, in
/// which it could hear no daemon.
const TICKS_OF_LEASE_MIN: u64 = 4;

/// A connection of the master, counted by the runtime, never reused in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// What a master is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct MasterConfig {
    pub lease_ms: u64,
    pub policy: Policy,
    /// Seed of the policy's choices.
    pub seed: u64,
}

/// A command and the call to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub conn: ConnId,
    pub id: u64,
    /// What is to be done.
    pub command: Command,
}

/// What the runtime should tell its operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A daemon joined or is back.
    RackJoined { rack: RackId, epoch: u64 },
    /// A daemon came with a new region; what was on the old one is lost.
    PagesLost { rack: RackId, pages: u64 },
    /// A rack stands otherwise to the pool than before.
    RackStands { rack: RackId, standing: RackState },
    /// A daemon is dead or silent. Its pages stay where they are.
    RackDead { rack: RackId, cause: DeathCause },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Stranger,
    /// It said hello in our version.
    Guest,
    Daemon(RackId),
    /// Was the daemon of that rack until another one joined.
    Deposed(RackId),
    Client(SessionId),
}

struct Conn {
    peer: Peer,
    last_heard: Nanos,
}

/// What the leader knows of a rack beside the state.
#[derive(Default)]
struct Liveness {
    conn: Option<ConnId>,
    alive: bool,
    frames_free: u32,
    /// Bytes that allocations were sent there for since the last heartbeat.
    promised_bytes: u64,
    /// Since when it is not alive, in time that this master was awake. 0: since its start.
    dead_at: Nanos,
}

/// The engine. `P` answers what a test asks of it; the real world's is `()`.
pub struct Master<P: Probe = ()> {
    probe: P,
    state: State,
    config: MasterConfig,
    /// How long this master has been running and could hear daemons; what it was stopped for does
    /// not count.
    awake_ns: Nanos,
    /// When it was last seen running.
    ticked: Nanos,
    placements: Recorder,
    /// Another leader's address, if this is not the leader.
    leader_elsewhere: Option<String>,
    conns: BTreeMap<ConnId, Conn>,
    racks: BTreeMap<RackId, Liveness>,
    /// Daemons with a proposed join.
    joining: BTreeMap<RackId, (ConnId, RackInfo)>,
    /// Daemons with a new region that wait until the rack's own had a lease's time to come back.
    deferred: Vec<(ConnId, u64, RackInfo)>,
    /// Pages that are moved now.
    moves: MoveClaims,
    /// Daemons that wait for what others free.
    parked: FreeWaiters,
    proposals: Vec<Proposal>,
    proposed_pages: usize,
    /// Whether the log takes nothing for now.
    storage_full: bool,
    /// Answers of the applied batch, to be sent once it is stored.
    uncommitted: Option<Vec<(ConnId, MasterReply)>>,
    notices: Vec<Notice>,
    requests: u64,
    calls: CallCounts,
    refused: Refusals,
}

impl Master {
    /// As [`Master::with_probe`], in the real world.
    pub fn new(state: State, config: MasterConfig, now: Nanos) -> Self {
        Self::with_probe(state, config, now, ())
    }
}

impl<P: Probe> Master<P> {
    /// A leader with this state. Racks count as dead until their daemons join again. A dead rack
    /// is given to a daemon with another region, which loses its pages, only after a lease.
    pub fn with_probe(state: State, config: MasterConfig, now: Nanos, probe: P) -> Self {
        let racks = state.racks().map(|info| (info.rack, Liveness::default())).collect();
        Self {
            probe,
            state,
            config,
            awake_ns: 0,
            ticked: now,
            placements: Recorder::new(config.policy.choice, config.seed),
            leader_elsewhere: None,
            conns: BTreeMap::new(),
            racks,
            joining: BTreeMap::new(),
            deferred: Vec::new(),
            moves: MoveClaims::default(),
            parked: FreeWaiters::default(),
            proposals: Vec::new(),
            proposed_pages: 0,
            storage_full: false,
            uncommitted: None,
            notices: Vec::new(),
            requests: 0,
            calls: CallCounts::default(),
            refused: Refusals::default(),
        }
    }

    /// Every call but `Hello` is answered `NotLeader` from now on; what was proposed as well.
    pub fn step_down(&mut self, leader: String, out: &mut Vec<(ConnId, MasterReply)>) {
        self.assert_committed();
        self.leader_elsewhere = Some(leader.clone());
        let deferred = std::mem::take(&mut self.deferred).into_iter().map(|(c, id, _)| (c, id));
        let proposed = self.take_batch().into_iter().map(|p| (p.conn, p.id));
        let parked = self.parked.take_all();
        for (conn, id) in deferred.chain(proposed).chain(parked).collect::<Vec<_>>() {
            let answer = Err(Error::NotLeader { leader: leader.clone() });
            out.push((conn, self.reply(id, answer)));
        }
        self.joining.clear();
        self.moves.clear();
    }

    /// As [`Master::on_call`], for an encoded call.
    ///
    /// # Errors
    /// `protocol` for what is none.
    pub fn on_message(
        &mut self,
        now: Nanos,
        conn: ConnId,
        message: &[u8],
        out: &mut Vec<(ConnId, MasterReply)>,
    ) -> Result<()> {
        let request = wire::decode(message, "a connection")?;
        self.on_call(now, conn, request, out);
        Ok(())
    }

    /// Takes a call. Reads are answered into `out` at once, from what is committed; mutating
    /// calls wait for the next batch.
    pub fn on_call(
        &mut self,
        now: Nanos,
        conn: ConnId,
        request: MasterRequest,
        out: &mut Vec<(ConnId, MasterReply)>,
    ) {
        self.assert_committed();
        let MasterRequest { id, call } = request;
        self.calls.note(&call);
        let entry = self.conns.entry(conn);
        let known = entry.or_insert(Conn { peer: Peer::Stranger, last_heard: now });
        known.last_heard = now;
        let peer = known.peer;
        self.revive(conn, peer);
        match self.serve(conn, peer, id, call) {
            Ok(Some(answer)) => out.push((conn, self.reply(id, Ok(answer)))),
            Ok(None) => {}
            Err(error) => out.push((conn, self.reply(id, Err(error)))),
        }
    }

    /// Calls by kind since this engine was made.
    pub fn calls(&self) -> CallCounts {
        self.calls
    }

    /// A connection is gone: a client left, a daemon is dead at once.
    pub fn on_closed(&mut self, conn: ConnId) {
        self.assert_committed();
        self.deferred.retain(|(waiting, ..)| *waiting != conn);
        self.joining.retain(|_, (joining, _)| *joining != conn);
        self.moves.on_closed(conn);
        self.parked.on_closed(conn);
        let Some(Conn { peer: Peer::Daemon(rack), .. }) = self.conns.remove(&conn) else { return };
        let Some(known) = self.racks.get_mut(&rack).filter(|r| r.conn == Some(conn)) else {
            return;
        };
        known.conn = None;
        if std::mem::take(&mut known.alive) {
            known.dead_at = self.awake_ns;
            self.notices.push(Notice::RackDead { rack, cause: DeathCause::Closed });
        }
    }

    /// Looks at leases: a silent daemon is dead, its pages stay. To be called after everything that
    /// had arrived by `now` was handed in, so that a pause of the master expires no lease.
    pub fn tick(&mut self, now: Nanos, out: &mut Vec<(ConnId, MasterReply)>) {
        self.assert_committed();
        let lease = self.lease_ns();
        self.awake_ns += now.saturating_sub(self.ticked).min(lease / TICKS_OF_LEASE_MIN);
        self.ticked = now;
        self.moves.expire(self.awake_ns, lease);
        for (&rack, known) in &mut self.racks {
            let Some(conn) = known.conn.filter(|_| known.alive) else { continue };
            let heard = self.conns.get(&conn).map_or(0, |c| c.last_heard);
            let silent = now.saturating_sub(heard) > lease;
            if silent && !self.probe.mutated(Mutation::NeverExpireLeases) {
                known.alive = false;
                known.dead_at = self.awake_ns;
                self.notices.push(Notice::RackDead { rack, cause: DeathCause::Silent });
            }
        }
        for (conn, id, info) in std::mem::take(&mut self.deferred) {
            if self.may_return(info.rack) {
                self.deferred.push((conn, id, info));
                continue;
            }
            if let Err(error) = self.join_daemon(conn, id, info) {
                out.push((conn, self.reply(id, Err(error))));
            }
        }
    }

    /// Whether no further call should be handed in before the batch is committed.
    pub fn batch_is_full(&self) -> bool {
        let forced = !self.proposals.is_empty() && self.probe.rare(Rare::MasterBatchFull);
        forced
            || self.proposals.len() >= MASTER_BATCH_COMMANDS_MAX / 2
            || self.proposed_pages >= MASTER_BATCH_PAGES_MAX / 2
    }

    /// Whether the log has no room: changes are refused until it has, reads are answered.
    pub fn set_storage_full(&mut self, is_full: bool) {
        self.storage_full = is_full;
    }

    /// The commands since the last batch, in log order.
    pub fn take_batch(&mut self) -> Vec<Proposal> {
        self.proposed_pages = 0;
        std::mem::take(&mut self.proposals)
    }

    /// Applies commands that the log has accepted; what has to be stored in one transaction.
    /// Then [`Master::committed`] has to be called before anything else.
    pub fn apply(&mut self, batch: Vec<Proposal>) -> Vec<StateWrite> {
        self.assert_committed();
        let mut writes = Vec::new();
        let mut replies = Vec::with_capacity(batch.len());
        for Proposal { conn, id, command } in batch {
            let joined = match &command {
                Command::JoinDaemon(info) => Some(info.clone()),
                _ => None,
            };
            let asked = match &command {
                Command::LeasePageIds { count } => *count,
                _ => 0,
            };
            let moved_from = match &command {
                Command::MovePage { from, .. } => Some(*from),
                _ => None,
            };
            let command = self.compared(command);
            let applied = self.state.apply(command, &mut writes);
            if let (Some(from), Ok(_)) = (moved_from, &applied) {
                self.moves.on_moved(&from);
            }
            self.note_standing(applied.as_ref().ok());
            if let Some(info) = joined {
                self.after_join(conn, &info, applied.as_ref().ok());
            }
            let answer = applied.map(|applied| self.answer(applied, asked));
            replies.push((conn, self.reply(id, answer)));
        }
        if !replies.is_empty() {
            writes.push(self.state.pool_write());
        }
        self.uncommitted = Some(replies);
        if self.probe.mutated(Mutation::AnswerUnstored) {
            writes.clear();
        }
        writes
    }

    /// A move as it is to be applied: it compares the old home.
    fn compared(&self, command: Command) -> Command {
        match command {
            Command::MovePage { rack, region_id, to, .. }
                if self.probe.mutated(Mutation::CommitUncompared) =>
            {
                Command::CommitPages { rack, region_id, homes: vec![to] }
            }
            command => command,
        }
    }

    /// The writes of [`Master::apply`] are stored: its answers may go out.
    pub fn committed(&mut self, out: &mut Vec<(ConnId, MasterReply)>) {
        let replies = self.uncommitted.take();
        out.extend(replies.expect("committed() follows apply()"));
        self.serve_parked(out);
    }

    /// Ends a turn of the runtime: applies its commands, has them stored in one transaction, and
    /// only then answers them. Whether there were any.
    ///
    /// # Errors
    /// That of `store`: the batch may be stored or not, and this master may do nothing more.
    pub async fn commit<E>(
        &mut self,
        store: impl AsyncFnOnce(Vec<StateWrite>) -> Result<(), E>,
        out: &mut Vec<(ConnId, MasterReply)>,
    ) -> Result<bool, E> {
        let batch = self.take_batch();
        if batch.is_empty() {
            return Ok(false);
        }
        let writes = self.apply(batch);
        store(writes).await?;
        self.committed(out);
        Ok(true)
    }

    /// What happened since the last call, for the operator.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// Term and index for an answer that the runtime makes by itself.
    pub fn reply(&mut self, id: u64, answer: Result<MasterAnswer>) -> MasterReply {
        self.requests += 1;
        if let Err(error) = &answer {
            self.refused.note(error);
        }
        MasterReply { id, term: self.state.term(), index: self.state.index(), answer }
    }

    /// Counts a connection that the runtime refused before anything was asked on it.
    pub fn note_refused(&mut self, error: Error) {
        self.refused.note(&error);
    }

    fn assert_committed(&self) {
        assert!(self.uncommitted.is_none(), "a batch is applied and not yet stored");
    }

    fn lease_ns(&self) -> Nanos {
        self.config.lease_ms.saturating_mul(1_000_000)
    }

    /// Whether a rack's daemon may still come back with its region: dead for less than a lease.
    fn may_return(&self, rack: RackId) -> bool {
        if self.probe.mutated(Mutation::GrantWithoutLeaseWait) {
            return false;
        }
        let dead = |known: &&Liveness| !known.alive;
        self.racks
            .get(&rack)
            .filter(dead)
            .is_some_and(|known| self.awake_ns.saturating_sub(known.dead_at) <= self.lease_ns())
    }

    /// Whatever a rack's daemon says shows that it is alive.
    fn revive(&mut self, conn: ConnId, peer: Peer) {
        let Peer::Daemon(rack) = peer else { return };
        let Some(known) = self.racks.get_mut(&rack) else { return };
        if known.conn == Some(conn) && !std::mem::replace(&mut known.alive, true) {
            let epoch = self.state.rack(rack).map_or(0, |r| r.epoch);
            self.notices.push(Notice::RackJoined { rack, epoch });
        }
    }

    fn roots_after(&self, name: &str) -> MasterAnswer {
        MasterAnswer::Roots(self.state.roots_after(name).take(ROOTS_ANSWER_MAX).collect())
    }

    /// `Ok(None)` if the answer comes with the batch.
    fn serve(
        &mut self,
        conn: ConnId,
        peer: Peer,
        id: u64,
        call: MasterCall,
    ) -> Result<Option<MasterAnswer>> {
        if let MasterCall::Hello { version } = call {
            return self.hello(conn, version).map(Some);
        }
        if peer == Peer::Stranger {
            return Err(broken("the first call of a connection is Hello"));
        }
        if let Some(leader) = &self.leader_elsewhere {
            return Err(Error::NotLeader { leader: leader.clone() });
        }
        let command = match call {
            MasterCall::Hello { .. } => unreachable!("answered above"),
            MasterCall::JoinDaemon(info) => {
                return self.join_daemon(conn, id, info).map(|()| None);
            }
            MasterCall::JoinClient { session, rack } => {
                return self.join_client(conn, peer, session, rack).map(Some);
            }
            MasterCall::Heartbeat { frames_free, accesses } => {
                return self.heartbeat(peer, frames_free, accesses).map(Some);
            }
            MasterCall::Resolve { page, count } => return self.resolve(page, count).map(Some),
            MasterCall::BeginMove { page, to } => {
                return self.begin_move(conn, page, to).map(Some);
            }
            MasterCall::MovePage { from, to } => {
                let (rack, region_id) = self.daemon(peer)?;
                Command::MovePage { rack, region_id, from, to }
            }
            MasterCall::AdoptPage { from, to } => {
                let (rack, region_id) = self.daemon(peer)?;
                Command::AdoptPage { rack, region_id, from, to }
            }
            MasterCall::Racks => return Ok(Some(MasterAnswer::Racks(self.racks()))),
            MasterCall::Rack { rack } => return self.rack(rack).map(Some),
            MasterCall::PickRack { own, bytes, tried } => {
                return self.pick(own, bytes, &tried).map(Some);
            }
            MasterCall::GetRoot { name } => {
                check_name(&name)?;
                return Ok(Some(MasterAnswer::Root(self.state.root(&name))));
            }
            MasterCall::Roots { after } => return Ok(Some(self.roots_after(&after))),
            MasterCall::Placements(from) => return Ok(Some(self.placements_from(from))),
            MasterCall::Stats => return Ok(Some(MasterAnswer::Stats(Box::new(self.stats())))),
            MasterCall::Member(call) => return self.on_member(conn, id, call),
            MasterCall::LeasePageIds { count } => lease_command(peer, count)?,
            MasterCall::CommitPages { homes } => {
                check_count(homes.len(), COMMIT_PAGES_MAX)?;
                let (rack, region_id) = self.daemon(peer)?;
                Command::CommitPages { rack, region_id, homes }
            }
            MasterCall::RemovePages { rack, pages } => {
                check_count(pages.len(), COMMIT_PAGES_MAX)?;
                let region_id = self.own_region(peer, rack)?;
                if self.probe.mutated(Mutation::KeepFreedEntries) {
                    return Ok(Some(MasterAnswer::Done));
                }
                Command::RemovePages { rack, region_id, pages }
            }
            MasterCall::SetRoot { name, expected, addr } => {
                check_name(&name)?;
                Command::SetRoot { name, expected, addr }
            }
            call => return self.serve_orphans(conn, peer, id, call),
        };
        self.propose(conn, id, command).map(|()| None)
    }

    /// The region of a daemon that names its own rack.
    fn own_region(&self, peer: Peer, rack: RackId) -> Result<[u64; 2]> {
        match self.daemon(peer)? {
            (own, region_id) if own == rack => Ok(region_id),
            _ => Err(broken("a daemon frees pages of its own rack only")),
        }
    }

    fn propose(&mut self, conn: ConnId, id: u64, command: Command) -> Result<()> {
        if self.storage_full {
            return Err(Error::StorageFull);
        }
        let pages = self.proposed_pages + command.pages();
        let join = matches!(command, Command::JoinDaemon(_));
        let forced = !join && self.probe.rare(Rare::MasterBusy);
        if self.proposals.len() >= MASTER_BATCH_COMMANDS_MAX || forced {
            let limit = MASTER_BATCH_COMMANDS_MAX as u64;
            return Err(Error::Busy { what: "master's batch (commands)".into(), limit });
        }
        if pages > MASTER_BATCH_PAGES_MAX {
            let limit = MASTER_BATCH_PAGES_MAX as u64;
            return Err(Error::Busy { what: "master's batch (pages)".into(), limit });
        }
        self.proposed_pages = pages;
        self.proposals.push(Proposal { conn, id, command });
        Ok(())
    }

    fn hello(&mut self, conn: ConnId, version: u32) -> Result<MasterAnswer> {
        if version != WIRE_VERSION {
            let peer = "the caller".into();
            return Err(Error::Version { peer, found: version, supported: WIRE_VERSION });
        }
        let known = self.conns.get_mut(&conn).expect("on_call made it");
        if known.peer == Peer::Stranger {
            known.peer = Peer::Guest;
        }
        Ok(self.welcome())
    }

    fn welcome(&self) -> MasterAnswer {
        let (pool_id, lease_ms) = (self.state.pool_id(), self.config.lease_ms);
        MasterAnswer::Welcome { pool_id, lease_ms, order: self.config.policy.order }
    }

    /// Admits a daemon's join to the log, defers it, or refuses it.
    fn join_daemon(&mut self, conn: ConnId, id: u64, info: RackInfo) -> Result<()> {
        check_rack_info(&info)?;
        let rack = info.rack;
        match self.conns.get(&conn).map(|c| c.peer) {
            Some(Peer::Daemon(own) | Peer::Deposed(own)) if own != rack => {
                return Err(broken("a connection serves one rack only"));
            }
            Some(Peer::Client(_)) => return Err(broken("a client's connection joins as daemon")),
            _ => {}
        }
        self.check_shards(rack)?;
        self.state.admit_region(&info)?;
        self.check_rivals(conn, &info)?;
        let other_region = self.state.region_id(rack).is_some_and(|id| id != info.region_id);
        if other_region && self.is_member(rack) && self.may_return(rack) {
            if self.deferred.len() >= usize::from(RACKS_MAX) {
                let limit = u64::from(RACKS_MAX);
                return Err(Error::Busy { what: "joins of new regions".into(), limit });
            }
            self.probe.met(Race::JoinDeferred);
            self.deferred.push((conn, id, info));
            return Ok(());
        }
        self.propose(conn, id, Command::JoinDaemon(info.clone()))?;
        self.joining.insert(rack, (conn, info));
        Ok(())
    }

    /// Refuses a second daemon while the rack's own is alive or about to join.
    fn check_rivals(&self, conn: ConnId, info: &RackInfo) -> Result<()> {
        let rack = info.rack;
        let denied = |control: &str| Error::Denied {
            reason: format!(
                "rack {rack} has a live daemon ({control}): stop it, or wait {} ms after its \
                 death, or take another rack number",
                self.config.lease_ms
            ),
        };
        if let Some((other, joining)) = self.joining.get(&rack)
            && *other != conn
            && !same_daemon(joining, info)
        {
            return Err(denied(&joining.control));
        }
        let is_owned = |known: &&Liveness| known.alive && self.is_member(rack);
        let Some(known) = self.racks.get(&rack).filter(is_owned) else { return Ok(()) };
        if known.conn == Some(conn) {
            return Ok(());
        }
        match self.state.rack(rack) {
            Some(owner) if !same_daemon(&owner, info) => Err(denied(&owner.control)),
            _ => Ok(()),
        }
    }

    /// A join was applied: the connection now is the rack's daemon.
    fn after_join(&mut self, conn: ConnId, info: &RackInfo, applied: Option<&Applied>) {
        let rack = info.rack;
        if self.joining.get(&rack).is_some_and(|(joining, _)| *joining == conn) {
            self.joining.remove(&rack);
        }
        let Some(Applied::Joined { pages_newly_lost, .. }) = applied else { return };
        if *pages_newly_lost > 0 {
            self.notices.push(Notice::PagesLost { rack, pages: *pages_newly_lost });
        }
        let known = self.racks.entry(rack).or_default();
        if let Some(old) = known.conn.take().filter(|old| *old != conn)
            && let Some(old) = self.conns.get_mut(&old)
        {
            self.probe.met(Race::DaemonDeposed);
            old.peer = Peer::Deposed(rack);
        }
        known.frames_free = info.frames_free.min(info.frame_count);
        known.promised_bytes = 0;
        let Some(connection) = self.conns.get_mut(&conn) else {
            known.alive = false;
            known.dead_at = self.awake_ns;
            return;
        };
        connection.peer = Peer::Daemon(rack);
        known.conn = Some(conn);
        known.alive = true;
        self.notices.push(Notice::RackJoined { rack, epoch: info.epoch });
    }

    fn join_client(
        &mut self,
        conn: ConnId,
        peer: Peer,
        session: SessionId,
        rack: RackId,
    ) -> Result<MasterAnswer> {
        if matches!(peer, Peer::Daemon(_) | Peer::Deposed(_)) {
            return Err(broken("a daemon's connection joins as client"));
        }
        if !rack.is_valid() {
            return Err(Error::NoSuchRack { rack });
        }
        self.conns.get_mut(&conn).expect("on_call made it").peer = Peer::Client(session);
        Ok(self.welcome())
    }

    fn heartbeat(&mut self, peer: Peer, frames_free: u32, accesses: u64) -> Result<MasterAnswer> {
        match peer {
            Peer::Daemon(rack) => {
                let known = self.racks.get_mut(&rack).expect("its daemon joined");
                known.frames_free = frames_free;
                known.promised_bytes = 0;
                self.placements.note_accesses(rack, accesses);
                return Ok(members::standing(self.state.standing(rack)));
            }
            Peer::Deposed(rack) => return Err(deposed(rack)),
            Peer::Stranger | Peer::Guest | Peer::Client(_) => {}
        }
        Ok(MasterAnswer::Done)
    }

    /// The rack and region for which a connection may speak.
    fn daemon(&self, peer: Peer) -> Result<(RackId, [u64; 2])> {
        match peer {
            Peer::Daemon(rack) => {
                Ok((rack, self.state.region_id(rack).expect("its daemon joined")))
            }
            Peer::Deposed(rack) => Err(deposed(rack)),
            _ => Err(broken("only a daemon that joined may change the page directory")),
        }
    }

    fn resolve(&self, page: PageId, count: u32) -> Result<MasterAnswer> {
        check_count(count as usize, RESOLVE_PAGES_MAX)?;
        let Some(end) = page.0.checked_add(u64::from(count)) else {
            return Err(broken("pages past the end of the address space"));
        };
        let pages = (page.0..end).map(|page| self.state.resolve(PageId(page)));
        Ok(MasterAnswer::Homes(pages.collect()))
    }

    pub fn stats(&self) -> MasterStats {
        let clients = self.conns.values().filter(|c| matches!(c.peer, Peer::Client(_)));
        MasterStats {
            pages: self.state.pages(),
            pages_lost: self.state.pages_lost(),
            roots: self.state.roots(),
            daemons: self.racks.values().filter(|rack| rack.alive).count() as u64,
            clients: clients.count() as u64,
            requests: self.requests,
            index: self.state.index(),
            calls_by_kind: self.calls,
            refused: self.refused.clone(),
            placement: self.config.policy.to_string(),
            standings: self.state.standings(),
            storage_full: self.storage_full,
        }
    }

    fn answer(&self, applied: Applied, page_ids: u64) -> MasterAnswer {
        match applied {
            Applied::Done => MasterAnswer::Done,
            Applied::Joined { pages_lost, .. } => {
                let (pool_id, lease_ms) = (self.state.pool_id(), self.config.lease_ms);
                MasterAnswer::Joined { pool_id, lease_ms, pages_lost }
            }
            Applied::PageIds(first) => MasterAnswer::PageIds { first, count: page_ids },
            Applied::Root(addr) => MasterAnswer::Root(addr),
            Applied::Home(resolved) => MasterAnswer::Homes(vec![resolved]),
            Applied::RackState { standing, .. } => members::standing(standing),
        }
    }
}

/// Whether two infos speak of one daemon process or its successor on the same region.
fn same_daemon(a: &RackInfo, b: &RackInfo) -> bool {
    a.region_id == b.region_id && a.host == b.host && a.control == b.control
}

fn lease_command(peer: Peer, count: u64) -> Result<Command> {
    match peer {
        Peer::Daemon(_) if (1..=PAGE_ID_LEASE).contains(&count) => {
            Ok(Command::LeasePageIds { count })
        }
        Peer::Daemon(_) => Err(broken(&format!("{count} page ids; 1 to {PAGE_ID_LEASE} go"))),
        Peer::Deposed(rack) => Err(deposed(rack)),
        _ => Err(broken("only a daemon that joined gets page ids")),
    }
}

fn check_rack_info(info: &RackInfo) -> Result<()> {
    if !info.rack.is_valid() {
        return Err(Error::Denied {
            reason: format!("rack {}: racks are numbered 0 to {}", info.rack, RACKS_MAX - 1),
        });
    }
    if PageGeometry::new(info.page_shift).is_none() || info.frame_count == 0 {
        let (shift, frames) = (info.page_shift, info.frame_count);
        let reason = format!("{frames} pages of 2^{shift} bytes is no geometry");
        return Err(Error::BadRegion { reason });
    }
    if info.region_id == [0; 2] {
        return Err(Error::BadRegion { reason: "it has no id".into() });
    }
    for name in [&info.host, &info.control, &info.fabric_addr] {
        if name.len() > RACK_NAME_BYTES_MAX {
            let bytes = name.len();
            return Err(broken(&format!("a name of {bytes} of {RACK_NAME_BYTES_MAX} bytes")));
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    if (1..=ROOT_NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let limit_bytes = ROOT_NAME_BYTES_MAX;
    Err(broken(&format!("a root's name of {} bytes; 1 to {limit_bytes} go", name.len())))
}

fn check_count(count: usize, limit: u32) -> Result<()> {
    if count <= limit as usize {
        return Ok(());
    }
    Err(broken(&format!("{count} entries in one call; at most {limit} go")))
}

fn broken(reason: &str) -> Error {
    Error::Protocol { peer: "the caller".into(), reason: reason.into() }
}

fn deposed(rack: RackId) -> Error {
    Error::Denied { reason: format!("another daemon took over rack {rack}") }
}
