//! Persistent memory in virtual time: a DIMM of 3D XPoint behind its controller, and DRAM in front
//! of a slower memory.
//!
//! ```text
//!  reads  --> [queue] --+            +-- hit ----------------------> completions
//!                       +--> XPBuffer                    ^
//!  writes --> [queue] --+   64 units +-- load, write back -> medium, 256 B at a time
//! ```
//!
//! [`Dimm`] is one module: both queues give their first access alone to the buffer, so that one
//! that waits for room holds up all behind it; [`config`] has its constants, each with its source;
//! [`front`] is Memory mode. All are a [`Medium`](crate::model::memory::Medium), so that a rack's
//! nodes and pools can be built of them. Nothing here holds data, threads or processors: when a
//! store is durable is said by [`config::PresetDomain`].
//!
//! Source: the guide to Optane memory, "Optane Memory" and "best practices"; An Empirical Guide to
//! the Behavior and Use of Scalable Persistent Memory, FAST 2020.

pub mod config;
mod dimm;
pub mod front;

pub use config::{DimmConfig, PRESETS, PmemPreset};
pub use dimm::{Dimm, DimmCounts};
