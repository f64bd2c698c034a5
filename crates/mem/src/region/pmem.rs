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
//! What is refused: a file without a header, another length than the header says, a domain that
//! the memory does not have, memory that was in use without any domain when the power went, and a
//! device that says that it lost what had reached it.

use super::dax::{self, DaxDevice, DaxLayout};
use super::error::{RegionError, Result, failed};
use super::paths::{self, parent_of};
use super::spec::MemorySpec;
use super::superblock::SUPERBLOCK_BYTES;
use super::{RegionFiles, Section, files, shards};
use crate::caches;
use crate::process::{boot_id, random_u64};
use crate::window::{Access, MapOptions, Window};
use rackpool_core::durability::{
    PMEM_COPIES, PMEM_COPY_BYTES, PMEM_MAGIC, PMEM_VERSION, PersistenceDomain, PmemHeader,
};
use rackpool_core::layout::MAGIC;
use rackpool_core::seam::Mem;
use rustix::fs::{CWD, FileType, OFlags, RenameFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use tracing::warn;

const HEADER_BYTES: usize = size_of::<PmemHeader>();
/// Devices that one region of the kernel's is made of, at most.
const MAPPINGS_MAX: u64 = 32;

/// What the memory is, which decides how a range of it is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    /// A character device.
    Device,
    /// A file, mapped without a page cache.
    DaxFile,
    /// A file behind the page cache.
    File,
}

/// Memory that persists, as a region has it.
#[derive(Debug)]
pub(super) struct Pmem {
    fd: OwnedFd,
    /// The place of the header.
    head: Window,
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
    head: Window,
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
    let found = match find(path)? {
        Some(found) => found,
        None => {
            make_file(spec, path)?;
            let absent = || RegionError::Absent { path: path.to_owned() };
            let mut found = find(path)?.ok_or_else(absent)?;
            // Where the device is mapped, blocks that were never written are not durable yet.
            found.device.is_zero = found.medium == Medium::File;
            found
        }
    };
    shards::lock_device(&found.device, path)?;
    if found.header.is_none() && found.head.load(0) == MAGIC {
        return refuse(path, "it is a region of dax: already; open it as that, or wipe it".into());
    }
    let header = match found.read_header() {
        Some(header) => header,
        None => new_header(found.length_bytes, found.device.align_bytes, path)?,
    };
    found.check(&header, path)?;
    let pmem = Pmem::new(&found, header, asked, path)?;
    let mut region = files::create_on_device(spec, found.device, path)?;
    persist_all(&pmem, &region, path)?;
    region.pmem = Some(pmem);
    region.note_attached()?;
    Ok(region)
}

/// Opens a finished region.
pub(super) fn open(
    spec: &MemorySpec,
    path: &Path,
    asked: Option<PersistenceDomain>,
) -> Result<RegionFiles> {
    let absent = || RegionError::Absent { path: path.to_owned() };
    let found = find(path)?.ok_or_else(absent)?;
    shards::lock_device(&found.device, path)?;
    // The daemon that had it until now may have written it since.
    let header = found.read_header().ok_or_else(absent)?;
    found.check(&header, path)?;
    let pmem = Pmem::new(&found, header, asked, path)?;
    pmem.check_loss(path)?;
    let mut region = files::open_on_device(spec, found.device, path)?;
    region.pmem = Some(pmem);
    Ok(region)
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
fn wipe(head: &Window, medium: Medium, path: &Path) -> Result<()> {
    if medium != Medium::Device {
        return paths::remove_file(path);
    }
    head.zero(0, PMEM_COPIES * PMEM_COPY_BYTES);
    match head.make_durable(0, PMEM_COPIES * PMEM_COPY_BYTES) {
        true => Ok(()),
        false => refuse(path, "its header cannot be wiped".into()),
    }
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
    let map = |is_synchronous| {
        let options = MapOptions { is_synchronous, ..MapOptions::default() };
        Window::map(device.fd.as_fd(), align_bytes, Access::ReadWrite, options)
    };
    let (medium, head) = match (is_device, map(true)) {
        (true, _) => (Medium::Device, map(false).map_err(failed("map", path))?),
        (false, Ok(head)) => (Medium::DaxFile, head),
        (false, Err(_)) => (Medium::File, map(false).map_err(failed("map", path))?),
    };
    if medium != Medium::File && !caches::is_supported() {
        return refuse(path, "programs cannot write cache lines back on this processor".into());
    }
    let head = head.with_persistence(match medium {
        Medium::File => PersistenceDomain::Msync,
        Medium::Device | Medium::DaxFile => PersistenceDomain::Adr,
    });
    (device.base_bytes, device.device_bytes) = (align_bytes, length_bytes - align_bytes);
    let mut found = Found { device, medium, length_bytes, head, header: None };
    found.header = found.read_header();
    if found.header.is_none() && !is_device {
        let reason = "it is no region of pmem: (its header is missing or torn); choose another \
                      path, or remove it yourself";
        return refuse(path, reason.into());
    }
    Ok(Some(found))
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

/// Makes the file of a new region, backed as a whole, with its header.
fn make_file(spec: &MemorySpec, path: &Path) -> Result<()> {
    let layout = spec.layout()?;
    let align_bytes = file_align_bytes();
    let length_bytes = align_bytes + DaxLayout::new(&layout, align_bytes).bytes;
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
    let made = fill_file(fd.as_fd(), [path, &unfinished], length_bytes, align_bytes);
    if made.is_err() {
        // The first error is the one to tell; the next `create` begins anew in any case.
        let _ = paths::remove_file(&unfinished);
    }
    made
}

fn fill_file(
    fd: BorrowedFd<'_>,
    [path, unfinished]: [&Path; 2],
    length_bytes: u64,
    align_bytes: u64,
) -> Result<()> {
    // What an interrupted attempt wrote goes first.
    rustix::fs::ftruncate(fd, 0).map_err(failed("truncate", unfinished))?;
    rustix::fs::ftruncate(fd, length_bytes).map_err(failed("size", unfinished))?;
    files::back(fd, unfinished, 0, length_bytes)?;
    let (header, at) = new_header(length_bytes, align_bytes, path)?.next();
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

fn new_header(length_bytes: u64, align_bytes: u64, path: &Path) -> Result<PmemHeader> {
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
        reserved: [0; 3],
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
    /// The newer of the whole copies.
    fn read_header(&self) -> Option<PmemHeader> {
        PmemHeader::newest(|copy| {
            let mut bytes = [0; HEADER_BYTES];
            self.head.copy_out(copy * PMEM_COPY_BYTES, &mut bytes);
            bytes
        })
    }

    /// Whether the header is of this release and of memory of this shape.
    fn check(&self, header: &PmemHeader, path: &Path) -> Result<()> {
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
        let fd = found.device.fd.try_clone().map_err(failed("duplicate", path))?;
        let region = kernel_region(fd.as_fd());
        let says = region.as_deref().and_then(kernel_domain);
        let domain = match choose(asked, found.medium, says) {
            Ok(domain) => domain,
            Err(reason) => return refuse(path, reason),
        };
        Ok(Self {
            fd,
            head: found.head.clone(),
            header,
            medium: found.medium,
            domain,
            dirty_shutdowns: region.as_deref().and_then(dirty_shutdowns).map_or(0, |n| n + 1),
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

    /// Whether it is mapped so that the file system keeps no page of its own.
    pub(super) fn is_synchronous(&self) -> bool {
        self.medium == Medium::DaxFile
    }

    pub(super) fn note_attached(&mut self, path: &Path) -> Result<()> {
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
                ..self.header
            },
            path,
        )
    }

    pub(super) fn note_stopped(&mut self, windows: &[Window], path: &Path) -> Result<()> {
        match self.medium {
            Medium::DaxFile | Medium::File => {
                rustix::fs::fsync(&self.fd).map_err(failed("sync", path))?;
            }
            Medium::Device => {
                for window in windows {
                    let window = window.clone().with_persistence(PersistenceDomain::Adr);
                    if !window.make_durable(0, window.bytes()) {
                        return refuse(path, "what is in it cannot be made durable".into());
                    }
                }
            }
        }
        self.write_header(PmemHeader { in_use: 0, ..self.header }, path)
    }

    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        wipe(&self.head, self.medium, path)
    }

    /// Writes the older copy, so that one is whole at any time.
    fn write_header(&mut self, header: PmemHeader, path: &Path) -> Result<()> {
        let (header, at) = header.next();
        self.head.copy_in(at, &header.to_bytes());
        if !self.head.make_durable(at, HEADER_BYTES as u64) {
            return refuse(path, "its header cannot be made durable".into());
        }
        self.header = header;
        Ok(())
    }
}

/// Makes a region that was just made durable as a whole: its zeroes, wherever they are.
fn persist_all(pmem: &Pmem, region: &RegionFiles, path: &Path) -> Result<()> {
    if pmem.medium != Medium::Device {
        return rustix::fs::fsync(&pmem.fd).map_err(failed("sync", path));
    }
    for section in [Section::Private, Section::Pages] {
        let window = region.map(section)?.with_persistence(PersistenceDomain::Adr);
        if !window.make_durable(0, window.bytes()) {
            return refuse(path, "it cannot be made zero for good".into());
        }
    }
    Ok(())
}

/// The domain to go by. `says`: what the kernel says of the device, if it does.
fn choose(
    asked: Option<PersistenceDomain>,
    medium: Medium,
    says: Option<PersistenceDomain>,
) -> Result<PersistenceDomain, String> {
    use PersistenceDomain as Domain;
    match (medium, asked) {
        (_, Some(Domain::None)) => Ok(Domain::None),
        (Medium::File, None | Some(Domain::Msync)) => Ok(Domain::Msync),
        (Medium::File, Some(other)) => Err(format!(
            "domain={other} needs a device, or a file on a file system that is mounted with dax; \
             this file is behind the page cache: use domain=msync"
        )),
        (Medium::Device, Some(Domain::Msync)) => {
            Err("domain=msync needs a file, and this is a device: use domain=adr".into())
        }
        (_, Some(Domain::Eadr)) if says == Some(Domain::Adr) => Err(
            "the kernel says that this platform does not keep its caches when the power goes: use \
             domain=adr"
                .into(),
        ),
        (_, Some(asked)) => Ok(asked),
        (_, None) => Ok(says.unwrap_or(Domain::Adr)),
    }
}

/// The folder in which the kernel tells of the persistent memory that a file or device is in.
fn kernel_region(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    let (class, number) = if is_device { ("char", stat.st_rdev) } else { ("block", stat.st_dev) };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let device = std::fs::canonicalize(format!("/sys/dev/{class}/{major}:{minor}")).ok()?;
    device.ancestors().find(|folder| is_region(folder)).map(Path::to_owned)
}

fn is_region(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    let number = name.and_then(|name| name.strip_prefix("region"));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// What is kept when the power goes, as the kernel says.
fn kernel_domain(region: &Path) -> Option<PersistenceDomain> {
    match std::fs::read_to_string(region.join("persistence_domain")).ok()?.trim() {
        "cpu_cache" => Some(PersistenceDomain::Eadr),
        "memory_controller" => Some(PersistenceDomain::Adr),
        other => {
            warn!(target: "region", "the kernel says of {}: {other}", region.display());
            None
        }
    }
}

/// How often the devices of a region lost power without keeping what had reached them, in all.
fn dirty_shutdowns(region: &Path) -> Option<u64> {
    let number = |path: PathBuf| dax::number_in(path.to_str()?);
    let mappings = number(region.join("mappings"))?.min(MAPPINGS_MAX);
    let mut sum = 0;
    for index in 0..mappings {
        let text = std::fs::read_to_string(region.join(format!("mapping{index}"))).ok()?;
        let device = region.parent()?.join(text.split(',').next()?.trim());
        let counts = ["nfit", "papr", "cxl"].into_iter();
        sum += counts.map(|kind| device.join(kind).join("dirty_shutdown")).find_map(number)?;
    }
    (mappings > 0).then_some(sum)
}

#[cfg(test)]
mod tests;
