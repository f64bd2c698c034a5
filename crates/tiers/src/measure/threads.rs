//! Threads on cores of their own that load one memory: their bandwidth together, and the latency
//! of one dependent load beside them. Looks at the clock.

use super::{MeasureError, Run};
use rackpool_core::seam::Mem;
use rackpool_mem::process::pin_to_core;
use rackpool_mem::window::{PASS_STEP_BYTES, Pass, Window};
use rackpool_stats::random::Rng;
use rackpool_stats::sample::median;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes between two looks at the flag that ends a run.
const CHUNK_BYTES: u64 = 64 << 10;
/// Every other line: the neighbour that processors fetch along is of no use.
const STRIDE_BYTES: u64 = 128;
/// What the first level of address translation covers, with pages of 4 KiB too.
const BLOCK_BYTES: u64 = 256 << 10;
/// A run is disturbed if a thread had its core for less than this share of the time.
const ON_CORE_MIN: f64 = 0.95;
/// Loads that are timed at once.
const GROUP_LOADS: u32 = 500;

/// The least memory that so many threads and a chain are measured with, bytes.
pub(super) fn bytes_min(threads: usize) -> u64 {
    BLOCK_BYTES.max(threads as u64 * CHUNK_BYTES)
}

/// Memory that runs go over in turn: each one goes on where the last one ended, since caches have
/// what that ended with. A short run would find all of its memory there.
pub(super) struct StreamBuffer {
    window: Window,
    /// What a thread of the runs before has gone over at most.
    done_bytes: Cell<u64>,
}

impl StreamBuffer {
    pub fn new(window: Window) -> StreamBuffer {
        StreamBuffer { window, done_bytes: Cell::new(0) }
    }
}

/// A run: what every thread does, and for how long.
pub(super) struct Load<'a> {
    pub memory: &'a StreamBuffer,
    pub cores: &'a [usize],
    pub pass: Pass,
    pub duration: Duration,
}

impl Load<'_> {
    /// What a thread works on, bytes; each has its own.
    fn part_bytes(&self) -> Result<u64, MeasureError> {
        let threads = self.cores.len().max(1) as u64;
        let bytes = self.memory.window.bytes();
        let part_bytes = bytes / threads / CHUNK_BYTES * CHUNK_BYTES;
        if part_bytes == 0 {
            return Err(MeasureError::TooSmall { bytes, needed: threads * CHUNK_BYTES });
        }
        Ok(part_bytes)
    }

    /// Loads and stores of all threads together, MB/s: bytes of the program, so that a line that is
    /// fetched before it is stored to counts once.
    ///
    /// # Errors
    /// [`MeasureError::Pin`], [`MeasureError::TooSmall`].
    pub fn bandwidth_mbps(&self) -> Result<Run, MeasureError> {
        let rates = self.beside(|| std::thread::sleep(self.duration))?;
        Ok(Run { value: rates.loads_mbps, is_disturbed: rates.is_disturbed })
    }

    /// The threads run while `work` does on the calling thread, from a common start.
    fn beside<T>(&self, work: impl FnOnce() -> T) -> Result<Beside<T>, MeasureError> {
        let part_bytes = self.part_bytes()?;
        let done_bytes = self.memory.done_bytes.get();
        let signals = Signals::default();
        std::thread::scope(|scope| {
            // However this ends, no thread waits for ever.
            let _stop = StopAtEnd(&signals);
            let mut threads = Vec::new();
            for (index, core) in self.cores.iter().enumerate() {
                let part = self.memory.window.slice(index as u64 * part_bytes, part_bytes);
                let (signals, pass, core) = (&signals, self.pass, *core);
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                    let pinned = pin_to_core(core);
                    signals.await_start();
                    pinned.map_err(|error| MeasureError::Pin { core, error })?;
                    Ok(until(&part, done_bytes % part_bytes, pass, signals))
                });
                threads.push(thread.map_err(|error| MeasureError::Thread { error })?);
            }
            signals.start(threads.len());
            let result = work();
            signals.stop();
            let (mut loads_mbps, mut is_disturbed, mut most_bytes) = (0.0, false, 0);
            for thread in threads {
                let share = thread.join().expect("a pass does not panic")?;
                loads_mbps += share.bytes as f64 / share.elapsed.as_secs_f64() / 1e6;
                is_disturbed |= share.is_disturbed;
                most_bytes = most_bytes.max(share.bytes);
            }
            self.memory.done_bytes.set(done_bytes + most_bytes);
            Ok(Beside { result, loads_mbps, is_disturbed })
        })
    }
}

/// What threads of a run are told. They carry no data from one to the other, so that no access is
/// ordered with any.
#[derive(Default)]
struct Signals {
    ready: AtomicUsize,
    is_started: AtomicBool,
    is_stopped: AtomicBool,
}

impl Signals {
    /// On a thread of the run: says that it is there, and waits for the others.
    fn await_start(&self) {
        // Relaxed: see the type, here and below.
        self.ready.fetch_add(1, Ordering::Relaxed);
        while !self.is_started.load(Ordering::Relaxed) && !self.is_stopped() {
            std::thread::yield_now();
        }
    }

    /// Waits until so many threads are there, and starts them.
    fn start(&self, threads: usize) {
        // Relaxed: see the type, here and below.
        while self.ready.load(Ordering::Relaxed) < threads {
            std::thread::yield_now();
        }
        self.is_started.store(true, Ordering::Relaxed);
    }

    fn stop(&self) {
        // Relaxed: see the type.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        // Relaxed: see the type.
        self.is_stopped.load(Ordering::Relaxed)
    }
}

struct StopAtEnd<'a>(&'a Signals);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

struct Beside<T> {
    result: T,
    loads_mbps: f64,
    is_disturbed: bool,
}

/// What one thread did in a run.
struct ThreadShare {
    bytes: u64,
    elapsed: Duration,
    is_disturbed: bool,
}

/// Passes over a part from `offset` on, round and round, until told to stop, one chunk at least.
fn until(part: &Window, mut offset: u64, pass: Pass, signals: &Signals) -> ThreadShare {
    const { assert!(CHUNK_BYTES.is_multiple_of(PASS_STEP_BYTES)) };
    let mut bytes = 0u64;
    let (start, start_on_core) = (Instant::now(), on_core());
    loop {
        part.pass(offset, CHUNK_BYTES, pass);
        bytes += CHUNK_BYTES;
        offset = (offset + CHUNK_BYTES) % part.bytes();
        if signals.is_stopped() {
            let (elapsed, on_core) = (start.elapsed(), on_core() - start_on_core);
            let is_disturbed = on_core < elapsed.mul_f64(ON_CORE_MIN);
            return ThreadShare { bytes, elapsed, is_disturbed };
        }
    }
}

/// How long this thread has had a core.
fn on_core() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a thread's time is not negative")
}

/// A cycle through every other line of a memory: blocks in random order, within each the lines in
/// random order, so that each load waits for memory and rarely for address translation.
pub(super) struct Chain {
    memory: Window,
    at: u64,
}

impl Chain {
    /// Writes the links; takes about as long as a pass.
    ///
    /// # Errors
    /// [`MeasureError::TooSmall`] for less than one block.
    pub fn link(memory: Window) -> Result<Chain, MeasureError> {
        let blocks = memory.bytes() / BLOCK_BYTES;
        if blocks == 0 {
            return Err(MeasureError::TooSmall { bytes: memory.bytes(), needed: BLOCK_BYTES });
        }
        let mut rng = Rng::new(1);
        let (mut first, mut last) = (None, 0);
        for block in shuffled(blocks, &mut rng) {
            for line in shuffled(BLOCK_BYTES / STRIDE_BYTES, &mut rng) {
                let offset = block * BLOCK_BYTES + line * STRIDE_BYTES;
                if first.is_some() {
                    memory.store(last, offset);
                }
                first = first.or(Some(offset));
                last = offset;
            }
        }
        let first = first.expect("there is a block");
        memory.store(last, first);
        Ok(Chain { memory, at: first })
    }

    /// Time of one dependent load, ns, beside a load on other cores, and what that load got, MB/s:
    /// 0 without a core. The median of groups of loads, so that a group does not count during which
    /// another program had the core; the run is disturbed if the load is. Goes on where the last
    /// run ended.
    ///
    /// # Errors
    /// As [`Load::bandwidth_mbps`].
    pub fn latency(&mut self, load: &Load<'_>) -> Result<LoadedLatency, MeasureError> {
        let beside = load.beside(|| {
            let (start, mut groups) = (Instant::now(), Vec::new());
            while groups.is_empty() || start.elapsed() < load.duration {
                groups.push(self.group_ns());
            }
            median(groups)
        })?;
        let latency_ns = Run { value: beside.result, is_disturbed: beside.is_disturbed };
        Ok(LoadedLatency { latency_ns, load_mbps: beside.loads_mbps })
    }

    fn group_ns(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..GROUP_LOADS {
            self.at = self.memory.load(self.at);
        }
        black_box(self.at);
        start.elapsed().as_nanos() as f64 / f64::from(GROUP_LOADS)
    }
}

/// One run of a chain.
pub(super) struct LoadedLatency {
    pub latency_ns: Run,
    pub load_mbps: f64,
}

pub(super) fn shuffled(count: u64, rng: &mut Rng) -> Vec<u64> {
    let mut order: Vec<u64> = (0..count).collect();
    (1..count).rev().for_each(|i| order.swap(i as usize, rng.below(i + 1) as usize));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_mem::process::allowed_cores;
    use std::ops::Range;

    #[test]
    fn a_chain_visits_every_other_line_once() {
        let bytes = 2 * BLOCK_BYTES;
        let mut chain = Chain::link(Window::heap(bytes)).unwrap();
        let mut seen = vec![false; (bytes / STRIDE_BYTES) as usize];
        for _ in 0..seen.len() {
            assert!(chain.at.is_multiple_of(STRIDE_BYTES));
            let line = (chain.at / STRIDE_BYTES) as usize;
            assert!(!seen[line], "line {line} comes twice");
            seen[line] = true;
            chain.at = chain.memory.load(chain.at);
        }
        // And is back where it began.
        assert!(seen[(chain.at / STRIDE_BYTES) as usize] && seen.iter().all(|seen| *seen));
    }

    #[test]
    fn threads_load_parts_of_their_own_and_count_every_chunk() {
        let memory = StreamBuffer::new(Window::heap(4 * CHUNK_BYTES + 4096));
        let cores = vec![allowed_cores().unwrap()[0]; 3];
        let load = |pass| {
            let duration = Duration::from_millis(1);
            Load { memory: &memory, cores: &cores, pass, duration }.bandwidth_mbps().unwrap().value
        };
        assert!(load(Pass::Load4) > 0.0);
        let is_all = |part: Range<u64>, value| {
            part.step_by(8).all(|offset| memory.window.load(offset) == value)
        };
        // Each of the three parts is one chunk; what is left over belongs to none.
        let (done, all) = (3 * CHUNK_BYTES, memory.window.bytes());
        assert!(is_all(0..all, 0));
        assert!(load(Pass::Store4) > 0.0);
        assert!(is_all(0..done, u64::MAX) && is_all(done..all, 0));
    }

    #[test]
    fn a_run_goes_on_where_the_last_one_ended() {
        let memory = StreamBuffer::new(Window::heap(1024 * CHUNK_BYTES));
        let cores = &allowed_cores().unwrap()[..1];
        let end_of_run = || {
            let (pass, duration) = (Pass::Store4, Duration::ZERO);
            Load { memory: &memory, cores, pass, duration }.bandwidth_mbps().unwrap();
            memory.done_bytes.get()
        };
        let middle = end_of_run();
        memory.window.zero(0, memory.window.bytes());
        let end = end_of_run();
        assert!(middle >= CHUNK_BYTES && end >= middle + CHUNK_BYTES);
        if end > memory.window.bytes() {
            println!("NOT TESTED: the runs were so long that they came round");
            return;
        }
        for offset in (0..memory.window.bytes()).step_by(64) {
            let expected = if (middle..end).contains(&offset) { u64::MAX } else { 0 };
            assert_eq!(memory.window.load(offset), expected, "{offset} of {middle} to {end}");
        }
    }

    #[test]
    fn a_core_that_is_not_ours_and_memory_for_fewer_threads_are_refused() {
        let memory = StreamBuffer::new(Window::heap(CHUNK_BYTES));
        let duration = Duration::from_millis(1);
        let run = |cores: &[usize]| {
            Load { memory: &memory, cores, pass: Pass::Load4, duration }.bandwidth_mbps()
        };
        let refused = run(&[1_000_000]);
        assert!(matches!(refused, Err(MeasureError::Pin { core: 1_000_000, .. })), "{refused:?}");
        let needed = 2 * CHUNK_BYTES;
        let core = allowed_cores().unwrap()[0];
        let refused = run(&[core, core]);
        let is_small =
            matches!(refused, Err(MeasureError::TooSmall { needed: n, .. }) if n == needed);
        assert!(is_small, "{refused:?}");
        assert!(matches!(Chain::link(memory.window), Err(MeasureError::TooSmall { .. })));
    }
}
