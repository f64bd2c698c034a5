//! Finding a page's home: the own daemon first (one ring round trip), then the master (one round
//! trip that answers with rack, frame and key at once; Rcmp needs three calls), then a link
//! to that rack if there is none yet.
//!
//! A page that moves is shut for a moment while the master still names its old home. Whoever found
//! it shut says so ([`Locate::after`]) and asks that home's daemon, which answers when the move is
//! over. So nobody spins, and nobody waits for a page that is not shut.

use super::{Client, Io, LinkId, Need, OWN, Operation, Retries, Step};
use crate::addr::GAddr;
use crate::constants::RESOLVE_PAGES_MAX;
use crate::error::{Error, Result};
use crate::seam::{Mem, Race, Rare};
use crate::wire::{MasterAnswer, MasterCall, PageHome, Reply, Request, Resolved};

#[derive(Debug)]
enum State {
    AskDaemon,
    AskMaster,
    NeedLink(Vec<PageHome>),
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

    /// What is needed now, or done: the first page has a translation.
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
            State::NeedLink(homes) => {
                let rack = homes[0].rack;
                let Some(link) = client.link_of(rack) else {
                    // The rack may have lost its region while we connect: then these homes are of
                    // the old one and their keys may open frames of the new one. The master knows
                    // a region before it names its daemon, so its next answer is of this region.
                    self.state = State::AskMaster;
                    return Ok(Step::Need(Need::Link(rack)));
                };
                let same_rack = homes.iter().take_while(|home| home.rack == rack).count();
                client.install(link, &homes[..same_rack])?;
                self.state = State::Done;
                Ok(Step::Done(()))
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
        if let Some(link) = client.link_of(home.rack).filter(|_| self.stale == Some(home)) {
            self.state = State::AskHome(link);
            return Ok(());
        }
        let homes = resolved.iter().map_while(|one| match one {
            Resolved::Home(home) => Some(*home),
            _ => None,
        });
        self.state = State::NeedLink(homes.collect());
        Ok(())
    }
}

pub(super) fn unexpected(peer: &str, what: &str) -> Error {
    Error::Protocol { peer: peer.into(), reason: format!("an answer that does not fit {what}") }
}
