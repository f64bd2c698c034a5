//! A region in memory that persists: a devdax, a file on a file system that maps its device
//! (`MAP_SYNC`), or an ordinary file. A header stands before the region; behind it all is as on a
//! device (`dax.rs`).
//!
//! In: a path, and the persistence domain that was asked for. Out: [`RegionFiles`] whose pages and
//! private section can be made durable, and what the header says of how they were left. Called by
//! `region/mod.rs` alone.
//!
//! Ordering rules:
//! - **Header before region.** A file gets its header, durable, before it gets its name, and the
//!   superblock's magic word comes last, so that a loss of power at any point leaves nothing, a
//!   header without a region, which `create` goes on with, or a whole region.
//! - **The boot last.** The header names the present boot when a daemon has attached: one that is
//!   killed before lets the next one recover from the loss of power again.
//! - **One daemon**: the file or device is locked as a whole.
//!
//! What is refused: a file without a header, another length or region than the header says, a
//! domain that the memory does not have, memory that was in use without any domain when the power
//! went, and a device that says that it lost what had reached it.

use super::dax::{self, DaxDevice, DaxLayout};
use super::error::{RegionError, Result, failed};
use super::paths::{self, parent_of};
use super::spec::MemorySpec;
use super::superblock::SUPERBLOCK_BYTES;
use super::{RegionFiles, files, shards};
use crate::persist::{Medium, PersistentWindow, dirty_shutdowns};
use crate::process::{boot_id, random_u64};
use crate::window::{Access, MapOptions, Window};
use rackpool_core::durability::{
    PMEM_COPIES, PMEM_COPY_BYTES, PMEM_MAGIC, PMEM_VERSION, PmemHeader,
};
use rackpool_core::layout::{MAGIC, Superblock};
use rackpool_core::persist::{Persist, PersistError, PersistenceDomain};
use rackpool_core::seam::Mem;
use rustix::fs::{CWD, FileType, OFlags, RenameFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use zerocopy::FromBytes;

/// What is behind a header: a region of a pool, or [`PmemSpace`].
const REGION: u64 = 0;
const SPACE: u64 = 1;
const HEADER_BYTES: usize = size_of::<PmemHeader>();

/// Memory that persists, as a region has it.
#[derive(Debug)]
pub(super) struct Pmem {
    /// The place of the header. All that is made durable of the region shares its errors.
    head: Mutex<PersistentWindow>,
    header: PmemHeader,
    medium: Medium,
    domain: PersistenceDomain,
    /// Of the device now, plus one; 0 if it does not count.
    dirty_shutdowns: u64,
    boot: [u64; 2],
}

/// What is at a path, not locked yet.
struct Found {
    device: DaxDevice,
    medium: Medium,
    /// Of the file or device.
    length_bytes: u64,
    head: PersistentWindow,
    header: Option<PmemHeader>,
}

pub(super) fn exists(path: &Path) -> Result<bool> {
    match find(path)? {
        Some(found) if found.header.is_some() => files::device_has_region(&found.device, path),
        _ => Ok(false),
    }
}

pub(super) fn superblock(path: &Path) -> Result<[u8; SUPERBLOCK_BYTES]> {
    let found = find(path)?.filter(|found| found.header.is_some());
    let found = found.ok_or_else(|| RegionError::Absent { path: path.to_owned() })?;
    files::device_superblock(&found.device, path)
}

/// Makes a region; a file of that name must not be there, unless its making was cut off.
pub(super) fn create(
    spec: &MemorySpec,
    path: &Path,
    asked: Option<PersistenceDomain>,
) -> Result<RegionFiles> {
    let at_path = find(path)?;
    let is_made_here = at_path.is_none();
    let found = match at_path {
        Some(found) => found,
        None => {
            let align_bytes = file_align_bytes();
            let layout = spec.layout()?;
            // Places of slots end the file, because what is mapped of a file has to be in it.
            let bytes = [0, spec.slots]
                .map(|slots| align_bytes + DaxLayout::new(&layout, slots, align_bytes).bytes);
            make_file(path, bytes, REGION)?;
            let absent = || RegionError::Absent { path: path.to_owned() };
            let mut found = find(path)?.ok_or_else(absent)?;
            // Where the device is mapped, blocks that were never written are not durable yet.
            found.device.is_zero = !matches!(found.medium, Medium::DaxFile(_));
            found
        }
    };
    shards::lock_device(&found.device, path)?;
    if found.header.is_none() && found.head.load(0) == MAGIC {
        return refuse(path, "it is a region of dax: already; open it as that, or wipe it".into());
    }
    let header = match PmemHeader::load(&found.head) {
        Some(header) => header,
        None => new_header(found.length_bytes, found.device.align_bytes, REGION, path)?,
    };
    found.check(&header, REGION, path)?;
    let pmem = Pmem::new(&found, header, asked, path).inspect_err(|_| {
        if is_made_here {
            // The error above is the one to tell.
            let _ = paths::remove_file(path);
        }
    })?;
    let mut region = files::create_on_device(spec, found.device, path)?;
    region.pmem = Some(pmem);
    // Its zeroes, wherever they are.
    region.commit()?;
    region.note_attached()?;
    Ok(region)
}

pub(super) fn open(
    spec: &MemorySpec,
    path: &Path,
    asked: Option<PersistenceDomain>,
) -> Result<RegionFiles> {
    let absent = || RegionError::Absent { path: path.to_owned() };
    let found = find(path)?.ok_or_else(absent)?;
    shards::lock_device(&found.device, path)?;
    // The daemon that had it until now may have written it since.
    let header = PmemHeader::load(&found.head).ok_or_else(absent)?;
    found.check(&header, REGION, path)?;
    check_region(&found.device, &header, path)?;
    let pmem = Pmem::new(&found, header, asked, path)?;
    pmem.check_loss(path)?;
    let mut region = files::open_on_device(spec, found.device, path)?;
    region.pmem = Some(pmem);
    Ok(region)
}

/// Whether the region behind a header is the one that was served with it.
fn check_region(device: &DaxDevice, header: &PmemHeader, path: &Path) -> Result<()> {
    let bytes = files::device_superblock(device, path)?;
    let block = Superblock::read_from_bytes(&bytes).expect("the array has the block's size");
    let found = block.region_id;
    if header.region_id == [0; 2] || header.region_id == found {
        return Ok(());
    }
    let [[a, b], [c, d]] = [header.region_id, found];
    let reason = format!(
        "its header was written with region {a:016x}{b:016x}, behind it is {c:016x}{d:016x}: parts \
         of different memories were put together; put back those that belong together"
    );
    refuse(path, reason)
}

/// Memory that persists, as one piece behind the header of a region: of one process, which has it
/// locked.
#[derive(Debug)]
pub struct PmemSpace {
    /// It holds the lock on all of it.
    _device: DaxDevice,
    pmem: Pmem,
    window: PersistentWindow,
    is_new: bool,
    path: PathBuf,
}

impl PmemSpace {
    /// What is at the path, or a new file of so many bytes; of a device all of it.
    ///
    /// # Errors
    /// [`RegionError`]: another process has it, it has another length or holds something else, the
    /// memory has not the domain that is asked for, or what it held may be lost.
    pub fn open(path: &Path, bytes: u64, asked: Option<PersistenceDomain>) -> Result<PmemSpace> {
        let at_path = find(path)?;
        let is_made_here = at_path.is_none();
        let found = match at_path {
            Some(found) => found,
            None => {
                make_file(path, [bytes.next_multiple_of(file_align_bytes()); 2], SPACE)?;
                let absent = || RegionError::Absent { path: path.to_owned() };
                find(path)?.ok_or_else(absent)?
            }
        };
        shards::lock_device(&found.device, path)?;
        let header = PmemHeader::load(&found.head);
        if header.is_none() && found.head.load(0) == MAGIC {
            return refuse(path, "it is a region of dax: choose another device, or wipe it".into());
        }
        let is_new = is_made_here || header.is_none();
        let (length_bytes, align_bytes) = (found.length_bytes, found.device.align_bytes);
        let header = match header {
            Some(header) => header,
            None => new_header(length_bytes, align_bytes, SPACE, path)?,
        };
        found.check(&header, SPACE, path)?;
        let is_file = !matches!(found.medium, Medium::Device(_));
        let expected_bytes = bytes.next_multiple_of(align_bytes);
        if is_file && length_bytes != expected_bytes {
            let (path, found_bytes) = (path.to_owned(), length_bytes);
            return Err(RegionError::WrongLength { path, found_bytes, expected_bytes });
        }
        let opened = PmemSpace::attach(found, header, asked, path, is_new);
        opened.inspect_err(|_| {
            if is_made_here {
                // The error above is the one to tell.
                let _ = paths::remove_file(path);
            }
        })
    }

    fn attach(
        found: Found,
        header: PmemHeader,
        asked: Option<PersistenceDomain>,
        path: &Path,
        is_new: bool,
    ) -> Result<PmemSpace> {
        let mut pmem = Pmem::new(&found, header, asked, path)?;
        pmem.check_loss(path)?;
        let window = pmem.space(&found.device).map_err(failed("map", path))?;
        let window = pmem.persistent(window);
        pmem.note_attached([0; 2], path)?;
        Ok(PmemSpace { _device: found.device, pmem, window, is_new, path: path.to_owned() })
    }

    /// A handle on all of it.
    pub fn window(&self) -> PersistentWindow {
        self.window.clone()
    }

    /// Whether nothing was there before.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Notes that its process stops in order, with all that it promised durable.
    ///
    /// # Errors
    /// [`RegionError`].
    pub fn stop(&mut self) -> Result<()> {
        self.pmem.note_stopped(&self.path)
    }
}

/// Removes a region that no daemon serves, finished or not. Whether there was one.
pub(super) fn remove(path: &Path) -> Result<bool> {
    let Some(found) = find(path)?.filter(|found| found.header.is_some()) else { return Ok(false) };
    shards::lock_device(&found.device, path)?;
    let Found { device, medium, head, .. } = found;
    let had_region = files::remove_from_device(device, path)?;
    wipe(&head, medium, path)?;
    Ok(had_region)
}

/// Takes the header away: nothing is there any more.
fn wipe(head: &PersistentWindow, medium: Medium, path: &Path) -> Result<()> {
    if !matches!(medium, Medium::Device(_)) {
        return paths::remove_file(path);
    }
    head.zero(0, PMEM_COPIES * PMEM_COPY_BYTES);
    head.persist(0, PMEM_COPIES * PMEM_COPY_BYTES).or_else(|error| not_durable(path, error))
}

fn not_durable<T>(path: &Path, error: PersistError) -> Result<T> {
    refuse(path, error.to_string())
}

fn refuse<T>(path: &Path, reason: String) -> Result<T> {
    Err(RegionError::Persistence { path: path.to_owned(), reason })
}

/// What is at a path; `None` if nothing is.
fn find(path: &Path) -> Result<Option<Found>> {
    let stat = match rustix::fs::stat(path) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(failed("stat", path))?,
    };
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    let mut device = if is_device { dax::open(path)? } else { open_file(path)? };
    let (length_bytes, align_bytes) = (device.device_bytes, device.align_bytes);
    if length_bytes < 2 * align_bytes {
        let reason = format!("its {length_bytes} bytes hold no header and region: remove it");
        return refuse(path, reason);
    }
    let medium = Medium::of(device.fd.as_fd()).map_err(failed("map", path))?;
    let head = map(medium, device.fd.as_fd(), align_bytes, MapOptions::default());
    let head = head.map_err(failed("map", path))?;
    let head = match PersistentWindow::new(head, committed_domain(medium)) {
        Ok(head) => head,
        Err(error) => return refuse(path, error.to_string()),
    };
    (device.base_bytes, device.device_bytes) = (align_bytes, length_bytes - align_bytes);
    let mut found = Found { device, medium, length_bytes, head, header: None };
    found.header = PmemHeader::load(&found.head);
    if found.header.is_none() && !is_device {
        let reason = "it is no region of pmem: (its header is missing or torn); choose another \
                      path, or remove it yourself";
        return refuse(path, reason.into());
    }
    Ok(Some(found))
}

/// Maps a part of it. On a file system that maps its device that is done synchronously whatever the
/// domain is, so that the file's blocks are durable before they are written.
fn map(
    medium: Medium,
    fd: BorrowedFd<'_>,
    bytes: u64,
    options: MapOptions,
) -> std::io::Result<Window> {
    match medium {
        Medium::DaxFile(_) => Window::map_synchronous(fd, bytes, options),
        _ => Window::map(fd, bytes, Access::ReadWrite, options),
    }
}

/// How far stores have to travel on any system until the medium has them.
fn committed_domain(medium: Medium) -> PersistenceDomain {
    match medium {
        Medium::Device(_) | Medium::DaxFile(_) => PersistenceDomain::Adr,
        // Of memory that forgets the system writes nothing, and says so of nothing.
        Medium::File | Medium::Volatile => PersistenceDomain::Msync,
    }
}

fn open_file(path: &Path) -> Result<DaxDevice> {
    let fd = paths::open_file(path, OFlags::RDWR)?;
    let stat = rustix::fs::fstat(&fd).map_err(failed("stat", path))?;
    let device_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let (base_bytes, is_part, is_zero) = (0, false, false);
    let align_bytes = file_align_bytes();
    Ok(DaxDevice { fd, base_bytes, is_part, device_bytes, align_bytes, is_zero })
}

/// What can be mapped of a file begins at multiples of this.
fn file_align_bytes() -> u64 {
    (rustix::param::page_size() as u64).max(PMEM_COPIES * PMEM_COPY_BYTES)
}

/// Makes a new file, with its header: of so many bytes, the first of which are backed.
fn make_file(path: &Path, bytes: [u64; 2], holds: u64) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".unfinished");
    let unfinished = PathBuf::from(name);
    let fd = paths::open_file(&unfinished, OFlags::RDWR | OFlags::CREATE)?;
    paths::lock_exclusive(fd.as_fd(), path)?;
    // The process that had the lock before may have given the file its name.
    let same = rustix::fs::stat(&unfinished).ok().zip(rustix::fs::fstat(&fd).ok());
    if same.is_none_or(|(a, b)| (a.st_dev, a.st_ino) != (b.st_dev, b.st_ino)) {
        return Err(RegionError::Locked { path: path.to_owned(), holder: None });
    }
    let made = fill_file(fd.as_fd(), [path, &unfinished], bytes, holds);
    if made.is_err() {
        // The first error is the one to tell; the next `create` begins anew in any case.
        let _ = paths::remove_file(&unfinished);
    }
    made
}

fn fill_file(
    fd: BorrowedFd<'_>,
    [path, unfinished]: [&Path; 2],
    [length_bytes, backed_bytes]: [u64; 2],
    holds: u64,
) -> Result<()> {
    // What an interrupted attempt wrote goes first.
    rustix::fs::ftruncate(fd, 0).map_err(failed("truncate", unfinished))?;
    rustix::fs::ftruncate(fd, length_bytes).map_err(failed("size", unfinished))?;
    files::back(fd, unfinished, 0, backed_bytes)?;
    let (header, at) = new_header(length_bytes, file_align_bytes(), holds, path)?.next();
    let written = rustix::io::pwrite(fd, &header.to_bytes(), at);
    if written.map_err(failed("write", unfinished))? != HEADER_BYTES {
        return refuse(unfinished, "its header was written in part".into());
    }
    rustix::fs::fsync(fd).map_err(failed("sync", unfinished))?;
    match rustix::fs::renameat_with(CWD, unfinished, CWD, path, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => return Err(RegionError::Exists { path: path.to_owned() }),
        other => other.map_err(failed("rename", path))?,
    }
    let parent = parent_of(path);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(parent, flags, rustix::fs::Mode::empty());
    let directory = directory.map_err(failed("open directory", parent))?;
    rustix::fs::fsync(&directory).map_err(failed("sync", parent))
}

fn new_header(length_bytes: u64, align_bytes: u64, holds: u64, path: &Path) -> Result<PmemHeader> {
    let random = || random_u64().map_err(failed("get random numbers for", path));
    Ok(PmemHeader {
        magic: PMEM_MAGIC,
        version: PMEM_VERSION,
        domain: 0,
        memory_id: [random()?, random()?],
        length_bytes,
        align_bytes,
        boot: present_boot(path)?,
        sequence: 0,
        in_use: 0,
        power_losses: 0,
        dirty_shutdowns: 0,
        region_id: [0; 2],
        holds,
        checksum: 0,
    })
}

/// The boot of this host.
fn present_boot(path: &Path) -> Result<[u64; 2]> {
    let text = boot_id().map_err(failed("get the boot of the host of", path))?;
    let digits = text.split('/').next().unwrap_or_default().replace('-', "");
    match u128::from_str_radix(&digits, 16) {
        Ok(number) => Ok([(number >> 64) as u64, number as u64]),
        Err(_) => refuse(path, format!("the kernel's boot id makes no sense: {text}")),
    }
}

impl Found {
    /// Whether the header is of this release and of memory of this shape.
    fn check(&self, header: &PmemHeader, holds: u64, path: &Path) -> Result<()> {
        if header.holds != holds {
            let reason = "it holds something else (a region of a pool, or the values of a cache): \
                          choose another path, or remove it yourself";
            return refuse(path, reason.into());
        }
        if header.version != PMEM_VERSION {
            let found = header.version;
            let reason = format!("its header has version {found}, this program {PMEM_VERSION}");
            return refuse(path, reason);
        }
        if header.length_bytes != self.length_bytes {
            return Err(RegionError::WrongLength {
                path: path.to_owned(),
                found_bytes: self.length_bytes,
                expected_bytes: header.length_bytes,
            });
        }
        if header.align_bytes != self.device.align_bytes {
            let (was, is) = (header.align_bytes, self.device.align_bytes);
            let reason = format!("its sections begin at multiples of {was} bytes, now of {is}");
            return refuse(path, reason);
        }
        Ok(())
    }
}

impl Pmem {
    fn new(
        found: &Found,
        header: PmemHeader,
        asked: Option<PersistenceDomain>,
        path: &Path,
    ) -> Result<Self> {
        let domain = match found.medium.domain(asked) {
            Ok(domain) => domain,
            Err(error) => return refuse(path, error.to_string()),
        };
        // All that the system has to write shares the errors of one open file.
        Ok(Self {
            head: Mutex::new(found.head.clone()),
            header,
            medium: found.medium,
            domain,
            dirty_shutdowns: dirty_shutdowns(found.device.fd.as_fd()).map_or(0, |n| n + 1),
            boot: present_boot(path)?,
        })
    }

    /// Refuses what cannot be whole after the way in which it was left.
    fn check_loss(&self, path: &Path) -> Result<()> {
        let was_in_use = self.header.in_use != 0;
        let Some(domain) = self.header.domain() else {
            let number = self.header.domain;
            return refuse(path, format!("its persistence domain has the number {number}"));
        };
        if was_in_use && self.lost_power() && domain == PersistenceDomain::None {
            let reason = "the host went down while it was served with domain=none, so that any \
                          of it may be missing: remove it and lose its data";
            return refuse(path, reason.into());
        }
        let (before, now) = (self.header.dirty_shutdowns, self.dirty_shutdowns);
        if was_in_use && before != 0 && now > before && self.medium != Medium::File {
            let times = now - before;
            let reason = format!(
                "its device says that it lost power {times} times without keeping what had reached \
                 it (dirty shutdown count), so that what was acknowledged may be missing: replace \
                 the device; restore the data, or remove the region and lose it"
            );
            return refuse(path, reason);
        }
        Ok(())
    }

    pub(super) fn lost_power(&self) -> bool {
        self.header.boot != self.boot
    }

    pub(super) fn domain(&self) -> PersistenceDomain {
        self.domain
    }

    /// Maps a part of its file.
    pub(super) fn map(
        &self,
        fd: BorrowedFd<'_>,
        bytes: u64,
        options: MapOptions,
    ) -> std::io::Result<Window> {
        map(self.medium, fd, bytes, options)
    }

    /// A window of its file, in its domain.
    pub(super) fn persistent(&self, window: Window) -> PersistentWindow {
        self.on_head(|head| head.beside(window, self.domain))
    }

    /// Makes so much of a window of its file durable, whatever its domain is.
    pub(super) fn commit(&self, window: Window, bytes: u64, path: &Path) -> Result<()> {
        let domain = committed_domain(self.medium);
        let window = self.on_head(|head| head.beside(window, domain));
        window.persist(0, bytes).or_else(|error| not_durable(path, error))
    }

    /// A window of its file, behind the header.
    fn space(&self, device: &DaxDevice) -> std::io::Result<Window> {
        let options = MapOptions { file_offset: device.base_bytes, ..MapOptions::default() };
        self.map(device.fd.as_fd(), device.device_bytes, options)
    }

    fn on_head<R>(&self, use_head: impl FnOnce(&PersistentWindow) -> R) -> R {
        use_head(&self.head.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn note_attached(&mut self, region_id: [u64; 2], path: &Path) -> Result<()> {
        let losses = u64::from(self.lost_power() && self.header.in_use != 0);
        let all = PersistenceDomain::ALL;
        let domain = all.iter().position(|one| *one == self.domain).expect("ALL has all");
        self.write_header(
            PmemHeader {
                domain: domain as u32,
                boot: self.boot,
                in_use: 1,
                power_losses: self.header.power_losses + losses,
                dirty_shutdowns: self.dirty_shutdowns,
                region_id,
                ..self.header
            },
            path,
        )
    }

    /// Only after [`Pmem::commit`] of all sections that are to be found again.
    pub(super) fn note_stopped(&mut self, path: &Path) -> Result<()> {
        self.write_header(PmemHeader { in_use: 0, ..self.header }, path)
    }

    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        self.on_head(|head| wipe(head, self.medium, path))
    }

    fn write_header(&mut self, header: PmemHeader, path: &Path) -> Result<()> {
        let stored = self.on_head(|head| header.store(head));
        self.header = stored.or_else(|error| not_durable(path, error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
