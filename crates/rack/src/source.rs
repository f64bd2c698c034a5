//! What nodes access: records in the order of their times, from a pattern or a recorded trace. A
//! source is a function of its specification, the seed and how many records it gave: a checkpoint
//! stores that number alone.

use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// One access of a line by a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// When, since the node's start.
    pub at: Ps,
    /// The process.
    pub pid: u32,
    /// The virtual address.
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

/// Where accesses come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Made here, for each node by itself.
    Synthetic(Synthetic),
}

/// Where in its footprint a synthetic stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Walk {
    /// Line after line, round and round.
    Sequential,
    /// Any line.
    Random,
    /// A page further each time, then the next line of all pages.
    Strided,
    /// Nine of ten in a tenth of the pages, at random.
    Skewed,
}

/// A synthetic stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synthetic {
    /// Where it goes.
    pub walk: Walk,
    /// Bytes that it goes through, KiB.
    pub footprint_kib: u64,
    /// Mean time between accesses, exponentially distributed, ns.
    pub gap_ns: u64,
    /// Of a hundred accesses so many are stores.
    pub write_percent: u32,
}

impl Pattern {
    /// Why it cannot be meant, if so.
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            Pattern::Synthetic(one) if one.footprint_kib < 40 || one.footprint_kib > 1 << 32 => {
                Some("footprint_kib is from 40 to 4 Ti")
            }
            Pattern::Synthetic(one) if one.gap_ns == 0 => Some("gap_ns is not 0"),
            Pattern::Synthetic(one) if one.write_percent > 100 => {
                Some("write_percent is at most 100")
            }
            Pattern::Synthetic(_) => None,
        }
    }
}

/// A synthetic stream at work.
pub struct Stream {
    spec: Synthetic,
    rng: Rng,
    at: Ps,
    count: u64,
}

impl Stream {
    /// The stream of node `index`.
    pub fn new(spec: &Synthetic, seed: u64, index: u64) -> Stream {
        let rng = Rng::new(seed, Purpose::Workload, index);
        Stream { spec: spec.clone(), rng, at: Ps::ZERO, count: 0 }
    }
}

const LINE_BYTES: u64 = 64;
const PAGE_LINES: u64 = 64;

impl Source for Stream {
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
        self.at += self.rng.exponential(Ps::ns(self.spec.gap_ns));
        let write = self.rng.below(100) < u64::from(self.spec.write_percent);
        Some(Access { at: self.at, pid: 0, addr: line * LINE_BYTES, write })
    }
}

/// A trace in memory, shared by all nodes that replay it.
#[derive(Debug, Default)]
pub struct Recording {
    /// Time, ps, and address, whose lowest bit says that it is a store.
    records: Vec<(u64, u64)>,
}

impl Recording {
    /// Adds an access of a line that is not before the last one.
    pub fn push(&mut self, at: Ps, addr: u64, write: bool) {
        self.records.push((at.0, addr & !1 | u64::from(write)));
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// A recording from its begin to its end.
pub struct Replay {
    recording: Arc<Recording>,
    next: usize,
}

impl Replay {
    /// From the first record on.
    pub fn new(recording: Arc<Recording>) -> Replay {
        Replay { recording, next: 0 }
    }
}

impl Source for Replay {
    #[inline]
    fn next(&mut self) -> Option<Access> {
        let (at, addr) = *self.recording.records.get(self.next)?;
        self.next += 1;
        Some(Access { at: Ps(at), pid: 0, addr: addr & !1, write: addr & 1 == 1 })
    }

    fn skip(&mut self, count: u64) {
        self.next = self.next.saturating_add(count as usize).min(self.recording.len());
    }
}

/// Recordings of all patterns that several nodes replay.
#[derive(Debug, Default)]
pub struct TraceSet {
    recordings: BTreeMap<Pattern, Arc<Recording>>,
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceSetError {
    /// It has no record.
    #[error("{0}: no access in it reaches memory")]
    Empty(String),
}

impl TraceSet {
    /// What a node runs.
    pub fn source(&self, pattern: &Pattern, seed: u64, index: u64) -> Box<dyn Source> {
        match pattern {
            Pattern::Synthetic(spec) => Box::new(Stream::new(spec, seed, index)),
        }
    }
}
