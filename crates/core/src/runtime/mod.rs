//! What the processes of a pool do around their engines, written once: the product gives it
//! sockets, clocks and mapped memory, the simulator virtual time and a network of its own. Neither
//! I/O nor a clock is in here.

mod backoff;
pub mod daemon;
pub mod master_link;
pub mod relocation;
pub mod replicas;
mod worker;

pub use backoff::{Backoff, jittered_ns};
pub use worker::WorkerHost;
