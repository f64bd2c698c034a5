//! Racks in virtual time, from traces of what programs read and write: which memory to buy, and
//! where to put it.
//!
//! Where new memory goes is decided by `rackpool_core::placement`, as in a running pool.
#![forbid(unsafe_code)]

pub mod dram;
pub mod live;
pub mod model;
pub mod net;
pub mod plan;
pub mod pmem;
pub mod report;
pub mod repro;
pub mod run;
pub mod source;
pub mod trace;
