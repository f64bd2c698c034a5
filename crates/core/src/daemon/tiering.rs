//! Which page moves between the memories of a rack that has several: a hot page from beyond comes
//! into the nearest tier; if that is full, first a page of it that is much colder makes room.
//!
//! In: reports of use, the heat table, where pages lie. Out: one page at a time, with the tier that
//! it goes to; the move itself is in `moves/tiers.rs`. Bounds: a sample of pages a look, a pause
//! after each look that grows with the size of a page, and a rest for each page that moved. A swap
//! needs one free frame in either tier. Without heat (`--migrate off`) nothing moves.

use crate::addr::PageId;
use crate::constants::{TIER_LOOK_NS, TIER_MOVE_BYTES, TIER_NS_PER_BYTE, VICTIM_SAMPLE};
use crate::daemon::heat::may_go;
use crate::daemon::{Daemon, World};
use crate::seam::Nanos;
use std::ops::Range;

#[derive(Default)]
pub(super) struct Tiering {
    /// Where the next look begins.
    hand: PageId,
    /// The hottest page beyond the nearest tier that was seen.
    hot: Option<PageId>,
    /// The coldest page in the nearest tier that was seen.
    cold: Option<PageId>,
    next_at: Nanos,
}

/// A page that a look saw.
#[derive(Clone, Copy)]
struct Seen {
    page: PageId,
    frame: u32,
    /// Accesses in the recent windows.
    used: u64,
}

impl Daemon {
    /// Looks at some pages, and begins to move one that should be in another memory. Called when
    /// clients have said how they use pages: an idle daemon is not woken for it.
    pub(super) fn look_at_tiers<W: World>(&mut self, world: &mut W) {
        let now = self.heat.now;
        let is_wanted = self.frames.of_tiers().next().is_some()
            && self.calls.is_up()
            && self.counts_use()
            && !self.is_leaving()
            && !self.moves_between_tiers();
        if !is_wanted || now < self.tiering.next_at {
            return;
        }
        let page_ns = TIER_NS_PER_BYTE * self.layout.pages.page_bytes();
        self.tiering.next_at = now.saturating_add(TIER_LOOK_NS.max(page_ns));
        if let Some((page, range)) = self.misplaced_page(world)
            && self.begin_tier_move(page, &range, world).is_err()
        {
            self.heat.rest(page);
        }
    }

    /// A page that should be in another tier, and the frames of that.
    fn misplaced_page<W: World>(&mut self, world: &W) -> Option<(PageId, Range<u32>)> {
        let near = self.frames.of_tiers().next()?;
        let (hot, cold) = self.extremes(&near, world);
        let hot = hot?;
        let gain = self.layout.pages.page_bytes() / TIER_MOVE_BYTES;
        if hot.used < gain {
            return None;
        }
        if self.frames.free_in(&near, 1) > 0 {
            return Some((hot.page, near));
        }
        let cold = cold?;
        let far = self.frames.of_tiers().find(|range| range.contains(&hot.frame))?;
        let is_colder = hot.used >= cold.used.saturating_mul(2).saturating_add(gain);
        (is_colder && self.frames.free_in(&far, 1) > 0).then_some((cold.page, far))
    }

    /// Of the next pages, and the two of the last look: the hottest beyond the nearest tier and the
    /// coldest in it.
    fn extremes<W: World>(&mut self, near: &Range<u32>, world: &W) -> (Option<Seen>, Option<Seen>) {
        let by_page = &self.frames.by_page;
        let hand = self.tiering.hand.0;
        let known = [self.tiering.hot, self.tiering.cold].into_iter().flatten();
        let known = known.filter_map(|page| by_page.get_key_value(&page.0));
        let next = by_page.range(hand + 1..).chain(by_page.range(..=hand)).take(VICTIM_SAMPLE);
        let (mut hot, mut cold): (Option<Seen>, Option<Seen>) = (None, None);
        let mut last = hand;
        for (&page, &frame) in known.chain(next) {
            last = page;
            let page = PageId(page);
            let stays = self.heat.is_resting(page) || self.replicas.is_shared(page);
            if stays || !may_go(frame, &self.frames, world.private()) {
                continue;
            }
            let (used, _) = self.use_for_balance(page);
            let seen = Seen { page, frame, used };
            if near.contains(&frame) {
                cold = cold.filter(|cold| cold.used <= used).or(Some(seen));
            } else {
                hot = hot.filter(|hot| hot.used >= used).or(Some(seen));
            }
        }
        self.tiering.hand = PageId(last);
        (self.tiering.hot, self.tiering.cold) = (hot.map(|one| one.page), cold.map(|one| one.page));
        (hot, cold)
    }
}
