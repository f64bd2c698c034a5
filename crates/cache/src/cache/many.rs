//! Look-ups and changes of many keys with overlapping memory accesses: all buckets are prefetched,
//! then all items, then the keys are compared. A wait for memory is paid once for a batch instead
//! of twice a key.
//!
//! A loop that asks does nothing else, in as few instructions as can be: a processor looks some 300
//! instructions ahead, and what it is asked for has to be translated first (every access is to
//! another page), which overlaps only within them. (Measured on AMD Zen 4: 43 ns each, so that an
//! instruction costs 0.13 ns there, and 0.06 elsewhere.) So no key is compared before all items are
//! asked for; an item is asked for as soon as its bucket has come; and uses are marked while the
//! items are on their way. The closure is called at one place alone, for it to be inlined. Items
//! behind overflow buckets come a wait later than the others: a caller that needs no order gets
//! them last.
//!
//! A batch under the lock of the one partition reads items where they lie; with several partitions,
//! or with shared reads, it reads copies without a lock (`view.rs`). Values are stored one after
//! the other, under one lock as long as the partition stays the same.
//!
//! Source: HERD §4.1 (prefetching behind other requests); its successor's passes over a batch.

use super::index::{self, flat_at};
use super::item::{Item, Origin};
use super::key::Key;
use super::layout::{BUCKET_BYTES, Header, PLAIN_KEY_AT, Slot, tag_in_slot};
use super::partition::{Found, Partition};
use super::view::{
    COPIED_BYTES_MAX, PartitionView, ProbedItem, REACH_MAX, UnlockedLookup, ask_for_item,
};
use super::{Cache, Entry, LockedPartition, Millis, Result};
use rackpool_mem::window::{Bare, Wide, Window};
use std::cell::Cell;
use std::ops::Range;
use std::sync::MutexGuard;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keys looked up with overlapping accesses. Processors have some 48 outstanding misses at most.
const BATCH: usize = 64;

/// What is known of the keys of a batch so far.
struct Asked {
    hashes: [u64; BATCH],
    /// Where the bucket lies, then where the entry does.
    places: [u64; BATCH],
    /// The tag, then the entry, 0 if there is none; without the lock, the last word of the bucket
    /// before it was looked into.
    words: [u64; BATCH],
    /// Without the lock: where the item lies, or the next bucket, which is odd. With it, and far
    /// memory emulated: what was asked for.
    items: [u64; BATCH],
    /// With the lock: the keys in the order in which their items were prefetched.
    order: [u8; BATCH],
}

impl Asked {
    const EMPTY: Asked = Asked {
        hashes: [0; BATCH],
        places: [0; BATCH],
        words: [0; BATCH],
        items: [0; BATCH],
        order: [0; BATCH],
    };
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

pub(super) struct Scratch {
    pub copy: Window,
    asked: Asked,
}

/// Calls `f` with this thread's memory for look-ups.
#[inline]
pub(super) fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    let mut scratch = SCRATCH.take().unwrap_or_else(new_scratch);
    let result = f(&mut scratch);
    SCRATCH.set(Some(scratch));
    result
}

#[cold]
fn new_scratch() -> Box<Scratch> {
    let copy = Window::heap(u64::from(COPIED_BYTES_MAX));
    Box::new(Scratch { copy, asked: Asked::EMPTY })
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

/// A value to be stored by [`Cache::set_many`], as [`Cache::set`] takes it.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The caller's flags.
    pub flags: u32,
    /// When it expires; 0 = never.
    pub expires: Millis,
}

impl Cache {
    /// Looks many keys up, prefetched together; `f` sees their items in order, under the lock of
    /// the partition if there is one alone, else copies of them, and must not call the cache.
    /// Counts as [`Cache::get`] does.
    pub fn get_many(&self, keys: &[&[u8]], now: Millis, f: impl FnMut(usize, Option<&Item<'_>>)) {
        match self.space {
            0 => self.look_many_up::<true, false>(keys, now, f),
            _ => self.look_many_up::<true, true>(keys, now, f),
        }
    }

    /// As [`Cache::get_many`], but `f` may see the items of up to 64 keys in any order: first those
    /// that come first out of memory. For callers that tell them apart by their index.
    pub fn get_many_unordered(
        &self,
        keys: &[&[u8]],
        now: Millis,
        f: impl FnMut(usize, Option<&Item<'_>>),
    ) {
        match self.space {
            0 => self.look_many_up::<false, false>(keys, now, f),
            _ => self.look_many_up::<false, true>(keys, now, f),
        }
    }

    fn look_many_up<const ORDERED: bool, const SPACED: bool>(
        &self,
        keys: &[&[u8]],
        now: Millis,
        mut f: impl FnMut(usize, Option<&Item<'_>>),
    ) {
        // Under the lock where there is one alone.
        let lone = match &*self.partitions {
            [part] if !self.options.shared_reads => Some(part),
            _ => None,
        };
        for (start, keys) in (0..).step_by(BATCH).zip(keys.chunks(BATCH)) {
            with_scratch(|scratch| {
                let Scratch { asked, copy } = scratch;
                // Where items lie.
                let units = lone.map_or_else(|| copy.bare(), |part| part.view.bare());
                let (seed, section) = (self.seed, self.section);
                let mut locked = lone.map(|part| Locked::new(part, keys, seed, section, asked));
                if locked.is_none() {
                    self.ask_shared(keys, asked);
                }
                let is_emulated =
                    locked.as_ref().is_some_and(|locked| locked.partition.emulation.is_some());
                let (mut hits, mut misses) = (0, 0);
                for nth in 0..keys.len().min(BATCH) {
                    let is_nth = ORDERED || locked.is_none();
                    let index = if is_nth { nth } else { usize::from(asked.order[nth]) };
                    // Where the space is 0 no instruction asks for it.
                    let space = if SPACED { self.space } else { 0 };
                    let key = Key { bytes: keys[index], space };
                    let (part, origin);
                    let mut held: Option<(MutexGuard<'_, Partition>, Option<Found>)> = None;
                    let item = match &mut locked {
                        Some(locked) => locked.settle(units, asked, index, key, now),
                        None => {
                            let hash = asked.hashes[index];
                            part = &self.partitions[self.index_of(hash)];
                            match part.view.settle(asked, index, key, now, copy) {
                                UnlockedLookup::Item(slot, header) => {
                                    hits += 1;
                                    let told = Cell::new(None);
                                    origin = Origin { partition: &part.locked, hash, key, told };
                                    Some(Item::copied(units, slot, header, &origin, now))
                                }
                                UnlockedLookup::Missing => {
                                    misses += 1;
                                    part.view.sketch.missed(hash);
                                    None
                                }
                                UnlockedLookup::Unsure => {
                                    let mut partition = part.lock_key(hash, self.section);
                                    let found = partition.look_up(hash, key, now);
                                    let (partition, found) = held.insert((partition, found));
                                    found.map(|found| partition.item(found, now))
                                }
                            }
                        }
                    };
                    if is_emulated && let Some(item) = &item {
                        item.wait_for_far(asked.behind(nth + 1..keys.len(), is_nth));
                    }
                    f(start + index, item.as_ref());
                    if let Some((mut partition, Some((_, slot)))) = held {
                        partition.sample_if_due(slot.pos(), now);
                    }
                }
                match &mut locked {
                    Some(locked) => locked.count(asked, keys.len(), now),
                    None => {
                        if let Some(sample) = self.counters.add(hits, misses) {
                            self.sample(keys, &sample, now);
                        }
                    }
                }
                drop(locked);
                self.note_reads(keys, &asked.hashes);
            });
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
        let view = self.view_of(hash);
        let (probed, _) = view.find_item(view.place_of(hash), hash);
        view.ask_for(probed.item);
    }

    /// Asks for the memory that changes of these keys will touch: a wait for it is paid once.
    /// Changes and counts nothing.
    pub fn prefetch(&self, keys: &[&[u8]]) {
        for keys in keys.chunks(BATCH) {
            with_scratch(|scratch| {
                self.ask_shared(keys, &mut scratch.asked);
            });
        }
    }

    /// Stores `count` values in their order, each as [`Cache::set`] does, with their memory asked
    /// for together and a partition locked once for those that follow one another there. `f` is
    /// told how each went, under the lock, and must not call the cache.
    pub fn set_many<'a>(
        &self,
        count: usize,
        put: impl Fn(usize) -> Put<'a>,
        now: Millis,
        mut f: impl FnMut(usize, Result<u64>),
    ) {
        if count == 1 {
            let Put { key, value, flags, expires } = put(0);
            return f(0, self.set(key, value, flags, expires, now));
        }
        for start in (0..count).step_by(BATCH) {
            let puts = start..count.min(start + BATCH);
            let mut keys: [&[u8]; BATCH] = [&[]; BATCH];
            keys.iter_mut().zip(puts.clone()).for_each(|(key, index)| *key = put(index).key);
            with_scratch(|scratch| {
                let asked = &mut scratch.asked;
                self.ask_shared(&keys[..puts.len()], asked);
                let mut held: Option<(usize, MutexGuard<'_, Partition>)> = None;
                for index in puts {
                    let Put { key, value, flags, expires } = put(index);
                    if !self.is_short(key, value) {
                        drop(held.take());
                        f(index, self.set(key, value, flags, expires, now));
                        continue;
                    }
                    let hash = asked.hashes[index - start];
                    let number = self.index_of(hash);
                    if held.as_ref().is_none_or(|(other, _)| *other != number) {
                        // Released first: two threads may lock the partitions in different order.
                        drop(held.take());
                    }
                    let part = &self.partitions[number];
                    let mut partition = match held.take() {
                        Some((_, partition)) => partition,
                        None => part.lock(),
                    };
                    if partition.is_unusual {
                        partition = part.lock_again(partition, hash, self.section);
                    }
                    let mut entry = Entry::new(partition, self.key(key), hash, now);
                    f(index, entry.put(&[value], flags, expires));
                    held = Some((number, entry.into_partition()));
                }
            });
        }
    }

    #[inline(always)]
    fn view_of(&self, hash: u64) -> &PartitionView {
        &self.partitions[self.index_of(hash)].view
    }

    /// Asks for the buckets of these keys, and then for what they name.
    #[inline(never)]
    fn ask_shared(&self, keys: &[&[u8]], asked: &mut Asked) {
        for (index, key) in keys.iter().enumerate() {
            let hash = hash_of(key, self.seed);
            asked.hashes[index] = hash;
            asked.places[index] = self.view_of(hash).ask_bucket(hash);
        }
        for index in 0..keys.len() {
            let (place, hash) = (asked.places[index], asked.hashes[index]);
            let (probed, is_entry) = self.view_of(hash).find_item(place, hash);
            let ProbedItem { tail, at, item } = probed;
            (asked.words[index], asked.places[index]) = (tail, at);
            asked.items[index] = item | u64::from(!is_entry);
        }
        for index in 0..keys.len() {
            self.view_of(asked.hashes[index]).ask_for(asked.items[index]);
        }
    }
}

impl PartitionView {
    /// The item of a key that was asked for.
    #[inline(always)]
    fn settle(
        &self,
        asked: &Asked,
        index: usize,
        key: Key<'_>,
        now: Millis,
        copy: &Window,
    ) -> UnlockedLookup {
        let (tail, at, item) = (asked.words[index], asked.places[index], asked.items[index]);
        if item & 1 == 0
            && let Some((slot, header)) = self.copy_plain(ProbedItem { tail, at, item }, key, copy)
        {
            return UnlockedLookup::Item(slot, header);
        }
        self.look_up_after_all(asked.hashes[index], key, now, copy)
    }

    #[cold]
    #[inline(never)]
    fn look_up_after_all(
        &self,
        hash: u64,
        key: Key<'_>,
        now: Millis,
        copy: &Window,
    ) -> UnlockedLookup {
        self.look_up(hash, key, now, copy)
    }
}

impl Asked {
    /// The entries from the nth one on, in order of the keys or of their items.
    fn behind(&self, nths: Range<usize>, is_of_keys: bool) -> impl Iterator<Item = Slot> {
        let index = move |nth| if is_of_keys { nth } else { usize::from(self.order[nth]) };
        nths.map(move |nth| Slot(self.words[index(nth)]))
    }

    #[inline(always)]
    fn ask_buckets(
        &mut self,
        units: Bare<'_>,
        keys: &[&[u8]],
        seed: u64,
        bucket_at: impl Fn(u64) -> u64,
    ) {
        for (index, key) in keys[..keys.len().min(BATCH)].iter().enumerate() {
            let hash = hash_of(key, seed);
            self.ask_bucket(units, index, hash, bucket_at(hash));
        }
    }

    #[inline(always)]
    fn ask_bucket(&mut self, units: Bare<'_>, index: usize, hash: u64, place: u64) {
        units.prefetch(place);
        (self.hashes[index], self.places[index]) = (hash, place);
        self.words[index] = tag_in_slot(hash);
    }

    /// Finds the entries of the first `count` keys in their buckets and asks for the items; where
    /// there is none, for the bucket behind. Without branches: a bucket may not have come yet, and
    /// a wrong guess would end all looking ahead.
    #[inline(always)]
    fn find_items(&mut self, units: Bare<'_>, wide: Option<Wide>, count: usize, reach: u64) {
        for index in 0..count.min(BATCH) {
            self.find_item(units, wide, index, reach);
        }
    }

    #[inline(always)]
    fn find_item(&mut self, units: Bare<'_>, wide: Option<Wide>, index: usize, reach: u64) -> u64 {
        let probe = index::probe(units, wide, self.places[index], &self.words[index]);
        (self.places[index], self.words[index]) = (probe.at, probe.word.0);
        ask_for_item(units, probe.target(), reach);
        probe.target()
    }

    /// As `ask_buckets` and `find_items`, with the waits of emulated far memory.
    #[cold]
    #[inline(never)]
    fn ask_emulated(&mut self, partition: &Partition, keys: &[&[u8]], seed: u64, reach: u64) {
        let Some(far) = &partition.emulation else { return };
        let (units, wide) = (partition.units.bare(), Wide::of_this_processor());
        for (index, key) in keys[..keys.len().min(BATCH)].iter().enumerate() {
            let hash = hash_of(key, seed);
            self.ask_bucket(units, index, hash, partition.index.bucket_at(hash));
            far.ask(self.places[index], BUCKET_BYTES);
        }
        for index in 0..keys.len().min(BATCH) {
            far.read(units, self.places[index], BUCKET_BYTES);
            self.items[index] = self.find_item(units, wide, index, reach);
            if self.items[index] != 0 {
                far.ask(self.items[index], reach + 8);
            }
        }
    }

    /// Waits for the overflow buckets that were looked into, and asks for the items behind them.
    #[cold]
    #[inline(never)]
    fn ask_late_emulated(&self, partition: &Partition, count: usize, reach: u64) {
        let Some(far) = &partition.emulation else { return };
        for index in 0..count.min(BATCH) {
            let (asked, word) = (self.items[index], self.words[index]);
            let item = Slot(word).pos().byte();
            // What was asked for is no item of this key, hence its bucket behind.
            if asked != 0 && (word == 0 || item != asked) {
                far.read(partition.units.bare(), asked, BUCKET_BYTES);
                if word != 0 {
                    far.ask(item, reach + 8);
                }
            }
        }
    }

    /// While the items are on their way: marks them as used (that an entry is another key's with
    /// the same tag is as rare as it is harmless), and then looks into the buckets behind, which
    /// have come meanwhile.
    #[inline(always)]
    fn mark_used(&mut self, units: Bare<'_>, count: usize, freq_max: u64) {
        let (mut known, mut late, mut late_count) = (0, [0; BATCH], 0);
        for index in 0..count.min(BATCH) {
            if index::is_entry(self.places[index]) {
                self.mark(units, index, freq_max);
                (self.order[known % BATCH], known) = (index as u8, known + 1);
            } else {
                (late[late_count % BATCH], late_count) = (index as u8, late_count + 1);
            }
        }
        for (nth, index) in late[..late_count.min(BATCH)].iter().enumerate() {
            if self.find_behind(units, usize::from(*index)) {
                self.mark(units, usize::from(*index), freq_max);
            }
            self.order[(known + nth) % BATCH] = *index;
        }
    }

    #[inline(always)]
    fn mark(&mut self, units: Bare<'_>, index: usize, freq_max: u64) {
        // Stored although it may be the same: which entries are at the highest frequency, a branch
        // cannot foresee.
        units.store(self.places[index], Slot(self.words[index]).used(freq_max).0);
    }

    /// Finds the entry of a key in the bucket behind its first one, and asks for the item; whether
    /// there is one.
    #[cold]
    #[inline(never)]
    fn find_behind(&mut self, units: Bare<'_>, index: usize) -> bool {
        let next = index::next_of(Slot(std::mem::take(&mut self.words[index])));
        if next == 0 {
            return false;
        }
        let probe = index::probe(units, None, next, &tag_in_slot(self.hashes[index]));
        if probe.is_entry {
            (self.places[index], self.words[index]) = (probe.at, probe.word.0);
            ask_for_item(units, probe.target(), REACH_MAX);
        }
        probe.is_entry
    }
}

/// A partition under its lock, for a batch.
struct Locked<'a> {
    partition: MutexGuard<'a, Partition>,
    /// Keys of items that are not the usual ones, counted by themselves.
    rest: u64,
}

impl<'a> Locked<'a> {
    /// Locks, asks for the buckets of these keys, and then for what they name.
    #[inline(never)]
    fn new(
        part: &'a LockedPartition,
        keys: &[&[u8]],
        seed: u64,
        section: u64,
        asked: &mut Asked,
    ) -> Locked<'a> {
        let (mut partition, units, mut is_emulated) = (part.lock(), part.view.bare(), false);
        if partition.is_unusual {
            let hashes = keys.iter().map(|key| hash_of(key, seed));
            (partition, is_emulated) = part.lock_for_all(partition, hashes, section);
        }
        // Not out of the partition in a loop, which would read them for each key.
        let index = &partition.index;
        let mean_bytes = partition.segments.live_bytes() / index.items().max(1);
        let reach = mean_bytes.saturating_sub(8).min(REACH_MAX);
        if is_emulated {
            asked.ask_emulated(&partition, keys, seed, reach);
        } else {
            match index.flat() {
                Some(buckets) => {
                    asked.ask_buckets(units, keys, seed, |hash| flat_at(hash, buckets));
                }
                None => asked.ask_buckets(units, keys, seed, |hash| index.bucket_at(hash)),
            }
            match Wide::of_this_processor() {
                Some(wide) => asked.find_items(units, Some(wide), keys.len(), reach),
                None => asked.find_items(units, None, keys.len(), reach),
            }
        }
        asked.mark_used(units, keys.len(), partition.freq_max);
        if is_emulated {
            asked.ask_late_emulated(&partition, keys.len(), reach);
        }
        if index.is_sweeping() {
            // Each is looked up from the start: what was found may be gone.
            asked.words = [0; BATCH];
        }
        Locked { partition, rest: 0 }
    }

    /// Counts the hits of `keys` usual items, of which one may be looked at.
    #[inline(always)]
    fn count(&mut self, asked: &Asked, keys: usize, now: Millis) {
        let hits = keys as u64 - self.rest;
        self.partition.stats.hits += hits;
        let nth = self.partition.reads_until_sample();
        self.partition.count_reads(hits as u32);
        if nth < hits as u32 {
            self.sample(asked, keys, nth as usize, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn sample(&mut self, asked: &Asked, keys: usize, nth: usize, now: Millis) {
        let (before, behind) = asked.words[..keys].split_at(nth.min(keys));
        // Of those that were looked up from the start the entry is not known.
        if let Some(word) = behind.iter().chain(before).find(|word| **word != 0) {
            self.partition.sample_if_due(Slot(*word).pos(), now);
        }
    }

    /// The item of a key that was asked for.
    #[inline(always)]
    fn settle<'b>(
        &'b mut self,
        units: Bare<'b>,
        asked: &mut Asked,
        index: usize,
        key: Key<'_>,
        now: Millis,
    ) -> Option<Item<'b>> {
        let (at, slot) = (asked.places[index], Slot(asked.words[index]));
        if slot.0 != 0
            && let Some(header) = units.load_before(slot.pos().byte(), key.bytes).map(Header)
            && header.is_plain(key.word())
            && key.has_space_at(slot.pos().byte() + u64::from(PLAIN_KEY_AT), |at| units.load(at))
        {
            // Not out of the header: the value is read while that is on its way.
            let value_at = PLAIN_KEY_AT + key.stored_bytes() as u32;
            return Some(Item::plain(&self.partition, units, (at, slot), header, value_at, now));
        }
        let found = self.look_up_after_all(asked, index, key, now)?;
        Some(Item::new(&self.partition, found, now))
    }

    /// The entry of a key if its item has more than its value; else looks it up from the start: it
    /// is not there, or further down its chain, or an earlier key of the batch has expired.
    #[cold]
    #[inline(never)]
    fn look_up_after_all(
        &mut self,
        asked: &mut Asked,
        index: usize,
        key: Key<'_>,
        now: Millis,
    ) -> Option<Found> {
        self.rest += 1;
        let partition = &mut self.partition;
        let (hash, word) = (asked.hashes[index], asked.words[index]);
        let pos = Slot(word).pos();
        if word != 0 && partition.is_key(pos, key) && !partition.is_expired(pos, now) {
            // It was marked.
            partition.stats.hits += 1;
            partition.touch_access(pos, now);
            return Some((asked.places[index], Slot(word)));
        }
        let expired = partition.stats.expired;
        let found = partition.find_fresh(hash, key, now);
        if partition.stats.expired != expired {
            // Neighbours have moved: the others are looked up from the start, too.
            asked.words = [0; BATCH];
        }
        partition.count_use(hash, found, now)
    }
}
