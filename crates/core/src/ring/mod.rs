//! Message rings between one producer and one consumer in shared memory.
//! Two layers: a ring of 64-byte poll entries, each with its generation, flags, length and up to
//! [`INLINE_BYTES`] of payload; and a data area for longer messages, which an entry points to.
//!
//! In: messages of the client or daemon engine, any bytes up to [`Geometry::message_bytes_max`].
//! Out: the same bytes in a private copy. A [`Producer`] and a [`Consumer`] keep their cursors
//! privately; of what the other side wrote they believe nothing: a value out of its bounds is
//! [`RingError::Corrupt`], after which the ring is of no use until [`reset`].
//!
//! | bytes | content | written by |
//! |---|---|---|
//! | 0 | incarnation, a line of its own | `reset` |
//! | 64 | how many messages were taken, a line of its own | consumer |
//! | 128 | the consumer's sleeping word, a line of its own | consumer, cleared by the producer |
//! | 192 | a done word for each data block | consumer |
//! | `control_bytes` | poll entries | producer |
//! | behind | data blocks | producer |
//!
//! Ordering: the entry's first word publishes the entry and its data (release by the producer,
//! acquire by the consumer), so an inline message is one cache line that moves once. The count of
//! taken messages and the done words give the space back (release by the consumer, acquire by the
//! producer, which looks only when it runs out). Data blocks come back in whatever order messages
//! are finished, so that an unfinished message never blocks a finished one. A producer that dies
//! before the publishing store has sent nothing.
//!
//! Source: Rcmp §4.2, §5.2 (two-layer ring for messages that take long); the block map and the
//! generations are ours.

mod consumer;
mod producer;

pub use consumer::{Consumer, HeldMessage};
pub use producer::Producer;

use crate::coherence;
use crate::constants::{MESSAGE_BYTES_MAX, RING_DATA_BYTES, RING_ENTRIES, RING_ENTRY_BYTES};
use crate::layout::{BLOCK_BYTES, RING_BYTES};
use crate::seam::{Mem, Mutation};

/// Payload bytes of a poll entry: all but its first word.
pub const INLINE_BYTES: usize = RING_ENTRY_BYTES as usize - 8;

/// Data blocks of a ring at most: their states fit one word.
const BLOCKS_MAX: u32 = 64;
/// Messages of the greatest length that are under way at once.
const LONGEST_UNDER_WAY: u32 = 4;

const INCARNATION: u64 = 0;
/// Offset of the count of messages taken.
const TAKEN: u64 = 64;
/// Offset of the consumer's sleeping word, for the waits of its process.
pub const CONSUMER_SLEEPING: u64 = 128;
/// Offset of the first done word.
const DONE: u64 = 192;

/// The first word of an entry: length in bits 0–14, [`IN_DATA`] in bit 15, generation above.
const LENGTH_MASK: u64 = 0x7fff;
/// Set if the payload is in the data area and the entry's second word names its first block.
const IN_DATA: u64 = 0x8000;
/// Where the generation starts: the incarnation in its upper 16 bits, the lap in its lower 32.
const GENERATION_SHIFT: u32 = 16;
const _: () = assert!(MESSAGE_BYTES_MAX as u64 <= LENGTH_MASK);

/// What a ring can answer instead of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// No entry or no data space is free. Retry after the consumer has taken or finished some.
    #[error("the ring is full: {entries} messages or their data are under way; retry")]
    Full {
        /// Messages that were pushed and not yet taken, as far as the producer knows.
        entries: u64,
    },
    /// The message is longer than any that the ring takes. Do not retry.
    #[error("a message of {bytes} bytes is too long for the ring: {limit_bytes} bytes fit")]
    TooLong { bytes: u64, limit_bytes: u64 },
    /// The other side wrote what it never may. Do not retry: end the session and reset the ring.
    #[error("the ring is corrupt: {what} is {found:#x}")]
    Corrupt {
        /// The word that is out of its bounds.
        what: &'static str,
        found: u64,
    },
}

/// Sizes of a ring. All rings of a region are [`Geometry::STANDARD`]; smaller ones serve model
/// checking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Poll entries, a power of two.
    pub entries: u32,
    /// Data blocks, 4 to 64.
    pub blocks: u32,
    /// Bytes of a data block, a multiple of 8.
    pub block_bytes: u32,
    /// Bytes before the entries, a multiple of 64 that holds the done words.
    pub control_bytes: u32,
}

impl Geometry {
    /// The ring of `layout.rs`: 64 entries and 64 blocks of 1 KiB.
    pub const STANDARD: Geometry = Geometry {
        entries: RING_ENTRIES,
        blocks: BLOCKS_MAX,
        block_bytes: RING_DATA_BYTES / BLOCKS_MAX,
        control_bytes: BLOCK_BYTES as u32,
    };

    /// The smallest ring that wraps and has data blocks, for model checking.
    pub const SMALLEST: Geometry =
        Geometry { entries: 2, blocks: 4, block_bytes: 64, control_bytes: 256 };

    /// Bytes of memory that the ring takes.
    pub const fn bytes(&self) -> u64 {
        self.data_offset() + self.blocks as u64 * self.block_bytes as u64
    }

    pub const fn message_bytes_max(&self) -> usize {
        (self.blocks / LONGEST_UNDER_WAY * self.block_bytes) as usize
    }

    const fn data_offset(&self) -> u64 {
        self.control_bytes as u64 + self.entries as u64 * RING_ENTRY_BYTES as u64
    }

    /// Offset of the entry of message number `sequence`.
    #[inline]
    const fn entry_offset(&self, sequence: u64) -> u64 {
        self.control_bytes as u64 + (sequence & (self.entries as u64 - 1)) * RING_ENTRY_BYTES as u64
    }

    const fn block_offset(&self, block: u32) -> u64 {
        self.data_offset() + block as u64 * self.block_bytes as u64
    }

    /// Blocks that a message of `bytes` bytes takes.
    const fn blocks_of(&self, bytes: usize) -> u32 {
        bytes.div_ceil(self.block_bytes as usize) as u32
    }

    /// What the first word of the entry carries above its length once message number `sequence`
    /// is in it.
    #[inline]
    const fn generation(&self, incarnation: u16, sequence: u64) -> u64 {
        let lap = (sequence >> self.entries.trailing_zeros()) as u32;
        (incarnation as u64) << 32 | lap.wrapping_add(1) as u64
    }

    /// What the first word of the entry carries before message number `sequence` is in it.
    #[inline]
    const fn generation_before(&self, incarnation: u16, sequence: u64) -> u64 {
        if sequence < self.entries as u64 {
            return 0;
        }
        self.generation(incarnation, sequence - self.entries as u64)
    }

    fn check(&self, window_bytes: u64) {
        assert!(self.entries.is_power_of_two(), "{} entries", self.entries);
        assert!((LONGEST_UNDER_WAY..=BLOCKS_MAX).contains(&self.blocks), "{} blocks", self.blocks);
        assert!(self.block_bytes.is_multiple_of(8) && self.control_bytes.is_multiple_of(64));
        assert!(DONE + 8 * u64::from(self.blocks) <= u64::from(self.control_bytes));
        assert!(self.message_bytes_max() as u64 <= LENGTH_MASK);
        assert!(window_bytes >= self.bytes(), "a ring does not fit {window_bytes} bytes");
    }
}
// Each line has one writer: the daemon that resets the ring, the consumer, or the producer. The
// sleeping word, which both write, has one of its own.
const _: () = assert!(TAKEN / 64 != INCARNATION / 64 && CONSUMER_SLEEPING / 64 != TAKEN / 64);
const _: () = assert!(DONE / 64 != CONSUMER_SLEEPING / 64 && RING_ENTRY_BYTES.is_multiple_of(64));
const _: () = assert!(Geometry::STANDARD.bytes() == RING_BYTES);
const _: () = assert!(Geometry::STANDARD.message_bytes_max() == MESSAGE_BYTES_MAX as usize);
const _: () = assert!(DONE + 8 * BLOCKS_MAX as u64 <= BLOCK_BYTES);

/// Offset of the done word of the message that begins in block `block`.
const fn done_offset(block: u32) -> u64 {
    DONE + 8 * block as u64
}

/// What the consumer writes into the done word once it has finished message number `sequence`.
const fn done_stamp(incarnation: u16, sequence: u64) -> u64 {
    (incarnation as u64) << 48 | (sequence.wrapping_add(1) & ((1 << 48) - 1))
}

/// Empties a ring of [`Geometry::STANDARD`] for a new pair of ends. Both sides must have stopped
/// using it, and attach again afterwards. A store that the old producer makes late carries the
/// old incarnation: it is never taken for a message.
pub fn reset<M: Mem>(window: &M) {
    reset_with(window, Geometry::STANDARD);
}

/// As [`reset`] for another geometry.
pub fn reset_with<M: Mem>(window: &M, geometry: Geometry) {
    geometry.check(window.bytes());
    let incarnation = window.load(INCARNATION) as u16;
    window.zero(0, geometry.data_offset());
    window.store(INCARNATION, u64::from(incarnation.wrapping_add(1)));
    coherence::show(window, Mutation::HideRingReset, 0, geometry.data_offset());
}
