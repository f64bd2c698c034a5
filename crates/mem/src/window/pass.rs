//! Passes over memory that load or store every line once and compute nothing: for measuring how
//! fast a memory is. What is stored is no data. Called by `rackpool-tiers`. See `window.rs`.
//!
//! On x86-64 four moves of 16 bytes a line, which is more than any core gets from memory, so that
//! no wider registers are needed.

use super::Window;

/// Lines in turn that a pass treats by its pattern, bytes.
pub const PASS_STEP_BYTES: u64 = 256;

/// What is done with each four lines in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Load4,
    Load3Store1,
    /// A line is loaded, the next one stored.
    Load2Store2,
    Store4,
    /// Stores around the caches, all done when the pass returns. Elsewhere than on x86-64 as
    /// `Store4`.
    Stream4,
}

impl Window {
    /// Goes over `bytes` bytes at `offset` once, upwards. What is stored has all bits set: some
    /// processors keep lines of zeros out of their memory traffic.
    ///
    /// # Panics
    /// Outside the window; if the part does not begin at a cache line or is no multiple of
    /// [`PASS_STEP_BYTES`]; if it stores to a read-only window.
    pub fn pass(&self, offset: u64, bytes: u64, pass: Pass) {
        let start = match pass {
            Pass::Load4 => self.readable(offset, bytes),
            _ => self.writable(offset, bytes),
        };
        assert!(start.addr().is_multiple_of(64), "a pass begins at a line, not at {offset}");
        assert!(bytes.is_multiple_of(PASS_STEP_BYTES), "a pass of {bytes} bytes");
        let steps = (bytes / PASS_STEP_BYTES) as usize;
        for step in 0..steps {
            // SAFETY: inside the part, for which the window vouches.
            let at = unsafe { start.add(step * PASS_STEP_BYTES as usize) };
            // SAFETY: four lines inside the part, aligned, writable unless they are only loaded.
            unsafe { imp::step(at, pass) };
        }
        if pass == Pass::Stream4 {
            imp::finish();
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use super::Pass;
    use std::arch::asm;

    macro_rules! each_16 {
        ($before:literal, $line:literal, $after:literal) => {
            concat!(
                concat!($before, "[{at} + ", $line, "]", $after, "\n"),
                concat!($before, "[{at} + ", $line, " + 16]", $after, "\n"),
                concat!($before, "[{at} + ", $line, " + 32]", $after, "\n"),
                concat!($before, "[{at} + ", $line, " + 48]", $after),
            )
        };
    }
    macro_rules! line {
        (load $line:literal) => {
            each_16!("movaps xmm0, ", $line, "")
        };
        (store $line:literal) => {
            each_16!("movaps ", $line, ", xmm1")
        };
        (stream $line:literal) => {
            each_16!("movntps ", $line, ", xmm1")
        };
    }
    macro_rules! step {
        ($at:ident, $first:ident, $second:ident, $third:ident, $fourth:ident) => {
            // SAFETY: loads or stores the 256 bytes at `at`, which is aligned, for which the
            // caller vouches.
            unsafe {
                asm!(
                    "pcmpeqd xmm1, xmm1",
                    line!($first 0),
                    line!($second 64),
                    line!($third 128),
                    line!($fourth 192),
                    at = in(reg) $at,
                    out("xmm0") _,
                    out("xmm1") _,
                    options(nostack, preserves_flags)
                );
            }
        };
    }

    /// # Safety
    /// The 256 bytes at `at` are valid, aligned to 64, and writable if the pass stores.
    #[inline(always)]
    pub(super) unsafe fn step(at: *mut u8, pass: Pass) {
        match pass {
            Pass::Load4 => step!(at, load, load, load, load),
            Pass::Load3Store1 => step!(at, load, load, load, store),
            Pass::Load2Store2 => step!(at, load, store, load, store),
            Pass::Store4 => step!(at, store, store, store, store),
            Pass::Stream4 => step!(at, stream, stream, stream, stream),
        }
    }

    /// Until the streaming stores before it are done.
    pub(super) fn finish() {
        // SAFETY: a fence.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod imp {
    use super::Pass;
    use std::hint::black_box;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// # Safety
    /// The 256 bytes at `at` are valid, aligned to 64, and writable if the pass stores.
    #[inline(always)]
    pub(super) unsafe fn step(at: *mut u8, pass: Pass) {
        let stores = match pass {
            Pass::Load4 => [false; 4],
            Pass::Load3Store1 => [false, false, false, true],
            Pass::Load2Store2 => [false, true, false, true],
            Pass::Store4 | Pass::Stream4 => [true; 4],
        };
        for word in 0..32 {
            // SAFETY: the caller vouches for 32 words.
            let at = unsafe { at.cast::<u64>().add(word) };
            // SAFETY: valid and aligned; all access in this process is atomic or by `copy`.
            let at = unsafe { AtomicU64::from_ptr(at) };
            // Relaxed: no thread reads what is stored, and what is loaded is thrown away.
            if stores[word / 8] {
                at.store(u64::MAX, Ordering::Relaxed);
            } else {
                black_box(at.load(Ordering::Relaxed));
            }
        }
    }

    pub(super) fn finish() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use rackpool_core::seam::Mem;

    #[test]
    fn a_pass_stores_to_its_lines_and_to_no_others() {
        for (pass, stored) in [
            (Pass::Load4, [false; 4]),
            (Pass::Load3Store1, [false, false, false, true]),
            (Pass::Load2Store2, [false, true, false, true]),
            (Pass::Store4, [true; 4]),
            (Pass::Stream4, [true; 4]),
        ] {
            let window = Window::heap(4096);
            window.pass(1024, 2048, pass);
            for word in 0..512 {
                let (offset, line) = (word * 8, word as usize / 8 % 4);
                let is_stored = (1024..3072).contains(&offset) && stored[line];
                let expected = if is_stored { u64::MAX } else { 0 };
                assert_eq!(window.load(offset), expected, "{pass:?} at {offset}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside the window")]
    fn a_pass_beyond_the_end_is_refused() {
        Window::heap(4096).pass(2048, 4096, Pass::Load4);
    }

    #[test]
    #[should_panic(expected = "a pass of 100 bytes")]
    fn a_part_of_a_step_is_refused() {
        Window::heap(4096).pass(0, 100, Pass::Load4);
    }
}
