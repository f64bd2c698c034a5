//! The segments of a partition's log: units taken and given back, the queues in which segments
//! wait for eviction, the ones that are being written to, and the table that tells a later process
//! how far each was written.
//!
//! A segment is *active* (items are appended to it), sealed, or gone; gone while a thread still
//! sends from it, its unit waits until the last pin is dropped. Within a queue segments are in the
//! order in which they were opened, so that a further piece of an item never leaves before its
//! head. `log.rs` and `evict.rs` work on it.
//!
//! A segment's entry in the table, four words, each with check bits of its own:
//!
//! ```text
//! sequence number 50 | check 14                  0 = no segment
//! used 20 | queue 4 | class 8 | check 32         stored after the item that it covers
//! sequence number 50 | check 14                  once more
//! time of opening 50 | check 14
//! ```
//!
//! The first word is stored before the third when a segment is opened, and taken back after it: a
//! segment is there if one of the two says so, and a damaged word costs nothing. Unit 0 is no
//! segment; second and third word of its entry are the sequence number that comes next, so that a
//! later process gives none twice, and no cas; first and fourth word are the number that came next
//! when all was last flushed.
//!
//! A flush marks nothing but this number: segments with a lower one are *flushed*. They stand in a
//! queue of their own until each is given back, and count no more as memory in use.
//!
//! Units of a file come into use as the file gets their memory (`populate.rs`): until then they are
//! neither free nor anything else.

mod far;
mod queues;
mod withheld;

use super::layout::{Header, UNIT_BYTES, mix};
use super::populate::Populator;
use super::{Millis, WALL_TIME};
use far::FarUnits;
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use withheld::WithheldUnits;

pub(crate) const TABLE_ENTRY_BYTES: u64 = 32;
/// Queues: policies with two use the first for what is new; the third is that of far segments.
const QUEUES: usize = 3;
/// The queue behind them, of flushed segments.
const FLUSHED: usize = QUEUES;
/// Streams in which items are appended, each to a segment of its own.
const STREAMS: usize = 4;
/// Classes of like remaining life: 0 never ends, each further one ends within four times the time;
/// the last is of what ends by the wall clock, so that one clock decides over all of a segment.
pub(crate) const CLASSES: usize = 10;
const WALL_CLASS: u8 = CLASSES as u8 - 1;
/// Fewest units of a memory that keeps classes apart; below, they would be mostly empty.
const CLASS_UNITS_MIN: usize = 128;
/// Remaining life of the first class that ends.
const CLASS_MS_MIN: u64 = 16_000;
/// Where the next sequence number lies in the table, twice.
const NEXT_SEQ_AT: [u64; 2] = [8, 16];
/// Where the next one at the time of the last flush lies, twice.
const FLUSHED_SEQ_AT: [u64; 2] = [0, 24];
/// Bits of a word of the table that are not its check.
const GUARDED_BITS: u32 = 50;
/// Above all sequence numbers: a cas has 13 bits more.
const SEQ_LIMIT: u64 = 1 << GUARDED_BITS;
/// Where queue and class begin in a segment's second word, behind what is used.
const QUEUE_SHIFT: u32 = 20;
const CLASS_SHIFT: u32 = 24;
/// Sequence numbers that are left out if both words with the next one are damaged: more than any
/// process has given since the youngest segment that is left was opened.
const SEQ_LEAP: u64 = 1 << 32;
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// To the young end of the first queue.
    New,
    /// To the young end of the second queue.
    Main,
    /// Somewhere in the first queue.
    InPlace,
    /// To the young end of the queue of far segments.
    Far,
}

impl Stream {
    const ALL: [Stream; STREAMS] = [Stream::New, Stream::Main, Stream::InPlace, Stream::Far];

    fn queue(self) -> u8 {
        match self {
            Stream::New | Stream::InPlace => 0,
            Stream::Main => 1,
            Stream::Far => FAR_QUEUE,
        }
    }

    pub fn memory(self) -> Memory {
        if self == Stream::Far { Memory::Far } else { Memory::Near }
    }
}

/// The queue of far segments.
pub(crate) const FAR_QUEUE: u8 = 2;

/// In which memory a unit lies: the first units are near ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Memory {
    /// This process's own, with the index.
    #[default]
    Near,
    Far,
}

/// A number with its check, for this place in the table.
fn guard(at: u64, value: u64) -> u64 {
    value | (mix(at, value) >> GUARDED_BITS << GUARDED_BITS)
}

/// The number of a word of the table, if its check holds.
fn guarded(at: u64, word: u64) -> Option<u64> {
    let value = word & (SEQ_LIMIT - 1);
    (guard(at, value) == word).then_some(value)
}

#[derive(Clone, Copy)]
struct WrittenState {
    used: u32,
    queue: u8,
    class: u8,
}

fn state_word(at: u64, seq: u64, WrittenState { used, queue, class }: WrittenState) -> u64 {
    let state = used | u32::from(queue) << QUEUE_SHIFT | u32::from(class) << CLASS_SHIFT;
    u64::from(state) | (mix(seq, at << 32 | u64::from(state)) >> 32 << 32)
}

/// What a segment's second word says, if its check holds.
fn state_in(at: u64, seq: u64, word: u64) -> Option<WrittenState> {
    let low = word as u32;
    let used = low & ((1 << QUEUE_SHIFT) - 1);
    let (queue, class) = ((low >> QUEUE_SHIFT) as u8 & 0xf, (low >> CLASS_SHIFT) as u8);
    let state = WrittenState { used, queue, class };
    let is_sane = used <= UNIT_BYTES
        && used.is_multiple_of(8)
        && usize::from(queue) < QUEUES
        && usize::from(class) < CLASSES;
    (is_sane && state_word(at, seq, state) == word).then_some(state)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Adopted {
    pub unit: u32,
    /// How far it was written, if that is known.
    pub used: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SegmentState {
    Free,
    Index,
    Active,
    Sealed,
    /// Being evicted: given back when all its items are judged.
    Leaving,
    /// Given back while pinned.
    Pinned,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Number of its opening, ascending in the partition; 0 if it is no segment.
    pub seq: u64,
    pub kind: SegmentState,
    pub queue: u8,
    pub class: u8,
    pub used: u32,
    pub live: u32,
    /// Bytes of keys and values in them.
    payload: u32,
    /// When its last item expires, by its clock; 0 if none does, `Millis::MAX` if one never does.
    pub expires_max: Millis,
    pub opened: Millis,
    /// Whether it holds a piece of an item in pieces: a piece does not know its item.
    pub is_fixed: bool,
    prev: u32,
    next: u32,
}

impl Segment {
    /// Which clock decides when its items expire: 1 is the wall's.
    pub fn clock(&self) -> usize {
        usize::from(self.class == WALL_CLASS)
    }
}

const UNUSED: Segment = Segment {
    seq: 0,
    kind: SegmentState::Free,
    queue: 0,
    class: 0,
    used: 0,
    live: 0,
    payload: 0,
    expires_max: 0,
    opened: 0,
    is_fixed: false,
    prev: NONE,
    next: NONE,
};

#[derive(Debug)]
pub(crate) struct Pins(Box<[AtomicU32]>);

impl Pins {
    pub fn pin(&self, unit: u32) {
        // Relaxed: made under the partition's lock, which orders it before any eviction.
        self.0[unit as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn unpin(&self, unit: u32) {
        // Release: pairs with the Acquire in segments.rs::is_free; our reads stay before it.
        let before = self.0[unit as usize].fetch_sub(1, Ordering::Release);
        assert!(before > 0, "a pin is dropped once");
    }

    /// Whether no reader sends from a unit without a segment.
    fn is_free(&self, unit: u32) -> bool {
        // Acquire: pairs with the Release in segments.rs::unpin.
        self.0[unit as usize].load(Ordering::Acquire) == 0
    }
}

#[derive(Clone, Copy, Debug)]
struct SegmentQueue {
    first: u32,
    last: u32,
    count: u64,
}

#[derive(Debug)]
pub(crate) struct Segments {
    table: Window,
    of: Vec<Segment>,
    /// Units from this one on are far.
    near_units: u32,
    pub far: FarUnits,
    /// By memory.
    free: [Vec<u32>; 2],
    withheld: WithheldUnits,
    pinned: Vec<u32>,
    /// How the units from `untaken` on get their memory.
    pub populator: Option<Arc<Populator>>,
    /// The first unit that was never free, for want of its memory.
    untaken: u32,
    pub pins: Arc<Pins>,
    queues: [SegmentQueue; QUEUES + 1],
    active: [[u32; CLASSES]; STREAMS],
    /// The segment that SIEVE judges next; `NONE` = the oldest.
    hand: u32,
    next_seq: u64,
    /// Segments with a lower number are flushed.
    flushed_before: u64,
    /// Sealed segments in which all items expire, by their clock and the time of the last.
    expiring: [BTreeSet<(Millis, u32)>; 2],
    live_bytes: u64,
    payload_bytes: u64,
    /// Of the live bytes, those in far memory.
    far_bytes: u64,
}

impl Segments {
    /// Private bytes that a unit costs here: its segment, pin, place in the free list, and its
    /// share of the set of expiring segments.
    pub const PRIVATE_BYTES: u64 = size_of::<Segment>() as u64 + 4 + 4 + 24;

    /// All units free, those that `populator` is still to take excepted. The last `far_units` are
    /// far, and used; of these none is taken later.
    pub fn new(table: Window, far_units: u32, populator: Option<Arc<Populator>>) -> Segments {
        let count = table.bytes() / TABLE_ENTRY_BYTES;
        let untaken = populator.as_ref().map_or(count as u32, |populator| populator.taken());
        let empty = SegmentQueue { first: NONE, last: NONE, count: 0 };
        let near_units = count as u32 - far_units;
        Segments {
            table,
            of: vec![UNUSED; count as usize],
            near_units,
            far: FarUnits::new(near_units, count as u32),
            free: [(0..untaken.min(near_units)), (near_units..untaken.max(near_units))]
                .map(|units| units.rev().collect()),
            withheld: WithheldUnits::default(),
            pinned: Vec::new(),
            populator,
            untaken,
            pins: Arc::new(Pins((0..count).map(|_| AtomicU32::new(0)).collect())),
            queues: [empty; QUEUES + 1],
            active: [[NONE; CLASSES]; STREAMS],
            hand: NONE,
            next_seq: 1,
            flushed_before: 0,
            expiring: Default::default(),
            live_bytes: 0,
            payload_bytes: 0,
            far_bytes: 0,
        }
    }

    /// The segments that an earlier process left in the table, oldest first, all leaving and
    /// without live items until they are [`Segments::settle`]d; units that are none are free. And
    /// how many words of the table were damaged.
    pub fn adopt(table: Window, far_units: u32) -> (Segments, Vec<Adopted>, u64) {
        let mut segments = Segments::new(table, far_units, None);
        let (flushed, mut damaged) = segments.read_twice(FLUSHED_SEQ_AT);
        // The lower one: if a damaged word passes for a right one, nothing is lost by it.
        segments.flushed_before = flushed.into_iter().flatten().min().unwrap_or(0);
        let mut found = Vec::new();
        for unit in 1..segments.of.len() as u32 {
            let at = u64::from(unit) * TABLE_ENTRY_BYTES;
            let (segment, used, damaged_words) = segments.read_entry(at);
            damaged += damaged_words;
            match segment {
                Some(mut segment) if segment.seq >= segments.flushed_before => {
                    // A damaged word may have told another queue.
                    segment.queue = match segments.memory_of(unit) {
                        Memory::Near if segment.queue == FAR_QUEUE => 0,
                        Memory::Near => segment.queue,
                        Memory::Far => FAR_QUEUE,
                    };
                    found.push((segment.seq, Adopted { unit, used }));
                    segments.of[unit as usize] = segment;
                    segments.far.in_use += u32::from(unit >= segments.near_units);
                }
                Some(_) | None => segments.erase_entry(unit),
            }
        }
        for free in &mut segments.free {
            free.retain(|unit| segments.of[*unit as usize].seq == 0);
        }
        found.sort_unstable_by_key(|(seq, _)| *seq);
        let behind = found.last().map_or(1, |(seq, _)| seq + 1);
        let (noted, damaged_words) = segments.read_twice(NEXT_SEQ_AT);
        damaged += damaged_words;
        let next = noted.into_iter().flatten().max().unwrap_or(behind + SEQ_LEAP);
        segments.next_seq = next.max(behind).max(segments.flushed_before);
        segments.note(NEXT_SEQ_AT, segments.next_seq);
        segments.note(FLUSHED_SEQ_AT, segments.flushed_before);
        for (_, adopted) in &found {
            segments.link(adopted.unit, NONE);
        }
        (segments, found.into_iter().map(|(_, adopted)| adopted).collect(), damaged)
    }

    /// The number that lies in two words of the first entry, where it is right, and how many are
    /// damaged.
    fn read_twice(&self, at: [u64; 2]) -> ([Option<u64>; 2], u64) {
        let words = at.map(|at| (at, self.table.load(at)));
        let is_wrong = |(at, word): &&(u64, u64)| *word != 0 && guarded(*at, *word).is_none();
        let damaged = words.iter().filter(is_wrong).count() as u64;
        (words.map(|(at, word)| guarded(at, word)), damaged)
    }

    /// The segment by its entry in the table, how far it was written if that is known, and how many
    /// of its words are damaged.
    fn read_entry(&self, at: u64) -> (Option<Segment>, Option<u32>, u64) {
        let [first, state, second, opened] = [0, 8, 16, 24].map(|of| self.table.load(at + of));
        let seqs = [(at, first), (at + 16, second)].map(|(at, word)| guarded(at, word));
        // No process leaves the second one alone.
        let is_wrong = |index: usize, word: u64| u64::from(seqs[index].is_none() && word != 0);
        let mut damaged = is_wrong(0, first) + is_wrong(1, second);
        let seqs = seqs.map(|seq| seq.filter(|seq| *seq != 0));
        // If both seem to be right and differ, the one that vouches for the rest is.
        let known = |seq: &u64| state_in(at + 8, *seq, state).is_some();
        let mut both = seqs.into_iter().flatten();
        let Some(seq) = both.clone().find(known).or_else(|| both.next()) else {
            return (None, None, damaged);
        };
        damaged += u64::from(first == 0);
        let state = state_in(at + 8, seq, state);
        let opened = guarded(at + 24, opened);
        damaged += u64::from(state.is_none()) + u64::from(opened.is_none());
        let unknown = WrittenState { used: UNIT_BYTES, queue: 0, class: 0 };
        let WrittenState { used, queue, class } = state.unwrap_or(unknown);
        // A segment without a known time is never reported as idle.
        let opened = opened.unwrap_or(Millis::MAX);
        let kind = SegmentState::Leaving;
        let segment = Segment { seq, kind, queue, class, used, opened, ..UNUSED };
        (Some(segment), state.map(|state| state.used), damaged)
    }

    /// All items of an adopted segment are known, which end at `used`: from now on it is a sealed
    /// one like others, or gone if nothing lives in it. Its entry in the table is whole again.
    pub fn settle(&mut self, unit: u32, used: u32) {
        let segment = &mut self.of[unit as usize];
        segment.used = used;
        if segment.live == 0 {
            return self.release(unit);
        }
        segment.kind = SegmentState::Sealed;
        if segment.expires_max != Millis::MAX {
            self.expiring[segment.clock()].insert((segment.expires_max, unit));
        }
        self.write_entry(unit);
    }

    /// Enters a segment in the table, the sequence numbers last.
    fn write_entry(&self, unit: u32) {
        let (at, segment) = (u64::from(unit) * TABLE_ENTRY_BYTES, self.get(unit));
        self.publish(unit);
        let opened = segment.opened & (SEQ_LIMIT - 1);
        self.table.store(at + 24, guard(at + 24, opened));
        self.table.store(at, guard(at, segment.seq));
        self.table.store(at + 16, guard(at + 16, segment.seq));
    }

    /// Takes a segment out of the table, the first word last.
    fn erase_entry(&self, unit: u32) {
        let at = u64::from(unit) * TABLE_ENTRY_BYTES;
        self.table.store(at + 16, 0);
        self.table.store(at, 0);
    }

    /// This piece of a segment lives.
    pub fn credit(&mut self, unit: u32, header: Header) {
        let (bytes, payload) = (header.bytes(), header.payload_bytes());
        let far = self.if_far(unit, bytes);
        let segment = &mut self.of[unit as usize];
        segment.live += bytes;
        segment.payload += payload;
        self.live_bytes += u64::from(bytes);
        self.payload_bytes += u64::from(payload);
        self.far_bytes += far;
    }

    /// Something in the segment lives until then; 0 = for ever.
    pub fn prolong(&mut self, unit: u32, expires: Millis) {
        let segment = &mut self.of[unit as usize];
        let is_of_its_clock = (expires & WALL_TIME != 0) == (segment.class == WALL_CLASS);
        let until = match expires {
            0 => Millis::MAX,
            expires if is_of_its_clock => expires & !WALL_TIME,
            // Its class was damaged.
            _ => Millis::MAX,
        };
        segment.expires_max = segment.expires_max.max(until);
    }

    pub fn count(&self) -> usize {
        self.of.len()
    }

    /// A cas that no item has or will have.
    pub fn unused_cas(&mut self) -> u64 {
        self.take_seq() << 13
    }

    fn take_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.note(NEXT_SEQ_AT, self.next_seq);
        self.next_seq - 1
    }

    fn note(&self, at: [u64; 2], value: u64) {
        at.iter().for_each(|at| self.table.store(*at, guard(*at, value)));
    }

    /// A unit, if there is one of this number.
    pub fn find(&self, unit: u32) -> Option<&Segment> {
        self.of.get(unit as usize)
    }

    pub fn get(&self, unit: u32) -> &Segment {
        &self.of[unit as usize]
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of live items in far memory.
    pub fn far_bytes(&self) -> u64 {
        self.far_bytes
    }

    /// Of so many bytes in a unit, those in far memory: all or none.
    fn if_far(&self, unit: u32, bytes: u32) -> u64 {
        if unit < self.near_units { 0 } else { u64::from(bytes) }
    }

    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub fn memory_of(&self, unit: u32) -> Memory {
        if unit < self.near_units { Memory::Near } else { Memory::Far }
    }

    pub fn far_units(&self) -> u32 {
        self.of.len() as u32 - self.near_units
    }

    pub fn near_units(&self) -> u32 {
        self.near_units
    }

    /// Bytes of a segment in which nothing lives any more.
    pub fn dead_bytes(&self, unit: u32) -> u64 {
        let segment = self.get(unit);
        u64::from(segment.used - segment.live)
    }

    pub fn free_count(&self, memory: Memory) -> usize {
        self.free[memory as usize].len()
    }

    /// Units that can come into use without anything else going: those that have no memory yet,
    /// too.
    pub fn unused_count(&self) -> usize {
        let near = self.free_count(Memory::Near) + self.of.len() - self.untaken as usize;
        near + self.far_unused()
    }

    /// Units of a file that got their memory meanwhile are free from now on; if there are none,
    /// some is taken. Whether there are more free ones of a memory now.
    pub fn take_more(&mut self, memory: Memory) -> bool {
        if memory == Memory::Far {
            return self.take_more_far();
        }
        let Some(populator) = &self.populator else { return false };
        if populator.taken() == self.untaken && !populator.take_next().unwrap_or(false) {
            return false;
        }
        let taken = populator.taken();
        self.free[Memory::Near as usize].extend((self.untaken..taken).rev());
        self.untaken = taken;
        true
    }

    /// Free units of a memory; those without a pin by now are free again.
    pub fn reclaim(&mut self, memory: Memory) -> usize {
        let pins = &self.pins;
        let (back, still) = self.pinned.drain(..).partition(|unit| pins.is_free(*unit));
        self.pinned = still;
        let back: Vec<u32> = back;
        for unit in back {
            self.of[unit as usize].kind = SegmentState::Free;
            self.give_back(unit);
        }
        self.free_count(memory)
    }

    fn give_back(&mut self, unit: u32) {
        let memory = self.memory_of(unit);
        if memory == Memory::Far {
            self.far.in_use -= 1;
            if unit >= self.far.unlisted {
                return;
            }
        }
        self.free[memory as usize].push(unit);
    }

    /// Takes a free unit for the index.
    pub fn take_for_index(&mut self) -> Option<u32> {
        let unit = self.free[Memory::Near as usize].pop()?;
        self.of[unit as usize].kind = SegmentState::Index;
        Some(unit)
    }

    /// The class of an item that expires at `expires`.
    pub fn class_of(&self, expires: Millis, now: Millis) -> u8 {
        if expires == 0 {
            return 0;
        }
        if expires & WALL_TIME != 0 {
            return WALL_CLASS;
        }
        // Each of the two memories has segments of all classes.
        let far_units = if self.far_units() == 0 { u32::MAX } else { self.far_units() };
        if (self.near_units.min(far_units) as usize) < CLASS_UNITS_MIN {
            return 1;
        }
        let sixteens = expires.saturating_sub(now) / CLASS_MS_MIN;
        let class = 1 + (u64::BITS - sixteens.leading_zeros()).div_ceil(2) as usize;
        class.min(CLASSES - 2) as u8
    }

    /// The unit that items of a stream and class are appended to.
    #[inline]
    pub fn active(&self, stream: Stream, class: u8) -> Option<u32> {
        let unit = self.active[stream as usize][class as usize];
        (unit != NONE).then_some(unit)
    }

    #[inline]
    pub fn room(&self, stream: Stream, class: u8) -> u32 {
        self.active(stream, class).map_or(0, |unit| UNIT_BYTES - self.of[unit as usize].used)
    }

    /// Seals the active segment and opens another: in place before the hand, else at the
    /// young end of its queue.
    /// `None` without a free unit.
    pub fn open(&mut self, stream: Stream, class: u8, now: Millis) -> Option<u32> {
        let unit = self.free[stream.memory() as usize].pop()?;
        self.far.in_use += u32::from(stream == Stream::Far);
        self.seal(stream, class);
        let queue = stream.queue();
        let seq = self.take_seq();
        self.of[unit as usize] =
            Segment { seq, kind: SegmentState::Active, queue, class, opened: now, ..UNUSED };
        self.link(unit, if stream == Stream::InPlace { self.hand } else { NONE });
        self.active[stream as usize][class as usize] = unit;
        self.write_entry(unit);
        Some(unit)
    }

    /// Nothing more is appended to the active segment.
    pub fn seal(&mut self, stream: Stream, class: u8) {
        let active = std::mem::replace(&mut self.active[stream as usize][class as usize], NONE);
        if active == NONE {
            return;
        }
        let segment = &mut self.of[active as usize];
        segment.kind = SegmentState::Sealed;
        if segment.live == 0 {
            self.release(active);
        } else if segment.expires_max != Millis::MAX {
            self.expiring[segment.clock()].insert((segment.expires_max, active));
        }
    }

    /// Takes room for a piece in an active segment; the offset.
    #[inline]
    pub fn take(&mut self, unit: u32, header: Header, expires: Millis) -> u32 {
        self.credit(unit, header);
        let segment = &mut self.of[unit as usize];
        let (offset, bytes) = (segment.used, header.bytes());
        assert!(bytes <= UNIT_BYTES - offset, "an item ends in its segment");
        segment.used += bytes;
        self.prolong(unit, expires);
        offset
    }

    /// Tells a later process how far the segment has been written.
    #[inline]
    pub fn publish(&self, unit: u32) {
        let segment = &self.of[unit as usize];
        let at = u64::from(unit) * TABLE_ENTRY_BYTES + 8;
        let &Segment { seq, used, queue, class, .. } = segment;
        self.table.store(at, state_word(at, seq, WrittenState { used, queue, class }));
    }

    /// A piece of the segment is dead. The segment is given back when nothing lives in it.
    pub fn debit(&mut self, unit: u32, header: Header) {
        let (bytes, payload) = (header.bytes(), header.payload_bytes());
        let far = self.if_far(unit, bytes);
        let segment = &mut self.of[unit as usize];
        assert!(bytes <= segment.live && payload <= segment.payload, "what dies has lived");
        segment.live -= bytes;
        segment.payload -= payload;
        if segment.seq >= self.flushed_before {
            self.live_bytes -= u64::from(bytes);
            self.payload_bytes -= u64::from(payload);
            self.far_bytes -= far;
        }
        if segment.live == 0 && segment.kind == SegmentState::Sealed {
            self.release(unit);
        }
    }

    /// Takes a segment out of its queue, to be judged item by item and then [`Segments::release`]d.
    pub fn leave(&mut self, unit: u32) {
        let kind = self.of[unit as usize].kind;
        assert!(
            matches!(kind, SegmentState::Active | SegmentState::Sealed),
            "a segment leaves once"
        );
        if kind == SegmentState::Active {
            let mut active = self.active.iter_mut().flatten();
            *active.find(|active| **active == unit).expect("an active segment is in use") = NONE;
        }
        let segment = &self.of[unit as usize];
        self.expiring[segment.clock()].remove(&(segment.expires_max, unit));
        self.of[unit as usize].kind = SegmentState::Leaving;
    }

    pub fn release(&mut self, unit: u32) {
        let segment = self.of[unit as usize].clone();
        assert!(
            matches!(segment.kind, SegmentState::Sealed | SegmentState::Leaving),
            "{segment:?}"
        );
        if segment.seq >= self.flushed_before {
            self.live_bytes -= u64::from(segment.live);
            self.payload_bytes -= u64::from(segment.payload);
            self.far_bytes -= self.if_far(unit, segment.live);
        }
        self.expiring[segment.clock()].remove(&(segment.expires_max, unit));
        self.unlink(unit);
        self.erase_entry(unit);
        self.of[unit as usize] = UNUSED;
        if self.pins.is_free(unit) {
            self.give_back(unit);
        } else {
            self.of[unit as usize].kind = SegmentState::Pinned;
            self.pinned.push(unit);
        }
    }

    fn queue_of(&self, unit: u32) -> usize {
        if self.is_flushed(unit) { FLUSHED } else { usize::from(self.of[unit as usize].queue) }
    }

    pub fn oldest(&self, queue: u8) -> Option<u32> {
        let unit = self.queues[queue as usize].first;
        (unit != NONE).then_some(unit)
    }

    /// The segment behind this one in its queue.
    pub fn after(&self, unit: u32) -> Option<u32> {
        let next = self.of[unit as usize].next;
        (next != NONE).then_some(next)
    }

    pub fn queue_count(&self, queue: u8) -> u64 {
        self.queues[queue as usize].count
    }

    /// The segment that the hand is at, `None` at the end of the queue.
    pub fn hand(&self) -> Option<u32> {
        (self.hand != NONE).then_some(self.hand)
    }

    /// The segment that the hand is at, or the oldest; the hand goes on to the next.
    pub fn take_hand(&mut self) -> Option<u32> {
        let unit = self.hand().or_else(|| self.oldest(0))?;
        self.hand = self.of[unit as usize].next;
        Some(unit)
    }

    /// Seals all active segments of a stream.
    pub fn seal_stream(&mut self, stream: Stream) {
        (0..CLASSES as u8).for_each(|class| self.seal(stream, class));
    }

    /// The sealed segments without pieces of which `dead_min` bytes or more are dead, those with
    /// the most first: up to `count`.
    pub fn deadest(&self, dead_min: u32, count: usize) -> Vec<u32> {
        let segments = (0..).zip(&self.of);
        let mut dead: Vec<(u32, u32)> = segments
            .filter(|(_, segment)| segment.kind == SegmentState::Sealed && !segment.is_fixed)
            .map(|(unit, segment)| (segment.used - segment.live, unit))
            .filter(|(dead, _)| *dead >= dead_min)
            .collect();
        dead.sort_unstable_by(|a, b| b.cmp(a));
        dead.into_iter().take(count).map(|(_, unit)| unit).collect()
    }

    /// The segment holds a piece from now on.
    pub fn fix(&mut self, unit: u32) {
        self.of[unit as usize].is_fixed = true;
    }

    /// A segment in which all items have expired, by the times of both clocks.
    pub fn expired(&self, nows: [Millis; 2]) -> Option<u32> {
        let firsts =
            self.expiring.iter().zip(nows).filter_map(|(of, now)| Some((of.first()?, now)));
        let mut over = firsts.filter(|((expires, _), now)| expires <= now);
        over.next().map(|((_, unit), _)| *unit)
    }

    /// Active segments in which all items have expired.
    pub fn expired_active(&self, nows: [Millis; 2]) -> Option<u32> {
        let active = self.active.iter().flatten().copied().filter(|unit| *unit != NONE);
        let mut active = active.filter(|unit| {
            let segment = &self.of[*unit as usize];
            segment.used > 0 && segment.expires_max <= nows[segment.clock()]
        });
        active.next()
    }
}
