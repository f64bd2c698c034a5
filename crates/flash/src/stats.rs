//! Counters and gauges of a flash log.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct FlashCounter(AtomicU64);

impl FlashCounter {
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
pub(crate) struct FlashCounters {
    pub admitted: FlashCounter,
    pub admitted_bytes: FlashCounter,
    pub refused: FlashCounter,
    pub dropped: FlashCounter,
    pub kept: FlashCounter,
    pub hits: FlashCounter,
    pub misses: FlashCounter,
    pub busy: FlashCounter,
    pub forgotten: FlashCounter,
    pub read_bytes: FlashCounter,
    pub written_bytes: FlashCounter,
    pub reinserted: FlashCounter,
    pub read_errors: FlashCounter,
    pub damaged: FlashCounter,
    pub write_errors: FlashCounter,
    pub retired: FlashCounter,
}

/// How much a flash log holds and has done since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    /// Items that can be found.
    pub items: u64,
    /// Bytes of their records.
    pub live_bytes: u64,
    /// Bytes of all regions.
    pub bytes: u64,
    pub index_bytes: u64,
    /// Items that were taken, and bytes of their records.
    pub admitted: u64,
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
    pub forgotten: u64,
    /// Bytes that were read from the device.
    pub read_bytes: u64,
    /// Bytes that were written to it.
    pub written_bytes: u64,
    /// Items that were written once more when their region was emptied.
    pub reinserted: u64,
    pub read_errors: u64,
    /// Records that were read and are not whole.
    pub damaged: u64,
    pub write_errors: u64,
    /// Regions that are not used any more, since they failed.
    pub retired_regions: u64,
    /// Whether nothing is written any more.
    pub is_failed: bool,
}
