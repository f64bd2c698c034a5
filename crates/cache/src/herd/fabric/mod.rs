//! HERD's fast path between hosts: over a [`Fabric`]. One-sided WRITEs put requests into the
//! server's memory, and SENDs bring replies.
//!
//! ```text
//! client                                      server
//! Client<Far> --- WRITE: sealed slot -------> its frame of the target's pages ---> serving thread
//!             --- the last WRITE of a batch                                          |
//!                 rings (WRITE_IMM), if                                              |
//!                 unwatched ---------------> fabric's thread --> acceptor --bell-->|
//!             <-- SEND: short reply ------------------------------------------------/
//!             <-- SEND: you are unwatched
//! ```
//!
//! *Places.* Request slots lie in the pages of a fabric target, one frame (page) a client; the
//! frame's generation is the client's key. Of NC clients each has one connection, whatever the
//! number of serving threads. When a connection ends, first the generation goes, so that nothing is
//! executed under the key any more, then the serving threads drop the client, and only then the
//! frame is cleared and given out again, under another key.
//!
//! *One WRITE and one SEND an operation.* A thread watches the slots of clients that asked lately;
//! every reply says whether it does. Before it stops, for it sleeps when no request comes, it says
//! so by a SEND of its own. A client that is not watched lets the last WRITE of a batch ring. A
//! WRITE that was under way while the thread stopped is not missed: the client has requests that
//! are not answered when it learns that it is unwatched, and rings.
//!
//! *Loss.* A tcp connection loses nothing, but a transport of WRITEs without acknowledgement, as
//! devices have (`rdma`), does (HERD §4.3), and so the client repeats: after
//! [`REMIND_AFTER_MS`](super::client::REMIND_AFTER_MS), then after twice that time and so on,
//! [`REMINDERS_MAX`](super::client::REMINDERS_MAX) times, it writes what is not answered again,
//! with its old number, and rings. The engine applies a number once; its reply is sent again.
//!
//! A frame is written while it is read: slots are sealed (`slot.rs`), nothing in them is believed.
//!
//! Source: HERD §4.2 (request region, WRITE requests, datagram replies, connections NC not NC·NS),
//! §4.3 (retries).

pub(super) mod connections;
mod messages;
#[cfg_attr(not(feature = "verbs"), path = "absent.rs")]
mod rdma;
mod transport;
#[cfg(test)]
mod virtual_time;

pub(super) use rdma::RdmaListener;
#[cfg(feature = "verbs")]
pub use rdma::{Options as RdmaOptions, Rdma, TransportKind};
pub use transport::FabricTransport;

use super::client::Client;
use super::error::Result;
#[cfg(any(test, feature = "verbs"))]
use super::geometry::Geometry;
use rackpool_core::seam::{BufId, Fabric, FabricEvent, Nanos, PeerId};
use rackpool_fabric::secret::Secret;
use rackpool_fabric::tcp::TcpEndpoint;
use rackpool_fabric::{EndpointOptions, FabricError, LocalBuffers};
use rackpool_mem::process::monotonic_ns;
use std::net::SocketAddr;

/// Datagrams that may wait at a thread: its receives.
#[cfg(any(test, feature = "verbs"))]
const THREAD_RECEIVES: u32 = 1024;

/// Receives of a client's replies by datagram: two for each window, and some for those that come
/// again and again.
#[cfg(any(test, feature = "verbs"))]
fn client_receives(geometry: &Geometry) -> u32 {
    2 * geometry.windows * geometry.servers + 64
}

/// What a client needs of a fabric endpoint beside its operations.
pub trait Wire: Fabric {
    /// Gives a buffer to the endpoint for good. Errors: `BuffersFull`.
    fn register(&mut self, bytes: Vec<u8>) -> std::result::Result<BufId, FabricError>;

    /// A registered buffer's bytes, to be changed.
    fn buffer_mut(&mut self, buf: BufId) -> &mut [u8];

    /// Polls until something happened or `deadline` (of the fabric's clock, nanoseconds) has
    /// passed; how many events were appended. Blocks.
    fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize;

    /// The fabric's clock, which never goes back, nanoseconds.
    fn now_ns(&self) -> Nanos {
        monotonic_ns()
    }
}

impl Wire for TcpEndpoint {
    fn register(&mut self, bytes: Vec<u8>) -> std::result::Result<BufId, FabricError> {
        LocalBuffers::register(self, bytes)
    }

    fn buffer_mut(&mut self, buf: BufId) -> &mut [u8] {
        LocalBuffers::buffer_mut(self, buf)
    }

    fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        TcpEndpoint::wait(self, monotonic_ns, deadline, None, events)
    }
}

impl Client<FabricTransport<TcpEndpoint>> {
    /// Connects to a server at this address of this host over the tcp fabric, with so many windows
    /// at each server thread, 0 for as many as it gives. Blocks for 5 s at most.
    ///
    /// # Errors
    /// As [`Client::connect_at`].
    pub fn connect_to(
        addr: SocketAddr,
        windows: u32,
    ) -> Result<Client<FabricTransport<TcpEndpoint>>> {
        Client::connect_at(addr, windows, None)
    }

    /// As [`Client::connect_to`], at any address, with the secret that the server has.
    ///
    /// # Errors
    /// [`Error::Fabric`](super::Error::Fabric) if the address is not of this host and there is no
    /// secret; [`Error::Gone`](super::Error::Gone) if no server is there, or it has another secret;
    /// and as [`Client::connect_with`].
    pub fn connect_at(
        addr: SocketAddr,
        windows: u32,
        secret: Option<Secret>,
    ) -> Result<Client<FabricTransport<TcpEndpoint>>> {
        let (endpoint, peer) = connect(addr, secret)?;
        Client::connect_over(endpoint, peer, windows)
    }
}

fn connect(addr: SocketAddr, secret: Option<Secret>) -> Result<(TcpEndpoint, PeerId)> {
    // Why a connection ends is in the error of the call that needs it.
    let options = EndpointOptions { secret, ..EndpointOptions::default() };
    let mut endpoint = TcpEndpoint::new(options)?;
    let peer = endpoint.connect(addr, monotonic_ns())?;
    Ok((endpoint, peer))
}

#[cfg(feature = "verbs")]
impl Client<FabricTransport<Rdma>> {
    /// As [`Client::connect_at`], with requests and replies by RDMA devices, unreliably: what is
    /// lost is repeated, and applied once. Blocks for 10 s at most.
    ///
    /// # Errors
    /// As [`Client::connect_at`]; [`Error::NoDevices`](super::Error::NoDevices) if the server has
    /// none, or refuses; [`Error::Fabric`](super::Error::Fabric) if this machine has none.
    pub fn connect_rdma(
        addr: SocketAddr,
        options: &RdmaOptions,
    ) -> Result<Client<FabricTransport<Rdma>>> {
        let (endpoint, peer) = connect(addr, options.secret.clone())?;
        let (mut far, geometry, seed) =
            FabricTransport::connect(Rdma::new(endpoint), peer, options.windows)?;
        far.take_way(options)?;
        Ok(Client::over(far, geometry, seed))
    }
}

impl<W: Wire> Client<FabricTransport<W>> {
    /// As [`Client::connect_to`], over a connection of any fabric; the endpoint has no other.
    ///
    /// # Errors
    /// As [`Client::connect_to`].
    pub fn connect_over(wire: W, peer: PeerId, windows: u32) -> Result<Client<FabricTransport<W>>> {
        let (far, geometry, seed) = FabricTransport::connect(wire, peer, windows)?;
        Ok(Client::over(far, geometry, seed))
    }
}
