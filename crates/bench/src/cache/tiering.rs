//! `bench cache --tiering`: one cache on unlike memories, beside the same cache in DRAM alone.
//!
//! Four caches of the same capacity: in DRAM; in far memory; *transparent*, half of each kind of
//! memory in turn; *data*, half near and half far, where items lie by what they are worth. Each is
//! compared with DRAM pair by pair, on the eight workloads and on look-ups of small items by a
//! Zipfian popularity, all of which fit. Percentiles are those of a batch of 32 operations.
//!
//! Far memory is that of the nodes that are named, and rows are called measured. Beside them is the
//! same cache as the operating system places it (`tiering_os.rs`), where `numactl` is installed.
//!
//! Without such nodes it is emulated (`rackpool_mem::emulation`): of twice the latency that is
//! measured here, or of so much more as is said, and of a third of the bandwidth of one thread. The
//! emulation takes processor time where items are far, so that rates are lower than on such memory:
//! a row tells what it costs where nothing is waited for. Two rows show that it keeps its promise:
//! a dependent chase, and a stream that is asked for ahead.

use super::items::{BATCH, BLOCK, SEED};
use super::tiering_load::{Load, LoadSummary, TieringTest, VALUE_BYTES_MAX, ZIPFIAN};
use super::tiering_os::{OsCache, OsPolicy};
use super::workload::named;
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
    /// How a process is started that serves [`super::tiering_os::worker`].
    pub worker: &'a mut dyn FnMut(u32) -> Command,
}

/// Measures workloads, and the Zipfian look-ups.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: Options<'_>, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let Options { names, far, size, worker } = options;
    let workloads = named(names)?;
    let mut steps = Steps::new(workloads.len() + 2, progress);
    let kind = match far {
        FarKind::Emulated(_) => Kind::Emulated,
        FarKind::Nodes(_) => Kind::Measured,
    };
    let mut report = Report::here(kind);
    let cores = pin::allowed_cores()?;
    pin::pin_to(cores[0])?;
    let measured = (|| {
        steps.begin("memory");
        let bench = match far {
            FarKind::Emulated(more_ns) => TieringBench::emulated(size, more_ns, &mut report)?,
            FarKind::Nodes(far) => TieringBench::on(size, node_of(cores[0]), far, &mut report)?,
        };
        let policies = bench.policies(&mut report);
        let mut peers = OsPeers { policies, worker };
        steps.begin(ZIPFIAN);
        bench.zipf(&mut peers, &mut report.results)?;
        for workload in &workloads {
            steps.begin(workload.name);
            let test = TieringTest::of(workload, size);
            bench.compare_all(&test, &mut peers, &mut report.results)?;
        }
        Ok(report)
    })();
    pin::pin_to_any(&cores)?;
    steps.end();
    measured
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
    /// Half of each kind.
    both: Placement,
}

impl Nodes {
    fn new(near_id: u16, far_ids: Vec<u16>) -> Result<Nodes, BenchError> {
        let placement = |text: String| text.parse::<Placement>().map_err(Error::from);
        let parts = |ids: &[u16]| ids.iter().map(|id| format!("numa:{id}=1")).collect::<Vec<_>>();
        let near = placement(format!("numa:{near_id}"))?;
        let far = placement(parts(&far_ids).join(","))?;
        let both = match far_ids.contains(&near_id) {
            true => far.clone(),
            false => {
                let near = format!("numa:{near_id}={}", far_ids.len());
                placement(format!("{near},{}", parts(&far_ids).join(",")))?
            }
        };
        Ok(Nodes { near_id, far_ids, near, far, both })
    }
}

enum Far {
    Emulated(FarModel),
    Nodes(Nodes),
}

struct TieringBench {
    size: Size,
    bandwidths: Bandwidths,
    far: Far,
    stored: Vec<u8>,
}

/// What one thread gets of a memory.
struct Speed {
    /// Of a step by which the next one is known.
    latency_ns: f64,
    /// Bytes a second.
    bandwidth: u64,
}

/// Memory through which a chase goes, and its speed.
fn memory(size: Size, from: Option<&Placement>) -> Result<(Window, Speed), BenchError> {
    let bytes = size.region_bytes();
    let window = Window::private(bytes).map_err(io_error("memory for a chase"))?;
    if let Some(placement) = from {
        // Bound memory that is not there would have the kernel end this process.
        placement.check_free(bytes).map_err(Error::from)?;
        placement.apply(&window).map_err(Error::from)?;
    }
    for (line, next) in (0..).zip(random_cycle((bytes / LINE) as u32, SEED)) {
        window.store(line * LINE, u64::from(next) * LINE);
    }
    let latency_ns = chase_ns(size, |at| window.load(at))?;
    let pass_ns = median_ns(size, || window.pass(0, bytes, Pass::Load4))?;
    let bandwidth = (bytes as f64 * 1e9 / pass_ns) as u64;
    Ok((window, Speed { latency_ns, bandwidth }))
}

impl TieringBench {
    /// Measures the memory of this machine, and the emulated one against what it is to be.
    fn emulated(
        size: Size,
        more_ns: Option<u32>,
        report: &mut Report,
    ) -> Result<TieringBench, BenchError> {
        let (window, near) = memory(size, None)?;
        let bytes = window.bytes();
        let latency_ns = near.latency_ns + more_ns.map_or(near.latency_ns, f64::from);
        let latency_ns = latency_ns.round() as u32;
        let far = FarModel { latency_ns, bandwidth: near.bandwidth / BANDWIDTH_PARTS };
        let emulation = FarEmulation::new(far, FarBytes::From(0), Box::new(SystemClock::new()));
        let far_ns = chase_ns(size, |at| {
            emulation.read(window.bare(), at, 8);
            window.load(at)
        })?;
        let stream_ns = median_ns(size, || {
            for chunk in (0..bytes).step_by(CHUNK_BYTES as usize) {
                emulation.ask(chunk + 2 * CHUNK_BYTES, CHUNK_BYTES);
                emulation.read(window.bare(), chunk, CHUNK_BYTES);
                window.pass(chunk, CHUNK_BYTES, Pass::Load4);
            }
        })?;
        let stream = bytes as f64 * 1e9 / stream_ns;
        report.results.push(
            Row::new("emulated_chase", "ns", Better::Lower, far_ns)
                .against(Reference::Raw(latency_ns.into())),
        );
        report.results.push(
            Row::new("emulated_stream", "B/s", Better::Higher, stream)
                .against(Reference::Raw(far.bandwidth as f64)),
        );
        let speed = Speed { latency_ns: latency_ns.into(), bandwidth: far.bandwidth };
        Ok(TieringBench::new(size, Far::Emulated(far), [near, speed], report))
    }

    /// Measures the memory of these nodes.
    fn on(
        size: Size,
        near: u16,
        far: Vec<u16>,
        report: &mut Report,
    ) -> Result<TieringBench, BenchError> {
        let nodes = Nodes::new(near, far)?;
        // One after the other: each may be a good part of its node.
        let near = memory(size, Some(&nodes.near))?.1;
        let far = memory(size, Some(&nodes.far))?.1;
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
        Ok(TieringBench::new(size, Far::Nodes(nodes), [near, far], report))
    }

    fn new(size: Size, kind: Far, [near, far]: [Speed; 2], report: &mut Report) -> TieringBench {
        for (field, value) in [
            ("near_latency_ns", near.latency_ns),
            ("far_latency_ns", far.latency_ns),
            ("near_bandwidth_mbps", near.bandwidth as f64 / 1e6),
            ("far_bandwidth_mbps", far.bandwidth as f64 / 1e6),
        ] {
            report.extra.insert(field.into(), value.into());
        }
        let bandwidths = Bandwidths { near: near.bandwidth, far: far.bandwidth };
        TieringBench { size, bandwidths, far: kind, stored: vec![0x5a; VALUE_BYTES_MAX] }
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

    /// Look-ups alone, of items that all fit; and what the emulation itself takes of them.
    fn zipf(&self, peers: &mut OsPeers<'_>, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let test = TieringTest::zipfian(self.size);
        self.compare_all(&test, peers, rows)?;
        if let Far::Nodes(_) = self.far {
            return Ok(());
        }
        let mut plain = self.load(Tiering::Data, &test)?;
        let mut ours = self.load(Tiering::Data, &test)?;
        ours.emulate(FarModel { latency_ns: 0, bandwidth: u64::MAX }, None)?;
        let compared = self.compare(|slice| Ok(ours.slice(slice)), &mut plain)?;
        let name = "zipf99_data_without_waits_emulated";
        let row = Row::compared(name, "ops/s", Better::Higher, &compared, Reference::Peer);
        let row = finished(row, ours.seen(), &test);
        rows.push(row.with("beside", "data without the emulation"));
        Ok(())
    }

    /// The cache in DRAM, and the others beside it.
    fn compare_all(
        &self,
        test: &TieringTest<'_>,
        peers: &mut OsPeers<'_>,
        rows: &mut Vec<Row>,
    ) -> Result<(), BenchError> {
        let mut dram = self.load(Tiering::Dram, test)?;
        let mut others = Vec::new();
        let mut dram_rate = 0.0;
        let kind = match self.far {
            Far::Emulated(_) => Kind::Emulated.name(),
            Far::Nodes(_) => Kind::Measured.name(),
        };
        let mut add = |word: &str, compared: &Comparison, seen: LoadSummary| {
            dram_rate = compared.reference;
            let name = format!("{}_{word}_{kind}", test.name);
            let row = Row::compared(&name, "ops/s", Better::Higher, compared, Reference::Peer);
            finished(row, seen, test)
        };
        for (tiering, word) in BESIDE_DRAM {
            let mut ours = self.load(tiering, test)?;
            if let Far::Emulated(model) = self.far {
                let weights = (tiering == Tiering::Transparent).then_some([1, 1]);
                ours.emulate(model, weights)?;
            }
            let compared = self.compare(|slice| Ok(ours.slice(slice)), &mut dram)?;
            let row = add(word, &compared, ours.seen());
            let is_promised = tiering == Tiering::Data && test.name == ZIPFIAN;
            others.push(if is_promised { row.with("limit", RATIO_MIN) } else { row });
        }
        for policy in &peers.policies {
            let mut theirs = OsCache::start(policy, test, self.size, peers.worker)?;
            let compared = self.compare(|slice| theirs.slice(slice), &mut dram)?;
            let seen = theirs.seen().expect("a comparison has slices");
            let row = add(policy.name, &compared, seen).with("policy", policy.command());
            others.push(match &policy.weights {
                Some(weights) => row.with("weights", weights.as_str()),
                None => row,
            });
        }
        let row = Row::new(&format!("{}_dram", test.name), "ops/s", Better::Higher, dram_rate);
        rows.push(finished(row, dram.seen(), test));
        rows.append(&mut others);
        Ok(())
    }

    fn compare(
        &self,
        mut ours: impl FnMut(Duration) -> Result<f64, BenchError>,
        dram: &mut Load<'_>,
    ) -> Result<Comparison, BenchError> {
        let slice = self.size.slice();
        let mut probe = SystemProbe::of_this_process();
        let (ours, dram) = (|| ours(slice), || Ok(dram.slice(slice)));
        compare(&self.size.rules(), SEED, &mut probe, ours, dram)
    }

    /// A cache that has gone through what warms it up; nothing is emulated yet.
    fn load<'s, 'w: 's>(
        &'s self,
        tiering: Tiering,
        test: &TieringTest<'w>,
    ) -> Result<Load<'s>, BenchError> {
        let mut options = test.options();
        let nodes = match &self.far {
            Far::Emulated(_) => None,
            Far::Nodes(nodes) => Some(nodes),
        };
        let placement = nodes.map(|nodes| match tiering {
            Tiering::Dram | Tiering::Data => &nodes.near,
            Tiering::Far => &nodes.far,
            Tiering::Transparent => &nodes.both,
        });
        options.placement = placement.cloned();
        if tiering == Tiering::Data {
            let memory = test.memory / 2;
            let (placement, bandwidths) =
                (nodes.map(|nodes| nodes.far.clone()), Some(self.bandwidths));
            options.memory = memory;
            options.far = Some(FarMemory { memory, placement, bandwidths });
        }
        test.load(options, &self.stored)
    }
}

/// With what all rows of a test tell.
fn finished(row: Row, seen: LoadSummary, test: &TieringTest<'_>) -> Row {
    row.percentiles(seen.batches)
        .with("batch", BATCH)
        .with("hit_ratio", seen.hit_ratio)
        .with("memory_bytes", test.memory)
}

/// Nanoseconds that a step takes by which the next one is known.
fn chase_ns(size: Size, mut next: impl FnMut(u64) -> u64) -> Result<f64, BenchError> {
    let mut at = 0;
    let block_ns = median_ns(size, || (0..BLOCK).for_each(|_| at = next(at)))?;
    Ok(block_ns / BLOCK as f64)
}

fn median_ns(size: Size, mut block: impl FnMut()) -> Result<f64, BenchError> {
    let mut lap = |_| {
        slice_ns(size.slice(), 1, || {
            block();
            Ok(())
        })
    };
    let laps = (0..LAPS).map(&mut lap).collect::<Result<Vec<f64>, BenchError>>()?;
    Ok(quantile(&laps, 0.5))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On far memory of this kind, without processes beside it.
    fn rows_of(far: FarKind) -> (Report, Vec<String>) {
        let mut worker = |_| Command::new("none");
        let names = &["follower_assocs".to_owned()];
        let options = Options { names, far, size: Size::Smoke, worker: &mut worker };
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
        let (report, rows) = rows_of(FarKind::Emulated(Some(50)));
        assert_eq!(report.kind, Kind::Emulated);
        let mut expected = vec!["emulated_chase".to_owned(), "emulated_stream".to_owned()];
        expected.extend(four("zipf99", "emulated"));
        expected.push("zipf99_data_without_waits_emulated".to_owned());
        expected.extend(four("follower_assocs", "emulated"));
        assert_eq!(rows, expected);
        let hit_ratios = report.results.iter().filter_map(|row| row.extra.get("hit_ratio"));
        assert!(hit_ratios.clone().count() == 9 && hit_ratios.clone().all(|it| it.is_number()));
        let limits = report.results.iter().filter(|row| row.extra.contains_key("limit"));
        assert!(limits.map(|row| row.name.as_str()).eq(["zipf99_data_emulated"]));
        let [near, far] =
            ["near_latency_ns", "far_latency_ns"].map(|it| report.extra[it].as_f64().unwrap());
        assert_eq!(far, (near + 50.0).round());
        assert!(report.extra.contains_key("numactl_absent"));
    }

    #[test]
    fn half_of_what_is_transparent_is_near_however_many_far_nodes_there_are() {
        let nodes = Nodes::new(0, vec![1, 2]).unwrap();
        assert_eq!(nodes.far.to_string(), "numa:1=1,numa:2=1");
        assert_eq!(nodes.both.to_string(), "numa:0=2,numa:1=1,numa:2=1");
        assert_eq!(Nodes::new(0, vec![0]).unwrap().both.to_string(), "numa:0");
    }

    #[test]
    fn a_workload_that_is_none_is_refused() {
        let mut worker = |_| Command::new("none");
        let (names, far) = (&["none".to_owned()], FarKind::Emulated(None));
        let options = Options { names, far, size: Size::Smoke, worker: &mut worker };
        let error = run(options, &mut |_| ()).unwrap_err();
        assert_eq!(error.code(), "config");
    }
}
