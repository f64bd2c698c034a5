//! Databases: which space each of them is
//! ([decision 0059](../../../../docs/decisions/0059-a-database-is-a-byte-behind-the-key.md)). In:
//! orders to swap two, to flush one. Out: handles. The cache's file keeps the map, from its
//! superblock's page: twice, each with a check, as the timeline. Called by the servers.

mod census;

use super::backing::OpenBacking;
use super::key::PARTS;
use super::layout::mix;
use super::partition::SpaceSet;
use super::section::Sections;
use super::watch::Watches;
use super::{Cache, Entry, LockedPartition, Millis, Result};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Databases of a cache, at most.
pub const DATABASES_MAX: usize = 16;

/// Where the copies lie in the file, behind those of the timeline.
const COPIES_AT: [u64; 2] = [16_384, 20_480];
const WORDS: usize = 6;
const CHECK_AT: u64 = 8 * WORDS as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DatabaseMap {
    /// The space of each database.
    spaces: [u8; DATABASES_MAX],
    /// Spaces of no database that may still have items.
    left: SpaceSet,
    /// The space that was given last.
    last: u8,
}

impl Default for DatabaseMap {
    fn default() -> Self {
        let spaces = std::array::from_fn(|number| number as u8);
        Self { spaces, left: SpaceSet::default(), last: DATABASES_MAX as u8 - 1 }
    }
}

impl DatabaseMap {
    fn words(&self) -> [u64; WORDS] {
        let (low, high) = self.spaces.split_at(8);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let [a, b, c, d] = self.left.0;
        [word(low), word(high), a, b, c, d]
    }

    fn read(window: &Window) -> Option<DatabaseMap> {
        COPIES_AT.into_iter().find_map(|at| {
            let words: [u64; WORDS] =
                std::array::from_fn(|index| window.load(at + 8 * index as u64));
            let [low, high, left @ ..] = words;
            let mut spaces = [0; DATABASES_MAX];
            spaces[..8].copy_from_slice(&low.to_le_bytes());
            spaces[8..].copy_from_slice(&high.to_le_bytes());
            let last = spaces.into_iter().max().unwrap_or(0);
            let is_whole = window.load(at + CHECK_AT) == check_of(&words);
            is_whole.then_some(DatabaseMap { spaces, left: SpaceSet(left), last })
        })
    }

    fn write(&self, window: &Window) {
        let words = self.words();
        for at in COPIES_AT {
            (0..).zip(words).for_each(|(index, word)| window.store(at + 8 * index, word));
            window.store(at + CHECK_AT, check_of(&words));
        }
    }
}

/// Odd, so the check of words that were never written (0) fails.
fn check_of(words: &[u64; WORDS]) -> u64 {
    words.iter().fold(1, |sum, word| mix(sum, *word)) | 1
}

#[derive(Debug)]
pub(super) struct Databases {
    map: Mutex<DatabaseMap>,
    /// Counts the changes of the map.
    version: AtomicU64,
    pub sections: Arc<Sections>,
    pub watches: Arc<Watches>,
    /// What lies behind memory, once it is there.
    pub backing: OnceLock<Arc<OpenBacking>>,
}

impl Databases {
    /// Those of a file, or of a cache that is new; has what an earlier process left swept.
    pub fn of(file: Option<&Window>, partitions: &[LockedPartition]) -> Databases {
        let map = file.and_then(DatabaseMap::read).unwrap_or_default();
        if !map.left.is_empty() {
            partitions.iter().for_each(|part| part.lock().leave_spaces(map.left));
        }
        let (version, sections, watches, backing) = Default::default();
        Databases { map: Mutex::new(map), version, sections, watches, backing }
    }

    fn lock(&self) -> MutexGuard<'_, DatabaseMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    /// Changes whenever another space becomes a database: handles of [`Cache::in_database`] are to
    /// be made anew then.
    #[inline]
    pub fn databases_version(&self) -> u64 {
        // Acquire: pairs with the Release in `Cache::keep_map`; the map itself has a lock.
        self.databases.version.load(Ordering::Acquire)
    }

    /// The same cache, of which this handle sees database `number` alone, as it is now.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn in_database(&self, number: u8) -> Cache {
        let space = self.databases.lock().spaces[usize::from(number)];
        self.in_space(space)
    }

    /// Items of a database, expired ones that were not found yet included.
    pub fn items_of(&self, number: u8) -> u64 {
        let space = self.databases.lock().spaces[usize::from(number)];
        self.partitions.iter().map(|part| part.lock().items_in(space)).sum()
    }

    /// Each of the two databases has the other's items from now on.
    pub fn swap_databases(&self, one: u8, other: u8, now: Millis) {
        if one == other {
            return;
        }
        self.alone(|cache| {
            cache.change_spaces(&[one, other], now, || {
                let mut map = cache.databases.lock();
                map.spaces.swap(usize::from(one), usize::from(other));
                if one == 0 || other == 0 {
                    cache.forget_all_behind();
                }
                cache.keep_map(&map);
            });
        });
    }

    /// Everything that was stored before is gone when this returns, for all at once, however much
    /// it is; also for a later process. What it took comes back by [`Cache::tidy`], which is to be
    /// called then, or where room is needed; until then look-ups take the lock.
    pub fn flush_all(&self) {
        self.keep_for_streams();
        self.alone(|cache| {
            // No thread sees a part of it: one that meets a flushed partition waits for its lock.
            let mut all: Vec<_> = cache.partitions.iter().map(LockedPartition::lock).collect();
            all.iter_mut().for_each(|partition| partition.flush());
            cache.forget_all_behind();
        });
    }

    /// As [`Cache::flush_all`], and does what is left to do.
    pub fn clear(&self, now: Millis) {
        self.flush_all();
        self.expire(now);
    }

    /// Everything that a database has is gone when this returns, for all at once. What it took
    /// comes back by [`Cache::tidy`]; at once where so much was flushed before that no space is
    /// free.
    pub fn flush_database(&self, number: u8, now: Millis) {
        let others = (0..DATABASES_MAX as u8).filter(|other| *other != number);
        if others.map(|other| self.items_of(other)).sum::<u64>() == 0 {
            self.keep_for_streams();
        }
        self.alone(|cache| {
            let has_backing = cache.in_database(number).space == 0;
            cache.change_spaces(&[number], now, || {
                while !cache.try_flush(usize::from(number)) {
                    cache.expire(now);
                }
            });
            if has_backing {
                cache.forget_all_behind();
            }
        });
    }

    /// Flushes a database, if a space is free; else has those swept that may be.
    fn try_flush(&self, number: usize) -> bool {
        let mut map = self.databases.lock();
        // Nothing comes or goes meanwhile.
        let mut all: Vec<_> = self.partitions.iter().map(LockedPartition::lock).collect();
        let items = |space: u8| all.iter().map(|part| part.items_in(space)).sum::<u64>();
        let old = map.spaces[number];
        let is_alone = (1..DATABASES_MAX).all(|step| {
            let other = map.spaces[(number + step) % DATABASES_MAX];
            items(other) == 0
        });
        if items(old) == 0 {
            return true;
        }
        let is_free = |space: u8| {
            space != PARTS
                && !map.spaces.contains(&space)
                && items(space) == 0
                && !all.iter().any(|part| part.is_leaving(space))
        };
        let new = if is_alone && number == 0 && !map.spaces[1..].contains(&0) {
            0
        } else {
            let next = |step: u8| map.last.wrapping_add(step).max(1);
            let Some(new) = (1..=u8::MAX).map(next).find(|space| is_free(*space)) else {
                let left = map.left;
                all.iter_mut().for_each(|part| part.leave_spaces(left));
                return false;
            };
            map.last = new;
            new
        };
        if is_alone {
            all.iter_mut().for_each(|part| part.flush());
            map.left = SpaceSet::default();
        }
        map.spaces[number] = new;
        map.left.set(new, false);
        if old != new {
            // Also what a thread stores there that does not know of it yet.
            map.left.set(old, true);
            let mut leaving = SpaceSet::default();
            leaving.set(old, true);
            all.iter_mut().for_each(|part| part.leave_spaces(leaving));
        }
        self.keep_map(&map);
        true
    }

    fn keep_map(&self, map: &DatabaseMap) {
        if let Some(file) = &self.file {
            map.write(&file.0);
        }
        if let Some(backing) = self.databases.backing.get() {
            backing.set_open(map.spaces[0] == 0);
        }
        // Release: pairs with the Acquire in `Cache::databases_version`.
        self.databases.version.fetch_add(1, Ordering::Release);
    }

    /// Moves an item to another database, `to`, if it has none of that key; whether it was moved.
    ///
    /// # Errors
    /// As [`Cache::set`], and [`Error::LargeHash`](super::Error::LargeHash): the item stays where
    /// it is.
    pub fn move_to(&self, to: &Cache, key: &[u8], now: Millis) -> Result<bool> {
        let (hash, hash_to) = (self.checked_hash(key)?, to.checked_hash(key)?);
        let (index, index_to) = (self.index_of(hash), self.index_of(hash_to));
        let (source, target) = loop {
            // In the order of their numbers: two that move items both ways do not wait for each
            // other.
            let first = self.lock(index.min(index_to));
            let second = (index != index_to).then(|| self.lock(index.max(index_to)));
            let (source, target) = match second {
                Some(second) if index_to < index => (second, Some(first)),
                second => (first, second),
            };
            let held_to = target.as_ref().unwrap_or(&source).holder(hash_to, self.section);
            match source.holder(hash, self.section).or(held_to) {
                None => break (source, target),
                Some(held) => {
                    drop((source, target));
                    held.wait();
                }
            }
        };
        let entry = Entry::new(source, self.key(key), hash, now);
        let Some(item) = entry.item() else { return Ok(false) };
        let (flags, expires, mut value) = (item.flags(), item.expires(), Vec::new());
        item.append_raw_to(&mut value)?;
        let is_typed = item.is_typed();
        let source = entry.into_partition();
        let (target, source) = match target {
            Some(target) => (target, Some(source)),
            None => (source, None),
        };
        let mut entry = Entry::new(target, to.key(key), hash_to, now);
        if entry.item().is_some() {
            return Ok(false);
        }
        entry.put_raw(&value, is_typed, flags, expires)?;
        // The target stays locked until the item has left its place.
        let (source, _target) = match source {
            Some(source) => (source, Some(entry)),
            None => (entry.into_partition(), None),
        };
        Entry::new(source, self.key(key), hash, now).remove();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Options, PartitionShare};

    fn cache(partitions: u32) -> Cache {
        Cache::new(Options { memory: 16 << 20, partitions, ..Options::default() }).unwrap()
    }

    fn has(cache: &Cache, number: u8, key: &[u8]) -> bool {
        cache.in_database(number).get(key, 1, |_| ()).is_some()
    }

    #[test]
    fn one_database_is_flushed_and_the_others_stay() {
        for partitions in [1, 4] {
            let cache = cache(partitions);
            for number in [0, 1, 2] {
                for key in 0..500_u32 {
                    let database = cache.in_database(number);
                    database.set(&key.to_le_bytes(), b"value", 0, 0, 1).unwrap();
                }
            }
            for number in [1, 0] {
                let version = cache.databases_version();
                assert_eq!(cache.items_of(number), 500);
                cache.flush_database(number, 1);
                assert!(cache.databases_version() > version);
                assert_eq!(cache.items_of(number), 0);
                assert!(!has(&cache, number, &7_u32.to_le_bytes()));
                cache.in_database(number).set(b"new", b"value", 0, 0, 1).unwrap();
                cache.tidy(PartitionShare::ALL, 1, || true);
                assert!(has(&cache, number, b"new") && has(&cache, 2, &7_u32.to_le_bytes()));
                assert_eq!((cache.items_of(number), cache.items_of(2)), (1, 500));
            }
            assert_eq!(cache.len(), 502);
            // The last one that has items is flushed at once.
            [1, 2, 0].into_iter().for_each(|number| cache.flush_database(number, 1));
            cache.tidy(PartitionShare::ALL, 1, || true);
            assert_eq!(cache.len(), 0);
            assert_eq!(cache.databases.lock().spaces[0], 0);
        }
    }

    #[test]
    fn a_database_is_flushed_more_often_than_there_are_spaces() {
        let cache = cache(1);
        cache.set(b"stays", b"value", 0, 0, 1).unwrap();
        for round in 0..600 {
            cache.in_database(3).set(b"key", b"value", 0, 0, 1).unwrap();
            cache.flush_database(3, 1);
            assert!(!has(&cache, 3, b"key"), "{round}");
            // Also where they are not swept in between.
            if round % 2 == 0 && round < 300 {
                cache.tidy(PartitionShare::ALL, 1, || true);
            }
        }
        cache.tidy(PartitionShare::ALL, 1, || true);
        assert!(has(&cache, 0, b"stays") && cache.len() == 1);
    }

    #[test]
    fn databases_are_swapped_and_items_move_between_them() {
        for partitions in [1, 4] {
            let cache = cache(partitions);
            for key in 0..100_u32 {
                let key = key.to_le_bytes();
                let (from, to) = (cache.in_database(0), cache.in_database(5));
                from.set(&key, b"value", 7, 900, 1).unwrap();
                assert!(from.move_to(&to, &key, 1).unwrap());
                let moved = to.get(&key, 1, |item| (item.flags(), item.expires()));
                assert_eq!((moved, has(&cache, 0, &key)), (Some((7, 900)), false));
                assert!(!from.move_to(&to, &key, 1).unwrap());
                from.set(&key, b"other", 0, 0, 1).unwrap();
                assert!(!from.move_to(&to, &key, 1).unwrap() && has(&cache, 0, &key));
                from.remove(&key, 1);
            }
            cache.swap_databases(0, 5, 1);
            assert_eq!((cache.items_of(0), cache.items_of(5)), (100, 0));
            assert!(has(&cache, 0, &7_u32.to_le_bytes()));
        }
    }
}
