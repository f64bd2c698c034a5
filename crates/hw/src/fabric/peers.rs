//! Connection numbers of an endpoint or a target: a table of bounded size with ids that are never
//! used twice, and which connections a target accepts. Owns the connections; no I/O.
//!
//! A `PeerId` is a slot below and the slot's use count above; a slot with a used-up count is
//! retired.

use super::FabricError;
use crate::addresses::{Addresses, ConnectionPermit, network, oldest_of_most, usual_share};
use rackpool_core::constants::{FABRIC_PEERS_MAX, UNPROVEN_CONNECTIONS_MAX};
use rackpool_core::seam::{Nanos, PeerId};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

const SLOT_BITS: u32 = FABRIC_PEERS_MAX.next_power_of_two().trailing_zeros();
const USES_MAX: u32 = (1 << (32 - SLOT_BITS)) - 1;

pub(crate) struct PeerTable<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: u32,
    count: u32,
}

struct Slot<T> {
    uses: u32,
    value: Option<T>,
}

impl<T> PeerTable<T> {
    /// A table for at most `limit` connections, itself at most `FABRIC_PEERS_MAX`.
    pub(crate) fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit: limit.min(FABRIC_PEERS_MAX), count: 0 }
    }

    /// The most connections at once.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether no further connection fits.
    pub(crate) fn is_full(&self) -> bool {
        self.count == self.limit
            || (self.free.is_empty() && self.slots.len() >= FABRIC_PEERS_MAX as usize)
    }

    /// Adds a connection; gives it back if the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<PeerId, T> {
        if self.is_full() {
            return Err(value);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { uses: 0, value: None });
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.uses += 1;
        entry.value = Some(value);
        self.count += 1;
        Ok(PeerId(entry.uses << SLOT_BITS | slot))
    }

    /// Adds a connection that has to know its own id; `None` if the table is full.
    pub(crate) fn insert_with<E>(
        &mut self,
        make: impl FnOnce(PeerId) -> Result<T, E>,
    ) -> Option<Result<PeerId, E>> {
        if self.is_full() {
            return None;
        }
        let slot = self.free.last().map_or(self.slots.len(), |slot| *slot as usize);
        let uses = self.slots.get(slot).map_or(0, |entry| entry.uses) + 1;
        let value = match make(PeerId(uses << SLOT_BITS | slot as u32)) {
            Ok(value) => value,
            Err(error) => return Some(Err(error)),
        };
        self.insert(value).ok().map(Ok)
    }

    #[cfg(feature = "verbs")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Slots in use so far; ids at an index may be absent.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The connection in a slot.
    #[inline]
    pub(crate) fn at_mut(&mut self, slot: usize) -> Option<(PeerId, &mut T)> {
        let entry = &mut self.slots[slot];
        let peer = PeerId(entry.uses << SLOT_BITS | slot as u32);
        entry.value.as_mut().map(|value| (peer, value))
    }

    /// A connection by its id.
    #[inline]
    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut T> {
        let entry = self.slots.get_mut((peer.0 & ((1 << SLOT_BITS) - 1)) as usize)?;
        if entry.uses == peer.0 >> SLOT_BITS { entry.value.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, peer: PeerId) -> Option<T> {
        self.get_mut(peer)?;
        let slot = peer.0 & ((1 << SLOT_BITS) - 1);
        let entry = &mut self.slots[slot as usize];
        if entry.uses < USES_MAX {
            self.free.push(slot);
        }
        self.count -= 1;
        entry.value.take()
    }
}

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
            let of = move |(slot, entry): (u32, &Slot<T>)| {
                let connection = entry.value.as_ref()?;
                Some((
                    since(connection, now)?,
                    PeerId(entry.uses << SLOT_BITS | slot),
                    connection.permit().ip(),
                ))
            };
            let may = move |(_, _, owner): &(Nanos, PeerId, IpAddr)| !has_share || *owner == ip;
            (0..).zip(&peers.slots).filter_map(of).filter(may)
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
        let limit = if permit.is_some() { peers.limit as usize } else { self.share };
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
        assert_eq!(limits.gives_way(&table, c, 9), Some(old), "who has not been let in, first");
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

    #[test]
    fn an_id_is_never_used_twice_and_a_full_table_gives_the_value_back() {
        let mut table = PeerTable::new(2);
        let a = table.insert('a').unwrap();
        let b = table.insert('b').unwrap();
        assert_eq!(table.insert('c'), Err('c'));
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None);
        let c = table.insert('c').unwrap();
        assert_ne!(a, c);
        assert!(table.get_mut(a).is_none());
        assert_eq!(table.get_mut(b), Some(&mut 'b'));
        assert_eq!(table.get_mut(PeerId(0)), None);
    }

    #[test]
    fn a_slot_whose_count_is_used_up_is_retired() {
        let mut table = PeerTable::new(1);
        for _ in 0..3 {
            let id = table.insert(()).unwrap();
            table.remove(id);
        }
        table.slots[0].uses = USES_MAX - 1;
        let last = table.insert(()).unwrap();
        table.remove(last);
        let next = table.insert(()).unwrap();
        assert_eq!(next.0 & ((1 << SLOT_BITS) - 1), 1);
        assert!(table.get_mut(last).is_none());
    }
}
