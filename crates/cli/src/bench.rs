//! `rackpool bench`: one benchmark against racks of its own in processes of their own, its table
//! on the terminal, its numbers as JSON. The measuring itself is in `rackpool-bench`; `demo`
//! builds its latency ladder from here.

use crate::api::{self, BenchPlan, Emulate, FabricChoice, YcsbPlan};
use crate::args::{BenchArgs, BenchName};
use crate::children::{Cluster, ClusterOptions, Residue};
use crate::failure::{Failure, Result};
use crate::output::{self, Level};
use crate::servers::install_shutdown;
use crate::sim;
use indicatif::ProgressBar;
use rackpool_bench::baselines::Carrier;
use rackpool_bench::cache::ratio::PEERS;
use rackpool_bench::report::{Report, ReportError};
use rackpool_bench::run::{PoolSource, Size};
use rackpool_bench::{migrate, verbs};
use rackpool_hw::process::Shutdown;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Memory of a rack beside what is measured.
const SPARE_BYTES: u64 = 64 << 20;
/// How often the wish to stop is looked at: rarely, since the main thread must not disturb.
const SLICE: Duration = Duration::from_millis(200);

/// What a measurement is made on.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How much.
    pub size: Size,
    /// How the other rack is reached.
    pub fabric: FabricChoice,
    /// Latency to inject.
    pub emulate: Option<Emulate>,
    /// For YCSB.
    pub ycsb: YcsbPlan,
}

/// Runs one benchmark.
pub fn run(args: &BenchArgs) -> Result<()> {
    let shutdown = install_shutdown()?;
    if let Some(path) = &args.json {
        output::check_writable(path)?;
    }
    if args.name == BenchName::Cache {
        return finish(args, vec![measure_cache(args, shutdown)?]);
    }
    let setup = Setup {
        size: Size::quick(args.quick),
        fabric: args.fabric,
        emulate: args.emulate,
        ycsb: YcsbPlan::new(&args.workload, &args.distribution, args.clients)?,
    };
    let reports = match args.name {
        BenchName::Sim => vec![sim::speed(args.quick)?],
        BenchName::Migrate => vec![measure_migrate(args, shutdown)?],
        BenchName::Kv => vec![measure_kv(args, shutdown)?],
        BenchName::Dram => vec![measure_dram(args, shutdown)?],
        BenchName::Verbs => vec![measure_verbs(args, shutdown)?],
        name => measure(&[name], &setup, shutdown)?,
    };
    finish(args, reports)
}

/// Writes and prints.
fn finish(args: &BenchArgs, reports: Vec<Report>) -> Result<()> {
    for report in reports {
        if let Some(path) = &args.json {
            report.write(path).map_err(|error| failed(&error))?;
        }
        output::print(&report.table())?;
    }
    Ok(())
}

/// A report that could not be written.
pub fn failed(error: &ReportError) -> Failure {
    Failure::new("io", error.to_string())
}

/// Runs benchmarks one after the other on two racks of their own.
pub fn measure(names: &[BenchName], setup: &Setup, shutdown: Shutdown) -> Result<Vec<Report>> {
    let residue = Residue::prepare(2)?;
    let rack_bytes = setup.size.region_bytes() + SPARE_BYTES;
    let options = ClusterOptions::new(2, rack_bytes, setup.fabric, setup.emulate);
    let cluster = Cluster::start(&options, &residue, shutdown)?;
    let measured = names.iter().map(|name| measure_on(&cluster, *name, setup, shutdown));
    measured.collect()
}

/// Runs one benchmark on racks that are there.
pub fn measure_on(
    cluster: &Cluster,
    name: BenchName,
    setup: &Setup,
    shutdown: Shutdown,
) -> Result<Report> {
    let source = PoolSource {
        master: Some(cluster.master_addr.clone()),
        server_pids: cluster.server_ids(),
        emulate: Emulate::default(),
    };
    let fabric = match setup.fabric {
        FabricChoice::Tcp | FabricChoice::Auto => FabricChoice::Tcp,
        chosen => chosen,
    };
    let (size, ycsb) = (setup.size, setup.ycsb.clone());
    let plan = BenchPlan { name, size, fabric, source, ycsb };
    watch(move |progress| api::run_bench(plan, progress), shutdown)
}

/// Measures the cache in this process.
fn measure_cache(args: &BenchArgs, shutdown: Shutdown) -> Result<Report> {
    let (size, workloads) = (Size::quick(args.quick), args.workload.clone());
    if !workloads.is_empty() && PEERS.is_empty() {
        let way_out = "to have foyer, quick_cache and moka beside it, build with --features peers";
        output::log(Level::Warn, "bench", format!("our policies only: {way_out}"));
    }
    watch(move |progress| api::run_cache(&workloads, size, progress), shutdown)
}

/// Measures the simulation of memory channels in this process.
fn measure_dram(args: &BenchArgs, shutdown: Shutdown) -> Result<Report> {
    let size = Size::quick(args.quick);
    watch(move |progress| api::run_dram(size, progress), shutdown)
}

/// Measures a fabric by itself, in this process.
fn measure_verbs(args: &BenchArgs, shutdown: Shutdown) -> Result<Report> {
    let carrier = match args.fabric {
        FabricChoice::Tcp | FabricChoice::Auto => verbs::Carrier::Tcp,
        FabricChoice::Shm => verbs::Carrier::Shm,
        FabricChoice::Verbs => verbs::Carrier::Verbs,
        FabricChoice::Proxied => {
            return Err(Failure::usage("a fabric that can be measured is tcp, shm or verbs"));
        }
    };
    let size = Size::quick(args.quick);
    let options = verbs::Options { size, carrier, device: args.verbs_device.clone() };
    watch(move |progress| api::run_verbs(&options, progress), shutdown)
}

/// Measures what moving pages is worth: each measurement has racks of its own, one after another.
fn measure_migrate(args: &BenchArgs, shutdown: Shutdown) -> Result<Report> {
    let options = migrate::Options {
        size: Size::quick(args.quick),
        page_bytes: args.pages.clone(),
        ..migrate::Options::default()
    };
    let emulate = args.emulate;
    let report = watch(
        move |progress| {
            let mut racks = |wanted: &migrate::Wanted| start_racks(wanted, emulate, shutdown);
            api::run_migrate(&options, &mut racks, progress)
        },
        shutdown,
    );
    // An interruption leaves the measuring thread in the midst of it.
    if report.is_err() {
        Residue::prepare(2)?.remove();
    }
    report
}

/// Measures the cache's server, alone or beside others; what was started ends with the measurement.
fn measure_kv(args: &BenchArgs, shutdown: Shutdown) -> Result<Report> {
    let carrier = match args.baselines {
        None => None,
        Some(FabricChoice::Shm | FabricChoice::Auto) => Some(Carrier::Shm),
        Some(FabricChoice::Tcp) => Some(Carrier::Tcp),
        Some(FabricChoice::Verbs) => Some(Carrier::Verbs),
        Some(FabricChoice::Proxied) => {
            return Err(Failure::usage("a fabric for --baselines is shm, tcp or verbs"));
        }
    };
    let (size, peers) = (Size::quick(args.quick), args.peers);
    watch(move |progress| api::run_kv(size, peers, carrier, progress), shutdown)
}

/// Two racks that end when what is returned is dropped: servers first, files last.
fn start_racks(
    wanted: &migrate::Wanted,
    emulate: Option<Emulate>,
    shutdown: Shutdown,
) -> Result<(PoolSource, Box<dyn std::any::Any>)> {
    let residue = Residue::prepare(2)?;
    let mut options = ClusterOptions::new(2, wanted.rack_bytes, FabricChoice::Tcp, emulate);
    options.migrate = wanted.policy.to_string();
    options.page_bytes = Some(wanted.page_bytes);
    let cluster = Cluster::start(&options, &residue, shutdown)?;
    let source = PoolSource {
        master: Some(cluster.master_addr.clone()),
        server_pids: cluster.daemons.iter().map(crate::children::Process::id).collect(),
        emulate: Emulate::default(),
    };
    Ok((source, Box::new((cluster, residue))))
}

/// What the measuring thread says.
enum News {
    Step(usize, usize, String),
    End(Result<Report>),
}

/// Measures on a thread of its own, so that a signal ends the command although the measurement
/// knows nothing of it: the thread ends with the process.
fn watch(
    measure: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> Result<Report> + Send + 'static,
    shutdown: Shutdown,
) -> Result<Report> {
    let (sender, news) = channel();
    let body = move || measuring(measure, &sender);
    let thread = std::thread::Builder::new().name("measuring".into()).spawn(body);
    thread.map_err(|error| Failure::io("starting a thread", &error))?;
    let bar = output::bar("measuring", 1, "steps");
    loop {
        let result = match news.recv_timeout(SLICE) {
            Ok(News::Step(done, steps, what)) => {
                show(&bar, done, steps, &what);
                continue;
            }
            Ok(News::End(result)) => result,
            Err(RecvTimeoutError::Disconnected) => {
                Err(Failure::new("bug", "the measurement ended without a result"))
            }
            Err(RecvTimeoutError::Timeout) if !shutdown.is_requested() => continue,
            Err(RecvTimeoutError::Timeout) => Err(Failure::interrupted()),
        };
        bar.finish_and_clear();
        // Servers that got the same signal look like a failure.
        return if shutdown.is_requested() { Err(Failure::interrupted()) } else { result };
    }
}

fn measuring(
    measure: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> Result<Report>,
    news: &Sender<News>,
) {
    let mut progress = |done: usize, steps: usize, what: &str| {
        // If nobody listens any more, the process is about to end.
        let _ = news.send(News::Step(done, steps, what.to_owned()));
    };
    let result = measure(&mut progress);
    let _ = news.send(News::End(result));
}

fn show(bar: &ProgressBar, done: usize, steps: usize, what: &str) {
    bar.set_length(steps as u64);
    bar.set_position(done as u64);
    bar.set_prefix(what.to_owned());
}
