//! The errors of the protocol. Each says what happened, with numbers and units, and whether to
//! retry; all can travel in a message. Source: DESIGN §4.

use crate::addr::{GAddr, PageId, RackId};
use crate::constants::SESSIONS_MAX;
use serde::{Deserialize, Serialize};

/// A result of the protocol.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How a peer was found dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathCause {
    Closed,
    /// It fell silent for longer than its lease.
    Silent,
    /// The connection never came up: one end did not prove to the other that it is of the pool.
    Distrusted(Distrust),
    /// The connection never came up: it has no place for another one, or not for one of ours.
    Busy,
}

/// Why the two ends of a connection do not take one another for members of one pool. What is said
/// is said to the end that began it, of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Distrust {
    /// Both have a secret, and not the same one.
    #[error("it has another secret: give all processes of a pool the same file")]
    OtherSecret,
    /// Only the end that began the connection has a secret.
    #[error("it was started without a secret: start it with --secret-file, or leave it out here")]
    TargetHasNone,
    /// Only the end that was called has a secret.
    #[error("it asks for the pool's secret: name its file (--secret-file, Options::secret)")]
    InitiatorHasNone,
    /// Only the end that began the connection encrypts.
    #[error("its secret's file does not begin with `encrypt:`, ours does: give both the same file")]
    TargetInClear,
    /// Only the end that was called encrypts.
    #[error("its secret's file begins with `encrypt:`, ours does not: give both the same file")]
    InitiatorInClear,
    /// The handshakes of the two ends are of different versions.
    #[error("its handshake is of another version: run the same release on both ends")]
    OtherVersion,
}

/// What a protocol call can answer instead of its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    /// The address is not allocated (never was, or was freed). Do not retry.
    #[error("{addr} is not allocated: it was freed, or never handed out")]
    NotMapped { addr: GAddr },
    /// The page was on a region that is gone (a reboot, a new region). Do not retry.
    #[error("{addr} is lost: the region of rack {rack} that held it is gone")]
    Lost {
        addr: GAddr,
        /// The rack that held it.
        rack: RackId,
    },
    /// An access leaves the address space, or an atomic would cross its word. Do not retry.
    #[error("{bytes} bytes at {addr} are out of bounds: {limit_bytes} bytes are there")]
    OutOfBounds {
        addr: GAddr,
        bytes: u64,
        /// What could be accessed from there.
        limit_bytes: u64,
    },
    /// An atomic operation or a lock needs an address divisible by `align_bytes`. Do not retry.
    #[error("{addr} is not aligned to {align_bytes} bytes")]
    Misaligned {
        addr: GAddr,
        /// The alignment that it lacks.
        align_bytes: u64,
    },
    /// No memory for the request. Retry after a free, or add memory.
    #[error("the pool is full: {bytes} bytes asked, {free_bytes} bytes free ({place})")]
    Full {
        bytes: u64,
        /// Bytes free where it was looked for.
        free_bytes: u64,
        /// Where it was looked for.
        place: String,
    },
    /// A bounded queue or table is full. Retry after a pause.
    #[error("{what} is full ({limit} entries); retry after a pause")]
    Busy { what: String, limit: u64 },
    /// A free that names no allocation. Do not retry.
    #[error("{addr} with {bytes} bytes is not an allocation: {reason}")]
    BadFree { addr: GAddr, bytes: u64, reason: String },
    /// A size of 0 or above the limit. Do not retry.
    #[error("{bytes} bytes cannot be allocated at once: 1 to {limit_bytes} bytes can")]
    BadSize { bytes: u64, limit_bytes: u64 },
    /// A word that is to get an address holds something already. Read it before trying again.
    #[error("the word at {addr} holds {found:#x}, an address is stored only where 0 is")]
    Occupied { addr: GAddr, found: u64 },
    /// A lock did not become free in time; nothing was done. Retry, or look after its holder.
    #[error(
        "the lock at {addr} did not become free within {waited_ms} ms: process {holder_pid} has \
         held it for {held_ms} ms"
    )]
    LockTimeout {
        addr: GAddr,
        waited_ms: u64,
        /// Process id of a holder; 0 if it has no holder any more.
        holder_pid: u64,
        /// How long it has held it, as far as its daemon knows since its start.
        held_ms: u64,
    },
    /// A lock is not held any more: its rack had no connection to the holder for too long, or its
    /// region is gone. Another client may have it. Do not go on with what it protected.
    #[error("the lock at {addr} with token {token} is lost: somebody else may hold it now")]
    LockLost {
        addr: GAddr,
        /// The token of the grant.
        token: u64,
    },
    /// Writes that a handle had buffered under a lock did not all reach home; each of them is there
    /// whole or not at all. Do not go on as if they were.
    #[error(
        "{writes} buffered writes under the lock at {addr} with token {token} did not all reach \
         home: {reason}"
    )]
    WritesLost {
        addr: GAddr,
        /// The token of the grant.
        token: u64,
        /// How many writes were on their way.
        writes: u64,
        reason: String,
    },
    /// The handle holds this lock already. Do not retry.
    #[error("the lock at {addr} is held by this handle already, with token {token}")]
    AlreadyLocked {
        addr: GAddr,
        /// The token of the grant.
        token: u64,
    },
    /// The rack is not part of the pool. Do not retry before it joined.
    #[error("rack {rack} is not in the pool")]
    NoSuchRack { rack: RackId },
    /// A peer died during or before the call; the operation had no effect. Retry when it is back.
    #[error("{peer} is dead ({cause:?}); nothing was done")]
    PeerDead {
        /// The peer, such as `daemon of rack 1`.
        peer: String,
        cause: DeathCause,
    },
    /// The peer did not answer in time; the operation had no effect or can be repeated safely.
    #[error("{peer} did not answer within {waited_ms} ms; the call can be repeated")]
    Timeout { peer: String, waited_ms: u64 },
    /// The operation may or may not have been applied; it was not applied twice.
    /// Read the state before trying again.
    #[error("{operation}: the outcome is unknown, {peer} died or fell silent meanwhile")]
    OutcomeUnknown { operation: String, peer: String },
    /// The answering master is not the leader. Retry at `leader`.
    #[error("not the leader; ask {leader}")]
    NotLeader {
        /// The leader's address, or empty.
        leader: String,
    },
    /// The caller has not the right. Do not retry.
    #[error("{reason}")]
    Denied { reason: String },
    /// The page's home moved while the call ran, too often. Retry.
    #[error("{addr} moved {retries} times during one access; retry")]
    Moving {
        addr: GAddr,
        /// How often it was tried.
        retries: u32,
    },
    /// A page does not move now. See the message.
    #[error("page {page} stays where it is: {reason}")]
    Stays { page: PageId, reason: String },
    /// The region's bytes cannot be used. Do not retry; see the message.
    #[error("{reason}")]
    BadRegion {
        /// What is wrong and the way out.
        reason: String,
    },
    /// The peer speaks another version. Do not retry.
    #[error("{peer} speaks version {found}, this program {supported}: use the same release")]
    Version { peer: String, found: u32, supported: u32 },
    /// The operating system refused something. See the message.
    #[error("{what}: {reason}")]
    Io {
        /// What was attempted, with the path or address.
        what: String,
        reason: String,
    },
    /// An option is missing or makes no sense. Do not retry.
    #[error("{reason}")]
    Config {
        /// What is wrong and what is allowed.
        reason: String,
    },
    /// The peer sent bytes that make no sense. Do not retry.
    #[error("{peer} broke the protocol: {reason}")]
    Protocol { peer: String, reason: String },
    /// The rack takes no new memory: it is being drained. Do not retry there.
    #[error("rack {rack} is being drained and takes no new memory: use another rack")]
    Draining { rack: RackId },
    /// The rack's region was given up by an operator and may not come back. Do not retry.
    #[error(
        "the region of rack {rack} was declared lost and may not come back: remove it, and start \
         the daemon with a new one"
    )]
    Forgotten { rack: RackId },
    /// The client would have more of a rack's memory than the operator lets one client have. Retry
    /// after a free, use another rack, or ask for a larger limit.
    #[error(
        "{bytes} bytes more are over this client's quota: it has {held_bytes} bytes of rack \
         {rack}'s memory and may have {quota_bytes}; free some, use another rack, or have its \
         daemon started with a larger --client-quota"
    )]
    Quota { bytes: u64, held_bytes: u64, quota_bytes: u64, rack: RackId },
    /// The region was made by another release. Do not retry.
    #[error("{reason}")]
    OtherRegion {
        /// Which versions these are, and the way out.
        reason: String,
    },
    /// The disk on which the master keeps the pool's state is full. Nothing was changed, and what
    /// is there can be read. Make room, then repeat the call.
    #[error(
        "the disk of the master's state is full: nothing was changed, and nothing can be until \
         there is room on it"
    )]
    StorageFull,
}

impl Error {
    /// How a connection to `peer` that never came up ends, or one that is over.
    pub fn of_death(peer: impl Into<String>, cause: DeathCause) -> Self {
        let peer = peer.into();
        match cause {
            DeathCause::Distrusted(why) => Error::Denied { reason: format!("{peer}: {why}") },
            DeathCause::Busy => {
                let what = format!("the table of connections of {peer}");
                Error::Busy { what, limit: SESSIONS_MAX.into() }
            }
            cause => Error::PeerDead { peer, cause },
        }
    }

    /// A short stable word for programs: the shell prints it, tests match it.
    pub fn code(&self) -> &'static str {
        match self {
            Error::NotMapped { .. } => "not-mapped",
            Error::Lost { .. } => "lost",
            Error::OutOfBounds { .. } => "out-of-bounds",
            Error::Misaligned { .. } => "misaligned",
            Error::Full { .. } => "full",
            Error::Busy { .. } => "busy",
            Error::BadFree { .. } => "bad-free",
            Error::BadSize { .. } => "bad-size",
            Error::Occupied { .. } => "occupied",
            Error::LockTimeout { .. } => "lock-timeout",
            Error::LockLost { .. } => "lock-lost",
            Error::WritesLost { .. } => "writes-lost",
            Error::AlreadyLocked { .. } => "already-locked",
            Error::NoSuchRack { .. } => "no-such-rack",
            Error::PeerDead { .. } => "peer-dead",
            Error::Timeout { .. } => "timeout",
            Error::OutcomeUnknown { .. } => "outcome-unknown",
            Error::NotLeader { .. } => "not-leader",
            Error::Denied { .. } => "denied",
            Error::Moving { .. } => "moving",
            Error::Stays { .. } => "stays",
            Error::BadRegion { .. } => "bad-region",
            Error::Version { .. } | Error::OtherRegion { .. } => "version",
            Error::Io { .. } => "io",
            Error::Config { .. } => "config",
            Error::Protocol { .. } => "protocol",
            Error::Draining { .. } => "draining",
            Error::Forgotten { .. } => "forgotten",
            Error::Quota { .. } => "quota",
            Error::StorageFull => "storage-full",
        }
    }

    /// Whether the peer may have done what ended with this error. Otherwise the peer said it
    /// itself, of what it did not do.
    pub fn is_open(&self) -> bool {
        matches!(
            self,
            Error::OutcomeUnknown { .. }
                | Error::Timeout { .. }
                | Error::PeerDead { .. }
                | Error::Protocol { .. }
                | Error::Io { .. }
        )
    }

    /// Whether the same call may succeed later without anything being changed by the caller.
    pub fn may_retry(&self) -> bool {
        matches!(
            self,
            Error::Busy { .. }
                | Error::Full { .. }
                | Error::PeerDead { .. }
                | Error::Timeout { .. }
                | Error::LockTimeout { .. }
                | Error::NotLeader { .. }
                | Error::Moving { .. }
        )
    }
}
