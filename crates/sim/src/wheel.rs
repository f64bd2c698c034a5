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
//! All events up to `covered` are in `ready`, sorted; later ones lie unsorted in the slots of the
//! wheel, each on the level of the highest byte in which its time differs from `cursor`; those
//! beyond the wheel's 1.1 s are in a heap. The first slot of the lowest level that has one is the
//! next to become ready: a slot with few events at once, whatever its width, others after being
//! spread over the level below. Nodes are kept in a slab and used again, so that nothing is
//! allocated once the queue has had its largest size.
//!
//! Source: calendar and ladder queues (Brown 1988; Tang, Goh and Thng 2005); Varghese and Lauck
//! 1987 for the hierarchy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::time::Ps;

/// Bits of the time that one level tells apart.
const LEVEL_BITS: u32 = 8;
/// Slots of a level.
const SLOTS: usize = 1 << LEVEL_BITS;
/// Levels; later events wait in the overflow heap.
const LEVELS: usize = 5;
/// Bits of the time that the wheel tells apart: 2^40 ps are 1.1 s.
const WHEEL_BITS: u32 = LEVEL_BITS * LEVELS as u32;
/// A slot of each level with at most so many events is sorted at once, others are spread over the
/// level below. Few for wide slots: what is pushed between ready events goes through a heap.
const SORT_MAX: [usize; LEVELS] = [usize::MAX, 48, 48, 8, 1];
/// No node.
const NONE: u32 = u32::MAX;

/// An event's place in the order. The sequence counts all pushes: within one source that is the
/// order of its own pushes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    at: u64,
    source: u32,
    sequence: u64,
    node: u32,
}

struct Node<E> {
    key: Key,
    /// The next node of the same slot, or of the free list.
    next: u32,
    event: Option<E>,
}

struct Level {
    heads: [u32; SLOTS],
    /// A bit for each slot that is not empty.
    full: [u64; SLOTS / 64],
}

impl Level {
    const EMPTY: Level = Level { heads: [NONE; SLOTS], full: [0; SLOTS / 64] };

    fn first(&self) -> Option<usize> {
        let word = self.full.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.full[word].trailing_zeros() as usize)
    }

    fn take(&mut self, slot: usize) -> u32 {
        self.full[slot / 64] &= !(1 << (slot % 64));
        std::mem::replace(&mut self.heads[slot], NONE)
    }
}

/// Events in the order of their time, source and sequence. See the module.
pub struct Wheel<E> {
    nodes: Vec<Node<E>>,
    free: u32,
    count: usize,
    sequence: u64,
    /// The time of the last event that was popped.
    now: u64,
    /// Everything up to this time, included, is ready.
    covered: u64,
    /// What the slots are chosen by; equals `covered` except inside of `advance`.
    cursor: u64,
    /// Ready events, the first one last.
    sorted: Vec<Key>,
    /// Ready events that were pushed later.
    late: BinaryHeap<Reverse<Key>>,
    levels: Box<[Level; LEVELS]>,
    overflow: BinaryHeap<Reverse<Key>>,
}

impl<E> Default for Wheel<E> {
    fn default() -> Self {
        Wheel::new()
    }
}

impl<E> Wheel<E> {
    /// An empty queue at time 0.
    pub fn new() -> Wheel<E> {
        Wheel {
            nodes: Vec::new(),
            free: NONE,
            count: 0,
            sequence: 0,
            now: 0,
            covered: 0,
            cursor: 0,
            sorted: Vec::new(),
            late: BinaryHeap::new(),
            levels: Box::new([Level::EMPTY; LEVELS]),
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
    /// If `at` is before [`now`](Self::now), or at more than 2^32 - 1 pending events.
    #[inline]
    pub fn push(&mut self, at: Ps, source: u32, event: E) {
        assert!(at.0 >= self.now, "an event at {at} was pushed at {}", Ps(self.now));
        self.sequence += 1;
        let key = Key { at: at.0, source, sequence: self.sequence, node: self.free };
        let key = self.keep(key, event);
        self.count += 1;
        if key.at <= self.covered {
            self.late.push(Reverse(key));
        } else {
            self.place(key);
        }
    }

    /// The next event with its time and source; time goes on to it.
    #[inline]
    pub fn pop(&mut self) -> Option<(Ps, u32, E)> {
        let key = match self.next_is_late()? {
            true => self.late.pop()?.0,
            false => self.sorted.pop()?,
        };
        self.now = key.at;
        self.count -= 1;
        let node = &mut self.nodes[key.node as usize];
        let event = node.event.take().expect("a ready node holds an event");
        node.next = std::mem::replace(&mut self.free, key.node);
        Some((Ps(key.at), key.source, event))
    }

    /// When the next event happens. Time does not go on.
    pub fn peek_time(&mut self) -> Option<Ps> {
        let key = match self.next_is_late()? {
            true => self.late.peek()?.0,
            false => *self.sorted.last()?,
        };
        Some(Ps(key.at))
    }

    /// Room for events that was allocated so far. It grows only when more events are pending than
    /// ever before.
    pub fn capacity(&self) -> usize {
        self.nodes.capacity()
    }

    /// Whether the next event is in `late`; `None` if there is none at all.
    #[inline]
    fn next_is_late(&mut self) -> Option<bool> {
        loop {
            match (self.sorted.last(), self.late.peek()) {
                (Some(sorted), Some(Reverse(late))) => return Some(late < sorted),
                (Some(_), None) => return Some(false),
                (None, Some(_)) => return Some(true),
                (None, None) if self.count == 0 => return None,
                (None, None) => self.advance(),
            }
        }
    }

    /// Puts the event into a node; the key with the node's number.
    fn keep(&mut self, mut key: Key, event: E) -> Key {
        if key.node == NONE {
            key.node = u32::try_from(self.nodes.len()).expect("fewer than 2^32 pending events");
            assert!(key.node != NONE, "fewer than 2^32 - 1 pending events");
            self.nodes.push(Node { key, next: NONE, event: Some(event) });
        } else {
            let node = &mut self.nodes[key.node as usize];
            self.free = node.next;
            node.key = key;
            node.event = Some(event);
        }
        key
    }

    /// Puts an event that is later than `covered` where it waits.
    #[inline]
    fn place(&mut self, key: Key) {
        let differs = key.at ^ self.cursor;
        if differs >> WHEEL_BITS != 0 {
            return self.overflow.push(Reverse(key));
        }
        let level = ((63 - (differs | 1).leading_zeros()) / LEVEL_BITS) as usize;
        let slot = (key.at >> (level as u32 * LEVEL_BITS)) as usize % SLOTS;
        let level = &mut self.levels[level];
        self.nodes[key.node as usize].next = level.heads[slot];
        level.heads[slot] = key.node;
        level.full[slot / 64] |= 1 << (slot % 64);
    }

    /// Makes the first slot ready, or spreads it. `ready` is empty, something is pending.
    fn advance(&mut self) {
        let found = self.levels.iter().enumerate().find_map(|(number, level)| {
            let slot = level.first()?;
            Some((number, slot))
        });
        let Some((number, slot)) = found else { return self.refill() };
        let shift = number as u32 * LEVEL_BITS;
        let above = self.cursor >> (shift + LEVEL_BITS) << (shift + LEVEL_BITS);
        let start = above | (slot as u64) << shift;
        let mut node = self.levels[number].take(slot);
        while node != NONE && self.sorted.len() < SORT_MAX[number] {
            let entry = &self.nodes[node as usize];
            self.sorted.push(entry.key);
            node = entry.next;
        }
        if node == NONE {
            self.sorted.sort_unstable_by(|a, b| b.cmp(a));
            // Not the slot's whole width: what comes later goes into the levels below.
            self.covered = self.sorted.first().map_or(start, |last| last.at);
            self.cursor = self.covered;
            return;
        }
        self.cursor = start;
        while let Some(key) = self.sorted.pop() {
            self.place(key);
        }
        while node != NONE {
            let entry = &self.nodes[node as usize];
            let (key, next) = (entry.key, entry.next);
            self.place(key);
            node = next;
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
            self.place(key);
        }
    }
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
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
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
