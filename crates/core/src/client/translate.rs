//! The translation cache of a handle: page → frame, generation and link. Direct-mapped by the low
//! bits of the page id, because pages of one allocation have consecutive ids and so never
//! displace one another; each leased range of ids starts elsewhere, because the ranges of two
//! racks would displace one another page by page. Private to its handle; validity is decided by
//! the page table at each access, never here.

use super::LinkId;
use crate::addr::{FrameIndex, Generation, PageId};
use crate::constants::PAGE_ID_LEASE;
use std::cell::Cell;

/// Where a page lives, as far as this handle knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    pub page: PageId,
    /// The generation of its frame when it was learned.
    pub generation: Generation,
    /// Offset of the frame in the pages section, bytes.
    pub base: u64,
    pub frame: FrameIndex,
    /// The link to its rack.
    pub link: LinkId,
}

/// How far apart two leased ranges start: odd, and near the golden ratio of the default size, so
/// that the starts of many ranges spread.
const RANGE_STRIDE: u64 = 5063;
const _: () = assert!(PAGE_ID_LEASE.is_power_of_two());

/// Its page is none that an address can name, so that one comparison tells a hit.
const EMPTY: Translation = Translation {
    page: PageId(u64::MAX),
    generation: Generation(0),
    base: 0,
    frame: FrameIndex(0),
    link: LinkId(0),
};

/// The counter of one entry of the translation cache: reads in the low half, writes above them,
/// and a mark that the entry is in the list. Reads that overflow, after four thousand million
/// without a report, count as a write.
pub(super) type Counter = Cell<u64>;

/// In a counter: its entry is in the list of those that have counts.
pub(super) const LISTED: u64 = 1 << 63;

/// The entry of a counter gets another page: in the list as before.
pub(super) fn reset(counter: &Counter) {
    counter.set(counter.get() & LISTED);
}

/// A translation and the use of its page by this handle.
#[derive(Clone, Debug)]
struct Entry {
    translation: Translation,
    used: Counter,
}
// Five entries are in two and a half cache lines; whatever is larger costs misses.
const _: () = assert!(size_of::<Entry>() <= 40);

#[derive(Debug)]
pub(super) struct Translations {
    entries: Box<[Entry]>,
    mask: u64,
}

impl Translations {
    pub(super) fn new(entries: u32) -> Self {
        let count = entries.max(1).next_power_of_two();
        let empty = Entry { translation: EMPTY, used: Counter::default() };
        Self { entries: vec![empty; count as usize].into_boxed_slice(), mask: u64::from(count) - 1 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Where a page's translation is, if there is one.
    #[inline(always)]
    pub(super) fn index(&self, page: PageId) -> usize {
        let range = page.0 / PAGE_ID_LEASE;
        (page.0.wrapping_add(range.wrapping_mul(RANGE_STRIDE)) & self.mask) as usize
    }

    #[inline(always)]
    pub(super) fn get(&self, page: PageId) -> Option<&Translation> {
        let entry = self.at(self.index(page));
        (entry.page == page).then_some(entry)
    }

    #[inline(always)]
    pub(super) fn at(&self, index: usize) -> &Translation {
        &self.entries[index].translation
    }

    /// The counter beside a translation.
    #[inline(always)]
    pub(super) fn counter(&self, index: usize) -> &Counter {
        &self.entries[index].used
    }

    pub(super) fn put(&mut self, translation: Translation) {
        let index = self.index(translation.page);
        let entry = &mut self.entries[index];
        if entry.translation.page != translation.page {
            reset(&entry.used);
        }
        entry.translation = translation;
    }

    pub(super) fn forget(&mut self, page: PageId) {
        let index = self.index(page);
        let entry = &mut self.entries[index];
        if entry.translation.page == page {
            entry.translation = EMPTY;
            reset(&entry.used);
        }
    }

    pub(super) fn forget_link(&mut self, link: LinkId) {
        for entry in self.entries.iter_mut().filter(|entry| entry.translation.link == link) {
            entry.translation = EMPTY;
            reset(&entry.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::TRANSLATION_ENTRIES_DEFAULT;

    #[test]
    fn the_first_pages_of_eight_racks_are_all_cached_at_once() {
        let mut cache = Translations::new(TRANSLATION_ENTRIES_DEFAULT);
        let pages = (0..8).flat_map(|rack| (0..512).map(move |i| 1 + rack * PAGE_ID_LEASE + i));
        for page in pages.clone() {
            cache.put(Translation { page: PageId(page), ..EMPTY });
        }
        let missing = pages.filter(|page| cache.get(PageId(*page)).is_none()).count();
        assert_eq!(missing, 0);
    }
}
