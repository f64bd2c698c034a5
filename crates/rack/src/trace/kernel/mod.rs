//! Programs that make traces: real computations on real arrays that say each load and store.
//!
//! Their access patterns are those of the seed's four workloads, and the arithmetic is right,
//! which tests check; they are pattern-alike, and no results of SPEC or of any other suite may be
//! told from them. Each has threads of its own that wait for one another after each phase. Which
//! thread goes next is decided by virtual time: the one that is least far, the lowest number among
//! equals. So a trace does not depend on how many threads of the operating system compute it.
//!
//! Source: 05-racksim §1 (workloads), §2.

mod drive;
mod fdtd;
mod fft;
mod fmm;
mod lbm;
mod space;
mod stream;

pub use stream::{KernelReader, with_reader};

use super::filter::{self, Counts};
use super::{Header, Record, Unit};
use drive::Drive;
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

/// Where a program's accesses go.
pub trait Sink {
    /// `size` bytes at `addr` are loaded.
    fn load(&mut self, addr: u64, size: u16);
    /// `size` bytes at `addr` are stored to.
    fn store(&mut self, addr: u64, size: u16);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Lattice-Boltzmann, D3Q19: streaming and collision in one pass over two grids.
    Lbm,
    /// Maxwell's equations in time on Yee's grid: six fields, neighbours in three directions.
    Fdtd,
    /// The six-step transform: transpositions and transforms of rows.
    Fft,
    /// The fast multipole method in the plane: a tree far away, all pairs near.
    Fmm,
}

impl Name {
    pub const ALL: [Name; 4] = [Name::Lbm, Name::Fdtd, Name::Fft, Name::Fmm];

    pub fn name(self) -> &'static str {
        match self {
            Name::Lbm => "lbm",
            Name::Fdtd => "fdtd",
            Name::Fft => "fft",
            Name::Fmm => "fmm",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        let found = Name::ALL.into_iter().find(|name| name.name() == text);
        found.ok_or_else(|| format!("`{text}` is no kernel; there are lbm, fdtd, fft, fmm"))
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    pub name: Name,
    /// Bytes of all arrays, at most; the size is the greatest that fits.
    pub footprint_bytes: u64,
    pub threads: u32,
    /// Time steps, or repetitions; the arrays are initialised before.
    pub steps: u32,
    /// The node of the records.
    pub node: u16,
    /// The process of the records.
    pub pid: u32,
    /// The caches before the memory: a core for each thread. Without them each access is a record,
    /// and takes a cycle.
    pub caches: Option<filter::Config>,
    /// Threads of the operating system. They change nothing but the time that it takes.
    pub workers: usize,
    /// Seed of what is random: where particles are.
    pub seed: u64,
}

pub const FOOTPRINT_BYTES_MIN: u64 = 64 << 10;
pub const FOOTPRINT_BYTES_MAX: u64 = 64 << 30;
/// Most threads of a program.
const THREADS_MAX: u32 = 1024;

impl Config {
    /// A pattern with eight threads behind DRackSim's caches (05-racksim §1).
    pub fn new(name: Name, footprint_bytes: u64) -> Config {
        Config {
            name,
            footprint_bytes,
            threads: 8,
            steps: 1,
            node: 0,
            pid: 0,
            caches: Some(filter::Config::default()),
            workers: 1,
            seed: 1,
        }
    }

    /// What holds for all records of the trace.
    pub fn header(&self) -> Header {
        let hz = self.caches.unwrap_or_default().hz;
        Header { name: self.name.to_string(), unit: Unit::Cycles { hz }, injection: None }
    }

    /// Whether such a program can be.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        let (bytes, least, most) = (self.footprint_bytes, FOOTPRINT_BYTES_MIN, FOOTPRINT_BYTES_MAX);
        if !(least..=most).contains(&bytes) {
            return Err(format!("a footprint of {bytes} bytes; {least} to {most} can be"));
        }
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(format!("{} threads; 1 to {THREADS_MAX} can be", self.threads));
        }
        self.caches.as_ref().map_or(Ok(()), filter::Config::check)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes of its arrays.
    pub footprint_bytes: u64,
    pub records: u64,
    /// Cycles of its clock that passed.
    pub cycles: u64,
    /// What its caches saw; nothing without caches.
    pub counts: Counts,
    /// `emit` said that it is enough.
    pub stopped: bool,
}

/// Runs a program and gives each record to `emit`, in the order of their times in cycles, until
/// that breaks.
///
/// # Errors
/// What is wrong with the configuration.
pub fn run(
    config: &Config,
    emit: &mut dyn FnMut(Record) -> ControlFlow<()>,
) -> Result<Summary, String> {
    config.check()?;
    let mut drive = Drive::new(config, emit);
    let bytes = config.footprint_bytes;
    let (footprint_bytes, flow) = match config.name {
        Name::Lbm => {
            let mut lbm = lbm::Lbm::fitting(bytes);
            (lbm.bytes(), lbm.run(&mut drive, config.steps))
        }
        Name::Fdtd => {
            let mut fdtd = fdtd::Fdtd::fitting(bytes);
            (fdtd.bytes(), fdtd.run(&mut drive, config.steps))
        }
        Name::Fft => {
            let mut fft = fft::Fft::fitting(bytes);
            (fft.bytes(), fft.run(&mut drive, config.steps))
        }
        Name::Fmm => {
            let mut fmm = fmm::Fmm::fitting(bytes, config.seed);
            (fmm.bytes(), fmm.run(&mut drive, config.steps))
        }
    };
    let flow = flow.is_continue().then(|| drive.flush());
    let stopped = flow.is_none_or(|flow| flow.is_break());
    Ok(Summary { footprint_bytes, stopped, ..drive.summary() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(config: &Config) -> (Vec<Record>, Summary) {
        let mut records = Vec::new();
        let summary = run(config, &mut |record| {
            records.push(record);
            ControlFlow::Continue(())
        });
        (records, summary.unwrap())
    }

    #[test]
    fn a_trace_is_the_same_with_any_number_of_workers_and_sorted_and_not_empty() {
        for name in Name::ALL {
            for caches in [None, Some("l1=8K,l2=16K,l3=64K".parse().unwrap())] {
                let one = Config { caches, ..Config::new(name, 256 << 10) };
                let (records, summary) = trace(&one);
                assert!(records.len() > 2_000, "{name}: {} records", records.len());
                assert_eq!(summary.records, records.len() as u64);
                assert!(records.is_sorted_by_key(|record| record.at), "{name}");
                assert!(records.iter().any(|record| record.write), "{name}");
                assert!(records.iter().any(|record| record.tid == 7), "{name}");
                for workers in [2, 8] {
                    let (same, again) = trace(&Config { workers, ..one.clone() });
                    assert_eq!(again, summary, "{name} with {workers} workers");
                    assert!(same == records, "{name} with {workers} workers");
                }
            }
        }
    }

    #[test]
    fn the_footprint_is_nearly_what_was_asked_for_and_is_touched() {
        for name in Name::ALL {
            let config = Config { caches: None, ..Config::new(name, 4 << 20) };
            let (records, summary) = trace(&config);
            let bytes = summary.footprint_bytes;
            assert!(bytes <= 4 << 20 && bytes > 1 << 20, "{name}: {bytes} bytes");
            let mut pages: Vec<u64> = records.iter().map(|record| record.addr >> 12).collect();
            pages.sort_unstable();
            pages.dedup();
            let touched = pages.len() as u64 * 4096;
            assert!(touched >= bytes * 9 / 10, "{name}: {touched} of {bytes} bytes");
        }
    }

    #[test]
    fn a_limit_stops_a_program_at_once() {
        let mut left = 100;
        let mut emit = |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let summary = run(&Config::new(Name::Lbm, 1 << 20), &mut emit).unwrap();
        assert!(summary.stopped);
        assert_eq!((summary.records, left), (100, 0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut none = |_| ControlFlow::Continue(());
        assert!(run(&Config::new(Name::Fft, 1), &mut none).is_err());
        let config = Config { threads: 0, ..Config::new(Name::Fft, 1 << 20) };
        assert!(run(&config, &mut none).is_err());
    }
}
