//! Traces in memory: recorded once, replayed by many nodes.

use super::{Access, FileSpec, KernelSpec, Pattern, Source, SyntheticStream, TIME_MAX};
use crate::model::Config;
use crate::trace::{self, Reader, Record, Unit, kernel};
use rackpool_sim::time::Ps;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// A trace in memory, shared by all nodes that replay it.
#[derive(Debug, Default)]
pub struct RecordedAccesses {
    /// Time, ps, and address; the lowest bit of the address is set for a store.
    records: Vec<(u64, u64)>,
}

/// The bits of an address that hold its process in a [`RecordedAccesses`].
const PID_SHIFT: u32 = 56;

impl RecordedAccesses {
    /// Takes a record; its time if that is beyond [`TIME_MAX`].
    fn push(&mut self, unit: Unit, record: &Record) -> Result<(), Ps> {
        let at = match unit {
            Unit::Ns => record.at.saturating_mul(1_000),
            Unit::Cycles { hz } => {
                let ps = u128::from(record.at) * 1_000_000_000_000 / u128::from(hz);
                u64::try_from(ps).unwrap_or(u64::MAX)
            }
        };
        if at > TIME_MAX.0 {
            return Err(Ps(at));
        }
        let addr = (record.addr & ((1 << PID_SHIFT) - 1)) | u64::from(record.pid) << PID_SHIFT;
        self.records.push((at, addr & !1 | u64::from(record.write)));
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Accesses per second of the first `count`, which are from its begin on.
    fn rate(&self, count: u64) -> f64 {
        let count = self.records.len().min(usize::try_from(count).unwrap_or(usize::MAX));
        let last = self.records[..count].last().map_or(1, |(at, _)| (*at).max(1));
        count as f64 / (last as f64 / 1e12)
    }
}

/// A recording from its begin to its end.
pub struct Replay {
    recording: Arc<RecordedAccesses>,
    next: usize,
    /// Times are multiplied by this over [`STRETCH_ONE`].
    stretch: u64,
}

const DAY_NS: u64 = 86_400_000_000_000;

/// A stretch of 1.
const STRETCH_ONE: u64 = 1 << 16;

impl Source for Replay {
    #[inline]
    fn next(&mut self) -> Option<Access> {
        let (at, addr) = *self.recording.records.get(self.next)?;
        self.next += 1;
        let at = u128::from(at) * u128::from(self.stretch) / u128::from(STRETCH_ONE);
        let at = at.min(TIME_MAX.0.into()) as u64;
        let (pid, write) = ((addr >> PID_SHIFT) as u32, addr & 1 == 1);
        Some(Access { at: Ps(at), pid, addr: addr & ((1 << PID_SHIFT) - 2), write })
    }

    fn skip(&mut self, count: u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.next = self.next.saturating_add(count).min(self.recording.len());
    }
}

/// Recordings of all patterns that several nodes replay.
#[derive(Debug, Default)]
pub struct TraceSet {
    recordings: BTreeMap<Pattern, Arc<RecordedAccesses>>,
}

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceSetError {
    #[error("{0}: no access in it reaches memory")]
    Empty(String),
    /// It goes on for longer than virtual time can.
    #[error("{file}: a record is after {days} days, at most {} can be", TIME_MAX.as_ns() / DAY_NS)]
    Late { file: String, days: u64 },
    #[error("{0}")]
    Kernel(String),
    /// The file cannot be read.
    #[error(transparent)]
    Trace(#[from] trace::TraceError),
}

impl TraceSet {
    /// Records what the configurations replay, each pattern once and as far as any of them goes.
    /// `told` hears of each before it begins.
    pub fn record(
        configs: &[Config],
        told: &mut dyn FnMut(&str),
    ) -> Result<TraceSet, TraceSetError> {
        let mut wanted: BTreeMap<&Pattern, u64> = BTreeMap::new();
        for config in configs {
            for workload in &config.workloads {
                let most = wanted.entry(&workload.pattern).or_default();
                *most = (*most).max(config.accesses);
            }
        }
        let mut recordings = BTreeMap::new();
        for (pattern, count) in wanted {
            let recording = match pattern {
                Pattern::Synthetic(_) => continue,
                Pattern::Kernel(spec) => {
                    told(&spec.name);
                    of_kernel(spec, count)?
                }
                Pattern::File(spec) => {
                    told(&spec.path.display().to_string());
                    of_file(spec, count)?
                }
            };
            recordings.insert(pattern.clone(), Arc::new(recording));
        }
        Ok(TraceSet { recordings })
    }

    /// Equal recordings of equal patterns have equal hashes.
    pub fn hash(&self) -> u64 {
        let mut hasher = Xxh3::new();
        for (pattern, recording) in &self.recordings {
            let name = serde_json::to_vec(pattern).expect("words and numbers can be written");
            hasher.update(&name);
            for (at, addr) in &recording.records {
                hasher.update(&at.to_le_bytes());
                hasher.update(&addr.to_le_bytes());
            }
        }
        hasher.digest()
    }

    /// What a node runs.
    ///
    /// # Panics
    /// If the pattern is a recorded one and the configuration was not among those of
    /// [`TraceSet::record`].
    pub fn source(&self, config: &Config, pattern: &Pattern, index: u64) -> Box<dyn Source> {
        if let Pattern::Synthetic(spec) = pattern {
            return Box::new(SyntheticStream::new(spec, config.seed, index));
        }
        let recording = Arc::clone(&self.recordings[pattern]);
        Box::new(Replay { recording, next: 0, stretch: self.stretch(config) })
    }

    /// By how much a configuration's recorded times are stretched, over [`STRETCH_ONE`].
    fn stretch(&self, config: &Config) -> u64 {
        let Some(percent) = config.pool_load_percent else { return STRETCH_ONE };
        let rate: f64 = config
            .workloads
            .iter()
            .filter_map(|workload| Some((workload, self.recordings.get(&workload.pattern)?)))
            .map(|(workload, trace)| f64::from(workload.nodes) * trace.rate(config.accesses))
            .sum();
        let fabric = config.fabric();
        let line_bits = f64::from(fabric.line_bytes) * 8.0;
        let links = f64::from(config.pools) * fabric.nic_rate.gbps as f64 * 1e9 / line_bits;
        let wanted = links * f64::from(percent) / 100.0;
        // Every other access is a pool's.
        (rate / 2.0 / wanted * STRETCH_ONE as f64).round().max(1.0) as u64
    }
}

fn of_kernel(spec: &KernelSpec, count: u64) -> Result<RecordedAccesses, TraceSetError> {
    let config = spec.config().map_err(TraceSetError::Kernel)?;
    let unit = config.header().unit;
    let mut recording = RecordedAccesses::default();
    let mut emit = |record: Record| match recording.push(unit, &record) {
        Ok(()) if (recording.records.len() as u64) < count => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    };
    kernel::run(&config, &mut emit).map_err(TraceSetError::Kernel)?;
    if recording.is_empty() {
        return Err(TraceSetError::Empty(spec.name.clone()));
    }
    Ok(recording)
}

fn of_file(spec: &FileSpec, count: u64) -> Result<RecordedAccesses, TraceSetError> {
    let format = spec.format.as_deref().map(str::parse).transpose();
    let format = format.map_err(TraceSetError::Kernel)?;
    let options = trace::Options { format, ..trace::Options::default() };
    let mut reader = trace::open(&spec.path, &options)?;
    let unit = reader.header().unit;
    let mut recording = RecordedAccesses::default();
    while (recording.records.len() as u64) < count
        && let Some(record) = reader.next()?
    {
        if spec.node.is_none_or(|node| node == record.node) {
            recording.push(unit, &record).map_err(|at| TraceSetError::Late {
                file: spec.path.display().to_string(),
                days: at.as_ns() / DAY_NS,
            })?;
        }
    }
    if recording.is_empty() {
        return Err(TraceSetError::Empty(spec.path.display().to_string()));
    }
    Ok(recording)
}
