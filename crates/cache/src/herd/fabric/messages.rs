//! What the two ends say by SEND. The client: a hello first (`handshake.rs`), then only doorbells.
//! The server: a welcome with the client's frame behind it, then replies.
//!
//! Everything is little-endian. Pure functions; what the other end sent is checked here.

use super::super::geometry::Geometry;
use super::super::handshake::Welcome;
use super::super::message::{Head, MessageKind, reply_number, request_number};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The client's frame among the target's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Grant {
    /// Where it begins in the target's pages, bytes.
    pub offset: u64,
    /// Its generation: the key of every WRITE.
    pub key: u64,
}
const _: () = assert!(size_of::<Grant>() == 16);

/// A welcome, and the grant behind it if there is one.
pub(super) fn split_welcome(message: &[u8]) -> (&[u8], Option<Grant>) {
    let at = message.len().min(size_of::<Welcome>());
    let (welcome, rest) = message.split_at(at);
    (welcome, Grant::read_from_bytes(rest).ok())
}

/// Bytes of a doorbell: the number of the server thread.
pub(super) const BELL_BYTES: usize = 4;

/// The server thread that a doorbell is for.
pub(super) fn read_bell(message: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(message.try_into().ok()?))
}

/// Bytes of a reply's head without what may be missing.
pub(super) const REPLY_BYTES: usize = 8;
/// Bits of a reply's second byte: the thread watches the client; flags follow; an expiry, or a
/// length, follows.
const WATCHED: u8 = 1;
const FLAGS: u8 = 2;
const EXTRA: u8 = 4;

/// A reply as it travels, before its value:
///
/// | bytes | content |
/// |---|---|
/// | 0 | kind; 0 if it only says that the thread does not watch the client any more |
/// | 1 | what follows, and whether the thread watches the client |
/// | 2 | server thread |
/// | 3 | window |
/// | 4 | low half of the request's place among the client's |
/// | 8 | the item's flags, 4 bytes, if there are any; then its expiry, 8 bytes, likewise |
///
/// A packet, or a connection, brings it whole or not at all, so it has no seal; it is as short as
/// can be, since cards take messages by lines: a value of 52 bytes goes in two, as HERD's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FabricReply {
    pub server: u32,
    /// The window that is answered.
    pub window: u32,
    /// Whether the thread watches the client's slots.
    pub is_watched: bool,
    /// The reply's head; `None` if it is none. Its number is the low half alone once it was read.
    pub head: Option<Head>,
}

impl FabricReply {
    /// Appends it to `to`; the value is to follow.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let [number, about, extra] = self.head.map_or([0; 3], |head| head.words());
        let flags = self.head.map_or(0, |head| head.flags());
        let bits = [(self.is_watched, WATCHED), (flags != 0, FLAGS), (extra != 0, EXTRA)];
        let bits = bits.iter().map(|(is_set, bit)| u8::from(*is_set) * bit).sum();
        to.extend_from_slice(&[about as u8, bits, self.server as u8, self.window as u8]);
        to.extend_from_slice(&((number >> 1) as u32).to_le_bytes());
        if flags != 0 {
            to.extend_from_slice(&flags.to_le_bytes());
        }
        if extra != 0 {
            to.extend_from_slice(&extra.to_le_bytes());
        }
    }

    /// The reply of a message, if it is one of so many threads and windows with a value of at most
    /// `value_bytes`, and its value.
    pub(super) fn read<'a>(
        message: &'a [u8],
        geometry: &Geometry,
    ) -> Option<(FabricReply, &'a [u8])> {
        let ([kind, bits, server, window, place @ ..], mut rest) =
            message.split_first_chunk::<REPLY_BYTES>()?;
        let (server, window) = (u32::from(*server), u32::from(*window));
        let (mut flags, mut extra) = (0, 0);
        if bits & FLAGS != 0 {
            let (bytes, after) = rest.split_first_chunk()?;
            (flags, rest) = (u32::from_le_bytes(*bytes), after);
        }
        if bits & EXTRA != 0 {
            let (bytes, after) = rest.split_first_chunk()?;
            (extra, rest) = (u64::from_le_bytes(*bytes), after);
        }
        let is_known = server < geometry.servers
            && window < geometry.windows
            && rest.len() <= geometry.value_bytes as usize
            && bits & !(WATCHED | FLAGS | EXTRA) == 0;
        let head = match kind {
            0 if bits & !WATCHED == 0 && rest.is_empty() => None,
            kind => {
                let kind = MessageKind::of(*kind).filter(|kind| !kind.is_request())?;
                let number = reply_number(request_number(u32::from_le_bytes(*place).into()));
                let head = Head::new(number, kind).with_lengths(0, rest.len() as u16);
                Some(head.with_flags(flags).with_extra(extra))
            }
        };
        let is_watched = bits & WATCHED != 0;
        is_known.then_some((FabricReply { server, window, is_watched, head }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_core::seam::Verb;

    const GEOMETRY: Geometry = Geometry { servers: 4, clients: 1, windows: 16, value_bytes: 1000 };

    fn message_of(reply: FabricReply, value: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        reply.write(&mut message);
        [&message[..], value].concat()
    }

    #[test]
    fn a_reply_is_read_as_it_was_written_and_what_is_none_is_refused() {
        let head =
            Head::new(reply_number(request_number(7)), MessageKind::Found).with_lengths(0, 5);
        for (flags, extra, bytes) in [(0, 0, 8), (9, 0, 12), (0, 9, 16), (u32::MAX, u64::MAX, 20)] {
            let head = Some(head.with_flags(flags).with_extra(extra));
            let reply = FabricReply { server: 3, window: 15, is_watched: flags == 9, head };
            let message = message_of(reply, b"value");
            assert_eq!(message.len(), bytes + 5);
            assert_eq!(FabricReply::read(&message, &GEOMETRY), Some((reply, &b"value"[..])));
            for (index, by) in [(0, 1), (0, 20), (1, 8), (2, 1), (3, 1)] {
                let mut other = message.clone();
                other[index] = other[index].wrapping_add(by);
                let read = FabricReply::read(&other, &GEOMETRY);
                // One more is another reply of a kind, or a thread and a window that are not.
                assert!(read.is_none() || (index, by) == (0, 1), "{index}, {by}");
            }
            for short in 0..bytes {
                assert_eq!(
                    FabricReply::read(&message[..short], &GEOMETRY),
                    None,
                    "{short} of {bytes}"
                );
            }
            assert!(FabricReply::read(&message_of(reply, &[0; 1000]), &GEOMETRY).is_some());
            assert!(FabricReply::read(&message_of(reply, &[0; 1001]), &GEOMETRY).is_none());
        }
        let alone = FabricReply { server: 1, window: 0, is_watched: false, head: None };
        let message = message_of(alone, b"");
        assert_eq!(FabricReply::read(&message, &GEOMETRY), Some((alone, &b""[..])));
        assert_eq!(FabricReply::read(&message_of(alone, b"x"), &GEOMETRY), None);
    }

    #[test]
    fn whatever_a_message_is_it_is_a_reply_or_refused() {
        let mut word = 0x9e37_79b9_7f4a_7c15u64;
        let (mut message, mut replies) = (Vec::new(), 0);
        for _ in 0..200_000 {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            message.clear();
            let [kind, bits, server, window, ..] = word.to_be_bytes();
            message.extend_from_slice(&[kind % 30, bits % 9, server % 5, window % 20]);
            message.extend_from_slice(&word.to_le_bytes().repeat(1 + (word >> 56) as usize % 130));
            message.truncate((word >> 24) as usize % 1040);
            if let Some((reply, value)) = FabricReply::read(&message, &GEOMETRY) {
                replies += 1;
                assert_eq!(reply.head.map_or(0, |head| head.value_bytes()), value.len());
                assert!(reply.server < 4 && reply.window < 16 && message.ends_with(value));
            }
        }
        assert!(replies > 1000, "{replies}");
    }

    /// A card takes a datagram by lines of 64 bytes; HERD's 26 million answers a second are two
    /// each.
    #[test]
    fn a_reply_of_a_short_value_is_two_lines_as_herds() {
        let lines = |value: &[u8]| {
            let head = Head::new(reply_number(request_number(u64::MAX >> 1)), MessageKind::Found);
            let head = Some(head.with_lengths(0, value.len() as u16));
            let message =
                message_of(FabricReply { server: 3, window: 15, is_watched: true, head }, value);
            rackpool_sim::net::request_lines(Verb::Send, true, Some(message.len() as u64), 1)
        };
        assert_eq!([lines(&[0; 32]), lines(&[0; 52]), lines(&[0; 53])], [2, 2, 3]);
    }

    #[test]
    fn a_welcome_without_a_whole_grant_grants_nothing() {
        let grant = Grant { offset: 4096, key: 7 };
        let welcome = vec![9; size_of::<Welcome>()];
        let message = [&welcome[..], grant.as_bytes()].concat();
        assert_eq!(split_welcome(&message), (&welcome[..], Some(grant)));
        assert_eq!(split_welcome(&message[..message.len() - 1]).1, None);
        assert_eq!(split_welcome(&welcome).1, None);
        assert_eq!(split_welcome(b"abc"), (&b"abc"[..], None));
        assert_eq!(read_bell(&7u32.to_le_bytes()), Some(7));
        assert_eq!(read_bell(b"12345"), None);
    }
}
