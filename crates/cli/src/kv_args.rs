//! The command `kv` as data.

use crate::kv_flash::{FlashArgs, parse_flash};
use crate::kv_pmem::{ValueTierPlace, parse_value_tier};
use crate::values::{parse_listen, parse_size};
use clap::{ArgGroup, Args, ValueEnum};
use rackpool::FabricChoice;
use rackpool_cache::herd::Pipeline;
use rackpool_cache::{Mode, Policy, VALUE_BYTES_MAX};
use rackpool_mem::numa::{GRAIN_BYTES_MAX, GRAIN_BYTES_MIN, Placement};
use std::net::SocketAddr;
use std::path::PathBuf;

/// What decides where a long value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ValueTierRule {
    /// Its length alone: none has a copy
    Length,
    /// Also how often it is read, and what that costs
    Bandwidth,
}

/// In which memories the items of a cache lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tiering {
    /// Data on the nodes without processors, if there are any, else DRAM.
    Auto,
    /// All in the memory that the system gives; these nodes are there to be switched to.
    Dram(Option<Placement>),
    /// All dealt out to nodes by weights.
    Transparent(Placement),
    /// Those that are worth most where the cache is, others on these nodes; `None`: on those
    /// without processors.
    Data(Option<Placement>),
}

fn parse_tiering(text: &str) -> Result<Tiering, String> {
    let (mode, nodes) =
        text.split_once(':').map_or((text, None), |(mode, nodes)| (mode, Some(nodes)));
    let nodes =
        nodes.map(str::parse::<Placement>).transpose().map_err(|error| error.to_string())?;
    match (mode, nodes) {
        ("auto", None) => Ok(Tiering::Auto),
        ("dram", nodes) => Ok(Tiering::Dram(nodes)),
        ("transparent", Some(nodes)) => Ok(Tiering::Transparent(nodes)),
        ("transparent", None) => {
            Err("it needs nodes with weights, as `rackpool tiers weights` finds them: \
                 transparent:numa:0=3,numa:1=1"
                .into())
        }
        ("data", nodes) => Ok(Tiering::Data(nodes)),
        _ => Err(format!(
            "`{text}` is none of auto, dram, dram:NODES, transparent:NODES, data, data:NODES, such \
             as data:numa:1"
        )),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| (1..=0o777).contains(mode));
    mode.ok_or_else(|| format!("`{text}` is no octal number such as 700 or 770"))
}

fn parse_value_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let is_possible = (1..=VALUE_BYTES_MAX).contains(&bytes);
    is_possible.then_some(bytes).ok_or_else(|| format!("`{text}` is not from 1 to 512M"))
}

fn parse_grain(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let is_grain = bytes.is_power_of_two() && (GRAIN_BYTES_MIN..=GRAIN_BYTES_MAX).contains(&bytes);
    is_grain.then_some(bytes).ok_or_else(|| format!("`{text}` is no power of two from 4K to 2M"))
}

pub const KV_EXAMPLES: &str = "\
Prints `ready memcached=ADDR resp=ADDR` on standard output when it serves (`none` for a
listener that is not open; then ` metrics=ADDR`, ` herd=NAME`, ` herd-fabric=ADDR`,
` memcached-socket=PATH`, ` resp-socket=PATH` for those that are); stops on SIGINT, SIGTERM and
SIGHUP.
--memcached-socket and --resp-socket serve at Unix sockets, beside the ports or alone. The files go
at the end; one that a killed server has left is replaced.
Ordinary clients need no change: text, meta and binary commands of memcached at one address, RESP2
and RESP3 at the other, one cache behind both.

With --herd the same cache is open to processes of this host and user through shared memory: a
request slot for each client and window, polled by threads that sleep without work, one round
trip for every operation. Programs use it by the crate rackpool-cache, herd::Client::connect(NAME);
what is longer than a slot of 1000 bytes goes in parts. --herd-listen opens the same path over the
fabric: requests by one-sided WRITE, replies by SEND, herd::Client::connect_at(ADDR); addresses that
other machines reach only with --secret-file, a secret that clients prove that they have. With
--herd-device clients may come by RDMA from there on, as in the paper: WRITE over unreliable
connections or SEND over datagrams, replies over datagrams.

Other machines are let in with passwords only: --auth-file holds lines user:password for memcached's
text protocol (and closes the binary one), --password-file the password of RESP's AUTH. With
--tls-cert and --tls-key both listeners speak TLS.

With --config FILE options come from a file as well, one directive a line: names of options here
without --, or Redis's: bind, port, tls-port, unixsocket, unixsocketperm, maxmemory,
maxmemory-policy (allkeys-lru and allkeys-lfu are tinylfu), maxclients, timeout, databases,
requirepass, io-threads, slowlog-log-slower-than, proto-max-bulk-len, tls-cert-file, tls-key-file,
protected-mode. A name that is not known is refused; of several lines with one name the last counts.

With --pool long values lie in the memory of a running pool, in all its racks: index, keys and short
values stay in --memory, values from --pool-values on go to the pool, up to --pool-memory of it,
and are streamed from there. What the pool lends comes back when this process ends, however it
ends; while a rack does not answer, its values are errors (RESP) or misses (counted as
tier_failed), and everything else is served.

With --value-tier long values lie on another memory node of this host, such as one of CXL memory
without processors, or on several by weights; index, keys and short values stay where the cache is.
With --value-tier-rule bandwidth values there (or in a pool) have a copy in this process's memory as
well as soon as reads of them have lost the time that a copy costs, by what reads cost there and
here: by --profile, else measured at the start, which takes a moment; reads of a pool always are. So
which do is decided for each by its length and by how often it is read. Copies take up to
--value-tier-near, beside --memory; stats has tier_promotions, tier_near_hits, tier_near_bytes,
tier_bytes_read.
With --flash items that are evicted go to a file or a block device, if they were read or leave once
more, and come back when they are asked for: the command waits for them, other clients do not. So
they do after a restart and after a kill; what was changed, removed or flushed does not. Strings of
database 0 alone; by HERD, and by a script of keys that it was not told, only what is in memory is
found. A PATH.gone beside the file says what is gone. stats and INFO have flash_items and more.
With &mode=store nothing is lost: all items are there, --memory has those that are used, and each
change is answered when it is durable, together with those of other clients. Full is an error; so
are hashes, other databases, scripts, SCAN, KEYS, DBSIZE and SWAPDB, and HERD at the start.
--value-tier pmem:PATH?size=BYTES is the same in memory that persists: a devdax, a file of a DAX
file system, or any file (msync). What a cache has there is right after a power cut, too.
Where the machine has memory nodes without processors, as those of CXL memory are, --tiering data is
the default (--tiering dram: not), with as much memory there if they have it to give, and a --warm
file was not made without; the log says so at the start.
With --tiering data whole items lie on another memory node, short ones too, up to --far-memory of
it; the index stays. What is worth most for its bytes lies in --memory: items go there and back as
their use changes, some at each change and some in idle turns. Values from 64 KiB on go far at once.
stats has far_bytes, promotions, demotions. With --profile reads are split between both memories in
proportion to their bandwidths while they are more than near memory alone delivers with ease, and
items that are read move for it. What is read is estimated from every 31st read (stats:
near_bytes_read, far_bytes_read); no counter of the memory itself is looked at.
A running cache is switched by Redis's CONFIG SET tiering dram, data, or transparent:NODES. In mode
dram items go near alone; what lies far comes near, if it is worth more than what lies there, or
goes, in idle turns; then far memory goes back to the system (far_bytes, far_held_bytes; the log).
To switch to data later start with --tiering dram:NODES, which keeps only address space for it. In
mode transparent far memory is left as well, and --memory is dealt out to NODES, all of it: pages
move in idle turns, as they come back for the other modes (pages_left_bytes, pages_moved_bytes; what
could not move, pages_stayed_bytes, is tried again if the mode is set again). --warm files are
opened in modes dram and data, with the same --far-memory, whatever they were switched to.
With --interleave, or --tiering transparent, all of the cache is dealt out to nodes by weights, for
their bandwidth together: 64 KiB (--grain) for each unit of weight in turn, so that a long value
lies in all of them. With grains below 2M all of it is taken at the start, in small pages, whose
tables take 2 MiB a GiB, and a node that has too little left is refused.

More memory than this host has (or the limit of the container) is refused, as is more than the nodes
of --tiering and --interleave have to give now; more than is free now is warned of. If an eighth
more is free it is taken right after the start, beside serving, so that no change waits later until
the system has zeroed a page; --memory-on-demand leaves it until then.

With --warm the cache lies in a file of shared memory and is there again after a restart, also after
a kill: every item is checked, and what does not fit its check is dropped and counted. Times to live
go on over a restart, and no jump of the wall clock ends them. The file is yours alone (mode 0600):
remove it to start empty, or to give the memory back. With --value-tier the values lie in
FILE.values beside it.

Examples:
  rackpool kv --memory 1g --memcached 11211 --resp 6379
  rackpool kv --memory 512m --resp 127.0.0.1:0 --threads 2     any free port
  rackpool kv --memory 4g --memcached 11211 --idle-seconds 300 --metrics 9402
  rackpool kv --memory 1g --memcached 11211 --herd rackpool/cache0
  rackpool kv --memory 1g --memcached 11211 --herd-listen 7100
  rackpool kv --memory 1g --herd-listen 10.0.0.1:7100 --secret-file ./secret --herd-device mlx5_0
  rackpool kv --memory 1g --resp 0.0.0.0:6379 --password-file ./password
  rackpool kv --memory 4g --memcached 11211 --warm /dev/shm/cache
  rackpool kv --memory 4g --resp 6379 --value-tier numa:1 --value-tier-memory 64g
  rackpool kv --memory 4g --resp 6379 --value-tier numa:1 --value-tier-rule bandwidth
  rackpool kv --memory 4g --resp 6379 --tiering data:numa:1 --far-memory 64g
  rackpool kv --memory 4g --resp 6379 --tiering data:numa:1 --profile profile.json
  rackpool kv --memory 4g --resp 6379 --tiering dram:numa:1 --far-memory 64g
                                                               redis-cli config set tiering data
  rackpool kv --memory 4g --resp 6379 --metrics 9402 --advise --profile profile.json
  rackpool kv --memory 4g --resp 6379 --flash /flash/items?size=64g
  rackpool kv --memory 8g --resp 6379 --interleave numa:0=3,numa:1=1
  rackpool kv --memory 8g --memcached 11211 --items 40000000 --lossy-index
  rackpool kv --memory 1g --resp 6379 --pool 127.0.0.1:7400 --pool-memory 64g
  rackpool kv --memory 1g --resp 6379 --tls-cert cert.pem --tls-key key.pem

  rackpool kv --memory 1g --resp-socket /run/kv/redis.sock --socket-mode 770
  rackpool kv --config kv.conf --memory 2g                     kv.conf has lines such as
                                                               maxmemory 1gb
                                                               port 6379
                                                               maxclients 5000

  redis-cli -p 6379 set greeting hello                         then, from another client:
  printf 'get greeting\\r\\nquit\\r\\n' | nc 127.0.0.1 11211";

#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("listener").required(true).multiple(true)))]
pub struct KvArgs {
    /// Memory of the cache: items, index and everything beside them
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = parse_size)]
    pub memory: u64,
    /// Take memory from the system as items need it, instead of right after the start
    #[arg(long, conflicts_with = "warm")]
    pub memory_on_demand: bool,
    /// Serve memcached's protocols; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen, group = "listener")]
    pub memcached: Option<SocketAddr>,
    /// Serve Redis's protocol; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen, group = "listener")]
    pub resp: Option<SocketAddr>,
    /// Serve memcached's protocols at a Unix socket, which is a file with this path; without TLS
    #[arg(long, value_name = "PATH", group = "listener")]
    pub memcached_socket: Option<PathBuf>,
    /// Serve Redis's protocol at a Unix socket
    #[arg(long, value_name = "PATH", group = "listener")]
    pub resp_socket: Option<PathBuf>,
    /// Rights of the files of Unix sockets, octal: 770 lets their group in [default: 700]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub socket_mode: Option<u32>,
    /// Serve HERD's fast path to processes of this host under this name: shared memory instead of
    /// sockets
    #[arg(long, value_name = "NAME", group = "listener")]
    pub herd: Option<String>,
    /// Serve HERD's fast path over the fabric; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen, group = "listener")]
    pub herd_listen: Option<SocketAddr>,
    /// The RDMA device of HERD's fast path over the fabric, NAME[:PORT][/GID]; needs a program that
    /// was built with it
    #[arg(long, value_name = "DEVICE", requires = "herd_listen")]
    pub herd_device: Option<String>,
    /// Clients of HERD's fast path at once, each listener (over the fabric at most 16320)
    /// [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub herd_clients: Option<u32>,
    /// How HERD's serving threads hide waits for memory: batched; or two-stage, HERD's own way,
    /// which needs no-ops to answer a lone request: to compare with [default: batched]
    #[arg(long, value_name = "MODE", value_parser = parse_pipeline)]
    pub herd_pipeline: Option<Pipeline>,
    /// Threads that serve, each listener [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Option<u32>,
    /// Which items stay when room is needed: tinylfu, s3fifo, sieve, fifo, or fifo-reinsertion:N
    /// for those used N times; noeviction: all, and what finds no room is refused
    #[arg(long, value_name = "NAME", default_value = "tinylfu", value_parser = parse_policy)]
    pub policy: NamedPolicy,
    /// Make the index for so many items at the start, which spares it from growing; it takes half
    /// of the memory at most
    #[arg(long, value_name = "N")]
    pub items: Option<u64>,
    /// HERD's index: it has one bucket for a key and never grows, so look-ups touch no other, and
    /// an item that finds its bucket full replaces another one
    #[arg(long, requires = "items")]
    pub lossy_index: bool,
    /// Longest value, up to 512M and a quarter of the memory that long values lie in; long ones
    /// leave fewer partitions for the threads [default: a 32nd of that memory up to 16M, a 256th
    /// if that is more]
    #[arg(long, value_name = "BYTES", value_parser = parse_value_bytes)]
    pub max_value: Option<u64>,
    /// Keep the cache in this file of shared memory (in /dev/shm), and find it there again
    #[arg(long, value_name = "FILE")]
    pub warm: Option<PathBuf>,
    /// Long values lie in the memory of the pool with this master; several masters with commas
    /// between
    #[arg(long, value_name = "ADDR", conflicts_with = "warm", group = "tier")]
    pub pool: Option<String>,
    /// The rack that this program runs in [default: 0]
    #[arg(long, value_name = "N", requires = "pool")]
    pub rack: Option<u16>,
    /// How other racks are reached [default: as their daemons say]
    #[arg(long, value_name = "auto|tcp|shm", requires = "pool")]
    pub fabric: Option<FabricChoice>,
    /// File with the pool's secret, which clients of HERD's fast path over the fabric prove, too
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Memory of the pool that values may take [default: as much as --memory]
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "pool")]
    pub pool_memory: Option<u64>,
    /// Values from this length on lie in the pool, at least 1K
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "pool",
          default_value = "64K")]
    pub pool_values: u64,
    /// How long a call waits for a rack that does not answer
    #[arg(long, value_name = "MS", default_value_t = 1000, requires = "pool",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub pool_timeout_ms: u64,
    /// All memory of the cache comes from these memory nodes: numa:1 is one, numa:0=3,numa:1=1 are
    /// two, and pages are dealt out by weights
    #[arg(long, value_name = "NODES")]
    pub interleave: Option<Placement>,
    /// What a node gives at a time for --interleave and --tiering transparent, 4K to 2M; 2M are
    /// huge pages, taken later than at the start [default: 64K; with --memory-on-demand 2M]
    #[arg(long, value_name = "BYTES", value_parser = parse_grain,
          conflicts_with = "memory_on_demand")]
    pub grain: Option<u64>,
    /// Where items lie: dram[:NODES], where it may be switched to data on these nodes;
    /// transparent:NODES, as --interleave; data[:NODES], those worth most in --memory, others on
    /// these nodes [default: those without processors]; auto: data where there are such nodes, else
    /// dram [default: auto]
    #[arg(long, value_name = "MODE[:NODES]", value_parser = parse_tiering,
          conflicts_with_all = ["interleave", "value_tier", "pool"])]
    pub tiering: Option<Tiering>,
    /// Memory there for --tiering data or dram:NODES [default: as much as --memory]
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub far_memory: Option<u64>,
    /// A profile of `rackpool tiers measure` with the bandwidths of the nodes, for --tiering data:
    /// while near memory is saturated, reads are split by them; for --value-tier-rule bandwidth,
    /// instead of measuring at the start; and for --advise
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Say in the log which --tiering would be best for the load, and why, when that changes;
    /// --metrics then has hits by capacity, for `rackpool tiers advise`
    #[arg(long, requires = "profile")]
    pub advise: bool,
    /// Long values come from these memory nodes, index, keys and short values from where the cache
    /// is; or pmem:PATH?size=BYTES: as --flash, in memory that persists [domain: &domain=, else as
    /// the system says]
    #[arg(long, value_name = "NODES|pmem:PATH?size=BYTES", conflicts_with = "pool", group = "tier",
          value_parser = parse_value_tier)]
    pub value_tier: Option<ValueTierPlace>,
    /// Memory that values may take there [default: as much as --memory]
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "value_tier")]
    pub value_tier_memory: Option<u64>,
    /// Values from this length on lie there, at least 1K
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "value_tier",
          default_value = "4K")]
    pub value_tier_from: u64,
    /// Which values there, or in the pool, have a copy here as well
    #[arg(long, value_enum, value_name = "RULE", requires = "tier", default_value = "length")]
    pub value_tier_rule: ValueTierRule,
    /// Memory for these copies [default: an eighth of --memory]
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "tier")]
    pub value_tier_near: Option<u64>,
    /// Items that leave memory go to this file or block device and come back when they are asked
    /// for; with &admit=all also those that were never asked for. With &mode=store it has all
    /// items, and a change is answered when it is durable there. Its index takes memory beside
    /// --memory, 14 MiB a GiB (less by &index=BYTES)
    #[arg(long, value_name = "PATH?size=BYTES", value_parser = parse_flash)]
    pub flash: Option<FlashArgs>,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Connections at once of one address [default: half of --max-connections, of a loopback
    /// address all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections_per_address: Option<u32>,
    /// Disconnect a client that is silent for so long; 0: only if all connections are in use
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub idle_seconds: u64,
    /// Databases of RESP (SELECT)
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u8).range(1..=16))]
    pub databases: u8,
    /// Remember commands that take longer, microseconds (SLOWLOG)
    #[arg(long, value_name = "US", default_value_t = 10_000)]
    pub slow_us: u64,
    /// Stop a script that runs for longer, milliseconds (EVAL, FCALL)
    #[arg(long, value_name = "MS", default_value_t = 5000,
        value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub script_ms: u64,
    /// File with the password of RESP's AUTH, its first line; only you (or your group) may read it
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// File with lines user:password for memcached's text protocol; only you may read it
    #[arg(long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Let clients of memcached's protocol stop the server (shutdown)
    #[arg(long)]
    pub enable_shutdown: bool,
    /// Speak TLS: chain of certificates in PEM form, the server's own first
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM form; only you may read it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Listen where other machines can come in although no password is asked
    #[arg(long)]
    pub insecure_open: bool,
    /// Serve counters in the format of Prometheus over HTTP at /metrics, and /livez and /readyz
    #[arg(long, value_name = "ADDR|PORT", value_parser = parse_listen)]
    pub metrics: Option<SocketAddr>,
    /// File with a token of 16 bytes or more that readers of the counters have to send
    /// (`Authorization: Bearer TOKEN`): then other machines may read them
    #[arg(long, value_name = "FILE", requires = "metrics")]
    pub metrics_token_file: Option<PathBuf>,
    /// Read options from this file, one a line, by their names here or by Redis's (`port`,
    /// `maxmemory`, `requirepass` ...); what the command line says as well counts
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The password that the file says.
    #[arg(skip)]
    pub password: Option<String>,
    /// End when standard input ends
    #[arg(long, hide = true)]
    pub exit_with_parent: bool,
}

impl KvArgs {
    /// The memory nodes for long values.
    pub fn value_tier_nodes(&self) -> Option<&Placement> {
        match &self.value_tier {
            Some(ValueTierPlace::Nodes(nodes)) => Some(nodes),
            _ => None,
        }
    }
}

/// A policy and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPolicy {
    /// As it was given.
    pub name: String,
    /// What it is.
    pub policy: Policy,
    /// Whether anything may go.
    pub mode: Mode,
}

fn parse_pipeline(text: &str) -> Result<Pipeline, String> {
    match text {
        "batched" => Ok(Pipeline::Batched),
        "two-stage" => Ok(Pipeline::TwoStage),
        _ => Err(format!("`{text}` is neither batched nor two-stage")),
    }
}

fn parse_policy(text: &str) -> Result<NamedPolicy, String> {
    let (name, number) = text.split_once(':').map_or((text, None), |(n, rest)| (n, Some(rest)));
    let number = number.map(str::parse::<u8>).transpose();
    let mode = if name == "noeviction" { Mode::Store } else { Mode::Cache };
    let policy = match (name, number) {
        ("tinylfu", Ok(None)) => Policy::TinyLfu,
        ("s3fifo", Ok(None)) => Policy::S3Fifo,
        ("sieve", Ok(None)) => Policy::Sieve,
        // A store evicts nothing.
        ("fifo" | "noeviction", Ok(None)) => Policy::Fifo,
        ("fifo-reinsertion", Ok(None)) => Policy::FifoReinsertion { threshold: 1 },
        ("fifo-reinsertion", Ok(Some(threshold @ 1..=15))) => Policy::FifoReinsertion { threshold },
        _ => {
            let all = "tinylfu, s3fifo, sieve, fifo, fifo-reinsertion:1 to :15, noeviction";
            return Err(format!("`{text}` is none of {all}"));
        }
    };
    Ok(NamedPolicy { name: text.to_owned(), policy, mode })
}
