//! Searches for pages that are shut or not in memory: they wait at the daemon until the page is
//! open again, so that no client spins.

use super::Asker;
use crate::addr::PageId;
use crate::constants::MOVE_WAITERS_MAX;
use crate::daemon::{Daemon, World};
use crate::error::{Error, Result};
use crate::seam::{Probe, Race};
use crate::wire::Reply;

/// A search for a page that waits until its move is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParkedSearch {
    pub(super) asker: Asker,
    page: PageId,
    count: u32,
}

impl Daemon {
    /// Answers a search, or keeps it until the move of its first page is over.
    pub(in crate::daemon) fn resolve_or_park<W: World>(
        &mut self,
        asker: Asker,
        page: PageId,
        count: u32,
        world: &W,
    ) -> Option<Result<Reply>> {
        if !self.is_moving(page) {
            return Some(self.resolve(page, count, world));
        }
        self.moves.parked.retain(|parked| parked.asker != asker);
        let comes = !self.is_spilled(page) || self.want_back(page);
        if self.moves.parked.len() >= MOVE_WAITERS_MAX || !comes {
            let addr = self.layout.pages.join(page, 0);
            return Some(Err(Error::Moving { addr, retries: 0 }));
        }
        world.private().met(Race::SearchParked);
        self.moves.parked.push(ParkedSearch { asker, page, count });
        None
    }

    /// The move of a page is over: the requests that waited for it are answered.
    pub(in crate::daemon) fn unpark<W: World>(&mut self, page: PageId, world: &mut W) {
        self.unpark_with(page, None, world);
    }

    /// As [`Daemon::unpark`]; with an error they hear that.
    pub(in crate::daemon) fn unpark_with<W: World>(
        &mut self,
        page: PageId,
        error: Option<Error>,
        world: &mut W,
    ) {
        let ready = |parked: &mut ParkedSearch| parked.page == page;
        let parked: Vec<ParkedSearch> = self.moves.parked.extract_if(.., ready).collect();
        for ParkedSearch { asker, page, count } in parked {
            let reply = match &error {
                Some(error) => Err(error.clone()),
                None => self.resolve(page, count, world),
            };
            self.say(Some(asker), reply, world);
        }
    }
}
