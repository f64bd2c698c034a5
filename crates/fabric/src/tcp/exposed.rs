//! Buffers of an initiator that its target may write into: where it may write, and how much has
//! come. Owns the exposures of one connection; they end with it.
//!
//! In: pieces to expose, announcements of data. Out: where the data goes, or that it is dropped.
//! Called by `connection.rs`. Nothing that the target says is trusted: number, key and range are
//! checked for each frame, and the number and key again for each part of its data, so an exposure
//! ends at once whatever is under way.
//!
//! Source: Rcmp §5.5 (zero-copy mode); decision 0028.

use super::frame::{FrameError, Put};
use rackpool_core::seam::{BufId, Exposure, Sge};
use std::sync::atomic::{AtomicU64, Ordering};

/// Exposures of one connection at once.
const EXPOSURES_MAX: usize = 64;

#[derive(Clone, Copy)]
struct Exposed {
    key: u64,
    piece: Sge,
    /// Bytes from the start that have come without a gap.
    come: u64,
}

/// The exposures of a connection, by number.
#[derive(Default)]
pub(super) struct Exposures {
    slots: Vec<Option<Exposed>>,
}

/// A frame of data under way.
#[derive(Clone, Copy)]
pub(super) struct Landing {
    id: u32,
    key: u64,
    offset: u64,
    /// Bytes that are still to come.
    pub(super) left: u64,
}

fn next_key() -> u64 {
    static KEYS: AtomicU64 = AtomicU64::new(1);
    // Relaxed: only the value's uniqueness matters.
    KEYS.fetch_add(1, Ordering::Relaxed)
}

impl Exposures {
    /// Exposes a piece that the caller has checked; `None` if there are too many.
    pub(super) fn add(&mut self, piece: &Sge) -> Option<Exposure> {
        let free = self.slots.iter().position(Option::is_none);
        let id = free.unwrap_or(self.slots.len());
        if id == self.slots.len() {
            if id == EXPOSURES_MAX {
                return None;
            }
            self.slots.push(None);
        }
        let key = next_key();
        self.slots[id] = Some(Exposed { key, piece: *piece, come: 0 });
        Some(Exposure { id: id as u32, key, bytes: piece.bytes })
    }

    /// Ends an exposure; how many bytes have come.
    pub(super) fn end(&mut self, exposure: &Exposure) -> u64 {
        let slot = self.slots.get_mut(exposure.id as usize);
        slot.and_then(|slot| slot.take_if(|one| one.key == exposure.key)).map_or(0, |one| one.come)
    }

    /// Ends those of the buffers for which `named` holds.
    pub(super) fn let_go(&mut self, named: impl Fn(BufId) -> bool) {
        for slot in &mut self.slots {
            slot.take_if(|one| named(one.piece.buf));
        }
    }

    /// Whether so much may come for one of them that it is worth a call to the system of its own.
    pub(super) fn expects(&self, bytes: u64) -> bool {
        self.slots.iter().flatten().any(|one| one.piece.bytes >= bytes)
    }

    fn find(&self, id: u32, key: u64) -> Option<&Exposed> {
        self.slots.get(id as usize)?.as_ref().filter(|one| one.key == key)
    }

    /// Data is announced. What names no exposure is dropped; what does not fit into it ends the
    /// connection.
    pub(super) fn begin(&self, put: &Put) -> Result<Landing, FrameError> {
        let Put { id, key, offset, bytes } = *put;
        if let Some(one) = self.find(id, key) {
            let limit_bytes = one.piece.bytes;
            if offset.checked_add(bytes).is_none_or(|end| end > limit_bytes) {
                return Err(FrameError::PastExposure { offset, bytes, limit_bytes });
            }
        }
        Ok(Landing { id, key, offset, left: bytes })
    }

    /// Where the next data of a frame goes, at most `limit` bytes; `None` if it is dropped.
    pub(super) fn next(&self, landing: &Landing, limit: u64) -> Option<Sge> {
        let one = self.find(landing.id, landing.key)?;
        let offset = one.piece.offset + landing.offset;
        Some(Sge { buf: one.piece.buf, offset, bytes: landing.left.min(limit) })
    }

    /// So many bytes of the frame have come, or were dropped.
    pub(super) fn advance(&mut self, landing: &mut Landing, bytes: u64) {
        let Landing { id, key, offset, .. } = *landing;
        let slot = self.slots.get_mut(id as usize).and_then(Option::as_mut);
        if let Some(one) = slot.filter(|one| one.key == key && one.come == offset) {
            one.come += bytes;
        }
        landing.offset += bytes;
        landing.left -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, bytes: u64) -> Sge {
        Sge { buf: BufId(7), offset, bytes }
    }

    fn put(to: &Exposure, offset: u64, bytes: u64) -> Put {
        Put { id: to.id, key: to.key, offset, bytes }
    }

    #[test]
    fn data_goes_to_its_place_and_is_counted_without_gaps() {
        let mut all = Exposures::default();
        let to = all.add(&piece(10, 100)).unwrap();
        let mut landing = all.begin(&put(&to, 0, 60)).unwrap();
        assert_eq!(all.next(&landing, 40), Some(piece(10, 40)));
        all.advance(&mut landing, 40);
        assert_eq!(all.next(&landing, 40), Some(piece(50, 20)));
        all.advance(&mut landing, 20);
        let mut past = all.begin(&put(&to, 70, 30)).unwrap();
        all.advance(&mut past, 30);
        assert_eq!(all.end(&to), 60);
        assert_eq!(all.end(&to), 0);
    }

    #[test]
    fn what_comes_after_the_end_or_under_another_key_is_dropped() {
        let mut all = Exposures::default();
        let to = all.add(&piece(0, 100)).unwrap();
        let mut landing = all.begin(&put(&to, 0, 100)).unwrap();
        all.advance(&mut landing, 30);
        assert_eq!(all.end(&to), 30);
        assert_eq!(all.next(&landing, 100), None);
        // The number is used again, the key is not.
        let next = all.add(&piece(0, 100)).unwrap();
        assert_eq!((next.id, next.key == to.key), (to.id, false));
        assert_eq!(all.next(&landing, 100), None);
        all.advance(&mut landing, 70);
        assert_eq!(all.end(&next), 0);
    }

    #[test]
    fn what_does_not_fit_ends_the_connection() {
        let mut all = Exposures::default();
        let to = all.add(&piece(0, 100)).unwrap();
        assert!(all.begin(&put(&to, 0, 101)).is_err());
        assert!(all.begin(&put(&to, 100, 1)).is_err());
        assert!(all.begin(&put(&to, u64::MAX, 1)).is_err());
        assert!(all.begin(&put(&to, 100, 0)).is_ok());
    }

    #[test]
    fn a_full_table_refuses_and_a_buffer_that_goes_takes_its_exposures_along() {
        let mut all = Exposures::default();
        let first = all.add(&piece(0, 8)).unwrap();
        while all.add(&piece(0, 8)).is_some() {}
        assert_eq!(all.slots.len(), EXPOSURES_MAX);
        all.let_go(|buf| buf == BufId(7));
        assert!(all.find(first.id, first.key).is_none());
        assert!(all.add(&piece(0, 8)).is_some());
    }
}
