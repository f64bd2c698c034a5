//! The words of `rackpool sim`. Part of [`crate::args`].

use clap::{Args, Subcommand};
use rackpool::Policy;
use rackpool_core::probe::Mutation;
use rackpool_rack::model::Preset;
use rackpool_rack::plan::Span;
use rackpool_sim::run::{FaultSet, OPERATIONS_DEFAULT, PROFILE_DEFAULT};
use rackpool_sim::world::scale::RACKS_DEFAULT;
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::{Failure, Result};

const RUN_EXAMPLES: &str = "\
A run is a function of its options and its seed: the same line gives the same trace hash on every
machine, with any number of threads. A seed that fails is shrunk to the shortest line that shows it.
Faults: crash-client, crash-daemon, crash-master, power-loss, partition, one-way-loss, delay,
duplicate, reorder, slow-node, torn-write, pause, clock-skew, full-memory, failed-registration,
rare-branches, drain, flip.

Examples:
  rackpool sim run --seeds 100
  rackpool sim run --seeds 2000 --faults all --json sim.json --html sim.html
  rackpool sim run --seeds 500 --first-seed 1000 --faults crash-daemon,partition --racks 3";

const REPLAY_EXAMPLES: &str = "\
Examples:
  rackpool sim replay 17
  rackpool sim replay 17 --racks 2 --clients 2 --operations 40 --faults pause --trace-lines 500";

const SCALE_EXAMPLES: &str = "\
Examples:
  rackpool sim scale
  rackpool sim scale --racks 2,16,128 --clients 16 --profile rcmp-testbed
  rackpool sim scale --profile modern --json scale.json --html scale.html";

const LADDER_EXAMPLES: &str = "\
Examples:
  rackpool sim ladder --profile rcmp-testbed
  rackpool sim ladder --profile laptop --measure --html ladder.html
  rackpool calibrate --out mine.toml && rackpool sim ladder --profile mine.toml --json ladder.json";

const RACK_EXAMPLES: &str = "\
Nodes of a rack take memory from pools behind a switch. CONFIG is a file, or wl-mix (64 nodes, 6
pools, 256 MiB a node), or wl-mix-64th (the same 64 times smaller). Lists are run against each
other, a point on each thread; the result hash is the same with any number of threads. With a
checkpoint directory, the same line again goes on where the last one was stopped.

Examples:
  rackpool sim rack wl-mix-64th --placement alternate+round-robin,alternate+smart-idle
  rackpool sim rack wl-mix --preset dracksim-faithful --checkpoint state --json wl-mix.json
  rackpool sim rack mine.toml --chunk-kib 256,1024,4096 --seed 1,2,3 --threads 2";

#[derive(Debug, Args)]
pub struct SimArgs {
    #[command(subcommand)]
    pub command: SimCommand,
}

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run many seeds under faults and check everything
    #[command(after_help = RUN_EXAMPLES)]
    Run(SimRunArgs),
    /// Run one seed again and show the end of its trace
    #[command(after_help = REPLAY_EXAMPLES)]
    Replay(SimReplayArgs),
    /// What an access costs as the cluster grows
    #[command(after_help = SCALE_EXAMPLES)]
    Scale(SimScaleArgs),
    /// A rack of nodes and pools, from traces of what programs access
    #[command(after_help = RACK_EXAMPLES)]
    Rack(SimRackArgs),
    /// What each kind of access costs on a profile
    #[command(after_help = LADDER_EXAMPLES)]
    Ladder(SimLadderArgs),
    /// Leave each safeguard out and see which check notices
    #[cfg(feature = "mutations")]
    Mutations(SimMutationsArgs),
}

/// What a run is told.
#[derive(Clone, Debug, Args)]
pub struct SimConfigArgs {
    /// Which faults may happen: all, none, or names with commas between
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub faults: FaultSet,
    /// Racks [default: two to four, by seed]
    #[arg(long, value_name = "N")]
    pub racks: Option<u32>,
    /// Clients [default: four or more, by seed]
    #[arg(long, value_name = "N")]
    pub clients: Option<u32>,
    /// Operations of each seed, at least
    #[arg(long, value_name = "N", default_value_t = OPERATIONS_DEFAULT)]
    pub operations: u32,
    /// Device profile: a name or a file
    #[arg(long, value_name = "PROFILE", default_value = PROFILE_DEFAULT)]
    pub profile: String,
    /// Where new memory goes, by the names of `rackpool master --placement`
    #[arg(long, value_name = "NAME", default_value_t)]
    pub placement: Policy,
    /// What keeps the caches of a rack's hosts coherent: hardware, or software, and then racks have
    /// clients on two hosts [default: by seed]
    #[arg(long, value_name = "BY", value_parser = ["hardware", "software"])]
    pub coherence: Option<String>,
    /// Racks have two memories, and pages move between them
    #[arg(long)]
    pub tiers: bool,
    /// Racks have half of their memory, and a spill file to which pages go and come back
    #[arg(long)]
    pub spill: bool,
}

/// Where reports go.
#[derive(Clone, Debug, Args)]
pub struct SimOutputArgs {
    /// Write the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page for people
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SimRunArgs {
    /// How many seeds
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// The first seed; the others follow it
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub first_seed: u64,
    #[command(flatten)]
    pub config: SimConfigArgs,
    /// Threads, each with a seed of its own [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Begin no further seed after this time
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u32>,
    /// Leave failing seeds as they are
    #[arg(long)]
    pub no_shrink: bool,
    /// Write shrunk failing seeds into this directory, for the test-suite
    #[arg(long, value_name = "DIR", conflicts_with = "no_shrink")]
    pub store: Option<PathBuf>,
    #[command(flatten)]
    pub output: SimOutputArgs,
}

#[derive(Debug, Args)]
pub struct SimReplayArgs {
    /// The seed
    #[arg(value_name = "SEED")]
    pub seed: u64,
    #[command(flatten)]
    pub config: SimConfigArgs,
    /// How many of the last lines of the trace are shown
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub trace_lines: u32,
    /// Write the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The safeguard that is left out (in a build with the feature `mutations`)
    #[arg(long, value_name = "NAME", hide = true)]
    mutation: Option<String>,
}

impl SimReplayArgs {
    /// The mutation by its name.
    pub fn mutation(&self) -> Result<Option<Mutation>> {
        self.mutation.as_deref().map(mutation_of).transpose()
    }
}

fn mutation_of(name: &str) -> Result<Mutation> {
    let names = || Mutation::ALL.map(Mutation::name).join(", ");
    let found = Mutation::ALL.into_iter().find(|mutation| mutation.name() == name);
    found.ok_or_else(|| Failure::usage(format!("`{name}` is no mutation; there are {}", names())))
}

#[derive(Debug, Args)]
pub struct SimScaleArgs {
    /// Device profile: a name or a file
    #[arg(long, value_name = "PROFILE", default_value = PROFILE_DEFAULT)]
    pub profile: String,
    /// Numbers of racks, with commas between
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_values_t = RACKS_DEFAULT,
          value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub racks: Vec<u32>,
    /// Clients of each rack
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=128))]
    pub clients: u32,
    /// Operations of each client
    #[arg(long, value_name = "N", default_value_t = 200,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub operations: u32,
    /// For every random choice
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: SimOutputArgs,
}

#[derive(Debug, Args)]
pub struct SimRackArgs {
    /// A file, or a built-in configuration: wl-mix, wl-mix-64th
    #[arg(value_name = "CONFIG")]
    pub config: String,
    /// Constants: dracksim-faithful, corrected, cxl, cxl-direct, rdma [default: the file's]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub preset: Vec<Preset>,
    /// Page and pool policies, by the names of `rackpool master --placement` [default: the file's]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub placement: Vec<Policy>,
    /// What the manager gives out at once [default: the file's]
    #[arg(long, value_name = "KIB,..", value_delimiter = ',')]
    pub chunk_kib: Vec<u64>,
    /// Seeds of what is random [default: the file's]
    #[arg(long, value_name = "SEED,..", value_delimiter = ',')]
    pub seed: Vec<u64>,
    /// Pace of recorded traces: percent of the time that the pools' links are in use if every
    /// other access is remote [default: the file's]
    #[arg(long, value_name = "PERCENT,..", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pool_load: Vec<u32>,
    /// Accesses of each node, at most [default: the file's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub accesses: Option<u64>,
    /// Threads, each with a point of its own [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Keep the state of each point in this directory, and go on from what is there
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// Events of a point between two checkpoints
    #[arg(long, value_name = "N", default_value_t = 500_000_000)]
    pub checkpoint_events: u64,
    /// Write the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SimLadderArgs {
    /// Device profile: a name or a file
    #[arg(long, value_name = "PROFILE", default_value = PROFILE_DEFAULT)]
    pub profile: String,
    /// Measure this machine as well: real processes, some ten seconds
    #[arg(long)]
    pub measure: bool,
    #[command(flatten)]
    pub output: SimOutputArgs,
}

#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Write the profile into this file instead of to standard output
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The profile, a name or a file, that has what cannot be measured here
    #[arg(long, value_name = "PROFILE", default_value = "modern")]
    pub base: String,
    /// Memory as `rackpool tiers measure` has stored it, instead of measuring it now
    #[arg(long, value_name = "FILE")]
    pub tiers: Option<PathBuf>,
    /// The memory node that stands for the rack's shared memory, such as one of CXL memory
    #[arg(long, value_name = "NODE")]
    pub cxl_node: Option<u16>,
    /// The profile's name
    #[arg(long, value_name = "NAME", default_value = "measured")]
    pub name: String,
    /// Measure for a short time: to try the command, not for figures
    #[arg(long)]
    pub quick: bool,
}

/// Options of `sim mutations`.
#[cfg(feature = "mutations")]
#[derive(Debug, Args)]
pub struct SimMutationsArgs {
    /// Seeds for each mutation
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// The first seed; the others follow it
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub first_seed: u64,
    /// Only these, with commas between
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    pub config: SimConfigArgs,
    /// Threads, each with a seed of its own [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Write the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[cfg(feature = "mutations")]
impl SimMutationsArgs {
    /// The mutations that were named; none for all.
    pub fn only(&self) -> Result<Vec<Mutation>> {
        self.only.iter().map(|name| mutation_of(name)).collect()
    }
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanArgs {
    #[command(subcommand)]
    pub command: Option<PlanCommand>,
    /// What is asked
    #[arg(value_name = "PLAN.toml")]
    pub file: Option<PathBuf>,
    /// Record the placement decisions and the heat of the pool with its master at this address,
    /// into recording.jsonl, and set the plan, if one is named, beside it
    #[arg(long, value_name = "ADDR")]
    pub from_pool: Option<String>,
    /// Go on recording for so long: 10s, 5min; what the master remembers is recorded at once
    #[arg(long = "for", value_name = "TIME", value_parser = span, default_value = "10s",
          requires = "from_pool")]
    pub span: Duration,
    /// File with the pool's secret
    #[arg(long, value_name = "FILE", requires = "from_pool")]
    pub secret_file: Option<PathBuf>,
    /// Write report.html, summary.json, samples.parquet and recording.jsonl into this directory
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// Threads; they change nothing but the time that it takes [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

fn span(text: &str) -> Result<Duration, String> {
    Span::try_from(text.to_owned()).map(|span| Duration::from_nanos(span.0))
}

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Write an example that runs as it is, with comments
    Init {
        /// The file, which must not be there
        #[arg(value_name = "PLAN.toml", default_value = "plan.toml")]
        file: PathBuf,
    },
}
