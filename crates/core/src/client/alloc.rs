//! Allocation and free: which daemon to ask. Own rack first, then another one that the master
//! picks (at random by default, Rcmp §5.1), until one has room or all were tried.

use super::locate::unexpected;
use super::{Client, Io, Locate, Need, Operation, Step};
use crate::addr::{GAddr, RackId};
use crate::constants::RACKS_MAX;
use crate::error::{Error, Result};
use crate::seam::{Mem, Rare};
use crate::wire::{MasterAnswer, MasterCall, Reply, Request};

/// Where an allocation shall live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The own rack if it has room, else another by the master's policy.
    #[default]
    Auto,
    /// The own rack or nowhere.
    Local,
    /// This rack or nowhere.
    Rack(RackId),
    /// Any rack by the master's policy, the own one included.
    Spread,
}

/// An allocation under way.
#[derive(Debug)]
pub struct Alloc {
    bytes: u64,
    owned: bool,
    placement: Placement,
    target: Option<RackId>,
    tried: Vec<RackId>,
    last_full: Option<Error>,
    done: Option<GAddr>,
}

impl Alloc {
    /// Starts an allocation. `owned` memory comes back when the handle's session ends.
    pub fn new<M: Mem>(client: &Client<M>, bytes: u64, placement: Placement, owned: bool) -> Self {
        let target = match placement {
            Placement::Auto if client.rare(Rare::PickRackFirst) => None,
            Placement::Auto | Placement::Local => Some(client.own_rack()),
            Placement::Rack(rack) => Some(rack),
            Placement::Spread => None,
        };
        Self { bytes, owned, placement, target, tried: Vec::new(), last_full: None, done: None }
    }
}

impl<M: Mem> Operation<M> for Alloc {
    type Output = GAddr;

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<GAddr>> {
        if let Some(addr) = self.done {
            return Ok(Step::Done(addr));
        }
        let Some(rack) = self.target else {
            let own = match self.placement {
                Placement::Spread => RackId(u16::MAX),
                _ => client.own_rack(),
            };
            let (bytes, tried) = (self.bytes, self.tried.clone());
            return Ok(Step::Need(Need::Master(MasterCall::PickRack { own, bytes, tried })));
        };
        match client.link_of(rack) {
            None => Ok(Step::Need(Need::Link(rack))),
            Some(link) => {
                let request = Request::Alloc { bytes: self.bytes, owned: self.owned };
                Ok(Step::Need(Need::Daemon(link, request)))
            }
        }
    }

    fn on_reply(&mut self, _client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match reply {
            Ok(Reply::Allocated { addr }) => {
                self.done = Some(addr);
                Ok(())
            }
            Ok(_) => Err(unexpected("daemon", "an allocation")),
            Err(error @ Error::Full { .. })
                if matches!(self.placement, Placement::Auto | Placement::Spread)
                    && self.tried.len() < RACKS_MAX as usize =>
            {
                self.tried.extend(self.target.take());
                self.last_full = Some(error);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        let own = client.own_rack();
        let own_untried = self.placement == Placement::Auto && !self.tried.contains(&own);
        match answer {
            Ok(MasterAnswer::Rack(info)) => {
                self.target = Some(info.rack);
                Ok(())
            }
            Ok(_) => Err(unexpected("master", "a pick of a rack")),
            Err(Error::Full { .. }) if own_untried => {
                self.target = Some(own);
                Ok(())
            }
            Err(error) => Err(self.last_full.take().unwrap_or(error)),
        }
    }
}

/// A free under way: finds the home, then asks its daemon.
#[derive(Debug)]
pub struct Free {
    addr: GAddr,
    bytes: u64,
    locate: Option<Locate>,
    done: bool,
}

impl Free {
    /// Starts the free of an allocation.
    pub fn new(addr: GAddr, bytes: u64) -> Self {
        Self { addr, bytes, locate: None, done: false }
    }
}

impl<M: Mem> Operation<M> for Free {
    type Output = ();

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<()>> {
        if self.done {
            return Ok(Step::Done(()));
        }
        let page = client.geometry().page(self.addr);
        if let Some(translation) = client.translation(page) {
            self.locate = None;
            let request = Request::Free { addr: self.addr, bytes: self.bytes };
            return Ok(Step::Need(Need::Daemon(translation.link, request)));
        }
        let locate = self.locate.get_or_insert_with(|| Locate::new(client, self.addr, 1));
        match locate.advance(client)? {
            Step::Need(need) => Ok(Step::Need(need)),
            Step::Done(()) => {
                let link = client.translation(page).map(|entry| entry.link);
                let link = link.expect("a located page has a translation");
                self.locate = None;
                let request = Request::Free { addr: self.addr, bytes: self.bytes };
                Ok(Step::Need(Need::Daemon(link, request)))
            }
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        if let Some(locate) = &mut self.locate {
            return locate.on_reply(client, reply);
        }
        match reply? {
            Reply::Freed => {
                // A slab page stays with its other objects; if it went, its generation tells.
                if self.bytes > client.geometry().page_bytes() / 2 {
                    client.forget(client.geometry().page(self.addr));
                }
                self.done = true;
                Ok(())
            }
            _ => Err(unexpected("daemon", "a free")),
        }
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        match &mut self.locate {
            Some(locate) => locate.on_master(client, answer),
            None => Err(unexpected("master", "a free")),
        }
    }
}
