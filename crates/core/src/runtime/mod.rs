//! The runtime, as far as the product and the simulator share it: what connects, joins, repeats
//! and gives up, as `async fn`s over a host that gives time, connections and memory. A blocking
//! host does each thing where it is asked for, so its futures never pend; the simulator's go on in
//! virtual time.

pub mod client;

use crate::addr::SessionId;
use crate::error::Result;

/// Time and random names.
#[allow(async_fn_in_trait, reason = "a host is known where it is used, and of one thread")]
pub trait Environment {
    type Instant: Copy + Ord;
    fn now(&self) -> Self::Instant;
    /// The time `ms` milliseconds from now.
    fn after_ms(&self, ms: u64) -> Self::Instant;
    /// Milliseconds from one time to a later one, 0 if it is earlier.
    fn between_ms(from: Self::Instant, to: Self::Instant) -> u64;
    async fn sleep_ms(&mut self, ms: u64);
    /// A name that no session has.
    ///
    /// # Errors
    /// `io` without randomness.
    fn new_session(&mut self) -> Result<SessionId>;
}

/// The pauses between tries: they double, up to a longest one.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pause_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause_ms: 1 }
    }
}

impl Backoff {
    /// Longest pause between two tries to reach a rack that is gone, ms.
    pub const PAUSE_MS_MAX: u64 = 50;

    /// Whether the pauses have become as long as they get.
    pub fn is_longest(&self) -> bool {
        self.pause_ms == Self::PAUSE_MS_MAX
    }

    /// Waits before the next try.
    pub async fn pause(&mut self, environment: &mut impl Environment) {
        environment.sleep_ms(self.pause_ms).await;
        self.pause_ms = (self.pause_ms * 2).min(Self::PAUSE_MS_MAX);
    }
}
