//! The initiator's end of the verbs fabric: connections to targets, local memory, waiting.
//!
//! In: work requests, time. Out: events. Used by one thread. No system call for an operation,
//! except at a key's first use and while sleeping.
//!
//! Waiting is adaptive ([`VerbsEndpoint::wait`]): look without pause, then give way to others
//! between looks, then sleep until the device or a control line says something. On a machine with
//! few processors a loop that never gives way keeps the device's own software from running.
//!
//! Source: DESIGN §3 (waiting, liveness).

use super::VerbsError;
use super::broken::VerbsCloseReason;
use super::connection::{Context, REMIND_NS, VerbsConnection};
use super::control::ControlLine;
use super::device::{Device, DeviceChoice};
use super::lane::{DEPTH, Lane, LaneOptions, fit, peer_of};
use super::local::Locals;
use super::queue::{Completion, Completions};
use super::wire::Control;
use crate::event::WakeEvent;
use crate::fabric::buffers::{BufferOwner, Buffers};
use crate::fabric::peers::PeerTable;
use crate::fabric::shm::check_work;
use crate::fabric::tcp::{heartbeat_ns, new_socket, require_trust, tune};
use crate::fabric::{FabricError, FabricStats, Patience, monotonic_ns};
use crate::secret::Secret;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, LEASE_MS_DEFAULT};
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::net::SocketAddr;
use tracing::warn;

/// Connections of one endpoint: one to each rack and some that are ending.
const CONNECTIONS_MAX: u32 = 64;

/// How a step of a connection went.
type StepResult<R> = Result<R, VerbsCloseReason>;

/// What executes CAS and FAA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomics {
    /// The device where its atomics are atomic with processors' too, else the target's processor.
    #[default]
    Safe,
    /// The device, though its atomics may be so only among themselves: right where no processor
    /// touches the words, wrong else.
    Device,
}

#[derive(Clone)]
pub struct VerbsEndpointOptions {
    pub device: DeviceChoice,
    /// A target that says nothing for this long while it is asked is dead, milliseconds.
    pub lease_ms: u64,
    /// How long [`VerbsEndpoint::wait`] looks without pause at most, nanoseconds …
    pub spin_ns: u32,
    /// … and how long it then gives way between looks before it sleeps, nanoseconds.
    pub yield_ns: u32,
    /// What is proved to targets, and they have to prove; without it, only loopback addresses can
    /// be connected to.
    pub secret: Option<Secret>,
    /// What executes CAS and FAA: the device or the target's processor.
    pub atomics: Atomics,
}

impl Default for VerbsEndpointOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            lease_ms: LEASE_MS_DEFAULT,
            spin_ns: 20_000,
            yield_ns: 200_000,
            secret: None,
            atomics: Atomics::Safe,
        }
    }
}

/// The initiator's end of the verbs fabric.
pub struct VerbsEndpoint {
    options: VerbsEndpointOptions,
    /// Before the completion queue and the memory that they use, so that they end first.
    peers: PeerTable<VerbsConnection>,
    completions: Completions,
    locals: Locals,
    device: Device,
    stats: FabricStats,
    found: Vec<Completion>,
    /// What happened while a buffer was waited for.
    later: Vec<FabricEvent>,
    patience: Patience,
    epoll: OwnedFd,
    /// In `epoll`: there are completions in `found`, of which the device does not tell.
    awake: WakeEvent,
    is_awake: bool,
}

impl VerbsEndpoint {
    /// An endpoint without connections. Errors: `Verbs` (no library, no device, memory that may
    /// not be pinned), `Io`.
    ///
    /// # Panics
    /// If the lease is shorter than 4 ms.
    pub fn new(options: VerbsEndpointOptions) -> Result<Self, FabricError> {
        assert!(options.lease_ms >= 4, "a lease of {} ms", options.lease_ms);
        super::require_plain(options.secret.as_ref())?;
        let device = Device::open(&options.device)?;
        let (connections, entries) = fit(&device, DEPTH, CONNECTIONS_MAX);
        let completions = Completions::new(&device, entries)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(FabricError::io("an epoll descriptor"))?;
        let data = epoll::EventData::new_u64(u64::MAX);
        epoll::add(&epoll, completions.fd(), data, epoll::EventFlags::IN)
            .map_err(FabricError::io("adding to an epoll descriptor"))?;
        let awake = WakeEvent::new().map_err(FabricError::io("a wake event"))?;
        epoll::add(&epoll, &awake, data, epoll::EventFlags::IN)
            .map_err(FabricError::io("adding to an epoll descriptor"))?;
        Ok(Self {
            awake,
            is_awake: false,
            patience: Patience::new(options.spin_ns, options.yield_ns),
            options,
            peers: PeerTable::new(connections),
            completions,
            locals: Locals::new(&device)?,
            device,
            stats: FabricStats::default(),
            found: Vec::with_capacity(64),
            later: Vec::new(),
            epoll,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Begins a connection without waiting for it, as on `tcp`. The address is that of the
    /// target's control line. Errors: `NotLoopback`, `PeersFull`, `Verbs`, `Io`.
    pub fn connect(&mut self, addr: SocketAddr, now: Nanos) -> Result<PeerId, FabricError> {
        let secret = self.options.secret.as_ref();
        require_trust(addr, secret)?;
        let limit = self.peers.limit();
        let socket = new_socket(addr)?;
        tune(socket.as_fd())?;
        let connected = rustix::net::connect(&socket, &addr);
        let control = ControlLine::begin(socket, secret)?;
        let (device, completions, domain) = (&self.device, &self.completions, &self.locals.domain);
        let make = |peer: PeerId| {
            let options = LaneOptions { peer: peer.0, depth: DEPTH, keeps: false };
            let lane = Lane::new(device, domain, completions, options)?;
            Ok::<_, VerbsError>(VerbsConnection::new(lane, control, addr, now))
        };
        let peer = self.peers.insert_with(make).ok_or(FabricError::PeersFull { limit })??;
        let connection = self.peers.get_mut(peer).expect("just inserted");
        match connected {
            Ok(()) | Err(Errno::INPROGRESS) => {
                let hello = Control::Hello(connection.lane.address());
                if let Err(broken) = connection.control.send(hello) {
                    connection.broken = Some(broken);
                }
            }
            Err(error) => connection.broken = Some(VerbsCloseReason::System(error)),
        }
        let data = epoll::EventData::new_u64(peer.0.into());
        epoll::add(&self.epoll, connection.control.fd(), data, epoll::EventFlags::IN)
            .map_err(FabricError::io("adding a socket to an epoll descriptor"))?;
        Ok(peer)
    }

    /// Ends a connection. Its outstanding work and `Closed` come with the next poll.
    pub fn close(&mut self, peer: PeerId) {
        if let Some(connection) = self.peers.get_mut(peer) {
            connection.broken.get_or_insert(VerbsCloseReason::Left);
        }
    }

    /// Counters since the endpoint was made; there are no system calls to count.
    pub fn stats(&self) -> FabricStats {
        FabricStats { connections: self.peers.count().into(), ..self.stats }
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
    fn with<R, F>(&mut self, peer: PeerId, events: &mut Vec<FabricEvent>, run: F) -> Option<R>
    where
        F: FnOnce(&mut VerbsConnection, &mut Context<'_>, &mut Vec<FabricEvent>) -> StepResult<R>,
    {
        let VerbsEndpoint { peers, locals, stats, device, options, .. } = self;
        let connection = peers.get_mut(peer).filter(|connection| connection.broken.is_none())?;
        let mut cx = context(locals, stats, device, options);
        match run(connection, &mut cx, events) {
            Ok(result) => Some(result),
            Err(broken) => {
                connection.broken.get_or_insert(broken);
                None
            }
        }
    }

    /// Looks at the device and at all connections; whether anything moved.
    fn look(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> bool {
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
                self.with(peer, events, |connection, cx, events| {
                    connection.completed(peer, &completion, cx, events)
                });
            }
        }
        self.found = found;
        for slot in 0..self.peers.slots() {
            let Some((peer, _)) = self.peers.at_mut(slot) else { continue };
            let ticked = self.with(peer, events, |connection, cx, events| {
                let ticked = connection.tick(peer, now, cx, events)?;
                connection.settle(peer, cx, events);
                connection.advance(cx)?;
                connection.settle(peer, cx, events);
                Ok(ticked)
            });
            moved |= ticked.unwrap_or(true);
            let is_broken = |connection: &mut VerbsConnection| connection.broken.is_some();
            if self.peers.get_mut(peer).is_some_and(is_broken) {
                self.end(peer, events);
            }
        }
        moved
    }

    fn end(&mut self, peer: PeerId, events: &mut Vec<FabricEvent>) {
        let Some(connection) = self.peers.remove(peer) else { return };
        let is_told = |broken: &&VerbsCloseReason| {
            !matches!(broken, VerbsCloseReason::Closed | VerbsCloseReason::Left)
        };
        if let Some(broken) = connection.broken.as_ref().filter(is_told) {
            let addr = connection.addr;
            warn!(target: "fabric", "connection {} to {addr}: {broken}", peer.0);
        }
        let VerbsEndpoint { locals, stats, device, options, .. } = self;
        connection.drain(peer, &mut context(locals, stats, device, options), events);
    }

    /// Polls until something happened or `deadline` has passed; how many events were appended.
    pub fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let (spin_ns, yield_ns) = self.patience.begin();
        let (before, start) = (events.len(), monotonic_ns());
        let mut idle_since = start;
        loop {
            let now = monotonic_ns();
            let moved = self.poll(now, events) > 0;
            let idle_ns = now.saturating_sub(idle_since);
            if events.len() > before {
                self.patience.learn(spin_ns, idle_ns);
            }
            if moved || now >= deadline {
                return events.len() - before;
            }
            if idle_ns < spin_ns {
                std::hint::spin_loop();
            } else if idle_ns < spin_ns + yield_ns {
                std::thread::yield_now();
            } else {
                let has_work = self.peers.iter().any(|connection| connection.lane.has_work());
                let limit_ns = if has_work { REMIND_NS } else { Nanos::MAX };
                let limit_ns = limit_ns.min(heartbeat_ns(self.options.lease_ms));
                self.sleep(deadline.saturating_sub(now).min(limit_ns));
                idle_since = monotonic_ns().saturating_sub(spin_ns);
            }
        }
    }

    fn sleep(&mut self, ns: Nanos) {
        let own = self.prepare_sleep();
        let mut fds = [PollFd::from_borrowed_fd(own, PollFlags::IN)];
        let timeout =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        // An interrupted sleep is a short one.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
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
                let mut flags = epoll::EventFlags::IN;
                flags.set(epoll::EventFlags::OUT, wants_out);
                let data = epoll::EventData::new_u64(peer.0.into());
                // A refusal can only mean that the socket is gone; polling finds out why.
                let _ = epoll::modify(&self.epoll, connection.control.fd(), data, flags);
            }
        }
        self.completions.arm();
        // What came before the device was asked to tell is not told.
        if self.completions.poll(&mut self.found) > 0 && !self.is_awake {
            self.is_awake = true;
            self.awake.notify();
        }
        self.epoll.as_fd()
    }
}

fn context<'a>(
    locals: &'a mut Locals,
    stats: &'a mut FabricStats,
    device: &Device,
    options: &VerbsEndpointOptions,
) -> Context<'a> {
    Context {
        locals,
        stats,
        limits: device.limits,
        device_atomics: device.limits.has_atomics
            && (device.limits.atomics_global || options.atomics == Atomics::Device),
        lease_ms: options.lease_ms,
        heartbeat_ns: heartbeat_ns(options.lease_ms),
        outcomes: Vec::new(),
    }
}

impl Fabric for VerbsEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "verbs",
            atomics_global: self.options.atomics == Atomics::Safe
                || self.device.limits.atomics_global,
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
            check_work(&self.locals.buffers, work);
            if !connection.enqueue(work) {
                result = Err((posted, PostError::Busy));
                break;
            }
        }
        // What fails is found by the next poll, which ends the connection.
        self.with(peer, &mut Vec::new(), |connection, cx, _| connection.advance(cx));
        result
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        events.append(&mut self.later);
        self.look(now, events);
        events.len() - before
    }
}

impl BufferOwner for VerbsEndpoint {
    fn buffers(&self) -> &Buffers {
        &self.locals.buffers
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.locals.buffers
    }

    /// Work with data that the device moves itself is waited for: until it has ended, or the device
    /// has given up, or the lease is over, when the connection ends and with it the device's use.
    fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        let begin = monotonic_ns();
        let mut later = std::mem::take(&mut self.later);
        loop {
            let mut is_used = false;
            let is_late = monotonic_ns().saturating_sub(begin) > self.options.lease_ms * 1_000_000;
            for slot in 0..self.peers.slots() {
                let Some((peer, connection)) = self.peers.at_mut(slot) else { continue };
                let uses = connection.let_go(&named);
                is_used |= uses;
                if uses && is_late {
                    connection.broken.get_or_insert(VerbsCloseReason::BufferGone);
                }
                if uses && connection.broken.is_some() {
                    self.end(peer, &mut later);
                }
            }
            if !is_used {
                break;
            }
            if !self.look(monotonic_ns(), &mut later) {
                std::thread::yield_now();
            }
        }
        self.later = later;
        self.locals.unpin(named);
    }

    fn require_idle(&self, piece: &Sge, reads: bool) {
        let is_used = self.peers.iter().any(|connection| connection.uses(piece, reads));
        assert!(!is_used, "the device may use this piece of a buffer now");
    }
}
