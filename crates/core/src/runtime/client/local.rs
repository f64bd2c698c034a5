//! The link to a daemon whose memory is mapped: joining, and taking the slot up again at the next
//! daemon of the region. Requests and their answers go through the slot's rings.

use super::{Platform, backoff, layout_of};
use crate::addr::{RackId, SessionId};
use crate::client::{LinkLoss, RackView, Session};
use crate::constants::{MESSAGE_BYTES_MAX, RING_ENTRIES};
use crate::error::{DeathCause, Error, Result};
use crate::layout::RegionLayout;
use crate::ring::{Consumer, Producer, RingError};
use crate::seam::Mem;
use crate::wire::{
    self, ControlHello, ControlReply, RegionInfo, ReplyFrame, Request, RequestFrame, WIRE_VERSION,
};

/// Nearly all requests are shorter, bytes.
const MESSAGE_BYTES_USUAL: usize = 64;

/// A slot that is mapped, with its rings and its control connection.
pub trait Slot: Sized {
    type Memory: Mem + Clone;
    /// How the slot's daemon is reached.
    type Daemon;
    fn view(&self) -> &RackView<Self::Memory>;
    /// The ring of requests, and that of their answers.
    fn rings(&mut self) -> (&mut Producer<Self::Memory>, &mut Consumer<Self::Memory>);
    /// The slot was taken up again, and is mapped anew as `next`.
    fn resume(&mut self, next: Self) {
        *self = next;
    }
}

pub type DaemonOf<P> = <<P as Platform>::Slot as Slot>::Daemon;

/// What a daemon says of the slot and the region that it hands over: see [`ControlReply`].
#[derive(Debug)]
pub struct Welcome {
    pub slot_index: u32,
    pub region: RegionInfo,
    pub layout: RegionLayout,
    pub asymmetric_fence: bool,
    pub beside_daemon: bool,
    pub offsets: [u64; 4],
}

impl Welcome {
    /// # Errors
    /// What the daemon refuses with; `protocol` for a page size that is none.
    pub fn decode(message: &[u8]) -> Result<Self> {
        Self::of(wire::decode(message, "daemon")?)
    }

    /// # Errors
    /// As [`Welcome::decode`].
    pub fn of(reply: ControlReply) -> Result<Self> {
        match reply {
            ControlReply::Refused(error) => Err(error),
            ControlReply::Welcome { slot, region, asymmetric_fence, beside_daemon, offsets } => {
                let (slot_index, layout) = (slot, layout_of(&region)?);
                Ok(Self { slot_index, region, layout, asymmetric_fence, beside_daemon, offsets })
            }
        }
    }
}

/// A slot with what its daemon said of it.
pub struct Joined<S> {
    pub slot: S,
    pub welcome: Welcome,
}

/// The link; see the module.
pub struct LocalLink<S: Slot> {
    daemon: S::Daemon,
    pub session_id: SessionId,
    pub session: Session,
    pub joined: Joined<S>,
    /// The connection ended and the slot was not taken up again: a daemon may have begun the
    /// rings anew for a try that was given up, so nothing is sent there before the next one.
    pub lapsed: bool,
    /// A request with an answer that no caller waits for and that has not come yet.
    oneway: Option<u64>,
    message: Vec<u8>,
}

impl<S: Slot> LocalLink<S> {
    /// Joins, waiting until the deadline for the daemon to appear.
    ///
    /// # Errors
    /// `peer-dead`, `timeout`; what the daemon refuses with.
    pub async fn join<P: Platform<Slot = S>>(
        platform: &mut P,
        daemon: S::Daemon,
        deadline: P::Instant,
    ) -> Result<Self> {
        let session_id = platform.new_session()?;
        let joined = join_until(platform, &daemon, session_id, deadline).await?;
        let session = Session::new(format!("daemon of rack {}", joined.welcome.region.rack));
        let message = vec![0; MESSAGE_BYTES_USUAL];
        Ok(Self { daemon, session_id, session, joined, lapsed: false, oneway: None, message })
    }

    pub fn slot(&self) -> &S {
        &self.joined.slot
    }

    pub fn region(&self) -> &RegionInfo {
        &self.joined.welcome.region
    }

    /// Takes the next answer out of the slot's ring, if there is one.
    ///
    /// # Errors
    /// `protocol` for what is no answer.
    pub fn pop(&mut self) -> Option<Result<ReplyFrame>> {
        let (_, replies) = self.joined.slot.rings();
        let peer = self.session.peer();
        let popped = replies.pop(|bytes| wire::decode::<ReplyFrame>(bytes, peer))?;
        let broken = |error: RingError| {
            Err(Error::Protocol { peer: peer.into(), reason: error.to_string() })
        };
        let frame = popped.unwrap_or_else(broken);
        if let Ok(frame) = &frame {
            self.oneway.take_if(|oneway| *oneway <= frame.seq);
        }
        Some(frame)
    }

    /// Sends the request under way.
    ///
    /// # Errors
    /// `busy` if the ring is full.
    pub(super) fn push<P: Platform<Slot = S>>(&mut self, platform: &mut P) -> Result<()> {
        let Self { session, joined: Joined { slot, .. }, message, .. } = self;
        let frame = session.under_way().expect("a request was begun");
        push(slot, frame, message)?;
        platform.ring_bell(slot);
        Ok(())
    }

    /// Whether `LocalLink::say` would be taken, as far as is known without waiting: the last
    /// thing that was said is answered.
    pub fn is_heard(&mut self) -> bool {
        while self.oneway.is_some() && matches!(self.pop(), Some(Ok(_))) {}
        self.oneway.is_none() && !self.lapsed
    }

    /// Sends a request that nothing depends on and waits for nothing.
    ///
    /// # Errors
    /// `busy` if the ring is full.
    pub(super) fn say<P: Platform<Slot = S>>(
        &mut self,
        platform: &mut P,
        request: Request,
    ) -> Result<()> {
        let frame = self.session.aside(request);
        push(&mut self.joined.slot, &frame, &mut self.message)?;
        platform.ring_bell(&mut self.joined.slot);
        self.oneway = Some(frame.seq);
        Ok(())
    }

    /// Finds the next daemon of the region and takes the slot up again there.
    pub(super) async fn resume<P: Platform<Slot = S>>(
        &mut self,
        platform: &mut P,
        rack: RackId,
        deadline: P::Instant,
    ) -> LinkLoss {
        let gone = LinkLoss::Gone(DeathCause::Closed);
        let slot = Some(self.joined.welcome.slot_index);
        let mut backoff = backoff();
        loop {
            let hello = hello(platform, self.session_id, slot);
            match platform.join(&self.daemon, hello, deadline).await {
                Ok(joined) => {
                    self.joined.slot.resume(joined.slot);
                    (self.joined.welcome, self.lapsed) = (joined.welcome, false);
                    self.oneway = None;
                    return LinkLoss::Resumed;
                }
                // The next daemon serves under another name then, as the master says.
                Err(Error::Denied { .. })
                    if platform.now() < deadline && platform.is_squatted(&self.daemon) => {}
                Err(Error::BadRegion { .. } | Error::Denied { .. }) => {
                    return self.join_anew(platform, deadline).await.unwrap_or(gone);
                }
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if platform.now() < deadline => {}
                Err(_) => return gone,
            }
            // A daemon that only restarts is there before the master is worth asking.
            if backoff.is_longest() {
                match platform.find(rack, &self.daemon, deadline).await {
                    // Another region, or the same one under another name.
                    Ok(Some(daemon)) => {
                        self.daemon = daemon;
                        continue;
                    }
                    Ok(None) => {}
                    Err(_) => return gone,
                }
            }
            platform.sleep_ns(backoff.pause_ns()).await;
        }
    }

    /// The region was made anew: nothing of the session is left.
    async fn join_anew<P: Platform<Slot = S>>(
        &mut self,
        platform: &mut P,
        deadline: P::Instant,
    ) -> Result<LinkLoss> {
        let session_id = platform.new_session()?;
        self.joined = join_until(platform, &self.daemon, session_id, deadline).await?;
        (self.session_id, self.lapsed, self.oneway) = (session_id, false, None);
        Ok(LinkLoss::SessionForgotten)
    }
}

/// Puts a request into the ring of a slot.
fn push<S: Slot>(slot: &mut S, frame: &RequestFrame, message: &mut Vec<u8>) -> Result<()> {
    let bytes = match wire::encode(frame, message).map(|encoded| encoded.len()) {
        Err(_) if message.len() == MESSAGE_BYTES_USUAL => {
            message.resize(MESSAGE_BYTES_MAX as usize, 0);
            wire::encode(frame, message)?.len()
        }
        bytes => bytes?,
    };
    let (requests, _) = slot.rings();
    let limit = u64::from(RING_ENTRIES);
    requests.push(&message[..bytes]).map_err(|_| Error::Busy { what: "request ring".into(), limit })
}

async fn join_until<P: Platform>(
    platform: &mut P,
    daemon: &DaemonOf<P>,
    session: SessionId,
    deadline: P::Instant,
) -> Result<Joined<P::Slot>> {
    let mut backoff = backoff();
    loop {
        let hello = hello(platform, session, None);
        match platform.join(daemon, hello, deadline).await {
            Err(Error::PeerDead { .. } | Error::Timeout { .. }) if platform.now() < deadline => {}
            result => return result,
        }
        platform.sleep_ns(backoff.pause_ns()).await;
    }
}

fn hello<P: Platform>(
    platform: &mut P,
    session: SessionId,
    resume_slot: Option<u32>,
) -> ControlHello {
    let (read_only, number) = (platform.is_read_only(), platform.hello_number());
    ControlHello { version: WIRE_VERSION, session, resume_slot, read_only, number }
}
