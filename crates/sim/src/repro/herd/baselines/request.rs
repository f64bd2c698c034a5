//! Requests as bytes: the value and its length, then the key hash, which ends the slot if the
//! request is written. The second half of the hash says which client it is of, and carries a
//! checksum: a WRITE's bytes may become visible in any order, so the hash alone does not say that
//! the rest is there. What comes from memory or messages is checked, never believed.
//!
//! Source: HERD, requests. The checksum departs from it: HERD's card writes from left to right.

use super::{KEY_BYTES, LENGTH_BYTES, SLOT_BYTES};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Requests of a client under way at most.
pub const LANES_MAX: u8 = 64;
/// Clients at most: a request has room for so many numbers.
pub const CLIENTS_MAX: u32 = 1 << CLIENT_BITS;
const CLIENT_BITS: u32 = 16;
/// In the hash's second half, above the lane: the client, whether it is a PUT, the checksum.
const CLIENT_SHIFT: u32 = 8;
const PUT_SHIFT: u32 = CLIENT_SHIFT + CLIENT_BITS;
const CHECK_SHIFT: u32 = PUT_SHIFT + 1;
/// Bytes behind the value of a PUT.
const TAIL_BYTES: usize = (LENGTH_BYTES + KEY_BYTES) as usize;

/// A request in the server's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvRequest {
    /// The key's number, as its hash begins.
    pub key: u64,
    /// Which of the client's requests it is, as its hash ends.
    pub lane: u8,
    /// The value of a PUT.
    pub value: Option<Vec<u8>>,
    /// The client, below [`CLIENTS_MAX`].
    pub client: u32,
    /// The connection that it came by.
    pub peer: u32,
}

impl KvRequest {
    /// As it is sent: the value and its length, then the key hash, which is the slot's end.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(value) = &self.value {
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        }
        bytes.extend_from_slice(&self.key.to_le_bytes());
        let head = u64::from(self.lane)
            | u64::from(self.client as u16) << CLIENT_SHIFT
            | u64::from(self.value.is_some()) << PUT_SHIFT;
        let head = sealed(&bytes, head);
        bytes.extend_from_slice(&head.to_le_bytes());
        bytes
    }

    /// From what was sent. `None` if it is no request, or not all of one.
    pub fn decode(bytes: &[u8], peer: u32) -> Option<KvRequest> {
        let (checked, head) = bytes.split_last_chunk::<8>()?;
        let head = u64::from_le_bytes(*head);
        if sealed(checked, head & ((1 << CHECK_SHIFT) - 1)) != head {
            return None;
        }
        let (rest, key) = checked.split_last_chunk::<8>()?;
        let value = match rest.split_last_chunk::<2>() {
            None if rest.is_empty() => None,
            None => return None,
            Some((value, length)) => {
                let length = u16::from_le_bytes(*length) as usize;
                Some(value.get(..length)?.to_vec())
            }
        };
        if value.is_some() != (head >> PUT_SHIFT & 1 == 1) {
            return None;
        }
        let client = u32::from((head >> CLIENT_SHIFT) as u16);
        Some(KvRequest { key: u64::from_le_bytes(*key), lane: head as u8, value, client, peer })
    }

    /// The bytes of the request that a slot ends with, if its last word says that there is one;
    /// whether all of it has come is for [`KvRequest::decode`] to say.
    pub fn in_slot(slot: &[u8]) -> Option<&[u8]> {
        let (_, head) = slot.split_last_chunk::<8>()?;
        let head = u64::from_le_bytes(*head);
        if head == 0 {
            return None;
        }
        let bytes = match head >> PUT_SHIFT & 1 {
            0 => KEY_BYTES as usize,
            _ => {
                let at = slot.len().checked_sub(TAIL_BYTES)?;
                let length = slot[at..].first_chunk::<2>()?;
                TAIL_BYTES + usize::from(u16::from_le_bytes(*length))
            }
        };
        slot.len().checked_sub(bytes).map(|at| &slot[at..])
    }

    /// The longest value of a PUT, bytes.
    pub const VALUE_BYTES_MAX: u64 = SLOT_BYTES - TAIL_BYTES as u64;
}

/// The hash's second half with its checksum, over what precedes it and over itself; never 0.
fn sealed(before: &[u8], head: u64) -> u64 {
    let check = xxh3_64_with_seed(before, head) >> CHECK_SHIFT;
    head | check.max(1) << CHECK_SHIFT
}

/// What says that a PUT was done: one byte, never 0, so that a client that polls for it sees it
/// come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Which of the client's requests, below [`LANES_MAX`].
    pub lane: u8,
    /// Whether the value is stored now: not if the table has no such key.
    pub is_stored: bool,
}

impl Ack {
    pub fn encode(self) -> u8 {
        let kind = if self.is_stored { 0x80 } else { 0x40 };
        kind | self.lane & (LANES_MAX - 1)
    }

    /// From a byte; `None` if it is none.
    pub fn decode(byte: u8) -> Option<Ack> {
        let lane = byte & (LANES_MAX - 1);
        match byte & 0xc0 {
            0x80 => Some(Ack { lane, is_stored: true }),
            0x40 => Some(Ack { lane, is_stored: false }),
            _ => None,
        }
    }
}

/// How the request region is divided.
#[derive(Clone, Copy, Debug)]
pub struct RequestRegion {
    pub clients: u32,
    /// Requests of a client at a server process, W.
    pub window: u32,
}

impl RequestRegion {
    /// The slot of a client's `request`-th request at a server process.
    pub fn slot(&self, server: u32, client: u32, request: u64) -> u64 {
        let (clients, window) = (u64::from(self.clients), u64::from(self.window));
        u64::from(server) * (window * clients) + u64::from(client) * window + request % window
    }

    /// The owner of a slot: server process and client.
    pub fn owner(&self, slot: u64) -> (u32, u32) {
        let (clients, window) = (u64::from(self.clients), u64::from(self.window));
        ((slot / (window * clients)) as u32, (slot / window % clients) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put() -> KvRequest {
        KvRequest { key: 7, lane: 63, value: Some(vec![5; 32]), client: 65_535, peer: 3 }
    }

    #[test]
    fn a_request_in_a_slot_is_taken_only_when_all_of_it_has_come() {
        let bytes = put().encode();
        assert_eq!(bytes.len(), 50, "no longer than HERD's");
        let mut slot = vec![0xee; SLOT_BYTES as usize];
        let at = slot.len() - bytes.len();
        slot[at..].copy_from_slice(&bytes);
        let found = KvRequest::in_slot(&slot).and_then(|found| KvRequest::decode(found, 3));
        assert_eq!(found, Some(put()));
        for index in at..slot.len() {
            let mut torn = slot.clone();
            torn[index] ^= 0x11;
            let found = KvRequest::in_slot(&torn).and_then(|found| KvRequest::decode(found, 3));
            assert_eq!(found, None, "byte {index}");
        }
        slot[(SLOT_BYTES - 8) as usize..].fill(0);
        assert_eq!(KvRequest::in_slot(&slot), None);
        let get = KvRequest { value: None, ..put() };
        slot[(SLOT_BYTES - KEY_BYTES) as usize..].copy_from_slice(&get.encode());
        let found = KvRequest::in_slot(&slot).and_then(|found| KvRequest::decode(found, 3));
        assert_eq!(found, Some(get), "what lies before a GET is not its");
    }

    #[test]
    fn a_slot_that_says_more_than_it_holds_has_no_request() {
        let mut slot = vec![0xff; SLOT_BYTES as usize];
        assert_eq!(KvRequest::in_slot(&slot), None);
        slot[..].fill(0);
        assert_eq!(KvRequest::in_slot(&slot), None);
        assert_eq!(KvRequest::in_slot(&[1, 2, 3]), None);
        assert_eq!(KvRequest::in_slot(&[0xff; 10]), None);
    }

    #[test]
    fn an_acknowledgement_is_never_0_and_comes_back_as_it_went() {
        for lane in 0..LANES_MAX {
            for is_stored in [false, true] {
                let ack = Ack { lane, is_stored };
                assert_ne!(ack.encode(), 0);
                assert_eq!(Ack::decode(ack.encode()), Some(ack));
            }
        }
        assert_eq!(Ack::decode(0), None);
        assert_eq!(Ack::decode(0xff), None);
    }
}
