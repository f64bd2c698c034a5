//! What to do: the front of cost against p99, which designs meet the goals, and the paragraph.

use super::cost::gib;
use super::input::Plan;
use super::point::{Baseline, Point};

/// Where p99 and the mean are in [`Point::latency`].
pub(super) const MEAN: usize = 0;
pub(super) const P99: usize = 2;
pub(super) const REMOTE_PERCENT: usize = 6;
pub(super) const LINK_PERCENT: usize = 7;

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Pool, as the best design does; else do not.
    pub pool: bool,
    /// The cheapest design that meets the goals, or else the fastest one.
    pub best: Option<usize>,
    /// In one paragraph, with figures.
    pub text: String,
}

/// Marks the points that nothing beats in both cost and p99, all local memory included.
pub(super) fn front(points: &mut [Point], baseline: &Baseline) {
    let mut all: Vec<(f64, f64)> =
        points.iter().map(|point| (point.cost.sum(), point.latency[P99].mean)).collect();
    all.extend(baseline.latency.iter().map(|(_, latency)| (baseline.cost, latency[P99].mean)));
    for (index, point) in points.iter_mut().enumerate() {
        let (cost, p99) = all[index];
        let beats = |other: &(f64, f64)| {
            other.0 <= cost && other.1 <= p99 && (other.0 < cost || other.1 < p99)
        };
        point.is_on_front = !all.iter().any(beats);
    }
}

/// Says of each point which goals it misses, at the upper ends of its intervals.
pub(super) fn fails(plan: &Plan, points: &mut [Point]) {
    let goals = &plan.goals;
    for point in points {
        let mut late = |which: usize, what: &str, most: u64| {
            let high = point.latency[which].high;
            if high > most as f64 {
                point.fails.push(format!("{what} up to {high:.0} ns, more than {most}"));
            }
        };
        late(P99, "p99", goals.p99_max.0);
        if let Some(most) = goals.mean_max {
            late(MEAN, "mean", most.0);
        }
        if let Some(most) = goals.blast_machines_max
            && point.blast.machines_max > most
        {
            let hit = point.blast.machines_max;
            point.fails.push(format!("a pool's failure hits {hit} machines, more than {most}"));
        }
    }
}

pub(super) fn decide(plan: &Plan, points: &[Point], baseline: &Baseline) -> Verdict {
    let cheapest = |a: &usize, b: &usize| {
        let key = |index: usize| (points[index].cost.sum(), points[index].latency[P99].mean);
        let (a, b) = (key(*a), key(*b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    let fastest = |a: &usize, b: &usize| {
        points[*a].latency[P99].mean.total_cmp(&points[*b].latency[P99].mean)
    };
    let meets = (0..points.len()).filter(|index| points[*index].fails.is_empty());
    let Some(best) = meets.min_by(cheapest) else {
        let best = (0..points.len()).min_by(fastest);
        let text = best.map_or_else(String::new, |index| none_meets(plan, points, index));
        return Verdict { pool: false, best, text: text + &without(plan, baseline) };
    };
    let saving = points[best].saving_percent;
    let bought = bought_percent(&points[best], baseline);
    let least = saving.low.min(bought);
    let pool = least >= plan.goals.saving_min_percent && least > 0.0;
    let said = match pool {
        true => pooled(plan, &points[best], baseline),
        false => not_worth_it(plan, points, best, baseline) + &without(plan, baseline),
    };
    Verdict { pool, best: Some(best), text: said }
}

/// The saving of the sizes that are bought, which come from all seeds together; an interval is
/// of each seed's own.
fn bought_percent(point: &Point, baseline: &Baseline) -> f64 {
    100.0 * (1.0 - point.cost.sum() / baseline.cost)
}

fn none_meets(plan: &Plan, points: &[Point], fastest: usize) -> String {
    let point = &points[fastest];
    format!(
        "Do not pool: none of the {} designs meets the goals. The fastest one ({}) has a p99 of \
         {:.0} ns, and {}; wanted is {} at most. ",
        points.len(),
        point.label,
        point.latency[P99].mean,
        point.fails.join("; "),
        plan.goals.p99_max
    )
}

fn not_worth_it(plan: &Plan, points: &[Point], best: usize, baseline: &Baseline) -> String {
    let (point, currency) = (&points[best], &plan.currency);
    let saving = point.saving_percent;
    let overhead = point.cost.pools + point.cost.links + point.cost.switch_ports;
    format!(
        "Do not pool: the cheapest of the {} designs that meet the goals ({}) costs {:.0} \
         {currency} a machine, {overhead:.0} of it for pools, links and switch ports; that is a \
         saving of {:.1} %, of each seed by itself {:.1} % ({:.1} to {:.1} % at {} % confidence), \
         and {} % at least are wanted. ",
        points.iter().filter(|point| point.fails.is_empty()).count(),
        point.label,
        point.cost.sum(),
        bought_percent(point, baseline),
        saving.mean,
        saving.low,
        saving.high,
        plan.run.confidence_percent,
        plan.goals.saving_min_percent
    )
}

fn without(plan: &Plan, baseline: &Baseline) -> String {
    let (right, today) = (gib(baseline.right_mib), plan.machines.memory.gib());
    let currency = &plan.currency;
    let advice = match right < today {
        true => format!("buy machines with {right:.0} GiB instead of {today:.0} GiB"),
        false => format!("keep machines of {right:.0} GiB"),
    };
    format!(
        "{:.1} % of the memory is stranded and {:.1} % in use; {advice}, for {:.0} {currency} a \
         machine, which suffices {} % of the time.",
        baseline.stranded_percent.mean,
        baseline.used_percent.mean,
        baseline.cost,
        plan.capacity.percentile
    )
}

fn pooled(plan: &Plan, point: &Point, baseline: &Baseline) -> String {
    let (design, currency, saving) = (&point.design, &plan.currency, point.saving_percent);
    let spare = if plan.capacity.n_plus_1 { ", one of them to spare" } else { "" };
    format!(
        "Pool: give each machine {:.0} GiB and each {} machines {} pools of {:.0} GiB ({}{spare}), \
         placed by {}. That costs {:.0} {currency} a machine against {:.0} for machines of {:.0} \
         GiB without pools, a saving of {:.1} %; of each seed by itself it is {:.1} % ({:.1} to \
         {:.1} % at {} % confidence). The p99 of all accesses is {:.0} ns (up to {:.0}; {} \
         allowed), {:.0} % of them go to pools. Pools want more than there is {:.2} % of the time \
         (up to {:.2} %), and the failure of one takes along memory of up to {} machines. Without \
         pools {:.1} % of the memory is stranded.",
        gib(point.local_mib),
        design.pod_machines,
        point.pools_bought,
        gib(point.pool_mib),
        plan.tiers[design.tier].name,
        design.placement,
        point.cost.sum(),
        baseline.cost,
        gib(baseline.right_mib),
        bought_percent(point, baseline),
        saving.mean,
        saving.low,
        saving.high,
        plan.run.confidence_percent,
        point.latency[P99].mean,
        point.latency[P99].high,
        plan.goals.p99_max,
        point.latency[REMOTE_PERCENT].mean,
        point.over_percent.mean,
        point.over_percent.high,
        point.blast.machines_max,
        baseline.stranded_percent.mean
    )
}
