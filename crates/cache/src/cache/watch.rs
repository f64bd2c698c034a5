//! Watches: whether a key was changed since
//! ([decision 0060](../../../../docs/decisions/0060-a-section-holds-keys.md)). In: a key of a
//! database. Out: a [`Watch`]. Called by the servers.
//!
//! A partition counts stores and new expiries of a key while it is watched; that an item is gone,
//! for whatever reason, is seen when it is asked for. Where a database gets another space, its
//! watches follow.

use super::databases::Databases;
use super::key::Key;
use super::{Cache, LockedPartition, Millis, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A key of a database, of which changes are counted until this is dropped.
#[derive(Debug)]
pub struct Watch {
    partitions: Arc<[LockedPartition]>,
    databases: Arc<Databases>,
    number: u64,
    watched: Arc<WatchedKey>,
}

#[derive(Debug)]
struct WatchedKey {
    database: u8,
    key: Box<[u8]>,
    was_there: bool,
    /// Whether it was flushed or swapped away, or was changed before.
    is_changed: AtomicBool,
    /// None once the watch is over.
    place: Mutex<Option<WatchedPlace>>,
}

/// Where changes are counted.
#[derive(Clone, Copy, Debug)]
struct WatchedPlace {
    partition: usize,
    hash: u64,
    space: u8,
    /// Those that were counted before.
    changes: u64,
}

/// All watches of a cache.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<NumberedWatches>);

#[derive(Debug, Default)]
struct NumberedWatches {
    last: u64,
    all: BTreeMap<u64, Arc<WatchedKey>>,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, NumberedWatches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchedKey {
    fn place(&self) -> MutexGuard<'_, Option<WatchedPlace>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_changed(&self) {
        // Release: pairs with the Acquire in `Watch::is_unchanged`.
        self.is_changed.store(true, Ordering::Release);
    }
}

impl Cache {
    /// Watches a key of database `number` from now on.
    ///
    /// # Errors
    /// [`Error::KeySize`](super::Error::KeySize).
    ///
    /// # Panics
    /// If there are not so many databases.
    pub fn watch(&self, number: u8, key: &[u8], now: Millis) -> Result<Watch> {
        self.checked_hash(key)?;
        loop {
            let version = self.databases_version();
            let watch = self.in_database(number).watch_here(number, key, now);
            // Else the database has another space, which this one may not have followed to.
            if version == self.databases_version() {
                return Ok(watch);
            }
        }
    }

    /// Watches a key of the space of this handle, which is that of database `number`.
    fn watch_here(&self, number: u8, key: &[u8], now: Millis) -> Watch {
        let hash = self.hash(key);
        let index = self.index_of(hash);
        let mut partition = self.partitions[index].lock_key(hash, self.section);
        let was_there = partition.find_fresh(hash, self.key(key), now).is_some();
        let changes = partition.watch(hash);
        drop(partition);
        let place = WatchedPlace { partition: index, hash, space: self.space, changes };
        let watched = Arc::new(WatchedKey {
            database: number,
            key: key.into(),
            was_there,
            is_changed: AtomicBool::new(false),
            place: Mutex::new(Some(place)),
        });
        let mut watches = self.databases.watches.lock();
        watches.last += 1;
        let number = watches.last;
        watches.all.insert(number, Arc::clone(&watched));
        drop(watches);
        let (partitions, databases) = (Arc::clone(&self.partitions), Arc::clone(&self.databases));
        Watch { partitions, databases, number, watched }
    }

    /// Has `change` give other spaces to these databases; a key that any of them had before is
    /// changed by that, as in Redis. The caller holds all keys.
    pub(super) fn change_spaces(&self, numbers: &[u8], now: Millis, change: impl FnOnce()) {
        let watches = self.databases.watches.lock();
        let are_meant = |it: &&Arc<WatchedKey>| numbers.contains(&it.database);
        let meant: Vec<_> = watches.all.values().filter(are_meant).cloned().collect();
        drop(watches);
        for watched in &meant {
            let has = |number: &u8| {
                let entry = self.in_database(*number);
                entry.entry(&watched.key, now).is_ok_and(|entry| entry.item().is_some())
            };
            if numbers.iter().any(has) {
                watched.set_changed();
            }
        }
        change();
        meant.iter().for_each(|watched| self.in_database(watched.database).follow(watched));
    }

    /// Counts changes of a watched key in the space of this handle from now on.
    fn follow(&self, watched: &WatchedKey) {
        let mut place = watched.place();
        let Some(before) = *place else { return };
        let mut left = self.partitions[before.partition].lock();
        if left.changes(before.hash) != before.changes {
            watched.set_changed();
        }
        left.unwatch(before.hash);
        drop(left);
        let hash = self.hash(&watched.key);
        let partition = self.index_of(hash);
        let changes = self.partitions[partition].lock().watch(hash);
        *place = Some(WatchedPlace { partition, hash, space: self.space, changes });
    }
}

impl Watch {
    /// The number of the database, and the key.
    pub fn key(&self) -> (u8, &[u8]) {
        (self.watched.database, &self.watched.key)
    }

    /// Whether there is the same item, with the same expiry, as when the watch began, or still
    /// none, and was at all times between. Waits for no section.
    pub fn is_unchanged(&self, now: Millis) -> bool {
        let place = self.watched.place().expect("it is not over");
        let key = Key { bytes: &self.watched.key, space: place.space };
        let mut partition = self.partitions[place.partition].lock();
        // Acquire: pairs with the Release in `WatchedKey::set_changed`.
        !self.watched.is_changed.load(Ordering::Acquire)
            && partition.changes(place.hash) == place.changes
            && partition.find_fresh(place.hash, key, now).is_some() == self.watched.was_there
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // First: it follows no more.
        self.databases.watches.lock().all.remove(&self.number);
        let mut place = self.watched.place();
        if let Some(place) = place.take() {
            self.partitions[place.partition].lock().unwatch(place.hash);
        }
    }
}
