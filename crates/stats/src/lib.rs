//! What measurements, models and reports share.
//!
//! No I/O and no clocks; it depends on none of our crates.

#![forbid(unsafe_code)]

pub mod html;
