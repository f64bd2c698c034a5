//! Blocks that a thread freed though they lie in pages of other threads, for its own next blocks
//! of that size.
//!
//! mimalloc puts such a block into a list of its page by an atomic operation, which waits for the
//! block's line to come from the other core, and the page's thread walks the list later, a miss
//! for each block. Kept blocks cost neither: one that is taken again here was written here.

use crate::sys;
use std::cell::Cell;
use std::ptr;

/// Of one class; with more all go back to mimalloc.
const BLOCKS_MAX: usize = 64;
/// Of one class, some 3.5 MB of all.
const BYTES_MAX: usize = 128 << 10;
/// mimalloc's blocks from here on are multiples of it, and aligned to it.
const BLOCK_BYTES_MIN: usize = 16;
const BLOCK_BYTES_MAX: usize = 64 << 10;
const CLASSES: usize = class(BLOCK_BYTES_MAX) + 1;

/// The class of a block of so many bytes: four for each power of two, as mimalloc's sizes are.
const fn class(bytes: usize) -> usize {
    let shift = bytes.ilog2() as usize - 2;
    4 * shift + (bytes >> shift) - 11
}

/// Whose blocks are all long enough for so many bytes.
#[inline]
fn class_for(bytes: usize) -> usize {
    1 + class(bytes.max(1).next_multiple_of(BLOCK_BYTES_MIN) - 1)
}

/// Each block begins with the address of the next.
struct List {
    first: Cell<*mut u8>,
    count: Cell<usize>,
}

type Lists = [List; CLASSES];

impl List {
    /// Back to mimalloc.
    fn give(&self) {
        self.count.set(0);
        let mut block = self.first.replace(ptr::null_mut());
        while !block.is_null() {
            // SAFETY: a block of the list.
            let next = unsafe { next_of(block) };
            // SAFETY: no longer used, as `keep` was promised, and in no list any more.
            unsafe { sys::give(block) };
            block = next;
        }
    }
}

/// Of one thread and one placement. All zero is empty.
pub(crate) struct Kept {
    /// A bit for each class that has blocks.
    filled: Cell<u64>,
    /// Null until there is a block.
    lists: Cell<*const Lists>,
}

const _: () = assert!(CLASSES <= u64::BITS as usize);

impl Kept {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filled.get() == 0
    }

    /// A block of at least so many bytes, or null.
    #[inline(never)]
    pub fn take(&self, bytes: usize) -> *mut u8 {
        if bytes > BLOCK_BYTES_MAX {
            return ptr::null_mut();
        }
        let class = class_for(bytes);
        let Some(list) = self.lists().map(|lists| &lists[class]) else { return ptr::null_mut() };
        let block = list.first.get();
        if !block.is_null() {
            // SAFETY: a block of the list.
            let next = unsafe { next_of(block) };
            list.first.set(next);
            list.count.set(list.count.get() - 1);
            if next.is_null() {
                self.filled.set(self.filled.get() & !(1 << class));
            }
        }
        block
    }

    /// Whether a block is kept, by the bytes of it that can be used.
    ///
    /// # Safety
    /// `block` is a block of mimalloc of the placement, so long, and no longer used.
    pub unsafe fn keep(&self, block: *mut u8, bytes: usize) -> bool {
        if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&bytes) {
            return false;
        }
        if self.lists.get().is_null() {
            self.lists.set(sys::zeroed::<Lists>());
        }
        let class = class(bytes);
        let Some(list) = self.lists().map(|lists| &lists[class]) else { return false };
        // SAFETY: no longer used, and long enough for an address.
        unsafe { block.cast::<*mut u8>().write(list.first.get()) };
        list.first.set(block);
        let count = list.count.get() + 1;
        list.count.set(count);
        self.filled.set(self.filled.get() | 1 << class);
        if count > BLOCKS_MAX || count * bytes > BYTES_MAX {
            list.give();
            self.filled.set(self.filled.get() & !(1 << class));
        }
        true
    }

    /// The thread ends.
    pub fn give_all(&self) {
        if let Some(lists) = self.lists() {
            lists.iter().for_each(List::give);
            self.filled.set(0);
            let lists = self.lists.replace(ptr::null()).cast_mut();
            // SAFETY: of `keep`, and named nowhere any more.
            unsafe { sys::give(lists.cast()) };
        }
    }

    #[inline]
    fn lists(&self) -> Option<&Lists> {
        // SAFETY: null, or zeroed memory, which is empty lists; `give_all` alone gives it back.
        unsafe { self.lists.get().as_ref() }
    }
}

/// # Safety
/// `block` is in a list.
#[inline]
unsafe fn next_of(block: *mut u8) -> *mut u8 {
    // SAFETY: written by `keep`.
    unsafe { block.cast::<*mut u8>().read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_blocks_that_are_long_enough_and_those_of_mimallocs_sizes() {
        let mut shortest = [usize::MAX; CLASSES];
        for bytes in (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).rev() {
            shortest[class(bytes)] = bytes;
        }
        for bytes in 0..=BLOCK_BYTES_MAX {
            assert!(shortest[class_for(bytes)] >= bytes, "{bytes}");
        }
        let sizes = [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 57_344, 65_536];
        for pair in sizes.windows(2) {
            assert_eq!(class_for(pair[1]), class(pair[1]));
            assert_eq!(class_for(pair[1] - 15), class(pair[1]), "{pair:?}");
        }
        for pair in sizes[..13].windows(2) {
            assert_eq!(class_for(pair[0] + 1), class(pair[1]), "{pair:?}");
        }
    }
}
