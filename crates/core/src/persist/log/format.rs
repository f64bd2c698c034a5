//! The bytes of a log. Two headers, each whole or not by its checksum, of which the one with the
//! higher epoch counts; then the segments. A segment holds records, each at a multiple of 256
//! bytes: header, entries, zeros. An entry is its length, its kind, and its bytes up to a multiple
//! of 8.
//!
//! Checksums begin with the log's id and the record's place: a record that was copied elsewhere, or
//! written by a user as an entry, is none.
//!
//! Everything that is read here may be torn or foreign: read once, checked, answered with `None`.

use super::{LogError, LogGeometry};
use crate::constants::{RECORD_ALIGN_BYTES, SEGMENT_STRIDE_BYTES};
use crate::persist::{LINE_BYTES, Persist};
use std::mem::offset_of;
use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "rackplog", read as a little-endian word.
const MAGIC: u64 = u64::from_le_bytes(*b"rackplog");
/// Version of the bytes here. Another one is an error.
pub const VERSION: u32 = 1;
/// What stands before the first segment.
pub const HEADER_BYTES: u64 = 2 * HEADER_STRIDE_BYTES;
/// Between the two headers: a disk may write so many bytes at once, and lose them together.
const HEADER_STRIDE_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct LogHeader {
    magic: u64,
    version: u32,
    segment_count: u32,
    segment_bytes: u64,
    pub(super) id: u64,
    /// How often the log was opened.
    pub(super) epoch: u64,
    /// Number of the next record when it was opened.
    pub(super) sequence: u64,
    reserved: u64,
    /// xxh3 of all the bytes before.
    checksum: u64,
}
const _: () = assert!(size_of::<LogHeader>() as u64 == LINE_BYTES);

impl LogHeader {
    pub(super) fn new(geometry: LogGeometry, id: u64, epoch: u64, sequence: u64) -> Self {
        let header = Self {
            magic: MAGIC,
            version: VERSION,
            segment_count: geometry.segment_count,
            segment_bytes: geometry.segment_bytes,
            id,
            epoch,
            sequence,
            reserved: 0,
            checksum: 0,
        };
        Self { checksum: header.checksum_of(), ..header }
    }

    fn checksum_of(&self) -> u64 {
        xxh3_64_with_seed(&self.as_bytes()[..offset_of!(LogHeader, checksum)], 0)
    }

    fn is_whole(&self) -> bool {
        self.magic == MAGIC && self.checksum == self.checksum_of()
    }

    pub(super) fn geometry(&self) -> Option<LogGeometry> {
        let strides = u32::try_from(self.segment_bytes / SEGMENT_STRIDE_BYTES).ok()?;
        let geometry = LogGeometry::new(strides, self.segment_count)?;
        (geometry.segment_bytes == self.segment_bytes).then_some(geometry)
    }

    fn offset(&self) -> u64 {
        self.epoch % 2 * HEADER_STRIDE_BYTES
    }
}

pub(super) fn newest_header<M: Persist>(mem: &M) -> Result<LogHeader, LogError> {
    if mem.bytes() < HEADER_BYTES {
        return Err(LogError::NotALog);
    }
    let read = |offset| {
        let mut bytes = [0; size_of::<LogHeader>()];
        mem.copy_out(offset, &mut bytes);
        LogHeader::read_from_bytes(&bytes).ok().filter(LogHeader::is_whole)
    };
    let headers = [0, HEADER_STRIDE_BYTES].into_iter().filter_map(read);
    let newest = headers.max_by_key(|header| header.epoch).ok_or(LogError::NotALog)?;
    if newest.version != VERSION {
        return Err(LogError::OtherVersion { found: newest.version });
    }
    Ok(newest)
}

/// Sends a header on its way, in the place of the one before the last.
pub(super) fn write_header<M: Persist>(mem: &M, header: &LogHeader) {
    mem.copy_in_written_back(header.offset(), header.as_bytes());
}

/// The only header of a new log. Not sent on its way.
pub(super) fn write_first_header<M: Persist>(mem: &M, header: &LogHeader) {
    mem.zero(0, HEADER_BYTES);
    mem.copy_in(header.offset(), header.as_bytes());
}

/// The first bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RecordHeader {
    /// Of header and entries, without the zeros behind.
    bytes: u32,
    entries: u32,
    sequence: u64,
    epoch: u64,
    /// xxh3 of all the bytes of the record but these.
    checksum: u64,
}
pub(super) const RECORD_HEADER_BYTES: u64 = 32;
const _: () = assert!(size_of::<RecordHeader>() as u64 == RECORD_HEADER_BYTES);
const CHECKSUM_AT: usize = offset_of!(RecordHeader, checksum);
const _: () = assert!(CHECKSUM_AT + 8 == RECORD_HEADER_BYTES as usize);

/// Length and kind, before the bytes of an entry.
pub(super) const ENTRY_HEADER_BYTES: u64 = 8;

/// Where a record begins in the memory of which log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) id: u64,
}

impl Place {
    fn checksum(self, record: &[u8]) -> u64 {
        let (head, entries) = record.split_at(RECORD_HEADER_BYTES as usize);
        let seed = xxh3_64_with_seed(&head[..CHECKSUM_AT], self.id ^ self.start);
        xxh3_64_with_seed(entries, seed)
    }
}

/// What an entry of so many bytes takes of a record.
pub(super) fn entry_bytes(bytes: u64) -> u64 {
    ENTRY_HEADER_BYTES + bytes.next_multiple_of(8)
}

/// Begins a record: room for its header.
pub(super) fn begin(record: &mut Vec<u8>) {
    record.resize(RECORD_HEADER_BYTES as usize, 0);
}

/// Appends an entry; where its bytes begin in the record.
pub(super) fn push(record: &mut Vec<u8>, kind: u32, parts: &[&[u8]]) -> u64 {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    record.extend_from_slice(&(bytes as u32).to_le_bytes());
    record.extend_from_slice(&kind.to_le_bytes());
    let start = record.len();
    parts.iter().for_each(|part| record.extend_from_slice(part));
    record.resize(start + bytes.next_multiple_of(8), 0);
    start as u64
}

/// Completes a record: its header, and zeros up to a multiple of 256 bytes.
pub(super) fn finish(record: &mut Vec<u8>, place: Place, entries: u32, sequence: u64, epoch: u64) {
    let bytes = record.len() as u32;
    let header = RecordHeader { bytes, entries, sequence, epoch, checksum: 0 };
    record[..RECORD_HEADER_BYTES as usize].copy_from_slice(header.as_bytes());
    let checksum = place.checksum(record);
    record[CHECKSUM_AT..RECORD_HEADER_BYTES as usize].copy_from_slice(&checksum.to_le_bytes());
    record.resize(record.len().next_multiple_of(RECORD_ALIGN_BYTES as usize), 0);
}

/// A record that is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) sequence: u64,
    pub(super) epoch: u64,
    /// What it takes of its segment.
    pub(super) padded_bytes: u64,
}

/// Reads a record of at most `bytes_max` bytes, if one is there and whole. Its bytes are in
/// `record` then.
pub(super) fn read<M: Persist>(
    mem: &M,
    place: Place,
    bytes_max: u64,
    record: &mut Vec<u8>,
) -> Option<Found> {
    if bytes_max < RECORD_HEADER_BYTES {
        return None;
    }
    let mut head = [0; RECORD_HEADER_BYTES as usize];
    mem.copy_out(place.start, &mut head);
    let header = RecordHeader::read_from_bytes(&head).ok()?;
    let bytes = u64::from(header.bytes);
    if !(RECORD_HEADER_BYTES..=bytes_max).contains(&bytes) {
        return None;
    }
    record.clear();
    record.resize(bytes as usize, 0);
    mem.copy_out(place.start + RECORD_HEADER_BYTES, &mut record[RECORD_HEADER_BYTES as usize..]);
    record[..RECORD_HEADER_BYTES as usize].copy_from_slice(&head);
    let (mut count, mut end) = (0, RECORD_HEADER_BYTES);
    entries(record, &mut |offset, _, bytes| {
        count += 1;
        end = offset + (bytes.len() as u64).next_multiple_of(8);
    });
    let is_whole = header.checksum == place.checksum(record)
        && (count, end) == (header.entries, bytes)
        && header.sequence != u64::MAX;
    is_whole.then_some(Found {
        sequence: header.sequence,
        epoch: header.epoch,
        padded_bytes: bytes.next_multiple_of(RECORD_ALIGN_BYTES),
    })
}

/// Hands over the entries of a record: where their bytes begin in it, kind, bytes. Ends at the
/// first that does not fit.
pub(super) fn entries(record: &[u8], each: &mut dyn FnMut(u64, u32, &[u8])) {
    let mut at = RECORD_HEADER_BYTES as usize;
    while let Some((head, rest)) = record[at..].split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*head);
        let (length, kind) = (word as u32 as usize, (word >> 32) as u32);
        let (Some(bytes), Some(padded)) = (rest.get(..length), length.checked_next_multiple_of(8))
        else {
            return;
        };
        if padded > rest.len() {
            return;
        }
        at += ENTRY_HEADER_BYTES as usize;
        each(at as u64, kind, bytes);
        at += padded;
    }
}

/// Sets the line with which a record begins to zero, if it is not, and sends it on its way: zeros
/// that are there may be the store of a process that was killed.
pub(super) fn wipe<M: Persist>(mem: &M, start: u64) {
    let mut line = [0; LINE_BYTES as usize];
    mem.copy_out(start, &mut line);
    if line != [0; LINE_BYTES as usize] {
        mem.zero(start, LINE_BYTES);
    }
    mem.write_back(start, LINE_BYTES);
}
