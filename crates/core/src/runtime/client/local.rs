//! The link to a daemon whose memory is mapped: hello and welcome on its control connection, and
//! taking the slot up again at the next daemon of the region. Requests go through the slot's rings.

use super::{Backoff, Found, Platform, layout_of};
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

/// What a daemon says of the slot and the region that it hands over.
#[derive(Debug)]
pub struct Welcome {
    pub slot_index: u32,
    pub region: RegionInfo,
    pub layout: RegionLayout,
    /// Whether the daemon pays for announcements with `membarrier`; if not, clients fence.
    pub asymmetric_fence: bool,
    /// Whether the daemon runs on the client's host.
    pub beside_daemon: bool,
    /// Where slot, bell, table and pages start behind their descriptors, bytes.
    pub offsets: [u64; 4],
}

/// The link; see the module.
pub struct LocalLink<S: Slot> {
    pub daemon: S::Daemon,
    pub session_id: SessionId,
    pub session: Session,
    pub slot: S,
    pub slot_index: u32,
    pub region: RegionInfo,
    /// The connection ended and the slot was not taken up again: a daemon may have begun the
    /// rings anew for a try that was given up, so nothing is sent there before the next one.
    pub lapsed: bool,
}

struct Joined<S> {
    slot: S,
    slot_index: u32,
    region: RegionInfo,
}

/// The session that joins, and the slot that it resumes.
#[derive(Clone, Copy)]
struct Claim {
    session: SessionId,
    slot: Option<u32>,
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
        let Joined { slot, slot_index, region } = joined;
        let session = Session::new(format!("daemon of rack {}", region.rack));
        Ok(Self { daemon, session_id, session, slot, slot_index, region, lapsed: false })
    }

    /// Finds the next daemon of the region and takes the slot up again there.
    pub(super) async fn resume<P: Platform<Slot = S>>(
        &mut self,
        platform: &mut P,
        rack: RackId,
        deadline: P::Instant,
    ) -> LinkLoss {
        let claim = Claim { session: self.session_id, slot: Some(self.slot_index) };
        let mut backoff = backoff();
        loop {
            match join_once(platform, &self.daemon, claim, deadline).await {
                Ok(joined) => {
                    self.slot.resume(joined.slot);
                    (self.slot_index, self.region) = (joined.slot_index, joined.region);
                    self.lapsed = false;
                    return LinkLoss::Resumed;
                }
                // The next daemon serves under another name then, as the master says.
                Err(Error::Denied { .. })
                    if platform.now() < deadline && platform.is_squatted(&self.daemon) => {}
                Err(Error::BadRegion { .. } | Error::Denied { .. }) => {
                    return self.join_anew(platform, deadline).await;
                }
                Err(Error::PeerDead { .. } | Error::Timeout { .. })
                    if platform.now() < deadline => {}
                Err(_) => return LinkLoss::Gone(DeathCause::Closed),
            }
            // A daemon that only restarts is there before the master is worth asking.
            if backoff.is_longest() {
                match platform.find(rack, &self.daemon, deadline).await {
                    // Another region, or the same one under another name.
                    Found::At(daemon) => {
                        self.daemon = daemon;
                        continue;
                    }
                    Found::Gone => return LinkLoss::Gone(DeathCause::Closed),
                    Found::Unknown => {}
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
    ) -> LinkLoss {
        let gone = LinkLoss::Gone(DeathCause::Closed);
        let Ok(session_id) = platform.new_session() else { return gone };
        match join_until(platform, &self.daemon, session_id, deadline).await {
            Ok(joined) => {
                self.session_id = session_id;
                let Joined { slot, slot_index, region } = joined;
                (self.slot, self.slot_index, self.region) = (slot, slot_index, region);
                self.lapsed = false;
                LinkLoss::SessionForgotten
            }
            Err(_) => gone,
        }
    }
}

async fn join_until<P: Platform>(
    platform: &mut P,
    daemon: &<P::Slot as Slot>::Daemon,
    session: SessionId,
    deadline: P::Instant,
) -> Result<Joined<P::Slot>> {
    let claim = Claim { session, slot: None };
    let mut backoff = backoff();
    loop {
        match join_once(platform, daemon, claim, deadline).await {
            Err(Error::PeerDead { .. } | Error::Timeout { .. }) if platform.now() < deadline => {}
            result => return result,
        }
        platform.sleep_ns(backoff.pause_ns()).await;
    }
}

async fn join_once<P: Platform>(
    platform: &mut P,
    daemon: &<P::Slot as Slot>::Daemon,
    claim: Claim,
    deadline: P::Instant,
) -> Result<Joined<P::Slot>> {
    let hello = ControlHello {
        version: WIRE_VERSION,
        session: claim.session,
        resume_slot: claim.slot,
        read_only: platform.is_read_only(),
        number: platform.hello_number(),
    };
    let (control, reply) = platform.greet(daemon, hello, deadline).await?;
    let welcome = match reply {
        ControlReply::Refused(error) => Err(error),
        ControlReply::Welcome { slot, region, asymmetric_fence, beside_daemon, offsets } => {
            layout_of(&region).map(|layout| Welcome {
                slot_index: slot,
                region,
                layout,
                asymmetric_fence,
                beside_daemon,
                offsets,
            })
        }
    };
    let welcome = match welcome {
        Ok(welcome) => welcome,
        Err(error) => {
            platform.hang_up(control);
            return Err(error);
        }
    };
    let slot = platform.map(daemon, control, &welcome)?;
    Ok(Joined { slot, slot_index: welcome.slot_index, region: welcome.region })
}
