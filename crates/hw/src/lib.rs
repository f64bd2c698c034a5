//! All the unsafe code of rackpool: regions, copies, rings and fabrics of the real and the
//! emulated world, behind safe interfaces. Knows the protocol's layouts and traits
//! (`rackpool-core`) and nobody else.

#[cfg(not(loom))]
pub mod barrier;
#[cfg(not(loom))]
pub mod control;
#[cfg(not(loom))]
pub mod copy;
#[cfg(all(feature = "coroutines", not(loom)))]
pub mod coroutine;
#[cfg(not(loom))]
pub mod event;
#[cfg(not(loom))]
pub mod fabric;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod region;
pub mod ring;
pub mod sync;
pub mod wait;
pub mod window;
