//! Accepting at a control socket: of permitted users only, and no more at once of one user than
//! leave room for others. [`ControlAcceptor`] owns the listener, [`PendingConns`] the connections
//! that have not been let in. Used by the poll loops of daemon, agent and HERD's server.
//!
//! The kernel says of which user a connection is before a byte of it is read, so one that may not
//! come never takes a place. What waits for its hello is bounded; when it is too much, the oldest
//! one goes of the user that has most, so that no user keeps another one out.
//!
//! Source: DESIGN §4 (bounded, no byte is trusted).

use crate::addresses::oldest_of_most;
use crate::control::{ControlConn, ControlListener};
use rackpool_core::Error;
use rackpool_core::access::AccessList;
use rackpool_core::constants::{CONTROL_ACCEPTS_MAX, CONTROL_PENDING_MAX, CONTROL_REST_NS};
use rackpool_core::seam::Nanos;
use rackpool_mem::event::{Interest, Poller};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use tracing::warn;

/// A listener, and the users whose connections are accepted there.
pub struct ControlAcceptor {
    listener: ControlListener,
    token: u64,
    access: AccessList,
    /// Not listening until then: a listener that cannot be accepted from stays ready.
    rests_until: Option<Nanos>,
}

impl ControlAcceptor {
    /// Is reported by a poller as `token`.
    pub fn new(listener: ControlListener, token: u64, access: AccessList) -> ControlAcceptor {
        ControlAcceptor { listener, token, access, rests_until: None }
    }

    pub fn access(&self) -> &AccessList {
        &self.access
    }

    /// Has the poller report connections that wait.
    ///
    /// # Errors
    /// As [`Poller::add`].
    pub fn watch(&self, poller: &Poller) -> io::Result<()> {
        poller.add(&self.listener, self.token, Interest::Read)
    }

    /// Connections that wait and may come, with their user; `refuse` gets the others. Does not
    /// block.
    pub fn accept(
        &mut self,
        now: Nanos,
        poller: &Poller,
        mut refuse: impl FnMut(ControlConn, Error),
    ) -> Vec<(ControlConn, u32)> {
        let mut accepted = Vec::new();
        for _ in 0..CONTROL_ACCEPTS_MAX {
            let conn = match self.listener.accept() {
                Ok(Some(conn)) => conn,
                Ok(None) => break,
                Err(error) => {
                    // Out of descriptors, as a rule.
                    warn!(target: "daemon", "no connection can be accepted for now: {error}");
                    let _ = poller.remove(&self.listener);
                    self.rests_until = Some(now + CONTROL_REST_NS);
                    break;
                }
            };
            let Ok(peer) = conn.peer_credentials() else { continue };
            match self.access.check(peer.uid, &()) {
                Ok(()) => accepted.push((conn, peer.uid)),
                Err(error) => refuse(conn, error),
            }
        }
        accepted
    }

    /// Whether it listens again only at a [`ControlAcceptor::tick`].
    pub fn rests(&self) -> bool {
        self.rests_until.is_some()
    }

    /// Listens again after a rest.
    pub fn tick(&mut self, now: Nanos, poller: &Poller) {
        if self.rests_until.is_some_and(|until| until <= now) && self.watch(poller).is_ok() {
            self.rests_until = None;
        }
    }
}

/// A connection that has not been let in.
pub struct PendingConn<T> {
    pub conn: ControlConn,
    pub user: u32,
    /// What is known of it so far.
    pub state: T,
    until: Nanos,
}

/// Connections that have not been let in, by the tokens that the poller reports them as.
pub struct PendingConns<T> {
    conns: BTreeMap<u64, PendingConn<T>>,
    tokens: Range<u64>,
    wait_ns: u64,
    next: u64,
}

impl<T: Default> PendingConns<T> {
    /// None yet. Each waits for `wait_ns` at most.
    pub fn new(tokens: Range<u64>, wait_ns: u64) -> PendingConns<T> {
        PendingConns { conns: BTreeMap::new(), next: tokens.start, tokens, wait_ns }
    }

    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// Waits for what a connection says. The one returned has to go instead.
    pub fn add(
        &mut self,
        conn: ControlConn,
        user: u32,
        now: Nanos,
        poller: &Poller,
    ) -> Option<ControlConn> {
        let waiting = self.conns.iter().map(|(token, one)| (*token, one.user));
        let crowded_out = crowded_out(waiting, user).and_then(|token| self.remove(token, poller));
        let token = self.next;
        self.next = if token + 1 == self.tokens.end { self.tokens.start } else { token + 1 };
        if poller.add(&conn, token, Interest::Read).is_ok() {
            let (state, until) = (T::default(), now + self.wait_ns);
            self.conns.insert(token, PendingConn { conn, user, state, until });
        }
        crowded_out.map(|one| one.conn)
    }

    pub fn get_mut(&mut self, token: u64) -> Option<&mut PendingConn<T>> {
        self.conns.get_mut(&token)
    }

    /// All, with their tokens.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut PendingConn<T>)> {
        self.conns.iter_mut().map(|(token, one)| (*token, one))
    }

    /// One that is let in, or goes: it is not reported any more.
    pub fn remove(&mut self, token: u64, poller: &Poller) -> Option<PendingConn<T>> {
        let one = self.conns.remove(&token)?;
        // One that is not in the poller any more is what is wanted.
        let _ = poller.remove(&one.conn);
        Some(one)
    }

    /// Closes those that have waited for too long.
    pub fn expire(&mut self, now: Nanos, poller: &Poller) {
        self.conns.retain(|_, one| {
            let keep = one.until > now;
            if !keep {
                let _ = poller.remove(&one.conn);
            }
            keep
        });
    }
}

/// Which one of those that wait, by age, has to go before one more of user `newcomer` waits: the
/// oldest of the user that has most.
fn crowded_out(waiting: impl ExactSizeIterator<Item = (u64, u32)>, newcomer: u32) -> Option<u64> {
    if waiting.len() < CONTROL_PENDING_MAX {
        return None;
    }
    let waiting = (0..).zip(waiting).map(|(age, (number, user))| (age, number, user));
    oldest_of_most(waiting, newcomer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_one_user_keeps_no_other_out() {
        let most = CONTROL_PENDING_MAX as u64;
        let crowd = |others: u64| {
            let users = (0..most).map(move |number| (number, u32::from(number >= others)));
            users.collect::<Vec<_>>().into_iter()
        };
        // User 1 has most: the oldest of its goes, for it as for another.
        assert_eq!(crowded_out(crowd(3), 1), Some(3));
        assert_eq!(crowded_out(crowd(3), 0), Some(3));
        assert_eq!(crowded_out(crowd(3), 7), Some(3));
        assert_eq!(crowded_out(crowd(3).skip(1), 7), None, "there is room");
    }
}
