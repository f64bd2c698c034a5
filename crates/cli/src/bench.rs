//! `rackpool bench`: one benchmark against racks of its own in processes of their own, its table
//! on the terminal, its numbers as JSON. The measuring itself is in `rackpool-bench`; `demo`
//! builds its latency ladder from here.

use crate::api::{self, BenchPlan, Emulate, FabricChoice, YcsbPlan};
use crate::args::{BenchArgs, BenchName};
use crate::children::{Cluster, ClusterOptions, Residue};
use crate::failure::{Failure, Result};
use crate::output::{self, Level};
use crate::sim;
use rackpool_bench::baselines::Carrier;
use rackpool_bench::cache::ratio::PEERS;
use rackpool_bench::report::Report;
use rackpool_bench::run::{PoolSource, Size};
use rackpool_bench::{migrate, verbs};

/// Memory of a rack beside what is measured.
const SPARE_BYTES: u64 = 64 << 20;

/// What a measurement is made on.
#[derive(Clone, Debug)]
pub struct Setup {
    pub size: Size,
    /// How the other rack is reached.
    pub fabric: FabricChoice,
    pub emulate: Option<Emulate>,
    pub ycsb: YcsbPlan,
}

pub fn run(args: &BenchArgs) -> Result<()> {
    let json = output::open_if(args.json.as_ref())?;
    let report = report(args)?;
    if let Some(json) = json {
        json.report(&report)?;
    }
    output::print(&report.table())
}

fn report(args: &BenchArgs) -> Result<Report> {
    match args.name {
        BenchName::Cache => return measure_cache(args),
        BenchName::Sim => return sim::speed(args.quick),
        BenchName::Migrate => return measure_migrate(args),
        BenchName::Kv => return measure_kv(args),
        BenchName::Dram => return measure_dram(args),
        BenchName::Verbs => return measure_verbs(args),
        _ => {}
    }
    let setup = Setup {
        size: Size::quick(args.quick),
        fabric: args.fabric,
        emulate: args.emulate,
        ycsb: YcsbPlan::new(&args.workload, &args.distribution, args.clients)?,
    };
    let mut reports = measure(&[args.name], &setup)?;
    Ok(reports.remove(0))
}

/// Runs benchmarks one after the other on two racks of their own.
pub fn measure(names: &[BenchName], setup: &Setup) -> Result<Vec<Report>> {
    let residue = Residue::prepare()?;
    let rack_bytes = setup.size.region_bytes() + SPARE_BYTES;
    let options = ClusterOptions::new(2, rack_bytes, setup.fabric, setup.emulate);
    let cluster = Cluster::start(&options, &residue)?;
    let measured = names.iter().map(|name| measure_on(&cluster, *name, setup));
    measured.collect()
}

/// Runs one benchmark on racks that are there.
pub fn measure_on(cluster: &Cluster, name: BenchName, setup: &Setup) -> Result<Report> {
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
    watch(move |progress| api::run_bench(plan, progress))
}

/// Measures the cache in this process.
fn measure_cache(args: &BenchArgs) -> Result<Report> {
    let (size, workloads) = (Size::quick(args.quick), args.workload.clone());
    if !workloads.is_empty() && PEERS.is_empty() {
        let way_out = "to have foyer, quick_cache and moka beside it, build with --features peers";
        output::log(Level::Warn, "bench", format!("our policies only: {way_out}"));
    }
    watch(move |progress| api::run_cache(&workloads, size, progress))
}

/// Measures the simulation of memory channels in this process.
fn measure_dram(args: &BenchArgs) -> Result<Report> {
    let size = Size::quick(args.quick);
    watch(move |progress| api::run_dram(size, progress))
}

/// Measures a fabric by itself, in this process.
fn measure_verbs(args: &BenchArgs) -> Result<Report> {
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
    watch(move |progress| api::run_verbs(&options, progress))
}

/// Measures what moving pages is worth: each measurement has racks of its own, one after another.
fn measure_migrate(args: &BenchArgs) -> Result<Report> {
    let options = migrate::Options {
        size: Size::quick(args.quick),
        page_bytes: args.pages.clone(),
        ..migrate::Options::default()
    };
    let emulate = args.emulate;
    watch(|progress| {
        let mut racks = |wanted: &migrate::Wanted| start_racks(wanted, emulate);
        api::run_migrate(&options, &mut racks, progress)
    })
}

/// Measures the cache's server, alone or beside others; what was started ends with the measurement.
fn measure_kv(args: &BenchArgs) -> Result<Report> {
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
    watch(move |progress| api::run_kv(size, peers, carrier, progress))
}

/// Two racks that end when what is returned is dropped: servers first, files last.
fn start_racks(
    wanted: &migrate::Wanted,
    emulate: Option<Emulate>,
) -> Result<(PoolSource, Box<dyn std::any::Any>)> {
    let residue = Residue::prepare()?;
    let mut options = ClusterOptions::new(2, wanted.rack_bytes, FabricChoice::Tcp, emulate);
    options.migrate = wanted.policy.to_string();
    options.page_bytes = Some(wanted.page_bytes);
    let cluster = Cluster::start(&options, &residue)?;
    let source = PoolSource {
        master: Some(cluster.master_addr.clone()),
        server_pids: cluster.daemons.iter().map(crate::children::Process::id).collect(),
        emulate: Emulate::default(),
    };
    Ok((source, Box::new((cluster, residue))))
}

/// Measures, with a bar for its steps.
fn watch(
    measure: impl FnOnce(&mut dyn FnMut(usize, usize, &str)) -> Result<Report>,
) -> Result<Report> {
    let bar = output::bar("measuring", 1, "steps");
    let measured = measure(&mut |done, steps, what| {
        bar.set_length(steps as u64);
        bar.set_position(done as u64);
        bar.set_prefix(what.to_owned());
    });
    bar.finish_and_clear();
    measured
}
