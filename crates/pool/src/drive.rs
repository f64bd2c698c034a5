//! Runs operations of the client engine: does what they ask for where they ask for it, so that
//! their futures never pend. Blocking calls go through [`drive`]; submissions and flushes go on by
//! [`Driver::run`] and wait for the fabric themselves.

use crate::clock;
use crate::links::Links;
use crate::submit::Submissions;
use rackpool_core::client::{Client, Context, Io, LinkId};
use rackpool_core::constants::LEASE_MS_DEFAULT;
use rackpool_core::seam::{BufId, Exposure, Fabric, PostError, Sge, WorkRequest, WorkStatus};
use rackpool_core::wire::{MasterAnswer, MasterCall, Reply, Request};
use rackpool_core::{Error, RackId, Result};
use rackpool_hw::fabric::{Endpoint, LocalBuffers, ScopedBuffers};
use rackpool_hw::window::Window;
use std::pin::pin;
use std::task::{Poll, Waker};

/// How long a peer is told that an operation was given up, ms. By then it knows itself.
const GIVE_UP_MS: u64 = LEASE_MS_DEFAULT;

/// The local buffers of an operation.
#[derive(Clone, Copy)]
pub(crate) enum Buffers<'b> {
    None,
    /// Lent for the length of the call; piece i is buffer i.
    Scoped(ScopedBuffers),
    /// One that the endpoint owns meanwhile.
    Owned(BufId),
    /// One that the endpoint owns, with all pieces in it; piece i begins at offset i.
    Packed(BufId, &'b [u64]),
}

/// The parts of a handle that an operation works with.
pub(crate) struct Parts<'a> {
    pub(crate) client: &'a mut Client<Window>,
    pub(crate) links: &'a mut Links,
    pub(crate) endpoint: &'a mut Endpoint,
    /// They get their completions while an operation waits for its own.
    pub(crate) submissions: Option<&'a mut Submissions>,
}

/// The context of one operation: blocks for daemons, the master, connections and the fabric, until
/// the deadline.
pub(crate) struct Driver<'a> {
    parts: Parts<'a>,
    buffers: Buffers<'a>,
    deadline_ns: u64,
    /// Losses of locks when it began, if they end it.
    losses: Option<u64>,
    /// A rack that the master did not know.
    gone: Option<RackId>,
    /// Why it cannot go on. From here on each answer is waited for as long as a peer is told.
    failed: Option<Error>,
}

/// Runs one operation to its end, or to the deadline with a typed error.
pub(crate) fn drive<T>(
    parts: Parts<'_>,
    buffers: Buffers<'_>,
    operation: impl for<'d> AsyncFnOnce(&mut Driver<'d>) -> Result<T>,
) -> Result<T> {
    let deadline_ns = clock::deadline_ns(parts.links.options().request_timeout_ms);
    Driver::new(parts, buffers, deadline_ns).run(operation)
}

impl<'a> Driver<'a> {
    pub(crate) fn new(parts: Parts<'a>, buffers: Buffers<'a>, deadline_ns: u64) -> Self {
        let (losses, gone, failed) = (None, None, None);
        Self { parts, buffers, deadline_ns, losses, gone, failed }
    }

    pub(crate) fn run<T>(
        mut self,
        operation: impl AsyncFnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let result = block(operation(&mut self));
        result.and_then(|output| match self.failed.take() {
            Some(error) => Err(error),
            None => self.check().map(|()| output),
        })
    }

    fn deadline_ns(&self) -> u64 {
        match self.failed {
            None => self.deadline_ns,
            Some(_) => clock::deadline_ns(GIVE_UP_MS),
        }
    }

    fn fail<T>(&mut self, error: Error) -> Result<T> {
        self.failed.get_or_insert_with(|| error.clone());
        Err(error)
    }
}

/// Runs what answers where it is asked, to its end.
pub(crate) fn block<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a driver answers where it is asked"),
    }
}

impl Context<Window> for Driver<'_> {
    fn client(&mut self) -> &mut Client<Window> {
        self.parts.client
    }

    fn parts(&mut self) -> (&mut Client<Window>, impl Io) {
        let Parts { client, links, endpoint, .. } = &mut self.parts;
        (client, FabricIo { endpoint, links, buffers: self.buffers })
    }

    fn check(&mut self) -> Result<()> {
        let Parts { client, links, .. } = &mut self.parts;
        if client.take_learnt() {
            links.note_strays(client);
        }
        match self.losses {
            Some(losses) if links.loss_count() != losses => Err(links.loss()),
            _ => Ok(()),
        }
    }

    fn end_with_locks(&mut self) {
        self.losses.get_or_insert(self.parts.links.loss_count());
    }

    async fn connect(&mut self, rack: RackId) -> Result<()> {
        self.check()?;
        let deadline_ns = self.deadline_ns();
        let Parts { client, links, endpoint, .. } = &mut self.parts;
        match links.connect(client, endpoint, rack, deadline_ns) {
            // What the operation knew of the rack is old: it finds out what became of it.
            Err(Error::NoSuchRack { .. }) if self.gone.replace(rack) != Some(rack) => {
                client.forget_rack(rack);
                Ok(())
            }
            Err(error) => self.fail(error),
            Ok(()) => Ok(()),
        }
    }

    async fn master(&mut self, call: MasterCall) -> Result<MasterAnswer> {
        self.check()?;
        let deadline_ns = self.deadline_ns();
        self.parts.links.master_call(call, deadline_ns)
    }

    async fn daemon(&mut self, link: LinkId, request: Request) -> Result<Reply> {
        self.check()?;
        let deadline_ns = self.deadline_ns();
        let Parts { client, links, endpoint, .. } = &mut self.parts;
        links.daemon_call(client, endpoint, link, request, deadline_ns)
    }

    async fn batch(&mut self, link: LinkId, requests: Vec<Request>) -> Result<Vec<Result<Reply>>> {
        self.check()?;
        let deadline_ns = self.deadline_ns();
        let Parts { client, links, endpoint, .. } = &mut self.parts;
        Ok(links.daemon_batch(client, endpoint, link, requests, deadline_ns))
    }

    async fn completions(
        &mut self,
        mut take: impl FnMut(&mut Client<Window>, u64, WorkStatus) -> Result<()>,
    ) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.check()?;
        let Parts { client, links, endpoint, submissions } = &mut self.parts;
        let in_time = links.wait_completions(endpoint, self.deadline_ns);
        let mut result = Ok(());
        for (id, status) in links.take_completions() {
            let is_taken =
                submissions.as_mut().is_some_and(|s| s.on_completion(client, id, status));
            if !is_taken {
                result = result.and(take(client, id, status));
            }
        }
        result?;
        if in_time {
            return Ok(());
        }
        let waited_ms = links.options().request_timeout_ms;
        self.fail(Error::Timeout { peer: "the page's home rack".into(), waited_ms })
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}

struct FabricIo<'a> {
    endpoint: &'a mut Endpoint,
    links: &'a Links,
    buffers: Buffers<'a>,
}

impl Io for FabricIo<'_> {
    fn target(&mut self, piece: u32, offset: u64, bytes: u64) -> &mut [u8] {
        let sge = self.sge(piece, offset, bytes);
        self.endpoint.piece_mut(&sge)
    }

    fn source(&self, piece: u32, offset: u64, bytes: u64) -> &[u8] {
        self.endpoint.piece(&self.sge(piece, offset, bytes))
    }

    fn sge(&self, piece: u32, offset: u64, bytes: u64) -> Sge {
        let (buf, offset) = match self.buffers {
            Buffers::Scoped(ids) => (ids.id(piece as usize), offset),
            Buffers::Owned(buf) => (buf, offset),
            Buffers::Packed(buf, starts) => (buf, starts[piece as usize] + offset),
            Buffers::None => unreachable!("only transfers have pieces"),
        };
        Sge { buf, offset, bytes }
    }

    fn post(
        &mut self,
        link: LinkId,
        batch: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)> {
        match self.links.peer(link) {
            Some(peer) => self.endpoint.post(peer, batch),
            None => Err((0, PostError::Down)),
        }
    }

    fn expose(&mut self, link: LinkId, piece: u32, offset: u64, bytes: u64) -> Option<Exposure> {
        let sge = self.sge(piece, offset, bytes);
        self.endpoint.expose(self.links.peer(link)?, &sge)
    }

    fn conceal(&mut self, link: LinkId, exposure: Exposure) -> u64 {
        // On another connection than the one that it was made on it counts for nothing.
        let peer = self.links.peer(link);
        peer.map_or(0, |peer| self.endpoint.conceal(peer, exposure))
    }
}
