//! The target's end of the tcp fabric: a thread that executes one-sided operations on the pages
//! of this process, and the queues between it and the application: events out, messages in.
//!
//! In: connections (`admission.rs`), messages of the application. Out: `FabricEvent`s.
//! The application calls from any thread and never waits for the fabric's thread (except to end
//! it); one-sided operations never wake the application.
//!
//! Waiting: the thread looks at the connections on which something moved lately without asking
//! the system which are ready, gives way to others on its core after a few looks in vain, and
//! sleeps when nothing moved for a while.
//!
//! Source: DESIGN §3 (waiting), §4 (bounded queues, loopback only).

mod admission;

use super::super::peers::{ConnectionLimits, PeerTable};
use super::super::queues::TargetQueues;
use super::super::shm::ShmPeer;
use super::super::{FabricError, FabricStats, monotonic_ns};
use super::broken::TcpCloseReason;
use super::command::{TargetCommand, TargetSendError, WriteBack};
use super::serve::{TcpServeContext, TcpSession};
use super::{heartbeat_ns, new_socket, require_trust};
use crate::log;
use crate::names::peer_of;
use crate::secret::{CLEAR_TEXT, Secret};
use crate::window::Window;
use rackpool_core::constants::{
    FABRIC_PEERS_MAX, LEASE_MS_DEFAULT, MESSAGE_BYTES_MAX, SESSIONS_MAX,
};
use rackpool_core::layout::RegionLayout;
use rackpool_core::seam::{FabricEvent, Nanos, PeerId};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tracing::{info, warn};

/// Rounds over idle connections before the processor is yielded: at least these, some 2 µs, which
/// two ends on one core can afford …
const SPIN_ROUNDS_MIN: u32 = 8;
/// … and at most these, longer than an initiator on another core takes for its next request.
const SPIN_ROUNDS_MAX: u32 = 64;
/// The system is asked for other connections once in this many rounds.
const READY_ROUNDS: u32 = 256;
/// … and at least this often: where the processor is shared, a round may take long.
const READY_NS: Nanos = 500_000;
/// Reports taken from the system at once.
const READY_MAX: usize = 64;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// A connection that has not said hello after this long is closed.
const HELLO_NS: Nanos = 5_000_000_000;
/// Bytes of data that are dropped at once.
const SCRAP_BYTES: usize = 64 << 10;
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// What a target serves, and how.
#[derive(Clone)]
pub struct TcpTargetOptions {
    /// Where to listen; without a secret a loopback address. Port 0 for any.
    pub listen: SocketAddr,
    pub layout: RegionLayout,
    pub pages: Window,
    /// The table section: one generation word a frame.
    pub table: Window,
    /// Announce cells that a free of frames looks at; the target's thread uses the first.
    pub cells: Window,
    /// Connections at once; others are refused. At most `FABRIC_PEERS_MAX`; as a rule one for each
    /// session.
    pub connections_max: u32,
    /// Of one address at most; `None` for the usual share of them.
    pub address_max: Option<u32>,
    /// The lease of the initiators: a connection that waits for the application is told of our
    /// life in fractions of it, milliseconds.
    pub lease_ms: u64,
    /// How long the thread looks without sleeping after something moved, nanoseconds.
    pub spin_ns: u32,
    /// Called when events are there and were not before. Must not block.
    pub waker: Arc<dyn Fn() + Send + Sync>,
    /// What initiators have to prove that they have, and is proved to them.
    pub secret: Option<Secret>,
}

impl TcpTargetOptions {
    /// The usual settings for a region; nobody is woken.
    pub fn new(
        listen: SocketAddr,
        layout: RegionLayout,
        pages: Window,
        table: Window,
        cells: Window,
    ) -> Self {
        Self {
            listen,
            layout,
            pages,
            table,
            cells,
            connections_max: SESSIONS_MAX,
            address_max: None,
            lease_ms: LEASE_MS_DEFAULT,
            spin_ns: 100_000,
            waker: Arc::new(|| ()),
            secret: None,
        }
    }
}

/// A serving thread. Dropping it closes all connections and waits for the thread's end.
pub struct TcpTarget {
    local_addr: SocketAddr,
    queues: Arc<TargetQueues>,
    thread: Option<JoinHandle<()>>,
}

impl TcpTarget {
    /// Begins to serve. Errors: `NotLoopback`, `Geometry`, `Io` (such as an address in use).
    pub fn start(options: TcpTargetOptions) -> Result<Self, FabricError> {
        require_trust(options.listen, options.secret.as_ref())?;
        if options.secret.as_ref().is_some_and(|secret| !secret.encrypts()) {
            info!(target: "fabric", "{CLEAR_TEXT}");
        }
        let TcpTargetOptions { layout, pages, table, cells, .. } = options.clone();
        let memory = ShmPeer::new(pages, table, cells, layout)?;
        let listener = new_socket(options.listen)?;
        sockopt::set_socket_reuseaddr(&listener, true)
            .map_err(FabricError::io("the settings of a socket"))?;
        rustix::net::bind(&listener, &options.listen)
            .map_err(FabricError::io("binding the listening address"))?;
        rustix::net::listen(&listener, BACKLOG).map_err(FabricError::io("listening"))?;
        let local_addr = rustix::net::getsockname(&listener)
            .map_err(FabricError::io("the listening address"))?;
        let local_addr =
            SocketAddr::try_from(local_addr).map_err(FabricError::io("the listening address"))?;
        let queues = Arc::new(TargetQueues::new(options.waker)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(FabricError::io("an epoll descriptor"))?;
        for (fd, token) in [(listener.as_fd(), LISTENER), (queues.wake.as_fd(), WAKE)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(FabricError::io("adding to an epoll descriptor"))?;
        }
        let server = TcpServer {
            listener,
            is_listening: true,
            epoll,
            memory,
            queues: Arc::clone(&queues),
            peers: PeerTable::new(options.connections_max),
            limits: ConnectionLimits::new(options.connections_max, options.address_max),
            active: Vec::new(),
            has_held: false,
            stats: FabricStats::default(),
            scrap: vec![0; SCRAP_BYTES],
            spin_ns: options.spin_ns.into(),
            heartbeat_ns: heartbeat_ns(options.lease_ms),
            tick_at: 0,
            secret: options.secret,
        };
        let thread = log::spawn("fabric-target", move || server.run())
            .map_err(FabricError::io("a thread"))?;
        Ok(Self { local_addr, queues, thread: Some(thread) })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Appends what happened; how many events.
    pub fn poll(&self, events: &mut Vec<FabricEvent>) -> usize {
        self.queues.take_events(events)
    }

    /// Sends a message to an initiator; messages to one connection arrive in order.
    pub fn send(&self, peer: PeerId, message: &[u8]) -> Result<(), TargetSendError> {
        if message.len() > MESSAGE_BYTES_MAX as usize {
            return Err(TargetSendError::TooLong { bytes: message.len() });
        }
        self.queues.send(peer, TargetCommand::Message(message.to_vec()))
    }

    /// Writes memory into a buffer of an initiator and then sends a message, in order with other
    /// messages. Errors: as of [`TcpTarget::send`], for both messages.
    pub fn write_back(&self, peer: PeerId, job: WriteBack) -> Result<(), TargetSendError> {
        let bytes = job.done.len().max(job.refused.len());
        if bytes > MESSAGE_BYTES_MAX as usize {
            return Err(TargetSendError::TooLong { bytes });
        }
        self.queues.send(peer, TargetCommand::WriteBack(Box::new(job)))
    }

    /// Ends a connection; `Closed` comes with a later poll.
    pub fn close(&self, peer: PeerId) {
        self.queues.close(peer);
    }

    /// Counters since the start, as of the thread's last round in which something moved.
    pub fn stats(&self) -> FabricStats {
        self.queues.stats()
    }

    /// The same counters for others to look at.
    pub fn counters(&self) -> TargetCounters {
        TargetCounters { queues: Arc::clone(&self.queues) }
    }
}

/// The counters of a [`TcpTarget`], for whoever tells of it; they outlive it.
#[derive(Clone)]
pub struct TargetCounters {
    pub(in crate::fabric) queues: Arc<TargetQueues>,
}

impl TargetCounters {
    /// As [`TcpTarget::stats`].
    pub fn stats(&self) -> FabricStats {
        self.queues.stats()
    }
}

impl Drop for TcpTarget {
    fn drop(&mut self) {
        // SeqCst: pairs with the load in target.rs::run; `notify` orders it before the wake-up.
        self.queues.stop.store(true, Ordering::SeqCst);
        self.queues.notify();
        let thread = self.thread.take().expect("taken only here");
        if thread.join().is_err() {
            warn!(target: "fabric", "the target's thread had panicked");
        }
    }
}

struct TcpServer {
    listener: OwnedFd,
    is_listening: bool,
    epoll: OwnedFd,
    memory: ShmPeer,
    queues: Arc<TargetQueues>,
    peers: PeerTable<TcpSession>,
    limits: ConnectionLimits,
    /// Connections on which something moved lately.
    active: Vec<PeerId>,
    /// Whether there may be some that wait for the application.
    has_held: bool,
    stats: FabricStats,
    scrap: Vec<u8>,
    spin_ns: Nanos,
    heartbeat_ns: Nanos,
    tick_at: Nanos,
    secret: Option<Secret>,
}

impl TcpServer {
    fn run(mut self) {
        let (mut round, mut in_vain, mut spin_rounds) = (0u32, 0u32, SPIN_ROUNDS_MAX / 2);
        let mut look_at = 0;
        // SeqCst: pairs with the store in target.rs::drop.
        while !self.queues.stop.load(Ordering::SeqCst) {
            // Relaxed: only saves the exchange, which orders.
            let has_commands = self.queues.has_commands.load(Ordering::Relaxed);
            // SeqCst: pairs with the store in queues.rs::notify.
            if has_commands && self.queues.has_commands.swap(false, Ordering::SeqCst) {
                self.sort_mail();
            }
            let now = monotonic_ns();
            if self.serve_active(now) {
                // Spinning that found work is worth more next time, spinning that did not, less.
                if in_vain > spin_rounds {
                    spin_rounds = (spin_rounds / 2).max(SPIN_ROUNDS_MIN);
                } else if in_vain > 0 {
                    spin_rounds = (spin_rounds * 2).min(SPIN_ROUNDS_MAX);
                }
                in_vain = 0;
                self.publish();
            } else {
                in_vain = in_vain.saturating_add(1);
            }
            round = round.wrapping_add(1);
            if self.active.is_empty() {
                self.publish();
                self.sleep(now);
                in_vain = 0;
            } else if round.is_multiple_of(READY_ROUNDS) || now >= look_at {
                self.look(Some(0));
                self.tick(now);
                look_at = now + READY_NS;
            }
            if in_vain > spin_rounds {
                std::thread::yield_now();
            }
        }
    }

    fn publish(&mut self) {
        self.stats.connections = self.peers.count().into();
        self.queues.publish(&self.stats);
    }

    /// Serves the connections that were active lately; `true` if anything moved.
    fn serve_active(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        // The more there are, the sooner one that rests is left to the system.
        let spin_ns = self.spin_ns / self.active.len().max(1) as u64;
        let mut index = 0;
        while index < self.active.len() {
            let peer = self.active[index];
            let keeps = match self.serve(peer, now) {
                Ok(true) => {
                    moved = true;
                    true
                }
                Ok(false) => self.rests(peer, now, spin_ns),
                Err(broken) => {
                    self.end(peer, broken);
                    continue;
                }
            };
            if keeps {
                index += 1;
            } else {
                self.retire(index);
            }
        }
        moved
    }

    /// Whether a connection on which nothing moved stays among the active ones.
    fn rests(&mut self, peer: PeerId, now: Nanos, spin_ns: Nanos) -> bool {
        self.peers.get_mut(peer).is_some_and(|served| {
            !served.is_held() && now.saturating_sub(served.moved_at) < spin_ns
        })
    }

    fn serve(&mut self, peer: PeerId, now: Nanos) -> Result<bool, TcpCloseReason> {
        let Some(served) = self.peers.get_mut(peer) else { return Ok(false) };
        let mut service = TcpServeContext {
            memory: &self.memory,
            queues: &self.queues,
            stats: &mut self.stats,
            scrap: &mut self.scrap,
        };
        let moved = served.progress(&mut service)?;
        if moved {
            served.moved_at = now;
        }
        Ok(moved)
    }

    /// Leaves an active connection to the system, which reports when it can go on.
    fn retire(&mut self, index: usize) {
        let peer = self.active.swap_remove(index);
        let Some(served) = self.peers.get_mut(peer) else { return };
        served.is_active = false;
        self.has_held |= served.is_held();
        if served.is_held() && self.tick_at == 0 {
            self.tick_at = monotonic_ns() + self.heartbeat_ns;
        }
        let asks = (!served.is_held() && !served.is_blocked(), served.is_blocked());
        if served.asks != asks {
            served.asks = asks;
            let mut flags = epoll::EventFlags::empty();
            flags.set(epoll::EventFlags::IN, asks.0);
            flags.set(epoll::EventFlags::OUT, asks.1);
            let data = epoll::EventData::new_u64(peer.0.into());
            // Only fails for a descriptor that is not there, and this one is open.
            let modified = epoll::modify(&self.epoll, &served.stream, data, flags);
            assert!(modified.is_ok(), "epoll lost a socket: {modified:?}");
        }
    }

    fn activate(&mut self, peer: PeerId, now: Nanos) {
        if let Some(served) = self.peers.get_mut(peer)
            && !served.is_active
        {
            served.is_active = true;
            served.moved_at = now;
            self.active.push(peer);
        }
    }

    fn end(&mut self, peer: PeerId, broken: TcpCloseReason) {
        if let Some(index) = self.active.iter().position(|active| *active == peer) {
            self.active.swap_remove(index);
        }
        let Some(served) = self.peers.remove(peer) else { return };
        if !matches!(broken, TcpCloseReason::Closed | TcpCloseReason::Left) {
            let from = peer_of(&served.stream);
            warn!(target: "fabric", "closed connection {} of {from}: {broken}", peer.0);
        }
        self.stats.refused += u64::from(matches!(broken, TcpCloseReason::Handshake(_)));
        if served.is_greeted() {
            self.queues.closed(peer, FabricEvent::Closed { peer, cause: broken.cause() });
        }
    }

    /// Acts on what the application put in.
    fn sort_mail(&mut self) {
        let now = monotonic_ns();
        // No more than there are connections: each is touched once.
        for _ in 0..FABRIC_PEERS_MAX {
            let Some((peer, close)) = self.queues.take_ready() else { break };
            if close {
                self.end(peer, TcpCloseReason::Left);
            } else if let Some(served) = self.peers.get_mut(peer) {
                served.has_mail = true;
                self.activate(peer, now);
            }
        }
        if std::mem::take(&mut self.has_held) {
            for slot in 0..self.peers.slots() {
                if let Some((peer, served)) = self.peers.at_mut(slot)
                    && served.is_held()
                {
                    self.activate(peer, now);
                }
            }
        }
        self.listen_again();
    }

    /// Asks the system what is ready, waiting at most `wait_ns`, or without end.
    fn look(&mut self, wait_ns: Option<Nanos>) {
        let nothing =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut ready = [nothing; READY_MAX];
        let timeout = wait_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let count = match epoll::wait(&self.epoll, &mut ready, timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => panic!("epoll_wait on a descriptor of our own: {error}"),
        };
        let now = monotonic_ns();
        let dead = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        for event in &ready[..count] {
            let flags = event.flags;
            match event.data.u64() {
                LISTENER => self.accept(now),
                WAKE => {
                    // What was put in is looked at in any case.
                    let _ = rustix::io::read(&self.queues.wake, &mut [0; 8]);
                }
                token => {
                    let peer = PeerId(token as u32);
                    let held = self.peers.get_mut(peer).is_some_and(|served| served.is_held());
                    if held && flags.intersects(dead) {
                        self.end(peer, TcpCloseReason::Closed);
                    } else {
                        self.activate(peer, now);
                    }
                }
            }
        }
    }

    fn sleep(&mut self, now: Nanos) {
        self.tick(now);
        let timeout = (self.tick_at > 0).then(|| self.tick_at.saturating_sub(now));
        // SeqCst: pairs with the load in queues.rs::notify.
        self.queues.sleeping.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the stores in queues.rs::notify and target.rs::drop.
        let must_stay = self.queues.has_commands.load(Ordering::SeqCst)
            || self.queues.stop.load(Ordering::SeqCst);
        self.look(if must_stay { Some(0) } else { timeout });
        // SeqCst: pairs with the load in queues.rs::notify; a notification too many is harmless.
        self.queues.sleeping.store(false, Ordering::SeqCst);
    }

    /// What time brings about: connections that wait for the application are told that we live,
    /// those that never said hello are closed, the listener is tried again.
    fn tick(&mut self, now: Nanos) {
        if self.tick_at == 0 || now < self.tick_at {
            return;
        }
        let mut needs_tick = !self.is_listening;
        for slot in 0..self.peers.slots() {
            let Some((peer, served)) = self.peers.at_mut(slot) else { continue };
            if !served.is_greeted() {
                needs_tick = true;
                if now.saturating_sub(served.since) > HELLO_NS {
                    self.end(peer, TcpCloseReason::Silent { lease_ms: HELLO_NS / 1_000_000 });
                }
            } else if served.is_held() {
                needs_tick = true;
                let mut service = TcpServeContext {
                    memory: &self.memory,
                    queues: &self.queues,
                    stats: &mut self.stats,
                    scrap: &mut self.scrap,
                };
                if let Err(broken) = served.keep_alive(&mut service) {
                    self.end(peer, broken);
                }
            }
        }
        self.listen_again();
        self.tick_at = if needs_tick { now + self.heartbeat_ns } else { 0 };
    }
}
