//! One who sends cold pages of a full rack to emptier ones: asks the master how full the racks are,
//! the own daemon whether a page goes, and moves it. A daemon's process has one for it.
//!
//! ```text
//! master       Load    -> how full racks are on average, and the emptiest
//! own daemon   Next    -> a page and where it goes
//!              Migrate
//! ```

use super::locate::unexpected;
use super::{Client, Io, Migrate, Need, OWN, Operation, Step};
use crate::addr::{PageId, RackId};
use crate::error::{Error, Result};
use crate::member::{BalanceReply, BalanceRequest, MemberAnswer, MemberCall, PoolLoad};
use crate::seam::{Mem, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};

/// What is known from one turn to the next.
#[derive(Debug, Default)]
pub struct Balancer {
    /// A page that did not move.
    failed: Option<PageId>,
    /// What a copy carries, bytes a second.
    bytes_per_second: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balanced {
    /// No page goes now.
    Rests,
    /// A page is in another rack.
    Sent(PageId, RackId),
    /// A page was to go and did not.
    Stays(PageId, Error),
}

impl Balancer {
    /// How fast a page was moved last, or is expected to be.
    pub fn measured(&mut self, bytes_per_second: u64) {
        self.bytes_per_second = bytes_per_second;
    }

    /// The next turn. `id` differs from all other work requests of the handle. Piece 0 of its `Io`
    /// is a buffer of [`Migrate::buffer_bytes`].
    pub fn turn(&mut self, id: u64) -> BalanceTurn<'_> {
        BalanceTurn { balancer: self, id, stage: Stage::Load }
    }
}

#[derive(Debug)]
enum Stage {
    Load,
    Next(PoolLoad),
    Move(PageId, Box<Migrate>),
    Done(Balanced),
}

/// A turn; see the module.
#[derive(Debug)]
pub struct BalanceTurn<'b> {
    balancer: &'b mut Balancer,
    id: u64,
    stage: Stage,
}

impl BalanceTurn<'_> {
    /// Whoever drives the turn failed: a move that is under way is given up in order. Then the
    /// turn is driven to its end.
    pub fn give_up(&mut self, error: Error) {
        match &mut self.stage {
            Stage::Move(_, migrate) => migrate.give_up(error),
            _ => self.stage = Stage::Done(Balanced::Rests),
        }
    }

    fn moved(&mut self, result: Result<RackId>) {
        let Stage::Move(page, _) = &self.stage else { return };
        let page = *page;
        self.stage = Stage::Done(match result {
            Ok(rack) => Balanced::Sent(page, rack),
            Err(error) => {
                self.balancer.failed = Some(page);
                Balanced::Stays(page, error)
            }
        });
    }
}

impl<M: Mem> Operation<M> for BalanceTurn<'_> {
    type Output = Balanced;

    fn give_up(&mut self, error: Error) -> bool {
        BalanceTurn::give_up(self, error);
        true
    }

    fn step(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Step<Balanced>> {
        loop {
            match &mut self.stage {
                Stage::Load => {
                    return Ok(Step::Need(Need::Master(MasterCall::Member(MemberCall::Load))));
                }
                Stage::Next(load) => {
                    let (load, failed) = (*load, self.balancer.failed);
                    let bytes_per_second = self.balancer.bytes_per_second;
                    let next = BalanceRequest::Next { load, bytes_per_second, failed };
                    return Ok(Step::Need(Need::Daemon(OWN, Request::Balance(next))));
                }
                Stage::Move(_, migrate) => match migrate.step(client, io) {
                    Ok(Step::Need(need)) => return Ok(Step::Need(need)),
                    Ok(Step::Done(home)) => self.moved(Ok(home.rack)),
                    Err(error) => self.moved(Err(error)),
                },
                Stage::Done(balanced) => return Ok(Step::Done(balanced.clone())),
            }
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match &mut self.stage {
            Stage::Next(_) => {
                let Reply::Balance(BalanceReply::Next(next)) = reply? else {
                    return Err(unexpected("own daemon", "a question for a cold page"));
                };
                self.balancer.failed = None;
                self.stage = match next {
                    Some((page, to)) if to != client.own_rack() => {
                        let addr = client.geometry().join(page, 0);
                        Stage::Move(page, Migrate::new(client, addr, to, self.id).into())
                    }
                    _ => Stage::Done(Balanced::Rests),
                };
            }
            Stage::Move(_, migrate) => {
                if let Err(error) = migrate.on_reply(client, reply) {
                    self.moved(Err(error));
                }
            }
            Stage::Load | Stage::Done(_) => {}
        }
        Ok(())
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        match &mut self.stage {
            Stage::Load => match answer? {
                MasterAnswer::Member(MemberAnswer::Load(load)) => self.stage = Stage::Next(load),
                _ => return Err(unexpected("master", "how full racks are")),
            },
            Stage::Move(_, migrate) => {
                if let Err(error) = migrate.on_master(client, answer) {
                    self.moved(Err(error));
                }
            }
            Stage::Next(_) | Stage::Done(_) => {}
        }
        Ok(())
    }

    fn on_completion(&mut self, client: &mut Client<M>, id: u64, status: WorkStatus) -> Result<()> {
        let Stage::Move(_, migrate) = &mut self.stage else { return Ok(()) };
        if let Err(error) = migrate.on_completion(client, id, status) {
            self.moved(Err(error));
        }
        Ok(())
    }
}
