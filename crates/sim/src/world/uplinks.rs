//! The daemon's own fabric endpoint, on which it works for clients that have none.

use super::Cluster;
use super::kernel::Ctx;
use crate::net::EndpointId;
use rackpool_core::seam::{BufId, FabricEvent, PeerId, Sge, Verb, WorkRequest, WorkStatus};
use rackpool_core::wire::RackInfo;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The endpoint, its buffers, and what waits for a doorbell.
pub struct SimUplinks {
    ctx: Ctx,
    cluster: Rc<Cluster>,
    endpoint: EndpointId,
    /// Buffers of the work under way.
    buffers: BTreeMap<(PeerId, u32), BufId>,
    /// What waits for a doorbell: number, verb, bytes.
    batches: BTreeMap<PeerId, Vec<(u32, Verb, u32)>>,
    /// Work requests that the card has, by connection.
    posted: BTreeMap<PeerId, usize>,
    /// What READs have brought that the engine is being told of.
    read: BTreeMap<(PeerId, u32), Vec<u8>>,
}

impl SimUplinks {
    /// An endpoint of the daemon's loop.
    pub fn new(ctx: &Ctx, cluster: &Rc<Cluster>) -> SimUplinks {
        SimUplinks {
            endpoint: cluster.add_endpoint(ctx, ctx.id),
            ctx: ctx.clone(),
            cluster: cluster.clone(),
            buffers: BTreeMap::new(),
            batches: BTreeMap::new(),
            posted: BTreeMap::new(),
            read: BTreeMap::new(),
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

    pub fn connect(&mut self, info: &RackInfo) -> PeerId {
        let to = self.cluster.rack_of(info.rack).endpoint.get();
        self.ctx.connect_peer(self.endpoint, to)
    }

    pub fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32) {
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

    pub fn read(&self, peer: PeerId, index: u32) -> &[u8] {
        &self.read[&(peer, index)]
    }
}
