//! HERD's fast path to a cache: one request slot for each server thread, client and window, which
//! the server polls; one round trip for every operation; the two memory accesses of a look-up
//! hidden behind other requests.
//!
//! ```text
//! client process                         server process
//! Client --- slots (shared): request --> Engine --- batch ---> cache (get_many_unordered)
//!        <-- in the slot, or apart: reply         <-- items ---
//!        --- watch word, ready bit ----> serving thread, asleep when idle
//!        --- control socket -----------> acceptor: lets in, sees deaths
//! ```
//!
//! - `geometry.rs`: where a slot is; `slot.rs`: how one is published and read; `message.rs`: what
//!   is in it. Pure, and the same over shared memory and over one-sided WRITEs.
//! - `engine.rs`: from requests in slots over the cache to replies; no I/O, no clock. `part.rs`,
//!   `long.rs`: values that are longer than a slot, in parts.
//! - `client.rs`, `serving.rs`, `server.rs`: the two ends, whatever is between them; `options.rs`:
//!   how a server serves.
//! - `pair.rs`: the memory that a client shares with a server of its host; `handshake.rs`: how it
//!   gets it; `shm.rs`, `acceptor.rs`: the two ends there.
//! - `admission.rs`: clients' numbers and their beginning and end at the serving threads, whatever
//!   their transport.
//! - `fabric`: the two ends between hosts.
//!
//! ```
//! use rackpool_cache::{Cache, Options};
//! use rackpool_cache::herd::{Client, HerdServer, ServerOptions};
//!
//! let cache = Cache::new(Options { memory: 8 << 20, ..Options::default() })?;
//! let name = format!("rackpool/doc/{}", std::process::id());
//! let server = HerdServer::start(cache, &ServerOptions::new(&name), 1)?;
//!
//! let mut client = Client::connect(&name)?;            // from any process of this host
//! client.put(b"colour", b"blue", 0, 0)?;
//! let mut value = Vec::new();
//! assert!(client.get(b"colour", &mut value)?.is_some() && value == b"blue");
//! # drop(server);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: HERD §4 (request region, windows, polling, prefetch); where this departs from it is
//! decision 0045. Of its transport (unreliable WRITE, datagram replies) shared memory needs
//! nothing: nothing is lost there, and a reply is a store; the fabric between hosts has WRITE
//! requests and SEND replies.

mod acceptor;
mod admission;
pub mod client;
mod counters;
mod engine;
mod error;
pub mod fabric;
pub mod geometry;
mod handshake;
mod long;
pub mod message;
mod options;
mod pair;
mod part;
mod server;
mod serving;
mod shm;
pub mod slot;
mod transport;

pub use client::{Answer, Client, Ticket};
pub use counters::{HerdCounter, HerdCounters, ThreadCounters};
pub use engine::{ClientSlots, Engine, Pipeline, Replied};
pub use error::{Error, HerdStartError, Result};
pub use fabric::FabricTransport;
pub use geometry::Geometry;
pub use options::{FabricServerOptions, ServerOptions};
pub use server::HerdServer;
pub use shm::ShmTransport;
pub use slot::SlotFormat;
pub use transport::Transport;
