//! What accesses cost in performance mode: a charge for each cache line, by where it is.

use std::cell::Cell;

use super::{LINE_BYTES, Memory, Tier};
use crate::time::Ps;

/// Lines that a processor remembers to have touched, those of a cache of 32 KiB; a power of two.
const LINES: usize = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemCosts {
    /// A line that this processor touched last.
    pub hit: Ps,
    /// A line that this processor had, and another has stored to since.
    pub transfer: Ps,
    /// Loading a line of DRAM.
    pub dram_load: Ps,
    /// Storing to a line of DRAM.
    pub dram_store: Ps,
    /// Each further line of one copy from or to DRAM: its share of the bandwidth.
    pub dram_stream: Ps,
    /// Loading a line over CXL.
    pub cxl_load_line: Ps,
    /// Storing to a line over CXL.
    pub cxl_store_line: Ps,
    /// Each further line of one copy over CXL: its share of the bandwidth.
    pub cxl_stream_line: Ps,
    /// A locked operation, beside its line.
    pub atomic: Ps,
    pub fence: Ps,
    /// Writing back or invalidating one line.
    pub flush_line: Ps,
}

impl MemCosts {
    fn load(&self, tier: Tier) -> Ps {
        match tier {
            Tier::Dram => self.dram_load,
            Tier::Cxl => self.cxl_load_line,
        }
    }

    fn store(&self, tier: Tier) -> Ps {
        match tier {
            Tier::Dram => self.dram_store,
            Tier::Cxl => self.cxl_store_line,
        }
    }

    pub(super) fn stream(&self, tier: Tier) -> Ps {
        match tier {
            Tier::Dram => self.dram_stream,
            Tier::Cxl => self.cxl_stream_line,
        }
    }
}

/// What a touch of a line met.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    Here,
    StoredElsewhere,
    Away,
}

/// The lines that one processor touched lately: direct-mapped, each as one word of its memory's
/// number, the part of its own number that its place does not say, and the number of stores that
/// it had seen then. Eight bytes a line, since there are many processors.
pub(super) struct Meter {
    pub(super) costs: MemCosts,
    lines: Box<[Cell<u64>; LINES]>,
}

const VERSION_BITS: u32 = 16;
const LINE_BITS: u32 = 24;
const MEMORY_BITS: u32 = u64::BITS - VERSION_BITS - LINE_BITS;
/// Memories of a run, and bytes of one, that a meter tells apart.
pub(super) const MEMORIES_MAX: u32 = (1 << MEMORY_BITS) - 1;
pub(super) const MEMORY_BYTES_MAX: u64 = (LINES as u64 * LINE_BYTES) << LINE_BITS;

impl Meter {
    pub(super) fn new(costs: MemCosts) -> Meter {
        Meter { costs, lines: Box::new([const { Cell::new(u64::MAX) }; LINES]) }
    }

    /// The cost of a load from the line at `at`, which has seen `version` stores.
    #[inline]
    pub(super) fn load(&self, memory: &Memory, at: u64, version: u16) -> Ps {
        match self.touch(memory, at, version, version) {
            Met::Here => self.costs.hit,
            Met::StoredElsewhere => self.costs.transfer,
            Met::Away => self.costs.load(memory.tier()),
        }
    }

    /// The cost of a store; `version` counts it already. Taking a line over from another
    /// processor costs a store nothing more: it waits in the store buffer meanwhile.
    #[inline]
    pub(super) fn store(&self, memory: &Memory, at: u64, version: u16) -> Ps {
        match self.touch(memory, at, version.wrapping_sub(1), version) {
            Met::Here | Met::StoredElsewhere => self.costs.hit,
            Met::Away => self.costs.store(memory.tier()),
        }
    }

    /// The cost of a locked operation, which waits for its line.
    pub(super) fn atomic(&self, memory: &Memory, at: u64, version: u16) -> Ps {
        let line = match self.touch(memory, at, version.wrapping_sub(1), version) {
            Met::Here => Ps::ZERO,
            Met::StoredElsewhere => self.costs.transfer,
            Met::Away => self.costs.load(memory.tier()),
        };
        self.costs.atomic + line
    }

    /// Whether a load would find the line here.
    pub(super) fn has(&self, memory: &Memory, at: u64, version: u16) -> bool {
        self.touch(memory, at, version, version) == Met::Here
    }

    #[inline]
    fn touch(&self, memory: &Memory, at: u64, before: u16, after: u16) -> Met {
        let line = at / LINE_BYTES;
        let memory = u64::from(memory.id());
        let slot = line.wrapping_add(memory.wrapping_mul(7)) as usize % LINES;
        let tag = ((memory << LINE_BITS) | (line / LINES as u64)) << VERSION_BITS;
        let had = self.lines[slot].replace(tag | u64::from(after));
        let (had, version) = (had & !u64::from(u16::MAX), had as u16);
        match had == tag {
            true if version == before => Met::Here,
            true => Met::StoredElsewhere,
            false => Met::Away,
        }
    }
}
