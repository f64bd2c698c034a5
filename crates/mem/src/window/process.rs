//! What a window offers to a program that keeps much private data in one: memory of this process
//! alone on huge pages, comparison with private bytes without a copy, and copies to the end of a
//! vector without zeroing it first; and memory that processes share without a file's name. See
//! `window.rs`. Called by the key-value cache.

use super::mapped::{Backing, LINE_BYTES, Window};
use super::{Access, MapOptions};
use crate::copy;
use crate::sync::{AtomicU64, Ordering};
#[cfg(any(doc, test))]
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

/// Takes the memory of a part of a file, so that no store to a window there finds none later; what
/// it holds stays. Blocks while the system zeroes memory, some 100 us a MiB; others may use the
/// window meanwhile.
///
/// # Errors
/// What the system says: above all, that there is not so much memory.
pub fn take_file(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let take = || rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes);
    rustix::io::retry_on_intr(take).map_err(io::Error::from)
}

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
            // SAFETY: the front of the new mapping, which no code uses; whole pages.
            unsafe { munmap(start, before) }?;
        }
        if unit > before {
            // SAFETY: the end of the new mapping, as above.
            unsafe { munmap(end.cast(), unit - before) }?;
        }
        let base = NonNull::new(base).expect("mmap never answers null");
        let owner = Backing::Private { base, bytes: kept };
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

    /// Takes the memory behind a part of a [`Window::private`] or a file now, instead of at its
    /// first use; what it holds stays. Blocks while the system zeroes it, some 100 us a MiB; others
    /// may use the window meanwhile.
    ///
    /// # Errors
    /// What the system says: above all, that there is not so much memory, or invalid input before
    /// Linux 5.14; `EFAULT` if the file system of a file is full. Invalid input for a window of
    /// another kind, or a part that does not begin at a page. Some of the part may have its memory
    /// by then.
    ///
    /// # Panics
    /// Outside the window.
    pub fn populate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let at = self.writable(offset, bytes);
        let size = usize::try_from(bytes).expect("inside a window");
        if !self.is_mapped() || !at.addr().is_multiple_of(rustix::param::page_size()) {
            let what = format!("{bytes} bytes at {offset} cannot be populated");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        // SAFETY: a part of a mapping of ours; its contents do not change.
        unsafe { madvise(at.cast(), size, Advice::LinuxPopulateWrite) }?;
        Ok(())
    }

    /// Gives the memory behind a part of a [`Window::private`], or of a file of shared memory, back
    /// to the system. It reads as zeros then; of a file, [`take_file`] is to be called before it is
    /// used again. Blocks while the system frees it, some 100 us for 4 MiB.
    ///
    /// # Errors
    /// What the system says; invalid input for a window of another kind, or a part that is not
    /// whole pages.
    ///
    /// # Panics
    /// Outside the window.
    pub fn give_back(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let at = self.writable(offset, bytes);
        let size = usize::try_from(bytes).expect("inside a window");
        let page_bytes = rustix::param::page_size();
        if !at.addr().is_multiple_of(page_bytes) || !size.is_multiple_of(page_bytes) {
            let what = format!("{bytes} bytes at {offset} are not whole pages");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let advice = if self.is_private() { Advice::LinuxDontNeed } else { Advice::LinuxRemove };
        // SAFETY: a part of a mapping of ours, which stays mapped; its bytes become zeros as by a
        // store of another thread, which all access here allows for.
        unsafe { madvise(at.cast(), size, advice) }?;
        Ok(())
    }

    /// A window on all of a file that is made `bytes` bytes long and takes its memory at once, so
    /// that no later access finds the file system full. What the file holds stays.
    ///
    /// # Errors
    /// What the system says: above all, that there is not so much memory.
    pub fn of_file(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Window> {
        take_file(file, 0, bytes)?;
        let options = MapOptions { huge_advice: true, ..MapOptions::default() };
        Window::map(file, bytes, Access::ReadWrite, options)
    }

    /// A window on all of a file of shared memory that has so many bytes, or none yet, without
    /// taking its memory: [`take_file`] does that.
    ///
    /// # Errors
    /// What the system says.
    pub fn of_file_later(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Window> {
        rustix::fs::ftruncate(file, bytes)?;
        let options = MapOptions { huge_advice: true, ..MapOptions::default() };
        Window::map(file, bytes, Access::ReadWrite, options)
    }

    /// A window of zeroed memory that is taken at once, and the descriptor by which other processes
    /// map it: memory without a file's name and with a sealed length. The system shows `name`.
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
        let at = self.readable(offset, bytes.len() as u64).cast::<u64>();
        if !at.is_aligned() {
            super::misaligned(offset);
        }
        // SAFETY: aligned, and valid for the length of `bytes`.
        unsafe { equals(at, bytes) }
    }

    /// Which of the eight words of the line at `offset` have the bits of `value` under `mask` in
    /// their upper halves, a bit each. Each word is read once; the line as a whole may tear.
    /// Acquire.
    ///
    /// # Panics
    /// Outside the window, or if `offset` is not a multiple of 64.
    #[inline(always)]
    pub fn match_line(&self, offset: u64, mask: u32, value: u32) -> u32 {
        let at = self.readable(offset, LINE_BYTES as u64).cast::<Line>();
        if !at.addr().is_multiple_of(LINE_BYTES) {
            super::misaligned(offset);
        }
        // SAFETY: aligned, and inside the window, which lives as long as `self`; all access in
        // this process is atomic or by `copy`, where races are defined.
        match_halves(unsafe { &*at }, mask, value)
    }

    /// Copies `bytes` bytes at `offset` to another window; no thread reads that memory meanwhile.
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
        // SAFETY: valid for `bytes` bytes.
        unsafe { append(self.readable(offset, bytes), bytes, to) };
    }
}

impl Window {
    /// The memory alone, for tight loops over a window without a delay.
    ///
    /// # Panics
    /// If the window has one, or does not begin with a line.
    #[inline(always)]
    pub fn bare(&self) -> Bare<'_> {
        let (base, bytes, writable_bytes) = self.bare_memory();
        Bare { base, bytes, writable_bytes, window: PhantomData }
    }
}

type Line = [AtomicU64; LINE_BYTES / 8];

/// The memory of a [`Window`]: start and length, by value, so that they stay in registers however
/// often memory is touched.
#[derive(Clone, Copy, Debug)]
pub struct Bare<'a> {
    /// Begins with a line.
    base: NonNull<u8>,
    bytes: u64,
    /// `bytes`, or 0 if the window is read-only: stores are checked against this alone.
    writable_bytes: u64,
    window: PhantomData<&'a Window>,
}

/// The words of a line; its bounds were checked once.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a>(&'a Line);

impl Words<'_> {
    /// As [`Mem::load`] of the word with this number, below 8.
    ///
    /// # Panics
    /// Beyond the line.
    #[inline(always)]
    pub fn load(self, number: usize) -> u64 {
        // Acquire: pairs with the Release in window/mapped.rs::store of any sharer of the word.
        self.0[number].load(Ordering::Acquire)
    }
}

/// The words of a line of a window that is no read-only one.
#[derive(Clone, Copy, Debug)]
pub struct WordsToWrite<'a>(&'a Line);

impl WordsToWrite<'_> {
    /// As [`Mem::store`] to the word with this number, below 8.
    ///
    /// # Panics
    /// Beyond the line.
    #[inline(always)]
    pub fn store(self, number: usize, value: u64) {
        // Release: pairs with the Acquire in window/mapped.rs::load of any sharer of the word.
        self.0[number].store(value, Ordering::Release);
    }
}

impl<'a> Bare<'a> {
    /// The address of the `UNIT` bytes at `offset`, a multiple of as many, below `limit`.
    #[inline(always)]
    fn whole<const UNIT: u64>(self, offset: u64, limit: u64) -> *mut u8 {
        const { assert!(UNIT.is_power_of_two()) };
        // One comparison: the lowest bits of an offset that is no multiple come to be the highest.
        let number = offset.rotate_right(UNIT.trailing_zeros());
        if number >= limit / UNIT {
            refuse(offset, UNIT, UNIT, self.bytes);
        }
        // SAFETY: `offset` <= the window's length, all of it in one allocation.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    #[inline(always)]
    fn word(&self, offset: u64, limit: u64) -> &AtomicU64 {
        let at = self.whole::<8>(offset, limit).cast::<u64>();
        // SAFETY: aligned, as the base is, and inside the window, which lives as long as `self`;
        // see `Window::atomic_u64`.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// As [`Mem::load`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn load(&self, offset: u64) -> u64 {
        // Acquire: pairs with the Release in window/mapped.rs::store of any sharer of the word.
        self.word(offset, self.bytes).load(Ordering::Acquire)
    }

    /// As [`Mem::store`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn store(&self, offset: u64, value: u64) {
        // Release: pairs with the Acquire in window/mapped.rs::load of any sharer of the word.
        self.word(offset, self.writable_bytes).store(value, Ordering::Release);
    }

    /// The words of the line at `offset`, to be loaded.
    ///
    /// # Panics
    /// Outside the window, or if `offset` is not a multiple of 64.
    #[inline(always)]
    pub fn line(self, offset: u64) -> Words<'a> {
        let at = self.whole::<{ LINE_BYTES as u64 }>(offset, self.bytes).cast::<Line>();
        // SAFETY: as in `word`, of the whole line.
        Words(unsafe { &*at })
    }

    /// The words of the line at `offset`, to be stored.
    ///
    /// # Panics
    /// As [`Bare::line`]; if the window is read-only.
    #[inline(always)]
    pub fn line_to_write(self, offset: u64) -> WordsToWrite<'a> {
        let at = self.whole::<{ LINE_BYTES as u64 }>(offset, self.writable_bytes).cast::<Line>();
        // SAFETY: as in `word`, of the whole line.
        WordsToWrite(unsafe { &*at })
    }

    /// As [`Window::equals`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn equals(self, offset: u64, bytes: &[u8]) -> bool {
        // In a loop, with a length that is known, this is one comparison.
        let length = bytes.len() as u64;
        if length > self.bytes || offset > self.bytes - length || !offset.is_multiple_of(8) {
            refuse(offset, length, 8, self.bytes);
        }
        // SAFETY: `offset` <= the window's length, all of it in one allocation.
        let at = unsafe { self.base.as_ptr().add(offset as usize) };
        // SAFETY: aligned, as the base is, and valid for the length of `bytes`.
        unsafe { equals(at.cast(), bytes) }
    }

    /// The word at `offset` if `bytes` lie behind it; not if the window ends before.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 8.
    #[inline(always)]
    pub fn load_before(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        if !offset.is_multiple_of(8) {
            super::misaligned(offset);
        }
        let end = offset.checked_add(8 + bytes.len() as u64)?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: `offset` <= the window's length, all of it in one allocation.
        let at = unsafe { self.base.as_ptr().add(offset as usize) }.cast::<u64>();
        // SAFETY: aligned, as the base is, and inside the window; see `Window::atomic_u64`.
        let word = unsafe { AtomicU64::from_ptr(at) };
        // Acquire: pairs with the Release in window/mapped.rs::store of any sharer of the word.
        let word = word.load(Ordering::Acquire);
        // SAFETY: not beyond the end that was checked above.
        let behind = unsafe { at.add(1) };
        // SAFETY: aligned, and valid for the length of `bytes`.
        unsafe { equals(behind, bytes) }.then_some(word)
    }

    /// As [`Mem::copy_out`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn copy_out(self, offset: u64, to: &mut [u8]) {
        let from = self.at(offset, to.len() as u64, self.bytes);
        // SAFETY: `from` is valid for the length of `to`, which is private.
        unsafe { copy::copy_out(to.as_mut_ptr(), from, to.len()) };
    }

    /// As [`Mem::copy_in`].
    ///
    /// # Panics
    /// As there.
    #[inline(always)]
    pub fn copy_in(self, offset: u64, from: &[u8]) {
        let to = self.at(offset, from.len() as u64, self.writable_bytes);
        // SAFETY: `to` is valid for the length of `from`, which is private.
        unsafe { copy::copy_in(to, from.as_ptr(), from.len()) };
    }

    /// Copies `bytes` bytes at `offset` to another window; no thread reads that memory meanwhile.
    ///
    /// # Panics
    /// Outside either window.
    #[inline(always)]
    pub fn copy_to(self, offset: u64, bytes: u64, to: Bare<'_>, to_offset: u64) {
        let from = self.at(offset, bytes, self.bytes);
        let to = to.at(to_offset, bytes, to.writable_bytes);
        let size = usize::try_from(bytes).expect("inside a window");
        // SAFETY: both ranges are valid for `size` bytes; if they overlap, bytes are lost and none
        // is touched beyond them.
        unsafe { copy::copy_out(to, from, size) };
    }

    /// Appends `bytes` bytes at `offset` to a vector, in one copy.
    ///
    /// # Panics
    /// Outside the window.
    #[inline(always)]
    pub fn append_to(self, offset: u64, bytes: u64, to: &mut Vec<u8>) {
        // SAFETY: valid for `bytes` bytes.
        unsafe { append(self.at(offset, bytes, self.bytes), bytes, to) };
    }

    /// The address of `bytes` bytes at `offset`, below `limit`.
    #[inline(always)]
    fn at(self, offset: u64, bytes: u64, limit: u64) -> *mut u8 {
        let (end, is_beyond) = offset.overflowing_add(bytes);
        if is_beyond | (end > limit) {
            refuse(offset, bytes, 1, self.bytes);
        }
        // SAFETY: `offset` <= the window's length, all of it in one allocation.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// The first of the first `words` words of the line at `offset` that has the bits of the
    /// pattern under its mask, and its value, or, if none does, the word behind them. The mask has
    /// none of the lowest 32 bits. Each word is read once or twice; the line as a whole may tear.
    /// Without branches, and by few instructions where the processor compares a line at once.
    /// Acquire.
    ///
    /// # Panics
    /// Outside the window, if `offset` is not a multiple of 64, or for more than 7 words.
    #[inline(always)]
    pub fn first_match(
        self,
        wide: Option<Wide>,
        offset: u64,
        pattern: WordPattern<'_>,
        words: u32,
    ) -> (u32, u64) {
        assert!(words < 8, "{words} words and the one behind are more than a line");
        let WordPattern { mask, value } = pattern;
        let at = self.whole::<{ LINE_BYTES as u64 }>(offset, self.bytes).cast::<Line>();
        // SAFETY: as in `word`, of the whole line.
        let line = unsafe { &*at };
        let found = match wide {
            Some(wide) => wide.match_line(line, mask, value),
            None => match_halves(line, (mask >> 32) as u32, (value >> 32) as u32),
        };
        let first = (found | (1 << words)).trailing_zeros();
        // Acquire: pairs with the Release in window/mapped.rs::store of any sharer of the word.
        (first, line[first as usize & 7].load(Ordering::Acquire))
    }

    /// As [`Mem::prefetch`], of any offset: outside the window nothing is gained, and nothing lost.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64) {
        copy::prefetch(self.base.as_ptr().wrapping_add(offset as usize));
    }
}

// Words by value: a reference would keep the window's own in memory.
#[cold]
#[inline(never)]
fn refuse(offset: u64, bytes: u64, align_bytes: u64, window_bytes: u64) -> ! {
    let end = offset.checked_add(bytes);
    if end.is_none_or(|end| end > window_bytes) {
        super::out_of_window(offset, bytes, window_bytes);
    }
    if !offset.is_multiple_of(align_bytes) {
        super::misaligned(offset);
    }
    panic!("a store of {bytes} bytes at offset {offset} of a read-only window");
}

/// Bits that a word is looked for by. By reference, so that they need not be in registers.
#[derive(Clone, Copy, Debug)]
pub struct WordPattern<'a> {
    /// The bits that count.
    pub mask: &'a u64,
    /// What they have to be.
    pub value: &'a u64,
}

/// That this processor compares the words of a line by one instruction (AVX-512).
#[derive(Clone, Copy, Debug)]
pub struct Wide(());

impl Wide {
    /// `None` if the processor has no such instruction.
    #[inline]
    pub fn of_this_processor() -> Option<Wide> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if std::is_x86_feature_detected!("avx512f") {
            return Some(Wide(()));
        }
        None
    }

    #[inline(always)]
    fn match_line(self, line: &Line, mask: &u64, value: &u64) -> u32 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: the processor has AVX-512: there is a `Wide`.
        return unsafe { match_avx512(line.as_ptr().cast(), mask, value) };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        match_halves(line, (mask >> 32) as u32, (value >> 32) as u32)
    }
}

/// As [`Window::equals`] of what lies at `at`.
///
/// # Safety
/// Aligned, and valid for the length of `bytes`.
#[inline(always)]
unsafe fn equals(at: *mut u64, bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let word = |index: usize| {
        // SAFETY: called for whole words of the caller's range.
        let at = unsafe { at.add(index) };
        // SAFETY: aligned, and inside the window; see `Window::atomic_u64`.
        let there = unsafe { AtomicU64::from_ptr(at) };
        // Acquire: pairs with the Release in window/mapped.rs::store of any sharer of it.
        there.load(Ordering::Acquire) ^ u64::from_le_bytes(words[index])
    };
    // The length of many keys, without a loop.
    if bytes.len() == 16 {
        return word(0) | word(1) == 0;
    }
    if !(0..words.len()).all(|index| word(index) == 0) {
        return false;
    }
    // SAFETY: behind the whole words of the caller's range.
    let tail = unsafe { at.add(words.len()) };
    // SAFETY: valid for the rest of the caller's range.
    rest.is_empty() || unsafe { tail_equals(tail.cast(), rest) }
}

/// Appends bytes of a window to a vector.
///
/// # Safety
/// `from` is valid for `bytes` bytes.
#[inline(always)]
unsafe fn append(from: *const u8, bytes: u64, to: &mut Vec<u8>) {
    let size = usize::try_from(bytes).expect("inside a window");
    to.reserve(size);
    let length = to.len();
    let spare = to.spare_capacity_mut().as_mut_ptr().cast::<u8>();
    // SAFETY: `from` is valid for `size` bytes, and so is `spare` after the reservation.
    unsafe { copy::copy_out(spare, from, size) };
    // SAFETY: the bytes up to there have been written.
    unsafe { to.set_len(length + size) };
}

/// Whether at most 7 bytes are the same.
///
/// # Safety
/// Valid for the length of `rest`.
#[inline(never)]
unsafe fn tail_equals(at: *const u8, rest: &[u8]) -> bool {
    let mut tail = [0; 8];
    // SAFETY: valid for the length of `rest`, at most 7 bytes; `tail` is private.
    unsafe { copy::copy_out(tail.as_mut_ptr(), at, rest.len()) };
    tail[..rest.len()] == *rest
}

#[inline(always)]
fn match_halves(line: &Line, mask: u32, value: u32) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: one aligned line inside the window.
    return unsafe { match_halves_sse2(line.as_ptr().cast(), mask, value) };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    (0..8).fold(0, |found, word| {
        // Acquire: pairs with the Release in window/mapped.rs::store of any sharer of it.
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

/// Which words of a line are `value` under `mask`, a bit each. Uses only registers that slow no
/// other instruction down afterwards.
///
/// # Safety
/// The line is readable and aligned, and the processor has AVX-512F.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn match_avx512(line: *const u8, mask: &u64, value: &u64) -> u32 {
    let found: u32;
    // SAFETY: reads the caller's line, the two words, and no other memory.
    unsafe {
        std::arch::asm!(
            "vmovdqa64 zmm16, [{line}]",
            "vpandq zmm16, zmm16, qword ptr [{mask}]{{1to8}}",
            "vpcmpeqq k1, zmm16, qword ptr [{value}]{{1to8}}",
            "kmovw {found:e}, k1",
            line = in(reg) line,
            mask = in(reg) mask,
            value = in(reg) value,
            found = out(reg) found,
            out("xmm16") _,
            out("k1") _,
            options(nostack, preserves_flags, readonly)
        );
    }
    found
}

#[cfg(test)]
mod tests;
