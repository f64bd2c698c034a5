//! The performance engine: from addresses to latencies, through the rack model. It knows nothing
//! of how much memory is needed.

use super::design::{Design, everything_local};
use super::input::Plan;
use super::{PlanError, Progress};
use crate::model::{Config, Outcome};
use crate::report::total;
use crate::run::{Sweep, sweep};
use crate::source::TraceSet;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// What one seed says of a design.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    pub mean_ns: f64,
    pub p50_ns: f64,
    /// Of 100 accesses 99 are faster.
    pub p99_ns: f64,
    pub p999_ns: f64,
    pub max_ns: f64,
    /// The mean access to a pool; 0 without any.
    pub remote_ns: f64,
    /// Accesses that went to pools, percent.
    pub remote_percent: f64,
    /// What the pools' links carried of what they could have carried, both directions, percent.
    pub link_percent: f64,
}

/// Names of the values of [`Latency`], in order.
pub const LATENCY_NAMES: [&str; 8] = [
    "mean_ns",
    "p50_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "remote_ns",
    "remote_percent",
    "link_percent",
];

impl Latency {
    fn of(config: &Config, outcome: &Outcome) -> Latency {
        let (all, remote) = (total(outcome, |w| w.all), total(outcome, |w| w.remote));
        let at = |ppm| outcome.tails.all.percentile(ppm).map_or(0.0, |ps| ps as f64 / 1e3);
        // A packet is once on a pool's link.
        let bits = outcome.net.bytes as f64 * 8.0;
        let could = 2.0
            * f64::from(config.pools)
            * config.fabric().nic_rate.gbps as f64
            * outcome.end.as_ns_f64();
        Latency {
            mean_ns: all.mean_ns(),
            p50_ns: at(500_000),
            p99_ns: at(990_000),
            p999_ns: at(999_000),
            max_ns: at(1_000_000),
            remote_ns: remote.mean_ns(),
            remote_percent: 100.0 * remote.count as f64 / all.count.max(1) as f64,
            link_percent: 100.0 * bits / could.max(1.0),
        }
    }

    /// The values in the order of [`LATENCY_NAMES`].
    pub fn values(&self) -> [f64; 8] {
        [
            self.mean_ns,
            self.p50_ns,
            self.p99_ns,
            self.p999_ns,
            self.max_ns,
            self.remote_ns,
            self.remote_percent,
            self.link_percent,
        ]
    }
}

/// Latencies of designs and of pods with everything local, each by seed.
pub(super) struct Latencies {
    pub designs: Vec<Vec<Latency>>,
    pub local: Vec<(u16, Vec<Latency>)>,
    /// Of what was recorded and of the patterns.
    pub trace_hash: u64,
}

/// Simulates all designs, and each size of a pod with everything local, with each seed.
pub(super) fn simulate(
    plan: &Plan,
    designs: &[Design],
    seeds: &[u64],
    progress: &Progress<'_>,
) -> Result<Latencies, PlanError> {
    let mut pods: Vec<u16> = designs.iter().map(|design| design.pod_machines).collect();
    pods.sort_unstable();
    pods.dedup();
    let of_designs = designs.iter().flat_map(|one| seeds.iter().map(|s| one.config(plan, *s)));
    let of_pods =
        pods.iter().flat_map(|pod| seeds.iter().map(|s| everything_local(plan, *pod, *s)));
    let points: Vec<Config> = of_designs.chain(of_pods).collect();
    (progress.told)("recording what programs access", 0, 1);
    let traces = TraceSet::record(&points, &mut |_| {}).map_err(crate::run::SimError::from)?;
    let over = std::sync::Mutex::new(vec![0u64; points.len()]);
    let all = points.len() as u64 * plan.performance.accesses;
    let told = |point: usize, done: u64, _: u64| {
        let mut over = over.lock().expect("no thread panics with it");
        over[point] = done / u64::from(points[point].nodes());
        (progress.told)("simulating racks", over.iter().sum(), all);
    };
    let stop: &AtomicBool = progress.stop;
    let how = Sweep { threads: progress.threads, checkpoints: None, stop, told: &told };
    let outcomes = sweep(&points, &traces, &how)?;
    let latencies: Vec<Latency> = points
        .iter()
        .zip(&outcomes)
        .map(|(config, outcome)| Latency::of(config, outcome))
        .collect();
    let mut by_seed = latencies.chunks(seeds.len()).map(<[Latency]>::to_vec);
    Ok(Latencies {
        designs: by_seed.by_ref().take(designs.len()).collect(),
        local: pods.into_iter().zip(by_seed).collect(),
        trace_hash: traces.hash(),
    })
}
