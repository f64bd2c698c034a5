//! The client's end: a tcp endpoint, beside which WRITEs and replies go by devices.

use super::super::messages::BELL_BYTES;
use super::super::transport::{Frame, ask, send};
use super::super::{Wire, client_receives};
use super::datagrams::{Datagrams, SendQueue};
use super::{
    ConnectReply, ConnectRequest, DATAGRAM_HEADER_BYTES, DatagramHeader, TransportKind, WireAddress,
};
use crate::herd::error::{Error, Result};
use crate::herd::geometry::Geometry;
use rackpool_core::error::DeathCause;
use rackpool_core::seam::{
    BufId, Capabilities, Fabric, FabricEvent, Mem, Nanos, PeerId, PostError, RemoteAddr, Sge, Verb,
    WorkRequest,
};
use rackpool_fabric::secret::Secret;
use rackpool_fabric::tcp::TcpEndpoint;
use rackpool_fabric::verbs::queue::{Operation, Peer, QueuePairKind};
use rackpool_fabric::verbs::{Device, VerbsError};
use rackpool_fabric::{FabricError, LocalBuffers};
use rackpool_mem::process::monotonic_ns;
use rustix::event::{PollFd, PollFlags, Timespec};
use zerocopy::{FromBytes, IntoBytes};

/// Longest sleep: the tcp connection has to be polled.
const SLEEP_NS_MAX: Nanos = 50_000_000;

/// How a client connects over devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Windows at each server thread; 0 for as many as the server gives.
    pub windows: u32,
    /// Secret for mutual authentication; without it only loopback addresses are allowed.
    pub secret: Option<Secret>,
    pub kind: TransportKind,
    /// The device, `NAME[:PORT][/GID]`; the first one with an active port if it is empty.
    pub device: String,
}

/// A tcp connection, and beside it the devices' way when it is there.
pub struct Rdma {
    endpoint: TcpEndpoint,
    way: Option<DevicePath>,
    lost: u64,
}

/// The way by devices; what uses something is dropped before it.
struct DevicePath {
    requests: Requests,
    replies: Datagrams,
    sources: Vec<u32>,
    frame: Frame,
    bells: BufId,
}

impl DevicePath {
    /// Whether a queue pair has failed, and with it the path.
    fn has_failed(&self) -> bool {
        let requests = match &self.requests {
            Requests::Connected(one) => one.queue.ends.has_failed(),
            Requests::Datagrams(_) => false,
        };
        requests || self.replies.has_failed()
    }

    fn take_failure(&mut self) -> bool {
        let requests = match &mut self.requests {
            Requests::Connected(one) => one.queue.ends.take_failure(),
            Requests::Datagrams(_) => false,
        };
        self.replies.take_failure() || requests
    }
}

enum Requests {
    Connected(Box<Connected>),
    /// The ways to the server's threads, used by the queue pair of the replies.
    Datagrams(Vec<Peer>),
}

/// An unreliable connection.
struct Connected {
    queue: SendQueue,
    /// The key of the frame.
    key: u32,
}

impl Connected {
    fn new(device: &Device, geometry: &Geometry) -> std::result::Result<Connected, VerbsError> {
        let queue = SendQueue::new(device, QueuePairKind::Unreliable, 1, geometry.bytes())?;
        Ok(Connected { queue, key: 0 })
    }

    /// Adds the WRITE of bytes that lie at `at` in the frame; `false` if the queue is full.
    fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        if !self.queue.has_room() {
            return false;
        }
        self.queue.memory.copy_in(at, bytes);
        let write = Operation::Write { address: at, key: self.key };
        self.queue.push(&write, at, bytes.len() as u64);
        true
    }
}

impl Rdma {
    pub(in crate::herd) fn new(endpoint: TcpEndpoint) -> Rdma {
        Rdma { endpoint, way: None, lost: 0 }
    }

    /// Datagrams from queue pairs that do not belong to the server.
    pub fn strays(&self) -> u64 {
        self.lost
    }

    /// Receives that are posted for replies; 0 before the way is there.
    pub fn receives(&self) -> u32 {
        self.way.as_ref().map_or(0, |way| way.replies.receives())
    }

    /// Asks the server for the way, and takes it. Blocks for 5 s at most. Errors: `Fabric` of a
    /// device that refuses, or of a server without one; `Gone`, `Silent`.
    pub(in crate::herd) fn take_way(
        &mut self,
        peer: PeerId,
        frame: Frame,
        options: &Options,
    ) -> Result<()> {
        let geometry = frame.geometry;
        let device = Device::open(&options.device.parse().map_err(FabricError::from)?)
            .map_err(FabricError::from)?;
        let bytes = geometry.slot_bytes() + DATAGRAM_HEADER_BYTES as u64;
        let receives = client_receives(&geometry);
        let replies = Datagrams::new(&device, bytes, receives).map_err(FabricError::from)?;
        let connected = match options.kind {
            TransportKind::Connected => {
                Some(Connected::new(&device, &geometry).map_err(FabricError::from)?)
            }
            TransportKind::Datagrams => None,
        };
        let call = ConnectRequest {
            kind: options.kind.number(),
            reserved: 0,
            connected: connected
                .as_ref()
                .map_or(WireAddress::default(), |one| one.queue.pair.address().into()),
            datagrams: replies.address().into(),
        };
        let said = ask(&mut self.endpoint, peer, call.as_bytes())?;
        let corrupt = || Error::Corrupt { what: "the answer to a call" };
        let (reply, places) = ConnectReply::read_from_prefix(&said).map_err(|_| corrupt())?;
        if reply.kind != call.kind {
            return Err(Error::NoDevices);
        }
        let places = places.as_chunks::<{ size_of::<WireAddress>() }>();
        if places.0.len() != geometry.servers as usize || !places.1.is_empty() {
            return Err(corrupt());
        }
        let threads =
            places.0.iter().map(|bytes| WireAddress::read_from_bytes(bytes).ok()?.address());
        let threads: Vec<_> = threads.collect::<Option<_>>().ok_or_else(corrupt)?;
        let sources = threads.iter().map(|address| address.number).collect();
        let requests = match connected {
            Some(mut one) => {
                let to = reply.connected.address().ok_or_else(corrupt)?;
                one.queue.pair.connect(&to).map_err(FabricError::from)?;
                one.key = reply.key;
                Requests::Connected(Box::new(one))
            }
            None => {
                let peers = threads.iter().map(|address| replies.peer(address));
                let peers = peers.collect::<std::result::Result<_, _>>();
                Requests::Datagrams(peers.map_err(FabricError::from)?)
            }
        };
        let bells = (0..geometry.servers).flat_map(u32::to_le_bytes).collect();
        let bells = LocalBuffers::register(&mut self.endpoint, bells)?;
        self.way = Some(DevicePath { requests, replies, sources, frame, bells });
        Ok(())
    }

    /// Posts one WRITE by the way. What does not fit into a packet goes by tcp.
    fn write(
        &mut self,
        peer: PeerId,
        work: &WorkRequest<'_>,
        at: RemoteAddr,
        bell: Option<u32>,
    ) -> std::result::Result<(), PostError> {
        let Rdma { endpoint, way, .. } = self;
        let way = way.as_mut().expect("it is there");
        let local = &work.local[0];
        let bytes = &endpoint.buffer(local.buf)[local.offset as usize..][..local.bytes as usize];
        let in_frame = at.offset - way.frame.at.offset;
        let is_sent = match &mut way.requests {
            Requests::Connected(one) => one.write(in_frame, bytes),
            Requests::Datagrams(threads) => {
                let geometry = way.frame.geometry;
                let slot = (in_frame / geometry.slot_bytes()) as u32;
                let (server, window) = (slot / geometry.windows, slot % geometry.windows);
                let (client, key) = (way.frame.client, way.frame.at.key.0);
                let label = DatagramHeader { client, window, key };
                if DATAGRAM_HEADER_BYTES + bytes.len() > way.replies.bytes_max() {
                    // Of a thread that does not look into slots by itself.
                    let verb = Verb::WriteImm(at, server);
                    let work = WorkRequest { verb, ..*work };
                    return endpoint.post(peer, &[work]).map_err(|(_, error)| error);
                }
                way.replies.send(&threads[server as usize], [label.as_bytes(), bytes])
            }
        };
        if !is_sent {
            return Err(PostError::Busy);
        }
        if let (Requests::Connected(_), Some(server)) = (&way.requests, bell) {
            let (offset, bytes) = (u64::from(server) * BELL_BYTES as u64, BELL_BYTES as u64);
            return send(endpoint, peer, Sge { buf: way.bells, offset, bytes });
        }
        Ok(())
    }

    /// Rings the doorbell of what was posted by the way.
    fn ring(&mut self) -> std::result::Result<(), PostError> {
        let Some(way) = &mut self.way else { return Ok(()) };
        way.replies.ring();
        if let Requests::Connected(one) = &mut way.requests {
            one.queue.ring();
        }
        if way.has_failed() { Err(PostError::Down) } else { Ok(()) }
    }
}

impl Fabric for Rdma {
    fn capabilities(&self) -> Capabilities {
        self.endpoint.capabilities()
    }

    fn post(
        &mut self,
        peer: PeerId,
        batch: &[WorkRequest<'_>],
    ) -> std::result::Result<(), (usize, PostError)> {
        if self.way.is_none() {
            return self.endpoint.post(peer, batch);
        }
        let mut posted = Ok(());
        for (index, work) in batch.iter().enumerate() {
            let one = match work.verb {
                Verb::Write(at) => self.write(peer, work, at, None),
                Verb::WriteImm(at, bell) => self.write(peer, work, at, Some(bell)),
                _ => self.endpoint.post(peer, &[*work]).map_err(|(_, error)| error),
            };
            if let Err(error) = one {
                posted = Err((index, error));
                break;
            }
        }
        self.ring().map_err(|error| (0, error))?;
        posted
    }

    fn poll(&mut self, now: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        let before = events.len();
        if let Some(way) = &mut self.way {
            if let Requests::Connected(one) = &mut way.requests {
                one.queue.reap();
            }
            let (sources, strays) = (&way.sources, &mut self.lost);
            way.replies.poll(&mut |message, source| {
                if sources.contains(&source) {
                    let message = message.to_vec();
                    events.push(FabricEvent::Received { peer: PeerId(0), message });
                } else {
                    *strays += 1;
                }
            });
            if way.take_failure() {
                // Nothing comes by it any more: a client that waits has to connect anew.
                let cause = DeathCause::Closed;
                events.push(FabricEvent::Closed { peer: PeerId(0), cause });
            }
        }
        self.endpoint.poll(now, events);
        events.len() - before
    }
}

impl Wire for Rdma {
    fn register(&mut self, bytes: Vec<u8>) -> std::result::Result<BufId, FabricError> {
        LocalBuffers::register(&mut self.endpoint, bytes)
    }

    fn buffer_mut(&mut self, buf: BufId) -> &mut [u8] {
        LocalBuffers::buffer_mut(&mut self.endpoint, buf)
    }

    fn wait(&mut self, deadline: Nanos, events: &mut Vec<FabricEvent>) -> usize {
        if self.way.is_none() {
            return Wire::wait(&mut self.endpoint, deadline, events);
        }
        let before = events.len();
        loop {
            if let Some(way) = &mut self.way {
                way.replies.arm();
            }
            // Completions that came before the device was armed raise no event.
            let now = monotonic_ns();
            if self.poll(now, events) > 0 || now >= deadline {
                return events.len() - before;
            }
            let ns = deadline.saturating_sub(now).min(SLEEP_NS_MAX);
            let timeout = Timespec { tv_sec: 0, tv_nsec: ns as i64 };
            let Rdma { endpoint, way, .. } = self;
            let own = endpoint.prepare_sleep();
            let mut fds = vec![PollFd::from_borrowed_fd(own, PollFlags::IN)];
            if let Some(way) = way {
                fds.push(PollFd::from_borrowed_fd(way.replies.fd(), PollFlags::IN));
            }
            // An interrupted sleep is a short one.
            let _ = rustix::event::poll(&mut fds, Some(&timeout));
        }
    }
}
