//! What can be wrong with a region's memory, each with the way out. Called by everything in
//! `region`; the runtime turns it into the protocol's error.

use super::spec::SpecError;
use rackpool_core::Error;
use std::io;
use std::path::{Path, PathBuf};

pub type Result<T, E = RegionError> = std::result::Result<T, E>;

/// Why a region cannot be made, opened or backed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No memory to back a part of a section; nothing was changed. Retry after something was
    /// freed.
    #[error("{} is full: {asked_bytes} bytes asked, {free_bytes} bytes free; free memory there \
             or make the file system larger", path.display())]
    NoSpace {
        asked_bytes: u64,
        path: PathBuf,
        /// What its file system still has.
        free_bytes: u64,
    },
    /// The machine has not as much memory as the region would promise.
    #[error("memory {spec} needs {} MiB and {by} has {} MiB free: {}accept with --overcommit that \
             allocations fail when it is used up", wanted_bytes >> 20, free_bytes >> 20,
            fitting(*fitting_bytes))]
    TooLarge {
        spec: String,
        /// What the region needs beyond what it has.
        wanted_bytes: u64,
        free_bytes: u64,
        by: String,
        /// A size that would fit; 0 if none does.
        fitting_bytes: u64,
    },
    /// A new region was to be made where one is.
    #[error("{} is a region already: open it, or remove it first", path.display())]
    Exists { path: PathBuf },
    #[error("{} is no region: nothing is there; create it first", path.display())]
    Absent { path: PathBuf },
    /// The making of the region was cut off before anything was stored in it.
    #[error("{} was never finished: its daemon died while it made it; nothing was stored, \
             create it anew", path.display())]
    Unfinished { path: PathBuf },
    /// A file of that name that is not a region's. It is left alone.
    #[error("{} exists and belongs to no region ({} is missing): choose another path, or \
             remove it yourself", path.display(), meta.display())]
    Foreign {
        /// The file in the way.
        path: PathBuf,
        /// What a region would have.
        meta: PathBuf,
    },
    /// Another daemon serves the region.
    #[error("{} is served by {}: stop it, or use another region", path.display(),
            holder.map_or("another process".to_owned(), |pid| format!("process {pid}")))]
    Locked {
        path: PathBuf,
        /// The process, if the kernel tells.
        holder: Option<u32>,
    },
    /// The superblock is torn or no superblock.
    #[error("{}: {reason}; the region is left alone: restore the file, or remove the region and \
             lose its data", path.display())]
    BadSuperblock { path: PathBuf, reason: String },
    /// A region of another release.
    #[error("{} has layout version {found}, this program {supported}: {}", path.display(),
            other_version(path))]
    OtherVersion { path: PathBuf, found: u32, supported: u32 },
    /// The region has another geometry than asked for.
    #[error("{} has {what} {found}, asked for is {asked}: leave it out of the memory \
             specification to take what is there, or remove the region and lose its data",
            path.display())]
    OtherGeometry { path: PathBuf, what: &'static str, found: String, asked: String },
    /// The rack's memory is divided into another number of shards than asked for.
    #[error("{} is one of {found} parts of its rack's memory, asked for are {asked}: start the \
             daemons with --shard I/{found} (none for 1), or remove the rack's regions and lose \
             their data", path.display())]
    OtherDivision {
        /// The region that is there.
        path: PathBuf,
        /// Of how many parts it is one.
        found: u16,
        /// How many were asked for.
        asked: u16,
    },
    /// A section is shorter or longer than its region says.
    #[error("{} has {found_bytes} bytes, its region calls for {expected_bytes}: the region is \
             damaged; restore the file, or remove the region and lose its data", path.display())]
    WrongLength { path: PathBuf, found_bytes: u64, expected_bytes: u64 },
    /// Huge pages were asked for, and this system would not give them.
    #[error("{}: no huge pages: {reason}; {way_out}, or leave out huge=", path.display())]
    NoHugePages { path: PathBuf, reason: String, way_out: String },
    /// There is no such memory node, or it has no memory.
    #[error("{}: memory node {node} has no memory; nodes with memory: {there}", path.display())]
    NoNode {
        path: PathBuf,
        node: u16,
        /// Those that have some, as the kernel lists them.
        there: String,
    },
    /// A node is smaller than what is to come from it.
    #[error("{}: memory node {node} has {total_bytes} bytes in all, {wanted_bytes} were to come \
             from it: ask for less, or for other nodes or weights", path.display())]
    NodeTooSmall { path: PathBuf, node: u16, wanted_bytes: u64, total_bytes: u64 },
    /// The small sections were to lie on hugetlbfs, where every file takes whole huge pages.
    #[error("{} is on hugetlbfs, which has no room for the small sections of a region: put them \
             elsewhere, such as meta=/dev/shm/rack0", path.display())]
    MetaOnHugetlbfs { path: PathBuf },
    /// Programs cannot write cache lines back on this processor.
    #[error("{}: coherence=software needs a processor that lets programs write cache lines back: \
             x86-64 or aarch64; leave it out where the hardware keeps hosts coherent",
            path.display())]
    NoLines {
        /// The pages section, or the device.
        path: PathBuf,
    },
    /// The device cannot hold a region.
    #[error("{}: {reason}; {way_out}", path.display())]
    Device { path: PathBuf, reason: String, way_out: &'static str },
    /// What memory that persists says of itself, or of how it was left, does not let it be served.
    #[error("{}: {reason}", path.display())]
    Persistence { path: PathBuf, reason: String },
    /// The file system cannot back parts of files or take them back.
    #[error("{}: its file system cannot {operation}; use one that can, such as tmpfs: \
             shm:/dev/shm/rack0", path.display())]
    Unsupported { path: PathBuf, operation: &'static str },
    #[error("{}: {operation}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

/// The way out of a size that does not fit.
fn fitting(bytes: u64) -> String {
    match bytes >> 20 {
        0 => "make room there, or ".into(),
        mib => format!("use size={mib}M, make room there, or "),
    }
}

/// Turns the error of a call on `path` into ours.
pub(super) fn failed<E: Into<io::Error>>(
    operation: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> RegionError {
    move |error| RegionError::Io { operation, path: path.to_owned(), source: error.into() }
}

/// The way out of a region of another release, of which this is the private section.
pub fn other_version(path: &Path) -> String {
    let name = path.display().to_string();
    let base = name.strip_suffix(".meta").unwrap_or(&name);
    format!(
        "serve it with the release that made it, whose `rackpool drain` takes its pages to other \
         racks; or give it up, and all data in it: rm {base} {base}.*"
    )
}

impl From<RegionError> for Error {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::NoSpace { asked_bytes, path, free_bytes } => {
                Error::Full { bytes: asked_bytes, free_bytes, place: path.display().to_string() }
            }
            other @ RegionError::OtherVersion { .. } => {
                Error::OtherRegion { reason: other.to_string() }
            }
            large @ RegionError::TooLarge { .. } => Error::Config { reason: large.to_string() },
            // Nothing is wrong with it: another daemon serves it.
            locked @ RegionError::Locked { .. } => Error::Denied { reason: locked.to_string() },
            other => Error::BadRegion { reason: other.to_string() },
        }
    }
}
