//! What becomes of a move without its mover: one that takes too long, one that attach found.

use super::tiers::TierMove;
use super::{Arrival, ArrivalStage, Departure, DepartureStage, UNNAMED};
use crate::addr::Generation;
use crate::constants::{MOVE_DRAIN_NS, MOVE_SHUT_NS, SPILL_SHUT_NS};
use crate::daemon::frames::FrameEntry;
use crate::daemon::{Daemon, World};
use crate::layout::FrameState;
use crate::seam::{Mutation, Nanos, Probe, Race};

impl Daemon {
    /// Tells what is new when it began, and ends what takes too long.
    pub(in crate::daemon) fn time_moves<W: World>(&mut self, now: Nanos, world: &mut W) {
        let page_ns = self.layout.pages.page_bytes().saturating_mul(4);
        let shut_ns = MOVE_SHUT_NS + page_ns;
        let spills = |one: &TierMove| self.frames.is_slot(one.to);
        let spilled = self.moves.between.filter(spills).map(|one| one.from);
        let mut late = Vec::new();
        for (frame, departure) in &mut self.moves.departing {
            let since = *departure.since.get_or_insert(now);
            let limit_ns = match departure.stage {
                DepartureStage::Draining => MOVE_DRAIN_NS,
                DepartureStage::Shut if spilled == Some(*frame) => SPILL_SHUT_NS + page_ns,
                DepartureStage::Shut => shut_ns,
                DepartureStage::Asking => continue,
            };
            if now.saturating_sub(since) > limit_ns {
                late.push(*frame);
            }
        }
        for frame in late {
            world.private().met(Race::MoveTooSlow);
            self.give_up_departure(frame, world);
        }
        let mut late = Vec::new();
        for (frame, arrival) in &mut self.moves.arriving {
            let since = *arrival.since.get_or_insert(now);
            let filling = arrival.stage == ArrivalStage::Filling;
            if filling && now.saturating_sub(since) > 2 * shut_ns {
                late.push(*frame);
            }
        }
        for frame in late {
            self.drop_arrival(frame, "its mover took too long", world);
        }
    }

    /// A frame that attach found in a move: its mover is gone, the directory is asked.
    pub(in crate::daemon) fn settle_move<W: World>(
        &mut self,
        frame: u32,
        entry: &FrameEntry,
        world: &mut W,
    ) {
        let FrameEntry { page, generation, .. } = *entry;
        let (record, asker, since) = (UNNAMED, None, None);
        match entry.state {
            FrameState::Departing => {
                let key = Generation(self.frames.take_generations(world.private(), 2));
                let reopen = Generation(key.0 + 1);
                let stage = DepartureStage::Asking;
                let departure =
                    Departure { page, generation, key, reopen, record, asker, stage, since };
                self.moves.departing.insert(frame, departure);
                if world.private().mutated(Mutation::ForgetDeparture) {
                    return self.reopen(frame, generation, world);
                }
            }
            _ => {
                let stage = ArrivalStage::Asking(self.own_home(page, frame, generation));
                let arrival = Arrival { page, generation, record, asker, stage, since };
                self.moves.arriving.insert(frame, arrival);
                if world.private().mutated(Mutation::ForgetArrival) {
                    return self.arrived(frame, world);
                }
                if world.private().mutated(Mutation::DropArrival) {
                    return self.drop_arrival(frame, "its mover is gone", world);
                }
            }
        }
        world.private().met(Race::MoveSettledAtAttach);
        self.moves.questions.push_back(frame);
    }
}
