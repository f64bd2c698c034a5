//! The daemon's own fabric endpoint, on which it works for clients that have none.

use super::Cluster;
use super::kernel::{Ctx, Input, ProcessId};
use crate::mem::SimMem;
use crate::net::EndpointId;
use rackpool_core::constants::MESSAGE_BYTES_MAX;
use rackpool_core::daemon::{OutcomeData, Uplinks};
use rackpool_core::layout::{RING_BYTES, SLOT_REMOTE_REPLY_RING, SLOT_REMOTE_REQUEST_RING};
use rackpool_core::seam::{BufId, FabricEvent, PeerId, Sge, Verb, WorkRequest, WorkStatus};
use rackpool_core::wire::{self, ProxyOutcome, RackInfo};
use rackpool_core::{RackId, Result};
use rackpool_hw::ring::{Consumer, Producer};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The rings of a slot for what the daemon's endpoint does.
pub struct ProxyRings {
    /// `None` while an order is looked at.
    pub orders: Option<Consumer<SimMem>>,
    outcomes: Producer<SimMem>,
    /// The process to tell; `None` while none is connected.
    pub process: Option<ProcessId>,
}

impl ProxyRings {
    /// The daemon's ends in a slot's section.
    pub fn attach(slot: &SimMem) -> ProxyRings {
        ProxyRings {
            orders: Some(Consumer::attach(slot.slice(SLOT_REMOTE_REQUEST_RING, RING_BYTES))),
            outcomes: Producer::attach(slot.slice(SLOT_REMOTE_REPLY_RING, RING_BYTES)),
            process: None,
        }
    }
}

/// The endpoint and the rings.
pub struct SimUplinks {
    ctx: Ctx,
    cluster: Rc<Cluster>,
    rack: RackId,
    endpoint: EndpointId,
    pub rings: BTreeMap<u32, ProxyRings>,
    /// Buffers of the work under way.
    buffers: BTreeMap<(PeerId, u32), BufId>,
    /// What waits for a doorbell: number, verb, bytes.
    batches: BTreeMap<PeerId, Vec<(u32, Verb, u32)>>,
    /// Work requests that the card has, by connection.
    posted: BTreeMap<PeerId, usize>,
    /// What READs have brought that the engine is being told of.
    read: BTreeMap<(PeerId, u32), Vec<u8>>,
    /// Racks that the master is to be asked for.
    pub wanted: Vec<RackId>,
    buffer: Vec<u8>,
}

impl SimUplinks {
    /// An endpoint of the daemon's loop.
    pub fn new(ctx: &Ctx, cluster: &Rc<Cluster>, rack: RackId) -> SimUplinks {
        SimUplinks {
            endpoint: cluster.add_endpoint(ctx, ctx.id),
            ctx: ctx.clone(),
            cluster: cluster.clone(),
            rack,
            rings: BTreeMap::new(),
            buffers: BTreeMap::new(),
            batches: BTreeMap::new(),
            posted: BTreeMap::new(),
            read: BTreeMap::new(),
            wanted: Vec::new(),
            buffer: vec![0; MESSAGE_BYTES_MAX as usize],
        }
    }

    /// A work request has ended: its buffer is the engine's to look at until `done`.
    pub fn before(&mut self, event: &FabricEvent) {
        if let FabricEvent::Completed { peer, id, .. } = event {
            self.ctx.cpu.charge(self.cluster.costs.client_completion);
            let at = (*peer, *id as u32);
            if let Some(posted) = self.posted.get_mut(peer) {
                *posted = posted.saturating_sub(1);
            }
            if let Some(buf) = self.buffers.remove(&at) {
                self.read.insert(at, self.ctx.kernel.take_buffer(self.endpoint, buf));
            }
        }
    }

    pub fn after(&mut self) {
        for bytes in std::mem::take(&mut self.read).into_values() {
            self.ctx.kernel.recycle(bytes);
        }
    }

    /// Posts what waits, a doorbell for each connection; what could not be posted. A card with a
    /// queue shorter than the engine's gets the rest after the next completion.
    pub fn ring_doorbells(&mut self) -> Vec<FabricEvent> {
        let mut unposted = Vec::new();
        let limit = self.ctx.kernel.net.borrow().capabilities().outstanding_max as usize;
        for (peer, mut batch) in std::mem::take(&mut self.batches) {
            let posted = self.posted.entry(peer).or_default();
            let room = limit.saturating_sub(*posted).min(batch.len());
            let rest = batch.split_off(room);
            *posted += room;
            if !rest.is_empty() {
                self.batches.insert(peer, rest);
            }
            if batch.is_empty() {
                continue;
            }
            let piece = |(index, _, bytes): &(u32, Verb, u32)| {
                let buf = self.buffers[&(peer, *index)];
                Sge { buf, offset: 0, bytes: u64::from(*bytes) }
            };
            let pieces: Vec<Sge> = batch.iter().map(piece).collect();
            let works = batch.iter().zip(&pieces).map(|((index, verb, _), piece)| {
                let is_atomic = matches!(verb, Verb::Cas { .. } | Verb::FetchAdd { .. });
                let local = if is_atomic { &[] } else { std::slice::from_ref(piece) };
                WorkRequest { id: u64::from(*index), verb: *verb, local, signalled: true }
            });
            let works: Vec<WorkRequest<'_>> = works.collect();
            if let Err((posted, _)) = self.ctx.post_work(self.endpoint, peer, &works) {
                // At most as many are under way as one connection takes: it is down.
                let status = WorkStatus::Flushed { executed: Some(false) };
                let rest = works[posted..].iter();
                unposted.extend(rest.map(|work| FabricEvent::Completed {
                    peer,
                    id: work.id,
                    status,
                }));
            }
        }
        unposted
    }
}

impl Uplinks for SimUplinks {
    fn find(&mut self, rack: RackId) {
        self.wanted.push(rack);
    }

    fn connect(&mut self, info: &RackInfo) -> Option<PeerId> {
        let to = self.cluster.rack_of(info.rack).endpoint.get();
        Some(self.ctx.connect_peer(self.endpoint, to))
    }

    fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32) {
        let mut buffer = self.ctx.kernel.spare();
        let bytes = match verb {
            Verb::Read(_) => {
                buffer.resize(bytes as usize, 0);
                bytes
            }
            _ => {
                buffer.extend_from_slice(data);
                data.len() as u32
            }
        };
        let buf = self.ctx.kernel.register(self.endpoint, buffer);
        self.buffers.insert((peer, index), buf);
        self.batches.entry(peer).or_default().push((index, verb, bytes));
    }

    fn tell(&mut self, slot: u32, outcome: ProxyOutcome, data: OutcomeData<'_>) -> bool {
        let Some(rings) = self.rings.get_mut(&slot) else { return false };
        let Some(process) = rings.process else { return false };
        let head = wire::encode(&outcome, &mut self.buffer).expect("an outcome is short").len();
        let data = match data {
            OutcomeData::Bytes(bytes) => bytes,
            OutcomeData::Read { peer, index, .. } => &self.read[&(peer, index)],
        };
        let message = &mut self.buffer[..head + data.len()];
        message[head..].copy_from_slice(data);
        let pushed = rings.outcomes.push(message).is_ok();
        if pushed {
            self.ctx.ring(process, Input::Ring(u32::from(self.rack.0)));
        }
        pushed
    }

    fn copy(&self, peer: PeerId, index: u32, _bytes: u32) -> Vec<u8> {
        self.read[&(peer, index)].clone()
    }
}

/// A rack in the master's answer.
pub fn rack_of(answer: Result<wire::MasterAnswer>) -> Result<RackInfo> {
    match answer? {
        wire::MasterAnswer::Rack(info) => Ok(info),
        other => super::master::unexpected(&other),
    }
}
