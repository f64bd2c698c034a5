//! The process that sweeps for a rack, in a run with a table.

use super::helpers::{SimWorker, Task};
use super::kernel::Ctx;
use super::scene::Scene;
use super::workload::Worker;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use std::rc::Rc;

const STREAM: u64 = 1 << 43;
const PAUSE: Ps = Ps::ms(150);
/// Of the sweeps, those of everything, whether it is due or not, parts per million.
const UNASKED_PPM: u32 = 400_000;
/// Of the crashes of clients, those of one that sweeps, parts per million.
const CRASH_PPM: u32 = 300_000;

impl Scene {
    /// Kills one, rather one that is at it; not always, and only if the run has some.
    pub fn crash_sweeper(&self, rng: &mut Rng) -> bool {
        let racks: Vec<(usize, bool)> = {
            let helpers = self.helpers.borrow();
            let sweepers = helpers.iter().filter(|((_, task), _)| *task == Task::Sweep);
            let alive = sweepers.filter(|(_, one)| self.cluster.kernel.is_alive(one.process));
            alive.map(|((rack, _), one)| (*rack, one.is_at_it)).collect()
        };
        if racks.is_empty() || !rng.chance_ppm(CRASH_PPM) {
            return false;
        }
        let first = rng.below(racks.len() as u64) as usize;
        let at_it = racks.iter().find(|(_, is_at_it)| *is_at_it);
        self.end_helpers(at_it.unwrap_or(&racks[first]).0, |task| task == Task::Sweep);
        true
    }

    fn note_sweep(&self, rack: usize, is_at_it: bool) {
        if let Some(one) = self.helpers.borrow_mut().get_mut(&(rack, Task::Sweep)) {
            one.is_at_it = is_at_it;
        }
    }
}

/// One life of a sweeper.
pub async fn main(ctx: Ctx, scene: Rc<Scene>, rack: usize) {
    let mut rng = Rng::new(scene.seed, Purpose::Shape, STREAM | u64::from(ctx.id.0));
    let id = scene.cluster.racks[rack].id;
    let Ok(opened) = SimWorker::open(&ctx, &scene, id, || scene.is_over()).await else { return };
    let mut worker = Worker::new(ctx.clone(), scene.clone(), opened.handle);
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
