//! Racks that come and go: what a rack is to the pool, durably ([`RackState`]), and what follows
//! from it for those that ask where memory goes and where a rack is.
//!
//! A rack leaves when it is drained and the directory has no page of it: the state decides both in
//! one command, and takes no page of the rack from then on, so none can slip in. A rack is given
//! up only when its daemon is dead and had a lease in which it could come back; its region counts
//! as gone, as if a new one had taken its place, so its pages are `lost` by one write.

use super::record::{self, Membership, StateWrite};
use super::state::{Applied, Command, State};
use super::{ConnId, Master, Notice};
use crate::addr::RackId;
use crate::constants::{RACKS_MAX, RETIRED_REGIONS_MAX};
use crate::error::{Error, Result};
use crate::member::{Member, MemberAnswer, MemberCall, PoolLoad, RackState};
use crate::policy::used_milli;
use crate::seam::{Mutation, Probe};
use crate::wire::{MasterAnswer, RackInfo};
use std::cmp::Reverse;
use std::collections::BTreeMap;

impl State {
    /// What a rack is to the pool.
    pub fn standing(&self, rack: RackId) -> RackState {
        self.racks.get(&rack).map_or(RackState::Serving, |rack| rack.membership.standing)
    }

    /// All racks that ever joined, in order; not alive and without free frames.
    pub fn members(&self) -> impl Iterator<Item = Member> + '_ {
        self.racks.iter().map(|(&rack, known)| Member {
            info: self.info(rack, known),
            standing: known.membership.standing,
            pages: known.pages,
            pages_lost: known.pages_lost,
        })
    }

    /// Racks that do not just serve.
    pub(super) fn standings(&self) -> BTreeMap<u16, RackState> {
        let standings = self.racks.iter().map(|(rack, known)| (rack.0, known.membership.standing));
        standings.filter(|(_, standing)| *standing != RackState::Serving).collect()
    }

    /// What a rack is to the pool once this region has joined. A region that has left stays so: its
    /// daemon is told, and ends. One that was given up, or came after it, is refused.
    pub(super) fn admit_region(&self, info: &RackInfo) -> Result<Membership> {
        let Some(known) = self.racks.get(&info.rack) else { return Ok(Membership::default()) };
        let mut membership = known.membership.clone();
        let is_same = known.record.region_id == info.region_id;
        let is_lost = is_same && membership.standing == RackState::Lost;
        if is_lost || membership.retired.contains(&info.region_id) {
            return Err(Error::Forgotten { rack: info.rack });
        }
        if !is_same && !membership.standing.is_member() {
            if membership.retired.len() == RETIRED_REGIONS_MAX {
                membership.retired.remove(0);
            }
            membership.retired.push(known.record.region_id);
            membership.standing = RackState::Serving;
        }
        Ok(membership)
    }

    /// One step of a rack's life; see [`RackState`].
    pub(super) fn set_standing(
        &mut self,
        rack: RackId,
        to: RackState,
        pages_max: u64,
        writes: &mut Vec<StateWrite>,
    ) -> Result<Applied> {
        let known = self.racks.get_mut(&rack).ok_or(Error::NoSuchRack { rack })?;
        let from = known.membership.standing;
        let denied = |reason: &str| Err(Error::Denied { reason: format!("rack {rack} {reason}") });
        match (from, to) {
            // A call that drains a rack which has left wanted that.
            (RackState::Left, RackState::Draining) => return Ok(stands(rack, from)),
            (from, to) if from == to => return Ok(stands(rack, from)),
            (RackState::Lost, _) => return denied("was declared lost"),
            (RackState::Left, _) => return denied("has left the pool"),
            (RackState::Serving, RackState::Left) => return denied("is not being drained"),
            (RackState::Draining, RackState::Left) if known.pages > pages_max => {
                return denied(&format!("still has {} pages", known.pages));
            }
            _ => {}
        }
        let mut pages_newly_lost = 0;
        if to == RackState::Lost {
            let full = || Error::Busy {
                what: format!("regions that rack {rack} ever had"),
                limit: u64::from(u32::MAX),
            };
            known.record.region = known.record.region.checked_add(1).ok_or_else(full)?;
            pages_newly_lost = std::mem::take(&mut known.pages);
            known.pages_lost += pages_newly_lost;
        }
        known.membership.standing = to;
        writes.push(record::write_rack(rack, &known.record, &known.membership));
        Ok(Applied::RackState { rack, standing: to, is_new: true, pages_newly_lost })
    }
}

fn stands(rack: RackId, standing: RackState) -> Applied {
    Applied::RackState { rack, standing, is_new: false, pages_newly_lost: 0 }
}

/// The answer that says what a rack is.
pub(super) fn standing(standing: RackState) -> MasterAnswer {
    MasterAnswer::Member(MemberAnswer::RackState(standing))
}

impl<P: Probe> Master<P> {
    /// The racks of the pool, by number, and the shards of each.
    pub fn racks(&self) -> Vec<RackInfo> {
        let members = self.state.racks().filter(|info| self.is_member(info.rack));
        let mut racks: Vec<RackInfo> = members.map(|info| self.with_liveness(info)).collect();
        racks.sort_by_key(|info| (info.rack.number(), info.rack.shard()));
        racks
    }

    /// A shard that is named, or of a divided rack that is named the one with most free frames.
    pub(super) fn rack(&self, rack: RackId) -> Result<MasterAnswer> {
        let members = self.state.named(rack).filter(|info| self.is_member(info.rack));
        let shards = members.map(|info| self.with_liveness(info));
        let best = shards.max_by_key(|info| (info.alive, info.frames_free, Reverse(info.rack)));
        Ok(MasterAnswer::Rack(best.ok_or(Error::NoSuchRack { rack })?))
    }

    pub(super) fn with_liveness(&self, mut info: RackInfo) -> RackInfo {
        let known = &self.racks[&info.rack];
        info.alive = known.alive;
        info.frames_free = known.frames_free;
        info
    }

    /// Serves a call about members. `Ok(None)` if the answer comes with the batch.
    pub(super) fn on_member(
        &mut self,
        conn: ConnId,
        id: u64,
        call: MemberCall,
    ) -> Result<Option<MasterAnswer>> {
        let mut pages_max = 0;
        let (rack, to) = match call {
            MemberCall::List => return Ok(Some(self.list_members())),
            MemberCall::Load => return Ok(Some(self.load())),
            MemberCall::Drain(rack) => (rack, RackState::Draining),
            MemberCall::Undrain(rack) => (rack, RackState::Serving),
            MemberCall::Leave(rack) => {
                if self.probe.mutated(Mutation::LeaveWithPages) {
                    pages_max = u64::MAX;
                }
                (rack, RackState::Left)
            }
            MemberCall::Forget(rack) => {
                if !self.probe.mutated(Mutation::ForgetLivingRack) {
                    self.check_dead(rack)?;
                }
                (rack, RackState::Lost)
            }
        };
        let command = Command::SetStanding { rack, to, pages_max };
        self.propose(conn, id, command).map(|()| None)
    }

    fn list_members(&self) -> MasterAnswer {
        let with_liveness = |member: Member| {
            let info = self.with_liveness(member.info);
            Member { info, ..member }
        };
        let members = self.state.members().map(with_liveness).collect();
        MasterAnswer::Member(MemberAnswer::List(members))
    }

    fn load(&self) -> MasterAnswer {
        let serves = |member: &Member| member.info.alive && member.standing == RackState::Serving;
        let members = self.state.members().map(|member| {
            let info = self.with_liveness(member.info);
            Member { info, ..member }
        });
        let (mut load, mut all) = (PoolLoad::default(), (0, 0));
        for Member { info, .. } in members.filter(serves) {
            let frames = u64::from(info.frame_count);
            let used = frames.saturating_sub(info.frames_free.into());
            let share = used_milli(used, frames);
            load.racks += 1;
            all = (all.0 + used, all.1 + frames);
            if load.emptiest.is_none_or(|(_, least)| share < least) {
                load.emptiest = Some((info.rack, share));
            }
        }
        load.mean_milli = if load.racks > 0 { used_milli(all.0, all.1) } else { 0 };
        MasterAnswer::Member(MemberAnswer::Load(load))
    }

    /// Refuses to give up a rack with a daemon that lives or may come back.
    fn check_dead(&self, rack: RackId) -> Result<()> {
        let Some(known) = self.racks.get(&rack) else { return Err(Error::NoSuchRack { rack }) };
        let (lease_ms, denied) = (self.config.lease_ms, |reason| Err(Error::Denied { reason }));
        if known.alive || self.joining.contains_key(&rack) {
            return denied(format!(
                "the daemon of rack {rack} is alive: drain the rack, or stop its daemon first"
            ));
        }
        if self.state.standing(rack).is_member() && self.may_return(rack) {
            return denied(format!(
                "the daemon of rack {rack} may still come back: try again once it has been dead \
                 for {lease_ms} ms"
            ));
        }
        Ok(())
    }

    /// Says what became of a rack.
    pub(super) fn note_standing(&mut self, applied: Option<&Applied>) {
        let Some(Applied::RackState { rack, standing, is_new: true, pages_newly_lost }) = applied
        else {
            return;
        };
        let (rack, standing) = (*rack, *standing);
        self.notices.push(Notice::RackStands { rack, standing });
        if *pages_newly_lost > 0 {
            self.notices.push(Notice::PagesLost { rack, pages: *pages_newly_lost });
        }
    }

    /// Whether a rack is a member of the pool now.
    pub(super) fn is_member(&self, rack: RackId) -> bool {
        self.state.standing(rack).is_member()
    }

    /// Whether new memory may go to a rack.
    pub(super) fn may_be_picked(&self, rack: RackId) -> bool {
        match self.state.standing(rack) {
            RackState::Serving => true,
            RackState::Draining => self.probe.mutated(Mutation::PickDrainingRack),
            RackState::Left | RackState::Lost => false,
        }
    }

    /// A rack keeps its number of shards, and there is room for one more.
    pub(super) fn check_shards(&self, rack: RackId) -> Result<()> {
        let joined = self.state.shards_of(rack).map(|info| info.rack);
        let mut known = joined.chain(self.joining.keys().copied().filter(|r| r.same_rack(rack)));
        if let Some(other) = known.find(|other| other.shards() != rack.shards()) {
            return Err(Error::BadRegion {
                reason: format!(
                    "rack {} is divided into {} of this pool, this daemon says {}: start it with \
                     the number that the rack was made with, or take another rack number",
                    rack.number(),
                    shards_text(other),
                    shards_text(rack)
                ),
            });
        }
        let count = self.state.racks().count() + self.joining.len();
        if self.state.region_id(rack).is_none() && count >= usize::from(RACKS_MAX) {
            let limit = u64::from(RACKS_MAX);
            return Err(Error::Busy { what: "racks of a pool, shards counted".into(), limit });
        }
        Ok(())
    }

    /// Refuses a rack to which no page goes any more.
    pub(super) fn check_takes_pages(&self, rack: RackId) -> Result<()> {
        match self.state.standing(rack) {
            RackState::Serving => Ok(()),
            RackState::Draining => Err(Error::Draining { rack }),
            RackState::Left | RackState::Lost => Err(Error::NoSuchRack { rack }),
        }
    }
}

fn shards_text(rack: RackId) -> String {
    match rack.shards() {
        1 => "1 shard".into(),
        shards => format!("{shards} shards"),
    }
}
