//! A handle's end of the fabric: an endpoint of its own in the network, or the ring to its rack's
//! daemon, which works for it.

use super::local::SimSlot;
use crate::mem::SimMem;
use crate::net::EndpointId;
use crate::time::Ps;
use crate::world::kernel::{ConnId, Ctx, Input, SEND_ID};
use crate::world::rack::Rack;
use rackpool_core::fabric::proxied::{Pieces, Queue};
use rackpool_core::layout::{RING_BYTES, SLOT_REMOTE_REPLY_RING, SLOT_REMOTE_REQUEST_RING};
use rackpool_core::ring::{Consumer, Producer};
use rackpool_core::seam::{BufId, FabricEvent, PeerId, PostError, Sge, Verb, WorkRequest};
use std::cell::RefCell;
use std::rc::Rc;

/// The end; see the module.
pub(super) struct Fabric {
    pub(super) endpoint: EndpointId,
    /// Of a handle that its rack's daemon works for.
    queue: Option<RefCell<Queue<SimMem>>>,
    own: Option<Own>,
}

/// The slot in the own rack.
struct Own {
    rack: Rc<Rack>,
    slot: u32,
    conn: Option<ConnId>,
}

/// Registered buffers, as the queue sees them.
struct Registered<'a>(&'a Ctx, EndpointId);

impl Pieces for Registered<'_> {
    fn read(&self, piece: &Sge, to: &mut [u8]) {
        self.0.kernel.read_buffer(self.1, piece, 0, to);
    }

    fn write(&mut self, piece: &Sge, from: &[u8]) {
        self.0.kernel.write_buffer(self.1, piece, 0, from);
    }
}

impl Fabric {
    pub(super) fn new(endpoint: EndpointId, is_proxied: bool) -> Fabric {
        Fabric { endpoint, queue: is_proxied.then(RefCell::default), own: None }
    }

    /// The own rack's daemon was joined, or its slot taken up again.
    pub(super) fn attach(&mut self, own: &SimSlot) {
        self.own = Some(Own { rack: own.rack.clone(), slot: own.index, conn: own.conn });
        if let Some(queue) = &self.queue {
            let slot = &own.view.slot;
            let orders = Producer::attach(slot.slice(SLOT_REMOTE_REQUEST_RING, RING_BYTES));
            let outcomes = Consumer::attach(slot.slice(SLOT_REMOTE_REPLY_RING, RING_BYTES));
            queue.borrow_mut().attach(orders, outcomes);
        }
    }

    /// Whether its rack's daemon works for it: no process can write into its buffers then.
    pub(super) fn is_proxied(&self) -> bool {
        self.queue.is_some()
    }

    /// Whether a process works for it, or none has to.
    pub(super) fn is_served(&self) -> bool {
        self.queue.as_ref().is_none_or(|queue| queue.borrow().is_attached())
    }

    pub(super) fn connect(&self, ctx: &Ctx, rack: &Rack) -> PeerId {
        let Some(queue) = &self.queue else {
            return ctx.connect_peer(self.endpoint, rack.endpoint.get());
        };
        let peer = queue.borrow_mut().connect(rack.id).expect("a handle has few connections");
        self.ring(ctx);
        peer
    }

    pub(super) fn close(&self, ctx: &Ctx, peer: PeerId) {
        match &self.queue {
            Some(queue) => queue.borrow_mut().close(peer),
            None => ctx.close_peer(self.endpoint, peer),
        }
    }

    pub(super) fn post(
        &self,
        ctx: &Ctx,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
    ) -> Result<(), (usize, PostError)> {
        let Some(queue) = &self.queue else {
            return ctx.post_work(self.endpoint, peer, batch);
        };
        let posted = queue.borrow_mut().post(peer, batch, &Registered(ctx, self.endpoint));
        self.ring(ctx);
        posted
    }

    /// As [`Ctx::send_message`].
    pub(super) fn send(&self, ctx: &Ctx, peer: PeerId, message: Vec<u8>) -> Result<u64, PostError> {
        if self.queue.is_none() {
            return ctx.send_message(self.endpoint, peer, message);
        }
        let bytes = message.len() as u64;
        let buf = ctx.kernel.register(self.endpoint, message);
        let local = [Sge { buf, offset: 0, bytes }];
        let id = SEND_ID | u64::from(buf.0);
        let request = WorkRequest { id, verb: Verb::Send, local: &local, signalled: true };
        self.post(ctx, peer, &[request]).map(|()| id).map_err(|(_, error)| {
            ctx.kernel.take_buffer(self.endpoint, buf);
            error
        })
    }

    /// Nothing under way names the buffer any more.
    pub(super) fn let_go(&self, buf: BufId) {
        if let Some(queue) = &self.queue {
            queue.borrow_mut().let_go(|named| named == buf);
        }
    }

    /// What the daemon's work has come to. `poll_cost`: of one look at the ring.
    pub(super) fn poll(&self, ctx: &Ctx, poll_cost: Ps, closed: &[ConnId]) -> Vec<FabricEvent> {
        let mut events = Vec::new();
        let Some(queue) = &self.queue else { return events };
        {
            let mut queue = queue.borrow_mut();
            let mut pieces = Registered(ctx, self.endpoint);
            ctx.cpu.charge(poll_cost);
            queue.poll(&mut pieces, &mut events);
            let Some(own) = &self.own else { return Vec::new() };
            let is_over = own.conn.is_none_or(|conn| closed.contains(&conn));
            if is_over && queue.is_attached() {
                queue.detach();
                queue.poll(&mut pieces, &mut events);
            }
        }
        self.ring(ctx);
        events
    }

    /// Rings the daemon's bell if something was ordered.
    fn ring(&self, ctx: &Ctx) {
        let (Some(queue), Some(own)) = (&self.queue, &self.own) else { return };
        if queue.borrow_mut().take_bell() {
            // Setting the bell's bit is an atomic operation.
            ctx.cpu.drain();
            if let Some((daemon, _)) = own.rack.daemon.get() {
                ctx.ring(daemon, Input::Bell(own.slot));
            }
        }
    }
}
