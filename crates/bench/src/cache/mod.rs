//! `bench cache`: `rackpool-cache` in process, without a network: [`speed`] of look-ups
//! beside the bound that the memory sets, and [`ratio`]s of hits on the popularity and size
//! distributions of real caches ([`workload`]), with the feature `peers` beside other caches;
//! [`tiering`]: unlike memories under one cache.

mod items;
#[cfg(feature = "peers")]
pub(crate) mod peers;
pub mod ratio;
pub mod speed;
mod threads;
#[cfg(feature = "rack")]
pub mod tiering;
#[cfg(feature = "rack")]
mod tiering_advice;
#[cfg(feature = "rack")]
mod tiering_engines;
#[cfg(feature = "rack")]
mod tiering_load;
#[cfg(feature = "rack")]
pub mod tiering_os;
#[cfg(feature = "rack")]
mod tiering_virtual;
pub mod workload;
pub mod workload_load;
