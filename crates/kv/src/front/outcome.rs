//! What memcached's protocols share as data: what is to be done with a value, how that went, why a
//! line is no command; and the sentences for it, word by word as memcached 1.6.18 sends them.

use crate::cache::Error;

/// What is to be done with a value.
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
    /// Longer than an item may be.
    TooLarge,
    /// No memory, or none that answers.
    NoMemory,
    /// The value is no number.
    NotNumber,
}

impl StoreOutcome {
    pub fn of(error: &Error) -> Self {
        match error {
            Error::TooLarge { .. } | Error::KeySize { .. } => StoreOutcome::TooLarge,
            _ => StoreOutcome::NoMemory,
        }
    }
}

/// Why a line is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such command, or the wrong number of words.
    #[error("ERROR")]
    Unknown,
    /// A key that is too long, or a number that is none.
    #[error("CLIENT_ERROR bad command line format")]
    Format,
    /// An expiry that is no number.
    #[error("CLIENT_ERROR invalid exptime argument")]
    Exptime,
    /// A difference that is no number.
    #[error("CLIENT_ERROR invalid numeric delta argument")]
    Delta,
    /// More behind `delete KEY` than may be.
    #[error("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]")]
    DeleteUsage,
    /// `shutdown`: only signals stop this server.
    #[error("ERROR: shutdown not enabled")]
    Shutdown,
    /// `watch`, which is not offered.
    #[error("CLIENT_ERROR watch commands not allowed")]
    Watch,
    /// A flag twice, or one that is no letter.
    #[error("CLIENT_ERROR duplicate flag")]
    DuplicateFlag,
    /// A flag that there is not.
    #[error("CLIENT_ERROR invalid flag")]
    InvalidFlag,
    /// One of the two, for `md` and `ma`.
    #[error("CLIENT_ERROR invalid or duplicate flag")]
    InvalidOrDuplicateFlag,
    /// A flag without a valid number.
    #[error("CLIENT_ERROR bad token in command line format")]
    FlagToken,
    /// More flags than are accepted (`mg`).
    #[error("CLIENT_ERROR options flags are too long")]
    FlagsAreTooLong,
    /// More flags than are accepted (the others).
    #[error("CLIENT_ERROR options flags too long")]
    FlagsTooLong,
    /// A key that is no base64.
    #[error("CLIENT_ERROR error decoding key")]
    KeyDecoding,
    /// An opaque of more than 31 bytes.
    #[error("CLIENT_ERROR opaque token too long")]
    OpaqueTooLong,
    /// `M` with more or less than one letter.
    #[error("CLIENT_ERROR incorrect length for M token")]
    ModeLength,
    /// `M` with a letter that `ms` does not know.
    #[error("CLIENT_ERROR invalid mode for ms M token")]
    StoreMode,
    /// `M` with a letter that `ma` does not know.
    #[error("CLIENT_ERROR invalid mode for ma M token")]
    CountMode,
    /// `J` with something else than a number.
    #[error("CLIENT_ERROR invalid numeric initial value")]
    Initial,
    /// `D` with something else than a number.
    #[error("CLIENT_ERROR invalid numeric delta value")]
    FlagDelta,
}

/// The answer to an invalid number.
pub const NOT_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value";

/// The answer to a storage command.
pub fn stored_text(outcome: StoreOutcome) -> &'static str {
    match outcome {
        StoreOutcome::Stored(_) => "STORED",
        StoreOutcome::NotStored => "NOT_STORED",
        StoreOutcome::Exists => "EXISTS",
        StoreOutcome::NotFound => "NOT_FOUND",
        StoreOutcome::TooLarge => "SERVER_ERROR object too large for cache",
        StoreOutcome::NoMemory => "SERVER_ERROR out of memory storing object",
        StoreOutcome::NotNumber => NOT_NUMBER,
    }
}
