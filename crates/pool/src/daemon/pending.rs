//! Control connections that have not said hello yet.

use super::host::TOKEN_PENDING;
use super::io_error;
use crate::acceptor;
use rackpool_core::access::AccessList;
use rackpool_core::constants::{CONTROL_PENDING_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::runtime::daemon::Joining;
use rackpool_core::seam::Nanos;
use rackpool_core::wire::{self, ControlHello};
use rackpool_core::{Error, Result};
use rackpool_hw::control::{ControlConn, Received};
use rackpool_hw::event::{Interest, Poller};
use std::collections::BTreeMap;

/// How long a connection may take to say hello, ns.
const HELLO_NS: u64 = 5_000_000_000;

struct Pending {
    conn: ControlConn,
    user: u32,
    until: Nanos,
}

pub(super) struct PendingConns {
    pending: BTreeMap<u64, Pending>,
    next: u64,
    buffer: Vec<u8>,
}

impl PendingConns {
    pub(super) fn new() -> Self {
        let buffer = vec![0; MESSAGE_BYTES_MAX as usize];
        Self { pending: BTreeMap::new(), next: 0, buffer }
    }

    /// Takes a new connection of a user in; it has to say hello.
    pub(super) fn accept(&mut self, conn: ControlConn, user: u32, now: Nanos, poller: &Poller) {
        let waiting = self.pending.iter().map(|(token, one)| (*token, one.user));
        if let Some(token) = acceptor::crowded_out(waiting, user)
            && let Some(old) = self.pending.remove(&token)
        {
            let _ = poller.remove(&old.conn);
            let (what, limit) = ("the daemon's new connections".into(), CONTROL_PENDING_MAX as u64);
            acceptor::refuse(&old.conn, Error::Busy { what, limit });
        }
        self.next = (self.next + 1) % TOKEN_PENDING;
        let token = TOKEN_PENDING + self.next;
        if poller.add(&conn, token, Interest::Read).is_ok() {
            self.pending.insert(token, Pending { conn, user, until: now + HELLO_NS });
        }
    }

    /// Closes connections that did not say hello in time.
    pub(super) fn expire(&mut self, now: Nanos, poller: &Poller) {
        self.pending.retain(|_, pending| {
            let keep = pending.until > now;
            if !keep {
                let _ = poller.remove(&pending.conn);
            }
            keep
        });
    }

    /// A connection has sent something or closed: its hello, if it is one and `check` takes it.
    pub(super) fn hear(
        &mut self,
        token: u64,
        poller: &Poller,
        check: impl FnOnce(u32, &ControlHello) -> Result<()>,
    ) -> Option<Joining<ControlConn>> {
        let hello = match self.pending.get(&token)?.conn.recv(&mut self.buffer) {
            Ok(Received::Nothing) => return None,
            Ok(Received::Message { bytes, .. }) => {
                wire::decode::<ControlHello>(&self.buffer[..bytes], "client")
            }
            Ok(Received::Closed) => Err(Error::Protocol {
                peer: "client".into(),
                reason: "closed before its hello".into(),
            }),
            Err(error) => Err(io_error("control connection", &error)),
        };
        let Pending { conn, user, .. } = self.pending.remove(&token).expect("looked up above");
        let _ = poller.remove(&conn);
        match hello.and_then(|hello| check(user, &hello).map(|()| hello)) {
            Ok(hello) => Some(Joining { conn, user: Some(user), hello }),
            Err(error) => {
                acceptor::refuse(&conn, error);
                None
            }
        }
    }
}

/// A permitted user other than our own has `most` of the slots, of which `held` are taken, so that
/// others can join.
pub(super) fn check_share(access: &AccessList, user: u32, held: usize, most: u32) -> Result<()> {
    let is_guest = user != access.own() && user != 0;
    if is_guest && held >= most as usize {
        return Err(Error::Busy {
            what: format!("user {user}'s share of slots"),
            limit: most.into(),
        });
    }
    Ok(())
}
