//! The thread of a verbs target: it answers messages, opens and closes keys and executes the
//! atomics that the device must not; READ, WRITE and WRITE_IMM are the device's.
//!
//! Waiting: the thread looks without pause for a while after something moved, then gives way
//! between looks, then sleeps until the device, a control line or the application says something;
//! while frames are open never for more than [`REVOKE_NS`], since the thread that frees one waits.
//!
//! Source: DESIGN §3 (waiting, revocation).

use super::DeviceOptions;
use super::control::ControlLine;
use super::keys::Keys;
use super::lane::{TARGET_DEPTH, fit, peer_of};
use super::queue::{Completion, Completions};
use super::serve::{VerbsServeContext, VerbsSession};
use super::wire::Control;
use crate::close::CloseReason;
use crate::limits::ServedConnection;
use crate::shm::ShmPeer;
use crate::sockets::BACKLOG;
use crate::target::{LISTENER, NO_HELLO, Target, TargetOptions, TargetPort};
use crate::waiting::Lease;
use crate::{FabricError, FabricStats};
use rackpool_core::seam::{FabricEvent, Mem, Nanos, PeerId};
use rackpool_mem::event::Interest;
use rackpool_mem::process::monotonic_ns;
use rustix::fd::OwnedFd;
use std::net::IpAddr;

/// Table words of open frames are looked at at least this often, nanoseconds.
const REVOKE_NS: Nanos = 1_000_000;
/// Control lines are looked at this often while the thread is busy.
const READY_NS: Nanos = 1_000_000;
/// How long the thread looks without pause after something moved …
const SPIN_NS: Nanos = 20_000;
/// … and how long it then gives way between looks before it sleeps.
const YIELD_NS: Nanos = 200_000;
/// Connections at once; one address has three quarters: 256.
const CONNECTIONS_MAX: u32 = 342;
/// The device's token in the poller.
const DEVICE: u64 = u64::MAX - 2;

/// Begins to serve by a device. Connections are fewer than was asked for if one completion queue
/// of the device does not bear so many. Errors: `NotLoopback`, `Geometry` (also: fewer than two
/// cells), `Verbs`, `Io`.
pub fn start_target(options: TargetOptions, device: DeviceOptions) -> Result<Target, FabricError> {
    let (device, atomics) = device.open(options.secret.as_ref())?;
    let wanted = options.connections_max.min(CONNECTIONS_MAX);
    let (connections, entries) = fit(&device, TARGET_DEPTH, wanted);
    let port = TargetPort::open(&options, connections)?;
    let TargetOptions { layout, pages, table, cells, .. } = options;
    let found_bytes = cells.bytes();
    if found_bytes < 16 {
        return Err(FabricError::Geometry { what: "cells", found_bytes, needed_bytes: 16 });
    }
    let own = cells.slice(0, 8);
    let memory = ShmPeer::new(pages.clone(), table.clone(), own, layout)?;
    let cells = cells.slice(8, found_bytes - 8);
    let completions = Completions::new(&device, entries)?;
    port.poller
        .add(completions.fd(), DEVICE, Interest::Read)
        .map_err(FabricError::io("adding to an epoll descriptor"))?;
    let cx = VerbsServeContext {
        keys: Keys::new(pages, table, cells, layout, atomics),
        completions,
        device,
        memory,
        queues: port.queues.clone(),
        stats: FabricStats::default(),
        closed: Vec::new(),
        lease: Lease::new(options.lease_ms),
        now: monotonic_ns(),
    };
    let server = VerbsServer { port, cx, found: Vec::with_capacity(64) };
    let (addr, queues) = (server.port.local_addr, server.port.queues.clone());
    Target::spawn(addr, queues, false, move || server.run())
}

/// The thread's own. Connections go before what they were made on.
struct VerbsServer {
    port: TargetPort<VerbsSession>,
    cx: VerbsServeContext,
    found: Vec<Completion>,
}

impl VerbsServer {
    fn run(mut self) {
        let (mut moved_at, mut ready_at) = (monotonic_ns(), 0);
        while !self.port.queues.is_stopping() {
            let now = monotonic_ns();
            if now >= ready_at {
                self.ready(0, now);
                ready_at = now + READY_NS;
            }
            if self.round(now) {
                moved_at = now;
                self.port.publish(&self.cx.stats);
                continue;
            }
            let idle_ns = now.saturating_sub(moved_at);
            if idle_ns < SPIN_NS {
                std::hint::spin_loop();
            } else if idle_ns < SPIN_NS + YIELD_NS {
                std::thread::yield_now();
            } else {
                self.sleep(now);
                ready_at = 0;
            }
        }
    }

    /// Looks at everything once; whether anything moved.
    fn round(&mut self, now: Nanos) -> bool {
        if self.port.queues.take_notification() {
            self.sort_mail();
        }
        let mut moved = self.cx.keys.look(&mut self.cx.closed);
        moved |= self.take_completions(now);
        for slot in 0..self.port.peers.slots() {
            let Some((peer, _)) = self.port.peers.at_mut(slot) else { continue };
            moved |= self.with(peer, now, VerbsSession::progress).unwrap_or(false);
        }
        for (peer, at) in std::mem::take(&mut self.cx.closed) {
            self.with(peer, now, |served, _| served.tell_closed(at));
        }
        moved
    }

    fn take_completions(&mut self, now: Nanos) -> bool {
        let mut found = std::mem::take(&mut self.found);
        let moved = self.cx.completions.poll(&mut found) > 0;
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
        F: FnOnce(&mut VerbsSession, &mut VerbsServeContext) -> Result<R, CloseReason>,
    {
        let served = self.port.peers.get_mut(peer)?;
        self.cx.now = now;
        match run(served, &mut self.cx) {
            Ok(result) => Some(result),
            Err(broken) => {
                self.end(peer, &broken);
                None
            }
        }
    }

    fn end(&mut self, peer: PeerId, reason: &CloseReason) {
        let Some(served) = self.port.remove(peer, reason) else { return };
        let is_greeted = served.waits().is_none();
        // Its queue pair ends here, then what was registered for it.
        drop(served);
        self.cx.keys.forget(peer);
        if is_greeted {
            let event = FabricEvent::Closed { peer, cause: reason.cause() };
            self.port.queues.closed(peer, event);
        }
    }

    /// Acts on what the application put in.
    fn sort_mail(&mut self) {
        for _ in 0..self.port.peers.limit() {
            let Some((peer, close)) = self.port.queues.take_ready() else { break };
            if close {
                self.end(peer, &CloseReason::Left);
            } else if let Some(served) = self.port.peers.get_mut(peer) {
                served.has_mail = true;
            }
        }
    }

    /// Asks the system what is ready, waiting at most so long.
    fn ready(&mut self, wait_ns: Nanos, now: Nanos) {
        self.port.listen_again();
        self.port.wait(Some(wait_ns));
        for index in 0..self.port.ready.len() {
            match self.port.ready[index].token {
                LISTENER => self.accept(now),
                // It is looked at in any case.
                DEVICE => {}
                token => _ = self.with(PeerId(token as u32), now, VerbsSession::listen),
            }
        }
        while let Some(peer) = self.port.silent(now) {
            self.end(peer, &NO_HELLO);
        }
    }

    fn sleep(&mut self, now: Nanos) {
        self.port.publish(&self.cx.stats);
        let limit_ns = if self.cx.keys.has_open() { REVOKE_NS } else { self.cx.lease.heartbeat_ns };
        self.cx.completions.arm();
        let must_stay = self.port.queues.begin_sleep();
        // What came before the device was asked to tell is not told.
        let must_stay = must_stay || self.take_completions(now);
        self.ready(if must_stay { 0 } else { limit_ns }, now);
        self.port.queues.end_sleep();
    }

    fn accept(&mut self, now: Nanos) {
        for _ in 0..BACKLOG {
            let Some((socket, ip)) = self.port.accept() else { return };
            if let Err(error) = self.admit(socket, ip, now) {
                self.port.not_accepted(&error);
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, ip: IpAddr, now: Nanos) -> Result<(), FabricError> {
        if let Some(peer) = self.port.gives_way(ip, now) {
            self.end(peer, &CloseReason::Crowded);
        }
        let permit = self.port.permit(&socket, ip, &Control::Busy.to_bytes())?;
        let control = ControlLine::accept(socket, self.port.secret.as_ref())?;
        self.port.admit(|peer| Ok(VerbsSession::new(peer, control, permit, now))).map(drop)
    }
}
