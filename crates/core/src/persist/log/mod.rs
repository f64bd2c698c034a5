//! A log in persistent memory: entries of any length, gathered in checksummed records, made durable
//! in groups. For what a cache or a pool must find again after a loss of power; the index over it,
//! counts of use and what is live in a segment are its user's, in ordinary memory.
//!
//! In: entries ([`Log::append`]), and when they have to be durable ([`Log::commit`]). Out: where
//! they lie; after a start every entry that was made durable, in order ([`Log::open`]). No I/O, no
//! clock; one thread. `format.rs` has the bytes.
//!
//! # Rules
//! - *Entries are gathered in memory* up to 16 KiB and written once, as one record of a multiple of
//!   256 bytes around the caches. Nothing durable is ever changed in place.
//! - *A commit is one fence* for all that was appended before; acknowledge after it.
//! - *A segment is durable before the next one is begun.* So what recovery finds is everything up
//!   to some moment, and never a later entry without an earlier one.
//! - *The next record* of a segment has the next sequence number and at least the epoch of the one
//!   before. Epochs count openings: what an earlier life left behind the last record that was
//!   found, or in segments that were given back, never counts again.
//! - *Recovery makes durable what it found*, since a killed process may have left it in the caches,
//!   before it writes the header that counts it. It wipes the line with which a torn record begins,
//!   since the same bytes written there again would complete it.
//! - *A freed segment is wiped* before it is used again, and after everything that was appended
//!   before is durable: a copy of its live entries.
//!
//! Damage that is no torn tail ends its segment: the records behind it are not found.
//!
//! Source: the Optane guide, rules 1 and 2; `constants.rs`.

mod format;

use super::{MediaProfile, Persist, PersistError};
use crate::constants::{
    COMBINER_BYTES, RECORD_ALIGN_BYTES, SEGMENT_STRIDE_BYTES, SEGMENT_STRIDES_MAX, SEGMENTS_MAX,
};
use format::{ENTRY_HEADER_BYTES, Found, LogHeader, Place, RECORD_HEADER_BYTES};
pub use format::{HEADER_BYTES, VERSION};
use std::collections::BTreeSet;
use std::ops::Range;

/// How a log divides its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogGeometry {
    segment_bytes: u64,
    segment_count: u32,
}

impl LogGeometry {
    /// Segments of so many strides of 24 KiB; `None` outside of 1 to 256 strides and of 2 to 2^20
    /// segments.
    pub fn new(strides: u32, segment_count: u32) -> Option<Self> {
        let is_valid = (1..=SEGMENT_STRIDES_MAX).contains(&strides)
            && (2..=SEGMENTS_MAX).contains(&segment_count);
        let segment_bytes = u64::from(strides) * SEGMENT_STRIDE_BYTES;
        is_valid.then_some(Self { segment_bytes, segment_count })
    }

    /// What the log takes of its memory.
    pub fn bytes(self) -> u64 {
        self.start(self.segment_count)
    }

    pub fn segment_bytes(self) -> u64 {
        self.segment_bytes
    }

    pub fn segment_count(self) -> u32 {
        self.segment_count
    }

    pub fn entry_bytes_max(self) -> u64 {
        self.segment_bytes - RECORD_HEADER_BYTES - ENTRY_HEADER_BYTES
    }

    /// The segment with what is at an offset of the memory.
    pub fn segment_of(self, offset: u64) -> u32 {
        ((offset - HEADER_BYTES) / self.segment_bytes) as u32
    }

    /// Where what is in a segment lies.
    pub fn range_of(self, segment: u32) -> Range<u64> {
        self.start(segment)..self.start(segment) + self.segment_bytes
    }

    fn start(self, segment: u32) -> u64 {
        HEADER_BYTES + u64::from(segment) * self.segment_bytes
    }
}

/// Why the log does not do what it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    #[error(transparent)]
    Persist(#[from] PersistError),
    #[error("an entry of {bytes} bytes; the longest that a segment holds has {max_bytes} bytes")]
    TooLong { bytes: u64, max_bytes: u64 },
    /// No segment is free. Retry after one was freed.
    #[error("the log is full: none of its {segments} segments is free")]
    Full { segments: u32 },
    #[error("there is no log: neither of its headers is whole")]
    NotALog,
    #[error("the log has version {found}, this program {VERSION}")]
    OtherVersion { found: u32 },
    /// The memory is not the one in which the log was made.
    #[error("the log takes {log_bytes} bytes, its memory has {memory_bytes} bytes")]
    OtherSize { log_bytes: u64, memory_bytes: u64 },
}

/// Where an entry's bytes are in the log's memory, at a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    pub offset: u64,
    pub bytes: u32,
}

/// An entry that was appended; it is durable as soon as [`Log::durable`] is above its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    pub at: Location,
    /// Number of the record that holds it.
    pub sequence: u64,
}

/// An entry that recovery found.
#[derive(Clone, Copy, Debug)]
pub struct LogEntry<'a> {
    pub at: Location,
    /// Number of the record that holds it.
    pub sequence: u64,
    /// The user's word for what it is.
    pub kind: u32,
    pub bytes: &'a [u8],
}

/// A log that is open.
pub struct Log<M> {
    mem: M,
    geometry: LogGeometry,
    id: u64,
    epoch: u64,
    /// Number of the record that is being gathered, or of the next.
    sequence: u64,
    /// Records before this one are durable.
    durable: u64,
    /// The segment that records go to; none before the first.
    head: Option<u32>,
    /// Where in it the next record begins.
    offset: u64,
    /// The record that is being gathered, from its header on; empty if there is none.
    record: Vec<u8>,
    entries: u32,
    /// What is gathered at most before it is written.
    combiner_bytes: u64,
    free: BTreeSet<u32>,
}

impl<M: Persist> Log<M> {
    /// Makes an empty log, whatever was there. `id` is a random number that was not used before:
    /// no record of another id counts.
    ///
    /// # Errors
    /// [`LogError::OtherSize`] if the memory is too small, [`LogError::Persist`].
    pub fn format(mem: &M, geometry: LogGeometry, id: u64) -> Result<(), LogError> {
        geometry.fits(mem)?;
        format::write_first_header(mem, &LogHeader::new(geometry, id, 0, 1));
        Ok(mem.persist(0, HEADER_BYTES)?)
    }

    /// Opens the log and hands over every entry that it finds, oldest first. Reads all of the
    /// memory that is in use.
    ///
    /// # Errors
    /// [`LogError::NotALog`], [`LogError::OtherVersion`], [`LogError::OtherSize`],
    /// [`LogError::Persist`].
    pub fn open(mem: M, each: &mut dyn FnMut(LogEntry<'_>)) -> Result<Self, LogError> {
        let header = format::newest_header(&mem)?;
        let geometry = header.geometry().ok_or(LogError::NotALog)?;
        geometry.fits(&mem)?;
        let mut log = Log {
            mem,
            geometry,
            id: header.id,
            epoch: header.epoch + 1,
            sequence: header.sequence,
            durable: 0,
            head: None,
            offset: 0,
            record: Vec::with_capacity(COMBINER_BYTES),
            entries: 0,
            combiner_bytes: MediaProfile::GUIDE.combiner_bytes,
            free: (0..geometry.segment_count).collect(),
        };
        let mut found = Vec::new();
        let mut used: Vec<(u64, u32)> = (0..geometry.segment_count)
            .filter_map(|segment| {
                let first = log.record_at(segment, 0, &mut found)?;
                (first.epoch <= header.epoch).then_some((first.sequence, segment))
            })
            .collect();
        used.sort_unstable();
        for (sequence, segment) in used {
            log.free.remove(&segment);
            log.head = Some(segment);
            log.scan(segment, sequence, header.epoch, &mut found, each);
        }
        log.settle()?;
        Ok(log)
    }

    /// Hands over the entries of a segment up to the first record that does not continue it.
    fn scan(
        &mut self,
        segment: u32,
        first: u64,
        epoch_max: u64,
        found: &mut Vec<u8>,
        each: &mut dyn FnMut(LogEntry<'_>),
    ) {
        let (mut expected, mut epoch) = (first, 0);
        self.offset = 0;
        while let Some(record) = self.record_at(segment, self.offset, found) {
            if record.sequence != expected || !(epoch..=epoch_max).contains(&record.epoch) {
                break;
            }
            let place = self.geometry.start(segment) + self.offset;
            format::entries(found, &mut |offset, kind, bytes| {
                let at = Location { offset: place + offset, bytes: bytes.len() as u32 };
                each(LogEntry { at, sequence: record.sequence, kind, bytes });
            });
            (expected, epoch) = (expected + 1, record.epoch);
            self.offset += record.padded_bytes;
        }
        self.sequence = self.sequence.max(expected);
    }

    /// The record at an offset of a segment, if it is whole, with its bytes.
    fn record_at(&self, segment: u32, offset: u64, bytes: &mut Vec<u8>) -> Option<Found> {
        let place = Place { start: self.geometry.start(segment) + offset, id: self.id };
        format::read(&self.mem, place, self.geometry.segment_bytes - offset, bytes)
    }

    /// Begins an epoch: what was found is durable, what was not is no record any more.
    fn settle(&mut self) -> Result<(), LogError> {
        for segment in &self.free {
            format::wipe(&self.mem, self.geometry.start(*segment));
        }
        if let Some(head) = self.head {
            let start = self.geometry.start(head);
            if self.offset < self.geometry.segment_bytes {
                format::wipe(&self.mem, start + self.offset);
            }
            self.mem.write_back(start, self.offset);
            // The header counts these records: with it and without them the numbers of later ones
            // would not continue those that are found.
            self.mem.persist_fence()?;
        }
        format::write_header(
            &self.mem,
            &LogHeader::new(self.geometry, self.id, self.epoch, self.sequence),
        );
        self.mem.persist_fence()?;
        self.durable = self.sequence;
        Ok(())
    }

    pub fn geometry(&self) -> LogGeometry {
        self.geometry
    }

    /// The number that the log was made with.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How often the log was opened.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Records with a smaller number are durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Segments that records can go to when the present one is full.
    pub fn free_segments(&self) -> u32 {
        self.free.len() as u32
    }

    /// Gathers entries as a medium wants it, at most 16 KiB.
    pub fn set_profile(&mut self, profile: MediaProfile) {
        self.combiner_bytes = profile.combiner_bytes.min(COMBINER_BYTES as u64);
    }

    /// Appends an entry, the parts one behind another. `kind` comes back with it.
    ///
    /// # Errors
    /// [`LogError::TooLong`], [`LogError::Full`]: nothing was appended. [`LogError::Persist`].
    pub fn append(&mut self, kind: u32, parts: &[&[u8]]) -> Result<Appended, LogError> {
        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let max_bytes = self.geometry.entry_bytes_max();
        if bytes > max_bytes {
            return Err(LogError::TooLong { bytes, max_bytes });
        }
        self.make_room(format::entry_bytes(bytes))?;
        if self.record.is_empty() {
            format::begin(&mut self.record);
        }
        let offset = format::push(&mut self.record, kind, parts);
        self.entries += 1;
        let at = Location { offset: self.next_start() + offset, bytes: bytes as u32 };
        Ok(Appended { at, sequence: self.sequence })
    }

    /// Sees to it that the record that is gathered takes so many bytes more.
    fn make_room(&mut self, bytes: u64) -> Result<(), LogError> {
        if !self.record.is_empty() && self.record.len() as u64 + bytes > self.combiner_bytes {
            self.write_out();
        }
        let gathered = (self.record.len() as u64).max(RECORD_HEADER_BYTES);
        let end = self.offset + (gathered + bytes).next_multiple_of(RECORD_ALIGN_BYTES);
        if self.head.is_some() && end <= self.geometry.segment_bytes {
            return Ok(());
        }
        let full = LogError::Full { segments: self.geometry.segment_count };
        let next = *self.free.first().ok_or(full)?;
        // A later record is never found without an earlier one.
        self.commit()?;
        self.free.remove(&next);
        (self.head, self.offset) = (Some(next), 0);
        Ok(())
    }

    /// Where the record that is gathered will lie.
    fn next_start(&self) -> u64 {
        self.geometry.start(self.head.expect("room was made in it")) + self.offset
    }

    /// Writes what was gathered, so that it is found if the process dies; a loss of power may
    /// still take it.
    pub fn write_out(&mut self) {
        if self.record.is_empty() {
            return;
        }
        let place = Place { start: self.next_start(), id: self.id };
        format::finish(&mut self.record, place, self.entries, self.sequence, self.epoch);
        self.mem.copy_in_written_back(place.start, &self.record);
        self.offset += self.record.len() as u64;
        self.sequence += 1;
        self.entries = 0;
        self.record.clear();
        // After a long entry.
        self.record.shrink_to(COMBINER_BYTES);
    }

    /// Makes everything durable that was appended before.
    ///
    /// # Errors
    /// [`LogError::Persist`]: nothing that is not below [`Log::durable`] may be acknowledged.
    pub fn commit(&mut self) -> Result<(), LogError> {
        self.write_out();
        if self.durable < self.sequence {
            self.mem.persist_fence()?;
            self.durable = self.sequence;
        }
        Ok(())
    }

    /// Reads an entry.
    ///
    /// # Panics
    /// If `to` has not its length.
    pub fn read(&self, at: Location, to: &mut [u8]) {
        assert_eq!(to.len(), at.bytes as usize, "the length of an entry");
        let gathered =
            if self.record.is_empty() { None } else { at.offset.checked_sub(self.next_start()) };
        match gathered {
            Some(offset) if offset < self.record.len() as u64 => {
                to.copy_from_slice(&self.record[offset as usize..][..to.len()]);
            }
            _ => self.mem.copy_out(at.offset, to),
        }
    }

    /// Gives a segment back, of which all entries are dead or were appended again.
    ///
    /// # Errors
    /// [`LogError::Persist`]: then it may be found again after a loss of power.
    ///
    /// # Panics
    /// If it is free or the one that records go to.
    pub fn free(&mut self, segment: u32) -> Result<(), LogError> {
        let is_used = segment < self.geometry.segment_count && !self.free.contains(&segment);
        assert!(is_used && self.head != Some(segment), "segment {segment} cannot be freed");
        self.commit()?;
        format::wipe(&self.mem, self.geometry.start(segment));
        self.mem.persist_fence()?;
        self.free.insert(segment);
        Ok(())
    }
}

impl LogGeometry {
    fn fits<M: Persist>(self, mem: &M) -> Result<(), LogError> {
        let (log_bytes, memory_bytes) = (self.bytes(), mem.bytes());
        if log_bytes > memory_bytes {
            return Err(LogError::OtherSize { log_bytes, memory_bytes });
        }
        Ok(())
    }
}
