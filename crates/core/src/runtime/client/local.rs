//! The link to a daemon whose memory is mapped: joining, and taking the slot up again at the next
//! daemon of the region. Requests go through the slot's rings.

use super::{Platform, backoff, layout_of};
use crate::addr::{RackId, SessionId};
use crate::client::{LinkLoss, RackView, Session};
use crate::error::{DeathCause, Error, Result};
use crate::layout::RegionLayout;
use crate::seam::Mem;
use crate::wire::{ControlHello, ControlReply, RegionInfo, WIRE_VERSION};

/// A slot that is mapped, with its rings and its control connection.
pub trait Slot: Sized {
    type Memory: Mem + Clone;
    /// How the slot's daemon is reached.
    type Daemon;
    fn view(&self) -> &RackView<Self::Memory>;
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
        Ok(Self { daemon, session_id, session, joined, lapsed: false })
    }

    pub fn slot(&self) -> &S {
        &self.joined.slot
    }

    pub fn region(&self) -> &RegionInfo {
        &self.joined.welcome.region
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
        (self.session_id, self.lapsed) = (session_id, false);
        Ok(LinkLoss::SessionForgotten)
    }
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
