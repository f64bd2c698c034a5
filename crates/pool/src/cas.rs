//! Atomics of a handle, and what they answer.

use crate::clock;
use crate::error::Result;
use crate::handle::{ATOMIC_ID, Handle};
use crate::paths::CallSize;
use rackpool_core::GAddr;
use rackpool_core::client::{Atomic, AtomicOp};

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
