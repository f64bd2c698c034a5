//! `bench cache --tiering`: one cache on unlike memories, beside the same cache in DRAM alone.
//!
//! Four caches: in DRAM; in far memory; *transparent*, so many pages of each kind of memory in
//! turn; *data*, near and far, where items lie by what they are worth. Each is compared with DRAM
//! pair by pair. Percentiles are those of a batch of 32 operations.
//!
//! On look-ups of small items by a Zipfian popularity, all of which fit, they have the same
//! capacity (`Budget::same_capacity`): what is told is what far memory costs. On the eight
//! workloads they have the same DRAM, and as much far memory (`Budget::same_dram`): what is told
//! is whether the capacity and the bandwidth that far memory adds are worth its slower answers.
//! There the mode is judged that `tiers advise` names (`tiering_advice.rs`).
//!
//! Far memory is that of the nodes that are named, and rows are called measured. Beside them is the
//! same cache as the operating system places it (`tiering_os.rs`), where `numactl` is installed.
//!
//! With several engines each has such a cache, a thread and a stream of operations to itself: rates
//! are those of all together, and speeds of memory what each gets while all do the same.
//!
//! Without such nodes it is emulated (`rackpool_mem::emulation`): of twice the latency that is
//! measured here, or of so much more as is said, and of a third of the bandwidth of one thread. Its
//! own processor time is measured and taken off. What it still costs tells the same cache where
//! nothing is waited for, beside itself without an emulation (`without_waits`), and is divided out
//! in `net_ratio`. That is too much to judge advice by: it is judged in virtual time instead
//! (`tiering_virtual.rs`). Two rows show that the emulation keeps its promise: a dependent chase,
//! and a stream that is asked for ahead.

use super::items::{BATCH, BLOCK, SEED};
use super::tiering_advice::{Judged, summary};
use super::tiering_engines::{Engines, together};
use super::tiering_load::{LoadSummary, TieringTest, VALUE_BYTES_MAX, ZIPFIAN};
use super::tiering_os::{OsCache, OsJob, OsPolicy};
use super::tiering_virtual::VirtualSocket;
use super::workload::{CacheWorkload, named};
use crate::interleave::{Comparison, compare};
use crate::micro::index::random_cycle;
use crate::micro::pin;
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps, io_error, slice_ns};
use rackpool_cache::{Bandwidths, Error, FarMemory};
use rackpool_core::seam::Mem;
use rackpool_mem::emulation::{FarBytes, FarEmulation, FarModel, SystemClock};
use rackpool_mem::numa::{Placement, list};
use rackpool_mem::window::{Pass, Window};
use rackpool_stats::sample::quantile;
use rackpool_tiers::advice::{CacheMemory, TieringAdvice, advise};
use rackpool_tiers::weights::{MixPoint, WeightsError, mixed_mbps};
use std::cell::RefCell;
use std::fs;
use std::process::Command;
use std::time::Duration;

const LINE: u64 = 64;
const LAPS: usize = 5;
const CHUNK_BYTES: u64 = 4096;
/// Emulated far memory's bandwidth is one in so many of what one thread gets from the near one.
const BANDWIDTH_PARTS: u64 = 3;
/// What data tiering promises of the rate in DRAM for the Zipfian look-ups.
const RATIO_MIN: f64 = 0.9;

/// Where a cache lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tiering {
    Dram,
    Far,
    Transparent,
    Data,
}

const BESIDE_DRAM: [(Tiering, &str); 3] =
    [(Tiering::Far, "far"), (Tiering::Transparent, "transparent"), (Tiering::Data, "data")];

/// Memory of the four caches, bytes.
#[derive(Clone, Copy, Debug)]
struct Budget {
    dram: u64,
    far: u64,
    transparent: u64,
    /// Of near and far pages of the transparent one.
    weights: [u32; 2],
    /// Near and far memory of the data one.
    data: [u64; 2],
}

impl Budget {
    /// The same for all four.
    fn same_capacity(all: u64) -> Budget {
        let data = [all / 2, all / 2];
        Budget { dram: all, far: all, transparent: all, weights: [1, 1], data }
    }

    /// Half of `all` in DRAM for each that uses it, half in far memory. The transparent cache has
    /// what `tiers advise` says that its weights leave of both.
    fn same_dram(all: u64, advice: &TieringAdvice) -> Budget {
        let half = all / 2;
        let found = advice.modes.iter().find_map(|mode| Some((mode.capacity_bytes, mode.weights?)));
        let (transparent, weights) = found.expect("with two memories one mode has weights");
        Budget { dram: half, far: half, transparent, weights, data: [half, half] }
    }

    fn of(&self, tiering: Tiering) -> u64 {
        match tiering {
            Tiering::Dram => self.dram,
            Tiering::Far => self.far,
            Tiering::Transparent => self.transparent,
            Tiering::Data => self.data.iter().sum(),
        }
    }

    /// What a cache may have that the operating system places with this share in near memory: no
    /// more of either memory than the others have, nor of both.
    fn placed(&self, near_share: f64) -> u64 {
        let [dram, far] = [self.dram, self.far].map(|bytes| bytes as f64);
        let most = (dram / near_share).min(far / (1.0 - near_share));
        (most as u64).min(self.of(Tiering::Data))
    }
}

/// What far memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FarKind {
    /// Latency above the near one, ns; None: as much again.
    Emulated(Option<u32>),
    /// That of these memory nodes.
    Nodes(Vec<u16>),
}

/// What is measured.
pub struct Options<'a> {
    /// Workloads; none: all.
    pub names: &'a [String],
    pub far: FarKind,
    pub size: Size,
    /// How many at once, at least 1.
    pub engines: usize,
    /// How a process is started that serves [`super::tiering_os::worker`].
    pub worker: &'a mut dyn FnMut(u32) -> Command,
}

/// Measures workloads, and the Zipfian look-ups.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: Options<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let Options { names, far, size, engines, worker } = options;
    let workloads = named(names)?;
    let mut steps = Steps::new(workloads.len() + 2, progress);
    let kind = match far {
        FarKind::Emulated(_) => Kind::Emulated,
        FarKind::Nodes(_) => Kind::Measured,
    };
    let mut report = Report::here(kind);
    let allowed = pin::allowed_cores()?;
    let setup = Setup { size, cores: engine_cores(&allowed, engines)? };
    pin::pin_to(setup.cores[0])?;
    report.extra.insert("engines".into(), engines.into());
    let measured = (|| {
        steps.begin("memory");
        let bench = match far {
            FarKind::Emulated(more_ns) => TieringBench::emulated(setup, more_ns, &mut report)?,
            FarKind::Nodes(far) => TieringBench::on(setup, far, &mut report)?,
        };
        let policies = bench.policies(&mut report);
        let mut peers = OsPeers { policies, worker };
        steps.begin(ZIPFIAN);
        bench.zipf(&mut peers, &mut report.results)?;
        let mut judged = Vec::new();
        for workload in &workloads {
            steps.begin(workload.name);
            judged.push(bench.judge(workload, &mut peers, &mut report.results)?);
        }
        report.results.push(summary(&judged, bench.kind().name()));
        Ok(report)
    })();
    pin::pin_to_any(&allowed)?;
    steps.end();
    measured
}

/// A core for each engine, all of one memory node.
fn engine_cores(allowed: &[usize], engines: usize) -> Result<Vec<usize>, BenchError> {
    let node = node_of(allowed[0]);
    let near = allowed.iter().copied().filter(|core| node_of(*core) == node);
    let cores: Vec<usize> = near.take(engines).collect();
    if cores.len() == engines {
        return Ok(cores);
    }
    let there = cores.len();
    let reason = format!("each needs a processor of memory node {node}, which has {there}");
    Err(BenchError::Option { option: "engines", reason })
}

/// The memory node of a processor; 0 if the kernel has no nodes.
fn node_of(core: usize) -> u16 {
    let entries = fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}"));
    let node = |name: &str| name.strip_prefix("node").and_then(|id| id.parse::<u16>().ok());
    let mut names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.find_map(|name| node(name.to_str()?)).unwrap_or(0)
}

/// Caches that the operating system places, and how their processes are started.
struct OsPeers<'a> {
    policies: Vec<OsPolicy>,
    worker: &'a mut dyn FnMut(u32) -> Command,
}

/// Memory nodes.
struct Nodes {
    near_id: u16,
    far_ids: Vec<u16>,
    near: Placement,
    far: Placement,
}

impl Nodes {
    fn new(near_id: u16, far_ids: Vec<u16>) -> Result<Nodes, BenchError> {
        let near = placement(format!("numa:{near_id}"))?;
        let far = placement(by_weight(&far_ids, 1))?;
        Ok(Nodes { near_id, far_ids, near, far })
    }

    /// Pages of each kind by weights, those of far memory in turn from each of its nodes.
    fn both(&self, [near, far]: [u32; 2]) -> Result<Placement, BenchError> {
        if self.far_ids.contains(&self.near_id) {
            return Ok(self.far.clone());
        }
        let near = format!("numa:{}={}", self.near_id, near as usize * self.far_ids.len());
        placement(format!("{near},{}", by_weight(&self.far_ids, far)))
    }
}

fn placement(text: String) -> Result<Placement, BenchError> {
    Ok(text.parse::<Placement>().map_err(Error::from)?)
}

fn by_weight(nodes: &[u16], weight: u32) -> String {
    let nodes = nodes.iter().map(|id| format!("numa:{id}={weight}"));
    nodes.collect::<Vec<_>>().join(",")
}

enum Far {
    /// And where advice is judged: the emulation's own time is more than what it stands for.
    Emulated(FarModel, Box<VirtualSocket>),
    Nodes(Nodes),
}

/// How large all is, and where the engines run.
struct Setup {
    size: Size,
    cores: Vec<usize>,
}

struct TieringBench {
    setup: Setup,
    near_speed: Speed,
    far_speed: Speed,
    far: Far,
    stored: Vec<u8>,
}

/// What one thread gets of a memory while those of the other engines do the same.
#[derive(Clone, Copy)]
struct Speed {
    /// Of a step by which the next one is known.
    latency_ns: f64,
    /// Bytes a second that are read, and stored.
    bandwidth: u64,
    store_bandwidth: u64,
}

impl Speed {
    /// So many bytes of it, as the one thread of these caches sees them, of whose traffic reads
    /// are so much.
    fn memory(self, bytes: u64, read_share: f64) -> Result<CacheMemory, WeightsError> {
        let mbps = |bandwidth: u64| bandwidth as f64 / 1e6;
        let [thread_mbps, thread_store_mbps] = [self.bandwidth, self.store_bandwidth].map(mbps);
        let points = [(1.0, thread_mbps), (0.0, thread_store_mbps)];
        let points = points.map(|(read_share, mbps)| MixPoint { read_share, mbps });
        let bandwidth_mbps = mixed_mbps(&points, read_share)?;
        let latency_ns = self.latency_ns;
        Ok(CacheMemory { bytes, latency_ns, bandwidth_mbps, thread_mbps, thread_store_mbps })
    }
}

/// Memory through which a chase goes, and the mean speed of such memory of each engine.
fn memory(setup: &Setup, from: Option<&Placement>) -> Result<(Window, Speed), BenchError> {
    let (size, cores) = (setup.size, &setup.cores);
    let bytes = size.region_bytes();
    if let Some(placement) = from {
        // Bound memory that is not there would have the kernel end this process.
        placement.check_free(bytes * cores.len() as u64).map_err(Error::from)?;
    }
    let window = |_| -> Result<Window, BenchError> {
        let window = Window::private(bytes).map_err(io_error("memory for a chase"))?;
        if let Some(placement) = from {
            placement.apply(&window).map_err(Error::from)?;
        }
        Ok(window)
    };
    let mut windows = cores.iter().map(window).collect::<Result<Vec<_>, _>>()?;
    let mean = |windows: &[Window], of: &(dyn Fn(&Window) -> Result<f64, BenchError> + Sync)| {
        let found = together(cores, windows, of)?;
        let found = found.into_iter().collect::<Result<Vec<f64>, BenchError>>()?;
        Ok::<_, BenchError>(found.iter().sum::<f64>() / found.len() as f64)
    };
    let store = |window: &Window| median_ns(size, || window.pass(0, bytes, Pass::Store4));
    let store_ns = mean(&windows, &store)?;
    for (line, next) in (0..).zip(random_cycle((bytes / LINE) as u32, SEED)) {
        windows.iter().for_each(|window| window.store(line * LINE, u64::from(next) * LINE));
    }
    let latency_ns = mean(&windows, &|window| chase_ns(size, |at| window.load(at)))?;
    let load = |window: &Window| median_ns(size, || window.pass(0, bytes, Pass::Load4));
    let pass_ns = mean(&windows, &load)?;
    let [bandwidth, store_bandwidth] =
        [pass_ns, store_ns].map(|ns| (bytes as f64 * 1e9 / ns) as u64);
    Ok((windows.swap_remove(0), Speed { latency_ns, bandwidth, store_bandwidth }))
}

impl TieringBench {
    /// Measures the memory of this machine, and the emulated one against what it is to be.
    fn emulated(
        setup: Setup,
        more_ns: Option<u32>,
        report: &mut Report,
    ) -> Result<TieringBench, BenchError> {
        let size = setup.size;
        let (window, near) = memory(&setup, None)?;
        let bytes = window.bytes();
        let latency_ns = near.latency_ns + more_ns.map_or(near.latency_ns, f64::from);
        let latency_ns = latency_ns.round() as u32;
        let far = FarModel { latency_ns, bandwidth: near.bandwidth / BANDWIDTH_PARTS };
        let emulation = FarEmulation::new(far, FarBytes::From(0), Box::new(SystemClock::new()));
        let emulation = emulation.without_own_time();
        let mut at = 0;
        let far_ns = net_ns(size, &emulation, || {
            for _ in 0..BLOCK {
                emulation.read(window.bare(), at, 8);
                at = window.load(at);
            }
        })? / BLOCK as f64;
        let stream_ns = net_ns(size, &emulation, || {
            for chunk in (0..bytes).step_by(CHUNK_BYTES as usize) {
                emulation.ask(chunk + 2 * CHUNK_BYTES, CHUNK_BYTES);
                emulation.read(window.bare(), chunk, CHUNK_BYTES);
                window.pass(chunk, CHUNK_BYTES, Pass::Load4);
            }
        })?;
        let store_ns = net_ns(size, &emulation, || {
            for chunk in (0..bytes).step_by(CHUNK_BYTES as usize) {
                emulation.write(chunk, CHUNK_BYTES);
                window.pass(chunk, CHUNK_BYTES, Pass::Store4);
            }
        })?;
        let [stream, stores] = [stream_ns, store_ns].map(|ns| bytes as f64 * 1e9 / ns);
        report.results.push(
            Row::new("emulated_chase", "ns", Better::Lower, far_ns)
                .against(Reference::Raw(latency_ns.into())),
        );
        report.results.push(
            Row::new("emulated_stream", "B/s", Better::Higher, stream)
                .against(Reference::Raw(far.bandwidth as f64)),
        );
        let speed = Speed {
            latency_ns: latency_ns.into(),
            bandwidth: far.bandwidth,
            store_bandwidth: stores as u64,
        };
        let far = Far::Emulated(far, Box::new(VirtualSocket::new(size)));
        Ok(TieringBench::new(setup, far, [near, speed], report))
    }

    /// Measures the memory of these nodes, and of the engines' own.
    fn on(setup: Setup, far: Vec<u16>, report: &mut Report) -> Result<TieringBench, BenchError> {
        let nodes = Nodes::new(node_of(setup.cores[0]), far)?;
        // One after the other: each may be a good part of its node.
        let near = memory(&setup, Some(&nodes.near))?.1;
        let far = memory(&setup, Some(&nodes.far))?.1;
        report.results.push(
            Row::new("measured_chase", "ns", Better::Lower, far.latency_ns)
                .against(Reference::Raw(near.latency_ns)),
        );
        report.results.push(
            Row::new("measured_stream", "B/s", Better::Higher, far.bandwidth as f64)
                .against(Reference::Raw(near.bandwidth as f64)),
        );
        report.extra.insert("near_nodes".into(), nodes.near_id.to_string().into());
        report.extra.insert("far_nodes".into(), list(&nodes.far_ids).into());
        Ok(TieringBench::new(setup, Far::Nodes(nodes), [near, far], report))
    }

    fn new(setup: Setup, kind: Far, [near, far]: [Speed; 2], report: &mut Report) -> TieringBench {
        for (field, value) in [
            ("near_latency_ns", near.latency_ns),
            ("far_latency_ns", far.latency_ns),
            ("near_bandwidth_mbps", near.bandwidth as f64 / 1e6),
            ("far_bandwidth_mbps", far.bandwidth as f64 / 1e6),
            ("near_store_mbps", near.store_bandwidth as f64 / 1e6),
            ("far_store_mbps", far.store_bandwidth as f64 / 1e6),
        ] {
            report.extra.insert(field.into(), value.into());
        }
        let stored = vec![0x5a; VALUE_BYTES_MAX];
        TieringBench { setup, near_speed: near, far_speed: far, far: kind, stored }
    }

    fn kind(&self) -> Kind {
        match self.far {
            Far::Emulated(..) => Kind::Emulated,
            Far::Nodes(_) => Kind::Measured,
        }
    }

    /// What the operating system can do here; the report says why it lacks others.
    fn policies(&self, report: &mut Report) -> Vec<OsPolicy> {
        let Far::Nodes(nodes) = &self.far else {
            let why = "far memory is emulated: the operating system has none to place on";
            report.extra.insert("numactl_absent".into(), why.into());
            return Vec::new();
        };
        let mut policies = Vec::new();
        for policy in OsPolicy::all(nodes.near_id, &nodes.far_ids) {
            match policy.absent() {
                None => policies.push(policy),
                Some(why) => _ = report.extra.insert(format!("{}_absent", policy.name), why.into()),
            }
        }
        policies
    }

    /// Look-ups alone, of items that all fit.
    fn zipf(&self, peers: &mut OsPeers<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let test = TieringTest::zipfian(self.setup.size);
        let budget = Budget::same_capacity(test.memory);
        self.compare_all(&test, budget, peers, rows)?;
        Ok(())
    }

    /// The rate with an emulation by which nothing is waited for, times that without one.
    fn without_waits(
        &self,
        engines: &mut Engines<'_>,
        weights: Option<[u32; 2]>,
    ) -> Result<f64, BenchError> {
        let size = self.setup.size;
        let (engines, slice) = (RefCell::new(engines), size.slice());
        let at_once = FarModel { latency_ns: 0, bandwidth: u64::MAX };
        let emulated = || {
            let mut engines = engines.borrow_mut();
            engines.emulate(at_once, weights)?;
            engines.slice(slice)
        };
        let plain = || {
            let mut engines = engines.borrow_mut();
            engines.end_emulation();
            engines.slice(slice)
        };
        let mut probe = SystemProbe::of_this_process();
        Ok(compare(&size.rules(), SEED, &mut probe, emulated, plain)?.ratio)
    }

    /// A workload, and whether the mode that is advised for it is the best: of far memory that is
    /// there by what was measured, else in virtual time.
    fn judge(
        &self,
        workload: &CacheWorkload,
        peers: &mut OsPeers<'_>,
        rows: &mut Vec<Row>,
    ) -> Result<Judged, BenchError> {
        let test = TieringTest::of(workload, self.setup.size);
        let advice = self.advise(&test)?;
        let budget = Budget::same_dram(test.memory, &advice);
        let hits_per_s = self.compare_all(&test, budget, peers, rows)?;
        let (judged, how) = match &self.far {
            Far::Emulated(_, socket) => (socket.judge(workload)?, "virtual"),
            Far::Nodes(_) => {
                (Judged { scores: hits_per_s, advised: advice.chosen.name() }, "measured")
            }
        };
        rows.push(judged.row(test.name, self.kind().name()).with("judged", how));
        Ok(judged)
    }

    /// What `tiers advise` says of a `kv --advise` in DRAM alone that has the thread of one engine,
    /// what that gets of the memories, and more to do than it can.
    fn advise(&self, test: &TieringTest<'_>) -> Result<TieringAdvice, BenchError> {
        let half = test.memory / 2;
        let options = rackpool_cache::Options {
            placement: self.nodes().map(|nodes| nodes.near.clone()),
            samples_reuse: true,
            ..test.options(half)
        };
        let mut engines = Engines::load(&self.setup.cores, test, &options, &self.stored)?;
        let observed = engines.observe(test.warm_up / 2)?;
        let advice = || {
            let memory = |speed: Speed| speed.memory(half, observed.read_share());
            let (near, far) = (memory(self.near_speed)?, memory(self.far_speed)?);
            advise(&near, Some(&far), &observed.load(&near, None, 1, 0.0)?)
        };
        advice().map_err(|error: WeightsError| BenchError::Option {
            option: "workload",
            reason: format!("no advice for {}: {error}", test.name),
        })
    }

    fn nodes(&self) -> Option<&Nodes> {
        match &self.far {
            Far::Emulated(..) => None,
            Far::Nodes(nodes) => Some(nodes),
        }
    }

    /// The cache in DRAM, and the others beside it. Hits a second by mode, DRAM and then those of
    /// [`BESIDE_DRAM`].
    fn compare_all(
        &self,
        test: &TieringTest<'_>,
        budget: Budget,
        peers: &mut OsPeers<'_>,
        rows: &mut Vec<Row>,
    ) -> Result<[f64; 4], BenchError> {
        let mut dram = self.load(Tiering::Dram, budget, test)?;
        let mut others = Vec::new();
        let (mut dram_rate, mut hits) = (0.0, [1.0; 4]);
        let kind = self.kind().name();
        let row = |word: &str, compared: &Comparison| {
            let name = format!("{}_{word}_{kind}", test.name);
            Row::compared(&name, "ops/s", Better::Higher, compared, Reference::Peer)
        };
        for ((tiering, word), hits) in BESIDE_DRAM.into_iter().zip(&mut hits[1..]) {
            let mut ours = self.load(tiering, budget, test)?;
            let weights = (tiering == Tiering::Transparent).then_some(budget.weights);
            if let Far::Emulated(model, _) = self.far {
                ours.emulate(model, weights)?;
            }
            let compared = self.compare(|slice| ours.slice(slice), &mut dram)?;
            dram_rate = compared.reference;
            *hits = compared.ratio * ours.seen().hits_per_op / dram.seen().hits_per_op;
            let mut row = self.finished(row(word, &compared), ours.seen(), budget.of(tiering));
            if let Far::Emulated(..) = self.far {
                let without_waits = self.without_waits(&mut ours, weights)?;
                row = row.with("without_waits", without_waits);
                row = row.with("net_ratio", compared.ratio / without_waits);
            }
            if tiering == Tiering::Transparent {
                let [near, far] = budget.weights;
                row = row.with("weights", format!("{near}:{far}"));
            }
            let is_promised = tiering == Tiering::Data && test.name == ZIPFIAN;
            others.push(if is_promised { row.with("limit", RATIO_MIN) } else { row });
        }
        for policy in &peers.policies {
            let memory = budget.placed(policy.near_share);
            let (size, cores) = (self.setup.size, self.setup.cores.clone());
            let job = OsJob { test: test.name.to_owned(), size, memory, cores };
            let mut theirs = OsCache::start(policy, &job, peers.worker)?;
            let compared = self.compare(|slice| theirs.slice(slice), &mut dram)?;
            let seen = theirs.seen().expect("a comparison has slices");
            let row = self.finished(row(policy.name, &compared), seen, job.memory);
            let row = row.with("policy", policy.command());
            others.push(match &policy.weights {
                Some(weights) => row.with("weights", weights.as_str()),
                None => row,
            });
        }
        let seen = dram.seen();
        let row = Row::new(&format!("{}_dram", test.name), "ops/s", Better::Higher, dram_rate);
        rows.push(self.finished(row, seen, budget.dram));
        rows.append(&mut others);
        Ok(hits.map(|hits| hits * dram_rate * seen.hits_per_op))
    }

    fn compare(
        &self,
        mut ours: impl FnMut(Duration) -> Result<f64, BenchError>,
        dram: &mut Engines<'_>,
    ) -> Result<Comparison, BenchError> {
        let size = self.setup.size;
        let slice = size.slice();
        let mut probe = SystemProbe::of_this_process();
        let (ours, dram) = (|| ours(slice), || dram.slice(slice));
        compare(&size.rules(), SEED, &mut probe, ours, dram)
    }

    /// Caches that have gone through what warms them up; nothing is emulated yet.
    fn load<'s>(
        &'s self,
        tiering: Tiering,
        budget: Budget,
        test: &TieringTest<'s>,
    ) -> Result<Engines<'s>, BenchError> {
        let mut options = test.options(budget.of(tiering));
        let nodes = self.nodes();
        let placement = nodes.map(|nodes| match tiering {
            Tiering::Dram | Tiering::Data => Ok(nodes.near.clone()),
            Tiering::Far => Ok(nodes.far.clone()),
            Tiering::Transparent => nodes.both(budget.weights),
        });
        options.placement = placement.transpose()?;
        if tiering == Tiering::Data {
            let [near, memory] = budget.data;
            let placement = nodes.map(|nodes| nodes.far.clone());
            let [near_rate, far] = [self.near_speed, self.far_speed].map(|speed| speed.bandwidth);
            let bandwidths = Some(Bandwidths { near: near_rate, far });
            options.memory = near;
            options.far = Some(FarMemory { memory, placement, bandwidths });
        }
        Engines::load(&self.setup.cores, test, &options, &self.stored)
    }

    /// With what all rows of a test tell; the memory is that of one engine.
    fn finished(&self, row: Row, seen: LoadSummary, memory_bytes: u64) -> Row {
        let hits_per_s = row.ours * seen.hits_per_op;
        row.percentiles(seen.batches)
            .with("batch", BATCH)
            .with("hit_ratio", seen.hit_ratio)
            .with("hits_per_s", hits_per_s)
            .with("memory_bytes", memory_bytes * self.setup.cores.len() as u64)
    }
}

/// Nanoseconds that a step takes by which the next one is known.
fn chase_ns(size: Size, mut next: impl FnMut(u64) -> u64) -> Result<f64, BenchError> {
    let mut at = 0;
    let block_ns = median_ns(size, || (0..BLOCK).for_each(|_| at = next(at)))?;
    Ok(block_ns / BLOCK as f64)
}

/// As [`median_ns`], without the emulation's own time.
fn net_ns(size: Size, far: &FarEmulation, block: impl FnMut()) -> Result<f64, BenchError> {
    median_less_ns(size, block, || far.own_ps() as f64 / 1e3)
}

fn median_ns(size: Size, block: impl FnMut()) -> Result<f64, BenchError> {
    median_less_ns(size, block, || 0.0)
}

/// The median over laps of a block's time, less what `spent_ns` has grown by in the same lap: a
/// pause of the process counts in both and so in neither.
fn median_less_ns(
    size: Size,
    mut block: impl FnMut(),
    spent_ns: impl Fn() -> f64,
) -> Result<f64, BenchError> {
    let mut lap = |_| {
        let (mut blocks, spent_before) = (0_u64, spent_ns());
        let ns = slice_ns(size.slice(), 1, || {
            blocks += 1;
            block();
            Ok(())
        })?;
        Ok(ns - (spent_ns() - spent_before) / blocks as f64)
    };
    let laps = (0..LAPS).map(&mut lap).collect::<Result<Vec<f64>, BenchError>>()?;
    Ok(quantile(&laps, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On far memory of this kind, without processes beside it.
    fn rows_of(far: FarKind, engines: usize) -> (Report, Vec<String>) {
        let mut worker = |_| Command::new("none");
        let names = &["follower_assocs".to_owned()];
        let options = Options { names, far, size: Size::Smoke, engines, worker: &mut worker };
        let report = run(options, &mut |_| ()).unwrap();
        let rows = report.results.iter().map(|row| row.name.clone()).collect();
        (report, rows)
    }

    fn four(test: &str, kind: &str) -> Vec<String> {
        let beside = ["far", "transparent", "data"].map(|word| format!("{test}_{word}_{kind}"));
        [&[format!("{test}_dram")][..], &beside].concat()
    }

    #[test]
    fn all_four_are_measured_and_what_is_emulated_says_so() {
        let (report, rows) = rows_of(FarKind::Emulated(Some(50)), 1);
        assert_eq!(report.kind, Kind::Emulated);
        let mut expected = vec!["emulated_chase".to_owned(), "emulated_stream".to_owned()];
        expected.extend(four("zipf99", "emulated"));
        expected.extend(four("follower_assocs", "emulated"));
        expected.push("follower_assocs_advised_emulated".to_owned());
        expected.push("advised_within_3_percent_emulated".to_owned());
        assert_eq!(rows, expected);
        let hit_ratios = report.results.iter().filter_map(|row| row.extra.get("hit_ratio"));
        assert!(hit_ratios.clone().count() == 8 && hit_ratios.clone().all(|it| it.is_number()));
        let limits = report.results.iter().filter(|row| row.extra.contains_key("limit"));
        assert!(limits.map(|row| row.name.as_str()).eq(["zipf99_data_emulated"]));
        let net = report.results.iter().filter(|row| row.extra.contains_key("net_ratio"));
        assert_eq!(net.count(), 6);
        let [near, far] =
            ["near_latency_ns", "far_latency_ns"].map(|it| report.extra[it].as_f64().unwrap());
        assert_eq!(far, (near + 50.0).round());
        assert!(report.extra.contains_key("numactl_absent"));
    }

    #[test]
    fn what_is_transparent_is_near_by_its_weight_however_many_far_nodes_there_are() {
        let nodes = Nodes::new(0, vec![1, 2]).unwrap();
        assert_eq!(nodes.far.to_string(), "numa:1=1,numa:2=1");
        let both = |nodes: &Nodes, weights| nodes.both(weights).unwrap().to_string();
        assert_eq!(both(&nodes, [1, 1]), "numa:0=2,numa:1=1,numa:2=1");
        assert_eq!(both(&nodes, [3, 2]), "numa:0=6,numa:1=2,numa:2=2");
        assert_eq!(both(&Nodes::new(0, vec![0]).unwrap(), [1, 1]), "numa:0");
    }

    #[test]
    fn what_the_operating_system_places_has_no_more_of_a_memory_than_the_others() {
        let capacity = Budget::same_capacity(1200);
        assert_eq!([0.0, 0.5, 0.75].map(|share| capacity.placed(share)), [1200; 3]);
        let data = [600, 600];
        let dram = Budget { dram: 600, far: 600, transparent: 800, weights: [3, 1], data };
        // All far, in equal parts, by these weights, in equal parts of near and two far nodes.
        let placed = [0.0, 0.5, 0.75, 0.25].map(|share| dram.placed(share));
        assert_eq!(placed, [600, 1200, 800, 800]);
    }

    #[test]
    fn a_workload_that_is_none_is_refused() {
        let mut worker = |_| Command::new("none");
        let (names, far) = (&["none".to_owned()], FarKind::Emulated(None));
        let options = Options { names, far, size: Size::Smoke, engines: 1, worker: &mut worker };
        let error = run(options, &mut |_| ()).unwrap_err();
        assert_eq!(error.code(), "config");
    }

    #[test]
    fn engines_are_measured_together_as_many_as_there_are_processors() {
        let allowed = pin::allowed_cores().unwrap();
        let error = engine_cores(&allowed, allowed.len() + 1).unwrap_err();
        assert_eq!(error.code(), "config");
        let engines = engine_cores(&allowed, 2).map_or(1, |cores| cores.len());
        let (report, rows) = rows_of(FarKind::Emulated(None), engines);
        assert_eq!(report.extra["engines"], engines);
        let at = rows.iter().position(|name| name == "zipf99_dram").unwrap();
        let row = &report.results[at];
        let memory = TieringTest::zipfian(Size::Smoke).memory * engines as u64;
        assert_eq!(row.extra["memory_bytes"], memory);
        assert!(row.ours > 0.0 && row.extra["hit_ratio"].as_f64().unwrap() > 0.99);
    }
}
