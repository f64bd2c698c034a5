//! Locks coupled with their data: `core::client::Coupled` decides, this is what it decides about.
//! Its calls block, so handles that lock ranges belong to processes with stacks of their own.

use super::io::LinksIo;
use super::locks::LinkHost;
use super::{Link, Local, SimHandle};
use crate::mem::SimMem;
use crate::time::Ps;
use crate::world::kernel::block_on;
use rackpool_core::client::{
    Access, Client, Coupled, CoupledIo, CoupledOptions, CoupledStats, Flush, HeldLocks, Io, LinkId,
    Losses, Piece, WriteBuffer,
};
use rackpool_core::runtime::client::{Buffers, TimeLimit, Transport, wait_completions};
use rackpool_core::seam::{BufId, Nanos, PeerId, PostError, Sge, WorkRequest, WorkStatus};
use rackpool_core::wire::{Reply, Request};
use rackpool_core::{Error, GAddr, Result};

/// Buffered writes and the bytes of their half that leaves.
pub(super) struct PackedFlush {
    flush: Flush,
    packed: Vec<u8>,
    /// A copy of it that is registered, and the connections that know it.
    lent: Option<BufId>,
    peers: Vec<PeerId>,
}

/// Hands a completion to the flush that is under way; whether it was its own.
pub(super) fn takes(
    flush: &mut Option<Box<PackedFlush>>,
    client: &mut Client<SimMem>,
    id: u64,
    status: WorkStatus,
) -> bool {
    flush.as_mut().is_some_and(|packed| packed.flush.on_completion(client, id, status))
}

struct FlushIo<'a> {
    links: LinksIo<'a>,
    packed: &'a [u8],
    buf: BufId,
    starts: &'a [u64],
    peers: &'a mut Vec<PeerId>,
}

impl Io for FlushIo<'_> {
    fn target(&mut self, _piece: u32, _offset: u64, _bytes: u64) -> &mut [u8] {
        unreachable!("a flush writes")
    }

    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8] {
        let start = (self.starts[piece as usize] + offset) as usize;
        &self.packed[start..start + bytes as usize]
    }

    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge {
        Sge { buf: self.buf, offset: self.starts[piece as usize] + offset, bytes }
    }

    fn post(&mut self, link: LinkId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        self.links.post(link, batch, self.peers)
    }
}

impl CoupledIo<SimMem> for SimHandle {
    fn client(&self) -> &Client<SimMem> {
        &self.client
    }

    fn now_ns(&self) -> Nanos {
        self.ctx.clock_ns()
    }

    fn with_held<R>(&mut self, run: impl FnOnce(&mut HeldLocks) -> R) -> R {
        run(&mut self.locks.held)
    }

    fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.locks.changed)
    }

    fn give_back(&mut self, id: u64) {
        self.locks.give_back(id);
    }

    fn losses(&mut self) -> &mut Losses {
        &mut self.locks.losses
    }

    fn flush(&mut self) -> Option<&mut Flush> {
        self.flush.as_mut().map(|packed| &mut packed.flush)
    }

    fn packed(&self) -> Option<(&Flush, &[u8])> {
        self.flush.as_ref().map(|packed| (&packed.flush, packed.packed.as_slice()))
    }

    fn open_buffer(&mut self, half_bytes: u32) -> Result<()> {
        if self.cluster.registration_fails() {
            return Err(Error::Busy { what: "fabric buffers".into(), limit: 0 });
        }
        let buffer = WriteBuffer::new(self.client.geometry(), half_bytes);
        let packed = vec![0; buffer.half_bytes()];
        let flush = Flush::new(buffer);
        let (lent, peers) = (None, Vec::new());
        self.flush = Some(Box::new(PackedFlush { flush, packed, lent, peers }));
        Ok(())
    }

    fn begin_flush(&mut self) {
        self.round += 1;
        let deadline = self.ctx.now() + self.timeout;
        let one = self.flush.as_mut().expect("something is buffered");
        let losses = self.locks.losses.count();
        one.flush.begin(&mut one.packed, self.round, deadline.as_ns(), losses);
        let packed = one.flush.buffer.pieces().iter().map(|piece| piece.bytes).sum::<u64>();
        one.lent =
            Some(self.cluster.kernel.register(self.node.fabric.endpoint, one.packed.clone()));
        self.node.charge_copied(packed as usize);
    }

    fn step_flush(&mut self) -> Option<Result<()>> {
        let mut one = self.flush.take()?;
        let result = block_on(self.drive_flush(&mut one));
        if let Some(result) = &result {
            one.flush.ended(result);
            let peers = std::mem::take(&mut one.peers);
            if result.is_err() {
                // Nothing that is still under way may read from the buffer after this.
                peers.into_iter().for_each(|peer| self.node.close(peer));
            }
            if let Some(buf) = one.lent.take() {
                self.node.fabric.let_go(buf);
                let bytes = self.cluster.kernel.take_buffer(self.node.fabric.endpoint, buf);
                self.cluster.kernel.recycle(bytes);
            }
        }
        self.flush = Some(one);
        result
    }

    fn take_completions(&mut self, wait: bool) {
        let deadline_ns = self.flush.as_ref().and_then(|one| one.flush.deadline_ns());
        match deadline_ns {
            Some(deadline_ns) if wait => {
                let Self { links, node, .. } = self;
                block_on(wait_completions(links, node, Ps::ns(deadline_ns)));
            }
            _ => block_on(self.take_inputs()),
        }
        let Self { node, client, flush, .. } = self;
        for (id, status) in node.inbox.completions.drain(..) {
            takes(flush, client, id, status);
        }
    }

    fn ask(&mut self, link: LinkId, request: Request) -> Result<Reply> {
        let deadline = self.ctx.now() + self.timeout;
        block_on(self.daemon_call(link, request, deadline))
    }

    fn read_home(&mut self, piece: Piece, to: &mut [u8]) -> Result<()> {
        block_on(self.transfer(Access::Read, &[piece], Local::Into(to)))
    }

    fn coupled(&mut self) -> &mut Coupled {
        &mut self.coupled
    }
}

impl SimHandle {
    /// How much is buffered and cached from now on; nothing may be locked.
    pub fn set_coupled(&mut self, options: CoupledOptions) {
        self.coupled = Coupled::new(options);
    }

    /// What the write buffer and the page cache did.
    pub fn coupled_stats(&self) -> CoupledStats {
        self.coupled.stats(self.flush.as_ref().map(|one| &one.flush))
    }

    pub(super) fn write_coupled(&mut self, addr: GAddr, from: &[u8]) -> Result<bool> {
        let is_buffered = self.with_coupled(|coupled, io| coupled.write(io, addr, from))?;
        if is_buffered {
            self.ctx.cpu.charge(self.cluster.costs.client_buffered);
            self.node.charge_copied(from.len());
        }
        Ok(is_buffered)
    }

    pub(super) fn flush_locked(&mut self) {
        if self.coupled.is_active() {
            self.with_coupled(|coupled, io| {
                coupled.settle(io);
                coupled.flush(io);
            });
        }
    }

    /// Brings home what is buffered, and gives back what dropped guards held.
    pub async fn bring_home(&mut self) -> Result<()> {
        self.before_others().await
    }

    /// Before an operation that the buffer and the cache do not see.
    pub(super) async fn before_others(&mut self) -> Result<()> {
        if self.coupled.is_active() {
            self.with_coupled(|coupled, io| coupled.before_others(io, GAddr::NULL, 0))?;
        }
        self.give_locks_back().await;
        Ok(())
    }

    /// Takes what is in the inbox.
    async fn take_inputs(&mut self) {
        while self.ctx.has_input() {
            self.node.turn(self.ctx.now()).await;
        }
        self.runtime().note_closed();
    }

    /// Goes on with the flush until it waits for the fabric, or to its end.
    async fn drive_flush(&mut self, one: &mut PackedFlush) -> Option<Result<()>> {
        let timeout_ms = self.timeout.as_ns() / 1_000_000;
        let now_ns = self.ctx.now().as_ns();
        let deadline = Ps::ns(one.flush.deadline_ns()?);
        let PackedFlush { flush, packed, lent, peers } = one;
        let buf = lent.expect("it was registered when the flush began");
        let limit = TimeLimit { deadline, timeout_ms };
        let step = self.runtime().step_flush(flush, limit, now_ns, move |starts| FlushBuffers {
            packed,
            buf,
            starts,
            peers,
            deadline,
        });
        step.await
    }
}

/// The buffers of a flush. It costs no time of the processor but for what it sends.
struct FlushBuffers<'a> {
    packed: &'a [u8],
    buf: BufId,
    starts: &'a [u64],
    peers: &'a mut Vec<PeerId>,
    deadline: Ps,
}

impl<'h> Buffers<LinkHost<'h>> for FlushBuffers<'_> {
    fn io<'x>(&'x mut self, links: &'x [Link], host: &'x mut LinkHost<'h>) -> impl Io {
        let links = LinksIo { node: host.node, links };
        let (packed, buf, starts) = (self.packed, self.buf, self.starts);
        FlushIo { links, packed, buf, starts, peers: self.peers }
    }

    fn on_completion(
        &mut self,
        _: &mut LinkHost<'h>,
        _: &mut Client<SimMem>,
        _: u64,
        _: WorkStatus,
    ) -> bool {
        unreachable!("its handle takes the completions")
    }

    async fn give_up_until(&mut self, _: &mut LinkHost<'h>) -> Ps {
        self.deadline
    }
}
