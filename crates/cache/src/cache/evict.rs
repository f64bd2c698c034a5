//! Carries out what the policy wants: takes the next segments, drops or moves their items, and
//! gives their units back. In store mode nothing is dropped; segments with dead items are
//! compacted, if that gains memory and all that lives in them can be moved.
//!
//! A round may use free units for what it moves before it gives others back; with none free, the
//! oldest segment is dropped as it is. TinyLFU's rounds, the only ones of several segments, are
//! made in steps (`evict/round.rs`).

pub(crate) mod evicted;
mod leave_far;
pub(crate) mod ranks;
pub(crate) mod reads;
mod round;
pub(crate) mod sift;

use super::draft::ItemDraft;
use super::layout::{Header, Pos, Slot, UNIT_BYTES};
use super::partition::{Found, Partition};
use super::policy::Policy;
use super::segments::{FAR_QUEUE, Memory, Stream};
use super::{Millis, Mode};

/// Share of a segment that must be dead before it is compacted, percent: less would move much to
/// gain little.
const DEAD_PERCENT_MIN: u32 = 5;
const DEAD_BYTES_MIN: u32 = UNIT_BYTES / 100 * DEAD_PERCENT_MIN;
/// Segments that are considered for compaction at once.
const CANDIDATES: usize = 16;
/// Share of the segments that S3-FIFO's small queue may have, percent.
const SMALL_PERCENT: u64 = 10;
impl Partition {
    pub(crate) fn stream_for(&mut self, draft: &ItemDraft<'_>) -> Stream {
        match self.policy {
            Policy::S3Fifo if self.policy_state.exhume(draft.hash) => Stream::Main,
            _ if self.memory_for(draft.value_bytes) == Memory::Far => Stream::Far,
            _ => Stream::New,
        }
    }

    /// Where a new value of so many bytes goes. A long one would drive hundreds out of the window.
    pub(crate) fn memory_for(&self, value_bytes: u64) -> Memory {
        let is_long = value_bytes >= u64::from(UNIT_BYTES);
        if is_long && self.segments.uses_far() { Memory::Far } else { Memory::Near }
    }

    /// Frees a unit of a memory, or comes nearer to it. `false` if nothing can be done.
    pub(crate) fn evict(&mut self, memory: Memory, now: Millis) -> bool {
        if self.mode == Mode::Store {
            return self.compact(now);
        }
        if self.round.is_open() {
            return self.finish_round(memory, now);
        }
        let far_reserve = self.reserve_units[Memory::Far as usize];
        let can_leave = memory == Memory::Near && self.has_free_far(far_reserve + 1);
        if self.segments.free_count(memory) == 0 && !can_leave {
            // Moving needs a unit.
            return self.drop_oldest(memory, now);
        }
        match self.policy {
            Policy::Fifo => self.drop_oldest(memory, now),
            Policy::FifoReinsertion { threshold } => self.reinsert(threshold, now),
            Policy::Sieve => self.sieve(now),
            Policy::S3Fifo => self.s3_fifo(now),
            Policy::TinyLfu => self.finish_round(memory, now),
        }
    }

    /// Makes place in a full bucket: one that was flushed goes, else the least used entry, of these
    /// the oldest. Where the place is.
    pub(super) fn evict_entry(&mut self, hash: u64, now: Millis) -> u64 {
        let mut victim: Option<((bool, u64, u64), Found)> = None;
        self.index.for_bucket(hash, |at, slot| {
            let (unit, offset) = (slot.pos().unit(), slot.pos().offset());
            let age = (self.segments.get(unit).seq << 13) | u64::from(offset >> 3);
            let rank = (!self.segments.is_flushed(unit), slot.freq(), age);
            if victim.is_none_or(|(least, _)| rank < least) {
                victim = Some((rank, (at, slot)));
            }
        });
        let ((is_live, ..), (at, slot)) = victim.expect("a full bucket has entries");
        self.stats.index_evictions += u64::from(is_live);
        if is_live {
            self.note_evicted((at, slot), now);
        }
        self.index.forget(hash, at);
        self.kill_entry(slot);
        at
    }

    fn drop_oldest(&mut self, memory: Memory, now: Millis) -> bool {
        let queues = match memory {
            Memory::Near => 0..FAR_QUEUE,
            Memory::Far => FAR_QUEUE..FAR_QUEUE + 1,
        };
        let oldest = queues.filter_map(|queue| self.segments.oldest(queue));
        let Some(unit) = oldest.min_by_key(|unit| self.segments.get(*unit).seq) else {
            return false;
        };
        let items = self.drop_items(unit, Some(now));
        self.stats.evictions += items;
        true
    }

    fn reinsert(&mut self, threshold: u8, now: Millis) -> bool {
        let Some(unit) = self.segments.oldest(0) else { return false };
        self.judge_segment(unit, now, |_, slot, _| {
            let is_used = slot.freq() >= u64::from(threshold);
            is_used.then(|| (Stream::New, slot.with_freq(0)))
        });
        true
    }

    fn sieve(&mut self, now: Millis) -> bool {
        let Some(unit) = self.segments.take_hand() else { return false };
        // What stays is written to the place where it was: before what the hand meets next.
        self.judge_segment(unit, now, |_, slot, _| {
            (slot.freq() > 0).then(|| (Stream::InPlace, slot.with_freq(0)))
        });
        if self.segments.hand().is_none() {
            self.segments.seal_stream(Stream::InPlace);
        }
        true
    }

    fn s3_fifo(&mut self, now: Millis) -> bool {
        let (small, main) = (self.segments.queue_count(0), self.segments.queue_count(1));
        if small * 100 >= (small + main) * SMALL_PERCENT || main == 0 {
            let Some(unit) = self.segments.oldest(0) else { return false };
            self.judge_segment(unit, now, |partition, slot, hash| {
                if slot.freq() > 0 {
                    return Some((Stream::Main, slot.with_freq(0)));
                }
                partition.policy_state.bury(hash);
                None
            });
            return true;
        }
        let Some(unit) = self.segments.oldest(1) else { return false };
        self.judge_segment(unit, now, |_, slot, _| {
            (slot.freq() > 0).then(|| (Stream::Main, slot.with_freq(slot.freq() - 1)))
        });
        true
    }

    /// Judges all items of a segment and gives it back: `judge` says to which stream an item goes,
    /// and with what slot, or that it is dropped.
    fn judge_segment(
        &mut self,
        unit: u32,
        now: Millis,
        mut judge: impl FnMut(&mut Partition, Slot, u64) -> Option<(Stream, Slot)>,
    ) {
        self.disturbances += 1;
        self.segments.leave(unit);
        self.walk(unit, |partition, pos, header| {
            let Some((hash, (at, slot))) = partition.judged(pos, header, now) else { return };
            let slot =
                if header.is_spaced() { partition.judged_slot(pos, header, slot) } else { slot };
            match judge(partition, slot, hash) {
                Some((stream, slot)) if partition.may_move(pos, header, stream) => {
                    partition.keep((at, slot), hash, stream, now);
                }
                _ => {
                    partition.note_evicted((at, slot), now);
                    partition.stats.evictions += 1;
                    partition.remove(hash, (at, slot));
                }
            }
        });
        self.segments.release(unit);
    }

    /// The entry of an item that is to be judged; what is none, or has expired, is dealt with.
    fn judged(&mut self, pos: Pos, header: Header, now: Millis) -> Option<(u64, Found)> {
        let hash = self.hash_of_live(pos, header)?;
        self.live_entry(hash, pos, now).map(|found| (hash, found))
    }

    /// The hash of an item that is to be judged; what is none is dealt with.
    fn hash_of_live(&mut self, pos: Pos, header: Header) -> Option<u64> {
        if header.has(Header::DEAD | Header::PIECE) {
            return None;
        }
        if header.has(Header::RESERVED) {
            self.kill(pos);
            return None;
        }
        Some(self.hash_at(pos, header))
    }

    /// The entry of a live item, unless it has expired: then it is taken out.
    fn live_entry(&mut self, hash: u64, pos: Pos, now: Millis) -> Option<Found> {
        let found = self.index.find(hash, |slot| slot.pos() == pos);
        let found = found.expect("a live item has an entry");
        if self.is_expired(pos, now) {
            self.stats.expired += 1;
            if !self.segments.is_flushed(pos.unit()) {
                self.forget_behind(hash);
            }
            self.remove(hash, found);
            return None;
        }
        Some(found)
    }

    pub(super) fn keep(&mut self, found: Found, hash: u64, stream: Stream, now: Millis) {
        let pos = found.1.pos();
        let bytes = self.bytes_of(pos, self.header(pos));
        self.stats.moved += 1;
        self.stats.moved_bytes += bytes;
        if self.segments.memory_of(pos.unit()) != stream.memory() {
            match stream.memory() {
                Memory::Near => self.stats.promotions += 1,
                Memory::Far => self.stats.demotions += 1,
            }
            self.stats.crossed_bytes += bytes;
        } else if stream.memory() == Memory::Far {
            self.stats.moved_far_bytes += bytes;
        }
        self.move_item(found, hash, stream, now);
    }

    pub(super) fn bytes_of(&self, pos: Pos, header: Header) -> u64 {
        self.value_bytes(pos, header) + u64::from(header.value_at())
    }

    /// Whether there is room for a copy of an item, eviction apart.
    fn may_move(&self, pos: Pos, header: Header, stream: Stream) -> bool {
        // It may have to keep its cas explicitly.
        let bytes = self.bytes_of(pos, header) + 32;
        let class = self.segments.get(pos.unit()).class;
        let units = bytes / u64::from(UNIT_BYTES - 16) + 1;
        bytes <= u64::from(self.segments.room(stream, class))
            || units <= self.segments.free_count(stream.memory()) as u64
    }

    /// Copies what lives in the segment with the most dead bytes, and gives it back.
    fn compact(&mut self, now: Millis) -> bool {
        let candidates = self.segments.deadest(DEAD_BYTES_MIN, CANDIDATES);
        let Some(unit) = candidates.into_iter().find(|unit| self.gains(*unit, now)) else {
            return false;
        };
        self.disturbances += 1;
        self.segments.leave(unit);
        self.walk(unit, |partition, pos, header| {
            if let Some((hash, found)) = partition.judged(pos, header, now) {
                partition.keep(found, hash, Stream::New, now);
            }
        });
        self.segments.release(unit);
        true
    }

    /// Whether all that lives in a segment without pieces can be moved, and takes less room then.
    fn gains(&mut self, unit: u32, now: Millis) -> bool {
        let (class, used) = (self.segments.get(unit).class, self.segments.get(unit).used);
        let mut room = self.segments.room(Stream::New, class);
        let (mut bytes, mut units, mut is_movable) = (0, 0, true);
        self.walk(unit, |partition, pos, header| {
            // A writer has the place of one that is not published yet.
            is_movable &= !header.has(Header::RESERVED | Header::PIECE | Header::CHAINED);
            if !is_movable || partition.is_expired(pos, now) {
                return;
            }
            let hash = partition.hash_at(pos, header);
            let found = partition.index.find(hash, |slot| slot.pos() == pos);
            let (_, slot) = found.expect("a live item has an entry");
            let grows = slot.has(Slot::SEEN) && !header.has(Header::CAS);
            let item = header.bytes() + 8 * u32::from(grows);
            if item > room {
                (room, units) = (UNIT_BYTES, units + 1);
            }
            (room, bytes) = (room - item, bytes + item);
        });
        let free = self.segments.free_count(Memory::Near);
        is_movable && units <= free && bytes + DEAD_BYTES_MIN <= used
    }
}
