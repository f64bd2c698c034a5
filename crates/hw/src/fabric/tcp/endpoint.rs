//! The initiator's end of the tcp fabric: connections to targets, local buffers, waiting.
//!
//! In: work requests, time. Out: events. Used by one thread. No allocation per operation once
//! the connections are up (messages of the target's application are allocated, as the event that
//! carries them owns them).
//!
//! Waiting is adaptive ([`TcpEndpoint::wait`]): look at the sockets without pause, then give way
//! to other threads between looks, then sleep in the system.
//!
//! Source: DESIGN §3 (waiting, liveness), §2 (a completion event descriptor).

use super::super::buffers::{BufferOwner, Buffers, Memory};
use super::super::peers::PeerTable;
use super::super::shm::check_work;
use super::super::{FabricError, FabricStats, Patience, spin_for};
use super::broken::TcpCloseReason;
use super::connection::{CancelOutcome, Context, STAGED_BYTES_MAX, TcpConnection};
use super::{heartbeat_ns, new_socket, require_trust, tune};
use crate::handshake::{Handshake, Purpose};
use crate::secret::Secret;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX, LEASE_MS_DEFAULT};
use rackpool_core::seam::{
    BufId, Capabilities, Exposure, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, WorkRequest,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::net::SocketAddr;
use tracing::warn;

/// A connection without work on which nothing moved for this long is looked at less often.
const QUIET_NS: Nanos = 1_000_000;
/// Quiet connections are looked at in one of this many polls.
const QUIET_ROUNDS: u32 = 16;

#[derive(Clone)]
pub struct TcpEndpointOptions {
    /// A target that says nothing for this long while it is asked is dead, milliseconds.
    pub lease_ms: u64,
    /// Injected latency: completions of one-sided operations come this much later, nanoseconds.
    pub emulate_rdma_ns: u32,
    /// How long [`TcpEndpoint::wait`] looks without pause at most, nanoseconds; where that does not
    /// help, as when the target shares the core, it does so for a quarter of it …
    pub spin_ns: u32,
    /// … and how long it then gives way between looks before it sleeps, nanoseconds.
    pub yield_ns: u32,
    /// What is proved to targets, and they have to prove; without it, only loopback addresses can
    /// be connected to.
    pub secret: Option<Secret>,
}

impl Default for TcpEndpointOptions {
    fn default() -> Self {
        Self {
            lease_ms: LEASE_MS_DEFAULT,
            emulate_rdma_ns: 0,
            spin_ns: 20_000,
            yield_ns: 200_000,
            secret: None,
        }
    }
}

/// The initiator's end of the tcp fabric.
///
/// ```
/// use rackpool_hw::fabric::tcp::{TcpEndpoint, TcpEndpointOptions};
///
/// let endpoint = TcpEndpoint::new(TcpEndpointOptions::default())?;
/// assert_eq!(endpoint.stats().ops, 0);
/// # Ok::<(), rackpool_hw::fabric::FabricError>(())
/// ```
pub struct TcpEndpoint {
    options: TcpEndpointOptions,
    buffers: Buffers,
    peers: PeerTable<TcpConnection>,
    staged: Vec<u8>,
    stats: FabricStats,
    round: u32,
    moved: bool,
    /// What is posted may wait for more of it.
    gathers: bool,
    patience: Patience,
    /// Work requests outstanding on one connection.
    outstanding_max: usize,
    epoll: OwnedFd,
}

impl TcpEndpoint {
    /// An endpoint without connections. Errors: `Io`.
    ///
    /// # Panics
    /// If the lease is shorter than 4 ms.
    pub fn new(options: TcpEndpointOptions) -> Result<Self, FabricError> {
        assert!(options.lease_ms >= 4, "a lease of {} ms", options.lease_ms);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(FabricError::io("an epoll descriptor"))?;
        Ok(Self {
            patience: Patience::new(options.spin_ns, options.yield_ns),
            outstanding_max: FABRIC_OUTSTANDING_MAX as usize,
            options,
            buffers: Buffers::new(),
            peers: PeerTable::new(FABRIC_PEERS_MAX),
            staged: Vec::with_capacity(STAGED_BYTES_MAX),
            stats: FabricStats::default(),
            round: 0,
            moved: false,
            gathers: false,
            epoll,
        })
    }

    /// One that several threads share, which keep to the bound of a connection themselves; they
    /// have at most so many work requests under way on one together.
    pub(in crate::fabric) fn for_many(
        options: TcpEndpointOptions,
        outstanding_max: usize,
    ) -> Result<Self, FabricError> {
        let buffers = Buffers::with_limit(outstanding_max);
        Ok(Self { buffers, outstanding_max, ..Self::new(options)? })
    }

    /// Begins a connection without waiting for it: `Connected`, or `Closed` if the target does
    /// not answer, refuses, or does not prove the secret (`Distrusted`), comes with a later poll.
    /// Work may be posted at once; it is sent
    /// when the connection is up. Errors: `NotLoopback`, `PeersFull`, `Io`.
    pub fn connect(&mut self, addr: SocketAddr, now: Nanos) -> Result<PeerId, FabricError> {
        let secret = self.options.secret.as_ref();
        require_trust(addr, secret)?;
        let limit = self.peers.limit();
        if self.peers.is_full() {
            return Err(FabricError::PeersFull { limit });
        }
        let socket = new_socket(addr)?;
        tune(socket.as_fd())?;
        let proof = secret.map(|secret| Handshake::begin(secret, Purpose::Fabric)).transpose();
        let proof = proof.map_err(FabricError::io("random numbers"))?;
        let mut connection = TcpConnection::new(socket, addr, proof, now);
        match rustix::net::connect(&connection.stream, &addr) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => connection.broken = Some(TcpCloseReason::System(error)),
        }
        let inserted = self.peers.insert(connection);
        let peer = inserted.map_err(|_| FabricError::PeersFull { limit })?;
        let connection = self.peers.get_mut(peer).expect("just inserted");
        let data = epoll::EventData::new_u64(peer.0.into());
        epoll::add(&self.epoll, &connection.stream, data, epoll::EventFlags::IN)
            .map_err(FabricError::io("adding a socket to an epoll descriptor"))?;
        Ok(peer)
    }

    /// Ends a connection. Its outstanding work and `Closed` come with the next poll.
    pub fn close(&mut self, peer: PeerId) {
        if let Some(connection) = self.peers.get_mut(peer) {
            connection.broken.get_or_insert(TcpCloseReason::Left);
        }
    }

    /// Work requests outstanding on a connection; 0 if it is down.
    pub fn outstanding(&mut self, peer: PeerId) -> usize {
        self.peers.get_mut(peer).map_or(0, |connection| connection.outstanding())
    }

    /// Whether what is posted from now on may wait for the next poll, so that one call to the
    /// system carries several doorbells. The first work request of a connection that has nothing
    /// under way is sent at once all the same, and so is what has gathered to a batch.
    pub fn set_gathering(&mut self, gathers: bool) {
        self.gathers = gathers;
    }

    /// Changes the injected latency, nanoseconds, for all connections.
    pub fn set_emulated_delay(&mut self, emulate_rdma_ns: u32) {
        self.options.emulate_rdma_ns = emulate_rdma_ns;
    }

    /// Counters since the endpoint was made.
    pub fn stats(&self) -> FabricStats {
        FabricStats { connections: self.peers.count().into(), ..self.stats }
    }

    /// Polls until something happened, until `clock` passes `deadline`, or until `extra` (if it
    /// is given) can be read, which is only noticed while sleeping; how many events were appended.
    pub fn wait(
        &mut self,
        clock: impl Fn() -> Nanos,
        deadline: Nanos,
        extra: Option<BorrowedFd<'_>>,
        events: &mut Vec<FabricEvent>,
    ) -> usize {
        let (spin_ns, yield_ns) = self.patience.begin();
        let mut now = clock();
        let (mut idle_since, mut idle_ns) = (now, 0);
        loop {
            let happened = self.poll(now, events);
            if happened > 0 {
                self.patience.learn(spin_ns, idle_ns);
            }
            if happened > 0 || now >= deadline {
                return happened;
            }
            now = clock();
            if self.moved {
                idle_since = now;
            }
            idle_ns = now.saturating_sub(idle_since);
            if idle_ns < spin_ns {
                std::hint::spin_loop();
            } else if idle_ns < spin_ns + yield_ns {
                std::thread::yield_now();
            } else {
                let heartbeat_ns = heartbeat_ns(self.options.lease_ms);
                let sleep_ns = deadline.saturating_sub(now).min(heartbeat_ns);
                if self.sleep(sleep_ns, extra) {
                    return 0;
                }
                now = clock();
                (idle_since, idle_ns) = (now, spin_ns);
            }
        }
    }

    /// A descriptor that can be read when a socket of this endpoint can, or can be written where
    /// something waits to be sent: for a poll loop that sleeps on several things. To be asked for
    /// again before each sleep.
    pub fn prepare_sleep(&mut self) -> BorrowedFd<'_> {
        // The poll after the sleep looks at every connection.
        self.round |= QUIET_ROUNDS - 1;
        for slot in 0..self.peers.slots() {
            let Some((peer, connection)) = self.peers.at_mut(slot) else { continue };
            let wants_out = connection.wants_out();
            if connection.polls_out != wants_out {
                connection.polls_out = wants_out;
                let mut flags = epoll::EventFlags::IN;
                flags.set(epoll::EventFlags::OUT, wants_out);
                let data = epoll::EventData::new_u64(peer.0.into());
                // A refusal can only mean that the socket is not there; polling finds out why.
                let _ = epoll::modify(&self.epoll, &connection.stream, data, flags);
            }
        }
        self.epoll.as_fd()
    }

    /// Sleeps until a socket or `extra` is ready or the time is over; whether `extra` is ready.
    fn sleep(&mut self, ns: Nanos, extra: Option<BorrowedFd<'_>>) -> bool {
        let own = self.prepare_sleep();
        let mut fds = [
            PollFd::new(&own, PollFlags::IN),
            PollFd::from_borrowed_fd(extra.unwrap_or(own), PollFlags::IN),
        ];
        let used = if extra.is_some() { 2 } else { 1 };
        let timeout =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        // An interrupted sleep is a short one.
        let woken = rustix::event::poll(&mut fds[..used], Some(&timeout));
        woken.is_ok() && used == 2 && !fds[1].revents().is_empty()
    }
}

impl TcpEndpoint {
    /// Appends a work request, which the caller has checked, without sending it.
    pub(in crate::fabric) fn enqueue(
        &mut self,
        peer: PeerId,
        work: &WorkRequest<'_>,
    ) -> Result<(), PostError> {
        let connection = self.peers.get_mut(peer).filter(|connection| connection.broken.is_none());
        let is_posted = connection.ok_or(PostError::Down)?.enqueue(work, self.outstanding_max);
        if is_posted { Ok(()) } else { Err(PostError::Busy) }
    }

    /// Sends what was appended; with `gathers`, only if it should not wait for more.
    pub(in crate::fabric) fn flush(&mut self, peer: PeerId, gathers: bool) {
        let Some(connection) = self.peers.get_mut(peer) else { return };
        if connection.broken.is_some() || gathers && connection.may_gather() {
            return;
        }
        let mut cx = Context {
            buffers: &mut self.buffers,
            staged: &mut self.staged,
            stats: &mut self.stats,
            one_sided_done: &mut false,
            lease_ms: self.options.lease_ms,
            heartbeat_ns: heartbeat_ns(self.options.lease_ms),
        };
        // A socket that broke says so again at the next poll, which first reads what the peer
        // still answered.
        let _ = connection.flush(&mut cx);
    }

    /// Takes a buffer that only work requests need, until [`TcpEndpoint::release`].
    pub(in crate::fabric) fn keep(&mut self, bytes: Vec<u8>) -> Result<BufId, FabricError> {
        self.buffers.register(bytes)
    }

    /// Takes memory of somebody else, until [`TcpEndpoint::release`].
    ///
    /// # Safety
    /// As for `Buffers::adopt`.
    pub(in crate::fabric) unsafe fn adopt(&mut self, memory: Memory) -> Result<BufId, FabricError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.buffers.adopt(memory) }
    }

    /// Ends [`TcpEndpoint::keep`] and [`TcpEndpoint::adopt`], of a buffer that no work request
    /// names.
    pub(in crate::fabric) fn release(&mut self, buf: BufId) {
        self.buffers.release(buf);
    }

    /// See `TcpConnection::cancel`.
    pub(in crate::fabric) fn cancel(&mut self, peer: PeerId, id: u64) -> CancelOutcome {
        let connection = self.peers.get_mut(peer);
        connection.map_or(CancelOutcome::Executed, |found| found.cancel(id, &mut self.buffers))
    }

    /// Whether a sleeper has to learn of room in the socket.
    pub(in crate::fabric) fn wants_out(&mut self, peer: PeerId) -> bool {
        self.peers.get_mut(peer).is_some_and(|connection| connection.wants_out())
    }
}

impl Fabric for TcpEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "tcp",
            atomics_global: true,
            mapped: false,
            inline_bytes_max: 0,
            mtu_bytes: 0,
            outstanding_max: FABRIC_OUTSTANDING_MAX,
        }
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        let connection = self.peers.get_mut(peer);
        if connection.is_none_or(|connection| connection.broken.is_some()) {
            return Err((0, PostError::Down));
        }
        for (posted, work) in batch.iter().enumerate() {
            check_work(&self.buffers, work);
            if let Err(error) = self.enqueue(peer, work) {
                self.flush(peer, self.gathers);
                return Err((posted, error));
            }
        }
        self.flush(peer, self.gathers);
        Ok(())
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        let mut one_sided_done = false;
        self.moved = false;
        self.round = self.round.wrapping_add(1);
        let skip_quiet = !self.round.is_multiple_of(QUIET_ROUNDS);
        for slot in 0..self.peers.slots() {
            let Some((peer, connection)) = self.peers.at_mut(slot) else { continue };
            if skip_quiet && connection.is_quiet(now, QUIET_NS) {
                continue;
            }
            let mut cx = Context {
                buffers: &mut self.buffers,
                staged: &mut self.staged,
                stats: &mut self.stats,
                one_sided_done: &mut one_sided_done,
                lease_ms: self.options.lease_ms,
                heartbeat_ns: heartbeat_ns(self.options.lease_ms),
            };
            self.moved |= connection.poll(peer, now, &mut cx, events);
            if let Some(broken) = connection.broken {
                if !matches!(broken, TcpCloseReason::Closed | TcpCloseReason::Left) {
                    let addr = connection.addr;
                    warn!(target: "fabric", "connection {} to {addr}: {broken}", peer.0);
                }
                connection.drain(peer, broken.cause(), events);
                self.peers.remove(peer);
            }
        }
        if one_sided_done && self.options.emulate_rdma_ns > 0 {
            spin_for(self.options.emulate_rdma_ns);
        }
        events.len() - before
    }

    fn expose(&mut self, peer: PeerId, piece: &Sge) -> Option<Exposure> {
        self.buffers.check(piece, true);
        let connection = self.peers.get_mut(peer).filter(|connection| connection.broken.is_none());
        connection?.exposures.add(piece)
    }

    fn conceal(&mut self, peer: PeerId, exposure: Exposure) -> u64 {
        let connection = self.peers.get_mut(peer);
        connection.map_or(0, |connection| connection.exposures.end(&exposure))
    }
}

impl BufferOwner for TcpEndpoint {
    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        for slot in 0..self.peers.slots() {
            if let Some((_, connection)) = self.peers.at_mut(slot) {
                connection.let_go(&named);
            }
        }
    }
}
