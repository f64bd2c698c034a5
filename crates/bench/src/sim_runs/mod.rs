//! Simulated runs by seed, many of them: sweeps that shrink and store their failures, the proof
//! that each safeguard is missed when it is left out, and what is reported of both. The caller says
//! which function runs a seed, so that tests put a toy in the cluster's place.
//!
//! Callers: `rackpool sim`, and the example `sim`, which does the same for `cargo xtask` and builds
//! in half the time.

mod mutations;
pub mod show;

use crate::report::{Better, Kind, Report, Row, git_revision};
pub use mutations::{Fate, json as mutations_json, survivors, table as mutations_table};
use rackpool_sim::device::Profile;
use rackpool_sim::report::sweep_json;
use rackpool_sim::run::{Config, Progress, SeedFn, Sweep, sweep};
use rackpool_sim::shrink::{Shrunk, shrink};
use rackpool_sim::stored::{StoredError, StoredSeed};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Failures that are shrunk after one sweep; the others are only named.
const SHRUNK_MAX: usize = 3;

/// Which seeds are to be run, and how.
#[derive(Clone, Copy)]
pub struct Seeds<'a> {
    pub config: &'a Config,
    /// The first seed; the others follow it.
    pub first: u64,
    pub count: u64,
    /// Threads, each with a seed of its own.
    pub threads: usize,
    pub run: &'a SeedFn<'a>,
}

impl Seeds<'_> {
    /// Runs them, and begins none after `limit`; the real time that they took. `told` is called
    /// after each seed.
    pub fn sweep(
        &self,
        limit: Option<Duration>,
        told: &mut dyn FnMut(&Progress),
    ) -> (Sweep, Duration) {
        let start = Instant::now();
        let mut progress = |progress: &Progress| {
            told(progress);
            match limit.is_some_and(|limit| start.elapsed() >= limit) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let swept =
            sweep(self.config, self.first, self.count, self.threads, self.run, &mut progress);
        (swept, start.elapsed())
    }

    /// The first failures of a sweep of them as small as they get. `told` is called with each seed
    /// before that.
    pub fn shrink(&self, sweep: &Sweep, told: &mut dyn FnMut(u64)) -> Vec<Shrunk> {
        let failures = sweep.failures.iter().take(SHRUNK_MAX);
        let shrunk = failures.filter_map(|failed| {
            told(failed.seed);
            shrink(self.config, failed.seed, self.run)
        });
        shrunk.collect()
    }
}

/// Writes shrunk failures into a directory, for the test-suite; the files.
///
/// # Errors
/// Of [`StoredSeed::write`].
pub fn store(directory: &Path, shrunk: &[Shrunk]) -> Result<Vec<PathBuf>, StoredError> {
    let revision = git_revision();
    shrunk.iter().map(|one| StoredSeed::new(one, &revision).write(directory)).collect()
}

/// What a sweep found, for all outputs.
pub struct Findings {
    pub config: Config,
    pub profile: Profile,
    pub sweep: Sweep,
    /// The first failures as small as they get.
    pub shrunk: Vec<Shrunk>,
    pub threads: usize,
    /// Real time that the seeds took.
    pub took: Duration,
}

impl Findings {
    /// The report that programs read.
    pub fn json(&self) -> Report {
        let Findings { config, profile, sweep, shrunk, threads, took } = self;
        let mut report = Report::here(Kind::Simulated);
        let seconds = took.as_secs_f64().max(1e-9);
        let rate = |name: &str, unit: &str, count: u64| {
            Row::new(name, unit, Better::Higher, count as f64 / seconds).samples(count)
        };
        report.results.push(rate("simulated_operations", "ops/s", sweep.operations));
        report.results.push(rate("events", "events/s", sweep.events));
        report.results.push(rate("seeds", "seeds/s", sweep.seeds));
        let fields = sweep_json(config, sweep).into_iter();
        report.extra.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        report.extra.insert("profile".into(), profile.name.clone().into());
        report.extra.insert("calibration".into(), calibration(profile).into());
        report.extra.insert("threads".into(), (*threads).into());
        report.extra.insert("seconds".into(), seconds.into());
        let replay = |shrunk: &Shrunk| {
            serde_json::json!({
                "seed": shrunk.seed,
                "checker": shrunk.failure.checker,
                "replay": shrunk.config.replay_command(shrunk.seed),
                "runs": shrunk.runs,
            })
        };
        report.extra.insert("shrunk".into(), shrunk.iter().map(replay).collect());
        report
    }

    /// Why the sweep failed, with the shortest way to see it; `None` if no seed did.
    pub fn complaint(&self) -> Option<String> {
        let Sweep { seeds, failed_seeds, failures, .. } = &self.sweep;
        let first = failures.first()?;
        let command = match self.shrunk.first() {
            Some(shrunk) => shrunk.config.replay_command(shrunk.seed),
            None => self.config.replay_command(first.seed),
        };
        Some(format!("{failed_seeds} of {seeds} seeds failed; shortest replay: {command}"))
    }
}

/// `calibrated` or `uncalibrated`, as every output says.
pub fn calibration(profile: &Profile) -> &'static str {
    if profile.calibrated { "calibrated" } else { "uncalibrated" }
}

/// How many threads run seeds: as many as there are processors, unless told.
pub fn threads(asked: Option<u32>) -> usize {
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or_else(here, |threads| threads as usize)
}
