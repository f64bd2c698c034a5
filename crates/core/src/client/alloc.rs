//! Allocation and free: which daemon to ask. Own rack first, or as the pool's order says, then
//! another one that the master picks (at random by default, Rcmp §5.1), until one has room or all
//! were tried.

use super::locate::{Retries, unexpected};
use super::{Client, Context, DaemonQuery, LinkId, LocalFree, Locate, OWN, Operation, Take};
use crate::addr::{GAddr, RackId};
use crate::constants::RACKS_MAX;
use crate::error::{Error, Result};
use crate::layout::AllocationKind;
use crate::placement::Order;
use crate::seam::{Mem, Rare};
use crate::tier::Tier;
use crate::wire::{LoanReply, LoanRequest, MasterAnswer, MasterCall, PageHome, Reply, Request};

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
    /// This memory of the own rack or nowhere. A rack with one memory has tier 0 only, which is
    /// near and far.
    Tier(Tier),
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
            (Placement::Local | Placement::Tier(_), _) => own,
            (Placement::Rack(rack), _) => Some(rack),
            (Placement::Spread, _) => None,
            (Placement::Auto, order) => {
                let is_own_turn = order == Order::Alternate && client.take_turn();
                own.filter(|_| order.own_first(is_own_turn))
            }
        };
        Self { bytes, kind, placement, order, target, tried: Vec::new(), last_full: None }
    }

    /// The shard to ask after a full one, as long as the same rack is meant.
    fn next_shard(&self, own: RackId, full: RackId) -> Option<RackId> {
        let stays = match self.placement {
            Placement::Local | Placement::Tier(_) => true,
            Placement::Rack(named) => !named.is_divided(),
            Placement::Auto => full.same_rack(own),
            Placement::Spread => false,
        };
        full.siblings().find(|next| stays && !self.tried.contains(next))
    }
}

impl Alloc {
    /// A rack had no room: where next.
    fn on_full(&mut self, own: RackId, full: RackId, error: Error) -> Result<()> {
        self.tried.push(full);
        self.target = self.next_shard(own, full);
        let anywhere = matches!(self.placement, Placement::Auto | Placement::Spread);
        if self.target.is_none() && !anywhere {
            return Err(error);
        }
        if matches!(error, Error::Full { .. }) {
            self.last_full = Some(error);
        }
        Ok(())
    }

    /// The master picks a rack.
    async fn pick<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<RackId> {
        let own = cx.client().own_rack();
        let left_out = match (self.placement, self.order) {
            (Placement::Spread, _) | (_, Order::Anywhere) => RackId::NONE,
            _ => own,
        };
        let (bytes, tried) = (self.bytes, self.tried.clone());
        let own_untried = self.placement == Placement::Auto && !self.tried.contains(&own);
        match cx.master(MasterCall::PickRack { own: left_out, bytes, tried }).await {
            Ok(MasterAnswer::Rack(info)) => Ok(info.rack),
            Ok(_) => Err(unexpected("master", "a pick of a rack")),
            Err(Error::Full { .. }) if own_untried => Ok(own),
            Err(error) => Err(self.last_full.take().unwrap_or(error)),
        }
    }
}

/// How often an allocation looks at its loans, as long as pages have to be found or more is lent.
const TAKES_MAX: usize = 4;

impl Alloc {
    /// An object that the daemon has lent, or lends now.
    async fn take_lent<M: Mem>(
        &self,
        cx: &mut impl Context<M>,
        link: LinkId,
    ) -> Result<Option<GAddr>> {
        if !matches!(self.placement, Placement::Auto | Placement::Local | Placement::Rack(_)) {
            return Ok(None);
        }
        let (bytes, kind) = (self.bytes, self.kind);
        for _ in 0..TAKES_MAX {
            match cx.client().take_object(link, bytes, kind) {
                Take::Taken(addr) => return Ok(Some(addr)),
                Take::Unknown(addr) => Locate::new(cx.client(), addr, 1).run(cx).await?,
                Take::Nothing => {
                    let request = cx.client().lend_request(link, bytes, kind);
                    let Some(request) = request else { return Ok(None) };
                    let reply = cx.daemon(link, Request::Loan(request)).await?;
                    let Reply::Loan(LoanReply::Lent(groups)) = reply else {
                        return Err(unexpected("daemon", "a question for loans"));
                    };
                    if !cx.client().on_lent(link, bytes, kind, &groups)? {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(None)
    }
}

impl<M: Mem> Client<M> {
    /// An allocation that needs neither a message nor the time to send one.
    #[inline]
    pub fn alloc_warm(
        &mut self,
        bytes: u64,
        placement: Placement,
        kind: AllocationKind,
    ) -> Option<GAddr> {
        let is_own = match placement {
            Placement::Auto => self.order() == Order::LocalFirst,
            Placement::Local => true,
            _ => false,
        };
        match is_own.then(|| self.take_object(OWN, bytes, kind))? {
            Take::Taken(addr) => Some(addr),
            Take::Unknown(_) | Take::Nothing => None,
        }
    }
}

/// Gives back what a handle has free of a rack beyond what it should keep. What cannot be said now
/// is said with a later request.
#[derive(Debug)]
pub struct EndLoans(pub LinkId);

impl<M: Mem> Operation<M> for EndLoans {
    type Output = ();

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        let Some(request) = cx.client().end_request(self.0) else { return Ok(()) };
        match cx.daemon(self.0, Request::Loan(request)).await {
            Ok(Reply::Loan(LoanReply::Ended)) => cx.client().on_ended(self.0),
            Ok(_) => return Err(unexpected("daemon", "the end of loans")),
            Err(_) => {}
        }
        Ok(())
    }
}

impl<M: Mem> Operation<M> for Alloc {
    type Output = GAddr;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<GAddr> {
        loop {
            let named = match self.target {
                Some(named) => named,
                None => self.pick(cx).await?,
            };
            let rack = cx.client().home_in(named).unwrap_or(named);
            self.target = Some(rack);
            let Some(link) = cx.client().link_of(rack) else {
                cx.connect(rack).await?;
                continue;
            };
            if let Some(addr) = self.take_lent(cx, link).await? {
                return Ok(addr);
            }
            let (bytes, kind) = (self.bytes, self.kind);
            let request = match self.placement {
                Placement::Tier(tier) => Request::AllocIn { bytes, kind, tier },
                _ => Request::Alloc { bytes, kind },
            };
            match cx.daemon(link, request).await {
                Ok(Reply::Allocated { addr }) => {
                    cx.client().note_single(link, addr, bytes);
                    return Ok(addr);
                }
                Ok(_) => return Err(unexpected("daemon", "an allocation")),
                Err(error @ (Error::Full { .. } | Error::Draining { .. }))
                    if self.tried.len() < RACKS_MAX as usize =>
                {
                    self.on_full(cx.client().own_rack(), rack, error)?;
                }
                Err(error) => return Err(error),
            }
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
    /// The home with the daemon that got the request last.
    asked: Option<PageHome>,
    /// What it said, if that may have been for want of the page.
    refused: Option<Error>,
    retries: Retries,
}

impl Home {
    pub(super) fn of(addr: GAddr) -> Self {
        Self { addr, asked: None, refused: None, retries: Retries::default() }
    }

    /// Asks the daemon once it is known.
    pub(super) async fn ask<M: Mem>(
        &mut self,
        cx: &mut impl Context<M>,
        request: &Request,
    ) -> Result<Reply> {
        loop {
            let link = self.find(cx).await?;
            let reply = cx.daemon(link, request.clone()).await;
            if let Some(reply) = self.judge(cx.client(), reply)? {
                return Ok(reply);
            }
        }
    }

    /// The daemon to ask, which counts as asked by then.
    pub(super) async fn find<M: Mem>(&mut self, cx: &mut impl Context<M>) -> Result<LinkId> {
        let page = cx.client().geometry().page(self.addr);
        if cx.client().translation(page).is_none() {
            let mut locate = Locate::new(cx.client(), self.addr, 1).after(self.asked);
            match locate.run(cx).await {
                // A page that is nowhere: the daemon that was asked before has said more.
                Err(Error::NotMapped { addr }) => {
                    let refused = self.refused.take();
                    let said = refused.filter(|error| !matches!(error, Error::Moving { .. }));
                    return Err(said.unwrap_or(Error::NotMapped { addr }));
                }
                found => found?,
            }
        }
        let home = cx.client().home_of(page).expect("a located page has a translation");
        match self.refused.take() {
            // It is shut no more.
            Some(Error::Moving { .. }) | None => {}
            Some(error) if self.asked == Some(home) => return Err(error),
            Some(_) => {}
        }
        self.asked = Some(home);
        Ok(cx.client().link_of(home.rack).expect("a translation has a link"))
    }

    /// A daemon's reply, unless it is not the last word.
    pub(super) fn judge<M: Mem>(
        &mut self,
        client: &mut Client<M>,
        reply: Result<Reply>,
    ) -> Result<Option<Reply>> {
        match reply {
            Err(error) if may_be_elsewhere(&error) => {
                self.retries.again(self.addr)?;
                self.refused = Some(error);
                client.forget(client.geometry().page(self.addr));
                Ok(None)
            }
            reply => reply.map(Some),
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
}

impl Free {
    /// The free of an allocation.
    pub fn new(addr: GAddr, bytes: u64) -> Self {
        Self { addr, bytes }
    }
}

/// Has the daemon free what waits in a slot; the error of one of these frees.
async fn empty_queue<M: Mem>(link: LinkId, cx: &mut impl Context<M>) -> Result<Result<()>> {
    match cx.daemon(link, Request::Loan(LoanRequest::EmptyQueue)).await? {
        Reply::Loan(LoanReply::Emptied { is_open, bad }) => {
            cx.client().queue_emptied(link, is_open);
            Ok(bad.map_or(Ok(()), |(addr, bytes)| {
                let reason = "of an earlier free: no object of this size lives there".into();
                Err(Error::BadFree { addr, bytes, reason })
            }))
        }
        _ => Err(unexpected("daemon", "an order to free what waits")),
    }
}

/// A slab page stays with its other objects; if it went, its generation tells.
fn forget_freed<M: Mem>(client: &mut Client<M>, addr: GAddr, bytes: u64) {
    if bytes > client.geometry().page_bytes() / 2 {
        client.forget(client.geometry().page(addr));
    }
}

impl<M: Mem> Operation<M> for Free {
    type Output = ();

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<()> {
        let Self { addr, bytes } = *self;
        let mut late = Ok(());
        for _ in 0..TAKES_MAX {
            match cx.client().free_object(addr, bytes) {
                LocalFree::Done => return late,
                LocalFree::DoneOver(link) => return EndLoans(link).run(cx).await.and(late),
                LocalFree::Bad(error) => return Err(error),
                LocalFree::QueueFull(link) => late = late.and(empty_queue(link, cx).await?),
                LocalFree::Ask => break,
            }
        }
        match Home::of(addr).ask(cx, &Request::Free { addr, bytes }).await? {
            Reply::Freed => {
                forget_freed(cx.client(), addr, bytes);
                late
            }
            _ => Err(unexpected("daemon", "a free")),
        }
    }
}

/// An allocation with its address stored into a word, or the free of what a word names: asked of
/// the daemon of the word's home rack. If the memory is in another rack by now, its daemon is asked
/// whether address and size name an allocation, then the word's again.
#[derive(Debug)]
pub struct AtWord {
    word: GAddr,
    request: Request,
    bytes: u64,
}

impl AtWord {
    /// An allocation in the word's rack.
    pub fn alloc(word: GAddr, bytes: u64) -> Self {
        Self { word, request: Request::AllocInto { word, bytes }, bytes }
    }

    pub fn free(word: GAddr, bytes: u64) -> Self {
        Self { word, request: Request::FreeFrom { word, bytes }, bytes }
    }
}

impl<M: Mem> Operation<M> for AtWord {
    /// The new memory, or null after a free.
    type Output = GAddr;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<GAddr> {
        cx.end_with_locks();
        let Self { word, bytes, .. } = *self;
        let mut home = Home::of(word);
        loop {
            match (home.ask(cx, &self.request).await?, &self.request) {
                (Reply::Allocated { addr }, Request::AllocInto { .. }) => return Ok(addr),
                (Reply::Freed, Request::FreeFrom { .. }) => return Ok(GAddr::NULL),
                (Reply::Freed, Request::FreeApart { addr, .. }) => {
                    forget_freed(cx.client(), *addr, bytes);
                    return Ok(GAddr::NULL);
                }
                (Reply::Apart { addr }, Request::FreeFrom { .. }) => {
                    cx.client().check(addr, 1)?;
                    match Home::of(addr).ask(cx, &Request::CheckFree { addr, bytes }).await? {
                        Reply::Known => {}
                        _ => return Err(unexpected("daemon", "a question about an allocation")),
                    }
                    self.request = Request::FreeApart { word, addr, bytes };
                }
                _ => return Err(unexpected("daemon", "a request about a word")),
            }
        }
    }
}

/// A request to the daemon of an address's home rack.
#[derive(Debug)]
pub struct AtHome {
    addr: GAddr,
    request: Request,
    link: Option<LinkId>,
}

impl AtHome {
    pub fn new(addr: GAddr, request: Request) -> Self {
        Self { addr, request, link: None }
    }

    /// The link to the daemon that was asked, if it came to that.
    pub fn link(&self) -> Option<LinkId> {
        self.link
    }
}

impl<M: Mem> Operation<M> for AtHome {
    type Output = (LinkId, Reply);

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<Self::Output> {
        let mut home = Home::of(self.addr);
        loop {
            let link = home.find(cx).await?;
            self.link = Some(link);
            let reply = cx.daemon(link, self.request.clone()).await;
            if let Some(reply) = home.judge(cx.client(), reply)? {
                return Ok((link, reply));
            }
        }
    }
}

/// A question to the daemon of a rack.
#[derive(Debug)]
pub struct AtRack<A> {
    rack: RackId,
    query: DaemonQuery<A>,
}

impl<A> AtRack<A> {
    pub fn new(rack: RackId, query: DaemonQuery<A>) -> Self {
        Self { rack, query }
    }
}

impl<A, M: Mem> Operation<M> for AtRack<A> {
    type Output = A;

    async fn run(&mut self, cx: &mut impl Context<M>) -> Result<A> {
        loop {
            let rack = cx.client().home_in(self.rack).unwrap_or(self.rack);
            match cx.client().link_of(rack) {
                None => cx.connect(rack).await?,
                Some(link) => {
                    let reply = cx.daemon(link, self.query.request()).await?;
                    return self.query.answer(rack, reply);
                }
            }
        }
    }
}
