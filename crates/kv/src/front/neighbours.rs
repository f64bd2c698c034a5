//! Clients on the same host, or in another container of it: between them and us no line can be
//! congested or lossy, and what a connection costs is what the kernel does for each packet.
//!
//! In: sockets. Out: who is a neighbour, and sockets that are set for them.

use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

/// The congestion control of neighbours: it sets no timers. BBR, the default of some hosts, paces
/// what it sends: a megabyte took three timer interrupts, and a fifth of the rate.
const CONGESTION: &str = "reno";

/// Lets a listener accept connections that are set for neighbours; the congestion control to be
/// given to all others, which the system would have given them. A connection that began with BBR
/// would be paced for ever, whatever it is given later. `None`: the system does not allow both,
/// and nothing was changed.
pub fn favour(listener: &TcpListener) -> Option<String> {
    let usual = sockopt::tcp_congestion(listener).ok()?;
    let family = match listener.local_addr().ok()? {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let other = socket(family, SocketType::STREAM, None).ok()?;
    for name in [CONGESTION, &usual] {
        sockopt::set_tcp_congestion(&other, name).ok()?;
    }
    sockopt::set_tcp_congestion(listener, CONGESTION).ok()?;
    Some(usual)
}

/// Whether a client speaks from this host, by loopback or by another address of it.
pub fn is_one(fd: &OwnedFd, client: SocketAddr) -> bool {
    let ours = rustix::net::getsockname(fd).ok();
    let ours = ours.and_then(|addr| SocketAddr::try_from(addr).ok());
    client.ip().to_canonical().is_loopback() || ours.is_some_and(|ours| ours.ip() == client.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn who_speaks_from_this_host_is_known_by_either_address_and_not_paced() {
        for bound in ["127.0.0.1:0", "127.0.0.9:0", "[::1]:0"] {
            // A host without IPv6 has one address less.
            let Ok(listener) = TcpListener::bind(bound) else { continue };
            let usual = favour(&listener).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert_eq!(sockopt::tcp_congestion(&client).unwrap(), usual);
            let (accepted, addr) = listener.accept().unwrap();
            let fd = OwnedFd::from(accepted);
            assert!(is_one(&fd, addr));
            assert!(is_one(&fd, "[::ffff:127.0.0.1]:9".parse().unwrap()));
            assert!(!is_one(&fd, "192.0.2.1:9".parse().unwrap()));
            assert_eq!(sockopt::tcp_congestion(&fd).unwrap(), CONGESTION);
            sockopt::set_tcp_congestion(&fd, &usual).unwrap();
            assert_eq!(sockopt::tcp_congestion(&fd).unwrap(), usual);
        }
    }
}
