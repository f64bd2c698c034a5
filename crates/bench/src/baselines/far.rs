//! Both ends over a fabric with a target: `tcp`, or RDMA devices. The server's page is its
//! target's; if answers are WRITEs, each client has a target too, with the page that they go to,
//! and the server an endpoint that is connected to all of them. A connection's end is the end.

use super::client::{ClientEndpoint, ClientOver, Ends};
use super::connections::{Connections, ServerEvent, check_hello, free_number};
use super::error::{Error, Result, io_error};
use super::places::{
    ANSWER_PAGE_BYTES, Outgoing, Places, greeting, now_ns, one_page, open_page, post_bytes,
    random_key, read_greeting,
};
use super::spec::{Carrier, Spec};
use rackpool_core::RackId;
use rackpool_core::addr::Generation;
use rackpool_core::layout::RegionLayout;
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, RemoteAddr};
use rackpool_fabric::{
    Endpoint, FabricOptions, LocalBuffers, Over, Target, TargetOptions, TargetSendError,
};
use rackpool_mem::window::Window;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a connection and its welcome may take.
const WELCOME_WITHIN: Duration = Duration::from_secs(5);
/// How long a fabric's thread looks without sleeping after something moved, nanoseconds: shortly,
/// since the process that waits for it shares its core.
const SPIN_NS: u32 = 20_000;
/// How long the serving thread leaves the core to the target's thread when it found nothing in its
/// slots; and if it has none, so that only what wakes it counts.
const NAP: Duration = Duration::from_micros(20);
const LONG_NAP: Duration = Duration::from_millis(1);
/// Times that an answer is put in again when too many wait to be sent.
const SENDS_MAX: u32 = 1_000_000;

fn options(carrier: Carrier) -> FabricOptions {
    let over = if carrier == Carrier::Verbs { Over::Verbs } else { Over::Tcp };
    // Why a connection ends is in the error of its next operation.
    FabricOptions { over, ..FabricOptions::default() }
}

/// A target with one page, and the page.
fn target(
    fabric: &FabricOptions,
    layout: RegionLayout,
    key: Generation,
    connections_max: u32,
    waker: Arc<dyn Fn() + Send + Sync>,
) -> Result<(Target, Window)> {
    let pages = Window::private(layout.pages_bytes()).map_err(io_error("memory"))?;
    let table = Window::heap(layout.table_bytes());
    open_page(&table, key);
    let cells = Window::heap(u64::from(Target::cells(fabric.over, layout)) * 8);
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = TargetOptions::new(listen, layout, pages.clone(), table, cells);
    let options = TargetOptions {
        connections_max,
        address_max: Some(connections_max),
        spin_ns: SPIN_NS,
        waker,
        ..options
    };
    Ok((Target::start(fabric, options)?, pages))
}

/// A client at the server.
#[derive(Clone, Copy)]
struct ConnectedClient {
    peer: PeerId,
    /// The connection to its page, and the key of that.
    back: Option<(PeerId, Generation)>,
}

pub(super) struct FabricConnections {
    spec: Spec,
    page_bytes: u64,
    key: Generation,
    target: Target,
    end: Endpoint,
    buf: BufId,
    clients: Vec<Option<ConnectedClient>>,
    events: Vec<FabricEvent>,
    thread: Arc<OnceLock<Thread>>,
}

impl FabricConnections {
    /// The connections, the page, and the address of the target.
    pub(super) fn open(
        spec: &Spec,
        places: &Places,
        carrier: Carrier,
    ) -> Result<(FabricConnections, Window, SocketAddr)> {
        let fabric = options(carrier);
        let (layout, key) = (places.layout(), random_key()?);
        let thread = Arc::new(OnceLock::<Thread>::new());
        let woken = Arc::clone(&thread);
        let waker = move || woken.get().into_iter().for_each(Thread::unpark);
        let connections_max = spec.clients + 16;
        let (target, pages) = target(&fabric, layout, key, connections_max, Arc::new(waker))?;
        let mut end = Endpoint::new(fabric)?;
        let bytes = u64::from(spec.clients) * ANSWER_PAGE_BYTES;
        end.set_gathering(true);
        let buf = end.register(vec![0; bytes as usize])?;
        let (addr, clients) = (target.local_addr(), vec![None; spec.clients as usize]);
        let page_bytes = layout.pages_bytes();
        let (spec, events) = (*spec, Vec::new());
        let connections =
            FabricConnections { spec, page_bytes, key, target, end, buf, clients, events, thread };
        Ok((connections, pages, addr))
    }

    fn find(&self, peer: PeerId) -> Option<u32> {
        let is_its =
            |entry: &Option<ConnectedClient>| entry.is_some_and(|entry| entry.peer == peer);
        self.clients.iter().position(is_its).map(|client| client as u32)
    }

    /// A new client: it is welcome at once, or when its page can be written to.
    fn admit(&mut self, peer: PeerId, hello: &[u8], came: &mut Vec<ServerEvent>) -> Result<()> {
        let [port, key] = check_hello(&self.spec, hello)?;
        let client = free_number(&self.clients).ok_or(Error::Corrupt { what: "one too many" })?;
        let mut back = None;
        if self.spec.answers_by_write() {
            let addr = SocketAddr::new(self.target.local_addr().ip(), port as u16);
            back = Some((self.end.connect(RackId(0), addr, now_ns())?, Generation(key)));
        }
        self.clients[client as usize] = Some(ConnectedClient { peer, back });
        if back.is_none() {
            self.welcome(client, came);
        }
        Ok(())
    }

    fn welcome(&mut self, client: u32, came: &mut Vec<ServerEvent>) {
        came.push(ServerEvent::Joined(client));
        let welcome = greeting([client.into(), self.page_bytes, self.key.0]);
        Connections::send(self, client, &welcome);
    }

    fn hear(&mut self, event: FabricEvent, came: &mut Vec<ServerEvent>) {
        match event {
            FabricEvent::Received { peer, message } => match self.find(peer) {
                Some(client) => came.push(ServerEvent::Message(client, message)),
                None => {
                    if self.admit(peer, &message, came).is_err() {
                        self.target.close(peer);
                    }
                }
            },
            FabricEvent::Closed { peer, .. } => {
                came.extend(self.find(peer).map(ServerEvent::Left));
            }
            _ => {}
        }
    }
}

impl Connections for FabricConnections {
    fn poll(&mut self, _: bool, came: &mut Vec<ServerEvent>) -> Result<()> {
        let mut events = std::mem::take(&mut self.events);
        if self.spec.answers_by_write() {
            self.end.poll(now_ns(), &mut events);
            for event in events.drain(..) {
                let FabricEvent::Connected { peer } = event else { continue };
                let is_its = |entry: &Option<ConnectedClient>| {
                    entry.is_some_and(|entry| entry.back.is_some_and(|(back, _)| back == peer))
                };
                if let Some(client) = self.clients.iter().position(is_its) {
                    self.welcome(client as u32, came);
                }
            }
        }
        self.target.poll(&mut events);
        for event in events.drain(..) {
            self.hear(event, came);
        }
        self.events = events;
        Ok(())
    }

    fn begin(&mut self, thread: Thread) {
        // It is the first, and the only one.
        let _ = self.thread.set(thread);
    }

    /// A device reads by itself.
    fn nap(&self) -> Option<Duration> {
        let polls = self.spec.system().exchange().request.is_write;
        (self.end.over() == Over::Tcp).then_some(if polls { NAP } else { LONG_NAP })
    }

    fn vacate(&mut self, client: u32) {
        let entry = self.clients[client as usize].take();
        if let Some((back, _)) = entry.and_then(|entry| entry.back) {
            self.end.close(back);
        }
    }

    fn send(&mut self, client: u32, message: &[u8]) {
        let Some(ConnectedClient { peer, .. }) = self.clients[client as usize] else { return };
        for _ in 0..SENDS_MAX {
            if self.target.send(peer, message) != Err(TargetSendError::Busy) {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn write(&mut self, client: u32, at: u64, bytes: &[u8]) {
        let Some(ConnectedClient { back: Some((peer, key)), .. }) = self.clients[client as usize]
        else {
            return;
        };
        let offset = u64::from(client) * ANSWER_PAGE_BYTES + at;
        let at = Some(RemoteAddr { offset: at, key });
        let outgoing = Outgoing { peer, buf: self.buf, offset, at, id: 0, bytes };
        // The target reports a client that is gone.
        let _ = post_bytes(&mut self.end, &outgoing, &mut self.events);
    }
}

impl ClientEndpoint for Endpoint {
    const LOOKS_EAGER: u32 = 0;

    fn idle(&mut self, polls_memory: bool, events: &mut Vec<FabricEvent>) {
        match polls_memory {
            true => std::thread::yield_now(),
            false => _ = self.wait(now_ns() + 1_000_000, events),
        }
    }
}

impl ClientOver<Endpoint> {
    /// Connects to a server's target on this host. Blocks for 10 s at most.
    ///
    /// # Errors
    /// As [`ClientOver::connect_near`].
    pub fn connect_far(spec: Spec, addr: SocketAddr, carrier: Carrier) -> Result<Self> {
        let spec = spec.checked()?;
        let fabric = options(carrier);
        let (own_key, layout) = (random_key()?, one_page(ANSWER_PAGE_BYTES));
        let (own, answers, port) = match spec.answers_by_write() {
            true => {
                let (own, pages) = target(&fabric, layout, own_key, 4, Arc::new(|| ()))?;
                let port = own.local_addr().port();
                (Some(own), pages, port)
            }
            false => (None, Window::heap(ANSWER_PAGE_BYTES), 0),
        };
        let mut end = Endpoint::new(fabric)?;
        let peer = end.connect(RackId(0), addr, now_ns())?;
        let is_up = |event: &FabricEvent| matches!(event, FabricEvent::Connected { .. });
        await_event(&mut end, |event| is_up(event).then_some(()))?;
        let buf = end.register(vec![0; 64])?;
        let hello = greeting([spec.fingerprint(), port.into(), own_key.0]);
        let outgoing = Outgoing { peer, buf, offset: 0, at: None, id: 0, bytes: &hello };
        post_bytes(&mut end, &outgoing, &mut Vec::new())?;
        let welcome = await_event(&mut end, |event| match event {
            FabricEvent::Received { message, .. } => Some(message.clone()),
            _ => None,
        })?;
        let [number, page_bytes, key] = read_greeting(&welcome)?;
        if page_bytes != Places::of(&spec).layout().pages_bytes()
            || number >= u64::from(spec.clients)
        {
            return Err(Error::Corrupt { what: "its page" });
        }
        // What is posted together shares a call to the system.
        end.set_gathering(true);
        let (key, is_gone) = (Generation(key), Box::new(|| false));
        ClientOver::over(
            spec,
            number as u32,
            Ends { end, peer, key, answers, is_gone, _target: own },
        )
    }
}

/// Waits for what `take` takes.
fn await_event<R>(
    end: &mut Endpoint,
    mut take: impl FnMut(&FabricEvent) -> Option<R>,
) -> Result<R> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < WELCOME_WITHIN {
        end.wait(now_ns() + 10_000_000, &mut events);
        for event in events.drain(..) {
            if let Some(taken) = take(&event) {
                return Ok(taken);
            }
            if let FabricEvent::Closed { .. } = event {
                return Err(Error::Gone);
            }
        }
    }
    Err(Error::Silent { waited_ms: WELCOME_WITHIN.as_millis() as u64 })
}
