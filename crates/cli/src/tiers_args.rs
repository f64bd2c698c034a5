//! The words of `rackpool tiers`. Part of [`crate::args`].

use crate::tiers_advise::{ADVISE_EXAMPLES, TiersAdviseArgs};
use crate::tiers_balance::{BALANCE_EXAMPLES, TiersBalanceArgs};
use crate::tiers_run::{RUN_EXAMPLES, TiersRunArgs};
use crate::values::{parse_seconds, parse_size};
use clap::{ArgGroup, Args, Subcommand};
use rackpool_mem::numa::{NODES_MAX, numbers};
use rackpool_tiers::weights::WEIGHT_MAX_DEFAULT;
use std::path::PathBuf;
use std::time::Duration;

pub const TIERS_EXAMPLES: &str = "\
Examples:
  rackpool tiers show
  rackpool tiers measure --store profile.json
  rackpool tiers weights --profile profile.json
  rackpool tiers weights --bandwidth 300000,100000
  rackpool tiers run --weighted 3:1 -- redis-server
  rackpool tiers apply --weighted 3:1 --save before.json
  rackpool tiers balance --dry-run
  rackpool tiers advise --kv 9402 --profile profile.json";

const SHOW_EXAMPLES: &str = "\
Reads what kernel and firmware say; nothing is measured or changed. Speeds are those of the
firmware (HMAT), from the processors that are nearest; 1 MB/s is 10^6 bytes a second. Distances
are to each node in the order of the lines; 10 is near. Of tiers, a lower number is faster.
What the machine does not say is left empty, or null in JSON.
--sysfs reads a copy of /sys, perhaps of another machine; what this process may use is not looked
at then.

Examples:
  rackpool tiers show
  rackpool tiers show --json - | jq '.nodes[] | select(.cpus == [])'
  rackpool tiers show --sysfs ./copy-of-sys";

const MEASURE_EXAMPLES: &str = "\
For each pair of a node with processors and a node with memory: latency of dependent loads, idle and
beside threads that read; bandwidth by number of threads, 1 MB/s = 10^6 bytes a second that the
program loads or stores: reads, three reads to a write, one to one, writes, and writes around the
caches (nt). Each figure is repeated until its last 5 runs agree (quartiles over the median), at
most 25 times. Takes seconds to minutes a pair, memory of each node, and all processors: the machine
should have nothing else to do. A profile is JSON, with its source and date.

Examples:
  rackpool tiers measure --store profile.json
  rackpool tiers measure --quick                         3 runs a figure, in seconds, rough
  rackpool tiers measure --nodes 0,2 --cpu-nodes 0 --threads 8
  rackpool tiers measure --noise 5 --limit 60 --json - | jq '.pairs[].latency[0]'";

const WEIGHTS_EXAMPLES: &str = "\
Bandwidths are in MB/s (10^6 bytes a second), in the order of the nodes. Utilisation is what the
weights reach, over all bandwidths together; HMSDK's own rounding stands beside them.
A profile of `tiers measure` gives the bandwidth of each node for a share of reads, and the choice
for a demand: one memory alone where that has bandwidth to spare, since others only add latency.
--check deals a buffer out to the memories by the weights (with --demand, by those of the choice),
on this machine, and measures what they give together: seconds, all processors, memory of each.

Examples:
  rackpool tiers weights --bandwidth 300000,100000
  rackpool tiers weights --bandwidth 200000,80000,40000 --max 255 --json -
  rackpool tiers weights --profile profile.json --reads 75 --demand 40000
  rackpool tiers weights --profile profile.json --check";

const APPLY_EXAMPLES: &str = "\
The kernel (Linux 6.9) has one table of weights for the whole machine. It holds for programs that
ask for weighted interleave (tiers run --weighted, numactl --weighted-interleave), and only for
memory that they take from now on: what they have stays where it is. It is gone at the next boot.
Without --weighted, --profile, --restore or --auto nothing is changed, only shown. All is checked
before the first write; if the kernel does not take one, what was set before is set again. Needs
root. Single programs need none of this: tiers run --weighted.
--auto: the kernel chooses by the bandwidths of the firmware (Linux 6.16), until a weight is set.

Examples:
  rackpool tiers apply
  rackpool tiers apply --weighted 3:1 --save before.json
  rackpool tiers apply --weighted 0=5,2=1 --dry-run
  rackpool tiers apply --profile profile.json --reads 75
  rackpool tiers apply --restore before.json";

#[derive(Debug, Args)]
pub struct TiersArgs {
    #[command(subcommand)]
    pub command: TiersCommand,
}

#[derive(Debug, Subcommand)]
pub enum TiersCommand {
    /// List memory nodes: processors, memory, speeds, devices, and what is kept from this process
    #[command(after_help = SHOW_EXAMPLES)]
    Show(TiersShowArgs),
    /// Measure latency and bandwidth of each memory node, and keep them as a profile
    #[command(after_help = MEASURE_EXAMPLES)]
    Measure(TiersMeasureArgs),
    /// Weights by which memories of unlike bandwidth give the most together
    #[command(after_help = WEIGHTS_EXAMPLES)]
    Weights(TiersWeightsArgs),
    /// Run a program with its memory on nodes by weights, or on nodes of your choice
    #[command(after_help = RUN_EXAMPLES)]
    Run(TiersRunArgs),
    /// Set the kernel's weights of interleaving for the whole machine, or show them
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(TiersApplyArgs),
    /// Move hot pages to fast nodes and cold ones to slow nodes, until it is stopped
    #[command(after_help = BALANCE_EXAMPLES)]
    Balance(Box<TiersBalanceArgs>),
    /// Say how a cache should use near and far memory for its load, what it gains, and why
    #[command(after_help = ADVISE_EXAMPLES)]
    Advise(Box<TiersAdviseArgs>),
}

#[derive(Debug, Args)]
pub struct TiersShowArgs {
    /// What stands for /sys
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Write the nodes as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TiersMeasureArgs {
    /// Memory nodes [default: all with memory for this process]
    #[arg(long, value_name = "NODES", value_parser = parse_nodes)]
    pub nodes: Option<Nodes>,
    /// Nodes from which they are reached [default: all with processors for this process]
    #[arg(long, value_name = "NODES", value_parser = parse_nodes)]
    pub cpu_nodes: Option<Nodes>,
    /// 3 short runs a figure: ends within seconds, and is rough
    #[arg(long)]
    pub quick: bool,
    /// Threads at most [default: one for each processor of the node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Noise that a figure may have: distance of the quartiles over the median
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = parse_above_zero)]
    pub noise: f64,
    /// All runs together take no longer: figures may be left with more noise
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub limit: Option<Duration>,
    /// Memory to load from, twice so much is taken [default: 8 times the caches, at most 8G]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub bytes: Option<u64>,
    /// Keep the profile, for `tiers weights --profile`
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Write the profile as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct TiersWeightsArgs {
    /// Bandwidth of each memory, MB/s
    #[arg(long, value_name = "MBPS,MBPS,...", conflicts_with = "profile")]
    pub bandwidth: Option<String>,
    /// Bandwidths as `tiers measure` has stored them
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// As seen from the processors of this node [default: the first of the profile]
    #[arg(long, value_name = "NODE", conflicts_with = "bandwidth")]
    pub cpu_node: Option<u16>,
    /// Share of reads in the traffic [default: 100]
    #[arg(long, value_name = "PERCENT", conflicts_with = "bandwidth", value_parser = parse_share)]
    pub reads: Option<f64>,
    /// What the program moves, MB/s [default: the most that one memory alone has to spare]
    #[arg(long, value_name = "MBPS", conflicts_with = "bandwidth")]
    pub demand: Option<f64>,
    /// The largest weight, 1 to 255
    #[arg(long, value_name = "WEIGHT", default_value_t = WEIGHT_MAX_DEFAULT)]
    pub max: u32,
    /// Measure what the weights give here, and set it against what they promise
    #[arg(long, conflicts_with = "bandwidth")]
    pub check: bool,
    /// Write the weights as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// One of them at most.
const APPLY_CHANGES: [&str; 4] = ["weighted", "profile", "restore", "auto"];

/// What takes no weights of a profile. An option that is required is not missed beside one that it
/// conflicts with: so the conflict is said as well.
const NO_PROFILE: [&str; 3] = ["weighted", "restore", "auto"];

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("change").args(APPLY_CHANGES)))]
pub struct TiersApplyArgs {
    /// Weights, 1 to 255: for all nodes with memory in turn, or for those named
    #[arg(long, value_name = "3:1|N=W,...")]
    pub weighted: Option<String>,
    /// Weights of a profile, as `tiers weights --profile` finds them
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// As seen from the processors of this node [default: the first of the profile]
    #[arg(long, value_name = "NODE", requires = "profile", conflicts_with_all = NO_PROFILE)]
    pub cpu_node: Option<u16>,
    /// Share of reads in the traffic [default: 100]
    #[arg(long, value_name = "PERCENT", requires = "profile", conflicts_with_all = NO_PROFILE)]
    #[arg(value_parser = parse_share)]
    pub reads: Option<f64>,
    /// The largest weight of a profile, 1 to 255 [default: 16]
    #[arg(long, value_name = "WEIGHT", requires = "profile", conflicts_with_all = NO_PROFILE)]
    pub max: Option<u32>,
    /// What --save has kept
    #[arg(long, value_name = "FILE")]
    pub restore: Option<PathBuf>,
    /// Have the kernel choose
    #[arg(long)]
    pub auto: bool,
    /// Keep what is set before the change, for --restore
    #[arg(long, value_name = "FILE", requires = "change")]
    pub save: Option<PathBuf>,
    /// --save may replace a file
    #[arg(long, requires = "save")]
    pub overwrite: bool,
    /// Check the change and show it, and write nothing
    #[arg(long, requires = "change", conflicts_with = "save")]
    pub dry_run: bool,
    /// What stands for /sys
    #[arg(long, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// Write what is set as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Memory nodes by number, ascending.
#[derive(Clone, Debug)]
pub struct Nodes(pub Vec<u16>);

pub fn parse_nodes(text: &str) -> Result<Nodes, String> {
    let nodes = numbers(text, NODES_MAX).filter(|nodes: &Vec<u16>| !nodes.is_empty());
    let wrong = || format!("`{text}` is no ascending list of nodes such as 0, 0-1 or 0,2-3");
    nodes.map(Nodes).ok_or_else(wrong)
}

/// Percent, as a share.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent
        .map(|percent| percent / 100.0)
        .ok_or_else(|| format!("`{text}` is not 0 to 100 percent"))
}

/// Percent above 0, as a share.
pub fn parse_above_zero(text: &str) -> Result<f64, String> {
    let share = parse_share(text).ok().filter(|share| *share > 0.0);
    let wrong = || format!("`{text}` is not above 0 and at most 100 percent, such as 3 or 0.5");
    share.ok_or_else(wrong)
}
