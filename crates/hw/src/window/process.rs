//! What a window offers to a program that keeps much private data in one: memory of this process
//! alone on huge pages, comparison with private bytes without a copy, and copies to the end of a
//! vector without zeroing it first. See `window.rs`.
//!
//! And memory that processes share without a file's name. Called by the key-value cache.

use super::mapped::{Owner, Window};
use super::{Access, MapOptions};
use crate::copy;
use crate::sync::{AtomicU64, Ordering};
use rackpool_core::seam::Mem;
use rustix::fd::BorrowedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// Size and alignment of the huge pages that are asked for.
const HUGE_BYTES: usize = 2 << 20;

impl Window {
    /// A window of zeroed memory of this process. From 2 MiB on it is aligned to them, and huge
    /// pages are asked for; whether they come is the system's decision. Less has whole pages of its
    /// own. Pages are taken at their first use.
    ///
    /// # Errors
    /// What the system says; invalid input for 0 bytes or more than the address space.
    pub fn private(bytes: u64) -> io::Result<Window> {
        let invalid = || {
            let what = format!("a mapping of {bytes} bytes");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        let size = usize::try_from(bytes).ok().filter(|size| *size > 0).ok_or_else(invalid)?;
        // Less than a huge page would take all of one.
        let unit = if size < HUGE_BYTES { rustix::param::page_size() } else { HUGE_BYTES };
        let kept = size.checked_next_multiple_of(unit).ok_or_else(invalid)?;
        let asked = kept.checked_add(unit).ok_or_else(invalid)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the kernel likes replaces nothing.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), asked, rights, flags) }?;
        let before = start.cast::<u8>().align_offset(unit);
        // SAFETY: `before` < `unit` bytes, inside the mapping.
        let base = unsafe { start.cast::<u8>().add(before) };
        // SAFETY: `before` + `kept` <= `asked`.
        let end = unsafe { base.add(kept) };
        if before > 0 {
            // SAFETY: the front of the new mapping, which nobody uses; whole pages.
            unsafe { munmap(start, before) }?;
        }
        if unit > before {
            // SAFETY: the end of the new mapping, as above.
            unsafe { munmap(end.cast(), unit - before) }?;
        }
        let base = NonNull::new(base).expect("mmap never answers null");
        let owner = Owner::Map { base, bytes: kept };
        let window = Window::new(base, bytes, Access::ReadWrite, owner);
        // SAFETY: only decides what a fork inherits; the mapping is whole and ours.
        unsafe { madvise(base.as_ptr().cast(), kept, Advice::LinuxDontFork) }?;
        if unit == HUGE_BYTES {
            // SAFETY: only changes how the mapping is backed. Its failure means that this system
            // has no transparent huge pages, which an advice may meet.
            let _ = unsafe { madvise(base.as_ptr().cast(), kept, Advice::LinuxHugepage) };
        }
        Ok(window)
    }

    /// A window on all of a file that is made `bytes` bytes long and takes its memory at once, so
    /// that no later access finds the file system full. What the file holds stays.
    ///
    /// # Errors
    /// What the system says: above all, that there is not so much memory.
    pub fn of_file(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Window> {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)?;
        let options = MapOptions { huge_advice: true, ..MapOptions::default() };
        Window::map(file, bytes, Access::ReadWrite, options)
    }

    /// A window of zeroed memory that is taken at once, and the descriptor by which other processes
    /// map it: memory without a file's name, whose length nobody can change any more. `name` is
    /// what the system's lists show.
    ///
    /// # Errors
    /// What the system says: above all, that there is not so much memory.
    pub fn shared(name: &str, bytes: u64) -> io::Result<(OwnedFd, Window)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags)?;
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let window = Window::of_file(fd.as_fd(), bytes)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        Ok((fd, window))
    }

    /// Whether the bytes at `offset` are `bytes`. Later loads do not pass the comparison.
    ///
    /// # Panics
    /// Outside the window, or if `offset` is not a multiple of 8.
    #[inline(always)]
    pub fn equals(&self, offset: u64, bytes: &[u8]) -> bool {
        self.delay();
        self.as_bare().equals(offset, bytes)
    }

    /// Which of the eight words of the line at `offset` have the bits of `value` under `mask` in
    /// their upper halves, a bit each. Each word is read once; the line as a whole may tear.
    /// Acquire.
    ///
    /// # Panics
    /// Outside the window, or if `offset` is not a multiple of 64.
    #[inline(always)]
    pub fn match_line(&self, offset: u64, mask: u32, value: u32) -> u32 {
        match_halves(self.as_bare().line(offset), mask, value)
    }

    /// The memory alone, for tight loops over a window without a delay.
    ///
    /// # Panics
    /// If the window has one.
    pub fn bare(&self) -> Bare<'_> {
        assert!(!self.has_delay(), "a bare window cannot wait");
        self.as_bare()
    }

    #[inline(always)]
    fn as_bare(&self) -> Bare<'_> {
        let base = NonNull::new(self.readable(0, 0)).expect("a window is not null");
        Bare { base, bytes: self.bytes(), window: PhantomData }
    }

    /// Copies `bytes` bytes at `offset` to another window, whose memory nobody reads meanwhile, as
    /// by [`Mem::copy_out`].
    ///
    /// # Panics
    /// Outside either window.
    #[inline(always)]
    pub fn copy_to(&self, offset: u64, bytes: u64, to: &Window, to_offset: u64) {
        self.delay();
        let from = self.readable(offset, bytes);
        let to = to.writable(to_offset, bytes);
        let size = usize::try_from(bytes).expect("inside a window");
        // SAFETY: both ranges are valid for `size` bytes; if they overlap, bytes are lost and none
        // is touched beyond them.
        unsafe { copy::copy_out(to, from, size) };
    }

    /// Appends `bytes` bytes at `offset` to a vector, in one copy.
    ///
    /// # Panics
    /// Outside the window.
    #[inline]
    pub fn append_to(&self, offset: u64, bytes: u64, to: &mut Vec<u8>) {
        let from = self.readable(offset, bytes);
        let size = usize::try_from(bytes).expect("inside a window");
        to.reserve(size);
        let length = to.len();
        let spare = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        // SAFETY: `from` is valid for `size` bytes, and so is `spare` after the reservation.
        unsafe { copy::copy_out(spare, from, size) };
        // SAFETY: the bytes up to there have been written.
        unsafe { to.set_len(length + size) };
    }
}

/// The memory of a [`Window`]: start and length, by value, so that they stay in registers however
/// often memory is touched. Loads only.
#[derive(Clone, Copy, Debug)]
pub struct Bare<'a> {
    base: NonNull<u8>,
    bytes: u64,
    window: PhantomData<&'a Window>,
}

impl Bare<'_> {
    #[inline(always)]
    fn at(self, offset: u64, bytes: u64) -> *mut u8 {
        // In a loop, with a length that is known, this is one comparison.
        if bytes > self.bytes || offset > self.bytes - bytes {
            super::out_of_window(offset, bytes, self.bytes);
        }
        // SAFETY: `offset` <= the window's length, all of it in one allocation.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    #[inline(always)]
    fn word(&self, offset: u64) -> &AtomicU64 {
        let at = self.at(offset, 8).cast::<u64>();
        if !at.is_aligned() {
            super::misaligned(offset);
        }
        // SAFETY: aligned, and inside the window, which lives as long as `self`; see
        // `Window::atomic_u64`.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// As [`Mem::load`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn load(&self, offset: u64) -> u64 {
        // Acquire: pairs with the Release in window/mapped.rs::store of whoever shares the word.
        self.word(offset).load(Ordering::Acquire)
    }

    /// As [`Window::equals`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn equals(self, offset: u64, bytes: &[u8]) -> bool {
        let at = self.at(offset, bytes.len() as u64).cast::<u64>();
        if !at.is_aligned() {
            super::misaligned(offset);
        }
        let (words, rest) = bytes.as_chunks::<8>();
        let word = |index: usize| {
            // SAFETY: called for whole words of the range that was checked above.
            let at = unsafe { at.add(index) };
            // SAFETY: aligned, and inside the window; see `Window::atomic_u64`.
            let there = unsafe { AtomicU64::from_ptr(at) };
            // Acquire: pairs with the Release in window/mapped.rs::store of whoever shares it.
            there.load(Ordering::Acquire) ^ u64::from_le_bytes(words[index])
        };
        // The length of many keys, without a loop.
        if bytes.len() == 16 {
            return word(0) | word(1) == 0;
        }
        (0..words.len()).all(|index| word(index) == 0)
            && (rest.is_empty() || self.tail_equals(offset + 8 * words.len() as u64, rest))
    }

    #[inline(never)]
    fn tail_equals(self, offset: u64, rest: &[u8]) -> bool {
        let mut tail = [0; 8];
        // SAFETY: valid for the length of `rest`, at most 7 bytes; `tail` is private.
        unsafe {
            copy::copy_out(tail.as_mut_ptr(), self.at(offset, rest.len() as u64), rest.len())
        };
        tail[..rest.len()] == *rest
    }

    /// As [`Window::match_line`] for the first `words` words: the first that matches and its
    /// value, or, if none does, the word behind them. Without branches.
    ///
    /// # Panics
    /// As there; for more than 7 words.
    #[inline(always)]
    pub fn first_match(&self, offset: u64, mask: u32, value: u32, words: u32) -> (u32, u64) {
        assert!(words < 8, "{words} words and the one behind are more than a line");
        let line = self.line(offset);
        let found = match_halves(line, mask, value) | (1 << words);
        let first = found.trailing_zeros();
        // Acquire: pairs with the Release in window/mapped.rs::store of whoever shares the word.
        (first, line[first as usize & 7].load(Ordering::Acquire))
    }

    #[inline(always)]
    fn line(&self, offset: u64) -> &[AtomicU64; 8] {
        let at = self.at(offset, 64).cast::<[AtomicU64; 8]>();
        if !at.addr().is_multiple_of(64) {
            super::misaligned(offset);
        }
        // SAFETY: aligned, and inside the window, which lives as long as `self`; all access in
        // this process is atomic or by `copy`, whose races are defined.
        unsafe { &*at }
    }

    /// As [`Mem::prefetch`], of any offset: outside the window nothing is gained, and nothing lost.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64) {
        copy::prefetch(self.base.as_ptr().wrapping_add(offset as usize));
    }
}

#[inline(always)]
fn match_halves(line: &[AtomicU64; 8], mask: u32, value: u32) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: one aligned line inside the window.
    return unsafe { match_halves_sse2(line.as_ptr().cast(), mask, value) };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    (0..8).fold(0, |found, word| {
        // Acquire: pairs with the Release in window/mapped.rs::store of whoever shares it.
        let half = (line[word].load(Ordering::Acquire) >> 32) as u32;
        found | (u32::from((half ^ value) & mask == 0) << word)
    })
}

/// As [`Window::match_line`], by what every x86-64 processor has: the upper halves of four words at
/// a time are gathered and compared, and what was found is packed to a byte, then a bit, each.
///
/// # Safety
/// The line is readable and aligned.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn match_halves_sse2(line: *const u8, mask: u32, value: u32) -> u32 {
    use std::arch::x86_64::_mm_set1_epi32;
    // SAFETY: SSE2 is part of x86-64.
    let of = |half: u32| unsafe { _mm_set1_epi32(half.cast_signed()) };
    let (mask, value) = (of(mask), of(value & mask));
    let found: u32;
    // SAFETY: reads the caller's line and no other memory.
    unsafe {
        std::arch::asm!(
            "movaps {low}, [{line}]",
            "movaps {high}, [{line} + 32]",
            "shufps {low}, [{line} + 16], 0xdd",
            "shufps {high}, [{line} + 48], 0xdd",
            "pand {low}, {mask}",
            "pand {high}, {mask}",
            "pcmpeqd {low}, {value}",
            "pcmpeqd {high}, {value}",
            "packssdw {low}, {high}",
            "packsswb {low}, {low}",
            "pmovmskb {found:e}, {low}",
            value = in(xmm_reg) value,
            mask = in(xmm_reg) mask,
            line = in(reg) line,
            found = out(reg) found,
            low = out(xmm_reg) _,
            high = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
    found & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_memory_is_aligned_zeroed_and_refused_at_no_size() {
        let window = Window::private(3 << 20).unwrap();
        assert_eq!(window.bytes(), 3 << 20);
        assert_eq!(window.load((3 << 20) - 8), 0);
        window.store((3 << 20) - 8, 5);
        assert_eq!(window.load((3 << 20) - 8), 5);
        assert_eq!(window.bare().load((3 << 20) - 8), 5);
        let small = Window::private(5000).unwrap();
        small.store(4992, 7);
        assert_eq!((small.bytes(), small.load(0), small.load(4992)), (5000, 0, 7));
        assert!(Window::private(0).is_err());
        assert!(Window::private(u64::MAX).is_err());
    }

    #[test]
    fn bytes_are_compared_at_every_length() {
        let window = Window::heap(256);
        let bytes: Vec<u8> = (1..100).collect();
        window.copy_in(8, &bytes);
        for length in 0..bytes.len() {
            assert!(window.equals(8, &bytes[..length]));
            for wrong in 0..length {
                let mut other = bytes[..length].to_vec();
                other[wrong] ^= 0x40;
                assert!(!window.equals(8, &other), "{length} {wrong}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside the window")]
    fn a_bare_window_has_the_same_end() {
        let _ = Window::heap(64).slice(0, 56).bare().load(56);
    }

    #[test]
    #[should_panic(expected = "outside the window")]
    fn a_comparison_beyond_the_window_panics_even_if_it_would_end_before() {
        let _ = Window::heap(64).equals(56, &[1; 9]);
    }

    #[test]
    fn the_upper_halves_of_a_line_are_matched_under_the_mask() {
        let window = Window::heap(4096);
        for word in 0..8 {
            window.store(64 + 8 * word, (word << 36) | (7 - word));
        }
        window.store(64 + 56, 3 << 36);
        assert_eq!(window.match_line(64, 0xf << 4, 3 << 4), 0b1000_1000);
        assert_eq!(window.match_line(64, u32::MAX, 3 << 4), 0b1000_1000);
        assert_eq!(window.match_line(64, 0, 0), 0xff);
        assert_eq!(window.match_line(64, u32::MAX, 4), 0);
        for word in 0..7 {
            assert_eq!(window.match_line(64, u32::MAX, word << 4) & 0x7f, 1 << word);
        }
        let bare = window.bare();
        assert_eq!(bare.first_match(64, 0xf << 4, 3 << 4, 7), (3, (3 << 36) | 4));
        assert_eq!(bare.first_match(64, u32::MAX, 77, 7), (7, 3 << 36));
        assert_eq!(bare.first_match(64, u32::MAX, 77, 4), (4, (4 << 36) | 3));
    }

    #[test]
    fn bytes_are_copied_to_another_window() {
        let (from, to) = (Window::heap(256), Window::heap(256));
        let bytes: Vec<u8> = (1..=100).collect();
        from.copy_in(13, &bytes);
        from.copy_to(13, 100, &to, 5);
        let mut there = [0; 102];
        to.copy_out(4, &mut there);
        assert!(there[0] == 0 && there[1..101] == bytes && there[101] == 0);
    }

    #[test]
    fn bytes_are_appended_behind_what_is_there() {
        let window = Window::heap(64);
        window.copy_in(3, b"hello");
        let mut to = b"> ".to_vec();
        window.append_to(3, 5, &mut to);
        window.append_to(3, 0, &mut to);
        assert_eq!(to, b"> hello");
    }
}
