//! Devices with calibrated cost: what each stage of an access takes, where the number comes from,
//! and the servers that make accesses wait for one another.
//!
//! [`profile`] reads the numbers, [`units`] gives them their kinds, [`reader`] finds the line that
//! is wrong, [`server`] queues. [`calibrate`] measures what this machine can measure and writes a
//! profile. Used by the simulated network ([`crate::net`]) and by the world, which charges
//! processor times.

pub mod calibrate;
pub mod error;
pub mod profile;
pub mod reader;
pub mod server;
pub mod units;

pub use error::ProfileError;
pub use profile::Profile;
pub use server::{FifoServer, QpCache};
pub use units::{Bandwidth, Bytes, Count, Rate};
