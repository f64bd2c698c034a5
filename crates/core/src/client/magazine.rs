//! Objects that this handle hands out itself: loans of the daemons that it has a slot at, by size
//! and kind, and frees of others' objects that wait in the slot.
//!
//! In: allocations and frees, what daemons lend. Out: addresses, zeroed; requests for batches. What
//! is free is said by the slot alone (`loan.rs`); here is where to look. A loan that its daemon has
//! ended is noticed when it is looked at. A handle begins with batches after some single requests.
//!
//! Only what this handle got is freed into a loan (from loans, or for itself before them): the quota
//! counts for the one that got it, and a second free of it is noticed at once. Other frees wait in
//! the slot, stored under an announcement of their page, so that it does not leave without them.

use super::{Access, Client, LinkId, Reach};
use crate::addr::{GAddr, PageGeometry};
use crate::constants::{
    FREE_QUEUE, LEND_GROUPS_MAX, LEND_OBJECTS_MAX, LOAN_SHIFT_MAX, LOANS_MAX, LOANS_RETURNED_MAX,
    MAGAZINE_BEGIN, MAGAZINE_BYTES_MAX, SLAB_SHIFT_MIN,
};
use crate::error::{Error, Result};
use crate::layout::{AllocationKind, LoanWord, SLOT_BYTES, free_queue_word, loan_word};
use crate::loan::{LoanState, ObjectGroup, object_word, objects_in_group};
use crate::seam::{Mem, Mutation, Rare};
use crate::wire::{LentGroup, LoanRequest, PageHome};

/// Places of the index: four for each loan, so that few are looked at.
const INDEX: usize = 4 * LOANS_MAX as usize;
/// Objects of the first batch.
const FIRST_BATCH: u32 = 16;
/// Objects that were asked for one by one and are remembered: those before the first batches.
const SINGLES_MAX: usize = 64;

/// What came of an allocation without a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    Taken(GAddr),
    /// The place of its page is not known.
    Unknown(GAddr),
    /// Nothing is lent that would do.
    Nothing,
}

/// What came of a free without a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalFree {
    Done,
    /// It is done, and more is free here than the handle should keep.
    DoneOver(LinkId),
    /// The queue of the slot behind the link has to be opened or emptied first.
    QueueFull(LinkId),
    /// The daemon is to be asked.
    Ask,
    Bad(Error),
}

#[derive(Clone, Copy, Debug)]
struct HeldLoan {
    group: ObjectGroup,
    /// Its size and kind, by number.
    class: usize,
    /// The objects that this handle got, one bit each.
    mine: u32,
    /// Whether its class has it among those to look at.
    is_listed: bool,
}

#[derive(Debug)]
struct SizeClass {
    shift: u8,
    kind: AllocationKind,
    /// Loans with objects that may be free, the next to look at last.
    listed: Vec<u16>,
    /// Objects that the daemon was asked for one by one.
    asked: u32,
    batch: u32,
}

/// What this handle has of one slot.
#[derive(Debug, Default)]
pub(super) struct Magazine {
    loans: Vec<Option<HeldLoan>>,
    count: usize,
    /// The loan of a group: its number plus one, near the hash of the group.
    index: Vec<u16>,
    classes: Vec<SizeClass>,
    /// Objects that the daemon gave one by one, while their groups are not lent: a few of them.
    singles: Vec<GAddr>,
    /// Loans that the daemon is to end.
    ending: Vec<u16>,
    /// What is free, at most: the daemon may have ended some.
    free_bytes: u64,
    next_in_queue: u32,
    is_queue_open: bool,
    /// Frees of others' objects by a request each.
    frees: u32,
}

/// log2 of the object that serves an allocation, if such are lent.
#[inline]
fn lent_shift(pages: PageGeometry, bytes: u64) -> Option<u8> {
    let largest = LOAN_SHIFT_MAX.min(pages.page_shift() - 1);
    if bytes == 0 || bytes > 1 << largest {
        return None;
    }
    let shift = bytes.next_power_of_two().trailing_zeros() as u8;
    Some(shift.max(SLAB_SHIFT_MIN))
}

#[inline]
fn place_of(word: u64) -> usize {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % INDEX
}

impl Magazine {
    #[inline]
    fn find(&self, group: ObjectGroup) -> Option<u16> {
        if self.index.is_empty() {
            return None;
        }
        let mut place = place_of(group.word());
        while let Some(loan) = self.index[place].checked_sub(1) {
            if self.loans[loan as usize].is_some_and(|held| held.group == group) {
                return Some(loan);
            }
            place = (place + 1) % INDEX;
        }
        None
    }

    fn insert(&mut self, loan: u16, held: HeldLoan) {
        if self.index.is_empty() {
            (self.loans, self.index) = (vec![None; LOANS_MAX as usize], vec![0; INDEX]);
        }
        self.remove(loan);
        self.loans[loan as usize] = Some(held);
        self.count += 1;
        self.put_in_index(loan, held.group);
        let listed = &mut self.classes[held.class].listed;
        listed.push(loan);
        // So that what is freed later finds room.
        listed.reserve(self.count.saturating_sub(listed.len()));
    }

    fn put_in_index(&mut self, loan: u16, group: ObjectGroup) {
        let mut place = place_of(group.word());
        while self.index[place] != 0 {
            place = (place + 1) % INDEX;
        }
        self.index[place] = loan + 1;
    }

    fn remove(&mut self, loan: u16) {
        let Some(held) = self.loans[loan as usize].take() else { return };
        self.count -= 1;
        if held.is_listed {
            self.classes[held.class].listed.retain(|other| *other != loan);
        }
        // What came behind it for want of its place may go to its place.
        let mut place = place_of(held.group.word());
        while self.index[place] != loan + 1 {
            place = (place + 1) % INDEX;
        }
        self.index[place] = 0;
        loop {
            place = (place + 1) % INDEX;
            let Some(other) = self.index[place].checked_sub(1) else { break };
            self.index[place] = 0;
            let group =
                self.loans[other as usize].expect("the index has loans that are held").group;
            self.put_in_index(other, group);
        }
    }

    /// Which of a group's objects the daemon gave one by one.
    fn take_singles(&mut self, group: ObjectGroup, objects: u32) -> u32 {
        let mut bits = 0;
        let end = group.object(objects);
        self.singles.retain(|addr| {
            let is_inside = (group.addr..end).contains(addr);
            if is_inside {
                bits |= group.index_of(*addr).map_or(0, |index| 1 << index);
            }
            !is_inside
        });
        bits
    }

    /// The first of the loans to end have ended.
    fn ended(&mut self) {
        let count = self.ending.len().min(LOANS_RETURNED_MAX);
        self.ending.drain(..count);
    }

    /// The number of a size and kind.
    fn class(&mut self, shift: u8, kind: AllocationKind) -> usize {
        match self.find_class(shift, kind) {
            Some(class) => class,
            None => {
                let (listed, asked, batch) = (Vec::new(), 0, FIRST_BATCH);
                self.classes.push(SizeClass { shift, kind, listed, asked, batch });
                self.classes.len() - 1
            }
        }
    }

    #[inline]
    fn find_class(&self, shift: u8, kind: AllocationKind) -> Option<usize> {
        self.classes.iter().position(|class| class.shift == shift && class.kind == kind)
    }

    fn list(&mut self, loan: u16) {
        if let Some(held) = &mut self.loans[loan as usize]
            && !held.is_listed
        {
            held.is_listed = true;
            self.classes[held.class].listed.push(loan);
        }
    }

    /// Nothing is to be looked for in a loan until something is freed there.
    fn unlist(&mut self, loan: u16) {
        if let Some(held) = &mut self.loans[loan as usize] {
            held.is_listed = false;
            self.classes[held.class].listed.retain(|other| *other != loan);
        }
    }

    /// Loans to end, by how much is free in each: those with most, until so many bytes are left; or
    /// those with nothing.
    fn choose_ending<M: Mem>(&mut self, slot: &M, left_bytes: Option<u64>) {
        let held = self.loans.iter().enumerate().filter_map(|(loan, held)| Some((loan, (*held)?)));
        let mut free: Vec<(u64, u16)> = held
            .map(|(loan, held)| {
                let word = slot.load(loan_word(loan as u16, LoanWord::Free));
                let count = u64::from(LoanState(word).free().count_ones());
                (count << held.group.shift, loan as u16)
            })
            .collect();
        free.sort_unstable();
        self.free_bytes = free.iter().map(|(bytes, _)| bytes).sum();
        let room = LOANS_RETURNED_MAX - self.ending.len().min(LOANS_RETURNED_MAX);
        let chosen: Vec<(u64, u16)> = match left_bytes {
            Some(left_bytes) => {
                let mut bytes = self.free_bytes;
                let is_over = |(free, _): &&(u64, u16)| {
                    let is_over = bytes > left_bytes;
                    bytes -= free;
                    is_over
                };
                free.iter().rev().take_while(is_over).take(room).copied().collect()
            }
            None => free.iter().take_while(|(free, _)| *free == 0).take(room).copied().collect(),
        };
        for (bytes, loan) in chosen {
            self.free_bytes -= bytes;
            self.remove(loan);
            self.ending.push(loan);
        }
    }
}

impl<M: Mem> Client<M> {
    /// The slot of a mapped rack that lends, and what this handle has of it.
    #[inline]
    fn lender(&mut self, link: LinkId) -> Option<(&M, &mut Magazine)> {
        let Reach::Mapped(view) = &self.links[link.0 as usize].reach else { return None };
        if !view.slot.is_coherent() || view.slot.bytes() < SLOT_BYTES || self.refuses_loans {
            return None;
        }
        if self.magazines.len() <= link.0 as usize {
            self.magazines.resize_with(link.0 as usize + 1, Magazine::default);
        }
        Some((&view.slot, &mut self.magazines[link.0 as usize]))
    }

    /// Every object is asked for: this handle has no right to zero it.
    pub fn refuse_loans(&mut self) {
        self.refuses_loans = true;
    }

    /// Hands out an object of a rack without a message, if one is lent.
    #[inline]
    pub fn take_object(&mut self, link: LinkId, bytes: u64, kind: AllocationKind) -> Take {
        let Some(shift) = lent_shift(self.geometry, bytes) else { return Take::Nothing };
        loop {
            let (loan, index, addr) = match self.reserve(link, shift, kind) {
                Ok(reserved) => reserved,
                Err(take) => return take,
            };
            let unzeroed = self.mutated(Mutation::TakeUnzeroed);
            let zeroed = self.warm(addr, 1 << shift, Access::Write, |pages, offset| {
                if !unzeroed {
                    pages.zero(offset, 1 << shift);
                }
            });
            let Some((slot, magazine)) = self.lender(link) else { return Take::Nothing };
            let at = loan_word(loan, LoanWord::Free);
            if zeroed.is_ok() {
                slot.fetch_add(at, LoanState::taken(index));
                return Take::Taken(addr);
            }
            // Its page has replicas by now. It is free again; if the loan has ended, with the
            // session.
            let state = LoanState(slot.load(at));
            if state.is_lent() {
                let _ = slot.compare_exchange(at, state.0, state.put(index).0);
            }
            magazine.unlist(loan);
        }
    }

    /// Names a free object as the one that is being handed out: its loan, its number there, its
    /// address.
    #[inline]
    fn reserve(
        &mut self,
        link: LinkId,
        shift: u8,
        kind: AllocationKind,
    ) -> std::result::Result<(u16, u32, GAddr), Take> {
        let takes_unlent = self.mutated(Mutation::TakeUnlent);
        let Self { links, magazines, translations, geometry, .. } = self;
        let magazine = magazines.get_mut(link.0 as usize).ok_or(Take::Nothing)?;
        let class = magazine.find_class(shift, kind).ok_or(Take::Nothing)?;
        let Reach::Mapped(view) = &links[link.0 as usize].reach else { return Err(Take::Nothing) };
        while let Some(&loan) = magazine.classes[class].listed.last() {
            let held = magazine.loans[loan as usize].as_mut().expect("what is listed is held");
            let at = loan_word(loan, LoanWord::Free);
            let state = LoanState(view.slot.load(at));
            if !state.is_lent() {
                if takes_unlent && held.mine != 0 {
                    let index = held.mine.trailing_zeros();
                    return Ok((loan, index, held.group.object(index)));
                }
                magazine.remove(loan);
                continue;
            }
            if state.free() == 0 {
                held.is_listed = false;
                magazine.classes[class].listed.pop();
                continue;
            }
            let index = state.free().trailing_zeros();
            let addr = held.group.object(index);
            if translations.get(geometry.page(addr)).is_none() {
                return Err(Take::Unknown(addr));
            }
            // It fails only if the daemon has ended the loan.
            if view.slot.compare_exchange(at, state.0, state.take(index).0).is_ok() {
                held.mine |= 1 << index;
                magazine.free_bytes = magazine.free_bytes.saturating_sub(1 << shift);
                return Ok((loan, index, addr));
            }
        }
        Err(Take::Nothing)
    }

    /// Frees an object without a message, if this handle got it from a loan that goes on, or if its
    /// free may wait in the slot.
    #[inline]
    pub fn free_object(&mut self, addr: GAddr, bytes: u64) -> LocalFree {
        let pages = self.geometry;
        let shift = lent_shift(pages, bytes);
        let group = shift.and_then(|shift| ObjectGroup::with(pages, addr, shift));
        let link = self.translations.get(pages.page(addr)).map(|entry| entry.link);
        let (Some(group), Some(link)) = (group, link) else { return LocalFree::Ask };
        let Some((slot, magazine)) = self.lender(link) else { return LocalFree::Ask };
        let Some(loan) = magazine.find(group) else {
            magazine.singles.retain(|single| *single != addr);
            return self.queue_free(link, addr, group.shift);
        };
        let mine = magazine.loans[loan as usize].map_or(0, |held| held.mine);
        let Some(index) = group.index_of(addr) else { return LocalFree::Ask };
        let at = loan_word(loan, LoanWord::Free);
        loop {
            let state = LoanState(slot.load(at));
            if !state.is_lent() {
                magazine.remove(loan);
                break;
            }
            if mine >> index & 1 == 0 {
                break;
            }
            if state.free() >> index & 1 == 1 {
                let reason = "the object there was freed, or never handed out".into();
                return LocalFree::Bad(Error::BadFree { addr, bytes, reason });
            }
            // As above.
            if slot.compare_exchange(at, state.0, state.0 | 1 << index).is_ok() {
                magazine.list(loan);
                magazine.free_bytes += 1 << group.shift;
                return match magazine.free_bytes > MAGAZINE_BYTES_MAX {
                    true => LocalFree::DoneOver(link),
                    false => LocalFree::Done,
                };
            }
        }
        self.queue_free(link, addr, group.shift)
    }

    /// Leaves a free in the slot of a rack.
    fn queue_free(&mut self, link: LinkId, addr: GAddr, shift: u8) -> LocalFree {
        let begins = self.rare(Rare::BatchAtOnce);
        let Some((slot, magazine)) = self.lender(link) else { return LocalFree::Ask };
        if !addr.0.is_multiple_of(1 << shift) {
            return LocalFree::Ask;
        }
        if !magazine.is_queue_open {
            magazine.frees += 1;
            return match magazine.frees > MAGAZINE_BEGIN || begins {
                true => LocalFree::QueueFull(link),
                false => LocalFree::Ask,
            };
        }
        let index = magazine.next_in_queue;
        let at = free_queue_word(index);
        if slot.load(at) != 0 {
            return LocalFree::QueueFull(link);
        }
        let Reach::Mapped(view) = self.reach(link) else { return LocalFree::Ask };
        let stored = self.warm(addr, 1 << shift, Access::Write, |_, _| {
            view.slot.store(at, object_word(addr, shift));
        });
        if stored.is_err() {
            return LocalFree::Ask;
        }
        self.magazines[link.0 as usize].next_in_queue = (index + 1) % FREE_QUEUE;
        LocalFree::Done
    }

    /// The daemon behind a link has freed what waited in the slot, or lets nothing wait there.
    pub(super) fn queue_emptied(&mut self, link: LinkId, is_open: bool) {
        if let Some((_, magazine)) = self.lender(link) {
            (magazine.is_queue_open, magazine.frees) = (is_open, 0);
        }
    }

    /// What to ask a rack for, if it is time for a batch.
    pub(super) fn lend_request(
        &mut self,
        link: LinkId,
        bytes: u64,
        kind: AllocationKind,
    ) -> Option<LoanRequest> {
        let shift = lent_shift(self.geometry, bytes)?;
        let begins = self.rare(Rare::BatchAtOnce);
        let (slot, magazine) = self.lender(link)?;
        let class = magazine.class(shift, kind);
        let asked = &mut magazine.classes[class].asked;
        *asked += 1;
        if *asked <= MAGAZINE_BEGIN && !begins {
            return None;
        }
        if magazine.count + LEND_GROUPS_MAX > LOANS_MAX as usize {
            magazine.choose_ending(slot, None);
        }
        let batch = &mut magazine.classes[class].batch;
        let objects = *batch;
        *batch = (2 * objects).min(LEND_OBJECTS_MAX);
        let ended = magazine.ending.iter().take(LOANS_RETURNED_MAX).copied().collect();
        Some(LoanRequest::Lend { bytes, kind, objects, ended })
    }

    /// Takes note of what was lent for [`Client::lend_request`]; whether it was anything.
    ///
    /// # Errors
    /// `protocol` if it makes no sense.
    pub(super) fn on_lent(
        &mut self,
        link: LinkId,
        bytes: u64,
        kind: AllocationKind,
        groups: &[LentGroup],
    ) -> Result<bool> {
        let (pages, rack) = (self.geometry, self.rack_of(link));
        let shift = lent_shift(pages, bytes).unwrap_or(SLAB_SHIFT_MIN);
        for LentGroup { loan, addr, frame, generation } in groups {
            let group = ObjectGroup::with(pages, *addr, shift).filter(|group| group.addr == *addr);
            let Some(group) = group.filter(|_| u32::from(*loan) < LOANS_MAX) else {
                let reason = format!("loan {loan} of objects at {addr}");
                return Err(Error::Protocol { peer: format!("daemon of rack {rack}"), reason });
            };
            let (frame, generation) = (*frame, *generation);
            self.install(link, &[PageHome { page: pages.page(*addr), rack, frame, generation }])?;
            let Some((slot, magazine)) = self.lender(link) else { return Ok(false) };
            let free = LoanState(slot.load(loan_word(*loan, LoanWord::Free))).free();
            let class = magazine.class(shift, kind);
            let mine = free | magazine.take_singles(group, objects_in_group(pages, shift));
            magazine.insert(*loan, HeldLoan { group, class, mine, is_listed: true });
            magazine.free_bytes += u64::from(free.count_ones()) << shift;
        }
        let Some((_, magazine)) = self.lender(link) else { return Ok(false) };
        if groups.is_empty() {
            // It asks one by one again for a while.
            let class = magazine.class(shift, kind);
            magazine.classes[class].asked = 0;
        }
        magazine.ended();
        Ok(!groups.is_empty())
    }

    /// The daemon behind a link gave an object for itself.
    pub(super) fn note_single(&mut self, link: LinkId, addr: GAddr, bytes: u64) {
        let is_lent = lent_shift(self.geometry, bytes).is_some();
        if let Some((_, magazine)) = self.lender(link).filter(|_| is_lent)
            && magazine.singles.len() < SINGLES_MAX
        {
            magazine.singles.push(addr);
        }
    }

    /// What to give back of too much that is free.
    pub(super) fn end_request(&mut self, link: LinkId) -> Option<LoanRequest> {
        let (slot, magazine) = self.lender(link)?;
        magazine.choose_ending(slot, Some(MAGAZINE_BYTES_MAX / 2));
        let loans: Vec<u16> = magazine.ending.iter().take(LOANS_RETURNED_MAX).copied().collect();
        (!loans.is_empty()).then_some(LoanRequest::End { loans })
    }

    /// The daemon has ended the loans of the last request.
    pub(super) fn on_ended(&mut self, link: LinkId) {
        if let Some((_, magazine)) = self.lender(link) {
            magazine.ended();
        }
    }

    /// The slot behind a link was taken up again: what was lent there in an answer that got lost is
    /// given back.
    pub(super) fn review_loans(&mut self, link: LinkId) {
        let Some((slot, magazine)) = self.lender(link).filter(|(_, one)| !one.loans.is_empty())
        else {
            return;
        };
        let is_lent = |loan: &u16| {
            LoanState(slot.load(loan_word(*loan, LoanWord::Free))).is_lent()
                && magazine.loans[*loan as usize].is_none()
        };
        let lost: Vec<u16> = (0..LOANS_MAX as u16).filter(is_lent).collect();
        magazine.ending.extend(lost);
        magazine.ending.sort_unstable();
        magazine.ending.dedup();
    }

    /// The region behind a link was replaced: nothing is lent there.
    pub(super) fn forget_loans(&mut self, link: LinkId) {
        if let Some(magazine) = self.magazines.get_mut(link.0 as usize) {
            *magazine = Magazine::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn loans_are_found_by_their_groups_however_many_come_and_go() {
        let mut magazine = Magazine::default();
        let class = magazine.class(SLAB_SHIFT_MIN, AllocationKind::User);
        let mut held = BTreeMap::new();
        let mut random = 7_u64;
        for step in 1..20_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let loan = (random % u64::from(LOANS_MAX)) as u16;
            let group = ObjectGroup { addr: GAddr(step << 11), shift: SLAB_SHIFT_MIN };
            magazine.insert(loan, HeldLoan { group, class, mine: 0, is_listed: true });
            held.insert(loan, group);
            if random >> 40 & 3 == 0 {
                magazine.remove(loan);
                held.remove(&loan);
            }
            if step % 500 == 0 {
                for (loan, group) in &held {
                    assert_eq!(magazine.find(*group), Some(*loan), "step {step}");
                }
                let listed: BTreeMap<u16, ()> =
                    magazine.classes[class].listed.iter().map(|loan| (*loan, ())).collect();
                assert!(listed.keys().eq(held.keys()) && magazine.count == held.len());
            }
        }
        let never = ObjectGroup { addr: GAddr(1 << 50), shift: SLAB_SHIFT_MIN };
        assert_eq!(magazine.find(never), None);
    }
}
