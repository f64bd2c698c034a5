//! Peers on the same host, or in another container of it: between them and us no line can be
//! congested or lossy, and what a connection costs is what the kernel does for each packet.
//!
//! In: sockets of TCP. Out: who is a neighbour, and sockets that are set for them. Called by the
//! tcp fabric and the key-value cache's front.

use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketType, connect, getpeername, getsockname, socket, sockopt};
use std::io;
use std::net::{SocketAddr, TcpStream};

/// The congestion control of neighbours, which every Linux has: it sets no timers. BBR, the default
/// of some hosts, paces what it sends, also by loopback: three timer interrupts a megabyte.
///
/// A socket that ever had BBR is paced for ever, whatever it is given later, so one that connects
/// gets this before it does, and one that is accepted has it from its listener.
const CONGESTION: &str = "reno";

fn family(addr: SocketAddr) -> AddressFamily {
    if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn own_addr(socket: impl AsFd) -> Option<SocketAddr> {
    SocketAddr::try_from(getsockname(socket).ok()?).ok()
}

/// Lets a listener accept connections that are set for neighbours; what [`admit`] needs for the
/// others. `None`: the system does not allow both, and nothing was changed.
pub fn favour(listener: impl AsFd) -> Option<String> {
    let usual = sockopt::tcp_congestion(&listener).ok()?;
    let other = socket(family(own_addr(&listener)?), SocketType::STREAM, None).ok()?;
    for name in [CONGESTION, &usual] {
        sockopt::set_tcp_congestion(&other, name).ok()?;
    }
    sockopt::set_tcp_congestion(&listener, CONGESTION).ok()?;
    Some(usual)
}

/// Gives a connection that was accepted what the system would have given it, unless it is with a
/// neighbour; whether it is. `usual` is what [`favour`] said.
pub fn admit(accepted: impl AsFd, usual: Option<&str>) -> bool {
    let peer = getpeername(&accepted).ok().flatten();
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let is_one = peer.is_some_and(|peer| is_one(peer, own_addr(&accepted)));
    if let Some(usual) = usual.filter(|_| !is_one) {
        // It was possible when the listener began.
        let _ = sockopt::set_tcp_congestion(&accepted, usual);
    }
    is_one
}

/// Sets a socket that is to be connected to `addr` for it, if that is on this host's loopback.
pub fn favour_outgoing(socket: impl AsFd, addr: SocketAddr) {
    if addr.ip().to_canonical().is_loopback() {
        // Where it is refused, the socket keeps the one it has.
        let _ = sockopt::set_tcp_congestion(socket, CONGESTION);
    }
}

/// A connection to `addr`, set for it. Blocks until it is there.
///
/// # Errors
/// What the system says.
pub fn call(addr: SocketAddr) -> io::Result<TcpStream> {
    let fd = socket(family(addr), SocketType::STREAM, None)?;
    favour_outgoing(&fd, addr);
    connect(&fd, &addr)?;
    Ok(TcpStream::from(fd))
}

/// Whether a peer is on this host, by loopback or by another address of it.
fn is_one(peer: SocketAddr, ours: Option<SocketAddr>) -> bool {
    peer.ip().to_canonical().is_loopback() || ours.is_some_and(|ours| ours.ip() == peer.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn both_ends_of_a_connection_within_a_host_are_not_paced_and_others_can_go_back() {
        for bound in ["127.0.0.1:0", "127.0.0.9:0", "[::1]:0"] {
            // A host without IPv6 has one address less.
            let Ok(listener) = TcpListener::bind(bound) else { continue };
            let usual = favour(&listener).expect("the system allows it");
            let near = call(listener.local_addr().expect("bound")).expect("a connection");
            let far = listener.accept().expect("the connection").0;
            assert!(admit(&far, Some(&usual)));
            for end in [&near, &far] {
                assert_eq!(sockopt::tcp_congestion(end).expect("its name"), CONGESTION);
            }
            sockopt::set_tcp_congestion(&far, &usual).expect("it was possible before");
            assert_eq!(sockopt::tcp_congestion(&far).expect("its name"), usual);
        }
    }

    #[test]
    fn who_speaks_from_this_host_is_known_by_either_address() {
        let addr = |addr: &str| addr.parse::<SocketAddr>().expect("an address");
        let ours = Some(addr("192.0.2.7:11211"));
        assert!(is_one(addr("127.0.0.1:9"), Some(addr("127.0.0.1:11211"))));
        assert!(is_one(addr("[::ffff:127.0.0.9]:9"), ours));
        assert!(is_one(addr("192.0.2.7:9"), ours));
        assert!(!is_one(addr("192.0.2.8:9"), ours));
        assert!(!is_one(addr("192.0.2.7:9"), None));
    }
}
