//! Slab pages: which have room, which are empty, and the bitmaps that say which objects live.
//!
//! In: bitmaps at attach, objects taken and given back. Out: the bitmap word that a redo record
//! is to store; the index follows after that record; objects that live since a watch began. Called
//! by `alloc.rs`, `free.rs`, `attach.rs`, `audit.rs`. A bitmap means something only while its frame
//! is home of a slab page; it is zeroed before that. Objects are taken from the lowest page and the
//! lowest bit, so that pages further up run empty. Source: Rcmp §4.1, §5.1 (slabs of powers of
//! two).

use crate::constants::{AUDIT_WATCHES_MAX, SLAB_SHIFT_MIN};
use crate::copies;
use crate::error::{Error, Result};
use crate::layout::{AllocationKind, RegionLayout};
use crate::seam::{Mem, Mutation, Probe};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// log2 of the object size for `bytes`; `None` if whole pages are to be used.
pub(super) fn class_shift(layout: &RegionLayout, bytes: u64) -> Option<u8> {
    if bytes > layout.pages.page_bytes() / 2 {
        return None;
    }
    let shift = bytes.next_power_of_two().trailing_zeros() as u8;
    Some(shift.max(SLAB_SHIFT_MIN))
}

/// Objects of one slab page.
pub(super) fn capacity(layout: &RegionLayout, shift: u8) -> u32 {
    (layout.pages.page_bytes() >> shift) as u32
}

/// Bytes of the bitmap that a slab page of this class uses.
pub(super) fn bitmap_bytes(layout: &RegionLayout, shift: u8) -> u64 {
    u64::from(capacity(layout, shift).div_ceil(64)) * 8
}

/// What the objects of a slab page have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class {
    /// log2 of their size.
    pub(super) shift: u8,
    pub(super) kind: AllocationKind,
    /// The session that has them; 0 for none.
    pub(super) owner: u64,
}

/// What is known of one slab page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    pub(super) class: Class,
    /// Objects that can be taken.
    free: u32,
    /// No word of the bitmap below has a free object.
    hint: u32,
    /// Objects from here on were never taken since the frame was punched: they are zero.
    fresh: u32,
    /// Whether a word of the bitmap is damaged: nothing is given out from this page any more, and
    /// of the objects that the word is about nothing is freed. Their bytes stay.
    damaged: bool,
}

/// An object about to be taken: its index, whether it has to be zeroed, and the store that
/// marks it.
pub(super) struct Taking {
    pub(super) index: u32,
    pub(super) dirty: bool,
    pub(super) offset: u64,
    pub(super) word: u64,
}

/// The index over slab pages.
pub(super) struct Slabs {
    layout: RegionLayout,
    pages: BTreeMap<u32, Slab>,
    partial: BTreeSet<(Class, u32)>,
    empty: BTreeSet<(Class, u32)>,
    /// By frame, the objects that have lived since a watch began, of each watch by number.
    watches: BTreeMap<u64, BTreeMap<u32, Vec<u64>>>,
    last_watch: u64,
}

impl Slabs {
    pub(super) fn new(layout: RegionLayout) -> Slabs {
        let (pages, watches) = (BTreeMap::new(), BTreeMap::new());
        let (partial, empty) = (BTreeSet::new(), BTreeSet::new());
        Slabs { layout, pages, partial, empty, watches, last_watch: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.pages.len()
    }

    /// Adds an empty page, fresh from the punch.
    pub(super) fn insert_fresh(&mut self, frame: u32, class: Class) {
        let free = capacity(&self.layout, class.shift);
        self.insert(frame, Slab { class, free, hint: 0, fresh: 0, damaged: false });
    }

    /// Adds a page with a bitmap that says what lives; the number of objects that live.
    pub(super) fn insert_found<M: Mem>(
        &mut self,
        mem: &M,
        frame: u32,
        class: Class,
    ) -> Result<u32> {
        let capacity = capacity(&self.layout, class.shift);
        let bitmap = self.bitmap(frame);
        let (mut live, mut damaged) = (0, false);
        for word in 0..capacity.div_ceil(64) {
            let Ok(bits) = copies::load(mem, bitmap + 8 * u64::from(word)) else {
                damaged = true;
                // Whatever it said, nothing of it can be taken.
                live += valid_bits(capacity, word).count_ones();
                continue;
            };
            if bits & !valid_bits(capacity, word) != 0 {
                let reason = format!("the bitmap of slab frame {frame} has bits past its end");
                return Err(Error::BadRegion { reason });
            }
            live += bits.count_ones();
        }
        let free = capacity - live;
        let slab = Slab { class, free, hint: 0, fresh: capacity, damaged };
        self.insert(frame, slab);
        Ok(live)
    }

    fn insert(&mut self, frame: u32, slab: Slab) {
        self.pages.insert(frame, slab);
        if slab.damaged {
            return;
        }
        if slab.free > 0 {
            self.partial.insert((slab.class, frame));
        }
        if slab.free == capacity(&self.layout, slab.class.shift) {
            self.empty.insert((slab.class, frame));
        }
    }

    /// How many objects live in a page.
    pub(super) fn live(&self, frame: u32) -> u32 {
        self.pages
            .get(&frame)
            .map_or(0, |slab| capacity(&self.layout, slab.class.shift) - slab.free)
    }

    /// The bitmap of a page.
    pub(super) fn bitmap_words<M: Mem>(&self, mem: &M, frame: u32, shift: u8) -> Result<Vec<u64>> {
        let words = bitmap_bytes(&self.layout, shift) / 8;
        (0..words).map(|word| copies::load(mem, self.bitmap(frame) + 8 * word)).collect()
    }

    /// The first page from a frame on, and its class.
    pub(super) fn next_page(&self, from: u32) -> Option<(u32, u8)> {
        self.pages.range(from..).next().map(|(frame, slab)| (*frame, slab.class.shift))
    }

    /// Notes that a word of a page's bitmap cannot be read: nothing is taken from it any more.
    pub(super) fn note_damaged(&mut self, frame: u32) {
        if let Some(slab) = self.pages.get_mut(&frame) {
            slab.damaged = true;
            let key = (slab.class, frame);
            self.partial.remove(&key);
            self.empty.remove(&key);
        }
    }

    /// Forgets a page; how many objects lived in it.
    pub(super) fn remove(&mut self, frame: u32) -> Option<(Slab, u32)> {
        let slab = self.pages.remove(&frame)?;
        self.watches.values_mut().for_each(|watched| drop(watched.remove(&frame)));
        self.partial.remove(&(slab.class, frame));
        self.empty.remove(&(slab.class, frame));
        Some((slab, capacity(&self.layout, slab.class.shift) - slab.free))
    }

    /// The lowest page of the class with room in a range of frames that is not one of `others`.
    pub(super) fn with_room(
        &self,
        class: Class,
        range: &Range<u32>,
        others: &BTreeSet<u32>,
    ) -> Option<u32> {
        let pages = self.partial.range((class, range.start)..(class, range.end));
        pages.map(|(_, frame)| *frame).find(|frame| !others.contains(frame))
    }

    /// The pages of the class with room in a range of frames, the lowest first.
    pub(super) fn pages_with_room(
        &self,
        class: Class,
        range: &Range<u32>,
    ) -> impl Iterator<Item = u32> + '_ {
        let pages = self.partial.range((class, range.start)..(class, range.end));
        pages.map(|(_, frame)| *frame)
    }

    /// The next group of so many objects in a page, from an object on, with some that are free: the
    /// number of its first object, and those that are, one bit each.
    pub(super) fn next_group<M: Mem>(
        &mut self,
        mem: &M,
        frame: u32,
        from: u32,
        objects: u32,
    ) -> Option<(u32, u32)> {
        let bitmap = self.bitmap(frame);
        let slab = self.pages.get(&frame)?;
        let capacity = capacity(&self.layout, slab.class.shift);
        let mut first = from.max(64 * slab.hint);
        while first < capacity {
            let Ok(bits) = copies::load(mem, bitmap + 8 * u64::from(first / 64)) else {
                self.note_damaged(frame);
                return None;
            };
            let free = (!bits >> (first % 64)) as u32 & u32::MAX >> (u32::BITS - objects);
            if free != 0 {
                return Some((first, free));
            }
            first += objects;
        }
        None
    }

    /// The word of a page's bitmap that objects from `first` on are in, and their bits there.
    pub(super) fn bits_at(&self, frame: u32, first: u32, objects: u32) -> (u64, u64) {
        (self.bitmap(frame) + 8 * u64::from(first / 64), u64::from(objects) << (first % 64))
    }

    /// Empty pages that could be given back.
    pub(super) fn empty_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.empty.iter().map(|(_, frame)| *frame)
    }

    /// How many pages in a range of frames are empty.
    pub(super) fn empty_in(&self, range: &Range<u32>) -> u32 {
        self.empty.iter().filter(|(_, frame)| range.contains(frame)).count() as u32
    }

    /// The highest empty page of a class if there is more than one: one stays cached, unless
    /// `keep_none` says otherwise.
    pub(super) fn surplus(&self, class: Class, keep_none: bool) -> Option<u32> {
        let mut range = self.empty.range((class, 0)..=(class, u32::MAX));
        let last = range.next_back()?;
        if keep_none {
            return Some(last.1);
        }
        range.next().map(|_| last.1)
    }

    /// An empty page of any class that has more than one.
    pub(super) fn any_surplus(&self) -> Option<u32> {
        let pairs = self.empty.iter().zip(self.empty.iter().skip(1));
        let mut surplus = pairs.filter(|(a, b)| a.0 == b.0);
        surplus.next().map(|(_, page)| page.1)
    }

    /// Chooses a free object; nothing changes before [`Slabs::taken`]. `None` if the bitmap is
    /// damaged, which the page has noted then.
    pub(super) fn choose<M: Mem>(&mut self, mem: &M, frame: u32) -> Option<Taking> {
        let bitmap = self.bitmap(frame);
        let slab = self.pages.get_mut(&frame).expect("the caller found the page in this index");
        let capacity = capacity(&self.layout, slab.class.shift);
        for word in slab.hint..capacity.div_ceil(64) {
            let offset = bitmap + 8 * u64::from(word);
            let Ok(bits) = copies::load(mem, offset) else { break };
            let bit = (!bits & valid_bits(capacity, word)).trailing_zeros();
            if bit < 64 {
                slab.hint = word;
                let index = 64 * word + bit;
                let dirty = index < slab.fresh;
                return Some(Taking { index, dirty, offset, word: bits | 1 << bit });
            }
        }
        self.note_damaged(frame);
        None
    }

    /// Notes that the chosen object is taken.
    pub(super) fn taken(&mut self, frame: u32, index: u32) {
        let slab = self.pages.get_mut(&frame).expect("the object was chosen from this page");
        let key = (slab.class, frame);
        slab.free -= 1;
        slab.fresh = slab.fresh.max(index + 1);
        if slab.free == 0 {
            self.partial.remove(&key);
        }
        self.empty.remove(&key);
    }

    /// The store that unmarks an object, or `None` if it does not live, or nothing can say so.
    pub(super) fn release<M: Mem>(&self, mem: &M, frame: u32, index: u32) -> Option<(u64, u64)> {
        let offset = self.bitmap(frame) + 8 * u64::from(index / 64);
        let bits = copies::load(mem, offset).ok()?;
        let bit = 1 << (index % 64);
        (bits & bit != 0).then_some((offset, bits & !bit))
    }

    /// Notes that an object was given back.
    pub(super) fn released(&mut self, frame: u32, index: u32) -> Slab {
        let slab = self.pages.get_mut(&frame).expect("the object lived in this page");
        let key = (slab.class, frame);
        for words in self.watches.values_mut().filter_map(|watched| watched.get_mut(&frame)) {
            words[index as usize / 64] &= !(1 << (index % 64));
        }
        slab.free += 1;
        slab.hint = slab.hint.min(index / 64);
        if slab.damaged {
            return *slab;
        }
        self.partial.insert(key);
        if slab.free == capacity(&self.layout, slab.class.shift) {
            self.empty.insert(key);
        }
        *slab
    }

    /// Begins a watch of all objects of a kind that live now; its number, greater than all before.
    /// The oldest of too many ends.
    pub(super) fn begin_watch<M: Mem>(&mut self, mem: &M, kind: AllocationKind) -> u64 {
        let pages = self.pages.iter().filter(|(_, slab)| slab.class.kind == kind);
        // Of a page with a damaged bitmap nothing is judged.
        let words = |(frame, slab): (&u32, &Slab)| {
            Some((*frame, self.bitmap_words(mem, *frame, slab.class.shift).ok()?))
        };
        let watched = pages.filter_map(words).collect();
        self.last_watch += 1;
        self.watches.insert(self.last_watch, watched);
        if self.watches.len() > AUDIT_WATCHES_MAX {
            self.watches.pop_first();
        }
        self.last_watch
    }

    pub(super) fn end_watch(&mut self, watch: u64) {
        self.watches.remove(&watch);
    }

    /// Whether a watch goes on.
    pub(super) fn watches(&self, watch: u64) -> bool {
        self.watches.contains_key(&watch)
    }

    /// The objects of a page that have lived since a watch began.
    pub(super) fn watched(&self, watch: u64, frame: u32) -> Option<&[u64]> {
        self.watches.get(&watch)?.get(&frame).map(Vec::as_slice)
    }

    fn bitmap(&self, frame: u32) -> u64 {
        self.layout.bitmap_offset(crate::addr::FrameIndex(frame))
    }
}

/// Refuses a bitmap with bits that stand for no object.
pub(super) fn check_bits(
    layout: &RegionLayout,
    shift: u8,
    words: &[u64],
    probe: &impl Probe,
) -> Result<()> {
    let capacity = capacity(layout, shift);
    let past = (0..).zip(words).any(|(word, bits)| bits & !valid_bits(capacity, word) != 0);
    if past && !probe.mutated(Mutation::TrustPeers) {
        let reason = "a bitmap has bits past its end".into();
        return Err(Error::Protocol { peer: "the mover of a page".into(), reason });
    }
    Ok(())
}

/// The bits of bitmap word `word` that stand for objects.
fn valid_bits(capacity: u32, word: u32) -> u64 {
    let objects = capacity - 64 * word;
    if objects >= 64 { u64::MAX } else { (1 << objects) - 1 }
}
