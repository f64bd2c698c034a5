//! A log of items on a file or block device: what a cache keeps beyond its memory, or a store that
//! loses nothing.
//!
//! In: items that leave memory, hashes of items that are gone. Out: items that are asked for. Items
//! are gathered in batches and written one batch after the other to regions, the oldest of which is
//! emptied when room is needed; an index in memory says where each lies ([`Flash`]).
//!
//! - `device.rs`: what it lies on; `layout.rs`: its bytes; `index.rs`: where items are;
//!   `journal.rs`: what is gone and not in the log yet; `tail.rs`: batches; `log.rs`: regions and
//!   the thread that writes; `fetch.rs`: reads; `admission.rs`: what is written; `recover.rs`: how
//!   it is opened;
//!   `persistent.rs`: the same in memory that persists.
//!
//! An item's entry is always its owner's current value: what changes or goes in memory is forgotten
//! here ([`Flash::forget`]) and does not come back, neither later nor after a restart, also if the
//! process was killed. After a power cut a cache begins empty; a store has all that was
//! acknowledged.
//!
//! Knows no cache and no network. No call but those that say so waits for the device.
#![forbid(unsafe_code)]

mod admission;
pub mod constants;
mod device;
mod error;
mod fetch;
mod flash;
mod index;
mod journal;
mod layout;
mod log;
mod options;
mod persistent;
mod recover;
mod stats;
mod tail;

pub use admission::{FlashAdmission, FlashGhosts};
pub use device::FlashDevice;
pub use error::{Error, Result};
pub use fetch::{FlashFetched, FlashItem};
pub use flash::{Flash, FlashPut, FlashTicket};
pub use layout::FlashRecord;
pub use options::Options;
pub use persistent::PersistentItems;
pub use recover::FlashRecovered;
pub use stats::FlashStats;
