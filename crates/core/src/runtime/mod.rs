//! What the processes of a pool do around their engines, written once: the product gives it
//! sockets, clocks and mapped memory, the simulator virtual time and a network of its own. Neither
//! I/O nor a clock is in here.
//!
//! What waits is an `async fn` over its host. A blocking host does each thing where it is asked
//! for, so its futures never pend; the simulator's go on in virtual time.

mod backoff;
pub mod client;
pub mod daemon;
pub mod master_link;
pub mod relocation;
pub mod replicas;
mod worker;

pub use backoff::{Backoff, jittered_ns};
pub use worker::WorkerHost;

use crate::addr::SessionId;
use crate::error::Result;
use crate::seam::Nanos;

/// Time and random names.
#[allow(async_fn_in_trait, reason = "a host is known where it is used, and of one thread")]
pub trait Environment {
    type Instant: Copy + Ord;
    fn now(&self) -> Self::Instant;
    /// The time `ms` milliseconds from now.
    fn after_ms(&self, ms: u64) -> Self::Instant;
    /// Milliseconds from one time to a later one, 0 if it is earlier.
    fn between_ms(from: Self::Instant, to: Self::Instant) -> u64;
    async fn sleep_ns(&mut self, ns: Nanos);
    /// A name that no session has.
    ///
    /// # Errors
    /// `io` without randomness.
    fn new_session(&mut self) -> Result<SessionId>;
}
