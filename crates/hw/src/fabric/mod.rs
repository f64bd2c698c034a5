//! Fabrics: one-sided operations on memory that is elsewhere. `tcp` frames them over sockets,
//! `shm` copies, because the other rack is mapped; `proxied` has the own rack's daemon do it;
//! `verbs` (a feature) has RDMA devices do it.
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
mod queues;
pub mod shared;
pub mod shm;
mod target;
pub mod tcp;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use buffers::{LocalBuffer, ScopedBuffers};
pub use endpoint::Endpoint;
pub use target::Target;

use crate::secret::Secret;
use rackpool_core::seam::{BufId, Fabric, Nanos, Sge};
use rackpool_core::target::TooShort;
use std::net::{IpAddr, SocketAddr};

/// What carries one-sided operations to other hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    /// Frames on sockets, executed by threads.
    #[default]
    Tcp,
    Verbs,
}

/// What an endpoint or a target is started on.
#[derive(Clone)]
pub struct FabricOptions {
    pub over: Over,
    /// The device, `NAME[:PORT][/GID]`, if devices do; the first one with a port that is up if it
    /// is not named.
    pub device: Option<String>,
    /// What is proved to peers, and they have to prove; without it only loopback addresses can be.
    pub secret: Option<Secret>,
}

impl Default for FabricOptions {
    fn default() -> Self {
        Self { over: Over::Tcp, device: None, secret: None }
    }
}

impl FabricOptions {
    #[cfg(feature = "verbs")]
    fn device_choice(&self) -> Result<verbs::DeviceChoice, FabricError> {
        Ok(self.device.as_deref().unwrap_or_default().parse()?)
    }
}

impl From<FabricOptions> for tcp::TcpEndpointOptions {
    fn from(FabricOptions { secret, .. }: FabricOptions) -> Self {
        Self { secret, ..Self::default() }
    }
}

/// Why a fabric could not be set up or extended. Operations themselves answer with
/// `WorkStatus` and `PostError`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Without a secret only this host may be spoken to. Do not retry.
    #[error(
        "{addr} is not a loopback address: other addresses need authentication, a secret that all \
         processes of the pool are given (--secret-file)"
    )]
    NotLoopback { addr: SocketAddr },
    /// All connections of the endpoint are in use. Close one first.
    #[error("the fabric endpoint has {limit} connections, which is the limit")]
    PeersFull { limit: u32 },
    /// The table of a target's connections is full, or an address has its share of it.
    #[error("{from} was told that the target is busy: {limit} connections are there")]
    Busy { from: IpAddr, limit: usize },
    /// All registrations of the endpoint are in use. Take a buffer back first.
    #[error("the fabric endpoint has {limit} local buffers registered, which is the limit")]
    BuffersFull { limit: usize },
    /// The memory handed over does not fit its layout. Do not retry.
    #[error("fabric memory: {what} has {found_bytes} bytes, {needed_bytes} are needed")]
    Geometry { what: &'static str, found_bytes: u64, needed_bytes: u64 },
    /// The program was built without it. Do not retry.
    #[error(
        "fabric `verbs` is not in this program: build it with `--features verbs`, or use fabric \
         `tcp`"
    )]
    NoVerbs,
    /// What devices send one another goes past this program. Do not retry.
    #[error(
        "fabric `verbs` does not encrypt, and the secret's file asks for it (`encrypt:`): take it \
         out, and protect the network by other means (MACsec, IPsec of the devices), or use fabric \
         `tcp`"
    )]
    NotEncrypted,
    /// The device or its library refused; see there.
    #[cfg(feature = "verbs")]
    #[error("fabric: {0}")]
    Verbs(#[from] verbs::VerbsError),
    /// The system refused. Whether to retry depends on `source`.
    #[error("fabric: {what}: {source}")]
    Io { what: &'static str, source: std::io::Error },
}

impl From<TooShort> for FabricError {
    fn from(short: TooShort) -> Self {
        let TooShort { what, found_bytes, needed_bytes } = short;
        FabricError::Geometry { what, found_bytes, needed_bytes }
    }
}

impl FabricError {
    /// Whether this program or this machine has not what was asked for.
    pub fn is_absence(&self) -> bool {
        match self {
            FabricError::NoVerbs | FabricError::NotEncrypted => true,
            #[cfg(feature = "verbs")]
            FabricError::Verbs(error) => error.is_absence(),
            _ => false,
        }
    }

    pub(crate) fn io<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| FabricError::Io { what, source: error.into() }
    }
}

/// A fabric endpoint with local buffers in private memory of this process. All of it is used by the
/// thread that owns the endpoint.
pub trait LocalBuffers: Fabric + Sized {
    /// Lends `buffers` to the endpoint while `run` runs; work requests name them by the ids of
    /// [`ScopedBuffers`]. On return, also by panic, no work request refers to them any more:
    /// data of a READ under way is discarded from then on, and a connection on which a WRITE or
    /// SEND of them was not sent to its end is closed. A caller that waited for its completions
    /// inside `run` sees neither.
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
    pub pings: u64,
    pub connections: u64,
    /// Connections that a target refused because the secret was not proved.
    pub refused: u64,
}

/// One wait in so many looks without pause for the full time, to learn whether that helps again.
const SPIN_PROBES: u32 = 64;

/// How long waits look without pause before they give way between looks, and how long they do
/// that before they sleep. It learns: where looking without pause does not help, as when the other
/// end shares the core, a wait does so for a quarter of the time.
struct Patience {
    waits: u32,
    spin_ns: Nanos,
    spin_ns_max: Nanos,
    yield_ns: Nanos,
}

impl Patience {
    fn new(spin_ns_max: u32, yield_ns: u32) -> Self {
        let spin_ns_max = spin_ns_max.into();
        Self { waits: 0, spin_ns: spin_ns_max, spin_ns_max, yield_ns: yield_ns.into() }
    }

    /// For the next wait: how long without pause, then how long giving way, nanoseconds.
    fn begin(&mut self) -> (Nanos, Nanos) {
        self.waits = self.waits.wrapping_add(1);
        let is_probe = self.waits.is_multiple_of(SPIN_PROBES);
        (if is_probe { self.spin_ns_max } else { self.spin_ns }, self.yield_ns)
    }

    /// A wait that was to look without pause for `spin_ns` was over after `idle_ns`.
    fn learn(&mut self, spin_ns: Nanos, idle_ns: Nanos) {
        let helped = idle_ns < spin_ns;
        self.spin_ns = if helped { spin_ns * 2 } else { spin_ns / 2 };
        self.spin_ns = self.spin_ns.clamp(self.spin_ns_max / 4, self.spin_ns_max);
    }
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
