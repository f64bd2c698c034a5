//! `rackpool tiers`. Here `show`: the memory nodes of this machine, or of another one by a copy of
//! its `/sys`. Out: a table with what there is to say about it, and JSON for programs.

use crate::args::{TiersArgs, TiersCommand, TiersShowArgs};
use crate::failure::{Failure, Result};
use crate::{output, tiers_advise, tiers_apply, tiers_balance, tiers_measure, tiers_weights};
use rackpool_mem::numa::list;
use rackpool_stats::format::Unit;
use rackpool_stats::table::TextTable;
use rackpool_tiers::topology::{Access, Device, Node, Sources, Topology, TopologyError};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;

/// What is said of a machine with one memory.
pub const ONE_MEMORY: &str = "One memory node: to the kernel all memory is alike; there is nothing \
                              to place or to interleave.";
/// Faults that are told to people.
const FAULTS_SHOWN_MAX: usize = 8;

pub fn run(args: &TiersArgs) -> Result<()> {
    match &args.command {
        TiersCommand::Show(args) => show(args),
        TiersCommand::Measure(args) => tiers_measure::run(args),
        TiersCommand::Weights(args) => tiers_weights::run(args),
        TiersCommand::Apply(args) => tiers_apply::run(args),
        TiersCommand::Balance(args) => tiers_balance::run(args),
        TiersCommand::Advise(args) => tiers_advise::run(args),
        TiersCommand::Run(_) => unreachable!("main runs it before it takes signals"),
    }
}

fn show(args: &TiersShowArgs) -> Result<()> {
    let json = output::open_if(args.json.as_ref())?;
    let is_here = args.sysfs == Path::new("/sys");
    let sources = if is_here { Sources::here() } else { Sources::of_sysfs(&args.sysfs) };
    let topology = Topology::read(&sources).map_err(failure)?;
    if let Some(json) = json {
        json.write(format!("{}\n", output::json(&as_json(&topology))?))?;
    }
    let mut text = table(&topology.nodes);
    for remark in remarks(&topology) {
        text.push_str(&format!("\n{}\n", remark.text));
        if !remark.way_out.is_empty() {
            text.push_str(&format!("  -> {}\n", remark.way_out));
        }
    }
    if !is_here {
        let at = args.sysfs.display();
        text.push_str(&format!("\nRead from {at}: what this process may use is not looked at.\n"));
    }
    output::print(&text)
}

pub fn failure(error: TopologyError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

fn table(nodes: &[Node]) -> String {
    let mut table = TextTable::new(&[
        "NODE",
        "PROCESSORS",
        "KIND",
        "MEMORY",
        "FREE",
        "TIER",
        "READ",
        "WRITE",
        "READ TIME",
        "WRITE TIME",
        "DISTANCES",
        "DEVICES",
    ]);
    for node in nodes {
        let Access { read_latency_ns, write_latency_ns, .. } = node.access;
        let number = |n: Option<u32>| n.map_or(String::new(), |n| n.to_string());
        let distances = node.distance.iter().flatten().map(u32::to_string);
        table.row([
            node.id.to_string(),
            match &node.cpus {
                None => String::new(),
                Some(cpus) if cpus.is_empty() => "none".to_owned(),
                Some(cpus) => list(cpus),
            },
            node.kind.name().to_owned(),
            shown(Unit::Bytes, node.memory_bytes),
            shown(Unit::Bytes, node.free_bytes),
            number(node.tier),
            rate(node.access.read_bandwidth_mbps),
            rate(node.access.write_bandwidth_mbps),
            shown(Unit::Nanoseconds, read_latency_ns),
            shown(Unit::Nanoseconds, write_latency_ns),
            distances.collect::<Vec<_>>().join(" "),
            devices_of(node).unwrap_or_default(),
        ]);
    }
    table.show()
}

fn shown(unit: Unit, number: Option<u64>) -> String {
    number.map_or(String::new(), |number| unit.show(number as f64))
}

fn rate(mbps: Option<u64>) -> String {
    mbps.map_or(String::new(), |mbps| Unit::BytesPerSecond.show(mbps as f64 * 1e6))
}

fn devices_of(node: &Node) -> Option<String> {
    let names: Vec<&str> = node.devices.iter().map(|device| device.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// Something to say about a machine, and what to do about it.
struct Remark {
    text: String,
    way_out: String,
}

fn remark(text: impl Into<String>, way_out: impl Into<String>) -> Remark {
    Remark { text: text.into(), way_out: way_out.into() }
}

/// The nodes for which something holds, as `node 1` or `nodes 1-2,4`.
fn named(topology: &Topology, holds: impl Fn(&Node) -> bool) -> Option<String> {
    let ids: Vec<u16> = topology.nodes.iter().filter(|node| holds(node)).map(|n| n.id).collect();
    let word = if ids.len() == 1 { "node" } else { "nodes" };
    (!ids.is_empty()).then(|| format!("{word} {}", list(&ids)))
}

fn remarks(topology: &Topology) -> Vec<Remark> {
    let mut remarks = of_nodes(topology);
    remarks.extend(of_absent_memory(topology));
    remarks.extend(of_rights(topology));
    remarks.extend(topology.dax.iter().filter_map(of_unused));
    for fault in topology.faults.iter().take(FAULTS_SHOWN_MAX) {
        remarks.push(remark(format!("Not read: {fault}"), ""));
    }
    if let Some(more) = topology.faults.len().checked_sub(FAULTS_SHOWN_MAX).filter(|n| *n > 0) {
        remarks.push(remark(format!("Not read: {more} more"), ""));
    }
    remarks
}

fn of_nodes(topology: &Topology) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if !topology.has_nodes {
        remarks.push(remark(
            "The kernel has no memory nodes: all memory is one, shown as node 0.",
            "a kernel with CONFIG_NUMA shows them",
        ));
    } else if topology.has_one_memory() {
        remarks.push(remark(ONE_MEMORY, ""));
    }
    let is_far = |node: &Node| {
        node.cpus.as_ref().is_some_and(Vec::is_empty) && node.memory_bytes.is_some_and(|b| b > 0)
    };
    if let Some(nodes) = named(topology, is_far) {
        let text = format!(
            "No processors in {nodes}: programs take that memory when they ask for it, or when \
             the other nodes are full."
        );
        remarks.push(remark(text, ""));
    }
    let is_unrated = |node: &Node| {
        let Access { initiators, .. } = &node.access;
        node.access == Access { initiators: initiators.clone(), ..Access::default() }
    };
    if let Some(nodes) = named(topology, is_unrated) {
        let text =
            format!("The firmware says no speeds of {nodes} (HMAT): unknown until measured.");
        remarks.push(remark(text, ""));
    }
    if topology.has_nodes && topology.tiers.is_empty() {
        remarks.push(remark("The kernel shows no memory tiers.", "Linux 6.1 or newer shows them"));
    }
    remarks
}

/// Memory that is there and not used.
fn of_absent_memory(topology: &Topology) -> Vec<Remark> {
    let mut remarks = Vec::new();
    for node in &topology.nodes {
        if let Some(bytes) = node.offline_bytes.filter(|bytes| *bytes > 0) {
            let amount = Unit::Bytes.show(bytes as f64);
            remarks.push(remark(
                format!("{amount} of node {} are offline: no program gets them.", node.id),
                "echo online_movable > /sys/devices/system/memory/memoryN/state for its blocks \
                 (for a dax device: daxctl online-memory daxX.Y)",
            ));
        }
    }
    let pages = topology.nodes.iter().filter_map(|node| node.poisoned_pages);
    let pages = pages.fold(0, u64::saturating_add);
    let bytes = topology.poisoned_bytes.unwrap_or(0);
    if bytes > 0 || pages > 0 {
        let nodes = named(topology, |node| node.poisoned_pages.is_some_and(|pages| pages > 0));
        let place = nodes.map_or(String::new(), |nodes| format!(" in {nodes}"));
        // A kernel may say no bytes, and count the pages of a node all the same.
        let amount = match bytes {
            0 => format!("{pages} pages"),
            bytes => Unit::Bytes.show(bytes as f64),
        };
        remarks.push(remark(
            format!("{amount}{place} are poisoned: the hardware lost what was in them."),
            "look for memory errors in the kernel's log (dmesg); a module may have to be replaced",
        ));
    }
    remarks
}

/// What this process may not use.
fn of_rights(topology: &Topology) -> Vec<Remark> {
    let mut remarks = Vec::new();
    if let Some(nodes) = named(topology, |node| node.is_allowed == Some(false)) {
        remarks.push(remark(
            format!("This process may take no memory from {nodes}: its cpuset does not have it."),
            "add it to cpuset.mems of its control group (docker: --cpuset-mems)",
        ));
    }
    for refused in topology.refused.iter().flatten() {
        let by = match topology.has_filter {
            Some(true) => "a seccomp filter is on",
            _ => "the kernel lacks it, or does not allow it",
        };
        remarks.push(remark(
            format!("{} is refused ({}): {by}.", refused.call, refused.error),
            "without it programs cannot be placed; in containers: docker run --cap-add SYS_NICE, \
             or a seccomp profile that allows it; else a kernel with CONFIG_NUMA",
        ));
    }
    remarks
}

/// A dax device that is no memory of the system.
fn of_unused(device: &Device) -> Option<Remark> {
    let Device { name, bytes, target_node, is_memory, .. } = device;
    if *is_memory != Some(false) {
        return None;
    }
    let amount = bytes.map_or(String::new(), |n| format!(" ({})", Unit::Bytes.show(n as f64)));
    let node = target_node.map_or("a memory node".to_owned(), |node| format!("node {node}"));
    Some(remark(
        format!("{name}{amount} is no memory of the system, and would be in {node}."),
        format!("daxctl reconfigure-device --mode=system-ram {name}, if nothing else uses it"),
    ))
}

/// A node as programs get it; null is what the machine does not say.
#[derive(Serialize)]
struct NodeJson<'t> {
    id: u16,
    cpus: Option<&'t [u32]>,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    offline_bytes: Option<u64>,
    poisoned_pages: Option<u64>,
    kind: &'static str,
    tier: Option<u32>,
    distance: Option<&'t [u32]>,
    /// The nodes from which the speeds hold.
    initiators: &'t [u16],
    read_bandwidth_mbps: Option<u64>,
    write_bandwidth_mbps: Option<u64>,
    read_latency_ns: Option<u64>,
    write_latency_ns: Option<u64>,
    device: Option<String>,
    /// Whether the cpuset of this process has it.
    allowed: Option<bool>,
}

fn node_json(node: &Node) -> NodeJson<'_> {
    let Access {
        initiators,
        read_latency_ns,
        write_latency_ns,
        read_bandwidth_mbps,
        write_bandwidth_mbps,
    } = &node.access;
    NodeJson {
        id: node.id,
        cpus: node.cpus.as_deref(),
        memory_bytes: node.memory_bytes,
        free_bytes: node.free_bytes,
        offline_bytes: node.offline_bytes,
        poisoned_pages: node.poisoned_pages,
        kind: node.kind.name(),
        tier: node.tier,
        distance: node.distance.as_deref(),
        initiators,
        read_bandwidth_mbps: *read_bandwidth_mbps,
        write_bandwidth_mbps: *write_bandwidth_mbps,
        read_latency_ns: *read_latency_ns,
        write_latency_ns: *write_latency_ns,
        device: devices_of(node),
        allowed: node.is_allowed,
    }
}

fn as_json(topology: &Topology) -> Value {
    let refused = topology.refused.as_ref().map(|all| {
        let one = |one: &rackpool_mem::policy::Refused| {
            json!({ "call": one.call.name(), "error": one.error.to_string() })
        };
        all.iter().map(one).collect::<Vec<_>>()
    });
    let unused = topology.dax.iter().filter(|device| device.is_memory == Some(false));
    let unused = unused.map(|device| {
        json!({ "name": device.name, "bytes": device.bytes, "target_node": device.target_node })
    });
    json!({
        "schema": "rackpool-tiers-show/1",
        "numa": topology.has_nodes,
        "nodes": topology.nodes.iter().map(node_json).collect::<Vec<_>>(),
        "unused_devices": unused.collect::<Vec<_>>(),
        "poisoned_bytes": topology.poisoned_bytes,
        "seccomp": topology.has_filter,
        "refused": refused,
        "faults": topology.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}
