//! The spill file of a rack, as its daemon sees it. It outlives the daemon, and goes with the
//! rack's region. A job is half done when it begins and whole when it ends, some time later; a
//! daemon that dies in between leaves it at that. When the host has no room for memory it has none in the
//! file's file system either: then what is written fails.

use super::rack::RackWorld;
use crate::time::Ps;
use rackpool_core::layout::BLOCK_BYTES;
use rackpool_core::spill::{SLOT_HEADER_BYTES, SpillDone, SpillFile, SpillJob};
use rackpool_core::{Error, Result};
use std::collections::BTreeMap;

/// What is in a slot.
#[derive(Clone, Default)]
struct SlotBytes {
    header: Vec<u8>,
    page: Vec<u8>,
}

/// The file, by slot.
#[derive(Default)]
pub struct SpillSlots {
    slots: BTreeMap<u32, SlotBytes>,
    /// Jobs so far, which take different times.
    jobs: u32,
}

impl SpillSlots {
    fn page(&mut self, slot: u32, end: usize) -> &mut [u8] {
        let page = &mut self.slots.entry(slot).or_default().page;
        page.resize(page.len().max(end), 0);
        page
    }

    fn write(&mut self, slot: u32, offset: u64, data: &[u8]) {
        let (from, to) = (offset as usize, offset as usize + data.len());
        self.page(slot, to)[from..to].copy_from_slice(data);
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

    /// From some microseconds to more than half a millisecond.
    fn duration(&mut self) -> Ps {
        self.jobs += 1;
        Ps::us(5 << (self.jobs * 5 % 8))
    }
}

/// A job, and when it ends.
pub struct SpillJobUnderWay {
    job: SpillJob,
    ends_at: Ps,
}

impl SpillFile for RackWorld {
    fn begin_spill(&mut self, job: SpillJob) {
        let mut region = self.rack.region.borrow_mut();
        let ends_at = self.ctx.now() + region.spill.duration();
        if let SpillJob::Write { slot, offset, data } = &job {
            region.spill.write(*slot, *offset, &data[..data.len() / 2]);
        }
        assert!(self.spill_job.is_none(), "the engine has one job at a time");
        self.spill_job = Some(SpillJobUnderWay { job, ends_at });
    }

    fn spill_ended(&mut self) -> Option<Result<SpillDone>> {
        let now = self.ctx.now();
        let SpillJobUnderWay { job, .. } = self.spill_job.take_if(|job| job.ends_at <= now)?;
        let page_blocks = self.rack.layout.pages.page_bytes() / BLOCK_BYTES;
        let is_full = self.rack.blocks_free.get() < page_blocks;
        if is_full && matches!(job, SpillJob::Write { .. } | SpillJob::Seal { .. }) {
            let reason = "No space left on device".into();
            return Some(Err(Error::Io { what: "the spill file".into(), reason }));
        }
        Some(Ok(self.rack.region.borrow_mut().spill.end(job)))
    }

    fn punch_slots(&mut self, first: u32, count: u32) {
        let mut region = self.rack.region.borrow_mut();
        (first..first + count).for_each(|slot| _ = region.spill.slots.remove(&slot));
    }
}
