//! What is limited, and by how much.

/// Bytes of a region: what is written anew as one, and room is made by.
pub const REGION_BYTES: u64 = 16 << 20;
/// A smaller log has so many regions, so that those that are kept free are few of all …
pub const REGIONS_WANTED: u64 = 64;
/// … but none shorter than this, which takes the longest batch of a disk that turns.
pub const REGION_BYTES_MIN: u64 = 6 << 20;
/// Bytes before the first region: the superblock and its copy.
pub const HEAD_BYTES: u64 = 64 << 10;
/// Bytes that must be zero where a log is made: file systems have their marks there, the last one
/// behind 64 KiB.
pub const FOREIGN_BYTES: u64 = 128 << 10;
/// Fewest bytes of a batch, but for one that has waited for [`FLUSH_AFTER_MS`].
pub const BATCH_BYTES: usize = 256 << 10;
/// The same on disks that turn, where each batch costs a seek.
pub const BATCH_BYTES_ROTATIONAL: usize = 4 << 20;
/// Longest record, bytes: header, key and value.
pub const RECORD_BYTES_MAX: usize = 1 << 20;
/// Batches that wait to be written; then items are dropped, or stores refused.
pub const BATCHES_MAX: usize = 4;
/// Batches that wait at which a store's owner should let its clients wait …
pub const BATCHES_READY_MAX: usize = 2;
/// … and at which stores are refused: less than a region, which is free at any time.
pub const BATCHES_STORED_MAX: usize = 8;
/// How long a batch waits for more.
pub const FLUSH_AFTER_MS: u64 = 1000;
/// Fewest regions: those that are kept free, one that is written, one that is emptied, and one.
pub const REGIONS_MIN: u64 = FREE_REGIONS as u64 + 3;
/// Regions that are kept free: what is kept of one that is emptied may need two.
pub const FREE_REGIONS: usize = 3;
/// Free regions below which a store takes nothing new until regions are emptied.
pub const FREE_REGIONS_TIGHT: usize = 2;
/// Share of the log that a store may fill with what lives, percent: the more, the more often each
/// record is copied.
pub const STORE_PERCENT: u64 = 80;
/// Look-ups that wait for the device.
pub const FETCHES_MAX: usize = 1024;
/// Look-ups that a thread does at once.
pub const FETCH_BATCH: usize = 16;
/// Threads for look-ups where each waits for the device.
pub const FETCH_THREADS_WAITING: usize = 16;
/// The same by io_uring, where a thread has [`FETCH_BATCH`] under way.
pub const FETCH_THREADS: usize = 4;
/// Forgotten items of which the log does not know yet: 1 MiB.
pub const JOURNAL_ENTRIES: u64 = 64 << 10;
/// As often as so many are noted they are written without waiting for more.
pub const FORGOTTEN_BATCH: u64 = 4 << 10;
/// Bytes of an item on average from which the size of the index is taken, if none is given.
pub const ITEM_BYTES: u64 = 2 << 10;
