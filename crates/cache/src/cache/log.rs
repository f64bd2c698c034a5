//! Items in the log: where a new one is placed (in one piece, or in pieces over several segments),
//! how it is written and published, killed, and moved.
//!
//! An item is found only after its last byte was written: pieces first, header and the segment's
//! used length after that, the index slot last. Called by `partition.rs` and `evict.rs`.
//!
//! In memory that outlives the process every header has a check, so that one store both changes
//! what an item is and vouches for it. That of a live item is over key and value (the *body*, which
//! stays the same where the item is moved) and over all else that is its own (the *frame*: header,
//! position, segment, the words before the key, all links). That of anything else (dead, a further
//! piece, being written) is over header, position and segment. So no changed bit makes an item of
//! what is none, and nothing of an earlier use of the unit looks like one of this use.

use super::draft::{ItemDraft, PIECE_VALUE_AT, Piece, PlacedItem, fields_at};
use super::key::Key;
use super::layout::{Fields, Header, NextPiece, Pos, Slot, UNIT_BYTES, check_of, meta_word, mix};
use super::partition::{Found, Partition};
use super::segments::Stream;
use super::{Millis, Mode};
use rackpool_core::seam::Mem;

/// Items up to this size are never cut in pieces: the tail that they leave unused is small. In
/// store mode none is that a segment can hold: a segment with a piece cannot be compacted.
const WHOLE_BYTES_MAX: u64 = 4096;
/// Fewest bytes of a value in a piece but the last.
const PIECE_BYTES_MIN: u32 = 256;
/// The second of the last access of an item of an earlier process.
pub(crate) const ACCESS_UNKNOWN: u32 = u32::MAX;
const MOVE_BYTES: usize = UNIT_BYTES as usize;

/// How far behind an item memory is asked for, to write the next ones there: a lock waits until
/// everything that was stored before has come.
const AHEAD_BYTES: u64 = 512;

impl Partition {
    #[inline(always)]
    pub(crate) fn header(&self, pos: Pos) -> Header {
        Header(self.units.load(pos.byte()))
    }

    /// The sum of a header and of where it lies.
    #[inline(always)]
    fn place_sum(&self, pos: Pos, header: Header) -> u64 {
        let seq = self.segments.get(pos.unit()).seq;
        mix(seq ^ self.seed, header.unchecked() ^ pos.0.rotate_left(40))
    }

    /// A header of [`Header::NO_ITEM`] with its check.
    #[inline]
    pub(crate) fn sealed(&self, pos: Pos, header: Header) -> Header {
        match self.is_checked {
            true => header.with_check(check_of(self.place_sum(pos, header))),
            false => header,
        }
    }

    /// What the frame of an item brings to its check.
    #[inline]
    pub(crate) fn frame_check(&self, pos: Pos, header: Header) -> u32 {
        let sum = self.place_sum(pos, header);
        match header.has(Header::WORDS) {
            true => check_of(self.words_sum(pos, header, sum)),
            false => check_of(sum),
        }
    }

    #[inline(never)]
    fn words_sum(&self, pos: Pos, header: Header, mut sum: u64) -> u64 {
        for offset in (8..header.words_end()).step_by(8) {
            let word = self.units.load(pos.byte() + offset);
            // The second of the last access changes while the item stays.
            let is_extra = header.has(Header::EXTRA) && offset == header.word_at(Header::EXTRA);
            sum = mix(sum, if is_extra { word & u64::from(u32::MAX) } else { word });
        }
        let mut next = header.has(Header::CHAINED).then_some((pos, header));
        // The walk ends even if damaged links form a cycle.
        for _ in 0..=self.segments.count() {
            let Some((pos, header)) = next else { break };
            let link = self.link_of(pos, header);
            sum = mix(sum, link.0);
            next = self.follow(link);
        }
        sum
    }

    /// The cas for a new item. An empty value of the empty key gets one that is written, if there
    /// is nothing else: its header would be zero as memory that was never written is.
    #[inline]
    pub(crate) fn cas_for(&mut self, key: Key<'_>, value_bytes: u64, cas: u64) -> u64 {
        match key.bytes.len() as u64 + value_bytes {
            0 if cas == 0 => self.segments.unused_cas(),
            _ => cas,
        }
    }

    /// Finds a place for an item in a stream and writes all but its value. There have to be
    /// [`ItemDraft::units_needed`] free units.
    pub(crate) fn place(
        &mut self,
        draft: &ItemDraft<'_>,
        stream: Stream,
        class: u8,
        now: Millis,
    ) -> PlacedItem {
        let options = draft.fields.options() | Header::RESERVED;
        let key_word = draft.key.word();
        let whole = draft.whole_bytes();
        let chained = Header::new(key_word, 0, options | Header::CHAINED);
        let mut room = self.segments.room(stream, class);
        let is_store = self.mode == Mode::Store;
        if u64::from(room) < whole
            && (is_store || whole <= WHOLE_BYTES_MAX || room < chained.value_at() + PIECE_BYTES_MIN)
        {
            self.open(stream, class, now);
            room = UNIT_BYTES;
        }
        let header = if whole <= u64::from(room) {
            Header::new(key_word, draft.value_bytes as u32, options)
        } else {
            let bytes = u64::from(room - chained.value_at()).min(draft.value_bytes);
            Header::new(key_word, bytes as u32, options | Header::CHAINED)
        };
        let unit = self.segments.active(stream, class).expect("opened above");
        let offset = self.segments.take(unit, header, draft.fields.expires);
        let head = Pos::new(unit, offset);
        let ahead = u64::from(offset) + u64::from(header.bytes()) + AHEAD_BYTES;
        if ahead < u64::from(UNIT_BYTES) {
            self.units.prefetch_write(Pos::new(unit, 0).byte() + ahead);
        }
        self.write_head(head, header, draft);
        let first = self.piece(head, header);
        let mut placed = PlacedItem { head, header, first, further: Vec::new() };
        if header.has(Header::CHAINED) {
            self.segments.fix(unit);
            self.place_further(&mut placed, draft, stream, class, now);
            if is_store {
                // Its segments come back as soon as it goes.
                self.segments.seal(stream, class);
            }
        }
        placed
    }

    fn open(&mut self, stream: Stream, class: u8, now: Millis) {
        let opened = self.segments.open(stream, class, now);
        opened.expect("room was made before an item is placed");
    }

    fn piece(&self, pos: Pos, header: Header) -> Piece {
        let unit = pos.unit();
        let seq = self.segments.get(unit).seq;
        let at = pos.byte() + u64::from(header.value_at());
        Piece { unit, seq, at, bytes: u64::from(header.value_bytes()) }
    }

    fn write_head(&self, head: Pos, header: Header, draft: &ItemDraft<'_>) {
        let (at, fields) = (head.byte(), &draft.fields);
        if header.has(Header::META) {
            let flags = if header.has(Header::EXTRA) { 0 } else { fields.flags };
            let word = meta_word(fields.expires, flags, fields.has_binary_key);
            self.units.store(at + header.word_at(Header::META), word);
        }
        if header.has(Header::EXTRA) {
            let access = u64::from(fields.access_s.unwrap_or(0)) << 32;
            let word = access | u64::from(fields.flags);
            self.units.store(at + header.word_at(Header::EXTRA), word);
        }
        if header.has(Header::CAS) {
            self.units.store(at + header.word_at(Header::CAS), fields.cas);
        }
        if header.has(Header::CHAINED) {
            self.units.store(at + header.total_at(), draft.value_bytes);
            self.units.store(at + header.total_at() + 8, 0);
        }
        let (key_at, key) = (at + u64::from(header.key_at()), draft.key);
        self.units.copy_in(key_at, key.bytes);
        if key.space != 0 {
            self.units.copy_in(key_at + key.bytes.len() as u64, &[key.space]);
        }
        if header.has(Header::CHAINED) {
            // Space that others may overtake: it has to be walked over until it is published.
            self.units.store(at, self.sealed(head, header).0);
            self.segments.publish(head.unit());
        }
    }

    fn place_further(
        &mut self,
        placed: &mut PlacedItem,
        draft: &ItemDraft<'_>,
        stream: Stream,
        class: u8,
        now: Millis,
    ) {
        let mut link_at = placed.head.byte() + placed.header.total_at() + 8;
        let mut rest = draft.value_bytes - placed.first.bytes;
        while rest > 0 {
            self.open(stream, class, now);
            let unit = self.segments.active(stream, class).expect("just opened");
            let bytes = rest.min(u64::from(UNIT_BYTES - PIECE_VALUE_AT)) as u32;
            let header = Header::new(0, bytes, Header::PIECE);
            let offset = self.segments.take(unit, header, draft.fields.expires);
            self.segments.fix(unit);
            let pos = Pos::new(unit, offset);
            self.units.store(pos.byte() + 8, 0);
            self.units.store(pos.byte(), self.sealed(pos, header).0);
            self.segments.publish(unit);
            let piece = self.piece(pos, header);
            self.units.store(link_at, NextPiece::new(pos, piece.seq).0);
            link_at = pos.byte() + 8;
            rest -= u64::from(bytes);
            placed.further.push(piece);
        }
    }

    /// Makes a written item with this body one that counts.
    pub(crate) fn publish(&mut self, placed: &PlacedItem, body: u32) {
        let mut header = placed.header.set(Header::RESERVED, false);
        if self.is_checked {
            header = header.with_check(body ^ self.frame_check(placed.head, header));
        }
        self.units.store(placed.head.byte(), header.0);
        self.segments.publish(placed.head.unit());
        if self.emulation.is_some() {
            self.wait_for_stores(placed);
        }
    }

    pub(crate) fn link_of(&self, pos: Pos, header: Header) -> NextPiece {
        if header.has(Header::PIECE) {
            NextPiece(self.units.load(pos.byte() + 8))
        } else if header.has(Header::CHAINED) {
            NextPiece(self.units.load(pos.byte() + header.total_at() + 8))
        } else {
            NextPiece::NONE
        }
    }

    /// The piece that a link leads to, if its segment is still the one that it was.
    pub(crate) fn follow(&self, link: NextPiece) -> Option<(Pos, Header)> {
        let pos = link.pos();
        let is_there = self.segments.find(pos.unit()).is_some_and(|found| link.is_of(found.seq));
        (link != NextPiece::NONE && is_there).then(|| (pos, self.header(pos)))
    }

    /// All pieces of the value of an item, in order; fewer if the later ones are gone.
    pub(crate) fn pieces(&self, head: Pos) -> impl Iterator<Item = Piece> {
        let mut next = Some((head, self.header(head)));
        std::iter::from_fn(move || {
            let (pos, header) = next?;
            next = self.follow(self.link_of(pos, header));
            Some(self.piece(pos, header))
        })
    }

    /// Length of the value of an item in the log: of a reference, if it lies elsewhere.
    pub(crate) fn value_bytes(&self, pos: Pos, header: Header) -> u64 {
        if header.has(Header::CHAINED) {
            self.units.load(pos.byte() + header.total_at())
        } else {
            u64::from(header.value_bytes())
        }
    }

    pub(crate) fn fields(&self, pos: Pos, header: Header) -> Fields {
        let fields = fields_at(self.units.bare(), pos.byte(), header);
        Fields { access_s: fields.access_s.filter(|_| self.keeps_access), ..fields }
    }

    /// When an item was last used, if the cache keeps that, else when its segment was opened.
    pub(crate) fn used_since(&self, pos: Pos, header: Header) -> Millis {
        match self.fields(pos, header).access_s {
            None | Some(ACCESS_UNKNOWN) => self.segments.get(pos.unit()).opened,
            Some(second) => u64::from(second) * 1000,
        }
    }

    pub(crate) fn cas_of(&self, pos: Pos, header: Header) -> u64 {
        if header.has(Header::CAS) {
            return self.units.load(pos.byte() + header.word_at(Header::CAS));
        }
        (self.segments.get(pos.unit()).seq << 13) | u64::from(pos.offset() >> 3)
    }

    /// Kills an item, wherever its value lies; what belongs to it goes later.
    pub(crate) fn kill(&mut self, pos: Pos) {
        let header = self.header(pos);
        if header.has(Header::TYPED) {
            self.note_gone_root(pos, header);
        }
        self.unshelve(pos);
        self.kill_here(pos);
    }

    /// Kills an item and its further pieces in the log; their room counts as dead.
    pub(crate) fn kill_here(&mut self, pos: Pos) {
        let mut next = Some((pos, self.header(pos)));
        while let Some((pos, header)) = next {
            self.bury(pos, header);
            next = self.follow(self.link_of(pos, header));
            self.segments.debit(pos.unit(), header);
        }
    }

    /// Marks what lies here as dead, by one store.
    pub(crate) fn bury(&self, pos: Pos, header: Header) {
        self.units.store(pos.byte(), self.sealed(pos, header.set(Header::DEAD, true)).0);
    }

    /// What stands as the key of an item.
    pub(crate) fn key_of(&self, pos: Pos, header: Header, key: &mut Vec<u8>) {
        key.clear();
        let at = pos.byte() + u64::from(header.key_at());
        self.units.append_to(at, u64::from(header.key_bytes()), key);
    }

    /// Copies an item to a stream and points its slot there. There
    /// have to be free units. The old one is dead.
    pub(crate) fn move_item(
        &mut self,
        found: Found,
        hash: u64,
        stream: Stream,
        now: Millis,
    ) -> Pos {
        let (_, slot) = found;
        let (from, header) = (slot.pos(), self.header(slot.pos()));
        let mut fields = self.fields(from, header);
        if slot.has(Slot::SEEN) {
            fields.cas = self.cas_of(from, header);
        }
        let mut key = std::mem::take(&mut self.key_buffer);
        self.key_of(from, header, &mut key);
        let value_bytes = self.value_bytes(from, header);
        let draft = ItemDraft { key: Key::of_stored(&key, header), hash, value_bytes, fields };
        // Of the same class, so that the items of one segment never need more than one new one.
        let class = self.segments.get(from.unit()).class;
        let moved = self.copy_item(found, &draft, stream, class, now);
        self.key_buffer = key;
        moved
    }

    /// Places a copy of an item with the fields of `draft`, and kills the old one; its position.
    pub(crate) fn copy_item(
        &mut self,
        found: Found,
        draft: &ItemDraft<'_>,
        stream: Stream,
        class: u8,
        now: Millis,
    ) -> Pos {
        let (slot_at, slot) = found;
        let (from, before) = (slot.pos(), self.header(slot.pos()));
        // As it was: what was damaged meanwhile is not vouched for anew.
        let body = match self.is_checked {
            true => before.check() ^ self.frame_check(from, before),
            false => 0,
        };
        let placed = self.place(draft, stream, class, now);
        let mut buffer = std::mem::take(&mut self.move_buffer);
        let mut offset = 0;
        for piece in self.pieces(from) {
            if let Some(far) = &self.emulation {
                far.read(self.units.bare(), piece.at, piece.bytes);
            }
            buffer.resize(MOVE_BYTES.min(piece.bytes as usize), 0);
            self.units.copy_out(piece.at, &mut buffer);
            placed.write(&self.units, offset, &buffer);
            offset += piece.bytes;
        }
        self.move_buffer = buffer;
        assert_eq!(offset, draft.value_bytes, "a live item has all its pieces");
        self.publish(&placed, body);
        self.index.repoint(draft.hash, slot_at, slot.with_pos(placed.head));
        self.kill_here(from);
        placed.head
    }
}
