//! Admission: connections are accepted as long as the application keeps up and there is room, and
//! those that have not proved the secret do not keep others out.

use super::super::broken::TcpCloseReason;
use super::super::frame::{Hello, HelloStatus};
use super::super::serve::TcpSession;
use super::super::tune;
use super::{BACKLOG, LISTENER, TcpServer};
use crate::addresses::turn_away;
use crate::FabricError;
use rackpool_mem::process::monotonic_ns;
use crate::handshake::{self, Handshake, Purpose};
use rackpool_mem::names::peer_addr;
use rackpool_core::seam::Nanos;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use tracing::warn;
use zerocopy::IntoBytes;

impl TcpServer {
    pub(super) fn accept(&mut self, now: Nanos) {
        for _ in 0..BACKLOG {
            if self.queues.is_congested() {
                self.stop_listening();
                return;
            }
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    warn!(target: "fabric", "cannot accept connections for now: {error}");
                    self.stop_listening();
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
        let Some(ip) = peer_addr(&socket).map(|addr| addr.ip()) else { return Ok(()) };
        tune(socket.as_fd())?;
        if let Some(peer) = self.limits.gives_way(&self.peers, ip, now) {
            self.end(peer, TcpCloseReason::Crowded);
        }
        let permit = self.limits.take(&self.peers, ip).inspect_err(|_| {
            let hello = Hello::of_target(HelloStatus::Busy, 0, 0);
            let busy = handshake::busy();
            turn_away(&socket, if self.secret.is_some() { &busy } else { hello.as_bytes() });
        })?;
        let proof = Handshake::accept(self.secret.as_ref(), Purpose::Fabric)
            .map_err(FabricError::io("random numbers"))?;
        let inserted = self.peers.insert(TcpSession::new(socket, proof, permit, now));
        let peer = inserted.unwrap_or_else(|_| unreachable!("there was a place"));
        let served = self.peers.get_mut(peer).expect("just inserted");
        served.peer = peer;
        let data = epoll::EventData::new_u64(peer.0.into());
        let added = epoll::add(&self.epoll, &served.stream, data, epoll::EventFlags::IN);
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

    fn stop_listening(&mut self) {
        self.set_listening(false);
        let soon = monotonic_ns() + self.heartbeat_ns;
        self.tick_at = if self.tick_at == 0 { soon } else { self.tick_at };
    }

    pub(super) fn listen_again(&mut self) {
        if !self.is_listening && !self.queues.is_congested() {
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
