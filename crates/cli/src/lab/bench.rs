//! The benchmarks of what only measures or simulates: the cache, HERD, moving pages, a fabric by
//! itself, memory channels, the simulator. Part of [`crate::bench`].

use crate::api::{self, Emulate, FabricChoice};
use crate::args::{BenchArgs, BenchName};
use crate::bench::watch;
use crate::children::{Cluster, ClusterOptions, Residue};
use crate::failure::{Failure, Result};
use crate::lab::sim;
use crate::worker::orders;
use rackpool_bench::baselines::{self, Carrier};
use rackpool_bench::cache::ratio::PEERS;
use rackpool_bench::report::Report;
use rackpool_bench::run::{BenchError, PoolSource, Progress, Size};
use rackpool_bench::{cache, dram, kv, migrate, verbs};

/// Measures what needs no racks that run already.
pub fn measure(args: &BenchArgs) -> Result<Report> {
    match args.name {
        BenchName::Cache => measure_cache(args),
        BenchName::Sim => sim::speed(args.quick),
        BenchName::Migrate => measure_migrate(args),
        BenchName::Kv => measure_kv(args),
        BenchName::Dram => measure_dram(args),
        BenchName::Verbs => measure_verbs(args),
        _ => Err(Failure::new("bug", "it is measured on racks")),
    }
}

/// Measures the cache in this process.
fn measure_cache(args: &BenchArgs) -> Result<Report> {
    let (size, workloads) = (Size::quick(args.quick), args.workload.clone());
    if !workloads.is_empty() && PEERS.is_empty() {
        let way_out = "to have foyer, quick_cache and moka beside it, build with --features peers";
        tracing::warn!(target: "bench", "our policies only: {way_out}");
    }
    watch(move |progress| run_cache(&workloads, size, progress))
}

/// Measures the simulation of memory channels in this process.
fn measure_dram(args: &BenchArgs) -> Result<Report> {
    let size = Size::quick(args.quick);
    watch(move |progress| run_dram(size, progress))
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
    watch(move |progress| run_verbs(&options, progress))
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
        run_migrate(&options, &mut racks, progress)
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
    watch(move |progress| run_kv(size, peers, carrier, progress))
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

/// What starts racks for one measurement, and ends them when its second part is dropped.
type StartRacks<'r> =
    dyn FnMut(&migrate::Wanted) -> Result<(PoolSource, Box<dyn std::any::Any>)> + 'r;

/// Runs `bench cache`: look-ups, or with workloads hit ratios.
fn run_cache(
    workloads: &[String],
    size: Size,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Report> {
    let mut say = |step: Progress| progress(step.done, step.steps, &step.name);
    Ok(match workloads {
        [] => cache::speed::run(size, &mut say)?,
        [all] if all == "all" => cache::ratio::run(&[], size, &mut say)?,
        names => cache::ratio::run(names, size, &mut say)?,
    })
}

/// Runs `bench dram`.
fn run_dram(size: Size, progress: &mut dyn FnMut(usize, usize, &str)) -> Result<Report> {
    Ok(dram::run(size, &mut |step: Progress| progress(step.done, step.steps, &step.name))?)
}

/// Runs `bench verbs`; `progress` as in [`run_bench`].
fn run_verbs(
    options: &verbs::Options,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Report> {
    Ok(verbs::run(options, &mut |step: Progress| progress(step.done, step.steps, &step.name))?)
}

/// Runs `bench migrate`; `progress` as in [`run_bench`].
fn run_migrate(
    options: &migrate::Options,
    racks: &mut StartRacks<'_>,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Report> {
    let mut command = api::own_command("migrate-worker")?;
    let mut say = |step: Progress| progress(step.done, step.steps, &step.name);
    let mut racks = |wanted: &migrate::Wanted| match racks(wanted) {
        Ok((source, guard)) => Ok(migrate::Racks { source, guard }),
        Err(failure) => Err(BenchError::Io {
            what: "starting racks".into(),
            source: std::io::Error::other(failure.to_string()),
        }),
    };
    Ok(migrate::run(options, &mut racks, &mut command, &mut say)?)
}

/// Runs `bench kv`; `progress` as in [`run_bench`].
fn run_kv(
    size: Size,
    peers: bool,
    baselines: Option<Carrier>,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Report> {
    let mut command = api::own_command("kv")?;
    let mut worker = api::own_command("baselines-worker")?;
    let mut ours = |words: &[&str]| {
        let mut command = command(0);
        command.args(words);
        command
    };
    let mut say = |step: Progress| progress(step.done, step.steps, &step.name);
    let (ours, worker) = (&mut ours, &mut worker);
    Ok(kv::run(&mut kv::Options { size, peers, ours, baselines, worker }, &mut say)?)
}

/// A client process of `bench migrate`.
pub fn serve_migrate() -> Result<()> {
    Ok(migrate::worker(&mut orders()?, &mut std::io::stdout())?)
}

/// A process of `bench kv --baselines`.
pub fn serve_baselines() -> Result<()> {
    Ok(baselines::worker(&mut orders()?, &mut std::io::stdout())?)
}
