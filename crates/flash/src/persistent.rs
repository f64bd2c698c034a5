//! Items in memory that persists: what a cache keeps beyond its memory, or a store that loses
//! nothing. In: items, hashes of items that are gone, and from when on that has to be durable. Out:
//! items, and after a start all that were made durable and are not gone.
//!
//! They lie in a log ([`rackpool_core::persist::log`]); a table in ordinary memory says where, and
//! is made anew by reading the log. The segment that was begun first is emptied first: what lives
//! in it is appended once more (of a cache, what was read), then it is given back. So what says
//! that an item is gone may be dropped with its segment: nothing older is left. One thread at a
//! time; nothing waits but for a fence.
//!
//! Ordering rule: a segment is given back, durably, before items that were in it are not found any
//! more: from then on their owner changes them without a word here.

use crate::error::{Error, Result};
use crate::fetch::FlashItem;
use crate::layout::FlashRecord;
use rackpool_core::constants::SEGMENT_STRIDE_BYTES;
use rackpool_core::persist::Persist;
use rackpool_core::persist::log::{HEADER_BYTES, Location, Log, LogEntry, LogError, LogGeometry};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Of entries: an item; that one is gone; that all are.
const ITEM: u32 = 1;
const GONE: u32 = 2;
const ALL_GONE: u32 = 3;
/// Of an item before its key: hash, expiry, cas, flags, length of the key, kind.
const ITEM_HEAD_BYTES: usize = 32;
/// Segments that are kept free: what lives in one that is emptied may need two.
const FREE_SEGMENTS: u32 = 3;
/// Fewest segments of a log.
const SEGMENTS_MIN: u64 = 16;
const STRIDES_MAX: u64 = 256;
/// Longest entry, as a part of a segment: so little is left at its end.
const SHARE_OF_SEGMENT: u64 = 8;
/// Share of all other segments that a store may fill with what lives, percent.
const STORE_PERCENT: u64 = 70;
/// What an entry and its record take beside its bytes, most.
const BESIDE_BYTES: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct ItemPlace {
    at: Location,
    was_read: bool,
}

/// The log, and where items are in it.
pub struct PersistentItems<M> {
    log: Log<M>,
    is_store: bool,
    places: HashMap<u64, ItemPlace>,
    /// Hashes of the items, by where they lie.
    hashes: BTreeMap<u64, u64>,
    /// Segments in which something may live, the first one first.
    order: VecDeque<u32>,
    live_bytes: u64,
    written_bytes: u64,
    rewritten: u64,
}

impl<M: Persist> PersistentItems<M> {
    /// How memory of so many bytes is divided.
    ///
    /// # Errors
    /// [`Error::BadOption`] if that is too little.
    pub fn geometry(bytes: u64) -> Result<LogGeometry> {
        let strides = (bytes / SEGMENTS_MIN / SEGMENT_STRIDE_BYTES).clamp(1, STRIDES_MAX);
        let count = bytes.saturating_sub(HEADER_BYTES) / (strides * SEGMENT_STRIDE_BYTES);
        let geometry = LogGeometry::new(strides as u32, u32::try_from(count).unwrap_or(u32::MAX));
        let enough = geometry.filter(|it| u64::from(it.segment_count()) >= SEGMENTS_MIN - 1);
        let (min, max) = (SEGMENTS_MIN * SEGMENT_STRIDE_BYTES * 2, u64::MAX);
        enough.ok_or(Error::BadOption {
            option: "bytes of memory that persists",
            value: bytes,
            min,
            max,
        })
    }

    /// Makes an empty one; `id` is a random number.
    ///
    /// # Errors
    /// [`Error::BadOption`]; [`Error::Persistent`].
    pub fn format(mem: &M, is_store: bool, id: u64) -> Result<()> {
        let geometry = Self::geometry(mem.bytes())?;
        Ok(Log::format(mem, geometry, id & !1 | u64::from(is_store))?)
    }

    /// Opens what is there; reads all of it.
    ///
    /// # Errors
    /// [`Error::Geometry`] if it was made for the other mode; [`Error::Persistent`].
    pub fn open(mem: M, is_store: bool) -> Result<Self> {
        let (mut places, mut order) = (HashMap::<u64, ItemPlace>::new(), VecDeque::new());
        let mut segments = Vec::new();
        let log = Log::open(mem, &mut |entry| {
            segments.push(entry.at.offset);
            recover(&mut places, entry);
        })?;
        for offset in segments {
            let segment = log.geometry().segment_of(offset);
            if order.back() != Some(&segment) {
                order.push_back(segment);
            }
        }
        let found = log.id() & 1;
        if found != u64::from(is_store) {
            let (what, wanted) = ("mode (1: store)", is_store.into());
            return Err(Error::Geometry { what, found, wanted });
        }
        let live_bytes = places.values().map(|place| charged(place.at)).sum();
        let hashes = places.iter().map(|(hash, place)| (place.at.offset, *hash)).collect();
        let (written_bytes, rewritten) = (0, 0);
        Ok(Self { log, is_store, places, hashes, order, live_bytes, written_bytes, rewritten })
    }

    /// A number of its own, for the hashes of keys.
    pub fn seed(&self) -> u64 {
        self.log.id()
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes that were appended, and items that were once more.
    pub fn written(&self) -> (u64, u64) {
        (self.written_bytes, self.rewritten)
    }

    pub fn contains(&self, hash: u64) -> bool {
        self.places.contains_key(&hash)
    }

    /// A number of the place of an item.
    pub fn version(&self, hash: u64) -> Option<u64> {
        self.places.get(&hash).map(|place| place.at.offset)
    }

    /// Longest key and value together, bytes.
    pub fn item_bytes_max(&self) -> u64 {
        self.log.geometry().segment_bytes() / SHARE_OF_SEGMENT
            - ITEM_HEAD_BYTES as u64
            - BESIDE_BYTES
    }

    /// Appends an item in place of that of the same hash; its change.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Full`] of a store; [`Error::Persistent`].
    pub fn put(&mut self, record: &FlashRecord<'_>) -> Result<u64> {
        let bytes = record.key.len() + record.value.len();
        let max_bytes = self.item_bytes_max() as usize;
        if bytes > max_bytes || record.key.len() > usize::from(u16::MAX) {
            return Err(Error::TooLarge { bytes, max_bytes });
        }
        let geometry = self.log.geometry();
        let segments = u64::from(geometry.segment_count().saturating_sub(FREE_SEGMENTS + 1));
        let limit = segments * geometry.segment_bytes() / 100 * STORE_PERCENT;
        if self.is_store
            && self.live_bytes + (ITEM_HEAD_BYTES + bytes) as u64 + BESIDE_BYTES > limit
        {
            return Err(Error::Full { bytes: self.live_bytes });
        }
        self.make_room()?;
        let head = head_of(record);
        self.append(record.hash, &[&head, record.key, record.value], false)
    }

    fn append(&mut self, hash: u64, parts: &[&[u8]], was_read: bool) -> Result<u64> {
        let appended = self.log.append(ITEM, parts)?;
        self.note_segment(appended.at);
        self.forget_place(hash);
        self.live_bytes += charged(appended.at);
        self.written_bytes += u64::from(appended.at.bytes);
        self.places.insert(hash, ItemPlace { at: appended.at, was_read });
        self.hashes.insert(appended.at.offset, hash);
        Ok(appended.sequence + 1)
    }

    fn note_segment(&mut self, at: Location) {
        let segment = self.log.geometry().segment_of(at.offset);
        if self.order.back() != Some(&segment) {
            self.order.push_back(segment);
        }
    }

    fn forget_place(&mut self, hash: u64) -> bool {
        let Some(old) = self.places.remove(&hash) else { return false };
        self.hashes.remove(&old.at.offset);
        self.live_bytes -= charged(old.at);
        true
    }

    /// An item is gone; the change by which it is, if there was any.
    ///
    /// # Errors
    /// [`Error::Persistent`]: it may be found after a restart.
    pub fn remove(&mut self, hash: u64) -> Result<Option<u64>> {
        if !self.contains(hash) {
            return Ok(None);
        }
        self.make_room()?;
        // It may have gone for room.
        if !self.forget_place(hash) {
            return Ok(None);
        }
        let appended = self.log.append(GONE, &[&hash.to_le_bytes()])?;
        self.note_segment(appended.at);
        Ok(Some(appended.sequence + 1))
    }

    /// All items are gone; the change by which they are.
    ///
    /// # Errors
    /// As [`PersistentItems::remove`].
    pub fn remove_all(&mut self) -> Result<u64> {
        self.make_room()?;
        let appended = self.log.append(ALL_GONE, &[])?;
        self.note_segment(appended.at);
        self.places.clear();
        self.hashes.clear();
        self.live_bytes = 0;
        Ok(appended.sequence + 1)
    }

    /// Reads an item of this hash and key; it counts as used.
    pub fn read(&mut self, hash: u64, key: &[u8]) -> Option<FlashItem> {
        let place = self.places.get_mut(&hash)?;
        let mut bytes = vec![0; place.at.bytes as usize];
        self.log.read(place.at, &mut bytes);
        let record = record_in(&bytes)?;
        if record.hash != hash || record.key != key {
            return None;
        }
        place.was_read = true;
        Some(FlashItem {
            value: record.value.to_vec(),
            flags: record.flags,
            kind: record.kind,
            expires: record.expires,
            cas: record.cas,
            version: place.at.offset.into(),
        })
    }

    /// Makes all changes durable, by one fence.
    ///
    /// # Errors
    /// [`Error::Persistent`]: none that [`PersistentItems::durable`] does not name may be
    /// acknowledged.
    pub fn commit(&mut self) -> Result<()> {
        Ok(self.log.commit()?)
    }

    /// Changes up to this number are durable.
    pub fn durable(&self) -> u64 {
        self.log.durable()
    }

    /// Empties segments until enough are free.
    fn make_room(&mut self) -> Result<()> {
        for _ in 0..self.log.geometry().segment_count() {
            if self.log.free_segments() >= FREE_SEGMENTS {
                return Ok(());
            }
            // The one that is appended to stays.
            if self.order.len() < 2 {
                break;
            }
            let Some(oldest) = self.order.pop_front() else { break };
            self.empty(oldest)?;
        }
        match self.log.free_segments() {
            0 => Err(Error::Full { bytes: self.live_bytes }),
            _ => Ok(()),
        }
    }

    fn empty(&mut self, segment: u32) -> Result<()> {
        let geometry = self.log.geometry();
        let here = self.hashes.range(geometry.range_of(segment)).map(|(_, hash)| *hash);
        let here: Vec<u64> = here.collect();
        let mut budget = geometry.segment_bytes() / 2;
        let mut gone = Vec::new();
        let mut bytes = Vec::new();
        for hash in here {
            let ItemPlace { at, was_read } = self.places[&hash];
            let is_kept = self.is_store || was_read && u64::from(at.bytes) <= budget;
            if !is_kept {
                gone.push(hash);
                continue;
            }
            budget = budget.saturating_sub(at.bytes.into());
            bytes.resize(at.bytes as usize, 0);
            self.log.read(at, &mut bytes);
            self.append(hash, &[&bytes], false)?;
            self.rewritten += 1;
        }
        self.log.free(segment)?;
        for hash in gone {
            self.forget_place(hash);
        }
        Ok(())
    }
}

/// What an item counts as.
fn charged(at: Location) -> u64 {
    u64::from(at.bytes) + BESIDE_BYTES
}

fn recover(places: &mut HashMap<u64, ItemPlace>, entry: LogEntry<'_>) {
    match entry.kind {
        ITEM => {
            if let Some(record) = record_in(entry.bytes) {
                places.insert(record.hash, ItemPlace { at: entry.at, was_read: false });
            }
        }
        GONE => {
            if let Ok(hash) = entry.bytes.try_into() {
                places.remove(&u64::from_le_bytes(hash));
            }
        }
        ALL_GONE => places.clear(),
        _ => {}
    }
}

fn head_of(record: &FlashRecord<'_>) -> [u8; ITEM_HEAD_BYTES] {
    let mut head = [0; ITEM_HEAD_BYTES];
    head[..8].copy_from_slice(&record.hash.to_le_bytes());
    head[8..16].copy_from_slice(&record.expires.to_le_bytes());
    head[16..24].copy_from_slice(&record.cas.to_le_bytes());
    head[24..28].copy_from_slice(&record.flags.to_le_bytes());
    head[28..30].copy_from_slice(&(record.key.len() as u16).to_le_bytes());
    head[30] = record.kind;
    head
}

/// An entry of an item, if it is one.
fn record_in(bytes: &[u8]) -> Option<FlashRecord<'_>> {
    let (head, rest) = bytes.split_first_chunk::<ITEM_HEAD_BYTES>()?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
    let flags = u32::from_le_bytes(std::array::from_fn(|index| head[24 + index]));
    let key_bytes = usize::from(u16::from_le_bytes([head[28], head[29]]));
    let (key, value) = rest.split_at_checked(key_bytes)?;
    let (hash, expires, cas, kind) = (word(0), word(8), word(16), head[30]);
    Some(FlashRecord { hash, key, value, flags, kind, expires, cas })
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Error {
        Error::Persistent(error)
    }
}
