//! When a client repeats what a server thread has not answered, and when it gives up: one [`Timer`]
//! a thread, which belongs to the oldest request that is waited for there. Pure: the time is handed
//! in, by a caller that has just read a clock.
//!
//! A timer is started by the first look that finds its request, and each reminder is followed by
//! its whole pause, however rarely it is looked at: a client that comes back after a minute reminds
//! once, and does not give up before the pauses behind that are over.

/// How long a client waits for an answer before it rings again, milliseconds; doubled each time.
pub const REMIND_AFTER_MS: u64 = 50;
/// How often it rings again: 6.35 s in all, then it answers
/// [`Error::Silent`](crate::herd::Error::Silent).
pub const REMINDERS_MAX: u32 = 6;

/// What a look at a timer says. Times are the clock's, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing before this time.
    Later(u64),
    /// A reminder, now; nothing further before this time.
    Reminder(u64),
    /// No reminder was answered. The next look starts anew.
    Silence { waited_ms: u64, reminders: u32 },
}

/// How long a request is waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timer {
    /// The number of the request; 0 for none.
    request: u64,
    since_ns: u64,
    due_ns: u64,
    reminders: u32,
}

impl Timer {
    /// What is due for the request that is the oldest now.
    pub(super) fn look(&mut self, request: u64, now_ns: u64) -> Due {
        if self.request != request {
            let due_ns = now_ns + REMIND_AFTER_MS * 1_000_000;
            *self = Timer { request, since_ns: now_ns, due_ns, reminders: 0 };
        }
        if now_ns < self.due_ns {
            return Due::Later(self.due_ns);
        }
        if self.reminders == REMINDERS_MAX {
            let waited_ms = (now_ns - self.since_ns) / 1_000_000;
            *self = Timer::default();
            return Due::Silence { waited_ms, reminders: REMINDERS_MAX };
        }
        self.reminders += 1;
        self.due_ns = now_ns + (REMIND_AFTER_MS << self.reminders) * 1_000_000;
        Due::Reminder(self.due_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_request_is_repeated_after_pauses_that_double_and_then_given_up() {
        let mut timer = Timer::default();
        let (mut now, mut repeated) = (7 * MS, Vec::new());
        let silence = loop {
            match timer.look(3, now) {
                Due::Later(due) => now = due,
                Due::Reminder(due) => {
                    repeated.push(now / MS - 7);
                    assert_eq!(timer.look(3, now), Due::Later(due));
                    assert_eq!(timer.look(3, due - 1), Due::Later(due));
                }
                silence => break silence,
            }
        };
        assert_eq!(repeated, [50, 150, 350, 750, 1550, 3150]);
        assert_eq!(silence, Due::Silence { waited_ms: 6350, reminders: 6 });
        // It starts anew.
        assert_eq!(timer.look(3, now), Due::Later(now + 50 * MS));
    }

    #[test]
    fn another_request_has_a_time_of_its_own() {
        let mut timer = Timer::default();
        timer.look(1, 0);
        assert_eq!(timer.look(1, 60 * MS), Due::Reminder(160 * MS));
        assert_eq!(timer.look(2, 170 * MS), Due::Later(220 * MS));
        assert_eq!(timer.look(2, 219 * MS), Due::Later(220 * MS));
        assert_eq!(timer.look(2, 220 * MS), Due::Reminder(320 * MS));
    }

    #[test]
    fn who_looks_rarely_reminds_once_and_gives_nobody_up_for_it() {
        let mut timer = Timer::default();
        timer.look(1, 0);
        let minute = 60_000 * MS;
        assert_eq!(timer.look(1, minute), Due::Reminder(minute + 100 * MS));
        assert_eq!(timer.look(1, minute + MS), Due::Later(minute + 100 * MS));
        assert_eq!(timer.look(1, 2 * minute), Due::Reminder(2 * minute + 200 * MS));
    }
}
