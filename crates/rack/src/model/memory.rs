//! The memory of a node or a pool: channels with a queue before them for what they have no room
//! for yet. What a channel is, a [`Medium`] says.

use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// An access that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub id: u64,
    pub at: Ps,
}

/// Memory behind one channel, in picoseconds.
pub trait Medium {
    /// Takes over an access of a line at `now`; false if there is no room.
    fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool;

    /// The earliest time at which something may be over; `None` if nothing will.
    fn next_event(&self) -> Option<Ps>;

    /// When there may be room again, after a refusal.
    fn next_room(&self) -> Ps;

    /// Does all that happens up to `until`; what is over goes to `done`.
    fn advance(&mut self, until: Ps, done: &mut Vec<Done>);
}

/// One access after the other at a rate, each over after a constant time: a CXL device behind its
/// controller, or a bound to compare with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Constant {
    /// From an access's turn until it is over.
    pub latency: Ps,
    /// Between the turns of two accesses.
    pub gap: Ps,
    busy: Ps,
    flying: VecDeque<(u64, Ps)>,
}

/// Accesses under way in a [`Constant`] medium.
const FLYING_MAX: usize = 4096;

impl Constant {
    /// A medium of this latency, and of 64 bytes each `gap`.
    pub fn new(latency: Ps, gap: Ps) -> Constant {
        Constant { latency, gap, busy: Ps::ZERO, flying: VecDeque::new() }
    }
}

impl Medium for Constant {
    fn submit(&mut self, now: Ps, id: u64, _addr: u64, _write: bool) -> bool {
        if self.flying.len() == FLYING_MAX {
            return false;
        }
        let turn = self.busy.max(now);
        self.busy = turn + self.gap;
        self.flying.push_back((id, turn + self.latency));
        true
    }

    fn next_event(&self) -> Option<Ps> {
        self.flying.front().map(|(_, at)| *at)
    }

    fn next_room(&self) -> Ps {
        self.flying.front().map_or(Ps::ZERO, |(_, at)| *at)
    }

    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        while let Some((id, at)) = self.flying.front().copied().filter(|(_, at)| *at <= until) {
            self.flying.pop_front();
            done.push(Done { id, at });
        }
    }
}

/// Neighbouring pieces of this size are in different channels.
const INTERLEAVE_BYTES: u64 = 256;

/// An access that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    id: u64,
    addr: u64,
    write: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct MemoryChannel<M> {
    medium: M,
    waiting: VecDeque<Waiting>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory<M> {
    lanes: Vec<MemoryChannel<M>>,
    /// When it wants to be called; what was asked for before is void.
    wake: Ps,
    /// Most accesses that ever waited for room in one channel.
    pub waiting_max: u64,
}

/// It does not want to be called.
const NEVER: Ps = Ps(u64::MAX);

impl<M: Medium> Memory<M> {
    pub fn new(channels: Vec<M>) -> Memory<M> {
        let lane = |medium| MemoryChannel { medium, waiting: VecDeque::new() };
        Memory { lanes: channels.into_iter().map(lane).collect(), wake: NEVER, waiting_max: 0 }
    }

    /// An access of a line. Whether the channel has it, or it waits.
    #[inline]
    pub fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool {
        let count = self.lanes.len() as u64;
        let (lane, addr) = match count {
            1 => (0, addr),
            _ => {
                let piece = addr / INTERLEAVE_BYTES;
                let within = piece / count * INTERLEAVE_BYTES + addr % INTERLEAVE_BYTES;
                ((piece % count) as usize, within)
            }
        };
        let lane = &mut self.lanes[lane];
        if lane.waiting.is_empty() && lane.medium.submit(now, id, addr, write) {
            return true;
        }
        lane.waiting.push_back(Waiting { id, addr, write });
        self.waiting_max = self.waiting_max.max(lane.waiting.len() as u64);
        false
    }

    /// When it wants to be called anew, if that is earlier than what it asked for before; not
    /// before `now`.
    #[inline]
    pub fn wants(&mut self, now: Ps) -> Option<Ps> {
        let next = |lane: &MemoryChannel<M>| {
            let over = lane.medium.next_event().unwrap_or(NEVER);
            if lane.waiting.is_empty() { over } else { over.min(lane.medium.next_room()) }
        };
        let next = self.lanes.iter().map(next).min().unwrap_or(NEVER).max(now);
        (next < self.wake).then(|| {
            self.wake = next;
            next
        })
    }

    /// A call at the time that it asked for: what is over, and the ids that its channels took
    /// from their queues. False if another time was asked for since.
    #[inline]
    pub fn call(&mut self, now: Ps, done: &mut Vec<Done>, taken: &mut Vec<u64>) -> bool {
        if self.wake != now {
            return false;
        }
        self.wake = NEVER;
        for MemoryChannel { medium, waiting } in &mut self.lanes {
            medium.advance(now, done);
            while let Some(Waiting { id, addr, write }) = waiting.front().copied() {
                if !medium.submit(now, id, addr, write) {
                    break;
                }
                waiting.pop_front();
                taken.push(id);
            }
        }
        true
    }

    /// Accesses that wait for room.
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_medium_is_a_queue_with_a_latency() {
        let mut memory = Memory::new(vec![Constant::new(Ps::ns(100), Ps::ns(4))]);
        for id in 0..3 {
            assert!(memory.submit(Ps::ns(10), id, 0, false));
        }
        let (mut done, mut taken) = (Vec::new(), Vec::new());
        let mut at = Vec::new();
        while let Some(now) = memory.wants(Ps::ZERO) {
            assert!(!memory.call(now + Ps(1), &mut done, &mut taken), "not what it asked for");
            assert!(memory.call(now, &mut done, &mut taken));
            at.extend(done.drain(..).map(|done| (done.id, done.at)));
        }
        assert_eq!(at, [(0, Ps::ns(110)), (1, Ps::ns(114)), (2, Ps::ns(118))]);
    }

    #[test]
    fn what_has_no_room_waits_in_order_and_all_of_it_is_done() {
        let channel = || Constant::new(Ps::us(1), Ps::ns(1));
        let mut memory = Memory::new(vec![channel(), channel()]);
        let count = 3 * FLYING_MAX as u64;
        for id in 0..count {
            memory.submit(Ps::ZERO, id, id * INTERLEAVE_BYTES, false);
        }
        assert_eq!(memory.waiting(), FLYING_MAX);
        let (mut done, mut taken) = (Vec::new(), Vec::new());
        while let Some(now) = memory.wants(Ps::ZERO) {
            memory.call(now, &mut done, &mut taken);
        }
        assert_eq!((done.len() as u64, taken.len()), (count, FLYING_MAX));
        let odd = done.iter().map(|done| done.id).filter(|id| id % 2 == 1);
        assert!(odd.is_sorted(), "one channel keeps the order");
    }
}
