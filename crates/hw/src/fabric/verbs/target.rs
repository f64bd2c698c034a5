//! The target's end of the verbs fabric: a thread that answers messages, opens and closes keys and
//! executes the atomics that the device must not; READ, WRITE and WRITE_IMM are the device's.
//!
//! In: control lines from initiators, messages of the application. Out: `FabricEvent`s. The
//! application calls from any thread and never waits for this one, except to end it.
//!
//! Waiting: the thread looks without pause for a while after something moved, then gives way
//! between looks, then sleeps until the device, a control line or the application says something;
//! while frames are open never for more than [`REVOKE_NS`], since the thread that frees one waits.
//!
//! Source: DESIGN §3 (waiting, revocation), §4 (bounded queues).

use super::Atomics;
use super::broken::VerbsCloseReason;
use super::control::ControlLine;
use super::device::{Device, DeviceChoice};
use super::keys::Keys;
use super::lane::{TARGET_DEPTH, fit, peer_of};
use super::queue::{Completion, Completions};
use super::serve::{VerbsServeContext, VerbsSession};
use super::wire::Control;
use crate::addresses::turn_away;
use crate::fabric::peers::{ConnectionLimits, PeerTable};
use crate::fabric::queues::TargetQueues;
use crate::fabric::shm::ShmPeer;
use crate::fabric::tcp::{TargetCommand, TargetCounters, TargetSendError};
use crate::fabric::tcp::{heartbeat_ns, new_socket, require_trust, tune};
use crate::fabric::{FabricError, FabricStats, monotonic_ns};
use crate::handshake::{self, Failure};
use crate::log;
use crate::names;
use crate::secret::{CLEAR_TEXT, Secret};
use crate::window::Window;
use rackpool_core::constants::{LEASE_MS_DEFAULT, MESSAGE_BYTES_MAX};
use rackpool_core::layout::RegionLayout;
use rackpool_core::seam::{FabricEvent, Mem, Nanos, PeerId, RemoteAddr};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tracing::{info, warn};

/// Table words of open frames are looked at at least this often, nanoseconds.
pub const REVOKE_NS: Nanos = 1_000_000;
/// Control lines are looked at this often while the thread is busy.
const READY_NS: Nanos = 1_000_000;
/// Reports taken from the system at once.
const READY_MAX: usize = 64;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// A connection that has not said hello after this long is closed.
const HELLO_NS: Nanos = 5_000_000_000;
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
const DEVICE: u64 = u64::MAX - 2;

/// What a target serves, and how.
#[derive(Clone)]
pub struct VerbsTargetOptions {
    pub device: DeviceChoice,
    /// Where to listen for control lines; port 0 for any.
    pub listen: SocketAddr,
    /// What initiators have to prove that they have, and is proved to them; without it, only a
    /// loopback address may be listened at.
    pub secret: Option<Secret>,
    pub layout: RegionLayout,
    pub pages: Window,
    /// The table section: one generation word a frame.
    pub table: Window,
    /// Announce cells that a free of frames looks at: one word for the thread's own accesses, the
    /// others for frames that are open to devices, of which there are no more than that.
    pub cells: Window,
    /// Connections at once; others are refused. Fewer if one completion queue of the device does
    /// not bear so many.
    pub connections_max: u32,
    /// Of one address at most; `None` for the usual share of them.
    pub address_max: Option<u32>,
    /// How long a failed queue pair may take to come back, milliseconds.
    pub lease_ms: u64,
    /// How long the thread looks without pause after something moved, nanoseconds …
    pub spin_ns: u32,
    /// … and how long it then gives way between looks before it sleeps, nanoseconds.
    pub yield_ns: u32,
    /// Whether initiators may have the device execute atomics.
    pub atomics: Atomics,
    /// Called when events are there and were not before. Must not block.
    pub waker: Arc<dyn Fn() + Send + Sync>,
}

impl VerbsTargetOptions {
    /// The usual settings for a region; nobody is woken.
    pub fn new(
        listen: SocketAddr,
        layout: RegionLayout,
        pages: Window,
        table: Window,
        cells: Window,
    ) -> Self {
        Self {
            device: DeviceChoice::default(),
            listen,
            secret: None,
            layout,
            pages,
            table,
            cells,
            // One address has three quarters: 256.
            connections_max: 342,
            address_max: None,
            lease_ms: LEASE_MS_DEFAULT,
            spin_ns: 20_000,
            yield_ns: 200_000,
            atomics: Atomics::Safe,
            waker: Arc::new(|| ()),
        }
    }
}

/// A serving thread. Dropping it closes all connections and waits for the thread's end.
pub struct VerbsTarget {
    local_addr: SocketAddr,
    queues: Arc<TargetQueues>,
    thread: Option<JoinHandle<()>>,
}

impl VerbsTarget {
    /// Begins to serve. Errors: `NotLoopback`, `Geometry` (also: fewer than two cells), `Verbs`,
    /// `Io`.
    pub fn start(options: VerbsTargetOptions) -> Result<Self, FabricError> {
        require_trust(options.listen, options.secret.as_ref())?;
        if options.secret.as_ref().is_some_and(|secret| !secret.encrypts()) {
            info!(target: "fabric", "{CLEAR_TEXT}");
        }
        super::require_plain(options.secret.as_ref())?;
        let VerbsTargetOptions { layout, pages, table, cells, .. } = options.clone();
        let found_bytes = cells.bytes();
        if found_bytes < 16 {
            return Err(FabricError::Geometry { what: "cells", found_bytes, needed_bytes: 16 });
        }
        let own = cells.slice(0, 8);
        let memory = ShmPeer::new(pages.clone(), table.clone(), own, layout)?;
        let device = Device::open(&options.device)?;
        let atomics = device.limits.has_atomics
            && (device.limits.atomics_global || options.atomics == Atomics::Device);
        let cells = cells.slice(8, found_bytes - 8);
        let keys = Keys::new(pages, table, cells, layout, atomics);
        let (connections, entries) = fit(&device, TARGET_DEPTH, options.connections_max);
        let completions = Completions::new(&device, entries)?;
        let (listener, local_addr) = listen(options.listen)?;
        let queues = Arc::new(TargetQueues::new(options.waker)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(FabricError::io("an epoll descriptor"))?;
        for (fd, token) in
            [(listener.as_fd(), LISTENER), (queues.wake.as_fd(), WAKE), (completions.fd(), DEVICE)]
        {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(FabricError::io("adding to an epoll descriptor"))?;
        }
        let server = VerbsServer {
            peers: PeerTable::new(connections),
            limits: ConnectionLimits::new(connections, options.address_max),
            keys,
            completions,
            device,
            memory,
            listener,
            epoll,
            queues: Arc::clone(&queues),
            stats: FabricStats::default(),
            found: Vec::with_capacity(64),
            closed: Vec::new(),
            spin_ns: options.spin_ns.into(),
            yield_ns: options.yield_ns.into(),
            lease_ms: options.lease_ms,
            secret: options.secret,
        };
        let thread = log::spawn("verbs-target", move || server.run())
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

    /// Ends a connection; `Closed` comes with a later poll.
    pub fn close(&self, peer: PeerId) {
        self.queues.close(peer);
    }

    /// Asks the thread to look at the table now, for a caller that waits for a revocation.
    pub fn look(&self) {
        self.queues.notify();
    }

    /// Counters since the start, as of the thread's last round in which something moved.
    /// One-sided operations are not among them, as nothing here sees them.
    pub fn stats(&self) -> FabricStats {
        self.queues.stats()
    }

    /// The same counters for others to look at.
    pub fn counters(&self) -> TargetCounters {
        TargetCounters { queues: Arc::clone(&self.queues) }
    }
}

impl Drop for VerbsTarget {
    fn drop(&mut self) {
        // SeqCst: pairs with the loads in target.rs::run and sleep; `notify` orders it before the
        // wake-up.
        self.queues.stop.store(true, Ordering::SeqCst);
        self.queues.notify();
        let thread = self.thread.take().expect("taken only here");
        if thread.join().is_err() {
            warn!(target: "fabric", "the target's thread had panicked");
        }
    }
}

fn listen(addr: SocketAddr) -> Result<(OwnedFd, SocketAddr), FabricError> {
    let listener = new_socket(addr)?;
    sockopt::set_socket_reuseaddr(&listener, true)
        .map_err(FabricError::io("the settings of a socket"))?;
    rustix::net::bind(&listener, &addr)
        .map_err(FabricError::io("binding the listening address"))?;
    rustix::net::listen(&listener, BACKLOG).map_err(FabricError::io("listening"))?;
    let bound = rustix::net::getsockname(&listener).map_err(FabricError::io("the address"))?;
    let bound = SocketAddr::try_from(bound).map_err(FabricError::io("the listening address"))?;
    Ok((listener, bound))
}

/// The thread's own. Connections and keys go before what they were made on.
struct VerbsServer {
    keys: Keys,
    peers: PeerTable<VerbsSession>,
    limits: ConnectionLimits,
    completions: Completions,
    device: Device,
    memory: ShmPeer,
    listener: OwnedFd,
    epoll: OwnedFd,
    queues: Arc<TargetQueues>,
    stats: FabricStats,
    found: Vec<Completion>,
    closed: Vec<(PeerId, RemoteAddr)>,
    spin_ns: Nanos,
    yield_ns: Nanos,
    lease_ms: u64,
    secret: Option<Secret>,
}

impl VerbsServer {
    fn run(mut self) {
        let (mut moved_at, mut ready_at) = (monotonic_ns(), 0);
        // SeqCst: pairs with the store in target.rs::drop.
        while !self.queues.stop.load(Ordering::SeqCst) {
            let now = monotonic_ns();
            if now >= ready_at {
                self.ready(Some(0), now);
                ready_at = now + READY_NS;
            }
            if self.round(now) {
                moved_at = now;
                self.publish();
                continue;
            }
            let idle_ns = now.saturating_sub(moved_at);
            if idle_ns < self.spin_ns {
                std::hint::spin_loop();
            } else if idle_ns < self.spin_ns + self.yield_ns {
                std::thread::yield_now();
            } else {
                self.sleep(now);
                ready_at = 0;
            }
        }
    }

    fn publish(&mut self) {
        self.stats.connections = self.peers.count().into();
        self.queues.publish(&self.stats);
    }

    /// Looks at everything once; whether anything moved.
    fn round(&mut self, now: Nanos) -> bool {
        // Relaxed: only saves the exchange, which orders.
        let has_commands = self.queues.has_commands.load(Ordering::Relaxed);
        // SeqCst: pairs with the store in queues.rs::notify.
        if has_commands && self.queues.has_commands.swap(false, Ordering::SeqCst) {
            self.sort_mail();
        }
        let mut moved = self.keys.look(&mut self.closed);
        moved |= self.take_completions(now);
        for slot in 0..self.peers.slots() {
            let Some((peer, _)) = self.peers.at_mut(slot) else { continue };
            moved |= self.with(peer, now, VerbsSession::progress).unwrap_or(false);
        }
        for (peer, at) in std::mem::take(&mut self.closed) {
            self.with(peer, now, |served, _| served.tell_closed(at));
        }
        moved
    }

    fn take_completions(&mut self, now: Nanos) -> bool {
        let mut found = std::mem::take(&mut self.found);
        let moved = self.completions.poll(&mut found) > 0;
        for completion in found.drain(..) {
            let peer = PeerId(peer_of(&completion));
            self.with(peer, now, |served, _| served.completed(&completion));
        }
        self.found = found;
        moved
    }

    /// Runs `run` for a connection, which ends if that fails.
    fn with<R, F>(&mut self, peer: PeerId, now: Nanos, run: F) -> Option<R>
    where
        F: FnOnce(&mut VerbsSession, &mut VerbsServeContext<'_>) -> Result<R, VerbsCloseReason>,
    {
        let served = self.peers.get_mut(peer)?;
        let mut service = VerbsServeContext {
            device: &self.device,
            completions: &self.completions,
            memory: &self.memory,
            keys: &mut self.keys,
            queues: &self.queues,
            stats: &mut self.stats,
            closed: &mut self.closed,
            lease_ms: self.lease_ms,
            now,
        };
        match run(served, &mut service) {
            Ok(result) => Some(result),
            Err(broken) => {
                self.end(peer, &broken);
                None
            }
        }
    }

    fn end(&mut self, peer: PeerId, broken: &VerbsCloseReason) {
        let Some(served) = self.peers.remove(peer) else { return };
        if !matches!(broken, VerbsCloseReason::Closed | VerbsCloseReason::Left) {
            let from = names::peer_of(served.control.fd());
            warn!(target: "fabric", "closed connection {} of {from}: {broken}", peer.0);
        }
        let is_refused = matches!(broken, VerbsCloseReason::Handshake(Failure::Distrust(_)));
        self.stats.refused += u64::from(is_refused);
        let is_greeted = served.is_greeted();
        // Its queue pair ends here, then what was registered for it.
        drop(served);
        self.keys.forget(peer);
        if is_greeted {
            self.queues.closed(peer, FabricEvent::Closed { peer, cause: broken.cause() });
        }
    }

    /// Acts on what the application put in.
    fn sort_mail(&mut self) {
        for _ in 0..self.peers.limit() {
            let Some((peer, close)) = self.queues.take_ready() else { break };
            if close {
                self.end(peer, &VerbsCloseReason::Left);
            } else if let Some(served) = self.peers.get_mut(peer) {
                served.has_mail = true;
            }
        }
    }

    /// Asks the system what is ready, waiting at most so long.
    fn ready(&mut self, wait_ns: Option<Nanos>, now: Nanos) {
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
        for event in &ready[..count] {
            match event.data.u64() {
                LISTENER => self.accept(now),
                // The device's and the application's are looked at in any case.
                WAKE => _ = rustix::io::read(&self.queues.wake, &mut [0; 8]),
                DEVICE => {}
                token => _ = self.with(PeerId(token as u32), now, VerbsSession::listen),
            }
        }
        for slot in 0..self.peers.slots() {
            let Some((peer, served)) = self.peers.at_mut(slot) else { continue };
            if !served.is_greeted() && now.saturating_sub(served.since) > HELLO_NS {
                self.end(peer, &VerbsCloseReason::Silent { lease_ms: HELLO_NS / 1_000_000 });
            }
        }
    }

    fn sleep(&mut self, now: Nanos) {
        self.publish();
        let limit_ns = if self.keys.has_open() { REVOKE_NS } else { heartbeat_ns(self.lease_ms) };
        self.completions.arm();
        // SeqCst: pairs with the load in queues.rs::notify.
        self.queues.sleeping.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the stores in queues.rs::notify and target.rs::drop.
        let must_stay = self.queues.has_commands.load(Ordering::SeqCst)
            || self.queues.stop.load(Ordering::SeqCst);
        // What came before the device was asked to tell is not told.
        let must_stay = must_stay || self.take_completions(now);
        self.ready(Some(if must_stay { 0 } else { limit_ns }), now);
        // SeqCst: pairs with the load in queues.rs::notify; a notification too many is harmless.
        self.queues.sleeping.store(false, Ordering::SeqCst);
    }

    fn accept(&mut self, now: Nanos) {
        for _ in 0..BACKLOG {
            if self.queues.is_congested() {
                return;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    warn!(target: "fabric", "cannot accept connections for now: {error}");
                    return;
                }
            };
            if let Err(error) = self.admit(socket, now) {
                warn!(target: "fabric", "a connection was not accepted: {error}");
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, now: Nanos) -> Result<(), FabricError> {
        // One that has gone already has no address.
        let Some(ip) = names::peer_addr(&socket).map(|addr| addr.ip()) else { return Ok(()) };
        tune(socket.as_fd())?;
        if let Some(peer) = self.limits.gives_way(&self.peers, ip, now) {
            self.end(peer, &VerbsCloseReason::Crowded);
        }
        let permit = self.limits.take(&self.peers, ip).inspect_err(|_| {
            let (proof, frame) = (handshake::busy(), Control::Busy.to_bytes());
            turn_away(&socket, if self.secret.is_some() { &proof[..] } else { &frame[..] });
        })?;
        let control = ControlLine::accept(socket, self.secret.as_ref())?;
        let make = |peer| Ok::<_, FabricError>(VerbsSession::new(peer, control, permit, now));
        let peer = self.peers.insert_with(make).expect("there was a place")?;
        let served = self.peers.get_mut(peer).expect("just inserted");
        let data = epoll::EventData::new_u64(peer.0.into());
        let added = epoll::add(&self.epoll, served.control.fd(), data, epoll::EventFlags::IN);
        if let Err(error) = added {
            self.peers.remove(peer);
            return Err(FabricError::Io {
                what: "adding a socket to an epoll descriptor",
                source: error.into(),
            });
        }
        Ok(())
    }
}
