//! Runs operations of the client engine: does what they ask for where they ask for it, so that
//! their futures never pend. Blocking calls go through [`drive`]; submissions and flushes of the
//! write buffer go on by [`Driver::run`] whenever their handle looks at the fabric.

use crate::clock;
use crate::links::{Link, Links, fabric_error};
use crate::local::MappedSlot;
use crate::locks::LockTable;
use crate::network::Network;
use crate::node::Node;
use crate::submit::Submissions;
use rackpool_core::Result;
use rackpool_core::client::{Client, Flush, HeldLocks, Io, LinkId, OWN, WriteBuffer};
use rackpool_core::constants::LEASE_MS_DEFAULT;
use rackpool_core::runtime::client::{self, Host, LocalLink, TimeLimit};
use rackpool_core::seam::{BufId, Exposure, Fabric, PostError, Sge, WorkRequest, WorkStatus};
use rackpool_fabric::{Endpoint, LocalBuffers, ScopedBuffers};
use rackpool_mem::window::Window;
use std::pin::pin;
use std::task::{Poll, Waker};

/// How long a peer is told that an operation was given up, ms. By then it knows itself.
const GIVE_UP_MS: u64 = LEASE_MS_DEFAULT;

/// A handle, as the protocol of its links sees it.
pub(crate) struct LinkHost<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) network: Network<'a>,
    pub(crate) locks: &'a LockTable,
    pub(crate) never_counts: bool,
}

impl<'a> Host for LinkHost<'a> {
    type Platform = Node;
    type Transport = Network<'a>;
    type Instant = u64;

    fn apart<F: Future>(future: F) -> impl Future<Output = F::Output> {
        std::future::ready(block(future))
    }

    fn platform(&mut self) -> &mut Node {
        self.node
    }

    fn transport(&mut self) -> &mut Network<'a> {
        &mut self.network
    }

    fn on_mapped(&mut self, client: &mut Client<Window>, id: LinkId, link: &LocalLink<MappedSlot>) {
        self.locks.set_door(id, link.slot().door());
        if id == OWN {
            link.slot().serve(self.network.endpoint);
            client.count_use(link.region().counts_use && !self.never_counts);
        }
    }

    fn with_held<R>(&mut self, run: impl FnOnce(&mut HeldLocks) -> R) -> R {
        self.locks.with(run)
    }

    fn note_changed(&mut self) {
        self.locks.note_changed();
    }
}

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
pub(crate) type Driver<'a> = client::Driver<'a, LinkHost<'a>, OperationBuffers<'a>>;

/// The buffers of an operation, and the submissions of its handle.
pub(crate) struct OperationBuffers<'a> {
    buffers: Buffers<'a>,
    submissions: Option<&'a mut Submissions>,
}

impl<'a> OperationBuffers<'a> {
    /// Without other work of the handle.
    pub(crate) fn alone(buffers: Buffers<'a>) -> Self {
        Self { buffers, submissions: None }
    }
}

/// Runs one operation to its end, or to the deadline with a typed error.
pub(crate) fn drive<T>(
    parts: Parts<'_>,
    buffers: Buffers<'_>,
    operation: impl for<'d> AsyncFnOnce(&mut Driver<'d>) -> Result<T>,
) -> Result<T> {
    let deadline_ns = clock::deadline_ns(parts.links.timeout_ms());
    block(driver(parts, buffers, deadline_ns).run(operation))
}

pub(crate) fn driver<'a>(parts: Parts<'a>, buffers: Buffers<'a>, deadline: u64) -> Driver<'a> {
    let Parts { client, links, endpoint, submissions } = parts;
    let limit = TimeLimit { deadline, timeout_ms: links.timeout_ms() };
    let buffers = OperationBuffers { buffers, submissions };
    Driver::new(links.runtime(client, endpoint), buffers, limit)
}

/// Runs what does each thing where it is asked for, and so never waits for another poll.
pub(crate) fn block<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a driver answers where it is asked"),
    }
}

impl<'h> client::Buffers<LinkHost<'h>> for OperationBuffers<'_> {
    fn io<'x>(&'x mut self, links: &'x [Link], host: &'x mut LinkHost<'h>) -> impl Io {
        FabricIo { endpoint: host.network.endpoint, links, buffers: self.buffers }
    }

    fn on_completion(
        &mut self,
        _: &mut LinkHost<'h>,
        client: &mut Client<Window>,
        id: u64,
        status: WorkStatus,
    ) -> bool {
        self.submissions.as_mut().is_some_and(|some| some.on_completion(client, id, status))
    }

    async fn give_up_until(&mut self, _: &mut LinkHost<'h>) -> u64 {
        clock::deadline_ns(GIVE_UP_MS)
    }
}

struct FabricIo<'a> {
    endpoint: &'a mut Endpoint,
    links: &'a [Link],
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
        match self.links[link.0 as usize].peer() {
            Some(peer) => self.endpoint.post(peer, batch),
            None => Err((0, PostError::Down)),
        }
    }

    fn expose(&mut self, link: LinkId, piece: u32, offset: u64, bytes: u64) -> Option<Exposure> {
        let sge = self.sge(piece, offset, bytes);
        self.endpoint.expose(self.links[link.0 as usize].peer()?, &sge)
    }

    fn conceal(&mut self, link: LinkId, exposure: Exposure) -> u64 {
        // On another connection than the one that it was made on it counts for nothing.
        let peer = self.links[link.0 as usize].peer();
        peer.map_or(0, |peer| self.endpoint.conceal(peer, exposure))
    }
}

/// Buffered writes and the bytes of their half that leaves. What is sent when is the business of
/// `core::client::Coupled`.
pub(crate) struct PackedFlush {
    pub(crate) flush: Flush,
    /// The half that leaves, packed.
    packed: BufId,
}

impl PackedFlush {
    /// An empty buffer.
    pub(crate) fn new(buffer: WriteBuffer, endpoint: &mut Endpoint) -> Result<Self> {
        let packed = endpoint.register(vec![0; buffer.half_bytes()]).map_err(fabric_error)?;
        Ok(Self { flush: Flush::new(buffer), packed })
    }

    /// The bytes of the half that leaves.
    pub(crate) fn packed<'e>(&self, endpoint: &'e Endpoint) -> &'e [u8] {
        endpoint.buffer(self.packed)
    }

    /// Begins to send what fills, or sends again what did not arrive.
    pub(crate) fn begin(&mut self, endpoint: &mut Endpoint, links: &Links, round: u64) {
        let deadline_ns = clock::deadline_ns(links.timeout_ms());
        let packed = endpoint.buffer_mut(self.packed);
        self.flush.begin(packed, round, deadline_ns, links.losses.count());
    }

    /// Goes on without waiting for the fabric; its result when it has ended.
    pub(crate) fn step(
        &mut self,
        client: &mut Client<Window>,
        links: &mut Links,
        endpoint: &mut Endpoint,
    ) -> Option<Result<()>> {
        let timeout_ms = links.timeout_ms();
        let deadline_ns = self.flush.deadline_ns()?;
        let limit = TimeLimit { deadline: deadline_ns, timeout_ms };
        let packed = self.packed;
        let buffers = |offsets| OperationBuffers::alone(Buffers::Packed(packed, offsets));
        let runtime = links.runtime(client, endpoint);
        let step = runtime.step_flush(&mut self.flush, limit, clock::now_ns(), buffers);
        let result = block(step)?;
        self.flush.ended(&result);
        if result.is_err() {
            // Work requests of this try may name the buffer: it comes back under another name.
            let bytes = endpoint.take(self.packed);
            let renewed = endpoint.register(bytes);
            self.packed = renewed.expect("the place that was left is free");
        }
        Some(result)
    }
}
