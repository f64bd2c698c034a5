//! The initiator's end of the verbs fabric: connections to targets, local memory, waiting.
//!
//! In: work requests, time. Out: events. Used by one thread. No system call for an operation,
//! except at a key's first use and while sleeping.
//!
//! Waiting is adaptive: on a machine with few processors a loop that never gives way keeps the
//! device's own software from running.
//!
//! Source: DESIGN §3 (waiting, liveness).

use super::connection::{Context, REMIND_NS, VerbsConnection};
use super::control::ControlLine;
use super::device::Device;
use super::lane::{DEPTH, Lane, LaneOptions, fit, peer_of};
use super::local::Locals;
use super::queue::{Completion, Completions};
use super::wire::Control;
use super::{Atomics, DeviceOptions, VerbsError};
use crate::buffers::{BufferOwner, Buffers};
use crate::close::CloseReason;
use crate::shm::check_work;
use crate::sockets::dial;
use crate::waiting::{Lease, Patience, sleep_on};
use crate::{EndpointOptions, FabricError, FabricStats};
use rackpool_core::constants::FABRIC_OUTSTANDING_MAX;
use rackpool_core::fabric::peers::PeerTable;
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, WorkRequest,
};
use rackpool_mem::event::{Interest, Poller, WakeEvent};
use rackpool_mem::process::monotonic_ns;
use rustix::fd::{AsFd, BorrowedFd};
use std::net::SocketAddr;
use tracing::warn;

/// Connections of one endpoint: one to each rack and some that are ending.
const CONNECTIONS_MAX: u32 = 64;

/// How a step of a connection went.
type StepResult<R> = Result<R, CloseReason>;

/// The initiator's end of the verbs fabric.
pub struct VerbsEndpoint {
    options: EndpointOptions,
    /// Before the completion queue and the memory that they use, so that they end first.
    peers: PeerTable<VerbsConnection>,
    completions: Completions,
    cx: Context,
    device: Device,
    atomics: Atomics,
    found: Vec<Completion>,
    patience: Patience,
    poller: Poller,
    /// In `poller`: there are completions in `found`, of which the device does not tell.
    awake: WakeEvent,
    is_awake: bool,
}

impl VerbsEndpoint {
    /// An endpoint without connections. Errors: `Verbs` (no library, no device, memory that may
    /// not be pinned), `Io`.
    ///
    /// # Panics
    /// If the lease is shorter than 4 ms.
    pub fn new(options: EndpointOptions, device: &DeviceOptions) -> Result<Self, FabricError> {
        assert!(options.lease_ms >= 4, "a lease of {} ms", options.lease_ms);
        let atomics = device.atomics;
        let (device, device_atomics) = device.open(options.secret.as_ref())?;
        let (connections, entries) = fit(&device, DEPTH, CONNECTIONS_MAX);
        let completions = Completions::new(&device, entries)?;
        let awake = WakeEvent::new().map_err(FabricError::io("a wake event"))?;
        let poller = Poller::new().map_err(FabricError::io("an epoll descriptor"))?;
        poller
            .add(completions.fd(), u64::MAX, Interest::Read)
            .and_then(|()| poller.add(&awake, u64::MAX, Interest::Read))
            .map_err(FabricError::io("adding to an epoll descriptor"))?;
        Ok(Self {
            awake,
            is_awake: false,
            patience: Patience::new(options.spin_ns, options.yield_ns),
            peers: PeerTable::new(connections),
            completions,
            cx: Context {
                locals: Locals::new(&device)?,
                stats: FabricStats::default(),
                limits: device.limits,
                device_atomics,
                lease: Lease::new(options.lease_ms),
                outcomes: Vec::new(),
                events: Vec::new(),
            },
            options,
            device,
            atomics,
            found: Vec::with_capacity(64),
            poller,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Begins a connection without waiting for it, as on `tcp`. The address is that of the
    /// target's control line. Errors: `NotLoopback`, `PeersFull`, `Verbs`, `Io`.
    pub fn connect(&mut self, addr: SocketAddr, now: Nanos) -> Result<PeerId, FabricError> {
        let secret = self.options.secret.as_ref();
        let limit = self.peers.limit();
        let (socket, refused) = dial(addr, secret)?;
        let control = ControlLine::begin(socket, secret)?;
        let (device, completions, domain) =
            (&self.device, &self.completions, &self.cx.locals.domain);
        let make = |peer: PeerId| {
            let options = LaneOptions { peer: peer.0, depth: DEPTH, keeps: false };
            let lane = Lane::new(device, domain, completions, options)?;
            Ok::<_, VerbsError>(VerbsConnection::new(lane, control, addr, now))
        };
        let peer = self.peers.insert_with(make).ok_or(FabricError::PeersFull { limit })??;
        let connection = self.peers.get_mut(peer).expect("just inserted");
        connection.peer = peer;
        connection.broken = match refused {
            Some(error) => Some(CloseReason::System(error)),
            None => {
                let hello = Control::Hello(connection.lane.address());
                connection.control.send(hello).err()
            }
        };
        self.poller
            .add(connection.control.fd(), peer.0.into(), Interest::Read)
            .map_err(FabricError::io("adding a socket to an epoll descriptor"))?;
        Ok(peer)
    }

    /// Ends a connection. Its outstanding work and `Closed` come with the next poll.
    pub fn close(&mut self, peer: PeerId) {
        if let Some(connection) = self.peers.get_mut(peer) {
            connection.broken.get_or_insert(CloseReason::Left);
        }
    }

    /// Counters since the endpoint was made; there are no system calls to count.
    pub fn stats(&self) -> FabricStats {
        FabricStats { connections: self.peers.count().into(), ..self.cx.stats }
    }

    /// How often a connection's queue pair has failed and was renewed.
    pub fn recoveries(&mut self, peer: PeerId) -> u64 {
        self.peers.get_mut(peer).map_or(0, |connection| connection.recoveries())
    }

    /// How often a connection's device had completed none of its work for 100 ms, and went on when
    /// it was given a message of no bytes: Soft-RoCE forgets some.
    pub fn reminders(&mut self, peer: PeerId) -> u64 {
        self.peers.get_mut(peer).map_or(0, |connection| connection.reminders())
    }

    /// Runs `run` for a connection that is up; why it is over if that fails.
    fn with<R, F>(&mut self, peer: PeerId, run: F) -> Option<R>
    where
        F: FnOnce(&mut VerbsConnection, &mut Context) -> StepResult<R>,
    {
        let connection = self.peers.get_mut(peer).filter(|found| found.broken.is_none())?;
        match run(connection, &mut self.cx) {
            Ok(result) => Some(result),
            Err(broken) => {
                connection.broken.get_or_insert(broken);
                None
            }
        }
    }

    /// Looks at the device and at all connections; whether anything moved.
    fn look(&mut self, now: Nanos) -> bool {
        let mut found = std::mem::take(&mut self.found);
        let mut moved = false;
        if std::mem::take(&mut self.is_awake) {
            self.awake.drain();
        }
        // More than one round, since there may be more than one call takes.
        for _ in 0..8 {
            self.completions.poll(&mut found);
            if found.is_empty() {
                break;
            }
            moved = true;
            for completion in found.drain(..) {
                let peer = PeerId(peer_of(&completion));
                self.with(peer, |connection, cx| connection.completed(&completion, cx));
            }
        }
        self.found = found;
        for slot in 0..self.peers.slots() {
            let Some((peer, _)) = self.peers.at_mut(slot) else { continue };
            let ticked = self.with(peer, |connection, cx| {
                let ticked = connection.tick(now, cx)?;
                connection.settle(cx);
                connection.advance(cx)?;
                connection.settle(cx);
                Ok(ticked)
            });
            moved |= ticked.unwrap_or(true);
            let is_broken = |connection: &mut VerbsConnection| connection.broken.is_some();
            if self.peers.get_mut(peer).is_some_and(is_broken) {
                self.end(peer);
            }
        }
        moved
    }

    fn end(&mut self, peer: PeerId) {
        let Some(mut connection) = self.peers.remove(peer) else { return };
        let reason = connection.broken.take().unwrap_or(CloseReason::Left);
        if reason.is_failure() {
            let addr = connection.addr;
            warn!(target: "fabric", "connection {} to {addr}: {reason}", peer.0);
        }
        connection.drain(&reason, &mut self.cx);
    }

    /// Polls until something happened or `deadline` has passed; how many events were appended.
    pub fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        let mut now = monotonic_ns();
        self.patience.begin(now);
        loop {
            let moved = self.poll(now, events) > 0;
            if moved {
                self.patience.learn();
            }
            if moved || now >= deadline {
                return events.len() - before;
            }
            now = monotonic_ns();
            if self.patience.pause(now) {
                let has_work = self.peers.iter().any(|(_, connection)| connection.lane.has_work());
                let limit_ns = if has_work { REMIND_NS } else { Nanos::MAX };
                let limit_ns = limit_ns.min(self.cx.lease.heartbeat_ns);
                let sleep_ns = deadline.saturating_sub(now).min(limit_ns);
                sleep_on([self.prepare_sleep()], sleep_ns);
                now = monotonic_ns();
                self.patience.slept(now);
            }
        }
    }

    /// A descriptor that can be read when the device or a control line has something, also what
    /// came before this call and after the last poll. To be asked for before each sleep, after
    /// which comes a poll.
    pub fn prepare_sleep(&mut self) -> BorrowedFd<'_> {
        for slot in 0..self.peers.slots() {
            let Some((peer, connection)) = self.peers.at_mut(slot) else { continue };
            let wants_out = connection.control.wants_out();
            connection.look_soon();
            if connection.polls_out != wants_out {
                connection.polls_out = wants_out;
                let interest = if wants_out { Interest::ReadWrite } else { Interest::Read };
                // A refusal can only mean that the socket is gone; polling finds out why.
                let _ = self.poller.modify(connection.control.fd(), peer.0.into(), interest);
            }
        }
        self.completions.arm();
        // What came before the device was asked to tell is not told.
        if self.completions.poll(&mut self.found) > 0 && !self.is_awake {
            self.is_awake = true;
            self.awake.notify();
        }
        self.poller.as_fd()
    }
}

impl Fabric for VerbsEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "verbs",
            atomics_global: self.atomics == Atomics::Safe || self.device.limits.atomics_global,
            mapped: false,
            inline_bytes_max: super::lane::INLINE_BYTES,
            mtu_bytes: self.device.limits.mtu_bytes,
            outstanding_max: FABRIC_OUTSTANDING_MAX,
        }
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        let connection = self.peers.get_mut(peer);
        let connection = connection.filter(|connection| connection.broken.is_none());
        let connection = connection.ok_or((0, PostError::Down))?;
        let mut result = Ok(());
        for (posted, work) in batch.iter().enumerate() {
            check_work(&self.cx.locals.buffers, work);
            if !connection.enqueue(work) {
                result = Err((posted, PostError::Busy));
                break;
            }
        }
        // What fails is found by the next poll, which ends the connection.
        self.with(peer, |connection, cx| connection.advance(cx));
        result
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        self.look(now);
        events.append(&mut self.cx.events);
        events.len() - before
    }
}

impl BufferOwner for VerbsEndpoint {
    fn buffers(&self) -> &Buffers {
        &self.cx.locals.buffers
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.cx.locals.buffers
    }

    /// Work with data that the device moves itself is waited for: until it has ended, or the device
    /// has given up, or the lease is over, when the connection ends and with it the device's use.
    fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        let begin = monotonic_ns();
        loop {
            let mut is_used = false;
            let is_late = monotonic_ns().saturating_sub(begin) > self.options.lease_ms * 1_000_000;
            for slot in 0..self.peers.slots() {
                let Some((peer, connection)) = self.peers.at_mut(slot) else { continue };
                let uses = connection.let_go(&named);
                is_used |= uses;
                if uses && is_late {
                    connection.broken.get_or_insert(CloseReason::BufferGone);
                }
                if uses && connection.broken.is_some() {
                    self.end(peer);
                }
            }
            if !is_used {
                break;
            }
            if !self.look(monotonic_ns()) {
                std::thread::yield_now();
            }
        }
        self.cx.locals.unpin(named);
    }

    fn require_idle(&self, piece: &Sge, reads: bool) {
        let is_used = self.peers.iter().any(|(_, connection)| connection.uses(piece, reads));
        assert!(!is_used, "the device may use this piece of a buffer now");
    }
}
