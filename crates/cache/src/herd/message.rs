//! What is in a slot: a head, a key, a value. Requests and replies have the same head.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | twice the request's place among the client's, from 1 on; of a reply one more |
//! | 8 | kind; of a request also 128 if its reply is to come apart ([`Head::apart`]) |
//! | 9 | bytes of the key; 0 in replies |
//! | 10 | bytes of the value, 2 bytes |
//! | 12 | the item's flags, 4 bytes; in a refusal, a length in bytes |
//! | 16 | expiry, milliseconds since the epoch, 0 = never; in a refusal, a length in bytes |
//! | 24 | key, then value |
//!
//! Everything is little-endian. Pure functions over private bytes: a reader of shared memory copies
//! first (`slot.rs`). Called by engine and client.

use super::geometry::{Geometry, HEAD_BYTES, KEY_BYTES_MAX};

/// What stands before a part of a long value, bytes.
pub(super) const PART_HEAD_BYTES: usize = 24;

/// Of a head's second word: [`Head::apart`].
const APART: u64 = 1 << 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MessageKind {
    /// Request: the value of a key.
    Get = 1,
    Put = 2,
    Delete = 3,
    /// Request: a part of a value that is longer than a slot, to be stored (`part.rs`).
    PutPart = 4,
    /// Request: the part of a value that begins somewhere.
    GetPart = 5,
    /// Reply: the value, its flags and expiry.
    Found = 16,
    /// Reply: there is no such key.
    Missing = 17,
    Stored = 18,
    Deleted = 19,
    /// Reply: the value is longer than a slot's may be; `extra` is its length, bytes.
    TooLarge = 20,
    /// Reply: the cache has no memory.
    NoMemory = 21,
    /// Reply: the request is malformed.
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
    /// `flags` the length of the one that was refused, bytes. Of one that comes in parts `flags` is
    /// 0: its sender knows its length.
    TooLong = 27,
}

impl MessageKind {
    pub(super) fn of(byte: u8) -> Option<MessageKind> {
        Some(match byte {
            1 => MessageKind::Get,
            2 => MessageKind::Put,
            3 => MessageKind::Delete,
            4 => MessageKind::PutPart,
            5 => MessageKind::GetPart,
            16 => MessageKind::Found,
            17 => MessageKind::Missing,
            18 => MessageKind::Stored,
            19 => MessageKind::Deleted,
            20 => MessageKind::TooLarge,
            21 => MessageKind::NoMemory,
            22 => MessageKind::Malformed,
            23 => MessageKind::Taken,
            24 => MessageKind::Part,
            25 => MessageKind::Unreachable,
            26 => MessageKind::Lapsed,
            27 => MessageKind::TooLong,
            _ => return None,
        })
    }

    /// Whether a client sends it.
    pub const fn is_request(self) -> bool {
        (self as u8) < MessageKind::Found as u8
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

/// The first bytes of a message, as they lie in a slot: words, so that they go from slot to slot
/// through registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// [`request_number`] or [`reply_number`]: in a slot that holds a request and then its reply,
    /// it grows with each.
    pub number: u64,
    about: u64,
    /// Expiry, or the length that was refused.
    pub extra: u64,
}

impl Head {
    /// The head of a message without key and value.
    #[inline(always)]
    pub const fn new(number: u64, kind: MessageKind) -> Head {
        Head { number, about: kind as u64, extra: 0 }
    }

    /// The same for a key and a value of so many bytes. A head is given its lengths once.
    #[inline(always)]
    pub const fn with_lengths(self, key_bytes: u8, value_bytes: u16) -> Head {
        let lengths = (key_bytes as u64) << 8 | (value_bytes as u64) << 16;
        Head { about: self.about | lengths, ..self }
    }

    /// The same as a request with its reply to be put into the slot that the client has for it
    /// beside those of its windows, where it has one.
    #[inline(always)]
    pub const fn apart(self, is_apart: bool) -> Head {
        Head { about: self.about | (is_apart as u64 * APART), ..self }
    }

    #[inline(always)]
    pub const fn is_apart(&self) -> bool {
        self.about & APART != 0
    }

    /// The same with the flags of the item, or a length. A head is given its flags once.
    #[inline(always)]
    pub const fn with_flags(self, flags: u32) -> Head {
        Head { about: self.about | (flags as u64) << 32, ..self }
    }

    /// The same with an expiry, or a length.
    #[inline(always)]
    pub const fn with_extra(self, extra: u64) -> Head {
        Head { extra, ..self }
    }

    /// The head of these words, which may be anything.
    #[inline(always)]
    pub const fn of_words([number, about, extra]: [u64; HEAD_BYTES / 8]) -> Head {
        Head { number, about, extra }
    }

    /// Its words: number, then kind, lengths and flags, then expiry or length.
    #[inline(always)]
    pub const fn words(&self) -> [u64; HEAD_BYTES / 8] {
        [self.number, self.about, self.extra]
    }

    #[inline]
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What the message is, if it says so.
    #[inline(always)]
    pub fn kind(&self) -> Option<MessageKind> {
        MessageKind::of((self.about & !APART) as u8)
    }

    /// What the message is, if its head is that of one of these sizes: not for lengths beyond them,
    /// no such kind, a request without key or a reply with one, a value where none belongs.
    #[inline(always)]
    pub fn checked(&self, geometry: &Geometry) -> Option<MessageKind> {
        let kind = self.kind()?;
        let (key_bytes, value_bytes) = (self.key_bytes(), self.value_bytes());
        let may_have_value = match kind {
            MessageKind::Put | MessageKind::Found | MessageKind::PutPart | MessageKind::Part => {
                true
            }
            MessageKind::GetPart => value_bytes == PART_HEAD_BYTES,
            _ => false,
        };
        // Without branches: this is before every request and every answer.
        let fits = (key_bytes <= KEY_BYTES_MAX)
            & (value_bytes <= geometry.value_bytes as usize)
            & ((key_bytes > 0) == kind.is_request())
            & ((value_bytes == 0) | may_have_value)
            & (kind.is_request() | !self.is_apart())
            & (self.number > 0);
        fits.then_some(kind)
    }

    /// Whether it is a look-up's, and [`Head::checked`] but for its number: by two comparisons.
    #[inline(always)]
    pub const fn is_get(&self) -> bool {
        // Kind and the value's length, then the key's.
        self.about & 0xffff_007f == MessageKind::Get as u64
            && self.key_bytes().wrapping_sub(1) < KEY_BYTES_MAX
    }

    /// Whether it is that of an answer with a value, and [`Head::checked`] but for its number.
    #[inline(always)]
    pub const fn is_found(&self, geometry: &Geometry) -> bool {
        // Kind and the key's length, then the value's.
        self.about & 0xffff == MessageKind::Found as u64
            && self.value_bytes() <= geometry.value_bytes as usize
    }

    #[inline(always)]
    pub const fn key_bytes(&self) -> usize {
        (self.about >> 8) as u8 as usize
    }

    #[inline(always)]
    pub const fn value_bytes(&self) -> usize {
        (self.about >> 16) as u16 as usize
    }

    #[inline(always)]
    pub const fn message_bytes(&self) -> usize {
        HEAD_BYTES + self.key_bytes() + self.value_bytes()
    }

    /// The item's flags; in a refusal, a length in bytes.
    #[inline(always)]
    pub const fn flags(&self) -> u32 {
        (self.about >> 32) as u32
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

/// A message in private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub head: Head,
    /// What it is: as the head says.
    pub kind: MessageKind,
    /// The key; empty in replies.
    pub key: &'a [u8],
    /// The value; empty where there is none.
    pub value: &'a [u8],
}

impl<'a> Message<'a> {
    /// The message of this head with key and value at the begin of `body`; `None` if that is none:
    /// as for [`Head::checked`], or `body` is too short.
    #[inline(always)]
    pub fn of(head: Head, body: &'a [u8], geometry: &Geometry) -> Option<Message<'a>> {
        let kind = head.checked(geometry)?;
        let (key, rest) = body.split_at_checked(head.key_bytes())?;
        let value = rest.get(..head.value_bytes())?;
        Some(Message { head, kind, key, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { servers: 1, clients: 1, windows: 4, value_bytes: 1000 };

    fn of(head: Head, key: &[u8], value: &[u8]) -> Option<(Head, MessageKind, Vec<u8>, Vec<u8>)> {
        let head = head.with_lengths(key.len() as u8, value.len() as u16);
        let body = [key, value, &[7; 3]].concat();
        let message = Message::of(head, &body, &GEOMETRY)?;
        Some((message.head, message.kind, message.key.to_vec(), message.value.to_vec()))
    }

    #[test]
    fn a_head_says_what_it_was_made_of() {
        let head = Head::new(77, MessageKind::Put).with_lengths(250, 1000).with_flags(0x8123_4567);
        let head = head.with_extra(u64::MAX);
        assert_eq!((head.number, head.kind()), (77, Some(MessageKind::Put)));
        assert_eq!((head.key_bytes(), head.value_bytes(), head.flags()), (250, 1000, 0x8123_4567));
        assert_eq!((head.extra, head.message_bytes()), (u64::MAX, 1274));
        assert_eq!(Head::of_words(head.words()), head);
        let layout = [77, 0, 0, 0, 0, 0, 0, 0, 2, 250, 0xe8, 3, 0x67, 0x45, 0x23, 0x81];
        assert_eq!(head.bytes(), [&layout[..], &[0xff; 8]].concat()[..]);
    }

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let head = Head::new(77, MessageKind::Put).with_flags(0x8123_4567).with_extra(u64::MAX);
        for (key, value) in [(&b"k"[..], &b""[..]), (&[7; KEY_BYTES_MAX], &[9; 1000])] {
            let read = of(head, key, value).unwrap();
            assert_eq!((&read.2[..], &read.3[..], read.1), (key, value, MessageKind::Put));
            assert_eq!((read.0.number, read.0.flags(), read.0.extra), (77, 0x8123_4567, u64::MAX));
        }
        assert_eq!(
            of(Head::new(1, MessageKind::Missing), b"", b"").unwrap().1,
            MessageKind::Missing
        );
    }

    #[test]
    fn what_is_recognized_at_once_is_what_the_check_says() {
        let (mut gets, mut founds) = (0, 0);
        for kind in 0..=255u64 {
            for key_bytes in [0, 1, 250, 251, 255] {
                for value_bytes in [0, 1, 256, 1000, 1001, 65535u64] {
                    let about = kind | key_bytes << 8 | value_bytes << 16 | 0x8123_4567 << 32;
                    let head = Head::of_words([9, about, 5]);
                    let checked = head.checked(&GEOMETRY);
                    assert_eq!(head.is_get(), checked == Some(MessageKind::Get), "{head:?}");
                    assert_eq!(
                        head.is_found(&GEOMETRY),
                        checked == Some(MessageKind::Found),
                        "{head:?}"
                    );
                    gets += u32::from(head.is_get());
                    founds += u32::from(head.is_found(&GEOMETRY));
                }
            }
        }
        // Requests with replies that are to come apart, and others; lengths that are allowed.
        assert_eq!((gets, founds), (2 * 2, 4));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let get = Head::new(1, MessageKind::Get);
        assert!(of(get, b"k", b"").is_some());
        assert_eq!(of(get.apart(true), b"k", b"").unwrap().1, MessageKind::Get);
        assert!(get.apart(true).is_apart() && !get.apart(false).is_apart());
        let [number, about, extra] = get.words();
        let other_kind = Head::of_words([number, about & !0xff | 9, extra]);
        let wrong = [
            of(other_kind, b"k", b""),
            of(get, &[1; KEY_BYTES_MAX + 1], b""),
            of(get, b"", b""),
            of(get, b"k", b"v"),
            of(Head::new(0, MessageKind::Get), b"k", b""),
            of(Head::new(1, MessageKind::Found), b"k", b"v"),
            of(Head::new(1, MessageKind::Put), b"k", &[0; 1001]),
            of(Head::new(1, MessageKind::Found).apart(true), b"", b"v"),
        ];
        assert_eq!(wrong, [const { None }; 8]);
        let (put, body) = (Head::new(1, MessageKind::Put).with_lengths(3, 4), [0; 7]);
        assert!(Message::of(put, &body, &GEOMETRY).is_some());
        for short in 0..7 {
            assert_eq!(Message::of(put, &body[..short], &GEOMETRY), None, "{short} bytes");
        }
    }
}
