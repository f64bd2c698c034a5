//! Far memory that this host does not have: a cache waits as it would for some of its own memory
//! ([`rackpool_mem::emulation`], which keeps the time). For measurements; "emulated" stands beside
//! each of their figures.
//!
//! Look-ups under the lock ask for the bucket and the item ahead where they prefetch them, and wait
//! where they read them: `many.rs`, and `section.rs` and `mod.rs` for one key. While one item of a
//! batch is waited for, what the processor reaches of the next ones comes. Stores (`log.rs`) take
//! bandwidth, and so does what rounds of eviction and idle turns go through and move. Reads without
//! the lock know nothing of it, so such a cache has one partition and no shared reads.
//!
//! What is not emulated costs a branch: for a batch, for a key of one by itself, for a store.

use super::draft::PlacedItem;
use super::error::Result;
use super::index::probe;
use super::layout::{BUCKET_BYTES, Header, Pos, UNIT_SHIFT, tag_in_slot};
use super::partition::Partition;
use super::view::REACH_MAX;
use super::{Cache, check};
use rackpool_mem::emulation::{Clock, FarBytes, FarEmulation, FarModel};

/// Bytes that a processor brings ahead of a walk from line to line.
const WALK_AHEAD_BYTES: u64 = 1024;
/// Instructions that a processor looks ahead while it waits (AMD Zen 4: 320).
pub(super) const INSTRUCTIONS_AHEAD: u64 = 320;
/// Of those that read an item, what does not depend on its length, and bytes that each of the rest
/// copies: a load and a store for 32.
const ITEM_INSTRUCTIONS: u64 = 60;
const INSTRUCTION_BYTES: u64 = 16;

/// Instructions by which an item is read.
pub(super) fn instructions_of(header: Header) -> u64 {
    ITEM_INSTRUCTIONS + u64::from(header.bytes()) / INSTRUCTION_BYTES
}

impl Cache {
    /// Has a part of the memory cost from now on what `model` says: of near and far memory in turn
    /// so many grains as `weights` says; without weights [`Options::far`](super::Options::far), or
    /// where there is none all of it.
    ///
    /// # Errors
    /// [`Error::BadOption`](super::Error::BadOption) with several partitions or shared reads.
    ///
    /// # Panics
    /// If both weights are 0.
    pub fn emulate_far(
        &self,
        model: FarModel,
        weights: Option<[u32; 2]>,
        clock: Box<dyn Clock>,
    ) -> Result<()> {
        check("partitions (emulated far memory)", self.partitions.len() as u64, 1, 1)?;
        check("shared_reads (emulated far memory)", self.options.shared_reads.into(), 0, 0)?;
        assert_ne!(weights, Some([0; 2]), "weights of 0");
        let mut partition = self.lock(0);
        let far = match weights {
            Some(weights) => FarBytes::Interleaved(weights),
            None if self.options.far.is_none() => FarBytes::From(0),
            None => FarBytes::From(u64::from(partition.segments.near_units()) << UNIT_SHIFT),
        };
        partition.emulation = Some(Box::new(FarEmulation::new(model, far, clock)));
        partition.is_unusual = true;
        Ok(())
    }
}

impl Partition {
    /// Waits for the bucket of a key and then for the start of its item.
    #[cold]
    pub(crate) fn wait_for_look_up(&self, hash: u64) {
        let Some(far) = &self.emulation else { return };
        let (units, bucket) = (self.units.bare(), self.index.bucket_at(hash));
        far.read(units, bucket, BUCKET_BYTES);
        let target = probe(units, None, bucket, &tag_in_slot(hash)).target();
        if target != 0 {
            far.read(units, target, REACH_MAX + 8);
        }
    }

    /// Waits for what was stored of an item.
    #[cold]
    pub(crate) fn wait_for_stores(&self, placed: &PlacedItem) {
        let Some(far) = &self.emulation else { return };
        far.write(placed.head.byte(), placed.header.bytes().into());
        placed.further.iter().for_each(|piece| far.write(piece.at, piece.bytes));
    }

    /// Waits for the start of an item in a walk over a segment. Of short items the next ones come
    /// ahead, as a processor sees to.
    #[cold]
    pub(crate) fn wait_for_walk(&self, pos: Pos, header: Header) {
        let Some(far) = &self.emulation else { return };
        let bytes = u64::from(header.key_at() + header.key_bytes());
        if u64::from(header.bytes()) < WALK_AHEAD_BYTES {
            far.ask(pos.byte(), WALK_AHEAD_BYTES);
        }
        far.read(self.units.bare(), pos.byte(), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FarMemory, Options};
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A clock that only waits move on.
    #[derive(Clone, Debug)]
    struct VirtualClock(Arc<AtomicU64>);

    impl VirtualClock {
        fn new() -> VirtualClock {
            VirtualClock(Arc::new(AtomicU64::new(1_000_000_000)))
        }

        /// The time that passes by `f`, ns.
        fn ns(&self, f: impl FnOnce()) -> u64 {
            let before = self.now_ps();
            f();
            (self.now_ps() - before) / 1000
        }
    }

    impl Clock for VirtualClock {
        fn now_ps(&self) -> u64 {
            // Relaxed: one thread.
            self.0.load(Ordering::Relaxed)
        }

        fn wait_until(&self, ps: u64) -> u64 {
            // Relaxed: as above.
            self.0.fetch_max(ps, Ordering::Relaxed).max(ps)
        }
    }

    const LATENCY_NS: u64 = 250;
    const MODEL: FarModel = FarModel { latency_ns: LATENCY_NS as u32, bandwidth: 64_000_000_000 };

    /// With items that lie on lines of their own, eight lines apart.
    fn filled(options: Options) -> Cache {
        let cache = Cache::new(options).unwrap();
        for key in 0..128_u64 {
            cache.set(&key.to_le_bytes(), &[7; 496], 0, 0, 1).unwrap();
        }
        cache
    }

    #[test]
    fn a_batch_waits_for_its_buckets_and_its_items_once() {
        let options = Options { memory: 8 << 20, ..Options::default() };
        let clock = VirtualClock::new();
        let cache = filled(options);
        cache.emulate_far(MODEL, None, Box::new(clock.clone())).unwrap();
        let keys: Vec<_> = (0..128_u64).map(u64::to_le_bytes).collect();
        let (alone, together) = keys.split_at(32);
        let ns = clock.ns(|| {
            for key in alone {
                assert!(cache.get(key, 1, |_| ()).is_some());
            }
        });
        // The item's first lines, the rest of it when its length is known, and most buckets.
        assert!((72 * LATENCY_NS..=96 * LATENCY_NS).contains(&ns), "{ns} ns alone");
        let names: Vec<&[u8]> = together[..32].iter().map(|key| &key[..]).collect();
        let mut found = 0;
        let ns = clock.ns(|| {
            cache.get_many_unordered(&names, 1, |_, item| found += u32::from(item.is_some()));
        });
        assert_eq!(found, 32);
        // Buckets, the first lines, and then the rest of so many items at a time as fit into the
        // instructions that a processor looks ahead: 92 for each of these.
        assert!((13 * LATENCY_NS..=15 * LATENCY_NS).contains(&ns), "{ns} ns together");
        let ns = clock.ns(|| assert!(cache.get(&keys[0], 1, |_| ()).is_some()));
        assert_eq!(ns, 0, "its lines are here");
    }

    #[test]
    fn near_memory_costs_nothing() {
        let far = FarMemory { memory: 8 << 20, placement: None, bandwidths: None };
        let options = Options { memory: 8 << 20, far: Some(far), ..Options::default() };
        let cache = filled(options);
        cache.set(b"long", &[7; 70_000], 0, 0, 1).unwrap();
        let clock = VirtualClock::new();
        cache.emulate_far(MODEL, None, Box::new(clock.clone())).unwrap();
        let key = 5_u64.to_le_bytes();
        assert_eq!((cache.lies_far(&key), cache.lies_far(b"long")), (Some(false), Some(true)));
        assert_eq!(clock.ns(|| assert!(cache.get(&key, 1, |_| ()).is_some())), 0);
        assert_eq!(clock.ns(|| _ = cache.set(b"new", b"value", 0, 0, 1).unwrap()), 0);
        let lines = 70_000 / 64;
        let ns = clock.ns(|| assert!(cache.get(b"long", 1, |_| ()).is_some()));
        assert!((lines..=lines + 8 * LATENCY_NS).contains(&ns), "{ns} ns for {lines} lines");
        let ns = clock.ns(|| _ = cache.set(b"longer", &[7; 90_000], 0, 0, 1).unwrap());
        assert!(ns >= 2 * 90_000 / 64 - 128, "{ns} ns");
    }

    #[test]
    fn a_cache_that_is_read_without_its_lock_is_refused() {
        let options = Options { memory: 8 << 20, ..Options::default() };
        for options in [
            Options { partitions: 2, ..options.clone() },
            Options { shared_reads: true, ..options },
        ] {
            let cache = Cache::new(options).unwrap();
            let clock = Box::new(VirtualClock::new());
            assert!(cache.emulate_far(MODEL, None, clock).is_err());
        }
    }
}
