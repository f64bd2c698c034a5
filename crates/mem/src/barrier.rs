//! The process-wide barrier that makes announcing a frame free. Owns nothing; called by every
//! process at join ([`register`]) and by the daemon's thread that moves or frees pages
//! ([`barrier`]).
//!
//! # Why the announcement needs no fence
//!
//! An accessor (A) and the mover (M) meet in two words: a *cell*, written by A, and the frame's
//! *table word*, written by M.
//!
//! ```text
//! A1  cell := frame + 1   (release store)        M1  table word := new
//! A2  w := table word     (after A1 in program   M2  barrier()
//!     order: compiler fence)                     M3  c := cell          (acquire load)
//! A3  if w is the cached generation:             M4  if c != frame + 1: the frame may be reused
//!         copy from or to the frame                  else: wait and load the cell again
//! A4  cell := 0           (release store)
//! ```
//!
//! Claim: if A executes A3, then M does not reach "may be reused" before A's copy has ended.
//!
//! `MEMBARRIER_CMD_GLOBAL_EXPEDITED` promises that between its entry and its return every running
//! thread of every registered process passed a point P at which all its memory accesses match its
//! program order, a full fence in effect; a thread that does not run passed through one when the
//! scheduler took it off its core, and will pass through another when it comes back. Look where P
//! lies in A's program:
//!
//! 1. *P before A2.* M1 precedes M2, so it is visible to what A does after P. A2 loads the new
//!    word; the generation differs from the cached one (generations are given out once), and A
//!    skips A3. Nothing to show.
//! 2. *P after A2.* The compiler keeps A1 before A2, so A1 lies before P and is visible to what
//!    M does after M2. M3 therefore loads A1's value or a later one of the same cell.
//!    - It is A1's value: M waits.
//!    - It is a later one, 0 or another frame: every store to a cell is a release store and comes
//!      after A's copy in program order, and M3 is an acquire load. The copy happened before M4.
//!
//! The case that a fence would have to prevent, A2 passing A1 in the processor's store buffer,
//! is case 2 with P between them and cannot be: at P the store buffer is empty.
//!
//! What follows for the callers:
//! - *Every* process that announces with a compiler fence has registered before its first
//!   announcement; a client that cannot ([`is_supported`] is false) tells so and fences fully. The
//!   promise does not reach processes that did not register. A registration ends with `exec` and is
//!   inherited by `fork`.
//! - It does not matter how long A is stopped between A2 and A3: its cell stands. It does not
//!   matter how often A announces the frame after M2: it finds the new word and only delays M.
//! - All stores to a cell are release stores, the announcement too; else a store of another frame
//!   could be seen before the copy under the announcement before it has ended.
//! - One barrier serves all frames with table words that were stored before it.
//! - It reaches the threads of this kernel only. Clients on other hosts fence.
//!
//! Source: DESIGN §3 (moving a page); membarrier(2).

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};
use std::io;

/// Whether this kernel has the expedited barrier across processes (Linux 4.16 on) and lets this
/// process use it.
pub fn is_supported() -> bool {
    membarrier_query()
        .contains(MembarrierQuery::GLOBAL_EXPEDITED | MembarrierQuery::REGISTER_GLOBAL_EXPEDITED)
}

/// Makes this process a receiver of [`barrier`]. Once at start, before the first announcement;
/// again is harmless.
///
/// # Errors
/// If the kernel has no such barrier: announce with a full fence instead.
pub fn register() -> io::Result<()> {
    Ok(membarrier(MembarrierCommand::RegisterGlobalExpedited)?)
}

/// A full fence on every running thread of every registered process of this host. Takes some
/// microseconds and interrupts every core that runs one, so movers gather frames for one call.
///
/// # Errors
/// If the kernel has no such barrier: then no thread may have announced without a fence.
pub fn barrier() -> io::Result<()> {
    // The caller's own accesses must be ordered too, even if the kernel finds no thread to
    // interrupt.
    // SeqCst: pairs with the point P of each announcing thread (window.rs, `Mem::announce`).
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(membarrier(MembarrierCommand::GlobalExpedited)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

    /// The protocol of the proof in one process: an accessor that announces without a fence, a
    /// mover that retires generations, and a frame that says whether it was reused under a copy.
    #[test]
    fn a_frame_is_never_reused_under_an_announced_access() {
        if !is_supported() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "there is no membarrier");
            println!("NOT TESTED: there is no membarrier, the asymmetric protocol is not used");
            return;
        }
        register().unwrap();
        // Separate lines, as cells and table words are.
        #[repr(align(64))]
        struct CacheLine(AtomicU64);
        let (cell, table, frame) = (
            CacheLine(AtomicU64::new(0)),
            CacheLine(AtomicU64::new(1)),
            CacheLine(AtomicU64::new(1)),
        );
        let (stop, hits) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = std::time::Instant::now();
        std::thread::scope(|scope| {
            let accessor = scope.spawn(|| {
                // Relaxed: a stop flag.
                while !stop.load(Ordering::Relaxed) {
                    // Acquire: pairs with the Release store of the table word below.
                    let cached = table.0.load(Ordering::Acquire);
                    // Release: pairs with the mover's Acquire of the cell.
                    cell.0.store(1, Ordering::Release);
                    // SeqCst: for the compiler; the processor's part is the mover's barrier.
                    compiler_fence(Ordering::SeqCst);
                    // Acquire: as above.
                    if cached != 0 && table.0.load(Ordering::Acquire) == cached {
                        // Relaxed: the frame's content; ordered by cell and table word.
                        assert_eq!(frame.0.load(Ordering::Relaxed), cached);
                        // Relaxed: a count.
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                    // Release: pairs with the mover's Acquire of the cell.
                    cell.0.store(0, Ordering::Release);
                }
            });
            for generation in 2.. {
                // Relaxed: a count.
                if generation > 20_000 && hits.load(Ordering::Relaxed) > 1000 {
                    break;
                }
                assert!(start.elapsed().as_secs() < 60, "{hits:?} accesses");
                // Release: pairs with the accessor's Acquire. 0 is no generation.
                table.0.store(0, Ordering::Release);
                barrier().unwrap();
                // Acquire: pairs with the accessor's Release stores of the cell.
                while cell.0.load(Ordering::Acquire) != 0 && !accessor.is_finished() {
                    std::thread::yield_now();
                }
                // Relaxed: ordered by the Release below.
                frame.0.store(generation, Ordering::Relaxed);
                // Release: pairs with the accessor's Acquire.
                table.0.store(generation, Ordering::Release);
            }
            // Relaxed: a stop flag.
            stop.store(true, Ordering::Relaxed);
            accessor.join().unwrap();
        });
    }
}
