//! Reads small text files below a root. A file that is not there says nothing; one that cannot be
//! read or understood is kept as a fault, and says nothing either.

use super::error::TopologyError;
use rackpool_mem::numa::numbers;
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes that are read of a file: a list of all processors that Linux can have fits.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Characters of a file that a fault repeats.
const SHOWN_CHARS_MAX: usize = 40;
/// Processors that Linux can have at most, with room.
const CPUS_MAX: u32 = 1 << 16;

/// A directory tree that the kernel writes, and what was wrong with it.
pub(super) struct Files<'p> {
    pub(super) root: &'p Path,
    faults: &'p RefCell<Vec<TopologyError>>,
}

impl<'p> Files<'p> {
    pub(super) fn new(root: &'p Path, faults: &'p RefCell<Vec<TopologyError>>) -> Files<'p> {
        Files { root, faults }
    }

    fn fault(&self, fault: TopologyError) {
        self.faults.borrow_mut().push(fault);
    }

    /// The text of a file without the white space around it.
    pub(super) fn text(&self, file: impl AsRef<Path>) -> Option<String> {
        let path = self.root.join(file);
        let mut bytes = Vec::new();
        let opened = File::open(&path).map(|file| file.take(FILE_BYTES_MAX));
        match opened.and_then(|mut file| file.read_to_end(&mut bytes)) {
            Ok(_) => Some(String::from_utf8_lossy(&bytes).trim().to_owned()),
            Err(source) => {
                if !is_absent(&source) {
                    self.fault(TopologyError::Io { path, source });
                }
                None
            }
        }
    }

    /// What `read` finds in a file.
    pub(super) fn parsed<T>(
        &self,
        file: impl AsRef<Path>,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(&file)?;
        let found = read(&text);
        if found.is_none() {
            let path = self.root.join(file);
            let text = text.chars().take(SHOWN_CHARS_MAX).collect();
            self.fault(TopologyError::Garbage { path, text, expected });
        }
        found
    }

    /// A number in decimal, or in hexadecimal after `0x`.
    pub(super) fn number(&self, file: impl AsRef<Path>) -> Option<u64> {
        self.parsed(file, "a number", |text| match text.strip_prefix("0x") {
            Some(text) => u64::from_str_radix(text, 16).ok(),
            None => text.parse().ok(),
        })
    }

    /// A number that counts from 1: the kernel writes 0 where it knows none.
    pub(super) fn number_not_0(&self, file: impl AsRef<Path>) -> Option<u64> {
        self.number(file).filter(|number| *number > 0)
    }

    pub(super) fn cpus(&self, file: impl AsRef<Path>) -> Option<Vec<u32>> {
        self.parsed(file, "a list of processors such as 0-3,8", |text| numbers(text, CPUS_MAX))
    }

    /// Names in a folder, in order; none where it is not there.
    pub(super) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let path = self.root.join(folder);
        let mut names: Vec<String> = match fs::read_dir(&path) {
            Ok(entries) => {
                entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
            }
            Err(source) => {
                if !is_absent(&source) {
                    self.fault(TopologyError::Io { path, source });
                }
                Vec::new()
            }
        };
        names.sort();
        names
    }

    /// The numbers behind `prefix` of the names in a folder, ascending.
    pub(super) fn numbered(&self, folder: impl AsRef<Path>, prefix: &str) -> Vec<u64> {
        let names = self.names(folder);
        let number = |name: &String| {
            let digits = name.strip_prefix(prefix)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The name of what a link leads to, which need not be there.
    pub(super) fn link_name(&self, link: impl AsRef<Path>) -> Option<String> {
        let to = fs::read_link(self.root.join(link)).ok()?;
        Some(to.file_name()?.to_string_lossy().into_owned())
    }

    /// Where a link leads, links on the way resolved, from the root if it is below it.
    pub(super) fn target(&self, link: impl AsRef<Path>) -> Option<PathBuf> {
        let path = fs::canonicalize(self.root.join(link)).ok()?;
        let root = fs::canonicalize(self.root).ok()?;
        Some(path.strip_prefix(&root).map(Path::to_owned).unwrap_or(path))
    }
}

/// Whether there is no such file, or the kernel has nothing to say in it.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}
