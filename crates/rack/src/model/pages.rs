//! A node's pages: which virtual page is where. A table of its own, because it is looked up for
//! every access and its order must not differ from run to run: open addressing over a dense list.

use serde::{Deserialize, Serialize};

/// Bytes of a page. Source: the published code.
pub const PAGE_BYTES: u64 = 4096;
pub const PAGE_LINES: u32 = 64;

const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageLocation {
    /// In this frame of the node's own memory.
    Local(u32),
    /// In this page of the chunks that the node holds: chunk times pages of a chunk, plus page.
    Remote(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Process and virtual page number.
    pub key: u64,
    pub place: PageLocation,
    /// The window that `heat` counts.
    pub window: u32,
    pub heat: u32,
    /// The line that was accessed last.
    pub last_line: u8,
    pub is_moving: bool,
}

/// The pages of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pages {
    pages: Vec<Page>,
    /// Indexes into `pages`, in a power of two of cells.
    cells: Vec<u32>,
}

impl Default for Pages {
    fn default() -> Self {
        Pages { pages: Vec::new(), cells: vec![EMPTY; 64] }
    }
}

/// The key of an address of a process.
#[inline]
pub fn key_of(pid: u32, addr: u64) -> u64 {
    (addr / PAGE_BYTES) | u64::from(pid) << 52
}

impl Pages {
    #[inline]
    fn cell_of(&self, key: u64) -> usize {
        let shift = 64 - self.cells.len().trailing_zeros();
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize
    }

    /// The page's index, if it was ever touched.
    #[inline]
    pub fn find(&self, key: u64) -> Option<u32> {
        let mut cell = self.cell_of(key);
        loop {
            let index = self.cells[cell];
            if index == EMPTY {
                return None;
            }
            if self.pages[index as usize].key == key {
                return Some(index);
            }
            cell = (cell + 1) % self.cells.len();
        }
    }

    /// Adds a page that is not there; its index.
    pub fn add(&mut self, key: u64, place: PageLocation) -> u32 {
        if (self.pages.len() + 1) * 2 > self.cells.len() {
            self.grow();
        }
        let index = self.pages.len() as u32;
        let page = Page { key, place, window: 0, heat: 0, last_line: 0, is_moving: false };
        self.pages.push(page);
        self.enter(key, index);
        index
    }

    fn enter(&mut self, key: u64, index: u32) {
        let mut cell = self.cell_of(key);
        while self.cells[cell] != EMPTY {
            cell = (cell + 1) % self.cells.len();
        }
        self.cells[cell] = index;
    }

    fn grow(&mut self) {
        self.cells = vec![EMPTY; self.cells.len() * 2];
        for index in 0..self.pages.len() {
            self.enter(self.pages[index].key, index as u32);
        }
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// A page by its index.
    #[inline]
    pub fn page(&self, index: u32) -> &Page {
        &self.pages[index as usize]
    }

    /// The same, to change it.
    #[inline]
    pub fn page_mut(&mut self, index: u32) -> &mut Page {
        &mut self.pages[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn pages_are_found_as_in_a_map() {
        let (mut pages, mut model) = (Pages::default(), BTreeMap::new());
        let mut state = 7u64;
        for turn in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = key_of((state >> 60) as u32, (state >> 33) % 9_000 * PAGE_BYTES + turn % 64);
            assert_eq!(pages.find(key), model.get(&key).copied());
            model.entry(key).or_insert_with(|| pages.add(key, PageLocation::Local(turn as u32)));
        }
        assert_eq!(pages.len(), model.len());
        assert!(model.iter().all(|(key, index)| pages.page(*index).key == *key));
    }
}
