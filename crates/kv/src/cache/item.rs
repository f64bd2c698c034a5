//! What a reader sees of an item, and pins: large values that are sent from the cache's memory
//! after the look-up is over.

use super::Millis;
use super::layout::{Fields, Header, Pos, Slot};
use super::log::Piece;
use super::partition::Partition;
use super::segments::Pins;
use rackpool_core::seam::Mem;
use rackpool_hw::window::Window;
use std::cell::Cell;
use std::sync::Arc;

/// What is known of an item beside key and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The caller's flags.
    pub flags: u32,
    /// Changes at every mutation of the value, never 0.
    pub cas: u64,
    /// When it expires; 0 = never.
    pub expires: Millis,
    /// Length of the value, bytes.
    pub len: u64,
    /// Whether it was read since it was stored, before this look-up.
    pub fetched: bool,
    /// Seconds since it was last read or written, if [`super::Options::keeps_access`]; else since
    /// it was written, give or take the time in which 64 KiB of items were written.
    pub idle_s: u32,
    /// Marked by [`super::Entry::mark`].
    pub stale: bool,
    /// Marked by [`super::Entry::mark`].
    pub won: bool,
}

/// An item under the lock of its partition.
#[derive(Debug)]
pub struct Item<'a> {
    partition: &'a Partition,
    slot_at: u64,
    /// The slot as the look-up found it.
    before: Slot,
    is_told: Cell<bool>,
    header: Header,
    now: Millis,
}

impl<'a> Item<'a> {
    pub(crate) fn new(partition: &'a Partition, slot_at: u64, slot: Slot, now: Millis) -> Item<'a> {
        Item::with_header(partition, slot_at, slot, partition.header(slot.pos()), now)
    }

    /// As [`Item::new`], with the header that was read already.
    #[inline(always)]
    pub(crate) fn with_header(
        partition: &'a Partition,
        slot_at: u64,
        slot: Slot,
        header: Header,
        now: Millis,
    ) -> Item<'a> {
        let is_told = Cell::new(slot.has(Slot::SEEN));
        Item { partition, slot_at, before: slot, is_told, header, now }
    }

    fn pos(&self) -> Pos {
        self.before.pos()
    }

    /// Length of the key, bytes.
    pub fn key_len(&self) -> usize {
        self.header.key_bytes() as usize
    }

    /// Appends the key to `out`.
    pub fn append_key_to(&self, out: &mut Vec<u8>) {
        let at = self.pos().byte() + u64::from(self.header.key_at());
        self.partition.units.append_to(at, u64::from(self.header.key_bytes()), out);
    }

    /// The key.
    pub fn key(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.key_len());
        self.append_key_to(&mut key);
        key
    }

    /// Length of the value, bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.partition.value_bytes(self.pos(), self.header)
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn fields(&self) -> Fields {
        self.partition.fields(self.pos(), self.header)
    }

    /// The caller's flags. Cheaper than [`Item::meta`].
    #[inline]
    pub fn flags(&self) -> u32 {
        if self.header.has(Header::META | Header::EXTRA) { self.fields().flags } else { 0 }
    }

    /// When it expires; 0 = never. Cheaper than [`Item::meta`].
    #[inline]
    pub fn expires(&self) -> Millis {
        if self.header.has(Header::META) { self.fields().expires } else { 0 }
    }

    /// The cas. From now on the item keeps it also where the cache moves it, which costs it 8
    /// bytes then: ask only if somebody is told.
    pub fn cas(&self) -> u64 {
        if !self.is_told.replace(true) {
            // The slot is read again: this look-up has changed it.
            let slot = self.partition.index.slot_at(self.slot_at);
            self.partition.index.replace(self.slot_at, slot.set(Slot::SEEN, true));
        }
        self.partition.cas_of(self.pos(), self.header)
    }

    /// All that is known beside key and value. As [`Item::cas`] for the cas.
    pub fn meta(&self) -> Meta {
        let fields = self.fields();
        let since = match fields.access_s {
            Some(second) => u64::from(second) * 1000,
            None => self.partition.segments.get(self.pos().unit()).opened,
        };
        Meta {
            flags: fields.flags,
            cas: self.cas(),
            expires: fields.expires,
            len: self.len(),
            fetched: self.before.has(Slot::FETCHED),
            idle_s: u32::try_from(self.now.saturating_sub(since) / 1000).unwrap_or(u32::MAX),
            stale: self.before.has(Slot::STALE),
            won: self.before.has(Slot::WON),
        }
    }

    /// Appends the value to `out`, in one copy.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) {
        if !self.header.has(Header::CHAINED) {
            let at = self.pos().byte() + u64::from(self.header.value_at());
            let bytes = u64::from(self.header.value_bytes());
            return self.partition.units.append_to(at, bytes, out);
        }
        for piece in self.partition.pieces(self.pos()) {
            self.partition.units.append_to(piece.at, piece.bytes, out);
        }
    }

    /// Copies bytes of the value from `offset` on; how many there were.
    #[inline]
    pub fn copy_to(&self, offset: u64, out: &mut [u8]) -> usize {
        if self.header.has(Header::CHAINED) {
            return copy_pieces_to(self.partition, self.pos(), offset, out);
        }
        let bytes = u64::from(self.header.value_bytes());
        let count = bytes.saturating_sub(offset).min(out.len() as u64);
        let at = self.pos().byte() + u64::from(self.header.value_at());
        if count > 0 {
            self.partition.units.copy_out(at + offset, &mut out[..count as usize]);
        }
        count as usize
    }

    /// Keeps the value's memory as it is while the caller sends from it, whatever happens to the
    /// item: for large values.
    pub fn pin(&self) -> Pinned {
        let pieces: Vec<Piece> = self.partition.pieces(self.pos()).collect();
        let pins = Arc::clone(&self.partition.segments.pins);
        pieces.iter().for_each(|piece| pins.pin(piece.unit));
        Pinned { units: self.partition.units.clone(), pins, pieces }
    }
}

/// Apart from [`Item`], so that one that is never asked for this need not lie in memory.
fn copy_pieces_to(partition: &Partition, head: Pos, mut offset: u64, out: &mut [u8]) -> usize {
    let mut done = 0;
    for piece in partition.pieces(head) {
        if offset >= piece.bytes {
            offset -= piece.bytes;
            continue;
        }
        let count = (piece.bytes - offset).min((out.len() - done) as u64);
        partition.units.copy_out(piece.at + offset, &mut out[done..][..count as usize]);
        done += count as usize;
        offset = 0;
    }
    done
}

/// A value whose memory stays as it is until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    units: Window,
    pins: Arc<Pins>,
    pieces: Vec<Piece>,
}

impl Pinned {
    /// The value's pieces in order: window, offset in it, bytes; for
    /// [`rackpool_hw::window::Piece::Shared`].
    pub fn pieces(&self) -> impl ExactSizeIterator<Item = (&Window, u64, u64)> {
        self.pieces.iter().map(|piece| (&self.units, piece.at, piece.bytes))
    }

    /// Length of the value, bytes.
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.pieces.iter().for_each(|piece| self.pins.unpin(piece.unit));
    }
}
