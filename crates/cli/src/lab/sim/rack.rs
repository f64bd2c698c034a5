//! `sim rack`: a rack from traces, its points side by side, as tables and as JSON.

use super::{show, threads};
use crate::args::SimRackArgs;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output;
use indicatif::ProgressBar;
use rackpool_bench::report::{Better, Kind, Report, Row};
use rackpool_rack::model::{Config, Outcome, builtin};
use rackpool_rack::report;
use rackpool_rack::run::{Checkpoints, SimError, Sweep, hash_of, sweep};
use rackpool_rack::source::TraceSet;
use serde_json::Value;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long writing the last checkpoints may take after a signal.
const CHECKPOINTS_WITHIN: Duration = Duration::from_secs(60);

/// Runs the points of a sweep.
pub fn run(args: &SimRackArgs) -> Result<()> {
    let shutdown = interrupt::shutdown()?;
    let points = points(args)?;
    let json_to = output::open_if(args.json.as_ref())?;
    args.checkpoint.as_deref().map(output::directory).transpose()?;
    let bar = output::spinner("recording");
    let mut told = |what: &str| bar.set_message(what.to_owned());
    let traces = TraceSet::record(&points, &mut told);
    bar.finish_and_clear();
    let traces = traces.map_err(|error| Failure::new("trace", error.to_string()))?;
    let stop = AtomicBool::new(false);
    let meter = Meter::new(points.len());
    let checkpoints = args.checkpoint.as_ref().map(|directory| Checkpoints {
        directory: directory.clone(),
        events: args.checkpoint_events,
        write: rackpool_mem::output::write,
    });
    if checkpoints.is_some() {
        interrupt::allow(CHECKPOINTS_WITHIN);
    }
    let told = |point: usize, over: u64, all: u64| {
        meter.told(point, over, all);
        if shutdown.is_requested() {
            // Relaxed: seen sooner or later.
            stop.store(true, Ordering::Relaxed);
        }
    };
    let threads = threads(args.threads);
    let how = Sweep { threads, checkpoints: checkpoints.as_ref(), stop: &stop, told: &told };
    let start = Instant::now();
    let outcomes = sweep(&points, &traces, &how);
    meter.finish();
    let outcomes = outcomes.map_err(|error| match error {
        SimError::Stopped => Failure::interrupted(),
        SimError::Config { .. } => Failure::usage(error.to_string()),
        error => Failure::new("sim", error.to_string()),
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let hash = hash_of(&outcomes);
    let points: Vec<(Config, Outcome)> = points.into_iter().zip(outcomes).collect();
    if let Some(to) = json_to {
        to.report(&json(&points, hash, threads, seconds))?;
    }
    print(&points, hash, threads, seconds)
}

fn print(points: &[(Config, Outcome)], hash: u64, threads: usize, seconds: f64) -> Result<()> {
    output::print(&format!("{}\n", show::table(&report::summary(points))))?;
    for (config, outcome) in points {
        output::print(&format!("{}\n", show::table(&report::workloads(config, outcome))))?;
    }
    output::print(&format!("{}\n", show::table(&report::bins(points))))?;
    let accesses: u64 = points.iter().map(|point| point.1.accesses).sum();
    output::print(&format!(
        "{} accesses in {seconds:.1} s on {threads} threads, {:.2} M/s; result hash {hash:016x}\n",
        show::count(accesses),
        accesses as f64 / seconds.max(1e-9) / 1e6
    ))
}

/// All that the words ask for: each list against each other one.
fn points(args: &SimRackArgs) -> Result<Vec<Config>> {
    let base = load(&args.config)?;
    let presets = if args.preset.is_empty() { vec![base.preset] } else { args.preset.clone() };
    let placements = match args.placement.is_empty() {
        true => vec![base.placement],
        false => args.placement.clone(),
    };
    fn or<T: Copy>(list: &[T], one: T) -> Vec<T> {
        if list.is_empty() { vec![one] } else { list.to_vec() }
    }
    let loads: Vec<Option<u32>> = match args.pool_load.is_empty() {
        true => vec![base.pool_load_percent],
        false => args.pool_load.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for (preset, load) in presets.into_iter().flat_map(|one| loads.iter().map(move |l| (one, *l))) {
        for (placement, chunk_kib) in placements
            .iter()
            .flat_map(|one| or(&args.chunk_kib, base.chunk_kib).into_iter().map(move |k| (*one, k)))
        {
            for seed in or(&args.seed, base.seed) {
                let accesses = args.accesses.unwrap_or(base.accesses);
                let point = Config {
                    preset,
                    placement,
                    chunk_kib,
                    seed,
                    accesses,
                    pool_load_percent: load,
                    ..base.clone()
                };
                point.check().map_err(|error| Failure::usage(error.to_string()))?;
                points.push(point);
            }
        }
    }
    Ok(points)
}

fn load(name: &str) -> Result<Config> {
    if let Some(config) = builtin::named(name) {
        return Ok(config);
    }
    let text = std::fs::read_to_string(Path::new(name)).map_err(|error| {
        let names = builtin::NAMES.join(", ");
        Failure::usage(format!("{name}: {error}; without a file there are {names}"))
    })?;
    Config::from_toml(&text).map_err(|error| Failure::usage(format!("{name}: {error}")))
}

/// One bar for all points, with rate and time left.
pub struct Meter {
    bar: ProgressBar,
    /// Of each point: accesses that are over, and all.
    points: Mutex<Vec<(u64, u64)>>,
}

impl Meter {
    pub fn new(points: usize) -> Meter {
        let bar = output::timed_bar("simulating", "accesses");
        Meter { bar, points: Mutex::new(vec![(0, 0); points]) }
    }

    /// A point's accesses that are over, and all of them.
    pub fn told(&self, point: usize, over: u64, all: u64) {
        let mut points = self.points.lock().expect("no thread panics with it");
        points[point] = (over, all);
        // Points that have not begun are taken for as long as this one.
        let length: u64 = points.iter().map(|(_, its)| if *its == 0 { all } else { *its }).sum();
        self.bar.set_length(length);
        self.bar.set_position(points.iter().map(|(over, _)| over).sum());
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn json(points: &[(Config, Outcome)], hash: u64, threads: usize, seconds: f64) -> Report {
    let mut report = Report::here(Kind::Simulated);
    let accesses: u64 = points.iter().map(|point| point.1.accesses).sum();
    let rate = accesses as f64 / seconds.max(1e-9);
    let row = Row::new("simulated_accesses", "accesses/s", Better::Higher, rate);
    report.results.push(row.samples(accesses));
    let all = points.iter().map(|(config, outcome)| report::json(config, outcome));
    report.extra.insert("points".into(), all.collect::<Vec<Value>>().into());
    report.extra.insert("result_hash".into(), format!("{hash:016x}").into());
    report.extra.insert("threads".into(), threads.into());
    report.extra.insert("seconds".into(), seconds.into());
    report.extra.insert("calibration".into(), "uncalibrated".into());
    report
}
