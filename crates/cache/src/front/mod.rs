//! What ordinary clients speak, in front of a cache in this process: memcached's text, meta and
//! binary protocols, and Redis's RESP2 and RESP3. Clients need no change.
//!
//! ```text
//! socket -> Session::feed -> parser -> command on the cache -> Output -> socket
//! worker.rs session.rs       text.rs   core.rs: look-ups       core.rs   worker.rs
//!                            meta.rs   memcached.rs, meta_run.rs
//!                            binary.rs binary_run.rs
//!                            resp.rs   redis_*.rs
//! ```
//!
//! Which commands there are says the table in `commands`, by which all but the most frequent ones
//! are found. Parsers are pure functions over bytes; a [`Session`] knows no socket; a `Worker`
//! moves bytes. One thread serves a connection for its whole life and answers everything that one
//! read brought with one write. Look-ups that arrive together are done together
//! ([`Core::flush_batch`]). Long values are written into the cache as they arrive and sent from its
//! memory.
//! What Redis does with one value is in [`values`], as pure functions. What is one step to others
//! is in `atomic.rs`, what takes long in `jobs.rs`.

mod atomic;
mod auth;
mod binary;
mod binary_run;
mod bytes;
mod clients;
mod commands;
mod core;
mod counters;
mod glob;
mod http;
mod jobs;
mod memcached;
mod meta;
mod meta_run;
mod outcome;
mod redis;
mod redis_bits;
mod redis_compare;
mod redis_hyperloglog;
mod redis_keys;
mod redis_keyspace;
mod redis_objects;
mod redis_ranges;
mod redis_server;
mod redis_strings;
mod redis_values;
mod resp;
mod server;
mod session;
mod shared;
mod slowlog;
mod stats;
mod store;
mod text;
mod timer;
mod tls;
mod transactions;
pub mod values;
mod worker;

pub use auth::{read_password, read_users};
pub use clients::ClientInfo;
pub use core::{Core, Output};
pub use counters::{CommandStats, Count};
pub use server::{ListenConfig, Server, StartError};
pub use session::Session;
pub use shared::{Protocol, Settings, Shared};
pub use tls::Tls;
