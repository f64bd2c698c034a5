//! Counters of the cache, since it was made, and gauges of what it holds now.

/// What a cache has done and holds. Counters never go back; [`super::Cache::clear`] keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it; units are in them")]
pub struct Stats {
    pub hits: u64,
    pub misses: u64,
    pub sets: u64,
    /// Removed by a caller.
    pub removes: u64,
    /// Items that had to go for room in the log.
    pub evictions: u64,
    /// Items that had to go for room in their bucket.
    pub index_evictions: u64,
    /// Items that were found expired, one by one or by whole segments.
    pub expired: u64,
    /// Items that a policy or a compaction moved.
    pub moved: u64,
    pub moved_bytes: u64,
    /// Items now, expired ones that were not found yet included.
    pub items: u64,
    /// Bytes of live items in the log, headers included.
    pub live_bytes: u64,
    /// Bytes of all that is neither key nor value: index, headers, padding, segments' and policy's
    /// tables. By [`Stats::items`], an item's metadata.
    pub metadata_bytes: u64,
    /// Memory of all kinds that the cache may use, bytes.
    pub memory_bytes: u64,
    /// Units of 64 KiB.
    pub units: u64,
    pub free_units: u64,
    pub index_units: u64,
    /// Units in far memory, of all.
    pub far_units: u64,
    /// Bytes of live items in far memory, of all.
    pub far_bytes: u64,
    /// Units in far memory that may have memory of the system: all while it is used, none when it
    /// went back.
    pub far_held_units: u64,
    /// Bytes of near memory that are still to be gone over for pages that lie on other nodes than
    /// they are to ([`super::Cache::switch`]).
    pub pages_left_bytes: u64,
    /// Bytes of pages that have moved.
    pub pages_moved_bytes: u64,
    /// Bytes of pages that could not since the last switch: their node is full, or they are held.
    pub pages_stayed_bytes: u64,
    /// Items that went from near to far memory.
    pub demotions: u64,
    /// Items that came from far to near memory.
    pub promotions: u64,
    /// Bytes of both.
    pub crossed_bytes: u64,
    /// Bytes of items that were moved within far memory.
    pub moved_far_bytes: u64,
    /// Bytes that were read from near and from far memory, estimated from samples: only where the
    /// bandwidths of both are known ([`super::FarMemory::bandwidths`]).
    pub near_bytes_read: u64,
    pub far_bytes_read: u64,
    /// Values that lie in another tier.
    pub tier_items: u64,
    /// Bytes of them, those included that are still sent although their items are gone.
    pub tier_bytes: u64,
    /// Bytes of values that were read there.
    pub tier_bytes_read: u64,
    /// Values of which a copy was made here, since reads had paid for it.
    pub tier_promotions: u64,
    /// Reads of values there that a copy here has answered.
    pub tier_near_hits: u64,
    pub tier_near_bytes: u64,
}

impl Stats {
    /// Bytes of items that were copied within near memory.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.moved_bytes - self.crossed_bytes - self.moved_far_bytes
    }

    /// Adds those of a partition; the memory is that of all of them already.
    pub(crate) fn add(&mut self, other: &Stats) {
        macro_rules! sum {
            ($($field:ident)*) => { $(self.$field += other.$field;)* };
        }
        sum!(hits misses sets removes evictions index_evictions expired moved items live_bytes);
        sum!(metadata_bytes units free_units index_units tier_items tier_bytes tier_bytes_read);
        sum!(tier_promotions tier_near_hits tier_near_bytes);
        sum!(far_units far_bytes demotions promotions crossed_bytes near_bytes_read far_bytes_read);
        sum!(moved_bytes moved_far_bytes far_held_units);
    }
}
