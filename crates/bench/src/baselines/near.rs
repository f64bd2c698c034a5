//! Both ends over `shm`: the server's page and a memory for each client, without names in a file
//! system; a client gets their descriptors over a control socket, and is gone when that ends.
//!
//! *A client's memory*: its page, into which the server writes answers; the page's generations; two
//! cells, 128 bytes apart (the server's for this page, the client's for the server's); the ring of
//! SENDs to the server, then that of SENDs to the client.

use super::client::{ClientEndpoint, ClientOver, Ends};
use super::connections::{Connections, ServerEvent, check_hello, free_number};
use super::error::{Error, Result, io_error};
use super::places::{
    ANSWER_PAGE_BYTES, Outgoing, Places, greeting, one_page, open_page, page_and_table_bytes,
    post_bytes, random_key, read_greeting, split_page,
};
use super::rings::Rings;
use super::spec::Spec;
use rackpool_core::addr::Generation;
use rackpool_core::layout::{RING_BYTES, RegionLayout};
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, RemoteAddr};
use rackpool_fabric::control::{ControlConn, ControlListener, Received};
use rackpool_fabric::shm::{ShmEndpoint, ShmOptions, ShmPeer};
use rackpool_fabric::{FabricError, LocalBuffers};
use rackpool_mem::ring::{Consumer, Producer};
use rackpool_mem::window::{Access, MapOptions, Window};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The key of a client's page: no other process maps it.
const ANSWER_KEY: Generation = Generation(1);
/// Bytes of the two cells.
const CELLS_BYTES: u64 = 4096;
/// How long a welcome may take.
const WELCOME_WITHIN: Duration = Duration::from_secs(5);

/// A client's memory, in parts.
struct ClientMemory {
    page: Window,
    table: Window,
    cells: [Window; 2],
    rings: [Window; 2],
}

impl ClientMemory {
    fn layout() -> RegionLayout {
        one_page(ANSWER_PAGE_BYTES)
    }

    fn bytes() -> u64 {
        page_and_table_bytes(&ClientMemory::layout()) + CELLS_BYTES + 2 * RING_BYTES
    }

    fn of(memory: &Window) -> ClientMemory {
        let at = page_and_table_bytes(&ClientMemory::layout());
        let (page, table) = split_page(memory, &ClientMemory::layout());
        let cell = |index: u64| memory.slice(at + 128 * index, 8);
        let ring = |index: u64| memory.slice(at + CELLS_BYTES + RING_BYTES * index, RING_BYTES);
        ClientMemory { page, table, cells: [cell(0), cell(1)], rings: [ring(0), ring(1)] }
    }
}

struct AcceptedConnection {
    conn: ControlConn,
    client: Option<u32>,
    is_gone: bool,
}

pub(super) struct ShmConnections {
    spec: Spec,
    listener: ControlListener,
    memory: OwnedFd,
    page_bytes: u64,
    key: Generation,
    end: ShmEndpoint<Rings>,
    buf: BufId,
    accepted: Vec<AcceptedConnection>,
    peers: Vec<Option<PeerId>>,
    events: Vec<FabricEvent>,
}

impl ShmConnections {
    /// The connections, the page, and the name of the control socket.
    pub(super) fn open(spec: &Spec, places: &Places) -> Result<(ShmConnections, Window, String)> {
        let layout = places.layout();
        let shared = Window::shared("rackpool-baselines", page_and_table_bytes(&layout));
        let (fd, memory) = shared.map_err(io_error("memory"))?;
        let (pages, table) = split_page(&memory, &layout);
        let key = random_key()?;
        open_page(&table, key);
        let name = format!("rackpool/baselines/{:016x}", random_key()?.0);
        let mut end = ShmEndpoint::new(ShmOptions::default());
        let bytes = u64::from(spec.clients) * ANSWER_PAGE_BYTES;
        let connections = ShmConnections {
            spec: *spec,
            listener: ControlListener::bind(&name)?,
            memory: fd,
            page_bytes: layout.pages_bytes(),
            key,
            buf: end.register(vec![0; bytes as usize])?,
            end,
            accepted: Vec::new(),
            peers: vec![None; spec.clients as usize],
            events: Vec::new(),
        };
        Ok((connections, pages, name))
    }

    fn look_around(&mut self, came: &mut Vec<ServerEvent>) -> Result<()> {
        while let Some(conn) = self.listener.accept()? {
            let is_gone = conn.check_peer().is_err();
            self.accepted.push(AcceptedConnection { conn, client: None, is_gone });
        }
        for index in 0..self.accepted.len() {
            let mut buffer = [0; 64];
            let connection = &mut self.accepted[index];
            match connection.conn.recv(&mut buffer) {
                Ok(Received::Nothing) => {}
                Ok(Received::Message { bytes, .. }) if connection.client.is_none() => {
                    match self.admit(index, &buffer[..bytes]) {
                        Ok(client) => {
                            self.accepted[index].client = Some(client);
                            came.push(ServerEvent::Joined(client));
                        }
                        // It hears it by the end of the connection.
                        Err(_) => self.accepted[index].is_gone = true,
                    }
                }
                // Its end; or it speaks although there is nothing to say.
                _ => connection.is_gone = true,
            }
        }
        self.accepted.retain(|connection| {
            if let (true, Some(client)) = (connection.is_gone, connection.client) {
                came.push(ServerEvent::Left(client));
            }
            !connection.is_gone
        });
        Ok(())
    }

    /// A place for a client.
    fn admit(&mut self, index: usize, hello: &[u8]) -> Result<u32> {
        check_hello(&self.spec, hello)?;
        let client = free_number(&self.peers).ok_or(Error::Corrupt { what: "one too many" })?;
        let shared = Window::shared("rackpool-baselines-client", ClientMemory::bytes());
        let (fd, memory) = shared.map_err(io_error("memory"))?;
        let ClientMemory { page, table, cells: [cell, _], rings: [to_server, to_client] } =
            ClientMemory::of(&memory);
        open_page(&table, ANSWER_KEY);
        let peer =
            ShmPeer::new(page, table, cell, ClientMemory::layout()).map_err(FabricError::from)?;
        let (out, inward) = (Producer::attach(to_client), Consumer::attach(to_server));
        let peer = self.end.connect(peer, Rings { out, inward })?;
        let welcome = greeting([client.into(), self.page_bytes, self.key.0]);
        let fds = [self.memory.as_fd(), fd.as_fd()];
        let sent = self.accepted[index].conn.send(&welcome, &fds);
        if sent.is_err() {
            self.end.close(peer);
        }
        sent?;
        self.peers[client as usize] = Some(peer);
        Ok(client)
    }

    fn post(&mut self, client: u32, at: Option<u64>, bytes: &[u8]) {
        let Some(peer) = self.peers[client as usize] else { return };
        let lane = at.unwrap_or(0);
        let offset = u64::from(client) * ANSWER_PAGE_BYTES + lane;
        let at = at.map(|offset| RemoteAddr { offset, key: ANSWER_KEY });
        let outgoing = Outgoing { peer, buf: self.buf, offset, at, id: 0, bytes };
        // A client that is gone is found by a thorough look.
        let _ = post_bytes(&mut self.end, &outgoing, &mut self.events);
    }
}

impl Connections for ShmConnections {
    fn poll(&mut self, is_thorough: bool, came: &mut Vec<ServerEvent>) -> Result<()> {
        if is_thorough {
            self.look_around(came)?;
        }
        self.end.poll(0, &mut self.events);
        for event in self.events.drain(..) {
            if let FabricEvent::Received { peer, message } = event
                && let Some(client) = self.peers.iter().position(|entry| *entry == Some(peer))
            {
                came.push(ServerEvent::Message(client as u32, message));
            }
        }
        Ok(())
    }

    fn begin(&mut self, _: Thread) {}

    fn nap(&self) -> Option<Duration> {
        None
    }

    fn vacate(&mut self, client: u32) {
        if let Some(peer) = self.peers[client as usize].take() {
            self.end.close(peer);
        }
    }

    fn send(&mut self, client: u32, message: &[u8]) {
        self.post(client, None, message);
    }

    fn write(&mut self, client: u32, at: u64, bytes: &[u8]) {
        self.post(client, Some(at), bytes);
    }
}

impl ClientEndpoint for ShmEndpoint<Rings> {
    const LOOKS_EAGER: u32 = 64;

    fn idle(&mut self, _: bool, _: &mut Vec<FabricEvent>) {
        std::thread::yield_now();
    }
}

impl ClientOver<ShmEndpoint<Rings>> {
    /// Connects to a server of this host by the name of its control socket. Blocks for 5 s at most.
    ///
    /// # Errors
    /// [`Error::Gone`] if no such server serves there; [`Error::Silent`],
    /// [`Error::Control`], [`Error::Fabric`], [`Error::Io`], [`Error::Spec`].
    pub fn connect_near(spec: Spec, name: &str) -> Result<Self> {
        let spec = spec.checked()?;
        let layout = Places::of(&spec).layout();
        let conn = ControlConn::connect(name)?;
        conn.check_peer()?;
        conn.send(&greeting([spec.fingerprint(), 0, 0]), &[])?;
        let ([number, page_bytes, key], fds) = await_welcome(&conn)?;
        if page_bytes != layout.pages_bytes() || number >= u64::from(spec.clients) {
            return Err(Error::Corrupt { what: "its page" });
        }
        let Ok::<[_; 2], _>([memory, pair]) = fds.try_into() else {
            return Err(Error::Corrupt { what: "its descriptors" });
        };
        let memory = map(&memory, page_and_table_bytes(&layout))?;
        let pair = ClientMemory::of(&map(&pair, ClientMemory::bytes())?);
        let (pages, table) = split_page(&memory, &layout);
        let ClientMemory { page, cells: [_, cell], rings: [to_server, to_client], .. } = pair;
        let peer = ShmPeer::new(pages, table, cell, layout).map_err(FabricError::from)?;
        let mut end = ShmEndpoint::new(ShmOptions::default());
        let (out, inward) = (Producer::attach(to_server), Consumer::attach(to_client));
        let peer = end.connect(peer, Rings { out, inward })?;
        let is_gone = Box::new(move || conn.is_closed());
        let ends = Ends { end, peer, key: Generation(key), answers: page, is_gone, _target: None };
        ClientOver::over(spec, number as u32, ends)
    }
}

fn map(fd: &OwnedFd, bytes: u64) -> Result<Window> {
    let options = MapOptions { populate: true, ..MapOptions::default() };
    let mapped = Window::map(fd.as_fd(), bytes, Access::ReadWrite, options);
    mapped.map_err(io_error("mapping the server's memory"))
}

fn await_welcome(conn: &ControlConn) -> Result<([u64; 3], Vec<OwnedFd>)> {
    let (start, mut buffer) = (Instant::now(), [0; 64]);
    loop {
        let Some(left) = WELCOME_WITHIN.checked_sub(start.elapsed()) else {
            return Err(Error::Silent { waited_ms: WELCOME_WITHIN.as_millis() as u64 });
        };
        match conn.recv_timeout(&mut buffer, left)? {
            Received::Message { bytes, fds } => return Ok((read_greeting(&buffer[..bytes])?, fds)),
            Received::Nothing => {}
            Received::Closed => return Err(Error::Gone),
        }
    }
}
