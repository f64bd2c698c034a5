//! A cache in use is told in which memories its items are to lie.
//!
//! Nothing is mapped anew and no item changes its address by a switch. Far memory is the end of
//! each partition's window, and is used or left; pages of near memory, all the rest, move between
//! nodes. In: a switch, at any time; of two the later one holds. Out, in idle turns: items that
//! come near or go (`evict/leave_far.rs`), then memory for the system (`segments/far.rs`); pages
//! that move (`near_pages.rs`).

use super::error::{Error, Result};
use super::layout::UNIT_SHIFT;
use super::{Cache, LockedPartition, Options, check};
use rackpool_mem::numa::{GRAIN_BYTES_MAX, PageTarget, Placement};
use rackpool_mem::window::Window;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// In which memories the items of a cache lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tiering {
    /// All in near memory.
    Dram,
    /// Those that are worth most in near memory, others in far memory ([`Options::far`]).
    Data,
    /// All in near memory, which is dealt out to these nodes by weights, with the index.
    Transparent(Placement),
}

impl Tiering {
    /// Its name in commands.
    pub fn name(&self) -> &'static str {
        match self {
            Tiering::Dram => "dram",
            Tiering::Data => "data",
            Tiering::Transparent(_) => "transparent",
        }
    }
}

/// To which nodes near memory is dealt out by weights.
#[derive(Debug)]
pub(super) struct DealtNodes {
    now: Option<Placement>,
    /// Also if it is dealt out no more.
    last: Option<Placement>,
}

impl DealtNodes {
    /// With far memory its placement says where near memory comes from.
    pub fn of(options: &Options) -> Arc<Mutex<DealtNodes>> {
        let now = options.placement.clone().filter(|_| options.far.is_none());
        Arc::new(Mutex::new(DealtNodes { last: now.clone(), now }))
    }
}

impl Cache {
    fn dealt(&self) -> MutexGuard<'_, DealtNodes> {
        self.dealt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In which memories items lie, or come to lie.
    pub fn tiering(&self) -> Tiering {
        match &self.dealt().now {
            _ if self.uses_far() => Tiering::Data,
            Some(nodes) => Tiering::Transparent(nodes.clone()),
            None => Tiering::Dram,
        }
    }

    /// The nodes of [`Tiering::Transparent`] now, or the last time.
    pub fn last_dealt_to(&self) -> Option<Placement> {
        self.dealt().last.clone()
    }

    /// Has items lie there from now on. Far memory is used or left as by [`Cache::use_far`]. Pages
    /// of near memory that lie elsewhere move by [`Cache::tidy`] and at its pace, while items are
    /// read and stored: those of [`Tiering::Transparent`] to their nodes, [`Options::grain_bytes`]
    /// for each unit of weight in turn (and all memory is taken), else to any node with processors.
    /// [`Stats::pages_left_bytes`](super::Stats::pages_left_bytes) says how far that is, and
    /// [`Stats::pages_stayed_bytes`](super::Stats::pages_stayed_bytes) what could not move; given
    /// again, these are tried again. Blocks for some ms.
    ///
    /// # Errors
    /// Of [`Cache::use_far`]; [`Error::Numa`] if a node is not there or has too little left, or if
    /// pages may not be moved: nothing has changed then. If the system binds only some of the
    /// memory ([`NumaError::Io`](rackpool_mem::numa::NumaError::Io)) the mode holds; given again,
    /// the rest follows.
    pub fn switch(&self, tiering: &Tiering) -> Result<()> {
        let (uses_far, nodes) = match tiering {
            Tiering::Dram => (false, None),
            Tiering::Data => (true, None),
            Tiering::Transparent(nodes) => (false, Some(nodes)),
        };
        let mut dealt = self.dealt();
        // What was never dealt out lies near, or where an operator had the system put it; of a file
        // that is not known.
        let may_be_elsewhere = dealt.last.is_some() || self.file.is_some();
        let target = match nodes {
            None if !may_be_elsewhere => None,
            nodes => self.page_target(nodes),
        };
        if let Some(target) = &target {
            let near = self.partitions.iter().map(|part| part.pages.window().clone());
            target.check(&near.collect::<Vec<Window>>())?;
        }
        if uses_far != self.uses_far() {
            self.use_far(uses_far)?;
        }
        // First: what has begun is to be known, also if a later partition is refused.
        dealt.now = nodes.cloned();
        dealt.last = dealt.now.clone().or(dealt.last.take());
        if let Some(target) = &target {
            self.partitions.iter().try_for_each(|part| part.pages.begin(target))?;
        }
        Ok(())
    }

    /// Where near memory is to lie: dealt out to nodes, if there are any, else where it came from;
    /// `None` if the kernel does not tell.
    fn page_target(&self, nodes: Option<&Placement>) -> Option<PageTarget> {
        let options = &self.options;
        let own = options.placement.as_ref().filter(|_| options.far.is_some());
        let nodes = nodes.map(|nodes| (nodes, options.grain_bytes));
        let Some((nodes, grain_bytes)) = nodes.or(own.map(|own| (own, GRAIN_BYTES_MAX))) else {
            return PageTarget::near(options.grain_bytes);
        };
        let end = self.partitions.last().map_or(0, |part| part.pages.end());
        Some(PageTarget::dealt(nodes, grain_bytes, end + options.far_bytes()))
    }

    /// Has pages of a file that an earlier process left on other nodes come to where they are to
    /// lie by the options, if these name nodes. What cannot come stays.
    pub(super) fn gather_pages(&self) {
        let (nodes, has_far) = (&self.options.placement, self.options.far.is_some());
        if nodes.is_some() != has_far
            && let Some(target) = self.page_target(nodes.as_ref())
        {
            // A file that is not bound is served as well.
            self.partitions.iter().for_each(|part| _ = part.pages.begin(&target));
        }
    }

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
