//! The file of a rack's pages that are not in memory: what a daemon's engine asks of it, and the
//! bytes that lie in it. A *slot* is a frame behind those of memory (`tier.rs`): it has an entry in
//! the private section as any frame, no memory, and 0 in the table, so that no access finds it.
//!
//! In: jobs of the engine (`daemon/moves/spill.rs`), one at a time. Out: their ends. The engine
//! frees a frame once its page's slot is sealed and the directory names that; so what is sealed has
//! to be durable. Before a slot is sealed again nothing of it is used. A slot's header says which
//! page it has and what the bytes add up to: bytes that are not those are an error, never a page.

use crate::addr::{Generation, PageId};
use crate::constants::{MOVE_BITMAP_WORDS_MAX, TIER_COPY_BYTES};
use crate::error::{Error, Result};
use crate::layout::BLOCK_BYTES;

/// The first word of a header.
const SLOT_MAGIC: u64 = u64::from_le_bytes(*b"RPSLOT\0\x01");
/// Words of a header before those of a slab page's objects.
const HEADER_WORDS: usize = 8;

/// Bytes before a slot's page: the longest header, in whole blocks.
pub const SLOT_HEADER_BYTES: u64 =
    (8 * (HEADER_WORDS + MOVE_BITMAP_WORDS_MAX + 1) as u64).next_multiple_of(BLOCK_BYTES);

/// What the file is to do. `slot` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpillJob {
    /// Bytes of a page, from an offset in it on.
    Write { slot: u32, offset: u64, data: Vec<u8> },
    /// What was written to the slot is to be durable, then this header of it.
    Seal { slot: u32, header: Vec<u8> },
    /// The header of a slot, [`SLOT_HEADER_BYTES`].
    ReadHeader { slot: u32 },
    /// Bytes of a page, from an offset in it on.
    Read { slot: u32, offset: u64, bytes: u64 },
}

/// What the file has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpillDone {
    Written,
    Sealed,
    Read(Vec<u8>),
}

/// The file. The defaults are those of a rack that has none.
pub trait SpillFile {
    /// Begins a job; the one before has ended.
    fn begin_spill(&mut self, job: SpillJob) {
        unreachable!("a rack without slots spills nothing: {job:?}")
    }

    /// The end of the job that was begun last, once; `None` while it is under way.
    fn spill_ended(&mut self) -> Option<Result<SpillDone>> {
        None
    }

    /// The bytes of these slots are not needed any more. Jobs that are begun later see this done.
    fn punch_slots(&mut self, _first: u32, _count: u32) {}

    /// What [`Daemon::adopt_slots`](crate::daemon::Daemon::adopt_slots) was told of is settled.
    fn slots_adopted(&mut self) {}
}

/// What a slot's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    pub page: PageId,
    /// Of the slot: what the directory says, or said before.
    pub generation: Generation,
    /// The last fencing token of a lock when the page was sealed.
    pub lock_token: u64,
    /// What the page's bytes add up to, by [`add_to_sum`].
    pub sum: u64,
    /// The state word of the slot's entry: what the page is part of.
    pub state: u64,
    /// Which objects of a slab page live.
    pub objects: Vec<u64>,
}

impl SlotHeader {
    /// As the file has it.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.objects.len() as u64;
        let (page, generation) = (self.page.0, self.generation.0);
        let head = [SLOT_MAGIC, page, self.sum, self.state, count, generation, self.lock_token, 0];
        let words = head.iter().chain(&self.objects);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
        bytes.resize(SLOT_HEADER_BYTES as usize, 0);
        bytes
    }

    /// Reads what a file has, whatever that is; `None` if it is no header.
    pub fn decode(bytes: &[u8]) -> Option<SlotHeader> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| words.get(index).map(|word| u64::from_le_bytes(*word));
        let count = usize::try_from(word(4)?).ok()?;
        let end = HEADER_WORDS + count.min(MOVE_BITMAP_WORDS_MAX);
        let sum = xxhash_rust::xxh3::xxh3_64(bytes.get(..8 * end)?);
        let is_whole = word(0)? == SLOT_MAGIC && count <= MOVE_BITMAP_WORDS_MAX;
        let objects = (HEADER_WORDS..end).map(word).collect::<Option<Vec<u64>>>()?;
        (is_whole && word(end)? == sum).then_some(SlotHeader {
            page: PageId(word(1)?),
            sum: word(2)?,
            state: word(3)?,
            generation: Generation(word(5)?),
            lock_token: word(6)?,
            objects,
        })
    }
}

/// Adds the next piece of a page to what its pieces before add up to, 0 at its begin. All pieces
/// but the last have [`TIER_COPY_BYTES`].
pub fn add_to_sum(sum: u64, piece: &[u8]) -> u64 {
    assert!(piece.len() as u64 <= TIER_COPY_BYTES, "a piece of {} bytes", piece.len());
    xxhash_rust::xxh3::xxh3_64_with_seed(piece, sum)
}

/// What is said of a slot with other bytes than those that were sealed.
pub(crate) fn damaged(slot: u32, page: PageId, what: &str) -> Error {
    let reason = format!("{what}: its bytes stay as they are, and the page cannot be read");
    Error::Io { what: format!("slot {slot} of the spill file, page {page}"), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SlotHeader {
        SlotHeader {
            page: PageId(77),
            generation: Generation(9),
            lock_token: 3,
            sum: 5,
            state: 0x1_0002,
            objects: vec![3, 0, u64::MAX],
        }
    }

    #[test]
    fn a_header_is_read_back_and_any_flipped_bit_of_it_is_noticed() {
        for objects in [Vec::new(), vec![1; MOVE_BITMAP_WORDS_MAX]] {
            let header = SlotHeader { objects, ..header() };
            let bytes = header.encode();
            assert_eq!(bytes.len() as u64, SLOT_HEADER_BYTES);
            assert_eq!(SlotHeader::decode(&bytes), Some(header));
        }
        let bytes = header().encode();
        let used = 8 * (HEADER_WORDS + header().objects.len() + 1);
        for bit in 0..8 * used {
            let mut torn = bytes.clone();
            torn[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SlotHeader::decode(&torn), None, "bit {bit}");
        }
        assert_eq!(SlotHeader::decode(&vec![0; SLOT_HEADER_BYTES as usize]), None);
        assert_eq!(SlotHeader::decode(&bytes[..20]), None);
    }

    #[test]
    fn pieces_in_another_order_add_up_to_something_else() {
        let sum = |pieces: [&[u8]; 2]| pieces.iter().fold(0, |sum, piece| add_to_sum(sum, piece));
        assert_ne!(sum([b"ab", b"cd"]), sum([b"cd", b"ab"]));
        assert_ne!(sum([b"ab", b"cd"]), sum([b"ab", b"ce"]));
    }
}
