//! Locks of the pool, as a handle's user sees them: guards that are given back when they are
//! dropped, and what the handle knows of them.
//!
//! A guard shares a table with its handle and borrows nothing, so the handle reads and writes
//! while it is held. Dropping the guard of a mapped rack puts its token into a word of the slot and
//! rings the doorbell; over a fabric it is noted in the table, and the handle gives the lock back
//! with its next call that sends anything. [`Handle::unlock`] gives it back at once and says how
//! that went. Whatever way a handle ends, the daemon ends its locks with its session.

use crate::clock;
use crate::drive::{Buffers, Parts, block, driver};
use crate::handle::Handle;
use crate::local::Door;
use rackpool_core::client::{
    AtHome, CoupledIo, Dropped, HeldLock, HeldLocks, LinkId, LockRange, Operation,
};
use rackpool_core::runtime::client::{ANSWER_MS, Granted};
use rackpool_core::{Error, GAddr, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A lock that is held; given back when it is dropped. See [`Handle::lock`].
#[derive(Debug)]
pub struct LockGuard {
    id: u64,
    addr: GAddr,
    end: GAddr,
    token: u64,
    table: Arc<LockTable>,
}

/// What a lock lets others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Others may hold it for reading at the same time, none for writing.
    Read,
    /// No other handle holds it.
    Write,
}

/// What is locked, and how long it is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockOptions {
    range_bytes: Option<u64>,
    wait_ms: Option<u64>,
}

impl LockOptions {
    /// The line of 64 bytes that the address names, which is a multiple of 64; what it protects is
    /// its users' agreement.
    pub fn line() -> Self {
        Self::default()
    }

    /// The lines of `bytes` bytes at the address, within one page: no other handle has a lock of
    /// any of them, and none gets one while the guard lives. All are locked at once or none is; the
    /// first to ask for any of them is served first.
    ///
    /// The lock is coupled with its data: in another rack's memory, reached over a fabric, writes
    /// of up to 256 bytes inside the range are gathered in the handle and go home together, before
    /// the lock is given back ([`Handle::unlock`] says whether they arrived), before
    /// [`Handle::check_lock`] asks for it, when the buffer is full, or when the handle does
    /// something else that others could see through the fabric. Its own reads see them at once;
    /// others see them when they have the lock. While a guard for reading lives, reads inside the
    /// range are served from copies where the handle has them.
    pub fn range(bytes: u64) -> Self {
        Self { range_bytes: Some(bytes), wait_ms: None }
    }

    /// Waits for so long instead of `request_timeout_ms`; 0 tries.
    pub fn within_ms(self, wait_ms: u64) -> Self {
        Self { wait_ms: Some(wait_ms), ..self }
    }
}

impl LockGuard {
    /// The lock's name: the first of its lines.
    pub fn addr(&self) -> GAddr {
        self.addr
    }

    /// How much is locked from [`LockGuard::addr`] on: whole lines of 64 bytes.
    pub fn bytes(&self) -> u64 {
        self.end.0 - self.addr.0
    }

    /// The fencing token: greater than that of every earlier grant of any lock of the rack. Hand it
    /// to every other service that acts under the lock, and let it refuse smaller ones.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether the handle has learned that the lock is lost. Costs nothing and sends nothing;
    /// [`Handle::check_lock`] asks.
    pub fn is_lost(&self) -> bool {
        self.table.is_lost(self.id)
    }

    fn lost(&self) -> Error {
        Error::LockLost { addr: self.addr, token: self.token }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.table.drop_guard(self.id);
    }
}

#[derive(Debug, Default)]
struct Table {
    held: HeldLocks,
    /// How the daemons of mapped racks are called.
    doors: BTreeMap<LinkId, Weak<Door>>,
}

/// What a handle and its guards share.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    table: Mutex<Table>,
    /// Whether there may be locks.
    holds: AtomicBool,
    /// Whether there is something to give back.
    due: AtomicBool,
    /// Whether a coupled guard was dropped or a lock was lost.
    changed: AtomicBool,
}

impl LockTable {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing is half done under it, whichever thread panicked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the daemon behind a link is called from now on.
    pub(crate) fn set_door(&self, link: LinkId, door: Weak<Door>) {
        self.lock().doors.insert(link, door);
    }

    /// Looks at the locks, or changes them.
    pub(crate) fn with<R>(&self, run: impl FnOnce(&mut HeldLocks) -> R) -> R {
        let mut table = self.lock();
        let result = run(&mut table.held);
        // Relaxed: only the handle takes locks, and only it asks.
        self.holds.store(!table.held.is_empty(), Ordering::Relaxed);
        // Relaxed: the table's mutex orders what it announces.
        self.due.store(table.held.owes(), Ordering::Relaxed);
        result
    }

    /// Whether a lock is held behind a link, as far as the handle knows.
    pub(crate) fn holds_at(&self, link: LinkId) -> bool {
        // Relaxed: as in `with`, by the same thread.
        self.holds.load(Ordering::Relaxed) && self.with(|held| held.holds_at(link))
    }

    /// Whether there is something to give back.
    pub(crate) fn is_due(&self) -> bool {
        // Relaxed: as in `give_back`; a release that is not seen yet is seen by the next call.
        self.due.load(Ordering::Relaxed)
    }

    /// A coupled guard was dropped or a lock was lost.
    pub(crate) fn note_changed(&self) {
        // Relaxed: the table's mutex orders what it announces.
        self.changed.store(true, Ordering::Relaxed);
    }

    /// A guard is gone. If the handle has writes under it, they go home first, with its next call.
    fn drop_guard(&self, id: u64) {
        let dropped = self.lock().held.drop_guard(id);
        match dropped {
            Dropped::Nothing => {}
            Dropped::Now => self.give_back(id),
            Dropped::Later => self.note_changed(),
        }
    }

    /// Whether a coupled guard was dropped or a lock was lost since the last call.
    pub(crate) fn take_changed(&self) -> bool {
        // Relaxed: as in `note_changed`; what is not seen yet is seen by the next call.
        self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::Relaxed)
    }

    /// Whether a lock is known to be lost.
    fn is_lost(&self, id: u64) -> bool {
        self.lock().held.is_lost(id)
    }

    pub(crate) fn give_back(&self, id: u64) {
        let mut table = self.lock();
        if let Some(held) = table.held.remove(id) {
            let door = table.doors.get(&held.link).and_then(Weak::upgrade);
            if door.is_some_and(|door| door.give_back(held.token)) {
                return;
            }
            table.held.owe(held.release());
            // Relaxed: the table's mutex orders what it announces.
            self.due.store(true, Ordering::Relaxed);
        }
    }

    /// The handle ends: all that is held is to be given back.
    pub(crate) fn give_back_all(&self) {
        let ids = self.lock().held.ids();
        ids.into_iter().for_each(|id| self.give_back(id));
    }
}

impl Handle {
    /// Takes a lock. Locks stop no client that does not ask. The first to ask is served first.
    ///
    /// The lock ends when the guard is given to [`Handle::unlock`] or dropped (over a fabric with
    /// the handle's next call that sends anything), with the handle, or with its process; over a
    /// fabric also when the home rack had no connection to the handle for a second. Then nothing
    /// that the handle sent before is executed any more, its next access through the fabric is
    /// `lock-lost`, and so is [`Handle::check_lock`].
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{GAddr, LockMode, LockOptions, Placement, RackId, cluster::Cluster};
    /// let cluster = Cluster::start(2)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let table = handle.alloc(4096, Placement::Rack(RackId(1)))?;
    /// let guard = handle.lock(table, LockMode::Write, LockOptions::range(4096))?;
    /// for row in 0..64 {
    ///     handle.write(GAddr(table.0 + 64 * row), &[row as u8; 64])?;
    /// }
    /// handle.unlock(guard)?; // 64 writes, one message
    /// let guard = handle.lock(table, LockMode::Read, LockOptions::line())?;
    /// assert_eq!(handle.read_u64(GAddr(table.0 + 64 * 9))?, 0x0909_0909_0909_0909);
    /// handle.unlock(guard)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `lock-timeout` if it did not become free, with the process that holds it; `already-locked`
    /// if this handle holds it, or any line of the range; `busy` (2048 locks of a rack, 64 of a
    /// handle in a rack); `misaligned`, `not-mapped`, `lost` for the address; `out-of-bounds` for a
    /// range of no bytes and across pages; `timeout`, `peer-dead`.
    pub fn lock(
        &mut self,
        addr: GAddr,
        mode: LockMode,
        options: LockOptions,
    ) -> crate::Result<LockGuard> {
        let range = match options.range_bytes {
            None => LockRange::line(addr),
            Some(bytes) => LockRange::of(self.client.geometry(), addr, bytes)?,
        };
        let wait_ms = options.wait_ms.unwrap_or(self.links.timeout_ms());
        Ok(self.take_lock(range, mode == LockMode::Write, wait_ms)?)
    }

    /// Asks the lock's daemon whether a guard still holds it: one round trip, after what was
    /// buffered under it has gone home.
    ///
    /// # Errors
    /// `lock-lost` if not; `writes-lost` if buffered writes did not all reach home; `denied` for
    /// the guard of another handle; `timeout`, `peer-dead`.
    pub fn check_lock(&mut self, guard: &LockGuard) -> crate::Result<()> {
        self.is_own(guard)?;
        Ok(self.with_coupled(|coupled, io| coupled.check_lock(io, guard.id, guard.lost()))?)
    }

    /// Gives a lock back now. Writes that have returned before are seen by its next holder;
    /// submissions under way are not waited for.
    ///
    /// # Errors
    /// `lock-lost` if it was lost before; `writes-lost` if buffered writes did not all reach home
    /// (then the lock is given back with a later call, if it is held still); `denied` for the guard
    /// of another handle; `timeout` or `peer-dead` if its daemon could not be told: then it is told
    /// later.
    pub fn unlock(&mut self, guard: LockGuard) -> crate::Result<()> {
        self.is_own(&guard)?;
        Ok(self.with_coupled(|coupled, io| coupled.unlock(io, guard.id, guard.lost()))?)
    }

    fn is_own(&self, guard: &LockGuard) -> Result<()> {
        if Arc::ptr_eq(&guard.table, &self.links.locks) {
            return Ok(());
        }
        Err(Error::Denied { reason: "the guard is another handle's".into() })
    }

    fn take_lock(&mut self, range: LockRange, write: bool, wait_ms: u64) -> Result<LockGuard> {
        self.settle_locked();
        let started_ns = clock::now_ns();
        let deadline_ns = clock::deadline_ns(wait_ms.saturating_add(ANSWER_MS));
        let Self { client, links, endpoint, .. } = self;
        block(links.runtime(client, endpoint).before_lock(&range, deadline_ns))?;
        let mut op = AtHome::new(range.first, range.request(write, wait_ms));
        let parts = Parts { client, links, endpoint, submissions: None };
        let mut driver = driver(parts, Buffers::None, deadline_ns);
        let answer = block(driver.run(async |cx| op.run(cx).await));
        match links.runtime(client, endpoint).on_lock_answer(range, op.link(), answer) {
            Ok(Granted { id, held }) => {
                if held.is_coupled {
                    self.coupled.add(id, write, started_ns, &held);
                }
                let (HeldLock { addr, end, token, .. }, table) = (held, self.links.locks.clone());
                Ok(LockGuard { id, addr, end, token, table })
            }
            Err(Error::OutcomeUnknown { peer, .. }) => {
                let waited_ms = (clock::now_ns() - started_ns) / 1_000_000;
                Err(Error::Timeout { peer, waited_ms })
            }
            Err(error) => Err(error),
        }
    }
}
