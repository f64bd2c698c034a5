//! What memories give together whose pages are interleaved by weights: those that `tiers weights`
//! chooses beside the best of all others, and beside HMSDK's rounded ones. Threads read one page
//! after the other, and have asked for the next ones.
//!
//! The memories are emulated (`rackpool_mem::emulation`), each with a token bucket that all threads
//! share: a machine need not have several, and its threads need not saturate them. All together
//! have half of what the threads read where nothing is waited for, so that the buckets bind, and
//! not the processors. Each memory alone beside its bandwidth shows first that they do.

use crate::interleave::compare;
use crate::micro::pin;
use crate::probe::SystemProbe;
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, Progress, Size, Steps, io_error};
use rackpool_mem::emulation::{Clock, FarBytes, FarEmulation, FarModel, SystemClock};
use rackpool_mem::window::{Pass, Window};
use rackpool_stats::sample::quantile;
use rackpool_tiers::weights::{WEIGHT_MAX_DEFAULT, Weights, rounded, solve};
use std::collections::VecDeque;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bandwidths in GB/s, which are scaled down together.
const CASES: [&[f64]; 4] = [&[300.0, 100.0], &[350.0, 60.0], &[97.0, 43.0], &[200.0, 80.0, 40.0]];
/// What the chosen weights promise of the best others.
const LIMIT: f64 = 0.97;
const SEED: u64 = 35;
/// What the kernel gives to a node for each unit of its weight.
const PAGE_BYTES: u64 = 4096;
/// Pages that a thread has asked for: more than the longest turn has.
const AHEAD: u64 = 64;
const LATENCY_NS: u32 = 250;
/// Bandwidth of all memories, of what the threads read where nothing is waited for.
const LOAD: f64 = 0.5;
const THREADS_MAX: usize = 8;
const LAPS: usize = 5;
/// Slices of a comparison for one of the many weights that are tried once.
const TRIES_PER_SLICE: u32 = 10;
/// For three memories, instead of all up to 16.
const SOME: [u32; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16];

/// Adds the rows.
pub(super) fn add(
    report: &mut Report,
    size: Size,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), BenchError> {
    let mut steps = Steps::new(CASES.len() + 1, progress);
    steps.begin("what threads read");
    let readers = Readers::new(size)?;
    let free = readers.median(&[u64::MAX], &[1])?;
    for gbps in CASES {
        let name = gbps.iter().map(|gbps| format!("_{gbps}")).collect::<String>();
        let name = format!("weights{name}");
        steps.begin(&name);
        let rows = Case { readers: &readers, gbps, free }.rows(&name)?;
        report.results.extend(rows);
    }
    steps.end();
    Ok(())
}

/// Threads, and what they read.
struct Readers {
    size: Size,
    cores: Vec<usize>,
    window: Window,
    /// Of a thread.
    pages: u64,
}

impl Readers {
    fn new(size: Size) -> Result<Readers, BenchError> {
        let mut cores = pin::allowed_cores()?;
        cores.truncate(THREADS_MAX);
        // Far more pages than the emulation keeps here, of each memory.
        let pages = if size == Size::Smoke { 1 << 11 } else { 1 << 14 };
        let bytes = cores.len() as u64 * pages * PAGE_BYTES;
        let window = Window::private(bytes).map_err(io_error("memory to read"))?;
        // All of it has memory.
        window.pass(0, bytes, Pass::Store4);
        Ok(Readers { size, cores, window, pages })
    }

    fn median(&self, bandwidths: &[u64], weights: &[u32]) -> Result<f64, BenchError> {
        let lap = |_| self.rate(bandwidths, weights, self.size.slice());
        let laps = (0..LAPS).map(lap).collect::<Result<Vec<f64>, BenchError>>()?;
        Ok(quantile(&laps, 0.5))
    }

    /// Bytes a second of all threads, from memories of these bandwidths.
    fn rate(
        &self,
        bandwidths: &[u64],
        weights: &[u32],
        least: Duration,
    ) -> Result<f64, BenchError> {
        let clock = SystemClock::new();
        let memory = |bandwidth: &u64| {
            let model = FarModel { latency_ns: LATENCY_NS, bandwidth: *bandwidth };
            Mutex::new(FarEmulation::new(model, FarBytes::From(0), Box::new(clock)))
        };
        let memories: Vec<_> = bandwidths.iter().map(memory).collect();
        let turn = weights
            .iter()
            .enumerate()
            .flat_map(|(memory, weight)| std::iter::repeat_n(&memories[memory], *weight as usize));
        let interleaved = Interleaved { turn: turn.collect(), clock, readers: self };
        let start = Barrier::new(self.cores.len());
        let rates = std::thread::scope(|scope| {
            let reader = |(nth, core): (usize, &usize)| {
                let (interleaved, start, core) = (&interleaved, &start, *core);
                scope.spawn(move || {
                    let pinned = pin::pin_to(core);
                    start.wait();
                    pinned?;
                    Ok::<f64, BenchError>(interleaved.read(nth as u64, least))
                })
            };
            let threads: Vec<_> = self.cores.iter().enumerate().map(reader).collect();
            let threads = threads.into_iter();
            let rates = threads.map(|thread| thread.join().expect("a thread that reads"));
            rates.collect::<Result<Vec<f64>, BenchError>>()
        })?;
        Ok(rates.iter().sum())
    }
}

/// Pages that lie in one memory after the other.
struct Interleaved<'a> {
    /// Where each page of a turn lies.
    turn: Vec<&'a Mutex<FarEmulation>>,
    clock: SystemClock,
    readers: &'a Readers,
}

impl Interleaved<'_> {
    /// One thread's pages, again and again; bytes a second, from when as many as it has asked for
    /// ahead were read.
    fn read(&self, thread: u64, least: Duration) -> f64 {
        let Readers { window, pages, .. } = self.readers;
        let at = |page: u64| thread * pages + page % pages;
        let ask = |page: u64| {
            let page = at(page);
            let memory = self.turn[(page % self.turn.len() as u64) as usize];
            let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
            memory.ask(page * PAGE_BYTES, PAGE_BYTES)
        };
        let mut coming: VecDeque<u64> = (0..AHEAD).map(ask).collect();
        let mut start = Instant::now();
        for page in 0.. {
            let here_at = coming.pop_front().expect("pages are asked for ahead");
            coming.push_back(ask(page + AHEAD));
            self.clock.wait_until(here_at);
            window.pass(at(page) * PAGE_BYTES, PAGE_BYTES, Pass::Load4);
            if page == AHEAD {
                start = Instant::now();
            } else if page > AHEAD && start.elapsed() >= least {
                let read = (page - AHEAD) * PAGE_BYTES;
                return read as f64 / start.elapsed().as_secs_f64();
            }
        }
        unreachable!("pages have no end")
    }
}

/// Memories with such bandwidths.
struct Case<'a> {
    readers: &'a Readers,
    gbps: &'a [f64],
    /// Bytes a second that the threads read where nothing is waited for.
    free: f64,
}

impl Case<'_> {
    fn rows(&self, name: &str) -> Result<[Row; 2], BenchError> {
        let Case { readers, gbps, free } = self;
        let sum: f64 = gbps.iter().sum();
        let scaled = |gbps: &f64| (gbps / sum * LOAD * free) as u64;
        let bandwidths: Vec<u64> = gbps.iter().map(scaled).collect();
        let mut alone = Vec::new();
        for bandwidth in &bandwidths {
            alone.push(readers.median(&[*bandwidth], &[1])?);
        }
        let name_alone = format!("{name}_alone_emulated");
        let raw = bandwidths.iter().sum::<u64>() as f64;
        let row = Row::new(&name_alone, "B/s", Better::Higher, alone.iter().sum())
            .against(Reference::Raw(raw))
            .with("kind", Kind::Emulated.name())
            .with("threads", readers.cores.len());
        Ok([row, self.compared(name, &bandwidths)?])
    }

    fn compared(&self, name: &str, bandwidths: &[u64]) -> Result<Row, BenchError> {
        let mbps: Vec<f64> = self.gbps.iter().map(|gbps| gbps * 1000.0).collect();
        let chosen = solve(&mbps, WEIGHT_MAX_DEFAULT).expect("bandwidths above 0").weights;
        let (best, tried) = self.best_other(bandwidths, &chosen)?;
        let Readers { size, .. } = self.readers;
        let beside_chosen = |others: &[u32], are_ours: bool| {
            let rate = |weights: &[u32]| self.readers.rate(bandwidths, weights, size.slice());
            let (ours, theirs) =
                if are_ours { (&chosen[..], others) } else { (others, &chosen[..]) };
            let mut probe = SystemProbe::of_this_process();
            compare(&size.rules(), SEED, &mut probe, || rate(ours), || rate(theirs))
        };
        let compared = beside_chosen(&best, true)?;
        let name = format!("{name}_emulated");
        let row = Row::compared(&name, "B/s", Better::Higher, &compared, Reference::Peer)
            .with("limit", LIMIT)
            .with("kind", Kind::Emulated.name())
            .with("threads", self.readers.cores.len())
            .with("weights", text(&chosen))
            .with("best_other", text(&best))
            .with("tried", tried);
        match rounded(&mbps).expect("bandwidths above 0") {
            Some(Weights { weights, .. }) if weights != chosen => {
                let ratio = beside_chosen(&weights, false)?.ratio;
                Ok(row.with("rounded", text(&weights)).with("rounded_ratio", ratio))
            }
            _ => Ok(row),
        }
    }

    /// Of all weights but the chosen ones, by one look at each; how many there are.
    fn best_other(
        &self,
        bandwidths: &[u64],
        chosen: &[u32],
    ) -> Result<(Vec<u32>, usize), BenchError> {
        let least = self.readers.size.slice() / TRIES_PER_SLICE;
        let mut best = (0.0, Vec::new());
        let mut others = all_weights(bandwidths.len(), self.readers.size);
        others.retain(|weights| weights != chosen);
        for weights in &others {
            let rate = self.readers.rate(bandwidths, weights, least)?;
            if rate > best.0 {
                best = (rate, weights.clone());
            }
        }
        Ok((best.1, others.len()))
    }
}

/// All of two memories, some of three; few in a smoke test.
fn all_weights(memories: usize, size: Size) -> Vec<Vec<u32>> {
    let all: Vec<u32> = (1..=WEIGHT_MAX_DEFAULT).collect();
    let each = match (size, memories) {
        (Size::Smoke, _) => &all[..3],
        (_, 2) => &all[..],
        _ => &SOME[..],
    };
    (0..memories).fold(vec![Vec::new()], |found, _| {
        let longer = |weights: &Vec<u32>| {
            let weights = weights.clone();
            each.iter().map(move |weight| [&weights[..], &[*weight]].concat())
        };
        found.iter().flat_map(longer).collect()
    })
}

/// Such as 3:1.
fn text(weights: &[u32]) -> String {
    weights.iter().map(u32::to_string).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_weights_are_tried_once() {
        let pairs = all_weights(2, Size::Full);
        let longest = pairs.iter().map(|pair| pair.iter().sum::<u32>()).max();
        assert_eq!((pairs.len(), longest), (256, Some(32)));
        let mut triples = all_weights(3, Size::Full);
        triples.sort_unstable();
        triples.dedup();
        assert_eq!(triples.len(), 1000);
        // A turn of them is shorter than what a thread has asked for.
        assert!(u64::from(3 * WEIGHT_MAX_DEFAULT) < AHEAD);
    }
}
