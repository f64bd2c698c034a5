//! Of each thread, the theaps that it uses: mimalloc's parts of heaps that belong to one thread.
//! mimalloc itself remembers one, so that a program that takes blocks from two placements in turn
//! would look each up anew, which takes as long as all else. A theap is gone with its thread:
//! before mimalloc learns of the end, the thread forgets them all, and remembers none from then on.

use crate::arena::ARENAS_MAX;
use crate::policy::PLACEMENTS_MAX;
use crate::sys::{self, RawHeap, RawTheap};
use std::cell::Cell;
use std::ptr;

/// Placements of all arenas.
const SLOTS: usize = ARENAS_MAX * PLACEMENTS_MAX;

/// In a block of its own: what a library keeps for each thread has to fit in what the C library
/// has left for libraries that a running program loads, some 500 bytes.
type Theaps = [Cell<*mut RawTheap>; SLOTS];

struct Recent {
    /// Null unless it remembers.
    theaps: Cell<*const Theaps>,
    has_begun: Cell<bool>,
}

thread_local! {
    static RECENT: Recent =
        const { Recent { theaps: Cell::new(ptr::null()), has_begun: Cell::new(false) } };
}

/// This thread's part of the heap that last gave it a block of a placement; or null.
#[inline]
pub(crate) fn theap(slot: usize) -> *mut RawTheap {
    RECENT.with(|recent| recent.theaps().map_or(ptr::null_mut(), |theaps| theaps[slot].get()))
}

/// A heap gave this thread a block.
///
/// # Safety
/// `heap` is one of [`sys::heap_of_range`].
pub(crate) unsafe fn remember(slot: usize, heap: *mut RawHeap) {
    RECENT.with(|recent| {
        recent.begin();
        if let Some(theaps) = recent.theaps() {
            // SAFETY: as the caller promises.
            theaps[slot].set(unsafe { sys::theap(heap) });
        }
    });
}

impl Recent {
    #[inline]
    fn theaps(&self) -> Option<&Theaps> {
        // SAFETY: null, or a block of this thread that `forget` alone gives back.
        unsafe { self.theaps.get().as_ref() }
    }

    fn begin(&self) {
        // First: the C library may ask for a block to keep the function in.
        if !self.has_begun.replace(true) && sys::at_thread_end(forget) {
            self.theaps.set(sys::zeroed::<Theaps>());
        }
    }
}

/// Called before mimalloc's own function for the end of a thread.
unsafe extern "C" fn forget(_nothing: *mut u8) {
    RECENT.with(|recent| {
        let theaps = recent.theaps.replace(ptr::null()).cast_mut();
        if !theaps.is_null() {
            // SAFETY: taken in `begin`, and named nowhere any more.
            unsafe { sys::give(theaps.cast()) };
        }
    });
}
