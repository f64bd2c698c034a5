//! A file that a command writes for its user: reports, traces, pages, objects. In: a path as the
//! user gave it, before the work; bytes after it. Out: a file that is whole or as it was before.
//!
//! A regular file is replaced atomically by a temporary one of its own directory, with its mode,
//! behind all symbolic links. Devices, pipes and descriptors (`/dev/stdout`, `/dev/fd/3`) are
//! written through, and `-` is standard output. What cannot be written is said when it is opened.

use crate::temporary::TemporaryFile;
use rustix::fs::{Access, AtFlags, Mode};
use rustix::io::Errno;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Symbolic links that are followed one after the other, as the kernel does.
const LINKS_MAX: usize = 40;
/// What `statfs` says of `/proc`.
const PROC_MAGIC: u64 = 0x9fa0;

#[derive(Debug)]
pub struct OutputFile(OutputTarget);

#[derive(Debug)]
enum OutputTarget {
    Stdout,
    /// Opened when it is written, since that waits for a reader.
    Pipe(PathBuf),
    Device(File),
    /// A file in a directory that takes no other one; cut when it is written.
    InPlace(File),
    Replaced {
        part: TemporaryFile,
        to: PathBuf,
    },
}

impl OutputFile {
    /// Opens an output or says why it cannot be written. What is there stays until the commit.
    ///
    /// # Errors
    /// The system's; `IsADirectory`.
    pub fn open(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self(OutputTarget::Stdout));
        }
        let about = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            about => Some(about?),
        };
        if path.as_os_str().is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let is_directory = about.as_ref().is_some_and(Metadata::is_dir);
        if is_directory || path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let target = match (about, real_path(path)?) {
            (Some(about), None) if is_stdout(&about) => OutputTarget::Stdout,
            (Some(about), _) if about.file_type().is_fifo() => {
                rustix::fs::access(path, Access::WRITE_OK)?;
                OutputTarget::Pipe(path.to_owned())
            }
            (Some(about), Some(to)) if about.is_file() => replace(about, to)?,
            (Some(about), _) => {
                let mut how = OpenOptions::new();
                // A file behind a descriptor: what others have written there stays.
                how.append(about.is_file()).write(true).custom_flags(libc::O_NOCTTY);
                OutputTarget::Device(how.open(path)?)
            }
            (None, Some(to)) => {
                let part = TemporaryFile::new(parent_of(&to), Mode::from_raw_mode(0o666))?;
                OutputTarget::Replaced { part, to }
            }
            (None, None) => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Self(target))
    }

    /// Whether it is the process's standard output.
    #[must_use]
    pub fn is_stdout(&self) -> bool {
        matches!(self.0, OutputTarget::Stdout)
    }

    /// Where to write. Waits for the reader of a named pipe. Called once.
    ///
    /// # Errors
    /// The system's.
    pub fn writer(&mut self) -> io::Result<Box<dyn Write + Send>> {
        let file = match &self.0 {
            OutputTarget::Stdout => return Ok(Box::new(io::stdout())),
            OutputTarget::Pipe(path) => OpenOptions::new().write(true).open(path)?,
            OutputTarget::Device(file) => file.try_clone()?,
            OutputTarget::InPlace(file) => {
                file.set_len(0)?;
                file.try_clone()?
            }
            OutputTarget::Replaced { part, .. } => part.file.try_clone()?,
        };
        Ok(Box::new(file))
    }

    /// Makes what was written the file. Without it the file is as it was.
    ///
    /// # Errors
    /// The system's.
    pub fn commit(self) -> io::Result<()> {
        match self.0 {
            OutputTarget::Stdout => io::stdout().flush(),
            OutputTarget::Pipe(_) | OutputTarget::Device(_) => Ok(()),
            OutputTarget::InPlace(file) => file.sync_all(),
            OutputTarget::Replaced { part, to } => {
                part.file.sync_all()?;
                part.publish(&to)
            }
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// The system's; the file is as it was then.
    pub fn write(mut self, bytes: &[u8]) -> io::Result<()> {
        let mut writer = self.writer()?;
        writer.write_all(bytes)?;
        writer.flush()?;
        drop(writer);
        self.commit()
    }
}

/// Opens an output and writes all of it.
///
/// # Errors
/// The system's.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OutputFile::open(path)?.write(bytes)
}

/// A regular file that is there will be replaced, or written in place if that cannot be.
fn replace(about: Metadata, to: PathBuf) -> io::Result<OutputTarget> {
    rustix::fs::access(&to, Access::WRITE_OK)?;
    let in_place = |to: &Path| Ok(OutputTarget::InPlace(OpenOptions::new().write(true).open(to)?));
    if is_mount_point(&about, &to) {
        return in_place(&to);
    }
    let part = match TemporaryFile::new(parent_of(&to), Mode::from_raw_mode(0o600)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return in_place(&to),
        part => part?,
    };
    let own = part.file.metadata()?;
    if (own.uid(), own.gid()) != (about.uid(), about.gid()) {
        // Only root may give files away; a file of another's becomes ours.
        let _ = std::os::unix::fs::fchown(&part.file, Some(about.uid()), Some(about.gid()));
    }
    rustix::fs::fchmod(&part.file, Mode::from_raw_mode(about.mode() & 0o777))?;
    Ok(OutputTarget::Replaced { part, to })
}

/// Whether the file is mounted by itself, as containers do: nothing can be renamed over it.
fn is_mount_point(about: &Metadata, path: &Path) -> bool {
    let of = |path: &Path| {
        let (flags, mask) = (AtFlags::SYMLINK_NOFOLLOW, rustix::fs::StatxFlags::MNT_ID);
        let found = rustix::fs::statx(rustix::fs::CWD, path, flags, mask).ok()?;
        (found.stx_mask & mask.bits() != 0).then_some(found.stx_mnt_id)
    };
    let parent = parent_of(path);
    match (of(path), fs::canonicalize(parent).ok().and_then(|parent| of(&parent))) {
        (Some(own), Some(parent)) => own != parent,
        // An older kernel: other devices at least are seen.
        _ => fs::metadata(parent).is_ok_and(|parent| parent.dev() != about.dev()),
    }
}

/// What a path means behind its symbolic links, whether it is there or not; `None` if a link of
/// `/proc` is among them: that leads to what a process has open, not to a name.
fn real_path(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        let to = match rustix::fs::readlink(&at, Vec::new()) {
            Err(Errno::INVAL | Errno::NOENT) => return Ok(Some(at)),
            to => to?,
        };
        let parent = parent_of(&at);
        if rustix::fs::statfs(parent)?.f_type as u64 == PROC_MAGIC {
            return Ok(None);
        }
        at = parent.join(std::ffi::OsStr::from_bytes(to.as_bytes()));
    }
    Err(Errno::LOOP.into())
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn is_stdout(about: &Metadata) -> bool {
    let own = rustix::fs::fstat(io::stdout());
    own.is_ok_and(|own| (own.st_dev, own.st_ino) == (about.dev(), about.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temporary::TemporaryDir;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn dir() -> TemporaryDir {
        TemporaryDir::new(&std::env::temp_dir(), "test").unwrap()
    }

    fn names(dir: &TemporaryDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).into_string().unwrap()).collect();
        names.retain(|name| name != "lock");
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_with_its_mode_and_stays_if_nothing_is_committed() {
        let dir = dir();
        let path = dir.path().join("out");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut half = OutputFile::open(&path).unwrap();
        half.writer().unwrap().write_all(b"ha").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(half);
        assert_eq!((fs::read(&path).unwrap(), names(&dir)), (b"old".to_vec(), vec!["out".into()]));
        let before = File::open(&path).unwrap();
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        let mut text = String::new();
        (&before).read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), names(&dir)), ("old", vec!["out".to_owned()]));
    }

    #[test]
    fn the_target_of_links_is_replaced_in_its_own_directory_and_may_be_new() {
        let dir = dir();
        let (real, there, new) =
            (dir.path().join("real"), dir.path().join("there"), dir.path().join("new"));
        fs::create_dir(&real).unwrap();
        fs::write(real.join("a"), "old").unwrap();
        symlink("real/a", &there).unwrap();
        symlink("there", dir.path().join("chain")).unwrap();
        symlink("real/b", &new).unwrap();
        write(&dir.path().join("chain"), b"new").unwrap();
        write(&new, b"made").unwrap();
        assert_eq!(fs::read(real.join("a")).unwrap(), b"new");
        assert_eq!(fs::read(real.join("b")).unwrap(), b"made");
        assert!([there, new].iter().all(|link| fs::read_link(link).is_ok()));
        assert_eq!(names(&dir), ["chain", "new", "real", "there"]);
        symlink("ring", dir.path().join("ring")).unwrap();
        assert!(OutputFile::open(&dir.path().join("ring")).is_err());
    }

    #[test]
    fn devices_and_pipes_are_written_through_and_stay_what_they_are() {
        let dir = dir();
        let (device, pipe) = (dir.path().join("null"), dir.path().join("pipe"));
        symlink("/dev/null", &device).unwrap();
        write(&device, b"nothing").unwrap();
        assert!(fs::metadata(&device).unwrap().file_type().is_char_device());
        let full = write(Path::new("/dev/full"), b"x").unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::from_raw_mode(0o600)).unwrap();
        // No process reads yet: opening does not wait, writing does.
        let output = OutputFile::open(&pipe).unwrap();
        let reader = std::thread::spawn(move || fs::read(&pipe).unwrap());
        output.write(b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert_eq!(names(&dir), ["null", "pipe"]);
    }

    #[test]
    fn a_descriptor_of_a_file_is_written_behind_what_is_there() {
        let dir = dir();
        let path = dir.path().join("log");
        fs::write(&path, "head ").unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        write(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), b"tail").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"head tail");
        assert_eq!(names(&dir), ["log"]);
    }

    #[test]
    fn what_cannot_be_written_is_refused_when_it_is_opened() {
        let dir = dir();
        fs::write(dir.path().join("file"), "x").unwrap();
        for (name, kind) in [
            ("", io::ErrorKind::IsADirectory),
            ("new/", io::ErrorKind::IsADirectory),
            ("file/below", io::ErrorKind::NotADirectory),
            ("nowhere/file", io::ErrorKind::NotFound),
        ] {
            assert_eq!(
                OutputFile::open(&dir.path().join(name)).unwrap_err().kind(),
                kind,
                "{name}"
            );
        }
        assert!(OutputFile::open(Path::new("")).is_err());
        assert!(OutputFile::open(Path::new("-")).unwrap().is_stdout());
    }
}
