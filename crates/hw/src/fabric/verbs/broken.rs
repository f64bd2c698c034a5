//! Why a connection of either end is over: for the log, and for its user.

use super::VerbsError;
use super::wire::WireError;
use crate::handshake::Failure;
use rackpool_core::error::{DeathCause, Distrust};
use rustix::io::Errno;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum VerbsCloseReason {
    #[error("the peer closed it")]
    Closed,
    #[error("closed here")]
    Left,
    #[error("the peer is silent for {lease_ms} ms")]
    Silent { lease_ms: u64 },
    #[error("the system ended it: {0}")]
    System(Errno),
    #[error("the peer broke the protocol: {0}")]
    Wire(#[from] WireError),
    #[error("all connections of the target are taken")]
    Refused,
    #[error("{0}")]
    Handshake(#[from] Failure),
    #[error("the target asks for the pool's secret")]
    NoSecret,
    #[error("it proved nothing, and others came")]
    Crowded,
    #[error("a local buffer was taken back before it was sent")]
    BufferGone,
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    #[error("a work request failed with the device's status {status}: {}", meaning(*.status))]
    Work { status: i32 },
    #[error("the failed queue pair did not give its work back within {lease_ms} ms")]
    Stuck { lease_ms: u64 },
}

impl From<Errno> for VerbsCloseReason {
    fn from(error: Errno) -> Self {
        match error {
            // A process that ends with something unread is said to have reset its connections.
            Errno::CONNRESET | Errno::PIPE => VerbsCloseReason::Closed,
            error => VerbsCloseReason::System(error),
        }
    }
}

impl VerbsCloseReason {
    pub(super) fn cause(&self) -> DeathCause {
        // 12 and 13: the device has tried for as long as it does.
        match self {
            VerbsCloseReason::Silent { .. } | VerbsCloseReason::Work { status: 12 | 13 } => {
                DeathCause::Silent
            }
            VerbsCloseReason::Handshake(Failure::Distrust(why)) => DeathCause::Distrusted(*why),
            VerbsCloseReason::Refused | VerbsCloseReason::Handshake(Failure::Busy) => {
                DeathCause::Busy
            }
            VerbsCloseReason::NoSecret => DeathCause::Distrusted(Distrust::InitiatorHasNone),
            _ => DeathCause::Closed,
        }
    }
}

/// The device's status in words.
fn meaning(status: i32) -> &'static str {
    match status {
        1 => "a message longer than its receive",
        4 => "local memory that is not registered so",
        5 => "work behind a failed one",
        9 => "the other side does not understand it",
        11 => "the other side failed in executing it",
        12 => "no acknowledgement, however often it was sent",
        13 => "no receive was posted there",
        _ => "see ibv_wc_status",
    }
}
