//! The daemon's part in an audit of the pool's allocations: what lives here by kind, which sessions
//! are in the middle of a change, and the free of what an audit found that nothing names.
//!
//! In: requests of audits, sessions that end. Out: answers, frees. A *watch* remembers which
//! allocations of the kind `Table` have lived since it began, so that an audit frees only what it
//! saw, never what has got the same address since. A run needs its generation for that, an object a
//! bit (`slab.rs`). A watch lives in this process: after a restart nothing is freed under it.
//! The word `SweepsDue` says that a session has ended in the middle of a change.

use crate::addr::GAddr;
use crate::constants::{
    AUDIT_FRAMES_MAX, AUDIT_PIECES_MAX, AUDIT_WATCHES_MAX, AUDIT_WORDS_MAX, SLOTS_MAX,
};
use crate::copies;
use crate::daemon::frames::FrameEntry;
use crate::daemon::session::Ticket;
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::layout::{AllocationKind, FrameState, SlotWord, StateWord};
use crate::persist::Persist;
use crate::seam::{Mutation, Probe};
use crate::wire::{AllocationPiece, AuditReply, AuditRequest, ChangingSession, KindTotal};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Audits {
    /// Sessions that ended in the middle of a change, as the region says.
    sweeps_due: u64,
    /// Of each watch: frames with a generation below this were in use when it began.
    generation_ends: BTreeMap<u64, u64>,
}

impl Audits {
    pub(super) fn load<W: World>(world: &W) -> Result<Audits> {
        let sweeps_due = copies::load(world.private(), StateWord::SweepsDue.offset())?;
        let mut audits = Audits { sweeps_due, generation_ends: BTreeMap::new() };
        if world.lost_power() {
            // Nothing says any more which sessions were in the middle of a change.
            audits.set_due(sweeps_due.saturating_add(1), world.private());
        }
        Ok(audits)
    }

    fn set_due<M: Persist>(&mut self, count: u64, mem: &M) {
        copies::store(mem, StateWord::SweepsDue.offset(), count);
        self.sweeps_due = count;
    }
}

impl Daemon {
    /// Sessions that ended in the middle of a change since the last sweep.
    pub fn sweeps_due(&self) -> u64 {
        self.audits.sweeps_due
    }

    /// Serves a request of an audit.
    pub(super) fn on_audit<W: World>(
        &mut self,
        request: AuditRequest,
        world: &mut W,
    ) -> Result<AuditReply> {
        match request {
            AuditRequest::Due => {}
            AuditRequest::Begin => {
                self.settle_tables(world);
                let watch = self.slabs.begin_watch(world.private(), AllocationKind::Table);
                let ends = &mut self.audits.generation_ends;
                ends.insert(watch, self.frames.generation_next());
                ends.retain(|watch, _| self.slabs.watches(*watch));
                return Ok(AuditReply::Begun { watch: self.watch_number(watch) });
            }
            AuditRequest::End { watch } => {
                if let Ok(number) = self.check_watch(watch) {
                    self.slabs.end_watch(number);
                }
            }
            AuditRequest::Pieces { watch, from } => return self.pieces(watch, from, world),
            AuditRequest::Changing => return Ok(AuditReply::Changing(self.changing(world))),
            AuditRequest::Swept { count } => {
                let left = self.audits.sweeps_due.saturating_sub(count);
                self.audits.set_due(left, world.private());
            }
        }
        Ok(AuditReply::Due { count: self.audits.sweeps_due })
    }

    /// A session ends: if it was in the middle of a change, what it held is to be looked for.
    pub(super) fn note_unfinished<W: World>(&mut self, record: u32, world: &W) {
        // Without the slot section nothing says that it was not.
        let word = (record < SLOTS_MAX).then(|| world.slot_word(record, SlotWord::Changing));
        if word.is_some_and(|word| word.is_none_or(|count| count % 2 == 1)) {
            self.audits.set_due(self.audits.sweeps_due.saturating_add(1), world.private());
        }
    }

    /// Frees an allocation if an audit has found that nothing names it.
    pub(super) fn reclaim<W: World>(
        &mut self,
        ticket: Ticket,
        addr: GAddr,
        watch: u64,
        world: &mut W,
    ) {
        // What waits to be freed is not seen as lost.
        self.settle_tables(world);
        match self.watched_bytes(addr, watch, world) {
            Ok(bytes) => self.free(ticket.of_bytes(bytes), addr, None, world),
            Err(error) => self.answer(&ticket, Err(error), world),
        }
    }

    /// How long an allocation is that has lived since a watch began.
    fn watched_bytes<W: World>(&self, addr: GAddr, watch: u64, world: &W) -> Result<u64> {
        let pages = self.layout.pages;
        let (page, offset) = (pages.page(addr), pages.offset(addr));
        let bad = |reason: &str| Error::BadFree { addr, bytes: 0, reason: reason.into() };
        let Some((frame, entry)) = self.frames.home(world.private(), page) else {
            return Err(self.not_at_home(addr, Error::NotMapped { addr }));
        };
        let number = self.check_watch(watch)?;
        if entry.kind != AllocationKind::Table {
            return Err(bad("it is no part of a table"));
        }
        if entry.shift == 0 {
            let is_old = entry.generation.0 < self.audits.generation_ends[&number];
            let is_run = entry.first && offset == 0 && is_old;
            let bytes = u64::from(entry.span) * pages.page_bytes();
            return is_run.then_some(bytes).ok_or_else(|| bad("the watch has not seen it"));
        }
        let index = offset >> entry.shift;
        let words = self.slabs.watched(number, frame).unwrap_or(&[]);
        let word = words.get(index as usize / 64).copied().unwrap_or(0);
        let is_whole = offset.is_multiple_of(1 << entry.shift);
        match is_whole && word >> (index % 64) & 1 == 1 {
            true => Ok(1 << entry.shift),
            false => Err(bad("it was freed since the watch began")),
        }
    }

    /// A number that no watch of an earlier process had.
    fn watch_number(&self, watch: u64) -> u64 {
        self.epoch << 32 | watch
    }

    fn check_watch(&self, watch: u64) -> Result<u64> {
        let number = watch & u64::from(u32::MAX);
        match self.watch_number(number) == watch && self.slabs.watches(number) {
            true => Ok(number),
            false => {
                let (what, limit) = ("the table of watches of audits".into(), AUDIT_WATCHES_MAX);
                Err(Error::Busy { what, limit: limit as u64 })
            }
        }
    }

    fn changing<W: World>(&self, world: &W) -> Vec<ChangingSession> {
        if world.private().mutated(Mutation::HideChanges) {
            return Vec::new();
        }
        let local = self.sessions.iter().filter(|info| info.record < SLOTS_MAX);
        let states = local.filter_map(|info| {
            let count = world.slot_word(info.record, SlotWord::Changing)?;
            let (session, pid) = (info.session, info.pid as u32);
            (count % 2 == 1).then_some(ChangingSession { session, pid, count })
        });
        states.collect()
    }

    fn pieces<W: World>(&self, watch: u64, from: (u32, u32), world: &W) -> Result<AuditReply> {
        let number = self.check_watch(watch)?;
        let mut totals = AllocationKind::ALL.map(|kind| KindTotal { kind, ..Default::default() });
        let mut pieces: Vec<AllocationPiece> = Vec::new();
        let mut words_left = AUDIT_WORDS_MAX;
        let end = self.frames.high.min(from.0.saturating_add(AUDIT_FRAMES_MAX));
        for frame in from.0..end {
            let first_word = if frame == from.0 { from.1 } else { 0 };
            if pieces.len() == AUDIT_PIECES_MAX || words_left == 0 {
                let (totals, next) = (totals.to_vec(), Some((frame, first_word)));
                return Ok(AuditReply::Pieces { pieces, totals, next });
            }
            // A damaged entry has no owner.
            let Ok(entry) = FrameEntry::load(world.private(), frame) else { continue };
            if entry.state != FrameState::Home {
                continue;
            }
            if first_word == 0 {
                self.add_to_totals(frame, &entry, &mut totals, world);
            }
            if entry.kind != AllocationKind::Table {
                continue;
            }
            let is_old = entry.generation.0 < self.audits.generation_ends[&number];
            let (page, shift, first) = (entry.page, entry.shift, entry.first);
            if shift == 0 {
                if first && is_old {
                    let (run_pages, first_object, objects) = (entry.span, 0, Vec::new());
                    pieces.push(AllocationPiece { page, shift, run_pages, first_object, objects });
                }
                continue;
            }
            let all = self.slabs.watched(number, frame).unwrap_or(&[]);
            let rest = all.get(first_word as usize..).unwrap_or(&[]);
            let taken = rest.len().min(words_left);
            words_left -= taken;
            let objects = rest[..taken].to_vec();
            let (run_pages, first_object) = (0, 64 * first_word);
            pieces.push(AllocationPiece { page, shift, run_pages, first_object, objects });
            if taken < rest.len() {
                let next = Some((frame, first_word + taken as u32));
                return Ok(AuditReply::Pieces { pieces, totals: totals.to_vec(), next });
            }
        }
        let next = (end < self.frames.high).then_some((end, 0));
        Ok(AuditReply::Pieces { pieces, totals: totals.to_vec(), next })
    }

    fn add_to_totals<W: World>(
        &self,
        frame: u32,
        entry: &FrameEntry,
        totals: &mut [KindTotal],
        world: &W,
    ) {
        // Versions before 8 of the layout knew of owners, not of kinds.
        let is_older = entry.kind == AllocationKind::User && entry.owner.0 != 0;
        let kind = if is_older { AllocationKind::Session } else { entry.kind };
        let total = &mut totals[kind as usize];
        if entry.shift == 0 {
            total.allocations += u64::from(entry.first);
            total.bytes += self.layout.pages.page_bytes();
        } else {
            let lent = self.lent_free_in(entry.page, world);
            let live = u64::from(self.slabs.live(frame)).saturating_sub(lent);
            total.allocations += live;
            total.bytes += live << entry.shift;
        }
    }
}
