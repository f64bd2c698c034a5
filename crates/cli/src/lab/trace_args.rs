//! The words of `rackpool trace`. Part of [`crate::args`].

use crate::values::parse_size;
use clap::{Args, Subcommand};
use rackpool_rack::trace::filter::Config;
use rackpool_rack::trace::kernel::Name;
use rackpool_rack::trace::packing::Stranding;
use rackpool_rack::trace::{Format, TraceInjection};
use std::path::PathBuf;

pub const TRACE_EXAMPLES: &str = "\
Traces are Parquet files with the columns t_ns, node, pid, tid, addr, rw, size; other formats are
converted. Everything is streamed: a trace may be larger than memory.

Examples:
  rackpool trace kernel lbm --footprint 64M --out lbm.parquet
  rackpool trace run --out ls.parquet -- ls -l
  rackpool trace convert app.champsimtrace.xz app.parquet --inject cpi:1@3.6GHz --filter dracksim
  rackpool trace stat lbm.parquet";

const RUN_EXAMPLES: &str = "\
Valgrind's lackey sees each load and store of the program, one thread at a time; children that
execute another program are not followed. Its times are made: by default a cycle at 3.6 GHz for
each instruction. Some million accesses a second are recorded.

Examples:
  rackpool trace run -- ls -l
  rackpool trace run --out sort.parquet --limit 50000000 -- sort big.txt
  rackpool trace run --inject cpi:0.7@2.4GHz --filter dracksim --out misses.parquet -- ./app 10";

const CONVERT_EXAMPLES: &str = "\
Formats: dracksim, ramulator (ADDR R|W), ramulator2 (LD|ST ADDR, R|W CHANNEL,..,ROW,COLUMN),
simpleo3 (the CPU traces of both), dramsim3, stl and rstl (DRAMSys), lackey, champsim, csv, parquet;
guessed from name and content if --from is not said. All but parquet may be compressed by gzip, xz
or zstd, and come through a pipe. OUT ends in .parquet, .csv or .csv.gz.
Formats without times (ramulator, ramulator2, simpleo3, lackey, champsim) need --inject:
  gap:TIME          the same time from access to access: gap:10ns
  cpi:N@CLOCK       cycles for each instruction, where instructions are counted: cpi:1.5@3.6GHz
  closed:WINDOW     no times: the replay keeps so many accesses under way
Caches: dracksim, or what differs from it: cores=4,l1=32K,l2=256K,l3=1M,memory=200 (cycles a miss
keeps a core waiting).

Examples:
  rackpool trace convert TraceFile.trc node1.parquet --node 1
  rackpool trace convert 605.mcf.champsimtrace.xz mcf.parquet --inject cpi:1@4GHz --filter dracksim
  rackpool trace convert dram.trace dram.csv --from dramsim3 --clock 1200MHz
  rackpool trace convert load_store.trace a.parquet --inject closed:16";

const STAT_EXAMPLES: &str = "\
Examples:
  rackpool trace stat lbm.parquet
  rackpool trace stat TraceFile.trc --clock 3.6GHz
  rackpool trace stat app.csv --json";

const KERNEL_EXAMPLES: &str = "\
Real computations with the access patterns of lattice-Boltzmann, FDTD, six-step FFT and fast
multipole programs; pattern-alike, no results of any benchmark suite. The trace depends on the
options alone, not on --workers.

Examples:
  rackpool trace kernel lbm --footprint 512M --out lbm.parquet
  rackpool trace kernel fft --footprint 64M --steps 4 --out fft.parquet
  rackpool trace kernel fmm --filter cores=4,l3=1M --footprint 16M --out fmm.parquet
  rackpool trace kernel fdtd --no-filter --limit 1000000 --out fdtd.csv";

const PACKING_EXAMPLES: &str = "\
Writes vm.csv and vmType.csv in the schema of Azure's packing trace of 2020, made, not measured.
The real one comes as SQLite; export it: sqlite3 -header -csv FILE 'select * from vm' > vm.csv

Examples:
  rackpool trace packing little --out little
  rackpool trace packing much --machines 200 --days 14 --out much";

#[derive(Debug, Args)]
pub struct TraceArgs {
    #[command(subcommand)]
    pub command: TraceCommand,
}

#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Record the loads and stores of a program with Valgrind
    #[command(after_help = RUN_EXAMPLES)]
    Run(TraceRunArgs),
    /// Convert a trace, with or without caches between
    #[command(after_help = CONVERT_EXAMPLES)]
    Convert(TraceConvertArgs),
    /// Count what is in a trace
    #[command(after_help = STAT_EXAMPLES)]
    Stat(TraceStatArgs),
    /// Make a trace of a computation
    #[command(after_help = KERNEL_EXAMPLES)]
    Kernel(TraceKernelArgs),
    /// Make a trace of virtual machines for the planner
    #[command(after_help = PACKING_EXAMPLES)]
    Packing(TracePackingArgs),
}

/// What an input does not say by itself.
#[derive(Clone, Debug, Args)]
pub struct TraceReadArgs {
    /// Format of the input [default: guessed]
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<Format>,
    /// How records without times are injected
    #[arg(long, value_name = "MODEL")]
    pub inject: Option<TraceInjection>,
    /// Clock of formats that count cycles [default: 3.6GHz for dracksim, else 1.2GHz]
    #[arg(long, value_name = "CLOCK", value_parser = rackpool_rack::trace::parse_hz)]
    pub clock: Option<u64>,
    /// Node of records that name none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub node: u16,
}

#[derive(Debug, Args)]
pub struct TraceRunArgs {
    /// Where the trace goes: .parquet, .csv or .csv.gz
    #[arg(long, value_name = "FILE", default_value = "trace.parquet")]
    pub out: PathBuf,
    /// Stop the program after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Times: cpi:N@CLOCK, gap:TIME or closed:WINDOW
    #[arg(long, value_name = "MODEL", default_value = "cpi:1@3.6GHz")]
    pub inject: TraceInjection,
    /// Caches before the memory: dracksim, or what differs from it
    #[arg(long, value_name = "CACHES")]
    pub filter: Option<Config>,
    /// Node of the records
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub node: u16,
    /// The program and its arguments, after --
    #[arg(value_name = "PROGRAM", required = true, last = true)]
    pub program: Vec<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub struct TraceConvertArgs {
    /// The trace
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Where it goes: .parquet, .csv or .csv.gz
    #[arg(value_name = "OUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub read: TraceReadArgs,
    /// Caches before the memory: dracksim, or what differs from it
    #[arg(long, value_name = "CACHES")]
    pub filter: Option<Config>,
    /// Stop after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct TraceStatArgs {
    /// The trace
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub read: TraceReadArgs,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TraceKernelArgs {
    /// lbm, fdtd, fft or fmm
    #[arg(value_name = "KERNEL")]
    pub name: Name,
    /// Where the trace goes: .parquet, .csv or .csv.gz
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Bytes of all arrays, at most: the size of the problem
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub footprint: u64,
    /// Threads of the program, each with a core
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub threads: u32,
    /// Time steps, or repetitions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub steps: u32,
    /// Caches before the memory: dracksim, or what differs from it
    #[arg(long, value_name = "CACHES", default_value = "dracksim")]
    pub filter: Config,
    /// All loads and stores, a cycle each
    #[arg(long, conflicts_with = "filter")]
    pub no_filter: bool,
    /// Stop after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Node of the records
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub node: u16,
    /// Seed of what is random
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Threads that compute it here [default: one for each processor]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
}

#[derive(Debug, Args)]
pub struct TracePackingArgs {
    /// How much memory is stranded: little or much
    #[arg(value_name = "STRANDING")]
    pub stranding: Stranding,
    /// Where the two tables go
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Machines that are kept nine tenths full
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub machines: u32,
    /// Length of the trace
    #[arg(long, value_name = "DAYS", default_value_t = 7,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub days: u32,
    /// Seed of what is random
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
}
