//! The blob: all keys of one bucket with their values, immutable once published. Bytes in, entries
//! out; every reader checks the length, the checksum and the structure before it believes any.
//!
//! ```text
//! 0   checksum: xxh3 of bytes 8.., seeded with the stamp
//! 8   bytes of the blob (u32), entries (u16), depth of the bucket (u8), 0
//! 16  entries: key bytes (u32), value bytes (u32, top bit: far), key, value
//!     a far value is address (u64), bytes (u64), checksum (u64)
//! ```
//! The stamp (table, bucket, sequence number) is not stored but seeds the checksum: a blob that was
//! written for another bucket, another table or another moment does not verify. All integers are
//! little-endian.

use crate::constants::{BLOB_BYTES_MAX, BLOB_ENTRIES_MAX, INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX};
use crate::words::{ALIGN_BYTES, GAddr};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(crate) const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 8;
const FAR_BYTES: usize = 24;
const FAR_BIT: u32 = 1 << 31;

/// What a blob was written for. No two published blobs share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub table_id: u64,
    pub bucket: u64,
    /// Changes of the bucket up to and including this one.
    pub seq: u64,
}

impl Stamp {
    fn seed(self) -> u64 {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.table_id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bucket.to_le_bytes());
        bytes[16..].copy_from_slice(&self.seq.to_le_bytes());
        xxh3_64(&bytes)
    }
}

/// A value that is an allocation of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExternalValue {
    pub addr: GAddr,
    /// Its length, which is the length of the allocation too.
    pub bytes: u64,
    /// xxh3 of its bytes, seeded with the table's id.
    pub checksum: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlobValue<'a> {
    Inline(&'a [u8]),
    External(ExternalValue),
}

impl BlobValue<'_> {
    pub fn bytes(&self) -> u64 {
        match self {
            BlobValue::Inline(bytes) => bytes.len() as u64,
            BlobValue::External(far) => far.bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlobEntry<'a> {
    pub key: &'a [u8],
    pub value: BlobValue<'a>,
}

/// The bytes to allocate for a blob: its length rounded up to what the pool would give anyway.
pub(crate) fn alloc_bytes(blob_bytes: usize) -> u64 {
    (blob_bytes as u64).next_power_of_two().max(ALIGN_BYTES)
}

/// The length of a blob with this entry alone.
pub(crate) fn blob_bytes_of(key: &[u8], value_bytes: usize) -> usize {
    let is_far = value_bytes > INLINE_VALUE_BYTES_MAX;
    HEADER_BYTES + ENTRY_BYTES + key.len() + if is_far { FAR_BYTES } else { value_bytes }
}

/// The length that a blob states, if it is a possible one. `bytes` holds at least the header.
pub(crate) fn stated_bytes(bytes: &[u8]) -> Option<usize> {
    let stated = u32_at(bytes, 8)? as usize;
    (HEADER_BYTES..=BLOB_BYTES_MAX).contains(&stated).then_some(stated)
}

/// Whether `bytes`, a whole blob, was written under `stamp` and is intact.
pub(crate) fn verifies(bytes: &[u8], stamp: Stamp) -> bool {
    u64_at(bytes, 0) == Some(xxh3_64_with_seed(&bytes[8..], stamp.seed()))
}

/// A verified blob, or an empty bucket's absence of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blob<'a> {
    bytes: &'a [u8],
    count: usize,
    depth: u8,
}

impl<'a> Blob<'a> {
    /// Takes a verified blob apart; `None` if its structure makes no sense.
    pub fn parse(bytes: &'a [u8]) -> Option<Blob<'a>> {
        if stated_bytes(bytes)? != bytes.len() {
            return None;
        }
        let count = u16::from_le_bytes(bytes.get(12..14)?.try_into().ok()?) as usize;
        let blob = Blob { bytes, count, depth: bytes[14] };
        let mut at = HEADER_BYTES;
        for _ in 0..count {
            at = entry_at(bytes, at)?.1;
        }
        (count > 0 && at == bytes.len()).then_some(blob)
    }

    pub fn empty(depth: u8) -> Blob<'static> {
        Blob { bytes: &[], count: 0, depth }
    }

    /// Bits of the hash that all keys of the bucket share.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn entries(&self) -> impl Iterator<Item = BlobEntry<'a>> + use<'a> {
        let bytes = self.bytes;
        let mut at = HEADER_BYTES;
        (0..self.count).map(move |_| {
            let (entry, next) = entry_at(bytes, at).expect("parse walked the same entries");
            at = next;
            entry
        })
    }

    pub fn find(&self, key: &[u8]) -> Option<BlobValue<'a>> {
        self.entries().find(|entry| entry.key == key).map(|entry| entry.value)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn entry_at(bytes: &[u8], at: usize) -> Option<(BlobEntry<'_>, usize)> {
    let key_bytes = u32_at(bytes, at)? as usize;
    let value_word = u32_at(bytes, at + 4)?;
    if key_bytes == 0 || key_bytes > KEY_BYTES_MAX {
        return None;
    }
    let key_at = at + ENTRY_BYTES;
    let value_at = key_at + key_bytes;
    let key = bytes.get(key_at..value_at)?;
    if value_word & FAR_BIT != 0 {
        let far = ExternalValue {
            addr: GAddr(u64_at(bytes, value_at)?),
            bytes: u64_at(bytes, value_at + 8)?,
            checksum: u64_at(bytes, value_at + 16)?,
        };
        return Some((BlobEntry { key, value: BlobValue::External(far) }, value_at + FAR_BYTES));
    }
    let end = value_at + value_word as usize;
    Some((BlobEntry { key, value: BlobValue::Inline(bytes.get(value_at..end)?) }, end))
}

/// Writes a blob into a buffer that is used again and again.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    bytes: Vec<u8>,
    count: usize,
    depth: u8,
}

impl Builder {
    /// Begins a blob of a bucket of this depth.
    pub fn start(&mut self, depth: u8) {
        self.bytes.clear();
        self.bytes.resize(HEADER_BYTES, 0);
        self.count = 0;
        self.depth = depth;
    }

    pub fn push(&mut self, entry: BlobEntry<'_>) {
        let key_bytes = u32::try_from(entry.key.len()).expect("keys are at most 64 KiB");
        self.bytes.extend_from_slice(&key_bytes.to_le_bytes());
        match entry.value {
            BlobValue::Inline(value) => {
                let value_bytes = u32::try_from(value.len()).expect("inline values are short");
                self.bytes.extend_from_slice(&value_bytes.to_le_bytes());
                self.bytes.extend_from_slice(entry.key);
                self.bytes.extend_from_slice(value);
            }
            BlobValue::External(far) => {
                self.bytes.extend_from_slice(&FAR_BIT.to_le_bytes());
                self.bytes.extend_from_slice(entry.key);
                for word in [far.addr.0, far.bytes, far.checksum] {
                    self.bytes.extend_from_slice(&word.to_le_bytes());
                }
            }
        }
        self.count += 1;
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the blob is within the limits.
    pub fn fits(&self) -> bool {
        self.bytes.len() <= BLOB_BYTES_MAX && self.count <= BLOB_ENTRIES_MAX
    }

    /// Completes the header under `stamp`; the bytes to be written. May be called again with
    /// another stamp.
    pub fn finish(&mut self, stamp: Stamp) -> &[u8] {
        assert!(self.fits() && self.count > 0, "the caller checked the limits");
        let stated = self.bytes.len() as u32;
        self.bytes[8..12].copy_from_slice(&stated.to_le_bytes());
        self.bytes[12..14].copy_from_slice(&(self.count as u16).to_le_bytes());
        self.bytes[14] = self.depth;
        let checksum = xxh3_64_with_seed(&self.bytes[8..], stamp.seed());
        self.bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAMP: Stamp = Stamp { table_id: 1, bucket: 2, seq: 3 };

    fn build(pairs: &[(Vec<u8>, Vec<u8>)], far: Option<ExternalValue>) -> Vec<u8> {
        let mut builder = Builder::default();
        builder.start(5);
        for (key, value) in pairs {
            builder.push(BlobEntry { key, value: BlobValue::Inline(value) });
        }
        if let Some(far) = far {
            builder.push(BlobEntry { key: b"far", value: BlobValue::External(far) });
        }
        builder.finish(STAMP).to_vec()
    }

    proptest! {
        #[test]
        fn a_blob_gives_back_its_entries(
            pairs in prop::collection::vec(
                (
                    prop::collection::vec(any::<u8>(), 1..40),
                    prop::collection::vec(any::<u8>(), 0..99),
                ),
                1..9,
            ),
            far in any::<Option<(u64, u64, u64)>>(),
        ) {
            let external = |(addr, bytes, checksum)| {
                let addr = GAddr(addr);
                ExternalValue { addr, bytes, checksum }
            };
            let far = far.map(external);
            let bytes = build(&pairs, far);
            prop_assert!(verifies(&bytes, STAMP));
            let blob = Blob::parse(&bytes).unwrap();
            prop_assert_eq!((blob.depth(), blob.count()), (5, pairs.len() + far.iter().count()));
            for ((key, value), entry) in pairs.iter().zip(blob.entries()) {
                prop_assert_eq!(entry, BlobEntry { key, value: BlobValue::Inline(value) });
            }
        }

        #[test]
        fn any_bytes_are_parsed_without_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Blob::parse(&bytes);
            if bytes.len() >= HEADER_BYTES {
                let stated = bytes.len() as u32;
                bytes[8..12].copy_from_slice(&stated.to_le_bytes());
                if let Some(blob) = Blob::parse(&bytes) {
                    prop_assert_eq!(blob.entries().count(), blob.count());
                }
            }
        }

        #[test]
        fn a_changed_byte_or_another_stamp_is_found(at in 0usize..60, change in 1u8..=255) {
            let mut bytes = build(&[(b"key".to_vec(), vec![9; 60])], None);
            for other in [
                Stamp { table_id: 2, ..STAMP },
                Stamp { bucket: 3, ..STAMP },
                Stamp { seq: 4, ..STAMP },
            ] {
                prop_assert!(!verifies(&bytes, other));
            }
            bytes[at] ^= change;
            prop_assert!(!verifies(&bytes, STAMP));
        }
    }
}
