//! `rackpool bench pmem`: the guide's measurements on memory of this machine, with the guide's
//! numbers beside, and the media profile that follows from them; with `--rules` the four rules in
//! the model of [`crate::optane`], where nothing is measured.
//!
//! Each row says its `origin`, `measured` or `model`. Papers' numbers are those of Optane memory;
//! on other memory a ratio to them says how it differs, and nothing of how well it was measured.

mod measure;
mod memory;
mod page;
mod rules;

pub use page::page;
pub use rules::{rule_row, run_rules};

use crate::micro::pin::allowed_cores;
use crate::optane::claims::Published;
use crate::optane::figures::{HOT_SPOTS, INTERVALS, KIB, MIXES, SHORT_SIZES, SIZES, UNITS};
use crate::optane::load::GuideAccess;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps};
use measure::{RealLoad, gbytes_per_s, halves_ns, mean_ns, tail};
use memory::MeasuredMemory;
use rackpool_core::persist::MediaProfile;
use rackpool_core::seam::Mem;
use std::time::Duration;

const MEASURED: &str = "measured";
const KINDS: [GuideAccess; 4] =
    [GuideAccess::Read, GuideAccess::Nt, GuideAccess::Clwb, GuideAccess::Store];
/// Less of the best than this is not enough.
const ENOUGH: f64 = 0.95;

#[derive(Clone, Debug, Default)]
pub struct PmemOptions {
    pub size: Size,
    /// Which memory, as a user writes it; none for anonymous memory.
    pub memory: Option<String>,
}

struct PmemRun {
    memory: MeasuredMemory,
    time: Duration,
    threads_max: usize,
    paper: Published,
    rows: Vec<Row>,
    profile: MediaProfile,
}

/// Measures, for less than a minute with [`Size::Quick`].
///
/// # Errors
/// Memory that cannot be opened or holds something.
pub fn run(
    options: &PmemOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    let memory = MeasuredMemory::open(options.memory.as_deref(), options.size.region_bytes())?;
    // Each has room for the largest access.
    let room = (memory.window.bytes() >> 22) as usize;
    let threads_max = allowed_cores()?.len().min(room);
    let (time, paper) = (options.size.slice(), Published::all());
    let profile = MediaProfile::default();
    let mut one = PmemRun { memory, time, threads_max, paper, rows: Vec::new(), profile };
    let mut steps = Steps::new(7, progress);
    type Part = fn(&mut PmemRun);
    let parts: [(&str, Part); 7] = [
        ("idle latency", PmemRun::latency),
        ("tails", PmemRun::tails),
        ("threads", PmemRun::by_threads),
        ("sizes", PmemRun::by_size),
        ("reads and writes", PmemRun::mixes),
        ("fences", PmemRun::fences),
        ("buffer", PmemRun::buffer),
    ];
    for (name, part) in parts {
        steps.begin(name);
        part(&mut one);
    }
    steps.end();
    let mut report = Report::here(Kind::Measured);
    report.extra.insert("size".into(), options.size.name().into());
    report.extra.insert("memory".into(), one.memory.what.clone().into());
    report.extra.insert("memory_bytes".into(), one.memory.window.bytes().into());
    let profile = serde_json::to_value(one.profile).expect("a profile is plain numbers");
    report.extra.insert("profile".into(), profile);
    report.results = one.rows;
    Ok(report)
}

/// The smallest place from which on one is better than the other; `None` if it never is.
fn crossover(points: &[(u64, f64, f64)]) -> Option<u64> {
    let worse = points.iter().rposition(|(_, one, other)| one <= other);
    points.get(worse.map_or(0, |index| index + 1)).map(|point| point.0)
}

/// The smallest place with almost as much as the best one.
fn enough(points: &[(u64, f64)]) -> u64 {
    let best = points.iter().map(|point| point.1).fold(0.0, f64::max);
    points.iter().find(|point| point.1 >= ENOUGH * best).map_or(1, |point| point.0)
}

impl PmemRun {
    /// Adds a number; `at` is where the guide has it: figure, series and place.
    fn add(&mut self, name: String, unit: &str, value: f64, at: Option<(&str, &str, f64)>) {
        let better = if unit == "ns" { Better::Lower } else { Better::Higher };
        let row = Row::new(&name, unit, better, value).with("origin", MEASURED);
        let paper = at.and_then(|(figure, series, x)| self.paper.get(figure, series, x));
        self.rows.push(match paper {
            Some(point) => row.against(Reference::Paper(point.value)),
            None => row,
        });
    }

    fn rate(&self, load: RealLoad, threads: usize) -> f64 {
        gbytes_per_s(&self.memory.window, load, threads, self.time)
    }

    fn latency(&mut self) {
        let read = RealLoad::new(GuideAccess::Read, 64);
        let random = |kind| RealLoad { is_random: true, ..RealLoad::new(kind, 64) };
        let loads = [
            ("read_in_order", read),
            ("read_random", random(GuideAccess::Read)),
            ("ntstore", random(GuideAccess::Nt)),
            ("store_clwb", random(GuideAccess::Clwb)),
        ];
        for (index, (name, load)) in loads.into_iter().enumerate() {
            let took = mean_ns(&self.memory.window, load, self.time);
            let at = Some(("2", "Optane", index as f64));
            self.add(format!("latency_{name}"), "ns", took, at);
        }
        let mut points = Vec::new();
        for bytes in SHORT_SIZES {
            let of = |kind| mean_ns(&self.memory.window, RealLoad::new(kind, bytes), self.time);
            let [nt, clwb] = [GuideAccess::Nt, GuideAccess::Clwb].map(of);
            for (kind, took) in [(GuideAccess::Nt, nt), (GuideAccess::Clwb, clwb)] {
                let at = Some(("12 latency", kind.name(), bytes as f64));
                self.add(format!("latency_{bytes}B_{}", kind.name()), "ns", took, at);
            }
            points.push((bytes, -nt, -clwb));
        }
        self.profile.stream_bytes_min = crossover(&points).unwrap_or(u64::MAX);
    }

    fn tails(&mut self) {
        for bytes in HOT_SPOTS {
            let times = tail(&self.memory.window, bytes, self.time);
            let value = times.quantile(0.99999) as f64;
            let at = Some(("3", "p99.999", bytes as f64));
            self.add(format!("tail_{bytes}B"), "ns", value, at);
            if let Some(row) = self.rows.last_mut() {
                *row = row.clone().percentiles(times.summary()).with("quantile", 0.99999);
            }
        }
    }

    fn by_threads(&mut self) {
        let counts: Vec<usize> =
            (0..).map(|power| 1 << power).take_while(|&count| count < self.threads_max).collect();
        let counts: Vec<usize> = counts.into_iter().chain([self.threads_max]).collect();
        for kind in KINDS {
            let mut points = Vec::new();
            for &threads in &counts {
                let rate = self.rate(RealLoad::new(kind, 256), threads);
                let series = format!("Optane-I, {}", kind.name());
                let at = Some(("4", &*series, threads as f64));
                self.add(format!("threads_{threads}_{}", kind.name()), "GB/s", rate, at);
                points.push((threads as u64, rate));
            }
            match kind {
                GuideAccess::Read => self.profile.readers_max = enough(&points) as u16,
                GuideAccess::Nt => self.profile.writers_max = enough(&points) as u16,
                _ => {}
            }
        }
    }

    fn by_size(&mut self) {
        let mut rates = Vec::new();
        for bytes in SIZES {
            for kind in KINDS {
                let load = RealLoad { is_random: true, ..RealLoad::new(kind, bytes) };
                let rate = self.rate(load, self.threads_max);
                let series = format!("Optane-I, {}", kind.name());
                let at = Some(("5", &*series, bytes as f64));
                self.add(format!("size_{bytes}B_{}", kind.name()), "GB/s", rate, at);
            }
        }
        for bytes in SHORT_SIZES {
            let of = |kind| {
                self.rate(
                    RealLoad { is_fenced: true, ..RealLoad::new(kind, bytes) },
                    self.threads_max,
                )
            };
            let [nt, clwb] = [GuideAccess::Nt, GuideAccess::Clwb].map(of);
            for (kind, rate) in [(GuideAccess::Nt, nt), (GuideAccess::Clwb, clwb)] {
                let at = Some(("12 bandwidth", kind.name(), bytes as f64));
                self.add(format!("fenced_{bytes}B_{}", kind.name()), "GB/s", rate, at);
            }
            rates.push((bytes, nt, clwb));
        }
        self.profile.stream_bandwidth_bytes_min = crossover(&rates).unwrap_or(u64::MAX);
    }

    fn mixes(&mut self) {
        for percent in MIXES {
            let kind = if percent == 100 { GuideAccess::Read } else { GuideAccess::Nt };
            let load = RealLoad { read_percent: percent, ..RealLoad::new(kind, 256) };
            let rate = self.rate(load, self.threads_max);
            let at = Some(("17", "local, 4 threads", percent as f64));
            self.add(format!("mix_{percent}_read"), "GB/s", rate, at);
        }
    }

    fn fences(&mut self) {
        let bytes_max = self.memory.window.bytes();
        for kind in [GuideAccess::Nt, GuideAccess::Clwb, GuideAccess::StoreThenClwb] {
            let mut points = Vec::new();
            for bytes in INTERVALS.into_iter().filter(|&bytes| bytes <= bytes_max) {
                let rate = self.rate(RealLoad { is_fenced: true, ..RealLoad::new(kind, bytes) }, 1);
                let at = Some(("13", kind.name(), bytes as f64));
                self.add(format!("fence_{bytes}B_{}", kind.name()), "GB/s", rate, at);
                points.push((bytes, rate));
            }
            if kind == GuideAccess::Clwb {
                self.profile.fence_bytes_min = enough(&points);
            }
        }
    }

    /// Without the device's counters a buffer shows where a half takes longer than before.
    fn buffer(&mut self) {
        let mut points = Vec::new();
        for units in UNITS {
            let took = halves_ns(&self.memory.window, units, self.time);
            self.add(format!("buffer_{units}_units"), "ns", took, None);
            points.push((units, took));
        }
        let least = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let within = points.iter().take_while(|point| point.1 * ENOUGH <= least).last();
        let is_bounded = within.is_some_and(|point| point.0 < UNITS[UNITS.len() - 1]);
        if let (Some((units, _)), true) = (within, is_bounded) {
            self.profile.combiner_bytes = (units * 256).clamp(4 * KIB, 16 * KIB);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_machine_is_measured_with_the_guides_numbers_beside() {
        let options = PmemOptions { size: Size::Smoke, memory: None };
        let mut told = Vec::new();
        let report = run(&options, &mut |progress| told.push(progress.name)).unwrap();
        assert_eq!(told.len(), 8);
        assert!(report.results.iter().all(|row| row.extra["origin"] == MEASURED));
        for row in &report.results {
            assert!(row.ours.is_finite() && row.ours > 0.0, "{row:?}");
        }
        let paper = |name: &str| {
            let row = report.results.iter().find(|row| row.name == name);
            row.unwrap_or_else(|| panic!("{name}")).paper
        };
        assert_eq!(paper("latency_read_random"), Some(305.0));
        assert_eq!(paper("size_4096B_ntstore"), Some(9.4));
        assert_eq!(paper("threads_1_read"), Some(2.9));
        let profile: MediaProfile =
            serde_json::from_value(report.extra["profile"].clone()).unwrap();
        let page = page(&report, 1.0);
        assert!(page.contains("latency_read_random") && page.contains("305"), "{}", page.len());
        assert!(profile.writers_max > 0 && profile.fence_bytes_min >= 64, "{profile:?}");
    }

    #[test]
    fn a_file_is_new_and_gone_afterwards_and_one_that_is_there_stays() {
        let folder = std::env::temp_dir().join(format!("rackpool-pmem-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("memory");
        let spec = format!("pmem:{}?size=8M&domain=none", path.display());
        drop(MeasuredMemory::open(Some(spec.as_str()), 0).unwrap());
        assert!(!path.exists());
        std::fs::write(&path, "of use").unwrap();
        assert!(MeasuredMemory::open(Some(spec.as_str()), 0).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"of use");
        std::fs::remove_dir_all(&folder).unwrap();
        let node = MeasuredMemory::open(Some("numa:999"), 1 << 20);
        assert!(node.err().is_some_and(|error| error.to_string().contains("999")));
    }

    #[test]
    fn a_profile_follows_from_curves() {
        assert_eq!(crossover(&[(64, 1.0, 2.0), (128, 3.0, 2.0), (256, 4.0, 2.0)]), Some(128));
        assert_eq!(crossover(&[(64, 1.0, 2.0)]), None);
        assert_eq!(enough(&[(1, 5.0), (2, 9.6), (4, 10.0), (8, 7.0)]), 2);
    }
}
