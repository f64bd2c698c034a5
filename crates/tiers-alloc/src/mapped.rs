//! Blocks that are mappings of their own: long ones, and those aligned to more than 64 KiB. A block
//! begins with a huge page, by which it is told from mimalloc's; a page before it says what it is.

use crate::locks;
use crate::place::Place;
use crate::region::EXTENT_BYTES;
use crate::stats::class_of;
use crate::sys::{self, Request};
use std::ptr;
use std::sync::atomic::Ordering;

const PAGE_BYTES: usize = 4096;
/// Every block of this kind is aligned to it, and few others are.
pub(crate) const ALIGN: usize = EXTENT_BYTES;
const MAGIC: u64 = 0x7261_636b_7469_6572;
/// Of a block; longer ones have longer extents.
const EXTENTS_MAX: usize = 2048;

#[repr(C)]
struct Header {
    magic: u64,
    place: &'static Place,
    /// Of the block, whole pages.
    bytes: usize,
    extent_bytes: usize,
    /// What each extent was given, as [`Place::deal`] says it.
    states: [u8; EXTENTS_MAX],
}

const _: () = assert!(size_of::<Header>() <= PAGE_BYTES);

/// Whether a block that is no null is of this kind.
#[inline]
pub(crate) fn is_mapped(block: *const u8) -> bool {
    block.addr().is_multiple_of(ALIGN) && !sys::is_in_heap(block)
}

#[cold]
pub(crate) fn alloc(place: &'static Place, request: Request) -> *mut u8 {
    let align = request.align.max(ALIGN);
    let bytes = request.bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
    // The header lies in what is left before the block.
    let total = bytes.and_then(|bytes| bytes.checked_add(align)?.checked_add(PAGE_BYTES));
    let (Some(bytes), Some(total)) = (bytes, total) else { return ptr::null_mut() };
    let mapping = sys::map(total);
    if mapping.is_null() {
        return ptr::null_mut();
    }
    let behind_header = mapping.wrapping_add(PAGE_BYTES);
    let block = behind_header.wrapping_add(behind_header.align_offset(align));
    let before = block.addr() - mapping.addr() - PAGE_BYTES;
    // SAFETY: the beginning of the new mapping, before the header.
    unsafe { sys::unmap(mapping, before) };
    // SAFETY: the end of the new mapping, behind the block.
    unsafe { sys::unmap(block.wrapping_add(bytes), total - before - PAGE_BYTES - bytes) };
    let extent_bytes = place.extent_bytes().max(bytes.div_ceil(EXTENTS_MAX).next_power_of_two());
    let states = [0; EXTENTS_MAX];
    let header = header_of(block);
    // SAFETY: a page of the new mapping.
    unsafe { header.write(Header { magic: MAGIC, place, bytes, extent_bytes, states }) };
    // SAFETY: written above; the block is this thread's alone.
    let is_backed = deal(unsafe { &mut *header }, block);
    let class = class_of(bytes);
    // Relaxed: counts alone.
    place.mapped_blocks[class].fetch_add(1, Ordering::Relaxed);
    place.mapped_bytes[class].fetch_add(bytes as u64, Ordering::Relaxed);
    if !is_backed {
        // SAFETY: made above, and given to none.
        unsafe { free(block) };
        return ptr::null_mut();
    }
    block
}

fn header_of(block: *mut u8) -> *mut Header {
    block.wrapping_sub(PAGE_BYTES).cast()
}

/// Gives each extent its node. False if there is no memory.
fn deal(header: &mut Header, block: *mut u8) -> bool {
    let Header { place, bytes, extent_bytes, ref mut states, .. } = *header;
    for (index, state) in states.iter_mut().enumerate().take(bytes.div_ceil(extent_bytes)) {
        let start = block.wrapping_add(index * extent_bytes);
        let length = extent_bytes.min(bytes - index * extent_bytes);
        let dealing = locks::dealing();
        let Some(dealt) = place.deal(&dealing, start, length) else { return false };
        drop(dealing);
        *state = dealt;
        if !place.back(dealt, start, length) {
            return false;
        }
    }
    true
}

/// # Safety
/// `block` is of this kind, and no longer used.
pub(crate) unsafe fn free(block: *mut u8) {
    let header = header_of(block);
    // SAFETY: the page before a block of this kind.
    let Header { magic, place, bytes, extent_bytes, states } = unsafe { header.read() };
    if magic != MAGIC {
        // No block: an allocator must not unwind.
        std::process::abort();
    }
    for (index, state) in states.into_iter().enumerate().take_while(|(_, state)| *state != 0) {
        place.undo(state, extent_bytes.min(bytes - index * extent_bytes));
    }
    let class = class_of(bytes);
    // Relaxed: counts alone.
    place.mapped_blocks[class].fetch_sub(1, Ordering::Relaxed);
    place.mapped_bytes[class].fetch_sub(bytes as u64, Ordering::Relaxed);
    // SAFETY: the whole mapping, which the caller no longer uses.
    unsafe { sys::unmap(header.cast(), PAGE_BYTES + bytes) };
}

/// # Safety
/// `block` is of this kind.
pub(crate) unsafe fn usable(block: *const u8) -> usize {
    // SAFETY: the page before a block of this kind.
    unsafe { (*header_of(block.cast_mut())).bytes }
}

/// # Safety
/// `block` is of this kind.
pub(crate) unsafe fn place_of(block: *const u8) -> &'static Place {
    // SAFETY: the page before a block of this kind.
    unsafe { (*header_of(block.cast_mut())).place }
}
