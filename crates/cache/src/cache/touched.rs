//! What a look-up of a key reads, for models of memories that the machine does not have.
//!
//! In: a key. Out: runs of bytes in the units of its partition, in the order in which a look-up
//! reads them. Called by the reproduction of the HMSDK study, never on the data path.

use super::Cache;
use super::draft::PIECE_VALUE_AT;
use super::index::link_at;
use super::layout::{BUCKET_BYTES, UNIT_SHIFT};
use super::segments::Memory;

/// A run of bytes that a look-up reads once it knows where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Bytes from the start of the partition's units.
    pub at: u64,
    /// Its length, headers and padding included.
    pub bytes: u64,
    /// A bucket of the index, or a piece of the item.
    pub is_bucket: bool,
    /// Whether it lies in far memory ([`super::Options::far`]).
    pub is_far: bool,
}

impl Cache {
    /// What a look-up of a key reads: its buckets, then the pieces of its item, each of which the
    /// one before it names. No use of it is counted.
    pub fn touched(&self, key: &[u8]) -> Vec<Touched> {
        let hash = self.hash(key);
        let partition = self.lock(self.index_of(hash));
        let run = |at: u64, bytes: u64, is_bucket: bool| {
            let memory = partition.segments.memory_of((at >> UNIT_SHIFT) as u32);
            Touched { at, bytes, is_bucket, is_far: memory == Memory::Far }
        };
        let found = partition.find(hash, self.key(key));
        let last = found.map(|(slot_at, _)| slot_at & !(BUCKET_BYTES - 1));
        let mut runs = Vec::new();
        let mut next = Some(partition.index.bucket_at(hash));
        while let Some(at) = next {
            runs.push(run(at, BUCKET_BYTES, true));
            next = if last == Some(at) { None } else { link_at(&partition.units, at) };
        }
        if let Some((_, slot)) = found {
            let header = partition.header(slot.pos());
            runs.push(run(slot.pos().byte(), u64::from(header.bytes()), false));
            for piece in partition.pieces(slot.pos()).skip(1) {
                let before = u64::from(PIECE_VALUE_AT);
                runs.push(run(piece.at - before, piece.bytes + before, false));
            }
        }
        runs
    }
}
