//! An in-process key-value cache (or, by mode, a store that never loses): one index and one log in
//! memory that is given once, cut into partitions by key hash, each under a lock of its own.
//! No network, no clock (the time is handed in), no threads of its own.
//!
//! - `layout.rs`: the words; `index.rs`: buckets; `segments.rs`: units and queues; `draft.rs`,
//!   `log.rs`: items in segments; `evict.rs`, `policy.rs`: which items go; `partition.rs`: all of
//!   that under one lock; `item.rs`, `entry.rs`: what callers hold; `section.rs`: several keys as
//!   one step; `watch.rs`: whether a key was changed;
//!   `many.rs`: batches; `scan.rs`: walks; `view.rs`: reads without the lock; `recover.rs`: a file
//!   that outlives the process; `populate.rs`: its memory; `options.rs`, `division.rs`: how one is
//!   made; `tier.rs`: values that lie elsewhere; `promotion.rs`: copies of these; `emulated.rs`:
//!   far memory that this host has not; `reuse.rs`: hits by capacity; `touched.rs`: what a look-up
//!   reads; `switch.rs`: in which memories items lie; `near_pages.rs`: pages that move for it;
//!   `limit.rs`: how much of it is used; `backing.rs`: what lies behind memory.
//!
//! Source: HERD and MICA (index of cache lines, log, lossy and lossless), Segcache (segments of
//! like expiry).

mod backing;
mod databases;
mod division;
mod draft;
mod emulated;
mod entry;
mod error;
mod evict;
mod hash;
mod index;
mod item;
mod key;
mod layout;
mod limit;
mod log;
mod many;
mod near_pages;
mod options;
mod partition;
mod policy;
mod populate;
mod promotion;
mod recover;
mod reuse;
mod scan;
mod section;
mod segments;
mod stats;
mod switch;
mod tier;
mod timeline;
mod touched;
mod view;
mod watch;

#[cfg(feature = "flash")]
pub use backing::DurableTold;
pub use backing::{BackingStore, FetchDone, KeptItem, KeptWith, LeavingItem};
#[cfg(feature = "front")]
pub(crate) use backing::{note_change_of, take_last_change};
pub use databases::DATABASES_MAX;
pub use division::{Division, VALUE_BYTES_MAX, partitions_for};
pub use entry::{Entry, StoredWith, Writer};
pub use error::{Error, Result};
pub use evict::evicted::EvictedItem;
pub use hash::{HashEntry, HashStream, HashValue};
pub use item::{Item, Meta, Pinned};
pub use many::Put;
pub use options::{FarMemory, Options};
pub use policy::Policy;
pub use promotion::{ReadCost, Speeds, TierRule};
pub use recover::{Recovered, far_bytes_in};
pub use reuse::{Reuse, ReuseSampler};
pub use section::{Section, SectionKeys};
pub use stats::Stats;
pub use switch::Tiering;
pub use tier::{Tier, TierConfig, TierError};
pub use timeline::Timeline;
pub use touched::Touched;
pub use view::{Copied, CopyTarget};
pub use watch::Watch;

use backing::OpenBacking;
use databases::Databases;
use evict::reads::{AllReads, ReadSamples, SAMPLED_READS};
use item::Origin;
use key::Key;
use near_pages::NearPages;
use partition::Partition;
use populate::Populator;
use rackpool_mem::window::Window;
use std::cell::Cell;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use switch::DealtNodes;
use tier::TierSlab;
use view::{DueSample, LookupCounters, PartitionView, UnlockedLookup};

/// A share of a cache's partitions: every `count`th from `index` on.
#[derive(Clone, Copy, Debug)]
pub struct PartitionShare {
    /// The share, from 0 to `count` - 1.
    pub index: usize,
    /// Shares altogether, at least 1.
    pub count: usize,
}

impl PartitionShare {
    /// All partitions.
    pub const ALL: PartitionShare = PartitionShare { index: 0, count: 1 };
}

/// Milliseconds of a clock that never jumps, below 2^46; always handed in. Of an expiry, those of
/// the wall clock if [`at_wall`] made it.
pub type Millis = u64;

/// An expiry that counts by the wall clock, milliseconds since the Unix epoch, wherever that is set
/// to; [`Cache::keep_timeline`] says where it is.
#[must_use]
pub fn at_wall(ms: u64) -> Millis {
    ms.min(EXPIRES_MAX) | WALL_TIME
}

/// The point in time of an expiry that counts by the wall clock; `None` of others.
#[must_use]
pub fn wall_of(expires: Millis) -> Option<u64> {
    (expires & WALL_TIME != 0).then_some(expires & !WALL_TIME)
}

/// Whether an expiry counts by the wall clock.
pub(crate) const WALL_TIME: Millis = 1 << 63;

/// Longest key, bytes: key and header lie in one segment.
pub const KEY_BYTES_MAX: usize = (32 << 10) - 2;
/// Most partitions.
pub const PARTITIONS_MAX: u32 = 64;
/// Filled share of the slots of an index that holds the items it was made for, percent: 4 of 100
/// items then lie in overflow buckets, each of which costs a look-up some 40 ns in a batch. Less
/// would cost more than 24 bytes an item over key and value.
const FILLED_PERCENT: u64 = 68;
/// Private bytes of a partition beside what its units cost: buffers and the structure itself.
const PARTITION_BYTES: u64 = 72 << 10;
/// Shortest value that may lie in another tier, bytes: shorter ones are answered by the fast path,
/// which waits for nothing.
const TIER_VALUE_BYTES_MIN: u64 = 1024;
/// Bytes of a value of a tier that are read at once.
const CHUNK_BYTES: u64 = 128 << 10;
const EXPIRES_MAX: Millis = (1 << 46) - 1;

/// What happens when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Items are evicted.
    Cache,
    /// Nothing is ever lost: writes answer with [`Error::OutOfMemory`].
    Store,
}

/// An option within its limits.
fn check(option: &'static str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::BadOption { option, value, min, max })
}

/// A partition and its lock, on cache lines of its own, and what is read without it.
#[derive(Debug)]
#[repr(align(128))]
struct LockedPartition {
    locked: Mutex<Partition>,
    view: PartitionView,
    /// Of a file that gets its memory later.
    populator: Option<Arc<Populator>>,
    pages: NearPages,
}

impl LockedPartition {
    fn new(partition: Partition, pages: NearPages) -> LockedPartition {
        let populator = partition.segments.populator.clone();
        LockedPartition {
            view: PartitionView::of(&partition),
            populator,
            pages,
            locked: Mutex::new(partition),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Partition> {
        // A panic under the lock is a bug; what others find then is checked as always.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockedPartition {
    /// A look-up without the lock if that can be, and the hits and misses that it has to count:
    /// none if the lock was needed.
    #[inline]
    fn get_shared<R>(
        &self,
        hash: u64,
        key: Key<'_>,
        now: Millis,
        section: u64,
        copy: &Window,
        f: impl FnOnce(&Item<'_>) -> R,
    ) -> (Option<R>, [u64; 2]) {
        match self.view.look_up(hash, key, now, copy) {
            UnlockedLookup::Item(slot, header) => {
                let origin = Origin { partition: &self.locked, hash, key, told: Cell::new(None) };
                (Some(f(&Item::copied(copy.bare(), slot, header, &origin, now))), [1, 0])
            }
            UnlockedLookup::Missing => {
                self.view.sketch.missed(hash);
                (None, [0, 1])
            }
            UnlockedLookup::Unsure => {
                let mut partition = self.lock_key(hash, section);
                let found = partition.look_up(hash, key, now);
                let result = found.map(|found| f(&partition.item(found, now)));
                if let Some((_, slot)) = found {
                    partition.sample_if_due(slot.pos(), now);
                }
                (result, [0, 0])
            }
        }
    }
}

/// A cache; clones are the same one.
#[derive(Clone, Debug)]
pub struct Cache {
    partitions: Arc<[LockedPartition]>,
    options: Arc<Options>,
    /// Whose items this handle sees, and the seed of their keys' hashes.
    space: u8,
    seed: u64,
    /// The section that this handle is in; 0: none.
    section: u64,
    databases: Arc<Databases>,
    /// Look-ups without a lock.
    counters: Arc<LookupCounters>,
    reuse: Option<Arc<ReuseSampler>>,
    backing: Option<Arc<OpenBacking>>,
    /// Values from this length on lie in another tier.
    far_bytes_min: u64,
    /// Bytes of near memory that may be used.
    limit: Arc<AtomicU64>,
    dealt: Arc<Mutex<DealtNodes>>,
    /// The file's first bytes, and the file, which holds the lock that keeps other processes away.
    file: Option<Arc<(Window, Arc<File>)>>,
}

/// Has reads sampled where there is far memory, and for hits by capacity where they are wanted.
fn sample_reads(partitions: &[LockedPartition], options: &Options) -> Option<Arc<ReuseSampler>> {
    let all = Arc::<AllReads>::default();
    let memory = options.memory + options.far.as_ref().map_or(0, |far| far.memory);
    let reuse = options.samples_reuse.then(|| Arc::new(ReuseSampler::new(memory)));
    for part in partitions {
        let mut partition = part.lock();
        partition.reads = ReadSamples::of(options, &all);
        if options.far.is_some() {
            partition.sampled_reads = SAMPLED_READS;
        }
        partition.reuse.clone_from(&reuse);
        partition.is_observed = reuse.is_some();
    }
    reuse
}

impl Cache {
    /// A cache in memory of this process, with huge pages if they are to be had.
    ///
    /// # Errors
    /// [`Error::BadOption`]; [`Error::Io`] if the system has not so much address space;
    /// [`Error::Numa`].
    pub fn new(options: Options) -> Result<Cache> {
        let (options, units) = options.checked()?;
        let each = Partition::window_bytes(units);
        let bytes = each * u64::from(options.partitions);
        let window = Window::private(bytes)
            .map_err(|source| Error::Io { what: format!("mapping {bytes} bytes"), source })?;
        match options.far {
            Some(_) => {
                for index in 0..u64::from(options.partitions) {
                    options.place(&window.slice(index * each, each))?;
                }
            }
            None => {
                if let Some(placement) = &options.placement {
                    placement.deal(&window, options.grain_bytes)?;
                }
            }
        }
        Ok(Cache::on(&window, units, options))
    }

    fn on(window: &Window, units: u64, options: Options) -> Cache {
        let each = Partition::window_bytes(units);
        let partition = |index: u32| {
            let at = u64::from(index) * each;
            let part = window.slice(at, each);
            let pages = NearPages::of(&part, at, &options);
            LockedPartition::new(Partition::new(&part, units, &options, false, None), pages)
        };
        let partitions: Arc<[_]> = (0..options.partitions).map(partition).collect();
        let reuse = sample_reads(&partitions, &options);
        Cache::of(partitions, options, reuse, None)
    }

    fn of(
        partitions: Arc<[LockedPartition]>,
        options: Options,
        reuse: Option<Arc<ReuseSampler>>,
        file: Option<Arc<(Window, Arc<File>)>>,
    ) -> Cache {
        let databases = Databases::of(file.as_ref().map(|file| &file.0), &partitions);
        Cache {
            partitions,
            databases: Arc::new(databases),
            space: 0,
            seed: options.seed,
            section: 0,
            limit: Arc::new(AtomicU64::new(options.memory)),
            dealt: DealtNodes::of(&options),
            options: Arc::new(options),
            counters: Arc::default(),
            reuse,
            backing: None,
            far_bytes_min: u64::MAX,
            file,
        }
    }

    /// A cache in a file of shared memory (`/dev/shm/...`) that outlives the process: what it held
    /// is there again after a restart, also if the process was killed in the midst of a change. A
    /// file that is not there is made.
    ///
    /// Every item is read and its check computed; what fails is dropped and counted.
    ///
    /// # Errors
    /// [`Error::BadOption`]; [`Error::Io`], also if another process has it open;
    /// [`Error::Corrupt`] if the file is not a cache with these `memory`, `partitions`, `policy`,
    /// `is_lossy` and `keeps_access`; its `seed` it keeps.
    pub fn open(options: Options, path: &Path) -> Result<(Cache, Recovered)> {
        Cache::open_with_tier(options, path, None)
    }

    /// As [`Cache::open`] and [`Cache::with_tier`] in one: values that a tier has kept are there
    /// again, each read and its hash computed; with another tier, or none, they are lost.
    ///
    /// # Errors
    /// As of both.
    pub fn open_with_tier(
        options: Options,
        path: &Path,
        tier_config: Option<&TierConfig>,
    ) -> Result<(Cache, Recovered)> {
        let (mut options, units) = options.checked()?;
        let each = Partition::window_bytes(units);
        let opened = recover::open_file(path, &mut options, units)?;
        let mut recovered = Recovered { damaged: opened.damaged, ..Recovered::default() };
        let mut partitions = Vec::with_capacity(options.partitions as usize);
        for index in 0..u64::from(options.partitions) {
            let at = recover::SUPERBLOCK_BYTES + index * each;
            let part = opened.window.slice(at, each);
            let mut partition = if opened.is_new {
                Partition::new(&part, units, &options, true, opened.populator(at, units))
            } else {
                let partitions = u64::from(options.partitions);
                let tier_slab =
                    tier_config.map(|tier_config| TierSlab::new(tier_config, partitions));
                Partition::recover(&part, units, &options, tier_slab, &mut recovered)
            };
            partition.segments.far.populator = opened.far_populator(at + each, &options);
            let pages = NearPages::of(&part, at, &options);
            partitions.push(LockedPartition::new(partition, pages));
        }
        let reuse = sample_reads(&partitions, &options);
        let superblock = opened.window.slice(0, recover::SUPERBLOCK_BYTES);
        let file = Some(Arc::new((superblock, Arc::clone(&opened.file))));
        let cache = Cache::of(partitions.into(), options, reuse, file);
        if !opened.is_new {
            cache.gather_pages();
        }
        match tier_config {
            Some(tier_config) => Ok((cache.with_tier(tier_config)?, recovered)),
            None => Ok((cache, recovered)),
        }
    }

    /// Puts long values into another tier from now on; index, headers and keys stay.
    ///
    /// # Errors
    /// [`Error::BadOption`].
    ///
    /// # Panics
    /// If the cache is in use already: clones were made.
    pub fn with_tier(mut self, tier_config: &TierConfig) -> Result<Cache> {
        let least = 4 * u64::from(self.options.partitions) * tier_config.min_bytes;
        check("tier values", tier_config.min_bytes, TIER_VALUE_BYTES_MIN, self.options.max_value)?;
        check("tier memory", tier_config.memory, least, u64::MAX)?;
        let partitions = u64::from(self.options.partitions);
        tier_config.rule.check(tier_config.min_bytes, partitions)?;
        let longest = tier_config.memory / partitions / 4;
        check("longest value", tier_config.max_value, 0, longest)?;
        let options = Arc::get_mut(&mut self.options).expect("there is no clone");
        options.max_value =
            if tier_config.max_value == 0 { longest } else { tier_config.max_value };
        self.far_bytes_min = tier_config.min_bytes;
        for index in 0..self.partitions.len() {
            // Values that were found in the tier are in a slab already.
            self.lock(index)
                .tier_slab
                .get_or_insert_with(|| TierSlab::new(tier_config, partitions));
        }
        Ok(self)
    }

    /// The same cache with [`Options::shared_reads`] as given, for users of this handle and of its
    /// clones to come; others are free to use it otherwise at the same time.
    pub fn with_shared_reads(mut self, shared_reads: bool) -> Cache {
        Arc::make_mut(&mut self.options).shared_reads = shared_reads;
        self
    }

    /// The timeline that the cache's file kept, if there is one.
    pub fn timeline(&self) -> Option<Timeline> {
        self.file.as_ref().and_then(|file| Timeline::read(&file.0))
    }

    /// From now on the wall clock is where `timeline` says; a file keeps it for a later process. To
    /// be called at the start with a clock of which the file's is the past, and when the wall clock
    /// was set, by one thread at a time. Without it both clocks show the same.
    pub fn keep_timeline(&self, timeline: &Timeline) {
        self.set_wall(timeline.wall.wrapping_sub(timeline.now) as i64);
        if let Some(file) = &self.file {
            timeline.write(&file.0);
        }
    }

    /// From now on the wall clock is so many milliseconds ahead.
    pub fn set_wall(&self, ahead: i64) {
        self.partitions.iter().for_each(|part| part.view.wall.set(ahead));
    }

    /// Milliseconds that the wall clock is ahead of the items'.
    pub fn wall_ahead(&self) -> i64 {
        self.partitions[0].view.wall.ahead()
    }

    /// An expiry in milliseconds since the Unix epoch, 0 = never, as the wall clock stands now.
    pub fn expiry_at_wall(&self, expires: Millis) -> u64 {
        match expires {
            0 => 0,
            expires if expires & WALL_TIME != 0 => expires & !WALL_TIME,
            // Before the epoch is as long over as its begin.
            expires => expires.saturating_add_signed(self.wall_ahead()).max(1),
        }
    }

    /// As it was made, with the limits that were filled in.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The partition of a key. Threads that keep to partitions of their own never wait.
    pub fn partition_of(&self, key: &[u8]) -> usize {
        self.index_of(self.hash(key))
    }

    #[inline]
    fn index_of(&self, hash: u64) -> usize {
        // From the lowest 16 bits: the highest choose the bucket, those between are the tag.
        ((hash & 0xffff) as usize * self.partitions.len()) >> 16
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Partition> {
        self.partitions[index].lock()
    }

    /// Looks a key up; `f` sees the item under the partition's lock and must not call the cache.
    /// Counts a hit or a miss and marks the item as used. With [`Options::shared_reads`] `f` sees a
    /// copy as a rule, and no lock is held.
    #[inline]
    pub fn get<R>(&self, key: &[u8], now: Millis, f: impl FnOnce(&Item<'_>) -> R) -> Option<R> {
        let hash = self.hash(key);
        self.note_reads(&[key], &[hash]);
        let (part, keys, key) = (&self.partitions[self.index_of(hash)], [key], self.key(key));
        if self.options.shared_reads {
            return many::with_scratch(|scratch| {
                let (section, copy) = (self.section, &scratch.copy);
                let (found, [hits, misses]) = part.get_shared(hash, key, now, section, copy, f);
                if let Some(sample) = self.counters.add(hits, misses) {
                    self.sample(&keys, &sample, now);
                }
                found
            });
        }
        let mut partition = part.lock_key(hash, self.section);
        let is_unusual = partition.is_unusual;
        let item = partition.look_up_in(part.view.bare(), hash, key, now)?;
        if is_unusual {
            item.wait_for_far(std::iter::empty());
        }
        let (pos, result) = (item.pos(), f(&item));
        partition.sample_if_due(pos, now);
        Some(result)
    }

    /// Looks a key up without a lock, and copies its value, if it fits, to `to`, which no other
    /// thread reads meanwhile. Marks the item as used, calls `f`, counts a hit. `None` says nothing
    /// but that [`Cache::get`] is to be asked: of a key that is not there too, and of one that
    /// another thread changes just now; then what lies in `to` may be anything.
    ///
    /// # Panics
    /// If `to` goes beyond its units.
    #[inline]
    pub fn copy_value<R>(
        &self,
        key: &[u8],
        now: Millis,
        to: CopyTarget<'_>,
        f: impl FnOnce(Copied) -> R,
    ) -> Option<R> {
        if self.space != 0 {
            return None;
        }
        let hash = self.hash(key);
        let view = &self.partitions[self.index_of(hash)].view;
        let result = f(view.copy_value(hash, Key::plain(key), now, to)?);
        if let Some(sample) = self.counters.add(1, 0) {
            self.sample(&[key], &sample, now);
        }
        self.note_reads(&[key], &[hash]);
        Some(result)
    }

    /// Looks at reads of keys that are sampled for hits by capacity. The caller holds no lock.
    #[inline(always)]
    fn note_reads(&self, keys: &[&[u8]], hashes: &[u64]) {
        if let Some(reuse) = &self.reuse {
            for (key, hash) in keys.iter().zip(hashes).filter(|(_, hash)| reuse.wants(**hash)) {
                self.note_read(key, *hash);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn note_read(&self, key: &[u8], hash: u64) {
        let partition = self.lock(self.index_of(hash));
        partition.note_read(hash, partition.find(hash, self.key(key)));
    }

    /// Looks at an item of these keys, which were read without the lock.
    #[cold]
    #[inline(never)]
    fn sample(&self, keys: &[&[u8]], sample: &DueSample, now: Millis) {
        if self.options.far.is_none() {
            return;
        }
        let (before, behind) = keys.split_at(sample.nth.min(keys.len()));
        for key in behind.iter().chain(before) {
            let hash = self.hash(key);
            let mut partition = self.lock(self.index_of(hash));
            if let Some((_, slot)) = partition.find(hash, self.key(key)) {
                partition.count_reads(sample.reads);
                return partition.sample_if_due(slot.pos(), now);
            }
        }
    }

    /// Whether the item of a key lies in far memory ([`Options::far`]); `None` if it is not there.
    /// No use of it is counted.
    pub fn lies_far(&self, key: &[u8]) -> Option<bool> {
        let hash = self.hash(key);
        let partition = self.lock(self.index_of(hash));
        let (_, slot) = partition.find(hash, self.key(key))?;
        Some(partition.segments.memory_of(slot.pos().unit()) == segments::Memory::Far)
    }

    /// Locks the key's partition at the key, for any read-modify-write.
    ///
    /// # Errors
    /// [`Error::KeySize`].
    pub fn entry<'a>(&'a self, key: &'a [u8], now: Millis) -> Result<Entry<'a>> {
        let hash = self.checked_hash(key)?;
        let partition = self.partitions[self.index_of(hash)].lock_key(hash, self.section);
        Ok(Entry::new(partition, self.key(key), hash, now))
    }

    /// Stores a value that expires at `expires` (0 = never); the new cas.
    ///
    /// # Errors
    /// [`Error::KeySize`], [`Error::TooLarge`], [`Error::OutOfMemory`]; the old value stays then,
    /// but a cache that is short of memory may have evicted it.
    pub fn set(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expires: Millis,
        now: Millis,
    ) -> Result<u64> {
        if value.len() as u64 >= self.far_bytes_min {
            return self.set_far(key, value, flags, expires, now);
        }
        self.entry(key, now)?.put(&[value], flags, expires)
    }

    /// Stores a value in the tier, which takes its bytes outside the lock.
    #[cold]
    fn set_far(
        &self,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expires: Millis,
        now: Millis,
    ) -> Result<u64> {
        let hash = self.checked_hash(key)?;
        let mut far = self.lock(self.index_of(hash)).far_alloc(value.len() as u64, now)?;
        far.write(0, value)?;
        let mut entry = self.entry(key, now)?;
        let fields = entry.fields_of(flags, expires);
        entry.put_far(far, fields)
    }

    /// Makes a step, of a segment or a few, towards room for a value of `len` bytes, so that
    /// [`Cache::reserve`] has to make less of it at once; whether there is room, or no more can be
    /// made. Others may use it meanwhile.
    pub fn approach_room(&self, key: &[u8], len: u64, now: Millis) -> bool {
        self.lock(self.partition_of(key)).approach_room(len, now)
    }

    /// Removes a key; whether it was there.
    pub fn remove(&self, key: &[u8], now: Millis) -> bool {
        self.entry(key, now).is_ok_and(|mut entry| entry.remove())
    }

    /// Gives back the memory of all that was flushed, and of all segments in which everything has
    /// expired. Puts do that step by step; to be called from time to time where there are none.
    pub fn expire(&self, now: Millis) {
        self.tidy(PartitionShare::ALL, now, || true);
    }

    /// As [`Cache::expire`], for a share of the partitions, in steps of some 100 us, each under a
    /// partition's lock, as long as `goes_on` says so; whether some may be left. Without a lock it
    /// moves pages ([`Cache::switch`]).
    pub fn tidy(
        &self,
        share: PartitionShare,
        now: Millis,
        mut goes_on: impl FnMut() -> bool,
    ) -> bool {
        let own = (share.index..self.partitions.len()).step_by(share.count);
        let count = own.len() as u64;
        for index in own {
            loop {
                if !goes_on() {
                    return true;
                }
                let has_moved = self.partitions[index].pages.step(now, count);
                let has_tidied = self.lock(index).tidy(now);
                if !has_tidied && !has_moved && !self.sweep_hash(index, now) {
                    break;
                }
            }
        }
        false
    }

    /// Items, expired ones that were not found yet included.
    pub fn len(&self) -> u64 {
        (0..self.partitions.len()).map(|index| self.lock(index).items()).sum()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hits by capacity, with [`Options::samples_reuse`].
    pub fn reuse(&self) -> Option<Reuse> {
        self.reuse.as_ref().map(|reuse| reuse.counts())
    }

    /// Counters and gauges, summed over the partitions.
    pub fn stats(&self) -> Stats {
        let (hits, misses) = self.counters.sum();
        let far_bytes = self.options.far.as_ref().map_or(0, |far| far.memory);
        let memory_bytes = self.memory_limit() + far_bytes;
        let mut stats = Stats { memory_bytes, hits, misses, ..Stats::default() };
        (0..self.partitions.len()).for_each(|index| stats.add(&self.lock(index).stats_now()));
        self.partitions.iter().for_each(|part| part.pages.count(&mut stats));
        stats
    }
}
