//! What is in a slot: a head, a key, a value. Requests and replies have the same head.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | twice the request's place among the client's, from 1 on; of a reply one more |
//! | 8 | kind |
//! | 9 | bytes of the key; 0 in replies |
//! | 10 | bytes of the value, 2 bytes |
//! | 12 | the item's flags, 4 bytes; in a refusal, a length in bytes |
//! | 16 | expiry, milliseconds since the epoch, 0 = never; in a refusal, a length in bytes |
//! | 24 | key, then value |
//!
//! Everything is little-endian. Pure functions over private bytes: whoever reads shared memory
//! copies first (`slot.rs`). Called by engine and client.

use super::geometry::Geometry;
use super::part::PART_HEAD_BYTES;

/// Bytes before the key.
pub const HEAD_BYTES: usize = 24;
/// Longest key, bytes: memcached's, so that a key is one behind every door.
pub const KEY_BYTES_MAX: usize = 250;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Request: the value of a key.
    Get = 1,
    /// Request: store a value.
    Put = 2,
    /// Request: remove a key.
    Delete = 3,
    /// Request: a part of a value that is longer than a slot, to be stored (`part.rs`).
    PutPart = 4,
    /// Request: the part of a value that begins somewhere.
    GetPart = 5,
    /// Reply: the value, its flags and expiry.
    Found = 16,
    /// Reply: there is no such key.
    Missing = 17,
    /// Reply: stored.
    Stored = 18,
    /// Reply: removed.
    Deleted = 19,
    /// Reply: the value is longer than a slot's may be; `extra` is its length, bytes.
    TooLarge = 20,
    /// Reply: the cache has no memory.
    NoMemory = 21,
    /// Reply: the request makes no sense.
    Malformed = 22,
    /// Reply: a part was taken, or not, if it is not the next one; `extra` is how many bytes of the
    /// value are there.
    Taken = 23,
    /// Reply: the part of a value, its flags and expiry.
    Part = 24,
    /// Reply: the value lies in another tier, which does not answer.
    Unreachable = 25,
    /// Reply: the long value was given up before.
    Lapsed = 26,
    /// Reply: the value is longer than the cache takes; `extra` is the longest that it takes, and
    /// `flags` the length of the one that was refused, bytes. Of one that comes in parts `flags`
    /// is 0: who sends it knows its length.
    TooLong = 27,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Get,
            2 => Kind::Put,
            3 => Kind::Delete,
            4 => Kind::PutPart,
            5 => Kind::GetPart,
            16 => Kind::Found,
            17 => Kind::Missing,
            18 => Kind::Stored,
            19 => Kind::Deleted,
            20 => Kind::TooLarge,
            21 => Kind::NoMemory,
            22 => Kind::Malformed,
            23 => Kind::Taken,
            24 => Kind::Part,
            25 => Kind::Unreachable,
            26 => Kind::Lapsed,
            27 => Kind::TooLong,
            _ => return None,
        })
    }

    /// Whether a client sends it.
    pub const fn is_request(self) -> bool {
        (self as u8) < Kind::Found as u8
    }
}

/// The number of a client's request of this place in their order, the first of which is 1.
pub const fn request_number(place: u64) -> u64 {
    place << 1
}

/// The number of the reply to the request with this number.
pub const fn reply_number(request: u64) -> u64 {
    request | 1
}

/// The first bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// [`request_number`] or [`reply_number`]: in a slot that holds a request and then its reply,
    /// it grows with each.
    pub number: u64,
    /// What it is.
    pub kind: Kind,
    /// Length of the key, bytes.
    pub key_bytes: u8,
    /// Length of the value, bytes.
    pub value_bytes: u16,
    /// The item's flags.
    pub flags: u32,
    /// Expiry, or the length that was refused.
    pub extra: u64,
}

impl Head {
    /// The head of a message without key and value.
    pub const fn new(number: u64, kind: Kind) -> Head {
        Head { number, kind, key_bytes: 0, value_bytes: 0, flags: 0, extra: 0 }
    }

    /// Its words: number, then kind, lengths and flags, then expiry or length.
    #[inline]
    pub fn words(&self) -> [u64; HEAD_BYTES / 8] {
        let kind = u64::from(self.kind as u8);
        let lengths = (u64::from(self.key_bytes) << 8) | (u64::from(self.value_bytes) << 16);
        [self.number, kind | lengths | (u64::from(self.flags) << 32), self.extra]
    }

    /// Its bytes.
    #[inline]
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The word at `at`.
///
/// # Panics
/// If it is not within `bytes`.
#[inline(always)]
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The lengths of key and value that the first bytes of a message tell, whatever else they say.
#[inline]
pub(super) fn lengths(head: &[u8; HEAD_BYTES]) -> (usize, usize) {
    (head[9].into(), u16::from_le_bytes([head[10], head[11]]).into())
}

/// A message in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its head.
    pub head: Head,
    /// The key; empty in replies.
    pub key: &'a [u8],
    /// The value; empty where there is none.
    pub value: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message in `bytes`, which are exactly its own; `None` if they are no message of these
    /// sizes: lengths that do not add up, no such kind, a request without key or a reply with one,
    /// a value where none belongs.
    #[inline]
    pub fn read(bytes: &'a [u8], geometry: &Geometry) -> Option<Message<'a>> {
        let head_bytes = bytes.first_chunk::<HEAD_BYTES>()?;
        let (key_bytes, value_bytes) = lengths(head_bytes);
        if bytes.len() != HEAD_BYTES + key_bytes + value_bytes {
            return None;
        }
        let word = |at| word(head_bytes, at);
        let head = Head {
            number: word(0),
            kind: Kind::of(head_bytes[8])?,
            key_bytes: head_bytes[9],
            value_bytes: value_bytes as u16,
            flags: (word(8) >> 32) as u32,
            extra: word(16),
        };
        let has_value = match head.kind {
            Kind::Put | Kind::Found | Kind::PutPart | Kind::Part => true,
            Kind::GetPart => value_bytes == PART_HEAD_BYTES,
            _ => false,
        };
        let fits = key_bytes <= KEY_BYTES_MAX
            && value_bytes <= geometry.value_bytes as usize
            && (key_bytes > 0) == head.kind.is_request()
            && (value_bytes == 0 || has_value)
            && head.number > 0;
        let (key, value) = bytes[HEAD_BYTES..].split_at(key_bytes);
        fits.then_some(Message { head, key, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { servers: 1, clients: 1, windows: 4, value_bytes: 1000 };

    fn message(head: Head, key: &[u8], value: &[u8]) -> Vec<u8> {
        let (key_bytes, value_bytes) = (key.len() as u8, value.len() as u16);
        let head = Head { key_bytes, value_bytes, ..head };
        [&head.bytes()[..], key, value].concat()
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let head = Head { flags: 0x8123_4567, extra: u64::MAX, ..Head::new(77, Kind::Put) };
        for (key, value) in [(&b"k"[..], &b""[..]), (&[7; KEY_BYTES_MAX], &[9; 1000])] {
            let bytes = message(head, key, value);
            let read = Message::read(&bytes, &GEOMETRY).unwrap();
            assert_eq!((read.key, read.value), (key, value));
            assert_eq!((read.head.number, read.head.kind), (77, Kind::Put));
            assert_eq!((read.head.flags, read.head.extra), (0x8123_4567, u64::MAX));
        }
        let bytes = message(Head::new(1, Kind::Missing), b"", b"");
        assert_eq!(Message::read(&bytes, &GEOMETRY).unwrap().head.kind, Kind::Missing);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let get = Head::new(1, Kind::Get);
        assert!(Message::read(&message(get, b"k", b""), &GEOMETRY).is_some());
        let mut other_kind = message(get, b"k", b"");
        other_kind[8] = 9;
        let long_key = message(get, &[1; KEY_BYTES_MAX + 1], b"");
        let wrong = [
            other_kind,
            long_key,
            message(get, b"", b""),
            message(get, b"k", b"v"),
            message(Head::new(0, Kind::Get), b"k", b""),
            message(Head::new(1, Kind::Found), b"k", b"v"),
            message(Head::new(1, Kind::Put), b"k", &[0; 1001]),
            message(get, b"k", b"")[..HEAD_BYTES].to_vec(),
            [message(get, b"k", b""), vec![0]].concat(),
            vec![1; HEAD_BYTES - 1],
        ];
        for (number, bytes) in wrong.iter().enumerate() {
            assert_eq!(Message::read(bytes, &GEOMETRY), None, "{number}");
        }
    }
}
