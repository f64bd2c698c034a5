//! Key-value structures on the pool. They stand on the pool's public API alone, through the small
//! trait [`words::Words`]; nothing here knows of daemons, regions or fabrics.
//!
//! - [`table`]: a concurrent hash table that many clients in all racks share.
#![forbid(unsafe_code)]

pub mod constants;
pub mod error;
pub mod table;
pub mod words;

pub use error::{Error, Result};
pub use table::{Options, Table};
