//! How a cache is made: its options, what follows from them, and how they are checked.

use super::error::Result;
use super::layout::{self, UNIT_BUCKETS, UNITS_MAX};
use super::partition::{Partition, UNITS_MIN};
use super::policy::Policy;
use super::{FILLED_PERCENT, Mode, PARTITION_BYTES, PARTITIONS_MAX, check};
use rackpool_core::bandwidth_split::Bandwidths;
use rackpool_core::seam::Mem;
use rackpool_mem::numa::{GRAIN_BYTES_MAX, GRAIN_BYTES_MIN, Placement};
use rackpool_mem::window::Window;

/// With it, the longest values lie in all memories, and turns to another memory are few.
const GRAIN_BYTES: u64 = 64 << 10;
/// Bytes a second that no memory has.
const BANDWIDTH_MAX: u64 = 1 << 50;

/// How a cache is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of all kinds: index, log and everything beside them.
    pub memory: u64,
    /// Parts with a lock of their own, 1 to 64.
    pub partitions: u32,
    /// Which items stay.
    pub policy: Policy,
    /// What happens when memory is full.
    pub mode: Mode,
    /// Longest value, bytes; at most a quarter of a partition, which is also meant by 0.
    pub max_value: u64,
    /// Makes the hash of the keys one that others cannot foresee.
    pub seed: u64,
    /// Whether each item keeps the time of its last access, for 8 bytes more.
    pub keeps_access: bool,
    /// As in HERD: the index never grows and has no overflow buckets, so that a full bucket loses
    /// an item. Each look-up then touches one bucket. Needs `items_expected`, and cache mode.
    pub is_lossy: bool,
    /// Items for which the index is made; 0 = it starts small. It grows in any case, unless lossy.
    pub items_expected: u64,
    /// Whether look-ups of items of up to 4 KiB do without the lock of their partition, so that
    /// several threads look up in one at once, also while it is changed. The closure of a look-up
    /// then sees a copy. For one thread a batch of look-ups under the lock is a little faster.
    pub shared_reads: bool,
    /// From which memory nodes all of it comes; `None` = as the system likes.
    pub placement: Option<Placement>,
    /// What each of several nodes of `placement` gives at a time, 4 KiB to 2 MiB. Below 2 MiB all
    /// memory is taken when the cache is made, and in small pages.
    pub grain_bytes: u64,
    /// Slower memory for items that are worth less; `memory` and `placement` are then those of the
    /// rest. Needs cache mode and [`Policy::TinyLfu`].
    pub far: Option<FarMemory>,
    /// Whether far memory is only there to be switched to, by
    /// [`Cache::use_far`](crate::Cache::use_far): it is address space, and none of it is taken from
    /// the system before.
    pub far_waits: bool,
    /// Whether reads of some keys are looked at for [`super::Cache::reuse`]: one in 64 at most, for
    /// some microseconds.
    pub samples_reuse: bool,
    /// Whether the memory of a new file without a placement is taken as it is needed, or by
    /// [`Cache::populate`](crate::Cache::populate), and not before the cache is there.
    pub takes_file_later: bool,
}

/// Memory beside the process's own, for whole items: a node of CXL memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarMemory {
    /// Bytes of items. What they cost in the index and in tables is near memory.
    pub memory: u64,
    /// From which memory nodes it comes; `None` = as the system likes.
    pub placement: Option<Placement>,
    /// What the two memories deliver to reads. If that is known, and near memory saturated, traffic
    /// is split by it; `None`: what is used most for its bytes lies near.
    pub bandwidths: Option<Bandwidths>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory: 64 << 20,
            partitions: 1,
            policy: Policy::TinyLfu,
            mode: Mode::Cache,
            max_value: 0,
            seed: 0,
            keeps_access: false,
            is_lossy: false,
            items_expected: 0,
            shared_reads: false,
            placement: None,
            grain_bytes: GRAIN_BYTES,
            far: None,
            far_waits: false,
            samples_reuse: false,
            takes_file_later: false,
        }
    }
}

impl Options {
    pub(super) fn units(&self) -> Result<u64> {
        check("partitions", u64::from(self.partitions), 1, u64::from(PARTITIONS_MAX))?;
        check("grain_bytes", self.grain_bytes, GRAIN_BYTES_MIN, GRAIN_BYTES_MAX)?;
        self.policy.check()?;
        let each = self.memory / u64::from(self.partitions);
        let (cost, far_units) = (Partition::unit_cost(self), self.far_units());
        let far_cost = cost - u64::from(layout::UNIT_BYTES);
        let fixed = PARTITION_BYTES + u64::from(layout::UNIT_BYTES) + far_units * far_cost;
        let units = each.saturating_sub(fixed) / cost;
        let memory = |units: u64| (fixed + units * cost) * u64::from(self.partitions);
        let mut most = UNITS_MAX;
        if let Some(far) = &self.far {
            most /= 2;
            let bytes = |units: u64| (units << layout::UNIT_SHIFT) * u64::from(self.partitions);
            check("far memory", far.memory, bytes(UNITS_MIN), bytes(most))?;
            let is_able = self.mode == Mode::Cache && self.policy == Policy::TinyLfu;
            if let Some(Bandwidths { near, far }) = far.bandwidths {
                check("near bandwidth", near, 1, BANDWIDTH_MAX)?;
                check("far bandwidth", far, 1, BANDWIDTH_MAX)?;
            }
            check("far memory (of this mode or policy)", 1, 0, u64::from(is_able))?;
        }
        check("memory", self.memory, memory(UNITS_MIN), memory(most))?;
        Ok(units + far_units)
    }

    /// Units of a partition that lie in far memory: the last ones.
    pub(super) fn far_units(&self) -> u64 {
        let memory = self.far.as_ref().map_or(0, |far| far.memory);
        (memory / u64::from(self.partitions)) >> layout::UNIT_SHIFT
    }

    /// Bytes of them.
    pub(super) fn far_bytes(&self) -> u64 {
        self.far_units() << layout::UNIT_SHIFT
    }

    /// Has the memory of a partition's window come from where it should.
    pub(super) fn place(&self, part: &Window) -> Result<()> {
        let far_bytes = self.far_bytes();
        let near_bytes = part.bytes() - far_bytes;
        if let Some(placement) = &self.placement {
            placement.apply(&part.slice(0, near_bytes))?;
        }
        if let Some(placement) = self.far.as_ref().and_then(|far| far.placement.as_ref()) {
            placement.apply(&part.slice(near_bytes, far_bytes))?;
        }
        Ok(())
    }

    /// Units of the index of a new partition.
    pub(super) fn index_units(&self, units: u64) -> u64 {
        let items = self.items_expected / u64::from(self.partitions);
        let per_unit = u64::from(UNIT_BUCKETS) * layout::SLOTS as u64 * FILLED_PERCENT / 100;
        items.div_ceil(per_unit).clamp(1, units / 2)
    }

    /// Longest value with so many partitions, bytes; 0 if there cannot be a cache with so many.
    pub fn longest_value(&self, partitions: u32) -> u64 {
        let options = Options { partitions, max_value: 0, ..self.clone() };
        options.checked().map_or(0, |(options, _)| options.max_value)
    }

    pub(super) fn checked(mut self) -> Result<(Options, u64)> {
        let units = self.units()?;
        // Long values lie in far memory, if there is any.
        let units_of_long = if self.far.is_some() { self.far_units() } else { units };
        let longest = units_of_long / 4 * u64::from(layout::UNIT_BYTES);
        if self.max_value == 0 {
            self.max_value = longest;
        }
        check("max_value", self.max_value, 1, longest)?;
        if self.is_lossy {
            check("is_lossy (in store mode)", 1, 0, u64::from(self.mode == Mode::Cache))?;
        }
        Ok((self, units))
    }
}
