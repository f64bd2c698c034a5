//! A region's sections as another host has them that shares its memory: without the lock, which is
//! its daemon's on the daemon's own host, and without the private section. Descriptors for clients
//! come out of here; nothing is changed.

use super::error::{RegionError, Result, failed};
use super::paths::Paths;
use super::spec::{MemoryKind, MemorySpec};
use super::{RegionFiles, Superblock, check_lines, dax, map_fd, reopen, shards, superblock};
use crate::window::{Access, MapOptions};
use rackpool_core::crash;
use rackpool_core::layout::{RegionLayout, SLOT_BYTES};
use rustix::fs::{Mode, OFlags};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The sections; opened anew for each client, so that a region that was made anew is found.
#[derive(Clone, Debug)]
pub struct ClientSections {
    spec: MemorySpec,
}

impl ClientSections {
    /// Those of a region that is there and as asked for. Errors: as of [`RegionFiles::inspect`];
    /// `OtherGeometry`, `NoLines`; `Absent` for `heap`, which no other process has.
    pub fn open(mut spec: MemorySpec) -> Result<Self> {
        let (superblock, layout) = RegionFiles::inspect(&spec)?;
        // Which file its daemon has behind it is no matter here.
        let slots = superblock.tiers().and_then(|tiers| tiers.spill());
        spec.slots = slots.map_or(0, |slots| slots.frame_count);
        let path = spec.path().unwrap_or(Path::new("heap"));
        superblock::check_geometry(&superblock, layout, &spec, path)?;
        check_lines(superblock.coherence(), &spec)?;
        Ok(Self { spec })
    }

    /// The superblock as it is now. Errors: as of [`RegionFiles::inspect`].
    pub fn superblock(&self) -> Result<Superblock> {
        RegionFiles::inspect(&self.spec).map(|(superblock, _)| superblock)
    }

    /// Writes back what a client of this host that is gone may have left in the caches of its
    /// processors: its slot, and the frames that it announced. Nothing where the hardware keeps
    /// hosts coherent, or if there is no region or slot any more. Before any process is told that
    /// the client is gone. Errors: as of [`RegionFiles::inspect`]; `Io`, `NoLines`.
    pub fn settle(&self, slot: u32) -> Result<()> {
        let (superblock, layout) = match RegionFiles::inspect(&self.spec) {
            Err(RegionError::Absent { .. }) => return Ok(()),
            other => other?,
        };
        if superblock.coherence().is_hardware() {
            return Ok(());
        }
        check_lines(superblock.coherence(), &self.spec)?;
        let path = self.spec.path().unwrap_or(Path::new("heap"));
        let [slot_fd, _, _, pages_fd] = match self.client_fds(slot, Access::ReadWrite) {
            Err(RegionError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return Ok(());
            }
            other => other?,
        };
        let [slot_offset, .., pages_offset] = self.client_offsets(slot, &layout)?;
        let map = |fd: OwnedFd, file_offset, bytes| {
            let options = MapOptions { file_offset, ..MapOptions::default() };
            map_fd(fd.as_fd(), bytes, options, path).map(|window| window.with_coherence(false))
        };
        let slot = map(slot_fd, slot_offset, SLOT_BYTES)?;
        let pages = map(pages_fd, pages_offset, layout.pages_bytes())?;
        crash::flush_client(&slot, &pages, &layout, layout.frame_count - self.spec.slots);
        Ok(())
    }

    /// As [`RegionFiles::client_offsets`].
    fn client_offsets(&self, slot: u32, layout: &RegionLayout) -> Result<[u64; 4]> {
        let MemoryKind::Dax { path } = &self.spec.kind else { return Ok([0; 4]) };
        let device = shards::open_device(&self.spec, path)?;
        Ok(dax::place(&device, layout, self.spec.slots, path)?.client_offsets(slot))
    }

    /// Descriptors of a slot, of bell, table and pages, in this order, with the rights that a
    /// client has. Errors: `Io`; `Absent`.
    pub fn client_fds(&self, slot: u32, pages: Access) -> Result<[OwnedFd; 4]> {
        let rights = [Access::ReadWrite, Access::ReadWrite, Access::ReadOnly, pages];
        match &self.spec.kind {
            MemoryKind::Heap => Err(RegionError::Absent { path: "heap".into() }),
            MemoryKind::Pmem { path, .. } => {
                let reason = "memory that persists is shared with no other host".into();
                Err(RegionError::Persistence { path: path.clone(), reason })
            }
            MemoryKind::Dax { path } => {
                let device = shards::open_device(&self.spec, path)?;
                let [a, b, c, d] = rights.map(|access| reopen(device.fd.as_fd(), access, path));
                Ok([a?, b?, c?, d?])
            }
            MemoryKind::Shm { .. } => {
                let paths = Paths::of(&self.spec.kind).expect("shm regions have names");
                let names = [paths.slot(slot), paths.bell(), paths.table(), paths.pages];
                let mut opened = names.iter().zip(rights).map(|(path, access)| open(path, access));
                let mut next = || opened.next().expect("there are four");
                Ok([next()?, next()?, next()?, next()?])
            }
        }
    }
}

fn open(path: &Path, access: Access) -> Result<OwnedFd> {
    let rights = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    rustix::fs::open(path, rights | OFlags::CLOEXEC, Mode::empty()).map_err(failed("open", path))
}
