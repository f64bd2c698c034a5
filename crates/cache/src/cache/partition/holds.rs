//! What is not the same for all keys of a partition: keys that sections hold, for which others
//! wait, and keys of which changes are counted ([`Watch`](crate::cache::Watch)). While there is
//! neither, nothing looks here.

use super::{Memory, Millis, Mode, Partition, Stream, UNIT_BYTES};
use crate::cache::section::{HeldKey, Hold};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct Holds(Vec<Arc<Hold>>);

#[derive(Clone, Copy, Debug, Default)]
struct WatchedHash {
    watches: u32,
    changes: u64,
}

/// Keys of which changes are counted, by their hashes.
#[derive(Debug, Default)]
pub(crate) struct WatchedHashes(BTreeMap<u64, WatchedHash>);

impl Partition {
    /// What another section than `section` holds of this key. A section waits for no other one.
    pub fn holder(&self, hash: u64, section: u64) -> Option<Arc<Hold>> {
        let key = HeldKey::of(hash);
        let held = self.holds.0.iter().find(|held| held.has(key));
        held.filter(|_| section == 0).cloned()
    }

    /// Has a section hold `keys`, those that it has here, if no other one holds any of them; else
    /// what that one holds.
    pub fn try_hold(&mut self, held: &Arc<Hold>, keys: &[HeldKey]) -> Result<(), Arc<Hold>> {
        let mut others = self.holds.0.iter().filter(|other| other.section != held.section);
        match others.find(|other| keys.iter().any(|key| other.has(*key))) {
            Some(other) => Err(Arc::clone(other)),
            None => {
                self.hold(held);
                Ok(())
            }
        }
    }

    /// Has a section hold what it has here.
    pub fn hold(&mut self, held: &Arc<Hold>) {
        self.change_holds(|holds| holds.push(Arc::clone(held)));
    }

    /// A section holds nothing here any more.
    pub fn let_go(&mut self, section: u64) {
        self.change_holds(|holds| holds.retain(|held| held.section != section));
    }

    /// As [`Partition::let_go`], of this alone.
    pub fn forget_hold(&mut self, held: &Arc<Hold>) {
        self.change_holds(|holds| holds.retain(|other| !Arc::ptr_eq(held, other)));
    }

    fn change_holds(&mut self, change: impl FnOnce(&mut Vec<Arc<Hold>>)) {
        change(&mut self.holds.0);
        self.index.hold(!self.holds.0.is_empty());
        self.note_what_is_unusual();
    }

    pub fn note_what_is_unusual(&mut self) {
        self.is_unusual = !self.holds.0.is_empty() || self.emulation.is_some();
    }

    /// Counts changes of a key from now on; how many were counted of it before.
    pub fn watch(&mut self, hash: u64) -> u64 {
        let watched = self.watched.0.entry(hash).or_default();
        watched.watches += 1;
        self.is_observed = true;
        watched.changes
    }

    /// As often as [`Partition::watch`].
    pub fn unwatch(&mut self, hash: u64) {
        if let Some(watched) = self.watched.0.get_mut(&hash) {
            watched.watches -= 1;
            if watched.watches == 0 {
                self.watched.0.remove(&hash);
            }
        }
        self.is_observed =
            self.reuse.is_some() || self.backing.is_some() || !self.watched.0.is_empty();
    }

    /// Changes that were counted of a key that is watched.
    pub fn changes(&self, hash: u64) -> u64 {
        self.watched.0.get(&hash).map_or(0, |watched| watched.changes)
    }

    /// Counts a change of a key, if it is watched; what lies behind memory of it is over.
    pub fn note_change(&mut self, hash: u64) {
        self.outdate_behind(hash);
        if let Some(watched) = self.watched.0.get_mut(&hash) {
            watched.changes += 1;
        }
    }

    /// Whether so many bytes of items can be stored and nothing that lives goes for it.
    pub fn has_room_for(&mut self, bytes: u64, now: Millis) -> bool {
        let class = self.segments.class_of(0, now);
        let units = bytes.div_ceil(UNIT_BYTES.into()) as usize + 1;
        self.mode == Mode::Cache
            || bytes <= u64::from(self.segments.room(Stream::New, class))
            || self.make_room(Memory::Near, units, bytes, now).is_ok()
    }
}
