//! Of each thread, what it has of each placement: the theap that it uses, mimalloc's part of a heap
//! that belongs to one thread, and the blocks that it keeps (`kept`).
//!
//! mimalloc itself remembers one theap, so that a program that takes blocks from two placements in
//! turn would look each up anew, which takes as long as all else. A theap is gone with its thread:
//! before mimalloc learns of the end, the thread forgets them all and gives back what it keeps, and
//! remembers and keeps nothing from then on.

use crate::arena::ARENAS_MAX;
use crate::kept::Kept;
use crate::policy::PLACEMENTS_MAX;
use crate::region;
use crate::sys::{self, RawHeap, RawTheap};
use std::cell::Cell;
use std::ptr;

/// Placements of all arenas.
const SLOTS: usize = ARENAS_MAX * PLACEMENTS_MAX;

/// All zero is empty.
#[repr(align(32))]
struct Slot {
    /// This thread's part of the heap that last gave it a block; or null.
    theap: Cell<*mut RawTheap>,
    kept: Kept,
}

/// In a block of its own: what a library keeps for each thread has to fit in what the C library
/// has left for libraries that a running program loads, some 500 bytes.
type Slots = [Slot; SLOTS];

struct Recent {
    /// Null unless it remembers.
    slots: Cell<*const Slots>,
    /// This thread, as mimalloc numbers it; 0 unless it keeps blocks.
    thread: Cell<usize>,
    has_begun: Cell<bool>,
}

thread_local! {
    static RECENT: Recent = const {
        Recent {
            slots: Cell::new(ptr::null()),
            thread: Cell::new(0),
            has_begun: Cell::new(false),
        }
    };
}

/// A block of a placement from what this thread has of it, aligned as all are; or null.
#[inline]
pub(crate) fn take(slot: usize, bytes: usize, is_zero: bool) -> *mut u8 {
    RECENT.with(|recent| {
        let Some(slots) = recent.slots() else { return ptr::null_mut() };
        let Slot { theap, kept } = &slots[slot];
        if !kept.is_empty() && !is_zero {
            let block = kept.take(bytes);
            if !block.is_null() {
                return block;
            }
        }
        let theap = theap.get();
        if theap.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: this thread's own.
        unsafe { sys::take_of_thread(theap, bytes, is_zero) }
    })
}

/// A heap gave this thread a block.
///
/// # Safety
/// `heap` is one of [`sys::heap_of_range`].
pub(crate) unsafe fn remember(slot: usize, heap: *mut RawHeap) {
    RECENT.with(|recent| {
        recent.begin();
        if let Some(slots) = recent.slots() {
            // SAFETY: as the caller promises.
            slots[slot].theap.set(unsafe { sys::theap(heap) });
        }
    });
}

/// Whether this thread keeps a block that it frees: one of another thread's page.
///
/// # Safety
/// `block` is a block of mimalloc that is no longer used.
#[inline]
pub(crate) unsafe fn keep(block: *mut u8) -> bool {
    // SAFETY: as the caller promises.
    let owner = unsafe { sys::owner(block) };
    RECENT.with(|recent| {
        // SAFETY: as the caller promises.
        owner != recent.thread.get() && unsafe { recent.keep(block, owner) }
    })
}

impl Recent {
    #[inline]
    fn slots(&self) -> Option<&Slots> {
        // SAFETY: null, or zeroed memory of this thread that `forget` alone gives back.
        unsafe { self.slots.get().as_ref() }
    }

    fn begin(&self) {
        // First: the C library may ask for a block to keep the function in.
        if self.has_begun.replace(true) || !sys::at_thread_end(forget) {
            return;
        }
        let slots = sys::zeroed::<Slots>();
        self.slots.set(slots);
        if slots.is_null() {
            return;
        }
        // SAFETY: a block of mimalloc.
        let owner = unsafe { sys::owner(slots.cast::<u8>()) };
        // Always, unless mimalloc's pages are not what [`sys::owner`] takes them for.
        if owner == sys::thread() {
            self.thread.set(owner);
        }
    }

    /// # Safety
    /// As of [`keep`]; `owner` is of [`sys::owner`].
    #[inline(never)]
    unsafe fn keep(&self, block: *mut u8, owner: usize) -> bool {
        if self.thread.get() == 0 || !sys::is_thread(owner) {
            return false;
        }
        let (Some(slots), Some(slot)) = (self.slots(), region::slot_of(block)) else {
            return false;
        };
        let Slot { theap, kept } = &slots[slot];
        // A thread that takes no blocks there has no use for it.
        if theap.get().is_null() {
            return false;
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { sys::usable(block) };
        // SAFETY: as the caller promises, and of the placement that has the region.
        unsafe { kept.keep(block, bytes) }
    }
}

/// Called before mimalloc's own function for the end of a thread.
unsafe extern "C" fn forget(_nothing: *mut u8) {
    RECENT.with(|recent| {
        recent.thread.set(0);
        let Some(slots) = recent.slots() else { return };
        slots.iter().for_each(|slot| slot.kept.give_all());
        let slots = recent.slots.replace(ptr::null()).cast_mut();
        // SAFETY: taken in `begin`, and named nowhere any more.
        unsafe { sys::give(slots.cast()) };
    });
}
