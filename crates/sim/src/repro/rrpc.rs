//! RRPC by size: our own calls for data, by the engines, as a closed loop of clients in one rack
//! that fetch from another rack. The place is never used between two calls, except where that is
//! what is measured.

use super::calls::{CallState, Calls, PAGES, PLACES_PER_PAGE};
use super::load::LoadStats;
use crate::device::Profile;
use crate::time::Ps;
use crate::world::performance::{self, Settings, Shape, World};
use crate::world::{Cluster, Ctx, FetchMode, SimHandle};
use rackpool_core::GAddr;
use rackpool_core::constants::TRANSLATION_ENTRIES_DEFAULT;
use rackpool_core::rrpc::THRESHOLD_PAPER_BYTES;
use std::cell::Cell;
use std::rc::Rc;

/// Which of RRPC's ways a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchMethod {
    /// The paper's choice where the place is unknown and the length known: up to 512 bytes the
    /// answer carries the data, longer data is written into the caller's buffer.
    Rrpc,
    /// One of its modes at all lengths.
    Call(FetchMode),
    /// The place is known: one-sided only, as after the first call.
    PlaceKnown,
}

struct RrpcState {
    way: FetchMethod,
    pages: Cell<GAddr>,
    clients: CallState,
}

pub fn fetch(profile: &Profile, way: FetchMethod, calls: Calls) -> Result<LoadStats, String> {
    let shape = Shape { racks: 2, page_shift: 21, frames: PAGES as u32 + 4, seed: 7 };
    let mut world = World::with(profile, shape, Settings::default());
    let pages = Cell::new(GAddr::NULL);
    let shared = Rc::new(RrpcState { way, pages, clients: CallState::new(calls) });
    let one = shared.clone();
    world.spawn(1, move |ctx, cluster| async move {
        let mut handle = performance::open(&ctx, &cluster, 1, 1).await;
        one.pages.set(performance::alloc_pages(&mut handle, PAGES).await);
        handle.leave().await;
    });
    let one = shared.clone();
    world.run(|| !one.pages.get().is_null())?;
    let mut clients = Vec::new();
    for number in 0..calls.clients {
        let shared = shared.clone();
        clients.push(world.spawn(0, move |ctx, cluster| client(ctx, cluster, shared, number)));
    }
    let one = shared.clone();
    world.run(|| one.clients.are_ready())?;
    CallState::begin(&world.cluster.kernel, &clients);
    world.run(|| one.clients.have_ended())?;
    Ok(shared.clients.seen())
}

async fn client(ctx: Ctx, cluster: Rc<Cluster>, shared: Rc<RrpcState>, number: u32) {
    let translations = TRANSLATION_ENTRIES_DEFAULT;
    let mut handle = performance::open(&ctx, &cluster, 0, translations).await;
    let mut buffer = vec![0; shared.clients.calls.bytes as usize];
    let page_bytes = handle.page_bytes();
    for page in 0..PAGES {
        let addr = GAddr(shared.pages.get().0 + page * page_bytes);
        handle.read(addr, &mut [0; 8]).await.expect("the page is there");
    }
    shared.clients.note_ready();
    handle.told(ctx.now() + Ps::ms(1_000_000_000)).await.expect("work begins");
    let call = async |place| {
        let addr = GAddr(shared.pages.get().0 + place * (page_bytes / PLACES_PER_PAGE));
        access(&mut handle, shared.way, addr, &mut buffer).await;
    };
    let begun = shared.clients.run(&ctx, number, call).await;
    ctx.sync(Ps::ZERO).await;
    shared.clients.note_ended(&ctx, begun);
    while ctx.recv(None).await.is_some() {}
}

async fn access(handle: &mut SimHandle, way: FetchMethod, addr: GAddr, to: &mut [u8]) {
    let is_short = to.len() <= THRESHOLD_PAPER_BYTES as usize;
    let read = match way {
        FetchMethod::Rrpc if is_short => handle.fetch(addr, to, FetchMode::Inline).await,
        FetchMethod::Rrpc => handle.fetch(addr, to, FetchMode::WriteBack).await,
        FetchMethod::Call(mode) => handle.fetch(addr, to, mode).await,
        FetchMethod::PlaceKnown => handle.read(addr, to).await,
    };
    read.expect("the page is there");
}
