//! The queue of events: a hierarchical time wheel over picoseconds.
//!
//! Owns what is going to happen. The world pushes events and pops them in one total order: time,
//! then source, then the order in which that source pushed. The order is a function of the pushes
//! alone.
//!
//! ```text
//!    last popped     covered
//!         |   ready    |  level 0: 256 slots of 1 ps | level 1: of 256 ps | … | level 4 | overflow
//! --------+------------+-----------------------------+--------------------+---+---------+---------
//! ```
//!
//! All events up to `covered` are in the front, sorted; later ones lie unsorted in the slots of
//! the wheel, each on the level of the highest byte in which its time differs from `cursor`; those
//! beyond the wheel's 1.1 s are in a heap. The first slot of the lowest level that has one is the
//! next to become ready: a slot with few events at once, others after being spread over the level
//! below. The front then covers the whole slot, and what is pushed into it is sorted in, which is
//! quicker than the way through the levels while it is short; when it gets long, its later half
//! goes back into the levels below. What moves are keys, in chunks; an event stays in its place
//! until it is popped. Places and chunks are used again, so that nothing is allocated once the
//! queue has had its largest size.
//!
//! Source: calendar and ladder queues (Brown 1988; Tang, Goh and Thng 2005); Varghese and Lauck
//! 1987 for the hierarchy.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::time::Ps;

/// Bits of the time that one level tells apart.
const LEVEL_BITS: u32 = 8;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Levels; later events wait in the overflow heap.
const LEVELS: usize = 5;
/// Bits of the time that the wheel tells apart: 2^40 ps are 1.1 s.
const WHEEL_BITS: u32 = LEVEL_BITS * LEVELS as u32;
/// A slot of each level with at most so many events is sorted at once, others are spread over the
/// level below.
const SORT_MAX: [usize; LEVELS] = [usize::MAX, 24, 24, 24, 8];
/// With so many events in the front the later half goes back.
const FRONT_MAX: usize = 64;
const CHUNK_KEYS: usize = 10;
/// No chunk, or no place.
const NONE: u32 = u32::MAX;

/// An event's position in the order, and where it is. Whole words: what was just written in parts
/// is slow to read as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    at: u64,
    /// Counts all pushes: within one source that is the order of its own pushes. Never the same.
    sequence: u64,
    /// The source and, in the low half, the event's place.
    origin: u64,
}

impl Key {
    #[inline(always)]
    fn order(&self) -> (u64, u32, u64) {
        (self.at, self.source(), self.sequence)
    }

    #[inline(always)]
    fn source(&self) -> u32 {
        (self.origin >> 32) as u32
    }

    #[inline(always)]
    fn place(&self) -> u32 {
        self.origin as u32
    }
}

impl PartialOrd for Key {
    #[inline(always)]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    #[inline(always)]
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// Some keys of a slot, unsorted.
struct Chunk {
    keys: [Key; CHUNK_KEYS],
    count: u32,
    /// The next chunk of the same slot, or of the free list.
    next: u32,
}

struct Level {
    heads: [u32; SLOTS],
    /// A bit for each slot that is not empty.
    full: [u64; SLOTS / 64],
    /// A bit for each word of `full` that is not zero.
    summary: u32,
}

impl Level {
    const EMPTY: Level = Level { heads: [NONE; SLOTS], full: [0; SLOTS / 64], summary: 0 };

    /// The first slot that is not empty; there is one.
    #[inline]
    fn first(&self) -> usize {
        let word = self.summary.trailing_zeros() as usize % self.full.len();
        word * 64 + self.full[word].trailing_zeros() as usize
    }

    #[inline]
    fn mark(&mut self, slot: usize) {
        self.full[slot / 64] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
    }

    #[inline]
    fn take(&mut self, slot: usize) -> u32 {
        let word = &mut self.full[slot / 64];
        *word &= !(1 << (slot % 64));
        self.summary &= !(u32::from(*word == 0) << (slot / 64));
        std::mem::replace(&mut self.heads[slot], NONE)
    }
}

/// Events in the order of their time, source and sequence. See the module.
pub struct Wheel<E> {
    /// Events by place until they are popped: plain data, so that nothing is cleared after.
    events: Vec<E>,
    free_places: Vec<u32>,
    chunks: Vec<Chunk>,
    free_chunk: u32,
    count: usize,
    sequence: u64,
    /// The time of the last event that was popped.
    now: u64,
    /// Everything up to this time, included, is ready.
    covered: u64,
    /// What the slots are chosen by; equals `covered` except inside of `advance`.
    cursor: u64,
    /// Ready events in order, from `first` on; before that, what was popped.
    front: Vec<Key>,
    first: usize,
    /// It covers some slots of the level below this one, all of one slot of this one.
    front_level: u32,
    /// Ready events for which the front is too long, and cannot be cut: many of one moment.
    late: BinaryHeap<Reverse<Key>>,
    levels: Box<[Level; LEVELS]>,
    /// A bit for each level that is not empty.
    occupied: u32,
    overflow: BinaryHeap<Reverse<Key>>,
}

impl<E: Copy> Default for Wheel<E> {
    fn default() -> Self {
        Wheel::new()
    }
}

impl<E: Copy> Wheel<E> {
    /// An empty queue at time 0.
    pub fn new() -> Wheel<E> {
        Wheel {
            events: Vec::new(),
            free_places: Vec::new(),
            chunks: Vec::new(),
            free_chunk: NONE,
            count: 0,
            sequence: 0,
            now: 0,
            covered: 0,
            cursor: 0,
            front: Vec::new(),
            first: 0,
            front_level: 0,
            late: BinaryHeap::new(),
            levels: Box::new([Level::EMPTY; LEVELS]),
            occupied: 0,
            overflow: BinaryHeap::new(),
        }
    }

    /// The time of the last event that was popped.
    pub fn now(&self) -> Ps {
        Ps(self.now)
    }

    /// Events that were pushed and not popped.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is going to happen.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Lets `event` of `source` happen at `at`.
    ///
    /// # Panics
    /// If `at` is before [`now`](Self::now), or at 2^32 - 1 pending events.
    #[inline(always)]
    pub fn push(&mut self, at: Ps, source: u32, event: E) {
        let place = self.keep(event);
        self.order(at.0, u64::from(source) << 32 | u64::from(place));
    }

    /// Puts what was pushed last into the order. Its key is taken apart into words, which stay in
    /// registers.
    #[inline(never)]
    fn order(&mut self, at: u64, origin: u64) {
        assert!(at >= self.now, "an event at {} was pushed at {}", Ps(at), Ps(self.now));
        self.sequence += 1;
        self.count += 1;
        let sequence = self.sequence;
        if at > self.covered {
            self.insert(at, sequence, origin);
        } else if self.front.len() - self.first < FRONT_MAX && self.late.is_empty() {
            self.sort_in(at, sequence, origin);
        } else {
            self.crowd(at, sequence, origin);
        }
    }

    /// Puts the last key that was pushed among the ready ones.
    #[inline(always)]
    fn sort_in(&mut self, at: u64, sequence: u64, origin: u64) {
        let mut index = self.front.len();
        self.front.push(Key { at, sequence, origin });
        let front = &mut self.front[self.first..];
        index -= self.first;
        while index > 0
            && (front[index - 1].at, front[index - 1].source()) > (at, (origin >> 32) as u32)
        {
            front[index] = front[index - 1];
            index -= 1;
        }
        front[index] = Key { at, sequence, origin };
    }

    /// The same where the front is full.
    #[cold]
    #[inline(never)]
    fn crowd(&mut self, at: u64, sequence: u64, origin: u64) {
        if self.late.is_empty() {
            self.cut();
        }
        if at > self.covered {
            self.insert(at, sequence, origin);
        } else if self.front.len() - self.first < FRONT_MAX && self.late.is_empty() {
            self.sort_in(at, sequence, origin);
        } else {
            self.late.push(Reverse(Key { at, sequence, origin }));
        }
    }

    /// Moves the later half of the front back, or about so many. The front then ends with a slot of
    /// the level below, so that what waits on this level and above is where it belongs.
    fn cut(&mut self) {
        let slot = self.front_level * LEVEL_BITS;
        if self.front.get(self.first).is_none_or(|key| key.at >> slot != self.covered >> slot) {
            // Pushed after a look ahead, to before the slot.
            return;
        }
        while self.front_level > 0 && self.front.len() - self.first >= FRONT_MAX {
            let shift = (self.front_level - 1) * LEVEL_BITS;
            let middle = self.front[self.front.len() - FRONT_MAX / 2].at >> shift;
            let (first, start) = (self.front[self.first].at >> shift, middle << shift);
            if first < middle {
                self.cut_after(start - 1);
            } else {
                // Half of it is in the first slot of the level below: that is what is left.
                self.cut_after(start | ((1 << shift) - 1));
                self.front_level -= 1;
            }
        }
    }

    fn cut_after(&mut self, end: u64) {
        (self.covered, self.cursor) = (end, end);
        let kept = self.front.partition_point(|key| key.at <= end);
        for index in kept..self.front.len() {
            let Key { at, sequence, origin } = self.front[index];
            self.insert(at, sequence, origin);
        }
        self.front.truncate(kept);
    }

    /// The next event with its time and source; time goes on to it.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<(Ps, u32, E)> {
        let key = match self.next_is_late()? {
            true => self.late.pop()?.0,
            false => self.take_first(),
        };
        self.now = key.at;
        self.count -= 1;
        self.free_places.push(key.place());
        Some((Ps(key.at), key.source(), self.events[key.place() as usize]))
    }

    /// When the next event happens. Time does not go on.
    pub fn peek_time(&mut self) -> Option<Ps> {
        let key = match self.next_is_late()? {
            true => self.late.peek()?.0,
            false => *self.front.get(self.first)?,
        };
        Some(Ps(key.at))
    }

    /// Events for which there is room. It grows only when more are pending than ever before.
    pub fn capacity(&self) -> usize {
        self.events.capacity()
    }

    /// Whether the next event is in `late`; `None` if there is none at all.
    #[inline]
    fn next_is_late(&mut self) -> Option<bool> {
        loop {
            match (self.front.get(self.first), self.late.peek()) {
                (Some(_), None) => return Some(false),
                (Some(first), Some(Reverse(late))) => return Some(late < first),
                (None, Some(_)) => return Some(true),
                (None, None) if self.count == 0 => return None,
                (None, None) => self.advance(),
            }
        }
    }

    /// Takes the front's first key, and what was popped before out of the front now and then.
    #[inline(always)]
    fn take_first(&mut self) -> Key {
        let key = self.front[self.first];
        self.first += 1;
        if self.first == self.front.len() {
            self.front.clear();
            self.first = 0;
        } else if self.first >= FRONT_MAX && self.first >= self.front.len() / 2 {
            self.front.drain(..self.first);
            self.first = 0;
        }
        key
    }

    #[inline]
    fn keep(&mut self, event: E) -> u32 {
        if let Some(place) = self.free_places.pop() {
            self.events[place as usize] = event;
            return place;
        }
        let place = self.events.len() as u32;
        assert!(place != NONE, "2^32 - 1 events are pending");
        self.events.push(event);
        place
    }

    /// Puts a key that is later than `covered` where it waits.
    #[inline]
    fn insert(&mut self, at: u64, sequence: u64, origin: u64) {
        let key = Key { at, sequence, origin };
        let differs = at ^ self.cursor;
        if differs >> WHEEL_BITS != 0 {
            return self.overflow.push(Reverse(key));
        }
        let level = ((63 - (differs | 1).leading_zeros()) / LEVEL_BITS) as usize;
        let slot = (at >> (level as u32 * LEVEL_BITS)) as usize % SLOTS;
        self.occupied |= 1 << level;
        let level = &mut self.levels[level];
        level.mark(slot);
        let head = level.heads[slot];
        match self.chunks.get_mut(head as usize) {
            Some(chunk) if (chunk.count as usize) < CHUNK_KEYS => {
                chunk.keys[chunk.count as usize] = key;
                chunk.count += 1;
            }
            _ => level.heads[slot] = chunk_of(&mut self.chunks, &mut self.free_chunk, key, head),
        }
    }

    /// Makes the first slot ready, or spreads it. Nothing is ready, something is pending.
    fn advance(&mut self) {
        if self.occupied == 0 {
            return self.refill();
        }
        let number = self.occupied.trailing_zeros() as usize;
        let level = &mut self.levels[number];
        let slot = level.first();
        let head = level.take(slot);
        self.occupied &= !(u32::from(level.summary == 0) << number);
        let shift = number as u32 * LEVEL_BITS;
        let above = self.cursor >> (shift + LEVEL_BITS) << (shift + LEVEL_BITS);
        let start = above | (slot as u64) << shift;
        if self.has_at_most(head, SORT_MAX[number]) {
            self.front_level = number as u32;
            self.ready(head, start | ((1 << shift) - 1));
        } else {
            self.spread(head, start);
        }
    }

    fn has_at_most(&self, mut chunk: u32, count_max: usize) -> bool {
        let mut count = 0;
        while chunk != NONE && count <= count_max {
            let entry = &self.chunks[chunk as usize];
            count += entry.count as usize;
            chunk = entry.next;
        }
        count <= count_max
    }

    /// Sorts the keys of a slot that ends at `end`: they are next.
    fn ready(&mut self, mut chunk: u32, end: u64) {
        while chunk != NONE {
            let entry = &mut self.chunks[chunk as usize];
            match entry.count {
                1 => self.front.push(entry.keys[0]),
                count => self.front.extend_from_slice(&entry.keys[..count as usize]),
            }
            let next = std::mem::replace(&mut entry.next, self.free_chunk);
            self.free_chunk = std::mem::replace(&mut chunk, next);
        }
        if self.front.len() > 1 {
            self.front.sort_unstable();
        }
        (self.covered, self.cursor) = (end, end);
    }

    /// Spreads a slot's keys over the levels below.
    fn spread(&mut self, mut chunk: u32, start: u64) {
        self.cursor = start;
        while chunk != NONE {
            for index in 0..self.chunks[chunk as usize].count as usize {
                let Key { at, sequence, origin } = self.chunks[chunk as usize].keys[index];
                self.insert(at, sequence, origin);
            }
            let next = &mut self.chunks[chunk as usize].next;
            let next = std::mem::replace(next, self.free_chunk);
            self.free_chunk = std::mem::replace(&mut chunk, next);
        }
    }

    /// The wheel is empty: moves it on to the first event of the overflow heap.
    fn refill(&mut self) {
        let Some(Reverse(first)) = self.overflow.peek() else {
            unreachable!("{} events are counted, none is found", self.count)
        };
        let turn = first.at >> WHEEL_BITS;
        self.cursor = turn << WHEEL_BITS;
        while let Some(Reverse(key)) = self.overflow.peek().copied() {
            if key.at >> WHEEL_BITS != turn {
                break;
            }
            self.overflow.pop();
            self.insert(key.at, key.sequence, key.origin);
        }
    }
}

/// A chunk with one key, before `next`.
fn chunk_of(chunks: &mut Vec<Chunk>, free: &mut u32, key: Key, next: u32) -> u32 {
    let Some(chunk) = chunks.get_mut(*free as usize) else {
        chunks.push(Chunk { keys: [key; CHUNK_KEYS], count: 1, next });
        return chunks.len() as u32 - 1;
    };
    chunk.keys[0] = key;
    chunk.count = 1;
    std::mem::replace(free, std::mem::replace(&mut chunk.next, next))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_of_one_moment_come_by_source_and_then_as_pushed() {
        let mut wheel = Wheel::new();
        for (source, event) in [(2, 'd'), (1, 'b'), (2, 'e'), (1, 'c'), (0, 'a')] {
            wheel.push(Ps::us(3), source, event);
        }
        let order: String = std::iter::from_fn(|| wheel.pop().map(|(_, _, event)| event)).collect();
        assert_eq!(order, "abcde");
        assert_eq!((wheel.now(), wheel.len()), (Ps::us(3), 0));
    }

    #[test]
    fn an_event_can_be_pushed_for_now_and_after_a_look_ahead() {
        let mut wheel = Wheel::new();
        wheel.push(Ps(1 << 50), 0, 2);
        assert_eq!(wheel.peek_time(), Some(Ps(1 << 50)));
        wheel.push(Ps(70_000), 0, 1);
        assert_eq!(wheel.peek_time(), Some(Ps(70_000)));
        assert_eq!(wheel.pop(), Some((Ps(70_000), 0, 1)));
        wheel.push(Ps(70_000), 0, 3);
        assert_eq!(wheel.pop(), Some((Ps(70_000), 0, 3)));
        wheel.push(Ps(u64::MAX), 0, 4);
        assert_eq!(wheel.pop(), Some((Ps(1 << 50), 0, 2)));
        assert_eq!(wheel.pop(), Some((Ps(u64::MAX), 0, 4)));
        assert_eq!(wheel.pop(), None);
        wheel.push(Ps(u64::MAX), 7, 5);
        assert_eq!(wheel.pop(), Some((Ps(u64::MAX), 7, 5)));
    }

    #[test]
    #[should_panic(expected = "was pushed at")]
    fn the_past_is_refused() {
        let mut wheel = Wheel::new();
        wheel.push(Ps(10), 0, ());
        wheel.pop();
        wheel.push(Ps(9), 0, ());
    }

    /// What the proptest does: pushes so many events after delays of so many bits, or pops, or
    /// looks.
    #[derive(Clone, Debug)]
    enum Step {
        Push { bits: u32, delay: u64, source: u32, count: usize },
        Pop(usize),
        Peek,
    }

    fn step() -> impl Strategy<Value = Step> {
        let push = (0u32..58, any::<u64>(), 0u32..4, 1usize..80)
            .prop_map(|(bits, delay, source, count)| Step::Push { bits, delay, source, count });
        prop_oneof![3 => push, 3 => (1usize..90).prop_map(Step::Pop), 1 => Just(Step::Peek)]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 400, failure_persistence: None, ..ProptestConfig::default()
        })]
        #[test]
        fn the_order_is_that_of_a_heap_model(steps in prop::collection::vec(step(), 1..120)) {
            let mut wheel = Wheel::new();
            let mut model = BinaryHeap::new();
            let mut sequences = [0u64; 4];
            for step in steps {
                match step {
                    Step::Push { bits, delay, source, count } => for index in 0..count as u64 {
                        // Some of the events of one step fall on one moment.
                        let delay = delay.rotate_left((index / 3) as u32) & ((1 << bits) - 1);
                        let at = wheel.now().0.saturating_add(delay);
                        let sequence = &mut sequences[source as usize];
                        *sequence += 1;
                        wheel.push(Ps(at), source, (source, *sequence));
                        model.push(Reverse((at, source, *sequence)));
                    },
                    Step::Pop(count) => for _ in 0..count {
                        let expected = model.pop().map(|Reverse((at, source, sequence))| {
                            (Ps(at), source, (source, sequence))
                        });
                        prop_assert_eq!(wheel.pop(), expected);
                    },
                    Step::Peek => {
                        let expected = model.peek().map(|Reverse((at, ..))| Ps(*at));
                        prop_assert_eq!(wheel.peek_time(), expected);
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
            }
            while let Some(Reverse((at, source, sequence))) = model.pop() {
                prop_assert_eq!(wheel.pop(), Some((Ps(at), source, (source, sequence))));
            }
            prop_assert!(wheel.is_empty());
        }
    }
}
