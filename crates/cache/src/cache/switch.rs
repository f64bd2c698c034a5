//! A cache in use is told to use far memory, or to leave it.
//!
//! Far memory is the end of each partition's window, so nothing is mapped anew and no item changes
//! its address by a switch. In: a switch, at any time. Out: items that come near or go in idle turns
//! (`evict/leave_far.rs`), then memory for the system (`segments/far.rs`).

use super::error::Result;
use super::{Cache, LockedPartition, check};

impl Cache {
    /// Has items go to far memory ([`Options::far`](super::Options::far)) from now on, or no more.
    /// What lies there then comes near, if it is worth more than what lies near, or goes, by
    /// [`Cache::tidy`] and at its pace; a second after the last of it the memory is the system's
    /// again. [`Stats::far_bytes`](super::Stats::far_bytes) and
    /// [`Stats::far_held_units`](super::Stats::far_held_units) say how far that is. Does not block.
    ///
    /// A file is opened again with both: whether far memory is used says
    /// [`Options::far_waits`](super::Options::far_waits) then.
    ///
    /// # Errors
    /// [`Error::BadOption`](super::Error::BadOption) for a cache that was made without.
    pub fn use_far(&self, is_used: bool) -> Result<()> {
        check("far memory (to switch to)", u64::from(self.options.far.is_some()), 1, 1)?;
        // All at once, so that of two such calls one wins everywhere.
        let mut all: Vec<_> = self.partitions.iter().map(LockedPartition::lock).collect();
        all.iter_mut().for_each(|partition| partition.use_far(is_used));
        Ok(())
    }

    /// Whether items may go to far memory.
    pub fn uses_far(&self) -> bool {
        self.lock(0).segments.uses_far()
    }

    /// Bytes at the end of a partition's window that are not used.
    pub(super) fn waiting_bytes(&self) -> u64 {
        if self.uses_far() { 0 } else { self.options.far_bytes() }
    }
}
