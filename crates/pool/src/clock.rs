//! The one clock of the runtime: monotonic nanoseconds, the same for all processes of a host; and
//! how what waits by it is interrupted.

use rackpool_core::seam::Nanos;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// How long a wait of an interruptible call lasts before it is asked again, ns.
const INTERRUPT_SLICE_NS: Nanos = 20_000_000;

thread_local! {
    /// What the waits of this thread ask, and from when on: 0 while it has not waited yet.
    static INTERRUPT: Cell<Option<(fn() -> bool, Nanos)>> = const { Cell::new(None) };
}

/// What an interrupted call unwinds with.
#[derive(Debug)]
struct Interrupted;

/// Runs `work`, and asks `is_interrupted` every 20 ms while a call of a handle in it waits. If it
/// is, `None`: the call has ended in the middle, as if its process had died there, and its handle
/// is to be dropped. For languages that must not be kept from their signals; not for handles that
/// share connections.
#[doc(hidden)]
pub fn interruptible<R>(is_interrupted: fn() -> bool, work: impl FnOnce() -> R) -> Option<R> {
    let outer = INTERRUPT.replace(Some((is_interrupted, 0)));
    let result = catch_unwind(AssertUnwindSafe(work));
    INTERRUPT.set(outer);
    match result {
        Ok(result) => Some(result),
        Err(panic) if panic.is::<Interrupted>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Until when to wait at once: in a call that may be interrupted, a while.
pub(crate) fn slice(deadline_ns: Nanos) -> Nanos {
    let Some((is_interrupted, mut ask_at_ns)) = INTERRUPT.get() else { return deadline_ns };
    let now_ns = now_ns();
    if now_ns >= ask_at_ns {
        if ask_at_ns > 0 && is_interrupted() {
            // What is dropped on the way may wait too, and is not interrupted again.
            INTERRUPT.set(None);
            resume_unwind(Box::new(Interrupted));
        }
        ask_at_ns = now_ns + INTERRUPT_SLICE_NS;
        INTERRUPT.set(Some((is_interrupted, ask_at_ns)));
    }
    deadline_ns.min(ask_at_ns)
}

/// Sleeps, for a call that may be interrupted.
pub(crate) fn sleep_ns(ns: Nanos) {
    let until = now_ns().saturating_add(ns);
    loop {
        let left = slice(until).saturating_sub(now_ns());
        std::thread::sleep(Duration::from_nanos(left));
        if now_ns() >= until {
            return;
        }
    }
}

pub(crate) fn now_ns() -> Nanos {
    rackpool_mem::process::monotonic_ns()
}

/// The time `ms` milliseconds from now, ns.
pub(crate) fn deadline_ns(ms: u64) -> Nanos {
    now_ns().saturating_add(ms.saturating_mul(1_000_000))
}

/// The `Instant` of a time of this clock, for interfaces that want one.
pub(crate) fn instant(deadline_ns: Nanos) -> Instant {
    Instant::now() + Duration::from_nanos(deadline_ns.saturating_sub(now_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_interrupted_and_others_are_not() {
        let began = now_ns();
        assert_eq!(interruptible(|| true, || sleep_ns(5_000_000_000)), None);
        assert!(now_ns() - began < 1_000_000_000);
        assert_eq!(interruptible(|| false, || sleep_ns(1_000_000)), Some(()));
        sleep_ns(1_000_000);
        let other = catch_unwind(|| interruptible(|| false, || panic!("another panic")));
        assert!(other.is_err());
    }
}
