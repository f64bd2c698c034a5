//! The daemon's calls to the master: a window of calls without answer, sent again after a
//! reconnect or a pause.
//!
//! In: page homes to commit and pages to remove (queued by `alloc.rs` and `free.rs`), answers.
//! Out: calls, and what their answers mean to those two. Every call can be repeated without harm,
//! so an answer that was lost is asked for again. Removals are never given up: the frames stay
//! `Freeing` until the master has forgotten the pages. Source: DESIGN §2 (the directory is the
//! authority for homes).

use crate::constants::PAGE_ID_LEASE;
use crate::constants::{
    AWAITS_MAX, COMMIT_PAGES_MAX, DAEMON_CALLS_MAX, MASTER_ATTEMPTS_MAX, MASTER_RETRY_NS,
};
use crate::daemon::session::Ticket;
use crate::daemon::{Daemon, Outbox, World};
use crate::error::Error;
use crate::seam::{Mutation, Nanos, Probe, Race, Rare};
use crate::wire::{DeferredFree, MasterAnswer, MasterCall, MasterReply, Reply};
use std::collections::BTreeMap;

/// Why a call was made.
#[derive(Debug)]
pub(super) enum Purpose {
    /// More page ids.
    Lease,
    /// So many pages of a job get their homes.
    Commit {
        job: u64,
        pages: usize,
    },
    /// Where the page of a frame is at home.
    Move {
        frame: u32,
    },
    /// These frames' pages are forgotten.
    Remove {
        frames: Vec<u32>,
    },
    /// So many pages of the run with its first page in the frame are elsewhere.
    Apart {
        frame: u32,
        count: usize,
    },
    /// What this rack owes, up to a number.
    Pay {
        last: u64,
    },
    /// What others owe here; answered when there is something.
    Orphans,
    Take {
        orphans: Vec<DeferredFree>,
    },
    /// Pages that were to be freed here and are not here.
    Gone,
    /// A free ends everywhere; answered then.
    Await {
        ticket: Ticket,
    },
}

impl Purpose {
    /// Whether the answer comes when others have done something: such calls have no place in the
    /// window.
    fn is_parked(&self) -> bool {
        matches!(self, Purpose::Orphans | Purpose::Await { .. })
    }
}

#[derive(Debug)]
struct Outstanding {
    call: MasterCall,
    purpose: Purpose,
    attempts: u32,
    /// When to send it again; `None` while an answer is expected.
    retry_at: Option<Nanos>,
}

/// Calls without answer.
pub(super) struct MasterCalls {
    up: bool,
    next_id: u64,
    leasing: bool,
    outstanding: BTreeMap<u64, Outstanding>,
}

impl MasterCalls {
    /// Whether calls are sent now.
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    pub(super) fn new() -> MasterCalls {
        MasterCalls { up: false, next_id: 1, leasing: false, outstanding: BTreeMap::new() }
    }

    /// Whether a call waits to be sent again.
    pub(super) fn retries(&self) -> bool {
        self.up && self.outstanding.values().any(|call| call.retry_at.is_some())
    }

    /// Forgets the commits of a job that failed, so that none is sent after its removal.
    pub(super) fn forget_job(&mut self, id: u64) {
        self.outstanding.retain(|_, call| match call.purpose {
            Purpose::Commit { job, .. } => job != id,
            _ => true,
        });
    }

    fn has_room(&self, probe: &impl Probe) -> bool {
        let window = self.outstanding.values().filter(|call| !call.purpose.is_parked()).count();
        let forced = window > 0 && probe.rare(Rare::CallWindowFull);
        self.up && !forced && window < DAEMON_CALLS_MAX
    }

    fn awaits(&self) -> usize {
        let is_await = |call: &&Outstanding| matches!(call.purpose, Purpose::Await { .. });
        self.outstanding.values().filter(is_await).count()
    }

    fn send<W: World>(&mut self, call: MasterCall, purpose: Purpose, world: &mut W) {
        let id = self.next_id;
        self.next_id += 1;
        let sent = Outstanding { call: call.clone(), purpose, attempts: 0, retry_at: None };
        self.outstanding.insert(id, sent);
        if world.private().rare(Rare::CallRepeated) {
            world.outbox().to_master(id, call.clone());
        }
        world.outbox().to_master(id, call);
    }
}

impl Daemon {
    /// The master is connected and has accepted this rack's join: everything without answer is
    /// sent again, then what has gathered meanwhile.
    pub fn master_up<W: World>(&mut self, world: &mut W) {
        self.calls.up = true;
        for (id, call) in &mut self.calls.outstanding {
            call.retry_at = None;
            if !world.private().mutated(Mutation::LoseCalls) {
                world.outbox().to_master(*id, call.call.clone());
            }
        }
        self.advance(world);
    }

    /// The connection to the master is down: calls wait for the next one.
    pub fn master_down(&mut self) {
        self.calls.up = false;
    }

    /// An answer of the master; answers to calls that are not outstanding are ignored.
    pub fn on_master<W: World>(&mut self, now: Nanos, reply: MasterReply, world: &mut W) {
        let Some(call) = self.calls.outstanding.remove(&reply.id) else {
            world.private().met(Race::AnswerUnasked);
            return;
        };
        let unexpected = |answer| Error::Protocol {
            peer: "master".into(),
            reason: format!("the answer {answer:?} does not fit the call"),
        };
        let failed = match (reply.answer, &call.purpose) {
            (Ok(MasterAnswer::PageIds { first, count }), Purpose::Lease) => {
                self.frames.offer_ids(first, count).err()
            }
            (Ok(MasterAnswer::Done), Purpose::Commit { job, pages }) => {
                self.on_committed(*job, *pages, world);
                None
            }
            (Ok(MasterAnswer::Done), Purpose::Remove { frames }) => {
                self.on_removed(frames, world);
                None
            }
            (Ok(MasterAnswer::Homes(homes)), Purpose::Move { frame }) if homes.len() == 1 => {
                self.on_home_known(*frame, homes[0], world);
                None
            }
            (Ok(MasterAnswer::Orphans { pages, allocations }), Purpose::Orphans) => {
                self.on_orphans(now, &pages, &allocations, world);
                None
            }
            (Ok(MasterAnswer::Done), purpose) if self.on_orphans_done(purpose, world) => None,
            (Ok(answer), _) => Some(unexpected(answer)),
            (Err(error), _) => Some(error),
        };
        match failed {
            Some(error) => self.on_failed_call(now, reply.id, call, error, world),
            None if matches!(call.purpose, Purpose::Lease) => self.calls.leasing = false,
            None => {}
        }
        self.advance(world);
    }

    /// The master has done what a call about orphans asked; whether it was one.
    fn on_orphans_done<W: World>(&mut self, purpose: &Purpose, world: &mut W) -> bool {
        match purpose {
            Purpose::Apart { frame, count } => self.on_apart(*frame, *count),
            Purpose::Pay { last } => self.on_paid(*last, world),
            Purpose::Take { orphans } => self.on_taken(orphans, world),
            Purpose::Await { ticket } => self.answer(ticket, Ok(Reply::Freed), world),
            Purpose::Gone => self.on_gone(),
            _ => return false,
        }
        true
    }

    fn on_failed_call<W: World>(
        &mut self,
        now: Nanos,
        id: u64,
        mut call: Outstanding,
        error: Error,
        world: &mut W,
    ) {
        let may_retry = error.may_retry() || matches!(error, Error::NoSuchRack { .. });
        let again = may_retry && call.attempts < MASTER_ATTEMPTS_MAX;
        match call.purpose {
            Purpose::Commit { job, .. } if !again => return self.fail_job(job, error, world),
            Purpose::Lease if !again => self.fail_waiting(&error, world),
            _ => {}
        }
        call.attempts = call.attempts.saturating_add(1);
        call.retry_at = Some(now + MASTER_RETRY_NS);
        self.calls.outstanding.insert(id, call);
    }

    /// Sends again what has waited long enough.
    pub(super) fn retry_calls<W: World>(&mut self, now: Nanos, world: &mut W) {
        if !self.calls.up {
            return;
        }
        for (id, call) in &mut self.calls.outstanding {
            if call.retry_at.is_some_and(|at| at <= now) {
                call.retry_at = None;
                world.outbox().to_master(*id, call.call.clone());
            }
        }
    }

    /// Sends what the window has room for: page ids first, then homes, then removals.
    pub(super) fn send_calls<W: World>(&mut self, world: &mut W) {
        if self.calls.up && !self.calls.leasing && self.frames.wants_lease() {
            self.calls.leasing = true;
            let call = MasterCall::LeasePageIds { count: PAGE_ID_LEASE };
            self.calls.send(call, Purpose::Lease, world);
        }
        while self.calls.has_room(world.private()) {
            let Some((job, homes)) = self.next_commit() else { break };
            let purpose = Purpose::Commit { job, pages: homes.len() };
            self.calls.send(MasterCall::CommitPages { homes }, purpose, world);
        }
        while self.calls.has_room(world.private()) {
            let Some((frame, call)) = self.next_question() else { break };
            self.calls.send(call, Purpose::Move { frame }, world);
        }
        while self.calls.has_room(world.private()) {
            let forced = world.private().rare(Rare::RemoveOnePage);
            let limit = if forced { 1 } else { COMMIT_PAGES_MAX as usize };
            let (mut frames, pages) = self.next_removal(limit, world);
            if frames.is_empty() {
                break;
            }
            let call = MasterCall::RemovePages { rack: self.rack, pages };
            if world.private().mutated(Mutation::FreeBeforeCommit) {
                self.on_removed(&std::mem::take(&mut frames), world);
            }
            self.calls.send(call, Purpose::Remove { frames }, world);
        }
        self.send_orphan_calls(world);
    }

    /// What other racks are to free, or this one for them.
    fn send_orphan_calls<W: World>(&mut self, world: &mut W) {
        while self.calls.has_room(world.private()) {
            if let Some((frame, count, call)) = self.next_apart(world.private()) {
                self.calls.send(call, Purpose::Apart { frame, count }, world);
            } else if let Some((last, call)) = self.next_payment() {
                self.calls.send(call, Purpose::Pay { last }, world);
            } else if let Some((orphans, call)) = self.next_taking() {
                self.calls.send(call, Purpose::Take { orphans }, world);
            } else if let Some(call) = self.next_gone() {
                self.calls.send(call, Purpose::Gone, world);
            } else {
                break;
            }
        }
        if self.calls.up && self.wants_await() {
            // A client that gave up needs no answer.
            let (sessions, probe) = (&self.sessions, world.private());
            self.calls.outstanding.retain(|_, call| match &call.purpose {
                Purpose::Await { ticket } => sessions.waits(ticket, probe),
                _ => true,
            });
            while self.calls.awaits() < AWAITS_MAX
                && let Some((ticket, call)) = self.next_await(world.private())
            {
                self.calls.send(call, Purpose::Await { ticket }, world);
            }
        }
        if self.calls.up
            && let Some(call) = self.next_question_for_orphans()
        {
            self.calls.send(call, Purpose::Orphans, world);
        }
    }
}
