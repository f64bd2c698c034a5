//! The loops and links that a real and a simulated process share. Without I/O and clocks: the real
//! ones bring sockets, the simulated ones virtual time.

mod backoff;
pub mod master_link;

pub use backoff::{Backoff, jittered_ns};
