//! The acceptor of shared memory: admits clients and detects their end.
//!
//! It owns the control sockets, which it accepts as daemon and agent do. The death of a client is
//! seen at once by the end of its socket.
//!
//! Source: HERD §4.2 (an initializer that sleeps).

use super::admission::{Acceptor, Admission, HELLO_POLL, HELLO_WITHIN};
use super::counters::HerdCounter;
use super::engine::{ClientSlots, Replied};
use super::error::Result;
use super::geometry::{Geometry, WINDOWS_MAX};
use super::handshake::{Hello, Verdict, Welcome};
use super::pair;
use super::serving::ClientTransport;
use super::slot::SlotFormat;
use rackpool_core::constants::CONTROL_REST_NS;
use rackpool_core::seam::Mem;
use rackpool_fabric::acceptor::{ControlAcceptor, PendingConns};
use rackpool_fabric::control::{self, ControlConn, ControlListener, Received};
use rackpool_mem::event::{Interest, Poller, Readiness};
use rackpool_mem::process::monotonic_ns;
use rackpool_mem::ring::watch;
use rackpool_mem::window::Window;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Tokens of the poller: the listener, connections that have not said hello, then clients.
const TOKEN_LISTENER: u64 = 1;
const TOKEN_PENDING: u64 = 1 << 16;
const TOKEN_CLIENT: u64 = 2 << 16;

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

pub(super) struct ShmAcceptor {
    listener: ControlAcceptor,
    bell: OwnedFd,
    admission: Admission<ShmClient>,
    pending: PendingConns<()>,
    clients: BTreeMap<u32, Arc<ControlConn>>,
}

impl ShmAcceptor {
    /// At a name; `bell` is the memory of the serving threads' bells.
    pub(super) fn new(
        name: &str,
        bell: OwnedFd,
        admission: Admission<ShmClient>,
    ) -> Result<ShmAcceptor> {
        let listener = ControlListener::bind(name)?;
        let listener = ControlAcceptor::new(listener, TOKEN_LISTENER, control::access([]));
        let wait_ns = HELLO_WITHIN.as_nanos() as u64;
        let pending = PendingConns::new(TOKEN_PENDING..TOKEN_CLIENT, wait_ns);
        Ok(ShmAcceptor { listener, bell, admission, pending, clients: BTreeMap::new() })
    }

    fn accept(&mut self, poller: &Poller) {
        let now = monotonic_ns();
        let ShmAcceptor { listener, admission, pending, .. } = self;
        let refuse = |_, _| admission.count(HerdCounter::Rejected, 1);
        for (conn, user) in listener.accept(now, poller, refuse) {
            if let Some(old) = pending.add(conn, user, now, poller) {
                admission.count(HerdCounter::Rejected, 1);
                old.shutdown();
            }
        }
    }

    /// A connection that was not let in has a message or has ended.
    fn on_pending(&mut self, token: u64, poller: &Poller) {
        let Some(one) = self.pending.get_mut(token) else { return };
        let mut buffer = [0; 256];
        let received = one.conn.recv(&mut buffer);
        if matches!(received, Ok(Received::Nothing)) {
            return;
        }
        let Some(one) = self.pending.remove(token, poller) else { return };
        if let Ok(Received::Message { bytes, .. }) = received {
            self.on_hello(Arc::new(one.conn), &buffer[..bytes], poller);
        }
    }

    fn on_hello(&mut self, conn: Arc<ControlConn>, message: &[u8], poller: &Poller) {
        match Hello::read(message).and_then(|hello| self.admit(&hello, &conn)) {
            Ok((welcome, memory)) => {
                let client = welcome.client;
                self.admission.count(HerdCounter::Joined, 1);
                // The end of a client that is gone already is the next event.
                let _ = conn.send(welcome.as_bytes(), &[memory.as_fd(), self.bell.as_fd()]);
                let token = TOKEN_CLIENT + u64::from(client);
                let is_watched = poller.add(&*conn, token, Interest::Read).is_ok();
                self.clients.insert(client, conn);
                if !is_watched {
                    self.disconnect(client, poller);
                }
            }
            Err(verdict) => {
                let windows = match verdict {
                    Verdict::Windows => WINDOWS_MAX,
                    _ => self.admission.geometry.windows,
                };
                // It is counted before the peer can learn of it. A peer that does not read need not
                // know why.
                let _ = conn.send(self.admission.refusal(verdict, windows).as_bytes(), &[]);
                conn.shutdown();
            }
        }
    }

    /// Makes memory for a client and tells the serving threads of it.
    fn admit(
        &mut self,
        hello: &Hello,
        conn: &Arc<ControlConn>,
    ) -> Result<(Welcome, OwnedFd), Verdict> {
        let geometry = self.admission.geometry_of(hello);
        geometry.checked().map_err(|_| Verdict::Windows)?;
        let client = self.admission.take_number()?;
        let shared = Window::shared("rackpool-cache-herd", pair::pair_bytes(&geometry));
        let Ok((fd, memory)) = shared else {
            self.admission.give_back(client);
            return Err(Verdict::NoMemory);
        };
        let transports = (0..geometry.servers).map(|server| {
            let (memory, conn) = (memory.clone(), Arc::clone(conn));
            ShmClient { memory, geometry, server, conn }
        });
        self.admission.attach(client, transports);
        Ok((self.admission.welcome(client, geometry), fd))
    }

    /// A client has sent something, though nothing is expected, or has ended.
    fn on_client(&mut self, client: u32, poller: &Poller) {
        let conn = self.clients.get(&client);
        if conn.is_some_and(|conn| !matches!(conn.recv(&mut [0; 256]), Ok(Received::Nothing))) {
            self.disconnect(client, poller);
        }
    }

    /// A client has ended, or has to end.
    fn disconnect(&mut self, client: u32, poller: &Poller) {
        let Some(conn) = self.clients.remove(&client) else { return };
        // Its socket is about to be closed in any case, when the last thread has dropped it.
        let _ = poller.remove(&*conn);
        conn.shutdown();
        self.admission.count(HerdCounter::Left, 1);
        self.admission.detach(client);
        // The threads read their commands in order: a new client of this number comes behind.
        self.admission.give_back(client);
    }
}

impl Acceptor for ShmAcceptor {
    fn watch(&self, poller: &Poller) -> io::Result<()> {
        self.listener.watch(poller)
    }

    fn poll_after(&self) -> Option<Duration> {
        if self.listener.rests() {
            return Some(Duration::from_nanos(CONTROL_REST_NS));
        }
        (!self.pending.is_empty()).then_some(HELLO_POLL)
    }

    fn poll_once(&mut self, poller: &Poller, ready: &[Readiness]) {
        for event in ready {
            match event.token {
                TOKEN_LISTENER => self.accept(poller),
                token @ TOKEN_PENDING..TOKEN_CLIENT => self.on_pending(token, poller),
                token if token >= TOKEN_CLIENT => {
                    self.on_client((token - TOKEN_CLIENT) as u32, poller);
                }
                _ => {}
            }
        }
        let now = monotonic_ns();
        self.pending.expire(now, poller);
        self.listener.tick(now, poller);
    }
}
