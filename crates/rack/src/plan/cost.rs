//! What a design costs a machine at the plan's prices.

use super::design::Design;
use super::input::Plan;
use crate::model::config::Preset;
use serde::Serialize;

/// Parts of what a design costs a machine, in the plan's currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    pub machine_dram: f64,
    pub pool_dram: f64,
    pub pools: f64,
    /// Links of machines and pools.
    pub links: f64,
    pub switch_ports: f64,
}

/// Names of the parts of [`Cost`].
pub(super) const PARTS: [&str; 5] =
    ["machine memory", "pool memory", "pools", "links", "switch ports"];

/// What is bought of a design: memory of a machine and of each pool, and pools of a pod.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub local_mib: u64,
    pub pool_mib: u64,
    pub pools_bought: u16,
}

/// How many of each priced thing a machine's share is, in the order of [`PARTS`].
/// Without a switch there are links between each machine and each pool, both ends counted.
pub(super) fn quantities(plan: &Plan, design: &Design, sizes: Sizes) -> [f64; 5] {
    let Sizes { local_mib, pool_mib, pools_bought } = sizes;
    let (machines, bought) = (f64::from(design.pod_machines), f64::from(pools_bought));
    let (ends, ports) = match plan.tiers[design.tier].preset {
        Preset::CxlDirect => (2.0 * machines * bought, 0.0),
        _ => (machines + bought, machines + bought),
    };
    let a_machine = f64::from(design.links) / machines;
    let (links, ports) = (ends * a_machine, ports * a_machine);
    [gib(local_mib), bought * gib(pool_mib) / machines, bought / machines, links, ports]
}

/// Prices in the order of [`PARTS`], each as amount, low and high.
pub(super) fn prices(plan: &Plan, design: &Design) -> [(f64, f64, f64); 5] {
    let tier = &plan.tiers[design.tier].prices;
    [&plan.prices.machine_dram, &tier.pool_dram, &tier.pool, &tier.link, &tier.switch_port].map(
        |price| {
            let (low, high) = price.range();
            (price.amount, low, high)
        },
    )
}

impl Cost {
    pub(super) fn of(plan: &Plan, design: &Design, sizes: Sizes) -> Cost {
        let (counts, prices) = (quantities(plan, design, sizes), prices(plan, design));
        let part = |index: usize| counts[index] * prices[index].0;
        Cost {
            machine_dram: part(0),
            pool_dram: part(1),
            pools: part(2),
            links: part(3),
            switch_ports: part(4),
        }
    }

    /// All parts in the order of their names.
    pub fn parts(&self) -> [f64; 5] {
        [self.machine_dram, self.pool_dram, self.pools, self.links, self.switch_ports]
    }

    pub fn sum(&self) -> f64 {
        self.parts().iter().sum()
    }
}

pub(super) fn gib(mib: u64) -> f64 {
    mib as f64 / 1024.0
}
