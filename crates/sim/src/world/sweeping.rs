//! Processes that sweep, as threads of daemons do: in a run with a table one for each rack. It dies
//! with its daemon, or alone, at whatever it is doing, and the next one begins anew.

use super::kernel::{Ctx, ProcessId};
use super::scenario::Scene;
use super::workload::Worker;
use super::{Path, SimHandle};
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::RackId;
use std::rc::Rc;

const PAUSE: Ps = Ps::ms(150);
/// Of the sweeps, those of everything, whether it is due or not, parts per million.
const UNASKED_PPM: u32 = 400_000;
/// Of the crashes of clients, those of one that sweeps, parts per million.
const CRASH_PPM: u32 = 300_000;

pub struct Sweeper {
    process: ProcessId,
    is_at_it: bool,
}

impl Scene {
    /// Starts the sweeper of each rack with a daemon, if the run has a table and it is not there.
    pub fn start_sweepers(self: &Rc<Self>) {
        if self.tables.is_none() || self.is_over() {
            return;
        }
        for (index, rack) in self.cluster.racks.iter().enumerate() {
            let known = self.sweepers.borrow().get(&index).map(|one| one.process);
            let is_there = known.is_some_and(|one| self.cluster.kernel.is_alive(one));
            if is_there || rack.owner.get().is_none() {
                continue;
            }
            let (id, cpu, scene) = (rack.id, self.cluster.cpu(rack.host), self.clone());
            let name = format!("sweeper of rack {id}");
            let begin = |ctx| main(ctx, scene, index, id);
            let process = self.cluster.kernel.spawn(name, rack.host, cpu, begin);
            self.sweepers.borrow_mut().insert(index, Sweeper { process, is_at_it: false });
        }
    }

    /// The sweeper of a rack dies.
    pub fn end_sweeper(&self, rack: usize) {
        let Some(one) = self.sweepers.borrow_mut().remove(&rack) else { return };
        if self.cluster.kernel.is_alive(one.process) {
            self.cluster.kernel.kill(one.process);
            let name = if one.is_at_it { "sweeps cut short" } else { "sweepers killed" };
            self.count_checked(name);
        }
    }

    /// Kills one, rather one that is at it; not always, and only if the run has some.
    pub fn crash_sweeper(&self, rng: &mut Rng) -> bool {
        if !self.has_sweepers() || !rng.chance_ppm(CRASH_PPM) {
            return false;
        }
        let is_alive = |one: &Sweeper| self.cluster.kernel.is_alive(one.process);
        let racks: Vec<(usize, bool)> = {
            let sweepers = self.sweepers.borrow();
            let alive = sweepers.iter().filter(|(_, one)| is_alive(one));
            alive.map(|(rack, one)| (*rack, one.is_at_it)).collect()
        };
        let first = rng.below(racks.len() as u64) as usize;
        let at_it = racks.iter().find(|(_, is_at_it)| *is_at_it);
        self.end_sweeper(at_it.unwrap_or(&racks[first]).0);
        true
    }

    pub fn pick_sweeper(&self, rng: &mut Rng) -> Option<ProcessId> {
        let sweepers = self.sweepers.borrow();
        let processes = sweepers.values().map(|one| one.process);
        let alive: Vec<ProcessId> =
            processes.filter(|one| self.cluster.kernel.is_alive(*one)).collect();
        (!alive.is_empty()).then(|| alive[rng.below(alive.len() as u64) as usize])
    }

    /// Whether one of them is at work.
    pub fn has_sweepers(&self) -> bool {
        let sweepers = self.sweepers.borrow();
        sweepers.values().any(|one| self.cluster.kernel.is_alive(one.process))
    }

    fn note_sweep(&self, rack: usize, is_at_it: bool) {
        if let Some(one) = self.sweepers.borrow_mut().get_mut(&rack) {
            one.is_at_it = is_at_it;
        }
    }
}

/// One life of a sweeper.
async fn main(ctx: Ctx, scene: Rc<Scene>, rack: usize, id: RackId) {
    let mut rng = Rng::new(scene.seed, Purpose::Shape, u64::from(ctx.id.0));
    let cluster = scene.cluster.clone();
    let opened = SimHandle::open(ctx.clone(), cluster, id, Path::OneSided, 64).await;
    let Ok(mut handle) = opened else { return };
    handle.timeout = Ps::ms(rng.between(300, 2_000));
    let mut worker = Worker::new(ctx.clone(), scene.clone(), handle);
    while !scene.is_over() {
        let pause = rng.exponential(PAUSE);
        ctx.sleep(pause).await;
        // What is not due is looked at as well, as `rackpool fsck --repair` does.
        let is_asked = !rng.chance_ppm(UNASKED_PPM);
        scene.note_sweep(rack, true);
        worker.sweep(is_asked.then_some(id)).await;
        scene.note_sweep(rack, false);
    }
    worker.handle.leave().await;
}
