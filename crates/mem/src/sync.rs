//! The one place for atomics, fences and spin hints: the standard library's, or loom's models of
//! them under feature `loom` (every interleaving of a few steps, weak memory), or shuttle's under
//! feature `shuttle` (random schedules of longer programs, sequentially consistent), so that the
//! rings and the waiting are checked as they run.
//!
//! Used by every module of this crate that touches memory that other threads or processes see. A
//! compiler fence has no loom model; code that relies on one (the asymmetric announcement) has its
//! partner in the kernel's `membarrier`, and the loom tests check the variant with the full fence.

#[cfg(not(feature = "modelled"))]
pub use std::{
    hint::spin_loop,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering, compiler_fence, fence},
    thread::yield_now,
};

#[cfg(feature = "loom")]
pub use loom::{
    hint::spin_loop,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering, fence},
    thread::yield_now,
};

#[cfg(feature = "shuttle")]
pub use shuttle::{
    hint::spin_loop,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering, fence},
    thread::yield_now,
};

/// Orders everything before against everything after, for all processors.
#[cfg(all(not(feature = "modelled"), not(miri), target_arch = "x86_64"))]
#[inline]
pub fn full_fence() {
    // A locked operation on a line that is ours anyway orders as `mfence` does and costs half.
    // SAFETY: changes no byte: it ors zero to the top of this thread's own stack.
    unsafe { std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack)) };
}

/// Orders everything before against everything after, for all processors.
#[cfg(not(all(not(feature = "modelled"), not(miri), target_arch = "x86_64")))]
#[inline]
pub fn full_fence() {
    // SeqCst: pairs with the other party's fence of whichever protocol calls this.
    fence(Ordering::SeqCst);
}
