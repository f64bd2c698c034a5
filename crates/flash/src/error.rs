//! What goes wrong at a flash log.

use rackpool_core::persist::log::LogError;
use std::io;

/// Of calls of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is beyond its limits.
    #[error("{option} is {value}, not {min} to {max}")]
    BadOption { option: &'static str, value: u64, min: u64, max: u64 },
    /// What the system says; `StorageFull` where the file has no room.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// The file or device holds something else: it is not touched.
    #[error("it holds something else: name another, or zero its first {bytes} bytes")]
    Foreign {
        /// Bytes that would have to be zero.
        bytes: u64,
    },
    /// It was made with other options.
    #[error("it was made with a {what} of {found}, not {wanted}")]
    Geometry {
        what: &'static str,
        found: u64,
        /// As it was asked for.
        wanted: u64,
    },
    /// A store has lost regions; nothing was changed.
    #[error("the log is broken before region {sequence}: {regions} older regions are not whole")]
    Damaged {
        /// Number of the oldest region that is whole.
        sequence: u64,
        regions: u64,
    },
    /// As many are waiting as may: try again.
    #[error("busy: {waiting} are waiting")]
    Busy { waiting: usize },
    /// The record is too long.
    #[error("a record of {bytes} bytes, limit {max_bytes}")]
    TooLarge { bytes: usize, max_bytes: usize },
    /// A store that is full.
    #[error("the flash store is full: {bytes} bytes live")]
    Full {
        /// Bytes of records that live.
        bytes: u64,
    },
    /// Memory that persists did not make something durable, or holds no log.
    #[error(transparent)]
    Persistent(LogError),
    /// The device takes no more writes: all regions that were tried have failed.
    #[error("the device takes no writes any more: {retired} regions have failed")]
    Failed { retired: u64 },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
