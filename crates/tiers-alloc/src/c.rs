//! The C interface: see `include/rackpool_tiers.h`, which says what each function promises.

use crate::Error;
use crate::arena::{Arena, Inner, free, usable_size};
use crate::error::text;
use crate::global::make;
use crate::policy::Hint;
use crate::stats::{class_of, prometheus};
use crate::sys::Request;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt::{self, Write};
use std::ptr;
use std::sync::OnceLock;

/// `RACKPOOL_TIERS_FAR`.
const FAR: c_int = 1;
/// Where [`rackpool_tiers_default_arena`] finds its policy.
const POLICY_VARIABLE: &CStr = c"RACKPOOL_TIERS_POLICY";

/// What C expects of a failure.
fn told(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

fn set_errno(error: c_int) {
    // SAFETY: takes nothing.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own variable.
    unsafe { errno.write(error) };
}

/// # Safety
/// `arena` is null or of `rackpool_tiers_arena_create`.
unsafe fn block(arena: *const Inner, take: impl FnOnce(Arena) -> *mut u8) -> *mut c_void {
    // SAFETY: as the caller promises.
    told(unsafe { Arena::from_ptr(arena) }.map_or(ptr::null_mut(), take))
}

fn made(name: Option<&str>, policy: Option<&str>) -> Result<Arena, Error> {
    let policy = policy.ok_or(Error::Policy)?.parse()?;
    Arena::new(name.ok_or(Error::Name)?, policy)
}

/// # Safety
/// `text` is null or a C string, and stays.
unsafe fn read<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// # Safety
/// C strings or null, and a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_arena_create(
    name: *const c_char,
    policy: *const c_char,
    arena: *mut *const Inner,
) -> c_int {
    // SAFETY: as the caller promises.
    let name = unsafe { read(name) };
    // SAFETY: as the caller promises.
    let policy = unsafe { read(policy) };
    let (made, code) = match made(name, policy) {
        Ok(made) => (made.as_ptr(), 0),
        Err(error) => (ptr::null(), error.code()),
    };
    // SAFETY: as the caller promises.
    unsafe { arena.write(made) };
    code
}

#[unsafe(no_mangle)]
pub extern "C" fn rackpool_tiers_error_text(code: c_int) -> *const c_char {
    text(code).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn rackpool_tiers_default_arena() -> *const Inner {
    static DEFAULT: OnceLock<Option<Arena>> = OnceLock::new();
    let arena = DEFAULT.get_or_init(|| {
        // SAFETY: a C string; a program that changes its environment while it allocates first is
        // wrong in any case.
        let policy = unsafe { libc::getenv(POLICY_VARIABLE.as_ptr()) };
        // SAFETY: null or a C string.
        make("default", unsafe { read(policy) }.unwrap_or("RACKPOOL_TIERS_POLICY is not set"))
    });
    arena.map_or(ptr::null(), Arena::as_ptr)
}

/// # Safety
/// See [`block`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_malloc(arena: *const Inner, bytes: usize) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { block(arena, |arena| arena.malloc(bytes)) }
}

/// # Safety
/// See [`block`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_malloc_hint(
    arena: *const Inner,
    bytes: usize,
    hint: c_int,
) -> *mut c_void {
    let hint = if hint == FAR { Hint::Far } else { Hint::Near };
    // SAFETY: as the caller promises.
    unsafe { block(arena, |arena| arena.malloc_hint(bytes, hint)) }
}

/// # Safety
/// See [`block`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_calloc(
    arena: *const Inner,
    count: usize,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    unsafe { block(arena, |arena| arena.calloc(count, bytes)) }
}

/// # Safety
/// See [`block`] and [`Arena::realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_realloc(
    arena: *const Inner,
    old: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    let resize = |arena: Arena| unsafe { arena.realloc(old.cast(), bytes) };
    // SAFETY: as the caller promises.
    unsafe { block(arena, resize) }
}

/// # Safety
/// See [`block`] and [`Arena::realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_reallocarray(
    arena: *const Inner,
    old: *mut c_void,
    count: usize,
    bytes: usize,
) -> *mut c_void {
    // A product that overflows is more than any block has.
    let bytes = count.saturating_mul(bytes);
    // SAFETY: as the caller promises.
    unsafe { rackpool_tiers_realloc(arena, old, bytes) }
}

/// # Safety
/// See [`block`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_aligned_alloc(
    arena: *const Inner,
    align: usize,
    bytes: usize,
) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    unsafe { block(arena, |arena| arena.aligned_alloc(align, bytes)) }
}

/// # Safety
/// See [`block`]; `result` is a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_posix_memalign(
    arena: *const Inner,
    result: *mut *mut c_void,
    align: usize,
    bytes: usize,
) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*const c_void>()) {
        return libc::EINVAL;
    }
    // SAFETY: as the caller promises.
    let Some(arena) = (unsafe { Arena::from_ptr(arena) }) else { return libc::ENOMEM };
    let made = arena.take(Request { bytes, align, is_zero: false }, Hint::Near);
    if made.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: as the caller promises.
    unsafe { result.write(made.cast()) };
    0
}

/// # Safety
/// See [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_free(block: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { free(block.cast()) }
}

/// # Safety
/// See [`usable_size`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_usable_size(block: *const c_void) -> usize {
    // SAFETY: as the caller promises.
    unsafe { usable_size(block.cast()) }
}

/// # Safety
/// See [`block`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_node_bytes(arena: *const Inner, node: c_uint) -> u64 {
    // SAFETY: as the caller promises.
    let arena = unsafe { Arena::from_ptr(arena) };
    let (Some(arena), Ok(node)) = (arena, u16::try_from(node)) else { return 0 };
    arena.node_bytes(node)
}

/// # Safety
/// See [`block`]; `class_bytes` is null or a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_class_blocks(
    arena: *const Inner,
    block_bytes: usize,
    class_bytes: *mut u64,
) -> u64 {
    // SAFETY: as the caller promises.
    let arena = unsafe { Arena::from_ptr(arena) };
    let class = arena.map(|arena| arena.statistics().class(class_of(block_bytes)));
    let class = class.unwrap_or_default();
    // SAFETY: as the caller promises.
    if let Some(bytes) = unsafe { class_bytes.as_mut() } {
        *bytes = class.bytes;
    }
    class.blocks
}

/// # Safety
/// `buffer` has `bytes` bytes, or is null and has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rackpool_tiers_prometheus(buffer: *mut c_char, bytes: usize) -> usize {
    let mut text = Text { buffer: buffer.cast(), bytes, length: 0 };
    // It never fails.
    let _ = prometheus(&mut text);
    if bytes > 0 {
        let end = text.buffer.wrapping_add(text.length.min(bytes - 1));
        // SAFETY: within the buffer.
        unsafe { end.write(0) };
    }
    text.length
}

/// Fills a buffer, and counts what does not fit.
struct Text {
    buffer: *mut u8,
    bytes: usize,
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.bytes.saturating_sub(1 + self.length).min(more.len());
        let end = self.buffer.wrapping_add(self.length);
        if room > 0 {
            // SAFETY: so much is left in the caller's buffer, before its last byte.
            unsafe { ptr::copy_nonoverlapping(more.as_ptr(), end, room) };
        }
        self.length += more.len();
        Ok(())
    }
}
