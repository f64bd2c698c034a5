//! An arena as the allocator of a Rust program, made when the first block is asked for.

use crate::arena::{Arena, free};
use crate::policy::Hint;
use crate::sys::Request;
use std::alloc::{GlobalAlloc, Layout};
use std::fmt::{self, Write};
use std::ptr;
use std::sync::OnceLock;

const LINE_BYTES_MAX: usize = 512;

/// The allocator of a program, by a policy as a text. Where no arena can be made, the reason goes
/// to standard error, and no block can be had.
///
/// ```no_run
/// use rackpool_tiers_alloc::TiersAlloc;
///
/// #[global_allocator]
/// static ALLOCATOR: TiersAlloc = TiersAlloc::new("global", "weighted:0=3,1=1");
/// ```
pub struct TiersAlloc {
    name: &'static str,
    policy: &'static str,
    arena: OnceLock<Option<Arena>>,
}

impl TiersAlloc {
    pub const fn new(name: &'static str, policy: &'static str) -> TiersAlloc {
        TiersAlloc { name, policy, arena: OnceLock::new() }
    }

    #[inline]
    pub fn arena(&self) -> Option<Arena> {
        *self.arena.get_or_init(|| make(self.name, self.policy))
    }

    #[inline]
    fn take(&self, layout: Layout, is_zero: bool) -> *mut u8 {
        let request = Request { bytes: layout.size(), align: layout.align(), is_zero };
        match self.arena() {
            Some(arena) => arena.take(request, Hint::Near),
            None => ptr::null_mut(),
        }
    }
}

// SAFETY: blocks are as long and as aligned as asked for, and belong to the caller until they are
// given back. Nothing in here calls the program's allocator, nor panics.
unsafe impl GlobalAlloc for TiersAlloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout, false)
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.take(layout, true)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: a block of ours, as the caller promises.
        unsafe { free(block) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        match self.arena() {
            // SAFETY: a block of ours with that alignment, as the caller promises.
            Some(arena) => unsafe { arena.resize(block, bytes, layout.align()) },
            None => ptr::null_mut(),
        }
    }
}

/// An arena, or a line on standard error.
pub(crate) fn make(name: &str, policy: &str) -> Option<Arena> {
    let arena = policy.parse().and_then(|policy| Arena::new(name, policy));
    let error = match arena {
        Ok(arena) => return Some(arena),
        Err(error) => error,
    };
    let mut line = Line { text: [0; LINE_BYTES_MAX], length: 0 };
    // What does not fit is left out.
    let _ = writeln!(line, "rackpool_tiers: no arena for `{policy}`: {error}");
    let (text, length) = (line.text.as_ptr(), line.length);
    // SAFETY: writes from a buffer that has the length.
    unsafe { libc::write(libc::STDERR_FILENO, text.cast(), length) };
    None
}

/// A text without an allocation.
struct Line {
    text: [u8; LINE_BYTES_MAX],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = &mut self.text[self.length..];
        let length = more.len().min(room.len());
        room[..length].copy_from_slice(&more.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}
