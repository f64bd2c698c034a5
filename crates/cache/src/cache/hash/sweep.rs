//! Fields that have expired are taken out of large hashes in idle turns, part by part, the hash
//! with the earliest expiry first. What is over is not seen before that; but it is
//! counted, and takes memory.

use super::{HashEntry, Held, ITEM_BYTES, ITEMS_OF_CHANGE};
use crate::cache::error::Result;
use crate::cache::key::Key;
use crate::cache::{Cache, Millis};
use crate::clock::Times;
use crate::hashes::{ROOT_BYTES, Sweep};

impl Cache {
    /// Takes what has expired out of a part of a hash in this partition; whether it did.
    pub(in crate::cache) fn sweep_hash(&self, index: usize, now: Millis) -> bool {
        let mut partition = self.lock(index);
        let times = Times { now, wall: partition.wall.at(now) };
        let Some(id) = partition.hashes.due(times) else { return false };
        // What is over is not seen; while a section has the hash it is not counted anew either.
        if partition.holder(id.owner, 0).is_some() {
            return false;
        }
        let Some(((_, slot), _)) = partition.find_root(id) else {
            partition.hashes.forget_hash(id);
            return true;
        };
        let (mut stored, header) = (Vec::new(), partition.header(slot.pos()));
        partition.key_of(slot.pos(), header, &mut stored);
        let (key, hash) = (Key::of_stored(&stored, header), id.owner);
        let held = Held::Nothing;
        let mut entry =
            HashEntry { partition, key, hash, times, held, found: None, flags: 0, expires: 0 };
        entry.load(false).is_ok() && entry.sweep().is_ok()
    }
}

impl HashEntry<'_> {
    /// Makes a step of the sweep that is under way, or of a new one.
    fn sweep(&mut self) -> Result<()> {
        let Held::Large(root) = self.held else { return Ok(()) };
        let id = self.id_of(&root);
        let sweep: Sweep = self.partition.hashes.take_sweep(id).unwrap_or_default();
        let part = self.partition.part_bytes(id, root.shape.part_of(sweep.at().unwrap_or(0)));
        let root_bytes = self.key.stored_bytes() as u64 + ROOT_BYTES as u64;
        self.partition.hashes.put_sweep(id, Some(sweep));
        self.make_room(part + root_bytes + ITEMS_OF_CHANGE * ITEM_BYTES, 0)?;
        if self.is_large() {
            self.change(|large| large.sweep())?;
        }
        Ok(())
    }
}
