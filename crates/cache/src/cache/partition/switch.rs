//! Whether far memory is used changes while the partition is: see `segments/far.rs`, and
//! `evict/leave_far.rs` for what lies there then.

use super::{Memory, Partition, UNIT_SHIFT};

impl Partition {
    /// Has items go to far memory from now on, or leave it in idle turns.
    pub fn use_far(&mut self, is_used: bool) {
        self.segments.use_far(is_used);
        // What stayed there last was weighed in another time.
        self.last_ranks[Memory::Far as usize] = 0;
        self.is_split = false;
        self.sift.rounds = 0;
    }

    /// Longest value that is taken now: a quarter of the memory that long ones lie in.
    pub(crate) fn longest_value(&self) -> u64 {
        if self.segments.uses_far() || self.segments.far_units() == 0 {
            return self.max_value;
        }
        self.max_value.min(u64::from(self.segments.near_units() / 4) << UNIT_SHIFT)
    }
}
