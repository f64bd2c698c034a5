//! One who moves pages for a rack: asks its daemon which page it wants, asks the page's home
//! whether it may go, moves it, and says what came of it with the next question. A handle does
//! nothing else meanwhile; a daemon's process has one for it. Source: Rcmp §5.3.
//!
//! ```text
//! own daemon   NextMove   -> a page, how it is used here, and what could make room
//! (master)     Resolve    -> its home, unless it is known
//! its home     DecideMove -> whether it goes
//!              Migrate of the page that makes room, then of the page
//! ```

use super::locate::unexpected;
use super::{Client, Io, Locate, Migrate, Need, OWN, Operation, Step};
use crate::addr::{GAddr, PageId, RackId};
use crate::constants::{MOVER_PAUSE_NS_MAX, MOVER_PAUSE_TIMES_MAX};
use crate::error::{Error, Result};
use crate::policy::{AccessCosts, Decided, Decision, MoveAsk, MoveReport};
use crate::seam::{Mem, Nanos, WorkStatus};
use crate::wire::{MasterAnswer, Reply, Request};
use std::collections::BTreeMap;

/// What is known from one turn to the next.
#[derive(Debug, Default)]
pub struct Mover {
    costs: BTreeMap<RackId, AccessCosts>,
    latest: AccessCosts,
    last: Option<MoveReport>,
    /// A page whose home's costs were not known.
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
        let stage = match self.pending.take() {
            Some(ask) => Stage::Find(ask, None),
            None => Stage::Next,
        };
        Turn { mover: self, id, stage, moved_bytes: 0 }
    }
}

#[derive(Debug)]
enum Stage {
    Next,
    /// Where the page lives is found out.
    Find(MoveAsk, Option<Box<Locate>>),
    Decide(MoveAsk),
    Move(Moving),
    Done(Turned),
}

/// Pages on their way.
#[derive(Debug)]
struct Moving {
    page: PageId,
    decided: Decided,
    now: PageId,
    migrate: Box<Migrate>,
}

/// A turn; see the module. Ends with an error only if its driver could not ask at all; what a
/// move's failure is said by [`Turned::Asked`].
#[derive(Debug)]
pub struct Turn<'m> {
    mover: &'m mut Mover,
    id: u64,
    stage: Stage,
    moved_bytes: u64,
}

impl Turn<'_> {
    /// Whoever drives the turn failed: a move that is under way is given up in order. Then the
    /// turn is driven to its end.
    pub fn give_up(&mut self, error: Error) {
        match &mut self.stage {
            Stage::Move(moving) => moving.migrate.give_up(error),
            Stage::Find(ask, _) | Stage::Decide(ask) => {
                let page = ask.page;
                self.end(page, None, Some((page, error)));
            }
            Stage::Next | Stage::Done(_) => self.stage = Stage::Done(Turned::Idle),
        }
    }

    fn end(&mut self, page: PageId, decided: Option<Decided>, failed: Option<(PageId, Error)>) {
        let (failed, error) = failed.unzip();
        let report = MoveReport { page, decided, moved_bytes: self.moved_bytes, failed };
        self.mover.last = Some(report);
        self.stage = Stage::Done(Turned::Asked(report, error));
    }

    /// Goes on once the page's home is known.
    fn found<M: Mem>(&mut self, client: &Client<M>, mut ask: MoveAsk, rack: RackId) {
        if rack.same_rack(client.own_rack()) {
            return self.end(ask.page, None, None);
        }
        match self.mover.costs.get(&rack) {
            Some(costs) => {
                ask.costs = *costs;
                self.stage = Stage::Decide(ask);
            }
            None => {
                self.mover.pending = Some(ask);
                let addr = client.geometry().join(ask.page, 0);
                self.stage = Stage::Done(Turned::Unmeasured(rack, addr));
            }
        }
    }

    fn on_decided<M: Mem>(&mut self, client: &Client<M>, ask: &MoveAsk, decided: Decided) {
        let page = ask.page;
        let home = client.home_of(page).map(|home| home.rack);
        let victim = ask.victim.map(|victim| victim.page);
        let (now, to) = match (decided.decision, home) {
            (Decision::Move { to }, _) if to == client.own_rack() => (page, to),
            (Decision::Swap { victim: page }, Some(home)) if victim == Some(page) => (page, home),
            (Decision::Leave(_) | Decision::Replicate { .. }, _) => {
                return self.end(page, Some(decided), None);
            }
            _ => {
                let error = unexpected("daemon", "a page that was asked for");
                return self.end(page, None, Some((page, error)));
            }
        };
        let migrate = Box::new(Migrate::new(client, client.geometry().join(now, 0), to, self.id));
        self.stage = Stage::Move(Moving { page, decided, now, migrate });
    }

    /// A page has moved, or not.
    fn on_moved<M: Mem>(&mut self, client: &Client<M>, result: Result<RackId>) {
        let Stage::Move(moving) = &mut self.stage else { return };
        let Moving { page, decided, now, .. } = *moving;
        match result {
            Err(error) => self.end(page, Some(decided), Some((now, error))),
            Ok(_) => {
                self.moved_bytes += client.geometry().page_bytes();
                if now == page {
                    return self.end(page, Some(decided), None);
                }
                // Room was made.
                let (addr, to) = (client.geometry().join(page, 0), client.own_rack());
                moving.now = page;
                *moving.migrate = Migrate::new(client, addr, to, self.id + 1);
            }
        }
    }
}

impl<M: Mem> Operation<M> for Turn<'_> {
    type Output = Turned;

    fn give_up(&mut self, error: Error) -> bool {
        Turn::give_up(self, error);
        true
    }

    fn step(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Step<Turned>> {
        loop {
            match &mut self.stage {
                Stage::Next => {
                    let (costs, last) = (self.mover.latest, self.mover.last);
                    return Ok(Step::Need(Need::Daemon(OWN, Request::NextMove { costs, last })));
                }
                Stage::Find(ask, locate) => {
                    let ask = *ask;
                    let addr = client.geometry().join(ask.page, 0);
                    if let Some(home) = client.home_of(ask.page) {
                        self.found(client, ask, home.rack);
                        continue;
                    }
                    let locate = locate.get_or_insert_with(|| Locate::new(client, addr, 1).into());
                    match locate.step(client, io) {
                        Ok(Step::Need(need)) => return Ok(Step::Need(need)),
                        Ok(Step::Done(())) => {}
                        Err(error) => self.end(ask.page, None, Some((ask.page, error))),
                    }
                }
                Stage::Decide(ask) => {
                    let ask = *ask;
                    let home = client.home_of(ask.page);
                    let Some(link) = home.and_then(|home| client.link_of(home.rack)) else {
                        self.stage = Stage::Find(ask, None);
                        continue;
                    };
                    return Ok(Step::Need(Need::Daemon(link, Request::DecideMove(ask.into()))));
                }
                Stage::Move(moving) => match moving.migrate.step(client, io) {
                    Ok(Step::Need(need)) => return Ok(Step::Need(need)),
                    Ok(Step::Done(home)) => self.on_moved(client, Ok(home.rack)),
                    Err(error) => self.on_moved(client, Err(error)),
                },
                Stage::Done(turned) => return Ok(Step::Done(turned.clone())),
            }
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match &mut self.stage {
            Stage::Next => {
                // It has heard of the last one.
                let reply = reply?;
                self.mover.last = None;
                self.stage = match reply {
                    Reply::NextMove(None) => Stage::Done(Turned::Idle),
                    Reply::NextMove(Some(ask)) => Stage::Find(*ask, None),
                    _ => return Err(unexpected("own daemon", "a question for the next move")),
                };
            }
            Stage::Find(ask, locate) => {
                let page = ask.page;
                let locate = locate.as_mut().expect("only a search asks daemons");
                if let Err(error) = locate.on_reply(client, reply) {
                    self.end(page, None, Some((page, error)));
                }
            }
            Stage::Decide(ask) => {
                let ask = *ask;
                match reply {
                    Ok(Reply::Decided(decided)) => self.on_decided(client, &ask, decided),
                    Ok(_) => return Err(unexpected("daemon", "a page that was asked for")),
                    Err(error) => {
                        // It may live elsewhere by now: the next question finds it.
                        client.forget(ask.page);
                        self.end(ask.page, None, Some((ask.page, error)));
                    }
                }
            }
            Stage::Move(moving) => {
                if let Err(error) = moving.migrate.on_reply(client, reply) {
                    self.on_moved(client, Err(error));
                }
            }
            Stage::Done(_) => {}
        }
        Ok(())
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        match &mut self.stage {
            Stage::Find(ask, locate) => {
                let page = ask.page;
                let locate = locate.as_mut().expect("only a search asks the master");
                if let Err(error) = locate.on_master(client, answer) {
                    self.end(page, None, Some((page, error)));
                }
            }
            Stage::Move(moving) => {
                if let Err(error) = moving.migrate.on_master(client, answer) {
                    self.on_moved(client, Err(error));
                }
            }
            Stage::Next | Stage::Decide(_) | Stage::Done(_) => {}
        }
        Ok(())
    }

    fn on_completion(&mut self, client: &mut Client<M>, id: u64, status: WorkStatus) -> Result<()> {
        let Stage::Move(moving) = &mut self.stage else { return Ok(()) };
        if let Err(error) = moving.migrate.on_completion(client, id, status) {
            self.on_moved(client, Err(error));
        }
        Ok(())
    }
}
