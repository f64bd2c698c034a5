//! Arenas, and the malloc family on them. A block knows where it came from: `free` and
//! `usable_size` need no arena.

use crate::Error;
use crate::locks;
use crate::mapped;
use crate::place::{MAPPED_BYTES_MIN, Place};
use crate::placer::{Kernel, Placer};
use crate::policy::{Hint, PLACEMENTS_MAX, Policy};
use crate::recent;
use crate::stats::{self, Statistics};
use crate::sys::{self, Request};
use allocator_api2::alloc::{AllocError, Allocator};
use std::alloc::Layout;
use std::io;
use std::ptr::{self, NonNull};
use std::str;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Of a process.
pub const ARENAS_MAX: usize = 64;
pub const NAME_BYTES_MAX: usize = 32;
/// What C's `malloc` promises.
const MALLOC_ALIGN: usize = 8;
const TRIAL_BYTES: usize = 4096;
/// The index of the placement for [`Hint::Far`].
const FAR: usize = 1;

static ARENAS: [AtomicPtr<Inner>; ARENAS_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; ARENAS_MAX];
/// The number of the next arena.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// What C programs hold a pointer to.
pub struct Inner {
    /// In [`ARENAS`].
    number: usize,
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
    policy: Policy,
    /// As many as the policy has placements.
    places: [Option<Place>; PLACEMENTS_MAX],
}

/// Memory by one policy, for all threads, until the process ends.
///
/// A block may be null: there is no memory, or a `bind` placement's nodes are full. Sizes beyond
/// `isize::MAX` are refused. A block of no bytes is a block like others.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Arena(&'static Inner);

impl Arena {
    /// # Errors
    /// All of [`Error`].
    pub fn new(name: &str, policy: Policy) -> Result<Arena, Error> {
        Arena::with_placer(name, policy, &Kernel)
    }

    /// As [`Arena::new`], with something in the kernel's place.
    ///
    /// # Errors
    /// All of [`Error`].
    pub fn with_placer(
        name: &str,
        policy: Policy,
        placer: &'static dyn Placer,
    ) -> Result<Arena, Error> {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.bytes().all(is_right) {
            return Err(Error::Name);
        }
        try_nodes(&policy, placer)?;
        locks::hold_at_forks();
        // Relaxed: a number alone.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let made = Arena::start(number, name, policy, placer);
        if made.is_err() {
            // The number is lost if another arena has been made meanwhile. Relaxed: as above.
            let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = NEXT.compare_exchange(number + 1, number, order, failed);
        }
        made
    }

    fn start(
        number: usize,
        name: &str,
        policy: Policy,
        placer: &'static dyn Placer,
    ) -> Result<Arena, Error> {
        let slot = ARENAS.get(number).ok_or(Error::Arenas)?;
        let mut kept = [0; NAME_BYTES_MAX];
        kept[..name.len()].copy_from_slice(name.as_bytes());
        let mut places = [const { None }; PLACEMENTS_MAX];
        for (place, placement) in places.iter_mut().zip(policy.placements()) {
            *place = Some(Place::new(*placement, placer));
        }
        let inner = Inner { number, name: kept, name_bytes: name.len(), policy, places };
        let inner = sys::leak(inner).ok_or(Error::Addresses)?;
        let arena = Arena(inner);
        arena.places().try_for_each(Place::start)?;
        // Release: pairs with the Acquire in `arenas`.
        slot.store(ptr::from_ref(inner).cast_mut(), Ordering::Release);
        Ok(arena)
    }

    pub fn name(self) -> &'static str {
        str::from_utf8(&self.0.name[..self.0.name_bytes]).unwrap_or_default()
    }

    pub fn policy(self) -> Policy {
        self.0.policy
    }

    pub(crate) fn places(self) -> impl Iterator<Item = &'static Place> {
        self.0.places.iter().flatten()
    }

    /// Where a thread remembers what it uses of the placement.
    #[inline]
    fn slot(self, bytes: usize, hint: Hint) -> usize {
        self.0.number * PLACEMENTS_MAX + self.0.policy.index(bytes, hint)
    }

    fn place(self, bytes: usize, hint: Hint) -> Option<&'static Place> {
        self.0.places[self.0.policy.index(bytes, hint)].as_ref()
    }

    #[inline]
    pub(crate) fn take(self, request: Request, hint: Hint) -> *mut u8 {
        let Request { bytes, align, is_zero } = request;
        let is_aligned = align <= sys::natural_align(bytes);
        let block = if is_aligned { self.take_usual(bytes, is_zero, hint) } else { None };
        block.map_or_else(|| self.take_unusual(request, hint), NonNull::as_ptr)
    }

    /// From what this thread has of the heap that gave it the last block.
    #[inline]
    fn take_usual(self, bytes: usize, is_zero: bool, hint: Hint) -> Option<NonNull<u8>> {
        let theap = recent::theap(self.slot(bytes, hint));
        if bytes >= MAPPED_BYTES_MIN || theap.is_null() {
            return None;
        }
        // SAFETY: this thread's own.
        NonNull::new(unsafe { sys::take_of_thread(theap, bytes, is_zero) })
    }

    /// The first block of a thread, or one that is long, or aligned, or from a full region.
    #[inline(never)]
    fn take_unusual(self, request: Request, hint: Hint) -> *mut u8 {
        let Request { bytes, .. } = request;
        let Some(place) = self.place(bytes, hint).filter(|_| bytes <= isize::MAX as usize) else {
            return ptr::null_mut();
        };
        let block = place.alloc(request);
        if !block.is_null() && bytes < MAPPED_BYTES_MIN {
            // SAFETY: a heap of the placement.
            unsafe { recent::remember(self.slot(bytes, hint), place.heap()) };
        }
        block
    }

    #[inline]
    pub fn malloc(self, bytes: usize) -> *mut u8 {
        self.malloc_hint(bytes, Hint::Near)
    }

    #[inline]
    pub fn malloc_hint(self, bytes: usize, hint: Hint) -> *mut u8 {
        match self.take_usual(bytes, false, hint) {
            Some(block) => block.as_ptr(),
            None => self.malloc_unusual(bytes, hint),
        }
    }

    #[inline(never)]
    fn malloc_unusual(self, bytes: usize, hint: Hint) -> *mut u8 {
        self.take_unusual(Request { bytes, align: MALLOC_ALIGN, is_zero: false }, hint)
    }

    /// All bytes are zero; null if the product is too large.
    #[inline]
    pub fn calloc(self, count: usize, bytes: usize) -> *mut u8 {
        match count.checked_mul(bytes) {
            Some(bytes) => {
                self.take(Request { bytes, align: MALLOC_ALIGN, is_zero: true }, Hint::Near)
            }
            None => ptr::null_mut(),
        }
    }

    /// Null if the alignment is no power of two.
    #[inline]
    pub fn aligned_alloc(self, align: usize, bytes: usize) -> *mut u8 {
        match align.is_power_of_two() {
            true => self.take(Request { bytes, align, is_zero: false }, Hint::Near),
            false => ptr::null_mut(),
        }
    }

    /// A block of another size with the bytes of the old one, which is gone. If there is no memory
    /// the answer is null, and the old one stays. A block of another arena moves to this one; in an
    /// arena by hint a block stays where its hint put it.
    ///
    /// # Safety
    /// `block` is null or a block of an arena, and only the answer is used from now on.
    #[inline]
    pub unsafe fn realloc(self, block: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.resize(block, bytes, MALLOC_ALIGN) }
    }

    /// As [`Arena::realloc`], aligned.
    ///
    /// # Safety
    /// As of [`Arena::realloc`]; the block has that alignment, a power of two.
    #[inline]
    pub(crate) unsafe fn resize(self, block: *mut u8, bytes: usize, align: usize) -> *mut u8 {
        let request = Request { bytes, align, is_zero: false };
        if block.is_null() {
            return self.take(request, Hint::Near);
        }
        // SAFETY: a block, as the caller promises.
        let holds = |place: &Place| unsafe { place.holds(block) };
        let is_far = self.0.policy.is_by_hint() && self.0.places[FAR].as_ref().is_some_and(holds);
        let hint = if is_far { Hint::Far } else { Hint::Near };
        // SAFETY: as above.
        let usable = unsafe { usable_size(block) };
        let is_enough = bytes <= usable;
        if is_enough && bytes >= usable / 2 && self.place(bytes, hint).is_some_and(holds) {
            return block;
        }
        let new = self.take(request, hint);
        if new.is_null() {
            // A program does not expect that less memory cannot be had.
            return if is_enough { block } else { new };
        }
        // SAFETY: two blocks, each at least that long.
        unsafe { ptr::copy_nonoverlapping(block, new, bytes.min(usable)) };
        // SAFETY: as the caller promises.
        unsafe { free(block) };
        new
    }

    /// A block for a layout; for none of no bytes. Given back by [`Arena::deallocate`] or [`free`].
    #[inline]
    pub fn allocate(self, layout: Layout, hint: Hint) -> Option<NonNull<u8>> {
        let request = Request { bytes: layout.size(), align: layout.align(), is_zero: false };
        NonNull::new(self.take(request, hint))
    }

    /// # Safety
    /// `block` is a block of an arena, and no longer used.
    #[inline]
    pub unsafe fn deallocate(self, block: NonNull<u8>) {
        // SAFETY: as the caller promises.
        unsafe { free(block.as_ptr()) }
    }

    /// Looks at every page of every heap: for people and scrapers, not for every request.
    pub fn statistics(self) -> Statistics {
        stats::statistics(self)
    }

    /// Bytes of addresses that a node was given to; looks at no page.
    pub fn node_bytes(self, node: u16) -> u64 {
        let of = |place: &Place| {
            let shares = place.placement.shares().iter().enumerate();
            shares.filter(|(_, s)| s.node == node).map(|(i, _)| place.placed(i)).sum::<u64>()
        };
        self.places().map(of).sum()
    }

    pub(crate) fn as_ptr(self) -> *const Inner {
        self.0
    }

    /// # Safety
    /// `inner` is null or of [`Arena::as_ptr`].
    pub(crate) unsafe fn from_ptr(inner: *const Inner) -> Option<Arena> {
        // SAFETY: never freed.
        unsafe { inner.as_ref() }.map(Arena)
    }
}

/// Whether each node can be used, by a page that is given back.
fn try_nodes(policy: &Policy, placer: &'static dyn Placer) -> Result<(), Error> {
    let trial = sys::map(TRIAL_BYTES);
    if trial.is_null() {
        return Err(Error::Addresses);
    }
    let mut nodes = policy.placements().iter().flat_map(|placement| {
        placement.shares().iter().map(|share| (share.node, placement.is_strict()))
    });
    let outcome = nodes.try_for_each(|(node, is_strict)| {
        placer.place(trial, TRIAL_BYTES, node, is_strict).map_err(|error: io::Error| {
            match error.raw_os_error() {
                Some(libc::EINVAL) | None => Error::Node { node },
                Some(errno) => Error::Refused { errno },
            }
        })
    });
    // SAFETY: made above, and used by nothing.
    unsafe { sys::unmap(trial, TRIAL_BYTES) };
    outcome
}

/// All arenas of the process.
pub fn arenas() -> impl Iterator<Item = Arena> {
    // Acquire: pairs with the Release in `start`.
    let slots = ARENAS.iter().map(|slot| slot.load(Ordering::Acquire));
    // SAFETY: null, or an arena, which is never freed.
    slots.filter_map(|inner| unsafe { inner.as_ref() }.map(Arena))
}

/// Gives a block back, in any thread.
///
/// # Safety
/// `block` is null or a block of an arena, and no longer used.
#[inline]
pub unsafe fn free(block: *mut u8) {
    if block.addr().is_multiple_of(mapped::ALIGN) {
        // SAFETY: as the caller promises.
        unsafe { free_aligned(block) }
    } else {
        // SAFETY: as the caller promises, and of mimalloc: others are aligned.
        unsafe { sys::give(block) }
    }
}

/// # Safety
/// As of [`free`].
#[cold]
unsafe fn free_aligned(block: *mut u8) {
    if block.is_null() {
    } else if mapped::is_mapped(block) {
        // SAFETY: as the caller promises.
        unsafe { mapped::free(block) }
    } else {
        // SAFETY: as the caller promises.
        unsafe { sys::give(block) }
    }
}

/// How many bytes of a block may be used: at least what was asked for. 0 for null.
///
/// # Safety
/// `block` is null or a block of an arena.
#[inline]
pub unsafe fn usable_size(block: *const u8) -> usize {
    if block.is_null() {
        return 0;
    }
    if mapped::is_mapped(block) {
        // SAFETY: as the caller promises.
        unsafe { mapped::usable(block) }
    } else {
        // SAFETY: as the caller promises.
        unsafe { sys::usable(block) }
    }
}

// SAFETY: an arena gives blocks of its layout that stay until they are given back, also to copies
// of the arena, which are the same one.
unsafe impl Allocator for Arena {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let block = match layout.size() {
            0 => NonNull::new(ptr::without_provenance_mut(layout.align())),
            _ => Arena::allocate(*self, layout, Hint::Near),
        };
        let block = block.ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(block, layout.size()))
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if layout.size() > 0 {
            // SAFETY: a block of an arena, as the caller promises.
            unsafe { free(block.as_ptr()) }
        }
    }
}
