//! Copies as relaxed atomics of bytes and aligned words, with the fence that orders them: for
//! processors without assembly of ours, and for miri, which then proves the absence of undefined
//! behaviour. Called by `window.rs` through `copy.rs`; also tested natively.
//!
//! Accesses of different sizes to the same bytes can race between processes; the processors that
//! this serves define that, and no single process does it.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

macro_rules! piece {
    ($load:ident, $store:ident, $atomic:ty, $int:ty) => {
        /// Loads one aligned shared piece into private memory.
        unsafe fn $load(to: *mut u8, from: *const u8) {
            // SAFETY: the caller gives an aligned, valid shared address.
            let shared = unsafe { <$atomic>::from_ptr(from.cast_mut().cast()) };
            // Relaxed: the caller's fence orders the whole copy.
            let value = shared.load(Ordering::Relaxed);
            // SAFETY: the caller gives a valid private address of any alignment.
            unsafe { to.cast::<$int>().write_unaligned(value) };
        }

        /// Stores one aligned shared piece from private memory.
        unsafe fn $store(to: *mut u8, from: *const u8) {
            // SAFETY: the caller gives a valid private address of any alignment.
            let value = unsafe { from.cast::<$int>().read_unaligned() };
            // SAFETY: the caller gives an aligned, valid shared address.
            let shared = unsafe { <$atomic>::from_ptr(to.cast()) };
            // Relaxed: the caller's fence orders the whole copy.
            shared.store(value, Ordering::Relaxed);
        }
    };
}
piece!(load_1, store_1, AtomicU8, u8);
piece!(load_2, store_2, AtomicU16, u16);
piece!(load_4, store_4, AtomicU32, u32);
piece!(load_8, store_8, AtomicU64, u64);

type Move = unsafe fn(*mut u8, *const u8);

/// Moves `bytes` bytes in the largest pieces that the shared address allows. `moves` has the
/// moves of 1, 2, 4 and 8 bytes.
unsafe fn pieces(to: *mut u8, from: *const u8, bytes: usize, shared_addr: usize, moves: [Move; 4]) {
    let mut at = 0;
    while at < bytes {
        let log2 = [3, 2, 1, 0]
            .into_iter()
            .find(|l| bytes - at >= 1 << l && (shared_addr + at).is_multiple_of(1 << l))
            .expect("one byte always fits");
        // SAFETY: `at` < `bytes`, for which the caller vouches.
        let piece_to = unsafe { to.add(at) };
        // SAFETY: as above.
        let piece_from = unsafe { from.add(at) };
        // SAFETY: `1 << log2` bytes are left, and the shared address is aligned to them.
        unsafe { moves[log2](piece_to, piece_from) };
        at += 1 << log2;
    }
}

/// Copies `bytes` bytes of shared memory into private memory; acquire.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes, do not overlap, and `to` is the caller's own.
pub unsafe fn copy_out(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { pieces(to, from, bytes, from.addr(), [load_1, load_2, load_4, load_8]) };
    // Acquire: pairs with the Release fence in copy/portable.rs::copy_in and with every release
    // store of a value that was among the bytes.
    fence(Ordering::Acquire);
}

/// Copies `bytes` bytes of private memory into shared memory; release.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes, do not overlap, and `from` is the caller's own.
pub unsafe fn copy_in(to: *mut u8, from: *const u8, bytes: usize) {
    // Release: pairs with the Acquire fence in copy/portable.rs::copy_out.
    fence(Ordering::Release);
    // SAFETY: the caller's promise, passed on.
    unsafe { pieces(to, from, bytes, to.addr(), [store_1, store_2, store_4, store_8]) };
}

/// The part of a copy to `to` that [`copy_in_streaming`] makes around the caches: none, here.
#[cfg(any(not(target_arch = "x86_64"), miri))]
pub fn streamed(_to: *const u8, _bytes: usize) -> std::ops::Range<usize> {
    0..0
}

/// As [`copy_in`]; there is no store around the caches here.
///
/// # Safety
/// As [`copy_in`].
pub unsafe fn copy_in_streaming(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { copy_in(to, from, bytes) };
}

/// Sets `bytes` bytes of shared memory to zero; release.
///
/// # Safety
/// The range is valid for `bytes` bytes.
pub unsafe fn zero(to: *mut u8, bytes: usize) {
    const ZEROS: [u8; 256] = [0; 256];
    let mut at = 0;
    while at < bytes {
        let piece_bytes = ZEROS.len().min(bytes - at);
        // SAFETY: `at` < `bytes`, for which the caller vouches.
        let piece = unsafe { to.add(at) };
        // SAFETY: `piece_bytes` bytes are left of the caller's range.
        unsafe { copy_in(piece, ZEROS.as_ptr(), piece_bytes) };
        at += piece_bytes;
    }
}
