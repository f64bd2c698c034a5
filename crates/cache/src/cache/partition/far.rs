//! What a partition has in another tier: how room is made there, and which value is whose.

use super::{FarValue, Header, Millis, Mode, Partition, Pos, REFERENCE_BYTES, Slot};
use crate::cache::error::{Error, Result};
use crate::cache::tier::{TierError, failed};
use rackpool_core::seam::Mem;
use std::sync::Arc;

/// Values that are looked at for one that has expired where none may be evicted.
const EXPIRED_LOOKS_MAX: usize = 1024;

impl Partition {
    /// Whether a value of this length goes to the tier.
    #[inline]
    pub(crate) fn is_for_tier(&self, value_bytes: u64) -> bool {
        self.tier_slab.as_ref().is_some_and(|slab| value_bytes >= slab.min_bytes)
    }

    /// Room for a value in the tier; others may have to go for it.
    pub(crate) fn far_alloc(&mut self, bytes: u64, now: Millis) -> Result<FarValue> {
        let slab = self.tier_slab.as_ref().expect("a value for the tier");
        if bytes > slab.max_bytes {
            return Err(Error::TooLarge { bytes, max_bytes: slab.max_bytes });
        }
        loop {
            let slab = self.tier_slab.as_mut().expect("as above");
            let memory_bytes = slab.limit;
            match slab.alloc(bytes) {
                Ok(value) => return Ok(value),
                Err(TierError::Full) if slab.drop_flushed(1) => {}
                Err(TierError::Full) if self.expire_one(now) || self.evict_far(now) => {}
                Err(TierError::Full) => return Err(Error::TierFull { bytes, memory_bytes }),
                Err(error) => return Err(failed("taking memory")(error)),
            }
        }
    }

    /// Drops the value that came first and has expired, or, in cache mode, was not used since;
    /// whether there was one.
    fn evict_far(&mut self, now: Millis) -> bool {
        let is_store = self.mode == Mode::Store;
        let count = self.tier_slab.as_ref().map_or(0, |slab| slab.order.len());
        // Of a cache each is met twice at most: the first time takes what it was used.
        let looks = if is_store { count.min(EXPIRED_LOOKS_MAX) } else { 2 * count };
        for _ in 0..looks {
            let next = self.tier_slab.as_mut().and_then(|slab| slab.order.pop_front());
            let Some((hash, place)) = next else { return false };
            let is_it = |slot: Slot| self.far_place(slot.pos()) == Some(place);
            let Some((at, slot)) = self.index.find(hash, is_it) else { continue };
            let is_expired = self.is_expired(slot.pos(), now);
            if !is_expired && (is_store || slot.freq() > 0) {
                if !is_store {
                    self.index.mark(at, slot.with_freq(0));
                }
                let slab = self.tier_slab.as_mut().expect("it had an entry");
                slab.order.push_back((hash, place));
                continue;
            }
            match is_expired {
                true => self.stats.expired += 1,
                false => {
                    self.note_evicted((at, slot), now);
                    self.stats.evictions += 1;
                }
            }
            self.remove(hash, (at, slot));
            return true;
        }
        false
    }

    /// Where the value of an item lies, if it lies in the tier.
    fn far_place(&self, pos: Pos) -> Option<u64> {
        let header = self.header(pos);
        header.has(Header::FAR).then(|| self.reference(pos, header)[0])
    }

    /// Place, length and hash of a value, as the log has them.
    fn reference(&self, pos: Pos, header: Header) -> [u64; 3] {
        let mut words = [[0; 8]; 3];
        let at = pos.byte() + u64::from(header.value_at());
        self.units.copy_out(at, words.as_flattened_mut());
        words.map(u64::from_le_bytes)
    }

    /// The value of an item of an earlier process, if the tier has kept it.
    pub(crate) fn adopt_far(&self, pos: Pos, header: Header) -> Option<FarValue> {
        if u64::from(header.value_bytes()) != REFERENCE_BYTES {
            return None;
        }
        self.tier_slab.as_ref()?.adopt(self.reference(pos, header))
    }

    /// Length of the value of an item, wherever it lies.
    #[inline]
    pub(crate) fn whole_bytes(&self, pos: Pos, header: Header) -> u64 {
        match header.has(Header::FAR) {
            true => self.reference(pos, header)[1],
            false => self.value_bytes(pos, header),
        }
    }

    /// The value of an item that lies in the tier.
    pub(crate) fn far_value(&self, pos: Pos) -> Result<&Arc<FarValue>> {
        let values = self.tier_slab.as_ref().map(|slab| &slab.values);
        let value = values.zip(self.far_place(pos)).and_then(|(values, place)| values.get(&place));
        value.ok_or_else(|| failed("finding a value")(TierError::Failed("it is gone".into())))
    }

    /// Puts a value into the slab; its reference is in the log.
    pub(crate) fn shelve(&mut self, hash: u64, value: Arc<FarValue>) {
        let slab = self.tier_slab.as_mut().expect("a value of the tier");
        slab.order.push_back((hash, value.place));
        slab.values.insert(value.place, value);
        if slab.order.len() > 2 * slab.values.len() + 1024 {
            slab.order.retain(|(_, place)| slab.values.contains_key(place));
        }
    }

    /// Takes the value of an item that is killed out of the slab.
    #[inline]
    pub(crate) fn unshelve(&mut self, pos: Pos) {
        if self.tier_slab.is_none() {
            return;
        }
        let place = self.far_place(pos);
        if let (Some(place), Some(slab)) = (place, &mut self.tier_slab) {
            slab.values.remove(&place);
        }
    }
}
