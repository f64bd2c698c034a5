//! What is freed and not yet gone: pages of freed runs that racks other than the first page's have,
//! and allocations that a word named in another rack until it was freed there. Owns these tables
//! and the calls that wait for their ends; [`State`] keeps them as durable as the directory.
//!
//! ```text
//! OrphanPages   --> pages:  page -> rack    --NextOrphans--> its home --RemovePages--> gone
//! FreeElsewhere --> owed:   address -> size --NextOrphans--> its home --OrphansTaken--> gone
//! ```
//!
//! A page's entry goes when its home has shut the page; the home keeps account of the frame from
//! then on. An allocation's entry goes when its home has noted that it will free it, and only after
//! that the home does: while the entry is here the allocation is live, so no other allocation can
//! have its address. What an entry is of is found by the directory when it is told, since pages
//! move on.
//!
//! Debts of a region are numbered and paid in order; the last number is kept, so that a repeated
//! call adds nothing.

pub(super) mod table;

use super::record::{self, OrphanKey, OwedRecord, PaidRecord, StateWrite, Table};
use super::state::{Applied, Command, State, broken};
use super::{ConnId, Master, Peer, check_count};
use crate::addr::{GAddr, PageId, RackId};
use crate::constants::{
    COMMIT_PAGES_MAX, DEBTS_MAX, DUES_MAX, MASTER_AWAITS_MAX, ORPHAN_PAGES_ANSWER_MAX, ORPHANS_MAX,
    RUN_PAGES_MAX,
};
use crate::error::{Error, Result};
use crate::seam::Probe;
use crate::wire::{DeferredFree, MasterAnswer, MasterCall, MasterReply, PageHome, Resolved};
use std::collections::BTreeMap;
use table::DeferredFreeTable;

impl State {
    /// Pages of a run with a first page that its home is about to remove.
    pub(super) fn orphan_pages(
        &mut self,
        rack: RackId,
        region_id: [u64; 2],
        first: PageId,
        pages: &[PageId],
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        self.present_region(rack, region_id)?;
        let run = first.0.saturating_add(1)..first.0.saturating_add(u64::from(RUN_PAGES_MAX));
        if let Some(page) = pages.iter().find(|page| !run.contains(&page.0)) {
            return Err(broken(rack, format!("page {page} in a run from {first}")));
        }
        // Asked again after the end of the free: nothing is left to be done.
        let is_home = |home: PageHome| home.rack == rack;
        if !matches!(self.resolve(first), Resolved::Home(home) if is_home(home)) {
            return Ok(Applied::Done);
        }
        for &page in pages {
            let found = self.resolve(page);
            if self.forget_page(page, writes)
                && let Resolved::Home(home) = found
            {
                self.orphans.insert_page(page, home.rack);
                let key = OrphanKey::Page(page).bytes();
                writes.push(record::write(Table::Orphans, key, &home.rack));
            }
        }
        self.count_tables();
        Ok(Applied::Done)
    }

    /// Frees that a rack owes. All are taken over, or none.
    pub(super) fn free_elsewhere(
        &mut self,
        rack: RackId,
        region_id: [u64; 2],
        debts: &[DeferredFree],
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        let (region, _) = self.present_region(rack, region_id)?;
        let paid = self.orphans.paid.get(&rack).filter(|paid| paid.region == region);
        let mut last = paid.map_or(0, |paid| paid.last);
        if self.orphans.owed.len() + debts.len() > ORPHANS_MAX {
            let what = "frees that racks owe one another".into();
            return Err(Error::Busy { what, limit: ORPHANS_MAX as u64 });
        }
        for &DeferredFree { id, addr, bytes } in debts {
            if id <= last {
                continue;
            }
            last = id;
            let page = self.geometry().map(|pages| pages.page(addr));
            let lives = page.is_some_and(|page| matches!(self.resolve(page), Resolved::Home(_)));
            // What is owed already is freed once.
            if !lives || self.orphans.owed.contains_key(&addr) {
                continue;
            }
            self.pool.orphan_last += 1;
            let owed = OwedRecord { id: self.pool.orphan_last, bytes };
            writes.push(record::write(Table::Orphans, OrphanKey::Owed(addr).bytes(), &owed));
            self.orphans.owed.insert(addr, owed);
        }
        let paid = PaidRecord { region, last };
        writes.push(record::write(Table::Orphans, OrphanKey::Paid(rack).bytes(), &paid));
        self.orphans.paid.insert(rack, paid);
        self.count_tables();
        Ok(Applied::Done)
    }

    /// Homes have noted what they free.
    pub(super) fn orphans_taken(
        &mut self,
        orphans: &[DeferredFree],
        writes: &mut Vec<StateWrite>,
    ) -> Applied {
        for DeferredFree { id, addr, .. } in orphans {
            if self.orphans.owed.get(addr).is_some_and(|owed| owed.id == *id) {
                self.orphans.forget_owed(*addr, writes);
            }
        }
        self.count_tables();
        Applied::Done
    }

    /// The directory forgets a page, and what was owed in it; whether it knew it.
    pub(super) fn forget_page(&mut self, page: PageId, writes: &mut Vec<StateWrite>) -> bool {
        let Some(home) = self.directory.remove(page) else { return false };
        writes.push(record::erase(Table::Pages, record::page_key(page)));
        self.uncount_page(&home);
        if let Some(pages) = self.geometry() {
            self.orphans.forget_owed_in(page, pages, writes);
        }
        true
    }

    /// A rack has another region: what was to be freed in the old one is lost.
    pub(super) fn forget_orphans_of(&mut self, rack: RackId, writes: &mut Vec<StateWrite>) {
        self.orphans.forget_rack(rack, writes);
        let pages = self.geometry().expect("a rack has joined");
        let lost = |addr: &GAddr| !matches!(self.resolve(pages.page(*addr)), Resolved::Home(_));
        let lost: Vec<GAddr> = self.orphans.owed.keys().copied().filter(lost).collect();
        for addr in lost {
            self.orphans.forget_owed(addr, writes);
        }
        self.count_tables();
    }

    /// What a rack is to free now, as much as fits into an answer.
    fn orphans_of(&self, rack: RackId) -> Option<MasterAnswer> {
        let range = (rack, PageId(0))..=(rack, PageId(u64::MAX));
        let pages = self.orphans.of_rack.range(range).map(|(_, page)| *page);
        let pages: Vec<PageId> = pages.take(ORPHAN_PAGES_ANSWER_MAX).collect();
        let geometry = self.geometry()?;
        let is_there = |addr: &GAddr| match self.resolve(geometry.page(*addr)) {
            Resolved::Home(home) => home.rack == rack,
            Resolved::Unmapped | Resolved::Lost(_) => false,
        };
        let owed = self.orphans.owed.iter().filter(|(addr, _)| is_there(addr));
        let allocations =
            owed.map(|(&addr, &OwedRecord { id, bytes })| DeferredFree { id, addr, bytes });
        let allocations: Vec<DeferredFree> = allocations.take(DUES_MAX).collect();
        let nothing = pages.is_empty() && allocations.is_empty();
        (!nothing).then_some(MasterAnswer::Orphans { pages, allocations })
    }
}

/// The calls that wait for something to free, or for the end of a free: in a leader's memory, and
/// asked again after every reconnect.
#[derive(Default)]
pub(super) struct FreeWaiters {
    next: BTreeMap<ConnId, u64>,
    awaits: Vec<(ConnId, u64, GAddr, u64)>,
}

impl FreeWaiters {
    pub(super) fn on_closed(&mut self, conn: ConnId) {
        self.next.remove(&conn);
        self.awaits.retain(|(waits, ..)| *waits != conn);
    }

    /// No call waits any more; the calls that did.
    pub(super) fn take_all(&mut self) -> Vec<(ConnId, u64)> {
        let next = std::mem::take(&mut self.next);
        let awaits = std::mem::take(&mut self.awaits);
        next.into_iter().chain(awaits.into_iter().map(|(conn, id, ..)| (conn, id))).collect()
    }
}

impl<P: Probe> Master<P> {
    /// The calls about what is freed and not yet gone, all from daemons.
    pub(super) fn serve_orphans(
        &mut self,
        conn: ConnId,
        peer: Peer,
        id: u64,
        call: MasterCall,
    ) -> Result<Option<MasterAnswer>> {
        let (rack, region_id) = self.daemon(peer)?;
        let command = match call {
            MasterCall::OrphanPages { first, pages } => {
                check_count(pages.len(), COMMIT_PAGES_MAX)?;
                Command::OrphanPages { rack, region_id, first, pages }
            }
            MasterCall::FreeElsewhere { debts } => {
                check_count(debts.len(), DEBTS_MAX as u32)?;
                Command::FreeElsewhere { rack, region_id, debts }
            }
            MasterCall::OrphansTaken { orphans } => {
                check_count(orphans.len(), DUES_MAX as u32)?;
                Command::OrphansTaken { orphans }
            }
            MasterCall::AwaitGone { addr, bytes } => {
                return self.await_gone(conn, id, addr, bytes);
            }
            MasterCall::NextOrphans => return Ok(self.next_orphans(conn, id, rack)),
            _ => unreachable!("the caller serves the other calls"),
        };
        self.propose(conn, id, command).map(|()| None)
    }

    /// A daemon asks for what it is to free.
    fn next_orphans(&mut self, conn: ConnId, id: u64, rack: RackId) -> Option<MasterAnswer> {
        let answer = self.state.orphans_of(rack);
        match answer {
            Some(_) => drop(self.parked.next.remove(&conn)),
            None => drop(self.parked.next.insert(conn, id)),
        }
        answer
    }

    /// A daemon waits until a free has ended everywhere.
    fn await_gone(
        &mut self,
        conn: ConnId,
        id: u64,
        addr: GAddr,
        bytes: u64,
    ) -> Result<Option<MasterAnswer>> {
        if self.is_gone(addr, bytes) {
            return Ok(Some(MasterAnswer::Done));
        }
        if self.parked.awaits.len() >= MASTER_AWAITS_MAX {
            let limit = MASTER_AWAITS_MAX as u64;
            return Err(Error::Busy { what: "waits for frees in other racks".into(), limit });
        }
        self.parked.awaits.push((conn, id, addr, bytes));
        Ok(None)
    }

    fn is_gone(&self, addr: GAddr, bytes: u64) -> bool {
        let Some(pages) = self.state.geometry() else { return true };
        let end = addr.0.saturating_add(bytes.max(1));
        let (first, last) = (pages.page(addr), pages.page(GAddr(end - 1)));
        let DeferredFreeTable { pages, owed, .. } = &self.state.orphans;
        let lives = |(_, home)| !self.state.is_lost(&home);
        owed.range(addr..GAddr(end)).next().is_none()
            && pages.range(first..=last).next().is_none()
            && !self.state.directory.range(first.0..=last.0).any(lives)
    }

    /// After a batch: answers the calls that waited for what it did.
    pub(super) fn serve_parked(&mut self, out: &mut Vec<(ConnId, MasterReply)>) {
        let asked: Vec<(ConnId, u64)> =
            self.parked.next.iter().map(|(conn, id)| (*conn, *id)).collect();
        for (conn, id) in asked {
            let Some(Peer::Daemon(rack)) = self.conns.get(&conn).map(|conn| conn.peer) else {
                self.parked.next.remove(&conn);
                continue;
            };
            if let Some(answer) = self.next_orphans(conn, id, rack) {
                out.push((conn, self.reply(id, Ok(answer))));
            }
        }
        let waiting = std::mem::take(&mut self.parked.awaits);
        for (conn, id, addr, bytes) in waiting {
            if self.is_gone(addr, bytes) {
                out.push((conn, self.reply(id, Ok(MasterAnswer::Done))));
            } else {
                self.parked.awaits.push((conn, id, addr, bytes));
            }
        }
    }
}
