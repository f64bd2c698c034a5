//! The real window: a shared mapping of a file, or a heap block. See `window.rs`.
//!
//! Ownership: the memory is unmapped or freed when the last clone or slice is dropped. Mappings
//! are not inherited by a fork: a child that runs on after its parent would touch frames that no
//! process waits for.

use super::out_of_window;
use crate::sync::{Arc, AtomicU64, Ordering, compiler_fence, full_fence, spin_loop};
use crate::{caches, copy};
use rackpool_core::seam::{Mem, Probe, Section};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, fstat};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

pub(super) const LINE_BYTES: usize = 64;

/// Alignment of heap windows: a processor page, so that they are laid out as mapped ones are.
const HEAP_ALIGN_BYTES: usize = 4096;

/// What a mapping may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only; every store panics before it is made.
    ReadOnly,
    ReadWrite,
}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOptions {
    /// Where in the file the window starts, bytes; a multiple of the file's page size.
    pub file_offset: u64,
    /// Touch every page now instead of at first use.
    pub populate: bool,
    /// Ask for transparent huge pages; whether they come is the system's decision.
    pub huge_advice: bool,
}

/// What a window and its clones keep alive; `Private`: whole pages of this process alone.
pub(super) enum Backing {
    Heap { base: NonNull<u8>, layout: Layout },
    Map { base: NonNull<u8>, bytes: usize },
    Private { base: NonNull<u8>, bytes: usize },
}

// SAFETY: the owner only frees its memory, once, from whichever thread drops it last.
unsafe impl Send for Backing {}
// SAFETY: a shared owner offers nothing.
unsafe impl Sync for Backing {}

impl Drop for Backing {
    fn drop(&mut self) {
        match *self {
            Backing::Heap { base, layout } => {
                // SAFETY: allocated with this layout in `Window::heap`, and no reference is left.
                unsafe { dealloc(base.as_ptr(), layout) };
            }
            Backing::Map { base, bytes } | Backing::Private { base, bytes } => {
                // SAFETY: mapped with this length by its maker; no reference is left.
                let unmapped = unsafe { munmap(base.as_ptr().cast(), bytes) };
                assert!(unmapped.is_ok(), "munmap of a whole mapping of ours failed");
            }
        }
    }
}

/// Shared memory with a start and a length. Clones and slices share the memory.
///
/// ```
/// use rackpool_core::seam::Mem;
/// use rackpool_mem::window::Window;
///
/// let window = Window::heap(4096);
/// window.copy_in(100, b"hello");
/// let mut bytes = [0; 5];
/// window.slice(64, 64).copy_out(36, &mut bytes);
/// assert_eq!(&bytes, b"hello");
/// assert_eq!(window.fetch_add(8, 3), 0);
/// ```
#[derive(Clone)]
pub struct Window {
    base: NonNull<u8>,
    bytes: u64,
    /// `bytes`, or 0 if the window is read-only: stores are checked against this alone.
    writable_bytes: u64,
    delay_ns: u32,
    is_asymmetric: bool,
    is_coherent: bool,
    /// Whether it begins with a line and has no delay.
    is_bare: bool,
    owner: Arc<Backing>,
}

// SAFETY: the memory is only touched by atomics and by `copy`'s accesses, which may race; `owner`
// keeps it alive.
unsafe impl Send for Window {}
// SAFETY: as above; no method needs a window for itself.
unsafe impl Sync for Window {}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("bytes", &self.bytes)
            .field("read_only", &self.is_read_only())
            .field("delay_ns", &self.delay_ns)
            .finish_non_exhaustive()
    }
}

impl Window {
    /// A window of zeroed memory of this process, aligned to 4096 bytes.
    ///
    /// # Panics
    /// If `bytes` is 0 or above what an allocation can be.
    pub fn heap(bytes: u64) -> Window {
        assert!(bytes > 0, "a window of 0 bytes");
        let size = usize::try_from(bytes).expect("a window fits the address space");
        let layout = Layout::from_size_align(size, HEAP_ALIGN_BYTES)
            .expect("a window is shorter than half the address space");
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        Window::new(base, bytes, Access::ReadWrite, Backing::Heap { base, layout })
    }

    /// Maps `bytes` bytes of a file, shared. The file has to be long enough (a device says no
    /// length and is taken at its word); otherwise an access would kill the process. A device is
    /// mapped in units of its own, so more than `bytes` may be, of which the window shows nothing.
    pub fn map(
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
        options: MapOptions,
    ) -> io::Result<Window> {
        Self::map_with(fd, bytes, access, options, MapFlags::SHARED)
    }

    /// As [`Window::map`], of a file whose memory is persistent memory itself: what was stored and
    /// left the processor's caches is in the file, without a system call.
    ///
    /// # Errors
    /// Not supported for a file of another kind.
    pub fn map_synchronous(
        fd: BorrowedFd<'_>,
        bytes: u64,
        options: MapOptions,
    ) -> io::Result<Window> {
        // A kernel that does not know the second flag ignores it without the first.
        let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        Self::map_with(fd, bytes, Access::ReadWrite, options, flags)
    }

    fn map_with(
        fd: BorrowedFd<'_>,
        bytes: u64,
        access: Access,
        options: MapOptions,
        mut flags: MapFlags,
    ) -> io::Result<Window> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let end = options.file_offset.checked_add(bytes).filter(|_| bytes > 0);
        let end = end.ok_or_else(|| invalid(format!("a mapping of {bytes} bytes")))?;
        let stat = fstat(fd)?;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if !is_device && file_bytes < end {
            return Err(invalid(format!(
                "the file has {file_bytes} bytes, the mapping would end at {end} bytes"
            )));
        }
        let unit = if is_device { device_align_bytes(stat.st_rdev).unwrap_or(2 << 20) } else { 1 };
        let size = usize::try_from(bytes.next_multiple_of(unit))
            .map_err(|_| invalid(format!("{bytes} bytes do not fit the address space")))?;
        let rights = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        flags.set(MapFlags::POPULATE, options.populate);
        // SAFETY: a new mapping where the kernel likes replaces nothing.
        let base =
            unsafe { mmap(std::ptr::null_mut(), size, rights, flags, fd, options.file_offset) }?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never answers null");
        let window = Window::new(base, bytes, access, Backing::Map { base, bytes: size });
        // SAFETY: only decides what a fork inherits; the mapping is whole and ours.
        unsafe { madvise(base.as_ptr().cast(), size, Advice::LinuxDontFork) }?;
        if options.huge_advice {
            // SAFETY: only changes how the mapping is backed. Its failure means that this system
            // has no transparent huge pages, which an advice may meet.
            let _ = unsafe { madvise(base.as_ptr().cast(), size, Advice::LinuxHugepage) };
        }
        Ok(window)
    }

    pub(super) fn new(base: NonNull<u8>, bytes: u64, access: Access, owner: Backing) -> Window {
        let writable_bytes = if access == Access::ReadWrite { bytes } else { 0 };
        let owner = Arc::new(owner);
        Window {
            base,
            bytes,
            writable_bytes,
            delay_ns: 0,
            is_asymmetric: false,
            is_coherent: true,
            is_bare: is_bare(base, 0),
            owner,
        }
    }

    /// A part of this window, with the same rights and settings.
    ///
    /// # Panics
    /// If it is not inside, or does not start at a multiple of 8 bytes.
    pub fn slice(&self, offset: u64, bytes: u64) -> Window {
        assert!(offset.is_multiple_of(8), "a slice starts at {offset}, not a multiple of 8 bytes");
        let base = self.readable(offset, bytes);
        let base = NonNull::new(base).expect("inside a window is not null");
        let writable_bytes = if self.is_read_only() { 0 } else { bytes };
        let (is_bare, owner) = (is_bare(base, self.delay_ns), Arc::clone(&self.owner));
        Window { base, bytes, writable_bytes, is_bare, owner, ..*self }
    }

    /// This window with `delay_ns` nanoseconds added to every load, copy and read-modify-write:
    /// memory that is farther away, emulated. Stores and announcements stay as they are, since a
    /// processor does not wait for them.
    pub fn with_delay(mut self, delay_ns: u32) -> Window {
        self.delay_ns = delay_ns;
        self.is_bare = is_bare(self.base, delay_ns);
        self
    }

    /// This window with announcements for a mover that pays for both with a process-wide barrier
    /// (`true`), or with a full fence of their own (`false`, as made).
    pub fn with_asymmetric_fence(mut self, is_asymmetric: bool) -> Window {
        self.is_asymmetric = is_asymmetric;
        self
    }

    /// This window of memory that other hosts share and no hardware keeps coherent with their
    /// caches (`false`), or of memory that is coherent for all that share it (`true`, as made).
    ///
    /// # Panics
    /// If this processor cannot write lines back: see [`crate::caches::is_supported`].
    pub fn with_coherence(mut self, is_coherent: bool) -> Window {
        assert!(is_coherent || caches::is_supported(), "lines cannot be written back here");
        self.is_coherent = is_coherent;
        self
    }

    pub(crate) fn is_private(&self) -> bool {
        matches!(*self.owner, Backing::Private { .. })
    }

    pub(super) fn is_mapped(&self) -> bool {
        !matches!(*self.owner, Backing::Heap { .. })
    }

    /// Its first byte, for a device that is told where the memory is.
    pub fn start(&self) -> NonNull<u8> {
        self.base
    }

    /// As [`Mem::prefetch`], of a line that will be written.
    #[inline]
    pub fn prefetch_write(&self, offset: u64) {
        copy::prefetch_write(self.writable(offset, 0));
    }

    pub fn is_read_only(&self) -> bool {
        self.writable_bytes < self.bytes
    }

    /// As [`Mem::copy_in`] with stores around the caches, in no order until a fence of stores. The
    /// part of `from` that went around them: what is before and behind it is in the caches.
    pub(crate) fn copy_in_streaming(&self, offset: u64, from: &[u8]) -> Range<usize> {
        self.delay();
        let to = self.writable(offset, from.len() as u64);
        // SAFETY: `to` is valid for the length of `from`, which is private.
        unsafe { copy::copy_in_streaming(to, from.as_ptr(), from.len()) };
        copy::streamed(to, from.len())
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// Outside the window, or if it is not aligned.
    #[inline]
    pub(crate) fn atomic_u64(&self, offset: u64) -> &AtomicU64 {
        self.word(offset, self.bytes)
    }

    #[inline(always)]
    fn writable_u64(&self, offset: u64) -> &AtomicU64 {
        self.word(offset, self.writable_bytes)
    }

    #[inline(always)]
    fn word(&self, offset: u64, limit: u64) -> &AtomicU64 {
        let at = self.checked(offset, 8, limit).cast::<u64>();
        if !at.is_aligned() {
            super::misaligned(offset);
        }
        // SAFETY: valid for as long as `self`, aligned; all access in this process is atomic or
        // by `copy`, where races are defined.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Sleeps while the lower half of the word at `offset` is `expected`, until
    /// [`Window::futex_wake`] by any process that maps the word, or the timeout. May return early.
    pub(crate) fn futex_wait(&self, offset: u64, expected: u32, timeout: Duration) {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let word = self.futex_u32(offset);
        // Whether it was woken, interrupted, too late or timed out, the caller looks again.
        let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
    }

    /// Wakes all that sleep on the word at `offset`.
    pub(crate) fn futex_wake(&self, offset: u64) {
        // Fails only for an address that is not mapped.
        let _ = futex::wake(self.futex_u32(offset), futex::Flags::empty(), i32::MAX as u32);
    }

    /// The lower half of the word at `offset`. Shared among processes, hence never a private
    /// futex.
    fn futex_u32(&self, offset: u64) -> &AtomicU32 {
        const { assert!(cfg!(target_endian = "little"), "layouts are little-endian") };
        assert!(!self.is_read_only(), "a futex on a word of a read-only window");
        let at = self.atomic_u64(offset).as_ptr().cast::<u32>();
        // SAFETY: the first half of a valid, aligned word; the kernel only compares it.
        unsafe { AtomicU32::from_ptr(at) }
    }

    /// Receives up to `bytes` bytes from a socket into the window; how many came, 0 at the end of
    /// the stream. Whether it blocks is the socket's own setting.
    pub fn recv(&self, fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<usize> {
        let to = self.writable(offset, bytes);
        let size = usize::try_from(bytes).expect("inside a window");
        // SAFETY: the kernel writes at most `size` bytes, which are inside the window.
        let received =
            unsafe { libc::recv(std::os::fd::AsRawFd::as_raw_fd(&fd), to.cast(), size, 0) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }

    /// Address of `bytes` bytes at `offset`, checked.
    #[inline(always)]
    pub(crate) fn readable(&self, offset: u64, bytes: u64) -> *mut u8 {
        self.checked(offset, bytes, self.bytes)
    }

    /// As `readable`, checked for writing.
    #[inline(always)]
    pub(super) fn writable(&self, offset: u64, bytes: u64) -> *mut u8 {
        self.checked(offset, bytes, self.writable_bytes)
    }

    #[inline(always)]
    fn checked(&self, offset: u64, bytes: u64, limit: u64) -> *mut u8 {
        let (end, is_beyond) = offset.overflowing_add(bytes);
        if is_beyond | (end > limit) {
            self.refuse(offset, bytes);
        }
        // SAFETY: `offset` <= `limit` <= the window's length, all of it in one allocation.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, offset: u64, bytes: u64) -> ! {
        let end = offset.checked_add(bytes);
        if self.is_read_only() && end.is_some_and(|end| end <= self.bytes) {
            panic!("a store of {bytes} bytes at offset {offset} of a read-only window");
        }
        out_of_window(offset, bytes, self.bytes);
    }

    /// Start, bytes and bytes to write of the memory, for [`Window::bare`], and panics as that.
    #[inline(always)]
    pub(super) fn bare_memory(&self) -> (NonNull<u8>, u64, u64) {
        // Before every access: so that it costs one comparison.
        if !self.is_bare {
            self.refuse_bare();
        }
        (self.base, self.bytes, self.writable_bytes)
    }

    #[cold]
    #[inline(never)]
    fn refuse_bare(&self) -> ! {
        assert!(self.delay_ns == 0, "a bare window cannot wait");
        panic!("a bare window begins with a line");
    }

    #[inline(always)]
    pub(super) fn delay(&self) {
        if self.delay_ns != 0 {
            spin_for(self.delay_ns);
        }
    }
}

fn is_bare(base: NonNull<u8>, delay_ns: u32) -> bool {
    delay_ns == 0 && base.addr().get().is_multiple_of(LINE_BYTES)
}

/// The unit in which a devdax device is mapped, as the kernel says.
fn device_align_bytes(device: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/char/{major}:{minor}/align")).ok()?;
    text.trim().parse().ok().filter(|align: &u64| align.is_power_of_two())
}

/// Never inlined: every access to every window stands behind a question for it.
#[cold]
#[inline(never)]
fn spin_for(delay_ns: u32) {
    spin_until(Instant::now() + Duration::from_nanos(u64::from(delay_ns)));
}

/// Waits busily; the time then.
fn spin_until(end: Instant) -> Instant {
    loop {
        let now = Instant::now();
        if now >= end {
            return now;
        }
        spin_loop();
    }
}

impl Probe for Window {}

impl Section for Window {
    fn slice(&self, offset: u64, bytes: u64) -> Self {
        Window::slice(self, offset, bytes)
    }
}

impl Mem for Window {
    #[inline]
    fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn load(&self, offset: u64) -> u64 {
        self.delay();
        // Acquire: pairs with the Release in window/mapped.rs::store of any sharer of the word.
        self.atomic_u64(offset).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, offset: u64, value: u64) {
        // Release: pairs with the Acquire in window/mapped.rs::load of any sharer of the word.
        self.writable_u64(offset).store(value, Ordering::Release);
    }

    #[inline]
    fn announce(&self, offset: u64, value: u64) {
        // Release: pairs with the Acquire in window/mapped.rs::load by the mover that waits for
        // the cells; what we did under the cell's last value stays before it.
        self.writable_u64(offset).store(value, Ordering::Release);
        if self.is_asymmetric {
            // SeqCst: pairs with the mover's membarrier (barrier.rs), which makes a full fence of
            // this point on every processor that runs a registered process.
            compiler_fence(Ordering::SeqCst);
        } else {
            // Pairs with the mover's fence between its store to the table and its look at the
            // cells: one of the two sees the other.
            full_fence();
        }
    }

    #[inline]
    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        self.delay();
        // SeqCst: pairs with every other read-modify-write of the word, as Mem promises.
        self.writable_u64(offset).compare_exchange(
            expected,
            new,
            Ordering::SeqCst,
            Ordering::SeqCst,
        )
    }

    #[inline]
    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        self.delay();
        // SeqCst: pairs with every other read-modify-write of the word, as Mem promises.
        self.writable_u64(offset).fetch_add(n, Ordering::SeqCst)
    }

    #[inline]
    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        self.delay();
        let from = self.readable(offset, to.len() as u64);
        // SAFETY: `from` is valid for the length of `to`, which is private.
        unsafe { copy::copy_out(to.as_mut_ptr(), from, to.len()) };
    }

    #[inline]
    fn copy_in(&self, offset: u64, from: &[u8]) {
        self.delay();
        let to = self.writable(offset, from.len() as u64);
        // SAFETY: `to` is valid for the length of `from`, which is private.
        unsafe { copy::copy_in(to, from.as_ptr(), from.len()) };
    }

    fn zero(&self, offset: u64, bytes: u64) {
        self.delay();
        let to = self.writable(offset, bytes);
        let size = usize::try_from(bytes).expect("inside a window");
        // SAFETY: `to` is valid for `bytes` bytes.
        unsafe { copy::zero(to, size) };
    }

    #[inline]
    fn prefetch(&self, offset: u64) {
        copy::prefetch(self.readable(offset, 0));
    }

    #[inline]
    fn fence(&self) {
        full_fence();
    }

    #[inline]
    fn is_coherent(&self) -> bool {
        self.is_coherent
    }

    #[inline]
    fn flush(&self, offset: u64, bytes: u64) {
        if !self.is_coherent {
            let from = self.readable(offset, bytes);
            // SAFETY: inside the window, which is mapped as long as `self` lives.
            unsafe { caches::write_back(from, bytes as usize) };
        }
    }

    #[inline]
    fn invalidate(&self, offset: u64, bytes: u64) {
        if !self.is_coherent {
            let from = self.readable(offset, bytes);
            // SAFETY: inside the window, which is mapped as long as `self` lives.
            unsafe { caches::drop_lines(from, bytes as usize) };
        }
    }
}

/// A piece of what goes out on a socket.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    Private(&'a [u8]),
    /// Offset and length in a window.
    Shared(&'a Window, u64, u64),
}

impl Piece<'_> {
    pub fn bytes(&self) -> u64 {
        match self {
            Piece::Private(bytes) => bytes.len() as u64,
            Piece::Shared(_, _, bytes) => *bytes,
        }
    }
}

/// Pieces that one [`send_gather`] takes: a header before every scatter/gather entry of a few
/// work requests, or a value of a megabyte in units of 64 KiB with what stands around it.
pub const SEND_PIECES_MAX: usize = 32;

/// What follows what is sent to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing for now: all of it leaves.
    Nothing,
    /// More at once, which may be sent with its last bytes.
    More,
}

/// Sends the pieces in order with one system call; how many bytes went out, perhaps in the midst
/// of a piece. The kernel copies, so races with other processes are harmless. Never raises
/// SIGPIPE; whether it blocks is the socket's own setting.
///
/// # Panics
/// With more than [`SEND_PIECES_MAX`] pieces, or a piece outside its window.
pub fn send_gather(fd: BorrowedFd<'_>, pieces: &[Piece<'_>], next: Next) -> io::Result<usize> {
    assert!(pieces.len() <= SEND_PIECES_MAX, "{} pieces in one send", pieces.len());
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut vectors = [empty; SEND_PIECES_MAX];
    for (vector, piece) in vectors.iter_mut().zip(pieces) {
        (vector.iov_base, vector.iov_len) = match *piece {
            Piece::Private(bytes) => (bytes.as_ptr().cast_mut().cast(), bytes.len()),
            Piece::Shared(window, offset, bytes) => {
                let at = window.readable(offset, bytes);
                (at.cast(), usize::try_from(bytes).expect("inside a window"))
            }
        };
    }
    // SAFETY: all zeros are a valid empty msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    let flags = match next {
        Next::Nothing => libc::MSG_NOSIGNAL,
        Next::More => libc::MSG_NOSIGNAL | libc::MSG_MORE,
    };
    // SAFETY: the vectors name private slices and checked parts of windows, alive during the
    // call, and the kernel only reads them.
    let sent = unsafe { libc::sendmsg(std::os::fd::AsRawFd::as_raw_fd(&fd), &message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn memfd(bytes: u64) -> std::fs::File {
        let fd = rustix::fs::memfd_create("window-test", rustix::fs::MemfdFlags::CLOEXEC);
        let file = std::fs::File::from(fd.expect("a memfd"));
        file.set_len(bytes).expect("its length");
        file
    }

    fn map(file: &std::fs::File, bytes: u64, access: Access) -> io::Result<Window> {
        Window::map(file.as_fd(), bytes, access, MapOptions::default())
    }

    fn panic_of<T: std::fmt::Debug>(f: impl FnOnce() -> T) -> String {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let payload = result.expect_err("it should have panicked");
        match payload.downcast_ref::<String>() {
            Some(text) => text.clone(),
            None => payload.downcast_ref::<&str>().expect("a text").to_string(),
        }
    }

    #[test]
    fn two_mappings_of_one_file_see_each_other() {
        let file = memfd(3 * 4096);
        let a = map(&file, 3 * 4096, Access::ReadWrite).unwrap();
        let b = map(&file, 3 * 4096, Access::ReadOnly).unwrap();
        a.store(4096, 7);
        a.copy_in(8000, &[9; 100]);
        assert_eq!(b.load(4096), 7);
        let mut bytes = [0; 100];
        b.slice(8000, 200).copy_out(0, &mut bytes);
        assert_eq!(bytes, [9; 100]);
        assert_eq!(a.compare_exchange(4096, 7, 8), Ok(7));
        assert_eq!(a.compare_exchange(4096, 7, 9), Err(8));
        assert_eq!(a.fetch_add(4096, u64::MAX), 8);
        a.zero(8000, 50);
        b.copy_out(8000, &mut bytes);
        assert!(bytes[..50].iter().all(|b| *b == 0) && bytes[50..].iter().all(|b| *b == 9));
    }

    #[test]
    fn a_slice_outlives_the_window_that_it_was_cut_from() {
        let file = memfd(8192);
        let slice = map(&file, 8192, Access::ReadWrite).unwrap().slice(4096, 64);
        drop(file);
        slice.store(56, 1);
        assert_eq!(slice.load(56), 1);
        assert_eq!(slice.bytes(), 64);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused_with_numbers() {
        let file = memfd(4096);
        let error = map(&file, 8192, Access::ReadWrite).unwrap_err();
        assert!(error.to_string().contains("4096 bytes"), "{error}");
        assert!(error.to_string().contains("8192 bytes"), "{error}");
        assert!(map(&file, 0, Access::ReadWrite).is_err());
        let past = MapOptions { file_offset: u64::MAX, ..MapOptions::default() };
        assert!(Window::map(file.as_fd(), 4096, Access::ReadOnly, past).is_err());
    }

    #[test]
    fn a_part_of_a_file_is_mapped_at_its_offset() {
        let file = memfd(8192);
        let whole = map(&file, 8192, Access::ReadWrite).unwrap();
        let options = MapOptions { file_offset: 4096, populate: true, huge_advice: true };
        let part = Window::map(file.as_fd(), 4096, Access::ReadWrite, options).unwrap();
        part.store(0, 5);
        assert_eq!(whole.load(4096), 5);
    }

    #[test]
    fn accesses_outside_the_window_panic_and_touch_nothing() {
        let window = Window::heap(4096).slice(64, 128);
        for (offset, bytes) in [(121, 8), (128, 1), (u64::MAX, 1), (0, 129), (u64::MAX - 3, 8)] {
            let mut buffer = vec![0; bytes];
            let text = panic_of(|| window.copy_out(offset, &mut buffer));
            assert!(text.contains("outside the window of 128 bytes"), "{text}");
            panic_of(|| window.copy_in(offset, &buffer));
            panic_of(|| window.zero(offset, bytes as u64));
            panic_of(|| window.slice(offset & !7, 136));
        }
        panic_of(|| window.load(128));
        panic_of(|| window.load(4));
        panic_of(|| window.store(u64::MAX - 7, 1));
        window.copy_out(128, &mut []);
    }

    #[test]
    fn every_store_to_a_read_only_window_panics_before_it_is_made() {
        let file = memfd(4096);
        let window = map(&file, 4096, Access::ReadOnly).unwrap();
        assert!(window.is_read_only() && window.slice(8, 8).is_read_only());
        let (a, _b) = UnixStream::pair().unwrap();
        let text = panic_of(|| window.store(0, 1));
        assert!(text.contains("read-only"), "{text}");
        panic_of(|| window.announce(0, 1));
        panic_of(|| window.copy_in(0, &[1]));
        panic_of(|| window.copy_in_streaming(0, &[1]));
        panic_of(|| window.zero(0, 8));
        panic_of(|| window.fetch_add(0, 1));
        panic_of(|| window.compare_exchange(0, 0, 1));
        panic_of(|| window.recv(a.as_fd(), 0, 8));
        panic_of(|| window.slice(8, 8).store(0, 1));
        assert_eq!(window.load(0), 0);
    }

    #[test]
    fn the_kernel_sends_from_and_receives_into_a_window() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let window = Window::heap(4096);
        window.copy_in(100, b"payload");
        let pieces = [Piece::Private(b"head:"), Piece::Shared(&window, 100, 7)];
        let sent = send_gather(a.as_fd(), &pieces, Next::Nothing).unwrap();
        assert_eq!(sent, 12);
        let mut bytes = [0; 12];
        std::io::Read::read_exact(&mut b, &mut bytes).unwrap();
        assert_eq!(&bytes, b"head:payload");
        b.write_all(b"back").unwrap();
        assert_eq!(window.recv(a.as_fd(), 2000, 4).unwrap(), 4);
        let mut bytes = [0; 4];
        window.copy_out(2000, &mut bytes);
        assert_eq!(&bytes, b"back");
        drop(b);
        assert_eq!(window.recv(a.as_fd(), 2000, 4).unwrap(), 0);
        let error = send_gather(a.as_fd(), &pieces, Next::More).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn an_injected_delay_is_spent_on_reads_and_only_where_it_was_asked_for() {
        let near = Window::heap(4096);
        let far = near.clone().with_delay(200_000);
        let start = Instant::now();
        far.load(0);
        far.copy_out(0, &mut [0; 64]);
        assert!(start.elapsed() >= Duration::from_micros(400));
        assert_eq!(near.delay_ns, 0);
    }

    #[test]
    fn an_aligned_word_never_tears_while_it_is_copied() {
        let window = Window::heap(4096);
        let writer = window.clone();
        let rounds = if cfg!(miri) { 50 } else { 200_000 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..rounds as u64 {
                    writer.copy_in(8, &(i % 256 * 0x0101_0101_0101_0101).to_ne_bytes());
                }
            });
            for _ in 0..rounds {
                let mut bytes = [0; 8];
                window.copy_out(8, &mut bytes);
                assert!(bytes.iter().all(|b| *b == bytes[0]), "{bytes:?}");
            }
        });
    }

    #[test]
    fn a_sleeping_word_is_the_lower_half_of_its_word() {
        let window = Window::heap(64);
        window.store(8, 0x1_0000_0005);
        // Relaxed: one thread.
        assert_eq!(window.futex_u32(8).load(Ordering::Relaxed), 5);
    }
}
