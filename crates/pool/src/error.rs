//! The error of the public API: one type, with a kind to act on. It wraps the error of the
//! protocol ([`WireError`]), which has more variants and changes with the protocol: what is private
//! here answers with that, and the public functions convert it.

pub(crate) use rackpool_core::{Error as WireError, Result as WireResult};

/// A result of the pool.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed: what to do about it ([`Error::kind`]), a stable word for programs
/// ([`Error::code`]), and one line of text with numbers, units and the way out.
///
/// ```
/// use rackpool::{ErrorKind, Placement, cluster::Cluster};
/// let cluster = Cluster::start(1)?;
/// let error = cluster.pool(0)?.alloc(0, Placement::Auto).unwrap_err();
/// assert_eq!((error.kind(), error.code()), (ErrorKind::Invalid, "bad-size"));
/// assert!(!error.may_retry() && error.to_string().contains("0 bytes"));
/// # Ok::<(), rackpool::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] WireError);

/// What to do about an [`Error`]; the codes of each kind are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// `not-mapped`, `bad-free`: no such allocation. Forget the address.
    NotFound,
    /// `lost`, `forgotten`, `lock-lost`, `writes-lost`: what was there is gone, or no longer ours.
    /// Do not go on as if it were.
    Lost,
    /// `full`, `quota`, `draining`, `storage-full`: no memory there. Free some, or use another
    /// rack.
    Full,
    /// `busy`, `moving`, `stays`: not now. Retry after a pause.
    Busy,
    /// `timeout`, `lock-timeout`: no answer in time. Repeating the call does no harm.
    Timeout,
    /// `peer-dead`, `no-such-rack`, `not-leader`: a rack or the master is not there; nothing was
    /// done. Retry when it is back.
    Unreachable,
    /// `outcome-unknown`: it was done once or not at all. Read the state before trying again.
    OutcomeUnknown,
    /// `occupied`, `already-locked`: the word or lock is taken. Look at it before trying again.
    Occupied,
    /// `out-of-bounds`, `misaligned`, `bad-size`, `config`: an argument or option makes no sense.
    /// Correct it.
    Invalid,
    /// `denied`: the caller may not.
    Denied,
    /// `bad-region`, `protocol`: bytes of a region or a peer make no sense.
    Corrupt,
    /// `version`: a peer or region is of another release.
    Version,
    /// `io`: the operating system refused a call, which the text names.
    Io,
}

impl Error {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match &self.0 {
            WireError::NotMapped { .. } | WireError::BadFree { .. } => ErrorKind::NotFound,
            WireError::Lost { .. }
            | WireError::Forgotten { .. }
            | WireError::LockLost { .. }
            | WireError::WritesLost { .. } => ErrorKind::Lost,
            WireError::Full { .. }
            | WireError::Quota { .. }
            | WireError::Draining { .. }
            | WireError::StorageFull => ErrorKind::Full,
            WireError::Busy { .. } | WireError::Moving { .. } | WireError::Stays { .. } => {
                ErrorKind::Busy
            }
            WireError::Timeout { .. } | WireError::LockTimeout { .. } => ErrorKind::Timeout,
            WireError::PeerDead { .. }
            | WireError::NoSuchRack { .. }
            | WireError::NotLeader { .. } => ErrorKind::Unreachable,
            WireError::OutcomeUnknown { .. } => ErrorKind::OutcomeUnknown,
            WireError::Occupied { .. } | WireError::AlreadyLocked { .. } => ErrorKind::Occupied,
            WireError::OutOfBounds { .. }
            | WireError::Misaligned { .. }
            | WireError::BadSize { .. }
            | WireError::Config { .. } => ErrorKind::Invalid,
            WireError::Denied { .. } => ErrorKind::Denied,
            WireError::BadRegion { .. } | WireError::Protocol { .. } => ErrorKind::Corrupt,
            WireError::Version { .. } | WireError::OtherRegion { .. } => ErrorKind::Version,
            WireError::Io { .. } => ErrorKind::Io,
        }
    }

    /// A short stable word: the command line prints it. `docs/semantics.md` lists all.
    pub fn code(&self) -> &'static str {
        self.0.code()
    }

    /// Whether the same call may succeed later without anything being changed by the caller.
    pub fn may_retry(&self) -> bool {
        self.0.may_retry()
    }

    /// For rackpool's own crates that speak the protocol.
    #[doc(hidden)]
    pub fn into_wire(self) -> WireError {
        self.0
    }
}
