//! How many connections each address has, so that one host cannot take the places of all others,
//! and which connection gives way where there are too many. Used by whatever accepts connections of
//! TCP: the master, the fabrics' targets, the cache.
//!
//! The acceptor asks for a [`ConnectionPermit`]; it comes back when the connection is dropped.

use rustix::fd::AsFd;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections by address; those of a network of IPv6 that one host may be given count together.
#[derive(Debug, Default)]
pub struct Addresses(Mutex<HashMap<IpAddr, usize>>);

impl Addresses {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn count(&self, ip: IpAddr) -> usize {
        self.counts().get(&network(ip)).copied().unwrap_or(0)
    }

    /// A place for one more connection of this address, unless it has `most`.
    pub fn take(self: &Arc<Self>, ip: IpAddr, most: usize) -> Option<ConnectionPermit> {
        let ip = network(ip);
        let mut counts = self.counts();
        let count = counts.entry(ip).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { addresses: Arc::clone(self), ip })
    }
}

/// What one address may have of so many places, unless something else is chosen: three quarters.
/// Then a pool with all its processes on one host has room enough, and so have others.
pub fn usual_share(places: usize) -> usize {
    places - places / 4
}

/// What is taken for one host: the 64 bits of IPv6 that a network has.
pub fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & u128::MAX << 64))
        }
        ip => ip,
    }
}

/// The place of one connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    addresses: Arc<Addresses>,
    ip: IpAddr,
}

impl ConnectionPermit {
    pub fn count(&self) -> usize {
        self.addresses.count(self.ip)
    }

    /// Its address, as [`network`] has it.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts();
        if let Some(count) = counts.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ip);
            }
        }
    }
}

/// Of those that may give way, each with its start time and its owner, the oldest one of the owner
/// that has most of them; `newcomer` has one more. `None` if there are none.
pub fn oldest_of_most<T: Copy, K: Ord>(
    silent: impl Iterator<Item = (u64, T, K)>,
    newcomer: K,
) -> Option<T> {
    let mut owners: BTreeMap<K, (usize, Option<(u64, T)>)> =
        BTreeMap::from([(newcomer, (1, None))]);
    for (since, one, owner) in silent {
        let (count, oldest) = owners.entry(owner).or_default();
        *count += 1;
        if oldest.is_none_or(|(before, _)| since < before) {
            *oldest = Some((since, one));
        }
    }
    let most = owners.into_values().max_by_key(|(count, oldest)| (*count, oldest.is_some()));
    most.and_then(|(_, oldest)| oldest).map(|(_, one)| one)
}

/// Says something short on a new connection, and that nothing more comes.
pub fn turn_away(socket: impl AsFd, said: &[u8]) {
    // A new socket has room for this; if not, its end says enough.
    let _ = rustix::net::send(&socket, said, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    let _ = rustix::net::shutdown(&socket, Shutdown::Write);
    // What came and is not read would make its end a reset.
    let _ = rustix::net::recv(&socket, &mut [0; 512], RecvFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_who_has_most_gives_way_and_who_comes_counts() {
        let silent = [(5, 'a', 1), (3, 'b', 2), (4, 'c', 2), (1, 'd', 3)];
        assert_eq!(oldest_of_most(silent.into_iter(), 3), Some('d'), "as many, with the newcomer");
        assert_eq!(oldest_of_most(silent.into_iter(), 9), Some('b'));
        assert_eq!(oldest_of_most(silent[..1].iter().copied(), 9), Some('a'));
        assert_eq!(oldest_of_most(silent[..0].iter().copied(), 9), None::<char>);
        assert_eq!([1, 2, 3, 4, 1024].map(usual_share), [1, 2, 3, 3, 768]);
    }

    #[test]
    fn an_address_has_its_share_and_gets_it_back_and_a_network_of_ipv6_is_one() {
        let addresses = Arc::new(Addresses::default());
        let take = |ip: &str| addresses.take(ip.parse().unwrap(), 2);
        let held = [take("192.0.2.1").unwrap(), take("::ffff:192.0.2.1").unwrap()];
        assert_eq!(held[0].count(), 2);
        assert!(take("192.0.2.1").is_none() && take("192.0.2.2").is_some());
        let others = [take("2001:db8::1"), take("2001:db8::2:1")];
        assert!(others.iter().all(Option::is_some) && take("2001:db8::3").is_none());
        assert!(take("2001:db8:0:1::3").is_some());
        drop(held);
        assert!(take("192.0.2.1").is_some());
        drop(others);
        assert!(addresses.counts().is_empty());
    }
}
