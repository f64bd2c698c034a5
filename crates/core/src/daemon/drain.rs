//! A rack that is being drained, as its daemon sees it: it gives no new memory and takes no pages,
//! keeps no empty slab pages, and has its pages moved away, in passes: each page is tried once in
//! a pass, and what stays for a reason that may pass is tried again in the next one. A pass that
//! finds no page says that the rack may leave. A daemon that starts begins a new pass.
//!
//! The master says what the rack is, with each heartbeat; nothing of it is in the region, so a
//! daemon that starts serves until it hears otherwise. That is harmless: what it gives out until
//! then is moved away like everything else, and the rack leaves only when the directory has no
//! page of it.
//!
//! Memory that is stored into a word (`AllocInto`) is still given: word and memory change in one
//! step of one daemon, so no other daemon could; it leaves with the word's page.

use crate::addr::PageId;
use crate::constants::{DRAIN_REASON_BYTES_MAX, DRAIN_REASONS_MAX};
use crate::daemon::frames::FrameEntry;
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::layout::FrameState;
use crate::member::{DrainReport, RackState};
use crate::relocation::{Relocation, SendResult};
use crate::seam::{Mutation, Probe};

/// What the rack is to its pool, and how far it is with leaving.
#[derive(Debug, Default)]
pub(super) struct DrainState {
    standing: RackState,
    pass: DrainPass,
    /// What came of the last whole pass.
    pub(super) report: DrainReport,
}

#[derive(Debug, Default)]
struct DrainPass {
    /// Where it goes on.
    from: PageId,
    /// Whether it has found a page.
    has_begun: bool,
    report: DrainReport,
}

impl DrainState {
    /// Whether pages may come to the rack.
    pub(super) fn takes_pages(&self) -> bool {
        self.standing == RackState::Serving
    }

    /// What came of a page that was to go.
    pub(super) fn note(&mut self, page: PageId, result: SendResult) {
        let report = &mut self.pass.report;
        match result {
            SendResult::Moved => report.moved += 1,
            SendResult::Gone => {}
            SendResult::Stays(mut reason) => {
                report.stayed += 1;
                if report.reasons.len() < DRAIN_REASONS_MAX {
                    shorten(&mut reason);
                    report.reasons.push((page, reason));
                }
            }
        }
    }
}

impl Daemon {
    /// What the master said last that the rack is to the pool.
    pub fn standing(&self) -> RackState {
        self.leaving.standing
    }

    /// The master says what the rack is to the pool.
    pub fn set_standing<W: World>(&mut self, standing: RackState, world: &mut W) {
        if self.leaving.standing == standing {
            return;
        }
        self.leaving = DrainState { standing, ..DrainState::default() };
        if self.is_leaving() {
            self.end_all_loans(world);
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

    /// The next page of the pass, or its end.
    pub(super) fn next_evacuation<W: World>(&mut self, world: &mut W) -> Relocation {
        // What was emptied since could not be given back then, or was not to be.
        self.free_cached_pages(world);
        let is_home = |(_, frame): &(&u64, &u32)| {
            FrameEntry::load_checked(world.private(), **frame).state == FrameState::Home
        };
        let pass = &mut self.leaving.pass;
        let next = self.frames.by_page.range(pass.from.0..).find(is_home);
        if let Some((&page, _)) = next {
            (pass.from, pass.has_begun) = (PageId(page + 1), true);
            return Relocation::Evacuate(PageId(page));
        }
        let pass = std::mem::take(pass);
        if !pass.has_begun {
            return Relocation::Leave;
        }
        self.leaving.report = pass.report.clone();
        Relocation::PassOver(pass.report)
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
