//! `bench ycsb --peers`: the pool's table beside redis-server and memcached, with one server of
//! each for each rack. The same client processes work on all three, with the same operations; the
//! systems take turns, slice by slice, and the order changes. Each row has the better of the peers
//! as its reference.

use super::store::PeerProtocol;
use super::{
    ClientLoad, YcsbCommand, YcsbJob, YcsbMeasurement, YcsbReply, kind, load, run_together,
};
use crate::crew::Crew;
use crate::interleave::Probe;
use crate::kv::PeerPrograms;
use crate::kv::servers::{self, ServerLimits, ServerProcess};
use crate::probe::SystemProbe;
use crate::report::{Better, Reference, Report, Row};
use crate::run::{BenchError, PoolSource, Progress, Size, Steps, Testbed};
use crate::value;
use crate::ycsb::{Distribution, KEY_NAME_BYTES_MAX, Workload, key_name};
use rackpool::{FabricChoice, Handle, Placement};
use rackpool_core::RackId;
use rackpool_stats::histogram::Histogram;
use rackpool_stats::sample::quantile;
use rackpool_table::Table;
use serde_json::json;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// How a run is made.
#[derive(Debug, Clone)]
pub struct PeerOptions {
    pub size: Size,
    pub source: PoolSource,
    /// How a client reaches the other rack.
    pub fabric: FabricChoice,
    pub clients: u32,
    pub programs: PeerPrograms,
}

const RACKS: u16 = 2;
const VALUE_BYTES: usize = 1000;
const BATCH: u32 = 16;
const LIMITS: ServerLimits = ServerLimits { memory_mib: 1024, connections: 256 };
/// Least memory of a rack of a pool of the run's own.
const RACK_BYTES_MIN: u64 = 128 << 20;
/// Records that are stored at once.
const LOAD_BATCH: usize = 256;
/// Names the runs; any other would do.
const SEED: u64 = 42;

/// The table that is spread over the racks.
const SPREAD: usize = 0;
/// The table with everything in the other rack.
const REMOTE: usize = 1;
/// The first store that is a peer's.
const PEERS: usize = 2;
const PEER_NAMES: [&str; 2] = ["redis", "memcached"];

struct PeerCase {
    name: String,
    workload: Workload,
    distribution: Distribution,
    /// Our table, as the clients number their stores.
    table: usize,
    load: ClientLoad,
}

fn cases() -> Vec<PeerCase> {
    let mut cases = Vec::new();
    for (load, suffix) in [(ClientLoad::Single, ""), (ClientLoad::Batches(BATCH), "_p16")] {
        let mut add = |workload, distribution| {
            let name = format!("ycsb_{workload}_{distribution}{suffix}");
            cases.push(PeerCase { name, workload, distribution, table: SPREAD, load });
        };
        for workload in [Workload::A, Workload::B, Workload::C, Workload::F] {
            add(workload, Distribution::Uniform);
            add(workload, Distribution::Zipfian);
        }
        add(Workload::D, Distribution::Latest);
    }
    for (name, table, load) in
        [("ycsb_C_remote", REMOTE, ClientLoad::Single), ("hot_key", SPREAD, ClientLoad::HotKey)]
    {
        let (workload, distribution) = (Workload::C, Distribution::Uniform);
        cases.push(PeerCase { name: name.into(), workload, distribution, table, load });
    }
    cases
}

fn records(size: Size) -> u64 {
    match size {
        Size::Smoke => 200,
        Size::Quick => 10_000,
        Size::Full => 100_000,
    }
}

/// How long a slice lasts, and how many count.
fn slices(size: Size) -> (Duration, usize) {
    let (ms, rounds) = match size {
        Size::Smoke => (20, 1),
        Size::Quick => (200, 5),
        Size::Full => (500, 7),
    };
    (Duration::from_millis(ms), rounds)
}

/// What one system did in a row.
#[derive(Default)]
struct SystemRuns {
    rates: Vec<f64>,
    /// The share of the slowest client in each slice: its operations by the mean.
    least: Vec<f64>,
    all: YcsbMeasurement,
    server_ns: u64,
    client_ns: u64,
}

impl SystemRuns {
    fn rate(&self) -> f64 {
        quantile(&self.rates, 0.5)
    }

    fn times(&self) -> Histogram {
        let mut times = self.all.reads.clone();
        times.merge(&self.all.writes);
        times
    }

    fn facts(&self) -> serde_json::Value {
        let summary = self.times().summary();
        let each = |ns: u64| ns as f64 / self.all.operations.max(1) as f64;
        json!({
            "ops_per_s": self.rate(),
            "p50": summary.p50,
            "p99": summary.p99,
            "server_cpu_ns": each(self.server_ns),
            "client_cpu_ns": each(self.client_ns),
            "least_client_share": quantile(&self.least, 0.5),
        })
    }
}

/// The processes that serve a system.
struct ServedSystem {
    /// Which store of a client it is; of ours it depends on the row.
    store: Option<usize>,
    pids: Vec<u32>,
}

/// Measures all rows.
///
/// # Errors
/// [`BenchError`]: of a client or a server. All that was started is gone then, and so are the
/// tables, unless the pool itself is gone.
pub fn run(
    options: &PeerOptions,
    command: &mut dyn FnMut(u32) -> Command,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let cases = cases();
    let mut steps = Steps::new(1 + cases.len(), progress);
    steps.begin("loading the records");
    let records = records(options.size);
    let rack_bytes = (8 * records * 2048).max(RACK_BYTES_MIN);
    let testbed = Testbed::open(&options.source, RACKS, rack_bytes)?;
    let started = start_peers(&options.programs)?;
    let mut handles = Vec::new();
    for rack in 0..RACKS {
        handles.push(testbed.pool(rack, options.fabric)?.handle()?);
    }
    let racks: Vec<u16> = (0..RACKS).collect();
    let mut report = testbed.report(options.size, kind(&mut handles[0], &racks)?);
    let mut tables = Vec::new();
    let measured = make_tables(&mut handles, records, &mut tables).and_then(|()| {
        let names: Vec<_> = tables.iter().map(|(_, table)| table.name().to_owned()).collect();
        let mut crew = start_clients(options, &testbed, &names, &started, command)?;
        load(&mut crew, SPREAD, records)?;
        for peer in 0..PEER_NAMES.len() {
            load(&mut crew, PEERS + peer, records)?;
        }
        let systems = systems(options, &started);
        let mut rows = Vec::new();
        for case in &cases {
            steps.begin(&case.name);
            rows.push(measure(&mut crew, case, &systems, options.size)?);
        }
        crew.end()?;
        Ok(rows)
    });
    let mut destroyed = Ok(());
    for (rack, table) in tables {
        destroyed = destroyed.and(table.destroy(&mut handles[usize::from(rack)]));
    }
    report.results = measured?;
    destroyed?;
    let versions = [
        ("redis", servers::version(&options.programs.redis)?),
        ("memcached", servers::version(&options.programs.memcached)?),
    ];
    report.extra.extend(versions.map(|(name, version)| (name.to_owned(), version.into())));
    for (name, fact) in [
        ("clients", u64::from(options.clients)),
        ("records", records),
        ("value_bytes", VALUE_BYTES as u64),
    ] {
        report.extra.insert(name.to_owned(), fact.into());
    }
    steps.end();
    Ok(report)
}

/// One server of each peer for each rack, by peer.
fn start_peers(programs: &PeerPrograms) -> Result<Vec<Vec<ServerProcess>>, BenchError> {
    let mut started: Vec<Vec<ServerProcess>> = vec![Vec::new(), Vec::new()];
    for _ in 0..RACKS {
        started[0].push(servers::redis(&programs.redis, LIMITS, None)?);
        started[1].push(servers::memcached(&programs.memcached, LIMITS)?);
    }
    Ok(started)
}

/// The table that clients fill, and for each rack one that has everything there.
fn make_tables(
    handles: &mut [Handle],
    records: u64,
    tables: &mut Vec<(u16, Table)>,
) -> Result<(), BenchError> {
    let name = |what: &str| format!("bench-ycsb-{}-{what}", std::process::id());
    let spread = Table::create(&mut handles[0], &name("spread"), Default::default())?;
    tables.push((0, spread));
    for (rack, handle) in (0u16..).zip(handles) {
        let options = rackpool_table::Options {
            index_placement: Placement::Rack(RackId(rack)),
            entry_placement: Placement::Rack(RackId(rack)),
            ..rackpool_table::Options::default()
        };
        let table = Table::create(handle, &name(&rack.to_string()), options)?;
        tables.push((rack, table));
        let table = &mut tables.last_mut().expect("just pushed").1;
        let keys: Vec<u64> = (0..records).collect();
        for keys in keys.chunks(LOAD_BATCH) {
            let pair = |key: &u64| {
                let mut record = vec![0; VALUE_BYTES];
                value::fill(&mut record, *key, 1);
                (key_name(*key, &mut [0; KEY_NAME_BYTES_MAX]).to_vec(), record)
            };
            let pairs: Vec<_> = keys.iter().map(pair).collect();
            for stored in table.put_many(handle, &pairs) {
                stored?;
            }
        }
    }
    Ok(())
}

fn start_clients(
    options: &PeerOptions,
    testbed: &Testbed,
    tables: &[String],
    started: &[Vec<ServerProcess>],
    command: &mut dyn FnMut(u32) -> Command,
) -> Result<Crew<YcsbReply>, BenchError> {
    let mut crew = Crew::start(options.clients, command)?;
    let addrs = |peer: usize| -> Vec<SocketAddr> {
        started[peer].iter().map(|server| server.address(peer == 0)).collect()
    };
    for client in 0..options.clients {
        let rack = client as u16 % RACKS;
        let other = usize::from(RACKS - 1 - rack);
        let job = YcsbJob {
            master: testbed.master().to_owned(),
            rack,
            fabric: format!("{:?}", options.fabric).to_lowercase(),
            table: tables[0].clone(),
            more_tables: vec![tables[1 + other].clone()],
            peers: vec![(PeerProtocol::Redis, addrs(0)), (PeerProtocol::Memcached, addrs(1))],
            client: u64::from(client),
            clients: u64::from(options.clients),
            records: records(options.size),
            value_bytes: VALUE_BYTES,
            seed: SEED,
        };
        crew.tell(client, &job)?;
    }
    Ok(crew)
}

/// Ours first, then the peers.
fn systems(options: &PeerOptions, started: &[Vec<ServerProcess>]) -> Vec<ServedSystem> {
    // Racks in threads of this process are in its own time.
    let ours = match options.source.master {
        Some(_) => options.source.server_pids.clone(),
        None => vec![std::process::id()],
    };
    let mut systems = vec![ServedSystem { store: None, pids: ours }];
    for (peer, servers) in started.iter().enumerate() {
        let pids = servers.iter().map(ServerProcess::pid).collect();
        systems.push(ServedSystem { store: Some(PEERS + peer), pids });
    }
    systems
}

/// All systems in turn, each round in another order; the first round warms up.
fn measure(
    crew: &mut Crew<YcsbReply>,
    case: &PeerCase,
    systems: &[ServedSystem],
    size: Size,
) -> Result<Row, BenchError> {
    let (slice, rounds) = slices(size);
    let mut runs: Vec<SystemRuns> = systems.iter().map(|_| SystemRuns::default()).collect();
    for round in 0..=rounds {
        for turn in 0..systems.len() {
            let index = (round + turn) % systems.len();
            let mut kept = SystemRuns::default();
            run_slice(crew, case, &systems[index], slice, &mut kept)?;
            if round > 0 {
                runs[index].add(kept);
            }
        }
    }
    let [ours, peers @ ..] = &runs[..] else { unreachable!("ours is the first system") };
    let better = |a: &usize, b: &usize| peers[*a].rate().total_cmp(&peers[*b].rate());
    let best = (0..peers.len()).max_by(better).expect("there are peers");
    let mut row = Row::new(&case.name, "ops/s", Better::Higher, ours.rate())
        .against(Reference::Peer(peers[best].rate()))
        .percentiles(ours.times().summary())
        .with("peer_is", PEER_NAMES[best])
        .with("values_verified", ours.all.values_verified)
        .with("detail", ours.facts());
    for (name, peer) in PEER_NAMES.iter().zip(peers) {
        row = row.with(name, peer.facts());
    }
    Ok(row)
}

fn run_slice(
    crew: &mut Crew<YcsbReply>,
    case: &PeerCase,
    system: &ServedSystem,
    slice: Duration,
    runs: &mut SystemRuns,
) -> Result<(), BenchError> {
    let order = YcsbCommand::Run {
        workload: case.workload,
        distribution: case.distribution,
        run_ms: slice.as_millis() as u64,
        store: system.store.unwrap_or(case.table),
        load: case.load,
    };
    let mut served = SystemProbe::of_processes(system.pids.clone());
    let mut asked = SystemProbe::of_processes(crew.pids());
    let before = (served.sample().own_ns, asked.sample().own_ns);
    let mut each = Vec::new();
    run_together(crew, &order, slice, |ran| {
        each.push(ran.operations);
        runs.all.merge(ran);
    })?;
    runs.server_ns = served.sample().own_ns.saturating_sub(before.0);
    runs.client_ns = asked.sample().own_ns.saturating_sub(before.1);
    let mean = runs.all.operations as f64 / each.len().max(1) as f64;
    let least = each.iter().copied().min().unwrap_or(0);
    runs.least.push(least as f64 / mean.max(1.0));
    runs.rates.push(runs.all.operations as f64 * 1e9 / runs.all.elapsed_ns.max(1) as f64);
    Ok(())
}

impl SystemRuns {
    fn add(&mut self, one: SystemRuns) {
        self.rates.extend(one.rates);
        self.least.extend(one.least);
        self.all.merge(&one.all);
        self.server_ns += one.server_ns;
        self.client_ns += one.client_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_have_the_names_of_the_contract() {
        let names: Vec<_> = cases().into_iter().map(|case| case.name).collect();
        assert_eq!(names.len(), 20);
        for name in [
            "ycsb_A_uniform",
            "ycsb_F_zipfian",
            "ycsb_D_latest",
            "ycsb_C_zipfian_p16",
            "ycsb_D_latest_p16",
            "ycsb_C_remote",
            "hot_key",
        ] {
            assert!(names.iter().any(|one| one == name), "{name}");
        }
    }
}
