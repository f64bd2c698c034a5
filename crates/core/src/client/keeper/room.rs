//! The memory of a keeper of replicas: how much it may have, and what it gives back.

use super::{Keeper, KeeperTask, Kept, Run};
use crate::addr::{GAddr, PageId};
use crate::client::Client;
use crate::constants::{REPLICA_BITS_MAX, REPLICA_RETURNS_MAX, RESOLVE_PAGES_MAX};
use crate::error::Result;
use crate::replica::{ENTRY_BYTES, HEAD_BYTES};
use crate::seam::{Mem, Nanos};

/// Entries of the smallest directory, log2.
const BITS_MIN: u32 = 6;
/// Entries for each frame, so that pages of several allocations seldom want the same one.
const ENTRIES_PER_FRAME: u32 = 4;

impl Keeper {
    pub(super) fn frames(&self) -> u32 {
        let runs = self.directory.iter().chain(self.runs.values());
        runs.map(|run| run.pages.len() as u32).sum()
    }

    /// Whether the own daemon is to be asked for room now.
    pub(super) fn wants_room(&self, now: Nanos) -> bool {
        let is_retired = self.room_at == Nanos::MAX;
        !is_retired && (now >= self.room_at || self.frames() > self.allowed)
    }

    /// Entries of a new directory, log2, and its pages.
    pub(super) fn new_directory(&self, page_bytes: u64) -> (u32, u32) {
        let entries = self.allowed.saturating_mul(ENTRIES_PER_FRAME).max(1);
        let entries = entries.checked_next_power_of_two().unwrap_or(1 << REPLICA_BITS_MAX);
        let bits = entries.trailing_zeros().clamp(BITS_MIN, REPLICA_BITS_MAX);
        let bytes = HEAD_BYTES + (ENTRY_BYTES << bits);
        (bits, bytes.div_ceil(page_bytes) as u32)
    }

    /// For how many more replicas there is memory, here or at the own daemon.
    pub(super) fn room(&self, page_bytes: u64) -> u32 {
        let directory = match self.directory {
            Some(_) => 0,
            None => match self.new_directory(page_bytes) {
                (_, pages) if pages > RESOLVE_PAGES_MAX => return 0,
                (_, pages) => pages,
            },
        };
        let more = self.allowed.saturating_sub(self.frames().saturating_add(directory));
        more.saturating_add(self.free.len() as u32)
    }

    /// What is not used or not allowed any more, to be given back; a directory is not announced any
    /// more before that.
    pub(super) fn spare<M: Mem>(&mut self, client: &Client<M>) -> Result<Option<Run>> {
        let is_over = self.frames() > self.allowed;
        if self.returned < REPLICA_RETURNS_MAX
            && let Some(run) = self.surplus()
        {
            self.returned += 1;
            self.empty(client, &run)?;
            return Ok(Some(run));
        }
        let is_idle = self.gone.is_empty() && self.orders.is_empty();
        if self.runs.is_empty() && (is_over || is_idle) {
            return Ok(self.directory.take());
        }
        Ok(None)
    }

    /// A page that is given back: one without a replica, or any if there are too many.
    fn surplus(&mut self) -> Option<Run> {
        let last = self.runs.keys().next_back().filter(|_| self.frames() > self.allowed).copied();
        let at = self.free.pop().map(|addr| addr.0).or(last)?;
        self.runs.remove(&at)
    }

    /// A page may not have been given back: it is tried again.
    pub(super) fn have_again(&mut self, run: Run) {
        if run.pages.len() == 1 {
            self.free.push(run.addr);
            self.runs.insert(run.addr.0, run);
        }
    }

    /// What follows when there is nothing to do about memory.
    pub(super) fn next(&self, page_bytes: u64) -> KeeperTask {
        let has_none = self.directory.is_none() && self.room(page_bytes) == 0;
        match () {
            () if !self.orders.is_empty() => KeeperTask::Work,
            () if has_none && self.gone.is_empty() => KeeperTask::Idle,
            () => KeeperTask::Poll,
        }
    }

    /// Gives up what is in pages that the own daemon took away.
    pub(super) fn end_taken<M: Mem>(&mut self, client: &Client<M>) -> Result<()> {
        let is_ours =
            |at: &u64| self.own(client, GAddr(*at), 8, |pages, at| pages.load(at)).is_ok();
        let taken: Vec<u64> = self.runs.keys().copied().filter(|at| !is_ours(at)).collect();
        taken.into_iter().try_for_each(|at| self.lose(client, GAddr(at)))
    }

    /// A page is not ours any more.
    pub(super) fn lose<M: Mem>(&mut self, client: &Client<M>, at: GAddr) -> Result<()> {
        let run = self.runs.remove(&at.0);
        run.map_or(Ok(()), |run| self.empty(client, &run))
    }

    /// What is in a page that goes is given up.
    pub(super) fn empty<M: Mem>(&mut self, client: &Client<M>, run: &Run) -> Result<()> {
        let inside = |kept: &Kept| run.holds(client, kept.data);
        let kept = self.kept.iter().filter(|(_, kept)| inside(kept));
        let pages: Vec<PageId> = kept.map(|(page, _)| *page).collect();
        for page in pages {
            self.give_up(client, page)?;
        }
        self.free.retain(|addr| !run.holds(client, *addr));
        self.leaving.retain(|_, addr| !run.holds(client, *addr));
        Ok(())
    }
}
