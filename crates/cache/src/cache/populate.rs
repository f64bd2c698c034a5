//! The memory of a cache's new file, which is taken piece by piece while the cache is in use: a
//! thread beside it goes ahead ([`super::Cache::populate`]), and a change that comes to the end of
//! what was taken takes the next piece by itself. So no store ever meets a page that its file
//! system has no room for, which would be a signal (SIGBUS). Far memory of a file that comes into
//! use again is taken the same way.

use super::Cache;
use super::layout::UNIT_SHIFT;
use rackpool_core::seam::Mem;
use rackpool_mem::window::{Window, take_file};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Units that are taken at once: 4 MiB, which the system zeroes within half a millisecond.
pub(crate) const PIECE_UNITS: u32 = 64;
/// Memory that is taken from the system in one call.
const POPULATED_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(crate) struct Populator {
    file: Arc<File>,
    /// Where the first one lies.
    at: u64,
    count: u32,
    /// The first ones, which have their memory.
    taken: AtomicU32,
}

impl Populator {
    /// That of `count` units at `at` of a file, of which `taken` have their memory.
    pub fn new(file: Arc<File>, at: u64, count: u32, taken: u32) -> Populator {
        Populator { file, at, count, taken: AtomicU32::new(taken) }
    }

    pub fn taken(&self) -> u32 {
        // Relaxed: the memory of a file is the system's; its order does not matter here.
        self.taken.load(Ordering::Relaxed)
    }

    /// Nothing is taken from now on: its memory went back, or may have.
    pub fn begin_anew(&self) {
        // Relaxed: as above.
        self.taken.store(0, Ordering::Relaxed);
    }

    /// Takes the next piece; whether there was one. Several may do that at once.
    ///
    /// # Errors
    /// What the system says: above all, that there is no more memory.
    pub fn take_next(&self) -> io::Result<bool> {
        let from = self.taken();
        let upto = self.count.min(from + PIECE_UNITS);
        if from == upto {
            return Ok(false);
        }
        let (at, bytes) = (u64::from(from) << UNIT_SHIFT, u64::from(upto - from) << UNIT_SHIFT);
        take_file(self.file.as_fd(), self.at + at, bytes)?;
        // Relaxed: as above.
        self.taken.fetch_max(upto, Ordering::Relaxed);
        Ok(true)
    }
}

impl Cache {
    /// Takes all of the cache's memory from the system, in the order in which it comes into use,
    /// as long as `goes_on` says so, which is asked each ms or so. Without it a change that comes
    /// to a new page waits until the system has zeroed it, some 100 us for a huge one. Ends early
    /// where the system has no more to give: the rest is taken at its first use.
    ///
    /// # Errors
    /// The file system of a file has no more to give: the cache has what was taken by then.
    pub fn populate(&self, mut goes_on: impl FnMut() -> bool) -> std::io::Result<()> {
        if self.file.is_some() {
            loop {
                let mut has_more = false;
                for populator in self.partitions.iter().filter_map(|part| part.populator.as_ref()) {
                    if !goes_on() {
                        return Ok(());
                    }
                    has_more |= populator.take_next()?;
                }
                if !has_more {
                    return Ok(());
                }
            }
        }
        let windows: Vec<&Window> = self.partitions.iter().map(|part| part.view.units()).collect();
        let longest = windows.iter().map(|window| window.bytes()).max().unwrap_or(0);
        for start in (0..longest).step_by(POPULATED_BYTES as usize) {
            for window in &windows {
                let end = window.bytes() - self.waiting_bytes();
                let bytes = end.saturating_sub(start).min(POPULATED_BYTES);
                if bytes > 0 && (!goes_on() || window.populate(start, bytes).is_err()) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
