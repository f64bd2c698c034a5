//! From a plan to its answer.

use super::capacity::{self, Blast, Demand, local_mib};
use super::confirm::{self, Check, Claim};
use super::cost::{self, BreakEven, Cost, Swing};
use super::decide::{self, Verdict};
use super::design::{Design, Split};
use super::input::Plan;
use super::packing::{Packed, Requests, pack};
use super::performance::{Latencies, Latency, simulate};
use super::stats::{Estimate, percentile};
use super::{PlanError, Progress, side_by_side};
use crate::live::{self, Recording};
use xxhash_rust::xxh3::xxh3_64;

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

/// What comes out of a plan.
#[derive(Clone, Debug)]
pub struct Answer {
    pub seeds: Vec<u64>,
    /// Of all traces: virtual machines of each seed, and what programs access.
    pub trace_hash: u64,
    /// Without pools.
    pub baseline: Baseline,
    /// With them, in the order of the sweep.
    pub points: Vec<Point>,
    pub verdict: Verdict,
    /// How much the saving of the best design moves with what is not certain, most first.
    pub swings: Vec<Swing>,
    /// Prices at which it would save nothing.
    pub break_even: Vec<BreakEven>,
    /// What is said of the design that is to be bought, if one is.
    pub claim: Option<Claim>,
    /// The claim under other seeds.
    pub checks: Vec<Check>,
    /// A running pool, if the plan names its recording.
    pub live: Option<live::Report>,
}

/// Of each seed: the packing, and the hash of its trace.
pub(super) fn packings(
    plan: &Plan,
    seeds: &[u64],
    progress: &Progress<'_>,
) -> Result<Vec<(Packed, u64)>, PlanError> {
    side_by_side(seeds.len(), "placing virtual machines", progress, |index| {
        let requests = Requests::of(plan, seeds[index])?;
        Ok((pack(&requests, plan, seeds[index]), requests.hash))
    })
}

/// Of each split, then each seed: the demand.
fn demands(
    plan: &Plan,
    (splits, seeds): (&[Split], &[u64]),
    packed: &[(Packed, u64)],
    progress: &Progress<'_>,
) -> Result<Vec<Vec<Demand>>, PlanError> {
    let count = splits.len() * seeds.len();
    let all = side_by_side(count, "asking pools for memory", progress, |index| {
        let (split, seed) = (index / seeds.len(), index % seeds.len());
        Ok(capacity::demand(&packed[seed].0, plan, &splits[split], seeds[seed]))
    })?;
    Ok(all.chunks(seeds.len()).map(<[Demand]>::to_vec).collect())
}

pub(super) fn work_out(plan: &Plan, progress: &Progress<'_>) -> Result<Answer, PlanError> {
    let seeds: Vec<u64> =
        (0..u64::from(plan.run.seeds)).map(|n| plan.run.first_seed.wrapping_add(n)).collect();
    let recording = plan.live.as_ref().map(|live| Recording::open(&live.recording)).transpose()?;
    let live = recording.as_ref().map(live::Report::of);
    let designs = Design::all(plan);
    let mut splits: Vec<Split> = Vec::new();
    for split in designs.iter().map(Design::split) {
        if !splits.contains(&split) {
            splits.push(split);
        }
    }
    let packed = packings(plan, &seeds, progress)?;
    let demands = demands(plan, (&splits, &seeds), &packed, progress)?;
    let latencies = simulate(plan, &designs, &seeds, progress)?;
    let hashes = packed.iter().map(|(_, hash)| *hash).chain([latencies.trace_hash]);
    let trace_hash = xxh3_64(&hashes.flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
    let baseline = baseline(plan, &packed, &latencies);
    let mut points: Vec<Point> = Vec::new();
    for (design, latency) in designs.into_iter().zip(latencies.designs) {
        let at = splits.iter().position(|split| *split == design.split());
        let demands = &demands[at.expect("each design's split is there")];
        points.push(point(plan, (design, latency), demands, &baseline));
    }
    decide::front(&mut points, &baseline);
    decide::fails(plan, &mut points);
    let verdict = decide::decide(plan, &points, &baseline);
    let best = verdict.best.map(|index| &points[index]);
    let at = |best: &Point| splits.iter().position(|split| *split == best.design.split());
    let swings = best.map_or_else(Vec::new, |best| {
        let demands = &demands[at(best).expect("each design's split is there")];
        cost::swings(plan, best, &baseline, demands, &packed)
    });
    let break_even = best.map_or_else(Vec::new, |best| cost::break_even(plan, best, &baseline));
    let claim = best.filter(|_| verdict.pool).map(|best| Claim::of(plan, best, verdict.best));
    let mut answer = Answer {
        seeds,
        trace_hash,
        baseline,
        points,
        verdict,
        swings,
        break_even,
        claim,
        checks: Vec::new(),
        live,
    };
    let others = plan.run.first_seed.wrapping_add(u64::from(plan.run.seeds));
    answer.checks = confirm::confirm(plan, &answer, others, progress)?;
    Ok(answer)
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

fn baseline(plan: &Plan, packed: &[(Packed, u64)], latencies: &Latencies) -> Baseline {
    let confidence = plan.run.confidence_percent;
    let percent = plan.capacity.percentile;
    let of = |value: fn(&Packed) -> f64| -> Vec<f64> {
        packed.iter().map(|(one, _)| 100.0 * value(one)).collect()
    };
    let stranded_by_seed = of(|one| one.stranded);
    let refused = of(|one| f64::from(one.refused) / f64::from((one.vms + one.refused).max(1)));
    let by_seed = |(one, _): &(Packed, u64)| right_mib(plan, &mut one.used_mib.clone(), percent);
    let mut all: Vec<u64> = packed.iter().flat_map(|(one, _)| one.used_mib.clone()).collect();
    let right = right_mib(plan, &mut all, percent);
    let price = plan.prices.machine_dram.amount;
    let latency = |(pod, by_seed): &(u16, Vec<Latency>)| (*pod, estimates(by_seed, confidence));
    Baseline {
        stranded_percent: Estimate::of(&stranded_by_seed, confidence),
        used_percent: Estimate::of(&of(|one| one.used), confidence),
        refused_percent: Estimate::of(&refused, confidence),
        right_mib: right,
        cost: cost::gib(right) * price,
        cost_as_bought: plan.machines.memory.gib() * price,
        latency: latencies.local.iter().map(latency).collect(),
        right_by_seed: packed.iter().map(by_seed).collect(),
        stranded_by_seed,
        latency_by_seed: latencies.local.clone(),
    }
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

fn point(
    plan: &Plan,
    (design, latency): (Design, Vec<Latency>),
    demands: &[Demand],
    baseline: &Baseline,
) -> Point {
    let (split, confidence) = (design.split(), plan.run.confidence_percent);
    let (percent, spare) = (plan.capacity.percentile, plan.capacity.n_plus_1);
    let all = |without: Option<usize>| -> Vec<u64> {
        let others = demands.iter().enumerate().filter(|(seed, _)| Some(*seed) != without);
        others.flat_map(|(_, demand)| demand.pod_mib.iter().copied()).collect()
    };
    let sized = |mut samples: Vec<u64>| {
        let demand = percentile(&mut samples, percent);
        let (size, bought) = pool_mib(plan, &split, demand, spare);
        (demand, size, bought)
    };
    let (demand_mib, size, pools_bought) = sized(all(None));
    let serving = u64::from(if spare { pools_bought - 1 } else { pools_bought });
    let local = local_mib(plan, design.local_percent);
    let mut by_seed = BySeed { latency, ..BySeed::default() };
    for (seed, demand) in demands.iter().enumerate() {
        let (_, from_others, _) = sized(all(Some(seed)));
        by_seed.over_percent.push(over_percent(&demand.pod_mib, serving * from_others));
        let (_, own, _) = sized(demand.pod_mib.clone());
        by_seed.pool_mib.push(own);
        let cost = Cost::of(plan, &design, (local, own, pools_bought)).sum();
        let none = cost::gib(baseline.right_by_seed[seed]) * plan.prices.machine_dram.amount;
        by_seed.saving_percent.push(100.0 * (none - cost) / none.max(f64::MIN_POSITIVE));
    }
    let saving_percent = Estimate::of(&by_seed.saving_percent, confidence);
    let saving_percent =
        saving_percent.in_steps(&cost::steps(plan, &design, pools_bought, baseline));
    let seeds = demands.len() as f64;
    let most = |of: fn(&Blast) -> u32| demands.iter().map(|one| of(&one.blast)).max().unwrap_or(0);
    let mean =
        |of: fn(&Blast) -> f64| demands.iter().map(|one| of(&one.blast)).sum::<f64>() / seeds;
    Point {
        label: design.label(plan),
        local_mib: local,
        pools_bought,
        pool_mib: size,
        demand_mib,
        over_percent: Estimate::of(&by_seed.over_percent, confidence),
        blast: Blast {
            machines_mean: mean(|blast| blast.machines_mean),
            machines_max: most(|blast| blast.machines_max),
            vms_mean: mean(|blast| blast.vms_mean),
            vms_max: most(|blast| blast.vms_max),
        },
        cost: Cost::of(plan, &design, (local, size, pools_bought)),
        saving_percent,
        latency: estimates(&by_seed.latency, confidence),
        is_on_front: false,
        fails: Vec::new(),
        design,
        by_seed,
    }
}
