//! Freeing: objects, runs, and the way of a frame from `Freeing` to `Free`.
//!
//! In: frees admitted by `mod.rs`, pages that `alloc.rs` rolls back, what leaving sessions held,
//! acknowledgements of the master. Out: answers, free frames. A frame's way, in this order:
//! state `Freeing` (the first page of a run by the redo record that holds the result, the later
//! ones after it), table word 0, the master forgets the page, a barrier, no cell announces the
//! frame, memory punched, state `Free`. The barrier is paid once for all table words that changed
//! before a scan. After it no accessor can begin with the old generation, so a frame that was
//! seen unannounced once is safe for good; one that is announced stays in quarantine.
//! Source: DESIGN §3 (reuse only when provably no process can touch it).

use crate::addr::{FrameIndex, GAddr, PageId};
use crate::constants::{QUARANTINE_FRAMES_MAX, SLOTS_MAX};
use crate::copies;
use crate::daemon::frames::{FrameEntry, state_offset};
use crate::daemon::session::{Outcome, Ticket};
use crate::daemon::slab::{self, Class};
use crate::daemon::{Daemon, World, set_table, word_of};
use crate::error::{Error, Result};
use crate::layout::{BLOCK_BYTES, FrameState, ResultKind, SlotWord, table_word};
use crate::seam::{Mem, Mutation, Probe, Race, Rare};
use crate::wire::Reply;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Frames that the master has to forget together, and the requests that wait for it.
#[derive(Debug, Default)]
struct Removal {
    remaining: usize,
    /// With the addresses of what they free.
    waiters: Vec<(Ticket, GAddr)>,
    /// Whether pages of a run are in other racks.
    apart: bool,
}

/// Frames on their way to be free.
#[derive(Default)]
pub(super) struct Freeing {
    removals: BTreeMap<u64, Removal>,
    next_removal: u64,
    /// Frames with a page that the master still knows, with their removal.
    known: BTreeMap<u32, u64>,
    /// Of these, the ones with a removal that has not been sent.
    queue: VecDeque<u32>,
    /// Frames that the master has forgotten and that a cell may announce.
    draining: BTreeSet<u32>,
    /// Frames that no process can touch any more.
    drained: BTreeSet<u32>,
    /// Whether table words changed since the last barrier.
    unfenced: bool,
    scan_due: bool,
    announced: Vec<u32>,
}

impl Freeing {
    /// Frames of a range that will be free without action by any other process.
    pub(super) fn coming(&self, range: &Range<u32>) -> u32 {
        let (known, drained) = (self.known.range(range.clone()), self.drained.range(range.clone()));
        (known.count() + drained.count()) as u32
    }

    /// Frames that a stopped reader or writer keeps.
    pub(super) fn quarantined(&self) -> usize {
        self.draining.len()
    }

    /// Whether a tick would do something.
    pub(super) fn needs_tick(&self) -> bool {
        !self.draining.is_empty() || !self.drained.is_empty()
    }

    /// A frame's page is not forgotten yet, although its removal was queued.
    pub(super) fn hold(&mut self, frame: u32) {
        self.queue.retain(|queued| *queued != frame);
        let removal = self.known.get(&frame).and_then(|id| self.removals.get_mut(id));
        removal.expect("its removal was queued").apart = true;
    }

    pub(super) fn let_go(&mut self, frame: u32) {
        self.queue.push_back(frame);
    }

    /// Notes that table words changed: the next scan needs a barrier.
    pub(super) fn table_changed(&mut self) {
        self.unfenced = true;
    }

    /// Frames that a cell may announce.
    pub(super) fn draining(&self) -> impl Iterator<Item = u32> + '_ {
        self.draining.iter().copied()
    }

    /// A frame that the master does not know here, and that a cell may announce.
    pub(super) fn drain(&mut self, frame: u32) {
        self.draining.insert(frame);
    }
}

/// What an address and a size name.
#[derive(Clone, Copy, Debug)]
pub(super) enum FreeTarget {
    Object { frame: u32, index: u32, shift: u8 },
    Run { frame: u32, page: PageId, pages: u32 },
}

impl Daemon {
    /// Serves an admitted free of what a word names.
    pub(super) fn free_from<W: World>(&mut self, ticket: Ticket, world: &mut W) {
        let named =
            self.locate_named(ticket.word, world).map(|at| (at, word_of(world.pages(), at)));
        match named {
            Ok((_, addr)) if self.is_apart(GAddr(addr), world) => {
                self.answer(&ticket, Ok(Reply::Apart { addr: GAddr(addr) }), world);
            }
            Ok((at, addr)) => self.free(ticket, GAddr(addr), Some(at), world),
            Err(error) => self.answer(&ticket, Err(error), world),
        }
    }

    /// Serves an admitted free. The word of the pages section at `word`, if any, becomes 0 in the
    /// same step.
    pub(super) fn free<W: World>(
        &mut self,
        ticket: Ticket,
        addr: GAddr,
        word: Option<u64>,
        world: &mut W,
    ) {
        let found = self.find_allocation(addr, ticket.bytes, world);
        let target = match found.and_then(|target| self.check_apart(&ticket, addr, target)) {
            Ok(target) => target,
            Err(error) => return self.answer(&ticket, Err(error), world),
        };
        self.free_found(ticket, addr, target, word, world);
    }

    /// A word that goes with what it names could not be set to 0 in the same step.
    fn check_apart(&self, ticket: &Ticket, addr: GAddr, target: FreeTarget) -> Result<FreeTarget> {
        let span = match target {
            FreeTarget::Object { shift, .. } => 1 << shift,
            FreeTarget::Run { pages, .. } => u64::from(pages) * self.layout.pages.page_bytes(),
        };
        if (addr.0..addr.0 + span).contains(&ticket.word.0) {
            let reason = format!("the word {} that names it lies inside", ticket.word);
            return Err(Error::BadFree { addr, bytes: ticket.bytes, reason });
        }
        Ok(target)
    }

    fn free_found<W: World>(
        &mut self,
        ticket: Ticket,
        addr: GAddr,
        target: FreeTarget,
        word: Option<u64>,
        world: &mut W,
    ) {
        if matches!(target, FreeTarget::Run { .. }) && self.is_quarantine_full(world.private()) {
            let limit = u64::from(QUARANTINE_FRAMES_MAX);
            let what = "the quarantine of frames that stopped clients may touch".into();
            return self.answer(&ticket, Err(Error::Busy { what, limit }), world);
        }
        let disowned = self.sessions.disown(addr.0, &mut self.redo);
        self.prepare_release(target, world);
        if let Some(offset) = word {
            self.redo.set_page(offset, 0);
        }
        let outcome = Outcome { kind: ResultKind::Freed, value: addr.0, bytes: ticket.bytes };
        let (record, seq) = (ticket.record, ticket.seq);
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        if let Some(other) = disowned.filter(|other| *other != record) {
            self.sessions.disowned(other);
        }
        self.finish_release(target, Some((ticket, addr)), world);
    }

    /// Frees what lives at an address, with the stores that are prepared and for no session here.
    pub(super) fn release_now<W: World>(&mut self, target: FreeTarget, addr: GAddr, world: &mut W) {
        let disowned = self.sessions.disown(addr.0, &mut self.redo);
        self.prepare_release(target, world);
        self.redo.commit(world);
        if let Some(record) = disowned {
            self.sessions.disowned(record);
        }
        self.finish_release(target, None, world);
    }

    /// The last request for which a session has taken the answer.
    pub(super) fn consumed<W: World>(&self, record: u32, world: &W) -> u64 {
        if record < SLOTS_MAX {
            // Without the slot section nothing says what was consumed: a leak harms less than
            // freeing memory that is in use.
            world.slot_word(record, SlotWord::ConsumedSeq).unwrap_or(u64::MAX)
        } else {
            self.sessions.consumed(record)
        }
    }

    /// Takes back the allocation that a session's last request made, if the answer was not taken.
    pub(super) fn take_back<W: World>(&mut self, record: u32, world: &mut W) {
        let consumed = self.consumed(record, world);
        let Some((addr, bytes)) = self.sessions.unconsumed(record, consumed) else { return };
        let Ok(target) = self.find_allocation(GAddr(addr), bytes, world) else { return };
        world.private().met(Race::AnswerTakenBack);
        self.release_now(target, GAddr(addr), world);
    }

    /// Frees everything that is owned by a session.
    pub(super) fn free_owned<W: World>(&mut self, session: u64, world: &mut W) {
        let range = (session, 0)..=(session, u32::MAX);
        while let Some(&(_, frame)) = self.frames.owned.range(range.clone()).next() {
            let entry = FrameEntry::load_checked(world.private(), frame);
            if entry.shift == 0 {
                let target = FreeTarget::Run { frame, page: entry.page, pages: entry.span };
                self.finish_release(target, None, world);
            } else {
                self.start_freeing(&[frame], None, world);
            }
        }
    }

    /// A repeated free waits until the master has forgotten its pages, or for other racks; whether
    /// so.
    pub(super) fn join_removal(&mut self, ticket: Ticket, addr: GAddr) -> bool {
        if slab::class_shift(&self.layout, ticket.bytes).is_some() {
            return false;
        }
        let pages = ticket.bytes.div_ceil(self.layout.pages.page_bytes());
        let first = self.layout.pages.page(addr).0;
        let frames = self.frames.by_page.range(first..first + pages).map(|(_, frame)| frame);
        let removal = frames.filter_map(|frame| self.freeing.known.get(frame)).next().copied();
        match removal.and_then(|id| self.freeing.removals.get_mut(&id)) {
            Some(removal) => removal.waiters.push((ticket, addr)),
            None if pages > 1 || !ticket.word.is_null() => self.repeat_apart(ticket, addr),
            None => return false,
        }
        true
    }

    /// The allocation of this address and size. A loan that it is in ends: only without that the
    /// bitmap says what lives.
    pub(super) fn find_allocation<W: World>(
        &mut self,
        addr: GAddr,
        bytes: u64,
        world: &mut W,
    ) -> Result<FreeTarget> {
        self.settle_object(addr, world);
        let bad = |reason: &str| Err(Error::BadFree { addr, bytes, reason: reason.into() });
        if bytes == 0 || addr.is_null() {
            return bad(if bytes == 0 { "nothing has 0 bytes" } else { "it is null" });
        }
        let pages = self.layout.pages;
        let page = pages.page(addr);
        let offset = pages.offset(addr);
        let Some((frame, entry)) = self.frames.home(world.private(), page) else {
            let reason = "no page of this rack is there".into();
            return Err(self.not_at_home(addr, Error::BadFree { addr, bytes, reason }));
        };
        let class = slab::class_shift(&self.layout, bytes);
        if entry.shift == 0 {
            let asked = bytes.div_ceil(pages.page_bytes());
            return match () {
                () if !entry.first => bad("it lies inside a run of pages"),
                () if offset != 0 => bad("it lies inside a page"),
                () if world.private().mutated(Mutation::FreeAnySize) => {
                    Ok(FreeTarget::Run { frame, page, pages: entry.span })
                }
                () if class.is_some() || asked != u64::from(entry.span) => {
                    bad(&format!("a run of {} pages is there", entry.span))
                }
                () => Ok(FreeTarget::Run { frame, page, pages: entry.span }),
            };
        }
        let shift = entry.shift;
        if class != Some(shift) && !world.private().mutated(Mutation::FreeAnySize) {
            return bad(&format!("objects of {} bytes are there", 1u64 << shift));
        }
        if !offset.is_multiple_of(1 << shift) {
            return bad("it lies inside an object");
        }
        let index = (offset >> shift) as u32;
        match self.slabs.release(world.private(), frame, index) {
            Some(_) => Ok(FreeTarget::Object { frame, index, shift }),
            None => bad("the object there was freed, never handed out, or its bitmap is damaged"),
        }
    }

    /// Adds to the redo record the store that frees.
    fn prepare_release<W: World>(&mut self, target: FreeTarget, world: &W) {
        match target {
            FreeTarget::Object { frame, index, .. } => {
                let store = self.slabs.release(world.private(), frame, index);
                let (offset, word) = store.expect("find_allocation saw the object live");
                self.redo.set(offset, word);
            }
            FreeTarget::Run { frame, .. } => {
                let entry = FrameEntry::load_checked(world.private(), frame);
                self.redo.set(state_offset(frame), entry.state_word(FrameState::Freeing));
            }
        }
    }

    /// Follows in the indexes, and starts the way of a run's frames.
    fn finish_release<W: World>(
        &mut self,
        target: FreeTarget,
        by: Option<(Ticket, GAddr)>,
        world: &mut W,
    ) {
        match target {
            FreeTarget::Object { frame, index, shift } => {
                let slab = self.slabs.released(frame, index);
                self.quota.credit_object(frame, index);
                self.allocations_live -= 1;
                if !world.private().mutated(Mutation::KeepCounts) {
                    self.allocated_bytes -= 1u64 << shift;
                }
                self.trim_class(slab.class, world);
                if let Some((ticket, _)) = by {
                    self.answer(&ticket, Ok(Reply::Freed), world);
                }
            }
            FreeTarget::Run { page, pages, .. } => {
                let range = page.0..page.0 + u64::from(pages);
                let is_here = |(_, frame): &(&u64, &u32)| {
                    let state = FrameEntry::load_checked(world.private(), **frame).state;
                    matches!(state, FrameState::Home | FrameState::Freeing)
                };
                let here = self.frames.by_page.range(range.clone()).filter(is_here);
                let (ids, frames): (BTreeSet<u64>, Vec<u32>) = here.unzip();
                self.allocations_live -= 1;
                self.allocated_bytes -= frames.len() as u64 * self.layout.pages.page_bytes();
                self.start_freeing(&frames, by, world);
                if frames.len() < pages as usize {
                    let apart = range.filter(|id| !ids.contains(id)).map(PageId).collect();
                    self.hold_first(frames[0], page, apart);
                }
            }
        }
    }

    /// Gives back an empty slab page if its class has another one.
    pub(super) fn trim_class<W: World>(&mut self, class: Class, world: &mut W) {
        if self.is_quarantine_full(world.private()) {
            return;
        }
        let keep_none = self.is_leaving() || world.private().rare(Rare::EmptySlabReturned);
        if let Some(frame) = self.slabs.surplus(class, keep_none) {
            self.start_freeing(&[frame], None, world);
        }
    }

    /// Gives back the empty slab pages that are kept for the next allocation of their class.
    pub fn release_cached_pages<W: World>(&mut self, world: &mut W) {
        self.free_cached_pages(world);
        self.advance(world);
    }

    /// As [`Daemon::release_cached_pages`], from within another step.
    pub(super) fn free_cached_pages<W: World>(&mut self, world: &mut W) {
        let frames: Vec<u32> = self.slabs.empty_pages().collect();
        if !frames.is_empty() {
            self.start_freeing(&frames, None, world);
        }
    }

    fn is_quarantine_full(&self, probe: &impl Probe) -> bool {
        probe.rare(Rare::QuarantineFull)
            || self.freeing.quarantined() >= QUARANTINE_FRAMES_MAX as usize
    }

    /// Marks frames `Freeing` in this order, makes them unreachable, and queues their removal.
    pub(super) fn start_freeing<W: World>(
        &mut self,
        frames: &[u32],
        by: Option<(Ticket, GAddr)>,
        world: &mut W,
    ) {
        let id = self.freeing.next_removal;
        self.freeing.next_removal += 1;
        for frame in frames {
            let entry = FrameEntry::load_checked(world.private(), *frame);
            if entry.state != FrameState::Freeing {
                let word = entry.state_word(FrameState::Freeing);
                copies::store(world.private(), state_offset(*frame), word);
            }
        }
        for frame in frames {
            let table = table_word(FrameIndex(*frame));
            if world.table().load(table) != 0 {
                set_table(world, table, 0);
                self.freeing.unfenced = true;
            }
            let FrameEntry { owner, page, .. } = FrameEntry::load_checked(world.private(), *frame);
            self.frames.owned.remove(&(owner.0, *frame));
            self.forget_shared(*frame, page);
            self.quota.credit_frame(*frame, self.layout.pages.page_bytes());
            if let Some((slab, live)) = self.slabs.remove(*frame) {
                self.allocations_live -= u64::from(live);
                self.allocated_bytes -= u64::from(live) << slab.class.shift;
            }
            self.freeing.known.insert(*frame, id);
            self.freeing.queue.push_back(*frame);
        }
        let (remaining, waiters) = (frames.len(), by.into_iter().collect());
        let removal = Removal { remaining, waiters, apart: false };
        self.freeing.removals.insert(id, removal);
    }

    /// Frames and pages of the next removal, at most `limit`.
    pub(super) fn next_removal<W: World>(
        &mut self,
        limit: usize,
        world: &W,
    ) -> (Vec<u32>, Vec<PageId>) {
        let count = limit.min(self.freeing.queue.len());
        let frames: Vec<u32> = self.freeing.queue.drain(..count).collect();
        let page = |frame: &u32| FrameEntry::load_checked(world.private(), *frame).page;
        let pages = frames.iter().map(page).collect();
        (frames, pages)
    }

    /// The master has forgotten the pages of these frames.
    pub(super) fn on_removed<W: World>(&mut self, frames: &[u32], world: &mut W) {
        for frame in frames {
            let id = self.freeing.known.remove(frame).expect("a frame is removed once");
            self.freeing.draining.insert(*frame);
            self.orphans.removed(*frame);
            let removal = self.freeing.removals.get_mut(&id).expect("it has a frame left");
            removal.remaining -= 1;
            if removal.remaining == 0 {
                let removal = self.freeing.removals.remove(&id).expect("it was found above");
                for (ticket, addr) in removal.waiters {
                    self.end_free(ticket, addr, removal.apart, world);
                }
            }
        }
        self.request_scan();
    }

    /// Asks for a scan of the cells, if a frame waits for one.
    pub(super) fn request_scan(&mut self) {
        let waits = !self.freeing.draining.is_empty();
        let moves = self.moves.draining().next().is_some();
        self.freeing.scan_due = waits || moves || self.replicas.draining().next().is_some();
    }

    /// Looks once whether the frames that wait for it are announced in any cell.
    pub(super) fn scan_cells<W: World>(&mut self, world: &mut W) {
        if !std::mem::take(&mut self.freeing.scan_due) {
            return;
        }
        let probe = world.private();
        let omit = probe.mutated(Mutation::OmitBarrier);
        let reuse = probe.mutated(Mutation::ReuseBeforeDrained);
        let copy = probe.mutated(Mutation::CopyBeforeDrained);
        let kept = probe.rare(Rare::QuarantineKept);
        if std::mem::take(&mut self.freeing.unfenced) && !omit {
            world.barrier();
        }
        if kept {
            return;
        }
        let mut leaving: Vec<u32> = self.moves.draining().chain(self.replicas.draining()).collect();
        let freeing = &mut self.freeing;
        freeing.announced.clear();
        for index in 0..world.cell_count() {
            let frame = world.cell(index).checked_sub(1).and_then(|f| u32::try_from(f).ok());
            freeing.announced.extend(
                frame.filter(|frame| freeing.draining.contains(frame) || leaving.contains(frame)),
            );
        }
        if !freeing.announced.is_empty() {
            world.private().met(Race::CellSeen);
        }
        leaving.retain(|frame| copy || !freeing.announced.contains(frame));
        freeing.announced.retain(|frame| freeing.draining.contains(frame));
        if reuse {
            freeing.announced.clear();
        }
        let announced = std::mem::take(&mut freeing.draining);
        freeing.draining.extend(&freeing.announced);
        freeing.drained.extend(announced.difference(&freeing.draining));
        for frame in leaving {
            match self.replicas.frames.contains(&frame) {
                true => self.replica_drained(frame, world),
                false => self.drained(frame, world),
            }
        }
    }

    /// Punches frames that no process can touch, as many as one step may, and makes them free.
    pub(super) fn punch_step<W: World>(&mut self, world: &mut W) {
        let forced = world.private().rare(Rare::PunchOnePage);
        let mut budget = if forced { 1 } else { self.step_frames() };
        while budget > 0 {
            let Some(&first) = self.freeing.drained.first() else { return };
            let neighbours = (first..).zip(&self.freeing.drained);
            let count = neighbours.take(budget).take_while(|(next, f)| next == *f).count();
            budget -= count;
            let bytes = count as u64 * self.layout.pages.page_bytes();
            if !world.private().mutated(Mutation::SkipPunch) {
                world.punch_pages(self.layout.frame_offset(FrameIndex(first)), bytes);
            }
            for frame in first..first + count as u32 {
                self.make_free(frame, world);
            }
        }
    }

    fn make_free<W: World>(&mut self, frame: u32, world: &mut W) {
        let entry = FrameEntry::load_checked(world.private(), frame);
        let bitmap_bytes = self.layout.bitmap_bytes();
        if entry.shift != 0 && bitmap_bytes >= BLOCK_BYTES {
            let offset = self.layout.bitmap_offset(FrameIndex(frame));
            for place in copies::places(world.private().bytes(), offset) {
                world.punch_private(place, bitmap_bytes);
            }
        }
        copies::store(world.private(), state_offset(frame), FrameState::Free as u64);
        self.freeing.drained.remove(&frame);
        if self.frames.by_page.get(&entry.page.0) == Some(&frame) {
            self.frames.by_page.remove(&entry.page.0);
        }
        self.frames.free.insert(frame);
    }
}
