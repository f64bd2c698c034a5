//! A cache that outlives its process: the file, and what is found in it after a restart or a kill.
//!
//! Only the log counts: a segment's used length covers whole items alone, and every item that was
//! replaced, removed or evicted is marked dead before the call that did it returns. So the index
//! is made anew from the items that are not dead, oldest segment first, each verified by its
//! check; of two with the same key (a kill between writing the new and marking the old one) the
//! later one counts. Called by `mod.rs`.

use super::Options;
use super::error::{Error, Result};
use super::layout::{Header, Pos, UNIT_BYTES};
use super::log::check_of;
use super::partition::Partition;
use super::policy::Policy;
use super::segments::{Segments, TABLE_ENTRY_BYTES};
use super::tier::Shelf;
use rackpool_core::seam::Mem;
use rackpool_hw::window::Window;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Bytes before the partitions.
pub(super) const SUPERBLOCK_BYTES: u64 = UNIT_BYTES as u64;
/// Says what the file is, and by its last byte the version of all layouts.
const MAGIC: u64 = u64::from_be_bytes(*b"rpcache\x01");
/// What the words of the superblock are.
const NAMES: [&str; SUPERBLOCK_WORDS] =
    ["partitions", "units", "seed", "policy", "keeps_access or is_lossy", "memory"];
const SUPERBLOCK_WORDS: usize = 6;
/// The word that a file keeps whatever the options say.
const SEED: usize = 2;

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
    let switches = u64::from(options.keeps_access) | (u64::from(options.is_lossy) << 1);
    let partitions = u64::from(options.partitions);
    [partitions, units, options.seed, policy, switches, options.memory]
}

/// The file, locked and mapped, and whether it is new. The seed becomes that of the file.
pub(super) fn open_file(
    path: &Path,
    options: &mut Options,
    units: u64,
) -> Result<(File, Window, bool)> {
    let failed = |what: &str| {
        let what = format!("{what} {}", path.display());
        move |source| Error::Io { what, source }
    };
    let corrupt = |reason: &str| {
        let (path, reason) = (path.display().to_string(), reason.to_owned());
        Error::Corrupt { path, reason }
    };
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    let file = how.open(path).map_err(failed("opening"))?;
    file.try_lock().map_err(|error| failed("locking")(error.into()))?;
    let partitions = u64::from(options.partitions);
    let bytes = SUPERBLOCK_BYTES + Partition::window_bytes(units) * partitions;
    let found_bytes = file.metadata().map_err(failed("looking at"))?.len();
    if found_bytes != 0 && found_bytes != bytes {
        let reason = format!("{found_bytes} bytes, not the {bytes} of these options");
        return Err(corrupt(&reason));
    }
    let window = match &options.placement {
        Some(placement) => placement.file(file.as_fd(), bytes)?,
        None => Window::of_file(file.as_fd(), bytes).map_err(failed("mapping"))?,
    };
    let words = superblock(options, units);
    let at = |index: usize| 8 + 8 * index as u64;
    match window.load(0) {
        MAGIC => {
            let differs = |index: &usize| window.load(at(*index)) != words[*index];
            let other = (0..SUPERBLOCK_WORDS).filter(|index| *index != SEED).find(differs);
            if let Some(index) = other {
                let (found, name) = (window.load(at(index)), NAMES[index]);
                let wanted = words[index];
                return Err(corrupt(&format!("it was made with {name} {found}, not {wanted}")));
            }
            options.seed = window.load(at(SEED));
            Ok((file, window, false))
        }
        0 => {
            (0..SUPERBLOCK_WORDS).for_each(|index| window.store(at(index), words[index]));
            for index in 0..partitions {
                // Before the magic: whoever dies in between leaves a file that is new.
                let table = SUPERBLOCK_BYTES + index * Partition::window_bytes(units);
                window.zero(table, units * TABLE_ENTRY_BYTES);
            }
            window.store(0, MAGIC);
            Ok((file, window, true))
        }
        _ => Err(corrupt("it begins with other bytes")),
    }
}

impl Partition {
    /// What an earlier process left in the window.
    pub(super) fn recover(
        window: &Window,
        units: u64,
        options: &Options,
        shelf: Option<Shelf>,
        recovered: &mut Recovered,
    ) -> Partition {
        let (table, units_window) = Partition::parts(window, units);
        let (segments, found) = Segments::adopt(table, units_window.clone());
        let mut partition = Partition::with(segments, units_window, options, true);
        partition.shelf = shelf;
        partition.is_recovering = true;
        for unit in &found {
            partition.recover_segment(*unit, recovered);
        }
        partition.is_recovering = false;
        for unit in found {
            let segment = partition.segments.get(unit);
            if segment.seq != 0 && segment.live == 0 {
                partition.segments.release(unit);
            }
        }
        recovered.items += partition.index.items();
        recovered.bytes += partition.segments.live_bytes();
        partition.stats = super::Stats::default();
        partition
    }

    fn recover_segment(&mut self, unit: u32, recovered: &mut Recovered) {
        let used = self.segments.get(unit).used;
        let mut offset = 0;
        while offset < used {
            let pos = Pos::new(unit, offset);
            let header = self.header(pos);
            if header.bytes() > used - offset {
                // Not the end of an item: what follows cannot be read.
                recovered.lost += 1;
                return;
            }
            offset += header.bytes();
            if header.has(Header::PIECE | Header::CHAINED) {
                self.segments.fix(unit);
            }
            if header.has(Header::DEAD | Header::PIECE) {
                continue;
            }
            if header.has(Header::RESERVED) || !self.recover_item(pos, header) {
                self.units.store(pos.byte(), header.set(Header::DEAD, true).0);
                recovered.lost += 1;
            }
        }
    }

    /// Enters an item if all of it is there.
    fn recover_item(&mut self, pos: Pos, header: Header) -> bool {
        let mut key = Vec::new();
        self.key_of(pos, header, &mut key);
        let hash = xxh3_64_with_seed(&key, self.seed);
        let Some(value_hash) = self.whole_value(pos, header) else { return false };
        if key.is_empty() || check_of(hash, value_hash) != header.check() {
            return false;
        }
        let far = if header.has(Header::FAR) {
            // What lay in a tier that does not keep it went with its process.
            let Some(value) = self.adopt_far(pos, header) else { return false };
            Some(value)
        } else {
            None
        };
        let mut next = Some((pos, header));
        while let Some((pos, header)) = next {
            self.segments.credit(pos.unit(), header);
            next = self.follow(self.link_of(pos, header));
        }
        if self.enter_recovered(hash, &key, pos, 0) {
            if let Some(value) = far {
                self.shelve(hash, Arc::new(value));
            }
            return true;
        }
        self.kill(pos);
        false
    }

    /// The hash of a value, if all its pieces are there.
    fn whole_value(&self, pos: Pos, header: Header) -> Option<u64> {
        let mut buffer = Vec::new();
        if !header.has(Header::CHAINED) {
            let at = pos.byte() + u64::from(header.value_at());
            self.units.append_to(at, u64::from(header.value_bytes()), &mut buffer);
            return Some(xxh3_64(&buffer));
        }
        let total = self.value_bytes(pos, header);
        let mut state = Xxh3::new();
        let (mut bytes, mut next) = (0, Some((pos, header)));
        while let Some((pos, header)) = next {
            let is_first = bytes == 0;
            let end = u64::from(pos.offset()) + u64::from(header.bytes());
            if header.has(Header::DEAD)
                || header.has(Header::PIECE) == is_first
                || end > u64::from(self.segments.get(pos.unit()).used)
            {
                return None;
            }
            buffer.clear();
            let at = pos.byte() + u64::from(header.value_at());
            self.units.append_to(at, u64::from(header.value_bytes()), &mut buffer);
            state.update(&buffer);
            bytes += u64::from(header.value_bytes());
            // Every piece has bytes, so that a circle ends, too.
            if header.value_bytes() == 0 || bytes > total {
                return None;
            }
            let link = self.link_of(pos, header);
            let is_inside = (link.pos().unit() as usize) < self.segments.count();
            next = if is_inside { self.follow(link) } else { None };
        }
        (bytes == total).then(|| state.digest())
    }
}
