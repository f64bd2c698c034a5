//! The page cache: blocks of other racks' pages that a held read lock keeps from changing.
//!
//! In: blocks that were read from home, each within a range that a lock of this handle covers
//! ([`PageCache::insert`]). Out: bytes for reads ([`PageCache::read`]). The cache knows nothing of
//! locks: its owner asks it only for ranges with a lock that is held now, and drops a range's
//! blocks when the lock ends or its bytes are written (decision 0020). The block that was not used
//! for longest makes room. Source: Rcmp §5.4 (CXL page cache, LRU).

use crate::addr::GAddr;
use crate::constants::CACHED_BLOCK_BYTES;
use std::collections::BTreeMap;

#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    /// When it was read last, in reads.
    used: u64,
}

/// Copies of other racks' memory.
#[derive(Debug)]
pub struct PageCache {
    blocks_max: usize,
    blocks: BTreeMap<u64, Block>,
    spare: Vec<Vec<u8>>,
    reads: u64,
}

impl PageCache {
    /// An empty cache of up to `blocks_max` blocks.
    pub fn new(blocks_max: u32) -> Self {
        let blocks_max = blocks_max as usize;
        Self { blocks_max, blocks: BTreeMap::new(), spare: Vec::new(), reads: 0 }
    }

    /// Whether it keeps nothing, ever.
    pub fn is_off(&self) -> bool {
        self.blocks_max == 0
    }

    /// The block around an address, within a locked range: what is to be read at once.
    pub fn block_of(addr: GAddr, (first, end): (GAddr, GAddr)) -> (GAddr, u64) {
        assert!((first.0..end.0).contains(&addr.0), "the range covers the address");
        let start = (addr.0 & !(CACHED_BLOCK_BYTES - 1)).max(first.0);
        let over = (addr.0 | (CACHED_BLOCK_BYTES - 1)).min(end.0 - 1);
        (GAddr(start), over - start + 1)
    }

    /// Copies the first bytes at `addr` that one block has; how many those are, 0 if none.
    pub fn read(&mut self, addr: GAddr, to: &mut [u8]) -> usize {
        let Some((first, block)) = self.blocks.range_mut(..=addr.0).next_back() else { return 0 };
        let skipped = (addr.0 - first) as usize;
        let Some(from) = block.bytes.get(skipped..) else { return 0 };
        let bytes = from.len().min(to.len());
        to[..bytes].copy_from_slice(&from[..bytes]);
        self.reads += 1;
        block.used = self.reads;
        bytes
    }

    /// A buffer for the next block, `bytes` bytes long; it comes back with
    /// [`PageCache::insert`] or [`PageCache::give_back`].
    pub fn take_spare(&mut self, bytes: u64) -> Vec<u8> {
        if self.spare.is_empty() && self.blocks.len() >= self.blocks_max {
            let oldest = self.blocks.iter().min_by_key(|(_, block)| block.used);
            if let Some(block) = oldest.map(|(at, _)| *at).and_then(|at| self.blocks.remove(&at)) {
                self.spare.push(block.bytes);
            }
        }
        let mut spare = self.spare.pop().unwrap_or_default();
        spare.clear();
        spare.resize(bytes as usize, 0);
        spare
    }

    /// A buffer of [`PageCache::take_spare`] that became no block.
    pub fn give_back(&mut self, spare: Vec<u8>) {
        self.spare.push(spare);
    }

    /// Keeps a block; none of its bytes may be kept already.
    pub fn insert(&mut self, first: GAddr, bytes: Vec<u8>) {
        if self.blocks.len() >= self.blocks_max || bytes.is_empty() {
            return self.give_back(bytes);
        }
        self.reads += 1;
        let block = Block { bytes, used: self.reads };
        assert!(self.blocks.insert(first.0, block).is_none(), "blocks are read once");
    }

    /// Drops the blocks that have bytes between two addresses.
    pub fn forget(&mut self, first: GAddr, end: GAddr) {
        while let Some((at, block)) = self.blocks.range(..end.0).next_back() {
            let at = *at;
            if at + block.bytes.len() as u64 <= first.0 {
                break;
            }
            if let Some(block) = self.blocks.remove(&at) {
                self.spare.push(block.bytes);
            }
        }
    }

    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = CACHED_BLOCK_BYTES;

    fn filled(cache: &mut PageCache, first: u64, bytes: u64, value: u8) {
        let mut block = cache.take_spare(bytes);
        block.fill(value);
        cache.insert(GAddr(first), block);
    }

    #[test]
    fn a_block_stays_within_the_range_that_is_locked() {
        let range = (GAddr(B + 64), GAddr(3 * B + 128));
        assert_eq!(PageCache::block_of(GAddr(B + 100), range), (GAddr(B + 64), B - 64));
        assert_eq!(PageCache::block_of(GAddr(2 * B + 5), range), (GAddr(2 * B), B));
        assert_eq!(PageCache::block_of(GAddr(3 * B), range), (GAddr(3 * B), 128));
        let line = (GAddr(64), GAddr(128));
        assert_eq!(PageCache::block_of(GAddr(127), line), (GAddr(64), 64));
    }

    #[test]
    fn reads_get_what_was_kept_up_to_the_end_of_its_block_and_nothing_else() {
        let mut cache = PageCache::new(4);
        filled(&mut cache, 64, 128, 7);
        let mut to = [0; 200];
        assert_eq!(cache.read(GAddr(63), &mut to), 0);
        assert_eq!(cache.read(GAddr(192), &mut to), 0);
        assert_eq!(cache.read(GAddr(100), &mut to), 92);
        assert_eq!((to[91], to[92]), (7, 0));
        assert_eq!(cache.read(GAddr(64), &mut to[..8]), 8);
    }

    #[test]
    fn the_block_that_was_not_read_for_longest_makes_room() {
        let mut cache = PageCache::new(3);
        (0..3).for_each(|index| filled(&mut cache, index * B, B, index as u8));
        let mut to = [0; 8];
        assert_eq!(cache.read(GAddr(0), &mut to), 8);
        filled(&mut cache, 3 * B, B, 3);
        assert_eq!(cache.blocks(), 3);
        assert_eq!(cache.read(GAddr(B), &mut to), 0, "the second was the oldest");
        for at in [0, 2 * B, 3 * B] {
            assert_eq!(cache.read(GAddr(at), &mut to), 8);
            assert_eq!(to, [(at / B) as u8; 8]);
        }
    }

    #[test]
    fn what_is_forgotten_is_not_shown_any_more() {
        let mut cache = PageCache::new(8);
        (0..5).for_each(|index| filled(&mut cache, index * B, B, 1));
        cache.forget(GAddr(2 * B - 1), GAddr(3 * B + 1));
        let kept: Vec<bool> =
            (0..5).map(|index| cache.read(GAddr(index * B + 9), &mut [0; 8]) == 8).collect();
        assert_eq!(kept, [true, false, false, false, true]);
        cache.forget(GAddr(0), GAddr(u64::MAX));
        assert_eq!(cache.blocks(), 0);
    }

    #[test]
    fn a_cache_without_blocks_keeps_nothing() {
        let mut cache = PageCache::new(0);
        assert!(cache.is_off());
        filled(&mut cache, 0, B, 1);
        assert_eq!((cache.blocks(), cache.read(GAddr(0), &mut [0; 8])), (0, 0));
    }
}
