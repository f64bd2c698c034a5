//! Watches: whether a key was changed since
//! ([decision 0060](../../../../docs/decisions/0060-a-section-holds-keys.md)). In: a key. Out: a
//! [`Watch`]. Called by the servers. A partition counts stores and new expiries of a key while it
//! is watched; that an item is gone, for whatever reason, is seen when it is asked for.

use super::key::Key;
use super::{Cache, LockedPartition, Millis, Result};
use std::sync::Arc;

/// A key of a space, of which changes are counted until this is dropped.
#[derive(Debug)]
pub struct Watch {
    partitions: Arc<[LockedPartition]>,
    index: usize,
    hash: u64,
    key: Box<[u8]>,
    space: u8,
    changes: u64,
    was_there: bool,
}

impl Cache {
    /// Watches a key from now on.
    ///
    /// # Errors
    /// [`Error::KeySize`](super::Error::KeySize).
    pub fn watch(&self, key: &[u8], now: Millis) -> Result<Watch> {
        let hash = self.checked_hash(key)?;
        let index = self.index_of(hash);
        let mut partition = self.partitions[index].lock_key(hash, self.section);
        let was_there = partition.find_fresh(hash, self.key(key), now).is_some();
        let changes = partition.watch(hash);
        drop(partition);
        let (partitions, space) = (Arc::clone(&self.partitions), self.space);
        Ok(Watch { partitions, index, hash, key: key.into(), space, changes, was_there })
    }
}

impl Watch {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether there was an item when the watch began.
    pub fn was_there(&self) -> bool {
        self.was_there
    }

    /// Whether there is the same item, with the same expiry, as when the watch began, or still
    /// none, and was at all times between. Waits for no section.
    pub fn is_unchanged(&self, now: Millis) -> bool {
        let key = Key { bytes: &self.key, space: self.space };
        let mut partition = self.partitions[self.index].lock();
        partition.changes(self.hash) == self.changes
            && partition.find_fresh(self.hash, key, now).is_some() == self.was_there
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.partitions[self.index].lock().unwatch(self.hash);
    }
}
