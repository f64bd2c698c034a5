//! Pages of near memory that come to lie on other nodes while the cache is in use: a partition's
//! table, index and near segments, whose addresses stay.
//!
//! In: where they are to lie (`switch.rs`). Out: pages that have moved, a piece in an idle turn, at
//! a bounded pace. No lock of a partition is held meanwhile. Called by `mod.rs`.

use super::stats::Stats;
use super::{Millis, Options};
use rackpool_core::seam::Mem;
use rackpool_mem::numa::{NumaError, PageTarget};
use rackpool_mem::window::Window;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes a second that are gone over, of a partition and of all that one thread tidies: more would
/// take most of its time.
const PACE: u64 = 64 << 20;
const PACE_OF_ALL: u64 = 256 << 20;
/// What was left out for longer is not made up for; before the first piece nothing was.
const OWED_MS_MAX: Millis = 1000;

#[derive(Debug)]
pub(super) struct NearPages {
    window: Window,
    /// Where it begins in the memory of all partitions, which is dealt out as one.
    start: u64,
    pass: Mutex<PagePass>,
}

#[derive(Debug, Default)]
struct PagePass {
    /// None: all was gone over.
    target: Option<PageTarget>,
    at: u64,
    /// Up to when its pace allowed what was done.
    paid_until: Millis,
    moved_bytes: u64,
    stayed_bytes: u64,
}

impl NearPages {
    /// Those of a partition's window that begins at `start`.
    pub fn of(part: &Window, start: u64, options: &Options) -> NearPages {
        let window = part.slice(0, part.bytes() - options.far_bytes());
        NearPages { window, start, pass: Mutex::default() }
    }

    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Where they end in the memory of all partitions.
    pub fn end(&self) -> u64 {
        self.start + self.window.bytes()
    }

    fn pass(&self) -> MutexGuard<'_, PagePass> {
        self.pass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has pages lie there from now on; of an earlier call no more is done.
    ///
    /// # Errors
    /// [`NumaError::Io`].
    pub fn begin(&self, target: &PageTarget) -> Result<(), NumaError> {
        let mut pass = self.pass();
        target.apply(&self.window)?;
        pass.target = Some(target.clone());
        (pass.at, pass.stayed_bytes) = (0, 0);
        Ok(())
    }

    /// Goes over the next piece, if one is due to one of so many partitions that the thread tidies;
    /// whether it was.
    pub fn step(&self, now: Millis, partitions: u64) -> bool {
        // Another thread may be at it.
        let Ok(mut pass) = self.pass.try_lock() else { return false };
        let pass = &mut *pass;
        let Some(target) = &pass.target else { return false };
        let owed_ms_max = if pass.at == 0 { 1 } else { OWED_MS_MAX };
        pass.paid_until = pass.paid_until.max(now.saturating_sub(owed_ms_max));
        if pass.paid_until >= now {
            return false;
        }
        let end = (self.start + pass.at + 1).next_multiple_of(target.piece_bytes()) - self.start;
        let bytes = end.min(self.window.bytes()) - pass.at;
        let moved = target.move_pages(&self.window, self.start, pass.at, bytes);
        pass.moved_bytes += moved.moved_bytes;
        pass.stayed_bytes += moved.stayed_bytes;
        pass.at += bytes;
        pass.paid_until += (bytes * 1000).div_ceil(PACE.min(PACE_OF_ALL / partitions));
        if pass.at == self.window.bytes() {
            pass.target = None;
        }
        true
    }

    pub fn count(&self, stats: &mut Stats) {
        let pass = self.pass();
        stats.pages_left_bytes += pass.target.as_ref().map_or(0, |_| self.window.bytes() - pass.at);
        stats.pages_moved_bytes += pass.moved_bytes;
        stats.pages_stayed_bytes += pass.stayed_bytes;
    }
}
