//! Pauses between attempts.

use crate::seam::Nanos;

/// Pauses that double up to a limit.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    min_ns: Nanos,
    max_ns: Nanos,
    next_ns: Nanos,
}

impl Backoff {
    pub const fn ms(min_ms: u64, max_ms: u64) -> Self {
        let (min_ns, max_ns) = (min_ms * 1_000_000, max_ms * 1_000_000);
        Self { min_ns, max_ns, next_ns: min_ns }
    }

    /// The pause before the next attempt.
    pub fn pause_ns(&mut self) -> Nanos {
        let pause_ns = self.next_ns;
        self.next_ns = (2 * pause_ns).min(self.max_ns);
        pause_ns
    }

    /// Whether the pauses have become as long as they get.
    pub fn is_longest(&self) -> bool {
        self.next_ns == self.max_ns
    }

    /// An attempt succeeded: the next pause is the shortest.
    pub fn reset(&mut self) {
        self.next_ns = self.min_ns;
    }
}

/// Between half and all of a pause, so that a thousand clients do not come as one. `random` is any
/// number.
pub fn jittered_ns(pause_ns: Nanos, random: u64) -> Nanos {
    let half_ns = pause_ns / 2;
    half_ns + random % half_ns.max(1)
}
