//! Fabrics: one-sided operations on memory that is elsewhere. `tcp` frames them over sockets,
//! `shm` copies, because the other rack is mapped; `proxied` has the own rack's daemon do it;
//! `verbs` (a feature) has RDMA devices do it.
//!
//! Owns what both share: local buffers and their registration, connection numbers, counters and
//! errors of setting up. In: work requests of an engine or a handle. Out: `FabricEvent`. Used by
//! one thread per endpoint; the tcp target has a thread of its own.
//!
//! Source: DESIGN §1 (`Fabric`), §3 (paths), §4 (liveness).

pub mod acceptor;
pub mod addresses;
mod buffers;
mod close;
pub mod control;
mod endpoint;
pub mod handshake;
mod limits;
pub mod proxied;
mod queues;
pub mod secret;
pub mod secure_stream;
pub mod shared;
pub mod shm;
mod sockets;
mod target;
pub mod tcp;
#[cfg(feature = "verbs")]
pub mod verbs;
mod waiting;

pub use buffers::{LocalBuffer, ScopedBuffers};
pub use endpoint::Endpoint;
pub use queues::TargetSendError;
pub use target::{Target, TargetCounters, TargetOptions};

use crate::secret::Secret;
use rackpool_core::constants::{
    CELLS, FABRIC_OUTSTANDING_MAX, LEASE_MS_DEFAULT, VERBS_FRAMES_OPEN_MAX,
};
use rackpool_core::layout::RegionLayout;
use rackpool_core::seam::{BufId, Capabilities, Fabric, Sge};
use rackpool_core::target::TooShort;
use rackpool_mem::process::monotonic_ns;
use std::net::{IpAddr, SocketAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

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
    fn device_options(&self) -> Result<verbs::DeviceOptions, FabricError> {
        let device = self.device.as_deref().unwrap_or_default().parse()?;
        Ok(verbs::DeviceOptions { device, ..Default::default() })
    }
}

/// How an endpoint waits, and what it trusts.
#[derive(Clone)]
pub struct EndpointOptions {
    /// A target that says nothing for this long while it is asked is dead, milliseconds.
    pub lease_ms: u64,
    /// Injected latency: completions of one-sided operations come this much later, nanoseconds. Of
    /// no effect on a device.
    pub emulate_rdma_ns: u32,
    /// How long a wait looks without pause at most, nanoseconds; where that does not help, as when
    /// the target shares the core, it does so for a quarter of it …
    pub spin_ns: u32,
    /// … and how long it then gives way between looks before it sleeps, nanoseconds.
    pub yield_ns: u32,
    /// What is proved to targets, and they have to prove; without it, only loopback addresses can
    /// be connected to.
    pub secret: Option<Secret>,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            lease_ms: LEASE_MS_DEFAULT,
            emulate_rdma_ns: 0,
            spin_ns: 20_000,
            yield_ns: 200_000,
            secret: None,
        }
    }
}

impl From<FabricOptions> for EndpointOptions {
    fn from(FabricOptions { secret, .. }: FabricOptions) -> Self {
        Self { secret, ..Self::default() }
    }
}

impl Target {
    /// Announce cells that a target needs: a thread one for the access under way, of those that
    /// there are anyway; a device one for each frame that is open to it.
    pub fn cells(over: Over, layout: RegionLayout) -> u32 {
        match over {
            Over::Tcp => CELLS,
            Over::Verbs => 1 + layout.frame_count.clamp(1, VERBS_FRAMES_OPEN_MAX),
        }
    }

    /// Begins to serve, with the device and the secret of `fabric` and all else of `options`.
    /// Errors: `NotLoopback`, `Geometry`, `NoVerbs`, `Verbs`, `Io` (such as an address in use).
    pub fn start(fabric: &FabricOptions, options: TargetOptions) -> Result<Self, FabricError> {
        let secret = fabric.secret.clone();
        let options = TargetOptions { secret, ..options };
        match fabric.over {
            Over::Tcp => tcp::start_target(options),
            #[cfg(feature = "verbs")]
            Over::Verbs => verbs::start_target(options, fabric.device_options()?),
            #[cfg(not(feature = "verbs"))]
            Over::Verbs => Err(FabricError::NoVerbs),
        }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
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

/// What a fabric of frames and threads can do.
fn by_sockets(name: &'static str) -> Capabilities {
    Capabilities {
        name,
        atomics_global: true,
        mapped: false,
        inline_bytes_max: 0,
        mtu_bytes: 0,
        outstanding_max: FABRIC_OUTSTANDING_MAX,
    }
}

/// Busy for `ns`: the injected latency of an emulated fabric.
pub(crate) fn spin_for(ns: u32) {
    let end = monotonic_ns() + u64::from(ns);
    while monotonic_ns() < end {
        std::hint::spin_loop();
    }
}
