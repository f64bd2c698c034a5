//! The large form, read and changed: a root and its parts. Which items there are this module says;
//! where they lie [`HashItems`] knows.
//!
//! A change puts what is new first (a long value, then a part, or the two of a split) and tells at
//! its end, by [`LargeHash::finish`], the root that is to be put then and the items that are to go
//! after that. So a process that ends in between leaves the hash as it was before or after each
//! change, and items that no root names.

use super::edit::{PackedHash, Stored};
use super::expiry::{Condition, Expired, FieldExpiry, Persisted};
use super::packed::{Field, FieldName, Packed};
use super::root::{HashItem, Root, note_earliest};
use super::shape::{PART_BYTES_MEAN, PartId, Shape};
use super::text::{LongValue, Text};
use super::{Damaged, PackedLimits};
use crate::Millis;
use crate::clock::Times;

/// The items of one large hash, beside its root.
pub trait HashItems {
    /// Why one cannot be had or put.
    type Error: From<Damaged>;

    /// What a part keeps; an error if it is not there.
    ///
    /// # Errors
    /// Its own.
    fn part(&mut self, part: PartId) -> Result<Vec<u8>, Self::Error>;

    /// The part is to be replaced, by itself, its halves or the whole: the time to keep it, and its
    /// long values, for a [`FieldStream`](super::FieldStream) that wants it.
    fn about_to_go(&mut self, part: PartId);

    /// Puts a part in place of the one that there may be.
    ///
    /// # Errors
    /// Its own; the old one is there then.
    fn put_part(&mut self, part: PartId, kept: &[u8]) -> Result<(), Self::Error>;

    /// Puts a value that is an item of its own, under a new serial.
    ///
    /// # Errors
    /// Its own; there is none then.
    fn put_long(&mut self, serial: u64, value: &[u8]) -> Result<(), Self::Error>;
}

/// What is to lie under the hash's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// This root. What was retired goes after it was put.
    Large(Root),
    /// This packed hash: it has become small. All items of the root go after it was put.
    Small(PackedHash),
    /// Nothing: it has no fields any more. All items of the root go.
    Gone,
}

/// A large hash, while one command works on it.
#[derive(Debug)]
pub struct LargeHash<'a, I> {
    items: &'a mut I,
    root: Root,
    seed: u64,
    times: Times,
    retired: Vec<HashItem>,
    expired: u64,
    sweep: Option<&'a mut Sweep>,
}

/// A walk over all parts of a hash that drops what has expired, in steps; others change the hash
/// meanwhile.
#[derive(Debug)]
pub struct Sweep {
    /// The first hash that it has not seen; `None` at the end.
    at: Option<u64>,
    /// No field that it has seen expires before these.
    earliest: [Millis; 2],
}

impl Default for Sweep {
    fn default() -> Sweep {
        Sweep { at: Some(0), earliest: [0; 2] }
    }
}

impl Sweep {
    /// The first hash that it has not seen; `None` at the end.
    #[must_use]
    pub fn at(&self) -> Option<u64> {
        self.at
    }
}

impl<'a, I: HashItems> LargeHash<'a, I> {
    /// The hash of this root. `seed` is that of the cache.
    pub fn open(items: &'a mut I, root: Root, seed: u64, times: Times) -> LargeHash<'a, I> {
        LargeHash { items, root, seed, times, retired: Vec::new(), expired: 0, sweep: None }
    }

    /// Makes a hash that was small a large one; its root comes with [`LargeHash::finish`].
    ///
    /// # Errors
    /// Of its items; nothing was put then.
    pub fn grow(
        items: &'a mut I,
        small: &PackedHash,
        generation: u32,
        seed: u64,
        times: Times,
    ) -> Result<LargeHash<'a, I>, I::Error> {
        let root = Root {
            generation,
            shape: Shape::of(1).expect("one part is some"),
            fields: small.packed().count() as u64,
            bytes: small.kept().len() as u64,
            long_bytes: 0,
            next_serial: 0,
            earliest: [0; 2],
        };
        items.put_part(PartId::WHOLE, small.kept())?;
        let mut large = LargeHash::open(items, root, seed, times);
        for field in small.packed().fields() {
            large.note_expiry(field?.expires);
        }
        // Each makes one part more, and no small hash needs many.
        for _ in 0..PackedLimits::SMALL.bytes_max {
            if !large.split() {
                break;
            }
        }
        Ok(large)
    }

    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Fields that had expired and went on the way.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired
    }

    /// What `f` makes of a field that has not expired.
    ///
    /// # Errors
    /// Of its items.
    pub fn get<R>(
        &mut self,
        name: &FieldName<'_>,
        f: impl FnOnce(Field<'_>) -> R,
    ) -> Result<Option<R>, I::Error> {
        let kept = self.items.part(self.root.shape.part_of(name.hash()))?;
        Ok(Packed::new(&kept)?.get(name, self.times)?.map(f))
    }

    /// Stores a field.
    ///
    /// # Errors
    /// Of its items; the hash is as before then.
    pub fn set(
        &mut self,
        name: &FieldName<'_>,
        value: &[u8],
        expiry: FieldExpiry,
    ) -> Result<Stored, I::Error> {
        let text = match Text::of(value) {
            Text::Bytes(bytes) if bytes.len() > PackedLimits::PART.value_bytes_max => {
                let serial = self.root.next_serial;
                self.items.put_long(serial, bytes)?;
                self.root.next_serial += 1;
                Text::Long(LongValue { serial, bytes: bytes.len() as u32 })
            }
            text => text,
        };
        let changed = self.change(name, |part| part.set(name, text, expiry, PackedLimits::PART));
        let is_stored = matches!(changed, Ok(Stored::Added | Stored::Replaced));
        match (text, expiry) {
            (Text::Long(long), _) if !is_stored => self.retired.push(HashItem::Long(long.serial)),
            (_, FieldExpiry::Set(expires)) if is_stored => self.note_expiry(expires),
            _ => {}
        }
        let stored = changed?;
        if let (Text::Long(long), true) = (text, is_stored) {
            self.root.long_bytes += u64::from(long.bytes);
        }
        // A part that finds no room stays whole until a later change.
        self.split();
        Ok(stored)
    }

    /// Removes a field; whether there was one.
    ///
    /// # Errors
    /// Of its items; the hash is as before then.
    pub fn remove(&mut self, name: &FieldName<'_>) -> Result<bool, I::Error> {
        let was_there = self.change(name, |part| part.remove(name))?;
        self.join();
        Ok(was_there)
    }

    /// As [`PackedHash::expire`].
    ///
    /// # Errors
    /// Of its items; the hash is as before then.
    pub fn expire(
        &mut self,
        name: &FieldName<'_>,
        expires: Millis,
        condition: Condition,
    ) -> Result<Expired, I::Error> {
        let times = self.times;
        let done = self.change(name, |part| part.expire(name, expires, condition, times))?;
        match done {
            Expired::Set => self.note_expiry(expires),
            Expired::Deleted => self.join(),
            Expired::NoField | Expired::NotMet => {}
        }
        Ok(done)
    }

    /// As [`PackedHash::persist`].
    ///
    /// # Errors
    /// Of its items; the hash is as before then.
    pub fn persist(&mut self, name: &FieldName<'_>) -> Result<Persisted, I::Error> {
        self.change(name, |part| part.persist(name))
    }

    /// Has a sweep told of what expires earlier from now on.
    #[must_use]
    pub fn during(mut self, sweep: Option<&'a mut Sweep>) -> LargeHash<'a, I> {
        self.sweep = sweep;
        self
    }

    /// Goes on with the sweep by a part: drops what has expired in it. Whether the sweep is at its
    /// end: no field that is there had expired when it began.
    ///
    /// # Errors
    /// Of its items.
    ///
    /// # Panics
    /// Without a sweep.
    pub fn sweep(&mut self) -> Result<bool, I::Error> {
        let at = self.sweep.as_ref().expect("a sweep").at;
        let part = self.root.shape.part_of(at.unwrap_or(u64::MAX));
        self.change_part(part, |_| ())?;
        let kept = self.items.part(part)?;
        let sweep = self.sweep.as_mut().expect("a sweep");
        for field in Packed::new(&kept)?.fields() {
            note_earliest(&mut sweep.earliest, field?.expires);
        }
        sweep.at = part.next_hash();
        if sweep.at.is_none() {
            self.root.earliest = sweep.earliest;
        }
        Ok(sweep.at.is_none())
    }

    /// Visits the fields from a cursor on, 0 to begin with, whole parts until there were `count`;
    /// the next cursor, 0 at the end. Every field that is there throughout is seen once.
    ///
    /// # Errors
    /// Of its items.
    pub fn scan(
        &mut self,
        cursor: u32,
        count: usize,
        mut f: impl FnMut(Field<'_>),
    ) -> Result<u32, I::Error> {
        let (mut at, mut seen) = (u64::from(cursor) << 32, 0usize);
        loop {
            let next = self.visit(at, |field| {
                f(field);
                seen += 1;
            })?;
            match next {
                None => return Ok(0),
                Some(next) if seen >= count => return Ok((next >> 32) as u32),
                Some(next) => at = next,
            }
        }
    }

    /// Visits the fields from this hash on that lie in its part; where the next part begins. To
    /// draw one at random, begin with the part of a random hash.
    ///
    /// # Errors
    /// Of its items.
    pub fn visit(
        &mut self,
        at: u64,
        mut f: impl FnMut(Field<'_>),
    ) -> Result<Option<u64>, I::Error> {
        let part = self.root.shape.part_of(at);
        let kept = self.items.part(part)?;
        for field in Packed::new(&kept)?.fields() {
            let field = field?;
            // What lies before was seen before two parts were joined.
            let is_ahead = part.first_hash() == at
                || field.name.hash(self.seed).is_some_and(|hash| hash >= at);
            if is_ahead && !field.is_over(self.times) {
                f(field);
            }
        }
        Ok(part.next_hash())
    }

    /// What is to lie under the key now, and the items that are to go when it does.
    ///
    /// # Errors
    /// Of its items.
    pub fn finish(self) -> Result<(Form, Vec<HashItem>), I::Error> {
        let root = self.root;
        if root.fields == 0 {
            return Ok((Form::Gone, self.retired));
        }
        let is_small =
            root.shape.parts() == 1 && root.long_bytes == 0 && root.bytes <= PART_BYTES_MEAN;
        if is_small {
            let whole = PackedHash::open(self.items.part(PartId::WHOLE)?, self.times)?;
            if whole.packed().count() as u64 == root.fields {
                return Ok((Form::Small(whole), self.retired));
            }
        }
        Ok((Form::Large(root), self.retired))
    }

    fn note_expiry(&mut self, expires: Millis) {
        note_earliest(&mut self.root.earliest, expires);
        if let Some(sweep) = &mut self.sweep {
            note_earliest(&mut sweep.earliest, expires);
        }
    }

    fn change<R>(
        &mut self,
        name: &FieldName<'_>,
        f: impl FnOnce(&mut PackedHash) -> R,
    ) -> Result<R, I::Error> {
        self.change_part(self.root.shape.part_of(name.hash()), f)
    }

    fn change_part<R>(
        &mut self,
        part: PartId,
        f: impl FnOnce(&mut PackedHash) -> R,
    ) -> Result<R, I::Error> {
        let kept = self.items.part(part)?;
        let (fields, bytes) = (Packed::new(&kept)?.count(), kept.len());
        let mut hash = PackedHash::open(kept, self.times)?;
        let result = f(&mut hash);
        if hash.is_changed() {
            self.items.about_to_go(part);
            self.put(part, &hash)?;
            self.account([fields, bytes], &mut [hash]);
        }
        Ok(result)
    }

    fn put(&mut self, part: PartId, hash: &PackedHash) -> Result<(), I::Error> {
        self.items.put_part(part, hash.kept())?;
        // It may have been there earlier in this command.
        self.retired.retain(|item| *item != HashItem::Part(part));
        Ok(())
    }

    /// Parts with so many fields and bytes have become these.
    fn account(&mut self, [fields, bytes]: [usize; 2], now: &mut [PackedHash]) {
        self.root.fields -= fields as u64;
        self.root.bytes -= bytes as u64;
        for hash in now {
            self.root.fields += hash.packed().count() as u64;
            self.root.bytes += hash.kept().len() as u64;
            self.expired += hash.expired() as u64;
            for long in hash.take_freed() {
                self.root.long_bytes -= u64::from(long.bytes);
                self.retired.push(HashItem::Long(long.serial));
            }
        }
    }

    /// Splits a part, if that is due and there is room; whether it did.
    fn split(&mut self) -> bool {
        let Some((part, shape)) = self.root.shape.split(self.root.bytes) else { return false };
        let Ok(kept) = self.items.part(part) else { return false };
        let bytes = kept.len();
        let Ok(whole) = PackedHash::open(kept, self.times) else { return false };
        let fields = whole.packed().count() + whole.expired();
        let mut halves = whole.split(self.seed, part.depth());
        self.items.about_to_go(part);
        for (half, hash) in part.halves().into_iter().zip(&halves) {
            if self.put(half, hash).is_err() {
                let [low, _] = part.halves();
                self.retired.extend((half != low).then_some(HashItem::Part(low)));
                return false;
            }
        }
        self.account([fields, bytes], &mut halves);
        self.retired.push(HashItem::Part(part));
        self.root.shape = shape;
        true
    }

    /// Makes one part of two, if that is due and there is room.
    fn join(&mut self) {
        let Some((part, shape)) = self.root.shape.join(self.root.bytes) else { return };
        let mut both = Vec::with_capacity(2);
        let (mut fields, mut bytes) = (0, 0);
        for half in part.halves() {
            let Ok(kept) = self.items.part(half) else { return };
            bytes += kept.len();
            let Ok(hash) = PackedHash::open(kept, self.times) else { return };
            fields += hash.packed().count() + hash.expired();
            both.push(hash);
        }
        let [mut whole, high]: [PackedHash; 2] = both.try_into().expect("two halves");
        whole.absorb(high);
        part.halves().into_iter().for_each(|half| self.items.about_to_go(half));
        if self.put(part, &whole).is_err() {
            return;
        }
        self.account([fields, bytes], &mut [whole]);
        self.retired.extend(part.halves().map(HashItem::Part));
        self.root.shape = shape;
    }
}
