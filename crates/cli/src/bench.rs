//! `rackpool bench`: one benchmark against racks of its own in processes of their own, its table
//! on the terminal, its numbers as JSON. The measuring itself is in `rackpool-bench`; `demo`
//! builds its latency ladder from here.

use crate::api::{self, BenchPlan, Emulate, FabricChoice, YcsbPlan};
use crate::args::{BenchArgs, BenchName};
use crate::children::{Cluster, ClusterOptions, Residue};
use crate::failure::Result;
use crate::{lab, output};
use rackpool_bench::report::Report;
use rackpool_bench::run::{PoolSource, Size};

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
        BenchName::Local | BenchName::Remote | BenchName::Ring | BenchName::Locks => {}
        BenchName::Rrpc | BenchName::Ycsb => {}
        _ => return lab::bench(args),
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

/// Measures, with a bar for its steps.
pub fn watch(
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
