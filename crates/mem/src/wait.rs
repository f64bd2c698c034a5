//! Adaptive waiting: spin, then yield the processor, then sleep. A [`Waiter`] says which of the
//! three comes next; [`sleep_until_woken`] and [`wake_if_sleeping`] are the two ends of sleeping on
//! a word of shared memory without lost wake-ups.
//!
//! In: a window and the offset of a sleeping word (1 while its owner sleeps or is about to, else
//! 0). Called by the rings' consumers, and by poll loops that sleep in `epoll` instead and only
//! use the `Waiter`.
//!
//! Ordering: the sleeper stores 1, executes a full fence, looks once more for work, sleeps; the
//! waker publishes work, executes a full fence, looks at the word. One of the two sees the other.
//! (A process-wide barrier by the sleeper instead of the waker's fence was measured: no gain.)
//! A waker that is killed between clearing the word and waking leaves the sleeper asleep, so
//! every sleep has a timeout.
//!
//! Two ends on one core must not crawl, and two ends that are pinned to a core each must spin; a
//! thread cannot tell which it is from its own rights. So it learns: one that spun in vain spins
//! less the next time. Where the machine has one processor, no thread spins.
//!
//! Source: DESIGN §3 (adaptive waiting).

use crate::sync::{spin_loop, yield_now};
use crate::window::Window;
use rackpool_core::seam::Mem;
use std::sync::OnceLock;
use std::time::Duration;

/// Spins before the first yield at most: some 50 µs, about what a sleep and its wake-up cost on a
/// virtual machine, so that waiting costs at most twice the best choice.
const SPINS_MAX: u32 = 2048;
/// Spins that are always tried: some 1.5 µs, in which the other end answers if it runs at all, and
/// which two ends on one core can afford.
const SPINS_MIN: u32 = 64;
/// Yields before sleeping at most: each lets one other thread of this core run, or costs some
/// 0.5 µs if there is none.
const YIELDS_MAX: u32 = 64;
/// Yields that are always tried: the other end had its turn on this core.
const YIELDS_MIN: u32 = 2;

/// Between two looks at a word that another processor writes, where a pause of the processor would
/// be longer than the wait: no look is begun before the last one has come. A processor that looks
/// ahead has several under way, and begins anew when the line is taken from it meanwhile, which was
/// measured to cost some 20 ns of a round trip of 190. Takes some nanoseconds.
#[inline(always)]
pub fn look_again() {
    #[cfg(all(target_arch = "x86_64", not(any(feature = "modelled", miri))))]
    // SAFETY: every x86-64 has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(feature = "modelled", miri)))))]
    spin_loop();
}

/// What a waiting loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    Spun,
    /// Look again; this thread let others run, so the time may have passed.
    Yielded,
    /// Nothing came for a while: sleep, where that is possible.
    Sleep,
}

/// The waiting of one loop, adapted to what helped before. Not shared among threads.
#[derive(Clone, Debug)]
pub struct Waiter {
    spins_limit: u32,
    yields_limit: u32,
    spins: u32,
    yields: u32,
}

impl Default for Waiter {
    fn default() -> Self {
        Self::new()
    }
}

impl Waiter {
    /// A waiter for the calling thread.
    pub fn new() -> Waiter {
        let spins_limit = if processors() > 1 { SPINS_MAX } else { 0 };
        Waiter { spins_limit, yields_limit: YIELDS_MAX, spins: 0, yields: 0 }
    }

    /// Waits a short time, longer the more often it is called without [`Waiter::progressed`].
    #[inline]
    pub fn pause(&mut self) -> Pause {
        if self.spins < self.spins_limit {
            self.spins += 1;
            spin_loop();
            return Pause::Spun;
        }
        self.pause_longer()
    }

    /// What was waited for has come: the next wait starts anew. Spinning that found it is worth
    /// more next time, spinning that did not, less; and so it is with yielding.
    #[inline]
    pub fn progressed(&mut self) {
        if self.spins == 0 && self.yields == 0 {
            return;
        }
        if self.spins < self.spins_limit {
            self.spins_limit = (self.spins_limit * 2).min(SPINS_MAX);
        } else if self.spins_limit > SPINS_MIN {
            self.spins_limit = (self.spins_limit / 2).max(SPINS_MIN);
        }
        if self.yields == self.yields_limit {
            self.yields_limit = (self.yields_limit / 2).max(YIELDS_MIN);
        } else if self.yields > 0 {
            self.yields_limit = (self.yields_limit * 2).min(YIELDS_MAX);
        }
        self.spins = 0;
        self.yields = 0;
    }

    #[cold]
    fn pause_longer(&mut self) -> Pause {
        // Models have no time: there a thread sleeps at once, so that every sleep is explored.
        if self.yields < self.yields_limit && cfg!(not(feature = "modelled")) {
            self.yields += 1;
            yield_now();
            return Pause::Yielded;
        }
        Pause::Sleep
    }
}

/// The processors of this machine that are online, whichever the calling thread may use.
fn processors() -> i64 {
    static COUNT: OnceLock<i64> = OnceLock::new();
    *COUNT.get_or_init(|| {
        if cfg!(feature = "modelled") {
            return 1;
        }
        // SAFETY: asks for a number.
        unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
    })
}

/// Sleeps on the sleeping word at `offset` until [`wake_if_sleeping`] or the timeout, or not at
/// all if `is_ready` says so after the word was set. May return early for no reason.
pub fn sleep_until_woken(
    window: &Window,
    offset: u64,
    is_ready: impl FnOnce() -> bool,
    timeout: Duration,
) {
    window.store(offset, 1);
    window.flush(offset, 8);
    // Pairs with the fence in wait.rs::wake_if_sleeping: either we see the work below, or the
    // waker sees the 1.
    window.fence();
    if !is_ready() {
        window.futex_wait(offset, 1, timeout);
    }
    window.store(offset, 0);
    window.flush(offset, 8);
}

/// Wakes the owner of the sleeping word at `offset` if it sleeps or is about to; whether it did.
/// Called after the work has been published. A sleeper on another host, which only the software
/// keeps coherent, is not woken: no call here reaches it, and the word's line is its own. Then
/// `true` asks the caller to have a process there call `ring::wake`.
#[inline]
pub fn wake_if_sleeping(window: &Window, offset: u64) -> bool {
    // Pairs with the fence in wait.rs::sleep_until_woken.
    window.fence();
    window.invalidate(offset, 8);
    if window.load(offset) == 0 {
        return false;
    }
    if window.is_coherent() {
        wake(window, offset);
    }
    true
}

/// Wakes the owner of the sleeping word at `offset`, which is of this host.
#[cold]
pub(crate) fn wake(window: &Window, offset: u64) {
    // Cleared first: the next publications need not call the kernel again, and a sleeper that has
    // not reached the kernel yet finds the word changed there.
    window.store(offset, 0);
    window.flush(offset, 8);
    window.futex_wake(offset);
}

#[cfg(all(test, not(feature = "modelled")))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_waiter_spins_then_yields_then_sleeps() {
        // As on a machine with more than one processor.
        let mut waiter = Waiter { spins_limit: SPINS_MAX, ..Waiter::new() };
        let mut seen = vec![];
        for _ in 0..SPINS_MAX + YIELDS_MAX + 1 {
            let pause = waiter.pause();
            if seen.last() != Some(&pause) {
                seen.push(pause);
            }
        }
        assert_eq!(seen, [Pause::Spun, Pause::Yielded, Pause::Sleep]);
        assert_eq!(waiter.pause(), Pause::Sleep);
        waiter.progressed();
        assert_eq!(waiter.pause(), Pause::Spun);
    }

    #[test]
    fn spinning_that_never_helps_becomes_short_and_recovers_when_it_helps() {
        let mut waiter = Waiter { spins_limit: SPINS_MAX, ..Waiter::new() };
        for _ in 0..20 {
            while waiter.pause() == Pause::Spun {}
            waiter.progressed();
        }
        assert_eq!(waiter.spins_limit, SPINS_MIN);
        for _ in 0..20 {
            waiter.pause();
            waiter.progressed();
        }
        assert_eq!(waiter.spins_limit, SPINS_MAX);
    }

    #[test]
    fn yielding_that_never_helps_becomes_short_and_recovers_when_it_helps() {
        let mut waiter = Waiter { spins_limit: 0, ..Waiter::new() };
        for _ in 0..20 {
            while waiter.pause() != Pause::Sleep {}
            waiter.progressed();
        }
        assert_eq!(waiter.yields_limit, YIELDS_MIN);
        for _ in 0..20 {
            assert_eq!(waiter.pause(), Pause::Yielded);
            waiter.progressed();
        }
        assert_eq!(waiter.yields_limit, YIELDS_MAX);
    }

    #[test]
    fn a_sleep_without_a_wake_up_ends_with_its_timeout() {
        let window = Window::heap(4096);
        let start = Instant::now();
        sleep_until_woken(&window, 64, || false, Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(15));
        assert_eq!(window.load(64), 0);
    }

    #[test]
    fn work_that_came_before_the_sleep_prevents_it() {
        let window = Window::heap(4096);
        let start = Instant::now();
        sleep_until_woken(&window, 64, || true, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
        assert!(!wake_if_sleeping(&window, 64));
    }

    #[test]
    #[cfg(not(miri))]
    fn a_sleeper_of_another_host_is_left_to_somebody_there() {
        let here = Window::heap(4096);
        let there = here.clone().with_coherence(false);
        assert!(!wake_if_sleeping(&there, 64));
        let woken = || {
            // As the producer on the other host sees it; it does not touch the word.
            assert!(wake_if_sleeping(&there, 64));
            assert!(wake_if_sleeping(&there, 64));
            assert_eq!(here.load(64), 1);
            // A process of this host, asked by it, before the sleep has begun.
            wake(&here, 64);
            false
        };
        let start = Instant::now();
        sleep_until_woken(&here, 64, woken, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30), "the wake-up was lost");
        assert!(!wake_if_sleeping(&there, 64));
    }

    #[test]
    fn a_sleeper_is_woken_by_another_thread_every_time() {
        let window = Window::heap(4096);
        let rounds = 2000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    while window.load(0) < round {
                        let ready = || window.load(0) >= round;
                        sleep_until_woken(&window, 64, ready, Duration::from_secs(60));
                    }
                    window.store(128, round);
                }
            });
            let start = Instant::now();
            for round in 1..=rounds {
                window.store(0, round);
                wake_if_sleeping(&window, 64);
                while window.load(128) < round {
                    std::thread::yield_now();
                }
            }
            assert!(start.elapsed() < Duration::from_secs(60), "a wake-up was lost");
        });
    }
}
