//! Writing this processor's cache lines back, and dropping them, for memory that no hardware keeps
//! coherent between hosts. Owns nothing; called by [`crate::window`] and [`crate::persist`] alone,
//! with ranges that they have checked.
//!
//! Ordering: both wait until the memory has the lines, and order everything before against
//! everything after. On x86-64 `clwb` (where there is none, `clflushopt` or `clflush`) writes back,
//! `clflushopt` drops after writing back; neither is ordered with later loads of other lines, so a
//! full fence follows. On aarch64 `dc cvac` and `dc civac` with `dsb sy`, up to the point of
//! coherency, which is behind all caches of the host.
//!
//! Source: Intel SDM vol. 2, CLWB, CLFLUSHOPT; Arm ARM D7.5.9; decision 0040.

/// What is written back at once at least on every processor here, bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE_BYTES: usize = 64;

/// Whether this processor lets programs do both.
pub fn is_supported() -> bool {
    cfg!(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))
}

/// The instruction that writes a line back here; `None` without one.
pub fn instruction() -> Option<&'static str> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    return Some(match kind() {
        FlushInstruction::WriteBack => "clwb",
        FlushInstruction::Optimized => "clflushopt",
        FlushInstruction::Plain => "clflush",
    });
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    is_supported().then_some("dc cvac")
}

/// Writes the lines of a range back; they may stay.
///
/// # Safety
/// The range is mapped.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub unsafe fn write_back(from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { begin_write_back(from, bytes) };
    wait();
}

/// As [`write_back`], without waiting for the memory.
///
/// # Safety
/// The range is mapped.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) unsafe fn begin_write_back(from: *const u8, bytes: usize) {
    let kind = kind();
    for line in lines(from, bytes, LINE_BYTES) {
        match kind {
            // SAFETY: the line is the caller's; the processor has the instruction.
            FlushInstruction::WriteBack => unsafe {
                asm!("clwb [{}]", in(reg) line, options(nostack))
            },
            // SAFETY: as above.
            FlushInstruction::Optimized => unsafe {
                asm!("clflushopt [{}]", in(reg) line, options(nostack))
            },
            // SAFETY: as above; part of SSE2.
            FlushInstruction::Plain => unsafe {
                asm!("clflush [{}]", in(reg) line, options(nostack))
            },
        }
    }
}

/// Writes the lines of a range back and drops them.
///
/// # Safety
/// The range is mapped.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub unsafe fn drop_lines(from: *const u8, bytes: usize) {
    let is_plain = kind() == FlushInstruction::Plain;
    for line in lines(from, bytes, LINE_BYTES) {
        if is_plain {
            // SAFETY: the line is the caller's; part of SSE2.
            unsafe { asm!("clflush [{}]", in(reg) line, options(nostack)) };
        } else {
            // SAFETY: the line is the caller's; the processor has the instruction.
            unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack)) };
        }
    }
    wait();
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use std::arch::asm;

/// Addresses of the lines of a range.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(crate) fn lines(
    from: *const u8,
    bytes: usize,
    line_bytes: usize,
) -> impl Iterator<Item = usize> {
    let first = from.addr() & !(line_bytes - 1);
    (first..from.addr() + bytes).step_by(line_bytes)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[derive(Clone, Copy, PartialEq, Eq)]
enum FlushInstruction {
    Plain,
    Optimized,
    WriteBack,
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn kind() -> FlushInstruction {
    static KIND: std::sync::OnceLock<FlushInstruction> = std::sync::OnceLock::new();
    *KIND.get_or_init(|| {
        let features = std::arch::x86_64::__cpuid_count(7, 0).ebx;
        match (features >> 24 & 1, features >> 23 & 1) {
            (1, 1) => FlushInstruction::WriteBack,
            (_, 1) => FlushInstruction::Optimized,
            _ => FlushInstruction::Plain,
        }
    })
}

/// Until the memory has what was written back, and before any later load.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn wait() {
    // SAFETY: a fence changes nothing; part of SSE2.
    unsafe { asm!("mfence", options(nostack)) };
}

/// As on x86-64.
///
/// # Safety
/// The range is mapped.
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub unsafe fn write_back(from: *const u8, bytes: usize) {
    for line in lines(from, bytes, line_bytes()) {
        // SAFETY: the line is the caller's; Linux lets programs do this.
        unsafe { asm!("dc cvac, {}", in(reg) line, options(nostack)) };
    }
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("dsb sy", options(nostack)) };
}

/// As on x86-64.
///
/// # Safety
/// The range is mapped.
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub unsafe fn drop_lines(from: *const u8, bytes: usize) {
    for line in lines(from, bytes, line_bytes()) {
        // SAFETY: the line is the caller's; Linux lets programs do this.
        unsafe { asm!("dc civac, {}", in(reg) line, options(nostack)) };
    }
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("dsb sy", options(nostack)) };
}

/// The smallest line of this processor's data caches.
#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(crate) fn line_bytes() -> usize {
    let register: u64;
    // SAFETY: a register that programs may read.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) register, options(nomem, nostack)) };
    4 << (register >> 16 & 0xf)
}

/// Never called: see [`is_supported`].
///
/// # Safety
/// Touches nothing.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub unsafe fn write_back(_from: *const u8, _bytes: usize) {
    unreachable!("memory is software-coherent only where lines can be written back");
}

/// Never called: see [`is_supported`].
///
/// # Safety
/// Touches nothing.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub unsafe fn drop_lines(_from: *const u8, _bytes: usize) {
    unreachable!("memory is software-coherent only where lines can be dropped");
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn lines_cover_their_range_and_nothing_behind() {
        let at = |address: usize| std::ptr::without_provenance::<u8>(address);
        let of = |from, bytes| lines(at(from), bytes, 64).collect::<Vec<_>>();
        assert_eq!(of(128, 64), [128]);
        assert_eq!(of(190, 3), [128, 192]);
        assert_eq!(of(191, 1), [128]);
        assert!(of(128, 0).is_empty());
    }

    #[test]
    fn nothing_that_was_stored_is_lost() {
        let bytes: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        // SAFETY: the vector's own bytes.
        unsafe { write_back(bytes.as_ptr(), bytes.len()) };
        // SAFETY: as above.
        unsafe { drop_lines(bytes.as_ptr(), bytes.len()) };
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}
