//! The names of a region's files and what may be done with them: which belong to the region,
//! which are in the way, how all of them go. Paths in, files and typed errors out. Called by
//! [`super::RegionFiles`] alone, which holds the region's lock while it changes anything.
//!
//! The life of a region is told by two names of one file, the private section: `.meta.unfinished`
//! from the first moment of its making, `.meta` from the moment when everything in it is stored,
//! and `.meta.unfinished` again from the first moment of its removal. A crash at any point leaves
//! a region that is whole, or one that is known not to be.
//!
//! Source: DESIGN §2 (region), §4.

use super::error::{RegionError, Result, failed};
use super::spec::MemoryKind;
use crate::files;
use rackpool_core::constants::{REGION_RETRIES_MAX, SLOTS_MAX};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The names of a region.
#[derive(Clone, Debug)]
pub(super) struct Paths {
    pub(super) pages: PathBuf,
    /// What the names of all others begin with.
    prefix: PathBuf,
}

impl Paths {
    /// The names of a `shm` region; `None` for other kinds of memory.
    pub(super) fn of(kind: &MemoryKind) -> Option<Self> {
        match kind {
            MemoryKind::Shm { path, meta } => {
                let prefix = meta.as_ref().unwrap_or(path).clone();
                Some(Self { pages: path.clone(), prefix })
            }
            MemoryKind::Heap | MemoryKind::Dax { .. } | MemoryKind::Pmem { .. } => None,
        }
    }

    fn with_suffix(&self, suffix: impl AsRef<OsStr>) -> PathBuf {
        let mut name = OsString::from(&self.prefix);
        name.push(suffix);
        name.into()
    }

    /// The private section of a finished region.
    pub(super) fn private(&self) -> PathBuf {
        self.with_suffix(".meta")
    }

    /// The private section of a region that is being made or removed.
    pub(super) fn unfinished(&self) -> PathBuf {
        self.with_suffix(".meta.unfinished")
    }

    pub(super) fn table(&self) -> PathBuf {
        self.with_suffix(".table")
    }

    pub(super) fn bell(&self) -> PathBuf {
        self.with_suffix(".bell")
    }

    pub(super) fn slot(&self, slot: u32) -> PathBuf {
        self.with_suffix(format!(".slot-{slot}"))
    }

    /// The slots that have a file, ascending.
    pub(super) fn slots_present(&self) -> Result<Vec<u32>> {
        let parent = parent_of(&self.prefix);
        let mut start = self.prefix.file_name().expect("a specification names a file").to_owned();
        start.push(".slot-");
        let entries = std::fs::read_dir(parent).map_err(failed("read directory", parent))?;
        let mut slots = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed("read directory", parent))?.file_name();
            let digits = name.as_encoded_bytes().strip_prefix(start.as_encoded_bytes());
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            let slot: Option<u32> = digits.and_then(|digits| digits.parse().ok());
            // Only names that this program gives: not `.slot-007`, not `.slot-+7`.
            if let Some(slot) = slot.filter(|slot| *slot < SLOTS_MAX)
                && Some(slot.to_string().as_str()) == digits
            {
                slots.push(slot);
            }
        }
        slots.sort_unstable();
        Ok(slots)
    }

    /// The first file that is in the way of a new region here.
    pub(super) fn in_the_way(&self) -> Option<PathBuf> {
        [self.pages.clone(), self.table(), self.bell()].into_iter().find(|path| is_there(path))
    }

    /// Removes all files but the private section.
    pub(super) fn remove_all_but_private(&self) -> Result<()> {
        for slot in self.slots_present()? {
            remove_file(&self.slot(slot))?;
        }
        for path in [self.pages.clone(), self.table(), self.bell()] {
            remove_file(&path)?;
        }
        Ok(())
    }

    /// Opens and locks one of the names of the private section. `Ok(None)` if it is not there and
    /// is not to be made.
    pub(super) fn lock(&self, name: &Path, make: bool) -> Result<Option<OwnedFd>> {
        for _ in 0..REGION_RETRIES_MAX {
            let flags = if make { OFlags::CREATE } else { OFlags::empty() };
            let fd = match open_file(name, OFlags::RDWR | flags) {
                Err(RegionError::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound && !make =>
                {
                    return Ok(None);
                }
                other => other?,
            };
            lock_exclusive(fd.as_fd(), &self.pages)?;
            // The process that had the lock before may have removed or renamed the file.
            let same = rustix::fs::stat(name).ok().zip(rustix::fs::fstat(&fd).ok());
            if same.is_some_and(|(a, b)| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)) {
                return Ok(Some(fd));
            }
        }
        Err(RegionError::Locked { path: self.pages.clone(), holder: None })
    }
}

/// How long to wait between two tries to get a lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The exclusive lock of the process that serves a region. The kernel lets go of it when the
/// process is dead and taken apart, and when a child that was forked meanwhile has called `exec`;
/// so it is waited for, some 80 ms at most, before it counts as held.
pub(super) fn lock_exclusive(fd: BorrowedFd<'_>, path: &Path) -> Result<()> {
    for _ in 0..REGION_RETRIES_MAX {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_PAUSE),
            other => return other.map_err(failed("lock", path)),
        }
    }
    Err(RegionError::Locked { path: path.to_owned(), holder: lock_holder(fd) })
}

/// The process that holds the lock of a file, if the kernel tells.
fn lock_holder(fd: BorrowedFd<'_>) -> Option<u32> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    holder_in(&std::fs::read_to_string("/proc/locks").ok()?, &file)
}

fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        // "1: FLOCK  ADVISORY  WRITE 1234 00:1b:99 0 EOF"; "1: -> FLOCK" is one that waits.
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_lock = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file);
        if is_lock { fields.get(4)?.parse().ok() } else { None }
    })
}

/// The directory of a file.
pub(super) fn parent_of(path: &Path) -> &Path {
    path.parent().expect("an absolute path to a file has a parent")
}

/// Whether something of this name is there, of whatever kind.
pub(super) fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Opens a file for its owner alone. Does not follow a symbolic link in its place.
pub(super) fn open_file(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    files::open_private(path, flags).map_err(failed("open", path))
}

/// Removes a file; it need not be there.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("remove", path)(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_and_a_waiter_is_not() {
        let locks = "1: POSIX  ADVISORY  READ 11 00:1b:99 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 12 00:1b:99 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 13 00:1b:98 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 14 00:1b:99 0 EOF\n\
                     torn";
        assert_eq!(holder_in(locks, "00:1b:99"), Some(14));
        assert_eq!(holder_in(locks, "00:1b:97"), None);
    }

    #[test]
    fn all_names_derive_from_the_path_or_from_meta() {
        let spec: crate::region::MemorySpec = "shm:/a/r?meta=/b/m".parse().unwrap();
        let paths = Paths::of(&spec.kind).unwrap();
        assert_eq!(paths.pages, Path::new("/a/r"));
        assert_eq!(paths.private(), Path::new("/b/m.meta"));
        assert_eq!(paths.slot(3), Path::new("/b/m.slot-3"));
        let spec: crate::region::MemorySpec = "shm:/a/r".parse().unwrap();
        assert_eq!(Paths::of(&spec.kind).unwrap().table(), Path::new("/a/r.table"));
        assert!(Paths::of(&MemoryKind::Heap).is_none());
    }
}
