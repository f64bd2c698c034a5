//! The thread of a tcp target, which executes one-sided operations on the pages of this process.
//!
//! Waiting: the thread looks at the connections on which something moved lately without asking
//! the system which are ready, gives way to others on its core after a few looks in vain, and
//! sleeps when nothing moved for a while.
//!
//! Source: DESIGN §3 (waiting).

use super::super::close::CloseReason;
use super::super::limits::ServedConnection;
use super::super::shm::ShmPeer;
use super::super::sockets::BACKLOG;
use super::super::target::{LISTENER, NO_HELLO, Target, TargetOptions, TargetPort};
use super::super::waiting::Lease;
use super::super::{FabricError, FabricStats, monotonic_ns};
use super::frame::{Hello, HelloStatus};
use super::serve::{TcpServeContext, TcpSession};
use crate::handshake::{Handshake, Purpose};
use rackpool_core::constants::FABRIC_PEERS_MAX;
use rackpool_core::seam::{FabricEvent, Nanos, PeerId};
use rackpool_mem::event::Interest;
use rustix::fd::OwnedFd;
use std::net::IpAddr;
use zerocopy::IntoBytes;

/// Rounds over idle connections before the processor is yielded: at least these, some 2 µs, which
/// two ends on one core can afford …
const SPIN_ROUNDS_MIN: u32 = 8;
/// … and at most these, longer than an initiator on another core takes for its next request.
const SPIN_ROUNDS_MAX: u32 = 64;
/// The system is asked for other connections once in this many rounds.
const READY_ROUNDS: u32 = 256;
/// … and at least this often: where the processor is shared, a round may take long.
const READY_NS: Nanos = 500_000;
/// Bytes of data that are dropped at once.
const SCRAP_BYTES: usize = 64 << 10;

/// Begins to serve by frames on sockets. Errors: `NotLoopback`, `Geometry`, `Io` (such as an
/// address in use).
pub fn start_target(options: TargetOptions) -> Result<Target, FabricError> {
    let port = TargetPort::open(&options, options.connections_max)?;
    let TargetOptions { layout, pages, table, cells, .. } = options;
    let cx = TcpServeContext {
        memory: ShmPeer::new(pages, table, cells, layout)?,
        queues: port.queues.clone(),
        stats: FabricStats::default(),
        scrap: vec![0; SCRAP_BYTES],
    };
    let server = TcpServer {
        port,
        cx,
        active: Vec::new(),
        has_held: false,
        spin_ns: options.spin_ns.into(),
        heartbeat_ns: Lease::new(options.lease_ms).heartbeat_ns,
        tick_at: 0,
    };
    let (addr, queues) = (server.port.local_addr, server.port.queues.clone());
    Target::spawn(addr, queues, true, move || server.run())
}

struct TcpServer {
    port: TargetPort<TcpSession>,
    cx: TcpServeContext,
    /// Connections on which something moved lately.
    active: Vec<PeerId>,
    /// Whether there may be some that wait for the application.
    has_held: bool,
    spin_ns: Nanos,
    heartbeat_ns: Nanos,
    tick_at: Nanos,
}

impl TcpServer {
    fn run(mut self) {
        let (mut round, mut in_vain, mut spin_rounds) = (0u32, 0u32, SPIN_ROUNDS_MAX / 2);
        let mut look_at = 0;
        while !self.port.queues.is_stopping() {
            if self.port.queues.take_notification() {
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
                self.port.publish(&self.cx.stats);
            } else {
                in_vain = in_vain.saturating_add(1);
            }
            round = round.wrapping_add(1);
            if self.active.is_empty() {
                self.port.publish(&self.cx.stats);
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
                    self.end(peer, &broken);
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
        self.port.peers.get_mut(peer).is_some_and(|served| {
            !served.is_held() && now.saturating_sub(served.moved_at) < spin_ns
        })
    }

    fn serve(&mut self, peer: PeerId, now: Nanos) -> Result<bool, CloseReason> {
        let Some(served) = self.port.peers.get_mut(peer) else { return Ok(false) };
        let moved = served.progress(&mut self.cx)?;
        if moved {
            served.moved_at = now;
        }
        Ok(moved)
    }

    /// Leaves an active connection to the system, which reports when it can go on.
    fn retire(&mut self, index: usize) {
        let peer = self.active.swap_remove(index);
        let Some(served) = self.port.peers.get_mut(peer) else { return };
        served.is_active = false;
        self.has_held |= served.is_held();
        if served.is_held() && self.tick_at == 0 {
            self.tick_at = monotonic_ns() + self.heartbeat_ns;
        }
        let interest = match (served.is_held(), served.is_blocked()) {
            (_, true) => Interest::Write,
            (true, false) => Interest::Nothing,
            (false, false) => Interest::Read,
        };
        if served.asks != interest {
            served.asks = interest;
            // Only fails for a descriptor that is not there, and this one is open.
            let modified = self.port.poller.modify(served.fd(), peer.0.into(), interest);
            modified.expect("epoll has the socket");
        }
    }

    fn activate(&mut self, peer: PeerId, now: Nanos) {
        if let Some(served) = self.port.peers.get_mut(peer)
            && !served.is_active
        {
            served.is_active = true;
            served.moved_at = now;
            self.active.push(peer);
        }
    }

    fn end(&mut self, peer: PeerId, reason: &CloseReason) {
        if let Some(index) = self.active.iter().position(|active| *active == peer) {
            self.active.swap_remove(index);
        }
        let Some(served) = self.port.remove(peer, reason) else { return };
        if served.is_greeted() {
            let event = FabricEvent::Closed { peer, cause: reason.cause() };
            self.port.queues.closed(peer, event);
        }
    }

    /// Acts on what the application put in.
    fn sort_mail(&mut self) {
        let now = monotonic_ns();
        // No more than there are connections: each is touched once.
        for _ in 0..FABRIC_PEERS_MAX {
            let Some((peer, close)) = self.port.queues.take_ready() else { break };
            if close {
                self.end(peer, &CloseReason::Left);
            } else if let Some(served) = self.port.peers.get_mut(peer) {
                served.has_mail = true;
                self.activate(peer, now);
            }
        }
        if std::mem::take(&mut self.has_held) {
            for slot in 0..self.port.peers.slots() {
                if let Some((peer, served)) = self.port.peers.at_mut(slot)
                    && served.is_held()
                {
                    self.activate(peer, now);
                }
            }
        }
        self.port.listen_again();
    }

    /// Asks the system what is ready, waiting at most `wait_ns`, or without end.
    fn look(&mut self, wait_ns: Option<Nanos>) {
        self.port.wait(wait_ns);
        let now = monotonic_ns();
        for index in 0..self.port.ready.len() {
            let ready = self.port.ready[index];
            if ready.token == LISTENER {
                self.accept(now);
                continue;
            }
            let peer = PeerId(ready.token as u32);
            let is_held = self.port.peers.get_mut(peer).is_some_and(|served| served.is_held());
            if is_held && ready.closed {
                self.end(peer, &CloseReason::Closed);
            } else {
                self.activate(peer, now);
            }
        }
    }

    fn sleep(&mut self, now: Nanos) {
        self.tick(now);
        let timeout = (self.tick_at > 0).then(|| self.tick_at.saturating_sub(now));
        let must_stay = self.port.queues.begin_sleep();
        self.look(if must_stay { Some(0) } else { timeout });
        self.port.queues.end_sleep();
    }

    /// What time brings about: connections that wait for the application are told that we live,
    /// those that never said hello are closed, the listener is tried again.
    fn tick(&mut self, now: Nanos) {
        if self.tick_at == 0 || now < self.tick_at {
            return;
        }
        let mut needs_tick = !self.port.is_listening;
        while let Some(peer) = self.port.silent(now) {
            self.end(peer, &NO_HELLO);
        }
        for slot in 0..self.port.peers.slots() {
            let Some((peer, served)) = self.port.peers.at_mut(slot) else { continue };
            needs_tick |= served.is_held() || !served.is_greeted();
            if let Err(reason) = served.keep_alive(&mut self.cx) {
                self.end(peer, &reason);
            }
        }
        self.port.listen_again();
        self.tick_at = if needs_tick { now + self.heartbeat_ns } else { 0 };
    }

    fn accept(&mut self, now: Nanos) {
        for _ in 0..BACKLOG {
            let Some((socket, ip)) = self.port.accept() else { break };
            if let Err(error) = self.admit(socket, ip, now) {
                self.port.not_accepted(&error);
            }
        }
        self.tick_soon(now);
    }

    fn admit(&mut self, socket: OwnedFd, ip: IpAddr, now: Nanos) -> Result<(), FabricError> {
        if let Some(peer) = self.port.gives_way(ip, now) {
            self.end(peer, &CloseReason::Crowded);
        }
        let busy = Hello::of_target(HelloStatus::Busy, 0, 0);
        let permit = self.port.permit(&socket, ip, busy.as_bytes())?;
        let proof = Handshake::accept(self.port.secret.as_ref(), Purpose::Fabric)
            .map_err(FabricError::io("random numbers"))?;
        let mut session = TcpSession::new(socket, proof, permit, now);
        let peer = self.port.admit(|peer| {
            session.peer = peer;
            Ok(session)
        })?;
        self.activate(peer, now);
        Ok(())
    }

    /// So that a hello is waited for only so long, and that the listener is tried again.
    fn tick_soon(&mut self, now: Nanos) {
        if self.tick_at == 0 {
            self.tick_at = now + self.heartbeat_ns;
        }
    }
}
