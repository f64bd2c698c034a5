//! A key-value cache: in the memory of one process or in one file of shared memory ([`Cache`]), and
//! what serves it to others ([`front`], [`herd`]).
//!
//! Items of a key of up to 32,766 bytes and a value of any length up to a share of the memory lie
//! in a log of 64 KiB segments, long values in pieces over several; an index entry costs 8 bytes in
//! a bucket of a cache line, an item's header 8 more. Which items stay when room is needed says the
//! [`Policy`]. A cache knows no network and no clock (the time is handed in), and has no threads.
//!
//! With [`Options::shared_reads`] several threads look up in one partition at once, without its
//! lock, while another one changes it; [`Cache::copy_value`] does so in any case.
//!
//! ```
//! use rackpool_cache::{Cache, Options};
//!
//! let cache = Cache::new(Options { memory: 8 << 20, ..Options::default() })?;
//! let now = 1_000;
//! cache.set(b"colour", b"blue", 0, 0, now)?;
//! let mut value = Vec::new();
//! let found = cache.get(b"colour", now, |item| item.append_to(&mut value)).transpose()?;
//! assert!(found.is_some() && value == b"blue");
//! # Ok::<(), rackpool_cache::Error>(())
//! ```
//!
//! - [`front`]: what ordinary clients of memcached and Redis speak; a feature, on by default.
//! - [`herd`]: the fast path to a cache for processes of the same host or of others.
//! - `pool_tier` (the feature `pool-tier`), [`numa_tier`]: a pool's memory, or that of other nodes
//!   of this host, for the cache's long values.
//! - `flash_tier`, `pmem_tier` (the feature `flash`): a file or block device, or memory that
//!   persists, for items that leave memory, or as a store.
//! - [`clock`]: the times by which items expire.
//!
//! [`herd`] knows nothing of [`front`], which starts its servers and shows its counters; the cache
//! knows neither.
#![forbid(unsafe_code)]

#[warn(missing_docs)]
mod cache;
pub mod clock;
pub mod constants;
mod decimal;
#[cfg(feature = "flash")]
pub mod flash_tier;
#[cfg(feature = "front")]
pub mod front;
pub mod hashes;
pub mod herd;
#[cfg(feature = "flash")]
mod kept_record;
pub mod numa_tier;
#[cfg(feature = "flash")]
pub mod pmem_tier;
#[cfg(feature = "pool-tier")]
pub mod pool_tier;

pub use rackpool_core::bandwidth_split::Bandwidths;

pub use cache::{
    BackingStore, Cache, Copied, CopyTarget, DATABASES_MAX, Division, Entry, Error, EvictedItem,
    FarMemory, FetchDone, HashEntry, HashStream, HashValue, Item, KEY_BYTES_MAX, KeptItem,
    KeptWith, LeavingItem, Meta, Millis, Mode, Options, PARTITIONS_MAX, PartitionShare, Pinned,
    Policy, Put, ReadCost, Recovered, Result, Reuse, ReuseSampler, Section, SectionKeys, Speeds,
    Stats, StoredWith, Tier, TierConfig, TierError, TierRule, Tiering, Timeline, Touched,
    VALUE_BYTES_MAX, Watch, Writer, at_wall, far_bytes_in, partitions_for, wall_of,
};
