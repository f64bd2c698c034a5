//! The tables of what is freed and not yet gone.

use crate::addr::{GAddr, PageGeometry, PageId, RackId};
use crate::master::record::{
    self, OrphanKey, OwedRecord, PaidRecord, StateError, StateWrite, Table,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Default)]
pub(in crate::master) struct DeferredFreeTable {
    /// Pages that the directory has forgotten, with the rack that had them.
    pub(super) pages: BTreeMap<PageId, RackId>,
    pub(super) of_rack: BTreeSet<(RackId, PageId)>,
    pub(super) owed: BTreeMap<GAddr, OwedRecord>,
    /// Racks' regions, with the number of the last debt that was taken over.
    pub(super) paid: BTreeMap<RackId, PaidRecord>,
}

impl DeferredFreeTable {
    /// Records in all, to find at the start that none is missing.
    pub(in crate::master) fn count(&self) -> u64 {
        (self.pages.len() + self.owed.len() + self.paid.len()) as u64
    }

    /// Frees that are not done.
    pub(in crate::master) fn waiting(&self) -> u64 {
        (self.pages.len() + self.owed.len()) as u64
    }

    pub(in crate::master) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), StateError> {
        match record::parse_orphan_key(key)? {
            OrphanKey::Page(page) => {
                let rack = record::read(Table::Orphans, key, value)?;
                self.insert_page(page, rack);
            }
            OrphanKey::Owed(addr) => {
                self.owed.insert(addr, record::read(Table::Orphans, key, value)?);
            }
            OrphanKey::Paid(rack) => {
                self.paid.insert(rack, record::read(Table::Orphans, key, value)?);
            }
        }
        Ok(())
    }

    pub(super) fn insert_page(&mut self, page: PageId, rack: RackId) {
        self.pages.insert(page, rack);
        self.of_rack.insert((rack, page));
    }

    /// A rack has shut its page.
    pub(in crate::master) fn remove_page(
        &mut self,
        page: PageId,
        rack: RackId,
        writes: &mut Vec<StateWrite>,
    ) {
        if self.of_rack.remove(&(rack, page)) {
            self.pages.remove(&page);
            writes.push(record::erase(Table::Orphans, OrphanKey::Page(page).bytes()));
        }
    }

    /// A page is no more: what was owed in it went with it.
    pub(super) fn forget_owed_in(
        &mut self,
        page: PageId,
        pages: PageGeometry,
        writes: &mut Vec<StateWrite>,
    ) {
        let range = pages.join(page, 0)..=pages.join(page, pages.page_bytes() - 1);
        let gone: Vec<GAddr> = self.owed.range(range).map(|(addr, _)| *addr).collect();
        for addr in gone {
            self.forget_owed(addr, writes);
        }
    }

    pub(super) fn forget_owed(&mut self, addr: GAddr, writes: &mut Vec<StateWrite>) {
        self.owed.remove(&addr);
        writes.push(record::erase(Table::Orphans, OrphanKey::Owed(addr).bytes()));
    }

    /// A rack's region is gone, with the pages in it.
    pub(super) fn forget_rack(&mut self, rack: RackId, writes: &mut Vec<StateWrite>) {
        let range = (rack, PageId(0))..=(rack, PageId(u64::MAX));
        let pages: Vec<PageId> = self.of_rack.range(range).map(|(_, page)| *page).collect();
        for page in pages {
            self.remove_page(page, rack, writes);
        }
    }
}
