//! `bench ycsb`: the YCSB core workloads over the pool's hash table, with several client
//! processes in two racks.
//!
//! The parent ([`run`]) starts the clients by a command of its caller, has them load the records,
//! and lets them begin each run at once. A client ([`worker`]) takes orders in lines of JSON on
//! its standard input and answers on its standard output; it verifies every value that it reads.
//! The parent merges the clients' histograms. Workload E is refused: a hash table has no order.

mod client;
#[cfg(feature = "lab")]
pub mod peers;
mod store;

pub use client::worker;
pub use store::{KeyValue, PoolTable};

use crate::crew::{Crew, WorkerReply};
use crate::report::{Better, Kind, Report, Row};
use crate::run::{BenchError, PoolSource, Progress, Size, Steps, Testbed, kind_of_path};
use crate::ycsb::{Distribution, StreamOptions, WORKLOADS, Workload};
use rackpool::{FabricChoice, Handle, Placement};
use rackpool_core::RackId;
use rackpool_stats::histogram::Histogram;
use rackpool_table::Table;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use store::PeerProtocol;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    pub source: PoolSource,
    /// How a client reaches the other racks.
    pub fabric: FabricChoice,
    /// The racks that clients run in, in turn. A pool of the run's own has these.
    pub racks: Vec<u16>,
    pub workloads: Vec<Workload>,
    /// The distributions, for each workload. Empty: uniform and zipfian, and latest for D.
    pub distributions: Vec<Distribution>,
    pub clients: u32,
    /// Records to load; `None`: as `size` says.
    pub records: Option<u64>,
    /// Bytes of a value; YCSB's are 1000.
    pub value_bytes: usize,
    /// How long each run lasts; `None`: as `size` says.
    pub run: Option<Duration>,
    /// Names the run: the same seed gives the same operations.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: Size::default(),
            source: PoolSource::default(),
            fabric: FabricChoice::Auto,
            racks: vec![0, 1],
            workloads: WORKLOADS.to_vec(),
            distributions: Vec::new(),
            clients: 4,
            records: None,
            value_bytes: 1000,
            run: None,
            seed: 42,
        }
    }
}

/// Most client processes of a run.
pub const CLIENTS_MAX: u32 = 64;
/// Longest value that is worth a run: a page of the default size.
pub const VALUE_BYTES_MAX: usize = 2 << 20;
/// Least memory of a rack of a pool of the run's own.
const RACK_BYTES_MIN: u64 = 64 << 20;
/// Page size of a pool of the run's own.
const PAGE_BYTES: u64 = 2 << 20;

impl Options {
    fn records(&self) -> u64 {
        self.records.unwrap_or(match self.size {
            Size::Smoke => 200,
            Size::Quick => 10_000,
            Size::Full => 200_000,
        })
    }

    fn run_time(&self) -> Duration {
        self.run.unwrap_or(Duration::from_millis(match self.size {
            Size::Smoke => 50,
            Size::Quick => 300,
            Size::Full => 5_000,
        }))
    }

    /// Memory of each rack: a record, its key and header in an object of the next power of two,
    /// some of them twice while they are replaced, and all of them in one rack at the worst.
    fn rack_bytes(&self) -> u64 {
        let object_bytes = (self.value_bytes as u64 + 200).next_power_of_two();
        let bytes = (2 * self.records() * object_bytes).max(RACK_BYTES_MIN);
        bytes.next_multiple_of(PAGE_BYTES)
    }

    fn check(&self) -> Result<(), BenchError> {
        let refuse = |option, reason: String| Err(BenchError::Option { option, reason });
        if self.racks.is_empty() {
            return refuse("racks", "clients need a rack".into());
        }
        if !(1..=CLIENTS_MAX).contains(&self.clients) {
            let clients = self.clients;
            return refuse("clients", format!("{clients}: 1 to {CLIENTS_MAX} are possible"));
        }
        let value_bytes = self.value_bytes;
        let range = crate::value::VALUE_BYTES_MIN..=VALUE_BYTES_MAX;
        if !range.contains(&value_bytes) {
            let (min, max) = range.into_inner();
            return refuse("value_bytes", format!("{value_bytes}: {min} to {max} are possible"));
        }
        for workload in &self.workloads {
            workload.mix()?;
        }
        Ok(())
    }

    fn plan(&self) -> Vec<(Workload, Distribution)> {
        let mut plan = Vec::new();
        for &workload in &self.workloads {
            let given = self.distributions.iter().copied();
            let mut distributions: Vec<_> = given.collect();
            if distributions.is_empty() {
                distributions = vec![Distribution::Uniform, Distribution::Zipfian];
                distributions.extend((workload == Workload::D).then_some(Distribution::Latest));
            }
            plan.extend(distributions.into_iter().map(|distribution| (workload, distribution)));
        }
        plan
    }
}

/// The first line that a client is told: where it works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct YcsbJob {
    master: String,
    rack: u16,
    fabric: String,
    table: String,
    /// Further tables, stores 1, 2 and so on.
    more_tables: Vec<String>,
    /// Other systems, the stores after the tables: one server for each rack.
    peers: Vec<(PeerProtocol, Vec<SocketAddr>)>,
    client: u64,
    clients: u64,
    records: u64,
    value_bytes: usize,
    seed: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum YcsbCommand {
    /// Store this client's share of the records in one of its stores.
    Load {
        store: usize,
    },
    /// Make ready for a run, say so, and begin at `Go`.
    Run {
        workload: Workload,
        distribution: Distribution,
        run_ms: u64,
        store: usize,
        load: ClientLoad,
    },
    Go,
}

/// How a client asks for its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ClientLoad {
    /// One operation after the other.
    Single,
    /// So many operations at once.
    Batches(u32),
    /// It updates the first record, again and again.
    HotKey,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(crate) enum YcsbReply {
    Loaded {
        records: u64,
    },
    /// It waits for `Go`.
    Ready,
    Ran(Box<YcsbMeasurement>),
    /// It ends with this error.
    Failed {
        code: String,
        reason: String,
    },
}

impl WorkerReply for YcsbReply {
    fn failure(&self) -> Option<(&str, &str)> {
        match self {
            YcsbReply::Failed { code, reason } => Some((code, reason)),
            YcsbReply::Loaded { .. } | YcsbReply::Ready | YcsbReply::Ran(_) => None,
        }
    }

    fn is_ready(&self) -> bool {
        matches!(self, YcsbReply::Ready)
    }
}

/// What one client did in a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct YcsbMeasurement {
    pub(crate) operations: u64,
    /// Values of the right checksum and key; a wrong one ends the client.
    values_verified: u64,
    pub(crate) elapsed_ns: u64,
    reads: Histogram,
    pub(crate) writes: Histogram,
}

impl YcsbMeasurement {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.operations += other.operations;
        self.values_verified += other.values_verified;
        // The whole is over when the last one is.
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
    }
}

/// Runs every workload with every distribution. `command` makes the command line of client
/// process number n: a program that calls [`worker`] with its standard input and output.
///
/// # Errors
/// [`BenchError`]: of a client, with its number and words. Clients are gone then, and so is the
/// table, unless the pool itself is gone.
pub fn run(
    options: &Options,
    command: &mut dyn FnMut(u32) -> Command,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    options.check()?;
    let plan = options.plan();
    let mut steps = Steps::new(1 + plan.len(), progress);
    steps.begin("loading the records");
    let racks = 1 + options.racks.iter().copied().max().unwrap_or(0);
    let testbed = Testbed::open(&options.source, racks, options.rack_bytes())?;
    let mut handle = testbed.pool(options.racks[0], options.fabric)?.handle()?;
    let mut report = testbed.report(options.size, kind(&mut handle, &options.racks)?);
    describe(options, &mut report);
    let name = format!("bench-ycsb-{}", std::process::id());
    let table = Table::create(&mut handle, &name, rackpool_table::Options::default())?;
    let measured = run_plan(options, &testbed, &name, &plan, command, &mut steps);
    let destroyed = table.destroy(&mut handle);
    report.results = measured?;
    destroyed?;
    steps.end();
    Ok(report)
}

fn run_plan(
    options: &Options,
    testbed: &Testbed,
    table: &str,
    plan: &[(Workload, Distribution)],
    command: &mut dyn FnMut(u32) -> Command,
    steps: &mut Steps<'_>,
) -> Result<Vec<Row>, BenchError> {
    let mut crew = Crew::start(options.clients, command)?;
    for client in 0..options.clients {
        let rack = options.racks[client as usize % options.racks.len()];
        let job = YcsbJob {
            master: testbed.master().to_owned(),
            rack,
            fabric: format!("{:?}", options.fabric).to_lowercase(),
            table: table.to_owned(),
            more_tables: Vec::new(),
            peers: Vec::new(),
            client: u64::from(client),
            clients: u64::from(options.clients),
            records: options.records(),
            value_bytes: options.value_bytes,
            seed: options.seed,
        };
        crew.tell(client, &job)?;
    }
    load(&mut crew, 0, options.records())?;
    let mut rows = Vec::new();
    for &(workload, distribution) in plan {
        let name = format!("ycsb_{workload}_{distribution}");
        steps.begin(&name);
        let ran = run_one(&mut crew, workload, distribution, options.run_time())?;
        rows.push(
            row(&name, &ran)
                .with("workload", workload.to_string())
                .with("distribution", distribution.to_string()),
        );
    }
    crew.end()?;
    Ok(rows)
}

fn load(crew: &mut Crew<YcsbReply>, store: usize, records: u64) -> Result<(), BenchError> {
    crew.tell_all(&YcsbCommand::Load { store })?;
    let mut stored = 0;
    crew.gather(Duration::ZERO, |answer| match answer {
        YcsbReply::Loaded { records } => {
            stored += records;
            Ok(())
        }
        other => Err(other),
    })?;
    if stored != records {
        let reason = format!("the clients stored {stored} of {records} records");
        return Err(BenchError::Option { option: "records", reason });
    }
    Ok(())
}

/// Runs a workload in all clients at once.
fn run_one(
    crew: &mut Crew<YcsbReply>,
    workload: Workload,
    distribution: Distribution,
    run: Duration,
) -> Result<YcsbMeasurement, BenchError> {
    let run_ms = u64::try_from(run.as_millis()).unwrap_or(u64::MAX);
    let load = ClientLoad::Single;
    let order = YcsbCommand::Run { workload, distribution, run_ms, store: 0, load };
    let mut merged = YcsbMeasurement::default();
    run_together(crew, &order, run, |ran| merged.merge(ran))?;
    Ok(merged)
}

/// Has all clients begin a run at once; `take` gets what each did.
fn run_together(
    crew: &mut Crew<YcsbReply>,
    order: &YcsbCommand,
    run: Duration,
    mut take: impl FnMut(&YcsbMeasurement),
) -> Result<(), BenchError> {
    crew.tell_all(order)?;
    crew.await_ready()?;
    crew.tell_all(&YcsbCommand::Go)?;
    crew.gather(run, |answer| match answer {
        YcsbReply::Ran(ran) => {
            take(&ran);
            Ok(())
        }
        other => Err(other),
    })
}

fn row(name: &str, ran: &YcsbMeasurement) -> Row {
    let rate = ran.operations as f64 * 1e9 / ran.elapsed_ns.max(1) as f64;
    let mut all = ran.reads.clone();
    all.merge(&ran.writes);
    let times = |histogram: &Histogram| {
        let summary = histogram.summary();
        json!({ "n": summary.n, "p50": summary.p50, "p99": summary.p99, "p999": summary.p999 })
    };
    Row::new(name, "ops/s", Better::Higher, rate)
        .percentiles(all.summary())
        .with("values_verified", ran.values_verified)
        .with("elapsed_s", ran.elapsed_ns as f64 / 1e9)
        .with("reads", times(&ran.reads))
        .with("writes", times(&ran.writes))
}

fn describe(options: &Options, report: &mut Report) {
    let fabric = format!("{:?}", options.fabric).to_lowercase();
    let facts = [
        ("clients", json!(options.clients)),
        ("racks", json!(options.racks)),
        ("records", json!(options.records())),
        ("value_bytes", json!(options.value_bytes)),
        ("fabric", json!(fabric)),
        ("seed", json!(options.seed)),
    ];
    report.extra.extend(facts.map(|(name, value)| (name.to_owned(), value)));
}

/// Emulated, if any way between the racks is.
fn kind(handle: &mut Handle, racks: &[u16]) -> Result<Kind, BenchError> {
    let mut kind = Kind::Measured;
    for &rack in racks {
        let addr = handle.alloc(64, Placement::Rack(RackId(rack)))?;
        let found = kind_of_path(handle, addr);
        handle.free(addr, 64)?;
        if found? == Kind::Emulated {
            kind = Kind::Emulated;
        }
    }
    Ok(kind)
}

/// The options of one client's stream.
fn stream_options(job: &YcsbJob, workload: Workload, distribution: Distribution) -> StreamOptions {
    let YcsbJob { records, client, clients, seed, .. } = *job;
    StreamOptions { workload, distribution, records, client, clients, seed }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse(options: &Options) -> BenchError {
        let mut command = |_| unreachable!("refused before any client is started");
        run(options, &mut command, &mut |_| ()).unwrap_err()
    }

    #[test]
    fn workload_e_is_refused_with_its_reason_before_anything_starts() {
        let workloads = vec![Workload::A, Workload::E];
        let error = refuse(&Options { workloads, ..Options::default() });
        assert_eq!(error.code(), "config");
        assert!(error.to_string().contains("hash table has no order"), "{error}");
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for options in [
            Options { clients: 0, ..Options::default() },
            Options { clients: CLIENTS_MAX + 1, ..Options::default() },
            Options { value_bytes: 8, ..Options::default() },
            Options { racks: Vec::new(), ..Options::default() },
        ] {
            assert_eq!(refuse(&options).code(), "config");
        }
    }

    #[test]
    fn by_default_five_workloads_run_with_both_distributions_and_d_with_latest_too() {
        let plan = Options::default().plan();
        assert_eq!(plan.len(), 11);
        assert!(plan.contains(&(Workload::D, Distribution::Latest)));
        let distributions = vec![Distribution::Zipfian];
        let one = Options { workloads: vec![Workload::B], distributions, ..Options::default() };
        assert_eq!(one.plan(), [(Workload::B, Distribution::Zipfian)]);
    }

    #[test]
    fn orders_and_answers_survive_their_way() {
        let order = YcsbCommand::Run {
            workload: Workload::F,
            distribution: Distribution::Latest,
            run_ms: 7,
            store: 1,
            load: ClientLoad::Batches(16),
        };
        let line = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<YcsbCommand>(&line).unwrap(), order);
        let mut ran = YcsbMeasurement { operations: 3, ..YcsbMeasurement::default() };
        ran.reads.record(100);
        let line = serde_json::to_string(&YcsbReply::Ran(Box::new(ran))).unwrap();
        let YcsbReply::Ran(back) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        assert_eq!((back.operations, back.reads.count()), (3, 1));
    }
}
