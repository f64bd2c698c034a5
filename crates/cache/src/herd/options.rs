//! How a server serves.

use super::engine::Pipeline;
use super::geometry::{
    CLIENTS_DEFAULT, FABRIC_CLIENTS_DEFAULT, FABRIC_REQUESTS_MAX, VALUE_BYTES_DEFAULT,
    WINDOWS_DEFAULT,
};
use crate::clock::Clock;
use rackpool_fabric::secret::Secret;
use std::net::SocketAddr;

/// Where and how a server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Name of the control socket, in the kernel's abstract namespace: `rackpool/cache0`.
    pub name: String,
    /// Clients at once, 1 to [`super::geometry::CLIENTS_MAX`].
    pub clients: u32,
    /// Windows of a client that does not ask for a number; it may ask for up to
    /// [`super::geometry::WINDOWS_MAX`].
    pub windows: u32,
    /// Longest value in a slot, bytes.
    pub value_bytes: u32,
    /// How the waits for memory overlap.
    pub pipeline: Pipeline,
    /// By which items expire: that of the cache's other protocols.
    pub clock: Clock,
}

impl ServerOptions {
    /// A server of this name, with 1024 clients, 16 windows, and values up to 1000 bytes.
    pub fn new(name: &str) -> ServerOptions {
        let (windows, value_bytes) = (WINDOWS_DEFAULT, VALUE_BYTES_DEFAULT);
        let (name, pipeline) = (name.to_owned(), Pipeline::default());
        let clock = Clock::system();
        ServerOptions { name, clients: CLIENTS_DEFAULT, windows, value_bytes, pipeline, clock }
    }
}

/// Where and how a server serves clients over a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricServerOptions {
    /// Where to listen, port 0 for any; without a secret a loopback address.
    pub listen: SocketAddr,
    /// Secret for mutual authentication with clients.
    pub secret: Option<Secret>,
    /// The RDMA device, `NAME[:PORT][/GID]`, empty for the first one, for clients that come by it;
    /// needs the feature `verbs`.
    pub device: Option<String>,
    /// Clients at once, 1 to [`super::geometry::FABRIC_CLIENTS_MAX`].
    pub clients: u32,
    /// Windows of a client at a thread; it may ask for fewer. Times the threads at most
    /// [`super::geometry::FABRIC_REQUESTS_MAX`].
    pub windows: u32,
    /// Longest value in a slot, bytes.
    pub value_bytes: u32,
    /// How the waits for memory overlap.
    pub pipeline: Pipeline,
    /// By which items expire: that of the cache's other protocols.
    pub clock: Clock,
}

impl FabricServerOptions {
    /// A server at this address, with 256 clients, 16 windows (fewer with more than 3 threads), and
    /// values up to 1000 bytes in a slot; without a secret or a device.
    pub fn new(listen: SocketAddr, threads: u32) -> FabricServerOptions {
        let windows = WINDOWS_DEFAULT.min(FABRIC_REQUESTS_MAX / threads.max(1)).max(1);
        let (clients, value_bytes) = (FABRIC_CLIENTS_DEFAULT, VALUE_BYTES_DEFAULT);
        let (secret, device, pipeline) = (None, None, Pipeline::default());
        let clock = Clock::system();
        FabricServerOptions {
            listen,
            secret,
            device,
            clients,
            windows,
            value_bytes,
            pipeline,
            clock,
        }
    }
}
