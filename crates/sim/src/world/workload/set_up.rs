//! The first process of a scenario: makes what all clients use.

use super::super::handle::{Path, SimHandle};
use super::super::kernel::Ctx;
use super::super::scenario::Scene;
use super::super::table::{TableError, TableMem};
use super::Object;
use crate::time::Ps;
use rackpool_core::client::Placement;
use rackpool_core::{Error, GAddr, RackId};
use std::rc::Rc;

/// Words that all clients use, in each rack.
const WORDS_PER_RACK: u64 = 12;

/// Makes the words that all clients use, then lets the clients begin.
pub async fn set_up(ctx: Ctx, scene: Rc<Scene>) {
    let cluster = scene.cluster.clone();
    let racks: Vec<RackId> = cluster.racks.iter().map(|rack| rack.id).collect();
    let opened = SimHandle::open(ctx.clone(), cluster, racks[0], Path::OneSided, 16).await;
    let mut handle = match opened {
        Ok(handle) => handle,
        Err(error) => return ctx.kernel.fail("set-up", error.to_string()),
    };
    for rack in racks {
        let bytes = WORDS_PER_RACK * 8;
        let addr = loop {
            match handle.alloc(bytes, Placement::Rack(rack), false).await {
                Ok(addr) => break addr,
                Err(error) if error.may_retry() => ctx.sleep(Ps::ms(1)).await,
                // The other daemons may not have joined yet.
                Err(Error::NoSuchRack { .. }) => ctx.sleep(Ps::ms(1)).await,
                Err(error) => return ctx.kernel.fail("set-up", error.to_string()),
            }
        };
        let words = (0..WORDS_PER_RACK).map(|word| GAddr(addr.0 + 8 * word));
        scene.model.words.borrow_mut().extend(words);
        let object =
            Object { bytes, holder: None, owned: false, freeing: false, words: true, serial: 0 };
        scene.model.objects.borrow_mut().insert(addr.0, object);
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
    handle.leave().await;
    scene.set_up();
}
