//! What a simulated rack is made of and what runs in it, as a file says it.

use crate::net::config::{Fabric, PORTS_MAX};
use crate::source::{Pattern, TIME_MAX};
use rackpool_core::placement::{HotPages, Policy};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Which constants hold where the file says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The published simulator's constants in the units in which its code uses them.
    DracksimFaithful,
    /// The same constants with true units, sizes and bounds, and with the times that its
    /// trace-driven variant leaves out (page faults, the manager, the map).
    #[default]
    Corrected,
    /// `corrected`, with the pools behind a CXL switch and CXL controllers.
    Cxl,
    /// The same without a switch: a link from each machine to each pool.
    CxlDirect,
    /// `corrected`, with each line by a READ or WRITE of RDMA cards, microseconds each.
    Rdma,
}

impl Preset {
    /// All, in the order of the help.
    pub const ALL: [Preset; 5] =
        [Preset::DracksimFaithful, Preset::Corrected, Preset::Cxl, Preset::CxlDirect, Preset::Rdma];

    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::DracksimFaithful => "dracksim-faithful",
            Preset::Corrected => "corrected",
            Preset::Cxl => "cxl",
            Preset::CxlDirect => "cxl-direct",
            Preset::Rdma => "rdma",
        }
    }

    /// The source of its interconnect's latencies.
    pub fn source(self) -> &'static str {
        match self {
            Preset::DracksimFaithful => "published code of DRackSim with its defects of units",
            Preset::Corrected => {
                "published code of DRackSim with true units: cards and a switch that forward lines \
                 by themselves, no network that can be bought and no RDMA"
            }
            Preset::Cxl => {
                "assumed, not measured: a CXL switch of 70 ns and ports of 25 ns, there and back, \
                 eight lanes of 32 GT/s"
            }
            Preset::CxlDirect => {
                "assumed, not measured: CXL ports of 25 ns there and back, eight lanes of 32 GT/s, \
                 no switch"
            }
            Preset::Rdma => {
                "one READ of 64 B as `rackpool sim ladder` computes it on rcmp-testbed, work of \
                 the processor and far memory included"
            }
        }
    }

    pub fn fabric(self, ports: u64) -> Fabric {
        match self {
            Preset::DracksimFaithful => Fabric::dracksim_faithful(ports),
            Preset::Corrected => Fabric::corrected(ports),
            Preset::Cxl => Fabric::cxl(ports),
            Preset::CxlDirect => Fabric::cxl_direct(ports),
            Preset::Rdma => Fabric::rdma(ports),
        }
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(name: &str) -> Result<Preset, String> {
        let found = Preset::ALL.into_iter().find(|preset| preset.name() == name);
        let names = || Preset::ALL.map(Preset::name).join(", ");
        found.ok_or_else(|| format!("`{name}` is no preset; there are {}", names()))
    }
}

/// Times of the controller of remote memory and of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A page fault, ns. The published detailed variant has 9,000 cycles of 1 ns.
    pub fault_ns: u64,
    /// What it costs more if the manager is asked, ns: there 10,000.
    pub chunk_ns: u64,
    /// How long the manager is busy with one request, ns: one after the other.
    pub manager_ns: u64,
    /// The map from the node's to the pool's addresses is searched in steps of this length, ps:
    /// ceil(log2(chunks + 1)) of them.
    pub lookup_step_ps: u64,
    /// The second channel's work for each page between racks, ns: a queue pair's round.
    pub rdma_ns: u64,
}

impl Costs {
    const NONE: Costs =
        Costs { fault_ns: 0, chunk_ns: 0, manager_ns: 0, lookup_step_ps: 0, rdma_ns: 0 };
    const CORRECTED: Costs = Costs {
        fault_ns: 9_000,
        chunk_ns: 10_000,
        manager_ns: 200,
        lookup_step_ps: 833,
        rdma_ns: 700,
    };
}

/// When the next access of a node begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Injection {
    /// At its time in the trace, whatever is under way. Source: the published code.
    Open,
    /// At its time in the trace, shifted by all waits so far for one of this many accesses under
    /// way to be over.
    Window(u32),
}

/// How hot remote pages come to the node's own memory, over the second channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hot {
    /// Accesses in a window that make a remote page hot.
    pub accesses_min: u32,
    /// How many times as often as the page that leaves for it.
    pub times_victim: u32,
    /// The window in which accesses are counted, µs.
    pub window_us: u32,
    /// Pages of a node under way at once.
    pub moves_max: u32,
}

impl Hot {
    pub fn rule(&self) -> HotPages {
        HotPages { accesses_min: self.accesses_min, times_victim: self.times_victim }
    }
}

/// Lines that the controller asks for before they are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefetch {
    /// Lines after one that followed its neighbour.
    pub depth: u32,
    /// Lines that the controller keeps, a power of two.
    pub buffer_lines: u32,
    /// From there to the processor, ns.
    pub hit_ns: u64,
}

/// Nodes that run the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub name: String,
    /// How many nodes run it.
    pub nodes: u16,
    pub pattern: Pattern,
    /// Each node begins so much later than the one before it, µs.
    #[serde(default)]
    pub stagger_us: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub name: String,
    /// Where what is not said comes from.
    #[serde(default)]
    pub preset: Preset,
    #[serde(default = "one")]
    pub seed: u64,
    /// Page policy and pool policy.
    pub placement: Policy,
    /// Racks, joined by uplinks; nodes and pools are dealt out to them in turn.
    #[serde(default = "one_rack")]
    pub racks: u16,
    pub pools: u16,
    /// Memory of each node, MiB.
    pub local_mib: u64,
    /// Memory of each pool, MiB.
    pub pool_mib: u64,
    /// What the manager gives out, KiB, a multiple of 4.
    #[serde(default = "chunk_kib")]
    pub chunk_kib: u64,
    /// Each node's accesses, at most.
    pub accesses: u64,
    /// Recorded traces are stretched, all alike, until the pools' links would be used so many
    /// percent of the time by lines if every other access were to a pool. Without it they keep
    /// their own times.
    #[serde(default)]
    pub pool_load_percent: Option<u32>,
    /// End of the simulation, ms of virtual time; accesses that begin later are left out.
    #[serde(default)]
    pub end_ms: Option<u64>,
    /// Nodes' memory: a preset of DRAM, `cxl:NS:GBPS:PRESET`, `constant:NS:GBPS`, `optane100` or
    /// `front:MIB:PRESET:optane100`.
    #[serde(default)]
    pub local_memory: Option<String>,
    #[serde(default)]
    pub pool_memory: Option<String>,
    #[serde(default = "one_channel")]
    pub local_channels: u16,
    #[serde(default = "one_channel")]
    pub pool_channels: u16,
    /// Times of controller and manager.
    #[serde(default)]
    pub costs: Option<Costs>,
    #[serde(default)]
    pub injection: Option<Injection>,
    /// Hot pages come to the node.
    #[serde(default)]
    pub hot: Option<Hot>,
    /// Lines come before they are wanted.
    #[serde(default)]
    pub prefetch: Option<Prefetch>,
    /// A pool takes packets out of its card only as its channels take them. False: its queue has
    /// no bound, as in the published code.
    #[serde(default)]
    pub pool_holds_back: Option<bool>,
    #[serde(default)]
    pub fabric: Option<Fabric>,
    /// Windows of the report's series, µs.
    #[serde(default = "window_us")]
    pub window_us: u64,
    pub workloads: Vec<Workload>,
}

/// Most channels of a node's or a pool's memory.
pub const CHANNELS_MAX: u16 = 64;

fn one() -> u64 {
    1
}

fn one_rack() -> u16 {
    1
}

fn one_channel() -> u16 {
    1
}

fn chunk_kib() -> u64 {
    4096
}

/// 1.5 million cycles of 3.6 GHz are 416.7 µs. Source: Rack-scale disaggregation, figure 2d.
fn window_us() -> u64 {
    417
}

/// A configuration that means nothing. Correct it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not of this form; says line and column.
    #[error("{0}")]
    Text(String),
    /// A field's value cannot be meant.
    #[error("`{field}`: {reason}")]
    Field {
        field: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl Config {
    pub fn from_toml(text: &str) -> Result<Config, ConfigError> {
        let config: Config =
            toml::from_str(text).map_err(|error| ConfigError::Text(error.to_string()))?;
        config.check()?;
        Ok(config)
    }

    pub fn nodes(&self) -> u16 {
        self.workloads.iter().map(|workload| workload.nodes).sum()
    }

    pub fn fabric(&self) -> Fabric {
        let ports = u64::from(self.nodes() + self.pools).max(1);
        self.fabric.unwrap_or_else(|| self.preset.fabric(ports))
    }

    /// Times of controller and manager.
    pub fn costs(&self) -> Costs {
        self.costs.unwrap_or(match self.preset {
            Preset::DracksimFaithful => Costs::NONE,
            _ => Costs::CORRECTED,
        })
    }

    /// When accesses begin. With true units a node can have eight cores' sixteen misses each
    /// under way.
    pub fn injection(&self) -> Injection {
        self.injection.unwrap_or(match self.preset {
            Preset::DracksimFaithful => Injection::Open,
            _ => Injection::Window(8 * 16),
        })
    }

    /// Whether a pool's queue is bounded by its card.
    pub fn pool_holds_back(&self) -> bool {
        self.pool_holds_back.unwrap_or(self.preset != Preset::DracksimFaithful)
    }

    /// The media of nodes and pools.
    pub fn memories(&self) -> [&str; 2] {
        let (local, pool) = match self.preset {
            Preset::DracksimFaithful => ("dracksim", "dracksim"),
            _ => ("ddr4-2400", "ddr4-2400"),
        };
        [self.local_memory.as_deref().unwrap_or(local), self.pool_memory.as_deref().unwrap_or(pool)]
    }

    pub fn chunk_pages(&self) -> u32 {
        (self.chunk_kib / 4) as u32
    }

    /// Virtual time ends: no sum of what is said may come near it.
    fn check_times(&self) -> Result<(), ConfigError> {
        let costs = self.costs();
        let (ps, ns, us) = (1, 1_000, 1_000_000);
        let mut all = vec![
            ("end_ms", self.end_ms.unwrap_or(0), 1_000 * us),
            ("window_us", self.window_us, us),
            ("costs", costs.fault_ns, ns),
            ("costs", costs.chunk_ns, ns),
            ("costs", costs.manager_ns, ns),
            ("costs", costs.lookup_step_ps, ps),
            ("costs", costs.rdma_ns, ns),
            ("prefetch", self.prefetch.map_or(0, |it| it.hit_ns), ns),
        ];
        for workload in &self.workloads {
            let staggered = workload.stagger_us.saturating_mul(workload.nodes.into());
            all.push(("workloads", staggered, us));
        }
        let too_long = |(_, count, unit): &&(&str, u64, u64)| {
            u128::from(*count) * u128::from(*unit) > u128::from(TIME_MAX.0)
        };
        match all.iter().find(too_long) {
            None => Ok(()),
            Some((field, ..)) => {
                let days = TIME_MAX.as_ns() / 86_400_000_000_000;
                let reason = format!("more than {days} days of virtual time");
                Err(ConfigError::Field { field, reason })
            }
        }
    }

    /// Whether all of it can be meant.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field, reason: &str| Err(ConfigError::Field { field, reason: reason.into() });
        let nodes: usize = self.workloads.iter().map(|one| usize::from(one.nodes)).sum();
        let racks = usize::from(self.racks);
        if racks == 0 || racks > usize::from(self.pools) || racks > nodes.max(1) {
            return wrong("racks", "at least 1, and each has a node and a pool");
        }
        if nodes == 0 {
            return wrong("workloads", "at least one node must run something");
        }
        let ports = nodes.div_ceil(racks) + usize::from(self.pools).div_ceil(racks) + racks - 1;
        if ports > PORTS_MAX {
            let reason = format!("{ports} ports of a switch are needed, and it has {PORTS_MAX}");
            return wrong("workloads", &reason);
        }
        if self.chunk_kib == 0 || !self.chunk_kib.is_multiple_of(4) || self.chunk_kib > 1 << 20 {
            return wrong("chunk_kib", "a multiple of 4, up to 1048576");
        }
        if self.pool_mib * 1024 < self.chunk_kib || self.pool_mib > 1 << 24 {
            return wrong("pool_mib", "room for one chunk at least, at most 16 TiB");
        }
        if self.local_mib > 1 << 20 {
            return wrong("local_mib", "at most 1 TiB");
        }
        for (field, count) in [
            ("accesses", self.accesses),
            ("window_us", self.window_us),
            ("local_channels", self.local_channels.into()),
            ("pool_channels", self.pool_channels.into()),
        ] {
            if count == 0 {
                return wrong(field, "not 0");
            }
        }
        if self.local_channels.max(self.pool_channels) > CHANNELS_MAX {
            return wrong("pool_channels", &format!("at most {CHANNELS_MAX} for nodes and pools"));
        }
        self.check_times()?;
        if let Some(problem) = self.fabric().problem() {
            return wrong("fabric", problem);
        }
        if self.pool_load_percent == Some(0) {
            return wrong("pool_load_percent", "not 0");
        }
        if self.injection() == Injection::Window(0) {
            return wrong("injection", "a window of one access at least");
        }
        if let Some(hot) = self.hot
            && (hot.window_us == 0 || hot.moves_max == 0 || hot.accesses_min == 0)
        {
            return wrong("hot", "window_us, moves_max and accesses_min are not 0");
        }
        if let Some(prefetch) = self.prefetch {
            let is_power = prefetch.buffer_lines.is_power_of_two();
            if !is_power || prefetch.depth == 0 || prefetch.depth >= prefetch.buffer_lines {
                return wrong("prefetch", "buffer_lines is a power of two above depth, above 0");
            }
        }
        for workload in &self.workloads {
            if let Some(problem) = workload.pattern.problem() {
                let reason = format!("{}: {problem}", workload.name);
                return Err(ConfigError::Field { field: "workloads", reason });
            }
        }
        Ok(())
    }
}
