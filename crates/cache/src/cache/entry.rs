//! Read-modify-write: a key with its partition locked, and values that are written piece by piece
//! outside the lock.

use super::draft::{Hasher, ItemDraft, PlacedItem};
use super::error::{Error, Result};
use super::item::Item;
use super::key::Key;
use super::layout::{Fields, Slot};
use super::partition::{Abandoned, Found, Partition};
use super::segments::Pins;
use super::tier::FarValue;
use super::{Cache, Millis};
use rackpool_mem::window::Window;
use std::sync::{Arc, MutexGuard};

/// What is stored beside a value.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoredWith {
    /// The caller's flags.
    pub flags: u32,
    /// When the item expires; 0 = never.
    pub expires: Millis,
    /// The cas; 0 = the cache chooses.
    pub cas: u64,
    /// A client of memcached sent the key in base64, and such clients are told it in base64. Costs
    /// 8 bytes beside a value that never expires and has no flags.
    pub has_binary_key: bool,
}

impl StoredWith {
    pub(super) fn fields(self, partition: &Partition, now: Millis) -> Fields {
        let StoredWith { flags, expires, cas, has_binary_key } = self;
        Fields { has_binary_key, ..partition.fields_of(flags, expires, cas, now) }
    }
}

/// A key in its locked partition. No other call of the cache may be made by the thread that holds
/// one.
#[derive(Debug)]
pub struct Entry<'a> {
    pub(super) partition: MutexGuard<'a, Partition>,
    pub(super) key: Key<'a>,
    pub(super) hash: u64,
    pub(super) now: Millis,
    pub(super) found: Option<Found>,
}

impl<'a> Entry<'a> {
    /// Of a partition that was locked for this key (`LockedPartition::lock_key`).
    pub(crate) fn new(
        mut partition: MutexGuard<'a, Partition>,
        key: Key<'a>,
        hash: u64,
        now: Millis,
    ) -> Entry<'a> {
        let found = partition.find_fresh(hash, key, now);
        Entry { partition, key, hash, now, found }
    }

    /// The partition, for another key.
    pub(crate) fn into_partition(self) -> MutexGuard<'a, Partition> {
        self.partition
    }

    /// The item, if there is one that has not expired. Counts nothing.
    pub fn item(&self) -> Option<Item<'_>> {
        self.found.map(|found| self.partition.item(found, self.now))
    }

    /// As [`Entry::item`], counted as a hit or miss; the item is marked as used.
    pub fn read(&mut self) -> Option<Item<'_>> {
        self.partition.note_read(self.hash, self.found);
        let found = self.partition.count_use(self.hash, self.found, self.now)?;
        let item = self.partition.item(found, self.now);
        let used = self.partition.index.slot_at(found.0);
        self.found = Some((found.0, used));
        Some(item)
    }

    /// Stores the value that consists of `parts`; the new cas.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::OutOfMemory`]; the old value stays then, but a cache that is
    /// short of memory may have evicted it.
    pub fn put(&mut self, parts: &[&[u8]], flags: u32, expires: Millis) -> Result<u64> {
        self.put_with(parts, StoredWith { flags, expires, ..StoredWith::default() })
    }

    /// As [`Entry::put`] with this cas; 0 = the cache chooses.
    ///
    /// # Errors
    /// As [`Entry::put`].
    pub fn put_with_cas(
        &mut self,
        parts: &[&[u8]],
        flags: u32,
        expires: Millis,
        cas: u64,
    ) -> Result<u64> {
        self.put_with(parts, StoredWith { flags, expires, cas, ..StoredWith::default() })
    }

    /// As [`Entry::put`] with all of this.
    ///
    /// # Errors
    /// As [`Entry::put`].
    pub fn put_with(&mut self, parts: &[&[u8]], with: StoredWith) -> Result<u64> {
        let fields = with.fields(&self.partition, self.now);
        let value_bytes = parts.iter().map(|part| part.len() as u64).sum();
        if self.partition.is_for_tier(value_bytes) {
            let far = self.partition.far_alloc(value_bytes, self.now);
            self.found = self.partition.find(self.hash, self.key);
            let (mut far, mut offset) = (far?, 0);
            for part in parts {
                far.write(offset, part)?;
                offset += part.len() as u64;
            }
            return self.put_far(far, fields);
        }
        let cas = self.partition.cas_for(self.key, value_bytes, fields.cas);
        let fields = Fields { cas, ..fields };
        let draft = ItemDraft { key: self.key, hash: self.hash, value_bytes, fields };
        let put = self.partition.put(&draft, parts, &mut self.found, self.now);
        self.entered(put)
    }

    /// As [`Entry::put`], with a value that lies in the tier.
    pub(crate) fn put_far(&mut self, value: FarValue, fields: Fields) -> Result<u64> {
        let draft = ItemDraft { key: self.key, hash: self.hash, value_bytes: 0, fields };
        let put = self.partition.put_far(&draft, value, &mut self.found, self.now);
        self.entered(put)
    }

    pub(crate) fn fields_of(&self, flags: u32, expires: Millis) -> Fields {
        self.partition.fields_of(flags, expires, 0, self.now)
    }

    #[inline]
    fn entered(&mut self, put: Result<()>) -> Result<u64> {
        match put {
            Ok(()) => {
                let (_, slot) = self.found.expect("what was put is found");
                let pos = slot.pos();
                Ok(self.partition.cas_of(pos, self.partition.header(pos)))
            }
            Err(error) => {
                self.found = self.partition.find(self.hash, self.key);
                Err(error)
            }
        }
    }

    /// Stores a value of any type but a hash with parts, as [`Item::append_raw_to`] has read it;
    /// the new cas.
    ///
    /// # Errors
    /// As [`Entry::put`].
    pub fn put_raw(
        &mut self,
        value: &[u8],
        is_typed: bool,
        flags: u32,
        expires: Millis,
    ) -> Result<u64> {
        if !is_typed {
            return self.put(&[value], flags, expires);
        }
        let fields = self.partition.typed_fields(flags, expires, self.now);
        let value_bytes = value.len() as u64;
        let draft = ItemDraft { key: self.key, hash: self.hash, value_bytes, fields };
        let put = self.partition.put(&draft, &[value], &mut self.found, self.now);
        self.entered(put)
    }

    /// The item keeps its cas also where the cache moves it: for cas numbers that a client is told
    /// after a put.
    pub fn keep_cas(&mut self) {
        self.change_slot(|slot| slot.set(Slot::SEEN, true));
    }

    /// Memory for a value of `len` bytes that comes later; see [`Cache::reserve`].
    ///
    /// # Errors
    /// As [`Entry::put`].
    pub fn reserve(&mut self, len: u64, flags: u32, expires: Millis) -> Result<Writer> {
        let cas = self.partition.cas_for(self.key, len, 0);
        let fields = self.partition.fields_of(flags, expires, cas, self.now);
        let draft = ItemDraft { key: self.key, hash: self.hash, value_bytes: len, fields };
        let writer = reserve(&mut self.partition, &draft, self.now);
        self.found = self.partition.find(self.hash, self.key);
        writer
    }

    /// Makes the writer's value that of this key; the new cas.
    ///
    /// # Errors
    /// [`Error::Incomplete`]; [`Error::Tier`] if it could not be written; [`Error::Evicted`] if its
    /// memory was taken back meanwhile; [`Error::OutOfMemory`]. The old value stays.
    ///
    /// # Panics
    /// With the writer of another key.
    pub fn commit(&mut self, mut writer: Writer) -> Result<u64> {
        if writer.space != self.key.space {
            // Its database was flushed or swapped since.
            return Err(Error::Evicted { bytes: writer.len });
        }
        let key = Key { bytes: &writer.key, space: writer.space };
        assert_eq!((key, writer.hash), (self.key, self.hash), "another key");
        if writer.written < writer.len {
            return Err(Error::Incomplete { written_bytes: writer.written, bytes: writer.len });
        }
        let (now, fields) = (self.now, writer.fields);
        let placed = match std::mem::replace(&mut writer.place, WriteTarget::Gone) {
            WriteTarget::Here(placed) => placed,
            WriteTarget::Far(far) => {
                let (value, result) = *far;
                return result.and_then(|()| self.put_far(value, fields));
            }
            WriteTarget::Gone => unreachable!("a writer is committed once"),
        };
        let draft = ItemDraft { key: self.key, hash: self.hash, value_bytes: writer.len, fields };
        let value_hash = writer.state.digest();
        let cas = self.partition.cas_of(placed.head, placed.header);
        let committed = self.partition.commit(&draft, &placed, value_hash, self.found, now);
        let result = match committed {
            Ok(found) => {
                self.found = Some(found);
                Ok(cas)
            }
            Err(error) => {
                self.found = self.partition.find(self.hash, self.key);
                writer.leave(&placed);
                Err(error)
            }
        };
        writer.unpin(&placed);
        result
    }

    /// As a put of a value that has expired already: removes the item.
    pub fn put_expired(&mut self) {
        self.partition.note_change(self.hash);
        self.remove();
    }

    /// Removes the item; whether there was one.
    pub fn remove(&mut self) -> bool {
        self.partition.forget_behind(self.hash);
        let Some(found) = self.found.take() else { return false };
        self.partition.remove(self.hash, found);
        self.partition.stats.removes += 1;
        true
    }

    /// Changes when the item expires (0 = never); value, flags and cas stay.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]: its copy found no room; a cache may have evicted it.
    pub fn set_expiry(&mut self, expires: Millis) -> Result<()> {
        let Some(found) = self.found else { return Ok(()) };
        let changed = self.partition.set_expiry(self.hash, self.key, found, expires, self.now);
        match changed {
            Ok(found) => {
                self.found = Some(found);
                Ok(())
            }
            Err(error) => {
                self.found = self.partition.find(self.hash, self.key);
                Err(error)
            }
        }
    }

    /// Marks the item for its readers; a put clears both marks.
    pub fn mark(&mut self, stale: bool, won: bool) {
        // What lies behind memory has no marks.
        self.partition.outdate_behind(self.hash);
        self.change_slot(|slot| slot.set(Slot::STALE, stale).set(Slot::WON, won));
    }

    fn change_slot(&mut self, change: impl Fn(Slot) -> Slot) {
        if let Some((at, slot)) = &mut self.found {
            *slot = change(self.partition.index.slot_at(*at));
            self.partition.index.mark(*at, *slot);
        }
    }
}

impl Cache {
    /// Memory for a value of `len` bytes that is written outside the lock and becomes that of the
    /// key by [`Entry::commit`] or [`Writer::commit`].
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub fn reserve(
        &self,
        key: &[u8],
        len: u64,
        flags: u32,
        expires: Millis,
        now: Millis,
    ) -> Result<Writer> {
        let with = StoredWith { flags, expires, ..StoredWith::default() };
        self.reserve_with(key, len, with, now)
    }

    /// As [`Cache::reserve`] with all of this.
    ///
    /// # Errors
    /// As [`Cache::set`].
    pub fn reserve_with(
        &self,
        key: &[u8],
        len: u64,
        with: StoredWith,
        now: Millis,
    ) -> Result<Writer> {
        let hash = self.checked_hash(key)?;
        let mut partition = self.lock(self.index_of(hash));
        let cas = partition.cas_for(self.key(key), len, with.cas);
        let fields = StoredWith { cas, ..with }.fields(&partition, now);
        let draft = ItemDraft { key: self.key(key), hash, value_bytes: len, fields };
        reserve(&mut partition, &draft, now)
    }
}

/// Places a value that comes later.
pub(crate) fn reserve(
    partition: &mut Partition,
    draft: &ItemDraft<'_>,
    now: Millis,
) -> Result<Writer> {
    let &ItemDraft { key, hash, value_bytes: len, fields } = draft;
    let place = if partition.is_for_tier(len) {
        WriteTarget::Far(Box::new((partition.far_alloc(len, now)?, Ok(()))))
    } else {
        WriteTarget::Here(partition.reserve(draft, now)?)
    };
    Ok(Writer {
        key: key.bytes.to_vec(),
        space: key.space,
        hash,
        len,
        fields,
        written: 0,
        state: Box::default(),
        units: partition.units.clone(),
        pins: Arc::clone(&partition.segments.pins),
        abandoned: Arc::clone(&partition.abandoned),
        place,
    })
}

/// Memory of the cache for a value that comes piece by piece. It is not visible before
/// [`Entry::commit`]; dropped without, its memory comes back.
#[derive(Debug)]
pub struct Writer {
    key: Vec<u8>,
    space: u8,
    hash: u64,
    len: u64,
    fields: Fields,
    written: u64,
    state: Box<Hasher>,
    units: Window,
    pins: Arc<Pins>,
    abandoned: Arc<Abandoned>,
    place: WriteTarget,
}

/// Where a value that comes piece by piece is written.
#[derive(Debug)]
enum WriteTarget {
    /// In the log.
    Here(PlacedItem),
    /// In the tier, and whether that took all so far.
    Far(Box<(FarValue, Result<()>)>),
    Gone,
}

impl Writer {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Length of the value, bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Bytes that are missing.
    pub fn missing(&self) -> u64 {
        self.len - self.written
    }

    /// Appends to the value.
    ///
    /// # Panics
    /// With more bytes than are missing.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() as u64 <= self.missing(), "{} bytes are missing", self.missing());
        match &mut self.place {
            WriteTarget::Here(placed) => {
                placed.write(&self.units, self.written, bytes);
                self.state.0.update(bytes);
            }
            WriteTarget::Far(far) if far.1.is_ok() => far.1 = far.0.write(self.written, bytes),
            WriteTarget::Far(_) | WriteTarget::Gone => {}
        }
        self.written += bytes.len() as u64;
    }

    /// Makes the value that of its key, whatever was there; the new cas.
    ///
    /// # Errors
    /// As [`Entry::commit`].
    pub fn commit(self, cache: &Cache, now: Millis) -> Result<u64> {
        let key = self.key.clone();
        cache.entry(&key, now)?.commit(self)
    }

    fn unpin(&self, placed: &PlacedItem) {
        placed.pieces().for_each(|piece| self.pins.unpin(piece.unit));
    }

    /// The next change of the partition takes the memory back: the lock may be held here.
    fn leave(&self, placed: &PlacedItem) {
        self.abandoned.add(placed.head, placed.first.seq);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let WriteTarget::Here(placed) = std::mem::replace(&mut self.place, WriteTarget::Gone) {
            self.leave(&placed);
            self.unpin(&placed);
        }
    }
}
