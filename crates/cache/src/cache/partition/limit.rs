//! A partition's part of a limit of memory: see `cache/limit.rs`.

use super::{LOG_UNITS_MIN, Memory, Millis, Partition, UNIT_BYTES, UNIT_SHIFT};
use std::cmp::Ordering;

impl Partition {
    /// Near units that it needs at least.
    pub fn least_units(&self) -> u64 {
        self.index.unit_count() + LOG_UNITS_MIN + self.reserve_units[Memory::Near as usize] as u64
    }

    /// Takes a unit out of use, or makes one free for it, or has one come into use again; whether
    /// there was something to do, and it could be done.
    pub(super) fn approach_limit(&mut self, now: Millis) -> bool {
        match self.segments.compare_withheld() {
            Ordering::Equal => false,
            Ordering::Greater => {
                self.segments.release_withheld();
                true
            }
            Ordering::Less => {
                let reserve = self.reserve_units[Memory::Near as usize];
                if !self.has_free(Memory::Near, reserve + 1) {
                    return self.free_some(Memory::Near, now);
                }
                let Some(unit) = self.segments.withhold_one() else { return false };
                // A file keeps its memory: its file system may have none when it is wanted again.
                if !self.is_checked {
                    let at = u64::from(unit) << UNIT_SHIFT;
                    // Memory that the system does not take back is kept out of use as well.
                    let _ = self.units.give_back(at, u64::from(UNIT_BYTES));
                }
                true
            }
        }
    }
}
