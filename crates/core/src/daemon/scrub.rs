//! Comparing the copies of the metadata while the daemon runs, some at each tick.
//!
//! In: ticks. Out: single wrong copies that are right again, table words that say what the entries
//! do, counters. Called by `mod.rs` between two steps, when no word is being stored. One round goes
//! over the words before the frames, the entries of frames that were ever used with their table
//! words, and the bitmaps of slab pages. A word that is damaged in two copies is reported; a slab
//! page with one gives nothing out any more. Decision 0051.

use crate::addr::{FrameIndex, Generation};
use crate::constants::{DAMAGED_WORDS_MAX, SCRUB_BLOCKS_MAX};
use crate::copies::{self, Checked};
use crate::daemon::frames::FrameEntry;
use crate::daemon::{Daemon, World, set_table, slab};
use crate::layout::{
    BLOCK_BYTES, FRAME_BYTES, FRAMES_OFFSET, FrameState, FrameWord, STATE_OFFSET, frame_word,
    table_word,
};
use crate::seam::{Mem, Mutation, Probe};
use crate::wire::MetadataChecks;
use std::collections::BTreeSet;

/// How far the round is, and what was found since this process started.
pub(super) struct Scrub {
    /// The next word to be compared.
    at: u64,
    rounds: u64,
    repaired: u64,
    /// Words without a majority.
    damaged: BTreeSet<u64>,
}

impl Scrub {
    pub(super) fn after_attach(found: Checked) -> Scrub {
        let mut scrub =
            Scrub { at: STATE_OFFSET, rounds: 0, repaired: 0, damaged: BTreeSet::new() };
        scrub.note(found);
        scrub
    }

    pub(super) fn note(&mut self, found: Checked) {
        self.repaired += found.repaired;
        let room = DAMAGED_WORDS_MAX - self.damaged.len();
        self.damaged.extend(found.damaged.into_iter().take(room));
    }
}

impl Daemon {
    /// Compares the next blocks, as many as for `ticks` ticks, within bounds.
    pub fn scrub<W: World>(&mut self, ticks: u64, world: &W) {
        for _ in 0..ticks.clamp(1, SCRUB_BLOCKS_MAX) {
            self.scrub_block(world);
        }
    }

    /// What was found wrong in the metadata since this process started.
    pub fn metadata_checks(&self) -> MetadataChecks {
        let Scrub { rounds, repaired, ref damaged, .. } = self.scrub;
        MetadataChecks { rounds, repaired, damaged: damaged.len() as u64 }
    }

    fn scrub_block<W: World>(&mut self, world: &W) {
        let at = self.scrub.at;
        let entries_end = frame_word(FrameIndex(self.frames.high), FrameWord::Page);
        let mut found = Checked::default();
        if at < entries_end {
            let bytes = (BLOCK_BYTES - at % BLOCK_BYTES).min(entries_end - at);
            copies::check(world.private(), at, bytes, &mut found);
            if at >= FRAMES_OFFSET {
                let first = ((at - FRAMES_OFFSET) / FRAME_BYTES) as u32;
                let count = (bytes / FRAME_BYTES) as u32;
                found.repaired += self.scrub_table(first..first + count, world);
            }
            self.scrub.at = at + bytes;
        } else {
            self.scrub_bitmap(at, &mut found, world);
        }
        self.scrub.note(found);
    }

    /// The bitmap at or behind `at`, or a part of it; the end of the round if there is none.
    fn scrub_bitmap<W: World>(&mut self, at: u64, found: &mut Checked, world: &W) {
        let base = self.layout.bitmaps_offset();
        let behind = at.saturating_sub(base);
        let from = (behind / self.layout.bitmap_bytes()) as u32;
        let Some((frame, shift)) = self.slabs.next_page(from) else {
            self.scrub.rounds += 1;
            self.scrub.at = STATE_OFFSET;
            return;
        };
        let start = self.layout.bitmap_offset(FrameIndex(frame));
        let end = start + slab::bitmap_bytes(&self.layout, shift);
        let at = at.max(start);
        let bytes = BLOCK_BYTES.min(end.saturating_sub(at));
        copies::check(world.private(), at, bytes, found);
        if !found.damaged.is_empty() {
            self.slabs.note_damaged(frame);
        }
        let is_done = at + bytes >= end;
        let next = start + self.layout.bitmap_bytes();
        self.scrub.at = if is_done { next } else { at + bytes };
    }

    /// Makes the table words of frames say what their entries do; how many were wrong. A page that
    /// moves has words of its own.
    fn scrub_table<W: World>(&self, frames: std::ops::Range<u32>, world: &W) -> u64 {
        let mut wrong = 0;
        for frame in frames.filter(|frame| !self.frames.damaged.contains(frame)) {
            let Ok(entry) = FrameEntry::load(world.private(), frame) else { continue };
            let expected = match entry.state {
                FrameState::Arriving | FrameState::Departing => continue,
                FrameState::Home if self.frames.is_slot(frame) => Generation(0),
                FrameState::Home => self.key_of(entry.page, entry.generation),
                _ => Generation(0),
            };
            let word = table_word(FrameIndex(frame));
            if world.table().load(word) != expected.0
                && !world.private().mutated(Mutation::TrustOneCopy)
            {
                set_table(world, word, expected.0);
                wrong += 1;
            }
        }
        wrong
    }
}
