//! Files that hold what only this user's processes may see: regions, caches, the master's state.
//!
//! In: paths, perhaps in folders where every user may write (`/dev/shm`). Out: descriptors of
//! regular files that are this user's, have one name, and that no other user may open. What others
//! have placed there is refused, and nothing here waits: a pipe is refused at once. Called by
//! `region`, by the master's journal and by the caches of `rackpool-cache`.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Read and written by the owner alone.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Rights of a folder where every user may write.
const WRITTEN_BY_ALL: u32 = 0o002;
/// Tries to open or make a file that others make and remove at the same time, and to lock one.
const TRIES_MAX: u32 = 16;
/// Between two tries to lock a file: a child of its last owner may hold it until it calls `exec`.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Opens a file, without following a link in its place; with [`OFlags::CREATE`] one that is not
/// there is made, of mode 0600 whatever the umask. One that is there keeps its mode: see
/// [`take_rights`].
///
/// # Errors
/// What the system says; `PermissionDenied` if it is not a regular file, belongs to another user,
/// has further names, or others may write it.
pub fn open_private(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    // Without waiting, should it be a pipe.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let (existing, fresh) = (flags - OFlags::CREATE - OFlags::EXCL, flags | OFlags::EXCL);
    for _ in 0..TRIES_MAX {
        if !flags.contains(OFlags::EXCL) {
            match rustix::fs::open(path, existing, Mode::empty()) {
                Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {}
                Err(Errno::LOOP) => return Err(refused("it is a symbolic link")),
                // What a pipe without a reader, or a socket, says.
                Err(Errno::NXIO) => return Err(refused("it is not a regular file")),
                Err(errno) => return Err(errno.into()),
                Ok(fd) => return check(&fd, flags).map(|()| fd),
            }
        }
        match rustix::fs::open(path, fresh, PRIVATE) {
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {}
            Err(errno) => return Err(errno.into()),
            Ok(fd) => {
                rustix::fs::fchmod(&fd, PRIVATE)?;
                return Ok(fd);
            }
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// As [`open_private`], but a link in its place is followed, unless another user has placed it in a
/// folder where every user may write.
///
/// # Errors
/// As [`open_private`].
pub fn open_private_linked(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let is_link = |stat: &Stat| FileType::from_raw_mode(stat.st_mode).is_symlink();
    match rustix::fs::lstat(path) {
        Ok(link) if is_link(&link) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = rustix::fs::stat(folder.unwrap_or(Path::new(".")))?;
            if !is_own(&link) && folder.st_mode & WRITTEN_BY_ALL != 0 {
                let user = link.st_uid;
                return Err(refused(&format!("it is a symbolic link of user {user}")));
            }
            let target = std::fs::canonicalize(path)?;
            open_private(&target, flags)
        }
        _ => open_private(path, flags),
    }
}

/// Opens a file of any user to be read, through links as well.
///
/// # Errors
/// What the system says; `PermissionDenied` if it is not a regular file: a pipe would make us wait.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    check(&fd, flags)?;
    Ok(fd.into())
}

/// Locks a file against other processes.
///
/// # Errors
/// `WouldBlock` if another one has it.
pub fn lock(fd: impl AsFd) -> io::Result<()> {
    for _ in 0..TRIES_MAX {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_PAUSE),
            other => return Ok(other?),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "another process has it open"))
}

/// Refuses an open file that others may change, unless it is only looked at.
fn check(fd: &OwnedFd, flags: OFlags) -> io::Result<()> {
    let stat = rustix::fs::fstat(fd)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(refused("it is not a regular file"));
    }
    if !flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
        return Ok(());
    }
    if !is_own(&stat) {
        let user = stat.st_uid;
        return Err(refused(&format!("it belongs to user {user}: name another, or remove it")));
    }
    if stat.st_nlink > 1 {
        return Err(refused("it has further names (hard links): name another, or remove it"));
    }
    let mode = stat.st_mode & 0o777;
    if mode & WRITTEN_BY_ALL != 0 {
        let what = format!("others may write it (mode {mode:03o}): chmod 600 it if it is yours");
        return Err(refused(&what));
    }
    Ok(())
}

/// Takes the right to read a file from others, once its content says that it is ours.
///
/// # Errors
/// What the system says.
pub fn take_rights(fd: impl AsFd) -> io::Result<()> {
    let is_shared = rustix::fs::fstat(&fd)?.st_mode & 0o077 != 0;
    if is_shared { Ok(rustix::fs::fchmod(fd, PRIVATE)?) } else { Ok(()) }
}

fn is_own(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw()
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;
    use std::time::Instant;

    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn folder(name: &str, mode: u32) -> Folder {
        let path =
            std::env::temp_dir().join(format!("rackpool-files-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        Folder(path)
    }

    fn reason(path: &Path) -> String {
        open_private_linked(path, OFlags::RDWR | OFlags::CREATE).unwrap_err().to_string()
    }

    #[test]
    fn what_is_made_or_was_readable_is_the_owners_alone_whatever_the_umask() {
        let folder = folder("mode", 0o700);
        let path = folder.0.join("file");
        let mode = || path.metadata().unwrap().mode() & 0o777;
        // A umask is of the whole process, also of other tests: what is left is what it leaves.
        drop(open_private(&path, OFlags::RDWR | OFlags::CREATE).unwrap());
        assert_eq!(mode(), 0o600);
        for before in [0o644, 0o640, 0o664, 0o400 | 0o200] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(before)).unwrap();
            let file = open_private(&path, OFlags::RDWR).unwrap();
            assert_eq!(mode(), before, "whose it is is not known yet");
            take_rights(&file).unwrap();
            assert_eq!(mode(), 0o600, "{before:o} before");
        }
        let exclusive = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let error = open_private(&path, exclusive).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let absent = open_private(&folder.0.join("absent"), OFlags::RDWR).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_others_have_placed_or_may_write_is_refused_at_once() {
        let folder = folder("placed", 0o777);
        let at = |name: &str| folder.0.join(name);
        let file = |name: &str, mode| {
            std::fs::write(at(name), "").unwrap();
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let start = Instant::now();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(reason(&at("pipe")).contains("not a regular file"));
        std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert!(reason(&at("socket")).contains("not a regular file"));
        assert!(start.elapsed() < Duration::from_secs(5));
        file("open", 0o666);
        assert!(reason(&at("open")).contains("mode 666"));
        file("one", 0o600);
        std::fs::hard_link(at("one"), at("two")).unwrap();
        assert!(reason(&at("two")).contains("further names"));
        file("own", 0o600);
        std::os::unix::fs::symlink(at("own"), at("link")).unwrap();
        assert!(open_private(&at("link"), OFlags::RDWR).is_err());
        // Our own link may be followed, also here.
        assert!(open_private_linked(&at("link"), OFlags::RDWR).is_ok());
        if !rustix::process::geteuid().is_root() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "this test needs root");
            println!("NOT TESTED: files of others, which only root can make");
            return;
        }
        std::os::unix::fs::lchown(at("link"), Some(65534), None).unwrap();
        assert!(reason(&at("link")).contains("link of user 65534"));
        std::os::unix::fs::chown(at("own"), Some(65534), None).unwrap();
        assert!(reason(&at("own")).contains("belongs to user 65534"));
        // Where only we could have placed it, the owner of the link says nothing; the file itself
        // does.
        std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(reason(&at("link")).contains("belongs to user 65534"));
    }

    #[test]
    fn a_file_is_locked_once() {
        let folder = folder("lock", 0o700);
        let path = folder.0.join("file");
        let first = open_private(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
        lock(&first).unwrap();
        let second = open_private(&path, OFlags::RDWR).unwrap();
        assert_eq!(lock(&second).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        lock(&second).unwrap();
    }
}
