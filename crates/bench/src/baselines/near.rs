//! Both ends over `shm`: the server's page and a memory for each client, without names in a file
//! system; a client gets their descriptors over a control socket, and is gone when that ends.
//!
//! *A client's memory*: its page, into which the server writes answers; the page's generations; two
//! cells, 128 bytes apart (the server's for this page, the client's for the server's); the ring of
//! SENDs to the server, then that of SENDs to the client.

use super::client::{ClientOver, Ends, Wire};
use super::error::{Error, Result, io_error};
use super::places::{
    ANSWER_PAGE_BYTES, Places, greeting, one_page, open_page, page_and_table_bytes, post_bytes,
    random_key, read_greeting, split_page,
};
use super::server::{Came, Floor, check_hello, free_number};
use super::spec::Spec;
use rackpool_core::addr::Generation;
use rackpool_core::layout::{RING_BYTES, RegionLayout};
use rackpool_core::seam::{BufId, Fabric, FabricEvent, PeerId, RemoteAddr};
use rackpool_hw::control::{ControlConn, ControlListener, Received};
use rackpool_hw::fabric::shm::{HandOff, HandOffError, ShmEndpoint, ShmOptions, ShmPeer};
use rackpool_hw::fabric::{FabricError, LocalBuffers, monotonic_ns};
use rackpool_hw::ring::{Consumer, Producer, RingError};
use rackpool_hw::window::{Access, MapOptions, Window};
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
struct Pair {
    page: Window,
    table: Window,
    cells: [Window; 2],
    rings: [Window; 2],
}

impl Pair {
    fn layout() -> RegionLayout {
        one_page(ANSWER_PAGE_BYTES)
    }

    fn bytes() -> u64 {
        page_and_table_bytes(&Pair::layout()) + CELLS_BYTES + 2 * RING_BYTES
    }

    fn of(memory: &Window) -> Pair {
        let at = page_and_table_bytes(&Pair::layout());
        let (page, table) = split_page(memory, &Pair::layout());
        let cell = |index: u64| memory.slice(at + 128 * index, 8);
        let ring = |index: u64| memory.slice(at + CELLS_BYTES + RING_BYTES * index, RING_BYTES);
        Pair { page, table, cells: [cell(0), cell(1)], rings: [ring(0), ring(1)] }
    }
}

pub struct Rings {
    out: Producer<Window>,
    inward: Consumer<Window>,
}

impl HandOff for Rings {
    fn room(&mut self) -> Result<(), HandOffError> {
        Ok(())
    }

    fn message(&mut self, message: &[u8]) -> Result<(), HandOffError> {
        self.out.push(message).map_err(|error| match error {
            RingError::Full { .. } => HandOffError::Busy,
            _ => HandOffError::Down,
        })
    }

    fn imm(&mut self, _: u32) -> Result<(), HandOffError> {
        Err(HandOffError::Down)
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        // A ring that is corrupt has no messages any more.
        self.inward.pop(<[u8]>::to_vec)?.ok()
    }
}

struct Guest {
    conn: ControlConn,
    client: Option<u32>,
    is_gone: bool,
}

pub(super) struct Hall {
    spec: Spec,
    listener: ControlListener,
    memory: OwnedFd,
    page_bytes: u64,
    key: Generation,
    end: ShmEndpoint<Rings>,
    buf: BufId,
    guests: Vec<Guest>,
    seats: Vec<Option<PeerId>>,
    events: Vec<FabricEvent>,
}

impl Hall {
    /// Page, floor, and the name of the door.
    pub(super) fn open(spec: &Spec, places: &Places) -> Result<(Hall, Window, String)> {
        let layout = places.layout();
        let shared = Window::shared("rackpool-baselines", page_and_table_bytes(&layout));
        let (fd, memory) = shared.map_err(io_error("memory"))?;
        let (pages, table) = split_page(&memory, &layout);
        let key = random_key()?;
        open_page(&table, key);
        let name = format!("rackpool/baselines/{:016x}", random_key()?.0);
        let mut end = ShmEndpoint::new(ShmOptions::default());
        let bytes = u64::from(spec.clients) * ANSWER_PAGE_BYTES;
        let hall = Hall {
            spec: *spec,
            listener: ControlListener::bind(&name)?,
            memory: fd,
            page_bytes: layout.pages_bytes(),
            key,
            buf: end.register(vec![0; bytes as usize])?,
            end,
            guests: Vec::new(),
            seats: vec![None; spec.clients as usize],
            events: Vec::new(),
        };
        Ok((hall, pages, name))
    }

    fn look_around(&mut self, came: &mut Vec<Came>) -> Result<()> {
        while let Some(conn) = self.listener.accept()? {
            let is_gone = conn.check_peer().is_err();
            self.guests.push(Guest { conn, client: None, is_gone });
        }
        for index in 0..self.guests.len() {
            let mut buffer = [0; 64];
            let guest = &mut self.guests[index];
            match guest.conn.recv(&mut buffer) {
                Ok(Received::Nothing) => {}
                Ok(Received::Message { bytes, .. }) if guest.client.is_none() => {
                    match self.admit(index, &buffer[..bytes]) {
                        Ok(client) => {
                            self.guests[index].client = Some(client);
                            came.push(Came::Joined(client));
                        }
                        // It hears it by the end of the connection.
                        Err(_) => self.guests[index].is_gone = true,
                    }
                }
                // Its end; or it speaks although there is nothing to say.
                _ => guest.is_gone = true,
            }
        }
        self.guests.retain(|guest| {
            if let (true, Some(client)) = (guest.is_gone, guest.client) {
                came.push(Came::Left(client));
            }
            !guest.is_gone
        });
        Ok(())
    }

    /// A place for a client.
    fn admit(&mut self, guest: usize, hello: &[u8]) -> Result<u32> {
        check_hello(&self.spec, hello)?;
        let client = free_number(&self.seats).ok_or(Error::Corrupt { what: "one too many" })?;
        let shared = Window::shared("rackpool-baselines-client", Pair::bytes());
        let (fd, memory) = shared.map_err(io_error("memory"))?;
        let Pair { page, table, cells: [cell, _], rings: [to_server, to_client] } =
            Pair::of(&memory);
        open_page(&table, ANSWER_KEY);
        let peer = ShmPeer::new(page, table, cell, Pair::layout()).map_err(FabricError::from)?;
        let (out, inward) = (Producer::attach(to_client), Consumer::attach(to_server));
        let peer = self.end.connect(peer, Rings { out, inward })?;
        let welcome = greeting([client.into(), self.page_bytes, self.key.0]);
        let fds = [self.memory.as_fd(), fd.as_fd()];
        let sent = self.guests[guest].conn.send(&welcome, &fds);
        if sent.is_err() {
            self.end.close(peer);
        }
        sent?;
        self.seats[client as usize] = Some(peer);
        Ok(client)
    }

    fn post(&mut self, client: u32, at: Option<u64>, bytes: &[u8]) {
        let Some(peer) = self.seats[client as usize] else { return };
        let lane = at.unwrap_or(0);
        let from = (self.buf, u64::from(client) * ANSWER_PAGE_BYTES + lane);
        let to = (at.map(|offset| RemoteAddr { offset, key: ANSWER_KEY }), 0);
        // A client that is gone is found by a thorough look.
        let _ = post_bytes(&mut self.end, peer, from, to, bytes, &mut self.events);
    }
}

impl Floor for Hall {
    fn poll(&mut self, is_thorough: bool, came: &mut Vec<Came>) -> Result<()> {
        if is_thorough {
            self.look_around(came)?;
        }
        self.end.poll(0, &mut self.events);
        for event in self.events.drain(..) {
            if let FabricEvent::Received { peer, message } = event
                && let Some(client) = self.seats.iter().position(|seat| *seat == Some(peer))
            {
                came.push(Came::Message(client as u32, message));
            }
        }
        Ok(())
    }

    fn begin(&mut self, _: Thread) {}

    fn nap(&self) -> Option<Duration> {
        None
    }

    fn vacate(&mut self, client: u32) {
        if let Some(peer) = self.seats[client as usize].take() {
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

impl Wire for ShmEndpoint<Rings> {
    const LOOKS_EAGER: u32 = 64;

    fn idle(&mut self, _: bool, _: &mut Vec<FabricEvent>) {
        std::thread::yield_now();
    }
}

impl ClientOver<ShmEndpoint<Rings>> {
    /// Connects to a server of this host by the name of its door. Blocks for 5 s at most.
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
        let pair = Pair::of(&map(&pair, Pair::bytes())?);
        let (pages, table) = split_page(&memory, &layout);
        let Pair { page, cells: [_, cell], rings: [to_server, to_client], .. } = pair;
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

/// The fabric's clock, nanoseconds.
pub(super) fn now_ns() -> u64 {
    monotonic_ns()
}
