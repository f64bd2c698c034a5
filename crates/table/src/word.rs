//! The bucket word: everything about a bucket that one compare-and-swap changes. Packed and
//! unpacked here and nowhere else; a word read from the pool may hold any bits.
//!
//! | bits | field |
//! |---|---|
//! | 0–1 | [`State`] |
//! | 2–17 | version: changes since this word came into use |
//! | 18–22 | reading hint: bytes of the blob, rounded up to a quarter of a power of two |
//! | 23–63 | address of the blob / 64; below 64 the bucket is empty and this is its depth |
//!
//! A forward word holds the address of its successor in bits 6–63 instead.

use crate::error::{Error, Result};
use crate::words::{ALIGN_BYTES, GAddr};

const VERSION_SHIFT: u32 = 2;
const HINT_SHIFT: u32 = 18;
const ADDR_SHIFT: u32 = 23;
const HINT_MAX: u64 = 31;
/// Addresses / 64 below this are depths; no page has id 0 and none is below 4 KiB.
const EMPTY_LIMIT: u64 = 64;
/// First address that does not fit: 128 TiB.
const ADDR_LIMIT: u64 = 1 << (64 - ADDR_SHIFT + ALIGN_BYTES.trailing_zeros());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The bucket was not split off its parent yet. The whole word is 0.
    None = 0,
    /// The bucket's keys are in the blob, or it is empty.
    Data = 1,
    /// As `Data`, and the bucket is being split: only the next step of the split may change it.
    Frozen = 2,
    /// The word has run out of versions; its successor is elsewhere.
    Forward = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub u64);

impl Word {
    /// The word of a bucket that was not split off yet.
    pub const NONE: Word = Word(0);

    pub fn empty(depth: u8, version: u32) -> Word {
        assert!(u64::from(depth) < EMPTY_LIMIT, "depths stay below 64");
        Word::pack(State::Data, version, 0, u64::from(depth))
    }

    /// A bucket that has its blob at `addr`.
    pub fn blob(addr: GAddr, blob_bytes: usize, version: u32) -> Result<Word> {
        let line = addr.0 / ALIGN_BYTES;
        if addr.0 >= ADDR_LIMIT || !addr.0.is_multiple_of(ALIGN_BYTES) || line < EMPTY_LIMIT {
            return Err(Error::AddressRange { addr, limit_bytes: ADDR_LIMIT });
        }
        Ok(Word::pack(State::Data, version, hint_of(blob_bytes), line))
    }

    pub fn frozen(self, version: u32) -> Word {
        Word::pack(State::Frozen, version, self.0 >> HINT_SHIFT & HINT_MAX, self.0 >> ADDR_SHIFT)
    }

    /// The word that sends readers to `cell`.
    pub fn forward(cell: GAddr) -> Word {
        assert!(cell.0.is_multiple_of(ALIGN_BYTES), "allocations are aligned to 64 bytes");
        Word(cell.0 | State::Forward as u64)
    }

    fn pack(state: State, version: u32, hint: u64, line: u64) -> Word {
        assert!(version < crate::constants::VERSIONS_PER_WORD_MAX, "words retire before");
        Word(
            state as u64
                | u64::from(version) << VERSION_SHIFT
                | hint << HINT_SHIFT
                | line << ADDR_SHIFT,
        )
    }

    #[inline]
    pub fn state(self) -> State {
        match self.0 & 3 {
            0 => State::None,
            1 => State::Data,
            2 => State::Frozen,
            _ => State::Forward,
        }
    }

    /// Changes since the word came into use.
    #[inline]
    pub fn version(self) -> u32 {
        (self.0 >> VERSION_SHIFT) as u32 & (crate::constants::VERSIONS_PER_WORD_MAX - 1)
    }

    /// The depth, if the bucket is empty.
    #[inline]
    pub fn empty_depth(self) -> Option<u8> {
        let line = self.0 >> ADDR_SHIFT;
        (line < EMPTY_LIMIT).then_some(line as u8)
    }

    /// The address of the blob, of a bucket that is not empty.
    #[inline]
    pub fn blob_addr(self) -> GAddr {
        GAddr((self.0 >> ADDR_SHIFT) * ALIGN_BYTES)
    }

    /// Bytes to read at first, and whether the blob is surely not longer.
    #[inline]
    pub fn hint_bytes(self) -> (usize, bool) {
        let hint = self.0 >> HINT_SHIFT & HINT_MAX;
        (hint_bytes(hint), hint < HINT_MAX)
    }

    pub fn cell(self) -> GAddr {
        GAddr(self.0 & !(ALIGN_BYTES - 1))
    }
}

fn hint_bytes(hint: u64) -> usize {
    ((16 * (4 + (hint & 3))) << (hint >> 2)) as usize
}

fn hint_of(blob_bytes: usize) -> u64 {
    (0..HINT_MAX).find(|hint| hint_bytes(*hint) >= blob_bytes).unwrap_or(HINT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_gives_back_what_was_packed(
            line in EMPTY_LIMIT..ADDR_LIMIT / 64, bytes in 1usize..100_000, version in 0u32..65536
        ) {
            let word = Word::blob(GAddr(line * 64), bytes, version).unwrap();
            for (word, state) in [(word, State::Data), (word.frozen(version), State::Frozen)] {
                prop_assert_eq!(word.state(), state);
                prop_assert_eq!(word.version(), version);
                prop_assert_eq!(word.blob_addr(), GAddr(line * 64));
                prop_assert_eq!(word.empty_depth(), None);
                let (hint, whole) = word.hint_bytes();
                prop_assert!(!whole || hint >= bytes);
                prop_assert!(hint <= bytes.next_power_of_two().max(64));
            }
        }

        #[test]
        fn any_bits_can_be_asked_without_a_panic(bits in any::<u64>()) {
            let word = Word(bits);
            let _ = (word.state(), word.version(), word.empty_depth(), word.blob_addr());
            let _ = (word.hint_bytes(), word.cell());
        }
    }

    #[test]
    fn an_empty_bucket_keeps_its_depth() {
        for depth in 0..=crate::constants::LEVEL_MAX {
            let word = Word::empty(depth, 7);
            assert_eq!((word.empty_depth(), word.version()), (Some(depth), 7));
            assert_eq!(word.frozen(8).empty_depth(), Some(depth));
        }
    }

    #[test]
    fn addresses_that_do_not_fit_are_refused() {
        for addr in [ADDR_LIMIT, ADDR_LIMIT + 64, 4096 + 8, 64, 0, !63] {
            let refused = Word::blob(GAddr(addr), 64, 0);
            assert!(matches!(refused, Err(Error::AddressRange { .. })), "{addr}");
        }
        assert!(Word::blob(GAddr(ADDR_LIMIT - 64), 64, 0).is_ok());
        assert_eq!(ADDR_LIMIT, 1 << 47);
    }

    #[test]
    fn a_forward_word_leads_to_its_cell() {
        let word = Word::forward(GAddr(0xffff_ffff_ffff_ffc0));
        assert_eq!((word.state(), word.cell()), (State::Forward, GAddr(0xffff_ffff_ffff_ffc0)));
    }
}
