//! Allocation: objects in slab pages, runs of whole pages, and the jobs that bring new pages in.
//!
//! In: requests admitted by `mod.rs`, acknowledgements of the master. Out: answers. A job takes
//! frames and page ids, marks the frames `Pending`, backs them step by step, has the master commit
//! the homes chunk by chunk, and then makes them `Home`:
//!
//! - a slab page by one store; requests that wanted it take their objects afterwards, each with a
//!   redo record of its own (bitmap word and result);
//! - a run by one redo record (first page `Home` and result), then a store for each later page.
//!   Attach lets the first page decide for all: before the record the whole run is rolled back,
//!   after it the whole run is there.
//!
//! A request may name a word: the address is stored there by the same redo record. Whether the
//! word is there and 0 is looked at when the request comes and again in the step that commits.
//!
//! Source: Rcmp §5.1; DESIGN §2 (memory is backed before it is handed out, zero on allocation).

use crate::addr::{FrameIndex, GAddr, Generation, PageId, SessionId};
use crate::coherence;
use crate::constants::{
    BACKING_STEP_BYTES, BACKING_STEP_FRAMES_MAX, COMMIT_PAGES_MAX, RUN_PAGES_MAX,
};
use crate::copies;
use crate::daemon::frames::{FrameEntry, back_metadata, state_offset};
use crate::daemon::persist::persist_pages;
use crate::daemon::session::{Outcome, Ticket};
use crate::daemon::slab::Class;
use crate::daemon::{Daemon, World, set_table, slab, word_of};
use crate::error::{Error, Result};
use crate::layout::{FrameState, ResultKind, StateWord, table_word};
use crate::seam::{ByteRange, Mem, Mutation, Probe, Race, Rare};
use crate::wire::{PageHome, Reply};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// What became of an allocation for the moment.
#[derive(Debug)]
pub(super) enum AllocOutcome {
    Answer(Result<Reply>),
    /// A job will answer it.
    Joined,
    /// It needs frames or page ids that are not there yet.
    Waits,
}

/// What is to become of a job's pages.
#[derive(Debug)]
enum JobPurpose {
    /// One slab page, and the requests that wait for its objects.
    Slab { class: Class, waiters: Vec<Ticket> },
    /// A run of whole pages.
    Run(Ticket),
}

/// New pages that a request needs.
#[derive(Debug)]
struct NewPages {
    count: u32,
    /// Where their frames are to come from.
    range: Range<u32>,
    purpose: JobPurpose,
}

/// New pages on their way.
#[derive(Debug)]
struct Job {
    frames: Vec<u32>,
    first_page: u64,
    first_generation: u64,
    /// Frames that have memory, and of these, those queued to be committed.
    backed: usize,
    queued: usize,
    committed: usize,
    purpose: JobPurpose,
}

/// Jobs and the requests that wait for room.
pub(super) struct Allocations {
    jobs: BTreeMap<u64, Job>,
    next_job: u64,
    /// Jobs with frames that are being backed, in order.
    backing: VecDeque<u64>,
    /// Chunks (job, from, to) that the master is to commit.
    commits: VecDeque<(u64, usize, usize)>,
    /// Requests that wait for frames or page ids, in order; at most one a session.
    waiting: VecDeque<Ticket>,
}

impl Allocations {
    pub(super) fn new() -> Allocations {
        Allocations {
            jobs: BTreeMap::new(),
            next_job: 1,
            backing: VecDeque::new(),
            commits: VecDeque::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Whether a job waits for its next step of backing.
    pub(super) fn is_backing(&self) -> bool {
        !self.backing.is_empty()
    }
}

impl Daemon {
    /// Serves an admitted request for memory, unless the rack wants to be empty.
    pub(super) fn alloc_if_it_stays<W: World>(&mut self, ticket: Ticket, world: &mut W) {
        match self.check_gives_memory(world.private()) {
            Ok(()) => self.alloc(ticket, world),
            Err(error) => self.answer(&ticket, Err(error), world),
        }
    }

    /// Serves an admitted request for memory.
    pub(super) fn alloc<W: World>(&mut self, ticket: Ticket, world: &mut W) {
        let limit_bytes = u64::from(RUN_PAGES_MAX) * self.layout.pages.page_bytes();
        if ticket.bytes == 0 || ticket.bytes > limit_bytes {
            let error = Error::BadSize { bytes: ticket.bytes, limit_bytes };
            return self.answer(&ticket, Err(error), world);
        }
        let first = self.allocations.waiting.is_empty();
        match self.try_alloc(&ticket, first, world) {
            AllocOutcome::Answer(reply) => self.answer(&ticket, reply, world),
            AllocOutcome::Joined => {}
            AllocOutcome::Waits => self.allocations.waiting.push_back(ticket),
        }
    }

    /// Serves, in order, the requests that wait for frames or page ids. Objects from pages that are
    /// there are given to all of them, frames only to the first.
    pub(super) fn serve_waiting<W: World>(&mut self, world: &mut W) {
        if self.allocations.waiting.is_empty() {
            return;
        }
        let mut queue = std::mem::take(&mut self.allocations.waiting);
        let mut first = true;
        while let Some(ticket) = queue.pop_front() {
            if !self.sessions.waits(&ticket, world.private()) {
                continue;
            }
            match self.try_alloc(&ticket, first, world) {
                AllocOutcome::Answer(reply) => self.answer(&ticket, reply, world),
                AllocOutcome::Joined => {}
                AllocOutcome::Waits => {
                    first = false;
                    self.allocations.waiting.push_back(ticket);
                }
            }
        }
    }

    /// Answers all waiting requests with an error: the master gives no page ids.
    pub(super) fn fail_waiting<W: World>(&mut self, error: &Error, world: &mut W) {
        for ticket in std::mem::take(&mut self.allocations.waiting) {
            self.answer(&ticket, Err(error.clone()), world);
        }
    }

    fn try_alloc<W: World>(&mut self, ticket: &Ticket, first: bool, world: &mut W) -> AllocOutcome {
        let word = match self.empty_word(ticket, world) {
            Ok(word) => word,
            Err(error) => return AllocOutcome::Answer(Err(error)),
        };
        if let Err(error) = self.check_quota_and_loans(ticket, world) {
            return AllocOutcome::Answer(Err(error));
        }
        let shift = slab::class_shift(&self.layout, ticket.bytes);
        let Some(range) = self.range_for(ticket, shift) else {
            return AllocOutcome::Answer(Err(self.full_for(ticket)));
        };
        let Some(shift) = shift else {
            let count = ticket.bytes.div_ceil(self.layout.pages.page_bytes()) as u32;
            let wanted = NewPages { count, range, purpose: JobPurpose::Run(*ticket) };
            return self.new_pages(wanted, ticket, first, world);
        };
        // A page with a bitmap that turns out to be damaged has no room from then on.
        let class = ticket.class(shift);
        while let Some(frame) = self.slabs.with_room(class, &range, &self.replicas.frames) {
            if self.is_fresh_slab_forced(&range, world) {
                break;
            }
            if let Some(reply) = self.take_object(ticket, word, frame, shift, world) {
                return AllocOutcome::Answer(Ok(reply));
            }
        }
        let room = slab::capacity(&self.layout, shift) as usize;
        for job in self.allocations.jobs.values_mut() {
            match &mut job.purpose {
                JobPurpose::Slab { class: other, waiters }
                    if *other == class
                        && waiters.len() < room
                        && range.contains(&job.frames[0]) =>
                {
                    waiters.push(*ticket);
                    return AllocOutcome::Joined;
                }
                _ => {}
            }
        }
        let purpose = JobPurpose::Slab { class, waiters: vec![*ticket] };
        self.new_pages(NewPages { count: 1, range, purpose }, ticket, first, world)
    }

    /// As [`Daemon::check_quota`], after what the asker's handles have not handed out has gone back.
    fn check_quota_and_loans<W: World>(&mut self, ticket: &Ticket, world: &mut W) -> Result<()> {
        let Err(error) = self.check_quota(ticket, world) else { return Ok(()) };
        let slots = self.slots_of_holder(ticket.record);
        match self.end_loans_of(&slots, world) {
            0 => Err(error),
            _ => self.check_quota(ticket, world),
        }
    }

    /// The frames that serve a request: those of the tier that it names, `None` if there is no such
    /// tier; else all, but for an object those of the nearest tier that has room for it.
    fn range_for(&self, ticket: &Ticket, shift: Option<u8>) -> Option<Range<u32>> {
        if let Some(tier) = ticket.tier {
            return self.frames.of_tier(tier);
        }
        let nearest = shift.and_then(|shift| {
            let class = ticket.class(shift);
            let room = slab::capacity(&self.layout, shift) as usize;
            let comes = |range: &Range<u32>| {
                self.allocations.jobs.values().any(|job| {
                    matches!(&job.purpose, JobPurpose::Slab { class: other, waiters }
                        if *other == class && waiters.len() < room)
                        && range.contains(&job.frames[0])
                })
            };
            let has_room = |range: &Range<u32>| {
                let in_slab = self.slabs.with_room(class, range, &self.replicas.frames);
                in_slab.is_some() || self.frames.free_in(range, 1) > 0 || comes(range)
            };
            self.frames.of_tiers().find(has_room)
        });
        Some(nearest.unwrap_or(self.frames.all()))
    }

    fn is_fresh_slab_forced<W: World>(&self, range: &Range<u32>, world: &W) -> bool {
        self.frames.free_in(range, 1) > 0 && world.private().rare(Rare::FreshSlabPage)
    }

    /// Takes an object: zeroed first, then marked together with the result.
    fn take_object<W: World>(
        &mut self,
        ticket: &Ticket,
        word: Option<u64>,
        frame: u32,
        shift: u8,
        world: &mut W,
    ) -> Option<Reply> {
        let taking = self.slabs.choose(world.private(), frame)?;
        let offset = u64::from(taking.index) << shift;
        if taking.dirty && !world.private().mutated(Mutation::HandOutUnzeroed) {
            let at = self.layout.frame_offset(FrameIndex(frame)) + offset;
            let range = ByteRange { offset: at, bytes: 1 << shift };
            coherence::writing(world.pages(), range, |pages| pages.zero(at, range.bytes));
            // Else the last user's bytes could come back under the new allocation.
            let is_early = world.private().mutated(Mutation::ZeroUndurably);
            let is_safe = is_early || persist_pages(world, at, range.bytes).is_ok();
            assert!(is_safe, "an object that is handed out cannot be made zero for good");
        }
        let page = FrameEntry::load_checked(world.private(), frame).page;
        let addr = self.frames.addr(page, offset);
        self.redo.set(taking.offset, taking.word);
        self.commit_allocated(ticket, word, addr, world);
        self.slabs.taken(frame, taking.index);
        self.charge_object(ticket.record, FrameIndex(frame), shift, taking.index);
        self.allocated_bytes += 1 << shift;
        Some(Reply::Allocated { addr })
    }

    /// Where the word of a request lies in the pages section, if it names one; it must be 0.
    fn empty_word<W: World>(&self, ticket: &Ticket, world: &W) -> Result<Option<u64>> {
        if ticket.word.is_null() {
            return Ok(None);
        }
        let offset = self.locate_named(ticket.word, world)?;
        match word_of(world.pages(), offset) {
            0 => Ok(Some(offset)),
            found => Err(Error::Occupied { addr: ticket.word, found }),
        }
    }

    /// Commits the prepared stores with the request's result and, at `word`, the address. What a
    /// word names is in use from now on: it never comes back by itself.
    fn commit_allocated<W: World>(
        &mut self,
        ticket: &Ticket,
        word: Option<u64>,
        addr: GAddr,
        world: &mut W,
    ) {
        let bytes = if word.is_some() { 0 } else { ticket.bytes };
        if let Some(offset) = word {
            self.redo.set_page(offset, addr.0);
        }
        let outcome = Outcome { kind: ResultKind::Allocated, value: addr.0, bytes };
        let (record, seq) = (ticket.record, ticket.seq);
        self.sessions.commit_result(record, seq, outcome, &mut self.redo, world);
        self.allocations_live += 1;
    }

    /// Starts a job for new pages, if frames and page ids are there.
    fn new_pages<W: World>(
        &mut self,
        wanted: NewPages,
        ticket: &Ticket,
        first: bool,
        world: &mut W,
    ) -> AllocOutcome {
        if !first {
            return AllocOutcome::Waits;
        }
        let (count, range) = (wanted.count, &wanted.range);
        let free = self.frames.free_in(range, count);
        if free < count {
            // Then there may be an object, or a page that has become empty.
            if self.end_all_loans(world) > 0 {
                return AllocOutcome::Waits;
            }
            let found = free
                + self.freeing.coming(range)
                + self.coming_from_tier_move(range)
                + self.slabs.empty_in(range);
            if found + self.replicas_for(ticket.record, range) < count {
                return AllocOutcome::Answer(Err(self.full_for(ticket)));
            }
            world.private().met(Race::WaitedForFrames);
            self.free_cached_pages(world);
            self.take_replicas(count.saturating_sub(found), range, world);
            return AllocOutcome::Waits;
        }
        if !self.frames.ids_fit(count) || world.private().rare(Rare::PageIdsExhausted) {
            if let Some((next, end)) = self.frames.switch_ids() {
                self.redo.set(StateWord::PageIdNext.offset(), next);
                self.redo.set(StateWord::PageIdEnd.offset(), end);
                self.redo.commit(world);
            }
            if !self.frames.ids_fit(count) {
                return AllocOutcome::Waits;
            }
        }
        match self.start_job(wanted, ticket, world) {
            Ok(()) => AllocOutcome::Joined,
            Err(error) => AllocOutcome::Answer(Err(error)),
        }
    }

    pub(super) fn full(&self, bytes: u64) -> Error {
        let free_bytes = u64::from(self.frames.free_count()) * self.layout.pages.page_bytes();
        let place = match self.freeing.quarantined() {
            0 => format!("rack {}", self.rack),
            count => format!("rack {}, {count} frames wait for a stopped reader", self.rack),
        };
        Error::Full { bytes, free_bytes, place }
    }

    /// There is no memory for a request.
    fn full_for(&self, ticket: &Ticket) -> Error {
        match (self.full(ticket.bytes), ticket.tier) {
            (Error::Full { bytes, place, .. }, Some(tier)) => {
                let range = self.frames.of_tier(tier).unwrap_or_default();
                let free = self.frames.free_in(&range, u32::MAX);
                let free_bytes = u64::from(free) * self.layout.pages.page_bytes();
                Error::Full { bytes, free_bytes, place: format!("tier {tier} of {place}") }
            }
            (error, _) => error,
        }
    }

    /// Marks the frames `Pending`: from here on a crash rolls the job back.
    fn start_job<W: World>(
        &mut self,
        wanted: NewPages,
        ticket: &Ticket,
        world: &mut W,
    ) -> Result<()> {
        let NewPages { count, range, purpose } = wanted;
        if let Some((offset, bytes)) = self.frames.fresh_entries(count, &range) {
            back_metadata(world, offset, bytes)?;
        }
        let mem = world.private();
        let first_page = self.frames.take_ids(mem, count);
        let first_generation = self.frames.take_generations(mem, count);
        let frames = self.frames.take(mem, count, &range);
        let shift = match purpose {
            JobPurpose::Slab { class, .. } => class.shift,
            JobPurpose::Run(_) => 0,
        };
        for (index, frame) in frames.iter().enumerate() {
            let entry = FrameEntry {
                page: PageId(first_page + index as u64),
                generation: Generation(first_generation + index as u64),
                state: FrameState::Pending,
                shift,
                first: index == 0,
                shared: false,
                span: if index == 0 { count } else { index as u32 },
                owner: SessionId(ticket.owner),
                kind: ticket.kind,
            };
            entry.store(mem, *frame);
            self.frames.by_page.insert(entry.page.0, *frame);
        }
        let id = self.allocations.next_job;
        self.allocations.next_job += 1;
        let (backed, queued, committed) = (0, 0, 0);
        let job = Job { frames, first_page, first_generation, backed, queued, committed, purpose };
        self.allocations.jobs.insert(id, job);
        self.allocations.backing.push_back(id);
        Ok(())
    }

    /// Backs the frames of jobs, as many as one step may.
    pub(super) fn back_step<W: World>(&mut self, world: &mut W) {
        let forced = world.private().rare(Rare::BackOnePage);
        let mut budget = if forced { 1 } else { self.step_frames() };
        while budget > 0 {
            let Some(&id) = self.allocations.backing.front() else { return };
            match self.back_some(id, budget, world) {
                Ok(backed) => budget -= backed,
                Err(error) => self.fail_job(id, error, world),
            }
        }
    }

    /// Frames that one step backs or punches.
    pub(super) fn step_frames(&self) -> usize {
        let frames = BACKING_STEP_BYTES / self.layout.pages.page_bytes();
        frames.clamp(1, BACKING_STEP_FRAMES_MAX) as usize
    }

    /// Backs neighbouring frames of the first job in the queue, at most `budget`; how many. A job
    /// leaves the queue with its last frame, before the master can have committed it.
    fn back_some<W: World>(&mut self, id: u64, budget: usize, world: &mut W) -> Result<usize> {
        let job = self.allocations.jobs.get_mut(&id).expect("fail_job takes it off the queue");
        let frame = job.frames[job.backed];
        if let JobPurpose::Slab { class, .. } = job.purpose {
            let offset = self.layout.bitmap_offset(FrameIndex(frame));
            let bytes = slab::bitmap_bytes(&self.layout, class.shift);
            back_metadata(world, offset, bytes)?;
            for place in copies::places(world.private().bytes(), offset) {
                world.private().zero(place, bytes);
            }
            copies::persist(world.private(), offset, bytes);
        }
        let forced = world.private().rare(Rare::CommitOnePage) && job.backed == job.queued;
        let chunk_end = job.queued + if forced { 1 } else { COMMIT_PAGES_MAX as usize };
        let limit = job.frames.len().min(chunk_end).min(job.backed + budget);
        let candidates = &job.frames[job.backed..limit];
        let run = (frame..).zip(candidates).take_while(|(next, frame)| next == *frame).count();
        let offset = self.layout.frame_offset(FrameIndex(frame));
        let backed = world.back_pages(offset, run as u64 * self.layout.pages.page_bytes());
        if !world.private().mutated(Mutation::IgnoreFullMemory) {
            backed?;
        }
        job.backed += run;
        if job.backed == job.frames.len() || job.backed == chunk_end {
            self.allocations.commits.push_back((id, job.queued, job.backed));
            job.queued = job.backed;
        }
        if job.backed == job.frames.len() {
            self.allocations.backing.pop_front();
        }
        Ok(run)
    }

    /// The next chunk of homes for the master, with its job.
    pub(super) fn next_commit(&mut self) -> Option<(u64, Vec<PageHome>)> {
        let (id, from, to) = self.allocations.commits.pop_front()?;
        let job = self.allocations.jobs.get(&id).expect("fail_job takes its chunks off the queue");
        let homes = (from..to).map(|index| PageHome {
            page: PageId(job.first_page + index as u64),
            rack: self.rack,
            frame: FrameIndex(job.frames[index]),
            generation: Generation(job.first_generation + index as u64),
        });
        Some((id, homes.collect()))
    }

    /// The master has committed `pages` more pages of a job.
    pub(super) fn on_committed<W: World>(&mut self, id: u64, pages: usize, world: &mut W) {
        let job = self.allocations.jobs.get_mut(&id).expect("fail_job forgets its calls");
        job.committed += pages;
        if job.committed < job.frames.len() {
            return;
        }
        let job = self.allocations.jobs.remove(&id).expect("it was found above");
        match job.purpose {
            JobPurpose::Slab { class, ref waiters } => {
                self.finish_slab(&job, class, waiters, world)
            }
            JobPurpose::Run(ref ticket) => self.finish_run(&job, ticket, world),
        }
    }

    fn finish_slab<W: World>(
        &mut self,
        job: &Job,
        class: Class,
        waiters: &[Ticket],
        world: &mut W,
    ) {
        let (frame, owner) = (job.frames[0], class.owner);
        if owner != 0 && self.sessions.record_of(owner).is_none() {
            world.private().met(Race::JobOutlivedRequest);
            return self.start_freeing(&job.frames, None, world);
        }
        let entry = FrameEntry::load_checked(world.private(), frame);
        copies::store(world.private(), state_offset(frame), entry.state_word(FrameState::Home));
        set_table(world, table_word(FrameIndex(frame)), job.first_generation);
        self.slabs.insert_fresh(frame, class);
        if owner != 0 {
            self.frames.owned.insert((owner, frame));
        }
        for ticket in waiters {
            if self.sessions.waits(ticket, world.private()) {
                self.alloc(*ticket, world);
            }
        }
        self.trim_class(class, world);
    }

    fn finish_run<W: World>(&mut self, job: &Job, ticket: &Ticket, world: &mut W) {
        if !self.sessions.waits(ticket, world.private()) {
            world.private().met(Race::JobOutlivedRequest);
            return self.start_freeing(&job.frames, None, world);
        }
        // Other handles of the same client may have been served meanwhile.
        let allowed = self.check_quota(ticket, world);
        let word = match allowed.and_then(|()| self.empty_word(ticket, world)) {
            Ok(word) => word,
            Err(error) => {
                self.start_freeing(&job.frames, None, world);
                return self.answer(ticket, Err(error), world);
            }
        };
        let entry = FrameEntry::load_checked(world.private(), job.frames[0]);
        let addr = self.frames.addr(PageId(job.first_page), 0);
        self.redo.set(state_offset(job.frames[0]), entry.state_word(FrameState::Home));
        self.commit_allocated(ticket, word, addr, world);
        for (index, frame) in job.frames.iter().enumerate() {
            if index > 0 {
                let entry = FrameEntry { first: false, span: index as u32, ..entry };
                copies::store(
                    world.private(),
                    state_offset(*frame),
                    entry.state_word(FrameState::Home),
                );
            }
            let generation = job.first_generation + index as u64;
            set_table(world, table_word(FrameIndex(*frame)), generation);
        }
        if ticket.owner != 0 {
            self.frames.owned.insert((ticket.owner, job.frames[0]));
        }
        self.allocated_bytes += job.frames.len() as u64 * self.layout.pages.page_bytes();
        self.charge_pages(ticket.record, &job.frames);
        self.answer(ticket, Ok(Reply::Allocated { addr }), world);
    }

    /// Rolls a job back: no memory, or the master refused its homes.
    pub(super) fn fail_job<W: World>(&mut self, id: u64, error: Error, world: &mut W) {
        let Some(job) = self.allocations.jobs.remove(&id) else { return };
        self.allocations.backing.retain(|job| *job != id);
        self.allocations.commits.retain(|(job, _, _)| *job != id);
        self.calls.forget_job(id);
        self.start_freeing(&job.frames, None, world);
        let tickets = match job.purpose {
            JobPurpose::Slab { waiters, .. } => waiters,
            JobPurpose::Run(ticket) => vec![ticket],
        };
        for ticket in tickets {
            self.answer(&ticket, Err(error.clone()), world);
        }
    }
}
