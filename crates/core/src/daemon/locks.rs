//! Locks: names that one session holds alone or several hold together.
//!
//! In: lock and unlock requests admitted by `mod.rs`, ends of sessions and connections, time. Out:
//! answers, now or when it is the asker's turn. A lock's name is an aligned address of memory that
//! is allocated in this rack; it protects whatever its users agree on. Who asked first is served
//! first, so readers that come after a waiting writer wait behind it and nobody starves.
//!
//! Grants are in the private section, in a table of fixed length: a grant is one redo record
//! (entry, token, the session's result), a release is one store or a redo record with its result.
//! So they survive the daemon, and a session's locks end with its record. Waiting requests do not
//! survive: their clients ask again. A token is greater than all that this region gave before.
//!
//! Time decides only how long somebody waits. A lock goes to somebody else when it was given back
//! or when its holder's process is dead or its connection has ended: nothing that the holder sent
//! is executed after that, and a holder that comes back says what it holds and is told what is
//! lost before it sends anything. Source: DESIGN §3 (locks leased, with fencing tokens); Rcmp §5.4.

use crate::addr::GAddr;
use crate::constants::{LOCK_ALIGN_BYTES, LOCKS_MAX, LOCKS_OF_SESSION_MAX, SLOTS_MAX};
use crate::daemon::session::{Outcome, Sessions, Ticket};
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::layout::{LOCK_WRITE, LockWord, ResultKind, StateWord, lock_word};
use crate::seam::{Mem, Nanos};
use crate::wire::Reply;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// A grant.
#[derive(Clone, Copy, Debug)]
struct Hold {
    session: u64,
    token: u64,
    write: bool,
    /// Its entry in the table.
    entry: u32,
    /// When this process saw it first; `None` until the next tick.
    since: Option<Nanos>,
}

/// A request that waits for its turn.
#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    write: bool,
    wait_ns: Nanos,
    /// When its wait began; `None` until the next tick.
    since: Option<Nanos>,
}

#[derive(Debug, Default)]
struct Lock {
    holds: Vec<Hold>,
    waiting: VecDeque<Waiter>,
}

impl Lock {
    fn admits(&self, write: bool) -> bool {
        self.holds.iter().all(|hold| !write && !hold.write)
    }
}

/// All locks that somebody holds or waits for.
pub(super) struct Locks {
    locks: BTreeMap<u64, Lock>,
    /// Entries that are free.
    free: BTreeSet<u32>,
    /// Names that a session holds.
    held: BTreeMap<u64, BTreeSet<u64>>,
    /// Names that session records wait for; a session has one request under way.
    waiting_at: BTreeMap<u32, u64>,
    /// Names whose queue may go on.
    due: BTreeSet<u64>,
    token_last: u64,
    /// Whether something waits to be told the time.
    untimed: bool,
}

impl Locks {
    /// Whether a lock in a range of addresses is held or awaited.
    pub(super) fn any_in(&self, range: Range<u64>) -> bool {
        self.locks.range(range).next().is_some()
    }

    /// The last fencing token that was given.
    pub(super) fn token_last(&self) -> u64 {
        self.token_last
    }

    /// Tokens from now on are greater than `token`; whether that is news.
    pub(super) fn raise_token(&mut self, token: u64) -> bool {
        let news = token > self.token_last;
        self.token_last = self.token_last.max(token);
        news
    }

    /// Reads the table and drops what belonged to sessions that are over.
    pub(super) fn load<M: Mem>(mem: &M, sessions: &Sessions) -> Result<Locks> {
        let mut locks = Locks {
            locks: BTreeMap::new(),
            free: (0..LOCKS_MAX).collect(),
            held: BTreeMap::new(),
            waiting_at: BTreeMap::new(),
            due: BTreeSet::new(),
            token_last: mem.load(StateWord::LockToken.offset()),
            untimed: false,
        };
        for entry in 0..LOCKS_MAX {
            let name = mem.load(lock_word(entry, LockWord::Name));
            if name == 0 {
                continue;
            }
            let session = mem.load(lock_word(entry, LockWord::Session));
            let token = mem.load(lock_word(entry, LockWord::Token));
            let (addr, write) = (name & !LOCK_WRITE, name & LOCK_WRITE != 0);
            if sessions.record_of(session).is_none() {
                mem.store(lock_word(entry, LockWord::Name), 0);
                continue;
            }
            let hold = Hold { session, token, write, entry, since: None };
            let lock = locks.locks.entry(addr).or_default();
            let known = !addr.is_multiple_of(LOCK_ALIGN_BYTES) || token > locks.token_last;
            if known || token == 0 || !lock.admits(write) {
                let reason = format!("lock entry {entry} makes no sense: {name:#x}, {token}");
                return Err(Error::BadRegion { reason });
            }
            locks.insert(addr, hold);
        }
        Ok(locks)
    }

    fn insert(&mut self, addr: u64, hold: Hold) {
        self.free.remove(&hold.entry);
        self.held.entry(hold.session).or_default().insert(addr);
        self.locks.entry(addr).or_default().holds.push(hold);
        self.untimed = true;
    }

    fn remove(&mut self, addr: u64, session: u64) -> Option<Hold> {
        let lock = self.locks.get_mut(&addr)?;
        let index = lock.holds.iter().position(|hold| hold.session == session)?;
        let hold = lock.holds.remove(index);
        self.free.insert(hold.entry);
        if let Some(names) = self.held.get_mut(&session) {
            names.remove(&addr);
            if names.is_empty() {
                self.held.remove(&session);
            }
        }
        self.due.insert(addr);
        Some(hold)
    }

    fn hold(&self, addr: u64, session: u64) -> Option<&Hold> {
        self.locks.get(&addr)?.holds.iter().find(|hold| hold.session == session)
    }

    /// Takes a record's waiting request out of its queue; whether there was one.
    fn take_waiter(&mut self, record: u32) -> bool {
        let Some(addr) = self.waiting_at.remove(&record) else { return false };
        if let Some(lock) = self.locks.get_mut(&addr) {
            lock.waiting.retain(|waiter| waiter.ticket.record != record);
        }
        self.due.insert(addr);
        true
    }

    /// Grants and requests that wait.
    pub(super) fn counts(&self) -> (u64, u64) {
        (u64::from(LOCKS_MAX) - self.free.len() as u64, self.waiting_at.len() as u64)
    }

    /// Whether a tick would do something.
    pub(super) fn needs_tick(&self) -> bool {
        self.untimed || !self.waiting_at.is_empty() || !self.due.is_empty()
    }
}

impl Daemon {
    /// Serves an admitted request for the lock named by the ticket's word.
    pub(super) fn lock<W: World>(
        &mut self,
        ticket: Ticket,
        (write, wait_ms): (bool, u64),
        world: &mut W,
    ) {
        let addr = ticket.word;
        if let Err(error) = self.check_lock(&ticket, world) {
            return self.answer(&ticket, Err(error), world);
        }
        let lock = self.locks.locks.entry(addr.0).or_default();
        if lock.waiting.is_empty() && lock.admits(write) {
            return self.grant(&ticket, write, world);
        }
        let wait_ns = wait_ms.saturating_mul(1_000_000);
        lock.waiting.push_back(Waiter { ticket, write, wait_ns, since: None });
        self.locks.waiting_at.insert(ticket.record, addr.0);
        self.locks.untimed = true;
    }

    fn check_lock<W: World>(&self, ticket: &Ticket, world: &W) -> Result<()> {
        let addr = ticket.word;
        if !addr.0.is_multiple_of(LOCK_ALIGN_BYTES) {
            return Err(Error::Misaligned { addr, align_bytes: LOCK_ALIGN_BYTES });
        }
        self.locate_word(addr, world)?;
        let session = self.sessions.session(ticket.record);
        if let Some(hold) = self.locks.hold(addr.0, session) {
            return Err(Error::AlreadyLocked { addr, token: hold.token });
        }
        let of_session = self.locks.held.get(&session).map_or(0, BTreeSet::len);
        let busy = |what: &str, limit: u64| Err(Error::Busy { what: what.into(), limit });
        if of_session >= LOCKS_OF_SESSION_MAX {
            return busy("the locks that one handle holds", LOCKS_OF_SESSION_MAX as u64);
        }
        if self.locks.free.is_empty() {
            return busy("the rack's table of locks", u64::from(LOCKS_MAX));
        }
        Ok(())
    }

    /// Gives a lock to whoever asked: entry, token and result are one redo record.
    fn grant<W: World>(&mut self, ticket: &Ticket, write: bool, world: &mut W) {
        let session = self.sessions.session(ticket.record);
        let entry = *self.locks.free.first().expect("check_lock saw a free entry");
        let token = self.locks.token_last + 1;
        let name = ticket.word.0 | if write { LOCK_WRITE } else { 0 };
        self.redo.set(lock_word(entry, LockWord::Session), session);
        self.redo.set(lock_word(entry, LockWord::Token), token);
        self.redo.set(lock_word(entry, LockWord::Name), name);
        self.redo.set(StateWord::LockToken.offset(), token);
        let outcome = Outcome { kind: ResultKind::Locked, value: token, bytes: 0 };
        let (record, seq) = (ticket.record, ticket.seq);
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        self.locks.token_last = token;
        let hold = Hold { session, token, write, entry, since: None };
        self.locks.insert(ticket.word.0, hold);
        self.answer(ticket, Ok(Reply::Locked { token }), world);
    }

    /// Serves an admitted unlock: of the grant with this token, or of any for token 0. Answers
    /// whether the session held it.
    pub(super) fn unlock<W: World>(&mut self, ticket: &Ticket, token: u64, world: &mut W) {
        let addr = ticket.word.0;
        let session = self.sessions.session(ticket.record);
        let hold = self.locks.hold(addr, session);
        let hold = hold.filter(|hold| token == 0 || hold.token == token).copied();
        if let Some(hold) = hold {
            self.redo.set(lock_word(hold.entry, LockWord::Name), 0);
        }
        let held = hold.is_some();
        let value = u64::from(held);
        let outcome = Outcome { kind: ResultKind::Unlocked, value, bytes: 0 };
        let (record, seq) = (ticket.record, ticket.seq);
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        if held {
            self.locks.remove(addr, session);
        }
        self.answer(ticket, Ok(Reply::Held { held }), world);
    }

    /// A local client's guard was dropped: the lock that it holds under this token is given back.
    /// Tokens of nothing that it holds are ignored.
    pub fn release_lock<W: World>(&mut self, slot: u32, token: u64, world: &mut W) {
        assert!(slot < SLOTS_MAX, "a local client has a slot");
        let session = self.sessions.session(slot);
        let mut names = self.locks.held.get(&session).into_iter().flatten();
        let is_meant =
            |addr: &&u64| self.locks.hold(**addr, session).is_some_and(|hold| hold.token == token);
        if let Some(addr) = names.find(is_meant).copied()
            && let Some(hold) = self.locks.remove(addr, session)
        {
            world.private().store(lock_word(hold.entry, LockWord::Name), 0);
        }
        self.advance(world);
    }

    /// Whether a session record holds a lock under this token.
    pub fn holds_lock(&self, record: u32, addr: GAddr, token: u64) -> bool {
        let session = self.sessions.session(record);
        session != 0 && self.locks.hold(addr.0, session).is_some_and(|hold| hold.token == token)
    }

    /// The recorded grant, once more, unless it was lost since.
    pub(super) fn repeat_lock(&self, record: u32, addr: GAddr, token: u64) -> Result<Reply> {
        match self.holds_lock(record, addr, token) {
            true => Ok(Reply::Locked { token }),
            false => Err(Error::LockLost { addr, token }),
        }
    }

    /// A request that waits is given up: its client asks for something else or is gone.
    pub(super) fn cancel_lock(&mut self, record: u32) {
        if self.locks.take_waiter(record) {
            self.sessions.abandon(record);
        }
    }

    /// Ends the grants of a session, one store each.
    pub(super) fn release_session<W: World>(&mut self, session: u64, world: &mut W) {
        let names: Vec<u64> =
            self.locks.held.get(&session).into_iter().flatten().copied().collect();
        for addr in names {
            if let Some(hold) = self.locks.remove(addr, session) {
                world.private().store(lock_word(hold.entry, LockWord::Name), 0);
            }
        }
    }

    /// A remote client's connection has ended a lease ago: its locks go to whoever waits. If it
    /// comes back, [`Daemon::holds_lock`] tells what it lost.
    pub fn lose_locks<W: World>(&mut self, record: u32, world: &mut W) {
        assert!(record >= SLOTS_MAX, "a local client keeps its locks while it lives");
        self.cancel_lock(record);
        let session = self.sessions.session(record);
        if session != 0 {
            self.release_session(session, world);
        }
        self.advance(world);
    }

    /// Lets queues go on whose lock was given back or whose first request is gone.
    pub(super) fn serve_locks<W: World>(&mut self, world: &mut W) {
        while let Some(addr) = self.locks.due.pop_first() {
            while self.serve_lock(addr, world) {}
            if self
                .locks
                .locks
                .get(&addr)
                .is_some_and(|l| l.holds.is_empty() && l.waiting.is_empty())
            {
                self.locks.locks.remove(&addr);
            }
        }
    }

    /// Serves the first of a queue if it is its turn; whether to look at the next one.
    fn serve_lock<W: World>(&mut self, addr: u64, world: &mut W) -> bool {
        let Some(lock) = self.locks.locks.get_mut(&addr) else { return false };
        let Some(first) = lock.waiting.front() else { return false };
        let waits = self.sessions.waits(&first.ticket, world.private());
        if waits && !lock.admits(first.write) {
            return false;
        }
        let Some(Waiter { ticket, write, .. }) = lock.waiting.pop_front() else { return false };
        self.locks.waiting_at.remove(&ticket.record);
        if waits {
            match self.check_lock(&ticket, world) {
                Ok(()) => self.grant(&ticket, write, world),
                Err(error) => self.answer(&ticket, Err(error), world),
            }
        }
        true
    }

    /// Tells what is new when it began, and answers those who have waited long enough.
    pub(super) fn time_locks<W: World>(&mut self, now: Nanos, world: &mut W) {
        if std::mem::take(&mut self.locks.untimed) {
            for lock in self.locks.locks.values_mut() {
                lock.holds.iter_mut().for_each(|hold| _ = hold.since.get_or_insert(now));
                lock.waiting.iter_mut().for_each(|waiter| _ = waiter.since.get_or_insert(now));
            }
        }
        let over = |waiter: &&Waiter| {
            waiter.since.is_some_and(|since| since.saturating_add(waiter.wait_ns) <= now)
        };
        let names: BTreeSet<u64> = self.locks.waiting_at.values().copied().collect();
        let mut late = Vec::new();
        for lock in names.iter().filter_map(|addr| self.locks.locks.get(addr)) {
            let first = lock.holds.first().copied();
            late.extend(
                lock.waiting
                    .iter()
                    .filter(over)
                    .map(|waiter| (waiter.ticket, waiter.wait_ns, first)),
            );
        }
        for (ticket, wait_ns, hold) in late {
            self.locks.take_waiter(ticket.record);
            let error = self.lock_timeout(ticket.word, wait_ns, hold, now);
            self.answer(&ticket, Err(error), world);
        }
    }

    fn lock_timeout(&self, addr: GAddr, wait_ns: Nanos, hold: Option<Hold>, now: Nanos) -> Error {
        let session = hold.map_or(0, |hold| hold.session);
        let holder = self.sessions.iter().find(|info| info.session.0 == session);
        let since = hold.and_then(|hold| hold.since).unwrap_or(now);
        Error::LockTimeout {
            addr,
            waited_ms: wait_ns / 1_000_000,
            holder_pid: holder.map_or(0, |info| info.pid),
            held_ms: now.saturating_sub(since) / 1_000_000,
        }
    }
}
