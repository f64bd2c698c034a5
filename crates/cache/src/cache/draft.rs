//! Items on their way into the log: what a new one is made of, in which pieces it lies, what its
//! words say. Pure data; `log.rs` places it.

use super::key::Key;
use super::layout::{Fields, Header, Pos, UNIT_BYTES, check_of, expiry_in, has_binary_key_in};
use rackpool_core::seam::Mem;
use rackpool_mem::window::{Bare, Window};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes before the value of a further piece.
pub(crate) const PIECE_VALUE_AT: u32 = 16;

#[derive(Default)]
pub(crate) struct Hasher(pub Xxh3);

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hasher")
    }
}

impl Hasher {
    pub(crate) fn digest(&self) -> u64 {
        self.0.digest()
    }
}

#[derive(Clone, Copy)]
pub(crate) struct ItemDraft<'a> {
    pub key: Key<'a>,
    pub hash: u64,
    pub value_bytes: u64,
    pub fields: Fields,
}

impl ItemDraft<'_> {
    /// Bytes that it takes if it lies in one piece.
    pub fn whole_bytes(&self) -> u64 {
        let before = Header::new(0, 0, self.fields.options()).key_at();
        (u64::from(before) + self.key.stored_bytes() as u64 + self.value_bytes).next_multiple_of(8)
    }

    /// Units that must be free before it is placed, whatever is left in the active segment.
    pub fn units_needed(&self) -> usize {
        let value_in_unit = u64::from(UNIT_BYTES - PIECE_VALUE_AT);
        let bytes = self.whole_bytes() + 2 * PIECE_VALUE_AT as u64;
        bytes.div_ceil(value_in_unit) as usize + 1
    }
}

/// A piece of a value in the partition's units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub unit: u32,
    pub seq: u64,
    /// Bytes from the start of the units.
    pub at: u64,
    pub bytes: u64,
}

/// An item that has its place but is not published.
#[derive(Debug)]
pub(crate) struct PlacedItem {
    pub head: Pos,
    pub header: Header,
    pub first: Piece,
    pub further: Vec<Piece>,
}

impl PlacedItem {
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        std::iter::once(&self.first).chain(&self.further)
    }

    /// Writes bytes of the value, from `offset` on.
    pub fn write(&self, units: &Window, mut offset: u64, mut bytes: &[u8]) {
        for piece in self.pieces() {
            if bytes.is_empty() {
                return;
            }
            if offset >= piece.bytes {
                offset -= piece.bytes;
                continue;
            }
            let count = (piece.bytes - offset).min(bytes.len() as u64);
            let (now, later) = bytes.split_at(count as usize);
            units.copy_in(piece.at + offset, now);
            (offset, bytes) = (0, later);
        }
    }
}

/// What key (by its hash) and value bring to the check of an item.
pub(crate) fn body_check(hash: u64, value_hash: u64) -> u32 {
    check_of((hash ^ value_hash.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The hash of a value that consists of `parts`.
pub(crate) fn hash_of(parts: &[&[u8]]) -> u64 {
    match parts {
        [] => xxh3_64(&[]),
        [part] => xxh3_64(part),
        parts => {
            let mut state = Xxh3::new();
            parts.iter().for_each(|part| state.update(part));
            state.digest()
        }
    }
}

/// What the item that begins at `at` holds beside key and value.
pub(crate) fn fields_at(units: Bare<'_>, at: u64, header: Header) -> Fields {
    let word = |option| units.load(at + header.word_at(option));
    let kind = header.0 & (Header::FAR | Header::TYPED);
    let mut fields = Fields { kind, ..Fields::default() };
    if header.has(Header::META) {
        let meta = word(Header::META);
        fields.expires = expiry_in(meta);
        fields.flags = meta as u32 & 0xffff;
        fields.has_binary_key = has_binary_key_in(meta);
    }
    if header.has(Header::EXTRA) {
        let extra = word(Header::EXTRA);
        fields.flags = extra as u32;
        fields.access_s = Some((extra >> 32) as u32);
    }
    if header.has(Header::CAS) {
        fields.cas = word(Header::CAS);
    }
    fields
}
