//! All the unsafe code of rackpool: regions, copies, rings and fabrics of the real and the
//! emulated world, behind safe interfaces. Knows the protocol's layouts and traits
//! (`rackpool-core`) and no other crate.

#[cfg(not(any(loom, shuttle)))]
pub mod acceptor;
#[cfg(not(any(loom, shuttle)))]
pub mod addresses;
#[cfg(not(any(loom, shuttle)))]
pub mod barrier;
#[cfg(not(any(loom, shuttle)))]
pub mod caches;
#[cfg(not(any(loom, shuttle)))]
pub mod control;
#[cfg(not(any(loom, shuttle)))]
pub mod copy;
#[cfg(all(feature = "coroutines", not(any(loom, shuttle))))]
pub mod coroutine;
#[cfg(not(any(loom, shuttle)))]
pub mod counted;
#[cfg(not(any(loom, shuttle)))]
pub mod event;
#[cfg(not(any(loom, shuttle)))]
pub mod fabric;
#[cfg(not(any(loom, shuttle)))]
pub mod files;
#[cfg(not(any(loom, shuttle)))]
pub mod handshake;
#[cfg(not(any(loom, shuttle)))]
pub mod log;
#[cfg(not(any(loom, shuttle)))]
pub mod memory;
#[cfg(not(any(loom, shuttle)))]
pub mod names;
#[cfg(not(any(loom, shuttle)))]
#[cfg(not(any(loom, shuttle)))]
pub mod numa;
#[cfg(not(any(loom, shuttle)))]
pub mod output;
#[cfg(not(any(loom, shuttle)))]
pub mod process;
#[cfg(not(any(loom, shuttle)))]
pub mod region;
pub mod ring;
#[cfg(not(any(loom, shuttle)))]
pub mod secret;
#[cfg(not(any(loom, shuttle)))]
pub mod secure_stream;
pub mod sync;
#[cfg(not(any(loom, shuttle)))]
pub mod temporary;
pub mod version;
pub mod wait;
pub mod window;
