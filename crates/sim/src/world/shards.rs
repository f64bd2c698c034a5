//! Daemons start, die, and of a divided rack take over what a dead sibling served. The second form
//! of the standby thread in `rackpool`: there the kernel's locks say which daemon is dead, here the
//! simulated kernel does. A shard that was taken over is served by a process of its own here, which
//! dies with the one that took it over.
//!
//! The shards of a rack lie on hosts of their own with memory that is mapped across, so that each
//! has a card; there is no losing the power of one.

use super::kernel::ProcessId;
use super::{Cluster, daemon};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::RackId;
use rackpool_core::seam::{Mutation, Probe};
use std::rc::Rc;

/// The generator that says which racks are divided.
const SHARDS_STREAM: u64 = (1 << 40) + 2;
/// Of the seeds, those with divided racks, parts per million.
const DIVIDED_PPM: u32 = 250_000;
/// How often a daemon looks whether its siblings live.
const LOOK: Ps = Ps::ms(10);

/// The ids of this many regions: racks, or in some seeds shards of racks, two each.
pub fn ids(seed: u64, regions: u32) -> Vec<RackId> {
    let mut rng = Rng::new(seed, Purpose::Shape, SHARDS_STREAM);
    let divided = regions >= 2 && rng.chance_ppm(DIVIDED_PPM);
    let (mut ids, mut rack) = (Vec::new(), 0);
    while ids.len() < regions as usize {
        let left = regions as usize - ids.len();
        // The first is always one of those, so that a seed with shards has some.
        let shards =
            if divided && left >= 2 && (rack == 0 || rng.chance_ppm(500_000)) { 2 } else { 1 };
        ids.extend((0..shards).filter_map(|shard| RackId::sharded(rack, shard, shards)));
        rack += 1;
    }
    ids
}

impl Cluster {
    /// Starts the daemon of a rack, or of a shard. If a sibling serves the shard, it gives it back
    /// first.
    pub fn start_daemon(self: &Rc<Self>, index: usize) {
        let rack = &self.racks[index];
        if self.is_served(index) {
            if rack.hosted_by.take().is_none() {
                // A region has one daemon: the second one finds it locked and ends.
                return;
            }
            self.kernel.say(|| format!("rack {} goes back to its own daemon", rack.id));
            self.end_daemon(index);
        }
        self.spawn_daemon(index, None);
        // Its siblings may have died before it.
        self.siblings(index).into_iter().for_each(|other| self.look(index, other, false));
    }

    fn spawn_daemon(self: &Rc<Self>, index: usize, hosted_by: Option<usize>) {
        let rack = self.racks[index].clone();
        let cpu = self.cpu(rack.host);
        let cluster = self.clone();
        let name = format!("daemon {}", rack.id);
        let host = rack.host;
        let one = rack.clone();
        let id = self.kernel.spawn(name, host, cpu, |ctx| daemon::main(ctx, cluster, one));
        self.kernel.set_notice(id, self.costs.daemon_notice);
        rack.owner.set(Some(id));
        rack.hosted_by.set(hosted_by);
    }

    /// `kill -9` of the process that serves a rack, and all that this process serves.
    pub fn kill_daemon(self: &Rc<Self>, index: usize) {
        let host = self.racks[index].hosted_by.get().unwrap_or(index);
        let all: Vec<usize> = (0..self.racks.len())
            .filter(|at| *at == host || self.racks[*at].hosted_by.get() == Some(host))
            .collect();
        for at in &all {
            self.racks[*at].hosted_by.set(None);
            self.end_daemon(*at);
        }
        for dead in all {
            self.siblings(dead).into_iter().for_each(|alive| self.look(alive, dead, false));
        }
    }

    fn end_daemon(&self, index: usize) {
        let rack = &self.racks[index];
        if let Some(owner) = rack.owner.take() {
            self.kernel.kill(owner);
        }
        if let Some((_, fabric)) = rack.daemon.take() {
            self.kernel.kill(fabric);
        }
    }

    fn is_served(&self, index: usize) -> bool {
        self.racks[index].owner.get().is_some_and(|owner| self.kernel.is_alive(owner))
    }

    fn siblings(&self, index: usize) -> Vec<usize> {
        let own = self.racks[index].id;
        let others = self.racks.iter().enumerate();
        let others = others.filter(|(_, rack)| rack.id != own && rack.id.same_rack(own));
        others.map(|(at, _)| at).collect()
    }

    /// A process is stopped: if it is the daemon of a shard, its siblings look at it.
    pub fn on_stopped(self: &Rc<Self>, process: ProcessId) {
        let found = self.racks.iter().position(|rack| rack.owner.get() == Some(process));
        let Some(index) = found else { return };
        self.siblings(index).into_iter().for_each(|other| self.look(other, index, true));
    }

    /// The daemon of one shard looks at another one soon, and takes it over if its owner is dead.
    /// `is_silent` says that the owner was stopped, which is no reason.
    fn look(self: &Rc<Self>, by: usize, at: usize, is_silent: bool) {
        let host = self.racks[by].host;
        let (cluster, cpu) = (self.clone(), self.cpu(host));
        let name = format!("standby {}", self.racks[by].id);
        self.kernel.spawn(name, host, cpu, move |ctx| async move {
            let mut rng = Rng::new(cluster.seed, Purpose::Schedule, u64::from(ctx.id.0) << 32);
            ctx.sleep(Ps(rng.below(LOOK.0) + 1)).await;
            cluster.take_over(by, at, is_silent);
        });
    }

    fn take_over(self: &Rc<Self>, by: usize, at: usize, is_silent: bool) {
        let (own, rack) = (&self.racks[by], &self.racks[at]);
        let lives = self.is_served(by) && own.hosted_by.get().is_none();
        let ignores_owner = is_silent && self.hooks.mutated(Mutation::TakeOverLiving);
        let has_owner = self.is_served(at) && !ignores_owner;
        if !lives || has_owner || !rack.region.borrow().is_formatted {
            return;
        }
        self.kernel.say(|| format!("rack {} is taken over by the daemon of {}", rack.id, own.id));
        self.takeovers.set(self.takeovers.get() + 1);
        self.spawn_daemon(at, Some(by));
    }
}
