//! The mover of a rack: it asks its daemon which page it wants and the page's home whether it may
//! go, moves it, and says what came of it with the next question. A handle does nothing else
//! meanwhile; a daemon's process has one for it. Source: Rcmp §5.3.
//!
//! ```text
//! own daemon   NextMove   -> a page, how it is used here, and what could make room
//! (master)     Resolve    -> its home, unless it is known
//! its home     DecideMove -> whether it goes
//!              Migrate of the page that makes room, then of the page
//! ```

use super::locate::unexpected;
use super::{Context, Locate, Migrate, OWN, Operation};
use crate::addr::{GAddr, PageId, RackId};
use crate::constants::{MOVER_PAUSE_NS_MAX, MOVER_PAUSE_TIMES_MAX};
use crate::error::{Error, Result};
use crate::policy::{AccessCosts, Decided, Decision, MoveAsk, MoveReport};
use crate::seam::{Mem, Nanos};
use crate::wire::{PageHome, Reply, Request};
use std::collections::BTreeMap;

/// What is known from one turn to the next.
#[derive(Debug, Default)]
pub struct Mover {
    costs: BTreeMap<RackId, AccessCosts>,
    latest: AccessCosts,
    pub(super) last: Option<MoveReport>,
    /// A page for which the costs of its home were not known.
    pending: Option<MoveAsk>,
    /// Questions one after another that moved nothing.
    in_vain: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turned {
    /// The rack wants no page now.
    Idle,
    /// What accesses to this rack cost has to be measured, and told by [`Mover::measured`]; the
    /// page at the address is there, and may be read for it. Then the turn is taken again.
    Unmeasured(RackId, GAddr),
    /// A page was asked for; how a move failed, if one did.
    Asked(MoveReport, Option<Error>),
}

impl Mover {
    /// What accesses and copies between this rack and another cost.
    pub fn measured(&mut self, rack: RackId, costs: AccessCosts) {
        self.costs.insert(rack, costs);
        self.latest = costs;
    }

    /// They could not be measured: the page is left alone for a while.
    pub fn unmeasurable(&mut self) {
        if let Some(MoveAsk { page, .. }) = self.pending.take() {
            let failed = Some(page);
            self.last = Some(MoveReport { page, decided: None, moved_bytes: 0, failed });
        }
    }

    /// Costs are found out anew: they change with what else goes on.
    pub fn forget_costs(&mut self) {
        self.costs.clear();
    }

    /// For how long to wait after a turn that took `took_ns`, nanoseconds, so that asking in vain
    /// takes little of the processors.
    pub fn pause_ns(&mut self, report: &MoveReport, took_ns: Nanos) -> Nanos {
        let decision = report.decided.map(|decided| decided.decision);
        if report.moved_bytes > 0 || matches!(decision, Some(Decision::Replicate { .. })) {
            self.in_vain = 0;
            return 0;
        }
        let times = 1_u64.checked_shl(self.in_vain).unwrap_or(u64::MAX);
        self.in_vain = self.in_vain.saturating_add(1);
        took_ns.saturating_mul(times.min(MOVER_PAUSE_TIMES_MAX.into())).min(MOVER_PAUSE_NS_MAX)
    }

    /// The next turn. `id` and the number after it differ from all other work requests of the
    /// handle. Piece 0 of its `Io` is a buffer of [`Migrate::buffer_bytes`].
    pub fn turn(&mut self, id: u64) -> Turn<'_> {
        Turn { mover: self, id, moved_bytes: 0 }
    }
}

/// A turn; see the module. Ends with an error only if its runtime could not ask at all; a failed
/// move is reported by [`Turned::Asked`].
#[derive(Debug)]
pub struct Turn<'m> {
    mover: &'m mut Mover,
    id: u64,
    moved_bytes: u64,
}

impl Turn<'_> {
    fn end(
        &mut self,
        page: PageId,
        decided: Option<Decided>,
        failed: Option<(PageId, Error)>,
    ) -> Turned {
        let (failed, error) = failed.unzip();
        let report = MoveReport { page, decided, moved_bytes: self.moved_bytes, failed };
        self.mover.last = Some(report);
        Turned::Asked(report, error)
    }

    /// The page that the rack wants.
    async fn next<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Option<MoveAsk>> {
        if let Some(ask) = self.mover.pending.take() {
            return Ok(Some(ask));
        }
        let (costs, last) = (self.mover.latest, self.mover.last);
        let reply = cx.daemon(OWN, Request::NextMove { costs, last }).await?;
        // It has heard of the last one.
        self.mover.last = None;
        match reply {
            Reply::NextMove(ask) => Ok(ask.map(|ask| *ask)),
            _ => Err(unexpected("own daemon", "a question for the next move")),
        }
    }

    /// Asks the page's home.
    async fn decide<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        ask: MoveAsk,
        home: PageHome,
    ) -> Result<Decided> {
        let own = cx.client().own_rack();
        let link = cx.client().link_of(home.rack).expect("a translation has a link");
        match cx.daemon(link, Request::DecideMove(ask.into())).await {
            Ok(Reply::Decided(decided)) if fits(&ask, decided.decision, own) => Ok(decided),
            Ok(_) => Err(unexpected("daemon", "a page that was asked for")),
            Err(error) => {
                // It may live elsewhere by now: the next question finds it.
                cx.client().forget(ask.page);
                Err(error)
            }
        }
    }

    /// Moves a page; `id` is of its work requests.
    async fn migrate<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        page: PageId,
        to: RackId,
        id: u64,
    ) -> Result<()> {
        let addr = cx.client().geometry().join(page, 0);
        Migrate::new(cx.client(), addr, to, id).run(cx).await?;
        self.moved_bytes += cx.client().geometry().page_bytes();
        Ok(())
    }

    /// Does what was decided; which page did not move, if one did not.
    async fn execute<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        ask: &MoveAsk,
        decision: Decision,
        home: RackId,
    ) -> std::result::Result<(), (PageId, Error)> {
        let (page, own) = (ask.page, cx.client().own_rack());
        match decision {
            Decision::Leave(_) | Decision::Replicate { .. } => Ok(()),
            Decision::Move { to } => {
                self.migrate(cx, page, to, self.id).await.map_err(|error| (page, error))
            }
            Decision::Swap { victim } => {
                let made_room = self.migrate(cx, victim, home, self.id).await;
                made_room.map_err(|error| (victim, error))?;
                self.migrate(cx, page, own, self.id + 1).await.map_err(|error| (page, error))
            }
        }
    }
}

/// Whether a decision is one about what was asked.
fn fits(ask: &MoveAsk, decision: Decision, own: RackId) -> bool {
    match decision {
        Decision::Leave(_) | Decision::Replicate { .. } => true,
        Decision::Move { to } => to == own,
        Decision::Swap { victim } => ask.victim.is_some_and(|one| one.page == victim),
    }
}

async fn find<M: Mem>(cx: &mut impl Context<M>, page: PageId) -> Result<PageHome> {
    loop {
        let client = cx.client();
        if let Some(home) = client.home_of(page) {
            return Ok(home);
        }
        Locate::new(client, client.geometry().join(page, 0), 1).run(cx).await?;
    }
}

impl<M: Mem> Operation<M> for Turn<'_> {
    type Output = Turned;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Turned> {
        let Some(mut ask) = self.next(cx).await? else { return Ok(Turned::Idle) };
        let page = ask.page;
        let home = match find(cx, page).await {
            Ok(home) => home,
            Err(error) => return Ok(self.end(page, None, Some((page, error)))),
        };
        if home.rack.same_rack(cx.client().own_rack()) {
            return Ok(self.end(page, None, None));
        }
        let Some(costs) = self.mover.costs.get(&home.rack) else {
            self.mover.pending = Some(ask);
            return Ok(Turned::Unmeasured(home.rack, cx.client().geometry().join(page, 0)));
        };
        ask.costs = *costs;
        let decided = match self.decide(cx, ask, home).await {
            Ok(decided) => decided,
            Err(error) => return Ok(self.end(page, None, Some((page, error)))),
        };
        let done = self.execute(cx, &ask, decided.decision, home.rack).await;
        Ok(self.end(page, Some(decided), done.err()))
    }
}
