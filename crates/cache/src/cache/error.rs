//! The errors of the cache: what happened, with numbers and units, and whether to retry.

use crate::hashes::Damaged;
use rackpool_mem::numa::NumaError;

/// A result of the cache.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is too long. Do not retry.
    #[error("a key of {bytes} bytes: up to {max_bytes} bytes can be stored")]
    KeySize {
        /// Length of the key.
        bytes: u64,
        /// The longest key.
        max_bytes: u64,
    },
    /// The value is too long. Do not retry.
    #[error("a value of {bytes} bytes: up to {max_bytes} bytes can be stored")]
    TooLarge {
        /// Length of the value.
        bytes: u64,
        /// The longest value.
        max_bytes: u64,
    },
    /// No memory is left and nothing may be evicted, or everything is pinned. Nothing changed.
    /// Retry after something was removed.
    #[error("no memory is left for {bytes} bytes: all {units} units are in use")]
    OutOfMemory {
        /// What the item needs.
        bytes: u64,
        /// Units of 64 KiB in the partition.
        units: u64,
    },
    /// Nothing is left of the other tier for a value, and nothing in it may be evicted. Nothing
    /// changed. Retry after something was removed.
    #[error("no memory is left for {bytes} bytes in the other tier: its {memory_bytes} are in use")]
    TierFull {
        /// What the value needs.
        bytes: u64,
        /// What the partition may take of the tier.
        memory_bytes: u64,
    },
    /// The other tier failed. Nothing changed.
    #[error("{what} in the other tier failed: {reason}")]
    Tier {
        /// What was tried.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// The store behind memory has no room. Nothing changed. Retry after something was removed.
    #[error("the store is full: {stored_bytes} bytes are in it")]
    StoreFull {
        /// Bytes that it holds by now.
        stored_bytes: u64,
    },
    /// The store behind memory did not take a change. Nothing changed.
    #[error("the store took no change: {reason}")]
    Store {
        /// What it said of it.
        reason: String,
    },
    /// The store behind memory keeps strings of database 0 alone. Do not retry.
    #[error("{what} cannot be stored: with mode=store there are strings of database 0 alone")]
    NotStored {
        /// What was to be stored.
        what: &'static str,
    },
    /// The item is of another type. Do not retry.
    #[error("the value under this key is of another type")]
    WrongType,
    /// An item of a hash is damaged, or is gone: so is the hash. Do not retry.
    #[error("a part of the hash was lost, and so the hash")]
    HashLost,
    /// A hash has too many fields for this to be done at once. Do not retry.
    #[error("a hash of more than 2 KiB is not moved in one piece")]
    LargeHash,
    /// The writer's value is not complete. Do not retry.
    #[error("{written_bytes} of {bytes} bytes of the value were written")]
    Incomplete {
        /// Bytes written.
        written_bytes: u64,
        /// Bytes announced.
        bytes: u64,
    },
    /// The memory of a value was taken back while it was written: everything was cleared, or the
    /// writer was slower than all others together. Write it again.
    #[error("the memory of a value of {bytes} bytes was taken back while it was written; retry")]
    Evicted {
        /// Bytes of the value.
        bytes: u64,
    },
    /// An option is out of range. Do not retry.
    #[error("option {option} is {value}: {min} to {max} are possible")]
    BadOption {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The file holds no cache of these options. Do not retry.
    #[error("{path}: not a cache that can be opened: {reason}")]
    Corrupt {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The file holds a cache of another version. Do not retry.
    #[error(
        "{path}: a cache of format {found}, which another version of rackpool has made; this one \
         reads format {known}: serve it with that version, name another file, or remove it to \
         start empty"
    )]
    OtherFormat {
        /// The file.
        path: String,
        /// Its format.
        found: u64,
        /// The one of this version.
        known: u64,
    },
    /// The memory cannot come from where it is wanted. Do not retry.
    #[error(transparent)]
    Numa(#[from] NumaError),
    /// The system refused the memory or the file.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<Damaged> for Error {
    fn from(_: Damaged) -> Error {
        Error::HashLost
    }
}

impl Error {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::KeySize { .. } => "key-size",
            Error::TooLarge { .. } => "value-size",
            Error::OutOfMemory { .. } => "out-of-memory",
            Error::TierFull { .. } => "tier-full",
            Error::Tier { .. } => "tier",
            Error::StoreFull { .. } => "store-full",
            Error::Store { .. } => "store",
            Error::NotStored { .. } => "not-stored",
            Error::WrongType => "wrong-type",
            Error::HashLost => "hash-lost",
            Error::LargeHash => "large-hash",
            Error::Incomplete { .. } => "incomplete",
            Error::Evicted { .. } => "evicted",
            Error::BadOption { .. } => "bad-option",
            Error::Corrupt { .. } => "corrupt",
            Error::OtherFormat { .. } => "version",
            Error::Numa(error) => error.code(),
            Error::Io { .. } => "io",
        }
    }

    /// Whether the same call may succeed later without anything being changed by the caller.
    pub fn may_retry(&self) -> bool {
        matches!(
            self,
            Error::OutOfMemory { .. }
                | Error::Evicted { .. }
                | Error::TierFull { .. }
                | Error::Tier { .. }
        )
    }
}
