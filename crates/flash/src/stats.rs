//! Counters and gauges of a flash log.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter for people.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        // Relaxed: nothing is ordered by it.
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        // Relaxed: see `add`.
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub admitted: Counter,
    pub admitted_bytes: Counter,
    pub refused: Counter,
    pub dropped: Counter,
    pub kept: Counter,
    pub hits: Counter,
    pub misses: Counter,
    pub busy: Counter,
    pub forgotten: Counter,
    pub read_bytes: Counter,
    pub written_bytes: Counter,
    pub reinserted: Counter,
    pub read_errors: Counter,
    pub damaged: Counter,
    pub write_errors: Counter,
    pub retired: Counter,
}

/// How much a flash log holds and has done since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Items that can be found.
    pub items: u64,
    /// Bytes of their records.
    pub live_bytes: u64,
    /// Bytes of all regions.
    pub bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Items that were taken, and bytes of their records.
    pub admitted: u64,
    /// See `admitted`.
    pub admitted_bytes: u64,
    /// Items that admission has refused.
    pub refused: u64,
    /// Items that found too many batches waiting, or no slot in the index.
    pub dropped: u64,
    /// Items that were there already.
    pub kept: u64,
    /// Reads that found their item.
    pub hits: u64,
    /// Reads that did not, although the index had it.
    pub misses: u64,
    /// Reads that found too many waiting.
    pub busy: u64,
    /// Items that were forgotten.
    pub forgotten: u64,
    /// Bytes that were read from the device.
    pub read_bytes: u64,
    /// Bytes that were written to it.
    pub written_bytes: u64,
    /// Items that were written once more when their region was emptied.
    pub reinserted: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Records that were read and are not whole.
    pub damaged: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Regions that are not used any more, since they failed.
    pub retired_regions: u64,
    /// Whether nothing is written any more.
    pub is_failed: bool,
}
