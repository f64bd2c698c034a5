//! The end of a scenario: when all clients have left, what dead ones had is swept, or read and
//! freed, and when every grace is over the pool is compared with what is left in the model.

use super::handle::{Path, SimHandle};
use super::kernel::Ctx;
use super::scene::Scene;
use super::workload::Worker;
use super::workload::model::DeferredFree;
use crate::check::conserve::{
    DirectoryAudit, FrameAudit, HomeAudit, PoolAudit, RackAudit, check, frames_of,
};
use crate::time::Ps;
use rackpool_core::client::DaemonQuery;
use rackpool_core::layout::FrameState;
use rackpool_core::{Error, Result};
use std::rc::Rc;

/// How long the daemons and the master have for what they do behind.
const SETTLE: Ps = Ps::ms(3_000);

pub async fn main(ctx: Ctx, scene: Rc<Scene>) {
    while !scene.is_calm() {
        ctx.sleep(Ps::ms(5)).await;
    }
    // Sessions of dead clients end, so that nothing that they sent is under way any more.
    let grace = Ps::ms(scene.cluster.session_grace_ms);
    ctx.sleep(grace + SETTLE).await;
    let result = run(&ctx, &scene).await;
    if let Err(error) = result {
        ctx.kernel.fail("audit", error.to_string());
    }
    scene.audit_done();
}

async fn run(ctx: &Ctx, scene: &Rc<Scene>) -> Result<()> {
    let cluster = scene.cluster.clone();
    let first = cluster.racks[0].id;
    let handle = SimHandle::open(ctx.clone(), cluster, first, Path::OneSided, 64).await?;
    let mut worker = Worker::new(ctx.clone(), scene.clone(), handle);
    let swept = worker.sweep_last().await;
    worker.end_table().await;
    let mut orphans = scene.model.orphans();
    if let Some(tables) = scene.tables {
        let each_max = if swept { 0 } else { tables.left_by_death_max() };
        let table = &scene.model.table;
        orphans.extend(table.orphans(&ctx.kernel, each_max, scene.model.nothing_lost()));
    }
    for DeferredFree { addr, bytes, freeing, readable } in orphans {
        if readable {
            worker.read_all(addr).await;
        }
        ctx.kernel.say(|| format!("audit: frees {bytes} at {addr}, {freeing}"));
        let freed = loop {
            match worker.handle.free(addr, bytes).await {
                Err(Error::Busy { .. }) => ctx.sleep(Ps::ms(1)).await,
                result => break result,
            }
        };
        match freed {
            Ok(()) => {}
            Err(Error::BadFree { .. } | Error::NotMapped { .. } | Error::Lost { .. })
                if freeing => {}
            Err(error) => return Err(error),
        }
        scene.model.forget(addr, ctx.now());
    }
    worker.handle.leave().await;
    ctx.sleep(Ps::ms(scene.cluster.session_grace_ms) + SETTLE).await;
    let mut racks = Vec::new();
    for index in 0..scene.cluster.racks.len() {
        racks.push(look_at(ctx, scene, index).await?);
    }
    let pool = PoolAudit {
        page_shift: scene.cluster.racks[0].layout.pages.page_shift(),
        racks,
        directory: directory(scene),
        allocations: scene.model.allocations(),
        unclaimed_max: scene.model.maybe_leaked.get(),
        loses_parts: !scene.model.nothing_lost(),
    };
    let waiting = scene.cluster.stored_state().orphans();
    if waiting > 0 {
        ctx.kernel.fail("conserve", format!("{waiting} frees of other racks are not done"));
    }
    if let Err(violation) = check(&pool, ctx.now()) {
        ctx.kernel.fail(violation.checker, violation.text);
    }
    Ok(())
}

/// Asks a rack's daemon, and looks at its region beside what it says.
async fn look_at(ctx: &Ctx, scene: &Rc<Scene>, index: usize) -> Result<RackAudit> {
    let cluster = scene.cluster.clone();
    let id = cluster.racks[index].id;
    let mut handle = SimHandle::open(ctx.clone(), cluster, id, Path::OneSided, 2).await?;
    let (stats, _) = loop {
        match handle.ask(&DaemonQuery::stats()).await {
            Err(Error::Busy { .. }) => ctx.sleep(Ps::ms(1)).await,
            stats => break stats?,
        }
    };
    let sessions = handle.session_ids();
    let rack = &scene.cluster.racks[index];
    let audit = {
        let region = rack.region.borrow();
        let page_bytes = rack.layout.pages.page_bytes();
        let backed = |frame: u32| {
            let offset = u64::from(frame) * page_bytes;
            Some(region.pages.is_backed(offset, page_bytes))
        };
        let frames = frames_of(
            &rack.layout,
            |offset| region.word(offset),
            |offset| region.table.peek(offset),
            backed,
        );
        let mut frames = frames.map_err(|reason| Error::BadRegion { reason })?;
        let slots = rack.tiers.spill().map_or(0..0, |slots| slots.frames());
        frames[slots.start as usize..slots.end as usize].iter_mut().for_each(in_file);
        let known = rack.sessions_in_region();
        RackAudit { rack: id.0, frames, stats, sessions: known, sessions_expected: sessions }
    };
    handle.leave().await;
    Ok(audit)
}

/// A slot has no memory, and a page in it is in no table: what is so is told as the rules of frames
/// want it, what is not so as they do not.
fn in_file(slot: &mut FrameAudit) {
    if slot.state == FrameState::Home {
        let is_right = slot.table_generation == 0 && slot.backed != Some(true);
        slot.table_generation = if is_right { slot.generation } else { !slot.generation };
        slot.backed = None;
    }
}

fn directory(scene: &Scene) -> DirectoryAudit {
    let state = scene.cluster.stored_state();
    let homes = state.directory().iter().map(|(page, home)| HomeAudit {
        page: page.0,
        rack: home.rack.0,
        frame: home.frame.0,
        generation: home.version.0,
        lost: state.resolve(page).is_lost(),
    });
    DirectoryAudit { homes: homes.collect() }
}
