//! Runs operations of the client engine in virtual time. Each wait is followed by the work of a
//! step, which costs time of the processor: it is charged when the operation goes on.

use super::SimHandle;
use super::coupled::takes;
use super::io::{Local, SimIo, TransferBuffers};
use crate::mem::SimMem;
use crate::time::Ps;
use rackpool_core::client::{Client, Context, Io, LinkId};
use rackpool_core::runtime::client::{Platform, Transport};
use rackpool_core::seam::WorkStatus;
use rackpool_core::wire::{MasterAnswer, MasterCall, Reply, Request};
use rackpool_core::{Error, RackId, Result};
use std::cell::Cell;

/// The context of one operation.
pub(super) struct Driver<'a> {
    handle: &'a mut SimHandle,
    buffers: TransferBuffers<'a>,
    deadline: Ps,
    /// Losses of locks when it began, if they end it.
    losses: Option<u64>,
    /// A rack that the master did not know.
    gone: Option<RackId>,
    /// It has waited, and the step that follows is not charged yet.
    waited: bool,
    /// Why it cannot go on.
    failed: Option<Error>,
    /// Whether it has begun to tell that.
    tells: bool,
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
        let (losses, gone, failed) = (None, None, None);
        let (waited, tells, handle) = (true, false, self);
        let mut driver = Driver { handle, buffers, deadline, losses, gone, waited, failed, tells };
        let result = operation(&mut driver).await;
        let result = result.and_then(|output| match driver.failed.take() {
            Some(error) => Err(error),
            None => driver.check().map(|()| output),
        });
        if result.is_err() {
            driver.close_posted();
        }
        let Driver { handle, buffers, .. } = driver;
        handle.spare = Some(buffers.end(&handle.cluster, &handle.node.fabric));
        result
    }
}

impl Driver<'_> {
    fn fail<T>(&mut self, error: Error) -> Result<T> {
        self.failed.get_or_insert_with(|| error.clone());
        self.close_posted();
        Err(error)
    }

    /// Nothing that is still under way may read from the buffer after this.
    fn close_posted(&mut self) {
        let peers = std::mem::take(&mut self.buffers.posted.peers);
        peers.into_iter().for_each(|peer| self.handle.node.close(peer));
    }

    /// Before something is waited for.
    async fn begin(&mut self) -> Result<()> {
        if self.failed.is_some() && !std::mem::replace(&mut self.tells, true) {
            self.handle.ctx.sync(Ps::ZERO).await;
            self.deadline = self.handle.ctx.now() + self.handle.timeout;
        }
        self.check()?;
        self.waited = true;
        Ok(())
    }
}

impl Context<SimMem> for Driver<'_> {
    fn client(&mut self) -> &mut Client<SimMem> {
        &mut self.handle.client
    }

    fn parts(&mut self) -> (&mut Client<SimMem>, impl Io) {
        let SimHandle { client, node, links, .. } = &mut *self.handle;
        (client, SimIo { node, links, buffers: &mut self.buffers })
    }

    fn check(&mut self) -> Result<()> {
        let handle = &mut *self.handle;
        if std::mem::take(&mut self.waited) {
            handle.ctx.cpu.charge(handle.cluster.costs.client_step);
            self.buffers.fetch(&handle.cluster, handle.node.fabric.endpoint);
        }
        handle.runtime().note_strays();
        match self.losses {
            Some(losses) if handle.locks.losses.count() != losses => {
                Err(handle.locks.losses.told())
            }
            _ => Ok(()),
        }
    }

    fn end_with_locks(&mut self) {
        self.losses.get_or_insert(self.handle.locks.losses.count());
    }

    async fn connect(&mut self, rack: RackId) -> Result<()> {
        self.begin().await?;
        // Boxed, as it is rare and large.
        match Box::pin(self.handle.runtime().connect(rack, self.deadline)).await {
            // See `Driver::connect` in `rackpool`.
            Err(Error::NoSuchRack { .. }) if self.gone.replace(rack) != Some(rack) => {
                self.handle.client.forget_rack(rack);
                Ok(())
            }
            Err(error) => self.fail(error),
            Ok(()) => Ok(()),
        }
    }

    async fn master(&mut self, call: MasterCall) -> Result<MasterAnswer> {
        self.begin().await?;
        self.handle.node.master(call, self.deadline).await
    }

    async fn daemon(&mut self, link: LinkId, request: Request) -> Result<Reply> {
        self.begin().await?;
        self.handle.daemon_call(link, request, self.deadline).await
    }

    async fn batch(&mut self, link: LinkId, requests: Vec<Request>) -> Result<Vec<Result<Reply>>> {
        self.begin().await?;
        let mut runtime = self.handle.runtime();
        Ok(Box::pin(runtime.daemon_batch(link, requests, self.deadline)).await)
    }

    async fn completions(
        &mut self,
        mut take: impl FnMut(&mut Client<SimMem>, u64, WorkStatus) -> Result<()>,
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.begin().await?;
        let handle = &mut *self.handle;
        let in_time = handle.wait_completions(self.deadline).await;
        let mut result = Ok(());
        std::mem::swap(&mut handle.completions, &mut handle.node.inbox.completions);
        let SimHandle { completions, client, flush, ctx, cluster, .. } = &mut *handle;
        for (id, status) in completions.drain(..) {
            ctx.cpu.charge(cluster.costs.client_completion);
            if !takes(flush, client, id, status) {
                result = result.and(take(client, id, status));
            }
        }
        result?;
        if in_time {
            return Ok(());
        }
        let waited_ms = handle.timeout.as_ns() / 1_000_000;
        self.fail(Error::Timeout { peer: "the page's home rack".into(), waited_ms })
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
