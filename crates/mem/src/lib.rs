//! Memory of one host, and what its processes share by it: windows, copies, regions, rings, waits;
//! below them files, processes, events and the log. Here and in `rackpool-fabric` lies all the
//! unsafe code of rackpool, behind safe interfaces. Knows the protocol's layouts and traits
//! (`rackpool-core`) and no other host.

#[cfg(not(feature = "modelled"))]
pub mod barrier;
#[cfg(not(feature = "modelled"))]
pub mod caches;
#[cfg(not(feature = "modelled"))]
pub mod copy;
#[cfg(all(feature = "coroutines", not(feature = "modelled")))]
pub mod coroutine;
#[cfg(not(feature = "modelled"))]
pub mod counted;
#[cfg(not(feature = "modelled"))]
pub mod direct;
#[cfg(not(feature = "modelled"))]
pub mod emulation;
#[cfg(not(feature = "modelled"))]
pub mod event;
#[cfg(not(feature = "modelled"))]
pub mod files;
#[cfg(not(feature = "modelled"))]
pub mod log;
#[cfg(not(feature = "modelled"))]
pub mod memory;
#[cfg(not(feature = "modelled"))]
pub mod names;
#[cfg(not(feature = "modelled"))]
pub mod numa;
#[cfg(not(feature = "modelled"))]
pub mod output;
#[cfg(not(feature = "modelled"))]
pub mod persist;
#[cfg(not(feature = "modelled"))]
pub mod policy;
#[cfg(not(feature = "modelled"))]
pub mod process;
#[cfg(not(feature = "modelled"))]
pub mod region;
pub mod ring;
#[cfg(not(feature = "modelled"))]
pub mod signals;
pub mod sync;
#[cfg(not(feature = "modelled"))]
pub mod temporary;
pub mod version;
pub mod wait;
pub mod window;
