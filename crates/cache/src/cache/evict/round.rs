//! A round of TinyLFU: what leaves the window is weighed against the oldest of the rest, and what
//! is worth least goes, a unit's bytes of it.
//!
//! A round goes twice through some thousand small items, so it is made in steps: it begins before
//! room is needed, and each change takes it on in proportion to the bytes that it stores. Only a
//! change that finds no room before it has ended waits for the rest of it. Between two steps its
//! segments have left (nothing is added to them, and nothing else gives them back), and their items
//! can be read, replaced and removed as all others.
//!
//! No item is sorted: the ranks of scores are sixteenths of an octave, and the bytes of each rank
//! tell which is the last that stays.
//!
//! With far memory each of the two has rounds of its own. What is not worth its place in near
//! memory goes to the far one, if it is worth as much as what stayed there last; of what stays far
//! the best goes near. Each round gives a unit of its memory back.
//!
//! Called by `partition.rs` beside each change, and by `evict.rs` for a whole one.

use super::ranks::{RANKS, Round, RoundStep, Weighed, rank};
use crate::cache::layout::{Header, Pos, UNIT_BYTES};
use crate::cache::partition::Partition;
use crate::cache::policy::Policy;
use crate::cache::segments::{FAR_QUEUE, Memory, Stream};
use crate::cache::{Millis, Mode, Options};

/// Share of the segments that the window may have, percent.
const WINDOW_PERCENT: u64 = 2;
/// Segments of the main queue that a segment of the window competes with. More choose better, and
/// move more.
const COMPETITORS: usize = 3;
/// Bytes that are gone through for each one that is stored. A round that frees a unit goes through
/// four of them twice; so it ends while half a unit is stored.
const PACE: u64 = 16;
/// Bytes that are gone through in one step, or more: some hundred small items; their entries are
/// loaded from memory side by side.
const STEP_BYTES: u64 = 4096;
/// Free units beside the reserve with which the next round begins. A change needs two.
const UNITS_AHEAD: usize = 3;
/// Fewest units of a partition that begins rounds ahead; below, so many are too large a share.
const AHEAD_UNITS_MIN: u64 = 32;
const BATCH: usize = 32;
/// By how many ranks, an octave, the last one that stays far may be higher than a round before.
const FAR_RANKS: u16 = 16;
/// Ranks above the last that stayed near at which an item comes near, a quarter of an octave: so
/// that none goes to and fro.
pub(super) const NEAR_RANKS: u16 = 4;

impl Partition {
    /// Goes on with a round, or begins one if units run short, beside a change that stores so many
    /// bytes.
    #[inline]
    pub(crate) fn tend(&mut self, bytes: u64, now: Millis) {
        if self.round.is_open() {
            // With far memory two rounds give one unit back: one of each memory.
            let rounds = 1 + u64::from(self.segments.far_units() > 0);
            self.round.owed += rounds * PACE * bytes;
            if self.round.owed >= STEP_BYTES {
                self.go_on(self.round.owed, now);
            }
        } else if (self.runs_short(Memory::Near) || self.runs_short(Memory::Far))
            && !self.is_recovering
        {
            self.begin_ahead();
        }
    }

    #[inline]
    fn runs_short(&self, memory: Memory) -> bool {
        self.segments.free_count(memory) < self.ahead_units[memory as usize]
            && (memory == Memory::Near || self.segments.uses_far())
    }

    #[cold]
    fn begin_ahead(&mut self) {
        // What leaves near memory needs room in the far one.
        for memory in [Memory::Far, Memory::Near] {
            // Units that were pinned until now are freed first, then those that lie there unused.
            if self.runs_short(memory)
                && self.segments.reclaim(memory) < self.ahead_units[memory as usize]
            {
                let has_freed = self.segments.take_more(memory) || self.drop_flushed();
                if !has_freed {
                    self.begin_round(memory);
                }
                // All of far memory may be pinned: near memory does not wait for that.
                if has_freed || self.round.is_open() {
                    return;
                }
            }
        }
    }

    /// Free units below which a round begins ahead, none for policies without rounds.
    pub(crate) fn units_ahead(options: &Options, units: u64, reserve: usize) -> usize {
        let has_rounds = options.policy == Policy::TinyLfu && options.mode == Mode::Cache;
        if has_rounds && units >= AHEAD_UNITS_MIN { reserve + UNITS_AHEAD } else { 0 }
    }

    /// A whole round, or the rest of the one that has begun. `false` if there is nothing to weigh.
    pub(crate) fn finish_round(&mut self, memory: Memory, now: Millis) -> bool {
        if !self.round.is_open() {
            let far_reserve = self.reserve_units[Memory::Far as usize];
            if self.segments.uses_far() && !self.has_free_far(far_reserve) {
                self.begin_round(Memory::Far);
            }
            if !self.round.is_open() {
                self.begin_round(memory);
            }
        }
        let has_begun = self.round.is_open();
        self.go_on(u64::MAX, now);
        has_begun
    }

    pub(super) fn begin_round(&mut self, memory: Memory) {
        let mut units = Vec::with_capacity(COMPETITORS + 1);
        match memory {
            Memory::Near => self.take_near(&mut units),
            Memory::Far => self.take_oldest(FAR_QUEUE, COMPETITORS + 1, &mut units),
        }
        if units.is_empty() {
            return;
        }
        // All leave before any is looked at: what dies in one may have pieces in the next.
        units.iter().for_each(|unit| self.segments.leave(*unit));
        let bytes_of_rank = vec![0; RANKS];
        let dead_bytes = match memory {
            Memory::Near => 0,
            Memory::Far => {
                units.iter().map(|unit| self.segments.dead_bytes(*unit)).sum::<u64>() / 2
            }
        };
        self.round = Round { units, memory, bytes_of_rank, dead_bytes, ..Round::default() };
    }

    /// Begins a round that makes room near for what lies far, or first one that makes room far for
    /// what leaves, if `may_be_far`.
    pub(super) fn begin_room_near(&mut self, may_be_far: bool) {
        // A near round sends some unit's bytes there.
        let wanted = self.reserve_units[Memory::Far as usize] + 2;
        let wanted = wanted.min(self.segments.far_units() as usize / 8);
        let is_short = may_be_far && !self.has_free_far(wanted);
        self.begin_round(if is_short { Memory::Far } else { Memory::Near });
    }

    /// Begins a round that makes room near for what lies far, and drops nothing.
    pub(super) fn begin_exchange(&mut self) {
        self.begin_round(Memory::Near);
        self.round.is_exchange = true;
    }

    /// As [`Partition::has_spare`], of far memory, units that lie there unused included.
    pub(super) fn has_far_to_spare(&mut self) -> bool {
        self.has_free_far(self.spare_units(Memory::Far) + 1)
    }

    fn take_near(&self, units: &mut Vec<u32>) {
        let (window, main) = (self.segments.queue_count(0), self.segments.queue_count(1));
        let limit = ((window + main) * WINDOW_PERCENT / 100).max(1);
        // At first everything is in the window: its segments compete with each other.
        let from_window = if window > 2 * limit { COMPETITORS + 1 } else { 1 };
        if window > limit {
            self.take_oldest(0, from_window, units);
        }
        self.take_oldest(1, COMPETITORS + 1 - units.len(), units);
    }

    fn take_oldest(&self, queue: u8, count: usize, units: &mut Vec<u32>) {
        let mut next = self.segments.oldest(queue);
        for _ in 0..count {
            let Some(unit) = next else { return };
            units.push(unit);
            next = self.segments.after(unit);
        }
    }

    /// Goes through so many bytes, if there are as many.
    pub(super) fn go_on(&mut self, bytes: u64, now: Millis) {
        self.disturbances += 1;
        let mut round = std::mem::take(&mut self.round);
        round.owed = 0;
        let mut left = bytes;
        while left > 0 && round.is_open() {
            let gone_through = match round.step {
                RoundStep::Weigh { index, offset } => self.weigh(&mut round, index, offset, now),
                RoundStep::Judge { .. } => self.judge(&mut round, now),
            };
            left = left.saturating_sub(u64::from(gone_through));
        }
        if round.is_open() {
            self.round = round;
        }
    }

    /// Weighs some items that lie there; their bytes. The uses that their entries gathered go to
    /// the sketch.
    fn weigh(&mut self, round: &mut Round, index: usize, offset: u32, now: Millis) -> u32 {
        let Some(unit) = round.units.get(index).copied() else {
            let last = round.last_rank();
            match round.is_exchange {
                true => self.sift.last_exchanged = last.rank,
                false => self.note_last(round.memory, last.rank),
            }
            round.step = RoundStep::Judge { next: 0, last };
            return 0;
        };
        let used = self.segments.get(unit).used;
        let (mut batch, mut count, mut end) = ([(0, Pos::new(unit, 0)); BATCH], 0, offset);
        while end < used && count < BATCH {
            let pos = Pos::new(unit, end);
            let header = self.header(pos);
            end += header.bytes();
            if let Some(hash) = self.hash_of_live(pos, header) {
                self.units.bare().prefetch(self.index.bucket_at(hash));
                batch[count] = (hash, pos);
                count += 1;
            }
        }
        round.step = match end < used {
            true => RoundStep::Weigh { index, offset: end },
            false => RoundStep::Weigh { index: index + 1, offset: 0 },
        };
        for (hash, pos) in &batch[..count] {
            let Some((_, slot)) = self.live_entry(*hash, *pos, now) else { continue };
            let uses = slot.freq() as u8;
            self.policy_state.sketch.count(*hash, uses);
            let bytes = self.bytes_of(*pos, self.header(*pos));
            let rank = rank(self.policy_state.sketch.estimate(*hash), bytes);
            round.add(Weighed { hash: *hash, pos: *pos, bytes, rank, uses });
        }
        end - offset
    }

    /// Segments that went far together may all be hot, or all cold: what stayed last in them says
    /// little of the others, so what may go far is judged more strictly step by step alone.
    fn note_last(&mut self, memory: Memory, rank: u16) {
        let last = &mut self.last_ranks[memory as usize];
        *last = match memory {
            Memory::Near => rank,
            Memory::Far => rank.min(last.saturating_add(FAR_RANKS)),
        };
    }

    /// Keeps or drops the next item; its bytes. A segment that has no other item is given back.
    fn judge(&mut self, round: &mut Round, now: Millis) -> u32 {
        let memory = round.memory;
        let RoundStep::Judge { next, last } = &mut round.step else { return 0 };
        let item = round.weighed.get(*next).copied();
        if let Some(ahead) = round.weighed.get(*next + BATCH) {
            self.units.bare().prefetch(self.index.bucket_at(ahead.hash));
        }
        *next += 1;
        let unit = item.map(|item| item.pos.unit());
        let done = round.units.iter().position(|one| Some(*one) == unit);
        for unit in round.units.drain(..done.unwrap_or(round.units.len())) {
            self.segments.release(unit);
        }
        let Some(item) = item else { return 0 };
        let header = self.header(item.pos);
        if header.has(Header::DEAD) {
            // It was replaced or removed after it was weighed.
            return header.bytes();
        }
        let Some((at, slot)) = self.live_entry(item.hash, item.pos, now) else {
            return header.bytes();
        };
        let is_kept = last.keeps(&item);
        let stream = match self.stream_of_kept(&item, header, memory, is_kept) {
            // Nothing has come that it would have to go for.
            None if round.is_exchange => self.stream_of_exchanged(&item, header),
            stream => stream,
        };
        match stream {
            Some(stream) => {
                let later_uses = slot.freq().saturating_sub(u64::from(item.uses));
                self.keep((at, slot.with_freq(later_uses)), item.hash, stream, now);
            }
            None => {
                self.stats.evictions += 1;
                self.remove(item.hash, (at, slot));
            }
        }
        header.bytes()
    }

    /// Where an item goes that was judged in this memory, and finds room; `None`: it is dropped.
    fn stream_of_kept(
        &self,
        item: &Weighed,
        header: Header,
        memory: Memory,
        is_kept: bool,
    ) -> Option<Stream> {
        let [last_near, last_far] = self.last_ranks;
        let may_go = |stream: &Stream| self.may_move(item.pos, header, *stream);
        if !self.segments.uses_far() {
            let stays = match memory {
                Memory::Near => is_kept && may_go(&Stream::Main),
                // It leaves: what is worth more than what stayed near last comes there.
                Memory::Far => {
                    let is_worth_it = item.rank > last_near || self.has_spare(Memory::Near);
                    is_worth_it && self.has_room_near(item.pos, header)
                }
            };
            return stays.then_some(Stream::Main);
        }
        match (memory, is_kept) {
            // What finds no room near is not lost for that.
            (Memory::Near, true) => [Stream::Main, Stream::Far].into_iter().find(may_go),
            (Memory::Near, false) => {
                // What stayed there last was weighed when it was full.
                let is_worth_it = item.rank >= last_far || self.has_spare(Memory::Far);
                Some(Stream::Far).filter(may_go).filter(|_| is_worth_it)
            }
            (Memory::Far, true) => {
                let has_room_near = self.has_room_near(item.pos, header);
                if has_room_near && self.is_hot(item.rank) && !self.is_split {
                    return Some(Stream::Main);
                }
                let near = has_room_near.then_some(Stream::Main);
                Some(Stream::Far).filter(may_go).or(near)
            }
            // Near memory may be the emptier one, after hot items went far.
            (Memory::Far, false) => {
                let has_room = self.has_spare(Memory::Near) && self.has_room_near(item.pos, header);
                has_room.then_some(Stream::Main)
            }
        }
    }

    /// Where an item goes that leaves near memory for one that is worth more.
    fn stream_of_exchanged(&self, item: &Weighed, header: Header) -> Option<Stream> {
        let may_go = |stream: &Stream| self.may_move(item.pos, header, *stream);
        [Stream::Far, Stream::Main].into_iter().find(may_go)
    }

    /// Whether an item of far memory is worth a place near, as far as use goes.
    pub(super) fn is_hot(&self, rank: u16) -> bool {
        let last_near = self.last_ranks[Memory::Near as usize];
        rank >= last_near.saturating_add(NEAR_RANKS) || self.has_spare(Memory::Near)
    }

    /// Whether a memory has more free units than its rounds leave.
    pub(super) fn has_spare(&self, memory: Memory) -> bool {
        self.segments.free_count(memory) > self.spare_units(memory)
    }

    fn spare_units(&self, memory: Memory) -> usize {
        let kept = self.ahead_units[memory as usize].max(self.reserve_units[memory as usize]);
        kept + COMPETITORS + 1
    }

    /// Whether there is room in near memory for an item from the far one, its reserve apart.
    pub(super) fn has_room_near(&self, pos: Pos, header: Header) -> bool {
        self.has_room(Stream::Main, pos, header)
    }

    /// Whether there is room in a stream for an item, the reserve of its memory apart.
    pub(super) fn has_room(&self, stream: Stream, pos: Pos, header: Header) -> bool {
        let (bytes, memory) = (self.bytes_of(pos, header) + 32, stream.memory());
        let units = bytes / u64::from(UNIT_BYTES - 16) + 1;
        let reserve = self.reserve_units[memory as usize];
        let spare = self.segments.free_count(memory).saturating_sub(reserve);
        let class = self.segments.get(pos.unit()).class;
        bytes <= u64::from(self.segments.room(stream, class)) || units <= spare as u64
    }
}
