//! Copies in assembly for x86-64. From 16 to 64 bytes, and below where the length is known, they
//! are inlined SSE2 moves by size class, so that the common cache line costs four loads and four
//! stores; above, one call with AVX-512VL, AVX or SSE2 moves, and `rep movsb` from a size on where
//! the processor is fast at it. Called by `window.rs` through `copy.rs`.
//!
//! Each block is a compiler barrier for memory; loads stay before later loads and stores after
//! earlier stores by the processor's own order. `rep movsb` and streaming stores are weaker among
//! their own bytes, and streaming ones pass later stores until a fence of stores.

use std::arch::asm;
use std::sync::atomic::{AtomicU8, Ordering};

/// From this size on `rep movsb` is used if the processor has fast string moves (ERMS): where it
/// stops losing to the AVX loop, measured on AMD Zen 4 (2 KiB: 27 ns against 19; 4 KiB: 44 against
/// 48; 64 KiB and more: equal to the C library's memcpy).
const REP_BYTES_MIN: usize = 4096;

/// Copies `bytes` bytes of shared memory into private memory; acquire.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes, do not overlap, and `to` is the caller's own.
#[inline]
pub unsafe fn copy_out(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { copy(to, from, bytes) };
}

/// Copies `bytes` bytes of private memory into shared memory; release.
///
/// # Safety
/// Both ranges are valid for `bytes` bytes, do not overlap, and `from` is the caller's own.
#[inline]
pub unsafe fn copy_in(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { copy(to, from, bytes) };
}

/// The part of a copy to `to` that [`copy_in_streaming`] makes around the caches: whole lines.
pub fn streamed(to: *const u8, bytes: usize) -> std::ops::Range<usize> {
    let head_bytes = to.align_offset(64).min(bytes);
    head_bytes..head_bytes + ((bytes - head_bytes) & !63)
}

/// As [`copy_in`], with stores around the caches: for large data that is not read here soon. Later
/// stores may pass them until a fence of stores.
///
/// # Safety
/// As [`copy_in`].
pub unsafe fn copy_in_streaming(to: *mut u8, from: *const u8, bytes: usize) {
    let body = streamed(to, bytes);
    let (head_bytes, body_bytes, tail_at) = (body.start, body.len(), body.end);
    // SAFETY: `head_bytes` <= `bytes`, for which the caller vouches.
    unsafe { copy(to, from, head_bytes) };
    if body_bytes > 0 {
        // SAFETY: `head_bytes` < `bytes`.
        let body_to = unsafe { to.add(head_bytes) };
        // SAFETY: as above.
        let body_from = unsafe { from.add(head_bytes) };
        // SAFETY: a positive multiple of 64 bytes within the ranges, `body_to` aligned to 64.
        unsafe { stream_lines(body_to, body_from, body_bytes) };
    }
    // SAFETY: `tail_at` <= `bytes`.
    let tail_to = unsafe { to.add(tail_at) };
    // SAFETY: as above.
    let tail_from = unsafe { from.add(tail_at) };
    // SAFETY: what is left of the caller's ranges.
    unsafe { copy(tail_to, tail_from, bytes - tail_at) };
}

/// Sets `bytes` bytes of shared memory to zero; release.
///
/// # Safety
/// The range is valid for `bytes` bytes.
pub unsafe fn zero(to: *mut u8, bytes: usize) {
    // SAFETY: writes `bytes` bytes from `to` on, for which the caller vouches; the direction flag
    // is clear by the calling convention.
    unsafe {
        asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            in("eax") 0,
            options(nostack, preserves_flags)
        );
    }
}

#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    if bytes > 64 {
        // SAFETY: the caller's ranges, of more than 64 bytes.
        unsafe { copy_long(to, from, bytes) }
    } else if bytes > 32 {
        // SAFETY: the caller's ranges, of 33 to 64 bytes.
        unsafe { copy_32_to_64(to, from, bytes) }
    } else if bytes >= 16 {
        // SAFETY: the caller's ranges, of 16 to 32 bytes.
        unsafe { move_ends_16(to, from, bytes) }
    } else {
        // SAFETY: the caller's ranges, of less than 16 bytes.
        unsafe { copy_below_16(to, from, bytes) }
    }
}

#[inline(always)]
unsafe fn copy_32_to_64(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: reads and writes the first and the last 32 bytes of ranges of 32 to 64 bytes.
    unsafe {
        asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + {bytes} - 32]",
            "movups {d}, [{from} + {bytes} - 16]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + {bytes} - 32], {c}",
            "movups [{to} + {bytes} - 16], {d}",
            to = in(reg) to,
            from = in(reg) from,
            bytes = in(reg) bytes,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

macro_rules! move_once {
    ($name:ident, $register:ident, $modifier:literal) => {
        #[inline(always)]
        unsafe fn $name(to: *mut u8, from: *const u8) {
            // SAFETY: one load and one store of the caller's ranges, which are this long.
            unsafe {
                asm!(
                    concat!("mov {a", $modifier, "}, [{from}]"),
                    concat!("mov [{to}], {a", $modifier, "}"),
                    to = in(reg) to,
                    from = in(reg) from,
                    a = out($register) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}
move_once!(move_8, reg, ":r");
move_once!(move_4, reg, ":e");
move_once!(move_2, reg, ":x");
move_once!(move_1, reg_byte, "");

macro_rules! move_ends {
    ($name:ident, $register:ident, $modifier:literal, $mov:literal, $bytes:literal) => {
        #[inline(always)]
        unsafe fn $name(to: *mut u8, from: *const u8, bytes: usize) {
            // SAFETY: the first and the last bytes of ranges that are at least this long.
            unsafe {
                asm!(
                    concat!($mov, " {a", $modifier, "}, [{from}]"),
                    concat!($mov, " {b", $modifier, "}, [{from} + {bytes} - ", $bytes, "]"),
                    concat!($mov, " [{to}], {a", $modifier, "}"),
                    concat!($mov, " [{to} + {bytes} - ", $bytes, "], {b", $modifier, "}"),
                    to = in(reg) to,
                    from = in(reg) from,
                    bytes = in(reg) bytes,
                    a = out($register) _,
                    b = out($register) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}
move_ends!(move_ends_16, xmm_reg, "", "movups", "16");
move_ends!(move_ends_8, reg, ":r", "mov", "8");
move_ends!(move_ends_4, reg, ":e", "mov", "4");
move_ends!(move_ends_2, reg, ":x", "mov", "2");

/// Where the length is known, one of these moves; where it is not, a call: all of them together are
/// so much code that no caller would be inlined any more.
#[inline]
unsafe fn copy_below_16(to: *mut u8, from: *const u8, bytes: usize) {
    match bytes {
        // SAFETY: the caller's ranges, of exactly 8 bytes.
        8 => unsafe { move_8(to, from) },
        // SAFETY: the caller's ranges, of 9 to 15 bytes.
        9.. => unsafe { move_ends_8(to, from, bytes) },
        // SAFETY: the caller's ranges, of exactly 4 bytes.
        4 => unsafe { move_4(to, from) },
        // SAFETY: the caller's ranges, of 5 to 7 bytes.
        5.. => unsafe { move_ends_4(to, from, bytes) },
        // SAFETY: the caller's ranges, of 3 bytes.
        3 => unsafe { move_ends_2(to, from, bytes) },
        // SAFETY: the caller's ranges, of exactly 2 bytes.
        2 => unsafe { move_2(to, from) },
        // SAFETY: the caller's ranges, of exactly 1 byte.
        1 => unsafe { move_1(to, from) },
        0 => {}
    }
}

/// The bits that [`FEATURES`] may have.
const KNOWN: u8 = 1;
const HAS_AVX: u8 = 2;
const HAS_EVEX: u8 = 4;
const HAS_ERMS: u8 = 8;

/// What the processor can do; 0 until the first long copy has asked.
static FEATURES: AtomicU8 = AtomicU8::new(0);

/// For ranges of more than 64 bytes.
#[inline(never)]
unsafe fn copy_long(to: *mut u8, from: *const u8, bytes: usize) {
    // Relaxed: a byte that says the same whenever it is known.
    let features = FEATURES.load(Ordering::Relaxed);
    if bytes <= 256 && features & HAS_EVEX != 0 {
        // SAFETY: the caller's ranges, of 65 to 256 bytes; there is AVX-512VL.
        unsafe { copy_evex_256(to, from, bytes) }
    } else if features & KNOWN == 0 {
        // SAFETY: the caller's ranges, of more than 64 bytes.
        unsafe { copy_long_first(to, from, bytes) }
    } else if bytes >= REP_BYTES_MIN && features & HAS_ERMS != 0 {
        // SAFETY: the caller's ranges.
        unsafe { copy_rep(to, from, bytes) }
    } else if bytes < 128 || features & HAS_AVX == 0 {
        // SAFETY: the caller's ranges, of more than 64 bytes.
        unsafe { copy_sse(to, from, bytes) }
    } else if bytes <= 256 {
        // SAFETY: the caller's ranges, of 128 to 256 bytes; there is AVX.
        unsafe { copy_avx_256(to, from, bytes) }
    } else {
        // SAFETY: the caller's ranges, of more than 256 bytes; there is AVX.
        unsafe { copy_avx_loop(to, from, bytes) }
    }
}

/// As `copy_long`, after it has found out what the processor can do.
#[cold]
#[inline(never)]
unsafe fn copy_long_first(to: *mut u8, from: *const u8, bytes: usize) {
    let bit = |has: bool, bit: u8| if has { bit } else { 0 };
    let features = KNOWN
        | bit(std::is_x86_feature_detected!("avx"), HAS_AVX)
        | bit(std::is_x86_feature_detected!("avx512vl"), HAS_EVEX)
        | bit(std::is_x86_feature_detected!("ermsb"), HAS_ERMS);
    // Relaxed: see copy_long.
    FEATURES.store(features, Ordering::Relaxed);
    // SAFETY: the caller's ranges, passed on.
    unsafe { copy_long(to, from, bytes) };
}

unsafe fn copy_rep(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: copies the caller's ranges; the direction flag is clear by the calling convention.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
}

/// 64 bytes or more: whole lines, then the last 64 bytes once more.
unsafe fn copy_sse(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the loop stays below `bytes - 64`, the end is the last 64 bytes.
    unsafe {
        asm!(
            "xor {at:e}, {at:e}",
            "2:",
            "cmp {at}, {last}",
            "jae 3f",
            "movups {a}, [{from} + {at}]",
            "movups {b}, [{from} + {at} + 16]",
            "movups {c}, [{from} + {at} + 32]",
            "movups {d}, [{from} + {at} + 48]",
            "movups [{to} + {at}], {a}",
            "movups [{to} + {at} + 16], {b}",
            "movups [{to} + {at} + 32], {c}",
            "movups [{to} + {at} + 48], {d}",
            "add {at}, 64",
            "jmp 2b",
            "3:",
            "movups {a}, [{from} + {last}]",
            "movups {b}, [{from} + {last} + 16]",
            "movups {c}, [{from} + {last} + 32]",
            "movups {d}, [{from} + {last} + 48]",
            "movups [{to} + {last}], {a}",
            "movups [{to} + {last} + 16], {b}",
            "movups [{to} + {last} + 32], {c}",
            "movups [{to} + {last} + 48], {d}",
            to = in(reg) to,
            from = in(reg) from,
            last = in(reg) bytes - 64,
            at = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// Assembly with AVX: names registers itself, because the surrounding function is compiled
/// without AVX, and ends with `vzeroupper`, hence the clobbers.
macro_rules! avx {
    ($($line:literal,)* ; $($operands:tt)*) => {
        asm!(
            $($line,)*
            "vzeroupper",
            $($operands)*,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        )
    };
}

/// 64 to 256 bytes with the registers of AVX-512VL, which need no `vzeroupper`.
#[inline(always)]
unsafe fn copy_evex_256(to: *mut u8, from: *const u8, bytes: usize) {
    if bytes <= 128 {
        // SAFETY: the first and the last 64 bytes of ranges of 64 to 128 bytes.
        unsafe {
            asm!(
                "vmovdqu64 ymm16, [{from}]",
                "vmovdqu64 ymm17, [{from} + 32]",
                "vmovdqu64 ymm18, [{from} + {bytes} - 64]",
                "vmovdqu64 ymm19, [{from} + {bytes} - 32]",
                "vmovdqu64 [{to}], ymm16",
                "vmovdqu64 [{to} + 32], ymm17",
                "vmovdqu64 [{to} + {bytes} - 64], ymm18",
                "vmovdqu64 [{to} + {bytes} - 32], ymm19",
                to = in(reg) to,
                from = in(reg) from,
                bytes = in(reg) bytes,
                out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                options(nostack, preserves_flags)
            );
        }
    } else {
        // SAFETY: the first and the last 128 bytes of ranges of 128 to 256 bytes.
        unsafe {
            asm!(
                "vmovdqu64 ymm16, [{from}]",
                "vmovdqu64 ymm17, [{from} + 32]",
                "vmovdqu64 ymm18, [{from} + 64]",
                "vmovdqu64 ymm19, [{from} + 96]",
                "vmovdqu64 ymm20, [{from} + {bytes} - 128]",
                "vmovdqu64 ymm21, [{from} + {bytes} - 96]",
                "vmovdqu64 ymm22, [{from} + {bytes} - 64]",
                "vmovdqu64 ymm23, [{from} + {bytes} - 32]",
                "vmovdqu64 [{to}], ymm16",
                "vmovdqu64 [{to} + 32], ymm17",
                "vmovdqu64 [{to} + 64], ymm18",
                "vmovdqu64 [{to} + 96], ymm19",
                "vmovdqu64 [{to} + {bytes} - 128], ymm20",
                "vmovdqu64 [{to} + {bytes} - 96], ymm21",
                "vmovdqu64 [{to} + {bytes} - 64], ymm22",
                "vmovdqu64 [{to} + {bytes} - 32], ymm23",
                to = in(reg) to,
                from = in(reg) from,
                bytes = in(reg) bytes,
                out("xmm16") _, out("xmm17") _, out("xmm18") _, out("xmm19") _,
                out("xmm20") _, out("xmm21") _, out("xmm22") _, out("xmm23") _,
                options(nostack, preserves_flags)
            );
        }
    }
}

unsafe fn copy_avx_256(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the first and the last 128 bytes of ranges of 128 to 256 bytes.
    unsafe {
        avx!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovdqu ymm4, [{from} + {bytes} - 128]",
            "vmovdqu ymm5, [{from} + {bytes} - 96]",
            "vmovdqu ymm6, [{from} + {bytes} - 64]",
            "vmovdqu ymm7, [{from} + {bytes} - 32]",
            "vmovdqu [{to}], ymm0",
            "vmovdqu [{to} + 32], ymm1",
            "vmovdqu [{to} + 64], ymm2",
            "vmovdqu [{to} + 96], ymm3",
            "vmovdqu [{to} + {bytes} - 128], ymm4",
            "vmovdqu [{to} + {bytes} - 96], ymm5",
            "vmovdqu [{to} + {bytes} - 64], ymm6",
            "vmovdqu [{to} + {bytes} - 32], ymm7",
            ; to = in(reg) to, from = in(reg) from, bytes = in(reg) bytes
        );
    }
}

/// More than 256 bytes: the first 32, then aligned stores of 128 bytes, then the last 128.
unsafe fn copy_avx_loop(to: *mut u8, from: *const u8, bytes: usize) {
    let skip = 32 - to.addr() % 32;
    // SAFETY: the loop runs while `at` < `bytes - 128`, so it stays inside; the head has 32 and
    // the end 128 of more than 256 bytes; `to + at` is aligned to 32 in the loop.
    unsafe {
        avx!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm4, [{from} + {last}]",
            "vmovdqu ymm5, [{from} + {last} + 32]",
            "vmovdqu ymm6, [{from} + {last} + 64]",
            "vmovdqu ymm7, [{from} + {last} + 96]",
            "vmovdqu [{to}], ymm0",
            ".p2align 5",
            "2:",
            "vmovdqu ymm0, [{from} + {at}]",
            "vmovdqu ymm1, [{from} + {at} + 32]",
            "vmovdqu ymm2, [{from} + {at} + 64]",
            "vmovdqu ymm3, [{from} + {at} + 96]",
            "vmovdqa [{to} + {at}], ymm0",
            "vmovdqa [{to} + {at} + 32], ymm1",
            "vmovdqa [{to} + {at} + 64], ymm2",
            "vmovdqa [{to} + {at} + 96], ymm3",
            "sub {at}, -128",
            "cmp {at}, {last}",
            "jb 2b",
            "vmovdqu [{to} + {last}], ymm4",
            "vmovdqu [{to} + {last} + 32], ymm5",
            "vmovdqu [{to} + {last} + 64], ymm6",
            "vmovdqu [{to} + {last} + 96], ymm7",
            ; to = in(reg) to, from = in(reg) from, last = in(reg) bytes - 128,
            at = inout(reg) skip => _
        );
    }
}

/// Whole lines with streaming stores.
unsafe fn stream_lines(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller gives a positive multiple of 64 bytes and `to` aligned to 64.
    unsafe {
        asm!(
            "xor {at:e}, {at:e}",
            "2:",
            "movups {a}, [{from} + {at}]",
            "movups {b}, [{from} + {at} + 16]",
            "movups {c}, [{from} + {at} + 32]",
            "movups {d}, [{from} + {at} + 48]",
            "movntps [{to} + {at}], {a}",
            "movntps [{to} + {at} + 16], {b}",
            "movntps [{to} + {at} + 32], {c}",
            "movntps [{to} + {at} + 48], {d}",
            "add {at}, 64",
            "cmp {at}, {bytes}",
            "jb 2b",
            to = in(reg) to,
            from = in(reg) from,
            bytes = in(reg) bytes,
            at = out(reg) _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// A name, a copy, and the lengths that it is for.
#[cfg(test)]
pub(super) type Variant = (&'static str, unsafe fn(*mut u8, *const u8, usize), [usize; 2]);

/// Every variant that this processor can run, also those that `copy_long` would not choose here.
#[cfg(test)]
pub(super) fn variants() -> Vec<Variant> {
    let mut variants: Vec<Variant> =
        vec![("sse", copy_sse, [64, 5000]), ("rep", copy_rep, [0, 5000])];
    if std::is_x86_feature_detected!("avx") {
        variants.push(("avx 256", copy_avx_256, [128, 256]));
        variants.push(("avx loop", copy_avx_loop, [257, 5000]));
    }
    if std::is_x86_feature_detected!("avx512vl") {
        variants.push(("evex 256", copy_evex_256, [64, 256]));
    }
    variants
}
