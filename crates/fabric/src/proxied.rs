//! The fabric of clients that have no endpoint of their own: their rack's daemon posts their work
//! ([`rackpool_core::daemon::Proxy`]) and shares its connections among them. The ring to the
//! daemon and back comes on top of the daemon's fabric, and so does one copy in the daemon.
//!
//! Used by one thread. Source: Rcmp §4.2 (methods b and c); decision 0023.

use super::buffers::{BufferOwner, Buffers};
use super::shm::check_work;
use super::{FabricError, FabricStats, by_sockets, monotonic_ns, spin_for};
use rackpool_core::RackId;
use rackpool_core::constants::FABRIC_PEERS_MAX;
use rackpool_core::fabric::proxied::{Pieces, Queue};
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, WorkRequest,
};
use rackpool_mem::event::WakeEvent;
use rackpool_mem::ring::{self, Consumer, Producer};
use rackpool_mem::wait::Waiter;
use rackpool_mem::window::Window;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// How often a wait looks whether the daemon lives.
const LOOK_NS: Nanos = 20_000_000;

/// The way to the daemon: what a joined slot gives.
pub trait DaemonNotifier: Send {
    fn ring(&self);
    /// Whether the daemon's end of the control connection is closed.
    fn is_closed(&self) -> bool;
    /// Says that the client is going to sleep: from now on the descriptor becomes readable when
    /// an outcome comes, or the daemon ends. Outcomes that are there already count for nothing.
    fn prepare_sleep(&self) -> BorrowedFd<'_>;
}

/// The endpoint; see the module.
#[derive(Default)]
pub struct ProxiedEndpoint {
    queue: Queue<Window>,
    waiter: Waiter,
    buffers: Buffers,
    notifier: Option<Box<dyn DaemonNotifier>>,
    emulate_rdma_ns: u32,
    /// Always readable: for a thread that wants to sleep while there is something.
    ready: Option<WakeEvent>,
}

impl ProxiedEndpoint {
    /// The slot was joined or taken up again: its rings, and the way to its daemon. What was
    /// under way has ended.
    pub fn attach(
        &mut self,
        orders: Producer,
        outcomes: Consumer,
        notifier: Box<dyn DaemonNotifier>,
    ) {
        self.queue.attach(orders, outcomes);
        self.notifier = Some(notifier);
    }

    /// Whether a daemon serves it.
    pub fn is_attached(&mut self) -> bool {
        self.check_daemon();
        self.queue.is_attached()
    }

    /// Begins a connection to a rack: `Connected` or `Closed` comes with a later poll. Work may be
    /// posted at once. Errors: `PeersFull`.
    pub fn connect(&mut self, rack: RackId) -> Result<PeerId, FabricError> {
        let peer = self.queue.connect(rack);
        self.ring();
        peer.ok_or(FabricError::PeersFull { limit: FABRIC_PEERS_MAX })
    }

    /// Ends a connection. Its outstanding work and `Closed` come with the next poll.
    pub fn close(&mut self, peer: PeerId) {
        self.queue.close(peer);
    }

    /// Changes the injected latency, nanoseconds, for all connections.
    pub fn set_emulated_delay(&mut self, emulate_rdma_ns: u32) {
        self.emulate_rdma_ns = emulate_rdma_ns;
    }

    /// Work requests that completed. System calls are the daemon's.
    pub fn stats(&self) -> FabricStats {
        FabricStats { ops: self.queue.operations(), ..FabricStats::default() }
    }

    /// Polls until something happened or `deadline` has passed; how many events were appended.
    pub fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        loop {
            let now = monotonic_ns();
            let happened = self.poll(now, events);
            if happened > 0 || now >= deadline {
                return happened;
            }
            let slice = Duration::from_nanos(LOOK_NS.min(deadline - now));
            let ready = match self.queue.consumer() {
                Some(outcomes) => ring::wait(outcomes, &mut self.waiter, Instant::now() + slice),
                // A thread that waits here waits for a daemon: nothing comes before it is joined.
                None => return 0,
            };
            if !ready {
                self.check_daemon();
            }
        }
    }

    /// A descriptor that can be read when there is something to poll for. To be asked for again
    /// before each sleep. Errors: `Io`.
    pub fn prepare_sleep(&mut self) -> Result<BorrowedFd<'_>, FabricError> {
        let Self { queue, notifier, ready, .. } = self;
        if ready.is_none() {
            let event = WakeEvent::new().map_err(FabricError::io("a wake event"))?;
            event.notify();
            *ready = Some(event);
        }
        let ready = ready.as_ref().expect("made above").as_fd();
        let Some(notifier) = notifier else { return Ok(ready) };
        let fd = notifier.prepare_sleep();
        let is_awake = queue.consumer().is_none_or(|outcomes| outcomes.is_ready());
        Ok(if is_awake || queue.has_events() { ready } else { fd })
    }

    fn check_daemon(&mut self) {
        if self.queue.is_attached()
            && self.notifier.as_ref().is_none_or(|notifier| notifier.is_closed())
        {
            // What the daemon said before its end counts.
            let Self { queue, buffers, .. } = self;
            let mut last = Vec::new();
            queue.poll(buffers, &mut last);
            queue.detach_after(last);
        }
    }

    fn ring(&mut self) {
        if self.queue.take_bell()
            && let Some(notifier) = &self.notifier
        {
            notifier.ring();
        }
    }
}

impl Pieces for Buffers {
    fn read(&self, piece: &Sge, to: &mut [u8]) {
        to.copy_from_slice(self.slice(piece));
    }

    fn write(&mut self, piece: &Sge, from: &[u8]) {
        self.slice_mut(piece).copy_from_slice(from);
    }
}

impl Fabric for ProxiedEndpoint {
    fn capabilities(&self) -> Capabilities {
        by_sockets("proxied")
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        for work in batch {
            check_work(&self.buffers, work);
        }
        let posted = self.queue.post(peer, batch, &self.buffers);
        self.ring();
        posted
    }

    fn poll(&mut self, _now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = (events.len(), self.queue.operations());
        self.queue.poll(&mut self.buffers, events);
        self.ring();
        if self.emulate_rdma_ns > 0 && self.queue.operations() > before.1 {
            spin_for(self.emulate_rdma_ns);
        }
        events.len() - before.0
    }
}

impl BufferOwner for ProxiedEndpoint {
    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        self.queue.let_go(named);
    }
}
