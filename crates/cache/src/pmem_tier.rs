//! Items in memory that persists ([`rackpool_flash::PersistentItems`]) as what lies behind a
//! cache's memory.
//!
//! In: items that leave, or of a store all that change, by the cache under its locks. Out: items
//! that come back, at once. A change is made durable before its client is told of it, with all that
//! came before: by the thread that tells where that takes a fence, by one of its own where it takes
//! a system call.

use crate::cache::{BackingStore, DurableTold, Error, FetchDone, KeptItem, LeavingItem, Result};
use crate::kept_record::{kept, record_of, refused};
use rackpool_core::persist::{Persist, PersistenceDomain};
use rackpool_flash::{FlashAdmission, FlashGhosts, PersistentItems};
use rackpool_mem::log::spawn;
use rackpool_mem::persist::PersistentWindow;
use rackpool_mem::region::{PmemSpace, RegionError};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What is kept of items that have left, to know them when they leave again.
const GHOSTS: u64 = 1 << 16;

/// Where the memory is, and what it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmemTierOptions {
    /// A devdax, a file, or one that is made.
    pub path: PathBuf,
    /// Of a file that is made.
    pub bytes: u64,
    /// That it has, if the system does not say.
    pub domain: Option<PersistenceDomain>,
    /// Whether nothing may be lost: a change is acknowledged when it is durable.
    pub is_store: bool,
    /// Whether also items are taken that were never asked for.
    pub admits_all: bool,
}

/// Why there is no such tier.
#[derive(Debug, thiserror::Error)]
pub enum PmemTierError {
    /// The memory cannot be used.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// What it holds is not these items.
    #[error(transparent)]
    Items(#[from] rackpool_flash::Error),
    /// The system refused what was tried.
    #[error("{what}: {source}")]
    Io {
        /// What was asked of it.
        what: &'static str,
        /// What the system said then.
        source: std::io::Error,
    },
}

/// Items in memory that persists, behind a cache.
pub struct PmemTier {
    shared: Arc<PmemTierShared>,
    is_store: bool,
    admission: FlashAdmission,
    ghosts: FlashGhosts,
    seed: u64,
    space: Mutex<PmemSpace>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct PmemTierShared {
    items: Mutex<PersistentItems<PersistentWindow>>,
    counts: Mutex<PmemCounts>,
    waiting: Mutex<WaitingChanges>,
    news: Condvar,
    /// Whether a fence is no system call.
    is_quick: bool,
}

#[derive(Clone, Copy, Default)]
struct PmemCounts {
    admitted: u64,
    refused: u64,
    hits: u64,
    misses: u64,
    forgotten: u64,
    failed: u64,
}

#[derive(Default)]
struct WaitingChanges {
    told: Vec<(u64, DurableTold)>,
    is_over: bool,
}

impl fmt::Debug for PmemTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PmemTier").field("is_store", &self.is_store).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PmemTierShared {
    /// Makes all changes durable; up to which they are.
    fn commit(&self) -> u64 {
        let mut items = lock(&self.items);
        if items.commit().is_err() {
            lock(&self.counts).failed += 1;
        }
        items.durable()
    }

    /// Tells those that wait, until the end.
    fn serve(&self) {
        loop {
            let mut waiting = lock(&self.waiting);
            while waiting.told.is_empty() {
                if waiting.is_over {
                    return;
                }
                waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            // Those that come meanwhile go with the next ones.
            let told = std::mem::take(&mut waiting.told);
            drop(waiting);
            let durable = self.commit();
            told.into_iter().for_each(|(change, told)| told(change <= durable));
        }
    }
}

impl PmemTier {
    /// Opens what is there, or makes it; reads all of it.
    ///
    /// # Errors
    /// [`PmemTierError`].
    pub fn open(options: &PmemTierOptions) -> Result<PmemTier, PmemTierError> {
        let io = |what| move |source| PmemTierError::Io { what, source };
        let PmemTierOptions { path, bytes, domain, is_store, admits_all } = options;
        PersistentItems::<PersistentWindow>::geometry(*bytes)?;
        let space = PmemSpace::open(path, *bytes, *domain)?;
        let window = space.window();
        let is_quick = window.domain() != PersistenceDomain::Msync;
        if space.is_new() {
            let id = rackpool_mem::process::random_u64().map_err(io("a random number"))?;
            PersistentItems::format(&window, *is_store, id)?;
        }
        let items = PersistentItems::open(window, *is_store)?;
        let (seed, is_store) = (items.seed(), *is_store);
        let (items, counts, waiting) = (Mutex::new(items), Mutex::default(), Mutex::default());
        let news = Condvar::new();
        let shared = Arc::new(PmemTierShared { items, counts, waiting, news, is_quick });
        let served = Arc::clone(&shared);
        let thread = spawn("pmem-write", move || served.serve()).map_err(io("a thread"))?;
        let admission = FlashAdmission { rejects_first: !admits_all, ..FlashAdmission::default() };
        let (space, thread) = (Mutex::new(space), Mutex::new(Some(thread)));
        let ghosts = FlashGhosts::new(GHOSTS);
        Ok(PmemTier { shared, is_store, admission, ghosts, seed, space, thread })
    }

    /// Of the hashes of keys: that of the cache before it.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many items are there.
    pub fn items(&self) -> usize {
        lock(&self.shared.items).len()
    }

    /// Ends in order: all changes are durable.
    pub fn close(&self) {
        lock(&self.shared.waiting).is_over = true;
        self.shared.news.notify_all();
        let Some(thread) = lock(&self.thread).take() else { return };
        // One that panicked has said so.
        let _ = thread.join();
        let mut items = lock(&self.shared.items);
        if items.commit().is_ok() {
            // Else the memory says that it was left as by a kill.
            let _ = lock(&self.space).stop();
        }
    }
}

impl Drop for PmemTier {
    fn drop(&mut self) {
        self.close();
    }
}

impl BackingStore for PmemTier {
    fn is_store(&self) -> bool {
        self.is_store
    }

    fn admits(&self, hash: u64, bytes: u64, was_read: bool) -> bool {
        let items = lock(&self.shared.items);
        let fits = bytes <= items.item_bytes_max();
        if items.contains(hash) {
            return false;
        }
        drop(items);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let is_taken = fits && self.admission.admits(&self.ghosts, hash, bytes, was_read);
        lock(&self.shared.counts).refused += u64::from(!is_taken);
        is_taken
    }

    fn keep(&self, item: &LeavingItem<'_>) {
        let is_kept = lock(&self.shared.items).put(&record_of(item)).is_ok();
        let mut counts = lock(&self.shared.counts);
        counts.admitted += u64::from(is_kept);
        counts.failed += u64::from(!is_kept);
    }

    fn store(&self, item: &LeavingItem<'_>) -> Result<u64, Error> {
        let change = lock(&self.shared.items).put(&record_of(item)).map_err(refused)?;
        lock(&self.shared.counts).admitted += 1;
        Ok(change)
    }

    fn when_durable(&self, change: u64, told: DurableTold) {
        if self.shared.is_quick {
            return told(change <= self.shared.commit());
        }
        lock(&self.shared.waiting).told.push((change, told));
        self.shared.news.notify_one();
    }

    fn forget(&self, hash: u64) -> u64 {
        // Without it in the log none may be told that it is gone.
        let removed = lock(&self.shared.items).remove(hash);
        let change = removed.map_or(u64::MAX, |change| change.unwrap_or(0));
        lock(&self.shared.counts).forgotten += u64::from(change != 0);
        change
    }

    fn forget_all(&self) -> u64 {
        lock(&self.shared.items).remove_all().unwrap_or(u64::MAX)
    }

    fn contains(&self, hash: u64) -> bool {
        lock(&self.shared.items).contains(hash)
    }

    fn is_current(&self, hash: u64, item: &KeptItem) -> bool {
        lock(&self.shared.items).version(hash).map(u128::from) == Some(item.version)
    }

    fn fetch(&self, hash: u64, key: &[u8], told: FetchDone) {
        let found = lock(&self.shared.items).read(hash, key);
        let mut counts = lock(&self.shared.counts);
        counts.hits += u64::from(found.is_some());
        counts.misses += u64::from(found.is_none());
        drop(counts);
        told(found.map(kept));
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let items = lock(&self.shared.items);
        let (written_bytes, rewritten) = items.written();
        let (count, live_bytes) = (items.len() as u64, items.live_bytes());
        drop(items);
        let counts = *lock(&self.shared.counts);
        vec![
            ("pmem_items", count),
            ("pmem_live_bytes", live_bytes),
            ("pmem_admitted", counts.admitted),
            ("pmem_refused", counts.refused),
            ("pmem_hits", counts.hits),
            ("pmem_misses", counts.misses),
            ("pmem_forgotten", counts.forgotten),
            ("pmem_failed", counts.failed),
            ("pmem_written_bytes", written_bytes),
            ("pmem_rewritten", rewritten),
        ]
    }
}
