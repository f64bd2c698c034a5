//! A client's endpoint: a connection, and beside it the way by devices that it has asked for.

use super::super::messages::BELL_BYTES;
use super::super::transport::{Frame, ask, send};
use super::super::{Wire, client_receives};
use super::port::{SimConnectReply, SimConnectRequest, SimDatagramHeader};
use super::{SimShared, SimTransportKind, add_endpoint, connect};
use crate::herd::error::{Error, Result};
use rackpool_core::addr::Generation;
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Nanos, PeerId, PostError, RemoteAddr, Sge, Verb,
    WorkRequest,
};
use rackpool_fabric::FabricError;
use rackpool_sim::net::{Connection, Down, EndpointId, GRH_BYTES};
use rackpool_sim::time::Ps;
use rackpool_sim::world::{Ctx, Input, block_on};
use std::rc::Rc;
use zerocopy::{FromBytes, IntoBytes};

enum SimPath {
    Connected { peer: PeerId, key: u64 },
    Datagrams(Vec<PeerId>),
}

pub(super) struct SimWire {
    ctx: Ctx,
    shared: Rc<SimShared>,
    endpoint: EndpointId,
    peer: PeerId,
    /// Registered buffers, as their owner sees them.
    buffers: Vec<(BufId, Vec<u8>)>,
    way: Option<(SimPath, Frame, BufId)>,
    connected: Vec<PeerId>,
}

impl SimWire {
    /// Connects; `None` if no answer comes.
    pub fn open(ctx: Ctx, shared: Rc<SimShared>) -> Option<(SimWire, PeerId)> {
        let endpoint = add_endpoint(&ctx.kernel, ctx.host, 0);
        ctx.kernel.route_endpoint(endpoint, ctx.id);
        let peer = connect(&ctx, endpoint, shared.listener.into(), Connection::Stream);
        let (buffers, connected) = (Vec::new(), Vec::new());
        let mut wire = SimWire { ctx, shared, endpoint, peer, buffers, way: None, connected };
        wire.await_connection(peer).then_some((wire, peer))
    }

    fn await_connection(&mut self, peer: PeerId) -> bool {
        let deadline = self.ctx.now() + Ps::ms(5_000);
        let mut events = Vec::new();
        while !self.connected.contains(&peer) {
            let input = block_on(self.ctx.recv(Some(deadline)));
            let Some(input) = input else { return false };
            self.take(input, &mut events);
            if events.drain(..).any(|event| matches!(event, FabricEvent::Closed { .. })) {
                return false;
            }
        }
        true
    }

    /// As `Rdma::take_way`.
    pub fn take_way(&mut self, frame: Frame, transport_kind: SimTransportKind) -> Result<()> {
        let geometry = frame.geometry;
        let receives = client_receives(&geometry);
        let number = u32::from(transport_kind == SimTransportKind::Connected);
        let call = SimConnectRequest { endpoint: self.endpoint.0, connects: number };
        self.ctx.kernel.with_net(|net, _| net.post_receives(self.endpoint, receives));
        let said = ask(self, self.peer, call.as_bytes())?;
        let Ok((consent, threads)) = SimConnectReply::read_from_prefix(&said) else {
            return Err(Error::NoDevices);
        };
        let way = if transport_kind == SimTransportKind::Connected {
            let node = self.ctx.kernel.node_of(self.shared.server);
            let peer = connect(&self.ctx, self.endpoint, node.into(), Connection::Unreliable);
            if !self.await_connection(peer) {
                return Err(Error::Gone);
            }
            SimPath::Connected { peer, key: consent.key }
        } else {
            let threads = threads.as_chunks::<4>().0.iter().map(|bytes| {
                let thread = EndpointId(u32::from_le_bytes(*bytes));
                connect(&self.ctx, self.endpoint, thread.into(), Connection::Datagram)
            });
            SimPath::Datagrams(threads.collect())
        };
        let bells = (0..geometry.servers).flat_map(u32::to_le_bytes).collect();
        let bells = self.register(bells).map_err(Error::from)?;
        self.way = Some((way, frame, bells));
        Ok(())
    }

    fn take(&mut self, input: Input, events: &mut Vec<FabricEvent>) {
        match input {
            Input::Fabric(FabricEvent::Completed { id, .. })
                if self.ctx.sent(self.endpoint, id) => {}
            // A WRITE without acknowledgement does not report that its key is no more.
            Input::Fabric(event @ FabricEvent::Completed { peer, .. }) if peer == self.peer => {
                events.push(event);
            }
            Input::Fabric(FabricEvent::Connected { peer }) => self.connected.push(peer),
            Input::Fabric(FabricEvent::Received { peer, mut message }) => {
                if peer != self.peer {
                    message.drain(..GRH_BYTES);
                    self.ctx.kernel.with_net(|net, _| net.post_receives(self.endpoint, 1));
                }
                events.push(FabricEvent::Received { peer: self.peer, message });
            }
            Input::Fabric(FabricEvent::Closed { peer, cause }) if peer == self.peer => {
                events.push(FabricEvent::Closed { peer, cause });
            }
            _ => {}
        }
    }

    fn shadow(&mut self, buf: BufId) -> &mut Vec<u8> {
        let found = self.buffers.iter_mut().find(|(id, _)| *id == buf);
        &mut found.expect("it is registered").1
    }

    fn post_one(
        &mut self,
        peer: PeerId,
        work: &WorkRequest<'_>,
    ) -> std::result::Result<(), PostError> {
        for piece in work.local {
            let (from, to) = (piece.offset as usize, (piece.offset + piece.bytes) as usize);
            let bytes = self.shadow(piece.buf)[from..to].to_vec();
            self.ctx.kernel.write_buffer(self.endpoint, piece, 0, &bytes);
        }
        let posted = self.ctx.post_work(self.endpoint, peer, &[*work]);
        self.ctx.cpu.pass();
        posted.map_err(|(_, error)| error)
    }

    /// As `Rdma::write`.
    fn write(
        &mut self,
        work: &WorkRequest<'_>,
        at: RemoteAddr,
        bell: Option<u32>,
    ) -> std::result::Result<(), PostError> {
        let (way, frame, bells) = self.way.as_ref().expect("it is there");
        let (frame, bells) = (*frame, *bells);
        let in_frame = at.offset - frame.at.offset;
        match way {
            SimPath::Connected { peer, key } => {
                let at = RemoteAddr { offset: in_frame, key: Generation(*key) };
                let (peer, write) = (*peer, WorkRequest { verb: Verb::Write(at), ..*work });
                self.post_one(peer, &write)?;
                let Some(server) = bell else { return Ok(()) };
                let (offset, bytes) = (u64::from(server) * BELL_BYTES as u64, BELL_BYTES as u64);
                send(self, self.peer, Sge { buf: bells, offset, bytes })
            }
            SimPath::Datagrams(threads) => {
                let slot = (in_frame / frame.geometry.slot_bytes()) as u32;
                let (server, window) =
                    (slot / frame.geometry.windows, slot % frame.geometry.windows);
                let thread = threads[server as usize];
                let label = SimDatagramHeader { client: frame.client, window, key: frame.at.key.0 };
                let piece = work.local[0];
                let (from, bytes) = (piece.offset as usize, piece.bytes as usize);
                let mut message = label.as_bytes().to_vec();
                message.extend_from_slice(&self.shadow(piece.buf)[from..from + bytes]);
                self.ctx.send_message(self.endpoint, thread, message).map(drop)
            }
        }
    }
}

impl Fabric for SimWire {
    fn capabilities(&self) -> Capabilities {
        self.ctx.kernel.with_net(|net, _| net.capabilities())
    }

    fn post(
        &mut self,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)> {
        for (index, work) in batch.iter().enumerate() {
            let posted = match work.verb {
                Verb::Write(at) if self.way.is_some() => self.write(work, at, None),
                Verb::WriteImm(at, bell) if self.way.is_some() => self.write(work, at, Some(bell)),
                _ => self.post_one(peer, work),
            };
            posted.map_err(|error| (index, error))?;
        }
        Ok(())
    }

    fn poll(&mut self, _: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        while self.ctx.has_input() {
            let input = block_on(self.ctx.recv(None)).expect("it is there");
            self.take(input, events);
        }
        events.len() - before
    }
}

impl Wire for SimWire {
    fn register(&mut self, bytes: Vec<u8>) -> std::result::Result<BufId, FabricError> {
        let buf = self.ctx.kernel.register(self.endpoint, bytes.clone());
        self.buffers.push((buf, bytes));
        Ok(buf)
    }

    fn buffer_mut(&mut self, buf: BufId) -> &mut [u8] {
        self.shadow(buf)
    }

    fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let count = self.poll(0, events);
        if count > 0 {
            return count;
        }
        match block_on(self.ctx.recv(Some(Ps::ns(deadline)))) {
            Some(input) => {
                self.take(input, events);
                self.poll(0, events)
            }
            None => 0,
        }
    }

    fn now_ns(&self) -> Nanos {
        self.ctx.clock_ns()
    }
}

impl Drop for SimWire {
    fn drop(&mut self) {
        self.ctx.kernel.close_endpoint(self.endpoint, Down::Crash);
    }
}
