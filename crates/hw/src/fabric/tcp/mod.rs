//! The tcp fabric: one-sided operations framed over TCP and executed at the target by a thread
//! of the fabric, without waking the target's application.
//!
//! | module | owns |
//! |---|---|
//! | `frame` | the bytes on the wire and their checks |
//! | `endpoint` | the initiator's end: connections, buffers, waiting; implements `Fabric` |
//! | `connection` | one connection of an endpoint: send queue, receiving, liveness |
//! | `broken` | why a connection of an endpoint ended |
//! | `exposed` | buffers that the target may write into |
//! | `target` | the target's thread and its calls for the application |
//! | `target::admission` | which connections are accepted |
//! | `mail` | what the application queues for a connection |
//! | `serve` | one connection of a target: execution of requests, answers |
//!
//! Here: settings of sockets and the buffer that both sides receive into.
//! Without a secret only loopback addresses are spoken to. With one, both ends of a connection
//! prove first that they have it ([`crate::handshake`]), and what follows may be encrypted
//! ([`crate::secure_stream`]): then each byte is copied once more on either side.
//!
//! Source: DESIGN §1 (`Fabric`), §3 (waiting), §4 (liveness, loopback only without
//! authentication).

mod broken;
mod connection;
pub mod endpoint;
mod exposed;
pub mod frame;
mod mail;
mod serve;
pub mod target;

pub(super) use connection::Disowned;
pub use endpoint::{Endpoint, EndpointOptions};
pub(super) use mail::Mail;
pub use mail::{TargetSendError, WriteBack};
pub use target::{Target, TargetCounters, TargetOptions};

use super::{FabricError, FabricStats};
use crate::secret::Secret;
use crate::secure_stream::SecureStream;
use rackpool_core::seam::Nanos;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::Duration;

/// An idle connection is probed after this long, seconds …
const KEEPALIVE_IDLE_S: u64 = 5;
/// … this often, seconds …
const KEEPALIVE_INTERVAL_S: u64 = 1;
/// … and is dead after this many probes without an answer.
const KEEPALIVE_PROBES: u32 = 5;
/// Sent data that the peer does not acknowledge, or a window that stays closed, ends a connection
/// after this long, milliseconds. Longer than the probes, so that a stopped process with a kernel
/// that still answers keeps its connection for a while.
const USER_TIMEOUT_MS: u32 = 20_000;
/// A heartbeat is due after this fraction of the lease.
const HEARTBEATS_PER_LEASE: u64 = 4;
/// Data from this length on is received straight to where it belongs; shorter data comes along
/// with its header in one system call and is copied once.
const DIRECT_BYTES_MIN: u64 = 8 << 10;
/// Most bytes that one system call moves from or to registered memory, so that a frame is never
/// announced for longer than such a call takes.
const CHUNK_BYTES: u64 = 1 << 20;

/// Without a secret, refuses what is not this host.
pub(super) fn require_trust(addr: SocketAddr, secret: Option<&Secret>) -> Result<(), FabricError> {
    let may_be_spoken_to = secret.is_some() || addr.ip().is_loopback();
    if may_be_spoken_to { Ok(()) } else { Err(FabricError::NotLoopback { addr }) }
}

/// A stream socket that never blocks.
pub(super) fn new_socket(addr: SocketAddr) -> Result<OwnedFd, FabricError> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(FabricError::io("a socket"))
}

/// The settings of every connection. The sizes of its buffers are left to the kernel, which lets
/// them grow with the traffic; a size given here would end that.
pub(super) fn tune(socket: BorrowedFd<'_>) -> Result<(), FabricError> {
    let seconds = Duration::from_secs;
    sockopt::set_tcp_nodelay(socket, true)
        .and_then(|()| sockopt::set_socket_keepalive(socket, true))
        .and_then(|()| sockopt::set_tcp_keepidle(socket, seconds(KEEPALIVE_IDLE_S)))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, seconds(KEEPALIVE_INTERVAL_S)))
        .and_then(|()| sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES))
        .and_then(|()| sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS))
        .map_err(FabricError::io("the settings of a socket"))
}

/// The pause after which a heartbeat is due, nanoseconds.
pub(super) fn heartbeat_ns(lease_ms: u64) -> Nanos {
    lease_ms * 1_000_000 / HEARTBEATS_PER_LEASE
}

/// What a call on a socket that does not block did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    /// This many bytes; at least one.
    Bytes(usize),
    /// None: the socket is empty, or full.
    Nothing,
    /// None: the peer closed its side.
    End,
}

type Io = Result<Moved, Errno>;

/// Sends without blocking. `bytes` is not empty.
fn send(stream: &mut SecureStream, bytes: &[u8], stats: &mut FabricStats) -> Io {
    sent(stream.send(&[IoSlice::new(bytes)]), stats)
}

/// Counts the outcome of a call that sends.
fn sent(result: Result<usize, Errno>, stats: &mut FabricStats) -> Io {
    match result {
        Ok(bytes) => {
            stats.send_calls += 1;
            stats.sent_bytes += bytes as u64;
            Ok(Moved::Bytes(bytes))
        }
        Err(Errno::AGAIN | Errno::INTR) => {
            stats.empty_calls += 1;
            Ok(Moved::Nothing)
        }
        Err(error) => Err(error),
    }
}

/// Receives without blocking. `to` is not empty.
fn recv(stream: &mut SecureStream, to: &mut [u8], stats: &mut FabricStats) -> Io {
    debug_assert!(!to.is_empty());
    received(stream.recv(to), stats)
}

/// Counts the outcome of a call that receives into something that is not empty.
fn received(result: Result<usize, Errno>, stats: &mut FabricStats) -> Io {
    match result {
        Ok(0) => Ok(Moved::End),
        Ok(bytes) => {
            stats.recv_calls += 1;
            stats.received_bytes += bytes as u64;
            Ok(Moved::Bytes(bytes))
        }
        Err(Errno::AGAIN | Errno::INTR) => {
            stats.empty_calls += 1;
            Ok(Moved::Nothing)
        }
        Err(error) => Err(error),
    }
}

/// The system's answer behind an error of `Window`'s calls.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Received bytes that are not parsed yet, in a buffer of fixed size.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end, "more consumed than received");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives up to `limit` bytes; never with a full buffer, because whatever is waited for in
    /// it is shorter than the buffer.
    fn fill(&mut self, stream: &mut SecureStream, limit: usize, stats: &mut FabricStats) -> Io {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let to = self.bytes.len().min(self.end + limit);
        assert!(to > self.end, "the receive buffer is full");
        let moved = recv(stream, &mut self.bytes[self.end..to], stats)?;
        if let Moved::Bytes(bytes) = moved {
            self.end += bytes;
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_addresses_than_loopback_are_refused_without_a_secret_and_the_way_out_is_said() {
        let secret = Secret::new(&[7; 32]).unwrap();
        for addr in ["192.0.2.1:1", "0.0.0.0:0", "[2001:db8::1]:1", "[::]:0"] {
            let addr = addr.parse().unwrap();
            let error = require_trust(addr, None).unwrap_err();
            assert!(error.to_string().contains("--secret-file"), "{error}");
            assert!(require_trust(addr, Some(&secret)).is_ok());
        }
        for addr in ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0"] {
            assert!(require_trust(addr.parse().unwrap(), None).is_ok());
        }
    }
}
