//! What connections of a worker wait for: their sockets, what another thread does for them, or
//! their next turn. A connection that could go on has it behind all that are ready.

use super::{Interest, NextInterest, Readiness, Worker};

/// What is told of a connection that goes on by itself: what came while it waited, its end perhaps,
/// is not told again.
const GOES_ON: Readiness =
    Readiness { token: 0, readable: true, writable: true, ended: true, closed: false };

impl Worker<'_> {
    /// Waits for what a connection waits for, or ends it.
    pub(super) fn settle(&mut self, index: usize, next_interest: NextInterest) {
        let interest = match next_interest {
            NextInterest::End => return self.end(index),
            NextInterest::Wait(interest) => interest,
            NextInterest::GoOn => {
                self.has_turns = true;
                if !self.waiting.contains(&index) {
                    self.waiting.push(index);
                }
                Interest::Edges
            }
        };
        let Some(Some(connection)) = self.connections.get_mut(index) else { return };
        if interest != connection.interest {
            connection.interest = interest;
            if self.poller.modify(&**connection, index as u64, interest).is_err() {
                self.end(index);
            }
        }
    }

    /// Goes on with connections that have their next turn, and with those for which another thread
    /// has done its work. It wakes this one then.
    pub(super) fn serve_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        self.has_turns = false;
        self.core.timer.others_wait = false;
        for index in std::mem::take(&mut self.waiting) {
            let connection = self.connections.get(index).and_then(Option::as_ref);
            let Some(connection) = connection else { continue };
            match connection.job().map(|job| job.is_done()) {
                Some(false) => self.waiting.push(index),
                None if !connection.goes_on() => {}
                Some(true) | None => self.serve(index, &GOES_ON),
            }
        }
    }
}
