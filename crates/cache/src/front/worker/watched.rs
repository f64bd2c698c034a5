//! What a worker does for clients by the order of others: ends those that were killed, holds those
//! back that were paused, sends to those that monitor. Called by `worker.rs` while there are any.

use super::{Connection, Count, Interest, NextInterest, Readiness, Worker, note_connection};
use crate::cache::Millis;
use crate::front::core::Core;
use crate::front::tunables::OutputLimit;

impl Worker<'_> {
    /// Ends the connections of clients that were killed.
    pub(super) fn end_killed(&mut self) {
        let killed = self.core.shared.clients.ending_of(self.core.thread);
        for index in 0..self.connections.len() {
            let Some(connection) = &self.connections[index] else { continue };
            if killed.binary_search(&connection.client().id).is_ok() {
                self.end(index);
            }
        }
        self.core.shared.clients.ended(&killed);
    }

    /// Notes what is to be done for a connection that was served; what it waits for then.
    pub(super) fn watch(&mut self, index: usize, next_interest: NextInterest) -> NextInterest {
        let Some(Some(connection)) = self.connections.get(index) else { return next_interest };
        if connection.client().monitor.is_some() && !self.monitors.contains(&index) {
            self.monitors.push(index);
        }
        if !connection.session.is_held() || connection.is_stuck() {
            return next_interest;
        }
        // What comes meanwhile is read when the pause is over.
        self.has_held = true;
        NextInterest::Wait(Interest::Edges)
    }

    /// Sends to those that monitor, and goes on with those that were paused.
    pub(super) fn serve_watched(&mut self) {
        for index in std::mem::take(&mut self.monitors) {
            if self.send_lines(index) {
                self.monitors.push(index);
            }
        }
        if !self.has_held {
            return;
        }
        // Some may still have to wait: a pause of writes alone may follow one of all.
        self.has_held = false;
        for index in 0..self.connections.len() {
            let Some(Some(connection)) = self.connections.get_mut(index) else { continue };
            if !connection.session.is_held() {
                continue;
            }
            if connection.waits_for(&self.core) {
                self.has_held = true;
                continue;
            }
            connection.session.release();
            let token = index as u64;
            // What came meanwhile, its end perhaps, is not told again.
            let (readable, writable, ended, closed) = (true, true, true, false);
            self.serve(index, &Readiness { token, readable, writable, ended, closed });
        }
    }

    /// Sends the lines that wait for a client which monitors; whether it goes on to.
    fn send_lines(&mut self, index: usize) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(index) else { return false };
        let Some(queue) = connection.client().monitor.clone() else { return false };
        if queue.is_lost() {
            self.core.count(Count::SlowReaders);
            self.end(index);
            return false;
        }
        if connection.is_stuck() {
            return true;
        }
        let lines = queue.take();
        if lines.is_empty() {
            return true;
        }
        let before = connection.held_bytes();
        let next_interest = connection.send_told(&mut self.core, &lines);
        note_connection(&self.core, before, connection);
        self.settle(index, next_interest);
        true
    }
}

impl Connection {
    /// Whether it waits until a pause is over that is not.
    pub(super) fn waits_for(&self, core: &Core) -> bool {
        self.session.is_held() && core.pause.left(core.now) > 0
    }

    fn send_told(&mut self, core: &mut Core, lines: &[u8]) -> NextInterest {
        self.active = core.now;
        core.out.bytes.extend_from_slice(lines);
        self.send(core);
        self.next_interest()
    }

    /// Whether more waits to be sent than is allowed.
    pub(super) fn is_over(&mut self, limit: OutputLimit, now: Millis) -> bool {
        let (bytes, OutputLimit { hard_bytes, soft_bytes, soft_ms }) = (self.output_bytes(), limit);
        if soft_bytes == 0 || bytes <= soft_bytes {
            self.over_since = None;
        } else {
            let since = *self.over_since.get_or_insert(now);
            if now.saturating_sub(since) > soft_ms {
                return true;
            }
        }
        hard_bytes != 0 && bytes > hard_bytes
    }
}
