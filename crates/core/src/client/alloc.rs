//! Allocation and free: which daemon to ask. Own rack first, or as the pool's order says, then
//! another one that the master picks (at random by default, Rcmp §5.1), until one has room or all
//! were tried.

use super::locate::{Retries, unexpected};
use super::{Client, Io, LinkId, Locate, Need, Operation, Step};
use crate::addr::{GAddr, RackId};
use crate::constants::RACKS_MAX;
use crate::error::{Error, Result};
use crate::layout::AllocationKind;
use crate::placement::Order;
use crate::seam::{Mem, Rare};
use crate::wire::{MasterAnswer, MasterCall, PageHome, Reply, Request};

/// Where an allocation shall live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// As the pool's policy says: by default the own rack if it has room, else another one.
    #[default]
    Auto,
    /// The own rack or nowhere.
    Local,
    /// This rack or nowhere; or this shard of a divided rack, if one is named.
    Rack(RackId),
    /// Any rack by the master's policy, the own one included.
    Spread,
}

#[derive(Debug)]
pub struct Alloc {
    bytes: u64,
    kind: AllocationKind,
    placement: Placement,
    order: Order,
    target: Option<RackId>,
    tried: Vec<RackId>,
    last_full: Option<Error>,
    done: Option<GAddr>,
}

impl Alloc {
    /// Starts an allocation. Memory of an owned kind comes back when the handle's session ends.
    pub fn new<M: Mem>(
        client: &mut Client<M>,
        bytes: u64,
        placement: Placement,
        kind: AllocationKind,
    ) -> Self {
        let own = Some(client.own_rack());
        let order = client.order();
        let target = match (placement, order) {
            (Placement::Auto, _) if client.rare(Rare::PickRackFirst) => None,
            (Placement::Local, _) => own,
            (Placement::Rack(rack), _) => Some(rack),
            (Placement::Spread, _) => None,
            (Placement::Auto, order) => {
                let is_own_turn = order == Order::Alternate && client.take_turn();
                own.filter(|_| order.own_first(is_own_turn))
            }
        };
        let (tried, last_full, done) = (Vec::new(), None, None);
        Self { bytes, kind, placement, order, target, tried, last_full, done }
    }
}

impl Alloc {
    /// The shard to ask after a full one, as long as the same rack is meant.
    fn next_shard(&self, own: RackId, full: RackId) -> Option<RackId> {
        let stays = match self.placement {
            Placement::Local => true,
            Placement::Rack(named) => !named.is_divided(),
            Placement::Auto => full.same_rack(own),
            Placement::Spread => false,
        };
        full.siblings().find(|next| stays && !self.tried.contains(next))
    }
}

impl<M: Mem> Operation<M> for Alloc {
    type Output = GAddr;

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<GAddr>> {
        if let Some(addr) = self.done {
            return Ok(Step::Done(addr));
        }
        let Some(named) = self.target else {
            let own = match (self.placement, self.order) {
                (Placement::Spread, _) | (_, Order::Anywhere) => RackId::NONE,
                _ => client.own_rack(),
            };
            let (bytes, tried) = (self.bytes, self.tried.clone());
            return Ok(Step::Need(Need::Master(MasterCall::PickRack { own, bytes, tried })));
        };
        let rack = client.home_in(named).unwrap_or(named);
        self.target = Some(rack);
        match client.link_of(rack) {
            None => Ok(Step::Need(Need::Link(rack))),
            Some(link) => {
                let request = Request::Alloc { bytes: self.bytes, kind: self.kind };
                Ok(Step::Need(Need::Daemon(link, request)))
            }
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match reply {
            Ok(Reply::Allocated { addr }) => {
                self.done = Some(addr);
                Ok(())
            }
            Ok(_) => Err(unexpected("daemon", "an allocation")),
            Err(error @ (Error::Full { .. } | Error::Draining { .. }))
                if self.tried.len() < RACKS_MAX as usize =>
            {
                let full = self.target.take();
                self.tried.extend(full);
                self.target = full.and_then(|full| self.next_shard(client.own_rack(), full));
                let anywhere = matches!(self.placement, Placement::Auto | Placement::Spread);
                if self.target.is_none() && !anywhere {
                    return Err(error);
                }
                if matches!(error, Error::Full { .. }) {
                    self.last_full = Some(error);
                }
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

/// The way to the daemon of an address's home rack.
///
/// The home may be one that the cache remembers, and a page may move on between its search and the
/// request. So a refusal that a page elsewhere would get as well counts only if the page is found
/// where it was asked: a generation is given out once, so it was there all the time.
#[derive(Debug)]
pub(super) struct Home {
    addr: GAddr,
    locate: Option<Locate>,
    /// Whose daemon got the request last.
    asked: Option<PageHome>,
    /// What it said, if that may have been for want of the page.
    refused: Option<Error>,
    retries: Retries,
}

impl Home {
    pub(super) fn of(addr: GAddr) -> Self {
        Self { addr, locate: None, asked: None, refused: None, retries: Retries::default() }
    }

    /// Asks the daemon once it is known.
    fn ask<M: Mem, T>(&mut self, client: &mut Client<M>, request: Request) -> Result<Step<T>> {
        Ok(match self.find(client)? {
            Step::Done(link) => Step::Need(Need::Daemon(link, request)),
            Step::Need(need) => Step::Need(need),
        })
    }

    /// The daemon to ask, which counts as asked by then.
    pub(super) fn find<M: Mem>(&mut self, client: &mut Client<M>) -> Result<Step<LinkId>> {
        let page = client.geometry().page(self.addr);
        if client.translation(page).is_none() {
            let search = || Locate::new(client, self.addr, 1).after(self.asked);
            let locate = self.locate.get_or_insert_with(search);
            if let Step::Need(need) = locate.advance(client)? {
                return Ok(Step::Need(need));
            }
        }
        self.locate = None;
        let home = client.home_of(page).expect("a located page has a translation");
        match self.refused.take() {
            // It is shut no more.
            Some(Error::Moving { .. }) | None => {}
            Some(error) if self.asked == Some(home) => return Err(error),
            Some(_) => {}
        }
        self.asked = Some(home);
        Ok(Step::Done(client.link_of(home.rack).expect("a translation has a link")))
    }

    /// A daemon's reply, unless it was to the search, or is not the last word.
    pub(super) fn on_reply<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        reply: Result<Reply>,
    ) -> Result<Option<Reply>> {
        if let Some(locate) = &mut self.locate {
            let found = locate.on_reply(client, reply);
            return self.search_ended(found).map(|()| None);
        }
        match reply {
            Err(error) if may_be_elsewhere(&error) => {
                self.retries.again(self.addr)?;
                self.refused = Some(error);
                client.forget(client.geometry().page(self.addr));
                self.locate = Some(Locate::new(client, self.addr, 1).after(self.asked));
                Ok(None)
            }
            reply => reply.map(Some),
        }
    }

    pub(super) fn on_master<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        answer: Result<MasterAnswer>,
    ) -> Result<()> {
        let Some(locate) = &mut self.locate else {
            return Err(unexpected("master", "a request to a daemon"));
        };
        let found = locate.on_master(client, answer);
        self.search_ended(found)
    }

    /// A page that is nowhere: whom was asked before has said more.
    fn search_ended(&mut self, found: Result<()>) -> Result<()> {
        match found {
            Err(Error::NotMapped { addr }) => {
                let refused = self.refused.take();
                let said = refused.filter(|error| !matches!(error, Error::Moving { .. }));
                Err(said.unwrap_or(Error::NotMapped { addr }))
            }
            found => found,
        }
    }
}

/// Whether a daemon may refuse with this because the page is not at home there, or not now.
fn may_be_elsewhere(error: &Error) -> bool {
    matches!(
        error,
        Error::NotMapped { .. }
            | Error::BadFree { .. }
            | Error::Moving { .. }
            | Error::NoSuchRack { .. }
    )
}

/// A free under way: finds the home, then asks its daemon.
#[derive(Debug)]
pub struct Free {
    addr: GAddr,
    bytes: u64,
    home: Home,
    done: bool,
}

impl Free {
    /// Starts the free of an allocation.
    pub fn new(addr: GAddr, bytes: u64) -> Self {
        Self { addr, bytes, home: Home::of(addr), done: false }
    }
}

impl<M: Mem> Operation<M> for Free {
    type Output = ();

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<()>> {
        if self.done {
            return Ok(Step::Done(()));
        }
        self.home.ask(client, Request::Free { addr: self.addr, bytes: self.bytes })
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        match self.home.on_reply(client, reply)? {
            None => Ok(()),
            Some(Reply::Freed) => {
                // A slab page stays with its other objects; if it went, its generation tells.
                if self.bytes > client.geometry().page_bytes() / 2 {
                    client.forget(client.geometry().page(self.addr));
                }
                self.done = true;
                Ok(())
            }
            Some(_) => Err(unexpected("daemon", "a free")),
        }
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        self.home.on_master(client, answer)
    }
}

/// An allocation whose address goes into a word, or the free of what a word names: asked of the
/// daemon of the word's home rack. If the memory is in another rack by now, its daemon is asked
/// whether address and size name an allocation, then the word's again.
#[derive(Debug)]
pub struct AtWord {
    request: Request,
    home: Home,
    /// The way to the memory, while its daemon is asked.
    check: Option<Home>,
    bytes: u64,
    done: Option<GAddr>,
}

impl AtWord {
    /// Starts an allocation in the word's rack.
    pub fn alloc(word: GAddr, bytes: u64) -> Self {
        Self::new(word, Request::AllocInto { word, bytes }, bytes)
    }

    pub fn free(word: GAddr, bytes: u64) -> Self {
        Self::new(word, Request::FreeFrom { word, bytes }, bytes)
    }

    fn new(word: GAddr, request: Request, bytes: u64) -> Self {
        Self { request, home: Home::of(word), check: None, bytes, done: None }
    }

    fn asked(&mut self) -> &mut Home {
        self.check.as_mut().unwrap_or(&mut self.home)
    }
}

impl<M: Mem> Operation<M> for AtWord {
    /// The new memory, or null after a free.
    type Output = GAddr;

    fn is_access(&self) -> bool {
        true
    }

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<GAddr>> {
        match (self.done, &mut self.check) {
            (Some(addr), _) => Ok(Step::Done(addr)),
            (None, None) => self.home.ask(client, self.request.clone()),
            (None, Some(memory)) => {
                let request = Request::CheckFree { addr: memory.addr, bytes: self.bytes };
                memory.ask(client, request)
            }
        }
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        self.done = match (self.asked().on_reply(client, reply)?, &self.request) {
            (None, _) => return Ok(()),
            (Some(Reply::Known), _) if let Some(memory) = self.check.take() => {
                let (word, addr, bytes) = (self.home.addr, memory.addr, self.bytes);
                self.request = Request::FreeApart { word, addr, bytes };
                return Ok(());
            }
            (Some(_), _) if self.check.is_some() => {
                return Err(unexpected("daemon", "a question about an allocation"));
            }
            (Some(Reply::Apart { addr }), Request::FreeFrom { .. }) => {
                client.check(addr, 1)?;
                self.check = Some(Home::of(addr));
                return Ok(());
            }
            (Some(Reply::Freed), Request::FreeApart { addr, bytes, .. }) => {
                if *bytes > client.geometry().page_bytes() / 2 {
                    client.forget(client.geometry().page(*addr));
                }
                Some(GAddr::NULL)
            }
            (Some(Reply::Allocated { addr }), Request::AllocInto { .. }) => Some(addr),
            (Some(Reply::Freed), Request::FreeFrom { .. }) => Some(GAddr::NULL),
            (Some(_), _) => return Err(unexpected("daemon", "a request about a word")),
        };
        Ok(())
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        self.asked().on_master(client, answer)
    }
}

/// A request to the daemon of an address's home rack.
#[derive(Debug)]
pub struct AtHome {
    request: Request,
    home: Home,
    link: Option<LinkId>,
    done: Option<Reply>,
}

impl AtHome {
    pub fn new(addr: GAddr, request: Request) -> Self {
        Self { request, home: Home::of(addr), link: None, done: None }
    }

    /// Whom was asked, if it came to that.
    pub fn link(&self) -> Option<LinkId> {
        self.link
    }
}

impl<M: Mem> Operation<M> for AtHome {
    type Output = (LinkId, Reply);

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<Self::Output>> {
        if let (Some(link), Some(reply)) = (self.link, self.done.take()) {
            return Ok(Step::Done((link, reply)));
        }
        let step = self.home.ask(client, self.request.clone())?;
        if let Step::Need(Need::Daemon(link, request)) = &step
            && *request == self.request
        {
            self.link = Some(*link);
        }
        Ok(step)
    }

    fn on_reply(&mut self, client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        self.done = self.home.on_reply(client, reply)?;
        Ok(())
    }

    fn on_master(&mut self, client: &mut Client<M>, answer: Result<MasterAnswer>) -> Result<()> {
        self.home.on_master(client, answer)
    }
}

/// A request to the daemon of a rack.
#[derive(Debug)]
pub struct AtRack {
    rack: RackId,
    request: Request,
    done: Option<Reply>,
}

impl AtRack {
    pub fn new(rack: RackId, request: Request) -> Self {
        Self { rack, request, done: None }
    }
}

impl<M: Mem> Operation<M> for AtRack {
    type Output = Reply;

    fn step(&mut self, client: &mut Client<M>, _io: &mut impl Io) -> Result<Step<Reply>> {
        if let Some(reply) = self.done.take() {
            return Ok(Step::Done(reply));
        }
        let rack = client.home_in(self.rack).unwrap_or(self.rack);
        Ok(Step::Need(match client.link_of(rack) {
            None => Need::Link(rack),
            Some(link) => Need::Daemon(link, self.request.clone()),
        }))
    }

    fn on_reply(&mut self, _client: &mut Client<M>, reply: Result<Reply>) -> Result<()> {
        self.done = Some(reply?);
        Ok(())
    }

    fn on_master(&mut self, _client: &mut Client<M>, _answer: Result<MasterAnswer>) -> Result<()> {
        Err(unexpected("master", "a request to a daemon"))
    }
}
