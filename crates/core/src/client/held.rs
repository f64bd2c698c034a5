//! The locks that a handle holds, as the handle knows: what it shows to a rack that it reaches
//! again, what it lost meanwhile, and what it owes since guards were dropped.
//!
//! In: grants, dropped guards, answers of racks that were reached again. Out: names and tokens for
//! a `Join`, locks to be given back, and the news that locks are lost ([`Losses`]), which end what
//! was under way before anything else is sent. A runtime with guards on other threads shares it
//! with them; it never waits. Source: decision 0015.

use super::{Client, LinkId};
use crate::addr::{GAddr, PageGeometry, RackId};
use crate::constants::LOCK_ALIGN_BYTES;
use crate::error::{Error, Result};
use crate::seam::{Mem, Mutation, Race};
use crate::wire::Request;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// Where the first line begins: the lock's name.
    pub first: GAddr,
    /// Where the last line ends.
    pub end: GAddr,
    /// With their data (decision 0020).
    pub is_coupled: bool,
}

impl LockRange {
    /// The line that names a lock. What is not aligned is refused by the daemon that is asked.
    pub fn line(addr: GAddr) -> LockRange {
        let end = GAddr(addr.0.saturating_add(LOCK_ALIGN_BYTES));
        LockRange { first: addr, end, is_coupled: false }
    }

    /// The lines of `bytes` bytes at `addr`, within one page, to be coupled with their data.
    ///
    /// # Errors
    /// `out-of-bounds` for no bytes and across pages.
    pub fn of(geometry: PageGeometry, addr: GAddr, bytes: u64) -> Result<LockRange> {
        let limit_bytes = geometry.page_bytes() - geometry.offset(addr);
        if !(1..=limit_bytes).contains(&bytes) {
            return Err(Error::OutOfBounds { addr, bytes, limit_bytes });
        }
        let first = GAddr(addr.0 & !(LOCK_ALIGN_BYTES - 1));
        let over = (addr.0 + (bytes - 1)) | (LOCK_ALIGN_BYTES - 1);
        let end = GAddr(over.checked_add(1).ok_or(Error::NotMapped { addr })?);
        Ok(LockRange { first, end, is_coupled: true })
    }

    pub fn request(&self, write: bool, wait_ms: u64) -> Request {
        let lines = u32::try_from((self.end.0 - self.first.0) / LOCK_ALIGN_BYTES);
        let lines = lines.expect("the lines of a page are counted in 32 bits");
        Request::Lock { addr: self.first, lines, write, wait_ms }
    }
}

/// A lock that is held, or was until it was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The link to its rack.
    pub link: LinkId,
    pub rack: RackId,
    /// Where its first line begins.
    pub addr: GAddr,
    /// Where its last line ends.
    pub end: GAddr,
    pub token: u64,
    /// The handle has writes or copies of its bytes.
    pub is_coupled: bool,
    /// The guard is gone; the handle has not seen that yet.
    is_dropped: bool,
    is_lost: bool,
}

impl HeldLock {
    /// A lock that was just granted.
    pub fn new((link, rack): (LinkId, RackId), range: LockRange, token: u64) -> HeldLock {
        let LockRange { first: addr, end, is_coupled } = range;
        let (is_dropped, is_lost) = (false, false);
        HeldLock { link, rack, addr, end, token, is_coupled, is_dropped, is_lost }
    }

    pub fn release(&self) -> OwedLock {
        OwedLock { link: self.link, addr: self.addr, end: self.end, token: self.token }
    }

    /// What its user is told when it is gone.
    pub fn lost(&self) -> Error {
        Error::LockLost { addr: self.addr, token: self.token }
    }
}

/// A lock to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwedLock {
    /// The link to its rack.
    pub link: LinkId,
    /// Where its first line begins.
    pub addr: GAddr,
    /// Where its last line ends.
    pub end: GAddr,
    /// Its token; 0: whatever the session has of it.
    pub token: u64,
}

impl OwedLock {
    pub fn request(&self) -> Request {
        Request::Unlock { addr: self.addr, token: self.token }
    }
}

/// What the end of a guard asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Nothing is left of it.
    Nothing,
    /// The handle has writes or copies of its bytes: it sees to it with its next call.
    Later,
    /// It is to be given back now.
    Now,
}

/// All locks of a handle.
#[derive(Debug, Default)]
pub struct HeldLocks {
    next_id: u64,
    held: BTreeMap<u64, HeldLock>,
    releases: Vec<OwedLock>,
}

impl HeldLocks {
    /// A lock was granted; the number of its guard.
    pub fn take(&mut self, lock: HeldLock) -> u64 {
        self.next_id += 1;
        self.held.insert(self.next_id, lock);
        self.next_id
    }

    /// A guard's lock, if it is held as far as the handle knows.
    pub fn get(&self, id: u64) -> Option<&HeldLock> {
        self.held.get(&id).filter(|held| !held.is_lost)
    }

    /// Whether a guard's lock is known to be lost.
    pub fn is_lost(&self, id: u64) -> bool {
        self.held.get(&id).is_none_or(|held| held.is_lost)
    }

    /// Names and tokens of the locks that are held in a rack: what it is shown when it is reached
    /// again.
    pub fn held_in(&self, rack: RackId) -> Vec<(GAddr, u64)> {
        let held = self.held.values().filter(|held| held.rack == rack && !held.is_lost);
        held.map(|held| (held.addr, held.token)).collect()
    }

    /// Whether there are no locks, nor guards of lost ones.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether a lock is held behind a link, as far as the handle knows. Then its memory is read at
    /// home, where a client that has lost the lock is told so: a replica would be read without
    /// that.
    pub fn holds_at(&self, link: LinkId) -> bool {
        self.held.values().any(|held| held.link == link && !held.is_lost)
    }

    /// Notes that locks of a rack are lost, all of them or those with these tokens; the error of
    /// one of them.
    pub fn lose(&mut self, rack: RackId, tokens: Option<&[u64]>) -> Option<Error> {
        let mut first = None;
        for held in self.held.values_mut() {
            let named = tokens.is_none_or(|tokens| tokens.contains(&held.token));
            if held.rack == rack && named && !held.is_lost {
                held.is_lost = true;
                first.get_or_insert(held.lost());
            }
        }
        first
    }

    /// Notes the loss of locks in pages that have turned out to be elsewhere; the error of one of
    /// them. A page with a lock stays where it is, so its lock went before it did, though its rack
    /// has not been heard since: what goes to the page's new home would go there without a lock.
    pub fn stray<M: Mem>(&mut self, client: &Client<M>) -> Option<Error> {
        let mut first = None;
        for held in self.held.values_mut().filter(|held| !held.is_lost) {
            let known = client.translation(client.geometry().page(held.addr));
            let elsewhere = known.is_some_and(|home| home.link != held.link);
            if elsewhere && !client.mutated(Mutation::FollowLockedPage) {
                client.met(Race::LockedPageGone);
                held.is_lost = true;
                first.get_or_insert(held.lost());
            }
        }
        first
    }

    pub fn drop_guard(&mut self, id: u64) -> Dropped {
        match self.held.get_mut(&id) {
            None => Dropped::Nothing,
            Some(held) if held.is_coupled => {
                held.is_dropped = true;
                Dropped::Later
            }
            Some(_) => Dropped::Now,
        }
    }

    /// Coupled guards that are gone.
    pub fn dropped(&self) -> Vec<u64> {
        self.held.iter().filter(|(_, held)| held.is_dropped).map(|(id, _)| *id).collect()
    }

    pub fn ids(&self) -> Vec<u64> {
        self.held.keys().copied().collect()
    }

    /// Takes a lock out: from now on the caller gives it back. Nothing if it is lost.
    pub fn remove(&mut self, id: u64) -> Option<HeldLock> {
        self.held.remove(&id).filter(|held| !held.is_lost)
    }

    /// A lock has to be given back with a later call.
    pub fn owe(&mut self, release: OwedLock) {
        self.releases.push(release);
    }

    /// Whether something has to be given back.
    pub fn owes(&self) -> bool {
        !self.releases.is_empty()
    }

    /// What is to be given back next, of everything or of what meets a range.
    pub fn next_release(&self, only: Option<(GAddr, GAddr)>) -> Option<OwedLock> {
        let is_meant =
            |one: &&OwedLock| only.is_none_or(|(first, end)| one.addr < end && first < one.end);
        self.releases.iter().find(is_meant).copied()
    }

    /// The rack has answered: one that does not know the lock has not got it. Without an answer the
    /// lock goes behind the others, so that a rack that is gone delays no lock of another rack.
    pub fn released(&mut self, release: OwedLock, answered: bool) {
        self.releases.retain(|one| *one != release);
        if !answered {
            self.releases.push(release);
        }
    }
}

/// Locks that a handle lost without asking, told once, to the next operation.
#[derive(Debug, Default)]
pub struct Losses {
    count: u64,
    last: Option<Error>,
    is_told: bool,
}

impl Losses {
    /// Notes what [`HeldLocks::lose`] said.
    pub fn note(&mut self, lost: Option<Error>) {
        if lost.is_some() {
            *self = Losses { count: self.count + 1, last: lost, is_told: false };
        }
    }

    /// How often locks were lost so far: what began before a loss ends with it.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last loss, for an access that was under way when it happened.
    pub fn told(&mut self) -> Error {
        self.is_told = true;
        self.last.clone().expect("a loss was counted")
    }

    /// A loss that was not reported yet, for the first access after it.
    pub fn tell(&mut self) -> Result<()> {
        match self.last.clone().filter(|_| !self.is_told) {
            Some(error) => {
                self.is_told = true;
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// The loss was reported in other words.
    pub fn mark_told(&mut self) {
        self.is_told = true;
    }

    /// How a request that was not sent again because of the last loss ends: that reports the loss,
    /// so it is not reported again.
    pub fn ended(&mut self, error: Error) -> Error {
        self.is_told |= matches!(error, Error::LockLost { .. });
        error
    }

    /// The operation that was told has no caller to tell: the next one is told.
    pub fn untell(&mut self) {
        self.is_told = false;
    }

    /// The last loss, for an operation that has no caller to tell.
    pub fn last(&self) -> Error {
        self.last.clone().expect("a loss was counted")
    }
}
