//! The segments of a partition's log: units taken and given back, the queues in which segments
//! wait for eviction, the ones that are being written to, and the table that tells a later process
//! how far each was written.
//!
//! A segment is *active* (items are appended to it), sealed, or gone; gone while somebody still
//! sends from it, its unit waits until the last pin is dropped. If pages of it were lent to
//! sockets, which nobody gives back, the unit gets others before it is free. Within a queue
//! segments are in the order in which they were opened, so that a further piece of an item never
//! leaves before its head. `log.rs` and `evict.rs` work on it.
//!
//! A segment's entry in the table, four words: sequence number (0 = no segment), {used 32 | queue
//! 8 | class 8}, latest expiry, time of opening. Used is stored after the item that it covers. Unit
//! 0 is no segment; the second word of its entry is the sequence number that comes next, so that a
//! later process gives none twice, and no cas.

use super::Millis;
use super::layout::{Header, UNIT_BYTES, UNIT_SHIFT};
use rackpool_core::seam::Mem;
use rackpool_hw::window::Window;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a unit's entry in the table.
pub(crate) const TABLE_ENTRY_BYTES: u64 = 32;
/// Queues: policies with two use the first for what is new.
const QUEUES: usize = 2;
/// Streams in which items are appended, each to a segment of its own.
const STREAMS: usize = 3;
/// Classes of like remaining life: 0 never ends, each further one ends within four times the time.
pub(crate) const CLASSES: usize = 9;
/// Fewest units of a partition that keeps classes apart; below, they would be mostly empty.
const CLASS_UNITS_MIN: usize = 128;
/// Remaining life of the first class that ends.
const CLASS_MS_MIN: u64 = 16_000;
/// Where the next sequence number lies in the table.
const NEXT_SEQ_AT: u64 = 8;
/// Above all sequence numbers: a cas has 13 bits more.
const SEQ_LIMIT: u64 = 1 << 50;
/// No unit.
pub(crate) const NONE: u32 = u32::MAX;

/// Where items are appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    /// To the young end of the first queue.
    New,
    /// To the young end of the second queue.
    Main,
    /// Somewhere in the first queue.
    InPlace,
}

impl Stream {
    fn queue(self) -> u8 {
        u8::from(self == Stream::Main)
    }
}

/// What a unit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Free,
    Index,
    Active,
    Sealed,
    /// Being evicted: given back when all its items are judged.
    Leaving,
    /// Given back while pinned, or before lent pages could be replaced.
    Pinned,
}

/// What is known of a unit.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Number of its opening, ascending in the partition; 0 if it is no segment.
    pub seq: u64,
    pub kind: Kind,
    pub queue: u8,
    pub class: u8,
    pub used: u32,
    /// Bytes of live pieces.
    pub live: u32,
    /// Bytes of keys and values in them.
    payload: u32,
    /// When its last item expires; 0 if none does, `Millis::MAX` if one never does.
    pub expires_max: Millis,
    pub opened: Millis,
    /// Whether it holds a piece of an item in pieces: a piece does not know its item.
    pub is_fixed: bool,
    prev: u32,
    next: u32,
}

const UNUSED: Segment = Segment {
    seq: 0,
    kind: Kind::Free,
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

/// How many readers send from each unit; how many long values that begin in it were read, up to
/// [`LENT_AFTER`]; and whether pages of it were lent.
#[derive(Debug)]
pub(crate) struct Pins(Box<[AtomicU64]>);

/// Readers, in a word of [`Pins`].
const PINS_MASK: u64 = READ - 1;
/// A read of a long value.
const READ: u64 = 1 << 40;
/// Pages were lent.
const LENT: u64 = 1 << 63;
/// Shortest value whose memory is lent: below, a copy from a cache near by is as cheap.
pub(crate) const LENT_BYTES_MIN: u64 = 256 << 10;
/// Reads of a long value before its memory is lent: one that is read less often before it goes
/// would gain less than its unit's new pages cost.
const LENT_AFTER: u64 = 2;

impl Pins {
    pub fn pin(&self, unit: u32) {
        // Relaxed: made under the partition's lock, which orders it before any eviction.
        self.0[unit as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn unpin(&self, unit: u32) {
        // Release: pairs with the Acquire in segments.rs::has_back; our reads stay before it.
        let before = self.0[unit as usize].fetch_sub(1, Ordering::Release);
        assert!(before & PINS_MASK > 0, "a pin is dropped once");
    }

    /// Counts a read of a long value that begins there; whether there were enough before to lend
    /// it.
    pub fn count_read(&self, unit: u32) -> bool {
        let word = &self.0[unit as usize];
        // Relaxed: for the holder of the partition's lock, the only one who counts.
        let is_enough =
            (word.load(Ordering::Relaxed) & !LENT) >> READ.trailing_zeros() >= LENT_AFTER;
        if !is_enough {
            // Relaxed: as above.
            word.fetch_add(READ, Ordering::Relaxed);
        }
        is_enough
    }

    /// Pages of a unit that the caller has pinned are lent.
    pub fn lend(&self, unit: u32) {
        // Relaxed: the caller's unpin follows.
        self.0[unit as usize].fetch_or(LENT, Ordering::Relaxed);
    }

    /// Whether nobody sends from a unit without a segment, nor reads what was lent of it: `units`
    /// gets new pages for that.
    fn has_back(&self, unit: u32, units: &Window) -> bool {
        let word = &self.0[unit as usize];
        // Acquire: pairs with the Release in segments.rs::unpin.
        let now = word.load(Ordering::Acquire);
        if now & PINS_MASK > 0 {
            return false;
        }
        if now & LENT != 0 {
            let at = u64::from(unit) << UNIT_SHIFT;
            if units.renew(at, u64::from(UNIT_BYTES)).is_err() {
                return false;
            }
        }
        // Relaxed: without a segment, nobody else comes to it.
        word.store(0, Ordering::Relaxed);
        true
    }
}

/// Front and end of a queue.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    count: u64,
}

/// All units of a partition.
#[derive(Debug)]
pub(crate) struct Segments {
    table: Window,
    of: Vec<Segment>,
    free: Vec<u32>,
    pinned: Vec<u32>,
    /// The memory of the units.
    units: Window,
    /// Whether pages of it may be lent.
    pub may_lend: bool,
    pub pins: Arc<Pins>,
    queues: [Queue; QUEUES],
    active: [[u32; CLASSES]; STREAMS],
    /// The segment that SIEVE judges next; `NONE` = the oldest.
    hand: u32,
    next_seq: u64,
    /// Sealed segments whose items all expire, by the time of the last.
    expiring: BTreeSet<(Millis, u32)>,
    live_bytes: u64,
    payload_bytes: u64,
}

impl Segments {
    /// Private bytes that a unit costs here: its segment, pin, place in the free list, and its
    /// share of the set of expiring segments.
    pub const PRIVATE_BYTES: u64 = size_of::<Segment>() as u64 + 8 + 4 + 24;

    /// All units free.
    pub fn new(table: Window, units: Window) -> Segments {
        let count = table.bytes() / TABLE_ENTRY_BYTES;
        // Nothing is there yet, if the memory is of the kind that can be lent.
        let may_lend = units.renew(0, u64::from(UNIT_BYTES)).is_ok();
        let empty = Queue { first: NONE, last: NONE, count: 0 };
        Segments {
            table,
            of: vec![UNUSED; count as usize],
            free: (0..count as u32).rev().collect(),
            pinned: Vec::new(),
            units,
            may_lend,
            pins: Arc::new(Pins((0..count).map(|_| AtomicU64::new(0)).collect())),
            queues: [empty; QUEUES],
            active: [[NONE; CLASSES]; STREAMS],
            hand: NONE,
            next_seq: 1,
            expiring: BTreeSet::new(),
            live_bytes: 0,
            payload_bytes: 0,
        }
    }

    /// The segments that an earlier process left in the table, oldest first, all sealed and
    /// without live items; units that are none are free.
    pub fn adopt(table: Window, units: Window) -> (Segments, Vec<u32>) {
        let mut segments = Segments::new(table, units);
        let mut found = Vec::new();
        for unit in 0..segments.of.len() as u32 {
            let at = u64::from(unit) * TABLE_ENTRY_BYTES;
            let [seq, word, expires_max, opened] =
                [0, 8, 16, 24].map(|offset| segments.table.load(at + offset));
            let (used, queue, class) = (word as u32, (word >> 32) as u8, (word >> 40) as u8);
            let is_sane = seq < SEQ_LIMIT
                && used <= UNIT_BYTES
                && used.is_multiple_of(8)
                && usize::from(queue) < QUEUES
                && usize::from(class) < CLASSES;
            if seq == 0 || unit == 0 || !is_sane {
                segments.table.store(at, 0);
                continue;
            }
            let kind = Kind::Sealed;
            segments.of[unit as usize] =
                Segment { seq, kind, queue, class, used, expires_max, opened, ..UNUSED };
            found.push((seq, unit));
        }
        segments.free.retain(|unit| segments.of[*unit as usize].seq == 0);
        found.sort_unstable();
        let noted = Some(segments.table.load(NEXT_SEQ_AT)).filter(|seq| *seq < SEQ_LIMIT);
        segments.next_seq = found.last().map_or(1, |(seq, _)| seq + 1).max(noted.unwrap_or(1));
        for (_, unit) in &found {
            segments.link(*unit, NONE);
            let expires_max = segments.of[*unit as usize].expires_max;
            if expires_max != Millis::MAX {
                segments.expiring.insert((expires_max, *unit));
            }
        }
        (segments, found.into_iter().map(|(_, unit)| unit).collect())
    }

    /// This piece of a segment lives.
    pub fn credit(&mut self, unit: u32, header: Header) {
        let (bytes, payload) = (header.bytes(), header.payload_bytes());
        let segment = &mut self.of[unit as usize];
        segment.live += bytes;
        segment.payload += payload;
        self.live_bytes += u64::from(bytes);
        self.payload_bytes += u64::from(payload);
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
        self.table.store(NEXT_SEQ_AT, self.next_seq);
        self.next_seq - 1
    }

    pub fn get(&self, unit: u32) -> &Segment {
        &self.of[unit as usize]
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of live keys and values.
    pub fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Free units; those whose last pin was dropped are free again.
    pub fn reclaim(&mut self) -> usize {
        let (pins, units) = (&self.pins, &self.units);
        let (back, still) = self.pinned.drain(..).partition(|unit| pins.has_back(*unit, units));
        self.pinned = still;
        let back: Vec<u32> = back;
        for unit in back {
            self.of[unit as usize].kind = Kind::Free;
            self.free.push(unit);
        }
        self.free.len()
    }

    /// Takes a free unit for the index.
    pub fn take_for_index(&mut self) -> Option<u32> {
        let unit = self.free.pop()?;
        self.of[unit as usize].kind = Kind::Index;
        Some(unit)
    }

    /// The class of an item that expires at `expires`.
    pub fn class_of(&self, expires: Millis, now: Millis) -> u8 {
        if expires == 0 {
            return 0;
        }
        if self.of.len() < CLASS_UNITS_MIN {
            return 1;
        }
        let sixteens = expires.saturating_sub(now) / CLASS_MS_MIN;
        let class = 1 + (u64::BITS - sixteens.leading_zeros()).div_ceil(2) as usize;
        class.min(CLASSES - 1) as u8
    }

    /// The unit that items of a stream and class are appended to.
    #[inline]
    pub fn active(&self, stream: Stream, class: u8) -> Option<u32> {
        let unit = self.active[stream as usize][class as usize];
        (unit != NONE).then_some(unit)
    }

    /// Bytes left in the active segment.
    #[inline]
    pub fn room(&self, stream: Stream, class: u8) -> u32 {
        self.active(stream, class).map_or(0, |unit| UNIT_BYTES - self.of[unit as usize].used)
    }

    /// Seals the active segment and opens another: in place before the hand, else at the
    /// young end of its queue.
    /// `None` without a free unit.
    pub fn open(&mut self, stream: Stream, class: u8, now: Millis) -> Option<u32> {
        let unit = self.free.pop()?;
        self.seal(stream, class);
        let queue = stream.queue();
        let seq = self.take_seq();
        self.of[unit as usize] =
            Segment { seq, kind: Kind::Active, queue, class, opened: now, ..UNUSED };
        self.link(unit, if stream == Stream::InPlace { self.hand } else { NONE });
        self.active[stream as usize][class as usize] = unit;
        self.publish(unit);
        let at = u64::from(unit) * TABLE_ENTRY_BYTES;
        self.table.store(at + 24, now);
        self.table.store(at, seq);
        Some(unit)
    }

    /// Nothing more is appended to the active segment.
    pub fn seal(&mut self, stream: Stream, class: u8) {
        let active = std::mem::replace(&mut self.active[stream as usize][class as usize], NONE);
        if active == NONE {
            return;
        }
        let segment = &mut self.of[active as usize];
        segment.kind = Kind::Sealed;
        if segment.live == 0 {
            self.release(active);
        } else if segment.expires_max != Millis::MAX {
            self.expiring.insert((segment.expires_max, active));
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
        let expires = if expires == 0 { Millis::MAX } else { expires };
        segment.expires_max = segment.expires_max.max(expires);
        offset
    }

    /// Tells a later process how far the segment has been written.
    #[inline]
    pub fn publish(&self, unit: u32) {
        let segment = &self.of[unit as usize];
        let at = u64::from(unit) * TABLE_ENTRY_BYTES;
        let word = u64::from(segment.used)
            | (u64::from(segment.queue) << 32)
            | (u64::from(segment.class) << 40);
        self.table.store(at + 8, word);
        self.table.store(at + 16, segment.expires_max);
    }

    /// A piece of the segment is dead. The segment is given back when nothing lives in it.
    pub fn debit(&mut self, unit: u32, header: Header) {
        let (bytes, payload) = (header.bytes(), header.payload_bytes());
        let segment = &mut self.of[unit as usize];
        assert!(bytes <= segment.live && payload <= segment.payload, "what dies has lived");
        segment.live -= bytes;
        segment.payload -= payload;
        self.live_bytes -= u64::from(bytes);
        self.payload_bytes -= u64::from(payload);
        if segment.live == 0 && segment.kind == Kind::Sealed {
            self.release(unit);
        }
    }

    /// Takes a segment out of its queue, to be judged item by item and then [`Segments::release`]d.
    pub fn leave(&mut self, unit: u32) {
        let kind = self.of[unit as usize].kind;
        assert!(matches!(kind, Kind::Active | Kind::Sealed), "a segment leaves once");
        if kind == Kind::Active {
            let mut active = self.active.iter_mut().flatten();
            *active.find(|active| **active == unit).expect("an active segment is in use") = NONE;
        }
        self.expiring.remove(&(self.of[unit as usize].expires_max, unit));
        self.of[unit as usize].kind = Kind::Leaving;
    }

    /// Gives a segment's unit back.
    pub fn release(&mut self, unit: u32) {
        let segment = self.of[unit as usize].clone();
        assert!(matches!(segment.kind, Kind::Sealed | Kind::Leaving), "{segment:?}");
        self.live_bytes -= u64::from(segment.live);
        self.payload_bytes -= u64::from(segment.payload);
        self.expiring.remove(&(segment.expires_max, unit));
        self.unlink(unit);
        self.table.store(u64::from(unit) * TABLE_ENTRY_BYTES, 0);
        self.of[unit as usize] = UNUSED;
        if self.pins.has_back(unit, &self.units) {
            self.free.push(unit);
        } else {
            self.of[unit as usize].kind = Kind::Pinned;
            self.pinned.push(unit);
        }
    }

    /// Gives all segments back.
    pub fn clear(&mut self) {
        for unit in 0..self.of.len() as u32 {
            let segment = &self.of[unit as usize];
            if segment.seq != 0 {
                if segment.kind != Kind::Leaving {
                    self.leave(unit);
                }
                self.release(unit);
            }
        }
    }

    /// The oldest segment of a queue.
    pub fn oldest(&self, queue: u8) -> Option<u32> {
        let unit = self.queues[queue as usize].first;
        (unit != NONE).then_some(unit)
    }

    /// The segment behind this one in its queue.
    pub fn after(&self, unit: u32) -> Option<u32> {
        let next = self.of[unit as usize].next;
        (next != NONE).then_some(next)
    }

    /// Segments of a queue.
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
            .filter(|(_, segment)| segment.kind == Kind::Sealed && !segment.is_fixed)
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

    /// A segment whose items have all expired.
    pub fn expired(&self, now: Millis) -> Option<u32> {
        let (expires, unit) = *self.expiring.first()?;
        (expires <= now).then_some(unit)
    }

    /// Active segments whose items have all expired.
    pub fn expired_active(&self, now: Millis) -> Option<u32> {
        let active = self.active.iter().flatten().copied().filter(|unit| *unit != NONE);
        let mut active = active.filter(|unit| {
            let segment = &self.of[*unit as usize];
            segment.used > 0 && segment.expires_max <= now
        });
        active.next()
    }

    fn link(&mut self, unit: u32, before: u32) {
        let queue = &mut self.queues[self.of[unit as usize].queue as usize];
        queue.count += 1;
        let prev = if before == NONE {
            std::mem::replace(&mut queue.last, unit)
        } else {
            std::mem::replace(&mut self.of[before as usize].prev, unit)
        };
        if prev == NONE {
            queue.first = unit;
        } else {
            self.of[prev as usize].next = unit;
        }
        self.of[unit as usize].prev = prev;
        self.of[unit as usize].next = before;
    }

    fn unlink(&mut self, unit: u32) {
        let Segment { prev, next, queue, .. } = self.of[unit as usize];
        if self.hand == unit {
            self.hand = next;
        }
        let queue = &mut self.queues[queue as usize];
        queue.count -= 1;
        if prev == NONE {
            queue.first = next;
        } else {
            self.of[prev as usize].next = next;
        }
        if next == NONE {
            queue.last = prev;
        } else {
            self.of[next as usize].prev = prev;
        }
    }
}
