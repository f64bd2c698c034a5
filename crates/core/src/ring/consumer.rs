//! The receiving end of a ring. See `ring/mod.rs` for layout and ordering.

use super::{
    GENERATION_SHIFT, Geometry, IN_DATA, INCARNATION, INLINE_BYTES, LENGTH_MASK, RingError, TAKEN,
    done_offset, done_stamp,
};
use crate::coherence;
use crate::seam::{Mem, Mutation};

/// A message that was taken off the entries and not finished: its data stay in the ring until
/// [`Consumer::finish`]. Dropped without that, they stay until the ring is reset.
#[must_use = "its data occupy the ring until it is finished"]
#[derive(Debug)]
pub struct HeldMessage {
    place: Payload,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
enum Payload {
    Inline([u8; INLINE_BYTES]),
    Data { block: u32, stamp: u64 },
}

/// The one consumer of a ring. Its cursors are private.
pub struct Consumer<M: Mem> {
    window: M,
    geometry: Geometry,
    incarnation: u16,
    taken: u64,
    /// Where long messages are copied before any code looks at them. Room for the longest message;
    /// its memory appears with the messages that need it.
    buffer: Vec<u8>,
}

impl<M: Mem> Consumer<M> {
    /// The consumer of a ring of [`Geometry::STANDARD`] that is new (all zero) or was just reset.
    ///
    /// # Panics
    /// If the window is shorter than the ring.
    pub fn attach(window: M) -> Self {
        Self::attach_with(window, Geometry::STANDARD)
    }

    /// As [`Consumer::attach`] for another geometry.
    pub fn attach_with(window: M, geometry: Geometry) -> Self {
        geometry.check(window.bytes());
        let incarnation = window.load(INCARNATION) as u16;
        let buffer = Vec::with_capacity(geometry.message_bytes_max());
        Consumer { window, geometry, incarnation, taken: 0, buffer }
    }

    /// Takes the next message and gives a private copy of it to `f`; `None` if there is none.
    /// Its space is free before `f` runs. After an error the ring answers the same error until it
    /// is reset. Never blocks.
    #[inline]
    pub fn pop<R>(&mut self, f: impl FnOnce(&[u8]) -> R) -> Option<Result<R, RingError>> {
        let word = match self.header()? {
            Ok(word) => word,
            Err(error) => return Some(Err(error)),
        };
        if word & IN_DATA != 0 {
            return self.pop_data(f);
        }
        let bytes = (word & LENGTH_MASK) as usize;
        if bytes > INLINE_BYTES {
            return Some(Err(corrupt("the length of an inline message", word)));
        }
        let mut payload = [0; INLINE_BYTES];
        self.window.copy_out(self.geometry.entry_offset(self.taken) + 8, &mut payload);
        self.advance();
        Some(Ok(f(&payload[..bytes])))
    }

    #[inline(never)]
    fn pop_data<R>(&mut self, f: impl FnOnce(&[u8]) -> R) -> Option<Result<R, RingError>> {
        let held = match self.hold()? {
            Ok(held) => held,
            Err(error) => return Some(Err(error)),
        };
        let bytes = held.bytes;
        self.copy_data(&held);
        self.finish(held);
        Some(Ok(f(&self.buffer[..bytes])))
    }

    /// Takes the next message off the entries and leaves long data in the ring, for work that
    /// takes long; later messages can be taken and finished before it.
    #[inline]
    pub fn hold(&mut self) -> Option<Result<HeldMessage, RingError>> {
        let word = match self.header()? {
            Ok(word) => word,
            Err(error) => return Some(Err(error)),
        };
        let entry = self.geometry.entry_offset(self.taken);
        let bytes = (word & LENGTH_MASK) as usize;
        let place = if word & IN_DATA == 0 {
            if bytes > INLINE_BYTES {
                return Some(Err(corrupt("the length of an inline message", word)));
            }
            let mut payload = [0; INLINE_BYTES];
            self.window.copy_out(entry + 8, &mut payload);
            Payload::Inline(payload)
        } else {
            match self.place_of_data(entry, bytes, word) {
                Ok(place) => place,
                Err(error) => return Some(Err(error)),
            }
        };
        self.advance();
        Some(Ok(HeldMessage { place, bytes }))
    }

    /// A private copy of a held message.
    pub fn read<'a>(&'a mut self, held: &'a HeldMessage) -> &'a [u8] {
        match &held.place {
            Payload::Inline(payload) => &payload[..held.bytes],
            Payload::Data { .. } => {
                self.copy_data(held);
                &self.buffer[..held.bytes]
            }
        }
    }

    /// Gives the space of a held message back.
    pub fn finish(&mut self, held: HeldMessage) {
        if let Payload::Data { block, stamp } = held.place {
            // Pairs with the load of this word in ring/producer.rs::look_for_blocks: our copy out
            // of the blocks stays before it.
            coherence::store(&self.window, Mutation::HideRingRoom, done_offset(block), stamp);
        }
    }

    /// Whether [`Consumer::pop`] would answer something now.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.header().is_some()
    }

    #[inline]
    pub fn window(&self) -> &M {
        &self.window
    }

    /// How many messages were taken since the attach.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// The first word of the next entry, if it is one of the present lap.
    #[inline]
    fn header(&self) -> Option<Result<u64, RingError>> {
        // Pairs with the publishing store in ring/producer.rs::push.
        let entry = self.geometry.entry_offset(self.taken);
        let word = coherence::load(&self.window, Mutation::KeepRingEntry, entry);
        let generation = word >> GENERATION_SHIFT;
        if generation == self.geometry.generation(self.incarnation, self.taken) {
            return Some(Ok(word));
        }
        if generation == self.geometry.generation_before(self.incarnation, self.taken) {
            return None;
        }
        Some(Err(corrupt("the generation of an entry", word)))
    }

    fn place_of_data(&self, entry: u64, bytes: usize, word: u64) -> Result<Payload, RingError> {
        if bytes <= INLINE_BYTES || bytes > self.geometry.message_bytes_max() {
            return Err(corrupt("the length of a message in the data area", word));
        }
        let found = self.window.load(entry + 8);
        let count = u64::from(self.geometry.blocks_of(bytes));
        if found > u64::from(self.geometry.blocks) - count {
            return Err(corrupt("the data block of a message", found));
        }
        let stamp = done_stamp(self.incarnation, self.taken);
        Ok(Payload::Data { block: found as u32, stamp })
    }

    fn copy_data(&mut self, held: &HeldMessage) {
        if let Payload::Data { block, .. } = held.place {
            let offset = self.geometry.block_offset(block);
            if self.buffer.len() < held.bytes {
                self.buffer.resize(held.bytes, 0);
            }
            let bytes = held.bytes as u64;
            coherence::renew(&self.window, Mutation::KeepRingData, offset, bytes);
            self.window.copy_out(offset, &mut self.buffer[..held.bytes]);
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.taken += 1;
        // Pairs with the load of this word in ring/producer.rs::look_for_entries: our copy out of
        // the entry stays before it. The producer rarely looks, so the line stays here.
        coherence::store(&self.window, Mutation::HideRingRoom, TAKEN, self.taken);
    }
}

fn corrupt(what: &'static str, found: u64) -> RingError {
    RingError::Corrupt { what, found }
}
