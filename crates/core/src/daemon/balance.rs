//! What a daemon does for the balance of the pool: it looks for a cold page, decides by
//! [`BalanceParams`] whether it goes, and remembers the decisions. The process that moves the page
//! asks for it (`core::client::Balancer`).

use crate::addr::PageId;
use crate::constants::{
    BALANCES_ANSWER_MAX, BALANCES_MAX, MOVE_REST_NS, MOVE_RESTING_MAX, SLOTS_MAX, VICTIM_SAMPLE,
};
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::member::{BalanceReply, BalanceRequest, PoolLoad};
use crate::policy::{
    Allowance, Balance, BalanceParams, BalanceRecord, BalanceView, ColdPage, Sending, used_milli,
};
use crate::seam::Nanos;
use crate::wire::Reply;
use std::collections::{BTreeMap, VecDeque};

/// What the daemon knows of it. Empty while it is off.
#[derive(Default)]
pub(super) struct Balancing {
    params: Option<BalanceParams>,
    sending: Sending,
    allowance: Allowance,
    /// Where the search for a cold page goes on.
    hand: PageId,
    /// Pages that could not be sent, until when they are left alone.
    resting: BTreeMap<PageId, Nanos>,
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

    fn from(&self, from: u64) -> Vec<(u64, BalanceRecord)> {
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

    /// A request about the balance of the pool.
    pub(super) fn on_balance<W: World>(
        &mut self,
        record: u32,
        request: BalanceRequest,
        world: &W,
    ) -> Result<Reply> {
        match request {
            BalanceRequest::Next { load, bytes_per_second, failed } if record < SLOTS_MAX => {
                if let Some(page) = failed {
                    self.rest_of_balance(page);
                }
                let next = self.next_balance(load, bytes_per_second, world);
                Ok(Reply::Balance(BalanceReply::Next(next)))
            }
            BalanceRequest::Next { .. } => {
                let reason = "only clients of the own rack move its pages away".into();
                Err(Error::Denied { reason })
            }
            BalanceRequest::Records { from } => {
                Ok(Reply::Balance(BalanceReply::Records(self.balancing.from(from))))
            }
        }
    }

    fn next_balance<W: World>(
        &mut self,
        load: PoolLoad,
        bytes_per_second: u64,
        world: &W,
    ) -> Option<(PageId, crate::addr::RackId)> {
        let params = self.balancing.params.filter(|_| !self.is_leaving())?;
        let frames = u64::from(self.layout.frame_count);
        let used = frames.saturating_sub(self.frames_available().into());
        let page_bytes = self.layout.pages.page_bytes();
        let now_ns = self.balance_now();
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
        Some((page, to))
    }

    /// The least used of the next pages that could go, and that are not left alone.
    fn coldest<W: World>(&mut self, world: &W) -> Option<ColdPage> {
        let (hand, now) = (self.balancing.hand, self.balance_now());
        let (behind, ahead) = (..=hand.0, hand.0 + 1..);
        let by_page = &self.frames.by_page;
        let pages = by_page.range(ahead).chain(by_page.range(behind)).take(VICTIM_SAMPLE);
        let mut coldest: Option<ColdPage> = None;
        let mut last = hand;
        for (&page, &frame) in pages {
            last = PageId(page);
            let rests = self.balancing.resting.get(&last).is_some_and(|until| now < *until);
            if rests || !self.might_go(frame, world) {
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

    fn rest_of_balance(&mut self, page: PageId) {
        let now = self.balance_now();
        let resting = &mut self.balancing.resting;
        resting.retain(|_, until| now < *until);
        if resting.len() < MOVE_RESTING_MAX {
            resting.insert(page, now.saturating_add(MOVE_REST_NS));
        }
    }
}
