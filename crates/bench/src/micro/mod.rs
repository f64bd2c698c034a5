//! The raw limits of a machine, measured without a pool.
//!
//! What a pool can at best reach: a cache line that goes back and forth between two cores
//! ([`mod@line`]), bytes through a TCP socket with spinning ends ([`tcp`]), and the index streams
//! ([`index`]) that a raw copy and the pool walk alike. [`pin`] puts a thread on a core.
//! Shared mappings are not made here: this crate has no unsafe code.

pub mod index;
pub mod line;
pub mod pin;
pub mod tcp;

use std::hint;
use std::thread;

/// Turns of spinning before a waiter looks up and lets others run, when asked to share.
const SPINS_BEFORE_YIELD: u32 = 64;

/// How a thread passes the time until something arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Never leaves its core: the fastest answer when both ends have a core of their own.
    Spin,
    /// Spins a little, then lets the other threads of its core run.
    Yield,
}

impl Wait {
    /// Spinning when both ends can have a core of their own, else yielding.
    #[must_use]
    pub fn for_cores(cores: usize) -> Self {
        if cores >= 2 { Self::Spin } else { Self::Yield }
    }

    /// The pause number `turn` of one wait.
    #[inline]
    pub fn pause(self, turn: u32) {
        if self == Self::Yield && turn >= SPINS_BEFORE_YIELD {
            thread::yield_now();
        } else {
            hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_shared_and_two_are_not() {
        assert_eq!(Wait::for_cores(1), Wait::Yield);
        assert_eq!(Wait::for_cores(2), Wait::Spin);
        for turn in [0, SPINS_BEFORE_YIELD, u32::MAX] {
            Wait::Spin.pause(turn);
            Wait::Yield.pause(turn);
        }
    }
}
