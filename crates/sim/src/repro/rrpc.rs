//! RRPC by size: our own calls for data, by the engines, as a closed loop of clients in one rack
//! that fetch from another rack. The place is never used between two calls, except where that is
//! what is measured.

use super::baselines::{Calls, PAGES, PLACES_PER_PAGE};
use super::load::Seen;
use crate::device::Profile;
use crate::time::Ps;
use crate::world::performance::{self, Settings, Shape, World};
use crate::world::{Cluster, Ctx, Input, Mode, SimHandle};
use rackpool_core::GAddr;
use rackpool_core::constants::TRANSLATION_ENTRIES_DEFAULT;
use rackpool_core::rrpc::THRESHOLD_PAPER_BYTES;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Which of RRPC's ways a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The paper's choice where the place is unknown and the length known: up to 512 bytes the
    /// answer carries the data, longer data is written into the caller's buffer.
    Rrpc,
    /// One of its modes at all lengths.
    Call(Mode),
    /// The place is known: one-sided only, as after the first call.
    PlaceKnown,
}

struct Shared {
    way: Way,
    calls: Calls,
    pages: Cell<GAddr>,
    ready: Cell<u32>,
    ended: Cell<u32>,
    seen: RefCell<Seen>,
}

pub fn fetch(profile: &Profile, way: Way, calls: Calls) -> Result<Seen, String> {
    let shape = Shape { racks: 2, page_shift: 21, frames: PAGES as u32 + 4, seed: 7 };
    let mut world = World::with(profile, shape, Settings::default());
    let pages = Cell::new(GAddr::NULL);
    let (ready, ended, seen) = (Cell::new(0), Cell::new(0), RefCell::default());
    let shared = Rc::new(Shared { way, calls, pages, ready, ended, seen });
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
    world.run(|| one.ready.get() == calls.clients)?;
    let kernel = world.cluster.kernel.clone();
    let start = kernel.now();
    clients.iter().for_each(|client| kernel.post(*client, start, Input::Tell(0)));
    world.run(|| one.ended.get() == calls.clients)?;
    let seen = shared.seen.borrow().clone();
    Ok(seen)
}

async fn client(ctx: Ctx, cluster: Rc<Cluster>, shared: Rc<Shared>, number: u32) {
    let translations = TRANSLATION_ENTRIES_DEFAULT;
    let mut handle = performance::open(&ctx, &cluster, 0, translations).await;
    let mut buffer = vec![0; shared.calls.bytes as usize];
    let page_bytes = handle.page_bytes();
    for page in 0..PAGES {
        let addr = GAddr(shared.pages.get().0 + page * page_bytes);
        handle.read(addr, &mut [0; 8]).await.expect("the page is there");
    }
    shared.ready.set(shared.ready.get() + 1);
    handle.told(ctx.now() + Ps::ms(1_000_000_000)).await.expect("work begins");
    let mut rng = Calls::rng(number);
    let (operations, half) = (shared.calls.operations, shared.calls.operations / 2);
    let mut begun = ctx.now();
    for operation in 0..operations {
        if operation == half {
            begun = ctx.now();
        }
        let place = Calls::draw(&mut rng) * (page_bytes / PLACES_PER_PAGE);
        let addr = GAddr(shared.pages.get().0 + place);
        let start = ctx.now();
        access(&mut handle, shared.way, addr, &mut buffer).await;
        if operation >= half {
            shared.seen.borrow_mut().all.record((ctx.now() - start).0);
        }
    }
    ctx.sync(Ps::ZERO).await;
    let seconds = (ctx.now() - begun).as_ns_f64() / 1e9;
    shared.seen.borrow_mut().rate += (operations - half) as f64 / seconds;
    shared.ended.set(shared.ended.get() + 1);
    while ctx.recv(None).await.is_some() {}
}

async fn access(handle: &mut SimHandle, way: Way, addr: GAddr, to: &mut [u8]) {
    let is_short = to.len() <= THRESHOLD_PAPER_BYTES as usize;
    let read = match way {
        Way::Rrpc if is_short => handle.fetch(addr, to, Mode::Inline).await,
        Way::Rrpc => handle.fetch(addr, to, Mode::WriteBack).await,
        Way::Call(mode) => handle.fetch(addr, to, mode).await,
        Way::PlaceKnown => handle.read(addr, to).await,
    };
    read.expect("the page is there");
}
