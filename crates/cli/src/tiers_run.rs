//! `rackpool tiers run`: an unchanged program, on the memory nodes that the user wants. In:
//! options, the machine. Out: the program's exit code, and where its memory lay, for people on
//! standard error and as JSON. Signals are the program's: so this runs before `main` takes them.

use crate::failure::{Failure, Result};
use crate::memory_speeds::MemorySpeeds;
use crate::output::{self, Output};
use clap::{ArgGroup, Args, ValueEnum};
use rackpool_mem::signals::Signals;
use rackpool_stats::format::Unit;
use rackpool_tiers::run::{
    Ended, Event, Launch, Machine, Mechanism, NodeBytes, Notes, Plan, Reading, RunError, Wanted,
    Weighting, plan, run as launch,
};
use rackpool_tiers::topology::{Sources, Topology};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub const RUN_EXAMPLES: &str = "\
The kernel places where it can, static programs too: --interleave, --preferred, --membind, and
weights that are equal or that its table for the whole machine has already; that table is never
written here. Other weights: a preloaded library places private memory (mmap, brk, malloc's heaps)
by extents of 2 MiB; files, shared memory and stacks stay as they are. fork and exec keep both.
A node that is full gives way to others, but for --membind: then the kernel may kill the program.
auto takes weights by bandwidth: of --profile, else of the firmware.
Says at the end, and at SIGUSR1, where the memory lies; SIGHUP, SIGINT, SIGQUIT, SIGTERM and SIGUSR2
are passed on. Exit code: that of PROGRAM, 128 and the signal's number, 126 or 127 if it is not run.

Examples:
  rackpool tiers run -- redis-server --save ''
  rackpool tiers run --weighted 3:1 --report where.json -- python3 train.py
  rackpool tiers run --weighted 0=5,2=1 --mechanism preload -- ./app
  rackpool tiers run --membind 1 -- ./app";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MechanismChoice {
    Auto,
    Kernel,
    Preload,
}

/// One of them at most.
const PLACEMENTS: [&str; 4] = ["weighted", "interleave", "preferred", "membind"];

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("placement").args(PLACEMENTS)))]
pub struct TiersRunArgs {
    /// From nodes by weights, 1 to 255: for all in turn, or for those named [default: auto]
    #[arg(long, value_name = "auto|3:1|N=W,...")]
    pub weighted: Option<String>,
    /// Page by page from each of these in turn
    #[arg(long, value_name = "NODES")]
    pub interleave: Option<String>,
    /// From this node, from others if it is full
    #[arg(long, value_name = "NODE")]
    pub preferred: Option<u16>,
    /// From these nodes and no others
    #[arg(long, value_name = "NODES")]
    pub membind: Option<String>,
    /// Bandwidths for auto, as `tiers measure` has stored them
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// What places the memory
    #[arg(long, value_enum, value_name = "auto|kernel|preload", default_value = "auto")]
    pub mechanism: MechanismChoice,
    /// Write at the end, as JSON, where the memory lay
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The program with its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub program: Vec<OsString>,
}

/// Runs the program and ends as it does. Called before any thread is started.
pub fn run(args: &TiersRunArgs) -> ExitCode {
    let failed = |error| Stopped::from(Failure::io("taking signals", &error));
    let signals = Signals::take().map_err(failed);
    match signals.and_then(|signals| run_with(args, &signals)) {
        Ok(code) => ExitCode::from(code),
        Err(Stopped { failure, code }) => {
            output::say(&failure.to_string());
            ExitCode::from(code.unwrap_or_else(|| failure.exit_code()))
        }
    }
}

/// Why the program was not run, and an exit code if it is not the failure's.
struct Stopped {
    failure: Failure,
    code: Option<u8>,
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self { failure, code: None }
    }
}

impl From<RunError> for Stopped {
    fn from(error: RunError) -> Self {
        let code = error.shell_code();
        Self { failure: Failure::new(error.code(), error.to_string()), code }
    }
}

fn run_with(args: &TiersRunArgs, signals: &Signals) -> std::result::Result<u8, Stopped> {
    let wanted = wanted(args)?;
    let report = output::open_if(args.report.as_ref())?;
    let topology = Topology::read(&Sources::here())
        .map_err(|error| Failure::new(error.code(), error.to_string()))?;
    let mut machine = Machine::here(&topology);
    if let Some(profile) = &args.profile {
        machine.bandwidth_mbps = bandwidths(profile)?;
    }
    let mechanism = match args.mechanism {
        MechanismChoice::Auto => None,
        MechanismChoice::Kernel => Some(Mechanism::Kernel),
        MechanismChoice::Preload => Some(Mechanism::Preload),
    };
    let plan = plan(&wanted, mechanism, &machine)?;
    let [program, rest @ ..] = &args.program[..] else {
        return Err(Failure::usage("no program is named").into());
    };
    let started = Launch { plan: &plan, program, args: rest, signals };
    let ended = launch(&started, &mut |event| match event {
        Event::Started => {
            if let [node] = machine.nodes[..] {
                output::say(&format!(
                    "One memory only, node {node}: to the kernel all memory is alike"
                ));
            }
        }
        Event::Asked { reading, notes } => {
            output::say(&told(&plan, reading, notes, "now"));
        }
    })?;
    say_end(&plan, &ended);
    if let Some(report) = report {
        write(report, &as_json(&plan, &wanted, &machine, &ended))?;
    }
    Ok(ended.code)
}

fn write(report: Output, json: &Value) -> Result<()> {
    report.write(format!("{}\n", output::json(json)?))
}

fn wanted(args: &TiersRunArgs) -> std::result::Result<Wanted, RunError> {
    Ok(match (&args.weighted, &args.interleave, args.preferred, &args.membind) {
        (_, Some(nodes), _, _) => Wanted::Interleave(Wanted::parse_nodes(nodes)?),
        (_, _, Some(node), _) => Wanted::Preferred(node),
        (_, _, _, Some(nodes)) => Wanted::Membind(Wanted::parse_nodes(nodes)?),
        (weights, ..) => Wanted::Weighted(Weighting::parse(weights.as_deref().unwrap_or("auto"))?),
    })
}

/// Bandwidths of reads, as the first node with processors of a profile sees them.
fn bandwidths(path: &Path) -> Result<BTreeMap<u16, f64>> {
    let speeds = MemorySpeeds::load(path)?;
    let known = |node| Some((node, speeds.memory(&[(node, 1)], 1.0).ok()?.bandwidth_mbps));
    Ok(speeds.nodes().filter_map(known).collect())
}

fn say_end(plan: &Plan, ended: &Ended) {
    match &ended.last {
        Some(reading) => {
            let when = format!("{} ms before its end", ended.before_end.as_millis());
            output::say(&told(plan, reading, ended.notes, &when));
        }
        None => output::say("The program ended before its memory could be looked at."),
    }
    let bytes = |reading: &Option<Reading>| reading.as_ref().map_or(0, Reading::private_bytes);
    if let Some(most) = &ended.most
        && bytes(&ended.most) > bytes(&ended.last)
    {
        output::say(&format!("When it had the most:{}", nodes_text(most)));
    }
    if ended.is_out_of_memory {
        output::say(
            "The kernel killed it, and processes for want of memory at that time: a node was \
             full\n  \
             -> --preferred or --weighted, which take memory of other nodes then",
        );
    }
}

/// Where the memory lies, for people.
fn told(plan: &Plan, reading: &Reading, notes: Option<Notes>, when: &str) -> String {
    let processes = match reading.processes {
        1 => "1 process".to_owned(),
        count => format!("{count} processes"),
    };
    let mut text = format!("Memory, placed by {}; {processes}, {when}:", plan.told());
    text.push_str(&nodes_text(reading));
    if reading.unseen > 0 {
        let unseen = reading.unseen;
        text.push_str(&format!(
            "\n  {unseen} processes are not counted: setuid, or of another user"
        ));
    }
    let Some(notes) = notes else { return text };
    if reading.unreached > 0 {
        let unreached = reading.unreached;
        text.push_str(&format!(
            "\n  {unreached} processes are without the library: static, or of another user"
        ));
    }
    if notes.patched < notes.processes {
        text.push_str(
            "\n  malloc's own calls are not seen: its heaps stay where the kernel puts them",
        );
    }
    if notes.refused_bytes > 0 {
        let error = std::io::Error::from_raw_os_error(notes.refused_error);
        let refused = Unit::Bytes.show(notes.refused_bytes as f64);
        text.push_str(&format!("\n  {refused} of addresses could not be placed: {error}"));
    }
    text
}

/// A line for each node.
fn nodes_text(reading: &Reading) -> String {
    let bytes = |bytes: u64| Unit::Bytes.show(bytes as f64);
    let line = |(node, of_node): (&u16, &NodeBytes)| {
        let share = share(of_node.private, reading) * 100.0;
        let (private, mapped) = (bytes(of_node.private), bytes(of_node.mapped));
        format!("\n  node {node}: {private}, {share:.1} %; files and shared memory {mapped}")
    };
    reading.nodes.iter().map(line).collect()
}

/// Of all private memory; 1 of none.
fn share(bytes: u64, reading: &Reading) -> f64 {
    let all = reading.private_bytes();
    if all == 0 { 1.0 } else { bytes as f64 / all as f64 }
}

/// Bytes and shares by node; every node of the plan has a line.
fn nodes_json(reading: Option<&Reading>, machine: &Machine) -> Value {
    let mut nodes: BTreeMap<u16, Value> = BTreeMap::new();
    let line = |id: u16, bytes: u64, share: f64, mapped: u64| {
        let share = json!(share);
        json!({ "id": id, "bytes": bytes, "share": share, "mapped_bytes": mapped })
    };
    for id in &machine.nodes {
        let share = if machine.nodes.len() == 1 { 1.0 } else { 0.0 };
        nodes.insert(*id, line(*id, 0, share, 0));
    }
    if let Some(reading) = reading {
        for (id, of_node) in &reading.nodes {
            let share = share(of_node.private, reading);
            nodes.insert(*id, line(*id, of_node.private, share, of_node.mapped));
        }
    }
    nodes.into_values().collect()
}

fn as_json(plan: &Plan, wanted: &Wanted, machine: &Machine, ended: &Ended) -> Value {
    let notes = ended.notes.map(|notes| {
        json!({
            "processes": notes.processes,
            "processes_with_heaps": notes.patched,
            "placed_bytes": notes.placed_bytes,
            "refused_bytes": notes.refused_bytes,
        })
    });
    let before_end = ended.last.as_ref().map(|_| Duration::as_millis(&ended.before_end) as u64);
    json!({
        "schema": "rackpool-tiers-run/1",
        "mechanism": plan.mechanism().name(),
        "placement": wanted.to_string(),
        "placed_by": plan.told(),
        "exit_code": ended.code,
        // The last look before the end: null if there was none.
        "read_ms_before_end": before_end,
        "processes": ended.last.as_ref().map(|reading| reading.processes),
        "processes_unreached": ended.last.as_ref().map(|reading| reading.unreached),
        "processes_unseen": ended.last.as_ref().map(|reading| reading.unseen),
        "nodes": nodes_json(ended.last.as_ref(), machine),
        "nodes_at_most": nodes_json(ended.most.as_ref(), machine),
        "library": notes,
    })
}
