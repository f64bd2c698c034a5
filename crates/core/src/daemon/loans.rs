//! Objects that handles of this host hand out themselves, and frees that they leave in their slots.
//!
//! In: requests for objects, the words of slots, ends of sessions, pages that leave, want of
//! memory, time. Out: groups of objects marked in the bitmap and in a slot, objects that are free
//! again. The words of the slots are the truth, also for the next daemon; which slot has which
//! group is mirrored here. A loan ends whenever the daemon likes, without its handle: by an atomic
//! that takes the right away, a redo record that clears the bits of what was free, and a store that
//! forgets it. What was handed out stays with its owner. Order, so that a crash loses nothing:
//!
//! - lending: the slot's words without the right, the bitmap by a redo record, the right;
//! - ending: the right, the bitmap by a redo record, the slot's words;
//! - a free that waits: a redo record, then 0 in its place.
//!
//! [`Daemon::recover_loans`] goes on with each of them before any request is served, so that no
//! object has got another owner meanwhile. A page leaves without loans and without frees that
//! wait. A watch of an audit begins without loans of its kind: what is lent after that was free then,
//! so the watch never judges it. Decision 0062.

use crate::addr::{FrameIndex, GAddr, Generation, PageId};
use crate::constants::{
    FREE_QUEUE, LEND_BYTES_MAX, LEND_GROUPS_MAX, LEND_OBJECTS_MAX, LOAN_IDLE_NS, LOANS_MAX,
    LOANS_RETURNED_MAX, SLOTS_MAX,
};
use crate::copies;
use crate::daemon::frames::FrameEntry;
use crate::daemon::slab::Class;
use crate::daemon::{Daemon, World, slab};
use crate::error::{Error, Result};
use crate::layout::{AllocationKind, FrameState, LoanWord, SLOT_BYTES, free_queue_word, loan_word};
use crate::loan::{LENT, LoanState, ObjectGroup, named_object, objects_in_group};
use crate::persist::Persist;
use crate::seam::{Mem, Mutation, Nanos, Probe, Race};
use crate::wire::{LentGroup, LoanReply, LoanRequest, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Groups that one redo record can free, each perhaps by a word of its own.
const ENDED_AT_ONCE: usize = 64;

/// A loan's slot and its number there.
type LoanPlace = (u32, u16);

#[derive(Default)]
pub(super) struct Loans {
    places: BTreeMap<ObjectGroup, LoanPlace>,
    groups: BTreeMap<LoanPlace, ObjectGroup>,
    /// Loans that ended while an object was being handed out.
    taking: BTreeMap<LoanPlace, ObjectGroup>,
    /// Slots in which frees may wait.
    queues: BTreeSet<u32>,
    /// What the words of a slot's loans came to at the last look.
    seen: BTreeMap<u32, u64>,
    look_at: Nanos,
}

impl Loans {
    /// How long after a tick the next look is due, if any is.
    pub(super) fn tick_ns(&self) -> Option<Nanos> {
        (!self.groups.is_empty() || !self.queues.is_empty()).then_some(LOAN_IDLE_NS)
    }

    fn insert(&mut self, place: LoanPlace, group: ObjectGroup) {
        self.places.insert(group, place);
        self.groups.insert(place, group);
    }

    fn remove(&mut self, group: ObjectGroup) -> Option<LoanPlace> {
        let place = self.places.remove(&group)?;
        self.groups.remove(&place);
        Some(place)
    }

    fn of_slot(&self, slot: u32) -> Vec<ObjectGroup> {
        self.groups.range((slot, 0)..=(slot, u16::MAX)).map(|(_, group)| *group).collect()
    }
}

/// A group that is about to be lent.
struct PlannedLoan {
    loan: u16,
    frame: u32,
    generation: Generation,
    group: ObjectGroup,
    /// The number of its first object in the page.
    first: u32,
    free: u32,
}

/// A loan that no handle takes from any more.
struct EndedLoan {
    place: LoanPlace,
    group: ObjectGroup,
    free: u32,
}

/// The section of a slot, if its handle and this daemon see it alike. A remote session has none.
fn section_of<W: World>(slot: u32, world: &W) -> Option<&W::Mem> {
    let section = (slot < SLOTS_MAX).then(|| world.slot(slot))?;
    section.filter(|section| section.bytes() >= SLOT_BYTES && section.is_coherent())
}

/// Which objects of a loan are free now.
fn free_in_loan<W: World>((slot, loan): LoanPlace, world: &W) -> u32 {
    let word = section_of(slot, world).map(|s| s.load(loan_word(loan, LoanWord::Free)));
    word.map_or(0, |word| LoanState(word).free())
}

fn bits_of(bits: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).filter(move |index| bits >> index & 1 == 1)
}

impl Daemon {
    pub(super) fn on_loan<W: World>(
        &mut self,
        record: u32,
        request: LoanRequest,
        world: &mut W,
    ) -> Result<Reply> {
        let LoanRequest::EmptyQueue = request else {
            return self.on_lending(record, request, world).map(Reply::Loan);
        };
        let is_open = record < SLOTS_MAX
            && section_of(record, world).is_some()
            && !world.pages().is_persistent();
        if is_open {
            self.loans.queues.insert(record);
        }
        let bad = self.empty_queue(record, world);
        Ok(Reply::Loan(LoanReply::Emptied { is_open, bad }))
    }

    fn on_lending<W: World>(
        &mut self,
        record: u32,
        request: LoanRequest,
        world: &mut W,
    ) -> Result<LoanReply> {
        let (ended, wanted) = match request {
            LoanRequest::Lend { bytes, kind, objects, ended } => {
                (ended, Some((bytes, kind, objects)))
            }
            LoanRequest::End { loans } => (loans, None),
            LoanRequest::EmptyQueue => (Vec::new(), None),
        };
        if ended.len() > LOANS_RETURNED_MAX {
            let reason = format!("{} loans are given back at once", ended.len());
            return Err(Error::Protocol { peer: "client".into(), reason });
        }
        let ended = ended.iter().filter_map(|loan| self.loans.groups.get(&(record, *loan)));
        let ended: Vec<ObjectGroup> = ended.copied().collect();
        self.end_loans(&ended, world);
        Ok(match wanted {
            Some((bytes, kind, objects)) => {
                LoanReply::Lent(self.lend(record, (bytes, kind), objects, world))
            }
            None => LoanReply::Ended,
        })
    }

    fn lend<W: World>(
        &mut self,
        slot: u32,
        (bytes, kind): (u64, AllocationKind),
        objects: u32,
        world: &mut W,
    ) -> Vec<LentGroup> {
        // What is lent is zeroed by the handle, and is free only as its slot says: a loss of power
        // would leave neither.
        let is_lender = slot < SLOTS_MAX
            && section_of(slot, world).is_some()
            && !world.pages().is_persistent()
            && !self.is_leaving();
        let shift = slab::class_shift(&self.layout, bytes).filter(|_| is_lender && bytes > 0);
        let null = GAddr::NULL;
        let is_lent = |shift: &u8| ObjectGroup::with(self.layout.pages, null, *shift).is_some();
        let Some(shift) = shift.filter(is_lent) else { return Vec::new() };
        let owner = if kind.is_owned() { self.sessions.session(slot) } else { 0 };
        let plan = self.plan_loans(slot, Class { shift, kind, owner }, objects, world);
        if !plan.is_empty() {
            self.make_loans(slot, &plan, world);
        }
        let lent = plan.iter().map(|one| LentGroup {
            loan: one.loan,
            addr: one.group.addr,
            frame: FrameIndex(one.frame),
            generation: one.generation,
        });
        lent.collect()
    }

    /// Which groups are lent, from the nearest memory that has some free, as far as the quota
    /// allows.
    fn plan_loans<W: World>(
        &mut self,
        slot: u32,
        class: Class,
        objects: u32,
        world: &W,
    ) -> Vec<PlannedLoan> {
        let shift = class.shift;
        let in_group = objects_in_group(self.layout.pages, shift);
        let wanted = objects.min(LEND_OBJECTS_MAX).min((LEND_BYTES_MAX >> shift) as u32).max(1);
        let room = self.quota_room(slot) >> shift;
        self.forget_taken(world);
        let is_unused = |loan: &u16| {
            let place = (slot, *loan);
            !self.loans.groups.contains_key(&place) && !self.loans.taking.contains_key(&place)
        };
        let unused = (0..LOANS_MAX as u16).filter(is_unused).take(LEND_GROUPS_MAX);
        let mut unused = unused.collect::<Vec<_>>().into_iter();
        let mut ranges: Vec<Range<u32>> = self.frames.of_tiers().collect();
        if ranges.is_empty() {
            ranges.push(self.frames.all());
        }
        let frames = ranges.iter().flat_map(|range| self.slabs.pages_with_room(class, range));
        let frames: Vec<u32> = frames.take(LEND_GROUPS_MAX).collect();
        let (mut plan, mut count) = (Vec::<PlannedLoan>::new(), 0);
        for frame in frames {
            let entry = FrameEntry::load_checked(world.private(), frame);
            if self.replicas.is_shared(entry.page) || self.replicas.frames.contains(&frame) {
                continue;
            }
            let mut from = 0;
            while count < wanted
                && let Some((first, free)) =
                    self.slabs.next_group(world.private(), frame, from, in_group)
            {
                let new = free.count_ones();
                if u64::from(count + new) > room {
                    return plan;
                }
                let Some(loan) = unused.next() else { return plan };
                let addr = self.frames.addr(entry.page, u64::from(first) << shift);
                let (group, generation) = (ObjectGroup { addr, shift }, entry.generation);
                plan.push(PlannedLoan { loan, frame, generation, group, first, free });
                count += new;
                from = first + in_group;
            }
        }
        plan
    }

    fn make_loans<W: World>(&mut self, slot: u32, plan: &[PlannedLoan], world: &mut W) {
        let Some(section) = section_of(slot, world) else { return };
        for PlannedLoan { loan, group, free, .. } in plan {
            section.store(loan_word(*loan, LoanWord::Group), group.word());
            section.store(loan_word(*loan, LoanWord::Free), u64::from(*free));
        }
        let mut words = BTreeMap::new();
        for PlannedLoan { frame, first, free, .. } in plan {
            let (at, bits) = self.slabs.bits_at(*frame, *first, *free);
            let word = words.entry(at).or_insert_with(|| copies::load(world.private(), at));
            *word = word.clone().map(|word| word | bits);
        }
        if !world.private().mutated(Mutation::LendUnmarked) {
            for (at, word) in words {
                self.redo.set(at, word.expect("it was read when the loans were planned"));
            }
            self.redo.commit(world);
        }
        for PlannedLoan { loan, frame, group, first, free, .. } in plan {
            if let Some(section) = section_of(slot, world) {
                section.store(loan_word(*loan, LoanWord::Free), u64::from(*free) | LENT);
            }
            self.loans.insert((slot, *loan), *group);
            for index in bits_of(*free) {
                self.slabs.taken(*frame, first + index);
                self.charge_object(slot, FrameIndex(*frame), group.shift, first + index);
            }
            self.allocations_live += u64::from(free.count_ones());
            self.allocated_bytes += u64::from(free.count_ones()) << group.shift;
        }
    }

    /// Ends loans; how many objects are free again.
    fn end_loans<W: World>(&mut self, groups: &[ObjectGroup], world: &mut W) -> u32 {
        let mut count = 0;
        for some in groups.chunks(ENDED_AT_ONCE) {
            let mut ended = Vec::with_capacity(some.len());
            for group in some {
                let Some(place) = self.loans.remove(*group) else { continue };
                let Some(section) = section_of(place.0, world) else { continue };
                let at = loan_word(place.1, LoanWord::Free);
                // The top bit is set: this clears it, and no other.
                let state = LoanState(section.fetch_add(at, LENT));
                if !state.is_lent() {
                    section.fetch_add(at, LENT);
                    continue;
                }
                if state.taking().is_some() {
                    self.loans.taking.insert(place, *group);
                }
                ended.push(EndedLoan { place, group: *group, free: state.free() });
            }
            count += self.finish_loans(&ended, world);
        }
        count
    }

    /// Frees what was free in loans that no handle takes from any more.
    fn finish_loans<W: World>(&mut self, ended: &[EndedLoan], world: &mut W) -> u32 {
        let mut words = BTreeMap::new();
        let mut freed = Vec::new();
        for EndedLoan { group, free, .. } in ended {
            let Some((frame, first)) = self.find_group(*group, world) else { continue };
            let (at, bits) = self.slabs.bits_at(frame, first, *free);
            let word = match words.get(&at) {
                Some(word) => *word,
                None => match copies::load(world.private(), at) {
                    Ok(word) => word,
                    Err(_) => continue,
                },
            };
            words.insert(at, word & !bits);
            let first_bit = first % 64;
            freed.push((frame, first, ((word & bits) >> first_bit) as u32, group.shift));
        }
        for (at, word) in &words {
            self.redo.set(*at, *word);
        }
        if !words.is_empty() {
            self.redo.commit(world);
        }
        for EndedLoan { place, free, .. } in ended {
            if let Some(section) = section_of(place.0, world) {
                // The handle may be taking the name of an object away.
                let at = loan_word(place.1, LoanWord::Free);
                section.fetch_add(at, u64::from(*free).wrapping_neg());
            }
        }
        let mut count = 0;
        let mut classes = BTreeSet::new();
        for (frame, first, free, shift) in freed {
            for index in bits_of(free) {
                classes.insert(self.slabs.released(frame, first + index).class);
                self.quota.credit_object(frame, first + index);
            }
            self.allocations_live -= u64::from(free.count_ones());
            self.allocated_bytes -= u64::from(free.count_ones()) << shift;
            count += free.count_ones();
        }
        for class in classes {
            self.trim_class(class, world);
        }
        count
    }

    /// The frame of a group, and the number of its first object there.
    fn find_group<W: World>(&self, group: ObjectGroup, world: &W) -> Option<(u32, u32)> {
        let pages = self.layout.pages;
        let (frame, entry) = self.frames.home(world.private(), pages.page(group.addr))?;
        let first = (pages.offset(group.addr) >> group.shift) as u32;
        (entry.shift == group.shift).then_some((frame, first))
    }

    /// Ends the loan of the group that an object is in, so that the bitmap says whether it lives.
    pub(super) fn settle_object<W: World>(&mut self, addr: GAddr, world: &mut W) {
        if self.loans.groups.is_empty() {
            return;
        }
        let pages = self.layout.pages;
        let home = self.frames.home(world.private(), pages.page(addr));
        let group = home.and_then(|(_, entry)| ObjectGroup::with(pages, addr, entry.shift));
        if let Some(group) = group {
            self.end_loans(&[group], world);
        }
    }

    /// Ends all loans in a page that is about to leave; whether an object there is being handed
    /// out still.
    pub(super) fn settle_page<W: World>(&mut self, page: PageId, world: &mut W) -> bool {
        let pages = self.layout.pages;
        if page > pages.page_id_max() {
            return false;
        }
        let groups: Vec<ObjectGroup> =
            self.loans_in(page).into_iter().map(|(group, _)| group).collect();
        self.end_loans(&groups, world);
        self.forget_taken(world);
        self.loans.taking.values().any(|group| pages.page(group.addr) == page)
    }

    fn loans_in(&self, page: PageId) -> Vec<(ObjectGroup, LoanPlace)> {
        let pages = self.layout.pages;
        let first = ObjectGroup { addr: pages.join(page, 0), shift: 0 };
        let loans = self.loans.places.range(first..).map(|(group, place)| (*group, *place));
        loans.take_while(|(group, _)| pages.page(group.addr) == page).collect()
    }

    /// How many objects of a page are free in loans.
    pub(super) fn lent_free_in<W: World>(&self, page: PageId, world: &W) -> u64 {
        let loans = self.loans_in(page).into_iter();
        loans.map(|(_, place)| u64::from(free_in_loan(place, world).count_ones())).sum()
    }

    /// Forgets ended loans of which the last object has been handed out.
    fn forget_taken<W: World>(&mut self, world: &W) {
        self.loans.taking.retain(|(slot, loan), _| {
            let word = section_of(*slot, world).map(|s| s.load(loan_word(*loan, LoanWord::Free)));
            word.is_some_and(|word| LoanState(word).taking().is_some())
        });
    }

    /// Ends all loans, for want of memory; how many objects are free again.
    pub(super) fn end_all_loans<W: World>(&mut self, world: &mut W) -> u32 {
        let groups: Vec<ObjectGroup> = self.loans.places.keys().copied().collect();
        self.end_loans(&groups, world)
    }

    /// Ends the loans of slots, for want of quota; how many objects are free again.
    pub(super) fn end_loans_of<W: World>(&mut self, slots: &[u32], world: &mut W) -> u32 {
        let of = |slot: &u32| self.loans.of_slot(*slot);
        let groups: Vec<ObjectGroup> = slots.iter().flat_map(of).collect();
        self.end_loans(&groups, world)
    }

    /// Before an audit looks at tables or frees a part of one: whatever is free is so in the
    /// bitmap.
    pub(super) fn settle_tables<W: World>(&mut self, world: &mut W) {
        let is_of_table = |group: &ObjectGroup| {
            let home = self.frames.home(world.private(), self.layout.pages.page(group.addr));
            home.is_some_and(|(_, entry)| entry.kind == AllocationKind::Table)
        };
        let groups: Vec<ObjectGroup> =
            self.loans.places.keys().copied().filter(is_of_table).collect();
        self.end_loans(&groups, world);
        self.empty_queues(world);
    }

    /// A session is over: what its handle could still hand out is free, what it was about to hand
    /// out, and what it freed.
    pub(super) fn end_session_loans<W: World>(&mut self, slot: u32, world: &mut W) {
        if world.private().mutated(Mutation::KeepLoans) {
            return;
        }
        self.empty_queue(slot, world);
        let groups = self.loans.of_slot(slot);
        self.end_loans(&groups, world);
        let taking: Vec<(LoanPlace, ObjectGroup)> = self
            .loans
            .taking
            .range((slot, 0)..=(slot, u16::MAX))
            .map(|(place, group)| (*place, *group))
            .collect();
        for (place, group) in taking {
            self.loans.taking.remove(&place);
            let word = section_of(slot, world).map(|s| s.load(loan_word(place.1, LoanWord::Free)));
            let Some(index) = word.and_then(|word| LoanState(word).taking()) else { continue };
            let addr = group.object(index);
            if let Ok(target) = self.find_allocation(addr, 1 << group.shift, world) {
                world.private().met(Race::AnswerTakenBack);
                self.release_now(target, addr, world);
            }
        }
        self.loans.queues.remove(&slot);
        self.loans.seen.remove(&slot);
    }

    /// Frees what waits in a slot; the first that names no allocation.
    fn empty_queue<W: World>(&mut self, slot: u32, world: &mut W) -> Option<(GAddr, u64)> {
        let mut bad = None;
        for index in 0..FREE_QUEUE {
            let at = free_queue_word(index);
            let word = section_of(slot, world)?.load(at);
            if word == 0 {
                continue;
            }
            let named =
                named_object(word).filter(|(_, shift)| *shift < self.layout.pages.page_shift());
            if let Some((addr, shift)) = named {
                let bytes = 1 << shift;
                match self.find_allocation(addr, bytes, world) {
                    Ok(target) => self.release_now(target, addr, world),
                    Err(_) if self.release_shut(addr, shift, world) => {}
                    Err(_) => _ = bad.get_or_insert((addr, bytes)),
                }
            }
            if !world.private().mutated(Mutation::FreeQueuedTwice) {
                section_of(slot, world)?.store(at, 0);
            }
        }
        bad
    }

    /// Frees what waits in all slots.
    pub(super) fn empty_queues<W: World>(&mut self, world: &mut W) {
        let slots: Vec<u32> = self.loans.queues.iter().copied().collect();
        for slot in slots {
            self.empty_queue(slot, world);
        }
    }

    /// Frees an object in a page that is shut: its new home finds it free.
    fn release_shut<W: World>(&mut self, addr: GAddr, shift: u8, world: &mut W) -> bool {
        let pages = self.layout.pages;
        let Some(frame) = self.frames.by_page.get(&pages.page(addr).0).copied() else {
            return false;
        };
        let entry = FrameEntry::load_checked(world.private(), frame);
        if entry.state != FrameState::Departing || entry.shift != shift {
            return false;
        }
        let index = (pages.offset(addr) >> shift) as u32;
        let Some((at, word)) = self.slabs.release(world.private(), frame, index) else {
            return false;
        };
        let disowned = self.sessions.disown(addr.0, &mut self.redo);
        self.redo.set(at, word);
        self.redo.commit(world);
        if let Some(record) = disowned {
            self.sessions.disowned(record);
        }
        self.quota.credit_object(frame, index);
        true
    }

    /// After an attach, for each slot that has a section, before any request is served: goes on
    /// with what the last daemon had begun there.
    pub fn recover_loans<W: World>(&mut self, slot: u32, world: &mut W) {
        let Some(section) = section_of(slot, world) else { return };
        let mut ended = Vec::new();
        for loan in 0..LOANS_MAX as u16 {
            let state = LoanState(section.load(loan_word(loan, LoanWord::Free)));
            if state.0 == 0 {
                continue;
            }
            let word = section.load(loan_word(loan, LoanWord::Group));
            let group = ObjectGroup::from_word(self.layout.pages, word);
            let group = group.filter(|group| self.find_group(*group, world).is_some());
            let Some(group) = group.filter(|group| !self.loans.places.contains_key(group)) else {
                section.store(loan_word(loan, LoanWord::Free), 0);
                continue;
            };
            let place = (slot, loan);
            if state.is_lent() {
                self.loans.insert(place, group);
                continue;
            }
            if state.taking().is_some() {
                self.loans.taking.insert(place, group);
            }
            ended.push(EndedLoan { place, group, free: state.free() });
        }
        self.loans.queues.insert(slot);
        for some in ended.chunks(ENDED_AT_ONCE) {
            self.finish_loans(some, world);
        }
        self.empty_queue(slot, world);
    }

    /// Takes loans back that their handles leave alone, and frees what waits there.
    pub(super) fn time_loans<W: World>(&mut self, now: Nanos, world: &mut W) {
        if now < self.loans.look_at || self.loans.tick_ns().is_none() {
            return;
        }
        self.loans.look_at = now.saturating_add(LOAN_IDLE_NS);
        let slots: BTreeSet<u32> = self.loans.groups.keys().map(|(slot, _)| *slot).collect();
        for slot in slots.union(&self.loans.queues.clone()) {
            let Some(sum) = self.sum_of_slot(*slot, world) else { continue };
            if self.loans.seen.insert(*slot, sum) == Some(sum) {
                self.empty_queue(*slot, world);
                let groups = self.loans.of_slot(*slot);
                self.end_loans(&groups, world);
            }
        }
    }

    /// What the words of a slot come to: another value says that its handle has used them.
    fn sum_of_slot<W: World>(&self, slot: u32, world: &W) -> Option<u64> {
        let section = section_of(slot, world)?;
        let loans = self.loans.groups.range((slot, 0)..=(slot, u16::MAX));
        let loans = loans.map(|((_, loan), _)| loan_word(*loan, LoanWord::Free));
        let words = loans.chain((0..FREE_QUEUE).map(free_queue_word));
        let add = |sum: u64, at| sum.wrapping_mul(31).wrapping_add(section.load(at));
        Some(words.fold(0, add))
    }

    /// How many objects are free in loans, and their bytes.
    pub(super) fn lent_free<W: World>(&self, world: &W) -> (u64, u64) {
        let mut free = (0, 0);
        for (place, group) in &self.loans.groups {
            let count = u64::from(free_in_loan(*place, world).count_ones());
            free = (free.0 + count, free.1 + (count << group.shift));
        }
        free
    }
}
