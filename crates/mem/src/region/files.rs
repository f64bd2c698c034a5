//! The system calls behind [`RegionFiles`]: making, opening and removing the sections of each
//! kind of memory, backing and punching. Called by `region/mod.rs` alone; see its ordering rules.

use super::dax::{self, DaxDevice, DaxLayout};
use super::error::{RegionError, Result, failed};
use super::huge::{self, FileSystem};
use super::numa;
use super::paths::{self, Paths};
use super::shards;
use super::spec::{MemorySpec, SpecError};
use super::superblock::{self, SUPERBLOCK_BYTES};
use super::{RegionFiles, Section, Store, section_bytes};
use crate::caches;
use crate::files::take_rights;
use crate::memory::HostMemory;
use crate::window::{Access, MapOptions, Window};
use rackpool_core::FrameIndex;
use rackpool_core::constants::REGION_RETRIES_MAX;
use rackpool_core::copies;
use rackpool_core::layout::{
    MAGIC, RegionLayout, SLOT_BYTES, SLOT_BYTES_OLD, SUPERBLOCK_OFFSET, Superblock,
};
use rackpool_core::seam::Mem;
use rackpool_core::tier::{TierRange, Tiers};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;

pub(super) fn create_files(spec: &MemorySpec, paths: Paths) -> Result<RegionFiles> {
    let layout = spec.layout()?;
    check_directories(spec, &layout, &paths)?;
    let exists = || RegionError::Exists { path: paths.pages.clone() };
    if paths::is_there(&paths.private()) {
        return Err(exists());
    }
    if !paths::is_there(&paths.unfinished())
        && let Some(path) = paths.in_the_way()
    {
        return Err(RegionError::Foreign { path, meta: paths.private() });
    }
    let private =
        paths.lock(&paths.unfinished(), true)?.expect("a file that is made on demand is there");
    if paths::is_there(&paths.private()) {
        // Another daemon finished while this one looked: what is locked here is a new empty file.
        paths::remove_file(&paths.unfinished())?;
        return Err(exists());
    }
    // A second hold on the lock, so that no other process is at work here while a failure is
    // undone.
    let _held = private.try_clone().map_err(failed("duplicate", &paths.unfinished()))?;
    let made = fill_new(spec, layout, &paths, private);
    if made.is_err() {
        // The first error is the one to tell; what is left is unfinished in any case.
        let _ = remove_unpublished(&paths);
    }
    made
}

fn fill_new(
    spec: &MemorySpec,
    layout: RegionLayout,
    paths: &Paths,
    private: OwnedFd,
) -> Result<RegionFiles> {
    paths.remove_all_but_private()?;
    let name = paths.unfinished();
    // What an interrupted attempt wrote goes first.
    rustix::fs::ftruncate(&private, 0).map_err(failed("truncate", &name))?;
    rustix::fs::ftruncate(&private, layout.private_bytes()).map_err(failed("size", &name))?;
    let make = |path: &Path, section| -> Result<OwnedFd> {
        let fd = paths::open_file(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        let bytes = section_bytes(&layout, section);
        rustix::fs::ftruncate(&fd, bytes).map_err(failed("size", path))?;
        Ok(fd)
    };
    let files = RegionFiles {
        spec: spec.clone(),
        layout,
        tiers: spec.tiers(layout.frame_count)?,
        pages: make(&paths.pages, Section::Pages)?,
        table: make(&paths.table(), Section::Table)?,
        bell: make(&paths.bell(), Section::Bell)?,
        private,
        store: Store::Files(paths.clone()),
        pmem: None,
        is_published: false,
    };
    bind_pages(&files)?;
    back_metadata(&files)?;
    if spec.touch {
        files.back_pages(0, layout.pages_bytes())?;
    }
    Ok(files)
}

pub(super) fn open_files(spec: &MemorySpec, paths: Paths) -> Result<RegionFiles> {
    let name = paths.private();
    let Some(private) = paths.lock(&name, false)? else {
        return Err(absent_or_unfinished(&paths));
    };
    let (block, layout) = superblock::check(&read_superblock(private.as_fd(), &name)?, &name)?;
    superblock::check_geometry(&block, layout, spec, &name)?;
    check_directories(spec, &layout, &paths)?;
    check_length(private.as_fd(), &name, layout.private_bytes())?;
    let open = |path: &Path, section| -> Result<OwnedFd> {
        let fd = paths::open_file(path, OFlags::RDWR)?;
        check_length(fd.as_fd(), path, section_bytes(&layout, section))?;
        Ok(fd)
    };
    let files = RegionFiles {
        spec: MemorySpec { coherence: Some(block.coherence()), ..spec.clone() },
        layout,
        tiers: superblock::tiers_of(&block, &name)?,
        pages: open(&paths.pages, Section::Pages)?,
        table: open(&paths.table(), Section::Table)?,
        bell: open(&paths.bell(), Section::Bell)?,
        private,
        store: Store::Files(paths),
        pmem: None,
        is_published: true,
    };
    for fd in [&files.pages, &files.table, &files.bell, &files.private] {
        take_rights(fd).map_err(failed("take the rights of", &name))?;
    }
    bind_pages(&files)?;
    // They are, unless another process punched them; it costs little to be sure.
    back_metadata(&files)?;
    if spec.touch {
        files.back_pages(0, layout.pages_bytes())?;
    }
    Ok(files)
}

pub(super) fn inspect_files(paths: &Paths) -> Result<(Superblock, RegionLayout)> {
    let name = paths.private();
    if !paths::is_there(&name) {
        return Err(absent_or_unfinished(paths));
    }
    let fd = paths::open_file(&name, OFlags::RDONLY)?;
    superblock::check(&read_superblock(fd.as_fd(), &name)?, &name)
}

pub(super) fn remove_files(paths: &Paths) -> Result<bool> {
    // The locks are held to the end, so that no process opens or makes what is being removed.
    let finished = paths.lock(&paths.private(), false)?;
    if finished.is_some() {
        remove_locked(paths)?;
        return Ok(true);
    }
    let unfinished = paths.lock(&paths.unfinished(), false)?;
    if unfinished.is_some() {
        remove_unpublished(paths)?;
    }
    Ok(unfinished.is_some())
}

/// Removes a finished region. The caller holds its lock.
pub(super) fn remove_locked(paths: &Paths) -> Result<()> {
    match rustix::fs::rename(paths.private(), paths.unfinished()) {
        // Another process removed it by hand, or it was never published.
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("rename", &paths.private())(errno)),
    }
    remove_unpublished(paths)
}

/// Removes an unfinished region; the caller holds its lock. The name that marks it as unfinished
/// goes last.
pub(super) fn remove_unpublished(paths: &Paths) -> Result<()> {
    paths.remove_all_but_private()?;
    paths::remove_file(&paths.unfinished())
}

fn absent_or_unfinished(paths: &Paths) -> RegionError {
    let path = paths.pages.clone();
    if paths::is_there(&paths.unfinished()) {
        return RegionError::Unfinished { path };
    }
    match paths.in_the_way() {
        Some(path) => RegionError::Foreign { path, meta: paths.private() },
        None => RegionError::Absent { path },
    }
}

fn check_directories(spec: &MemorySpec, layout: &RegionLayout, paths: &Paths) -> Result<()> {
    let open = |path: &Path| {
        let parent = paths::parent_of(path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(parent, flags, Mode::empty()).map_err(failed("open directory", parent))
    };
    let directory = open(&paths.pages)?;
    if let Some(huge) = spec.huge {
        huge::check_directory(directory.as_fd(), &paths.pages, huge)?;
    }
    let page_bytes = layout.pages.page_bytes();
    match huge::file_system(directory.as_fd(), &paths.pages)? {
        FileSystem::Hugetlb { page_bytes: huge_bytes } if huge_bytes > page_bytes => {
            return Err(SpecError::HugeAbovePages { huge_bytes, page_bytes }.into());
        }
        _ => {}
    }
    let private = paths.private();
    match huge::file_system(open(&private)?.as_fd(), &private)? {
        FileSystem::Hugetlb { .. } => Err(RegionError::MetaOnHugetlbfs { path: private }),
        _ => Ok(()),
    }
}

fn check_length(fd: BorrowedFd<'_>, path: &Path, expected_bytes: u64) -> Result<()> {
    let stat = rustix::fs::fstat(fd).map_err(failed("stat", path))?;
    let found_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if found_bytes != expected_bytes {
        let path = path.to_owned();
        return Err(RegionError::WrongLength { path, found_bytes, expected_bytes });
    }
    Ok(())
}

fn read_superblock(fd: BorrowedFd<'_>, path: &Path) -> Result<[u8; SUPERBLOCK_BYTES]> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    match rustix::io::pread(fd, &mut bytes, SUPERBLOCK_OFFSET) {
        Ok(SUPERBLOCK_BYTES) => Ok(bytes),
        Ok(got) => Err(RegionError::WrongLength {
            path: path.to_owned(),
            found_bytes: got as u64,
            expected_bytes: SUPERBLOCK_BYTES as u64,
        }),
        Err(errno) => Err(failed("read", path)(errno)),
    }
}

/// Has pages come from the memory nodes that the region has, or that were asked for.
fn bind_pages(files: &RegionFiles) -> Result<()> {
    let layout = files.layout;
    let of_tier = |range: &TierRange| {
        let bytes = u64::from(range.frame_count) * layout.pages.page_bytes();
        (layout.frame_offset(FrameIndex(range.first_frame)), bytes, range.node)
    };
    let ranges: Vec<(u64, u64, u16)> = match (files.tiers.ranges(), &files.spec.numa[..]) {
        ([], []) => return Ok(()),
        ([], [(node, _), ..]) => vec![(0, layout.pages_bytes(), *node)],
        (tiers, _) => tiers.iter().map(of_tier).collect(),
    };
    numa::bind(files.pages.as_fd(), &files.section_path(Section::Pages), &ranges)
}

/// Backs all that is touched without being asked for: everything but pages and slab bitmaps.
fn back_metadata(files: &RegionFiles) -> Result<()> {
    for place in copies::places(files.layout.private_bytes(), 0) {
        files.back_section(Section::Private, place, files.layout.bitmaps_offset())?;
    }
    files.back_section(Section::Table, 0, files.layout.table_bytes())?;
    files.back_section(Section::Bell, 0, section_bytes(&files.layout, Section::Bell))
}

pub(super) fn create_memory(spec: &MemorySpec) -> Result<RegionFiles> {
    let layout = spec.layout()?;
    if let Some(huge) = spec.huge {
        huge::check_anonymous(huge)?;
    }
    let make = |name: &str, section| create_memfd(Path::new(name), section_bytes(&layout, section));
    let files = RegionFiles {
        spec: spec.clone(),
        layout,
        tiers: spec.tiers(layout.frame_count)?,
        pages: make("rackpool.pages", Section::Pages)?,
        private: make("rackpool.meta", Section::Private)?,
        table: make("rackpool.table", Section::Table)?,
        bell: make("rackpool.bell", Section::Bell)?,
        store: Store::Memory(Mutex::default()),
        pmem: None,
        is_published: false,
    };
    bind_pages(&files)?;
    back_metadata(&files)?;
    if spec.touch {
        files.back_pages(0, layout.pages_bytes())?;
    }
    Ok(files)
}

/// Anonymous memory with a sealed length.
pub(super) fn create_memfd(name: &Path, bytes: u64) -> Result<OwnedFd> {
    let short_name = name.file_name().unwrap_or(name.as_os_str());
    let fd = rustix::fs::memfd_create(short_name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(failed("create memfd", name))?;
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(failed("set mode", name))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(failed("size", name))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(failed("seal", name))?;
    Ok(fd)
}

pub(super) fn create_slot_file(path: &Path) -> Result<OwnedFd> {
    let fd = match paths::open_file(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
        Err(RegionError::Io { source, .. })
            if source.kind() == std::io::ErrorKind::AlreadyExists =>
        {
            return Err(RegionError::Exists { path: path.to_owned() });
        }
        other => other?,
    };
    let sized = rustix::fs::ftruncate(&fd, SLOT_BYTES)
        .map_err(failed("size", path))
        .and_then(|()| back(fd.as_fd(), path, 0, SLOT_BYTES));
    if sized.is_err() {
        // The first error is the one to tell; `open_slot` backs what a leftover lacks.
        let _ = paths::remove_file(path);
    }
    sized.map(|()| fd)
}

pub(super) fn open_slot_file(path: &Path) -> Result<OwnedFd> {
    if !paths::is_there(path) {
        return Err(RegionError::Absent { path: path.to_owned() });
    }
    let fd = paths::open_file(path, OFlags::RDWR)?;
    if check_length(fd.as_fd(), path, SLOT_BYTES_OLD).is_ok() {
        // An earlier release's: nothing was lent there.
        rustix::fs::ftruncate(&fd, SLOT_BYTES).map_err(failed("size", path))?;
    }
    check_length(fd.as_fd(), path, SLOT_BYTES)?;
    back(fd.as_fd(), path, 0, SLOT_BYTES)?;
    Ok(fd)
}

/// Gives memory to a part of a file, all or nothing.
pub(super) fn back(fd: BorrowedFd<'_>, path: &Path, offset: u64, bytes: u64) -> Result<()> {
    match allocate(fd, FallocateFlags::KEEP_SIZE, offset, bytes) {
        // No memory is what a limited group of processes is told.
        Err(Errno::NOSPC | Errno::NOMEM | Errno::DQUOT) => Err(RegionError::NoSpace {
            asked_bytes: bytes,
            path: path.to_owned(),
            free_bytes: free_bytes(fd, path).unwrap_or(0),
        }),
        Err(Errno::OPNOTSUPP) => {
            Err(RegionError::Unsupported { path: path.to_owned(), operation: "back files" })
        }
        other => other.map_err(failed("back", path)),
    }
}

/// Takes the memory of a part of a file back.
pub(super) fn punch(fd: BorrowedFd<'_>, path: &Path, offset: u64, bytes: u64) -> Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match allocate(fd, flags, offset, bytes) {
        Err(Errno::OPNOTSUPP) => {
            Err(RegionError::Unsupported { path: path.to_owned(), operation: "punch holes" })
        }
        other => other.map_err(failed("punch", path)),
    }
}

fn allocate(
    fd: BorrowedFd<'_>,
    flags: FallocateFlags,
    offset: u64,
    bytes: u64,
) -> rustix::io::Result<()> {
    for _ in 1..REGION_RETRIES_MAX {
        // tmpfs gives up, with nothing changed, at every signal.
        match rustix::fs::fallocate(fd, flags, offset, bytes) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
    rustix::fs::fallocate(fd, flags, offset, bytes)
}

/// Memory that a file takes.
pub(super) fn blocks_bytes(fd: BorrowedFd<'_>, path: &Path) -> Result<u64> {
    const STAT_BLOCK_BYTES: u64 = 512;
    let stat = rustix::fs::fstat(fd).map_err(failed("stat", path))?;
    Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * STAT_BLOCK_BYTES)
}

/// Memory that the file system still has; what the machine has if it sets no limit.
pub(super) fn free_bytes(fd: BorrowedFd<'_>, path: &Path) -> Result<u64> {
    let stat = rustix::fs::fstatvfs(fd).map_err(failed("statfs", path))?;
    if stat.f_blocks > 0 {
        return Ok(stat.f_bavail * stat.f_frsize);
    }
    Ok(HostMemory::now().map_or(0, |memory| memory.available_bytes))
}

pub(super) fn create_on_device(
    spec: &MemorySpec,
    device: DaxDevice,
    path: &Path,
) -> Result<RegionFiles> {
    shards::lock_device(&device, path)?;
    let superblock = device_superblock(&device, path)?;
    if has_magic(&superblock) {
        // Whole or torn: it is never formatted again.
        superblock::check(&superblock, path)?;
        return Err(RegionError::Exists { path: path.to_owned() });
    }
    let layout = match spec.size_bytes {
        Some(_) => spec.layout()?,
        None => DaxLayout::largest(device.device_bytes, device.align_bytes, spec.geometry())
            .ok_or_else(|| dax::too_small(&device, spec.geometry().page_bytes(), path))?,
    };
    let is_zero = device.is_zero;
    let files = on_device(spec, layout, device, path)?;
    if is_zero {
        return Ok(files);
    }
    let all = [Section::Private, Section::Table, Section::Bell, Section::Pages];
    for section in all {
        let (window, bytes) = (files.map(section)?, section_bytes(&layout, section));
        window.zero(0, bytes);
        window.flush(0, bytes);
    }
    Ok(files)
}

pub(super) fn open_on_device(
    spec: &MemorySpec,
    device: DaxDevice,
    path: &Path,
) -> Result<RegionFiles> {
    shards::lock_device(&device, path)?;
    let superblock = device_superblock(&device, path)?;
    if !has_magic(&superblock) {
        return Err(RegionError::Absent { path: path.to_owned() });
    }
    let (block, layout) = superblock::check(&superblock, path)?;
    superblock::check_geometry(&block, layout, spec, path)?;
    let mut files = on_device(spec, layout, device, path)?;
    files.spec.coherence = Some(block.coherence());
    files.is_published = true;
    Ok(files)
}

pub(super) fn device_has_region(device: &DaxDevice, path: &Path) -> Result<bool> {
    Ok(has_magic(&device_superblock(device, path)?))
}

/// Wipes a region off a device. Whether there was one.
pub(super) fn remove_from_device(device: DaxDevice, path: &Path) -> Result<bool> {
    shards::lock_device(&device, path)?;
    let had_region = device_has_region(&device, path)?;
    if had_region {
        wipe_superblock(&device_head(&device, Access::ReadWrite, path)?)?;
    }
    Ok(had_region)
}

/// Makes a region on a device one no more: the magic word first, which is a single store.
pub(super) fn wipe_superblock(private: &Window) -> Result<()> {
    let private = for_all_hosts(private);
    private.store(SUPERBLOCK_OFFSET, 0);
    private.zero(SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES as u64);
    private.flush(SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES as u64);
    Ok(())
}

pub(super) fn device_superblock(device: &DaxDevice, path: &Path) -> Result<[u8; SUPERBLOCK_BYTES]> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let head = for_all_hosts(&device_head(device, Access::ReadOnly, path)?);
    head.invalidate(SUPERBLOCK_OFFSET, SUPERBLOCK_BYTES as u64);
    head.copy_out(SUPERBLOCK_OFFSET, &mut bytes);
    Ok(bytes)
}

/// The superblock is looked at by all hosts that have the device, before they can know whether
/// their caches agree: it is written back and dropped wherever a processor can do that.
pub(super) fn for_all_hosts(private: &Window) -> Window {
    private.clone().with_coherence(!caches::is_supported())
}

fn device_head(device: &DaxDevice, access: Access, path: &Path) -> Result<Window> {
    let file_offset = device.base_bytes;
    let options = MapOptions { file_offset, ..MapOptions::default() };
    let head_bytes = (SUPERBLOCK_BYTES as u64).next_multiple_of(device.align_bytes);
    if device.device_bytes < head_bytes {
        return Err(dax::too_small(device, head_bytes, path));
    }
    Window::map(device.fd.as_fd(), head_bytes, access, options).map_err(failed("map", path))
}

fn has_magic(superblock: &[u8; SUPERBLOCK_BYTES]) -> bool {
    superblock.starts_with(&MAGIC.to_ne_bytes())
}

fn on_device(
    spec: &MemorySpec,
    layout: RegionLayout,
    device: DaxDevice,
    path: &Path,
) -> Result<RegionFiles> {
    let dax = dax::place(&device, &layout, path)?;
    let again = || device.fd.try_clone().map_err(failed("duplicate", path));
    Ok(RegionFiles {
        spec: spec.clone(),
        layout,
        tiers: Tiers::default(),
        pages: again()?,
        table: again()?,
        bell: again()?,
        private: device.fd,
        store: Store::Device(dax),
        pmem: None,
        is_published: false,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rackpool_core::coherence::Coherence;
    use rackpool_core::constants::{SESSIONS_MAX, SLOTS_MAX};
    use rackpool_core::layout::LAYOUT_VERSION;
    use zerocopy::IntoBytes;

    const PATH: &str = "/dev/dax0.0";

    /// A file in place of a device: all but the questions to the kernel about it is the same.
    pub(crate) fn device(file: &OwnedFd, align_bytes: u64) -> DaxDevice {
        let name = {
            use std::os::fd::AsRawFd;
            format!("/proc/self/fd/{}", file.as_raw_fd())
        };
        let fd = rustix::fs::open(name, OFlags::RDWR, Mode::empty()).unwrap();
        let device_bytes = rustix::fs::fstat(file).unwrap().st_size as u64;
        let (base_bytes, is_part, is_zero) = (0, false, false);
        DaxDevice { fd, base_bytes, is_part, device_bytes, align_bytes, is_zero }
    }

    pub(crate) fn format(files: &RegionFiles, rack: u16) {
        let mut block = Superblock {
            magic: MAGIC,
            version: LAYOUT_VERSION,
            page_shift: files.layout.pages.page_shift(),
            reserved_0: 0,
            rack,
            region_id: [1, 2],
            frame_count: u64::from(files.layout.frame_count),
            features: if files.coherence().is_hardware() { 0 } else { 1 },
            sessions: SESSIONS_MAX,
            slots: SLOTS_MAX,
            tiers: files.tiers.words(),
            reserved: [0; 4],
            checksum: 0,
        };
        block.checksum = block.checksum_of();
        files.map(Section::Private).unwrap().copy_in(SUPERBLOCK_OFFSET, block.as_bytes());
    }

    #[test]
    fn a_region_on_a_device_is_made_kept_and_wiped() {
        let file = create_memfd(Path::new("device"), 96 << 20).unwrap();
        let path = Path::new(PATH);
        let spec: MemorySpec = "dax:/dev/dax0.0?pages=64K".parse().unwrap();
        let open = || device(&file, 64 << 10);

        // Whatever a device holds at first is not zero.
        let whole =
            Window::map(file.as_fd(), 96 << 20, Access::ReadWrite, MapOptions::default()).unwrap();
        for offset in (0..96 << 20).step_by(4096) {
            whole.store(offset, 0x5555);
        }
        assert!(!device_has_region(&open(), path).unwrap());
        assert!(matches!(open_on_device(&spec, open(), path), Err(RegionError::Absent { .. })));

        let mut files = create_on_device(&spec, open(), path).unwrap();
        assert!(files.publish().is_err(), "not formatted");
        format(&files, 1);
        files.publish().unwrap();
        let layout = files.layout();
        let pages = files.map(Section::Pages).unwrap();
        assert_eq!(pages.load(0), 0);
        let last = layout.pages_bytes() - 8;
        pages.store(last, 77);
        let (_, slot) = files.create_slot(SLOTS_MAX - 1).unwrap();
        slot.store(SLOT_BYTES - 8, 78);
        let locked = open_on_device(&spec, open(), path).unwrap_err();
        assert!(matches!(locked, RegionError::Locked { .. }), "{locked}");
        drop((files, pages, slot));

        let exists = create_on_device(&spec, open(), path).unwrap_err();
        assert!(matches!(exists, RegionError::Exists { .. }), "{exists}");
        let files = open_on_device(&spec, open(), path).unwrap();
        assert_eq!(files.layout(), layout);
        assert_eq!(files.map(Section::Pages).unwrap().load(last), 77);
        assert_eq!(files.open_slot(SLOTS_MAX - 1).unwrap().1.load(SLOT_BYTES - 8), 78);
        let page_bytes = layout.pages.page_bytes();
        files.punch_pages(layout.pages_bytes() - page_bytes, page_bytes).unwrap();
        assert_eq!(files.map(Section::Pages).unwrap().load(last), 0);
        drop(files);

        // A torn superblock is neither served nor formatted.
        let version = whole.load(8);
        whole.store(8, version ^ 1);
        for result in [open_on_device(&spec, open(), path), create_on_device(&spec, open(), path)] {
            assert!(matches!(result, Err(RegionError::BadSuperblock { .. })));
        }
        whole.store(8, version);
        assert!(remove_from_device(open(), path).unwrap());
        assert!(!remove_from_device(open(), path).unwrap());
    }

    #[test]
    fn a_region_on_a_device_keeps_the_coherence_that_it_was_made_with() {
        let file = create_memfd(Path::new("device"), 96 << 20).unwrap();
        let path = Path::new(PATH);
        let spec = |keys: &str| -> MemorySpec { format!("dax:{PATH}{keys}").parse().unwrap() };
        let open = || device(&file, 64 << 10);
        let software = "?pages=64K&coherence=software";
        let mut files = create_on_device(&spec(software), open(), path).unwrap();
        format(&files, 1);
        files.publish().unwrap();
        drop(files);
        for keys in ["", software] {
            let files = open_on_device(&spec(keys), open(), path).unwrap();
            assert_eq!(files.coherence(), Coherence::Software);
            let mapped = |section| files.map(section).unwrap().is_coherent();
            assert!(mapped(Section::Private), "it is this host's alone");
            for shared in [Section::Table, Section::Bell, Section::Pages] {
                assert!(!mapped(shared), "{shared:?}");
            }
        }
        let other = open_on_device(&spec("?coherence=hardware"), open(), path).unwrap_err();
        assert!(matches!(other, RegionError::OtherGeometry { what: "coherence", .. }), "{other}");
        assert!(remove_from_device(open(), path).unwrap());
        let files = create_on_device(&spec("?pages=64K"), open(), path).unwrap();
        assert_eq!(files.coherence(), Coherence::Hardware);
        assert!(files.map(Section::Pages).unwrap().is_coherent());
    }

    #[test]
    fn a_device_that_is_too_small_says_how_much_it_has() {
        let file = create_memfd(Path::new("device"), 64 << 10).unwrap();
        let path = Path::new(PATH);
        for (text, align_bytes) in
            [("dax:/dev/dax0.0", 4096), ("dax:/dev/dax0.0?size=1G", 4096), ("dax:/x", 2 << 20)]
        {
            let spec: MemorySpec = text.parse().unwrap();
            let error = create_on_device(&spec, device(&file, align_bytes), path).unwrap_err();
            assert!(error.to_string().contains("the device has 64K"), "{error}");
        }
    }

    #[test]
    fn heap_memory_has_no_pages_of_1_gib() {
        let error = create_memory(&"heap?size=1G&pages=1G&huge=1G".parse().unwrap()).unwrap_err();
        assert!(matches!(error, RegionError::NoHugePages { .. }), "{error}");
    }
}
