//! How much a design's saving moves with what is not certain, and at which prices it would be 0.

use super::capacity::Demand;
use super::cost::{Cost, PARTS, Sizes, gib, prices, quantities};
use super::design::Design;
use super::input::Plan;
use super::packing::SeedPacking;
use super::point::{Baseline, Point, pool_mib, right_mib};
use rackpool_stats::sample::percentile;
use serde::Serialize;

/// How the saving moves with one thing that is not certain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swing {
    pub what: String,
    /// Its low and its high value, as text with units.
    pub range: [String; 2],
    /// The saving at these, percent.
    pub saving_percent: [f64; 2],
}

/// A price at which pooling saves nothing, all others as in the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BreakEven {
    pub what: &'static str,
    /// A GiB or a piece.
    pub per: &'static str,
    pub amount: f64,
    /// Where the saving is 0; none if no price of 0 or more does that.
    pub at: Option<f64>,
    /// Pooling saves at prices above that; else below.
    pub saves_above: bool,
}

/// Saving, percent, of so many of each thing against so much memory without pools.
fn saving(counts: &[f64; 5], prices: &[f64; 5], right_mib: u64) -> f64 {
    let none = gib(right_mib) * prices[0];
    let cost: f64 = counts.iter().zip(prices).map(|(count, price)| count * price).sum();
    100.0 * (none - cost) / none.max(f64::MIN_POSITIVE)
}

/// What one step of a machine's memory without pools, and one of a pool's, is of the saving,
/// percent.
pub(super) fn steps(plan: &Plan, design: &Design, bought: u16, baseline: &Baseline) -> [f64; 2] {
    let none = baseline.cost.max(f64::MIN_POSITIVE);
    let machine = gib(plan.machines.memory_step.mib()) * plan.prices.machine_dram.amount;
    let pool_mib = plan.capacity.pool_step.mib();
    let sizes = Sizes { local_mib: 0, pool_mib, pools_bought: bought };
    let pool = Cost::of(plan, design, sizes).pool_dram;
    [100.0 * machine / none, 100.0 * pool / none]
}

/// The tornado of a design, widest first.
pub(super) fn swings(
    plan: &Plan,
    best: &Point,
    baseline: &Baseline,
    demands: &[Demand],
    packings: &[SeedPacking],
) -> Vec<Swing> {
    let split = best.design.split();
    let sizes = best.sizes();
    let (counts, prices) = (quantities(plan, &best.design, sizes), prices(plan, &best.design));
    let amounts = prices.map(|(amount, ..)| amount);
    let mut all: Vec<Swing> = (0..PARTS.len())
        .map(|index| {
            let (_, low, high) = prices[index];
            let at = |price: f64| {
                let mut changed = amounts;
                changed[index] = price;
                saving(&counts, &changed, baseline.right_mib)
            };
            Swing {
                what: format!("price of {}", PARTS[index]),
                range: [low, high].map(|price| format!("{price:.2} {}", plan.currency)),
                saving_percent: [at(low), at(high)],
            }
        })
        .collect();
    let risk = 100.0 - plan.capacity.percentile;
    let resized = |percent: f64, spare: bool| {
        let mut pods: Vec<u64> = demands.iter().flat_map(|one| one.pod_mib.clone()).collect();
        let used = packings.iter().flat_map(|one| one.packed.used_mib.iter().copied());
        let mut used: Vec<u64> = used.collect();
        let (pool_mib, pools_bought) =
            pool_mib(plan, &split, percentile(&mut pods, percent), spare);
        let counts = quantities(plan, &best.design, Sizes { pool_mib, pools_bought, ..sizes });
        saving(&counts, &amounts, right_mib(plan, &mut used, percent))
    };
    let spare = plan.capacity.n_plus_1;
    if risk > 0.0 {
        let percents = [100.0 - (2.0 * risk).min(50.0), 100.0 - risk / 2.0];
        all.push(Swing {
            what: "percentile of demand that is bought".to_owned(),
            range: percents.map(|percent| format!("{percent} %")),
            saving_percent: percents.map(|percent| resized(percent, spare)),
        });
    }
    all.push(Swing {
        what: "a spare pool in each pod".to_owned(),
        range: ["no".to_owned(), "yes".to_owned()],
        saving_percent: [false, true].map(|spare| resized(plan.capacity.percentile, spare)),
    });
    let width = |swing: &Swing| (swing.saving_percent[1] - swing.saving_percent[0]).abs();
    all.sort_by(|a, b| width(b).total_cmp(&width(a)));
    all
}

pub(super) fn break_even(plan: &Plan, best: &Point, baseline: &Baseline) -> Vec<BreakEven> {
    let mut counts = quantities(plan, &best.design, best.sizes()).map(|count| -count);
    let amounts = prices(plan, &best.design).map(|(amount, ..)| amount);
    // What is saved in all is a sum of prices times numbers: without pools this much is bought.
    counts[0] += gib(baseline.right_mib);
    let saved: f64 = counts.iter().zip(amounts).map(|(count, amount)| count * amount).sum();
    let of = |index: usize| {
        let at = amounts[index] - saved / counts[index];
        BreakEven {
            what: PARTS[index],
            per: if index < 2 { "GiB" } else { "piece" },
            amount: amounts[index],
            at: (counts[index] != 0.0 && at >= 0.0).then_some(at),
            saves_above: counts[index] > 0.0,
        }
    };
    (0..PARTS.len()).map(of).collect()
}
