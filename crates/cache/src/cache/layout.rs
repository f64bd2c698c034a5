//! The words of the cache's memory: positions, index slots, item headers and links, packed and
//! unpacked. Pure functions of words; `index.rs`, `log.rs` and `item.rs` use them.
//!
//! Memory of a partition is cut into units of 64 KiB. A unit is free, or holds 1024 buckets of the
//! index, or is a segment of the log, in which items lie one behind the other:
//!
//! ```text
//! slot      pos 36 | tag 20 | freq 4 | fetched | stale | won | seen
//! bucket    7 slots, {version 32 | link 32}                            one cache line
//! item      header, [meta], [extra], [cas], [total, next], key, value  padded to 8 bytes
//! piece     header, next, bytes of the value of an item before
//! header    key bytes 15 | spaced | value bytes 16 | options 9 | check 23 (see `log.rs`)
//! meta      is wall time 1 | key in base64 1 | expires 46 | flags 16
//! extra     flags 32 | second of the last access 32
//! key       of an item of another space than 0: its last byte is the space
//! value     of an item in another tier: its place there, its length; of a typed one: type 8, rest
//! link      pos 36 | sequence number of its segment 28
//! ```

use super::{EXPIRES_MAX, Millis, WALL_TIME};

pub(crate) const UNIT_SHIFT: u32 = 16;
pub(crate) const UNIT_BYTES: u32 = 1 << UNIT_SHIFT;
/// Bytes of a bucket: a cache line.
pub(crate) const BUCKET_BYTES: u64 = 64;
pub(crate) const UNIT_BUCKETS_SHIFT: u32 = UNIT_SHIFT - 6;
pub(crate) const UNIT_BUCKETS: u32 = 1 << UNIT_BUCKETS_SHIFT;
/// Slots of a bucket; its eighth word is version and link.
pub(crate) const SLOTS: usize = 7;

const POS_BITS: u32 = 36;
const POS_MASK: u64 = (1 << POS_BITS) - 1;
pub(crate) const TAG_BITS: u32 = 20;
const TAG_SHIFT: u32 = POS_BITS;
const FREQ_SHIFT: u32 = TAG_SHIFT + TAG_BITS;
/// The highest frequency that a slot counts.
pub(crate) const FREQ_MAX: u64 = 15;

/// Units that a position can name.
pub(crate) const UNITS_MAX: u64 = 1 << (POS_BITS + 3 - UNIT_SHIFT);

/// Where an item or piece begins: words of 8 bytes from the start of the partition's units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(crate) struct Pos(pub u64);

impl Pos {
    pub fn new(unit: u32, offset: u32) -> Pos {
        Pos((u64::from(unit) << (UNIT_SHIFT - 3)) | u64::from(offset >> 3))
    }

    pub fn unit(self) -> u32 {
        (self.0 >> (UNIT_SHIFT - 3)) as u32
    }

    pub fn offset(self) -> u32 {
        ((self.0 << 3) as u32) & (UNIT_BYTES - 1)
    }

    /// Bytes from the start of the units.
    pub fn byte(self) -> u64 {
        self.0 << 3
    }
}

/// An index entry; 0 is an empty one. No item lies at position 0: unit 0 belongs to the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub u64);

impl Slot {
    pub const FETCHED: u64 = 1 << 60;
    pub const STALE: u64 = 1 << 61;
    pub const WON: u64 = 1 << 62;
    /// A client was told the cas: a moved item has to keep it.
    pub const SEEN: u64 = 1 << 63;

    pub fn new(hash: u64, pos: Pos) -> Slot {
        Slot(tag_in_slot(hash) | pos.0)
    }

    pub fn pos(self) -> Pos {
        Pos(self.0 & POS_MASK)
    }

    pub fn tag(self) -> u64 {
        (self.0 & TAG_MASK) >> TAG_SHIFT
    }

    pub fn freq(self) -> u64 {
        (self.0 >> FREQ_SHIFT) & FREQ_MAX
    }

    pub fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    pub fn with_pos(self, pos: Pos) -> Slot {
        Slot((self.0 & !POS_MASK) | pos.0)
    }

    pub fn with_freq(self, freq: u64) -> Slot {
        Slot((self.0 & !(FREQ_MAX << FREQ_SHIFT)) | (freq << FREQ_SHIFT))
    }

    pub fn set(self, bit: u64, on: bool) -> Slot {
        Slot(if on { self.0 | bit } else { self.0 & !bit })
    }

    /// Used once more, up to frequency `max`, and fetched.
    #[inline(always)]
    pub fn used(self, max: u64) -> Slot {
        // The sign of the difference: a comparison becomes a branch, which cannot be foreseen while
        // some entries are at `max` and others are not.
        let step = self.freq().wrapping_sub(max) >> (u64::BITS - 1);
        Slot((self.0 + (step << FREQ_SHIFT)) | Slot::FETCHED)
    }
}

/// The part of a hash that a slot keeps. Its low bits also choose among the buckets that a bucket
/// was split into, the partition comes from lower bits and the first bucket from the highest.
/// Never 0, so that no empty slot has a key's tag.
#[inline(always)]
pub(crate) fn tag_of(hash: u64) -> u64 {
    ((hash >> 16) & ((1 << TAG_BITS) - 1)).max(1)
}

/// The bits of a slot that are the tag: all of them in its upper half.
pub(crate) const TAG_MASK: u64 = ((1 << TAG_BITS) - 1) << TAG_SHIFT;
const _: () = assert!(TAG_MASK.trailing_zeros() >= 32);

/// The tag of `hash` where a slot has it: [`tag_of`] in fewer instructions.
#[inline(always)]
pub(crate) fn tag_in_slot(hash: u64) -> u64 {
    let tag = (hash << (TAG_SHIFT - 16)) & TAG_MASK;
    if tag == 0 { 1 << TAG_SHIFT } else { tag }
}

/// The first word of an item or of a further piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header(pub u64);

impl Header {
    /// The last byte of what stands as the key is the item's space.
    pub const SPACED: u32 = 1 << 15;

    pub const META: u64 = 1 << 32;
    pub const EXTRA: u64 = 1 << 33;
    pub const CAS: u64 = 1 << 34;
    /// The value goes on elsewhere: two words, its whole length and the link.
    pub const CHAINED: u64 = 1 << 35;
    /// No item but a further piece of one.
    pub const PIECE: u64 = 1 << 36;
    /// Not published yet: the value is being written.
    pub const RESERVED: u64 = 1 << 37;
    /// Replaced, removed, evicted or expired.
    pub const DEAD: u64 = 1 << 38;
    /// The value lies in another tier: here is a reference to it.
    pub const FAR: u64 = 1 << 39;
    /// The value is no string: it begins with a byte that says what it is.
    pub const TYPED: u64 = 1 << 40;

    /// Options of what is no item, or none that counts: its check is over the header alone.
    pub const NO_ITEM: u64 = Self::PIECE | Self::RESERVED | Self::DEAD;
    /// Options that bring words between header and key.
    pub const WORDS: u64 = Self::META | Self::EXTRA | Self::CAS | Self::CHAINED;

    const UNCHECKED_BITS: u32 = 41;
    const OPTIONS: u64 = (1 << Self::UNCHECKED_BITS) - (1 << 32);
    const ONE_WORD: u64 = Self::META | Self::EXTRA | Self::CAS | Self::PIECE;

    /// The first parameter is as [`Header::key_word`].
    pub fn new(key_word: u32, value_bytes: u32, options: u64) -> Header {
        debug_assert!(key_word < UNIT_BYTES && value_bytes < UNIT_BYTES);
        Header(u64::from(key_word) | (u64::from(value_bytes) << 16) | options)
    }

    /// Bytes that stand as the key, its space among them.
    pub fn key_bytes(self) -> u32 {
        self.key_word() & !Self::SPACED
    }

    /// Bytes of the key, and whether one of them is its space.
    #[inline(always)]
    pub fn key_word(self) -> u32 {
        self.0 as u32 & 0xffff
    }

    pub fn is_spaced(self) -> bool {
        self.key_word() & Self::SPACED != 0
    }

    /// Bytes of the value in this piece.
    pub fn value_bytes(self) -> u32 {
        self.0 as u32 >> 16
    }

    pub fn has(self, option: u64) -> bool {
        self.0 & option != 0
    }

    pub fn set(self, option: u64, on: bool) -> Header {
        Header(if on { self.0 | option } else { self.0 & !option })
    }

    /// Whether it is an item with a key of this word and nothing beside key and value.
    #[inline(always)]
    pub fn is_plain(self, key_word: u32) -> bool {
        // Apart: then the compiler knows that there are none.
        self.0 & Self::OPTIONS == 0 && self.key_word() == key_word
    }

    pub fn check(self) -> u32 {
        (self.0 >> Self::UNCHECKED_BITS) as u32
    }

    pub fn with_check(self, check: u32) -> Header {
        Header(self.unchecked() | (u64::from(check) << Self::UNCHECKED_BITS))
    }

    pub fn unchecked(self) -> u64 {
        self.0 & ((1 << Self::UNCHECKED_BITS) - 1)
    }

    /// Bytes before the key; options alone decide them.
    #[inline(always)]
    pub fn key_at(self) -> u32 {
        u32::from(KEY_AT[(self.0 >> 32) as usize % KEY_AT.len()])
    }

    pub fn value_at(self) -> u32 {
        self.key_at() + self.key_bytes()
    }

    /// Bytes of the whole piece in the log.
    pub fn bytes(self) -> u32 {
        (self.value_at() + self.value_bytes()).next_multiple_of(8)
    }

    /// Bytes of key and value in this piece; of a value in another tier none.
    pub fn payload_bytes(self) -> u32 {
        self.key_bytes() + if self.has(Self::FAR) { 0 } else { self.value_bytes() }
    }

    /// Offset of the word that an option of one word brings.
    pub fn word_at(self, option: u64) -> u64 {
        8 + 8 * u64::from((self.0 & Self::ONE_WORD & (option - 1)).count_ones())
    }

    /// Where the words before the key end, links apart.
    pub fn words_end(self) -> u64 {
        u64::from(self.key_at()) - if self.has(Self::CHAINED) { 8 } else { 0 }
    }

    /// Offset of the whole length; the link lies behind it. Only of a chained item.
    pub fn total_at(self) -> u64 {
        u64::from(self.key_at()) - 16
    }
}

/// The part of a sum that a header has room for, as its check.
#[inline(always)]
pub(crate) fn check_of(sum: u64) -> u32 {
    (sum >> Header::UNCHECKED_BITS) as u32
}

/// Where the key begins, by the five options that decide it: a word each, two for a chained item.
/// [`Header::key_at`] of an item that has nothing beside key and value.
pub(crate) const PLAIN_KEY_AT: u32 = KEY_AT[0] as u32;

const KEY_AT: [u8; 32] = {
    let mut table = [0; 32];
    let mut options = 0;
    while options < table.len() {
        let header = (options as u64) << 32;
        let words = 1 + (header & Header::ONE_WORD).count_ones() as u8;
        table[options] = 8 * words + if header & Header::CHAINED != 0 { 16 } else { 0 };
        options += 1;
    }
    table
};

/// Adds a word to a sum, so that a change of one of its bits changes each bit of the sum by chance.
#[inline(always)]
pub(crate) fn mix(sum: u64, word: u64) -> u64 {
    const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93];
    let product = u128::from(sum ^ ODD[0]) * u128::from(word ^ ODD[1]);
    (product >> 64) as u64 ^ product as u64
}

/// In a word of expiry and flags: see [`Fields::has_binary_key`].
const BINARY_KEY: u64 = 1 << 62;

/// Expiry and small flags. The highest of the 48 bits of an expiry says that it is wall time.
pub(crate) fn meta_word(expires: Millis, flags: u32, has_binary_key: bool) -> u64 {
    let wall = (expires & WALL_TIME) >> (63 - 47);
    let at = (expires & !WALL_TIME).min(EXPIRES_MAX);
    let binary = if has_binary_key { BINARY_KEY } else { 0 };
    ((wall | at) << 16) | binary | u64::from(flags & 0xffff)
}

pub(crate) fn has_binary_key_in(meta: u64) -> bool {
    meta & BINARY_KEY != 0
}

/// The expiry in a word of expiry and flags.
#[inline(always)]
pub(crate) fn expiry_in(meta: u64) -> Millis {
    let bits = meta >> 16;
    (bits & EXPIRES_MAX) | ((bits >> 47) << 63)
}

/// Where a value goes on: a position that counts only while its segment is the one it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NextPiece(pub u64);

impl NextPiece {
    const SEQ_MASK: u64 = (1 << (64 - POS_BITS)) - 1;

    pub const NONE: NextPiece = NextPiece(0);

    pub fn new(pos: Pos, seq: u64) -> NextPiece {
        NextPiece(pos.0 | ((seq & Self::SEQ_MASK) << POS_BITS))
    }

    pub fn pos(self) -> Pos {
        Pos(self.0 & POS_MASK)
    }

    pub fn is_of(self, seq: u64) -> bool {
        self.0 >> POS_BITS == seq & Self::SEQ_MASK
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    pub flags: u32,
    pub expires: Millis,
    /// An explicit cas, 0 if the position is the cas.
    pub cas: u64,
    /// Second of the last access, if the cache keeps it.
    pub access_s: Option<u32>,
    /// [`Header::FAR`] if the value is a reference to another tier, [`Header::TYPED`] if it is no
    /// string.
    pub kind: u64,
    /// Whether a client of memcached sent the key in base64: it is told in base64.
    pub has_binary_key: bool,
}

impl Fields {
    /// The header options of the words that these fields need.
    pub fn options(&self) -> u64 {
        let has_extra = self.flags > 0xffff || self.access_s.is_some();
        let option = |on: bool, option: u64| if on { option } else { 0 };
        let has_meta = self.expires != 0 || self.has_binary_key || self.flags != 0 && !has_extra;
        option(has_meta, Header::META)
            | option(has_extra, Header::EXTRA)
            | option(self.cas != 0, Header::CAS)
            | self.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back() {
        let hash = 0xfedc_ba98_7654_3210;
        let pos = Pos::new(0x7f_ffff, UNIT_BYTES - 8);
        let slot = Slot::new(hash, pos).with_freq(9).set(Slot::SEEN, true);
        assert_eq!((slot.pos(), slot.freq(), slot.tag()), (pos, 9, tag_of(hash)));
        assert!(slot.0 & TAG_MASK == tag_in_slot(hash) && slot.has(Slot::SEEN) && tag_of(0) != 0);
        assert!([0, hash, u64::MAX].iter().all(|it| tag_in_slot(*it) == tag_of(*it) << TAG_SHIFT));
        assert_eq!(slot.with_freq(15).used(15).freq(), 15);
        assert_eq!(slot.used(15).freq(), 10);
        let link = NextPiece::new(pos, 0x1_2345_6789);
        assert!(link.pos() == pos && link.is_of(0x1_2345_6789) && !link.is_of(0x2345_6788));
        for expires in [0, 1, EXPIRES_MAX, WALL_TIME | 77, WALL_TIME | EXPIRES_MAX] {
            for has_binary_key in [false, true] {
                let word = meta_word(expires, 0xffff, has_binary_key);
                assert_eq!((expiry_in(word), has_binary_key_in(word)), (expires, has_binary_key));
            }
        }
        assert_eq!(expiry_in(meta_word(u64::MAX, 0, true)), WALL_TIME | EXPIRES_MAX);
        let options = Header::META | Header::CAS | Header::CHAINED;
        let header = Header::new(5, 100, options).with_check(0x2b_cdef);
        assert_eq!((header.key_bytes(), header.value_bytes()), (5, 100));
        assert_eq!((header.check(), header.key_at(), header.bytes()), (0x2b_cdef, 40, 152));
        assert_eq!((header.word_at(Header::META), header.word_at(Header::CAS)), (8, 16));
        assert_eq!(header.total_at(), 24);
        assert_eq!(Header::new(0, 10, Header::PIECE).bytes(), 32);
    }
}
