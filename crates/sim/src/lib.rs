//! The pool's engines in virtual time: the same `Master`, `Daemon` and `Client` as in the real
//! world, over simulated memory, a simulated fabric and a virtual clock.
//!
//! *Checking mode* switches at every memory operation, buffers stores per processor, crashes,
//! pauses and partitions, and compares all that clients saw with a reference model.
//! *Performance mode* switches that off and charges calibrated costs instead.
//!
//! A run is a function of its configuration and its seed: one thread runs one seed from start to
//! end, so results cannot depend on how many threads there are.
#![forbid(unsafe_code)]

pub mod check;
pub mod coro;
pub mod device;
pub mod histogram;
pub mod mem;
pub mod net;
pub mod report;
pub mod repro;
pub mod rng;
pub mod run;
pub mod shrink;
pub mod stored;
pub mod time;
pub mod wheel;
pub mod world;
