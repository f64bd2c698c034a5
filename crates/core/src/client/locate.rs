//! Finding a page's home: the own daemon first (one ring round trip), then the master (one round
//! trip that answers with rack, frame and key at once; Rcmp needs three calls), then a link
//! to that rack if there is none yet.
//!
//! A page that moves is shut for a moment while the master still names its old home. A client that
//! found it shut says so ([`Locate::after`]) and asks that home's daemon, which answers when the
//! move is over. So no client spins, and none waits for a page that is not shut. A page that the
//! master takes for lost with its rack's memory is asked for there once: it may be in a file.

use super::{Client, Context, LinkId, OWN, Operation};
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

/// Finds the home of the page at `addr` and, on the way, of the `ahead` pages after it.
#[derive(Debug)]
pub struct Locate {
    addr: GAddr,
    count: u32,
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
        Self { addr, count, stale: None, retries: Retries::default() }
    }

    /// The page was just found not to be at this home: if the master names it all the same, its
    /// daemon is asked where the page is.
    pub fn after(self, stale: Option<PageHome>) -> Self {
        Self { stale, ..self }
    }

    /// Asks a daemon; whether the page's home is known then.
    async fn ask_daemon<M: Mem>(&mut self, cx: &mut impl Context<M>, link: LinkId) -> Result<bool> {
        let page = cx.client().geometry().page(self.addr);
        let request = Request::Resolve { page, count: self.count };
        let Reply::Homes(homes) = cx.daemon(link, request).await? else {
            return Err(unexpected("daemon", "a resolve"));
        };
        let client = cx.client();
        if link == OWN && client.rare(Rare::LocateAtMaster) {
            return Ok(false);
        }
        client.install(link, &homes)?;
        let is_known = client.translation(page).is_some();
        if !is_known && link != OWN {
            // It has gone: the directory knows where.
            self.retries.again(self.addr)?;
        }
        Ok(is_known)
    }

    /// Asks the master; the page's home, and all that it said.
    async fn ask_master<M: Mem>(
        &self,
        cx: &mut impl Context<M>,
    ) -> Result<(PageHome, Vec<Resolved>)> {
        let page = cx.client().geometry().page(self.addr);
        let call = MasterCall::Resolve { page, count: self.count };
        let MasterAnswer::Homes(resolved) = cx.master(call).await? else {
            return Err(unexpected("master", "a resolve"));
        };
        match resolved.first() {
            None => Err(unexpected("master", "a resolve")),
            Some(Resolved::Unmapped) => Err(Error::NotMapped { addr: self.addr }),
            Some(Resolved::Lost(rack)) => Err(Error::Lost { addr: self.addr, rack: *rack }),
            Some(Resolved::Home(home)) if home.page != page => {
                Err(unexpected("master", "another page"))
            }
            Some(Resolved::Home(home)) => Ok((*home, resolved)),
        }
    }
}

impl Locate {
    /// Whether another rack that has lost its memory still has the page in its spill file: its
    /// daemon answers when the directory knows that.
    async fn comes_back<M: Mem>(&mut self, cx: &mut impl Context<M>, rack: RackId) -> bool {
        if rack == cx.client().own_rack() {
            return false;
        }
        if cx.client().link_of(rack).is_none() && cx.connect(rack).await.is_err() {
            return false;
        }
        let Some(link) = cx.client().link_of(rack) else { return false };
        matches!(self.ask_daemon(cx, link).await, Ok(true))
    }
}

impl<M: Mem> Operation<M> for Locate {
    /// The first page has a translation.
    type Output = ();

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        let mut is_known = self.ask_daemon(cx, OWN).await?;
        while !is_known {
            let (home, resolved) = match self.ask_master(cx).await {
                Err(Error::Lost { rack, .. }) if self.comes_back(cx, rack).await => return Ok(()),
                other => other?,
            };
            let client = cx.client();
            is_known = if home.rack == client.own_rack() {
                // Committed at the master, but our daemon did not know it yet: it will in a moment.
                client.met(Race::CommittedNotHome);
                self.retries.again(self.addr)?;
                self.ask_daemon(cx, OWN).await?
            } else if let Some(link) = client.link_of(home.rack) {
                if self.stale == Some(home) {
                    self.ask_daemon(cx, link).await?
                } else {
                    let homes = resolved.iter().map_while(|one| match one {
                        Resolved::Home(of_rack) if of_rack.rack == home.rack => Some(*of_rack),
                        _ => None,
                    });
                    client.install(link, &homes.collect::<Vec<_>>())?;
                    true
                }
            } else {
                // The rack may lose its region while we connect: then what is known of the page is
                // of the old one and its key may open a frame of the new one. The master knows a
                // region before it names its daemon, so its next answer is of this region.
                cx.connect(home.rack).await?;
                false
            };
        }
        Ok(())
    }
}

pub(super) fn unexpected(peer: &str, what: &str) -> Error {
    Error::Protocol { peer: peer.into(), reason: format!("an answer that does not fit {what}") }
}
