//! Far memory is gone through again and again at a steady pace, so that what is read often comes
//! near also where nothing is stored. What stays is not moved.
//!
//! Uses are told to the sketch as by a round; an item that is worth more than what stayed near last
//! goes there. Where near memory has no room, a round of its own makes some first.
//!
//! Called by `sweep.rs` in idle turns.

use super::ranks::rank;
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
const OWED_MS_MAX: u64 = 1000;
/// Items of one step.
const STEP_ITEMS: usize = 32;
/// Bytes that a round goes on by in one step.
const ROUND_BYTES: u64 = 4096;

/// How far it has come.
#[derive(Debug, Default)]
pub(crate) struct Sift {
    unit: u32,
    /// Number of the segment; another one has begun there if it differs.
    seq: u64,
    offset: u32,
    /// Up to when its pace allowed what was done.
    paid_until: Millis,
    /// Whether a round was made for the item that comes next.
    has_made_room: bool,
}

impl Partition {
    /// Goes on for a step, if one is due; whether it was.
    pub(crate) fn sift(&mut self, now: Millis) -> bool {
        let far_bytes = u64::from(self.segments.far_units()) << UNIT_SHIFT;
        self.sift.paid_until = self.sift.paid_until.max(now.saturating_sub(OWED_MS_MAX));
        if far_bytes == 0 || self.is_recovering || self.sift.paid_until >= now {
            return false;
        }
        self.disturbances += 1;
        let bytes = if self.round.is_open() {
            self.go_on(ROUND_BYTES, now);
            ROUND_BYTES
        } else {
            self.sift_some(now)
        };
        let pace = (far_bytes / PASS_S).clamp(PACE_MIN, PACE_MAX);
        self.sift.paid_until += (bytes * 1000).div_ceil(pace).max(1);
        true
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
            self.sift.has_made_room = false;
            self.sift.offset += header.bytes();
        }
        u64::from(self.sift.offset - start).max(ROUND_BYTES)
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
        let last_near = self.last_ranks[Memory::Near as usize];
        let is_hot = rank(estimate, bytes) >= last_near.saturating_add(super::round::NEAR_RANKS);
        let has_room = self.has_room_near(pos, header);
        if is_hot && !has_room && !self.sift.has_made_room {
            self.sift.has_made_room = true;
            self.begin_round(Memory::Near);
            return false;
        }
        self.policy_state.sketch.count(hash, uses);
        let slot = slot.with_freq(0);
        if is_hot && has_room {
            self.stats.promotions += 1;
            self.keep((at, slot), hash, Stream::Main, now);
        } else {
            self.index.mark(at, slot);
        }
        true
    }
}
