//! `rackpool bench dram`: how quickly memory channels are simulated, in requests a second of
//! processor time, on one core. DDR4-2400, 300,000 requests a run, a third of them writes.
//!
//! - `random_saturated`: random lines, as many as the queues take.
//! - `random_light`: random lines, one in 20 cycles.
//! - `wlmix_end_to_end`: accesses of WL-Mix, 64 nodes and 6 pools, 64 times smaller than the rack
//!   simulator's paper has it: programs, caches, pages, network and 70 channels, all included;
//!   `memory_peak_bytes` is the most that the process ever had.
//! - `sweep_two_cores`: how much sooner two threads are through four such racks than one, by the
//!   clock on the wall: only on a machine at rest that is what it says.
//!
//! No other simulator is measured in the same run. What ramulator2 (c5b1c3a) did of the same
//! streams on another machine is in `ramulator2_elsewhere`: a rough bearing, no reference.

use crate::report::{Better, Kind, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps};
use rackpool_rack::dram::stream::{AddressOrder, ArrivalRate, RequestStream, StreamResult};
use rackpool_rack::dram::{Channel, ChannelCounts, Config, DramConfigError};
use rackpool_rack::model::{Config as RackConfig, builtin};
use rackpool_rack::run::{Sweep, hash_of, sweep};
use rackpool_rack::source::TraceSet;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const PRESET: &str = "ddr4-2400";
const WRITES_PERMILLE: u64 = 333;
/// Cycles between requests of the light stream.
const LIGHT_GAP: u64 = 20;
/// So many times smaller than in the paper is WL-Mix.
const WLMIX_DIVISOR: u64 = 64;

struct PaceCase {
    name: &'static str,
    pace: ArrivalRate,
    ramulator2: f64,
}

const CASES: [PaceCase; 2] = [
    PaceCase { name: "random_saturated", pace: ArrivalRate::Saturated, ramulator2: 228_000.0 },
    PaceCase { name: "random_light", pace: ArrivalRate::Every(LIGHT_GAP), ramulator2: 645_000.0 },
];

/// Simulates the streams in turn, so that a disturbance meets both.
///
/// # Errors
/// None that could be met: the preset is checked by tests.
pub fn run(size: Size, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let (rounds, requests) = match size {
        Size::Smoke => (1, 10_000),
        Size::Quick => (5, 300_000),
        Size::Full => (31, 300_000),
    };
    let config = Config::preset(PRESET).map_err(wrong)?;
    let mut steps = Steps::new(rounds, progress);
    let mut rates = [const { Vec::new() }; CASES.len()];
    let mut seen = [const { None }; CASES.len()];
    for round in 0..rounds {
        steps.begin(&format!("round {}", round + 1));
        for (index, case) in CASES.iter().enumerate() {
            let pattern = AddressOrder::Random;
            let (pace, seed) = (case.pace, round as u64 + 1);
            let writes_permille = WRITES_PERMILLE;
            let stream = RequestStream { pattern, pace, writes_permille, requests, seed };
            let mut channel = Channel::new(&config).map_err(wrong)?;
            let start = cpu_ns();
            let outcome = stream.run(0, &mut channel, |_| ());
            let took = (cpu_ns() - start).max(1);
            rates[index].push(requests as f64 * 1e9 / took as f64);
            seen[index].get_or_insert((outcome, *channel.counts()));
        }
    }
    steps.end();
    let mut report = Report::here(Kind::Measured);
    report.extra.insert("preset".into(), PRESET.into());
    report.extra.insert("size".into(), size.name().into());
    for ((case, rates), seen) in CASES.iter().zip(rates).zip(seen) {
        let (outcome, counts) = seen.expect("there is at least one round");
        report.results.push(row(case, rates, requests, &outcome, &counts));
    }
    report.results.push(wlmix(size)?);
    report.results.push(two_cores(size)?);
    Ok(report)
}

fn unmeant(reason: String) -> BenchError {
    BenchError::Option { option: "wl-mix", reason }
}

/// Four points of a sweep by one thread, then by two.
fn two_cores(size: Size) -> Result<Row, BenchError> {
    let point = |seed: u64| {
        let mut config = builtin::wl_mix(WLMIX_DIVISOR);
        config.seed = seed;
        config.accesses /= match size {
            Size::Smoke => 512,
            Size::Quick => 16,
            Size::Full => 4,
        };
        config
    };
    let points: Vec<RackConfig> = (1..=4).map(point).collect();
    let traces = TraceSet::record(&points, &mut |_| ()).map_err(|e| unmeant(e.to_string()))?;
    let stop = AtomicBool::new(false);
    let timed = |threads: usize| {
        let how = Sweep { threads, checkpoints: None, stop: &stop, told: &|_, _, _| () };
        let start = Instant::now();
        let outcomes = sweep(&points, &traces, &how).map_err(|e| unmeant(e.to_string()))?;
        Ok::<_, BenchError>((start.elapsed().as_secs_f64(), hash_of(&outcomes)))
    };
    let (one, two) = (timed(1)?, timed(2)?);
    assert_eq!(one.1, two.1, "the number of threads changes no result");
    Ok(Row::new("sweep_two_cores", "ratio", Better::Higher, one.0 / two.0.max(f64::MIN_POSITIVE))
        .samples(points.len() as u64)
        .with("one_thread_s", one.0)
        .with("two_threads_s", two.0))
}

/// The most memory that this process ever had, bytes.
fn memory_peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// WL-Mix on this thread, from the programs' first instruction to the report's numbers.
fn wlmix(size: Size) -> Result<Row, BenchError> {
    let mut config = builtin::wl_mix(WLMIX_DIVISOR);
    config.accesses /= match size {
        Size::Smoke => 256,
        Size::Quick => 8,
        Size::Full => 1,
    };
    let points = [config];
    let start = cpu_ns();
    let traces = TraceSet::record(&points, &mut |_| ()).map_err(|e| unmeant(e.to_string()))?;
    let recorded = cpu_ns() - start;
    let stop = AtomicBool::new(false);
    let how = Sweep { threads: 1, checkpoints: None, stop: &stop, told: &|_, _, _| () };
    let outcomes = sweep(&points, &traces, &how).map_err(|error| unmeant(error.to_string()))?;
    let took = (cpu_ns() - start).max(1);
    let outcome = &outcomes[0];
    let rate = outcome.accesses as f64 * 1e9 / took as f64;
    Ok(Row::new("wlmix_end_to_end", "accesses/s", Better::Higher, rate)
        .samples(outcome.accesses)
        .with("events_per_access", outcome.events as f64 / outcome.accesses as f64)
        .with("recording_share", recorded as f64 / took as f64)
        .with("memory_peak_bytes", memory_peak_bytes())
        .with("result_hash", format!("{:016x}", hash_of(&outcomes))))
}

fn row(
    case: &PaceCase,
    mut rates: Vec<f64>,
    requests: u64,
    outcome: &StreamResult,
    counts: &ChannelCounts,
) -> Row {
    rates.sort_by(f64::total_cmp);
    let median = rates[rates.len() / 2];
    Row::new(case.name, "ops/s", Better::Higher, median)
        .samples(requests * rates.len() as u64)
        .with("rounds", rates.len())
        .with("slowest", rates[0])
        .with("fastest", rates[rates.len() - 1])
        .with("ramulator2_elsewhere", case.ramulator2)
        .with("commands_per_request", counts.commands as f64 / requests as f64)
        .with("cycles", outcome.cycles)
        .with("read_cycles_average", outcome.average())
        .with("read_cycles_p50", outcome.percentile(0.5))
        .with("read_cycles_p99", outcome.percentile(0.99))
}

fn wrong(error: DramConfigError) -> BenchError {
    BenchError::Option { option: "preset", reason: error.to_string() }
}

/// Processor time of this process.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_is_a_result_with_its_latencies() {
        let report = run(Size::Smoke, &mut |_| ()).unwrap();
        let names: Vec<&str> = report.results.iter().map(|row| row.name.as_str()).collect();
        let all = ["random_saturated", "random_light", "wlmix_end_to_end", "sweep_two_cores"];
        assert_eq!(names, all);
        assert!(report.results[2].ours > 0.0 && report.results[3].ours > 0.0);
        for row in &report.results[..2] {
            assert_eq!(row.n, 10_000);
            assert!(row.ours > 0.0 && row.extra["read_cycles_p50"].as_u64().unwrap() >= 36);
        }
    }
}
