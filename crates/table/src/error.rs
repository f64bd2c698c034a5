//! The errors of the key-value structures: what happened, with numbers and units, and whether to
//! retry.

use crate::words::{GAddr, PoolError};

/// A result of a key-value structure.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a call can answer instead of its result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The pool could not do it; its error says whether to retry. The table is unchanged.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The key is empty or too long. Do not retry.
    #[error("a key of {bytes} bytes: 1 to {limit_bytes} bytes can be stored")]
    KeySize { bytes: u64, limit_bytes: u64 },
    /// The value is too long. Do not retry.
    #[error("a value of {bytes} bytes: up to {limit_bytes} bytes can be stored")]
    ValueSize { bytes: u64, limit_bytes: u64 },
    /// An option is out of range. Do not retry.
    #[error("option {option} is {value}: {min} to {max} are possible")]
    BadOption { option: &'static str, value: u64, min: u64, max: u64 },
    /// The name is taken. Do not retry.
    #[error("{name}: the name is taken, by {addr}")]
    Exists { name: String, addr: GAddr },
    /// Nothing is under the name. Do not retry before it was created.
    #[error("{name}: there is no table of this name")]
    NotFound { name: String },
    /// What is under the name is no table of this version. Do not retry.
    #[error("{name}: {addr} is not a table that this program can use: {reason}")]
    NotATable {
        name: String,
        addr: GAddr,
        reason: String,
        /// Whether it does not even begin like a table.
        is_other: bool,
    },
    /// Bytes of the table make no sense although no client changed them meanwhile. Do not retry.
    #[error("bucket {bucket}, {addr}: {reason}")]
    Corrupt { bucket: u64, addr: GAddr, reason: &'static str },
    /// The pool handed out an address that a bucket word cannot hold. Do not retry.
    #[error("{addr} cannot be stored: a bucket word holds addresses below {limit_bytes} bytes")]
    AddressRange {
        addr: GAddr,
        /// The first address that does not fit.
        limit_bytes: u64,
    },
    /// The keys of one bucket do not fit into one blob. Retry when the table has grown.
    #[error("bucket {bucket} is full: its keys need {bytes} bytes, {limit_bytes} are possible")]
    BucketFull {
        bucket: u64,
        /// What its keys and the new one need.
        bytes: u64,
        limit_bytes: u64,
    },
    /// Others changed the bucket at each attempt. Nothing was done; retry after a pause.
    #[error("bucket {bucket}: others changed it during each of {attempts} attempts; retry")]
    Contended {
        bucket: u64,
        /// How often it was tried.
        attempts: u32,
    },
    /// The operation may or may not have been applied; it was not applied twice. Read the key
    /// before trying again. What it had allocated may have leaked.
    #[error("{operation}: the outcome is unknown, the memory's rack fell silent meanwhile")]
    OutcomeUnknown { operation: &'static str },
}

impl Error {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Pool(error) => error.code(),
            Error::KeySize { .. } => "key-size",
            Error::ValueSize { .. } => "value-size",
            Error::BadOption { .. } => "bad-option",
            Error::Exists { .. } => "exists",
            Error::NotFound { .. } => "not-found",
            Error::NotATable { .. } => "not-a-table",
            Error::Corrupt { .. } => "corrupt",
            Error::AddressRange { .. } => "address-range",
            Error::BucketFull { .. } => "bucket-full",
            Error::Contended { .. } => "contended",
            Error::OutcomeUnknown { .. } => "outcome-unknown",
        }
    }

    /// Whether the same call may succeed later without anything being changed by the caller.
    pub fn may_retry(&self) -> bool {
        match self {
            Error::Pool(error) => error.may_retry(),
            Error::Contended { .. } => true,
            _ => false,
        }
    }
}
