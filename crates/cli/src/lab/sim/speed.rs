//! `rackpool bench sim`: pool operations that the simulator gets through in a second of processor
//! time in performance mode. Half remote, half writes, a tenth first touches.

use crate::failure::{Failure, Result};
use crate::output;
use rackpool_bench::report::{Better, Kind, Report, Row};
use rackpool_sim::device::Profile;
use rackpool_sim::world::load::{AccessKind, ClusterLoad, Prepared};
use rackpool_sim::world::performance::Shape;

const PROFILE: &str = "modern";
const RACKS: u32 = 4;
const CLIENTS: u32 = 4;

/// Runs the load and reports how quickly it was simulated.
pub fn run(quick: bool) -> Result<Report> {
    let failed = |reason: String| Failure::new("sim", reason);
    let profile = Profile::load(PROFILE).map_err(|error| failed(error.to_string()))?;
    let (rounds, operations) = if quick { (3, 2_000) } else { (15, 50_000) };
    let bar = output::spinner("simulating");
    let mut rates = Vec::new();
    let mut report = Report::here(Kind::Measured);
    for round in 0..rounds {
        bar.set_message(format!("round {} of {rounds}", round + 1));
        let shape = Shape { racks: RACKS, page_shift: 21, frames: 64, seed: 1 };
        let load = ClusterLoad::mixed(CLIENTS, operations);
        let mut run = Prepared::new(&profile, shape, load).map_err(failed)?;
        let start = cpu_ns();
        run.run().map_err(failed)?;
        let took = (cpu_ns() - start).max(1);
        rates.push(run.operations() as f64 * 1e9 / took as f64);
        if round == 0 {
            describe(&run, &mut report);
        }
    }
    bar.finish_and_clear();
    rates.sort_by(f64::total_cmp);
    let median = rates[rates.len() / 2];
    let row = Row::new("sim_operations_per_cpu_second", "ops/s", Better::Higher, median);
    let count = u64::from(RACKS * CLIENTS) * u64::from(operations);
    let (low, high) = (rates[0], rates[rates.len() - 1]);
    let row = row.samples(count).with("slowest", low).with("fastest", high).with("rounds", rounds);
    report.results.insert(0, row);
    Ok(report)
}

/// What was simulated: shares of accesses and events.
fn describe(run: &Prepared, report: &mut Report) {
    let all = run.operations() as f64;
    let kinds = [
        ("own_warm", AccessKind::OwnWarm),
        ("own_first_touch", AccessKind::OwnFirst),
        ("remote_warm", AccessKind::RemoteWarm),
        ("remote_first_touch", AccessKind::RemoteFirst),
    ];
    for (name, kind) in kinds {
        let share = 100.0 * run.seen(kind).latency.count() as f64 / all;
        report.extra.insert(format!("share_{name}_percent"), share.into());
    }
    let events = run.work().events as f64 / all;
    let row = Row::new("sim_events_per_operation", "events", Better::Lower, events);
    report.results.push(row);
}

/// Processor time of this thread.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
