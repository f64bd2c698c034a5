//! TLBs and caches between loads and stores and the memory: what gets through.
//!
//! Each core has a TLB and two levels of its own, all share the third. Lines are allocated by loads
//! and stores, the least recently used one leaves, and leaves as a write if it was stored to. Cores
//! do not see each other's stores: nothing is kept coherent, as in DRackSim's trace tool. Sizes and
//! penalties are that tool's (05-racksim §1); it replaces in turn, does not allocate for stores in
//! the private levels, and writes nothing back, which we do as hardware does.

mod core;
mod level;
mod order;
mod stream;

pub use self::core::Core;
pub(crate) use self::core::{CoreEvent, CoreEventKind, Passed, Shared};
pub use level::Level;
pub(crate) use order::ReorderBuffer;
pub use stream::Filter;

use rackpool_stats::units::parse_size;
use std::str::FromStr;

pub const LINE_BYTES: u64 = 64;
/// Bytes of a page of the TLB.
pub const PAGE_BYTES: u64 = 4096;
const CORES_MAX: u32 = 1024;
const CACHE_BYTES_MAX: u64 = 16 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// All lines together, in bytes.
    pub bytes: u64,
    /// Lines of a set.
    pub ways: u32,
}

/// Caches and what they cost. The default is DRackSim's (05-racksim §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Cores; a thread's is its number modulo this.
    pub cores: u32,
    /// First level, of each core.
    pub l1: CacheSize,
    /// Second level, of each core.
    pub l2: CacheSize,
    /// Third level, of all cores.
    pub l3: CacheSize,
    /// Pages that a core's TLB knows.
    pub tlb_entries: u32,
    /// Pages of a set of the TLB.
    pub tlb_ways: u32,
    /// The clock that costs are counted in.
    pub hz: u64,
    /// Cycles of an access that a level has; the third's also if none has it.
    pub level_cycles: [u64; 3],
    /// Cycles of the TLB if it knows the page, and if not. It works beside the caches: the longer
    /// of both counts.
    pub tlb_cycles: [u64; 2],
    /// Cycles that a core waits for memory at each miss. 0: the replay of the misses adds it.
    pub memory_cycles: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            cores: 8,
            l1: CacheSize { bytes: 32 << 10, ways: 8 },
            l2: CacheSize { bytes: 256 << 10, ways: 4 },
            l3: CacheSize { bytes: 16 << 20, ways: 16 },
            tlb_entries: 64,
            tlb_ways: 4,
            hz: 3_600_000_000,
            level_cycles: [4, 12, 42],
            tlb_cycles: [10, 60],
            memory_cycles: 0,
        }
    }
}

impl Config {
    /// Whether such caches can be.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=CORES_MAX).contains(&self.cores) {
            return Err(format!("{} cores; 1 to {CORES_MAX} can be", self.cores));
        }
        let tlb =
            CacheSize { bytes: u64::from(self.tlb_entries) * LINE_BYTES, ways: self.tlb_ways };
        for (name, size) in [("l1", self.l1), ("l2", self.l2), ("l3", self.l3), ("tlb", tlb)] {
            let sets = size.bytes / (LINE_BYTES * u64::from(size.ways.max(1)));
            let whole = sets * LINE_BYTES * u64::from(size.ways) == size.bytes;
            if !whole || !sets.is_power_of_two() || size.bytes > CACHE_BYTES_MAX {
                return Err(format!(
                    "{name} of {} bytes with {} ways: the number of sets must be a power of two",
                    size.bytes, size.ways
                ));
            }
        }
        let longest = self.level_cycles.iter().chain(&self.tlb_cycles).max();
        if self.hz == 0 || longest.max(Some(&self.memory_cycles)) > Some(&(1 << 20)) {
            return Err("a clock of 0 Hz, or a cost above a million cycles".to_owned());
        }
        Ok(())
    }
}

impl FromStr for Config {
    type Err = String;

    /// `dracksim`, or what differs from it: `cores=4,l1=32K,l2=256K,l3=1M,memory=200`.
    fn from_str(text: &str) -> Result<Config, String> {
        let mut config = Config::default();
        for part in text.split(',').filter(|part| !matches!(*part, "" | "dracksim")) {
            let wrong =
                || format!("`{part}` is none of cores=N, l1=SIZE, l2=SIZE, l3=SIZE, memory=N");
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let number = parse_size(value).ok_or_else(wrong)?;
            match name {
                "cores" => config.cores = u32::try_from(number).map_err(|_| wrong())?,
                "l1" => config.l1.bytes = number,
                "l2" => config.l2.bytes = number,
                "l3" => config.l3.bytes = number,
                "memory" => config.memory_cycles = number,
                _ => return Err(wrong()),
            }
        }
        config.check().map(|()| config)
    }
}

/// What went in and what came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub accesses: u64,
    /// Pages that a TLB did not know.
    pub tlb_misses: u64,
    /// Lines that a first level did not have.
    pub l1_misses: u64,
    /// Lines that a second level did not have either.
    pub l2_misses: u64,
    /// Lines that came from memory.
    pub memory_reads: u64,
    /// Lines that went to memory.
    pub memory_writes: u64,
}

impl Counts {
    pub(crate) fn add_core(&mut self, core: &Counts) {
        self.accesses += core.accesses;
        self.tlb_misses += core.tlb_misses;
        self.l1_misses += core.l1_misses;
        self.l2_misses += core.l2_misses;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_as_published_and_what_cannot_be_is_refused() {
        let config: Config = "dracksim".parse().unwrap();
        assert_eq!(config, Config::default());
        assert_eq!((config.cores, config.l3.bytes), (8, 16 << 20));
        let small: Config = "cores=2,l3=1M,memory=200".parse().unwrap();
        assert_eq!((small.cores, small.l3.bytes, small.memory_cycles), (2, 1 << 20, 200));
        for text in ["cores=0", "l1=33K", "l1=0", "l3=1T", "l4=1M", "l1", "cores=9999999999"] {
            assert!(text.parse::<Config>().is_err(), "{text}");
        }
    }
}
