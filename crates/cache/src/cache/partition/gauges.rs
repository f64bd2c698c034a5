//! What a partition counts, as of now.

use super::{Partition, Stats, UNIT_BYTES};
use crate::cache::key::PARTS;
use crate::cache::tier::TierSlab;

impl Partition {
    /// Items under keys of clients.
    pub fn items(&self) -> u64 {
        self.index.items() - self.items_in(PARTS)
    }

    pub fn stats_now(&self) -> Stats {
        let near = self.tier_slab.as_ref().map_or_else(Default::default, TierSlab::near_stats);
        Stats {
            items: self.items(),
            live_bytes: self.segments.live_bytes(),
            metadata_bytes: self.metadata_bytes(),
            units: (self.segments.count() - self.segments.withheld_count()) as u64,
            free_units: self.segments.unused_count() as u64,
            index_units: self.index.unit_count(),
            far_units: u64::from(self.segments.far_units()),
            far_bytes: self.segments.far_bytes(),
            far_held_units: u64::from(self.segments.far_held()),
            tier_items: self.tier_slab.as_ref().map_or(0, TierSlab::count),
            tier_bytes: self.tier_slab.as_ref().map_or(0, TierSlab::used_bytes),
            tier_bytes_read: near.far_bytes,
            tier_promotions: near.promotions,
            tier_near_hits: near.hits,
            tier_near_bytes: near.bytes,
            ..self.stats
        }
    }

    /// Bytes of all that is neither key nor value: index, headers of live items, and what each unit
    /// costs beside its memory, by policy.
    fn metadata_bytes(&self) -> u64 {
        let units = self.segments.count() as u64;
        self.index.unit_count() * u64::from(UNIT_BYTES)
            + (self.segments.live_bytes() - self.segments.payload_bytes())
            + units * self.unit_extra
    }
}
