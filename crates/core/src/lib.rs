//! The protocol of rackpool, written once: engines without I/O, clock, thread, randomness or
//! unsafe code. They take a message, a completion or a tick and answer with messages, work
//! requests and memory operations; the real, the emulated and the simulated world drive the
//! same code through the traits of [`seam`].
//!
//! `client`, `daemon` and `master` never import one another: they meet in [`wire`].
#![forbid(unsafe_code)]

pub mod access;
pub mod addr;
pub mod bandwidth_split;
pub mod client;
pub mod coherence;
pub mod constants;
pub mod copies;
pub mod counts;
pub mod crash;
pub mod daemon;
pub mod durability;
pub mod error;
pub mod fabric;
pub mod heat;
pub mod layout;
pub mod loan;
pub mod lock_releases;
pub mod master;
pub mod member;
pub mod persist;
pub mod placement;
pub mod policy;
pub mod probe;
pub mod relocation;
pub mod replica;
pub mod ring;
pub mod rrpc;
pub mod runtime;
pub mod seam;
mod shard;
pub mod target;
pub mod tier;
pub mod wire;

pub use addr::{FrameIndex, GAddr, Generation, PageGeometry, PageId, RackId, SessionId};
pub use error::{Error, Result};
