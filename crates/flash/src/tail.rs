//! The end of the log that is not on the device yet: a batch that is filled, batches that wait, and
//! one that is being written. All of it can be read.
//!
//! In: records, from any thread, under the tail's lock. Out: batches, for the thread that writes.
//! Ordering rule: the order of records here is that of the log. What was forgotten goes into it
//! before any record that comes later.

use crate::constants::{BATCHES_MAX, RECORD_BYTES_MAX};
use crate::index::IndexWord;
use crate::journal::{Gone, GoneJournal};
use crate::layout::{
    BATCH_HEADER_BYTES, BatchHeader, FlashRecord, RECORD_ALIGN, RECORD_HEADER_BYTES, RecordKind,
    blocks,
};
use rackpool_mem::direct::AlignedBytes;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Numbers of batches that a word tells apart.
const NUMBER_MASK: u64 = (1 << 24) - 1;
/// Memory of batches that is kept for the next ones.
const SPARE_MAX: usize = BATCHES_MAX;

/// An item in a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchItem {
    pub hash: u64,
    pub at: u32,
    pub bytes: u32,
}

impl BatchItem {
    pub fn word_in(&self, batch: u64) -> IndexWord {
        IndexWord::pending(batch, self.at as usize, self.bytes as usize)
    }
}

#[derive(Debug)]
pub(crate) struct LogBatch {
    pub number: u64,
    bytes: AlignedBytes,
    used: usize,
    records: u32,
    pub items: Vec<BatchItem>,
    /// What was forgotten up to this number is in the log up to here.
    pub forgotten: u64,
    /// When its first record came.
    began: Option<Instant>,
}

impl LogBatch {
    fn new(number: u64, bytes: AlignedBytes) -> LogBatch {
        let (used, records, items) = (BATCH_HEADER_BYTES, 0, Vec::new());
        LogBatch { number, bytes, used, records, items, forgotten: 0, began: None }
    }

    /// As it goes to the device.
    pub fn written(&self) -> &[u8] {
        &self.bytes[..blocks(self.used)]
    }

    /// Of a header only the place in the log is given.
    pub fn seal(&mut self, header: BatchHeader) {
        let bytes = blocks(self.used);
        self.bytes[self.used..bytes].fill(0);
        let (records, forgotten) = (self.records, self.forgotten);
        let header = BatchHeader { bytes: bytes as u32, records, forgotten, ..header };
        header.write(&mut self.bytes);
    }
}

/// Told whether a batch is on the device.
pub(crate) struct WrittenTold {
    batch: u64,
    told: Box<dyn FnOnce(bool) + Send>,
}

impl fmt::Debug for WrittenTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrittenTold({})", self.batch)
    }
}

impl WrittenTold {
    pub fn tell(self, written: u64) {
        (self.told)(self.batch <= written);
    }
}

#[derive(Debug)]
pub(crate) struct Tail {
    open: LogBatch,
    sealed: VecDeque<LogBatch>,
    writing: Option<Arc<LogBatch>>,
    spare: Vec<AlignedBytes>,
    batch_bytes: usize,
    capacity: usize,
    /// What was forgotten up to this number is in here, or in the log.
    forgotten: u64,
    /// Batches up to this number are on the device.
    pub written: u64,
    /// Batches up to this number are waited for.
    pub wanted: u64,
    waiting_for: Vec<WrittenTold>,
    pub is_failed: bool,
    pub is_closing: bool,
    /// Of a store: whether regions are emptied first.
    pub is_tight: bool,
}

impl Tail {
    /// How many bytes the longest batch has in the log.
    pub fn capacity(batch_bytes: usize) -> usize {
        blocks(BATCH_HEADER_BYTES + batch_bytes + RECORD_BYTES_MAX)
    }

    pub fn new(batch_bytes: usize, forgotten: u64) -> Tail {
        let capacity = Tail::capacity(batch_bytes);
        Tail {
            open: LogBatch::new(1, AlignedBytes::zeroed(capacity)),
            sealed: VecDeque::new(),
            writing: None,
            spare: Vec::new(),
            batch_bytes,
            capacity,
            forgotten,
            written: 0,
            wanted: 0,
            waiting_for: Vec::new(),
            is_failed: false,
            is_closing: false,
            is_tight: false,
        }
    }

    /// Whether nothing more is taken for now.
    pub fn is_full(&self, batches_max: usize) -> bool {
        // What takes no room may always come.
        batches_max < usize::MAX && (self.is_tight || self.sealed.len() >= batches_max)
    }

    /// Has it called when a batch is on the device, or never will be.
    pub fn tell(&mut self, batch: u64, told: Box<dyn FnOnce(bool) + Send>) {
        self.wanted = self.wanted.max(batch);
        self.waiting_for.push(WrittenTold { batch, told });
    }

    /// Those that are to be called now: with no lock held.
    pub fn take_told(&mut self) -> Vec<WrittenTold> {
        let is_over = self.is_closing && self.waiting() == 0 && self.open.records == 0;
        if self.is_failed || is_over {
            return std::mem::take(&mut self.waiting_for);
        }
        let written = self.written;
        self.waiting_for.extract_if(.., |one| one.batch <= written).collect()
    }

    pub fn waiting(&self) -> usize {
        self.sealed.len() + usize::from(self.writing.is_some())
    }

    /// Takes what was forgotten since the last time.
    pub fn take_forgotten(&mut self, journal: &GoneJournal) {
        for (number, gone) in journal.since(self.forgotten) {
            let (hash, kind) = match gone {
                Gone::Item(hash) => (hash, RecordKind::Forget),
                Gone::All => (0, RecordKind::ForgetAll),
            };
            // In this batch, of which `forgotten` is said, and in no later one.
            self.make_room(RECORD_ALIGN);
            self.forgotten = number;
            self.append_gone(hash, kind);
        }
    }

    /// Says that an item is gone, or all are; the number of its batch.
    pub fn append_gone(&mut self, hash: u64, kind: RecordKind) -> u64 {
        let nothing: &[u8] = &[];
        let (key, value) = (nothing, nothing);
        let record = FlashRecord { hash, key, value, flags: 0, kind: 0, expires: 0, cas: 0 };
        self.append(&record, &record.header(kind));
        self.last_number()
    }

    /// Where the next record of so many bytes will lie.
    pub fn next_word(&mut self, bytes: usize) -> IndexWord {
        self.make_room(bytes);
        IndexWord::pending(self.open.number, self.open.used, bytes)
    }

    /// Appends an item; where it lies, and the number of its batch.
    pub fn append_item(
        &mut self,
        record: &FlashRecord<'_>,
        header: &[u8; RECORD_HEADER_BYTES],
    ) -> (IndexWord, u64) {
        let bytes = record.bytes();
        let word = self.next_word(bytes);
        let item = BatchItem { hash: record.hash, at: self.open.used as u32, bytes: bytes as u32 };
        self.open.items.push(item);
        let number = self.open.number;
        self.append(record, header);
        (word, number)
    }

    fn append(&mut self, record: &FlashRecord<'_>, header: &[u8; RECORD_HEADER_BYTES]) {
        let bytes = record.bytes();
        self.make_room(bytes);
        let open = &mut self.open;
        record.write(header, &mut open.bytes[open.used..]);
        open.used += bytes;
        open.records += 1;
        open.began.get_or_insert_with(Instant::now);
        if open.used >= self.batch_bytes {
            self.seal();
        }
    }

    fn make_room(&mut self, bytes: usize) {
        if self.open.used + bytes > self.capacity {
            self.seal();
        }
    }

    /// The number of the batch with the last record.
    pub fn last_number(&self) -> u64 {
        self.open.number - u64::from(self.open.records == 0)
    }

    /// Has the batch written as it is, if there is anything in it; the number of the last one.
    pub fn seal(&mut self) -> u64 {
        if self.open.records > 0 {
            self.open.forgotten = self.forgotten;
            let bytes = self.spare.pop().unwrap_or_else(|| AlignedBytes::zeroed(self.capacity));
            let next = LogBatch::new(self.open.number + 1, bytes);
            self.sealed.push_back(std::mem::replace(&mut self.open, next));
        }
        self.last_number()
    }

    /// When the batch that is filled has got its first record.
    pub fn began(&self) -> Option<Instant> {
        self.open.began
    }

    /// Whether it is waited for the batch that is filled.
    pub fn is_wanted(&self) -> bool {
        self.wanted >= self.open.number && self.open.records > 0
    }

    pub fn has_sealed(&self) -> bool {
        !self.sealed.is_empty()
    }

    /// The next batch that is to be written; it can be read here meanwhile.
    pub fn take(&mut self) -> Option<Arc<LogBatch>> {
        let batch = Arc::new(self.sealed.pop_front()?);
        self.writing = Some(Arc::clone(&batch));
        Some(batch)
    }

    /// Gives the batch that is being written its place in the log. The caller has no other
    /// reference to it.
    pub fn place(&mut self, header: BatchHeader) -> Arc<LogBatch> {
        let batch = self.writing.as_mut().expect("a batch is being written");
        Arc::get_mut(batch).expect("it is the only reference").seal(header);
        Arc::clone(batch)
    }

    /// The batch that was being written and is given up.
    pub fn take_failed(&self) -> Arc<LogBatch> {
        Arc::clone(self.writing.as_ref().expect("a batch is being written"))
    }

    /// The batch that was being written is on the device, or is given up.
    pub fn finish(&mut self) {
        let Some(batch) = self.writing.take().and_then(Arc::into_inner) else { return };
        self.written = batch.number;
        if self.spare.len() < SPARE_MAX {
            self.spare.push(batch.bytes);
        }
    }

    /// What was forgotten behind this number has not come into the log: it is taken again.
    pub fn forget_again(&mut self, logged: u64) {
        self.forgotten = self.forgotten.min(logged);
        // Those that wait must not say that the log has it.
        self.sealed.iter_mut().for_each(|batch| batch.forgotten = batch.forgotten.min(logged));
    }

    /// The bytes of a record that is not on the device yet.
    pub fn read(&self, word: IndexWord) -> Option<Vec<u8>> {
        let batches = self.sealed.iter().chain(self.writing.as_deref()).chain([&self.open]);
        let at = word.place_in_batch();
        for batch in batches {
            let lies_here = IndexWord::pending(batch.number & NUMBER_MASK, at, word.bytes());
            if lies_here.place() == word.place() {
                return batch.bytes.get(at..at + word.bytes()).map(<[u8]>::to_vec);
            }
        }
        None
    }
}
