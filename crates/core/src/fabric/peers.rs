//! Connection numbers of an endpoint or a target: a table of bounded size with ids that are never
//! used twice. Owns the connections; no I/O.
//!
//! A `PeerId` is a slot below and the slot's use count above; a slot with a used-up count is
//! retired.

use crate::constants::FABRIC_PEERS_MAX;
use crate::seam::PeerId;

const SLOT_BITS: u32 = FABRIC_PEERS_MAX.next_power_of_two().trailing_zeros();
const USES_MAX: u32 = (1 << (32 - SLOT_BITS)) - 1;

pub struct PeerTable<T> {
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
    pub fn new(limit: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit: limit.min(FABRIC_PEERS_MAX), count: 0 }
    }

    /// The most connections at once.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether no further connection fits.
    pub fn is_full(&self) -> bool {
        self.count == self.limit
            || (self.free.is_empty() && self.slots.len() >= FABRIC_PEERS_MAX as usize)
    }

    /// Adds a connection; gives it back if the table is full.
    pub fn insert(&mut self, value: T) -> Result<PeerId, T> {
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
    pub fn insert_with<E>(
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

    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &T)> {
        (0..).zip(&self.slots).filter_map(|(slot, entry): (u32, _)| {
            Some((PeerId(entry.uses << SLOT_BITS | slot), entry.value.as_ref()?))
        })
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Slots in use so far; ids at an index may be absent.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The connection in a slot.
    #[inline]
    pub fn at_mut(&mut self, slot: usize) -> Option<(PeerId, &mut T)> {
        let entry = &mut self.slots[slot];
        let peer = PeerId(entry.uses << SLOT_BITS | slot as u32);
        entry.value.as_mut().map(|value| (peer, value))
    }

    /// A connection by its id.
    #[inline]
    pub fn get_mut(&mut self, peer: PeerId) -> Option<&mut T> {
        let entry = self.slots.get_mut((peer.0 & ((1 << SLOT_BITS) - 1)) as usize)?;
        if entry.uses == peer.0 >> SLOT_BITS { entry.value.as_mut() } else { None }
    }

    pub fn remove(&mut self, peer: PeerId) -> Option<T> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
