//! Bytes on the device: the superblock, headers of batches, records. All little-endian; what is
//! read is checked before it is believed.
//!
//! ```text
//!  superblock | its copy | region 0                                    | region 1 ...
//!                        | batch {header, record, record ...} | batch ... |
//! ```
//!
//! A batch begins at a whole block. Those of a region bear its number, which is never used twice;
//! the first that bears another one ends the region. Each says which region comes before its own,
//! and how much of that belongs to the log: so a region that is missing, or a write that came
//! through although it was said to have failed, is seen.

use rackpool_mem::direct::BLOCK_BYTES;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"rkplFLS1");
const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"rkplBAT1");
/// Bytes of a superblock; each copy has a block of its own.
pub(crate) const SUPERBLOCK_BYTES: usize = 96;
/// Bytes of a header of a batch.
pub(crate) const BATCH_HEADER_BYTES: usize = 64;
/// Bytes of a record before its key.
pub(crate) const RECORD_HEADER_BYTES: usize = 48;
/// Where records begin: multiples of it.
pub(crate) const RECORD_ALIGN: usize = 64;

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

fn put_words<const N: usize>(bytes: &mut [u8], words: [u64; N]) {
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
}

pub(crate) fn blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlashSuperblock {
    /// Drawn when it was formatted: batches of an earlier log are not this one's.
    pub identity: u64,
    pub bytes: u64,
    pub region_bytes: u64,
    pub is_store: bool,
    pub seed: u64,
    /// Whether it was closed in order: nothing is missing in the log.
    pub is_clean: bool,
    /// Hash of the name of the boot in which it was opened.
    pub boot: u64,
    /// Regions with lower numbers are not of the log any more.
    pub start: u64,
    /// Of the copy that was written last.
    pub version: u64,
    /// Of one that was closed in order: the end of its log.
    pub end: RegionExtent,
}

impl FlashSuperblock {
    pub fn write(&self, bytes: &mut [u8]) {
        let flags = u64::from(self.is_store) | u64::from(self.is_clean) << 1;
        let words = [
            SUPERBLOCK_MAGIC,
            self.identity,
            self.bytes,
            self.region_bytes,
            flags,
            self.seed,
            self.boot,
            self.start,
            self.version,
            self.end.sequence,
            self.end.bytes.into(),
        ];
        put_words(bytes, words);
        let check = xxh3_64(&bytes[..SUPERBLOCK_BYTES - 8]);
        put_words(&mut bytes[SUPERBLOCK_BYTES - 8..], [check]);
    }

    pub fn read(bytes: &[u8]) -> Option<FlashSuperblock> {
        let is_whole = word(bytes, 0) == SUPERBLOCK_MAGIC
            && word(bytes, SUPERBLOCK_BYTES - 8) == xxh3_64(&bytes[..SUPERBLOCK_BYTES - 8]);
        let flags = word(bytes, 32);
        is_whole.then(|| FlashSuperblock {
            identity: word(bytes, 8),
            bytes: word(bytes, 16),
            region_bytes: word(bytes, 24),
            is_store: flags & 1 != 0,
            is_clean: flags & 2 != 0,
            seed: word(bytes, 40),
            boot: word(bytes, 48),
            start: word(bytes, 56),
            version: word(bytes, 64),
            end: RegionExtent { sequence: word(bytes, 72), bytes: half(bytes, 80) },
        })
    }
}

/// A region, and how many of its bytes belong to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionExtent {
    pub sequence: u64,
    pub bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub identity: u64,
    pub sequence: u64,
    /// Where in the region it begins, and its length in whole blocks.
    pub offset: u32,
    pub bytes: u32,
    /// Which region comes before this one; number 0: none.
    pub previous: RegionExtent,
    pub records: u32,
    /// What was forgotten up to this number is in the log, up to the end of this batch.
    pub forgotten: u64,
}

impl BatchHeader {
    pub fn write(&self, bytes: &mut [u8]) {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            BATCH_MAGIC,
            self.identity,
            self.sequence,
            pair(self.offset, self.bytes),
            self.previous.sequence,
            pair(self.previous.bytes, self.records),
            self.forgotten,
        ];
        put_words(bytes, words);
        let check = xxh3_64(&bytes[..BATCH_HEADER_BYTES - 8]);
        put_words(&mut bytes[BATCH_HEADER_BYTES - 8..], [check]);
    }

    /// The header of a batch that lies at `offset` of a region, of which `bytes` are the rest.
    pub fn read(bytes: &[u8], identity: u64, offset: u32) -> Option<BatchHeader> {
        let header = BatchHeader::parse(bytes, identity, offset)?;
        let len = header.bytes as usize;
        let fits = len >= BLOCK_BYTES && len.is_multiple_of(BLOCK_BYTES) && len <= bytes.len();
        fits.then_some(header)
    }

    /// The header of the first batch of a region, of which only the first block is given.
    pub fn read_first(block: &[u8], identity: u64) -> Option<BatchHeader> {
        BatchHeader::parse(block, identity, 0)
    }

    fn parse(bytes: &[u8], identity: u64, offset: u32) -> Option<BatchHeader> {
        let at = BATCH_HEADER_BYTES - 8;
        let is_whole = bytes.len() >= BLOCK_BYTES
            && word(bytes, 0) == BATCH_MAGIC
            && word(bytes, at) == xxh3_64(&bytes[..at]);
        if !is_whole {
            return None;
        }
        let header = BatchHeader {
            identity: word(bytes, 8),
            sequence: word(bytes, 16),
            offset: half(bytes, 24),
            bytes: half(bytes, 28),
            previous: RegionExtent { sequence: word(bytes, 32), bytes: half(bytes, 40) },
            records: half(bytes, 44),
            forgotten: word(bytes, 48),
        };
        (header.identity == identity && header.offset == offset).then_some(header)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    Item = 1,
    /// The item of this hash is gone.
    Forget = 2,
    ForgetAll = 3,
}

/// An item as it goes to flash; what its words mean its owner knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashRecord<'a> {
    /// Of its key: what it is found by.
    pub hash: u64,
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub flags: u32,
    pub kind: u8,
    pub expires: u64,
    pub cas: u64,
}

impl FlashRecord<'_> {
    pub(crate) fn bytes(&self) -> usize {
        (RECORD_HEADER_BYTES + self.key.len() + self.value.len()).next_multiple_of(RECORD_ALIGN)
    }

    /// The header, with the check of all of it.
    pub(crate) fn header(&self, what: RecordKind) -> [u8; RECORD_HEADER_BYTES] {
        let kinds = what as u64 | u64::from(self.kind) << 8 | (self.key.len() as u64) << 16;
        let mut header = [0; RECORD_HEADER_BYTES];
        let kinds = kinds | (self.value.len() as u64) << 32;
        let flags = u64::from(self.flags);
        put_words(&mut header[8..], [self.hash, kinds, flags, self.expires, self.cas]);
        let check = check_of(&header, self.key, self.value);
        put_words(&mut header, [check]);
        header
    }

    /// Writes it, and zeroes behind it up to the next one's place.
    pub(crate) fn write(&self, header: &[u8; RECORD_HEADER_BYTES], to: &mut [u8]) {
        let value_at = RECORD_HEADER_BYTES + self.key.len();
        let end = value_at + self.value.len();
        to[..RECORD_HEADER_BYTES].copy_from_slice(header);
        to[RECORD_HEADER_BYTES..value_at].copy_from_slice(self.key);
        to[value_at..end].copy_from_slice(self.value);
        to[end..self.bytes()].fill(0);
    }
}

fn check_of(header: &[u8], key: &[u8], value: &[u8]) -> u64 {
    let mut state = Xxh3::new();
    state.update(&header[8..RECORD_HEADER_BYTES]);
    state.update(key);
    state.update(value);
    state.digest()
}

/// The record at the start of these bytes, if it is whole.
pub(crate) fn read_record(bytes: &[u8]) -> Option<(RecordKind, FlashRecord<'_>)> {
    let header = bytes.get(..RECORD_HEADER_BYTES)?;
    let kinds = word(header, 16);
    let what = match kinds as u8 {
        1 => RecordKind::Item,
        2 => RecordKind::Forget,
        3 => RecordKind::ForgetAll,
        _ => return None,
    };
    let (key_bytes, value_bytes) = ((kinds >> 16) as u16, (kinds >> 32) as usize);
    let value_at = RECORD_HEADER_BYTES + usize::from(key_bytes);
    let key = bytes.get(RECORD_HEADER_BYTES..value_at)?;
    let value = bytes.get(value_at..value_at.checked_add(value_bytes)?)?;
    if word(header, 0) != check_of(header, key, value) {
        return None;
    }
    let record = FlashRecord {
        hash: word(header, 8),
        key,
        value,
        flags: half(header, 24),
        kind: (kinds >> 8) as u8,
        expires: word(header, 32),
        cas: word(header, 40),
    };
    Some((what, record))
}

/// Calls `f` with each record of a batch and where it lies; whether all were whole.
pub(crate) fn walk(
    batch: &[u8],
    records: u32,
    mut f: impl FnMut(usize, RecordKind, &FlashRecord<'_>),
) -> bool {
    let mut at = BATCH_HEADER_BYTES;
    for _ in 0..records {
        let Some((kind, record)) = batch.get(at..).and_then(read_record) else { return false };
        f(at, kind, &record);
        at += record.bytes();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> FlashRecord<'static> {
        let (key, value) = (b"key".as_slice(), b"some value".as_slice());
        FlashRecord { hash: 7, key, value, flags: 1, kind: 2, expires: 3, cas: 4 }
    }

    #[test]
    fn what_was_written_is_read_and_a_wrong_bit_anywhere_is_seen() {
        let mut bytes = vec![0xff; record().bytes()];
        record().write(&record().header(RecordKind::Item), &mut bytes);
        assert_eq!(read_record(&bytes), Some((RecordKind::Item, record())));
        let end = RECORD_HEADER_BYTES + 3 + 10;
        for bit in 0..8 * end {
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The two unused bytes of the flags' word are checked as well.
            assert_eq!(read_record(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(read_record(&bytes[..end - 1]), None);
    }

    #[test]
    fn headers_are_of_their_log_and_place() {
        let previous = RegionExtent { sequence: 8, bytes: 4096 };
        let header = BatchHeader {
            identity: 5,
            sequence: 9,
            offset: 8192,
            bytes: 4096,
            previous,
            records: 3,
            forgotten: 11,
        };
        let mut bytes = vec![0; 8192];
        header.write(&mut bytes);
        assert_eq!(BatchHeader::read(&bytes, 5, 8192), Some(header));
        assert_eq!(BatchHeader::read(&bytes, 6, 8192), None);
        assert_eq!(BatchHeader::read(&bytes, 5, 4096), None);
        assert_eq!(BatchHeader::read(&bytes[..2048], 5, 8192), None);
        BatchHeader { bytes: 12288, ..header }.write(&mut bytes);
        assert_eq!(BatchHeader::read(&bytes, 5, 8192), None, "longer than what is left");
        let superblock = FlashSuperblock {
            identity: 1,
            bytes: 2,
            region_bytes: 3,
            is_store: true,
            seed: 4,
            is_clean: true,
            boot: 5,
            start: 6,
            version: 7,
            end: previous,
        };
        superblock.write(&mut bytes);
        assert_eq!(FlashSuperblock::read(&bytes), Some(superblock));
        bytes[40] ^= 1;
        assert_eq!(FlashSuperblock::read(&bytes), None);
    }
}
