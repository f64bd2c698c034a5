//! What a daemon does for the balance of the pool: it looks for a cold page, decides by
//! [`BalanceParams`] whether it goes, and remembers the decisions.

use crate::addr::PageId;
use crate::constants::{BALANCES_ANSWER_MAX, BALANCES_MAX, VICTIM_SAMPLE};
use crate::daemon::heat::may_go;
use crate::daemon::{Daemon, World};
use crate::policy::{
    Allowance, Balance, BalanceParams, BalanceRecord, BalanceView, ColdPage, Sending, used_milli,
};
use crate::relocation::{BalanceQuery, Relocation};
use std::collections::VecDeque;

/// What the daemon knows of it. Empty while it is off.
#[derive(Default)]
pub(super) struct Balancing {
    params: Option<BalanceParams>,
    sending: Sending,
    allowance: Allowance,
    /// Where the search for a cold page goes on.
    hand: PageId,
    records: VecDeque<BalanceRecord>,
    /// Decisions that were remembered so far, those that are forgotten among them.
    decided: u64,
}

impl Balancing {
    /// Remembers a decision; of several in a row to rest for the same reason, the first.
    fn remember(&mut self, record: BalanceRecord) {
        let last = self.records.back().map(|last| last.decision);
        if last == Some(record.decision) && matches!(record.decision, Balance::Rest(_)) {
            return;
        }
        if self.records.len() == BALANCES_MAX {
            self.records.pop_front();
        }
        self.records.push_back(record);
        self.decided += 1;
    }

    /// Decisions that are remembered, from a number on, with their numbers.
    pub(super) fn records(&self, from: u64) -> Vec<(u64, BalanceRecord)> {
        let oldest = self.decided - self.records.len() as u64 + 1;
        let numbered = (oldest..).zip(self.records.iter().copied());
        numbered.skip_while(|(number, _)| *number < from).take(BALANCES_ANSWER_MAX).collect()
    }
}

impl Daemon {
    /// Sets whether, and how, the rack sends cold pages to emptier ones.
    pub fn set_balance(&mut self, params: Option<BalanceParams>) {
        self.balancing = Balancing { params, ..Balancing::default() };
    }

    pub fn balances(&self) -> bool {
        self.balancing.params.is_some()
    }

    /// The cold page that goes to a rack with more room, if one does.
    pub(super) fn next_push<W: World>(
        &mut self,
        query: BalanceQuery,
        world: &W,
    ) -> Option<Relocation> {
        let params = self.balancing.params?;
        let BalanceQuery { load, bytes_per_second } = query;
        let frames = u64::from(self.layout.frame_count);
        let used = frames.saturating_sub(self.frames_available().into());
        let page_bytes = self.layout.pages.page_bytes();
        let now_ns = self.heat.now;
        let view = BalanceView {
            now_ns,
            own: self.rack,
            used_milli: used_milli(used, frames),
            load,
            is_sending: self.balancing.sending.has_begun(),
            page_bytes,
            bytes_per_second,
            coldest: self.coldest(world),
        };
        let record = params.decide(&view, &self.balancing.allowance);
        self.balancing.sending.decided(&record.decision);
        self.balancing.remember(record);
        let Balance::Send { page, to } = record.decision else { return None };
        let limit = params.limit(page_bytes, bytes_per_second);
        self.balancing.allowance.take(&limit, now_ns, page_bytes);
        Some(Relocation::Push { page, to })
    }

    /// The least used of the next pages that could go, and that are not left alone.
    fn coldest<W: World>(&mut self, world: &W) -> Option<ColdPage> {
        let hand = self.balancing.hand;
        let (behind, ahead) = (..=hand.0, hand.0 + 1..);
        let by_page = &self.frames.by_page;
        let pages = by_page.range(ahead).chain(by_page.range(behind)).take(VICTIM_SAMPLE);
        let mut coldest: Option<ColdPage> = None;
        let mut last = hand;
        for (&page, &frame) in pages {
            last = PageId(page);
            if self.heat.is_resting(last) || !may_go(frame, &self.frames, world.private()) {
                continue;
            }
            let (recent, moves_lately) = self.use_for_balance(last);
            let is_colder =
                |than: ColdPage| (moves_lately, recent) < (than.moves_lately, than.recent);
            if coldest.is_none_or(is_colder) {
                coldest = Some(ColdPage { page: last, recent, moves_lately });
            }
            if recent == 0 && moves_lately == 0 {
                break;
            }
        }
        self.balancing.hand = last;
        coldest
    }
}
