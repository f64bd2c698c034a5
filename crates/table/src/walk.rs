//! Walking over all buckets: listing, counting, checking, destroying. The buckets form a binary
//! tree by the bits of the hash; a bucket of depth d that exists since depth c has one child for
//! each depth in c..d. So each hash is covered exactly once, however the table grows meanwhile:
//! a key that is there all the time is seen exactly once.

use crate::blob::{BlobEntry, BlobValue, alloc_bytes};
use crate::constants::{ATTEMPTS_MAX, BATCH_KEYS_MAX, VERIFY_BYTES};
use crate::error::{Error, Result};
use crate::header::HEADER_BYTES;
use crate::index::{BucketView, CELL_BYTES, TableIndex};
use crate::read::pause;
use crate::words::{GAddr, PoolError, Words};
use crate::{Table, low_bits};
use std::collections::BTreeSet;
use xxhash_rust::xxh3::Xxh3;

/// What [`Table::check`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Keys.
    pub keys: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
    /// Buckets that exist.
    pub buckets: u64,
    /// Of them, without a key.
    pub buckets_empty: u64,
    /// Of them, being split, perhaps by a client that died.
    pub buckets_frozen: u64,
    /// Most keys in one bucket.
    pub bucket_keys_max: u64,
    /// Values with an allocation of their own.
    pub far_values: u64,
    /// Retired bucket words.
    pub words_retired: u64,
    /// Least depth of a bucket.
    pub depth_min: u8,
    /// Greatest depth of a bucket.
    pub depth_max: u8,
}

enum Visited {
    Done,
    Again,
}

/// An allocation that a table names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub addr: GAddr,
    pub bytes: u64,
    /// The table's header, the bucket, and its sequence number: as long as that is the same, it
    /// names the same.
    pub by: NamedBy,
}

pub(crate) type NamedBy = (GAddr, u64, u64);

/// A bucket on the way: its number and the depth at which it came into being.
type Step = (u64, u8);

impl Table {
    /// All keys that begin with `prefix`, with the lengths of their values in bytes, sorted.
    /// A key that is there from start to end is listed once; others may be.
    pub fn list<W: Words>(&mut self, mem: &mut W, prefix: &[u8]) -> Result<Vec<(Vec<u8>, u64)>> {
        let mut found = Vec::new();
        self.scan(mem, prefix, |key, value_bytes| found.push((key.to_vec(), value_bytes)))?;
        found.sort();
        Ok(found)
    }

    /// As [`Table::list`], in no order and without keeping the keys.
    pub fn scan<W: Words>(
        &mut self,
        mem: &mut W,
        prefix: &[u8],
        mut found: impl FnMut(&[u8], u64),
    ) -> Result<()> {
        self.walk(mem, |table, _, view, covered| {
            for entry in table.covered(view, covered)? {
                if entry.key.starts_with(prefix) {
                    found(entry.key, entry.value.bytes());
                }
            }
            Ok(Visited::Done)
        })
    }

    /// Keys in the table, counted one by one: as expensive as [`Table::list`].
    pub fn len<W: Words>(&mut self, mem: &mut W) -> Result<u64> {
        let mut keys = 0;
        self.scan(mem, b"", |_, _| keys += 1)?;
        Ok(keys)
    }

    /// Whether there is no key in the table; a walk until the first.
    pub fn is_empty<W: Words>(&mut self, mem: &mut W) -> Result<bool> {
        Ok(self.len(mem)? == 0)
    }

    /// Reads and verifies everything, long values too. The table may be in use meanwhile.
    pub fn check<W: Words>(&mut self, mem: &mut W) -> Result<Report> {
        let mut report = Report { depth_min: u8::MAX, ..Report::default() };
        self.walk(mem, |table, mem, view, covered| {
            let mut next = report;
            let visited = table.check_bucket(mem, view, covered, &mut next)?;
            if let Visited::Done = visited {
                report = next;
            }
            Ok(visited)
        })?;
        Ok(report)
    }

    /// Reports every allocation that belongs to the table: address and bytes. For audits; exact
    /// only if no client changes the table meanwhile.
    pub fn for_each_allocation<W: Words>(
        &mut self,
        mem: &mut W,
        mut tell: impl FnMut(&mut W, GAddr, u64),
    ) -> Result<()> {
        self.for_each_named(mem, |mem, named| tell(mem, named.addr, named.bytes))
    }

    /// As [`Table::for_each_allocation`], with what names it. What is named from start to end is
    /// reported once; other things may be.
    pub(crate) fn for_each_named<W: Words>(
        &mut self,
        mem: &mut W,
        mut tell: impl FnMut(&mut W, Named),
    ) -> Result<()> {
        let header = self.header;
        self.walk(mem, |table, mem, view, covered| {
            let mut found = Vec::new();
            for entry in table.covered(view, covered)? {
                if let BlobValue::External(far) = entry.value {
                    found.push((far.addr, far.bytes));
                }
            }
            if view.word.empty_depth().is_none() {
                found.push((view.word.blob_addr(), alloc_bytes(table.blob_bytes)));
            }
            for cell in cells(mem, view)? {
                found.push((cell, CELL_BYTES));
            }
            let by = (header, view.bucket, view.seq());
            for (addr, bytes) in found {
                tell(mem, Named { addr, bytes, by });
            }
            Ok(Visited::Done)
        })?;
        let mut arrays = vec![(self.header, HEADER_BYTES)];
        self.index.for_each_array(mem, &mut |addr, bytes| arrays.push((addr, bytes)))?;
        for (addr, bytes) in arrays {
            tell(mem, Named { addr, bytes, by: (header, u64::MAX, 0) });
        }
        Ok(())
    }

    /// Takes the table's name away and frees all of its memory. No other client may use the table
    /// any more: a handle that still does would read and write memory that belongs to others.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the name is another table's by now. After any other error the change
    /// of `mem` goes on: what was not freed is looked for when its handle ends.
    pub fn destroy<W: Words>(mut self, mem: &mut W) -> Result<()> {
        mem.begin_change();
        let destroyed = self.unname_and_free(mem);
        if matches!(destroyed, Ok(()) | Err(Error::NotFound { .. })) {
            mem.end_change();
        }
        destroyed
    }

    fn unname_and_free<W: Words>(&mut self, mem: &mut W) -> Result<()> {
        let there = mem.set_root(&self.name, self.header, GAddr::NULL)?;
        if !there.is_null() {
            return Err(Error::NotFound { name: self.name.clone() });
        }
        let mut failed: Option<PoolError> = None;
        self.for_each_allocation(mem, |mem, addr, bytes| {
            if let Err(error) = mem.free(addr, bytes) {
                failed.get_or_insert(error);
            }
        })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Visits every bucket. Its blob is in the buffer; the visitor is told up to which depth the
    /// bucket covers hashes itself.
    fn walk<W: Words>(
        &mut self,
        mem: &mut W,
        mut visit: impl FnMut(&Table, &mut W, &BucketView, u8) -> Result<Visited>,
    ) -> Result<()> {
        let level = self.level_first();
        let mut steps: Vec<Step> = (0..1 << level).map(|bucket| (bucket, level)).collect();
        while !steps.is_empty() {
            let part = steps.split_off(steps.len().saturating_sub(BATCH_KEYS_MAX));
            let mut looked = self.look_at_many(mem, part.iter().map(|(bucket, _)| *bucket))?;
            for (bucket, born) in part {
                let covered = match looked.remove(&bucket) {
                    Some(one) => self.walk_looked(mem, one, &mut visit)?,
                    None => None,
                };
                let covered = match covered {
                    Some(covered) => covered,
                    None => self.walk_bucket(mem, bucket, &mut visit)?,
                };
                steps.extend((born..covered).map(|depth| (bucket | 1 << depth, depth + 1)));
            }
        }
        Ok(())
    }

    /// Visits a bucket as it was when many were looked at; `None` if it has to be looked at again.
    fn walk_looked<W: Words>(
        &mut self,
        mem: &mut W,
        (view, blob): (BucketView, Vec<u8>),
        visit: &mut impl FnMut(&Table, &mut W, &BucketView, u8) -> Result<Visited>,
    ) -> Result<Option<u8>> {
        self.blob_bytes = blob.len();
        self.buf = blob;
        let covered = self.blob(&view)?.depth();
        Ok(match visit(self, mem, &view, covered)? {
            Visited::Done => Some(covered),
            Visited::Again => None,
        })
    }

    fn walk_bucket<W: Words>(
        &mut self,
        mem: &mut W,
        bucket: u64,
        visit: &mut impl FnMut(&Table, &mut W, &BucketView, u8) -> Result<Visited>,
    ) -> Result<u8> {
        for attempt in 0..ATTEMPTS_MAX {
            pause(attempt);
            let Some(view) = self.index.load(mem, bucket)? else {
                let (addr, reason) = (self.header, "a bucket that was split off does not exist");
                return Err(Error::Corrupt { bucket, addr, reason });
            };
            let Some(mut covered) = self.fetch(mem, &view)? else { continue };
            if view.is_frozen() && self.index.load(mem, bucket | 1 << covered)?.is_some() {
                covered += 1;
            }
            if let Visited::Done = visit(self, mem, &view, covered)? {
                return Ok(covered);
            }
        }
        Err(Error::Contended { bucket, attempts: ATTEMPTS_MAX })
    }

    /// The entries of the bucket in the buffer that it covers itself.
    fn covered(&self, view: &BucketView, depth: u8) -> Result<impl Iterator<Item = BlobEntry<'_>>> {
        let bucket = view.bucket;
        let blob = self.blob(view)?;
        Ok(blob.entries().filter(move |entry| low_bits(self.hash(entry.key), depth) == bucket))
    }

    fn check_bucket<W: Words>(
        &self,
        mem: &mut W,
        view: &BucketView,
        covered: u8,
        report: &mut Report,
    ) -> Result<Visited> {
        let blob = self.blob(view)?;
        let corrupt = |reason| {
            let addr = view.word.blob_addr();
            Err(Error::Corrupt { bucket: view.bucket, addr, reason })
        };
        let mut keys = BTreeSet::new();
        for entry in blob.entries() {
            if low_bits(self.hash(entry.key), blob.depth()) != view.bucket {
                return corrupt("a key is in the wrong bucket");
            }
            if !keys.insert(entry.key) {
                return corrupt("a key is in its bucket twice");
            }
        }
        for entry in self.covered(view, covered)? {
            report.keys += 1;
            report.key_bytes += entry.key.len() as u64;
            report.value_bytes += entry.value.bytes();
            if let BlobValue::External(far) = entry.value {
                report.far_values += 1;
                let sum = checksum(mem, far.addr, far.bytes, self.fixed.table_id);
                if sum != Ok(far.checksum) {
                    if !self.index.is_still(mem, view)? {
                        return Ok(Visited::Again);
                    }
                    sum?;
                    return corrupt("a value does not verify");
                }
            }
        }
        report.buckets += 1;
        report.buckets_empty += u64::from(blob.count() == 0);
        report.buckets_frozen += u64::from(view.is_frozen());
        report.bucket_keys_max = report.bucket_keys_max.max(blob.count() as u64);
        report.words_retired += cells(mem, view)?.len() as u64;
        report.depth_min = report.depth_min.min(blob.depth());
        report.depth_max = report.depth_max.max(blob.depth());
        Ok(Visited::Done)
    }
}

/// The cells of a bucket's retired words and of its present one.
fn cells<W: Words>(mem: &mut W, view: &BucketView) -> Result<Vec<GAddr>> {
    let mut found = Vec::new();
    let mut cell = view.cell();
    while let Some(at) = cell {
        found.push(at);
        let before = TableIndex::cell_before(mem, at)?;
        cell = (!before.is_null()).then_some(before);
        // Each cell stands for at least two changes of the bucket.
        if found.len() as u64 > view.seq() {
            let reason = "the line of retired words has no end";
            return Err(Error::Corrupt { bucket: view.bucket, addr: at, reason });
        }
    }
    Ok(found)
}

fn checksum<W: Words>(mem: &mut W, addr: GAddr, bytes: u64, seed: u64) -> Result<u64, PoolError> {
    let mut hasher = Xxh3::with_seed(seed);
    let mut buf = vec![0; bytes.min(VERIFY_BYTES) as usize];
    let mut at = 0;
    while at < bytes {
        let part = (bytes - at).min(VERIFY_BYTES) as usize;
        mem.read(GAddr(addr.0.saturating_add(at)), &mut buf[..part])?;
        hasher.update(&buf[..part]);
        at += part as u64;
    }
    Ok(hasher.digest())
}
