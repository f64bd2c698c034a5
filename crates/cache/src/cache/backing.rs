//! What lies behind memory: items that leave a cache for want of room may go to a [`BackingStore`]
//! and come back when they are asked for.
//!
//! Ordering rule: what it has of a key is always the key's current value. A store, a removal, a new
//! expiry and a flush have it forgotten under the lock of the key's partition; an item that comes
//! back is entered under that lock, if it is still what is there and the key has no item meanwhile.
//! So no look-up needs it to be right: without it an item that left is a miss.
//!
//! It serves the space of database 0 alone, as long as that is space 0: others have hashes that
//! mean something else to a later process. Hashes, marked items and values of a tier stay out.

use super::draft::ItemDraft;
use super::error::{Error, Result};
use super::evict::evicted::EvictedItems;
use super::item::Item;
use super::layout::{Fields, Header, Pos, Slot};
use super::partition::{Found, Partition};
use super::{Cache, Entry, Millis, StoredWith, WALL_TIME, at_wall};
use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An item that leaves memory.
#[derive(Clone, Copy, Debug)]
pub struct LeavingItem<'a> {
    /// Of its key, by the cache's seed.
    pub hash: u64,
    /// Its key, as the client gave it.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Flags, cas, when it expires.
    pub with: KeptWith,
}

/// What is kept of an item beside key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptWith {
    /// The caller's flags.
    pub flags: u32,
    /// The cas, which it keeps.
    pub cas: u64,
    /// When it expires, milliseconds since the Unix epoch; 0 = never.
    pub expires_at: u64,
    /// Whether that is so wherever the wall clock is set to.
    pub is_wall: bool,
    /// Whether a client gave the key in base64.
    pub has_binary_key: bool,
}

/// An item that was read there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptItem {
    /// Its value.
    pub value: Vec<u8>,
    /// Flags, cas, when it expires.
    pub with: KeptWith,
    /// What [`BackingStore::is_current`] is asked with.
    pub version: u128,
}

/// Told of an item, or that there is none.
pub type FetchDone = Box<dyn FnOnce(Option<KeptItem>) + Send>;

/// Told whether a change is durable, or never will be.
pub type DurableTold = Box<dyn FnOnce(bool) + Send>;

/// Keeps items that have left memory, as long as it likes; or, as a store, every item until it is
/// removed. Several threads call at once, under locks: none of its functions may wait for anything.
pub trait BackingStore: Send + Sync + Debug {
    /// Whether it is told of every change before that is one, and loses none of which it has said
    /// that it is durable.
    fn is_store(&self) -> bool {
        false
    }

    /// Of a store: takes a value; the number of this change.
    ///
    /// # Errors
    /// [`Error::StoreFull`], [`Error::TooLarge`], [`Error::Store`].
    fn store(&self, _item: &LeavingItem<'_>) -> Result<u64> {
        Err(Error::Store { reason: "it is a cache".into() })
    }

    /// Has `told` called when all changes up to this number are durable, or never will be.
    fn when_durable(&self, _change: u64, told: DurableTold) {
        told(false);
    }

    /// Of a store: the change for which others should wait, if it does not keep up.
    fn is_behind(&self) -> Option<u64> {
        None
    }

    /// Whether it takes an item with so many bytes of key and value that leaves; `was_read`: since
    /// it was stored.
    fn admits(&self, hash: u64, bytes: u64, was_read: bool) -> bool;

    /// Takes an item that leaves.
    fn keep(&self, item: &LeavingItem<'_>);

    /// What it has of this hash is over, for later processes as well; the number of the change that
    /// is to be durable before anyone is told so, or 0.
    fn forget(&self, hash: u64) -> u64;

    /// As [`BackingStore::forget`], of all that it has.
    fn forget_all(&self) -> u64;

    /// Whether it has an item of this hash.
    fn contains(&self, hash: u64) -> bool;

    /// Whether an item is still what it has.
    fn is_current(&self, hash: u64, item: &KeptItem) -> bool;

    /// Has an item read, and `told` called from a thread of its own that may wait; `told` is
    /// dropped if that cannot be, as where too many wait.
    fn fetch(&self, hash: u64, key: &[u8], told: FetchDone);

    /// What it counts, by the names by which clients are told.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A backing store, and whether database 0 has space 0.
#[derive(Debug)]
pub(crate) struct OpenBacking {
    store: Arc<dyn BackingStore>,
    is_open: AtomicBool,
    is_store: bool,
}

thread_local! {
    /// The last change that this thread has made behind memory.
    static LAST_CHANGE: Cell<u64> = const { Cell::new(0) };
}

/// The number of the last change that this thread has made behind memory since it asked; 0 if none.
#[cfg(any(test, feature = "front"))]
pub fn take_last_change() -> u64 {
    LAST_CHANGE.take()
}

/// As if this thread had made it.
pub fn note_change_of(change: u64) {
    LAST_CHANGE.set(LAST_CHANGE.get().max(change));
}

impl OpenBacking {
    fn is_open(&self) -> bool {
        // Acquire: pairs with the Release in `OpenBacking::set_open`.
        self.is_open.load(Ordering::Acquire)
    }

    /// To be called when spaces become databases.
    pub fn set_open(&self, is_open: bool) {
        // Release: pairs with the Acquire in `OpenBacking::is_open`.
        self.is_open.store(is_open, Ordering::Release);
        if !is_open {
            note_change_of(self.store.forget_all());
        }
    }
}

impl Partition {
    /// What lies behind memory of this key is over.
    #[inline]
    pub fn forget_behind(&self, hash: u64) {
        if let Some(backing) = &self.backing {
            note_change_of(backing.store.forget(hash));
        }
    }

    /// What lies behind memory of this key has another value: of a store it has it already.
    #[inline]
    pub fn outdate_behind(&self, hash: u64) {
        if self.backing.as_ref().is_some_and(|backing| !backing.is_store) {
            self.forget_behind(hash);
        }
    }

    /// Has a store take an item before it is one, whose value lies at a place already.
    #[inline]
    pub fn store_behind(&self, draft: &ItemDraft<'_>, pos: Pos, now: Millis) -> Result<()> {
        match &self.backing {
            // An item that comes back is there.
            Some(backing) if backing.is_store && self.is_observed => {
                self.store_in(&*backing.store, draft, pos, now)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn store_in(
        &self,
        store: &dyn BackingStore,
        draft: &ItemDraft<'_>,
        pos: Pos,
        now: Millis,
    ) -> Result<()> {
        let &ItemDraft { key, hash, value_bytes, fields } = draft;
        if key.space != 0 || fields.kind != 0 {
            let what = if key.space != 0 { "an item of another database" } else { "a hash" };
            return Err(Error::NotStored { what });
        }
        let item = self.item((0, Slot::new(hash, pos)), now);
        let mut value = Vec::with_capacity(value_bytes as usize);
        item.append_to(&mut value)?;
        let is_wall = fields.expires & WALL_TIME != 0;
        let expires_at = self.kept_expiry(fields.expires);
        let cas = if fields.cas == 0 { self.cas_of(pos, self.header(pos)) } else { fields.cas };
        let Fields { flags, has_binary_key, .. } = fields;
        let with = KeptWith { flags, cas, expires_at, is_wall, has_binary_key };
        note_change_of(store.store(&LeavingItem { hash, key: key.bytes, value: &value, with })?);
        Ok(())
    }

    /// An item is about to go for want of room: it may go on behind memory.
    pub fn keep_behind(&mut self, (at, slot): Found, now: Millis) {
        let is_wanted = |backing: &Arc<OpenBacking>| backing.is_open() && !backing.is_store;
        let Some(backing) = self.backing.clone().filter(is_wanted) else { return };
        let (pos, header) = (slot.pos(), self.header(slot.pos()));
        // What is flushed may still be found here.
        if header.has(Header::TYPED | Header::FAR)
            || header.is_spaced()
            || self.is_expired(pos, now)
        {
            return;
        }
        let hash = self.hash_at(pos, header);
        let item = self.item((at, slot), now);
        let bytes = item.key_len() as u64 + item.len();
        if item.is_marked() || !backing.store.admits(hash, bytes, slot.has(Slot::FETCHED)) {
            return;
        }
        let with = self.kept_with(&item);
        let (mut key, mut value) = (Vec::new(), Vec::new());
        item.append_key_to(&mut key);
        // Without its later pieces there is less.
        if item.append_to(&mut value).is_ok() && value.len() as u64 == item.len() {
            backing.store.keep(&LeavingItem { hash, key: &key, value: &value, with });
            if !backing.is_open() {
                // It was closed meanwhile, and this may have come behind what forgot all.
                backing.store.forget(hash);
            }
        }
    }

    fn kept_with(&self, item: &Item<'_>) -> KeptWith {
        let meta = item.meta_in_passing();
        let is_wall = meta.expires & WALL_TIME != 0;
        let expires_at = self.kept_expiry(meta.expires);
        let (flags, cas, has_binary_key) = (meta.flags, meta.cas, item.has_binary_key());
        KeptWith { flags, cas, expires_at, is_wall, has_binary_key }
    }

    /// When an item expires by the wall clock.
    fn kept_expiry(&self, expires: Millis) -> u64 {
        match expires {
            0 => 0,
            expires if expires & WALL_TIME != 0 => expires & !WALL_TIME,
            expires => expires.saturating_add_signed(self.wall.ahead()).max(1),
        }
    }

    /// Calls `f` with changes of items that are none to others: an item comes back.
    fn unobserved<R>(&mut self, f: impl FnOnce(&mut Partition) -> R) -> R {
        let is_observed = std::mem::replace(&mut self.is_observed, false);
        let result = f(self);
        self.is_observed = is_observed;
        result
    }
}

impl Entry<'_> {
    /// Enters an item that comes back.
    fn take_back(&mut self, value: &[u8], with: StoredWith) -> Result<()> {
        let (key, hash, now) = (self.key, self.hash, self.now);
        let found = &mut self.found;
        self.partition.unobserved(|partition| {
            let fields = with.fields(partition, now);
            let value_bytes = value.len() as u64;
            let cas = partition.cas_for(key, value_bytes, fields.cas);
            let fields = Fields { cas, ..fields };
            let draft = ItemDraft { key, hash, value_bytes, fields };
            let put = partition.put(&draft, &[value], found, now);
            if put.is_err() {
                *found = partition.find(hash, key);
            }
            put
        })
    }
}

impl Cache {
    /// Items that leave memory may go there from now on, and come back. What it holds of earlier
    /// times was put there with the cache's [`seed`](super::Options::seed).
    ///
    /// # Panics
    /// If the cache is in use already: handles were made of it.
    #[must_use]
    pub fn with_backing(mut self, store: Arc<dyn BackingStore>) -> Cache {
        let is_store = store.is_store();
        let backing = Arc::new(OpenBacking { store, is_open: AtomicBool::new(true), is_store });
        backing.set_open(self.is_database_0_plain());
        for index in 0..self.partitions.len() {
            let mut partition = self.lock(index);
            partition.backing = Some(Arc::clone(&backing));
            partition.is_observed = true;
            partition.evicted = EvictedItems::for_backing();
        }
        let is_first = self.databases.backing.set(Arc::clone(&backing)).is_ok();
        assert!(is_first, "there is one backing store");
        self.backing = Some(backing);
        self
    }

    /// Whether something lies behind memory.
    #[inline]
    pub fn has_backing(&self) -> bool {
        self.backing.is_some()
    }

    /// Whether what lies behind memory is a store.
    #[inline]
    pub fn has_store(&self) -> bool {
        self.backing.as_ref().is_some_and(|backing| backing.is_store)
    }

    /// Has `told` called when all changes up to this number are durable in the store behind memory,
    /// or never will be.
    pub fn when_durable(&self, change: u64, told: impl FnOnce(bool) + Send + 'static) {
        match &self.backing {
            Some(backing) => backing.store.when_durable(change, Box::new(told)),
            None => told(true),
        }
    }

    /// The change for which what changes more should wait, as the store behind memory does not
    /// keep up.
    pub fn store_is_behind(&self) -> Option<u64> {
        self.backing.as_ref().filter(|backing| backing.is_store)?.store.is_behind()
    }

    /// Whether a key has no item in memory, but one that may come back.
    pub fn lies_behind(&self, key: &[u8], now: Millis) -> bool {
        let Some(backing) = &self.backing else { return false };
        let hash = self.hash(key);
        if self.space != 0 || !backing.is_open() || !backing.store.contains(hash) {
            return false;
        }
        let mut partition = self.lock(self.index_of(hash));
        partition.find_fresh(hash, self.key(key), now).is_none()
    }

    /// Has the item of a key come back, if there is one behind memory; `done` is called then, from
    /// another thread, or dropped. The clock is read there, by `now`.
    pub fn fetch(
        &self,
        key: &[u8],
        now: impl FnOnce() -> Millis + Send + 'static,
        done: impl FnOnce() + Send + 'static,
    ) {
        let Some(backing) = &self.backing else { return };
        let (cache, hash, owned) = (self.clone(), self.hash(key), key.to_vec());
        let told = move |item: Option<KeptItem>| {
            if let Some(item) = item {
                cache.take_back(&owned, &item, now());
            }
            drop(cache);
            done();
        };
        backing.store.fetch(hash, key, Box::new(told));
    }

    /// Enters an item that was read behind memory, unless the key has changed since; whether it
    /// did.
    fn take_back(&self, key: &[u8], item: &KeptItem, now: Millis) -> bool {
        let Some(backing) = &self.backing else { return false };
        let hash = self.hash(key);
        let with = item.with;
        if with.expires_at != 0 && with.expires_at <= now.saturating_add_signed(self.wall_ahead()) {
            // It would be found again and again.
            let partition = self.lock(self.index_of(hash));
            if backing.store.is_current(hash, item) {
                partition.forget_behind(hash);
            }
            return false;
        }
        let expires = match with.expires_at {
            0 => 0,
            at if with.is_wall => at_wall(at),
            at => at.saturating_add_signed(self.wall_ahead().saturating_neg()).max(1),
        };
        let KeptWith { flags, cas, has_binary_key, .. } = with;
        let stored = StoredWith { flags, expires, cas, has_binary_key };
        let Ok(mut entry) = self.entry(key, now) else { return false };
        // Looked at under the lock, under which it is forgotten.
        entry.item().is_none()
            && backing.is_open()
            && backing.store.is_current(hash, item)
            && entry.take_back(&item.value, stored).is_ok()
    }

    /// All that lies behind memory is over.
    pub(super) fn forget_all_behind(&self) {
        if let Some(backing) = &self.backing {
            note_change_of(backing.store.forget_all());
        }
    }

    /// What a backing store counts, if there is one, and whether it serves database 0 now.
    pub fn backing_counts(&self) -> Vec<(&'static str, u64)> {
        let Some(backing) = &self.backing else { return Vec::new() };
        let mut counts = backing.store.counts();
        counts.push(("flash_open", backing.is_open().into()));
        counts
    }

    fn is_database_0_plain(&self) -> bool {
        self.in_database(0).space == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Options;
    use std::collections::HashMap;
    use std::sync::{Mutex, MutexGuard};

    /// Keeps all; reads are done at once, or when the test says so.
    #[derive(Debug, Default)]
    struct TestStore {
        items: Mutex<HashMap<u64, (Vec<u8>, KeptItem)>>,
        kept: Mutex<u128>,
        is_store: bool,
        is_full: AtomicBool,
    }

    impl TestStore {
        fn items(&self) -> MutexGuard<'_, HashMap<u64, (Vec<u8>, KeptItem)>> {
            self.items.lock().unwrap()
        }
    }

    impl BackingStore for TestStore {
        fn is_store(&self) -> bool {
            self.is_store
        }

        fn store(&self, item: &LeavingItem<'_>) -> Result<u64> {
            // Relaxed: one thread.
            if self.is_full.load(Ordering::Relaxed) {
                return Err(Error::StoreFull { stored_bytes: 1 });
            }
            self.keep(item);
            Ok(*self.kept.lock().unwrap() as u64)
        }

        fn admits(&self, hash: u64, _: u64, _: bool) -> bool {
            !self.contains(hash)
        }

        fn keep(&self, item: &LeavingItem<'_>) {
            let mut version = self.kept.lock().unwrap();
            *version += 1;
            let (value, with) = (item.value.to_vec(), item.with);
            let kept = KeptItem { value, with, version: *version };
            self.items().insert(item.hash, (item.key.to_vec(), kept));
        }

        fn forget(&self, hash: u64) -> u64 {
            self.items().remove(&hash);
            0
        }

        fn forget_all(&self) -> u64 {
            self.items().clear();
            0
        }

        fn contains(&self, hash: u64) -> bool {
            self.items().contains_key(&hash)
        }

        fn is_current(&self, hash: u64, item: &KeptItem) -> bool {
            self.items().get(&hash).is_some_and(|(_, kept)| kept == item)
        }

        fn fetch(&self, hash: u64, key: &[u8], told: FetchDone) {
            let found = self.items().get(&hash).cloned();
            told(found.and_then(|(kept, item)| (kept == key).then_some(item)));
        }
    }

    const NOW: Millis = 1_000;

    fn key(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }

    /// A cache of which most items have left, and what is behind it.
    fn filled(count: u32) -> (Cache, Arc<TestStore>) {
        let store = Arc::new(TestStore::default());
        let options = Options { memory: 4 << 20, ..Options::default() };
        let behind: Arc<dyn BackingStore> = store.clone();
        let cache = Cache::new(options).unwrap().with_backing(behind);
        for number in 0..count {
            let value = [number as u8; 1000];
            cache.set(&key(number), &value, number, 0, NOW).unwrap();
        }
        (cache, store)
    }

    fn first_behind(cache: &Cache, count: u32) -> u32 {
        (0..count).find(|number| cache.lies_behind(&key(*number), NOW)).unwrap()
    }

    fn fetch(cache: &Cache, number: u32) {
        cache.fetch(&key(number), || NOW, || ());
    }

    fn get(cache: &Cache, number: u32) -> Option<(Vec<u8>, u32, u64)> {
        let read = |item: &Item<'_>| {
            let mut value = Vec::new();
            item.append_to(&mut value).unwrap();
            (value, item.flags(), item.cas())
        };
        cache.get(&key(number), NOW, read)
    }

    #[test]
    fn an_item_that_left_comes_back_as_it_was_and_leaves_again_without_a_copy() {
        let (cache, store) = filled(10_000);
        assert!(cache.len() + store.items().len() as u64 >= 10_000);
        let number = first_behind(&cache, 10_000);
        let hash = cache.hash(&key(number));
        let cas = store.items()[&hash].1.with.cas;
        assert_eq!(get(&cache, number), None);
        fetch(&cache, number);
        assert_eq!(get(&cache, number), Some((vec![number as u8; 1000], number, cas)));
        assert!(!cache.lies_behind(&key(number), NOW) && store.contains(hash));
    }

    #[test]
    fn what_was_changed_removed_or_flushed_does_not_come_back() {
        let (cache, store) = filled(10_000);
        let number = first_behind(&cache, 10_000);
        let hash = cache.hash(&key(number));
        let old = store.items()[&hash].1.clone();
        cache.set(&key(number), b"new", 0, 0, NOW).unwrap();
        assert!(!store.contains(hash));
        assert!(!cache.take_back(&key(number), &old, NOW), "a read that was under way");
        assert_eq!(get(&cache, number).unwrap().0, b"new");
        let number = first_behind(&cache, 10_000);
        let hash = cache.hash(&key(number));
        let old = store.items()[&hash].1.clone();
        // It is not in memory, and is gone all the same.
        assert!(!cache.remove(&key(number), NOW) && !store.contains(hash));
        assert!(!cache.take_back(&key(number), &old, NOW) && get(&cache, number).is_none());
        let number = first_behind(&cache, 10_000);
        fetch(&cache, number);
        cache.entry(&key(number), NOW).unwrap().set_expiry(NOW + 5).unwrap();
        assert!(!store.contains(cache.hash(&key(number))));
        let number = first_behind(&cache, 10_000);
        fetch(&cache, number);
        // As memcached's clients do: what is stale in memory is not fresh behind it.
        cache.entry(&key(number), NOW).unwrap().mark(true, false);
        assert!(!store.contains(cache.hash(&key(number))));
        let number = first_behind(&cache, 10_000);
        cache.swap_databases(1, 2, NOW);
        assert!(cache.lies_behind(&key(number), NOW), "other databases");
        cache.in_database(1).set(b"stays", b"value", 0, 0, NOW).unwrap();
        cache.flush_database(1, NOW);
        assert!(cache.lies_behind(&key(number), NOW), "another database");
        cache.flush_all();
        assert!(store.items().is_empty() && !cache.lies_behind(&key(number), NOW));
        // Nor does what is flushed, but not swept yet, leave for there.
        for number in 20_000..20_100 {
            cache.set(&key(number), &[1; 1000], 0, 0, NOW).unwrap();
        }
        assert!(store.items().is_empty());
    }

    #[test]
    fn a_database_that_has_another_space_has_nothing_behind_it() {
        let (cache, store) = filled(10_000);
        cache.swap_databases(0, 3, NOW);
        assert!(store.items().is_empty() && cache.backing_counts() == [("flash_open", 0)]);
        let first = cache.in_database(0);
        for number in 0..10_000_u32 {
            first.set(&key(number), &[2; 1000], 0, 0, NOW).unwrap();
        }
        assert!(store.items().is_empty());
        cache.swap_databases(0, 3, NOW);
        for number in 0..10_000_u32 {
            cache.set(&key(number), &[3; 1000], 0, 0, NOW).unwrap();
        }
        assert!(!store.items().is_empty() && cache.backing_counts() == [("flash_open", 1)]);
    }

    #[test]
    fn a_value_of_several_pieces_comes_back_whole() {
        let (cache, store) = filled(100);
        let value: Vec<u8> = (0..100_000_u32).map(|at| (at / 7) as u8).collect();
        cache.set(b"long", &value, 5, 0, NOW).unwrap();
        for number in 0..20_000 {
            cache.set(&key(number), &[1; 1000], 0, 0, NOW).unwrap();
        }
        assert!(cache.lies_behind(b"long", NOW));
        assert_eq!(store.items()[&cache.hash(b"long")].1.value, value);
        cache.fetch(b"long", || NOW, || ());
        let read = |item: &Item<'_>| {
            let mut value = Vec::new();
            item.append_to(&mut value).unwrap();
            (value, item.flags())
        };
        assert_eq!(cache.get(b"long", NOW, read), Some((value, 5)));
    }

    #[test]
    fn an_item_that_has_expired_in_memory_does_not_come_back_by_a_clock_that_is_set_back() {
        let (cache, store) = filled(10_000);
        cache.set_wall(1_000_000);
        let number = first_behind(&cache, 10_000);
        let hash = cache.hash(&key(number));
        store.items().get_mut(&hash).unwrap().1.with.expires_at = 1_000_000 + NOW + 5;
        fetch(&cache, number);
        assert!(get(&cache, number).is_some() && store.contains(hash));
        cache.set_wall(0);
        assert!(cache.get(&key(number), NOW + 5, |_| ()).is_none());
        assert!(!store.contains(hash) && !cache.lies_behind(&key(number), NOW + 5));
    }

    #[test]
    fn a_store_has_each_change_before_it_is_one_and_what_it_refuses_is_none() {
        let store = Arc::new(TestStore { is_store: true, ..TestStore::default() });
        let options = Options { memory: 4 << 20, ..Options::default() };
        let behind: Arc<dyn BackingStore> = store.clone();
        let cache = Cache::new(options).unwrap().with_backing(behind);
        let value_of = |name: &[u8]| store.items()[&cache.hash(name)].1.clone();
        take_last_change();
        cache.set(b"a", b"1", 5, 0, NOW).unwrap();
        assert_eq!((take_last_change(), take_last_change()), (1, 0));
        cache.entry(b"a", NOW).unwrap().set_expiry(NOW + 5).unwrap();
        let stored = value_of(b"a");
        assert_eq!((&stored.value[..], stored.with.flags), (&b"1"[..], 5));
        assert_ne!((stored.with.expires_at, take_last_change()), (0, 1));
        let long = vec![7; 200_000];
        let mut writer = cache.reserve(b"long", long.len() as u64, 0, 0, NOW).unwrap();
        writer.write(&long);
        assert!(!store.contains(cache.hash(b"long")));
        writer.commit(&cache, NOW).unwrap();
        assert_eq!(value_of(b"long").value, long);
        // Relaxed: one thread.
        store.is_full.store(true, Ordering::Relaxed);
        let refused = cache.set(b"a", b"2", 0, 0, NOW);
        assert!(matches!(refused, Err(Error::StoreFull { .. })), "{refused:?}");
        let mut writer = cache.reserve(b"long", 100_000, 0, 0, NOW).unwrap();
        writer.write(&long[..100_000]);
        assert!(matches!(writer.commit(&cache, NOW), Err(Error::StoreFull { .. })));
        assert!(cache.entry(b"a", NOW).unwrap().set_expiry(NOW + 9).is_err());
        assert_eq!(cache.get(b"long", NOW, |item| item.len()), Some(200_000));
        let read = |item: &Item<'_>| (item.len(), item.expires());
        assert_eq!(cache.get(b"a", NOW, read), Some((1, NOW + 5)));
        store.is_full.store(false, Ordering::Relaxed);
        let other = cache.in_database(1).set(b"a", b"1", 0, 0, NOW);
        assert!(matches!(other, Err(Error::NotStored { .. })));
        assert!(cache.remove(b"a", NOW) && !store.contains(cache.hash(b"a")));
        // What leaves memory is there, and comes back without a word to it.
        for number in 0..10_000 {
            cache.set(&key(number), &[number as u8; 1000], 0, 0, NOW).unwrap();
        }
        let number = first_behind(&cache, 10_000);
        take_last_change();
        fetch(&cache, number);
        assert!(get(&cache, number).is_some() && take_last_change() == 0);
        assert!((0..10_000).all(|number| store.contains(cache.hash(&key(number)))));
    }

    #[test]
    fn an_item_that_has_expired_behind_memory_is_gone() {
        let (cache, store) = filled(10_000);
        let number = first_behind(&cache, 10_000);
        let hash = cache.hash(&key(number));
        store.items().get_mut(&hash).unwrap().1.with.expires_at = NOW;
        fetch(&cache, number);
        assert!(get(&cache, number).is_none() && !store.contains(hash));
        let number = first_behind(&cache, 10_000);
        let hash = cache.hash(&key(number));
        let with = KeptWith { expires_at: NOW + 1, is_wall: true, ..KeptWith::default() };
        store.items().get_mut(&hash).unwrap().1.with = with;
        fetch(&cache, number);
        let expires = cache.get(&key(number), NOW, |item| item.expires());
        assert_eq!(expires, Some(at_wall(NOW + 1)));
        assert!(cache.get(&key(number), NOW + 1, |_| ()).is_none());
    }
}
