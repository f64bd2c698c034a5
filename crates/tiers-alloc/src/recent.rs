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

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Remembers,
    Forgets,
}

struct Recent {
    /// Null where there is none.
    theaps: [Cell<*mut RawTheap>; SLOTS],
    state: Cell<State>,
}

thread_local! {
    static RECENT: Recent = const {
        let theaps = [const { Cell::new(ptr::null_mut()) }; SLOTS];
        Recent { theaps, state: Cell::new(State::New) }
    };
}

/// This thread's part of the heap that last gave it a block of a placement; or null.
#[inline]
pub(crate) fn theap(slot: usize) -> *mut RawTheap {
    RECENT.with(|recent| recent.theaps[slot].get())
}

/// A heap gave this thread a block.
///
/// # Safety
/// `heap` is one of [`sys::heap_of_range`].
pub(crate) unsafe fn remember(slot: usize, heap: *mut RawHeap) {
    RECENT.with(|recent| {
        if recent.remembers() {
            // SAFETY: as the caller promises.
            recent.theaps[slot].set(unsafe { sys::theap(heap) });
        }
    });
}

impl Recent {
    fn remembers(&self) -> bool {
        if self.state.get() == State::New {
            // The C library may ask for a block to keep the function in.
            self.state.set(State::Forgets);
            if sys::at_thread_end(forget) {
                self.state.set(State::Remembers);
            }
        }
        self.state.get() == State::Remembers
    }
}

/// Called before mimalloc's own function for the end of a thread.
unsafe extern "C" fn forget(_nothing: *mut u8) {
    RECENT.with(|recent| {
        recent.state.set(State::Forgets);
        recent.theaps.iter().for_each(|theap| theap.set(ptr::null_mut()));
    });
}
