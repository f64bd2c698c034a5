//! Sections: keys that are changed or read by several calls as one step to all others
//! ([decision 0060](../../../../docs/decisions/0060-a-section-holds-keys.md)). In: keys, or all of
//! them. Out: a [`Section`]; until it is dropped, threads that need one of its keys wait for it.
//! Called by the servers. Partitions know what is held of their keys (`partition/holds.rs`).
//!
//! A section that finds a key held gives back what it has, waits, and begins anew; one that has
//! begun waits for nothing. So no two wait for each other.

use super::databases::Databases;
use super::partition::Partition;
use super::{Cache, LockedPartition, Millis};
use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Looks at a section before a thread that waits for it sleeps: some us, as most take.
const SPINS: u32 = 256;
/// What an item takes beside key and value, at most.
const ITEM_BYTES: u64 = 48;

/// A hash whose order is that of the partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeldKey(u64);

impl HeldKey {
    pub fn of(hash: u64) -> HeldKey {
        // The lowest 16 bits choose the partition.
        HeldKey(hash.rotate_right(16))
    }

    /// As [`Cache::index_of`] its hash.
    fn partition(self, count: usize) -> usize {
        ((self.0 >> 48) as usize * count) >> 16
    }
}

/// What a section holds, until it is over.
#[derive(Debug)]
pub(crate) struct Held {
    pub section: u64,
    /// In order; `None`: all keys.
    pub keys: Option<Vec<HeldKey>>,
    is_over: AtomicBool,
    sleepers: Mutex<Sleepers>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct Sleepers {
    is_over: bool,
    count: u32,
}

impl Held {
    fn new(section: u64, keys: Option<Vec<HeldKey>>) -> Arc<Held> {
        let (is_over, sleepers, over) = Default::default();
        Arc::new(Held { section, keys, is_over, sleepers, over })
    }

    pub fn has(&self, key: HeldKey) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.binary_search(&key).is_ok())
    }

    /// The partitions, of so many, in which it has keys, in order, with these keys.
    fn places(&self, count: usize) -> impl Iterator<Item = (usize, &[HeldKey])> {
        let keys = self.keys.as_deref().unwrap_or_default();
        let some = keys.chunk_by(move |a, b| a.partition(count) == b.partition(count));
        let named = some.map(move |keys| (keys[0].partition(count), keys));
        let all = if self.keys.is_none() { 0..count } else { 0..0 };
        named.chain(all.map(|index| (index, <&[HeldKey]>::default())))
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is over. The caller has no lock.
    ///
    /// # Panics
    /// In a thread that waits for itself.
    #[cold]
    pub fn wait(&self) {
        assert_ne!(self.section >> COUNT_BITS, LAST.get() >> COUNT_BITS, "a section of its own");
        for _ in 0..SPINS {
            // Acquire: pairs with the Release in section.rs::end.
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            spin_loop();
        }
        let mut sleepers = self.sleepers();
        sleepers.count += 1;
        while !sleepers.is_over {
            sleepers = self.over.wait(sleepers).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        // Release: pairs with the Acquire in section.rs::wait.
        self.is_over.store(true, Ordering::Release);
        let mut sleepers = self.sleepers();
        sleepers.is_over = true;
        if sleepers.count > 0 {
            self.over.notify_all();
        }
    }
}

/// What all sections of a cache share.
#[derive(Debug, Default)]
pub(super) struct Sections {
    /// Those that are over.
    ended: AtomicU64,
    /// Those that have begun, or are about to, over keys that are named.
    active: AtomicU64,
    is_alone: AtomicBool,
    /// The one over all keys, also while it waits for those that are active.
    alone: Mutex<Option<Arc<Held>>>,
    /// Notified where one of both may have changed.
    changed: Condvar,
}

impl Sections {
    fn alone(&self) -> MutexGuard<'_, Option<Arc<Held>>> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        alone: MutexGuard<'a, Option<Arc<Held>>>,
    ) -> MutexGuard<'a, Option<Arc<Held>>> {
        self.changed.wait(alone).unwrap_or_else(PoisonError::into_inner)
    }

    /// One is active from now on, when there is none over all keys.
    fn begin(&self) {
        loop {
            // SeqCst: of this and section.rs::begin_alone at least one sees the other.
            self.active.fetch_add(1, Ordering::SeqCst);
            if !self.is_alone.load(Ordering::SeqCst) {
                return;
            }
            self.end();
            let alone = self.alone().clone();
            if let Some(alone) = alone {
                alone.wait();
            }
        }
    }

    fn end(&self) {
        // SeqCst: as above.
        if self.active.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_alone.load(Ordering::SeqCst) {
            // With the lock: who has just looked is waiting by now.
            let _alone = self.alone();
            self.changed.notify_all();
        }
    }

    /// The only one from now on: no other begins, and all that have begun are over.
    fn begin_alone(&self, held: &Arc<Held>) {
        let mut alone = self.alone();
        while alone.is_some() {
            alone = self.wait(alone);
        }
        *alone = Some(Arc::clone(held));
        // SeqCst: see section.rs::begin.
        self.is_alone.store(true, Ordering::SeqCst);
        while self.active.load(Ordering::SeqCst) > 0 {
            alone = self.wait(alone);
        }
    }

    fn end_alone(&self) {
        let mut alone = self.alone();
        *alone = None;
        // SeqCst: as above.
        self.is_alone.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

/// Bits of a section's number that count those of a thread.
const COUNT_BITS: u32 = 40;

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of the last section of this thread.
    // Relaxed: a number that no other thread gets.
    static LAST: Cell<u64> =
        Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) << COUNT_BITS);
}

/// A number that no other section has, and not 0.
fn next_number() -> u64 {
    LAST.set(LAST.get() + 1);
    LAST.get()
}

/// Keys that a section is to hold, of any spaces.
#[derive(Clone, Debug, Default)]
pub struct SectionKeys(Vec<HeldKey>);

impl SectionKeys {
    /// None yet, with room for so many.
    pub fn with_capacity(count: usize) -> SectionKeys {
        SectionKeys(Vec::with_capacity(count))
    }

    /// Adds a key of the space that this handle sees.
    pub fn add(&mut self, cache: &Cache, key: &[u8]) {
        self.0.push(HeldKey::of(cache.hash(key)));
    }

    fn sorted(mut self) -> Vec<HeldKey> {
        self.0.sort_unstable();
        self.0.dedup();
        self.0
    }
}

/// Keys that no other thread sees or changes until this is dropped. The thread that has one uses
/// them by handles of [`Cache::enter_section`], and by no others: these would wait for ever.
#[derive(Debug)]
pub struct Section {
    partitions: Arc<[LockedPartition]>,
    databases: Arc<Databases>,
    number: u64,
    held: Vec<Arc<Held>>,
    /// Whether it is over all keys.
    is_alone: bool,
}

impl Section {
    /// Whether it holds a key of the space that this handle sees.
    pub fn holds(&self, cache: &Cache, key: &[u8]) -> bool {
        let key = HeldKey::of(cache.hash(key));
        self.held.iter().any(|held| held.has(key))
    }

    /// Holds these keys as well, if no other section holds one of them: it waits for none. Whether
    /// it does.
    pub fn hold_more(&mut self, keys: SectionKeys) -> bool {
        let held = Held::new(self.number, Some(keys.sorted()));
        let is_held = try_hold(&self.partitions, &held).is_ok();
        if is_held {
            self.held.push(held);
        }
        is_held
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `Cache::sections_ended`. First, so that what others
        // see of it they see with this.
        self.databases.sections.ended.fetch_add(1, Ordering::Release);
        for held in &self.held {
            let count = self.partitions.len();
            for (index, _) in held.places(count) {
                self.partitions[index].lock().let_go(self.number);
            }
        }
        match self.is_alone {
            true => self.databases.sections.end_alone(),
            false => self.databases.sections.end(),
        }
        self.held.iter().for_each(|held| held.end());
    }
}

/// Has partitions know what a section holds; or none, if another section holds one of its keys:
/// what that one holds.
fn try_hold(partitions: &[LockedPartition], held: &Arc<Held>) -> Result<(), Arc<Held>> {
    for (index, keys) in held.places(partitions.len()) {
        let held_here = partitions[index].lock().try_hold(held, keys);
        let Err(other) = held_here else { continue };
        let before = held.places(partitions.len()).take_while(|(it, _)| *it != index);
        before.for_each(|(it, _)| partitions[it].lock().forget_hold(held));
        // Some may wait for it already.
        held.end();
        return Err(other);
    }
    Ok(())
}

impl LockedPartition {
    /// Locks it for a key: none that another section than `section` holds.
    #[inline]
    pub(super) fn lock_key(&self, hash: u64, section: u64) -> MutexGuard<'_, Partition> {
        let partition = self.lock();
        match partition.is_unusual {
            false => partition,
            true => self.lock_again(partition, hash, section),
        }
    }

    /// As [`LockedPartition::lock_key`], of one that is locked: it may be let go in between.
    #[cold]
    #[inline(never)]
    pub(super) fn lock_again<'a>(
        &'a self,
        mut partition: MutexGuard<'a, Partition>,
        hash: u64,
        section: u64,
    ) -> MutexGuard<'a, Partition> {
        while let Some(held) = partition.holder(hash, section) {
            drop(partition);
            held.wait();
            partition = self.lock();
        }
        partition.wait_for_look_up(hash);
        partition
    }

    /// As [`LockedPartition::lock_again`] for several keys; whether far memory is emulated.
    #[cold]
    #[inline(never)]
    pub(super) fn lock_for_all<'a>(
        &'a self,
        mut partition: MutexGuard<'a, Partition>,
        hashes: impl Iterator<Item = u64> + Clone,
        section: u64,
    ) -> (MutexGuard<'a, Partition>, bool) {
        while let Some(held) = hashes.clone().find_map(|hash| partition.holder(hash, section)) {
            drop(partition);
            held.wait();
            partition = self.lock();
        }
        let is_emulated = partition.emulation.is_some();
        (partition, is_emulated)
    }
}

impl Cache {
    /// Begins a section over these keys, when no other one holds any of them.
    pub fn hold(&self, keys: SectionKeys) -> Section {
        let number = next_number();
        self.databases.sections.begin();
        let mut held = Held::new(number, Some(keys.sorted()));
        while let Err(other) = try_hold(&self.partitions, &held) {
            other.wait();
            // Another one: those who wait for this one are told that it is over.
            held = Held::new(number, held.keys.clone());
        }
        self.section_of(number, held)
    }

    /// Begins a section over all keys of all spaces, when all others are over.
    pub fn hold_all(&self) -> Section {
        let number = next_number();
        let held = Held::new(number, None);
        self.databases.sections.begin_alone(&held);
        self.partitions.iter().for_each(|part| part.lock().hold(&held));
        let mut section = self.section_of(number, held);
        section.is_alone = true;
        section
    }

    fn section_of(&self, number: u64, held: Arc<Held>) -> Section {
        let (partitions, databases) = (Arc::clone(&self.partitions), Arc::clone(&self.databases));
        Section { partitions, databases, number, held: vec![held], is_alone: false }
    }

    /// Calls `f` in a section over all keys, or in that in which this handle is.
    pub(super) fn alone(&self, f: impl FnOnce(&Cache)) {
        if self.section != 0 {
            return f(self);
        }
        let (section, mut inside) = (self.hold_all(), self.clone());
        inside.enter_section(Some(&section));
        f(&inside);
    }

    /// From now on this handle, and those made of it, see keys that the section holds and wait for
    /// none; with `None` they are in no section any more.
    pub fn enter_section(&mut self, section: Option<&Section>) {
        self.section = section.map_or(0, |section| section.number);
    }

    /// Whether there is room for all of these values, each with the number of its database, its key
    /// and its bytes, without that anything goes: always, where items are evicted.
    pub fn has_room<'a>(
        &self,
        stores: impl Iterator<Item = (u8, &'a [u8], u64)>,
        now: Millis,
    ) -> bool {
        let mut needed = vec![0; self.partitions.len()];
        for (number, key, bytes) in stores {
            let database = self.in_database(number);
            if bytes < self.far_bytes_min {
                needed[database.partition_of(key)] += bytes + ITEM_BYTES;
            }
        }
        let all = self.partitions.iter().zip(needed);
        all.filter(|(_, bytes)| *bytes > 0)
            .all(|(part, bytes)| part.lock().has_room_for(bytes, now))
    }

    /// Counts sections that are over: what was read between two equal counts is of one moment, as
    /// far as sections go.
    pub fn sections_ended(&self) -> u64 {
        // Acquire: pairs with the Release where a section is dropped.
        self.databases.sections.ended.load(Ordering::Acquire)
    }
}
