//! Processes that keep replicas, as threads of daemons do: one for each rack and each home that the
//! rack shall have pages of. They start when a client first wants a replica, and end with the work.

use super::kernel::{Ctx, ProcessId};
use super::scenario::Scene;
use super::{Path, SimHandle};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::client::{Keeper, Tended};
use rackpool_core::{Error, RackId, Result};
use std::rc::Rc;

impl Scene {
    /// Starts the keeper of `home`'s pages in the rack `to`, unless it is at work.
    pub fn keep(self: &Rc<Self>, to: RackId, home: RackId) {
        let racks = &self.cluster.racks;
        let Some(rack) = racks.iter().position(|rack| rack.id == to) else { return };
        let known = self.keepers.borrow().get(&(rack, home)).copied();
        if self.is_over() || known.is_some_and(|one| self.cluster.kernel.is_alive(one)) {
            return;
        }
        let host = racks[rack].host;
        let (cpu, scene) = (self.cluster.cpu(host), self.clone());
        let name = format!("keeper in rack {to} of {home}");
        let id = self.cluster.kernel.spawn(name, host, cpu, |ctx| main(ctx, scene, to, home));
        self.keepers.borrow_mut().insert((rack, home), id);
    }

    /// Each rack keeps replicas of another one's pages from the start.
    pub fn keep_some(self: &Rc<Self>) {
        let ids: Vec<RackId> = self.cluster.racks.iter().map(|rack| rack.id).collect();
        for (at, to) in ids.iter().enumerate() {
            let others = ids[at..].iter().chain(&ids[..at]);
            let others = others.filter(|home| !home.same_rack(*to));
            others.take(2).for_each(|home| self.keep(*to, *home));
        }
    }

    /// The keepers of a rack die.
    pub fn end_keepers(&self, rack: usize) {
        let keepers = self.keepers.borrow();
        for (_, process) in keepers.iter().filter(|((of, _), _)| *of == rack) {
            if self.cluster.kernel.is_alive(*process) {
                self.cluster.kernel.kill(*process);
            }
        }
    }

    pub fn pick_keeper(&self, rng: &mut Rng) -> Option<ProcessId> {
        let keepers = self.keepers.borrow();
        let alive = keepers.values().filter(|process| self.cluster.kernel.is_alive(**process));
        let alive: Vec<ProcessId> = alive.copied().collect();
        (!alive.is_empty()).then(|| alive[rng.below(alive.len() as u64) as usize])
    }

    /// Whether one of them is at work.
    pub fn has_keepers(&self) -> bool {
        self.keepers.borrow().values().any(|process| self.cluster.kernel.is_alive(*process))
    }
}

/// One life of a keeper. The next one is another process: what the network still has for this one's
/// endpoint is not for the next one's.
async fn main(ctx: Ctx, scene: Rc<Scene>, rack: RackId, home: RackId) {
    let mut rng = Rng::new(scene.seed, Purpose::Shape, u64::from(ctx.id.0));
    let cluster = scene.cluster.clone();
    let opened = SimHandle::open(ctx.clone(), cluster, rack, Path::OneSided, 64).await;
    if let Ok(mut handle) = opened {
        handle.timeout = Ps::ms(rng.between(300, 2_000));
        let kept = keep(&ctx, &scene, &mut handle, home).await;
        scene.count_operation("keep", kept.as_ref().map_or_else(Error::code, |()| "ok"));
        handle.leave().await;
    }
    ctx.sleep(Ps::ms(1)).await;
    scene.keepers.borrow_mut().retain(|_, process| *process != ctx.id);
    scene.keep(rack, home);
}

/// Until the work is over, or the keeper's memory is gone.
async fn keep(ctx: &Ctx, scene: &Scene, handle: &mut SimHandle, home: RackId) -> Result<()> {
    let mut keeper = Keeper::new(home);
    while !scene.is_over() {
        match handle.tend(&mut keeper).await {
            Ok(Tended::Waiting) => ctx.sleep(Ps::us(20)).await,
            Ok(Tended::Polled) => ctx.sleep(Ps::ns(100)).await,
            Err(error @ Error::Lost { .. }) => return Err(error),
            Ok(Tended::Idle) | Err(_) => ctx.sleep(Ps::ms(1)).await,
        }
    }
    if keeper.retire(handle.client()) {
        handle.tend(&mut keeper).await?;
    }
    Ok(())
}
