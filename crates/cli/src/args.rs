//! The command line as data: every command of DESIGN §5 with its options, and the help that shows
//! examples. In: the words of the command line. Out: [`Cli`], or clap's error, which `main` turns
//! into exit code 2. Called by `main` alone.

use crate::agent_args::{AGENT_EXAMPLES, AgentArgs, FENCE_EXAMPLES, FenceArgs};
use crate::environment;
pub use crate::kv_args::*;
use crate::lab::LabCommand;
#[cfg(feature = "lab")]
pub use crate::lab::args::*;
use crate::log_args::LogArgs;
pub use crate::member_args::*;
pub use crate::tiers_args::*;
pub use crate::values::*;
use clap::{Args, Parser, Subcommand, ValueEnum};
use rackpool::daemon::Rings;
use rackpool::{Emulate, FabricChoice, Migration, Policy};
use rackpool_core::constants::SESSION_GRACE_MS_DEFAULT;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const FIRST_SCREEN: &str = "\
Examples:
  rackpool demo --quick                       two racks on this machine, in under a minute
  rackpool doctor                             what this machine offers, and what to do about it

  rackpool master --listen 127.0.0.1:7400 --state ./state
  rackpool daemon --rack 0 --master 127.0.0.1:7400 --memory 'shm:/dev/shm/rack0?size=1G'
  rackpool daemon --rack 1 --master 127.0.0.1:7400 --memory 'shm:/dev/shm/rack1?size=1G'
  rackpool shell  --rack 0 --master 127.0.0.1:7400 -c 'put greeting text:hello'
  rackpool shell  --rack 1 --master 127.0.0.1:7400 -c 'get greeting'

Each command has examples of its own: rackpool help COMMAND
A FILE that a command writes may be -, standard output, a device or a pipe.
Exit codes: 0 done or stopped as asked, 1 failed, 2 wrong usage, 130 ended by Ctrl-C. Errors are one
line: error CODE message";

const DEMO_EXAMPLES: &str = "\
Examples:
  rackpool demo --quick
  rackpool demo --input ~/src --html report.html --json report.json
  rackpool demo --quick --fabric shm
  rackpool demo --quick --emulate cxl=140ns,rdma=2us     numbers are labelled \"emulated\"";

const MASTER_EXAMPLES: &str = "\
Prints `ready ADDR` on standard output when it serves; stops on SIGINT, SIGTERM and SIGHUP.

Examples:
  rackpool master --listen 127.0.0.1:7400 --state ./state
  rackpool master --listen 127.0.0.1:0 --ephemeral       any free port, nothing is kept
  rackpool master --state ./state --metrics 9400         then: curl http://127.0.0.1:9400/metrics
  (umask 77; head -c 32 /dev/urandom | base64 > secret)  machines that have the file may join:
  rackpool master --listen 10.0.0.1:7400 --secret-file secret --state ./state

Of several daemons of a rack each serves its shard of the memory. If one dies, another one serves
what it did until it is started again; one that is stopped (SIGSTOP) keeps its shard.
With --metrics the line is `ready ADDR metrics=ADDR`.

Placements: local-first asks the own rack, then one at random (the default); alternate does so by
turns; random, round-robin, least-loaded, smart-idle and even choose among all racks. ORDER+CHOICE
puts one of the first two before another choice; smart-idle:250ms counts accesses in such windows.";

const DAEMON_EXAMPLES: &str = "\
Prints `ready ADDR` on standard output when it serves; stops on SIGINT, SIGTERM and SIGHUP. A
stopped daemon keeps its region, and the next one with the same --memory goes on with it.

Examples:
  rackpool daemon --rack 0 --master 127.0.0.1:7400 --memory 'shm:/dev/shm/rack0?size=1G'
  rackpool daemon --rack 1 --master 127.0.0.1:7400 --memory heap:512M --ephemeral
  rackpool daemon --rack 0 --master 127.0.0.1:7400 --emulate cxl=140ns,rdma=2us
  rackpool daemon --rack 0 --shard 0/2 --memory 'shm:/dev/shm/rack0?size=1G'    two daemons for
  rackpool daemon --rack 0 --shard 1/2 --memory 'shm:/dev/shm/rack0?size=1G'    one rack
  rackpool daemon --rack 2 --master 10.0.0.1:7400 --listen 10.0.0.3:0 --secret-file secret
  rackpool daemon --rack 0 --master 127.0.0.1:7400 --memory 'pmem:/mnt/pmem/rack0?size=1G'
  rackpool daemon --rack 0 --metrics 9401                then: curl http://127.0.0.1:9401/metrics

With --metrics the line is `ready ADDR metrics=ADDR`.";

const SHELL_EXAMPLES: &str = "\
Commands (separated by `;` or line ends; the first failure stops them):
  alloc BYTES [local|rack:N|spread|tier:T]    -> ADDR; T is near, far or a number from 0
  write ADDR text:...|hex:...|file:PATH       -> ok
  read ADDR BYTES [hex|text|file:PATH]        -> the bytes, in hex by default
  cas ADDR OLD NEW                            -> ok | failed VALUE
  add ADDR N                                  -> the value before
  persist ADDR BYTES                          -> ok: it outlives a loss of power (pmem:)
  free ADDR BYTES                             -> ok
  migrate ADDR rack:N                         -> ok rack N: where its page is now
  put NAME file:PATH|text:...                 -> ok
  get NAME [file:PATH]                        -> the object's bytes, as they are
  del NAME                                    -> ok
  ls [PREFIX]                                 -> NAME<tab>BYTES
  explain ADDR|NAME                           -> key=value lines
  stats [--json|--prometheus]                 -> counters of master, racks and this handle
  stats --decisions                           -> why pages moved or stayed, a line of JSON each
  help, quit
Sizes take K, M, G; numbers may be 0x... Words with spaces or `;` are put in '...' (as they are)
or in \"...\" (with \\n \\t \\\\ \\\" \\xNN).

Examples:
  rackpool shell --rack 0 -c 'alloc 4K'
  rackpool shell --rack 1 -c 'write 0x200000 text:\"two words\"; read 0x200000 9 text'
  rackpool shell --rack 0 put notes file:notes.txt
  rackpool shell --rack 1 < commands.txt";

const TOP_EXAMPLES: &str = "\
One line a rack: frames in all, free (as far as the host has memory for them), used and, behind +,
taken by replicas of other racks' pages (a cache, which gives way), in quarantine; live allocations;
sessions of clients (this command has one); locks held, and +N requests that wait for one; requests,
fabric operations and fabric bytes (both directions) a second. Ends on SIGINT (Ctrl-C).

Examples:
  rackpool top
  rackpool top --master 127.0.0.1:7400 --interval 5
  rackpool top --once --interval 0.5 | tail -n +4        one table, with rates over half a second";

const BENCH_EXAMPLES: &str = "\
Each result stands beside its raw limit, measured in the same run.

Examples:
  rackpool bench local --quick
  rackpool bench remote --fabric tcp --json remote.json
  rackpool bench ycsb --workload A --distribution zipfian
  rackpool bench kv --peers --json kv.json
  rackpool bench kv --peers --rows 'items_*,hit_*'    what the same memory keeps, and what hits
  rackpool bench tiers --json tiers.json
  rackpool bench kv --baselines --quick               HERD beside Pilaf and FaRM-KV, over shm
  rackpool bench kv --baselines=tcp --json beside.json
  rackpool bench verbs --fabric verbs --verbs-device mlx5_0
  rackpool bench pmem --rules --quick --json rules.json    what keeping to each rule gives";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  rackpool doctor
  rackpool doctor --json > machine.json";

const FSCK_EXAMPLES: &str = "\
Kinds: user (an application's, which only the application can judge), table (parts of hash tables:
each is named by one exactly once), session and cache (they end with their client). The pool may be
in use; what a client that is in the middle of a change may hold is listed and not judged. Exit code
0 if nothing is lost, named twice or unreadable, or if --repair gave it back, else 1.

Examples:
  rackpool fsck --master 127.0.0.1:7400
  rackpool fsck --repair --json findings.json";

const INSPECT_EXAMPLES: &str = "\
Reads the region's private section (REGION.meta); the daemon may run or not. Nothing is changed.

Examples:
  rackpool inspect /dev/shm/rack0
  rackpool inspect shm:/dev/shm/rack0 --json";

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "rackpool",
    version,
    about = "A memory pool for clusters: load/store inside a rack, one-sided access between racks",
    after_help = FIRST_SCREEN,
    disable_help_subcommand = false,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Two racks in real processes here: real files in and out, YCSB, latency ladder, a report
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Keep the page directory of a pool
    #[command(after_help = MASTER_EXAMPLES)]
    Master(MasterArgs),
    /// Serve the memory of one rack
    #[command(after_help = environment::with(DAEMON_EXAMPLES, environment::SERVER))]
    Daemon(DaemonArgs),
    /// Serve the clients of a host that shares a rack's memory with the daemon's host
    #[command(after_help = environment::with(AGENT_EXAMPLES, environment::SERVER))]
    Agent(AgentArgs),
    /// Say that a host is off for good: what its clients held is given back
    #[command(after_help = environment::with(FENCE_EXAMPLES, environment::SERVER))]
    Fence(FenceArgs),
    /// Use a pool by hand or from a script
    #[command(after_help = environment::with(SHELL_EXAMPLES, environment::CLIENT))]
    Shell(ShellArgs),
    /// List the racks of a pool and what they are to it
    #[command(after_help = environment::with(RACKS_EXAMPLES, environment::WATCH))]
    Racks(RacksArgs),
    /// Move all pages of a rack to others, so that it leaves with nothing lost
    #[command(after_help = environment::with(DRAIN_EXAMPLES, environment::WATCH))]
    Drain(DrainArgs),
    /// Let a rack that is being drained serve again
    #[command(after_help = environment::with(UNDRAIN_EXAMPLES, environment::WATCH))]
    Undrain(UndrainArgs),
    /// Give up a dead rack: its pages are lost for good
    #[command(after_help = environment::with(FORGET_EXAMPLES, environment::WATCH))]
    Forget(ForgetArgs),
    /// Watch a pool: racks, memory, requests, locks, fabric
    #[command(after_help = environment::with(TOP_EXAMPLES, environment::WATCH))]
    Top(TopArgs),
    /// Serve a cache to ordinary clients of memcached and Redis
    #[command(after_help = environment::with(KV_EXAMPLES, environment::CACHE))]
    Kv(Box<KvArgs>),
    /// Unlike memories of this machine: DRAM, CXL and others, each a memory node
    #[command(after_help = TIERS_EXAMPLES)]
    Tiers(TiersArgs),
    /// Measure a pool on this machine
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(BenchArgs),
    /// What only measures, simulates or reproduces.
    #[command(flatten)]
    Lab(LabCommand),
    /// What this machine offers a pool, and what to do about what is missing
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(DoctorArgs),
    /// List a running pool's allocations by kind, and find what is lost
    #[command(after_help = environment::with(FSCK_EXAMPLES, environment::CLIENT))]
    Fsck(FsckArgs),
    /// Read a region's state from its files
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect(InspectArgs),
    /// A client process of `demo`
    #[command(hide = true)]
    Worker(PoolArgs),
    /// A client process of `bench ycsb` and `demo`
    #[command(hide = true)]
    YcsbWorker,
    /// A client process of `bench locks`
    #[command(hide = true)]
    LocksWorker,
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Take a capped share of the input and short measurements: ends within a minute
    #[arg(long)]
    pub quick: bool,
    /// Directory tree: its regular files are stored and read back [default: the Rust toolchain's
    /// library sources, else /usr/share]
    #[arg(long, value_name = "DIR")]
    pub input: Option<PathBuf>,
    /// Write the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where the report goes
    #[arg(long, value_name = "FILE", default_value = "rackpool-demo.html")]
    pub html: PathBuf,
    /// How racks reach each other
    #[arg(long, value_name = "tcp|shm|verbs", default_value = "tcp")]
    pub fabric: FabricChoice,
    /// Memory of each rack [default: what the input needs]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Client processes, spread over both racks
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(2..=32))]
    pub clients: u32,
    /// Inject latency, for example cxl=140ns,rdma=2us
    #[arg(long, value_name = "LATENCIES")]
    pub emulate: Option<Emulate>,
}

#[derive(Debug, Args)]
pub struct MasterArgs {
    /// Address to serve at; port 0 takes any free one, a port alone is one of 127.0.0.1. Other
    /// machines are let in with a secret only
    #[arg(long, value_name = "ADDR|PORT", default_value = "127.0.0.1:7400",
          value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// File with the pool's secret, 16 to 4096 bytes that only its owner and group may read:
    /// daemons and clients have to prove that they have it. With `encrypt:` before the secret, what
    /// they say to one another is encrypted
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Directory that keeps the page directory
    #[arg(long, value_name = "DIR", required_unless_present = "ephemeral")]
    pub state: Option<PathBuf>,
    /// Keep nothing: without --state a temporary directory, and it goes with the master
    #[arg(long)]
    pub ephemeral: bool,
    /// How long a silent daemon of another host is believed to live
    #[arg(long, value_name = "MS", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub lease_ms: u64,
    /// Serve counters in the format of Prometheus over HTTP at /metrics, and /livez and /readyz; a
    /// port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen)]
    pub metrics: Option<SocketAddr>,
    /// File with a token of 16 bytes or more that readers of the counters have to send
    /// (`Authorization: Bearer TOKEN`): then other machines may read them
    #[arg(long, value_name = "FILE", requires = "metrics")]
    pub metrics_token_file: Option<PathBuf>,
    /// Where allocations go that name no rack: local-first, alternate, random, round-robin,
    /// least-loaded, smart-idle, even, or two of them such as alternate+smart-idle
    #[arg(long, value_name = "NAME", default_value_t)]
    pub placement: Policy,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

#[derive(Debug, Args)]
pub struct DaemonArgs {
    /// The rack that this daemon serves
    #[arg(long, value_name = "N")]
    pub rack: u16,
    /// Serve one of K equal parts of the rack's memory, such as 0/2 and 1/2: so many daemons share
    /// the rack's work, and each goes on with what belongs to one that dies. All get the same
    /// --memory; K is fixed when the memory is made
    #[arg(long, value_name = "I/K", value_parser = parse_shard, default_value = "0/1")]
    pub shard: (u16, u16),
    /// Address of the master; several with commas between [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR")]
    pub master: Option<String>,
    /// The rack's memory, all shards together: shm:PATH?size=SIZE[&huge=2M][&numa=NODE], several
    /// memories with numa=NODE:WEIGHT,NODE:WEIGHT, dax:PATH or heap:SIZE;
    /// pmem:PATH?size=SIZE[&domain=none|adr|eadr|msync] if it is to outlive a loss of power;
    /// dax:PATH?coherence=software if hosts share it and no hardware keeps their caches in
    /// agreement
    /// [default: shm:/dev/shm/rackpool-rackN?size=1G]
    #[arg(long, value_name = "MEMORY", value_parser = parse_memory)]
    pub memory: Option<String>,
    /// Make the memory even if the machine has less now: allocations fail when it is used up
    #[arg(long)]
    pub overcommit: bool,
    /// Address at which clients of other racks reach this one; port 0 takes any free one. Other
    /// machines are let in with a secret only
    #[arg(long, value_name = "ADDR|PORT", default_value = "127.0.0.1:0",
          value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// File with the pool's secret, as the master's
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// How clients of other racks reach this memory; all racks that are to reach one another by
    /// RDMA devices say verbs
    #[arg(long, value_name = "tcp|shm|verbs", default_value = "tcp")]
    pub fabric: FabricChoice,
    /// With fabric verbs the RDMA device, such as mlx5_0 or mlx5_0:1/3: NAME[:PORT][/GID]
    /// [default: the first one with a port that is up]
    #[arg(long, value_name = "DEVICE")]
    pub verbs_device: Option<String>,
    /// Bring pages that clients of this rack use to this rack, or copies of them: off, paper or
    /// cost, and behind commas what shall differ from the defaults, such as
    /// cost,fabric_share_milli=100
    #[arg(long, value_name = "off|paper|cost", default_value = "cost")]
    pub migrate: Migration,
    /// How clients' rings are served: `single` takes the next request when the one before it is
    /// finished, to measure what the two layers are worth
    #[arg(long, value_name = "two-layer|single", default_value = "two-layer")]
    pub rings: Rings,
    /// Send cold pages to emptier racks while this one is much fuller than the others
    #[arg(long, value_name = "off|on", value_enum, default_value = "off")]
    pub rebalance: Switch,
    /// Let one client have at most so much of this rack's memory [default: all of it]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub client_quota: Option<u64>,
    /// Keep what a client of another rack holds for so long after its connection has ended,
    /// milliseconds: it may come back
    #[arg(long, value_name = "MS", default_value_t = SESSION_GRACE_MS_DEFAULT)]
    pub session_grace_ms: u64,
    /// Let processes of this user of the host use the memory as well (a name, or a number); may be
    /// repeated [default: the daemon's own user, and root]
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    pub allow_user: Vec<u32>,
    /// Inject latency, for example cxl=140ns,rdma=2us
    #[arg(long, value_name = "LATENCIES")]
    pub emulate: Option<Emulate>,
    /// Serve counters in the format of Prometheus over HTTP at /metrics, and /livez and /readyz; a
    /// port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen)]
    pub metrics: Option<SocketAddr>,
    /// File with a token of 16 bytes or more that readers of the counters have to send
    /// (`Authorization: Bearer TOKEN`): then other machines may read them
    #[arg(long, value_name = "FILE", requires = "metrics")]
    pub metrics_token_file: Option<PathBuf>,
    /// Remove the region at the end
    #[arg(long)]
    pub ephemeral: bool,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

/// How a client finds its pool. What is missing comes from the environment, or is the default.
#[derive(Clone, Debug, Default, Args)]
pub struct PoolArgs {
    /// The rack that this program runs in [default: 0]
    #[arg(long, value_name = "N")]
    pub rack: Option<u16>,
    /// Address of the master; several with commas between [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR")]
    pub master: Option<String>,
    /// How other racks are reached [default: as their daemons say]
    #[arg(long, value_name = "auto|tcp|shm|verbs")]
    pub fabric: Option<FabricChoice>,
    /// With fabric verbs the RDMA device, NAME[:PORT][/GID] [default: the first one that is up]
    #[arg(long, value_name = "DEVICE")]
    pub verbs_device: Option<String>,
    /// File with the pool's secret
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// How long a call waits for a peer that restarts [default: 10000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ShellArgs {
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Commands, separated by semicolons; may be given several times
    #[arg(short = 'c', value_name = "CMD; CMD", conflicts_with = "words")]
    pub commands: Vec<String>,
    /// One command; without it and without -c, commands come from standard input
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub at: MasterAt,
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seconds)]
    pub interval: Duration,
    /// Print one table, with the rates of one interval, and end
    #[arg(long)]
    pub once: bool,
}

/// What `bench` can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchName {
    /// Own rack: reads and writes beside raw copies of the same mapping
    Local,
    /// Another rack: one-sided operations beside raw TCP or raw copies
    Remote,
    /// Client and daemon: a ring's round trip beside a bare cache-line ping-pong
    Ring,
    /// Locks, and the write buffer and page cache under them, beside the same without
    Locks,
    /// Calls for data by length and mode, beside one-sided reads; reads by number under way
    Rrpc,
    /// The hash table: a key of the own rack beside two loads, one of another beside a round trip
    Table,
    /// YCSB A, B, C, D and F with many clients in two racks
    Ycsb,
    /// A tree of files into one rack and out of another, beside cp -r
    Files,
    /// Pages that move to where they are used: policies beside none and beside an oracle
    Migrate,
    /// The key-value cache in process: look-ups beside the memory's bound; with --workload, the
    /// hit ratio of each policy on the distributions of a real cache
    Cache,
    /// The cache's server through memcached's and Redis's protocols: rates, latencies, and what it
    /// makes of its memory
    Kv,
    /// A fabric by itself (--fabric tcp, shm or verbs): READ, WRITE and ECHO, alone, in and out, by
    /// size, all to all; with perftest's tools beside it on devices
    Verbs,
    /// Chosen weights beside all others, on emulated memories; the allocator: an operation beside
    /// mimalloc itself, and beside jemalloc's arenas and memkind where they are installed
    Tiers,
    /// How quickly the simulator runs pool operations in performance mode
    Sim,
    /// How quickly memory channels are simulated, in requests a second of processor time
    Dram,
    /// The four rules of a guide to persistent memory, each without and with it, in the model of
    /// repro optane (--rules)
    Pmem,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub name: BenchName,
    /// Take a small size and short measurements
    #[arg(long)]
    pub quick: bool,
    /// Write the numbers as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// How the other rack is reached (remote, ycsb); the fabric (verbs)
    #[arg(long, value_name = "tcp|shm|verbs", default_value = "tcp")]
    pub fabric: FabricChoice,
    /// The RDMA device, NAME[:PORT][/GID] (verbs) [default: the first with an active port]
    #[arg(long, value_name = "DEVICE")]
    pub verbs_device: Option<String>,
    /// Inject latency, for example cxl=140ns,rdma=2us
    #[arg(long, value_name = "LATENCIES")]
    pub emulate: Option<Emulate>,
    /// One cache in DRAM, in far memory, and on both, transparent and by data (cache); far memory
    /// is that of nodes without processors, else, or with --emulate cxl=, emulated: of twice the
    /// latency, or of so much more
    #[arg(long)]
    pub tiering: bool,
    /// The nodes of far memory (cache --tiering), with numactl's placements beside where that is
    /// installed [default: those without processors]
    #[arg(long, value_name = "NODES", value_parser = parse_nodes, requires = "tiering",
          conflicts_with = "emulate")]
    pub far_nodes: Option<Nodes>,
    /// So many such caches at once, each with as much memory and a thread of its own
    /// (cache --tiering)
    #[arg(long, value_name = "N", requires = "tiering", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub engines: u32,
    /// Page sizes (migrate), with commas between
    #[arg(long, value_name = "BYTES,..", value_delimiter = ',', value_parser = parse_page,
          default_value = "4K,64K")]
    pub pages: Vec<u64>,
    /// Workloads (ycsb; cache: cdn, kvcache_reg, .. or all), with commas between [default: all]
    #[arg(long, value_name = "A,B,..", value_delimiter = ',')]
    pub workload: Vec<String>,
    /// Distributions (ycsb), with commas between [default: uniform,zipfian]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub distribution: Vec<String>,
    /// Beside memcached and redis-server on the same machine (kv, ycsb)
    #[arg(long)]
    pub peers: bool,
    /// This program as Redis (--peers), also one that is started and spoken to like it, such as
    /// Valkey [default: redis-server]
    #[arg(long, value_name = "PATH", requires = "peers")]
    pub peer_redis: Option<PathBuf>,
    /// This program as memcached (--peers) [default: memcached]
    #[arg(long, value_name = "PATH", requires = "peers")]
    pub peer_memcached: Option<PathBuf>,
    /// Rows (kv), with commas between, one * each for any text; items_*, hit_* and idle_connection
    /// take minutes and are left out of --quick unless they are named [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub rows: Vec<String>,
    /// HERD beside what it is compared with, over one fabric (kv): Pilaf, FaRM-KV with values
    /// inside and outside, emulated and with tables, and ECHO [without a name: shm]
    #[arg(long, value_name = "shm|tcp|verbs", num_args = 0..=1, require_equals = true,
          default_missing_value = "shm")]
    pub baselines: Option<FabricChoice>,
    /// What keeping to each rule gives, in the model (pmem)
    #[arg(long)]
    pub rules: bool,
    /// Client processes (ycsb)
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub clients: u32,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The pool; without --rack any rack of this host is joined.
    #[command(flatten)]
    pub pool: PoolArgs,
    /// Give back what is lost
    #[arg(long)]
    pub repair: bool,
    /// Write the findings as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Path of the region, as in --memory
    #[arg(value_name = "REGION")]
    pub region: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(all(test, feature = "lab"))]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The help of a command and of all commands in it.
    fn help_of(command: &clap::Command) -> String {
        let own = command.clone().render_long_help().to_string();
        own + &command.get_subcommands().map(help_of).collect::<String>()
    }

    /// What begins with two dashes, without them; not in lines about cargo or what is to come.
    fn options_in(text: &str) -> Vec<&str> {
        let is_of_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let lines = text.lines().filter(|line| !line.contains("cargo"));
        let words = lines
            .filter(|line| !line.ends_with("| later |"))
            .flat_map(|line| line.split(move |c| !is_of_word(c)));
        let names = words.filter_map(|word| word.strip_prefix("--"));
        names.filter(|name| !name.starts_with('-') && !name.is_empty()).collect()
    }

    /// Options that a document names and no command has.
    fn unknown_options(document: &str) -> Vec<&str> {
        let help = help_of(&Cli::command());
        let known = options_in(&help);
        options_in(document).into_iter().filter(|name| !known.contains(name)).collect()
    }

    #[test]
    fn options_that_the_documents_named_were_gone() {
        let documents = [
            include_str!("../../../README.md"),
            include_str!("../../../docs/quickstart.md"),
            include_str!("../../../docs/semantics.md"),
            include_str!("../../../docs/plan.md"),
            include_str!("../../../docs/cache.md"),
        ];
        for document in documents {
            assert_eq!(unknown_options(document), [""; 0]);
        }
        let published = "start it with `--rack 1 --warmth_decay 0.04`, or --with-structure";
        assert_eq!(unknown_options(published), ["warmth", "with-structure"]);
    }

    /// Names of variables in a text, sorted.
    fn named(text: &str) -> Vec<&str> {
        let is_of_name = |c: char| c.is_ascii_uppercase() || c == '_';
        let words = text.split(|c| !is_of_name(c));
        let mut names: Vec<&str> = words.filter(|word| word.starts_with("RACKPOOL_")).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    #[test]
    fn every_variable_that_is_read_stands_in_the_help_of_the_commands_that_read_it() {
        let reader = include_str!("../../pool/src/options.rs");
        let mut clients: Vec<&str> = environment::CLIENT.iter().map(|(name, _)| *name).collect();
        clients.sort_unstable();
        assert_eq!(named(reader), clients);
        let documented: Vec<&str> = named(include_str!("../../../docs/deploy.md"));
        let (log, documented): (Vec<_>, Vec<_>) =
            documented.into_iter().partition(|name| *name == crate::log_args::VARIABLE);
        assert_eq!((log.len(), documented), (1, clients.clone()));
        let others = ["RACKPOOL_MASTER", "RACKPOOL_REQUEST_TIMEOUT_MS"];
        let cache: Vec<&str> =
            clients.iter().copied().filter(|name| !others.contains(name)).collect();
        let servers = ["RACKPOOL_CONFIG", "RACKPOOL_MASTER", "RACKPOOL_VERBS_DEVICE"];
        let watchers = ["RACKPOOL_CONFIG", "RACKPOOL_MASTER", "RACKPOOL_REQUEST_TIMEOUT_MS"];
        for mut command in Cli::command().get_subcommands().cloned() {
            let expected: &[&str] = match command.get_name() {
                "shell" | "fsck" => &clients,
                "kv" => &cache,
                "daemon" | "agent" | "fence" => &servers,
                "racks" | "drain" | "undrain" | "forget" | "top" | "plan" => &watchers,
                _ => &[],
            };
            let help = command.render_long_help().to_string();
            assert_eq!(named(&help), expected, "{}", command.get_name());
        }
    }

    #[test]
    fn the_lines_of_the_contract_are_understood() {
        for line in [
            "rackpool demo --quick --input /usr/share --json a.json --html a.html",
            "rackpool master --listen 127.0.0.1:7400 --state dir",
            "rackpool daemon --rack 1 --master 127.0.0.1:7400 \
             --memory shm:/dev/shm/rack1?size=1G --listen 127.0.0.1:0 --fabric shm \
             --emulate cxl=140ns,rdma=2us --ephemeral",
            "rackpool shell --rack 0 --master 127.0.0.1:7400 -c ls",
            "rackpool shell --rack 0 add 0x200000 -1",
            "rackpool top --master 127.0.0.1:7400 --interval 0.5 --once",
            "rackpool master --state dir --metrics 9400",
            "rackpool master --state dir --placement alternate+smart-idle:250ms",
            "rackpool daemon --rack 0 --metrics [::1]:0",
            "rackpool daemon --rack 0 --shard 0/1",
            "rackpool daemon --rack 0 --fabric verbs --verbs-device mlx5_0:1/3",
            "rackpool agent --rack 0 --master 127.0.0.1:7400 --memory dax:/dev/dax0.0 --name b",
            "rackpool fence --rack 0 --host b",
            "rackpool daemon --rack 0 --shard 7/8 --memory shm:/dev/shm/rack0?size=1G",
            "rackpool bench remote --fabric tcp --quick --json remote.json",
            "rackpool bench ycsb --workload A,B --distribution zipfian",
            "rackpool sim run --seeds 2000 --first-seed 7 --faults all --racks 2 --clients 4 \
             --operations 2000 --profile modern --threads 2 --json a.json --html a.html",
            "rackpool sim run --faults crash-client,partition --placement smart-idle",
            "rackpool sim replay 17 --racks 2 --faults none --trace-lines 100",
            "rackpool sim scale --profile modern --racks 2,64 --clients 8 --json a.json",
            "rackpool sim rack wl-mix --placement alternate+even:7us --seed 1,2 --threads 2",
            "rackpool sim rack a.toml --pool-load 40,70 --preset corrected,cxl --chunk-kib 64,4096",
            "rackpool repro racksim --out dir --quick",
            "rackpool repro hmsdk --out dir --quick",
            "rackpool repro optane --out dir --quick",
            "rackpool bench pmem --rules --quick --json rules.json",
            "rackpool sim ladder --profile rcmp-testbed --html a.html",
            "rackpool calibrate --out a.toml --base laptop --tiers a.json --cxl-node 2",
            "rackpool doctor --json",
            "rackpool tiers show --sysfs dir --json a.json",
            "rackpool tiers run --weighted 3:1 --report a.json -- python3 --version",
            "rackpool tiers run sleep -1",
            "rackpool tiers apply --weighted 3:1 --save a.json --overwrite",
            "rackpool tiers balance --pid 7 --fast 0 --slow 1-2 --seconds 9 --json a.json",
            "rackpool tiers balance --cgroup /app --sample 0.02 --regions 10-1000 --free 60",
            "rackpool tiers advise --kv 9402 --profile a.json --far numa:1 --json b.json",
            "rackpool tiers advise --workload cdn --near-memory 8g --profile a.json",
            "rackpool kv --resp 0 --tiering auto --far-memory 1g --advise --profile a.json",
            "rackpool kv --resp 0 --tiering transparent:numa:0=3,numa:1=1 --grain 4k",
            "rackpool kv --resp-socket r --memcached-socket m --socket-mode 770 --max-value 512m",
            "rackpool bench cache --tiering --far-nodes 1-2 --workload cdn --engines 3",
            "rackpool inspect /dev/shm/rack0",
        ] {
            let words = line.split_whitespace();
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn what_is_not_in_the_contract_is_refused() {
        for line in [
            "rackpool",
            "rackpool fly",
            "rackpool master",
            "rackpool daemon",
            "rackpool daemon --rack 70000",
            "rackpool daemon --rack 0 --fabric pigeon",
            "rackpool daemon --rack 0 --shard 2/2",
            "rackpool daemon --rack 0 --shard 0/9",
            "rackpool daemon --rack 0 --shard 1",
            "rackpool daemon --rack 0 --emulate cxl=1year",
            "rackpool daemon --rack 0 --memory tape:/dev/st0",
            "rackpool demo --clients 1",
            "rackpool top --interval 0",
            "rackpool top --interval NaN",
            "rackpool master --state dir --metrics 70000",
            "rackpool master --state dir --placement nearest",
            "rackpool daemon --rack 0 --metrics somewhere",
            "rackpool bench gravity",
            "rackpool sim",
            "rackpool sim run --faults fire",
            "rackpool sim run --seeds 0",
            "rackpool sim run --threads 0",
            "rackpool sim scale --racks 1",
            "rackpool sim rack",
            "rackpool sim rack wl-mix --accesses 0",
            "rackpool sim rack wl-mix --placement nearest",
            "rackpool sim replay",
            "rackpool shell -c ls ls",
            "rackpool tiers",
            "rackpool tiers show dir",
            "rackpool tiers run",
            "rackpool tiers apply 3:1",
            "rackpool tiers apply --auto --weighted 3:1",
            "rackpool tiers apply --save a.json",
            "rackpool tiers run --membind 0 --interleave 0 -- true",
            "rackpool tiers balance --pid 7 --cgroup /app",
            "rackpool tiers balance --kernel-tiering --fast 0",
            "rackpool tiers balance --no-goals --free 3",
            "rackpool tiers advise --profile a.json",
            "rackpool tiers advise --kv 9402",
            "rackpool tiers advise --workload cdn --profile a.json",
            "rackpool kv --resp 0 --advise",
            "rackpool kv --socket-mode 770",
            "rackpool kv --resp 0 --socket-mode 980",
            "rackpool kv --resp 0 --max-value 513m",
        ] {
            assert!(Cli::try_parse_from(line.split_whitespace()).is_err(), "{line}");
        }
    }
}
