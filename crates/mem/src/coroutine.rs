//! Stackful coroutines that may suspend from any depth of their calls, without being handed a
//! reference to do so: what the simulator runs engine calls on.
//!
//! A coroutine has a stack of its own with a guard page below it (an overflow ends the process
//! by SIGSEGV, never silently). Words go in and out: [`Coroutine::resume`] passes one in and gets
//! back the one that [`suspend`] was called with. One thread runs it from start to end.
//!
//! Ownership: while a coroutine runs, a thread-local pointer names its innermost suspension
//! point; the thread that resumes it puts back what was there before.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{CoroutineResult, Yielder};

type Inner = corosensei::Coroutine<u64, u64, (), DefaultStack>;

thread_local! {
    /// The coroutine that runs on this thread now; null if none does.
    static CURRENT: Cell<*const Yielder<u64, u64>> = const { Cell::new(ptr::null()) };
}

/// A coroutine. Dropped before its end, it is unwound.
pub struct Coroutine {
    inner: Inner,
    /// Null before the first resumption.
    yielder: *const Yielder<u64, u64>,
}

/// Why a resumption came back.
pub enum Outcome {
    /// The coroutine suspended itself with this word.
    Suspended(u64),
    Ended,
    /// Its body panicked, with this payload.
    Unwound(Box<dyn Any + Send>),
}

/// Puts the outer coroutine back, however the inner one came back.
struct Outer(*const Yielder<u64, u64>);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

impl Coroutine {
    /// A coroutine that will call `body` with the first word, on a stack of at least so many
    /// bytes, which take memory only where they are touched. Fails if the system has no room.
    pub fn new(stack_bytes: usize, body: impl FnOnce(u64) + 'static) -> io::Result<Coroutine> {
        let stack = DefaultStack::new(stack_bytes)?;
        let inner = Inner::with_stack(stack, move |yielder, word| {
            CURRENT.set(yielder);
            body(word);
        });
        Ok(Coroutine { inner, yielder: ptr::null() })
    }

    /// Runs the coroutine until it suspends itself or ends.
    ///
    /// # Panics
    /// If it has ended.
    pub fn resume(&mut self, word: u64) -> Outcome {
        assert!(!self.inner.done(), "a coroutine that has ended is not resumed");
        let _outer = Outer(CURRENT.replace(self.yielder));
        let result = catch_unwind(AssertUnwindSafe(|| self.inner.resume(word)));
        match result {
            Ok(CoroutineResult::Yield(word)) => {
                // A coroutine that ran inside of it has put this back.
                self.yielder = CURRENT.get();
                Outcome::Suspended(word)
            }
            Ok(CoroutineResult::Return(())) => Outcome::Ended,
            Err(payload) => Outcome::Unwound(payload),
        }
    }

    /// Whether its body has returned or panicked.
    pub fn has_ended(&self) -> bool {
        self.inner.done()
    }
}

impl Drop for Coroutine {
    fn drop(&mut self) {
        let _outer = Outer(CURRENT.replace(self.yielder));
        // What a destructor in there panics with has no place to go.
        let _ = catch_unwind(AssertUnwindSafe(|| self.inner.force_unwind()));
    }
}

/// Whether the caller runs in a coroutine.
#[inline]
pub fn is_inside() -> bool {
    !CURRENT.get().is_null()
}

/// Suspends the coroutine that runs now; its resumer gets `word`. Comes back with the word of
/// the next resumption; at once with `None` outside of coroutines, and while the thread unwinds
/// (a suspended unwinding would make other code believe that it panics).
#[inline]
pub fn suspend(word: u64) -> Option<u64> {
    let current = CURRENT.get();
    if current.is_null() || std::thread::panicking() {
        return None;
    }
    // SAFETY: `current` was set on this thread by the body of a coroutine, to the reference that
    // it was handed, or by its resumption; `Outer` takes it away when control leaves that
    // coroutine. So its body is running and has not returned, and the reference is valid.
    let yielder = unsafe { &*current };
    Some(yielder.suspend(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    struct Suspends(Rc<Cell<u32>>);

    impl Drop for Suspends {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            assert!(suspend(9).is_none(), "not while the stack unwinds");
        }
    }

    fn suspended(outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Suspended(word) => word,
            Outcome::Ended => panic!("ended"),
            Outcome::Unwound(_) => panic!("unwound"),
        }
    }

    #[test]
    fn words_go_in_and_out_from_any_depth() {
        fn deep(depth: u64) -> u64 {
            if depth == 0 { suspend(7).unwrap() } else { deep(depth - 1) + 1 }
        }
        let sum = Rc::new(Cell::new(0));
        let inside = sum.clone();
        let mut coroutine =
            Coroutine::new(64 << 10, move |first| inside.set(first + deep(100))).unwrap();
        assert!(!is_inside());
        assert_eq!(suspended(coroutine.resume(1)), 7);
        assert!(!is_inside());
        assert!(matches!(coroutine.resume(10), Outcome::Ended));
        assert!(coroutine.has_ended());
        assert_eq!(sum.get(), 111);
        assert_eq!(suspend(1), None);
    }

    #[test]
    fn coroutines_inside_of_coroutines_and_side_by_side_keep_apart() {
        let mut outer = Coroutine::new(64 << 10, |_| {
            let mut inner = Coroutine::new(64 << 10, |_| {
                suspend(100);
                suspend(101);
            })
            .unwrap();
            assert_eq!(suspended(inner.resume(0)), 100);
            assert_eq!(suspend(1), Some(5));
            assert_eq!(suspended(inner.resume(0)), 101);
            assert_eq!(suspend(2), Some(6));
        })
        .unwrap();
        let mut other = Coroutine::new(64 << 10, |_| {
            (0..3).for_each(|n| assert_eq!(suspend(200 + n), Some(n)));
        })
        .unwrap();
        assert_eq!(suspended(outer.resume(0)), 1);
        assert_eq!(suspended(other.resume(0)), 200);
        assert_eq!(suspended(outer.resume(5)), 2);
        assert_eq!(suspended(other.resume(0)), 201);
        assert!(matches!(outer.resume(6), Outcome::Ended));
        assert_eq!(suspended(other.resume(1)), 202);
        assert!(!is_inside());
    }

    #[test]
    fn a_panic_and_a_drop_unwind_the_stack_and_nothing_suspends_meanwhile() {
        let dropped = Rc::new(Cell::new(0));
        let inside = dropped.clone();
        let mut panics = Coroutine::new(64 << 10, move |_| {
            let _guard = Suspends(inside);
            suspend(1);
            std::panic::resume_unwind(Box::new("the reason"));
        })
        .unwrap();
        assert_eq!(suspended(panics.resume(0)), 1);
        let Outcome::Unwound(payload) = panics.resume(0) else { panic!("came back") };
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"the reason"));
        assert_eq!(dropped.get(), 1);

        let inside = dropped.clone();
        let mut waits = Coroutine::new(64 << 10, move |_| {
            let _guard = Suspends(inside);
            suspend(1);
        })
        .unwrap();
        suspended(waits.resume(0));
        drop(waits);
        assert_eq!(dropped.get(), 2);

        let inside = dropped.clone();
        let guard = Suspends(inside);
        drop(Coroutine::new(64 << 10, move |_| drop(guard)).unwrap());
        assert_eq!(dropped.get(), 3, "a body that never ran is dropped too");
        assert!(!is_inside());
    }
}
