//! Files of the kernel, by the names that they have on a machine (`/sys/...`, `/proc/...`): those
//! of a tree on disk, or a rehearsal that only notes what would be written.

use super::BalanceError;
use super::error::failed;
use std::cell::RefCell;
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that are read of a file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// DAMON's files answer EBUSY while another program reads or writes one of them, for an aggregation
/// at most.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

pub trait Kernel {
    /// The text of a file without the white space around it.
    ///
    /// # Errors
    /// The system's.
    fn read(&self, file: &str) -> io::Result<String>;
    /// Writes to a file that is there, by one call.
    ///
    /// # Errors
    /// The system's.
    fn write(&self, file: &str, text: &str) -> io::Result<()>;
    /// Names in a folder.
    ///
    /// # Errors
    /// The system's.
    fn names(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Lets another program end what it does with a file.
    fn pause(&self);
}

/// Trees on disk that stand for `/sys` and `/proc`.
#[derive(Clone, Debug)]
pub struct Disk {
    sys: PathBuf,
    proc: PathBuf,
}

impl Disk {
    pub fn new(sys: &Path, proc: &Path) -> Disk {
        Disk { sys: sys.to_owned(), proc: proc.to_owned() }
    }

    /// Where a file of the kernel lies.
    pub fn path(&self, file: &str) -> PathBuf {
        match file.strip_prefix("/proc/") {
            Some(rest) => self.proc.join(rest),
            None => self.sys.join(file.strip_prefix("/sys/").unwrap_or(file)),
        }
    }
}

impl Kernel for Disk {
    fn read(&self, file: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(self.path(file))?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.path(file))?;
        file.write_all(text.as_bytes())
    }

    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.path(folder))?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn pause(&self) {
        std::thread::sleep(BUSY_PAUSE);
    }
}

/// What would be written, by a kernel that has every file.
pub(super) struct Rehearsal<'k> {
    kernel: &'k dyn Kernel,
    writes: RefCell<Vec<Write>>,
}

/// A value that goes into a file of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub path: String,
    pub value: String,
}

impl<'k> Rehearsal<'k> {
    pub(super) fn new(kernel: &'k dyn Kernel) -> Rehearsal<'k> {
        Rehearsal { kernel, writes: RefCell::new(Vec::new()) }
    }

    pub(super) fn into_writes(self) -> Vec<Write> {
        self.writes.into_inner()
    }
}

impl Kernel for Rehearsal<'_> {
    fn read(&self, file: &str) -> io::Result<String> {
        self.kernel.read(file)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        self.writes.borrow_mut().push(Write { path: file.to_owned(), value: text.to_owned() });
        Ok(())
    }

    fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        self.kernel.names(folder)
    }

    fn pause(&self) {
        self.kernel.pause();
    }
}

/// Tries again while another program is at a file.
fn patiently<T>(kernel: &dyn Kernel, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..BUSY_TRIES {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => kernel.pause(),
            done => return done,
        }
    }
    attempt()
}

/// Writes a value that the kernel has to take.
pub(super) fn put(
    kernel: &dyn Kernel,
    path: &str,
    value: impl Display,
) -> Result<(), BalanceError> {
    let value = value.to_string();
    let written = patiently(kernel, || kernel.write(path, &value));
    written.map_err(|source| match failed(path, source) {
        BalanceError::Io { path, source } => BalanceError::Refused { path, value, source },
        other => other,
    })
}

/// Writes a value if the kernel has the file; whether it has.
pub(super) fn put_if_there(
    kernel: &dyn Kernel,
    path: &str,
    value: impl Display,
) -> Result<bool, BalanceError> {
    match put(kernel, path, value) {
        Ok(()) => Ok(true),
        Err(BalanceError::Refused { source, .. }) if is_absent(&source) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn text(kernel: &dyn Kernel, path: &str) -> Result<String, BalanceError> {
    patiently(kernel, || kernel.read(path)).map_err(|source| failed(path, source))
}

pub(super) fn number(kernel: &dyn Kernel, path: &str) -> Result<u64, BalanceError> {
    let text = text(kernel, path)?;
    text.parse().map_err(|_| BalanceError::Garbage {
        path: path.to_owned(),
        text,
        expected: "a number",
    })
}

pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
