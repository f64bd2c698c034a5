//! Frees that concern several racks: pages of a run that are at home elsewhere, and allocations
//! that a word of another rack named.
//!
//! In: frees of runs and of what words name, the master's word of what is to be freed here. Out:
//! calls, frames on their way to `Free`, answers once nothing is left anywhere.
//!
//! ```text
//! first page's home: first page Freeing -> OrphanPages -> RemovePages of the first -> AwaitGone
//! a page's home:     NextOrphans -> Freeing, table word 0 -> RemovePages
//! the word's home:   word 0 and debt -> FreeElsewhere -> debt cleared -> AwaitGone
//! the memory's home: NextOrphans -> due -> OrphansTaken -> freed and due cleared
//! ```
//!
//! A debt is stored by the record that clears the word, and cleared when the master has it. A due
//! is stored before the master forgets the allocation, and cleared by the record that frees it:
//! until then the allocation lives, so its address belongs to no other allocation, and its page
//! stays. A page id is never used twice, so a page needs no due. The first page of a run is
//! forgotten last: its entry says how many pages there are.
//! Source: DESIGN §3 (reuse only when provably no process can touch it), decision 0024.

use crate::addr::{GAddr, PageId};
use crate::constants::{COMMIT_PAGES_MAX, DEBTS_MAX, DUES_MAX, ORPHANS_RETRY_NS};
use crate::copies;
use crate::daemon::frames::FrameEntry;
use crate::daemon::session::{Outcome, Ticket};
use crate::daemon::{Daemon, World, slab, word_of};
use crate::error::{Error, Result};
use crate::layout::{DebtWord, FrameState, ResultKind, StateWord, debt_word, due_word};
use crate::seam::{Mem, Mutation, Nanos, Probe, Race};
use crate::wire::{DeferredFree, MasterCall, Reply};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pages of a freed run that are not here, which the master has not been told.
#[derive(Debug)]
struct Apart {
    first: PageId,
    pages: VecDeque<PageId>,
    is_sent: bool,
}

/// An entry of the private section, and the requests that wait for its end.
#[derive(Debug)]
struct Debt {
    entry: u32,
    orphan: DeferredFree,
    waiter: Option<Ticket>,
}

/// All that is freed together with other racks.
#[derive(Default)]
pub(super) struct DeferredFrees {
    /// By the frame of the run's first page.
    apart: BTreeMap<u32, Apart>,
    /// By number, which is the order in which they are paid.
    debts: BTreeMap<u64, Debt>,
    debt_last: u64,
    is_paying: bool,
    dues: BTreeMap<u64, Debt>,
    /// Allocations that are not here although their page is: they have no owner.
    unknown: Vec<DeferredFree>,
    is_taking: bool,
    /// Frames of others' runs with a page that the master still tells us to free.
    frames: BTreeSet<u32>,
    /// Such pages that are not here any more.
    gone: Vec<PageId>,
    is_acknowledging: bool,
    awaits: VecDeque<(Ticket, GAddr)>,
    is_asking: bool,
    /// Not to be asked again before.
    ask_at: Option<Nanos>,
    /// Whether the last answer named something that could not be freed yet.
    has_skipped: bool,
}

impl DeferredFrees {
    pub(super) fn load<M: Mem>(mem: &M) -> Result<DeferredFrees> {
        let debt_last = copies::load(mem, StateWord::DebtLast.offset())?;
        let mut orphans = DeferredFrees { debt_last, ..DeferredFrees::default() };
        for entry in 0..DEBTS_MAX as u32 {
            let Some(debt) = load_entry(entry, |word| copies::load(mem, debt_word(entry, word)))?
            else {
                continue;
            };
            let id = debt.orphan.id;
            if id == 0 || id > orphans.debt_last || orphans.debts.insert(id, debt).is_some() {
                return Err(Error::BadRegion { reason: format!("debt {entry} has number {id}") });
            }
        }
        for entry in 0..DUES_MAX as u32 {
            let Some(due) = load_entry(entry, |word| copies::load(mem, due_word(entry, word)))?
            else {
                continue;
            };
            let addr = due.orphan.addr;
            if orphans.dues.insert(addr.0, due).is_some() {
                return Err(Error::BadRegion { reason: format!("two dues are of {addr}") });
            }
        }
        Ok(orphans)
    }

    pub(super) fn needs_tick(&self) -> bool {
        self.ask_at.is_some()
    }

    /// Whether something in a range of addresses is about to be freed for others.
    pub(super) fn has_due_in(&self, range: std::ops::Range<u64>) -> bool {
        self.dues.range(range).next().is_some()
    }

    /// The master has forgotten the page of a frame.
    pub(super) fn removed(&mut self, frame: u32) {
        if self.frames.remove(&frame) {
            self.ask_soon();
        }
    }

    /// What was to be freed here is done: the next question may go out at once.
    fn ask_soon(&mut self) {
        let acknowledged = !self.is_acknowledging && self.gone.is_empty();
        let taken = !self.is_taking && self.unknown.is_empty() && self.dues.is_empty();
        if !self.has_skipped && self.frames.is_empty() && acknowledged && taken {
            self.ask_at = None;
        }
    }

    /// The lowest entry that is free.
    fn free_entry(taken: &BTreeMap<u64, Debt>, limit: usize) -> Option<u32> {
        let used: BTreeSet<u32> = taken.values().map(|debt| debt.entry).collect();
        (0..limit as u32).find(|entry| !used.contains(entry))
    }
}

fn load_entry(entry: u32, word: impl Fn(DebtWord) -> Result<u64>) -> Result<Option<Debt>> {
    let addr = GAddr(word(DebtWord::Addr)?);
    let orphan = DeferredFree { id: word(DebtWord::Id)?, addr, bytes: word(DebtWord::Bytes)? };
    Ok((!addr.is_null()).then_some(Debt { entry, orphan, waiter: None }))
}

impl Daemon {
    /// The first page of a freed run waits in its frame until the master has taken note of the
    /// pages that are elsewhere.
    pub(super) fn hold_first(&mut self, frame: u32, first: PageId, pages: Vec<PageId>) {
        self.freeing.hold(frame);
        let apart = Apart { first, pages: pages.into(), is_sent: false };
        self.orphans.apart.insert(frame, apart);
    }

    /// The next call about pages elsewhere, with its frame and how many it names.
    pub(super) fn next_apart(&mut self, probe: &impl Probe) -> Option<(u32, usize, MasterCall)> {
        let forget = probe.mutated(Mutation::ForgetApart);
        let (frame, apart) = self.orphans.apart.iter_mut().find(|(_, apart)| !apart.is_sent)?;
        apart.is_sent = true;
        let count = apart.pages.len().min(COMMIT_PAGES_MAX as usize);
        let named = if forget { 0 } else { count };
        let pages = apart.pages.iter().take(named).copied().collect();
        Some((*frame, count, MasterCall::OrphanPages { first: apart.first, pages }))
    }

    /// The master has taken note of so many pages of the run.
    pub(super) fn on_apart(&mut self, frame: u32, count: usize) {
        let apart = self.orphans.apart.get_mut(&frame).expect("a call about it was under way");
        apart.pages.drain(..count);
        apart.is_sent = false;
        if apart.pages.is_empty() {
            self.orphans.apart.remove(&frame);
            self.freeing.let_go(frame);
        }
    }

    /// Ends a free: at once, or when the other racks have shut their part.
    pub(super) fn end_free<W: World>(
        &mut self,
        ticket: Ticket,
        addr: GAddr,
        apart: bool,
        world: &mut W,
    ) {
        if apart {
            self.orphans.awaits.push_back((ticket, addr));
        } else {
            self.answer(&ticket, Ok(Reply::Freed), world);
        }
    }

    /// A free that was done and is asked for again: waits for what is left of it elsewhere.
    pub(super) fn repeat_apart(&mut self, ticket: Ticket, addr: GAddr) {
        let debt = self.orphans.debts.values_mut().find(|debt| debt.orphan.addr == addr);
        match debt {
            Some(debt) => debt.waiter = Some(ticket),
            None => self.orphans.awaits.push_back((ticket, addr)),
        }
    }

    /// Serves an admitted free of what a word names, elsewhere as far as its asker knows.
    pub(super) fn free_apart<W: World>(&mut self, ticket: Ticket, addr: GAddr, world: &mut W) {
        let at = match self.locate_word(ticket.word, world) {
            Ok(at) => at,
            Err(error) => return self.answer(&ticket, Err(error), world),
        };
        let found = word_of(world.pages(), at);
        if found != addr.0 {
            let error = Error::Occupied { addr: ticket.word, found };
            return self.answer(&ticket, Err(error), world);
        }
        if !self.is_apart(addr, world) || ticket.bytes == 0 {
            return self.free(ticket, addr, Some(at), world);
        }
        let Some(entry) = DeferredFrees::free_entry(&self.orphans.debts, DEBTS_MAX) else {
            let what = "the frees that a rack owes others".into();
            let error = Error::Busy { what, limit: DEBTS_MAX as u64 };
            return self.answer(&ticket, Err(error), world);
        };
        let id = self.orphans.debt_last + 1;
        let orphan = DeferredFree { id, addr, bytes: ticket.bytes };
        if !world.private().mutated(Mutation::ForgetDebt) {
            self.redo.set(debt_word(entry, DebtWord::Bytes), orphan.bytes);
            self.redo.set(debt_word(entry, DebtWord::Id), id);
            self.redo.set(debt_word(entry, DebtWord::Addr), addr.0);
        }
        self.redo.set(StateWord::DebtLast.offset(), id);
        self.redo.set_page(at, 0);
        let outcome = Outcome { kind: ResultKind::Freed, value: addr.0, bytes: ticket.bytes };
        let (record, seq) = (ticket.record, ticket.seq);
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        self.orphans.debt_last = id;
        if world.private().mutated(Mutation::ForgetDebt) {
            return self.answer(&ticket, Ok(Reply::Freed), world);
        }
        let debt = Debt { entry, orphan, waiter: Some(ticket) };
        self.orphans.debts.insert(id, debt);
    }

    /// Whether an address is of a page that could be at home in another rack.
    pub(super) fn is_apart<W: World>(&self, addr: GAddr, world: &W) -> bool {
        let page = self.layout.pages.page(addr);
        let is_page = page.0 != 0 && page <= self.layout.pages.page_id_max();
        let is_here = self.is_spilled(page) || self.frames.home(world.private(), page).is_some();
        is_page && !is_here
    }

    /// The next payment: all debts in order, with the number of the last.
    pub(super) fn next_payment(&mut self) -> Option<(u64, MasterCall)> {
        let last = *self.orphans.debts.last_key_value().filter(|_| !self.orphans.is_paying)?.0;
        self.orphans.is_paying = true;
        let debts = self.orphans.debts.values().map(|debt| debt.orphan).collect();
        Some((last, MasterCall::FreeElsewhere { debts }))
    }

    /// The master has the debts up to a number.
    pub(super) fn on_paid<W: World>(&mut self, last: u64, world: &mut W) {
        self.orphans.is_paying = false;
        while let Some(first) = self.orphans.debts.first_entry()
            && *first.key() <= last
        {
            let Debt { entry, orphan, waiter } = first.remove();
            copies::store(world.private(), debt_word(entry, DebtWord::Addr), 0);
            if let Some(ticket) = waiter {
                // An object's address may be handed out again; a page's is an error for ever.
                let whole = slab::class_shift(&self.layout, orphan.bytes).is_none();
                self.end_free(ticket, orphan.addr, whole, world);
            }
        }
    }

    /// The next question for what is to be freed here.
    pub(super) fn next_question_for_orphans(&mut self) -> Option<MasterCall> {
        if self.orphans.is_asking || self.orphans.ask_at.is_some() {
            return None;
        }
        self.orphans.is_asking = true;
        Some(MasterCall::NextOrphans)
    }

    /// Asks again when it is time.
    pub(super) fn time_orphans(&mut self, now: Nanos) {
        if self.orphans.ask_at.is_some_and(|at| at <= now) {
            self.orphans.ask_at = None;
        }
    }

    /// What is to be freed here. Nothing of it is kept in memory: what cannot be done now is told
    /// again, by where its page is then.
    pub(super) fn on_orphans<W: World>(
        &mut self,
        now: Nanos,
        pages: &[PageId],
        allocations: &[DeferredFree],
        world: &mut W,
    ) {
        self.orphans.is_asking = false;
        self.orphans.has_skipped = false;
        for page in pages {
            let freed = self.free_orphan_page(*page, world);
            self.orphans.has_skipped |= !freed;
        }
        for orphan in allocations {
            let taken = self.take_due(*orphan, world);
            self.orphans.has_skipped |= !taken;
        }
        self.orphans.ask_at = Some(now.saturating_add(ORPHANS_RETRY_NS));
        self.orphans.ask_soon();
    }

    /// A page of a run that was freed elsewhere; whether it is on its way.
    fn free_orphan_page<W: World>(&mut self, page: PageId, world: &mut W) -> bool {
        world.private().met(Race::OrphanFound);
        let Some(frame) = self.frames.by_page.get(&page.0).copied() else {
            if !self.orphans.gone.contains(&page) {
                self.orphans.gone.push(page);
            }
            return true;
        };
        // Its mover's commit is refused by now.
        self.give_up_moving(frame, world);
        let entry = FrameEntry::load_checked(world.private(), frame);
        if entry.state != FrameState::Home {
            return entry.state == FrameState::Freeing;
        }
        self.uncount(frame, &entry);
        self.orphans.frames.insert(frame);
        self.start_freeing(&[frame], None, world);
        true
    }

    /// An allocation that a word of another rack named; whether it is noted.
    fn take_due<W: World>(&mut self, orphan: DeferredFree, world: &mut W) -> bool {
        let DeferredFree { id, addr, bytes } = orphan;
        if let Some(due) = self.orphans.dues.get(&addr.0) {
            return due.orphan.id == id;
        }
        // What is not in memory is told again when it is.
        let page = self.layout.pages.page(addr);
        if self.is_spilled(page) {
            self.want_back(page);
            return false;
        }
        if self.is_apart(addr, world) {
            return false;
        }
        world.private().met(Race::OrphanFound);
        if self.find_allocation(addr, bytes, world).is_err() {
            // It was freed by its address as well.
            if !self.orphans.unknown.contains(&orphan) {
                self.orphans.unknown.push(orphan);
            }
            return true;
        }
        let Some(entry) = DeferredFrees::free_entry(&self.orphans.dues, DUES_MAX) else {
            return false;
        };
        let mem = world.private();
        copies::store(mem, due_word(entry, DebtWord::Bytes), bytes);
        copies::store(mem, due_word(entry, DebtWord::Id), id);
        copies::store(mem, due_word(entry, DebtWord::Addr), addr.0);
        self.orphans.dues.insert(addr.0, Debt { entry, orphan, waiter: None });
        true
    }

    /// The next acknowledgement of allocations: what is due, and what is not there.
    pub(super) fn next_taking(&mut self) -> Option<(Vec<DeferredFree>, MasterCall)> {
        if self.orphans.is_taking {
            return None;
        }
        let dues = self.orphans.dues.values().map(|due| due.orphan);
        let unknown = std::mem::take(&mut self.orphans.unknown);
        let mut orphans: Vec<DeferredFree> = dues.chain(unknown).collect();
        self.orphans.unknown = orphans.split_off(orphans.len().min(DUES_MAX));
        if orphans.is_empty() {
            return None;
        }
        self.orphans.is_taking = true;
        Some((orphans.clone(), MasterCall::OrphansTaken { orphans }))
    }

    /// The master has forgotten these: what is due is freed now.
    pub(super) fn on_taken<W: World>(&mut self, orphans: &[DeferredFree], world: &mut W) {
        self.orphans.is_taking = false;
        for orphan in orphans {
            let addr = orphan.addr;
            let due = self.orphans.dues.get(&addr.0);
            if due.is_none_or(|due| due.orphan.id != orphan.id) {
                continue;
            }
            let due = self.orphans.dues.remove(&addr.0).expect("it was found above");
            let entry = due_word(due.entry, DebtWord::Addr);
            match self.find_allocation(addr, orphan.bytes, world) {
                Ok(target) => {
                    self.redo.set(entry, 0);
                    self.release_now(target, addr, world);
                }
                // It was taken back, or freed by its address as well.
                Err(_) => copies::store(world.private(), entry, 0),
            }
        }
        self.orphans.ask_soon();
    }

    /// Pages to be acknowledged that are not here.
    pub(super) fn next_gone(&mut self) -> Option<MasterCall> {
        if self.orphans.is_acknowledging || self.orphans.gone.is_empty() {
            return None;
        }
        self.orphans.is_acknowledging = true;
        let count = self.orphans.gone.len().min(COMMIT_PAGES_MAX as usize);
        let pages = self.orphans.gone.drain(..count).collect();
        Some(MasterCall::RemovePages { rack: self.rack, pages })
    }

    /// The master knows that they are not here.
    pub(super) fn on_gone(&mut self) {
        self.orphans.is_acknowledging = false;
        self.orphans.ask_soon();
    }

    /// The next wait for other racks.
    pub(super) fn next_await(&mut self, probe: &impl Probe) -> Option<(Ticket, MasterCall)> {
        while let Some((ticket, addr)) = self.orphans.awaits.pop_front() {
            if self.sessions.waits(&ticket, probe) {
                return Some((ticket, MasterCall::AwaitGone { addr, bytes: ticket.bytes }));
            }
        }
        None
    }

    /// Whether a free waits for other racks and the master was not asked.
    pub(super) fn wants_await(&self) -> bool {
        !self.orphans.awaits.is_empty()
    }
}
