//! `rackpool bench`: one benchmark against racks of its own in processes of their own, its table
//! on the terminal, its numbers as JSON. The measuring itself is in `rackpool-bench`; `demo`
//! builds its latency ladder from here.

use crate::args::{BenchArgs, BenchName};
use crate::children::{Cluster, ClusterOptions, Residue};
use crate::failure::{Failure, Result};
use crate::{lab, output};
use rackpool::{Emulate, FabricChoice};
use rackpool_bench::report::Report;
use rackpool_bench::run::{PoolSource, Progress, Size};
use rackpool_bench::ycsb::{Distribution, WORKLOADS, Workload, YcsbError};
use rackpool_bench::{local, locks, remote, ring, rrpc, table, ycsb_run};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Memory of a rack beside what is measured.
const SPARE_BYTES: u64 = 64 << 20;

/// What glibc reads settings from.
const TUNABLES: &str = "GLIBC_TUNABLES";
/// Room for the thread-local variables of a library that is loaded late, as jemalloc is.
const STATIC_TLS: &str = "glibc.rtld.optional_static_tls=16384";

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
    if args.name == BenchName::Tiers {
        with_static_tls()?;
    }
    let json = output::open_if(args.json.as_ref())?;
    let report = report(args)?;
    if let Some(json) = json {
        json.report(&report)?;
    }
    output::print(&report.table())
}

/// Starts this program anew with [`STATIC_TLS`], which glibc reads at a start alone.
fn with_static_tls() -> Result<()> {
    let set = std::env::var(TUNABLES).unwrap_or_default();
    if set.contains("optional_static_tls") {
        return Ok(());
    }
    let all = if set.is_empty() { STATIC_TLS.into() } else { format!("{set}:{STATIC_TLS}") };
    let own = std::env::current_exe().map_err(|e| Failure::io("our own executable", &e))?;
    let mut command = Command::new(own);
    let error = command.args(std::env::args_os().skip(1)).env(TUNABLES, all).exec();
    Err(Failure::io("our own executable", &error))
}

fn report(args: &BenchArgs) -> Result<Report> {
    match args.name {
        BenchName::Local | BenchName::Remote | BenchName::Ring | BenchName::Locks => {}
        BenchName::Rrpc | BenchName::Table => {}
        BenchName::Ycsb if !args.peers => {}
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
    let size = setup.size;
    watch(|say| {
        Ok(match name {
            BenchName::Local => local::run(&local::Options { size, source, rack: 0 }, say)?,
            BenchName::Ring => ring::run(&ring::Options { size, source, rack: 0 }, say)?,
            BenchName::Remote => {
                let options = remote::Options { size, source, fabric, rack: 0, remote_rack: 1 };
                remote::run(&options, say)?
            }
            BenchName::Locks => {
                let mut command = own_command("locks-worker")?;
                locks::run(&locks::Options { size, source, fabric }, &mut command, say)?
            }
            BenchName::Rrpc => rrpc::run(&rrpc::Options { size, source, fabric }, say)?,
            BenchName::Table => table::run(&table::Options { size, source, fabric }, say)?,
            BenchName::Ycsb => {
                let mut command = own_command("ycsb-worker")?;
                let YcsbPlan { workloads, distributions, clients } = setup.ycsb.clone();
                let options = ycsb_run::Options {
                    size,
                    source,
                    fabric,
                    workloads,
                    distributions,
                    clients,
                    ..ycsb_run::Options::default()
                };
                ycsb_run::run(&options, &mut command, say)?
            }
            _ => return Err(Failure::new("bug", "it has no racks, or servers of its own")),
        })
    })
}

/// Measures, with a bar for its steps.
pub fn watch(measure: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<Report>) -> Result<Report> {
    let bar = output::bar("measuring", 1, "steps");
    let measured = measure(&mut |progress| {
        bar.set_length(progress.steps as u64);
        bar.set_position(progress.done as u64);
        bar.set_prefix(progress.name);
    });
    bar.finish_and_clear();
    measured
}

/// How client processes are started: this program with another command.
pub fn own_command(word: &'static str) -> Result<impl FnMut(u32) -> Command> {
    let own = std::env::current_exe().map_err(|e| Failure::io("our own executable", &e))?;
    Ok(move |_| {
        let mut command = Command::new(&own);
        crate::environment::clear(&mut command).arg(word);
        command
    })
}

/// What YCSB is to run.
#[derive(Clone, Debug, Default)]
pub struct YcsbPlan {
    pub workloads: Vec<Workload>,
    /// The distributions; empty for all that make sense.
    pub distributions: Vec<Distribution>,
    pub clients: u32,
}

impl YcsbPlan {
    /// What a user names, or everything.
    pub fn new(workloads: &[String], distributions: &[String], clients: u32) -> Result<Self> {
        let wrong = |error: YcsbError| Failure::usage(error.to_string());
        let distributions = distributions.iter().map(|name| name.parse());
        let distributions = distributions.collect::<Result<_, _>>().map_err(wrong)?;
        let mut chosen = WORKLOADS.to_vec();
        if !workloads.is_empty() {
            let named = workloads.iter().map(|name| name.parse());
            chosen = named.collect::<Result<_, _>>().map_err(wrong)?;
        }
        for workload in &chosen {
            workload.mix().map_err(wrong)?;
        }
        Ok(Self { workloads: chosen, distributions, clients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_names_is_run_and_scans_are_refused_with_the_reason() {
        let words = |text: &str| vec![text.to_owned()];
        let plan = YcsbPlan::new(&words("a"), &words("latest"), 4).unwrap();
        assert_eq!(
            (plan.workloads, plan.distributions),
            (vec![Workload::A], vec![Distribution::Latest])
        );
        assert_eq!(YcsbPlan::new(&[], &[], 4).unwrap().workloads, WORKLOADS);
        let refused = YcsbPlan::new(&words("E"), &[], 4).unwrap_err();
        assert_eq!(refused.code(), "usage");
        assert!(refused.message().contains("no order"), "{refused}");
        assert!(YcsbPlan::new(&words("X"), &[], 4).is_err());
        assert!(YcsbPlan::new(&[], &words("bimodal"), 4).is_err());
    }
}
