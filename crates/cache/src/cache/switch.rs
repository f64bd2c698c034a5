//! A cache in use is told to use far memory, or to leave it.
//!
//! Far memory is the end of each partition's window, so nothing is mapped anew and no item changes
//! its address by a switch. In: a switch, at any time. Out: items that come near or go, in idle
//! turns (`evict/leave_far.rs`), then memory for the system (`segments/far.rs`).

use super::error::{Error, Result};
use super::layout::UNIT_SHIFT;
use super::{Cache, LockedPartition, check};
use std::os::unix::fs::MetadataExt;

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
    /// [`Error::BadOption`] for a cache that was made without; [`Error::Numa`] if its nodes have
    /// too little left, [`Error::Io`] if the file system has none: nothing has changed then.
    pub fn use_far(&self, is_used: bool) -> Result<()> {
        check("far memory (to switch to)", u64::from(self.options.far.is_some()), 1, 1)?;
        if is_used {
            self.check_far_room()?;
        }
        // All at once, so that of two such calls one wins everywhere.
        let mut all: Vec<_> = self.partitions.iter().map(LockedPartition::lock).collect();
        if is_used {
            for partition in &mut all {
                let taken = partition.segments.ready_far();
                let what = "taking far memory of the file".to_owned();
                taken.map_err(|source| Error::Io { what, source })?;
            }
        }
        all.iter_mut().for_each(|partition| partition.use_far(is_used));
        Ok(())
    }

    /// Bound memory that its nodes do not have would have the kernel end this process.
    fn check_far_room(&self) -> Result<()> {
        let placement = self.options.far.as_ref().and_then(|far| far.placement.as_ref());
        let Some(placement) = placement else { return Ok(()) };
        let missing_bytes = match &self.file {
            Some(file) => {
                let what = "looking at the file of the cache".to_owned();
                let found = file.1.metadata().map_err(|source| Error::Io { what, source })?;
                found.len().saturating_sub(found.blocks() * 512)
            }
            None => {
                let stats = self.stats();
                (stats.far_units - stats.far_held_units) << UNIT_SHIFT
            }
        };
        if missing_bytes > 0 {
            placement.check_free(missing_bytes)?;
        }
        Ok(())
    }

    /// Longest value that is taken now: shorter while far memory is not used.
    pub fn longest_value(&self) -> u64 {
        let has_tier = self.far_bytes_min != u64::MAX;
        match self.options.far {
            Some(_) if !has_tier => self.lock(0).longest_value(),
            _ => self.options.max_value,
        }
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

#[cfg(test)]
mod tests {
    use crate::{Cache, FarMemory, Options, PartitionShare};
    use rackpool_core::seam::Mem;

    /// Pages that the far memory of a cache of one partition has of the system.
    fn far_pages(cache: &Cache) -> u64 {
        let units = cache.partitions[0].view.units();
        let far_bytes = cache.options.far_bytes();
        let far = units.slice(units.bytes() - far_bytes, far_bytes);
        far.node_pages().unwrap().into_values().sum()
    }

    #[test]
    fn far_memory_takes_pages_only_while_it_is_used() {
        let far = Some(FarMemory { memory: 16 << 20, placement: None, bandwidths: None });
        let options = Options { memory: 4 << 20, far, far_waits: true, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        cache.populate(|| true).unwrap();
        let value = [7; 1000];
        let fill = |keys: std::ops::Range<u64>| {
            for key in keys {
                cache.set(&key.to_le_bytes(), &value, 0, 0, 1).unwrap();
            }
        };
        fill(0..10_000);
        // A huge page of near memory may go beyond its end.
        assert!(far_pages(&cache) < 512 && cache.stats().far_held_units == 0);
        cache.use_far(true).unwrap();
        fill(10_000..20_000);
        let taken = far_pages(&cache) * 4096;
        let far_bytes = cache.stats().far_bytes;
        assert!(taken >= far_bytes && far_bytes > 6 << 20, "{taken} bytes for {far_bytes}");
        cache.use_far(false).unwrap();
        let mut now = 1;
        while cache.stats().far_held_units > 0 && now < 1_000_000 {
            // It is all there as long as anything lies in it, and for a second more.
            assert!(cache.stats().far_bytes == 0 || far_pages(&cache) * 4096 >= taken);
            now += 1000;
            cache.tidy(PartitionShare::ALL, now, || true);
        }
        assert!(far_pages(&cache) < 512 && cache.stats().far_held_units == 0);
    }
}
