//! A daemon that an operator starts by mistake, with another region for a rack that has one: it
//! asks a master that has just come back, and must not be let in before the old daemon has had a
//! lease's time to join again.

use super::kernel::Ctx;
use super::master::MasterLink;
use super::scene::Scene;
use crate::time::Ps;
use rackpool_core::runtime::master_link::Call;
use rackpool_core::wire::{FabricKind, RackInfo};
use std::rc::Rc;

/// Starts it on the rack's host.
pub fn start(scene: &Rc<Scene>, rack: usize) {
    let cluster = &scene.cluster;
    let host = cluster.racks[rack].host;
    let one = scene.clone();
    let cpu = cluster.cpu(host);
    cluster.kernel.spawn(format!("impostor {rack}"), host, cpu, move |ctx| main(ctx, one, rack));
}

async fn main(ctx: Ctx, scene: Rc<Scene>, rack: usize) {
    let cluster = scene.cluster.clone();
    let started = ctx.now();
    // It gives up before the lease is over: later it would be let in, and rightly so.
    let until = started + Ps(Ps::ms(cluster.lease_ms).0 / 2);
    let layout = cluster.racks[rack].layout;
    let mut master = MasterLink::new(Call::join_daemon(RackInfo {
        rack: cluster.racks[rack].id,
        region_id: [u64::MAX, u64::from(ctx.id.0)],
        epoch: 1,
        page_shift: layout.pages.page_shift(),
        frame_count: layout.frame_count,
        frames_free: layout.frame_count,
        host: "impostor".into(),
        control: format!("impostor-{rack}"),
        fabric: FabricKind::Tcp,
        fabric_addr: "impostor".into(),
        alive: true,
    }));
    while ctx.now() < until && master.refused.is_none() {
        master.connect(&ctx, &cluster);
        master.next(&ctx, until).await;
        if master.due().is_some() && master.refused.is_none() {
            return;
        }
        if scene.opened.borrow().contains(&rack) {
            return;
        }
        if master.is_up() {
            let waited = ctx.now() - started;
            let text = format!("rack {rack} was given to another region {waited} after a restart");
            return ctx.kernel.fail("lease", text);
        }
    }
}
