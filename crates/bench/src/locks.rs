//! `bench locks`: what a lock costs, and what the write buffer and the page cache under locks of
//! ranges save.
//!
//! Locks are taken and given back beside one round trip of the same kind: a question to the own
//! rack's daemon through the ring, a one-sided read of another rack. Writes and reads of another
//! rack under a lock, the lock's own messages included, run beside the same without buffer and
//! cache, slice by slice in turn. Contended locks are taken by processes of their own, which the
//! caller's command starts; each adds to a counter under the lock, and no addition may be missing.
//! Source: Rcmp §5.4, §6.5 (fig. 21: up to 1.6 times, nothing above 256 bytes).

use crate::crew::{Crew, end_with, next_order, say};
use crate::interleave::compare;
use crate::micro::pin;
use crate::report::{Better, Reference, Report, Row};
use crate::run::{
    BenchError, PoolSource, Progress, Size, Steps, Testbed, io_error, kind_of_path, slice_ns,
};
use crate::ycsb_run::{YcsbCommand, YcsbMeasurement, YcsbReply};
use rackpool::{FabricChoice, Handle, LockMode, LockOptions, Placement, Pool};
use rackpool_core::{GAddr, RackId};
use rackpool_stats::histogram::Histogram;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::process::Command;
use std::time::{Duration, Instant};

/// What `bench locks` measures on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    /// The pool. Numbers taken with servers in processes of their own are the honest ones.
    pub source: PoolSource,
    /// How the other rack is reached: buffer and cache work over `Tcp` only.
    pub fabric: FabricChoice,
}

/// The rack of the locks and their data; the client that measures is in rack 0.
const HOME: RackId = RackId(1);
const ACCESSES: u64 = 64;
/// Sizes of accesses, bytes. Source: Rcmp fig. 21.
const SIZES: [usize; 5] = [64, 128, 256, 512, 1024];
/// The longest range that is locked.
const RANGE_BYTES: u64 = ACCESSES * SIZES[SIZES.len() - 1] as u64;
const RACK_BYTES: u64 = 64 << 20;
/// Processes that want the same lock, and where they are. A near one asks again sooner, so only
/// those of one rack show whether the order of asking is kept.
const CONTENDERS: [(&str, u32, &[u16]); 4] = [
    ("lock_contended_2_own_rack", 2, &[1]),
    ("lock_contended_4_own_rack", 4, &[1]),
    ("lock_contended_4_other_rack", 4, &[0]),
    ("lock_contended_4_both_racks", 4, &[0, 1]),
];
/// Names the random choices; any other would do.
const SEED: u64 = 17;

/// Measures. `command` makes the command line of client process number n: a program that calls
/// [`worker`] with its standard input and output.
///
/// # Errors
/// [`BenchError`]; nothing stays allocated then, unless the pool itself is gone.
pub fn run(
    options: &Options,
    command: &mut dyn FnMut(u32) -> Command,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, BenchError> {
    if options.fabric != FabricChoice::Tcp {
        let reason = "mapped racks are neither buffered nor cached: tcp".into();
        return Err(BenchError::Option { option: "fabric", reason });
    }
    let testbed = Testbed::open(&options.source, 2, RACK_BYTES)?;
    let cores = pin::allowed_cores()?;
    let mut run = LockBench::open(options, testbed)?;
    let mut steps = Steps::new(2 + SIZES.len() + 3 + 2 + CONTENDERS.len(), progress);
    let measured = run.measure(command, &mut steps, &cores);
    pin::pin_to_any(&cores)?;
    let freed = run.with.free(run.addr, RANGE_BYTES);
    let results = measured?;
    freed?;
    steps.end();
    let mut report = run.testbed.report(options.size, kind_of_path(&mut run.with, run.probe)?);
    run.with.free(run.probe, 64)?;
    report.extra.insert("fabric".into(), "tcp".into());
    report.extra.insert("accesses_a_lock".into(), ACCESSES.into());
    report.results = results;
    Ok(report)
}

struct LockBench {
    size: Size,
    testbed: Testbed,
    /// A handle with buffer and cache, and one without.
    with: Handle,
    without: Handle,
    addr: GAddr,
    /// A line beside the data.
    probe: GAddr,
}

/// What is done under a lock.
#[derive(Debug, Clone, Copy)]
enum CriticalSection {
    Write { bytes: usize, count: u64 },
    Read { bytes: usize },
}

impl CriticalSection {
    fn name(self) -> String {
        match self {
            CriticalSection::Write { bytes, count: ACCESSES } => {
                format!("remote_write_{bytes}B_locked_buffered")
            }
            CriticalSection::Write { bytes, count } => {
                format!("remote_write_{bytes}B_locked_buffered_{count}_a_lock")
            }
            CriticalSection::Read { bytes } => format!("remote_read_{bytes}B_locked_cached"),
        }
    }

    fn count(self) -> u64 {
        match self {
            CriticalSection::Write { count, .. } => count,
            CriticalSection::Read { .. } => ACCESSES,
        }
    }

    /// Takes the lock, works, gives it back.
    fn run(self, handle: &mut Handle, addr: GAddr, buffer: &mut [u8]) -> Result<(), BenchError> {
        let (CriticalSection::Write { bytes, .. } | CriticalSection::Read { bytes }) = self;
        // All places once, but not in a row: what lies side by side is not asked for so.
        let place = |index: u64| GAddr(addr.0 + (index * 37 % ACCESSES) * bytes as u64);
        let range_bytes = ACCESSES * bytes as u64;
        match self {
            CriticalSection::Write { count, .. } => {
                let guard = handle.lock(addr, LockMode::Write, LockOptions::range(range_bytes))?;
                for index in 0..count {
                    handle.write(place(index), &buffer[..bytes])?;
                }
                Ok(handle.unlock(guard)?)
            }
            CriticalSection::Read { .. } => {
                let guard = handle.lock(addr, LockMode::Read, LockOptions::range(range_bytes))?;
                for index in 0..ACCESSES {
                    handle.read(place(index), &mut buffer[..bytes])?;
                }
                Ok(handle.unlock(guard)?)
            }
        }
    }
}

impl LockBench {
    fn open(options: &Options, testbed: Testbed) -> Result<Self, BenchError> {
        let mut with = testbed.pool(0, options.fabric)?.handle()?;
        let plain = rackpool::Options::new(testbed.master(), 0).fabric(options.fabric);
        let without = Pool::open(plain.write_buffer_bytes(0).page_cache_blocks(0))?.handle()?;
        let placement = Placement::Rack(HOME);
        let addr = with.alloc(RANGE_BYTES, placement)?;
        let probe = with.alloc(64, placement)?;
        with.write(addr, &vec![0; RANGE_BYTES as usize])?;
        Ok(Self { size: options.size, testbed, with, without, addr, probe })
    }

    fn measure(
        &mut self,
        command: &mut dyn FnMut(u32) -> Command,
        steps: &mut Steps<'_>,
        cores: &[usize],
    ) -> Result<Vec<Row>, BenchError> {
        pin::pin_to(pin::two_cores()?.first)?;
        let mut rows = Vec::new();
        steps.begin("lock_unlock_local");
        rows.push(self.local()?);
        steps.begin("lock_unlock_remote");
        rows.push(self.remote()?);
        let sizes = SIZES.iter().map(|&bytes| CriticalSection::Write { bytes, count: ACCESSES });
        let counts = [1, 4, 16].map(|count| CriticalSection::Write { bytes: 64, count });
        let reads = [64, 256].map(|bytes| CriticalSection::Read { bytes });
        for section in sizes.chain(counts).chain(reads) {
            steps.begin(&section.name());
            rows.push(self.section(section)?);
        }
        pin::pin_to_any(cores)?;
        for (name, count, racks) in CONTENDERS {
            steps.begin(name);
            rows.push(self.contended(name, count, racks, command)?);
        }
        Ok(rows)
    }

    /// A lock of the own rack beside a question to the same daemon.
    fn local(&mut self) -> Result<Row, BenchError> {
        let handle = self.testbed.pool(HOME.0, FabricChoice::Tcp)?.handle()?;
        let (size, addr, probe) = (self.size, self.addr, self.probe);
        let handle = std::cell::RefCell::new(handle);
        let guard = handle.borrow_mut().lock(probe, LockMode::Write, LockOptions::line())?;
        let row = lock_beside(size, &self.testbed, "lock_unlock_local", addr, &handle, |handle| {
            Ok(handle.check_lock(&guard)?)
        });
        handle.borrow_mut().unlock(guard)?;
        Ok(row?.with("beside", "a question to the daemon through the ring"))
    }

    /// A lock of another rack beside a one-sided read of its line.
    fn remote(&mut self) -> Result<Row, BenchError> {
        let handle = self.testbed.pool(0, FabricChoice::Tcp)?.handle()?;
        let (size, addr) = (self.size, self.addr);
        let handle = std::cell::RefCell::new(handle);
        let row = lock_beside(size, &self.testbed, "lock_unlock_remote", addr, &handle, |handle| {
            Ok(handle.read(addr, &mut [0; 64])?)
        });
        Ok(row?.with("beside", "a one-sided read of 64 bytes"))
    }

    fn section(&mut self, section: CriticalSection) -> Result<Row, BenchError> {
        let Self { size, testbed, with, without, addr, .. } = self;
        let (slice, addr, count) = (size.slice(), *addr, section.count());
        let mut buffers = [vec![0x5a; SIZES[SIZES.len() - 1]], vec![0xa5; SIZES[SIZES.len() - 1]]];
        let [first, second] = &mut buffers;
        let rate = |ns: f64| 1e9 / ns;
        let before = with.handle_stats();
        let comparison = compare(
            &size.rules(),
            SEED,
            &mut testbed.probe(),
            || slice_ns(slice, count, || section.run(with, addr, first)).map(rate),
            || slice_ns(slice, count, || section.run(without, addr, second)).map(rate),
        )?;
        let after = with.handle_stats();
        let coupled = (after.coupled, before.coupled);
        let row =
            Row::compared(&section.name(), "ops/s", Better::Higher, &comparison, Reference::Raw);
        Ok(row
            .with("buffered_writes", coupled.0.buffered_writes - coupled.1.buffered_writes)
            .with("flush_batches", coupled.0.flush_batches - coupled.1.flush_batches)
            .with("cache_hits", coupled.0.cache_hits - coupled.1.cache_hits)
            .with("cache_misses", coupled.0.cache_misses - coupled.1.cache_misses))
    }

    /// Processes that want the same lock all the time.
    fn contended(
        &mut self,
        name: &str,
        count: u32,
        racks: &[u16],
        command: &mut dyn FnMut(u32) -> Command,
    ) -> Result<Row, BenchError> {
        let (with, probe) = (&mut self.with, self.probe);
        with.write_u64(probe, 0)?;
        let run = match self.size {
            Size::Smoke => Duration::from_millis(20),
            Size::Quick => Duration::from_millis(500),
            Size::Full => Duration::from_secs(3),
        };
        let mut crew = Crew::start(count, command)?;
        for client in 0..count {
            let job = LockJob {
                master: self.testbed.master().to_owned(),
                rack: racks[client as usize % racks.len()],
                addr: probe.0,
                run_ms: run.as_millis() as u64,
            };
            crew.tell(client, &job)?;
        }
        crew.await_ready()?;
        crew.tell_all(&YcsbCommand::Go)?;
        let mut merged = YcsbMeasurement::default();
        let mut counts = Vec::new();
        crew.gather(run, |answer| match answer {
            YcsbReply::Ran(ran) => {
                counts.push(ran.operations);
                merged.merge(&ran);
                Ok(())
            }
            other => Err(other),
        })?;
        crew.end()?;
        let counted = with.read_u64(probe)?;
        if counted != merged.operations {
            let reason =
                format!("{counted} additions of {}: a lock was held twice", merged.operations);
            return Err(BenchError::Option { option: "lock", reason });
        }
        let rate = merged.operations as f64 * 1e9 / merged.elapsed_ns.max(1) as f64;
        let (least, most) = (counts.iter().min(), counts.iter().max());
        let fairness = *most.unwrap_or(&0) as f64 / (*least.unwrap_or(&0)).max(1) as f64;
        let row = Row::new(name, "ops/s", Better::Higher, rate);
        Ok(row
            .percentiles(merged.writes.summary())
            .with("max_over_min", fairness)
            .with("by_process", counts))
    }
}

/// Taking a lock and giving it back, beside something else of the same handle.
fn lock_beside(
    size: Size,
    testbed: &Testbed,
    name: &str,
    addr: GAddr,
    handle: &std::cell::RefCell<Handle>,
    mut beside: impl FnMut(&mut Handle) -> Result<(), BenchError>,
) -> Result<Row, BenchError> {
    let slice = size.slice();
    let lock = || -> Result<(), BenchError> {
        let mut handle = handle.borrow_mut();
        let guard = handle.lock(addr, LockMode::Write, LockOptions::line())?;
        Ok(handle.unlock(guard)?)
    };
    lock()?;
    let comparison = compare(
        &size.rules(),
        SEED,
        &mut testbed.probe(),
        || slice_ns(slice, 1, lock),
        || slice_ns(slice, 1, || beside(&mut handle.borrow_mut())),
    )?;
    let mut histogram = Histogram::new();
    for _ in 0..size.samples() {
        let start = Instant::now();
        lock()?;
        histogram.record(start.elapsed().as_nanos() as u64);
    }
    let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
    Ok(row.percentiles(histogram.summary()))
}

/// The line that a client process is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LockJob {
    master: String,
    rack: u16,
    addr: u64,
    run_ms: u64,
}

/// A client process of [`run`]: takes its job from `input` and answers on `output`. An error goes
/// to the parent as well as to the caller.
///
/// # Errors
/// [`BenchError`]: the first thing that went wrong.
pub fn worker(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let outcome = serve(input, output);
    end_with(outcome, output, |code, reason| YcsbReply::Failed { code, reason })
}

fn serve(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), BenchError> {
    let Some(job) = next_order::<LockJob>(input)? else { return Ok(()) };
    let options = rackpool::Options::new(&job.master, job.rack).fabric(FabricChoice::Tcp);
    let mut handle = Pool::open(options)?.handle()?;
    let addr = GAddr(job.addr);
    handle.read_u64(addr)?;
    say(output, &YcsbReply::Ready)?;
    let Some(YcsbCommand::Go) = next_order(input)? else {
        let reason = "another order than to begin".into();
        return Err(BenchError::Option { option: "order", reason });
    };
    let (mut ran, start) = (YcsbMeasurement::default(), Instant::now());
    while start.elapsed() < Duration::from_millis(job.run_ms) {
        let asked = Instant::now();
        let guard = handle.lock(addr, LockMode::Write, LockOptions::range(64))?;
        ran.writes.record(asked.elapsed().as_nanos() as u64);
        let count = handle.read_u64(addr)?;
        handle.write_u64(addr, count + 1)?;
        handle.unlock(guard)?;
        ran.operations += 1;
    }
    ran.elapsed_ns = start.elapsed().as_nanos() as u64;
    say(output, &YcsbReply::Ran(Box::new(ran)))?;
    // A process that ends before the others are asked looks like one that died.
    std::io::copy(input, &mut std::io::sink()).map(drop).map_err(io_error("reading orders"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_racks_are_refused_with_the_reason() {
        let (size, source) = (Size::Smoke, PoolSource::default());
        let options = Options { size, source, fabric: FabricChoice::Shm };
        let mut command = |_| unreachable!("refused before any client is started");
        let error = run(&options, &mut command, &mut |_| ()).unwrap_err();
        assert_eq!(error.code(), "config");
    }

    #[test]
    fn a_client_says_what_is_wrong_with_its_orders() {
        let mut said = Vec::new();
        let error = worker(&mut &b"nonsense\n"[..], &mut said).unwrap_err();
        assert_eq!(error.code(), "config");
        assert!(String::from_utf8(said).unwrap().contains("nonsense"));
    }
}
