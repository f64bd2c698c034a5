//! Addresses as users write them: `10.0.0.1:7400`, `[::1]:7400`, `localhost:7400`. In: text. Out:
//! what it stands for, or why it stands for nothing. A name is looked up by the system, which may
//! take seconds where a name server does not answer; numbers need no look-up.

use rustix::fd::AsFd;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// What the standard library says before the system's own reason.
const PREFIX: &str = "failed to lookup address information: ";

/// All addresses of `HOST:PORT`, each once; of a name those of IPv4 first, since a port alone is
/// one of 127.0.0.1 as well.
///
/// ```
/// let found = rackpool_mem::names::resolve("localhost:7400").unwrap();
/// assert!(found[0].ip().is_loopback() && found[0].port() == 7400);
/// ```
///
/// # Errors
/// `InvalidInput` for text that is no address, the system's reason for a name that is none; the
/// text is in the message.
pub fn resolve(text: &str) -> io::Result<Vec<SocketAddr>> {
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Ok(vec![addr]);
    }
    let malformed = |what: &str| {
        let message = format!(
            "`{text}` {what}: write for example 127.0.0.1:7400, [::1]:7400 or \
                               localhost:7400"
        );
        io::Error::new(io::ErrorKind::InvalidInput, message)
    };
    let Some((host, port)) = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
        return Err(malformed("has no host and port"));
    };
    if port.parse::<u16>().is_err() {
        return Err(malformed("has no port from 0 to 65535"));
    }
    if host.contains([':', '[', ']']) {
        return Err(malformed("is no address of IPv6"));
    }
    let unknown = |error: io::Error| {
        let reason = error.to_string();
        let reason = reason.strip_prefix(PREFIX).unwrap_or(&reason);
        io::Error::new(error.kind(), format!("the name `{host}` leads nowhere: {reason}"))
    };
    let mut found: Vec<SocketAddr> = text.to_socket_addrs().map_err(unknown)?.collect();
    found.sort_by_key(SocketAddr::is_ipv6);
    found.dedup();
    if found.is_empty() {
        return Err(unknown(io::ErrorKind::AddrNotAvailable.into()));
    }
    Ok(found)
}

/// The address at the other end of a connection of TCP, as long as it is there.
pub fn peer_addr(socket: impl AsFd) -> Option<SocketAddr> {
    let peer = rustix::net::getpeername(socket).ok().flatten()?;
    SocketAddr::try_from(peer).ok()
}

pub fn peer_of(socket: impl AsFd) -> String {
    peer_addr(socket).map_or("an unknown address".into(), |peer| peer.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_addresses() {
        for (text, expected) in [
            ("127.0.0.1:7400", "127.0.0.1:7400"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:7400", "127.0.0.1:7400"),
        ] {
            assert_eq!(resolve(text).unwrap()[0].to_string(), expected);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_text_and_the_reason() {
        for text in ["", ":", ":7400", "localhost", "::1", "::1:7400", "[::1]", "[::1:7400", "a:b"]
        {
            let error = resolve(text).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{text}: {error}");
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
        assert_eq!(resolve("localhost:70000").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // A name of this kind is never assigned (RFC 2606).
        let error = resolve("rackpool.invalid:7400").unwrap_err().to_string();
        assert!(error.contains("rackpool.invalid") && !error.contains(PREFIX), "{error}");
    }

    #[test]
    fn the_other_end_of_a_connection_has_an_address_as_long_as_it_is_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(peer_of(&listener), "an unknown address");
        let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        assert_eq!(peer_of(&far), near.local_addr().unwrap().to_string());
    }
}
