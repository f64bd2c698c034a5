//! What came out against what the guide says, claim by claim, as `optane/claims.toml` asks.

use super::claims::{GuideClaims, Judged};
use super::figures::{
    Figures, GuideFigure, KIB, KINDS, MIB, MIXES, SHORT_SIZES, SIZES, UNITS, series,
};
use super::load::GuideAccess;
use super::memory::MemoryPlace;

/// What a number may differ from the guide's, in parts of it.
const OFF_MAX: f64 = 0.1;
/// Less of a peak than this is a fall.
const FALL: f64 = 0.95;

struct GuideJudge<'a> {
    claims: &'a GuideClaims,
    figures: &'a Figures,
    judged: Vec<Judged>,
}

pub fn judge(claims: &GuideClaims, figures: &Figures) -> Vec<Judged> {
    let mut judge = GuideJudge { claims, figures, judged: Vec::new() };
    judge.latency();
    judge.tails();
    judge.threads();
    judge.sizes();
    judge.write_ratio();
    judge.probe();
    judge.instructions();
    judge.fences();
    judge.spread();
    judge.numa();
    judge.judged
}

fn joined(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().collect::<Vec<_>>().join(", ")
}

fn points(points: &[(f64, f64)]) -> String {
    joined(points.iter().map(|(x, value)| format!("{x}: {value:.2}")))
}

/// The least part of what fewer threads gave that a larger number of them gives.
fn least_of_before(points: &[(f64, f64)]) -> f64 {
    let (mut peak, mut least) = (0.0_f64, 1.0_f64);
    for &(_, value) in points {
        peak = peak.max(value);
        least = least.min(value / peak);
    }
    least
}

fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let count = pairs.len() as f64;
    let (x, y) = pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    let (x, y) = (x / count, y / count);
    let sum = |of: &dyn Fn(f64, f64) -> f64| -> f64 {
        pairs.iter().map(|pair| of(pair.0 - x, pair.1 - y)).sum()
    };
    sum(&|x, y| x * y) / (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt()
}

/// The smallest size from which on one is better than the other.
fn crossover(is_better: &dyn Fn(u64) -> bool) -> Option<u64> {
    let worse = SHORT_SIZES.iter().rposition(|&bytes| !is_better(bytes));
    SHORT_SIZES.get(worse.map_or(0, |index| index + 1)).copied()
}

/// From which size on ntstore has more bandwidth than store and clwb.
pub fn bandwidth_crossover(figures: &Figures) -> Option<u64> {
    let rate =
        |kind: GuideAccess, bytes: u64| figures.get("12 bandwidth").at(kind.name(), bytes as f64);
    crossover(&|bytes| rate(GuideAccess::Nt, bytes) > rate(GuideAccess::Clwb, bytes))
}

/// From which size on it takes less time.
pub fn latency_crossover(figures: &Figures) -> Option<u64> {
    let took =
        |kind: GuideAccess, bytes: u64| figures.get("12 latency").at(kind.name(), bytes as f64);
    crossover(&|bytes| took(GuideAccess::Nt, bytes) < took(GuideAccess::Clwb, bytes))
}

impl GuideJudge<'_> {
    fn figure(&self, key: &str) -> &GuideFigure {
        self.figures.get(key)
    }

    fn push(&mut self, name: &str, ours: f64, holds: bool, because: String) {
        let claim = self.claims.get(name).clone();
        self.judged.push(Judged { claim, case: "optane100".into(), ours, holds, because });
    }

    /// A number within a tenth of the guide's.
    fn near(&mut self, name: &str, ours: f64, because: String) {
        let value = self.claims.get(name).value.expect("the guide has a number");
        let holds = (ours / value - 1.0).abs() <= OFF_MAX;
        self.push(name, ours, holds, because);
    }

    fn latency(&mut self) {
        let (idle, two) = (self.figures.idle, self.figure("2"));
        let [nt, clwb] = [2.0, 3.0].map(|x| two.at("Optane", x));
        let said = format!("{nt:.1} and {clwb:.1} ns");
        let hits = format!("{:.3} of reads in order hit", idle.hits);
        self.near("figure_2_sequential_hits", idle.hits, hits);
        self.push("figure_2_nt_over_clwb", nt / clwb, nt > clwb, said);
        let [first, others @ ..] = idle.variations;
        let most = others.into_iter().fold(0.0, f64::max);
        let said = format!("{first:.3} in order, {most:.3} the largest of the others");
        self.push("figure_2_sequential_varies", first, first > most, said);
    }

    fn tails(&mut self) {
        let three = self.figure("3").clone();
        let share = self.figure("3 outliers").curve("Optane").to_vec();
        let falls = share.windows(2).all(|pair| pair[1].1 <= pair[0].1);
        let last = share[share.len() - 1].1;
        let said = format!("percent: {}", joined(share.iter().map(|p| format!("{:.4}", p.1))));
        self.push("figure_3_outliers_fall", share[0].1, falls && last == 0.0, said);
        let (max, median) = (three.curve("max")[0].1, three.curve("median")[0].1);
        let said = format!("{max:.0} ns over {median:.0} ns");
        self.push("figure_3_two_orders", max / median, max / median >= 100.0, said);
        let dram = three.peak("DRAM, max").1;
        let said = format!("at most {dram:.0} ns");
        self.push("figure_3_dram_has_none", dram / 1e3, dram < 1e3, said);
    }

    fn threads(&mut self) {
        let four = self.figure("4").clone();
        let (mut holds, mut said, mut last) = (true, Vec::new(), 0.0);
        for kind in KINDS {
            let series = series(MemoryPlace::Single, kind);
            let (peak, many) = (four.peak(&series), four.at(&series, 24.0));
            holds &= peak.0 <= 4.0 && many < 0.9 * peak.1;
            last = peak.0;
            said.push(format!("{}: {:.2} at {}, {many:.2} at 24", kind.name(), peak.1, peak.0));
        }
        self.push("figure_4_ni_peak", last, holds, joined(said));
        let least = |place, kind| least_of_before(four.curve(&series(place, kind)));
        let (read, nt) = (
            least(MemoryPlace::Interleaved, GuideAccess::Read),
            least(MemoryPlace::Interleaved, GuideAccess::Nt),
        );
        let said = format!("least part of a smaller number's: read {read:.2}, ntstore {nt:.2}");
        self.push("figure_4_interleaved_reads", read, read >= FALL && nt < FALL, said);
        let clwb = series(MemoryPlace::Interleaved, GuideAccess::Clwb);
        let (peak, at) = (four.peak(&clwb), |threads| four.at(&clwb, threads));
        let [twelve, many] = [at(12.0) / peak.1, at(24.0) / peak.1];
        let kept = four.curve(&clwb).iter().rev().find(|point| point.1 >= FALL * peak.1);
        let kept = kept.map_or(0.0, |point| point.0);
        let said = format!("{twelve:.2} of the peak at 12, {many:.2} at 24");
        self.push("figure_4_interleaved_clwb", kept, twelve >= FALL && many < FALL, said);
        let dram = KINDS.map(|kind| least(MemoryPlace::Dram, kind));
        let worst = dram.into_iter().fold(1.0, f64::min);
        let said = joined(dram.iter().map(|least| format!("{least:.2}")));
        self.push("figure_4_dram_scales", worst, worst >= FALL, said);
    }

    fn sizes(&mut self) {
        let five = self.figure("5").clone();
        let peak = |place, kind| five.peak(&series(place, kind)).1;
        for (name, kind) in
            [("figure_5_read_gain", GuideAccess::Read), ("figure_5_write_gain", GuideAccess::Nt)]
        {
            let [six, one] =
                [MemoryPlace::Interleaved, MemoryPlace::Single].map(|place| peak(place, kind));
            self.near(name, six / one, format!("{six:.2} over {one:.2} GB/s"));
        }
        let at = |place, kind, bytes: u64| five.at(&series(place, kind), bytes as f64);
        let bends = |kind| {
            let step = |from: u64| {
                at(MemoryPlace::Single, kind, 2 * from) / at(MemoryPlace::Single, kind, from)
            };
            (step(64) >= 1.5 && step(128) >= 1.5 && step(256) <= 1.2, [64, 128, 256].map(step))
        };
        let [reads, writes] = [bends(GuideAccess::Read), bends(GuideAccess::Nt)];
        let said = format!("times by doubling from 64 B: {:.2?} and {:.2?}", reads.1, writes.1);
        self.push("figure_5_small_accesses", 256.0, reads.0 && writes.0, said);
        let nt = |bytes| at(MemoryPlace::Interleaved, GuideAccess::Nt, bytes);
        let from_unit = SIZES.into_iter().filter(|&bytes| bytes >= 256);
        let lowest = from_unit.min_by(|a, b| nt(*a).total_cmp(&nt(*b))).unwrap_or(0);
        let read = |bytes| at(MemoryPlace::Interleaved, GuideAccess::Read, bytes);
        let holds = lowest == 4 * KIB && read(4 * KIB) < read(256);
        let said = format!(
            "ntstore {}; read {:.1} at 256 B, {:.1} at 4 KiB",
            points(five.curve(&series(MemoryPlace::Interleaved, GuideAccess::Nt))),
            read(256),
            read(4 * KIB)
        );
        self.push("figure_5_dip", lowest as f64, holds, said);
        let [a, b, c, d, e] = [16, 24, 32, 48, 64].map(|kib| nt(kib * KIB));
        let holds = b > a && b > c && d > c && d > e;
        let said = format!("16, 24, 32, 48, 64 KiB: {a:.2}, {b:.2}, {c:.2}, {d:.2}, {e:.2}");
        self.push("figure_5_stripes", b, holds, said);
        let least = [GuideAccess::Read, GuideAccess::Nt].map(|kind| {
            let curve = five.curve(&series(MemoryPlace::Dram, kind));
            curve.iter().map(|point| point.1 / peak(MemoryPlace::Dram, kind)).fold(1.0, f64::min)
        });
        let worst = least[0].min(least[1]);
        let said = format!("least of the peak: {:.2} and {:.2}", least[0], least[1]);
        self.push("figure_5_dram_is_flat", worst, worst >= 0.8, said);
    }

    fn write_ratio(&mut self) {
        let (ratio, rate) = (self.figure("8 EWR").clone(), self.figure("8 bandwidth").clone());
        let nt = |what: &str| format!("{}, {what}", GuideAccess::Nt.name());
        let random = nt("random, 1 thread");
        let rates = |series: &str| format!("GB/s by bytes: {}", points(rate.curve(series)));
        self.near("figure_8_ewr_64", ratio.at(&random, 64.0), rates(&random));
        self.near("figure_8_ewr_256", ratio.at(&random, 256.0), rates(&random));
        let pairs: Vec<(f64, f64)> = ratio
            .curves
            .iter()
            .flat_map(|curve| curve.points.iter().map(|&(x, y)| (y, rate.at(&curve.series, x))))
            .collect();
        let all = correlation(&pairs);
        let said = format!("of {} runs", pairs.len());
        self.push("figure_8_bandwidth_follows", all, all >= 0.8, said);
        let [one, eight] = ["in order, 1 thread", "in order, 8 threads"].map(nt);
        self.near("figure_8_one_thread", ratio.at(&one, 256.0), rates(&one));
        self.near("figure_8_eight_threads", ratio.at(&eight, 256.0), rates(&eight));
        let [of_one, of_eight] = [&one, &eight].map(|series| rate.at(series, 256.0));
        let said = format!("{of_eight:.2} of {of_one:.2} GB/s");
        self.near("figure_8_eight_threads_bandwidth", 100.0 * of_eight / of_one, said);
    }

    fn probe(&mut self) {
        let nine = self.figure("9").clone();
        let within = UNITS.into_iter().filter(|&units| units <= 64);
        let far = |ratio: f64| (ratio - 1.0).abs();
        let ratios = within.map(|units| nine.at("ntstore", units as f64));
        let worst = ratios.fold(1.0, |a: f64, b| if far(b) > far(a) { b } else { a });
        let said = points(nine.curve("ntstore"));
        self.near("figure_9_within_buffer", worst, said.clone());
        self.near("figure_9_beyond_buffer", nine.at("ntstore", 512.0), said);
        let [alone, reads] =
            ["ntstore", "ntstore, 64 units read between"].map(|series| nine.at(series, 64.0));
        let said = format!("{alone:.2} without, {reads:.2} with reads");
        self.push("figure_9_reads_compete", reads, reads <= alone - 0.1, said);
    }

    fn instructions(&mut self) {
        let rate = self.figure("12 bandwidth").clone();
        let latency = self.figure("12 latency").clone();
        let ratio = self.figure("12 EWR").clone();
        let at = |figure: &GuideFigure, kind: GuideAccess, bytes: u64| {
            figure.at(kind.name(), bytes as f64)
        };
        let said = |figure: &GuideFigure| {
            let of = |kind: GuideAccess| {
                format!("{} {}", kind.name(), points(figure.curve(kind.name())))
            };
            format!("{}; {}", of(GuideAccess::Nt), of(GuideAccess::Clwb))
        };
        let found = bandwidth_crossover(self.figures);
        let holds = matches!(found, Some(256 | 512));
        // 0: ntstore never is.
        let ours = |found: Option<u64>| found.map_or(0.0, |bytes| bytes as f64);
        self.push("figure_12_bandwidth_crossover", ours(found), holds, said(&rate));
        let found = latency_crossover(self.figures);
        self.push("figure_12_latency_crossover", ours(found), found == Some(512), said(&latency));
        let gains = SHORT_SIZES.into_iter().filter(|&bytes| bytes >= 128).map(|bytes| {
            at(&rate, GuideAccess::Clwb, bytes) / at(&rate, GuideAccess::Store, bytes)
        });
        let least = gains.fold(f64::INFINITY, f64::min);
        let text = points(rate.curve(GuideAccess::Store.name()));
        self.push("figure_12_flush_helps", least, least > 1.0, format!("store {text}"));
        for (name, kind) in
            [("figure_12_ewr_store", GuideAccess::Store), ("figure_12_ewr_clwb", GuideAccess::Clwb)]
        {
            self.near(name, at(&ratio, kind, 256), points(ratio.curve(kind.name())));
        }
    }

    fn fences(&mut self) {
        let figure = self.figure("13").clone();
        for (name, kind, high, low) in [
            ("figure_13_peak", GuideAccess::Clwb, 256, 64),
            ("figure_13_late_flush", GuideAccess::StoreThenClwb, MIB, 64 * MIB),
        ] {
            let peak = figure.peak(kind.name()).1;
            let [high, low] = [high, low].map(|x| figure.at(kind.name(), x as f64) / peak);
            let said = points(figure.curve(kind.name()));
            self.push(name, high, high >= 0.9 && low < 0.9, said);
        }
    }

    fn spread(&mut self) {
        let (rate, ratio) = (self.figure("15 bandwidth").clone(), self.figure("15 EWR").clone());
        for (name, kind) in [
            ("figure_15_reads_fall", GuideAccess::Read),
            ("figure_15_writes_fall", GuideAccess::Nt),
        ] {
            let [one, six] = [1.0, 6.0].map(|each| rate.at(kind.name(), each));
            let said = points(rate.curve(kind.name()));
            self.push(name, six / one, six < one, said);
        }
        let ratios = ratio.curve(GuideAccess::Nt.name());
        let least = ratios.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let said = points(ratios);
        self.near("figure_15_ewr", least, said);
    }

    fn numa(&mut self) {
        let (numa, figure) = (self.figures.numa, self.figure("17").clone());
        let none = String::new;
        self.near("numa_read_sequential", numa.read_in_order, none());
        self.near("numa_read_bandwidth", numa.read_percent, none());
        self.near("numa_write_bandwidth", numa.write_percent, none());
        let worst = numa.worst_optane;
        self.push("numa_worst_optane", worst, worst >= 30.0, none());
        self.near("numa_worst_dram", numa.worst_dram, none());
        let at = |series: &str, percent: u64| figure.at(series, percent as f64);
        let grows = MIXES.map(|mix| at("local, 4 threads", mix) / at("local, 1 thread", mix));
        let least = grows.into_iter().fold(f64::INFINITY, f64::min);
        let said = format!("by mix: {grows:.2?}");
        self.push("figure_17_local_grows", least, least > 1.0, said);
        let one = MIXES.map(|mix| at("local, 1 thread", mix) / at("remote, 1 thread", mix));
        let four = MIXES.map(|mix| at("local, 4 threads", mix) / at("remote, 4 threads", mix));
        let said = format!("1 thread {one:.2?}, 4 threads {four:.2?}");
        let mixed = 1..MIXES.len() - 1;
        let holds = mixed.clone().all(|index| one[index] < four[index]);
        let most = one[mixed.clone()].iter().copied().fold(0.0, f64::max);
        self.push("figure_17_one_thread", most, holds, said.clone());
        let pure = four[0].max(four[MIXES.len() - 1]);
        let least = four[mixed].iter().copied().fold(f64::INFINITY, f64::min);
        self.push("figure_17_mixes", least, least > pure, said);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn falls_crossovers_and_correlations_are_found() {
        assert_eq!(least_of_before(&[(1.0, 1.0), (2.0, 4.0), (4.0, 3.0), (8.0, 5.0)]), 0.75);
        assert_eq!(crossover(&|bytes| bytes >= 512), Some(512));
        assert_eq!(crossover(&|bytes| bytes == 256 || bytes >= KIB), Some(KIB));
        assert_eq!((crossover(&|_| true), crossover(&|_| false)), (Some(64), None));
        let line: Vec<(f64, f64)> = (0..9).map(|x| (f64::from(x), 3.0 - f64::from(x))).collect();
        assert!((correlation(&line) + 1.0).abs() < 1e-9);
    }
}
