//! The packed form, changed: bytes of an item in, bytes for the next one out. The caller has read
//! them from the log and puts them there; what has expired is dropped on the way.

use super::expiry::{Condition, EXPIRY_BYTES, Expired, FieldExpiry, Persisted, kept_expiry};
use super::packed::{COUNT_BYTES, FieldName, HAS_EXPIRY, Packed, PackedEntry};
use super::text::{LongValue, Text};
use super::{Damaged, PackedLimits};
use crate::Millis;
use crate::clock::{Times, has_passed};
use std::ops::Range;

/// A packed hash that is being changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedHash {
    /// Well-formed, always.
    kept: Vec<u8>,
    expired: usize,
    is_changed: bool,
    /// The bytes alone that have changed, as long as none has moved.
    changed: Option<Range<usize>>,
    freed: Vec<LongValue>,
}

/// How a field was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    Added,
    Replaced,
    /// Nothing changed: the hash would not be a small one any more.
    TooLarge,
}

/// Where an entry lies in the bytes of its hash.
struct Span {
    index: usize,
    at: usize,
    tail_at: usize,
    end: usize,
    expires: Millis,
    long: Option<LongValue>,
}

/// Entries on their way to a hash of their own.
#[derive(Default)]
struct Gathered {
    marks: Vec<u8>,
    entries: Vec<u8>,
}

impl Gathered {
    fn push(&mut self, from: Packed<'_>, entry: &PackedEntry<'_>) {
        self.marks.push(entry.mark);
        self.entries.extend_from_slice(&from.entries[entry.at..entry.end]);
    }

    fn hash(&self) -> PackedHash {
        let mut kept = Vec::with_capacity(COUNT_BYTES + self.marks.len() + self.entries.len());
        kept.extend_from_slice(&(self.marks.len() as u16).to_le_bytes());
        kept.extend_from_slice(&self.marks);
        kept.extend_from_slice(&self.entries);
        PackedHash::of(kept)
    }
}

impl Default for PackedHash {
    fn default() -> PackedHash {
        PackedHash::new()
    }
}

impl PackedHash {
    fn of(kept: Vec<u8>) -> PackedHash {
        PackedHash { kept, expired: 0, is_changed: false, changed: Some(0..0), freed: Vec::new() }
    }

    #[must_use]
    pub fn new() -> PackedHash {
        Gathered::default().hash()
    }

    /// The hash that is kept in these bytes, without what has expired.
    ///
    /// # Errors
    /// [`Damaged`]: they are none.
    pub fn open(kept: Vec<u8>, times: Times) -> Result<PackedHash, Damaged> {
        let packed = Packed::new(&kept)?;
        let expired = packed.check(times)?;
        if expired == 0 {
            return Ok(PackedHash::of(kept));
        }
        let (mut left, mut freed) = (Gathered::default(), Vec::new());
        for entry in packed.walk() {
            let entry = entry?;
            match entry.field.is_over(times) {
                false => left.push(packed, &entry),
                true => freed.extend(long_of(entry.field.value)),
            }
        }
        Ok(PackedHash { expired, is_changed: true, changed: None, freed, ..left.hash() })
    }

    /// What an item keeps of it.
    #[must_use]
    pub fn kept(&self) -> &[u8] {
        &self.kept
    }

    /// Whether it is not as its bytes were.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Where all bytes lie that are not as they were, if the others are where they were.
    #[must_use]
    pub fn changed(&self) -> Option<Range<usize>> {
        self.changed.clone()
    }

    /// Fields that had expired when it was opened.
    #[must_use]
    pub fn expired(&self) -> usize {
        self.expired
    }

    /// Values that are items of their own and were its until they were replaced or removed, or
    /// expired.
    pub fn take_freed(&mut self) -> Vec<LongValue> {
        std::mem::take(&mut self.freed)
    }

    /// The hash as it is now.
    #[must_use]
    pub fn packed(&self) -> Packed<'_> {
        Packed::new(&self.kept).expect("well-formed")
    }

    fn find(&self, name: &FieldName<'_>) -> Option<Span> {
        let packed = self.packed();
        let entry = packed.find(name).expect("well-formed")?;
        let before = self.kept.len() - packed.entries.len();
        Some(Span {
            index: entry.index,
            at: before + entry.at,
            tail_at: before + entry.tail_at,
            end: before + entry.end,
            expires: entry.field.expires,
            long: long_of(entry.field.value),
        })
    }

    /// Stores a field. One that was there keeps its place among the others.
    pub fn set(
        &mut self,
        name: &FieldName<'_>,
        value: Text<'_>,
        expiry: FieldExpiry,
        limits: PackedLimits,
    ) -> Stored {
        let found = self.find(name);
        let before = found.as_ref().map_or(0, |span| span.expires);
        let expires = match expiry {
            FieldExpiry::Keep => before,
            FieldExpiry::Set(expires) => expires,
        };
        let mut tail = Vec::with_capacity(EXPIRY_BYTES + value.kept_bytes());
        if expires != 0 {
            tail.extend_from_slice(&kept_expiry(expires));
        }
        value.append_to(&mut tail);
        let bytes = match &found {
            Some(span) => self.kept.len() - (span.end - span.tail_at) + tail.len(),
            None => self.kept.len() + 1 + name.text.kept_bytes() + tail.len(),
        };
        let is_long = matches!(value, Text::Bytes(bytes) if bytes.len() > limits.value_bytes_max);
        let is_full = found.is_none() && self.packed().count() == usize::from(u16::MAX);
        if is_full || is_long || (bytes > limits.bytes_max && bytes > self.kept.len()) {
            return Stored::TooLarge;
        }
        self.is_changed = true;
        let Some(span) = found else {
            self.add(name, expires, &tail);
            return Stored::Added;
        };
        self.freed.extend(span.long);
        let is_as_before = (span.expires == 0) == (expires == 0);
        if is_as_before && tail.len() == span.end - span.tail_at {
            self.kept[span.tail_at..span.end].copy_from_slice(&tail);
            self.changed = self.changed.take().map(|changed| match changed.is_empty() {
                true => span.tail_at..span.end,
                false => changed.start.min(span.tail_at)..changed.end.max(span.end),
            });
            return Stored::Replaced;
        }
        self.changed = None;
        self.kept.splice(span.tail_at..span.end, tail);
        self.note_expiry(span.index, expires);
        Stored::Replaced
    }

    fn add(&mut self, name: &FieldName<'_>, expires: Millis, tail: &[u8]) {
        self.changed = None;
        let count = self.packed().count();
        let has_expiry = if expires == 0 { 0 } else { HAS_EXPIRY };
        self.kept.insert(COUNT_BYTES + count, name.tag() | has_expiry);
        name.text.append_to(&mut self.kept);
        self.kept.extend_from_slice(tail);
        self.note_count(count + 1);
    }

    fn note_count(&mut self, count: usize) {
        self.kept[..COUNT_BYTES].copy_from_slice(&(count as u16).to_le_bytes());
    }

    fn note_expiry(&mut self, index: usize, expires: Millis) {
        let mark = &mut self.kept[COUNT_BYTES + index];
        *mark = (*mark & !HAS_EXPIRY) | if expires == 0 { 0 } else { HAS_EXPIRY };
    }

    /// Removes a field; whether there was one.
    pub fn remove(&mut self, name: &FieldName<'_>) -> bool {
        let found = self.find(name);
        let is_there = found.is_some();
        if let Some(span) = found {
            self.cut(&span);
        }
        is_there
    }

    fn cut(&mut self, span: &Span) {
        let count = self.packed().count();
        (self.is_changed, self.changed) = (true, None);
        self.freed.extend(span.long);
        self.kept.drain(span.at..span.end);
        self.kept.remove(COUNT_BYTES + span.index);
        self.note_count(count - 1);
    }

    /// Changes when a field expires, which is not 0, if the condition holds.
    pub fn expire(
        &mut self,
        name: &FieldName<'_>,
        expires: Millis,
        condition: Condition,
        times: Times,
    ) -> Expired {
        let Some(span) = self.find(name) else { return Expired::NoField };
        if !condition.holds(span.expires, expires, times) {
            return Expired::NotMet;
        }
        if has_passed(expires, times) {
            self.cut(&span);
            return Expired::Deleted;
        }
        self.set_expiry(&span, expires);
        Expired::Set
    }

    /// A field never expires from now on.
    pub fn persist(&mut self, name: &FieldName<'_>) -> Persisted {
        match self.find(name) {
            None => Persisted::NoField,
            Some(span) if span.expires == 0 => Persisted::NoExpiry,
            Some(span) => {
                self.set_expiry(&span, 0);
                Persisted::Done
            }
        }
    }

    fn set_expiry(&mut self, span: &Span, expires: Millis) {
        let old = if span.expires == 0 { 0 } else { EXPIRY_BYTES };
        let new = if expires == 0 { None } else { Some(kept_expiry(expires)) };
        self.kept.splice(span.tail_at..span.tail_at + old, new.into_iter().flatten());
        self.note_expiry(span.index, expires);
        (self.is_changed, self.changed) = (true, None);
    }

    /// Cuts it in two by this bit of the fields' hashes, counted from the highest one: those that
    /// have 0 there, and the others, each in the order in which they came.
    #[must_use]
    pub fn split(self, seed: u64, bit: u32) -> [PackedHash; 2] {
        let packed = self.packed();
        let mut halves = [Gathered::default(), Gathered::default()];
        for entry in packed.walk() {
            let entry = entry.expect("well-formed");
            let hash = entry.field.name.hash(seed).expect("no field is long");
            halves[(hash << bit >> (u64::BITS - 1)) as usize].push(packed, &entry);
        }
        let [mut low, high] = halves.map(|half| half.hash());
        (low.expired, low.freed) = (self.expired, self.freed);
        [low, high]
    }

    /// Takes the fields of another hash behind its own; it has none of them.
    pub fn absorb(&mut self, other: PackedHash) {
        let mut all = Gathered::default();
        for packed in [self.packed(), other.packed()] {
            all.marks.extend_from_slice(packed.marks);
            all.entries.extend_from_slice(packed.entries);
        }
        self.kept = all.hash().kept;
        (self.is_changed, self.changed) = (true, None);
        self.expired += other.expired;
        self.freed.extend(other.freed);
    }
}

fn long_of(value: Text<'_>) -> Option<LongValue> {
    match value {
        Text::Long(long) => Some(long),
        Text::Bytes(_) | Text::Number(_) => None,
    }
}
