//! A flash log ([`rackpool_flash`]) as what lies behind a cache's memory.
//!
//! In: items that leave, or of a store all that change, by the cache under its locks. Out: items
//! that come back, from the log's own threads.

use crate::cache::{BackingStore, DurableTold, Error, FetchDone, KeptItem, LeavingItem, Result};
use crate::kept_record::{kept, record_of, refused};
use rackpool_flash::{Flash, FlashFetched, FlashPut, FlashTicket};
use std::sync::Arc;

/// A flash log behind a cache.
#[derive(Debug)]
pub struct FlashTier(Arc<Flash>);

impl FlashTier {
    /// Behind a cache with the seed of this log.
    pub fn new(flash: Arc<Flash>) -> FlashTier {
        FlashTier(flash)
    }
}

impl BackingStore for FlashTier {
    fn admits(&self, hash: u64, bytes: u64, was_read: bool) -> bool {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.0.admits(hash, bytes, was_read) == FlashPut::Taken
    }

    fn is_store(&self) -> bool {
        self.0.is_store()
    }

    fn keep(&self, item: &LeavingItem<'_>) {
        // What is dropped is counted there.
        self.0.put_admitted(&record_of(item));
    }

    fn store(&self, item: &LeavingItem<'_>) -> Result<u64, Error> {
        self.0.store(&record_of(item)).map(FlashTicket::number).map_err(refused)
    }

    fn when_durable(&self, change: u64, told: DurableTold) {
        self.0.when_durable(FlashTicket::of_number(change), told);
    }

    fn is_behind(&self) -> Option<u64> {
        self.0.behind().map(FlashTicket::number)
    }

    fn forget(&self, hash: u64) -> u64 {
        if !self.0.is_store() {
            self.0.forget(hash);
            return 0;
        }
        // Of one that has failed no change is durable any more.
        let removed = self.0.remove(hash);
        removed.map_or(u64::MAX, |ticket| ticket.map_or(0, FlashTicket::number))
    }

    fn forget_all(&self) -> u64 {
        let ticket = self.0.forget_all();
        if self.0.is_store() { ticket.number() } else { 0 }
    }

    fn contains(&self, hash: u64) -> bool {
        self.0.contains(hash)
    }

    fn is_current(&self, hash: u64, item: &KeptItem) -> bool {
        self.0.is_current(hash, item.version)
    }

    fn fetch(&self, hash: u64, key: &[u8], told: FetchDone) {
        // Where as many wait as may it is a miss; errors are counted there.
        let done = move |found: FlashFetched| told(found.ok().flatten().map(kept));
        let _ = self.0.fetch(hash, key, done);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let stats = self.0.stats();
        vec![
            ("flash_items", stats.items),
            ("flash_live_bytes", stats.live_bytes),
            ("flash_bytes", stats.bytes),
            ("flash_index_bytes", stats.index_bytes),
            ("flash_admitted", stats.admitted),
            ("flash_admitted_bytes", stats.admitted_bytes),
            ("flash_refused", stats.refused),
            ("flash_dropped", stats.dropped),
            ("flash_kept", stats.kept),
            ("flash_hits", stats.hits),
            ("flash_misses", stats.misses),
            ("flash_busy", stats.busy),
            ("flash_forgotten", stats.forgotten),
            ("flash_reinserted", stats.reinserted),
            ("flash_read_bytes", stats.read_bytes),
            ("flash_written_bytes", stats.written_bytes),
            ("flash_read_errors", stats.read_errors),
            ("flash_damaged", stats.damaged),
            ("flash_write_errors", stats.write_errors),
            ("flash_retired_regions", stats.retired_regions),
            ("flash_failed", stats.is_failed.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Cache, Millis, Options};
    use rackpool_flash::FlashAdmission;
    use rackpool_mem::temporary::TemporaryDir;
    use rackpool_stats::random::Rng;
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;

    const NOW: Millis = 1_000;
    const COUNT: u32 = 20_000;

    fn opened(path: &Path) -> (Cache, Arc<Flash>) {
        let admission = FlashAdmission { rejects_first: false, ..FlashAdmission::default() };
        let options = rackpool_flash::Options::new(path, 128 << 20);
        let options = rackpool_flash::Options { admission, seed: 7, ..options };
        let (flash, _) = Flash::open(options).unwrap();
        let (seed, memory) = (flash.seed(), 4 << 20);
        let flash = Arc::new(flash);
        let cache = Cache::new(Options { memory, seed, ..Options::default() }).unwrap();
        (cache.with_backing(Arc::new(FlashTier::new(Arc::clone(&flash)))), flash)
    }

    fn key(number: u32) -> [u8; 4] {
        number.to_le_bytes()
    }

    fn key_of(number: u64) -> [u8; 4] {
        key(number as u32)
    }

    /// Looks in memory and behind it.
    fn get(cache: &Cache, number: u32) -> Option<Vec<u8>> {
        if cache.lies_behind(&key(number), NOW) {
            let (done, is_done) = mpsc::channel();
            cache.fetch(&key(number), || NOW, move || done.send(()).unwrap());
            is_done.recv().unwrap();
        }
        let read = |item: &crate::cache::Item<'_>| {
            let mut value = Vec::new();
            item.append_to(&mut value).map(|()| value)
        };
        cache.get(&key(number), NOW, read).map(|value| value.unwrap())
    }

    #[test]
    fn a_cache_is_larger_than_its_memory_and_what_was_changed_stays_so_after_a_restart() {
        let folder = TemporaryDir::new(&std::env::temp_dir(), "flashtier").unwrap();
        let path = folder.path().join("flash");
        let (cache, flash) = opened(&path);
        for number in 0..COUNT {
            cache.set(&key(number), &[number as u8; 1000], 0, 0, NOW).unwrap();
            // As slow as the device.
            if number % 500 == 0 {
                flash.sync().unwrap();
            }
        }
        let in_memory = (0..COUNT).filter(|n| cache.get(&key(*n), NOW, |_| ()).is_some()).count();
        assert!(in_memory < COUNT as usize / 4, "{in_memory}");
        let found = (0..COUNT).filter(|number| match get(&cache, *number) {
            None => false,
            Some(value) => {
                assert_eq!(value, [*number as u8; 1000]);
                true
            }
        });
        let found = found.count();
        assert!(found > COUNT as usize * 9 / 10, "{found}: {:?}", flash.stats());
        for number in (0..COUNT).step_by(2) {
            match number % 4 {
                0 => drop(cache.remove(&key(number), NOW)),
                _ => drop(cache.set(&key(number), b"new", 0, 0, NOW).unwrap()),
            }
        }
        drop((cache, flash));
        let (cache, flash) = opened(&path);
        let mut old = 0;
        for number in 0..COUNT {
            match (number % 4, get(&cache, number)) {
                (_, None) => {}
                (2, Some(value)) => assert_eq!(value, b"new"),
                (1 | 3, Some(value)) => {
                    assert_eq!(value, [number as u8; 1000]);
                    old += 1;
                }
                (_, Some(_)) => panic!("{number} was removed"),
            }
        }
        assert!(old > COUNT / 4, "{old}: {:?}", flash.stats());
    }

    const KEYS: u64 = 20_000;
    const STEPS: u64 = 50_000;

    /// The version that a value has all over.
    fn version_of(value: &[u8]) -> u64 {
        let (words, _) = value.as_chunks::<8>();
        assert!(words.len() == 125 && words.iter().all(|word| *word == words[0]));
        u64::from_le_bytes(words[0])
    }

    #[test]
    fn no_thread_finds_what_was_changed_before_it_asked_nor_does_a_later_process() {
        let folder = TemporaryDir::new(&std::env::temp_dir(), "flashtier").unwrap();
        let opened = || {
            let admission = FlashAdmission { rejects_first: false, ..FlashAdmission::default() };
            let options = rackpool_flash::Options::new(folder.path().join("flash"), 40 << 20);
            let (region_bytes, batch_bytes) = (2 << 20, 256 << 10);
            let options = rackpool_flash::Options { region_bytes, batch_bytes, ..options };
            let options = rackpool_flash::Options { admission, seed: 7, ..options };
            let flash = Arc::new(Flash::open(options).unwrap().0);
            let (seed, memory, partitions) = (flash.seed(), 8 << 20, 2);
            let options = Options { memory, seed, partitions, ..Options::default() };
            let cache = Cache::new(options).unwrap().with_shared_reads(true);
            (cache.with_backing(Arc::new(FlashTier::new(Arc::clone(&flash)))), flash)
        };
        let (cache, flash) = opened();
        // Each change, of which some are removals, is a version.
        let versions: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        let is_removal = |key: u64, version: u64| (key + version).is_multiple_of(4);
        std::thread::scope(|scope| {
            for index in 0..2 {
                let (cache, versions) = (&cache, &versions);
                scope.spawn(move || {
                    let mut random = Rng::new(index + 1);
                    for _ in 0..STEPS {
                        let key = random.below(KEYS / 2) * 2 + index;
                        let at = &versions[key as usize];
                        // Relaxed: only this thread stores it.
                        let version = at.load(Ordering::Relaxed) + 1;
                        if is_removal(key, version) {
                            cache.remove(&key_of(key), NOW);
                        } else {
                            let value = version.to_le_bytes().repeat(125);
                            cache.set(&key_of(key), &value, 0, 0, NOW).unwrap();
                        }
                        // Release: pairs with the Acquire of those that read.
                        at.store(version, Ordering::Release);
                    }
                });
                scope.spawn(move || {
                    let mut random = Rng::new(index + 11);
                    for _ in 0..STEPS {
                        let key = random.below(KEYS);
                        // Acquire: pairs with the Release above.
                        let least = versions[key as usize].load(Ordering::Acquire);
                        if let Some(value) = get(cache, key as u32) {
                            assert!(version_of(&value) >= least, "{key}");
                        }
                    }
                });
            }
        });
        let stats = flash.stats();
        println!("{stats:?}");
        assert!(stats.hits > 1000 && stats.forgotten > 1000 && stats.read_errors == 0);
        drop((cache, flash));
        let (cache, _flash) = opened();
        let mut found = 0;
        for key in 0..KEYS {
            let Some(value) = get(&cache, key as u32) else { continue };
            // Relaxed: the threads have ended.
            let version = versions[key as usize].load(Ordering::Relaxed);
            assert!(version_of(&value) == version && !is_removal(key, version), "{key}");
            found += 1;
        }
        assert!(found > 1000, "{found}");
    }
}
