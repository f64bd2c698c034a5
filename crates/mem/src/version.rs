//! Versions: how readers without a lock learn that what they have read was changed meanwhile. The
//! version is the lower half of a word, odd while a change is under way; the upper half is the
//! owner's, and readers take a change of it for one of the version.
//!
//! In: memory and the offset of the word. Changes are made by one party at a time, under a lock of
//! its own. What readers read between [`begin`] and [`Seen::is_still`] may be torn or be something
//! else by then: they must neither trust it nor pass it on before they have asked.
//!
//! Ordering: what is stored between [`open`] and [`close`] is not seen before the odd version, and
//! what was loaded before `is_still` was loaded before the version is loaded again. Both by fences,
//! which cost x86-64 no instruction. A reader is deceived only by 2^31 changes while it reads.
//!
//! Source: sequence locks; MICA for the version in a bucket (concurrent reads).

use crate::sync::{Ordering, fence};
use rackpool_core::seam::Mem;

const HALF: u64 = u32::MAX as u64;

/// A word with an even version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

/// Reader: the word now; nothing while a change is under way.
#[inline(always)]
pub fn begin(mem: &impl Mem, at: u64) -> Option<Seen> {
    Seen::of(mem.load(at))
}

impl Seen {
    /// Reader: of the word, which was loaded before all that is to be read; nothing while a change
    /// is under way.
    #[inline(always)]
    pub fn of(word: u64) -> Option<Seen> {
        (word & 1 == 0).then_some(Seen(word))
    }

    /// Reader: whether nothing has changed since [`begin`].
    #[inline(always)]
    #[must_use = "what was read counts only if nothing has changed"]
    pub fn is_still(self, mem: &impl Mem, at: u64) -> bool {
        // Acquire: pairs with the Release in version.rs::open; a load of ours that saw a store
        // of the change sees its odd version below.
        fence(Ordering::Acquire);
        mem.load(at) == self.0
    }
}

/// Owner: begins a change. Readers that have begun see that there is one.
#[inline(always)]
pub fn open(mem: &impl Mem, at: u64) {
    // Odd, also if a change was left by a panic.
    mem.store(at, mem.load(at) | 1);
    // Release: pairs with the Acquire in version.rs::is_still.
    fence(Ordering::Release);
}

#[inline(always)]
pub fn close(mem: &impl Mem, at: u64) {
    let word = mem.load(at);
    mem.store(at, (word & !HALF) | ((word + 1) & HALF));
}

/// Owner: makes a change, from [`open`] to [`close`].
#[inline(always)]
pub fn change<R>(mem: &impl Mem, at: u64, f: impl FnOnce() -> R) -> R {
    open(mem, at);
    let result = f();
    close(mem, at);
    result
}

#[cfg(all(test, not(feature = "modelled")))]
mod tests {
    use super::*;
    use crate::window::Window;

    #[test]
    fn a_change_is_seen_while_it_is_made_and_behind_it() {
        let window = Window::heap(64);
        window.store(8, 7 << 32);
        let seen = begin(&window, 8).unwrap();
        assert!(seen.is_still(&window, 8));
        change(&window, 8, || {
            assert!(begin(&window, 8).is_none() && !seen.is_still(&window, 8));
            window.store(8, (window.load(8) & HALF) | (9 << 32));
        });
        assert!(!seen.is_still(&window, 8));
        assert_eq!(window.load(8), (9 << 32) | 2, "the upper half is what it was made");
    }

    #[test]
    fn a_version_at_its_end_begins_anew_and_spares_the_upper_half() {
        let window = Window::heap(64);
        window.store(8, (5 << 32) | (HALF - 1));
        let seen = begin(&window, 8).unwrap();
        change(&window, 8, || ());
        assert_eq!(window.load(8), 5 << 32);
        assert!(!seen.is_still(&window, 8));
    }

    #[test]
    fn a_change_that_was_left_by_a_panic_ends_with_the_next_one() {
        let window = Window::heap(64);
        let panics = || change(&window, 8, || panic!("in the midst of a change"));
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        assert!(left.is_err() && begin(&window, 8).is_none());
        change(&window, 8, || assert!(begin(&window, 8).is_none()));
        assert!(begin(&window, 8).is_some());
    }
}
