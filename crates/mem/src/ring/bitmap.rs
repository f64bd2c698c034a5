//! The ready bitmap: one bit a client slot, set by clients that pushed a request, taken by the
//! daemon, which therefore never scans idle clients. And the word by which the daemon says that it
//! sleeps.
//!
//! In: the bell section of a region, which the daemon and all clients map. Out: sets of slots.
//! The wake-up itself is the caller's: clients write the daemon's eventfd when [`Bitmap::set`]
//! asks for it.
//!
//! Ordering: a client publishes its request, sets its bit (release), executes a full fence and
//! looks whether the daemon sleeps; the daemon says that it sleeps, executes a full fence, looks
//! at all words once more and only then sleeps. One of the two sees the other. The daemon takes a
//! bit (acquire) before it looks at the ring, so a request pushed later sets the bit again. Bits
//! are hints: a client that sets another's bit costs a look at an empty ring.
//!
//! Where a client's host and the daemon's are kept coherent by software alone, the client sets no
//! bit, because that takes an atomic of both hosts: the daemon looks at its ring without being
//! told. The sleeping word is written by the daemon's host alone; the daemon writes it back, and
//! a client of another host drops its line before it looks.
//!
//! Source: DESIGN §3 (a ready bitmap against scanning idle clients).

use crate::sync::{Ordering, fence};
use crate::window::Window;
use rackpool_core::constants::SLOTS_MAX;
use rackpool_core::layout::{BELL_BYTES, BELL_SLEEPING};
use rackpool_core::seam::Mem;
use std::time::Duration;

/// One end of the ready bitmap.
#[derive(Clone)]
pub struct Bitmap {
    window: Window,
    words: u32,
    sleeping: u64,
}

impl Bitmap {
    /// The bitmap of a bell section.
    ///
    /// # Panics
    /// If the window is shorter than `BELL_BYTES`.
    pub fn attach(window: Window) -> Bitmap {
        assert!(window.bytes() >= BELL_BYTES, "a bell section of {} bytes", window.bytes());
        Bitmap { window, words: SLOTS_MAX.div_ceil(64), sleeping: BELL_SLEEPING }
    }

    /// A bitmap of `words` words with the sleeping word in a line behind them: for other numbers of
    /// slots, and for model checking.
    ///
    /// # Panics
    /// If the window is shorter than [`Bitmap::bytes_of`] says, the rest of the last line excepted.
    pub fn attach_small(window: Window, words: u32) -> Bitmap {
        let sleeping = Bitmap::bytes_of(words) - 64;
        assert!(window.bytes() >= sleeping + 8, "a bitmap in {} bytes", window.bytes());
        Bitmap { window, words, sleeping }
    }

    /// Bytes of a bitmap of `words` words: whole lines.
    pub const fn bytes_of(words: u32) -> u64 {
        (8 * words as u64).next_multiple_of(64) + 64
    }

    /// How many words [`Bitmap::take`] knows.
    pub fn words(&self) -> u32 {
        self.words
    }

    /// Client: says that `slot` has work for the daemon. `true` asks the caller to wake the
    /// daemon; of several clients one is asked.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    #[must_use = "the daemon sleeps on if nothing wakes it"]
    pub fn set(&self, slot: u32) -> bool {
        assert!(slot / 64 < self.words, "slot {slot} of {}", self.words * 64);
        if !self.window.is_coherent() {
            // Its line is dropped behind a fence, which pairs with the one in `prepare_sleep`.
            self.window.invalidate(self.sleeping, 8);
            return self.window.load(self.sleeping) != 0;
        }
        let word = self.window.atomic_u64(8 * u64::from(slot / 64));
        // Release: pairs with the Acquire in ring/bitmap.rs::take: the request is seen with it.
        word.fetch_or(1 << (slot % 64), Ordering::Release);
        // SeqCst: pairs with the fence in ring/bitmap.rs::prepare_sleep.
        fence(Ordering::SeqCst);
        let sleeping = self.window.atomic_u64(self.sleeping);
        // Relaxed: ordered by the fence above; the swap chooses one of the wakers.
        sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::Relaxed) != 0
    }

    /// Daemon: the slots that have set their bit in word `index` (slots `64 * index` and on), and
    /// clears them.
    ///
    /// # Panics
    /// If there is no such word.
    #[inline]
    pub fn take(&self, index: u32) -> u64 {
        assert!(index < self.words, "word {index} of {}", self.words);
        let word = self.window.atomic_u64(8 * u64::from(index));
        // Relaxed: an idle word is only looked at; the line stays shared.
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // Acquire: pairs with the Release in ring/bitmap.rs::set.
        word.swap(0, Ordering::Acquire)
    }

    /// Daemon: says that it is about to sleep. `false` if a bit is set meanwhile: do not sleep.
    /// After `true`, sleep on the eventfd, then call [`Bitmap::awake`].
    #[must_use = "with a bit set, sleeping would lose a wake-up"]
    pub fn prepare_sleep(&self) -> bool {
        let sleeping = self.window.atomic_u64(self.sleeping);
        // Relaxed: ordered by the fence below.
        sleeping.store(1, Ordering::Relaxed);
        self.window.flush(self.sleeping, 8);
        // SeqCst: pairs with the fence in ring/bitmap.rs::set.
        fence(Ordering::SeqCst);
        if self.is_any_set() {
            self.awake();
            return false;
        }
        true
    }

    /// Daemon: sleeps on the sleeping word itself until [`Bitmap::wake`] or the timeout, or not at
    /// all if a bit is set. May return early. For threads that wait for nothing else.
    pub fn sleep(&self, timeout: Duration) {
        if self.prepare_sleep() {
            self.window.futex_wait(self.sleeping, 1, timeout);
            self.awake();
        }
    }

    /// Client: wakes the daemon that sleeps in [`Bitmap::sleep`], after [`Bitmap::set`] has asked
    /// for it.
    pub fn wake(&self) {
        self.window.futex_wake(self.sleeping);
    }

    /// Daemon: says that it does not sleep any more.
    pub fn awake(&self) {
        // Relaxed: at worst one more client wakes a daemon that is awake.
        self.window.atomic_u64(self.sleeping).store(0, Ordering::Relaxed);
        self.window.flush(self.sleeping, 8);
    }

    /// Whether any slot has work.
    pub fn is_any_set(&self) -> bool {
        // Relaxed: a hint; the bits are taken with Acquire.
        (0..self.words)
            .any(|i| self.window.atomic_u64(8 * u64::from(i)).load(Ordering::Relaxed) != 0)
    }
}

#[cfg(all(test, not(any(feature = "modelled", miri))))]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_another_host_sets_no_bit_and_rings_for_a_daemon_that_sleeps() {
        let window = Window::heap(4096);
        let near = Bitmap::attach_small(window.clone(), 1);
        let apart = Bitmap::attach_small(window.with_coherence(false), 1);
        assert!(!apart.set(3), "the daemon is awake");
        assert!(near.prepare_sleep(), "no bit was set");
        assert!(apart.set(3) && apart.set(3), "each who speaks rings");
        assert!(near.set(4) && !near.set(5), "of those beside the daemon one");
        near.awake();
        assert!(!apart.set(3));
        assert_eq!(near.take(0), 1 << 4 | 1 << 5);
    }
}
