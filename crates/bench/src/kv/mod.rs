//! `bench kv`: our server beside memcached and redis-server, through their own protocols.
//!
//! All servers run on one core with one thread, the client (`client.rs`, the same for all) on the
//! other; slices of ours and theirs take turns. Each figure has the rate and, since the client may
//! be what is slow, the CPU time that the server spent for a request, from its threads'
//! `schedstat`. Nothing is measured before the servers are done with their own beginnings. Without
//! peers only ours is measured. Then HERD's fast path to the same server
//! (`herd.rs`), with the machine as its reference; if that is wanted, the systems that HERD is
//! compared with (`baselines.rs`); and what each server makes of its memory (`capacity.rs`).

mod baselines;
mod blocking;
mod capacity;
mod client;
mod herd;
mod selection;
pub(crate) mod servers;

use crate::baselines::Carrier;
use crate::interleave::compare;
use crate::micro::pin::{self, CorePair};
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps};
use client::{LoadGenerator, LoadOptions, Work};
use rackpool_stats::histogram::{Histogram, Summary};
use rackpool_stats::sample::quantile;
use selection::RowSelection;
pub use servers::PeerPrograms;
use servers::{ServerLimits, ServerProcess, Still};
use std::process::Command;
use std::time::{Duration, Instant};

/// What `bench kv` measures on.
pub struct Options<'c> {
    pub size: Size,
    /// The servers beside ours, if there are to be any.
    pub peers: Option<PeerPrograms>,
    /// The rows that are wanted, by names in which one `*` stands for any text; none: all, in a
    /// quick run without those that take long.
    pub rows: Vec<String>,
    /// Starts our server with these further words: it must say
    /// `ready memcached=ADDR resp=ADDR herd=NAME herd-fabric=ADDR`.
    pub ours: &'c mut dyn FnMut(&[&str]) -> Command,
    /// Over what HERD and the systems that it is compared with are measured beside each other, if
    /// they are.
    pub baselines: Option<Carrier>,
    /// Starts a process that runs [`crate::baselines::worker`].
    pub worker: &'c mut dyn FnMut(u32) -> Command,
}

/// On which cores the two sides run; this thread is on the client's.
#[derive(Clone, Copy)]
pub struct KvCores {
    pub server: usize,
    pub client: usize,
}

/// One figure: its name, and what the client does.
struct Figure {
    name: &'static str,
    work: Work,
    connections: usize,
    /// Whether the peer is redis-server.
    resp: bool,
}

/// Connections of the figures, as `redis-benchmark` has by default.
const CONNECTIONS: usize = 50;
/// Requests that a connection has under way in the pipelined figures.
const DEPTH: usize = 32;
const MULTI_KEYS: usize = 50;
const LIMITS: ServerLimits = ServerLimits { memory_mib: 1024, connections: 1024 };
/// Names the random choices; any other would do.
const SEED: u64 = 23;
/// How long servers use next to no processor time before they count as ready.
const SETTLED_FOR: Duration = Duration::from_millis(200);
const SETTLED_WITHIN: Duration = Duration::from_secs(20);

fn figures() -> Vec<Figure> {
    let figure = |name, work, resp| Figure { name, work, connections: CONNECTIONS, resp };
    let (get, set) = (|depth| Work::Get { depth }, |depth| Work::Set { depth });
    vec![
        figure("resp_get_p32", get(DEPTH), true),
        figure("resp_set_p32", set(DEPTH), true),
        figure("mc_get_p32", get(DEPTH), false),
        figure("mc_set_p32", set(DEPTH), false),
        figure("mc_mget50", Work::MultiGet { keys: MULTI_KEYS }, false),
        figure("resp_hget_p32", Work::HashGet { depth: DEPTH }, true),
        figure("resp_hset_p32", Work::HashSet { depth: DEPTH }, true),
        figure("resp_multi_p32", Work::Transaction { commands: DEPTH }, true),
        figure("resp_evalsha_p1", Work::Script, true),
        figure("resp_get_p1", get(1), true),
        figure("mc_get_p1", get(1), false),
        figure("resp_set_p1", set(1), true),
        figure("mc_set_p1", set(1), false),
        Figure { name: "mc_get_1mb", work: Work::Large, connections: 4, resp: false },
    ]
}

/// Keys that are stored and asked for.
fn key_count(size: Size) -> u32 {
    match size {
        Size::Smoke => 2_000,
        Size::Quick => 200_000,
        Size::Full => 1_000_000,
    }
}

/// How long a slice lasts: long beside the time in which connections start and end.
fn slice(size: Size) -> Duration {
    Duration::from_millis(match size {
        Size::Smoke => 5,
        Size::Quick => 60,
        Size::Full => 200,
    })
}

/// Measures.
///
/// # Errors
/// [`BenchError`]; every process that was started is gone then.
pub fn run(
    options: &mut Options<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let selection = RowSelection::new(&options.rows, options.size)?;
    // Before this thread is pinned: it says how many cores there are.
    let report = Report::here(Kind::Measured);
    let cores = pin::allowed_cores()?;
    let CorePair { first: server, second: client } = pin::two_cores()?;
    let measured = rows(options, KvCores { server, client }, &selection, report, progress);
    pin::pin_to_any(&cores)?;
    measured
}

/// What `start` starts, on the servers' core; this thread is on the client's afterwards.
fn started<T>(
    cores: KvCores,
    start: impl FnOnce() -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    // What is started inherits its core.
    pin::pin_to(cores.server)?;
    let started = start();
    pin::pin_to(cores.client)?;
    started
}

fn rows(
    options: &mut Options<'_>,
    cores: KvCores,
    selection: &RowSelection,
    mut report: Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let beside = options.baselines.map_or(0, |_| baselines::steps(options.size));
    let mut steps = Steps::new(selection.len() + 1 + beside, progress);
    report.extra.insert("size".into(), options.size.name().into());
    if let Some(peers) = &options.peers {
        report.extra.insert("redis".into(), servers::version(&peers.redis)?.into());
        report.extra.insert("memcached".into(), servers::version(&peers.memcached)?.into());
    }
    if selection.has_rates() || options.baselines.is_some() {
        rates(options, cores, selection, &mut steps, &mut report)?;
    }
    capacity::rows(options, cores, selection, &mut steps, &mut report)?;
    steps.end();
    Ok(report)
}

struct All {
    ours: ServerProcess,
    memcached: Option<ServerProcess>,
    redis: Option<ServerProcess>,
}

impl All {
    fn servers(&self) -> impl Iterator<Item = &ServerProcess> + Clone {
        [Some(&self.ours), self.memcached.as_ref(), self.redis.as_ref()].into_iter().flatten()
    }
}

fn start(options: &mut Options<'_>) -> Result<All, BenchError> {
    let ours = servers::ours(options.ours, LIMITS)?;
    let (memcached, redis) = match &options.peers {
        Some(PeerPrograms { redis, memcached }) => {
            let memcached = servers::memcached(memcached, LIMITS)?;
            (Some(memcached), Some(servers::redis(redis, LIMITS, None)?))
        }
        None => (None, None),
    };
    Ok(All { ours, memcached, redis })
}

/// The rows of rates and times, asked of the same servers one after another.
fn rates(
    options: &mut Options<'_>,
    cores: KvCores,
    selection: &RowSelection,
    steps: &mut Steps<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let all = started(cores, || start(options))?;
    steps.begin("storing keys");
    let keys = key_count(options.size);
    store(&all, keys)?;
    settle(all.servers())?;
    report.extra.insert("keys".into(), keys.into());
    for figure in figures().iter().filter(|figure| selection.has(figure.name)) {
        steps.begin(figure.name);
        let version = report.extra.get(if figure.resp { "redis" } else { "memcached" });
        let version = version.and_then(|text| text.as_str()).unwrap_or_default().to_owned();
        report.results.push(row(options.size, figure, &all, &version)?);
    }
    herd::rows(options.size, &all.ours, cores, keys, selection, steps, report)?;
    if let Some(carrier) = options.baselines {
        let (size, keys, worker) = (options.size, keys.into(), &mut *options.worker);
        let mut plan = baselines::Plan { size, carrier, cores, keys, worker };
        baselines::rows(&mut plan, &all.ours, steps, report)?;
    }
    Ok(())
}

/// Stores what the figures ask for.
fn store(all: &All, keys: u32) -> Result<(), BenchError> {
    for (server, resp) in [(Some(&all.ours), true), (all.memcached.as_ref(), false)]
        .into_iter()
        .chain([(all.redis.as_ref(), true)])
    {
        let Some(server) = server else { continue };
        client::store_all(server.address(resp), resp, keys)?;
        if resp {
            client::store_hashes_and_script(server.address(resp), keys)?;
        }
        if server.memcached.is_some() {
            client::store_large(server.address(false))?;
        }
    }
    Ok(())
}

/// Waits until no server works on by itself, as ours does while it makes its memory ready: that is
/// no figure's work, and the first figure would pay for it. For [`SETTLED_WITHIN`] at most.
fn settle<'s>(servers: impl Iterator<Item = &'s ServerProcess> + Clone) -> Result<(), BenchError> {
    let cpu_ns = || servers.clone().map(ServerProcess::cpu_ns).sum::<Result<u64, BenchError>>();
    let start = Instant::now();
    while start.elapsed() < SETTLED_WITHIN {
        let before = cpu_ns()?;
        std::thread::sleep(SETTLED_FOR);
        // With a thread that has ended its time is gone.
        let used_ns = cpu_ns()?.checked_sub(before);
        if used_ns.is_some_and(|used| u128::from(used) < SETTLED_FOR.as_nanos() / 50) {
            break;
        }
    }
    Ok(())
}

/// One server under one figure's load.
struct Side<'s> {
    client: LoadGenerator,
    server: &'s ServerProcess,
    /// Those that stand still meanwhile.
    others: Vec<&'s ServerProcess>,
    slices: Vec<Slice>,
}

/// What is noted of a slice beside its rate.
struct Slice {
    latency: Histogram,
    /// CPU time for each request, nanoseconds.
    cpu_ns: f64,
}

/// Latencies of all these slices together, and the CPU time of each.
fn noted<'a>(slices: impl Iterator<Item = &'a Slice>) -> (Summary, Vec<f64>) {
    let (mut latency, mut cpu_ns) = (Histogram::new(), Vec::new());
    for slice in slices {
        latency.merge(&slice.latency);
        cpu_ns.push(slice.cpu_ns);
    }
    (latency.summary(), cpu_ns)
}

impl<'s> Side<'s> {
    fn new(
        figure: &Figure,
        size: Size,
        server: &'s ServerProcess,
        all: &'s All,
    ) -> Result<Self, BenchError> {
        let client = LoadGenerator::new(LoadOptions {
            addr: server.address(figure.resp),
            resp: figure.resp,
            work: figure.work,
            connections: figure.connections,
            keys: key_count(size),
            seed: SEED,
        })?;
        let others = all.servers().filter(|other| other.pid() != server.pid()).collect();
        Ok(Self { client, server, others, slices: Vec::new() })
    }

    /// Requests a second.
    fn slice(&mut self, time: Duration) -> Result<f64, BenchError> {
        let _still = Still::hold(&self.others)?;
        let before = self.server.cpu_ns()?;
        let mut latency = Histogram::new();
        let (requests, elapsed) = self.client.run(time, &mut latency)?;
        let cpu_ns = (self.server.cpu_ns()? - before) as f64 / requests as f64;
        self.slices.push(Slice { latency, cpu_ns });
        Ok(requests as f64 / elapsed.as_secs_f64())
    }
}

fn row(size: Size, figure: &Figure, all: &All, version: &str) -> Result<Row, BenchError> {
    let time = slice(size);
    let rules = size.rules();
    let mut ours = Side::new(figure, size, &all.ours, all)?;
    let peer = if figure.resp { &all.redis } else { &all.memcached };
    let unit = "ops/s";
    let Some(peer) = peer.as_ref() else {
        let rates: Result<Vec<f64>, _> = (0..rules.pairs).map(|_| ours.slice(time)).collect();
        let row = Row::new(figure.name, unit, Better::Higher, quantile(&rates?, 0.5));
        let (summary, cpu_ns) = noted(ours.slices.iter());
        return Ok(row.percentiles(summary).with("cpu_ns", quantile(&cpu_ns, 0.5)));
    };
    let mut theirs = Side::new(figure, size, peer, all)?;
    let pids = vec![std::process::id(), ours.server.pid(), peer.pid()];
    let mut probe = SystemProbe::of_processes(pids);
    let compared = compare(&rules, SEED, &mut probe, || ours.slice(time), || theirs.slice(time))?;
    let of = |side: &Side<'_>| noted(compared.counted(&rules, &side.slices));
    let ((summary, cpu_ours), (peers, cpu_theirs)) = (of(&ours), of(&theirs));
    let ratios: Vec<f64> = cpu_ours.iter().zip(&cpu_theirs).map(|(a, b)| a / b).collect();
    Ok(Row::compared(figure.name, unit, Better::Higher, &compared, Reference::Peer)
        .percentiles(summary)
        .with("peer_p50", peers.p50)
        .with("peer_p99", peers.p99)
        .with("cpu_ns", quantile(&cpu_ours, 0.5))
        .with("peer_cpu_ns", quantile(&cpu_theirs, 0.5))
        .with("cpu_ratio", quantile(&ratios, 0.5))
        .with("peer_name", version))
}
