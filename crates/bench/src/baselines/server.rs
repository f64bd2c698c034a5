//! The serving thread: polls the slots of its clients in rounds and takes their messages, stores
//! what is put, and answers by WRITE or SEND. READs need nothing of it. It owns the table's memory;
//! no other thread of this process stores there.
//!
//! It polls without sleeping, as in the paper, unless it was told to rest. Where a thread beside it
//! is the card (`tcp`) and may have no other core, it sleeps between rounds that find nothing.

use super::connections::{Connections, ServerEvent};
use super::error::{Result, io_error};
use super::places::Places;
use super::spec::{Carrier, ServerAddress, Spec};
use super::{far, near};
use rackpool_core::seam::Mem;
use rackpool_mem::window::Window;
use rackpool_sim::repro::herd::baselines::{
    Ack, KeyTable, KvRequest, Plan, SLOT_BYTES, System, value_of,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Rounds without a request before the thread gives way between rounds.
const EAGER_ROUNDS: u32 = 64;
/// Rounds between two looks for clients that come and go, under load.
const ROUNDS_PER_LOOK: u64 = 1024;
/// Rounds without a request before it naps between rounds, where a thread beside it is the card.
const IDLE_ROUNDS: u32 = 16;
/// How long it sleeps between rounds while it rests.
const NAP: Duration = Duration::from_millis(10);
/// Bytes of a slot that are looked at first: most requests are shorter.
const FIRST_BYTES: usize = 64;

/// What others may ask of the thread.
#[derive(Default)]
struct ServerControl {
    stop: AtomicBool,
    rest: AtomicBool,
    served: AtomicU64,
    clients: AtomicU64,
}

/// A server of one system. Dropping it ends its connections and waits for its thread.
///
/// ```
/// use rackpool_bench::baselines::{Carrier, Client, SystemKind, Outcome, Server, Spec};
///
/// let spec = Spec::new(SystemKind::Pilaf, true, 100);
/// let server = Server::start(spec, Carrier::Shm)?;
/// let mut client = Client::connect(spec, server.address())?; // from any process of this host
/// client.get(42, |outcome| assert!(matches!(outcome, Outcome::Found(_))))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server {
    address: ServerAddress,
    control: Arc<ServerControl>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Fills the table, if there is one, and begins to serve.
    ///
    /// # Errors
    /// `Error::Spec`, `Error::NoPlace`, `Error::Fabric`, `Error::Control`, `Error::Io`.
    pub fn start(spec: Spec, carrier: Carrier) -> Result<Server> {
        let spec = spec.checked()?;
        let places = Places::of(&spec);
        let control = Arc::new(ServerControl::default());
        let (address, thread) = match carrier {
            Carrier::Shm => {
                let (connections, pages, name) = near::ShmConnections::open(&spec, &places)?;
                (ServerAddress::Near(name), spawn(spec, places, pages, connections, &control)?)
            }
            Carrier::Tcp | Carrier::Verbs => {
                let (connections, pages, addr) =
                    far::FabricConnections::open(&spec, &places, carrier)?;
                (
                    ServerAddress::Far(addr, carrier),
                    spawn(spec, places, pages, connections, &control)?,
                )
            }
        };
        Ok(Server { address, control, thread: Some(thread) })
    }

    #[must_use]
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Whether it polls rarely: every 10 ms, as long as it is not measured.
    pub fn rest(&self, rests: bool) {
        // Relaxed: nothing else goes with it.
        self.control.rest.store(rests, Ordering::Relaxed);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }

    /// Requests that its thread has served.
    #[must_use]
    pub fn served(&self) -> u64 {
        // Relaxed: a count.
        self.control.served.load(Ordering::Relaxed)
    }

    /// Clients that it has now.
    #[must_use]
    pub fn clients(&self) -> u64 {
        // Relaxed: a count.
        self.control.clients.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Relaxed: the join orders everything.
        self.control.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there was printed there.
            let _ = thread.join();
        }
    }
}

fn spawn<F: Connections + 'static>(
    spec: Spec,
    places: Places,
    pages: Window,
    connections: F,
    control: &Arc<ServerControl>,
) -> Result<JoinHandle<()>> {
    let mut memory = pages.slice(places.table_at, places.table_bytes);
    let table = spec.table().filter(|_| spec.is_full);
    if let Some(table) = &table {
        table.fill(&mut memory, |key| value_of(key, 0, spec.value_bytes))?;
    }
    let mut serving = Serving {
        system: spec.system(),
        spec,
        places,
        pages,
        memory,
        table,
        connections,
        present: vec![false; spec.clients as usize],
        came: Vec::new(),
        scratch: Vec::new(),
        slot: vec![0; SLOT_BYTES as usize],
        rounds: 0,
        served: 0,
    };
    let control = Arc::clone(control);
    let thread = std::thread::Builder::new().name("baselines".into());
    thread.spawn(move || serving.run(&control)).map_err(io_error("starting a thread"))
}

struct Serving<F> {
    spec: Spec,
    system: System,
    places: Places,
    pages: Window,
    /// The table's part of it.
    memory: Window,
    table: Option<KeyTable>,
    connections: F,
    present: Vec<bool>,
    came: Vec<ServerEvent>,
    scratch: Vec<u8>,
    slot: Vec<u8>,
    rounds: u64,
    served: u64,
}

impl<F: Connections> Serving<F> {
    fn run(&mut self, control: &ServerControl) {
        self.connections.begin(std::thread::current());
        let mut idle = 0;
        // Relaxed: as in `Server`.
        while !control.stop.load(Ordering::Relaxed) {
            // Relaxed: as in `Server::rest`.
            let rests = control.rest.load(Ordering::Relaxed);
            let is_thorough = rests || idle % EAGER_ROUNDS == EAGER_ROUNDS - 1;
            let served = self.round(is_thorough);
            if served > 0 || is_thorough {
                // Relaxed: counts, and the thread is their only writer.
                control.served.store(self.served, Ordering::Relaxed);
                let clients = self.present.iter().filter(|is_there| **is_there).count();
                // Relaxed: likewise.
                control.clients.store(clients as u64, Ordering::Relaxed);
            }
            idle = if served > 0 { 0 } else { idle.wrapping_add(1) };
            if rests {
                std::thread::park_timeout(NAP);
            } else if let (true, Some(nap)) = (idle > IDLE_ROUNDS, self.connections.nap()) {
                std::thread::park_timeout(nap);
            } else if idle > EAGER_ROUNDS {
                // The thread that it waits for may share the core: a client's, a fabric's.
                std::thread::yield_now();
            }
        }
    }

    /// Looks once at everything; how many requests were served.
    fn round(&mut self, is_thorough: bool) -> u64 {
        let before = self.served;
        self.rounds += 1;
        let mut came = std::mem::take(&mut self.came);
        let is_thorough = is_thorough || self.rounds.is_multiple_of(ROUNDS_PER_LOOK);
        // A fabric that failed as a whole has no clients any more: they see it themselves.
        let _ = self.connections.poll(is_thorough, &mut came);
        for event in came.drain(..) {
            match event {
                ServerEvent::Joined(client) => self.present[client as usize] = true,
                ServerEvent::Left(client) => self.forget(client),
                ServerEvent::Message(client, message) => {
                    let request = KvRequest::decode(&message, 0);
                    if let Some(request) = request.filter(|request| request.client == client) {
                        self.answer(client, &request);
                    }
                }
            }
        }
        self.came = came;
        if self.system.exchange().request.is_write {
            for client in 0..self.spec.clients {
                if self.present[client as usize] {
                    (0..self.spec.window as u8).for_each(|lane| self.look(client, lane));
                }
            }
        }
        self.served - before
    }

    /// Nothing of a client stays for the next one of its number.
    fn forget(&mut self, client: u32) {
        self.present[client as usize] = false;
        for lane in 0..self.spec.window as u8 {
            self.pages.zero(self.places.slot_at(client, lane), SLOT_BYTES);
        }
        self.connections.vacate(client);
    }

    /// Serves what is in a slot, if all of it is there.
    #[inline]
    fn look(&mut self, client: u32, lane: u8) {
        let end = self.places.slot_at(client, lane) + SLOT_BYTES;
        if self.pages.load(end - 8) == 0 {
            return;
        }
        let found = [FIRST_BYTES, SLOT_BYTES as usize].into_iter().find_map(|bytes| {
            let slot = &mut self.slot[..bytes];
            self.pages.copy_out(end - bytes as u64, slot);
            KvRequest::in_slot(slot).and_then(|request| KvRequest::decode(request, 0))
        });
        // The rest of it comes, or the client does not keep to the protocol.
        let Some(request) = found else { return };
        self.pages.store(end - 8, 0);
        if request.client == client && request.lane == lane {
            self.answer(client, &request);
        }
    }

    fn answer(&mut self, client: u32, request: &KvRequest) {
        let lane = request.lane;
        if u32::from(lane) >= self.spec.window {
            return;
        }
        let way = self.system.exchange().answer;
        let slot = u64::from(lane) * SLOT_BYTES;
        if let System::Echo(_) = self.system {
            let echo = request.encode();
            let value_bytes = request.value.as_ref().map_or(0, |value| value.len() as u64);
            let plan = self.system.plan(request.value.is_some(), value_bytes, |_| false);
            debug_assert_eq!(plan, Plan::Ask { answer_bytes: echo.len() as u64 });
            match way.is_write {
                true => {
                    self.connections.write(client, slot + SLOT_BYTES - echo.len() as u64, &echo)
                }
                false => self.connections.send(client, &echo),
            }
        } else {
            let is_stored = match (&request.value, &self.table) {
                (Some(value), Some(table)) => {
                    table.put(&mut self.memory, request.key, value, &mut self.scratch)
                }
                (Some(_), None) => true,
                // GETs are READs.
                (None, _) => false,
            };
            let ack = [Ack { lane, is_stored }.encode()];
            match way.is_write {
                true => self.connections.write(client, slot, &ack),
                false => self.connections.send(client, &ack),
            }
        }
        self.served += 1;
    }
}
