//! The acceptor of shared memory: admits clients and detects their end.
//!
//! It owns the control sockets. The death of a client is seen at once by the end of its socket: its
//! number is free for the next one when every serving thread has dropped it.
//!
//! Source: HERD §4.2 (an initializer that sleeps).

use super::counters::{HerdCounter, HerdCounters};
use super::engine::{ClientSlots, Replied};
use super::error::HerdStartError;
use super::geometry::{Geometry, WINDOWS_MAX};
use super::handshake::{Hello, Verdict, Welcome};
use super::options::ServerOptions;
use super::pair;
use super::serving::{ClientTransport, CommandQueue, ServingOptions, WorkerCommand};
use super::slot::SlotFormat;
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
const PENDING_MAX: usize = 64;
/// Connections taken in one turn.
const ACCEPTS_MAX: usize = 64;
/// Pause after a connection could not be taken: out of descriptors, as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_CLIENT: u64 = 2;

struct ControlClient {
    conn: Arc<ControlConn>,
    /// Its number, once it was let in.
    client: Option<u32>,
}

/// A client at a serving thread: its memory, and what wakes it.
pub(super) struct ShmClient {
    memory: Window,
    geometry: Geometry,
    server: u32,
    conn: Arc<ControlConn>,
}

impl ClientTransport for ShmClient {
    type Source = ();
    const FORM: SlotFormat = SlotFormat::Ordered;
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
        // Pairs with the fence in shm.rs::sleep: one of the two sees the other.
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
pub(super) struct ShmAcceptor {
    listener: ControlListener,
    poller: Poller,
    /// Held open for the poller.
    _stop: Arc<WakeEvent>,
    bell: OwnedFd,
    geometry: Geometry,
    clients: u32,
    seed: u64,
    queues: Vec<Arc<CommandQueue<ShmClient>>>,
    counters: Arc<HerdCounters>,
    connections: BTreeMap<u64, ControlClient>,
    /// Those that have not said hello, the oldest first.
    pending: BTreeSet<u64>,
    /// Numbers that no client has.
    free: Vec<u32>,
    next: u64,
}

impl ShmAcceptor {
    pub(super) fn new(
        serving: &ServingOptions,
        options: &ServerOptions,
        stop: Arc<WakeEvent>,
        bell: OwnedFd,
        queues: Vec<Arc<CommandQueue<ShmClient>>>,
    ) -> Result<ShmAcceptor, HerdStartError> {
        let listener = ControlListener::bind(&options.name)?;
        let poller = Poller::new().map_err(HerdStartError::io("waiting for clients"))?;
        let added = poller.add(&listener, LISTENER, Interest::Read);
        let added = added.and_then(|()| poller.add(&*stop, STOP, Interest::Read));
        added.map_err(HerdStartError::io("waiting for clients"))?;
        Ok(ShmAcceptor {
            listener,
            poller,
            _stop: stop,
            bell,
            geometry: serving.geometry,
            clients: options.clients,
            seed: serving.cache.options().seed,
            queues,
            counters: Arc::clone(&serving.counters),
            connections: BTreeMap::new(),
            pending: BTreeSet::new(),
            free: (0..options.clients).rev().collect(),
            next: FIRST_CLIENT,
        })
    }

    pub(super) fn run(&mut self, is_stopping: &AtomicBool) {
        let mut events: Vec<Readiness> = Vec::new();
        loop {
            if self.poller.wait(None, &mut events).is_err() {
                std::thread::sleep(ACCEPT_PAUSE);
            }
            // Relaxed: as in `HerdServer::stop`.
            if is_stopping.load(Ordering::Relaxed) {
                return;
            }
            for event in &events {
                match event.token {
                    LISTENER => self.accept(),
                    STOP => {}
                    one => self.on_message(one),
                }
            }
        }
    }

    fn count(&self, what: HerdCounter) {
        self.counters.0[self.queues.len()].add(what, 1);
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let conn = match self.listener.accept() {
                Ok(Some(conn)) => conn,
                Ok(None) => return,
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            };
            if conn.check_peer().is_err() {
                self.count(HerdCounter::Rejected);
                continue;
            }
            if self.pending.len() >= PENDING_MAX
                && let Some(oldest) = self.pending.pop_first()
            {
                self.count(HerdCounter::Rejected);
                self.disconnect(oldest);
            }
            let token = self.next;
            self.next += 1;
            if self.poller.add(&conn, token, Interest::Read).is_ok() {
                self.pending.insert(token);
                self.connections
                    .insert(token, ControlClient { conn: Arc::new(conn), client: None });
            }
        }
    }

    /// A connection has a message or has ended.
    fn on_message(&mut self, token: u64) {
        let Some(one) = self.connections.get(&token) else { return };
        let mut buffer = [0; 256];
        match one.conn.recv(&mut buffer) {
            Ok(Received::Nothing) => {}
            Ok(Received::Message { bytes, .. }) if one.client.is_none() => {
                self.pending.remove(&token);
                if !self.on_hello(token, &buffer[..bytes]) {
                    self.disconnect(token);
                }
            }
            // Its end; or a message, though none is expected.
            _ => self.disconnect(token),
        }
    }

    /// Answers a hello; whether the peer is a client now.
    fn on_hello(&mut self, token: u64, message: &[u8]) -> bool {
        let conn = Arc::clone(&self.connections[&token].conn);
        let admitted = Hello::read(message).and_then(|hello| self.admit(hello, &conn));
        if admitted.is_err() {
            // Before the peer can learn of it.
            self.count(HerdCounter::Rejected);
        }
        let one = self.connections.get_mut(&token).expect("it has just spoken");
        match admitted {
            Ok(admitted) => {
                one.client = Some(admitted.welcome.client);
                let fds = [admitted.memory.as_fd(), self.bell.as_fd()];
                self.counters.0[self.queues.len()].add(HerdCounter::Joined, 1);
                // The end of a client that is gone already is the next event.
                let _ = one.conn.send(admitted.welcome.as_bytes(), &fds);
                true
            }
            Err(verdict) => {
                let windows = match verdict {
                    Verdict::Windows => WINDOWS_MAX,
                    _ => self.geometry.windows,
                };
                let geometry = Geometry { windows, ..self.geometry };
                let welcome = Welcome::new(verdict, geometry, self.clients);
                // A peer that does not read need not know why.
                let _ = one.conn.send(welcome.as_bytes(), &[]);
                false
            }
        }
    }

    /// Makes a place for a client and tells the serving threads of it.
    fn admit(&mut self, hello: Hello, conn: &Arc<ControlConn>) -> Result<ClientGrant, Verdict> {
        let windows = if hello.windows == 0 { self.geometry.windows } else { hello.windows };
        let geometry = Geometry { windows, ..self.geometry };
        geometry.checked().map_err(|_| Verdict::Windows)?;
        let client = *self.free.last().ok_or(Verdict::Full)?;
        let (fd, memory) = Window::shared("rackpool-kv-herd", pair::pair_bytes(&geometry))
            .map_err(|_| Verdict::NoMemory)?;
        self.free.pop();
        for (server, queue) in (0..).zip(&self.queues) {
            let (memory, conn) = (memory.clone(), Arc::clone(conn));
            let transport = ShmClient { memory, geometry, server, conn };
            queue.send(WorkerCommand::Attach { client, transport });
        }
        let mut welcome = Welcome::new(Verdict::Welcome, geometry, self.clients);
        (welcome.client, welcome.seed) = (client, self.seed);
        Ok(ClientGrant { welcome, memory: fd })
    }

    /// A connection has ended, or has to end.
    fn disconnect(&mut self, token: u64) {
        let Some(one) = self.connections.remove(&token) else { return };
        self.pending.remove(&token);
        // Its socket is about to be closed in any case, when the last thread has dropped it.
        let _ = self.poller.remove(&*one.conn);
        one.conn.shutdown();
        if let Some(client) = one.client {
            self.count(HerdCounter::Left);
            for queue in &self.queues {
                queue.send(WorkerCommand::Detach { client, done: Arc::default() });
            }
            // The threads read their commands in order: a new client of this number comes behind.
            self.free.push(client);
        }
    }
}

/// What a client is given.
struct ClientGrant {
    welcome: Welcome,
    memory: OwnedFd,
}
