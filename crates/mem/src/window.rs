//! Windows: pieces of memory that other processes or threads read and write at the same time.
//! A [`Window`] owns (jointly with its clones and slices) the mapping or the heap block behind
//! it and is the real world's [`Mem`]: everything in this crate and above touches shared memory
//! through it, with bounds and rights checked on every access.
//!
//! In: file descriptors of region sections (`region.rs`), or sizes for heap windows. Out: words
//! and copies for the engines, the rings and the fabrics; the kernel's own copies for sockets.
//! Offsets are bytes from the window's start. An access outside, a misaligned word or a write to
//! a read-only window is a bug of the caller and panics; nothing here ever faults, as long as no
//! process truncates the file.
//!
//! Ordering: `load` acquires, `store` releases, read-modify-writes are sequentially consistent,
//! `announce` is described at [`Mem::announce`]. Under loom and shuttle the memory is a
//! table of their atomics (`window/modelled.rs`).
//!
//! Source: DESIGN §1 (the seam), §2 (sections with rights of their own).

#[cfg(not(feature = "modelled"))]
mod mapped;
#[cfg(feature = "modelled")]
mod modelled;
#[cfg(not(feature = "modelled"))]
mod nodes;
#[cfg(not(feature = "modelled"))]
mod pass;
#[cfg(not(feature = "modelled"))]
mod process;

#[cfg(not(feature = "modelled"))]
#[cfg(not(feature = "modelled"))]
pub use mapped::{Access, MapOptions, Next, Piece, SEND_PIECES_MAX, Window, send_gather};
#[cfg(feature = "modelled")]
pub use modelled::ModelWindow as Window;
#[cfg(not(feature = "modelled"))]
pub(crate) use nodes::PAGE_BYTES;
#[cfg(not(feature = "modelled"))]
pub use pass::{PASS_STEP_BYTES, Pass};
#[cfg(not(feature = "modelled"))]
pub use process::{Bare, Wide, WordPattern, take_file};

#[cfg(doc)]
use rackpool_core::seam::Mem;

#[cold]
#[inline(never)]
fn out_of_window(offset: u64, bytes: u64, window_bytes: u64) -> ! {
    panic!("{bytes} bytes at offset {offset} are outside the window of {window_bytes} bytes");
}

// By value, as above: a reference would keep the offset on the stack.
#[cfg(not(feature = "modelled"))]
#[cold]
#[inline(never)]
fn misaligned(offset: u64) -> ! {
    panic!("what is at offset {offset} is not aligned");
}
