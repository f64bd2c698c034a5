//! The server's end: the unreliable connection of each client, and each thread's datagrams.

use super::super::THREAD_RECEIVES;
use super::super::connections::{DeviceClient, Devices};
use super::datagrams::Datagrams;
use super::{
    ConnectReply, ConnectRequest, DATAGRAM_HEADER_BYTES, DatagramHeader, TransportKind, WireAddress,
};
use crate::herd::geometry::Geometry;
use crate::herd::serving::{self, Doorbell, IncomingRequest};
use rackpool_fabric::FabricError;
use rackpool_fabric::verbs::device::Domain;
use rackpool_fabric::verbs::memory::{Region, Rights};
use rackpool_fabric::verbs::queue::{Completions, Depths, Peer, QueuePair, QueuePairKind};
use rackpool_fabric::verbs::{Device, VerbsError};
use rackpool_mem::event::{Interest, Poller, WakeEvent};
use rackpool_mem::log;
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zerocopy::{FromBytes, IntoBytes};

/// What each thread needs to answer a client, and the reply to the client.
pub(in crate::herd) type Joined = (Vec<RdmaClient>, Vec<u8>);

type Shared = Arc<Mutex<Datagrams>>;

fn lock(lane: &Shared) -> MutexGuard<'_, Datagrams> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a client's unreliable connection consists of, in the order in which it ends.
struct UcConnection {
    pair: QueuePair,
    _frame: Region,
    _domain: Domain,
}

/// The devices of the server; owned by the acceptor.
pub(in crate::herd) struct RdmaListener {
    connections: BTreeMap<u32, UcConnection>,
    /// Connected queue pairs that were made and not counted yet.
    made: u64,
    /// Behind the connections, which use it.
    completions: Completions,
    lanes: Vec<Shared>,
    device: Device,
}

impl RdmaListener {
    /// Opens the device, `NAME[:PORT][/GID]`, and a datagram queue pair for each thread. Errors:
    /// `Verbs`.
    pub fn open(device: &str, geometry: &Geometry) -> Result<RdmaListener, FabricError> {
        let device = Device::open(&device.parse()?)?;
        let bytes = (DATAGRAM_HEADER_BYTES as u64).max(8) + geometry.slot_bytes();
        let lanes = (0..geometry.servers).map(|_| {
            let lane = Datagrams::new(&device, bytes, THREAD_RECEIVES)?;
            Ok(Arc::new(Mutex::new(lane)))
        });
        let lanes = lanes.collect::<Result<_, VerbsError>>()?;
        let completions = Completions::new(&device, 16)?;
        Ok(RdmaListener { connections: BTreeMap::new(), made: 0, completions, lanes, device })
    }

    /// Where a thread's datagrams come in; it is woken by its bell. Errors: `Io`.
    pub fn source(&self, server: u32, bell: Arc<Doorbell>) -> Result<DatagramSource, FabricError> {
        DatagramSource::new(Arc::clone(&self.lanes[server as usize]), bell)
    }

    fn try_join(
        &mut self,
        client: u32,
        frame: &Window,
        call: &ConnectRequest,
    ) -> Result<Option<Joined>, VerbsError> {
        let Some(replies) = call.datagrams.address() else { return Ok(None) };
        let kind = match call.kind {
            1 => TransportKind::Connected,
            2 => TransportKind::Datagrams,
            _ => return Ok(None),
        };
        let (mut key, mut connected) = (0, WireAddress::default());
        if kind == TransportKind::Connected {
            let Some(to) = call.connected.address() else { return Ok(None) };
            let domain = Domain::new(&self.device)?;
            let region = Region::of_window(&domain, frame, 0, Rights::Remote { atomics: false })?;
            let depths = Depths { send: 1, receive: 1, pieces: 1, inline_bytes: 0 };
            let kind = QueuePairKind::Unreliable;
            let mut pair = QueuePair::new(&self.device, &domain, &self.completions, kind, depths)?;
            pair.connect(&to)?;
            self.made += 1;
            (key, connected) = (region.remote_key(), pair.address().into());
            let connection = UcConnection { pair, _frame: region, _domain: domain };
            self.connections.insert(client, connection);
        }
        let clients = self.lanes.iter().map(|lane| {
            let to = lock(lane).peer(&replies)?;
            Ok(RdmaClient { lane: Arc::clone(lane), to, kind })
        });
        let clients = clients.collect::<Result<_, VerbsError>>()?;
        let reply = ConnectReply { kind: kind.number(), key, connected };
        let mut said = reply.as_bytes().to_vec();
        for lane in &self.lanes {
            said.extend_from_slice(WireAddress::from(lock(lane).address()).as_bytes());
        }
        Ok(Some((clients, said)))
    }
}

impl Devices for RdmaListener {
    type Client = RdmaClient;
    type Source = Option<DatagramSource>;

    fn join(&mut self, client: u32, frame: &Window, call: &[u8]) -> Option<Joined> {
        let call = ConnectRequest::read_from_bytes(call).ok()?;
        // What a device refuses is refused to the client: it asked for it.
        self.try_join(client, frame, &call).ok().flatten()
    }

    fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }

    fn leave(&mut self, client: u32) {
        if let Some(UcConnection { mut pair, .. }) = self.connections.remove(&client) {
            // It is ended right after; a device that refuses to fail it ends it all the same.
            let _ = pair.fail();
        }
    }
}

/// How a thread's replies reach a client.
pub(in crate::herd) struct RdmaClient {
    /// Before the lane, since it is in the lane's domain.
    to: Peer,
    lane: Shared,
    kind: TransportKind,
}

impl DeviceClient for RdmaClient {
    fn is_heard(&self) -> bool {
        self.kind == TransportKind::Datagrams
    }

    fn reply(&mut self, message: &[u8]) -> bool {
        let mut lane = lock(&self.lane);
        // A full queue loses it, as the network may: a client that waits asks again.
        lane.send(&self.to, [message, &[]])
            || (message.len() <= lane.bytes_max() && !lane.has_failed())
    }

    fn ring(&self) {
        lock(&self.lane).ring();
    }
}

/// Where the datagrams of a thread come in.
pub(in crate::herd) struct DatagramSource {
    lane: Shared,
    stop: Arc<WakeEvent>,
    waker: Option<JoinHandle<()>>,
}

impl DatagramSource {
    fn new(lane: Shared, bell: Arc<Doorbell>) -> Result<DatagramSource, FabricError> {
        let io = |what| move |source: std::io::Error| FabricError::Io { what, source };
        let stop = Arc::new(WakeEvent::new().map_err(io("waking a thread"))?);
        let fd = lock(&lane).fd().try_clone_to_owned().map_err(io("waking a thread"))?;
        let told = Arc::clone(&stop);
        let waker = log::spawn("herd-wake", move || wake(&fd, &told, &bell));
        let waker = waker.map_err(io("a thread"))?;
        Ok(DatagramSource { lane, stop, waker: Some(waker) })
    }
}

impl serving::RequestSource for DatagramSource {
    fn poll(&mut self, take: &mut dyn FnMut(&IncomingRequest<'_>)) {
        lock(&self.lane).poll(&mut |message, _| {
            let Ok((label, image)) = DatagramHeader::read_from_prefix(message) else { return };
            let DatagramHeader { client, window, key } = label;
            take(&IncomingRequest { client, window, key, image });
        });
    }

    fn arm(&mut self) {
        lock(&self.lane).arm();
    }

    fn take_failure(&mut self) -> bool {
        lock(&self.lane).take_failure()
    }
}

impl Drop for DatagramSource {
    fn drop(&mut self) {
        self.stop.notify();
        if let Some(waker) = self.waker.take() {
            // A thread that panicked has said so.
            let _ = waker.join();
        }
    }
}

/// Rings at each event of the device, which comes only if it was armed.
fn wake(fd: &OwnedFd, stop: &WakeEvent, bell: &Doorbell) {
    let Ok(poller) = Poller::new() else { return };
    let added = poller.add(fd, 0, Interest::Edges);
    let added = added.and_then(|()| poller.add(stop, 1, Interest::Read));
    let mut events = Vec::new();
    while added.is_ok() {
        let waited = poller.wait(None, &mut events);
        if events.iter().any(|event| event.token == 1) {
            return;
        }
        if waited.is_ok() {
            bell.notify();
        }
    }
}
