//! Copies in this process's memory of values that lie in another tier, where their reads pay for
//! one.
//!
//! A value in a tier never changes: a put makes another one, in a place of its own. So a copy is
//! never old. It goes with its value, or when others need its room, by CLOCK: the copy that came
//! first, unless it was read since. The value in the tier stays, so nothing is ever written back,
//! and nothing is lost with a copy.
//!
//! Called under the lock of the partition, except [`PromotionState::get`], which the sender of a
//! value calls.
//!
//! Source: HMSDK (data tiering: values in the larger tier or in both, by the object's need of
//! bandwidth).

use super::{CHUNK_BYTES, Error, Result, TIER_VALUE_BYTES_MIN, check};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Which values of a tier have a copy in this process's memory as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TierRule {
    /// None: length alone decides where a value lies.
    #[default]
    Length,
    /// Those of up to 128 KiB if their reads pay for one ([`Speeds::pays`]).
    Bandwidth {
        /// Bytes that copies may take, beside [`super::Options::memory`].
        memory: u64,
        /// What reads cost here and there.
        speeds: Speeds,
    },
}

impl TierRule {
    pub(crate) fn check(&self, min_bytes: u64, partitions: u64) -> Result<(), Error> {
        match self {
            TierRule::Length => Ok(()),
            TierRule::Bandwidth { memory, .. } => {
                check("memory for copies", *memory, partitions * min_bytes, u64::MAX)
            }
        }
    }
}

/// What it costs to read from a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCost {
    /// Of the first bytes, nanoseconds.
    pub latency_ns: u64,
    /// Of each further byte, picoseconds: 100 are 10 GB/s.
    pub byte_ps: u64,
}

impl ReadCost {
    /// Nanoseconds of a read of so many bytes.
    pub fn ns(self, bytes: u64) -> u64 {
        self.latency_ns.saturating_add(bytes.saturating_mul(self.byte_ps) / 1000)
    }
}

/// What reads cost in the tier and in this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speeds {
    /// The tier.
    pub far: ReadCost,
    /// This process's memory.
    pub near: ReadCost,
}

impl Speeds {
    /// Whether a value of so many bytes that was read so often in the tier is to have a copy: as
    /// soon as those reads have lost the time that the choice costs if it was wrong, which is one
    /// more read there (of the value that loses its copy for this one) and one copy made. This is
    /// the ski-rental rule: whatever comes, it loses no more than a small multiple of what the best
    /// choice would. Never at the first read, nor where the tier is as quick.
    pub fn pays(self, reads: u64, bytes: u64) -> bool {
        let (far, near) = (self.far.ns(bytes), self.near.ns(bytes));
        let lost = u128::from(far.saturating_sub(near)) * u128::from(reads);
        reads > 1 && lost > 0 && lost >= u128::from(far) + u128::from(near)
    }
}

/// The copies of a partition, and what was read of its values `V`.
#[derive(Debug)]
pub(crate) struct PromotionCache<V> {
    speeds: Option<Speeds>,
    limit: u64,
    used: Arc<AtomicU64>,
    /// Values that have got a copy, in that order; some have lost it, or are gone.
    order: Mutex<VecDeque<Weak<V>>>,
    promotions: AtomicU64,
    /// Reads that a copy has answered.
    hits: AtomicU64,
    far_bytes: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NearStats {
    pub promotions: u64,
    pub hits: u64,
    pub bytes: u64,
    pub far_bytes: u64,
}

impl<V: AsRef<PromotionState>> PromotionCache<V> {
    /// One of `partitions` equal parts.
    pub fn new(rule: TierRule, partitions: u64) -> PromotionCache<V> {
        let (speeds, limit) = match rule {
            TierRule::Length => (None, 0),
            TierRule::Bandwidth { memory, speeds } => (Some(speeds), memory / partitions),
        };
        PromotionCache {
            speeds,
            limit,
            used: Arc::default(),
            order: Mutex::default(),
            promotions: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            far_bytes: AtomicU64::new(0),
        }
    }

    pub fn stats(&self) -> NearStats {
        // Relaxed: counters, and a budget; its changes order nothing.
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NearStats {
            promotions: of(&self.promotions),
            hits: of(&self.hits),
            bytes: of(&self.used),
            far_bytes: of(&self.far_bytes),
        }
    }

    pub fn count_hit(&self) {
        // Relaxed: a counter.
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_far(&self, bytes: usize) {
        // Relaxed: a counter.
        self.far_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A look-up has read all of a value, which is `bytes`: makes a copy of it if that pays.
    pub fn consider(&self, value: &Arc<V>, bytes: &[u8]) {
        let (Some(speeds), length) = (self.speeds, bytes.len() as u64) else { return };
        let state = V::as_ref(value);
        if length > CHUNK_BYTES.min(self.limit) || state.is_there() {
            return;
        }
        if !speeds.pays(state.count_read(), length) {
            return;
        }
        let mut order = lock(&self.order);
        if !self.make_room(&mut order, length) {
            return;
        }
        // Relaxed: a budget.
        self.used.fetch_add(length, Ordering::Relaxed);
        state.set(PromotedCopy { bytes: bytes.into(), used: Arc::clone(&self.used) });
        // No value of a tier is shorter, so there are others that have no copy any more.
        if order.len() as u64 > self.limit / TIER_VALUE_BYTES_MIN + 64 {
            order.retain(|it| it.upgrade().is_some_and(|value| V::as_ref(&value).is_there()));
        }
        order.push_back(Arc::downgrade(value));
        // Relaxed: a counter.
        self.promotions.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes copies away until there is room for one of so many bytes; whether there is.
    fn make_room(&self, order: &mut VecDeque<Weak<V>>, bytes: u64) -> bool {
        // Each is met twice at most: the first time takes that it was read.
        for _ in 0..2 * order.len() {
            if self.has_room(bytes) {
                break;
            }
            let Some(oldest) = order.pop_front() else { break };
            match oldest.upgrade() {
                Some(value) if V::as_ref(&value).take_use() => order.push_back(oldest),
                Some(value) => V::as_ref(&value).forget(),
                None => {}
            }
        }
        self.has_room(bytes)
    }

    fn has_room(&self, bytes: u64) -> bool {
        // Relaxed: a budget; a thread that adds to it holds the lock.
        self.used.load(Ordering::Relaxed) + bytes <= self.limit
    }
}

/// A value's reads in the tier, and its copy, if it has one.
#[derive(Debug, Default)]
pub(crate) struct PromotionState {
    /// Since it came, or lost its copy.
    reads: AtomicU32,
    /// Whether the copy was read since CLOCK's hand last came by.
    is_used: AtomicBool,
    copy: Mutex<Option<Arc<PromotedCopy>>>,
}

/// A copy; its room is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct PromotedCopy {
    pub bytes: Box<[u8]>,
    used: Arc<AtomicU64>,
}

impl PromotionState {
    pub fn get(&self) -> Option<Arc<PromotedCopy>> {
        let copy = lock(&self.copy).clone()?;
        // Relaxed: a mark that orders nothing.
        self.is_used.store(true, Ordering::Relaxed);
        Some(copy)
    }

    fn is_there(&self) -> bool {
        lock(&self.copy).is_some()
    }

    fn set(&self, copy: PromotedCopy) {
        *lock(&self.copy) = Some(Arc::new(copy));
        // Relaxed: as above.
        self.is_used.store(false, Ordering::Relaxed);
    }

    /// Takes the copy away; it has to be paid for anew.
    fn forget(&self) {
        *lock(&self.copy) = None;
        // Relaxed: changed under the lock of the partition.
        self.reads.store(0, Ordering::Relaxed);
    }

    fn take_use(&self) -> bool {
        // Relaxed: a mark that orders nothing.
        self.is_used.swap(false, Ordering::Relaxed)
    }

    /// Counts a read in the tier; how many there were.
    fn count_read(&self) -> u64 {
        // Relaxed: changed under the lock of the partition.
        let reads = self.reads.load(Ordering::Relaxed).saturating_add(1);
        // Relaxed: as above.
        self.reads.store(reads, Ordering::Relaxed);
        reads.into()
    }
}

impl Drop for PromotedCopy {
    fn drop(&mut self) {
        // Relaxed: a budget; the memory is ordered by its allocator.
        self.used.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: ReadCost = ReadCost { latency_ns: 100, byte_ps: 100 };

    /// The read that pays for a copy.
    fn paying(far: ReadCost, bytes: u64) -> Option<u64> {
        let speeds = Speeds { far, near: OWN };
        (1..1000).find(|reads| speeds.pays(*reads, bytes))
    }

    #[test]
    fn the_slower_the_tier_the_sooner_a_copy_pays_and_never_at_the_first_read() {
        let times = |factor: u64| ReadCost { latency_ns: 100 * factor, byte_ps: 100 * factor };
        assert_eq!(paying(OWN, 4096), None, "a tier that is as quick");
        assert_eq!(paying(ReadCost { latency_ns: 10, byte_ps: 10 }, 4096), None, "or quicker");
        assert_eq!(paying(times(2), 4096), Some(3));
        assert_eq!(paying(times(3), 4096), Some(2));
        assert_eq!(paying(times(1_000_000), 4096), Some(2));
    }

    #[test]
    fn latency_decides_for_short_values_and_bandwidth_for_long_ones() {
        let late = ReadCost { latency_ns: 1000, ..OWN };
        assert_eq!((paying(late, 1024), paying(late, 128 << 10)), (Some(2), Some(31)));
        let narrow = ReadCost { byte_ps: 200, ..OWN };
        assert_eq!((paying(narrow, 1024), paying(narrow, 128 << 10)), (Some(5), Some(4)));
    }

    proptest! {
        #[test]
        fn who_has_paid_once_has_paid_for_ever(
            numbers in prop::array::uniform6(any::<u64>()), shift in 0_u32..64,
        ) {
            let [a, b, c, d, bytes, reads] = numbers.map(|number| number >> shift);
            let cost = |latency_ns, byte_ps| ReadCost { latency_ns, byte_ps };
            let speeds = Speeds { far: cost(a, b), near: cost(c, d) };
            if speeds.pays(reads, bytes) {
                prop_assert!(reads > 1 && speeds.far.ns(bytes) > speeds.near.ns(bytes));
                prop_assert!(speeds.pays(reads.saturating_add(1), bytes));
            }
        }
    }
}
