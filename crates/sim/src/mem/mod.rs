//! Simulated memory: the sections of regions as many processors see them.
//!
//! ```text
//!   SimMem (the engines' `Mem`) -> Cpu: store buffer -> HostCache (software-coherent) -> Memory
//!                                   |                                                     ^
//!                                   +------------- hardware-coherent ---------------------+
//! ```
//!
//! *Checking mode* ([`Cpu::checking`]): each operation, and each aligned piece of at most 8 bytes
//! of a copy, is a point at which the process may be interrupted or die. Stores wait in the
//! processor's buffer as on x86 (TSO: first in, first out, own loads see them, locked operations
//! and fences empty it), so that a missing barrier shows. Memory that is not coherent between
//! hosts is seen through the host's lines, so that a missing flush or invalidation shows.
//!
//! *Performance mode* ([`Cpu::performance`]): plain accesses, each charged by the cache line.
//!
//! Which it is depends on the processor alone. A word is what an aligned 8-byte access sees,
//! little-endian. An access outside of a view, a misaligned word, and a store to a read-only view
//! are bugs of the caller and panic, as in the real world.

mod cache;
mod cost;
mod cpu;
mod hooks;
mod memory;
mod view;
mod violations;

pub use cache::HostCache;
pub use cost::MemCosts;
pub use cpu::{Cpu, SwitchRates};
pub use hooks::Hooks;
pub use memory::{BLOCK_BYTES, Memory};
pub use rackpool_core::coherence::Coherence;
pub use view::SimMem;
pub use violations::Violations;

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;

/// What a memory is made of: what its accesses cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Dram,
    /// Memory behind a CXL link.
    Cxl,
}
