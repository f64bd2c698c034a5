//! The benchmarks of what only measures or simulates: the cache, HERD, moving pages, a fabric by
//! itself, memory channels, the simulator. Part of [`crate::bench`].

use crate::args::{BenchArgs, BenchName};
use crate::bench::{own_command, watch};
use crate::children::{Cluster, ClusterOptions, Residue};
use crate::failure::{Failure, Result};
use crate::kv_tiering::nodes_without_processors;
use crate::lab::{files, sim};
use crate::tiers_args::Nodes;
use crate::worker::orders;
use rackpool::{Emulate, FabricChoice};
use rackpool_bench::baselines::{self, Carrier};
use rackpool_bench::cache::ratio::PEERS;
use rackpool_bench::cache::tiering::FarKind;
use rackpool_bench::report::Report;
use rackpool_bench::run::{BenchError, PoolSource, Size};
use rackpool_bench::ycsb_run::peers::{self, PeerOptions};
use rackpool_bench::{cache, dram, kv, migrate, pmem, tiers, verbs};
use rackpool_tiers::topology::{Sources, Topology};
use std::path::PathBuf;

/// Measures what needs no racks that run already.
pub fn measure(args: &BenchArgs) -> Result<Report> {
    match args.name {
        BenchName::Cache => measure_cache(args),
        BenchName::Sim => sim::speed(args.quick),
        BenchName::Migrate => measure_migrate(args),
        BenchName::Kv => measure_kv(args),
        BenchName::Dram => measure_dram(args),
        BenchName::Tiers => measure_tiers(args),
        BenchName::Verbs => measure_verbs(args),
        BenchName::Pmem => measure_pmem(args),
        BenchName::Files => files::measure(args),
        BenchName::Ycsb => measure_ycsb_peers(args),
        _ => Err(Failure::new("bug", "it is measured on racks")),
    }
}

/// Measures the cache in this process.
fn measure_cache(args: &BenchArgs) -> Result<Report> {
    let (size, workloads) = (Size::quick(args.quick), args.workload.clone());
    if args.tiering {
        let names = if workloads == ["all"] { Vec::new() } else { workloads };
        let (far, mut worker) = (far_memory(args)?, own_command("tiering-worker")?);
        let (names, engines, worker) = (&names, args.engines as usize, &mut worker);
        let options = cache::tiering::Options { names, far, size, engines, worker };
        return watch(|say| Ok(cache::tiering::run(options, say)?));
    }
    if !workloads.is_empty() && PEERS.is_empty() {
        let way_out = "to have foyer, quick_cache and moka beside it, build with --features peers";
        tracing::warn!(target: "bench", "our policies only: {way_out}");
    }
    watch(|say| {
        Ok(match &workloads[..] {
            [] => cache::speed::run(size, say)?,
            [all] if all == "all" => cache::ratio::run(&[], size, say)?,
            names => cache::ratio::run(names, size, say)?,
        })
    })
}

/// What emulated far memory has in latency above the near one, ns; no fabric is emulated there.
fn far_latency(emulate: Emulate) -> Result<u32> {
    let what = match emulate {
        Emulate { cxl_ns: 0, .. } => {
            "far memory needs a latency above 0, as in --emulate cxl=140ns; without --emulate it \
             has twice that of DRAM"
        }
        Emulate { cxl_ns, rdma_ns: 0 } => return Ok(cxl_ns),
        Emulate { .. } => "--tiering has no fabric: --emulate rdma= would have no effect",
    };
    Err(Failure::usage(what))
}

/// What is far for `bench cache --tiering`: nodes, or what is emulated where there are none.
fn far_memory(args: &BenchArgs) -> Result<FarKind> {
    if let Some(Nodes(nodes)) = &args.far_nodes {
        return Ok(FarKind::Nodes(nodes.clone()));
    }
    let cxl_ns = args.emulate.map(far_latency).transpose()?;
    let topology = Topology::read(&Sources::here());
    let there = topology.ok().and_then(|topology| nodes_without_processors(&topology).ok()?);
    Ok(match there.filter(|_| cxl_ns.is_none()) {
        Some(there) => FarKind::Nodes(there.nodes().iter().map(|(node, _)| *node).collect()),
        None => FarKind::Emulated(cxl_ns),
    })
}

/// Measures weights and the allocator in this process.
fn measure_tiers(args: &BenchArgs) -> Result<Report> {
    let report = watch(|say| Ok(tiers::run(Size::quick(args.quick), say)?))?;
    for absent in ["jemalloc_absent", "memkind_absent"] {
        if let Some(reason) = report.extra.get(absent).and_then(|text| text.as_str()) {
            tracing::warn!(target: "bench", "{reason}");
        }
    }
    Ok(report)
}

/// Measures the simulation of memory channels in this process.
fn measure_dram(args: &BenchArgs) -> Result<Report> {
    watch(|say| Ok(dram::run(Size::quick(args.quick), say)?))
}

/// Runs the rules of persistent memory in the model.
fn measure_pmem(args: &BenchArgs) -> Result<Report> {
    if !args.rules {
        let what = "bench pmem needs --rules: no persistent memory of a machine is measured";
        return Err(Failure::usage(what));
    }
    watch(|say| Ok(pmem::run_rules(Size::quick(args.quick), say)))
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
    watch(|say| Ok(verbs::run(&options, say)?))
}

/// Measures what moving pages is worth: each measurement has racks of its own, one after another.
fn measure_migrate(args: &BenchArgs) -> Result<Report> {
    let options = migrate::Options {
        size: Size::quick(args.quick),
        page_bytes: args.pages.clone(),
        ..migrate::Options::default()
    };
    let mut command = own_command("migrate-worker")?;
    let mut racks = |wanted: &migrate::Wanted| {
        start_racks(wanted, args.emulate).map_err(|failure| BenchError::Io {
            what: "starting racks".into(),
            source: std::io::Error::other(failure.to_string()),
        })
    };
    watch(|say| Ok(migrate::run(&options, &mut racks, &mut command, say)?))
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
    let (mut command, mut worker) = (own_command("kv")?, own_command("baselines-worker")?);
    let mut ours = |words: &[&str]| {
        let mut command = command(0);
        command.args(words);
        command
    };
    let peers = args.peers.then(|| peer_programs(args));
    let mut options = kv::Options {
        size: Size::quick(args.quick),
        peers,
        rows: args.rows.clone(),
        ours: &mut ours,
        baselines: carrier,
        worker: &mut worker,
    };
    watch(|say| Ok(kv::run(&mut options, say)?))
}

fn peer_programs(args: &BenchArgs) -> kv::PeerPrograms {
    let program = |given: &Option<PathBuf>, name: &str| given.clone().unwrap_or(name.into());
    kv::PeerPrograms {
        redis: program(&args.peer_redis, "redis-server"),
        memcached: program(&args.peer_memcached, "memcached"),
    }
}

/// Measures the hash table beside Redis and memcached, on racks in processes of their own.
fn measure_ycsb_peers(args: &BenchArgs) -> Result<Report> {
    let residue = Residue::prepare()?;
    let size = Size::quick(args.quick);
    let options = ClusterOptions::new(2, size.region_bytes(), args.fabric, args.emulate);
    let cluster = Cluster::start(&options, &residue)?;
    let options = PeerOptions {
        size,
        source: PoolSource {
            master: Some(cluster.master_addr.clone()),
            server_pids: cluster.server_ids(),
            emulate: Emulate::default(),
        },
        fabric: args.fabric,
        clients: args.clients,
        programs: peer_programs(args),
    };
    let mut command = own_command("ycsb-worker")?;
    watch(|say| Ok(peers::run(&options, &mut command, say)?))
}

/// Two racks that end when what is returned is dropped: servers first, files last.
fn start_racks(wanted: &migrate::Wanted, emulate: Option<Emulate>) -> Result<migrate::Racks> {
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
    Ok(migrate::Racks { source, guard: Box::new((cluster, residue)) })
}

/// A client process of `bench migrate`.
pub fn serve_migrate() -> Result<()> {
    Ok(migrate::worker(&mut orders()?, &mut std::io::stdout())?)
}

/// A process of `bench cache --tiering`.
pub fn serve_tiering() -> Result<()> {
    Ok(cache::tiering_os::worker(&mut orders()?, &mut std::io::stdout())?)
}

/// A process of `bench kv --baselines`.
pub fn serve_baselines() -> Result<()> {
    Ok(baselines::worker(&mut orders()?, &mut std::io::stdout())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_that_would_not_be_emulated_is_refused() {
        let latency = |text: &str| far_latency(text.parse().unwrap());
        assert_eq!(latency("cxl=140ns"), Ok(140));
        for (text, way_out) in [
            ("cxl=0ns", "cxl=140ns"),
            ("rdma=2us", "cxl=140ns"),
            ("cxl=140ns,rdma=2us", "--emulate rdma="),
        ] {
            let refused = latency(text).unwrap_err();
            assert!(refused.code() == "usage" && refused.message().contains(way_out), "{text}");
        }
    }
}
