//! A daemon's end of the fabric: the handle of its application, the same whatever executes the
//! operations, and what the threads behind it have in common.
//!
//! In: connections, messages of the application. Out: `FabricEvent`s. The application calls from
//! any thread and never waits for the fabric's thread, except to end it; one-sided operations never
//! wake the application.
//!
//! Admission: connections are accepted as long as the application keeps up and there is room, and
//! those that have not proved the secret do not keep others out.
//!
//! Source: DESIGN §3 (waiting), §4 (bounded queues, loopback only).

use super::close::CloseReason;
use super::limits::{ConnectionLimits, ServedConnection};
use super::queues::{TargetCommand, TargetQueues, TargetSendError};
use super::sockets::{BACKLOG, listen, require_trust, tune};
use super::{FabricError, FabricStats};
use crate::addresses::{ConnectionPermit, turn_away};
use crate::handshake;
use crate::secret::{CLEAR_TEXT, Secret};
use rackpool_core::constants::{LEASE_MS_DEFAULT, MESSAGE_BYTES_MAX, SESSIONS_MAX};
use rackpool_core::fabric::peers::PeerTable;
use rackpool_core::layout::RegionLayout;
use rackpool_core::seam::{EncodedWriteBack, FabricEvent, Nanos, PeerId};
use rackpool_mem::event::{Interest, Poller, Readiness};
use rackpool_mem::log;
use rackpool_mem::names::{peer_addr, peer_of};
use rackpool_mem::window::Window;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{info, warn};

/// What a target serves, and how.
#[derive(Clone)]
pub struct TargetOptions {
    /// Where to listen; without a secret a loopback address. Port 0 for any.
    pub listen: SocketAddr,
    pub layout: RegionLayout,
    pub pages: Window,
    /// The table section: one generation word a frame.
    pub table: Window,
    /// Announce cells that a free of frames looks at: the first word for the thread's own accesses,
    /// the others for frames that are open to devices, of which there are no more than that.
    pub cells: Window,
    /// Connections at once; others are refused. At most `FABRIC_PEERS_MAX`; as a rule one for each
    /// session. A device may bear fewer.
    pub connections_max: u32,
    /// Of one address at most; `None` for the usual share of them.
    pub address_max: Option<u32>,
    /// The lease of the initiators: a connection that waits for the application is told of our
    /// life in fractions of it, and a failed queue pair may take so long to come back,
    /// milliseconds.
    pub lease_ms: u64,
    /// How long the thread looks without sleeping after something moved, nanoseconds. Of no effect
    /// on a device.
    pub spin_ns: u32,
    /// Called when events are there and were not before. Must not block.
    pub waker: Arc<dyn Fn() + Send + Sync>,
    /// What initiators have to prove that they have, and is proved to them.
    pub secret: Option<Secret>,
}

impl TargetOptions {
    /// The usual settings for a region; nothing is woken.
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
pub struct Target {
    local_addr: SocketAddr,
    queues: Arc<TargetQueues>,
    /// Whether initiators may expose buffers.
    writes_back: bool,
    thread: Option<JoinHandle<()>>,
}

impl Target {
    /// Starts the thread `name`, which runs `run`.
    pub(super) fn spawn(
        local_addr: SocketAddr,
        queues: Arc<TargetQueues>,
        writes_back: bool,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<Self, FabricError> {
        let name = if writes_back { "fabric-target" } else { "verbs-target" };
        let thread = Some(log::spawn(name, run).map_err(FabricError::io("a thread"))?);
        Ok(Self { local_addr, queues, writes_back, thread })
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
        self.send_vec(peer, message.to_vec())
    }

    /// As [`Target::send`], without a copy.
    pub fn send_vec(&self, peer: PeerId, message: Vec<u8>) -> Result<(), TargetSendError> {
        require_short(message.len())?;
        self.queues.send(peer, TargetCommand::Message(message))
    }

    /// Writes memory into a buffer of an initiator and then sends a message, in order with other
    /// messages. Initiators of a device expose none, and are told that it was refused. Errors: as
    /// of [`Target::send`], for both messages.
    pub fn write_back(&self, peer: PeerId, job: EncodedWriteBack) -> Result<(), TargetSendError> {
        require_short(job.done.len().max(job.refused.len()))?;
        let command = match self.writes_back {
            true => TargetCommand::WriteBack(Box::new(job)),
            false => TargetCommand::Message(job.refused),
        };
        self.queues.send(peer, command)
    }

    /// Ends a connection; `Closed` comes with a later poll.
    pub fn close(&self, peer: PeerId) {
        self.queues.close(peer);
    }

    /// Asks the thread to look at the table now, for a caller that waits for a revocation.
    pub fn look(&self) {
        self.queues.notify();
    }

    /// Counters since the start, as of the thread's last round in which something moved. A device's
    /// one-sided operations are not among them, as nothing here sees them.
    pub fn stats(&self) -> FabricStats {
        self.queues.stats()
    }

    /// The same counters for others to look at.
    pub fn counters(&self) -> TargetCounters {
        TargetCounters { queues: Arc::clone(&self.queues) }
    }
}

fn require_short(bytes: usize) -> Result<(), TargetSendError> {
    let fits = bytes <= MESSAGE_BYTES_MAX as usize;
    if fits { Ok(()) } else { Err(TargetSendError::TooLong { bytes }) }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.queues.stop();
        let thread = self.thread.take().expect("taken only here");
        if thread.join().is_err() {
            warn!(target: "fabric", "the target's thread had panicked");
        }
    }
}

/// The counters of a [`Target`]; they outlive it.
#[derive(Clone)]
pub struct TargetCounters {
    queues: Arc<TargetQueues>,
}

impl TargetCounters {
    /// As [`Target::stats`].
    pub fn stats(&self) -> FabricStats {
        self.queues.stats()
    }
}

/// A connection that has not said hello after this long is closed.
const HELLO_NS: Nanos = 5_000_000_000;
pub(super) const NO_HELLO: CloseReason = CloseReason::Silent { lease_ms: HELLO_NS / 1_000_000 };
/// Tokens of the poller that are no connections.
pub(super) const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;

/// What the thread of a target serves: its listener, its connections, its queues.
pub(super) struct TargetPort<T> {
    pub(super) peers: PeerTable<T>,
    limits: ConnectionLimits,
    listener: OwnedFd,
    pub(super) is_listening: bool,
    pub(super) local_addr: SocketAddr,
    pub(super) poller: Poller,
    /// What the last wait has found.
    pub(super) ready: Vec<Readiness>,
    pub(super) queues: Arc<TargetQueues>,
    refused: u64,
    pub(super) secret: Option<Secret>,
}

impl<T: ServedConnection> TargetPort<T> {
    /// Listens. Errors: `NotLoopback`, `Io` (such as an address in use).
    pub(super) fn open(options: &TargetOptions, connections: u32) -> Result<Self, FabricError> {
        let TargetOptions { secret, .. } = options.clone();
        require_trust(options.listen, secret.as_ref())?;
        if secret.as_ref().is_some_and(|secret| !secret.encrypts()) {
            info!(target: "fabric", "{CLEAR_TEXT}");
        }
        let (listener, local_addr) = listen(options.listen)?;
        let queues = TargetQueues::new(Arc::clone(&options.waker))?;
        let poller = Poller::new().map_err(FabricError::io("an epoll descriptor"))?;
        poller
            .add(&listener, LISTENER, Interest::Read)
            .and_then(|()| poller.add(&queues.wake, WAKE, Interest::Read))
            .map_err(FabricError::io("adding to an epoll descriptor"))?;
        Ok(Self {
            peers: PeerTable::new(connections),
            limits: ConnectionLimits::new(connections, options.address_max),
            listener,
            is_listening: true,
            local_addr,
            poller,
            ready: Vec::new(),
            queues: Arc::new(queues),
            refused: 0,
            secret,
        })
    }

    /// Shows counters; those of connections are the port's.
    pub(super) fn publish(&self, stats: &FabricStats) {
        let (connections, refused) = (self.peers.count().into(), self.refused);
        self.queues.publish(&FabricStats { connections, refused, ..*stats });
    }

    /// Waits until something is ready, at most `wait_ns`, or without end; see `ready`.
    pub(super) fn wait(&mut self, wait_ns: Option<Nanos>) {
        let ready = self.poller.wait(wait_ns.map(Duration::from_nanos), &mut self.ready);
        ready.expect("a wait on a descriptor of our own");
        if let Some(woken) = self.ready.iter().position(|one| one.token == WAKE) {
            // What was put in is looked at in any case.
            self.queues.wake.drain();
            self.ready.swap_remove(woken);
        }
    }

    /// The next connection that waits to be accepted, and its address, as long as the application
    /// keeps up.
    pub(super) fn accept(&mut self) -> Option<(OwnedFd, IpAddr)> {
        for _ in 0..BACKLOG {
            if self.queues.is_congested() {
                break;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return None,
                Err(error) => {
                    warn!(target: "fabric", "cannot accept connections for now: {error}");
                    break;
                }
            };
            // One that has gone already has no address.
            let Some(addr) = peer_addr(&socket) else { continue };
            match tune(socket.as_fd()) {
                Ok(()) => return Some((socket, addr.ip())),
                Err(error) => self.not_accepted(&error),
            }
        }
        self.set_listening(false);
        None
    }

    pub(super) fn not_accepted(&self, error: &FabricError) {
        warn!(target: "fabric", "a connection was not accepted: {error}");
    }

    /// Which connection has to end before one more of `ip` is let in.
    pub(super) fn gives_way(&self, ip: IpAddr, now: Nanos) -> Option<PeerId> {
        self.limits.gives_way(&self.peers, ip, now)
    }

    /// A place for one more connection; one for which there is none is told so, in the form `busy`
    /// where no secret is asked for. Errors: `Busy`.
    pub(super) fn permit(
        &self,
        socket: &OwnedFd,
        ip: IpAddr,
        busy: &[u8],
    ) -> Result<ConnectionPermit, FabricError> {
        self.limits.take(&self.peers, ip).inspect_err(|_| {
            let proof = handshake::busy();
            turn_away(socket, if self.secret.is_some() { &proof } else { busy });
        })
    }

    /// Lets a connection in that has its place. Errors: `Io`, and those of `make`.
    pub(super) fn admit(
        &mut self,
        make: impl FnOnce(PeerId) -> Result<T, FabricError>,
    ) -> Result<PeerId, FabricError> {
        let peer = self.peers.insert_with(make).expect("there was a place")?;
        let session = self.peers.get_mut(peer).expect("just inserted");
        let added = self.poller.add(session.fd(), peer.0.into(), Interest::Read);
        let added = added.map_err(FabricError::io("adding a socket to an epoll descriptor"));
        added.inspect_err(|_| drop(self.peers.remove(peer))).map(|()| peer)
    }

    /// Takes a connection out that is over, and says so to the log.
    pub(super) fn remove(&mut self, peer: PeerId, reason: &CloseReason) -> Option<T> {
        let session = self.peers.remove(peer)?;
        if reason.is_failure() {
            let from = peer_of(session.fd());
            warn!(target: "fabric", "closed connection {} of {from}: {reason}", peer.0);
        }
        self.refused += u64::from(matches!(reason, CloseReason::Handshake(_)));
        Some(session)
    }

    /// The first connection that has not said hello in time.
    pub(super) fn silent(&mut self, now: Nanos) -> Option<PeerId> {
        let is_late = |since| now.saturating_sub(since) > HELLO_NS;
        (0..self.peers.slots()).find_map(|slot| {
            let (peer, session) = self.peers.at_mut(slot)?;
            session.waits().is_some_and(is_late).then_some(peer)
        })
    }

    /// Accepts again after a pause.
    pub(super) fn listen_again(&mut self) {
        if !self.is_listening && !self.queues.is_congested() {
            self.set_listening(true);
        }
    }

    fn set_listening(&mut self, is_listening: bool) {
        self.is_listening = is_listening;
        let interest = if is_listening { Interest::Read } else { Interest::Nothing };
        let modified = self.poller.modify(&self.listener, LISTENER, interest);
        modified.expect("epoll has the listener");
    }
}
