//! Orders of clients without a fabric endpoint, and what comes of them: the engine is
//! [`Proxy`], the endpoint is the host's.

use super::clients::{self, Client};
use super::{DaemonHost, DaemonLoop, Fault, Work};
use crate::RackId;
use crate::daemon::{OutcomeData, Proxy, Uplinks, World};
use crate::error::{Error, Result};
use crate::seam::{FabricEvent, PeerId, Verb};
use crate::wire::{self, MasterCall, ProxyOutcome, RackInfo};

/// The host's endpoint and the rings of the clients, as the engine sees them.
pub(super) struct Links<'a, H: DaemonHost> {
    host: &'a mut H,
    slots: &'a mut [Option<Client<H>>],
    wanted: &'a mut Vec<RackId>,
    buffer: &'a mut [u8],
}

impl<H: DaemonHost> Uplinks for Links<'_, H> {
    fn find(&mut self, rack: RackId) {
        self.wanted.push(rack);
    }

    fn connect(&mut self, info: &RackInfo) -> Option<PeerId> {
        self.host.connect(info)
    }

    fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32) {
        self.host.post(peer, index, verb, data, bytes);
    }

    fn tell(&mut self, slot: u32, outcome: ProxyOutcome, data: OutcomeData<'_>) -> bool {
        let Some(client) = clients::connected(self.slots, slot) else { return false };
        let head = wire::encode(&outcome, self.buffer).expect("an outcome is short").len();
        let data = match data {
            OutcomeData::Bytes(bytes) => bytes,
            OutcomeData::Read { peer, index, bytes } => self.host.read(peer, index, bytes),
        };
        let message = &mut self.buffer[..head + data.len()];
        message[head..].copy_from_slice(data);
        let pushed = client.outcomes.push(message).is_ok();
        if pushed {
            self.host.wake_for_outcome(client);
        }
        pushed
    }

    fn copy(&self, peer: PeerId, index: u32, bytes: u32) -> Vec<u8> {
        self.host.read(peer, index, bytes).to_vec()
    }
}

impl<H: DaemonHost> DaemonLoop<H> {
    pub(super) fn uplinks(&mut self) -> (&mut Proxy, Links<'_, H>) {
        let Self { host, slots, wanted, buffer, proxy, uplinks_touched, .. } = self;
        *uplinks_touched = true;
        (proxy, Links { host, slots, wanted, buffer })
    }

    /// Whether outcomes wait for room in clients' rings.
    pub fn is_behind(&self) -> bool {
        self.proxy.is_behind()
    }

    /// Takes what a client wants done in other racks; bounded as the ring is.
    pub(super) fn serve_orders(&mut self, slot: u32, limit: u32) -> bool {
        let client = clients::connected(&mut self.slots, slot);
        let Some(mut orders) = client.and_then(|client| client.orders.take()) else { return false };
        let mut taken = 0;
        while taken < limit {
            self.host.charge(Work::Poll);
            let (proxy, mut links) = self.uplinks();
            match orders.pop(|order| proxy.on_order(slot, order, &mut links)) {
                None => break,
                Some(Ok(Ok(()))) => self.host.charge(Work::Request),
                Some(Ok(Err(error))) => self.host.report(Fault::Slot(slot), &error),
                Some(Err(error)) => {
                    self.host.report(Fault::Slot(slot), &error);
                    break;
                }
            }
            taken += 1;
        }
        if let Some(client) = &mut self.slots[slot as usize] {
            client.orders = Some(orders);
        }
        taken > 0
    }

    /// The own endpoint says something.
    pub fn on_uplink(&mut self, event: FabricEvent) {
        self.host.before_event(&event);
        let closed = match &event {
            FabricEvent::Closed { peer, .. } => Some(*peer),
            _ => None,
        };
        let (proxy, mut links) = self.uplinks();
        proxy.on_event(event, &mut links);
        self.host.after_event(closed);
    }

    /// Orders that wait for a doorbell, racks that are asked for, outcomes that had no room.
    pub(super) fn flush_uplinks(&mut self) {
        let (proxy, mut links) = self.uplinks();
        proxy.deliver(&mut links);
        self.world.outbox().proxy = self.proxy.counts();
        for rack in std::mem::take(&mut self.wanted) {
            let sent =
                self.joined.then(|| self.host.call(MasterCall::Rack { rack }.into())).flatten();
            match sent {
                Some(id) => drop(self.rack_calls.insert(id, rack)),
                None => {
                    self.on_rack(rack, Err(Error::Busy { what: "the master".into(), limit: 0 }))
                }
            }
        }
        for event in self.host.ring_doorbells() {
            self.on_uplink(event);
        }
    }

    pub(super) fn on_rack(&mut self, rack: RackId, answer: Result<RackInfo>) {
        let (proxy, mut links) = self.uplinks();
        proxy.on_rack(rack, answer, &mut links);
    }
}
