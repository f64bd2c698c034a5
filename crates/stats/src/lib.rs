//! What measurements, models and reports share.
//!
//! No I/O and no clocks; it depends on none of our crates, and without the feature `measure` on
//! nothing else.

#![forbid(unsafe_code)]

#[cfg(feature = "measure")]
pub mod format;
#[cfg(feature = "measure")]
pub mod histogram;
pub mod html;
#[cfg(feature = "measure")]
pub mod random;
pub mod sample;
pub mod svg;
pub mod table;
pub mod time;
pub mod units;
#[cfg(feature = "measure")]
pub mod zipf;
