//! Runs operations of the client engine in virtual time. Each wait is followed by the work of a
//! step, which costs time of the processor: it is charged when the operation goes on.

use super::coupled::{PackedFlush, takes};
use super::io::{Local, SimIo, TransferBuffers};
use super::locks::LinkHost;
use super::node::Node;
use super::{Link, SimHandle};
use crate::mem::SimMem;
use crate::time::Ps;
use rackpool_core::Result;
use rackpool_core::client::{Client, Io};
use rackpool_core::runtime::client::{self, Buffers, TimeLimit, Transport};
use rackpool_core::seam::WorkStatus;
use std::cell::Cell;

/// The context of one operation.
pub(super) type Driver<'a> = client::Driver<'a, LinkHost<'a>, OperationBuffers<'a>>;

pub(super) struct OperationBuffers<'a> {
    buffers: TransferBuffers<'a>,
    /// It gets its completions while an operation waits for its own.
    flush: &'a mut Option<Box<PackedFlush>>,
    timeout: Ps,
    /// Until when it is told that the operation was given up.
    told_until: Option<Ps>,
}

impl SimHandle {
    /// Runs one operation to its end, or to the deadline with a typed error.
    pub(super) async fn wait_for<T>(
        &mut self,
        local: Local<'_>,
        operation: impl for<'d> AsyncFnOnce(&mut Driver<'d>) -> Result<T>,
    ) -> Result<T> {
        // A process that was ahead of the world acts on others in the order of time.
        self.ctx.sync(Ps::ZERO).await;
        let posted = self.spare.take().unwrap_or_default();
        let buffers = TransferBuffers { local, lent: Cell::new(None), posted };
        let deadline = self.ctx.now() + self.timeout;
        let limit = TimeLimit { deadline, timeout_ms: self.timeout.as_ns() / 1_000_000 };
        let Self { client, links, node, locks, flush, timeout, .. } = self;
        let runtime = locks.runtime(client, links, node);
        let (timeout, told_until) = (*timeout, None);
        let buffers = OperationBuffers { buffers, flush, timeout, told_until };
        let mut driver = Driver::new(runtime, buffers, limit);
        let result = driver.run(operation).await;
        let (OperationBuffers { buffers, .. }, LinkHost { node, .. }) = driver.into_parts();
        self.spare = Some(buffers.end(&node.cluster, &node.fabric));
        result
    }
}

impl<'h> Buffers<LinkHost<'h>> for OperationBuffers<'_> {
    fn io<'x>(&'x mut self, links: &'x [Link], host: &'x mut LinkHost<'h>) -> impl Io {
        SimIo { node: host.node, links, buffers: &mut self.buffers }
    }

    fn on_completion(
        &mut self,
        host: &mut LinkHost<'h>,
        client: &mut Client<SimMem>,
        id: u64,
        status: WorkStatus,
    ) -> bool {
        host.node.ctx.cpu.charge(host.node.cluster.costs.client_completion);
        takes(self.flush, client, id, status)
    }

    fn on_step(&mut self, host: &mut LinkHost<'h>) {
        let Node { ctx, cluster, fabric, .. } = &*host.node;
        ctx.cpu.charge(cluster.costs.client_step);
        self.buffers.fetch(cluster, fabric.endpoint);
    }

    fn abandon(&mut self, host: &mut LinkHost<'h>) {
        let peers = std::mem::take(&mut self.buffers.posted.peers);
        peers.into_iter().for_each(|peer| host.node.close(peer));
    }

    async fn give_up_until(&mut self, host: &mut LinkHost<'h>) -> Ps {
        if let Some(until) = self.told_until {
            return until;
        }
        host.node.ctx.sync(Ps::ZERO).await;
        *self.told_until.insert(host.node.ctx.now() + self.timeout)
    }
}
