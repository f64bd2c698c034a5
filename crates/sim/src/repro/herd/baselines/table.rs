//! The tables of Pilaf and FaRM-KV as bytes that READs bring: a cuckoo table with three hashes and
//! one slot a bucket, 75 % full; a hopscotch table with values inside or outside, a quarter full.
//! The processes of a server store in place, one at a time; a READ may see a part of that.
//!
//! | entry | 0 | 8 | 16 | 24 |
//! |---|---|---|---|---|
//! | Pilaf's bucket | key | checksum of the value | checksum of the bucket | pointer, 4 B; zeros |
//! | FaRM-KV's slot | key | checksum of key and value | value | |
//! | with values outside | key | checksum of key and value | pointer | |
//!
//! Pointers count from 1; values lie behind the table. Keys are never 0, stay where they are, and
//! none is added or taken out while others read: the paper leaves cuckoo moves out too.
//!
//! Source: HERD, background on Pilaf and FaRM-KV. FaRM's versions in each line are a checksum here.

use super::place::{self, CUCKOO_HASHES, NoPlace};
use super::{FARM_POINTER_BYTES, FARM_SLOTS, KEY_BYTES, PILAF_BUCKET_BYTES, System, hash};
use rackpool_core::seam::Mem;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Slots of the hopscotch table for each key: no key may be further from its home than the
/// neighbourhood, and there is no overflow chain as FaRM has.
const HOPSCOTCH_SPARSE: u64 = 4;
/// Seed of the checksum of a bucket.
const BUCKET_SEED: u64 = 0x6275_636b_6574;

/// Memory that a table lies in.
pub trait TableMemory {
    /// Copies from an offset on.
    fn copy_to(&self, at: u64, to: &mut [u8]);
    /// Stores from an offset on.
    fn store_from(&mut self, at: u64, from: &[u8]);
}

impl TableMemory for [u8] {
    fn copy_to(&self, at: u64, to: &mut [u8]) {
        to.copy_from_slice(&self[at as usize..][..to.len()]);
    }

    fn store_from(&mut self, at: u64, from: &[u8]) {
        self[at as usize..][..from.len()].copy_from_slice(from);
    }
}

impl<M: Mem> TableMemory for M {
    #[inline]
    fn copy_to(&self, at: u64, to: &mut [u8]) {
        self.copy_out(at, to);
    }

    #[inline]
    fn store_from(&mut self, at: u64, from: &[u8]) {
        self.copy_in(at, from);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub key: u64,
    pub at: u64,
    pub bytes: u64,
    /// Which hash, or that the value comes: its checksum.
    stage: LookupStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupStage {
    Bucket(u64),
    Value(u64),
}

/// How a GET goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// By the READ that is due now.
    Read,
    /// It is done, with the key's value if there is a table: [`KeyTable::value`] says where.
    Found,
    /// What was read is not whole, because a PUT went on meanwhile: the GET has to begin again.
    Wrong,
    /// The key is not there.
    Absent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashScheme {
    Cuckoo { buckets: u64 },
    Hopscotch { slots: u64, is_inline: bool },
}

/// The sizes of a table, by which all processes find keys in it; its bytes are elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTable {
    kind: HashScheme,
    keys: u64,
    value_bytes: u64,
}

impl KeyTable {
    /// The table of a system for so many keys, from 1 on. `None` for systems that have no table
    /// for READs.
    pub fn new(system: System, keys: u64, value_bytes: u64) -> Option<KeyTable> {
        let slots = HOPSCOTCH_SPARSE * keys;
        let kind = match system {
            System::Pilaf => HashScheme::Cuckoo { buckets: keys * 4 / 3 + 1 },
            System::Farm => HashScheme::Hopscotch { slots, is_inline: true },
            System::FarmVar => HashScheme::Hopscotch { slots, is_inline: false },
            _ => return None,
        };
        Some(KeyTable { kind, keys, value_bytes })
    }

    fn is_inline(&self) -> bool {
        matches!(self.kind, HashScheme::Hopscotch { is_inline: true, .. })
    }

    fn entry_bytes(&self) -> u64 {
        match self.kind {
            HashScheme::Cuckoo { .. } => PILAF_BUCKET_BYTES,
            HashScheme::Hopscotch { is_inline: true, .. } => KEY_BYTES + self.value_bytes,
            HashScheme::Hopscotch { .. } => KEY_BYTES + FARM_POINTER_BYTES,
        }
    }

    /// Where values begin that are outside; the end of the entries.
    fn values_at(&self) -> u64 {
        let entries = match self.kind {
            HashScheme::Cuckoo { buckets } => buckets,
            // The last home's neighbourhood does not go round.
            HashScheme::Hopscotch { slots, .. } => slots + FARM_SLOTS,
        };
        entries * self.entry_bytes()
    }

    /// Bytes of the table with its values.
    pub fn bytes(&self) -> u64 {
        let outside = if self.is_inline() { 0 } else { self.keys * self.value_bytes };
        self.values_at() + outside
    }

    /// Stores all keys, with the values that `value_of` says, in memory that is zero.
    ///
    /// # Errors
    /// [`NoPlace`].
    pub fn fill(
        &self,
        memory: &mut (impl TableMemory + ?Sized),
        mut value_of: impl FnMut(u64) -> Vec<u8>,
    ) -> Result<(), NoPlace> {
        let places = match self.kind {
            HashScheme::Cuckoo { buckets } => place::place_cuckoo(self.keys, buckets)?,
            HashScheme::Hopscotch { slots, .. } => place::place_hopscotch(self.keys, slots)?,
        };
        for (key, place) in (1..).zip(&places) {
            let entry = place * self.entry_bytes();
            memory.store_from(entry, &u64::to_le_bytes(key));
            match self.kind {
                HashScheme::Cuckoo { .. } => {
                    memory.store_from(entry + 24, &(key as u32).to_le_bytes());
                }
                HashScheme::Hopscotch { is_inline: false, .. } => {
                    memory.store_from(entry + KEY_BYTES, &u64::to_le_bytes(key));
                }
                HashScheme::Hopscotch { .. } => {}
            }
            self.store(memory, key, entry, &value_of(key));
        }
        Ok(())
    }

    /// Stores a value where the key's is. False if there is no such key, or the value has not the
    /// usual length. `scratch` is overwritten.
    pub fn put(
        &self,
        memory: &mut (impl TableMemory + ?Sized),
        key: u64,
        value: &[u8],
        scratch: &mut Vec<u8>,
    ) -> bool {
        let entry = self.find(memory, key, scratch);
        let entry = entry.filter(|_| value.len() as u64 == self.value_bytes);
        if let Some(entry) = entry {
            self.store(memory, key, entry, value);
        }
        entry.is_some()
    }

    /// Where the entry of a key is.
    fn find(
        &self,
        memory: &(impl TableMemory + ?Sized),
        key: u64,
        scratch: &mut Vec<u8>,
    ) -> Option<u64> {
        let hashes = match self.kind {
            HashScheme::Cuckoo { .. } => CUCKOO_HASHES,
            HashScheme::Hopscotch { .. } => 1,
        };
        (0..hashes).find_map(|which| {
            let Lookup { at, bytes, .. } = self.entries_of(key, which);
            scratch.resize(bytes as usize, 0);
            memory.copy_to(at, scratch);
            self.entry_in(key, scratch).map(|within| at + within as u64)
        })
    }

    /// Where in some entries that of a key is.
    fn entry_in(&self, key: u64, entries: &[u8]) -> Option<usize> {
        let bytes = self.entry_bytes() as usize;
        (0..entries.len()).step_by(bytes).find(|at| word(entries, *at) == key && key != 0)
    }

    /// Value and checksums of a key that has an entry.
    fn store(&self, memory: &mut (impl TableMemory + ?Sized), key: u64, entry: u64, value: &[u8]) {
        let outside = self.values_at() + (key - 1) * self.value_bytes;
        let sum = checksum(key, value);
        memory.store_from(if self.is_inline() { entry + KEY_BYTES } else { outside }, value);
        memory.store_from(entry + 8, &sum.to_le_bytes());
        if let HashScheme::Cuckoo { .. } = self.kind {
            let own = bucket_sum(key, sum, key as u32);
            memory.store_from(entry + 16, &own.to_le_bytes());
        }
    }

    /// The first READ of a GET.
    pub fn look_up(&self, key: u64) -> Lookup {
        self.entries_of(key, 0)
    }

    /// The entries that a key may have by one of its hashes.
    fn entries_of(&self, key: u64, which: u64) -> Lookup {
        let bytes = self.entry_bytes();
        let (first, count) = match self.kind {
            HashScheme::Cuckoo { buckets } => (place::bucket(key, which, buckets), 1),
            HashScheme::Hopscotch { slots, .. } => (place::home(key, slots), FARM_SLOTS),
        };
        Lookup { key, at: first * bytes, bytes: count * bytes, stage: LookupStage::Bucket(which) }
    }

    /// Takes what the READ of a look-up brought, which may be anything: the look-up is the next
    /// READ then, if there is one.
    ///
    /// # Panics
    /// If it is shorter than the READ that was asked for.
    #[inline]
    pub fn step(&self, lookup: &mut Lookup, data: &[u8]) -> Then {
        let key = lookup.key;
        let which = match lookup.stage {
            LookupStage::Value(sum) if checksum(key, data) == sum => return Then::Found,
            LookupStage::Value(_) => return Then::Wrong,
            LookupStage::Bucket(which) => which,
        };
        if let HashScheme::Cuckoo { .. } = self.kind {
            let (found, sum, pointer) = (word(data, 0), word(data, 8), word(data, 24) as u32);
            let is_whole = found == 0 || word(data, 16) == bucket_sum(found, sum, pointer);
            return match (found == key, is_whole) {
                (_, false) => Then::Wrong,
                (true, true) => self.read_value(lookup, pointer.into(), sum),
                _ if which + 1 < CUCKOO_HASHES => {
                    *lookup = self.entries_of(key, which + 1);
                    Then::Read
                }
                _ => Then::Absent,
            };
        }
        let Some(at) = self.entry_in(key, data) else { return Then::Absent };
        let sum = word(data, at + 8);
        if !self.is_inline() {
            return self.read_value(lookup, word(data, at + 16), sum);
        }
        let value = &data[at + KEY_BYTES as usize..at + self.entry_bytes() as usize];
        if checksum(key, value) == sum { Then::Found } else { Then::Wrong }
    }

    /// The value in what the last READ of a GET brought; empty if that was none.
    pub fn value<'d>(&self, lookup: &Lookup, data: &'d [u8]) -> &'d [u8] {
        match lookup.stage {
            LookupStage::Value(_) => data,
            LookupStage::Bucket(_) if self.is_inline() => {
                let at = self.entry_in(lookup.key, data);
                let end = self.entry_bytes() as usize;
                at.and_then(|at| data.get(at + KEY_BYTES as usize..at + end)).unwrap_or_default()
            }
            LookupStage::Bucket(_) => &[],
        }
    }

    fn read_value(&self, lookup: &mut Lookup, pointer: u64, sum: u64) -> Then {
        if !(1..=self.keys).contains(&pointer) {
            return Then::Wrong;
        }
        let at = self.values_at() + (pointer - 1) * self.value_bytes;
        let (bytes, stage) = (self.value_bytes, LookupStage::Value(sum));
        *lookup = Lookup { at, bytes, stage, ..*lookup };
        Then::Read
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Of a key and its value. Pilaf's is a CRC of 64 bits.
#[inline]
fn checksum(key: u64, value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, key)
}

/// Of what a bucket says.
#[inline]
fn bucket_sum(key: u64, sum: u64, pointer: u32) -> u64 {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    bytes[16..].copy_from_slice(&pointer.to_le_bytes());
    xxh3_64_with_seed(&bytes, BUCKET_SEED)
}

/// A value of a key from which can be told that it is one: the version first, then words that
/// follow from key and version. Shorter ones are cut off.
pub fn value_of(key: u64, version: u64, bytes: u64) -> Vec<u8> {
    let mut value: Vec<u8> =
        (0..bytes.div_ceil(8)).flat_map(|index| value_word(key, version, index)).collect();
    value.truncate(bytes as usize);
    value
}

/// Whether it is a value of that key, of any version; fewer than 8 bytes always are one.
pub fn is_value(key: u64, value: &[u8]) -> bool {
    let Some(version) = value.first_chunk::<8>() else { return true };
    let version = u64::from_le_bytes(*version);
    let mut words = (0..).zip(value.chunks(8));
    words.all(|(index, chunk)| value_word(key, version, index).starts_with(chunk))
}

#[inline]
fn value_word(key: u64, version: u64, index: u64) -> [u8; 8] {
    let word = if index == 0 { version } else { hash(key ^ hash(version, 1), index + 17) };
    word.to_le_bytes()
}

#[cfg(test)]
mod tests;
