//! Counters that daemons and the master keep of what they are asked and of what they answer, since
//! their process started. Plain numbers that the engines add to where a message is served anyway;
//! they travel in [`wire`](crate::wire) and never decide anything.

use crate::error::Error;
use crate::policy::Decision;
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Requests of clients to a daemon, by kind. Repeated ones count each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    pub resolve: u64,
    pub alloc: u64,
    pub free: u64,
    pub alloc_into: u64,
    /// Frees of what a word names.
    pub free_from: u64,
    /// Compare and swap by the daemon.
    pub cas: u64,
    pub fetch_add: u64,
    pub lock: u64,
    /// Locks given back by a request; dropped guards of local clients send none.
    pub unlock: u64,
    /// Questions whether a lock is still held.
    pub check_lock: u64,
    /// Frames asked for a page that comes.
    pub move_in: u64,
    /// Pages asked to leave.
    pub move_out: u64,
    /// Pages that have come.
    pub move_commit: u64,
    pub move_settle: u64,
    /// Reports of how pages are used.
    pub note_use: u64,
    /// Questions for the next page to be moved, by any policy.
    pub next_move: u64,
    /// Pages that others asked for.
    pub decide_move: u64,
    /// Questions for what was decided.
    pub decisions: u64,
    pub stats: u64,
    pub sessions: u64,
    pub ping: u64,
    pub fetch: u64,
    pub store: u64,
    /// Questions how far the rack is with leaving.
    pub drain: u64,
    /// Questions for decisions about the balance of the pool.
    pub balance: u64,
    /// Questions whether an allocation is there.
    pub check_free: u64,
    /// Frees of what a word names in another rack.
    pub free_apart: u64,
    /// Questions how much memory may be used for replicas.
    pub replica_room: u64,
    /// Polls of keepers of replicas.
    pub replica_poll: u64,
    pub replicate: u64,
    pub recall: u64,
    pub sharers: u64,
    pub audit: u64,
    /// Frees of what an audit found that nothing names.
    pub reclaim: u64,
}

impl RequestCounts {
    pub fn note(&mut self, request: &Request) {
        let count = match request {
            Request::Resolve { .. } => &mut self.resolve,
            Request::Alloc { .. } => &mut self.alloc,
            Request::Free { .. } => &mut self.free,
            Request::AllocInto { .. } => &mut self.alloc_into,
            Request::FreeFrom { .. } => &mut self.free_from,
            Request::Cas { .. } => &mut self.cas,
            Request::FetchAdd { .. } => &mut self.fetch_add,
            Request::Lock { .. } => &mut self.lock,
            Request::Unlock { .. } => &mut self.unlock,
            Request::CheckLock { .. } => &mut self.check_lock,
            Request::MoveIn { .. } => &mut self.move_in,
            Request::MoveOut { .. } => &mut self.move_out,
            Request::MoveCommit { .. } => &mut self.move_commit,
            Request::MoveSettle { .. } => &mut self.move_settle,
            Request::NoteUse { .. } => &mut self.note_use,
            Request::NextMove(_) => &mut self.next_move,
            Request::DecideMove(_) => &mut self.decide_move,
            Request::Decisions { .. } => &mut self.decisions,
            Request::Stats => &mut self.stats,
            Request::Sessions { .. } => &mut self.sessions,
            Request::Ping => &mut self.ping,
            Request::Fetch(_) => &mut self.fetch,
            Request::Store { .. } => &mut self.store,
            Request::DrainReport => &mut self.drain,
            Request::Balances { .. } => &mut self.balance,
            Request::CheckFree { .. } => &mut self.check_free,
            Request::FreeApart { .. } => &mut self.free_apart,
            Request::ReplicaRoom { .. } => &mut self.replica_room,
            Request::ReplicaPoll(_) => &mut self.replica_poll,
            Request::Replicate { .. } => &mut self.replicate,
            Request::Recall { .. } => &mut self.recall,
            Request::Sharers { .. } => &mut self.sharers,
            Request::Audit(_) => &mut self.audit,
            Request::Reclaim { .. } => &mut self.reclaim,
        };
        *count += 1;
    }

    /// Each kind's name and count.
    pub fn by_kind(&self) -> [(&'static str, u64); 34] {
        [
            ("resolve", self.resolve),
            ("alloc", self.alloc),
            ("free", self.free),
            ("alloc_into", self.alloc_into),
            ("free_from", self.free_from),
            ("cas", self.cas),
            ("fetch_add", self.fetch_add),
            ("lock", self.lock),
            ("unlock", self.unlock),
            ("check_lock", self.check_lock),
            ("move_in", self.move_in),
            ("move_out", self.move_out),
            ("move_commit", self.move_commit),
            ("move_settle", self.move_settle),
            ("note_use", self.note_use),
            ("next_move", self.next_move),
            ("decide_move", self.decide_move),
            ("decisions", self.decisions),
            ("stats", self.stats),
            ("sessions", self.sessions),
            ("ping", self.ping),
            ("fetch", self.fetch),
            ("store", self.store),
            ("drain", self.drain),
            ("balance", self.balance),
            ("check_free", self.check_free),
            ("free_apart", self.free_apart),
            ("replica_room", self.replica_room),
            ("replica_poll", self.replica_poll),
            ("replicate", self.replicate),
            ("recall", self.recall),
            ("sharers", self.sharers),
            ("audit", self.audit),
            ("reclaim", self.reclaim),
        ]
    }

    pub fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, count)| count).sum()
    }
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

/// Calls to the master, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    pub hello: u64,
    pub join_daemon: u64,
    pub join_client: u64,
    pub heartbeat: u64,
    pub lease_page_ids: u64,
    /// Pages that got a home.
    pub commit_pages: u64,
    pub remove_pages: u64,
    /// Rights to move a page.
    pub begin_move: u64,
    /// Changes of a page's home.
    pub move_page: u64,
    pub resolve: u64,
    pub racks: u64,
    pub rack: u64,
    /// Racks picked for an allocation.
    pub pick_rack: u64,
    pub get_root: u64,
    pub roots: u64,
    pub set_root: u64,
    pub stats: u64,
    /// Questions for what led to choices of racks.
    pub placements: u64,
    pub member: u64,
    /// Pages of freed runs that other racks have.
    pub orphan_pages: u64,
    /// Frees of what words named in other racks.
    pub free_elsewhere: u64,
    /// Questions of daemons for what they are to free.
    pub next_orphans: u64,
    /// Allocations that their homes free.
    pub orphans_taken: u64,
    /// Questions for the end of a free in several racks.
    pub await_gone: u64,
}

impl CallCounts {
    pub fn note(&mut self, call: &MasterCall) {
        let count = match call {
            MasterCall::Hello { .. } => &mut self.hello,
            MasterCall::JoinDaemon(_) => &mut self.join_daemon,
            MasterCall::JoinClient { .. } => &mut self.join_client,
            MasterCall::Heartbeat { .. } => &mut self.heartbeat,
            MasterCall::LeasePageIds { .. } => &mut self.lease_page_ids,
            MasterCall::CommitPages { .. } => &mut self.commit_pages,
            MasterCall::RemovePages { .. } => &mut self.remove_pages,
            MasterCall::BeginMove { .. } => &mut self.begin_move,
            MasterCall::MovePage { .. } => &mut self.move_page,
            MasterCall::Resolve { .. } => &mut self.resolve,
            MasterCall::Racks => &mut self.racks,
            MasterCall::Rack { .. } => &mut self.rack,
            MasterCall::PickRack { .. } => &mut self.pick_rack,
            MasterCall::GetRoot { .. } => &mut self.get_root,
            MasterCall::Roots { .. } => &mut self.roots,
            MasterCall::SetRoot { .. } => &mut self.set_root,
            MasterCall::Stats => &mut self.stats,
            MasterCall::Placements(_) => &mut self.placements,
            MasterCall::Member(_) => &mut self.member,
            MasterCall::OrphanPages { .. } => &mut self.orphan_pages,
            MasterCall::FreeElsewhere { .. } => &mut self.free_elsewhere,
            MasterCall::NextOrphans => &mut self.next_orphans,
            MasterCall::OrphansTaken { .. } => &mut self.orphans_taken,
            MasterCall::AwaitGone { .. } => &mut self.await_gone,
        };
        *count += 1;
    }

    /// Each kind's name and count.
    pub fn by_kind(&self) -> [(&'static str, u64); 24] {
        [
            ("hello", self.hello),
            ("join_daemon", self.join_daemon),
            ("join_client", self.join_client),
            ("heartbeat", self.heartbeat),
            ("lease_page_ids", self.lease_page_ids),
            ("commit_pages", self.commit_pages),
            ("remove_pages", self.remove_pages),
            ("begin_move", self.begin_move),
            ("move_page", self.move_page),
            ("resolve", self.resolve),
            ("racks", self.racks),
            ("rack", self.rack),
            ("pick_rack", self.pick_rack),
            ("get_root", self.get_root),
            ("roots", self.roots),
            ("set_root", self.set_root),
            ("stats", self.stats),
            ("placements", self.placements),
            ("member", self.member),
            ("orphan_pages", self.orphan_pages),
            ("free_elsewhere", self.free_elsewhere),
            ("next_orphans", self.next_orphans),
            ("orphans_taken", self.orphans_taken),
            ("await_gone", self.await_gone),
        ]
    }
}

/// What the master refused, by the word of the error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Refusals(pub BTreeMap<String, u64>);

impl Refusals {
    /// Counts an answer, if it refuses.
    pub fn note(&mut self, answer: &Result<MasterAnswer, Error>) {
        if let Err(error) = answer {
            note_refusal(&mut self.0, error);
        }
    }
}

/// What a daemon decided about its pages, and what came of the pages that it asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveCounts {
    /// Pages of which use is known.
    pub heat_pages: u64,
    /// Pages that this rack asked others for.
    pub asked: u64,
    /// Pages moved for this rack: those it asked for and those that made room.
    pub moved: u64,
    pub moved_bytes: u64,
    /// Pages that were to be moved for this rack, and were not.
    pub failed: u64,
    /// Decisions that a page of this rack goes into a free frame elsewhere.
    pub decided_move: u64,
    /// Decisions that a page of this rack and another change places.
    pub decided_swap: u64,
    /// Decisions that another rack gets a copy.
    pub decided_copy: u64,
    /// Decisions that a page stays, by the word of their reason, such as `even`.
    pub left: BTreeMap<String, u64>,
}

impl MoveCounts {
    pub fn note(&mut self, decision: Decision) {
        match decision {
            Decision::Move { .. } => self.decided_move += 1,
            Decision::Swap { .. } => self.decided_swap += 1,
            Decision::Replicate { .. } => self.decided_copy += 1,
            Decision::Leave(reason) => *self.left.entry(reason.code().into()).or_default() += 1,
        }
    }
}

/// What a daemon's fabric endpoint served. Zero where the world does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricCounts {
    pub operations: u64,
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// System calls that sent something.
    pub send_calls: u64,
    /// System calls that received something.
    pub receive_calls: u64,
    /// Connections (queue pairs) of others now.
    pub connections: u64,
}

/// What a daemon did for clients that have no fabric endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyCounts {
    /// Connections to other racks now, which all clients of the rack share.
    pub uplinks: u64,
    /// Channels of clients over them now.
    pub channels: u64,
    /// Work requests posted since the process started.
    pub operations: u64,
}

/// Bounded by the number of error words.
fn note_refusal(refused: &mut BTreeMap<String, u64>, error: &Error) {
    match refused.get_mut(error.code()) {
        Some(count) => *count += 1,
        None => drop(refused.insert(error.code().to_owned(), 1)),
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
