//! The loops and links that a real and a simulated process share. Without I/O and clocks: the real
//! ones bring sockets, the simulated ones virtual time.

mod backoff;
pub mod relocation;
pub mod replicas;
mod worker;

pub use backoff::Backoff;
pub use worker::WorkerHost;
