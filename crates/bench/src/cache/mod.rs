//! `bench cache`: `rackpool-cache` in process, without a network: [`speed`] of look-ups
//! beside the bound that the memory sets, and [`ratio`]s of hits on the popularity and size
//! distributions of real caches ([`workload`]), with the feature `peers` beside other caches;
//! [`tiering`]: unlike memories under one cache.

mod items;
#[cfg(feature = "peers")]
mod peers;
pub mod ratio;
pub mod speed;
mod threads;
pub mod tiering;
mod tiering_advice;
mod tiering_engines;
mod tiering_load;
mod tiering_virtual;
pub mod tiering_os;
pub mod workload;
pub mod workload_load;
