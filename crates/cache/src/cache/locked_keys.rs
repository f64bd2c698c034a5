//! Several keys whose partitions are locked together: what is done to them is one step to others.
//! In: keys, each with the handle of its database. Out: an [`Entry`] of one of them at a time.
//!
//! Partitions are locked in the order of their numbers, so that two threads never wait for each
//! other.

use super::entry::Entry;
use super::error::Result;
use super::partition::Partition;
use super::{Cache, Millis, PARTITIONS_MAX};
use std::sync::MutexGuard;

/// See the module. No other call of the cache may be made by the thread that holds one.
#[derive(Debug)]
pub struct LockedKeys<'a> {
    /// By their numbers; `None` of the one whose entry is looked at.
    partitions: Vec<(usize, Option<MutexGuard<'a, Partition>>)>,
    now: Millis,
}

const _: () = assert!(PARTITIONS_MAX <= u64::BITS);

impl Cache {
    /// Locks the partitions of these keys.
    ///
    /// # Errors
    /// [`Error::KeySize`](super::Error::KeySize).
    pub fn lock_keys<'k>(
        &self,
        keys: impl IntoIterator<Item = (&'k Cache, &'k [u8])>,
        now: Millis,
    ) -> Result<LockedKeys<'_>> {
        let mut wanted = 0_u64;
        for (database, key) in keys {
            wanted |= 1 << self.index_of(database.checked_hash(key)?);
        }
        let numbers = (0..self.partitions.len()).filter(|number| wanted >> number & 1 == 1);
        let partitions = numbers.map(|number| (number, Some(self.lock(number)))).collect();
        Ok(LockedKeys { partitions, now })
    }
}

impl<'a> LockedKeys<'a> {
    /// Calls `f` with the entry of one of the keys.
    ///
    /// # Panics
    /// With a key that was not named.
    pub fn at<R>(
        &mut self,
        database: &Cache,
        key: &'a [u8],
        f: impl FnOnce(&mut Entry<'a>) -> R,
    ) -> R {
        let hash = database.hash(key);
        let number = database.index_of(hash);
        let found = self.partitions.iter_mut().find(|(index, _)| *index == number);
        let (_, place) = found.expect("the partition of each key is locked");
        let partition = place.take().expect("one entry is looked at at a time");
        let mut entry = Entry::new(partition, database.key(key), hash, self.now);
        let result = f(&mut entry);
        *place = Some(entry.into_partition());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Options;

    #[test]
    fn keys_of_several_databases_and_partitions_are_changed_in_one_step() {
        for partitions in [1, 4] {
            let options = Options { memory: 16 << 20, partitions, ..Options::default() };
            let cache = Cache::new(options).unwrap();
            let (one, other) = (cache.in_database(0), cache.in_database(1));
            let keys: Vec<Vec<u8>> = (0..40_u8).map(|key| vec![key; key.into()]).collect();
            let of = |database| keys.iter().map(move |key| (database, &key[..]));
            let named: Vec<(&Cache, &[u8])> = of(&one).chain(of(&other)).collect();
            let mut locked = cache.lock_keys(named.iter().copied(), 1).unwrap();
            for (database, key) in named {
                assert!(locked.at(database, key, |entry| entry.item().is_none()));
                locked.at(database, key, |entry| entry.put(&[b"value"], 0, 0)).unwrap();
                assert!(locked.at(database, key, |entry| entry.item().is_some()));
            }
            drop(locked);
            assert_eq!((cache.items_of(0), cache.items_of(1)), (40, 40));
            let long = [0; 40_000];
            assert!(cache.lock_keys([(&one, &long[..])], 1).is_err());
        }
    }
}
