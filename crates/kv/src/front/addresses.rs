//! How many connections each address has, so that one host cannot take the places of all others.
//! The acceptor asks for a [`Place`]; it comes back when the connection is dropped.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections by address; those of a network of IPv6 that one host may be given count together.
#[derive(Debug, Default)]
pub struct Addresses(Mutex<HashMap<IpAddr, usize>>);

impl Addresses {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection of this address, unless it has `most`.
    pub fn take(self: &Arc<Self>, ip: IpAddr, most: usize) -> Option<Place> {
        let ip = network(ip);
        let mut counts = self.counts();
        let count = counts.entry(ip).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { addresses: Arc::clone(self), ip })
    }
}

/// What is taken for one host: the 64 bits of IPv6 that a network has.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & u128::MAX << 64))
        }
        ip => ip,
    }
}

/// The place of one connection.
#[derive(Debug)]
pub struct Place {
    addresses: Arc<Addresses>,
    ip: IpAddr,
}

impl Place {
    /// Connections of its address.
    pub fn count(&self) -> usize {
        self.addresses.counts().get(&self.ip).copied().unwrap_or(0)
    }
}

impl Drop for Place {
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

#[cfg(test)]
mod tests {
    use super::*;

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
