//! Which rack takes an allocation: what the leader knows of each, handed to `placement`.

use super::{Liveness, Master, check_count};
use crate::addr::{PageGeometry, RackId};
use crate::constants::RACKS_MAX;
use crate::error::{Error, Result};
use crate::placement::{Candidate, PickRequest};
use crate::seam::Probe;
use crate::wire::MasterAnswer;

impl<P: Probe> Master<P> {
    /// What led to choices, from a byte of the log on.
    pub(super) fn placements_from(&self, from: u64) -> MasterAnswer {
        MasterAnswer::Placements(self.placements.read(from))
    }

    /// A rack with room for an allocation, by the placement policy.
    pub(super) fn pick(
        &mut self,
        own: RackId,
        bytes: u64,
        tried: &[RackId],
    ) -> Result<MasterAnswer> {
        check_count(tried.len(), u32::from(RACKS_MAX))?;
        let page_bytes = self.state.geometry().map_or(0, PageGeometry::page_bytes);
        let candidate = |(&rack, known): (&RackId, &Liveness)| {
            let frames = self.state.rack(rack).map_or(0, |info| info.frame_count);
            Candidate {
                rack,
                alive: known.alive && self.may_be_picked(rack),
                free_bytes: u64::from(known.frames_free) * page_bytes,
                used_bytes: u64::from(frames.saturating_sub(known.frames_free)) * page_bytes,
                promised_bytes: known.promised_bytes,
            }
        };
        let candidates: Vec<Candidate> = self.racks.iter().map(candidate).collect();
        let others = candidates.iter().filter(|c| c.alive && !c.rack.same_rack(own));
        let free = |(racks, bytes): (u32, u64), c: &Candidate| {
            (racks + 1, bytes.saturating_add(c.free_bytes))
        };
        let (count, free_bytes) = others.fold((0, 0), free);
        let request = PickRequest { own, bytes, tried };
        match self.placements.pick(candidates, request, self.ticked) {
            Some(rack) => {
                let known = self.racks.get_mut(&rack).expect("candidates are known");
                known.promised_bytes = known.promised_bytes.saturating_add(bytes);
                let info = self.state.rack(rack).expect("what was ever alive has joined");
                Ok(MasterAnswer::Rack(self.with_liveness(info)))
            }
            None => {
                let place = format!("{count} live racks other than {own}, {} tried", tried.len());
                Err(Error::Full { bytes, free_bytes, place })
            }
        }
    }
}
