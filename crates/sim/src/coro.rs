//! Simulated processes: coroutines that run the engines' calls and give control back whenever
//! virtual time passes, also from the middle of a copy.
//!
//! The world resumes a process with an [`Order`] and hears whether it waits, has ended or has
//! panicked. Inside, [`wait`] is what gives control back; memory operations call it, too. A
//! process that is told to die is unwound, so that what it owns in the simulator is dropped;
//! what it would have done in the simulated world it does not do any more (`mem::Cpu` sees to
//! that).
//!
//! A panic inside, such as an assertion of an engine, does not print: it is handed to the world
//! with its place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic;
use std::sync::Once;

use rackpool_mem::coroutine::{self, Outcome};

use crate::time::Ps;

/// What the world wants of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Go,
    Die,
}

/// What a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    For(Ps),
    /// Until the world has something for it.
    Event,
}

#[derive(Debug, PartialEq, Eq)]
pub enum CoroutineState {
    Waiting(Wait),
    /// It returned, or died as it was told to.
    Ended,
    /// It panicked: message and place.
    Panicked(String),
}

/// Stack of a process, bytes. Only what is touched takes memory.
pub const STACK_BYTES: usize = 512 << 10;

const GO: u64 = 0;
const DIE: u64 = 1;
/// The word for `Wait::Event`; durations are below.
const EVENT: u64 = u64::MAX;

/// What unwinds a process that was told to die.
struct Killed;

thread_local! {
    /// The last panic in a coroutine of this thread, as the hook saw it.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Switches of this thread so far.
    static SWITCHES: Cell<u64> = const { Cell::new(0) };
}

/// One simulated process. Dropped before its end, it dies.
pub struct Coroutine {
    inner: coroutine::Coroutine,
}

impl Coroutine {
    /// A process that will run `body` on a stack of so many bytes, below which lies a guard page.
    ///
    /// # Panics
    /// If the system has no memory map left. Each process takes two of them; Linux grants 65,530
    /// unless `vm.max_map_count` says otherwise.
    pub fn new(stack_bytes: usize, body: impl FnOnce() + 'static) -> Coroutine {
        static QUIET: Once = Once::new();
        QUIET.call_once(catch_messages);
        let inner = coroutine::Coroutine::new(stack_bytes, move |order| {
            if order == GO {
                body();
            }
        });
        match inner {
            Ok(inner) => Coroutine { inner },
            Err(error) => panic!("no stack of {stack_bytes} bytes for a process: {error}"),
        }
    }

    /// Runs the process until it waits, ends or panics.
    ///
    /// # Panics
    /// If it has ended.
    pub fn resume(&mut self, order: Order) -> CoroutineState {
        SWITCHES.set(SWITCHES.get() + 1);
        let word = if order == Order::Go { GO } else { DIE };
        match self.inner.resume(word) {
            Outcome::Suspended(EVENT) => CoroutineState::Waiting(Wait::Event),
            Outcome::Suspended(ps) => CoroutineState::Waiting(Wait::For(Ps(ps))),
            Outcome::Ended => CoroutineState::Ended,
            Outcome::Unwound(payload) if payload.is::<Killed>() => CoroutineState::Ended,
            Outcome::Unwound(payload) => CoroutineState::Panicked(message(payload.as_ref())),
        }
    }

    /// Whether it has ended, or panicked.
    pub fn has_ended(&self) -> bool {
        self.inner.has_ended()
    }
}

/// Gives control to the world until what the process waits for has happened. Does not come back
/// if the process is told to die; returns at once while it is unwound.
///
/// # Panics
/// Outside of processes.
#[inline]
pub fn wait(wait: Wait) {
    let word = match wait {
        Wait::For(ps) => ps.0.min(EVENT - 1),
        Wait::Event => EVENT,
    };
    match coroutine::suspend(word) {
        Some(GO) => {}
        // Not a panic: no hook runs, nothing is printed.
        Some(_) => panic::resume_unwind(Box::new(Killed)),
        None => assert!(std::thread::panicking(), "only a simulated process can wait"),
    }
}

/// Whether the caller runs in a process.
#[inline]
pub fn is_inside() -> bool {
    coroutine::is_inside()
}

/// Whether the caller's process is being unwound, as it died or panicked: it must not touch the
/// world any more.
#[inline]
pub fn is_dying() -> bool {
    std::thread::panicking() && is_inside()
}

/// How often this thread has switched to a process.
pub fn switches() -> u64 {
    SWITCHES.get()
}

/// Lets panics inside of processes be written down instead of printed.
fn catch_messages() {
    let outside = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if coroutine::is_inside() {
            let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
            let text = format!("{}{place}", text(info.payload()));
            MESSAGE.set(Some(text));
        } else {
            outside(info);
        }
    }));
}

fn message(payload: &(dyn Any + Send)) -> String {
    MESSAGE.take().unwrap_or_else(|| text(payload).to_owned())
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let string = payload.downcast_ref::<String>().map(String::as_str);
    string.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_process_waits_ends_and_tells_what_for() {
        let steps = Rc::new(Cell::new(0));
        let inside = steps.clone();
        let mut process = Coroutine::new(STACK_BYTES, move || {
            assert!(is_inside());
            inside.set(1);
            wait(Wait::For(Ps::ns(5)));
            inside.set(2);
            wait(Wait::Event);
            inside.set(3);
        });
        assert!(!is_inside());
        assert_eq!(process.resume(Order::Go), CoroutineState::Waiting(Wait::For(Ps::ns(5))));
        assert_eq!(steps.get(), 1);
        assert_eq!(process.resume(Order::Go), CoroutineState::Waiting(Wait::Event));
        assert_eq!(process.resume(Order::Go), CoroutineState::Ended);
        assert_eq!(steps.get(), 3);
        assert!(process.has_ended());
    }

    #[test]
    fn a_dying_process_is_unwound_and_goes_no_further() {
        struct Owned(Rc<Cell<u32>>);
        impl Drop for Owned {
            fn drop(&mut self) {
                assert!(is_dying());
                wait(Wait::Event);
                self.0.set(self.0.get() + 1);
            }
        }
        let dropped = Rc::new(Cell::new(0));
        for told in [true, false] {
            let owned = Owned(dropped.clone());
            let mut process = Coroutine::new(STACK_BYTES, move || {
                let _owned = owned;
                wait(Wait::Event);
                unreachable!("it went on");
            });
            assert_eq!(process.resume(Order::Go), CoroutineState::Waiting(Wait::Event));
            if told {
                assert_eq!(process.resume(Order::Die), CoroutineState::Ended);
            }
            drop(process);
        }
        assert_eq!(dropped.get(), 2);
        let mut unborn = Coroutine::new(STACK_BYTES, || unreachable!("it began"));
        assert_eq!(unborn.resume(Order::Die), CoroutineState::Ended);
    }

    #[test]
    fn a_panic_is_reported_with_its_place_and_the_next_process_runs() {
        let mut process = Coroutine::new(STACK_BYTES, || {
            wait(Wait::Event);
            assert_eq!(1 + 1, 3, "sums");
        });
        process.resume(Order::Go);
        let CoroutineState::Panicked(message) = process.resume(Order::Go) else {
            panic!("no panic")
        };
        assert!(message.contains("sums") && message.contains("coro.rs:"), "{message}");
        let mut next = Coroutine::new(STACK_BYTES, || {});
        assert_eq!(next.resume(Order::Go), CoroutineState::Ended);
    }
}
