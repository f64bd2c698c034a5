//! Frames: their entries in the private section, which of them are free, which page is where,
//! and the numbers that pages get (page ids from a leased range, generations).
//!
//! In: entries at attach, leases of the master. Out: frames, page ids and generations for the
//! allocator; page → frame for all of the engine. Called by `alloc.rs`, `free.rs`, `attach.rs`. The
//! entries in the section are the truth; the indexes here cost memory per used frame only. A number
//! is marked as given out in the section before it is used.
//! Source: Rcmp §5.1 (page table of the daemon); DESIGN §2.

use crate::addr::{FrameIndex, GAddr, Generation, PageGeometry, PageId, SessionId};
use crate::constants::{GENERATION_CHUNK, PAGE_ID_LEASE, RUN_PAGES_MAX};
use crate::copies;
use crate::daemon::World;
use crate::daemon::slab::Class;
use crate::error::{Error, Result};
use crate::layout::{
    AllocationKind, FRAME_BYTES, FRAME_SHARED, FrameState, FrameWord, RegionLayout, StateWord,
    frame_word,
};
use crate::persist::Persist;
use crate::seam::{Mem, Mutation};
use crate::tier::{Tier, TierRange, TierStats, Tiers};
use crate::wire::PageMetadata;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameEntry {
    pub(super) page: PageId,
    pub(super) generation: Generation,
    pub(super) state: FrameState,
    /// log2 of the object size; 0 for whole pages.
    pub(super) shift: u8,
    /// Whether it is the first page of a run; slab pages are.
    pub(super) first: bool,
    /// Whether it is a page with replicas, so that its table word has a key of its own.
    pub(super) shared: bool,
    /// Pages of the run in its first page, the index in the run in later ones.
    pub(super) span: u32,
    pub(super) owner: SessionId,
    pub(super) kind: AllocationKind,
}

impl FrameEntry {
    /// Reads the entry of `frame`; its state byte and its kind are checked.
    pub(super) fn load<M: Mem>(mem: &M, frame: u32) -> Result<FrameEntry> {
        let word = |word| copies::load(mem, frame_word(FrameIndex(frame), word));
        let state_word = word(FrameWord::State)?;
        let state = FrameState::from_byte(state_word as u8).ok_or_else(|| Error::BadRegion {
            reason: format!("frame {frame} has the unknown state {}", state_word as u8),
        })?;
        let number = state_word >> 17 & 7;
        let kind = AllocationKind::ALL.get(number as usize).copied();
        let kind = kind.ok_or_else(|| Error::BadRegion {
            reason: format!("frame {frame} has an allocation of the unknown kind {number}"),
        })?;
        Ok(FrameEntry {
            page: PageId(word(FrameWord::Page)?),
            generation: Generation(word(FrameWord::Generation)?),
            state,
            shift: (state_word >> 8) as u8,
            first: state_word >> 16 & 1 == 1,
            shared: state_word & FRAME_SHARED != 0,
            span: (state_word >> 32) as u32,
            owner: SessionId(word(FrameWord::Owner)?),
            kind,
        })
    }

    /// The entry of a frame for a page that comes from another rack.
    pub(super) fn arriving(page: PageId, generation: Generation) -> FrameEntry {
        let (state, owner) = (FrameState::Arriving, SessionId(0));
        let kind = AllocationKind::User;
        FrameEntry {
            page,
            generation,
            state,
            shift: 0,
            first: true,
            shared: false,
            span: 1,
            owner,
            kind,
        }
    }

    /// Whether the copies of all its words agree.
    pub(super) fn is_readable<M: Mem>(mem: &M, frame: u32) -> bool {
        let words = [FrameWord::Page, FrameWord::Generation, FrameWord::State, FrameWord::Owner];
        words.iter().all(|word| copies::load(mem, frame_word(FrameIndex(frame), *word)).is_ok())
    }

    /// Reads an entry that attach has checked. If it was damaged since, in two copies at once,
    /// this process ends here: the next attach puts the frame into quarantine.
    pub(super) fn load_checked<M: Mem>(mem: &M, frame: u32) -> FrameEntry {
        FrameEntry::load(mem, frame)
            .expect("attach checked every entry and only the engine writes them")
    }

    /// The first page of its run.
    pub(super) fn run_first(&self) -> PageId {
        if self.first { self.page } else { PageId(self.page.0 - u64::from(self.span)) }
    }

    /// Which page of its run it is, and of a first page how many follow.
    pub(super) fn place_in_run(&self) -> (u32, u32) {
        if self.first { (0, self.span - 1) } else { (self.span, 0) }
    }

    /// The entry of an arriving page as its old home describes it; `None` if that makes no sense.
    /// What a session owns does not move.
    pub(super) fn of_run(self, keep: &PageMetadata) -> Option<FrameEntry> {
        let PageMetadata { shift, run_index, run_more, kind, .. } = *keep;
        let is_slab = shift != 0;
        let inside = run_index.max(run_more) < RUN_PAGES_MAX && u64::from(run_index) < self.page.0;
        if !inside
            || kind.is_owned()
            || (is_slab && run_index + run_more > 0)
            || (run_index > 0 && run_more > 0)
        {
            return None;
        }
        let span = if run_index == 0 { run_more + 1 } else { run_index };
        Some(FrameEntry { shift, first: run_index == 0, span, kind, ..self })
    }

    /// What the objects of a slab page have in common.
    pub(super) fn class(&self) -> Class {
        Class { shift: self.shift, kind: self.kind, owner: self.owner.0 }
    }

    /// The state word with another state.
    pub(super) fn state_word(&self, state: FrameState) -> u64 {
        u64::from(state as u8)
            | u64::from(self.shift) << 8
            | u64::from(self.first) << 16
            | (self.kind as u64) << 17
            | if self.shared { FRAME_SHARED } else { 0 }
            | u64::from(self.span) << 32
    }

    /// Writes a new entry; the state last, so that a crash leaves the frame free or complete.
    pub(super) fn store<M: Persist>(&self, mem: &M, frame: u32) {
        let frame = FrameIndex(frame);
        copies::put(mem, frame_word(frame, FrameWord::Page), self.page.0);
        copies::put(mem, frame_word(frame, FrameWord::Generation), self.generation.0);
        copies::put(mem, frame_word(frame, FrameWord::Owner), self.owner.0);
        // All at once: until the state says so, they mean nothing.
        copies::persist(mem, frame_word(frame, FrameWord::Page), FRAME_BYTES);
        copies::store(mem, frame_word(frame, FrameWord::State), self.state_word(self.state));
    }
}

/// Gives memory to a range of the metadata, in all its copies.
pub(super) fn back_metadata<W: World>(world: &mut W, offset: u64, bytes: u64) -> Result<()> {
    let places = copies::places(world.private().bytes(), offset);
    places.into_iter().try_for_each(|place| world.back_private(place, bytes))
}

/// Offset of a frame's state word in the private section.
pub(super) fn state_offset(frame: u32) -> u64 {
    frame_word(FrameIndex(frame), FrameWord::State)
}

/// A range of page ids: `next..end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IdRange {
    next: u64,
    end: u64,
}

/// The indexes over all frames.
pub(super) struct Frames {
    pages: PageGeometry,
    count: u32,
    /// Frames that are memory; those behind them are slots of a file.
    memory: u32,
    tiers: Tiers,
    /// Frames from here on were never used.
    pub(super) high: u32,
    /// Free frames below `high`.
    pub(super) free: BTreeSet<u32>,
    /// Frames with a damaged entry: they stay as they are and are not used.
    pub(super) damaged: BTreeSet<u32>,
    /// Every page with a frame, in any state but free.
    pub(super) by_page: BTreeMap<u64, u32>,
    /// First frames of owned allocations (session, frame) and owned slab pages.
    pub(super) owned: BTreeSet<(u64, u32)>,
    generation_next: u64,
    generation_end: u64,
    ids: IdRange,
    standby: Option<IdRange>,
}

impl Frames {
    /// Reads the words that change; the entries are attach's work.
    pub(super) fn load<M: Mem>(mem: &M, layout: RegionLayout, tiers: Tiers) -> Result<Frames> {
        let RegionLayout { pages, frame_count: count } = layout;
        let word = |word: StateWord| copies::load(mem, word.offset());
        let (high, generation) = (word(StateWord::FramesHigh)?, word(StateWord::GenerationNext)?);
        let ids = IdRange { next: word(StateWord::PageIdNext)?, end: word(StateWord::PageIdEnd)? };
        let bad = |reason: String| Err(Error::BadRegion { reason });
        if high > u64::from(count) {
            return bad(format!("{high} frames were used, {count} exist"));
        }
        if generation == 0 {
            return bad("the next generation is 0".into());
        }
        if ids.next > ids.end || ids.end > pages.page_id_max().0 {
            return bad(format!("page ids {} to {} make no range", ids.next, ids.end));
        }
        let memory = tiers.memory_frames(count);
        Ok(Frames {
            pages,
            count,
            memory,
            tiers,
            high: high as u32,
            free: BTreeSet::new(),
            damaged: BTreeSet::new(),
            by_page: BTreeMap::new(),
            owned: BTreeSet::new(),
            generation_next: generation,
            generation_end: generation,
            ids,
            standby: None,
        })
    }

    /// Frames and slots that are free now.
    pub(super) fn free_count(&self) -> u32 {
        self.count - self.high + self.free.len() as u32
    }

    /// All frames of memory, whatever their tier.
    pub(super) fn memory(&self) -> Range<u32> {
        0..self.memory
    }

    /// The frames that are slots of a file; none if the rack has no such file.
    pub(super) fn slots(&self) -> Range<u32> {
        self.memory..self.count
    }

    pub(super) fn is_slot(&self, frame: u32) -> bool {
        frame >= self.memory
    }

    /// How many frames of memory are free; if more than `enough`, perhaps only some of them.
    pub(super) fn free_memory(&self, enough: u32) -> u32 {
        if self.slots().is_empty() {
            self.free_count()
        } else {
            self.free_in(&self.memory(), enough)
        }
    }

    /// Whether a page may be in two frames, because it moves between them.
    pub(super) fn has_several_ranges(&self) -> bool {
        !self.tiers.ranges().is_empty()
    }

    /// The frames of a tier; `None` if there is no such tier.
    pub(super) fn of_tier(&self, tier: Tier) -> Option<Range<u32>> {
        self.tiers.frames_of(tier, self.count)
    }

    /// The frames of each memory, nearest first, if there are several.
    pub(super) fn of_tiers(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let memories = Some(self.tiers.memories()).filter(|memories| memories.len() > 1);
        memories.into_iter().flatten().map(TierRange::frames)
    }

    /// How many frames of a range are free; of those that were used before, at most `enough` count.
    pub(super) fn free_in(&self, range: &Range<u32>, enough: u32) -> u32 {
        let used = self.free.range(range.clone()).take(enough as usize).count() as u32;
        used + range.end.saturating_sub(self.high.max(range.start))
    }

    pub(super) fn tier_stats(&self) -> Vec<TierStats> {
        let of = |range: &TierRange| TierStats {
            node: range.node,
            first_frame: range.first_frame,
            frames: range.frame_count.into(),
            frames_free: self.free_in(&range.frames(), u32::MAX).into(),
        };
        self.tiers.ranges().iter().map(of).collect()
    }

    /// The frame and entry of a page that lives in memory here now.
    pub(super) fn home<M: Mem>(&self, mem: &M, page: PageId) -> Option<(u32, FrameEntry)> {
        let frame = *self.by_page.get(&page.0).filter(|frame| !self.is_slot(**frame))?;
        let entry = FrameEntry::load_checked(mem, frame);
        (entry.state == FrameState::Home).then_some((frame, entry))
    }

    /// The lowest `count` free frames of a range. The caller knows that they are there and has made
    /// room for the entries that [`Frames::fresh_entries`] names.
    pub(super) fn take<M: Persist>(&mut self, mem: &M, count: u32, range: &Range<u32>) -> Vec<u32> {
        assert!(count <= self.free_in(range, count), "the caller checked that they are there");
        let used = self.free.range(range.clone()).take(count as usize);
        let mut frames: Vec<u32> = used.copied().collect();
        frames.iter().for_each(|frame| _ = self.free.remove(frame));
        let fresh = count - frames.len() as u32;
        if fresh > 0 {
            let first = self.high.max(range.start);
            // Nearer tiers that are not used up.
            self.free.extend(self.high..first);
            frames.extend(first..first + fresh);
            self.high = first + fresh;
            copies::store(mem, StateWord::FramesHigh.offset(), u64::from(self.high));
        }
        frames
    }

    /// Where the entries lie that taking `count` frames of a range uses for the first time, and
    /// those before them: offset, bytes.
    pub(super) fn fresh_entries(&self, count: u32, range: &Range<u32>) -> Option<(u64, u64)> {
        let used = self.free.range(range.clone()).take(count as usize).count() as u32;
        let fresh = count - used;
        let end = self.high.max(range.start) + fresh;
        let offset = frame_word(FrameIndex(self.high), FrameWord::Page);
        (fresh > 0).then_some((offset, FRAME_BYTES * u64::from(end - self.high)))
    }

    /// `count` consecutive generations that were never given out; the first of them.
    pub(super) fn take_generations<M: Persist>(&mut self, mem: &M, count: u32) -> u64 {
        let first = self.generation_next;
        self.generation_next += u64::from(count);
        if self.generation_next > self.generation_end {
            self.generation_end = self.generation_next + GENERATION_CHUNK;
            copies::store(mem, StateWord::GenerationNext.offset(), self.generation_end);
        }
        first
    }

    /// The next generation that a page gets.
    pub(super) fn generation_next(&self) -> u64 {
        self.generation_next
    }

    /// Whether `count` consecutive page ids can be taken, perhaps after [`Frames::switch_ids`].
    pub(super) fn ids_fit(&self, count: u32) -> bool {
        self.ids.end - self.ids.next >= u64::from(count)
    }

    /// Whether another range should be leased now, ahead of need.
    pub(super) fn wants_lease(&self) -> bool {
        self.standby.is_none() && self.ids.end - self.ids.next < PAGE_ID_LEASE / 2
    }

    /// Whether a leased range waits to be used, and if so what to record: next and end. The rest
    /// of the present range is never used.
    pub(super) fn switch_ids(&mut self) -> Option<(u64, u64)> {
        self.ids = self.standby.take()?;
        Some((self.ids.next, self.ids.end))
    }

    /// `count` consecutive page ids, marked as given out before they are used.
    pub(super) fn take_ids<M: Persist>(&mut self, mem: &M, count: u32) -> u64 {
        assert!(self.ids_fit(count), "the caller checked that the ids are there");
        let first = self.ids.next;
        let again = mem.mutated(Mutation::GiveIdsAgain);
        self.ids.next += if again { 1 } else { u64::from(count) };
        copies::store(mem, StateWord::PageIdNext.offset(), self.ids.next);
        first
    }

    /// Whether a page id is leased to this rack and was not given out: no page has it.
    pub(super) fn is_unused_id(&self, page: PageId) -> bool {
        let holds = |range: &IdRange| (range.next..range.end).contains(&page.0);
        holds(&self.ids) || self.standby.as_ref().is_some_and(holds)
    }

    /// Checks a range that the master leased and keeps it for later.
    pub(super) fn offer_ids(&mut self, first: PageId, count: u64) -> Result<()> {
        let end = first.0.checked_add(count).filter(|end| *end <= self.pages.page_id_max().0);
        let broken = |reason| Err(Error::Protocol { peer: "master".into(), reason });
        let Some(end) = end else {
            return broken(format!("{count} page ids from {first} are no range of ids"));
        };
        if first.0 == 0 || count < u64::from(RUN_PAGES_MAX) {
            return broken(format!("{count} page ids from {first} hold no run"));
        }
        let ours = self.ids.next < end && first.0 < self.ids.end && self.ids.next < self.ids.end;
        if ours || self.by_page.range(first.0..end).next().is_some() {
            return broken(format!("page ids {first} to {end} were leased before"));
        }
        self.standby = Some(IdRange { next: first.0, end });
        Ok(())
    }

    /// An address in a page.
    pub(super) fn addr(&self, page: PageId, offset: u64) -> GAddr {
        self.pages.join(page, offset)
    }
}
