//! The bytes of one section: sparse, shared by all that map it.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use super::cost::{MEMORIES_MAX, MEMORY_BYTES_MAX};
use super::{Coherence, LINE_BYTES, Tier};

/// Bytes of a block, the unit in which memory appears and is backed.
pub const BLOCK_BYTES: u64 = 4096;

const BLOCK_WORDS: usize = BLOCK_BYTES as usize / 8;
const BLOCK_LINES: usize = (BLOCK_BYTES / LINE_BYTES) as usize;
/// Blocks of one leaf of the table: 2 MiB.
const LEAF_BLOCKS: u64 = 512;

/// 4 KiB that were stored to.
pub(super) struct Block {
    words: [Cell<u64>; BLOCK_WORDS],
    /// Counts the stores to each line, so that another processor's copy is known to be old.
    versions: [Cell<u16>; BLOCK_LINES],
}

impl Block {
    fn new() -> Box<Block> {
        let words = [const { Cell::new(0) }; BLOCK_WORDS];
        Box::new(Block { words, versions: [const { Cell::new(0) }; BLOCK_LINES] })
    }

    #[inline]
    pub(super) fn word(&self, at: u64) -> &Cell<u64> {
        &self.words[(at / 8) as usize % BLOCK_WORDS]
    }

    #[inline]
    pub(super) fn version(&self, at: u64) -> &Cell<u16> {
        &self.versions[(at / LINE_BYTES) as usize % BLOCK_LINES]
    }
}

type Leaf = Box<[OnceCell<Box<Block>>]>;

/// The bytes of one section, shared by all that map it. Blocks of 4 KiB take memory when they are
/// first stored to; what was never stored reads as zero.
pub struct Memory {
    id: u32,
    bytes: u64,
    tier: Tier,
    coherence: Coherence,
    leaves: Box<[OnceCell<Leaf>]>,
    allocated_bytes: Cell<u64>,
    tracked: Cell<bool>,
    /// A bit for each backed block, once that is tracked.
    backed: OnceCell<Box<[Cell<u64>]>>,
    backed_blocks: Cell<u64>,
}

impl Memory {
    /// A section of so many bytes, all zero. `id` is unique in the run.
    pub fn new(id: u32, bytes: u64, tier: Tier, coherence: Coherence) -> Rc<Memory> {
        assert!(id < MEMORIES_MAX && bytes <= MEMORY_BYTES_MAX, "memory {id} of {bytes} bytes");
        let leaves = bytes.div_ceil(LEAF_BLOCKS * BLOCK_BYTES);
        Rc::new(Memory {
            id,
            bytes,
            tier,
            coherence,
            leaves: (0..leaves).map(|_| OnceCell::new()).collect(),
            allocated_bytes: Cell::new(0),
            tracked: Cell::new(false),
            backed: OnceCell::new(),
            backed_blocks: Cell::new(0),
        })
    }

    /// Its number in the run.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What it is made of.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// What keeps it coherent between hosts.
    pub fn coherence(&self) -> Coherence {
        self.coherence
    }

    /// What an aligned word of the memory holds now, whatever processors have not stored yet.
    ///
    /// # Panics
    /// Outside of the section, or misaligned.
    pub fn peek(&self, offset: u64) -> u64 {
        self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "a word at offset {offset} is misaligned");
        self.word(offset)
    }

    /// Replaces an aligned word, at no cost and past all processors.
    ///
    /// # Panics
    /// Outside of the section, or misaligned.
    pub fn poke(&self, offset: u64, value: u64) {
        self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "a word at offset {offset} is misaligned");
        self.set_word(offset, value);
    }

    /// Copies what the memory holds now.
    ///
    /// # Panics
    /// Outside of the section.
    pub fn peek_bytes(&self, offset: u64, to: &mut [u8]) {
        self.check(offset, to.len() as u64);
        self.copy_out(offset, to);
    }

    /// Replaces bytes, at no cost and past all processors.
    ///
    /// # Panics
    /// Outside of the section.
    pub fn poke_bytes(&self, offset: u64, from: &[u8]) {
        self.check(offset, from.len() as u64);
        self.copy_in(offset, from);
    }

    /// Whether accesses to blocks that were not [`back`](Self::back)ed are violations. Off at
    /// first; switched on for the first time, no block is backed.
    pub fn set_backed_tracking(&self, on: bool) {
        let words = self.bytes.div_ceil(BLOCK_BYTES).div_ceil(64);
        self.backed.get_or_init(|| (0..words).map(|_| Cell::new(0)).collect());
        self.tracked.set(on);
    }

    /// Gives memory to all blocks that the range touches, as fallocate does.
    pub fn back(&self, offset: u64, bytes: u64) {
        self.check(offset, bytes);
        if bytes > 0 {
            let last = (offset + bytes - 1) / BLOCK_BYTES;
            (offset / BLOCK_BYTES..=last).for_each(|block| self.set_backed(block, true));
        }
    }

    /// Takes the memory of whole blocks in the range away, and sets all of the range to zero.
    pub fn punch(&self, offset: u64, bytes: u64) {
        self.check(offset, bytes);
        self.zero(offset, bytes);
        let (first, end) = (offset.div_ceil(BLOCK_BYTES), (offset + bytes) / BLOCK_BYTES);
        // The section's last block may be shorter.
        let end = if offset + bytes == self.bytes { self.bytes.div_ceil(BLOCK_BYTES) } else { end };
        (first..end).for_each(|block| self.set_backed(block, false));
    }

    /// Whether every block of the range is backed, or that is not tracked.
    pub fn is_backed(&self, offset: u64, bytes: u64) -> bool {
        let Some(backed) = self.backed.get().filter(|_| self.tracked.get() && bytes > 0) else {
            return true;
        };
        let last = (offset + bytes - 1) / BLOCK_BYTES;
        (offset / BLOCK_BYTES..=last)
            .all(|block| backed[(block / 64) as usize].get() >> (block % 64) & 1 == 1)
    }

    /// Bytes that are backed, if that was ever tracked.
    pub fn backed_bytes(&self) -> u64 {
        self.backed_blocks.get() * BLOCK_BYTES
    }

    /// Bytes of the simulator's own memory that hold what was stored. Punching does not lower it.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes.get()
    }

    fn set_backed(&self, block: u64, on: bool) {
        let Some(backed) = self.backed.get() else { return };
        let (word, bit) = (&backed[(block / 64) as usize], 1 << (block % 64));
        if on && word.get() & bit == 0 {
            self.backed_blocks.set(self.backed_blocks.get() + 1);
        } else if !on && word.get() & bit != 0 {
            self.backed_blocks.set(self.backed_blocks.get() - 1);
        }
        word.set(if on { word.get() | bit } else { word.get() & !bit });
    }

    #[inline]
    fn check(&self, offset: u64, bytes: u64) {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at offset {offset} are outside the section of {} bytes",
            self.bytes
        );
    }

    /// The block of a byte, if anything was ever stored there.
    #[inline]
    pub(super) fn block(&self, at: u64) -> Option<&Block> {
        let block = at / BLOCK_BYTES;
        let leaf = self.leaves[(block / LEAF_BLOCKS) as usize].get()?;
        leaf[(block % LEAF_BLOCKS) as usize].get().map(|block| &**block)
    }

    /// The block of a byte, made if need be.
    #[inline]
    pub(super) fn block_made(&self, at: u64) -> &Block {
        match self.block(at) {
            Some(block) => block,
            None => self.make_block(at),
        }
    }

    #[cold]
    fn make_block(&self, at: u64) -> &Block {
        let number = at / BLOCK_BYTES;
        let first = number / LEAF_BLOCKS * LEAF_BLOCKS;
        let leaf = self.leaves[(number / LEAF_BLOCKS) as usize].get_or_init(|| {
            let blocks = self.bytes.div_ceil(BLOCK_BYTES) - first;
            let blocks = blocks.min(LEAF_BLOCKS);
            self.allocated_bytes.set(self.allocated_bytes.get() + 8 * blocks);
            (0..blocks).map(|_| OnceCell::new()).collect()
        });
        leaf[(number % LEAF_BLOCKS) as usize].get_or_init(|| {
            let bytes = size_of::<Block>() as u64;
            self.allocated_bytes.set(self.allocated_bytes.get() + bytes);
            Block::new()
        })
    }

    /// The word around a byte.
    #[inline]
    pub(super) fn word(&self, at: u64) -> u64 {
        self.block(at).map_or(0, |block| block.word(at).get())
    }

    #[inline]
    pub(super) fn set_word(&self, at: u64, value: u64) {
        match self.block(at) {
            Some(block) => block.word(at).set(value),
            None if value == 0 => {}
            None => self.make_block(at).word(at).set(value),
        }
    }

    /// Replaces the low `bytes` of `value` at a byte; they lie in one word.
    pub(super) fn set_piece(&self, at: u64, bytes: u64, value: u64) {
        self.set_word(at, merged(self.word(at), at, bytes, value));
    }

    pub(super) fn copy_out(&self, mut at: u64, mut to: &mut [u8]) {
        while !to.is_empty() {
            let room = (BLOCK_BYTES - at % BLOCK_BYTES).min(to.len() as u64);
            let (part, rest) = to.split_at_mut(room as usize);
            match self.block(at) {
                Some(block) => read_block(block, at, part),
                None => part.fill(0),
            }
            at += room;
            to = rest;
        }
    }

    pub(super) fn copy_in(&self, mut at: u64, mut from: &[u8]) {
        while !from.is_empty() {
            let room = (BLOCK_BYTES - at % BLOCK_BYTES).min(from.len() as u64);
            let (part, rest) = from.split_at(room as usize);
            write_block(self.block_made(at), at, part);
            at += room;
            from = rest;
        }
    }

    pub(super) fn zero(&self, mut at: u64, bytes: u64) {
        let end = at + bytes;
        while at < end {
            let stop = end.min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
            if let Some(block) = self.block(at) {
                let mut at = at;
                while at < stop {
                    let piece = (8 - at % 8).min(stop - at);
                    let word = block.word(at);
                    word.set(merged(word.get(), at, piece, 0));
                    at += piece;
                }
            }
            at = stop;
        }
    }
}

/// `word` with the low `bytes` of `value` at the place of byte `at`.
#[inline]
pub(super) fn merged(word: u64, at: u64, bytes: u64, value: u64) -> u64 {
    let shift = at % 8 * 8;
    let mask = (u64::MAX >> (64 - 8 * bytes)) << shift;
    word & !mask | value << shift & mask
}

fn read_block(block: &Block, mut at: u64, mut to: &mut [u8]) {
    if !at.is_multiple_of(8) {
        let head = ((8 - at % 8) as usize).min(to.len());
        let bytes = (block.word(at).get() >> (at % 8 * 8)).to_le_bytes();
        to[..head].copy_from_slice(&bytes[..head]);
        to = &mut to[head..];
        at += head as u64;
    }
    let first = (at % BLOCK_BYTES / 8) as usize;
    let mut chunks = to.chunks_exact_mut(8);
    for (chunk, word) in chunks.by_ref().zip(&block.words[first..]) {
        chunk.copy_from_slice(&word.get().to_le_bytes());
        at += 8;
    }
    let tail = chunks.into_remainder();
    if !tail.is_empty() {
        tail.copy_from_slice(&block.word(at).get().to_le_bytes()[..tail.len()]);
    }
}

fn write_block(block: &Block, mut at: u64, mut from: &[u8]) {
    while !from.is_empty() {
        let piece = (8 - at % 8).min(from.len() as u64);
        let word = block.word(at);
        if piece == 8 {
            word.set(little(&from[..8]));
        } else {
            word.set(merged(word.get(), at, piece, little(&from[..piece as usize])));
        }
        at += piece;
        from = &from[piece as usize..];
    }
}

/// At most 8 bytes as a word.
#[inline]
pub(super) fn little(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}
