//! The sending end of a ring. See `ring/mod.rs` for layout and ordering.

use super::{
    GENERATION_SHIFT, Geometry, IN_DATA, INCARNATION, INLINE_BYTES, RingError, TAKEN, done_offset,
    done_stamp,
};
use crate::coherence;
use crate::seam::{Mem, Mutation, Rare};

/// What a long message under way occupies, kept at its first block.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Its blocks, one bit each.
    mask: u64,
    /// What the consumer writes when it has finished.
    stamp: u64,
}

/// The one producer of a ring. Its cursors are private; a second producer on the same ring is a
/// bug of the caller that the consumer may report as corruption.
pub struct Producer<M: Mem> {
    window: M,
    geometry: Geometry,
    incarnation: u16,
    pushed: u64,
    /// Messages taken by the consumer, as last seen.
    taken_seen: u64,
    /// Blocks in use, one bit each.
    used: u64,
    /// First blocks of the runs in use, one bit each.
    first_blocks: u64,
    runs: [Run; 64],
}

impl<M: Mem> Producer<M> {
    /// The producer of a ring of [`Geometry::STANDARD`] that is new (all zero) or was just reset.
    ///
    /// # Panics
    /// If the window is shorter than the ring.
    pub fn attach(window: M) -> Self {
        Self::attach_with(window, Geometry::STANDARD)
    }

    /// As [`Producer::attach`] for another geometry.
    pub fn attach_with(window: M, geometry: Geometry) -> Self {
        geometry.check(window.bytes());
        let incarnation = window.load(INCARNATION) as u16;
        Producer {
            window,
            geometry,
            incarnation,
            pushed: 0,
            taken_seen: 0,
            used: 0,
            first_blocks: 0,
            runs: [Run::default(); 64],
        }
    }

    /// Sends a message: copies it and publishes it, or answers why it cannot. Never blocks.
    /// The consumer may be asleep: its sleeping word says so.
    #[inline]
    pub fn push(&mut self, message: &[u8]) -> Result<(), RingError> {
        if self.pushed - self.taken_seen >= u64::from(self.geometry.entries)
            && !self.window.mutated(Mutation::ReuseSlotEarly)
        {
            self.look_for_entries()?;
        }
        if self.window.rare(Rare::RingFull) {
            return Err(RingError::Full { entries: self.pushed - self.taken_seen });
        }
        let entry = self.geometry.entry_offset(self.pushed);
        let mut word = self.geometry.generation(self.incarnation, self.pushed) << GENERATION_SHIFT
            | message.len() as u64;
        if message.len() <= INLINE_BYTES {
            self.window.copy_in(entry + 8, message);
        } else {
            let block = self.push_data(message)?;
            self.window.store(entry + 8, u64::from(block));
            word |= IN_DATA;
        }
        // Publishes; pairs with the load of this word in ring/consumer.rs::header.
        // The data of a long message are where the consumer looks by now.
        coherence::store(&self.window, Mutation::HideRingEntry, entry, word);
        self.pushed += 1;
        Ok(())
    }

    #[inline]
    pub fn window(&self) -> &M {
        &self.window
    }

    /// How many messages were pushed since the attach.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    #[cold]
    fn look_for_entries(&mut self) -> Result<(), RingError> {
        // Pairs with the store of this word in ring/consumer.rs::advance.
        let taken = coherence::load(&self.window, Mutation::KeepRingRoom, TAKEN);
        if taken < self.taken_seen || taken > self.pushed {
            return Err(RingError::Corrupt { what: "the count of messages taken", found: taken });
        }
        self.taken_seen = taken;
        let entries = self.pushed - taken;
        if entries >= u64::from(self.geometry.entries) {
            return Err(RingError::Full { entries });
        }
        Ok(())
    }

    /// Copies a long message into data blocks; the first of them.
    fn push_data(&mut self, message: &[u8]) -> Result<u32, RingError> {
        let limit = self.geometry.message_bytes_max();
        if message.len() > limit {
            let (bytes, limit_bytes) = (message.len() as u64, limit as u64);
            return Err(RingError::TooLong { bytes, limit_bytes });
        }
        let count = self.geometry.blocks_of(message.len());
        let block = match self.free_run(count) {
            Some(block) => block,
            None => {
                self.look_for_blocks();
                let entries = self.pushed - self.taken_seen;
                self.free_run(count).ok_or(RingError::Full { entries })?
            }
        };
        let data = self.geometry.block_offset(block);
        self.window.copy_in(data, message);
        coherence::show(&self.window, Mutation::HideRingData, data, message.len() as u64);
        let mask = bits(count) << block;
        let stamp = done_stamp(self.incarnation, self.pushed);
        self.runs[block as usize] = Run { mask, stamp };
        self.first_blocks |= 1 << block;
        self.used |= mask;
        Ok(block)
    }

    /// The first block of the first `count` free ones in a row.
    fn free_run(&self, count: u32) -> Option<u32> {
        let mut starts = !self.used & bits(self.geometry.blocks);
        for _ in 1..count {
            starts &= starts >> 1;
        }
        (starts != 0).then(|| starts.trailing_zeros())
    }

    /// Takes back the blocks of all messages that the consumer has finished, in any order.
    #[cold]
    fn look_for_blocks(&mut self) {
        let mut left = self.first_blocks;
        while left != 0 {
            let block = left.trailing_zeros();
            left &= left - 1;
            let run = self.runs[block as usize];
            // Pairs with the store of this word in ring/consumer.rs::finish. Another value than
            // ours only means that the message is not finished.
            let done = coherence::load(&self.window, Mutation::KeepRingRoom, done_offset(block));
            let finished = done == run.stamp;
            if finished || self.window.mutated(Mutation::RecycleBufferEarly) {
                self.used &= !run.mask;
                self.first_blocks &= !(1 << block);
            }
        }
    }
}

/// The lowest `count` bits, 1 to 64.
const fn bits(count: u32) -> u64 {
    u64::MAX >> (64 - count)
}
