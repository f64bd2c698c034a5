//! How long commands take, for the log of slow ones, with few looks at the clock: one when the
//! bytes of a read are begun with, one when they are done, and one for each command that may be
//! long. Those that are not (look-ups, plain stores, all of memcached's binary protocol) are a run:
//! they are timed together, and told of by the first one.

use crate::constants::TURN_NS;
use rackpool_hw::process::monotonic_ns;

/// The clock of one read of a connection.
#[derive(Debug, Default)]
pub struct Laps {
    /// Commands of this read so far.
    pub commands: u64,
    /// When the clock was last looked at, nanoseconds.
    looked_ns: u64,
    /// Where the run begins in the input.
    from: usize,
    /// Commands before the run.
    before: u64,
    /// When the turn of the connection ends that is served, nanoseconds; 0: it has no end.
    turn_ends_ns: u64,
}

/// Commands that were timed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where the first one begins in the input.
    pub from: usize,
    pub commands: u64,
    /// How long they took, nanoseconds.
    pub took_ns: u64,
}

impl Laps {
    pub fn start(&mut self) {
        let turn_ends_ns = self.turn_ends_ns;
        *self = Self { looked_ns: monotonic_ns(), turn_ends_ns, ..Self::default() };
    }

    /// A connection's turn begins: see [`Laps::is_turn_over`].
    pub fn begin_turn(&mut self) {
        self.turn_ends_ns = monotonic_ns() + TURN_NS;
    }

    /// Whether other connections are to be served before this one goes on. Looks at the clock, so
    /// not to be asked for each look-up.
    pub fn is_turn_over(&self) -> bool {
        self.turn_ends_ns != 0 && monotonic_ns() >= self.turn_ends_ns
    }

    /// What is before `at` is no command, or one that was not counted yet.
    #[inline]
    pub fn pass(&mut self, at: usize) {
        if self.commands == self.before {
            self.from = at;
        }
    }

    /// A command ended that is timed alone: how long it took, nanoseconds. The next run begins
    /// where [`Laps::pass`] comes to.
    pub fn alone(&mut self) -> u64 {
        self.before = self.commands;
        self.look_ns()
    }

    /// Whether the last command was timed alone: it may have taken long.
    #[inline]
    pub fn was_alone(&self) -> bool {
        self.commands == self.before
    }

    /// A run ends at `at`, if there is one.
    pub fn run(&mut self, at: usize) -> Option<Run> {
        let (from, commands) = (self.from, self.commands - self.before);
        (self.from, self.before) = (at, self.commands);
        (commands > 0).then(|| Run { from, commands, took_ns: self.look_ns() })
    }

    /// Nanoseconds since the clock was last looked at.
    pub fn look_ns(&mut self) -> u64 {
        let now = monotonic_ns();
        now - std::mem::replace(&mut self.looked_ns, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_are_timed_together_are_told_of_by_the_first() {
        let mut laps = Laps::default();
        laps.start();
        assert_eq!(laps.run(0), None);
        // The rest of a value that nobody wanted, then two commands.
        laps.pass(100);
        laps.commands += 1;
        laps.pass(110);
        laps.commands += 1;
        laps.pass(120);
        let run = laps.run(120).unwrap();
        assert_eq!((run.from, run.commands), (100, 2));
        // One alone, then one more.
        laps.commands += 1;
        laps.alone();
        laps.pass(150);
        laps.commands += 1;
        let run = laps.run(160).unwrap();
        assert_eq!((run.from, run.commands), (150, 1));
        assert_eq!(laps.run(160), None);
    }
}
