//! The server over shared memory: threads that do nothing but look at slots, and a doorkeeper that
//! lets clients in and sees when they end.
//!
//! A serving thread watches clients that asked lately and looks at their next slot by itself; it
//! takes the bits of the others. After a while without requests it stops to watch, sleeps on the
//! bell, and costs nothing. It never scans clients that ask for nothing.
//!
//! The doorkeeper owns the control sockets. A client that dies is seen by the end of its socket, at
//! once: its place is free for the next one when every serving thread has dropped it.
//!
//! Source: HERD §4.2 (an initializer that sleeps, server processes that poll).

use super::engine::Engine;
use super::error::{Error, StartError};
use super::geometry::{Geometry, VALUE_BYTES_DEFAULT, WINDOWS_DEFAULT, WINDOWS_MAX};
use super::pair;
use super::slot::Form;
use super::tally::{Tallies, Tally, What};
use super::welcome::{Hello, Verdict, Welcome};
use crate::cache::{Cache, Millis};
use crate::front::worker::wall_ms;
use rackpool_core::seam::Mem;
use rackpool_hw::control::{ControlConn, ControlListener, Received};
use rackpool_hw::event::{Interest, Poller, Readiness, WakeEvent};
use rackpool_hw::ring::bitmap::Bitmap;
use rackpool_hw::ring::watch;
use rackpool_hw::wait::{Pause, Waiter};
use rackpool_hw::window::Window;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Clients by default.
const CLIENTS_DEFAULT: u32 = 1024;
/// Clients that a thread watches at once: each costs a look at its next slot every round. Others
/// set their bits.
const WATCHED_MAX: usize = 64;
/// Looks in a row that find nothing before a client is watched no more, while others ask on. HERD's
/// server gives up hope after 100 (§4.1).
const LOOKS_MAX: u32 = 4096;
/// Rounds between two looks at the bits while somebody is watched.
const ROUNDS_PER_BITS: u32 = 8;
/// Requests that are done before the next client is looked at: their memory accesses overlap well,
/// and their clients go on meanwhile. (Twice as many were measured to be slower: clients and server
/// then wait for one another.)
const BATCH_ENOUGH: usize = 32;
/// Rounds without a pause after one in which somebody asked.
const ROUNDS_EAGER: u32 = 64;
/// Rounds without requests between two looks at the clock: some microseconds, of an expiry in
/// milliseconds. After a batch it is looked at as well, when nobody waits for it.
const ROUNDS_PER_CLOCK: u32 = 32;
/// Longest sleep of a serving thread: a wake-up that a dying client owed is late by so much.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Connections beyond the clients that may wait for their welcome.
const GUESTS_MAX: usize = 64;
/// Pause after a connection could not be taken: out of descriptors, as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Where and how a server serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Name of the control socket, in the kernel's abstract namespace: `rackpool/cache0`.
    pub name: String,
    /// Clients at once, 1 to [`super::geometry::CLIENTS_MAX`].
    pub clients: u32,
    /// Windows of a client that does not ask for a number; it may ask for up to [`WINDOWS_MAX`].
    pub windows: u32,
    /// Longest value in a slot, bytes.
    pub value_bytes: u32,
}

impl Door {
    /// A door of this name, with 1024 clients, 16 windows, and values up to 1000 bytes.
    pub fn new(name: &str) -> Door {
        let (windows, value_bytes) = (WINDOWS_DEFAULT, VALUE_BYTES_DEFAULT);
        Door { name: name.to_owned(), clients: CLIENTS_DEFAULT, windows, value_bytes }
    }
}

/// A running server; it ends when this is dropped, and its clients' calls answer
/// [`Error::Gone`](super::Error::Gone).
pub struct Server {
    posts: Vec<Arc<Post>>,
    stop: Arc<WakeEvent>,
    is_stopping: Arc<AtomicBool>,
    tallies: Arc<Tallies>,
    threads: Vec<JoinHandle<()>>,
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Io { what, source }
}

impl Server {
    /// Serves `cache` with so many serving threads. The threads spin while clients ask and sleep
    /// otherwise.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(cache: Cache, door: &Door, threads: u32) -> Result<Server, StartError> {
        let geometry = Geometry {
            servers: threads,
            clients: 1,
            windows: door.windows,
            value_bytes: door.value_bytes,
        };
        let clients = Geometry { clients: door.clients, ..geometry };
        if let Err(Error::BadOption { option, value, min, max }) = clients.checked() {
            return Err(StartError::BadOption { option, value, min, max });
        }
        let listener = ControlListener::bind(&door.name)?;
        let bytes = pair::bell_bytes(threads, door.clients);
        let bell = Window::shared("rackpool-kv-bell", bytes).map_err(io_error("memory"))?;
        let stop = Arc::new(WakeEvent::new().map_err(io_error("waking the doorkeeper"))?);
        let posts = (0..threads).map(|server| {
            let bitmap = pair::bitmap(&bell.1, server, door.clients);
            Arc::new(Post { letters: Mutex::default(), bitmap, mail: door.clients })
        });
        let mut server = Server {
            posts: posts.collect(),
            stop,
            is_stopping: Arc::default(),
            tallies: Arc::new(Tallies::new(threads)),
            threads: Vec::new(),
        };
        for number in 0..threads {
            server.start_thread(number, &cache, geometry, door.clients)?;
        }
        server.start_doorkeeper(listener, bell.0, geometry, door, cache.options().seed)?;
        Ok(server)
    }

    /// What was counted.
    pub fn tallies(&self) -> &Arc<Tallies> {
        &self.tallies
    }

    /// Ends: clients are told, threads are gone when this returns.
    pub fn stop(&mut self) {
        // Relaxed: the flag carries no data; the wake-ups below make threads look.
        self.is_stopping.store(true, Ordering::Relaxed);
        self.stop.notify();
        self.posts.iter().for_each(|post| post.knock());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }

    fn start_thread(
        &mut self,
        server: u32,
        cache: &Cache,
        geometry: Geometry,
        clients: u32,
    ) -> Result<(), StartError> {
        let engine = Engine::new(cache.clone(), Form::Ordered, geometry, clients);
        let mut serving = Serving {
            server,
            geometry,
            engine,
            post: Arc::clone(&self.posts[server as usize]),
            tallies: Arc::clone(&self.tallies),
            seats: (0..clients).map(|_| None).collect(),
            watched: Vec::with_capacity(WATCHED_MAX),
            rung: Vec::new(),
            replied: Vec::new(),
            rounds: 0,
            now: wall_ms(),
        };
        let is_stopping = Arc::clone(&self.is_stopping);
        self.spawn(format!("herd-{server}"), move || serving.run(&is_stopping))
    }

    fn start_doorkeeper(
        &mut self,
        listener: ControlListener,
        bell: OwnedFd,
        geometry: Geometry,
        door: &Door,
        seed: u64,
    ) -> Result<(), StartError> {
        let poller = Poller::new().map_err(io_error("waiting for clients"))?;
        let added = poller.add(&listener, LISTENER, Interest::Read);
        let added = added.and_then(|()| poller.add(&*self.stop, STOP, Interest::Read));
        added.map_err(io_error("waiting for clients"))?;
        let mut keeper = Doorkeeper {
            listener,
            poller,
            bell,
            geometry,
            clients: door.clients,
            seed,
            posts: self.posts.clone(),
            tallies: Arc::clone(&self.tallies),
            guests: BTreeMap::new(),
            free: (0..door.clients).rev().collect(),
            next: FIRST_GUEST,
        };
        let (is_stopping, stop) = (Arc::clone(&self.is_stopping), Arc::clone(&self.stop));
        self.spawn("herd-door".into(), move || {
            let _held_open = stop;
            keeper.run(&is_stopping);
        })
    }

    fn spawn(
        &mut self,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let thread = std::thread::Builder::new().name(name).spawn(body);
        self.threads.push(thread.map_err(io_error("starting a thread"))?);
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the doorkeeper tells a serving thread.
enum Letter {
    Enter { client: u32, memory: Window, windows: u32, event: WakeEvent },
    Leave { client: u32 },
}

/// Where a serving thread gets its letters, and how it is woken.
struct Post {
    letters: Mutex<Vec<Letter>>,
    bitmap: Bitmap,
    /// The bit of the mail.
    mail: u32,
}

impl Post {
    fn letters(&self) -> MutexGuard<'_, Vec<Letter>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, letter: Letter) {
        self.letters().push(letter);
        self.knock();
    }

    fn knock(&self) {
        pair::ring(&self.bitmap, self.mail);
    }
}

/// A client as a serving thread knows it.
struct Seat {
    memory: Window,
    event: WakeEvent,
    is_watched: bool,
    /// Looks in a row that found nothing.
    looks: u32,
}

/// A serving thread.
struct Serving {
    server: u32,
    geometry: Geometry,
    engine: Engine,
    post: Arc<Post>,
    tallies: Arc<Tallies>,
    seats: Vec<Option<Seat>>,
    watched: Vec<u32>,
    /// Clients that have set their bit and were not looked at.
    rung: Vec<u32>,
    /// Clients with replies of this batch.
    replied: Vec<u32>,
    /// Rounds so far.
    rounds: u32,
    /// Milliseconds since the epoch, some microseconds ago at most.
    now: Millis,
}

impl Serving {
    fn run(&mut self, is_stopping: &AtomicBool) {
        let mut waiter = Waiter::new();
        let mut eager = 0;
        // Relaxed: as in `Server::stop`.
        while !is_stopping.load(Ordering::Relaxed) {
            if self.round() {
                waiter.progressed();
                eager = ROUNDS_EAGER;
                continue;
            }
            // A pause of the processor is longer than a round: whoever has just been answered
            // asks again before one is over.
            if eager > 0 {
                eager -= 1;
                continue;
            }
            if waiter.pause() == Pause::Sleep && self.watch_nobody() {
                self.tally().add(What::Sleeps, 1);
                self.post.bitmap.sleep(SLEEP_MAX);
                self.now = wall_ms();
                // Also if a client that must not has cleared the bit of the mail.
                self.read_mail();
                waiter.progressed();
            }
        }
    }

    fn tally(&self) -> &Tally {
        &self.tallies.0[self.server as usize]
    }

    /// Looks at all who may ask, and serves them; whether anybody asked.
    fn round(&mut self) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(ROUNDS_PER_CLOCK) {
            self.now = wall_ms();
        }
        let mut asked = false;
        if self.watched.is_empty() || self.rounds.is_multiple_of(ROUNDS_PER_BITS) {
            asked = self.take_bits();
        }
        asked |= self.look_at_rung();
        asked |= self.look_at_watched();
        if self.engine.gathered() > 0 {
            self.serve();
        }
        asked
    }

    /// Looks at those who have set their bits; whether there were any.
    fn look_at_rung(&mut self) -> bool {
        let were_any = !self.rung.is_empty();
        for index in (0..self.rung.len()).rev() {
            let client = self.rung[index];
            if self.seats[client as usize].is_none() {
                // As above: whoever rings was let in, as a rule.
                self.read_mail();
            }
            self.begin_to_watch(client);
            // A client that is not watched is looked at until nothing more is there.
            if self.look(client) == 0 || self.is_watched(client) {
                self.rung.swap_remove(index);
            }
        }
        were_any
    }

    /// Looks at all who are watched; whether anything was found.
    #[inline]
    fn look_at_watched(&mut self) -> bool {
        let mut has_found = false;
        for index in (0..self.watched.len()).rev() {
            let client = self.watched[index];
            let found = self.look(client) > 0;
            has_found |= found;
            let Some(seat) = &mut self.seats[client as usize] else { continue };
            seat.looks = if found { 0 } else { seat.looks + 1 };
            if seat.looks > LOOKS_MAX {
                self.end_to_watch(index);
            }
        }
        has_found
    }

    /// Takes all bits, and reads the mail; whether there was any.
    fn take_bits(&mut self) -> bool {
        let mut has_mail = false;
        for word in 0..self.post.bitmap.words() {
            let mut bits = self.post.bitmap.take(word);
            while bits != 0 {
                let bit = 64 * word + bits.trailing_zeros();
                bits &= bits - 1;
                match bit.cmp(&self.post.mail) {
                    std::cmp::Ordering::Less => self.rung.push(bit),
                    std::cmp::Ordering::Equal => has_mail = true,
                    // No client has this bit: whoever set it makes no sense.
                    std::cmp::Ordering::Greater => {}
                }
            }
        }
        if has_mail {
            // Before the bits are looked at: a client's letter came before its first bit.
            self.read_mail();
        }
        has_mail
    }

    fn read_mail(&mut self) {
        let letters = std::mem::take(&mut *self.post.letters());
        for letter in letters {
            match letter {
                Letter::Enter { client, memory, windows, event } => {
                    let geometry = Geometry { windows, ..self.geometry };
                    let (requests, replies) = pair::slots(&memory, &geometry, self.server);
                    self.engine.enter(client, requests, replies);
                    let seat = Seat { memory, event, is_watched: false, looks: 0 };
                    self.seats[client as usize] = Some(seat);
                }
                Letter::Leave { client } => {
                    self.engine.leave(client);
                    self.seats[client as usize] = None;
                    self.watched.retain(|watched| *watched != client);
                }
            }
        }
    }

    fn is_watched(&self, client: u32) -> bool {
        self.seats[client as usize].as_ref().is_some_and(|seat| seat.is_watched)
    }

    /// Gathers what a client asks; how much.
    #[inline]
    fn look(&mut self, client: u32) -> usize {
        if self.engine.gathered() >= BATCH_ENOUGH {
            self.serve();
        }
        self.engine.gather(client, &self.tallies.0[self.server as usize])
    }

    fn begin_to_watch(&mut self, client: u32) {
        let has_room = self.watched.len() < WATCHED_MAX;
        if let Some(seat) = &mut self.seats[client as usize]
            && !seat.is_watched
            && has_room
        {
            watch::begin(&seat.memory, pair::watch_at(self.server));
            (seat.is_watched, seat.looks) = (true, 0);
            self.watched.push(client);
        }
    }

    /// Stops to watch the client at `index` of those watched, unless it asks just now.
    fn end_to_watch(&mut self, index: usize) -> bool {
        let client = self.watched[index];
        let Some(seat) = &mut self.seats[client as usize] else { return true };
        seat.looks = 0;
        let at = pair::watch_at(self.server);
        let has_ended = watch::end(&seat.memory, at, || self.engine.is_ready(client));
        if has_ended {
            seat.is_watched = false;
            self.watched.swap_remove(index);
        }
        has_ended
    }

    /// Stops to watch everybody; `false` if somebody asks just now.
    fn watch_nobody(&mut self) -> bool {
        (0..self.watched.len()).rev().all(|index| self.end_to_watch(index))
    }

    /// Does what was gathered and wakes the clients that sleep.
    fn serve(&mut self) {
        let Serving { engine, replied, seats, tallies, .. } = self;
        let tally = &tallies.0[self.server as usize];
        engine.run(self.now, tally, |reply| {
            if replied.last() != Some(&reply.client) {
                replied.push(reply.client);
            }
        });
        if let Some(seat) = replied.iter().find_map(|client| seats[*client as usize].as_ref()) {
            // Pairs with the fence in client.rs::sleep: one of the two sees the other.
            seat.memory.fence();
        }
        for client in replied.drain(..) {
            if let Some(seat) = &seats[client as usize]
                && seat.memory.load(pair::SLEEPING) != 0
            {
                seat.memory.store(pair::SLEEPING, 0);
                seat.event.notify();
            }
        }
        self.now = wall_ms();
    }
}

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_GUEST: u64 = 2;

/// A connection.
struct Guest {
    conn: ControlConn,
    /// Its number, once it was let in.
    client: Option<u32>,
}

/// The thread that lets clients in.
struct Doorkeeper {
    listener: ControlListener,
    poller: Poller,
    bell: OwnedFd,
    geometry: Geometry,
    clients: u32,
    seed: u64,
    posts: Vec<Arc<Post>>,
    tallies: Arc<Tallies>,
    guests: BTreeMap<u64, Guest>,
    /// Numbers that no client has.
    free: Vec<u32>,
    next: u64,
}

impl Doorkeeper {
    fn run(&mut self, is_stopping: &AtomicBool) {
        let mut events: Vec<Readiness> = Vec::new();
        loop {
            if self.poller.wait(None, &mut events).is_err() {
                std::thread::sleep(ACCEPT_PAUSE);
            }
            // Relaxed: as in `Server::stop`.
            if is_stopping.load(Ordering::Relaxed) {
                return;
            }
            for event in &events {
                match event.token {
                    LISTENER => self.accept(),
                    STOP => {}
                    guest => self.hear(guest),
                }
            }
        }
    }

    fn count(&self, what: What) {
        self.tallies.0[self.posts.len()].add(what, 1);
    }

    fn accept(&mut self) {
        loop {
            let conn = match self.listener.accept() {
                Ok(Some(conn)) => conn,
                Ok(None) => return,
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            };
            let is_crowded = self.guests.len() >= self.clients as usize + GUESTS_MAX;
            if is_crowded || conn.check_peer().is_err() {
                self.count(What::Rejected);
                continue;
            }
            let token = self.next;
            self.next += 1;
            if self.poller.add(&conn, token, Interest::Read).is_ok() {
                self.guests.insert(token, Guest { conn, client: None });
            }
        }
    }

    /// A guest says something or has ended.
    fn hear(&mut self, token: u64) {
        let Some(guest) = self.guests.get(&token) else { return };
        let mut buffer = [0; 256];
        match guest.conn.recv(&mut buffer) {
            Ok(Received::Nothing) => {}
            Ok(Received::Message { bytes, .. }) if guest.client.is_none() => {
                if !self.greet(token, &buffer[..bytes]) {
                    self.count(What::Rejected);
                    self.part(token);
                }
            }
            // Its end; or it speaks although there is nothing to say.
            _ => self.part(token),
        }
    }

    /// Answers a hello; whether the guest is a client now.
    fn greet(&mut self, token: u64, message: &[u8]) -> bool {
        let admitted = Hello::read(message).and_then(|hello| self.admit(hello));
        let guest = self.guests.get_mut(&token).expect("it has just spoken");
        match admitted {
            Ok(place) => {
                guest.client = Some(place.welcome.client);
                let fds = [place.memory.as_fd(), self.bell.as_fd(), place.event.as_fd()];
                self.tallies.0[self.posts.len()].add(What::Joined, 1);
                // A client that is gone already is heard of next.
                let _ = guest.conn.send(place.welcome.as_bytes(), &fds);
                true
            }
            Err(verdict) => {
                let windows = match verdict {
                    Verdict::Windows => WINDOWS_MAX,
                    _ => self.geometry.windows,
                };
                let geometry = Geometry { windows, ..self.geometry };
                let welcome = Welcome::new(verdict, geometry, self.clients);
                // Who does not listen need not know why.
                let _ = guest.conn.send(welcome.as_bytes(), &[]);
                false
            }
        }
    }

    /// Makes a place for a client and tells the serving threads of it.
    fn admit(&mut self, hello: Hello) -> Result<Place, Verdict> {
        let windows = if hello.windows == 0 { self.geometry.windows } else { hello.windows };
        let geometry = Geometry { windows, ..self.geometry };
        geometry.checked().map_err(|_| Verdict::Windows)?;
        let client = *self.free.last().ok_or(Verdict::Full)?;
        let (fd, memory) = Window::shared("rackpool-kv-herd", pair::pair_bytes(&geometry))
            .map_err(|_| Verdict::NoMemory)?;
        let event = WakeEvent::new().map_err(|_| Verdict::NoMemory)?;
        let events: io::Result<Vec<_>> = self.posts.iter().map(|_| event.try_clone()).collect();
        let events = events.map_err(|_| Verdict::NoMemory)?;
        self.free.pop();
        for (post, event) in self.posts.iter().zip(events) {
            let memory = memory.clone();
            post.send(Letter::Enter { client, memory, windows, event });
        }
        let mut welcome = Welcome::new(Verdict::Welcome, geometry, self.clients);
        (welcome.client, welcome.seed) = (client, self.seed);
        Ok(Place { welcome, memory: fd, event })
    }

    /// A guest is gone, or has to go.
    fn part(&mut self, token: u64) {
        let Some(guest) = self.guests.remove(&token) else { return };
        // Its socket is about to be closed in any case.
        let _ = self.poller.remove(&guest.conn);
        if let Some(client) = guest.client {
            self.count(What::Left);
            for post in &self.posts {
                post.send(Letter::Leave { client });
            }
            // The threads read their letters in order: a new client of this number comes behind.
            self.free.push(client);
        }
    }
}

/// What a client is given.
struct Place {
    welcome: Welcome,
    memory: OwnedFd,
    event: WakeEvent,
}
