//! Samples of what is read from near and from far memory, and items that move by them: so that
//! traffic is split by bandwidth (`rackpool_core::bandwidth_split`, which decides) where that is
//! wanted, else so that what is read often lies near (`sift.rs`).
//!
//! One read in so many is looked at when it is over, under the partition's lock: where its item
//! lies and how many bytes it has. An item that is read often is met often, so what is met is what
//! moves; nothing is searched. Lines that a processor's cache answers are counted as well: no
//! counter of the memory itself is read.
//!
//! Called by `mod.rs` and `many.rs` after look-ups, and by `sift.rs` in idle turns.

use super::sift::ROUND_BYTES;
use crate::cache::layout::{Header, Pos};
use crate::cache::options::Options;
use crate::cache::partition::Partition;
use crate::cache::segments::{Memory, Stream};
use crate::cache::{Millis, layout};
use rackpool_core::bandwidth_split::{BandwidthSplit, ReadBytes, ReadItem, Turn};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads that one sample stands for: a prime, so that keys that are read in turn are all met.
pub(crate) const SAMPLED_READS: u32 = 31;
const TURN_MS: Millis = 1000;
const LINE_BYTES: u64 = 64;
/// Items of which the use is remembered, the most needed ones.
const NEEDS: usize = 256;
/// Of near memory's bandwidth, the part that moving items may take.
const BUDGET_PARTS: u64 = 64;
/// Bytes that a partition moves in a turn at most: some percent of a processor.
const BUDGET_BYTES_MAX: u64 = 16 << 20;

/// What all partitions of a cache have read, estimated, and by how many samples.
#[derive(Debug, Default)]
pub(crate) struct AllReads {
    near_bytes: AtomicU64,
    far_bytes: AtomicU64,
    samples: AtomicU64,
}

impl AllReads {
    fn add(&self, read: ReadBytes) {
        // Relaxed: counters.
        self.near_bytes.fetch_add(read.near, Ordering::Relaxed);
        // Relaxed: as above.
        self.far_bytes.fetch_add(read.far, Ordering::Relaxed);
        // Relaxed: as above.
        self.samples.fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self) -> (ReadBytes, u64) {
        // Relaxed: counters.
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (ReadBytes { near: of(&self.near_bytes), far: of(&self.far_bytes) }, of(&self.samples))
    }
}

/// How many bytes of an item were read lately: halved at the end of each turn.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    hash: u64,
    bytes: u64,
}

#[derive(Debug)]
pub(crate) struct ReadSamples {
    split: BandwidthSplit,
    all: Arc<AllReads>,
    all_before: (ReadBytes, u64),
    own: ReadBytes,
    turn_began: Millis,
    needs: Box<[Need]>,
}

impl ReadSamples {
    /// Of a partition; `None` if the bandwidths are not known.
    pub fn of(options: &Options, all: &Arc<AllReads>) -> Option<Box<ReadSamples>> {
        let bandwidths = options.far.as_ref()?.bandwidths?;
        let part = bandwidths.near / BUDGET_PARTS / u64::from(options.partitions);
        let budget_bytes = part.clamp(u64::from(layout::UNIT_BYTES), BUDGET_BYTES_MAX);
        Some(Box::new(ReadSamples {
            split: BandwidthSplit::new(bandwidths, budget_bytes),
            all: Arc::clone(all),
            all_before: (ReadBytes::default(), 0),
            own: ReadBytes::default(),
            turn_began: 0,
            needs: vec![Need::default(); NEEDS].into(),
        }))
    }

    fn end_turn_if_over(&mut self, now: Millis) {
        let ms = now.saturating_sub(self.turn_began);
        if ms < TURN_MS {
            return;
        }
        let ((read, samples), (read_before, samples_before)) = (self.all.sum(), self.all_before);
        let all = ReadBytes { near: read.near - read_before.near, far: read.far - read_before.far };
        // The first turn begins with the first sample, or idle turn.
        if self.turn_began != 0 {
            let own = self.own;
            self.split.end_turn(&Turn { ms, samples: samples - samples_before, all, own });
        }
        (self.all_before, self.own, self.turn_began) = ((read, samples), ReadBytes::default(), now);
        self.needs.iter_mut().for_each(|need| need.bytes /= 2);
    }

    /// Counts bytes that were read of an item; its bytes × how often it was read lately, bytes a
    /// second.
    fn note(&mut self, hash: u64, bytes: u64) -> u64 {
        let need = &mut self.needs[(hash >> 20) as usize % NEEDS];
        let sum = if need.hash == hash { need.bytes + bytes } else { bytes };
        if need.hash == hash || need.bytes <= bytes {
            *need = Need { hash, bytes: sum };
        } else {
            // One that is read no more makes room in the end.
            need.bytes -= bytes / 2;
        }
        // Halved once a turn, what is read in one adds up to between one and two of it.
        sum * 2 / 3
    }
}

impl Partition {
    /// How many more reads there are before a sample is due.
    #[inline(always)]
    pub(crate) fn reads_until_sample(&self) -> u32 {
        self.sampled_reads.saturating_sub(self.unsampled).saturating_sub(1)
    }

    /// Counts reads; a sample may be due then.
    #[inline(always)]
    pub(crate) fn count_reads(&mut self, reads: u32) {
        self.unsampled = self.unsampled.saturating_add(reads);
    }

    /// Looks at the item that lies here, if a sample is due. It may move: the caller has no entry
    /// in its hands any more.
    #[inline(always)]
    pub(crate) fn sample_if_due(&mut self, pos: Pos, now: Millis) {
        if self.unsampled >= self.sampled_reads {
            self.sample(pos, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn sample(&mut self, pos: Pos, now: Millis) {
        let reads = u64::from(std::mem::take(&mut self.unsampled));
        if let Some(mut samples) = self.reads.take() {
            samples.end_turn_if_over(now);
            self.is_split = samples.split.is_split();
            self.sample_with(&mut samples, pos, reads, now);
            self.reads = Some(samples);
        }
        if self.segments.uses_far() && !self.is_split && !self.is_recovering {
            self.bring_near(pos, now);
        }
    }

    /// Ends the turn, also where nothing is read.
    pub(super) fn end_turn_of_reads(&mut self, now: Millis) {
        if let Some(samples) = &mut self.reads {
            samples.end_turn_if_over(now);
            self.is_split = samples.split.is_split();
        }
    }

    fn sample_with(&mut self, samples: &mut ReadSamples, pos: Pos, reads: u64, now: Millis) {
        let header = self.header(pos);
        if header.has(Header::NO_ITEM) {
            return;
        }
        let bytes = self.bytes_of(pos, header);
        let lines = bytes.next_multiple_of(LINE_BYTES);
        let is_far = self.segments.memory_of(pos.unit()) == Memory::Far;
        let (near, far) = if is_far { (0, lines) } else { (lines, 0) };
        // And the line of its bucket.
        let read = ReadBytes { near: (near + LINE_BYTES) * reads, far: far * reads };
        samples.all.add(read);
        samples.own.near += read.near;
        samples.own.far += read.far;
        self.stats.near_bytes_read += read.near;
        self.stats.far_bytes_read += read.far;
        let hash = self.hash_at(pos, header);
        let need = samples.note(hash, lines * reads);
        if self.segments.uses_far() && samples.split.wants(is_far) {
            self.disturbances += 1;
            self.move_by_need(samples, (hash, pos, header), ReadItem { is_far, need, bytes }, now);
        }
    }

    /// Moves an item to the other memory if that is wanted, or makes a step towards room there.
    fn move_by_need(
        &mut self,
        samples: &mut ReadSamples,
        (hash, pos, header): (u64, Pos, Header),
        item: ReadItem,
        now: Millis,
    ) {
        if self.round.is_open() {
            return self.go_on(ROUND_BYTES, now);
        }
        let has_room = match item.is_far {
            true => self.has_room_near(pos, header),
            false => self.has_room(Stream::Far, pos, header),
        };
        if !has_room {
            return match item.is_far {
                true => self.begin_room_near(true),
                false if self.segments.take_more(Memory::Far) => {}
                false => self.begin_round(Memory::Far),
            };
        }
        // As much leaves near memory for what comes there.
        let bytes = if item.is_far { 2 * item.bytes } else { item.bytes };
        let Some(found) = self.index.find(hash, |slot| slot.pos() == pos) else { return };
        if samples.split.takes(&ReadItem { bytes, ..item }) {
            self.keep(found, hash, if item.is_far { Stream::Main } else { Stream::Far }, now);
        }
    }
}
