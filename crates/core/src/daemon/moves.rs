//! Moves of pages between racks: the old home's part and the new home's part.
//!
//! In: `MoveIn`, `MoveOut`, `MoveCommit`, `MoveSettle` of the mover of a page (a client that copies
//! the bytes), answers of the directory, time, ends of sessions. Out: answers, pages shut and
//! opened, frames taken and given up. The directory's compare-and-swap decides where a page is at
//! home; a daemon's part is a frame in one of two states, and each has one way out:
//!
//! ```text
//! old home:  Home -> Departing (shut, drained) -> ask: where is it? -> Home, or Gone -> Free
//! new home:  Free -> Arriving (filled by the mover) -> ask: it is mine -> Home, or Gone -> Free
//! ```
//!
//! To shut a page is to store a key that no process knows into the table word, so every cached
//! translation and every fabric key is refused from then on; after a barrier an access that began
//! before is seen in its cell. The old home asks by a swap that gives its own frame a new
//! generation: if that succeeds, no commit of the new home can any more. So neither needs to know
//! whether the other lives. Pages of a session, of a lock or of an untaken allocation stay; those
//! of a run move one by one.
//!
//! Source: Rcmp §5.3 (the six steps); DESIGN §3 (moving a page while others use it).

mod tiers;
mod time;

use crate::addr::{FrameIndex, GAddr, Generation, PageId};
use crate::constants::{
    BACKING_STEP_BYTES, MOVE_BITMAP_WORDS_MAX, MOVE_WAITERS_MAX, MOVES_MAX, SLAB_SHIFT_MIN,
};
use crate::copies;
use crate::daemon::frames::{FrameEntry, back_metadata, state_offset};
use crate::daemon::{ClientId, Daemon, Outbox, World, set_table, slab};
use crate::error::{Error, Result};
use crate::layout::{FrameState, FrameWord, StateWord, frame_word, table_word};
use crate::persist::Persist;
use crate::seam::{Mutation, Nanos, Probe, Race};
use crate::wire::{MasterCall, PageHome, PageMetadata, Reply, ReplyFrame, Resolved};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tiers::TierMove;

/// Fencing tokens beyond this are no tokens: counting up from them could overflow.
const LOCK_TOKEN_MAX: u64 = 1 << 62;

/// The record of a mover that was there before this process.
const NOBODY: u32 = u32::MAX;
/// The record of this daemon, which moves pages between the rack's memories.
const OWN_MOVES: u32 = u32::MAX - 1;

/// The request that is to be answered when a move goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    record: u32,
    seq: u64,
    /// Whether it asked for the end of the move, however it ends.
    settles: bool,
}

impl Asker {
    pub(super) fn new(record: u32, seq: u64) -> Asker {
        Asker { record, seq, settles: false }
    }

    /// What it is told when the move ends with `reply`.
    fn told(self, reply: Result<Reply>, here: bool) -> Result<Reply> {
        if self.settles { Ok(Reply::Settled { here }) } else { reply }
    }
}

/// How far an old home is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DepartureStage {
    /// Users that began before are waited for.
    Draining,
    /// Only the holder of the key touches the page.
    Shut,
    /// The directory is asked where the page is.
    Asking,
}

#[derive(Debug)]
struct Departure {
    page: PageId,
    generation: Generation,
    key: Generation,
    /// The generation under which the page is taken back.
    reopen: Generation,
    /// The session record that moves it.
    record: u32,
    asker: Option<Asker>,
    stage: DepartureStage,
    since: Option<Nanos>,
}

/// How far a new home is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrivalStage {
    /// The frame gets its memory; so much has it.
    Backing(u64),
    Filling,
    /// The directory is asked, with this as the old home.
    Asking(PageHome),
}

#[derive(Debug)]
struct Arrival {
    page: PageId,
    generation: Generation,
    record: u32,
    asker: Option<Asker>,
    stage: ArrivalStage,
    since: Option<Nanos>,
}

/// A search for a page that waits until its move is over.
#[derive(Clone, Copy, Debug)]
struct ParkedSearch {
    asker: Asker,
    page: PageId,
    count: u32,
}

/// All moves that this daemon takes part in.
#[derive(Default)]
pub(super) struct Moves {
    departing: BTreeMap<u32, Departure>,
    arriving: BTreeMap<u32, Arrival>,
    parked: Vec<ParkedSearch>,
    /// Pages that come as soon as replicas have given way; at most one a session and page.
    awaited: VecDeque<(Asker, PageId)>,
    /// Frames with a question to the directory that has not been sent.
    questions: VecDeque<u32>,
    abandoned: BTreeSet<u32>,
    /// The page that is on its way between the rack's memories.
    between: Option<TierMove>,
    between_tiers: u64,
    pub(super) came: u64,
    pub(super) went: u64,
}

impl Moves {
    /// Whether time or a step matters to a move.
    pub(super) fn needs_tick(&self) -> bool {
        self.under_way() > 0 || !self.abandoned.is_empty() || self.between.is_some()
    }

    /// Pages that are shut or awaited.
    pub(super) fn under_way(&self) -> usize {
        self.departing.len() + self.arriving.len() + self.awaited.len()
    }

    /// Frames with users that are waited for.
    pub(super) fn draining(&self) -> impl Iterator<Item = u32> + '_ {
        let waits = |d: &Departure| d.stage == DepartureStage::Draining;
        self.departing.iter().filter(move |(_, d)| waits(d)).map(|(frame, _)| *frame)
    }

    /// Notes that the connection of a record ended: its moves are given up with the next step.
    pub(super) fn abandon_soon(&mut self, record: u32) {
        self.abandoned.insert(record);
    }

    /// Whether the outcome of a frame's move decides what a search for its page finds.
    fn is_undecided(&self, frame: u32) -> bool {
        let asking = |a: &Arrival| matches!(a.stage, ArrivalStage::Asking(_));
        self.departing.contains_key(&frame) || self.arriving.get(&frame).is_some_and(asking)
    }
}

fn stays<T>(page: PageId, reason: &str) -> Result<T> {
    Err(Error::Stays { page, reason: reason.into() })
}

fn broken<T>(reason: String) -> Result<T> {
    Err(Error::Protocol { peer: "the mover of a page".into(), reason })
}

impl Daemon {
    /// Whether a page is in a move with an end that decides where it is.
    pub(super) fn is_moving(&self, page: PageId) -> bool {
        self.frames.by_page.get(&page.0).is_some_and(|frame| self.moves.is_undecided(*frame))
    }

    /// What is said of an address in a page that is not at home here.
    pub(super) fn not_at_home(&self, addr: GAddr, else_error: Error) -> Error {
        match self.is_moving(self.layout.pages.page(addr)) {
            true => Error::Moving { addr, retries: 0 },
            false => else_error,
        }
    }

    /// Answers a search, or keeps it until the move of its first page is over.
    pub(super) fn resolve_or_park<W: World>(
        &mut self,
        asker: Asker,
        page: PageId,
        count: u32,
        world: &W,
    ) -> Option<Result<Reply>> {
        if !self.is_moving(page) {
            return Some(self.resolve(page, count, world));
        }
        self.moves.parked.retain(|parked| parked.asker != asker);
        if self.moves.parked.len() >= MOVE_WAITERS_MAX {
            let addr = self.layout.pages.join(page, 0);
            return Some(Err(Error::Moving { addr, retries: 0 }));
        }
        world.private().met(Race::SearchParked);
        self.moves.parked.push(ParkedSearch { asker, page, count });
        None
    }

    /// The move of a page is over: the requests that waited for it are answered.
    fn unpark<W: World>(&mut self, page: PageId, world: &mut W) {
        let ready = |parked: &mut ParkedSearch| parked.page == page;
        let parked: Vec<ParkedSearch> = self.moves.parked.extract_if(.., ready).collect();
        for ParkedSearch { asker, page, count } in parked {
            let reply = self.resolve(page, count, world);
            self.say(Some(asker), reply, world);
        }
    }

    fn say<W: World>(&mut self, asker: Option<Asker>, reply: Result<Reply>, world: &mut W) {
        let Some(Asker { record, seq, .. }) = asker else { return };
        self.answers.note(&reply);
        world.outbox().reply(ClientId::of_record(record), ReplyFrame { seq, reply });
    }

    /// A session is over, or its connection: what it moved is given up.
    pub(super) fn abandon_moves<W: World>(&mut self, record: u32, world: &mut W) {
        self.moves.abandoned.remove(&record);
        self.moves.parked.retain(|parked| parked.asker.record != record);
        self.moves.awaited.retain(|(asker, _)| asker.record != record);
        // Also of moves from before this process, which belong to no session.
        let askers = self.moves.departing.values_mut().map(|departure| &mut departure.asker);
        let askers = askers.chain(self.moves.arriving.values_mut().map(|a| &mut a.asker));
        askers.for_each(|asker| _ = asker.take_if(|asker| asker.record == record));
        let of_record = |(frame, r): (&u32, u32)| (r == record).then_some(*frame);
        let leaving: Vec<u32> =
            self.moves.departing.iter().filter_map(|(f, d)| of_record((f, d.record))).collect();
        for frame in leaving {
            self.give_up_departure(frame, world);
        }
        let coming: Vec<u32> =
            self.moves.arriving.iter().filter_map(|(f, a)| of_record((f, a.record))).collect();
        for frame in coming {
            if !matches!(self.moves.arriving[&frame].stage, ArrivalStage::Asking(_)) {
                self.drop_arrival(frame, "its mover is gone", world);
            }
        }
    }

    /// Gives up the moves of connections that ended.
    pub(super) fn abandon_lost_moves<W: World>(&mut self, world: &mut W) {
        while let Some(record) = self.moves.abandoned.pop_first() {
            self.abandon_moves(record, world);
        }
    }

    /// Serves `MoveOut`. No answer now means that it comes once the page is drained.
    pub(super) fn move_out<W: World>(
        &mut self,
        asker: Asker,
        page: PageId,
        generation: Generation,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        if let Some(frame) = self.frames.by_page.get(&page.0).copied()
            && let Some(departure) = self.moves.departing.get_mut(&frame)
        {
            let same = (departure.record, departure.generation) == (asker.record, generation);
            return match departure.stage {
                DepartureStage::Draining if same => {
                    departure.asker = Some(asker);
                    None
                }
                DepartureStage::Shut if same => Some(self.shut_reply(frame, world)),
                _ => Some(stays(page, "another move of it is under way")),
            };
        }
        let may_leave = match self.settle_page(page, world) {
            true => stays(page, "an object in it is being handed out"),
            false => self.may_leave(page, generation, world),
        };
        let (frame, entry) = match may_leave {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        self.shut(frame, &entry, Some(asker), world);
        None
    }

    /// Shuts a page that leaves, for the mover that asks, `None` for this daemon; its users are
    /// waited for.
    fn shut<W: World>(
        &mut self,
        frame: u32,
        entry: &FrameEntry,
        asker: Option<Asker>,
        world: &mut W,
    ) {
        let FrameEntry { page, generation, .. } = *entry;
        let record = asker.map_or(OWN_MOVES, |asker| asker.record);
        let mut key = Generation(self.frames.take_generations(world.private(), 2));
        let reopen = Generation(key.0 + 1);
        if world.private().mutated(Mutation::LeavePageOpen) {
            key = generation;
        }
        let word = entry.state_word(FrameState::Departing);
        copies::store(world.private(), state_offset(frame), word);
        set_table(world, table_word(FrameIndex(frame)), key.0);
        self.uncount(frame, entry);
        let (stage, since) = (DepartureStage::Draining, None);
        let departure = Departure { page, generation, key, reopen, record, asker, stage, since };
        self.moves.departing.insert(frame, departure);
        self.freeing.table_changed();
        self.request_scan();
    }

    /// The frame of a page that may leave now, or why it stays.
    fn may_leave<W: World>(
        &self,
        page: PageId,
        generation: Generation,
        world: &W,
    ) -> Result<(u32, FrameEntry)> {
        let addr = self.layout.pages.join(page, 0);
        let home = self.frames.home(world.private(), page);
        let (frame, entry) = home.ok_or(Error::NotMapped { addr })?;
        if entry.generation != generation {
            return stays(page, "its home has changed");
        }
        // What was acknowledged as durable here would hang on the other rack's memory.
        if world.pages().is_persistent() && !self.is_leaving() {
            return stays(page, "its rack's memory persists: only a drain takes it elsewhere");
        }
        if self.moves.departing.len() >= MOVES_MAX {
            let what = "the pages that leave a rack at once".into();
            return Err(Error::Busy { what, limit: MOVES_MAX as u64 });
        }
        if entry.owner.0 != 0 {
            return stays(page, "it belongs to a session");
        }
        if entry.shift != 0 {
            let words = slab::bitmap_bytes(&self.layout, entry.shift) / 8;
            if words > MOVE_BITMAP_WORDS_MAX as u64 {
                return stays(page, "it has too many objects for one message");
            }
            let bitmap = self.slabs.bitmap_words(world.private(), frame, entry.shift);
            if bitmap.is_err() || self.slabs.live(frame) == 0 {
                return stays(page, "nothing lives in it, or its bitmap is damaged");
            }
        }
        let range = addr.0..addr.0 + self.layout.pages.page_bytes();
        let locked = self.locks.any_in(range.clone());
        if locked && !world.private().mutated(Mutation::MoveLockedPage) {
            return stays(page, "a lock in it is held or awaited");
        }
        if self.orphans.has_due_in(range) {
            return stays(page, "something in it is being freed for another rack");
        }
        // A run that may be taken back is whole.
        let first = self.layout.pages.join(entry.run_first(), 0).0;
        let range = first..first + self.layout.pages.page_bytes();
        let untaken = self.sessions.allocated_in(range).any(|record| {
            let consumed = self.consumed(record, world);
            self.sessions.unconsumed(record, consumed).is_some()
        });
        if untaken && !world.private().mutated(Mutation::MoveUntakenPage) {
            return stays(page, "an allocation in it has not been taken yet");
        }
        Ok((frame, entry))
    }

    /// Takes an allocation's page out of the indexes and counters.
    pub(super) fn uncount(&mut self, frame: u32, entry: &FrameEntry) {
        match self.slabs.remove(frame) {
            Some((slab, live)) => {
                self.allocations_live -= u64::from(live);
                self.allocated_bytes -= u64::from(live) << slab.class.shift;
            }
            None => {
                self.allocations_live -= u64::from(entry.first);
                self.allocated_bytes -= self.layout.pages.page_bytes();
            }
        }
    }

    /// Puts a page that is at home into the indexes and counters. A run counts where its first page
    /// is, each of its pages with its bytes.
    fn count<W: World>(&mut self, frame: u32, entry: &FrameEntry, world: &W) {
        if entry.shift == 0 {
            self.allocations_live += u64::from(entry.first);
            self.allocated_bytes += self.layout.pages.page_bytes();
            return;
        }
        let found = self.slabs.insert_found(world.private(), frame, entry.class());
        let live = found.expect("the bitmap was checked before the page was at home");
        self.allocations_live += u64::from(live);
        self.allocated_bytes += u64::from(live) << entry.shift;
    }

    /// No other process can touch a departing page any more: its mover gets the key.
    pub(super) fn drained<W: World>(&mut self, frame: u32, world: &mut W) {
        if !world.private().mutated(Mutation::MoveQueuedFrees) {
            self.empty_queues(world);
        }
        let Some(departure) = self.moves.departing.get_mut(&frame) else { return };
        departure.stage = DepartureStage::Shut;
        departure.since = None;
        let asker = departure.asker.take();
        let reply = self.shut_reply(frame, world);
        self.say(asker, reply, world);
    }

    fn shut_reply<W: World>(&self, frame: u32, world: &W) -> Result<Reply> {
        let key = self.moves.departing[&frame].key;
        let entry = FrameEntry::load_checked(world.private(), frame);
        let objects = match entry.shift {
            0 => Vec::new(),
            shift => self.slabs.bitmap_words(world.private(), frame, shift)?,
        };
        let (lock_token, history) = (self.locks.token_last(), self.history_of(entry.page));
        let (run_index, run_more) = entry.place_in_run();
        let (shift, kind) = (entry.shift, entry.kind);
        let keep = PageMetadata { shift, kind, objects, lock_token, history, run_index, run_more };
        Ok(Reply::Shut { key, keep })
    }

    /// Serves `MoveIn`. No answer now means that it comes once the frame has its memory.
    pub(super) fn move_in<W: World>(
        &mut self,
        asker: Asker,
        page: PageId,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        if let Some(frame) = self.frames.by_page.get(&page.0).copied() {
            let arrival = self.moves.arriving.get_mut(&frame);
            return match arrival.filter(|arrival| arrival.record == asker.record) {
                Some(Arrival { stage: ArrivalStage::Filling, generation, .. }) => {
                    Some(Ok(Reply::Room { frame: FrameIndex(frame), generation: *generation }))
                }
                Some(arrival @ Arrival { stage: ArrivalStage::Backing(_), .. }) => {
                    arrival.asker = Some(asker);
                    None
                }
                _ => Some(stays(page, "the rack has it, or waits for it")),
            };
        }
        self.moves.awaited.retain(|(other, of)| (other.record, *of) != (asker.record, page));
        self.start_arrival(asker, page, world).err().map(Err)
    }

    /// Goes on with pages that waited for a frame, in their order.
    pub(super) fn serve_awaited_arrivals<W: World>(&mut self, world: &mut W) {
        for (asker, page) in std::mem::take(&mut self.moves.awaited) {
            let is_here = self.frames.by_page.contains_key(&page.0);
            let started = if is_here {
                stays(page, "the rack has it, or waits for it")
            } else {
                self.start_arrival(asker, page, world)
            };
            if let Err(error) = started {
                self.say(Some(asker), Err(error), world);
            }
        }
    }

    /// Takes a frame for a page that comes, or lets it wait until replicas have given way.
    fn start_arrival<W: World>(&mut self, asker: Asker, page: PageId, world: &mut W) -> Result<()> {
        let record = asker.record;
        self.check_gives_memory(world.private())?;
        let is_page = page.0 != 0 && page <= self.layout.pages.page_id_max();
        if !is_page || self.frames.is_unused_id(page) {
            return broken(format!("{page} is no page"));
        }
        if self.moves.arriving.len() + self.moves.awaited.len() >= MOVES_MAX {
            let what = "the pages that come to a rack at once".into();
            return Err(Error::Busy { what, limit: MOVES_MAX as u64 });
        }
        let all = self.frames.all();
        if self.frames.free_count() == 0 {
            let coming = (self.freeing.coming(&all) + self.coming_from_tier_move(&all)) as usize;
            if self.replicas_for(record, &all) == 0 && coming <= self.moves.awaited.len() {
                return Err(self.full(self.layout.pages.page_bytes()));
            }
            world.private().met(Race::WaitedForFrames);
            self.moves.awaited.push_back((asker, page));
            let missing = self.moves.awaited.len().saturating_sub(coming) as u32;
            self.take_replicas(missing, &all, world);
            return Ok(());
        }
        if let Some((offset, bytes)) = self.frames.fresh_entries(1, &all) {
            back_metadata(world, offset, bytes)?;
        }
        let generation = Generation(self.frames.take_generations(world.private(), 1));
        let frame = self.frames.take(world.private(), 1, &all)[0];
        FrameEntry::arriving(page, generation).store(world.private(), frame);
        self.frames.by_page.insert(page.0, frame);
        let (asker, stage, since) = (Some(asker), ArrivalStage::Backing(0), None);
        let arrival = Arrival { page, generation, record, asker, stage, since };
        self.moves.arriving.insert(frame, arrival);
        Ok(())
    }

    /// Gives memory to the frames of arriving pages, one bounded step each.
    pub(super) fn back_arrivals<W: World>(&mut self, world: &mut W) {
        let backing = |(frame, a): (&u32, &Arrival)| match a.stage {
            ArrivalStage::Backing(done) => Some((*frame, done)),
            _ => None,
        };
        let frames: Vec<(u32, u64)> = self.moves.arriving.iter().filter_map(backing).collect();
        for (frame, done) in frames {
            let page_bytes = self.layout.pages.page_bytes();
            let bytes = BACKING_STEP_BYTES.min(page_bytes - done);
            let offset = self.layout.frame_offset(FrameIndex(frame)) + done;
            if let Err(error) = world.back_pages(offset, bytes) {
                self.end_arrival(frame, Err(error), world);
                continue;
            }
            let arrival = self.moves.arriving.get_mut(&frame).expect("it was found above");
            arrival.stage = ArrivalStage::Backing(done + bytes);
            if done + bytes < page_bytes {
                continue;
            }
            arrival.stage = ArrivalStage::Filling;
            let (asker, generation) = (arrival.asker.take(), arrival.generation);
            set_table(world, table_word(FrameIndex(frame)), generation.0);
            self.say(asker, Ok(Reply::Room { frame: FrameIndex(frame), generation }), world);
        }
    }

    /// Serves `MoveCommit`. No answer now means that the directory is asked.
    pub(super) fn move_commit<W: World>(
        &mut self,
        asker: Asker,
        from: PageHome,
        generation: Generation,
        keep: &PageMetadata,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        let page = from.page;
        let home = self.frames.home(world.private(), page);
        if let Some((frame, _)) = home.filter(|(_, entry)| entry.generation == generation) {
            return Some(Ok(Reply::Moved(self.own_home(page, frame, generation))));
        }
        let frame = self.frames.by_page.get(&page.0).copied().unwrap_or(u32::MAX);
        let arrival = self.moves.arriving.get_mut(&frame);
        let meant = |a: &&mut Arrival| (a.record, a.generation) == (asker.record, generation);
        match arrival.filter(meant) {
            Some(arrival @ Arrival { stage: ArrivalStage::Asking(_), .. }) => {
                arrival.asker = Some(asker);
                return None;
            }
            Some(Arrival { stage: ArrivalStage::Filling, .. }) => {}
            _ => return Some(stays(page, "its new frame was given up")),
        }
        let stored = self.persist_frame(frame, world);
        if let Err(error) = stored.and_then(|()| self.store_keep(frame, keep, world)) {
            return Some(Err(error));
        }
        self.take_history(page, keep.history);
        let arrival = self.moves.arriving.get_mut(&frame).expect("it was found above");
        arrival.asker = Some(asker);
        arrival.stage = ArrivalStage::Asking(from);
        self.moves.questions.push_back(frame);
        if world.private().mutated(Mutation::HomeBeforeCommit) {
            self.arrived(frame, world);
        }
        None
    }

    /// Checks and stores what came with a page; its state says it last.
    fn store_keep<W: World>(
        &mut self,
        frame: u32,
        keep: &PageMetadata,
        world: &mut W,
    ) -> Result<()> {
        let shifts = SLAB_SHIFT_MIN..self.layout.pages.page_shift();
        if keep.shift != 0 && !shifts.contains(&keep.shift) {
            return broken(format!("objects of 2^{} bytes", keep.shift));
        }
        if keep.lock_token > LOCK_TOKEN_MAX {
            return broken(format!("fencing token {}", keep.lock_token));
        }
        let entry = FrameEntry::load_checked(world.private(), frame).of_run(keep);
        let entry = entry.ok_or_else(|| Error::Protocol {
            peer: "the mover of a page".into(),
            reason: format!("page {} of a run, {} more", keep.run_index, keep.run_more),
        })?;
        let words = match keep.shift {
            0 => 0,
            shift => slab::bitmap_bytes(&self.layout, shift) / 8,
        };
        if keep.objects.len() as u64 != words {
            return broken(format!("{} of {words} words of objects", keep.objects.len()));
        }
        if keep.shift != 0 {
            slab::check_bits(&self.layout, keep.shift, &keep.objects, world.private())?;
            let offset = self.layout.bitmap_offset(FrameIndex(frame));
            back_metadata(world, offset, 8 * words)?;
            let forget = world.private().mutated(Mutation::ForgetObjects);
            for (index, word) in keep.objects.iter().enumerate() {
                let word = if forget { 0 } else { *word };
                copies::store(world.private(), offset + 8 * index as u64, word);
            }
        }
        if self.locks.raise_token(keep.lock_token) {
            copies::store(world.private(), StateWord::LockToken.offset(), keep.lock_token);
        }
        copies::store(world.private(), state_offset(frame), entry.state_word(FrameState::Arriving));
        Ok(())
    }

    /// A page that is to be freed does not go anywhere: its departure ends as soon as it can.
    pub(super) fn give_up_moving<W: World>(&mut self, frame: u32, world: &mut W) {
        if self.moves.departing.contains_key(&frame) {
            self.give_up_departure(frame, world);
        }
    }

    pub(super) fn move_settle<W: World>(
        &mut self,
        asker: Asker,
        page: PageId,
        world: &mut W,
    ) -> Option<Result<Reply>> {
        let record = asker.record;
        self.moves.awaited.retain(|(asker, of)| (asker.record, *of) != (record, page));
        let frame = self.frames.by_page.get(&page.0).copied().unwrap_or(u32::MAX);
        let asker = Some(Asker { settles: true, ..asker });
        if let Some(departure) = self.moves.departing.get_mut(&frame) {
            if ![record, NOBODY].contains(&departure.record) {
                return Some(stays(page, "another move of it is under way"));
            }
            departure.asker = asker;
            self.give_up_departure(frame, world);
            return None;
        }
        if let Some(arrival) = self.moves.arriving.get_mut(&frame)
            && [record, NOBODY].contains(&arrival.record)
        {
            arrival.asker = asker;
            if !matches!(arrival.stage, ArrivalStage::Asking(_)) {
                self.drop_arrival(frame, "its mover gave up", world);
            }
            return None;
        }
        let here = self.frames.home(world.private(), page).is_some();
        Some(Ok(Reply::Settled { here }))
    }

    /// The way out of a departure: no mover has the key yet, so the page is opened at once; or the
    /// directory is asked.
    fn give_up_departure<W: World>(&mut self, frame: u32, world: &mut W) {
        let departure = self.moves.departing.get_mut(&frame).expect("the caller found it");
        match departure.stage {
            DepartureStage::Asking => {}
            DepartureStage::Draining => {
                let generation = departure.generation;
                self.reopen(frame, generation, world);
            }
            // No process was told the key, and nothing was asked.
            DepartureStage::Shut if departure.record == OWN_MOVES => {
                let generation = departure.generation;
                self.reopen(frame, generation, world);
            }
            DepartureStage::Shut if world.private().mutated(Mutation::TakeBackUnasked) => {
                let generation = departure.reopen;
                self.reopen(frame, generation, world);
            }
            DepartureStage::Shut if world.private().mutated(Mutation::GiveAwayUnasked) => {
                self.gone(frame, world);
            }
            DepartureStage::Shut => {
                departure.stage = DepartureStage::Asking;
                self.moves.questions.push_back(frame);
            }
        }
    }

    /// The next question to the directory, with its frame.
    pub(super) fn next_question(&mut self) -> Option<(u32, MasterCall)> {
        loop {
            let frame = self.moves.questions.pop_front()?;
            let (from, to) = if let Some(d) = self.moves.departing.get(&frame) {
                let from = self.own_home(d.page, frame, d.generation);
                (from, PageHome { generation: d.reopen, ..from })
            } else if let Some(a) = self.moves.arriving.get(&frame)
                && let ArrivalStage::Asking(from) = a.stage
            {
                (from, self.own_home(a.page, frame, a.generation))
            } else {
                continue;
            };
            return Some((frame, MasterCall::MovePage { from, to }));
        }
    }

    fn own_home(&self, page: PageId, frame: u32, generation: Generation) -> PageHome {
        PageHome { page, rack: self.rack, frame: FrameIndex(frame), generation }
    }

    /// The directory's answer about a frame in a move: where its page is at home.
    fn settle_frame<W: World>(&mut self, frame: u32, home: Resolved, world: &mut W) {
        let here = |h: &PageHome| h.rack == self.rack && h.frame.0 == frame;
        let ours = match home {
            Resolved::Home(home) => Some(home).filter(here),
            Resolved::Unmapped | Resolved::Lost(_) => None,
        };
        if self.moves.departing.contains_key(&frame) {
            match ours {
                Some(home) => {
                    world.private().met(Race::PageTakenBack);
                    self.reopen(frame, home.generation, world);
                }
                None => self.gone(frame, world),
            }
        } else if let Some(arrival) = self.moves.arriving.get(&frame) {
            match ours.filter(|home| home.generation == arrival.generation) {
                Some(_) => self.arrived(frame, world),
                None => {
                    world.private().met(Race::ArrivalRefused);
                    self.drop_arrival(frame, "its old home took it back", world);
                }
            }
        }
    }

    /// A departing page stays.
    fn reopen<W: World>(&mut self, frame: u32, generation: Generation, world: &mut W) {
        let departure = self.moves.departing.remove(&frame).expect("the caller found it");
        self.frames.by_page.insert(departure.page.0, frame);
        if generation != departure.generation {
            let offset = frame_word(FrameIndex(frame), FrameWord::Generation);
            copies::store(world.private(), offset, generation.0);
        }
        let entry = FrameEntry::load_checked(world.private(), frame);
        copies::store(world.private(), state_offset(frame), entry.state_word(FrameState::Home));
        set_table(world, table_word(FrameIndex(frame)), generation.0);
        self.count(frame, &entry, world);
        if let Some(asker) = departure.asker {
            let reply = asker.told(stays(departure.page, "somebody keeps touching it"), true);
            self.say(Some(asker), reply, world);
        }
        self.unpark(departure.page, world);
    }

    /// A departing page is at home elsewhere: its frame goes.
    fn gone<W: World>(&mut self, frame: u32, world: &mut W) {
        let departure = self.moves.departing.remove(&frame).expect("the caller found it");
        self.moves.went += u64::from(departure.record != OWN_MOVES);
        self.quota.credit_frame(frame, self.layout.pages.page_bytes());
        self.leave_frame(frame, departure.page, world);
        self.say(departure.asker, Ok(Reply::Settled { here: false }), world);
        self.unpark(departure.page, world);
    }

    /// An arriving page is at home here.
    fn arrived<W: World>(&mut self, frame: u32, world: &mut W) {
        let arrival = self.moves.arriving.remove(&frame).expect("the caller found it");
        let entry = FrameEntry::load_checked(world.private(), frame);
        copies::store(world.private(), state_offset(frame), entry.state_word(FrameState::Home));
        set_table(world, table_word(FrameIndex(frame)), arrival.generation.0);
        self.frames.by_page.insert(arrival.page.0, frame);
        self.count(frame, &entry, world);
        self.moves.came += u64::from(arrival.record != OWN_MOVES);
        let home = self.own_home(arrival.page, frame, arrival.generation);
        if let Some(asker) = arrival.asker {
            self.say(Some(asker), asker.told(Ok(Reply::Moved(home)), true), world);
        }
        self.unpark(arrival.page, world);
    }

    fn drop_arrival<W: World>(&mut self, frame: u32, reason: &str, world: &mut W) {
        let page = self.moves.arriving[&frame].page;
        self.end_arrival(frame, stays(page, reason), world);
    }

    /// An arriving page does not come: its frame goes, once its mover cannot write it any more.
    fn end_arrival<W: World>(&mut self, frame: u32, reply: Result<Reply>, world: &mut W) {
        let arrival = self.moves.arriving.remove(&frame).expect("the caller found it");
        self.leave_frame(frame, arrival.page, world);
        if let Some(asker) = arrival.asker {
            self.say(Some(asker), asker.told(reply, false), world);
        }
        self.unpark(arrival.page, world);
    }

    /// A frame of a page that is elsewhere: no access begins any more, and those that have begun
    /// are waited for.
    fn leave_frame<W: World>(&mut self, frame: u32, page: PageId, world: &mut W) {
        let entry = FrameEntry::load_checked(world.private(), frame);
        copies::store(world.private(), state_offset(frame), entry.state_word(FrameState::Gone));
        set_table(world, table_word(FrameIndex(frame)), 0);
        self.forget_frame(frame, page);
        self.freeing.table_changed();
        self.freeing.drain(frame);
        self.request_scan();
    }
}
