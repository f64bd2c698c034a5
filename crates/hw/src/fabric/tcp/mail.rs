//! What the application of a target puts in for one of its connections: messages, and memory that
//! goes into a buffer of the initiator. Owned by the queues (`doors.rs`) until the target's thread
//! takes it; carried out by `serve.rs`.

use rackpool_core::constants::{FABRIC_MESSAGES_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::{Exposure, RemoteAddr};

/// What the application puts in for a connection.
pub(in crate::fabric) enum Mail {
    Message(Vec<u8>),
    WriteBack(Box<WriteBack>),
}

/// Memory of the pages for a buffer that an initiator has exposed, and the messages after it.
#[derive(Clone, Debug)]
pub struct WriteBack {
    pub to: Exposure,
    /// What, as an initiator would name it.
    pub from: RemoteAddr,
    pub bytes: u64,
    /// Sent after the last byte.
    pub done: Vec<u8>,
    /// Sent instead if the key was not valid to the end.
    pub refused: Vec<u8>,
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetSendError {
    /// Retry after a pause.
    #[error("{FABRIC_MESSAGES_MAX} messages wait for this connection")]
    Busy,
    /// The connection is gone. Do not retry.
    #[error("the connection is down")]
    Down,
    /// Do not retry.
    #[error("a message of {bytes} bytes; at most {MESSAGE_BYTES_MAX} bytes fit")]
    TooLong { bytes: usize },
}
