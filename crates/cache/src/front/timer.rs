//! How long commands take, for the counters and the slow log, with few reads of the clock: one when
//! the bytes of a read are begun with, one when they are done, and one for each command that may
//! take long. The others (look-ups, plain stores, all of memcached's binary protocol) are timed as
//! one batch, which the log names by its first command.

use crate::constants::{SHORT_TURN_NS, TURN_NS};
use rackpool_mem::event::Poller;
use rackpool_mem::process::monotonic_ns;
use std::cell::Cell;
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct CommandTimer {
    pub commands: u64,
    /// Those of them that did not run.
    pub refused: u64,
    read_ns: u64,
    from: usize,
    /// Commands before the batch.
    before: u64,
    /// When the turn of the connection ends that is served, nanoseconds; 0: it has no end.
    turn_ends_ns: Cell<u64>,
    /// When it is next to be seen whether others wait.
    looks_ns: Cell<u64>,
    /// Whether they do, as far as was seen.
    pub others_wait: bool,
    /// Tells whether they do; `None`: there are no others.
    others: Option<Arc<Poller>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedBatch {
    /// Where the first one begins in the input.
    pub from: usize,
    pub commands: u64,
    pub took_ns: u64,
}

impl CommandTimer {
    /// That of a thread which serves connections of this poller.
    pub fn of(others: Arc<Poller>) -> Self {
        Self { others: Some(others), ..Self::default() }
    }

    pub fn start(&mut self) {
        (self.commands, self.refused, self.before, self.from) = (0, 0, 0, 0);
        self.read_ns = monotonic_ns();
    }

    /// A connection's turn begins: see [`CommandTimer::is_turn_over`].
    pub fn begin_turn(&mut self) {
        let now_ns = monotonic_ns();
        self.turn_ends_ns.set(now_ns + TURN_NS);
        self.looks_ns.set(now_ns + SHORT_TURN_NS);
    }

    /// The turn ends here, though its time is not over.
    pub fn end_turn(&self) {
        self.turn_ends_ns.set(1);
    }

    /// Whether other connections are to be served before this one goes on. Reads the clock, so
    /// not to be asked for each look-up.
    pub fn is_turn_over(&self) -> bool {
        self.is_turn_over_at(monotonic_ns())
    }

    /// As [`CommandTimer::is_turn_over`], right after a command that was timed alone: the clock is
    /// not read again.
    pub fn was_turn_over(&self) -> bool {
        self.is_turn_over_at(self.read_ns)
    }

    fn is_turn_over_at(&self, now_ns: u64) -> bool {
        let ends_ns = self.turn_ends_ns.get();
        if ends_ns == 0 || now_ns >= ends_ns {
            return ends_ns != 0;
        }
        if now_ns < self.looks_ns.get() {
            return false;
        }
        self.looks_ns.set(now_ns + SHORT_TURN_NS);
        let is_over = self.others_wait || self.others.as_ref().is_some_and(|it| it.has_ready());
        if is_over {
            self.end_turn();
        }
        is_over
    }

    /// What is before `at` is no command, or one that was not counted yet.
    #[inline]
    pub fn pass(&mut self, at: usize) {
        if self.commands == self.before {
            self.from = at;
        }
    }

    /// A command ended that is timed alone: how long it took, nanoseconds. The next batch
    /// begins
    /// where [`CommandTimer::pass`] comes to.
    pub fn alone(&mut self) -> u64 {
        self.before = self.commands;
        self.lap_ns()
    }

    /// Whether the last command was timed alone: it may have taken long.
    #[inline]
    pub fn was_alone(&self) -> bool {
        self.commands == self.before
    }

    /// A batch ends at `at`, if there is one.
    pub fn end_batch(&mut self, at: usize) -> Option<TimedBatch> {
        let (from, commands) = (self.from, self.commands - self.before);
        (self.from, self.before) = (at, self.commands);
        (commands > 0).then(|| TimedBatch { from, commands, took_ns: self.lap_ns() })
    }

    /// Nanoseconds since the clock was last read.
    pub fn lap_ns(&mut self) -> u64 {
        let now = monotonic_ns();
        now - std::mem::replace(&mut self.read_ns, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_are_timed_together_are_named_by_the_first() {
        let mut timer = CommandTimer::default();
        timer.start();
        assert_eq!(timer.end_batch(0), None);
        // The rest of a value that was refused, then two commands.
        timer.pass(100);
        timer.commands += 1;
        timer.pass(110);
        timer.commands += 1;
        timer.pass(120);
        let batch = timer.end_batch(120).unwrap();
        assert_eq!((batch.from, batch.commands), (100, 2));
        // One alone, then one more.
        timer.commands += 1;
        timer.alone();
        timer.pass(150);
        timer.commands += 1;
        let batch = timer.end_batch(160).unwrap();
        assert_eq!((batch.from, batch.commands), (150, 1));
        assert_eq!(timer.end_batch(160), None);
    }
}
