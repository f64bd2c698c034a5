//! The library that is preloaded (`preload/place.c`): kept in the user's cache folder under the
//! hash of its content, checked byte by byte before each use; and what it counts.

use super::error::io_error;
use super::wanted::shares_text;
use super::{RunError, Share};
use rackpool_mem::temporary::TemporaryDir;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/place.so"));

/// Read and run by its owner, written by none.
const LIBRARY_MODE: u32 = 0o500;
const PRELOAD: &str = "LD_PRELOAD";
/// As `place.c` reads them.
const PLACE: &str = "RACKPOOL_TIERS_PLACE";
const NOTES: &str = "RACKPOOL_TIERS_NOTES";
/// A page, which the library maps.
const NOTES_BYTES: usize = 4096;
/// `struct notes` in `place.c`.
const NOTES_WORDS: usize = 5;

/// What the library counted, in all processes that loaded it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Processes that loaded it, each program that a process became.
    pub processes: u64,
    /// Of them, those in which it sees the calls that the C library makes by itself.
    pub patched: u64,
    /// Bytes of addresses that were given a node, also those that are gone.
    pub placed_bytes: u64,
    /// Bytes of addresses that the kernel refused to place.
    pub refused_bytes: u64,
    /// The last refusal; 0 for none.
    pub refused_error: i32,
}

/// The library, ready to be preloaded, and the file of its counters.
pub(super) struct Preload {
    library: PathBuf,
    directory: TemporaryDir,
}

impl Preload {
    pub fn prepare() -> Result<Preload, RunError> {
        let library = keep(&cache_folder()?)?;
        let failed = io_error("making a file for counters where TMPDIR says, or in /tmp");
        let directory = TemporaryDir::new(&std::env::temp_dir(), "tiers").map_err(&failed)?;
        let file = fs::File::create_new(directory.path().join("notes"));
        // Written: where it had no room yet, a full disk would end the program at its first count.
        let written = file.and_then(|mut file| file.write_all(&[0; NOTES_BYTES]));
        written.map_err(&failed)?;
        Ok(Preload { library, directory })
    }

    pub fn library(&self) -> &Path {
        &self.library
    }

    fn notes_path(&self) -> PathBuf {
        self.directory.path().join("notes")
    }

    /// Variables for the program, in front of what it has already.
    pub fn variables(&self, shares: &[Share]) -> Vec<(&'static str, OsString)> {
        let mut preload = self.library.clone().into_os_string();
        if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let place = OsString::from(shares_text(shares));
        vec![(PRELOAD, preload), (PLACE, place), (NOTES, self.notes_path().into_os_string())]
    }

    pub fn notes(&self) -> Notes {
        let mut bytes = [0; 8 * NOTES_WORDS];
        let read = fs::File::open(self.notes_path()).and_then(|mut f| f.read_exact(&mut bytes));
        if read.is_err() {
            return Notes::default();
        }
        let word = |index: usize| {
            let word = bytes[8 * index..][..8].try_into().expect("8 bytes");
            u64::from_ne_bytes(word)
        };
        Notes {
            processes: word(0),
            patched: word(1),
            placed_bytes: word(2),
            refused_bytes: word(3),
            refused_error: i32::try_from(word(4)).unwrap_or(0),
        }
    }
}

fn cache_error(path: &Path, why: impl Into<String>) -> RunError {
    RunError::Cache { path: path.to_owned(), why: why.into() }
}

fn cache_folder() -> Result<PathBuf, RunError> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let base = named("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let base = base.or_else(|| named("HOME").map(|home| home.join(".cache")));
    let base = base.filter(|path| path.is_absolute());
    let base = base.ok_or_else(|| cache_error(Path::new("$HOME"), "no home folder is known"))?;
    Ok(base.join("rackpool"))
}

/// The library in a folder, written if it is not there.
pub(super) fn keep(folder: &Path) -> Result<PathBuf, RunError> {
    let failed = |error: io::Error| cache_error(folder, error.to_string());
    let is_apart = |byte: &u8| matches!(byte, b' ' | b':');
    if folder.as_os_str().as_bytes().iter().any(is_apart) {
        // They stand between the names of libraries, and nothing quotes them.
        return Err(cache_error(
            folder,
            "its name has a blank or a colon, which LD_PRELOAD splits",
        ));
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let flags = statvfs(folder).map_err(io::Error::from).map_err(failed)?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err(cache_error(folder, "its file system runs no programs (noexec)"));
    }
    let path = folder.join(format!("place-{:016x}.so", xxh3_64(LIBRARY)));
    if !path.exists() {
        write(folder, &path).map_err(failed)?;
    }
    check(&path).map_err(|why| cache_error(&path, why))?;
    Ok(path)
}

/// Whole or not at all, also if two write at the same time.
fn write(folder: &Path, path: &Path) -> io::Result<()> {
    let random = rackpool_mem::process::random_u64()?;
    let new = folder.join(format!("place-{random:016x}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(LIBRARY_MODE);
    let written = options.open(&new).and_then(|mut file| file.write_all(LIBRARY));
    let named = written.and_then(|()| fs::rename(&new, path));
    if named.is_err() {
        // What is not there need not go.
        let _ = fs::remove_file(&new);
    }
    named
}

/// That it is ours, as we wrote it, and that no other user can change it.
fn check(path: &Path) -> Result<(), String> {
    let about = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !about.is_file() || about.uid() != own || about.mode() & 0o777 != LIBRARY_MODE {
        return Err("it is not as rackpool wrote it: remove it".to_owned());
    }
    let content = fs::read(path).map_err(|error| error.to_string())?;
    match content == LIBRARY {
        true => Ok(()),
        false => Err("its content is not that of this rackpool: remove it".to_owned()),
    }
}
