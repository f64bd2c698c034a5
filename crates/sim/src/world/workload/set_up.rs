//! The first process of a scenario: makes what all clients use.

use super::super::handle::{Path, SimHandle};
use super::super::kernel::Ctx;
use super::super::scenario::Scene;
use super::super::table::{TableError, TableMem};
use super::Object;
use super::range_model::LINE_BYTES;
use crate::time::Ps;
use rackpool_core::client::Placement;
use rackpool_core::layout::AllocationKind;
use rackpool_core::{Error, GAddr, RackId};
use std::rc::Rc;

/// Words that all clients use, in each rack.
const WORDS_PER_RACK: u64 = 12;

/// Lines of the area of each rack in which clients lock ranges.
const AREA_LINES: u64 = 12;

/// Makes the words and areas that all clients use, then lets the clients begin.
pub async fn set_up(ctx: Ctx, scene: Rc<Scene>) {
    let cluster = scene.cluster.clone();
    let racks: Vec<RackId> = cluster.racks.iter().map(|rack| rack.id).collect();
    let opened = SimHandle::open(ctx.clone(), cluster, racks[0], Path::OneSided, 16).await;
    let mut handle = match opened {
        Ok(handle) => handle,
        Err(error) => return ctx.kernel.fail("set-up", error.to_string()),
    };
    for rack in racks {
        let words_bytes = WORDS_PER_RACK * 8;
        let Some(words) = make(&ctx, &scene, &mut handle, rack, words_bytes).await else { return };
        let words = (0..WORDS_PER_RACK).map(|word| GAddr(words.0 + 8 * word));
        scene.model.words.borrow_mut().extend(words);
        let area_bytes = AREA_LINES * LINE_BYTES;
        let Some(area) = make(&ctx, &scene, &mut handle, rack, area_bytes).await else { return };
        scene.model.ranges.borrow_mut().add_area(area.0, AREA_LINES);
    }
    while let Some(tables) = scene.tables {
        match tables.create(&mut TableMem::new(&mut handle, &scene), scene.seed) {
            Ok(()) => break,
            Err(TableError::Pool(error)) => {
                // What it had allocated by then may be lost.
                scene.model.table.was_lossy();
                ctx.kernel.say(|| format!("no table yet: {error}"));
                ctx.sleep(Ps::ms(1)).await;
            }
            Err(error) => return ctx.kernel.fail("set-up", format!("{error:?}")),
        }
    }
    scene.model.table.leaves(ctx.id);
    handle.leave().await;
    scene.set_up();
}

/// Allocates what belongs to no client in a rack.
async fn make(
    ctx: &Ctx,
    scene: &Scene,
    handle: &mut SimHandle,
    rack: RackId,
    bytes: u64,
) -> Option<GAddr> {
    loop {
        match handle.alloc(bytes, Placement::Rack(rack), AllocationKind::User).await {
            Ok(addr) => {
                let (holder, owned, freeing, words, serial) = (None, false, false, true, 0);
                let object = Object { bytes, holder, owned, freeing, words, serial };
                scene.model.objects.borrow_mut().insert(addr.0, object);
                return Some(addr);
            }
            Err(error) if error.may_retry() => ctx.sleep(Ps::ms(1)).await,
            // The other daemons may not have joined yet.
            Err(Error::NoSuchRack { .. }) => ctx.sleep(Ps::ms(1)).await,
            Err(error) => {
                ctx.kernel.fail("set-up", error.to_string());
                return None;
            }
        }
    }
}
