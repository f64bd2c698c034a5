//! A partition: one index and one log over its units, under one lock. It finds, puts, removes and
//! expires items; makes room before it writes anything; and keeps the counters.
//!
//! In: keys with their hashes and the time. Out: slots and positions for `item.rs`, errors before
//! anything has changed. Called by `mod.rs` and `entry.rs`, which hold the lock.

mod far;
mod gauges;
mod holds;
mod limit;
mod parts;
mod spaces;
mod sweep;
mod switch;

use parts::PARTS_FOR_ROOM;
pub(crate) use parts::{HashId, HashState, PACKED, ROOT};
pub(crate) use spaces::{SpaceCounts, SpaceSet};
pub(crate) use sweep::Abandoned;

use super::backing::OpenBacking;
use super::draft::{ItemDraft, PlacedItem, body_check, hash_of};
use super::error::{Error, Result};
use super::evict::evicted::EvictedItems;
use super::evict::ranks::Round;
use super::evict::reads::ReadSamples;
use super::evict::sift::Sift;
use super::index::{IndexShape, ItemIndex, Room, next_of, probe};
use super::key::Key;
use super::layout::{
    Fields, Header, Pos, Slot, UNIT_BYTES, UNIT_SHIFT, expiry_in, tag_in_slot, tag_of,
};
use super::policy::{Policy, PolicyState};
use super::populate::Populator;
use super::reuse::ReuseSampler;
use super::segments::{Memory, Segment, SegmentState, Segments, Stream, TABLE_ENTRY_BYTES};
use super::stats::Stats;
use super::tier::{FarValue, REFERENCE_BYTES, TierSlab};
use super::timeline::Wall;
use super::{EXPIRES_MAX, Millis, Mode, Options, WALL_TIME};
use holds::{Holds, WatchedHashes};
use rackpool_core::seam::Mem;
use rackpool_mem::emulation::FarEmulation;
use rackpool_mem::window::{Bare, Wide, Window};
use std::sync::Arc;

pub(crate) const UNITS_MIN: u64 = 8;
/// Fewest near units that the index leaves to the log, or a quarter, with far memory: the reserve,
/// what a change needs, and segments that are written to.
const LOG_UNITS_MIN: u64 = 6;

/// An index entry and where it lies.
pub(crate) type Found = (u64, Slot);

#[derive(Debug)]
pub(crate) struct Partition {
    pub units: Window,
    pub index: ItemIndex,
    pub segments: Segments,
    pub policy: Policy,
    pub freq_max: u64,
    /// Free units that are kept for moving items, by memory.
    pub reserve_units: [usize; 2],
    /// Free units below which a round of eviction begins ahead, by memory.
    pub ahead_units: [usize; 2],
    pub round: Round,
    pub policy_state: PolicyState,
    /// The last rank that stayed near, and the last that stayed at all, of the last rounds.
    pub last_ranks: [u16; 2],
    pub sift: Sift,
    /// By which traffic is split, where the bandwidths of both memories are known.
    pub reads: Option<Box<ReadSamples>>,
    /// Whether it is just now; else what is hot belongs near.
    pub is_split: bool,
    /// Where hits by capacity are wanted.
    pub reuse: Option<Arc<ReuseSampler>>,
    pub watched: WatchedHashes,
    /// Whether stores are looked at, for one of both.
    pub is_observed: bool,
    pub backing: Option<Arc<OpenBacking>>,
    /// Reads since the last sample, and with how many the next one is due.
    pub unsampled: u32,
    pub sampled_reads: u32,
    pub mode: Mode,
    pub stats: Stats,
    pub evicted: EvictedItems,
    pub seed: u64,
    pub keeps_access: bool,
    pub abandoned: Arc<Abandoned>,
    pub key_buffer: Vec<u8>,
    pub move_buffer: Vec<u8>,
    /// Whether items carry a check: only memory that outlives the process needs it.
    pub is_checked: bool,
    pub wall: Arc<Wall>,
    /// Changes whenever entries may have moved without the caller's doing.
    pub disturbances: u64,
    max_value: u64,
    /// Bytes that a unit costs beside its memory.
    unit_extra: u64,
    /// What expires until here, by its clock (the wall's is the second), has expired, also for a
    /// caller with a clock that is behind: of an item in pieces some may be gone already.
    expired_until: [Millis; 2],
    /// Whether items of an earlier process are still to be found: nothing may move or go.
    pub is_recovering: bool,
    pub tier_slab: Option<TierSlab>,
    pub spaces: SpaceCounts,
    pub hashes: HashState,
    /// Of a part of the units, for measurements.
    pub emulation: Option<Box<FarEmulation>>,
    pub holds: Holds,
    /// Whether far memory is emulated or sections hold keys: one look for both.
    pub is_unusual: bool,
}

impl Partition {
    /// Bytes of a partition of so many units, in its window and beside.
    pub fn unit_cost(options: &Options) -> u64 {
        u64::from(UNIT_BYTES)
            + TABLE_ENTRY_BYTES
            + Segments::PRIVATE_BYTES
            + IndexShape::UNIT_BYTES
            + PolicyState::unit_bytes(options.policy)
    }

    /// Bytes of a window for so many units: the table, padded to whole units, and the units.
    pub fn window_bytes(units: u64) -> u64 {
        (units << UNIT_SHIFT) + (units * TABLE_ENTRY_BYTES).next_multiple_of(u64::from(UNIT_BYTES))
    }

    /// An empty partition on a window of [`Partition::window_bytes`].
    pub fn new(
        window: &Window,
        units: u64,
        options: &Options,
        is_checked: bool,
        populator: Option<Arc<Populator>>,
    ) -> Partition {
        let (table, units_window) = Partition::parts(window, units);
        table.zero(0, table.bytes());
        let mut segments = Segments::new(table, options.far_units() as u32, populator);
        if options.far_waits {
            segments.hold_far_back(true);
        }
        Partition::with(segments, units_window, options, is_checked)
    }

    /// The table and the units of a partition's window.
    pub fn parts(window: &Window, units: u64) -> (Window, Window) {
        let unit_bytes = units << UNIT_SHIFT;
        let table = window.slice(0, units * TABLE_ENTRY_BYTES);
        (table, window.slice(window.bytes() - unit_bytes, unit_bytes))
    }

    /// A partition on segments with items that are not in its index yet.
    pub fn with(
        mut segments: Segments,
        units_window: Window,
        options: &Options,
        is_checked: bool,
    ) -> Partition {
        let far_units = u64::from(segments.far_units());
        let units = segments.count() as u64 - far_units;
        let wanted = options.index_units(units).min(segments.free_count(Memory::Near) as u64);
        let first: Vec<u32> = (0..wanted)
            .map(|_| {
                let unit = segments.take_for_index().expect("so many are free");
                units_window.zero(u64::from(unit) << UNIT_SHIFT, u64::from(UNIT_BYTES));
                unit
            })
            .collect();
        assert_eq!(first[0], 0, "no item lies in unit 0");
        let reserve_units =
            [units, far_units].map(|units| options.policy.reserve_units(options.mode, units));
        let ahead = |units, reserve| Partition::units_ahead(options, units, reserve);
        Partition {
            ahead_units: [ahead(units, reserve_units[0]), ahead(far_units, reserve_units[1])],
            last_ranks: [0; 2],
            sift: Sift::default(),
            reads: None,
            is_split: false,
            reuse: None,
            watched: WatchedHashes::default(),
            is_observed: false,
            backing: None,
            unsampled: 0,
            sampled_reads: u32::MAX,
            round: Round::default(),
            index: ItemIndex::new(units_window.clone(), first, !options.is_lossy),
            units: units_window,
            segments,
            policy: options.policy,
            freq_max: options.policy.freq_max(),
            reserve_units,
            policy_state: PolicyState::new(options.policy, units + far_units),
            mode: options.mode,
            stats: Stats::default(),
            evicted: EvictedItems::default(),
            seed: options.seed,
            keeps_access: options.keeps_access,
            abandoned: Arc::default(),
            key_buffer: Vec::new(),
            move_buffer: Vec::new(),
            is_checked,
            disturbances: 0,
            max_value: options.max_value,
            unit_extra: Partition::unit_cost(options) - u64::from(UNIT_BYTES),
            expired_until: [0; 2],
            wall: Arc::default(),
            is_recovering: false,
            tier_slab: None,
            spaces: SpaceCounts::default(),
            hashes: HashState::default(),
            emulation: None,
            holds: Holds::default(),
            is_unusual: false,
        }
    }

    /// What a new item holds beside key and value.
    pub fn fields_of(&self, flags: u32, expires: Millis, cas: u64, now: Millis) -> Fields {
        let access_s = self.keeps_access.then_some((now / 1000) as u32);
        let expires = (expires & !WALL_TIME).min(EXPIRES_MAX) | (expires & WALL_TIME);
        Fields { flags, expires, cas, access_s, kind: 0, has_binary_key: false }
    }

    /// Finds the entry of a key, expired or not.
    #[inline]
    pub fn find(&self, hash: u64, key: Key<'_>) -> Option<Found> {
        self.find_in(self.units.bare(), hash, key).map(|(found, _)| found)
    }

    /// As [`Partition::find`] in these units, which are its own, with the item's header.
    #[inline(always)]
    pub(super) fn find_in(
        &self,
        units: Bare<'_>,
        hash: u64,
        key: Key<'_>,
    ) -> Option<(Found, Header)> {
        let (wide, tag) = (Wide::of_this_processor(), tag_in_slot(hash));
        let mut bucket_at = self.index.bucket_at(hash);
        loop {
            let probe = probe(units, wide, bucket_at, &tag);
            if probe.is_entry {
                let at = probe.word.pos().byte();
                // The line behind, where small items end, comes together with the first.
                units.prefetch(at + 63);
                let header = Header(units.load(at));
                let key_at = at + u64::from(header.key_at());
                if header.key_word() == key.word()
                    && units.equals(key_at, key.bytes)
                    && key.has_space_at(key_at, |at| units.load(at))
                {
                    return Some(((probe.at, probe.word), header));
                }
                return self.find_behind(hash, key);
            }
            bucket_at = next_of(probe.word);
            if bucket_at == 0 {
                return None;
            }
        }
    }

    /// Finds the entry of a key behind that of another one with its tag.
    #[cold]
    fn find_behind(&self, hash: u64, key: Key<'_>) -> Option<(Found, Header)> {
        let found = self.index.find(hash, |slot| self.is_key(slot.pos(), key))?;
        Some((found, self.header(found.1.pos())))
    }

    #[inline]
    pub fn is_key(&self, pos: Pos, key: Key<'_>) -> bool {
        let header = self.header(pos);
        let at = pos.byte() + u64::from(header.key_at());
        header.key_word() == key.word()
            && self.units.equals(at, key.bytes)
            && key.has_space_at(at, |at| self.units.load(at))
    }

    /// Whether the item has expired, or is flushed.
    #[inline]
    pub fn is_expired(&self, pos: Pos, now: Millis) -> bool {
        self.has_expired(pos, self.header(pos), now)
    }

    #[inline(always)]
    fn has_expired(&self, pos: Pos, header: Header, now: Millis) -> bool {
        if self.index.is_sweeping() && self.segments.is_flushed(pos.unit()) {
            return true;
        }
        if !header.has(Header::META | Header::TYPED) {
            return false;
        }
        if header.has(Header::TYPED) && self.is_hash_over(pos, header, now) {
            return true;
        }
        if !header.has(Header::META) {
            return false;
        }
        let expires = expiry_in(self.units.load(pos.byte() + header.word_at(Header::META)));
        let [until, wall_until] = self.expired_until;
        expires != 0
            && match expires & WALL_TIME {
                0 => expires <= now.max(until),
                _ => expires & !WALL_TIME <= self.wall.at(now).max(wall_until),
            }
    }

    /// Finds the entry of a key; takes it out if it has expired.
    #[inline]
    pub fn find_fresh(&mut self, hash: u64, key: Key<'_>, now: Millis) -> Option<Found> {
        let (found, header) = self.find_in(self.units.bare(), hash, key)?;
        self.keep_fresh(hash, found, header, now).then_some(found)
    }

    /// Takes the entry out if its item has expired; whether it has not.
    #[inline(always)]
    pub(super) fn keep_fresh(
        &mut self,
        hash: u64,
        found: Found,
        header: Header,
        now: Millis,
    ) -> bool {
        let has_expired = self.has_expired(found.1.pos(), header, now);
        if has_expired {
            self.expire_found(hash, found);
        }
        !has_expired
    }

    #[cold]
    fn expire_found(&mut self, hash: u64, found: Found) {
        if !self.segments.is_flushed(found.1.pos().unit()) {
            self.stats.expired += 1;
            // A clock that is set back must not bring it back.
            self.forget_behind(hash);
        }
        self.remove(hash, found);
    }

    /// Looks a key up for a reader: counts, and marks the item as used.
    #[inline]
    pub fn look_up(&mut self, hash: u64, key: Key<'_>, now: Millis) -> Option<Found> {
        let found = self.find_fresh(hash, key, now);
        self.count_use(hash, found, now)
    }

    /// Counts a look-up that found this.
    #[inline]
    pub fn count_use(&mut self, hash: u64, found: Option<Found>, now: Millis) -> Option<Found> {
        match found {
            Some((at, slot)) => self.count_hit(at, slot, now),
            None => {
                self.stats.misses += 1;
                self.policy_state.sketch.missed(hash);
            }
        }
        found
    }

    /// Looks at a read that found this, if its key is sampled for hits by capacity.
    #[inline]
    pub fn note_read(&self, hash: u64, found: Option<Found>) {
        if let Some(reuse) = self.reuse.as_ref().filter(|reuse| reuse.wants(hash)) {
            let bytes = |(_, slot): Found| self.bytes_of(slot.pos(), self.header(slot.pos()));
            reuse.read(hash, found.map(bytes));
        }
    }

    /// As [`Partition::note_read`] of a store, which is a change for watches of the key.
    fn note_store(&mut self, hash: u64, pos: Pos) {
        if let Some(reuse) = self.reuse.as_ref().filter(|reuse| reuse.wants(hash)) {
            reuse.stored(hash, self.bytes_of(pos, self.header(pos)));
        }
        self.note_change(hash);
    }

    /// Counts a hit and marks the item as used.
    #[inline(always)]
    pub fn count_hit(&mut self, at: u64, slot: Slot, now: Millis) {
        self.stats.hits += 1;
        self.count_reads(1);
        self.mark_used(at, slot, now);
    }

    #[inline(always)]
    pub fn mark_used(&self, at: u64, slot: Slot, now: Millis) {
        let used = slot.used(self.freq_max);
        if used != slot {
            self.index.mark(at, used);
        }
        self.touch_access(slot.pos(), now);
    }

    /// Notes the time of an access, if the cache keeps it.
    #[inline(always)]
    pub fn touch_access(&self, pos: Pos, now: Millis) {
        if self.keeps_access {
            self.set_access(pos, now);
        }
    }

    fn set_access(&self, pos: Pos, now: Millis) {
        let header = self.header(pos);
        if header.has(Header::EXTRA) {
            let at = pos.byte() + header.word_at(Header::EXTRA);
            let flags = self.units.load(at) & u64::from(u32::MAX);
            self.units.store(at, ((now / 1000) << 32) | flags);
        }
    }

    pub fn remove(&mut self, hash: u64, (at, slot): Found) {
        self.index.remove(hash, at);
        self.kill_entry(slot);
    }

    /// Kills the item of an entry that was taken out. The value that a flushed one had in the tier
    /// is in no slab any more.
    pub(super) fn kill_entry(&mut self, slot: Slot) {
        if self.segments.is_flushed(slot.pos().unit()) {
            self.index.forget_stale();
            self.kill_here(slot.pos());
        } else {
            let (pos, header) = (slot.pos(), self.header(slot.pos()));
            if header.is_spaced() {
                self.space_lost(pos, header);
                self.note_lost_part(pos, header);
            }
            self.kill(pos);
        }
    }

    /// Puts an item in place of the one that was found, or as a new one; its entry is found then.
    /// (As a result of two words it would be read as one of sixteen bytes, and wait until the
    /// stores of the item before it have reached memory: 24 of a change's 300 ns.)
    pub fn put(
        &mut self,
        draft: &ItemDraft<'_>,
        parts: &[&[u8]],
        found: &mut Option<Found>,
        now: Millis,
    ) -> Result<()> {
        let (stream, class, before) = self.prepare(draft, *found, now)?;
        let room = self.entry_room(draft, before, now)?;
        let placed = self.place(draft, stream, class, now);
        let mut offset = 0;
        for part in parts {
            placed.write(&self.units, offset, part);
            offset += part.len() as u64;
        }
        let body = if self.is_checked { body_check(draft.hash, hash_of(parts)) } else { 0 };
        self.publish(&placed, body);
        if let Err(error) = self.store_behind(draft, placed.head, now) {
            self.kill(placed.head);
            return Err(error);
        }
        *found = Some(self.enter(draft, room, before, placed.head));
        Ok(())
    }

    /// As [`Partition::put`] with a value that was written to the tier.
    pub fn put_far(
        &mut self,
        draft: &ItemDraft<'_>,
        value: FarValue,
        found: &mut Option<Found>,
        now: Millis,
    ) -> Result<()> {
        let fields = Fields { kind: Header::FAR, ..draft.fields };
        let draft = ItemDraft { value_bytes: REFERENCE_BYTES, fields, ..*draft };
        self.put(&draft, &[&value.reference()], found, now)?;
        self.shelve(draft.hash, Arc::new(value));
        Ok(())
    }

    /// Places an item; its value comes later.
    pub fn reserve(&mut self, draft: &ItemDraft<'_>, now: Millis) -> Result<PlacedItem> {
        let (stream, class, _) = self.prepare(draft, None, now)?;
        let placed = self.place(draft, stream, class, now);
        for piece in placed.pieces() {
            self.segments.pins.pin(piece.unit);
        }
        // The header says how long it is, for a walk over the segment.
        self.units.store(placed.head.byte(), self.sealed(placed.head, placed.header).0);
        self.segments.publish(placed.head.unit());
        Ok(placed)
    }

    /// Enters an item after its value has come.
    pub fn commit(
        &mut self,
        draft: &ItemDraft<'_>,
        placed: &PlacedItem,
        value_hash: u64,
        found: Option<Found>,
        now: Millis,
    ) -> Result<Found> {
        let found = self.prepare_entry(draft, found, now);
        // What was written into a segment that leaves is killed or will be.
        let is_gone =
            |segment: &Segment, seq| segment.seq != seq || segment.kind == SegmentState::Leaving;
        let is_gone =
            |unit, seq| is_gone(self.segments.get(unit), seq) || self.segments.is_flushed(unit);
        if placed.pieces().any(|piece| is_gone(piece.unit, piece.seq)) {
            return Err(Error::Evicted { bytes: draft.value_bytes });
        }
        let room = self.entry_room(draft, found, now)?;
        let body = if self.is_checked { body_check(draft.hash, value_hash) } else { 0 };
        // While it is none to a walk over its segment.
        self.store_behind(draft, placed.head, now)?;
        self.publish(placed, body);
        Ok(self.enter(draft, room, found, placed.head))
    }

    fn abandon(&mut self, head: Pos, seq: u64) {
        let is_here = self.segments.get(head.unit()).seq == seq;
        if is_here && !self.header(head).has(Header::DEAD) {
            self.kill(head);
        }
    }

    /// Room in the index for an item that has its place; the entry that was found, where it lies
    /// now.
    fn prepare_entry(
        &mut self,
        draft: &ItemDraft<'_>,
        found: Option<Found>,
        now: Millis,
    ) -> Option<Found> {
        let before = self.disturbances;
        self.collect(now);
        self.extend_index(now);
        if before == self.disturbances { found } else { self.find(draft.hash, draft.key) }
    }

    fn extend_index(&mut self, now: Millis) {
        while self.index.wants_growth() && self.grow_index(now) {}
        if !self.index.has_overflow() && self.index.is_lossless() {
            self.add_overflow(now);
        }
    }

    /// Everything that may fail or disturb: expiry, room in log and index. The stream for the item,
    /// and the entry that was found, where it lies now.
    fn prepare(
        &mut self,
        draft: &ItemDraft<'_>,
        found: Option<Found>,
        now: Millis,
    ) -> Result<(Stream, u8, Option<Found>)> {
        if draft.value_bytes > self.longest_value() {
            let max_bytes = self.longest_value();
            return Err(Error::TooLarge { bytes: draft.value_bytes, max_bytes });
        }
        let before = self.disturbances;
        self.collect(now);
        self.tend(draft.whole_bytes(), now);
        let stream = self.stream_for(draft);
        let class = self.segments.class_of(draft.fields.expires, now);
        self.make_place(draft, stream, class, now)?;
        self.extend_index(now);
        if before == self.disturbances {
            return Ok((stream, class, found));
        }
        // What is left of room may have been used for the index.
        self.make_place(draft, stream, class, now)?;
        Ok((stream, class, self.find(draft.hash, draft.key)))
    }

    /// Room in the log for an item: in the active segment, or in units.
    fn make_place(
        &mut self,
        draft: &ItemDraft<'_>,
        stream: Stream,
        class: u8,
        now: Millis,
    ) -> Result<()> {
        let whole = draft.whole_bytes();
        if whole <= u64::from(self.segments.room(stream, class)) {
            return Ok(());
        }
        self.make_room(stream.memory(), draft.units_needed(), whole, now).or_else(|error| {
            // What was compacted may have left room where it went.
            let room = u64::from(self.segments.room(stream, class));
            if whole <= room { Ok(()) } else { Err(error) }
        })
    }

    /// Where a new entry goes; nothing if an entry is replaced.
    fn entry_room(
        &mut self,
        draft: &ItemDraft<'_>,
        found: Option<Found>,
        now: Millis,
    ) -> Result<Option<u64>> {
        if found.is_some() {
            return Ok(None);
        }
        match self.index.room(draft.hash) {
            Room::At(at) => Ok(Some(at)),
            Room::Full(bucket) => match self.index.lengthen(bucket) {
                Some(at) => Ok(Some(at)),
                None if self.mode == Mode::Cache => Ok(Some(self.evict_entry(draft.hash, now))),
                None => Err(self.out_of_memory(draft.whole_bytes())),
            },
        }
    }

    fn enter(
        &mut self,
        draft: &ItemDraft<'_>,
        room: Option<u64>,
        found: Option<Found>,
        pos: Pos,
    ) -> Found {
        let hash = draft.hash;
        self.stats.sets += 1;
        if draft.key.space != 0 && found.is_none() {
            self.space_gained(draft.key.space);
        }
        if self.is_observed {
            self.note_store(hash, pos);
        }
        let slot = Slot::new(hash, pos);
        match (room, found) {
            (Some(at), None) => {
                self.index.insert_at(hash, at, slot);
                (at, slot)
            }
            (_, Some((at, old))) => {
                // An update is a use, too.
                let slot = slot.with_freq(old.used(self.freq_max).freq());
                self.index.repoint(hash, at, slot);
                self.kill(old.pos());
                (at, slot)
            }
            (None, None) => unreachable!("room is made for every new entry"),
        }
    }

    fn add_overflow(&mut self, now: Millis) {
        if self.take_index_unit(now, |index, unit| index.add_overflow(unit)) {
            self.disturbances += 1;
        }
    }

    fn grow_index(&mut self, now: Millis) -> bool {
        if self.index.needs_unit() && !self.take_index_unit(now, |index, unit| index.add_unit(unit))
        {
            return false;
        }
        self.index.grow();
        self.disturbances += 1;
        true
    }

    /// Takes a unit for the index, if one is to be had beside the reserve.
    fn take_index_unit(&mut self, now: Millis, use_it: impl Fn(&mut ItemIndex, u32)) -> bool {
        let near_units = u64::from(self.segments.near_units());
        let of_log = near_units - self.index.unit_count();
        if self.segments.far_units() > 0 && of_log <= (near_units / 4).max(LOG_UNITS_MIN) {
            // The items of a large far memory would fill the near one with their entries.
            return false;
        }
        if self.make_room(Memory::Near, 1, 0, now).is_err() {
            return false;
        }
        let Some(unit) = self.segments.take_for_index() else { return false };
        self.units.zero(u64::from(unit) << UNIT_SHIFT, u64::from(UNIT_BYTES));
        use_it(&mut self.index, unit);
        true
    }

    /// Makes so many units of a memory free, beside the reserve.
    fn make_room(&mut self, memory: Memory, units: usize, bytes: u64, now: Millis) -> Result<()> {
        let reserve = self.reserve_units[memory as usize];
        let needed = if self.is_recovering { units } else { units + reserve };
        // Every round frees a unit or moves what may stay; twice around is enough for any policy.
        let rounds_max = 4 * self.segments.count() + 64;
        for _ in 0..rounds_max {
            if self.has_free(memory, needed) {
                return Ok(());
            }
            if !self.free_some(memory, now) {
                break;
            }
        }
        if self.has_free(memory, needed) { Ok(()) } else { Err(self.out_of_memory(bytes)) }
    }

    fn has_free(&mut self, memory: Memory, units: usize) -> bool {
        self.segments.free_count(memory) >= units || self.segments.reclaim(memory) >= units
    }

    /// Frees a unit of a memory or more, or comes nearer to it. `false` if nothing can be done.
    fn free_some(&mut self, memory: Memory, now: Millis) -> bool {
        self.segments.take_more(memory)
            || self.drop_flushed()
            || self.expire_one(now)
            || (self.mode == Mode::Store && self.drop_parts(PARTS_FOR_ROOM))
            || (!self.is_recovering && self.evict(memory, now))
    }

    /// Makes a step towards room for a value of so many bytes; whether there is room now, or none
    /// can be made.
    pub fn approach_room(&mut self, bytes: u64, now: Millis) -> bool {
        if bytes > self.longest_value() || self.is_for_tier(bytes) {
            return true;
        }
        // That of its key and of its ends, too.
        let units = bytes.div_ceil(UNIT_BYTES.into()) as usize + 2;
        let memory = self.memory_for(bytes);
        self.has_free(memory, units + self.reserve_units[memory as usize])
            || !self.free_some(memory, now)
    }

    fn out_of_memory(&self, bytes: u64) -> Error {
        Error::OutOfMemory { bytes, units: self.segments.count() as u64 }
    }

    /// Rewrites an item with another expiry and the same cas; its entry now.
    pub fn set_expiry(
        &mut self,
        hash: u64,
        key: Key<'_>,
        found: Found,
        expires: Millis,
        now: Millis,
    ) -> Result<Found> {
        let (pos, header) = (found.1.pos(), self.header(found.1.pos()));
        let old = self.fields(pos, header);
        if old.expires != 0 || expires != 0 {
            self.note_change(hash);
        }
        if old.expires == expires {
            return Ok(found);
        }
        let cas = self.cas_of(pos, header);
        let fields = Fields { expires, cas, ..old };
        let value_bytes = self.value_bytes(pos, header);
        let draft = ItemDraft { key, hash, value_bytes, fields };
        let (stream, class, found) = self.prepare(&draft, Some(found), now)?;
        let Some((at, slot)) = found else {
            // Room for its copy was made of itself: as a cache may, it has lost it.
            return Err(self.out_of_memory(draft.whole_bytes()));
        };
        self.store_behind(&draft, slot.pos(), now)?;
        let moved = self.copy_item((at, slot), &draft, stream, class, now);
        debug_assert_eq!(slot.tag(), tag_of(hash));
        Ok((at, slot.with_pos(moved)))
    }

    /// Enters an item that was found in the log of an earlier process; one of the same key is
    /// older. `false` if the index has no room.
    pub fn enter_recovered(&mut self, hash: u64, key: Key<'_>, pos: Pos, now: Millis) -> bool {
        self.extend_index(now);
        // A client may have been told the cas.
        let slot = Slot::new(hash, pos).set(Slot::SEEN, true);
        if let Some((at, old)) = self.find(hash, key) {
            self.index.repoint(hash, at, slot);
            self.kill(old.pos());
            return true;
        }
        let at = match self.index.room(hash) {
            Room::At(at) => Some(at),
            Room::Full(bucket) => self.index.lengthen(bucket),
        };
        if at.is_some() && key.space != 0 {
            self.space_gained(key.space);
        }
        at.map(|at| self.index.insert_at(hash, at, slot)).is_some()
    }
}
