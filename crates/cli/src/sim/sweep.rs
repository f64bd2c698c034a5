//! `sim run` and `sim replay`: seeds in bulk and one by one, failures shrunk to the shortest
//! command that shows them.

use super::{Engine, calibration, configure, page, show, threads};
use crate::args::{SimReplayArgs, SimRunArgs};
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_bench::report::{Better, Kind, Report, Row, git_revision};
use rackpool_sim::device::Profile;
use rackpool_sim::report::sweep_json;
use rackpool_sim::run::{Config, Progress, SeedOutcome, Sweep, guarded, sweep};
use rackpool_sim::shrink::{Shrunk, shrink};
use rackpool_sim::stored::StoredSeed;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Failures that are shrunk after one sweep; the others are only named.
const SHRUNK_MAX: usize = 3;

/// What a sweep found, for all outputs.
pub struct Findings {
    /// What was asked for.
    pub config: Config,
    /// Its profile.
    pub profile: Profile,
    /// What came out.
    pub sweep: Sweep,
    /// The first failures as small as they get.
    pub shrunk: Vec<Shrunk>,
    /// Threads that ran seeds.
    pub threads: usize,
    /// Real time that the seeds took.
    pub took: Duration,
}

/// Runs seeds; fails if one of them does.
pub fn run(engine: &Engine, args: &SimRunArgs) -> Result<()> {
    let (config, profile) = configure(&args.config)?;
    for path in args.output.json.iter().chain(&args.output.html) {
        output::check_writable(path)?;
    }
    let threads = threads(args.threads);
    let limit = args.seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
    let (sweep, took) = run_seeds(engine, &config, args, threads, limit);
    let mut findings = Findings { config, profile, sweep, shrunk: Vec::new(), threads, took };
    if !args.no_shrink {
        findings.shrunk = shrink_failures(engine, &findings);
    }
    let stored = store(args.store.as_ref(), &findings.shrunk)?;
    report(&findings, args)?;
    output::print(&show::findings(&findings, &stored))?;
    judge(&findings)
}

fn run_seeds(
    engine: &Engine,
    config: &Config,
    args: &SimRunArgs,
    threads: usize,
    limit: Option<Duration>,
) -> (Sweep, Duration) {
    let bar = output::bar("seeds", args.seeds, "seeds");
    let start = Instant::now();
    let mut progress = |progress: &Progress| {
        bar.set_position(progress.done);
        if progress.failed > 0 {
            bar.set_prefix(format!("seeds, {} failed", progress.failed));
        }
        match limit.is_some_and(|limit| start.elapsed() >= limit) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let run = &engine.run_seed;
    let sweep = sweep(config, args.first_seed, args.seeds, threads, run, &mut progress);
    bar.finish_and_clear();
    (sweep, start.elapsed())
}

fn shrink_failures(engine: &Engine, findings: &Findings) -> Vec<Shrunk> {
    let bar = output::spinner("shrinking");
    let failures = findings.sweep.failures.iter().take(SHRUNK_MAX);
    let shrunk = failures.filter_map(|failed| {
        bar.set_message(format!("seed {}", failed.seed));
        shrink(&findings.config, failed.seed, &engine.run_seed)
    });
    let shrunk = shrunk.collect();
    bar.finish_and_clear();
    shrunk
}

fn store(directory: Option<&PathBuf>, shrunk: &[Shrunk]) -> Result<Vec<PathBuf>> {
    let Some(directory) = directory else { return Ok(Vec::new()) };
    let revision = git_revision();
    let write = |shrunk: &Shrunk| StoredSeed::new(shrunk, &revision).write(directory);
    let written: Result<Vec<PathBuf>, _> = shrunk.iter().map(write).collect();
    written.map_err(|error| Failure::new("io", error.to_string()))
}

fn report(findings: &Findings, args: &SimRunArgs) -> Result<()> {
    if let Some(path) = &args.output.json {
        let written = json(findings).write(path);
        written.map_err(|error| Failure::new("io", error.to_string()))?;
    }
    if let Some(path) = &args.output.html {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let page = page::of_sweep(findings, format!("{} UTC", output::utc(now, ' ')));
        output::write_file(path, &rackpool_bench::html::render(&page))?;
    }
    Ok(())
}

/// The sweep as the report that programs read.
pub fn json(findings: &Findings) -> Report {
    let Findings { config, profile, sweep, shrunk, threads, took } = findings;
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

fn judge(findings: &Findings) -> Result<()> {
    let Sweep { seeds, failed_seeds, failures, .. } = &findings.sweep;
    let Some(first) = failures.first() else { return Ok(()) };
    let command = match findings.shrunk.first() {
        Some(shrunk) => shrunk.config.replay_command(shrunk.seed),
        None => findings.config.replay_command(first.seed),
    };
    let message = format!("{failed_seeds} of {seeds} seeds failed; shortest replay: {command}");
    Err(Failure::new("seed-failed", message))
}

/// Runs one seed again and shows the end of its trace.
pub fn replay(engine: &Engine, args: &SimReplayArgs) -> Result<()> {
    let (mut config, profile) = configure(&args.config)?;
    config.trace_lines = args.trace_lines;
    config.mutation = args.mutation()?;
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    if let Some(path) = &args.json {
        output::check_writable(path)?;
    }
    let start = Instant::now();
    let outcome = guarded(&engine.run_seed, &config, args.seed);
    let took = start.elapsed();
    if let Some(path) = &args.json {
        let sweep = as_sweep(&config, &outcome);
        let shrunk = Vec::new();
        let profile = profile.clone();
        let findings =
            Findings { config: config.clone(), profile, sweep, shrunk, threads: 1, took };
        let written = json(&findings).write(path);
        written.map_err(|error| Failure::new("io", error.to_string()))?;
    }
    output::print(&show::outcome(&outcome, &config, &profile, took))?;
    match &outcome.failure {
        None => Ok(()),
        Some(failure) => {
            let message = format!("seed {}: {}: {}", args.seed, failure.checker, failure.text);
            Err(Failure::new("seed-failed", message))
        }
    }
}

/// One run as a sweep of one.
fn as_sweep(config: &Config, outcome: &SeedOutcome) -> Sweep {
    let again = |_: &Config, _: u64| outcome.clone();
    sweep(config, outcome.seed, 1, 1, &again, &mut |_| ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;
