//! The systems that HERD is compared with, as protocols: Pilaf, FaRM-KV with values inside and
//! outside of its table, and the ECHO variants. What each sends, where its table has a key, the
//! READs of a GET, what a PUT does to the table.
//!
//! In: keys, values, what READs brought, requests from memory or messages. Out: the next READ,
//! whether a value was found, the bytes of requests and answers, stores to the table. No state but
//! that of a GET under way. Processes of the simulator and of `bench kv --baselines` drive it:
//! cards or fabrics, clocks and counts are theirs.
//!
//! - `systems.rs`: which way requests and answers go, and how many bytes;
//! - `request.rs`: requests, their slots, acknowledgements;
//! - `table.rs`, `place.rs`: cuckoo and hopscotch tables, the steps of a GET and of a PUT;
//! - `get.rs`: a GET by READs, emulated or through a table.
//!
//! *Emulated*, as in the paper, means that there is no table: READs have the sizes of a GET's and
//! nothing is looked up. *Full* has the table.
//!
//! *No client reads a half-done PUT.* A PUT stores in place while READs go on, so a READ may bring
//! a part of it. Pilaf's buckets carry checksums of themselves and of the value, as Pilaf has them.
//! FaRM has a version in each cache line; here an entry carries a checksum of key and value in the
//! second half of its key hash instead, which makes no READ longer. A client that finds a checksum
//! wrong begins the GET again.
//!
//! Source: HERD, sections on Pilaf, FaRM-KV, their simplified versions, and ECHO.

mod get;
mod place;
mod request;
mod systems;
mod table;

pub use get::Get;
pub use place::NoPlace;
pub use request::{Ack, CLIENTS_MAX, KvRequest, LANES_MAX, RequestRegion};
pub use systems::{Connection, Exchange, Plan, System, Way};
pub use table::{KeyTable, Lookup, TableMemory, Then, is_value, value_of};

/// A slot of the request region, and the longest item, bytes. Source: HERD, requests.
pub const SLOT_BYTES: u64 = 1024;
/// A key hash, bytes. Source: HERD, requests.
pub const KEY_BYTES: u64 = 16;
/// Bytes of the length that a PUT carries. Source: HERD, requests.
pub const LENGTH_BYTES: u64 = 2;
/// A bucket of Pilaf: a pointer, two checksums, padding; bytes. Source: HERD, emulating Pilaf.
pub const PILAF_BUCKET_BYTES: u64 = 32;
/// Of Pilaf's GETs these need a second bucket, and these of them a third, so that 1.6 are read on
/// average: at 75 % full the first of three holds the key in 0.58 of the cases, in parts per
/// million. Source: HERD, emulating Pilaf, for the mean; the split is ours.
pub const PILAF_SECOND_PPM: u32 = 420_000;
pub const PILAF_THIRD_PPM: u32 = 428_571;
/// Slots of FaRM's neighbourhood. Source: HERD, emulating FaRM-KV.
pub const FARM_SLOTS: u64 = 6;
/// A pointer of FaRM-KV with values outside, bytes. The paper does not say how long; an address
/// has 8.
pub const FARM_POINTER_BYTES: u64 = 8;
/// What says that a PUT was done, bytes.
pub const ACK_BYTES: u64 = 1;

/// A hash of a key; `which` of several.
#[inline]
pub fn hash(key: u64, which: u64) -> u64 {
    let mut z = key.wrapping_add(which.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
