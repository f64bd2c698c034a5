//! Atomics of a handle, and what they answer.

use crate::clock;
use crate::error::Result;
use crate::handle::{ATOMIC_ID, Handle};
use crate::paths::CallSize;
use rackpool_core::GAddr;
use rackpool_core::client::{Atomic, AtomicOp, Swaps, WordSwap};

/// What a compare-and-swap did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the word may have had another value"]
pub enum CasOutcome {
    /// The word was as expected and has the new value.
    Swapped,
    /// Nothing was done: the word had this value.
    Found(u64),
}

impl CasOutcome {
    /// Whether the word was as expected and has the new value.
    pub fn is_swapped(self) -> bool {
        self == Self::Swapped
    }
}

impl Handle {
    /// Replaces the aligned word at `addr` by `new` if it is `expected`. Atomic with all other
    /// accesses of the word, from any rack.
    ///
    /// # Errors
    /// `outcome-unknown` if the home rack's connection was lost meanwhile: read before retrying.
    #[inline]
    pub fn cas(&mut self, addr: GAddr, expected: u64, new: u64) -> Result<CasOutcome> {
        self.client.check_atomic(addr)?;
        if self.links.writes_apart() {
            return self.cas_apart(addr, expected, new);
        }
        self.cas_home(addr, expected, new)
    }

    /// Compares and swaps many words, each as [`Handle::cas`] does: those of other racks are all
    /// under way at once, with a doorbell for each 32 of a rack. They have no order, and each has
    /// an outcome of its own.
    ///
    /// ```
    /// # fn main() -> rackpool::Result<()> {
    /// use rackpool::{CasOutcome, GAddr, Placement, RackId, WordSwap, cluster::Cluster};
    /// let cluster = Cluster::start(2)?;
    /// let mut handle = cluster.pool(0)?.handle()?;
    /// let words = handle.alloc(16, Placement::Rack(RackId(1)))?;
    /// let swaps = [0, 8].map(|at| WordSwap { addr: GAddr(words.0 + at), expected: at, new: 5 });
    /// let outcomes = handle.cas_batch(&swaps);
    /// assert_eq!(outcomes, [Ok(CasOutcome::Swapped), Ok(CasOutcome::Found(0))]);
    /// # Ok(()) }
    /// ```
    pub fn cas_batch(&mut self, swaps: &[WordSwap]) -> Vec<Result<CasOutcome>> {
        let odd = swaps.iter().any(|one| self.client.check_atomic(one.addr).is_err());
        if odd || self.links.writes_apart() {
            return swaps.iter().map(|one| self.cas(one.addr, one.expected, one.new)).collect();
        }
        let Some(first) = swaps.first() else { return Vec::new() };
        let first_id = ATOMIC_ID | (self.rounds + 1);
        self.rounds += swaps.len() as u64;
        let started_ns = clock::now_ns();
        let mut op = Swaps::new(swaps, first_id);
        let result = self.links.tell_loss().and_then(|()| self.run(&mut op));
        let count = swaps.len() as u64;
        let size = CallSize { accesses: count, bytes: 8 * count };
        self.note(first.addr, size, started_ns, result.is_err());
        self.report_if_due();
        let outcome = |(swap, old): (&WordSwap, std::result::Result<u64, _>)| match old {
            Ok(old) if old == swap.expected => Ok(CasOutcome::Swapped),
            Ok(old) => Ok(CasOutcome::Found(old)),
            Err(error) => Err(crate::error::Error::from(error)),
        };
        swaps.iter().zip(op.into_olds(result)).map(outcome).collect()
    }

    #[inline]
    pub(crate) fn cas_home(&mut self, addr: GAddr, expected: u64, new: u64) -> Result<CasOutcome> {
        if let Ok(result) = self.client.cas_warm(addr, expected, new) {
            self.report_if_due();
            return Ok(match result {
                Ok(_) => CasOutcome::Swapped,
                Err(found) => CasOutcome::Found(found),
            });
        }
        let found = self.atomic_cold(addr, AtomicOp::Cas { expected, new })?;
        Ok(if found == expected { CasOutcome::Swapped } else { CasOutcome::Found(found) })
    }

    /// Adds `n` to the aligned word at `addr`, wrapping; the value before. Same errors as
    /// [`Handle::cas`].
    #[inline]
    pub fn fetch_add(&mut self, addr: GAddr, n: u64) -> Result<u64> {
        self.client.check_atomic(addr)?;
        if self.links.writes_apart() {
            return self.fetch_add_apart(addr, n);
        }
        self.fetch_add_home(addr, n)
    }

    #[inline]
    pub(crate) fn fetch_add_home(&mut self, addr: GAddr, n: u64) -> Result<u64> {
        match self.client.fetch_add_warm(addr, n) {
            Ok(old) => {
                self.report_if_due();
                Ok(old)
            }
            Err(_) => self.atomic_cold(addr, AtomicOp::FetchAdd { n }),
        }
    }

    #[cold]
    #[inline(never)]
    fn atomic_cold(&mut self, addr: GAddr, op: AtomicOp) -> Result<u64> {
        self.before_others(addr, 8)?;
        self.links.tell_loss()?;
        self.rounds += 1;
        let started_ns = clock::now_ns();
        let mut op = Atomic::new(addr, op, ATOMIC_ID | self.rounds);
        let result = self.run(&mut op);
        self.note(addr, CallSize { accesses: 1, bytes: 8 }, started_ns, result.is_err());
        self.report_if_due();
        Ok(result?)
    }
}
