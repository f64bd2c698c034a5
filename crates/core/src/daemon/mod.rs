//! The daemon of a rack: which client has which memory of the region, and the answers to its
//! clients.
//!
//! ```text
//! clients' frames --> on_request --> alloc.rs / free.rs --> redo.rs --> private section
//! control sockets --> join, leave --'   |      ^                        table, pages sections
//! master's answers -> on_master <-- calls.rs --'
//! poll loop --------> tick (quarantine, backing, punching, calls to repeat)
//! ```
//!
//! The engine owns the private section and the table, and no thread: the runtime calls it from
//! one poll loop and hands in a [`World`]. It answers through the world, often at once, else when
//! the master has answered. It trusts only the private section, which attach checks.
//!
//! Order: what a client can learn is in the private section before it is said; what others can
//! reach by a table word is committed at the master before, and forgotten there after the table
//! word is 0. The process may die between any two memory operations: [`Daemon::attach`] over the
//! same bytes goes on. Source: Rcmp §5.1 (daemon), DESIGN §2–4.

mod alloc;
mod attach;
mod audit;
mod balance;
mod calls;
mod deferred_free;
mod drain;
mod frames;
mod free;
mod heat;
mod loans;
mod locks;
mod moves;
mod outbox;
mod persist;
mod proxy;
mod quota;
mod redo;
mod relocation;
mod remotes;
mod replica_quota;
mod replicas;
mod rrpc;
mod scrub;
mod session;
mod slab;
mod tiering;

pub use attach::{format, read_superblock};
pub use outbox::{Handover, Outbox};
pub use proxy::{OutcomeData, Proxy, Rings, Uplinks};
pub use remotes::{Act, ClientRoute, RemoteMessage, Remotes};
pub use rrpc::WriteBack;
pub use session::{LocalClient, RemoteClient, SessionInfo};

use crate::addr::{FrameIndex, GAddr, Generation, PageId, RackId, SessionId};
use crate::coherence::{self, Coherence};
use crate::constants::{
    LOCK_ALIGN_BYTES, RESOLVE_PAGES_MAX, SESSIONS_ANSWER_MAX, SLOTS_MAX, TICK_NS,
};
use crate::counts::{FabricCounts, ProxyCounts};
use crate::daemon::alloc::Allocations;
use crate::daemon::audit::Audits;
use crate::daemon::balance::Balancing;
use crate::daemon::calls::MasterCalls;
use crate::daemon::deferred_free::DeferredFrees;
use crate::daemon::drain::DrainState;
use crate::daemon::frames::Frames;
use crate::daemon::free::Freeing;
use crate::daemon::heat::Heat;
use crate::daemon::loans::Loans;
use crate::daemon::locks::Locks;
use crate::daemon::moves::{Asker, Moves};
use crate::daemon::quota::Quota;
use crate::daemon::redo::Redo;
use crate::daemon::replica_quota::ReplicaQuotas;
use crate::daemon::replicas::{HoldDecision, Replicas};
use crate::daemon::scrub::Scrub;
use crate::daemon::session::{Admit, Outcome, Sessions, Ticket};
use crate::daemon::slab::Slabs;
use crate::daemon::tiering::Tiering;
use crate::error::{Error, Result};
use crate::layout::{RegionLayout, ResultKind, SlotWord};
use crate::persist::Persist;
use crate::replica::ReplicaCounts;
use crate::seam::{ByteRange, Mem, Mutation, Nanos, Probe, Race, Rare};
use crate::tier::Tiers;
use crate::wire::{
    AnswerCounts, DaemonStats, PageHome, Reply, ReplyFrame, Request, RequestCounts, RequestFrame,
};

/// What the engine needs of its process. Statically dispatched; no call may call the engine.
pub trait World {
    /// The kind of memory that the sections are.
    type Mem: Mem;
    /// The kind of those that a loss of power may spare.
    type Persistent: Persist;
    type Outbox: Outbox;
    /// The private section, [`RegionLayout::private_bytes`] long. Its parts are backed by
    /// [`World::back_private`]; unbacked parts read as zero once they are backed.
    fn private(&self) -> &Self::Persistent;
    /// The table section, [`RegionLayout::table_bytes`] long, backed as a whole by the runtime.
    fn table(&self) -> &Self::Mem;
    /// The pages section, [`RegionLayout::pages_bytes`] long.
    fn pages(&self) -> &Self::Persistent;
    /// Announce cells of all that can touch pages: the slots in use and the target threads.
    fn cell_count(&self) -> u32;
    /// A cell, loaded with acquire order: a frame plus one, or 0. Cells of processes that are
    /// provably dead read 0.
    fn cell(&self, index: u32) -> u64;
    /// A slot's section; `None` if it is not there.
    fn slot(&self, slot: u32) -> Option<&Self::Mem>;
    /// A word of a slot's header; `None` if the slot section is not there.
    fn slot_word(&self, slot: u32, word: SlotWord) -> Option<u64> {
        let section = self.slot(slot)?;
        Some(coherence::load(section, Mutation::KeepSlotWord, word as u64))
    }
    /// Which memories the pages section has, for [`format()`].
    fn tiers(&self) -> Tiers {
        Tiers::default()
    }
    /// Whether the host booted anew since a daemon last attached to the region: all processes that
    /// used it are gone, and table and slots hold what was stored at any time.
    fn lost_power(&self) -> bool {
        false
    }
    /// Memory that the host can still give to pages, bytes, as far as it says so.
    fn host_free_bytes(&self) -> Option<u64> {
        None
    }
    /// Gives memory to a range of pages, which reads as zero afterwards; `Full` if the host has
    /// none.
    fn back_pages(&mut self, offset: u64, bytes: u64) -> Result<()>;
    /// Takes the memory of a range of pages back; it reads as zero when it is backed again.
    fn punch_pages(&mut self, offset: u64, bytes: u64);
    /// Gives memory to a range of the private section, aligned to 8 bytes only; what is backed
    /// already keeps its bytes.
    fn back_private(&mut self, offset: u64, bytes: u64) -> Result<()>;
    /// Takes memory of whole blocks of the private section back.
    fn punch_private(&mut self, offset: u64, bytes: u64);
    /// Runs a barrier in every process that announces: after it, an accessor that did not announce
    /// before sees the table words stored before.
    fn barrier(&mut self);
    /// Backed bytes of the metadata sections.
    fn metadata_bytes(&self) -> u64;
    /// What the fabric endpoint beside the engine has served.
    fn fabric_counts(&self) -> FabricCounts {
        FabricCounts::default()
    }
    /// Connections to that endpoint that were refused because the pool's secret was not proved.
    fn connections_refused(&self) -> u64 {
        0
    }
    /// What [`Proxy`] beside the engine has done.
    fn proxy_counts(&self) -> ProxyCounts {
        ProxyCounts::default()
    }
    fn outbox(&mut self) -> &mut Self::Outbox;
}

/// A client of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientId {
    Slot(u32),
    /// A remote client's record, as [`Daemon::join_remote`] gave it.
    Remote(u32),
}

impl ClientId {
    fn of_record(record: u32) -> ClientId {
        if record < SLOTS_MAX { ClientId::Slot(record) } else { ClientId::Remote(record) }
    }

    /// The session record. A client outside its table is a bug of the runtime.
    fn record(self) -> u32 {
        let (ClientId::Slot(record) | ClientId::Remote(record)) = self;
        assert!(ClientId::of_record(record) == self, "{self:?} is not a record of its kind");
        record
    }
}

/// A word of a page, whatever process wrote it last.
fn word_of<M: Mem>(pages: &M, offset: u64) -> u64 {
    coherence::reading(pages, ByteRange { offset, bytes: 8 }, |pages| pages.load(offset))
}

/// Stores a word of the table, which every host looks at.
fn set_table<W: World>(world: &W, offset: u64, value: u64) {
    coherence::store(world.table(), Mutation::HideTableWord, offset, value);
}

/// The engine. [`format()`] makes a region, [`Daemon::attach`] starts on it.
pub struct Daemon {
    rack: RackId,
    region_id: [u64; 2],
    epoch: u64,
    layout: RegionLayout,
    redo: Redo,
    frames: Frames,
    slabs: Slabs,
    sessions: Sessions,
    locks: Locks,
    heat: Heat,
    leaving: DrainState,
    balancing: Balancing,
    allocations: Allocations,
    freeing: Freeing,
    calls: MasterCalls,
    moves: Moves,
    tiering: Tiering,
    orphans: DeferredFrees,
    replicas: Replicas,
    rooms: ReplicaQuotas,
    quota: Quota,
    loans: Loans,
    audits: Audits,
    allocated_bytes: u64,
    allocations_live: u64,
    requests: RequestCounts,
    answers: AnswerCounts,
    sessions_made: u64,
    sessions_reaped: u64,
    scrub: Scrub,
}

impl Daemon {
    pub fn rack(&self) -> RackId {
        self.rack
    }

    pub fn region_id(&self) -> [u64; 2] {
        self.region_id
    }

    /// How often the region was attached.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn layout(&self) -> RegionLayout {
        self.layout
    }

    /// Frames that can be allocated at once. Empty slab pages that are kept are not counted.
    pub fn frames_free(&self) -> u32 {
        self.frames.free_count()
    }

    /// Frames that others can have: those that are free, and those of replicas, which give way.
    pub fn frames_available(&self) -> u32 {
        self.frames.free_count() + self.replica_frames()
    }

    /// Frames that are free and that the host can give memory to now.
    fn frames_backable<W: World>(&self, world: &W) -> u64 {
        let page_bytes = self.layout.pages.page_bytes();
        let there = world.host_free_bytes().map_or(u64::MAX, |bytes| bytes / page_bytes);
        there.min(self.frames.free_count().into())
    }

    /// Accesses to this rack's memory since the process started, for `MasterCall::Heartbeat`.
    pub fn accesses<W: World>(&self, world: &W) -> u64 {
        self.requests.total() + world.fabric_counts().operations
    }

    /// All sessions that the region knows. After an attach the runtime looks which of the local
    /// ones still have their process and calls [`Daemon::leave`] for the others.
    pub fn sessions(&self) -> impl Iterator<Item = SessionInfo> + '_ {
        self.sessions.iter()
    }

    /// Gives a local client a slot. `Busy` if all are in use; `Denied` if the session has one.
    pub fn join_local<W: World>(&mut self, client: LocalClient, world: &mut W) -> Result<u32> {
        let LocalClient { session, hello, pid, start_time } = client;
        self.check_new(session)?;
        let record = self.sessions.free_record(true).ok_or_else(|| session::table_full(true))?;
        let info = SessionInfo { record, session, pid, start_time };
        self.sessions.create(info, &mut self.redo, world);
        self.sessions.hear(record, hello);
        self.sessions_made += 1;
        Ok(record)
    }

    /// A local client comes back, over a new connection, to the slot that it has. `Denied` if it
    /// has it no more, or has said a later hello already: its rings are in use then.
    pub fn resume_local(&mut self, session: SessionId, hello: u64, slot: u32) -> Result<()> {
        if session.0 == 0 || slot >= SLOTS_MAX || self.sessions.session(slot) != session.0 {
            let reason = format!("slot {slot} is not session {session}'s: it was given back");
            return Err(Error::Denied { reason });
        }
        if !self.sessions.hear(slot, hello) {
            let reason = format!("session {session} has said hello again since");
            return Err(Error::Denied { reason });
        }
        Ok(())
    }

    /// A local client left or its process is provably dead: what it owned and an allocation with an
    /// answer that it never took are freed, its requests are rolled back when they end, and its
    /// slot can be given out again. A slot that is not in use is left as it is.
    pub fn leave<W: World>(&mut self, slot: u32, world: &mut W) {
        assert!(slot < SLOTS_MAX, "a local client has a slot");
        self.end(slot, world);
        self.advance(world);
    }

    /// A remote client connects: its record, and whether its session was known. If not, its session
    /// is `next`, which an earlier join of its may have made already. If the table is full, the
    /// record with the connection that closed first is ended; `Busy` if all are connected.
    pub fn join_remote<W: World>(
        &mut self,
        client: RemoteClient,
        world: &mut W,
    ) -> Result<(u32, bool)> {
        let RemoteClient { session, next, pid } = client;
        for (named, known) in [(session, true), (next, false)] {
            if let Some(record) = self.sessions.record_of(named.0)
                && record >= SLOTS_MAX
            {
                self.sessions.set_connected(record, true);
                return Ok((record, known));
            }
        }
        self.check_new(next)?;
        // A client that has a lock keeps it for a lease after its connection: it may be reading
        // copies.
        let early = world.private().mutated(Mutation::PassLocksToNewcomers);
        let oldest = self.sessions.oldest_closed(|other| self.locks.has_any(other) == early);
        let full = oldest.is_some() && world.private().rare(Rare::RemoteTableFull);
        let record = match self.sessions.free_record(false).filter(|_| !full) {
            Some(record) => record,
            None => {
                let record = oldest.ok_or_else(|| session::table_full(false))?;
                self.end(record, world);
                record
            }
        };
        let pid = u64::from(pid);
        let info = SessionInfo { record, session: next, pid, start_time: 0 };
        self.sessions.create(info, &mut self.redo, world);
        self.sessions_made += 1;
        self.advance(world);
        Ok((record, false))
    }

    /// A remote client's connection closed. Its record stays for a retry until it is needed, and
    /// as long as it has locks. Not to be called for a connection that the same session has
    /// replaced.
    pub fn leave_remote(&mut self, record: u32) {
        assert!(record >= SLOTS_MAX, "a remote client has a remote record");
        if self.sessions.session(record) != 0 {
            self.sessions.set_connected(record, false);
            // Its lock would have no holder; the client asks again.
            self.cancel_lock(record);
            // What it sent is executed before this or never: others may get its locks from now on.
            self.replicas.forget_held(ClientId::Remote(record));
            self.moves.abandon_soon(record);
        }
    }

    /// A remote client says that it has taken the answers up to request `seq`: an allocation
    /// among them is its own for good, and the region says so when this returns.
    pub fn note_consumed<W: World>(&mut self, record: u32, seq: u64, world: &W) {
        assert!(record >= SLOTS_MAX, "a local client's slot says what it has taken");
        self.sessions.note_consumed(record, seq, world.private());
    }

    /// A remote session is over: what it owned and an allocation with an answer that it never took
    /// are freed.
    pub fn end_remote<W: World>(&mut self, record: u32, world: &mut W) {
        assert!(record >= SLOTS_MAX, "a remote client has a remote record");
        self.end(record, world);
        self.advance(world);
    }

    /// Frees what a session held, then its record. Each step stands for itself: after a crash the
    /// record is still there and the runtime ends it again.
    fn end<W: World>(&mut self, record: u32, world: &mut W) {
        let session = self.sessions.session(record);
        if session == 0 || world.private().mutated(Mutation::NeverEndSessions) {
            return;
        }
        self.note_unfinished(record, world);
        self.cancel_lock(record);
        self.replicas.end_session(ClientId::of_record(record), session);
        self.end_room(record, world);
        self.abandon_moves(record, world);
        self.end_session_loans(record, world);
        self.take_back(record, world);
        self.free_owned(session, world);
        self.release_session(session, world);
        self.sessions.clear(record, world.private());
        self.sessions_reaped += 1;
    }

    fn check_new(&self, session: SessionId) -> Result<()> {
        let denied = |reason: String| Err(Error::Denied { reason });
        if session.0 == 0 {
            return denied("session 0 is no session".into());
        }
        match self.sessions.record_of(session.0) {
            Some(record) => denied(format!("session {session} has record {record} already")),
            None => Ok(()),
        }
    }

    /// A client's request. The answer goes to the outbox, once, now or later; a repetition
    /// of a request that is under way gets none of its own.
    pub fn on_request<W: World>(&mut self, from: ClientId, frame: RequestFrame, world: &mut W) {
        self.requests.note(&frame.request);
        self.replicas.forget_before(from, frame.seq);
        match self.hold_for_replicas(from, &frame, world) {
            HoldDecision::No => self.dispatch(from, frame, world),
            HoldDecision::Yes => {}
            HoldDecision::Refused(error) => {
                let reply = Err(error);
                self.answers.note(&reply);
                world.outbox().reply(from, ReplyFrame { seq: frame.seq, reply });
            }
        }
        self.advance(world);
    }

    fn dispatch<W: World>(&mut self, from: ClientId, frame: RequestFrame, world: &mut W) {
        let record = from.record();
        let seq = frame.seq;
        let reply = if self.sessions.session(record) == 0 {
            let reason = "it asked before it joined".into();
            Some(Err(Error::Protocol { peer: format!("{from:?}"), reason }))
        } else {
            let asker = Asker::new(record, seq);
            match frame.request {
                Request::Resolve { page, count } => self.resolve_or_park(asker, page, count, world),
                Request::Stats => Some(Ok(self.stats_reply(world))),
                Request::CheckLock { addr, token } => {
                    let held = self.holds_lock(record, addr, token);
                    Some(Ok(Reply::Held { held }))
                }
                Request::Sessions { from } => {
                    let states = self.sessions.states(from).take(SESSIONS_ANSWER_MAX);
                    Some(Ok(Reply::Sessions(states.collect())))
                }
                Request::NextMove(query) => Some(self.next_move(record, *query, world)),
                Request::NoteUse { .. } | Request::DecideMove(_) | Request::Decisions { .. } => {
                    let reply = self.on_heat(record, frame.request, world);
                    self.look_at_tiers(world);
                    Some(reply)
                }
                Request::Ping => Some(Ok(Reply::Pong)),
                Request::DrainReport => Some(Ok(Reply::DrainReport(self.leaving.report.clone()))),
                Request::Balances { from } => {
                    Some(Ok(Reply::Balances(self.balancing.records(from))))
                }
                Request::Audit(request) => Some(self.on_audit(request, world).map(Reply::Audit)),
                Request::CheckFree { addr, bytes } => {
                    Some(self.find_allocation(addr, bytes, world).map(|_| Reply::Known))
                }
                Request::MoveIn { page } => self.move_in(asker, page, world),
                Request::MoveOut { page, generation } => {
                    self.move_out(asker, page, generation, world)
                }
                Request::MoveCommit { from, generation, keep } => {
                    self.move_commit(asker, from, generation, &keep, world)
                }
                Request::MoveSettle { page } => self.move_settle(asker, page, world),
                Request::Fetch(fetch) => self.fetch(record, seq, &fetch, world),
                Request::Store { addr, data } => Some(self.store(addr, &data.0, world)),
                Request::Persist { addr, bytes } => Some(self.persist(addr, bytes, world)),
                Request::Loan(request) => Some(self.on_loan(record, request, world)),
                Request::ReplicaPoll(poll) => self.replica_poll(record, seq, &poll),
                Request::ReplicaRoom { home, directory } => {
                    Some(self.replica_quota(record, home, directory, world))
                }
                Request::Replicate { page, to } => Some(self.replicate(page, to, world)),
                Request::Sharers { page } => Some(self.sharers(page)),
                Request::Recall { .. } => Some(Ok(Reply::Replicas)),
                request => self.on_mutating(record, seq, request, world),
            }
        };
        if let Some(reply) = reply {
            self.answers.note(&reply);
            world.outbox().reply(from, ReplyFrame { seq, reply });
        }
    }

    /// Work that waits for time: frames in quarantine are looked at again, calls are repeated,
    /// backing and punching go on by one step each.
    pub fn tick<W: World>(&mut self, now: Nanos, world: &mut W) {
        self.note_time(now);
        self.request_scan();
        self.retry_calls(now, world);
        self.time_moves(now, world);
        self.time_orphans(now);
        self.time_locks(now, world);
        self.time_replicas(now, world);
        self.time_loans(now, world);
        self.scrub(1, world);
        self.advance(world);
    }

    /// How long after a tick the next one is due, ns; if none is, the poll loop may sleep.
    pub fn tick_ns(&self) -> Option<Nanos> {
        let is_soon = self.freeing.needs_tick()
            || self.allocations.is_backing()
            || self.calls.retries()
            || self.locks.needs_tick()
            || self.moves.needs_tick()
            || self.orphans.needs_tick();
        if is_soon { Some(TICK_NS) } else { self.replicas.tick_ns().or(self.loans.tick_ns()) }
    }

    pub fn stats<W: World>(&self, world: &W) -> DaemonStats {
        let (slots_used, remote_sessions) = self.sessions.counts();
        let (locks_held, lock_waiters) = self.locks.counts();
        let (client_quota_bytes, client_held_bytes_max) = self.quota.counts();
        let (lent_free, lent_free_bytes) = self.lent_free(world);
        let mut answers = self.answers.clone();
        answers.add_denied(world.connections_refused());
        DaemonStats {
            rack: self.rack,
            coherence: Coherence::of(world.pages()),
            epoch: self.epoch,
            page_bytes: self.layout.pages.page_bytes(),
            frames: u64::from(self.layout.frame_count),
            frames_free: u64::from(self.frames.free_count()),
            frames_backable: self.frames_backable(world),
            frames_quarantined: self.freeing.quarantined() as u64,
            frames_slab: self.slabs.count() as u64,
            allocated_bytes: self.allocated_bytes.saturating_sub(lent_free_bytes),
            allocations: self.allocations_live.saturating_sub(lent_free),
            client_quota_bytes,
            client_held_bytes_max,
            metadata_bytes: world.metadata_bytes(),
            metadata: self.metadata_checks(),
            slots_used,
            remote_sessions,
            pages_came: self.moves.came,
            pages_went: self.moves.went,
            pages_moving: self.moves.under_way() as u64,
            moves: self.heat.counts(),
            replicas: ReplicaCounts {
                frames: self.replica_frames().into(),
                ..self.replicas.counts()
            },
            locks_held,
            lock_waiters,
            requests: self.requests.total(),
            sessions_reaped: self.sessions_reaped,
            sessions_made: self.sessions_made,
            requests_by_kind: self.requests,
            answers,
            fabric: world.fabric_counts(),
            proxy: world.proxy_counts(),
        }
    }

    /// Everything that can go on now, one bounded step of each kind.
    fn advance<W: World>(&mut self, world: &mut W) {
        self.abandon_lost_moves(world);
        self.back_arrivals(world);
        self.advance_tier_move(world);
        self.scan_cells(world);
        self.punch_step(world);
        self.serve_locks(world);
        self.serve_awaited_arrivals(world);
        self.serve_waiting(world);
        self.back_step(world);
        self.advance_replicas(world);
        self.send_calls(world);
    }

    fn on_mutating<W: World>(
        &mut self,
        record: u32,
        seq: u64,
        request: Request,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        let operation = match request {
            Request::Cas { .. } => "compare and swap",
            _ => "fetch and add",
        };
        let admitted = match self.sessions.admit(record, seq, operation) {
            Admit::Repeat(_) if world.private().mutated(Mutation::RetryAppliedTwice) => {
                Admit::Fresh
            }
            admitted => admitted,
        };
        match admitted {
            Admit::Fresh => {
                // Whatever came before and was not taken will not be taken any more.
                self.cancel_lock(record);
                self.sessions.abandon(record);
                self.take_back(record, world);
            }
            Admit::UnderWay => {
                world.private().met(Race::RepeatedUnderWay);
                return None;
            }
            Admit::Repeat(outcome) => {
                world.private().met(Race::AnsweredFromRecord);
                if let (Request::Lock { addr, .. }, ResultKind::Locked) = (&request, outcome.kind) {
                    return Some(self.repeat_lock(record, *addr, outcome.value));
                }
                let word = match request {
                    Request::FreeApart { word, .. } => word,
                    _ => GAddr::NULL,
                };
                return self.repeat(record, seq, word, outcome, world.private());
            }
            Admit::Refuse(error) => return Some(Err(error)),
        }
        self.serve(record, seq, request, world)
    }

    /// Serves a request that was admitted as new.
    fn serve<W: World>(
        &mut self,
        record: u32,
        seq: u64,
        request: Request,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        match request {
            Request::Alloc { bytes, kind } => {
                let session = self.sessions.session(record);
                let ticket = self.sessions.ticket(record, seq, bytes).of_kind(kind, session);
                self.alloc_if_it_stays(ticket, world);
                None
            }
            Request::AllocIn { bytes, kind, tier } => {
                let session = self.sessions.session(record);
                let ticket = self.sessions.ticket(record, seq, bytes).of_kind(kind, session);
                self.alloc_if_it_stays(ticket.in_tier(tier), world);
                None
            }
            Request::Free { addr, bytes } => {
                let ticket = self.sessions.ticket(record, seq, bytes);
                self.free(ticket, addr, None, world);
                None
            }
            Request::Reclaim { addr, watch } => {
                let ticket = self.sessions.ticket(record, seq, 0);
                self.reclaim(ticket, addr, watch, world);
                None
            }
            Request::AllocInto { word, bytes } => {
                let ticket = self.sessions.ticket(record, seq, bytes).of_word(word);
                match self.locate_named(word, world) {
                    Ok(_) => self.alloc(ticket, world),
                    Err(error) => self.answer(&ticket, Err(error), world),
                }
                None
            }
            Request::FreeFrom { word, bytes } => {
                let ticket = self.sessions.ticket(record, seq, bytes).of_word(word);
                self.free_from(ticket, world);
                None
            }
            Request::FreeApart { word, addr, bytes } => {
                let ticket = self.sessions.ticket(record, seq, bytes).of_word(word);
                self.free_apart(ticket, addr, world);
                None
            }
            Request::Cas { addr, expected, new } => {
                Some(self.atomic(record, seq, addr, world, |pages, offset| {
                    let (Ok(old) | Err(old)) = pages.compare_exchange(offset, expected, new);
                    old
                }))
            }
            Request::FetchAdd { addr, n } => {
                Some(
                    self.atomic(record, seq, addr, world, |pages, offset| {
                        pages.fetch_add(offset, n)
                    }),
                )
            }
            Request::Lock { addr, lines, write, wait_ms } => {
                let bytes = u64::from(lines) * LOCK_ALIGN_BYTES;
                let ticket = self.sessions.ticket(record, seq, bytes).of_word(addr);
                self.lock(ticket, write, wait_ms, world);
                None
            }
            Request::Unlock { addr, token } => {
                let ticket = self.sessions.ticket(record, seq, 0).of_word(addr);
                self.unlock(&ticket, token, world);
                None
            }
            _ => unreachable!("on_request answers what changes nothing"),
        }
    }

    /// The recorded answer, once more.
    fn repeat(
        &mut self,
        record: u32,
        seq: u64,
        word: GAddr,
        outcome: Outcome,
        probe: &impl Probe,
    ) -> Option<Result<Reply>> {
        let Outcome { kind, value, bytes } = outcome;
        Some(match kind {
            ResultKind::Allocated => Ok(Reply::Allocated { addr: GAddr(value) }),
            ResultKind::Freed => {
                let ticket = self.sessions.ticket(record, seq, bytes).of_word(word);
                if self.join_removal(ticket, GAddr(value)) {
                    probe.met(Race::RemovalJoined);
                    return None;
                }
                self.sessions.finish(&ticket, probe);
                Ok(Reply::Freed)
            }
            ResultKind::Old => Ok(Reply::Old { value }),
            ResultKind::Unlocked => Ok(Reply::Held { held: value != 0 }),
            ResultKind::None | ResultKind::Locked => {
                let reason = format!("request {seq} has no recorded answer");
                Err(Error::Protocol { peer: format!("record {record}"), reason })
            }
        })
    }

    /// Ends a request that was under way. No client hears of it if its session is over.
    fn answer<W: World>(&mut self, ticket: &Ticket, reply: Result<Reply>, world: &mut W) {
        if self.sessions.finish(ticket, world.private()) {
            self.answers.note(&reply);
            let to = ClientId::of_record(ticket.record);
            world.outbox().reply(to, ReplyFrame { seq: ticket.seq, reply });
        }
    }

    fn resolve<W: World>(&self, first: PageId, count: u32, world: &W) -> Result<Reply> {
        let page = first;
        let end = page.0.checked_add(u64::from(count));
        let Some(end) = end.filter(|_| (1..=RESOLVE_PAGES_MAX).contains(&count)) else {
            let reason = format!("{count} pages from {page} cannot be resolved at once");
            return Err(Error::Protocol { peer: "client".into(), reason });
        };
        let found = self.frames.by_page.range(page.0..end);
        let homes = found.filter_map(|(page, _)| {
            let (frame, entry) = self.frames.home(world.private(), PageId(*page))?;
            let (found, generation) = (entry.page, entry.generation);
            let ahead = found.0 > first.0 && world.private().mutated(Mutation::LookAheadOffByOne);
            let page = PageId(found.0 + u64::from(ahead));
            let generation = self.key_of(found, generation);
            Some(PageHome { page, rack: self.rack, frame: FrameIndex(frame), generation })
        });
        Ok(Reply::Homes(homes.collect()))
    }

    /// What clients name a page's frame by: its generation, and whether the page is shared.
    fn key_of(&self, page: PageId, generation: Generation) -> Generation {
        self.replicas.key(page).unwrap_or(generation)
    }

    /// An atomic on page memory: announced in the record, done, then its result recorded.
    fn atomic<W: World>(
        &mut self,
        record: u32,
        seq: u64,
        addr: GAddr,
        world: &mut W,
        apply: impl FnOnce(&W::Persistent, u64) -> u64,
    ) -> Result<Reply> {
        let offset = self.locate_word(addr, world)?;
        self.sessions.intend(record, seq, world.private());
        let range = ByteRange { offset, bytes: 8 };
        let value = coherence::writing(world.pages(), range, |pages| apply(pages, offset));
        self.wrote(addr, &world.pages().load(offset).to_le_bytes(), world);
        let outcome = Outcome { kind: ResultKind::Old, value, bytes: 0 };
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        Ok(Reply::Old { value })
    }

    /// Where a word lies that gets or loses an address. Its page has no replica: it was recalled
    /// before, and if it has got one since, the client asks again.
    fn locate_named<W: World>(&self, addr: GAddr, world: &W) -> Result<u64> {
        if self.replicas.is_shared(self.layout.pages.page(addr)) {
            return Err(Error::Moving { addr, retries: 0 });
        }
        self.locate_word(addr, world)
    }

    /// Where the word of an atomic lies in the pages section.
    fn locate_word<W: World>(&self, addr: GAddr, world: &W) -> Result<u64> {
        if !addr.0.is_multiple_of(8) {
            return Err(Error::Misaligned { addr, align_bytes: 8 });
        }
        let pages = self.layout.pages;
        let offset = pages.offset(addr);
        let home = self.frames.home(world.private(), pages.page(addr));
        let missing = || self.not_at_home(addr, Error::NotMapped { addr });
        let (frame, entry) = home.ok_or_else(missing)?;
        if entry.shift != 0 {
            let index = (offset >> entry.shift) as u32;
            let object = self.slabs.release(world.private(), frame, index);
            object.ok_or(Error::NotMapped { addr })?;
        }
        Ok(self.layout.frame_offset(FrameIndex(frame)) + offset)
    }
}
