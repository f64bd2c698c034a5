//! Reads of a partition without its lock: by several threads at once, while one changes it.
//!
//! In: a key, its hash, the time, and memory for a copy. Out: a copy of the item, or that there is
//! none, or that only the lock can tell. Called by `mod.rs` and `many.rs`.
//!
//! A reader notes the version of the key's chain ([`rackpool_mem::version`]), finds the entry,
//! copies the item, and then asks whether the version still stands. An item does not change where
//! it lies as long as an entry names it, and the version changes when an entry comes to name
//! another one, before the memory of the old one is used again. So if the version stands, the copy
//! is the item of this key, whole, and was its item while it was read. Before that the bytes may be
//! anything: each length is checked against the unit before it is used, and walks are bounded.
//!
//! A use is marked in the entry by one swap, which fails if the entry has changed; misses go to the
//! sketch, which loses some that come at once. All else is left to the lock: items in pieces, in
//! another tier or above [`COPIED_BYTES_MAX`], expired ones, those that have their second of access
//! to be noted, a chain that changes all the time, and everything until the entries of what was
//! flushed are swept out, and while sections hold keys (`section.rs`).
//!
//! Source: MICA (versions in buckets); optimistic reads as with sequence locks.

use super::draft::fields_at;
use super::evict::reads::SAMPLED_READS;
use super::index::{self, Probe, Shape, TAIL_AT};
use super::key::Key;
use super::layout::{
    BUCKET_BYTES, Fields, Header, PLAIN_KEY_AT, Slot, UNIT_BYTES, expiry_in, tag_in_slot,
};
use super::partition::Partition;
use super::policy::Sketch;
use super::timeline::Wall;
use super::{Millis, WALL_TIME};
use rackpool_core::seam::Mem;
use rackpool_mem::version::{self, Seen};
use rackpool_mem::window::{Bare, Wide, Window};
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Longest item that is copied, bytes with header and key: a longer one costs more to copy twice
/// than the lock costs.
pub(crate) const COPIED_BYTES_MAX: u32 = 4096;
/// Tries before the lock is taken.
const TRIES_MAX: u32 = 8;
/// Behind the first word of an item, the last byte that it pays to ask for before its length is
/// known.
pub(crate) const REACH_MAX: u64 = 56;
/// Buckets of a chain that are looked at without the lock.
const CHAIN_BUCKETS_MAX: u32 = 8;
/// Threads that count apart from each other.
const LOOKUP_COUNTERS: usize = 32;

/// What readers without the lock have of a partition.
#[derive(Debug)]
pub(crate) struct PartitionView {
    units: Window,
    shape: Arc<Shape>,
    pub sketch: Arc<Sketch>,
    freq_max: u64,
    keeps_access: bool,
    pub wall: Arc<Wall>,
}

#[derive(Debug)]
pub(crate) enum UnlockedLookup {
    /// The item was copied; its entry, as it was.
    Item(Slot, Header),
    Missing,
    Unsure,
}

/// Where a value is copied to.
#[derive(Clone, Copy, Debug)]
pub struct CopyTarget<'a> {
    /// The memory that is written.
    pub units: Bare<'a>,
    /// The first byte in it.
    pub at: u64,
    /// Room for the value, bytes.
    pub bytes_max: u64,
}

/// What [`PartitionView::find_item`] found.
#[derive(Clone, Copy)]
pub(crate) struct ProbedItem {
    /// The bucket's last word before it was looked into.
    pub tail: u64,
    /// Where the entry lies.
    pub at: u64,
    /// Where the item lies, or the next bucket if there is no item (0 = nowhere).
    pub item: u64,
}

/// A value that was copied, and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Its length.
    pub bytes: u64,
    /// The caller's flags.
    pub flags: u32,
    /// When it expires; 0 = never.
    pub expires: Millis,
}

/// What was found in a chain, if its version still stands.
enum ChainMatch {
    Item(u64, Slot, Header),
    Nothing,
    Unsure,
}

/// How far a look-up has come: where tests change the partition under a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupStage {
    Placed,
    Begun,
    /// Entries with the key's tag were found.
    Matched,
    Entry,
    Compared,
    Copied,
}

#[inline(always)]
fn reached(_step: LookupStage) {
    #[cfg(test)]
    tests::reached(_step);
}

/// The first entry with the tag of `hash` in the chain that begins with the bucket at `first`.
#[inline(always)]
fn entry_in(units: Bare<'_>, first: u64, hash: u64) -> Option<Probe> {
    let (wide, tag) = (Wide::of_this_processor(), tag_in_slot(hash));
    let mut bucket = first;
    for _ in 0..CHAIN_BUCKETS_MAX {
        let probe = index::probe(units, wide, bucket, &tag);
        if probe.is_entry {
            return Some(probe);
        }
        bucket = probe.target();
        if bucket == 0 {
            break;
        }
    }
    None
}

impl PartitionView {
    pub fn of(partition: &Partition) -> PartitionView {
        PartitionView {
            units: partition.units.clone(),
            shape: Arc::clone(&partition.index.shape),
            sketch: Arc::clone(&partition.policy_state.sketch),
            freq_max: partition.freq_max,
            keeps_access: partition.keeps_access,
            wall: Arc::clone(&partition.wall),
        }
    }

    pub fn units(&self) -> &Window {
        &self.units
    }

    /// As [`PartitionView::units`], to be read and written.
    pub fn bare(&self) -> Bare<'_> {
        self.units.bare()
    }

    /// Looks a key up and marks its item as used; counts nothing. The copy of the item begins at
    /// the start of `copy`.
    #[inline]
    pub fn look_up(&self, hash: u64, key: Key<'_>, now: Millis, copy: &Window) -> UnlockedLookup {
        if self.shape.needs_lock() {
            return UnlockedLookup::Unsure;
        }
        for _ in 0..TRIES_MAX {
            let first = self.shape.bucket_at(hash);
            reached(LookupStage::Placed);
            let Some(seen) = version::begin(&self.units, first + TAIL_AT) else {
                spin_loop();
                continue;
            };
            reached(LookupStage::Begun);
            let found = self.search(first, hash, key, now, copy);
            if !self.is_still(seen, first) {
                continue;
            }
            match found {
                ChainMatch::Item(at, slot, header) => {
                    self.mark_used(at, slot);
                    return UnlockedLookup::Item(slot, header);
                }
                // If not, the bucket was split before the version was noted.
                ChainMatch::Nothing if self.is_there(hash, first) => {
                    return UnlockedLookup::Missing;
                }
                ChainMatch::Nothing => {}
                ChainMatch::Unsure => return UnlockedLookup::Unsure,
            }
        }
        UnlockedLookup::Unsure
    }

    /// Copies the value of a key, if it fits, to `to`, which no other thread reads meanwhile, and
    /// marks the item as used; counts nothing. Tries once: `None` says that only the lock can tell.
    #[inline(always)]
    pub fn copy_value(
        &self,
        hash: u64,
        key: Key<'_>,
        now: Millis,
        to: CopyTarget<'_>,
    ) -> Option<Copied> {
        if self.shape.needs_lock() {
            return None;
        }
        let units = self.units.bare();
        let first = self.shape.bucket_at(hash);
        reached(LookupStage::Placed);
        let seen = version::begin(&self.units, first + TAIL_AT)?;
        reached(LookupStage::Begun);
        let probe = entry_in(units, first, hash)?;
        reached(LookupStage::Matched);
        let item = probe.word.pos().byte();
        // The line behind, where small items end, comes together with the first.
        units.prefetch(item + 63);
        let header = Header(units.load(item));
        reached(LookupStage::Entry);
        let room = u64::from(UNIT_BYTES) - item % u64::from(UNIT_BYTES);
        let (key_at, fields) = match header.is_plain(key.word()) {
            true => (PLAIN_KEY_AT.into(), Fields::default()),
            false => self.fields_of(item, header, key.word(), room, now)?,
        };
        let (value_at, bytes) =
            (key_at + key.stored_bytes() as u64, u64::from(header.value_bytes()));
        if value_at + bytes > room
            || bytes > to.bytes_max
            || !units.equals(item + key_at, key.bytes)
            || !key.has_space_at(item + key_at, |at| units.load(at))
        {
            return None;
        }
        reached(LookupStage::Compared);
        units.copy_to(item + value_at, bytes, to.units, to.at);
        reached(LookupStage::Copied);
        if !self.is_still(seen, first) {
            return None;
        }
        self.mark_used(probe.at, probe.word);
        Some(Copied { bytes, flags: fields.flags, expires: fields.expires })
    }

    /// Where the key of an item stands that has more beside it and the value, and the rest of
    /// that; `None` if the item has another key, is not whole, has expired, or is to note that it
    /// was used.
    #[inline(never)]
    fn fields_of(
        &self,
        item: u64,
        header: Header,
        key_word: u32,
        room: u64,
        now: Millis,
    ) -> Option<(u64, Fields)> {
        let is_usual = header.key_word() == key_word
            && u64::from(header.key_at()) <= room
            && !header.has(Header::CHAINED | Header::FAR | Header::PIECE)
            && !self.is_due(item, header, now);
        is_usual.then(|| (header.key_at().into(), fields_at(self.units.bare(), item, header)))
    }

    #[inline(always)]
    fn is_still(&self, seen: Seen, first: u64) -> bool {
        #[cfg(test)]
        if tests::leaves_out(tests::Check::Version) {
            return true;
        }
        seen.is_still(&self.units, first + TAIL_AT)
    }

    /// Whether the first bucket of `hash` still lies there.
    #[inline(always)]
    fn is_there(&self, hash: u64, first: u64) -> bool {
        #[cfg(test)]
        if tests::leaves_out(tests::Check::Place) {
            return true;
        }
        self.shape.bucket_at(hash) == first
    }

    #[inline(always)]
    fn search(
        &self,
        first: u64,
        hash: u64,
        key: Key<'_>,
        now: Millis,
        copy: &Window,
    ) -> ChainMatch {
        let mut bucket = first;
        for _ in 0..CHAIN_BUCKETS_MAX {
            let mut matches = index::matches(&self.units, bucket, hash);
            reached(LookupStage::Matched);
            while matches != 0 {
                let at = bucket + 8 * u64::from(matches.trailing_zeros());
                if let Some(found) = self.examine(at, key, now, copy) {
                    return found;
                }
                matches &= matches - 1;
            }
            match index::link_at(&self.units, bucket) {
                Some(next) => bucket = next,
                None => return ChainMatch::Nothing,
            }
        }
        ChainMatch::Unsure
    }

    /// What the entry at `at` says, unless it is another key's.
    #[inline(always)]
    fn examine(&self, at: u64, key: Key<'_>, now: Millis, copy: &Window) -> Option<ChainMatch> {
        let slot = Slot(self.units.load(at));
        reached(LookupStage::Entry);
        let (byte, offset) = (slot.pos().byte(), slot.pos().offset());
        ask_for_item(self.units.bare(), byte, REACH_MAX);
        let header = Header(self.units.load(byte));
        let key_at = byte + u64::from(header.key_at());
        if header.key_word() != key.word()
            || header.bytes() > UNIT_BYTES - offset
            || !self.units.equals(key_at, key.bytes)
            || !key.has_space_at(key_at, |at| self.units.load(at))
        {
            return None;
        }
        reached(LookupStage::Compared);
        if header.has(Header::CHAINED | Header::FAR | Header::PIECE)
            || header.bytes() > COPIED_BYTES_MAX
            || (header.has(Header::META | Header::EXTRA) && self.is_due(byte, header, now))
        {
            return Some(ChainMatch::Unsure);
        }
        self.units.copy_to(byte, u64::from(header.bytes()), copy, 0);
        reached(LookupStage::Copied);
        Some(ChainMatch::Item(at, slot, header))
    }

    /// Whether the item has expired, or is to note that it was used.
    fn is_due(&self, byte: u64, header: Header, now: Millis) -> bool {
        let word = |option| self.units.load(byte + header.word_at(option));
        let expires = if header.has(Header::META) { expiry_in(word(Header::META)) } else { 0 };
        let now_there = if expires & WALL_TIME == 0 { now } else { self.wall.at(now) };
        let notes = self.keeps_access && header.has(Header::EXTRA);
        (expires != 0 && expires & !WALL_TIME <= now_there)
            || (notes && word(Header::EXTRA) >> 32 != u64::from((now / 1000) as u32))
    }

    /// Marks an entry as used, unless it has changed since.
    #[inline(always)]
    fn mark_used(&self, at: u64, slot: Slot) {
        let used = slot.used(self.freq_max);
        if used != slot {
            // Places of entries are never used for anything else; one that looks the same again is
            // one of the same tag at the same place, and this may be counted as its use.
            let _ = self.units.compare_exchange(at, slot.0, used.0);
        }
    }

    #[inline(always)]
    pub fn place_of(&self, hash: u64) -> u64 {
        self.shape.bucket_at(hash)
    }

    /// Asks for the bucket of `hash`; where it lies.
    #[inline(always)]
    pub fn ask_bucket(&self, hash: u64) -> u64 {
        let bucket = self.place_of(hash);
        self.units.bare().prefetch(bucket);
        bucket
    }

    /// Looks into the bucket of `hash`; whether there is an item.
    #[inline(always)]
    pub fn find_item(&self, bucket: u64, hash: u64) -> (ProbedItem, bool) {
        let units = self.units.bare();
        let tail = units.load(bucket + TAIL_AT);
        let probe = index::probe(units, None, bucket, &tag_in_slot(hash));
        (ProbedItem { tail, at: probe.at, item: probe.target() }, probe.is_entry)
    }

    #[inline(always)]
    pub fn ask_for(&self, byte: u64) {
        ask_for_item(self.units.bare(), byte, REACH_MAX);
    }

    /// Copies the item that [`PartitionView::find_item`] found, if it is this key's, nothing has
    /// changed since, and it neither expires nor is any other than the usual: then its entry, which
    /// is marked as used.
    #[inline(always)]
    pub fn copy_plain(
        &self,
        ProbedItem { tail, at, item }: ProbedItem,
        key: Key<'_>,
        copy: &Window,
    ) -> Option<(Slot, Header)> {
        const UNUSUAL: u64 =
            Header::CHAINED | Header::FAR | Header::PIECE | Header::META | Header::EXTRA;
        let units = self.units.bare();
        let (slot, header) = (Slot(units.load(at)), Header(units.load(item)));
        let first = at & !(BUCKET_BYTES - 1);
        let seen = Seen::of(tail)?;
        let room = COPIED_BYTES_MAX.min(UNIT_BYTES - (item as u32 & (UNIT_BYTES - 1)));
        if slot.pos().byte() != item
            || header.key_word() != key.word()
            || self.shape.needs_lock()
            || header.has(UNUSUAL)
            || header.bytes() > room
            || !units.equals(item + u64::from(header.key_at()), key.bytes)
            || !key.has_space_at(item + u64::from(header.key_at()), |at| units.load(at))
        {
            return None;
        }
        self.units.copy_to(item, u64::from(header.bytes()), copy, 0);
        if !self.is_still(seen, first) {
            return None;
        }
        self.mark_used(at, slot);
        Some((slot, header))
    }
}

/// Look-ups that were answered without a lock, counted by thread.
#[derive(Debug, Default)]
pub(crate) struct LookupCounters([ThreadLookups; LOOKUP_COUNTERS]);

/// A hit that is to be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueSample {
    /// Reads that it stands for.
    pub reads: u32,
    /// Which of the hits.
    pub nth: usize,
}

/// On lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadLookups {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl LookupCounters {
    /// Counts; whether one of the hits is to be looked at.
    #[inline]
    pub fn add(&self, hits: u64, misses: u64) -> Option<DueSample> {
        let tally = &self.0[THREAD.with(|thread| *thread) % LOOKUP_COUNTERS];
        let mut due = None;
        if hits > 0 {
            let every = u64::from(SAMPLED_READS);
            // Relaxed: a counter.
            let before = tally.hits.fetch_add(hits, Ordering::Relaxed) % every;
            if before + hits >= every {
                let reads = (before + hits) / every * every;
                due = Some(DueSample { reads: reads as u32, nth: (every - 1 - before) as usize });
            }
        }
        if misses > 0 {
            // Relaxed: a counter.
            tally.misses.fetch_add(misses, Ordering::Relaxed);
        }
        due
    }

    pub fn sum(&self) -> (u64, u64) {
        // Relaxed: counters.
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let add =
            |sum: (u64, u64), it: &ThreadLookups| (sum.0 + of(&it.hits), sum.1 + of(&it.misses));
        self.0.iter().fold((0, 0), add)
    }
}

/// Prefetches an item at `byte`; its last word lies so many bytes behind its first one, as a rule:
/// two lines at most. Small items lie on two lines more often than on one.
#[inline(always)]
pub(crate) fn ask_for_item(units: Bare<'_>, byte: u64, reach: u64) {
    units.prefetch(byte);
    units.prefetch(byte + reach);
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Number of this thread, in the order in which they first came.
    // Relaxed: a number that no other thread has.
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
