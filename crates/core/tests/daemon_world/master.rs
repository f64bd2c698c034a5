//! The master as the daemon tests play it.

use super::RACK;
use rackpool_core::wire::{MasterAnswer, MasterCall, MasterReply, PageHome, Resolved};
use rackpool_core::{Error, PageId};
use std::collections::{BTreeMap, VecDeque};

/// The directory, as a master keeps it.
#[derive(Default)]
pub struct FakeMaster {
    pub pages: BTreeMap<u64, PageHome>,
    /// Page ids that were leased so far.
    pub next_id: u64,
    /// Errors for the next calls.
    pub refusals: VecDeque<Error>,
    pub served: u64,
}

impl FakeMaster {
    pub fn serve(&mut self, id: u64, call: &MasterCall) -> MasterReply {
        self.served += 1;
        let answer = match self.refusals.pop_front() {
            Some(error) => Err(error),
            None => Ok(self.apply(call)),
        };
        MasterReply { id, term: 1, index: self.served, answer }
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
                    self.pages.remove(&page.0);
                }
            }
            MasterCall::MovePage { from, to } => {
                assert_eq!((to.rack, from.page), (RACK, to.page));
                return MasterAnswer::Homes(vec![self.swap(*from, *to)]);
            }
            other => panic!("the daemon's engine never asks {other:?}"),
        }
        MasterAnswer::Done
    }
}
