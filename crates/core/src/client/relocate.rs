//! One step of the worker that moves pages for a rack: it asks the rack's daemon for the next
//! relocation, does it, and says what came of it with the next question. A handle does nothing else
//! meanwhile; [`crate::runtime::relocation`] is the loop. Source: Rcmp §5.3.
//!
//! ```text
//! (master)     Load       -> how full racks are, if cold pages may go to emptier ones
//! own daemon   NextMove   -> Pull      a hot page: how it is used here, and what could make room
//!                            Push      a cold page, and where it goes
//!                            Evacuate  any page of a rack that is being drained
//!                            Leave     the draining rack has no page
//!
//! Pull         (master) Resolve       -> the page's home, unless it is known
//!              its home DecideMove    -> whether it goes
//!              Migrate of the page that makes room, then of the page
//! Push         Migrate
//! Evacuate     (master) PickRack      -> a rack with room
//!              Migrate
//! Leave        master Leave           -> done, if the directory has no page of the rack
//! ```
//!
//! Nothing is remembered that matters: a worker that begins after a crash just asks.

use super::locate::unexpected;
use super::{Context, Locate, Migrate, OWN, Operation};
use crate::addr::{GAddr, PageId, RackId};
use crate::constants::{NS_PER_SECOND, RACKS_MAX};
use crate::error::{Error, Result};
use crate::member::{DrainReport, MemberAnswer, MemberCall, RackState};
use crate::policy::{AccessCosts, Decided, Decision, MoveAsk, MoveReport};
use crate::relocation::{BalanceQuery, Relocation, RelocationQuery, RelocationReport, SendResult};
use crate::seam::{Mem, Nanos};
use crate::wire::{MasterAnswer, MasterCall, PageHome, Reply, Request};
use std::collections::BTreeMap;

/// What a copy is expected to carry before the first, bytes a second: less than any fabric does.
const FIRST_BYTES_PER_SECOND: u64 = 100_000_000;

/// What is known from one step to the next.
#[derive(Debug)]
pub struct Relocator {
    costs: BTreeMap<RackId, AccessCosts>,
    latest: AccessCosts,
    bytes_per_second: u64,
    page_bytes: u64,
    pub(super) last: Option<RelocationReport>,
    /// A page for which the costs of its home were not known.
    pending: Option<Box<MoveAsk>>,
}

impl Default for Relocator {
    fn default() -> Self {
        Self {
            costs: BTreeMap::new(),
            latest: AccessCosts::default(),
            bytes_per_second: FIRST_BYTES_PER_SECOND,
            page_bytes: 0,
            last: None,
            pending: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelocationOutcome {
    /// The rack wants nothing now.
    Idle,
    /// What accesses to this rack cost has to be measured, and told by [`Relocator::measured`]; the
    /// page at the address is there, and may be read for it. Then the next step goes on with it.
    Unmeasured(RackId, GAddr),
    /// A page of another rack was asked for; how a move failed, if one did.
    Pulled(MoveReport, Option<Error>),
    /// A cold page was to go; where it went, unless it had gone before, or why it stays.
    Pushed(PageId, Result<Option<RackId>>),
    /// The same of a page of a rack that is being drained.
    Evacuated(PageId, Result<Option<RackId>>),
    /// All pages of the draining rack were tried; what came of it.
    PassOver(DrainReport),
    /// The rack has no page and is no member any more.
    Left,
}

impl Relocator {
    /// What accesses and copies between this rack and another cost.
    pub fn measured(&mut self, rack: RackId, costs: AccessCosts) {
        self.costs.insert(rack, costs);
        self.latest = costs;
    }

    /// They could not be measured: the page is left alone for a while.
    pub fn unmeasurable(&mut self) {
        if let Some(ask) = self.pending.take() {
            let (page, failed) = (ask.page, Some(ask.page));
            let report = MoveReport { page, decided: None, moved_bytes: 0, failed };
            self.last = Some(RelocationReport::Pulled(report));
        }
    }

    /// Whether the next step goes on with a page whose costs were not known.
    pub fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Costs are found out anew: they change with what else goes on.
    pub fn forget_costs(&mut self) {
        self.costs.clear();
    }

    /// A step that sent a page away took so long.
    pub fn moved_in(&mut self, ns: Nanos) {
        self.bytes_per_second = self.page_bytes.saturating_mul(NS_PER_SECOND) / ns.max(1);
    }

    /// The next step. `id` and the number after it differ from all other work requests of the
    /// handle. Piece 0 of its `Io` is a buffer of [`Migrate::buffer_bytes`]. `balances`: whether a
    /// cold page may go to a rack with more room.
    pub fn step(&mut self, id: u64, balances: bool) -> Relocate<'_> {
        Relocate { relocator: self, id, balances, moved_bytes: 0 }
    }
}

/// A step; see the module. Ends with an error only if its runtime could not ask at all; a page that
/// does not move is an outcome.
#[derive(Debug)]
pub struct Relocate<'r> {
    relocator: &'r mut Relocator,
    id: u64,
    balances: bool,
    moved_bytes: u64,
}

/// A page that did not move.
struct Failure {
    page: PageId,
    error: Error,
}

impl<M: Mem> Operation<M> for Relocate<'_> {
    type Output = RelocationOutcome;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<RelocationOutcome> {
        self.relocator.page_bytes = cx.client().geometry().page_bytes();
        if let Some(ask) = self.relocator.pending.take() {
            return self.pull(cx, ask).await;
        }
        match self.next(cx).await? {
            None => Ok(RelocationOutcome::Idle),
            Some(Relocation::Pull(ask)) => self.pull(cx, ask).await,
            Some(Relocation::Push { page, to }) => {
                let sent = self.migrate(cx, page, to, self.id).await;
                let sent = self.note_sent(page, sent.map(|home| home.rack));
                Ok(RelocationOutcome::Pushed(page, sent))
            }
            Some(Relocation::Evacuate(page)) => {
                let sent = self.evacuate(cx, page).await?;
                Ok(RelocationOutcome::Evacuated(page, sent))
            }
            Some(Relocation::PassOver(report)) => Ok(RelocationOutcome::PassOver(report)),
            Some(Relocation::Leave) => self.leave(cx).await,
        }
    }
}

impl Relocate<'_> {
    /// What the rack wants.
    async fn next<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Option<Relocation>> {
        let balance = match self.balances {
            true => Some(self.pool_load(cx).await?),
            false => None,
        };
        let (costs, last) = (self.relocator.latest, self.relocator.last.clone());
        let query = RelocationQuery { costs, last, balance };
        let reply = cx.daemon(OWN, Request::NextMove(query.into())).await?;
        // It has heard of the last one.
        self.relocator.last = None;
        let own = cx.client().own_rack();
        match reply {
            Reply::NextMove(Some(Relocation::Push { to, .. })) if to == own => {
                Err(unexpected("own daemon", "a question for a cold page"))
            }
            Reply::NextMove(next) => Ok(next),
            _ => Err(unexpected("own daemon", "a question for the next move")),
        }
    }

    async fn pool_load<M: Mem>(&self, cx: &mut impl Context<M>) -> Result<BalanceQuery> {
        let bytes_per_second = self.relocator.bytes_per_second;
        match cx.master(MasterCall::Member(MemberCall::Load)).await? {
            MasterAnswer::Member(MemberAnswer::Load(load)) => {
                Ok(BalanceQuery { load, bytes_per_second })
            }
            _ => Err(unexpected("master", "how full racks are")),
        }
    }

    /// Fetches a page of another rack, if its home lets it go.
    async fn pull<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        mut ask: Box<MoveAsk>,
    ) -> Result<RelocationOutcome> {
        let page = ask.page;
        let decided = match find(cx, page).await {
            Ok(home) if home.rack.same_rack(cx.client().own_rack()) => Ok(None),
            Ok(home) => {
                let Some(costs) = self.relocator.costs.get(&home.rack) else {
                    self.relocator.pending = Some(ask);
                    let at = cx.client().geometry().join(page, 0);
                    return Ok(RelocationOutcome::Unmeasured(home.rack, at));
                };
                ask.costs = *costs;
                decide(cx, &ask, home).await.map(|decided| Some((decided, home.rack)))
            }
            Err(error) => Err(error),
        };
        let (decided, failure) = match decided {
            Ok(None) => (None, None),
            Ok(Some((decided, home))) => {
                let done = self.execute(cx, &ask, decided.decision, home).await;
                (Some(decided), done.err())
            }
            Err(error) => (None, Some(Failure { page, error })),
        };
        let (failed, error) = failure.map(|one| (one.page, one.error)).unzip();
        let report = MoveReport { page, decided, moved_bytes: self.moved_bytes, failed };
        self.relocator.last = Some(RelocationReport::Pulled(report));
        Ok(RelocationOutcome::Pulled(report, error))
    }

    /// Does what the page's home decided.
    async fn execute<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        ask: &MoveAsk,
        decision: Decision,
        home: RackId,
    ) -> std::result::Result<(), Failure> {
        let own = cx.client().own_rack();
        let moves = match decision {
            Decision::Leave(_) | Decision::Replicate { .. } => [None, None],
            Decision::Move { to } => [Some((ask.page, to)), None],
            Decision::Swap { victim } => [Some((victim, home)), Some((ask.page, own))],
        };
        for ((page, to), id) in moves.into_iter().flatten().zip(self.id..) {
            let moved = self.migrate(cx, page, to, id).await;
            moved.map_err(|error| Failure { page, error })?;
            self.moved_bytes += self.relocator.page_bytes;
        }
        Ok(())
    }

    /// Moves a page; `id` is of its work requests.
    async fn migrate<M: Mem>(
        &self,
        cx: &mut impl Context<M>,
        page: PageId,
        to: RackId,
        id: u64,
    ) -> Result<PageHome> {
        let addr = cx.client().geometry().join(page, 0);
        Migrate::new(cx.client(), addr, to, id).run(cx).await
    }

    /// Looks for a rack for a page of the own one, and moves it there. An error of the master is
    /// the step's; the page stays for now.
    async fn evacuate<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        page: PageId,
    ) -> Result<Result<Option<RackId>>> {
        let (own, bytes) = (cx.client().own_rack(), self.relocator.page_bytes);
        // Racks that did not take it, and why the last one did not.
        let (mut tried, mut refused) = (Vec::new(), None);
        let sent = loop {
            let call = MasterCall::PickRack { own, bytes, tried: tried.clone() };
            let to = match cx.master(call).await {
                Ok(MasterAnswer::Rack(info)) if info.rack != own => info.rack,
                Err(error @ Error::Full { .. }) => break Err(refused.unwrap_or(error)),
                answer => {
                    let nonsense = unexpected("master", "a pick of a rack");
                    let error = answer.err().unwrap_or(nonsense);
                    let _ = self.note_sent(page, Err(error.clone()));
                    return Err(error);
                }
            };
            let addr = cx.client().geometry().join(page, 0);
            let mut migrate = Migrate::new(cx.client(), addr, to, self.id);
            let error = match migrate.run(cx).await {
                Ok(home) if home.rack != own => break Ok(home.rack),
                // Another shard of the rack is where it is, and drains as well, or soon.
                Ok(_) => Error::Draining { rack: migrate.to() },
                Err(error) => error,
            };
            let is_last = cx.has_failed() || tried.len() >= RACKS_MAX as usize;
            if is_last || !is_of_target(&error) {
                break Err(error);
            }
            tried.push(migrate.to());
            refused = Some(error);
        };
        Ok(self.note_sent(page, sent))
    }

    /// What the daemon will be told of a page that was to go. One that is not there any more was
    /// freed, or another process moved it.
    fn note_sent(&mut self, page: PageId, sent: Result<RackId>) -> Result<Option<RackId>> {
        let sent = match sent {
            Err(Error::NotMapped { .. } | Error::Lost { .. }) => Ok(None),
            sent => sent.map(Some),
        };
        let result = match &sent {
            Ok(Some(_)) => SendResult::Moved,
            Ok(None) => SendResult::Gone,
            Err(error) => SendResult::Stays(error.to_string()),
        };
        self.relocator.last = Some(RelocationReport::Sent(page, result));
        sent
    }

    /// No page was there: the rack may leave.
    async fn leave<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<RelocationOutcome> {
        let own = cx.client().own_rack();
        match cx.master(MasterCall::Member(MemberCall::Leave(own))).await {
            Ok(MasterAnswer::Member(MemberAnswer::RackState(RackState::Left))) => {
                Ok(RelocationOutcome::Left)
            }
            Ok(_) => Err(unexpected("master", "a rack that leaves")),
            // Something is on its way here or back, or the rack is to stay.
            Err(Error::Denied { .. }) => Ok(RelocationOutcome::PassOver(DrainReport::default())),
            Err(error) => Err(error),
        }
    }
}

/// Asks a page's home whether it may go.
async fn decide<M: Mem>(
    cx: &mut impl Context<M>,
    ask: &MoveAsk,
    home: PageHome,
) -> Result<Decided> {
    let own = cx.client().own_rack();
    let link = cx.client().link_of(home.rack).expect("a translation has a link");
    match cx.daemon(link, Request::DecideMove(Box::new(*ask))).await {
        Ok(Reply::Decided(decided)) if fits(ask, decided.decision, own) => Ok(decided),
        Ok(_) => Err(unexpected("daemon", "a page that was asked for")),
        Err(error) => {
            // It may live elsewhere by now: the next question finds it.
            cx.client().forget(ask.page);
            Err(error)
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

/// Whether another rack might take the page.
fn is_of_target(error: &Error) -> bool {
    matches!(
        error,
        Error::Full { .. }
            | Error::Draining { .. }
            | Error::NoSuchRack { .. }
            | Error::PeerDead { .. }
    )
}
