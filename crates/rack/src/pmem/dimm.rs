//! A module of persistent memory: two queues, the buffer, the medium.
//!
//! In: accesses of lines. Out: reads that are over, and writes that have left the controller's
//! queue for the buffer; durable they were before, on entering that queue. What it does:
//! - A unit with all lines written is written back at once and stays as a copy; one
//!   that is partly written stays until room is needed, and is read and written then.
//! - The buffer holds blocks of neighbouring units, so that streams side by side have room for few
//!   units at a time, though 16 KiB that lie together fit.
//! - Room is made at random among all blocks: the table of figure 9 rises slowly beyond 64 units,
//!   as with no order of use. Units that are partly written are written for that, unless what is
//!   on its way to the medium will leave room.
//! - A write to a unit that the medium is writing waits for that, at the head of its queue; so
//!   does one that makes a unit whole when as many as can wait for the medium do.
//! - Wear levelling is the guide's guess for its tails. Here a vote finds a block that has most
//!   of the medium's writes (Boyer and Moore); many blocks in turn never win it.

use super::config::{DimmConfig, LINE_BYTES, Wear};
use crate::model::memory::{Done, Medium};
use rackpool_sim::time::Ps;
use rackpool_stats::random::mix64;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DimmCounts {
    /// Lines that were read, and how many of them were in the buffer.
    pub reads: u64,
    pub read_hits: u64,
    /// Lines that the controller wrote.
    pub writes: u64,
    pub media_reads: u64,
    pub media_writes: u64,
    /// Units that were written back though not all of their lines had been written.
    pub partial_writes: u64,
    /// Blocks that wear levelling moved.
    pub moved_blocks: u64,
}

impl DimmCounts {
    #[must_use]
    pub fn since(self, before: DimmCounts) -> DimmCounts {
        DimmCounts {
            reads: self.reads - before.reads,
            read_hits: self.read_hits - before.read_hits,
            writes: self.writes - before.writes,
            media_reads: self.media_reads - before.media_reads,
            media_writes: self.media_writes - before.media_writes,
            partial_writes: self.partial_writes - before.partial_writes,
            moved_blocks: self.moved_blocks - before.moved_blocks,
        }
    }

    #[must_use]
    pub fn and(self, other: DimmCounts) -> DimmCounts {
        DimmCounts {
            reads: self.reads + other.reads,
            read_hits: self.read_hits + other.read_hits,
            writes: self.writes + other.writes,
            media_reads: self.media_reads + other.media_reads,
            media_writes: self.media_writes + other.media_writes,
            partial_writes: self.partial_writes + other.partial_writes,
            moved_blocks: self.moved_blocks + other.moved_blocks,
        }
    }

    /// Bytes from the controller over bytes that the medium wrote; `None` if it wrote none.
    pub fn effective_write_ratio(&self, config: &DimmConfig) -> Option<f64> {
        let units = self.media_writes * config.unit_bytes * config.written_percent;
        (units > 0).then(|| (self.writes * LINE_BYTES) as f64 * 100.0 / units as f64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct DimmAccess {
    id: u64,
    addr: u64,
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum DimmEvent {
    Arrives(DimmAccess),
    Loaded(usize),
    Written(usize),
    /// The medium, or the first access of a queue, can go on.
    GoOn,
    Over {
        id: u64,
        write: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SlotState {
    /// Nothing is under way for it.
    Open,
    /// The medium reads it, or will.
    Loading,
    /// It will be written back; writes still go into it.
    Queued,
    Writing,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct BufferSlot {
    state: SlotState,
    /// A bit for each line that the medium does not have.
    dirty: u8,
    /// A bit for each line that is here.
    valid: u8,
    /// Reads that wait for the medium.
    waiting: Vec<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct DimmQueue {
    accesses: VecDeque<DimmAccess>,
    /// Accesses that are not over.
    under_way: usize,
}

/// Which block has most of the medium's writes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Vote {
    block: u64,
    lead: u64,
    /// The block that is being moved, until when.
    moving: Option<(u64, Ps)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dimm {
    config: DimmConfig,
    /// The block in each place for one.
    tags: Vec<u64>,
    /// Of the units of each block in turn.
    slots: Vec<BufferSlot>,
    /// Of reads and of writes.
    queues: [DimmQueue; 2],
    loads: VecDeque<usize>,
    write_backs: VecDeque<usize>,
    media_free: Ps,
    bus_free: Ps,
    /// A call that was asked for already.
    go_on: Option<Ps>,
    /// The number keeps those of one time in their order.
    events: BinaryHeap<Reverse<(Ps, u64, DimmEvent)>>,
    event_count: u64,
    seed: u64,
    draws: u64,
    vote: Vote,
    counts: DimmCounts,
}

const EMPTY: u64 = u64::MAX;

impl Dimm {
    /// # Panics
    /// If a unit has more than 8 lines, or the buffer no whole number of blocks.
    pub fn new(config: DimmConfig, seed: u64) -> Dimm {
        let lines = config.unit_bytes / LINE_BYTES;
        assert!((1..=8).contains(&lines) && config.blocks() > 0, "{config:?}");
        assert!(config.units.is_multiple_of(config.block_units), "{config:?}");
        let slot = BufferSlot { state: SlotState::Open, dirty: 0, valid: 0, waiting: Vec::new() };
        Dimm {
            config,
            tags: vec![EMPTY; config.blocks()],
            slots: vec![slot; config.units],
            queues: [DimmQueue::default(), DimmQueue::default()],
            loads: VecDeque::new(),
            write_backs: VecDeque::new(),
            media_free: Ps::ZERO,
            bus_free: Ps::ZERO,
            go_on: None,
            events: BinaryHeap::new(),
            event_count: 0,
            seed: mix64(seed),
            draws: 0,
            vote: Vote::default(),
            counts: DimmCounts::default(),
        }
    }

    pub fn config(&self) -> &DimmConfig {
        &self.config
    }

    pub fn counts(&self) -> DimmCounts {
        self.counts
    }

    fn full(&self) -> u8 {
        u8::MAX >> (8 - self.config.unit_bytes / LINE_BYTES)
    }

    fn push(&mut self, at: Ps, event: DimmEvent) {
        self.event_count += 1;
        self.events.push(Reverse((at, self.event_count, event)));
    }

    /// Has itself called then, unless it is before.
    fn go_on_at(&mut self, at: Ps) {
        if self.go_on.is_none_or(|before| at < before) {
            self.go_on = Some(at);
            self.push(at, DimmEvent::GoOn);
        }
    }

    fn handle(&mut self, now: Ps, event: DimmEvent, done: &mut Vec<Done>) {
        match event {
            DimmEvent::Arrives(access) => {
                self.queues[usize::from(access.write)].accesses.push_back(access);
            }
            DimmEvent::Loaded(slot) => {
                let full = self.full();
                let one = &mut self.slots[slot];
                (one.state, one.valid) = (SlotState::Open, full);
                let waiting = std::mem::take(&mut one.waiting);
                if one.dirty == full {
                    self.write_back(slot);
                }
                for id in waiting {
                    self.push(now + self.config.hit, DimmEvent::Over { id, write: false });
                }
            }
            DimmEvent::Written(slot) => {
                let valid = self.full();
                let one = &mut self.slots[slot];
                (one.state, one.dirty, one.valid) = (SlotState::Open, 0, valid);
            }
            // A later one was asked for before: each would ask for one more.
            DimmEvent::GoOn if self.go_on != Some(now) => return,
            DimmEvent::GoOn => self.go_on = None,
            DimmEvent::Over { id, write } => {
                self.queues[usize::from(write)].under_way -= 1;
                done.push(Done { id, at: now });
                return;
            }
        }
        while self.serve(now, 0) | self.serve(now, 1) {}
        self.start_medium(now);
    }

    /// Gives the first access of a queue to the buffer; false if it has to wait.
    fn serve(&mut self, now: Ps, queue: usize) -> bool {
        let Some(access) = self.queues[queue].accesses.front().copied() else { return false };
        if self.bus_free > now {
            self.go_on_at(self.bus_free);
            return false;
        }
        if let Some(until) = self.moving(now, access.addr) {
            self.go_on_at(until);
            return false;
        }
        let unit = access.addr / self.config.unit_bytes;
        let block_units = self.config.block_units;
        let (tag, index) = (unit / block_units as u64, unit as usize % block_units);
        let found = self.tags.iter().position(|&found| found == tag);
        let Some(place) = found.or_else(|| self.make_room()) else { return false };
        if found.is_none() {
            self.tags[place] = tag;
            self.block_mut(place).iter_mut().for_each(|one| one.valid = 0);
        }
        let slot = place * block_units + index;
        let line = 1 << (access.addr % self.config.unit_bytes / LINE_BYTES);
        let is_taken = if access.write {
            self.write(now, slot, line, access.id)
        } else {
            self.read(now, slot, line, access.id);
            true
        };
        if is_taken {
            let queue = &mut self.queues[queue];
            queue.accesses.pop_front();
            self.bus_free = now + self.config.bus_gap;
        }
        is_taken
    }

    /// The units of the block at a place.
    fn block(&self, place: usize) -> &[BufferSlot] {
        let start = place * self.config.block_units;
        &self.slots[start..start + self.config.block_units]
    }

    fn block_mut(&mut self, place: usize) -> &mut [BufferSlot] {
        let start = place * self.config.block_units;
        &mut self.slots[start..start + self.config.block_units]
    }

    fn is_clean(&self, place: usize) -> bool {
        self.block(place).iter().all(|one| one.state == SlotState::Open && one.dirty == 0)
    }

    /// A place for a block that can be used now. While units are on their way to the medium, what
    /// that leaves clean is waited for; only else one is drawn, and written back if need be.
    fn make_room(&mut self) -> Option<usize> {
        if let Some(place) = self.tags.iter().position(|&tag| tag == EMPTY) {
            return Some(place);
        }
        let is_sent =
            |one: &BufferSlot| matches!(one.state, SlotState::Queued | SlotState::Writing);
        if self.slots.iter().any(is_sent) {
            return self.draw(Self::is_clean);
        }
        let is_settled =
            |one: &Self, place| one.block(place).iter().all(|one| one.state == SlotState::Open);
        let place = self.draw(is_settled)?;
        if self.is_clean(place) {
            return Some(place);
        }
        let start = place * self.config.block_units;
        for slot in start..start + self.config.block_units {
            if self.slots[slot].dirty > 0 {
                self.write_back(slot);
            }
        }
        self.draw(Self::is_clean)
    }

    /// One of the places that are meant.
    fn draw(&mut self, is_meant: impl Fn(&Self, usize) -> bool) -> Option<usize> {
        let meant = (0..self.tags.len()).filter(|&place| is_meant(self, place));
        let meant: Vec<usize> = meant.collect();
        if meant.is_empty() {
            return None;
        }
        self.draws += 1;
        Some(meant[(mix64(self.seed ^ self.draws) % meant.len() as u64) as usize])
    }

    fn write_back(&mut self, slot: usize) {
        self.slots[slot].state = SlotState::Queued;
        self.write_backs.push_back(slot);
    }

    fn write(&mut self, now: Ps, slot: usize, line: u8, id: u64) -> bool {
        let full = self.full();
        let one = &mut self.slots[slot];
        let is_whole = one.state == SlotState::Open && one.dirty | line == full;
        let is_full = self.write_backs.len() >= self.config.write_backs_max;
        if one.state == SlotState::Writing || is_whole && is_full {
            return false;
        }
        one.dirty |= line;
        one.valid |= line;
        // One that is read is written back after that.
        if one.dirty == full && one.state == SlotState::Open {
            self.write_back(slot);
        }
        self.counts.writes += 1;
        self.push(now + self.config.bus_gap, DimmEvent::Over { id, write: true });
        true
    }

    fn read(&mut self, now: Ps, slot: usize, line: u8, id: u64) {
        self.counts.reads += 1;
        let one = &mut self.slots[slot];
        match one.state {
            SlotState::Open if one.valid & line == 0 => {
                one.state = SlotState::Loading;
                one.waiting.push(id);
                self.loads.push_back(slot);
            }
            SlotState::Loading => one.waiting.push(id),
            SlotState::Open | SlotState::Queued | SlotState::Writing => {
                self.counts.read_hits += 1;
                self.push(now + self.config.hit, DimmEvent::Over { id, write: false });
            }
        }
    }

    /// Has the medium do what is next, reads first.
    fn start_medium(&mut self, now: Ps) {
        if self.loads.is_empty() && self.write_backs.is_empty() {
            return;
        }
        if self.media_free > now {
            self.go_on_at(self.media_free);
            return;
        }
        if let Some(slot) = self.loads.pop_front() {
            self.counts.media_reads += 1;
            self.media_free = now + self.config.read_gap;
            self.push(now + self.config.media_read, DimmEvent::Loaded(slot));
        } else if let Some(slot) = self.write_backs.pop_front() {
            self.counts.media_writes += 1;
            self.counts.partial_writes += u64::from(self.slots[slot].dirty != self.full());
            self.slots[slot].state = SlotState::Writing;
            self.media_free = now + self.config.write_gap;
            self.push(self.media_free, DimmEvent::Written(slot));
            if let Some(wear) = self.config.wear {
                self.count_wear(now, slot, wear);
            }
        }
        if !(self.loads.is_empty() && self.write_backs.is_empty()) {
            self.go_on_at(self.media_free);
        }
    }

    fn count_wear(&mut self, now: Ps, slot: usize, wear: Wear) {
        let block_bytes = self.config.unit_bytes * self.config.block_units as u64;
        let block = self.tags[slot / self.config.block_units] * block_bytes / wear.block_bytes;
        let vote = &mut self.vote;
        if vote.block == block {
            vote.lead += 1;
        } else if vote.lead == 0 {
            (vote.block, vote.lead) = (block, 1);
        } else {
            vote.lead -= 1;
        }
        if vote.lead >= wear.writes {
            vote.lead = 0;
            vote.moving = Some((block, now + wear.stall));
            self.counts.moved_blocks += 1;
        }
    }

    /// Until when an address's block is being moved.
    fn moving(&self, now: Ps, addr: u64) -> Option<Ps> {
        let (block, until) = self.vote.moving?;
        let bytes = self.config.wear?.block_bytes;
        (until > now && addr / bytes == block).then_some(until)
    }
}

impl Medium for Dimm {
    #[inline]
    fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool {
        let queue = &mut self.queues[usize::from(write)];
        if queue.under_way == self.config.queue_max {
            return false;
        }
        queue.under_way += 1;
        self.push(now, DimmEvent::Arrives(DimmAccess { id, addr, write }));
        true
    }

    #[inline]
    fn next_event(&self) -> Option<Ps> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    fn next_room(&self) -> Ps {
        self.next_event().unwrap_or(Ps::ZERO)
    }

    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            if let Some(Reverse((at, _, event))) = self.events.pop() {
                self.handle(at, event, done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::OPTANE100;
    use super::*;

    fn dimm() -> Dimm {
        Dimm::new(OPTANE100, 1)
    }

    /// Runs until nothing is under way; what was over when.
    fn finish(dimm: &mut Dimm) -> Vec<Done> {
        let mut done = Vec::new();
        while let Some(next) = dimm.next_event() {
            dimm.advance(next, &mut done);
        }
        done
    }

    /// One line after the other, each when the one before is over; the time at the end.
    fn one_by_one(dimm: &mut Dimm, lines: impl Iterator<Item = (u64, bool)>) -> Ps {
        let mut now = Ps::ZERO;
        for (line, write) in lines {
            assert!(dimm.submit(now, line, line * LINE_BYTES, write));
            let mut done = Vec::new();
            while done.is_empty() {
                let next = dimm.next_event().expect("an access is under way");
                dimm.advance(next, &mut done);
                now = next;
            }
        }
        now
    }

    #[test]
    fn a_read_brings_its_unit_and_three_more_find_it() {
        let mut dimm = dimm();
        let took = one_by_one(&mut dimm, (0..4).map(|line| (line, false)));
        let config = OPTANE100;
        assert_eq!(took, config.hit.times(4) + config.media_read);
        let counts = dimm.counts();
        assert_eq!((counts.reads, counts.read_hits, counts.media_reads), (4, 3, 1));
    }

    #[test]
    fn whole_units_are_written_once_and_lines_by_themselves_cost_four_times_as_much() {
        let ratio = |step: u64| {
            let mut dimm = dimm();
            one_by_one(&mut dimm, (0..40_000).map(|line| (line * step, true)));
            finish(&mut dimm);
            dimm.counts().effective_write_ratio(&OPTANE100).unwrap()
        };
        assert!((ratio(1) - 1.0 / 1.04).abs() < 0.01, "{}", ratio(1));
        assert!((ratio(4) - 0.25 / 1.04).abs() < 0.01, "{}", ratio(4));
    }

    #[test]
    fn a_write_to_a_unit_on_its_way_to_the_medium_holds_up_all_behind_it() {
        let mut dimm = dimm();
        for line in 0..4 {
            assert!(dimm.submit(Ps::ZERO, line, line * LINE_BYTES, true));
        }
        // The same unit again, then another one.
        assert!(dimm.submit(Ps::ZERO, 4, 0, true) && dimm.submit(Ps::ZERO, 5, 4096, true));
        let done = finish(&mut dimm);
        let order: Vec<u64> = done.iter().map(|done| done.id).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        let full = OPTANE100.bus_gap.times(3);
        assert!(done[4].at >= full + OPTANE100.write_gap, "{done:?}");
    }

    /// All slots but one are taken by whole units, that one by a partly written one; when a write
    /// to one more is over.
    fn write_to_a_full_buffer(config: DimmConfig, seed: u64) -> Ps {
        let mut dimm = Dimm::new(config, seed);
        let last = (config.units as u64 - 1) * config.unit_bytes / LINE_BYTES;
        for line in (0..=last).chain([1 << 20]) {
            assert!(dimm.submit(Ps::ZERO, line, line * LINE_BYTES, true));
        }
        let done = finish(&mut dimm).pop().expect("writes are over");
        assert_eq!(done.id, 1 << 20);
        done.at
    }

    #[test]
    fn room_is_the_first_clean_block_whichever_was_drawn() {
        let config = DimmConfig { write_backs_max: OPTANE100.units, ..OPTANE100 };
        let units = config.block_units as u64 + 1;
        let most = config.bus_gap.times(256) + config.write_gap.times(units);
        for seed in 0..64 {
            let at = write_to_a_full_buffer(config, seed);
            assert!(at <= most, "seed {seed}: {at:?}");
        }
        let waiting = OPTANE100.units - 2 - OPTANE100.write_backs_max;
        let least = OPTANE100.write_gap.times(waiting as u64);
        assert!(write_to_a_full_buffer(OPTANE100, 0) >= least, "no more wait for the medium");
    }

    #[test]
    fn the_buffer_has_room_for_as_many_streams_as_blocks() {
        let partial = |streams: u64| {
            let mut dimm = dimm();
            let lines = (0..4_000)
                .flat_map(|line| (0..streams).map(move |stream| (stream << 20 | line, true)));
            one_by_one(&mut dimm, lines);
            let counts = dimm.counts();
            counts.partial_writes as f64 / counts.media_writes as f64
        };
        let blocks = OPTANE100.blocks() as u64;
        assert_eq!(partial(blocks / 2), 0.0);
        assert!(partial(2 * blocks) > 0.9, "{}", partial(2 * blocks));
    }

    #[test]
    fn the_medium_sets_the_pace_of_a_stream() {
        let rate = |write: bool| {
            let (mut dimm, mut done, mut now) = (dimm(), Vec::new(), Ps::ZERO);
            let (mut next, lines) = (0, 200_000);
            while done.len() < lines {
                while dimm.submit(now, next, next * LINE_BYTES, write) {
                    next += 1;
                }
                now = dimm.next_event().expect("accesses are under way");
                dimm.advance(now, &mut done);
            }
            (lines as u64 * LINE_BYTES) as f64 / now.as_ns_f64()
        };
        assert!((rate(false) / 6.6 - 1.0).abs() < 0.03, "{} GB/s", rate(false));
        assert!((rate(true) / 2.3 - 1.0).abs() < 0.03, "{} GB/s", rate(true));
    }

    #[test]
    fn a_hot_block_is_moved_and_many_in_turn_are_not() {
        let moved = |lines: u64| {
            let mut dimm = dimm();
            one_by_one(&mut dimm, (0..100_000).map(|line| (line % lines, true)));
            dimm.counts().moved_blocks
        };
        assert_eq!(moved(64), 100_000 / 4 / 4_167);
        assert_eq!(moved((128 << 10) / LINE_BYTES), 0);
    }

    #[test]
    fn a_full_queue_refuses_and_says_when_there_may_be_room() {
        let mut dimm = dimm();
        for id in 0..OPTANE100.queue_max as u64 {
            assert!(dimm.submit(Ps::ZERO, id, id << 20, false));
        }
        assert!(!dimm.submit(Ps::ZERO, 0, 0, false));
        assert!(dimm.submit(Ps::ZERO, u64::MAX, 0, true), "writes have a queue of their own");
        let (mut done, mut next) = (Vec::new(), Ps::ZERO);
        while done.iter().all(|one: &Done| one.id == u64::MAX) {
            next = dimm.next_room();
            dimm.advance(next, &mut done);
        }
        assert!(dimm.submit(next, 0, 0, false));
    }
}
