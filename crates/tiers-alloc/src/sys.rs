//! Calls of mimalloc and of the C library, each with what makes it sound.

use libmimalloc_sys::{
    mi_arena_id_t, mi_free, mi_heap_area_t, mi_heap_malloc, mi_heap_malloc_aligned,
    mi_heap_new_in_arena, mi_heap_t, mi_heap_visit_blocks, mi_heap_zalloc, mi_heap_zalloc_aligned,
    mi_is_in_heap_region, mi_usable_size, mi_zalloc_aligned,
};
use std::ffi::{c_int, c_void};
use std::ptr;

/// A heap of mimalloc (version 3): any thread allocates from it. It is never deleted.
pub(crate) type RawHeap = mi_heap_t;

pub(crate) type HeapArea = mi_heap_area_t;
/// Heap, page, block (null), its size, what the visit was given; whether to go on.
pub(crate) type AreaVisitor =
    unsafe extern "C" fn(*const RawHeap, *const HeapArea, *mut c_void, usize, *mut c_void) -> bool;

/// `mi_commit_fun_t`: commit or not, start, bytes, whether the memory is zero, what it was given.
pub(crate) type CommitFn = extern "C" fn(bool, *mut c_void, usize, *mut bool, *mut c_void) -> bool;

/// The part of a heap that belongs to one thread, until that ends.
#[repr(C)]
pub(crate) struct RawTheap {
    _opaque: [u8; 0],
}

pub(crate) type EndFn = unsafe extern "C" fn(*mut u8);

unsafe extern "C" {
    /// In `mimalloc.h`, but not in `libmimalloc-sys`: this thread's part of a heap.
    fn mi_heap_theap(heap: *mut mi_heap_t) -> *mut RawTheap;

    /// In `mimalloc.h`, but not in `libmimalloc-sys`.
    fn mi_theap_malloc(theap: *mut RawTheap, size: usize) -> *mut c_void;

    /// In `mimalloc.h`, but not in `libmimalloc-sys`.
    fn mi_theap_zalloc(theap: *mut RawTheap, size: usize) -> *mut c_void;

    /// In `mimalloc.h`, but not in `libmimalloc-sys`. `mi_manage_os_memory_ex` has no hook.
    fn mi_manage_memory(
        start: *mut c_void,
        size: usize,
        is_committed: bool,
        is_pinned: bool,
        is_zero: bool,
        numa_node: c_int,
        is_exclusive: bool,
        commit: Option<CommitFn>,
        commit_argument: *mut c_void,
        arena: *mut mi_arena_id_t,
    ) -> bool;
}

/// What is asked of a heap. The alignment is a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub bytes: usize,
    pub align: usize,
    pub is_zero: bool,
}

/// What mimalloc's blocks are aligned to in any case.
pub(crate) const fn natural_align(bytes: usize) -> usize {
    if bytes > 8 { 16 } else { 8 }
}

/// A block, or null.
///
/// # Safety
/// `heap` is one of [`heap_of_range`].
#[inline]
pub(crate) unsafe fn take(heap: *mut RawHeap, request: Request) -> *mut u8 {
    let Request { bytes, align, is_zero } = request;
    let block = match (align <= natural_align(bytes), is_zero) {
        // SAFETY: of a heap that all threads may use, as the caller promises.
        (true, false) => unsafe { mi_heap_malloc(heap, bytes) },
        // SAFETY: as above.
        (true, true) => unsafe { mi_heap_zalloc(heap, bytes) },
        // SAFETY: as above.
        (false, false) => unsafe { mi_heap_malloc_aligned(heap, bytes, align) },
        // SAFETY: as above.
        (false, true) => unsafe { mi_heap_zalloc_aligned(heap, bytes, align) },
    };
    block.cast()
}

/// A block that is aligned as all are, or null.
///
/// # Safety
/// `theap` is this thread's, as [`theap`] says.
#[inline]
pub(crate) unsafe fn take_of_thread(theap: *mut RawTheap, bytes: usize, is_zero: bool) -> *mut u8 {
    let block = match is_zero {
        // SAFETY: as the caller promises.
        true => unsafe { mi_theap_zalloc(theap, bytes) },
        // SAFETY: as the caller promises.
        false => unsafe { mi_theap_malloc(theap, bytes) },
    };
    block.cast()
}

/// This thread's part of a heap, which stays until mimalloc is told that the thread ends.
///
/// # Safety
/// As of [`take`].
pub(crate) unsafe fn theap(heap: *mut RawHeap) -> *mut RawTheap {
    // SAFETY: as the caller promises.
    unsafe { mi_heap_theap(heap) }
}

/// Has a function called when this thread ends, before the destructors of `pthread_key_create`, of
/// which mimalloc's is one. False where that cannot be.
#[cfg(target_env = "gnu")]
pub(crate) fn at_thread_end(end: EndFn) -> bool {
    unsafe extern "C" {
        static __dso_handle: u8;
        fn __cxa_thread_atexit_impl(end: EndFn, of: *mut u8, library: *mut u8) -> c_int;
    }
    let library = (&raw const __dso_handle).cast_mut();
    // SAFETY: a function of this library, which glibc keeps loaded until it was called.
    unsafe { __cxa_thread_atexit_impl(end, ptr::null_mut(), library) == 0 }
}

#[cfg(not(target_env = "gnu"))]
pub(crate) fn at_thread_end(_end: EndFn) -> bool {
    false
}

/// Whether an address lies in memory that mimalloc has blocks in.
pub(crate) fn is_in_heap(block: *const u8) -> bool {
    // SAFETY: looks the address up in a table, and reads nothing at it.
    unsafe { mi_is_in_heap_region(block.cast()) }
}

/// # Safety
/// `block` is null or a block of mimalloc that is no longer used.
#[inline]
pub(crate) unsafe fn give(block: *mut u8) {
    // SAFETY: as the caller promises; from any thread.
    unsafe { mi_free(block.cast()) }
}

/// # Safety
/// `block` is a block of mimalloc.
#[inline]
pub(crate) unsafe fn usable(block: *const u8) -> usize {
    // SAFETY: as the caller promises.
    unsafe { mi_usable_size(block.cast()) }
}

/// A block of mimalloc's own, all zero, of a type's size and alignment; null if there is no memory.
pub(crate) fn zeroed<T>() -> *mut T {
    // SAFETY: a layout of a type: the alignment is a power of two.
    unsafe { mi_zalloc_aligned(size_of::<T>(), align_of::<T>()) }.cast()
}

/// A value in mimalloc's own memory, for ever; None if there is no memory.
pub(crate) fn leak<T: Sync + 'static>(value: T) -> Option<&'static T> {
    let place = ptr::NonNull::new(zeroed::<T>())?.as_ptr();
    // SAFETY: new memory of the size and alignment of the type.
    unsafe { place.write(value) };
    // SAFETY: written above, and never given back or changed but by its own interior.
    Some(unsafe { &*place })
}

/// A heap that takes memory from this range alone, and calls `commit` before it uses a part.
///
/// # Safety
/// The range is mapped, zero, and used by nothing else, for ever. `commit` may be called by any
/// thread with `argument`, from now on.
pub(crate) unsafe fn heap_of_range(
    start: *mut u8,
    bytes: usize,
    commit: CommitFn,
    argument: *mut c_void,
) -> Option<*mut RawHeap> {
    let mut arena: mi_arena_id_t = ptr::null_mut();
    let (start, commit, none) = (start.cast(), Some(commit), -1);
    let (is_committed, is_pinned, is_zero, is_exclusive) = (false, false, true, true);
    // SAFETY: as the caller promises; the id is written to a variable of ours.
    let is_made = unsafe {
        mi_manage_memory(
            start,
            bytes,
            is_committed,
            is_pinned,
            is_zero,
            none,
            is_exclusive,
            commit,
            argument,
            &raw mut arena,
        )
    };
    if !is_made {
        return None;
    }
    // SAFETY: an arena that was made above.
    let heap = unsafe { mi_heap_new_in_arena(arena) };
    ptr::NonNull::new(heap).map(ptr::NonNull::as_ptr)
}

/// Shows each page of a heap.
///
/// # Safety
/// `heap` is one of [`heap_of_range`]; `visitor` may be called with `argument` until this returns.
pub(crate) unsafe fn visit(heap: *mut RawHeap, visitor: AreaVisitor, argument: *mut c_void) {
    // SAFETY: as the caller promises. Pages are described from counts that other threads may
    // change meanwhile; what describes them is never unmapped.
    unsafe { mi_heap_visit_blocks(heap, false, Some(visitor), argument) };
}

/// New private memory, not backed yet; null if there are no addresses.
pub(crate) fn map(bytes: usize) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without a wish for an address nothing that is there is replaced.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED { ptr::null_mut() } else { start.cast() }
}

/// # Safety
/// The range is whole pages of [`map`], and no longer used.
pub(crate) unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: as the caller promises.
        let code = unsafe { libc::munmap(start.cast(), bytes) };
        debug_assert_eq!(code, 0);
    }
}

/// Gives pages back, which are zero when they are used again.
///
/// # Safety
/// The range is whole pages of [`map`] whose content is no longer used.
pub(crate) unsafe fn forget(start: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises. If it fails, the pages stay, which costs memory alone.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) };
}
