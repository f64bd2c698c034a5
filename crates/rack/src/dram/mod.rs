//! DRAM in its own clock: a channel of DDR4 or DDR5 from command to command, and what stands
//! before one.
//!
//! ```text
//!  submit --> [reads: 32] --+                                     +--> completions
//!         --> [writes: 32] -+--> schedule --> device --> command -+
//!                                   ^            |        (log) --> checker
//!                                   +- earliest -+
//! ```
//!
//! [`timing`] holds geometry, constants and presets; [`map`] turns addresses into banks and rows.
//! [`Channel`] keeps the queues, chooses the next command (`schedule`) and what it makes others
//! wait for (`device`); it jumps from command to command, so that an idle cycle costs nothing.
//! [`checker`] is told the commands and finds broken rules; it shares nothing with the scheduler
//! but the constants. [`medium`] puts a link before a channel (CXL) or a fixed time in its place.
//! [`stream`] drives a medium with synthetic requests.
//!
//! Nothing here knows of processors, nodes or a network, and nothing holds data: a read and a
//! later write of the same line may change places.

mod array;
pub mod channel;
pub mod checker;
pub mod command;
pub mod config;
mod device;
pub mod map;
pub mod medium;
mod queue;
pub mod stream;
pub mod timing;

pub use channel::{Channel, ChannelCounts, Completion, Full, Request};
pub use command::{Command, CommandKind};
pub use config::{Config, DramConfigError, RowPolicy};

/// Cycles of a memory's clock since the start of the run.
pub type Cycle = u64;
