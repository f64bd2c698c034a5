//! Pilaf, FaRM-KV and ECHO over real fabrics, between processes: what `bench kv --baselines`
//! measures beside HERD. The protocol is [`rackpool_sim::repro::herd::baselines`],
//! the same that the simulator runs; here are its memory, its connections and its two loops.
//!
//! ```text
//! client process                            server process
//! Client --- READ: bucket, value ---------> its page: the table        (read one-sided)
//!        --- WRITE: request --------------> its page: a slot ---poll--> serving thread
//!        --- SEND: request ------------------------------------------->   |
//!        <-- WRITE: acknowledgement or echo, into the client's page ------+
//!        <-- SEND: likewise ----------------------------------------------/
//! ```
//!
//! - `spec.rs`: what runs, in lines that processes tell each other;
//! - `places.rs`: where slots and table lie in a server's page, and answers in a client's;
//! - `connections.rs`, `rings.rs`: the server's end of its connections, and SENDs over `shm`;
//! - `server.rs`: the serving thread; `client.rs`: GETs, PUTs and ECHOs with windows;
//! - `near.rs`, `far.rs`: the two ends over `shm` and over what has a target (`tcp`, devices);
//! - `worker.rs`: the processes of a run, which are told what to do.
//!
//! The server's page is memory that clients read and write without it: a request is taken when its
//! checksum is right, nothing in it is believed. A GET that reads a part of a PUT finds a checksum
//! wrong, begins again and is counted ([`Counts::repeats`]).
//!
//! Source: HERD, sections on Pilaf, FaRM-KV, their emulation, and ECHO. Of the transports of the
//! paper fabrics have one, which loses nothing; unsignalled and inline are as they are there.

mod client;
mod connections;
mod error;
mod far;
mod near;
mod places;
mod rings;
mod server;
mod spec;
pub(crate) mod worker;

pub use client::{Client, ClientEndpoint, ClientOver, Counts, Done, Outcome};
pub use error::{Error, Result};
pub use rings::Rings;
pub use server::Server;
pub use spec::{Carrier, ServerAddress, Spec, SystemKind};
pub use worker::worker;
