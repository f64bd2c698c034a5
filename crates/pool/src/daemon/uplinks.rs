//! The daemon's own fabric endpoint, on which it works for clients that have none: what the
//! engine of `core::daemon::Proxy` needs of its process. Data pass through a buffer of the daemon,
//! because a socket copies anyway, and a device may not use a client's memory.

use crate::links::{fabric_error, require_same};
use rackpool_core::Result;
use rackpool_core::constants::{FABRIC_OUTSTANDING_MAX, MESSAGE_BYTES_MAX};
use rackpool_core::seam::{
    BufId, Fabric, FabricEvent, Nanos, PeerId, PostError, Sge, Verb, WorkRequest, WorkStatus,
};
use rackpool_core::wire::RackInfo;
use rackpool_fabric::{Endpoint, FabricOptions, LocalBuffers};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use tracing::warn;

/// Bytes of the buffer of one work request: the longest message with a channel's number.
const BUFFER_BYTES: u64 = MESSAGE_BYTES_MAX as u64 + 64;
/// Work requests under one doorbell.
const BATCH_MAX: usize = 32;

/// The endpoint, its buffers, and what waits for a doorbell.
pub(super) struct FabricUplinks {
    endpoint: Endpoint,
    peers: BTreeMap<PeerId, Peer>,
}

struct Peer {
    buffer: BufId,
    batch: Vec<(u32, Verb, u32)>,
}

impl FabricUplinks {
    pub(super) fn new(options: FabricOptions) -> Result<Self> {
        Ok(Self { endpoint: Endpoint::new(options).map_err(fabric_error)?, peers: BTreeMap::new() })
    }

    /// Appends what happened; connections that ended give their buffers back.
    pub(super) fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) {
        self.endpoint.poll(now, events);
    }

    /// A connection is over and its outcomes were told.
    pub(super) fn forget(&mut self, peer: PeerId) {
        if let Some(peer) = self.peers.remove(&peer) {
            self.endpoint.take(peer.buffer);
        }
    }

    /// Posts what waits, a doorbell for each connection and 32 work requests; what cannot be posted
    /// has ended.
    pub(super) fn ring_doorbells(&mut self) -> Vec<FabricEvent> {
        let Self { endpoint, peers } = self;
        let mut unposted = Vec::new();
        for (id, peer) in peers.iter_mut().filter(|(_, peer)| !peer.batch.is_empty()) {
            while !peer.batch.is_empty() {
                let count = peer.batch.len().min(BATCH_MAX);
                let piece = |(index, _, bytes): &(u32, Verb, u32)| {
                    let offset = u64::from(*index) * BUFFER_BYTES;
                    Sge { buf: peer.buffer, offset, bytes: u64::from(*bytes) }
                };
                // Beyond the batch: filler, which is not posted.
                let at = |at: usize| &peer.batch[at.min(count - 1)];
                let pieces: [Sge; BATCH_MAX] = std::array::from_fn(|index| piece(at(index)));
                let works: [WorkRequest<'_>; BATCH_MAX] = std::array::from_fn(|index| {
                    let (number, verb, _) = *at(index);
                    let is_atomic = matches!(verb, Verb::Cas { .. } | Verb::FetchAdd { .. });
                    let local = std::slice::from_ref(&pieces[index.min(count - 1)]);
                    let local = if is_atomic { &[] } else { local };
                    WorkRequest { id: number.into(), verb, local, signalled: true }
                });
                match endpoint.post(*id, &works[..count]) {
                    Ok(()) => drop(peer.batch.drain(..count)),
                    Err((posted, PostError::Busy)) => {
                        // Its completions come first.
                        peer.batch.drain(..posted);
                        break;
                    }
                    Err((posted, PostError::Down)) => {
                        peer.batch.drain(..posted);
                        let status = WorkStatus::Flushed { executed: Some(false) };
                        let flushed = peer.batch.drain(..).map(|(index, ..)| {
                            FabricEvent::Completed { peer: *id, id: index.into(), status }
                        });
                        unposted.extend(flushed);
                    }
                }
            }
        }
        unposted
    }

    /// See `Endpoint::prepare_sleep`.
    pub(super) fn prepare_sleep(&mut self) -> Result<BorrowedFd<'_>> {
        self.endpoint.prepare_sleep().map_err(fabric_error)
    }

    pub(super) fn connect(&mut self, info: &RackInfo, now: Nanos) -> Option<PeerId> {
        if let Err(error) = require_same(&self.endpoint, info) {
            warn!(target: "daemon", "{error}");
            return None;
        }
        let addr = info.fabric_addr.parse().ok()?;
        let bytes = u64::from(FABRIC_OUTSTANDING_MAX) * BUFFER_BYTES;
        let buffer = self.endpoint.register(vec![0; bytes as usize]).ok()?;
        match self.endpoint.connect(info.rack, addr, now) {
            Ok(peer) => {
                self.peers.insert(peer, Peer { buffer, batch: Vec::new() });
                Some(peer)
            }
            Err(error) => {
                warn!(target: "daemon", "connecting to rack {}: {error}", info.rack);
                self.endpoint.take(buffer);
                None
            }
        }
    }

    pub(super) fn post(&mut self, peer: PeerId, index: u32, verb: Verb, data: &[u8], bytes: u32) {
        let at = self.peers.get_mut(&peer).expect("posts go to connections that were made");
        let sent = if matches!(verb, Verb::Read(_)) { bytes } else { data.len() as u32 };
        let begin = (u64::from(index) * BUFFER_BYTES) as usize;
        self.endpoint.buffer_mut(at.buffer)[begin..begin + data.len()].copy_from_slice(data);
        at.batch.push((index, verb, sent));
    }

    /// What a READ has brought.
    pub(super) fn read(&self, peer: PeerId, index: u32, bytes: u32) -> &[u8] {
        let peer = self.peers.get(&peer).expect("a READ completed on it");
        let begin = (u64::from(index) * BUFFER_BYTES) as usize;
        &self.endpoint.buffer(peer.buffer)[begin..begin + bytes as usize]
    }
}
