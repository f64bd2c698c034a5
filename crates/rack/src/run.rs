//! Many simulations side by side: the points of a sweep, each on one thread, with checkpoints.
//! Results come in the order of the points, whatever the number of threads.

use crate::model::world::{CheckpointError, Outcome, RunError, World};
use crate::model::{Config, ConfigError};
use crate::source::{Source, TraceSet, TraceSetError};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Events between two words about how far it is.
const EVENTS_PER_STEP: u64 = 500_000;

/// A simulation that has no result.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("{name}: {error}")]
    Config { name: String, error: ConfigError },
    #[error(transparent)]
    Trace(#[from] TraceSetError),
    #[error("{name}: {error}")]
    Run { name: String, error: RunError },
    /// A file of a checkpoint.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("{path}: {error}")]
    Checkpoint { path: PathBuf, error: CheckpointError },
    /// It was asked to stop; checkpoints are written, if there is a directory for them.
    #[error("stopped")]
    Stopped,
}

/// Where and how often runs are written down.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    /// The directory, which is there.
    pub directory: PathBuf,
    /// Events between two checkpoints of a run.
    pub events: u64,
    /// Writes a file whole, or leaves the one before it.
    pub write: fn(&Path, &[u8]) -> std::io::Result<()>,
}

pub struct Sweep<'a> {
    /// Threads, each with a point of its own; at least one.
    pub threads: usize,
    /// Checkpoints, if any. What is found in the directory is gone on from.
    pub checkpoints: Option<&'a Checkpoints>,
    /// Set from outside to stop.
    pub stop: &'a AtomicBool,
    /// Is told of each point: its number, accesses that are over, and all of them.
    pub told: &'a (dyn Fn(usize, u64, u64) + Sync),
}

/// Runs all points; their outcomes in the same order.
pub fn sweep(
    points: &[Config],
    traces: &TraceSet,
    how: &Sweep<'_>,
) -> Result<Vec<Outcome>, SimError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<Outcome, SimError>>>> =
        Mutex::new(points.iter().map(|_| None).collect());
    let work = || {
        loop {
            // Relaxed: a counter that orders nothing else.
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(config) = points.get(number) else { return };
            let result = run_point(config, number, traces, how);
            let failed = result.is_err();
            results.lock().expect("no point panics")[number] = Some(result);
            if failed {
                // Relaxed: seen sooner or later; the others end early, which changes no result.
                next.store(points.len(), Ordering::Relaxed);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..how.threads.clamp(1, points.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().expect("no point panics");
    // The first failure in the order of the points; points after it may not have run.
    results.into_iter().map(|result| result.unwrap_or(Err(SimError::Stopped))).collect()
}

/// Sources of a configuration's nodes.
pub fn sources(config: &Config, traces: &TraceSet) -> Vec<Box<dyn Source>> {
    let workloads = config.workloads.iter();
    let nodes = workloads.flat_map(|workload| (0..workload.nodes).map(move |_| workload));
    let source = |(index, workload): (usize, &crate::model::config::Workload)| {
        traces.source(config, &workload.pattern, index as u64)
    };
    nodes.enumerate().map(source).collect()
}

fn run_point(
    config: &Config,
    number: usize,
    traces: &TraceSet,
    how: &Sweep<'_>,
) -> Result<Outcome, SimError> {
    let path = how.checkpoints.map(|to| to.directory.join(format!("point-{number}.checkpoint")));
    let mut world = match path.as_deref().filter(|path| path.exists()) {
        Some(path) => resume(config, traces, path)?,
        None => World::new(config, sources(config, traces))
            .map_err(|error| SimError::Config { name: config.name.clone(), error })?,
    };
    let every = how.checkpoints.map_or(u64::MAX, |to| to.events.max(EVENTS_PER_STEP));
    let mut since = 0u64;
    loop {
        let is_over = world
            .run(EVENTS_PER_STEP)
            .map_err(|error| SimError::Run { name: config.name.clone(), error })?;
        let (over, all) = world.progress();
        (how.told)(number, over, all);
        since += EVENTS_PER_STEP;
        // Relaxed: seen sooner or later.
        let is_stopped = how.stop.load(Ordering::Relaxed);
        if let (Some(path), Some(to)) = (&path, how.checkpoints)
            && (is_over || is_stopped || since >= every)
        {
            since = 0;
            let written = (to.write)(path, &world.checkpoint());
            written.map_err(|error| SimError::Io { path: path.to_owned(), error })?;
        }
        match () {
            () if is_over => return Ok(world.outcome()),
            () if is_stopped => return Err(SimError::Stopped),
            () => {}
        }
    }
}

fn resume(config: &Config, traces: &TraceSet, path: &Path) -> Result<World, SimError> {
    let io = |error| SimError::Io { path: path.to_owned(), error };
    let bytes = std::fs::read(path).map_err(io)?;
    let world = World::resume(config, sources(config, traces), &bytes);
    world.map_err(|error| SimError::Checkpoint { path: path.to_owned(), error })
}

/// Equal outcomes have equal hashes, on every machine and with any number of threads.
pub fn hash_of(outcomes: &[Outcome]) -> u64 {
    let bytes = postcard::to_stdvec(outcomes).expect("numbers and lists can be written");
    xxh3_64(&bytes)
}
