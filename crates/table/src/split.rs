//! Splitting a bucket in two, by three compare-and-swaps of which each can be done by any client:
//! freeze the old word, publish the new bucket, thaw the old one at the next depth. The halves'
//! memory is allocated before the bucket is frozen, so that a full pool freezes nothing.

use crate::blob::{Builder, alloc_bytes};
use crate::error::{Error, Result};
use crate::index::{BucketContent, BucketView, Swap};
use crate::words::{GAddr, Words};
use crate::{Table, low_bits};

/// Memory for the blobs of the two halves; a half without keys needs none.
#[derive(Debug, Default)]
struct Halves {
    low: Option<(GAddr, u64)>,
    high: Option<(GAddr, u64)>,
}

impl Table {
    /// Splits the bucket that has its blob in the buffer. `false` if there is nothing to split or
    /// no memory for it: the bucket is then as it was and in the buffer. `true`: look again.
    pub(super) fn split<W: Words>(&mut self, mem: &mut W, view: &BucketView) -> Result<bool> {
        if self.blob(view)?.count() == 0 {
            return Ok(false);
        }
        let (halves, child_home) = match self.prepare(mem, view) {
            Ok(prepared) => prepared,
            Err(Error::Pool(error)) if matches!(error.code(), "full" | "bad-size") => {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        match self.index.replace(mem, view, BucketContent::Frozen) {
            Ok(Swap::Done(frozen)) => self.complete(mem, &frozen, child_home, halves)?,
            Ok(Swap::Lost | Swap::Unknown) => self.give_back(mem, halves),
            Err(error) => {
                self.give_back(mem, halves);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Finishes the split of a frozen bucket that has its blob in the buffer, or finds that another
    /// client did.
    pub(super) fn finish_split<W: Words>(
        &mut self,
        mem: &mut W,
        frozen: &BucketView,
    ) -> Result<()> {
        let (halves, child_home) = self.prepare(mem, frozen)?;
        match self.index.is_still(mem, frozen) {
            Ok(true) => self.complete(mem, frozen, child_home, halves),
            other => {
                self.give_back(mem, halves);
                other.map(drop)
            }
        }
    }

    /// Builds both halves and allocates all that the split needs; the new bucket's home with it.
    fn prepare<W: Words>(&mut self, mem: &mut W, view: &BucketView) -> Result<(Halves, GAddr)> {
        let depth = self.blob(view)?.depth();
        let child_home = self.index.make_home(mem, view.bucket | 1 << depth)?;
        let (mut low, mut high) = (std::mem::take(&mut self.low), std::mem::take(&mut self.high));
        low.start(depth + 1);
        high.start(depth + 1);
        for entry in self.blob(view)?.entries() {
            let in_low = low_bits(self.hash(entry.key), depth + 1) == view.bucket;
            if in_low { low.push(entry) } else { high.push(entry) }
        }
        (self.low, self.high) = (low, high);
        let mut halves = Halves::default();
        for is_high in [false, true] {
            let builder = if is_high { &self.high } else { &self.low };
            if builder.count() == 0 {
                continue;
            }
            let bytes = alloc_bytes(builder.len());
            match mem.alloc(bytes, self.entry_placement) {
                Ok(addr) if is_high => halves.high = Some((addr, bytes)),
                Ok(addr) => halves.low = Some((addr, bytes)),
                Err(error) => {
                    self.give_back(mem, halves);
                    return Err(error.into());
                }
            }
        }
        Ok((halves, child_home))
    }

    /// Publishes the new bucket and thaws the old one. The halves were allocated before the
    /// bucket was last seen frozen as `frozen`.
    fn complete<W: Words>(
        &mut self,
        mem: &mut W,
        frozen: &BucketView,
        child_home: GAddr,
        mut halves: Halves,
    ) -> Result<()> {
        let result = match self.publish_child(mem, frozen, child_home, &mut halves) {
            Ok(true) => self.thaw(mem, frozen, &mut halves),
            other => other.map(drop),
        };
        self.give_back(mem, halves);
        result
    }

    /// Publishes the new bucket unless another client has; `false` if that cannot be known. Then
    /// the caller, or the next client, looks again.
    fn publish_child<W: Words>(
        &mut self,
        mem: &mut W,
        frozen: &BucketView,
        home: GAddr,
        halves: &mut Halves,
    ) -> Result<bool> {
        let depth = self.blob(frozen)?.depth();
        let child = frozen.bucket | 1 << depth;
        if self.index.load(mem, child)?.is_some() {
            return Ok(true);
        }
        let stamp = self.stamp(child, 1);
        let next = match halves.high {
            None => BucketContent::Empty(depth + 1),
            Some((addr, bytes)) => {
                let written = write_half(mem, addr, &mut self.high, stamp);
                self.keep_or_leak(written, &mut halves.high, bytes)?
            }
        };
        match self.index.publish_first(mem, home, next)? {
            Swap::Done(()) => halves.high = None,
            Swap::Lost => {}
            Swap::Unknown => {
                self.leak(&mut halves.high);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn thaw<W: Words>(
        &mut self,
        mem: &mut W,
        frozen: &BucketView,
        halves: &mut Halves,
    ) -> Result<()> {
        let depth = self.blob(frozen)?.depth();
        let stamp = self.stamp(frozen.bucket, frozen.seq() + 1);
        let next = match halves.low {
            None => BucketContent::Empty(depth + 1),
            Some((addr, bytes)) => {
                let written = write_half(mem, addr, &mut self.low, stamp);
                self.keep_or_leak(written, &mut halves.low, bytes)?
            }
        };
        match self.index.replace(mem, frozen, next)? {
            Swap::Done(_) => {
                halves.low = None;
                self.free_blob(mem, frozen);
            }
            Swap::Lost => {}
            Swap::Unknown => {
                self.leak(&mut halves.low);
                // If it was applied, nothing names the blob before it any more.
                if frozen.word.empty_depth().is_none() {
                    self.leaked_bytes += alloc_bytes(self.blob_bytes);
                }
            }
        }
        Ok(())
    }

    /// After a failed write part of it may still be under way: the memory must not be used again.
    fn keep_or_leak(
        &mut self,
        written: Result<BucketContent>,
        half: &mut Option<(GAddr, u64)>,
        bytes: u64,
    ) -> Result<BucketContent> {
        if written.is_err() {
            *half = None;
            self.leaked_bytes += bytes;
        }
        written
    }

    fn leak(&mut self, half: &mut Option<(GAddr, u64)>) {
        self.leaked_bytes += half.take().map_or(0, |(_, bytes)| bytes);
    }

    fn give_back<W: Words>(&mut self, mem: &mut W, halves: Halves) {
        for (addr, bytes) in halves.low.into_iter().chain(halves.high) {
            self.release(mem, addr, bytes);
        }
    }
}

fn write_half<W: Words>(
    mem: &mut W,
    addr: GAddr,
    builder: &mut Builder,
    stamp: crate::blob::Stamp,
) -> Result<BucketContent> {
    mem.write(addr, builder.finish(stamp))?;
    Ok(BucketContent::Blob(addr, builder.len()))
}
