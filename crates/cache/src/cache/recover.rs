//! A cache that outlives its process: the file, and what is found in it after a restart or a kill.
//!
//! Only the log counts: a segment's used length covers whole items alone, and every item that was
//! replaced, removed or evicted is marked dead before the call that did it returns. So the index
//! is made anew from the items that are not dead, oldest segment first; of two with the same key
//! (a kill between writing the new and marking the old one) the later one counts. Called by
//! `mod.rs`.
//!
//! No word of the file is believed without its check (`log.rs`, `segments.rs`). The superblock is
//! there twice; what is damaged elsewhere costs the items that it is part of.

mod hashes;

use super::Options;
use super::draft::body_check;
use super::error::{Error, Result};
use super::key::Key;
use super::layout::{Header, Pos, UNIT_BYTES, UNIT_SHIFT, mix};
use super::log::ACCESS_UNKNOWN;
use super::partition::Partition;
use super::policy::Policy;
use super::populate::{PIECE_UNITS, Populator};
use super::segments::{Adopted, Segments, TABLE_ENTRY_BYTES};
use super::tier::TierSlab;
use rackpool_core::seam::Mem;
use rackpool_mem::files;
use rackpool_mem::window::{Window, take_file};
use rustix::fs::OFlags;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub(super) const SUPERBLOCK_BYTES: u64 = UNIT_BYTES as u64;
/// Identifies the file; its last byte is the version of all layouts.
const MAGIC: u64 = u64::from_be_bytes(*b"rpcache\x03");
/// Its part that all versions share.
const MAGIC_MASK: u64 = !0xff;
/// Where the superblock lies, and once more: on pages of their own.
const COPIES_AT: [u64; 2] = [0, 4096];
const NAMES: [&str; SUPERBLOCK_WORDS] =
    ["partitions", "units", "seed", "policy", "keeps_access, is_lossy or far", "memory"];
const SUPERBLOCK_WORDS: usize = 6;
/// Where the number of a partition's far units begins in the word of switches.
const FAR_UNITS_SHIFT: u32 = 8;
/// Where the check of the superblock lies in it.
const CHECK_AT: u64 = 8 + 8 * SUPERBLOCK_WORDS as u64;
/// The word that a file keeps whatever the options say.
const SEED: usize = 2;
const PARTITIONS: usize = 0;
const SWITCHES: usize = 4;

/// What was found when a cache was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Items that are there again.
    pub items: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Items that were dropped: their check failed, pieces were missing, or they were being
    /// written when the process ended.
    pub lost: u64,
    /// Places where the check failed. Each costs the item that lies there, or nothing where the
    /// file says the same twice, or where what lies there was dead.
    pub damaged: u64,
}

/// What has to be alike in the file and in the options.
fn superblock(options: &Options, units: u64) -> [u64; SUPERBLOCK_WORDS] {
    let policy = match options.policy {
        Policy::Fifo => 0,
        Policy::FifoReinsertion { threshold } => 0x100 | u64::from(threshold),
        Policy::Sieve => 1,
        Policy::S3Fifo => 2,
        Policy::TinyLfu => 3,
    };
    let switches = u64::from(options.keeps_access)
        | (u64::from(options.is_lossy) << 1)
        | (options.far_units() << FAR_UNITS_SHIFT);
    let partitions = u64::from(options.partitions);
    [partitions, units, options.seed, policy, switches, options.memory]
}

pub(super) struct OpenedFile {
    pub file: Arc<File>,
    pub window: Window,
    /// First units of each partition that have their memory, if the rest is taken later.
    pub taken: Option<u32>,
    /// Whether nothing is in it yet.
    pub is_new: bool,
    pub damaged: u64,
}

/// The words of a copy of the superblock, if its check holds; `load` reads a word of the copy.
fn read_superblock(load: impl Fn(u64) -> u64) -> Option<[u64; SUPERBLOCK_WORDS]> {
    let mut words = [0; SUPERBLOCK_WORDS];
    (0..).zip(&mut words).for_each(|(index, word)| *word = load(8 + 8 * index));
    let is_whole = load(0) == MAGIC && load(CHECK_AT) == superblock_check(&words);
    is_whole.then_some(words)
}

/// Bytes of far memory ([`Options::far`]) with which the file of a cache was made; `None` if there
/// is none, or none that can be read. The file may be in use.
#[must_use]
pub fn far_bytes_in(path: &Path) -> Option<u64> {
    let file = files::open_regular(path).ok()?;
    let words = COPIES_AT.into_iter().find_map(|at| {
        let mut bytes = [0; CHECK_AT as usize + 8];
        file.read_exact_at(&mut bytes, at).ok()?;
        let word =
            |at: u64| bytes[at as usize..].first_chunk().copied().map_or(0, u64::from_ne_bytes);
        read_superblock(word)
    })?;
    let units = (words[SWITCHES] >> FAR_UNITS_SHIFT).saturating_mul(words[PARTITIONS]);
    Some(units.saturating_mul(UNIT_BYTES.into()))
}

/// Writes both copies of the superblock, the magic last.
fn write_superblock(window: &Window, words: &[u64; SUPERBLOCK_WORDS]) {
    for at in COPIES_AT {
        (0..).zip(words).for_each(|(index, word)| window.store(at + 8 + 8 * index, *word));
        window.store(at + CHECK_AT, superblock_check(words));
        window.store(at, MAGIC);
    }
}

fn superblock_check(words: &[u64; SUPERBLOCK_WORDS]) -> u64 {
    words.iter().fold(MAGIC, |sum, word| mix(sum, *word))
}

/// Opens the file and checks that it is of these options. The seed becomes that of the file.
pub(super) fn open_file(path: &Path, options: &mut Options, units: u64) -> Result<OpenedFile> {
    let failed = failed_at(path);
    let is_ours = !path.exists();
    let file = files::open_private_linked(path, OFlags::RDWR | OFlags::CREATE);
    let file = File::from(file.map_err(failed("opening"))?);
    files::lock(&file).map_err(failed("locking"))?;
    let opened = open_locked(path, file, options, units);
    if opened.is_err() && is_ours {
        // Nothing is in it; left behind it would only be in the way.
        let _ = std::fs::remove_file(path);
    }
    let opened = opened?;
    files::take_rights(&*opened.file).map_err(failed("taking the rights of"))?;
    Ok(opened)
}

/// What makes errors of what was tried with a file and what the system said.
fn failed_at(path: &Path) -> impl Fn(&str) -> Box<dyn FnOnce(std::io::Error) -> Error> {
    move |what| {
        let what = format!("{what} {}", path.display());
        Box::new(move |source| Error::Io { what, source })
    }
}

fn open_locked(path: &Path, file: File, options: &mut Options, units: u64) -> Result<OpenedFile> {
    let failed = failed_at(path);
    let corrupt = |reason: String| Error::Corrupt { path: path.display().to_string(), reason };
    let found_bytes = file.metadata().map_err(failed("looking at"))?.len();
    if let Some(found) = other_format(&file, found_bytes).map_err(failed("reading"))? {
        let (path, known) = (path.display().to_string(), MAGIC & !MAGIC_MASK);
        return Err(Error::OtherFormat { path, found, known });
    }
    let partitions = u64::from(options.partitions);
    let bytes = SUPERBLOCK_BYTES + Partition::window_bytes(units) * partitions;
    if found_bytes != 0 && found_bytes != bytes {
        return Err(corrupt(format!("{found_bytes} bytes, not the {bytes} of these options")));
    }
    let is_whole = found_bytes != 0 && has_all_memory(&file).map_err(failed("looking at"))?;
    let is_placed = options.placement.is_some() || options.far.is_some();
    let is_later = options.takes_file_later && found_bytes == 0 && !is_placed;
    let first = options.index_units(units).max(PIECE_UNITS.into()).min(units);
    let window = match &options.placement {
        _ if options.far.is_some() => window_in_two(path, &file, options, units)?,
        Some(placement) => placement.file(file.as_fd(), bytes, options.grain_bytes)?,
        None if is_whole || is_later => {
            Window::of_file_later(file.as_fd(), bytes).map_err(failed("mapping"))?
        }
        None => Window::of_file(file.as_fd(), bytes).map_err(failed("mapping"))?,
    };
    if is_later {
        // Each table and the first units behind it.
        let each = Partition::window_bytes(units);
        let taken = each - ((units - first) << UNIT_SHIFT);
        let starts = (0..partitions).map(|index| (SUPERBLOCK_BYTES + index * each, taken));
        for (at, bytes) in std::iter::once((0, SUPERBLOCK_BYTES)).chain(starts) {
            take_file(file.as_fd(), at, bytes).map_err(failed("taking memory of"))?;
        }
    }
    let (file, taken) = (Arc::new(file), is_later.then_some(first as u32));
    let words = superblock(options, units);
    let copies = COPIES_AT.map(|at| read_superblock(|word| window.load(at + word)));
    if let Some(found) = copies.into_iter().flatten().next() {
        let differs = |index: &usize| found[*index] != words[*index];
        let other = (0..SUPERBLOCK_WORDS).filter(|index| *index != SEED).find(differs);
        if let Some(index) = other {
            let (found, name, wanted) = (found[index], NAMES[index], words[index]);
            return Err(corrupt(format!("it was made with {name} {found}, not {wanted}")));
        }
        options.seed = found[SEED];
        let damaged = copies.iter().filter(|copy| copy.is_none()).count() as u64;
        write_superblock(&window, &found);
        return Ok(OpenedFile { file, window, taken: None, is_new: false, damaged });
    }
    if COPIES_AT.iter().any(|at| window.load(*at) != 0) {
        let what = "it begins with other bytes, or both copies of its first words are damaged";
        return Err(corrupt(what.into()));
    }
    for index in 0..partitions {
        // Before the magic: a process that dies in between leaves a file that is new.
        let table = SUPERBLOCK_BYTES + index * Partition::window_bytes(units);
        window.zero(table, units * TABLE_ENTRY_BYTES);
    }
    write_superblock(&window, &words);
    Ok(OpenedFile { file, window, taken, is_new: true, damaged: 0 })
}

/// A window on a file, of which each partition has near and far memory; if not all of it is there,
/// it is taken now, far memory that is only to be switched to excepted.
fn window_in_two(path: &Path, file: &File, options: &Options, units: u64) -> Result<Window> {
    let (each, partitions) = (Partition::window_bytes(units), u64::from(options.partitions));
    let (failed, bytes) = (failed_at(path), SUPERBLOCK_BYTES + each * partitions);
    file.set_len(bytes).map_err(failed("lengthening"))?;
    let window = Window::of_file_later(file.as_fd(), bytes).map_err(failed("mapping"))?;
    for index in 0..partitions {
        options.place(&window.slice(SUPERBLOCK_BYTES + index * each, each))?;
    }
    if !has_all_memory(file).map_err(failed("looking at"))? {
        // What far memory has of an earlier process stays.
        let taken = each - if options.far_waits { options.far_bytes() } else { 0 };
        let starts = (0..partitions).map(|index| (SUPERBLOCK_BYTES + index * each, taken));
        for (at, bytes) in std::iter::once((0, SUPERBLOCK_BYTES)).chain(starts) {
            take_file(file.as_fd(), at, bytes).map_err(failed("taking memory of"))?;
        }
    }
    Ok(window)
}

/// Whether a file has the memory for all of its length: asking for it again takes as long.
fn has_all_memory(file: &File) -> std::io::Result<bool> {
    let found = file.metadata()?;
    Ok(found.blocks() * 512 >= found.len())
}

impl OpenedFile {
    /// How a partition of so many units, with a window that begins at `at`, gets their memory.
    pub fn populator(&self, at: u64, units: u64) -> Option<Arc<Populator>> {
        let at = at + Partition::window_bytes(units) - (units << UNIT_SHIFT);
        let file = Arc::clone(&self.file);
        self.taken.map(|taken| Arc::new(Populator::new(file, at, units as u32, taken)))
    }

    /// How the far memory of a partition with a window that ends at `end` comes into use again.
    pub fn far_populator(&self, end: u64, options: &Options) -> Option<Arc<Populator>> {
        options.far.as_ref()?;
        let (at, units) = (end - options.far_bytes(), options.far_units() as u32);
        let taken = if options.far_waits { 0 } else { units };
        Some(Arc::new(Populator::new(Arc::clone(&self.file), at, units, taken)))
    }
}

fn other_format(file: &File, found_bytes: u64) -> std::io::Result<Option<u64>> {
    let mut magics = [0; COPIES_AT.len()];
    for (magic, at) in magics.iter_mut().zip(COPIES_AT) {
        let mut bytes = [0; 8];
        if at + 8 <= found_bytes {
            file.read_exact_at(&mut bytes, at)?;
        }
        *magic = u64::from_ne_bytes(bytes);
    }
    if magics.contains(&MAGIC) {
        return Ok(None);
    }
    let other = magics.iter().find(|magic| **magic & MAGIC_MASK == MAGIC & MAGIC_MASK);
    Ok(other.map(|other| other & !MAGIC_MASK))
}

enum SegmentContent {
    /// An item that counts from now on, or what is walked over: dead, or a further piece.
    Whole,
    /// What was being written when the process ended, or has lost its value: it is dead now.
    Lost,
    /// Nothing that can be told apart.
    Damaged,
}

impl Partition {
    /// What an earlier process left in the window.
    pub(super) fn recover(
        window: &Window,
        units: u64,
        options: &Options,
        tier_slab: Option<TierSlab>,
        recovered: &mut Recovered,
    ) -> Partition {
        let (table, units_window) = Partition::parts(window, units);
        let (mut segments, found, damaged) = Segments::adopt(table, options.far_units() as u32);
        recovered.damaged += damaged;
        if options.far_waits {
            segments.hold_far_back(false);
        }
        let mut partition = Partition::with(segments, units_window, options, true);
        partition.tier_slab = tier_slab;
        partition.is_recovering = true;
        let ends: Vec<u32> =
            found.iter().map(|adopted| partition.recover_segment(*adopted, recovered)).collect();
        let (lost, counted) = partition.recover_hashes();
        recovered.lost += lost;
        partition.is_recovering = false;
        for (adopted, end) in found.iter().zip(ends) {
            partition.segments.settle(adopted.unit, end);
        }
        partition.put_counted(counted);
        recovered.items += partition.items();
        recovered.bytes += partition.segments.live_bytes();
        partition.stats = super::Stats::default();
        partition
    }

    /// Goes over a segment; where its last item ends. What no check vouches for becomes dead space,
    /// up to the next place that one does: damage costs no neighbours, whatever length it says.
    fn recover_segment(&mut self, adopted: Adopted, recovered: &mut Recovered) -> u32 {
        let Adopted { unit, used } = adopted;
        let limit = used.unwrap_or(UNIT_BYTES);
        let (mut offset, mut end, mut gap) = (0, 0, None);
        while offset < limit {
            let pos = Pos::new(unit, offset);
            let header = self.header(pos);
            let found = match header.bytes() <= limit - offset {
                true => self.recover_at(pos, header),
                false => SegmentContent::Damaged,
            };
            if let SegmentContent::Damaged = found {
                let (_, next) = gap.get_or_insert((offset, offset));
                if *next == offset {
                    // Where the one before ends, if that is true, another one is damaged.
                    *next += header.bytes();
                    recovered.lost += 1;
                    recovered.damaged += 1;
                }
                offset += 8;
                continue;
            }
            if let SegmentContent::Lost = found {
                recovered.lost += 1;
            }
            if let Some((start, _)) = gap.take() {
                self.fill(unit, start, offset);
            }
            offset += header.bytes();
            end = offset;
        }
        if used.is_none() {
            // How far it was written is not known: what is behind the last item was not.
            return end;
        }
        if let Some((start, _)) = gap {
            self.fill(unit, start, limit);
        }
        limit
    }

    fn fill(&mut self, unit: u32, start: u32, end: u32) {
        self.bury(Pos::new(unit, start), Header::new(0, end - start - 8, 0));
    }

    /// Enters the item that lies here, if one does.
    fn recover_at(&mut self, pos: Pos, header: Header) -> SegmentContent {
        if header.has(Header::NO_ITEM) {
            if self.sealed(pos, header) != header {
                return SegmentContent::Damaged;
            }
            if header.has(Header::PIECE) {
                self.segments.fix(pos.unit());
            }
            if header.has(Header::DEAD | Header::PIECE) {
                return SegmentContent::Whole;
            }
            self.bury(pos, header);
            return SegmentContent::Lost;
        }
        let mut key = std::mem::take(&mut self.key_buffer);
        self.key_of(pos, header, &mut key);
        let found = self.recover_item(pos, header, Key::of_stored(&key, header));
        self.key_buffer = key;
        found
    }

    fn recover_item(&mut self, pos: Pos, header: Header, key: Key<'_>) -> SegmentContent {
        // What was never written is no item: see `Partition::cas_for`.
        if header.unchecked() == 0 || key.word() != header.key_word() {
            return SegmentContent::Damaged;
        }
        let hash = key.hash(self.seed);
        let Some(value_hash) = self.whole_value(pos, header) else {
            return SegmentContent::Damaged;
        };
        if body_check(hash, value_hash) ^ self.frame_check(pos, header) != header.check() {
            return SegmentContent::Damaged;
        }
        let far = if header.has(Header::FAR) {
            let Some(value) = self.adopt_far(pos, header) else {
                // What lay in a tier that does not keep it went with its process.
                self.bury(pos, header);
                return SegmentContent::Lost;
            };
            Some(value)
        } else {
            None
        };
        self.forget_access(pos, header);
        let expires = self.fields(pos, header).expires;
        let mut next = Some((pos, header));
        while let Some((pos, header)) = next {
            if header.has(Header::CHAINED) {
                self.segments.fix(pos.unit());
            }
            self.segments.credit(pos.unit(), header);
            self.segments.prolong(pos.unit(), expires);
            next = self.follow(self.link_of(pos, header));
        }
        if !self.enter_recovered(hash, key, pos, 0) {
            self.kill(pos);
            return SegmentContent::Lost;
        }
        if let Some(value) = far {
            self.shelve(hash, Arc::new(value));
        }
        SegmentContent::Whole
    }

    /// No check covers when an item was last used, since it changes by itself: it counts from when
    /// the item was written.
    fn forget_access(&self, pos: Pos, header: Header) {
        if self.keeps_access && header.has(Header::EXTRA) {
            let at = pos.byte() + header.word_at(Header::EXTRA);
            self.units.store(at, self.units.load(at) | u64::from(ACCESS_UNKNOWN) << 32);
        }
    }

    /// The hash of a value, if all its pieces are there.
    fn whole_value(&mut self, pos: Pos, header: Header) -> Option<u64> {
        let mut buffer = std::mem::take(&mut self.move_buffer);
        let hash = match header.has(Header::CHAINED) {
            true => self.chained_value(pos, header, &mut buffer),
            false => {
                self.read_piece(pos, header, &mut buffer);
                Some(xxh3_64(&buffer))
            }
        };
        self.move_buffer = buffer;
        hash
    }

    fn chained_value(&self, pos: Pos, header: Header, buffer: &mut Vec<u8>) -> Option<u64> {
        let total = self.value_bytes(pos, header);
        let mut state = Xxh3::new();
        let (mut bytes, mut next) = (0, Some((pos, header)));
        // The walk ends even if damaged links form a cycle: no two pieces of an item lie in one
        // unit.
        for _ in 0..self.segments.count() {
            let Some((pos, header)) = next else { break };
            let end = u64::from(pos.offset()) + u64::from(header.bytes());
            let is_piece = bytes == 0
                || (header.has(Header::PIECE)
                    && !header.has(Header::DEAD)
                    && self.sealed(pos, header) == header);
            if !is_piece || end > u64::from(self.segments.get(pos.unit()).used) {
                return None;
            }
            self.read_piece(pos, header, buffer);
            state.update(buffer);
            bytes += u64::from(header.value_bytes());
            next = self.follow(self.link_of(pos, header));
        }
        (bytes == total && next.is_none()).then(|| state.digest())
    }

    fn read_piece(&self, pos: Pos, header: Header, buffer: &mut Vec<u8>) {
        buffer.clear();
        let at = pos.byte() + u64::from(header.value_at());
        self.units.append_to(at, u64::from(header.value_bytes()), buffer);
    }
}
