//! `bench ring`: a message to another core and its answer, beside a bare cache line that goes
//! there and back between the same two cores, and both ends on one core.
//!
//! The ends are two pinned threads over the ring that clients and daemons use, with its waiting
//! and its wake-ups. Then the request that a client really makes: the first touch of a page,
//! answered by the daemon of its rack.

use crate::interleave::{Comparison, compare};
use crate::micro::line;
use crate::micro::pin::{self, CorePair};
use crate::report::{Better, Kind, Reference, Report, Row};
use crate::run::{BenchError, PoolSource, Progress, Size, Steps, Testbed, kind_of_path, slice_ns};
use rackpool::{FabricChoice, Handle, Placement};
use rackpool_core::GAddr;
use rackpool_core::layout::RING_BYTES;
use rackpool_mem::ring::{self, Consumer, Producer, RingError, WakeConsumer};
use rackpool_mem::wait::Waiter;
use rackpool_mem::window::Window;
use rackpool_stats::histogram::Histogram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// What `bench ring` measures on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub size: Size,
    /// The pool with the daemon that answers first touches.
    pub source: PoolSource,
    /// The rack of a running pool; in a pool of its own the run takes rack 0.
    pub rack: u16,
}

/// Memory of a rack that holds two pages for first touches.
const RACK_BYTES: u64 = 32 << 20;
/// A slice that lasts longer than this has lost its other end.
const RUN_MAX: Duration = Duration::from_secs(30);
/// How often a waiting end looks whether the other one has given up.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Bytes of a message: inline, as a request of a client is.
const MESSAGE_BYTES: usize = 24;
/// Messages of a trial that tells how many fill a slice.
const TRIAL: u64 = 2_000;
/// Round trips on one core below which two ends crawl (`SPECIFICATION.md`).
pub const ONE_CORE_RATE_MIN: f64 = 20_000.0;

/// Measures.
///
/// # Errors
/// [`BenchError`].
pub fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Report, BenchError> {
    let mut steps = Steps::new(3, progress);
    let cores = pin::two_cores()?;
    let CorePair { first, second } = cores;
    let testbed = Testbed::open(&options.source, 1, RACK_BYTES)?;
    let size = options.size;
    let mut report = testbed.report(size, Kind::Measured);
    report.extra.insert("cores".into(), vec![first, second].into());
    report.extra.insert("ends".into(), "threads".into());

    steps.begin("ring_roundtrip");
    let comparison = round_trips(&testbed, size, first, second)?;
    let row = Row::compared("ring_roundtrip", "ns", Better::Lower, &comparison, Reference::Raw);
    report.results.push(row);

    steps.begin("ring_one_core");
    let mut rates = round_trips(&testbed, size, first, first)?;
    invert(&mut rates);
    let row = Row::compared("ring_one_core", "ops/s", Better::Higher, &rates, Reference::Raw);
    report.results.push(row.with("least", ONE_CORE_RATE_MIN));

    steps.begin("first_touch_own_rack");
    let rack = if options.source.master.is_some() { options.rack } else { 0 };
    let (row, kind) = first_touch(&testbed, size, rack, cores)?;
    report.kind = kind;
    report.results.push(row);
    steps.end();
    Ok(report)
}

fn invert(comparison: &mut Comparison) {
    let rate = |ns: f64| 1e9 / ns;
    comparison.ours = rate(comparison.ours);
    comparison.reference = rate(comparison.reference);
    comparison.ratio = 1.0 / comparison.ratio;
    let (low, high) = (1.0 / comparison.ratio_p75, 1.0 / comparison.ratio_p25);
    (comparison.ratio_p25, comparison.ratio_p75) = (low, high);
}

/// Round trips through two rings beside a bare cache line, ns.
fn round_trips(
    testbed: &Testbed,
    size: Size,
    core_first: usize,
    core_second: usize,
) -> Result<Comparison, BenchError> {
    let trips = |ns: f64| ((size.slice().as_secs_f64() * 1e9 / ns) as u64).max(100);
    let trips_ours = trips(ring_ns(core_first, core_second, TRIAL)?);
    let trips_raw = trips(line::ping_pong_ns(core_first, core_second, TRIAL)?);
    compare(
        &size.rules(),
        2,
        &mut testbed.probe(),
        || ring_ns(core_first, core_second, trips_ours),
        || Ok(line::ping_pong_ns(core_first, core_second, trips_raw)?),
    )
}

/// Nanoseconds for a message and its answer through a pair of rings between two cores, the mean
/// over `round_trips`. Blocks the caller, and does not move its thread.
///
/// # Errors
/// [`BenchError::Pin`], [`BenchError::Ring`], [`BenchError::Silent`].
///
/// # Panics
/// When `round_trips` is 0.
pub fn ring_ns(core_first: usize, core_second: usize, round_trips: u64) -> Result<f64, BenchError> {
    assert!(round_trips > 0, "no round trip, no time");
    let (requests, replies) = (Window::heap(RING_BYTES), Window::heap(RING_BYTES));
    let (stop, warmup) = (AtomicBool::new(false), (round_trips / 10).clamp(1, 10_000));
    let end = |core, send: &Window, receive: &Window, turn: Turn, counts: [u64; 2]| {
        let own_cores = core_first != core_second;
        // A waiter looks how many cores it may use: with a core of its own, it may spin.
        let early = own_cores.then(|| RingEnd::new(send.clone(), receive.clone(), &stop));
        let outcome = pin::pin_to(core).map_err(BenchError::from).and_then(|()| {
            let late = || RingEnd::new(send.clone(), receive.clone(), &stop);
            let mut end = early.unwrap_or_else(late);
            end.exchange(turn, counts[0])?;
            let start = Instant::now();
            end.exchange(turn, counts[1])?;
            Ok(start.elapsed())
        });
        if outcome.is_err() {
            // Relaxed: only ends the other end's wait early; the flag carries no data.
            stop.store(true, Ordering::Relaxed);
        }
        outcome
    };
    let gone = |_| BenchError::Silent { end: "the other end".into(), waited_s: 0 };
    thread::scope(|scope| {
        let counts = [warmup, round_trips];
        let (end, requests, replies) = (&end, &requests, &replies);
        let answerer =
            scope.spawn(move || end(core_second, replies, requests, Turn::Answer, counts));
        let asker = scope.spawn(move || end(core_first, requests, replies, Turn::Ask, counts));
        let asked = asker.join().map_err(gone)?;
        let answered = answerer.join().map_err(gone)?;
        match (asked, answered) {
            (Ok(elapsed), Ok(_)) => Ok(elapsed.as_secs_f64() * 1e9 / round_trips as f64),
            // Silence is what the one notices when the other could not run.
            (Err(error), Ok(_) | Err(BenchError::Silent { .. })) => Err(error),
            (_, Err(error)) => Err(error),
        }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Ask,
    Answer,
}

struct RingEnd<'s> {
    producer: Producer,
    consumer: Consumer,
    waiter: Waiter,
    stop: &'s AtomicBool,
    /// When to look at `stop` again; not at each message, since a look at the clock would show.
    look: Instant,
    deadline: Instant,
    number: u64,
}

impl<'s> RingEnd<'s> {
    fn new(send: Window, receive: Window, stop: &'s AtomicBool) -> Self {
        let (producer, consumer) = (Producer::attach(send), Consumer::attach(receive));
        let now = Instant::now();
        let (look, deadline) = (now + LOOK_EVERY, now + RUN_MAX);
        Self { producer, consumer, waiter: Waiter::new(), stop, look, deadline, number: 0 }
    }

    fn exchange(&mut self, turn: Turn, count: u64) -> Result<(), BenchError> {
        for _ in 0..count {
            self.number += 1;
            if turn == Turn::Ask {
                self.send()?;
            }
            self.receive()?;
            if turn == Turn::Answer {
                self.send()?;
            }
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self) -> Result<(), RingError> {
        let mut message = [0; MESSAGE_BYTES];
        message[..8].copy_from_slice(&self.number.to_le_bytes());
        self.producer.push(&message)?;
        self.producer.wake_if_sleeping();
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<(), BenchError> {
        let expected = self.number.to_le_bytes();
        loop {
            match self.consumer.pop(|message| message.get(..8) == Some(&expected)) {
                Some(Ok(true)) => return Ok(()),
                Some(Ok(false)) => {
                    let reason = "a message came out of its turn".into();
                    return Err(BenchError::Option { option: "ring", reason });
                }
                Some(Err(error)) => return Err(error.into()),
                None => self.wait()?,
            }
        }
    }

    #[inline]
    fn wait(&mut self) -> Result<(), BenchError> {
        while !ring::wait(&self.consumer, &mut self.waiter, self.look) {
            let now = Instant::now();
            self.look = now + LOOK_EVERY;
            // Relaxed: the flag of `ring_ns` carries no data.
            if self.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Silent { end: "the other end".into(), waited_s: 0 });
            }
            if now > self.deadline {
                let waited_s = RUN_MAX.as_secs();
                return Err(BenchError::Silent { end: "the other end".into(), waited_s });
            }
        }
        Ok(())
    }
}

/// Reads two pages in turn through a handle that remembers one: each read is a first touch.
pub(crate) struct Touches {
    handle: Handle,
    addr: GAddr,
    turn: u64,
}

impl Touches {
    /// Touches two pages at `addr`, which [`Touches::end`] frees.
    pub(crate) fn new(handle: Handle, addr: GAddr) -> Self {
        Self { handle, addr, turn: 0 }
    }

    #[inline]
    fn touch(&mut self) -> Result<(), BenchError> {
        self.turn ^= 1;
        let page = self.turn * self.handle.page_bytes();
        Ok(self.handle.read(GAddr(self.addr.0 + page), &mut [0; 64])?)
    }

    /// Nanoseconds a touch, over a slice.
    pub(crate) fn slice(&mut self, slice: Duration) -> Result<f64, BenchError> {
        slice_ns(slice, 16, || (0..16).try_for_each(|_| self.touch()))
    }

    /// The times of single touches.
    pub(crate) fn sample(&mut self, count: u64) -> Result<Histogram, BenchError> {
        let mut histogram = Histogram::new();
        for _ in 0..count {
            let start = Instant::now();
            self.touch()?;
            histogram.record(start.elapsed().as_nanos() as u64);
        }
        Ok(histogram)
    }

    /// What one touch sends, counted.
    pub(crate) fn messages(&mut self) -> Result<Messages, BenchError> {
        let before = self.handle.handle_stats();
        self.touch()?;
        let after = self.handle.handle_stats();
        Ok(Messages {
            ring: after.ring_requests - before.ring_requests,
            master: after.master_requests - before.master_requests,
        })
    }

    /// Frees the pages.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        Ok(self.handle.free_pages(self.addr, 2)?)
    }
}

pub(crate) struct Messages {
    pub ring: u64,
    pub master: u64,
}

/// First touches of pages of the own rack: one request to its daemon each.
fn first_touch(
    testbed: &Testbed,
    size: Size,
    rack: u16,
    pair: CorePair,
) -> Result<(Row, Kind), BenchError> {
    let mut handle = testbed.forgetful(rack, FabricChoice::Auto)?;
    let addr = handle.alloc_pages(2, Placement::Local)?;
    let kind = kind_of_path(&mut handle, addr)?;
    let cores = pin::allowed_cores()?;
    pin::pin_to(pair.first)?;
    let trips = ((size.slice().as_secs_f64() * 1e7) as u64).max(100);
    let mut touches = Touches::new(handle, addr);
    let outcome = (|| -> Result<_, BenchError> {
        let comparison = compare(
            &size.rules(),
            3,
            &mut testbed.probe(),
            || touches.slice(size.slice()),
            || Ok(line::ping_pong_ns(pair.first, pair.second, trips)?),
        )?;
        Ok((comparison, touches.sample(size.samples())?, touches.messages()?))
    })();
    pin::pin_to_any(&cores)?;
    touches.end()?;
    let (comparison, histogram, messages) = outcome?;
    let name = "first_touch_own_rack";
    let row = Row::compared(name, "ns", Better::Lower, &comparison, Reference::Raw);
    let row = row.percentiles(histogram.summary()).with("ring_messages", messages.ring);
    Ok((row, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_answered_on_two_cores_and_on_one() {
        let CorePair { first, second } = pin::two_cores().unwrap();
        assert!(ring_ns(first, second, 500).unwrap() > 0.0);
        assert!(ring_ns(first, first, 500).unwrap() > 0.0);
    }

    #[test]
    fn an_end_that_cannot_run_ends_the_other_one_too() {
        let first = pin::two_cores().unwrap().first;
        let start = Instant::now();
        let error = ring_ns(first, 100_000, 500).unwrap_err();
        assert_eq!(error.code(), "raw", "{error}");
        assert!(start.elapsed() < RUN_MAX);
    }

    #[test]
    fn inverted_times_keep_the_quartiles_in_order() {
        let mut comparison = Comparison {
            ours: 100.0,
            reference: 50.0,
            ratio: 2.0,
            ratio_p25: 1.0,
            ratio_p75: 4.0,
            kept: 1,
            disturbed: 0,
            disturbed_kept: false,
            pairs: Vec::new(),
        };
        invert(&mut comparison);
        assert_eq!((comparison.ours, comparison.reference, comparison.ratio), (1e7, 2e7, 0.5));
        assert_eq!((comparison.ratio_p25, comparison.ratio_p75), (0.25, 1.0));
    }
}
