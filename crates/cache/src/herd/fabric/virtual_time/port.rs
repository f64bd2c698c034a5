//! The server's devices: the acceptor's connections, the process that executes WRITEs, each
//! thread's datagrams.

use super::super::connections::{DeviceClient, Devices, Frames, Port};
use super::{SimShared, connect};
use crate::cache::Millis;
use crate::clock::Clock;
use crate::herd::serving::{IncomingRequest, RequestSource};
use rackpool_core::seam::{FabricEvent, Mem, Mutation, Nanos, PeerId, PostError, Verb, WorkStatus};
use rackpool_core::target::{Pieces, TargetMemory};
use rackpool_fabric::TargetSendError;
use rackpool_mem::window::Window;
use rackpool_sim::net::{Connection, EndpointId, Executed};
use rackpool_sim::rng::{Purpose, Rng};
use rackpool_sim::time::Ps;
use rackpool_sim::world::{Ctx, Input, block_on};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The server's end of all connections.
#[derive(Clone)]
pub(super) struct SimPort {
    pub ctx: Ctx,
    pub shared: Rc<SimShared>,
}

impl Port for SimPort {
    type Devices = SimDevices;

    fn send(&self, peer: PeerId, message: &[u8]) -> Result<(), TargetSendError> {
        let sent = self.ctx.send_message(self.shared.listener, peer, message.to_vec());
        match sent {
            Ok(_) => Ok(()),
            Err(PostError::Busy) => Err(TargetSendError::Busy),
            Err(PostError::Down) => Err(TargetSendError::Down),
        }
    }

    fn close(&self, peer: PeerId) {
        self.ctx.close_peer(self.shared.listener, peer);
    }

    fn poll(&self, events: &mut Vec<FabricEvent>) {
        events.append(&mut self.shared.events.borrow_mut());
    }

    fn now_ns(&self) -> Nanos {
        self.ctx.clock_ns()
    }

    fn pause(&self) {
        self.shared.waits.set(self.shared.waits.get() + 1);
        block_on(self.ctx.sleep(Ps::ns(100)));
    }

    fn mutated(&self, mutation: Mutation) -> bool {
        self.shared.mutation == Some(mutation)
    }
}

/// What a client asks for the way by devices with.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SimConnectRequest {
    pub endpoint: u32,
    /// 1 for WRITEs over an unreliable connection, 0 for datagrams.
    pub connects: u32,
}

/// The answer; the endpoints of the threads follow.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SimConnectReply {
    pub key: u64,
}

/// What precedes a request by datagram.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SimDatagramHeader {
    pub client: u32,
    pub window: u32,
    pub key: u64,
}

pub(super) struct SimQueue {
    pub ctx: Ctx,
    pub endpoint: EndpointId,
    /// To be sent under the next doorbell.
    pub outgoing: Vec<(PeerId, Vec<u8>)>,
    pub incoming: VecDeque<Vec<u8>>,
}

pub(super) struct SimDevices {
    pub shared: Rc<SimShared>,
    pub made: u64,
}

impl Devices for SimDevices {
    type Client = SimDeviceClient;
    type Source = SimSource;

    fn join(
        &mut self,
        client: u32,
        frame: &Window,
        call: &[u8],
    ) -> Option<(Vec<SimDeviceClient>, Vec<u8>)> {
        let call = SimConnectRequest::read_from_bytes(call).ok()?;
        let shared = &self.shared;
        let key = shared.rng.borrow_mut().next_u64() | 1;
        if call.connects == 1 {
            shared.connections.borrow_mut().insert(key, (client, frame.clone()));
            self.made += 1;
        }
        let mut said = SimConnectReply { key }.as_bytes().to_vec();
        let (to, is_heard) = (EndpointId(call.endpoint), call.connects == 0);
        let mut transports = Vec::new();
        for lane in shared.lanes.borrow().iter() {
            let SimQueue { ctx, endpoint, .. } = &*lane.borrow();
            said.extend_from_slice(&endpoint.0.to_le_bytes());
            let peer = connect(ctx, *endpoint, to.into(), Connection::Datagram);
            transports.push(SimDeviceClient { lane: lane.clone(), peer, is_heard });
        }
        Some((transports, said))
    }

    fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }

    fn leave(&mut self, client: u32) {
        self.shared.connections.borrow_mut().retain(|_, (owner, _)| *owner != client);
    }
}

/// A client's replies from a thread.
pub(super) struct SimDeviceClient {
    lane: Rc<RefCell<SimQueue>>,
    peer: PeerId,
    is_heard: bool,
}

impl DeviceClient for SimDeviceClient {
    fn is_heard(&self) -> bool {
        self.is_heard
    }

    fn reply(&mut self, message: &[u8]) -> bool {
        let ctx = self.lane.borrow().ctx.clone();
        // Between two requests of a batch.
        ctx.cpu.pass();
        let mtu = ctx.kernel.with_net(|net, _| net.capabilities().mtu_bytes);
        let fits = message.len() <= mtu as usize;
        if fits {
            self.lane.borrow_mut().outgoing.push((self.peer, message.to_vec()));
        }
        fits
    }

    fn ring(&self) {
        let (ctx, endpoint) = (self.lane.borrow().ctx.clone(), self.lane.borrow().endpoint);
        let outgoing = std::mem::take(&mut self.lane.borrow_mut().outgoing);
        for (peer, message) in outgoing {
            // A full queue loses it.
            let _ = ctx.send_message(endpoint, peer, message);
        }
    }
}

/// A thread's requests by datagram, and its clocks.
pub(super) struct SimSource {
    pub lane: Rc<RefCell<SimQueue>>,
    pub shared: Rc<SimShared>,
}

impl RequestSource for SimSource {
    fn poll(&mut self, take: &mut dyn FnMut(&IncomingRequest<'_>)) {
        loop {
            let Some(message) = self.lane.borrow_mut().incoming.pop_front() else { return };
            let Ok((label, image)) = SimDatagramHeader::read_from_prefix(&message) else {
                continue;
            };
            let SimDatagramHeader { client, window, key } = label;
            take(&IncomingRequest { client, window, key, image });
        }
    }

    /// A thread that sleeps here is woken by whatever comes.
    fn arm(&mut self) {}

    fn items_ms(&self, _: &Clock) -> Millis {
        1_000_000 + self.monotonic_ns() / 1_000_000
    }

    fn monotonic_ns(&self) -> u64 {
        self.lane.borrow().ctx.clock_ns()
    }

    fn mutated(&self, mutation: Mutation) -> bool {
        self.shared.mutation == Some(mutation)
    }
}

/// Executes the WRITEs of clients: those of connections as the tcp target does, announced and piece
/// by piece, those of devices a word at a time, in any order.
pub(super) async fn execute(ctx: Ctx, shared: Rc<SimShared>) {
    let Frames { layout, pages, table, cells } = shared.frames.clone();
    let memory = TargetMemory::new(pages, table, cells, layout).expect("memory of this layout");
    let mut rng = Rng::new(shared.seed, Purpose::Schedule, 1 << 20);
    while let Some(input) = ctx.recv(None).await {
        let Input::Execute(token) = input else { continue };
        let (at, data, is_device) = ctx.kernel.with_net(|net, _| {
            let operation = net.operation(token);
            let at = operation.at().expect("clients WRITE");
            assert!(matches!(operation.verb(), Verb::Write(_) | Verb::WriteImm(..)));
            (at, operation.payload().to_vec(), net.arrived_by(token).is_none())
        });
        let executed = if is_device {
            if rng.below(30) == 0 {
                // On its way through the device, while its client may die and another one come.
                ctx.sleep(rng.duration(Ps::us(1), Ps::us(600))).await;
            }
            let frame_of_key = || {
                let connections = shared.connections.borrow();
                connections.get(&at.key.0).map(|(_, frame)| frame.clone())
            };
            let mut words: Vec<usize> = (0..data.len() / 8).collect();
            for last in (1..words.len()).rev() {
                words.swap(last, rng.below(last as u64 + 1) as usize);
            }
            let mut executed = Executed::Done;
            for word in words {
                let Some(frame) = frame_of_key() else {
                    executed = Executed::BadKey;
                    break;
                };
                frame.copy_in(at.offset + 8 * word as u64, &data[8 * word..8 * word + 8]);
                if rng.below(4) == 0 {
                    ctx.sleep(rng.duration(Ps::ns(1), Ps::ns(400))).await;
                }
            }
            executed
        } else {
            let mut pieces = Pieces::new(&memory, at, data.len() as u64);
            let mut done = 0;
            while pieces.left_bytes() > 0 {
                let bytes = (8 * rng.between(1, 16)).min(pieces.left_bytes()) as usize;
                let (here, middle) = (&data[done..done + bytes], bytes / 16 * 8);
                let pause = rng.duration(Ps::ns(1), Ps::us(2));
                pieces.writing(&memory, bytes as u64, |pages, offset| {
                    pages.copy_in(offset, &here[..middle]);
                    // While it is announced.
                    block_on(ctx.sleep(pause));
                    pages.copy_in(offset + middle as u64, &here[middle..]);
                });
                pieces.advance(bytes as u64);
                done += bytes;
            }
            match pieces.status() {
                WorkStatus::Done(_) => Executed::Done,
                _ => Executed::BadKey,
            }
        };
        ctx.executed(token, executed);
    }
}
