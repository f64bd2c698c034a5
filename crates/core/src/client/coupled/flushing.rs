//! When buffered writes go home, and what becomes of those that do not arrive.

use super::{Coupled, CoupledIo};
use crate::error::{Error, Result};
use crate::seam::Mem;

impl Coupled {
    /// Lets a flush go on that is under way, without waiting.
    pub(super) fn push<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        if !io.flush().is_some_and(|flush| flush.is_under_way()) {
            return;
        }
        io.take_completions(false);
        if let Some(result) = io.step_flush() {
            self.flush_ended(io, result);
        }
    }

    /// Sends the half that fills, or again what did not arrive, unless a half is under way.
    pub(super) fn begin_flush<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        let Some(flush) = io.flush() else { return };
        if flush.is_under_way() || flush.buffer.is_empty() {
            return;
        }
        self.lose(io);
        let Some(flush) = io.flush().filter(|flush| !flush.buffer.is_empty()) else { return };
        if !flush.buffer.is_leaving() {
            for range in &mut self.ranges {
                range.leaving += std::mem::take(&mut range.filling);
            }
        }
        io.begin_flush();
        if let Some(result) = io.step_flush() {
            self.flush_ended(io, result);
        }
    }

    /// Waits for a flush that is under way.
    pub(super) fn end_flush<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        while io.flush().is_some_and(|flush| flush.is_under_way()) {
            match io.step_flush() {
                Some(result) => self.flush_ended(io, result),
                None => io.take_completions(true),
            }
        }
    }

    /// Brings home everything that is buffered. What failed is noted with its range.
    pub fn flush<M: Mem>(&mut self, io: &mut impl CoupledIo<M>) {
        // Each turn ends a half, or begins one; a half begins anew only after a loss.
        while io.flush().is_some_and(|flush| !flush.buffer.is_empty()) {
            self.end_flush(io);
            self.begin_flush(io);
        }
    }

    fn flush_ended<M: Mem>(&mut self, io: &mut impl CoupledIo<M>, result: Result<()>) {
        self.stats.flushes += u64::from(result.is_ok());
        match result {
            Ok(()) => self.ranges.iter_mut().for_each(|range| range.leaving = 0),
            // The locks that are left have their writes sent again.
            Err(Error::LockLost { .. }) => self.lose(io),
            Err(error) => {
                let flush = io.flush().expect("it has ended");
                for range in self.ranges.iter_mut().filter(|range| range.leaving > 0) {
                    flush.buffer.give_up(range.first, range.end);
                    range.fail(&error);
                }
                flush.buffer.arrived();
            }
        }
    }
}
