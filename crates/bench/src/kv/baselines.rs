//! The systems that HERD is compared with, beside HERD, over one fabric: the same four clients with
//! sixteen windows each, moved by one core, the server on the other; slices of all systems take
//! turns. Each row has what its requests took: READs, requests and answers, counted exactly.
//!
//! Emulated as in the paper (`_em_`: READs have the sizes of a GET's and nothing is looked up), and
//! with tables, and then all values are checked. HERD has its cache behind it in any case.
//!
//! Source: HERD, throughput comparison (figures 5 and 9), on fabrics of this machine.

use super::KvCores;
use super::herd::{Asker, store_all};
use super::servers::ServerProcess;
use crate::baselines::worker::{BaselineCommand, BaselineMeasurement, BaselineReply};
use crate::baselines::{Carrier, Counts, ServerAddress, Spec, SystemKind};
use crate::crew::Crew;
use crate::micro::pin;
use crate::report::{Better, Report, Row};
use crate::run::{BenchError, Size, Steps};
use rackpool_cache::herd::{Client, Transport};
use rackpool_stats::histogram::Histogram;
use rackpool_stats::random::Rng;
use rackpool_stats::sample::quantile;
use std::process::Command;
use std::time::{Duration, Instant};

const CLIENTS: u32 = 4;
/// Windows of each: as many as HERD gives over a fabric.
const WINDOWS: u32 = 16;
const KEYS_MAX: u64 = 100_000;
/// Names the random choices; any other would do.
const SEED: u64 = 0x6261_7365;

/// One system under one load.
struct BaselineCase {
    name: &'static str,
    kind: SystemKind,
    is_full: bool,
    put_percent: u64,
}

const fn case(
    name: &'static str,
    kind: SystemKind,
    is_full: bool,
    put_percent: u64,
) -> BaselineCase {
    BaselineCase { name, kind, is_full, put_percent }
}

const CASES: [BaselineCase; 15] = [
    case("pilaf_em_get", SystemKind::Pilaf, false, 0),
    case("farm_em_get", SystemKind::Farm, false, 0),
    case("farm_em_var_get", SystemKind::FarmVar, false, 0),
    case("pilaf_get", SystemKind::Pilaf, true, 0),
    case("farm_get", SystemKind::Farm, true, 0),
    case("farm_var_get", SystemKind::FarmVar, true, 0),
    case("pilaf_em_put", SystemKind::Pilaf, false, 100),
    case("farm_em_put", SystemKind::Farm, false, 100),
    case("farm_em_var_put", SystemKind::FarmVar, false, 100),
    case("pilaf_put", SystemKind::Pilaf, true, 100),
    case("farm_put", SystemKind::Farm, true, 100),
    case("farm_var_put", SystemKind::FarmVar, true, 100),
    case("echo_write_write", SystemKind::EchoWriteWrite, false, 100),
    case("echo_write_send", SystemKind::EchoWriteSend, false, 100),
    case("echo_send_send", SystemKind::EchoSendSend, false, 100),
];

/// HERD under the same loads: name, percent of PUTs.
const HERD: [(&str, u64); 2] = [("herd_beside_get", 0), ("herd_beside_put", 100)];

/// How a run is made.
pub struct Plan<'p> {
    pub size: Size,
    pub carrier: Carrier,
    pub cores: KvCores,
    /// Keys that HERD's server may have.
    pub keys: u64,
    /// Starts a process that runs [`crate::baselines::worker`].
    pub worker: &'p mut dyn FnMut(u32) -> Command,
}

/// What was seen of one row.
#[derive(Default)]
struct Seen {
    rates: Vec<f64>,
    latency: Histogram,
    counts: Counts,
}

impl Seen {
    fn add(&mut self, ran: &BaselineMeasurement) {
        self.rates.push(ran.operations as f64 * 1e9 / ran.elapsed_ns as f64);
        self.latency.merge(&ran.latency);
        self.counts = self.counts.and(&ran.counts);
    }

    fn row(&self, name: &str, keys: u64, value_bytes: u64) -> Row {
        let Counts { gets, asked, reads, requests, answers, repeats } = self.counts;
        let each = |count: u64, of: u64| if of == 0 { 0.0 } else { count as f64 / of as f64 };
        Row::new(name, "ops/s", Better::Higher, quantile(&self.rates, 0.5))
            .percentiles(self.latency.summary())
            .with("clients", CLIENTS)
            .with("windows", WINDOWS)
            .with("keys", keys)
            .with("value_bytes", value_bytes)
            .with("reads_per_get", each(reads, gets))
            .with("messages_per_request", each(requests + answers, asked))
            .with("reads", reads)
            .with("requests", requests)
            .with("answers", answers)
            .with("repeats", repeats)
    }
}

/// The rows of HERD and of all others, in turn.
pub fn rows(
    plan: &mut Plan<'_>,
    server: &ServerProcess,
    steps: &mut Steps<'_>,
    report: &mut Report,
) -> Result<(), BenchError> {
    let keys = plan.keys.min(KEYS_MAX);
    let carrier = serde_json::to_value(plan.carrier).expect("a word");
    report.extra.insert("baselines_over".into(), carrier);
    steps.begin("starting comparison systems");
    let mut party = Party::start(plan, keys)?;
    let mut herd = Herd::connect(plan.carrier, server, keys)?;
    let mut seen: Vec<Seen> = (0..CASES.len()).map(|_| Seen::default()).collect();
    let mut seen_herd: Vec<Seen> = HERD.iter().map(|_| Seen::default()).collect();
    let rounds = plan.size.rules().pairs;
    for round in 0..=rounds {
        steps.begin(&format!("comparison systems, {round} of {rounds}"));
        for (seen, (_, put_percent)) in seen_herd.iter_mut().zip(HERD) {
            let Some(herd) = &mut herd else { continue };
            let ran = herd.run(plan.size.slice(), put_percent)?;
            // The first only warms up.
            if round > 0 {
                seen.add(&ran);
            }
        }
        for (seen, case) in seen.iter_mut().zip(&CASES) {
            let ran = party.run(case, plan.size.slice())?;
            if round > 0 {
                seen.add(&ran);
            }
        }
    }
    party.end()?;
    let spec = party_spec(&CASES[0], keys);
    if herd.is_some() {
        let rows = seen_herd.iter().zip(HERD);
        report.results.extend(rows.map(|(seen, (name, _))| seen.row(name, keys, spec.value_bytes)));
    }
    let rows = seen.iter().zip(&CASES);
    report.results.extend(rows.map(|(seen, one)| seen.row(one.name, keys, spec.value_bytes)));
    Ok(())
}

pub fn steps(size: Size) -> usize {
    2 + size.rules().pairs
}

fn party_spec(case: &BaselineCase, keys: u64) -> Spec {
    Spec { clients: CLIENTS, window: WINDOWS, ..Spec::new(case.kind, case.is_full, keys) }
}

/// All servers but HERD's, and the process of their clients.
struct Party {
    specs: Vec<Spec>,
    keys: u64,
    servers: Crew<BaselineReply>,
    clients: Crew<BaselineReply>,
}

impl Party {
    fn start(plan: &mut Plan<'_>, keys: u64) -> Result<Party, BenchError> {
        let mut specs: Vec<Spec> = Vec::new();
        for spec in CASES.iter().map(|case| party_spec(case, keys)) {
            if !specs.contains(&spec) {
                specs.push(spec);
            }
        }
        let carrier = plan.carrier;
        // What is started inherits its core.
        pin::pin_to(plan.cores.server)?;
        let servers = Crew::start(specs.len() as u32, plan.worker);
        pin::pin_to(plan.cores.client)?;
        let mut servers: Crew<BaselineReply> = servers?;
        for (number, spec) in specs.iter().enumerate() {
            servers
                .tell(number as u32, &BaselineCommand::Serve { number, spec: *spec, carrier })?;
        }
        let mut addresses: Vec<Option<ServerAddress>> = vec![None; specs.len()];
        servers.gather(Duration::ZERO, |answer| match answer {
            BaselineReply::Serving { number, address } if number < specs.len() => {
                addresses[number] = Some(address);
                Ok(())
            }
            other => Err(other),
        })?;
        let mut clients: Crew<BaselineReply> = Crew::start(1, plan.worker)?;
        for (spec, address) in specs.iter().zip(addresses) {
            let address = address.expect("each has said where it is");
            clients.tell(0, &BaselineCommand::Join { spec: *spec, address })?;
            clients.await_ready()?;
        }
        Ok(Party { specs, keys, servers, clients })
    }

    fn run(
        &mut self,
        case: &BaselineCase,
        run: Duration,
    ) -> Result<BaselineMeasurement, BenchError> {
        let spec = party_spec(case, self.keys);
        let number = self.specs.iter().position(|other| *other == spec).expect("it was started");
        self.servers.tell(number as u32, &BaselineCommand::Rest { rests: false })?;
        let run_ms = run.as_millis() as u64;
        self.clients
            .tell(0, &BaselineCommand::Go { number, run_ms, put_percent: case.put_percent })?;
        let mut ran = None;
        self.clients.gather(run, |answer| match answer {
            BaselineReply::Ran(what) => {
                ran = Some(*what);
                Ok(())
            }
            other => Err(other),
        })?;
        self.servers.tell(number as u32, &BaselineCommand::Rest { rests: true })?;
        Ok(ran.expect("it was gathered"))
    }

    fn end(self) -> Result<(), BenchError> {
        self.clients.end()?;
        self.servers.end()
    }
}

/// HERD's clients, over the same fabric.
enum Herd {
    Near(Vec<Asker<rackpool_cache::herd::ShmTransport>>, u64),
    Far(Vec<Asker<rackpool_cache::herd::FabricTransport<rackpool_fabric::tcp::TcpEndpoint>>>, u64),
}

impl Herd {
    fn connect(
        carrier: Carrier,
        server: &ServerProcess,
        keys: u64,
    ) -> Result<Option<Self>, BenchError> {
        let Some(name) = &server.herd else { return Ok(None) };
        store_all(name, keys)?;
        let all = 0..CLIENTS;
        Ok(match (carrier, server.herd_fabric) {
            (Carrier::Shm, _) => {
                let askers = all.map(|_| Ok(Asker::timed(Client::connect_with(name, WINDOWS)?)));
                Some(Herd::Near(askers.collect::<Result<_, BenchError>>()?, keys))
            }
            (Carrier::Tcp, Some(addr)) => {
                let askers = all.map(|_| Ok(Asker::timed(Client::connect_to(addr, WINDOWS)?)));
                Some(Herd::Far(askers.collect::<Result<_, BenchError>>()?, keys))
            }
            // Its way by devices is measured where they are: `bench verbs`.
            _ => None,
        })
    }

    fn run(&mut self, run: Duration, put_percent: u64) -> Result<BaselineMeasurement, BenchError> {
        match self {
            Herd::Near(askers, keys) => slice(askers, run, *keys, put_percent),
            Herd::Far(askers, keys) => slice(askers, run, *keys, put_percent),
        }
    }
}

/// Requests that are done before a slice begins, so that the server is awake.
const FIRST: u64 = 1024;
/// Requests between two looks at the clock.
const BLOCK: u64 = 256;

fn slice<L: Transport>(
    askers: &mut [Asker<L>],
    run: Duration,
    keys: u64,
    put_percent: u64,
) -> Result<BaselineMeasurement, BenchError> {
    let mut rng = Rng::new(SEED);
    let before = noted(askers);
    let mut round = |askers: &mut [Asker<L>]| {
        let mut done = 0;
        for asker in askers {
            done += asker.take()?;
            asker.fill(&mut rng, keys, put_percent)?;
        }
        Ok::<u64, BenchError>(done)
    };
    let mut first = 0;
    while first < FIRST {
        first += round(askers)?;
    }
    askers.iter_mut().for_each(|asker| asker.times().latency.clear());
    let (start, mut operations) = (Instant::now(), 0);
    while start.elapsed() < run {
        let until = operations + BLOCK;
        while operations < until {
            operations += round(askers)?;
        }
    }
    let elapsed_ns = start.elapsed().as_nanos() as u64;
    let mut latency = Histogram::new();
    askers.iter_mut().for_each(|asker| latency.merge(&asker.times().latency));
    for asker in askers.iter_mut() {
        asker.finish()?;
    }
    let counts = noted(askers).since(&before);
    Ok(BaselineMeasurement { operations, elapsed_ns, latency, counts })
}

/// What was asked, with what was asked again, and answered so far.
fn noted<L: Transport>(askers: &mut [Asker<L>]) -> Counts {
    let mut sum = Counts::default();
    for asker in askers {
        sum.requests += asker.times().submitted + asker.reminders();
        sum.answers += asker.times().answered;
    }
    Counts { asked: sum.answers, ..sum }
}
