//! The words that a handle has last seen in buckets, so that it can ask for a bucket's word and
//! blob together. A hint and never more: the word that comes back tells whether it was right, so
//! buckets may share an entry, and nothing is ever told of changes.
//!
//! Eight bytes an entry; as many as twice the keys of the table, hence at most 16 bytes a key, and
//! no more than the buckets or [`Options::seen_bytes_max`](crate::Options::seen_bytes_max).

use crate::constants::SEEN_ENTRIES_MIN;
use crate::word::Word;

const ENTRY_BYTES: u64 = 8;

#[derive(Debug)]
pub(crate) struct SeenWords {
    /// 0 where no word was seen.
    words: Vec<u64>,
    /// The buckets share the entries by their lowest bits, so many.
    level: u8,
    entries_max: u64,
    /// Buckets that were looked at without help since the size was last chosen.
    misses: u64,
}

impl SeenWords {
    pub fn new(level: u8, bytes_max: u64) -> SeenWords {
        let entries_max = bytes_max / ENTRY_BYTES;
        let entries = entries_max.min(SEEN_ENTRIES_MIN);
        // As many buckets as entries share none, also if the table does not have them yet.
        let level = level.max(entries.max(1).next_power_of_two().trailing_zeros() as u8);
        SeenWords { words: vec![0; entries as usize], level, entries_max, misses: 0 }
    }

    #[inline]
    fn index(&self, bucket: u64) -> usize {
        let lowest = bucket & ((1 << self.level) - 1);
        (lowest * self.words.len() as u64 >> self.level) as usize
    }

    /// The word that was last seen in this bucket, or in one that shares its entry.
    #[inline]
    pub fn get(&self, bucket: u64) -> Option<Word> {
        let word = *self.words.get(self.index(bucket))?;
        (word != 0).then_some(Word(word))
    }

    #[inline]
    pub fn put(&mut self, bucket: u64, word: Word) {
        let index = self.index(bucket);
        if let Some(entry) = self.words.get_mut(index) {
            *entry = word.0;
        }
    }

    /// A bucket was looked at without help; whether there may be keys enough for more entries.
    pub fn missed(&mut self) -> bool {
        self.misses += 1;
        let entries = self.words.len() as u64;
        let is_due = self.misses > entries && entries < self.entries_max;
        if is_due {
            self.misses = 0;
        }
        is_due
    }

    /// Chooses the size for so many keys in a table of this level. What grows begins empty.
    pub fn resize(&mut self, keys: u64, level: u8) {
        let wanted = keys.saturating_mul(2).min(1 << level).min(self.entries_max);
        let entries = self.words.len() as u64;
        if wanted >= 2 * entries || wanted == self.entries_max && wanted > entries {
            self.words = vec![0; wanted as usize];
            self.level = level;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_remembers_at_most_sixteen_bytes_a_key_and_its_limit() {
        for (keys, level, bytes_max) in
            [(100_000u64, 18, 1 << 30), (100_000, 17, 1 << 30), (100_000, 18, 1 << 17)]
        {
            let mut seen = SeenWords::new(2, bytes_max);
            while !seen.missed() {}
            seen.resize(keys, level);
            let bytes = ENTRY_BYTES * seen.words.len() as u64;
            assert!(bytes <= (16 * keys).min(bytes_max), "{bytes} bytes");
            assert!(bytes >= (8 * keys).min(bytes_max), "{bytes} bytes");
            // The buckets are spread over all entries, and each has one.
            let mut used = vec![false; seen.words.len()];
            (0..1 << level).for_each(|bucket| used[seen.index(bucket)] = true);
            assert!(used.iter().all(|used| *used));
            seen.put(5 + (1 << level), Word(7));
            assert_eq!(seen.get(5), Some(Word(7)));
        }
    }

    #[test]
    fn the_first_buckets_of_a_small_table_share_nothing() {
        let mut seen = SeenWords::new(0, 1 << 20);
        (0..SEEN_ENTRIES_MIN).for_each(|bucket| seen.put(bucket, Word(bucket + 1)));
        let all = (0..SEEN_ENTRIES_MIN).all(|at| seen.get(at) == Some(Word(at + 1)));
        assert!(all);
    }

    #[test]
    fn without_memory_nothing_is_remembered() {
        let mut seen = SeenWords::new(10, 0);
        seen.put(5, Word(7));
        assert_eq!(seen.get(5), None);
        assert!(!seen.missed());
    }
}
