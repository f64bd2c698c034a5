//! One endpoint of the simulated network behind the seam's `Fabric`, for code that is written
//! against that trait. The network, the world's sink and the present moment are shared by all
//! endpoints of a world, which advances them between calls.

use super::{EndpointId, Net, Sink};
use crate::time::Ps;
use rackpool_core::seam::{
    Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, WorkRequest,
};
use std::cell::RefCell;
use std::rc::Rc;

/// What the endpoints of a world share. No caller keeps it borrowed between calls.
pub struct Shared<S> {
    pub net: Net,
    /// The world's side of it.
    pub sink: S,
    pub now: Ps,
}

/// A sink that keeps events until their endpoint asks.
pub trait Inbox {
    /// Appends what was delivered to `endpoint` up to `now`, in order; how many.
    fn take(&mut self, now: Ps, endpoint: EndpointId, events: &mut Vec<FabricEvent>) -> usize;
}

pub struct SimFabric<S> {
    shared: Rc<RefCell<Shared<S>>>,
    endpoint: EndpointId,
}

impl<S> SimFabric<S> {
    /// The fabric of a process that [`Net::add_endpoint`] made.
    pub fn new(shared: Rc<RefCell<Shared<S>>>, endpoint: EndpointId) -> SimFabric<S> {
        SimFabric { shared, endpoint }
    }

    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }
}

impl<S: Sink + Inbox> Fabric for SimFabric<S> {
    fn capabilities(&self) -> Capabilities {
        self.shared.borrow().net.capabilities()
    }

    fn post(&mut self, peer: PeerId, batch: &[WorkRequest<'_>]) -> Result<(), (usize, PostError)> {
        let Shared { net, sink, now } = &mut *self.shared.borrow_mut();
        net.post(*now, self.endpoint, peer, batch, sink)
    }

    /// Takes what has been delivered; the time is the world's, not the caller's.
    fn poll(&mut self, _now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let Shared { sink, now, .. } = &mut *self.shared.borrow_mut();
        sink.take(*now, self.endpoint, events)
    }
}
