//! A table of [`PageHeat`] by page, with memory that is fixed when it is made. Open addressing with
//! our own fixed hash, so the same calls give the same table everywhere; nothing is allocated
//! later. When it is full, a clock hand looks at the next few pages and gives up the coldest of
//! them.

use super::{Counts, HEAT_MILLI_MIN, HeatParams, PageHeat};
use crate::addr::PageId;
use crate::constants::HEAT_EVICT_SAMPLE;

#[derive(Clone, Debug)]
pub struct HeatTable {
    params: HeatParams,
    slots: Box<[Slot]>,
    count: usize,
    hand: usize,
}

/// Page 0 is no page: the slot is empty.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    page: PageId,
    heat: PageHeat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The heat that the last access found, thousandths.
    pub heat_milli: u64,
    /// Accesses in the recent windows before these.
    pub recent_before: u64,
    /// Accesses in the recent windows with these.
    pub recent_after: u64,
    /// The page that was given up for this one.
    pub evicted: Option<PageId>,
}

/// The memory that a table may have is less than the least table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a heat table of {given_bytes} bytes has no room; the least is {least_bytes} bytes")]
pub struct TableTooSmall {
    pub given_bytes: usize,
    pub least_bytes: usize,
}

const SLOTS_MIN: usize = 8;

impl HeatTable {
    /// A table in at most `memory_bytes_max` bytes, all of which are taken at once. Seven of eight
    /// slots of 40 bytes hold a page, the others keep searches short.
    pub fn new(params: HeatParams, memory_bytes_max: usize) -> Result<Self, TableTooSmall> {
        let slots = memory_bytes_max / size_of::<Slot>();
        if slots < SLOTS_MIN {
            let least_bytes = SLOTS_MIN * size_of::<Slot>();
            return Err(TableTooSmall { given_bytes: memory_bytes_max, least_bytes });
        }
        let slots = vec![Slot::default(); slots].into_boxed_slice();
        Ok(Self { params, slots, count: 0, hand: 0 })
    }

    /// The constants that it was made with.
    pub fn params(&self) -> &HeatParams {
        &self.params
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Pages that the table can hold.
    pub fn count_max(&self) -> usize {
        self.slots.len() - self.slots.len().div_ceil(8)
    }

    /// Memory of the table, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }

    /// Counts accesses of a page, in O(1) on average: a full table gives up the coldest of the next
    /// 16 pages under its hand. Page 0 is no page and is not kept.
    pub fn note(&mut self, page: PageId, more: Counts, now_ns: u64) -> Noted {
        let mut evicted = None;
        let mut passing = PageHeat::default();
        let heat = match self.find(page) {
            Ok(index) => &mut self.slots[index].heat,
            Err(_) if page == PageId(0) || more.total() == 0 => &mut passing,
            Err(mut index) => {
                if self.count == self.count_max() {
                    evicted = Some(self.evict(now_ns));
                    index = self.find(page).expect_err("what is added is not there");
                }
                self.slots[index].page = page;
                self.count += 1;
                &mut self.slots[index].heat
            }
        };
        let recent = heat.recent(&self.params, now_ns).counts;
        let heat_milli = heat.note(&self.params, more, now_ns);
        let (recent_before, recent_after) = (recent.total(), recent.plus(more).total());
        Noted { heat_milli, recent_before, recent_after, evicted }
    }

    /// Counts `count` reads. As [`HeatTable::note`].
    pub fn note_reads(&mut self, page: PageId, count: u32, now_ns: u64) -> Noted {
        self.note(page, Counts { reads: count, writes: 0 }, now_ns)
    }

    /// Counts `count` writes. As [`HeatTable::note`].
    pub fn note_writes(&mut self, page: PageId, count: u32, now_ns: u64) -> Noted {
        self.note(page, Counts { reads: 0, writes: count }, now_ns)
    }

    /// What is known of a page; a page that is not in the table was not used.
    pub fn get(&self, page: PageId) -> PageHeat {
        self.find(page).map_or_else(|_| PageHeat::default(), |index| self.slots[index].heat)
    }

    /// The heat in thousandths that an access at `now_ns` would find.
    pub fn heat_milli(&self, page: PageId, now_ns: u64) -> u64 {
        self.find(page)
            .map_or(HEAT_MILLI_MIN, |index| self.slots[index].heat.heat_milli(&self.params, now_ns))
    }

    /// Forgets a page; whether it was there.
    pub fn remove(&mut self, page: PageId) -> bool {
        let found = self.find(page);
        if let Ok(index) = found {
            self.remove_at(index);
        }
        found.is_ok()
    }

    /// The page with the least heat, of equals the one used longest ago, then the lowest id. Looks
    /// at all pages. Source: Rcmp §5.3 step 2.
    pub fn coldest(&self, now_ns: u64) -> Option<(PageId, u64)> {
        let pages = self.pages().map(|(page, heat)| self.coldness(page, heat, now_ns));
        pages.min().map(|(heat_milli, _, page)| (page, heat_milli))
    }

    /// All pages, in an order that the calls so far decide.
    pub fn pages(&self) -> impl Iterator<Item = (PageId, &PageHeat)> {
        let used = self.slots.iter().filter(|slot| slot.page != PageId(0));
        used.map(|slot| (slot.page, &slot.heat))
    }

    fn coldness(&self, page: PageId, heat: &PageHeat, now_ns: u64) -> (u64, u64, PageId) {
        (heat.heat_milli(&self.params, now_ns), heat.last_ns, page)
    }

    /// Where a page's search starts.
    fn start(&self, page: PageId) -> usize {
        // The finisher of splitmix64: near ids go far apart.
        let mut z = page.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * self.slots.len() as u128) >> 64) as usize
    }

    /// The page's slot, or the empty one where it would go. An eighth of the slots is empty.
    fn find(&self, page: PageId) -> Result<usize, usize> {
        let mut index = self.start(page);
        loop {
            let slot = &self.slots[index];
            if slot.page == PageId(0) {
                return Err(index);
            }
            if slot.page == page {
                return Ok(index);
            }
            index = self.next(index);
        }
    }

    fn next(&self, index: usize) -> usize {
        if index + 1 == self.slots.len() { 0 } else { index + 1 }
    }

    fn evict(&mut self, now_ns: u64) -> PageId {
        let mut coldest: Option<((u64, u64, PageId), usize)> = None;
        let mut seen = 0;
        while seen < HEAT_EVICT_SAMPLE.min(self.count) {
            let slot = &self.slots[self.hand];
            if slot.page != PageId(0) {
                seen += 1;
                let here = (self.coldness(slot.page, &slot.heat, now_ns), self.hand);
                coldest = Some(coldest.map_or(here, |coldest| coldest.min(here)));
            }
            self.hand = self.next(self.hand);
        }
        let ((_, _, page), index) = coldest.expect("a full table holds a page");
        self.remove_at(index);
        page
    }

    /// Empties a slot and moves back whatever is no longer found past it.
    fn remove_at(&mut self, index: usize) {
        let count = self.slots.len();
        let mut hole = index;
        let mut at = self.next(hole);
        while self.slots[at].page != PageId(0) {
            let start = self.start(self.slots[at].page);
            // How far the page is from where its search starts, and from the hole.
            let (from_start, from_hole) =
                ((at + count - start) % count, (at + count - hole) % count);
            if from_start >= from_hole {
                self.slots[hole] = self.slots[at];
                hole = at;
            }
            at = self.next(at);
        }
        self.slots[hole] = Slot::default();
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constants::NS_PER_SECOND;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn table(pages: usize) -> HeatTable {
        let bytes = (pages * 8).div_ceil(7).max(SLOTS_MIN) * size_of::<Slot>();
        HeatTable::new(HeatParams::default(), bytes).unwrap()
    }

    #[test]
    fn a_table_without_room_is_refused_with_what_it_needs() {
        let refused = HeatTable::new(HeatParams::default(), 100).unwrap_err();
        assert_eq!(refused, TableTooSmall { given_bytes: 100, least_bytes: 320 });
        assert!(HeatTable::new(HeatParams::default(), 320).is_ok());
    }

    #[test]
    fn a_table_never_takes_more_memory_than_it_was_given() {
        let mut table = HeatTable::new(HeatParams::default(), 10_000).unwrap();
        for page in 1..=100_000 {
            table.note_reads(PageId(page), 1, page);
            assert!(table.count() <= table.count_max());
        }
        assert_eq!(table.count(), table.count_max());
        assert_eq!(table.memory_bytes(), 10_000);
        assert_eq!(table.count_max(), 218);
    }

    #[test]
    fn a_scan_of_cold_pages_leaves_the_hot_ones() {
        let mut table = table(1000);
        let hot = 1..=500;
        for page in hot.clone() {
            table.note_reads(PageId(page), 100, NS_PER_SECOND);
        }
        for page in 1_000_000..1_100_000 {
            table.note_reads(PageId(page), 1, NS_PER_SECOND + page);
        }
        let left = hot.filter(|&page| table.get(PageId(page)).counts.reads == 100).count();
        // The hand may meet sixteen hot pages in a row.
        assert!(left >= 450, "{left} of 500 hot pages are left");
    }

    #[test]
    fn page_0_is_no_page_and_no_access_adds_none() {
        let mut table = table(10);
        assert_eq!(table.note_reads(PageId(0), 5, 7).heat_milli, 5000);
        assert_eq!(table.note_reads(PageId(1), 0, 7).heat_milli, 1000);
        assert_eq!((table.count(), table.coldest(7)), (0, None));
        assert!(!table.remove(PageId(0)));
    }

    #[test]
    fn the_coldest_page_is_the_least_used_then_the_oldest_then_the_first() {
        let mut table = table(10);
        for (page, count, at) in [(5, 9, 1), (4, 3, 9), (3, 3, 9), (2, 3, 10)] {
            table.note_writes(PageId(page), count, at);
        }
        assert_eq!(table.coldest(10).map(|(page, _)| page), Some(PageId(3)));
        assert!(table.remove(PageId(3)));
        assert_eq!(table.coldest(10).map(|(page, _)| page), Some(PageId(4)));
    }

    proptest! {
        #[test]
        fn a_table_that_is_not_full_agrees_with_a_map(
            calls in proptest::collection::vec((1_u64..40, 0_u32..5, any::<bool>()), 1..300),
        ) {
            let params = HeatParams::default();
            let mut table = table(40);
            let mut model: BTreeMap<PageId, PageHeat> = BTreeMap::new();
            for (at, (page, count, remove)) in calls.into_iter().enumerate() {
                let (page, now_ns) = (PageId(page), at as u64 * NS_PER_SECOND / 3);
                if remove {
                    prop_assert_eq!(table.remove(page), model.remove(&page).is_some());
                } else {
                    let noted = table.note_reads(page, count, now_ns);
                    if count > 0 {
                        let heat = model.entry(page).or_default();
                        let heat = heat.note_reads(&params, count, now_ns);
                        prop_assert_eq!(noted.heat_milli, heat);
                    }
                    prop_assert_eq!(noted.evicted, None);
                }
                prop_assert_eq!(table.count(), model.len());
                let pages: BTreeMap<_, _> = table.pages().map(|(p, h)| (p, *h)).collect();
                prop_assert_eq!(&pages, &model);
                for page in 1..40 {
                    let there = model.get(&PageId(page)).copied().unwrap_or_default();
                    prop_assert_eq!(table.get(PageId(page)), there);
                }
            }
        }

        #[test]
        fn a_full_table_gives_up_one_page_for_each_new_one(
            pages in proptest::collection::vec(1_u64..200, 1..400),
        ) {
            let mut table = table(14);
            let mut there = BTreeSet::new();
            for (at, page) in pages.into_iter().enumerate() {
                let noted = table.note_writes(PageId(page), 1, at as u64);
                if let Some(evicted) = noted.evicted {
                    prop_assert!(there.remove(&evicted.0) && !there.contains(&page));
                }
                there.insert(page);
                let pages: BTreeSet<_> = table.pages().map(|(p, _)| p.0).collect();
                prop_assert_eq!(&pages, &there);
                for &page in &there {
                    prop_assert!(table.find(PageId(page)).is_ok());
                }
            }
        }
    }
}
