//! The acceptor of daemon and agent: [`ControlAcceptor`] at a name of its own, and how a connection
//! is told why it is refused. Used by their poll loops.

use rackpool_core::Error;
use rackpool_core::access::AccessList;
use rackpool_core::runtime::daemon::refusal;
use rackpool_core::seam::Nanos;
use rackpool_fabric::acceptor::ControlAcceptor;
use rackpool_fabric::control::{self, ControlConn, ControlError, ControlListener};
use rackpool_mem::event::Poller;
use tracing::warn;

pub(crate) struct Acceptor {
    inner: ControlAcceptor,
    name: String,
    /// The name that was asked for.
    asked: String,
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
        Ok(Self { inner: ControlAcceptor::new(listener, token, access), name, asked })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The name that was asked for; another one is served if another user has it.
    pub(crate) fn asked(&self) -> &str {
        &self.asked
    }

    pub(crate) fn access(&self) -> &AccessList {
        self.inner.access()
    }

    pub(crate) fn watch(&self, poller: &Poller) -> std::io::Result<()> {
        self.inner.watch(poller)
    }

    /// Connections that wait and may come, with their user; others are told why not.
    pub(crate) fn accept(&mut self, now: Nanos, poller: &Poller) -> Vec<(ControlConn, u32)> {
        self.inner.accept(now, poller, |conn, error| refuse(&conn, error))
    }

    /// Listens again after a rest.
    pub(crate) fn tick(&mut self, now: Nanos, poller: &Poller) {
        self.inner.tick(now, poller);
    }
}

/// Tells a connection why it is refused.
pub(crate) fn refuse(conn: &ControlConn, why: Error) {
    // One that is gone does not get it.
    let _ = conn.send(&refusal(why), &[]);
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
