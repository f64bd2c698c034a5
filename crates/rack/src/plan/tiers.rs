//! What each kind of memory in a plan takes and carries when nothing else uses it, and the source.

use super::input::Plan;
use crate::model::config::{ConfigError, Preset};
use crate::model::media::Media;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierFacts {
    /// Its name in the plan; the machines' own memory is `own`.
    pub tier: String,
    /// Of its interconnect; none of the machines' own memory.
    pub preset: Option<Preset>,
    /// A line's request and the line on the interconnect, ns; 0 for the machines' own memory.
    pub round_trip_ns: f64,
    /// The memory behind it, ns.
    pub memory_ns: f64,
    /// Of one link in each direction, GB/s of packets.
    pub link_gbytes_per_s: Option<f64>,
    /// Of all channels of a pool or machine, GB/s of lines.
    pub memory_gbytes_per_s: f64,
    pub source: String,
}

impl TierFacts {
    /// A read of a line when nothing else is under way, ns.
    pub fn read_ns(&self) -> f64 {
        self.round_trip_ns + self.memory_ns
    }
}

/// The memory of a pool or machine.
#[derive(Clone, Copy)]
struct MemorySpec<'a> {
    name: &'a str,
    channels: u16,
}

fn facts(
    tier: &str,
    preset: Option<Preset>,
    memory: MemorySpec<'_>,
    ports: u64,
) -> Result<TierFacts, ConfigError> {
    let fabric = preset.map(|preset| preset.fabric(ports));
    let media = Media::new(memory.name, "pool_memory")?;
    let source = preset.map_or(String::new(), |preset| format!("{}; ", preset.source()));
    Ok(TierFacts {
        tier: tier.to_owned(),
        preset,
        round_trip_ns: fabric.map_or(0.0, |fabric| fabric.round_trip().as_ns_f64()),
        memory_ns: media.idle_read().as_ns_f64(),
        link_gbytes_per_s: fabric.map(|fabric| fabric.nic_rate.gbps as f64 / 8.0),
        memory_gbytes_per_s: f64::from(memory.channels) * media.gbytes_per_s(),
        source: source + Media::source(memory.name),
    })
}

impl Plan {
    /// The machines' own memory, then each kind of pool.
    ///
    /// # Panics
    /// If a memory has no meaning, which reading the plan has refused.
    pub fn tier_facts(&self) -> Vec<TierFacts> {
        let machines = &self.machines;
        let own = MemorySpec { name: &machines.local_memory, channels: machines.local_channels };
        let sweep = &self.sweep;
        let most = |list: &[u16]| u64::from(list.iter().copied().max().unwrap_or(1));
        let ports = most(&sweep.pod_machines) + most(&sweep.pools);
        let tiers = self.tiers.iter().map(|tier| {
            let pool = MemorySpec { name: &tier.pool_memory, channels: tier.pool_channels };
            facts(&tier.name, Some(tier.preset), pool, ports)
        });
        let all: Result<Vec<TierFacts>, ConfigError> =
            std::iter::once(facts("own", None, own, 1)).chain(tiers).collect();
        all.expect("reading the plan looked at all memories")
    }
}
