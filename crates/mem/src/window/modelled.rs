//! The window under loom or shuttle: a table of their atomic words behind the same interface, and
//! a futex of their mutex and condition variable, so that a lost wake-up is a deadlock that they
//! report. See `window.rs`. Copies move whole words where they can and replace parts of words by
//! compare and swap; the models keep their data in whole words.

use super::out_of_window;
use crate::sync::{Arc, AtomicU64, Ordering, fence};
#[cfg(feature = "loom")]
use loom::sync::{Condvar, Mutex};
use rackpool_core::seam::{Mem, Probe};
#[cfg(feature = "shuttle")]
use shuttle::sync::{Condvar, Mutex};
use std::time::Duration;

struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

/// Shared memory of a model. Clones and slices share the memory.
#[derive(Clone)]
pub struct ModelWindow {
    words: Arc<Vec<AtomicU64>>,
    futex: Arc<Futex>,
    start: u64,
    bytes: u64,
}

impl ModelWindow {
    /// A window of zeroed words.
    pub fn heap(bytes: u64) -> ModelWindow {
        let words = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let futex = Futex { lock: Mutex::new(()), woken: Condvar::new() };
        ModelWindow { words: Arc::new(words), futex: Arc::new(futex), start: 0, bytes }
    }

    /// A part of this window.
    pub fn slice(&self, offset: u64, bytes: u64) -> ModelWindow {
        assert!(offset.is_multiple_of(8), "a slice starts at a multiple of 8 bytes");
        self.check(offset, bytes);
        ModelWindow { start: self.start + offset, bytes, ..self.clone() }
    }

    /// Sleeps while the word at `offset` is `expected`, until [`ModelWindow::futex_wake`]. There is
    /// no time in a model, so a wake-up that never comes is a deadlock.
    pub(crate) fn futex_wait(&self, offset: u64, expected: u32, _timeout: Duration) {
        let guard = self.futex.lock.lock().expect("no model thread panics while it holds this");
        // Acquire: pairs with the Release in window/modelled.rs::store of the waker; the kernel
        // too compares under its lock.
        if self.atomic_u64(offset).load(Ordering::Acquire) as u32 == expected {
            drop(self.futex.woken.wait(guard).expect("as above"));
        }
    }

    /// Wakes all sleepers of the window.
    pub(crate) fn futex_wake(&self, _offset: u64) {
        let guard = self.futex.lock.lock().expect("no model thread panics while it holds this");
        self.futex.woken.notify_all();
        drop(guard);
    }

    pub(crate) fn atomic_u64(&self, offset: u64) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "a word at offset {offset} is not aligned");
        &self.words[((self.start + offset) / 8) as usize]
    }

    fn check(&self, offset: u64, bytes: u64) {
        if offset > self.bytes || bytes > self.bytes - offset {
            out_of_window(offset, bytes, self.bytes);
        }
    }

    /// The word that holds the byte at `at`, and the byte's place in it.
    fn word_of(&self, at: u64) -> (&AtomicU64, usize) {
        let at = self.start + at;
        (&self.words[(at / 8) as usize], (at % 8) as usize)
    }
}

impl Probe for ModelWindow {}

impl Mem for ModelWindow {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn load(&self, offset: u64) -> u64 {
        // Acquire: pairs with the Release in window/modelled.rs::store.
        self.atomic_u64(offset).load(Ordering::Acquire)
    }

    fn store(&self, offset: u64, value: u64) {
        // Release: pairs with the Acquire in window/modelled.rs::load.
        self.atomic_u64(offset).store(value, Ordering::Release);
    }

    fn announce(&self, offset: u64, value: u64) {
        // Release: pairs with the Acquire in window/modelled.rs::load of the mover.
        self.atomic_u64(offset).store(value, Ordering::Release);
        // SeqCst: pairs with the mover's fence between the table and the cells.
        fence(Ordering::SeqCst);
    }

    fn compare_exchange(&self, offset: u64, expected: u64, new: u64) -> Result<u64, u64> {
        // SeqCst: pairs with every other read-modify-write of the word.
        self.atomic_u64(offset).compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn fetch_add(&self, offset: u64, n: u64) -> u64 {
        // SeqCst: pairs with every other read-modify-write of the word.
        self.atomic_u64(offset).fetch_add(n, Ordering::SeqCst)
    }

    fn copy_out(&self, offset: u64, to: &mut [u8]) {
        self.check(offset, to.len() as u64);
        let mut at = 0;
        while at < to.len() {
            let (word, byte) = self.word_of(offset + at as u64);
            let count = (8 - byte).min(to.len() - at);
            // Relaxed: the fence below orders the whole copy.
            let bytes = word.load(Ordering::Relaxed).to_le_bytes();
            to[at..at + count].copy_from_slice(&bytes[byte..byte + count]);
            at += count;
        }
        // Acquire: pairs with the Release fence in window/modelled.rs::copy_in.
        fence(Ordering::Acquire);
    }

    fn copy_in(&self, offset: u64, from: &[u8]) {
        self.check(offset, from.len() as u64);
        // Release: pairs with the Acquire fence in window/modelled.rs::copy_out.
        fence(Ordering::Release);
        let mut at = 0;
        while at < from.len() {
            let (word, byte) = self.word_of(offset + at as u64);
            let count = (8 - byte).min(from.len() - at);
            let piece = &from[at..at + count];
            if let Ok(bytes) = piece.try_into() {
                // Relaxed: the fence above orders the whole copy.
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            } else {
                // Relaxed, both: as above; a part of a word replaces only its own bytes.
                word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                    let mut bytes = old.to_le_bytes();
                    bytes[byte..byte + count].copy_from_slice(piece);
                    Some(u64::from_le_bytes(bytes))
                })
                .expect("the closure always answers");
            }
            at += count;
        }
    }

    fn zero(&self, offset: u64, bytes: u64) {
        self.copy_in(offset, &vec![0; bytes as usize]);
    }

    fn prefetch(&self, _offset: u64) {}

    fn fence(&self) {
        // SeqCst: pairs with the other party's fence of whichever protocol calls this.
        fence(Ordering::SeqCst);
    }

    fn flush(&self, _offset: u64, _bytes: u64) {}
}
