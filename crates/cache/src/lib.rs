//! A key-value cache: in the memory of one process, or one file of shared memory ([`Cache`]), and
//! what serves it.
//!
//! - [`front`]: what ordinary clients of memcached and Redis speak, in front of a cache.
//! - [`herd`]: the fast path to a cache for processes of the same host.
//! - [`pool_tier`], [`numa_tier`]: a pool's memory, or that of other nodes of this host, for the
//!   cache's long values; [`tier_speed`]: what reads cost there.
//! - [`clock`]: the times by which items expire.
#![forbid(unsafe_code)]

#[warn(missing_docs)]
mod cache;
pub mod clock;
pub mod constants;
#[cfg(feature = "front")]
pub mod front;
pub mod herd;
pub mod numa_tier;
#[cfg(feature = "pool-tier")]
pub mod pool_tier;
pub mod tier_speed;

pub use cache::{
    Cache, Copied, CopyTarget, Entry, Error, Item, KEY_BYTES_MAX, Meta, Millis, Mode, Options,
    PARTITIONS_MAX, PartitionShare, Pinned, Policy, Put, ReadCost, Recovered, Result, Speeds,
    Stats, Tier, TierConfig, TierError, TierRule, Timeline, Writer, at_wall, partitions_for,
    wall_of,
};
