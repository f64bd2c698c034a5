//! Which connections a target accepts, in all and of one address, and which one gives way.

use super::FabricError;
use crate::addresses::{Addresses, ConnectionPermit, network, oldest_of_most, usual_share};
use rackpool_core::constants::UNPROVEN_CONNECTIONS_MAX;
use rackpool_core::fabric::peers::PeerTable;
use rackpool_core::seam::{Nanos, PeerId};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A connection of a target, as far as it takes the room of others.
pub(crate) trait ServedConnection {
    fn fd(&self) -> BorrowedFd<'_>;
    fn permit(&self) -> &ConnectionPermit;
    /// Since when it has not proved the secret, or not said hello.
    fn waits(&self) -> Option<Nanos>;
    /// Since when it has been accepted and idle, if it may be closed for that.
    fn idles(&self, _now: Nanos) -> Option<Nanos> {
        None
    }
}

/// How many connections a target serves, in all and of one address.
pub(crate) struct ConnectionLimits {
    addresses: Arc<Addresses>,
    share: usize,
}

impl ConnectionLimits {
    /// Of a target that serves `limit` connections, of one address `address_max` or the usual
    /// share.
    pub(crate) fn new(limit: u32, address_max: Option<u32>) -> Self {
        let share = address_max.map_or_else(|| usual_share(limit as usize), |max| max as usize);
        Self { addresses: Arc::default(), share }
    }

    /// Which connection has to end before one more of `ip` is accepted, if one may. Where too many
    /// have proved nothing or no place is left, it is one of those; else, where no place is left,
    /// one that asks for nothing. If only the share of `ip` is used up, it is one of its own.
    pub(crate) fn gives_way<T: ServedConnection>(
        &self,
        peers: &PeerTable<T>,
        ip: IpAddr,
        now: Nanos,
    ) -> Option<PeerId> {
        let ip = network(ip);
        let has_share = self.addresses.count(ip) >= self.share;
        let is_full = has_share || peers.is_full();
        let silent = |since: fn(&T, Nanos) -> Option<Nanos>| {
            let of = move |(peer, connection): (PeerId, &T)| {
                Some((since(connection, now)?, peer, connection.permit().ip()))
            };
            let may = move |(_, _, owner): &(Nanos, PeerId, IpAddr)| !has_share || *owner == ip;
            peers.iter().filter_map(of).filter(may)
        };
        let waiting = || silent(|connection, _| connection.waits());
        if is_full || waiting().count() >= UNPROVEN_CONNECTIONS_MAX {
            let oldest = oldest_of_most(waiting(), ip);
            let idle = || oldest_of_most(silent(T::idles), ip).filter(|_| is_full);
            return oldest.or_else(idle);
        }
        None
    }

    /// A permit for one more connection.
    pub(crate) fn take<T>(
        &self,
        peers: &PeerTable<T>,
        ip: IpAddr,
    ) -> Result<ConnectionPermit, FabricError> {
        let permit = self.addresses.take(ip, self.share);
        let limit = if permit.is_some() { peers.limit() as usize } else { self.share };
        permit.filter(|_| !peers.is_full()).ok_or(FabricError::Busy { from: ip, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Since when it waits, or idles.
    struct Silent(ConnectionPermit, Option<Nanos>, Option<Nanos>);

    impl ServedConnection for Silent {
        fn fd(&self) -> BorrowedFd<'_> {
            unreachable!("it has no socket")
        }
        fn permit(&self) -> &ConnectionPermit {
            &self.0
        }
        fn waits(&self) -> Option<Nanos> {
            self.1
        }
        fn idles(&self, _now: Nanos) -> Option<Nanos> {
            self.2
        }
    }

    #[test]
    fn who_has_most_silent_connections_gives_way_and_who_has_its_share_of_places_only_to_itself() {
        let (mut table, limits) = (PeerTable::new(8), ConnectionLimits::new(8, None));
        let [a, b, c] = [1, 2, 3].map(|n| IpAddr::from([192, 0, 2, n]));
        let mut come = |ip, waits, idles| {
            let permit = limits.take(&table, ip)?;
            Ok::<_, FabricError>(table.insert(Silent(permit, waits, idles)).ok().unwrap())
        };
        let old = come(b, Some(1), None).unwrap();
        let ours: Vec<PeerId> = (2..8).map(|n| come(a, None, Some(n)).unwrap()).collect();
        assert!(matches!(come(a, None, None), Err(FabricError::Busy { limit: 6, .. })));
        assert_eq!(limits.gives_way(&table, a, 9), Some(ours[0]), "the oldest of its own");
        assert_eq!(limits.gives_way(&table, b, 9), None, "there is room");
        let mut come = |ip, waits, idles| {
            let permit = limits.take(&table, ip)?;
            Ok::<_, FabricError>(table.insert(Silent(permit, waits, idles)).ok().unwrap())
        };
        come(c, None, None).unwrap();
        assert!(matches!(come(c, None, None), Err(FabricError::Busy { limit: 8, .. })));
        assert_eq!(
            limits.gives_way(&table, c, 9),
            Some(old),
            "one that has not been let in, first"
        );
        table.get_mut(old).unwrap().1 = None;
        assert_eq!(limits.gives_way(&table, c, 9), Some(ours[0]));
        ours.iter().for_each(|peer| table.get_mut(*peer).unwrap().2 = None);
        assert_eq!(limits.gives_way(&table, c, 9), None, "all ask for something");
    }

    #[test]
    fn a_crowd_of_strangers_of_one_address_gives_way_to_others_of_it_alone() {
        let (mut table, limits) = (PeerTable::new(1024), ConnectionLimits::new(1024, None));
        let [a, b] = [1, 2].map(|n| IpAddr::from([192, 0, 2, n]));
        let crowd = UNPROVEN_CONNECTIONS_MAX as Nanos;
        let come = |n| {
            let permit = limits.take(&table, if n < 2 { b } else { a }).unwrap();
            table.insert(Silent(permit, Some(n), None)).ok().unwrap()
        };
        let peers: Vec<PeerId> = (0..crowd).map(come).collect();
        for newcomer in [a, b] {
            assert_eq!(limits.gives_way(&table, newcomer, crowd), Some(peers[2]));
        }
        table.remove(peers[2]);
        assert_eq!(limits.gives_way(&table, b, crowd), None, "there are fewer now");
    }
}
