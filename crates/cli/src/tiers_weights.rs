//! `rackpool tiers weights`: the weights by which memories of given bandwidth give the most
//! together, with HMSDK's beside them; from a stored profile also which memories to use for a
//! demand. In: bandwidths, or a profile. Pure but for its files, and for `--check`, which measures
//! what memories of this machine give together by their weights.

use crate::args::TiersWeightsArgs;
use crate::failure::{Failure, Result};
use crate::{output, tiers, tiers_measure};
use rackpool_mem::numa::list;
use rackpool_stats::format::Unit;
use rackpool_stats::table::TextTable;
use rackpool_tiers::choice::{Choice, Memory, choose};
use rackpool_tiers::measure::{
    Effort, Machine, PairProfile, Profile, ProfileError, Selection, aggregate, pairs,
};
use rackpool_tiers::topology::{Sources, Topology};
use rackpool_tiers::weights::{Report, Weights, WeightsError, mixed_mbps, parse_bandwidths};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

pub fn run(args: &TiersWeightsArgs) -> Result<()> {
    let json = output::open_if(args.json.as_ref())?;
    let (report, text) = match (&args.bandwidth, &args.profile) {
        (Some(bandwidth), _) => {
            let bandwidths = parse_bandwidths(bandwidth).map_err(wrong)?;
            let report = Report::of(&bandwidths, args.max).map_err(wrong)?;
            let text = lines(&report);
            (output::json(&report)?, text)
        }
        (None, Some(path)) => {
            let &TiersWeightsArgs { cpu_node, reads, demand, max, .. } = args;
            let mut advice = Advice::of(path, &ProfileQuery { cpu_node, reads, demand, max })?;
            let mut text = advice.told();
            if args.check {
                let checked = advice.verify(demand.is_some())?;
                text.push_str(&checked.told());
                advice.check = checked.found();
            }
            (output::json(&advice)?, text)
        }
        (None, None) => {
            return Err(Failure::usage("--bandwidth MBPS,MBPS,... or --profile FILE is needed"));
        }
    };
    if let Some(json) = json {
        json.write(format!("{report}\n"))?;
    }
    output::print(&text)
}

/// Numbers that the user gave.
fn wrong(error: WeightsError) -> Failure {
    Failure::usage(error.to_string())
}

pub fn load(path: &Path) -> Result<Profile> {
    let hint = "rackpool tiers measure --store FILE makes one";
    Profile::load(path).map_err(|error| {
        let said = match &error {
            ProfileError::Io { .. } => error.to_string(),
            of_text => format!("{}: {of_text}", path.display()),
        };
        Failure::new(error.code(), said).with_hint(hint)
    })
}

fn lines(report: &Report) -> String {
    let rounded = match &report.rounded {
        Some(rounded) => line(rounded),
        None => "none: it refuses a weight of 0".to_owned(),
    };
    format!("best   {}\nHMSDK  {rounded}\n", line(&report.best))
}

/// Such as `3:1, 100.0 % of the bandwidth`.
fn line(Weights { weights, utilisation }: &Weights) -> String {
    let weights: Vec<String> = weights.iter().map(u32::to_string).collect();
    format!("{}, {:.1} % of the bandwidth", weights.join(":"), utilisation * 100.0)
}

/// What is asked of a profile; see the options of `tiers weights`.
pub struct ProfileQuery {
    pub cpu_node: Option<u16>,
    /// As a share.
    pub reads: Option<f64>,
    pub demand: Option<f64>,
    pub max: u32,
}

/// Weights of a profile's memories, and which of them to use.
#[derive(Serialize)]
pub struct Advice {
    #[serde(flatten)]
    pub report: Report,
    /// Of the weights, in their order.
    pub nodes: Vec<u16>,
    cpu_node: u16,
    read_share: f64,
    choice: Choice,
    /// The choice in words.
    why: String,
    /// Since the profile was taken, seconds; null if it comes from the future, by this clock.
    age_s: Option<u64>,
    /// Whether all figures of these memories met the profile's noise bound.
    is_settled: bool,
    /// Null if nothing was asked, or there is nothing to check.
    check: Option<Checked>,
    #[serde(skip)]
    profile: Profile,
}

impl Advice {
    pub fn of(path: &Path, query: &ProfileQuery) -> Result<Advice> {
        let profile = load(path)?;
        let cpu_node = query.cpu_node.or(profile.pairs.first().map(|pair| pair.cpu_node));
        let cpu_node = cpu_node.ok_or_else(|| {
            Failure::new(
                "bad-file",
                format!("{} has no pair of nodes: measure anew", path.display()),
            )
        })?;
        let read_share = query.reads.unwrap_or(1.0);
        let pairs = profile.pairs.iter().filter(|pair| pair.cpu_node == cpu_node);
        let pairs: Vec<_> = pairs.collect();
        if pairs.is_empty() {
            let there = tiers_measure::cpu_nodes(&profile);
            return Err(Failure::usage(format!(
                "{} has nothing of the processors of node {cpu_node}, but of {there}",
                path.display()
            )));
        }
        let memories = pairs.iter().map(|pair| memory(pair, read_share));
        let memories: Vec<Memory> = memories.collect::<Result<_, _>>().map_err(wrong)?;
        let bandwidths: Vec<f64> = memories.iter().map(|memory| memory.bandwidth_mbps).collect();
        let report = Report::of(&bandwidths, query.max).map_err(wrong)?;
        let spare_mbps = memories.iter().map(Memory::spare_mbps).fold(0.0, f64::max);
        let choice = choose(&memories, query.demand.unwrap_or(spare_mbps), query.max);
        let choice = choice.map_err(wrong)?;
        let age = profile.age(tiers_measure::unix_s());
        Ok(Advice {
            report,
            nodes: memories.iter().map(|memory| memory.node).collect(),
            cpu_node,
            read_share,
            why: choice.to_string(),
            choice,
            age_s: age.map(|age| age.as_secs()),
            is_settled: pairs.iter().all(|pair| pair.is_settled()),
            check: None,
            profile,
        })
    }

    fn told(&self) -> String {
        let Profile { source, machine, taken_unix_s, .. } = &self.profile;
        let taken = output::utc(Duration::from_secs(*taken_unix_s), ' ');
        let age = self.age_s.map_or("from the future, by this clock".to_owned(), old);
        let Machine { processor, cores, kernel } = machine;
        let mut text = format!(
            "Profile: {source}, {taken} UTC, {age}; {processor}, {cores} cores, Linux {kernel}\n"
        );
        text.push_str(&self.doubts());
        let reads = self.read_share * 100.0;
        text.push_str(&format!(
            "From the processors of node {}, {reads:.0} % reads:\n\n",
            self.cpu_node
        ));
        let mut table = TextTable::new(&["NODE", "BANDWIDTH", "LATENCY"]);
        for memory in &self.choice.memories {
            table.row([
                memory.node.to_string(),
                Unit::BytesPerSecond.show(memory.bandwidth_mbps * 1e6),
                Unit::Nanoseconds.show(memory.latency_ns),
            ]);
        }
        text.push_str(&table.show());
        if let [only] = self.nodes[..] {
            text.push_str(&format!(
                "\nOne memory only, of node {only}: there is nothing to interleave.\n"
            ));
        }
        let nodes = list(&self.nodes);
        text.push_str(&format!("\nWeights of nodes {nodes}\n{}", lines(&self.report)));
        text.push_str(&format!("choice {}\n", self.why));
        text
    }

    /// Why its figures may not hold here, a line each.
    pub fn doubts(&self) -> String {
        let mut text = String::new();
        let (here, Machine { processor, cores, .. }) = (Machine::here(), &self.profile.machine);
        if (&here.processor, here.cores) != (processor, *cores) {
            text.push_str(&format!(
                "This machine is another one: {}, {} cores.\n",
                here.processor, here.cores
            ));
        }
        if !self.is_settled {
            text.push_str("Not all of its figures are within its noise bound: measure again.\n");
        }
        text
    }

    /// Measures what the weights of all memories give together, or, for a demand, those that were
    /// chosen for it.
    fn verify(&self, has_demand: bool) -> Result<CheckOutcome> {
        let topology = Topology::read(&Sources::here()).map_err(tiers::failure)?;
        if topology.has_one_memory() {
            let why = "this machine has one memory node";
            return Ok(CheckOutcome::Nothing { why: why.to_owned() });
        }
        let share = if has_demand { &self.choice.chosen } else { &self.choice.interleaved };
        let used = self.nodes.iter().copied().zip(share.weights.iter().copied());
        let (nodes, weights): (Vec<u16>, Vec<u32>) = used.filter(|(_, weight)| *weight > 0).unzip();
        if let [node] = nodes[..] {
            return Ok(CheckOutcome::Nothing { why: format!("node {node} is used alone") });
        }
        let selection =
            Selection { cpu_nodes: Some(vec![self.cpu_node]), memory_nodes: Some(nodes.clone()) };
        let pairs = pairs(&topology, &selection).map_err(tiers_measure::failure)?;
        let mut effort = Effort::thorough(&pairs);
        effort.rule.bound = self.profile.noise_bound;
        let bar = output::spinner("checking");
        let found = aggregate(&pairs, &weights, self.read_share, effort, &mut |what| {
            bar.set_message(what.to_owned());
        });
        bar.finish_and_clear();
        let found = found.map_err(tiers_measure::failure)?;
        let measured_mbps = mixed_mbps(&found.mix_points(), self.read_share).map_err(wrong)?;
        Ok(CheckOutcome::Measured(Checked {
            nodes,
            weights,
            predicted_mbps: share.bandwidth_mbps,
            measured_mbps,
            ratio: measured_mbps / share.bandwidth_mbps,
            threads: found.threads(),
            bytes: found.bytes,
            is_settled: found.is_settled(),
            is_saturated: found.is_saturated(),
            is_verified: found.is_verified,
        }))
    }
}

/// What became of a check.
enum CheckOutcome {
    Nothing { why: String },
    Measured(Checked),
}

/// What weights promise, and what was measured.
#[derive(Serialize)]
struct Checked {
    nodes: Vec<u16>,
    /// Of the nodes, in their order.
    weights: Vec<u32>,
    predicted_mbps: f64,
    measured_mbps: f64,
    /// Measured over predicted.
    ratio: f64,
    threads: u32,
    /// Of the buffer.
    bytes: u64,
    /// Whether the figure met the profile's noise bound.
    is_settled: bool,
    /// Whether more threads brought no more.
    is_saturated: bool,
    /// Whether the pages are known to lie where they were placed.
    is_verified: bool,
}

impl CheckOutcome {
    fn found(self) -> Option<Checked> {
        match self {
            CheckOutcome::Nothing { .. } => None,
            CheckOutcome::Measured(checked) => Some(checked),
        }
    }

    fn told(&self) -> String {
        let checked = match self {
            CheckOutcome::Nothing { why } => return format!("check  nothing to check: {why}\n"),
            CheckOutcome::Measured(checked) => checked,
        };
        let rate = |mbps: f64| Unit::BytesPerSecond.show(mbps * 1e6);
        let parts = checked.nodes.iter().zip(&checked.weights);
        let parts: Vec<String> = parts.map(|(node, weight)| format!("{node}={weight}")).collect();
        let mark = if checked.is_settled { "" } else { "~" };
        let mut text = format!(
            "check  nodes {}: {mark}{} measured by {} threads, {:.1} % of the {} that is \
             predicted\n",
            parts.join(","),
            rate(checked.measured_mbps),
            checked.threads,
            checked.ratio * 100.0,
            rate(checked.predicted_mbps),
        );
        if !checked.is_settled {
            text.push_str("Marked ~: not within the profile's noise bound.\n");
        }
        if !checked.is_saturated {
            text.push_str("Not seen to level off: more cores might bring more.\n");
        }
        if !checked.is_verified {
            text.push_str(
                "That the pages lie on these nodes is not known: move_pages is refused.\n  -> in \
                 containers: docker run --cap-add SYS_NICE\n",
            );
        }
        text
    }
}

fn memory(pair: &PairProfile, read_share: f64) -> Result<Memory, WeightsError> {
    let bandwidth_mbps = mixed_mbps(&pair.mix_points(), read_share)?;
    // A profile that was read has it.
    let latency_ns = pair.idle_latency_ns().unwrap_or(f64::NAN);
    Ok(Memory { node: pair.memory_node, latency_ns, bandwidth_mbps })
}

/// Such as `3 days old`.
pub fn old(seconds: u64) -> String {
    let units = [(86_400, "days"), (3_600, "hours"), (60, "minutes")];
    let (unit, name) = units.into_iter().find(|(unit, _)| seconds >= 2 * unit).unwrap_or((1, "s"));
    format!("{} {name} old", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_the_unit_that_fits() {
        for (seconds, text) in
            [(0, "0 s old"), (119, "119 s old"), (120, "2 minutes old"), (300_000, "3 days old")]
        {
            assert_eq!(old(seconds), text);
        }
    }
}
