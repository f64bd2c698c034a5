//! What is read often comes near, also where nothing is stored: far memory is gone through again
//! and again at a steady pace, and an item that is met in a sample of reads (`reads.rs`) comes at
//! once, at a pace of its own. What stays is not moved.
//!
//! Uses are told to the sketch as by a round; an item that is worth more than what stayed near last
//! goes there, unless traffic is split by bandwidth (`reads.rs`). Where near memory has no room, a
//! round of its own makes some first.
//!
//! Called by `sweep.rs` in idle turns, and by `reads.rs`.

use super::ranks::rank;
use super::round::NEAR_RANKS;
use crate::cache::Millis;
use crate::cache::layout::{Header, Pos, UNIT_SHIFT};
use crate::cache::partition::Partition;
use crate::cache::segments::{FAR_QUEUE, Memory, Stream};

/// How long one time through a partition's far memory takes, if the pace allows it.
const PASS_S: u64 = 60;
/// Bytes a second, at least and at most: some percent of a processor for short items.
const PACE_MIN: u64 = 1 << 20;
const PACE_MAX: u64 = 16 << 20;
/// What was left out for longer is not made up for.
const OWED_US_MAX: u64 = 1_000_000;
/// Items of one step.
const STEP_ITEMS: usize = 32;
/// Bytes that a round goes on by in one step.
pub(super) const ROUND_BYTES: u64 = 4096;
/// Rounds that make room for one item: one of far memory and one of the near one.
const ROUNDS_MAX: u32 = 2;

/// How far it has come.
#[derive(Debug, Default)]
pub(crate) struct Sift {
    unit: u32,
    /// Number of the segment; another one has begun there if it differs.
    seq: u64,
    offset: u32,
    pace: Pace,
    /// Of items that are met in samples of reads.
    pace_of_reads: Pace,
    /// The last rank that stayed near in the last exchange for one of these; lower with each that
    /// is not worth more, since it gets old.
    pub last_exchanged: u16,
    /// Rounds that were made for the item that comes next.
    pub rounds: u32,
}

/// Up to when the pace allowed what was done, µs.
#[derive(Debug, Default)]
struct Pace {
    paid_until_us: u64,
}

impl Pace {
    fn is_due(&mut self, now: Millis) -> bool {
        let now_us = now * 1000;
        self.paid_until_us = self.paid_until_us.max(now_us.saturating_sub(OWED_US_MAX));
        self.paid_until_us < now_us
    }

    fn pay(&mut self, bytes: u64, bytes_per_s: u64) {
        self.paid_until_us += (bytes * 1_000_000).div_ceil(bytes_per_s);
    }
}

impl Partition {
    /// Goes on for a step, if one is due; whether it was.
    pub(crate) fn sift(&mut self, now: Millis) -> bool {
        self.end_turn_of_reads(now);
        let far_bytes = u64::from(self.segments.far_units()) << UNIT_SHIFT;
        if far_bytes == 0 || self.is_recovering || !self.sift.pace.is_due(now) {
            return false;
        }
        self.disturbances += 1;
        let moved_before = self.stats.moved_bytes;
        let gone_through = if self.round.is_open() {
            self.go_on(ROUND_BYTES, now);
            ROUND_BYTES
        } else if self.segments.uses_far() {
            self.sift_some(now)
        } else if self.leave_far(now) {
            ROUND_BYTES
        } else {
            return false;
        };
        // Long items are moved whole, with pieces that no step goes through.
        let bytes = gone_through.max(self.stats.moved_bytes - moved_before);
        self.sift.pace.pay(bytes, (far_bytes / PASS_S).clamp(PACE_MIN, PACE_MAX));
        true
    }

    /// Brings an item near that was read just now, if it is worth it, or makes a step towards room
    /// there. Where far memory is full stores make rounds, which do that: more of them would drop
    /// what they need not. The caller has no entry in its hands any more.
    pub(super) fn bring_near(&mut self, pos: Pos, now: Millis) {
        let header = self.header(pos);
        let is_far = self.segments.memory_of(pos.unit()) == Memory::Far;
        let is_due = is_far && self.sift.pace_of_reads.is_due(now) && self.has_far_to_spare();
        if !is_due || header.has(Header::NO_ITEM) {
            return;
        }
        let hash = self.hash_at(pos, header);
        // Gone if the batch of this read found it expired.
        let Some(found) = self.index.find(hash, |slot| slot.pos() == pos) else { return };
        let uses = found.1.freq() as u8;
        let estimate = self.policy_state.sketch.estimate(hash).saturating_add(uses);
        let (rank, has_room) =
            (rank(estimate, self.bytes_of(pos, header)), self.has_room_near(pos, header));
        if !self.is_hot(rank) {
            return;
        }
        if !has_room && rank < self.sift.last_exchanged.saturating_add(NEAR_RANKS) {
            self.sift.last_exchanged = self.sift.last_exchanged.saturating_sub(1);
            return;
        }
        self.disturbances += 1;
        let moved_before = self.stats.moved_bytes;
        let mut gone_through = ROUND_BYTES;
        if has_room {
            gone_through = 0;
            self.keep(found, hash, Stream::Main, now);
        } else if self.round.is_open() {
            self.go_on(ROUND_BYTES, now);
        } else {
            self.begin_exchange();
        }
        let bytes = gone_through.max(self.stats.moved_bytes - moved_before);
        self.sift.pace_of_reads.pay(bytes, PACE_MAX);
    }

    /// Looks at the next items; their bytes.
    fn sift_some(&mut self, now: Millis) -> u64 {
        let segment = self.segments.get(self.sift.unit);
        let is_flushed = self.segments.is_flushed(self.sift.unit);
        let is_there = segment.seq == self.sift.seq && segment.seq != 0 && !is_flushed;
        if !is_there || self.sift.offset >= segment.used {
            let next = if is_there { self.segments.after(self.sift.unit) } else { None };
            let Some(unit) = next.or_else(|| self.segments.oldest(FAR_QUEUE)) else {
                return ROUND_BYTES;
            };
            let seq = self.segments.get(unit).seq;
            (self.sift.unit, self.sift.seq, self.sift.offset) = (unit, seq, 0);
        }
        let (unit, start) = (self.sift.unit, self.sift.offset);
        let behind = self.segments.after(unit).map(|next| (next, self.segments.get(next).seq));
        for _ in 0..STEP_ITEMS {
            let segment = self.segments.get(unit);
            // What expired or came near may have been the last of it.
            if segment.seq != self.sift.seq || self.sift.offset >= segment.used {
                break;
            }
            let pos = Pos::new(unit, self.sift.offset);
            let header = self.header(pos);
            if !header.has(Header::NO_ITEM) && !self.sift_item(pos, header, now) {
                break;
            }
            self.sift.rounds = 0;
            self.sift.offset += header.bytes();
        }
        let bytes = u64::from(self.sift.offset - start).max(ROUND_BYTES);
        if self.segments.get(unit).seq != self.sift.seq
            && let Some((next, seq)) = behind
            && self.segments.get(next).seq == seq
        {
            // Its last item went: on with the next, and not from the oldest again.
            (self.sift.unit, self.sift.seq, self.sift.offset) = (next, seq, 0);
        }
        bytes
    }

    /// Looks at an item, which may come near; `false` if room is made for it first.
    fn sift_item(&mut self, pos: Pos, header: Header, now: Millis) -> bool {
        let hash = self.hash_at(pos, header);
        let Some((at, slot)) = self.live_entry(hash, pos, now) else { return true };
        let (bytes, uses) = (self.bytes_of(pos, header), slot.freq() as u8);
        if uses == 0 {
            return true;
        }
        let estimate = self.policy_state.sketch.estimate(hash).saturating_add(uses);
        let comes_near = self.is_hot(rank(estimate, bytes)) && !self.is_split;
        let has_room = self.has_room_near(pos, header);
        if comes_near && !has_room && self.sift.rounds < ROUNDS_MAX {
            self.begin_room_near(self.sift.rounds == 0);
            self.sift.rounds += 1;
            return false;
        }
        self.policy_state.sketch.count(hash, uses);
        let slot = slot.with_freq(0);
        if comes_near && has_room {
            self.keep((at, slot), hash, Stream::Main, now);
        } else {
            self.index.mark(at, slot);
        }
        true
    }
}
