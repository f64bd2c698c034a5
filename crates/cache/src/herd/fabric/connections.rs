//! The acceptor of a fabric: the frames that clients write to, connects and disconnects. Its thread
//! sleeps unless a client connects, disconnects or rings. It knows neither sockets nor clocks, and
//! runs in virtual time as well.
//!
//! Ordering rule of a frame: revoked (its table word changes, and the fabric's thread has left it)
//! when its connection ends; dropped by every serving thread; cleared; given out under another key.

use super::super::admission::{Acceptor, Admission, HELLO_POLL, HELLO_WITHIN};
use super::super::counters::HerdCounter;
use super::super::engine::{ClientSlots, Replied};
use super::super::error::{Result, io_error};
use super::super::geometry::{FABRIC_GUESTS_MAX, Geometry, HEAD_BYTES};
use super::super::handshake::{Hello, Verdict, Welcome};
use super::super::message::Head;
use super::super::options::FabricServerOptions;
use super::super::serving::{ClientTransport, IncomingRequest, RequestSource};
use super::super::slot::SlotFormat;
use super::messages::{self, BELL_BYTES, FabricReply, Grant, REPLY_BYTES};
use super::rdma;
use rackpool_core::addr::{FrameIndex, PageGeometry};
use rackpool_core::layout::{RegionLayout, table_word};
use rackpool_core::seam::{FabricEvent, Mem, Mutation, Nanos, PeerId};
use rackpool_fabric::{Target, TargetOptions, TargetSendError, tcp};
use rackpool_mem::event::{Poller, Readiness, WakeEvent};
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::process::random_u64;
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// How long a thread watches on when no request comes: many round trips, so that a client that asks
/// one thing after the other does not ring each time; then it sleeps, and costs nothing.
const LINGER: Duration = Duration::from_millis(1);
/// Keys are numbered from a random number below this on: a key of another server is none here.
const KEY_BITS: u32 = 48;

/// The server's end of its clients' connections. No call but [`Port::pause`] blocks.
pub(in super::super) trait Port: Clone + 'static {
    /// Devices that clients may use beside it.
    type Devices: Devices;

    /// Sends a message, behind those before it.
    fn send(&self, peer: PeerId, message: &[u8]) -> Result<(), TargetSendError>;

    /// Ends a connection; [`FabricEvent::Closed`] follows.
    fn close(&self, peer: PeerId);

    /// Appends what has happened, in order.
    fn poll(&self, events: &mut Vec<FabricEvent>);

    /// The time of a clock that never goes back, nanoseconds.
    fn now_ns(&self) -> Nanos;

    /// Lets the thread that executes WRITEs go on. Blocks for a moment.
    fn pause(&self);

    /// As [`Probe::mutated`](rackpool_core::seam::Probe::mutated).
    fn mutated(&self, _: Mutation) -> bool {
        false
    }
}

/// Devices by which requests and replies travel beside the connections.
pub(in super::super) trait Devices: 'static {
    /// How a thread's replies reach a client.
    type Client: DeviceClient;
    /// Where a thread's requests come in.
    type Source: RequestSource;

    /// Lets a client in by the way that its message asks for: what each thread needs to answer it,
    /// and what it is told. `frame` is its request slots.
    fn join(
        &mut self,
        client: u32,
        frame: &Window,
        on_connect_request: &[u8],
    ) -> Option<(Vec<Self::Client>, Vec<u8>)>;

    /// How many connected queue pairs were made since this was asked last.
    fn take_made(&mut self) -> u64;

    /// A client has ended: when this returns, nothing is written into its frame any more.
    fn leave(&mut self, client: u32);
}

/// A client that came by devices, at a thread.
pub(in super::super) trait DeviceClient: 'static {
    /// Whether requests come by datagram, so that there is nothing to watch or to ring.
    fn is_heard(&self) -> bool;

    /// Puts a reply behind those that [`DeviceClient::ring`] sends; `false` if it does not fit.
    fn reply(&mut self, message: &[u8]) -> bool;

    /// Sends the replies of a batch.
    fn ring(&self);
}

impl Port for Arc<Target> {
    type Devices = rdma::RdmaListener;

    fn send(&self, peer: PeerId, message: &[u8]) -> Result<(), TargetSendError> {
        Target::send(self, peer, message)
    }

    fn close(&self, peer: PeerId) {
        Target::close(self, peer);
    }

    fn poll(&self, events: &mut Vec<FabricEvent>) {
        Target::poll(self, events);
    }

    fn now_ns(&self) -> Nanos {
        monotonic_ns()
    }

    fn pause(&self) {
        std::thread::yield_now();
    }
}

/// A client at a serving thread: its slots, and the connection that its replies go out by.
pub(in super::super) struct FabricClient<P: Port = Arc<Target>> {
    port: P,
    peer: PeerId,
    server: u32,
    requests: Window,
    replies: Window,
    slot_bytes: u64,
    key: u64,
    message: Vec<u8>,
    /// The way by devices, if it has taken that.
    rdma: Option<<P::Devices as Devices>::Client>,
}

impl<P: Port> FabricClient<P> {
    fn is_heard(&self) -> bool {
        self.rdma.as_ref().is_some_and(DeviceClient::is_heard)
    }
}

impl<P: Port> ClientTransport for FabricClient<P> {
    type Source = <P::Devices as Devices>::Source;
    const FORM: SlotFormat = SlotFormat::Sealed;
    const LINGER: Duration = LINGER;
    const WAKES_LATER: bool = false;

    fn slots(&self) -> ClientSlots {
        ClientSlots::new(self.requests.clone(), self.replies.clone())
    }

    fn accept(&self, request: &IncomingRequest<'_>) -> bool {
        let IncomingRequest { window, key, image, .. } = request;
        let bytes = image.len() as u64;
        let end = (u64::from(*window) + 1) * self.slot_bytes;
        let fits = end <= self.requests.bytes()
            && (HEAD_BYTES as u64..=self.slot_bytes).contains(&bytes)
            && bytes.is_multiple_of(8);
        let is_own = fits && *key == self.key && self.is_heard();
        if is_own {
            self.requests.copy_in(end - bytes, image);
        }
        is_own
    }

    fn begin_to_watch(&self) {}

    /// For what it writes until it learns of this it rings. So slots are not looked at again: what
    /// is in them may never be a whole message.
    fn end_to_watch(&self, _: impl FnOnce() -> bool) -> bool {
        if self.is_heard() || self.port.mutated(Mutation::StopWatchUntold) {
            return true;
        }
        let reply = FabricReply { server: self.server, window: 0, is_watched: false, head: None };
        let mut message = Vec::with_capacity(REPLY_BYTES);
        reply.write(&mut message);
        self.port.send(self.peer, &message) != Err(TargetSendError::Busy)
    }

    fn reply(&mut self, replied: Replied, is_watched: bool) {
        let Replied { window, place: (at, bytes), .. } = replied;
        let is_watched = is_watched || self.is_heard();
        let head = Head::of_words([0, 8, 16].map(|word| self.replies.load(at + word)));
        let reply = FabricReply { server: self.server, window, is_watched, head: Some(head) };
        self.message.clear();
        reply.write(&mut self.message);
        let value_at = self.message.len();
        self.message.resize(value_at + bytes as usize - HEAD_BYTES, 0);
        self.replies.copy_out(at + HEAD_BYTES as u64, &mut self.message[value_at..]);
        if let Some(rdma) = &mut self.rdma
            && rdma.reply(&self.message)
        {
            return;
        }
        // A connection with too many unread replies, or without an end: a client that still waits
        // asks again.
        let _ = self.port.send(self.peer, &self.message);
    }

    fn settle(&self) {}

    /// Of a batch, the first one's does it for all.
    fn wake(&self) {
        if let Some(rdma) = &self.rdma {
            rdma.ring();
        }
    }
}

/// A connection that was let in.
#[derive(Clone, Copy)]
struct AdmittedClient {
    client: u32,
    windows: u32,
}

/// Admits clients, and handles their end.
pub(in super::super) struct ConnectionManager<P: Port> {
    port: P,
    /// Before the pages, into which devices write.
    rdma: Option<P::Devices>,
    memory: Frames,
    admission: Admission<FabricClient<P>>,
    /// Peers that have connected and were not let in yet, since when.
    pending: BTreeMap<PeerId, Nanos>,
    clients: BTreeMap<PeerId, AdmittedClient>,
    /// Frames that serving threads may still touch.
    leaving: Vec<(u32, Arc<()>)>,
    key: u64,
    events: Vec<FabricEvent>,
}

/// The memory of a target: a frame of pages for each client, their keys, and the cell in which the
/// fabric's thread announces the frame that it writes.
#[derive(Clone)]
pub(in super::super) struct Frames {
    pub layout: RegionLayout,
    pub pages: Window,
    pub table: Window,
    pub cells: Window,
}

impl Frames {
    /// For so many clients. Errors: of the system.
    pub fn new(geometry: &Geometry, clients: u32) -> std::io::Result<Frames> {
        let pages = PageGeometry::from_page_bytes(geometry.bytes().next_power_of_two().max(4096))
            .expect("bounded slots fit a page");
        let layout = RegionLayout { pages, frame_count: clients };
        let pages = Window::private(layout.pages_bytes())?;
        let (table, cells) = (Window::heap(layout.table_bytes()), Window::heap(64));
        Ok(Frames { layout, pages, table, cells })
    }
}

/// The acceptor of the tcp fabric.
pub(in super::super) type FabricAcceptor = ConnectionManager<Arc<Target>>;

impl FabricAcceptor {
    /// Starts the target; `waker` is notified when it has something.
    pub(in super::super) fn start(
        options: &FabricServerOptions,
        waker: Arc<WakeEvent>,
        rdma: Option<rdma::RdmaListener>,
        admission: Admission<FabricClient>,
    ) -> Result<FabricAcceptor> {
        let connections_max = options.clients + FABRIC_GUESTS_MAX;
        let memory = Frames::new(&admission.geometry, options.clients);
        let memory = memory.map_err(io_error("memory"))?;
        let Frames { layout, pages, table, cells } = memory.clone();
        let target = tcp::start_target(TargetOptions {
            connections_max,
            // All clients of a run may be of one host.
            address_max: Some(connections_max),
            secret: options.secret.clone(),
            waker: Arc::new(move || waker.notify()),
            ..TargetOptions::new(options.listen, layout, pages, table, cells)
        })?;
        let key = random_u64().map_err(io_error("the system's random numbers"))?;
        Ok(ConnectionManager::new(Arc::new(target), rdma, memory, admission, key))
    }

    pub(in super::super) fn port(&self) -> &Target {
        &self.port
    }
}

impl Acceptor for FabricAcceptor {
    fn poll_after(&self) -> Option<Duration> {
        ConnectionManager::poll_after(self)
    }

    fn poll_once(&mut self, _: &Poller, _: &[Readiness]) {
        self.poll_events();
    }
}

impl<P: Port> ConnectionManager<P> {
    /// Of a port with clients that write into `memory`; `key` is random: where the keys of frames
    /// begin.
    pub(in super::super) fn new(
        port: P,
        rdma: Option<P::Devices>,
        memory: Frames,
        admission: Admission<FabricClient<P>>,
        key: u64,
    ) -> ConnectionManager<P> {
        ConnectionManager {
            port,
            rdma,
            memory,
            admission,
            pending: BTreeMap::new(),
            clients: BTreeMap::new(),
            leaving: Vec::new(),
            key: key >> (u64::BITS - KEY_BITS),
            events: Vec::new(),
        }
    }

    /// When it has to look although no event comes.
    pub(in super::super) fn poll_after(&self) -> Option<Duration> {
        (!self.pending.is_empty()).then_some(HELLO_POLL)
    }

    pub(in super::super) fn poll_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.port.poll(&mut events);
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
        self.close_pending();
    }

    fn on_event(&mut self, event: FabricEvent) {
        match event {
            FabricEvent::Connected { peer } => {
                self.pending.insert(peer, self.port.now_ns());
            }
            FabricEvent::Received { peer, message } => match self.clients.get(&peer) {
                Some(&admitted) => match message.len() {
                    BELL_BYTES => self.ring(peer, admitted.client, messages::read_bell(&message)),
                    _ => self.on_connect_request(peer, admitted, &message),
                },
                None if self.pending.contains_key(&peer) => self.on_hello(peer, &message),
                None => {}
            },
            FabricEvent::ReceivedImm { peer, imm } => {
                // A peer that was not let in has no key, so nothing that it writes is executed.
                if let Some(client) = self.clients.get(&peer) {
                    self.ring(peer, client.client, Some(imm));
                }
            }
            FabricEvent::Closed { peer, .. } => self.on_closed(peer),
            FabricEvent::Completed { .. } => {}
        }
    }

    /// A client rings for a serving thread.
    fn ring(&self, peer: PeerId, client: u32, server: Option<u32>) {
        if !server.is_some_and(|server| self.admission.ring(client, server)) {
            // An invalid message.
            self.port.close(peer);
        }
    }

    fn on_hello(&mut self, peer: PeerId, message: &[u8]) {
        let message = match Hello::read(message).and_then(|hello| self.admit(peer, &hello)) {
            Ok((welcome, grant)) => {
                self.pending.remove(&peer);
                let Welcome { client, windows, .. } = welcome;
                self.clients.insert(peer, AdmittedClient { client, windows });
                self.admission.count(HerdCounter::Joined, 1);
                [welcome.as_bytes(), grant.as_bytes()].concat()
            }
            Err(verdict) => {
                let windows = self.admission.geometry.windows;
                self.admission.refusal(verdict, windows).as_bytes().to_vec()
            }
        };
        // A client that is gone already is heard of next.
        let _ = self.port.send(peer, &message);
    }

    /// Gives a frame to a client and tells the serving threads of it.
    fn admit(&mut self, peer: PeerId, hello: &Hello) -> Result<(Welcome, Grant), Verdict> {
        let geometry = self.admission.geometry_of(hello);
        if geometry.windows > self.admission.geometry.windows {
            return Err(Verdict::Windows);
        }
        let (admission, is_early) =
            (&mut self.admission, self.port.mutated(Mutation::GiveFrameEarly));
        // Acquire, by `get_mut`: the threads that have dropped it do not touch the frame any more.
        self.leaving.retain_mut(|(client, done)| {
            let has_left = Arc::get_mut(done).is_some() || is_early;
            if has_left {
                admission.give_back(*client);
            }
            !has_left
        });
        let client = self.admission.take_number()?;
        let frame = FrameIndex(client);
        let Frames { layout, pages, table, .. } = &self.memory;
        let offset = layout.frame_offset(frame);
        if !self.port.mutated(Mutation::GiveFrameUncleared) {
            pages.zero(offset, layout.pages.page_bytes());
        }
        self.key += 1;
        table.store(table_word(frame), self.key);
        let admitted = AdmittedClient { client, windows: geometry.windows };
        let transports = (0..).map(|server| self.transport(peer, admitted, server, None));
        self.admission.attach(client, transports);
        Ok((self.admission.welcome(client, geometry), Grant { offset, key: self.key }))
    }

    /// A client at the thread number `server`.
    fn transport(
        &self,
        peer: PeerId,
        AdmittedClient { client, windows }: AdmittedClient,
        server: u32,
        rdma: Option<<P::Devices as Devices>::Client>,
    ) -> FabricClient<P> {
        let geometry = Geometry { windows, ..self.admission.geometry };
        let bytes = u64::from(windows) * geometry.slot_bytes();
        let Frames { layout, pages, table, .. } = &self.memory;
        let at = layout.frame_offset(FrameIndex(client)) + geometry.offset(server, 0, 0);
        FabricClient {
            port: self.port.clone(),
            peer,
            server,
            requests: pages.slice(at, bytes),
            replies: Window::heap(bytes),
            slot_bytes: geometry.slot_bytes(),
            key: table.load(table_word(FrameIndex(client))),
            message: Vec::new(),
            rdma,
        }
    }

    /// A client that was let in, and has asked nothing yet, asks for the way by devices.
    fn on_connect_request(&mut self, peer: PeerId, admitted: AdmittedClient, message: &[u8]) {
        let client = admitted.client;
        let Frames { layout, pages, .. } = &self.memory;
        let offset = layout.frame_offset(FrameIndex(client));
        let frame = pages.slice(offset, layout.pages.page_bytes());
        // A second call would find its frame in use.
        let listener = self.rdma.as_mut();
        let joined = listener.and_then(|listener| {
            listener.leave(client);
            listener.join(client, &frame, message)
        });
        let made = self.rdma.as_mut().map_or(0, Devices::take_made);
        self.admission.count(HerdCounter::QueuePairs, made);
        let Some((transports, consent)) = joined else {
            // Any answer but consent is a refusal.
            let _ = self.port.send(peer, &[0; 40]);
            return;
        };
        self.admission.detach(client);
        let transports = (0..).zip(transports);
        let transports =
            transports.map(|(server, rdma)| self.transport(peer, admitted, server, Some(rdma)));
        self.admission.attach(client, transports);
        // A client that is gone already is heard of next.
        let _ = self.port.send(peer, &consent);
    }

    fn on_closed(&mut self, peer: PeerId) {
        self.pending.remove(&peer);
        let Some(AdmittedClient { client, .. }) = self.clients.remove(&peer) else { return };
        self.revoke(FrameIndex(client));
        self.admission.count(HerdCounter::Left, 1);
        self.leaving.push((client, self.admission.detach(client)));
    }

    /// Ends a key: when this returns, nothing is executed under it any more. Blocks for one system
    /// call of the fabric's thread at most.
    fn revoke(&mut self, frame: FrameIndex) {
        if self.port.mutated(Mutation::KeepFrameKey) {
            return;
        }
        if let Some(listener) = &mut self.rdma {
            listener.leave(frame.0);
        }
        let Frames { table, cells, .. } = &self.memory;
        table.store(table_word(frame), 0);
        // Pairs with the fence of `announce` in core/target.rs: the fabric's thread sees the new
        // word, or is seen here.
        table.fence();
        while cells.load(0) == u64::from(frame.0) + 1 {
            self.port.pause();
        }
    }

    /// Closes connections that were not let in and do not go.
    fn close_pending(&self) {
        if self.pending.is_empty() {
            return;
        }
        let now_ns = self.port.now_ns();
        for (peer, since_ns) in &self.pending {
            if now_ns.saturating_sub(*since_ns) > HELLO_WITHIN.as_nanos() as u64 {
                self.port.close(*peer);
            }
        }
    }
}
