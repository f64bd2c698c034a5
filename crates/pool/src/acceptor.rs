//! Accepts connections at a control socket: of permitted users only, and no more at once of one
//! user than leave room for others. Owns the listener. Used by the poll loops of daemon and agent.
//!
//! The kernel says of which user a connection is before a byte of it is read, so one that may not
//! come never takes a place. What waits for its hello is bounded; when it is too much, the oldest
//! one goes of the user that has most, so that no user keeps another one out.
//!
//! Source: DESIGN §4 (bounded, no byte is trusted).

use rackpool_core::Error;
use rackpool_core::access::AccessList;
use rackpool_core::constants::{CONTROL_ACCEPTS_MAX, CONTROL_PENDING_MAX, CONTROL_REST_NS};
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{self, ControlReply};
use rackpool_hw::addresses::oldest_of_most;
use rackpool_hw::control::{self, ControlConn, ControlError, ControlListener};
use rackpool_hw::event::{Interest, Poller};
use tracing::warn;

pub(crate) struct Acceptor {
    listener: ControlListener,
    name: String,
    /// The name that was asked for.
    asked: String,
    token: u64,
    access: AccessList,
    /// Not listening until then: a listener that cannot be accepted from stays ready.
    rests_until: Option<Nanos>,
}

impl Acceptor {
    /// Serves `name`, or, if a process that this one does not deal with has it, another name that
    /// begins with it: abstract names have no owner.
    pub(crate) fn bind(asked: &str, token: u64, access: AccessList) -> Result<Self, ControlError> {
        let (asked, mut name) = (asked.to_owned(), asked.to_owned());
        // Permitted users do not serve in our place.
        let own = control::access([]);
        let is_ours = |name: &String| {
            ControlConn::connect(name).is_ok_and(|conn| conn.check_peer_of(&own).is_ok())
        };
        if let Some(name) = control::spare_names_of(&name).into_iter().find(is_ours) {
            return Err(ControlError::NameInUse { name });
        }
        let listener = match ControlListener::bind(&name) {
            Err(ControlError::NameInUse { .. }) if is_squatted(&name, &own) => {
                name = control::spare_name(&name)?;
                warn!(target: "rackpool", "another user has the name {asked}: serving at {name}");
                ControlListener::bind(&name)
            }
            bound => bound,
        }?;
        Ok(Self { listener, name, asked, token, access, rests_until: None })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name that was asked for; another one is served if another user has it.
    pub(crate) fn asked(&self) -> &str {
        &self.asked
    }

    pub(crate) fn access(&self) -> &AccessList {
        &self.access
    }

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
                    warn!(target: "rackpool", "no connection can be accepted for now: {error}");
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

/// Tells a connection why it is refused.
pub(crate) fn refuse(conn: &ControlConn, why: Error) {
    // One that is gone does not get it.
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
