//! Memory of one host, and what its processes share by it: windows, copies, regions, rings, waits;
//! below them files, processes, events and the log. Here and in `rackpool-fabric` lies all the
//! unsafe code of rackpool, behind safe interfaces. Knows the protocol's layouts and traits
//! (`rackpool-core`) and no other host.

#[cfg(not(any(loom, shuttle)))]
pub mod barrier;
#[cfg(not(any(loom, shuttle)))]
pub mod caches;
#[cfg(not(any(loom, shuttle)))]
pub mod copy;
#[cfg(all(feature = "coroutines", not(any(loom, shuttle))))]
pub mod coroutine;
#[cfg(not(any(loom, shuttle)))]
pub mod counted;
#[cfg(not(any(loom, shuttle)))]
pub mod event;
#[cfg(not(any(loom, shuttle)))]
pub mod files;
#[cfg(not(any(loom, shuttle)))]
pub mod log;
#[cfg(not(any(loom, shuttle)))]
pub mod memory;
#[cfg(not(any(loom, shuttle)))]
pub mod names;
#[cfg(not(any(loom, shuttle)))]
pub mod numa;
#[cfg(not(any(loom, shuttle)))]
pub mod output;
#[cfg(not(any(loom, shuttle)))]
pub mod policy;
#[cfg(not(any(loom, shuttle)))]
pub mod process;
#[cfg(not(any(loom, shuttle)))]
pub mod region;
pub mod ring;
#[cfg(not(any(loom, shuttle)))]
pub mod signals;
pub mod sync;
#[cfg(not(any(loom, shuttle)))]
pub mod temporary;
pub mod version;
pub mod wait;
pub mod window;
