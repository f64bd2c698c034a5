//! A flash log as its owner sees it: what goes to it, what is gone, what is asked for.

use crate::admission::{FlashAdmission, FlashGhosts};
use crate::constants::{
    BATCHES_MAX, BATCHES_READY_MAX, BATCHES_STORED_MAX, FETCH_BATCH, FETCH_THREADS,
    FETCH_THREADS_WAITING, FREE_REGIONS, HEAD_BYTES, RECORD_BYTES_MAX, STORE_PERCENT,
};
use crate::device::FlashDevice;
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::fetch::FlashItem;
use crate::fetch::{FetchQueue, FlashFetched, ItemFetch, read};
use crate::index::Index;
use crate::journal::GoneJournal;
use crate::layout::{FlashRecord, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordKind, RegionExtent};
use crate::log::{FlashShared, LogRegion, LogWriter, forget_in, lock};
use crate::options::Options;
use crate::recover::{self, FlashRecovered};
use crate::stats::{FlashCounters, FlashStats};
use crate::tail::Tail;
use rackpool_mem::direct::{AlignedBytes, DirectFile};
use rackpool_mem::log::spawn;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What became of an item that left memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashPut {
    Taken,
    Kept,
    /// Admission refuses it, or it is too long.
    Refused,
    /// Too much waits to be written, or nothing is written any more.
    Dropped,
}

/// Where a store lies in the order of writes: to wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlashTicket(u64);

impl FlashTicket {
    /// Grows from store to store.
    pub fn number(self) -> u64 {
        self.0
    }

    pub fn of_number(number: u64) -> FlashTicket {
        FlashTicket(number)
    }
}

/// A log of items on a file or block device. Several threads use it at once; of one hash only one
/// thread at a time puts, stores, removes or forgets.
#[derive(Debug)]
pub struct Flash {
    shared: Arc<FlashShared>,
    fetches: Arc<FetchQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    admission: FlashAdmission,
    ghosts: FlashGhosts,
    seed: u64,
    index_bytes: u64,
}

impl Flash {
    /// Opens what is at the path, or makes it; reads all of it. Blocks.
    ///
    /// # Errors
    /// [`Error::BadOption`]; [`Error::Io`], `StorageFull` where there is no room and `WouldBlock`
    /// where another process has it; [`Error::Foreign`], [`Error::Geometry`]; of a store
    /// [`Error::Damaged`].
    pub fn open(options: Options) -> Result<(Flash, FlashRecovered)> {
        let options = options.checked()?;
        recover::check_file(&options.path, &options.wanted())?;
        let what = format!("opening {}", options.path.display());
        let file = DirectFile::open(&options.path, options.bytes, options.calls)
            .map_err(Error::io(what))?;
        let options = options.for_device(&file)?;
        Flash::open_on(Box::new(file), options)
    }

    /// As [`Flash::open`], on any device of `options.bytes`; `options.batch_bytes` is given.
    ///
    /// # Errors
    /// As [`Flash::open`].
    pub fn open_on(
        device: Box<dyn FlashDevice>,
        options: Options,
    ) -> Result<(Flash, FlashRecovered)> {
        let options = options.checked()?;
        let journal = GoneJournal::open(options.journal.as_deref());
        let mut journal = journal.map_err(Error::io("opening the journal"))?;
        let index = Index::new(options.index_bytes).map_err(Error::io("memory for the index"))?;
        let found = recover::open(&*device, &options.wanted(), &mut journal, &index)?;
        let superblock = found.superblock.expect("an opened log has one");
        let regions = (options.bytes - HEAD_BYTES) / options.region_bytes;
        let forgotten = journal.logged();
        let shared = Arc::new(FlashShared {
            device,
            identity: superblock.identity,
            is_store: options.is_store,
            region_bytes: options.region_bytes,
            flush_after: options.flush_after,
            index,
            journal: Mutex::new(journal),
            tail: Mutex::new(Tail::new(options.batch_bytes, forgotten)),
            news: Condvar::new(),
            written: Condvar::new(),
            counters: FlashCounters::default(),
            emptied: AtomicU64::new(0),
            is_bad: (0..regions).map(|_| AtomicBool::new(false)).collect(),
        });
        let previous =
            found.live.back().map_or(RegionExtent::default(), |newest: &LogRegion| newest.extent);
        let writer = LogWriter {
            shared: Arc::clone(&shared),
            live: found.live,
            free: found.free,
            open: None,
            previous,
            next_sequence: found.next_sequence,
            emptied: None,
            buffer: AlignedBytes::zeroed(options.region_bytes as usize),
            superblock,
        };
        let flash = Flash {
            shared,
            fetches: Arc::default(),
            threads: Mutex::default(),
            admission: options.admission,
            ghosts: FlashGhosts::new(options.index_bytes / 16),
            seed: superblock.seed,
            index_bytes: options.index_bytes,
        };
        flash.start(writer)?;
        Ok((flash, found.recovered))
    }

    fn start(&self, writer: LogWriter) -> Result<()> {
        let mut threads = lock(&self.threads);
        let is_waiting = self.shared.device.is_waiting();
        let (count, at_once) =
            if is_waiting { (FETCH_THREADS_WAITING, 1) } else { (FETCH_THREADS, FETCH_BATCH) };
        for _ in 0..count {
            let (fetches, shared) = (Arc::clone(&self.fetches), Arc::clone(&self.shared));
            let thread = spawn("flash-read", move || fetches.serve(&shared, at_once));
            threads.push(thread.map_err(Error::io("starting a thread"))?);
        }
        let thread = spawn("flash-write", move || writer.run());
        threads.push(thread.map_err(Error::io("starting a thread"))?);
        Ok(())
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether an item of this hash is there. Waits for nothing.
    pub fn contains(&self, hash: u64) -> bool {
        self.shared.index.get(hash).is_some()
    }

    /// Whether what is there is still the item that was read with this
    /// [`version`](FlashItem::version). It may say no where an item was only moved.
    pub fn is_current(&self, hash: u64, version: u128) -> bool {
        let word = self.shared.index.get(hash);
        // At one place nothing else lies before its region was emptied, and others after it.
        let emptied = self.shared.emptied().wrapping_sub((version >> 64) as u64);
        emptied <= 1 && word.is_some_and(|word| word.version() == version as u64)
    }

    /// Takes an item that leaves memory, of which `was_read` says whether it was asked for there.
    /// One that is there already is its current value. Waits for nothing; copies it.
    pub fn put(&self, record: &FlashRecord<'_>, was_read: bool) -> FlashPut {
        let len = record.key.len() + record.value.len();
        match self.admits(record.hash, len, was_read) {
            FlashPut::Taken => self.put_admitted(record),
            refused => refused,
        }
    }

    /// Whether an item with so many bytes of key and value that leaves memory is to be given to
    /// [`Flash::put_admitted`]; else why not.
    pub fn admits(&self, hash: u64, bytes: usize, was_read: bool) -> FlashPut {
        let counters = &self.shared.counters;
        if self.contains(hash) {
            counters.kept.add(1);
            return FlashPut::Kept;
        }
        let fits = bytes <= RECORD_BYTES_MAX - RECORD_HEADER_BYTES - RECORD_ALIGN;
        // While there is room for all nothing goes for it.
        let has_room = self.shared.emptied() == 0;
        if !fits || !self.admission.admits(&self.ghosts, hash, bytes, was_read || has_room) {
            counters.refused.add(1);
            return FlashPut::Refused;
        }
        FlashPut::Taken
    }

    /// As [`Flash::put`], of an item that is admitted and not there.
    ///
    /// # Panics
    /// With one that is too long for admission.
    pub fn put_admitted(&self, record: &FlashRecord<'_>) -> FlashPut {
        let (counters, bytes) = (&self.shared.counters, record.bytes());
        assert!(bytes <= RECORD_BYTES_MAX, "{bytes} bytes are not admitted");
        let Ok(mut tail) = self.tail_for_more(BATCHES_MAX) else {
            counters.dropped.add(1);
            return FlashPut::Dropped;
        };
        let header = record.header(RecordKind::Item);
        self.make_slot(record.hash);
        let word = tail.append_item(record, &header).0;
        let gone = self.shared.index.insert(record.hash, word);
        assert!(gone.is_none(), "there is a slot for it, and none is taken but under this lock");
        let has_sealed = tail.waiting() > 0;
        drop(tail);
        if has_sealed {
            self.shared.news.notify_one();
        }
        counters.admitted.add(1);
        counters.admitted_bytes.add(bytes as u64);
        FlashPut::Taken
    }

    /// Makes a slot in the index for an item, under the lock of the tail. What has to go for it is
    /// noted to be gone first: once it is not found its owner may change it without a word here.
    fn make_slot(&self, hash: u64) {
        if let Some(victim) = self.shared.index.victim(hash) {
            forget_in(&self.shared, victim);
            self.shared.index.remove(victim);
            self.shared.counters.dropped.add(1);
        }
    }

    /// The tail, with room for more, after what was forgotten.
    fn tail_for_more(&self, batches_max: usize) -> Result<MutexGuard<'_, Tail>> {
        let mut tail = lock(&self.shared.tail);
        if tail.is_failed || tail.is_closing {
            return Err(Error::Failed { retired: self.shared.counters.retired.get() });
        }
        if tail.is_full(batches_max) {
            return Err(Error::Busy { waiting: tail.waiting() });
        }
        tail.take_forgotten(&lock(&self.shared.journal));
        Ok(tail)
    }

    /// An item of this hash has changed or is gone: what is here does not come back, not after a
    /// restart either. Whether there was any. Waits for nothing.
    pub fn forget(&self, hash: u64) -> bool {
        let was_there = self.shared.index.remove(hash).is_some();
        if was_there {
            if forget_in(&self.shared, hash) {
                // The thread that writes waits by now, or has not looked yet.
                drop(lock(&self.shared.tail));
                self.shared.news.notify_one();
            }
            self.shared.counters.forgotten.add(1);
        }
        was_there
    }

    /// As [`Flash::forget`] of all items; of a store durable after [`Flash::wait`].
    pub fn forget_all(&self) -> FlashTicket {
        let mut tail = lock(&self.shared.tail);
        let mut journal = lock(&self.shared.journal);
        self.shared.index.clear();
        journal.add_all();
        tail.take_forgotten(&journal);
        FlashTicket(tail.last_number())
    }

    /// Whether nothing may be lost.
    pub fn is_store(&self) -> bool {
        self.shared.is_store
    }

    /// Stores an item; durable after [`Flash::wait`].
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Full`]; [`Error::Busy`]; [`Error::Failed`].
    ///
    /// # Panics
    /// If it is no store.
    pub fn store(&self, record: &FlashRecord<'_>) -> Result<FlashTicket> {
        assert!(self.shared.is_store, "it may lose items");
        let bytes = record.bytes();
        if bytes > RECORD_BYTES_MAX {
            return Err(Error::TooLarge { bytes, max_bytes: RECORD_BYTES_MAX });
        }
        let header = record.header(RecordKind::Item);
        let mut tail = self.tail_for_more(BATCHES_STORED_MAX)?;
        let (_, live_bytes) = self.shared.index.sums();
        // Those that are kept free, and the one that is emptied, hold nothing for long.
        let regions = (self.shared.is_bad.len() - FREE_REGIONS - 1) as u64;
        let limit = regions * self.shared.region_bytes / 100 * STORE_PERCENT;
        let is_full = live_bytes + bytes as u64 > limit;
        if is_full || !self.shared.index.has_room(record.hash) {
            return Err(Error::Full { bytes: live_bytes });
        }
        let (word, batch) = tail.append_item(record, &header);
        let gone = self.shared.index.insert(record.hash, word);
        assert!(gone.is_none(), "there was room for it");
        self.shared.counters.admitted.add(1);
        self.shared.counters.admitted_bytes.add(bytes as u64);
        Ok(FlashTicket(batch))
    }

    /// Removes an item of a store; `None` if there is none. Durable after [`Flash::wait`].
    ///
    /// # Errors
    /// [`Error::Busy`]; [`Error::Failed`].
    ///
    /// # Panics
    /// If it is no store.
    pub fn remove(&self, hash: u64) -> Result<Option<FlashTicket>> {
        assert!(self.shared.is_store, "it may lose items");
        // A few bytes, by which room comes.
        let mut tail = self.tail_for_more(usize::MAX)?;
        if self.shared.index.remove(hash).is_none() {
            return Ok(None);
        }
        self.shared.counters.forgotten.add(1);
        Ok(Some(FlashTicket(tail.append_gone(hash, RecordKind::Forget))))
    }

    /// Waits until a store or a removal is on the device and, of a store, durable. Those of other
    /// threads go with it.
    ///
    /// # Errors
    /// [`Error::Failed`]: whether it is there after a restart is not known.
    pub fn wait(&self, ticket: FlashTicket) -> Result<()> {
        let shared = &self.shared;
        let mut tail = lock(&shared.tail);
        tail.wanted = tail.wanted.max(ticket.0);
        shared.news.notify_one();
        while tail.written < ticket.0 {
            if tail.is_failed || (tail.is_closing && tail.waiting() == 0) {
                return Err(Error::Failed { retired: shared.counters.retired.get() });
            }
            tail = shared.written.wait(tail).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Has `told` called when a store or a removal is durable (`true`), or never may be. Waits for
    /// nothing.
    pub fn when_durable(&self, ticket: FlashTicket, told: impl FnOnce(bool) + Send + 'static) {
        let mut tail = lock(&self.shared.tail);
        tail.tell(ticket.0, Box::new(told));
        let (written, now) = (tail.written, tail.take_told());
        drop(tail);
        self.shared.news.notify_one();
        now.into_iter().for_each(|one| one.tell(written));
    }

    /// The store for which more should wait, as much waits to be written or room is short: one that
    /// is durable means that room comes in a moment.
    pub fn behind(&self) -> Option<FlashTicket> {
        let tail = lock(&self.shared.tail);
        let (waiting, is_tight) = (tail.waiting(), tail.is_tight);
        let is_behind = waiting > BATCHES_READY_MAX || is_tight;
        is_behind.then(|| FlashTicket(tail.written + u64::from(waiting > 0)))
    }

    /// Waits until all that was put, stored and forgotten is on the device.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn sync(&self) -> Result<()> {
        let mut tail = lock(&self.shared.tail);
        tail.take_forgotten(&lock(&self.shared.journal));
        let last = tail.seal();
        drop(tail);
        self.wait(FlashTicket(last))
    }

    /// Reads an item. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(&self, hash: u64, key: &[u8]) -> FlashFetched {
        let found = read(&self.shared, &[(hash, key)]).pop();
        found.expect("there is a result for each that is wanted")
    }

    /// Has an item read, and `done` called with it by the thread that did. Waits for nothing.
    ///
    /// # Errors
    /// [`Error::Busy`]: `done` is not called.
    pub fn fetch(
        &self,
        hash: u64,
        key: &[u8],
        done: impl FnOnce(FlashFetched) + Send + 'static,
    ) -> Result<()> {
        let fetch = ItemFetch { hash, key: key.into(), done: Box::new(done) };
        self.fetches.push(fetch).inspect_err(|_| self.shared.counters.busy.add(1))
    }

    pub fn stats(&self) -> FlashStats {
        let (shared, counters) = (&self.shared, &self.shared.counters);
        let (items, live_bytes) = shared.index.sums();
        FlashStats {
            items,
            live_bytes,
            bytes: shared.is_bad.len() as u64 * shared.region_bytes,
            index_bytes: self.index_bytes,
            admitted: counters.admitted.get(),
            admitted_bytes: counters.admitted_bytes.get(),
            refused: counters.refused.get(),
            dropped: counters.dropped.get(),
            kept: counters.kept.get(),
            hits: counters.hits.get(),
            misses: counters.misses.get(),
            busy: counters.busy.get(),
            forgotten: counters.forgotten.get(),
            read_bytes: counters.read_bytes.get(),
            written_bytes: counters.written_bytes.get(),
            reinserted: counters.reinserted.get(),
            read_errors: counters.read_errors.get(),
            damaged: counters.damaged.get(),
            write_errors: counters.write_errors.get(),
            retired_regions: counters.retired.get(),
            is_failed: lock(&shared.tail).is_failed,
        }
    }

    /// Writes what waits, and ends in order: what is there is found again without a journal. Reads
    /// that wait are done; nothing is taken after it. Blocks.
    pub fn close(&self) {
        self.fetches.end();
        lock(&self.shared.tail).is_closing = true;
        self.shared.news.notify_all();
        let here = std::thread::current().id();
        for thread in lock(&self.threads).drain(..).filter(|one| one.thread().id() != here) {
            // One that panicked has said so. The last owner may be a call of a reading thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Flash {
    fn drop(&mut self) {
        self.close();
    }
}
