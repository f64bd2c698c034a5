//! What time brings to replicas: leases end, polls are answered, what no rack wants is dropped.

use super::{KeeperState, Sharing};
use crate::constants::{MOVE_DRAIN_NS, REPLICA_IDLE_NS, REPLICA_LEASE_NS, REPLICA_STEP_NS};
use crate::daemon::{Daemon, World};
use crate::seam::{Mutation, Nanos, Probe, Race};

impl Daemon {
    /// What time brings: leases end, polls are answered, writers that do not end are left alone.
    pub(in crate::daemon) fn time_replicas<W: World>(&mut self, now: Nanos, world: &mut W) {
        // A clock that jumps, or a process that was stopped, makes leases longer, never shorter.
        let passed = now.saturating_sub(self.replicas.ticked).min(REPLICA_STEP_NS);
        self.replicas.ticked = now;
        self.replicas.now += passed;
        let now = self.replicas.now;
        for keeper in self.replicas.keepers.values_mut() {
            keeper.ticks = keeper.ticks.saturating_add(1);
            // The first tick's time may have been taken before the answer.
            if keeper.ticks >= 2 && keeper.answered.is_none() {
                keeper.answered = Some(now);
            }
            if keeper.parked.is_some() && keeper.parked_since.is_none() {
                keeper.parked_since = Some(now);
            }
        }
        self.tell_keepers(true, world);
        let ignored = world.private().mutated(Mutation::IgnoreReplicaLease);
        let lease_ns = if ignored { 0 } else { REPLICA_LEASE_NS };
        let over = |keeper: &KeeperState| {
            keeper.answered.is_some_and(|at| now.saturating_sub(at) > lease_ns)
                && keeper.parked.is_none()
        };
        let over = self.replicas.keepers.iter().filter(|(_, keeper)| over(keeper));
        let over: Vec<u64> = over.map(|(id, _)| *id).collect();
        for id in over {
            world.private().met(Race::KeeperSilent);
            self.replicas.keepers.remove(&id);
            self.replicas.counts.leases_waited += u64::from(!self.replicas.held.is_empty());
            self.replicas.forget_replicas(id);
        }
        self.time_shared(now, world);
    }

    fn time_shared<W: World>(&mut self, now: Nanos, world: &mut W) {
        let draining: Vec<u32> = self.replicas.draining.iter().copied().collect();
        if now < self.replicas.look_at && draining.is_empty() {
            return;
        }
        self.replicas.look_at = now.saturating_add(MOVE_DRAIN_NS);
        let (mut busy, mut idle, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (page, shared) in &mut self.replicas.pages {
            match &mut shared.sharing {
                Sharing::Draining(since) => {
                    if now.saturating_sub(*since.get_or_insert(now)) > MOVE_DRAIN_NS {
                        busy.push(*page);
                    }
                }
                Sharing::Found => found.push(*page),
                Sharing::Ready => {}
            }
            for (id, replica) in &mut shared.replicas {
                let asked = *replica.asked.get_or_insert(now);
                if now.saturating_sub(asked) > REPLICA_IDLE_NS {
                    idle.push((*page, *id));
                }
            }
        }
        for page in busy {
            self.replicas.rest(page);
            self.replicas.give_up_wanted(page);
        }
        for (page, id) in idle {
            self.replicas.drop_replicas(page, Some(id));
        }
        if !found.is_empty() {
            let since = *self.replicas.found_at.get_or_insert(now);
            if now.saturating_sub(since) > REPLICA_LEASE_NS {
                found.into_iter().for_each(|page| self.unshare(page, world));
            }
        }
    }
}
