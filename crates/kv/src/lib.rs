//! Key-value structures. The [`table`] stands on the pool's public API alone, through the small
//! trait [`words::Words`]: it knows nothing of daemons, regions or fabrics.
//!
//! - [`cache`]: a cache in the memory of one process, or one file of shared memory.
//! - [`table`]: a concurrent hash table that many clients in all racks share.
//! - [`audit`]: every allocation of a pool by kind, and what no table names.
//! - [`pool_tier`], [`numa_tier`]: a pool's memory, or that of other nodes of this host, for the
//!   cache's long values; [`tier_speed`]: what reads cost there.
//! - [`clock`]: the times by which items expire.
//! - [`front`]: what ordinary clients of memcached and Redis speak, in front of a cache.
//! - [`herd`]: the fast path to a cache for processes of the same host.
#![forbid(unsafe_code)]

pub mod audit;
#[warn(missing_docs)]
pub mod cache;
pub mod clock;
pub mod constants;
pub mod error;
pub mod front;
pub mod herd;
pub mod numa_tier;
pub mod pool_tier;
#[warn(missing_docs)]
pub mod table;
pub mod tier_speed;
pub mod words;

pub use error::{Error, Result};
pub use table::{Options, Table};
