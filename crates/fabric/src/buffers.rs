//! Local buffers of a fabric endpoint: private memory of this process that work requests name by
//! id. Owns the registrations. In: buffers given away (`register`) or lent for the length of a
//! closure ([`with_scope`]). Out: slices for sending and receiving, valid while registered.
//!
//! Ownership rule: a lent buffer is in the table exactly while [`with_scope`] runs, which holds
//! its borrow; the guard there takes it out, on return and on panic, before the borrow ends, or
//! ends the process if it cannot. Everything else is safe code on top of that.
//!
//! Used by one thread, the endpoint's.

use super::{FabricError, LocalBuffers};
use rackpool_core::constants::FABRIC_BUFFERS_MAX;
use rackpool_core::seam::{BufId, Fabric, Sge};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// A buffer that is lent to an endpoint.
pub enum LocalBuffer<'a> {
    /// Source of WRITE and SEND.
    From(&'a [u8]),
    /// Destination of READ, and source.
    Into(&'a mut [u8]),
}

/// The ids of the buffers of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopedBuffers {
    first: u32,
    count: u32,
    scope: u32,
}

impl ScopedBuffers {
    /// The id of the buffer that was `index`-th in the call. Panics if there was none.
    #[inline]
    pub fn id(&self, index: usize) -> BufId {
        assert!(index < self.count as usize, "buffer {index} of {}", self.count);
        pack(SCOPED, self.scope, self.first + index as u32)
    }

    /// Whether `buf` is one of these.
    #[inline]
    pub(super) fn contains(&self, buf: BufId) -> bool {
        let slot = buf.0 & SLOT_MASK;
        buf.0 & SCOPED != 0 && (self.first..self.first + self.count).contains(&slot)
    }
}

/// Ids: bit 31 tells lent from owned, 15 bits count the uses, 16 bits are the slot. The count
/// only serves to find bugs, so it may wrap.
const SCOPED: u32 = 1 << 31;
const SLOT_MASK: u32 = 0xffff;
const USE_MASK: u32 = 0x7fff;
const _: () = assert!(FABRIC_BUFFERS_MAX <= SLOT_MASK as usize);

fn pack(kind: u32, uses: u32, slot: u32) -> BufId {
    BufId(kind | (uses & USE_MASK) << 16 | slot)
}

fn uses_of(buf: BufId) -> u32 {
    buf.0 >> 16 & USE_MASK
}

/// Memory that a buffer, or a piece of one, consists of.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: it stands for a `Vec<u8>`, a `&[u8]` or a `&mut [u8]`, all of which may go to another
// thread together with the table that holds it.
unsafe impl Send for Memory {}

impl Memory {
    fn of(bytes: NonNull<[u8]>, writable: bool) -> Self {
        Self { start: bytes.cast(), bytes: bytes.len(), writable }
    }

    /// A part of it, which the caller has checked.
    fn part(&self, offset: u64, bytes: u64) -> NonNull<[u8]> {
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes as u64);
        assert!(end.is_some(), "{bytes} bytes at {offset} of a buffer of {} bytes", self.bytes);
        // SAFETY: the sum is within the memory, as was just checked.
        let start = unsafe { self.start.add(offset as usize) };
        NonNull::slice_from_raw_parts(start, bytes as usize)
    }
}

/// The registrations of one endpoint.
pub(super) struct Buffers {
    owned: Vec<Owned>,
    owned_free: Vec<u32>,
    owned_max: usize,
    lent: Vec<Lent>,
    scopes: u32,
    identity: u64,
}

struct Owned {
    uses: u32,
    held: Option<Registration>,
}

struct Registration {
    memory: Memory,
    /// Capacity of the vector that it was; `None` for memory that the table does not own.
    capacity: Option<usize>,
}

struct Lent {
    memory: Memory,
    scope: u32,
}

impl Default for Buffers {
    fn default() -> Self {
        Self::new()
    }
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self::with_limit(FABRIC_BUFFERS_MAX)
    }

    /// A table for so many owned buffers, at most `SLOT_MASK`.
    pub(super) fn with_limit(owned_max: usize) -> Self {
        static IDENTITY: AtomicU64 = AtomicU64::new(0);
        Self {
            owned: Vec::new(),
            owned_free: Vec::new(),
            owned_max: owned_max.min(SLOT_MASK as usize),
            lent: Vec::with_capacity(FABRIC_BUFFERS_MAX),
            scopes: 0,
            // Relaxed: only the value's uniqueness matters.
            identity: IDENTITY.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(super) fn register(&mut self, bytes: Vec<u8>) -> Result<BufId, FabricError> {
        let slot = self.free_slot()?;
        let mut bytes = ManuallyDrop::new(bytes);
        let capacity = Some(bytes.capacity());
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is never null");
        let memory = Memory { start, bytes: bytes.len(), writable: true };
        Ok(self.hold(slot, Registration { memory, capacity }))
    }

    /// Takes memory of another owner into the table, until [`Buffers::release`].
    ///
    /// # Safety
    /// Until then the memory stays, and no other code touches it, except that all may read what is
    /// not writable.
    pub(super) unsafe fn adopt(&mut self, memory: Memory) -> Result<BufId, FabricError> {
        let slot = self.free_slot()?;
        Ok(self.hold(slot, Registration { memory, capacity: None }))
    }

    fn free_slot(&mut self) -> Result<u32, FabricError> {
        if let Some(slot) = self.owned_free.pop() {
            return Ok(slot);
        }
        if self.owned.len() == self.owned_max {
            return Err(FabricError::BuffersFull { limit: self.owned_max });
        }
        self.owned.push(Owned { uses: 0, held: None });
        Ok(self.owned.len() as u32 - 1)
    }

    fn hold(&mut self, slot: u32, held: Registration) -> BufId {
        let entry = &mut self.owned[slot as usize];
        entry.uses = (entry.uses + 1) & USE_MASK;
        entry.held = Some(held);
        pack(0, entry.uses, slot)
    }

    /// The caller has made sure that no work request names the buffer.
    pub(super) fn take(&mut self, buf: BufId) -> Vec<u8> {
        self.forget(buf).into_vec().expect("what was adopted is released")
    }

    /// As [`Buffers::take`], for a buffer that was adopted or is of no use any more.
    pub(super) fn release(&mut self, buf: BufId) {
        drop(self.forget(buf).into_vec());
    }

    fn forget(&mut self, buf: BufId) -> Registration {
        self.owned(buf);
        let slot = buf.0 & SLOT_MASK;
        self.owned_free.push(slot);
        self.owned[slot as usize].held.take().expect("it was just found")
    }

    fn memory(&self, buf: BufId) -> &Memory {
        let slot = (buf.0 & SLOT_MASK) as usize;
        if buf.0 & SCOPED != 0 {
            let entry = self.lent.get(slot);
            let entry = entry.filter(|entry| entry.scope & USE_MASK == uses_of(buf));
            return &entry.expect("a work request names a buffer that is lent now").memory;
        }
        let entry = self.owned.get(slot).filter(|entry| entry.uses == uses_of(buf));
        let held = entry.and_then(|entry| entry.held.as_ref());
        &held.expect("a work request or call names a buffer that is registered").memory
    }

    /// All of an owned buffer.
    pub(super) fn whole(&self, buf: BufId) -> Sge {
        assert_eq!(buf.0 & SCOPED, 0, "a call names a buffer that is registered");
        Sge { buf, offset: 0, bytes: self.memory(buf).bytes as u64 }
    }

    pub(super) fn owned(&self, buf: BufId) -> &[u8] {
        self.slice(&self.whole(buf))
    }

    pub(super) fn owned_mut(&mut self, buf: BufId) -> &mut [u8] {
        self.slice_mut(&self.whole(buf))
    }

    /// Panics unless `piece` lies within a registered buffer that may be used this way.
    #[inline]
    pub(super) fn check(&self, piece: &Sge, writable: bool) {
        self.piece(piece, writable);
    }

    fn piece(&self, piece: &Sge, writable: bool) -> NonNull<[u8]> {
        let memory = self.memory(piece.buf);
        assert!(memory.writable || !writable, "a READ into a buffer that was lent to send from");
        memory.part(piece.offset, piece.bytes)
    }

    /// All memory of a buffer that is registered or lent now, and whether it may be written.
    #[cfg(feature = "verbs")]
    pub(super) fn whole_memory(&self, buf: BufId) -> (NonNull<[u8]>, bool) {
        let memory = self.memory(buf);
        (memory.part(0, memory.bytes as u64), memory.writable)
    }

    /// The memory of a piece, for the table of another endpoint. Panics as [`Buffers::check`].
    pub(super) fn memory_of(&self, piece: &Sge, writable: bool) -> Memory {
        Memory::of(self.piece(piece, writable), writable)
    }

    /// The bytes of a piece, to be sent.
    #[inline]
    pub(super) fn slice(&self, piece: &Sge) -> &[u8] {
        // SAFETY: the buffer is in the table. If it is owned, only this table reaches it. If it is
        // lent, `with_scope` still holds the borrow that the pointer came from, and no other code
        // reaches the bytes meanwhile; if it is adopted, that is what `adopt` was promised.
        // `slice_mut` needs `&mut self`.
        unsafe { self.piece(piece, false).as_ref() }
    }

    /// The bytes of a piece, to be received into.
    #[inline]
    pub(super) fn slice_mut(&mut self, piece: &Sge) -> &mut [u8] {
        let mut memory = self.piece(piece, true);
        // SAFETY: as in `slice`; writable memory came from a `Vec<u8>` or a `&mut [u8]`, and
        // `&mut self` makes this the only slice of it.
        unsafe { memory.as_mut() }
    }

    fn enter(&mut self, buffers: &mut [LocalBuffer<'_>]) -> Result<ScopedBuffers, FabricError> {
        if self.lent.len() + buffers.len() > FABRIC_BUFFERS_MAX {
            return Err(FabricError::BuffersFull { limit: FABRIC_BUFFERS_MAX });
        }
        self.scopes = self.scopes.wrapping_add(1);
        let (scope, first) = (self.scopes, self.lent.len() as u32);
        for buffer in buffers.iter_mut() {
            let memory = match buffer {
                LocalBuffer::From(bytes) => Memory::of(NonNull::from(*bytes), false),
                LocalBuffer::Into(bytes) => Memory::of(NonNull::from(&mut **bytes), true),
            };
            self.lent.push(Lent { memory, scope });
        }
        Ok(ScopedBuffers { first, count: buffers.len() as u32, scope })
    }

    /// Scopes nest, so the innermost one is at the end of the table.
    fn leave(&mut self, scope: ScopedBuffers) {
        assert_eq!(self.lent.len() as u32, scope.first + scope.count, "scopes nest");
        self.lent.truncate(scope.first as usize);
    }
}

impl Registration {
    /// The vector that it was; `None` if it is somebody else's.
    fn into_vec(self) -> Option<Vec<u8>> {
        let Memory { start, bytes, .. } = self.memory;
        // SAFETY: `register` took these three out of a vector that it did not drop; only the code
        // that took it out of the table gives it back here, once.
        self.capacity.map(|all| unsafe { Vec::from_raw_parts(start.as_ptr(), bytes, all) })
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.owned.drain(..).filter_map(|entry| entry.held?.into_vec()).for_each(drop);
    }
}

/// An endpoint with a table of buffers.
pub(super) trait BufferOwner {
    fn buffers(&self) -> &Buffers;
    /// The table, to be changed.
    fn buffers_mut(&mut self) -> &mut Buffers;
    /// Makes sure that no work request under way touches a buffer for which `named` holds.
    fn let_go(&mut self, named: impl Fn(BufId) -> bool);
    /// Panics if another thread may change bytes of `piece` now, or, unless its user only `reads`,
    /// look at them.
    fn require_idle(&self, _piece: &Sge, _reads: bool) {}
}

impl<T: BufferOwner + Fabric> LocalBuffers for T {
    fn with_buffers<R>(
        &mut self,
        buffers: &mut [LocalBuffer<'_>],
        run: impl FnOnce(&mut Self, ScopedBuffers) -> R,
    ) -> Result<R, FabricError> {
        with_scope(self, buffers, run)
    }

    fn register(&mut self, bytes: Vec<u8>) -> Result<BufId, FabricError> {
        self.buffers_mut().register(bytes)
    }

    fn take(&mut self, buf: BufId) -> Vec<u8> {
        self.let_go(|named| named == buf);
        self.buffers_mut().take(buf)
    }

    fn buffer(&self, buf: BufId) -> &[u8] {
        self.require_idle(&self.buffers().whole(buf), true);
        self.buffers().owned(buf)
    }

    fn buffer_mut(&mut self, buf: BufId) -> &mut [u8] {
        self.require_idle(&self.buffers().whole(buf), false);
        self.buffers_mut().owned_mut(buf)
    }

    fn piece(&self, piece: &Sge) -> &[u8] {
        self.buffers().check(piece, false);
        self.require_idle(piece, true);
        self.buffers().slice(piece)
    }

    fn piece_mut(&mut self, piece: &Sge) -> &mut [u8] {
        self.buffers().check(piece, true);
        self.require_idle(piece, false);
        self.buffers_mut().slice_mut(piece)
    }
}

/// Lends `buffers` to `owner` while `run` runs.
fn with_scope<T: BufferOwner, R>(
    owner: &mut T,
    buffers: &mut [LocalBuffer<'_>],
    run: impl FnOnce(&mut T, ScopedBuffers) -> R,
) -> Result<R, FabricError> {
    let scope = owner.buffers_mut().enter(buffers)?;
    let identity = owner.buffers().identity;
    let guard = Guard { owner, scope, identity };
    Ok(run(&mut *guard.owner, scope))
}

struct Guard<'a, T: BufferOwner> {
    owner: &'a mut T,
    scope: ScopedBuffers,
    identity: u64,
}

impl<T: BufferOwner> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // Unwinding out of here would leave pointers to the buffers behind, and so would an
        // endpoint that was exchanged for another: the process ends instead.
        let bomb = AbortOnDrop;
        if self.owner.buffers().identity == self.identity {
            let scope = self.scope;
            self.owner.let_go(|buf| scope.contains(buf));
            self.owner.buffers_mut().leave(scope);
            std::mem::forget(bomb);
        }
    }
}

struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        rackpool_mem::log::abort(format_args!(
            "lent buffers could not be taken back; the process ends"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestOwner(Buffers, u32);

    impl BufferOwner for TestOwner {
        fn buffers(&self) -> &Buffers {
            &self.0
        }
        fn buffers_mut(&mut self) -> &mut Buffers {
            &mut self.0
        }
        fn let_go(&mut self, _: impl Fn(BufId) -> bool) {
            self.1 += 1;
        }
    }

    #[test]
    fn lent_buffers_nest_and_are_gone_after_a_panic() {
        let mut bare = TestOwner(Buffers::new(), 0);
        let (from, mut into) = ([1u8; 4], [0u8; 4]);
        with_scope(&mut bare, &mut [LocalBuffer::Into(&mut into)], |bare, outer| {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                with_scope(bare, &mut [LocalBuffer::From(&from)], |bare, inner| {
                    let piece = Sge { buf: inner.id(0), offset: 1, bytes: 3 };
                    bare.0.check(&piece, false);
                    assert_eq!(bare.0.slice(&piece), [1, 1, 1]);
                    panic!("on purpose");
                })
            }));
            assert!(panicked.is_err());
            assert_eq!(bare.0.lent.len(), 1);
            let piece = Sge { buf: outer.id(0), offset: 0, bytes: 4 };
            bare.0.slice_mut(&piece).copy_from_slice(&[9; 4]);
        })
        .unwrap();
        assert_eq!(into, [9; 4]);
        assert!(bare.0.lent.is_empty());
        assert_eq!(bare.1, 2);
    }

    #[test]
    #[should_panic(expected = "lent now")]
    fn the_id_of_an_ended_scope_is_refused() {
        let mut bare = TestOwner(Buffers::new(), 0);
        let bytes = [0u8; 4];
        let old = with_scope(&mut bare, &mut [LocalBuffer::From(&bytes)], |_, ids| ids.id(0));
        let old = old.unwrap();
        with_scope(&mut bare, &mut [LocalBuffer::From(&bytes)], |bare, _| {
            bare.0.check(&Sge { buf: old, offset: 0, bytes: 1 }, false);
        })
        .unwrap();
    }

    #[test]
    #[should_panic(expected = "lent to send from")]
    fn a_buffer_lent_to_send_from_cannot_be_read_into() {
        let mut bare = TestOwner(Buffers::new(), 0);
        let bytes = [0u8; 4];
        with_scope(&mut bare, &mut [LocalBuffer::From(&bytes)], |bare, ids| {
            bare.0.check(&Sge { buf: ids.id(0), offset: 0, bytes: 1 }, true);
        })
        .unwrap();
    }

    #[test]
    fn a_full_table_refuses_and_takes_again_after_a_take() {
        let mut buffers = Buffers::new();
        let ids: Vec<_> =
            (0..FABRIC_BUFFERS_MAX).map(|i| buffers.register(vec![i as u8]).unwrap()).collect();
        assert!(matches!(buffers.register(vec![]), Err(FabricError::BuffersFull { .. })));
        assert_eq!(buffers.take(ids[3]), [3]);
        let again = buffers.register(vec![7]).unwrap();
        assert_ne!(again, ids[3]);
        assert_eq!(buffers.owned(again), &[7]);
    }
}
