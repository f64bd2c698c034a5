//! Look-ups of many keys whose memory accesses overlap: all buckets are asked for, then all items,
//! then the keys are compared. A wait for memory is paid once for a batch instead of twice a key.
//!
//! A loop that asks does little else (some 60 instructions for a short key): a processor looks only
//! some hundred instructions ahead, and what it has to translate (every access is to another page)
//! overlaps only within them. So no key is compared before all items are asked for; an item is
//! asked for as soon as its bucket has come.
//!
//! A batch under the lock of the one partition reads items where they lie; with several partitions,
//! or with shared reads, it reads copies without a lock (`view.rs`).
//!
//! Source: HERD §4.1 (prefetching behind other requests); its successor's passes over a batch.

use super::index;
use super::item::{Item, Origin};
use super::layout::{Header, Pos, Slot};
use super::partition::{Found, Partition};
use super::view::{self, Answer, Scratch, View};
use super::{Cache, Millis};
use rackpool_hw::window::{Bare, Window};
use std::cell::Cell;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keys whose accesses overlap. Processors have some 48 outstanding misses at most.
const BATCH: usize = 64;

/// Behind the first word of an item, the last byte that it pays to ask for before its length is
/// known.
pub(crate) const REACH_MAX: u64 = 56;

/// What is known of the keys of a batch so far.
pub(crate) struct Asked {
    hashes: [u64; BATCH],
    /// Where the bucket lies, then where the entry does.
    places: [u64; BATCH],
    /// Where the item lies, or the next bucket; 0 = nowhere. For who has no lock, a bucket is odd.
    items: [u64; BATCH],
    /// The last word of the bucket before it was looked into, for who has no lock.
    tails: [u64; BATCH],
}

impl Asked {
    pub const EMPTY: Asked =
        Asked { hashes: [0; BATCH], places: [0; BATCH], items: [0; BATCH], tails: [0; BATCH] };
}

/// The hash of a key; of one as long as most short keys are, without a call.
#[inline(always)]
fn hash_of(key: &[u8], seed: u64) -> u64 {
    match key.len() {
        9..=16 => xxh3_64_with_seed(key, seed),
        _ => hash_by_call(key, seed),
    }
}

/// Apart, so that the constants for all lengths are not kept in every loop over keys.
#[inline(never)]
fn hash_by_call(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}

impl Cache {
    /// Looks many keys up, prefetched together; `f` sees their items in order, under the lock of
    /// the partition if there is one alone, else copies of them, and must not call the cache.
    /// Counts as [`Cache::get`] does.
    pub fn get_many(
        &self,
        keys: &[&[u8]],
        now: Millis,
        mut f: impl FnMut(usize, Option<&Item<'_>>),
    ) {
        for (start, keys) in (0..).step_by(BATCH).zip(keys.chunks(BATCH)) {
            view::with_scratch(|scratch| {
                let Scratch { asked, copy } = scratch;
                match &*self.partitions {
                    [part] if !self.options.shared_reads => {
                        // Not out of the partition, which `get_batch` changes.
                        let units = part.view.bare();
                        part.lock().get_batch(units, (start, keys), now, asked, &mut f);
                    }
                    _ => self.get_shared((start, keys), now, (asked, copy), &mut f),
                }
            });
        }
    }

    /// A batch without locks, as far as that can be.
    #[inline(always)]
    fn get_shared(
        &self,
        (start, keys): (usize, &[&[u8]]),
        now: Millis,
        (asked, copy): (&mut Asked, &Window),
        f: &mut impl FnMut(usize, Option<&Item<'_>>),
    ) {
        self.ask_shared(keys, asked);
        let (mut hits, mut misses) = (0, 0);
        for (index, key) in keys.iter().enumerate() {
            let hash = asked.hashes[index];
            let part = &self.partitions[self.index_of(hash)];
            let (origin, mut held);
            let item = match part.view.settle((asked, index), key, now, copy) {
                Answer::Item(slot, header) => {
                    hits += 1;
                    let told = Cell::new(None);
                    origin = Origin { partition: &part.locked, hash, key, told };
                    Some(Item::copied(copy, (slot, header), &origin, now))
                }
                Answer::Missing => {
                    misses += 1;
                    part.view.sketch.missed(hash);
                    None
                }
                Answer::Unsure => {
                    held = part.lock();
                    held.look_up(hash, key, now).map(|found| held.item(found, now))
                }
            };
            f(start + index, item.as_ref());
        }
        self.tallies.add(hits, misses);
    }

    /// Asks for the bucket of a key: the first stage of a look-up.
    pub fn ask_bucket(&self, key: &[u8]) {
        let hash = self.hash(key);
        self.view_of(hash).ask_bucket(hash);
    }

    /// Looks into the bucket of a key and asks for its item: the second stage.
    pub fn ask_item(&self, key: &[u8]) {
        let hash = self.hash(key);
        let view = self.view_of(hash);
        let (.., item, _) = view.find_item(view.place_of(hash), hash);
        view.ask_for(item);
    }

    /// Asks for the memory that changes of these keys will touch: a wait for it is paid once.
    /// Changes and counts nothing.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        for keys in keys.chunks(BATCH) {
            view::with_scratch(|scratch| {
                self.ask_shared(keys, &mut scratch.asked);
            });
        }
    }

    #[inline(always)]
    fn view_of(&self, hash: u64) -> &View {
        &self.partitions[self.index_of(hash)].view
    }

    /// Asks for the buckets of these keys, and then for what they name.
    #[inline(never)]
    fn ask_shared(&self, keys: &[&[u8]], asked: &mut Asked) {
        for (index, key) in keys.iter().enumerate() {
            let hash = hash_of(key, self.options.seed);
            asked.hashes[index] = hash;
            asked.places[index] = self.view_of(hash).ask_bucket(hash);
        }
        for index in 0..keys.len() {
            let (place, hash) = (asked.places[index], asked.hashes[index]);
            let (tail, at, item, is_entry) = self.view_of(hash).find_item(place, hash);
            (asked.tails[index], asked.places[index]) = (tail, at);
            asked.items[index] = item | u64::from(!is_entry);
        }
        for index in 0..keys.len() {
            self.view_of(asked.hashes[index]).ask_for(asked.items[index]);
        }
    }
}

impl View {
    /// The item of a key that was asked for.
    #[inline(always)]
    fn settle(
        &self,
        (asked, index): (&Asked, usize),
        key: &[u8],
        now: Millis,
        copy: &Window,
    ) -> Answer {
        let (at, item) = (asked.places[index], asked.items[index]);
        if item & 1 == 0
            && let Some((slot, header)) = self.copy_plain(asked.tails[index], (at, item), key, copy)
        {
            return Answer::Item(slot, header);
        }
        self.look_up(asked.hashes[index], key, now, copy)
    }
}

impl Partition {
    /// A batch under the lock.
    #[inline(always)]
    fn get_batch(
        &mut self,
        units: Bare<'_>,
        (start, keys): (usize, &[&[u8]]),
        now: Millis,
        asked: &mut Asked,
        f: &mut impl FnMut(usize, Option<&Item<'_>>),
    ) {
        self.ask(keys, asked);
        let mut hits = 0;
        let places = asked.places.iter().zip(&asked.items).zip(&asked.hashes);
        for ((index, key), ((place, item), hash)) in keys.iter().enumerate().zip(places) {
            let item = match self.plain(units, (*place, *item), key, now) {
                Some((slot, header)) => {
                    hits += 1;
                    Some(Item::with_header(self, *place, slot, header, now))
                }
                None => {
                    let found = self.look_up_after_all(*hash, key, now);
                    found.map(|found| self.item(found, now))
                }
            };
            f(start + index, item.as_ref());
        }
        self.stats.hits += hits;
    }

    /// Asks for the buckets of these keys, and then for what they name.
    #[inline(never)]
    fn ask(&self, keys: &[&[u8]], asked: &mut Asked) {
        let units = self.units.bare();
        for ((key, hash), place) in keys.iter().zip(&mut asked.hashes).zip(&mut asked.places) {
            *hash = hash_of(key, self.seed);
            *place = self.index.bucket_at(*hash);
            units.prefetch(*place);
        }
        let mean_bytes = self.segments.live_bytes() / self.index.items().max(1);
        let reach = mean_bytes.saturating_sub(8).min(REACH_MAX);
        let mut behind = find_items(units, asked, keys.len(), reach);
        while behind != 0 {
            self.ask_behind(asked, behind.trailing_zeros() as usize);
            behind &= behind - 1;
        }
    }

    /// Finds the entry of a key in the bucket behind its first one, and asks for the item.
    #[cold]
    fn ask_behind(&self, asked: &mut Asked, index: usize) {
        let next = asked.items[index];
        asked.items[index] = 0;
        if next != 0 {
            let units = self.units.bare();
            let (at, item, is_entry) = index::probe(units, next, asked.hashes[index]);
            if is_entry {
                (asked.places[index], asked.items[index]) = (at, item);
                ask_for_item(units, item, REACH_MAX);
            }
        }
    }

    /// Slot and header of the item that was asked for, if it is this key's and lives; it is marked
    /// as used.
    #[inline(always)]
    fn plain(
        &self,
        units: Bare<'_>,
        (at, item): (u64, u64),
        key: &[u8],
        now: Millis,
    ) -> Option<(Slot, Header)> {
        // An earlier key of the batch may have removed an expired item and moved its neighbours,
        // or changed the slot: it is read again.
        let slot = Slot(units.load(at));
        if item == 0 || slot.pos() != Pos::of_byte(item) {
            return None;
        }
        let header = Header(units.load(item));
        if header.key_bytes() as usize != key.len()
            || !units.equals(item + u64::from(header.key_at()), key)
            || (header.has(Header::META) && self.is_expired(slot.pos(), now))
        {
            return None;
        }
        self.mark_used(at, slot, now);
        Some((slot, header))
    }

    #[cold]
    #[inline(never)]
    fn look_up_after_all(&mut self, hash: u64, key: &[u8], now: Millis) -> Option<Found> {
        self.look_up(hash, key, now)
    }
}

/// Finds the entries of the first `count` keys in their buckets and asks for the items; where there
/// is no entry, for the bucket behind. Of which keys that is, a bit each. Without branches: a
/// bucket may not have come yet, and a wrong guess would end all looking ahead.
#[inline(always)]
fn find_items(units: Bare<'_>, asked: &mut Asked, count: usize, reach: u64) -> u64 {
    let mut behind = 0;
    for index in 0..count {
        let (at, item, is_entry) = index::probe(units, asked.places[index], asked.hashes[index]);
        asked.places[index] = at;
        asked.items[index] = item;
        ask_for_item(units, item, reach);
        behind |= u64::from(!is_entry) << index;
    }
    behind
}

/// Asks for an item at `byte` whose last word lies so many bytes behind its first one, as a rule:
/// for two lines at most. Small items lie on two lines more often than on one.
#[inline(always)]
pub(crate) fn ask_for_item(units: Bare<'_>, byte: u64, reach: u64) {
    units.prefetch(byte);
    units.prefetch(byte + reach);
}
