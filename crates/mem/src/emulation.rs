//! Far memory that this host does not have: the time that it would cost, spent on data that lie in
//! memory of the usual kind. Every figure made with it is labelled "emulated".
//!
//! - *Latency.* A line is here so long after it was asked for. A read waits for what is not here
//!   yet: one of lines that were asked for early enough costs nothing, a dependent one costs the
//!   latency, once for all its lines, which a processor asks for together.
//! - *Bandwidth.* Each line takes tokens from a bucket: so many a second, and [`BURST_LINES`] at
//!   once. A store takes them for its line twice, to come and to go, and waits for nothing else.
//! - *Cache.* Of lines with the same remainder by [`CACHED_LINES`] the last one stays here: less
//!   than what a processor keeps, so that the emulation errs to the slow side.
//!
//! - *Its own time.* Where that is wanted ([`FarEmulation::without_own_time`]), what the sums take
//!   is measured, and does not pass by the clock that it waits by; a measurement takes it off.
//!   Otherwise waits hide in it, and far memory costs a processor's time.
//!
//! The latency is the whole one: a line that is read is prefetched from where it lies, and comes
//! while the emulated one is waited for. Time arrives by a [`Clock`], so that the sums are proved
//! against closed forms.
//!
//! In: offsets in a window of which a part is far. Called by `rackpool-cache`, by one thread at a
//! time. The delay of a window (`Window::with_delay`) is its simplest case: nothing overlaps.

use crate::window::Bare;
use std::cell::Cell;
use std::fmt::Debug;
use std::fs;
use std::time::{Duration, Instant};

const LINE_BYTES: u64 = 64;
const PS_PER_NS: u64 = 1000;
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// How long two clocks are compared: so that they differ by less than a ten thousandth.
const COMPARED: Duration = Duration::from_millis(5);
const PS_PER_S: u64 = 1_000_000_000_000;
/// Lines that stay here: 256 KiB of data.
pub const CACHED_LINES: usize = 4096;
/// Lines that come at once after a pause: about what a core has under way.
pub const BURST_LINES: u64 = 64;
/// Bytes that lie in one memory, then in the other, where both are interleaved.
pub const GRAIN_BYTES: u64 = 16 << 10;

/// How a far memory answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarModel {
    /// From asking for a line until it is here.
    pub latency_ns: u32,
    /// Bytes a second, loads and stores together.
    pub bandwidth: u64,
}

/// Which bytes of a window are far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarBytes {
    /// From this offset on, a multiple of 64.
    From(u64),
    /// In turn so many grains of near memory and so many of far memory, not both 0.
    Interleaved([u32; 2]),
}

/// Time in picoseconds since some origin.
pub trait Clock: Debug + Send {
    fn now_ps(&self) -> u64;

    /// Returns at this time or later; the time then.
    fn wait_until(&self, ps: u64) -> u64;
}

/// The processor's clock; waits busily, without a pause, which would make it late by some 50 ns.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
    /// Where the kernel goes by the processor's counter: that is read in a third of the time.
    counter: Option<Counter>,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    origin: u64,
    /// Times 2^32.
    ps_per_tick: u64,
}

impl SystemClock {
    /// Takes some time, to compare two clocks.
    pub fn new() -> SystemClock {
        let origin = Instant::now();
        let name = fs::read_to_string(CLOCK_SOURCE);
        let is_kernels = name.is_ok_and(|name| name.trim() == "tsc");
        let counter = ticks().filter(|_| is_kernels).and_then(|first| {
            while origin.elapsed() < COMPARED {}
            let (ps, ticks) = (origin.elapsed().as_nanos() * 1000, ticks()? - first);
            let ps_per_tick = ((ps << 32) / u128::from(ticks.max(1))) as u64;
            Some(Counter { origin: first, ps_per_tick })
        });
        SystemClock { origin, counter }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now_ps(&self) -> u64 {
        match (self.counter, ticks()) {
            (Some(Counter { origin, ps_per_tick }), Some(ticks)) => {
                ((u128::from(ticks - origin) * u128::from(ps_per_tick)) >> 32) as u64
            }
            _ => self.origin.elapsed().as_nanos() as u64 * PS_PER_NS,
        }
    }

    fn wait_until(&self, ps: u64) -> u64 {
        loop {
            let now_ps = self.now_ps();
            if now_ps >= ps {
                return now_ps;
            }
        }
    }
}

/// The processor's counter, where it has one that runs at one speed.
#[inline(always)]
fn ticks() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every such processor has it.
        Some(unsafe { std::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// A line that was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct CachedLine {
    /// Its number + 1, 0 if there is none.
    tag: u64,
    here_at: u64,
}

/// A far memory, and what of it is here or on its way.
#[derive(Debug)]
pub struct FarEmulation {
    far: FarBytes,
    latency_ps: u64,
    /// Of the bucket, for one line.
    line_ps: u64,
    clock: Box<dyn Clock>,
    cached: Box<[Cell<CachedLine>]>,
    /// When all tokens that were taken have come.
    taken_until: Cell<u64>,
    /// A time that is past.
    past: Cell<u64>,
    is_own_left_out: bool,
    own_ps: Cell<u64>,
}

impl FarEmulation {
    pub fn new(model: FarModel, far: FarBytes, clock: Box<dyn Clock>) -> FarEmulation {
        FarEmulation {
            far,
            latency_ps: u64::from(model.latency_ns) * PS_PER_NS,
            line_ps: LINE_BYTES * PS_PER_S / model.bandwidth.max(1),
            clock,
            cached: vec![Cell::default(); CACHED_LINES].into(),
            taken_until: Cell::new(0),
            past: Cell::new(0),
            is_own_left_out: false,
            own_ps: Cell::new(0),
        }
    }

    /// Leaves out the time that the emulation takes for itself. For one thread: another one's time
    /// passes meanwhile.
    pub fn without_own_time(self) -> FarEmulation {
        FarEmulation { is_own_left_out: true, ..self }
    }

    /// Time that was left out so far, ps: neither waits nor the caller's.
    pub fn own_ps(&self) -> u64 {
        self.own_ps.get()
    }

    /// Whether some of these bytes may be far: told at once, so that what is near costs a reader
    /// next to nothing.
    #[inline(always)]
    pub fn may_be_far(&self, offset: u64, bytes: u64) -> bool {
        match self.far {
            FarBytes::From(from) => offset + bytes > from,
            FarBytes::Interleaved(_) => true,
        }
    }

    /// Asks for these bytes: what of them is far comes while the caller does other things. When all
    /// of it is here, ps; 0 if nothing is far.
    #[inline(always)]
    pub fn ask(&self, offset: u64, bytes: u64) -> u64 {
        if self.may_be_far(offset, bytes) { self.ask_far(offset, bytes) } else { 0 }
    }

    #[inline(never)]
    fn ask_far(&self, offset: u64, bytes: u64) -> u64 {
        let (mut now, mut here_at) = (None, 0);
        for line in self.far_lines(offset, bytes) {
            here_at = here_at.max(self.bring(line, &mut now));
        }
        self.end_own(now);
        here_at
    }

    /// Whether the line of this byte is near, or was waited for.
    pub fn is_here(&self, offset: u64) -> bool {
        let is_late = |line| {
            let CachedLine { tag, here_at } = self.cached_at(line).get();
            tag != line + 1 || here_at > self.past.get()
        };
        !self.far_lines(offset, 1).any(is_late)
    }

    /// Waits until these bytes of the window are here.
    #[inline(always)]
    pub fn read(&self, window: Bare<'_>, offset: u64, bytes: u64) {
        if self.may_be_far(offset, bytes) {
            self.read_far(window, offset, bytes);
        }
    }

    #[inline(never)]
    fn read_far(&self, window: Bare<'_>, offset: u64, bytes: u64) {
        let (mut now, mut here_at) = (None, 0);
        for line in self.far_lines(offset, bytes) {
            window.prefetch(line * LINE_BYTES);
            here_at = here_at.max(self.bring(line, &mut now));
        }
        self.end_own(now);
        self.wait_until(here_at, now);
    }

    /// Waits until the bucket has tokens for these bytes, which are stored.
    pub fn write(&self, offset: u64, bytes: u64) {
        let (mut now, mut until) = (None, 0);
        for line in self.far_lines(offset, bytes) {
            let now = *now.get_or_insert_with(|| self.now_ps());
            let cached = self.cached_at(line);
            let is_here = cached.get().tag == line + 1;
            if !is_here {
                cached.set(CachedLine { tag: line + 1, here_at: now });
            }
            until = self.take(if is_here { 1 } else { 2 }, now);
        }
        self.end_own(now);
        self.wait_until(until, now);
    }

    /// The numbers of the lines of these bytes that are far.
    fn far_lines(&self, offset: u64, bytes: u64) -> impl Iterator<Item = u64> {
        let (start, end) = (offset / LINE_BYTES, (offset + bytes).div_ceil(LINE_BYTES));
        let (first, weights) = match self.far {
            FarBytes::From(from) => (start.max(from / LINE_BYTES), [0, 1]),
            FarBytes::Interleaved(weights) => (start, weights),
        };
        let [near, far] = weights.map(u64::from);
        let is_far =
            move |line: &u64| near == 0 || line * LINE_BYTES / GRAIN_BYTES % (near + far) >= near;
        (first..end).filter(is_far)
    }

    fn cached_at(&self, line: u64) -> &Cell<CachedLine> {
        &self.cached[line as usize % CACHED_LINES]
    }

    /// When a line is here, which is asked for unless it was. The clock is read once for many.
    fn bring(&self, line: u64, now: &mut Option<u64>) -> u64 {
        let cached = self.cached_at(line);
        let CachedLine { tag, here_at } = cached.get();
        if tag == line + 1 {
            return here_at;
        }
        let now = *now.get_or_insert_with(|| self.now_ps());
        let here_at = self.take(1, now) + self.latency_ps;
        cached.set(CachedLine { tag: line + 1, here_at });
        here_at
    }

    /// Takes tokens for so many lines; when the bucket has them.
    fn take(&self, lines: u64, now: u64) -> u64 {
        let full = now.saturating_sub(BURST_LINES * self.line_ps);
        let until = self.taken_until.get().max(full) + lines * self.line_ps;
        self.taken_until.set(until);
        until.max(now)
    }

    fn now_ps(&self) -> u64 {
        self.clock.now_ps() - self.own_ps.get()
    }

    /// What was done since then does not pass.
    fn end_own(&self, since: Option<u64>) {
        if let Some(since) = since.filter(|_| self.is_own_left_out) {
            self.own_ps.set(self.own_ps.get() + self.now_ps().saturating_sub(since));
        }
    }

    /// Waits, with what the time is if that is known.
    fn wait_until(&self, ps: u64, now: Option<u64>) {
        if let Some(now) = now {
            self.past.set(now.max(self.past.get()));
        }
        if ps > self.past.get() {
            let own_ps = self.own_ps.get();
            self.past.set(self.clock.wait_until(ps + own_ps) - own_ps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Window;
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A clock that only waits and `pass` move on.
    #[derive(Clone, Debug, Default)]
    struct VirtualClock(Arc<AtomicU64>);

    impl VirtualClock {
        fn pass(&self, ps: u64) {
            // Relaxed: one thread.
            self.0.fetch_add(ps, Ordering::Relaxed);
        }
    }

    impl Clock for VirtualClock {
        fn now_ps(&self) -> u64 {
            // Relaxed: as above.
            self.0.load(Ordering::Relaxed)
        }

        fn wait_until(&self, ps: u64) -> u64 {
            // Relaxed: as above.
            self.0.fetch_max(ps, Ordering::Relaxed).max(ps)
        }
    }

    /// 250 ns, and a line each ns.
    const MODEL: FarModel = FarModel { latency_ns: 250, bandwidth: 64_000_000_000 };
    const LATENCY: u64 = 250_000;
    const LINE: u64 = 1000;
    /// When the bucket is full.
    const START: u64 = 1_000_000_000;

    struct Rig {
        clock: VirtualClock,
        far: FarEmulation,
        window: Window,
    }

    impl Rig {
        fn new(far: FarBytes) -> Rig {
            let clock = VirtualClock::default();
            clock.pass(START);
            let far = FarEmulation::new(MODEL, far, Box::new(clock.clone()));
            Rig { clock, far, window: Window::heap(64) }
        }

        /// Lines are prefetched also beyond the window.
        fn read(&self, line: u64, lines: u64) {
            self.far.read(self.window.bare(), line * LINE_BYTES, lines * LINE_BYTES);
        }

        fn ask(&self, line: u64, lines: u64) {
            self.far.ask(line * LINE_BYTES, lines * LINE_BYTES);
        }

        fn passed(&self) -> u64 {
            self.clock.now_ps() - START
        }
    }

    #[test]
    fn a_dependent_chase_costs_the_latency_for_each_line() {
        let rig = Rig::new(FarBytes::From(0));
        (0..10_000).for_each(|step| rig.read(step * 7919, 1));
        assert_eq!(rig.passed(), 10_000 * LATENCY);
    }

    #[test]
    fn lines_of_one_read_come_together_and_those_beyond_the_burst_by_their_tokens() {
        for (lines, extra) in [(1, 0), (BURST_LINES, 0), (BURST_LINES + 1, 1), (1000, 936)] {
            let rig = Rig::new(FarBytes::From(0));
            rig.read(0, lines);
            assert_eq!(rig.passed(), LATENCY + extra * LINE, "{lines} lines");
        }
    }

    #[test]
    fn a_stream_that_is_asked_for_early_runs_at_the_bandwidth() {
        let (rig, ahead, lines) = (Rig::new(FarBytes::From(0)), 512, 100_000);
        rig.ask(0, ahead);
        for line in 0..lines {
            rig.read(line, 1);
            rig.ask(line + ahead, 1);
        }
        assert_eq!(rig.passed(), (lines - BURST_LINES) * LINE + LATENCY);
    }

    #[test]
    fn a_stream_with_few_lines_under_way_runs_at_so_many_a_latency() {
        let (rig, ahead, lines) = (Rig::new(FarBytes::From(0)), 8, 80_000);
        rig.ask(0, ahead);
        for line in 0..lines {
            rig.read(line, 1);
            rig.ask(line + ahead, 1);
        }
        assert_eq!(rig.passed(), lines / ahead * LATENCY);
    }

    #[test]
    fn what_the_caller_does_meanwhile_is_not_waited_for() {
        for work in [0, 100_000, LATENCY - 1, LATENCY, 400_000] {
            let rig = Rig::new(FarBytes::From(0));
            for step in 0..1000 {
                rig.ask(step * 7919, 2);
                rig.clock.pass(work);
                rig.read(step * 7919, 2);
            }
            assert_eq!(rig.passed(), 1000 * work.max(LATENCY), "{work} ps of work");
        }
    }

    #[test]
    fn a_mixture_costs_each_part_by_its_share() {
        // Near reads take 100 ns; of 4 grains one is far, or all from the fourth one on.
        let grain = GRAIN_BYTES / LINE_BYTES;
        for far in [FarBytes::Interleaved([3, 1]), FarBytes::From(3 * GRAIN_BYTES)] {
            let rig = Rig::new(far);
            for line in 0..4 * grain {
                rig.clock.pass(100_000);
                rig.read(line, 1);
            }
            assert_eq!(rig.passed(), 4 * grain * 100_000 + grain * LATENCY, "{far:?}");
        }
    }

    #[test]
    fn pages_of_two_memories_by_weights_come_as_quickly_as_the_fuller_one_gives_them() {
        const PAGE_LINES: u64 = 64;
        let (turns, ahead) = (1000, 64);
        for weights in [[4, 1], [1, 1], [9, 1]] {
            let clock = VirtualClock::default();
            clock.pass(START);
            let memories = [1, 4].map(|slower| {
                let model = FarModel { bandwidth: MODEL.bandwidth / slower, ..MODEL };
                FarEmulation::new(model, FarBytes::From(0), Box::new(clock.clone()))
            });
            let [near, far] = weights;
            let ask = |page: u64| {
                let which = usize::from(page % (near + far) >= near);
                memories[which].ask(page * PAGE_LINES * LINE_BYTES, PAGE_LINES * LINE_BYTES)
            };
            let pages = turns * (near + far);
            let mut coming: VecDeque<u64> = (0..ahead).map(ask).collect();
            for page in ahead..pages + ahead {
                clock.wait_until(coming.pop_front().unwrap());
                coming.extend((page < pages).then(|| ask(page)));
            }
            let lines = weights.map(|weight| turns * weight * PAGE_LINES - BURST_LINES);
            let passed = clock.now_ps() - START;
            assert_eq!(passed, LATENCY + (lines[0] * LINE).max(lines[1] * 4 * LINE), "{weights:?}");
        }
    }

    #[test]
    fn a_line_that_is_here_costs_nothing_until_another_takes_its_place() {
        let rig = Rig::new(FarBytes::From(0));
        for (line, reads) in [(5, 1), (5, 1), (5 + CACHED_LINES as u64, 2), (5, 3), (5, 3)] {
            rig.read(line, 1);
            assert_eq!(rig.passed(), reads * LATENCY);
        }
    }

    #[test]
    fn stores_wait_for_the_bucket_alone_and_what_they_stored_is_here() {
        let (rig, lines) = (Rig::new(FarBytes::From(0)), 1000);
        let write = || rig.far.write(0, lines * LINE_BYTES);
        write();
        assert_eq!(rig.passed(), (2 * lines - BURST_LINES) * LINE);
        rig.read(0, lines);
        assert_eq!(rig.passed(), (2 * lines - BURST_LINES) * LINE);
        write();
        assert_eq!(rig.passed(), (3 * lines - BURST_LINES) * LINE);
    }
}
