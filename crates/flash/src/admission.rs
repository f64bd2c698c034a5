//! Which items a cache writes to flash: not those that came once and were never asked for, and none
//! that is too long. In: hashes of items that leave memory. Out: yes or no. Many threads call.

use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashAdmission {
    /// Not one that leaves memory for the first time, unless it was read there.
    pub rejects_first: bool,
    /// Shortest and longest record, bytes of key and value.
    pub min_bytes: usize,
    pub max_bytes: usize,
}

impl Default for FlashAdmission {
    fn default() -> FlashAdmission {
        FlashAdmission { rejects_first: true, min_bytes: 0, max_bytes: usize::MAX }
    }
}

/// Items that have left memory lately: a part of the hash of the last one in each slot.
#[derive(Debug)]
pub struct FlashGhosts(Box<[AtomicU32]>);

impl FlashGhosts {
    /// With so many slots of 4 bytes.
    pub fn new(count: u64) -> FlashGhosts {
        FlashGhosts((0..count.max(1)).map(|_| AtomicU32::new(0)).collect())
    }

    /// Notes that it leaves; whether it has before.
    fn has_left(&self, hash: u64) -> bool {
        let slot = ((u128::from(hash) * self.0.len() as u128) >> 64) as usize;
        let mark = hash as u32 | 1;
        // Relaxed: a guess, which a lost store makes no worse.
        self.0[slot].swap(mark, Ordering::Relaxed) == mark
    }
}

impl FlashAdmission {
    /// Whether an item of so many bytes that leaves is taken; notes that it leaves.
    pub fn admits(self, ghosts: &FlashGhosts, hash: u64, bytes: usize, was_read: bool) -> bool {
        (self.min_bytes..=self.max_bytes).contains(&bytes)
            && (!self.rejects_first || was_read || ghosts.has_left(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_admitted_when_it_leaves_again_or_was_read_and_is_neither_short_nor_long() {
        let ghosts = FlashGhosts::new(1000);
        let by_size = FlashAdmission { min_bytes: 10, max_bytes: 20, ..FlashAdmission::default() };
        assert!(!by_size.admits(&ghosts, 1 << 60, 15, false));
        assert!(by_size.admits(&ghosts, 1 << 60, 15, false));
        assert!(by_size.admits(&ghosts, 2 << 60, 15, true));
        for bytes in [9, 21] {
            assert!(!by_size.admits(&ghosts, 1 << 60, bytes, true));
        }
        assert!(FlashAdmission { rejects_first: false, ..by_size }.admits(
            &ghosts,
            3 << 60,
            20,
            false
        ));
    }
}
