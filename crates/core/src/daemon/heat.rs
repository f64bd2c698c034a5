//! How the pages are used, which of them this rack wants, and which rack gets those that live here.
//!
//! ```text
//! own clients --- NoteUse ----> heat table --> pages to be asked for
//! own worker ---- NextMove ---> the hottest of them, with use, room and victim: a MoveAsk
//! others' workers DecideMove -> heat table + history + policy --> Decided, and a record of it
//! own worker ---- NextMove (what came of it) --> allowance, heat, pages to be left alone
//! ```
//!
//! Nothing here moves a page; nothing is stored: after a restart heat is found out anew, and a page
//! that moved lately is known to have moved only where it stayed. Time is that of the last tick.
//! Source: Rcmp §5.3; decision 0018.

use crate::addr::PageId;
use crate::constants::{
    DECISIONS_ANSWER_MAX, DECISIONS_MAX, HEAT_TABLE_BYTES, MOVE_ASKS_MAX, MOVE_HISTORIES_MAX,
    MOVE_REST_NS, MOVE_RESTING_MAX, SLOTS_MAX, USE_PAGES_MAX, VICTIM_SAMPLE,
};
use crate::counts::MoveCounts;
use crate::daemon::frames::{FrameEntry, Frames};
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::heat::{Counts, HeatTable, PageHeat, PageUse, Recent};
use crate::layout::FrameState;
use crate::policy::{
    AccessCosts, Allowance, Decided, Decision, DecisionRecord, HeatEffect, MigrationPolicy,
    MoveAsk, MoveHistory, MoveReport, Observation, Reason, Use, Victim,
};
use crate::relocation::Relocation;
use crate::seam::{Mem, Nanos};
use crate::wire::{Reply, Request};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the daemon knows of use and moves. Empty while the policy is [`MigrationPolicy::Off`].
pub(super) struct Heat {
    policy: MigrationPolicy,
    pub(super) now: Nanos,
    table: Option<HeatTable>,
    wanted: Wanted,
    /// Pages that could not be moved, or shall not, until when they are left alone.
    resting: BTreeMap<PageId, Nanos>,
    /// Use of all pages by the rack's clients.
    all: PageHeat,
    /// Moves of the pages that are at home here.
    histories: BTreeMap<PageId, MoveHistory>,
    /// Where the search for a victim goes on.
    hand: PageId,
    allowance: Allowance,
    decisions: VecDeque<DecisionRecord>,
    /// Decisions so far, those that are forgotten among them.
    decided: u64,
    counts: MoveCounts,
}

/// Pages of other racks that are worth a question, with how hot they were when they became so.
#[derive(Default)]
struct Wanted {
    ranks: BTreeMap<PageId, u64>,
    order: BTreeSet<(u64, PageId)>,
}

impl Wanted {
    /// Wants a page; if it is one too many, the coldest is not wanted any more.
    fn insert(&mut self, page: PageId, rank: u64) {
        if let Some(old) = self.ranks.insert(page, rank) {
            self.order.remove(&(old, page));
        }
        self.order.insert((rank, page));
        if self.order.len() > MOVE_ASKS_MAX
            && let Some((_, coldest)) = self.order.pop_first()
        {
            self.ranks.remove(&coldest);
        }
    }

    /// The hottest page, which is not wanted any more.
    fn pop(&mut self) -> Option<PageId> {
        let (_, page) = self.order.pop_last()?;
        self.ranks.remove(&page);
        Some(page)
    }
}

impl Heat {
    /// Knows nothing and wants nothing.
    pub(super) fn off() -> Heat {
        Heat {
            policy: MigrationPolicy::Off,
            now: 0,
            table: None,
            wanted: Wanted::default(),
            resting: BTreeMap::new(),
            all: PageHeat::default(),
            histories: BTreeMap::new(),
            hand: PageId(0),
            allowance: Allowance::default(),
            decisions: VecDeque::new(),
            decided: 0,
            counts: MoveCounts::default(),
        }
    }

    pub(super) fn counts(&self) -> MoveCounts {
        let heat_pages = self.table.as_ref().map_or(0, |table| table.count() as u64);
        MoveCounts { heat_pages, ..self.counts.clone() }
    }

    fn use_of(&self, page: PageId) -> Use {
        let Some(table) = &self.table else { return Use::default() };
        let (heat, params) = (table.get(page), table.params());
        Use {
            heat_milli: heat.heat_milli(params, self.now),
            counts: heat.counts(params, self.now),
            recent: heat.recent(params, self.now),
            rack: self.all.recent(params, self.now),
        }
    }

    /// By what pages are compared: of two, the hotter one has more.
    fn rank(&self, of: &Use) -> u64 {
        match self.policy {
            MigrationPolicy::Cost(_) => of.recent.counts.total(),
            MigrationPolicy::Off | MigrationPolicy::Paper(_) => of.heat_milli,
        }
    }

    fn forget(&mut self, page: PageId) {
        if let Some(table) = &mut self.table {
            table.remove(page);
        }
    }

    /// Whether a page of another rack is worth a question.
    pub(super) fn wants_page(&self) -> bool {
        !self.wanted.order.is_empty()
    }

    pub(super) fn is_resting(&self, page: PageId) -> bool {
        self.resting.get(&page).is_some_and(|until| self.now < *until)
    }

    /// Leaves a page alone for a while.
    pub(super) fn rest(&mut self, page: PageId) {
        let now = self.now;
        if self.resting.len() >= MOVE_RESTING_MAX {
            self.resting.retain(|_, until| now < *until);
        }
        if self.resting.len() >= MOVE_RESTING_MAX {
            let first = self.resting.iter().min_by_key(|(page, until)| (**until, **page));
            let first = first.map(|(page, _)| *page);
            first.map(|page| self.resting.remove(&page));
        }
        self.resting.insert(page, now.saturating_add(MOVE_REST_NS));
    }

    /// Notes what clients say; pages that are not at home here may be worth a question.
    fn note(&mut self, pages: &[PageUse], is_home: impl Fn(PageId) -> bool) {
        let Self { table: Some(table), policy, wanted, resting, now, all, .. } = self else {
            return;
        };
        let pages = &pages[..USE_PAGES_MAX.min(pages.len())];
        let sum = pages.iter().fold(Counts::default(), |sum, one| sum.plus(one.counts));
        all.note(table.params(), sum, *now);
        for one in pages {
            let noted = table.note(one.page, one.counts, *now);
            let is_resting = || resting.get(&one.page).is_some_and(|until| *now < *until);
            if policy.asks(&noted) && !is_home(one.page) && !is_resting() {
                let rank = match policy {
                    MigrationPolicy::Cost(_) => noted.recent_after,
                    MigrationPolicy::Off | MigrationPolicy::Paper(_) => noted.heat_milli,
                };
                wanted.insert(one.page, rank);
            }
        }
    }

    /// The hottest page that is wanted, is not at home here and is not left alone.
    fn take_wanted(&mut self, is_home: impl Fn(PageId) -> bool) -> Option<PageId> {
        loop {
            let page = self.wanted.pop()?;
            if !is_home(page) && !self.is_resting(page) {
                return Some(page);
            }
        }
    }

    /// Takes in what came of a page that was asked for.
    pub(super) fn take_report(
        &mut self,
        report: &MoveReport,
        costs: &AccessCosts,
        page_bytes: u64,
    ) {
        if report.moved_bytes > 0 {
            let limit = self.policy.cost().limit(costs);
            self.allowance.take(&limit, self.now, report.moved_bytes);
            let (pages, bytes) = (report.moved_bytes / page_bytes, report.moved_bytes);
            self.counts.moved = self.counts.moved.saturating_add(pages);
            self.counts.moved_bytes = self.counts.moved_bytes.saturating_add(bytes);
        }
        if let Some(page) = report.failed {
            self.counts.failed += 1;
            self.rest(page);
        }
        let Some(Decided { decision, effect }) = report.decided else { return };
        match (effect, decision) {
            (HeatEffect::ClearAtAsker, _) => self.forget(report.page),
            (HeatEffect::ClearAtOldHomes, Decision::Swap { victim }) => {
                self.forget(victim);
            }
            // There may be room for it in a moment, or more be known when it is asked for again.
            (HeatEffect::Keep, Decision::Leave(Reason::OverAllowance | Reason::Even)) => {}
            // It is asked for again, so that its home knows that it is still wanted.
            (_, Decision::Replicate { .. }) => self.rest(report.page),
            // The answer is the same until more is known.
            (HeatEffect::Keep, Decision::Leave(_)) => self.rest(report.page),
            (HeatEffect::ClearAtOldHomes | HeatEffect::Keep, _) => {}
        }
    }

    /// Decides, remembers it, and does the home's part of what it does to the heat.
    fn decide(&mut self, observation: &Observation, allowance: &Allowance) -> Decided {
        let record = self.policy.decide(observation, allowance);
        let (decision, effect) = (record.decision, record.heat_effect());
        self.counts.note(decision);
        if effect == HeatEffect::ClearAtOldHomes {
            self.forget(observation.page);
        }
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(record);
        self.decided += 1;
        Decided { decision, effect }
    }

    fn decisions_from(&self, from: u64) -> Vec<(u64, DecisionRecord)> {
        let oldest = self.decided - self.decisions.len() as u64 + 1;
        let numbered = (oldest..).zip(self.decisions.iter().copied());
        numbered.skip_while(|(number, _)| *number < from).take(DECISIONS_ANSWER_MAX).collect()
    }
}

impl Daemon {
    /// Sets how it is decided where pages live; what was known of their use is forgotten.
    pub fn set_policy(&mut self, policy: MigrationPolicy) {
        let table = match policy {
            MigrationPolicy::Off => None,
            policy => HeatTable::new(policy.heat(), HEAT_TABLE_BYTES).ok(),
        };
        self.heat = Heat { policy, now: self.heat.now, table, ..Heat::off() };
    }

    /// Whether a write ends the replicas of its page. Source: Rcmp §5.3. Else it updates them.
    pub(super) fn replicas_end_with_writes(&self) -> bool {
        matches!(self.heat.policy, MigrationPolicy::Paper(_))
    }

    /// Whether clients shall say how they use pages.
    pub fn counts_use(&self) -> bool {
        self.heat.policy != MigrationPolicy::Off
    }

    /// The time, for what clients say next. Called at least as often as [`Daemon::tick`].
    pub fn note_time(&mut self, now: Nanos) {
        self.heat.now = self.heat.now.max(now);
    }

    /// How often a page was used lately as far as is known here, and how often it moved.
    pub(super) fn use_for_balance(&self, page: PageId) -> (u64, u32) {
        let history = self.heat.histories.get(&page).copied().unwrap_or_default();
        let lately = history.lately(self.heat.now, self.heat.policy.cost().settle_ns());
        (self.heat.use_of(page).recent.counts.total(), lately)
    }

    /// The moves of a page, for the rack that it goes to.
    pub(super) fn history_of(&self, page: PageId) -> MoveHistory {
        self.heat.histories.get(&page).copied().unwrap_or_default().leaving(self.heat.now)
    }

    /// A page has come, with the history that it had.
    pub(super) fn take_history(&mut self, page: PageId, history: MoveHistory) {
        let heat = &mut self.heat;
        let (now, settle_ns) = (heat.now, heat.policy.cost().settle_ns());
        let mut history = history.arrived(now);
        history.note(now, settle_ns);
        if heat.histories.len() >= MOVE_HISTORIES_MAX {
            heat.histories.retain(|_, history| history.lately(now, settle_ns) > 0);
        }
        if heat.histories.len() >= MOVE_HISTORIES_MAX {
            let least = heat
                .histories
                .iter()
                .min_by_key(|(page, history)| (history.lately(now, settle_ns), **page));
            let least = least.map(|(page, _)| *page);
            least.map(|page| heat.histories.remove(&page));
        }
        heat.histories.insert(page, history);
    }

    /// A request about use and moves.
    pub(super) fn on_heat<W: World>(
        &mut self,
        record: u32,
        request: Request,
        world: &W,
    ) -> Result<Reply> {
        let is_own = record < SLOTS_MAX;
        let Self { heat, frames, .. } = self;
        let is_home = |page: PageId| frames.by_page.contains_key(&page.0);
        match request {
            Request::NoteUse { pages } if is_own => {
                heat.note(&pages, is_home);
                Ok(Reply::Noted)
            }
            Request::DecideMove(ask) => self.decide_move(&ask, world).map(Reply::Decided),
            Request::Decisions { from } => Ok(Reply::Decisions(heat.decisions_from(from))),
            _ => {
                let reason = "only clients of the own rack say which pages they use".into();
                Err(Error::Denied { reason })
            }
        }
    }

    /// The hottest page that the rack wants.
    pub(super) fn next_pull<W: World>(
        &mut self,
        costs: AccessCosts,
        world: &W,
    ) -> Option<Relocation> {
        let Self { heat, frames, .. } = self;
        let page = heat.take_wanted(|page| frames.by_page.contains_key(&page.0))?;
        Some(Relocation::Pull(Box::new(self.ask(page, costs, world))))
    }

    fn ask<W: World>(&mut self, page: PageId, costs: AccessCosts, world: &W) -> MoveAsk {
        let free_frame = self.frames.free_memory(1) > 0;
        let victim = if free_frame { None } else { self.victim(world) };
        let Self { heat, rack, .. } = self;
        heat.counts.asked += 1;
        let limit = heat.policy.cost().limit(&costs);
        MoveAsk {
            page,
            asker: *rack,
            asker_use: heat.use_of(page),
            free_frame,
            victim,
            missing_bytes: heat.allowance.missing_bytes(&limit, heat.now),
            costs,
        }
    }

    /// The least used of the next pages that could go. Source: Rcmp §5.3 step 2.
    fn victim<W: World>(&mut self, world: &W) -> Option<Victim> {
        let Self { heat, frames, layout, .. } = self;
        let (behind, ahead) = (frames.by_page.range(..=heat.hand.0), heat.hand.0 + 1..);
        let mut coldest: Option<(u64, PageId, Use)> = None;
        let mut hand = heat.hand;
        for (&page, &frame) in frames.by_page.range(ahead).chain(behind).take(VICTIM_SAMPLE) {
            hand = PageId(page);
            if !may_go(frame, frames, world.private()) || heat.is_resting(hand) {
                continue;
            }
            let used = heat.use_of(hand);
            let rank = heat.rank(&used);
            if coldest.is_none_or(|(least, ..)| rank < least) {
                coldest = Some((rank, hand, used));
            }
            if used.recent.counts.total() == 0 && used.counts.total() == 0 {
                break;
            }
        }
        heat.hand = hand;
        coldest.map(|(_, page, used)| Victim {
            page,
            copy_bytes: layout.pages.page_bytes(),
            heat_milli: used.heat_milli,
            asker_use: used.recent,
            home_use: Recent::default(),
        })
    }

    /// Decides about a page of this rack.
    fn decide_move<W: World>(&mut self, ask: &MoveAsk, world: &W) -> Result<Decided> {
        let replica_room = self.replicas.has_room(ask.page, ask.asker);
        let Self { heat, frames, layout, rack, .. } = self;
        let (page, now) = (ask.page, heat.now);
        if !frames.by_page.contains_key(&page.0) {
            return Err(Error::NotMapped { addr: frames.addr(page, 0) });
        }
        let history = heat.histories.get(&page).copied().unwrap_or_default();
        let observation = Observation {
            now_ns: now,
            page,
            asker: ask.asker,
            home: *rack,
            copy_bytes: layout.pages.page_bytes(),
            asker_use: ask.asker_use,
            home_use: heat.use_of(page),
            others_use: Recent::default(),
            free_frame: ask.free_frame,
            victim: victim_here(ask, heat, frames),
            replica_room,
            under_way: frames.home(world.private(), page).is_none(),
            history,
            costs: ask.costs,
        };
        let allowance = Allowance::missing(ask.missing_bytes, now);
        let decided = heat.decide(&observation, &allowance);
        match decided.decision {
            Decision::Replicate { .. } | Decision::Leave(Reason::OverAllowance) => {
                // If it cannot be, it is as if it had not been decided.
                let _ = self.keep_replica(page, ask.asker, decided.decision, world);
            }
            Decision::Leave(_) => self.replicas.unwanted(page, ask.asker),
            Decision::Move { .. } | Decision::Swap { .. } => {}
        }
        Ok(decided)
    }
}

/// The victim with its use here. It leaves before the page comes, so there is none without a free
/// frame here: two full racks exchange nothing.
fn victim_here(ask: &MoveAsk, heat: &Heat, frames: &Frames) -> Option<Victim> {
    let victim = ask.victim.filter(|_| frames.free_memory(1) > 0)?;
    Some(Victim { home_use: heat.use_of(victim.page).recent, ..victim })
}

/// Whether a page in memory might be moved, as far as its frame's entry says.
pub(super) fn may_go<M: Mem>(frame: u32, frames: &Frames, mem: &M) -> bool {
    if frames.is_slot(frame) {
        return false;
    }
    let entry = FrameEntry::load_checked(mem, frame);
    entry.state == FrameState::Home && entry.owner.0 == 0
}
