//! Fabrics: one-sided operations on memory that is elsewhere. `tcp` frames them over sockets,
//! `shm` copies, because the other rack is mapped; `proxied` has the own rack's daemon do it.
//!
//! Owns what both share: local buffers and their registration, connection numbers, counters and
//! errors of setting up. In: work requests of an engine or a handle. Out: `FabricEvent`. Used by
//! one thread per endpoint; the tcp target has a thread of its own.
//!
//! Source: DESIGN §1 (`Fabric`), §3 (paths), §4 (liveness).
#![cfg(not(any(loom, shuttle)))]

mod buffers;
mod endpoint;
mod peers;
pub mod proxied;
pub mod shm;
pub mod tcp;

pub use buffers::{LocalBuffer, ScopedBuffers};
pub use endpoint::Endpoint;

use rackpool_core::seam::{BufId, Fabric, Nanos, Sge};
use rackpool_core::target::TooShort;
use std::net::SocketAddr;
use std::sync::Arc;

/// Where a fabric says, in one line, why it ended a connection.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A log that writes lines to standard error.
pub fn log_to_stderr() -> Log {
    Arc::new(|line| eprintln!("fabric: {line}"))
}

/// Why a fabric could not be set up or extended. Operations themselves answer with
/// `WorkStatus` and `PostError`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Only this host may be spoken to. Do not retry.
    #[error(
        "{addr} is not a loopback address: other addresses need authentication, which the tcp \
         fabric does not have yet"
    )]
    NotLoopback {
        /// The address asked for.
        addr: SocketAddr,
    },
    /// All connections of the endpoint are in use. Close one first.
    #[error("busy: the fabric endpoint has {limit} connections, which is the limit")]
    PeersFull {
        /// The bound.
        limit: u32,
    },
    /// All registrations of the endpoint are in use. Take a buffer back first.
    #[error("busy: the fabric endpoint has {limit} local buffers registered, which is the limit")]
    BuffersFull {
        /// The bound.
        limit: usize,
    },
    /// The memory handed over does not fit its layout. Do not retry.
    #[error("fabric memory: {what} has {found_bytes} bytes, {needed_bytes} are needed")]
    Geometry {
        /// Which part.
        what: &'static str,
        /// Its length.
        found_bytes: u64,
        /// What the layout needs.
        needed_bytes: u64,
    },
    /// The system refused. Whether to retry depends on `source`.
    #[error("fabric: {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl From<TooShort> for FabricError {
    fn from(short: TooShort) -> Self {
        let TooShort { what, found_bytes, needed_bytes } = short;
        FabricError::Geometry { what, found_bytes, needed_bytes }
    }
}

impl FabricError {
    pub(crate) fn io<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| FabricError::Io { what, source: error.into() }
    }
}

/// A fabric endpoint whose local buffers are private memory of this process. All of it is used by
/// the thread that owns the endpoint.
pub trait LocalBuffers: Fabric + Sized {
    /// Lends `buffers` to the endpoint while `run` runs; work requests name them by the ids of
    /// [`ScopedBuffers`]. On return, also by panic, no work request refers to them any more:
    /// data of a READ under way is discarded from then on, and a connection on which a WRITE or
    /// SEND of them was not sent to its end is closed. Whoever waited for his completions inside
    /// `run` sees neither.
    ///
    /// Errors: `BuffersFull`. Exchanging `*endpoint` for another endpoint inside `run` aborts the
    /// process, because the loan could not be ended.
    fn with_buffers<R>(
        &mut self,
        buffers: &mut [LocalBuffer<'_>],
        run: impl FnOnce(&mut Self, ScopedBuffers) -> R,
    ) -> Result<R, FabricError>;

    /// Gives a buffer to the endpoint, for READ, WRITE and SEND. Errors: `BuffersFull`.
    fn register(&mut self, bytes: Vec<u8>) -> Result<BufId, FabricError>;

    /// Takes a registered buffer back. Work requests under way end as at the end of
    /// [`LocalBuffers::with_buffers`]. Panics if `buf` is not registered.
    fn take(&mut self, buf: BufId) -> Vec<u8>;

    /// A registered buffer's bytes. Panics if `buf` is not one of [`LocalBuffers::register`].
    fn buffer(&self, buf: BufId) -> &[u8];

    /// As [`LocalBuffers::buffer`], to be changed.
    fn buffer_mut(&mut self, buf: BufId) -> &mut [u8];

    /// A part of a buffer that is registered or lent now. Panics if it is not, or is shorter.
    fn piece(&self, piece: &Sge) -> &[u8];

    /// As [`LocalBuffers::piece`], to be changed. Panics also if it was lent to send from.
    fn piece_mut(&mut self, piece: &Sge) -> &mut [u8];
}

/// Counters of an endpoint or a target since it was started. Calls to the system that moved
/// nothing (an empty socket, a full one) are counted apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricStats {
    /// Operations: completed at an endpoint, answered at a target. Without PING.
    pub ops: u64,
    /// System calls that sent something.
    pub send_calls: u64,
    /// System calls that received something.
    pub recv_calls: u64,
    /// System calls that found the socket full or empty.
    pub empty_calls: u64,
    /// Bytes sent, headers included.
    pub sent_bytes: u64,
    /// Bytes received, headers included.
    pub received_bytes: u64,
    /// PINGs sent or answered.
    pub pings: u64,
}

/// Monotonic time in nanoseconds, the clock of everything in this module that is not handed one.
#[inline]
pub fn monotonic_ns() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Busy for `ns`: the injected latency of an emulated fabric.
pub(crate) fn spin_for(ns: u32) {
    let end = monotonic_ns() + u64::from(ns);
    while monotonic_ns() < end {
        std::hint::spin_loop();
    }
}
