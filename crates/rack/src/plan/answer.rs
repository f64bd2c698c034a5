//! From a plan to its answer.

use super::cache::CacheAnswer;
use super::capacity::{self, Blast, Demand, local_mib};
use super::confirm::{self, Check, Claim, Trial};
use super::cost::{self, Cost, Sizes};
use super::decide::{self, Verdict};
use super::design::{Design, Split};
use super::input::{CacheQuestion, Plan};
use super::packing::{Packed, SeedPacking, packings};
use super::performance::{Latencies, Latency, simulate};
use super::point::{Baseline, BySeed, Point, estimates, over_percent, pool_mib, right_mib};
use super::sensitivity::{self, BreakEven, Swing};
use super::stats::Estimate;
use super::{PlanError, Progress, side_by_side};
use crate::live::{self, Recording};
use rackpool_stats::sample::percentile;
use xxhash_rust::xxh3::xxh3_64;

/// What comes out of a plan.
#[derive(Clone, Debug)]
pub struct Answer {
    pub seeds: Vec<u64>,
    /// Of all traces: virtual machines of each seed, and what programs access.
    pub trace_hash: u64,
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
    /// Memories of a cache, if the plan asks for them.
    pub cache: Option<CacheAnswer>,
    /// A running pool, if the plan names its recording.
    pub live: Option<live::Report>,
}

/// Of each split, then each seed: the demand.
fn demands(
    plan: &Plan,
    splits: &[Split],
    packings: &[SeedPacking],
    progress: &Progress<'_>,
) -> Result<Vec<Vec<Demand>>, PlanError> {
    let count = splits.len() * packings.len();
    let all = side_by_side(count, "asking pools for memory", progress, |index| {
        let (split, one) = (index / packings.len(), &packings[index % packings.len()]);
        Ok(capacity::demand(&one.packed, plan, &splits[split], one.seed))
    })?;
    Ok(all.chunks(packings.len()).map(<[Demand]>::to_vec).collect())
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
    let packings = packings(plan, &seeds, progress)?;
    let demands = demands(plan, &splits, &packings, progress)?;
    let latencies = simulate(plan, &designs, &seeds, progress)?;
    let hashes = packings.iter().map(|one| one.trace_hash).chain([latencies.trace_hash]);
    let trace_hash = xxh3_64(&hashes.flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
    let baseline = baseline(plan, &packings, &latencies);
    let mut points: Vec<Point> = Vec::new();
    for (design, latency) in designs.into_iter().zip(latencies.designs) {
        let at = splits.iter().position(|split| *split == design.split());
        let demands = &demands[at.expect("each design's split is there")];
        points.push(point(plan, SimulatedDesign { design, latency }, demands, &baseline));
    }
    decide::front(&mut points, &baseline);
    decide::fails(plan, &mut points);
    let verdict = decide::decide(plan, &points, &baseline);
    let best = verdict.best.map(|index| &points[index]);
    let at = |best: &Point| splits.iter().position(|split| *split == best.design.split());
    let swings = best.map_or_else(Vec::new, |best| {
        let demands = &demands[at(best).expect("each design's split is there")];
        sensitivity::swings(plan, best, &baseline, demands, &packings)
    });
    let break_even =
        best.map_or_else(Vec::new, |best| sensitivity::break_even(plan, best, &baseline));
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
        cache: plan.cache.as_ref().map(CacheQuestion::answer),
        live,
    };
    if let Some(claim) = &answer.claim {
        let first_seed = plan.run.first_seed.wrapping_add(u64::from(plan.run.seeds));
        let trial = Trial { claim, point: &answer.points[claim.point], first_seed };
        answer.checks = confirm::confirm(plan, trial, progress)?;
    }
    Ok(answer)
}

fn baseline(plan: &Plan, packings: &[SeedPacking], latencies: &Latencies) -> Baseline {
    let confidence = plan.run.confidence_percent;
    let percent = plan.capacity.percentile;
    let of = |value: fn(&Packed) -> f64| -> Vec<f64> {
        packings.iter().map(|one| 100.0 * value(&one.packed)).collect()
    };
    let stranded_by_seed = of(|one| one.stranded);
    let refused = of(|one| f64::from(one.refused) / f64::from((one.vms + one.refused).max(1)));
    let by_seed = |one: &SeedPacking| right_mib(plan, &mut one.packed.used_mib.clone(), percent);
    let used = packings.iter().flat_map(|one| one.packed.used_mib.iter().copied());
    let mut all: Vec<u64> = used.collect();
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
        right_by_seed: packings.iter().map(by_seed).collect(),
        stranded_by_seed,
        latency_by_seed: latencies.local.clone(),
    }
}

/// A design with its latencies under each seed.
struct SimulatedDesign {
    design: Design,
    latency: Vec<Latency>,
}

fn point(
    plan: &Plan,
    simulated: SimulatedDesign,
    demands: &[Demand],
    baseline: &Baseline,
) -> Point {
    let SimulatedDesign { design, latency } = simulated;
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
        let sizes = Sizes { local_mib: local, pool_mib: own, pools_bought };
        let cost = Cost::of(plan, &design, sizes).sum();
        let none = cost::gib(baseline.right_by_seed[seed]) * plan.prices.machine_dram.amount;
        by_seed.saving_percent.push(100.0 * (none - cost) / none.max(f64::MIN_POSITIVE));
    }
    let saving_percent = Estimate::of(&by_seed.saving_percent, confidence);
    let saving_percent =
        saving_percent.in_steps(&sensitivity::steps(plan, &design, pools_bought, baseline));
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
        cost: Cost::of(plan, &design, Sizes { local_mib: local, pool_mib: size, pools_bought }),
        saving_percent,
        latency: estimates(&by_seed.latency, confidence),
        is_on_front: false,
        fails: Vec::new(),
        design,
        by_seed,
    }
}
