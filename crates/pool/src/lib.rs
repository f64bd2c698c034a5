//! rackpool: a hybrid memory pool for clusters. Load/store speed over shared CXL memory inside a
//! rack, one-sided RDMA between racks, one address space over both, and the same code on a laptop
//! that has neither.
//!
//! A program opens a [`Pool`] and works through one [`Handle`] a thread. The servers are here as
//! well: [`master`], [`daemon`], and [`cluster`] for all of them in one process.
//!
//! The data path, in file order: `handle.rs` → `core::client` → `mem::window` for mapped racks,
//! `fabric` for others; misses go `links.rs` → `core::runtime` → `mem::ring` → `daemon/` →
//! `core::daemon`, or `link.rs` → `master/` → `core::master`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(doctest, doc = include_str!("../../../README.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../docs/quickstart.md"))]

mod acceptor;
mod admin;
pub mod agent;
mod async_handle;
mod audit;
mod cas;
mod clock;
pub mod cluster;
mod coupled;
pub mod daemon;
mod drive;
mod error;
mod handle;
#[doc(hidden)]
pub mod link;
mod links;
mod local;
mod locks;
pub mod master;
mod members;
pub mod metrics;
pub mod monitor;
mod network;
mod node;
mod options;
mod paths;
mod persist;
mod pin;
mod placements;
mod pool;
mod replica;
mod rrpc;
mod stats;
mod submit;
mod usage;

pub use admin::Admin;
pub use async_handle::{AsyncHandle, Submitted};
pub use cas::CasOutcome;
#[doc(hidden)]
pub use clock::interruptible;
pub use error::{Error, ErrorKind, Result};
pub use handle::Handle;
pub use locks::{LockGuard, LockMode, LockOptions};
pub use options::{Connections, Emulate, FabricChoice, Options, RrpcThreshold};
pub use paths::{Latency, PathCounts, PathStats};
pub use pin::Pin;
pub use pool::Pool;
pub use rackpool_core::client::CoupledStats;
pub use rackpool_core::client::Placement;
pub use rackpool_core::durability::Durability;
pub use rackpool_core::layout::AllocationKind;
pub use rackpool_core::member::{DrainReport, Member, RackState};
pub use rackpool_core::placement::Policy;
pub use rackpool_core::policy::{BalanceParams, MigrationPolicy as Migration};
pub use rackpool_core::tier::{Tier, TierReport, TierStats};
pub use rackpool_core::wire::{DaemonStats, MasterStats};
pub use rackpool_core::{GAddr, PageId, RackId};
pub use rackpool_fabric::secret::Secret;
pub use rrpc::{FetchMode, RrpcStats};
pub use stats::{Explain, HandleStats, PoolStats, RackStats};
pub use submit::{Completed, Ticket};

/// Words of the protocol, which may change, for the other crates of rackpool.
#[doc(hidden)]
pub mod protocol {
    pub use rackpool_core::Error;
    pub use rackpool_core::wire::{
        AllocationPiece, AuditReply, AuditRequest, ChangingSession, KindTotal,
    };
}
