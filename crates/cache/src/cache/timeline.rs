//! How the clock of a cache's items relates to others: to the wall's, by which some items expire,
//! and, for a later process, to the clock of the system's boot.
//!
//! In: a [`Timeline`] from a caller that has clocks. Out: the wall's time for a time of the items'
//! clock, and the timeline that the cache's file kept, from its superblock's page: twice, each with
//! a check, one written after the other, so that one is whole and new whenever the process dies.
//! Called by `mod.rs`.

use super::Millis;
use super::layout::mix;
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::sync::atomic::{AtomicI64, Ordering};

/// Where the copies lie in the file, behind those of the superblock.
const COPIES_AT: [u64; 2] = [8192, 12_288];
const WORDS: usize = 5;
const CHECK_AT: u64 = 8 * WORDS as u64;

/// Where the clock of a cache's items stands, seen from other clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The boot of the system in which it was taken.
    pub boot: [u64; 2],
    /// Milliseconds since that boot when it was taken.
    pub since_boot: Millis,
    /// The items' clock then.
    pub now: Millis,
    /// The wall clock then, milliseconds since the Unix epoch.
    pub wall: Millis,
}

impl Timeline {
    fn words(&self) -> [u64; WORDS] {
        [self.boot[0], self.boot[1], self.since_boot, self.now, self.wall]
    }

    /// The one that a file kept.
    pub(super) fn read(window: &Window) -> Option<Timeline> {
        COPIES_AT.into_iter().find_map(|at| {
            let words: [u64; WORDS] =
                std::array::from_fn(|index| window.load(at + 8 * index as u64));
            let [high, low, since_boot, now, wall] = words;
            let is_whole = window.load(at + CHECK_AT) == check_of(&words);
            is_whole.then_some(Timeline { boot: [high, low], since_boot, now, wall })
        })
    }

    pub(super) fn write(&self, window: &Window) {
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

/// How far the wall clock is ahead of the items'.
#[derive(Debug, Default)]
pub(crate) struct Wall(AtomicI64);

impl Wall {
    /// The wall's time at a time of the items' clock.
    #[inline]
    pub fn at(&self, now: Millis) -> Millis {
        now.saturating_add_signed(self.ahead())
    }

    /// Milliseconds.
    #[inline]
    pub fn ahead(&self) -> i64 {
        // Relaxed: a number by itself.
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, ahead: i64) {
        // Relaxed: as above.
        self.0.store(ahead, Ordering::Relaxed);
    }
}
