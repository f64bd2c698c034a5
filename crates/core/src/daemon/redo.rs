//! The redo record of the private section: several 8-byte stores that happen all or not at all.
//!
//! In: absolute stores, gathered with [`Redo::set`]. Out: the same stores in the section. Every
//! other file of the engine changes several words only through here; one word alone is stored
//! directly. Order: entries, sequence, count, checksum, then the stores, then count 0. The record
//! counts from the moment its checksum is there; a crash before it leaves nothing, a crash after
//! it is finished by [`Redo::replay`]. Source: DESIGN §2 (state changes by one store or by a
//! checksummed, idempotent redo record).

use crate::error::{Error, Result};
use crate::layout::{REDO_HEADER_BYTES, REDO_OFFSET, REDO_STORES_MAX, STATE_OFFSET};
use crate::seam::{Mem, Mutation, Race, Rare};

const SEQUENCE: u64 = REDO_OFFSET;
const COUNT: u64 = REDO_OFFSET + 8;
const CHECKSUM: u64 = REDO_OFFSET + 16;
const ENTRIES: u64 = REDO_OFFSET + REDO_HEADER_BYTES;

/// Gathers stores and commits them as one.
pub(super) struct Redo {
    sequence: u64,
    stores: Vec<(u64, u64)>,
    scratch: Vec<u8>,
}

impl Redo {
    /// Finishes a committed record, drops an unfinished one, and starts with the next sequence.
    pub(super) fn replay<M: Mem>(mem: &M) -> Result<Redo> {
        let mut redo =
            Redo { sequence: mem.load(SEQUENCE), stores: Vec::new(), scratch: Vec::new() };
        let count = mem.load(COUNT);
        if count > REDO_STORES_MAX as u64 {
            let reason = format!("the redo record has {count} stores of {REDO_STORES_MAX}");
            return Err(Error::BadRegion { reason });
        }
        for index in 0..count {
            let entry = ENTRIES + 16 * index;
            redo.stores.push((mem.load(entry), mem.load(entry + 8)));
        }
        let committed = count > 0 && redo.checksum() == mem.load(CHECKSUM);
        if committed && !mem.mutated(Mutation::DropRedo) {
            for (offset, _) in &redo.stores {
                let inside = (STATE_OFFSET..mem.bytes()).contains(offset);
                let apart =
                    !(REDO_OFFSET..REDO_OFFSET + crate::layout::REDO_BYTES).contains(offset);
                if offset % 8 != 0 || !inside || !apart {
                    let reason = format!("the redo record stores to offset {offset}");
                    return Err(Error::BadRegion { reason });
                }
            }
            mem.met(Race::RedoFinished);
            redo.apply(mem);
        }
        if count > 0 {
            mem.store(COUNT, 0);
        }
        redo.stores.clear();
        Ok(redo)
    }

    /// Adds a store to the record under preparation.
    pub(super) fn set(&mut self, offset: u64, value: u64) {
        self.stores.push((offset, value));
    }

    /// Makes all stores added since the last commit happen as one.
    pub(super) fn commit<M: Mem>(&mut self, mem: &M) {
        assert!(!self.stores.is_empty(), "a redo record says something");
        assert!(self.stores.len() <= REDO_STORES_MAX, "a redo record fits into its place");
        if self.stores.len() > 1 || mem.rare(Rare::RedoOneStore) {
            self.sequence = self.sequence.wrapping_add(1);
            for (index, (offset, value)) in self.stores.iter().enumerate() {
                let entry = ENTRIES + 16 * index as u64;
                mem.store(entry, *offset);
                mem.store(entry + 8, *value);
            }
            let checksum = self.checksum();
            mem.store(SEQUENCE, self.sequence);
            mem.store(COUNT, self.stores.len() as u64);
            mem.store(CHECKSUM, checksum);
            self.apply(mem);
            mem.store(COUNT, 0);
        } else {
            self.apply(mem);
        }
        self.stores.clear();
    }

    fn apply<M: Mem>(&self, mem: &M) {
        for (offset, value) in &self.stores {
            mem.store(*offset, *value);
        }
    }

    fn checksum(&mut self) -> u64 {
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.sequence.to_le_bytes());
        self.scratch.extend_from_slice(&(self.stores.len() as u64).to_le_bytes());
        for (offset, value) in &self.stores {
            self.scratch.extend_from_slice(&offset.to_le_bytes());
            self.scratch.extend_from_slice(&value.to_le_bytes());
        }
        xxhash_rust::xxh3::xxh3_64(&self.scratch)
    }
}
