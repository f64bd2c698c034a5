//! Locks coupled with their data, as a handle has them: `core::client::Coupled` decides what is
//! buffered, cached, flushed and given up; here it gets at the fabric, the daemons and the clock.

use crate::clock;
use crate::drive::{PackedFlush, block};
use crate::handle::Handle;
use rackpool_core::client::{
    Access, Client, Coupled, CoupledIo, CoupledStats, Flush, HeldLocks, LinkId, Losses, Piece,
    WriteBuffer,
};
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{GAddr, Result};
use rackpool_fabric::LocalBuffer;
use rackpool_mem::window::Window;

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
        let deadline_ns = clock::deadline_ns(self.links.timeout_ms());
        let Self { client, links, endpoint, .. } = self;
        block(links.runtime(client, endpoint).daemon_call(link, request, deadline_ns))
    }

    fn read_home(&mut self, piece: Piece, to: &mut [u8]) -> Result<()> {
        self.transfer(Access::Read, &[piece], &mut [LocalBuffer::Into(to)])
    }

    fn coupled(&mut self) -> &mut Coupled {
        &mut self.coupled
    }
}

impl Handle {
    /// Before anything of this handle that the buffer and the cache do not see.
    pub(crate) fn before_others(&mut self, addr: GAddr, bytes: u64) -> Result<()> {
        if !self.coupled.is_active() {
            return Ok(());
        }
        self.with_coupled(|coupled, io| coupled.before_others(io, addr, bytes))
    }

    /// A range in a page that turned out to be mapped here is not coupled any more.
    pub(crate) fn leave_mapped(&mut self) {
        if self.coupled.is_active() {
            self.with_coupled(|coupled, io| coupled.leave_mapped(io));
        }
    }

    /// What the write buffer and the page cache did.
    pub(crate) fn coupled_stats(&self) -> CoupledStats {
        self.coupled.stats(self.submissions.flush.as_ref().map(|packed| &packed.flush))
    }
}
