//! Hashes under keys: what a command reads and changes with the key's partition locked, whichever
//! form the hash has (decision 0058).
//!
//! In: keys, fields, times. Out: fields and values, how changes went. A small hash is copied out,
//! changed, and put by [`HashEntry::finish`]; each change of a large one makes room for all of its
//! items, puts them, and the root last. `stream.rs`: all fields in steps. Called by the servers.

mod stream;
mod sweep;

pub use stream::HashStream;
pub(crate) use stream::StreamState;

use super::draft::ItemDraft;
use super::error::{Error, Result};
use super::item::{Item, Pinned};
use super::key::Key;
use super::layout::Header;
use super::partition::{Found, HashId, PACKED, Partition, ROOT};
use super::{Cache, Millis};
use crate::clock::Times;
use crate::hashes::{
    Condition, Expired, Field, FieldExpiry, FieldName, Form, HashItem, HashItems, LargeHash,
    LongValue, Packed, PackedHash, PackedLimits, PartId, Persisted, ROOT_BYTES, Root, Shape,
    Stored, Text,
};
use std::sync::MutexGuard;

/// Bytes that a small hash takes as it becomes a large one, its root and what it had: each field is
/// put with the whole, and once more as that splits.
const GROWTH_BYTES: u64 = 16 << 10;
/// What an item costs beside its value and a root's key, at most: header, key, words, padding.
const ITEM_BYTES: u64 = 64;
/// Items that one change of a large hash puts: a long value, a part, two that it splits into, the
/// root.
const ITEMS_OF_CHANGE: u64 = 5;

/// A hash, with its key's partition locked. No other call of the cache may be made by the thread
/// that holds one.
#[derive(Debug)]
pub struct HashEntry<'a> {
    partition: MutexGuard<'a, Partition>,
    key: Key<'a>,
    hash: u64,
    times: Times,
    held: Held,
    /// Where it lies, if nothing was put since it was read.
    found: Option<Found>,
    flags: u32,
    expires: Millis,
}

#[derive(Debug)]
enum Held {
    Nothing,
    /// As its item keeps it.
    Small(Vec<u8>),
    /// May have been changed since.
    Changed(PackedHash),
    Large(Root),
}

/// The value of a field.
#[derive(Debug)]
pub enum HashValue<'a> {
    /// It lies with its field.
    Text(Text<'a>),
    /// It is an item of its own.
    Item(&'a Item<'a>),
    /// As [`HashValue::Item`], of a field that has changed since.
    Pinned(Pinned),
}

impl Cache {
    /// Locks a key's partition to change the hash that lies there, or will.
    ///
    /// # Errors
    /// [`Error::KeySize`]; [`Error::WrongType`] of a string.
    pub fn hash_entry<'a>(&'a self, key: &'a [u8], times: Times) -> Result<HashEntry<'a>> {
        self.open_hash(key, times, false)
    }

    /// As [`Cache::hash_entry`], to read it: counted as a hit or miss, and marked as used.
    ///
    /// # Errors
    /// As [`Cache::hash_entry`].
    pub fn hash_reader<'a>(&'a self, key: &'a [u8], times: Times) -> Result<HashEntry<'a>> {
        self.open_hash(key, times, true)
    }

    fn open_hash<'a>(
        &'a self,
        key: &'a [u8],
        times: Times,
        is_read: bool,
    ) -> Result<HashEntry<'a>> {
        let hash = self.checked_hash(key)?;
        let partition = self.partitions[self.index_of(hash)].lock_key(hash, self.section);
        let key = self.key(key);
        let held = Held::Nothing;
        let (found, flags, expires) = (None, 0, 0);
        let mut entry = HashEntry { partition, key, hash, times, held, found, flags, expires };
        entry.partition.drop_lost_hashes();
        entry.load(is_read)?;
        Ok(entry)
    }
}

impl<'a> HashEntry<'a> {
    fn load(&mut self, is_read: bool) -> Result<()> {
        let partition = &mut *self.partition;
        let found = match is_read {
            true => partition.look_up(self.hash, self.key, self.times.now),
            false => partition.find_fresh(self.hash, self.key, self.times.now),
        };
        (self.held, self.flags, self.expires) = (Held::Nothing, 0, 0);
        self.found = found;
        let Some((_, slot)) = found else { return Ok(()) };
        let (pos, header) = (slot.pos(), partition.header(slot.pos()));
        if !header.has(Header::TYPED) {
            return Err(Error::WrongType);
        }
        let fields = partition.fields(pos, header);
        (self.flags, self.expires) = (fields.flags, fields.expires);
        let (kind, value) = partition.typed_value(pos, header);
        self.held = match kind {
            Some(ROOT) => Held::Large(Root::read(&value)?),
            Some(PACKED) => Held::Small(value),
            _ => return Err(Error::HashLost),
        };
        Ok(())
    }

    fn id_of(&self, root: &Root) -> HashId {
        HashId { owner: self.hash, generation: root.generation }
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        !matches!(self.held, Held::Nothing)
    }

    /// Whether it has parts: what goes over all of it is to be done in steps.
    #[must_use]
    pub fn is_large(&self) -> bool {
        matches!(self.held, Held::Large(_))
    }

    /// How many fields there are; of a large one with those that have expired and are still there.
    ///
    /// # Errors
    /// [`Error::HashLost`].
    pub fn count(&self) -> Result<u64> {
        Ok(match &self.held {
            Held::Nothing => 0,
            Held::Small(kept) => Packed::new(kept)?.live_count(self.times)? as u64,
            Held::Changed(packed) => packed.packed().count() as u64,
            Held::Large(root) => root.fields,
        })
    }

    /// Whether [`HashEntry::count`] may count some that have expired.
    #[must_use]
    pub fn may_have_expired(&self) -> bool {
        matches!(&self.held, Held::Large(root) if root.may_have_expired(self.times))
    }

    fn name<'n>(&self, field: &'n [u8]) -> FieldName<'n> {
        FieldName::new(field, self.partition.seed)
    }

    /// What `f` makes of a field's value and expiry.
    ///
    /// # Errors
    /// [`Error::HashLost`]: the hash is gone.
    pub fn get<R>(
        &mut self,
        field: &[u8],
        f: impl FnOnce(HashValue<'_>, Millis) -> R,
    ) -> Result<Option<R>> {
        let name = self.name(field);
        let part;
        let packed = match &self.held {
            Held::Nothing => return Ok(None),
            Held::Small(kept) => Packed::new(kept)?,
            Held::Changed(packed) => packed.packed(),
            Held::Large(root) => {
                let (id, which) = (self.id_of(root), root.shape.part_of(name.hash()));
                part = match self.partition.read_part(id, which, self.times.now) {
                    Ok(part) => part,
                    Err(error) => return Err(self.lose(error)),
                };
                Packed::new(&part)?
            }
        };
        let Some(Field { value, expires, .. }) = packed.get(&name, self.times)? else {
            return Ok(None);
        };
        let long = match (value, &self.held) {
            (Text::Long(long), Held::Large(root)) => (self.id_of(root), long),
            _ => return Ok(Some(f(HashValue::Text(value), expires))),
        };
        let item = self.partition.long_item(long.0, long.1, self.times.now);
        let done = item.map(|item| f(HashValue::Item(&item), expires));
        done.map(Some).map_err(|error| self.lose(error))
    }

    /// Takes the hash out: an item of it is not there.
    #[cold]
    fn lose(&mut self, error: Error) -> Error {
        if let Held::Large(root) = self.held
            && let Some((found, _)) = self.partition.find_root(self.id_of(&root))
        {
            self.partition.disturbances += 1;
            self.partition.remove(self.hash, found);
        }
        self.held = Held::Nothing;
        error
    }

    /// The small hash that is there, or a new one.
    fn small(&mut self) -> Result<&mut PackedHash> {
        if let Held::Small(kept) = &mut self.held {
            self.held = Held::Changed(PackedHash::open(std::mem::take(kept), self.times)?);
        }
        if let Held::Nothing = self.held {
            self.held = Held::Changed(PackedHash::new());
        }
        match &mut self.held {
            Held::Changed(packed) => Ok(packed),
            _ => unreachable!("it is not large"),
        }
    }

    /// Stores a field.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::OutOfMemory`], the field is as before then;
    /// [`Error::HashLost`].
    pub fn set(&mut self, field: &[u8], value: &[u8], expiry: FieldExpiry) -> Result<Stored> {
        let (bytes, max_bytes) = (value.len() as u64, self.partition.longest_value());
        if bytes > max_bytes {
            return Err(Error::TooLarge { bytes, max_bytes });
        }
        let name = self.name(field);
        if self.is_large() && self.is_ready_for(&name, field.len() as u64, bytes)? {
            return self.change(|large| large.set(&name, value, expiry));
        }
        match self.small()?.set(&name, Text::of(value), expiry, PackedLimits::SMALL) {
            Stored::TooLarge => {
                self.grow(field.len() as u64, bytes, |large| large.set(&name, value, expiry))
            }
            stored => Ok(stored),
        }
    }

    /// Removes a field; whether there was one.
    ///
    /// # Errors
    /// As [`HashEntry::set`].
    pub fn remove(&mut self, field: &[u8]) -> Result<bool> {
        let name = self.name(field);
        if self.is_large() && self.is_ready_for(&name, 0, 0)? {
            return self.change(|large| large.remove(&name));
        }
        Ok(self.is_there() && self.small()?.remove(&name))
    }

    /// Changes when a field expires, which is not 0, if the condition holds.
    ///
    /// # Errors
    /// As [`HashEntry::set`].
    pub fn expire(
        &mut self,
        field: &[u8],
        expires: Millis,
        condition: Condition,
    ) -> Result<Expired> {
        let (name, times) = (self.name(field), self.times);
        if self.is_large() && self.is_ready_for(&name, 0, 0)? {
            return self.change(|large| large.expire(&name, expires, condition));
        }
        if !self.is_there() {
            return Ok(Expired::NoField);
        }
        Ok(self.small()?.expire(&name, expires, condition, times))
    }

    /// A field never expires from now on.
    ///
    /// # Errors
    /// As [`HashEntry::set`].
    pub fn persist(&mut self, field: &[u8]) -> Result<Persisted> {
        let name = self.name(field);
        if self.is_large() && self.is_ready_for(&name, 0, 0)? {
            return self.change(|large| large.persist(&name));
        }
        if !self.is_there() {
            return Ok(Persisted::NoField);
        }
        Ok(self.small()?.persist(&name))
    }

    /// Visits fields from `at` on, 0 to begin with: of a large hash those of a part, of a small one
    /// all. Where the next part begins.
    ///
    /// # Errors
    /// [`Error::HashLost`], and those of `f`.
    pub fn visit(
        &mut self,
        at: u64,
        mut f: impl FnMut(Text<'_>, HashValue<'_>) -> Result<()>,
    ) -> Result<Option<u64>> {
        let (seed, times) = (self.partition.seed, self.times);
        // PartitionItems begin at multiples of what a cursor counts.
        let cursor = (at >> 32) as u32;
        let part;
        let (packed, cursor, next, id) = match &self.held {
            Held::Nothing => return Ok(None),
            Held::Small(kept) => (Packed::new(kept)?, cursor, None, None),
            Held::Changed(packed) => (packed.packed(), cursor, None, None),
            Held::Large(root) => {
                let (which, id) = (root.shape.part_of(at), self.id_of(root));
                part = match self.partition.read_part(id, which, times.now) {
                    Ok(part) => part,
                    Err(error) => return Err(self.lose(error)),
                };
                let cursor = if which.first_hash() == at { 0 } else { cursor };
                (Packed::new(&part)?, cursor, which.next_hash(), Some(id))
            }
        };
        for field in packed.fields_from(cursor, seed) {
            let field = field?;
            match (field.value, id) {
                _ if field.is_over(times) => {}
                (Text::Long(long), Some(id)) => {
                    let item = self.partition.long_item(id, long, times.now)?;
                    f(field.name, HashValue::Item(&item))?;
                }
                (text, _) => f(field.name, HashValue::Text(text))?,
            }
        }
        Ok(next)
    }

    /// Where the part begins that a hash of a field lies in; 0 of a small hash.
    #[must_use]
    pub fn part_at(&self, hash: u64) -> u64 {
        match &self.held {
            Held::Large(root) => root.shape.part_of(hash).first_hash(),
            Held::Nothing | Held::Small(_) | Held::Changed(_) => 0,
        }
    }

    /// Of a large hash, all its fields as they are now, for [`Cache::next_of_hash`].
    pub fn stream(&mut self) -> Option<HashStream> {
        let Held::Large(root) = &self.held else { return None };
        let id = self.id_of(root);
        Some(HashStream::new(&mut self.partition, id, self.times))
    }

    /// Makes room for a change of a field in a large hash; whether that is still one then.
    fn is_ready_for(
        &mut self,
        name: &FieldName<'_>,
        field_bytes: u64,
        value_bytes: u64,
    ) -> Result<bool> {
        let Held::Large(root) = &self.held else { return Ok(false) };
        let id = self.id_of(root);
        let bytes_of = |part: PartId| self.partition.part_bytes(id, part);
        let is_long = value_bytes > PackedLimits::PART.value_bytes_max as u64;
        let (short, long) = if is_long { (0, value_bytes) } else { (value_bytes, 0) };
        let part = bytes_of(root.shape.part_of(name.hash())) + field_bytes + short + ITEM_BYTES;
        let split = root.shape.split(root.bytes + part).map_or(0, |(it, _)| bytes_of(it));
        let join = root.shape.join(root.bytes.saturating_sub(part));
        let join = join.map_or(0, |(it, _)| it.halves().into_iter().map(bytes_of).sum::<u64>());
        let root_bytes = self.key.stored_bytes() as u64 + ROOT_BYTES as u64;
        let bytes = 2 * part + split.max(join) + root_bytes + ITEMS_OF_CHANGE * ITEM_BYTES;
        self.make_room(bytes, long)?;
        Ok(self.is_large())
    }

    /// Makes room; what is there may have gone for it.
    fn make_room(&mut self, bytes: u64, long_bytes: u64) -> Result<()> {
        let before = self.partition.disturbances;
        let (expires, now) = (self.expires, self.times.now);
        self.partition.make_hash_room(bytes, long_bytes, expires, now)?;
        if self.partition.disturbances != before && self.is_large() {
            self.partition.drop_lost_hashes();
            self.load(false)?;
        }
        Ok(())
    }

    /// Changes a large hash for which there is room.
    fn change<R>(
        &mut self,
        f: impl FnOnce(&mut LargeHash<'_, PartitionItems<'_>>) -> Result<R>,
    ) -> Result<R> {
        let Held::Large(root) = self.held else { unreachable!("it is large") };
        let (id, seed, times) = (self.id_of(&root), self.partition.seed, self.times);
        let mut sweep = self.partition.hashes.take_sweep(id);
        let mut parts = PartitionItems { partition: &mut self.partition, id, now: times.now };
        let mut large = LargeHash::open(&mut parts, root, seed, times).during(sweep.as_mut());
        let result = f(&mut large);
        let shape = large.root().shape;
        let finished = large.finish();
        self.partition.hashes.put_sweep(id, sweep.filter(|sweep| sweep.at().is_some()));
        self.conclude(id, shape, finished)?;
        result.map_err(|error| if let Error::HashLost = error { self.lose(error) } else { error })
    }

    /// Makes a small hash a large one as it is changed.
    fn grow<R>(
        &mut self,
        field_bytes: u64,
        value_bytes: u64,
        f: impl FnOnce(&mut LargeHash<'_, PartitionItems<'_>>) -> Result<R>,
    ) -> Result<R> {
        let root_bytes = self.key.stored_bytes() as u64 + ROOT_BYTES as u64;
        let field_bytes = 3 * (field_bytes + PackedLimits::PART.value_bytes_max as u64);
        self.make_room(GROWTH_BYTES + root_bytes + field_bytes, value_bytes)?;
        let generation = self.partition.new_generation();
        let id = HashId { owner: self.hash, generation };
        let (seed, times) = (self.partition.seed, self.times);
        let Held::Changed(packed) = &self.held else { unreachable!("it was small") };
        let mut parts = PartitionItems { partition: &mut self.partition, id, now: times.now };
        let mut large = LargeHash::grow(&mut parts, packed, generation, seed, times)?;
        let result = f(&mut large);
        let shape = large.root().shape;
        let finished = large.finish();
        self.conclude(id, shape, finished)?;
        result
    }

    /// Puts what is to lie under the key, and takes out what goes with that.
    fn conclude(
        &mut self,
        id: HashId,
        shape: Shape,
        finished: Result<(Form, Vec<HashItem>)>,
    ) -> Result<()> {
        self.found = None;
        let put = finished.and_then(|(form, retired)| {
            let put = match form {
                Form::Large(root) if matches!(self.held, Held::Large(old) if old == root) => Ok(()),
                // A lossy index dropped something of it meanwhile.
                Form::Large(_) if self.partition.is_losing(id) => Err(Error::HashLost),
                Form::Large(root) => {
                    self.held = Held::Large(root);
                    let put = self.put_here(ROOT, &root.kept(), true);
                    self.partition.hashes.note_root(id, &root);
                    put
                }
                Form::Small(packed) => {
                    self.held = Held::Small(packed.kept().to_vec());
                    let put = self.put_here(PACKED, packed.kept(), true);
                    // Behind the root that was there: these are the parts that there are.
                    self.partition.leave_hash(id, shape);
                    put
                }
                Form::Gone => {
                    self.held = Held::Nothing;
                    self.remove_here();
                    self.partition.leave_hash(id, shape);
                    Ok(())
                }
            };
            put.map(|()| retired)
        });
        match put {
            Ok(retired) => {
                retired.into_iter().for_each(|item| self.partition.drop_hash_item(id, item));
                Ok(())
            }
            // Its root says other than its parts: it cannot stay.
            Err(error) => {
                self.remove_here();
                self.partition.leave_hash(id, shape);
                self.held = Held::Nothing;
                Err(error)
            }
        }
    }

    /// Puts a typed value under the key; `is_ready`: there is room for it.
    fn put_here(&mut self, kind: u8, rest: &[u8], is_ready: bool) -> Result<()> {
        let (key, hash, now) = (self.key, self.hash, self.times.now);
        let fields = self.partition.typed_fields(self.flags, self.expires, now);
        let draft = ItemDraft { key, hash, value_bytes: 1 + rest.len() as u64, fields };
        let (kind, partition) = ([kind], &mut *self.partition);
        let parts = [&kind[..], rest];
        if is_ready {
            return partition.put_quietly(&draft, &parts, now);
        }
        let mut found = partition.find_fresh(hash, key, now);
        partition.put(&draft, &parts, &mut found, now)
    }

    fn remove_here(&mut self) {
        let partition = &mut *self.partition;
        if let Some(found) = partition.find_fresh(self.hash, self.key, self.times.now) {
            partition.disturbances += 1;
            partition.remove(self.hash, found);
        }
    }

    /// Puts what was changed in a small hash; one without fields is gone.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]: the hash is as before then, but a cache that is short of memory may
    /// have evicted it.
    pub fn finish(mut self) -> Result<()> {
        let held = std::mem::replace(&mut self.held, Held::Nothing);
        let Held::Changed(packed) = held else { return Ok(()) };
        match packed.packed().count() {
            _ if !packed.is_changed() => Ok(()),
            0 => {
                self.remove_here();
                Ok(())
            }
            _ => {
                if let (Some(found), Some(changed)) = (self.found, packed.changed())
                    && self.partition.rewrite(self.hash, found, 1, packed.kept(), changed)
                {
                    self.partition.mark_used(found.0, found.1, self.times.now);
                    return Ok(());
                }
                self.put_here(PACKED, packed.kept(), false)
            }
        }
    }
}

/// The items of a large hash, where they lie.
struct PartitionItems<'p> {
    partition: &'p mut Partition,
    id: HashId,
    now: Millis,
}

impl HashItems for PartitionItems<'_> {
    type Error = Error;

    fn part(&mut self, part: PartId) -> Result<Vec<u8>> {
        self.partition.read_part(self.id, part, self.now)
    }

    // A stream is told where the item itself goes.
    fn about_to_go(&mut self, _: PartId) {}

    fn put_part(&mut self, part: PartId, kept: &[u8]) -> Result<()> {
        // The root may stay as it is.
        self.partition.note_change(self.id.owner);
        self.partition.put_hash_item(self.id, HashItem::Part(part), kept, self.now)
    }

    fn put_long(&mut self, serial: u64, value: &[u8]) -> Result<()> {
        self.partition.put_hash_item(self.id, HashItem::Long(serial), value, self.now)
    }
}

impl Partition {
    /// A value that is an item of its own.
    pub(super) fn long_item(&self, id: HashId, long: LongValue, now: Millis) -> Result<Item<'_>> {
        let found = self.find_hash_item(id, HashItem::Long(long.serial));
        let (_, found) = found.ok_or(Error::HashLost)?;
        Ok(self.item(found, now))
    }
}
