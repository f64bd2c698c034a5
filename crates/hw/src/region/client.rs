//! A region's sections as another host has them that shares its memory: without the lock, which is
//! its daemon's on the daemon's own host, and without the private section. Descriptors for clients
//! come out of here; nothing is changed.

use super::error::{RegionError, Result, failed};
use super::paths::Paths;
use super::spec::{MemoryKind, MemorySpec};
use super::{RegionFiles, Superblock, reopen, shards};
use crate::window::Access;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The sections; opened anew for each client, so that a region that was made anew is found.
#[derive(Clone, Debug)]
pub struct ClientSections {
    spec: MemorySpec,
}

impl ClientSections {
    /// Those of a region that is there. Errors: as of [`RegionFiles::inspect`]; `Absent` for
    /// `heap`, which no other process has.
    pub fn open(spec: MemorySpec) -> Result<Self> {
        RegionFiles::inspect(&spec)?;
        Ok(Self { spec })
    }

    /// The superblock as it is now. Errors: as of [`RegionFiles::inspect`].
    pub fn superblock(&self) -> Result<Superblock> {
        RegionFiles::inspect(&self.spec).map(|(superblock, _)| superblock)
    }

    /// Descriptors of a slot, of bell, table and pages, in this order, with the rights that a
    /// client has. Errors: `Io`; `Absent`.
    pub fn client_fds(&self, slot: u32, pages: Access) -> Result<[OwnedFd; 4]> {
        let rights = [Access::ReadWrite, Access::ReadWrite, Access::ReadOnly, pages];
        match &self.spec.kind {
            MemoryKind::Heap => Err(RegionError::Absent { path: "heap".into() }),
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
