//! Far memory as a whole: whether it is used, which of its units may come into use, and how its
//! memory goes back to the system when it is used no more.
//!
//! While it is not used nothing is placed there; what is there stays until it is moved or dropped.
//! When its memory goes back no unit is listed as free any more. Used again, units are listed piece
//! by piece; those of a file get their memory then.

use super::{Memory, Millis, SegmentState, Segments};
use crate::cache::layout::UNIT_SHIFT;
use crate::cache::populate::{PIECE_UNITS, Populator};
use rackpool_mem::window::Window;
use std::io;
use std::sync::Arc;

/// How long nothing has to lie in far memory before it goes back: a reader without the lock that
/// was told of an item there has read it by then, or never will. It would find zeros, and then that
/// the version has changed; but of a file it would take memory again.
const EMPTY_MS: Millis = 1000;

#[derive(Debug, Default)]
pub(crate) struct FarUnits {
    is_used: bool,
    /// Of a file: takes the memory of units before they are listed.
    pub populator: Option<Arc<Populator>>,
    /// Units from this one on are not listed as free.
    pub(super) unlisted: u32,
    /// Units that hold something, or that a reader still sends from.
    pub(super) in_use: u32,
    /// Units from this one on may have memory, if far memory is not used.
    kept: u32,
    empty_since: Option<Millis>,
    /// Whether the system has refused to take memory back.
    is_refused: bool,
}

impl FarUnits {
    /// All are free: units from `near_units` to `count`.
    pub(super) fn new(near_units: u32, count: u32) -> FarUnits {
        let is_used = near_units < count;
        FarUnits { is_used, unlisted: count, kept: count, ..FarUnits::default() }
    }
}

impl Segments {
    /// Whether items may go to far memory.
    #[inline]
    pub fn uses_far(&self) -> bool {
        self.far.is_used
    }

    /// Has items go to far memory, or no more of them.
    pub fn use_far(&mut self, is_used: bool) {
        if is_used == self.far.is_used || self.far_units() == 0 {
            return;
        }
        let far = &mut self.far;
        (far.is_used, far.kept) = (is_used, self.near_units);
        (far.empty_since, far.is_refused) = (None, false);
        self.take_more(Memory::Far);
    }

    /// Takes the first memory of far units of a file before they are used: without any, long values
    /// would find no place.
    ///
    /// # Errors
    /// What the system says.
    pub fn ready_far(&mut self) -> io::Result<()> {
        let Some(populator) = &self.far.populator else { return Ok(()) };
        if self.far.is_used || populator.taken() > 0 {
            return Ok(());
        }
        // If another partition gets none, this goes back as all of it does.
        (self.far.kept, self.far.empty_since, self.far.is_refused) = (self.near_units, None, false);
        populator.take_next().map(drop)
    }

    /// At the start: far memory is not used before [`Segments::use_far`]. It has none of the
    /// system's, or what an earlier process left.
    pub fn hold_far_back(&mut self, is_new: bool) {
        self.use_far(false);
        self.unlist_far();
        if is_new {
            self.far.kept = self.of.len() as u32;
        }
    }

    fn unlist_far(&mut self) {
        self.free[Memory::Far as usize].clear();
        self.far.unlisted = self.near_units;
        if let Some(populator) = &self.far.populator {
            populator.begin_anew();
        }
    }

    /// Lists some more units of far memory, those that are free: of a file that was opened again
    /// some are in use. Whether there were any to look at.
    pub(super) fn take_more_far(&mut self) -> bool {
        let (from, count) = (self.far.unlisted, self.of.len() as u32);
        if !self.far.is_used || from == count {
            return false;
        }
        let upto = match &self.far.populator {
            None => count.min(from + PIECE_UNITS),
            Some(populator) => {
                let has_taken = self.near_units + populator.taken() > from;
                if !has_taken && !populator.take_next().unwrap_or(false) {
                    // The file system has no more to give: far memory is smaller.
                    return false;
                }
                self.near_units + populator.taken()
            }
        };
        let is_free = |unit: &u32| self.of[*unit as usize].kind == SegmentState::Free;
        self.free[Memory::Far as usize].extend((from..upto).rev().filter(is_free));
        self.far.unlisted = upto;
        true
    }

    /// Units of far memory that nothing lies in.
    pub(super) fn far_unused(&self) -> usize {
        (self.far_units() - self.far.in_use) as usize
    }

    /// Units of far memory that may have memory of the system.
    pub fn far_held(&self) -> u32 {
        let held = self.of.len() as u32 - self.far.kept;
        if self.far.is_used { self.far_units() } else { held }
    }

    /// Gives the memory of some far units of `units` back to the system, if far memory is not used
    /// and nothing has been there for a while; whether there may be more.
    pub fn give_far_back(&mut self, units: &Window, now: Millis) -> bool {
        self.reclaim(Memory::Far);
        let (near_units, count) = (self.near_units, self.of.len() as u32);
        let far = &mut self.far;
        if far.is_used || far.in_use > 0 {
            far.empty_since = None;
            return false;
        }
        let since = *far.empty_since.get_or_insert(now);
        if far.kept == count || far.is_refused || now < since.saturating_add(EMPTY_MS) {
            return false;
        }
        if far.kept == near_units {
            self.unlist_far();
        }
        let far = &mut self.far;
        let upto = count.min(far.kept + PIECE_UNITS);
        let bytes = u64::from(upto - far.kept) << UNIT_SHIFT;
        match units.give_back(u64::from(far.kept) << UNIT_SHIFT, bytes) {
            Ok(()) => far.kept = upto,
            // It stays, as the gauge says.
            Err(_) => far.is_refused = true,
        }
        true
    }
}
