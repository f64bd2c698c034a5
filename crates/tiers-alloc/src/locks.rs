//! The two locks of the crate, and what a fork does with them: the child has the thread that forked
//! alone, and a lock that another thread held would stay held there. So a thread that forks takes
//! both first, and they are given back on both sides. Order: `growing`, `dealing`.
//!
//! mimalloc's locks are not in reach. They are held while a thread takes its first block of a
//! placement, and while it ends.

use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

pub(crate) type Guard = MutexGuard<'static, ()>;

static GROWING: Mutex<()> = Mutex::new(());
static DEALING: Mutex<()> = Mutex::new(());

/// Held while a region is made.
pub(crate) fn growing() -> Guard {
    GROWING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while an extent is given its node.
pub(crate) fn dealing() -> Guard {
    DEALING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread that forks holds.
struct Held(UnsafeCell<Option<(Guard, Guard)>>);

// SAFETY: used by the thread alone that holds both locks.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// From now on forks take the locks.
pub(crate) fn hold_at_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: three functions that stay. glibc has room for 48 without an allocation, and the
        // allocator is there before most others. Without memory forks stay as they are.
        unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(release)) };
    });
}

extern "C" fn prepare() {
    let both = (growing(), dealing());
    // SAFETY: this thread holds both locks.
    unsafe { *HELD.0.get() = Some(both) };
}

/// In the parent and in the child.
extern "C" fn release() {
    // SAFETY: `prepare` took both locks, in this thread or in the one that it is a copy of.
    let both = unsafe { (*HELD.0.get()).take() };
    drop(both);
}
