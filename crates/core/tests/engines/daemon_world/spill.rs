//! The spill file of the daemon's tests. A job has done its first half when it begins, the rest
//! when it ends; a daemon that dies meanwhile leaves it at that. Slots that it gave back since its
//! last job have their bytes again then.

use super::TestWorld;
use rackpool_core::spill::{SLOT_HEADER_BYTES, SlotHeader, SpillDone, SpillFile, SpillJob};
use rackpool_core::tier::Tiers;
use rackpool_core::{Error, Result};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
struct Slot {
    header: Vec<u8>,
    page: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct TestSpill {
    slots: BTreeMap<u32, Slot>,
    job: Option<SpillJob>,
    punched: BTreeMap<u32, Slot>,
    /// Jobs end with this.
    pub error: Option<Error>,
    pub is_slow: bool,
    pub begun: u64,
    /// Whether pages of a lost region are to be adopted.
    pub is_adopting: bool,
}

impl TestSpill {
    /// The process of the file is gone, and what it was at.
    pub(super) fn die(&mut self) {
        self.job = None;
        for (slot, of) in std::mem::take(&mut self.punched) {
            self.slots.entry(slot).or_insert(of);
        }
    }

    /// Flips a bit of the page in a slot.
    pub fn damage(&mut self, slot: u32) {
        self.slots.get_mut(&slot).expect("the slot was written").page[17] ^= 4;
    }

    /// What the next daemon is told of slots that have a header.
    pub(super) fn found(&self) -> Vec<(u32, SlotHeader)> {
        let decoded = |(slot, of): (&u32, &Slot)| Some((*slot, SlotHeader::decode(&of.header)?));
        let told = self.slots.iter().filter(|_| self.is_adopting);
        told.filter_map(decoded).collect()
    }

    pub fn used(&self) -> usize {
        self.slots.len()
    }

    fn page(&mut self, slot: u32, end: usize) -> &mut Vec<u8> {
        let page = &mut self.slots.entry(slot).or_default().page;
        page.resize(page.len().max(end), 0);
        page
    }

    fn write(&mut self, slot: u32, offset: u64, data: &[u8]) {
        let at = offset as usize;
        self.page(slot, at + data.len())[at..at + data.len()].copy_from_slice(data);
    }

    fn end(&mut self, job: SpillJob) -> SpillDone {
        match job {
            SpillJob::Write { slot, offset, data } => {
                self.write(slot, offset, &data);
                SpillDone::Written
            }
            SpillJob::Seal { slot, header } => {
                self.slots.entry(slot).or_default().header = header;
                SpillDone::Sealed
            }
            SpillJob::ReadHeader { slot } => {
                let mut header = self.slots.get(&slot).cloned().unwrap_or_default().header;
                header.resize(SLOT_HEADER_BYTES as usize, 0);
                SpillDone::Read(header)
            }
            SpillJob::Read { slot, offset, bytes } => {
                let (from, to) = (offset as usize, (offset + bytes) as usize);
                SpillDone::Read(self.page(slot, to)[from..to].to_vec())
            }
        }
    }
}

impl TestWorld {
    pub(super) fn with_spill(memory_frames: u32, slots: u32) -> TestWorld {
        let tiers = Tiers::default().with_spill(memory_frames, slots).unwrap();
        TestWorld { tiers, ..TestWorld::new(memory_frames + slots) }
    }
}

impl SpillFile for TestWorld {
    fn begin_spill(&mut self, job: SpillJob) {
        self.fuse.burn();
        assert!(self.spill.job.is_none(), "one job at a time");
        self.spill.begun += 1;
        self.spill.punched.clear();
        if let SpillJob::Write { slot, offset, data } = &job {
            self.spill.write(*slot, *offset, &data[..data.len() / 2]);
        }
        self.spill.job = Some(job);
    }

    fn spill_ended(&mut self) -> Option<Result<SpillDone>> {
        self.fuse.burn();
        if self.spill.is_slow {
            return None;
        }
        let job = self.spill.job.take()?;
        let error = self.spill.error.clone();
        Some(error.map_or_else(|| Ok(self.spill.end(job)), Err))
    }

    fn punch_slots(&mut self, first: u32, count: u32) {
        self.fuse.burn();
        for slot in first..first + count {
            let gone = self.spill.slots.remove(&slot);
            self.spill.punched.extend(gone.map(|of| (slot, of)));
        }
    }

    fn slots_adopted(&mut self) {
        self.fuse.burn();
        self.spill.is_adopting = false;
    }
}
