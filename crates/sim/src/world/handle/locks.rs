//! Locks of a handle: asking for them, giving them back, and what a lost connection means for
//! them. What is decided is `core::client::HeldLocks`; guards here are numbers.

use super::io::Local;
use super::{Link, LinkId, SimHandle};
use crate::mem::SimMem;
use crate::time::Ps;
use crate::world::kernel::Input;
use rackpool_core::client::{
    AtHome, Client, Dropped, HeldLock, HeldLocks, LockRange, Losses, OwedLock, Reach,
};
use rackpool_core::wire::Reply;
use rackpool_core::{Error, GAddr, RackId, Result, lock_releases};

/// How much longer than the daemon a handle waits for the answer to a lock request.
const ANSWER: Ps = Ps::ms(1_000);
/// How long giving back what dropped guards held may delay a call.
const RELEASE: Ps = Ps::ms(100);
/// How long calls are not delayed after that.
const RETRY: Ps = Ps::ms(1_000);

/// A lock that was granted. The number is its guard's.
#[derive(Clone, Copy, Debug)]
pub struct SimGuard {
    pub id: u64,
    pub link: LinkId,
    /// Where its first line begins.
    pub first: GAddr,
    /// Where its last line ends.
    pub end: GAddr,
    pub token: u64,
}

impl SimGuard {
    fn lost(&self) -> Error {
        Error::LockLost { addr: self.first, token: self.token }
    }
}

/// What a handle knows of its locks.
#[derive(Default)]
pub(super) struct Locks {
    pub(super) held: HeldLocks,
    pub(super) losses: Losses,
    /// Whether a coupled guard was dropped or a lock was lost since the last look.
    pub(super) changed: bool,
    /// Not before this is a release tried again that failed.
    retry_at: Ps,
}

impl Locks {
    /// Notes that locks of a rack are lost, all of them or those with these tokens.
    pub(super) fn lose(&mut self, rack: RackId, tokens: Option<&[u64]>) {
        let lost = self.held.lose(rack, tokens);
        self.note(lost);
    }

    fn note(&mut self, lost: Option<Error>) {
        self.changed |= lost.is_some();
        self.losses.note(lost);
    }

    /// Notes that locks are lost because their pages have turned out to be elsewhere.
    pub(super) fn note_strays(&mut self, client: &mut Client<SimMem>) {
        let lost = if client.take_learnt() { self.held.stray(client) } else { None };
        self.note(lost);
    }

    /// Owes a lock that has no guard.
    pub(super) fn give_back(&mut self, id: u64) {
        if let Some(held) = self.held.remove(id) {
            self.held.owe(held.release());
        }
    }
}

impl SimHandle {
    /// Takes a lock, waiting up to `wait_ms`; 0 tries.
    pub async fn lock(&mut self, range: LockRange, write: bool, wait_ms: u64) -> Result<SimGuard> {
        self.settle_locked();
        let asked_ns = self.ctx.clock_ns();
        let LockRange { first, end, is_coupled } = range;
        let deadline = self.ctx.now() + Ps::ms(wait_ms) + ANSWER;
        // What was given up before must be out of the way if it was this very lock.
        self.release_until(Some((first, end)), deadline).await?;
        self.release_owed().await;
        let mut op = AtHome::new(first, range.request(write, wait_ms));
        let timeout = self.timeout;
        self.timeout = timeout.max(Ps::ms(wait_ms) + ANSWER);
        let result = self.drive(&mut op, Local::None).await;
        self.timeout = timeout;
        match result {
            Ok((link, Reply::Locked { token })) => {
                let one_sided = matches!(self.client.reach(link), Reach::OneSided(_));
                let range = LockRange { is_coupled: is_coupled && one_sided, ..range };
                let held = HeldLock::new(link, self.client.rack_of(link), range, token);
                let id = self.locks.held.take(held);
                if range.is_coupled {
                    self.coupled.add(id, write, asked_ns, &held);
                }
                Ok(SimGuard { id, link, first, end, token })
            }
            Ok((_, other)) => Err(Error::Protocol {
                peer: "daemon".into(),
                reason: format!("{other:?} answers a lock"),
            }),
            Err(error) => {
                // It may have been given, and no client knows.
                if let Some(link) = op.link().filter(|_| error.is_open()) {
                    self.locks.held.owe(OwedLock { link, addr: first, end, token: 0 });
                }
                Err(error)
            }
        }
    }

    /// Gives a lock back, after what was buffered under it.
    pub fn unlock(&mut self, guard: SimGuard) -> Result<()> {
        self.coupled(|coupled, io| coupled.unlock(io, guard.id, guard.lost()))
    }

    /// Asks whether a lock is held, after what was buffered under it has gone home.
    pub fn check_lock(&mut self, guard: &SimGuard) -> Result<()> {
        self.coupled(|coupled, io| coupled.check_lock(io, guard.id, guard.lost()))
    }

    pub fn drop_guard(&mut self, guard: SimGuard) {
        match self.locks.held.drop_guard(guard.id) {
            Dropped::Nothing => {}
            Dropped::Now => self.give_back(guard.id),
            Dropped::Later => self.locks.changed = true,
        }
    }

    /// Gives a lock back through a word of the slot, or owes it.
    fn give_back(&mut self, id: u64) {
        let Some(held) = self.locks.held.remove(id) else { return };
        let Link::Local(link) = &self.links[held.link.0 as usize] else {
            return self.locks.held.owe(held.release());
        };
        if !lock_releases::put(&link.view.slot, held.token) {
            return self.locks.held.owe(held.release());
        }
        if let Some((daemon, _)) = link.rack.daemon.get() {
            self.ctx.ring(daemon, Input::Bell(link.slot));
        }
    }

    /// Whether the handle has learned that a lock is lost.
    pub fn is_lost(&self, guard: &SimGuard) -> bool {
        self.locks.held.is_lost(guard.id)
    }

    pub(super) async fn give_locks_back(&mut self) {
        self.settle_locked();
        self.release_owed().await;
    }

    async fn release_owed(&mut self) {
        if !self.locks.held.owes() || self.ctx.now() < self.locks.retry_at {
            return;
        }
        let deadline = self.ctx.now() + RELEASE;
        if self.release_until(None, deadline).await.is_err() {
            self.locks.retry_at = self.ctx.now() + RETRY;
        }
    }

    async fn release_until(&mut self, only: Option<(GAddr, GAddr)>, deadline: Ps) -> Result<()> {
        while let Some(release) = self.locks.held.next_release(only) {
            let answer = self.daemon_call(release.link, release.request(), deadline).await;
            self.locks.held.released(release, answer.is_ok());
            answer?;
        }
        Ok(())
    }

    /// The handle ends: what is buffered goes home, and all that is held is given back.
    pub(super) async fn end_locks(&mut self) {
        self.flush_locked();
        for id in self.locks.held.ids() {
            self.give_back(id);
        }
        self.give_locks_back().await;
    }
}
