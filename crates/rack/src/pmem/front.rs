//! Memory mode: DRAM as a write-back cache of a slower memory, line by line, each line with one
//! place (direct-mapped, as the platform's). What is in it does not survive.
//!
//! A read that misses goes to the slower memory and is stored in front; a write is stored in front
//! alone, whole lines need no read. What had the place is written back if it was written.

use super::config::LINE_BYTES;
use crate::model::memory::{Done, Medium};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};

/// The id of accesses that nothing waits for.
const POSTED: u64 = u64::MAX;
const EMPTY: u64 = u64::MAX;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Front<N, F> {
    near: N,
    far: F,
    /// The line in each place, and whether it was written: its number times two, plus one.
    places: Vec<u64>,
    /// Which of the two had no room for the last access that was refused.
    refused_by_far: bool,
    pub hits: u64,
    pub misses: u64,
    pub written_back: u64,
}

impl<N: Medium, F: Medium> Front<N, F> {
    /// # Panics
    /// If there is room for no line.
    pub fn new(near: N, far: F, near_bytes: u64) -> Front<N, F> {
        let places = near_bytes / LINE_BYTES;
        assert!(places > 0, "{near_bytes} bytes in front");
        let places = vec![EMPTY; places as usize];
        Front { near, far, places, refused_by_far: false, hits: 0, misses: 0, written_back: 0 }
    }

    pub fn near(&self) -> &N {
        &self.near
    }

    pub fn far(&self) -> &F {
        &self.far
    }

    /// Stores something else at a place: what was written there goes back first. False if the
    /// slower memory has no room for it.
    fn empty(&mut self, now: Ps, place: usize) -> bool {
        let held = self.places[place];
        if held != EMPTY && held & 1 == 1 {
            if !self.far.submit(now, POSTED, held / 2 * LINE_BYTES, true) {
                return false;
            }
            self.written_back += 1;
            self.places[place] = held - 1;
        }
        true
    }
}

impl<N: Medium, F: Medium> Medium for Front<N, F> {
    fn submit(&mut self, now: Ps, id: u64, addr: u64, write: bool) -> bool {
        let line = addr / LINE_BYTES;
        let place = (line % self.places.len() as u64) as usize;
        let near_addr = place as u64 * LINE_BYTES + addr % LINE_BYTES;
        let held = self.places[place];
        if held != EMPTY && held / 2 == line {
            self.refused_by_far = false;
            let is_taken = self.near.submit(now, id, near_addr, write);
            if is_taken {
                self.hits += 1;
                self.places[place] |= u64::from(write);
            }
            return is_taken;
        }
        self.refused_by_far = true;
        if !self.empty(now, place) {
            return false;
        }
        if write {
            self.refused_by_far = false;
            if !self.near.submit(now, id, near_addr, true) {
                return false;
            }
        } else {
            if !self.far.submit(now, id, addr, false) {
                return false;
            }
            // A copy that finds no room takes no time here; it is in place all the same.
            self.near.submit(now, POSTED, near_addr, true);
        }
        self.misses += 1;
        self.places[place] = line * 2 + u64::from(write);
        true
    }

    fn next_event(&self) -> Option<Ps> {
        self.near.next_event().into_iter().chain(self.far.next_event()).min()
    }

    fn next_room(&self) -> Ps {
        if self.refused_by_far { self.far.next_room() } else { self.near.next_room() }
    }

    fn advance(&mut self, until: Ps, done: &mut Vec<Done>) {
        let before = done.len();
        self.near.advance(until, done);
        self.far.advance(until, done);
        let mut index = 0;
        done.retain(|one| {
            index += 1;
            index <= before || one.id != POSTED
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::OPTANE100;
    use super::super::dimm::Dimm;
    use super::*;
    use crate::model::memory::Constant;

    const NEAR_BYTES: u64 = 64 << 10;

    fn front() -> Front<Constant, Dimm> {
        let near = Constant::new(Ps::ns(30), Ps::ns(4));
        Front::new(near, Dimm::new(OPTANE100, 1), NEAR_BYTES)
    }

    /// Accesses of lines one by one; how long the last one took.
    fn access(front: &mut Front<Constant, Dimm>, now: &mut Ps, line: u64, write: bool) -> Ps {
        assert!(front.submit(*now, line, line * LINE_BYTES, write));
        let (start, mut done) = (*now, Vec::new());
        while done.is_empty() {
            *now = front.next_event().expect("an access is under way");
            front.advance(*now, &mut done);
        }
        assert_eq!(done.len(), 1, "only what was asked for: {done:?}");
        done[0].at - start
    }

    #[test]
    fn a_second_read_takes_as_long_as_dram() {
        let (mut front, mut now) = (front(), Ps::ZERO);
        let first = access(&mut front, &mut now, 7, false);
        assert_eq!(first, OPTANE100.hit + OPTANE100.media_read);
        assert_eq!(access(&mut front, &mut now, 7, false), Ps::ns(30));
        assert_eq!((front.hits, front.misses, front.written_back), (1, 1, 0));
    }

    #[test]
    fn what_had_no_room_is_done_when_there_is() {
        use crate::model::memory::Memory;
        let mut memory = Memory::new(vec![front()]);
        let count = 3 * OPTANE100.queue_max as u64;
        for id in 0..count {
            // Each has a place that another one had.
            memory.submit(Ps::ZERO, id, id * NEAR_BYTES, id % 2 == 0);
        }
        assert!(memory.waiting() > 0);
        let (mut done, mut taken) = (Vec::new(), Vec::new());
        while let Some(now) = memory.wants(Ps::ZERO) {
            memory.call(now, &mut done, &mut taken);
        }
        let mut ids: Vec<u64> = done.iter().map(|done| done.id).collect();
        ids.sort_unstable();
        assert!(ids.into_iter().eq(0..count));
    }

    #[test]
    fn writes_stay_in_front_until_their_place_is_needed() {
        let (mut front, mut now) = (front(), Ps::ZERO);
        let lines = NEAR_BYTES / LINE_BYTES;
        for line in (0..lines).chain(0..lines) {
            access(&mut front, &mut now, line, true);
        }
        assert_eq!(front.written_back, 0, "all of it fits");
        for line in lines..2 * lines {
            access(&mut front, &mut now, line, false);
        }
        assert_eq!(front.written_back, lines);
        while let Some(next) = front.next_event() {
            front.advance(next, &mut Vec::new());
        }
        // Twice as many lines were written as reached the medium: a ratio above 1.
        let counts = front.far().counts();
        assert_eq!(counts.writes, lines);
        assert!(2 * lines > counts.media_writes * 4, "{counts:?}");
        assert!(!front.places.iter().any(|held| held & 1 == 1), "nothing written is left");
    }
}
