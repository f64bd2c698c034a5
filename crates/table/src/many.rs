//! Many keys at once: what one operation asks for one after the other, a batch asks for all of its
//! keys together. Three waits: words with the blobs that they named when they were last seen; blobs
//! that were not known; the swaps. Each key is an operation of its own, with its own answer and its
//! own place in the order; two of one batch with the same key take effect in the batch's order.
//!
//! What is odd about a key (its bucket is to be split, is being split, or is not where it was
//! thought to be; its word is to be retired; its value is long) is left to the operation for one.

use crate::blob::{
    Blob, BlobEntry, BlobValue, ExternalValue, HEADER_BYTES, alloc_bytes, stated_bytes, verifies,
};
use crate::constants::{
    BATCH_KEYS_MAX, BATCH_ROUNDS_MAX, CHECKSUM_ALONE_BYTES_MAX, INLINE_VALUE_BYTES_MAX, RESOLVE_MAX,
};
use crate::error::{Error, Result};
use crate::index::{BucketContent, BucketView, Swap, WordPlace, settle};
use crate::read::check_key;
use crate::words::{ErrorKind, GAddr, PoolError, PoolResult, WordSwap, Words};
use crate::write::{
    EntryWrite, UnpublishedBlob, WriteMode, WriteOutcome, check_value, external_of,
};
use crate::{Table, low_bits};
use std::collections::{BTreeMap, BTreeSet};

/// A key of a batch and its bucket.
struct BatchLookup {
    /// Which key of the batch.
    index: usize,
    hash: u64,
    place: WordPlace,
    /// What the bucket is if it was not changed since it was last seen.
    guess: Option<BucketView>,
    word: [u8; 8],
    blob: Vec<u8>,
    /// The bucket as it was at one moment, with this blob, if there is nothing odd about it.
    view: Option<BucketView>,
}

/// A change of a batch: the key gets a value, or goes.
#[derive(Clone, Copy)]
struct BatchWrite<'a> {
    key: &'a [u8],
    value: Option<&'a [u8]>,
}

/// Changes of a batch under way, by their number in it.
struct WriteBatch<'a> {
    writes: Vec<BatchWrite<'a>>,
    drafts: Vec<UnpublishedBlob>,
    answers: Vec<Option<Result<bool>>>,
}

/// A change that is ready for its swap.
struct ReadyWrite {
    index: usize,
    hash: u64,
    view: BucketView,
    /// The new blob; empty if the bucket will be.
    blob: Vec<u8>,
    /// Where a long value is to be written.
    far: Option<GAddr>,
    swap: WordSwap,
    after: BucketView,
    /// What the swap takes out of the table.
    old_blob_bytes: usize,
    old_far: Option<ExternalValue>,
    was_there: bool,
}

/// How a change of a batch goes on.
enum NextStep {
    Ready(Box<ReadyWrite>),
    /// Its bucket has to be read again.
    Again,
    Alone,
    Answer(Result<bool>),
}

impl Table {
    /// The values of many keys, each as [`Table::get`] gives it, in the order of the keys.
    pub fn get_many<W: Words, K: AsRef<[u8]>>(
        &mut self,
        mem: &mut W,
        keys: &[K],
    ) -> Vec<Result<Option<Vec<u8>>>> {
        let mut values: Vec<_> = keys.iter().map(|_| None).collect();
        for first in (0..keys.len()).step_by(BATCH_KEYS_MAX) {
            let numbers = first..keys.len().min(first + BATCH_KEYS_MAX);
            let mut lookups = Vec::with_capacity(numbers.len());
            lookups
                .extend(numbers.filter_map(|index| self.lookup(mem, index, keys[index].as_ref())));
            if let Err(error) = self.gather(mem, &mut lookups) {
                for one in &lookups {
                    values[one.index] = Some(Err(error.clone().into()));
                }
                continue;
            }
            let mut long = Vec::new();
            for one in lookups.iter().filter(|one| one.view.is_some()) {
                match one.blob().find(keys[one.index].as_ref()) {
                    None => values[one.index] = Some(Ok(None)),
                    Some(BlobValue::Inline(value)) => {
                        values[one.index] = Some(Ok(Some(value.to_vec())));
                    }
                    Some(BlobValue::External(far)) => long.push((one.index, far)),
                }
            }
            self.get_long(mem, &long, &mut values);
        }
        let alone = |(value, key): (Option<_>, &K)| match value {
            Some(value) => value,
            None => self.get(mem, key.as_ref()),
        };
        values.into_iter().zip(keys).map(alone).collect()
    }

    /// Adds keys or replaces their values, each as [`Table::put`] does; whether each was added.
    pub fn put_many<W: Words, K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        mem: &mut W,
        pairs: &[(K, V)],
    ) -> Vec<Result<bool>> {
        let writes = pairs
            .iter()
            .map(|(key, value)| BatchWrite { key: key.as_ref(), value: Some(value.as_ref()) })
            .collect();
        self.write_many(mem, writes)
    }

    /// Removes keys, each as [`Table::delete`] does; whether each was in the table.
    pub fn delete_many<W: Words, K: AsRef<[u8]>>(
        &mut self,
        mem: &mut W,
        keys: &[K],
    ) -> Vec<Result<bool>> {
        let writes = keys.iter().map(|key| BatchWrite { key: key.as_ref(), value: None }).collect();
        self.write_many(mem, writes)
    }

    /// The buckets of many numbers that nothing is odd about, with their blobs.
    pub(super) fn look_at_many<W: Words>(
        &mut self,
        mem: &mut W,
        buckets: impl Iterator<Item = u64>,
    ) -> Result<BTreeMap<u64, (BucketView, Vec<u8>)>> {
        let mut lookups: Vec<_> =
            buckets.filter_map(|bucket| self.lookup_bucket(mem, 0, bucket, bucket)).collect();
        self.gather(mem, &mut lookups)?;
        let plain = |one: BatchLookup| one.view.map(|view| (view.bucket, (view, one.blob)));
        Ok(lookups.into_iter().filter_map(plain).collect())
    }

    /// Where a key's bucket is, and what it likely is; `None` if that cannot be said.
    fn lookup<W: Words>(&mut self, mem: &mut W, index: usize, key: &[u8]) -> Option<BatchLookup> {
        check_key(key).ok()?;
        let hash = self.hash(key);
        self.lookup_bucket(mem, index, hash, low_bits(hash, self.level))
    }

    fn lookup_bucket<W: Words>(
        &mut self,
        mem: &mut W,
        index: usize,
        hash: u64,
        bucket: u64,
    ) -> Option<BatchLookup> {
        let place = self.index.place(mem, bucket).ok()??;
        let guess = self.seen.get(bucket).and_then(|word| self.index.guess(place, word));
        let (word, blob) = ([0; 8], Vec::new());
        Some(BatchLookup { index, hash, place, guess, word, blob, view: None })
    }

    /// Brings the buckets' states and blobs, as far as nothing is odd. An error is of a rack that
    /// does not answer: it is all keys', since each would wait as long.
    fn gather<W: Words>(&mut self, mem: &mut W, lookups: &mut [BatchLookup]) -> PoolResult<()> {
        let mut came = read_guesses(mem, lookups);
        if came.as_ref().is_err_and(|error| !is_silent(error)) {
            // Perhaps the memory of a blob that was seen is gone by now.
            lookups.iter_mut().for_each(|one| one.guess = None);
            came = read_guesses(mem, lookups);
        }
        match came {
            Ok(()) => {}
            Err(error) if is_silent(&error) => return Err(error),
            // Each key finds out for itself.
            Err(_) => return Ok(()),
        }
        let mut wanted = Vec::new();
        for one in &mut *lookups {
            let bits = u64::from_le_bytes(one.word);
            one.view = one.guess.filter(|guess| guess.word.0 == bits);
            if one.view.is_some() {
                continue;
            }
            one.view = self.index.view_at(mem, one.place, bits).ok().flatten();
            let named = one.view.filter(|view| view.word.empty_depth().is_none());
            one.blob.resize(named.map_or(0, |view| view.word.hint_bytes().0), 0);
            if let Some(view) = named {
                wanted.push((view.word.blob_addr(), &mut one.blob[..]));
            }
        }
        let came = if wanted.is_empty() { Ok(()) } else { mem.read_batch(&mut wanted) };
        let all_came = came.is_ok();
        if let Some(error) = came.err().filter(is_silent) {
            return Err(error);
        }
        for one in lookups {
            let was_seen = one.view == one.guess;
            one.view = one.view.filter(|view| {
                (all_came || was_seen) && self.is_plain(view, one.hash, &mut one.blob)
            });
            if let Some(view) = one.view.filter(|_| !was_seen) {
                self.remember(mem, &view);
            }
        }
        Ok(())
    }

    /// Whether a bucket covers a hash and is neither odd nor damaged; `blob` is cut to its length.
    fn is_plain(&self, view: &BucketView, hash: u64, blob: &mut Vec<u8>) -> bool {
        let depth = match view.word.empty_depth() {
            Some(depth) => depth,
            None => {
                let stated = blob.get(..HEADER_BYTES).and_then(stated_bytes);
                let Some(bytes) = stated.filter(|bytes| *bytes <= blob.len()) else { return false };
                blob.truncate(bytes);
                if !verifies(blob, self.stamp(view.bucket, view.blob_seq())) {
                    return false;
                }
                let Some(parsed) = Blob::parse(blob) else { return false };
                parsed.depth()
            }
        };
        let covers = low_bits(hash, depth) == view.bucket;
        covers && !view.is_frozen() && self.check_depth(view, depth).is_ok()
    }

    /// Reads long values that their checksums can vouch for.
    fn get_long<W: Words>(
        &mut self,
        mem: &mut W,
        long: &[(usize, ExternalValue)],
        values: &mut [Option<Result<Option<Vec<u8>>>>],
    ) {
        let mut brought: Vec<_> = long
            .iter()
            .filter(|(_, far)| far.bytes <= CHECKSUM_ALONE_BYTES_MAX)
            .map(|(index, far)| (*index, *far, vec![0; far.bytes as usize]))
            .collect();
        let mut wanted: Vec<_> =
            brought.iter_mut().map(|(_, far, bytes)| (far.addr, &mut bytes[..])).collect();
        if wanted.is_empty() || mem.read_batch(&mut wanted).is_err() {
            return;
        }
        for (index, far, bytes) in brought {
            if self.version_of(&bytes).0 == far.checksum {
                values[index] = Some(Ok(Some(bytes)));
            }
        }
    }

    fn write_many<W: Words>(
        &mut self,
        mem: &mut W,
        writes: Vec<BatchWrite<'_>>,
    ) -> Vec<Result<bool>> {
        let checked = |write: &BatchWrite<'_>| {
            check_key(write.key).and_then(|()| write.value.map_or(Ok(()), check_value))
        };
        let answers: Vec<_> = writes.iter().map(|write| checked(write).err().map(Err)).collect();
        let drafts = writes.iter().map(|_| UnpublishedBlob::default()).collect();
        let mut batch = WriteBatch { writes, drafts, answers };
        self.change(mem, |table, mem| {
            table.flush_frees(mem);
            let mut pending: Vec<usize> =
                (0..batch.writes.len()).filter(|index| batch.answers[*index].is_none()).collect();
            for _ in 0..BATCH_ROUNDS_MAX {
                // Each round takes a part of a long batch.
                let mut left = Vec::new();
                for part in pending.chunks(BATCH_KEYS_MAX) {
                    left.extend_from_slice(part);
                    left = table.write_round(mem, &mut batch, &left);
                }
                pending = left;
            }
            for index in pending {
                table.write_alone(mem, &mut batch, index);
            }
            for draft in batch.drafts.drain(..) {
                table.discard(mem, draft);
            }
        });
        batch.answers.into_iter().map(|answer| answer.expect("each had its turn")).collect()
    }

    /// Tries the first change of each bucket; what is to be tried again, in order.
    fn write_round<W: Words>(
        &mut self,
        mem: &mut W,
        batch: &mut WriteBatch<'_>,
        pending: &[usize],
    ) -> Vec<usize> {
        let mut buckets = BTreeSet::new();
        let (mut now, mut later) = (Vec::new(), Vec::new());
        for index in pending.iter().copied() {
            let bucket = low_bits(self.hash(batch.writes[index].key), self.level);
            let is_first = buckets.insert(bucket);
            if is_first && now.len() < BATCH_KEYS_MAX { now.push(index) } else { later.push(index) }
        }
        let mut lookups = Vec::with_capacity(now.len());
        let (mut again, mut alone) = (Vec::new(), Vec::new());
        for index in now {
            match self.begin_write(mem, batch, index) {
                Ok(Some(lookup)) => lookups.push(lookup),
                Ok(None) => alone.push(index),
                Err(error) => batch.answers[index] = Some(Err(error)),
            }
        }
        if let Err(error) = self.gather(mem, &mut lookups) {
            batch.fail(lookups.drain(..).map(|one| one.index), &error);
        }
        let mut ready = Vec::with_capacity(lookups.len());
        for one in &lookups {
            let write = batch.writes[one.index];
            let step = self.prepare_write(mem, one, write, &mut batch.drafts[one.index]);
            match step.unwrap_or_else(|error| NextStep::Answer(Err(error))) {
                NextStep::Ready(one) => ready.push(*one),
                NextStep::Again => again.push(one.index),
                NextStep::Alone => alone.push(one.index),
                NextStep::Answer(answer) => batch.answers[one.index] = Some(answer),
            }
        }
        match self.write_ready(mem, batch, &ready) {
            Ok(()) => again.extend(self.swap_ready(mem, batch, &ready)),
            Err(error) if is_silent(&error) => {
                batch.fail(ready.iter().map(|one| one.index), &error);
            }
            Err(_) => alone.extend(ready.iter().map(|one| one.index)),
        }
        for index in alone {
            self.write_alone(mem, batch, index);
        }
        again.extend(later);
        again
    }

    /// Allocates what a change will likely need, before its bucket is looked at.
    fn begin_write<W: Words>(
        &mut self,
        mem: &mut W,
        batch: &mut WriteBatch<'_>,
        index: usize,
    ) -> Result<Option<BatchLookup>> {
        let BatchWrite { key, value } = batch.writes[index];
        if let Some(value) = value {
            let write = EntryWrite { key, value, mode: WriteMode::Any };
            self.reserve(mem, self.hash(key), &write, &mut batch.drafts[index])?;
        }
        Ok(self.lookup(mem, index, key))
    }

    /// Builds the next blob of a change's bucket.
    fn prepare_write<W: Words>(
        &mut self,
        mem: &mut W,
        one: &BatchLookup,
        write: BatchWrite<'_>,
        draft: &mut UnpublishedBlob,
    ) -> Result<NextStep> {
        let Some(view) = one.view else { return Ok(NextStep::Alone) };
        let old = one.blob();
        // Before a write the bucket is split, if the table has grown.
        if write.value.is_some() && old.count() > 0 && old.depth() < self.level {
            return Ok(NextStep::Alone);
        }
        let there = old.find(write.key);
        if there.is_none() && write.value.is_none() {
            return Ok(NextStep::Answer(Ok(false)));
        }
        self.low.start(old.depth());
        old.entries().filter(|entry| entry.key != write.key).for_each(|entry| self.low.push(entry));
        let mut far = None;
        if let Some(value) = write.value {
            let entry = if value.len() > INLINE_VALUE_BYTES_MAX {
                let (external, _) = self.allocate_external(mem, value, draft)?;
                // Also if it is not new: a round may end between its allocation and its writing.
                far = Some(external.addr);
                BlobValue::External(external)
            } else {
                BlobValue::Inline(value)
            };
            self.low.push(BlobEntry { key: write.key, value: entry });
        }
        self.check_fits(view.bucket)?;
        let next = match self.low.count() {
            0 => BucketContent::Empty(old.depth()),
            _ => {
                let bytes = alloc_bytes(self.low.len());
                let Some((addr, _)) = draft.blob.filter(|(_, had)| *had == bytes) else {
                    self.reallocate(mem, bytes, draft)?;
                    return Ok(NextStep::Again);
                };
                BucketContent::Blob(addr, self.low.len())
            }
        };
        let Some((swap, after)) = self.index.plan(&view, next)? else { return Ok(NextStep::Alone) };
        let stamp = self.stamp(view.bucket, view.seq() + 1);
        let blob = if self.low.count() > 0 { self.low.finish(stamp).to_vec() } else { Vec::new() };
        let (index, hash, old_blob_bytes) = (one.index, one.hash, one.blob.len());
        let (old_far, was_there) = (there.and_then(external_of), there.is_some());
        Ok(NextStep::Ready(Box::new(ReadyWrite {
            index,
            hash,
            view,
            blob,
            far,
            swap,
            after,
            old_blob_bytes,
            old_far,
            was_there,
        })))
    }

    /// Writes all that the swaps will publish. After an error none of that memory is used again.
    fn write_ready<W: Words>(
        &mut self,
        mem: &mut W,
        batch: &mut WriteBatch<'_>,
        ready: &[ReadyWrite],
    ) -> PoolResult<()> {
        let mut pieces: Vec<(GAddr, &[u8])> = Vec::with_capacity(ready.len());
        for one in ready {
            if let (Some(addr), Some(value)) = (one.far, batch.writes[one.index].value) {
                pieces.push((addr, value));
            }
            if let (Some((addr, _)), false) = (batch.drafts[one.index].blob, one.blob.is_empty()) {
                pieces.push((addr, &one.blob));
            }
        }
        let written = if pieces.is_empty() { Ok(()) } else { mem.write_batch(&mut pieces) };
        if written.is_err() {
            for one in ready {
                self.leak_draft(&mut batch.drafts[one.index]);
            }
        }
        written
    }

    /// Swaps the words; which changes found theirs changed meanwhile.
    fn swap_ready<W: Words>(
        &mut self,
        mem: &mut W,
        batch: &mut WriteBatch<'_>,
        ready: &[ReadyWrite],
    ) -> Vec<usize> {
        let mut lost = Vec::new();
        if ready.is_empty() {
            return lost;
        }
        let swaps: Vec<_> = ready.iter().map(|one| one.swap).collect();
        let mut tries = RESOLVE_MAX;
        for (one, outcome) in ready.iter().zip(mem.cas_batch(&swaps)) {
            let unique = !one.blob.is_empty();
            let answer = match settle(mem, one.swap, outcome, unique, tries) {
                Ok(Swap::Done(())) => self.end_write(mem, batch, one),
                Ok(Swap::Lost) => {
                    lost.push(one.index);
                    continue;
                }
                Ok(Swap::Unknown) => {
                    // A rack that does not tell of one word is not asked about each.
                    tries = 1;
                    if unique {
                        self.leak_draft(&mut batch.drafts[one.index]);
                    }
                    let operation = if unique { "write" } else { "delete" };
                    Err(Error::OutcomeUnknown { operation })
                }
                Err(error) => Err(error),
            };
            batch.answers[one.index] = Some(answer);
        }
        lost
    }

    /// After a change's swap: frees what it took out of the table, and counts.
    fn end_write<W: Words>(
        &mut self,
        mem: &mut W,
        batch: &mut WriteBatch<'_>,
        one: &ReadyWrite,
    ) -> Result<bool> {
        if !one.blob.is_empty() {
            batch.drafts[one.index] = UnpublishedBlob::default();
        }
        self.seen.put(one.after.bucket, one.after.word);
        if one.view.word.empty_depth().is_none() {
            self.release(mem, one.view.word.blob_addr(), alloc_bytes(one.old_blob_bytes));
        }
        if let Some(far) = one.old_far {
            self.release(mem, far.addr, far.bytes);
        }
        let is_put = batch.writes[one.index].value.is_some();
        match (is_put, one.was_there) {
            (true, false) => self.count(mem, one.hash, 1),
            (false, _) => self.count(mem, one.hash, -1),
            (true, true) => {}
        }
        Ok(is_put != one.was_there)
    }

    /// Does one change by itself, with memory of its own.
    fn write_alone<W: Words>(&mut self, mem: &mut W, batch: &mut WriteBatch<'_>, index: usize) {
        let draft = std::mem::take(&mut batch.drafts[index]);
        self.discard(mem, draft);
        let BatchWrite { key, value } = batch.writes[index];
        batch.answers[index] = Some(match value {
            Some(value) => {
                let done = self.store(mem, key, value, WriteMode::Any);
                done.map(|outcome| outcome == WriteOutcome::Created)
            }
            None => self.delete(mem, key),
        });
    }
}

impl WriteBatch<'_> {
    fn fail(&mut self, indices: impl Iterator<Item = usize>, error: &PoolError) {
        for index in indices {
            self.answers[index] = Some(Err(error.clone().into()));
        }
    }
}

/// Asks for the words, and for the blobs that they named when they were last seen.
fn read_guesses<W: Words>(mem: &mut W, lookups: &mut [BatchLookup]) -> PoolResult<()> {
    let mut wanted = Vec::with_capacity(2 * lookups.len());
    for one in lookups {
        wanted.push((one.place.at, &mut one.word[..]));
        if let Some(guess) = &one.guess {
            one.blob.resize(guess.word.hint_bytes().0, 0);
            wanted.push((guess.word.blob_addr(), &mut one.blob[..]));
        }
    }
    if wanted.is_empty() { Ok(()) } else { mem.read_batch(&mut wanted) }
}

/// Whether an error says that a rack does not answer.
fn is_silent(error: &PoolError) -> bool {
    matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unreachable)
}

impl BatchLookup {
    /// The blob of a bucket that nothing is odd about.
    fn blob(&self) -> Blob<'_> {
        let empty = self.view.and_then(|view| view.word.empty_depth());
        match empty {
            Some(depth) => Blob::empty(depth),
            None => Blob::parse(&self.blob).expect("it was parsed when it came"),
        }
    }
}
