//! Room that comes back without being asked for: what has expired, what was flushed, what a writer
//! abandoned, a segment or a small step at a time.
//!
//! In: the time. Out: free units, entries that are gone. Called by `partition.rs` and `evict.rs`
//! where room is needed, by `mod.rs` beside changes and in idle turns.

use super::{Header, Key, Millis, Partition, Pos, Round, SegmentState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What one step of [`Partition::tidy`] does, some 20 us each: buckets that are swept …
const SWEPT_BUCKETS: u64 = 512;
/// … or flushed segments that are given back …
const RELEASED_SEGMENTS: usize = 64;
/// … or values of a tier …
const RELEASED_VALUES: usize = 16;
/// … or parts of hashes that are gone.
const DROPPED_PARTS: usize = 16;

/// Items of writers that were dropped before they committed: where, and their segment's number.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    items: Mutex<Vec<(Pos, u64)>>,
    /// Whether there are any: a lock would be taken for every change.
    are_any: AtomicBool,
}

impl Abandoned {
    fn items(&self) -> MutexGuard<'_, Vec<(Pos, u64)>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, head: Pos, seq: u64) {
        let mut items = self.items();
        items.push((head, seq));
        // Relaxed: a hint; the items themselves are under the lock.
        self.are_any.store(true, Ordering::Relaxed);
    }

    fn take(&self) -> Vec<(Pos, u64)> {
        // Relaxed: as above. A thread that sees it late takes them with the next change.
        if !self.are_any.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut items = self.items();
        // Relaxed: as above.
        self.are_any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *items)
    }
}

impl Partition {
    /// Gives back what was abandoned, and a segment of what has expired: beside a change, which
    /// makes no more than that.
    pub fn collect(&mut self, now: Millis) {
        if let Some(unit) = self.segments.expired([now, self.wall.at(now)]) {
            self.expire_segment(unit);
        }
        for (head, seq) in self.abandoned.take() {
            self.abandon(head, seq);
        }
        if self.hashes.has_work {
            self.drop_lost_hashes();
            self.drop_parts(DROPPED_PARTS);
        }
    }

    /// Gives back a segment of what has expired, also one that is still written to; whether there
    /// was one.
    pub fn expire_one(&mut self, now: Millis) -> bool {
        let nows = [now, self.wall.at(now)];
        let over = self.segments.expired(nows).or_else(|| self.segments.expired_active(nows));
        over.map(|unit| self.expire_segment(unit)).is_some()
    }

    fn expire_segment(&mut self, unit: u32) {
        let segment = self.segments.get(unit);
        let until = &mut self.expired_until[segment.clock()];
        *until = (*until).max(segment.expires_max);
        let is_flushed = self.segments.is_flushed(unit);
        let items = self.drop_segment(unit);
        self.stats.expired += if is_flushed { 0 } else { items };
    }

    /// Gives the first flushed segment back; whether there was one.
    pub fn drop_flushed(&mut self) -> bool {
        let Some(unit) = self.segments.first_flushed() else { return false };
        if self.index.is_sweeping() {
            self.drop_segment(unit);
        } else {
            self.segments.release(unit);
        }
        true
    }

    /// Everything that is there is gone from now on. [`Partition::tidy`] does the work.
    pub fn flush(&mut self) {
        for stream in self.streams() {
            while stream.keep_some(self) {}
        }
        self.disturbances += 1;
        self.round = Round::default();
        self.last_ranks = [0; 2];
        self.segments.flush();
        self.index.flush();
        self.forget_spaces();
        self.hashes.forget();
        if let Some(tier_slab) = &mut self.tier_slab {
            tier_slab.flush();
        }
    }

    /// Makes a step of what is left to do for what was flushed or has expired; whether there was
    /// any.
    pub fn tidy(&mut self, now: Millis) -> bool {
        if self.index.is_sweeping() {
            self.disturbances += 1;
            let segments = &self.segments;
            self.index.sweep(SWEPT_BUCKETS, |slot| segments.is_flushed(slot.pos().unit()));
            return true;
        }
        (0..RELEASED_SEGMENTS).take_while(|_| self.drop_flushed()).count() > 0
            || self
                .tier_slab
                .as_mut()
                .is_some_and(|tier_slab| tier_slab.drop_flushed(RELEASED_VALUES))
            || self.expire_one(now)
            || self.drop_lost_hashes()
            || self.drop_parts(DROPPED_PARTS)
            || self.sweep_spaces()
            || self.approach_limit(now)
            || self.sift(now)
    }

    /// Drops everything in a segment and gives it back; how many items there were.
    pub fn drop_segment(&mut self, unit: u32) -> u64 {
        self.drop_items(unit, None)
    }

    /// As [`Partition::drop_segment`]; with a time for want of room.
    pub fn drop_items(&mut self, unit: u32, evicted: Option<Millis>) -> u64 {
        self.disturbances += 1;
        if self.segments.get(unit).kind != SegmentState::Leaving {
            self.segments.leave(unit);
        }
        let mut items = 0;
        self.walk(unit, |partition, pos, header| {
            if header.has(Header::PIECE) {
                return;
            }
            if header.has(Header::RESERVED) {
                return partition.kill(pos);
            }
            let hash = partition.hash_at(pos, header);
            let Some(found) = partition.index.find(hash, |slot| slot.pos() == pos) else {
                assert!(partition.segments.is_flushed(unit), "a live item has an entry");
                return;
            };
            match evicted {
                Some(now) => partition.note_evicted(found, now),
                None if !partition.segments.is_flushed(unit) => partition.forget_behind(hash),
                None => {}
            }
            partition.remove(hash, found);
            items += 1;
        });
        self.segments.release(unit);
        items
    }

    /// Calls `f` for all pieces of a segment that are not dead.
    pub fn walk(&mut self, unit: u32, mut f: impl FnMut(&mut Partition, Pos, Header)) {
        let used = self.segments.get(unit).used;
        let mut offset = 0;
        while offset < used {
            let pos = Pos::new(unit, offset);
            let header = self.header(pos);
            offset += header.bytes();
            if !header.has(Header::DEAD) {
                f(self, pos, header);
            }
        }
    }

    pub fn hash_at(&mut self, pos: Pos, header: Header) -> u64 {
        if self.emulation.is_some() {
            self.wait_for_walk(pos, header);
        }
        let mut key = std::mem::take(&mut self.key_buffer);
        self.key_of(pos, header, &mut key);
        let hash = Key::of_stored(&key, header).hash(self.seed);
        self.key_buffer = key;
        hash
    }
}
