//! A handle's links: to the daemons of mapped racks ([`LocalLink`]), to daemons over the fabric
//! ([`RemoteLink`]) and to the master. Connects them when an operation needs one, repeats what a
//! lost connection interrupted where that is safe, and turns every loss into a typed error at the
//! deadline.
//!
//! What a lost link means for a request is decided by the engine ([`Session`]); here is which
//! daemon is asked next, and until when. The host gives connections, memory and time.
//!
//! [`Session`]: crate::client::Session

mod driver;
mod local;
mod locks;
mod remote;
mod usage;

pub use driver::{Buffers, Driver, TimeLimit};
pub use local::{DaemonOf, Joined, LocalLink, Slot, Welcome};
pub use locks::{ANSWER_MS, Granted};
pub use remote::{LinkMessage, OpenLink, RemoteLink, Sent, Transport, Wait};

use super::{Backoff, Environment};
use crate::addr::{PageGeometry, RackId};
use crate::client::{Client, HeldLocks, LinkId, LinkLoss, Losses, OWN, Reach};
use crate::constants::{RACK_BACKOFF_MS_MAX, RACK_BACKOFF_MS_MIN};
use crate::error::{DeathCause, Error, Result};
use crate::layout::RegionLayout;
use crate::seam::PeerId;
use crate::wire::{
    ControlHello, MasterAnswer, MasterCall, RackInfo, RegionInfo, Reply, ReplyFrame, Request,
};

/// What a request over the rings of a slot has come to.
#[derive(Debug)]
pub enum RingEvent {
    Answer(ReplyFrame),
    /// The control connection has ended.
    Closed,
    TimeUp,
}

/// What links to mapped daemons need of a host: the master, control connections, and the rings of
/// slots.
#[allow(async_fn_in_trait, reason = "as Environment")]
pub trait Platform: Environment {
    type Slot: Slot;

    /// Asks the master, through its restarts, until the deadline.
    async fn master(&mut self, call: MasterCall, deadline: Self::Instant) -> Result<MasterAnswer>;
    /// Until when a rack is waited for that the master says is dead.
    fn dead_rack_deadline(&self, _rack: RackId, deadline: Self::Instant) -> Self::Instant {
        deadline
    }
    /// The rack that was asked for is alive.
    fn met(&mut self, _asked: RackId, _info: &RackInfo) {}
    /// How the daemon of a rack that is to be mapped is joined; `None` if it is reached over the
    /// fabric.
    ///
    /// # Errors
    /// `config` if the fabric of the host's choice does not reach it.
    fn daemon_of(&self, info: &RackInfo) -> Result<Option<DaemonOf<Self>>>;
    fn is_read_only(&self) -> bool {
        false
    }
    /// A number greater than those of all hellos before.
    fn hello_number(&mut self) -> u64;
    /// Connects to a daemon, says hello, and maps what comes with its welcome.
    ///
    /// # Errors
    /// `peer-dead` and `timeout`, after which it may be tried again; `denied` for a daemon that is
    /// not trusted; what the daemon refuses with.
    async fn join(
        &mut self,
        daemon: &DaemonOf<Self>,
        hello: ControlHello,
        deadline: Self::Instant,
    ) -> Result<Joined<Self::Slot>>;
    /// Whether a process of a user that is not trusted serves the daemon's name.
    fn is_squatted(&self, _daemon: &DaemonOf<Self>) -> bool {
        false
    }
    /// Where the daemon of a rack is now, if it is elsewhere and the master says so soon.
    ///
    /// # Errors
    /// `no-such-rack` if the rack is no member of the pool any more.
    async fn find(
        &mut self,
        _rack: RackId,
        _known: &DaemonOf<Self>,
        _deadline: Self::Instant,
    ) -> Result<Option<DaemonOf<Self>>> {
        Ok(None)
    }
    /// Says to the slot's daemon that a request is in its ring.
    fn ring_bell(&mut self, slot: &mut Self::Slot);
    /// Waits for the next answer in the slot's ring ([`LocalLink::pop`]), or the end of its
    /// connection.
    ///
    /// # Errors
    /// `protocol` for what is no answer.
    async fn answer(
        &mut self,
        link: &mut LocalLink<Self::Slot>,
        deadline: Self::Instant,
    ) -> Result<RingEvent>;
}

/// A client process, as its links see it.
pub trait Host {
    type Platform: Platform<Instant = Self::Instant>;
    type Transport: Transport<Instant = Self::Instant>;
    type Instant: Copy + Ord;

    /// Keeps a large future that is rarely needed out of those that wait for it.
    fn apart<F: Future>(future: F) -> impl Future<Output = F::Output>;
    fn platform(&mut self) -> &mut Self::Platform;
    fn transport(&mut self) -> &mut Self::Transport;
    /// A link is mapped, or mapped anew: how its daemon is called from elsewhere has changed.
    fn on_mapped(&mut self, client: &mut Client<MemoryOf<Self>>, id: LinkId, link: &LocalOf<Self>);
    /// The handle's locks, which guards on other threads may share.
    fn with_held<R>(&mut self, run: impl FnOnce(&mut HeldLocks) -> R) -> R;
    /// A lock was lost: see [`CoupledIo::take_changed`](crate::client::CoupledIo::take_changed).
    fn note_changed(&mut self);
}

pub type SlotOf<H> = <<H as Host>::Platform as Platform>::Slot;
pub type LocalOf<H> = LocalLink<SlotOf<H>>;
pub type MemoryOf<H> = <SlotOf<H> as Slot>::Memory;
pub type LinkOf<H> = Link<SlotOf<H>, <<H as Host>::Transport as Transport>::Buffer>;

pub enum Link<S: Slot, B> {
    Local(Box<LocalLink<S>>),
    Remote(Box<RemoteLink<B>>),
}

impl<S: Slot, B> Link<S, B> {
    /// The fabric connection, if there is one and it is up.
    pub fn peer(&self) -> Option<PeerId> {
        match self {
            Link::Local(_) => None,
            Link::Remote(link) => link.peer(),
        }
    }

    pub fn local(&self) -> Option<&LocalLink<S>> {
        match self {
            Link::Local(link) => Some(link),
            Link::Remote(_) => None,
        }
    }

    pub fn local_mut(&mut self) -> Option<&mut LocalLink<S>> {
        match self {
            Link::Local(link) => Some(link),
            Link::Remote(_) => None,
        }
    }

    pub fn remote_mut(&mut self) -> Option<&mut RemoteLink<B>> {
        match self {
            Link::Local(_) => None,
            Link::Remote(link) => Some(link),
        }
    }
}

/// The pauses between attempts to reach a rack.
fn backoff() -> Backoff {
    Backoff::ms(RACK_BACKOFF_MS_MIN, RACK_BACKOFF_MS_MAX)
}

/// Waits until the master says that a rack's daemon is alive.
pub async fn wait_for_rack<P: Platform>(
    platform: &mut P,
    rack: RackId,
    deadline: P::Instant,
) -> Result<RackInfo> {
    let mut backoff = backoff();
    let dead = platform.dead_rack_deadline(rack, deadline);
    loop {
        let info = platform.master(MasterCall::Rack { rack }, deadline).await?.rack()?;
        if info.alive {
            platform.met(rack, &info);
            return Ok(info);
        }
        if platform.now() >= dead {
            let peer = format!("daemon of rack {rack}");
            return Err(Error::PeerDead { peer, cause: DeathCause::Closed });
        }
        platform.sleep_ns(backoff.pause_ns()).await;
    }
}

/// The master said something that does not answer the call.
pub fn unexpected_answer(answer: &MasterAnswer) -> Error {
    Error::Protocol { peer: "master".into(), reason: format!("unexpected answer {answer:?}") }
}

/// The layout of a region, if its page size is one.
fn layout_of(region: &RegionInfo) -> Result<RegionLayout> {
    match PageGeometry::new(region.page_shift) {
        Some(pages) => Ok(RegionLayout { pages, frame_count: region.frame_count }),
        None => Err(Error::Protocol {
            peer: format!("daemon of rack {}", region.rack),
            reason: "a page size".into(),
        }),
    }
}

/// The parts of a handle that talk to daemons. Index of a link = `LinkId`; link 0 is mapped.
pub struct Runtime<'a, H: Host> {
    pub client: &'a mut Client<MemoryOf<H>>,
    pub links: &'a mut Vec<LinkOf<H>>,
    pub host: H,
    pub losses: &'a mut Losses,
    /// Not before this are locks given back that could not be.
    pub retry_releases_at: &'a mut Option<H::Instant>,
}

impl<H: Host> Runtime<'_, H> {
    /// Connects, or connects again, the link to a rack.
    pub async fn connect(&mut self, rack: RackId, deadline: H::Instant) -> Result<()> {
        let mut backoff = backoff();
        // Connections that ended without their target's knowledge may have our place still.
        let was_known = self.client.link_of(rack).is_some();
        loop {
            let info = wait_for_rack(self.host.platform(), rack, deadline).await?;
            if !self.host.transport().is_served() {
                // The own rack's daemon, which works for this handle, is found again first.
                self.local_call(OWN, Request::Ping, deadline).await?;
            }
            let result = self.connect_once(&info, deadline).await;
            let is_retried = match &result {
                Err(Error::PeerDead { .. } | Error::Timeout { .. }) => true,
                Err(Error::Busy { .. }) => was_known,
                _ => false,
            };
            let platform = self.host.platform();
            if !is_retried || platform.now() >= deadline {
                return result;
            }
            platform.sleep_ns(backoff.pause_ns()).await;
        }
    }

    async fn connect_once(&mut self, info: &RackInfo, deadline: H::Instant) -> Result<()> {
        if let Some(id) = self.client.link_of(info.rack) {
            return self.reconnect(id, info, deadline).await;
        }
        let (link, reach) = match self.host.platform().daemon_of(info)? {
            Some(daemon) => {
                let link = LocalLink::join(self.host.platform(), daemon, deadline).await?;
                let reach = Reach::Mapped(link.slot().view().clone());
                (Link::Local(Box::new(link)), reach)
            }
            None => {
                let link = RemoteLink::connect(self.host.transport(), info, deadline).await?;
                let reach = Reach::OneSided(link.layout());
                (Link::Remote(Box::new(link)), reach)
            }
        };
        let id = match self.client.add_link(info.rack, reach) {
            Ok(id) => id,
            Err(error) => {
                if let Link::Remote(link) = link {
                    link.end(self.host.transport(), deadline).await;
                }
                return Err(error);
            }
        };
        assert_eq!(id.0 as usize, self.links.len(), "links are numbered alike");
        if let Link::Local(local) = &link {
            self.host.on_mapped(self.client, id, local);
        }
        self.links.push(link);
        Ok(())
    }

    /// A mapped link finds its daemon again with its next call.
    async fn reconnect(&mut self, id: LinkId, info: &RackInfo, deadline: H::Instant) -> Result<()> {
        let held = self.host.with_held(|held| held.held_in(info.rack));
        let Link::Remote(link) = &mut self.links[id.0 as usize] else { return Ok(()) };
        let region_id = link.region().region_id;
        let lost = link.over(self.host.transport(), deadline).reconnect(info, held).await?;
        let is_new_region = link.region().region_id != region_id;
        let reach = Reach::OneSided(link.layout());
        self.lose(info.rack, lost.as_deref());
        if is_new_region {
            self.client.forget_link(id);
        }
        self.client.add_link(info.rack, reach).map(drop)
    }

    /// Asks the daemon behind a link several things at once, over the connection that is up, and
    /// does not wait for another one: all that has no answer when it ends is `PeerDead`.
    pub async fn daemon_batch(
        &mut self,
        id: LinkId,
        requests: Vec<Request>,
        deadline: H::Instant,
    ) -> Vec<Result<Reply>> {
        self.note_closed();
        if let Link::Remote(link) = &mut self.links[id.0 as usize] {
            return link.over(self.host.transport(), deadline).call_many(requests).await;
        }
        let mut replies = Vec::with_capacity(requests.len());
        for request in requests {
            replies.push(self.local_call(id, request, deadline).await);
        }
        replies
    }

    /// Connections that have ended are no link's any more.
    pub fn note_closed(&mut self) {
        note_closed(self.links, self.host.transport());
    }

    /// Notes that locks of a rack are lost, all of them or those with these tokens.
    fn lose(&mut self, rack: RackId, tokens: Option<&[u64]>) {
        let lost = self.host.with_held(|held| held.lose(rack, tokens));
        self.note_lost(lost);
    }

    /// Notes that locks are lost because their pages have turned out to be elsewhere.
    pub fn note_strays(&mut self) {
        if self.client.take_learnt() {
            let lost = self.host.with_held(|held| held.stray(self.client));
            self.note_lost(lost);
        }
    }

    fn note_lost(&mut self, lost: Option<Error>) {
        if lost.is_some() {
            self.host.note_changed();
        }
        self.losses.note(lost);
    }

    async fn local_call(
        &mut self,
        id: LinkId,
        request: Request,
        deadline: H::Instant,
    ) -> Result<Reply> {
        let started = self.host.platform().now();
        let link = self.links[id.0 as usize].local_mut().expect("only called for mapped links");
        link.session.begin(request);
        let mut sent = !link.lapsed;
        if sent && let Err(error) = link.push(self.host.platform()) {
            return Err(link.session.end(false, error));
        }
        loop {
            let link = self.links[id.0 as usize].local_mut().expect("links keep their kind");
            let event = match link.lapsed {
                true => Ok(RingEvent::Closed),
                false => self.host.platform().answer(link, deadline).await,
            };
            match event {
                Err(error) => return Err(link.session.give_up(error)),
                Ok(RingEvent::Answer(frame)) => {
                    if let Some(reply) =
                        link.session.take_reply(frame, &link.joined.slot.view().slot)
                    {
                        return reply;
                    }
                }
                Ok(RingEvent::TimeUp) => {
                    let now = self.host.platform().now();
                    return link.session.time_up(H::Platform::between_ms(started, now));
                }
                Ok(RingEvent::Closed) => {
                    if let Some(ended) = self.resume(id, sent, deadline).await {
                        return ended;
                    }
                    sent = true;
                }
            }
        }
    }

    /// The connection of a mapped link has ended: joins the next daemon and sends the request
    /// under way again; its result if it has ended with that.
    async fn resume(
        &mut self,
        id: LinkId,
        sent: bool,
        deadline: H::Instant,
    ) -> Option<Result<Reply>> {
        let rack = self.client.rack_of(id);
        let link = self.links[id.0 as usize].local_mut().expect("links keep their kind");
        link.lapsed = true;
        let region_id = link.region().region_id;
        let loss = link.resume(self.host.platform(), rack, deadline).await;
        link.session.shorten_wait(locks::wait_left_ms(self.host.platform(), deadline));
        if link.region().region_id != region_id {
            self.client.forget_link(id);
            self.lose(rack, None);
        }
        let link = self.links[id.0 as usize].local_mut().expect("links keep their kind");
        if !link.lapsed {
            self.host.on_mapped(self.client, id, link);
            let reach = Reach::Mapped(link.slot().view().clone());
            if let Err(error) = self.client.add_link(rack, reach) {
                link.lapsed = true;
                return Some(Err(link.session.end(sent, error)));
            }
        }
        if sent {
            if let Some(ended) = link.session.on_loss(loss) {
                return Some(ended);
            }
        } else if let LinkLoss::Gone(cause) = loss {
            let peer = link.session.peer().into();
            return Some(Err(link.session.end(sent, Error::PeerDead { peer, cause })));
        }
        let pushed = link.push(self.host.platform());
        pushed.err().map(|error| Err(link.session.give_up(error)))
    }
}

/// Waits until a work request ended, for [`Transport::completions`]; `false` if none did until the
/// deadline.
pub async fn wait_completions<S: Slot, T: Transport>(
    links: &mut [Link<S, T::Buffer>],
    transport: &mut T,
    deadline: T::Instant,
) -> bool {
    loop {
        // Some may have come while something else was waited for.
        note_closed(links, transport);
        if !transport.completions().is_empty() {
            return true;
        }
        if !transport.next_event(deadline).await {
            return false;
        }
    }
}

/// Connections that have ended are no link's any more.
pub fn note_closed<S: Slot, T: Transport>(links: &mut [Link<S, T::Buffer>], transport: &mut T) {
    while let Some(peer) = transport.take_closed() {
        for link in links.iter_mut().filter_map(Link::remote_mut) {
            link.on_closed(peer);
        }
    }
}
