//! Far memory that is used no more is emptied in idle turns, at the pace at which it is gone
//! through otherwise (`sift.rs`), round by round, and then goes back to the system.
//!
//! A far round takes the oldest segments, as always, and gives all of them back: of their items
//! those that are worth more than what stayed near last come near, or all while near memory has
//! room to spare; the rest is dropped. Before each such round one of near memory makes room there
//! for a unit's bytes, where there is none.

use super::Partition;
use crate::cache::Millis;
use crate::cache::segments::{FAR_QUEUE, Memory};

impl Partition {
    /// Makes a step, such as to begin a round; whether there was one to make.
    pub(super) fn leave_far(&mut self, now: Millis) -> bool {
        if self.segments.oldest(FAR_QUEUE).is_none() {
            return self.segments.give_far_back(&self.units, now);
        }
        if self.sift.rounds == 0 && !self.has_unit_near() {
            self.sift.rounds = 1;
            self.begin_round(Memory::Near);
        } else {
            self.sift.rounds = 0;
            self.begin_round(Memory::Far);
        }
        true
    }

    /// Whether so many far units are free, and may be used.
    pub(super) fn has_free_far(&mut self, units: usize) -> bool {
        let far = Memory::Far;
        self.segments.uses_far()
            && (self.segments.reclaim(far) >= units
                || (self.segments.take_more(far) && self.segments.free_count(far) >= units))
    }

    /// Whether near memory has a free unit beside its reserve.
    fn has_unit_near(&self) -> bool {
        self.segments.free_count(Memory::Near) > self.reserve_units[Memory::Near as usize]
    }
}
