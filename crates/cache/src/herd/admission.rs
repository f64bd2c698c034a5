//! What the acceptors of all transports share: which clients may come in, under which numbers, and
//! how the serving threads hear of it. The slots of a client, and how it is told where they are,
//! are its transport's (`acceptor.rs`, `fabric/connections.rs`).

use super::counters::{HerdCounter, HerdCounters};
use super::geometry::Geometry;
use super::handshake::{Hello, Verdict, Welcome};
use super::serving::{CommandQueue, ServingOptions, WorkerCommand};
use rackpool_mem::event::{Poller, Readiness};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A connection that was not let in is closed after so long.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How often that is looked after, while there are such connections.
pub(super) const HELLO_POLL: Duration = Duration::from_secs(1);

/// An acceptor of one transport. Its thread sleeps between two calls.
pub(super) trait Acceptor: Send + 'static {
    /// Has the poller report what it waits for.
    fn watch(&self, _: &Poller) -> io::Result<()> {
        Ok(())
    }

    /// When it has to look although nothing is reported.
    fn poll_after(&self) -> Option<Duration>;

    /// Handles what is ready, what else has come, and what is due.
    fn poll_once(&mut self, poller: &Poller, ready: &[Readiness]);
}

/// Clients' numbers, and the commands to serving threads about them.
pub(super) struct Admission<S> {
    /// The sizes of a client that does not ask for others.
    pub geometry: Geometry,
    /// How many clients there may be.
    pub clients: u32,
    seed: u64,
    queues: Vec<Arc<CommandQueue<S>>>,
    counters: Arc<HerdCounters>,
    /// Numbers that no client has.
    free: Vec<u32>,
}

impl<S> Admission<S> {
    pub fn new(options: &ServingOptions, queues: Vec<Arc<CommandQueue<S>>>) -> Admission<S> {
        Admission {
            geometry: options.geometry,
            clients: options.clients,
            seed: options.cache.options().seed,
            queues,
            counters: Arc::clone(&options.counters),
            free: (0..options.clients).rev().collect(),
        }
    }

    pub fn count(&self, what: HerdCounter, by: u64) {
        self.counters.0[self.queues.len()].add(what, by);
    }

    /// The sizes of the client that sends a hello.
    pub fn geometry_of(&self, hello: &Hello) -> Geometry {
        let windows = if hello.windows == 0 { self.geometry.windows } else { hello.windows };
        Geometry { windows, ..self.geometry }
    }

    /// The welcome of a client.
    pub fn welcome(&self, client: u32, geometry: Geometry) -> Welcome {
        let mut welcome = Welcome::new(Verdict::Welcome, geometry, self.clients);
        (welcome.client, welcome.seed) = (client, self.seed);
        welcome
    }

    /// Why there is none, and how many windows there may be.
    pub fn refusal(&self, verdict: Verdict, windows: u32) -> Welcome {
        self.count(HerdCounter::Rejected, 1);
        Welcome::new(verdict, Geometry { windows, ..self.geometry }, self.clients)
    }

    /// A number that no client has.
    pub fn take_number(&mut self) -> Result<u32, Verdict> {
        self.free.pop().ok_or(Verdict::Full)
    }

    /// No serving thread touches the slots of this number any more, or will before it has read of
    /// a new client.
    pub fn give_back(&mut self, client: u32) {
        self.free.push(client);
    }

    /// Tells each serving thread of a client, with its transport there.
    pub fn attach(&self, client: u32, transports: impl IntoIterator<Item = S>) {
        for (queue, transport) in self.queues.iter().zip(transports) {
            queue.send(WorkerCommand::Attach { client, transport });
        }
    }

    /// Tells each serving thread of a client's end; what is returned has no other holder when all
    /// have dropped it.
    pub fn detach(&self, client: u32) -> Arc<()> {
        let done = Arc::new(());
        for queue in &self.queues {
            queue.send(WorkerCommand::Detach { client, done: Arc::clone(&done) });
        }
        done
    }

    /// A client rings for a serving thread; `false` if there is no such thread.
    pub fn ring(&self, client: u32, server: u32) -> bool {
        let queue = self.queues.get(server as usize);
        queue.inspect(|queue| queue.bell.ring(client)).is_some()
    }
}
