//! Finding a page's home: the own daemon first (one ring round trip), then the master (one round
//! trip that answers with rack, frame and key at once; Rcmp needs three calls), then a link
//! to that rack if there is none yet.
//!
//! A page that moves is shut for a moment while the master still names its old home. Whoever found
//! it shut says so ([`Locate::after`]) and asks that home's daemon, which answers when the move is
//! over. So nobody spins, and nobody waits for a page that is not shut.

use super::{Client, Io, LinkId, Need, OWN, Operation, Step};
use crate::addr::{GAddr, RackId};
use crate::constants::{RESOLVE_PAGES_MAX, STALE_RETRIES_MAX};
use crate::error::{Error, Result};
use crate::seam::{Mem, Race, Rare};
use crate::wire::{MasterAnswer, MasterCall, PageHome, Reply, Request, Resolved};

/// Counts how often one operation met a page that had moved, and gives up in the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retries(u32);

impl Retries {
    pub(crate) fn again(&mut self, addr: GAddr) -> Result<()> {
        self.0 += 1;
        if self.0 > STALE_RETRIES_MAX {
            return Err(Error::Moving { addr, retries: STALE_RETRIES_MAX });
        }
        Ok(())
    }
}

#[derive(Debug)]
enum State {
    AskDaemon,
    AskMaster,
    /// There is no link to the page's home yet.
    NeedLink(RackId),
    /// The master names the home that was found stale.
    AskHome(LinkId),
    Done,
}

/// Finds the home of the page at `addr` and, on the way, of the `ahead` pages after it.
#[derive(Debug)]
pub struct Locate {
    addr: GAddr,
    count: u32,
    state: State,
    stale: Option<PageHome>,
    retries: Retries,
}

impl Locate {
    /// Starts the search for the pages of `bytes` bytes at `addr`.
    pub fn new<M: Mem>(client: &Client<M>, addr: GAddr, bytes: u64) -> Self {
        let pages = client.geometry().offset(addr).saturating_add(bytes.max(1));
        let count = pages.div_ceil(client.geometry().page_bytes());
        let limit = if client.rare(Rare::LocateOnePage) { 1 } else { RESOLVE_PAGES_MAX };
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(limit);
        let (state, retries) = (State::AskDaemon, Retries::default());
        Self { addr, count, state, stale: None, retries }
    }

    /// The page was just found not to be at this home: if the master names it all the same, its
    /// daemon is asked where the page is.
    pub fn after(self, stale: Option<PageHome>) -> Self {
        Self { stale, ..self }
    }

    /// What is needed now, or done: the first page has a translation. Nothing is learnt here, only
    /// by answers: so a runtime sees what moved before anything goes there
    /// ([`HeldLocks::stray`](super::HeldLocks::stray)).
    pub(super) fn advance<M: Mem>(&mut self, client: &mut Client<M>) -> Result<Step<()>> {
        let page = client.geometry().page(self.addr);
        match &self.state {
            State::AskDaemon => {
                let request = Request::Resolve { page, count: self.count };
                Ok(Step::Need(Need::Daemon(OWN, request)))
            }
            State::AskMaster => {
                let call = MasterCall::Resolve { page, count: self.count };
                Ok(Step::Need(Need::Master(call)))
            }
            State::AskHome(link) => {
                let request = Request::Resolve { page, count: self.count };
                Ok(Step::Need(Need::Daemon(*link, request)))
            }
            State::Done => Ok(Step::Done(())),
            State::NeedLink(rack) => {
                let rack = *rack;
                // The rack may lose its region while we connect: then what is known of the page is
                // of the old one and its key may open a frame of the new one. The master knows a
                // region before it names its daemon, so its next answer is of this region.
                self.state = State::AskMaster;
                Ok(Step::Need(Need::Link(rack)))
            }
        }
    }
}

impl<M: Mem> Operation<M> for Locate {
    type Output = ();

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<()>> {
        self.advance(client)
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        let Reply::Homes(homes) = reply? else {
            return Err(unexpected("daemon", "a resolve"));
        };
        let link = match self.state {
            State::AskHome(link) => link,
            _ if client.rare(Rare::LocateAtMaster) => {
                self.state = State::AskMaster;
                return Ok(());
            }
            _ => OWN,
        };
        client.install(link, &homes)?;
        if client.translation(client.geometry().page(self.addr)).is_some() {
            self.state = State::Done;
            return Ok(());
        }
        if link != OWN {
            // It has gone: the directory knows where.
            self.retries.again(self.addr)?;
        }
        self.state = State::AskMaster;
        Ok(())
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        let MasterAnswer::Homes(resolved) = answer? else {
            return Err(unexpected("master", "a resolve"));
        };
        let home = match resolved.first() {
            None => return Err(unexpected("master", "a resolve")),
            Some(Resolved::Unmapped) => return Err(Error::NotMapped { addr: self.addr }),
            Some(Resolved::Lost(rack)) => {
                return Err(Error::Lost { addr: self.addr, rack: *rack });
            }
            Some(Resolved::Home(home)) => *home,
        };
        if home.page != client.geometry().page(self.addr) {
            return Err(unexpected("master", "another page"));
        }
        if home.rack == client.own_rack() {
            // Committed at the master, but our daemon did not know it yet: it will in a moment.
            client.met(Race::CommittedNotHome);
            self.retries.again(self.addr)?;
            self.state = State::AskDaemon;
            return Ok(());
        }
        let Some(link) = client.link_of(home.rack) else {
            self.state = State::NeedLink(home.rack);
            return Ok(());
        };
        if self.stale == Some(home) {
            self.state = State::AskHome(link);
            return Ok(());
        }
        let homes = resolved.iter().map_while(|one| match one {
            Resolved::Home(of_rack) if of_rack.rack == home.rack => Some(*of_rack),
            _ => None,
        });
        client.install(link, &homes.collect::<Vec<_>>())?;
        self.state = State::Done;
        Ok(())
    }
}

pub(super) fn unexpected(peer: &str, what: &str) -> Error {
    Error::Protocol { peer: peer.into(), reason: format!("an answer that does not fit {what}") }
}
