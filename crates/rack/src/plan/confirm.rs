//! What an answer claims, tried with seeds that had no part in it.

use super::capacity::demand;
use super::cost::{Cost, Sizes, gib};
use super::decide::P99;
use super::input::Plan;
use super::packing::packings;
use super::performance::simulate;
use super::point::{Point, estimates, over_percent, pool_mib, right_mib};
use super::{PlanError, Progress, side_by_side};
use rackpool_stats::sample::percentile;
use serde::Serialize;

/// Histograms know a time to that part of it, either way.
const BUCKET: f64 = 1.0 / 64.0;

/// What is said of a design: bounds for the means of as many other seeds, at the plan's
/// confidence. Sizes are those that are to be bought.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Which point of the answer.
    pub point: usize,
    /// The saving is this at least, percent.
    pub saving_percent_min: f64,
    /// Pods want more than their pools have in at most this part of the time, percent: never less
    /// than the risk that the pools were bought for, since a few seeds without any such time do not
    /// say that there is none.
    pub over_percent_max: f64,
    /// The p99 is this at most, ns.
    pub p99_ns_max: f64,
}

impl Claim {
    pub(super) fn of(plan: &Plan, point: &Point, index: Option<usize>) -> Claim {
        let (seeds, risk) = (plan.run.seeds, 100.0 - plan.capacity.percentile);
        Claim {
            point: index.expect("a claim is of a point"),
            saving_percent_min: point.saving_percent.of_others(seeds).0,
            over_percent_max: point.over_percent.of_others(seeds).1.max(risk),
            p99_ns_max: point.latency[P99].of_others(seeds).1 * (1.0 + BUCKET),
        }
    }
}

/// One thing that was claimed, and what was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    pub what: &'static str,
    pub claimed: f64,
    /// The mean of the other seeds.
    pub seen: f64,
    pub holds: bool,
}

/// A claim to try with the seeds from `first_seed` on.
#[derive(Clone, Copy)]
pub(super) struct Trial<'a> {
    pub claim: &'a Claim,
    pub point: &'a Point,
    pub first_seed: u64,
}

pub(super) fn confirm(
    plan: &Plan,
    trial: Trial<'_>,
    progress: &Progress<'_>,
) -> Result<Vec<Check>, PlanError> {
    let Trial { claim, point, first_seed } = trial;
    let seeds: Vec<u64> =
        (0..u64::from(plan.run.seeds)).map(|n| first_seed.wrapping_add(n)).collect();
    let packings = packings(plan, &seeds, progress)?;
    let split = point.design.split();
    let spare = u16::from(plan.capacity.n_plus_1);
    let room = u64::from(point.pools_bought - spare) * point.pool_mib;
    let demands = side_by_side(seeds.len(), "confirming", progress, |index| {
        Ok(demand(&packings[index].packed, plan, &split, seeds[index]))
    })?;
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / seeds.len() as f64;
    let over = mean(&mut demands.iter().map(|one| over_percent(&one.pod_mib, room)));
    // What the same seeds would have asked for, as the saving of the claim is computed.
    let saving = mean(&mut packings.iter().zip(&demands).map(|(one, demand)| {
        let percent = plan.capacity.percentile;
        let right = right_mib(plan, &mut one.packed.used_mib.clone(), percent);
        let wanted = percentile(&mut demand.pod_mib.clone(), percent);
        let (pool_mib, pools_bought) = pool_mib(plan, &split, wanted, spare == 1);
        let sizes = Sizes { pool_mib, pools_bought, ..point.sizes() };
        let cost = Cost::of(plan, &point.design, sizes).sum();
        let none = gib(right) * plan.prices.machine_dram.amount;
        100.0 * (none - cost) / none.max(f64::MIN_POSITIVE)
    }));
    let latencies = simulate(plan, &[point.design], &seeds, progress)?;
    let p99 = estimates(&latencies.designs[0], plan.run.confidence_percent)[P99].mean;
    let at_most = |what, claimed, seen| Check { what, claimed, seen, holds: seen <= claimed };
    Ok(vec![
        Check {
            what: "saving, %, at least",
            claimed: claim.saving_percent_min,
            seen: saving,
            holds: saving >= claim.saving_percent_min,
        },
        at_most("time in which pools want more than they have, %", claim.over_percent_max, over),
        at_most("p99, ns", claim.p99_ns_max, p99),
        at_most("p99 against the goal, ns", plan.goals.p99_max.0 as f64, p99),
    ])
}
