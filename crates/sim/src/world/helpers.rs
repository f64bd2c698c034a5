//! Processes that work for a rack, as threads of its daemon's process do: one that moves pages, one
//! for each home that replicas are held of, and in a run with a table one that sweeps. They run the
//! loops of `core::runtime`, die with their daemon or alone, at whatever they are doing, and the
//! next one begins anew.

use super::kernel::{Ctx, ProcessId};
use super::scene::Scene;
use super::{Path, SimHandle, relocating, sweeping};
use crate::mem::SimMem;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::client::Operation;
use rackpool_core::constants::NS_PER_MS;
use rackpool_core::runtime::WorkerHost;
use rackpool_core::runtime::replicas::{ReplicaPauses, hold_replicas};
use rackpool_core::seam::Nanos;
use rackpool_core::{Error, RackId, Result};
use std::rc::Rc;

/// Longest time for which a worker that sleeps does not look whether it is to end.
const SLICE: Ps = Ps::ms(1);
const PAUSES: ReplicaPauses = ReplicaPauses { idle_ns: NS_PER_MS, failed_ns: NS_PER_MS };

/// What a process does for its rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    Relocation,
    /// Replicas of the pages of this home.
    Replicas(RackId),
    Sweep,
}

pub struct Helper {
    pub(super) process: ProcessId,
    /// Whether it is in the midst of a sweep.
    pub(super) is_at_it: bool,
}

impl Scene {
    /// Starts what each rack with a daemon is to have by now.
    pub fn start_helpers(self: &Rc<Self>) {
        for (index, rack) in self.cluster.racks.iter().enumerate() {
            if rack.owner.get().is_none() {
                continue;
            }
            if self.moves_pages() || self.drained.get() == Some(index) {
                self.start_helper(index, Task::Relocation);
            }
            if self.tables.is_some() && !self.is_over() {
                self.start_helper(index, Task::Sweep);
            }
        }
    }

    /// Each rack holds replicas of other ones' pages from the start.
    pub fn hold_some(self: &Rc<Self>) {
        let ids: Vec<RackId> = self.cluster.racks.iter().map(|rack| rack.id).collect();
        for (at, to) in ids.iter().enumerate() {
            let others = ids[at..].iter().chain(&ids[..at]);
            let others = others.filter(|home| !home.same_rack(*to));
            others.take(2).for_each(|home| self.hold(*to, *home));
        }
    }

    /// The rack `to` holds replicas of `home`'s pages from now on.
    pub fn hold(self: &Rc<Self>, to: RackId, home: RackId) {
        let rack = self.cluster.racks.iter().position(|rack| rack.id == to);
        if let Some(rack) = rack.filter(|_| !self.is_over()) {
            self.start_helper(rack, Task::Replicas(home));
        }
    }

    fn start_helper(self: &Rc<Self>, index: usize, task: Task) {
        let known = self.helpers.borrow().get(&(index, task)).map(|one| one.process);
        if known.is_some_and(|one| self.cluster.kernel.is_alive(one)) {
            return;
        }
        let rack = &self.cluster.racks[index];
        let (id, cpu, scene) = (rack.id, self.cluster.cpu(rack.host), self.clone());
        let kernel = &self.cluster.kernel;
        let name = format!("rack {id}: {task:?}");
        let process = match task {
            Task::Relocation => {
                kernel.spawn(name, rack.host, cpu, |ctx| relocating::main(ctx, scene, index))
            }
            Task::Replicas(home) => {
                kernel.spawn(name, rack.host, cpu, move |ctx| replicas(ctx, scene, id, home))
            }
            Task::Sweep => {
                kernel.spawn(name, rack.host, cpu, move |ctx| sweeping::main(ctx, scene, index))
            }
        };
        let helper = Helper { process, is_at_it: false };
        self.helpers.borrow_mut().insert((index, task), helper);
    }

    /// Those processes of a rack die.
    pub fn end_helpers(&self, rack: usize, which: impl Fn(Task) -> bool) {
        for ((of, task), one) in self.helpers.borrow().iter() {
            if *of == rack && which(*task) && self.cluster.kernel.is_alive(one.process) {
                self.cluster.kernel.kill(one.process);
                if *task == Task::Sweep {
                    let cut_short = one.is_at_it;
                    self.count_checked(if cut_short {
                        "sweeps cut short"
                    } else {
                        "sweepers killed"
                    });
                }
            }
        }
    }

    pub fn pick_helper(&self, rng: &mut Rng, which: impl Fn(Task) -> bool) -> Option<ProcessId> {
        let helpers = self.helpers.borrow();
        let of_task = helpers.iter().filter(|((_, task), _)| which(*task));
        let alive = of_task.filter(|(_, one)| self.cluster.kernel.is_alive(one.process));
        let alive: Vec<ProcessId> = alive.map(|(_, one)| one.process).collect();
        (!alive.is_empty()).then(|| alive[rng.below(alive.len() as u64) as usize])
    }

    /// Whether one of them is at work.
    pub fn has_helpers(&self) -> bool {
        self.helpers.borrow().values().any(|one| self.cluster.kernel.is_alive(one.process))
    }

    /// A process that has ended by itself is not known any more.
    fn forget_helper(&self, process: ProcessId) {
        self.helpers.borrow_mut().retain(|_, one| one.process != process);
    }
}

/// A handle that works for a rack until something is over.
pub struct SimWorker<F> {
    pub handle: SimHandle,
    is_over: F,
}

impl<F: Fn() -> bool> SimWorker<F> {
    pub async fn open(ctx: &Ctx, scene: &Scene, rack: RackId, is_over: F) -> Result<Self> {
        let mut rng = Rng::new(scene.seed, Purpose::Shape, u64::from(ctx.id.0));
        let cluster = scene.cluster.clone();
        let mut handle = SimHandle::open(ctx.clone(), cluster, rack, Path::OneSided, 64).await?;
        handle.timeout = Ps::ms(rng.between(300, 2_000));
        Ok(Self { handle, is_over })
    }
}

impl<F: Fn() -> bool> WorkerHost<SimMem> for SimWorker<F> {
    fn now_ns(&self) -> Nanos {
        self.handle.ctx.clock_ns()
    }

    fn is_stopped(&self) -> bool {
        (self.is_over)()
    }

    async fn sleep(&mut self, ns: Nanos) {
        let ctx = self.handle.ctx.clone();
        let until = ctx.now() + Ps::ns(ns);
        while ctx.now() < until && !self.is_stopped() {
            ctx.sleep(SLICE.min(until - ctx.now())).await;
        }
    }

    async fn perform<O: Operation<SimMem>>(
        &mut self,
        make: impl FnOnce(u64) -> O,
    ) -> Result<O::Output> {
        let result = self.handle.perform(make).await;
        self.handle.ctx.sleep(Ps::ns(100)).await;
        result
    }
}

/// One life of a process that holds replicas. The next one is another process: what the network
/// still has for this one's endpoint is not for the next one's.
async fn replicas(ctx: Ctx, scene: Rc<Scene>, rack: RackId, home: RackId) {
    if let Ok(mut worker) = SimWorker::open(&ctx, &scene, rack, || scene.is_over()).await {
        let held = hold_replicas(&mut worker, home, PAUSES).await;
        scene.count_operation("keep", held.as_ref().map_or_else(Error::code, |()| "ok"));
        worker.handle.leave().await;
    }
    ctx.sleep(Ps::ms(1)).await;
    scene.forget_helper(ctx.id);
    scene.hold(rack, home);
}
