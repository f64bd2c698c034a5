//! The errors of the fast path: what happened, with numbers and units, and whether to retry.

use rackpool_fabric::FabricError;
use rackpool_fabric::control::ControlError;
use std::io;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a client's call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty or too long for a slot. Nothing was sent. Do not retry.
    #[error("a key of {bytes} bytes: 1 to {max_bytes} bytes fit into a slot")]
    KeySize { bytes: usize, max_bytes: usize },
    /// The value is too long for a slot, or for the cache. Do not retry; what is too long for a
    /// slot goes in and out by [`Client::put`](super::Client::put) and
    /// [`Client::get`](super::Client::get).
    #[error("a value of {bytes} bytes: up to {max_bytes} bytes fit")]
    ValueSize { bytes: u64, max_bytes: u64 },
    /// All windows are in use. Nothing was sent. Retry after answers were taken.
    #[error("{windows} requests are under way; take answers, then retry")]
    Busy {
        /// Windows to this server thread.
        windows: u32,
    },
    /// The cache has no memory for the value; the old one may be gone. Retry later.
    #[error("the cache has no memory left for the value; retry later")]
    OutOfMemory,
    /// The value lies in another tier, such as a pool, which does not answer or has no room. Retry
    /// when it does.
    #[error("the tier that the value lies in does not answer, or has no room; retry later")]
    Tier,
    /// The server has given up a long value, of which nothing was heard for 30 s, each time that it
    /// was tried. A value that was put is not stored. Retry if the machine is overloaded.
    #[error("the server gave the long value up after 30 s of silence, {attempts} times; retry")]
    Lapsed {
        /// How often it was tried.
        attempts: u32,
    },
    /// The server could not read the request: a bug of one of the two. Do not retry.
    #[error("the server did not understand the request")]
    Malformed,
    /// The server wrote an invalid answer. Do not retry: connect anew.
    #[error("the server's answer makes no sense: {what}")]
    Corrupt { what: &'static str },
    /// No answer although the server's process lives and was reminded. A request may be applied
    /// later; its window stays in use until it is answered. Retry if the machine is overloaded.
    #[error(
        "no answer within {waited_ms} ms after {reminders} reminders: the server is stopped or \
             overloaded"
    )]
    Silent {
        /// How long was waited, milliseconds.
        waited_ms: u64,
        /// How often the request was repeated.
        reminders: u32,
    },
    /// The server's process is gone, or it ended this connection. What was under way may have been
    /// applied. Connect again when it is back.
    #[error("the server is gone: connect again when it is back")]
    Gone,
    /// The server has as many clients as it may have. Retry when one has left.
    #[error("the server has {clients} clients, as many as it may have: retry when one has left")]
    Full { clients: u32 },
    /// The server has another version of the protocol. Do not retry: use the same release on both
    /// sides.
    #[error("the server speaks version {theirs} of the protocol, this client version {ours}")]
    Version { ours: u32, theirs: u32 },
    /// An option is out of range. Do not retry.
    #[error("{option} is {value}: {min} to {max} are possible")]
    BadOption { option: &'static str, value: u64, min: u64, max: u64 },
    /// The server is reached by no RDMA device. Do not retry: connect over tcp, or start it with
    /// one.
    #[error("the server offers no RDMA device: start it with one, or connect to it over tcp")]
    NoDevices,
    /// The control socket failed; its error says whether to retry.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The fabric could not be set up; its error says whether to retry.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system refused memory or descriptors. Retry when its reason is gone.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

impl Error {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::KeySize { .. } => "key-size",
            Error::ValueSize { .. } => "value-size",
            Error::Busy { .. } | Error::Full { .. } => "busy",
            Error::OutOfMemory => "out-of-memory",
            Error::Tier => "tier",
            Error::Malformed | Error::Corrupt { .. } => "corrupt",
            Error::Silent { .. } | Error::Lapsed { .. } => "timeout",
            Error::Gone => "gone",
            Error::Version { .. } => "version",
            Error::BadOption { .. } => "bad-option",
            Error::NoDevices => "config",
            Error::Control(_) | Error::Fabric(_) | Error::Io { .. } => "io",
        }
    }

    /// Whether the same call may succeed later without anything being changed by the caller.
    pub fn may_retry(&self) -> bool {
        matches!(
            self,
            Error::Busy { .. }
                | Error::Full { .. }
                | Error::OutOfMemory
                | Error::Tier
                | Error::Lapsed { .. }
                | Error::Silent { .. }
        )
    }
}

/// Why a server did not start: [`Error::BadOption`]; [`Error::Control`], the name is taken or is
/// none; [`Error::Fabric`], the address is taken, or not of this host; [`Error::Io`], which alone
/// may be worth a retry.
pub type HerdStartError = Error;

pub(super) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { what, source }
}
