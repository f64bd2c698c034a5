//! Values in another tier of memory: the index and an item's header and key stay in this process's
//! memory, a long value lies where a [`Tier`] has put it, and the item holds a reference.
//!
//! A partition keeps what it has there in a [`TierSlab`]: a budget of bytes, and the order in which
//! values came. Room is made as by CLOCK: the value that came first goes, unless it was used since.
//! The memory of a value comes back when the item is gone and no thread sends from it any more. If
//! the tier keeps values beyond the process, a restarted cache has them again: the reference has
//! their hash. Values that are read often have a copy in this process's memory as well, if that is
//! wanted (`promotion.rs`).
//!
//! Source: HMSDK (data tiering: index and metadata in DRAM, values in the larger tier).

use super::CHUNK_BYTES;
use super::draft::Hasher;
use super::error::{Error, Result};
use super::promotion::{NearStats, PromotionCache, PromotionState, TierRule};
use std::collections::{HashMap, VecDeque, hash_map};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3;

/// Bytes of a reference in the log: place, length, and hash of the value if the tier keeps it.
pub(crate) const REFERENCE_BYTES: u64 = 24;

/// Memory that holds values. Calls may block; several threads call at once.
pub trait Tier: Send + Sync + Debug {
    /// Memory for `bytes` bytes; its place, which no other value has.
    ///
    /// # Errors
    /// [`TierError::Full`], [`TierError::Failed`].
    fn alloc(&self, bytes: u64) -> Result<u64, TierError>;

    /// Takes memory back, now or soon.
    fn free(&self, place: u64, bytes: u64);

    /// Writes bytes of a value from `offset` on.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    fn write(&self, place: u64, offset: u64, from: &[u8]) -> Result<(), TierError>;

    /// Reads bytes of a value from `offset` on.
    ///
    /// # Errors
    /// [`TierError::Failed`].
    fn read(&self, place: u64, offset: u64, to: &mut [u8]) -> Result<(), TierError>;

    /// Whether values outlive this process, to be found by [`Tier::adopt`].
    fn keeps_values(&self) -> bool {
        false
    }

    /// Takes the memory of a value that an earlier process has left there; `false` if it is not
    /// free, or there is no such place. Places and lengths may be any numbers.
    fn adopt(&self, place: u64, bytes: u64) -> bool {
        let _ = (place, bytes);
        false
    }
}

/// Why a tier did not do as it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// It has no room.
    #[error("it is full")]
    Full,
    /// It cannot be reached, or has lost the value.
    #[error("{0}")]
    Failed(String),
}

/// Which values go to a tier, and how much of it they may take.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// Where they go.
    pub tier: Arc<dyn Tier>,
    /// Values from this length on go there, at least 1 KiB.
    pub min_bytes: u64,
    /// Bytes of the tier that the cache may take.
    pub memory: u64,
    /// Longest value, bytes; at most a quarter of a partition's share, which is also meant by 0.
    pub max_value: u64,
    /// Which of them have a copy in this process's memory as well.
    pub rule: TierRule,
}

/// A value in a tier; its memory comes back when this is dropped.
#[derive(Debug)]
pub(crate) struct FarValue {
    tier: Arc<dyn Tier>,
    pub(super) place: u64,
    bytes: u64,
    /// Of what was written, if the tier keeps values.
    state: Option<Box<Hasher>>,
    /// Bytes of all values of its slab.
    used: Arc<AtomicU64>,
    copied: PromotionState,
    near: Arc<PromotionCache<FarValue>>,
}

impl FarValue {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes what comes next of the value, from `offset` on.
    pub fn write(&mut self, offset: u64, from: &[u8]) -> Result<()> {
        if let Some(state) = &mut self.state {
            state.0.update(from);
        }
        self.tier.write(self.place, offset, from).map_err(failed("writing a value"))
    }

    /// Reads from its copy, if it has one, or from the tier.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        if let Some(copy) = self.copied.get() {
            to.copy_from_slice(&copy.bytes[offset as usize..][..to.len()]);
            self.near.count_hit();
            return Ok(());
        }
        self.tier.read(self.place, offset, to).map_err(failed("reading a value"))?;
        self.near.count_far(to.len());
        Ok(())
    }

    /// A look-up has read `bytes` of it, from the start: if that is all, it may have a copy now.
    /// To be called under the lock of its partition.
    pub fn was_read(self: &Arc<Self>, bytes: &[u8]) {
        if bytes.len() as u64 == self.bytes {
            self.near.consider(self, bytes);
        }
    }

    /// As it stands in the log.
    pub fn reference(&self) -> [u8; REFERENCE_BYTES as usize] {
        let hash = self.state.as_ref().map_or(0, |state| state.digest());
        let reference = [self.place, self.bytes, hash].map(u64::to_le_bytes);
        let mut bytes = [0; REFERENCE_BYTES as usize];
        bytes.copy_from_slice(reference.as_flattened());
        bytes
    }

    fn read_hash(&self) -> Result<u64> {
        let (mut state, mut chunk, mut offset) = (Xxh3::new(), Vec::new(), 0);
        while offset < self.bytes {
            chunk.resize(CHUNK_BYTES.min(self.bytes - offset) as usize, 0);
            self.read(offset, &mut chunk)?;
            state.update(&chunk);
            offset += chunk.len() as u64;
        }
        Ok(state.digest())
    }
}

impl AsRef<PromotionState> for FarValue {
    fn as_ref(&self) -> &PromotionState {
        &self.copied
    }
}

impl Drop for FarValue {
    fn drop(&mut self) {
        self.tier.free(self.place, self.bytes);
        // Relaxed: a budget; what it counts is ordered by the tier itself.
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(super) fn failed(what: &'static str) -> impl Fn(TierError) -> Error {
    move |error| Error::Tier { what, reason: error.to_string() }
}

/// The values that a partition has in a tier.
#[derive(Debug)]
pub(crate) struct TierSlab {
    tier: Arc<dyn Tier>,
    pub min_bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) limit: u64,
    used: Arc<AtomicU64>,
    near: Arc<PromotionCache<FarValue>>,
    pub(super) values: HashMap<u64, Arc<FarValue>>,
    /// Hash of the key, and place, in the order in which they came; some are gone.
    pub(super) order: VecDeque<(u64, u64)>,
    /// Values that were flushed; their memory is still to come back.
    flushed: Vec<hash_map::IntoIter<u64, Arc<FarValue>>>,
}

impl TierSlab {
    /// One of `partitions` equal shelves.
    pub fn new(tier_config: &TierConfig, partitions: u64) -> TierSlab {
        let limit = tier_config.memory / partitions;
        let longest = limit / 4;
        TierSlab {
            max_bytes: if tier_config.max_value == 0 { longest } else { tier_config.max_value },
            tier: Arc::clone(&tier_config.tier),
            min_bytes: tier_config.min_bytes,
            limit,
            used: Arc::default(),
            near: Arc::new(PromotionCache::new(tier_config.rule, partitions)),
            values: HashMap::new(),
            order: VecDeque::new(),
            flushed: Vec::new(),
        }
    }

    pub fn used_bytes(&self) -> u64 {
        // Relaxed: see `FarValue::drop`.
        self.used.load(Ordering::Relaxed)
    }

    pub fn count(&self) -> u64 {
        self.values.len() as u64
    }

    pub fn near_stats(&self) -> NearStats {
        self.near.stats()
    }

    /// Nothing is on it any more.
    pub fn flush(&mut self) {
        if !self.values.is_empty() {
            self.flushed.push(std::mem::take(&mut self.values).into_iter());
        }
        self.order = VecDeque::new();
    }

    /// Gives the memory of so many values back that were flushed; whether there were any.
    pub fn drop_flushed(&mut self, count: usize) -> bool {
        let Some(values) = self.flushed.last_mut() else { return false };
        if values.take(count).count() < count {
            self.flushed.pop();
        }
        true
    }

    /// A value of so many bytes, if there is room for it.
    pub(super) fn alloc(&self, bytes: u64) -> Result<FarValue, TierError> {
        if self.used_bytes() + bytes > self.limit {
            return Err(TierError::Full);
        }
        let place = self.tier.alloc(bytes)?;
        let state = self.tier.keeps_values().then(Box::default);
        Ok(self.value(place, bytes, state))
    }

    fn value(&self, place: u64, bytes: u64, state: Option<Box<Hasher>>) -> FarValue {
        // Relaxed: see `FarValue::drop`.
        self.used.fetch_add(bytes, Ordering::Relaxed);
        let (tier, used) = (Arc::clone(&self.tier), Arc::clone(&self.used));
        let (copied, near) = (PromotionState::default(), Arc::clone(&self.near));
        FarValue { tier, place, bytes, state, used, copied, near }
    }

    /// A value that an earlier process has left, if it is whole.
    pub(super) fn adopt(&self, [place, bytes, hash]: [u64; 3]) -> Option<FarValue> {
        let has_room = bytes <= self.limit.saturating_sub(self.used_bytes());
        if !has_room || !self.tier.adopt(place, bytes) {
            return None;
        }
        let value = self.value(place, bytes, None);
        value.read_hash().is_ok_and(|found| found == hash).then_some(value)
    }
}
