//! The fabric of a client with threads that share their connections: one endpoint, and one
//! connection (queue pair) to each other rack, for all of them. To the target each thread is a
//! channel of the connection, as the clients of a daemon that works for them are.
//!
//! ```text
//!  member (one thread)   post, connect, close  -->  +-- the endpoint, under a lock ---+
//!  member                take its inbox        <--  | channels, work under way, tcp   |
//!  member  ... a thread that waits and gets the lock drives it, and fills the inboxes of all
//! ```
//!
//! Leader/follower:
//! - A thread that posts takes the lock for the posting. A thread that waits looks into its own
//!   inbox, and if the lock is free drives the endpoint for all; if it is not, another thread does
//!   that now.
//! - A thread that has waited for long sleeps. One of the sleepers, the *leader*, sleeps on the
//!   sockets, the others until they are notified. An event wakes its member, whichever thread
//!   found it.
//! - A thread that leaves a wait while there is no leader wakes one sleeper, which becomes it.
//! - So no thread depends on one that is not in a call. A leader that is stopped, or panics,
//!   without the lock delays sleepers by 20 ms at most: then they look themselves. The lock is held
//!   for calls that do not block.
//!
//! Data go from the socket into the memory of the member that asked for them, by whichever thread
//! receives them, and out of it as well: no copy more than with connections of one's own. Until
//! such a work request has completed or is cancelled, its member gets no reference to the bytes.
//! Messages are copied once, because the channel is written into them.
//!
//! Source: DESIGN §2 (sharing rings and queue pairs); decision 0029.

mod state;

use super::buffers::{BufferOwner, Buffers};
use super::shm::check_work;
use super::waiting::{Patience, sleep_on};
use super::{EndpointOptions, FabricError, FabricStats, by_sockets, monotonic_ns, spin_for, tcp};
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, SLOTS_MAX};
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, Verb, WorkRequest,
};
use rackpool_mem::event::{Interest, Poller, WakeEvent};
use state::{MemberNotifier, News, State, WaitState};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// How long a sleeper relies on the leader.
const LOOK_NS: Nanos = 20_000_000;
/// Work requests under way on one connection: those of as many members as a rack has slots, and a
/// last message of each.
const OUTSTANDING_MAX: usize = (FABRIC_OUTSTANDING_MAX as usize + 1) * SLOTS_MAX as usize;

/// What the members share; see the module.
pub struct SharedEndpoint {
    state: Mutex<State>,
    /// The endpoint's, to sleep on without the lock.
    sockets: OwnedFd,
    options: EndpointOptions,
    look_ns: Nanos,
}

impl SharedEndpoint {
    /// An endpoint without connections. Errors: `Io`.
    pub fn new(options: EndpointOptions) -> Result<Arc<Self>, FabricError> {
        Self::with_look(options, LOOK_NS)
    }

    /// As [`SharedEndpoint::new`]; sleepers look for themselves after `look_ns`. Errors: `Io`.
    pub fn with_look(options: EndpointOptions, look_ns: Nanos) -> Result<Arc<Self>, FabricError> {
        // Each member spends the injected latency itself, without the lock.
        let own = EndpointOptions { emulate_rdma_ns: 0, ..options.clone() };
        let mut endpoint = tcp::TcpEndpoint::for_many(own, OUTSTANDING_MAX)?;
        let sockets = endpoint.prepare_sleep().try_clone_to_owned();
        let sockets = sockets.map_err(FabricError::io("a second epoll descriptor"))?;
        let state = Mutex::new(State::new(endpoint));
        Ok(Arc::new(Self { state, sockets, options, look_ns }))
    }

    /// Counters of all members together.
    pub fn stats(&self) -> FabricStats {
        self.lock().endpoint.stats()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under this lock")
    }
}

impl std::fmt::Debug for SharedEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedEndpoint").finish_non_exhaustive()
    }
}

/// A member's end; see the module.
pub struct MemberEndpoint {
    shared: Arc<SharedEndpoint>,
    member: usize,
    notifier: Arc<MemberNotifier>,
    buffers: Buffers,
    /// Work requests that may touch this member's memory.
    under_way: u32,
    gathers: bool,
    emulate_rdma_ns: u32,
    patience: Patience,
    /// For an application that sleeps: the sockets and our wake event.
    descriptor: Option<Poller>,
}

impl MemberEndpoint {
    /// Another member of `shared`, without connections. Errors: `Io`.
    pub fn new(shared: &Arc<SharedEndpoint>) -> Result<Self, FabricError> {
        let wake = WakeEvent::new().map_err(FabricError::io("a wake event"))?;
        let notifier = Arc::new(MemberNotifier { news: AtomicBool::new(false), wake });
        let EndpointOptions { emulate_rdma_ns, spin_ns, yield_ns, .. } = shared.options;
        Ok(Self {
            member: shared.lock().join(Arc::clone(&notifier)),
            shared: Arc::clone(shared),
            notifier,
            buffers: Buffers::new(),
            under_way: 0,
            gathers: false,
            emulate_rdma_ns,
            patience: Patience::new(spin_ns, yield_ns),
            descriptor: None,
        })
    }

    /// Begins a channel to a target, over the connection to it that is there or a new one:
    /// `Connected` or `Closed` comes with a later poll. Work may be posted at once. Messages are
    /// [`rackpool_core::wire::Routed`] with channel 0, both ways. Errors: `NotLoopback`,
    /// `PeersFull`, `Io`.
    pub fn connect(&mut self, addr: SocketAddr, now: Nanos) -> Result<PeerId, FabricError> {
        self.shared.lock().connect(self.member, addr, now)
    }

    /// Ends a channel, and the connection with the last one. Its outstanding work and `Closed`
    /// come with the next poll. What is under way may be executed until the target has heard of
    /// it, and not after.
    pub fn close(&mut self, peer: PeerId) {
        self.shared.lock().close(self.member, peer, monotonic_ns());
    }

    /// See [`tcp::TcpEndpoint::set_gathering`].
    pub fn set_gathering(&mut self, gathers: bool) {
        self.gathers = gathers;
    }

    /// Changes the injected latency, nanoseconds, for all channels.
    pub fn set_emulated_delay(&mut self, emulate_rdma_ns: u32) {
        self.emulate_rdma_ns = emulate_rdma_ns;
    }

    /// Operations of this member; connections, bytes and calls to the system of all together.
    pub fn stats(&self) -> FabricStats {
        let mut state = self.shared.lock();
        let ops = state.member(self.member).operations;
        FabricStats { ops, ..state.endpoint.stats() }
    }

    /// Polls until something happened or `deadline` has passed; how many events were appended.
    pub fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let mut now = monotonic_ns();
        self.patience.begin(now);
        loop {
            let happened = self.look(now, now >= deadline, events);
            if happened > 0 {
                self.patience.learn();
            }
            if happened > 0 || now >= deadline {
                return happened;
            }
            if self.patience.pause(now) {
                self.sleep(now, deadline);
            }
            now = monotonic_ns();
        }
    }

    /// Takes what others found, or drives the endpoint if no other thread does; how many events.
    /// Before a wait ends the lead is passed on, and a wait that `is_last` does so in any case.
    fn look(&mut self, now: Nanos, is_last: bool, events: &mut Vec<FabricEvent>) -> usize {
        // Acquire: pairs with the Release in `state.rs::tell`.
        let has_news = self.notifier.news.load(Ordering::Acquire);
        let mut state = match self.shared.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::WouldBlock) if !has_news && !is_last => return 0,
            Err(_) => self.shared.lock(),
        };
        if !has_news {
            state.drive(now);
        }
        if is_last || state.has_news(self.member) {
            state.pass_lead();
        }
        let news = state.take(self.member, events);
        drop(state);
        self.settle(&news)
    }

    /// What happened to us, now that the lock is free; how many events.
    fn settle(&mut self, news: &News) -> usize {
        self.under_way -= news.released;
        if news.one_sided && self.emulate_rdma_ns > 0 {
            spin_for(self.emulate_rdma_ns);
        }
        news.events
    }

    /// Sleeps until there are news, the lead is passed on, or the time is over.
    fn sleep(&mut self, now: Nanos, deadline: Nanos) {
        let mut state = self.shared.lock();
        state.drive(now);
        if state.has_news(self.member) {
            return;
        }
        let leads = state.leader.is_none();
        if leads {
            state.leader = Some(self.member);
            state.endpoint.prepare_sleep();
        }
        state.member(self.member).wait_state =
            if leads { WaitState::Leading } else { WaitState::Following };
        drop(state);
        let (wake, sockets) = (self.notifier.wake.as_fd(), self.shared.sockets.as_fd());
        let ns = deadline.saturating_sub(now).min(self.shared.look_ns);
        let [is_woken, _] = sleep_on([wake, if leads { sockets } else { wake }], ns);
        let mut state = self.shared.lock();
        state.leader.take_if(|leader| *leader == self.member);
        state.member(self.member).wait_state = WaitState::Awake;
        if is_woken {
            self.notifier.wake.drain();
        }
    }

    /// A descriptor that can be read when there is something to poll for. To be asked for again
    /// before each sleep. Errors: `Io`.
    pub fn prepare_sleep(&mut self) -> Result<BorrowedFd<'_>, FabricError> {
        if self.descriptor.is_none() {
            self.descriptor = Some(self.make_descriptor().map_err(FabricError::io("an epoll"))?);
        }
        let mut state = self.shared.lock();
        state.endpoint.prepare_sleep();
        self.notifier.wake.drain();
        if state.has_news(self.member) {
            self.notifier.wake.notify();
        }
        state.member(self.member).wait_state = WaitState::Outside;
        Ok(self.descriptor.as_ref().expect("made above").as_fd())
    }

    fn make_descriptor(&self) -> std::io::Result<Poller> {
        let all = Poller::new()?;
        all.add(&self.shared.sockets, 0, Interest::Read)?;
        all.add(&self.notifier.wake, 0, Interest::Read)?;
        Ok(all)
    }
}

impl Fabric for MemberEndpoint {
    fn capabilities(&self) -> Capabilities {
        by_sockets("tcp")
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        for work in batch {
            check_work(&self.buffers, work);
            let is_routed = work.verb != Verb::Send || {
                let first = work.local.iter().find(|piece| piece.bytes > 0);
                first.is_some_and(|piece| self.buffers.slice(piece)[0] == 0)
            };
            assert!(is_routed, "a message names channel 0");
        }
        let mut state = self.shared.lock();
        let (lent, result) = state.post(self.member, peer, batch, &self.buffers, self.gathers);
        self.under_way += lent;
        result
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let mut state = self.shared.lock();
        state.drive(now);
        state.member(self.member).wait_state = WaitState::Awake;
        let news = state.take(self.member, events);
        drop(state);
        self.settle(&news)
    }
}

impl BufferOwner for MemberEndpoint {
    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        if self.under_way > 0 {
            let released = self.shared.lock().let_go(self.member, named);
            self.under_way -= released;
        }
    }

    fn require_idle(&self, piece: &Sge, reads: bool) {
        if self.under_way > 0 {
            let is_under_way = self.shared.lock().is_under_way(self.member, piece, reads);
            assert!(!is_under_way, "{piece:?} is asked for while work under way names it");
        }
    }
}

impl Drop for MemberEndpoint {
    fn drop(&mut self) {
        // If the lock is poisoned, no thread gets it any more, nor at the buffers.
        if let Ok(mut state) = self.shared.state.lock() {
            state.leave(self.member, monotonic_ns());
            state.pass_lead();
        }
    }
}
