//! The doorkeeper of shared memory: lets clients in and sees when they end.
//!
//! It owns the control sockets. A client that dies is seen by the end of its socket, at once: its
//! place is free for the next one when every serving thread has dropped it.
//!
//! Source: HERD §4.2 (an initializer that sleeps).

use super::engine::{ClientSlots, Replied};
use super::error::StartError;
use super::geometry::{Geometry, WINDOWS_MAX};
use super::pair;
use super::server::{Door, Server, io_error};
use super::serving::{Letter, Post, Seat};
use super::slot::Form;
use super::tally::{Tallies, What};
use super::welcome::{Hello, Verdict, Welcome};
use rackpool_core::seam::Mem;
use rackpool_hw::control::{ControlConn, ControlListener, Received};
use rackpool_hw::event::{Interest, Poller, Readiness, WakeEvent};
use rackpool_hw::ring::watch;
use rackpool_hw::window::Window;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zerocopy::IntoBytes;

/// Connections that have not said hello; of more, the oldest goes.
const SILENT_MAX: usize = 64;
/// Connections taken in one turn.
const ACCEPTS_MAX: usize = 64;
/// Pause after a connection could not be taken: out of descriptors, as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_GUEST: u64 = 2;

struct Guest {
    conn: Arc<ControlConn>,
    /// Its number, once it was let in.
    client: Option<u32>,
}

/// A client at a serving thread: its memory, and what wakes it.
pub(super) struct Near {
    memory: Window,
    geometry: Geometry,
    server: u32,
    conn: Arc<ControlConn>,
}

impl Seat for Near {
    type Intake = ();
    const FORM: Form = Form::Ordered;
    const LINGER: Duration = Duration::ZERO;
    const WAKES_LATER: bool = true;

    fn slots(&self) -> ClientSlots {
        let slots = pair::slots(&self.memory, &self.geometry, self.server);
        let apart = pair::apart(&self.memory, &self.geometry, self.server);
        ClientSlots { requests: slots.clone(), replies: slots, apart: Some(apart) }
    }

    fn begin_to_watch(&self) {
        watch::begin(&self.memory, pair::watch_at(self.server));
    }

    fn end_to_watch(&self, is_ready: impl FnOnce() -> bool) -> bool {
        watch::end(&self.memory, pair::watch_at(self.server), is_ready)
    }

    #[inline(always)]
    fn reply(&mut self, _: Replied, _: bool) {}

    #[inline]
    fn settle(&self) {
        // Pairs with the fence in near.rs::sleep: one of the two sees the other.
        self.memory.fence();
    }

    #[inline]
    fn wake(&self) {
        if self.memory.load(pair::SLEEPING) != 0 {
            self.memory.store(pair::SLEEPING, 0);
            self.conn.notify();
        }
    }
}

/// The thread that lets clients in.
pub(super) struct Doorkeeper {
    listener: ControlListener,
    poller: Poller,
    /// Held open for the poller.
    _stop: Arc<WakeEvent>,
    bell: OwnedFd,
    geometry: Geometry,
    clients: u32,
    seed: u64,
    posts: Vec<Arc<Post<Near>>>,
    tallies: Arc<Tallies>,
    guests: BTreeMap<u64, Guest>,
    /// Those that have not said hello, the oldest first.
    silent: BTreeSet<u64>,
    /// Numbers that no client has.
    free: Vec<u32>,
    next: u64,
}

impl Doorkeeper {
    pub(super) fn new(
        server: &Server,
        door: &Door,
        geometry: Geometry,
        bell: OwnedFd,
        posts: Vec<Arc<Post<Near>>>,
        seed: u64,
    ) -> Result<Doorkeeper, StartError> {
        let listener = ControlListener::bind(&door.name)?;
        let stop = Arc::clone(server.stop_event());
        let poller = Poller::new().map_err(io_error("waiting for clients"))?;
        let added = poller.add(&listener, LISTENER, Interest::Read);
        let added = added.and_then(|()| poller.add(&*stop, STOP, Interest::Read));
        added.map_err(io_error("waiting for clients"))?;
        Ok(Doorkeeper {
            listener,
            poller,
            _stop: stop,
            bell,
            geometry,
            clients: door.clients,
            seed,
            posts,
            tallies: Arc::clone(server.tallies()),
            guests: BTreeMap::new(),
            silent: BTreeSet::new(),
            free: (0..door.clients).rev().collect(),
            next: FIRST_GUEST,
        })
    }

    pub(super) fn run(&mut self, is_stopping: &AtomicBool) {
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
        for _ in 0..ACCEPTS_MAX {
            let conn = match self.listener.accept() {
                Ok(Some(conn)) => conn,
                Ok(None) => return,
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            };
            if conn.check_peer().is_err() {
                self.count(What::Rejected);
                continue;
            }
            if self.silent.len() >= SILENT_MAX
                && let Some(oldest) = self.silent.pop_first()
            {
                self.count(What::Rejected);
                self.part(oldest);
            }
            let token = self.next;
            self.next += 1;
            if self.poller.add(&conn, token, Interest::Read).is_ok() {
                self.silent.insert(token);
                self.guests.insert(token, Guest { conn: Arc::new(conn), client: None });
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
                self.silent.remove(&token);
                if !self.greet(token, &buffer[..bytes]) {
                    self.part(token);
                }
            }
            // Its end; or it speaks although there is nothing to say.
            _ => self.part(token),
        }
    }

    /// Answers a hello; whether the guest is a client now.
    fn greet(&mut self, token: u64, message: &[u8]) -> bool {
        let conn = Arc::clone(&self.guests[&token].conn);
        let admitted = Hello::read(message).and_then(|hello| self.admit(hello, &conn));
        if admitted.is_err() {
            // Before it can hear of it.
            self.count(What::Rejected);
        }
        let guest = self.guests.get_mut(&token).expect("it has just spoken");
        match admitted {
            Ok(place) => {
                guest.client = Some(place.welcome.client);
                let fds = [place.memory.as_fd(), self.bell.as_fd()];
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
    fn admit(&mut self, hello: Hello, conn: &Arc<ControlConn>) -> Result<Place, Verdict> {
        let windows = if hello.windows == 0 { self.geometry.windows } else { hello.windows };
        let geometry = Geometry { windows, ..self.geometry };
        geometry.checked().map_err(|_| Verdict::Windows)?;
        let client = *self.free.last().ok_or(Verdict::Full)?;
        let (fd, memory) = Window::shared("rackpool-kv-herd", pair::pair_bytes(&geometry))
            .map_err(|_| Verdict::NoMemory)?;
        self.free.pop();
        for (server, post) in (0..).zip(&self.posts) {
            let (memory, conn) = (memory.clone(), Arc::clone(conn));
            let seat = Near { memory, geometry, server, conn };
            post.send(Letter::Enter { client, seat });
        }
        let mut welcome = Welcome::new(Verdict::Welcome, geometry, self.clients);
        (welcome.client, welcome.seed) = (client, self.seed);
        Ok(Place { welcome, memory: fd })
    }

    /// A guest is gone, or has to go.
    fn part(&mut self, token: u64) {
        let Some(guest) = self.guests.remove(&token) else { return };
        self.silent.remove(&token);
        // Its socket is about to be closed in any case, when the last thread has dropped it.
        let _ = self.poller.remove(&*guest.conn);
        guest.conn.shutdown();
        if let Some(client) = guest.client {
            self.count(What::Left);
            for post in &self.posts {
                post.send(Letter::Leave { client, done: Arc::default() });
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
}
