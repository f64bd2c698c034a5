//! The guide's figures: what is run for each, and what came out as curves.

use super::ShownPoint;
use super::claims::Published;
use super::load::{AccessOrder, GuideAccess, ThreadLoad};
use super::machine::{Length, Ran, Setting, run};
use super::memory::MemoryPlace;
use crate::run::Size;
use rackpool_rack::pmem::config::OPTANE100;
use rackpool_sim::report::Table;
use rackpool_sim::time::Ps;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;
pub const PLACES: [MemoryPlace; 3] =
    [MemoryPlace::Dram, MemoryPlace::Single, MemoryPlace::Interleaved];
pub const KINDS: [GuideAccess; 3] = [GuideAccess::Read, GuideAccess::Nt, GuideAccess::Clwb];
/// Numbers of threads of figure 4.
pub const THREADS: [usize; 10] = [1, 2, 4, 6, 8, 12, 16, 19, 22, 24];
/// Access sizes of figure 5.
pub const SIZES: [u64; 15] = [
    64,
    128,
    256,
    512,
    KIB,
    2 * KIB,
    4 * KIB,
    8 * KIB,
    16 * KIB,
    24 * KIB,
    32 * KIB,
    48 * KIB,
    64 * KIB,
    256 * KIB,
    2 * MIB,
];
/// Sizes of the hot spot of figure 3.
pub const HOT_SPOTS: [u64; 8] =
    [256, KIB, 4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 2 * MIB];
pub const UNITS: [u64; 12] = [8, 16, 32, 48, 56, 64, 72, 80, 96, 128, 256, 512];
/// Access sizes of figures 8 and 12.
pub const SHORT_SIZES: [u64; 7] = [64, 128, 256, 512, KIB, 2 * KIB, 4 * KIB];
/// Bytes between fences in figure 13; the last one is more than the caches hold.
pub const INTERVALS: [u64; 9] = [64, 256, 512, KIB, 4 * KIB, 64 * KIB, MIB, 8 * MIB, 64 * MIB];
/// Percent of reads in figure 17: reads alone, 4:1, 3:1, 2:1, 1:1, writes alone.
pub const MIXES: [u64; 6] = [100, 80, 75, 67, 50, 0];
/// Numbers of threads among which the worst ratio of remote to local memory is looked for.
const NUMA_THREADS: [usize; 5] = [1, 4, 8, 16, 24];
const SEED: u64 = 37;
/// A write to a hot spot that takes longer is an outlier.
const OUTLIER: Ps = Ps::us(10);

#[derive(Clone, Copy, Debug)]
struct RunScale {
    warm_up: Ps,
    counted: Ps,
    /// The guide has 20 million.
    hot_writes: u64,
    probe_accesses: u64,
    idle_accesses: u64,
}

impl RunScale {
    fn of(size: Size) -> RunScale {
        let (warm_us, counted_us, hot_writes, probe_accesses, idle_accesses) = match size {
            Size::Smoke => (10, 20, 60_000, 4_000, 200),
            Size::Quick => (40, 60, 200_000, 40_000, 2_000),
            Size::Full => (60, 300, 2_000_000, 120_000, 20_000),
        };
        let (warm_up, counted) = (Ps::us(warm_us), Ps::us(counted_us));
        RunScale { warm_up, counted, hot_writes, probe_accesses, idle_accesses }
    }
}

#[derive(Clone, Debug)]
pub struct FigureCurve {
    pub series: String,
    pub points: Vec<(f64, f64)>,
}

/// One part of a figure.
#[derive(Clone, Debug)]
pub struct GuideFigure {
    /// Its number in the guide, and which part.
    pub key: &'static str,
    title: &'static str,
    x: &'static str,
    pub unit: &'static str,
    pub curves: Vec<FigureCurve>,
}

impl GuideFigure {
    fn new(
        key: &'static str,
        title: &'static str,
        x: &'static str,
        unit: &'static str,
    ) -> GuideFigure {
        GuideFigure { key, title, x, unit, curves: Vec::new() }
    }

    fn add(&mut self, series: impl Into<String>, x: f64, value: f64) {
        let series = series.into();
        match self.curves.iter_mut().find(|curve| curve.series == series) {
            Some(curve) => curve.points.push((x, value)),
            None => self.curves.push(FigureCurve { series, points: vec![(x, value)] }),
        }
    }

    /// # Panics
    /// If there is no such series.
    pub fn curve(&self, series: &str) -> &[(f64, f64)] {
        let curve = self.curves.iter().find(|curve| curve.series == series);
        &curve.unwrap_or_else(|| panic!("figure {} has a series {series}", self.key)).points
    }

    /// # Panics
    /// If there is no such point.
    pub fn at(&self, series: &str, x: f64) -> f64 {
        let point = self.curve(series).iter().find(|point| point.0 == x);
        point.unwrap_or_else(|| panic!("figure {}, {series} has a point {x}", self.key)).1
    }

    pub fn peak(&self, series: &str) -> (f64, f64) {
        let points = self.curve(series).iter().copied();
        points.fold((0.0, 0.0), |best, point| if point.1 > best.1 { point } else { best })
    }

    /// The points that were published.
    pub fn shown(&self, published: &Published) -> Vec<ShownPoint> {
        let of = |series: &str, (x, ours): (f64, f64)| {
            let point = published.get(self.key, series, x)?;
            let name = format!("figure {}, {series}, {x} {}", self.key, self.x);
            let (paper, is_fitted) = (point.value, point.fitted);
            Some(ShownPoint { name, unit: self.unit, ours, paper, is_fitted })
        };
        let mut all = Vec::new();
        for curve in &self.curves {
            all.extend(curve.points.iter().filter_map(|&point| of(&curve.series, point)));
        }
        all
    }

    /// All points, with the published ones beside.
    pub fn table(&self, published: &Published) -> Table {
        let columns = [
            ("series", ""),
            (self.x, ""),
            ("ours", ""),
            ("paper", ""),
            ("ratio", ""),
            ("origin", ""),
        ];
        let title = format!("Figure {}: {}, {}", self.key, self.title, self.unit);
        let name = format!("figure_{}", self.key.replace(' ', "_"));
        let mut table = Table::new(&name, &title, &columns);
        for curve in &self.curves {
            for &(x, ours) in &curve.points {
                let paper = published.get(self.key, &curve.series, x);
                let is_fitted = paper.is_some_and(|point| point.fitted);
                table.row([
                    (&*curve.series).into(),
                    x.into(),
                    ours.into(),
                    paper.map(|point| point.value).into(),
                    paper.map(|point| ours / point.value).into(),
                    if is_fitted { "fitted" } else { "predicted" }.into(),
                ]);
            }
        }
        table
    }
}

/// Of remote and local memory, what was measured beside figure 17.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numa {
    pub read_in_order: f64,
    pub read_percent: f64,
    pub write_percent: f64,
    /// Local over remote, at worst.
    pub worst_optane: f64,
    pub worst_dram: f64,
}

/// Latencies of figure 2: standard deviation over mean, and hits of reads in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idle {
    pub variations: [f64; 4],
    pub hits: f64,
}

#[derive(Clone, Debug)]
pub struct Figures {
    pub all: Vec<GuideFigure>,
    pub idle: Idle,
    pub numa: Numa,
}

impl Figures {
    /// # Panics
    /// If there is no such figure.
    pub fn get(&self, key: &str) -> &GuideFigure {
        self.all.iter().find(|figure| figure.key == key).expect("a figure of the guide")
    }
}

/// Runs all figures. `told` hears which.
pub fn run_all(size: Size, told: &mut dyn FnMut(&str)) -> Figures {
    let lab = FigureRuns { scale: RunScale::of(size) };
    let mut all = Vec::new();
    told("figure 2");
    let (two, idle) = lab.idle();
    all.push(two);
    told("figure 3");
    all.extend(lab.tails());
    told("figure 4");
    all.push(lab.by_threads());
    told("figure 5");
    all.push(lab.by_size());
    told("figure 8");
    all.extend(lab.write_ratio());
    told("figure 9");
    all.push(lab.probe());
    told("figure 12");
    all.extend(lab.instructions());
    told("figure 13");
    all.push(lab.fences());
    told("figure 15");
    all.extend(lab.spread());
    told("figure 17");
    let (mixes, numa) = lab.numa();
    all.push(mixes);
    Figures { all, idle, numa }
}

/// Runs what figure 12 shows alone.
pub fn run_instructions(size: Size) -> Figures {
    let lab = FigureRuns { scale: RunScale::of(size) };
    let all = lab.instructions().into();
    Figures { all, idle: Idle::default(), numa: Numa::default() }
}

fn ewr(ran: &Ran) -> f64 {
    ran.counts.effective_write_ratio(&OPTANE100).unwrap_or(f64::NAN)
}

fn quantile(sorted: &[Ps], parts: u64, of: u64) -> f64 {
    let index = (sorted.len() as u64 * parts / of).min(sorted.len() as u64 - 1);
    sorted[index as usize].as_ns_f64()
}

struct FigureRuns {
    scale: RunScale,
}

impl FigureRuns {
    fn timed(&self, load: ThreadLoad, place: MemoryPlace, threads: usize, is_remote: bool) -> Ran {
        let RunScale { warm_up, counted, .. } = self.scale;
        let length = Length::Time { warm_up, counted };
        run(load, Setting { place, threads, is_remote, at_once_max: threads, length, seed: SEED })
    }

    fn local(&self, load: ThreadLoad, place: MemoryPlace, threads: usize) -> Ran {
        self.timed(load, place, threads, false)
    }

    fn one(&self, load: ThreadLoad, place: MemoryPlace, is_remote: bool, length: Length) -> Ran {
        run(load, Setting { place, threads: 1, is_remote, at_once_max: 1, length, seed: SEED })
    }

    fn counted(&self, load: ThreadLoad, place: MemoryPlace, warm_up: u64, counted: u64) -> Ran {
        let length = Length::Accesses { warm_up, counted };
        self.one(load, place, false, length)
    }

    fn alone(&self, load: ThreadLoad, place: MemoryPlace, is_remote: bool) -> Ran {
        let length = Length::Accesses { warm_up: 64, counted: self.scale.idle_accesses };
        self.one(load.alone(), place, is_remote, length)
    }

    fn idle(&self) -> (GuideFigure, Idle) {
        let read = |order| ThreadLoad::new(GuideAccess::Read, order, 64);
        let write = |kind| ThreadLoad::new(kind, AccessOrder::Random, 64).fenced().cached();
        let loads = [
            read(AccessOrder::Sequential),
            read(AccessOrder::Random),
            write(GuideAccess::Nt),
            write(GuideAccess::Clwb),
        ];
        let what = "0 read in order, 1 read at random, 2 ntstore, 3 store+clwb";
        let mut figure = GuideFigure::new("2", "idle latency", what, "ns");
        let mut idle = Idle::default();
        for (index, load) in loads.into_iter().enumerate() {
            let dram = self.alone(load, MemoryPlace::Dram, false);
            figure.add("DRAM", index as f64, dram.mean_ns());
            let optane = self.alone(load, MemoryPlace::Interleaved, false);
            figure.add("Optane", index as f64, optane.mean_ns());
            idle.variations[index] = optane.variation();
            if index == 0 {
                idle.hits = optane.counts.read_hits as f64 / optane.counts.reads as f64;
            }
        }
        (figure, idle)
    }

    fn tails(&self) -> [GuideFigure; 2] {
        let mut figure = GuideFigure::new("3", "writes of 64 B to a hot spot", "bytes", "ns");
        let mut share =
            GuideFigure::new("3 outliers", "writes that take more than 10 us", "bytes", "percent");
        for bytes in HOT_SPOTS {
            let load =
                ThreadLoad::new(GuideAccess::Nt, AccessOrder::Circular, 64).fenced().within(bytes);
            let tail = |place| {
                let mut took = self.counted(load, place, 0, self.scale.hot_writes).accesses;
                took.sort_unstable();
                took
            };
            let (optane, dram) = (tail(MemoryPlace::Single), tail(MemoryPlace::Dram));
            let parts = [
                ("median", 50_000),
                ("p99.9", 99_900),
                ("p99.99", 99_990),
                ("p99.999", 99_999),
                ("max", 100_000),
            ];
            for (name, parts) in parts {
                figure.add(name, bytes as f64, quantile(&optane, parts, 100_000));
            }
            figure.add("DRAM, max", bytes as f64, quantile(&dram, 1, 1));
            let slow = optane.iter().filter(|&&took| took > OUTLIER).count();
            share.add("Optane", bytes as f64, 100.0 * slow as f64 / optane.len() as f64);
        }
        [figure, share]
    }

    fn by_threads(&self) -> GuideFigure {
        let title = "accesses of 256 B in order by threads";
        let mut figure = GuideFigure::new("4", title, "threads", "GB/s");
        for place in PLACES {
            for kind in KINDS {
                let load = ThreadLoad::new(kind, AccessOrder::Sequential, 256);
                for threads in THREADS {
                    let rate = self.local(load, place, threads).gbytes_per_s();
                    figure.add(series(place, kind), threads as f64, rate);
                }
            }
        }
        figure
    }

    /// With the numbers of threads that suit each memory best; the guide's figure has them in its
    /// heading, the text only those of interleaved DIMMs.
    fn by_size(&self) -> GuideFigure {
        let mut figure = GuideFigure::new("5", "random accesses by size", "bytes", "GB/s");
        for (place, threads) in
            [(PLACES[0], [24, 24, 24]), (PLACES[1], [4, 1, 2]), (PLACES[2], [16, 4, 12])]
        {
            for (kind, threads) in KINDS.into_iter().zip(threads) {
                for bytes in SIZES {
                    let load = ThreadLoad::new(kind, AccessOrder::Random, bytes);
                    let rate = self.local(load, place, threads).gbytes_per_s();
                    figure.add(series(place, kind), bytes as f64, rate);
                }
            }
        }
        figure
    }

    fn write_ratio(&self) -> [GuideFigure; 2] {
        let title = "one DIMM, effective write ratio by access size";
        let mut ratio = GuideFigure::new("8 EWR", title, "bytes", "EWR");
        let mut rate = GuideFigure::new("8 bandwidth", "the same runs", "bytes", "GB/s");
        for kind in [GuideAccess::Nt, GuideAccess::Clwb, GuideAccess::Store] {
            for (order, threads, what) in [
                (AccessOrder::Random, 1, "random, 1 thread"),
                (AccessOrder::Sequential, 1, "in order, 1 thread"),
                (AccessOrder::Sequential, 8, "in order, 8 threads"),
            ] {
                for bytes in [64, 256, 4 * KIB] {
                    let ran = self.local(
                        ThreadLoad::new(kind, order, bytes),
                        MemoryPlace::Single,
                        threads,
                    );
                    let series = format!("{}, {what}", kind.name());
                    ratio.add(&*series, bytes as f64, ewr(&ran));
                    rate.add(series, bytes as f64, ran.gbytes_per_s());
                }
            }
        }
        [ratio, rate]
    }

    fn probe(&self) -> GuideFigure {
        let title = "halves of units written one after the other, one DIMM";
        let mut figure = GuideFigure::new("9", title, "units", "EWR");
        for (series, read) in [("ntstore", 0), ("ntstore, 64 units read between", 64)] {
            for units in UNITS {
                // The authors' program waits for each line.
                let order = AccessOrder::Halves { units, read };
                let load = ThreadLoad::new(GuideAccess::Nt, order, 128).fenced();
                let round = 2 * (units + read);
                // Whole rounds.
                let rounds = (self.scale.probe_accesses / round).max(4);
                let ran = self.counted(load, MemoryPlace::Single, rounds * round, rounds * round);
                figure.add(series, units as f64, ewr(&ran));
            }
        }
        figure
    }

    fn instructions(&self) -> [GuideFigure; 3] {
        let title = "six threads write in order, a fence after each access";
        let mut rate = GuideFigure::new("12 bandwidth", title, "bytes", "GB/s");
        let mut ratio = GuideFigure::new("12 EWR", "the same runs", "bytes", "EWR");
        let title = "one thread of the same, how long an access takes";
        let mut latency = GuideFigure::new("12 latency", title, "bytes", "ns");
        for bytes in SHORT_SIZES {
            for kind in [GuideAccess::Nt, GuideAccess::Clwb, GuideAccess::Store] {
                let load = ThreadLoad::new(kind, AccessOrder::Sequential, bytes).fenced();
                let ran = self.local(load, MemoryPlace::Interleaved, 6);
                rate.add(kind.name(), bytes as f64, ran.gbytes_per_s());
                ratio.add(kind.name(), bytes as f64, ewr(&ran));
            }
            for kind in [GuideAccess::Nt, GuideAccess::Clwb] {
                let load = ThreadLoad::new(kind, AccessOrder::Sequential, bytes).fenced();
                let place = MemoryPlace::Interleaved;
                let ran = self.counted(load, place, 64, self.scale.idle_accesses);
                latency.add(kind.name(), bytes as f64, ran.mean_ns());
            }
        }
        [rate, ratio, latency]
    }

    fn fences(&self) -> GuideFigure {
        let title = "one thread writes one DIMM in order, a fence after so many bytes";
        let mut figure = GuideFigure::new("13", title, "bytes", "GB/s");
        for kind in [GuideAccess::Nt, GuideAccess::Clwb, GuideAccess::StoreThenClwb] {
            for bytes in INTERVALS {
                let is_long = bytes > MIB;
                if is_long && kind != GuideAccess::StoreThenClwb {
                    continue;
                }
                let load = ThreadLoad::new(kind, AccessOrder::Sequential, bytes).fenced();
                let counted = (256 * KIB / bytes).max(1);
                let warm_up = if is_long { 0 } else { counted };
                let ran = self.counted(load, MemoryPlace::Single, warm_up, counted);
                figure.add(kind.name(), bytes as f64, ran.gbytes_per_s());
            }
        }
        figure
    }

    fn spread(&self) -> [GuideFigure; 2] {
        let title = "pieces of 4 KiB, each thread on so many of six DIMMs";
        let mut rate = GuideFigure::new("15 bandwidth", title, "DIMMs", "GB/s");
        let mut ratio = GuideFigure::new("15 EWR", "the same runs", "DIMMs", "EWR");
        for (kind, threads) in [(GuideAccess::Read, 24), (GuideAccess::Nt, 6)] {
            for each in 1..=6 {
                let load = ThreadLoad::new(kind, AccessOrder::OnDimms { each, of: 6 }, 4 * KIB);
                let ran = self.local(load, MemoryPlace::Interleaved, threads);
                rate.add(kind.name(), each as f64, ran.gbytes_per_s());
                if kind == GuideAccess::Nt {
                    ratio.add(kind.name(), each as f64, ewr(&ran));
                }
            }
        }
        [rate, ratio]
    }

    fn numa(&self) -> (GuideFigure, Numa) {
        let mut figure =
            GuideFigure::new("17", "ntstores and reads in order by mix", "percent read", "GB/s");
        let mut numa = Numa::default();
        for threads in NUMA_THREADS {
            for percent in MIXES {
                let load =
                    ThreadLoad::new(GuideAccess::Nt, AccessOrder::Sequential, 256).mixed(percent);
                let of =
                    |place, is_remote| self.timed(load, place, threads, is_remote).gbytes_per_s();
                let both = |place| [of(place, false), of(place, true)];
                let [local, remote] = both(MemoryPlace::Interleaved);
                numa.worst_optane = numa.worst_optane.max(local / remote);
                let s = if threads == 1 { "" } else { "s" };
                figure.add(format!("local, {threads} thread{s}"), percent as f64, local);
                figure.add(format!("remote, {threads} thread{s}"), percent as f64, remote);
                let [local, remote] = both(MemoryPlace::Dram);
                numa.worst_dram = numa.worst_dram.max(local / remote);
            }
        }
        let load = ThreadLoad::new(GuideAccess::Read, AccessOrder::Sequential, 64);
        let idle = |is_remote| self.alone(load, MemoryPlace::Interleaved, is_remote).mean_ns();
        numa.read_in_order = idle(true) / idle(false);
        let rate = |kind, threads, is_remote| {
            let load = ThreadLoad::new(kind, AccessOrder::Sequential, 256);
            self.timed(load, MemoryPlace::Interleaved, threads, is_remote).gbytes_per_s()
        };
        numa.read_percent =
            100.0 * rate(GuideAccess::Read, 10, true) / rate(GuideAccess::Read, 16, false);
        numa.write_percent =
            100.0 * rate(GuideAccess::Nt, 4, true) / rate(GuideAccess::Nt, 4, false);
        (figure, numa)
    }
}

pub fn series(place: MemoryPlace, kind: GuideAccess) -> String {
    format!("{}, {}", place.name(), kind.name())
}
