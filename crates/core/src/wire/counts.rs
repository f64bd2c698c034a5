//! Messages by kind, since a process started.

use super::{MasterCall, Reply, Request};
use crate::counts::note_refusal;
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One counter for each kind of a message.
macro_rules! counters {
    ($(#[$head:meta])* $name:ident of $message:ident:
        $($(#[$doc:meta])* $field:ident = $kind:pat,)*) => {
        $(#[$head])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl $name {
            pub fn note(&mut self, message: &$message) {
                match message {
                    $($kind => self.$field += 1,)*
                }
            }

            /// Each kind's name and count.
            pub fn by_kind(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field),)*]
            }

            /// The name of a message's kind.
            pub fn kind_of(message: &$message) -> &'static str {
                match message {
                    $($kind => stringify!($field),)*
                }
            }

            pub fn total(&self) -> u64 {
                self.by_kind().iter().map(|(_, count)| count).sum()
            }
        }
    };
}

counters! {
    /// Requests of clients to a daemon, by kind. Repeated ones count each time.
    RequestCounts of Request:
    resolve = Request::Resolve { .. },
    alloc = Request::Alloc { .. } | Request::AllocIn { .. },
    free = Request::Free { .. },
    alloc_into = Request::AllocInto { .. },
    /// Frees of what a word names.
    free_from = Request::FreeFrom { .. },
    /// Compare and swap by the daemon.
    cas = Request::Cas { .. },
    fetch_add = Request::FetchAdd { .. },
    lock = Request::Lock { .. },
    /// Locks given back by a request; dropped guards of local clients send none.
    unlock = Request::Unlock { .. },
    /// Questions whether a lock is still held.
    check_lock = Request::CheckLock { .. },
    /// Frames asked for a page that comes.
    move_in = Request::MoveIn { .. },
    /// Pages asked to leave.
    move_out = Request::MoveOut { .. },
    /// Pages that have come.
    move_commit = Request::MoveCommit { .. },
    move_settle = Request::MoveSettle { .. },
    /// Reports of how pages are used.
    note_use = Request::NoteUse { .. },
    /// Questions for the next page to be moved, by any policy.
    next_move = Request::NextMove(_),
    /// Pages that others asked for.
    decide_move = Request::DecideMove(_),
    /// Questions for what was decided.
    decisions = Request::Decisions { .. },
    stats = Request::Stats,
    sessions = Request::Sessions { .. },
    ping = Request::Ping,
    fetch = Request::Fetch(_),
    store = Request::Store { .. },
    /// Questions how far the rack is with leaving.
    drain = Request::DrainReport,
    /// Questions for decisions about the balance of the pool.
    balance = Request::Balances { .. },
    /// Questions whether an allocation is there.
    check_free = Request::CheckFree { .. },
    /// Frees of what a word names in another rack.
    free_apart = Request::FreeApart { .. },
    /// Questions how much memory may be used for replicas.
    replica_room = Request::ReplicaRoom { .. },
    /// Polls of keepers of replicas.
    replica_poll = Request::ReplicaPoll(_),
    replicate = Request::Replicate { .. },
    recall = Request::Recall { .. },
    sharers = Request::Sharers { .. },
    audit = Request::Audit(_),
    /// Frees of what an audit found that nothing names.
    reclaim = Request::Reclaim { .. },
    /// Ranges that were asked to outlive a loss of power.
    persist = Request::Persist { .. },
    /// Objects lent and given back, and queues of frees.
    loan = Request::Loan(_),
}

counters! {
    /// Calls to the master, by kind.
    CallCounts of MasterCall:
    hello = MasterCall::Hello { .. },
    join_daemon = MasterCall::JoinDaemon(_),
    join_client = MasterCall::JoinClient { .. },
    heartbeat = MasterCall::Heartbeat { .. },
    lease_page_ids = MasterCall::LeasePageIds { .. },
    /// Pages that got a home.
    commit_pages = MasterCall::CommitPages { .. },
    remove_pages = MasterCall::RemovePages { .. },
    /// Rights to move a page.
    begin_move = MasterCall::BeginMove { .. },
    /// Changes of a page's home.
    move_page = MasterCall::MovePage { .. },
    resolve = MasterCall::Resolve { .. },
    racks = MasterCall::Racks,
    rack = MasterCall::Rack { .. },
    /// Racks picked for an allocation.
    pick_rack = MasterCall::PickRack { .. },
    get_root = MasterCall::GetRoot { .. },
    roots = MasterCall::Roots { .. },
    set_root = MasterCall::SetRoot { .. },
    stats = MasterCall::Stats,
    /// Questions for what led to choices of racks.
    placements = MasterCall::Placements(_),
    member = MasterCall::Member(_),
    /// Pages of freed runs that other racks have.
    orphan_pages = MasterCall::OrphanPages { .. },
    /// Frees of what words named in other racks.
    free_elsewhere = MasterCall::FreeElsewhere { .. },
    /// Questions of daemons for what they are to free.
    next_orphans = MasterCall::NextOrphans,
    /// Allocations that their homes free.
    orphans_taken = MasterCall::OrphansTaken { .. },
    /// Questions for the end of a free in several racks.
    await_gone = MasterCall::AwaitGone { .. },
}

/// What a daemon has answered. An answer that is said again counts again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerCounts {
    pub allocated: u64,
    pub freed: u64,
    pub locked: u64,
    /// Refusals by the word of their error, such as `full`; those of connections that did not prove
    /// the pool's secret are `denied`.
    pub refused: BTreeMap<String, u64>,
}

impl AnswerCounts {
    pub fn note(&mut self, reply: &Result<Reply, Error>) {
        match reply {
            Ok(Reply::Allocated { .. }) => self.allocated += 1,
            Ok(Reply::Freed) => self.freed += 1,
            Ok(Reply::Locked { .. }) => self.locked += 1,
            Ok(_) => {}
            Err(error) => note_refusal(&mut self.refused, error),
        }
    }

    /// Counts connections that were refused before anything was asked on them.
    pub fn add_denied(&mut self, count: u64) {
        if count > 0 {
            *self.refused.entry("denied".into()).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::GAddr;
    use crate::layout::AllocationKind;

    #[test]
    fn requests_answers_and_refusals_are_counted_by_kind() {
        let mut requests = RequestCounts::default();
        requests.note(&Request::Ping);
        requests.note(&Request::Alloc { bytes: 1, kind: AllocationKind::User });
        requests.note(&Request::Alloc { bytes: 1, kind: AllocationKind::Session });
        assert_eq!(requests, RequestCounts { ping: 1, alloc: 2, ..RequestCounts::default() });
        assert_eq!(requests.total(), 3);

        let mut answers = AnswerCounts::default();
        let full = || Error::Full { bytes: 1, free_bytes: 0, place: "here".into() };
        answers.note(&Ok(Reply::Allocated { addr: GAddr(64) }));
        answers.note(&Ok(Reply::Pong));
        answers.note(&Err(full()));
        answers.note(&Err(full()));
        answers.note(&Err(Error::NotMapped { addr: GAddr(64) }));
        assert_eq!((answers.allocated, answers.freed), (1, 0));
        let refused: Vec<_> = answers.refused.iter().map(|(code, n)| (code.as_str(), *n)).collect();
        assert_eq!(refused, [("full", 2), ("not-mapped", 1)]);
    }
}
