//! Pages of allocations in the indexes and counters, as they come and go.

use crate::daemon::frames::FrameEntry;
use crate::daemon::{Daemon, World};

impl Daemon {
    /// Takes an allocation's page out of the indexes and counters.
    pub(in crate::daemon) fn uncount(&mut self, frame: u32, entry: &FrameEntry) {
        if let Some(held) = self.spilling.forget(frame) {
            self.allocations_live -= held.allocations;
            self.allocated_bytes -= held.bytes;
            return;
        }
        match self.slabs.remove(frame) {
            Some((slab, live)) => {
                self.allocations_live -= u64::from(live);
                self.allocated_bytes -= u64::from(live) << slab.class.shift;
            }
            None => {
                self.allocations_live -= u64::from(entry.first);
                self.allocated_bytes -= self.layout.pages.page_bytes();
            }
        }
    }

    /// Puts a page that is at home into the indexes and counters. A run counts where its first page
    /// is, each of its pages with its bytes.
    pub(super) fn count<W: World>(&mut self, frame: u32, entry: &FrameEntry, world: &W) {
        if self.frames.is_slot(frame) {
            let counted = self.count_spilled(frame, entry, world);
            return counted.expect("the bitmap was checked before the page was in a slot");
        }
        if entry.shift == 0 {
            self.allocations_live += u64::from(entry.first);
            self.allocated_bytes += self.layout.pages.page_bytes();
            return;
        }
        let found = self.slabs.insert_found(world.private(), frame, entry.class());
        let live = found.expect("the bitmap was checked before the page was at home");
        self.allocations_live += u64::from(live);
        self.allocated_bytes += u64::from(live) << entry.shift;
    }
}
