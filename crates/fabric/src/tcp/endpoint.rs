//! The initiator's end of the tcp fabric: connections to targets, local buffers, waiting.
//!
//! In: work requests, time. Out: events. Used by one thread. No allocation per operation once
//! the connections are up (messages of the target's application are allocated, as the event that
//! carries them owns them).
//!
//! Source: DESIGN §3 (waiting, liveness), §2 (a completion event descriptor).

use super::super::buffers::{BufferOwner, Buffers, Memory};
use super::super::close::CloseReason;
use super::super::shm::check_work;
use super::super::sockets::dial;
use super::super::waiting::{Lease, Patience, sleep_on};
use super::super::{EndpointOptions, FabricError, FabricStats, by_sockets, spin_for};
use super::connection::{Context, STAGED_BYTES_MAX, TcpConnection};
use crate::handshake::{Handshake, Purpose};
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, FABRIC_PEERS_MAX};
use rackpool_core::fabric::peers::PeerTable;
use rackpool_core::seam::{
    BufId, Capabilities, Exposure, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, WorkRequest,
};
use rackpool_mem::event::{Interest, Poller};
use rustix::fd::{AsFd, BorrowedFd};
use std::net::SocketAddr;
use tracing::warn;

/// A connection without work on which nothing moved for this long is looked at less often.
const QUIET_NS: Nanos = 1_000_000;
/// Quiet connections are looked at in one of this many polls.
const QUIET_ROUNDS: u32 = 16;

/// The initiator's end of the tcp fabric.
///
/// ```
/// use rackpool_fabric::{EndpointOptions, tcp::TcpEndpoint};
///
/// let endpoint = TcpEndpoint::new(EndpointOptions::default())?;
/// assert_eq!(endpoint.stats().ops, 0);
/// # Ok::<(), rackpool_fabric::FabricError>(())
/// ```
pub struct TcpEndpoint {
    options: EndpointOptions,
    cx: Context,
    peers: PeerTable<TcpConnection>,
    round: u32,
    moved: bool,
    /// What is posted may wait for more of it.
    gathers: bool,
    patience: Patience,
    /// Work requests outstanding on one connection.
    outstanding_max: usize,
    poller: Poller,
}

impl TcpEndpoint {
    /// An endpoint without connections. Errors: `Io`.
    ///
    /// # Panics
    /// If the lease is shorter than 4 ms.
    pub fn new(options: EndpointOptions) -> Result<Self, FabricError> {
        assert!(options.lease_ms >= 4, "a lease of {} ms", options.lease_ms);
        let poller = Poller::new().map_err(FabricError::io("an epoll descriptor"))?;
        Ok(Self {
            patience: Patience::new(options.spin_ns, options.yield_ns),
            outstanding_max: FABRIC_OUTSTANDING_MAX as usize,
            cx: Context {
                buffers: Buffers::new(),
                staged: Vec::with_capacity(STAGED_BYTES_MAX),
                stats: FabricStats::default(),
                one_sided_done: false,
                lease: Lease::new(options.lease_ms),
                events: Vec::new(),
            },
            options,
            peers: PeerTable::new(FABRIC_PEERS_MAX),
            round: 0,
            moved: false,
            gathers: false,
            poller,
        })
    }

    /// One that several threads share, which keep to the bound of a connection themselves; they
    /// have at most so many work requests under way on one together.
    pub(crate) fn for_many(
        options: EndpointOptions,
        outstanding_max: usize,
    ) -> Result<Self, FabricError> {
        let mut made = Self::new(options)?;
        made.cx.buffers = Buffers::with_limit(outstanding_max);
        made.outstanding_max = outstanding_max;
        Ok(made)
    }

    /// Begins a connection without waiting for it: `Connected`, or `Closed` if the target does
    /// not answer, refuses, or does not prove the secret (`Distrusted`), comes with a later poll.
    /// Work may be posted at once; it is sent
    /// when the connection is up. Errors: `NotLoopback`, `PeersFull`, `Io`.
    pub fn connect(&mut self, addr: SocketAddr, now: Nanos) -> Result<PeerId, FabricError> {
        let secret = self.options.secret.as_ref();
        let limit = self.peers.limit();
        if self.peers.is_full() {
            return Err(FabricError::PeersFull { limit });
        }
        let (socket, refused) = dial(addr, secret)?;
        let proof = secret.map(|secret| Handshake::begin(secret, Purpose::Fabric)).transpose();
        let proof = proof.map_err(FabricError::io("random numbers"))?;
        let mut connection = TcpConnection::new(socket, addr, proof, now);
        connection.broken = refused.map(CloseReason::System);
        let inserted = self.peers.insert(connection);
        let peer = inserted.map_err(|_| FabricError::PeersFull { limit })?;
        let connection = self.peers.get_mut(peer).expect("just inserted");
        connection.peer = peer;
        self.poller
            .add(&connection.stream, peer.0.into(), Interest::Read)
            .map_err(FabricError::io("adding a socket to an epoll descriptor"))?;
        Ok(peer)
    }

    /// Ends a connection. Its outstanding work and `Closed` come with the next poll.
    pub fn close(&mut self, peer: PeerId) {
        if let Some(connection) = self.peers.get_mut(peer) {
            connection.broken.get_or_insert(CloseReason::Left);
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
        FabricStats { connections: self.peers.count().into(), ..self.cx.stats }
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
        let mut now = clock();
        self.patience.begin(now);
        loop {
            let happened = self.poll(now, events);
            if happened > 0 {
                self.patience.learn();
            }
            if happened > 0 || now >= deadline {
                return happened;
            }
            now = clock();
            if self.moved {
                self.patience.moved(now);
            }
            if self.patience.pause(now) {
                let heartbeat_ns = self.cx.lease.heartbeat_ns;
                let sleep_ns = deadline.saturating_sub(now).min(heartbeat_ns);
                let own = self.prepare_sleep();
                let [_, is_extra] = sleep_on([own, extra.unwrap_or(own)], sleep_ns);
                if is_extra && extra.is_some() {
                    return 0;
                }
                now = clock();
                self.patience.slept(now);
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
                let interest = if wants_out { Interest::ReadWrite } else { Interest::Read };
                // A refusal can only mean that the socket is not there; polling finds out why.
                let _ = self.poller.modify(&connection.stream, peer.0.into(), interest);
            }
        }
        self.poller.as_fd()
    }
}

impl TcpEndpoint {
    /// Appends a work request, which the caller has checked, without sending it. `owns_buffers`
    /// has its buffers released when it has ended, or here if it is not taken.
    pub(crate) fn enqueue(
        &mut self,
        peer: PeerId,
        work: &WorkRequest<'_>,
        owns_buffers: bool,
    ) -> Result<(), PostError> {
        let connection = self.peers.get_mut(peer).filter(|connection| connection.broken.is_none());
        let max = self.outstanding_max;
        let is_posted = connection.map(|found| found.enqueue(work, max, owns_buffers));
        if owns_buffers && is_posted != Some(true) {
            self.release(work.local);
        }
        match is_posted {
            Some(true) => Ok(()),
            Some(false) => Err(PostError::Busy),
            None => Err(PostError::Down),
        }
    }

    /// Sends what was appended; with `gathers`, only if it should not wait for more.
    pub(crate) fn flush(&mut self, peer: PeerId, gathers: bool) {
        let Some(connection) = self.peers.get_mut(peer) else { return };
        if connection.broken.is_some() || gathers && connection.may_gather() {
            return;
        }
        // A socket that broke says so again at the next poll, which first reads what the peer
        // still answered.
        let _ = connection.flush(&mut self.cx);
    }

    /// Takes a buffer that a work request will own.
    pub(crate) fn keep(&mut self, bytes: Vec<u8>) -> Result<BufId, FabricError> {
        self.cx.buffers.register(bytes)
    }

    /// Takes memory of another owner that a work request will own, until that has ended or is
    /// cancelled.
    ///
    /// # Safety
    /// As for `Buffers::adopt`.
    pub(crate) unsafe fn adopt(&mut self, memory: Memory) -> Result<BufId, FabricError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.cx.buffers.adopt(memory) }
    }

    /// Gives buffers back that no work request owns.
    pub(crate) fn release(&mut self, pieces: &[Sge]) {
        pieces.iter().for_each(|piece| self.cx.buffers.release(piece.buf));
    }

    /// See `TcpConnection::cancel`.
    pub(crate) fn cancel(&mut self, peer: PeerId, id: u64) -> bool {
        let connection = self.peers.get_mut(peer);
        connection.is_none_or(|found| found.cancel(id, &mut self.cx.buffers))
    }

    /// Whether a sleeper has to learn of room in the socket.
    pub(crate) fn wants_out(&mut self, peer: PeerId) -> bool {
        self.peers.get_mut(peer).is_some_and(|connection| connection.wants_out())
    }
}

impl Fabric for TcpEndpoint {
    fn capabilities(&self) -> Capabilities {
        by_sockets("tcp")
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        let connection = self.peers.get_mut(peer);
        if connection.is_none_or(|connection| connection.broken.is_some()) {
            return Err((0, PostError::Down));
        }
        for (posted, work) in batch.iter().enumerate() {
            check_work(&self.cx.buffers, work);
            if let Err(error) = self.enqueue(peer, work, false) {
                self.flush(peer, self.gathers);
                return Err((posted, error));
            }
        }
        self.flush(peer, self.gathers);
        Ok(())
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        self.moved = false;
        self.round = self.round.wrapping_add(1);
        let skip_quiet = !self.round.is_multiple_of(QUIET_ROUNDS);
        for slot in 0..self.peers.slots() {
            let Some((peer, connection)) = self.peers.at_mut(slot) else { continue };
            if skip_quiet && connection.is_quiet(now, QUIET_NS) {
                continue;
            }
            self.moved |= connection.poll(now, &mut self.cx);
            if let Some(reason) = connection.broken.take() {
                if reason.is_failure() {
                    let addr = connection.addr;
                    warn!(target: "fabric", "connection {} to {addr}: {reason}", peer.0);
                }
                connection.drain(&reason, &mut self.cx);
                self.peers.remove(peer);
            }
        }
        if std::mem::take(&mut self.cx.one_sided_done) && self.options.emulate_rdma_ns > 0 {
            spin_for(self.options.emulate_rdma_ns);
        }
        events.append(&mut self.cx.events);
        events.len() - before
    }

    fn expose(&mut self, peer: PeerId, piece: &Sge) -> Option<Exposure> {
        self.cx.buffers.check(piece, true);
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
        &self.cx.buffers
    }

    fn buffers_mut(&mut self) -> &mut Buffers {
        &mut self.cx.buffers
    }

    fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        for slot in 0..self.peers.slots() {
            if let Some((_, connection)) = self.peers.at_mut(slot) {
                connection.let_go(&named);
            }
        }
    }
}
