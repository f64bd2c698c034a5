//! `rackpool tiers measure`: how fast each memory node is for the processors of each node. In: the
//! machine and what the user allows. Out: tables that say what is noise, and a profile for
//! `tiers weights`. Takes all processors and memory of each node; nothing is changed.

use crate::args::{Nodes, TiersMeasureArgs};
use crate::failure::{Failure, Result};
use crate::{output, tiers};
use rackpool_mem::numa::list;
use rackpool_stats::format::Unit;
use rackpool_stats::table::TextTable;
use rackpool_tiers::measure::{
    Effort, Figure, MeasureError, Pair, PairProfile, Profile, STEPS, Selection, Traffic, measure,
    pairs,
};
use rackpool_tiers::topology::{Sources, Topology};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub fn run(args: &TiersMeasureArgs) -> Result<()> {
    let json = output::open_if(args.json.as_ref())?;
    if args.store.as_deref() == Some(Path::new("-")) {
        return Err(Failure::usage("--store needs a file to keep; --json - is standard output"));
    }
    let store = output::open_if(args.store.as_ref())?;
    let topology = Topology::read(&Sources::here()).map_err(tiers::failure)?;
    let nodes = |nodes: &Option<Nodes>| nodes.as_ref().map(|nodes| nodes.0.clone());
    let selection =
        Selection { cpu_nodes: nodes(&args.cpu_nodes), memory_nodes: nodes(&args.nodes) };
    let pairs = pairs(&topology, &selection).map_err(failure)?;
    let effort = effort(args, &pairs)?;
    let (measured, failed) = measure_all(&pairs, effort);
    if measured.is_empty() {
        return Err(failed.expect("what is not measured has failed"));
    }
    let mut profile = Profile::new(unix_s(), effort.rule.bound, measured);
    if args.quick {
        profile.source.push_str(" --quick");
    }
    let text = format!("{}\n", output::json(&profile)?);
    if let Some(store) = store {
        store.write(&text)?;
    }
    if let Some(json) = json {
        json.write(&text)?;
    }
    output::print(&told(&profile, effort, &topology, args))?;
    // Pairs that were measured are of use all the same.
    failed.map_or(Ok(()), Err)
}

pub fn failure(error: MeasureError) -> Failure {
    Failure::new(error.code(), error.to_string())
}

pub fn unix_s() -> u64 {
    // A clock before 1970 is as good as none.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn effort(args: &TiersMeasureArgs, pairs: &[Pair]) -> Result<Effort> {
    let mut effort = if args.quick { Effort::rough(pairs) } else { Effort::thorough(pairs) };
    effort.rule.bound = args.noise;
    effort.threads_max = args.threads.map_or(effort.threads_max, usize::from);
    effort.bytes = args.bytes.unwrap_or(effort.bytes);
    match args.limit {
        Some(limit) => effort.within(limit, pairs).map_err(failure),
        None => Ok(effort),
    }
}

/// What could be measured, and the first failure with how many there are.
fn measure_all(pairs: &[Pair], effort: Effort) -> (Vec<PairProfile>, Option<Failure>) {
    let bar = output::bar("measuring", u64::from(STEPS) * pairs.len() as u64, "steps");
    let (mut measured, mut errors) = (Vec::new(), Vec::new());
    for (index, pair) in pairs.iter().enumerate() {
        let mut step = index as u64 * u64::from(STEPS);
        let found = measure(pair, effort, &mut |what| {
            bar.set_position(step);
            bar.set_prefix(format!("{} to {}: {what}", pair.cpu_node, pair.memory_node));
            step += 1;
        });
        match found {
            Ok(found) => measured.push(found),
            Err(error) => errors.push(error),
        }
    }
    bar.finish_and_clear();
    let (count, all) = (errors.len(), pairs.len());
    let failed = errors.into_iter().next().map(|error| match all {
        1 => failure(error),
        _ => Failure::new(error.code(), format!("{count} of {all} pairs not measured: {error}")),
    });
    (measured, failed)
}

fn told(profile: &Profile, effort: Effort, topology: &Topology, args: &TiersMeasureArgs) -> String {
    let mut text = String::new();
    for pair in &profile.pairs {
        let (cpu_node, memory_node) = (pair.cpu_node, pair.memory_node);
        text.push_str(&format!("Processors of node {cpu_node}, memory of node {memory_node}\n\n"));
        text.push_str(&bandwidths(pair));
        text.push('\n');
        text.push_str(&latencies(pair));
        text.push('\n');
        for remark in remarks(pair) {
            text.push_str(&format!("{remark}\n"));
        }
    }
    text.push_str(&format!("{}\n", noise(profile, effort)));
    if args.quick {
        let (runs, ms) = (effort.rule.runs_max, effort.duration.as_millis());
        text.push_str(&format!("Quick: {runs} runs of {ms} ms a figure, rough.\n"));
    }
    if effort.bytes < effort.uncached_bytes {
        let show = |bytes: u64| Unit::Bytes.show(bytes as f64);
        let (bytes, wanted) = (show(effort.bytes), show(effort.uncached_bytes));
        text.push_str(&format!(
            "In {bytes} a part of all loads is answered by caches: measure with {wanted} or more \
             (--bytes).\n"
        ));
    }
    if !cfg!(target_arch = "x86_64") {
        text.push_str("Writes around the caches (nt) are plain writes on this processor.\n");
    }
    if topology.has_one_memory() {
        text.push_str(&format!("{}\n", tiers::ONE_MEMORY));
    }
    if let Some(store) = &args.store {
        let store = store.display();
        let taken = output::utc(Duration::from_secs(profile.taken_unix_s), ' ');
        let source = &profile.source;
        text.push_str(&format!("Stored in {store}: {source}, {taken} UTC.\n"));
        text.push_str(&format!("  -> rackpool tiers weights --profile {store}\n"));
    }
    text
}

/// By number of threads; what was not measured is left empty.
fn bandwidths(pair: &PairProfile) -> String {
    let mut headings = vec!["THREADS".to_owned()];
    headings.extend(Traffic::ALL.map(|traffic| traffic.name().to_uppercase()));
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = TextTable::new(&headings);
    let points = pair.bandwidth.iter().flat_map(|curve| &curve.points);
    for threads in points.map(|point| point.threads).collect::<BTreeSet<u32>>() {
        let cells = pair.bandwidth.iter().map(|curve| {
            let point = curve.points.iter().find(|point| point.threads == threads);
            point.map_or(String::new(), |point| rate(point.mbps))
        });
        table.row(std::iter::once(threads.to_string()).chain(cells));
    }
    table.show()
}

/// Of a dependent load, beside threads that read.
fn latencies(pair: &PairProfile) -> String {
    let mut table = TextTable::new(&["READERS", "THEIR READS", "LATENCY"]);
    for point in &pair.latency {
        let load = match point.threads {
            0 => "idle".to_owned(),
            _ => Unit::BytesPerSecond.show(point.load_mbps * 1e6),
        };
        let latency = Unit::Nanoseconds.show(point.latency_ns.value);
        table.row([point.threads.to_string(), load, marked(point.latency_ns, latency)]);
    }
    table.show()
}

fn rate(mbps: Figure) -> String {
    marked(mbps, Unit::BytesPerSecond.show(mbps.value * 1e6))
}

fn marked(figure: Figure, text: String) -> String {
    if figure.is_settled { text } else { format!("~{text}") }
}

fn remarks(pair: &PairProfile) -> Vec<String> {
    let mut remarks = Vec::new();
    let rising = pair.bandwidth.iter().filter(|curve| !curve.is_saturated);
    let rising: Vec<&str> = rising.map(|curve| curve.traffic.name()).collect();
    let points = pair.bandwidth.iter().flat_map(|curve| &curve.points);
    if let (false, Some(most)) = (rising.is_empty(), points.map(|point| point.threads).max()) {
        remarks.push(format!(
            "Not seen to level off up to {most} threads: {}; more cores might bring more.",
            rising.join(", ")
        ));
    }
    if !pair.is_verified {
        remarks.push(format!(
            "That the pages lie on node {} is not known: move_pages is refused.\n  -> in \
             containers: docker run --cap-add SYS_NICE",
            pair.memory_node
        ));
    }
    remarks
}

/// Whether the noise bound was met.
fn noise(profile: &Profile, effort: Effort) -> String {
    let figures: Vec<Figure> = profile.pairs.iter().flat_map(PairProfile::figures).collect();
    let restless = figures.iter().filter(|figure| !figure.is_settled).count();
    let runs: u32 = figures.iter().map(|figure| figure.runs).sum();
    let disturbed: u32 = figures.iter().map(|figure| figure.disturbed).sum();
    // Thousandths: a share has no exact percent.
    let (all, percent) = (figures.len(), (profile.noise_bound * 1e5).round() / 1e3);
    let last = effort.rule.last;
    let runs = format!("{disturbed} of {runs} runs were disturbed by other programs");
    match restless {
        0 => format!(
            "Noise bound met: all {all} figures are within {percent} % (quartiles of {last} runs \
             over the median); {runs}."
        ),
        _ => format!(
            "Noise bound not met: {restless} of {all} figures, marked ~, are not within {percent} \
             % (quartiles of {last} runs over the median); {runs}.\n  -> measure again when the \
             machine has nothing else to do, or allow more by --noise PERCENT"
        ),
    }
}

/// Nodes of the profile from which memory was measured.
pub fn cpu_nodes(profile: &Profile) -> String {
    let nodes: BTreeSet<u16> = profile.pairs.iter().map(|pair| pair.cpu_node).collect();
    list(&nodes.into_iter().collect::<Vec<_>>())
}
