//! Whether the machine can give the memory that a region promises. In: a [`MemorySpec`] and into
//! how many shards it is divided. Out: nothing, or a typed refusal with the numbers and a size that
//! would fit. Called before a region is made, and for counters of what is still there.
//!
//! What a file system, the host and the process's control groups can give is looked at once: others
//! may take it afterwards, which is why pages are backed before they are handed out.
//!
//! Source: DESIGN §2 (region).

use super::error::{RegionError, Result, failed};
use super::files::free_bytes;
use super::huge::{FileSystem, file_system};
use super::paths::{self, Paths};
use super::spec::{MemoryKind, MemorySpec, SpecError};
use super::{RegionFiles, memory_bytes};
use crate::memory::HostMemory;
use rackpool_core::layout::RegionLayout;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// What can be given, and what sets the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    bytes: u64,
    by: String,
}

impl MemorySpec {
    /// Checks that the machine can give all the memory of a new region, with those of its shards
    /// that are there already.
    ///
    /// # Errors
    /// [`RegionError::TooLarge`]; [`SpecError::NoSize`] without a size; [`RegionError::Io`] if a
    /// directory cannot be looked at. Devices, and files that are backed as a whole, are
    /// measured when they are opened.
    pub fn check_room(&self, shards: u16) -> Result<()> {
        if matches!(self.kind, MemoryKind::Dax { .. } | MemoryKind::Pmem { .. }) {
            return Ok(());
        }
        let mut wanted_bytes = 0u64;
        for shard in 0..shards {
            let part = self.shard(shard, shards)?;
            let needed_bytes = needed_bytes(&part.layout()?, part.slots);
            wanted_bytes += needed_bytes.saturating_sub(backed_bytes(&part));
        }
        let bound = bound_of(&self.kind)?;
        if wanted_bytes <= bound.bytes {
            return Ok(());
        }
        let size_bytes =
            self.size_bytes.ok_or_else(|| SpecError::NoSize { spec: self.to_string() })?;
        Err(RegionError::TooLarge {
            spec: self.to_string(),
            wanted_bytes,
            free_bytes: bound.bytes,
            by: bound.by,
            fitting_bytes: self.fitting_bytes(size_bytes, shards, bound.bytes),
        })
    }

    /// The largest size of which an eighth of what is free is left over, for all other processes.
    fn fitting_bytes(&self, size_bytes: u64, shards: u16, free_bytes: u64) -> u64 {
        let step_bytes = self.geometry().page_bytes() * u64::from(shards);
        let needed = |size_bytes: u64| {
            let part = MemorySpec { size_bytes: Some(size_bytes), ..self.clone() };
            part.layout().map_or(u64::MAX, |layout| needed_bytes(&layout, part.slots))
        };
        let (mut fits, mut above) = (0, size_bytes / step_bytes);
        while fits + 1 < above {
            let middle = fits + (above - fits) / 2;
            match needed(middle * step_bytes) <= free_bytes / 8 * 7 {
                true => fits = middle,
                false => above = middle,
            }
        }
        fits * step_bytes
    }
}

impl RegionFiles {
    /// As [`MemorySpec::check_room`], for a region that is there: what it does not have yet.
    ///
    /// # Errors
    /// As of [`MemorySpec::check_room`].
    pub fn check_room(&self) -> Result<()> {
        let (size_bytes, pages) = (Some(self.memory_bytes()), Some(self.layout.pages));
        MemorySpec { size_bytes, pages, ..self.spec.clone() }.check_room(1)
    }

    /// Memory that the machine can still give to this region, bytes; `None` if nothing says so, or
    /// if all of it is there, as on a device.
    pub fn host_free_bytes(&self) -> Option<u64> {
        match self.spec.kind {
            MemoryKind::Dax { .. } | MemoryKind::Pmem { .. } => None,
            _ => bound_of(&self.spec.kind).ok().map(|bound| bound.bytes),
        }
    }
}

/// Memory of a region in full, without what each client adds. Slots have none.
fn needed_bytes(layout: &RegionLayout, slots: u32) -> u64 {
    memory_bytes(layout, slots) + layout.bitmaps_offset() + layout.table_bytes()
}

/// Memory that a region has already, if it is there.
fn backed_bytes(part: &MemorySpec) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Some(paths) = Paths::of(&part.kind) else { return 0 };
    let blocks = |path: &Path| path.metadata().map_or(0, |found| found.blocks() * 512);
    blocks(&paths.pages) + blocks(&paths.private()) + blocks(&paths.table())
}

fn bound_of(kind: &MemoryKind) -> Result<Bound> {
    let host = || {
        let bytes = HostMemory::now().map_or(u64::MAX, |memory| memory.available_bytes);
        Bound { bytes, by: "this machine, or its limit for us,".into() }
    };
    let MemoryKind::Shm { path, .. } = kind else { return Ok(host()) };
    let directory = open_directory(path)?;
    let by = paths::parent_of(path).display().to_string();
    let there = Bound { bytes: free_bytes(directory.as_fd(), path)?, by };
    Ok(match file_system(directory.as_fd(), path)? {
        FileSystem::Tmpfs => [there, host()].into_iter().min_by_key(|one| one.bytes),
        FileSystem::Hugetlb { .. } | FileSystem::Other => Some(there),
    }
    .expect("there are two"))
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    let parent = paths::parent_of(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(parent, flags, Mode::empty()).map_err(failed("open directory", parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> MemorySpec {
        text.parse().unwrap()
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused_with_a_size_that_fits() {
        for kind in ["heap", "shm:/dev/shm/rackpool-room-test"] {
            let asked = spec(&format!("{kind}?size=512T&pages=1G"));
            let Err(RegionError::TooLarge { wanted_bytes, free_bytes, fitting_bytes, .. }) =
                asked.check_room(1)
            else {
                panic!("{kind} has 512 TiB");
            };
            assert!(wanted_bytes > 512 << 40 && free_bytes < wanted_bytes);
            assert!(fitting_bytes < free_bytes, "{fitting_bytes} of {free_bytes}");
            let fitting = MemorySpec { size_bytes: Some(4 << 20), pages: None, ..asked };
            fitting.check_room(1).unwrap();
        }
    }

    #[test]
    fn the_shards_of_a_rack_have_to_fit_together() {
        let free = HostMemory::now().unwrap().available_bytes >> 24 << 24;
        // Each of them would fit by itself.
        let asked = MemorySpec { size_bytes: Some(4 * free), ..spec("heap:8M") };
        assert!(matches!(asked.check_room(8), Err(RegionError::TooLarge { .. })));
    }

    #[test]
    fn a_size_that_fits_is_whole_pages_for_each_shard_and_leaves_some_over() {
        let asked = spec("heap?size=64G");
        let fitting = asked.fitting_bytes(64 << 30, 4, 6 << 30);
        assert!(fitting.is_multiple_of(8 << 20), "{fitting}");
        assert!((5 << 30..=6 << 30).contains(&fitting), "{fitting}");
        assert_eq!(asked.fitting_bytes(64 << 30, 1, 1 << 20), 0, "not even a page");
    }
}
