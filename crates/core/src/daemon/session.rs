//! Sessions: one record for each client handle, local slots first, remote clients after them,
//! with the answer to the last mutating request for exactly-once.
//!
//! In: joins, leaves, sequence numbers. Out: which clients are there, whether a request is new, a
//! repetition or under way. Called by `mod.rs`, `alloc.rs`, `free.rs`, `attach.rs`. The records in
//! the private section are the truth and are mirrored here; the mirror follows the section, never
//! the other way round. A result is stored by the same redo record as the change that it reports.
//! Source: DESIGN §3 (exactly once), §4.

use crate::addr::{GAddr, SessionId};
use crate::constants::{REMOTE_SESSIONS_MAX, SESSIONS_MAX, SLOTS_MAX};
use crate::copies;
use crate::daemon::World;
use crate::daemon::redo::Redo;
use crate::daemon::slab::Class;
use crate::error::{Error, Result};
use crate::layout::{AllocationKind, ResultKind, SessionWord, session_word};
use crate::persist::Persist;
use crate::seam::{Mem, Mutation, Probe};
use crate::tier::Tier;
use crate::wire::SessionState;
use std::collections::BTreeMap;
use std::ops::Range;

/// A session that a region knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The record: the slot of a local client, `SLOTS_MAX` and above for remote clients.
    pub record: u32,
    pub session: SessionId,
    /// Process id, for a remote client as it says itself.
    pub pid: u64,
    /// Start time of a local client's process, clock ticks after boot; 0 of a remote one.
    pub start_time: u64,
}

/// A client of this rack that asks for a session.
#[derive(Clone, Copy, Debug)]
pub struct LocalClient {
    pub session: SessionId,
    /// The number of its hello.
    pub hello: u64,
    pub pid: u64,
    /// Start time of its process, clock ticks after boot.
    pub start_time: u64,
}

/// A client that asks for a session over the fabric.
#[derive(Clone, Copy, Debug)]
pub struct RemoteClient {
    /// The session that it had.
    pub session: SessionId,
    /// Its session if the daemon does not know that one.
    pub next: SessionId,
    /// Process id on its host, as it says itself.
    pub pid: u32,
}

/// What the last mutating request answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) kind: ResultKind,
    /// The address of an allocation or a free, or an old value.
    pub(super) value: u64,
    /// Bytes of a free, or of an allocation that comes back if its answer is not taken; 0 once it
    /// is freed, and for one that is named by a word.
    pub(super) bytes: u64,
}

/// A mutating request that is being served: answered only while its session is the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) record: u32,
    token: u64,
    pub(super) seq: u64,
    pub(super) bytes: u64,
    /// What the allocation is for.
    pub(super) kind: AllocationKind,
    /// The session that will own the allocation, 0 for none.
    pub(super) owner: u64,
    /// The word that gets or has the address; null for none.
    pub(super) word: GAddr,
    /// The memory that the allocation is to come from, if the request names one.
    pub(super) tier: Option<Tier>,
}

impl Ticket {
    /// The same request, about the allocation that a word names.
    pub(super) fn of_word(self, word: GAddr) -> Ticket {
        Ticket { word, ..self }
    }

    /// The same request, of this many bytes.
    pub(super) fn of_bytes(self, bytes: u64) -> Ticket {
        Ticket { bytes, ..self }
    }

    /// The same request, for memory of this kind.
    pub(super) fn of_kind(self, kind: AllocationKind, session: u64) -> Ticket {
        Ticket { kind, owner: if kind.is_owned() { session } else { 0 }, ..self }
    }

    /// The same request, for memory of this tier.
    pub(super) fn in_tier(self, tier: Tier) -> Ticket {
        Ticket { tier: Some(tier), ..self }
    }

    /// The class of the slab page that serves it.
    pub(super) fn class(&self, shift: u8) -> Class {
        Class { shift, kind: self.kind, owner: self.owner }
    }
}

/// What to do with a mutating request.
#[derive(Debug)]
pub(super) enum Admit {
    Fresh,
    /// It was served: answer this again.
    Repeat(Outcome),
    /// It is being served: its answer will come.
    UnderWay,
    Refuse(Error),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    session: u64,
    pid: u64,
    start_time: u64,
    /// Tells incarnations of the record apart, in this process only.
    token: u64,
    last_seq: u64,
    intent_seq: u64,
    outcome: Outcome,
    under_way: Option<u64>,
    /// Of a remote client: the last request for which it has taken the answer; its slot's section
    /// says it for a local one.
    consumed: u64,
    connected: bool,
    /// When the connection closed, counted in closings.
    closed_at: u64,
    /// Of a local client: the latest hello that this process has heard.
    hello: u64,
}

const NO_OUTCOME: Outcome = Outcome { kind: ResultKind::None, value: 0, bytes: 0 };
const NOBODY: Record = Record {
    session: 0,
    pid: 0,
    start_time: 0,
    token: 0,
    last_seq: 0,
    intent_seq: 0,
    outcome: NO_OUTCOME,
    under_way: None,
    consumed: 0,
    connected: false,
    closed_at: 0,
    hello: 0,
};

pub(super) struct Sessions {
    records: Vec<Record>,
    by_session: BTreeMap<u64, u32>,
    /// Addresses of last results that are live allocations, with their records.
    last_allocated: BTreeMap<u64, u32>,
    tokens: u64,
    closings: u64,
}

impl Sessions {
    pub(super) fn load<M: Mem>(mem: &M) -> Result<Sessions> {
        let mut sessions = Sessions {
            records: vec![NOBODY; SESSIONS_MAX as usize],
            by_session: BTreeMap::new(),
            last_allocated: BTreeMap::new(),
            tokens: 0,
            closings: 0,
        };
        for record in 0..SESSIONS_MAX {
            let word = |word| copies::load(mem, session_word(record, word));
            let session = word(SessionWord::Session)?;
            if session == 0 {
                continue;
            }
            let kind = word(SessionWord::ResultKind)?;
            let kind = ResultKind::from_word(kind).ok_or_else(|| Error::BadRegion {
                reason: format!("session record {record} has result {kind}"),
            })?;
            let outcome = Outcome {
                kind,
                value: word(SessionWord::ResultValue)?,
                bytes: word(SessionWord::ResultBytes)?,
            };
            if sessions.by_session.insert(session, record).is_some() {
                let reason = format!("session {session} has two records");
                return Err(Error::BadRegion { reason });
            }
            sessions.tokens += 1;
            let local = record < SLOTS_MAX;
            sessions.records[record as usize] = Record {
                session,
                pid: word(SessionWord::Pid)?,
                start_time: if local { word(SessionWord::StartTime)? } else { 0 },
                consumed: if local { 0 } else { word(SessionWord::CONSUMED_SEQ)? },
                token: sessions.tokens,
                last_seq: word(SessionWord::LastSeq)?,
                intent_seq: word(SessionWord::IntentSeq)?,
                outcome,
                connected: local,
                ..NOBODY
            };
            sessions.remember_allocated(record);
        }
        Ok(sessions)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = SessionInfo> + '_ {
        let used = self.records.iter().enumerate().filter(|(_, r)| r.session != 0);
        used.map(|(index, _)| self.info(index as u32))
    }

    /// The session of a record that is in use.
    pub(super) fn info(&self, record: u32) -> SessionInfo {
        let Record { session, pid, start_time, .. } = self.records[record as usize];
        SessionInfo { record, session: SessionId(session), pid, start_time }
    }

    /// The clients that have a session, from record `from` on.
    pub(super) fn states(&self, from: u32) -> impl Iterator<Item = SessionState> + '_ {
        let records = self.records.iter().enumerate().skip(from as usize);
        records.filter(|(_, r)| r.session != 0).map(|(index, r)| SessionState {
            record: index as u32,
            // Without the host, if it is another one.
            pid: r.pid as u32,
            connected: r.connected,
        })
    }

    /// How many local slots and how many remote records are in use.
    pub(super) fn counts(&self) -> (u64, u64) {
        let local = self.by_session.values().filter(|record| **record < SLOTS_MAX).count() as u64;
        (local, self.by_session.len() as u64 - local)
    }

    /// The session of a record, 0 for none.
    pub(super) fn session(&self, record: u32) -> u64 {
        self.records[record as usize].session
    }

    /// The record of a session.
    pub(super) fn record_of(&self, session: u64) -> Option<u32> {
        self.by_session.get(&session).copied()
    }

    /// The lowest free record of local slots (`local`) or remote ones.
    pub(super) fn free_record(&self, local: bool) -> Option<u32> {
        let range = if local { 0..SLOTS_MAX } else { SLOTS_MAX..SESSIONS_MAX };
        range.into_iter().find(|record| self.session(*record) == 0)
    }

    /// The remote record with the connection that closed first, if any has, among sessions that may
    /// end now.
    pub(super) fn oldest_closed(&self, may_end: impl Fn(u64) -> bool) -> Option<u32> {
        let closed = |record: &u32| {
            let r = &self.records[*record as usize];
            r.session != 0 && !r.connected && may_end(r.session)
        };
        let age = |record: &u32| self.records[*record as usize].closed_at;
        (SLOTS_MAX..SESSIONS_MAX).filter(closed).min_by_key(age)
    }

    pub(super) fn create<W: World>(&mut self, info: SessionInfo, redo: &mut Redo, world: &W) {
        let SessionInfo { record, session, pid, start_time } = info;
        assert!(self.session(record) == 0, "the caller chose a free record");
        let mut set = |word, value| redo.set(session_word(record, word), value);
        set(SessionWord::Session, session.0);
        set(SessionWord::Pid, pid);
        set(SessionWord::StartTime, start_time);
        set(SessionWord::LastSeq, 0);
        set(SessionWord::ResultKind, ResultKind::None as u64);
        set(SessionWord::ResultValue, 0);
        set(SessionWord::ResultBytes, 0);
        set(SessionWord::IntentSeq, 0);
        redo.commit(world);
        self.tokens += 1;
        self.records[record as usize] = Record {
            session: session.0,
            pid,
            start_time,
            token: self.tokens,
            connected: true,
            ..NOBODY
        };
        self.by_session.insert(session.0, record);
    }

    /// Notes a hello of a local client; whether it is later than all heard before.
    pub(super) fn hear(&mut self, record: u32, hello: u64) -> bool {
        let heard = &mut self.records[record as usize].hello;
        let later = hello > *heard;
        *heard = hello.max(*heard);
        later
    }

    /// Clears a record; what the session held is gone already.
    pub(super) fn clear<M: Persist>(&mut self, record: u32, mem: &M) {
        copies::store(mem, session_word(record, SessionWord::Session), 0);
        self.forget_allocated(record);
        self.by_session.remove(&self.session(record));
        self.records[record as usize] = NOBODY;
    }

    /// Notes that a remote client is connected or not.
    pub(super) fn set_connected(&mut self, record: u32, connected: bool) {
        self.closings += 1;
        let r = &mut self.records[record as usize];
        r.connected = connected;
        r.closed_at = self.closings;
    }

    /// Stores what a remote client says it has taken: the answers up to request `seq`. Its last
    /// word counts: of an earlier one it may not have learnt that it arrived, and given up.
    pub(super) fn note_consumed<M: Persist>(&mut self, record: u32, seq: u64, mem: &M) {
        let r = &mut self.records[record as usize];
        if r.session != 0 && r.consumed != seq {
            copies::store(mem, session_word(record, SessionWord::CONSUMED_SEQ), seq);
            r.consumed = seq;
        }
    }

    /// The last request for which a remote client has taken the answer.
    pub(super) fn consumed(&self, record: u32) -> u64 {
        self.records[record as usize].consumed
    }

    /// What to do with mutating request `seq` of a record. A client has one request under way; if
    /// another one comes, it has given the first up.
    pub(super) fn admit(&self, record: u32, seq: u64, operation: &str) -> Admit {
        let r = &self.records[record as usize];
        let broken = |reason| {
            Admit::Refuse(Error::Protocol { peer: format!("session {}", r.session), reason })
        };
        match r.under_way {
            Some(under_way) if under_way == seq => return Admit::UnderWay,
            Some(under_way) if under_way > seq => {
                return broken(format!("request {seq} came while {under_way} is under way"));
            }
            Some(_) | None => {}
        }
        if seq == 0 || seq < r.last_seq {
            return broken(format!("request {seq} came after {}", r.last_seq));
        }
        if seq == r.last_seq {
            return Admit::Repeat(r.outcome);
        }
        if seq == r.intent_seq {
            let peer = "the daemon".into();
            return Admit::Refuse(Error::OutcomeUnknown { operation: operation.into(), peer });
        }
        Admit::Fresh
    }

    /// What was under way is given up: the code that ends it finds that no client waits.
    pub(super) fn abandon(&mut self, record: u32) {
        self.records[record as usize].under_way = None;
    }

    pub(super) fn ticket(&mut self, record: u32, seq: u64, bytes: u64) -> Ticket {
        let r = &mut self.records[record as usize];
        r.under_way = Some(seq);
        let (kind, owner, word) = (AllocationKind::User, 0, GAddr::NULL);
        Ticket { record, token: r.token, seq, bytes, kind, owner, word, tier: None }
    }

    /// Whether the session that asked still waits for the answer.
    pub(super) fn waits(&self, ticket: &Ticket, probe: &impl Probe) -> bool {
        let r = &self.records[ticket.record as usize];
        if r.under_way.is_some() && probe.mutated(Mutation::ReuseSlotEarly) {
            return true;
        }
        r.token == ticket.token && r.under_way == Some(ticket.seq)
    }

    /// Ends serving a request; whether there is a client to answer.
    pub(super) fn finish(&mut self, ticket: &Ticket, probe: &impl Probe) -> bool {
        let waits = self.waits(ticket, probe);
        if waits {
            self.records[ticket.record as usize].under_way = None;
        }
        waits
    }

    /// Marks an atomic as begun: no redo record covers its effect.
    pub(super) fn intend<M: Persist>(&mut self, record: u32, seq: u64, mem: &M) {
        copies::store(mem, session_word(record, SessionWord::IntentSeq), seq);
        self.records[record as usize].intent_seq = seq;
    }

    /// Commits the prepared stores together with a request's result.
    pub(super) fn commit_result<W: World>(
        &mut self,
        record: u32,
        seq: u64,
        outcome: Outcome,
        redo: &mut Redo,
        world: &W,
    ) {
        let mut set = |word, value| redo.set(session_word(record, word), value);
        set(SessionWord::LastSeq, seq);
        set(SessionWord::ResultKind, outcome.kind as u64);
        set(SessionWord::ResultValue, outcome.value);
        set(SessionWord::ResultBytes, outcome.bytes);
        redo.commit(world);
        self.forget_allocated(record);
        let r = &mut self.records[record as usize];
        r.last_seq = seq;
        r.outcome = outcome;
        self.remember_allocated(record);
    }

    /// If `addr` is the last result of a session, adds to `redo` that this allocation is gone, so
    /// that a leave never frees what another client has got there since. Its record.
    pub(super) fn disown(&self, addr: u64, redo: &mut Redo) -> Option<u32> {
        let record = *self.last_allocated.get(&addr)?;
        redo.set(session_word(record, SessionWord::ResultBytes), 0);
        Some(record)
    }

    /// Notes that what [`Sessions::disown`] prepared was committed.
    pub(super) fn disowned(&mut self, record: u32) {
        self.forget_allocated(record);
        self.records[record as usize].outcome.bytes = 0;
    }

    /// Records with a live allocation in a range of addresses as the last result.
    pub(super) fn allocated_in(&self, range: Range<u64>) -> impl Iterator<Item = u32> + '_ {
        self.last_allocated.range(range).map(|(_, record)| *record)
    }

    /// Address and bytes of a record's last result if it is a live allocation with an answer that
    /// was not taken up to `consumed_seq`.
    pub(super) fn unconsumed(&self, record: u32, consumed_seq: u64) -> Option<(u64, u64)> {
        let r = &self.records[record as usize];
        let live = r.outcome.kind == ResultKind::Allocated && r.outcome.bytes > 0;
        (live && r.last_seq > consumed_seq).then_some((r.outcome.value, r.outcome.bytes))
    }

    fn remember_allocated(&mut self, record: u32) {
        let outcome = self.records[record as usize].outcome;
        if outcome.kind == ResultKind::Allocated && outcome.bytes > 0 {
            self.last_allocated.insert(outcome.value, record);
        }
    }

    fn forget_allocated(&mut self, record: u32) {
        let addr = self.records[record as usize].outcome.value;
        if self.last_allocated.get(&addr) == Some(&record) {
            self.last_allocated.remove(&addr);
        }
    }
}

/// The error of a full table of sessions.
pub(super) fn table_full(local: bool) -> Error {
    let (what, limit) = if local {
        ("the daemon's table of slots", SLOTS_MAX)
    } else {
        ("the daemon's table of remote sessions", REMOTE_SESSIONS_MAX)
    };
    Error::Busy { what: what.into(), limit: u64::from(limit) }
}
