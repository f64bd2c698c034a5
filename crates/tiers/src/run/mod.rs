//! Unchanged programs, on the memory nodes that a user wants. In: a [`Wanted`] placement, a
//! program. Out: the program, run to its end, and how many bytes lay where ([`Reading`]).
//!
//! The kernel places where it can ([`KernelPolicy`]: inherited over fork and exec, static programs
//! too). It has one table of weights for the whole machine, which is never written here; where that
//! has others, a preloaded library (`preload/place.c`) places each mapping. [`plan()`] decides.
//! Called by `rackpool tiers run`.

mod error;
mod launch;
mod plan;
mod preload;
mod program;
mod reading;
mod wanted;

pub use error::RunError;
pub use launch::{Ended, Event, Launch, run};
pub use plan::{KernelPolicy, Machine, Mechanism, Plan, plan};
pub use preload::Notes;
pub use program::find;
pub use reading::{NodeBytes, Reading};
pub use wanted::{Share, Wanted, Weighting};

#[cfg(test)]
mod tests;
