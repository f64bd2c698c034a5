//! `rackpool demo`: two racks on this machine in real processes. A master, two rack daemons and
//! several clients; real files go in through rack 0 and come out of rack 1, byte for byte; then
//! YCSB; then the latency ladder. Out: a summary, a page to look at, JSON if wanted, and nothing
//! else: at the end it looks for its own residue.
//!
//! Order of ownership: files that must not stay, then servers, then clients; dropped in the
//! opposite order, also after a failure or a signal.

pub mod list;
mod page;
mod summary;
mod transfer;

use crate::args::{BenchName, DemoArgs, PoolArgs};
use crate::bench::{self, YcsbPlan};
use crate::children::{Cluster, ClusterOptions, Residue, Workers, left_behind};
use crate::connect::open_pool;
use crate::failure::{Failure, Result};
use crate::output;
use list::{Bounds, Plan};
use rackpool_bench::report::{Kind, Report};
use rackpool_bench::run::Size;
use rackpool_mem::memory::HostMemory;
use rackpool_stats::format::Unit;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const RACKS: u16 = 2;
/// What `--quick` takes of the input at most.
const QUICK: Bounds = Bounds { files_max: 4_000, footprint_bytes_max: 96 << 20 };
/// Files taken at most without `--quick`.
const FILES_MAX: usize = 200_000;
/// Least memory that is worth a try.
const MEMORY_BYTES_MIN: u64 = 128 << 20;

/// All that was found out.
struct Findings {
    input: PathBuf,
    plan: Plan,
    quick: bool,
    fabric: &'static str,
    kind: Kind,
    emulate: Option<String>,
    rack_bytes: u64,
    pids: Pids,
    moved: transfer::Outcome,
    ycsb: Report,
    clients: usize,
    stats: serde_json::Value,
    ladder: Vec<Report>,
    took: Duration,
    residue: Vec<String>,
}

/// Process ids for the picture.
#[derive(Default)]
struct Pids {
    master: u32,
    daemons: Vec<u32>,
    clients: Vec<(u16, u32)>,
}

pub fn run(args: &DemoArgs) -> Result<()> {
    let start = Instant::now();
    // A page that cannot be written is said before the work rather than after it.
    let (html, json) = (output::open(&args.html)?, output::open_if(args.json.as_ref())?);
    let mut findings = live(args)?;
    // The ladder has racks of its own: quick, idle apart from what is measured.
    let ladder = [BenchName::Local, BenchName::Ring, BenchName::Remote];
    findings.ladder = bench::measure(&ladder, &setup(args, true)?)?;
    findings.residue.extend(left_behind());
    findings.took = start.elapsed();
    let report = summary::report(&findings);
    if let Some(json) = json {
        json.report(&report)?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let finished_at = format!("{} UTC", output::utc(now, ' '));
    let page = page::page(&findings, &report, finished_at);
    html.write(rackpool_bench::html::render(&page))?;
    let shown = |path: &Path| std::path::absolute(path).unwrap_or(path.to_owned());
    let mut text = summary::text(&findings, &report);
    text.push_str(&format!("\nreport: {}\n", shown(&args.html).display()));
    if let Some(path) = &args.json {
        text.push_str(&format!("numbers: {}\n", shown(path).display()));
    }
    output::print(&text)?;
    findings.judge()
}

impl Findings {
    /// A failure if anything was not as it should be.
    fn judge(&self) -> Result<()> {
        let read = &self.moved.read;
        if read.different_count > 0 {
            let (count, names) = (read.different_count, read.different.join(", "));
            let message = format!("{count} files came back different: {names}");
            return Err(Failure::new("corrupt", message));
        }
        if !self.residue.is_empty() {
            let left = self.residue.join(", ");
            return Err(Failure::new("residue", format!("left behind: {left}")));
        }
        Ok(())
    }
}

/// The part with live processes. When it returns they are gone, and so are their files.
fn live(args: &DemoArgs) -> Result<Findings> {
    let input = input(args)?;
    let bounds = bounds(args)?;
    let sign_of_life = output::spinner("looking at the files");
    let plan = list::plan(&input, bounds);
    sign_of_life.finish_and_clear();
    let plan = plan?;
    if plan.entries.is_empty() {
        let found = plan.found_files;
        let message = format!("{} has {found} regular files, none that fits", input.display());
        return Err(Failure::new("config", message).with_hint("choose another --input DIR"));
    }
    let rack_bytes = args.memory.unwrap_or_else(|| rack_bytes(&plan, args.quick));
    output::print(&announcement(args, &input, &plan, rack_bytes))?;

    let residue = Residue::prepare()?;
    let options = ClusterOptions::new(RACKS, rack_bytes, args.fabric, args.emulate);
    let sign_of_life = output::spinner("starting two racks");
    let cluster = Cluster::start(&options, &residue);
    sign_of_life.finish_and_clear();
    let cluster = cluster?;

    let list_path = residue.directory().join("files");
    list::write(&list_path, &plan.entries)?;
    let racks: Vec<u16> = (0..args.clients).map(|client| (client % 2) as u16).collect();
    let master = &cluster.master_addr;
    let mut workers = Workers::start(&racks, master, options.fabric, residue.directory())?;
    let moved = transfer::run(&mut workers, &racks, &input, &list_path, &plan)?;
    let stats = stats(master)?;
    let pids = Pids {
        master: cluster.master.id(),
        daemons: cluster.daemons.iter().map(crate::children::Process::id).collect(),
        clients: racks.iter().copied().zip(workers.ids()).collect(),
    };
    drop(workers);
    let ycsb = bench::measure_on(&cluster, BenchName::Ycsb, &setup(args, args.quick)?)?;
    drop(cluster);
    // The daemons were told to leave nothing: what is there of a region is a finding, although it
    // goes with `residue`.
    let left = residue.regions().iter().map(|path| path.display().to_string()).collect();
    Ok(Findings {
        kind: if options.emulate.is_some() { Kind::Emulated } else { Kind::Measured },
        input,
        plan,
        quick: args.quick,
        fabric: options.fabric,
        emulate: options.emulate,
        rack_bytes,
        pids,
        moved,
        ycsb,
        clients: racks.len(),
        stats,
        ladder: Vec::new(),
        took: Duration::ZERO,
        residue: left,
    })
}

fn setup(args: &DemoArgs, quick: bool) -> Result<bench::Setup> {
    Ok(bench::Setup {
        size: Size::quick(quick),
        fabric: args.fabric,
        emulate: args.emulate,
        ycsb: YcsbPlan::new(&[], &[], args.clients)?,
    })
}

fn stats(master: &str) -> Result<serde_json::Value> {
    let pool = PoolArgs { rack: Some(0), master: Some(master.to_owned()), ..PoolArgs::default() };
    crate::output::to_json(&open_pool(&pool)?.admin()?.pool_stats()?)
}

/// The tree with the files that are stored.
fn input(args: &DemoArgs) -> Result<PathBuf> {
    match &args.input {
        Some(input) => Ok(input.clone()),
        None => Ok(toolchain_sources().unwrap_or_else(|| PathBuf::from("/usr/share"))),
    }
}

/// The sources of Rust's library, if the toolchain has them.
fn toolchain_sources() -> Option<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let sysroot = String::from_utf8(output.stdout).ok()?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src");
    let has_some = std::fs::read_dir(&sources).is_ok_and(|mut entries| entries.next().is_some());
    (output.status.success() && has_some).then_some(sources)
}

/// How much may be taken: what `--quick` allows, and half of what is free.
fn bounds(args: &DemoArgs) -> Result<Bounds> {
    let shm = rustix::fs::statvfs("/dev/shm")
        .map_err(|error| Failure::io("/dev/shm", &error.into()).with_hint("see rackpool doctor"))?;
    let shm_free = shm.f_bavail * shm.f_frsize;
    let free = shm_free.min(HostMemory::now().map_or(u64::MAX, |memory| memory.available_bytes));
    if free < 2 * MEMORY_BYTES_MIN {
        let (free, least) = (free >> 20, MEMORY_BYTES_MIN >> 19);
        let message = format!("{free} MiB are free in /dev/shm and memory, {least} MiB are needed");
        return Err(Failure::new("full", message).with_hint("see rackpool doctor"));
    }
    let mut bounds = match args.quick {
        true => QUICK,
        false => Bounds { files_max: FILES_MAX, footprint_bytes_max: u64::MAX },
    };
    bounds.footprint_bytes_max = bounds.footprint_bytes_max.min(free / 2);
    if let Some(memory) = args.memory {
        bounds.footprint_bytes_max = bounds.footprint_bytes_max.min(memory / 2);
    }
    Ok(bounds)
}

/// Room for all files in rack 0, for the records of YCSB, and for what moves about.
fn rack_bytes(plan: &Plan, quick: bool) -> u64 {
    let records_bytes: u64 = if quick { 128 << 20 } else { 1 << 30 };
    let needed = plan.footprint_bytes() * 3 / 2 + records_bytes + MEMORY_BYTES_MIN;
    needed.next_multiple_of(64 << 20)
}

fn announcement(args: &DemoArgs, input: &Path, plan: &Plan, rack_bytes: u64) -> String {
    let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
    let share = if !plan.is_share() {
        "all of it".to_owned()
    } else {
        let why = if args.quick { "--quick" } else { "what fits" };
        format!("a share, {why}: {} files, {}", plan.entries.len(), show(plan.bytes()))
    };
    let (files, bytes) = (plan.found_files, show(plan.found_bytes));
    let unreadable = match plan.unreadable {
        0 => String::new(),
        count => format!(" ({count} places could not be looked at)"),
    };
    format!(
        "input: {}, {files} files, {bytes}{unreadable}; taken: {share}\n\
         racks: {RACKS} × {} in /dev/shm, {} clients\n",
        input.display(),
        show(rack_bytes),
        args.clients
    )
}
