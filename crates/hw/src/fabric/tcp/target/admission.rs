//! Who is let in: connections are accepted as long as the application keeps up and there is room,
//! and those that have not proved the secret do not keep others out.

use super::super::broken::Broken;
use super::super::frame::{Hello, HelloStatus};
use super::super::serve::Served;
use super::super::{recv, send, tune};
use super::{BACKLOG, LISTENER, Server};
use crate::fabric::{FabricError, monotonic_ns};
use crate::handshake::{self, Handshake, Purpose};
use crate::line::Line;
use crate::neighbours;
use crate::tell;
use rackpool_core::constants::UNPROVEN_CONNECTIONS_MAX;
use rackpool_core::seam::Nanos;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use zerocopy::IntoBytes;

/// How long a connection has to have been there without asking for anything before it gives way.
const IDLE_NS_MIN: Nanos = 1_000_000_000;

impl Server {
    pub(super) fn accept(&mut self, now: Nanos) {
        for _ in 0..BACKLOG {
            if self.doors.is_congested() {
                self.stop_listening();
                return;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tell!(self.log, Warn, "cannot accept connections for now: {error}");
                    self.stop_listening();
                    return;
                }
            };
            if let Err(error) = self.admit(socket, now) {
                tell!(self.log, Warn, "a connection was not accepted: {error}");
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, now: Nanos) -> Result<(), FabricError> {
        tune(socket.as_fd())?;
        neighbours::admit(&socket, self.usual.as_deref());
        let limit = self.peers.limit();
        self.make_room(now);
        if self.peers.is_full() {
            // A new socket has room for this; if not, its end says enough.
            let hello = Hello::of_target(HelloStatus::Busy, 0, 0);
            let busy = handshake::busy();
            let said = if self.secret.is_some() { &busy[..] } else { hello.as_bytes() };
            let mut line = Line::new(socket);
            let _ = send(&mut line, said, &mut self.stats);
            let _ = rustix::net::shutdown(&line, rustix::net::Shutdown::Write);
            let _ = recv(&mut line, &mut self.scrap, &mut self.stats);
            return Err(FabricError::PeersFull { limit });
        }
        let proof = Handshake::accept(self.secret.as_ref(), Purpose::Fabric)
            .map_err(FabricError::io("random numbers"))?;
        let inserted = self.peers.insert(Served::new(socket, proof, now));
        let peer = inserted.map_err(|_| FabricError::PeersFull { limit })?;
        let served = self.peers.get_mut(peer).expect("just inserted");
        served.peer = peer;
        let data = epoll::EventData::new_u64(peer.0.into());
        let added = epoll::add(&self.epoll, &served.line, data, epoll::EventFlags::IN);
        if let Err(error) = added {
            self.peers.remove(peer);
            return Err(FabricError::Io {
                what: "adding a socket to an epoll descriptor",
                source: error.into(),
            });
        }
        self.activate(peer, now);
        // So that its hello is waited for only so long.
        self.tick_at = if self.tick_at == 0 { now + self.heartbeat_ns } else { self.tick_at };
        Ok(())
    }

    /// A connection that has not proved the secret yet, or has not said hello, gives way to a later
    /// one when there are too many of them or no connection is left; in the latter case also one
    /// that has asked for nothing since its hello.
    fn make_room(&mut self, now: Nanos) {
        let waits = |served: &Served| (!served.is_greeted()).then_some(served.since);
        let idles = |served: &Served| {
            let is_idle = !served.has_asked && now.saturating_sub(served.since) > IDLE_NS_MIN;
            is_idle.then_some(served.since)
        };
        let crowding = self.peers.crowding_out(waits, UNPROVEN_CONNECTIONS_MAX);
        let crowding = crowding.or_else(|| self.peers.crowding_out(idles, usize::MAX));
        if let Some(peer) = crowding {
            self.end(peer, Broken::Crowded);
        }
    }

    fn stop_listening(&mut self) {
        self.set_listening(false);
        let soon = monotonic_ns() + self.heartbeat_ns;
        self.tick_at = if self.tick_at == 0 { soon } else { self.tick_at };
    }

    pub(super) fn listen_again(&mut self) {
        if !self.is_listening && !self.doors.is_congested() {
            self.set_listening(true);
        }
    }

    fn set_listening(&mut self, is_listening: bool) {
        self.is_listening = is_listening;
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, is_listening);
        let data = epoll::EventData::new_u64(LISTENER);
        let modified = epoll::modify(&self.epoll, &self.listener, data, flags);
        assert!(modified.is_ok(), "epoll lost the listener: {modified:?}");
    }
}
