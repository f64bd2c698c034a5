//! Hashes: fields with values of their own under one key, as pure data. Bytes of items in,
//! bytes of items out; where items lie, and which of them go, the cache decides. No clock (the
//! times are handed in).
//!
//! - `text.rs`: one field or value; `expiry.rs`: when fields expire; `packed.rs`, `edit.rs`: all
//!   fields of a small hash one behind the other, read and changed.
//! - `large.rs`: a root and parts, which are packed hashes; `shape.rs`: which parts there are;
//!   `root.rs`: the words of the root and the keys of its items; `stream.rs`: all fields as they
//!   were at one moment, in steps.
//!
//! Decision 0058.

mod edit;
mod expiry;
mod large;
mod packed;
mod root;
mod shape;
mod stream;
mod text;

pub use edit::{PackedHash, Stored};
pub use expiry::{Condition, Expired, FieldExpiry, Persisted};
pub use large::{Form, HashItems, LargeHash, Sweep};
pub use packed::{Field, FieldName, Packed};
pub use root::{HashItem, HashItemKey, ROOT_BYTES, Root};
pub use shape::{PART_BYTES_MEAN, PartId, Shape};
pub use stream::{FieldStream, Next};
pub use text::{LongValue, Text};

/// Longest field, bytes: as a key.
pub const FIELD_BYTES_MAX: usize = crate::KEY_BYTES_MAX;

/// What was read is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is damaged")]
pub struct Damaged;

/// How far a packed hash grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLimits {
    /// Most bytes of all fields together.
    pub bytes_max: usize,
    /// Most bytes of a value.
    pub value_bytes_max: usize,
}

impl PackedLimits {
    /// Of a small hash: a reader without the lock can copy its item in one piece, and a change
    /// writes no more than that anew.
    pub const SMALL: PackedLimits = PackedLimits { bytes_max: 2048, value_bytes_max: 1024 };
    /// Of a part: it splits by what all have on average, and longer values would be written anew
    /// with each of their neighbours.
    pub const PART: PackedLimits = PackedLimits { bytes_max: usize::MAX, value_bytes_max: 512 };
}
