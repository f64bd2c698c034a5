//! The part of the pool's public API that the structures here use, as a trait: [`Words`]. The
//! pool's handle implements it; tests implement it in memory, with torn copies, immediate reuse
//! of freed addresses and crashes at any access.
//!
//! What the structures rely on:
//! - [`Words::read_u64`], [`Words::write_u64`], [`Words::cas`] and [`Words::fetch_add`] of aligned
//!   words are atomic; those of one word, and all swaps and adds, are in one order that all
//!   clients agree on; longer accesses may tear.
//! - When a call has returned, its effect is seen by every later call of every client. The parts of
//!   a batch have no order.
//! - Memory is zero when it is handed out, and no other client writes to it until it is freed. A
//!   read of freed memory answers with any bytes or an error, and has no other effect.
//! - An allocation of up to half a page is aligned to its size rounded up to a power of two,
//!   at least to [`ALIGN_BYTES`]; longer ones to a page.

pub use rackpool::{
    CasOutcome, Error as PoolError, ErrorKind, GAddr, Placement, RackId, Result as PoolResult,
    WordSwap,
};

use rackpool::{AllocationKind, Handle};

/// Every allocation starts at a multiple of this many bytes: one cache line.
pub const ALIGN_BYTES: u64 = 64;

/// Global memory as its clients see it. All calls block; the addresses are the pool's.
pub trait Words {
    /// Allocates `bytes` zero bytes, as a part of the structure: audits look for what names it.
    fn alloc(&mut self, bytes: u64, placement: Placement) -> PoolResult<GAddr>;
    /// Frees an allocation of `bytes` bytes.
    fn free(&mut self, addr: GAddr, bytes: u64) -> PoolResult<()>;
    /// Reads `buf.len()` bytes; may tear beyond an aligned word.
    fn read(&mut self, addr: GAddr, buf: &mut [u8]) -> PoolResult<()>;
    /// Writes `bytes`; may tear beyond an aligned word.
    fn write(&mut self, addr: GAddr, bytes: &[u8]) -> PoolResult<()>;
    fn read_u64(&mut self, addr: GAddr) -> PoolResult<u64>;
    fn write_u64(&mut self, addr: GAddr, value: u64) -> PoolResult<()>;
    /// Replaces `expected` by `new` in an aligned word.
    fn cas(&mut self, addr: GAddr, expected: u64, new: u64) -> PoolResult<CasOutcome>;
    /// Adds to an aligned word, wrapping; the old value.
    fn fetch_add(&mut self, addr: GAddr, n: u64) -> PoolResult<u64>;
    /// Several reads under one wait.
    fn read_batch(&mut self, ops: &mut [(GAddr, &mut [u8])]) -> PoolResult<()>;
    /// Several writes under one wait. After an error nothing is known of any.
    fn write_batch(&mut self, ops: &mut [(GAddr, &[u8])]) -> PoolResult<()> {
        ops.iter().try_for_each(|(addr, bytes)| self.write(*addr, bytes))
    }
    /// Several compare-and-swaps under one wait, each with its outcome.
    fn cas_batch(&mut self, swaps: &[WordSwap]) -> Vec<PoolResult<CasOutcome>> {
        swaps.iter().map(|one| self.cas(one.addr, one.expected, one.new)).collect()
    }
    /// The address under `name`.
    fn root(&mut self, name: &str) -> PoolResult<Option<GAddr>>;
    /// Puts `addr` under `name` if `expected` is there (null: nothing is, or nothing shall be);
    /// the address that is there now.
    fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> PoolResult<GAddr>;
    /// From here to the end of the change this client may have allocations that nothing names.
    /// Changes nest.
    fn begin_change(&mut self) {}
    /// Ends a change. One that is never ended counts until the client ends.
    fn end_change(&mut self) {}
}

impl Words for Handle {
    fn alloc(&mut self, bytes: u64, placement: Placement) -> PoolResult<GAddr> {
        self.alloc_as(bytes, placement, AllocationKind::Table)
    }

    fn free(&mut self, addr: GAddr, bytes: u64) -> PoolResult<()> {
        Handle::free(self, addr, bytes)
    }

    #[inline]
    fn read(&mut self, addr: GAddr, buf: &mut [u8]) -> PoolResult<()> {
        Handle::read(self, addr, buf)
    }

    #[inline]
    fn write(&mut self, addr: GAddr, bytes: &[u8]) -> PoolResult<()> {
        Handle::write(self, addr, bytes)
    }

    #[inline]
    fn read_u64(&mut self, addr: GAddr) -> PoolResult<u64> {
        Handle::read_u64(self, addr)
    }

    #[inline]
    fn write_u64(&mut self, addr: GAddr, value: u64) -> PoolResult<()> {
        Handle::write_u64(self, addr, value)
    }

    #[inline]
    fn cas(&mut self, addr: GAddr, expected: u64, new: u64) -> PoolResult<CasOutcome> {
        Handle::cas(self, addr, expected, new)
    }

    #[inline]
    fn fetch_add(&mut self, addr: GAddr, n: u64) -> PoolResult<u64> {
        Handle::fetch_add(self, addr, n)
    }

    fn read_batch(&mut self, ops: &mut [(GAddr, &mut [u8])]) -> PoolResult<()> {
        Handle::read_batch(self, ops)
    }

    fn write_batch(&mut self, ops: &mut [(GAddr, &[u8])]) -> PoolResult<()> {
        Handle::write_batch(self, ops)
    }

    fn cas_batch(&mut self, swaps: &[WordSwap]) -> Vec<PoolResult<CasOutcome>> {
        Handle::cas_batch(self, swaps)
    }

    fn root(&mut self, name: &str) -> PoolResult<Option<GAddr>> {
        Handle::root(self, name)
    }

    fn set_root(&mut self, name: &str, expected: GAddr, addr: GAddr) -> PoolResult<GAddr> {
        Handle::set_root(self, name, expected, addr)
    }

    #[inline]
    fn begin_change(&mut self) {
        Handle::begin_change(self);
    }

    #[inline]
    fn end_change(&mut self) {
        Handle::end_change(self);
    }
}
