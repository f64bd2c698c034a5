//! Long values piece by piece, with a bounded buffer on the client's side.

use crate::blob::{BlobValue, ExternalValue};
use crate::constants::{ATTEMPTS_MAX, INLINE_VALUE_BYTES_MAX, STREAM_BYTES};
use crate::error::{Error, Result};
use crate::read::{Intent, check_key, pause};
use crate::words::{GAddr, Words};
use crate::write::{EntryWrite, UnpublishedBlob, WriteMode, WriteOutcome, check_value_bytes};
use crate::{Table, low_bits};
use xxhash_rust::xxh3::Xxh3;

impl Table {
    /// As [`Table::put`], with a value of `bytes` bytes that `fill` brings piece by piece, in up to
    /// 1 MiB of memory here. Room for all of it is allocated before `fill` is called first, so what
    /// does not fit is refused at once. `None` if `fill` answers `false`: then nothing has changed.
    pub fn put_stream<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        bytes: u64,
        mut fill: impl FnMut(&mut [u8]) -> bool,
    ) -> Result<Option<bool>> {
        check_key(key)?;
        check_value_bytes(bytes)?;
        if bytes <= INLINE_VALUE_BYTES_MAX as u64 {
            let mut value = vec![0; bytes as usize];
            return match fill(&mut value) {
                true => self.put(mem, key, &value).map(Some),
                false => Ok(None),
            };
        }
        let hash = self.hash(key);
        self.change(mem, |table, mem| {
            table.flush_frees(mem);
            let mut draft = UnpublishedBlob::default();
            if !table.fill_external(mem, bytes, &mut fill, &mut draft)? {
                table.discard(mem, draft);
                return Ok(None);
            }
            // The value is in the draft.
            let write = EntryWrite { key, value: &[], mode: WriteMode::Any };
            let stored = table.retry(mem, hash, draft, |table, mem, draft| {
                table.store_once(mem, &write, hash, draft)
            });
            stored.map(|outcome| Some(outcome == WriteOutcome::Created))
        })
    }

    /// Hands the value of `key` to `take` piece by piece, each with where it begins; its length, or
    /// `None` if the key is not in the table. If the value is changed meanwhile, `take` begins anew
    /// with offset 0: what it was given last is the value, once this has returned.
    pub fn get_stream<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<Option<u64>> {
        check_key(key)?;
        let hash = self.hash(key);
        let mut piece = Vec::new();
        for attempt in 0..ATTEMPTS_MAX {
            pause(attempt);
            let view = self.find(mem, hash, Intent::Read)?;
            let far = match self.blob(&view)?.find(key) {
                None => return Ok(None),
                Some(BlobValue::Inline(bytes)) => {
                    take(0, bytes);
                    return Ok(Some(bytes.len() as u64));
                }
                Some(BlobValue::External(far)) => far,
            };
            let mut hasher = Xxh3::with_seed(self.fixed.table_id);
            let (mut at, mut read) = (0, Ok(()));
            while at < far.bytes && read.is_ok() {
                piece.resize((far.bytes - at).min(STREAM_BYTES) as usize, 0);
                read = mem.read(GAddr(far.addr.0.saturating_add(at)), &mut piece);
                if read.is_ok() {
                    hasher.update(&piece);
                    take(at, &piece);
                    at += piece.len() as u64;
                }
            }
            if read.is_ok() && hasher.digest() == far.checksum {
                return Ok(Some(far.bytes));
            }
            if self.index.is_still(mem, &view)? {
                read?;
                let reason = "a value does not verify";
                return Err(Error::Corrupt { bucket: view.bucket, addr: far.addr, reason });
            }
        }
        Err(Error::Contended { bucket: low_bits(hash, self.level), attempts: ATTEMPTS_MAX })
    }

    /// Allocates a long value and writes it; `false` if `fill` gave up.
    fn fill_external<W: Words>(
        &mut self,
        mem: &mut W,
        bytes: u64,
        fill: &mut impl FnMut(&mut [u8]) -> bool,
        draft: &mut UnpublishedBlob,
    ) -> Result<bool> {
        let addr = mem.alloc(bytes, self.entry_placement)?;
        draft.far = Some(ExternalValue { addr, bytes, checksum: 0 });
        let mut hasher = Xxh3::with_seed(self.fixed.table_id);
        let mut piece = vec![0; bytes.min(STREAM_BYTES) as usize];
        let mut at = 0;
        while at < bytes {
            piece.truncate((bytes - at).min(STREAM_BYTES) as usize);
            if !fill(&mut piece) {
                return Ok(false);
            }
            if let Err(error) = mem.write(GAddr(addr.0 + at), &piece) {
                // Part of the write may still be under way, so the memory must not be used again.
                self.leak_draft(draft);
                return Err(error.into());
            }
            hasher.update(&piece);
            at += piece.len() as u64;
        }
        draft.far = Some(ExternalValue { addr, bytes, checksum: hasher.digest() });
        Ok(true)
    }
}
