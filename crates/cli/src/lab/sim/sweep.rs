//! `sim run` and `sim replay`: seeds in bulk and one by one. What is done with them is in
//! `rackpool_bench::sim_runs`; here are words, bars and outputs.

use super::{Engine, configure, page};
use crate::args::{SimReplayArgs, SimRunArgs};
use crate::failure::{Failure, Result};
use crate::output;
use rackpool_bench::sim_runs::{Findings, Seeds, show, store, threads};
use rackpool_sim::run::{Config, Progress, SeedOutcome, Sweep, guarded, sweep};
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Runs seeds; fails if one of them does.
pub fn run(engine: &Engine, args: &SimRunArgs) -> Result<()> {
    let (config, profile) = configure(&args.config)?;
    let json = output::open_if(args.output.json.as_ref())?;
    let html = output::open_if(args.output.html.as_ref())?;
    args.store.as_deref().map(output::directory).transpose()?;
    let threads = threads(args.threads);
    let limit = args.seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
    let (first, count, run) = (args.first_seed, args.seeds, &engine.run_seed);
    let seeds = Seeds { config: &config, first, count, threads, run };
    let bar = output::bar("seeds", count, "seeds");
    let (sweep, took) = seeds.sweep(limit, &mut |progress: &Progress| {
        bar.set_position(progress.done);
        if progress.failed > 0 {
            bar.set_prefix(format!("seeds, {} failed", progress.failed));
        }
    });
    bar.finish_and_clear();
    let mut shrunk = Vec::new();
    if !args.no_shrink {
        let bar = output::spinner("shrinking");
        shrunk = seeds.shrink(&sweep, &mut |seed| bar.set_message(format!("seed {seed}")));
        bar.finish_and_clear();
    }
    let stored = match &args.store {
        Some(directory) => store(directory, &shrunk).map_err(io)?,
        None => Vec::new(),
    };
    let findings = Findings { config, profile, sweep, shrunk, threads, took };
    if let Some(json) = json {
        json.report(&findings.json())?;
    }
    if let Some(html) = html {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let page = page::of_sweep(&findings, format!("{} UTC", output::utc(now, ' ')));
        html.write(rackpool_bench::html::render(&page))?;
    }
    output::print(&show::findings(&findings, &stored))?;
    findings.complaint().map_or(Ok(()), |message| Err(Failure::new("seed-failed", message)))
}

fn io(error: impl std::fmt::Display) -> Failure {
    Failure::new("io", error.to_string())
}

/// Runs one seed again and shows the end of its trace.
pub fn replay(engine: &Engine, args: &SimReplayArgs) -> Result<()> {
    let (mut config, profile) = configure(&args.config)?;
    config.trace_lines = args.trace_lines;
    config.mutation = args.mutation()?;
    config.check().map_err(|error| Failure::usage(error.to_string()))?;
    let json = output::open_if(args.json.as_ref())?;
    let start = Instant::now();
    let outcome = guarded(&engine.run_seed, &config, args.seed);
    let took = start.elapsed();
    if let Some(json) = json {
        let sweep = as_sweep(&config, &outcome);
        let shrunk = Vec::new();
        let profile = profile.clone();
        let findings =
            Findings { config: config.clone(), profile, sweep, shrunk, threads: 1, took };
        json.report(&findings.json())?;
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
