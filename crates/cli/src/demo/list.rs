//! Which files `demo` takes: the tree, the share of it that fits, and the list that client
//! processes work through. In: a directory and bounds. Out: [`Plan`] and a list file.
//!
//! The list is text with NUL ends, because names may hold anything else:
//! `BYTES MTIME_NS NAME NUL`. The demo writes it once, its clients read it.

use crate::failure::{Failure, Result};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files looked at in one tree; a tree with more is taken up to here.
const FILES_MAX: usize = 1_000_000;
/// Directories nested deeper are left out.
const DEPTH_MAX: usize = 64;
/// The longest name that is stored, bytes.
const NAME_BYTES_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Relative to the root of the tree.
    pub name: PathBuf,
    /// Its size when the list was made.
    pub bytes: u64,
    /// When it was last changed, ns since 1970.
    pub mtime_ns: i128,
}

impl Entry {
    /// Whether the file is as it was when the list was made.
    pub fn is_unchanged(&self, path: &Path) -> bool {
        let now = std::fs::symlink_metadata(path);
        now.is_ok_and(|now| now.len() == self.bytes && mtime_ns(&now) == self.mtime_ns)
    }

    /// What it takes in a pool of 2 MiB pages: small values lie beside others, middle ones in
    /// slabs of powers of two, large ones in whole pages.
    pub fn footprint_bytes(&self) -> u64 {
        const PAGE_BYTES: u64 = 2 << 20;
        let name = self.name.as_os_str().len() as u64;
        match self.bytes {
            0..=2048 => 2 * (self.bytes + name + 64),
            bytes if bytes <= PAGE_BYTES / 2 => bytes.next_power_of_two() + 2 * (name + 64),
            bytes => bytes.next_multiple_of(PAGE_BYTES) + 2 * (name + 64),
        }
    }
}

/// Bounds of what is taken.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub files_max: usize,
    /// What they may take in the pool.
    pub footprint_bytes_max: u64,
}

/// What is taken of a tree.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub entries: Vec<Entry>,
    pub found_files: usize,
    pub found_bytes: u64,
    /// Directories and files that could not be looked at.
    pub unreadable: usize,
}

impl Plan {
    /// Bytes of the files taken.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes).sum()
    }

    /// What they take in the pool.
    pub fn footprint_bytes(&self) -> u64 {
        self.entries.iter().map(Entry::footprint_bytes).sum()
    }

    /// Whether something was left out.
    pub fn is_share(&self) -> bool {
        self.entries.len() < self.found_files
    }
}

/// The key under which a file is stored.
pub fn key(name: &Path) -> &[u8] {
    name.as_os_str().as_bytes()
}

/// Looks through the tree and takes what fits: all, or a share spread evenly over it.
pub fn plan(root: &Path, bounds: Bounds) -> Result<Plan> {
    std::fs::read_dir(root).map_err(|error| Failure::file(root, &error))?;
    let mut plan = Plan::default();
    let mut directories = vec![(PathBuf::new(), 0)];
    let mut found = Vec::new();
    while let Some((directory, depth)) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(root.join(&directory)) else {
            plan.unreadable += 1;
            continue;
        };
        for entry in entries.flatten() {
            let name = directory.join(entry.file_name());
            let Ok(metadata) = entry.metadata() else {
                plan.unreadable += 1;
                continue;
            };
            if metadata.is_dir() && depth < DEPTH_MAX {
                directories.push((name, depth + 1));
            } else if metadata.is_file() && found.len() < FILES_MAX {
                if name.as_os_str().len() > NAME_BYTES_MAX {
                    plan.unreadable += 1;
                    continue;
                }
                let (bytes, mtime_ns) = (metadata.len(), mtime_ns(&metadata));
                found.push(Entry { name, bytes, mtime_ns });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    plan.found_files = found.len();
    plan.found_bytes = found.iter().map(|entry| entry.bytes).sum();
    plan.entries = share(found, bounds);
    Ok(plan)
}

/// Every n-th file, then as many of the others as fit: what is taken comes from all over the tree.
fn share(found: Vec<Entry>, bounds: Bounds) -> Vec<Entry> {
    let footprint: u64 = found.iter().map(Entry::footprint_bytes).sum();
    let by_bytes = footprint.div_ceil(bounds.footprint_bytes_max.max(1));
    let by_files = found.len().div_ceil(bounds.files_max.max(1)) as u64;
    let step = usize::try_from(by_bytes.max(by_files).max(1)).unwrap_or(usize::MAX);
    let (mut left, mut taken) = (bounds.footprint_bytes_max, Vec::new());
    for entry in found.into_iter().step_by(step) {
        if entry.footprint_bytes() <= left && taken.len() < bounds.files_max {
            left -= entry.footprint_bytes();
            taken.push(entry);
        }
    }
    taken
}

fn mtime_ns(metadata: &Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

pub fn write(path: &Path, entries: &[Entry]) -> Result<()> {
    let mut bytes = Vec::new();
    for entry in entries {
        bytes.extend_from_slice(format!("{} {} ", entry.bytes, entry.mtime_ns).as_bytes());
        bytes.extend_from_slice(key(&entry.name));
        bytes.push(0);
    }
    std::fs::write(path, bytes).map_err(|error| Failure::file(path, &error))
}

pub fn read(path: &Path) -> Result<Vec<Entry>> {
    let bytes = std::fs::read(path).map_err(|error| Failure::file(path, &error))?;
    let wrong = || Failure::new("protocol", format!("{} is not a list of files", path.display()));
    let lines = bytes.split(|byte| *byte == 0).filter(|line| !line.is_empty());
    lines.map(|line| parse(line).ok_or_else(wrong)).collect()
}

fn parse(line: &[u8]) -> Option<Entry> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok();
    let bytes = number()?.parse().ok()?;
    let mtime_ns = number()?.parse().ok()?;
    Some(Entry { name: PathBuf::from(OsStr::from_bytes(parts.next()?)), bytes, mtime_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Bounds = Bounds { files_max: usize::MAX, footprint_bytes_max: u64::MAX };

    fn entry(name: &str, bytes: u64) -> Entry {
        Entry { name: name.into(), bytes, mtime_ns: -5 }
    }

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let pid = std::process::id();
            let path = std::env::temp_dir().join(format!("rackpool-cli-{name}-{pid}"));
            std::fs::create_dir_all(path.join("a/b")).unwrap();
            std::fs::write(path.join("a/b/one"), "1").unwrap();
            std::fs::write(path.join("two"), "22").unwrap();
            std::os::unix::fs::symlink("two", path.join("link")).unwrap();
            std::os::unix::fs::symlink(".", path.join("a/loop")).unwrap();
            Self(path)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn regular_files_are_found_and_links_are_not_followed() {
        let tree = Tree::new("plan");
        let plan = plan(&tree.0, ALL).unwrap();
        let names: Vec<_> = plan.entries.iter().map(|entry| entry.name.to_str().unwrap()).collect();
        assert_eq!(names, ["a/b/one", "two"]);
        assert_eq!((plan.found_files, plan.found_bytes, plan.is_share()), (2, 3, false));
        assert!(plan.entries[1].is_unchanged(&tree.0.join("two")));
        std::fs::write(tree.0.join("two"), "333").unwrap();
        assert!(!plan.entries[1].is_unchanged(&tree.0.join("two")));
    }

    #[test]
    fn a_directory_that_is_not_there_is_a_failure_that_names_it() {
        let failure = plan(Path::new("/nowhere/at/all"), ALL).unwrap_err();
        assert!(failure.to_string().starts_with("error io /nowhere/at/all"), "{failure}");
    }

    #[test]
    fn a_share_stays_within_its_bounds_and_comes_from_all_over_the_tree() {
        let found: Vec<_> = (0..1000).map(|i| entry(&format!("{i:04}"), 5000)).collect();
        let by_files = share(found.clone(), Bounds { files_max: 10, ..ALL });
        assert_eq!(by_files.len(), 10);
        assert_eq!(by_files[9].name, Path::new("0900"));
        let limit = 50 * found[0].footprint_bytes();
        let by_bytes = share(found.clone(), Bounds { footprint_bytes_max: limit, ..ALL });
        assert!((40..=50).contains(&by_bytes.len()), "{}", by_bytes.len());
        assert_eq!(share(found, ALL).len(), 1000);
    }

    #[test]
    fn a_list_is_read_back_as_it_was_written_whatever_the_names_are() {
        let tree = Tree::new("list");
        let odd = Entry { name: OsStr::from_bytes(b"\xff \n x").into(), bytes: 7, mtime_ns: 9 };
        let entries = vec![entry("with space", 0), odd];
        let path = tree.0.join("list");
        write(&path, &entries).unwrap();
        assert_eq!(read(&path).unwrap(), entries);
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(read(&path).unwrap_err().code(), "protocol");
    }
}
