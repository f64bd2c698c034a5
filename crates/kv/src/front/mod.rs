//! What ordinary clients speak, in front of a cache in this process: memcached's text, meta and
//! binary protocols, and Redis's RESP2 and RESP3. Clients need no change.
//!
//! ```text
//! socket -> Session::feed -> parser -> command on the cache -> Output -> socket
//! worker.rs session.rs       text.rs   core.rs: look-ups       core.rs   worker.rs
//!                            meta.rs   memcached.rs, meta_run.rs
//!                            binary.rs binary_run.rs
//!                            resp.rs   redis_commands.rs, redis_*.rs
//! ```
//!
//! Parsers are pure functions over bytes; a [`session::Session`] knows no socket; a
//! [`worker::Worker`] moves bytes. One thread serves a connection for its whole life and answers
//! everything that one read brought with one write. Look-ups that arrive together are done
//! together ([`core::Core::flush_batch`]). Long values are written into the cache as they arrive
//! and sent from its memory.

pub mod auth;
pub mod binary;
pub mod binary_run;
pub mod bytes;
pub mod clients;
pub mod core;
pub mod counters;
pub mod glob;
pub mod http;
pub mod memcached;
pub mod meta;
pub mod meta_run;
pub mod outcome;
pub mod redis;
pub mod redis_commands;
pub mod redis_keys;
pub mod redis_server;
pub mod redis_strings;
pub mod resp;
pub mod server;
pub mod session;
pub mod shared;
pub mod slowlog;
pub mod stats;
pub mod store;
pub mod text;
pub mod timer;
pub mod tls;
pub mod worker;

pub use crate::clock;
