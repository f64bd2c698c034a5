//! What a log holds when it is opened: formats a new one, or reads all regions of an old one.
//!
//! In: a device and a journal. Out: the index, the regions of the log in their order, and what goes
//! on from there. A region is believed only if every later one is whole: what a lost one has said
//! to be gone would come back.

use crate::constants::{FOREIGN_BYTES, HEAD_BYTES, JOURNAL_ENTRIES};
use crate::device::{self, FlashDevice, write_superblock};
use crate::error::{Error, Result};
use crate::index::{Index, IndexWord};
use crate::journal::{Gone, GoneJournal};
use crate::layout::{BatchHeader, FlashSuperblock, RecordKind, RegionExtent, walk};
use crate::log::LogRegion;
use rackpool_mem::direct::{AlignedBytes, BLOCK_BYTES};
use rackpool_mem::{files, process};
use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64;

/// What was found at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlashRecovered {
    /// Whether it was formatted: there was nothing.
    pub is_new: bool,
    /// Whether what was there is lost, since the last process did not end in order and its journal
    /// is not there: what it said to be gone would come back.
    pub is_dropped: bool,
    pub items: u64,
    pub regions: u64,
    /// Older regions that were dropped, since one after them is not whole.
    pub dropped_regions: u64,
}

/// The state from which a log goes on.
#[derive(Debug, Default)]
pub(crate) struct FoundLog {
    pub superblock: Option<FlashSuperblock>,
    pub live: VecDeque<LogRegion>,
    pub free: VecDeque<u32>,
    pub next_sequence: u64,
    pub recovered: FlashRecovered,
}

/// Between the numbers of regions of two processes: more than there are regions whose numbers
/// cannot be read.
const SEQUENCE_STEP: u64 = 1 << 32;

/// A region as its first header says.
#[derive(Clone, Copy, Debug)]
struct RegionCandidate {
    region: u32,
    sequence: u64,
    previous: RegionExtent,
}

/// The superblock of a device, if it has one.
pub(crate) fn read_superblock(device: &dyn FlashDevice) -> Result<Option<FlashSuperblock>> {
    let mut bytes = AlignedBytes::zeroed(2 * BLOCK_BYTES);
    device::read(device, 0, &mut bytes).map_err(Error::io("reading the superblock"))?;
    if let Some(superblock) = superblock_in(&bytes)? {
        // What lies behind it need not be readable.
        return Ok(Some(superblock));
    }
    let mut bytes = AlignedBytes::zeroed(FOREIGN_BYTES as usize);
    device::read(device, 0, &mut bytes).map_err(Error::io("reading the superblock"))?;
    superblock_in(&bytes)
}

/// Refuses a file that holds something else or was made otherwise, before it is made longer.
pub(crate) fn check_file(path: &Path, wanted: &WantedLog) -> Result<()> {
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_file {
        return Ok(());
    }
    let what = format!("reading {}", path.display());
    let mut head = Vec::new();
    let file = files::open_regular(path).map_err(Error::io(what.clone()))?;
    file.take(FOREIGN_BYTES).read_to_end(&mut head).map_err(Error::io(what))?;
    match superblock_in(&head)? {
        Some(superblock) => wanted.check(&superblock),
        None => Ok(()),
    }
}

/// The newer of both copies in the first two blocks; an error if something else is there.
fn superblock_in(head: &[u8]) -> Result<Option<FlashSuperblock>> {
    let blocks = head.chunks_exact(BLOCK_BYTES).take(2);
    let newest =
        blocks.filter_map(FlashSuperblock::read).max_by_key(|superblock| superblock.version);
    if newest.is_none() && head.iter().any(|byte| *byte != 0) {
        return Err(Error::Foreign { bytes: FOREIGN_BYTES });
    }
    Ok(newest)
}

/// A name of this boot of the system.
pub(crate) fn boot() -> Result<u64> {
    let boot = process::boot_id().map_err(Error::io("reading the name of this boot"))?;
    Ok(xxh3_64(boot.as_bytes()))
}

/// What the caller asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedLog {
    pub bytes: u64,
    pub region_bytes: u64,
    pub is_store: bool,
    pub seed: u64,
}

impl WantedLog {
    fn regions(&self) -> u32 {
        ((self.bytes - HEAD_BYTES) / self.region_bytes) as u32
    }

    fn check(&self, found: &FlashSuperblock) -> Result<()> {
        let pairs = [
            ("size", found.bytes, self.bytes),
            ("size of regions", found.region_bytes, self.region_bytes),
            ("mode (1: store)", found.is_store.into(), self.is_store.into()),
        ];
        match pairs.into_iter().find(|(_, found, wanted)| found != wanted) {
            Some((what, found, wanted)) => Err(Error::Geometry { what, found, wanted }),
            None => Ok(()),
        }
    }
}

/// Opens what is there, or formats it; the journal is that of the log then.
pub(crate) fn open(
    device: &dyn FlashDevice,
    wanted: &WantedLog,
    journal: &mut GoneJournal,
    index: &Index,
) -> Result<FoundLog> {
    let boot = boot()?;
    let found = read_superblock(device)?;
    if let Some(superblock) = &found {
        wanted.check(superblock)?;
        let (is_clean, is_store) = (superblock.is_clean, superblock.is_store);
        let has_journal = !is_clean && !is_store && journal.is_of(superblock.identity, boot);
        if is_clean || is_store || has_journal {
            let moved = if has_journal { journal.start() } else { 0 };
            let start = moved.max(superblock.start);
            let mut reader = LogReader {
                device,
                wanted,
                superblock,
                index,
                forgotten: 0,
                displaced: Vec::new(),
            };
            let mut found = reader.read_log(start)?;
            // What is not believed now is not later either, if it can be read then.
            let none = if is_store { start } else { found.next_sequence };
            let oldest = found.live.front().map_or(none, |region| region.extent.sequence);
            if has_journal {
                take_over(journal, index, reader.forgotten);
                journal.set_start(oldest);
            } else {
                journal.reset(superblock.identity, boot, oldest, reader.forgotten);
            }
            forget_displaced(journal, index, &reader.displaced);
            let version = superblock.version + 1;
            let opened =
                FlashSuperblock { is_clean: false, boot, start: oldest, version, ..*superblock };
            write_superblock(device, &opened)?;
            found.superblock = Some(opened);
            found.recovered.items = index.sums().0;
            return Ok(found);
        }
    }
    format(device, wanted, journal, found.map_or(0, |found| found.version), boot)
}

/// Items that the last process has said to be gone, but not in the log.
fn take_over(journal: &mut GoneJournal, index: &Index, logged: u64) {
    for (_, gone) in journal.take_over(logged) {
        match gone {
            Gone::Item(hash) => drop(index.remove(hash)),
            Gone::All => index.clear(),
        }
    }
}

/// Items that had no slot: what nothing leads to now is not to come back later.
fn forget_displaced(journal: &mut GoneJournal, index: &Index, displaced: &[u64]) {
    let mut gone = displaced.iter().filter(|hash| index.get(**hash).is_none());
    if !gone.all(|hash| journal.add(*hash)) {
        index.clear();
        journal.add_all();
    }
}

fn format(
    device: &dyn FlashDevice,
    wanted: &WantedLog,
    journal: &mut GoneJournal,
    version: u64,
    boot: u64,
) -> Result<FoundLog> {
    let identity = process::random_u64().map_err(Error::io("drawing a random number"))?;
    journal.reset(identity, boot, 0, 0);
    let superblock = FlashSuperblock {
        identity,
        bytes: wanted.bytes,
        region_bytes: wanted.region_bytes,
        is_store: wanted.is_store,
        seed: wanted.seed,
        is_clean: false,
        boot,
        start: 0,
        version: version + 1,
        end: RegionExtent::default(),
    };
    write_superblock(device, &superblock)?;
    let is_dropped = version > 0;
    Ok(FoundLog {
        superblock: Some(superblock),
        free: (0..wanted.regions()).collect(),
        next_sequence: 1,
        recovered: FlashRecovered { is_new: !is_dropped, is_dropped, ..FlashRecovered::default() },
        ..FoundLog::default()
    })
}

struct LogReader<'a> {
    device: &'a dyn FlashDevice,
    wanted: &'a WantedLog,
    superblock: &'a FlashSuperblock,
    index: &'a Index,
    /// What was forgotten up to this number is in the log.
    forgotten: u64,
    /// Items that had to make room in the index.
    displaced: Vec<u64>,
}

impl LogReader<'_> {
    fn region_at(&self, region: u32) -> u64 {
        HEAD_BYTES + u64::from(region) * self.wanted.region_bytes
    }

    fn read_log(&mut self, start: u64) -> Result<FoundLog> {
        let (mut candidates, unreadable) = self.candidates();
        candidates.sort_unstable_by_key(|candidate| candidate.sequence);
        let FlashSuperblock { is_clean, end, .. } = *self.superblock;
        let end = is_clean.then_some(end);
        let newest = candidates.last().map_or(0, |newest| newest.sequence);
        let newest = newest.max(end.map_or(0, |end| end.sequence));
        let next_sequence = (newest + SEQUENCE_STEP).max(start);
        let mut chain = chain_of(&candidates, start, end);
        let mut missing = end;
        if end.is_none() && !unreadable.is_empty() {
            // One of them may be the newest one.
            chain.clear();
            missing = Some(RegionExtent { sequence: next_sequence - 1, bytes: 0 });
        }
        // What the oldest region that is believed says of the one before it; the end that is
        // missing, of which nothing before is believed.
        let mut before = missing.filter(|_| chain.is_empty()).unwrap_or_default();
        let mut live = VecDeque::new();
        let mut buffer = AlignedBytes::zeroed(self.wanted.region_bytes as usize);
        while let Some((candidate, bytes)) = chain.pop() {
            if live.is_empty() {
                before = candidate.previous;
            }
            let (extent, is_whole) = self.read_region(&candidate, bytes, &mut buffer);
            if !is_whole || bytes.is_some_and(|bytes| bytes != extent.bytes) {
                // It is not whole: neither it nor anything before it is believed.
                self.index.clear();
                live.clear();
                before = extent;
            } else if extent.bytes > 0 {
                live.push_back(LogRegion { region: candidate.region, extent, has_failed: false });
            }
        }
        let regions = live.len() as u64;
        let oldest =
            live.front().map_or(next_sequence, |oldest: &LogRegion| oldest.extent.sequence);
        let is_dropped = |one: &&RegionCandidate| (start..oldest).contains(&one.sequence);
        let is_empty = live.is_empty();
        let dropped = candidates.iter().filter(is_dropped);
        // The newest one may have got nothing that is whole.
        let dropped_regions = (dropped.count() as u64).saturating_sub(is_empty.into());
        let is_lost = before.sequence != 0 && before.sequence >= start;
        if self.wanted.is_store && (is_lost || (candidates.is_empty() && start > 0)) {
            let sequence = before.sequence + 1;
            return Err(Error::Damaged { sequence, regions: dropped_regions });
        }
        let is_free = |region: &u32| {
            live.iter().all(|live: &LogRegion| live.region != *region)
                && !unreadable.contains(region)
        };
        let free = (0..self.wanted.regions()).filter(is_free).collect();
        let recovered = FlashRecovered { regions, dropped_regions, ..FlashRecovered::default() };
        Ok(FoundLog { superblock: None, live, free, next_sequence, recovered })
    }

    /// All regions that bear a batch of this log, and those of which that cannot be read.
    fn candidates(&self) -> (Vec<RegionCandidate>, Vec<u32>) {
        let mut block = AlignedBytes::zeroed(BLOCK_BYTES);
        let (mut candidates, mut unreadable) = (Vec::new(), Vec::new());
        for region in 0..self.wanted.regions() {
            if device::read(self.device, self.region_at(region), &mut block).is_err() {
                unreadable.push(region);
                continue;
            }
            // Only the first block was read: the length of the batch is checked later.
            let header = BatchHeader::read_first(&block, self.superblock.identity);
            if let Some(header) = header {
                let (sequence, previous) = (header.sequence, header.previous);
                candidates.push(RegionCandidate { region, sequence, previous });
            }
        }
        (candidates, unreadable)
    }

    /// Reads a region into the index, up to `bytes` or, of the newest, as far as it is whole;
    /// whether nothing is missing in its midst.
    fn read_region(
        &mut self,
        candidate: &RegionCandidate,
        bytes: Option<u32>,
        buffer: &mut AlignedBytes,
    ) -> (RegionExtent, bool) {
        let mut extent = RegionExtent { sequence: candidate.sequence, bytes: 0 };
        let at = self.region_at(candidate.region);
        let len = self.wanted.region_bytes as usize;
        let upto = bytes.map_or(len, |bytes| len.min(bytes as usize));
        if !upto.is_multiple_of(BLOCK_BYTES)
            || device::read(self.device, at, &mut buffer[..upto]).is_err()
        {
            return (extent, false);
        }
        while (extent.bytes as usize) < upto {
            let here = &buffer[extent.bytes as usize..upto];
            let header = BatchHeader::read(here, self.superblock.identity, extent.bytes);
            let Some(header) = header.filter(|header| header.sequence == extent.sequence) else {
                break;
            };
            let batch = &here[..header.bytes as usize];
            if !walk(batch, header.records, |_, _, _| {}) {
                break;
            }
            let batch_at = at + u64::from(extent.bytes);
            walk(batch, header.records, |record_at, kind, record| match kind {
                RecordKind::Item => {
                    let word = IndexWord::at(batch_at + record_at as u64, record.bytes());
                    if let Some(gone) = self.index.insert(record.hash, word)
                        && self.displaced.len() as u64 <= JOURNAL_ENTRIES
                    {
                        self.displaced.push(gone);
                    }
                }
                RecordKind::Forget => drop(self.index.remove(record.hash)),
                RecordKind::ForgetAll => self.index.clear(),
            });
            self.forgotten = self.forgotten.max(header.forgotten);
            extent.bytes += header.bytes;
        }
        // Batches are written one after the other: of what was torn none is behind it.
        let mut behind = (extent.bytes as usize..upto).step_by(BLOCK_BYTES).skip(1);
        let is_whole = behind.all(|at| {
            let header = BatchHeader::read(&buffer[at..upto], self.superblock.identity, at as u32);
            header.is_none_or(|header| header.sequence != extent.sequence)
        });
        (extent, is_whole)
    }
}

/// From the newest region back along what each says of the one before it, with the bytes of each
/// that belong to the log (of the newest nothing says them, unless the log was closed in order).
fn chain_of(
    candidates: &[RegionCandidate],
    start: u64,
    end: Option<RegionExtent>,
) -> Vec<(RegionCandidate, Option<u32>)> {
    let find = |sequence: u64| {
        let found = candidates.binary_search_by_key(&sequence, |one| one.sequence).ok();
        found.map(|index| candidates[index])
    };
    let mut chain = Vec::new();
    let mut next = match end {
        Some(RegionExtent { sequence, bytes }) => {
            find(sequence).map(|newest| (newest, Some(bytes)))
        }
        None => candidates.last().map(|newest| (*newest, None)),
    };
    while let Some((candidate, bytes)) = next.filter(|(one, _)| one.sequence >= start) {
        chain.push((candidate, bytes));
        let RegionExtent { sequence, bytes } = candidate.previous;
        // Numbers go down, whatever the device says: this ends.
        let found = find(sequence).filter(|_| sequence < candidate.sequence);
        next = found.map(|candidate| (candidate, Some(bytes)));
    }
    chain
}
