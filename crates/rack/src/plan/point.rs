//! What a design is measured by, and the machines without pools that it is compared with.

use super::capacity::Blast;
use super::cost::{Cost, Sizes};
use super::design::{Design, Split};
use super::input::Plan;
use super::performance::Latency;
use super::stats::Estimate;
use rackpool_stats::sample::percentile;

/// A design with what both engines and the prices say of it.
#[derive(Clone, Debug)]
pub struct Point {
    pub design: Design,
    pub label: String,
    /// Memory of a machine, MiB.
    pub local_mib: u64,
    /// Pools of a pod that are bought: one more than are in use if a single one must have a spare.
    pub pools_bought: u16,
    /// Memory of each pool, MiB.
    pub pool_mib: u64,
    /// The percentile of a pod's demand that the size comes from, MiB.
    pub demand_mib: u64,
    /// Part of the time, percent, in which a pod wants more than its pools have: each seed against
    /// a size from all others.
    pub over_percent: Estimate,
    /// What the failure of a pool takes along: means over seeds, maxima of all.
    pub blast: Blast,
    /// What it costs a machine.
    pub cost: Cost,
    /// By how much that is less than without pools, percent.
    pub saving_percent: Estimate,
    /// Latencies: estimates in the order of [`super::LATENCY_NAMES`].
    pub latency: [Estimate; 8],
    /// Nothing else is both cheaper and faster.
    pub is_on_front: bool,
    /// Why it cannot be taken; empty if it can.
    pub fails: Vec<String>,
    pub(super) by_seed: BySeed,
}

impl Point {
    pub(super) fn sizes(&self) -> Sizes {
        let Point { local_mib, pool_mib, pools_bought, .. } = *self;
        Sizes { local_mib, pool_mib, pools_bought }
    }
}

/// What a design's samples are.
#[derive(Clone, Debug, Default)]
pub(super) struct BySeed {
    pub latency: Vec<Latency>,
    pub pool_mib: Vec<u64>,
    pub saving_percent: Vec<f64>,
    pub over_percent: Vec<f64>,
}

/// The machines without pools.
#[derive(Clone, Debug)]
pub struct Baseline {
    /// Part of all memory that lies where no processor is free, percent.
    pub stranded_percent: Estimate,
    /// Part of all memory that is in use, percent.
    pub used_percent: Estimate,
    /// Virtual machines that found no room, percent.
    pub refused_percent: Estimate,
    /// Memory that suffices each machine at the same risk, as it can be bought, MiB.
    pub right_mib: u64,
    /// What that costs a machine.
    pub cost: f64,
    /// What the machines cost as they are bought today.
    pub cost_as_bought: f64,
    /// Latencies of pods by their size, with everything local.
    pub latency: Vec<(u16, [Estimate; 8])>,
    pub(super) right_by_seed: Vec<u64>,
    pub(super) stranded_by_seed: Vec<f64>,
    pub(super) latency_by_seed: Vec<(u16, Vec<Latency>)>,
}

/// Memory of a machine without pools that suffices at a risk, as it can be bought.
pub(super) fn right_mib(plan: &Plan, used: &mut [u64], percent: f64) -> u64 {
    let step = plan.machines.memory_step.mib();
    percentile(used, percent).div_ceil(step).max(1) * step
}

/// Memory of each pool for a pod's demand, as it can be bought, and how many pools.
pub(super) fn pool_mib(plan: &Plan, design: &Split, demand_mib: u64, spare: bool) -> (u64, u16) {
    let step = plan.capacity.pool_step.mib();
    let bought = if spare { design.pools.max(2) } else { design.pools };
    let serving = u64::from(if spare { bought - 1 } else { bought });
    (demand_mib.div_ceil(serving).div_ceil(step).max(1) * step, bought)
}

pub(super) fn estimates(by_seed: &[Latency], confidence: f64) -> [Estimate; 8] {
    std::array::from_fn(|which| {
        let values: Vec<f64> = by_seed.iter().map(|one| one.values()[which]).collect();
        Estimate::of(&values, confidence)
    })
}

/// Percent of samples above a size.
pub(super) fn over_percent(samples: &[u64], room_mib: u64) -> f64 {
    let over = samples.iter().filter(|sample| **sample > room_mib).count();
    100.0 * over as f64 / samples.len().max(1) as f64
}
