//! The memory of a rack: its sections as files, memfds or parts of a device; made, opened,
//! locked, backed, punched and removed. What is *in* the sections is the engines' business.
//!
//! In: a [`MemorySpec`]. Out: [`RegionFiles`], which gives a [`Window`] on each section to the
//! daemon and descriptors with fewer rights to clients. One daemon has it; its methods may be
//! called from any of its threads.
//!
//! Ordering rules:
//! - **Backed before written.** Table, bell, slots and the private section up to the slab
//!   bitmaps are backed when they are made. Pages and slab bitmaps are backed by
//!   [`RegionFiles::back_pages`] and [`RegionFiles::back_private`] before any process touches them,
//!   *reading included*: a load from a hole of tmpfs takes memory too. So a full file system is
//!   [`RegionError::NoSpace`] and never SIGBUS.
//! - **Published last.** [`RegionFiles::create`] gives zeroed sections under an unfinished name;
//!   the daemon formats them; [`RegionFiles::publish`] checks the superblock and makes the region
//!   one in a single rename. What dies before that is cleaned up by the next `create`; what is
//!   published is never formatted again.
//! - **One daemon.** The private section is locked for as long as `RegionFiles` or a window on it
//!   lives, in whatever process state; the kernel lets go when the process is dead.
//!
//! Rights: files are for their owner alone. Read-only descriptors keep clients from mistakes, not
//! from malice of the same user.
//!
//! Source: DESIGN §2.
#![cfg(not(feature = "modelled"))]

mod client;
mod dax;
mod error;
mod files;
mod huge;
mod numa;
mod paths;
mod pmem;
mod room;
mod shards;
mod spec;
mod spill;
mod superblock;

pub use client::ClientSections;
pub use dax::DaxLayout;
pub use error::{RegionError, Result, other_version};
pub use shards::Claim;
pub use spec::{HugeSize, MemoryKind, MemorySpec, SpecError, size_text};
pub use spill::SpillSpec;

use crate::persist::PersistentWindow;
use crate::window::{Access, MapOptions, Window};
use error::failed;
use paths::Paths;
use pmem::Pmem;
pub use pmem::PmemSpace;
use rackpool_core::coherence::Coherence;
use rackpool_core::constants::SLOTS_MAX;
use rackpool_core::layout::{BELL_BYTES, RegionLayout, SLOT_BYTES, SUPERBLOCK_OFFSET, Superblock};
use rackpool_core::persist::{Persist, PersistenceDomain};
use rackpool_core::seam::Mem;
use rackpool_core::tier::Tiers;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zerocopy::FromBytes;

/// A section of a region, but for the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Pages,
    /// Superblock, redo record, sessions, frames, slab bitmaps: for the daemon alone.
    Private,
    /// Generation words; clients read.
    Table,
    Bell,
}

/// Memory that a region really takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackedBytes {
    pub pages: u64,
    pub metadata: u64,
}

#[derive(Debug)]
enum Store {
    Files(Paths),
    Memory(Mutex<BTreeMap<u32, OwnedFd>>),
    Device(DaxLayout),
}

/// The open sections of a region, locked against every other daemon.
#[derive(Debug)]
pub struct RegionFiles {
    spec: MemorySpec,
    layout: RegionLayout,
    tiers: Tiers,
    store: Store,
    pages: OwnedFd,
    private: OwnedFd,
    table: OwnedFd,
    bell: OwnedFd,
    /// Of memory that persists, how it does.
    pmem: Option<Pmem>,
    is_published: bool,
}

impl RegionFiles {
    /// Whether a finished region is there. Takes no lock; a `heap` region never is.
    ///
    /// # Errors
    /// Only for devices: [`RegionError::Device`], [`RegionError::Io`].
    pub fn exists(spec: &MemorySpec) -> Result<bool> {
        match &spec.kind {
            MemoryKind::Heap => Ok(false),
            MemoryKind::Dax { path } => {
                files::device_has_region(&shards::open_device(spec, path)?, path)
            }
            MemoryKind::Pmem { path, .. } => pmem::exists(path),
            MemoryKind::Shm { .. } => {
                Ok(Paths::of(&spec.kind).is_some_and(|paths| paths::is_there(&paths.private())))
            }
        }
    }

    /// Makes a new region: all sections at full length and zero, not yet published. What an
    /// interrupted `create` or `remove` left is cleaned up first. Dropped before
    /// [`RegionFiles::publish`], it vanishes again.
    ///
    /// # Errors
    /// [`RegionError::Exists`], [`RegionError::Locked`], [`RegionError::Foreign`],
    /// [`RegionError::NoSpace`], [`RegionError::NoHugePages`], [`RegionError::Device`],
    /// [`RegionError::Spec`] and others; nothing is left then.
    pub fn create(spec: &MemorySpec) -> Result<Self> {
        check_lines(spec.coherence.unwrap_or_default(), spec)?;
        match &spec.kind {
            MemoryKind::Heap => files::create_memory(spec),
            MemoryKind::Dax { path } => {
                files::create_on_device(spec, shards::open_device(spec, path)?, path)
            }
            MemoryKind::Pmem { path, domain } => pmem::create(spec, path, *domain),
            MemoryKind::Shm { .. } => {
                let paths = Paths::of(&spec.kind).expect("shm regions have names");
                files::create_files(spec, paths)
            }
        }
    }

    /// Opens a finished region and locks it.
    ///
    /// # Errors
    /// [`RegionError::Absent`], [`RegionError::Unfinished`], [`RegionError::Locked`],
    /// [`RegionError::BadSuperblock`], [`RegionError::OtherVersion`],
    /// [`RegionError::OtherGeometry`], [`RegionError::WrongLength`] and others; nothing is
    /// changed then.
    pub fn open(spec: &MemorySpec) -> Result<Self> {
        let opened = match &spec.kind {
            MemoryKind::Heap => Err(RegionError::Absent { path: "heap".into() }),
            MemoryKind::Dax { path } => {
                files::open_on_device(spec, shards::open_device(spec, path)?, path)
            }
            MemoryKind::Pmem { path, domain } => pmem::open(spec, path, *domain),
            MemoryKind::Shm { .. } => {
                let paths = Paths::of(&spec.kind).expect("shm regions have names");
                files::open_files(spec, paths)
            }
        }?;
        check_lines(opened.coherence(), spec)?;
        Ok(opened)
    }

    /// The superblock of a region, read without a lock: for looking at one that may be served.
    ///
    /// # Errors
    /// As [`RegionFiles::open`], but for locks and lengths.
    pub fn inspect(spec: &MemorySpec) -> Result<(Superblock, RegionLayout)> {
        match &spec.kind {
            MemoryKind::Heap => Err(RegionError::Absent { path: "heap".into() }),
            MemoryKind::Dax { path } => superblock::check(
                &files::device_superblock(&shards::open_device(spec, path)?, path)?,
                path,
            ),
            MemoryKind::Pmem { path, .. } => superblock::check(&pmem::superblock(path)?, path),
            MemoryKind::Shm { .. } => {
                let paths = Paths::of(&spec.kind).expect("shm regions have names");
                files::inspect_files(&paths)
            }
        }
    }

    /// Removes a region that no daemon serves, finished or not. Whether there was one.
    ///
    /// # Errors
    /// [`RegionError::Locked`] if a daemon serves it: nothing is changed. [`RegionError::Io`].
    pub fn remove_path(spec: &MemorySpec) -> Result<bool> {
        match &spec.kind {
            MemoryKind::Heap => Ok(false),
            MemoryKind::Dax { path } => {
                files::remove_from_device(shards::open_device(spec, path)?, path)
            }
            MemoryKind::Pmem { path, .. } => pmem::remove(path),
            MemoryKind::Shm { .. } => {
                let paths = Paths::of(&spec.kind).expect("shm regions have names");
                files::remove_files(&paths)
            }
        }
    }

    /// Removes this region with all its data. Descriptors and windows that others still have
    /// stay usable and lead nowhere.
    ///
    /// # Errors
    /// [`RegionError::Io`]; then it is unfinished, and the next `create` removes the rest.
    pub fn remove(mut self) -> Result<()> {
        // Dropping it shall not try again.
        self.is_published = true;
        match &self.store {
            Store::Files(paths) => files::remove_locked(paths),
            Store::Memory(_) => Ok(()),
            Store::Device(_) => {
                files::wipe_superblock(&self.map(Section::Private)?)?;
                let path = self.spec.path().expect("a device has a name");
                self.pmem.as_ref().map_or(Ok(()), |pmem| pmem.remove(path))
            }
        }
    }

    /// Whether this host booted anew since a daemon last served the region, which persists: its
    /// table and slots hold what was stored at any time.
    pub fn lost_power(&self) -> bool {
        self.pmem.as_ref().is_some_and(Pmem::lost_power)
    }

    /// From where on what is stored in pages and metadata persists.
    pub fn persistence(&self) -> PersistenceDomain {
        self.pmem.as_ref().map_or(PersistenceDomain::None, Pmem::domain)
    }

    /// A daemon has attached: what it found after a loss of power is as it wants it.
    ///
    /// # Errors
    /// [`RegionError::Persistence`] if memory that persists cannot be told so.
    pub fn note_attached(&mut self) -> Result<()> {
        if self.pmem.is_none() {
            return Ok(());
        }
        let mut block = [0; size_of::<Superblock>()];
        self.map(Section::Private)?.copy_out(SUPERBLOCK_OFFSET, &mut block);
        let block = Superblock::read_from_bytes(&block).expect("the array has the block's size");
        let path = self.spec.path().unwrap_or(Path::new("heap"));
        self.pmem.as_mut().map_or(Ok(()), |pmem| pmem.note_attached(block.region_id, path))
    }

    /// The daemon stops in order: all that is stored persists, where the memory does, also what
    /// was never asked to.
    ///
    /// # Errors
    /// [`RegionError::Persistence`], [`RegionError::Io`].
    pub fn note_stopped(&mut self) -> Result<()> {
        self.commit()?;
        let path = self.spec.path().unwrap_or(Path::new("heap"));
        self.pmem.as_mut().map_or(Ok(()), |pmem| pmem.note_stopped(path))
    }

    /// Makes all that is to outlive a loss of power durable, where the memory persists.
    fn commit(&self) -> Result<()> {
        let Some(pmem) = &self.pmem else { return Ok(()) };
        let path = self.spec.path().unwrap_or(Path::new("heap"));
        let mut sections = [Section::Private, Section::Pages].into_iter();
        sections
            .try_for_each(|section| pmem.commit(self.map(section)?, self.used_bytes(section), path))
    }

    /// Makes the formatted region one that [`RegionFiles::open`] takes. On a device the
    /// superblock alone does that: store it last. Again is harmless.
    ///
    /// # Errors
    /// [`RegionError::BadSuperblock`], [`RegionError::OtherGeometry`] if the daemon has not
    /// formatted it, or otherwise than it was made; [`RegionError::Io`].
    pub fn publish(&mut self) -> Result<()> {
        let private = self.map(Section::Private)?;
        let mut bytes = [0; superblock::SUPERBLOCK_BYTES];
        private.copy_out(rackpool_core::layout::SUPERBLOCK_OFFSET, &mut bytes);
        let path = self.section_path(Section::Private);
        let (block, found) = superblock::check(&bytes, &path)?;
        let asked = MemorySpec {
            size_bytes: Some(self.memory_bytes()),
            pages: Some(self.layout.pages),
            coherence: Some(self.coherence()),
            ..self.spec.clone()
        };
        superblock::check_geometry(&block, found, &asked, &path)?;
        if self.dax_layout().is_some() {
            files::for_all_hosts(&private).flush(
                rackpool_core::layout::SUPERBLOCK_OFFSET,
                superblock::SUPERBLOCK_BYTES as u64,
            );
        }
        if let (Store::Files(paths), false) = (&self.store, self.is_published) {
            let (from, to) = (paths.unfinished(), paths.private());
            rustix::fs::rename(&from, &to).map_err(failed("rename", &to))?;
        }
        self.is_published = true;
        Ok(())
    }

    /// What the region was made or opened from.
    pub fn spec(&self) -> &MemorySpec {
        &self.spec
    }

    pub fn layout(&self) -> RegionLayout {
        self.layout
    }

    /// Bytes of pages that are memory: what the pages section has behind them are places of slots,
    /// which never get any.
    pub fn memory_bytes(&self) -> u64 {
        memory_bytes(&self.layout, self.tiers.spill().map_or(0, |slots| slots.frame_count))
    }

    /// Its memories, if it has several, and the slots of its spill file.
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// What keeps the caches of the hosts that share it coherent.
    pub fn coherence(&self) -> Coherence {
        self.spec.coherence.unwrap_or_default()
    }

    /// Where the sections lie if the region is in one device.
    pub fn dax_layout(&self) -> Option<DaxLayout> {
        match &self.store {
            Store::Device(dax) => Some(*dax),
            _ => None,
        }
    }

    /// Where slot, bell, table and pages start behind their descriptors, for a client of a slot,
    /// bytes: 0 unless one device holds them all.
    pub fn client_offsets(&self, slot: u32) -> [u64; 4] {
        self.dax_layout().map_or([0; 4], |dax| dax.client_offsets(slot))
    }

    /// Maps a section for the daemon itself, to read and write. Each call is a new mapping; the
    /// pages are touched here if the specification says `touch=1`. What other hosts share is kept
    /// coherent as the region says; slots are the caller's to mark, as it knows where their clients
    /// are.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn map(&self, section: Section) -> Result<Window> {
        let is_pages = section == Section::Pages;
        let options = MapOptions {
            populate: is_pages && self.spec.touch,
            huge_advice: is_pages && self.spec.huge.is_some(),
            file_offset: self.section_offset(section),
        };
        let (fd, bytes) = (self.section_fd(section), self.section_bytes(section));
        let path = self.section_path(section);
        let window = match &self.pmem {
            Some(pmem) => pmem.map(fd, bytes, options).map_err(failed("map", &path))?,
            None => map_fd(fd, bytes, options, &path)?,
        };
        let is_coherent = section == Section::Private || self.coherence().is_hardware();
        Ok(window.with_coherence(is_coherent))
    }

    /// As [`RegionFiles::map`], of a section in which stores can be made durable if the memory
    /// persists: the pages and the private section.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn map_persistent(&self, section: Section) -> Result<PersistentWindow> {
        let window = self.map(section)?;
        Ok(match &self.pmem {
            Some(pmem) => pmem.persistent(window),
            None => PersistentWindow::volatile(window),
        })
    }

    /// A descriptor of a section to hand to a client, with these rights and none more. Never for
    /// the private section. On a device it reaches everything, and the section starts at the
    /// offset that [`RegionFiles::dax_layout`] tells.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    ///
    /// # Panics
    /// If asked for the private section.
    pub fn client_fd(&self, section: Section, access: Access) -> Result<OwnedFd> {
        assert_ne!(section, Section::Private, "the private section is the daemon's alone");
        reopen(self.section_fd(section), access, &self.section_path(section))
    }

    /// Makes the section of a slot, zeroed and backed: a descriptor for its client and the
    /// daemon's window.
    ///
    /// # Errors
    /// [`RegionError::Exists`] if the slot has one: remove it first. [`RegionError::NoSpace`],
    /// [`RegionError::Io`]; nothing is left then.
    ///
    /// # Panics
    /// If `slot` is not below `SLOTS_MAX`.
    pub fn create_slot(&self, slot: u32) -> Result<(OwnedFd, Window)> {
        assert!(slot < SLOTS_MAX, "slot {slot} of {SLOTS_MAX}");
        let path = self.slot_path(slot);
        let own = match &self.store {
            Store::Files(_) => files::create_slot_file(&path)?,
            Store::Memory(slots) => {
                let mut slots = lock(slots);
                if slots.contains_key(&slot) {
                    return Err(RegionError::Exists { path });
                }
                let fd = files::create_memfd(&path, SLOT_BYTES)?;
                files::back(fd.as_fd(), &path, 0, SLOT_BYTES)?;
                slots.insert(slot, fd.try_clone().map_err(failed("duplicate", &path))?);
                fd
            }
            Store::Device(_) => reopen(self.pages.as_fd(), Access::ReadWrite, &path)?,
        };
        let (fd, window) = self.map_slot(own, slot, &path)?;
        if self.dax_layout().is_some() {
            window.zero(0, SLOT_BYTES);
        }
        Ok((fd, window))
    }

    /// Opens the section of a slot that was made before, also by a daemon that died.
    ///
    /// # Errors
    /// [`RegionError::Absent`]; [`RegionError::WrongLength`] if its making was cut off: remove
    /// it. [`RegionError::NoSpace`], [`RegionError::Io`].
    ///
    /// # Panics
    /// If `slot` is not below `SLOTS_MAX`.
    pub fn open_slot(&self, slot: u32) -> Result<(OwnedFd, Window)> {
        assert!(slot < SLOTS_MAX, "slot {slot} of {SLOTS_MAX}");
        let path = self.slot_path(slot);
        let own = match &self.store {
            Store::Files(_) => files::open_slot_file(&path)?,
            Store::Memory(slots) => match lock(slots).get(&slot) {
                Some(fd) => fd.try_clone().map_err(failed("duplicate", &path))?,
                None => return Err(RegionError::Absent { path }),
            },
            Store::Device(_) => reopen(self.pages.as_fd(), Access::ReadWrite, &path)?,
        };
        self.map_slot(own, slot, &path)
    }

    /// Removes the section of a slot; it need not be there. A process that has it mapped keeps it
    /// until it unmaps, apart from later users of the slot (but on a device, where slots are fixed
    /// places: give one away only when its client is dead).
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn remove_slot(&self, slot: u32) -> Result<()> {
        match &self.store {
            Store::Files(paths) => paths::remove_file(&paths.slot(slot)),
            Store::Memory(slots) => {
                lock(slots).remove(&slot);
                Ok(())
            }
            Store::Device(_) => Ok(()),
        }
    }

    /// The slots that have a section, ascending; on a device all.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn slots_present(&self) -> Result<Vec<u32>> {
        match &self.store {
            Store::Files(paths) => paths.slots_present(),
            Store::Memory(slots) => Ok(lock(slots).keys().copied().collect()),
            Store::Device(_) => Ok((0..SLOTS_MAX).collect()),
        }
    }

    /// Gives memory to a part of the pages. What has some already keeps it and its content.
    ///
    /// # Errors
    /// [`RegionError::NoSpace`]: nothing was changed. [`RegionError::Unsupported`],
    /// [`RegionError::Io`].
    ///
    /// # Panics
    /// If the part is not within the section.
    pub fn back_pages(&self, offset: u64, bytes: u64) -> Result<()> {
        self.back_section(Section::Pages, offset, bytes)
    }

    /// Gives memory to a part of the private section, as [`RegionFiles::back_pages`].
    ///
    /// # Errors
    /// As [`RegionFiles::back_pages`].
    ///
    /// # Panics
    /// If the part is not within the section.
    pub fn back_private(&self, offset: u64, bytes: u64) -> Result<()> {
        self.back_section(Section::Private, offset, bytes)
    }

    /// Takes the memory of a part of the pages back. It reads as zero when it is backed again;
    /// until then nothing touches it.
    ///
    /// # Errors
    /// [`RegionError::Unsupported`], [`RegionError::Io`].
    ///
    /// # Panics
    /// If the part is not within the section.
    pub fn punch_pages(&self, offset: u64, bytes: u64) -> Result<()> {
        self.punch_section(Section::Pages, offset, bytes)
    }

    /// Takes the memory of a part of the private section back, as [`RegionFiles::punch_pages`].
    ///
    /// # Errors
    /// As [`RegionFiles::punch_pages`].
    ///
    /// # Panics
    /// If the part is not within the section.
    pub fn punch_private(&self, offset: u64, bytes: u64) -> Result<()> {
        self.punch_section(Section::Private, offset, bytes)
    }

    /// The memory that the region takes now.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn backed_bytes(&self) -> Result<BackedBytes> {
        if let Some(dax) = self.dax_layout() {
            let pages = self.memory_bytes();
            return Ok(BackedBytes { pages, metadata: dax.pages_offset });
        }
        let of =
            |section| files::blocks_bytes(self.section_fd(section), &self.section_path(section));
        let mut metadata = of(Section::Private)? + of(Section::Table)? + of(Section::Bell)?;
        // Slots are backed in full when they are made.
        metadata += SLOT_BYTES * self.slots_present()?.len() as u64;
        Ok(BackedBytes { pages: of(Section::Pages)?, metadata })
    }

    /// Memory that could still be had for pages: of the file system, or of the machine if that
    /// sets no limit; 0 on a device.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn free_bytes(&self) -> Result<u64> {
        match &self.store {
            Store::Device(_) => Ok(0),
            _ => files::free_bytes(self.pages.as_fd(), &self.section_path(Section::Pages)),
        }
    }

    fn section_fd(&self, section: Section) -> BorrowedFd<'_> {
        match section {
            Section::Pages => self.pages.as_fd(),
            Section::Private => self.private.as_fd(),
            Section::Table => self.table.as_fd(),
            Section::Bell => self.bell.as_fd(),
        }
    }

    fn section_bytes(&self, section: Section) -> u64 {
        section_bytes(&self.layout, section)
    }

    /// Of a section what may have memory.
    fn used_bytes(&self, section: Section) -> u64 {
        match section {
            Section::Pages => self.memory_bytes(),
            _ => self.section_bytes(section),
        }
    }

    fn section_offset(&self, section: Section) -> u64 {
        self.dax_layout().map_or(0, |dax| {
            dax.base_bytes
                + match section {
                    Section::Pages => dax.pages_offset,
                    Section::Private => 0,
                    Section::Table => dax.table_offset,
                    Section::Bell => dax.bell_offset,
                }
        })
    }

    fn section_path(&self, section: Section) -> PathBuf {
        let Store::Files(paths) = &self.store else {
            return self.spec.path().unwrap_or(Path::new("heap")).to_owned();
        };
        match section {
            Section::Pages => paths.pages.clone(),
            Section::Private => paths.private(),
            Section::Table => paths.table(),
            Section::Bell => paths.bell(),
        }
    }

    fn slot_path(&self, slot: u32) -> PathBuf {
        match &self.store {
            Store::Files(paths) => paths.slot(slot),
            _ => format!("{}.slot-{slot}", self.spec.path().unwrap_or(Path::new("heap")).display())
                .into(),
        }
    }

    fn map_slot(&self, fd: OwnedFd, slot: u32, path: &Path) -> Result<(OwnedFd, Window)> {
        let file_offset = self.dax_layout().map_or(0, |dax| {
            dax.base_bytes + dax.slots_offset + u64::from(slot) * dax.slot_stride_bytes
        });
        let options = MapOptions { file_offset, ..MapOptions::default() };
        let window = map_fd(fd.as_fd(), SLOT_BYTES, options, path)?;
        Ok((fd, window))
    }

    fn back_section(&self, section: Section, offset: u64, bytes: u64) -> Result<()> {
        self.assert_within(section, offset, bytes);
        if bytes == 0 || self.dax_layout().is_some() {
            return Ok(());
        }
        files::back(self.section_fd(section), &self.section_path(section), offset, bytes)
    }

    fn punch_section(&self, section: Section, offset: u64, bytes: u64) -> Result<()> {
        self.assert_within(section, offset, bytes);
        if bytes == 0 {
            return Ok(());
        }
        // A device keeps its memory. So do pages with lines that software writes back: writing back
        // what is not there takes memory, and there may be none. Freed memory reads as zero all the
        // same.
        let is_flushed = section == Section::Pages && !self.coherence().is_hardware();
        if is_flushed || matches!(self.store, Store::Device(_)) {
            let window = self.map_persistent(section)?;
            window.zero(offset, bytes);
            window.flush(offset, bytes);
            if !window.is_persistent() {
                return Ok(());
            }
            // Freed memory stays zero, whatever comes next.
            return window.persist(offset, bytes).map_err(|error| RegionError::Persistence {
                path: self.section_path(section),
                reason: error.to_string(),
            });
        }
        files::punch(self.section_fd(section), &self.section_path(section), offset, bytes)
    }

    fn assert_within(&self, section: Section, offset: u64, bytes: u64) {
        let section_bytes = self.section_bytes(section);
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= section_bytes),
            "{bytes} bytes at {offset} are not within {section:?} of {section_bytes} bytes"
        );
    }
}

impl Drop for RegionFiles {
    fn drop(&mut self) {
        if let (Store::Files(paths), false) = (&self.store, self.is_published) {
            // What cannot be removed now is unfinished, and the next `create` removes it.
            let _ = files::remove_unpublished(paths);
        }
    }
}

/// Lines can be written back where nothing else keeps hosts' caches in agreement.
fn check_lines(coherence: Coherence, spec: &MemorySpec) -> Result<()> {
    if coherence.is_hardware() || crate::caches::is_supported() {
        return Ok(());
    }
    Err(RegionError::NoLines { path: spec.path().unwrap_or(Path::new("heap")).to_owned() })
}

/// Bytes of pages that are memory, if the last `slots` frames are not.
fn memory_bytes(layout: &RegionLayout, slots: u32) -> u64 {
    layout.pages_bytes() - u64::from(slots) * layout.pages.page_bytes()
}

fn section_bytes(layout: &RegionLayout, section: Section) -> u64 {
    match section {
        Section::Pages => layout.pages_bytes(),
        Section::Private => layout.private_bytes(),
        Section::Table => layout.table_bytes(),
        Section::Bell => BELL_BYTES,
    }
}

/// A new descriptor of the same file with these rights: not a copy, which would keep the rights
/// and share the lock.
fn reopen(fd: BorrowedFd<'_>, access: Access, path: &Path) -> Result<OwnedFd> {
    let rights = match access {
        Access::ReadOnly => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    rustix::fs::open(name, rights | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed("open again through /proc/self/fd", path))
}

fn map_fd(fd: BorrowedFd<'_>, bytes: u64, options: MapOptions, path: &Path) -> Result<Window> {
    Window::map(fd, bytes, Access::ReadWrite, options).map_err(failed("map", path))
}

/// The map of slots stays whole whatever panicked while it was locked: entries are put in and
/// taken out by single calls.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
