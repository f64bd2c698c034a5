//! The sockets of the fabrics: to whom they may lead, their settings, listening and connecting.
//! Used by the connections of `tcp` and by the control lines of `verbs`.

use super::FabricError;
use crate::secret::Secret;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use std::time::Duration;

/// Connections that wait to be accepted.
pub(super) const BACKLOG: i32 = 128;
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

/// Without a secret, refuses what is not this host.
pub(super) fn require_trust(addr: SocketAddr, secret: Option<&Secret>) -> Result<(), FabricError> {
    let may_be_spoken_to = secret.is_some() || addr.ip().is_loopback();
    if may_be_spoken_to { Ok(()) } else { Err(FabricError::NotLoopback { addr }) }
}

/// A stream socket that never blocks.
fn new_socket(addr: SocketAddr) -> Result<OwnedFd, FabricError> {
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

/// A socket that listens, and where.
pub(super) fn listen(addr: SocketAddr) -> Result<(OwnedFd, SocketAddr), FabricError> {
    let listener = new_socket(addr)?;
    sockopt::set_socket_reuseaddr(&listener, true)
        .map_err(FabricError::io("the settings of a socket"))?;
    rustix::net::bind(&listener, &addr)
        .map_err(FabricError::io("binding the listening address"))?;
    rustix::net::listen(&listener, BACKLOG).map_err(FabricError::io("listening"))?;
    let bound = rustix::net::getsockname(&listener).and_then(SocketAddr::try_from);
    Ok((listener, bound.map_err(FabricError::io("the listening address"))?))
}

/// A socket that is being connected to `addr`, or why it could not be.
pub(super) fn dial(
    addr: SocketAddr,
    secret: Option<&Secret>,
) -> Result<(OwnedFd, Option<Errno>), FabricError> {
    require_trust(addr, secret)?;
    let socket = new_socket(addr)?;
    tune(socket.as_fd())?;
    let refused = match rustix::net::connect(&socket, &addr) {
        Ok(()) | Err(Errno::INPROGRESS) => None,
        Err(error) => Some(error),
    };
    Ok((socket, refused))
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
