//! What a reader sees of an item (the item itself under the lock, or a copy), and pins: large
//! values that are sent from the cache's memory after the look-up is over.

use super::draft::{Piece, fields_at};
use super::emulated::{INSTRUCTIONS_AHEAD, instructions_of};
use super::error::Result;
use super::layout::{Fields, Header, Pos, Slot};
use super::partition::{Found, Partition};
use super::segments::Pins;
use super::tier::FarValue;
use super::{CHUNK_BYTES, Millis};
use rackpool_core::seam::Mem;
use rackpool_mem::window::{self, Bare, Window};
use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

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

/// An item: under the lock of its partition, or a copy of it.
#[derive(Debug)]
pub struct Item<'a> {
    units: Bare<'a>,
    /// Where it begins there, bytes.
    at: u64,
    /// Where its value does, if that stands behind its key.
    value_at: u64,
    /// The slot as the look-up found it.
    before: Slot,
    is_told: Cell<bool>,
    header: Header,
    now: Millis,
    source: Source<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Source<'a> {
    /// It is in this partition, which is locked; its slot is there.
    Locked(&'a Partition, u64),
    Copied(&'a Origin<'a>),
}

#[derive(Debug)]
pub(crate) struct Origin<'a> {
    pub partition: &'a Mutex<Partition>,
    pub hash: u64,
    pub key: &'a [u8],
    /// What a caller was told of it, once it has asked.
    pub told: Cell<Option<Told>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    cas: u64,
    /// When it was last used, or came.
    since: Millis,
}

impl<'a> Item<'a> {
    pub(crate) fn new(partition: &'a Partition, found: Found, now: Millis) -> Item<'a> {
        let (units, header) = (partition.units.bare(), partition.header(found.1.pos()));
        Item::plain(partition, units, found, header, header.value_at(), now)
    }

    /// As [`Item::new`], with what the caller knows already: the partition's units, the header, and
    /// where the value lies.
    #[inline(always)]
    pub(crate) fn plain(
        partition: &'a Partition,
        units: Bare<'a>,
        found: Found,
        header: Header,
        value_at: u32,
        now: Millis,
    ) -> Item<'a> {
        let (slot_at, slot) = found;
        let is_told = Cell::new(slot.has(Slot::SEEN));
        let (at, source) = (slot.pos().byte(), Source::Locked(partition, slot_at));
        let value_at = at + u64::from(value_at);
        Item { units, at, value_at, before: slot, is_told, header, now, source }
    }

    /// A copy that begins at the start of `copy`.
    #[inline(always)]
    pub(crate) fn copied(
        copy: Bare<'a>,
        before: Slot,
        header: Header,
        origin: &'a Origin<'a>,
        now: Millis,
    ) -> Item<'a> {
        let (is_told, source) = (Cell::new(false), Source::Copied(origin));
        let value_at = header.value_at().into();
        Item { units: copy, at: 0, value_at, before, is_told, header, now, source }
    }

    pub(super) fn pos(&self) -> Pos {
        self.before.pos()
    }

    /// The locked partition of an item that is in pieces or lies elsewhere.
    fn partition(&self) -> &'a Partition {
        match self.source {
            Source::Locked(partition, _) => partition,
            Source::Copied(_) => unreachable!("a copy is whole"),
        }
    }

    /// Length of the key, bytes.
    pub fn key_len(&self) -> usize {
        self.header.key_bytes() as usize
    }

    /// Appends the key to `out`.
    pub fn append_key_to(&self, out: &mut Vec<u8>) {
        let at = self.at + u64::from(self.header.key_at());
        self.units.append_to(at, u64::from(self.header.key_bytes()), out);
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
        if self.header.has(Header::CHAINED | Header::FAR) {
            return self.partition().whole_bytes(self.pos(), self.header);
        }
        u64::from(self.header.value_bytes())
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn fields(&self) -> Fields {
        fields_at(self.units, self.at, self.header)
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

    /// The cas. From now on the item keeps it also where the cache moves it, which costs it 8 bytes
    /// then: ask only if the cas is told to a client.
    pub fn cas(&self) -> u64 {
        let (partition, slot_at) = match self.source {
            Source::Locked(partition, slot_at) => (partition, slot_at),
            Source::Copied(origin) => return origin.tell(self).cas,
        };
        if !self.is_told.replace(true) {
            // The slot is read again: this look-up has changed it.
            let slot = partition.index.slot_at(slot_at);
            partition.index.mark(slot_at, slot.set(Slot::SEEN, true));
        }
        partition.cas_of(self.pos(), self.header)
    }

    /// Whether it was marked by [`super::Entry::mark`]: stale, or won by a client.
    pub fn is_marked(&self) -> bool {
        self.before.has(Slot::STALE) || self.before.has(Slot::WON)
    }

    /// All that is known beside key and value. As [`Item::cas`] for the cas.
    pub fn meta(&self) -> Meta {
        let fields = self.fields();
        let since = match self.source {
            Source::Locked(partition, _) => partition.used_since(self.pos(), self.header),
            Source::Copied(origin) => origin.tell(self).since,
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
    ///
    /// # Errors
    /// [`Error::Tier`](super::Error::Tier) of a value that lies in another tier; `out` is as before
    /// then.
    #[inline]
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<()> {
        if !self.header.has(Header::CHAINED | Header::FAR) {
            self.units.append_to(self.value_at, u64::from(self.header.value_bytes()), out);
            return Ok(());
        }
        if self.is_far() {
            let value = self.far()?;
            let before = out.len();
            out.resize(before + value.bytes() as usize, 0);
            let read = value.read(0, &mut out[before..]);
            read.inspect_err(|_| out.truncate(before))?;
            value.was_read(&out[before..]);
            return Ok(());
        }
        for piece in self.partition().pieces(self.pos()) {
            self.units.append_to(piece.at, piece.bytes, out);
        }
        Ok(())
    }

    /// Copies bytes of the value from `offset` on; how many there were.
    ///
    /// # Errors
    /// As [`Item::append_to`].
    #[inline]
    pub fn copy_to(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        if self.header.has(Header::CHAINED | Header::FAR) {
            return copy_apart_to(self.partition(), self.pos(), self.header, offset, out);
        }
        let bytes = u64::from(self.header.value_bytes());
        let count = bytes.saturating_sub(offset).min(out.len() as u64);
        if count > 0 {
            self.units.copy_out(self.value_at + offset, &mut out[..count as usize]);
        }
        Ok(count as usize)
    }

    /// Copies the value, if it has at most `most` bytes, to `at` in memory that no thread reads
    /// yet, in one copy; its length. `None`, and nothing is written, of one that is longer, in
    /// pieces, or in another tier.
    ///
    /// # Panics
    /// Outside the window.
    #[inline(always)]
    pub fn copy_into(&self, to: Bare<'_>, at: u64, most: u64) -> Option<u64> {
        let bytes = u64::from(self.header.value_bytes());
        if self.header.has(Header::CHAINED | Header::FAR) || bytes > most {
            return None;
        }
        self.units.copy_to(self.value_at, bytes, to, at);
        Some(bytes)
    }

    /// Whether flags, expiry, length and value are those of a copy of an item of the same key.
    fn is_like(&self, copy: &Item<'_>) -> bool {
        let facts = |item: &Item<'_>| (item.len(), item.flags(), item.expires(), item.is_far());
        let mut values = [Vec::new(), Vec::new()];
        facts(self) == facts(copy)
            && self.append_to(&mut values[0]).is_ok()
            && copy.append_to(&mut values[1]).is_ok()
            && values[0] == values[1]
    }

    /// Waits for all of the item as its reader does, if it lies in far memory that is emulated.
    /// `next` are the items that are read then: what the processor reaches of them comes meanwhile.
    #[inline]
    pub(super) fn wait_for_far(&self, next: impl Iterator<Item = Slot>) {
        let Source::Locked(partition, _) = self.source else { return };
        let Some(far) = &partition.emulation else { return };
        // An item lies in one memory, and the pieces of a long one in that as well.
        if !far.may_be_far(self.at, 1) {
            return;
        }
        // How long it is stands in its first word.
        far.read(self.units, self.at, 8);
        let mut ahead = instructions_of(self.header);
        for byte in next.filter(|slot| slot.0 != 0).map(|slot| slot.pos().byte()) {
            let header = Header(self.units.load(byte));
            ahead += instructions_of(header);
            if ahead > INSTRUCTIONS_AHEAD || !far.is_here(byte) {
                break;
            }
            far.ask(byte, header.bytes().into());
        }
        far.read(self.units, self.at, self.header.bytes().into());
        if self.header.has(Header::CHAINED) {
            let further = partition.pieces(self.pos()).skip(1);
            further.for_each(|piece| far.read(self.units, piece.at, piece.bytes));
        }
    }

    fn far(&self) -> Result<&Arc<FarValue>> {
        self.partition().far_value(self.pos())
    }

    /// Whether the value lies in another tier.
    #[inline]
    pub fn is_far(&self) -> bool {
        self.header.has(Header::FAR)
    }

    /// Keeps the value's memory as it is while the caller sends from it, whatever happens to the
    /// item: for large values. Of one in another tier the first bytes are read.
    ///
    /// # Errors
    /// As [`Item::append_to`].
    pub fn pin(&self) -> Result<Pinned> {
        if self.is_far() {
            let value = Arc::clone(self.far()?);
            let mut far = FarPin { value, chunk: Vec::new(), chunk_at: 0 };
            far.load(0)?;
            far.value.was_read(&far.chunk);
            return Ok(Pinned(Kept::Far(far)));
        }
        let Source::Locked(partition, _) = self.source else {
            let mut value = Vec::new();
            return self.append_to(&mut value).map(|()| Pinned(Kept::Copied(value)));
        };
        let pieces: Vec<Piece> = partition.pieces(self.pos()).collect();
        let pins = Arc::clone(&partition.segments.pins);
        pieces.iter().for_each(|piece| pins.pin(piece.unit));
        Ok(Pinned(Kept::Here(Pin { units: partition.units.clone(), pins, pieces })))
    }
}

impl Partition {
    /// As [`Partition::look_up`] in these units, which are its own; the item.
    #[inline(always)]
    pub(crate) fn look_up_in<'a>(
        &'a mut self,
        units: Bare<'a>,
        hash: u64,
        key: &[u8],
        now: Millis,
    ) -> Option<Item<'a>> {
        let found = self.find_in(units, hash, key);
        let found = found.filter(|(found, header)| self.keep_fresh(hash, *found, *header, now));
        self.count_use(hash, found.map(|(found, _)| found), now);
        let (found, header) = found?;
        Some(Item::plain(self, units, found, header, header.value_at(), now))
    }

    pub(crate) fn item(&self, found: Found, now: Millis) -> Item<'_> {
        Item::new(self, found, now)
    }

    /// Visits the items of some buckets; the next cursor, 0 at the end.
    pub(crate) fn scan(&self, cursor: u64, now: Millis, mut f: impl FnMut(&Item<'_>)) -> u64 {
        self.index.scan(cursor, |at, slot| {
            if !self.is_expired(slot.pos(), now) {
                f(&self.item((at, slot), now));
            }
        })
    }
}

impl Origin<'_> {
    /// What the lock tells of the item that `copy` is of. If another one is there by now that looks
    /// the same, of that: it may be the same, moved, and to look it up now would have shown it.
    /// Else a cas that no item has or will have: a client that is told it finds that the item
    /// changed.
    #[cold]
    fn tell(&self, copy: &Item<'_>) -> Told {
        if let Some(told) = self.told.get() {
            return told;
        }
        let mut partition = self.partition.lock().unwrap_or_else(PoisonError::into_inner);
        let found = partition.find(self.hash, self.key);
        let now = found.map(|found| partition.item(found, copy.now));
        let told = match now.filter(|now| now.is_like(copy)) {
            Some(now) => {
                Told { cas: now.cas(), since: partition.used_since(now.pos(), now.header) }
            }
            None => {
                let word = copy.header.word_at(Header::CAS);
                let cas = match copy.header.has(Header::CAS) {
                    true => copy.units.load(copy.at + word),
                    false => partition.segments.unused_cas(),
                };
                Told { cas, since: copy.now }
            }
        };
        self.told.set(Some(told));
        told
    }
}

/// As [`Item::copy_to`] of a value that does not stand behind its key. Apart from [`Item`], so that
/// one that is never asked for this need not lie in memory.
#[cold]
fn copy_apart_to(
    partition: &Partition,
    pos: Pos,
    header: Header,
    offset: u64,
    out: &mut [u8],
) -> Result<usize> {
    match header.has(Header::FAR) {
        true => copy_far_to(partition.far_value(pos)?, offset, out),
        false => Ok(copy_pieces_to(partition, pos, offset, out)),
    }
}

fn copy_far_to(value: &Arc<FarValue>, offset: u64, out: &mut [u8]) -> Result<usize> {
    let count = value.bytes().saturating_sub(offset).min(out.len() as u64) as usize;
    if count > 0 {
        value.read(offset, &mut out[..count])?;
        value.was_read(&out[..count]);
    }
    Ok(count)
}

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

/// A value; its memory stays as it is until this is dropped.
#[derive(Debug)]
pub struct Pinned(Kept);

#[derive(Debug)]
enum Kept {
    Here(Pin),
    Far(FarPin),
    Copied(Vec<u8>),
}

#[derive(Debug)]
struct Pin {
    units: Window,
    pins: Arc<Pins>,
    pieces: Vec<Piece>,
}

/// A value in another tier, and what of it was read last.
#[derive(Debug)]
struct FarPin {
    value: Arc<FarValue>,
    chunk: Vec<u8>,
    chunk_at: u64,
}

impl FarPin {
    /// What of the chunk lies from `offset` on.
    fn loaded(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.chunk_at);
        skipped.and_then(|skipped| self.chunk.get(skipped as usize..)).unwrap_or_default()
    }

    fn load(&mut self, offset: u64) -> Result<()> {
        if !self.loaded(offset).is_empty() || offset == self.value.bytes() {
            return Ok(());
        }
        self.chunk.resize(CHUNK_BYTES.min(self.value.bytes() - offset) as usize, 0);
        self.chunk_at = offset;
        let read = self.value.read(offset, &mut self.chunk);
        read.inspect_err(|_| self.chunk.clear())
    }
}

impl Pinned {
    /// Makes sure that [`Pinned::pieces`] from `offset` on names something: bytes of a value in
    /// another tier are read, up to 128 KiB.
    ///
    /// # Errors
    /// [`Error::Tier`](super::Error::Tier).
    pub fn load(&mut self, offset: u64) -> Result<()> {
        match &mut self.0 {
            Kept::Here(_) | Kept::Copied(_) => Ok(()),
            Kept::Far(far) => far.load(offset),
        }
    }

    /// Calls `piece` with the value's bytes from `offset` on, in order, until it says that it has
    /// enough; of a value in another tier only those that were loaded. Whether the value's end was
    /// reached and more is wanted.
    pub fn pieces<'a>(
        &'a self,
        mut offset: u64,
        mut piece: impl FnMut(window::Piece<'a>) -> bool,
    ) -> bool {
        match &self.0 {
            Kept::Far(far) => {
                let bytes = far.loaded(offset);
                let is_end = offset + bytes.len() as u64 == far.value.bytes();
                (bytes.is_empty() || piece(window::Piece::Private(bytes))) && is_end
            }
            Kept::Copied(value) => {
                let bytes = value.get(offset as usize..).unwrap_or_default();
                bytes.is_empty() || piece(window::Piece::Private(bytes))
            }
            Kept::Here(pin) => pin.pieces.iter().all(|Piece { at, bytes, .. }| {
                let skipped = offset.min(*bytes);
                offset -= skipped;
                let (at, bytes) = (at + skipped, bytes - skipped);
                bytes == 0 || piece(window::Piece::Shared(&pin.units, at, bytes))
            }),
        }
    }

    /// Length of the value, bytes.
    pub fn len(&self) -> u64 {
        match &self.0 {
            Kept::Here(pin) => pin.pieces.iter().map(|piece| piece.bytes).sum(),
            Kept::Far(far) => far.value.bytes(),
            Kept::Copied(value) => value.len() as u64,
        }
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pieces.iter().for_each(|piece| self.pins.unpin(piece.unit));
    }
}
