//! The process that moves pages for a rack.

use super::helpers::SimWorker;
use super::kernel::Ctx;
use super::scene::Scene;
use crate::mem::SimMem;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::client::RelocationOutcome;
use rackpool_core::constants::NS_PER_MS;
use rackpool_core::policy::{AccessCosts, MigrationPolicy};
use rackpool_core::runtime::relocation::{RelocationHost, RelocationOptions, relocate};
use rackpool_core::runtime::{Backoff, WorkerHost};
use rackpool_core::seam::Nanos;
use rackpool_core::{Error, GAddr, RackId, Result};
use std::rc::Rc;

/// What is said of accesses between racks: it only has to be known.
const COSTS: AccessCosts = AccessCosts {
    local_ns: 200,
    remote_ns: 3_000,
    round_trip_ns: 10_000,
    bytes_per_second: 10_000_000_000,
};
/// How long it is until the daemon is asked again, on average.
const POLL: Ps = Ps::us(100);
const BACKOFF: Backoff = Backoff::ms(1, 8);
const STREAM: u64 = 1 << 42;

struct RelocationProcess<F> {
    worker: SimWorker<F>,
    scene: Rc<Scene>,
    rack: usize,
    rng: Rng,
}

impl Scene {
    /// Whether pages move without being asked for by name.
    pub fn moves_pages(&self) -> bool {
        self.cluster.balance.is_some() || self.cluster.migration != MigrationPolicy::Off
    }
}

/// One life of the process.
pub async fn main(ctx: Ctx, scene: Rc<Scene>, rack: usize) {
    let stays = scene.moves_pages();
    let is_over = || {
        let is_drained = scene.drained.get() == Some(rack);
        !is_drained && (scene.is_over() || !stays)
    };
    let id = scene.cluster.racks[rack].id;
    let Ok(worker) = SimWorker::open(&ctx, &scene, id, is_over).await else { return };
    let rng = Rng::new(scene.seed, Purpose::Shape, STREAM | u64::from(ctx.id.0));
    let mut process = RelocationProcess { worker, scene: scene.clone(), rack, rng };
    let balance_ns = scene.cluster.balance.is_some().then_some(NS_PER_MS);
    let options = RelocationOptions { stays, backoff: BACKOFF, balance_ns };
    relocate(&mut process, options).await;
    process.worker.handle.leave().await;
}

impl<F: Fn() -> bool> RelocationHost<SimMem> for RelocationProcess<F> {
    fn worker(&mut self) -> &mut impl WorkerHost<SimMem> {
        &mut self.worker
    }

    async fn wait_for_work(&mut self, _until_ns: Nanos) {
        let ctx = self.worker.handle.ctx.clone();
        // Without a policy the daemon has nothing to say before it knows that its rack drains.
        let drains = &self.scene.cluster.racks[self.rack].drains;
        loop {
            ctx.sleep(self.rng.exponential(POLL) + Ps::ns(1)).await;
            if self.scene.moves_pages() || drains.get().is_some() || self.worker.is_stopped() {
                return;
            }
        }
    }

    async fn measure(&mut self, rack: RackId, _at: GAddr) -> Result<AccessCosts> {
        self.scene.hold(self.worker.handle.rack(), rack);
        Ok(COSTS)
    }

    fn note(&mut self, outcome: &Result<RelocationOutcome>) {
        let (name, code) = match outcome {
            Ok(RelocationOutcome::Idle) => ("move-wanted", "idle"),
            Ok(RelocationOutcome::Unmeasured(..)) => ("move-wanted", "unmeasured"),
            Ok(RelocationOutcome::Pulled(_, Some(error))) => ("move-wanted", error.code()),
            Ok(RelocationOutcome::Pulled(report, None)) if report.moved_bytes > 0 => {
                ("move-wanted", "ok")
            }
            Ok(RelocationOutcome::Pulled(..)) => ("move-wanted", "left"),
            Ok(RelocationOutcome::Pushed(_, sent)) => ("balance-turn", code_of(sent)),
            Ok(RelocationOutcome::Evacuated(_, sent)) => ("drain-turn", code_of(sent)),
            Ok(RelocationOutcome::PassOver(_)) => ("drain-turn", "pass-over"),
            Ok(RelocationOutcome::Left) => ("drain-turn", "left"),
            Err(error) => ("relocate", error.code()),
        };
        self.scene.count_operation(name, code);
        let ctx = &self.worker.handle.ctx;
        ctx.kernel.say(|| format!("rack {}: relocation: {outcome:?}", self.rack));
        let error = match outcome {
            Ok(RelocationOutcome::Pushed(_, Err(error)))
            | Ok(RelocationOutcome::Evacuated(_, Err(error)))
            | Err(error) => error,
            _ => return,
        };
        if !self.scene.is_excused(error) {
            ctx.kernel.fail("errors", format!("rack {}: {name}: {error}", self.rack));
        }
    }
}

fn code_of(sent: &Result<Option<RackId>>) -> &'static str {
    sent.as_ref().map_or_else(Error::code, |to| if to.is_some() { "ok" } else { "gone" })
}
