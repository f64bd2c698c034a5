//! The points of a sweep: what could be bought.

use super::input::Plan;
use crate::model::Config;
use crate::model::config::Preset;
use rackpool_core::placement::Policy;
use rackpool_sim::rng::{Purpose, Rng};
use serde::Serialize;

/// Something that could be bought.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Design {
    pub pod_machines: u16,
    pub pools: u16,
    /// Links of each machine and pool.
    pub links: u16,
    pub local_percent: u32,
    pub placement: Policy,
    /// Which of the plan's tiers.
    pub tier: usize,
}

/// What the capacity engine must know of a design: links and tiers change nothing there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    pub pod_machines: u16,
    pub pools: u16,
    pub local_percent: u32,
    pub placement: Policy,
}

impl Design {
    /// All of a plan, in a fixed order.
    pub fn all(plan: &Plan) -> Vec<Design> {
        let sweep = &plan.sweep;
        let mut all = Vec::new();
        for tier in 0..plan.tiers.len() {
            for &pod_machines in &sweep.pod_machines {
                for &pools in &sweep.pools {
                    for &links in &sweep.links {
                        for &local_percent in &sweep.local_percent {
                            all.extend(sweep.placement.iter().map(|&placement| Design {
                                pod_machines,
                                pools,
                                links,
                                local_percent,
                                placement,
                                tier,
                            }));
                        }
                    }
                }
            }
        }
        all
    }

    /// What tells it apart in reports.
    pub fn label(&self, plan: &Plan) -> String {
        let Design { pod_machines, pools, links, local_percent, placement, tier } = self;
        let tier = &plan.tiers[*tier].name;
        let plural = |count: u16| if count == 1 { "" } else { "s" };
        format!(
            "{tier}: pods of {pod_machines}, {pools} pool{}, {links} link{}, {local_percent} % \
             local, {placement}",
            plural(*pools),
            plural(*links)
        )
    }

    /// To how many things a machine's links go: one switch, or without one each pool.
    fn links_to_pools(&self, plan: &Plan) -> u16 {
        if plan.tiers[self.tier].preset == Preset::CxlDirect { self.pools } else { 1 }
    }

    /// Its part for the capacity engine.
    pub fn split(&self) -> Split {
        let Design { pod_machines, pools, local_percent, placement, .. } = *self;
        Split { pod_machines, pools, local_percent, placement }
    }

    /// The rack that the performance engine simulates: one pod.
    pub fn config(&self, plan: &Plan, seed: u64) -> Config {
        let tier = &plan.tiers[self.tier];
        let ports = u64::from(self.pod_machines + self.pools);
        let mut fabric = tier.preset.fabric(ports);
        let links = u64::from(self.links) * u64::from(self.links_to_pools(plan));
        fabric.nic_rate.gbps *= links;
        fabric.switch_rate.gbps *= links;
        // `check.rs` has seen to it that this comes out even.
        let local_mib = plan.performance.footprint.mib() * u64::from(self.local_percent) / 100;
        Config {
            name: self.label(plan),
            preset: tier.preset,
            placement: self.placement,
            pools: self.pools,
            local_mib,
            pool_memory: Some(tier.pool_memory.clone()),
            pool_channels: tier.pool_channels,
            fabric: Some(fabric),
            ..everything_local(plan, self.pod_machines, seed)
        }
    }
}

/// The same machines with all memory of their own: what a plan is compared with.
pub fn everything_local(plan: &Plan, pod_machines: u16, seed: u64) -> Config {
    let performance = &plan.performance;
    // From nothing to twice what the plan says, so that seeds differ also where nothing else does.
    let stagger: Vec<u64> = (performance.workloads.iter().zip(0..))
        .map(|(job, index)| {
            Rng::new(seed, Purpose::Shape, index).below(2 * job.stagger.0 / 1_000 + 1)
        })
        .collect();
    let footprint_mib = performance.footprint.mib();
    Config {
        name: "everything local".to_owned(),
        preset: Preset::Corrected,
        seed,
        placement: Policy::default(),
        racks: 1,
        pools: 1,
        local_mib: 1 << 20,
        // Any one pool could hold everything: how much is needed is the other engine's question.
        pool_mib: footprint_mib * 4 * u64::from(pod_machines) + performance.chunk.mib() + 1,
        chunk_kib: performance.chunk.0 >> 10,
        accesses: performance.accesses,
        pool_load_percent: None,
        end_ms: None,
        local_memory: Some(plan.machines.local_memory.clone()),
        pool_memory: None,
        local_channels: plan.machines.local_channels,
        pool_channels: 1,
        costs: None,
        injection: None,
        hot: None,
        prefetch: None,
        pool_holds_back: None,
        fabric: None,
        window_us: 100,
        workloads: plan.workloads(pod_machines, &stagger),
    }
}
