//! A worker beside a daemon's loop: it has a client handle, with which it runs one operation after
//! another, and ends when it is asked to.

use crate::client::Operation;
use crate::error::Result;
use crate::seam::{Mem, Nanos};

#[allow(async_fn_in_trait, reason = "a host is known where it is used, and of one thread")]
pub trait WorkerHost<M: Mem> {
    /// The time of the host, by the clock that clients read replicas by.
    fn now_ns(&self) -> Nanos;
    /// Whether the worker is to end.
    fn is_stopped(&self) -> bool;
    /// Returns when the time is up, or the worker is to end.
    async fn sleep(&mut self, ns: Nanos);
    /// Runs the operation that `make` makes of a number; this and the next one are of no other work
    /// request of the handle. Its piece 0 is a buffer of
    /// [`Migrate::buffer_bytes`](crate::client::Migrate::buffer_bytes).
    ///
    /// # Errors
    /// Those of the operation, and of opening the handle.
    async fn perform<O: Operation<M>>(&mut self, make: impl FnOnce(u64) -> O) -> Result<O::Output>;
}
