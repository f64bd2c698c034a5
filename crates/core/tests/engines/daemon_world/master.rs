//! The master as the daemon tests play it.

use super::RACK;
use rackpool_core::wire::{
    DeferredFree, MasterAnswer, MasterCall, MasterReply, PageHome, Resolved,
};
use rackpool_core::{Error, PageId, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The directory, as a master keeps it.
#[derive(Default)]
pub struct FakeMaster {
    pub pages: BTreeMap<u64, PageHome>,
    /// Page ids that were leased so far.
    pub next_id: u64,
    /// Errors for the next calls.
    pub refusals: VecDeque<Error>,
    pub served: u64,
    /// Pages of freed runs that the daemon is to free.
    pub orphans: BTreeSet<u64>,
    /// The same in other racks, as far as the daemon has told.
    pub orphans_elsewhere: BTreeSet<u64>,
    /// Allocations that it is to free, by address.
    pub owed: BTreeMap<u64, DeferredFree>,
    pub debts: Vec<DeferredFree>,
    /// Its question that waits until there is something.
    pub parked: Option<u64>,
}

impl FakeMaster {
    pub fn serve(&mut self, id: u64, call: &MasterCall) -> Option<MasterReply> {
        if *call == MasterCall::NextOrphans {
            self.parked = Some(id);
            return self.ripe();
        }
        let answer = match self.refusals.pop_front() {
            Some(error) => Err(error),
            None => Ok(self.apply(call)),
        };
        Some(self.reply(id, answer))
    }

    fn reply(&mut self, id: u64, answer: Result<MasterAnswer>) -> MasterReply {
        self.served += 1;
        MasterReply { id, term: 1, index: self.served, answer }
    }

    /// The answer to the question that waits, if there is one by now.
    pub fn ripe(&mut self) -> Option<MasterReply> {
        if self.orphans.is_empty() && self.owed.is_empty() {
            return None;
        }
        let id = self.parked.take()?;
        let pages = self.orphans.iter().map(|page| PageId(*page)).collect();
        let allocations = self.owed.values().copied().collect();
        Some(self.reply(id, Ok(MasterAnswer::Orphans { pages, allocations })))
    }

    /// Whether the daemon has freed, or noted, all that it is told to.
    pub fn is_told_all(&self) -> bool {
        self.orphans.is_empty() && self.owed.is_empty()
    }

    /// A page of a run that is freed elsewhere.
    pub fn orphan(&mut self, page: PageId) {
        let home = self.pages.remove(&page.0).expect("it was allocated");
        let told = if home.rack == RACK { &mut self.orphans } else { &mut self.orphans_elsewhere };
        told.insert(page.0);
    }

    /// A page's home becomes `to` if it is `from`; its home afterwards.
    pub fn swap(&mut self, from: PageHome, to: PageHome) -> Resolved {
        match self.pages.get_mut(&from.page.0) {
            None => Resolved::Unmapped,
            Some(home) => {
                if *home == from {
                    *home = to;
                }
                Resolved::Home(*home)
            }
        }
    }

    fn apply(&mut self, call: &MasterCall) -> MasterAnswer {
        match call {
            MasterCall::LeasePageIds { count } => {
                let first = PageId(1000 + self.next_id);
                self.next_id += count;
                return MasterAnswer::PageIds { first, count: *count };
            }
            MasterCall::CommitPages { homes } => {
                for home in homes {
                    assert_eq!(home.rack, RACK);
                    let old = self.pages.insert(home.page.0, *home);
                    assert!(old.is_none_or(|old| old == *home), "page {} moved", home.page);
                }
            }
            MasterCall::RemovePages { rack, pages } => {
                assert_eq!(*rack, RACK);
                for page in pages {
                    if self.pages.get(&page.0).is_some_and(|home| home.rack == RACK) {
                        self.pages.remove(&page.0);
                    }
                    self.orphans.remove(&page.0);
                }
            }
            MasterCall::OrphanPages { first, pages } => {
                if self.pages.get(&first.0).is_some_and(|home| home.rack == RACK) {
                    let known = pages.iter().filter(|page| self.pages.contains_key(&page.0));
                    known.copied().collect::<Vec<_>>().into_iter().for_each(|page| {
                        self.orphan(page);
                    });
                }
            }
            MasterCall::FreeElsewhere { debts } => {
                let paid = self.debts.last().map_or(0, |debt| debt.id);
                self.debts.extend(debts.iter().filter(|debt| debt.id > paid));
            }
            MasterCall::OrphansTaken { orphans } => {
                for DeferredFree { id, addr, .. } in orphans {
                    if self.owed.get(&addr.0).is_some_and(|owed| owed.id == *id) {
                        self.owed.remove(&addr.0);
                    }
                }
            }
            MasterCall::AwaitGone { .. } => {}
            MasterCall::MovePage { from, to } | MasterCall::AdoptPage { from, to } => {
                assert_eq!((to.rack, from.page), (RACK, to.page));
                return MasterAnswer::Homes(vec![self.swap(*from, *to)]);
            }
            other => panic!("the daemon's engine never asks {other:?}"),
        }
        MasterAnswer::Done
    }
}
