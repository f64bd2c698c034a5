//! Which mover may move which page now: claims that a leader keeps in memory, first come, first
//! served. They only keep two movers from working on one page at once. What decides a move is the
//! directory's compare-and-swap ([`super::Command::MovePage`]), so nothing is lost with them: a
//! mover that has lost its claim goes on, and its commit counts or does not.
//!
//! A claim ends with an applied `MovePage` from the home that it was answered with, with its
//! connection, when its holder asks for what needs no move, or after a lease in which this
//! master was awake.

use super::{ConnId, Master};
use crate::addr::{PageId, RackId};
use crate::constants::MASTER_MOVES_MAX;
use crate::error::{Error, Result};
use crate::seam::{Nanos, Probe};
use crate::wire::{MasterAnswer, PageHome, Resolved};
use std::collections::BTreeMap;

struct Claim {
    conn: ConnId,
    /// The home that the claim was answered with.
    home: PageHome,
    /// Awake time of its last request.
    asked_at: Nanos,
}

/// The claims, at most [`MASTER_MOVES_MAX`].
#[derive(Default)]
pub(super) struct MoveClaims(BTreeMap<PageId, Claim>);

impl MoveClaims {
    /// Claims a page for a connection, or claims it again.
    fn claim(&mut self, conn: ConnId, home: PageHome, asked_at: Nanos) -> Result<()> {
        match self.0.get(&home.page) {
            Some(claim) if claim.conn != conn => {
                let reason = "another move of it is under way".into();
                return Err(Error::Stays { page: home.page, reason });
            }
            None if self.0.len() >= MASTER_MOVES_MAX => {
                let limit = MASTER_MOVES_MAX as u64;
                return Err(Error::Busy { what: "moves of the pool".into(), limit });
            }
            _ => {}
        }
        self.0.insert(home.page, Claim { conn, home, asked_at });
        Ok(())
    }

    /// The connection claims the page no more.
    fn release(&mut self, conn: ConnId, page: PageId) {
        if self.0.get(&page).is_some_and(|claim| claim.conn == conn) {
            self.0.remove(&page);
        }
    }

    /// A move from this home was decided, one way or the other.
    pub(super) fn on_moved(&mut self, from: &PageHome) {
        if self.0.get(&from.page).is_some_and(|claim| claim.home == *from) {
            self.0.remove(&from.page);
        }
    }

    pub(super) fn on_closed(&mut self, conn: ConnId) {
        self.0.retain(|_, claim| claim.conn != conn);
    }

    /// Ends what was claimed a lease ago.
    pub(super) fn expire(&mut self, awake_ns: Nanos, lease_ns: Nanos) {
        self.0.retain(|_, claim| awake_ns.saturating_sub(claim.asked_at) < lease_ns);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl<P: Probe> Master<P> {
    /// The page's home, claimed for the connection if it has to move to be in `to`.
    pub(super) fn begin_move(
        &mut self,
        conn: ConnId,
        page: PageId,
        to: RackId,
    ) -> Result<MasterAnswer> {
        if self.state.named(to).next().is_none() {
            return Err(Error::NoSuchRack { rack: to });
        }
        let resolved = self.state.resolve(page);
        match resolved {
            Resolved::Home(home) if !home.rack.same_rack(to) => {
                self.check_takes_pages(to)?;
                self.moves.claim(conn, home, self.awake_ns)?;
            }
            _ => self.moves.release(conn, page),
        }
        Ok(MasterAnswer::Homes(vec![resolved]))
    }
}
