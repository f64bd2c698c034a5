//! Changing: build the bucket's next blob, write it, swap the word, free what the old one held.
//! Until the swap everything is the operation's own draft and is given back if it fails; from the
//! swap on the operation is done, whatever happens to the cleaning up.

use crate::blob::{BlobEntry, BlobValue, ExternalValue, alloc_bytes, blob_bytes_of};
use crate::constants::{
    ATTEMPTS_MAX, BLOB_BYTES_MAX, FREES_PENDING_MAX, INLINE_VALUE_BYTES_MAX, LEVEL_MAX,
    LOAD_PERCENT, SAMPLE_SHIFT, VALUE_BYTES_MAX,
};
use crate::error::{Error, Result};
use crate::header::{COUNT_OFFSET, LEVEL_OFFSET};
use crate::index::{BucketContent, BucketView, Swap};
use crate::read::{Intent, ValueVersion, check_key, pause};
use crate::words::{ErrorKind, GAddr, Words};
use crate::{Table, low_bits};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    Absent,
    Present,
    Any,
    /// If the key has a value of this version, or none.
    If(Option<ValueVersion>),
}

pub(super) struct EntryWrite<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub mode: WriteMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Refused,
    Created,
    Replaced,
}

/// What an operation has allocated and not published.
#[derive(Debug, Default)]
pub(super) struct UnpublishedBlob {
    /// Allocated before the bucket's word was read for the attempt that uses it.
    pub blob: Option<(GAddr, u64)>,
    pub far: Option<ExternalValue>,
}

impl Table {
    /// Adds `key`; `false`, and nothing happens, if it is in the table.
    pub fn insert<W: Words>(&mut self, mem: &mut W, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.store(mem, key, value, WriteMode::Absent)? != WriteOutcome::Refused)
    }

    /// Replaces the value of `key`; `false`, and nothing happens, if it is not in the table.
    pub fn update<W: Words>(&mut self, mem: &mut W, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.store(mem, key, value, WriteMode::Present)? != WriteOutcome::Refused)
    }

    /// Adds `key` or replaces its value; `true` if it was added.
    pub fn put<W: Words>(&mut self, mem: &mut W, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.store(mem, key, value, WriteMode::Any)? == WriteOutcome::Created)
    }

    /// Removes `key`; `false` if it is not in the table.
    pub fn delete<W: Words>(&mut self, mem: &mut W, key: &[u8]) -> Result<bool> {
        check_key(key)?;
        let hash = self.hash(key);
        self.attempt(mem, hash, |table, mem, draft| {
            let view = table.find(mem, hash, Intent::Write)?;
            table.remove_entry(mem, &view, hash, key, draft)
        })
    }

    /// Keys in the table, estimated from a sample of one in 64: one access.
    pub fn len_estimate<W: Words>(&mut self, mem: &mut W) -> Result<u64> {
        let sampled = mem.read_u64(GAddr(self.header.0 + COUNT_OFFSET))? as i64;
        Ok((sampled.max(0) as u64) << SAMPLE_SHIFT)
    }

    pub(super) fn store<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        value: &[u8],
        mode: WriteMode,
    ) -> Result<WriteOutcome> {
        check_key(key)?;
        check_value(value)?;
        let write = EntryWrite { key, value, mode };
        let hash = self.hash(key);
        self.attempt(mem, hash, |table, mem, draft| table.store_once(mem, &write, hash, draft))
    }

    /// Runs an operation as one change, until it has not found its bucket changed meanwhile.
    pub(super) fn attempt<W: Words, T>(
        &mut self,
        mem: &mut W,
        hash: u64,
        mut once: impl FnMut(&mut Self, &mut W, &mut UnpublishedBlob) -> Result<Option<T>>,
    ) -> Result<T> {
        self.change(mem, |table, mem| {
            table.flush_frees(mem);
            table.retry(mem, hash, UnpublishedBlob::default(), &mut once)
        })
    }

    /// As [`Table::attempt`], in a change, with what was allocated before.
    pub(super) fn retry<W: Words, T>(
        &mut self,
        mem: &mut W,
        hash: u64,
        mut draft: UnpublishedBlob,
        mut once: impl FnMut(&mut Self, &mut W, &mut UnpublishedBlob) -> Result<Option<T>>,
    ) -> Result<T> {
        for attempt in 0..ATTEMPTS_MAX {
            pause(attempt);
            if let Some(done) = once(self, mem, &mut draft).transpose() {
                self.discard(mem, draft);
                return done;
            }
        }
        self.discard(mem, draft);
        Err(Error::Contended { bucket: low_bits(hash, self.level), attempts: ATTEMPTS_MAX })
    }

    /// One attempt; `None` if the bucket changed meanwhile.
    pub(super) fn store_once<W: Words>(
        &mut self,
        mem: &mut W,
        write: &EntryWrite<'_>,
        hash: u64,
        draft: &mut UnpublishedBlob,
    ) -> Result<Option<WriteOutcome>> {
        self.reserve(mem, hash, write, draft)?;
        let view = self.find(mem, hash, Intent::Grow)?;
        let old = self.blob(&view)?.find(write.key);
        let is_wanted = match write.mode {
            WriteMode::Absent => old.is_none(),
            WriteMode::Present => old.is_some(),
            WriteMode::Any => true,
            WriteMode::If(version) => old.map(|old| self.version_in(old)) == version,
        };
        if !is_wanted {
            return Ok(Some(WriteOutcome::Refused));
        }
        self.set_entry(mem, &view, hash, write, draft)
    }

    /// Sets the value of a key in its bucket, which is in the buffer; `None` if the bucket changed
    /// meanwhile.
    pub(super) fn set_entry<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
        hash: u64,
        write: &EntryWrite<'_>,
        draft: &mut UnpublishedBlob,
    ) -> Result<Option<WriteOutcome>> {
        let &EntryWrite { key, value, .. } = write;
        let old = self.blob(view)?.find(key).map(external_of);
        let far = if draft.far.is_some() || value.len() > INLINE_VALUE_BYTES_MAX {
            Some(self.write_external(mem, value, draft)?)
        } else {
            None
        };
        let new =
            BlobEntry { key, value: far.map_or(BlobValue::Inline(value), BlobValue::External) };
        self.build_without(view, key)?;
        self.low.push(new);
        self.check_fits(view.bucket)?;
        if !self.commit(mem, view, draft)? {
            return Ok(None);
        }
        draft.far = None;
        self.free_replaced(mem, view, old.flatten());
        if old.is_some() {
            return Ok(Some(WriteOutcome::Replaced));
        }
        self.count(mem, hash, 1);
        Ok(Some(WriteOutcome::Created))
    }

    /// Takes a key out of its bucket, which is in the buffer; `None` if the bucket changed
    /// meanwhile.
    pub(super) fn remove_entry<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
        hash: u64,
        key: &[u8],
        draft: &mut UnpublishedBlob,
    ) -> Result<Option<bool>> {
        let blob = self.blob(view)?;
        let Some(old) = blob.find(key) else { return Ok(Some(false)) };
        let old = external_of(old);
        let depth = blob.depth();
        let done = if blob.count() == 1 {
            match self.index.replace(mem, view, BucketContent::Empty(depth))? {
                Swap::Done(after) => {
                    self.seen.put(after.bucket, after.word);
                    true
                }
                Swap::Lost => false,
                Swap::Unknown => return Err(Error::OutcomeUnknown { operation: "delete" }),
            }
        } else {
            self.build_without(view, key)?;
            self.commit(mem, view, draft)?
        };
        if !done {
            return Ok(None);
        }
        self.free_replaced(mem, view, old);
        self.count(mem, hash, -1);
        Ok(Some(true))
    }

    /// Allocates a blob of the size that a write will likely need, before the bucket's word is
    /// read, so that it need not be read again. In a full pool the write goes on without: perhaps
    /// it needs none.
    pub(super) fn reserve<W: Words>(
        &self,
        mem: &mut W,
        hash: u64,
        write: &EntryWrite<'_>,
        draft: &mut UnpublishedBlob,
    ) -> Result<()> {
        if draft.blob.is_some() {
            return Ok(());
        }
        let alone = blob_bytes_of(write.key, write.value.len());
        let seen = self.seen.get(low_bits(hash, self.level));
        let before = seen.filter(|word| word.empty_depth().is_none());
        let before = before.map_or(0, |word| word.hint_bytes().0);
        let bytes = alloc_bytes(match write.mode {
            WriteMode::Absent => before + alone,
            // Likely the key was there, and its value as long.
            _ => before.max(alone),
        });
        match mem.alloc(bytes, self.entry_placement) {
            Ok(addr) => draft.blob = Some((addr, bytes)),
            Err(error) if matches!(error.kind(), ErrorKind::Full | ErrorKind::Invalid) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) fn check_fits(&self, bucket: u64) -> Result<()> {
        let (bytes, limit_bytes) = (self.low.len() as u64, BLOB_BYTES_MAX as u64);
        if self.low.fits() { Ok(()) } else { Err(Error::BucketFull { bucket, bytes, limit_bytes }) }
    }

    /// Begins the bucket's next blob with all entries but `key`.
    pub(super) fn build_without(&mut self, view: &BucketView, key: &[u8]) -> Result<()> {
        let mut low = std::mem::take(&mut self.low);
        let built = self.blob(view).map(|blob| {
            low.start(blob.depth());
            blob.entries().filter(|entry| entry.key != key).for_each(|entry| low.push(entry));
        });
        self.low = low;
        built
    }

    /// Writes the blob that was built and swaps the word; `false` if the bucket changed
    /// meanwhile. Then the memory stays in the draft for the next attempt.
    fn commit<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
        draft: &mut UnpublishedBlob,
    ) -> Result<bool> {
        let bytes = alloc_bytes(self.low.len());
        let addr = match draft.blob {
            // Allocated before this attempt read the word.
            Some((addr, had)) if had == bytes => addr,
            _ => {
                let addr = self.reallocate(mem, bytes, draft)?;
                if !self.index.is_still(mem, view)? {
                    return Ok(false);
                }
                addr
            }
        };
        let stamp = self.stamp(view.bucket, view.seq() + 1);
        if let Err(error) = mem.write(addr, self.low.finish(stamp)) {
            // Part of the write may still be under way, so the memory must not be used again.
            draft.blob = None;
            self.leaked_bytes += bytes;
            return Err(error.into());
        }
        match self.index.replace(mem, view, BucketContent::Blob(addr, self.low.len()))? {
            Swap::Done(after) => {
                self.seen.put(after.bucket, after.word);
                draft.blob = None;
                Ok(true)
            }
            Swap::Lost => Ok(false),
            Swap::Unknown => {
                self.leak_draft(draft);
                Err(Error::OutcomeUnknown { operation: "write" })
            }
        }
    }

    /// Allocates and writes a long value, once an operation.
    fn write_external<W: Words>(
        &mut self,
        mem: &mut W,
        value: &[u8],
        draft: &mut UnpublishedBlob,
    ) -> Result<ExternalValue> {
        let (far, is_new) = self.allocate_external(mem, value, draft)?;
        if is_new && let Err(error) = mem.write(far.addr, value) {
            // Part of the write may still be under way, so the memory must not be used again.
            draft.far = None;
            self.leaked_bytes += far.bytes;
            return Err(error.into());
        }
        Ok(far)
    }

    /// Allocates a long value, once an operation; whether it is to be written.
    pub(super) fn allocate_external<W: Words>(
        &mut self,
        mem: &mut W,
        value: &[u8],
        draft: &mut UnpublishedBlob,
    ) -> Result<(ExternalValue, bool)> {
        if let Some(far) = draft.far {
            return Ok((far, false));
        }
        let bytes = value.len() as u64;
        let addr = mem.alloc(bytes, self.entry_placement)?;
        let far = ExternalValue { addr, bytes, checksum: self.version_of(value).0 };
        draft.far = Some(far);
        Ok((far, true))
    }

    /// Allocates a blob of another size than the one that was reserved, if one was. The bucket has
    /// to be read after this.
    pub(super) fn reallocate<W: Words>(
        &mut self,
        mem: &mut W,
        bytes: u64,
        draft: &mut UnpublishedBlob,
    ) -> Result<GAddr> {
        if let Some((addr, had)) = draft.blob.take() {
            self.release(mem, addr, had);
        }
        let addr = mem.alloc(bytes, self.entry_placement)?;
        draft.blob = Some((addr, bytes));
        Ok(addr)
    }

    /// Gives up what may be published, or written to, some day.
    pub(super) fn leak_draft(&mut self, draft: &mut UnpublishedBlob) {
        let UnpublishedBlob { blob, far } = std::mem::take(draft);
        self.leaked_bytes += blob.map_or(0, |(_, bytes)| bytes) + far.map_or(0, |far| far.bytes);
    }

    pub(super) fn discard<W: Words>(&mut self, mem: &mut W, draft: UnpublishedBlob) {
        if let Some((addr, bytes)) = draft.blob {
            self.release(mem, addr, bytes);
        }
        if let Some(far) = draft.far {
            self.release(mem, far.addr, far.bytes);
        }
    }

    /// Frees what a swap took out of the table: the blob in the buffer, the key's long value.
    fn free_replaced<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
        far: Option<ExternalValue>,
    ) {
        self.free_blob(mem, view);
        if let Some(far) = far {
            self.release(mem, far.addr, far.bytes);
        }
    }

    /// Frees the blob of a bucket, which is in the buffer.
    pub(super) fn free_blob<W: Words>(&mut self, mem: &mut W, view: &BucketView) {
        if view.word.empty_depth().is_none() {
            self.release(mem, view.word.blob_addr(), alloc_bytes(self.blob_bytes));
        }
    }

    /// Frees an allocation, later if the pool cannot take it now.
    pub(super) fn release<W: Words>(&mut self, mem: &mut W, addr: GAddr, bytes: u64) {
        match mem.free(addr, bytes) {
            Ok(()) => {}
            Err(error)
                if matches!(error.code(), "busy" | "peer-dead")
                    && self.frees_pending.len() < FREES_PENDING_MAX =>
            {
                self.frees_pending.push((addr, bytes));
            }
            // Not repeated: it may have been freed, and the address may be another's by now.
            Err(_) => self.leaked_bytes += bytes,
        }
    }

    pub(super) fn flush_frees<W: Words>(&mut self, mem: &mut W) {
        while let Some((addr, bytes)) = self.frees_pending.pop() {
            let pending = self.frees_pending.len();
            self.release(mem, addr, bytes);
            if self.frees_pending.len() > pending {
                return;
            }
        }
    }

    /// Counts a key that came or went, if it belongs to the sample, and lets the table grow.
    /// The key's own operation is done: failures here only make the count less exact.
    pub(super) fn count<W: Words>(&mut self, mem: &mut W, hash: u64, change: i64) {
        if hash >> (u64::BITS - SAMPLE_SHIFT) != 0 {
            return;
        }
        let counted = mem.fetch_add(GAddr(self.header.0 + COUNT_OFFSET), change as u64);
        if let (Ok(before), 1) = (counted, change) {
            let sampled = (before as i64 + 1).max(0) as u64;
            let _ = self.grow(mem, sampled << SAMPLE_SHIFT);
        }
    }

    fn grow<W: Words>(&mut self, mem: &mut W, keys: u64) -> Result<()> {
        for _ in 0..LEVEL_MAX {
            let level = self.refresh_level(mem)?;
            let buckets = 1u64 << level;
            if level >= LEVEL_MAX || keys.saturating_mul(100) <= LOAD_PERCENT * buckets {
                break;
            }
            let level = u64::from(level);
            let _ = mem.cas(GAddr(self.header.0 + LEVEL_OFFSET), level, level + 1)?;
        }
        Ok(())
    }
}

pub(super) fn check_value(value: &[u8]) -> Result<()> {
    check_value_bytes(value.len() as u64)
}

pub(super) fn check_value_bytes(bytes: u64) -> Result<()> {
    let limit_bytes = VALUE_BYTES_MAX;
    if bytes > limit_bytes { Err(Error::ValueSize { bytes, limit_bytes }) } else { Ok(()) }
}

pub(super) fn external_of(value: BlobValue<'_>) -> Option<ExternalValue> {
    match value {
        BlobValue::Inline(_) => None,
        BlobValue::External(far) => Some(far),
    }
}
