//! Walks over all items of a space, in steps, each under the lock of a partition. In: a cursor.
//! Out: some items, and the next one.

use super::item::Item;
use super::layout::TAG_BITS;
use super::{Cache, Millis};

/// Buckets that a scan looks into for each item that it is to visit.
const SCANNED_PER_ITEM: usize = 10;
/// Buckets that it looks into in any case: a cache with few items is seen at once.
const SCANNED_BUCKETS: usize = 4096;
/// What an item of another space takes, in buckets.
const BUCKETS_PER_ITEM: usize = 16;
/// Bits of a cursor for the index of a partition; the partition's number stands above them.
const CURSOR_BITS: u32 = 32 + TAG_BITS;

impl Cache {
    /// Visits some `count` items of this space from `cursor` on (0 = start), fewer where there are
    /// few; the next cursor, 0 at the end. Every item that is there throughout is seen at least
    /// once, others perhaps, none of them expired. `f` must not call the cache.
    pub fn scan(
        &self,
        cursor: u64,
        count: usize,
        now: Millis,
        mut f: impl FnMut(&Item<'_>),
    ) -> u64 {
        let mut index = (cursor >> CURSOR_BITS) as usize;
        let mut inner = cursor & ((1 << CURSOR_BITS) - 1);
        let mut seen = 0;
        let mut left = count.saturating_mul(SCANNED_PER_ITEM).saturating_add(SCANNED_BUCKETS);
        while index < self.partitions.len() {
            let partition = self.lock(index);
            // Of those that it has, if it is gone over from its start.
            let mut unseen = match inner {
                0 => partition.items_in(self.space),
                _ => u64::MAX,
            };
            loop {
                if unseen == 0 {
                    inner = 0;
                    break;
                }
                inner = partition.scan(inner, now, |item| {
                    if item.space() == self.space {
                        (seen, unseen) = (seen + 1, unseen.saturating_sub(1));
                        f(item);
                    } else {
                        left = left.saturating_sub(BUCKETS_PER_ITEM);
                    }
                });
                left = left.saturating_sub(1);
                if inner == 0 || seen >= count || left == 0 {
                    break;
                }
            }
            if inner == 0 {
                index += 1;
            }
            if (seen >= count || left == 0) && (inner != 0 || index < self.partitions.len()) {
                return ((index as u64) << CURSOR_BITS) | inner;
            }
        }
        0
    }

    /// A cursor for [`Cache::scan`], at a place that is chosen by a random number.
    pub fn cursor_at(&self, random: u64) -> u64 {
        let index = self.index_of(random);
        ((index as u64) << CURSOR_BITS) | self.lock(index).index.cursor_at(random)
    }
}
