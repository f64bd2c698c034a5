//! The packed form, read: all fields of a small hash, or of a part of a large one.
//!
//! ```text
//! count 2    marks, one for each field    entries in the same order
//! mark       has an expiry 1 | tag 7      the tag is of the field's hash
//! entry      field, [expiry 6], value     texts as in `text.rs`
//! ```
//!
//! Fields lie in the order in which they came, so `HGETALL` answers in the order in which Redis
//! does for its own small hashes. A field is found by its tag among the marks; then entries are
//! walked over up to it.

use super::Damaged;
use super::expiry::{EXPIRY_BYTES, read_expiry};
use super::text::{self, Text};
use crate::Millis;
use crate::clock::{Times, has_passed};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(super) const COUNT_BYTES: usize = 2;
pub(super) const HAS_EXPIRY: u8 = 0x80;
const TAG_MASK: u8 = 0x7f;

/// A field that is looked for, and its hash.
#[derive(Clone, Copy, Debug)]
pub struct FieldName<'a> {
    pub(super) text: Text<'a>,
    hash: u64,
}

impl<'a> FieldName<'a> {
    /// The field of these bytes. `seed` is that of the cache.
    #[must_use]
    pub fn new(bytes: &'a [u8], seed: u64) -> FieldName<'a> {
        FieldName { text: Text::of(bytes), hash: xxh3_64_with_seed(bytes, seed) }
    }

    /// Its hash; the highest bits say in which part of a large hash it lies.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn tag(&self) -> u8 {
        self.hash as u8 & TAG_MASK
    }
}

/// A field, its value, and when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub name: Text<'a>,
    pub value: Text<'a>,
    /// When it expires; 0 = never.
    pub expires: Millis,
}

impl Field<'_> {
    #[must_use]
    pub fn is_over(&self, times: Times) -> bool {
        self.expires != 0 && has_passed(self.expires, times)
    }
}

/// Where an entry lies among the entries, and what it says.
#[derive(Clone, Copy)]
pub(super) struct PackedEntry<'a> {
    pub index: usize,
    pub mark: u8,
    /// Where the field begins, bytes.
    pub at: usize,
    /// Where it ends, and expiry and value begin.
    pub tail_at: usize,
    pub end: usize,
    pub field: Field<'a>,
}

/// A packed hash in the bytes of an item.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    pub(super) marks: &'a [u8],
    pub(super) entries: &'a [u8],
}

impl<'a> Packed<'a> {
    /// The bit of a mark that says that its field has an expiry.
    pub(crate) const HAS_EXPIRY: u8 = HAS_EXPIRY;

    /// The hash that is kept in these bytes.
    ///
    /// # Errors
    /// [`Damaged`]: they are too short to be one. Of the rest only what is read is looked at.
    pub fn new(kept: &'a [u8]) -> Result<Packed<'a>, Damaged> {
        let (count, rest) = kept.split_first_chunk::<COUNT_BYTES>().ok_or(Damaged)?;
        let count = usize::from(u16::from_le_bytes(*count));
        let (marks, entries) = rest.split_at_checked(count).ok_or(Damaged)?;
        Ok(Packed { marks, entries })
    }

    /// Fields, expired ones that are still there included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.marks.len()
    }

    /// Fields that have an expiry.
    #[must_use]
    pub fn count_with_expiry(&self) -> usize {
        self.marks.iter().filter(|mark| **mark & HAS_EXPIRY != 0).count()
    }

    /// Fields that have not expired.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn live_count(&self, times: Times) -> Result<usize, Damaged> {
        if self.count_with_expiry() == 0 {
            return Ok(self.count());
        }
        let mut count = 0;
        for field in self.fields() {
            count += usize::from(!field?.is_over(times));
        }
        Ok(count)
    }

    /// A field that has not expired.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn get(&self, name: &FieldName<'_>, times: Times) -> Result<Option<Field<'a>>, Damaged> {
        let found = self.find(name)?.map(|entry| entry.field);
        Ok(found.filter(|field| !field.is_over(times)))
    }

    /// All fields in the order in which they came, expired ones included. Nothing follows an error.
    pub fn fields(&self) -> impl Iterator<Item = Result<Field<'a>, Damaged>> + use<'a> {
        self.walk().map(|entry| entry.map(|entry| entry.field))
    }

    /// The fields from a cursor on, all at once: for a walk by [`LargeHash::scan`], which may have
    /// begun when the hash was large. From 0 on those are all.
    ///
    /// [`LargeHash::scan`]: super::LargeHash::scan
    pub fn fields_from(
        &self,
        cursor: u32,
        seed: u64,
    ) -> impl Iterator<Item = Result<Field<'a>, Damaged>> + use<'a> {
        let at = u64::from(cursor) << 32;
        let is_ahead = move |field: &Field<'a>| {
            at == 0 || field.name.hash(seed).is_some_and(|hash| hash >= at)
        };
        self.fields().filter(move |field| field.as_ref().map_or(true, is_ahead))
    }

    pub(super) fn find(&self, name: &FieldName<'_>) -> Result<Option<PackedEntry<'a>>, Damaged> {
        let tag = name.tag();
        let Some(last) = self.marks.iter().rposition(|mark| mark & TAG_MASK == tag) else {
            return Ok(None);
        };
        let mut walk = self.walk();
        for mark in &self.marks[..=last] {
            if mark & TAG_MASK != tag {
                walk.skip_entry(*mark).ok_or(Damaged)?;
                continue;
            }
            let entry = walk.entry(*mark).ok_or(Damaged)?;
            if entry.field.name == name.text {
                return Ok(Some(entry));
            }
            (walk.index, walk.at) = (walk.index + 1, entry.end);
        }
        Ok(None)
    }

    /// Whether all entries are well-formed, and how many of them are over.
    pub(super) fn check(&self, times: Times) -> Result<usize, Damaged> {
        let (mut walk, mut over) = (self.walk(), 0);
        for mark in self.marks {
            if mark & HAS_EXPIRY == 0 {
                walk.skip_entry(*mark).ok_or(Damaged)?;
                continue;
            }
            let entry = walk.entry(*mark).ok_or(Damaged)?;
            over += usize::from(entry.field.is_over(times));
            (walk.index, walk.at) = (walk.index + 1, entry.end);
        }
        if walk.at == self.entries.len() { Ok(over) } else { Err(Damaged) }
    }

    pub(super) fn walk(&self) -> Walk<'a> {
        Walk { packed: *self, index: 0, at: 0 }
    }
}

/// Goes over the entries; an error is the last.
pub(super) struct Walk<'a> {
    packed: Packed<'a>,
    index: usize,
    at: usize,
}

impl<'a> Walk<'a> {
    #[inline]
    fn entry(&self, mark: u8) -> Option<PackedEntry<'a>> {
        let (index, at, entries) = (self.index, self.at, self.packed.entries);
        let (name, bytes) = text::read(entries.get(at..)?)?;
        if matches!(name, Text::Long(_)) {
            return None;
        }
        let tail_at = at + bytes;
        let (expires, value_at) = match mark & HAS_EXPIRY {
            0 => (0, tail_at),
            _ => (read_expiry(&entries[tail_at..])?, tail_at + EXPIRY_BYTES),
        };
        let (value, bytes) = text::read(&entries[value_at..])?;
        let field = Field { name, value, expires };
        Some(PackedEntry { index, mark, at, tail_at, end: value_at + bytes, field })
    }

    /// Goes on behind an entry that is not read.
    #[inline]
    fn skip_entry(&mut self, mark: u8) -> Option<()> {
        let rest = self.packed.entries.get(self.at..)?;
        let name = text::skip(rest).filter(|_| !text::is_long(rest))?;
        let value_at = name + if mark & HAS_EXPIRY == 0 { 0 } else { EXPIRY_BYTES };
        let value = text::skip(rest.get(value_at..)?)?;
        (self.index, self.at) = (self.index + 1, self.at + value_at + value);
        Some(())
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<PackedEntry<'a>, Damaged>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let mark = *self.packed.marks.get(self.index)?;
        let Some(entry) = self.entry(mark) else {
            self.index = self.packed.marks.len();
            return Some(Err(Damaged));
        };
        (self.index, self.at) = (self.index + 1, entry.end);
        Some(Ok(entry))
    }
}
