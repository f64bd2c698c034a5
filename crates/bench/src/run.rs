//! What all runners share: how large a run is, where its pool comes from, what it says while it
//! runs, and its errors.
//!
//! A runner takes an options structure and a callback for [`Progress`], prints nothing, and
//! answers with a [`Report`]. Its pool is a running one that the caller names by its master
//! ([`PoolSource`]), or racks in threads of this process with anonymous memory, so that nothing
//! is left behind however the run ends. The report says which of the two it was.

use crate::interleave::Rules;
use crate::micro::line::LineError;
use crate::micro::pin::PinError;
use crate::micro::tcp::TcpError;
use crate::probe::SystemProbe;
use crate::report::{Kind, Report};
use crate::value::Corrupt;
use crate::ycsb::YcsbError;
use rackpool::daemon::{DaemonOptions, DaemonServer};
use rackpool::master::{MasterError, MasterOptions, MasterServer};
use rackpool::{Emulate, FabricChoice, Handle, Options, Pool};
use rackpool_core::GAddr;
use rackpool_mem::ring::RingError;
use rackpool_mem::temporary::TemporaryDir;
use serde::{Deserialize, Serialize};
use std::io;
use std::time::{Duration, Instant};

/// How much a run measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Size {
    /// Milliseconds: only that everything works. Its numbers mean nothing.
    Smoke,
    /// Seconds, over a smaller region, with few pairs.
    Quick,
    /// At least 15 pairs of slices of 100 ms over a region of 1 GiB.
    #[default]
    Full,
}

impl Size {
    #[must_use]
    pub const fn quick(quick: bool) -> Self {
        if quick { Self::Quick } else { Self::Full }
    }

    /// The word in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smoke => "smoke",
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }

    #[must_use]
    pub fn rules(self) -> Rules {
        match self {
            Self::Smoke => Rules { pairs: 2, retries_max: 0, ..Rules::default() },
            Self::Quick => Rules::quick(),
            Self::Full => Rules::default(),
        }
    }

    /// How long a slice lasts at least.
    #[must_use]
    pub const fn slice(self) -> Duration {
        Duration::from_millis(match self {
            Self::Smoke => 1,
            Self::Quick => 20,
            Self::Full => 100,
        })
    }

    /// Single accesses that are timed for percentiles.
    #[must_use]
    pub const fn samples(self) -> u64 {
        match self {
            Self::Smoke => 100,
            Self::Quick => 5_000,
            Self::Full => 50_000,
        }
    }

    /// Memory that is accessed at random: several times a last-level cache, unless it is a smoke
    /// test.
    #[must_use]
    pub const fn region_bytes(self) -> u64 {
        match self {
            Self::Smoke => 8 << 20,
            Self::Quick => 256 << 20,
            Self::Full => 1 << 30,
        }
    }
}

/// What a runner says while it runs; meant for a progress bar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is being measured or prepared.
    pub name: String,
    pub done: usize,
    pub steps: usize,
}

/// Counts the steps of a run for its [`Progress`].
pub(crate) struct Steps<'p> {
    say: &'p mut dyn FnMut(Progress),
    done: usize,
    steps: usize,
}

impl<'p> Steps<'p> {
    pub(crate) fn new(steps: usize, say: &'p mut dyn FnMut(Progress)) -> Self {
        Self { say, done: 0, steps }
    }

    pub(crate) fn begin(&mut self, name: &str) {
        (self.say)(Progress { name: name.to_owned(), done: self.done, steps: self.steps });
        self.done += 1;
    }

    /// The last step is over.
    pub(crate) fn end(self) {
        let Self { say, steps, .. } = self;
        say(Progress { name: String::new(), done: steps, steps });
    }
}

/// Where the pool of a run comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolSource {
    /// The master of a running pool; without one the run makes a pool in its own process.
    pub master: Option<String>,
    /// The processes of the running pool: their CPU time does not count as a disturbance.
    pub server_pids: Vec<u32>,
    /// Latency that a pool of the run's own injects. A running pool tells by itself.
    pub emulate: Emulate,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The pool could not do it; its error says whether to retry.
    #[error(transparent)]
    Pool(#[from] rackpool::Error),
    /// The master of the run's own pool did not start.
    #[error(transparent)]
    Master(#[from] MasterError),
    /// The hash table could not do it; its error says whether to retry.
    #[error(transparent)]
    Table(#[from] rackpool_table::Error),
    /// The cache could not do it; its error says whether to retry.
    #[error(transparent)]
    Cache(#[from] rackpool_cache::Error),
    /// HERD's fast path failed; its error says whether to retry.
    #[error(transparent)]
    Herd(#[from] rackpool_cache::herd::Error),
    /// A comparison system failed; its error says whether to retry.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Baselines(#[from] crate::baselines::Error),
    /// There is no arena to measure; its error says whether to retry.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Arena(#[from] rackpool_tiers_alloc::Error),
    /// An allocator could not do it; its error says whether to retry.
    #[cfg(feature = "lab")]
    #[error(transparent)]
    Allocator(#[from] rackpool_tiers_alloc::load::LoadError),
    /// The fabric could not be set up; its error says whether to retry.
    #[error(transparent)]
    Fabric(#[from] rackpool_fabric::FabricError),
    /// The raw TCP exchange failed. Retry.
    #[error("raw TCP: {0}")]
    Tcp(#[from] TcpError),
    /// The raw cache-line exchange failed. Retry when the machine is less busy.
    #[error("cache-line ping-pong: {0}")]
    Line(#[from] LineError),
    /// A thread was not pinned. Do not retry.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A ring refused a message or is corrupt. Do not retry.
    #[error("ring: {0}")]
    Ring(#[from] RingError),
    /// No such workload. Do not retry.
    #[error(transparent)]
    Ycsb(#[from] YcsbError),
    /// A value that was read is not one that was written. Do not retry.
    #[error("a value that was read is not one that was written: {0}")]
    Corrupt(#[from] Corrupt),
    /// A key that was stored is not there. Do not retry.
    #[error("key {key} was stored and is not there: {operation} did not find it")]
    Missing {
        key: u64,
        /// What was done with it.
        operation: &'static str,
    },
    /// An option makes no sense. Do not retry.
    #[error("{option}: {reason}")]
    Option { option: &'static str, reason: String },
    /// The memory is not where the raw side could follow. Retry with a new pool.
    #[error("{addr}: {reason}")]
    Unsuitable {
        addr: GAddr,
        /// Why it cannot be measured.
        reason: &'static str,
    },
    /// The other end of an exchange fell silent. Retry when the machine is less busy.
    #[error("no answer from {end} within {waited_s} s")]
    Silent { end: String, waited_s: u64 },
    /// A client process failed. Its words say whether to retry.
    #[error("client process {client}: {reason}")]
    Worker {
        client: u32,
        /// What it said, or how it ended.
        reason: String,
    },
    /// The system refused. Retry when its reason is gone.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

impl BenchError {
    /// A short stable word for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Pool(error) => error.code(),
            Self::Table(error) => error.code(),
            Self::Cache(error) => error.code(),
            Self::Herd(error) => error.code(),
            #[cfg(feature = "lab")]
            Self::Baselines(error) => error.code(),
            #[cfg(feature = "lab")]
            Self::Arena(_) => "config",
            #[cfg(feature = "lab")]
            Self::Allocator(_) => "memory",
            Self::Fabric(error) if error.is_absence() => "config",
            Self::Fabric(_) => "io",
            Self::Master(_) => "master",
            Self::Tcp(_) | Self::Line(_) | Self::Pin(_) | Self::Ring(_) => "raw",
            Self::Ycsb(_) | Self::Option { .. } => "config",
            Self::Corrupt(_) | Self::Missing { .. } => "corrupt",
            Self::Unsuitable { .. } => "unsuitable",
            Self::Silent { .. } => "timeout",
            Self::Worker { .. } => "worker",
            Self::Io { .. } => "io",
        }
    }
}

/// An answer of the system, as an error with its circumstances.
pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
    let what = what.into();
    move |source| BenchError::Io { what, source }
}

/// The pool of a run.
pub(crate) struct Testbed {
    master: String,
    pids: Vec<u32>,
    // Dropped in this order: the daemons leave the master before it goes.
    own: Option<OwnPool>,
}

struct OwnPool {
    daemons: Vec<DaemonServer>,
    master: Option<MasterServer>,
    _state_dir: TemporaryDir,
}

impl Testbed {
    /// Joins the pool that `source` names, or makes one of `racks` racks of `rack_bytes` each.
    pub(crate) fn open(
        source: &PoolSource,
        racks: u16,
        rack_bytes: u64,
    ) -> Result<Self, BenchError> {
        let mut pids = source.server_pids.clone();
        pids.push(std::process::id());
        if let Some(master) = &source.master {
            return Ok(Self { master: master.clone(), pids, own: None });
        }
        let state_dir = TemporaryDir::new(&std::env::temp_dir(), "bench");
        let state_dir = state_dir.map_err(io_error("temporary directory"))?;
        let options = MasterOptions::new("127.0.0.1:0", state_dir.path().join("state"));
        let server = MasterServer::start(options)?;
        let master = server.local_addr().to_string();
        let mut own = OwnPool { daemons: Vec::new(), master: Some(server), _state_dir: state_dir };
        for rack in 0..racks {
            let memory = format!("heap?size={rack_bytes}");
            let mut options = DaemonOptions::new(rack, &master, &memory);
            options.emulate = source.emulate;
            options.ephemeral = true;
            own.daemons.push(DaemonServer::start(options)?);
        }
        Ok(Self { master, pids, own: Some(own) })
    }

    pub(crate) fn master(&self) -> &str {
        &self.master
    }

    /// Joins the pool in `rack`.
    pub(crate) fn pool(&self, rack: u16, fabric: FabricChoice) -> Result<Pool, BenchError> {
        Ok(Pool::open(Options::new(&self.master, rack).fabric(fabric))?)
    }

    /// As [`Testbed::pool`], with a translation cache of one page, so that two pages in turn are
    /// always touched for the first time.
    pub(crate) fn forgetful(&self, rack: u16, fabric: FabricChoice) -> Result<Handle, BenchError> {
        let mut options = Options::new(&self.master, rack).fabric(fabric);
        options.translation_entries = 1;
        Ok(Pool::open(options)?.handle()?)
    }

    /// What else the machine does, apart from this run and its pool.
    pub(crate) fn probe(&self) -> SystemProbe {
        SystemProbe::of_processes(self.pids.clone())
    }

    /// A report that says on what pool its numbers were taken.
    pub(crate) fn report(&self, size: Size, kind: Kind) -> Report {
        let mut report = Report::here(kind);
        let servers = if self.own.is_some() { "threads of this process" } else { "processes" };
        report.extra.insert("servers".into(), servers.into());
        report.extra.insert("size".into(), size.name().into());
        report
    }
}

impl Drop for OwnPool {
    fn drop(&mut self) {
        self.daemons.clear();
        self.master = None;
    }
}

/// Measured or emulated, by what the pool says of the path to `addr`.
pub(crate) fn kind_of_path(handle: &mut Handle, addr: GAddr) -> Result<Kind, BenchError> {
    let delayed = handle.explain(addr)?.emulated_latency_ns > 0;
    Ok(if delayed { Kind::Emulated } else { Kind::Measured })
}

/// Nanoseconds an operation, over at least `slice`: `block` does `block_operations` of them, and
/// the clock is looked at between blocks only.
#[inline]
pub(crate) fn slice_ns(
    slice: Duration,
    block_operations: u64,
    mut block: impl FnMut() -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let start = Instant::now();
    let mut operations = 0;
    loop {
        block()?;
        operations += block_operations;
        let elapsed = start.elapsed();
        if elapsed >= slice {
            return Ok(elapsed.as_secs_f64() * 1e9 / operations as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_from_none_to_all() {
        let mut said = Vec::new();
        let mut say = |progress: Progress| said.push((progress.done, progress.steps));
        let mut steps = Steps::new(2, &mut say);
        steps.begin("one");
        steps.begin("two");
        steps.end();
        assert_eq!(said, [(0, 2), (1, 2), (2, 2)]);
    }

    #[test]
    fn a_slice_lasts_as_long_as_asked_and_stops_at_the_first_error() {
        let start = Instant::now();
        let ns = slice_ns(Duration::from_millis(5), 10, || {
            std::thread::sleep(Duration::from_millis(1));
            Ok(())
        });
        assert!(start.elapsed() >= Duration::from_millis(5));
        assert!(ns.unwrap() >= 100_000.0);
        let option = "slice";
        let fails = || Err(BenchError::Option { option, reason: "none".into() });
        assert_eq!(slice_ns(Duration::ZERO, 1, fails).unwrap_err().code(), "config");
    }

    #[test]
    fn a_full_run_has_fifteen_pairs_of_a_tenth_of_a_second_over_a_gibibyte() {
        assert!(Size::Full.rules().pairs >= 15);
        assert!(Size::Full.slice() >= Duration::from_millis(100));
        assert!(Size::Full.region_bytes() >= 1 << 30);
        assert_eq!(Size::quick(false), Size::Full);
    }
}
