//! What a loss of power leaves of a memory, and when a write is to be safe from it.
//!
//! In: what the device and the user say. Out: two names that daemon, client and region agree on.
//! How a range is made durable is [`Mem::persist`](crate::seam::Mem::persist); in which order the
//! metadata is, `copies.rs` and `daemon/redo.rs` say.

use serde::{Deserialize, Serialize};
use std::fmt;

/// From where on a store outlives a loss of power.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PersistenceDomain {
    /// From nowhere that a program could wait for: nothing is promised.
    #[default]
    None,
    /// From the memory controller on: lines are written back, then fenced.
    Adr,
    /// From the caches on: a fence is enough.
    Eadr,
    /// From the file system on, which is told to write pages back.
    Msync,
}

impl PersistenceDomain {
    pub const ALL: [Self; 4] = [Self::None, Self::Adr, Self::Eadr, Self::Msync];
}

impl fmt::Display for PersistenceDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Adr => "adr",
            Self::Eadr => "eadr",
            Self::Msync => "msync",
        })
    }
}

/// When what a handle writes into memory that persists is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// At no time that could be known: asking for it does nothing.
    None,
    /// When the handle was asked to make it so, and has returned.
    #[default]
    Flush,
    /// When the write has returned.
    Write,
}
