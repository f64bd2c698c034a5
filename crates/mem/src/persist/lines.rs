//! The instructions that make a store safe from a loss of power, on each processor. Owns nothing;
//! called by [`super::PersistentWindow`], with ranges that it has checked.
//!
//! On x86-64 a line that was written back (`clwb`, or what the processor has) or stored around the
//! caches has reached the memory controller when `sfence` is over. On aarch64 `dc cvap` writes back
//! to the point of persistence and `dsb` waits for it; `dc cvac` reaches the point of coherency
//! alone, so a processor without `dc cvap` is refused. Elsewhere there is nothing.
//!
//! Source: Intel SDM vol. 2, CLWB; Arm ARM D7.5.9 (DC CVAP), FEAT_DPB.

/// Whether stores can be sent on to where a loss of power spares them.
pub(super) fn is_supported() -> bool {
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        /// `HWCAP_DCPOP`: there is `dc cvap`.
        const DCPOP: usize = 1 << 16;
        rustix::param::linux_hwcap().0 & DCPOP != 0
    }
    #[cfg(not(all(target_arch = "aarch64", not(miri))))]
    {
        cfg!(all(target_arch = "x86_64", not(miri)))
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use crate::caches::begin_write_back as send;

/// Waits until everything that this thread sent, and stored around the caches, has arrived.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) fn fence() {
    // SAFETY: a fence changes nothing; part of SSE.
    unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) };
}

/// Sends the lines of a range to where a loss of power spares them.
///
/// # Safety
/// The range is mapped, and [`is_supported`].
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(super) unsafe fn send(from: *const u8, bytes: usize) {
    use crate::caches::{line_bytes, lines};
    for line in lines(from, bytes, line_bytes()) {
        // `dc cvap`, by its number: an assembler for the first aarch64 does not know its name.
        // SAFETY: the line is the caller's; Linux lets programs do this.
        unsafe { std::arch::asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(super) fn fence() {
    // SAFETY: a barrier changes nothing.
    unsafe { std::arch::asm!("dsb sy", options(nostack)) };
}

/// Never called, since [`is_supported`] says no.
///
/// # Safety
/// Touches nothing.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) unsafe fn send(_from: *const u8, _bytes: usize) {
    unreachable!("memory is mapped as persistent only where lines can be sent there");
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) fn fence() {
    unreachable!("memory is mapped as persistent only where lines can be sent there");
}
