//! Why a connection is over, at either end and on any fabric: for the log, and for its user.

use super::tcp::frame::{FrameError, HelloStatus};
#[cfg(feature = "verbs")]
use super::verbs::{VerbsError, wire::WireError};
use crate::handshake::Failure;
use rackpool_core::error::{DeathCause, Distrust};
use rustix::io::Errno;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("the peer closed it")]
    Closed,
    #[error("closed here")]
    Left,
    #[error("the peer is silent for {lease_ms} ms")]
    Silent { lease_ms: u64 },
    #[error("the system ended it: {0}")]
    System(Errno),
    #[error("somebody between the ends has changed bytes: a record does not open")]
    Tampered,
    #[error("the peer broke the protocol: {0}")]
    Frame(#[from] FrameError),
    #[error("the target refused it: {0:?}")]
    Refused(HelloStatus),
    #[error("{0}")]
    Handshake(#[from] Failure),
    #[error("it proved or asked for nothing, and others came")]
    Crowded,
    #[error("a local buffer was taken back before it was sent")]
    BufferGone,
    #[cfg(feature = "verbs")]
    #[error("the peer broke the protocol: {0}")]
    Wire(#[from] WireError),
    #[cfg(feature = "verbs")]
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    #[cfg(feature = "verbs")]
    #[error("a work request failed with the device's status {status}: {}", meaning(*.status))]
    Work { status: i32 },
    #[cfg(feature = "verbs")]
    #[error("the failed queue pair did not give its work back within {lease_ms} ms")]
    Stuck { lease_ms: u64 },
}

impl From<Errno> for CloseReason {
    fn from(error: Errno) -> Self {
        match error {
            Errno::BADMSG => CloseReason::Tampered,
            // A process that ends with something unread is said to have reset its connections.
            Errno::CONNRESET | Errno::PIPE => CloseReason::Closed,
            error => CloseReason::System(error),
        }
    }
}

impl CloseReason {
    pub(super) fn cause(&self) -> DeathCause {
        match self {
            CloseReason::Silent { .. } => DeathCause::Silent,
            // The device has tried for as long as it does.
            #[cfg(feature = "verbs")]
            CloseReason::Work { status: 12 | 13 } => DeathCause::Silent,
            CloseReason::Handshake(Failure::Distrust(why)) => DeathCause::Distrusted(*why),
            CloseReason::Refused(HelloStatus::Secret) => {
                DeathCause::Distrusted(Distrust::InitiatorHasNone)
            }
            CloseReason::Refused(HelloStatus::Busy) | CloseReason::Handshake(Failure::Busy) => {
                DeathCause::Busy
            }
            _ => DeathCause::Closed,
        }
    }

    /// Whether it is for the log: not if one of the ends wished it.
    pub(super) fn is_failure(&self) -> bool {
        !matches!(self, CloseReason::Closed | CloseReason::Left)
    }
}

/// The device's status in words.
#[cfg(feature = "verbs")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_ended_with_something_unread_has_closed_its_connection() {
        assert_eq!(CloseReason::from(Errno::CONNRESET), CloseReason::Closed);
        assert_eq!(CloseReason::from(Errno::PIPE), CloseReason::Closed);
        assert_eq!(CloseReason::from(Errno::NOBUFS), CloseReason::System(Errno::NOBUFS));
        assert_eq!(CloseReason::from(Errno::BADMSG), CloseReason::Tampered);
    }
}
