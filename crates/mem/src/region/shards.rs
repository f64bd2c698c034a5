//! A rack's memory in equal parts, each a region of its own: what a shard's daemon needs beside
//! [`RegionFiles`]. Which part of a [`MemorySpec`] is a shard's; whether memory that is there was
//! divided otherwise; and the [`Claim`] by which the daemon to which a shard belongs says that
//! it lives.
//!
//! Two locks tell about a shard, and the kernel lets go of both when their process is dead:
//! the daemon that *serves* it has its region's lock, and the one that it *belongs to* has the
//! claim. So no daemon takes over what has a living owner, stopped or not, and a daemon that took
//! over sees the owner come back.
//!
//! Source: Rcmp §4.2 (c); decision 0026.

use super::RegionFiles;
use super::dax::{self, DaxDevice};
use super::error::{RegionError, Result, failed};
use super::paths::{self, Paths};
use super::spec::{MemoryKind, MemorySpec, SpecError};
use rackpool_core::RackId;
use rackpool_core::constants::RACK_SHARDS_MAX;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The byte of a part of a device that is locked by the process that serves it; files are locked
/// whole.
const SERVED_BYTE: u64 = 0;
/// The byte that is locked by the claim.
const CLAIM_BYTE: u64 = 1;

impl MemorySpec {
    /// The memory of one of `shards` equal parts of this: files of their own (`PATH.shard-1`), a
    /// part of the device, or heap memory of its own. All of it if there is one part only.
    ///
    /// # Errors
    /// [`SpecError::NotWholeShards`], [`SpecError::NotDivided`].
    pub fn shard(&self, shard: u16, shards: u16) -> Result<MemorySpec, SpecError> {
        let mut part = self.clone();
        if shards <= 1 {
            return Ok(part);
        }
        if matches!(self.kind, MemoryKind::Pmem { .. }) {
            return Err(SpecError::NotDivided);
        }
        if let Some(size_bytes) = self.size_bytes {
            let page_bytes = self.geometry().page_bytes();
            if !size_bytes.is_multiple_of(page_bytes * u64::from(shards)) {
                return Err(SpecError::NotWholeShards { size_bytes, shards, page_bytes });
            }
            part.size_bytes = Some(size_bytes / u64::from(shards));
        }
        part.part = Some((shard, shards));
        if let MemoryKind::Shm { path, meta } = &mut part.kind {
            *path = with_shard(path, shard);
            *meta = meta.as_deref().map(|meta| with_shard(meta, shard));
        }
        Ok(part)
    }

    /// Checks that memory which is there was divided into `shards` parts.
    ///
    /// # Errors
    /// [`RegionError::OtherDivision`]; as [`RegionFiles::inspect`] of what is there.
    pub fn check_division(&self, shards: u16) -> Result<()> {
        for count in 1..=RACK_SHARDS_MAX {
            for index in 0..count {
                // A size that cannot be divided so was never divided so.
                let Ok(part) = self.shard(index, count) else { continue };
                let path = part.path().unwrap_or(Path::new("heap")).to_owned();
                let found = match RegionFiles::exists(&part) {
                    Ok(true) => RegionFiles::inspect(&part),
                    // So small a part of a device has no room for a superblock.
                    Ok(false) | Err(RegionError::Device { .. }) => continue,
                    Err(error) => return Err(error),
                };
                // What cannot be read is told when it is opened, if it is the one to open.
                let Ok((block, _)) = found else { continue };
                let found = RackId(block.rack).shards();
                if found != shards {
                    return Err(RegionError::OtherDivision { path, found, asked: shards });
                }
            }
        }
        Ok(())
    }
}

pub(super) fn with_shard(path: &Path, shard: u16) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".shard-{shard}"));
    name.into()
}

/// The device of a specification, or the part of it that is meant.
pub(super) fn open_device(spec: &MemorySpec, path: &Path) -> Result<DaxDevice> {
    let device = dax::open(path)?;
    Ok(match spec.part {
        Some((index, count)) => device.part(index, count),
        None => device,
    })
}

/// The lock of the process that serves a device, or a part of one: those who serve parts share
/// the device and have a byte each.
pub(super) fn lock_device(device: &DaxDevice, path: &Path) -> Result<()> {
    if !device.is_part {
        return paths::lock_exclusive(device.fd.as_fd(), path);
    }
    let locked = || RegionError::Locked { path: path.to_owned(), holder: None };
    match rustix::fs::flock(&device.fd, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => return Err(locked()),
        other => other.map_err(failed("lock", path))?,
    }
    match try_lock(device.fd.as_fd(), device.base_bytes + SERVED_BYTE, path)? {
        true => Ok(()),
        false => Err(locked()),
    }
}

/// Held by the daemon that a shard belongs to, for as long as its process lives.
#[derive(Debug)]
pub struct Claim {
    _fd: OwnedFd,
}

impl Claim {
    /// Claims the shard for this process. `None` if its region was never made: then the process
    /// that makes it claims it afterwards, while it has the region's lock.
    ///
    /// # Errors
    /// [`RegionError::Locked`] if another living process has the claim; [`RegionError::Io`].
    pub fn take(spec: &MemorySpec) -> Result<Option<Claim>> {
        let Some((fd, byte, path)) = Self::place(spec)? else { return Ok(None) };
        if !try_lock(fd.as_fd(), byte, &path)? {
            return Err(RegionError::Locked { path, holder: None });
        }
        Ok(Some(Claim { _fd: fd }))
    }

    /// Whether a living process has the claim.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn is_held(spec: &MemorySpec) -> Result<bool> {
        let Some((fd, byte, path)) = Self::place(spec)? else { return Ok(false) };
        is_locked(fd.as_fd(), byte, &path)
    }

    /// Whether a region is there that no process serves and none claims: its daemon is dead or was
    /// stopped.
    ///
    /// # Errors
    /// [`RegionError::Io`].
    pub fn is_orphan(spec: &MemorySpec) -> Result<bool> {
        let Some((fd, claim, path)) = Self::place(spec)? else { return Ok(false) };
        if is_locked(fd.as_fd(), claim, &path)? {
            return Ok(false);
        }
        if matches!(spec.kind, MemoryKind::Dax { .. }) {
            return Ok(!is_locked(fd.as_fd(), claim - CLAIM_BYTE + SERVED_BYTE, &path)?);
        }
        // Given back at once, when the descriptor is closed.
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(false),
            other => other.map(|()| true).map_err(failed("lock", &path)),
        }
    }

    /// The file and the byte of it where the claim of a region is; `None` without a region.
    fn place(spec: &MemorySpec) -> Result<Option<(OwnedFd, u64, PathBuf)>> {
        if let MemoryKind::Dax { path } = &spec.kind {
            if !RegionFiles::exists(spec)? {
                return Ok(None);
            }
            let device = open_device(spec, path)?;
            return Ok(Some((device.fd, device.base_bytes + CLAIM_BYTE, path.clone())));
        }
        let Some(paths) = Paths::of(&spec.kind) else { return Ok(None) };
        let name = paths.private();
        match paths::open_file(&name, OFlags::RDWR) {
            Ok(fd) => Ok(Some((fd, CLAIM_BYTE, name))),
            Err(RegionError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Locks one byte of an open file against all others, if no process has it. The lock is the open
/// file's, not the process's: it ends when the last descriptor of it is closed, by death too.
fn try_lock(fd: BorrowedFd<'_>, byte: u64, path: &Path) -> Result<bool> {
    match lock_call(fd, libc::F_OFD_SETLK, byte) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(failed("lock a byte of", path)(errno)),
    }
}

/// Whether some other open file has a byte locked.
fn is_locked(fd: BorrowedFd<'_>, byte: u64, path: &Path) -> Result<bool> {
    let found = lock_call(fd, libc::F_OFD_GETLK, byte).map_err(failed("look at", path))?;
    Ok(found != libc::F_UNLCK)
}

/// One call about a write lock of one byte; the kind of lock that the kernel names.
fn lock_call(fd: BorrowedFd<'_>, call: libc::c_int, byte: u64) -> Result<libc::c_int, Errno> {
    let start = libc::off_t::try_from(byte).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: the struct is plain numbers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, 1);
    // SAFETY: the descriptor is open, and the kernel reads and writes one `flock`, which lives
    // until the call returns.
    let status = unsafe { libc::fcntl(fd.as_raw_fd(), call, &raw mut lock) };
    if status < 0 {
        let code = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Errno::from_raw_os_error(code));
    }
    Ok(libc::c_int::from(lock.l_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A path for regions of one test, whose files go with it.
    struct TestPath(PathBuf);

    impl TestPath {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            // Relaxed: only the number matters.
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!("rackpool-shards-{}-{number}", std::process::id());
            TestPath(Path::new("/dev/shm").join(name))
        }

        fn spec(&self) -> MemorySpec {
            format!("shm:{}?size=1M&pages=64K", self.0.display()).parse().unwrap()
        }

        /// Makes a region as its daemon would.
        fn make(&self, shard: u16, shards: u16) -> RegionFiles {
            let spec = self.spec().shard(shard, shards).unwrap();
            let mut files = RegionFiles::create(&spec).unwrap();
            let rack = RackId::sharded(4, shard, shards).unwrap();
            crate::region::files::tests::format(&files, rack.0);
            files.publish().unwrap();
            files
        }
    }

    impl Drop for TestPath {
        fn drop(&mut self) {
            for shards in [1, 2] {
                for shard in 0..shards {
                    let spec = self.spec().shard(shard, shards).unwrap();
                    RegionFiles::remove_path(&spec).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_shard_has_its_part_of_the_size_and_names_of_its_own() {
        let spec: MemorySpec = "shm:/a/r?size=1M&pages=64K&meta=/b/m".parse().unwrap();
        assert_eq!(spec.shard(0, 1).unwrap(), spec);
        let part = spec.shard(1, 4).unwrap();
        assert_eq!(part.size_bytes, Some(256 << 10));
        assert_eq!(part.path(), Some(Path::new("/a/r.shard-1")));
        assert!(part.to_string().contains("meta=/b/m.shard-1"), "{part}");
        let error = spec.shard(0, 3).unwrap_err().to_string();
        assert!(error.contains("3 shards of whole pages of 64K: use size=1152K"), "{error}");
    }

    #[test]
    fn memory_that_was_divided_otherwise_is_refused_and_left_alone() {
        let place = TestPath::new();
        place.spec().check_division(2).unwrap();
        drop(place.make(1, 2));
        place.spec().check_division(2).unwrap();
        for asked in [1, 3, 8] {
            let error = place.spec().check_division(asked).unwrap_err();
            assert!(matches!(error, RegionError::OtherDivision { found: 2, .. }), "{error}");
        }
        let whole = TestPath::new();
        drop(whole.make(0, 1));
        let error = whole.spec().check_division(2).unwrap_err();
        assert!(matches!(error, RegionError::OtherDivision { found: 1, .. }), "{error}");
    }

    #[test]
    fn a_region_is_an_orphan_only_while_nobody_serves_it_and_nobody_claims_it() {
        let place = TestPath::new();
        let spec = place.spec().shard(0, 2).unwrap();
        assert!(!Claim::is_orphan(&spec).unwrap() && !Claim::is_held(&spec).unwrap());
        assert!(Claim::take(&spec).unwrap().is_none(), "there is nothing to claim");
        let files = place.make(0, 2);
        assert!(!Claim::is_orphan(&spec).unwrap(), "it is served");
        let claim = Claim::take(&spec).unwrap().unwrap();
        let second = Claim::take(&spec).unwrap_err();
        assert!(matches!(second, RegionError::Locked { .. }), "{second}");
        drop(files);
        assert!(Claim::is_held(&spec).unwrap());
        assert!(!Claim::is_orphan(&spec).unwrap(), "its owner lives");
        drop(claim);
        assert!(Claim::is_orphan(&spec).unwrap());
        let files = RegionFiles::open(&spec).unwrap();
        assert!(!Claim::is_orphan(&spec).unwrap() && !Claim::is_held(&spec).unwrap());
        drop(files);
    }

    #[test]
    fn parts_of_a_device_are_locked_apart_and_not_beside_the_whole() {
        let file = crate::region::files::create_memfd(Path::new("device"), 8 << 20).unwrap();
        let path = Path::new("/dev/dax0.0");
        let open = || crate::region::files::tests::device(&file, 4096);
        let (first, second) = (open().part(0, 2), open().part(1, 2));
        assert_eq!(
            (first.base_bytes, second.base_bytes, second.device_bytes),
            (0, 4 << 20, 4 << 20)
        );
        lock_device(&first, path).unwrap();
        lock_device(&second, path).unwrap();
        for denied in [open().part(1, 2), open()] {
            let error = lock_device(&denied, path).unwrap_err();
            assert!(matches!(error, RegionError::Locked { .. }), "{error}");
        }
        drop((first, second));
        lock_device(&open(), path).unwrap();
    }
}
