//! Items that went for want of room, while that is watched: noted under the lock, up to a limit,
//! and taken later by a thread that tells of them.

use crate::cache::partition::{Found, Partition};
use crate::cache::{Cache, Millis};

/// Items that a partition notes until they are taken.
const NOTED_MAX: usize = 256;

/// An item that went for want of room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictedItem {
    /// Its key.
    pub key: Vec<u8>,
    /// Length of its value, bytes.
    pub bytes: u64,
    /// When it would have expired; 0 = never.
    pub expires: Millis,
    /// As [`Meta::idle_s`](crate::Meta::idle_s).
    pub idle_s: u32,
    /// Whether it was read since it was stored.
    pub fetched: bool,
}

#[derive(Debug, Default)]
pub(crate) struct EvictedItems {
    is_watched: bool,
    /// Whether items may go on behind memory.
    has_backing: bool,
    /// Whether one of both is so.
    is_wanted: bool,
    /// With their spaces.
    items: Vec<(u8, EvictedItem)>,
    /// Those that found no room.
    dropped: u64,
}

impl EvictedItems {
    /// Where items may go on behind memory.
    pub(crate) fn for_backing() -> EvictedItems {
        EvictedItems { has_backing: true, is_wanted: true, ..EvictedItems::default() }
    }
}

impl Partition {
    /// An item is about to go for want of room.
    #[inline]
    pub(crate) fn note_evicted(&mut self, found: Found, now: Millis) {
        if self.evicted.is_wanted {
            self.note_evicted_item(found, now);
        }
    }

    #[cold]
    fn note_evicted_item(&mut self, found: Found, now: Millis) {
        self.keep_behind(found, now);
        if !self.evicted.is_watched {
            return;
        }
        if self.evicted.items.len() >= NOTED_MAX {
            self.evicted.dropped += 1;
            return;
        }
        let item = self.item(found, now);
        let (space, key, meta) = (item.space(), item.key(), item.meta_in_passing());
        let (bytes, expires, idle_s, fetched) = (meta.len, meta.expires, meta.idle_s, meta.fetched);
        self.evicted.items.push((space, EvictedItem { key, bytes, expires, idle_s, fetched }));
    }
}

impl Cache {
    /// Notes items that go for want of room from now on, or no more.
    pub fn watch_evictions(&self, is_watched: bool) {
        for index in 0..self.partitions.len() {
            let mut partition = self.lock(index);
            let evicted = &mut partition.evicted;
            if evicted.is_watched != is_watched {
                let has_backing = evicted.has_backing;
                let is_wanted = is_watched || has_backing;
                let none = EvictedItems::default();
                *evicted = EvictedItems { is_watched, has_backing, is_wanted, ..none };
            }
        }
    }

    /// Calls `f` with the items of this space that went since the last time; how many of all spaces
    /// were not noted, since a partition notes 256.
    pub fn take_evicted(&self, mut f: impl FnMut(&EvictedItem)) -> u64 {
        let mut dropped = 0;
        for index in 0..self.partitions.len() {
            let mut partition = self.lock(index);
            dropped += std::mem::take(&mut partition.evicted.dropped);
            let items = std::mem::take(&mut partition.evicted.items);
            drop(partition);
            let own = items.iter().filter(|(space, _)| *space == self.space);
            own.for_each(|(_, item)| f(item));
        }
        dropped
    }
}
