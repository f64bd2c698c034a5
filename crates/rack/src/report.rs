//! Outcomes as tables for people and as JSON for programs.

use crate::model::stats::{BIN_ENDS_NS, Sum, WorkloadStats};
use crate::model::{Config, Outcome};
use rackpool_sim::histogram::Histogram;
use rackpool_sim::report::{Cell, Table};
use serde_json::{Value, json};

/// Headings of the seed's bins.
pub const BIN_NAMES: [&str; 6] =
    ["< 100 ns", "100-300 ns", "300-500 ns", "500-700 ns", "700-1000 ns", "> 1000 ns"];

const _: () = assert!(BIN_NAMES.len() == BIN_ENDS_NS.len() + 1);

/// A point's name: what tells it apart in a sweep.
pub fn label(config: &Config) -> String {
    let preset = serde_json::to_value(config.preset).expect("it is a word");
    let preset = preset.as_str().expect("it is a word").to_owned();
    let chunk = config.chunk_kib;
    let load = config.pool_load_percent.map_or(String::new(), |load| format!(", load {load} %"));
    format!("{preset}, {}, {chunk} KiB{load}, seed {}", config.placement, config.seed)
}

pub fn total(outcome: &Outcome, of: impl Fn(&WorkloadStats) -> Sum) -> Sum {
    outcome.workloads.iter().fold(Sum::default(), |mut all, one| {
        all.merge(&of(one));
        all
    })
}

/// The share of remote accesses in each of the seed's bins.
pub fn bin_shares(outcome: &Outcome) -> [f64; 6] {
    let mut counts = [0u64; 6];
    for workload in &outcome.workloads {
        counts.iter_mut().zip(workload.bins).for_each(|(sum, count)| *sum += count);
    }
    let all = counts.iter().sum::<u64>().max(1);
    counts.map(|count| count as f64 / all as f64)
}

/// The mean over windows of the pools' spread, as a part of the mean count of a pool.
pub fn spread_share(outcome: &Outcome) -> f64 {
    let accesses: u64 = outcome.pools.accesses.iter().flatten().map(|n| u64::from(*n)).sum();
    let spread: u64 = outcome.pools.spread().iter().map(|n| u64::from(*n)).sum();
    let pools = outcome.chunks.len() as f64;
    if accesses == 0 { 0.0 } else { spread as f64 / (accesses as f64 / pools) }
}

/// The points of a sweep side by side.
pub fn summary(points: &[(Config, Outcome)]) -> Table {
    let columns = [
        ("point", ""),
        ("accesses", "count"),
        ("remote", "%"),
        ("mean", "ns"),
        ("p50", "ns"),
        ("p99", "ns"),
        ("p99.9", "ns"),
        ("local", "ns"),
        ("remote mean", "ns"),
        ("pool", "ns"),
        ("network", "ns"),
        ("spread", "%"),
    ];
    let mut table = Table::new("rack", "Accesses of all nodes", &columns);
    for (config, outcome) in points {
        let (all, remote) = (total(outcome, |w| w.all), total(outcome, |w| w.remote));
        let at = |ppm| outcome.tails.all.percentile(ppm).map(|ps| ps as f64 / 1e3);
        let means = [
            total(outcome, |w| w.local),
            remote,
            total(outcome, |w| w.pool),
            total(outcome, WorkloadStats::network),
        ];
        let head = [
            label(config).into(),
            all.count.into(),
            (100.0 * remote.count as f64 / all.count.max(1) as f64).into(),
            all.mean_ns().into(),
        ];
        let tail = [500_000, 990_000, 999_000].map(|ppm| Cell::from(at(ppm)));
        let rest = means.map(|sum| Cell::from(sum.mean_ns()));
        let spread = Cell::from(100.0 * spread_share(outcome));
        table.row(head.into_iter().chain(tail).chain(rest).chain([spread]));
    }
    table.note(
        "spread: most less fewest accesses of a pool in a window, over the mean of a pool; pool \
         and network are the parts of a remote access",
    );
    table.note(
        "uncalibrated: constants of the published simulator, and assumptions where it has none",
    );
    table
}

/// The workloads of one point.
pub fn workloads(config: &Config, outcome: &Outcome) -> Table {
    let columns = [
        ("workload", ""),
        ("accesses", "count"),
        ("mean", "ns"),
        ("local", "ns"),
        ("remote", "ns"),
        ("pool", "ns"),
        ("network", "ns"),
        ("own memory full", "us"),
        ("at that time", "ns"),
        ("at the end", "ns"),
        ("faults", "count"),
        ("moved", "pages"),
    ];
    let mut table = Table::new("workloads", &label(config), &columns);
    for one in &outcome.workloads {
        let curve = one.cumulative_ns();
        let mark = one.exhausted.map(|(first, _)| first as f64 / 1e6);
        let window_ps = outcome.window.0;
        let at_mark = one.exhausted.and_then(|(first, _)| {
            curve.get(((first / window_ps) as usize).min(curve.len().saturating_sub(1))).copied()
        });
        table.row([
            one.name.as_str().into(),
            one.all.count.into(),
            one.all.mean_ns().into(),
            one.local.mean_ns().into(),
            one.remote.mean_ns().into(),
            one.pool.mean_ns().into(),
            one.network().mean_ns().into(),
            mark.into(),
            at_mark.into(),
            curve.last().copied().into(),
            one.faults.into(),
            one.moved.iter().sum::<u64>().into(),
        ]);
    }
    table
}

/// Remote accesses by their time at the pool.
pub fn bins(points: &[(Config, Outcome)]) -> Table {
    let columns: Vec<(&str, &str)> =
        std::iter::once(("point", "")).chain(BIN_NAMES.map(|name| (name, "%"))).collect();
    let mut table = Table::new("bins", "Remote accesses by their time at the pool", &columns);
    for (config, outcome) in points {
        let shares = bin_shares(outcome).map(|share| Cell::from(100.0 * share));
        table.row([Cell::from(label(config))].into_iter().chain(shares));
    }
    table
}

fn tail(histogram: &Histogram) -> Value {
    let at = |ppm| histogram.percentile(ppm).map(|ps| ps as f64 / 1e3);
    json!({
        "p50_ns": at(500_000), "p90_ns": at(900_000), "p99_ns": at(990_000),
        "p999_ns": at(999_000), "max_ns": at(1_000_000),
    })
}

/// One point with all its series.
pub fn json(config: &Config, outcome: &Outcome) -> Value {
    let workload = |one: &WorkloadStats| {
        json!({
            "name": one.name,
            "accesses": one.all.count,
            "mean_ns": one.all.mean_ns(),
            "local": {"count": one.local.count, "mean_ns": one.local.mean_ns()},
            "remote": {"count": one.remote.count, "mean_ns": one.remote.mean_ns()},
            "pool_ns": one.pool.mean_ns(),
            "network_ns": one.network().mean_ns(),
            "prefetched": {"count": one.prefetched.count, "mean_ns": one.prefetched.mean_ns()},
            "bins": one.bins,
            "faults": one.faults,
            "fault_ns": one.fault_time.mean_ns(),
            "stalls": one.stalls.count,
            "stall_ns": one.stalls.mean_ns(),
            "own_memory_full_us": one.exhausted.map(|(a, b)| [a as f64 / 1e6, b as f64 / 1e6]),
            "pages_moved": one.moved[0],
            "pages_swapped": one.moved[1],
            "cumulative_ns": one.cumulative_ns(),
            "cumulative_pool_ns": one.cumulative_pool_ns(),
        })
    };
    json!({
        "label": label(config),
        "config": config,
        "accesses": outcome.accesses,
        "events": outcome.events,
        "virtual_us": outcome.end.as_ns_f64() / 1e3,
        "window_us": outcome.window.as_ns_f64() / 1e3,
        "all": tail(&outcome.tails.all),
        "remote": tail(&outcome.tails.remote),
        "at_pool": tail(&outcome.tails.pool),
        "bin_ends_ns": BIN_ENDS_NS,
        "bin_shares": bin_shares(outcome),
        "pool_accesses_by_window": outcome.pools.accesses,
        "pool_spread_by_window": outcome.pools.spread(),
        "pool_pages": outcome.pools.pages,
        "chunks_chosen": outcome.choices.len(),
        "chunks_returned": outcome.chunks_returned,
        "pool_queue_max": outcome.pool_waiting_max,
        "network": outcome.net,
        "workloads": outcome.workloads.iter().map(workload).collect::<Vec<_>>(),
    })
}
