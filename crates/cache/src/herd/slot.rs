//! A slot: how a message is published in shared memory and read out of it. Two forms.
//!
//! *Ordered*, where both sides load and store the memory: the message begins at the slot's start,
//! and its first word, the number, is stored last with release order. A reader that loads the
//! number it waits for (acquire) sees the rest.
//!
//! *Sealed*, for requests that come by one RDMA WRITE, with bytes that may become visible in any
//! order: the message ends before the slot's last word, the seal, which holds the message's length
//! and a checksum over length and bytes. A reader that finds the checksum right has the whole
//! message; one that does not looks again later. The receiver clears the seal of what it took.
//!
//! A reader believes nothing: it looks at each word of a head once, checks lengths before it uses
//! them, copies key and value into private memory, and answers whatever it finds with a message,
//! with "malformed", or with nothing.
//!
//! Source: HERD §4.2 (the key word at the slot's end, because its RNIC writes left to right); that
//! order is not architectural (§2), hence the two forms.

use super::geometry::{Geometry, HEAD_BYTES, SEAL_BYTES};
use super::message::{Head, word};
use rackpool_core::seam::Mem;
use rackpool_mem::wait::look_again;
use rackpool_mem::window::Window;
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotFormat {
    /// By a sequence word, in memory that both sides load and store.
    Ordered,
    /// By a seal, in memory that one side writes by one-sided operations.
    Sealed,
}

/// Bits of a seal that are the checksum; the message's length is above.
const CHECK_BITS: u32 = 48;
/// Bytes that are copied before the length is known: a line.
const FIRST_BYTES: usize = 64;

/// What a reader found that was not there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A message with this head: key and value are in the buffer behind the place of a head. It may
    /// still be none.
    Message(Head),
    /// Something was published without a valid length; its number, if it has one.
    Malformed(u64),
}

/// The seal of a message; never 0.
fn seal(message: &[u8]) -> u64 {
    let bytes = message.len() as u64;
    let check = xxh3_64_with_seed(message, bytes) & ((1 << CHECK_BITS) - 1);
    (bytes << CHECK_BITS) | check
}

impl SlotFormat {
    /// Publishes `message` (head, key and value) in the slot at `at`. For a sealed slot in local
    /// memory, the offset and length of what has to be sent with one WRITE; for an ordered one, of
    /// the message.
    ///
    /// # Panics
    /// If the message is shorter than a head or longer than a slot holds.
    #[inline]
    pub fn publish(
        self,
        window: &Window,
        at: u64,
        geometry: &Geometry,
        message: &[u8],
    ) -> (u64, u64) {
        let bytes = message.len();
        assert!((HEAD_BYTES..=geometry.message_bytes()).contains(&bytes), "{bytes} bytes");
        match self {
            SlotFormat::Ordered => {
                window.copy_in(at + HEAD_BYTES as u64, &message[HEAD_BYTES..]);
                publish_head(window, at, &head_of(message));
                (at, bytes as u64)
            }
            SlotFormat::Sealed => {
                let seal_at = at + geometry.slot_bytes() - SEAL_BYTES;
                let start = seal_at - (bytes as u64).next_multiple_of(8);
                window.copy_in(start, message);
                window.store(seal_at, seal(message));
                (start, seal_at + SEAL_BYTES - start)
            }
        }
    }

    /// What was published in the slot at `at` since the message with number `last`, if anything:
    /// copied to `to`. Of a sealed slot also `last` itself, if it was sent again.
    ///
    /// # Panics
    /// If `at` is not where a slot begins, or `to` is shorter than [`Geometry::message_bytes`]
    /// where that matters. In ordered form `to` must not be longer than a slot: what is said to be
    /// as long as `to` is read.
    #[inline(always)]
    pub fn read(
        self,
        window: &Window,
        at: u64,
        geometry: &Geometry,
        last: u64,
        to: &mut [u8],
    ) -> Option<Read> {
        match self {
            SlotFormat::Ordered => read_ordered(window, at, last, to),
            SlotFormat::Sealed => {
                read_sealed(window, at, geometry, &mut to[..geometry.message_bytes()])
            }
        }
    }

    /// Whether something was published in the slot at `at` since the message with number `last`;
    /// for a sealed slot, whether it may have been.
    #[inline]
    pub fn is_published(self, window: &Window, at: u64, geometry: &Geometry, last: u64) -> bool {
        match self {
            SlotFormat::Ordered => window.load(at) > last,
            SlotFormat::Sealed => window.load(at + geometry.slot_bytes() - SEAL_BYTES) != 0,
        }
    }
}

/// Publishes a message in the ordered slot at `at` out of its parts, without putting it together
/// before.
#[inline(always)]
pub(super) fn publish_parts(window: &Window, at: u64, head: &Head, key: &[u8], value: &[u8]) {
    let (bare, key_at) = (window.bare(), at + HEAD_BYTES as u64);
    bare.copy_in(key_at, key);
    if !value.is_empty() {
        bare.copy_in(key_at + key.len() as u64, value);
    }
    publish_head(window, at, head);
}

/// Publishes a message in the ordered slot at `at`; the rest lies behind the head already.
#[inline(always)]
pub(super) fn publish_head(window: &Window, at: u64, head: &Head) {
    let line = window.bare().line_to_write(at);
    let [number, about, extra] = head.words();
    line.store(1, about);
    line.store(2, extra);
    // Pairs with the load in slot.rs::read_ordered.
    line.store(0, number);
}

/// The head in the ordered slot at `at`, if it was published since that with number `last`. What
/// stands behind it, if that is so long as it says, may be read now.
#[inline(always)]
pub(super) fn read_head(window: &Window, at: u64, last: u64) -> Option<Head> {
    let line = window.bare().line(at);
    // Pairs with the store in slot.rs::publish_head. A client that changes what is read meanwhile
    // breaks the protocol: each word of the head is looked at once.
    let number = line.load(0);
    (number > last).then(|| Head::of_words([number, line.load(1), line.load(2)]))
}

/// As [`read_head`], looking so many times.
#[inline(always)]
pub(super) fn await_head(window: &Window, at: u64, last: u64, looks: u32) -> Option<Head> {
    for _ in 1..looks {
        let head = read_head(window, at, last);
        if head.is_some() {
            return head;
        }
        look_again();
    }
    read_head(window, at, last)
}

#[inline(always)]
fn read_ordered(window: &Window, at: u64, last: u64, to: &mut [u8]) -> Option<Read> {
    let head = read_head(window, at, last)?;
    Some(match copy_behind(window, at, &head, to) {
        true => Read::Message(head),
        false => Read::Malformed(head.number),
    })
}

/// Copies the message in the ordered slot at `at` to `to`, as long as `head` says that it is; not
/// if that is longer than `to`.
#[inline(always)]
pub(super) fn copy_behind(window: &Window, at: u64, head: &Head, to: &mut [u8]) -> bool {
    let window = window.bare();
    let bytes = head.message_bytes();
    let (first, rest) = to.split_at_mut(FIRST_BYTES);
    if bytes > FIRST_BYTES + rest.len() {
        return false;
    }
    window.copy_out(at, first);
    if bytes > FIRST_BYTES {
        window.copy_out(at + FIRST_BYTES as u64, &mut rest[..bytes - FIRST_BYTES]);
    }
    true
}

/// The head that a message in private memory begins with.
///
/// # Panics
/// If it is shorter.
fn head_of(message: &[u8]) -> Head {
    Head::of_words([word(message, 0), word(message, 8), word(message, 16)])
}

/// Seals a message into private bytes of a slot; where what one WRITE has to carry begins. It ends
/// with the slot.
///
/// # Panics
/// If the slot is too short.
pub(super) fn seal_into(slot: &mut [u8], head: &Head, key: &[u8], value: &[u8]) -> usize {
    let seal_at = slot.len() - SEAL_BYTES as usize;
    let bytes = HEAD_BYTES + key.len() + value.len();
    let start = seal_at - bytes.next_multiple_of(8);
    let message = &mut slot[start..start + bytes];
    message[..HEAD_BYTES].copy_from_slice(&head.bytes());
    let (key_to, value_to) = message[HEAD_BYTES..].split_at_mut(key.len());
    key_to.copy_from_slice(key);
    value_to.copy_from_slice(value);
    let seal = seal(message);
    slot[seal_at..].copy_from_slice(&seal.to_le_bytes());
    start
}

#[inline(never)]
fn read_sealed(window: &Window, at: u64, geometry: &Geometry, to: &mut [u8]) -> Option<Read> {
    let seal_at = at + geometry.slot_bytes() - SEAL_BYTES;
    let found = window.load(seal_at);
    if found == 0 {
        return None;
    }
    let bytes = (found >> CHECK_BITS) as usize;
    if !(HEAD_BYTES..=to.len()).contains(&bytes) {
        window.store(seal_at, 0);
        return Some(Read::Malformed(0));
    }
    window.copy_out(seal_at - (bytes as u64).next_multiple_of(8), &mut to[..bytes]);
    if seal(&to[..bytes]) != found {
        return None;
    }
    // Not if the next message has come meanwhile, as it may behind one that was sent twice.
    let _ = window.compare_exchange(seal_at, found, 0);
    let head = head_of(to);
    Some(match head.message_bytes() == bytes {
        true => Read::Message(head),
        false => Read::Malformed(head.number),
    })
}

#[cfg(test)]
mod tests {
    use super::super::message::{Head, Message, MessageKind};
    use super::*;

    const GEOMETRY: Geometry = Geometry { servers: 1, clients: 1, windows: 2, value_bytes: 1000 };

    fn put(number: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
        let head =
            Head::new(number, MessageKind::Put).with_lengths(key.len() as u8, value.len() as u16);
        [&head.bytes()[..], key, value].concat()
    }

    #[test]
    fn every_length_goes_through_a_slot_of_either_form() {
        let window = Window::heap(GEOMETRY.bytes());
        let mut to = vec![0; GEOMETRY.message_bytes()];
        for form in [SlotFormat::Ordered, SlotFormat::Sealed] {
            window.zero(0, GEOMETRY.bytes());
            let at = GEOMETRY.offset(0, 0, 1);
            for (number, bytes) in (1..).zip((0..=1000).chain([0, 1000])) {
                let key = vec![number as u8 | 1; 1 + bytes % 250];
                let message = put(number, &key, &vec![number as u8; bytes]);
                form.publish(&window, at, &GEOMETRY, &message);
                assert!(form.is_published(&window, at, &GEOMETRY, number - 1));
                let read = form.read(&window, at, &GEOMETRY, number - 1, &mut to);
                let head = head_of(&message);
                assert_eq!(read, Some(Read::Message(head)), "{form:?} {bytes}");
                assert_eq!(to[HEAD_BYTES..message.len()], message[HEAD_BYTES..]);
                assert!(Message::of(head, &to[HEAD_BYTES..], &GEOMETRY).is_some());
                assert_eq!(form.read(&window, at, &GEOMETRY, number, &mut to), None);
            }
            let other = GEOMETRY.offset(0, 0, 0);
            assert_eq!(form.read(&window, other, &GEOMETRY, 0, &mut to), None, "the neighbour");
        }
    }

    /// A WRITE with bytes that become visible in any order: at no moment but the last is it a
    /// message.
    #[test]
    fn a_sealed_message_is_none_until_its_last_word_has_come() {
        let local = Window::heap(GEOMETRY.bytes());
        let remote = Window::heap(GEOMETRY.bytes());
        let mut to = vec![0; GEOMETRY.message_bytes()];
        for number in 1..200u64 {
            let value = vec![number as u8; (number as usize * 37) % 1000];
            let message = put(number, b"colour", &value);
            let (start, bytes) = SlotFormat::Sealed.publish(&local, 0, &GEOMETRY, &message);
            let mut words: Vec<u64> = (0..bytes / 8).map(|word| start + 8 * word).collect();
            // A rotation that begins anywhere: the seal comes first, last or in between.
            words.rotate_left((number as usize * 13) % (bytes as usize / 8));
            for at in &words {
                remote.store(*at, local.load(*at));
                let is_whole = words.iter().all(|at| local.load(*at) == remote.load(*at));
                let read = SlotFormat::Sealed.read(&remote, 0, &GEOMETRY, number - 1, &mut to);
                assert_eq!(read.is_some(), is_whole, "{number}");
                if is_whole {
                    assert_eq!(to[HEAD_BYTES..message.len()], message[HEAD_BYTES..]);
                    break;
                }
            }
            assert_eq!(remote.load(GEOMETRY.slot_bytes() - SEAL_BYTES), 0, "taken");
        }
    }

    #[test]
    fn lengths_that_no_slot_has_are_malformed() {
        let window = Window::heap(GEOMETRY.bytes());
        let mut to = vec![0; GEOMETRY.message_bytes()];
        let head = Head::new(9, MessageKind::Put).with_lengths(250, u16::MAX);
        window.copy_in(0, &head.bytes());
        let read = SlotFormat::Ordered.read(&window, 0, &GEOMETRY, 8, &mut to);
        assert_eq!(read, Some(Read::Malformed(9)));
        for bytes in [0, HEAD_BYTES - 1, GEOMETRY.message_bytes() + 1, 0xffff] {
            let seal_at = GEOMETRY.slot_bytes() - SEAL_BYTES;
            window.store(seal_at, ((bytes as u64) << CHECK_BITS) | 1);
            let read = SlotFormat::Sealed.read(&window, 0, &GEOMETRY, 0, &mut to);
            assert_eq!(read, Some(Read::Malformed(0)), "{bytes}");
            assert_eq!(window.load(seal_at), 0, "it is looked at once");
        }
        // A seal that is right, over a head with another length.
        let message = Head::new(9, MessageKind::Put).with_lengths(1, 1).bytes();
        SlotFormat::Sealed.publish(&window, 0, &GEOMETRY, &message);
        let read = SlotFormat::Sealed.read(&window, 0, &GEOMETRY, 0, &mut to);
        assert_eq!(read, Some(Read::Malformed(9)));
    }
}
