//! Where each item lies: 16 bytes a slot, four in a cache line, in a table of a size that is given
//! once. An item may be in one of two lines. An item is known by its 64-bit hash alone; its key is
//! compared when it is read.
//!
//! In: hashes and words. Out: words; the hash that had to make room for another. Many threads call,
//! each under the lock of one of 64 shards, for some ten instructions and two cache lines.

use crate::layout::RECORD_ALIGN;
use rackpool_core::seam::Mem;
use rackpool_mem::direct::BLOCK_BYTES;
use rackpool_mem::window::Window;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: u64 = 64;
const LINE_BYTES: u64 = 64;
const SLOT_BYTES: u64 = 16;
/// Slots that are filled when all items are there that it was made for, percent.
const FILLED_PERCENT: u64 = 75;

const PRESENT: u64 = 1;
const PENDING: u64 = 2;
const USED: u64 = 4;
const LEN_SHIFT: u32 = 3;
const LEN_BITS: u32 = 17;
const PLACE_SHIFT: u32 = LEN_SHIFT + LEN_BITS;
/// Places within a batch that is not written yet: 64 MiB of records.
const PENDING_BITS: u32 = 20;

/// Where a record lies, and how long it is: on the device, or in a batch that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexWord(u64);

impl IndexWord {
    pub fn at(place: u64, bytes: usize) -> IndexWord {
        let (place, len) = (place / RECORD_ALIGN as u64, (bytes / RECORD_ALIGN) as u64);
        IndexWord(PRESENT | len << LEN_SHIFT | place << PLACE_SHIFT)
    }

    /// In a batch; of a number only the lower 24 bits are kept.
    pub fn pending(batch: u64, at: usize, bytes: usize) -> IndexWord {
        let batch = batch & ((1 << (64 - PLACE_SHIFT - PENDING_BITS)) - 1);
        let units = batch << PENDING_BITS | (at / RECORD_ALIGN) as u64;
        IndexWord(IndexWord::at(units * RECORD_ALIGN as u64, bytes).0 | PENDING)
    }

    pub fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    pub fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    /// A number of its place.
    pub fn version(self) -> u64 {
        self.0 & !USED
    }

    pub fn is_at(self, other: IndexWord) -> bool {
        self.version() == other.version()
    }

    pub fn place(self) -> u64 {
        (self.0 >> PLACE_SHIFT) * RECORD_ALIGN as u64
    }

    /// Where in its batch a pending one lies.
    pub fn place_in_batch(self) -> usize {
        (self.place() as usize) & ((RECORD_ALIGN << PENDING_BITS) - 1)
    }

    pub fn bytes(self) -> usize {
        (self.0 >> LEN_SHIFT) as usize % (1 << LEN_BITS) * RECORD_ALIGN
    }

    /// The whole blocks in which it lies.
    pub fn span(self) -> (u64, usize) {
        let start = self.place() & !(BLOCK_BYTES as u64 - 1);
        let end = (self.place() + self.bytes() as u64).next_multiple_of(BLOCK_BYTES as u64);
        (start, (end - start) as usize)
    }
}

#[derive(Debug)]
struct Shard {
    lines: Window,
    count: u64,
    items: u64,
    bytes: u64,
    /// Which slot goes next where a line is full.
    turn: u64,
}

#[derive(Debug)]
pub(crate) struct Index(Box<[Mutex<Shard>]>);

impl Shard {
    /// Where the two lines of a hash are.
    fn lines_of(&self, hash: u64) -> [u64; 2] {
        let other = hash.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [hash, other].map(|hash| ((u128::from(hash << 6) * u128::from(self.count)) >> 64) as u64)
    }

    fn slots(line: u64) -> impl Iterator<Item = u64> {
        (line * LINE_BYTES..(line + 1) * LINE_BYTES).step_by(SLOT_BYTES as usize)
    }

    fn word(&self, at: u64) -> u64 {
        self.lines.load(at + 8)
    }

    fn find(&self, hash: u64) -> Option<(u64, IndexWord)> {
        let mut slots = self.lines_of(hash).into_iter().flat_map(Shard::slots);
        let is_it = |at: &u64| self.word(*at) != 0 && self.lines.load(*at) == hash;
        slots.find(is_it).map(|at| (at, IndexWord(self.word(at))))
    }

    fn set(&mut self, at: u64, hash: u64, word: IndexWord) {
        let old = IndexWord(self.word(at));
        self.items += u64::from(old.0 == 0);
        self.bytes = self.bytes + word.bytes() as u64 - old.bytes() as u64;
        self.lines.store(at, hash);
        self.lines.store(at + 8, word.0);
    }

    fn clear(&mut self, at: u64, word: IndexWord) {
        self.items -= 1;
        self.bytes -= word.bytes() as u64;
        self.lines.store(at + 8, 0);
    }

    /// A free slot in the emptier of its lines.
    fn free_slot(&self, hash: u64) -> Option<u64> {
        let free = |line: u64| Shard::slots(line).filter(move |at| self.word(*at) == 0);
        let [first, second] = self.lines_of(hash);
        let line = if free(first).count() >= free(second).count() { first } else { second };
        free(line).next()
    }
}

impl Index {
    /// Bytes of a table for so many items.
    pub fn bytes_for(items: u64) -> u64 {
        (items * SLOT_BYTES * 100 / FILLED_PERCENT).next_multiple_of(SHARDS * LINE_BYTES)
    }

    /// A table of about so many bytes, which are taken at their first use.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bytes: u64) -> io::Result<Index> {
        let each = (bytes / SHARDS).next_multiple_of(LINE_BYTES).max(LINE_BYTES);
        let window = Window::private(each * SHARDS)?;
        let shard = |index| {
            let lines = window.slice(index * each, each);
            Mutex::new(Shard { lines, count: each / LINE_BYTES, items: 0, bytes: 0, turn: 0 })
        };
        Ok(Index((0..SHARDS).map(shard).collect()))
    }

    fn lock(&self, hash: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.0[(hash >> 58) as usize];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.0.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn get(&self, hash: u64) -> Option<IndexWord> {
        self.lock(hash).find(hash).map(|(_, word)| word)
    }

    /// Notes that it was read.
    pub fn mark_used(&self, hash: u64) {
        let shard = self.lock(hash);
        if let Some((at, word)) = shard.find(hash) {
            shard.lines.store(at + 8, word.0 | USED);
        }
    }

    /// Whether there is a slot for it without another item's making room.
    pub fn has_room(&self, hash: u64) -> bool {
        let shard = self.lock(hash);
        shard.find(hash).is_some() || shard.free_slot(hash).is_some()
    }

    /// The hash of an item that has to go before there is a slot for this one; none if there is.
    pub fn victim(&self, hash: u64) -> Option<u64> {
        let mut shard = self.lock(hash);
        if shard.find(hash).is_some() || shard.free_slot(hash).is_some() {
            return None;
        }
        shard.turn += 1;
        let at = shard.lines_of(hash)[0] * LINE_BYTES + shard.turn % 4 * SLOT_BYTES;
        Some(shard.lines.load(at))
    }

    /// Enters an item; the hash of another one that had to go.
    pub fn insert(&self, hash: u64, word: IndexWord) -> Option<u64> {
        let mut shard = self.lock(hash);
        let free = shard.find(hash).map(|(at, _)| at).or_else(|| shard.free_slot(hash));
        if let Some(at) = free {
            shard.set(at, hash, word);
            return None;
        }
        shard.turn += 1;
        let at = shard.lines_of(hash)[0] * LINE_BYTES + shard.turn % 4 * SLOT_BYTES;
        let gone = shard.lines.load(at);
        shard.set(at, hash, word);
        Some(gone)
    }

    pub fn remove(&self, hash: u64) -> Option<IndexWord> {
        let mut shard = self.lock(hash);
        let (at, word) = shard.find(hash)?;
        shard.clear(at, word);
        Some(word)
    }

    /// Removes an item if it lies there; whether it did.
    pub fn remove_at(&self, hash: u64, word: IndexWord) -> bool {
        let mut shard = self.lock(hash);
        match shard.find(hash) {
            Some((at, found)) if found.is_at(word) => {
                shard.clear(at, found);
                true
            }
            _ => false,
        }
    }

    /// Notes that an item lies elsewhere now, if it lay there; whether it did.
    pub fn repoint(&self, hash: u64, from: IndexWord, to: IndexWord) -> bool {
        let mut shard = self.lock(hash);
        match shard.find(hash) {
            Some((at, found)) if found.is_at(from) => {
                shard.set(at, hash, to);
                true
            }
            _ => false,
        }
    }

    /// Removes what lies on the device in these bytes. Looks at all.
    pub fn remove_places(&self, places: &Range<u64>) {
        for mut shard in self.all() {
            for at in (0..shard.lines.bytes()).step_by(SLOT_BYTES as usize) {
                let word = IndexWord(shard.word(at));
                if word.0 != 0 && !word.is_pending() && places.contains(&word.place()) {
                    shard.clear(at, word);
                }
            }
        }
    }

    pub fn clear(&self) {
        for mut shard in self.all() {
            shard.lines.zero(0, shard.lines.bytes());
            (shard.items, shard.bytes) = (0, 0);
        }
    }

    /// Items, and bytes of their records.
    pub fn sums(&self) -> (u64, u64) {
        self.all().fold((0, 0), |sums, shard| (sums.0 + shard.items, sums.1 + shard.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn items_are_found_moved_and_removed_and_the_sums_are_right() {
        let index = Index::new(Index::bytes_for(100_000)).unwrap();
        let hash = |number: u64| xxh3_64(&number.to_le_bytes());
        let word = |number: u64| IndexWord::at(number * 128, 128);
        let gone = (0..100_000).filter_map(|n| index.insert(hash(n), word(n))).count();
        assert!(gone < 1000, "{gone} of 100000 items had no slot");
        assert_eq!(index.sums(), (100_000 - gone as u64, 128 * (100_000 - gone as u64)));
        let n = (0..).find(|n| index.get(hash(*n)).is_some()).unwrap();
        let pending = IndexWord::pending(u64::MAX, 4096, 64);
        assert!(pending.is_pending() && pending.place_in_batch() == 4096);
        assert!(!index.repoint(hash(n), pending, word(n)));
        index.mark_used(hash(n));
        assert!(index.get(hash(n)).unwrap().is_used());
        assert!(index.repoint(hash(n), word(n), pending));
        assert_eq!(index.get(hash(n)), Some(pending));
        assert!(!index.remove_at(hash(n), word(n)) && index.remove_at(hash(n), pending));
        assert_eq!((index.remove(hash(n)), index.get(hash(n))), (None, None));
        index.remove_places(&(0..128 * 50_000));
        let (items, bytes) = index.sums();
        assert!((49_000..=50_000).contains(&items) && bytes == 128 * items, "{items}");
        index.clear();
        assert_eq!((index.sums(), index.get(hash(70_000))), ((0, 0), None));
    }

    #[test]
    fn a_word_spans_the_blocks_in_which_its_record_lies() {
        let word = IndexWord::at(3 * 4096 - 64, 128);
        assert_eq!((word.span(), word.bytes()), ((2 * 4096, 8192), 128));
        let longest = IndexWord::at((1 << 49) - (1 << 20), 1 << 20);
        assert_eq!((longest.place(), longest.bytes()), ((1 << 49) - (1 << 20), 1 << 20));
    }
}
