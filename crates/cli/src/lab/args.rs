//! The words of the commands that only measure, simulate or reproduce. In: the words of the command
//! line. Out: a [`LabCommand`]. Part of [`crate::args`].

pub use super::sim_args::*;
pub use super::trace_args::*;
use crate::environment;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

const SIM_EXAMPLES: &str = "\
Examples:
  rackpool sim run --seeds 100                       a hundred clusters with every fault
  rackpool sim replay 17 --faults crash-daemon       one of them again, with its trace
  rackpool sim ladder --profile rcmp-testbed         what each access costs on that machine";

const CALIBRATE_EXAMPLES: &str = "\
Measures memory, processor and the loopback's sockets; network cards and switches come from another
profile and say so, as does CXL memory without --cxl-node. It takes some seconds and two processors
that have nothing else to do.

Examples:
  rackpool calibrate > mine.toml
  rackpool calibrate --out mine.toml --base rcmp-testbed
  rackpool calibrate --out mine.toml --tiers profile.json --cxl-node 2
  rackpool sim ladder --profile mine.toml";

const REPRO_EXAMPLES: &str = "\
Figures that differ from the papers' texts are explained one by one in docs/repro-rcmp.md and
docs/repro-herd.md, some of Optane's in docs/repro-optane.md.

Examples:
  rackpool repro rcmp --out report
  rackpool repro herd --out report
  rackpool repro herd --quick --profile herd-susitna --out /tmp/report
  rackpool repro rcmp --quick --profile modern --out /tmp/report
  rackpool repro optane --quick --out /tmp/report";

const PLAN_EXAMPLES: &str = "\
The answer may be not to pool. Prices are the user's, each with a date and a source; nothing is
calibrated, and the report says so.

Examples:
  rackpool plan init                          writes plan.toml, which runs as it is
  rackpool plan plan.toml --out report        then open report/report.html
  rackpool plan --from-pool 127.0.0.1:7400 --for 10s --out seen
                                              records a running pool: seen/recording.jsonl
  rackpool plan plan.toml --from-pool 127.0.0.1:7400 --out report
                                              and sets the prediction beside it

A recording stays useful: name it in a plan as [live] recording = \"seen/recording.jsonl\". Every
choice in it is made again by the simulator; one that comes out otherwise is an error. docs/plan.md
describes the file.";

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// The same engines in virtual time: seeds with faults, and clusters that are not there
    #[command(after_help = SIM_EXAMPLES)]
    Sim(SimArgs),
    /// Record, convert, count or make traces of memory accesses
    #[command(after_help = TRACE_EXAMPLES)]
    Trace(TraceArgs),
    /// Measure this machine and write a device profile for the simulator
    #[command(after_help = CALIBRATE_EXAMPLES)]
    Calibrate(CalibrateArgs),
    /// The evaluation of a paper again, in virtual time: each figure of its text beside ours
    #[command(after_help = REPRO_EXAMPLES)]
    Repro(ReproArgs),
    /// What memory to buy for machines and pools, and whether to pool at all
    #[command(after_help = environment::with(PLAN_EXAMPLES, environment::WATCH))]
    Plan(PlanArgs),
    /// A client process of `bench migrate`
    #[command(hide = true)]
    MigrateWorker,
    /// A server or client process of `bench kv --baselines`
    #[command(hide = true)]
    BaselinesWorker,
    /// A process of `bench cache --tiering`
    #[command(hide = true)]
    TieringWorker,
}

/// Papers that can be reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PaperName {
    /// Rcmp: Reconstructing RDMA-Based Memory Disaggregation via CXL, ACM TACO 2024
    Rcmp,
    /// HERD: Using RDMA Efficiently for Key-Value Services, SIGCOMM 2014
    Herd,
    /// Rack-scale memory disaggregation with smart-idle pool selection, arXiv 2303.06420
    Racksim,
    /// HMSDK with CacheLib: key-value caches with heterogeneous memory tiering, IEEE Micro 2024
    Hmsdk,
    /// A guide to Optane memory; its figures are of FAST 2020
    Optane,
}

#[derive(Debug, Args)]
pub struct ReproArgs {
    /// Which paper
    #[arg(value_enum)]
    pub paper: PaperName,
    /// Write PAPER.html and PAPER.json into this directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Device profile: a name or a file [default: the paper's testbed: rcmp-testbed, herd-apt]; not
    /// for racksim, hmsdk and optane, which have memories of their own
    #[arg(long, value_name = "PROFILE")]
    pub profile: Option<String>,
    /// A fifth of the operations: to try the command, not for figures
    #[arg(long)]
    pub quick: bool,
}
