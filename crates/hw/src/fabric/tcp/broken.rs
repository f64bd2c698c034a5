//! Why a connection of an endpoint ended: for its log, and for its user.

use super::frame::{FrameError, HelloStatus};
use crate::handshake::Failure;
use rackpool_core::error::{DeathCause, Distrust};
use rustix::io::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TcpCloseReason {
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
}

impl From<Errno> for TcpCloseReason {
    fn from(error: Errno) -> Self {
        match error {
            Errno::BADMSG => TcpCloseReason::Tampered,
            // A process that ends with something unread is said to have reset its connections.
            Errno::CONNRESET | Errno::PIPE => TcpCloseReason::Closed,
            error => TcpCloseReason::System(error),
        }
    }
}

impl TcpCloseReason {
    pub(super) fn cause(self) -> DeathCause {
        match self {
            TcpCloseReason::Silent { .. } => DeathCause::Silent,
            TcpCloseReason::Handshake(Failure::Distrust(why)) => DeathCause::Distrusted(why),
            TcpCloseReason::Refused(HelloStatus::Secret) => {
                DeathCause::Distrusted(Distrust::InitiatorHasNone)
            }
            TcpCloseReason::Refused(HelloStatus::Busy)
            | TcpCloseReason::Handshake(Failure::Busy) => DeathCause::Busy,
            _ => DeathCause::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_ended_with_something_unread_has_closed_its_connection() {
        assert_eq!(TcpCloseReason::from(Errno::CONNRESET), TcpCloseReason::Closed);
        assert_eq!(TcpCloseReason::from(Errno::PIPE), TcpCloseReason::Closed);
        assert_eq!(TcpCloseReason::from(Errno::NOBUFS), TcpCloseReason::System(Errno::NOBUFS));
        assert_eq!(TcpCloseReason::from(Errno::BADMSG), TcpCloseReason::Tampered);
    }
}
