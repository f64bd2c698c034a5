//! The guide's measurements on memory of this machine: threads that read and write it by copies
//! and instructions of the product, for a time each. No counters of a device are read, so what
//! its buffer combines shows in times alone.
//!
//! In: a window, what each thread does. Out: GB/s, or how long accesses took.

use crate::optane::load::GuideAccess;
use rackpool_core::persist::Persist;
use rackpool_core::seam::{Mem, Section};
use rackpool_mem::persist::PersistentWindow;
use rackpool_stats::histogram::Histogram;
use rackpool_stats::random::mix64;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const LINE_BYTES: u64 = 64;
/// Accesses between two looks at the clock.
const BETWEEN_LOOKS: u64 = 64;
/// Bytes between two looks at the most.
const BETWEEN_LOOKS_BYTES: u64 = 1 << 20;

/// What a thread does again and again.
#[derive(Clone, Copy, Debug)]
pub struct RealLoad {
    pub kind: GuideAccess,
    pub is_random: bool,
    pub access_bytes: u64,
    /// How many of the accesses are reads.
    pub read_percent: u64,
    /// A fence after each write.
    pub is_fenced: bool,
}

impl RealLoad {
    pub const fn new(kind: GuideAccess, access_bytes: u64) -> RealLoad {
        RealLoad { kind, is_random: false, access_bytes, read_percent: 0, is_fenced: false }
    }
}

/// One thread's part of the memory.
struct RealThread {
    window: PersistentWindow,
    load: RealLoad,
    buffer: Vec<u8>,
    at: u64,
    draws: u64,
}

impl RealThread {
    fn new(window: PersistentWindow, load: RealLoad, thread: u64) -> RealThread {
        let buffer = vec![0x5a; load.access_bytes as usize];
        RealThread { window, load, buffer, at: 0, draws: mix64(thread) }
    }

    fn next_offset(&mut self) -> u64 {
        let accesses = self.window.bytes() / self.load.access_bytes;
        self.draws = self.draws.wrapping_add(1);
        self.at = match self.load.is_random {
            true => mix64(self.draws) % accesses,
            false => (self.at + 1) % accesses,
        };
        self.at * self.load.access_bytes
    }

    fn access(&mut self) {
        let offset = self.next_offset();
        let RealLoad { kind, read_percent, .. } = self.load;
        let is_read = read_percent > 0 && mix64(!self.draws) % 100 < read_percent;
        if is_read || kind == GuideAccess::Read {
            self.window.copy_out(offset, &mut self.buffer);
            black_box(&self.buffer);
            return;
        }
        self.write(offset);
        if self.load.is_fenced {
            // Of memory that forgets as well: it is used as if it did not.
            let _ = black_box(self.window.persist_fence());
        }
    }

    fn write(&mut self, offset: u64) {
        let (window, bytes) = (&self.window, &self.buffer);
        match self.load.kind {
            GuideAccess::Nt => window.copy_in_streaming(offset, bytes),
            GuideAccess::Clwb => {
                for (index, line) in bytes.chunks(LINE_BYTES as usize).enumerate() {
                    let at = offset + index as u64 * LINE_BYTES;
                    window.copy_in(at, line);
                    window.write_back(at, line.len() as u64);
                }
            }
            GuideAccess::StoreThenClwb => {
                window.copy_in(offset, bytes);
                window.write_back(offset, bytes.len() as u64);
            }
            GuideAccess::Store | GuideAccess::Read => window.copy_in(offset, bytes),
        }
    }

    /// Accesses for a time; how many and how long that took.
    fn run(&mut self, time: Duration) -> (u64, Duration) {
        let most = (BETWEEN_LOOKS_BYTES / self.load.access_bytes).clamp(1, BETWEEN_LOOKS);
        // What is fenced into a file of the page cache takes long each.
        let looks = if self.load.is_fenced { most.min(8) } else { most };
        let (start, mut count) = (Instant::now(), 0);
        loop {
            (0..looks).for_each(|_| self.access());
            count += looks;
            let took = start.elapsed();
            if took >= time {
                return (count, took);
            }
        }
    }
}

/// GB/s of so many threads, each in a part of its own.
pub fn gbytes_per_s(
    window: &PersistentWindow,
    load: RealLoad,
    threads: usize,
    time: Duration,
) -> f64 {
    let part = window.bytes() / threads as u64 / 4096 * 4096;
    let start = Barrier::new(threads);
    let rates = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads as u64)
            .map(|thread| {
                let own = window.slice(thread * part, part);
                let start = &start;
                scope.spawn(move || {
                    let mut one = RealThread::new(own, load, thread);
                    start.wait();
                    let (count, took) = one.run(time);
                    (count * load.access_bytes) as f64 / took.as_nanos() as f64
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().expect("no access panics")).collect::<Vec<f64>>()
    });
    rates.iter().sum()
}

/// How long an access takes when each waits for the one before, ns.
pub fn mean_ns(window: &PersistentWindow, load: RealLoad, time: Duration) -> f64 {
    if load.kind == GuideAccess::Read {
        return read_ns(window, load.is_random, time);
    }
    let mut one = RealThread::new(window.clone(), RealLoad { is_fenced: true, ..load }, 0);
    let (count, took) = one.run(time);
    took.as_nanos() as f64 / count as f64
}

/// Loads of 8 B, of which each tells where the next one is.
fn read_ns(window: &PersistentWindow, is_random: bool, time: Duration) -> f64 {
    let lines = window.bytes() / LINE_BYTES;
    let (start, mut count, mut line, mut seen) = (Instant::now(), 0_u64, 0, 0_u64);
    loop {
        for _ in 0..BETWEEN_LOOKS {
            count += 1;
            // What was read decides, though it is what was to be expected.
            let next = count.wrapping_add(black_box(seen) & 1);
            line = if is_random { mix64(next) % lines } else { (line + 1 + (seen & 1)) % lines };
            seen = window.load(line * LINE_BYTES);
        }
        let took = start.elapsed();
        if took >= time {
            return took.as_nanos() as f64 / count as f64;
        }
    }
}

/// Times of single fenced writes of a line to a hot spot, ns.
pub fn tail(window: &PersistentWindow, hot_bytes: u64, time: Duration) -> Histogram {
    let own = window.slice(0, hot_bytes);
    let load = RealLoad { is_fenced: true, ..RealLoad::new(GuideAccess::Nt, LINE_BYTES) };
    let mut one = RealThread::new(own, load, 0);
    let (mut times, start) = (Histogram::new(), Instant::now());
    let mut before = start;
    while before - start < time {
        one.access();
        let now = Instant::now();
        times.record((now - before).as_nanos() as u64);
        before = now;
    }
    times
}

/// Halves of units written one after the other, then their other halves: how long one takes, ns.
pub fn halves_ns(window: &PersistentWindow, units: u64, time: Duration) -> f64 {
    const UNIT_BYTES: u64 = 256;
    let half = [0x5a; UNIT_BYTES as usize / 2];
    let (start, mut count) = (Instant::now(), 0);
    loop {
        for at in [0, UNIT_BYTES / 2] {
            for unit in 0..units {
                window.copy_in_streaming(unit * UNIT_BYTES + at, &half);
                let _ = black_box(window.persist_fence());
            }
        }
        count += 2 * units;
        let took = start.elapsed();
        if took >= time {
            return took.as_nanos() as f64 / count as f64;
        }
    }
}
