//! Locks coupled with their data, as a handle has them: `core::client::Coupled` decides what is
//! buffered, cached, flushed and given up; here it gets at the fabric, the daemons and the clock.
//!
//! While it is at work the handle stands in for the rest of itself ([`CoupledIo`]) and has an empty
//! one in its place, so nothing that it does for it looks at locks again.

use crate::clock;
use crate::flush::PackedFlush;
use crate::handle::Handle;
use rackpool_core::client::{
    Access, Client, Coupled, CoupledIo, CoupledStats, Flush, HeldLocks, LinkId, Losses, Piece,
    WriteBuffer,
};
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr, Result};
use rackpool_hw::fabric::LocalBuffer;
use rackpool_hw::window::Window;

impl CoupledIo<Window> for Handle {
    fn client(&self) -> &Client<Window> {
        &self.client
    }

    fn now_ns(&self) -> Nanos {
        clock::now_ns()
    }

    fn with_held<R>(&mut self, run: impl FnOnce(&mut HeldLocks) -> R) -> R {
        self.links.locks.with(run)
    }

    fn take_changed(&mut self) -> bool {
        self.links.locks.take_changed()
    }

    fn give_back(&mut self, id: u64) {
        self.links.locks.give_back(id);
    }

    fn losses(&mut self) -> &mut Losses {
        &mut self.links.losses
    }

    fn flush(&mut self) -> Option<&mut Flush> {
        self.submissions.flush.as_mut().map(|packed| &mut packed.flush)
    }

    fn packed(&self) -> Option<(&Flush, &[u8])> {
        let flush = self.submissions.flush.as_ref()?;
        Some((&flush.flush, flush.packed(&self.endpoint)))
    }

    fn open_buffer(&mut self, half_bytes: u32) -> Result<()> {
        let buffer = WriteBuffer::new(self.client.geometry(), half_bytes);
        self.submissions.flush = Some(Box::new(PackedFlush::new(buffer, &mut self.endpoint)?));
        Ok(())
    }

    fn begin_flush(&mut self) {
        let Self { links, endpoint, submissions, rounds, .. } = self;
        *rounds += 1;
        let flush = submissions.flush.as_mut().expect("something is buffered");
        flush.begin(endpoint, links, *rounds);
    }

    fn step_flush(&mut self) -> Option<Result<()>> {
        let Self { client, links, endpoint, submissions, .. } = self;
        submissions.flush.as_mut()?.step(client, links, endpoint)
    }

    fn take_completions(&mut self, wait: bool) {
        let Self { client, links, endpoint, submissions, .. } = self;
        match submissions.flush.as_ref().and_then(|packed| packed.flush.deadline_ns()) {
            Some(deadline_ns) if wait => _ = links.wait_completions(endpoint, deadline_ns),
            _ => links.poll_completions(endpoint),
        }
        for (id, status) in links.take_completions() {
            submissions.on_completion(client, id, status);
        }
    }

    fn ask(&mut self, link: LinkId, request: Request) -> Result<Reply> {
        let deadline_ns = clock::deadline_ns(self.links.options().request_timeout_ms);
        let Self { client, links, endpoint, .. } = self;
        links.daemon_call(client, endpoint, link, request, deadline_ns)
    }

    fn read_home(&mut self, piece: Piece, to: &mut [u8]) -> Result<()> {
        self.transfer(Access::Read, &[piece], &mut [LocalBuffer::Into(to)])
    }
}

impl Handle {
    /// Lets the coupled locks do something with the rest of the handle.
    fn coupled<R>(&mut self, run: impl FnOnce(&mut Coupled, &mut Handle) -> R) -> R {
        let mut coupled = std::mem::take(&mut self.coupled);
        let result = run(&mut coupled, self);
        self.coupled = coupled;
        result
    }

    /// Puts a write into the buffer if it lies in a range that is locked for writing; whether it
    /// did. If not, everything buffered is at home.
    pub(crate) fn write_coupled(&mut self, addr: GAddr, from: &[u8]) -> Result<bool> {
        self.coupled(|coupled, io| coupled.write(io, addr, from))
    }

    /// Before anything of this handle that the buffer and the cache do not see.
    pub(crate) fn before_others(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        if !self.coupled.is_active() {
            return Ok(());
        }
        self.coupled(|coupled, io| coupled.before_others(io, addr, bytes))
    }

    /// Reads what the warm path did not, while ranges are locked.
    pub(crate) fn read_coupled(&mut self, addr: GAddr, to: &mut [u8]) -> Result<bool> {
        self.coupled(|coupled, io| coupled.read(io, addr, to))
    }

    /// After a read from home: shows what is not there yet.
    pub(crate) fn overlay_locked(&mut self, addr: GAddr, to: &mut [u8]) {
        self.coupled(|coupled, io| coupled.overlay(io, addr, to));
    }

    /// Takes note of guards that were dropped and locks that were lost.
    pub(crate) fn settle_locked(&mut self) {
        if self.coupled.is_active() {
            self.coupled(|coupled, io| coupled.settle(io));
        }
    }

    /// Brings home everything that is buffered. What failed is noted with its range.
    pub(crate) fn flush_locked(&mut self) {
        self.coupled(|coupled, io| coupled.flush(io));
    }

    /// A range in a page that turned out to be mapped here is not coupled any more.
    pub(crate) fn leave_mapped(&mut self) {
        if self.coupled.is_active() {
            self.coupled(|coupled, io| coupled.leave_mapped(io));
        }
    }

    /// Gives a guard's lock back, after what was buffered under it.
    pub(crate) fn unlock_coupled(&mut self, id: u64, lost: Error) -> Result<()> {
        self.coupled(|coupled, io| coupled.unlock(io, id, lost))
    }

    /// Asks whether a guard's lock is held, after what was buffered under it has gone home.
    pub(crate) fn check_coupled(&mut self, id: u64, lost: Error) -> Result<()> {
        self.coupled(|coupled, io| coupled.check_lock(io, id, lost))
    }

    /// What the write buffer and the page cache did.
    pub(crate) fn coupled_stats(&self) -> CoupledStats {
        self.coupled.stats(self.submissions.flush.as_ref().map(|packed| &packed.flush))
    }
}
