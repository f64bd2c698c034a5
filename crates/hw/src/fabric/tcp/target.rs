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

use super::super::doors::Doors;
use super::super::peers::{PeerTable, Places};
use super::super::shm::ShmPeer;
use super::super::{FabricError, FabricStats, Log, log_to_stderr, monotonic_ns};
use super::broken::Broken;
use super::mail::{Mail, TargetSendError, WriteBack};
use super::serve::{Served, Service};
use super::{heartbeat_ns, new_socket, require_trust};
use crate::names::peer_of;
use crate::secret::{CLEAR_TEXT, Secret};
use crate::window::Window;
use crate::{log, tell, warn};
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
pub struct TargetOptions {
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
    pub log: Log,
}

impl TargetOptions {
    /// The usual settings for a region; no thread is woken.
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
            log: log_to_stderr(),
        }
    }
}

/// A serving thread. Dropping it closes all connections and waits for the thread's end.
pub struct Target {
    local_addr: SocketAddr,
    doors: Arc<Doors>,
    thread: Option<JoinHandle<()>>,
}

impl Target {
    /// Begins to serve. Errors: `NotLoopback`, `Geometry`, `Io` (such as an address in use).
    pub fn start(options: TargetOptions) -> Result<Self, FabricError> {
        require_trust(options.listen, options.secret.as_ref())?;
        if options.secret.as_ref().is_some_and(|secret| !secret.encrypts()) {
            tell!(options.log, Info, "{CLEAR_TEXT}");
        }
        let TargetOptions { layout, pages, table, cells, .. } = options.clone();
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
        let doors = Arc::new(Doors::new(options.waker)?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(FabricError::io("an epoll descriptor"))?;
        for (fd, token) in [(listener.as_fd(), LISTENER), (doors.wake.as_fd(), WAKE)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(FabricError::io("adding to an epoll descriptor"))?;
        }
        let server = Server {
            listener,
            is_listening: true,
            epoll,
            memory,
            doors: Arc::clone(&doors),
            peers: PeerTable::new(options.connections_max),
            places: Places::new(options.connections_max, options.address_max),
            active: Vec::new(),
            has_held: false,
            stats: FabricStats::default(),
            scrap: vec![0; SCRAP_BYTES],
            spin_ns: options.spin_ns.into(),
            heartbeat_ns: heartbeat_ns(options.lease_ms),
            tick_at: 0,
            secret: options.secret,
            log: options.log,
        };
        let thread = log::spawn("fabric-target", move || server.run())
            .map_err(FabricError::io("a thread"))?;
        Ok(Self { local_addr, doors, thread: Some(thread) })
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Appends what happened; how many events.
    pub fn poll(&self, events: &mut Vec<FabricEvent>) -> usize {
        self.doors.take_events(events)
    }

    /// Sends a message to an initiator; messages to one connection arrive in order.
    pub fn send(&self, peer: PeerId, message: &[u8]) -> Result<(), TargetSendError> {
        if message.len() > MESSAGE_BYTES_MAX as usize {
            return Err(TargetSendError::TooLong { bytes: message.len() });
        }
        self.doors.send(peer, Mail::Message(message.to_vec()))
    }

    /// Writes memory into a buffer of an initiator and then sends a message, in order with other
    /// messages. Errors: as of [`Target::send`], for both messages.
    pub fn write_back(&self, peer: PeerId, job: WriteBack) -> Result<(), TargetSendError> {
        let bytes = job.done.len().max(job.refused.len());
        if bytes > MESSAGE_BYTES_MAX as usize {
            return Err(TargetSendError::TooLong { bytes });
        }
        self.doors.send(peer, Mail::WriteBack(Box::new(job)))
    }

    /// Ends a connection; `Closed` comes with a later poll.
    pub fn close(&self, peer: PeerId) {
        self.doors.close(peer);
    }

    /// Counters since the start, as of the thread's last round in which something moved.
    pub fn stats(&self) -> FabricStats {
        self.doors.stats()
    }

    /// The same counters for others to look at.
    pub fn counters(&self) -> TargetCounters {
        TargetCounters { doors: Arc::clone(&self.doors) }
    }
}

/// The counters of a [`Target`], for the code that reports them; they outlive it.
#[derive(Clone)]
pub struct TargetCounters {
    pub(in crate::fabric) doors: Arc<Doors>,
}

impl TargetCounters {
    /// As [`Target::stats`].
    pub fn stats(&self) -> FabricStats {
        self.doors.stats()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SeqCst: pairs with the load in target.rs::run; `notify` orders it before the wake-up.
        self.doors.stop.store(true, Ordering::SeqCst);
        self.doors.notify();
        let thread = self.thread.take().expect("taken only here");
        if thread.join().is_err() {
            warn!("fabric", "the target's thread had panicked");
        }
    }
}

struct Server {
    listener: OwnedFd,
    is_listening: bool,
    epoll: OwnedFd,
    memory: ShmPeer,
    doors: Arc<Doors>,
    peers: PeerTable<Served>,
    places: Places,
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
    log: Log,
}

impl Server {
    fn run(mut self) {
        let (mut round, mut in_vain, mut spin_rounds) = (0u32, 0u32, SPIN_ROUNDS_MAX / 2);
        let mut look_at = 0;
        // SeqCst: pairs with the store in target.rs::drop.
        while !self.doors.stop.load(Ordering::SeqCst) {
            // Relaxed: only saves the exchange, which orders.
            let is_mail = self.doors.mail.load(Ordering::Relaxed);
            // SeqCst: pairs with the store in doors.rs::notify.
            if is_mail && self.doors.mail.swap(false, Ordering::SeqCst) {
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
        self.doors.publish(&self.stats);
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

    fn serve(&mut self, peer: PeerId, now: Nanos) -> Result<bool, Broken> {
        let Some(served) = self.peers.get_mut(peer) else { return Ok(false) };
        let mut service = Service {
            memory: &self.memory,
            doors: &self.doors,
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

    fn end(&mut self, peer: PeerId, broken: Broken) {
        if let Some(index) = self.active.iter().position(|active| *active == peer) {
            self.active.swap_remove(index);
        }
        let Some(served) = self.peers.remove(peer) else { return };
        if !matches!(broken, Broken::Closed | Broken::Left) {
            let from = peer_of(&served.stream);
            tell!(self.log, Warn, "closed connection {} of {from}: {broken}", peer.0);
        }
        self.stats.refused += u64::from(matches!(broken, Broken::Handshake(_)));
        if served.is_greeted() {
            self.doors.closed(peer, FabricEvent::Closed { peer, cause: broken.cause() });
        }
    }

    /// Acts on what the application put in.
    fn sort_mail(&mut self) {
        let now = monotonic_ns();
        // No more than there are connections: each is touched once.
        for _ in 0..FABRIC_PEERS_MAX {
            let Some((peer, close)) = self.doors.take_touched() else { break };
            if close {
                self.end(peer, Broken::Left);
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
                    let _ = rustix::io::read(&self.doors.wake, &mut [0; 8]);
                }
                token => {
                    let peer = PeerId(token as u32);
                    let held = self.peers.get_mut(peer).is_some_and(|served| served.is_held());
                    if held && flags.intersects(dead) {
                        self.end(peer, Broken::Closed);
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
        // SeqCst: pairs with the load in doors.rs::notify.
        self.doors.sleeping.store(true, Ordering::SeqCst);
        // SeqCst: pairs with the stores in doors.rs::notify and target.rs::drop.
        let must_stay =
            self.doors.mail.load(Ordering::SeqCst) || self.doors.stop.load(Ordering::SeqCst);
        self.look(if must_stay { Some(0) } else { timeout });
        // SeqCst: pairs with the load in doors.rs::notify; a notification too many is harmless.
        self.doors.sleeping.store(false, Ordering::SeqCst);
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
                    self.end(peer, Broken::Silent { lease_ms: HELLO_NS / 1_000_000 });
                }
            } else if served.is_held() {
                needs_tick = true;
                let mut service = Service {
                    memory: &self.memory,
                    doors: &self.doors,
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
