//! Locks of a handle: asking for them, giving them back, and what a lost connection means for
//! them. What is decided is `core::client::HeldLocks`; guards here are numbers.

use super::io::Local;
use super::local::SimSlot;
use super::node::Node;
use super::{Link, LinkId, SimHandle};
use crate::mem::SimMem;
use crate::time::Ps;
use rackpool_core::client::{
    AtHome, Client, CoupledIo, Dropped, HeldLock, HeldLocks, LockRange, Losses, OWN,
};
use rackpool_core::runtime::client::{ANSWER_MS, Granted, Host, LocalLink, Runtime};
use rackpool_core::{Error, GAddr, Result, lock_releases};

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
    retry_releases_at: Option<Ps>,
}

impl Locks {
    /// With the rest of a handle, what talks to daemons.
    pub(super) fn runtime<'a>(
        &'a mut self,
        client: &'a mut Client<SimMem>,
        links: &'a mut Vec<Link>,
        node: &'a mut Node,
    ) -> Runtime<'a, LinkHost<'a>> {
        let Self { held, losses, changed, retry_releases_at } = self;
        Runtime { client, links, host: LinkHost { node, held, changed }, losses, retry_releases_at }
    }

    /// Owes a lock that has no guard.
    pub(super) fn give_back(&mut self, id: u64) {
        if let Some(held) = self.held.remove(id) {
            self.held.owe(held.release());
        }
    }
}

/// The rest of a handle, as its links see it.
pub(super) struct LinkHost<'a> {
    pub(super) node: &'a mut Node,
    held: &'a mut HeldLocks,
    changed: &'a mut bool,
}

impl Host for LinkHost<'_> {
    type Platform = Node;
    type Transport = Node;
    type Instant = Ps;

    fn apart<F: Future>(future: F) -> impl Future<Output = F::Output> {
        Box::pin(future)
    }

    fn platform(&mut self) -> &mut Node {
        self.node
    }

    fn transport(&mut self) -> &mut Node {
        self.node
    }

    fn on_mapped(&mut self, _: &mut Client<SimMem>, id: LinkId, link: &LocalLink<SimSlot>) {
        if id == OWN {
            self.node.fabric.attach(link.slot());
        }
    }

    fn with_held<R>(&mut self, run: impl FnOnce(&mut HeldLocks) -> R) -> R {
        run(self.held)
    }

    fn note_changed(&mut self) {
        *self.changed = true;
    }
}

impl SimHandle {
    pub(super) fn runtime(&mut self) -> Runtime<'_, LinkHost<'_>> {
        self.locks.runtime(&mut self.client, &mut self.links, &mut self.node)
    }

    /// Takes a lock, waiting up to `wait_ms`; 0 tries.
    pub async fn lock(&mut self, range: LockRange, write: bool, wait_ms: u64) -> Result<SimGuard> {
        self.settle_locked();
        let asked_ns = self.ctx.clock_ns();
        let wait = Ps::ms(wait_ms + ANSWER_MS);
        let deadline = self.ctx.now() + wait;
        self.runtime().before_lock(&range, deadline).await?;
        let mut op = AtHome::new(range.first, range.request(write, wait_ms));
        let timeout = self.timeout;
        self.timeout = timeout.max(wait);
        let answer = self.drive(&mut op, Local::None).await;
        self.timeout = timeout;
        let Granted { id, held } = self.runtime().on_lock_answer(range, op.link(), answer)?;
        if held.is_coupled {
            self.coupled.add(id, write, asked_ns, &held);
        }
        let HeldLock { link, addr: first, end, token, .. } = held;
        Ok(SimGuard { id, link, first, end, token })
    }

    /// Gives a lock back, after what was buffered under it.
    pub fn unlock(&mut self, guard: SimGuard) -> Result<()> {
        self.with_coupled(|coupled, io| coupled.unlock(io, guard.id, guard.lost()))
    }

    /// Asks whether a lock is held, after what was buffered under it has gone home.
    pub fn check_lock(&mut self, guard: &SimGuard) -> Result<()> {
        self.with_coupled(|coupled, io| coupled.check_lock(io, guard.id, guard.lost()))
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
        match self.links[held.link.0 as usize].local() {
            Some(link) if lock_releases::put(&link.slot().view.slot, held.token) => {
                link.slot().ring(&self.ctx);
            }
            _ => self.locks.held.owe(held.release()),
        }
    }

    /// Whether the handle has learned that a lock is lost.
    pub fn is_lost(&self, guard: &SimGuard) -> bool {
        self.locks.held.is_lost(guard.id)
    }

    pub(super) async fn give_locks_back(&mut self) {
        self.settle_locked();
        self.runtime().release_owed().await;
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
