//! Reading: from a key to the bucket that covers it, from the word to a verified blob, from the
//! blob to the value. Nothing here changes the pool, except that a writer that meets a frozen
//! bucket finishes its split.

use crate::blob::{Blob, BlobValue, ExternalValue, HEADER_BYTES, stated_bytes, verifies};
use crate::constants::{
    ATTEMPTS_EAGER, ATTEMPTS_MAX, CHECKSUM_ALONE_BYTES_MAX, KEY_BYTES_MAX, LEVEL_MAX,
    VALUE_BYTES_MAX,
};
use crate::error::{Error, Result};
use crate::index::BucketView;
use crate::word::Word;
use crate::words::{GAddr, PoolError, Words};
use crate::{Table, low_bits};
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// To read from it, frozen or not.
    Read,
    /// To change it; it is not frozen.
    Write,
    /// As `Write`, and it is split before if the table has grown.
    Grow,
}

/// Names a value of a table: other bytes have another version, the same bytes the same one, also
/// if the key had others in between (but for a chance of 2⁻⁶⁴). A value that must not be taken for
/// an earlier one has a count in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueVersion(pub(crate) u64);

/// What became of looking at a bucket.
enum BucketLook {
    /// It was like this at one moment, and has this depth.
    Seen(BucketView, u8),
    Changed,
    /// It was not split off its parent yet.
    Absent,
}

/// What became of a guess.
enum GuessedWord {
    /// The bucket is as it was seen last, at this depth.
    Right(u8),
    /// What the word is now.
    Is(u64),
}

impl Table {
    /// The value of `key`, or `None` if it is not in the table.
    pub fn get<W: Words>(&mut self, mem: &mut W, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(mem, key, &mut value)?.then_some(value))
    }

    /// Puts the value of `key` into `value` and answers whether it is in the table; if not,
    /// `value` is empty. The buffer's memory is used again, so a warm call allocates nothing.
    pub fn get_into<W: Words>(
        &mut self,
        mem: &mut W,
        key: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        value.clear();
        check_key(key)?;
        let hash = self.hash(key);
        for attempt in 0..ATTEMPTS_MAX {
            pause(attempt);
            let view = self.find(mem, hash, Intent::Read)?;
            match self.blob(&view)?.find(key) {
                None => return Ok(false),
                Some(BlobValue::Inline(bytes)) => {
                    value.extend_from_slice(bytes);
                    return Ok(true);
                }
                Some(BlobValue::External(far)) => {
                    if self.read_far(mem, &view, far, value)? {
                        return Ok(true);
                    }
                }
            }
        }
        Err(Error::Contended { bucket: low_bits(hash, self.level), attempts: ATTEMPTS_MAX })
    }

    /// Length of the value of `key` in bytes, without reading a long one.
    pub fn value_bytes<W: Words>(&mut self, mem: &mut W, key: &[u8]) -> Result<Option<u64>> {
        check_key(key)?;
        let view = self.find(mem, self.hash(key), Intent::Read)?;
        Ok(self.blob(&view)?.find(key).map(|value| value.bytes()))
    }

    /// Where the value of `key` lies, and its length in bytes: the address of a long value, or of
    /// the blob that holds a short one. For inspection only; the next change moves it.
    pub fn locate<W: Words>(&mut self, mem: &mut W, key: &[u8]) -> Result<Option<(GAddr, u64)>> {
        check_key(key)?;
        let view = self.find(mem, self.hash(key), Intent::Read)?;
        let found = self.blob(&view)?.find(key);
        Ok(found.map(|value| match value {
            BlobValue::Inline(bytes) => (view.word.blob_addr(), bytes.len() as u64),
            BlobValue::External(far) => (far.addr, far.bytes),
        }))
    }

    /// The version that a value has in this table.
    pub fn version_of(&self, value: &[u8]) -> ValueVersion {
        ValueVersion(xxh3_64_with_seed(value, self.fixed.table_id))
    }

    pub(super) fn version_in(&self, value: BlobValue<'_>) -> ValueVersion {
        match value {
            BlobValue::Inline(bytes) => self.version_of(bytes),
            BlobValue::External(far) => ValueVersion(far.checksum),
        }
    }

    /// Finds the bucket that covers `hash`; its blob is in the buffer.
    pub(super) fn find<W: Words>(
        &mut self,
        mem: &mut W,
        hash: u64,
        intent: Intent,
    ) -> Result<BucketView> {
        let mut bucket = low_bits(hash, self.level);
        for attempt in 0..ATTEMPTS_MAX {
            pause(attempt / u32::from(LEVEL_MAX));
            let (view, depth) = match self.look(mem, bucket)? {
                BucketLook::Seen(view, depth) => (view, depth),
                BucketLook::Changed => continue,
                BucketLook::Absent => {
                    bucket = self.parent(bucket)?;
                    continue;
                }
            };
            if low_bits(hash, depth) != bucket {
                bucket = self.descendant(hash, bucket, depth);
                self.level = self.level.max(depth);
                continue;
            }
            if view.is_frozen() {
                if intent != Intent::Read {
                    self.finish_split(mem, &view)?;
                    continue;
                }
                // The other half may be in its own bucket already. If not, it was not at this
                // moment either, in which the frozen bucket still held it.
                let half = low_bits(hash, depth + 1);
                if half != bucket && self.index.load(mem, half)?.is_some() {
                    bucket = half;
                    continue;
                }
            } else if intent == Intent::Grow && depth < self.level && self.split(mem, &view)? {
                continue;
            }
            return Ok(view);
        }
        Err(Error::Contended { bucket, attempts: ATTEMPTS_MAX })
    }

    /// Loads a bucket's word and brings its blob into the buffer: both at once if the word is the
    /// one that was seen last, else one after the other.
    fn look<W: Words>(&mut self, mem: &mut W, bucket: u64) -> Result<BucketLook> {
        let Some(place) = self.index.place(mem, bucket)? else { return Ok(BucketLook::Absent) };
        let guess = self.seen.get(bucket).and_then(|word| self.index.guess(place, word));
        let bits = match guess {
            None => mem.read_u64(place.at)?,
            Some(guess) => match self.fetch_guess(mem, &guess)? {
                GuessedWord::Right(depth) => return Ok(BucketLook::Seen(guess, depth)),
                GuessedWord::Is(bits) => bits,
            },
        };
        let Some(view) = self.index.view_at(mem, place, bits)? else {
            return Ok(BucketLook::Absent);
        };
        let Some(depth) = self.fetch(mem, &view)? else { return Ok(BucketLook::Changed) };
        self.remember(mem, &view);
        Ok(BucketLook::Seen(view, depth))
    }

    /// Asks for a bucket's word and for the blob that it named when it was last seen.
    fn fetch_guess<W: Words>(&mut self, mem: &mut W, guess: &BucketView) -> Result<GuessedWord> {
        let (hint_bytes, _) = guess.word.hint_bytes();
        if self.buf.len() < hint_bytes {
            self.buf.resize(hint_bytes, 0);
        }
        let mut word = [0; 8];
        let blob = &mut self.buf[..hint_bytes];
        let ops = &mut [(guess.at(), &mut word[..]), (guess.word.blob_addr(), blob)];
        if let Err(error) = mem.read_batch(ops) {
            // Perhaps what it named is gone by now; it will not be asked for again.
            self.seen.put(guess.bucket, Word::NONE);
            return match error.code() {
                "timeout" => Err(error.into()),
                _ => Ok(GuessedWord::Is(mem.read_u64(guess.at())?)),
            };
        }
        let bits = u64::from_le_bytes(word);
        // What does not verify although the word stands is looked at again, by the sure way.
        if bits != guess.word.0 || !self.complete_blob(mem, guess).unwrap_or(false) {
            return Ok(GuessedWord::Is(bits));
        }
        let depth = self.blob(guess)?.depth();
        self.check_depth(guess, depth).map(GuessedWord::Right)
    }

    /// Remembers a bucket's word that this handle did not know.
    pub(super) fn remember<W: Words>(&mut self, mem: &mut W, view: &BucketView) {
        self.seen.put(view.bucket, view.word);
        if self.seen.missed()
            && let Ok(keys) = self.len_estimate(mem)
        {
            self.seen.resize(keys, self.level);
        }
    }

    /// Brings a bucket's blob into the buffer; its depth. `None` if the bucket changed meanwhile.
    pub(super) fn fetch<W: Words>(&mut self, mem: &mut W, view: &BucketView) -> Result<Option<u8>> {
        self.blob_bytes = 0;
        if let Some(depth) = view.word.empty_depth() {
            return self.check_depth(view, depth).map(Some);
        }
        let fault = match self.fetch_blob(mem, view) {
            Ok(true) => return self.check_depth(view, self.blob(view)?.depth()).map(Some),
            Ok(false) => {
                let addr = view.word.blob_addr();
                let reason = "the blob does not verify";
                Error::Corrupt { bucket: view.bucket, addr, reason }
            }
            Err(error) if matches!(error.code(), "not-mapped" | "out-of-bounds") => error.into(),
            Err(error) => return Err(error.into()),
        };
        // A blob may be freed and its memory used again while it is read, but not while its word
        // stands.
        if self.index.is_still(mem, view)? { Err(fault) } else { Ok(None) }
    }

    /// The blob in the buffer, which `fetch` put there for this view.
    pub(super) fn blob(&self, view: &BucketView) -> Result<Blob<'_>> {
        if let Some(depth) = view.word.empty_depth() {
            return Ok(Blob::empty(depth));
        }
        Blob::parse(&self.buf[..self.blob_bytes]).ok_or(Error::Corrupt {
            bucket: view.bucket,
            addr: view.word.blob_addr(),
            reason: "the blob verifies but has an impossible structure",
        })
    }

    fn fetch_blob<W: Words>(&mut self, mem: &mut W, view: &BucketView) -> Result<bool, PoolError> {
        let addr = view.word.blob_addr();
        let (hint_bytes, _) = view.word.hint_bytes();
        if self.buf.len() < hint_bytes {
            self.buf.resize(hint_bytes, 0);
        }
        mem.read(addr, &mut self.buf[..hint_bytes])?;
        self.complete_blob(mem, view)
    }

    /// Reads the rest of a blob of which as much is in the buffer as its word says; whether it
    /// verifies.
    fn complete_blob<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
    ) -> Result<bool, PoolError> {
        let addr = view.word.blob_addr();
        let (hint_bytes, whole) = view.word.hint_bytes();
        let Some(bytes) = stated_bytes(&self.buf[..HEADER_BYTES]) else { return Ok(false) };
        if bytes > hint_bytes {
            if whole {
                return Ok(false);
            }
            if self.buf.len() < bytes {
                self.buf.resize(bytes, 0);
            }
            let rest = addr.checked_add(hint_bytes as u64).expect("words hold 47-bit addresses");
            mem.read(rest, &mut self.buf[hint_bytes..bytes])?;
        }
        if !verifies(&self.buf[..bytes], self.stamp(view.bucket, view.blob_seq())) {
            return Ok(false);
        }
        self.blob_bytes = bytes;
        Ok(true)
    }

    /// Reads a long value; `false` if it was freed meanwhile.
    pub(super) fn read_far<W: Words>(
        &mut self,
        mem: &mut W,
        view: &BucketView,
        far: ExternalValue,
        value: &mut Vec<u8>,
    ) -> Result<bool> {
        if far.bytes > VALUE_BYTES_MAX {
            let reason = "a value has an impossible length";
            return Err(Error::Corrupt { bucket: view.bucket, addr: far.addr, reason });
        }
        value.resize(far.bytes as usize, 0);
        let read = mem.read(far.addr, value);
        let verifies = |value: &[u8]| self.version_of(value).0 == far.checksum;
        let is_short = far.bytes <= CHECKSUM_ALONE_BYTES_MAX;
        if is_short && read.is_ok() && verifies(value) {
            return Ok(true);
        }
        if self.index.is_still(mem, view)? {
            read?;
            let reason = "a value does not verify";
            let damage = Error::Corrupt { bucket: view.bucket, addr: far.addr, reason };
            return if is_short { Err(damage) } else { Ok(true) };
        }
        // The bucket changed, but perhaps not this key.
        let intact = read.is_ok() && verifies(value);
        if !intact {
            value.clear();
        }
        Ok(intact)
    }

    pub(super) fn check_depth(&self, view: &BucketView, depth: u8) -> Result<u8> {
        let possible = (self.level_first()..=LEVEL_MAX).contains(&depth)
            && low_bits(view.bucket, depth) == view.bucket;
        let reason = "the bucket has an impossible depth";
        let addr = view.word.blob_addr();
        possible.then_some(depth).ok_or(Error::Corrupt { bucket: view.bucket, addr, reason })
    }

    /// The bucket from which `bucket` is to be split off.
    fn parent(&self, bucket: u64) -> Result<u64> {
        if bucket >> self.level_first() == 0 {
            let (addr, reason) = (self.header, "a bucket of the first level does not exist");
            return Err(Error::Corrupt { bucket, addr, reason });
        }
        Ok(bucket ^ (1 << bucket.ilog2()))
    }

    /// The first bucket on the way from `bucket`, of depth `depth`, to the one that covers `hash`.
    /// It exists, since `bucket` was split that far.
    fn descendant(&self, hash: u64, bucket: u64, depth: u8) -> u64 {
        let differing = (hash ^ bucket).trailing_zeros() as u8;
        assert!(differing < depth, "a bucket that covers the hash is no detour");
        low_bits(hash, differing + 1)
    }
}

/// Lets others go on when an operation had to start again some times.
pub(super) fn pause(attempt: u32) {
    if attempt > ATTEMPTS_EAGER {
        std::thread::yield_now();
    }
}

pub(super) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let bytes = key.len() as u64;
        return Err(Error::KeySize { bytes, limit_bytes: KEY_BYTES_MAX as u64 });
    }
    Ok(())
}
