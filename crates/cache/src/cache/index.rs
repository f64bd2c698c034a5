//! The index: buckets of one cache line in units of the partition, found by hash, growing bucket
//! by bucket (linear hashing), with overflow buckets behind a bucket that is full.
//!
//! In: hashes and slots. Out: where a slot lies (bytes from the start of the units). It neither
//! reads items nor takes units by itself: `partition.rs`, the only caller, hands in units and
//! compares keys. The low bits of the tag choose among the buckets that one was split into, so a
//! split reads no item. A chain has no holes before its last bucket.
//!
//! For readers without the lock (`view.rs`) the version of a chain's first bucket is odd while its
//! entries change or move, and another one afterwards; new entries and marks of old ones are single
//! stores, which need none. Where the buckets are, such readers learn from a [`Shape`].
//!
//! Source: HERD and MICA for the bucket; Litwin's linear hashing for the growth.

use super::layout::{
    BUCKET_BYTES, SLOTS, Slot, TAG_BITS, TAG_MASK, UNIT_BUCKETS, UNIT_BUCKETS_SHIFT, UNIT_BYTES,
    tag_in_slot, tag_of,
};
use rackpool_core::seam::Mem;
use rackpool_mem::version;
use rackpool_mem::window::{Bare, Wide, Window, WordPattern};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Filled share of all primary slots above which the index grows, percent. Above, overflow buckets
/// cost more than they save.
const LOAD_PERCENT: u64 = 74;
/// Where version and link lie in a bucket.
pub(crate) const TAIL_AT: u64 = 8 * SLOTS as u64;
/// Bits of a shape's state that are the level.
const LEVEL_BITS: u32 = 8;
/// In a shape's state, the highest of these: entries are stale.
const SWEEPING: u64 = 1 << (LEVEL_BITS - 1);
/// The one below: sections hold keys.
const HELD: u64 = 1 << (LEVEL_BITS - 2);

type Bucket = [u64; SLOTS + 1];

pub(crate) enum Room {
    At(u64),
    /// Nowhere: the chain that ends with this bucket is full.
    Full(u32),
}

/// Where the buckets are, for readers without the lock.
#[derive(Debug)]
pub(crate) struct Shape {
    base: u64,
    /// {split | whether it is swept | whether keys are held | level}
    state: AtomicU64,
    /// Units of the primary buckets in order.
    directory: Box<[AtomicU32]>,
}

impl Shape {
    pub const UNIT_BYTES: u64 = size_of::<AtomicU32>() as u64;

    #[inline(always)]
    pub fn bucket_at(&self, hash: u64) -> u64 {
        // Acquire: pairs with the Release in index.rs::publish; units that it names are there.
        let state = self.state.load(Ordering::Acquire);
        let level = state & (HELD - 1);
        let bucket = bucket_of(hash, self.base, level as u32, state >> LEVEL_BITS);
        let unit = &self.directory[(bucket >> UNIT_BUCKETS_SHIFT) as usize];
        // Relaxed: stored before the state that names it.
        place_in(unit.load(Ordering::Relaxed), bucket)
    }

    /// Whether there are entries of items that are gone, or of keys that sections hold, which only
    /// the lock tells apart. A reader that asked before one of both began may find what was there
    /// before, or what is there by then.
    #[inline(always)]
    pub fn needs_lock(&self) -> bool {
        // Acquire: pairs with the Release in index.rs::publish; where a section is over, all that
        // it has changed is seen.
        self.state.load(Ordering::Acquire) & (SWEEPING | HELD) != 0
    }
}

/// Number of the first bucket of `hash`, with `base` buckets at level 0, all split `level` times,
/// those below `split` once more.
#[inline(always)]
fn bucket_of(hash: u64, base: u64, level: u32, split: u64) -> u64 {
    let first = ((u128::from(hash) * u128::from(base)) >> 64) as u64;
    let part = tag_of(hash) & ((1 << level) - 1);
    if first + base * part < split {
        return first + base * (tag_of(hash) & ((2 << level) - 1));
    }
    first + base * part
}

/// Where the first bucket of `hash` lies among so many that lie one behind the other.
#[inline(always)]
pub(crate) fn flat_at(hash: u64, buckets: u64) -> u64 {
    bucket_of(hash, buckets, 0, 0) * BUCKET_BYTES
}

/// Where a bucket of this unit lies.
#[inline(always)]
fn place_in(unit: u32, bucket: u64) -> u64 {
    let in_unit = bucket & u64::from(UNIT_BUCKETS - 1);
    (u64::from(unit) * u64::from(UNIT_BUCKETS) + in_unit) * BUCKET_BYTES
}

#[derive(Debug)]
pub(crate) struct ItemIndex {
    units: Window,
    pub shape: Arc<Shape>,
    /// Buckets at level 0.
    base: u64,
    /// How often all buckets were split.
    level: u32,
    /// Buckets that were split once more.
    split: u64,
    /// Units of the primary buckets in order.
    directory: Vec<u32>,
    /// Whether these are the first units, in order, as when the index was made.
    is_row: bool,
    overflow: Vec<u32>,
    /// First free overflow bucket, chained by links.
    free: u32,
    /// Whether there may be overflow buckets and growth.
    is_lossless: bool,
    items: u64,
    /// Those of them that were flushed.
    stale: u64,
    /// The first bucket that may have such entries; none after it was swept.
    swept: Option<u64>,
    /// Whether sections hold keys.
    is_held: bool,
}

#[inline(always)]
fn read(units: &Window, at: u64) -> Bucket {
    let mut bytes = [0; BUCKET_BYTES as usize];
    units.copy_out(at, &mut bytes);
    let mut bucket = [0; SLOTS + 1];
    for (word, bytes) in bucket.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes"));
    }
    bucket
}

/// Which slots of the bucket at `at` carry the tag of `hash`, a bit each. Without branches: where
/// in its bucket an entry lies cannot be foreseen.
#[inline(always)]
pub(crate) fn matches(units: &Window, at: u64, hash: u64) -> u32 {
    let upper = |word: u64| (word >> 32) as u32;
    units.match_line(at, upper(TAG_MASK), upper(tag_in_slot(hash))) & ((1 << SLOTS) - 1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Where the first entry with the tag lies, or, if there is none, the last word of the bucket.
    pub at: u64,
    pub word: Slot,
    pub is_entry: bool,
}

impl Probe {
    /// Where the item lies, or the next bucket of the chain (0 = nowhere).
    #[inline(always)]
    pub fn target(self) -> u64 {
        let (item, next) = (self.word.pos().byte(), next_of(self.word));
        if self.is_entry { item } else { next }
    }
}

/// Looks for a tag (as [`tag_in_slot`] gives it) in the bucket at `bucket_at`, without a branch.
#[inline(always)]
pub(crate) fn probe(units: Bare<'_>, wide: Option<Wide>, bucket_at: u64, tag: &u64) -> Probe {
    let pattern = WordPattern { mask: &TAG_MASK, value: tag };
    let (place, word) = units.first_match(wide, bucket_at, pattern, SLOTS as u32);
    let (at, is_entry) = (bucket_at + 8 * u64::from(place), place != SLOTS as u32);
    Probe { at, word: Slot(word), is_entry }
}

/// Whether what lies at `at` is an entry, and not the last word of a bucket.
#[inline(always)]
pub(crate) fn is_entry(at: u64) -> bool {
    at % BUCKET_BYTES != TAIL_AT
}

/// Where the next bucket of a chain lies, by a bucket's last word; 0 = nowhere.
#[inline(always)]
pub(crate) fn next_of(tail: Slot) -> u64 {
    (tail.0 >> 32) * BUCKET_BYTES
}

/// Where the next bucket behind the one at `at` lies.
#[inline(always)]
pub(crate) fn link_at(units: &Window, at: u64) -> Option<u64> {
    let link = units.load(at + TAIL_AT) >> 32;
    (link != 0).then_some(link * BUCKET_BYTES)
}

#[inline(always)]
fn next_at(bucket: &Bucket) -> Option<u64> {
    let link = bucket[SLOTS] >> 32;
    (link != 0).then_some(link * BUCKET_BYTES)
}

impl ItemIndex {
    /// An index of these units, zeroed, which hold all the buckets of level 0.
    pub fn new(units: Window, first: Vec<u32>, is_lossless: bool) -> ItemIndex {
        let base = first.len() as u64 * u64::from(UNIT_BUCKETS);
        let count = units.bytes() / u64::from(UNIT_BYTES);
        let directory: Box<[_]> = (0..count).map(|_| AtomicU32::new(0)).collect();
        for (to, unit) in directory.iter().zip(&first) {
            // Relaxed: no other thread has it yet.
            to.store(*unit, Ordering::Relaxed);
        }
        ItemIndex {
            is_row: (0..).zip(&first).all(|(unit, it)| unit == *it),
            units,
            shape: Arc::new(Shape { base, state: AtomicU64::new(0), directory }),
            base,
            level: 0,
            split: 0,
            directory: first,
            overflow: Vec::new(),
            free: 0,
            is_lossless,
            items: 0,
            stale: 0,
            swept: None,
            is_held: false,
        }
    }

    /// Entries, those of flushed items excepted.
    pub fn items(&self) -> u64 {
        self.items - self.stale
    }

    pub fn unit_count(&self) -> u64 {
        (self.directory.len() + self.overflow.len()) as u64
    }

    pub fn is_lossless(&self) -> bool {
        self.is_lossless
    }

    #[inline(always)]
    pub fn bucket_at(&self, hash: u64) -> u64 {
        self.place(bucket_of(hash, self.base, self.level, self.split))
    }

    /// How many buckets there are if one lies behind the other from the start of the units on, as
    /// in an index that was made for as many items as it has: then [`flat_at`] says where.
    pub fn flat(&self) -> Option<u64> {
        (self.is_row && self.level == 0 && self.split == 0).then_some(self.base)
    }

    #[inline(always)]
    fn place(&self, bucket: u64) -> u64 {
        place_in(self.directory[(bucket >> UNIT_BUCKETS_SHIFT) as usize], bucket)
    }

    /// Tells readers without the lock how far the index has grown.
    fn publish(&self) {
        let sweeping = if self.is_sweeping() { SWEEPING } else { 0 };
        let held = if self.is_held { HELD } else { 0 };
        let state = (self.split << LEVEL_BITS) | sweeping | held | u64::from(self.level);
        // Release: pairs with the Acquire in index.rs::bucket_at of the shape.
        self.shape.state.store(state, Ordering::Release);
    }

    /// Where the slot with this tag and position lies.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl Fn(Slot) -> bool) -> Option<(u64, Slot)> {
        let mut at = self.bucket_at(hash);
        loop {
            let mut found = matches(&self.units, at, hash);
            while found != 0 {
                let slot_at = at + 8 * u64::from(found.trailing_zeros());
                let slot = Slot(self.units.load(slot_at));
                if is_it(slot) {
                    return Some((slot_at, slot));
                }
                found &= found - 1;
            }
            at = link_at(&self.units, at)?;
        }
    }

    pub fn room(&self, hash: u64) -> Room {
        let mut at = self.bucket_at(hash);
        loop {
            let bucket = read(&self.units, at);
            if let Some(index) = bucket[..SLOTS].iter().position(|word| *word == 0) {
                return Room::At(at + 8 * index as u64);
            }
            match next_at(&bucket) {
                Some(next) => at = next,
                None => return Room::Full((at / BUCKET_BYTES) as u32),
            }
        }
    }

    /// Hangs an overflow bucket behind the full one; where its first slot lies. `None` if there is
    /// none left.
    pub fn lengthen(&mut self, full: u32) -> Option<u64> {
        let new = self.free;
        if new == 0 {
            return None;
        }
        let at = u64::from(new) * BUCKET_BYTES;
        self.free = (self.units.load(at + TAIL_AT) >> 32) as u32;
        for index in 0..=SLOTS as u64 {
            self.units.store(at + 8 * index, 0);
        }
        self.set_link(u64::from(full) * BUCKET_BYTES, new);
        Some(at)
    }

    fn set_link(&self, at: u64, link: u32) {
        let tail = self.units.load(at + TAIL_AT);
        self.units.store(at + TAIL_AT, (tail & u64::from(u32::MAX)) | (u64::from(link) << 32));
    }

    /// Takes a unit for 1024 overflow buckets.
    pub fn add_overflow(&mut self, unit: u32) {
        self.overflow.push(unit);
        let first = unit * UNIT_BUCKETS;
        for bucket in (first..first + UNIT_BUCKETS).rev() {
            self.give_back(u64::from(bucket) * BUCKET_BYTES);
        }
    }

    fn give_back(&mut self, at: u64) {
        self.set_link(at, self.free);
        self.free = (at / BUCKET_BYTES) as u32;
    }

    pub fn has_overflow(&self) -> bool {
        self.free != 0
    }

    /// Writes an entry where [`ItemIndex::room`] or [`ItemIndex::lengthen`] said.
    pub fn insert_at(&mut self, at: u64, slot: Slot) {
        self.items += 1;
        self.units.store(at, slot.0);
    }

    #[inline]
    pub fn slot_at(&self, at: u64) -> Slot {
        Slot(self.units.load(at))
    }

    /// Changes the marks of the entry at `at`; its item stays.
    #[inline]
    pub fn mark(&self, at: u64, slot: Slot) {
        self.units.store(at, slot.0);
    }

    /// Points the entry of `hash` at `at` to another item.
    #[inline]
    pub fn repoint(&self, hash: u64, at: u64, slot: Slot) {
        let first = self.bucket_at(hash);
        version::change(&self.units, first + TAIL_AT, || self.units.store(at, slot.0));
    }

    /// Calls `f` for the entries of the first bucket of `hash`.
    pub fn for_bucket(&self, hash: u64, mut f: impl FnMut(u64, Slot)) {
        let at = self.bucket_at(hash);
        for (index, word) in read(&self.units, at)[..SLOTS].iter().enumerate() {
            if *word != 0 {
                f(at + 8 * index as u64, Slot(*word));
            }
        }
    }

    /// Empties the entry of `hash` at `at`, which is written again at once.
    pub fn forget(&mut self, hash: u64, at: u64) {
        self.items -= 1;
        let first = self.bucket_at(hash);
        version::change(&self.units, first + TAIL_AT, || self.units.store(at, 0));
    }

    /// Takes out the entry of `hash` that lies at `at`.
    pub fn remove(&mut self, hash: u64, at: u64) {
        self.items -= 1;
        let first = self.bucket_at(hash);
        version::open(&self.units, first + TAIL_AT);
        self.take_out(first, at);
        version::close(&self.units, first + TAIL_AT);
    }

    /// Takes the entry at `at` out of the chain that begins at `first`.
    fn take_out(&mut self, first: u64, at: u64) {
        let (mut last, mut before, mut bucket) = (first, None, read(&self.units, first));
        while let Some(next) = next_at(&bucket) {
            before = Some(last);
            last = next;
            bucket = read(&self.units, last);
        }
        // The last entry of the last bucket fills the hole.
        let filled = bucket[..SLOTS].iter().rposition(|word| *word != 0);
        let Some(index) = filled else {
            self.units.store(at, 0);
            return;
        };
        let mover = last + 8 * index as u64;
        if before.is_some() || mover != at {
            self.units.store(at, bucket[index]);
        }
        self.units.store(mover, 0);
        if let (0, Some(before)) = (index, before) {
            self.set_link(before, 0);
            self.give_back(last);
        }
    }

    /// Whether it has become too full: [`ItemIndex::grow`] would help.
    #[inline]
    pub fn wants_growth(&self) -> bool {
        self.is_lossless
            && self.items * 100 > self.buckets() * SLOTS as u64 * LOAD_PERCENT
            && self.level < TAG_BITS - 1
    }

    fn buckets(&self) -> u64 {
        (self.base << self.level) + self.split
    }

    pub fn needs_unit(&self) -> bool {
        self.buckets() == self.directory.len() as u64 * u64::from(UNIT_BUCKETS)
    }

    /// Takes a zeroed unit for the next 1024 primary buckets.
    pub fn add_unit(&mut self, unit: u32) {
        let entry = &self.shape.directory[self.directory.len()];
        // Relaxed: a thread that sees the state that names it sees this too.
        entry.store(unit, Ordering::Relaxed);
        self.is_row &= unit as usize == self.directory.len();
        self.directory.push(unit);
    }

    /// Splits one bucket in two. Only when there is a unit for it, and free overflow buckets for
    /// two chains as long as the one that is split.
    pub fn grow(&mut self) {
        assert!(!self.needs_unit(), "an index grows into a unit");
        let (from, to) = (self.place(self.split), self.place(self.buckets()));
        let bit = 1 << self.level;
        version::open(&self.units, from + TAIL_AT);
        let words = self.take_chain(from);
        self.split += 1;
        if self.split == self.base << self.level {
            self.level += 1;
            self.split = 0;
        }
        for word in words {
            let start = if Slot(word).tag() & bit == 0 { from } else { to };
            self.append(start, word);
        }
        self.publish();
        version::close(&self.units, from + TAIL_AT);
    }

    /// Empties the chain that begins at `from`, of which the version is open; what was in it.
    fn take_chain(&mut self, from: u64) -> Vec<u64> {
        let mut words = Vec::new();
        let mut at = Some(from);
        while let Some(bucket_at) = at {
            let bucket = read(&self.units, bucket_at);
            words.extend(bucket[..SLOTS].iter().copied().filter(|word| *word != 0));
            for index in 0..SLOTS as u64 {
                self.units.store(bucket_at + 8 * index, 0);
            }
            at = next_at(&bucket);
            if bucket_at != from {
                self.give_back(bucket_at);
            }
        }
        self.set_link(from, 0);
        words
    }

    fn append(&mut self, start: u64, word: u64) {
        let mut at = start;
        loop {
            let bucket = read(&self.units, at);
            if let Some(index) = bucket[..SLOTS].iter().position(|word| *word == 0) {
                return self.units.store(at + 8 * index as u64, word);
            }
            at = next_at(&bucket).unwrap_or_else(|| {
                let full = (at / BUCKET_BYTES) as u32;
                // A half of a chain of k overflow buckets needs no more than k of them, and they
                // have just been given back.
                self.lengthen(full).expect("a half is no longer than the whole")
            });
        }
    }

    /// The items of all entries are flushed: they are to be swept out.
    pub fn flush(&mut self) {
        self.stale = self.items;
        self.swept = (self.stale > 0).then_some(0);
        self.publish();
    }

    #[inline(always)]
    pub fn is_sweeping(&self) -> bool {
        self.swept.is_some()
    }

    /// Sections hold keys from now on, or no more: readers without the lock are told.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
        self.publish();
        // Release: pairs with the Acquire in version.rs::is_still; a reader that has seen a change
        // of a section sees with its next look that keys are held.
        fence(Ordering::Release);
    }

    /// The entry that is taken out next is that of a flushed item.
    pub fn forget_stale(&mut self) {
        self.stale -= 1;
    }

    /// Takes entries of flushed items out of so many buckets. What splits meanwhile goes from a
    /// bucket to one with a higher number: none is missed in the order of their numbers.
    pub fn sweep(&mut self, buckets: u64, is_stale: impl Fn(Slot) -> bool) {
        let Some(start) = self.swept else { return };
        let end = self.buckets().min(start + buckets);
        for bucket in start..end {
            let from = self.place(bucket);
            if read(&self.units, from)[0] == 0 {
                // A chain has no holes before its last bucket.
                continue;
            }
            version::open(&self.units, from + TAIL_AT);
            for word in self.take_chain(from) {
                if is_stale(Slot(word)) {
                    (self.items, self.stale) = (self.items - 1, self.stale - 1);
                } else {
                    self.append(from, word);
                }
            }
            version::close(&self.units, from + TAIL_AT);
        }
        assert!(end < self.buckets() || self.stale == 0, "every entry lies in a bucket");
        self.swept = (self.stale > 0).then_some(end);
        self.publish();
    }

    /// The cursor that stands for the first bucket of `hash`.
    pub fn cursor_at(&self, hash: u64) -> u64 {
        let first = ((u128::from(hash) * u128::from(self.base)) >> 64) as u64;
        (first << TAG_BITS) | (tag_of(hash) & ((1 << self.level) - 1))
    }

    /// Visits all entries of the buckets that the cursor stands for; the next cursor, 0 at the
    /// end. However the index grows between two calls, no entry is missed that stays.
    ///
    /// The cursor is {bucket at level 0, reversed part}: as the parts are counted from their
    /// highest bit on, a part that was visited is never split into one that was not.
    pub fn scan(&self, cursor: u64, mut f: impl FnMut(u64, Slot)) -> u64 {
        let (first, part) = (cursor >> TAG_BITS, cursor & ((1 << TAG_BITS) - 1));
        if first >= self.base {
            return 0;
        }
        let mask = (1u64 << self.level) - 1;
        let bucket = first + self.base * (part & mask);
        self.visit(bucket, &mut f);
        let is_split = bucket < self.split;
        if is_split {
            self.visit(bucket + (self.base << self.level), &mut f);
        }
        let part = if self.level == 0 {
            0
        } else {
            let shift = 64 - self.level;
            let next = ((part & mask).reverse_bits() >> shift) + 1;
            ((next & mask) << shift).reverse_bits()
        };
        match part {
            0 if first + 1 >= self.base => 0,
            0 => (first + 1) << TAG_BITS,
            part => (first << TAG_BITS) | part,
        }
    }

    fn visit(&self, bucket: u64, f: &mut impl FnMut(u64, Slot)) {
        let mut at = Some(self.place(bucket));
        while let Some(bucket_at) = at {
            let bucket = read(&self.units, bucket_at);
            for (index, word) in bucket[..SLOTS].iter().enumerate() {
                if *word != 0 {
                    f(bucket_at + 8 * index as u64, Slot(*word));
                }
            }
            at = next_at(&bucket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Pos;
    use super::*;

    fn lossy() -> ItemIndex {
        ItemIndex::new(Window::heap(u64::from(UNIT_BYTES)), vec![0], false)
    }

    /// A hash of the first bucket with this tag.
    fn hash(tag: u64) -> u64 {
        tag << 16
    }

    fn insert(index: &mut ItemIndex, tag: u64) -> Option<u64> {
        let Room::At(at) = index.room(hash(tag)) else { return None };
        index.insert_at(at, Slot::new(hash(tag), Pos(tag)));
        Some(at)
    }

    #[test]
    fn all_slots_of_a_bucket_are_used_from_the_first_on() {
        let mut index = lossy();
        let places: Vec<_> = (1..=8).map(|tag| insert(&mut index, tag)).collect();
        let expected: Vec<_> = (0..7).map(|slot| Some(8 * slot)).chain([None]).collect();
        assert_eq!(places, expected);
        assert!((1..=7).all(|tag| index.find(hash(tag), |slot| slot.pos() == Pos(tag)).is_some()));
    }

    #[test]
    fn a_removal_leaves_no_hole_that_a_later_entry_could_hide_behind() {
        let mut index = lossy();
        let places: Vec<_> = (1..=5).map(|tag| insert(&mut index, tag).unwrap()).collect();
        index.remove(hash(2), places[1]);
        let mut left = Vec::new();
        index.for_bucket(hash(1), |at, slot| left.push((at, slot.tag())));
        assert_eq!(left, [(0, 1), (8, 5), (16, 3), (24, 4)]);
        assert_eq!(insert(&mut index, 9), Some(32));
        assert!(index.find(hash(2), |_| true).is_none());
    }

    #[test]
    fn a_probe_that_finds_nothing_names_no_entry_but_the_bucket_behind() {
        let mut index = lossy();
        insert(&mut index, 1).unwrap();
        let probe = |index: &ItemIndex, tag| {
            let probe = probe(index.units.bare(), None, 0, &tag_in_slot(hash(tag)));
            (probe.at, probe.target(), probe.is_entry)
        };
        assert_eq!(probe(&index, 1), (0, Pos(1).byte(), true));
        assert_eq!(probe(&index, 2), (8 * SLOTS as u64, 0, false));
        index.set_link(0, 5);
        assert_eq!(probe(&index, 2), (8 * SLOTS as u64, 5 * BUCKET_BYTES, false));
    }
}
