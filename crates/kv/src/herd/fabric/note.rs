//! What the two ends say by SEND. The client: a hello first (`welcome.rs`), then only doorbells.
//! The server: a welcome with the client's frame behind it, then a tag before each reply, or alone.
//!
//! Everything is little-endian. Pure functions; what the other end sent is checked here.

use super::super::welcome::Welcome;
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

/// Bytes of a tag.
pub(super) const TAG_BYTES: usize = 8;
/// Bit of a tag: the thread watches the client.
const WATCHED: u64 = 1 << 32;

/// What stands before a reply. Without a reply behind it, it says that the thread does not watch
/// the client any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// The thread.
    pub server: u32,
    /// The window that is answered.
    pub window: u32,
    /// Whether the thread watches the client's slots.
    pub is_watched: bool,
}

impl Tag {
    pub(super) fn bytes(&self) -> [u8; TAG_BYTES] {
        let places = u64::from(self.server as u16) | u64::from(self.window as u16) << 16;
        (places | if self.is_watched { WATCHED } else { 0 }).to_le_bytes()
    }

    /// The tag of a message, if it is one of so many threads and windows, and what is behind it.
    pub(super) fn read(message: &[u8], servers: u32, windows: u32) -> Option<(Tag, &[u8])> {
        let (tag, rest) = message.split_first_chunk::<TAG_BYTES>()?;
        let word = u64::from_le_bytes(*tag);
        let server = word as u16 as u32;
        let window = (word >> 16) as u16 as u32;
        let is_watched = word & WATCHED != 0;
        let is_known = server < servers && window < windows && word >> 33 == 0;
        is_known.then_some((Tag { server, window, is_watched }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_as_it_was_written_and_another_is_refused() {
        let tag = Tag { server: 3, window: 15, is_watched: true };
        let message = [&tag.bytes()[..], b"reply"].concat();
        assert_eq!(Tag::read(&message, 4, 16), Some((tag, &b"reply"[..])));
        assert_eq!(Tag::read(&message, 3, 16), None);
        assert_eq!(Tag::read(&message, 4, 15), None);
        assert_eq!(Tag::read(&message[..7], 4, 16), None);
        let mut other = message.clone();
        other[5] = 1;
        assert_eq!(Tag::read(&other, 4, 16), None);
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
