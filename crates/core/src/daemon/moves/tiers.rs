//! Moves of pages between the memories of this rack. As a move between racks, with this daemon as
//! old home, new home and mover, and one question to the directory, whose answer settles both
//! frames:
//!
//! ```text
//! old frame:  Home -> Departing (shut, drained) ------ ask: where is it? -> Home, or Gone -> Free
//! new frame:  Free -> Arriving (backed) -> filled here -- the same answer -> Home, or Gone -> Free
//! ```
//!
//! One page at a time, in steps that are bounded. A crash leaves the page in two frames, of which
//! one is `Arriving` or `Departing`: attach asks about that, and the directory names one at most.
//! Until then `by_page` has the other frame. Which page moves is decided in `tiering.rs`.

use super::{Arrival, ArrivalStage, DepartureStage, OWN_MOVES, broken, stays};
use crate::addr::{FrameIndex, Generation, PageId};
use crate::coherence;
use crate::constants::{BACKING_STEP_BYTES, TIER_COPY_BYTES};
use crate::daemon::frames::{FrameEntry, back_metadata};
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::seam::{ByteRange, Mem, Mutation, Probe};
use crate::tier::TierReport;
use crate::wire::{Reply, Resolved};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TierMoveStage {
    /// The new frame gets its memory; so many bytes have it.
    Backing(u64),
    /// The page is shut; so many bytes are copied, none while users of it are waited for.
    Copying(u64),
    Asking,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TierMove {
    page: PageId,
    from: u32,
    to: u32,
    /// Of the page in its new frame.
    generation: Generation,
    stage: TierMoveStage,
}

impl Daemon {
    /// What is known of the rack's memories, if it has several.
    pub fn tier_report(&self) -> TierReport {
        TierReport { tiers: self.frames.tier_stats(), moved: self.moves.between_tiers }
    }

    pub(in crate::daemon) fn stats_reply<W: World>(&self, world: &W) -> Reply {
        let (stats, tiers) = (Box::new(self.stats(world)), self.tier_report());
        if tiers.is_empty() { Reply::Stats(stats) } else { Reply::TieredStats(stats, tiers) }
    }

    pub(in crate::daemon) fn moves_between_tiers(&self) -> bool {
        self.moves.between.is_some()
    }

    /// Begins to move a page to a free frame of a range; the caller knows that there is one.
    pub(in crate::daemon) fn begin_tier_move<W: World>(
        &mut self,
        page: PageId,
        range: &Range<u32>,
        world: &mut W,
    ) -> Result<()> {
        let (from, _) = self.check_tier_move(page, world)?;
        if let Some((offset, bytes)) = self.frames.fresh_entries(1, range) {
            back_metadata(world, offset, bytes)?;
        }
        let generation = Generation(self.frames.take_generations(world.private(), 1));
        let to = self.frames.take(world.private(), 1, range)[0];
        FrameEntry::arriving(page, generation).store(world.private(), to);
        let stage = TierMoveStage::Backing(0);
        self.moves.between = Some(TierMove { page, from, to, generation, stage });
        Ok(())
    }

    /// The frame of a page that may move now.
    fn check_tier_move<W: World>(&self, page: PageId, world: &W) -> Result<(u32, FrameEntry)> {
        let missing = || Error::NotMapped { addr: self.layout.pages.join(page, 0) };
        let (_, entry) = self.frames.home(world.private(), page).ok_or_else(missing)?;
        if self.replicas.is_shared(page) {
            return stays(page, "it has replicas");
        }
        self.may_leave(page, entry.generation, world)
    }

    /// Goes on with the page that is on its way, by one step.
    pub(in crate::daemon) fn advance_tier_move<W: World>(&mut self, world: &mut W) {
        let Some(tier_move) = self.moves.between else { return };
        let departure = self.moves.departing.get(&tier_move.from).map(|one| one.stage);
        let next = match (tier_move.stage, departure) {
            (TierMoveStage::Backing(done), None) => self.back_tier_move(&tier_move, done, world),
            (TierMoveStage::Copying(_), Some(DepartureStage::Draining))
            | (TierMoveStage::Asking, _) => return,
            (TierMoveStage::Copying(done), Some(DepartureStage::Shut)) => {
                self.copy_tier_move(&tier_move, done, world)
            }
            // The page was opened again: a user was too slow, or it is to be freed.
            _ => stays(tier_move.page, "it was taken back"),
        };
        match next {
            Ok(stage) => self.moves.between = Some(TierMove { stage, ..tier_move }),
            Err(_) => self.give_up_tier_move(&tier_move, world),
        }
    }

    /// Frames of a range that the page on its way gives back, however its move ends.
    pub(in crate::daemon) fn coming_from_tier_move(&self, range: &Range<u32>) -> u32 {
        let both = |one: TierMove| range.contains(&one.from) && range.contains(&one.to);
        u32::from(self.moves.between.is_some_and(both))
    }

    /// A page is not shut for a question that cannot be asked.
    fn check_master(&self, page: PageId) -> Result<()> {
        if self.calls.is_up() { Ok(()) } else { stays(page, "the master does not answer") }
    }

    /// Gives memory to the new frame; then the page is shut.
    fn back_tier_move<W: World>(
        &mut self,
        tier_move: &TierMove,
        done: u64,
        world: &mut W,
    ) -> Result<TierMoveStage> {
        let page_bytes = self.layout.pages.page_bytes();
        let bytes = BACKING_STEP_BYTES.min(page_bytes - done);
        world.back_pages(self.layout.frame_offset(FrameIndex(tier_move.to)) + done, bytes)?;
        if done + bytes < page_bytes {
            return Ok(TierMoveStage::Backing(done + bytes));
        }
        if self.settle_page(tier_move.page, world) {
            return stays(tier_move.page, "an object in it is being handed out");
        }
        let (frame, entry) = self.check_tier_move(tier_move.page, world)?;
        if frame != tier_move.from {
            return stays(tier_move.page, "its home has changed");
        }
        self.check_master(tier_move.page)?;
        self.shut(frame, &entry, None, world);
        Ok(TierMoveStage::Copying(0))
    }

    /// Copies a piece of the page, which no other process can touch; after the last one the
    /// directory is asked to name the new frame.
    fn copy_tier_move<W: World>(
        &mut self,
        tier_move: &TierMove,
        done: u64,
        world: &mut W,
    ) -> Result<TierMoveStage> {
        let TierMove { page, from, to, generation, .. } = *tier_move;
        let page_bytes = self.layout.pages.page_bytes();
        let bytes = TIER_COPY_BYTES.min(page_bytes - done);
        let at = |frame| self.layout.frame_offset(FrameIndex(frame)) + done;
        let mut buffer = vec![0; bytes as usize];
        let range = |frame| ByteRange { offset: at(frame), bytes };
        let pages = world.pages();
        coherence::reading(pages, range(from), |pages| pages.copy_out(at(from), &mut buffer));
        if !world.private().mutated(Mutation::SkipTierCopy) {
            coherence::writing(pages, range(to), |pages| pages.copy_in(at(to), &buffer));
        }
        if done + bytes < page_bytes {
            return Ok(TierMoveStage::Copying(done + bytes));
        }
        self.check_master(page)?;
        let Reply::Shut { keep, .. } = self.shut_reply(from, world)? else {
            return broken("a page that is shut has a key".into());
        };
        self.store_keep(to, &keep, world)?;
        let departure = self.moves.departing.get_mut(&from).expect("it is shut");
        departure.stage = DepartureStage::Asking;
        let old = departure.generation;
        let stage = ArrivalStage::Asking(self.own_home(page, from, old));
        let (record, asker, since) = (OWN_MOVES, None, None);
        let arrival = Arrival { page, generation, record, asker, stage, since };
        self.moves.arriving.insert(to, arrival);
        self.moves.questions.push_back(to);
        Ok(TierMoveStage::Asking)
    }

    /// The page stays, and its new frame goes.
    fn give_up_tier_move<W: World>(&mut self, tier_move: &TierMove, world: &mut W) {
        self.moves.between = None;
        self.heat.rest(tier_move.page);
        let departure = self.moves.departing.get(&tier_move.from);
        if departure.is_some_and(|one| one.record == OWN_MOVES) {
            self.give_up_departure(tier_move.from, world);
        }
        self.leave_frame(tier_move.to, tier_move.page, world);
    }

    /// The directory's answer: where the page of a frame is at home.
    pub(in crate::daemon) fn on_home_known<W: World>(
        &mut self,
        frame: u32,
        home: Resolved,
        world: &mut W,
    ) {
        let Some(tier_move) = self.moves.between.take_if(|one| one.to == frame) else {
            return self.settle_frame(frame, home, world);
        };
        let TierMove { page, from, to, .. } = tier_move;
        self.heat.rest(page);
        let has_moved = matches!(home, Resolved::Home(home)
            if (home.rack, home.frame.0, home.generation) == (self.rack, to, tier_move.generation));
        // First the frame where the page is now: what waited for it finds it there.
        let order = if has_moved { [to, from] } else { [from, to] };
        if has_moved {
            self.moves.between_tiers += 1;
            self.quota.move_frame(from, to);
        }
        order.into_iter().for_each(|frame| self.settle_frame(frame, home, world));
    }

    /// A frame has a page no more. Another one in a move of it has it from now on.
    pub(super) fn forget_frame(&mut self, frame: u32, page: PageId) {
        if self.frames.by_page.get(&page.0) != Some(&frame) {
            return;
        }
        let arriving = self.moves.arriving.iter().map(|(to, one)| (*to, one.page));
        let departing = self.moves.departing.iter().map(|(from, one)| (*from, one.page));
        let mut moving = arriving.chain(departing);
        match moving.find(|(other, of)| (*of, *other != frame) == (page, true)) {
            Some((other, _)) => _ = self.frames.by_page.insert(page.0, other),
            None => _ = self.frames.by_page.remove(&page.0),
        }
    }
}
