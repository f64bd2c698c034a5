//! The drainer moves all pages of a rack elsewhere, page by page: it asks the rack's daemon which
//! there are and the master where one may go, moves it, and begins again until the rack can leave.
//! A handle does nothing else meanwhile; a daemon's process has one for it.
//!
//! ```text
//! own daemon   Drain(Pages)  -> pages at home, in order
//! (master)     PickRack      -> a rack with room, for each page
//!              Migrate
//! own daemon   Drain(Note)      what came of the pass
//! master       Leave         -> done, if the directory has no page of the rack
//! ```
//!
//! Nothing is remembered that matters: a drainer that goes on after a crash begins a new pass.
//! Pages that stay for a reason that may pass are tried again in the next one.

use super::locate::unexpected;
use super::{Context, Migrate, OWN, Operation};
use crate::addr::{PageId, RackId};
use crate::constants::{DRAIN_PAGES_MAX, DRAIN_REASONS_MAX, RACKS_MAX};
use crate::error::{Error, Result};
use crate::member::{DrainReply, DrainReport, DrainRequest, MemberAnswer, MemberCall, RackState};
use crate::seam::Mem;
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
    /// A page had gone before: it was freed, or another process moved it.
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
        DrainTurn { drainer: self, id }
    }
}

/// A turn; see the module. Ends with an error only if its runtime could not ask at all; a failed
/// move is reported by [`Drained::Stays`].
#[derive(Debug)]
pub struct DrainTurn<'d> {
    drainer: &'d mut Drainer,
    id: u64,
}

impl DrainTurn<'_> {
    fn stays(&mut self, page: PageId, error: Error) -> Drained {
        let report = &mut self.drainer.report;
        report.stayed += 1;
        if report.reasons.len() < DRAIN_REASONS_MAX {
            report.reasons.push((page, error.to_string()));
        }
        Drained::Stays(page, error)
    }

    /// Asks for pages; what came of the pass if there are no more.
    async fn list<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Option<Drained>> {
        let from = self.drainer.from;
        let pages = match cx.daemon(OWN, Request::Drain(DrainRequest::Pages { from })).await? {
            Reply::Drain(DrainReply::Pages(pages)) => pages,
            _ => return Err(unexpected("own daemon", "a question for pages")),
        };
        let in_order = pages.is_sorted() && pages.first().is_none_or(|page| *page >= from);
        if !in_order || pages.len() > DRAIN_PAGES_MAX {
            return Err(unexpected("own daemon", "a question for pages"));
        }
        self.drainer.seen += pages.len() as u64;
        self.drainer.from = PageId(pages.last().map_or(0, |last| last.0 + 1));
        self.drainer.pages = pages.into();
        if !self.drainer.pages.is_empty() {
            return Ok(None);
        }
        if self.drainer.seen == 0 {
            return self.leave(cx).await.map(Some);
        }
        let note = DrainRequest::Note(self.drainer.report.clone());
        cx.daemon(OWN, Request::Drain(note)).await?;
        Ok(Some(self.pass_over()))
    }

    /// No page was there: the rack may leave.
    async fn leave<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<Drained> {
        let own = cx.client().own_rack();
        match cx.master(MasterCall::Member(MemberCall::Leave(own))).await {
            Ok(MasterAnswer::Member(MemberAnswer::RackState(RackState::Left))) => Ok(Drained::Left),
            Ok(_) => Err(unexpected("master", "a rack that leaves")),
            // Something is on its way here or back, or the rack is to stay.
            Err(Error::Denied { .. }) => Ok(self.pass_over()),
            Err(error) => Err(error),
        }
    }

    fn pass_over(&mut self) -> Drained {
        Drained::PassOver(std::mem::take(&mut *self.drainer).report)
    }

    /// Looks for a rack for a page, and moves it there.
    async fn send<M: Mem>(&mut self, cx: &mut impl Context<M>, page: PageId) -> Result<Drained> {
        let (own, bytes) = (cx.client().own_rack(), cx.client().geometry().page_bytes());
        // Racks that did not take it, and why the last one did not.
        let (mut tried, mut refused) = (Vec::new(), None);
        loop {
            let call = MasterCall::PickRack { own, bytes, tried: tried.clone() };
            let to = match cx.master(call).await {
                Ok(MasterAnswer::Rack(info)) if info.rack != own => info.rack,
                Ok(_) => return self.fails(page, unexpected("master", "a pick of a rack")),
                Err(error @ Error::Full { .. }) => {
                    return Ok(self.stays(page, refused.unwrap_or(error)));
                }
                Err(error) => return self.fails(page, error),
            };
            let addr = cx.client().geometry().join(page, 0);
            let mut migrate = Migrate::new(cx.client(), addr, to, self.id);
            let error = match migrate.run(cx).await {
                Ok(home) if home.rack != own => {
                    self.drainer.report.moved += 1;
                    return Ok(Drained::Moved(page, home.rack));
                }
                // Another shard of the rack is where it is, and drains as well, or soon.
                Ok(_) => Error::Draining { rack: migrate.to() },
                Err(Error::NotMapped { .. } | Error::Lost { .. }) => {
                    return Ok(Drained::Gone(page));
                }
                Err(error) => error,
            };
            let is_last = cx.has_failed() || tried.len() >= RACKS_MAX as usize;
            if is_last || !is_of_target(&error) {
                return Ok(self.stays(page, error));
            }
            tried.push(migrate.to());
            refused = Some(error);
        }
    }

    /// The runtime of the turn is told; the page stays for now.
    fn fails(&mut self, page: PageId, error: Error) -> Result<Drained> {
        self.stays(page, error.clone());
        Err(error)
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

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Drained> {
        if self.drainer.pages.is_empty() {
            match self.list(cx).await {
                Ok(None) => {}
                Ok(Some(drained)) => return Ok(drained),
                Err(error) => {
                    *self.drainer = Drainer::default();
                    return Err(error);
                }
            }
        }
        let page = self.drainer.pages.pop_front().expect("pages were named");
        self.send(cx, page).await
    }
}
