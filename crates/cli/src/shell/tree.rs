//! `put -r` and `get -r`: trees of files into the pool and out of it. In: a directory, the table of
//! objects. Out: how many files and bytes. Short files go many at once, long ones piece by piece,
//! so that no more than some MiB are in memory.

use crate::demo::list::{self, Bounds};
use crate::failure::{Failure, Result};
use crate::shell::parse::printable;
use rackpool::Handle;
use rackpool_table::Table;
use rackpool_table::constants::BATCH_KEYS_MAX;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

/// Files from this length on go piece by piece.
pub const STREAM_BYTES_MIN: u64 = 1 << 20;
/// Bytes of files that are under way at once.
const BATCH_BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MovedFiles {
    pub files: u64,
    pub bytes: u64,
}

impl fmt::Display for MovedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ok {} files {} bytes", self.files, self.bytes)
    }
}

/// Collects things until they are many or long enough to be moved together.
#[derive(Debug)]
pub struct FileBatch<T> {
    items: Vec<T>,
    bytes: u64,
}

impl<T> Default for FileBatch<T> {
    fn default() -> Self {
        Self { items: Vec::new(), bytes: 0 }
    }
}

impl<T> FileBatch<T> {
    /// Adds one of `bytes` bytes; all of them, once they are enough.
    pub fn add(&mut self, item: T, bytes: u64) -> Option<Vec<T>> {
        self.items.push(item);
        self.bytes += bytes;
        let is_full = self.items.len() >= BATCH_KEYS_MAX || self.bytes >= BATCH_BYTES_MAX;
        is_full.then(|| self.take())
    }

    pub fn take(&mut self) -> Vec<T> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }
}

/// Stores every regular file below `directory`, under its path from there with the directory's own
/// name before it. Links are not followed.
pub fn put(objects: &mut Table, handle: &mut Handle, directory: &Path) -> Result<MovedFiles> {
    let all = Bounds { files_max: usize::MAX, footprint_bytes_max: u64::MAX };
    let plan = list::plan(directory, all)?;
    if plan.unreadable > 0 {
        let count = plan.unreadable;
        let what = format!("{}: {count} entries cannot be read", directory.display());
        return Err(Failure::new("io", what));
    }
    let root = PathBuf::from(directory.file_name().unwrap_or_default());
    let (mut moved, mut batch) = (MovedFiles::default(), FileBatch::default());
    for entry in plan.entries {
        let path = directory.join(&entry.name);
        let name = list::key(&root.join(&entry.name)).to_vec();
        let failed = |error| Failure::file(&path, &error);
        let bytes = if entry.bytes >= STREAM_BYTES_MIN {
            let file = File::open(&path).map_err(failed)?;
            put_file(objects, handle, &name, &path, &file)?
        } else {
            let data = fs::read(&path).map_err(failed)?;
            let bytes = data.len() as u64;
            if let Some(full) = batch.add((name, data), bytes) {
                store(objects, handle, &full)?;
            }
            bytes
        };
        moved.files += 1;
        moved.bytes += bytes;
    }
    store(objects, handle, &batch.take())?;
    Ok(moved)
}

/// Writes every object with a name that begins with `prefix` into a file below `directory`, which
/// has the rest of the name.
pub fn get(
    objects: &mut Table,
    handle: &mut Handle,
    prefix: &[u8],
    directory: &Path,
) -> Result<MovedFiles> {
    let failed = |error| Failure::file(directory, &error);
    fs::create_dir_all(directory).map_err(failed)?;
    let mut targets = Vec::new();
    for (name, bytes) in objects.list(handle, prefix)? {
        let path = below(directory, &name[prefix.len()..]).ok_or_else(|| {
            let name = printable(&name);
            Failure::new("denied", format!("`{name}` names no file below the directory"))
        })?;
        targets.push((name, path, bytes));
    }
    let (mut moved, mut batch) = (MovedFiles::default(), FileBatch::default());
    let mut made = PathBuf::new();
    for (name, path, bytes) in targets {
        let parent = path.parent().unwrap_or(directory);
        if made != parent {
            fs::create_dir_all(parent).map_err(|error| Failure::file(parent, &error))?;
            made = parent.to_owned();
        }
        if bytes >= STREAM_BYTES_MIN {
            let file = File::create(&path).map_err(|error| Failure::file(&path, &error))?;
            if let Some(bytes) = get_file(objects, handle, &name, &path, &file)? {
                moved.files += 1;
                moved.bytes += bytes;
            }
        } else if let Some(full) = batch.add((name, path), bytes) {
            load(objects, handle, &full, &mut moved)?;
        }
    }
    load(objects, handle, &batch.take(), &mut moved)?;
    Ok(moved)
}

/// Stores a regular file piece by piece, as long as it is now; its length.
pub fn put_file(
    objects: &mut Table,
    handle: &mut Handle,
    name: &[u8],
    path: &Path,
    mut file: &File,
) -> Result<u64> {
    let bytes = file.metadata().map_err(|error| Failure::file(path, &error))?.len();
    let mut failed = Ok(());
    let stored = objects.put_stream(handle, name, bytes, |piece| {
        failed = file.read_exact(piece);
        failed.is_ok()
    })?;
    failed.map_err(|error| Failure::file(path, &error))?;
    assert!(stored.is_some(), "it was brought whole");
    Ok(bytes)
}

/// Writes an object into a file piece by piece; its length, or `None` if it is not there.
fn get_file(
    objects: &mut Table,
    handle: &mut Handle,
    name: &[u8],
    path: &Path,
    file: &File,
) -> Result<Option<u64>> {
    let mut failed = Ok(());
    let found = objects.get_stream(handle, name, |at, piece| {
        if failed.is_ok() {
            failed = file.write_all_at(piece, at);
        }
    })?;
    // It may have been longer when its reading began.
    let cut = failed.and_then(|()| found.map_or(Ok(()), |bytes| file.set_len(bytes)));
    cut.map_err(|error| Failure::file(path, &error))?;
    Ok(found)
}

fn store(objects: &mut Table, handle: &mut Handle, files: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
    for stored in objects.put_many(handle, files) {
        stored?;
    }
    Ok(())
}

fn load(
    objects: &mut Table,
    handle: &mut Handle,
    files: &[(Vec<u8>, PathBuf)],
    moved: &mut MovedFiles,
) -> Result<()> {
    let names: Vec<_> = files.iter().map(|(name, _)| name).collect();
    for ((_, path), value) in files.iter().zip(objects.get_many(handle, &names)) {
        // One that has gone since it was listed is not there.
        let Some(value) = value? else { continue };
        fs::write(path, &value).map_err(|error| Failure::file(path, &error))?;
        moved.files += 1;
        moved.bytes += value.len() as u64;
    }
    Ok(())
}

/// The path below a directory that a name means; `None` if it would lead elsewhere.
fn below(directory: &Path, name: &[u8]) -> Option<PathBuf> {
    let name = Path::new(OsStr::from_bytes(name.strip_prefix(b"/").unwrap_or(name)));
    let is_plain = |part| matches!(part, Component::Normal(_));
    let is_safe = name.components().all(is_plain) && name.file_name().is_some();
    (is_safe && !name.as_os_str().as_bytes().contains(&0)).then(|| directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let directory = Path::new("/to");
        assert_eq!(below(directory, b"a/b"), Some("/to/a/b".into()));
        assert_eq!(below(directory, b"/a"), Some("/to/a".into()));
        for name in [&b"../a"[..], b"a/../../b", b"//a", b"", b"/", b".", b"a\0b"] {
            assert_eq!(below(directory, name), None, "{}", printable(name));
        }
    }

    #[test]
    fn a_batch_is_full_by_number_or_by_length() {
        let mut batch = FileBatch::default();
        assert_eq!((1..BATCH_KEYS_MAX).find_map(|one| batch.add(one, 1)), None);
        assert_eq!(batch.add(0, 1).unwrap().len(), BATCH_KEYS_MAX);
        assert_eq!(batch.add(7, BATCH_BYTES_MAX - 1), None);
        assert_eq!(batch.add(8, 1), Some(vec![7, 8]));
        assert!(batch.take().is_empty());
    }
}
