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

/// Of threads that remember none, so that a look-up need not ask whether it remembers.
struct NoTheaps(Theaps);

// SAFETY: never written: `Recent::remembers` tells it from a thread's own.
unsafe impl Sync for NoTheaps {}

static NONE: NoTheaps = NoTheaps([const { Cell::new(ptr::null_mut()) }; SLOTS]);

struct Recent {
    theaps: Cell<*const Theaps>,
    has_begun: Cell<bool>,
}

thread_local! {
    static RECENT: Recent =
        const { Recent { theaps: Cell::new(&raw const NONE.0), has_begun: Cell::new(false) } };
}

/// This thread's part of the heap that last gave it a block of a placement; or null.
#[inline]
pub(crate) fn theap(slot: usize) -> *mut RawTheap {
    RECENT.with(|recent| recent.theaps()[slot].get())
}

/// A heap gave this thread a block.
///
/// # Safety
/// `heap` is one of [`sys::heap_of_range`].
pub(crate) unsafe fn remember(slot: usize, heap: *mut RawHeap) {
    RECENT.with(|recent| {
        recent.begin();
        if recent.remembers() {
            // SAFETY: as the caller promises.
            recent.theaps()[slot].set(unsafe { sys::theap(heap) });
        }
    });
}

impl Recent {
    #[inline]
    fn theaps(&self) -> &Theaps {
        // SAFETY: `NONE`, or a block of this thread that `forget` alone gives back.
        unsafe { &*self.theaps.get() }
    }

    fn remembers(&self) -> bool {
        !ptr::eq(self.theaps.get(), &raw const NONE.0)
    }

    fn begin(&self) {
        // First: the C library may ask for a block to keep the function in.
        if !self.has_begun.replace(true) && sys::at_thread_end(forget) {
            let theaps = sys::zeroed::<Theaps>();
            if !theaps.is_null() {
                self.theaps.set(theaps);
            }
        }
    }
}

/// Called before mimalloc's own function for the end of a thread.
unsafe extern "C" fn forget(_nothing: *mut u8) {
    RECENT.with(|recent| {
        if recent.remembers() {
            let theaps = recent.theaps.replace(&raw const NONE.0).cast_mut();
            // SAFETY: taken in `begin`, and named nowhere any more.
            unsafe { sys::give(theaps.cast()) };
        }
    });
}
