//! Hashes in a partition (decision 0058):
//! what a typed value is, and the items that belong to a large hash, which lie in a space of their
//! own ([`PARTS`]). They are put where room was made before, so that nothing else moves or goes
//! meanwhile; and they go when their root does, some at a time.
//!
//! In: the hash of the root's key, its generation. Called by `hash/`, and where items go
//! (`partition.rs`, `log.rs`), are weighed (`evict/`) or tidied away (`sweep.rs`).

use super::{
    Fields, Found, Header, ItemDraft, Key, Memory, Millis, Partition, Pos, Slot, Stream,
    UNIT_BYTES, body_check, hash_of,
};
use crate::cache::error::{Error, Result};
use crate::cache::hash::StreamState;
use crate::cache::key::PARTS;
use crate::clock::Times;
use crate::hashes::{HashItem, HashItemKey, Packed, PartId, ROOT_BYTES, Root, Shape, Sweep, Text};
use crate::wall_of;
use rackpool_core::seam::Mem;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// First byte of a typed value: the fields of a small hash follow …
pub(crate) const PACKED: u8 = 1;
/// … or the words of a large one.
pub(crate) const ROOT: u8 = 2;
/// Parts that go at once where room is wanted and nothing may be evicted: rounds of making room are
/// counted, and parts of a whole partition are to go within them.
pub(super) const PARTS_FOR_ROOM: usize = 256;
/// Parts of a hash that stand for all when uses are compared.
const PARTS_WEIGHED: u64 = 8;
/// Room for a root where it has a segment of its own.
const ROOT_ROOM: u32 = UNIT_BYTES / 2 + 256;

/// A large hash without its root: its parts go.
#[derive(Debug)]
struct LeavingHash {
    owner: u64,
    generation: u32,
    shape: Shape,
    /// The first hash with a part that is still there.
    at: u64,
}

#[derive(Debug, Default)]
pub(crate) struct HashState {
    leaving: VecDeque<LeavingHash>,
    /// Hashes that have lost an item: their roots are to go.
    lost: Vec<(u64, u32)>,
    streams: Vec<Weak<StreamState>>,
    /// Large hashes by when the first of their fields expires, by the items' clock and the wall's.
    expiring: [BTreeSet<(Millis, u64, u32)>; 2],
    /// The hash from which expired fields are taken.
    sweep: Option<(HashId, Sweep)>,
    /// Whether some are lost, or some parts are to go.
    pub(super) has_work: bool,
}

impl HashState {
    /// All that there was is gone.
    pub(super) fn forget(&mut self) {
        self.leaving.clear();
        self.lost.clear();
        self.expiring.iter_mut().for_each(BTreeSet::clear);
        self.sweep = None;
        self.has_work = false;
    }

    /// The sweep of this hash, if one is under way; it is to be put back.
    pub fn take_sweep(&mut self, id: HashId) -> Option<Sweep> {
        self.sweep.take_if(|(of, _)| *of == id).map(|(_, sweep)| sweep)
    }

    pub fn put_sweep(&mut self, id: HashId, sweep: Option<Sweep>) {
        if let Some(sweep) = sweep {
            self.sweep = Some((id, sweep));
        }
    }

    fn expiries(id: HashId, root: &Root) -> [(Millis, u64, u32); 2] {
        let by_clock = |expires| (wall_of(expires).unwrap_or(expires), id.owner, id.generation);
        root.earliest.map(by_clock)
    }

    /// A root says when its fields expire.
    pub fn note_root(&mut self, id: HashId, root: &Root) {
        for (of, expiry) in self.expiring.iter_mut().zip(Self::expiries(id, root)) {
            if expiry.0 != 0 {
                of.insert(expiry);
            }
        }
    }

    /// A root that said so is gone.
    fn forget_root(&mut self, id: HashId, root: &Root) {
        for (of, expiry) in self.expiring.iter_mut().zip(Self::expiries(id, root)) {
            of.remove(&expiry);
        }
    }

    /// There is no such hash.
    pub fn forget_hash(&mut self, id: HashId) {
        self.take_sweep(id);
        let is_other = |(_, owner, generation): &(Millis, u64, u32)| {
            HashId { owner: *owner, generation: *generation } != id
        };
        self.expiring.iter_mut().for_each(|of| of.retain(is_other));
    }

    /// The hash from which expired fields are to be taken now, if there is one.
    pub fn due(&self, times: Times) -> Option<HashId> {
        if let Some((id, _)) = &self.sweep {
            return Some(*id);
        }
        let mut firsts = self.expiring.iter().map(BTreeSet::first).zip([times.now, times.wall]);
        let due = firsts.find_map(|(first, now)| first.filter(|(expires, ..)| *expires <= now));
        due.map(|&(_, owner, generation)| HashId { owner, generation })
    }

    /// The first hash that no stream wants the parts of.
    fn next_leaving(&self) -> Option<usize> {
        let is_wanted = |hash: &LeavingHash| {
            let is_its = |stream: Arc<StreamState>| stream.is_of(hash.owner, hash.generation);
            self.streams.iter().filter_map(Weak::upgrade).any(is_its)
        };
        self.leaving.iter().position(|hash| !is_wanted(hash))
    }

    fn note_work(&mut self) {
        // Also while a stream wants all that leaves: nothing says here when it ends.
        self.has_work = !self.lost.is_empty() || !self.leaving.is_empty();
    }
}

/// What belongs to a large hash, by the hash of its root's key and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashId {
    pub owner: u64,
    pub generation: u32,
}

impl HashId {
    fn key(self, item: HashItem) -> Vec<u8> {
        let mut key = Vec::with_capacity(18);
        HashItemKey { owner: self.owner, generation: self.generation, item }.append_to(&mut key);
        key
    }
}

impl Partition {
    /// Appends the value of an item in the log.
    pub fn append_value(&self, pos: Pos, out: &mut Vec<u8>) {
        self.pieces(pos).for_each(|piece| self.units.append_to(piece.at, piece.bytes, out));
    }

    /// The first byte of a value, which says what lies behind it, and that.
    pub fn typed_value(&self, pos: Pos, header: Header) -> (Option<u8>, Vec<u8>) {
        let (mut kind, mut value) = ([0], Vec::with_capacity(header.value_bytes() as usize));
        let mut pieces = self.pieces(pos).filter(|piece| piece.bytes > 0);
        let Some(first) = pieces.next() else { return (None, value) };
        self.units.copy_out(first.at, &mut kind);
        self.units.append_to(first.at + 1, first.bytes - 1, &mut value);
        pieces.for_each(|piece| self.units.append_to(piece.at, piece.bytes, &mut value));
        (Some(kind[0]), value)
    }

    /// The root that lies here, if one does.
    pub fn root_at(&self, pos: Pos, header: Header) -> Option<Root> {
        // So short a value is never in pieces.
        let is_root = header.has(Header::TYPED) && header.value_bytes() as usize == 1 + ROOT_BYTES;
        let mut kept = [0; 1 + ROOT_BYTES];
        if !is_root || header.has(Header::CHAINED) {
            return None;
        }
        self.units.copy_out(pos.byte() + u64::from(header.value_at()), &mut kept);
        let [ROOT, root @ ..] = &kept else { return None };
        Root::read(root).ok()
    }

    /// The entry of a large hash's root, and that.
    pub fn find_root(&self, id: HashId) -> Option<(Found, Root)> {
        let root_of = |slot: Slot| {
            let (pos, header) = (slot.pos(), self.header(slot.pos()));
            let root = self.root_at(pos, header)?;
            let mut key = Vec::new();
            let is_it =
                root.generation == id.generation && !self.segments.is_flushed(pos.unit()) && {
                    self.key_of(pos, header, &mut key);
                    Key::of_stored(&key, header).hash(self.seed) == id.owner
                };
            is_it.then_some(root)
        };
        let found = self.index.find(id.owner, |slot| root_of(slot).is_some())?;
        Some((found, root_of(found.1)?))
    }

    /// Which item of which hash lies here, if one does.
    fn hash_item_at(&self, pos: Pos, header: Header) -> Option<(HashId, HashItem)> {
        if !header.is_spaced() || self.space_at(pos, header) != PARTS {
            return None;
        }
        let mut key = Vec::new();
        self.key_of(pos, header, &mut key);
        let HashItemKey { owner, generation, item } =
            HashItemKey::read(&key[..key.len() - 1]).ok()?;
        Some((HashId { owner, generation }, item))
    }

    /// The entry of an item of a hash, and its hash.
    pub fn find_hash_item(&self, id: HashId, item: HashItem) -> Option<(u64, Found)> {
        let key = id.key(item);
        let hash = HashItemKey::index_hash(&key);
        let found = self.find(hash, Key { bytes: &key, space: PARTS })?;
        (!self.segments.is_flushed(found.1.pos().unit())).then_some((hash, found))
    }

    /// What a part keeps; it is used.
    pub fn read_part(&self, id: HashId, part: PartId, now: Millis) -> Result<Vec<u8>> {
        let (_, (at, slot)) =
            self.find_hash_item(id, HashItem::Part(part)).ok_or(Error::HashLost)?;
        self.mark_used(at, slot, now);
        let mut kept = Vec::new();
        self.append_value(slot.pos(), &mut kept);
        Ok(kept)
    }

    /// Bytes of a part; 0 if it is not there.
    pub fn part_bytes(&self, id: HashId, part: PartId) -> u64 {
        let found = self.find_hash_item(id, HashItem::Part(part));
        found.map_or(0, |(_, (_, slot))| self.value_bytes(slot.pos(), self.header(slot.pos())))
    }

    /// Puts an item of a hash in place of the one that there may be.
    pub fn put_hash_item(
        &mut self,
        id: HashId,
        item: HashItem,
        value: &[u8],
        now: Millis,
    ) -> Result<()> {
        let bytes = id.key(item);
        let (hash, key) = (HashItemKey::index_hash(&bytes), Key { bytes: &bytes, space: PARTS });
        let fields = self.fields_of(0, 0, 0, now);
        let draft = ItemDraft { key, hash, value_bytes: value.len() as u64, fields };
        let sets = self.stats.sets;
        let put = self.put_quietly(&draft, &[value], now);
        // It is no item of a client's.
        self.stats.sets = sets;
        put
    }

    /// Puts an item where [`Partition::make_hash_room`] has made room: neither expiry nor eviction
    /// comes in between, a lossy index apart.
    pub fn put_quietly(
        &mut self,
        draft: &ItemDraft<'_>,
        parts: &[&[u8]],
        now: Millis,
    ) -> Result<()> {
        let max_bytes = self.longest_value();
        if draft.value_bytes > max_bytes {
            return Err(Error::TooLarge { bytes: draft.value_bytes, max_bytes });
        }
        let found = self.find_fresh(draft.hash, draft.key, now);
        let stream = match self.memory_for(draft.value_bytes) {
            Memory::Near => Stream::New,
            Memory::Far => Stream::Far,
        };
        let class = self.segments.class_of(draft.fields.expires, now);
        let whole = draft.whole_bytes();
        if whole > u64::from(self.segments.room(stream, class))
            && self.segments.free_count(stream.memory()) < draft.units_needed()
        {
            return Err(self.out_of_memory(whole));
        }
        let room = self.entry_room(draft, found, now)?;
        let placed = self.place(draft, stream, class, now);
        let mut offset = 0;
        for part in parts {
            placed.write(&self.units, offset, part);
            offset += part.len() as u64;
        }
        let body = if self.is_checked { body_check(draft.hash, hash_of(parts)) } else { 0 };
        self.publish(&placed, body);
        if let Some((_, old)) = found {
            self.keep_for_streams(old.pos(), self.header(old.pos()));
        }
        self.enter(draft, room, found, placed.head);
        Ok(())
    }

    /// Writes part of a value over what lies there, and not anew with all the rest; `value` begins
    /// behind the first `skip` bytes of it. Whether it could: only readers under the lock may read
    /// such values, and nothing may say what the bytes are.
    pub fn rewrite(
        &mut self,
        hash: u64,
        (_, slot): Found,
        skip: u64,
        value: &[u8],
        part: Range<usize>,
    ) -> bool {
        let (pos, header) = (slot.pos(), self.header(slot.pos()));
        if self.is_checked || !header.has(Header::TYPED) || header.has(Header::CHAINED) {
            return false;
        }
        let at = pos.byte() + u64::from(header.value_at()) + skip + part.start as u64;
        self.units.copy_in(at, &value[part]);
        self.stats.sets += 1;
        if self.is_observed {
            self.note_store(hash, pos);
        }
        true
    }

    /// Makes room for a change of a large hash that puts items of so many bytes altogether, one of
    /// them a value of `long_bytes`. All that has to go for it goes now, the hash too if it comes
    /// to that.
    pub fn make_hash_room(
        &mut self,
        bytes: u64,
        long_bytes: u64,
        expires: Millis,
        now: Millis,
    ) -> Result<()> {
        self.collect(now);
        self.tend(bytes + long_bytes, now);
        self.make_places(bytes, long_bytes, expires, now)?;
        self.extend_index(now);
        // What is left of room may have been used for the index.
        self.make_places(bytes, long_bytes, expires, now)
    }

    fn make_places(
        &mut self,
        bytes: u64,
        long_bytes: u64,
        expires: Millis,
        now: Millis,
    ) -> Result<()> {
        // Tails of segments that an item does not fit in stay empty.
        let units = |bytes: u64| (bytes + bytes / 8).div_ceil((UNIT_BYTES - 16).into()) as usize;
        let memory = self.memory_for(long_bytes);
        let near_bytes = bytes + if memory == Memory::Near { long_bytes } else { 0 };
        let class = self.segments.class_of(expires, now);
        let has_room = near_bytes <= u64::from(self.segments.room(Stream::New, 0))
            && (class == 0 || self.segments.room(Stream::New, class) >= ROOT_ROOM);
        if !has_room {
            self.make_room(Memory::Near, units(near_bytes) + 2, near_bytes, now)?;
        }
        match memory {
            Memory::Near => Ok(()),
            Memory::Far => self.make_room(memory, units(long_bytes) + 1, long_bytes, now),
        }
    }

    /// A generation that no hash has had.
    pub fn new_generation(&mut self) -> u32 {
        (self.segments.unused_cas() >> 13) as u32
    }

    /// Takes an item of a hash out, if it is there: the hash does not name it any more.
    pub fn drop_hash_item(&mut self, id: HashId, item: HashItem) {
        let Some((hash, (at, slot))) = self.find_hash_item(id, item) else { return };
        let (pos, header) = (slot.pos(), self.header(slot.pos()));
        self.disturbances += 1;
        self.keep_for_streams(pos, header);
        self.index.remove(hash, at);
        self.space_lost(pos, header);
        self.kill(pos);
    }

    fn drop_part(&mut self, id: HashId, part: PartId) {
        let Some((_, (_, slot))) = self.find_hash_item(id, HashItem::Part(part)) else { return };
        for serial in self.long_values(slot.pos()) {
            self.drop_hash_item(id, HashItem::Long(serial));
        }
        self.drop_hash_item(id, HashItem::Part(part));
    }

    /// The values that are items of their own and are named by the part that lies here.
    fn long_values(&self, pos: Pos) -> Vec<u64> {
        let mut kept = Vec::new();
        self.append_value(pos, &mut kept);
        let Ok(packed) = Packed::new(&kept) else { return Vec::new() };
        let serial = |value| if let Text::Long(long) = value { Some(long.serial) } else { None };
        packed.fields().map_while(std::result::Result::ok).filter_map(|f| serial(f.value)).collect()
    }

    /// The parts of a hash without a root go.
    pub fn leave_hash(&mut self, id: HashId, shape: Shape) {
        let HashId { owner, generation } = id;
        self.hashes.leaving.push_back(LeavingHash { owner, generation, shape, at: 0 });
        self.hashes.note_work();
    }

    /// Whether the hash is to go, or its parts already do.
    pub fn is_losing(&self, id: HashId) -> bool {
        let HashId { owner, generation } = id;
        let is_it = |hash: &LeavingHash| (hash.owner, hash.generation) == (owner, generation);
        self.hashes.lost.contains(&(owner, generation)) || self.hashes.leaving.iter().any(is_it)
    }

    /// Notes that a root is killed, of a hash that goes with it unless another root names it.
    #[cold]
    pub fn note_gone_root(&mut self, pos: Pos, header: Header) {
        let Some(root) = self.root_at(pos, header).filter(|_| !self.is_recovering) else { return };
        let id = HashId { owner: self.hash_at(pos, header), generation: root.generation };
        self.hashes.forget_root(id, &root);
        if self.find_root(id).is_none() {
            self.hashes.take_sweep(id);
            self.leave_hash(id, root.shape);
        }
    }

    /// Notes that an item goes: if it belongs to a hash, that is to go, too.
    #[cold]
    pub fn note_lost_part(&mut self, pos: Pos, header: Header) {
        let is_live = !self.is_recovering;
        let Some((id, _)) = self.hash_item_at(pos, header).filter(|_| is_live) else { return };
        self.keep_for_streams(pos, header);
        let lost = (id.owner, id.generation);
        if self.hashes.lost.last() != Some(&lost) && self.find_root(id).is_some() {
            self.hashes.lost.push(lost);
            self.hashes.has_work = true;
        }
    }

    /// Takes out the roots of hashes that have lost an item; whether there were any.
    pub fn drop_lost_hashes(&mut self) -> bool {
        let lost = std::mem::take(&mut self.hashes.lost);
        for &(owner, generation) in &lost {
            if let Some((found, _)) = self.find_root(HashId { owner, generation }) {
                self.disturbances += 1;
                self.remove(owner, found);
            }
        }
        if !lost.is_empty() {
            self.hashes.note_work();
        }
        !lost.is_empty()
    }

    /// Drops up to so many parts of hashes that are gone; whether there were any.
    pub fn drop_parts(&mut self, count: usize) -> bool {
        self.hashes.streams.retain(|stream| stream.strong_count() > 0);
        let mut has_dropped = false;
        for _ in 0..count {
            let Some(index) = self.hashes.next_leaving() else { break };
            let hash = &mut self.hashes.leaving[index];
            let id = HashId { owner: hash.owner, generation: hash.generation };
            let part = hash.shape.part_of(hash.at);
            match part.next_hash() {
                Some(next) => hash.at = next,
                None => drop(self.hashes.leaving.remove(index)),
            }
            self.drop_part(id, part);
            has_dropped = true;
        }
        if has_dropped {
            self.hashes.note_work();
        }
        has_dropped
    }

    /// Whether the small hash that lies here has no field that has not expired.
    #[cold]
    pub fn is_hash_over(&self, pos: Pos, header: Header, now: Millis) -> bool {
        // Type, count, and the first mark: in most the first field never expires.
        let mut head = [0; 4];
        if header.has(Header::CHAINED) || header.value_bytes() < 4 {
            return false;
        }
        self.units.copy_out(pos.byte() + u64::from(header.value_at()), &mut head);
        if head[0] != PACKED || head[3] & Packed::HAS_EXPIRY == 0 {
            return false;
        }
        let mut value = Vec::new();
        self.append_value(pos, &mut value);
        let Ok(packed) = Packed::new(&value[1..]) else { return false };
        let times = Times { now, wall: self.wall.at(now) };
        packed.count() == packed.count_with_expiry() && packed.live_count(times) == Ok(0)
    }

    /// Of an item of a large hash, or its root, what each of the hash's parts is used, about, and
    /// their bytes; `None` of all others.
    pub fn hash_weight(&self, pos: Pos, header: Header) -> Option<(u8, u64)> {
        let (id, root) = match self.root_at(pos, header) {
            Some(root) => {
                let mut key = Vec::new();
                self.key_of(pos, header, &mut key);
                let owner = Key::of_stored(&key, header).hash(self.seed);
                (HashId { owner, generation: root.generation }, root)
            }
            None => {
                let (id, _) = self.hash_item_at(pos, header)?;
                // What is left of one that is gone is worth nothing.
                let Some((_, root)) = self.find_root(id) else { return Some((0, u64::MAX >> 1)) };
                (id, root)
            }
        };
        let uses = (0..PARTS_WEIGHED).map(|nth| {
            let part = root.shape.part_of(nth * (u64::MAX / PARTS_WEIGHED));
            let hash = HashItemKey::index_hash(&id.key(HashItem::Part(part)));
            u64::from(self.policy_state.sketch.estimate(hash))
        });
        let mean = uses.sum::<u64>().div_ceil(PARTS_WEIGHED) as u8;
        Some((mean, (root.bytes + root.long_bytes) / u64::from(root.shape.parts())))
    }

    /// The slot of an item as a policy is to see it: an item of a large hash is used as its root
    /// is.
    pub fn judged_slot(&self, pos: Pos, header: Header, slot: Slot) -> Slot {
        let Some((id, _)) = self.hash_item_at(pos, header) else { return slot };
        let freq = self.find_root(id).map_or(0, |((_, root), _)| root.freq());
        slot.with_freq(freq)
    }

    /// Has a stream told of what goes from now on.
    pub fn add_stream(&mut self, stream: &Arc<StreamState>) {
        self.hashes.streams.retain(|stream| stream.strong_count() > 0);
        self.hashes.streams.push(Arc::downgrade(stream));
    }

    /// The streams that there are.
    pub fn streams(&self) -> Vec<Arc<StreamState>> {
        self.hashes.streams.iter().filter_map(Weak::upgrade).collect()
    }

    /// The shape of a hash that is there, or of which parts still are.
    pub fn shape_of(&self, id: HashId) -> Option<Shape> {
        if let Some((_, root)) = self.find_root(id) {
            return Some(root.shape);
        }
        let is_it =
            |hash: &&LeavingHash| (hash.owner, hash.generation) == (id.owner, id.generation);
        // The later one is as the parts are.
        self.hashes.leaving.iter().rev().find(is_it).map(|hash| hash.shape)
    }

    /// An item is to go: pins it for the streams that want it.
    fn keep_for_streams(&self, pos: Pos, header: Header) {
        if self.hashes.streams.is_empty() {
            return;
        }
        let Some((id, item)) = self.hash_item_at(pos, header) else { return };
        for stream in self.streams() {
            if stream.is_of(id.owner, id.generation) {
                stream.keep(self, id, item, pos);
            }
        }
    }

    /// As [`Partition::long_values`], each with the item that it is, if that is there.
    pub fn long_items(&self, id: HashId, pos: Pos) -> impl Iterator<Item = (u64, Pos)> {
        self.long_values(pos).into_iter().filter_map(move |serial| {
            let (_, (_, slot)) = self.find_hash_item(id, HashItem::Long(serial))?;
            Some((serial, slot.pos()))
        })
    }

    /// Fields of a root's item, or a small hash's.
    pub fn typed_fields(&self, flags: u32, expires: Millis, now: Millis) -> Fields {
        Fields { kind: Header::TYPED, ..self.fields_of(flags, expires, 0, now) }
    }
}
