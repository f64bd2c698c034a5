//! One who moves all pages of a rack elsewhere, page by page: asks the rack's daemon which there
//! are, the master where one may go, moves it, and begins again until the rack can leave. A handle
//! does nothing else meanwhile; a daemon's process has one for it.
//!
//! ```text
//! own daemon   Drain(Pages)  -> pages at home, in order
//! (master)     PickRack      -> a rack with room, for each page
//!              Migrate
//! own daemon   Drain(Note)      what came of the pass
//! master       Leave         -> done, if the directory has no page of the rack
//! ```
//!
//! Nothing is remembered that matters: whoever goes on after a crash begins a new pass. Pages that
//! stay for a reason that may pass are tried again in the next one.

use super::locate::unexpected;
use super::{Client, Io, Migrate, Need, OWN, Operation, Step};
use crate::addr::{PageId, RackId};
use crate::constants::{DRAIN_PAGES_MAX, DRAIN_REASONS_MAX, RACKS_MAX};
use crate::error::{Error, Result};
use crate::member::{DrainReply, DrainReport, DrainRequest, MemberAnswer, MemberCall, Standing};
use crate::seam::{Mem, WorkStatus};
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};
use std::collections::VecDeque;

/// What is known from one turn to the next.
#[derive(Debug, Default)]
pub struct Drainer {
    /// Pages to be moved, in order.
    pages: VecDeque<PageId>,
    /// Where the next question for pages begins.
    from: PageId,
    report: DrainReport,
    /// Pages that this pass has seen.
    seen: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// A page is in another rack now.
    Moved(PageId, RackId),
    /// A page had gone before: it was freed, or somebody else moved it.
    Gone(PageId),
    /// A page stays for now.
    Stays(PageId, Error),
    /// All pages that were there have been tried; what came of it.
    PassOver(DrainReport),
    /// The rack has no page and is no member any more.
    Left,
}

impl Drainer {
    /// The next turn. `id` differs from all other work requests of the handle. Piece 0 of its `Io`
    /// is a buffer of [`Migrate::buffer_bytes`].
    pub fn turn(&mut self, id: u64) -> DrainTurn<'_> {
        let stage = match self.pages.pop_front() {
            Some(page) => Stage::Pick(Picking { page, tried: Vec::new(), refused: None }),
            None => Stage::List,
        };
        DrainTurn { drainer: self, id, stage, is_given_up: false }
    }
}

#[derive(Debug)]
enum Stage {
    List,
    Pick(Picking),
    Move(Picking, Box<Migrate>),
    /// The pass is over: the daemon is told.
    Note,
    /// No page was there: the rack may leave.
    Leave,
    Done(Drained),
}

/// A page that looks for a rack.
#[derive(Debug)]
struct Picking {
    page: PageId,
    /// Racks that did not take it.
    tried: Vec<RackId>,
    /// Why the last one did not.
    refused: Option<Error>,
}

/// A turn; see the module. Ends with an error only if its driver could not ask at all; what a
/// move's failure is said by [`Drained::Stays`].
#[derive(Debug)]
pub struct DrainTurn<'d> {
    drainer: &'d mut Drainer,
    id: u64,
    stage: Stage,
    /// No other rack is tried.
    is_given_up: bool,
}

impl DrainTurn<'_> {
    /// Whoever drives the turn failed: a move that is under way is given up in order. Then the
    /// turn is driven to its end.
    pub fn give_up(&mut self, error: Error) {
        self.is_given_up = true;
        match &mut self.stage {
            Stage::Move(_, migrate) => migrate.give_up(error),
            Stage::Pick(picking) => {
                let page = picking.page;
                self.stays(page, error);
            }
            Stage::List | Stage::Note | Stage::Leave | Stage::Done(_) => {
                *self.drainer = Drainer::default();
                self.stage = Stage::Done(Drained::PassOver(DrainReport::default()));
            }
        }
    }

    fn stays(&mut self, page: PageId, error: Error) {
        let report = &mut self.drainer.report;
        report.stayed += 1;
        if report.reasons.len() < DRAIN_REASONS_MAX {
            report.reasons.push((page, error.to_string()));
        }
        self.stage = Stage::Done(Drained::Stays(page, error));
    }

    /// The daemon has named pages.
    fn listed(&mut self, pages: Vec<PageId>) -> Result<()> {
        let in_order = pages.is_sorted() && pages.first().is_none_or(|p| *p >= self.drainer.from);
        if !in_order || pages.len() > DRAIN_PAGES_MAX {
            return Err(unexpected("own daemon", "a question for pages"));
        }
        self.drainer.seen += pages.len() as u64;
        self.drainer.from = PageId(pages.last().map_or(0, |last| last.0 + 1));
        self.drainer.pages = pages.into();
        self.stage = match self.drainer.pages.pop_front() {
            Some(page) => Stage::Pick(Picking { page, tried: Vec::new(), refused: None }),
            None if self.drainer.seen == 0 => Stage::Leave,
            None => Stage::Note,
        };
        Ok(())
    }

    fn pass_over(&mut self) {
        let report = std::mem::take(&mut *self.drainer).report;
        self.stage = Stage::Done(Drained::PassOver(report));
    }

    /// A page has moved, or not.
    fn moved(&mut self, result: Result<RackId>) {
        let Stage::Move(picking, migrate) = &mut self.stage else { return };
        let page = picking.page;
        match result {
            Ok(rack) => {
                self.drainer.report.moved += 1;
                self.stage = Stage::Done(Drained::Moved(page, rack));
            }
            Err(Error::NotMapped { .. } | Error::Lost { .. }) => {
                self.stage = Stage::Done(Drained::Gone(page));
            }
            Err(error)
                if !self.is_given_up
                    && is_of_target(&error)
                    && picking.tried.len() < RACKS_MAX as usize =>
            {
                picking.tried.push(migrate.to());
                picking.refused = Some(error);
                let (tried, refused) = (picking.tried.clone(), picking.refused.take());
                self.stage = Stage::Pick(Picking { page, tried, refused });
            }
            Err(error) => self.stays(page, error),
        }
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

impl<M: Mem> Operation<M> for DrainTurn<'_> {
    type Output = Drained;

    fn give_up(&mut self, error: Error) -> bool {
        DrainTurn::give_up(self, error);
        true
    }

    fn step(&mut self, client: &mut Client<M>, io: &mut impl Io) -> Result<Step<Drained>> {
        loop {
            let own = client.own_rack();
            let request = match &mut self.stage {
                Stage::List => DrainRequest::Pages { from: self.drainer.from },
                Stage::Note => DrainRequest::Note(self.drainer.report.clone()),
                Stage::Pick(picking) => {
                    let bytes = client.geometry().page_bytes();
                    let tried = picking.tried.clone();
                    let call = MasterCall::PickRack { own, bytes, tried };
                    return Ok(Step::Need(Need::Master(call)));
                }
                Stage::Move(_, migrate) => match migrate.step(client, io) {
                    Ok(Step::Need(need)) => return Ok(Step::Need(need)),
                    Ok(Step::Done(home)) => {
                        // Another shard of the rack is where it is, and drains as well, or soon.
                        let stays = Err(Error::Draining { rack: migrate.to() });
                        self.moved(if home.rack == own { stays } else { Ok(home.rack) });
                        continue;
                    }
                    Err(error) => {
                        self.moved(Err(error));
                        continue;
                    }
                },
                Stage::Leave => {
                    let call = MasterCall::Member(MemberCall::Leave(own));
                    return Ok(Step::Need(Need::Master(call)));
                }
                Stage::Done(drained) => return Ok(Step::Done(drained.clone())),
            };
            return Ok(Step::Need(Need::Daemon(OWN, Request::Drain(request))));
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match &mut self.stage {
            Stage::Move(_, migrate) => {
                if let Err(error) = migrate.on_reply(client, reply) {
                    self.moved(Err(error));
                }
                Ok(())
            }
            Stage::List => match reply? {
                Reply::Drain(DrainReply::Pages(pages)) => self.listed(pages),
                _ => Err(unexpected("own daemon", "a question for pages")),
            },
            Stage::Note => {
                reply?;
                self.pass_over();
                Ok(())
            }
            Stage::Pick(_) | Stage::Leave | Stage::Done(_) => Ok(()),
        }
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        match &mut self.stage {
            Stage::Move(_, migrate) => {
                if let Err(error) = migrate.on_master(client, answer) {
                    self.moved(Err(error));
                }
            }
            Stage::Pick(picking) => {
                let page = picking.page;
                match answer {
                    Ok(MasterAnswer::Rack(info)) if info.rack != client.own_rack() => {
                        let picking = std::mem::replace(picking, Picking::none());
                        let addr = client.geometry().join(page, 0);
                        let migrate = Migrate::new(client, addr, info.rack, self.id);
                        self.stage = Stage::Move(picking, migrate.into());
                    }
                    Ok(_) => return Err(unexpected("master", "a pick of a rack")),
                    Err(error @ Error::Full { .. }) => {
                        let refused = picking.refused.take();
                        self.stays(page, refused.unwrap_or(error));
                    }
                    Err(error) => return Err(error),
                }
            }
            Stage::Leave => {
                let drained = match answer {
                    Ok(MasterAnswer::Member(MemberAnswer::Standing(Standing::Left))) => {
                        Drained::Left
                    }
                    Ok(_) => return Err(unexpected("master", "a rack that leaves")),
                    // Something is on its way here or back, or the rack is to stay.
                    Err(Error::Denied { .. }) => {
                        self.pass_over();
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                };
                self.stage = Stage::Done(drained);
            }
            Stage::List | Stage::Note | Stage::Done(_) => {}
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

impl Picking {
    fn none() -> Picking {
        Picking { page: PageId(0), tried: Vec::new(), refused: None }
    }
}
