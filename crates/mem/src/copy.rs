//! Copies between private memory and memory that other processes read and write at the same
//! time. On x86-64 they are inline assembly: a race on the bytes is then a matter of the
//! processor and not of the compiler, as it is for any device memory. Elsewhere, and under miri
//! they are relaxed atomics of bytes and words with a fence.
//!
//! Data: raw pointers that `window.rs`, the only caller, has checked against its bounds.
//!
//! Ordering: [`copy_out`] is an acquire (no later load passes it), [`copy_in`] a release (no
//! earlier store passes it). On x86-64 the processor's own order gives both and the assembly is a
//! compiler barrier. [`copy_in_streaming`] is in no order until a fence of stores. A copy of
//! exactly 1, 2, 4 or 8 aligned bytes is one access and cannot tear; a longer one may, and may
//! write a byte twice with the same value.
//!
//! Source: DESIGN §2 (aligned accesses up to 8 bytes); Intel SDM vol. 3 §9.1.1, §9.2.

#[cfg(any(not(target_arch = "x86_64"), miri, test))]
mod portable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64;

#[cfg(any(not(target_arch = "x86_64"), miri))]
pub use portable::{copy_in, copy_in_streaming, copy_out, streamed, zero};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub use x86_64::{copy_in, copy_in_streaming, copy_out, streamed, zero};

/// Asks for the line at `at`, which need not be valid.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // Into the second cache: the first one's few outstanding misses would bound a batch.
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch is a hint and never faults; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// As [`prefetch`], to write there: other processors' copies of the line are given up.
#[inline(always)]
pub(crate) fn prefetch_write(at: *mut u8) {
    // `_mm_prefetch` asks for writing only of processors that the compiler was told of.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint and never faults; a processor that does not know this one
    // ignores it.
    unsafe {
        std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::portable;

    type Copy = unsafe fn(*mut u8, *const u8, usize);

    const GUARD: usize = 96;

    fn check(name: &str, copy: Copy, bytes: usize, to_shift: usize, from_shift: usize) {
        let mut from = vec![0u8; bytes + 2 * GUARD];
        for (i, byte) in from.iter_mut().enumerate() {
            *byte = (i * 31 + bytes) as u8 | 1;
        }
        let mut to = vec![0u8; bytes + 2 * GUARD];
        let (to_at, from_at) = (GUARD + to_shift, GUARD + from_shift);
        // SAFETY: the shifts are below GUARD, so `bytes` bytes lie in `to` behind this.
        let to_pointer = unsafe { to.as_mut_ptr().add(to_at) };
        // SAFETY: as above, in `from`.
        let from_pointer = unsafe { from.as_ptr().add(from_at) };
        // SAFETY: both ranges are `bytes` long and lie in vectors of their own.
        unsafe { copy(to_pointer, from_pointer, bytes) };
        let context = format!("{name} {bytes} bytes, shifts {to_shift} {from_shift}");
        assert_eq!(to[to_at..to_at + bytes], from[from_at..from_at + bytes], "{context}");
        assert!(to[..to_at].iter().all(|b| *b == 0), "{context}: wrote before");
        assert!(to[to_at + bytes..].iter().all(|b| *b == 0), "{context}: wrote behind");
    }

    #[test]
    fn every_copy_moves_exactly_its_bytes_at_every_length_and_alignment() {
        let copies: [(&str, Copy); 6] = [
            ("out", super::copy_out),
            ("in", super::copy_in),
            ("streaming", super::copy_in_streaming),
            ("portable out", portable::copy_out),
            ("portable in", portable::copy_in),
            ("portable streaming", portable::copy_in_streaming),
        ];
        let lengths: Vec<usize> = if cfg!(miri) {
            (0..20).chain([63, 64, 65, 300]).collect()
        } else {
            (0..530).chain([1023, 1024, 1025, 4095, 4096, 4097, 20_000]).collect()
        };
        for (name, copy) in copies {
            for &bytes in &lengths {
                for (to_shift, from_shift) in [(0, 0), (1, 0), (0, 3), (8, 4), (7, 7), (33, 18)] {
                    check(name, copy, bytes, to_shift, from_shift);
                }
            }
        }
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn every_variant_of_this_processor_moves_exactly_its_bytes() {
        for (name, copy, [from, to]) in super::x86_64::variants() {
            for bytes in (from..=to).step_by(1 + (to - from) / 500) {
                for (to_shift, from_shift) in [(0, 0), (1, 0), (0, 3), (31, 17)] {
                    check(name, copy, bytes, to_shift, from_shift);
                }
            }
            check(name, copy, to, 5, 0);
        }
    }

    #[test]
    fn zero_clears_exactly_its_bytes() {
        type Zero = unsafe fn(*mut u8, usize);
        for zero in [super::zero as Zero, portable::zero] {
            for bytes in [0usize, 1, 7, 8, 9, 64, 100, 4096, 4099] {
                let mut memory = vec![0xffu8; bytes + 32];
                // SAFETY: 13 + bytes are within the vector.
                let pointer = unsafe { memory.as_mut_ptr().add(13) };
                // SAFETY: as above.
                unsafe { zero(pointer, bytes) };
                assert!(memory[..13].iter().all(|b| *b == 0xff));
                assert!(memory[13..13 + bytes].iter().all(|b| *b == 0));
                assert!(memory[13 + bytes..].iter().all(|b| *b == 0xff));
            }
        }
    }
}
