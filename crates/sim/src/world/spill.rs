//! The spill file of a rack, as its daemon sees it. It outlives the daemon, and goes with the
//! rack's region. A job is half done when it begins and whole when it ends, some time later; a
//! daemon that dies in between leaves it at that. When the host has no room for memory it has none
//! in the file's file system either: then what is written fails. Called by `rack.rs`.

use crate::time::Ps;
use rackpool_core::spill::{SLOT_HEADER_BYTES, SpillDone, SpillJob};
use rackpool_core::{Error, Result};
use std::collections::BTreeMap;

/// What is in a slot.
#[derive(Clone, Default)]
struct SlotBytes {
    header: Vec<u8>,
    page: Vec<u8>,
}

/// What the file has, by slot.
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

    pub fn begin(&mut self, job: SpillJob, now: Ps) -> SpillJobUnderWay {
        if let SpillJob::Write { slot, offset, data } = &job {
            self.write(*slot, *offset, &data[..data.len() / 2]);
        }
        SpillJobUnderWay { job, ends_at: now + self.duration() }
    }

    pub fn punch(&mut self, first: u32, count: u32) {
        (first..first + count).for_each(|slot| _ = self.slots.remove(&slot));
    }

    pub fn end(&mut self, job: SpillJob, is_full: bool) -> Result<SpillDone> {
        if is_full && matches!(job, SpillJob::Write { .. } | SpillJob::Seal { .. }) {
            let reason = "No space left on device".into();
            return Err(Error::Io { what: "the spill file".into(), reason });
        }
        Ok(match job {
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
        })
    }

    /// From some microseconds to more than half a millisecond.
    fn duration(&mut self) -> Ps {
        self.jobs += 1;
        Ps::us(5 << (self.jobs * 5 % 8))
    }
}

/// A job, and when it ends.
pub struct SpillJobUnderWay {
    pub job: SpillJob,
    pub ends_at: Ps,
}
