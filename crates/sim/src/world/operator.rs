//! An operator that drains a rack, sometimes thinks better of it, and sometimes asks for what must
//! be refused: that the rack leaves at once, or that a living one is given up. A rack that has left
//! joins again with a new region.

use super::kernel::Ctx;
use super::master::MasterLink;
use super::scene::Scene;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use rackpool_core::client::MasterQuery;
use rackpool_core::member::RackState;
use rackpool_core::runtime::master_link::Call;
use rackpool_core::{Error, RackId, Result};
use std::fmt::Debug;
use std::rc::Rc;

/// The generators of operators, apart from the nemesis' own.
const STREAM: u64 = 1 << 41;
/// How long one order is tried: two of them take less than a lease.
const ORDER: Ps = Ps::ms(400);
/// How often a draining rack is looked at.
const LOOK: Ps = Ps::us(200);

/// Starts one for a rack, unless there is one; whether there is none of any rack.
pub fn start(scene: &Rc<Scene>, rack: usize) -> bool {
    // Memory that is mapped across racks is one host's: no rack of it leaves.
    if scene.drained.get().is_some() || scene.has_mapped() {
        return false;
    }
    scene.drained.set(Some(rack));
    let cluster = &scene.cluster;
    let (host, one) = (cluster.master_host, scene.clone());
    let cpu = cluster.cpu(host);
    cluster.kernel.spawn(format!("operator {rack}"), host, cpu, move |ctx| main(ctx, one, rack));
    true
}

async fn main(ctx: Ctx, scene: Rc<Scene>, rack: usize) {
    let mut rng = Rng::new(scene.seed, Purpose::Faults, STREAM | u64::from(ctx.id.0));
    let id = scene.cluster.racks[rack].id;
    // How long the rack may take, and when the impatient ask.
    let mut patience = Ps(rng.exponential(Ps::ms(20)).0.min(Ps::ms(400).0));
    if rng.chance_ppm(300_000) {
        forget_living(&ctx, &scene, id).await;
    }
    scene.opened.borrow_mut().insert(rack);
    let _ = order(&ctx, &scene, "order drain", MasterQuery::drain(id)).await;
    // Some do not care that the clients are done: the rack has it easier then.
    let stays_on = rng.chance_ppm(500_000);
    if stays_on {
        patience = Ps(patience.0 + Ps::ms(40).0);
    }
    let goes_on = || stays_on || !scene.is_over();
    while standing(&scene, id) == RackState::Draining && goes_on() && patience.0 > 0 {
        let pause = Ps(rng.exponential(LOOK).0.clamp(1, patience.0));
        ctx.sleep(pause).await;
        patience = Ps(patience.0 - pause.0);
        if rng.chance_ppm(20_000) {
            let _ = order(&ctx, &scene, "order leave", MasterQuery::leave(id)).await;
        }
    }
    loop {
        match standing(&scene, id) {
            RackState::Serving | RackState::Lost => break,
            RackState::Draining => {
                let _ = order(&ctx, &scene, "order undrain", MasterQuery::undrain(id)).await;
            }
            RackState::Left => {
                scene.count_operation("rack", "left");
                scene.remove_rack(rack);
                ctx.sleep(rng.exponential(Ps::ms(1)) + Ps::us(1)).await;
                scene.cluster.start_daemon(rack);
                scene.restart_clients_of(rack);
                break;
            }
        }
    }
    scene.drained.set(None);
}

/// Asks that a rack is given up that was alive less than a lease ago: the master must refuse.
async fn forget_living(ctx: &Ctx, scene: &Rc<Scene>, rack: RackId) {
    let listed = order(ctx, scene, "order list", MasterQuery::members()).await;
    let Some(Ok(members)) = listed else { return };
    let is_alive = members.iter().any(|member| member.info.rack == rack && member.info.alive);
    if !is_alive {
        return;
    }
    let forgotten = order(ctx, scene, "order forget", MasterQuery::forget(rack)).await;
    if matches!(forgotten, Some(Ok(RackState::Lost))) {
        ctx.kernel.fail("members", format!("rack {rack} was given up while its daemon lived"));
    }
}

/// Gives up a rack with a host that has lost its power, once a lease is over, if the master can be
/// asked.
pub async fn forget_dead(ctx: &Ctx, scene: &Rc<Scene>, rack: usize) {
    scene.opened.borrow_mut().insert(rack);
    let lease = Ps::ms(scene.cluster.lease_ms);
    ctx.sleep(lease + Ps(lease.0 / 2)).await;
    let id = scene.cluster.racks[rack].id;
    let _ = order(ctx, scene, "order forget", MasterQuery::forget(id)).await;
}

/// What a rack is, as the master has stored it.
fn standing(scene: &Scene, rack: RackId) -> RackState {
    scene.cluster.stored_state().standing(rack)
}

/// Gives an order, which is counted under a name; what the master said, if it did in time.
async fn order<A: Debug>(
    ctx: &Ctx,
    scene: &Rc<Scene>,
    name: &'static str,
    query: MasterQuery<A>,
) -> Option<Result<A>> {
    let cluster = &scene.cluster;
    let mut master = MasterLink::new(Call::join_client(cluster.new_session(), RackId(0)));
    let until = ctx.now() + ORDER;
    let said = master.ask(ctx, cluster, &query, until).await;
    master.close(ctx);
    ctx.kernel.say(|| format!("operator: {query:?}: {said:?}"));
    let answer = said?;
    let is_other = matches!(answer, Err(Error::Protocol { .. }));
    assert!(!is_other, "orders have answers of their own: {answer:?}");
    scene.count_operation(name, answer.as_ref().map_or_else(Error::code, |_| "ok"));
    Some(answer)
}
