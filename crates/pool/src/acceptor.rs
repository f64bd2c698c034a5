//! Lets connections in at a control socket: of users who may, and no more at once of one user than
//! others have room beside. Owns the listener. Used by the poll loops of daemon and agent.
//!
//! The kernel says of which user a connection is before a byte of it is read, so one that may not
//! come never takes a place. What waits for its hello is bounded; when it is too much, the oldest
//! one goes of the user that has most, so that no user keeps another one out.
//!
//! Source: DESIGN §4 (bounded, no byte is trusted).

use crate::daemon::io_error;
use rackpool_core::access::AccessList;
use rackpool_core::constants::{CONTROL_ACCEPTS_MAX, CONTROL_PENDING_MAX, CONTROL_REST_NS};
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{self, ControlReply};
use rackpool_core::{Error, Result};
use rackpool_hw::control::{ControlConn, ControlError, ControlListener};
use rackpool_hw::event::{Interest, Poller};
use rackpool_hw::warn;
use std::collections::BTreeMap;

/// See the module.
pub(crate) struct Acceptor {
    listener: ControlListener,
    name: String,
    token: u64,
    access: AccessList,
    /// Not listening until then: a listener that cannot be accepted from stays ready.
    rests_until: Option<Nanos>,
}

impl Acceptor {
    /// Serves `name`, or, if a process that this one does not deal with has it, another name that
    /// begins with it: abstract names have no owner.
    pub(crate) fn bind(name: &str, token: u64, access: AccessList) -> Result<Self> {
        let bound = match ControlListener::bind(name) {
            Err(ControlError::NameInUse { .. }) if is_squatted(name, &access) => {
                let random = rackpool_hw::process::random_u64();
                let random = random.map_err(|e| io_error("random numbers", &e))?;
                let other = format!("{name}.{random:016x}");
                warn!("rackpool", "another user has the name {name}: serving at {other}");
                ControlListener::bind(&other).map(|listener| (listener, other))
            }
            bound => bound.map(|listener| (listener, name.to_owned())),
        };
        let (listener, name) = bound.map_err(|e| io_error("control socket", &e))?;
        Ok(Self::new(listener, name, token, access))
    }

    /// Of a listener of this name.
    pub(crate) fn new(
        listener: ControlListener,
        name: String,
        token: u64,
        access: AccessList,
    ) -> Self {
        Self { listener, name, token, access, rests_until: None }
    }

    /// Where clients find it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whom it lets in.
    pub(crate) fn access(&self) -> &AccessList {
        &self.access
    }

    /// Begins to listen.
    pub(crate) fn watch(&self, poller: &Poller) -> std::io::Result<()> {
        poller.add(&self.listener, self.token, Interest::Read)
    }

    /// Connections that wait and may come, with their user; others are told why not.
    pub(crate) fn accept(&mut self, now: Nanos, poller: &Poller) -> Vec<(ControlConn, u32)> {
        let mut accepted = Vec::new();
        for _ in 0..CONTROL_ACCEPTS_MAX {
            let conn = match self.listener.accept() {
                Ok(Some(conn)) => conn,
                Ok(None) => break,
                Err(error) => {
                    // Out of descriptors, as a rule.
                    warn!("rackpool", "no connection can be accepted for now: {error}");
                    let _ = poller.remove(&self.listener);
                    self.rests_until = Some(now + CONTROL_REST_NS);
                    break;
                }
            };
            let Ok(peer) = conn.peer_credentials() else { continue };
            match self.access.check(peer.uid, &()) {
                Ok(()) => accepted.push((conn, peer.uid)),
                Err(error) => refuse(&conn, error),
            }
        }
        accepted
    }

    /// Listens again after a rest.
    pub(crate) fn tick(&mut self, now: Nanos, poller: &Poller) {
        if self.rests_until.is_some_and(|until| until <= now) && self.watch(poller).is_ok() {
            self.rests_until = None;
        }
    }
}

/// Tells a connection why it is not let in.
pub(crate) fn refuse(conn: &ControlConn, why: Error) {
    // One that is gone does not hear it.
    let _ = conn.send(&wire::encode_vec(&ControlReply::Refused(why)), &[]);
}

/// Whether a name is served by a process of a user that is not dealt with.
pub(crate) fn is_squatted(name: &str, access: &AccessList) -> bool {
    match ControlConn::connect(name) {
        Ok(conn) => matches!(conn.check_peer_of(access), Err(ControlError::ForeignUser { .. })),
        // A name that is bound and does not listen, or does not accept: ours do both at once.
        Err(error) => {
            matches!(error, ControlError::Busy { .. } | ControlError::NobodyListens { .. })
        }
    }
}

/// Which one of those that wait, by age, has to go before one more of user `newcomer` waits: the
/// oldest of the user that has most.
pub(crate) fn crowded_out(
    waiting: impl ExactSizeIterator<Item = (u64, u32)>,
    newcomer: u32,
) -> Option<u64> {
    if waiting.len() < CONTROL_PENDING_MAX {
        return None;
    }
    let mut users: BTreeMap<u32, (usize, Option<u64>)> = BTreeMap::from([(newcomer, (1, None))]);
    for (number, user) in waiting {
        let (count, oldest) = users.entry(user).or_default();
        *count += 1;
        oldest.get_or_insert(number);
    }
    users.into_values().max_by_key(|(count, _)| *count).and_then(|(_, oldest)| oldest)
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
