//! Which pages go to the spill file and which come back: capacity beyond memory. Pages that are
//! asked for come back, in order; if requests wait for frames, or few are free, the page that was
//! used least of those that were looked at goes.
//!
//! In: searches for pages that are in slots, requests that wait for frames, heat. Out: one page at
//! a time; the move itself is in `moves/spill.rs`. A page in a slot is to all others as one that
//! moves: searches for it wait, what cannot wait hears `moving`, and both have it come back.
//!
//! If all slots have a page one frame of memory stays free: two pages can change places as long as
//! there is one place more than pages.
//!
//! Bounds: a sample of frames a look, from where the last one ended, so that a page that came back
//! is looked at last; a rest for a page that could not go. Without a page that can go nothing is
//! promised for a while, so that requests hear `full`. A page is not spilled while a lock in it is
//! held, a session owns it, it has replicas, or a user does not let go of it (a pin, a stopped
//! client): the rules of moves between racks.

use crate::addr::{Generation, PageId};
use crate::constants::{
    MOVE_REST_NS, MOVE_WAITERS_MAX, SPILL_FAILS_MAX, SPILL_RESERVE, SPILL_RESERVE_MAX,
    TIER_LOOK_NS, VICTIM_SAMPLE,
};
use crate::daemon::frames::FrameEntry;
use crate::daemon::{Daemon, World, slab};
use crate::error::{Error, Result};
use crate::layout::{AllocationKind, FrameState};
use crate::seam::{Mutation, Nanos, Probe};
use crate::wire::Reply;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// What a page in a slot counts for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) allocations: u64,
    pub(super) bytes: u64,
    is_slab: bool,
}

#[derive(Default)]
pub(super) struct Spilling {
    /// Pages in slots that are to come back, in order.
    wanted: VecDeque<PageId>,
    /// Pages that are at home in slots, by slot.
    held: BTreeMap<u32, Held>,
    /// Where the next look begins.
    hand: u32,
    /// Frames that were looked at since one could go, and whether a page of them only rests.
    looked: u32,
    has_resting: bool,
    /// Pages that could not go, one after another.
    failed: u32,
    /// Until then no page is expected to go.
    stuck_until: Nanos,
    /// Pages that went since one came back.
    went: u32,
    look_at: Nanos,
}

impl Spilling {
    /// A slot has no page any more; what that counted for.
    pub(super) fn forget(&mut self, slot: u32) -> Option<Held> {
        self.held.remove(&slot)
    }

    /// Objects that live in the slab page of a slot.
    pub(super) fn objects(&self, slot: u32) -> u64 {
        self.held.get(&slot).filter(|held| held.is_slab).map_or(0, |held| held.allocations)
    }

    /// How many slab pages are in slots.
    pub(super) fn slabs(&self) -> u64 {
        self.held.values().filter(|held| held.is_slab).count() as u64
    }

    /// What came of a page that was to go: if nothing comes of many, none is expected to.
    pub(super) fn note(&mut self, went: bool, now: Nanos) {
        self.looked = 0;
        if went {
            (self.failed, self.stuck_until) = (0, 0);
            self.went = self.went.saturating_add(1);
            return;
        }
        self.failed += 1;
        if self.failed >= SPILL_FAILS_MAX {
            self.give_up(now);
        }
    }

    /// No page goes for a while.
    pub(super) fn give_up(&mut self, now: Nanos) {
        self.stuck_until = now.saturating_add(MOVE_REST_NS);
        (self.failed, self.looked, self.has_resting) = (0, 0, false);
    }
}

impl Daemon {
    /// Whether a page is at home in a slot of the spill file.
    pub(super) fn is_spilled(&self, page: PageId) -> bool {
        let frame = self.frames.by_page.get(&page.0);
        frame.is_some_and(|frame| self.spilling.held.contains_key(frame))
    }

    /// A page in a slot counts as it did in memory; of a slab page the objects that live.
    pub(super) fn count_spilled<W: World>(
        &mut self,
        slot: u32,
        entry: &FrameEntry,
        world: &W,
    ) -> Result<()> {
        let held = match entry.shift {
            0 => Held {
                allocations: entry.first.into(),
                bytes: self.layout.pages.page_bytes(),
                is_slab: false,
            },
            shift => {
                let words = self.slabs.bitmap_words(world.private(), slot, shift)?;
                slab::check_bits(&self.layout, shift, &words, world.private())?;
                let live = words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
                Held { allocations: live, bytes: live << shift, is_slab: true }
            }
        };
        self.allocations_live += held.allocations;
        self.allocated_bytes += held.bytes;
        self.spilling.held.insert(slot, held);
        Ok(())
    }

    /// Has a page come back if it is in a slot; whether it is, and will be asked for.
    pub(super) fn want_back(&mut self, page: PageId) -> bool {
        if !self.is_spilled(page) {
            return false;
        }
        let wanted = &mut self.spilling.wanted;
        if self.moves.is_on_its_way(page) || wanted.contains(&page) {
            return true;
        }
        let has_room = wanted.len() < MOVE_WAITERS_MAX;
        if has_room {
            wanted.push_back(page);
        }
        has_room
    }

    /// The asker will try again: the page is to be there by then.
    pub(super) fn want_back_for(&mut self, reply: &Result<Reply>) {
        if let Err(Error::Moving { addr, .. }) = reply {
            self.want_back(self.layout.pages.page(*addr));
        }
    }

    /// Whether time or a step matters to what waits for the spill file.
    pub(super) fn spill_needs_tick(&self) -> bool {
        let waits = || self.first_waiting().is_some() || self.moves.awaited_count() > 0;
        !self.frames.slots().is_empty() && (!self.spilling.wanted.is_empty() || waits())
    }

    /// Frames of a range that pages could leave for the spill file.
    pub(super) fn spillable(&self, range: &Range<u32>) -> u32 {
        let slots = self.frames.slots();
        let is_stuck = self.heat.now < self.spilling.stuck_until;
        if slots.is_empty() || is_stuck || *range != self.frames.memory() {
            return 0;
        }
        let used = range.len() as u32 - self.frames.free_in(range, u32::MAX);
        used.min(self.frames.free_in(&slots, used))
    }

    /// Frames of memory that are not given out, so that pages can still come back.
    pub(super) fn kept_for_returns(&self) -> u32 {
        let slots = self.frames.slots();
        u32::from(!slots.is_empty() && self.frames.free_in(&slots, 1) == 0)
    }

    /// Begins what is to be done next between memory and the spill file. Without a master nothing
    /// is begun: it could not be ended.
    pub(super) fn serve_spill<W: World>(&mut self, world: &mut W) {
        if self.frames.slots().is_empty() || self.moves.is_between() || !self.calls.is_up() {
            return;
        }
        while let Some(page) = self.spilling.wanted.front().copied()
            && !self.is_spilled(page)
        {
            // It was freed meanwhile.
            self.spilling.wanted.pop_front();
            self.unpark(page, world);
        }
        let requests = self.frames_asked_for();
        let reserve = (self.frames.memory().end / SPILL_RESERVE).clamp(1, SPILL_RESERVE_MAX);
        let free = self.frames.free_memory(requests.saturating_add(1).max(reserve));
        let wanted = self.spilling.wanted.front().copied();
        let comes_first = requests <= free || self.spilling.went >= 2;
        if let Some(page) = wanted
            && free > 0
            && comes_first
        {
            self.spilling.wanted.pop_front();
            self.spilling.went = 0;
            if let Err(error) = self.begin_return(page, world) {
                self.return_failed(page, error, world);
            }
            return;
        }
        if let Some(page) = wanted
            && free == 0
            && self.heat.now < self.spilling.stuck_until
        {
            // Nothing makes room for it.
            self.spilling.wanted.pop_front();
            let error = self.full(self.layout.pages.page_bytes());
            return self.unpark_with(page, Some(error), world);
        }
        let coming = self.freeing.coming(&self.frames.memory());
        let asked = requests.saturating_add(u32::from(wanted.is_some()));
        let is_forced = free + coming < asked;
        if is_forced || free + coming < reserve && !self.is_leaving() {
            self.spill_a_page(is_forced, world);
        }
    }

    /// Frames that those requests need which wait for frames.
    fn frames_asked_for(&self) -> u32 {
        let page_bytes = self.layout.pages.page_bytes();
        let pages = self.first_waiting().map_or(0, |ticket| ticket.bytes.div_ceil(page_bytes));
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        pages.saturating_add(self.moves.awaited_count())
    }

    /// Begins to spill a page, if there is a slot and one that can go. If it is not forced, one
    /// that was not used lately.
    fn spill_a_page<W: World>(&mut self, is_forced: bool, world: &mut W) {
        let (now, slots) = (self.heat.now, self.frames.slots());
        let waits = if is_forced { self.spilling.stuck_until } else { self.spilling.look_at };
        if now < waits {
            return;
        }
        if self.frames.free_in(&slots, 1) == 0 {
            if is_forced {
                self.spilling.give_up(now);
            }
            return;
        }
        self.spilling.look_at = now.saturating_add(TIER_LOOK_NS);
        let Some((page, used)) = self.coldest_in_memory(world) else {
            let is_all = self.spilling.looked >= self.frames.memory().end.min(self.frames.high);
            match is_all && !self.spilling.has_resting {
                true => self.spilling.give_up(now),
                false if is_all => (self.spilling.looked, self.spilling.has_resting) = (0, false),
                false => {}
            }
            return;
        };
        (self.spilling.looked, self.spilling.has_resting) = (0, false);
        if (is_forced || used == 0) && self.begin_tier_move(page, &slots, world).is_err() {
            self.heat.rest(page);
            self.spilling.note(false, now);
        }
    }

    /// Of the pages in the next frames the one that was used least lately, with its use.
    fn coldest_in_memory<W: World>(&mut self, world: &W) -> Option<(PageId, u64)> {
        let end = self.frames.memory().end.min(self.frames.high);
        let hand = self.spilling.hand.min(end);
        let mut coldest: Option<(PageId, u64)> = None;
        for frame in (hand..end).chain(0..hand).take(VICTIM_SAMPLE) {
            self.spilling.hand = frame + 1;
            self.spilling.looked += 1;
            if self.frames.damaged.contains(&frame) {
                continue;
            }
            let FrameEntry { page, state, owner, kind, shift, .. } =
                FrameEntry::load_checked(world.private(), frame);
            if state != FrameState::Home || owner.0 != 0 || self.replicas.is_shared(page) {
                continue;
            }
            if kind == AllocationKind::Table && shift != 0 {
                // Sweeps look at its objects, one by one, in memory.
                continue;
            }
            if self.heat.is_resting(page) {
                self.spilling.has_resting = true;
                continue;
            }
            let (used, _) = self.use_for_balance(page);
            coldest = coldest.filter(|(_, least)| *least <= used).or(Some((page, used)));
            if used == 0 {
                break;
            }
        }
        coldest
    }

    /// A page does not come back. If that may be otherwise in a moment it is tried again, else
    /// those that wait for it hear why.
    pub(super) fn return_failed<W: World>(&mut self, page: PageId, error: Error, world: &mut W) {
        if matches!(error, Error::Stays { .. }) && self.want_back(page) {
            return;
        }
        let is_there = self.is_spilled(page);
        self.unpark_with(page, is_there.then_some(error), world);
    }

    /// What a frame's table word is while its page is at home there: no access finds a slot.
    pub(super) fn open_word<W: World>(&self, frame: u32, generation: Generation, world: &W) -> u64 {
        let is_open = world.private().mutated(Mutation::OpenSpilledPage);
        if self.frames.is_slot(frame) && !is_open { 0 } else { generation.0 }
    }

    /// Whether the entry of a slot still says that this page is at home there.
    pub(super) fn is_home_in_slot<W: World>(&self, slot: u32, page: PageId, world: &W) -> bool {
        let entry = FrameEntry::load_checked(world.private(), slot);
        (entry.state, entry.page) == (FrameState::Home, page)
    }
}
