//! Locks: lines of memory that one session holds alone or several hold together.
//!
//! In: lock and unlock requests admitted by `mod.rs`, ends of sessions and connections, time. Out:
//! answers, now or when it is the asker's turn. A grant is of all lines of a range, which lies in
//! one page of allocated memory of this rack; its first line names it. Ranges that share a line
//! exclude each other, unless both are held for reading. All of a range is granted at once or
//! nothing is, and the first asker is served first where ranges meet: so readers that come after a
//! waiting writer wait behind it, no client starves, and none holds a part and waits for the rest.
//!
//! Grants are in the private section, in a table of fixed length: a grant is one redo record
//! (entry, token, the session's result), a release is one store or a redo record with its result.
//! So they survive the daemon, and a session's locks end with its record. Waiting requests do not
//! survive: their clients ask again. A token is greater than all that this region gave before.
//!
//! Time decides only how long a client waits. A lock goes to another client when it was given back
//! or when its holder's process is dead or its connection has ended: nothing that the holder sent
//! is executed after that, and a holder that comes back says what it holds and is told what is lost
//! before it sends anything. Source: DESIGN §3 (locks leased, with fencing tokens); Rcmp §5.4.

use crate::addr::{GAddr, PageGeometry};
use crate::constants::{LOCK_ALIGN_BYTES, LOCKS_MAX, LOCKS_OF_SESSION_MAX, SLOTS_MAX};
use crate::copies;
use crate::daemon::session::{Outcome, Sessions, Ticket};
use crate::daemon::{ClientId, Daemon, World};
use crate::error::{Error, Result};
use crate::layout::{LOCK_WRITE, LockWord, ResultKind, StateWord, lock_word};
use crate::lock_releases;
use crate::persist::Persist;
use crate::seam::{Mem, Mutation, Nanos, Probe, Race};
use crate::wire::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::ops;

/// Addresses of whole lines within one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineRange {
    first: u64,
    end: u64,
}

impl LineRange {
    /// As a ticket names it.
    fn of(ticket: &Ticket) -> LineRange {
        LineRange { first: ticket.word.0, end: ticket.word.0 + ticket.bytes }
    }

    fn meets(&self, other: &LineRange) -> bool {
        self.first < other.end && other.first < self.end
    }

    fn lines(&self) -> u64 {
        (self.end - self.first) / LOCK_ALIGN_BYTES
    }
}

#[derive(Clone, Copy, Debug)]
struct LockGrant {
    range: LineRange,
    session: u64,
    token: u64,
    write: bool,
    /// Its entry in the table.
    entry: u32,
    /// When this process saw it first; `None` until the next tick.
    since: Option<Nanos>,
}

impl LockGrant {
    fn excludes(&self, range: &LineRange, write: bool) -> bool {
        (write || self.write) && self.range.meets(range)
    }
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

/// What orders requests that wait: their page, then when they came.
type Turn = (u64, u64);

/// All locks that clients hold or wait for.
pub(super) struct Locks {
    pages: PageGeometry,
    /// By first line and token.
    holds: BTreeMap<(u64, u64), LockGrant>,
    waiting: BTreeMap<Turn, Waiter>,
    free: BTreeSet<u32>,
    /// First lines and tokens of what a session holds.
    held: BTreeMap<u64, BTreeSet<(u64, u64)>>,
    /// The turns that session records wait for; a session has one request under way.
    waiting_at: BTreeMap<u32, Turn>,
    /// Pages with a queue that may go on.
    due: BTreeSet<u64>,
    turn_last: u64,
    token_last: u64,
    /// Whether something waits to be told the time.
    untimed: bool,
}

impl Locks {
    /// Whether a lock in a range of addresses, which is a page, is held or awaited.
    pub(super) fn any_in(&self, range: ops::Range<u64>) -> bool {
        let page = self.pages.page(GAddr(range.start)).0;
        let held = self.holds.range((range.start, 0)..(range.end, 0)).next();
        held.is_some() || self.waiting.range((page, 0)..=(page, u64::MAX)).next().is_some()
    }

    /// Whether a session has a lock.
    pub(super) fn has_any(&self, session: u64) -> bool {
        self.held.contains_key(&session)
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
    pub(super) fn load<M: Persist>(
        mem: &M,
        sessions: &Sessions,
        pages: PageGeometry,
    ) -> Result<Locks> {
        let mut locks = Locks {
            pages,
            holds: BTreeMap::new(),
            waiting: BTreeMap::new(),
            free: (0..LOCKS_MAX).collect(),
            held: BTreeMap::new(),
            waiting_at: BTreeMap::new(),
            due: BTreeSet::new(),
            turn_last: 0,
            token_last: copies::load(mem, StateWord::LockToken.offset())?,
            untimed: false,
        };
        for entry in 0..LOCKS_MAX {
            let name = copies::load(mem, lock_word(entry, LockWord::Name))?;
            if name == 0 {
                continue;
            }
            let session = copies::load(mem, lock_word(entry, LockWord::Session))?;
            let token = copies::load(mem, lock_word(entry, LockWord::Token))?;
            let lines = copies::load(mem, lock_word(entry, LockWord::Lines))?;
            let (first, write) = (name & !LOCK_WRITE, name & LOCK_WRITE != 0);
            let dropped = mem.mutated(Mutation::DropLocksAtAttach);
            if sessions.record_of(session).is_none() || dropped {
                copies::store(mem, lock_word(entry, LockWord::Name), 0);
                continue;
            }
            let range = locks.range_of(GAddr(first), lines);
            let known = range.ok().filter(|range| {
                (1..=locks.token_last).contains(&token) && locks.excluding(range, write).is_none()
            });
            let Some(range) = known else {
                let reason =
                    format!("lock entry {entry} makes no sense: {name:#x}, {lines}, {token}");
                return Err(Error::BadRegion { reason });
            };
            locks.insert(LockGrant { range, session, token, write, entry, since: None });
        }
        Ok(locks)
    }

    /// The range of `lines` lines from `addr` on, if there is one.
    fn range_of(&self, addr: GAddr, lines: u64) -> Result<LineRange> {
        if !addr.0.is_multiple_of(LOCK_ALIGN_BYTES) {
            return Err(Error::Misaligned { addr, align_bytes: LOCK_ALIGN_BYTES });
        }
        let limit_bytes = self.pages.page_bytes() - self.pages.offset(addr);
        let bytes = lines.saturating_mul(LOCK_ALIGN_BYTES);
        let end = addr.checked_add(bytes).filter(|_| (1..=limit_bytes).contains(&bytes));
        let end = end.ok_or(Error::OutOfBounds { addr, bytes, limit_bytes })?;
        Ok(LineRange { first: addr.0, end: end.0 })
    }

    fn insert(&mut self, hold: LockGrant) {
        let key = (hold.range.first, hold.token);
        self.free.remove(&hold.entry);
        self.held.entry(hold.session).or_default().insert(key);
        self.holds.insert(key, hold);
        self.untimed = true;
    }

    fn remove(&mut self, key: (u64, u64)) -> Option<LockGrant> {
        let hold = self.holds.remove(&key)?;
        self.free.insert(hold.entry);
        if let Some(keys) = self.held.get_mut(&hold.session) {
            keys.remove(&key);
            if keys.is_empty() {
                self.held.remove(&hold.session);
            }
        }
        self.due.insert(self.pages.page(GAddr(key.0)).0);
        Some(hold)
    }

    /// What a session holds by this name.
    fn hold(&self, addr: GAddr, session: u64) -> Option<&LockGrant> {
        let mut named = self.holds.range((addr.0, 0)..=(addr.0, u64::MAX));
        named.find(|(_, hold)| hold.session == session).map(|(_, hold)| hold)
    }

    /// Grants that share a line with a range: they lie in its page.
    fn meeting(&self, range: &LineRange) -> impl Iterator<Item = &LockGrant> {
        let page_first = range.first - self.pages.offset(GAddr(range.first));
        let (range, near) = (*range, self.holds.range((page_first, 0)..(range.end, 0)));
        near.map(|(_, hold)| hold).filter(move |hold| hold.range.meets(&range))
    }

    /// A grant that is in the way of a range.
    fn excluding(&self, range: &LineRange, write: bool) -> Option<&LockGrant> {
        self.meeting(range).find(|hold| hold.excludes(range, write))
    }

    /// Whether no request that came before `turn` is in the way of a range.
    fn admits(&self, range: &LineRange, write: bool, turn: Turn) -> bool {
        self.excluding(range, write).is_none()
            && self.waiting.range((turn.0, 0)..turn).all(|(_, before)| {
                !(write || before.write) || !LineRange::of(&before.ticket).meets(range)
            })
    }

    /// Takes a record's waiting request out of its queue; whether there was one.
    fn take_waiter(&mut self, record: u32) -> bool {
        let Some(turn) = self.waiting_at.remove(&record) else { return false };
        self.waiting.remove(&turn);
        self.due.insert(turn.0);
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
    /// Serves an admitted request for the lines that the ticket's word and bytes name.
    pub(super) fn lock<W: World>(
        &mut self,
        ticket: Ticket,
        write: bool,
        wait_ms: u64,
        world: &mut W,
    ) {
        let range = match self.check_lock(&ticket, world) {
            Ok(range) => range,
            Err(error) => return self.answer(&ticket, Err(error), world),
        };
        self.locks.turn_last += 1;
        let turn = (self.layout.pages.page(ticket.word).0, self.locks.turn_last);
        let unseen = world.private().mutated(Mutation::GrantMeetingRange);
        if unseen || self.locks.admits(&range, write, turn) {
            return self.grant(&ticket, write, world);
        }
        let wait_ns = wait_ms.saturating_mul(1_000_000);
        self.locks.waiting_at.insert(ticket.record, turn);
        self.locks.waiting.insert(turn, Waiter { ticket, write, wait_ns, since: None });
        self.locks.untimed = true;
    }

    fn check_lock<W: World>(&self, ticket: &Ticket, world: &W) -> Result<LineRange> {
        let addr = ticket.word;
        let range = self.locks.range_of(addr, ticket.bytes / LOCK_ALIGN_BYTES)?;
        self.locate_word(addr, world)?;
        self.locate_word(GAddr(range.end - LOCK_ALIGN_BYTES), world)?;
        let session = self.sessions.session(ticket.record);
        if let Some(hold) = self.locks.meeting(&range).find(|hold| hold.session == session) {
            let (addr, token) = (GAddr(hold.range.first), hold.token);
            return Err(Error::AlreadyLocked { addr, token });
        }
        let of_session = self.locks.held.get(&session).map_or(0, BTreeSet::len);
        let busy = |what: &str, limit: u64| Err(Error::Busy { what: what.into(), limit });
        if of_session >= LOCKS_OF_SESSION_MAX {
            return busy("the locks that one handle holds", LOCKS_OF_SESSION_MAX as u64);
        }
        if self.locks.free.is_empty() {
            return busy("the rack's table of locks", u64::from(LOCKS_MAX));
        }
        Ok(range)
    }

    /// Gives a lock to the client that asked: entry, token and result are one redo record.
    fn grant<W: World>(&mut self, ticket: &Ticket, write: bool, world: &mut W) {
        let (session, range) = (self.sessions.session(ticket.record), LineRange::of(ticket));
        let entry = *self.locks.free.first().expect("check_lock saw a free entry");
        let step = u64::from(!world.private().mutated(Mutation::ReuseToken));
        let token = (self.locks.token_last + step).max(1);
        let name = ticket.word.0 | if write { LOCK_WRITE } else { 0 };
        self.redo.set(lock_word(entry, LockWord::Session), session);
        self.redo.set(lock_word(entry, LockWord::Token), token);
        self.redo.set(lock_word(entry, LockWord::Lines), range.lines());
        self.redo.set(lock_word(entry, LockWord::Name), name);
        self.redo.set(StateWord::LockToken.offset(), token);
        let outcome = Outcome { kind: ResultKind::Locked, value: token, bytes: 0 };
        let (record, seq) = (ticket.record, ticket.seq);
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        self.locks.token_last = token;
        self.locks.insert(LockGrant { range, session, token, write, entry, since: None });
        self.answer(ticket, Ok(Reply::Locked { token }), world);
    }

    /// Serves an admitted unlock: of the grant with this token, or of any for token 0. Answers
    /// whether the session held it.
    pub(super) fn unlock<W: World>(&mut self, ticket: &Ticket, token: u64, world: &mut W) {
        let session = self.sessions.session(ticket.record);
        let hold = self.locks.hold(ticket.word, session);
        let hold = hold.filter(|hold| token == 0 || hold.token == token).copied();
        if let Some(hold) = hold {
            self.redo.set(lock_word(hold.entry, LockWord::Name), 0);
        }
        let held = hold.is_some();
        let value = u64::from(held);
        let outcome = Outcome { kind: ResultKind::Unlocked, value, bytes: 0 };
        let (record, seq) = (ticket.record, ticket.seq);
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        if let Some(hold) = hold {
            self.locks.remove((hold.range.first, hold.token));
        }
        self.answer(ticket, Ok(Reply::Held { held }), world);
    }

    /// A local client's guard was dropped: the lock that it holds under this token is given back.
    /// Tokens of nothing that it holds are ignored.
    pub fn release_lock<W: World>(&mut self, slot: u32, token: u64, world: &mut W) {
        assert!(slot < SLOTS_MAX, "a local client has a slot");
        self.refuse_held(ClientId::Slot(slot), world);
        let session = self.sessions.session(slot);
        let mut keys = self.locks.held.get(&session).into_iter().flatten();
        if let Some(key) = keys.find(|(_, held)| *held == token).copied()
            && let Some(hold) = self.locks.remove(key)
        {
            copies::store(world.private(), lock_word(hold.entry, LockWord::Name), 0);
        }
        self.advance(world);
    }

    /// Takes what a slot's client has given back through the words of its slot, see
    /// [`lock_releases`]; whether there was anything.
    pub fn take_releases<W: World>(&mut self, slot: u32, world: &mut W) -> bool {
        let mut worked = false;
        while let Some((token, at)) = world.slot(slot).and_then(lock_releases::first) {
            worked = true;
            if !world.private().mutated(Mutation::LoseReleases) {
                world.private().met(Race::LockReleased);
                self.release_lock(slot, token, world);
            }
            if let Some(slot) = world.slot(slot) {
                slot.store(at, 0);
            }
        }
        worked
    }

    /// Whether a session record holds a lock under this token.
    pub fn holds_lock(&self, record: u32, addr: GAddr, token: u64) -> bool {
        let session = self.sessions.session(record);
        session != 0 && self.locks.hold(addr, session).is_some_and(|hold| hold.token == token)
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
        if world.private().mutated(Mutation::KeepLocksOfDead) {
            return;
        }
        let keys: Vec<(u64, u64)> =
            self.locks.held.get(&session).into_iter().flatten().copied().collect();
        for key in keys {
            if let Some(hold) = self.locks.remove(key) {
                copies::store(world.private(), lock_word(hold.entry, LockWord::Name), 0);
            }
        }
    }

    /// A remote client's connection has ended a lease ago: its locks go to the clients that wait.
    /// If it comes back, [`Daemon::holds_lock`] tells what it lost.
    pub fn lose_locks<W: World>(&mut self, record: u32, world: &mut W) {
        assert!(record >= SLOTS_MAX, "a local client keeps its locks while it lives");
        self.cancel_lock(record);
        let session = self.sessions.session(record);
        if session != 0 {
            self.release_session(session, world);
        }
        self.advance(world);
    }

    /// Lets queues go on where a lock was given back or a request is gone.
    pub(super) fn serve_locks<W: World>(&mut self, world: &mut W) {
        while let Some(page) = self.locks.due.pop_first() {
            self.serve_page(page, world);
        }
    }

    /// Serves the requests in a page's queue that have their turn. Once is enough: a request that
    /// leaves the queue is in the way only of those that came after.
    fn serve_page<W: World>(&mut self, page: u64, world: &mut W) {
        let mut next = (page, 0);
        while let Some((turn, waiter)) = self.locks.waiting.range(next..(page + 1, 0)).next() {
            let (turn, ticket, write) = (*turn, waiter.ticket, waiter.write);
            next = (page, turn.1 + 1);
            let waits = self.sessions.waits(&ticket, world.private());
            if waits && !self.locks.admits(&LineRange::of(&ticket), write, turn) {
                continue;
            }
            self.locks.waiting.remove(&turn);
            self.locks.waiting_at.remove(&ticket.record);
            if waits {
                match self.check_lock(&ticket, world) {
                    Ok(_) => self.grant(&ticket, write, world),
                    Err(error) => self.answer(&ticket, Err(error), world),
                }
            }
        }
    }

    /// Tells what is new when it began, and answers the requests that have waited long enough.
    pub(super) fn time_locks<W: World>(&mut self, now: Nanos, world: &mut W) {
        if std::mem::take(&mut self.locks.untimed) {
            let holds = self.locks.holds.values_mut();
            holds.for_each(|hold| _ = hold.since.get_or_insert(now));
            let waiting = self.locks.waiting.values_mut();
            waiting.for_each(|waiter| _ = waiter.since.get_or_insert(now));
        }
        let over = |waiter: &&Waiter| {
            waiter.since.is_some_and(|since| since.saturating_add(waiter.wait_ns) <= now)
        };
        let late = self.locks.waiting.values().filter(over);
        let late: Vec<_> =
            late.map(|waiter| (waiter.ticket, waiter.write, waiter.wait_ns)).collect();
        for (ticket, write, wait_ns) in late {
            let hold = self.locks.excluding(&LineRange::of(&ticket), write).copied();
            self.locks.take_waiter(ticket.record);
            let error = self.lock_timeout(ticket.word, wait_ns, hold, now);
            self.answer(&ticket, Err(error), world);
        }
    }

    fn lock_timeout(
        &self,
        addr: GAddr,
        wait_ns: Nanos,
        hold: Option<LockGrant>,
        now: Nanos,
    ) -> Error {
        let session = hold.map_or(0, |hold| hold.session);
        let holder = self.sessions.iter().find(|info| info.session.0 == session);
        let since = hold.and_then(|hold| hold.since).unwrap_or(now);
        Error::LockTimeout {
            addr,
            waited_ms: wait_ns / 1_000_000,
            // Without the host, if it is another one.
            holder_pid: holder.map_or(0, |info| info.pid & u64::from(u32::MAX)),
            held_ms: now.saturating_sub(since) / 1_000_000,
        }
    }
}
