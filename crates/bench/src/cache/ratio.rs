//! Hit ratios: the same operations on each policy of ours, and (with the feature `peers`) on other
//! caches, all with the same bytes of memory, metadata included.
//!
//! Ours holds the bytes themselves in as much memory as it was given. The others are given what
//! an entry costs them beside key and value, measured in the same run by what this process grows
//! when they are filled with small entries; that and the lengths are an entry's weight.

use super::workload::{CacheWorkload, Op, named};
use crate::report::{Better, Kind, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps};
use rackpool_cache::{Cache, Options, Policy};

/// Memory of the caches that the distributions were taken for.
pub(super) const ORIGINAL_BYTES: f64 = 8192.0 * 1024.0 * 1024.0;
/// Names the streams; any other would do.
const SEED: u64 = 0x6869_7473;

const POLICIES: [(&str, Policy); 5] = [
    ("fifo", Policy::Fifo),
    ("fifo_reinsertion", Policy::FifoReinsertion { threshold: 1 }),
    ("sieve", Policy::Sieve),
    ("s3fifo", Policy::S3Fifo),
    ("tinylfu", Policy::TinyLfu),
];

/// The caches beside ours that this program has.
pub const PEERS: &[&str] =
    if cfg!(feature = "peers") { &["foyer", "quick_cache", "moka"] } else { &[] };

/// A cache that is looked into and filled.
pub(super) trait Contender {
    /// Whether the key is there; counts as a use.
    fn get(&mut self, op: &Op) -> bool;
    fn set(&mut self, op: &Op);
}

/// Measures the named workloads, or all.
///
/// # Errors
/// [`BenchError::Option`] for a name that is none.
pub fn run(
    names: &[String],
    size: Size,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let workloads = named(names)?;
    let memory: u64 = match size {
        Size::Smoke => 4 << 20,
        Size::Quick => 32 << 20,
        Size::Full => 128 << 20,
    };
    let mut report = Report::here(Kind::Measured);
    report.extra.insert("peers".into(), PEERS.into());
    let mut steps = Steps::new(workloads.len() + 1, progress);
    steps.begin("what an entry costs");
    #[cfg(feature = "peers")]
    let peers = super::peers::Costs::measure(memory);
    for workload in &workloads {
        steps.begin(workload.name);
        let test = Test::new(workload, memory, size);
        let default = Options::default().policy;
        let mut row = None;
        for (name, policy) in POLICIES {
            let options = Options { memory, policy, seed: SEED, ..Options::default() };
            let mut ours = Ours(Cache::new(options)?, vec![0x5a; 8 << 20]);
            let ratio = test.ratio(&mut ours);
            if policy == default {
                row = Some(Row::new(workload.name, "hit ratio", Better::Higher, ratio));
            }
            report.extra.insert(format!("{}_{name}", workload.name), ratio.into());
        }
        let mut row = row.expect("the default is one of the policies").samples(test.measured);
        #[cfg(feature = "peers")]
        {
            let ratios = peers.ratios(memory, &test);
            let best = ratios.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
            row = row.against(crate::report::Reference::Peer(best));
            for (name, ratio) in ratios {
                row = row.with(name, ratio);
            }
        }
        for (name, _) in POLICIES {
            let ratio = report.extra.remove(&format!("{}_{name}", workload.name));
            row = row.with(name, ratio.expect("entered above"));
        }
        report.results.push(row.with("memory_bytes", memory));
    }
    steps.end();
    Ok(report)
}

/// A workload at a scale, and how long it runs.
pub(super) struct Test<'w> {
    workload: &'w CacheWorkload,
    scale: f64,
    warmup: u64,
    measured: u64,
}

impl<'w> Test<'w> {
    fn new(workload: &'w CacheWorkload, memory: u64, size: Size) -> Test<'w> {
        let fits = memory as f64 / (workload.value_bytes_mean() + 60.0);
        let longest = if size == Size::Smoke { 20_000.0 } else { 4_000_000.0 };
        let measured = (fits * 12.0).clamp(20_000.0, longest) as u64;
        Test { workload, scale: memory as f64 / ORIGINAL_BYTES, warmup: measured, measured }
    }

    /// Share of the gets that found something.
    pub(super) fn ratio(&self, cache: &mut dyn Contender) -> f64 {
        let (mut gets, mut hits) = (0_u64, 0_u64);
        let stream = self.workload.stream(self.scale, SEED);
        for (number, op) in (0..self.warmup + self.measured).zip(stream) {
            let is_there = op.is_get && cache.get(&op);
            if !is_there {
                cache.set(&op);
            }
            if op.is_get && number >= self.warmup {
                gets += 1;
                hits += u64::from(is_there);
            }
        }
        hits as f64 / gets as f64
    }
}

/// Our cache, and bytes to store.
struct Ours(Cache, Vec<u8>);

impl Contender for Ours {
    fn get(&mut self, op: &Op) -> bool {
        self.0.get(op.key.bytes(&mut [0; 256]), 1, |_| ()).is_some()
    }

    fn set(&mut self, op: &Op) {
        let value = &self.1[..op.key.value_bytes as usize];
        // What is too large for the cache is not cached.
        let _ = self.0.set(op.key.bytes(&mut [0; 256]), value, 0, 0, 1);
    }
}
