//! The page directory: page → home, in memory. Owns no other state; `super::state` changes it
//! and writes the same change to the journal.
//!
//! Pages come in runs (a daemon leases ids in a row), and every id is used once, so that runs
//! thin out as pages are freed. A chunk of 64 ids keeps a bitmap and only the homes that are
//! there: some 22 bytes a page in a dense run, and no chunk outlives its last page.
//!
//! Source: Rcmp §5.1 (page directory); here ordered, never hashed.

use crate::addr::{FrameIndex, Generation, PageId, RackId};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const CHUNK_SHIFT: u32 = 6;
const CHUNK_MASK: u64 = (1 << CHUNK_SHIFT) - 1;

/// What a home is to its page. More roles come with replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    Primary = 0,
}

/// One home of a page, as the directory and the journal keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredHome {
    pub rack: RackId,
    /// What this home is to the page.
    pub role: Role,
    /// Always 0: the frame tells in which of the rack's memories the page lies.
    pub tier: u8,
    pub frame: FrameIndex,
    /// Which of the rack's regions, counted from 1 in the order in which they joined. If the rack
    /// has another one now, the page is lost.
    pub region: u32,
    /// The frame's generation: the version of this home.
    pub version: Generation,
}

/// A home in memory: words of 4 bytes, so that 20 bytes are 20 bytes.
#[derive(Clone, Copy)]
struct Packed([u32; 5]);

const _: () = assert!(size_of::<Packed>() == 20);

#[expect(clippy::cast_possible_truncation, reason = "the casts cut a number into its halves")]
impl Packed {
    fn pack(home: &StoredHome) -> Self {
        let place = u32::from(home.rack.0) << 16 | (home.role as u32) << 8 | u32::from(home.tier);
        let version = home.version.0;
        Self([place, home.frame.0, home.region, version as u32, (version >> 32) as u32])
    }

    fn unpack(self) -> StoredHome {
        let [place, frame, region, low, high] = self.0;
        StoredHome {
            rack: RackId((place >> 16) as u16),
            role: Role::Primary,
            tier: place as u8,
            frame: FrameIndex(frame),
            region,
            version: Generation(u64::from(high) << 32 | u64::from(low)),
        }
    }
}

/// The homes of up to 64 consecutive pages; bit n of `present` says that page n has one.
#[derive(Clone, Default)]
struct DirectoryChunk {
    present: u64,
    homes: Vec<Packed>,
}

impl DirectoryChunk {
    /// Where the home of page `bit` is or would be, and whether it is there.
    fn find(&self, bit: u64) -> (usize, bool) {
        let before = self.present & ((1 << bit) - 1);
        (before.count_ones() as usize, self.present >> bit & 1 == 1)
    }
}

/// All pages of the pool.
#[derive(Clone, Default)]
pub struct Directory {
    chunks: BTreeMap<u64, DirectoryChunk>,
    pages: u64,
}

impl Directory {
    /// The home of a page.
    pub fn get(&self, page: PageId) -> Option<StoredHome> {
        let chunk = self.chunks.get(&(page.0 >> CHUNK_SHIFT))?;
        let (index, there) = chunk.find(page.0 & CHUNK_MASK);
        there.then(|| chunk.homes[index].unpack())
    }

    /// Gives a page a home; the home that it had.
    pub fn insert(&mut self, page: PageId, home: StoredHome) -> Option<StoredHome> {
        let chunk = self.chunks.entry(page.0 >> CHUNK_SHIFT).or_default();
        let bit = page.0 & CHUNK_MASK;
        let (index, there) = chunk.find(bit);
        let packed = Packed::pack(&home);
        if there {
            return Some(std::mem::replace(&mut chunk.homes[index], packed).unpack());
        }
        chunk.homes.insert(index, packed);
        chunk.present |= 1 << bit;
        self.pages += 1;
        None
    }

    /// Forgets a page; the home that it had.
    pub fn remove(&mut self, page: PageId) -> Option<StoredHome> {
        let key = page.0 >> CHUNK_SHIFT;
        let chunk = self.chunks.get_mut(&key)?;
        let bit = page.0 & CHUNK_MASK;
        let (index, there) = chunk.find(bit);
        if !there {
            return None;
        }
        let home = chunk.homes.remove(index).unpack();
        chunk.present &= !(1 << bit);
        if chunk.present == 0 {
            self.chunks.remove(&key);
        } else if chunk.homes.capacity() > 2 * chunk.homes.len().max(2) {
            chunk.homes.shrink_to_fit();
        }
        self.pages -= 1;
        Some(home)
    }

    /// How many pages have a home.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// All pages in order.
    pub fn iter(&self) -> impl Iterator<Item = (PageId, StoredHome)> + '_ {
        self.chunks.iter().flat_map(pages_of)
    }

    /// The pages of a range that have homes, in order.
    pub fn range(
        &self,
        range: RangeInclusive<u64>,
    ) -> impl Iterator<Item = (PageId, StoredHome)> + '_ {
        let chunks = self.chunks.range(range.start() >> CHUNK_SHIFT..=range.end() >> CHUNK_SHIFT);
        chunks.flat_map(pages_of).filter(move |(page, _)| range.contains(&page.0))
    }

    /// Bytes of memory in use, without the allocator's own; for tests and statistics.
    pub fn memory_bytes(&self) -> u64 {
        // A tree node has room for 11 entries and is at least about half full.
        let node = size_of::<(u64, DirectoryChunk)>() as u64 * 11 / 6;
        let homes: usize = self.chunks.values().map(|c| c.homes.capacity()).sum();
        self.chunks.len() as u64 * node + (homes * size_of::<Packed>()) as u64
    }
}

/// The pages of a chunk, in order.
fn pages_of((&key, chunk): (&u64, &DirectoryChunk)) -> impl Iterator<Item = (PageId, StoredHome)> {
    let bits = (0..=CHUNK_MASK).filter(|bit| chunk.present >> bit & 1 == 1);
    bits.zip(&chunk.homes).map(move |(bit, home)| (PageId(key << CHUNK_SHIFT | bit), home.unpack()))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn home(n: u64) -> StoredHome {
        StoredHome {
            rack: RackId((n % 256) as u16),
            role: Role::Primary,
            tier: (n % 3) as u8,
            frame: FrameIndex(n as u32 ^ 0xdead_beef),
            region: (n >> 7) as u32,
            version: Generation(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        }
    }

    #[test]
    fn a_home_survives_packing() {
        for n in [0, 1, 77, u64::MAX, u64::MAX / 3] {
            assert_eq!(Packed::pack(&home(n)).unpack(), home(n));
        }
    }

    #[test]
    fn the_directory_agrees_with_a_plain_map_under_random_commands() {
        for seed in 1..20u64 {
            let mut directory = Directory::default();
            let mut model = BTreeMap::new();
            let mut random = seed;
            let mut next = || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random >> 20
            };
            for _ in 0..3000 {
                let page = PageId(next() % 300 * if next() % 2 == 0 { 1 } else { 97 });
                if next() % 5 < 3 {
                    let home = home(next());
                    let old = directory.insert(page, home);
                    assert_eq!(old, model.insert(page, home), "seed {seed}");
                } else {
                    assert_eq!(directory.remove(page), model.remove(&page), "seed {seed}");
                }
                assert_eq!(directory.get(page), model.get(&page).copied(), "seed {seed}");
            }
            assert_eq!(directory.pages(), model.len() as u64);
            assert!(directory.iter().eq(model.iter().map(|(&p, &h)| (p, h))), "seed {seed}");
            let (first, last) = (next() % 400, next() % 400);
            let (first, last) = (first.min(last), first.max(last));
            let expected = model.range(PageId(first)..=PageId(last)).map(|(&p, &h)| (p, h));
            assert!(directory.range(first..=last).eq(expected), "seed {seed}");
        }
    }

    #[test]
    fn half_a_million_pages_take_about_22_bytes_each_and_nothing_once_freed() {
        let mut directory = Directory::default();
        const PAGES: u64 = 524_288;
        for page in 1..=PAGES {
            directory.insert(PageId(page), home(page));
        }
        let bytes = directory.memory_bytes();
        println!("{bytes} bytes for {PAGES} pages");
        assert!(bytes <= PAGES * 24, "{bytes} bytes for {PAGES} pages");
        for page in 1..=PAGES {
            assert!(directory.remove(PageId(page)).is_some());
        }
        assert_eq!(directory.memory_bytes(), 0);
    }
}
