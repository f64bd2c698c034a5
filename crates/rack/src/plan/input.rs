//! A plan's file: what is asked, of which machines, what runs on them, what may be bought at which
//! prices.

use super::PlanError;
use super::locate::Document;
use super::units::{Size, Span};
use crate::model::config::{Preset, Workload};
use crate::source::Pattern;
use crate::trace::packing::Stranding;
use rackpool_core::placement::Policy;
use serde::{Deserialize, Serialize, Serializer};
use std::path::PathBuf;

/// Fewest seeds: with fewer an interval says little.
pub const SEEDS_MIN: u32 = 10;
pub const SEEDS_MAX: u32 = 1000;
/// Most points of a sweep.
pub const DESIGNS_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub name: String,
    /// What prices are in: a word for reports.
    pub currency: String,
    #[serde(default)]
    pub run: SeedRange,
    /// What must hold of what is bought.
    pub goals: Goals,
    pub machines: Machines,
    /// What the capacity engine is asked.
    pub capacity: Capacity,
    /// What the performance engine is asked.
    pub performance: Performance,
    /// What is tried, each list against each other one and against the tiers.
    pub sweep: DesignSweep,
    /// Prices of what is bought also without pools.
    pub prices: Prices,
    pub tiers: Vec<Tier>,
    /// A cache whose memories are to be bought.
    #[serde(default)]
    pub cache: Option<CacheQuestion>,
    #[serde(default)]
    pub live: Option<Live>,
}

/// A running pool that the report is set beside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Live {
    /// What `rackpool plan --from-pool` wrote.
    pub recording: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SeedRange {
    pub seeds: u32,
    /// The first one; the others follow it, and after them those that confirm the plan.
    pub first_seed: u64,
    pub confidence_percent: f64,
}

impl Default for SeedRange {
    fn default() -> SeedRange {
        SeedRange { seeds: SEEDS_MIN, first_seed: 1, confidence_percent: 95.0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goals {
    /// Of 100 accesses 99 are faster, in every workload's sum.
    pub p99_max: Span,
    #[serde(default)]
    pub mean_max: Option<Span>,
    /// Less is not worth it.
    pub saving_min_percent: f64,
    /// Most machines that one pool's failure may hit.
    #[serde(default)]
    pub blast_machines_max: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machines {
    pub count: u32,
    /// Memory of each, as they are bought today.
    pub memory: Size,
    /// In which steps a machine's memory can be bought.
    pub memory_step: Size,
    /// What it is: a preset of DRAM, or `constant:NS:GBPS`.
    pub local_memory: String,
    pub local_channels: u16,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Capacity {
    pub trace: VmTrace,
    /// How often memory in use is looked at.
    pub sample: Span,
    /// Memory is bought so that it suffices so many percent of the time; the rest is the risk.
    pub percentile: f64,
    /// What a virtual machine's memory is given out in.
    pub slice: Size,
    /// In which steps a pool's memory can be bought.
    pub pool_step: Size,
    /// All memory in pools still has room when one pool of a pod has failed.
    pub n_plus_1: bool,
}

/// Where virtual machines come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum VmTrace {
    /// Made, another one for each seed.
    Made {
        /// `little` or `much`.
        stranding: Stranding,
        days: f64,
    },
    /// Tables in the schema of Azure's packing trace; seeds deal machines to pods and break ties.
    Files {
        /// The table of virtual machines.
        vms: PathBuf,
        types: PathBuf,
        /// The kind of machine that they run on.
        machine_kind: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Performance {
    /// Accesses of each machine, at most.
    pub accesses: u64,
    /// What a machine's program touches; the local part of a design is of it.
    pub footprint: Size,
    /// What a pool gives out at once.
    pub chunk: Size,
    /// What runs, dealt out to a pod's machines in turn.
    pub workloads: Vec<Job>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub name: String,
    /// What it accesses, as in `rackpool sim rack`.
    pub pattern: Pattern,
    /// Each machine begins about so much later than the one before; the seed says how much.
    pub stagger: Span,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesignSweep {
    pub pod_machines: Vec<u16>,
    pub pools: Vec<u16>,
    /// Links of each machine and each pool to the switch, used as one of so many times the rate.
    pub links: Vec<u16>,
    /// The local part of memory: in the capacity engine of a machine's memory, in the performance
    /// engine of the footprint.
    pub local_percent: Vec<u32>,
    /// Page and pool policies, by the names of `rackpool master --placement`.
    pub placement: Vec<Policy>,
}

/// Prices of what is bought also without pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    pub machine_dram: Price,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    pub name: String,
    pub preset: Preset,
    /// A preset of DRAM, or `constant:NS:GBPS`.
    pub pool_memory: String,
    pub pool_channels: u16,
    pub prices: TierPrices,
}

/// What a kind of pool costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierPrices {
    pub pool_dram: Price,
    /// A pool without memory and links.
    pub pool: Price,
    /// A link of a machine or a pool: card or port, and cable.
    pub link: Price,
    /// A port of the switch.
    pub switch_port: Price,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheQuestion {
    /// By rising size; straight lines in between, from nothing on.
    pub curve: Vec<HitPoint>,
    /// What a get takes that no memory has.
    pub miss: Span,
    pub mean_max: Span,
    #[serde(default)]
    pub hit_min_percent: f64,
    /// Of gets after a loss of power.
    #[serde(default)]
    pub warm_min_percent: f64,
    /// From the fastest to the slowest.
    pub memories: Vec<PricedMemory>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HitPoint {
    pub size: Size,
    pub hit_percent: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PricedMemory {
    pub name: String,
    /// What a hit in it takes.
    pub hit: Span,
    /// In which steps it can be bought, and how much at most.
    pub step: Size,
    pub most: Size,
    /// What is in it is still there after a loss of power.
    #[serde(default)]
    pub persists: bool,
    pub price: Price,
}

impl PricedMemory {
    /// How many steps of it can be bought.
    pub(super) fn steps(&self) -> u64 {
        self.most.0 / self.step.0
    }
}

/// A price. There is none that is built in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// What it costs, in the plan's currency.
    pub amount: f64,
    /// For what: `GiB` of memory, `piece` of all else.
    pub per: String,
    /// When that was so: year, month, day.
    #[serde(serialize_with = "as_text")]
    pub date: toml::value::Datetime,
    pub source: String,
    /// It may be so low; four fifths of the amount if it is not said.
    #[serde(default)]
    pub low: Option<f64>,
    /// It may be so high; six fifths.
    #[serde(default)]
    pub high: Option<f64>,
}

fn as_text<S: Serializer>(date: &toml::value::Datetime, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(date)
}

impl Price {
    /// From where to where it may be.
    pub fn range(&self) -> (f64, f64) {
        (self.low.unwrap_or(self.amount * 0.8), self.high.unwrap_or(self.amount * 1.2))
    }
}

impl Plan {
    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong, with its line and field.
    pub fn from_toml(text: &str) -> Result<Plan, PlanError> {
        let document = Document::parse(text)?;
        let plan: Plan = toml::from_str(text).map_err(|error| document.refused(&error))?;
        plan.check(&document)?;
        Ok(plan)
    }

    /// Whether all prices are of `today` or earlier: year, month and day as text, there where it is
    /// latest.
    ///
    /// # Errors
    /// The first one of later, with its line and field.
    pub fn check_dates(&self, text: &str, today: &str) -> Result<(), PlanError> {
        let at = Document::parse(text)?;
        let of_tier = |(index, tier): (usize, &Tier)| {
            let prices = &tier.prices;
            let of = |name: &str| format!("tiers.{index}.prices.{name}");
            [of("pool_dram"), of("pool"), of("link"), of("switch_port")].into_iter().zip([
                prices.pool_dram.date,
                prices.pool.date,
                prices.link.date,
                prices.switch_port.date,
            ])
        };
        let first = [("prices.machine_dram".to_owned(), self.prices.machine_dram.date)];
        let memories = self.cache.iter().flat_map(|cache| cache.memories.iter().enumerate());
        let of_cache =
            memories.map(|(index, one)| (format!("cache.memories.{index}.price"), one.price.date));
        let tiers = self.tiers.iter().enumerate().flat_map(of_tier);
        let all = first.into_iter().chain(tiers).chain(of_cache);
        for (field, date) in all {
            if date.date.is_some_and(|date| date.to_string().as_str() > today) {
                let reason = format!("{date}; today is {today}, and a price is of what was");
                return Err(at.wrong(&format!("{field}.date"), reason));
            }
        }
        Ok(())
    }

    /// The workloads of a pod of so many machines; `stagger` is of each job, µs.
    pub(super) fn workloads(&self, machines: u16, stagger: &[u64]) -> Vec<Workload> {
        let jobs = self.performance.workloads.iter().zip(stagger).enumerate();
        let count = self.performance.workloads.len();
        let workload = |(index, (job, stagger_us)): (usize, (&Job, &u64))| Workload {
            name: job.name.clone(),
            nodes: (usize::from(machines) + count - 1 - index).div_euclid(count) as u16,
            pattern: job.pattern.clone(),
            stagger_us: *stagger_us,
        };
        jobs.map(workload).filter(|workload| workload.nodes > 0).collect()
    }
}
