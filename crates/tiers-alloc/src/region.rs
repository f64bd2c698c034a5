//! A range of addresses that one heap of mimalloc takes memory from. mimalloc calls `on_commit`
//! before it uses a part of it for the first time, and when it has no use for a part for a while.
//!
//! The range begins with mimalloc's own books, which stay where the kernel puts them.

use crate::Error;
use crate::locks;
use crate::place::Place;
use crate::sys::{self, RawHeap};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// One arena of mimalloc takes less than 16 GiB, since its books must be shorter than 32 MiB.
const BYTES_MAX: usize = 8 << 30;
/// Where there are few addresses (`ulimit -v`), less is tried.
const BYTES_MIN: usize = 64 << 20;
/// A huge page: no extent cuts one.
pub(crate) const EXTENT_BYTES: usize = 2 << 20;
const EXTENTS_MAX: usize = BYTES_MAX / EXTENT_BYTES;

/// What an extent's state says beside 1 + the index of the share that it came from.
const NOT_PLACED: u8 = 0;
/// The kernel refused; the memory comes from where the thread's policy says.
pub(crate) const ELSEWHERE: u8 = u8::MAX;

pub(crate) struct Region {
    place: &'static Place,
    start: usize,
    pub bytes: usize,
    /// A multiple of [`EXTENT_BYTES`], a power of two.
    extent_bytes: usize,
    /// The end of mimalloc's books; 0 until they are there.
    data_start: AtomicUsize,
    states: [AtomicU8; EXTENTS_MAX],
}

impl Region {
    /// A region with its heap.
    pub fn create(place: &'static Place) -> Result<(&'static Region, *mut RawHeap), Error> {
        let (start, bytes) = reserve().ok_or(Error::Addresses)?;
        let region = sys::leak(Region {
            place,
            start: start.addr(),
            bytes,
            extent_bytes: place.extent_bytes(),
            data_start: AtomicUsize::new(0),
            states: [const { AtomicU8::new(NOT_PLACED) }; EXTENTS_MAX],
        });
        let argument: *const Region = region.map_or(ptr::null(), ptr::from_ref);
        let heap = region.and_then(|_| {
            // SAFETY: a new mapping, which is kept if it becomes a heap; the argument is a region,
            // which is never freed.
            unsafe { sys::heap_of_range(start, bytes, on_commit, argument.cast_mut().cast()) }
        });
        if heap.is_none() {
            // SAFETY: the mapping of above. mimalloc did not take it, or made no heap of it; in the
            // second case its list names addresses that it never hands out.
            unsafe { sys::forget(start, bytes) };
        }
        // mimalloc refuses when it has no room for another arena.
        Ok((region.ok_or(Error::Addresses)?, heap.ok_or(Error::Arenas)?))
    }

    pub fn holds(&self, block: *const u8) -> bool {
        (self.start..self.start + self.bytes).contains(&block.addr())
    }

    /// The range is about to be used. False if there is no memory for it.
    fn take(&self, start: usize, bytes: usize) -> bool {
        let end = start + bytes;
        // Relaxed: written while the region is made, before other threads can know of it.
        if self.data_start.load(Ordering::Relaxed) == 0 {
            // Relaxed: as above.
            self.data_start.store(end, Ordering::Relaxed);
            return true;
        }
        let mut at = start;
        while at < end {
            let index = (at - self.start) / self.extent_bytes;
            let next = end.min(self.start + (index + 1) * self.extent_bytes);
            let Some(state) = self.placed(index) else { return false };
            let pages = ptr::with_exposed_provenance_mut(at);
            if !self.place.back(state, pages, next - at) {
                return false;
            }
            at = next;
        }
        true
    }

    /// The state of an extent, which is given a node if it has none; None if no node has memory.
    fn placed(&self, index: usize) -> Option<u8> {
        // Acquire: pairs with the Release below: the extent has its policy.
        let state = self.states[index].load(Ordering::Acquire);
        if state != NOT_PLACED {
            return Some(state);
        }
        let dealing = locks::dealing();
        // Relaxed: written with the lock held, as it is now.
        let state = self.states[index].load(Ordering::Relaxed);
        if state != NOT_PLACED {
            return Some(state);
        }
        let start = self.start + index * self.extent_bytes;
        let end = (start + self.extent_bytes).min(self.start + self.bytes);
        // Relaxed: see `take`.
        let start = start.max(self.data_start.load(Ordering::Relaxed));
        let pages = ptr::with_exposed_provenance_mut(start);
        let state = self.place.deal(&dealing, pages, end - start)?;
        // Release: pairs with the Acquire above.
        self.states[index].store(state, Ordering::Release);
        Some(state)
    }
}

fn on_commit_gives_back(region: &Region, start: *mut u8, bytes: usize) -> bool {
    // SAFETY: whole slices of the region's mapping, which mimalloc has no block in.
    unsafe { sys::forget(start, bytes) };
    // Where a node may be full by then, mimalloc must ask before it uses the range again.
    region.place.placement.is_strict()
}

/// Called by mimalloc: by any thread, and maybe inside the program's allocator.
extern "C" fn on_commit(
    is_commit: bool,
    start: *mut c_void,
    bytes: usize,
    is_zero: *mut bool,
    region: *mut c_void,
) -> bool {
    // SAFETY: what `create` gave to mimalloc: a region, which is never freed.
    let region = unsafe { &*region.cast_const().cast::<Region>() };
    if !is_commit {
        return on_commit_gives_back(region, start.cast(), bytes);
    }
    // SAFETY: null, or a variable of mimalloc's.
    if let Some(is_zero) = unsafe { is_zero.as_mut() } {
        // Not said of what was used before; of new memory mimalloc knows it.
        *is_zero = false;
    }
    region.take(start.addr(), bytes)
}

/// Addresses that begin with a huge page: as many as there are, within bounds.
fn reserve() -> Option<(*mut u8, usize)> {
    let mut bytes = BYTES_MAX;
    while bytes >= BYTES_MIN {
        let start = sys::map(bytes + EXTENT_BYTES);
        if !start.is_null() {
            let before = start.align_offset(EXTENT_BYTES);
            let aligned = start.wrapping_add(before);
            // SAFETY: the beginning of the new mapping.
            unsafe { sys::unmap(start, before) };
            // SAFETY: its end, behind the range that is kept.
            unsafe { sys::unmap(aligned.wrapping_add(bytes), EXTENT_BYTES - before) };
            aligned.expose_provenance();
            return Some((aligned, bytes));
        }
        bytes /= 2;
    }
    None
}
