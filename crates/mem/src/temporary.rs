//! Files and directories that must not outlive this process: what it makes is registered here, goes
//! when its owner is dropped or when a signal ends the process ([`end`]), and is recognised when
//! the process was killed ([`left`]).
//!
//! A temporary directory is `BASE/rackpool-WHAT-` and 16 random hex digits, made by `mkdir` alone
//! for its user alone: what is there already is never taken, whichever process placed it. Its owner
//! holds a lock on a file in it; a directory with such a name and no lock on its file was made by a
//! process that is dead. Ordering rule: the lock is taken before anything else is made in the
//! directory, and a process that removes a directory holds that lock.

use crate::process::random_u64;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What names of temporary directories begin with.
const PREFIX: &str = "rackpool-";
/// Hex digits at the end of their names.
const DIGITS: usize = 16;
/// The file in a directory that its owner holds a lock on.
const LOCK: &str = "lock";
/// Names that are tried: a second one is needed when another process took the first for left.
const NAMES_MAX: u32 = 16;

/// Everything that this process made and has not removed.
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn made() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new file of a random name in `directory`, which goes with [`TemporaryFile`] unless it is given
/// its final name.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    pub(crate) file: File,
    path: PathBuf,
}

impl TemporaryFile {
    /// A new, empty file that may be written. Files of this kind that killed processes left in the
    /// directory go.
    pub(crate) fn new(directory: &Path, mode: Mode) -> io::Result<Self> {
        sweep_files(directory);
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..NAMES_MAX {
            let path = directory.join(format!(".{PREFIX}{:016x}.part", random_u64()?));
            let mut made = made();
            let file = match rustix::fs::open(&path, how, mode) {
                Err(Errno::EXIST) => continue,
                file => File::from(file?),
            };
            made.insert(path.clone());
            // A file system without locks has no sweeping either.
            let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
            return Ok(Self { file, path });
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Gives it its final name, in the same directory.
    pub(crate) fn publish(self, to: &Path) -> io::Result<()> {
        let mut made = made();
        // Forgotten if it went: a file of the final name is no longer ours to remove.
        if !made.contains(&self.path) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        fs::rename(&self.path, to)?;
        made.remove(&self.path);
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if made().remove(&self.path) {
            // What cannot go is recognised by the next one in this directory.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes files that killed processes of this user left. What cannot be removed stays: it is in
/// the way of nothing.
fn sweep_files(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix(".rackpool-"));
        let digits = digits.and_then(|rest| rest.strip_suffix(".part"));
        if digits.is_some_and(is_random)
            && let Ok(Some(_held)) = lock_if_left(&entry.path())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_random(digits: &str) -> bool {
    digits.len() == DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The lock on a file of this user that no process holds; `None` if it is held, or another's.
fn lock_if_left(path: &Path) -> io::Result<Option<File>> {
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, how, Mode::empty())?);
    let about = file.metadata()?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
        return Ok(None);
    }
    Ok(file.try_lock().is_ok().then_some(file))
}

/// A directory of this process alone, which goes with it.
#[derive(Debug)]
pub struct TemporaryDir {
    path: PathBuf,
    /// Locked for as long as it is open.
    lock: File,
}

impl TemporaryDir {
    /// Makes `BASE/rackpool-WHAT-…`, `what` being a lower-case word. Removes first what killed
    /// processes of this user left in `base`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(base: &Path, what: &str) -> io::Result<Self> {
        assert!(is_word(what), "what a directory is for is a word in lower case");
        for path in left(base) {
            remove_left(&path);
        }
        for _ in 0..NAMES_MAX {
            let path = base.join(format!("{PREFIX}{what}-{:016x}", random_u64()?));
            let mut made = made();
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            }
            if let Some(lock) = take_lock(&path)? {
                made.insert(path.clone());
                return Ok(Self { path, lock });
            }
            // Another process took it for left in the moment before the lock.
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// From now on child processes hold the lock as well: the directory counts as left when the
    /// last of them is gone.
    ///
    /// # Errors
    /// The system's.
    pub fn share_with_children(&self) -> io::Result<()> {
        Ok(fcntl_setfd(&self.lock, FdFlags::empty())?)
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        if made().remove(&self.path) {
            // What cannot go is recognised by the next process.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The lock on a directory that was just made; `None` if the directory has gone meanwhile.
fn take_lock(directory: &Path) -> io::Result<Option<File>> {
    let path = directory.join(LOCK);
    let file = match File::create_new(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let is_held = file.try_lock().is_ok();
    let is_there = fs::symlink_metadata(&path).is_ok_and(|found| {
        file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
    });
    Ok((is_held && is_there).then_some(file))
}

fn is_word(what: &str) -> bool {
    !what.is_empty() && what.bytes().all(|byte| byte.is_ascii_lowercase())
}

/// Temporary directories in `base` that killed processes of this user left: no process holds their
/// lock. Nothing is changed.
#[must_use]
pub fn left(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| is_temporary(path) && is_left(path));
    paths.sort();
    paths
}

fn is_temporary(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let words = name.and_then(|name| name.strip_prefix(PREFIX)?.rsplit_once('-'));
    let is_own =
        |about: fs::Metadata| about.is_dir() && about.uid() == rustix::process::geteuid().as_raw();
    words.is_some_and(|(what, digits)| is_word(what) && is_random(digits))
        && fs::symlink_metadata(path).is_ok_and(is_own)
}

fn is_left(directory: &Path) -> bool {
    match lock_if_left(&directory.join(LOCK)) {
        Ok(lock) => lock.is_some(),
        // Its owner was killed between the first two steps, if there is nothing in it at all.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
        }
        Err(_) => false,
    }
}

/// Removes a directory that [`left`] named, if that is still so.
fn remove_left(directory: &Path) {
    // What cannot be removed stays: it is in the way of nothing.
    match lock_if_left(&directory.join(LOCK)) {
        Ok(Some(_held)) => drop(fs::remove_dir_all(directory)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => drop(fs::remove_dir(directory)),
        _ => {}
    }
}

/// What this process has made and not removed, as far as it is still there.
#[must_use]
pub fn present() -> Vec<PathBuf> {
    made().iter().filter(|path| fs::symlink_metadata(path).is_ok()).cloned().collect()
}

/// Has this process remove a directory that it made under a name of the user's, at its end.
#[derive(Debug)]
pub struct RemovedAtEnd(PathBuf);

impl RemovedAtEnd {
    /// Makes the directory for this user alone; `None` if it is there already, which makes it
    /// another's. Directories above it are made and stay.
    ///
    /// # Errors
    /// The system's.
    pub fn make(path: &Path) -> io::Result<Option<Self>> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let mut made = made();
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            created => created?,
        }
        made.insert(path.to_owned());
        Ok(Some(Self(path.to_owned())))
    }
}

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        if made().remove(&self.0) {
            // It stays if another process has put something into it meanwhile that cannot be
            // removed.
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// The process is about to end: removes everything that it made; `stop` is called in between, after
/// files that are not whole and before directories, to end the processes that use them. From here
/// on no thread of the process can make or publish anything: it waits for the end.
pub fn end(stop: impl FnOnce()) {
    let made = made();
    for path in made.iter().filter(|path| !path.is_dir()) {
        let _ = fs::remove_file(path);
    }
    stop();
    for path in made.iter() {
        let _ = fs::remove_dir_all(path);
    }
    // Held for ever: a thread that would rename a file over another one must not.
    std::mem::forget(made);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn base() -> TemporaryDir {
        TemporaryDir::new(&std::env::temp_dir(), "test").unwrap()
    }

    #[test]
    fn a_directory_is_for_its_user_alone_and_goes_with_its_owner() {
        let base = base();
        let one = TemporaryDir::new(base.path(), "one").unwrap();
        let path = one.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(present().contains(&path));
        fs::write(path.join("state"), "x").unwrap();
        // Neither the next one nor a look takes what lives.
        let two = TemporaryDir::new(base.path(), "one").unwrap();
        assert!(left(base.path()).is_empty() && path.join("state").exists());
        drop((one, two));
        assert!(!path.exists() && !present().contains(&path));
    }

    #[test]
    fn only_what_a_dead_owner_left_is_recognised_and_removed() {
        let base = base();
        let at = |name: &str| base.path().join(name);
        let dead = at("rackpool-demo-0123456789abcdef");
        let empty = at("rackpool-demo-00000000000000ff");
        let others = [
            "rackpool-demo-0123",
            "rackpool-rack0",
            "rackpool-demo-0123456789abcdeg",
            "other-demo-0123456789abcdef",
            "rackpool-DEMO-0123456789abcdef",
            "rackpool-demo-fedcba9876543210",
        ];
        for path in others.iter().map(|name| at(name)).chain([dead.clone()]) {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("rack0"), "x").unwrap();
        }
        fs::create_dir(&empty).unwrap();
        // With content and without a lock: not one of ours.
        fs::write(dead.join(LOCK), "").unwrap();
        let target = at("target");
        fs::create_dir(&target).unwrap();
        fs::write(target.join(LOCK), "").unwrap();
        symlink(&target, at("rackpool-demo-1111111111111111")).unwrap();
        assert_eq!(left(base.path()), [empty.clone(), dead.clone()]);
        let _new = TemporaryDir::new(base.path(), "demo").unwrap();
        assert!(!dead.exists() && !empty.exists());
        assert!(others.iter().all(|name| at(name).join("rack0").exists()));
        assert!(target.join(LOCK).exists());
    }

    #[test]
    fn a_lock_that_is_a_pipe_or_a_link_is_not_followed() {
        let base = base();
        for (name, make) in [
            ("rackpool-a-0123456789abcdef", mkfifo as fn(&Path)),
            ("rackpool-b-0123456789abcdef", |lock| symlink("/dev/null", lock).unwrap()),
        ] {
            let path = base.path().join(name);
            fs::create_dir(&path).unwrap();
            make(&path.join(LOCK));
        }
        assert!(left(base.path()).is_empty());
    }

    fn mkfifo(path: &Path) {
        rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::from_raw_mode(0o600)).unwrap();
    }

    #[test]
    fn a_directory_under_a_name_of_the_users_is_taken_only_if_it_is_new() {
        let base = base();
        let path = base.path().join("a/b");
        let made = RemovedAtEnd::make(&path).unwrap().expect("it is new");
        assert!(RemovedAtEnd::make(&path).unwrap().is_none());
        drop(made);
        assert!(!path.exists() && base.path().join("a").exists());
    }

    #[test]
    fn files_of_killed_writers_go_with_the_next_one_and_those_of_living_ones_stay() {
        let base = base();
        let dead = base.path().join(".rackpool-0123456789abcdef.part");
        fs::write(&dead, "half").unwrap();
        let mode = Mode::from_raw_mode(0o600);
        let living = TemporaryFile::new(base.path(), mode).unwrap();
        assert!(!dead.exists());
        let other = TemporaryFile::new(base.path(), mode).unwrap();
        assert!(living.path.exists());
        other.publish(&base.path().join("whole")).unwrap();
        let path = living.path.clone();
        drop(living);
        assert!(!path.exists() && base.path().join("whole").exists());
    }
}
