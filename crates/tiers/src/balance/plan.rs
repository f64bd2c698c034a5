//! Which nodes give and take pages, and the DAMON schemes for it. In: a topology, what the user
//! wants. Out: a [`Plan`]. Reads the kernel's files, writes none.
//!
//! A machine or a control group: a kdamond for each node watches its physical addresses, as HMSDK
//! has it, and moves pages to the nearest node of the other side. A process: one kdamond watches
//! its virtual addresses.

use super::BalanceError;
use super::kernel::{self, Kernel, is_absent};
use crate::topology::{Node, Tier, Topology};
use rackpool_mem::numa::list;
use std::ops::Range;
use std::time::Duration;

/// DAMON's own least.
const REGIONS_MIN: u32 = 3;
/// Counts, and so an end, wait for an aggregation of each kdamond.
const AGGREGATION_MAX: Duration = Duration::from_secs(60);
/// DAMON starts with regions no larger than this times as many as there shall be at least.
const PIECE_BYTES_MIN: u64 = 4 << 20;
/// Control groups of one scheme.
const CGROUPS_MAX: usize = 256;
const BLOCKS: &str = "/sys/devices/system/memory";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Machine,
    Process(u32),
    /// As in `/proc/PID/cgroup`; with the groups in it.
    Cgroup(String),
}

/// What DAMON looks for, and how much it moves. The default is HMSDK's.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    pub sample: Duration,
    /// Accesses are counted over this time.
    pub aggregation: Duration,
    pub update: Duration,
    pub regions_min: u32,
    pub regions_max: u32,
    /// Memory without an access for so long is cold.
    pub cold_age: Duration,
    /// Memory that at least this share of samples finds accessed is hot.
    pub hot_share: f64,
    /// Of a processor, in each interval.
    pub demote_time: Duration,
    /// Of a processor, in each interval.
    pub promote_time: Duration,
    /// What a scheme tries to move in each interval.
    pub quota_bytes: u64,
    pub quota_interval: Duration,
    /// Free share of a fast node that is aimed at, where the kernel has goals; none: all that is
    /// cold goes down.
    pub free_share: Option<f64>,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            sample: Duration::from_millis(100),
            aggregation: Duration::from_secs(2),
            update: Duration::from_secs(20),
            regions_min: 100,
            regions_max: 10_000,
            cold_age: Duration::from_secs(30),
            hot_share: 0.05,
            demote_time: Duration::from_secs(1),
            promote_time: Duration::from_secs(2),
            quota_bytes: 50 << 30,
            quota_interval: Duration::from_secs(20),
            free_share: Some(0.005),
        }
    }
}

impl Parameters {
    fn check(&self) -> Result<(), BalanceError> {
        let wrong = |why: &str| Err(BalanceError::Parameters { why: why.to_owned() });
        let Parameters { sample, aggregation, update, regions_min, regions_max, .. } = self;
        if sample.is_zero() || sample > aggregation || aggregation > update {
            return wrong(
                "a sample takes at most as long as an aggregation, and that as long as an update, \
                 such as --sample 0.1 --aggregation 2 --update 20",
            );
        }
        if *aggregation > AGGREGATION_MAX {
            return wrong("an aggregation takes at most 60 seconds: the end waits for one");
        }
        if self.quota_bytes == 0 || self.quota_interval.is_zero() {
            return wrong("a quota is above 0, such as --quota 50G: to DAMON 0 is none");
        }
        if *regions_min < REGIONS_MIN || regions_min > regions_max {
            return wrong("regions are at least 3, and no more than at most, such as 100-10000");
        }
        Ok(())
    }

    /// Samples of an aggregation.
    fn samples(&self) -> u64 {
        (self.aggregation.as_micros() / self.sample.as_micros()).max(1) as u64
    }

    /// Accesses that a scheme takes memory with, in an aggregation: at least and at most.
    pub(super) fn accesses(&self, direction: Direction) -> (u64, u64) {
        match direction {
            Direction::Demote => (0, 0),
            Direction::Promote => {
                let least = (self.samples() as f64 * self.hot_share).ceil() as u64;
                (least.max(1), self.samples())
            }
        }
    }

    /// Aggregations that a scheme takes memory after.
    pub(super) fn age(&self, direction: Direction) -> u64 {
        match direction {
            Direction::Demote => {
                self.cold_age.as_micros().div_ceil(self.aggregation.as_micros()) as u64
            }
            Direction::Promote => 0,
        }
    }

    pub(super) fn time(&self, direction: Direction) -> Duration {
        match direction {
            Direction::Demote => self.demote_time,
            Direction::Promote => self.promote_time,
        }
    }
}

/// Which nodes are fast and which are slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sides {
    pub fast: Vec<u16>,
    pub slow: Vec<u16>,
}

impl Sides {
    /// As the user names them; else the first tier of the kernel, else nodes with processors,
    /// against all others.
    ///
    /// # Errors
    /// [`BalanceError::OneMemory`], [`BalanceError::NoNode`], [`BalanceError::NoSides`],
    /// [`BalanceError::Parameters`].
    pub fn of(
        topology: &Topology,
        fast: Option<&[u16]>,
        slow: Option<&[u16]>,
    ) -> Result<Sides, BalanceError> {
        let nodes = topology.nodes.iter().filter(|node| node.memory_bytes != Some(0));
        let nodes: Vec<&Node> = nodes.collect();
        let ids: Vec<u16> = nodes.iter().map(|node| node.id).collect();
        if let [node] = ids[..] {
            return Err(BalanceError::OneMemory { node });
        }
        for node in fast.into_iter().chain(slow).flatten() {
            if !ids.contains(node) {
                return Err(BalanceError::NoNode { node: *node, there: list(&ids) });
            }
        }
        let others = |named: &[u16]| -> Vec<u16> {
            ids.iter().copied().filter(|node| !named.contains(node)).collect()
        };
        let (fast, slow) = match (fast, slow) {
            (Some(fast), Some(slow)) => (fast.to_owned(), slow.to_owned()),
            (Some(fast), None) => (fast.to_owned(), others(fast)),
            (None, Some(slow)) => (others(slow), slow.to_owned()),
            (None, None) => {
                let fast = fast_of(topology, &nodes);
                let slow = others(&fast);
                (fast, slow)
            }
        };
        if fast.is_empty() || slow.is_empty() {
            return Err(BalanceError::NoSides { nodes: list(&ids) });
        }
        if let Some(node) = fast.iter().find(|node| slow.contains(node)) {
            let why = format!("node {node} is named as fast and as slow: name it once");
            return Err(BalanceError::Parameters { why });
        }
        Ok(Sides { fast, slow })
    }
}

fn fast_of(topology: &Topology, nodes: &[&Node]) -> Vec<u16> {
    let has_memory = |tier: &&Tier| nodes.iter().any(|node| tier.nodes.contains(&node.id));
    let tiers: Vec<&Tier> = topology.tiers.iter().filter(has_memory).collect();
    let is_fast = |node: &&&Node| match tiers[..] {
        [first, _, ..] => first.nodes.contains(&node.id),
        _ => node.cpus.as_ref().is_none_or(|cpus| !cpus.is_empty()),
    };
    nodes.iter().filter(is_fast).map(|node| node.id).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Demote,
    Promote,
}

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Direction::Demote => "demote",
            Direction::Promote => "promote",
        }
    }
}

/// Pages of some nodes, to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    pub direction: Direction,
    pub from: Vec<u16>,
    pub to: Vec<u16>,
}

impl Scheme {
    /// The fast node, whose use is the goal.
    pub(super) fn fast(&self) -> u16 {
        match self.direction {
            Direction::Demote => self.from[0],
            Direction::Promote => self.to[0],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    Physical(Vec<Range<u64>>),
    /// All virtual addresses of a process.
    Process(u32),
}

/// A thread of the kernel that watches memory, and its schemes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kdamond {
    pub watched: Watched,
    pub schemes: Vec<Scheme>,
}

/// What DAMON is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub kdamonds: Vec<Kdamond>,
    /// None: of all.
    pub cgroups: Vec<String>,
    pub parameters: Parameters,
}

impl Plan {
    /// # Errors
    /// [`BalanceError`] where the target, the parameters or the nodes do not allow it.
    pub fn of(
        kernel: &dyn Kernel,
        topology: &Topology,
        sides: &Sides,
        target: &Target,
        parameters: Parameters,
    ) -> Result<Plan, BalanceError> {
        parameters.check()?;
        let cgroups = match target {
            Target::Cgroup(path) => cgroups(kernel, path)?,
            Target::Machine | Target::Process(_) => Vec::new(),
        };
        let kdamonds = match target {
            Target::Process(pid) => vec![of_process(*pid, sides)?],
            Target::Machine | Target::Cgroup(_) => {
                let one = |scheme: Scheme| -> Result<Kdamond, BalanceError> {
                    let ranges = ranges(kernel, scheme.from[0])?;
                    let ranges = pieces(&ranges, parameters.regions_min);
                    Ok(Kdamond { watched: Watched::Physical(ranges), schemes: vec![scheme] })
                };
                by_node(topology, sides).into_iter().map(one).collect::<Result<_, _>>()?
            }
        };
        Ok(Plan { kdamonds, cgroups, parameters })
    }

    /// All schemes, in the order of kdamonds.
    pub fn schemes(&self) -> impl Iterator<Item = &Scheme> {
        self.kdamonds.iter().flat_map(|kdamond| &kdamond.schemes)
    }
}

fn of_process(pid: u32, sides: &Sides) -> Result<Kdamond, BalanceError> {
    let Sides { fast, slow } = sides;
    let [_] = fast[..] else {
        return Err(BalanceError::SeveralFast { nodes: list(fast), first: fast[0] });
    };
    let demote = Scheme { direction: Direction::Demote, from: fast.clone(), to: slow.clone() };
    let promote = Scheme { direction: Direction::Promote, from: slow.clone(), to: fast.clone() };
    Ok(Kdamond { watched: Watched::Process(pid), schemes: vec![demote, promote] })
}

/// A scheme for each node: to the nearest one of the other side, equals in turn.
fn by_node(topology: &Topology, Sides { fast, slow }: &Sides) -> Vec<Scheme> {
    let mut schemes: Vec<Scheme> = Vec::new();
    for (direction, from, to) in [(Direction::Demote, fast, slow), (Direction::Promote, slow, fast)]
    {
        for node in from {
            let taken = |to: u16| {
                let is_it = |scheme: &&Scheme| scheme.direction == direction && scheme.to == [to];
                schemes.iter().filter(is_it).count()
            };
            let nearest = to.iter().min_by_key(|to| (distance(topology, *node, **to), taken(**to)));
            let nearest = *nearest.expect("a side has a node");
            schemes.push(Scheme { direction, from: vec![*node], to: vec![nearest] });
        }
    }
    schemes
}

fn distance(topology: &Topology, from: u16, to: u16) -> u32 {
    let index = topology.nodes.iter().position(|node| node.id == to);
    let distances = topology.node(from).and_then(|node| node.distance.as_ref());
    let known = distances.zip(index).and_then(|(distances, index)| distances.get(index));
    known.copied().unwrap_or(u32::MAX)
}

/// Physical addresses of a node's memory that is online.
fn ranges(kernel: &dyn Kernel, node: u16) -> Result<Vec<Range<u64>>, BalanceError> {
    let path = format!("{BLOCKS}/block_size_bytes");
    let names = kernel.names(&format!("/sys/devices/system/node/node{node}")).unwrap_or_default();
    let blocks = names.iter().filter_map(|name| name.strip_prefix("memory")?.parse().ok());
    let mut blocks: Vec<u64> = blocks.collect();
    blocks.sort_unstable();
    if blocks.is_empty() {
        return Err(BalanceError::NoBlocks { node });
    }
    let text = kernel::text(kernel, &path)?;
    let size = u64::from_str_radix(&text, 16).ok().filter(|bytes| *bytes > 0);
    let expected = "hexadecimal bytes";
    let size = size.ok_or(BalanceError::Garbage { path, text, expected })?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        let state = kernel.read(&format!("{BLOCKS}/memory{block}/state")).unwrap_or_default();
        let (Some(start), true) = (block.checked_mul(size), state != "offline") else { continue };
        let end = start.saturating_add(size);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    if ranges.is_empty() { Err(BalanceError::NoBlocks { node }) } else { Ok(ranges) }
}

/// The same addresses in enough ranges: DAMON only doubles their number with each aggregation.
fn pieces(ranges: &[Range<u64>], count_min: u32) -> Vec<Range<u64>> {
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let piece = (bytes / u64::from(count_min) / PIECE_BYTES_MIN).max(1) * PIECE_BYTES_MIN;
    let of_range = |range: &Range<u64>| {
        let Range { start, end } = *range;
        let starts = (start..end).step_by(piece as usize);
        starts.map(move |start| start..start.saturating_add(piece).min(end))
    };
    ranges.iter().flat_map(of_range).collect()
}

/// A control group and those in it that have memory of their own.
fn cgroups(kernel: &dyn Kernel, path: &str) -> Result<Vec<String>, BalanceError> {
    let is_unified = kernel.read("/sys/fs/cgroup/cgroup.controllers").is_ok();
    let (root, file) = match is_unified {
        true => ("/sys/fs/cgroup", "memory.current"),
        false => ("/sys/fs/cgroup/memory", "memory.usage_in_bytes"),
    };
    let path = path.strip_prefix(root).unwrap_or(path).trim_matches('/');
    let shown = format!("/{path}");
    if path.is_empty() || path.split('/').any(|part| part == "..") {
        return Err(BalanceError::NoCgroup { path: shown });
    }
    match kernel.read(&format!("{root}{shown}/cgroup.procs")) {
        Err(error) if is_absent(&error) => return Err(BalanceError::NoCgroup { path: shown }),
        _ => {}
    }
    let is_accounted = |path: &str| kernel.read(&format!("{root}{path}/{file}")).is_ok();
    if !is_accounted(&shown) {
        return Err(BalanceError::NoMemoryController { path: shown });
    }
    let mut found = vec![shown.clone()];
    let mut next = 0;
    while next < found.len() {
        let group = found[next].clone();
        let mut names = kernel.names(&format!("{root}{group}")).unwrap_or_default();
        names.sort_unstable();
        let within = names.iter().map(|name| format!("{group}/{name}"));
        found.extend(within.filter(|path| is_accounted(path)));
        if found.len() > CGROUPS_MAX {
            return Err(BalanceError::ManyCgroups { path: shown, limit: CGROUPS_MAX });
        }
        next += 1;
    }
    Ok(found)
}

/// Whether a control group of a plan is still there.
pub(super) fn has_cgroup(kernel: &dyn Kernel, path: &str) -> bool {
    ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"].iter().any(|root| {
        let processes = kernel.read(&format!("{root}{path}/cgroup.procs"));
        !processes.is_err_and(|error| is_absent(&error))
    })
}
