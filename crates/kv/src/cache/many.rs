//! Look-ups of many keys whose memory accesses overlap: all buckets are asked for, then all items,
//! then the keys are compared. A wait for memory is paid once for a batch instead of twice a key.
//!
//! Source: HERD §4.1 (prefetching behind other requests); its successor's passes over a batch.

use super::index;
use super::item::Item;
use super::layout::{Header, Pos, Slot};
use super::partition::Partition;
use super::view::{self, View};
use super::{Cache, Millis};
use rackpool_core::seam::Mem;
use std::sync::MutexGuard;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keys whose accesses overlap. Processors have some 48 outstanding misses at most.
const BATCH: usize = 64;

/// What is known of the keys of a batch so far.
struct Asked {
    hashes: [u64; BATCH],
    /// Where the bucket lies, then where the entry does.
    places: [u64; BATCH],
    /// Where the item lies, or the next bucket; 0 = nowhere.
    items: [u64; BATCH],
}

impl Cache {
    /// Looks many keys up, prefetched together; `f` sees their items in order, under the locks of
    /// all their partitions (with [`Options::shared_reads`](super::Options::shared_reads) copies of
    /// them, one after the other), and must not call the cache. Counts as [`Cache::get`] does.
    pub fn get_many(
        &self,
        keys: &[&[u8]],
        now: Millis,
        mut f: impl FnMut(usize, Option<&Item<'_>>),
    ) {
        for (start, keys) in (0..).step_by(BATCH).zip(keys.chunks(BATCH)) {
            if self.options.shared_reads {
                self.get_shared(keys, now, |index, item| f(start + index, item));
            } else if let [part] = &*self.partitions {
                let mut partition = part.lock();
                let seed = self.options.seed;
                let hash_of = |key: &[u8]| xxh3_64_with_seed(key, seed);
                partition.look_up_batch(keys, hash_of, now, |index, item| f(start + index, item));
            } else {
                self.get_some(keys, now, |index, item| f(start + index, item));
            }
        }
    }

    /// Asks for the bucket of a key: the first stage of a look-up.
    pub fn ask_bucket(&self, key: &[u8]) {
        let hash = self.hash(key);
        self.view_of(hash).ask_bucket(hash);
    }

    /// Looks into the bucket of a key and asks for its item: the second stage.
    pub fn ask_item(&self, key: &[u8]) {
        let hash = self.hash(key);
        self.view_of(hash).ask_item(hash);
    }

    #[inline(always)]
    fn view_of(&self, hash: u64) -> &View {
        &self.partitions[self.index_of(hash)].view
    }

    /// Asks for the memory that changes of these keys will touch: a wait for it is paid once.
    /// Changes and counts nothing.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        for keys in keys.chunks(BATCH) {
            let mut hashes = [0; BATCH];
            self.ask_for_all(keys, &mut hashes);
        }
    }

    /// Asks for the buckets of these keys, and then for what they name; their hashes.
    #[inline(always)]
    fn ask_for_all(&self, keys: &[&[u8]], hashes: &mut [u64; BATCH]) {
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(key);
            self.view_of(*hash).ask_bucket(*hash);
        }
        let hashes = &hashes[..keys.len()];
        hashes.iter().for_each(|hash| self.view_of(*hash).ask_item(*hash));
    }

    /// A batch without locks.
    fn get_shared(&self, keys: &[&[u8]], now: Millis, mut f: impl FnMut(usize, Option<&Item<'_>>)) {
        let mut hashes = [0; BATCH];
        self.ask_for_all(keys, &mut hashes);
        let counts = view::with_copy(|copy| {
            let mut counts = [0; 2];
            for (index, (key, hash)) in keys.iter().zip(&hashes).enumerate() {
                let part = &self.partitions[self.index_of(*hash)];
                let found = |item: &Item<'_>| f(index, Some(item));
                let (found, [hits, misses]) = part.get_shared((*hash, key), now, copy, found);
                if found.is_none() {
                    f(index, None);
                }
                counts = [counts[0] + hits, counts[1] + misses];
            }
            counts
        });
        self.tallies.add(counts[0], counts[1]);
    }

    /// A batch over several partitions.
    fn get_some(&self, keys: &[&[u8]], now: Millis, mut f: impl FnMut(usize, Option<&Item<'_>>)) {
        let mut hashes = [0; BATCH];
        let mut wanted = 0_u64;
        for (key, hash) in keys.iter().zip(&mut hashes) {
            *hash = self.hash(key);
            wanted |= 1 << self.index_of(*hash);
        }
        // Always in ascending order, so that nobody waits in a circle.
        let mut partitions: Vec<Option<MutexGuard<'_, Partition>>> = Vec::new();
        partitions.extend(
            (0..self.partitions.len())
                .map(|index| (wanted & (1 << index) != 0).then(|| self.lock(index))),
        );
        let mut candidates = [Candidate::None; BATCH];
        let places = hashes.map(|hash| self.index_of(hash));
        for index in 0..keys.len() {
            let partition = partitions[places[index]].as_ref().expect("locked above");
            candidates[index] = partition.ask_bucket(hashes[index]);
        }
        // A bucket and, rarely, the one behind it.
        for _ in 0..2 {
            for index in 0..keys.len() {
                let partition = partitions[places[index]].as_ref().expect("locked above");
                candidates[index] = partition.ask_item(hashes[index], candidates[index]);
            }
        }
        for index in 0..keys.len() {
            let partition = partitions[places[index]].as_mut().expect("locked above");
            let key = (hashes[index], keys[index]);
            partition.settle(key, candidates[index], now, |item| f(index, item));
        }
    }
}

/// What is known of a key so far.
#[derive(Clone, Copy)]
enum Candidate {
    /// Its bucket is on its way.
    Bucket(u64),
    /// The first entry with its tag; the item is on its way.
    Entry(u64, Pos),
    /// No entry.
    None,
}

impl Partition {
    /// Asks for the bucket of `hash`.
    #[inline(always)]
    fn ask_bucket(&self, hash: u64) -> Candidate {
        let at = self.index.bucket_at(hash);
        self.units.prefetch(at);
        Candidate::Bucket(at)
    }

    /// Looks into the bucket, and asks for what comes next: an item, or another bucket.
    #[inline(always)]
    fn ask_item(&self, hash: u64, candidate: Candidate) -> Candidate {
        let Candidate::Bucket(at) = candidate else { return candidate };
        if let Some((slot_at, byte)) = self.entry_in(hash, at) {
            self.ask_for_item(byte);
            return Candidate::Entry(slot_at, Pos::of_byte(byte));
        }
        match index::link_at(&self.units, at) {
            Some(next) => {
                self.units.prefetch(next);
                Candidate::Bucket(next)
            }
            None => Candidate::None,
        }
    }

    /// Calls `f` with what the key's item is after all, counted.
    #[inline(always)]
    fn settle(
        &mut self,
        (hash, key): (u64, &[u8]),
        candidate: Candidate,
        now: Millis,
        f: impl FnOnce(Option<&Item<'_>>),
    ) {
        // An earlier key of the batch may have removed an expired item and moved its neighbours,
        // or changed the slot: it is read again.
        if let Candidate::Entry(at, pos) = candidate {
            let (current, header) = (self.index.slot_at(at), self.header(pos));
            let key_at = pos.byte() + u64::from(header.key_at());
            if current.pos() == pos
                && header.key_bytes() as usize == key.len()
                && self.units.equals(key_at, key)
                && !(header.has(Header::META) && self.is_expired(pos, now))
            {
                self.count_hit(at, current, now);
                return f(Some(&Item::with_header(self, at, current, header, now)));
            }
        }
        match self.look_up(hash, key, now) {
            Some(found) => f(Some(&self.item(found, now))),
            None => f(None),
        }
    }

    /// A batch in this partition. Each pass asks in a loop of its own that does nothing else: a
    /// processor looks only some hundred instructions ahead, and what it has to translate (every
    /// access is to another page) overlaps only within them.
    #[inline(always)]
    fn look_up_batch(
        &mut self,
        keys: &[&[u8]],
        hash_of: impl Fn(&[u8]) -> u64,
        now: Millis,
        mut f: impl FnMut(usize, Option<&Item<'_>>),
    ) {
        let mut asked = Asked { hashes: [0; BATCH], places: [0; BATCH], items: [0; BATCH] };
        for (hash, key) in asked.hashes.iter_mut().zip(keys) {
            *hash = hash_of(key);
        }
        for (place, hash) in asked.places.iter_mut().zip(&asked.hashes[..keys.len()]) {
            *place = self.index.bucket_at(*hash);
            self.units.prefetch(*place);
        }
        let behind = self.ask_items(&mut asked, keys.len());
        self.ask_behind(&mut asked, behind);
        for (index, key) in keys.iter().enumerate() {
            let candidate = match asked.items[index] {
                0 => Candidate::None,
                byte => Candidate::Entry(asked.places[index], Pos::of_byte(byte)),
            };
            self.settle((asked.hashes[index], key), candidate, now, |item| f(index, item));
        }
    }

    /// Finds the entries of the first `count` keys in their buckets and asks for the items; where
    /// there is none, for the bucket behind. Of which keys that is, a bit each. Without branches:
    /// a bucket may not have come yet, and a wrong guess would end all looking ahead.
    #[inline(always)]
    fn ask_items(&self, asked: &mut Asked, count: usize) -> u64 {
        let mut behind = 0;
        for index in 0..count {
            let (at, word, is_entry) = self.index.probe(asked.places[index], asked.hashes[index]);
            asked.places[index] = at;
            asked.items[index] = word;
            behind |= u64::from(!is_entry) << index;
            self.ask_for_item(word);
        }
        behind
    }

    /// Finds the entries of these keys in the buckets behind theirs, and asks for the items.
    #[inline(always)]
    fn ask_behind(&self, asked: &mut Asked, mut behind: u64) {
        while behind != 0 {
            let index = behind.trailing_zeros() as usize;
            behind &= behind - 1;
            let next = asked.items[index];
            let entry = if next == 0 { None } else { self.entry_in(asked.hashes[index], next) };
            (asked.places[index], asked.items[index]) = entry.unwrap_or((0, 0));
            self.ask_for_item(asked.items[index]);
        }
    }

    #[inline(always)]
    fn ask_for_item(&self, byte: u64) {
        // Small items lie on two lines more often than on one.
        self.units.prefetch(byte);
        self.units.prefetch((byte + 63).min(self.units.bytes()));
    }

    /// The first entry with the tag of `hash` in the bucket at `at`: its place, and its item's.
    #[inline(always)]
    fn entry_in(&self, hash: u64, at: u64) -> Option<(u64, u64)> {
        let found = index::matches(&self.units, at, hash);
        if found == 0 {
            return None;
        }
        let slot_at = at + 8 * u64::from(found.trailing_zeros());
        Some((slot_at, Slot(self.units.load(slot_at)).pos().byte()))
    }
}
