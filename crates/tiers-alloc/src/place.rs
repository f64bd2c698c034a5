//! A placement at work: its regions, which heap is tried first, and how many bytes each node was
//! given. Regions are added when all are full, and never taken away.

use crate::Error;
use crate::locks::{self, Guard};
use crate::mapped;
use crate::placer::Placer;
use crate::policy::{Placement, SHARES_MAX};
use crate::region::{ELSEWHERE, EXTENT_BYTES, Region};
use crate::stats::CLASSES;
use crate::sys::{self, RawHeap, Request};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Of a placement; mimalloc has room for 160 in a process.
const REGIONS_MAX: usize = 128;
/// From here on a block is a mapping of its own: mimalloc's bitmaps go by 32 MiB.
pub(crate) const MAPPED_BYTES_MIN: usize = 32 << 20;
/// In an exclusive arena mimalloc aligns no further.
const HEAP_ALIGN_MAX: usize = 64 << 10;
/// Left to the kernel and to others on a node that must not run out: where it does, Linux ends a
/// process instead of refusing memory.
const MARGIN_BYTES: u64 = 32 << 20;
/// Extents of all arenas before they are made twice as long: a process has 65,530 mappings at most.
const EXTENTS_SMALL: u64 = 4096;
const EXTENT_DOUBLINGS_MAX: u32 = 8;

/// Of all arenas.
static EXTENTS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Place {
    pub placement: Placement,
    placer: &'static dyn Placer,
    /// That gave the last block when another was full.
    heap: AtomicPtr<RawHeap>,
    /// Without gaps.
    regions: [AtomicPtr<Region>; REGIONS_MAX],
    heaps: [AtomicPtr<RawHeap>; REGIONS_MAX],
    /// What is known to be free on each node of a strict placement, bytes. For the thread that
    /// deals.
    room: [AtomicU64; SHARES_MAX],
    placed: [AtomicU64; SHARES_MAX],
    unplaced: AtomicU64,
    refused: AtomicU64,
    /// Blocks that are mappings of their own, by class.
    pub mapped_blocks: [AtomicU64; CLASSES],
    pub mapped_bytes: [AtomicU64; CLASSES],
}

impl Place {
    pub fn new(placement: Placement, placer: &'static dyn Placer) -> Place {
        Place {
            placement,
            placer,
            heap: AtomicPtr::new(ptr::null_mut()),
            regions: [const { AtomicPtr::new(ptr::null_mut()) }; REGIONS_MAX],
            heaps: [const { AtomicPtr::new(ptr::null_mut()) }; REGIONS_MAX],
            room: [const { AtomicU64::new(0) }; SHARES_MAX],
            placed: [const { AtomicU64::new(0) }; SHARES_MAX],
            unplaced: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            mapped_blocks: [const { AtomicU64::new(0) }; CLASSES],
            mapped_bytes: [const { AtomicU64::new(0) }; CLASSES],
        }
    }

    /// Before the first block.
    pub fn start(&'static self) -> Result<(), Error> {
        self.grow(0)
    }

    /// That is tried first.
    pub fn heap(&self) -> *mut RawHeap {
        // Acquire: pairs with the Release in `grow` and `alloc_elsewhere`: the heap is whole.
        self.heap.load(Ordering::Acquire)
    }

    pub fn alloc(&'static self, request: Request) -> *mut u8 {
        if request.bytes >= MAPPED_BYTES_MIN || request.align > HEAP_ALIGN_MAX {
            return mapped::alloc(self, request);
        }
        // SAFETY: a heap of a region of ours.
        let block = unsafe { sys::take(self.heap(), request) };
        if block.is_null() { self.alloc_elsewhere(request) } else { block }
    }

    /// From any region, or from a new one unless it is a node that is full.
    #[cold]
    fn alloc_elsewhere(&'static self, request: Request) -> *mut u8 {
        let refused = self.refused();
        let mut count = 0;
        loop {
            while let Some(heap) = self.heap_at(count) {
                count += 1;
                // SAFETY: a heap of a region of ours.
                let block = unsafe { sys::take(heap, request) };
                if !block.is_null() {
                    // Release: pairs with the Acquire in `heap`.
                    self.heap.store(heap, Ordering::Release);
                    return block;
                }
            }
            if self.refused() != refused || self.grow(count).is_err() {
                return ptr::null_mut();
            }
        }
    }

    /// Makes the region of that index, unless another thread did.
    fn grow(&'static self, index: usize) -> Result<(), Error> {
        let slot = self.regions.get(index).ok_or(Error::Arenas)?;
        let _growing = locks::growing();
        // Relaxed: written with the lock held, as it is now.
        if !slot.load(Ordering::Relaxed).is_null() {
            return Ok(());
        }
        let (region, heap) = Region::create(self)?;
        // Release: pairs with the Acquire in `heap_at` and `regions`.
        self.heaps[index].store(heap, Ordering::Release);
        slot.store(ptr::from_ref(region).cast_mut(), Ordering::Release);
        if index == 0 {
            // Release: pairs with the Acquire in `heap`.
            self.heap.store(heap, Ordering::Release);
        }
        Ok(())
    }

    fn heap_at(&self, index: usize) -> Option<*mut RawHeap> {
        // Acquire: pairs with the Release in `grow`.
        let heap = self.heaps.get(index)?.load(Ordering::Acquire);
        (!heap.is_null()).then_some(heap)
    }

    fn regions(&self) -> impl Iterator<Item = &'static Region> {
        // Acquire: pairs with the Release in `grow`.
        let regions = self.regions.iter().map(|region| region.load(Ordering::Acquire));
        // SAFETY: null, or a region, which is never freed.
        regions.map_while(|region| unsafe { region.as_ref() })
    }

    /// A heap for each region.
    pub fn heaps(&self) -> impl Iterator<Item = *mut RawHeap> {
        (0..REGIONS_MAX).map_while(|index| self.heap_at(index))
    }

    /// Whether a block lies in this placement.
    ///
    /// # Safety
    /// `block` is a block.
    pub unsafe fn holds(&self, block: *const u8) -> bool {
        if mapped::is_mapped(block) {
            // SAFETY: of that kind.
            return ptr::eq(unsafe { mapped::place_of(block) }, self);
        }
        self.regions().any(|region| region.holds(block))
    }

    /// Long enough that all extents of all arenas are not too many mappings.
    pub fn extent_bytes(&self) -> usize {
        // Relaxed: a count alone, and any value does.
        let extents = EXTENTS.load(Ordering::Relaxed);
        let doublings = (extents / EXTENTS_SMALL).min(u64::from(EXTENT_DOUBLINGS_MAX)) as u32;
        EXTENT_BYTES << doublings
    }

    /// Gives a range the node that is next. The answer is 1 + the index of its share, or
    /// [`ELSEWHERE`]; None if the placement is strict and no node has room.
    pub fn deal(&self, dealing: &Guard, start: *mut u8, bytes: usize) -> Option<u8> {
        let mut may_be = [true; SHARES_MAX];
        let is_strict = self.placement.is_strict();
        let length = bytes as u64;
        while let Some(index) =
            self.placement.next(length, |index| self.placed(index), |index| may_be[index])
        {
            let node = self.placement.shares()[index].node;
            let has_room = !is_strict || self.has_room(dealing, index, length);
            if has_room && self.placer.place(start, bytes, node, is_strict).is_ok() {
                // One page may take all of it.
                self.use_room(dealing, index, length);
                // Relaxed: counts alone.
                self.placed[index].fetch_add(length, Ordering::Relaxed);
                EXTENTS.fetch_add(1, Ordering::Relaxed);
                return Some(1 + index as u8);
            }
            may_be[index] = false;
        }
        if is_strict {
            self.refuse();
            return None;
        }
        // Relaxed: a count alone.
        self.unplaced.fetch_add(length, Ordering::Relaxed);
        Some(ELSEWHERE)
    }

    /// Takes memory for a part of an extent, if it must not come from elsewhere. False if there is
    /// none.
    pub fn back(&self, state: u8, start: *mut u8, bytes: usize) -> bool {
        if !self.placement.is_strict() {
            return true;
        }
        let index = usize::from(state - 1);
        let dealing = locks::dealing();
        let has_room = self.has_room(&dealing, index, bytes as u64);
        self.use_room(&dealing, index, bytes as u64);
        drop(dealing);
        let is_backed = has_room && self.placer.populate(start, bytes).is_ok();
        if !is_backed {
            self.refuse();
        }
        is_backed
    }

    /// Whether a node has so much to give, beside the margin. Asked anew the sooner the less there
    /// is.
    fn has_room(&self, _dealing: &Guard, index: usize, bytes: u64) -> bool {
        // Relaxed: with the lock held.
        let mut room = self.room[index].load(Ordering::Relaxed);
        if room < bytes {
            let node = self.placement.shares()[index].node;
            let Some(available) = self.placer.available_bytes(node) else { return true };
            let free = available.saturating_sub(MARGIN_BYTES);
            room = free.min(bytes.max(free / 8));
            // Relaxed: as above.
            self.room[index].store(room, Ordering::Relaxed);
        }
        room >= bytes
    }

    /// Less is known to be free, if anything is known.
    fn use_room(&self, _dealing: &Guard, index: usize, bytes: u64) {
        // Relaxed: with the lock held.
        let left = self.room[index].load(Ordering::Relaxed).saturating_sub(bytes);
        self.room[index].store(left, Ordering::Relaxed);
    }

    /// What [`Place::deal`] gave is gone.
    pub fn undo(&self, state: u8, bytes: usize) {
        let count = match state {
            ELSEWHERE => &self.unplaced,
            state => &self.placed[usize::from(state - 1)],
        };
        // Relaxed: counts alone.
        count.fetch_sub(bytes as u64, Ordering::Relaxed);
        if state != ELSEWHERE {
            EXTENTS.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn refuse(&self) {
        // Relaxed: a count alone.
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a strict placement had no memory.
    pub fn refused(&self) -> u64 {
        // Relaxed: a count alone; its own thread's refusals are in it.
        self.refused.load(Ordering::Relaxed)
    }

    /// Bytes that were given to the node of a share.
    pub fn placed(&self, index: usize) -> u64 {
        // Relaxed: a count alone.
        self.placed[index].load(Ordering::Relaxed)
    }

    /// Bytes for which the kernel refused every node.
    pub fn unplaced(&self) -> u64 {
        // Relaxed: a count alone.
        self.unplaced.load(Ordering::Relaxed)
    }
}
