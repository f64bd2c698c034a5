//! `bench cache --tiering`: one cache on unlike memories, beside the same cache in DRAM alone.
//!
//! Four caches of the same capacity: in DRAM; in far memory; *transparent*, half of each kind of
//! memory in turn; *data*, half near and half far, where items lie by what they are worth. Far
//! memory is emulated (`rackpool_mem::emulation`): of twice the latency that is measured here, or
//! of so much more as `--emulate cxl=` says, and of a third of the bandwidth of one thread. Each is
//! compared with DRAM pair by pair, on the eight workloads and on look-ups of small items by a
//! Zipfian popularity, all of which fit. Percentiles are those of a batch of 32 operations.
//!
//! The emulation takes processor time where items are far, so that rates are lower than on such
//! memory: a row tells what it costs where nothing is waited for. Two rows show that it keeps its
//! promise: a dependent chase, and a stream that is asked for ahead.

use super::items::{BATCH, BLOCK, SEED};
use super::ratio::ORIGINAL_BYTES;
use super::tiering_load::{Load, VALUE_BYTES_MAX, zipfian};
use super::workload::{CacheWorkload, Op, named};
use crate::interleave::{Comparison, compare};
use crate::micro::index::random_cycle;
use crate::micro::pin;
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps, io_error, slice_ns};
use rackpool_cache::{Bandwidths, Cache, FarMemory, Options};
use rackpool_core::seam::Mem;
use rackpool_mem::emulation::{FarBytes, FarEmulation, FarModel, SystemClock};
use rackpool_mem::window::{Pass, Window};
use rackpool_stats::sample::quantile;

const LINE: u64 = 64;
const LAPS: usize = 5;
/// Of a cache's log.
const UNIT_BYTES: u64 = 64 << 10;
const CHUNK_BYTES: u64 = 4096;
/// The far memory's bandwidth is one in so many of what one thread gets from the near one.
const BANDWIDTH_PARTS: u64 = 3;
const THETA: f64 = 0.99;
/// What data tiering promises of the rate in DRAM for the Zipfian look-ups.
const RATIO_MIN: f64 = 0.9;
/// Bytes of memory a key of the Zipfian look-ups: as for the other look-ups of such items.
const BYTES_PER_KEY: u64 = 90;

/// Where a cache lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tiering {
    Dram,
    Far,
    Transparent,
    Data,
}

const EMULATED: [(Tiering, &str); 3] =
    [(Tiering::Far, "far"), (Tiering::Transparent, "transparent"), (Tiering::Data, "data")];

/// Measures the named workloads, or all, and the Zipfian look-ups. `cxl_ns` is what far memory has
/// in latency above the near one.
///
/// # Errors
/// [`BenchError`].
pub fn run(
    names: &[String],
    cxl_ns: Option<u32>,
    size: Size,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let workloads = named(names)?;
    let mut steps = Steps::new(workloads.len() + 2, progress);
    let mut report = Report::here(Kind::Emulated);
    let cores = pin::allowed_cores()?;
    pin::pin_to(cores[0])?;
    let measured = (|| {
        steps.begin("memory");
        let bench = TieringBench::new(size, cxl_ns, &mut report)?;
        steps.begin("zipf99");
        bench.zipf(&mut report.results)?;
        for workload in &workloads {
            steps.begin(workload.name);
            bench.workload(workload, &mut report.results)?;
        }
        Ok(report)
    })();
    pin::pin_to_any(&cores)?;
    steps.end();
    measured
}

struct TieringBench {
    size: Size,
    bandwidths: Bandwidths,
    far: FarModel,
    stored: Vec<u8>,
}

impl TieringBench {
    /// Measures the memory of this machine, and the emulated one against what it is to be.
    fn new(
        size: Size,
        cxl_ns: Option<u32>,
        report: &mut Report,
    ) -> Result<TieringBench, BenchError> {
        let bytes = size.region_bytes();
        let window = Window::private(bytes).map_err(io_error("memory for a chase"))?;
        for (line, next) in (0..).zip(random_cycle((bytes / LINE) as u32, SEED)) {
            window.store(line * LINE, u64::from(next) * LINE);
        }
        let near_ns = chase_ns(size, |at| window.load(at))?;
        let pass_ns = median_ns(size, || window.pass(0, bytes, Pass::Load4))?;
        let near = (bytes as f64 * 1e9 / pass_ns) as u64;
        let latency_ns = (near_ns + cxl_ns.map_or(near_ns, f64::from)).round() as u32;
        let far = FarModel { latency_ns, bandwidth: near / BANDWIDTH_PARTS };
        let bandwidths = Bandwidths { near, far: far.bandwidth };

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
        for (field, value) in [
            ("near_latency_ns", near_ns),
            ("far_latency_ns", latency_ns.into()),
            ("near_bandwidth_mbps", near as f64 / 1e6),
            ("far_bandwidth_mbps", far.bandwidth as f64 / 1e6),
        ] {
            report.extra.insert(field.into(), value.into());
        }
        Ok(TieringBench { size, bandwidths, far, stored: vec![0x5a; VALUE_BYTES_MAX] })
    }

    /// Look-ups alone, of items that all fit; and what the emulation itself takes of them.
    fn zipf(&self, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let items = match self.size {
            Size::Smoke => 1 << 14,
            Size::Quick => 1 << 22,
            Size::Full => 1 << 23,
        };
        let test = TieringTest {
            name: "zipf99",
            memory: items * BYTES_PER_KEY + (4 << 20),
            items,
            warm_up: 2 * items,
            ops: || zipfian(items, THETA),
        };
        self.compare_all(&test, rows)?;
        let promised = rows.pop().expect("that of data tiering is the last");
        rows.push(promised.with("limit", RATIO_MIN));
        let mut plain = self.load(Tiering::Data, &test)?;
        let mut ours = self.load(Tiering::Data, &test)?;
        ours.emulate(FarModel { latency_ns: 0, bandwidth: u64::MAX }, None)?;
        let compared = self.compare(&mut ours, &mut plain)?;
        let name = "zipf99_data_without_waits_emulated";
        let row = Row::compared(name, "ops/s", Better::Higher, &compared, Reference::Peer);
        rows.push(finished(row, &ours, &test).with("beside", "data without the emulation"));
        Ok(())
    }

    fn workload(&self, workload: &CacheWorkload, rows: &mut Vec<Row>) -> Result<(), BenchError> {
        let (memory, longest) = match self.size {
            Size::Smoke => (16_u64 << 20, 20_000.0),
            Size::Quick => (64 << 20, 1e6),
            Size::Full => (512 << 20, 16e6),
        };
        let fits = memory as f64 / (workload.value_bytes_mean() + 60.0);
        let test = TieringTest {
            name: workload.name,
            memory,
            items: 0,
            warm_up: (fits * 12.0).clamp(20_000.0, longest) as u64,
            ops: || workload.stream(memory as f64 / ORIGINAL_BYTES, SEED),
        };
        self.compare_all(&test, rows)
    }

    /// The cache in DRAM, and the emulated ones beside it.
    fn compare_all<I: Iterator<Item = Op>>(
        &self,
        test: &TieringTest<impl Fn() -> I>,
        rows: &mut Vec<Row>,
    ) -> Result<(), BenchError> {
        let mut dram = self.load(Tiering::Dram, test)?;
        let mut emulated = Vec::new();
        let mut dram_rate = 0.0;
        for (tiering, word) in EMULATED {
            let mut ours = self.load(tiering, test)?;
            let weights = (tiering == Tiering::Transparent).then_some([1, 1]);
            ours.emulate(self.far, weights)?;
            let compared = self.compare(&mut ours, &mut dram)?;
            dram_rate = compared.reference;
            let name = format!("{}_{word}_emulated", test.name);
            let row = Row::compared(&name, "ops/s", Better::Higher, &compared, Reference::Peer);
            emulated.push(finished(row, &ours, test));
        }
        let name = format!("{}_dram", test.name);
        let row = Row::new(&name, "ops/s", Better::Higher, dram_rate);
        rows.push(finished(row, &dram, test));
        rows.append(&mut emulated);
        Ok(())
    }

    fn compare(&self, ours: &mut Load<'_>, dram: &mut Load<'_>) -> Result<Comparison, BenchError> {
        let slice = self.size.slice();
        let mut probe = SystemProbe::of_this_process();
        let (ours, dram) = (|| Ok(ours.slice(slice)), || Ok(dram.slice(slice)));
        compare(&self.size.rules(), SEED, &mut probe, ours, dram)
    }

    /// A cache that has gone through what warms it up; nothing is emulated yet.
    fn load<'w, I: Iterator<Item = Op> + 'w>(
        &'w self,
        tiering: Tiering,
        test: &TieringTest<impl Fn() -> I>,
    ) -> Result<Load<'w>, BenchError> {
        let TieringTest { memory, items, .. } = *test;
        // The longest value is for all the one of the far half.
        let (max_value, items_expected) = (memory / 2 / UNIT_BYTES / 4 * UNIT_BYTES, items);
        let mut options =
            Options { memory, max_value, items_expected, seed: SEED, ..Options::default() };
        if tiering == Tiering::Data {
            let bandwidths = Some(self.bandwidths);
            options.memory = memory / 2;
            options.far = Some(FarMemory { memory: memory / 2, placement: None, bandwidths });
        }
        let mut load = Load::new(Cache::new(options)?, (test.ops)(), &self.stored);
        load.warm_up(test.warm_up);
        Ok(load)
    }
}

/// What the four caches go through.
struct TieringTest<O> {
    name: &'static str,
    /// Of all kinds, bytes.
    memory: u64,
    /// For which the index is made; 0 = it grows.
    items: u64,
    /// Operations that do not count.
    warm_up: u64,
    ops: O,
}

/// With what all rows of a test tell.
fn finished<O>(row: Row, load: &Load<'_>, test: &TieringTest<O>) -> Row {
    row.percentiles(load.batches.summary())
        .with("batch", BATCH)
        .with("hit_ratio", load.hits as f64 / load.gets as f64)
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

    #[test]
    fn all_four_are_measured_and_what_is_emulated_says_so() {
        let names = ["follower_assocs".to_owned()];
        let report = run(&names, Some(50), Size::Smoke, &mut |_| ()).unwrap();
        assert_eq!(report.kind, Kind::Emulated);
        let rows: Vec<&str> = report.results.iter().map(|row| row.name.as_str()).collect();
        let of = |test: &str| {
            ["dram", "far_emulated", "transparent_emulated", "data_emulated"]
                .map(|it| format!("{test}_{it}"))
        };
        let mut expected = vec!["emulated_chase".to_owned(), "emulated_stream".to_owned()];
        expected.extend(of("zipf99"));
        expected.push("zipf99_data_without_waits_emulated".to_owned());
        expected.extend(of("follower_assocs"));
        assert_eq!(rows, expected);
        let hit_ratios = report.results.iter().filter_map(|row| row.extra.get("hit_ratio"));
        assert!(hit_ratios.clone().count() == 9 && hit_ratios.clone().all(|it| it.is_number()));
        let [near, far] =
            ["near_latency_ns", "far_latency_ns"].map(|it| report.extra[it].as_f64().unwrap());
        assert_eq!(far, (near + 50.0).round());
    }

    #[test]
    fn a_workload_that_is_none_is_refused() {
        let error = run(&["none".to_owned()], None, Size::Smoke, &mut |_| ()).unwrap_err();
        assert_eq!(error.code(), "config");
    }
}
