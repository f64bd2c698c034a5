//! The context of one operation of a handle: daemons, the master, connections and the fabric,
//! until the deadline.

use super::{Host, LinkOf, MemoryOf, Platform, Runtime, Transport, wait_completions};
use crate::addr::RackId;
use crate::client::{Client, Context, Flush, Io, LinkId, Look, Progress};
use crate::error::{Error, Result};
use crate::seam::{Nanos, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};

/// The buffers of an operation, and what else is under way in its handle.
#[allow(async_fn_in_trait, reason = "as Environment")]
pub trait Buffers<H: Host> {
    fn io<'x>(&'x mut self, links: &'x [LinkOf<H>], host: &'x mut H) -> impl Io;
    /// Hands over a completion, if it is of something else; whether it was.
    fn on_completion(
        &mut self,
        host: &mut H,
        client: &mut Client<MemoryOf<H>>,
        id: u64,
        status: WorkStatus,
    ) -> bool;
    /// Before the step that follows a wait.
    fn on_step(&mut self, _host: &mut H) {}
    /// Nothing that is still under way may touch the buffers after this.
    fn abandon(&mut self, _host: &mut H) {}
    /// Until when a peer is told that the operation was given up. By then it knows itself.
    async fn give_up_until(&mut self, host: &mut H) -> H::Instant;
}

/// How long an operation may take.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit<I> {
    pub deadline: I,
    /// From its start to the deadline, ms, for messages.
    pub timeout_ms: u64,
}

/// The context; see the module.
pub struct Driver<'a, H: Host, B> {
    runtime: Runtime<'a, H>,
    buffers: B,
    limit: TimeLimit<H::Instant>,
    /// Losses of locks when it began, if they end it.
    losses: Option<u64>,
    /// A rack that the master did not know.
    gone: Option<RackId>,
    /// It has waited, or begins.
    waited: bool,
    /// Why it cannot go on. From here on each answer is waited for as long as a peer is told.
    failed: Option<Error>,
}

impl<'a, H: Host, B: Buffers<H>> Driver<'a, H, B> {
    pub fn new(runtime: Runtime<'a, H>, buffers: B, limit: TimeLimit<H::Instant>) -> Self {
        let (losses, gone, waited, failed) = (None, None, true, None);
        Self { runtime, buffers, limit, losses, gone, waited, failed }
    }

    /// Runs one operation to its end, or to the deadline with a typed error.
    pub async fn run<T>(
        &mut self,
        operation: impl AsyncFnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let result = operation(self).await;
        let result = result.and_then(|output| match self.failed.take() {
            Some(error) => Err(error),
            None => self.check().map(|()| output),
        });
        if result.is_err() {
            self.buffers.abandon(&mut self.runtime.host);
        }
        result
    }

    pub fn into_parts(self) -> (B, H) {
        (self.buffers, self.runtime.host)
    }

    /// Before something is waited for; until when.
    async fn begin(&mut self) -> Result<H::Instant> {
        let deadline = match self.failed {
            None => self.limit.deadline,
            Some(_) => self.buffers.give_up_until(&mut self.runtime.host).await,
        };
        self.check()?;
        self.waited = true;
        Ok(deadline)
    }

    fn fail<T>(&mut self, error: Error) -> Result<T> {
        self.failed.get_or_insert_with(|| error.clone());
        self.buffers.abandon(&mut self.runtime.host);
        Err(error)
    }
}

impl<'a, H: Host> Runtime<'a, H> {
    /// Goes on with a flush without waiting for the fabric; its result when it has ended. Until
    /// when it may take is the flush's own; `buffers` are made with where its pieces begin.
    pub async fn step_flush<'f, B: Buffers<H>>(
        self,
        flush: &'f mut Flush,
        limit: TimeLimit<H::Instant>,
        now_ns: Nanos,
        buffers: impl FnOnce(&'f [u64]) -> B,
    ) -> Option<Result<()>> {
        match flush.look(now_ns, self.losses, limit.timeout_ms)? {
            Look::Wait => return None,
            Look::Ended(error) => return Some(Err(error)),
            Look::Go => {}
        }
        let (mut transfer, starts, may_step) = flush.transfer()?;
        let mut driver = Driver::new(self, buffers(starts), limit);
        match driver.run(async |cx| transfer.advance(cx).await).await {
            Ok(Progress::Done) => Some(Ok(())),
            Ok(Progress::Posted) => None,
            Ok(Progress::NoRoom) => {
                *may_step = true;
                None
            }
            Err(error) => {
                if matches!(error, Error::LockLost { .. }) {
                    // The caller that comes next is told.
                    driver.runtime.losses.untell();
                }
                Some(Err(error))
            }
        }
    }
}

impl<H: Host, B: Buffers<H>> Context<MemoryOf<H>> for Driver<'_, H, B> {
    fn client(&mut self) -> &mut Client<MemoryOf<H>> {
        self.runtime.client
    }

    fn parts(&mut self) -> (&mut Client<MemoryOf<H>>, impl Io) {
        let runtime = &mut self.runtime;
        (&mut *runtime.client, self.buffers.io(runtime.links, &mut runtime.host))
    }

    fn check(&mut self) -> Result<()> {
        if std::mem::take(&mut self.waited) {
            self.buffers.on_step(&mut self.runtime.host);
        }
        self.runtime.note_strays();
        let losses = &mut self.runtime.losses;
        match self.losses {
            Some(before) if losses.count() != before => Err(losses.told()),
            _ => Ok(()),
        }
    }

    fn end_with_locks(&mut self) {
        self.losses.get_or_insert(self.runtime.losses.count());
    }

    async fn connect(&mut self, rack: RackId) -> Result<()> {
        let deadline = self.begin().await?;
        match H::apart(self.runtime.connect(rack, deadline)).await {
            // What the operation knew of the rack is old: it finds out what became of it.
            Err(Error::NoSuchRack { .. }) if self.gone.replace(rack) != Some(rack) => {
                self.runtime.client.forget_rack(rack);
                Ok(())
            }
            Err(error) => self.fail(error),
            Ok(()) => Ok(()),
        }
    }

    async fn master(&mut self, call: MasterCall) -> Result<MasterAnswer> {
        let deadline = self.begin().await?;
        H::apart(self.runtime.host.platform().master(call, deadline)).await
    }

    async fn daemon(&mut self, link: LinkId, request: Request) -> Result<Reply> {
        let deadline = self.begin().await?;
        H::apart(self.runtime.daemon_call(link, request, deadline)).await
    }

    async fn batch(&mut self, link: LinkId, requests: Vec<Request>) -> Result<Vec<Result<Reply>>> {
        let deadline = self.begin().await?;
        Ok(H::apart(self.runtime.daemon_batch(link, requests, deadline)).await)
    }

    async fn completions(
        &mut self,
        mut take: impl FnMut(&mut Client<MemoryOf<H>>, u64, WorkStatus) -> Result<()>,
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let deadline = self.begin().await?;
        let Runtime { client, links, host, .. } = &mut self.runtime;
        let in_time = wait_completions(links, host.transport(), deadline).await;
        let mut result = Ok(());
        let mut ended = std::mem::take(host.transport().completions());
        for (id, status) in ended.drain(..) {
            if !self.buffers.on_completion(host, client, id, status) {
                result = result.and(take(client, id, status));
            }
        }
        *host.transport().completions() = ended;
        result?;
        if in_time {
            return Ok(());
        }
        let (peer, waited_ms) = ("the page's home rack".into(), self.limit.timeout_ms);
        self.fail(Error::Timeout { peer, waited_ms })
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
