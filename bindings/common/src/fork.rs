//! Which process it is that calls. Memory of the pool is not inherited by a child of a fork, and
//! sessions are one process's: whatever was opened before a fork is refused in the child, and never
//! taken apart there. The kernel is not asked at each call: the C library tells of each fork.

use crate::failure::{Failure, Outcome};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static ERA: AtomicU32 = AtomicU32::new(1);

/// Of all that a process opens; a child has another one. Never 0.
#[inline]
pub fn era() -> u32 {
    // Relaxed: it changes in a child that has one thread, before its first call.
    ERA.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    // Relaxed: as in `era`.
    ERA.fetch_add(1, Ordering::Relaxed);
}

/// Has later forks noticed. Called before anything is opened.
pub fn watch() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the function only adds to an atomic, and stays for as long as the process runs,
        // since a library with such a function is not to be unloaded.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(refused, 0, "no memory to note a function for forks");
    });
}

/// Something that only the process that made it uses and takes apart: a child leaves it as it is.
#[derive(Debug)]
pub struct Owned<T> {
    era: u32,
    /// It is there until the drop.
    value: Option<T>,
}

impl<T> Owned<T> {
    pub fn new(value: T) -> Self {
        Self { era: era(), value: Some(value) }
    }

    /// # Errors
    /// `forked` in a child.
    #[inline]
    pub fn get(&self) -> Outcome<&T> {
        match &self.value {
            Some(value) if self.era == era() => Ok(value),
            _ => Err(Failure::forked()),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.era != era() {
            std::mem::forget(self.value.take());
        }
    }
}
