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
        self.begin_turn_at(monotonic_ns());
    }

    fn begin_turn_at(&self, now_ns: u64) {
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

    /// A command ended that is timed alone: how long it took, nanoseconds. The next batch begins
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
    use rackpool_mem::event::{Interest, WakeEvent};

    const BEGIN_NS: u64 = 1_000_000_000;

    /// At which steps of a short turn a turn was found to be over; others become ready by `ready`
    /// before step `at`.
    fn over_at(timer: &CommandTimer, at: u64, ready: impl Fn()) -> Option<u64> {
        timer.begin_turn_at(BEGIN_NS);
        (0..=TURN_NS / SHORT_TURN_NS + 1).find(|step| {
            if *step == at {
                ready();
            }
            // Just before the look nothing is looked at; behind it all is known.
            let next_ns = BEGIN_NS + step * SHORT_TURN_NS;
            let is_early = next_ns < BEGIN_NS + TURN_NS;
            assert!(!is_early || !timer.is_turn_over_at(next_ns.saturating_sub(1)), "{step}");
            let is_over = timer.is_turn_over_at(next_ns);
            assert_eq!(is_over, timer.is_turn_over_at(next_ns + SHORT_TURN_NS - 1) && is_over);
            is_over
        })
    }

    #[test]
    fn a_turn_is_short_where_another_connection_is_ready_and_longer_where_none_is() {
        let last = TURN_NS.div_ceil(SHORT_TURN_NS);
        assert!(last > 2, "both turns are told apart");
        let (poller, event) = (Arc::new(Poller::new().unwrap()), WakeEvent::new().unwrap());
        poller.add(&event, 7, Interest::Read).unwrap();
        let timer = CommandTimer::of(Arc::clone(&poller));
        assert_eq!(over_at(&timer, u64::MAX, || ()), Some(last));
        assert_eq!(over_at(&timer, 2, || event.notify()), Some(2));
        // It is ready still: at the first look.
        assert_eq!(over_at(&timer, u64::MAX, || ()), Some(1));
        event.drain();
        assert_eq!(over_at(&timer, u64::MAX, || ()), Some(last));
        // Others that wait for their next turn are known without the poller.
        let timer = CommandTimer { others_wait: true, ..CommandTimer::default() };
        assert_eq!(over_at(&timer, u64::MAX, || ()), Some(1));
        // What is found to be over stays so, until the next turn.
        assert!(timer.is_turn_over_at(BEGIN_NS));
        timer.begin_turn_at(BEGIN_NS);
        assert!(!timer.is_turn_over_at(BEGIN_NS));
        timer.end_turn();
        assert!(timer.is_turn_over_at(BEGIN_NS));
        // Outside of a worker no turn has an end.
        assert!(!CommandTimer::default().is_turn_over_at(u64::MAX));
    }

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
