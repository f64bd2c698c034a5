//! Regions, and the thread that writes them: one batch after the other, each whole and, of a store,
//! durable before the next one begins. The region that was written first is emptied first.
//!
//! In: batches of the tail. Out: words of the index that name the device; free regions. A region
//! whose write fails gets no more batches and, once it is emptied, is not used again; its batch
//! goes to the next one.
//!
//! | If the process dies after | what is found |
//! |---|---|
//! | a part of a batch | the log up to the batch before it |
//! | a batch, before the index | the log with it |
//! | the start was moved, before a region is overwritten | the log without that region |
//! | a region was chosen, before its first batch | the log without it |
//!
//! Lock order: tail, journal, shard of the index.

use crate::constants::{FORGOTTEN_BATCH, FREE_REGIONS, FREE_REGIONS_TIGHT, HEAD_BYTES};
use crate::device::{self, FlashDevice, write_superblock};
use crate::error::Error;
use crate::index::{Index, IndexWord};
use crate::journal::GoneJournal;
use crate::layout::{BatchHeader, FlashSuperblock, RecordKind, RegionExtent, walk};
use crate::stats::FlashCounters;
use crate::tail::{LogBatch, Tail};
use rackpool_mem::direct::{AlignedBytes, BLOCK_BYTES};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Regions in a row that are tried for a batch.
const WRITE_TRIES: u32 = 3;
/// Share of a region that a cache writes once more, percent.
const REINSERT_PERCENT: u64 = 50;

#[derive(Debug)]
pub(crate) struct FlashShared {
    pub device: Box<dyn FlashDevice>,
    pub identity: u64,
    pub is_store: bool,
    pub region_bytes: u64,
    pub flush_after: Duration,
    pub index: Index,
    pub journal: Mutex<GoneJournal>,
    pub tail: Mutex<Tail>,
    /// For the thread that writes.
    pub news: Condvar,
    /// For those that wait for a batch.
    pub written: Condvar,
    pub counters: FlashCounters,
    pub emptied: AtomicU64,
    /// By region: whether a read of it has failed.
    pub is_bad: Box<[AtomicBool]>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FlashShared {
    pub fn region_at(&self, region: u32) -> u64 {
        HEAD_BYTES + u64::from(region) * self.region_bytes
    }

    /// A read in a region has failed: it is not to be written again.
    pub fn note_bad(&self, place: u64) {
        self.counters.read_errors.add(1);
        let region = (place - HEAD_BYTES) / self.region_bytes;
        // Relaxed: it is looked at long after, by the thread that writes.
        self.is_bad[region as usize].store(true, Ordering::Relaxed);
    }

    pub fn emptied(&self) -> u64 {
        // Relaxed: the lock of an index entry that was made since orders it.
        self.emptied.load(Ordering::Relaxed)
    }

    /// Tells those that wait for batches.
    fn tell(&self, mut tail: MutexGuard<'_, Tail>) {
        let (written, told) = (tail.written, tail.take_told());
        drop(tail);
        self.written.notify_all();
        told.into_iter().for_each(|one| one.tell(written));
    }

    fn is_bad(&self, region: u32) -> bool {
        // Relaxed: see `note_bad`.
        self.is_bad[region as usize].load(Ordering::Relaxed)
    }
}

/// A region that is part of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogRegion {
    pub region: u32,
    pub extent: RegionExtent,
    /// Whether it takes no writes any more.
    pub has_failed: bool,
}

#[derive(Debug)]
pub(crate) struct LogWriter {
    pub shared: Arc<FlashShared>,
    /// Regions of the log, the oldest first.
    pub live: VecDeque<LogRegion>,
    pub free: VecDeque<u32>,
    /// The one that is written, and the one before it in the log.
    pub open: Option<LogRegion>,
    pub previous: RegionExtent,
    pub next_sequence: u64,
    /// A region that is emptied, free when this batch is on the device.
    pub emptied: Option<(LogRegion, u64)>,
    pub buffer: AlignedBytes,
    /// As it was written last.
    pub superblock: FlashSuperblock,
}

impl LogWriter {
    /// Writes until the tail is closed and empty, or the device has failed; then says in the
    /// superblock that nothing is missing, if so.
    pub fn run(mut self) {
        while let Some(batch) = self.next_batch() {
            if !self.write(batch) {
                break;
            }
        }
        let shared = &self.shared;
        let mut tail = lock(&shared.tail);
        tail.is_closing = true;
        let is_whole = !tail.is_failed && lock(&shared.journal).is_logged();
        shared.tell(tail);
        if is_whole && shared.device.sync().is_ok() {
            let start = match shared.is_store {
                true => self.superblock.start,
                false => lock(&shared.journal).start(),
            };
            let version = self.superblock.version + 1;
            let open = self.open.map(|open| open.extent).filter(|extent| extent.bytes > 0);
            let end = open.unwrap_or(self.previous);
            let closed = FlashSuperblock { is_clean: true, start, version, end, ..self.superblock };
            // If it fails the log is one that was not closed in order.
            let _ = write_superblock(&*shared.device, &closed);
        }
    }

    fn next_batch(&mut self) -> Option<Arc<LogBatch>> {
        let shared = Arc::clone(&self.shared);
        loop {
            let is_tight = shared.is_store && self.is_tight();
            let mut tail = lock(&shared.tail);
            tail.is_tight = is_tight;
            if !tail.has_sealed() {
                tail.take_forgotten(&lock(&shared.journal));
            }
            if let Some(batch) = tail.take() {
                return Some(batch);
            }
            let waits_until = tail.began().map(|began| began + shared.flush_after);
            let left = waits_until.map(|until| until.saturating_duration_since(Instant::now()));
            if tail.is_closing || tail.is_wanted() || left.is_some_and(|left| left.is_zero()) {
                tail.seal();
                if tail.is_closing && tail.waiting() == 0 {
                    return None;
                }
                continue;
            }
            let waits = left.unwrap_or(shared.flush_after);
            let waited = shared.news.wait_timeout(tail, waits);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Of a store: empties a region if that is due; whether free ones are short.
    fn is_tight(&mut self) -> bool {
        if self.free.len() <= FREE_REGIONS {
            self.make_free();
        }
        self.free.len() < FREE_REGIONS_TIGHT
    }

    /// Writes a batch; whether the log goes on.
    fn write(&mut self, batch: Arc<LogBatch>) -> bool {
        let bytes = batch.written().len();
        drop(batch);
        for _ in 0..WRITE_TRIES {
            let Some(place) = self.place(bytes) else { break };
            if self.write_at(place) {
                return true;
            }
        }
        self.give_up()
    }

    /// Where the next batch of so many bytes goes.
    fn place(&mut self, bytes: usize) -> Option<LogRegion> {
        let fits = |open: &LogRegion| u64::from(open.extent.bytes) + bytes as u64;
        match self.open.filter(|open| fits(open) <= self.shared.region_bytes) {
            Some(open) => Some(open),
            None => self.open_next(),
        }
    }

    fn write_at(&mut self, open: LogRegion) -> bool {
        let header = BatchHeader {
            identity: self.shared.identity,
            sequence: open.extent.sequence,
            offset: open.extent.bytes,
            bytes: 0,
            previous: self.previous,
            records: 0,
            forgotten: 0,
        };
        let shared = Arc::clone(&self.shared);
        let batch = lock(&shared.tail).place(header);
        let at = shared.region_at(open.region) + u64::from(open.extent.bytes);
        let mut result = device::write(&*shared.device, at, batch.written());
        if result.is_ok() && shared.is_store {
            result = shared.device.sync();
        }
        if result.is_err() {
            shared.counters.write_errors.add(1);
            drop(batch);
            self.retire();
            return false;
        }
        let bytes = batch.written().len();
        shared.counters.written_bytes.add(bytes as u64);
        for item in &batch.items {
            let word = IndexWord::at(at + u64::from(item.at), item.bytes as usize);
            shared.index.repoint(item.hash, item.word_in(batch.number), word);
        }
        let forgotten = batch.forgotten;
        drop(batch);
        if let Some(open) = &mut self.open {
            open.extent.bytes += bytes as u32;
        }
        let mut tail = lock(&shared.tail);
        tail.finish();
        lock(&shared.journal).set_logged(forgotten);
        shared.tell(tail);
        true
    }

    /// The region that was written takes no writes any more; what it has stays until its turn.
    fn retire(&mut self) {
        let Some(open) = self.open.take() else { return };
        if open.extent.bytes == 0 {
            // Nothing of it is in the log.
            self.shared.counters.retired.add(1);
        } else {
            self.previous = open.extent;
            self.live.push_back(LogRegion { has_failed: true, ..open });
        }
    }

    /// A batch that no region takes: a cache loses it, a store takes no more.
    fn give_up(&mut self) -> bool {
        let shared = &self.shared;
        let mut tail = lock(&shared.tail);
        let has_regions = !self.free.is_empty()
            || !self.live.is_empty()
            || self.emptied.is_some()
            || self.open.is_some();
        if shared.is_store || !has_regions {
            // What waits can still be read.
            tail.is_failed = true;
            shared.tell(tail);
            return false;
        }
        let batch = tail.take_failed();
        for item in &batch.items {
            // What is said to have failed may be there after a restart.
            drop_item(shared, item.hash, item.word_in(batch.number));
        }
        shared.counters.dropped.add(batch.items.len() as u64);
        drop(batch);
        tail.finish();
        // With the batch went what it said to be gone.
        tail.forget_again(lock(&shared.journal).logged());
        shared.tell(tail);
        true
    }

    /// Opens a free region, after it has seen to it that there are enough.
    fn open_next(&mut self) -> Option<LogRegion> {
        if let Some(open) = self.open.take() {
            self.previous = open.extent;
            self.live.push_back(open);
        }
        self.make_free();
        let region = self.free.pop_front()?;
        let extent = RegionExtent { sequence: self.next_sequence, bytes: 0 };
        self.next_sequence += 1;
        self.open = Some(LogRegion { region, extent, has_failed: false });
        self.open
    }

    fn make_free(&mut self) {
        for _ in 0..=self.live.len() {
            if let Some((region, batch)) = self.emptied {
                // A cache may lose what it wrote once more.
                let must_go = self.free.is_empty() && !self.shared.is_store;
                if lock(&self.shared.tail).written < batch && !must_go {
                    return;
                }
                self.emptied = None;
                self.reuse(region);
            }
            if self.free.len() > FREE_REGIONS {
                return;
            }
            let Some(oldest) = self.live.pop_front() else { return };
            self.empty(oldest);
        }
    }

    fn reuse(&mut self, region: LogRegion) {
        let has_failed = region.has_failed || self.shared.is_bad(region.region);
        if has_failed || (self.shared.is_store && !self.move_start(region.extent.sequence + 1)) {
            self.shared.counters.retired.add(1);
        } else {
            self.free.push_back(region.region);
        }
    }

    /// Of a store: says that the log begins with this region now, before the one before it is
    /// overwritten: a torn write there is no damage.
    fn move_start(&mut self, start: u64) -> bool {
        let superblock =
            FlashSuperblock { start, version: self.superblock.version + 1, ..self.superblock };
        let is_written = write_superblock(&*self.shared.device, &superblock).is_ok();
        self.superblock = superblock;
        self.shared.counters.write_errors.add(u64::from(!is_written));
        is_written
    }

    /// Takes a region's items out of the index, or writes them once more.
    fn empty(&mut self, oldest: LogRegion) {
        let shared = Arc::clone(&self.shared);
        // Relaxed: see `FlashShared::emptied`.
        shared.emptied.fetch_add(1, Ordering::Relaxed);
        let (at, len) = (shared.region_at(oldest.region), oldest.extent.bytes as usize);
        if !shared.is_store {
            // Before the first item goes: what goes without a word in the log must not come back.
            lock(&shared.journal).set_start(oldest.extent.sequence + 1);
        }
        let mut buffer = std::mem::replace(&mut self.buffer, AlignedBytes::zeroed(0));
        let result = device::read(&*shared.device, at, &mut buffer[..len]);
        shared.counters.read_bytes.add(len as u64);
        let mut last = 0;
        let is_whole = result.is_ok() && self.empty_batches(oldest, &buffer[..len], &mut last);
        self.buffer = buffer;
        if !is_whole {
            shared.note_bad(at);
            if !shared.is_store {
                shared.index.remove_places(&(at..at + shared.region_bytes));
            }
            // What a store has there it keeps as long as it can be read.
        }
        self.emptied = Some((oldest, last));
    }

    fn empty_batches(&self, oldest: LogRegion, bytes: &[u8], last: &mut u64) -> bool {
        let shared = &*self.shared;
        let region_at = shared.region_at(oldest.region);
        let (mut at, mut budget) = (0, shared.region_bytes * REINSERT_PERCENT / 100);
        while at < bytes.len() {
            let header = BatchHeader::read(&bytes[at..], shared.identity, at as u32);
            let is_of = |header: &BatchHeader| header.sequence == oldest.extent.sequence;
            let Some(header) = header.filter(is_of) else { return false };
            let batch = &bytes[at..at + header.bytes as usize];
            let is_whole = walk(batch, header.records, |record_at, kind, record| {
                let place = region_at + (at + record_at) as u64;
                let here = IndexWord::at(place, record.bytes());
                let found = (kind == RecordKind::Item).then(|| shared.index.get(record.hash));
                let Some(found) = found.flatten().filter(|word| word.is_at(here)) else { return };
                let bytes = record.bytes() as u64;
                if shared.is_store || (found.is_used() && bytes <= budget) {
                    budget = budget.saturating_sub(bytes);
                    let mut tail = lock(&shared.tail);
                    let word = tail.next_word(record.bytes());
                    if shared.index.repoint(record.hash, here, word) {
                        let header = record.header(kind);
                        *last = tail.append_item(record, &header).1;
                        shared.counters.reinserted.add(1);
                    }
                } else {
                    shared.index.remove_at(record.hash, here);
                }
            });
            if !is_whole {
                return false;
            }
            at += header.bytes as usize;
        }
        // What was written once more goes before anything else waits for its region.
        if *last > 0 {
            lock(&shared.tail).seal();
        }
        true
    }
}

/// Of options: what a region must hold.
pub(crate) fn check_region(region_bytes: u64, batch_bytes: usize) -> Result<(), Error> {
    let least = Tail::capacity(batch_bytes) as u64;
    let is_whole = region_bytes.is_multiple_of(BLOCK_BYTES as u64);
    let max = u64::from(u32::MAX) / 2;
    if is_whole && (least..=max).contains(&region_bytes) {
        return Ok(());
    }
    Err(Error::BadOption { option: "region bytes", value: region_bytes, min: least, max })
}

/// What is gone and has no word in the log: it is noted until it has. Whether it is time that the
/// log has it.
pub(crate) fn forget_in(shared: &FlashShared, hash: u64) -> bool {
    let mut journal = lock(&shared.journal);
    if !journal.add(hash) {
        // The device does not keep up: rather is all gone than that one item comes back.
        shared.index.clear();
        journal.add_all();
    }
    journal.unlogged().is_multiple_of(FORGOTTEN_BATCH)
}

/// What cannot be read, or was not written, must not come back when it can again. That is noted
/// before it is not found any more: from then on its owner may change it without a word here.
pub(crate) fn drop_item(shared: &FlashShared, hash: u64, word: IndexWord) {
    if shared.index.get(hash).is_some_and(|found| found.is_at(word)) {
        forget_in(shared, hash);
        shared.index.remove_at(hash, word);
    }
}
