//! A closed loop of clients in one rack that fetch from another rack: how many, how often, and what
//! they see. How they fetch is in `rrpc.rs` (our calls) and `baselines.rs` (other systems').

use super::load::LoadStats;
use crate::rng::{Purpose, Rng};
use crate::time::Ps;
use crate::world::{Ctx, Input, Kernel, ProcessId};
use std::cell::{Cell, RefCell};

/// Pages of the home with data, and places of each, as many as the simulated racks have.
pub const PAGES: u64 = 64;
pub const PLACES_PER_PAGE: u64 = 64;

#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Clients, one call each at a time.
    pub clients: u32,
    /// Bytes of each piece.
    pub bytes: u64,
    /// Calls of each client; the second half is measured.
    pub operations: u64,
}

/// How far the clients are, and what they saw.
pub(super) struct CallState {
    pub calls: Calls,
    ready: Cell<u32>,
    ended: Cell<u32>,
    seen: RefCell<LoadStats>,
}

impl CallState {
    pub fn new(calls: Calls) -> CallState {
        CallState { calls, ready: Cell::new(0), ended: Cell::new(0), seen: RefCell::default() }
    }

    /// A client waits for [`CallState::begin`].
    pub fn note_ready(&self) {
        self.ready.set(self.ready.get() + 1);
    }

    pub fn are_ready(&self) -> bool {
        self.ready.get() == self.calls.clients
    }

    /// Tells the clients to begin.
    pub fn begin(kernel: &Kernel, clients: &[ProcessId]) {
        let start = kernel.now();
        clients.iter().for_each(|client| kernel.post(*client, start, Input::Tell(0)));
    }

    pub fn have_ended(&self) -> bool {
        self.ended.get() == self.calls.clients
    }

    pub fn seen(&self) -> LoadStats {
        self.seen.borrow().clone()
    }

    /// All calls of a client, each of a place by its number, the same for all ways to fetch; when
    /// the second half began.
    pub async fn run(&self, ctx: &Ctx, client: u32, mut call: impl AsyncFnMut(u64)) -> Ps {
        let mut rng = Rng::new(7, Purpose::Workload, u64::from(client));
        let (operations, half) = (self.calls.operations, self.calls.operations / 2);
        let mut begun = ctx.now();
        for operation in 0..operations {
            if operation == half {
                begun = ctx.now();
            }
            let place = rng.below(PAGES * PLACES_PER_PAGE);
            let start = ctx.now();
            call(place).await;
            if operation >= half {
                self.seen.borrow_mut().all.record((ctx.now() - start).0);
            }
        }
        begun
    }

    /// A client has ended, with a second half that began then.
    pub fn note_ended(&self, ctx: &Ctx, begun: Ps) {
        let (operations, half) = (self.calls.operations, self.calls.operations / 2);
        let seconds = (ctx.now() - begun).as_ns_f64() / 1e9;
        self.seen.borrow_mut().rate += (operations - half) as f64 / seconds;
        self.ended.set(self.ended.get() + 1);
    }
}
