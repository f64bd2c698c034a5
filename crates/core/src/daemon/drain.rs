//! A rack that is being drained, as its daemon sees it: it gives no new memory and takes no pages,
//! keeps no empty slab pages, and tells the drainer which pages there are.
//!
//! The master says what the rack is, with each heartbeat; nothing of it is in the region, so a
//! daemon that starts serves until it hears otherwise. That is harmless: what it gives out until
//! then is moved away like everything else, and the rack leaves only when the directory has no
//! page of it.
//!
//! Memory that is stored into a word (`AllocInto`) is still given: word and memory change in one
//! step of one daemon, so no other daemon could; it leaves with the word's page.

use crate::addr::PageId;
use crate::constants::{DRAIN_PAGES_MAX, DRAIN_REASON_BYTES_MAX, DRAIN_REASONS_MAX, SLOTS_MAX};
use crate::daemon::frames::FrameEntry;
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::layout::FrameState;
use crate::member::{DrainReply, DrainReport, DrainRequest, RackState};
use crate::seam::{Mutation, Probe};
use crate::wire::Reply;

/// What the rack is to its pool, and how far it is with leaving.
#[derive(Debug, Default)]
pub(super) struct DrainState {
    standing: RackState,
    report: DrainReport,
}

impl DrainState {
    /// Whether pages may come to the rack.
    pub(super) fn takes_pages(&self) -> bool {
        self.standing == RackState::Serving
    }
}

impl Daemon {
    /// What the master said last that the rack is to the pool.
    pub fn standing(&self) -> RackState {
        self.leaving.standing
    }

    /// The master says what the rack is to the pool.
    pub fn set_standing<W: World>(&mut self, standing: RackState, world: &mut W) {
        if std::mem::replace(&mut self.leaving.standing, standing) == standing {
            return;
        }
        self.leaving.report = DrainReport::default();
        if self.is_leaving() {
            self.release_cached_pages(world);
        }
    }

    /// Whether the rack wants to be empty.
    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.takes_pages()
    }

    /// Refuses new memory in a rack that wants to be empty.
    pub(super) fn check_gives_memory(&self, probe: &impl Probe) -> Result<()> {
        match self.is_leaving() && !probe.mutated(Mutation::PickDrainingRack) {
            true => Err(Error::Draining { rack: self.rack }),
            false => Ok(()),
        }
    }

    /// A request about the leaving of the rack.
    pub(super) fn on_drain<W: World>(
        &mut self,
        record: u32,
        request: DrainRequest,
        world: &mut W,
    ) -> Result<Reply> {
        let is_own = record < SLOTS_MAX;
        match request {
            DrainRequest::Pages { from } if is_own => {
                if self.is_leaving() {
                    // What was emptied since could not be given back then, or was not to be.
                    self.free_cached_pages(world);
                }
                let pages = self.pages_at_home(from, world);
                Ok(Reply::Drain(DrainReply::Pages(pages)))
            }
            DrainRequest::Note(mut report) if is_own => {
                report.reasons.truncate(DRAIN_REASONS_MAX);
                report.reasons.iter_mut().for_each(|(_, reason)| shorten(reason));
                self.leaving.report = report;
                Ok(Reply::Drain(DrainReply::Noted))
            }
            DrainRequest::Report => {
                Ok(Reply::Drain(DrainReply::Report(self.leaving.report.clone())))
            }
            DrainRequest::Pages { .. } | DrainRequest::Note(_) => {
                let reason = "only clients of the own rack move its pages away".into();
                Err(Error::Denied { reason })
            }
        }
    }

    fn pages_at_home<W: World>(&self, from: PageId, world: &W) -> Vec<PageId> {
        let is_home = |(_, frame): &(&u64, &u32)| {
            FrameEntry::load_checked(world.private(), **frame).state == FrameState::Home
        };
        let pages = self.frames.by_page.range(from.0..).filter(is_home);
        pages.map(|(page, _)| PageId(*page)).take(DRAIN_PAGES_MAX).collect()
    }
}

/// Cuts a reason that is too long for a message, between two characters.
fn shorten(reason: &mut String) {
    let fits = |index: &usize| *index <= DRAIN_REASON_BYTES_MAX;
    let end = reason.char_indices().map(|(index, _)| index).take_while(fits).last();
    if reason.len() > DRAIN_REASON_BYTES_MAX {
        reason.truncate(end.unwrap_or(0));
    }
}
