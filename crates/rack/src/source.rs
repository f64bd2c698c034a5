//! What nodes access: records in the order of their times, from a pattern or a recorded trace. A
//! source is a function of its specification, the seed and how many records it gave: a checkpoint
//! stores that number alone.

mod recording;

use crate::trace::{filter, kernel};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub use recording::{RecordedAccesses, Replay, TraceSet, TraceSetError};

/// One access of a line by a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// When, since the node's start.
    pub at: Ps,
    pub pid: u32,
    pub addr: u64,
    /// A store; else a load.
    pub write: bool,
}

/// Accesses, one after the other.
pub trait Source: Send {
    /// The next one; `None` at the end. Times do not go back.
    fn next(&mut self) -> Option<Access>;

    /// Leaves out the next `count`.
    fn skip(&mut self, count: u64) {
        for _ in 0..count {
            self.next();
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Made here, for each node by itself.
    Synthetic(Synthetic),
    /// What a program of [`kernel`] gets through its caches; recorded once for all nodes.
    Kernel(KernelSpec),
    /// A trace in a file, recorded once for all nodes.
    File(FileSpec),
}

/// A program of [`kernel`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelSpec {
    /// `lbm`, `fdtd`, `fft` or `fmm`.
    pub name: String,
    /// Bytes of its arrays, KiB.
    pub footprint_kib: u64,
    /// Its third level of cache, KiB.
    #[serde(default = "l3_kib")]
    pub l3_kib: u64,
    /// Cycles of 3.6 GHz that a core waits at each access to memory: what sets the pace of an
    /// open loop. The default is a local access of some 80 ns.
    #[serde(default = "memory_cycles")]
    pub memory_cycles: u64,
}

fn l3_kib() -> u64 {
    16 << 10
}

fn memory_cycles() -> u64 {
    288
}

/// A trace in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    pub path: PathBuf,
    /// Its format, by the names of `rackpool trace`; guessed if it is not said.
    #[serde(default)]
    pub format: Option<String>,
    /// Replays the records of this node alone; of all nodes if it is not given.
    #[serde(default)]
    pub node: Option<u16>,
}

/// Where in its footprint a synthetic stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Walk {
    /// Line after line, round and round.
    Sequential,
    Random,
    /// A page further each time, then the next line of all pages.
    Strided,
    /// Nine of ten in a tenth of the pages, at random.
    Skewed,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synthetic {
    pub walk: Walk,
    /// Bytes that it goes through, KiB.
    pub footprint_kib: u64,
    /// Mean time between accesses, exponentially distributed, ns.
    pub gap_ns: u64,
    /// Of a hundred accesses so many are stores.
    pub write_percent: u32,
}

/// Longest virtual time that a configuration or a trace may say: an eighth of what 64 bits hold, so
/// that sums do.
pub const TIME_MAX: Ps = Ps(1 << 61);

/// Longest mean time between two accesses.
const GAP_NS_MAX: u64 = 3_600_000_000_000;

impl Pattern {
    /// Why it cannot be meant, if so.
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            Pattern::Synthetic(one) if one.footprint_kib < 40 || one.footprint_kib > 1 << 32 => {
                Some("footprint_kib is from 40 to 4 Ti")
            }
            Pattern::Synthetic(one) if !(1..=GAP_NS_MAX).contains(&one.gap_ns) => {
                Some("gap_ns is from 1 to 3600000000000, an hour")
            }
            Pattern::Synthetic(one) if one.write_percent > 100 => {
                Some("write_percent is at most 100")
            }
            Pattern::Synthetic(_) | Pattern::File(_) => None,
            Pattern::Kernel(spec) => match spec.config() {
                Ok(config) if config.check().is_ok() => None,
                _ => Some("a kernel is lbm, fdtd, fft or fmm, of 64 KiB to 64 GiB"),
            },
        }
    }
}

impl KernelSpec {
    /// The program; it runs until it is stopped.
    fn config(&self) -> Result<kernel::Config, String> {
        let name: kernel::Name = self.name.parse()?;
        let mut caches = filter::Config::default();
        (caches.l3.bytes, caches.memory_cycles) = (self.l3_kib << 10, self.memory_cycles);
        let config = kernel::Config::new(name, self.footprint_kib << 10);
        Ok(kernel::Config { caches: Some(caches), steps: u32::MAX, ..config })
    }
}

/// A synthetic stream at work.
pub struct SyntheticStream {
    spec: Synthetic,
    rng: Rng,
    at: Ps,
    count: u64,
}

impl SyntheticStream {
    /// The stream of node `index`.
    pub fn new(spec: &Synthetic, seed: u64, index: u64) -> SyntheticStream {
        let rng = Rng::new(seed, Purpose::Workload, index);
        SyntheticStream { spec: spec.clone(), rng, at: Ps::ZERO, count: 0 }
    }
}

const LINE_BYTES: u64 = 64;
const PAGE_LINES: u64 = 64;

impl Source for SyntheticStream {
    fn next(&mut self) -> Option<Access> {
        let lines = self.spec.footprint_kib * 1024 / LINE_BYTES;
        let pages = lines / PAGE_LINES;
        let turn = self.count;
        let line = match self.spec.walk {
            Walk::Sequential => turn % lines,
            Walk::Random => self.rng.below(lines),
            Walk::Strided => turn % pages * PAGE_LINES + turn / pages % PAGE_LINES,
            Walk::Skewed => {
                let pages = if self.rng.below(10) == 0 { pages } else { pages / 10 };
                self.rng.below(pages * PAGE_LINES)
            }
        };
        self.count += 1;
        let gap = self.rng.exponential(Ps::ns(self.spec.gap_ns));
        self.at = Ps(self.at.0.saturating_add(gap.0));
        if self.at > TIME_MAX {
            return None;
        }
        let write = self.rng.below(100) < u64::from(self.spec.write_percent);
        Some(Access { at: self.at, pid: 0, addr: line * LINE_BYTES, write })
    }
}
