//! What memcached's protocols share as data: what is to be done with a value, how that went, why a
//! line is no command; and the sentences for it, word by word as memcached 1.6.45 sends them.

use crate::cache::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Set,
    /// Store if there is nothing.
    Add,
    /// Store if there is something.
    Replace,
    /// Put behind what there is.
    Append,
    /// Put before what there is.
    Prepend,
    /// Store if the version is this one.
    Cas(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// Done; the item has this version.
    Stored(u64),
    /// A condition on the item's presence did not hold.
    NotStored,
    /// The item has another version.
    Exists,
    /// No item to have a version.
    NotFound,
    TooLarge,
    /// No memory, or none that answers.
    NoMemory,
    NotNumber,
}

impl StoreOutcome {
    pub fn of(error: &Error) -> Self {
        match error {
            Error::TooLarge { .. } | Error::KeySize { .. } => StoreOutcome::TooLarge,
            Error::WrongType => StoreOutcome::NotStored,
            _ => StoreOutcome::NoMemory,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("ERROR")]
    Unknown,
    /// Too few words, a key that is too long, or a number that is none.
    #[error("CLIENT_ERROR bad command line format")]
    Format,
    /// A length that is none.
    #[error("CLIENT_ERROR bad command line format")]
    Length,
    #[error("CLIENT_ERROR invalid exptime argument")]
    Exptime,
    #[error("CLIENT_ERROR invalid numeric delta argument")]
    Delta,
    #[error("SERVER_ERROR: shutdown not enabled")]
    Shutdown,
    #[error("CLIENT_ERROR invalid shutdown mode")]
    ShutdownMode,
    /// Items are of class 1; others may be named.
    #[error("BADCLASS invalid class id")]
    BadClass,
    #[error("NOTSTARTED no items to crawl")]
    NotStarted,
    #[error("WATCHER_TOO_MANY log watcher limit reached")]
    TooManyWatchers,
    #[error("CLIENT_ERROR not offered: {0}")]
    NotOffered(&'static str),
    /// A flag twice, or one that is no letter.
    #[error("CLIENT_ERROR duplicate flag")]
    DuplicateFlag,
    #[error("CLIENT_ERROR invalid flag")]
    InvalidFlag,
    /// Whatever is wrong with a flag, for `ma`.
    #[error("CLIENT_ERROR invalid or duplicate flag")]
    InvalidOrDuplicateFlag,
    #[error("CLIENT_ERROR bad token in command line format")]
    FlagToken,
    /// More flags than are accepted.
    #[error("CLIENT_ERROR options flags are too long")]
    FlagsTooLong,
    #[error("CLIENT_ERROR error decoding key")]
    KeyDecoding,
    /// An opaque of more than 31 bytes.
    #[error("CLIENT_ERROR opaque token too long")]
    OpaqueTooLong,
    #[error("CLIENT_ERROR invalid mode for ms M token")]
    StoreMode,
    #[error("CLIENT_ERROR invalid mode for ma M token")]
    CountMode,
    #[error("CLIENT_ERROR invalid numeric initial value")]
    Initial,
    #[error("CLIENT_ERROR invalid numeric delta value")]
    FlagDelta,
}

pub fn stored_text(outcome: StoreOutcome) -> &'static str {
    match outcome {
        StoreOutcome::Stored(_) => "STORED",
        StoreOutcome::NotStored => "NOT_STORED",
        StoreOutcome::Exists => "EXISTS",
        StoreOutcome::NotFound => "NOT_FOUND",
        StoreOutcome::TooLarge => "SERVER_ERROR object too large for cache",
        StoreOutcome::NoMemory => "SERVER_ERROR out of memory storing object",
        StoreOutcome::NotNumber => "CLIENT_ERROR cannot increment or decrement non-numeric value",
    }
}
