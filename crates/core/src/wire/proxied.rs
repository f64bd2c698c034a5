//! Messages of a client that leaves its remote work to its own rack's daemon: orders in the ring
//! for remote requests, outcomes in the ring for their replies. The data of a WRITE or SEND follow
//! their order in the same message, those of a READ or of a message their outcome.
//!
//! Source: Rcmp §4.2 (methods b and c), §5.2.

use super::broken;
use crate::addr::{Generation, RackId};
use crate::error::{DeathCause, Result};
use crate::seam::{RemoteAddr, Verb, WorkStatus};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A message over a fabric connection, which a daemon shares among the clients of its rack, or a
/// program among its threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Routed<T> {
    /// Its sender: 0 for the owner of the connection, else the sharer's number for one of its
    /// clients or threads.
    pub channel: u32,
    pub message: T,
}

/// A message that was encoded as [`Routed`] with channel 0, for another channel. `None` if it is
/// not one.
pub fn reroute(message: &[u8], channel: u32) -> Option<Vec<u8>> {
    let (0u32, rest) = decode_front(message, "client").ok()? else { return None };
    let mut routed = super::encode_vec(&channel);
    routed.extend_from_slice(rest);
    Some(routed)
}

/// The channel of an encoded [`Routed`], and the encoded message.
pub fn channel_of(message: &[u8]) -> Result<(u32, &[u8])> {
    decode_front(message, "daemon")
}

/// What a client asks of its own daemon's fabric endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyOrder {
    /// A channel to another rack: [`ProxyOutcome::Opened`] or `Ended` comes.
    Open {
        /// The client's own number for it, not used before.
        channel: u32,
        rack: RackId,
    },
    /// The end of a channel: what of it was not posted never is. No outcome.
    Close { channel: u32 },
    /// A work request. Those of one channel are executed in their order.
    Work {
        channel: u32,
        /// The client's number for it, below `RING_ENTRIES`, not under way.
        tag: u8,
        /// What is to be done.
        work: ProxyWork,
    },
}

/// A work request without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyWork {
    Read {
        /// Offset in the target's pages.
        offset: u64,
        key: Generation,
        /// How much, at most `PROXY_PIECE_BYTES_MAX`.
        bytes: u32,
    },
    Write {
        /// Offset in the target's pages.
        offset: u64,
        key: Generation,
    },
    WriteImm {
        /// Offset in the target's pages.
        offset: u64,
        key: Generation,
        /// What the target's application receives.
        imm: u32,
    },
    Send,
    Cas {
        /// Offset in the target's pages.
        offset: u64,
        key: Generation,
        expected: u64,
        new: u64,
    },
    FetchAdd {
        /// Offset in the target's pages.
        offset: u64,
        key: Generation,
        n: u64,
    },
}

impl ProxyWork {
    pub fn verb(&self) -> Verb {
        let at = |offset, key| RemoteAddr { offset, key };
        match *self {
            ProxyWork::Read { offset, key, .. } => Verb::Read(at(offset, key)),
            ProxyWork::Write { offset, key } => Verb::Write(at(offset, key)),
            ProxyWork::WriteImm { offset, key, imm } => Verb::WriteImm(at(offset, key), imm),
            ProxyWork::Send => Verb::Send,
            ProxyWork::Cas { offset, key, expected, new } => {
                Verb::Cas { at: at(offset, key), expected, new }
            }
            ProxyWork::FetchAdd { offset, key, n } => Verb::FetchAdd { at: at(offset, key), n },
        }
    }
}

/// What a daemon's fabric endpoint tells a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyOutcome {
    Opened {
        channel: u32,
    },
    /// The channel is over; all its work requests have completed before this.
    Ended {
        channel: u32,
        cause: DeathCause,
    },
    /// A work request ended. The data of a READ that was done follow.
    Done {
        /// The client's number for it.
        tag: u8,
        status: ProxyStatus,
    },
    /// The target's application says something: the message follows.
    Message {
        channel: u32,
    },
}

/// [`WorkStatus`] on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProxyStatus {
    /// Done; for atomics the old value, else 0.
    Done(u64),
    BadKey,
    BadRange,
    Flushed {
        /// `None` if it may have been executed.
        executed: Option<bool>,
    },
}

impl From<WorkStatus> for ProxyStatus {
    fn from(status: WorkStatus) -> Self {
        match status {
            WorkStatus::Done(value) => ProxyStatus::Done(value),
            WorkStatus::BadKey => ProxyStatus::BadKey,
            WorkStatus::BadRange => ProxyStatus::BadRange,
            WorkStatus::Flushed { executed } => ProxyStatus::Flushed { executed },
        }
    }
}

impl From<ProxyStatus> for WorkStatus {
    fn from(status: ProxyStatus) -> Self {
        match status {
            ProxyStatus::Done(value) => WorkStatus::Done(value),
            ProxyStatus::BadKey => WorkStatus::BadKey,
            ProxyStatus::BadRange => WorkStatus::BadRange,
            ProxyStatus::Flushed { executed } => WorkStatus::Flushed { executed },
        }
    }
}

/// Decodes the message that `bytes` begin with, and gives what follows it.
pub fn decode_front<'b, T: DeserializeOwned>(bytes: &'b [u8], peer: &str) -> Result<(T, &'b [u8])> {
    postcard::take_from_bytes::<T>(bytes)
        .map_err(|error| broken(peer, format!("{error} in {} bytes", bytes.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::{MESSAGE_BYTES_MAX, PROXY_PIECE_BYTES_MAX, RING_ENTRY_BYTES};
    use crate::wire::{self, RemoteRequest};

    #[test]
    fn every_order_without_data_fits_into_a_poll_entry() {
        let (offset, key) = (1 << 50, Generation(u64::MAX));
        let (expected, new) = (u64::MAX, u64::MAX);
        let work = ProxyWork::Cas { offset, key, expected, new };
        let order = ProxyOrder::Work { channel: u32::MAX, tag: 63, work };
        let bytes = wire::encode_vec(&order);
        assert!(bytes.len() <= RING_ENTRY_BYTES as usize - 8, "{}", bytes.len());
        let with_data = [&bytes[..], &[7]].concat();
        let (again, rest) = decode_front::<ProxyOrder>(&with_data, "x").unwrap();
        assert_eq!((again, rest), (order, &[7][..]));
        assert!(decode_front::<ProxyOrder>(&bytes[..3], "x").is_err());
    }

    #[test]
    fn a_message_is_routed_to_another_channel_without_being_read() {
        let routed = |channel| Routed { channel, message: RemoteRequest::Consumed(7) };
        let own = wire::encode_vec(&routed(0));
        let other = reroute(&own, 1 << 20).unwrap();
        assert_eq!(wire::decode::<Routed<RemoteRequest>>(&other, "x").unwrap(), routed(1 << 20));
        assert_eq!(channel_of(&other).unwrap(), (1 << 20, &own[1..]));
        assert_eq!(reroute(&other, 5), None, "only the owner's channel is given to others");
        assert_eq!(reroute(&[], 5), None);
    }

    #[test]
    fn the_longest_piece_and_its_order_fit_into_a_message() {
        let key = Generation(u64::MAX);
        let work = ProxyWork::Write { offset: u64::MAX, key };
        let order = wire::encode_vec(&ProxyOrder::Work { channel: u32::MAX, tag: 63, work });
        assert!(order.len() as u64 + PROXY_PIECE_BYTES_MAX <= u64::from(MESSAGE_BYTES_MAX));
        let status = ProxyStatus::Done(u64::MAX);
        let outcome = wire::encode_vec(&ProxyOutcome::Done { tag: 63, status });
        assert!(outcome.len() as u64 + PROXY_PIECE_BYTES_MAX <= u64::from(MESSAGE_BYTES_MAX));
    }
}
