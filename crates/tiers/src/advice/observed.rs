//! A load as the counters of a cache have it. In: counts, of a server's metrics or of a benchmark's
//! own cache. Out: a [`CacheLoad`]. Pure.

use super::{CacheLoad, CacheMemory, CurvePoint, LINE_BYTES, SizeShare, advise};
use crate::weights::WeightsError;

/// Look-ups and stores of a cache in DRAM.
#[derive(Clone, Debug)]
pub struct ObservedLoad {
    /// Look-ups that hits by capacity are of.
    pub gets: f64,
    pub gets_per_s: Option<f64>,
    pub sets_per_get: f64,
    /// Of the same look-ups as the stores.
    pub misses_per_get: f64,
    /// Mean of all items, headers included.
    pub item_bytes: f64,
    /// Bytes that a look-up had copied to make room, mean.
    pub copied_bytes: f64,
    /// Memory of the cache that had these misses; `None`: they are those of hits by capacity.
    pub memory_bytes: Option<u64>,
    /// Bytes, and the look-ups that such a cache answers, ascending.
    pub within: Vec<(u64, f64)>,
    /// Longest item of a class, and the look-ups that found one.
    pub by_item: Vec<(u64, f64)>,
    /// Of all items that they found.
    pub found_bytes: f64,
    pub threads: u32,
    /// Mean time of a command in the cache.
    pub command_ns: Option<f64>,
}

impl ObservedLoad {
    /// As many stores as there were misses are taken to have followed them.
    ///
    /// # Errors
    /// Of [`advise`].
    pub fn load(
        &self,
        near: &CacheMemory,
        gets_per_s: Option<f64>,
        threads: u32,
        miss_ns: f64,
    ) -> Result<CacheLoad, WeightsError> {
        let point = |(bytes, reads): &(u64, f64)| {
            let hit_ratio = (reads / self.gets).clamp(0.0, 1.0);
            CurvePoint { capacity_bytes: *bytes, hit_ratio }
        };
        // Items are shorter than the longest of their class, by the same factor.
        let longest: f64 = self.by_item.iter().map(|(bytes, reads)| *bytes as f64 * reads).sum();
        let factor = if longest > 0.0 { self.found_bytes / longest } else { 1.0 };
        let size = |(bytes, reads): &(u64, f64)| SizeShare {
            bytes: *bytes as f64 * factor,
            share: reads / self.gets,
        };
        let stored = self.sets_per_get * self.item_bytes;
        let fills = self.sets_per_get.min(self.misses_per_get);
        let mut load = CacheLoad {
            gets_per_s,
            sets_per_get: self.sets_per_get - fills,
            fills_per_miss: if fills > 0.0 { fills / self.misses_per_get } else { 0.0 },
            item_bytes: self.item_bytes,
            copies: if stored > 0.0 { self.copied_bytes / stored } else { 0.0 },
            sizes: self.by_item.iter().filter(|(_, reads)| *reads > 0.0).map(size).collect(),
            curve: self.within.iter().map(point).collect(),
            threads,
            work_ns: 0.0,
            wait_share: 1.0,
            miss_ns,
        };
        self.correct(&mut load);
        let Some(command_ns) = self.command_ns.filter(|command_ns| *command_ns > 0.0) else {
            return Ok(load);
        };
        // What a command took beside its waits for memory, as if all had been near; or less than
        // these.
        let dram = &advise(near, None, &CacheLoad { threads: 1, ..load.clone() })?.modes[0];
        let waits = 1e9 / dram.thread_gets_per_s / (1.0 + load.sets(dram.hit_ratio));
        let work_ns = (command_ns - waits).max(0.0);
        Ok(CacheLoad { work_ns, wait_share: (command_ns / waits).min(1.0), ..load })
    }

    /// Hits by capacity are those of a cache that drops what was used longest ago: as far as this
    /// one misses less there, or more, it does so with any memory.
    fn correct(&self, load: &mut CacheLoad) {
        let Some(memory_bytes) = self.memory_bytes else { return };
        let misses = 1.0 - load.hit_ratio(load.items_in(memory_bytes as f64));
        if misses > 0.0 {
            let factor = self.misses_per_get / misses;
            for point in &mut load.curve {
                point.hit_ratio = (1.0 - (1.0 - point.hit_ratio) * factor).clamp(0.0, 1.0);
            }
        }
    }

    /// Of all bytes that are moved, those that are read.
    pub fn read_share(&self) -> f64 {
        let read = LINE_BYTES + self.found_bytes / self.gets + self.copied_bytes;
        read / (read + self.sets_per_get * self.item_bytes + self.copied_bytes)
    }
}
