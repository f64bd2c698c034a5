//! What can go wrong between a client and a server, with numbers, and whether to retry.

use rackpool_fabric::FabricError;
use rackpool_fabric::control::ControlError;
use rackpool_sim::repro::herd::baselines::NoPlace;
use std::io;

/// A result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a server did not start, or a client could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server's process is gone, or it ended this connection. Connect again when it is back.
    #[error("the server is gone: connect again when it is back")]
    Gone,
    /// No answer although the connection is there. Retry when the machine is less busy.
    #[error("no answer within {waited_ms} ms: the server is stopped or overloaded")]
    Silent {
        /// How long was waited, milliseconds.
        waited_ms: u64,
    },
    /// All windows are in use. Nothing was sent. Retry after answers were taken.
    #[error("{window} requests are under way; take answers, then retry")]
    Busy { window: u32 },
    /// What the other end wrote makes no sense, or it runs something else. Do not retry.
    #[error("the other end makes no sense: {what}")]
    Corrupt { what: &'static str },
    /// A GET met a PUT each time that it was begun. Retry later.
    #[error("key {key}: each of {repeats} GETs met a PUT that was not done")]
    Torn {
        key: u64,
        /// How often it was begun again.
        repeats: u32,
    },
    /// The value has another length than those of the table. Nothing was sent. Do not retry.
    #[error("a value of {bytes} bytes: all have {needed_bytes}")]
    ValueSize { bytes: u64, needed_bytes: u64 },
    /// What was asked for does not exist for this system, or is out of range. Do not retry.
    #[error("{what}")]
    Spec { what: String },
    /// A key found no place in the table. Retry with another number of keys.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// The control socket failed; its error says whether to retry.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The fabric could not be set up; its error says whether to retry.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system refused. Retry when its reason is gone.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl Error {
    /// A short stable word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Error::Gone => "gone",
            Error::Silent { .. } | Error::Torn { .. } => "timeout",
            Error::Busy { .. } => "busy",
            Error::Corrupt { .. } => "corrupt",
            Error::ValueSize { .. } => "value-size",
            Error::Spec { .. } | Error::NoPlace(_) => "config",
            Error::Fabric(error) if error.is_absence() => "config",
            Error::Control(_) | Error::Fabric(_) | Error::Io { .. } => "io",
        }
    }
}

/// What the system said, with what was tried.
pub(super) fn io_error<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
    move |error| Error::Io { what, source: error.into() }
}
