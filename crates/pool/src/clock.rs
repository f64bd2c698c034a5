//! The one clock of the runtime: monotonic nanoseconds, the same for all processes of a host.

use rackpool_core::seam::Nanos;
use std::time::{Duration, Instant};

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
