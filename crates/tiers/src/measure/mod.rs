//! How fast a memory is for the cores of one node, measured: latency of dependent loads, bandwidth
//! by kind of traffic and by number of threads, latency beside a load. In: a [`Pair`] of a CPU node
//! and a memory node, as the topology names them. Out: a [`PairProfile`], to be kept in a
//! [`Profile`]. Called by the command line; blocks for minutes, takes memory, starts threads.
//!
//! Memory comes from the node by `mbind`, on huge pages if the system gives them, and is taken
//! before anything is timed. Every figure is repeated until its last runs agree ([`NoiseRule`]), or
//! says that they did not. No performance counters are needed.
//!
//! Bandwidth counts the bytes that the program loads and stores. A store to a line that is in no
//! cache fetches the line first, so that the memory moves up to twice as much for
//! [`Traffic::Write`]; [`Traffic::NonTemporalWrite`] fetches nothing.

mod aggregate;
mod pairs;
mod profile;
mod settle;
mod threads;

pub use aggregate::{Aggregate, aggregate};
pub use pairs::{Selection, pairs};
pub use profile::{Machine, PROFILE_BYTES_MAX, Profile, ProfileError};
pub use settle::{Figure, NoiseRule, Run, settle};

use crate::weights::MixPoint;
use rackpool_core::seam::Mem;
use rackpool_mem::process::{allowed_cores, pin_to_core};
use rackpool_mem::window::{Pass, Window};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use threads::{Chain, Load, StreamBuffer};

/// Memory over all caches of the cores together: caches that keep some of what is too much for
/// them answer an eighth of a stream then, and a quarter of a chase, which leaves out every other
/// line, at most.
const CACHES_TIMES: u64 = 8;
/// Taken where the system says no sizes.
const CACHES_BYTES: u64 = 32 << 20;
/// Caches of a core that are looked at.
const CACHES_MAX: u32 = 8;
/// Least memory to stream through or to chase through, in earnest.
const BYTES_MIN: u64 = 64 << 20;
const BYTES_MAX: u64 = 8 << 30;
/// Numbers of threads that bring no more, one after the other, end a curve.
const FLAT_STEPS: u32 = 2;
/// A gain of more than this share is one, whatever noise is allowed.
const FLAT_GAIN_MAX: f64 = 0.1;

/// Why a pair was not measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// A node that was named.
    #[error("there is no node {node}, but {there}: see rackpool tiers show")]
    NoNode { node: u16, there: String },
    /// Run on a CPU set that has some of the node's.
    #[error(
        "node {cpu_node} has no core that this process may use: name another node, or run on some \
         of its cores (taskset, docker: --cpuset-cpus)"
    )]
    NoCore { cpu_node: u16 },
    /// A node that was named has none, or the cpuset keeps it from this process.
    #[error(
        "node {node} has no memory for this process: name another node, or see rackpool tiers show \
         for what keeps it"
    )]
    NoMemoryHere { node: u16 },
    /// No node has cores, or none has memory, that this process may use.
    #[error("no node has cores or memory for this process: see rackpool tiers show")]
    NoPair,
    /// Free memory there, or measure with less.
    #[error(
        "node {node} has {available_bytes} bytes to give, twice {needed_bytes} bytes are needed: \
         free some, or measure with less (--bytes)"
    )]
    NoRoom { node: u16, available_bytes: u64, needed_bytes: u64 },
    /// The system gives no memory. Retry when there is some.
    #[error("no memory of node {node}: {error}; try again when there is some, or with less")]
    Memory { node: u16, error: io::Error },
    /// The system binds no memory to this node: none such, or `mbind` is forbidden.
    #[error(
        "memory cannot be bound to node {node}: {error}; in containers: docker run --cap-add \
         SYS_NICE, or a seccomp profile that allows mbind"
    )]
    Bind { node: u16, error: io::Error },
    /// A figure would be that of another node. Retry when the node has room.
    #[error(
        "{elsewhere} of {pages} pages do not lie on node {node} but on others: try again when it \
         has room"
    )]
    Elsewhere { node: u16, pages: u64, elsewhere: u64 },
    #[error("no thread can run on core {core}: {error}; name another node")]
    Pin { core: usize, error: io::Error },
    /// The system starts no more threads. Retry when fewer run.
    #[error("no thread can be started: {error}; measure with fewer (--threads)")]
    Thread { error: io::Error },
    /// Ask for more memory, or for fewer threads.
    #[error(
        "{bytes} bytes are too few to measure with, {needed} are needed: ask for more, or for \
         fewer threads"
    )]
    TooSmall { bytes: u64, needed: u64 },
    /// Allow more time, or ask for less.
    #[error(
        "{limit_s} s are too short for {figures} figures, {needed_s} s are needed at least: allow \
         them, or measure fewer nodes or threads, or with --quick"
    )]
    TooShort { limit_s: f64, needed_s: f64, figures: u32 },
}

impl MeasureError {
    /// A short stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            MeasureError::NoCore { .. } | MeasureError::Pin { .. } => "no-core",
            MeasureError::Thread { .. } => "io",
            MeasureError::NoRoom { .. } | MeasureError::Memory { .. } => "no-memory",
            MeasureError::NoMemoryHere { .. } | MeasureError::NoPair => "no-memory",
            MeasureError::Bind { .. } | MeasureError::NoNode { .. } => "no-node",
            MeasureError::Elsewhere { .. } => "wrong-node",
            MeasureError::TooSmall { .. } | MeasureError::TooShort { .. } => "usage",
        }
    }
}

/// What is done to a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traffic {
    Read,
    /// Three lines are read, one is written.
    ThreeToOne,
    OneToOne,
    Write,
    /// Around the caches.
    NonTemporalWrite,
}

impl Traffic {
    pub const ALL: [Traffic; 5] = [
        Traffic::Read,
        Traffic::ThreeToOne,
        Traffic::OneToOne,
        Traffic::Write,
        Traffic::NonTemporalWrite,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Traffic::Read => "reads",
            Traffic::ThreeToOne => "3:1",
            Traffic::OneToOne => "1:1",
            Traffic::Write => "writes",
            Traffic::NonTemporalWrite => "nt writes",
        }
    }

    /// Bytes that are read over all bytes.
    pub fn read_share(self) -> f64 {
        match self {
            Traffic::Read => 1.0,
            Traffic::ThreeToOne => 0.75,
            Traffic::OneToOne => 0.5,
            Traffic::Write | Traffic::NonTemporalWrite => 0.0,
        }
    }

    fn pass(self) -> Pass {
        match self {
            Traffic::Read => Pass::Load4,
            Traffic::ThreeToOne => Pass::Load3Store1,
            Traffic::OneToOne => Pass::Load2Store2,
            Traffic::Write => Pass::Store4,
            Traffic::NonTemporalWrite => Pass::Stream4,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub cpu_node: u16,
    /// Those of the node, in the order in which they are used: hardware threads of cores that are
    /// used already come last.
    pub cores: Vec<usize>,
    pub memory_node: u16,
    /// Whether memory is bound to the node; where there is but one, it comes from there anyway.
    pub is_bound: bool,
    /// What the node has left, if that is known: no more than half of it is taken.
    pub available_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// To chase through, and as much again to stream through.
    pub bytes: u64,
    /// Of less memory caches answer more than a small part of all loads.
    pub uncached_bytes: u64,
    pub duration: Duration,
    pub rule: NoiseRule,
    /// On one node at most.
    pub threads_max: usize,
}

impl Effort {
    /// For figures to be used: eight times the caches, within an eighth of what the node with the
    /// least memory has left.
    pub fn thorough(pairs: &[Pair]) -> Effort {
        let caches = pairs.iter().map(|pair| cache_bytes(&pair.cores)).max();
        let caches = caches.unwrap_or(CACHES_BYTES);
        let uncached_bytes = caches.saturating_mul(CACHES_TIMES).max(BYTES_MIN);
        let free = pairs.iter().filter_map(|pair| pair.available_bytes).min().unwrap_or(0);
        let bytes = uncached_bytes.min((free / 8).clamp(BYTES_MIN, BYTES_MAX));
        let (duration, rule) = (Duration::from_millis(50), NoiseRule::default());
        Effort { bytes, uncached_bytes, duration, rule, threads_max: usize::MAX }
    }

    /// Within seconds: of the right size, and no more.
    pub fn rough(pairs: &[Pair]) -> Effort {
        let rule = NoiseRule { last: 3, runs_max: 3, ..NoiseRule::default() };
        Effort { duration: Duration::from_millis(10), rule, ..Effort::thorough(pairs) }
    }

    /// For tests: the figures mean little.
    pub fn quick() -> Effort {
        let rule = NoiseRule { last: 3, runs_max: 3, ..NoiseRule::default() };
        let duration = Duration::from_millis(2);
        Effort { bytes: 4 << 20, uncached_bytes: BYTES_MIN, duration, rule, threads_max: 4 }
    }

    /// How many figures the pairs have at most; fewer where more threads bring no more.
    pub fn figures(&self, pairs: &[Pair]) -> u32 {
        let of_pair = |pair: &Pair| {
            let cores = pair.cores.len().min(self.threads_max);
            let loads = 1 + thread_counts(cores.saturating_sub(1)).count();
            Traffic::ALL.len() * thread_counts(cores).count() + loads
        };
        pairs.iter().map(of_pair).sum::<usize>() as u32
    }

    /// With so few runs of a figure that all runs together take no longer than `limit`: they may
    /// be too few to settle. Taking memory comes on top.
    ///
    /// # Errors
    /// [`MeasureError::TooShort`].
    pub fn within(mut self, limit: Duration, pairs: &[Pair]) -> Result<Effort, MeasureError> {
        let figures = self.figures(pairs);
        let runs = limit.as_nanos() / (self.duration * figures).as_nanos().max(1);
        if runs < u128::from(self.rule.last) {
            let needed_s = (self.duration * figures * self.rule.last).as_secs_f64();
            return Err(MeasureError::TooShort { limit_s: limit.as_secs_f64(), needed_s, figures });
        }
        self.rule.runs_max = u32::try_from(runs).unwrap_or(u32::MAX).min(self.rule.runs_max);
        Ok(self)
    }
}

/// Bandwidth of so many threads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthPoint {
    pub threads: u32,
    pub mbps: Figure,
}

/// Bandwidth by number of threads, rising.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    pub traffic: Traffic,
    pub points: Vec<BandwidthPoint>,
    /// Whether more threads brought no more: if not, more cores might.
    pub is_saturated: bool,
}

impl Curve {
    /// The point of the greatest bandwidth; none without a point.
    pub fn best(&self) -> Option<&BandwidthPoint> {
        self.points.iter().max_by(|a, b| a.mbps.value.total_cmp(&b.mbps.value))
    }
}

/// Latency of one core while so many others read the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadedPoint {
    pub threads: u32,
    pub load_mbps: f64,
    pub latency_ns: Figure,
}

/// What was measured of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairProfile {
    pub cpu_node: u16,
    pub memory_node: u16,
    /// Whether the pages are known to lie on that node.
    pub is_verified: bool,
    /// A curve for each traffic, in the order of [`Traffic::ALL`].
    pub bandwidth: Vec<Curve>,
    /// By rising load; the first is idle.
    pub latency: Vec<LoadedPoint>,
}

impl PairProfile {
    /// The greatest bandwidth, MB/s; none if it was not measured.
    pub fn bandwidth_mbps(&self, traffic: Traffic) -> Option<f64> {
        let curve = self.bandwidth.iter().find(|curve| curve.traffic == traffic)?;
        curve.best().map(|point| point.mbps.value)
    }

    /// Of one dependent load without a load beside it, ns.
    pub fn idle_latency_ns(&self) -> Option<f64> {
        self.latency.first().map(|point| point.latency_ns.value)
    }

    /// For [`crate::weights::mixed_mbps`]. Writes that bypass the caches are left out.
    pub fn mix_points(&self) -> Vec<MixPoint> {
        let kinds = Traffic::ALL.into_iter().filter(|kind| *kind != Traffic::NonTemporalWrite);
        kinds
            .filter_map(|traffic| {
                let mbps = self.bandwidth_mbps(traffic)?;
                Some(MixPoint { read_share: traffic.read_share(), mbps })
            })
            .collect()
    }

    pub fn figures(&self) -> impl Iterator<Item = Figure> {
        let points = self.bandwidth.iter().flat_map(|curve| &curve.points);
        let loads = self.latency.iter().map(|point| point.latency_ns);
        points.map(|point| point.mbps).chain(loads)
    }

    /// Whether every figure met its noise bound.
    pub fn is_settled(&self) -> bool {
        self.figures().all(|figure| figure.is_settled)
    }
}

/// What `progress` of [`measure`] is told of a pair.
pub const STEPS: u32 = 2 + Traffic::ALL.len() as u32;

/// Measures a pair. `progress` is told what comes next, [`STEPS`] times. Blocks; the machine should
/// have nothing else to do. Runs on a thread of its own, so that the caller's stays on its cores.
///
/// # Errors
/// [`MeasureError`]; all memory is given back then too.
pub fn measure(
    pair: &Pair,
    effort: Effort,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<PairProfile, MeasureError> {
    std::thread::scope(|scope| {
        let measured = scope.spawn(move || measure_here(pair, effort, progress)).join();
        measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure_here(
    pair: &Pair,
    effort: Effort,
    progress: &mut dyn FnMut(&str),
) -> Result<PairProfile, MeasureError> {
    let cores = cores(pair, effort)?;
    let first = cores[0];
    let needed = threads::bytes_min(cores.len());
    if effort.bytes < needed {
        return Err(MeasureError::TooSmall { bytes: effort.bytes, needed });
    }
    require_room(pair, effort.bytes.saturating_mul(2))?;
    pin_to_core(first).map_err(|error| MeasureError::Pin { core: first, error })?;
    progress("taking memory");
    let (stream, chase) = (Taken::of(pair, effort.bytes)?, Taken::of(pair, effort.bytes)?);
    let is_verified = stream.is_verified && chase.is_verified;
    let (stream, chase) = (StreamBuffer::new(stream.window), chase.window);
    let mut bandwidth = Vec::new();
    for traffic in Traffic::ALL {
        progress(&format!("bandwidth, {}", traffic.name()));
        bandwidth.push(curve(&stream, &cores, traffic, effort)?);
    }
    progress("latency");
    let mut chain = Chain::link(chase)?;
    let mut latency = Vec::new();
    for threads in std::iter::once(0).chain(thread_counts(cores.len() - 1)) {
        // The first core is the chain's.
        let cores = &cores[1..=threads];
        latency.push(loaded(&mut chain, &stream, cores, effort)?);
    }
    let (cpu_node, memory_node) = (pair.cpu_node, pair.memory_node);
    Ok(PairProfile { cpu_node, memory_node, is_verified, bandwidth, latency })
}

/// The pair's cores that this process may use, at least one.
fn cores(pair: &Pair, effort: Effort) -> Result<Vec<usize>, MeasureError> {
    let allowed = allowed_cores().unwrap_or_default();
    let ours = pair.cores.iter().copied().filter(|core| allowed.contains(core));
    let cores: Vec<usize> = ours.take(effort.threads_max).collect();
    if cores.is_empty() {
        return Err(MeasureError::NoCore { cpu_node: pair.cpu_node });
    }
    Ok(cores)
}

/// Bound memory that is not there would have the kernel end a process.
fn require_room(pair: &Pair, needed_bytes: u64) -> Result<(), MeasureError> {
    match pair.available_bytes {
        Some(available_bytes) if available_bytes / 2 < needed_bytes => {
            Err(MeasureError::NoRoom { node: pair.memory_node, available_bytes, needed_bytes })
        }
        _ => Ok(()),
    }
}

/// Memory of a pair's node that has its pages.
struct Taken {
    window: Window,
    /// False where the kernel does not tell where pages lie, as under a seccomp filter.
    is_verified: bool,
}

impl Taken {
    fn of(pair: &Pair, bytes: u64) -> Result<Taken, MeasureError> {
        let node = pair.memory_node;
        let failed = |error| MeasureError::Memory { node, error };
        let window = Window::private(bytes).map_err(failed)?;
        let is_verified = take(&window, pair)?;
        Ok(Taken { window, is_verified })
    }
}

/// Takes the memory of a window from the pair's node; whether its pages are known to lie there.
fn take(window: &Window, pair: &Pair) -> Result<bool, MeasureError> {
    let (node, bytes) = (pair.memory_node, window.bytes());
    if pair.is_bound {
        window.bind_to_node(node).map_err(|error| MeasureError::Bind { node, error })?;
    }
    match window.populate(0, bytes) {
        // Before Linux 5.14.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => window.zero(0, bytes),
        populated => populated.map_err(|error| MeasureError::Memory { node, error })?,
    }
    let Ok(nodes) = window.node_pages() else { return Ok(false) };
    let pages: u64 = nodes.values().sum();
    let there = nodes.get(&i32::from(node)).copied().unwrap_or(0);
    match pages - there {
        0 => Ok(true),
        elsewhere => Err(MeasureError::Elsewhere { node, pages, elsewhere }),
    }
}

fn curve(
    memory: &StreamBuffer,
    cores: &[usize],
    traffic: Traffic,
    effort: Effort,
) -> Result<Curve, MeasureError> {
    let (pass, duration) = (traffic.pass(), effort.duration);
    rising(thread_counts(cores.len()), effort.rule.bound, |threads| {
        let load = Load { memory, cores: &cores[..threads], pass, duration };
        settle(effort.rule, || load.bandwidth_mbps())
    })
    .map(|(points, is_saturated)| Curve { traffic, points, is_saturated })
}

/// Measures by number of threads until two in turn bring no more than noise; whether they did.
fn rising<E>(
    counts: impl IntoIterator<Item = usize>,
    noise: f64,
    mut measure: impl FnMut(usize) -> Result<Figure, E>,
) -> Result<(Vec<BandwidthPoint>, bool), E> {
    let (mut points, mut best, mut flat) = (Vec::new(), 0.0, 0);
    let gain = 1.0 + noise.min(FLAT_GAIN_MAX);
    for threads in counts {
        let mbps = measure(threads)?;
        points.push(BandwidthPoint { threads: threads as u32, mbps });
        flat = if mbps.value > best * gain { 0 } else { flat + 1 };
        best = f64::max(best, mbps.value);
        if flat == FLAT_STEPS {
            return Ok((points, true));
        }
    }
    Ok((points, false))
}

/// One, two, three, then by halves and doubles: 4, 6, 8, 12, 16, ..., and `most`.
fn thread_counts(most: usize) -> impl Iterator<Item = usize> {
    let doubles = std::iter::successors(Some(1usize), |count| count.checked_mul(2));
    let counts = doubles.flat_map(|count| [count, count + count / 2]);
    let below = counts.take_while(move |count| *count < most);
    // One and its half are one.
    let distinct = below.enumerate().filter(|(index, _)| *index != 1).map(|(_, count)| count);
    distinct.chain((most > 0).then_some(most))
}

fn loaded(
    chain: &mut Chain,
    memory: &StreamBuffer,
    cores: &[usize],
    effort: Effort,
) -> Result<LoadedPoint, MeasureError> {
    let load = Load { memory, cores, pass: Pass::Load4, duration: effort.duration };
    let mut loads = Vec::new();
    let latency_ns = settle(effort.rule, || {
        let run = chain.latency(&load)?;
        loads.push(run.load_mbps);
        Ok::<Run, MeasureError>(run.latency_ns)
    })?;
    let load_mbps = settle::round(rackpool_stats::sample::median(loads), 1e3);
    Ok(LoadedPoint { threads: cores.len() as u32, load_mbps, latency_ns })
}

/// All caches of these cores together: many processors have several last-level caches, and threads
/// that have a part of a memory each find it in all of them.
fn cache_bytes(cores: &[usize]) -> u64 {
    let all = cores.iter().flat_map(|core| (0..CACHES_MAX).map(move |index| (*core, index)));
    // Cores that share a cache name the same ones.
    let kib: BTreeMap<(u32, String), u64> = all
        .filter_map(|(core, index)| {
            let file = |name| {
                let folder = format!("/sys/devices/system/cpu/cpu{core}/cache/index{index}");
                std::fs::read_to_string(format!("{folder}/{name}")).ok()
            };
            let kib = file("size")?.trim().strip_suffix('K')?.parse().ok()?;
            Some(((index, file("shared_cpu_list")?), kib))
        })
        .collect();
    match kib.values().copied().fold(0, u64::saturating_add) {
        0 => CACHES_BYTES,
        kib => kib.saturating_mul(1024),
    }
}

#[cfg(test)]
mod tests;
