//! A running server: its serving threads (`serving.rs`) and its acceptor, of shared memory
//! (`acceptor.rs`) or of a fabric (`fabric/acceptor.rs`).
//!
//! Source: HERD §4.2 (an initializer that sleeps, server processes that poll).

use super::acceptor::ShmAcceptor;
use super::counters::HerdCounters;
use super::engine::Pipeline;
use super::error::{Error, HerdStartError};
use super::fabric::RdmaListener;
use super::fabric::connections::FabricAcceptor;
use super::geometry::{FABRIC_CLIENTS_MAX, FABRIC_REQUESTS_MAX, FABRIC_VALUE_BYTES_MAX, Geometry};
use super::options::{FabricServerOptions, ServerOptions};
use super::pair;
use super::serving::{ClientTransport, CommandQueue, Doorbell, Serving, ServingOptions};
use crate::cache::Cache;
use crate::front::clock::Clock;
use rackpool_hw::event::WakeEvent;
use rackpool_hw::log;
use rackpool_hw::window::Window;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// A running server; it ends when this is dropped, and its clients' calls answer
/// [`Error::Gone`](super::Error::Gone).
pub struct HerdServer {
    bells: Vec<Arc<Doorbell>>,
    stop: Arc<WakeEvent>,
    is_stopping: Arc<AtomicBool>,
    counters: Arc<HerdCounters>,
    threads: Vec<JoinHandle<()>>,
    addr: Option<SocketAddr>,
}

/// These sizes, if all are in range.
fn checked(geometry: Geometry) -> Result<Geometry, HerdStartError> {
    geometry.checked().map_err(|error| match error {
        Error::BadOption { option, value, min, max } => {
            HerdStartError::BadOption { option, value, min, max }
        }
        error => unreachable!("only a size can be wrong: {error}"),
    })
}

impl HerdServer {
    /// Serves `cache` to processes of this host with so many serving threads. The threads spin
    /// while clients ask and sleep otherwise.
    ///
    /// # Errors
    /// [`HerdStartError`].
    pub fn start(
        cache: Cache,
        options: &ServerOptions,
        threads: u32,
    ) -> Result<HerdServer, HerdStartError> {
        let ServerOptions { clients, windows, value_bytes, .. } = *options;
        checked(Geometry { servers: threads, clients, windows, value_bytes })?;
        let geometry = Geometry { servers: threads, clients: 1, windows, value_bytes };
        let (mut server, bell) = HerdServer::begin(threads, clients)?;
        let sources = vec![(); threads as usize];
        let counters = Arc::clone(&server.counters);
        let serving = ServingOptions { cache, geometry, clients, counters };
        let queues = server.start_serving(&serving, options.pipeline, &options.clock, sources)?;
        let stop = Arc::clone(&server.stop);
        let acceptor = ShmAcceptor::new(&serving, options, stop, bell, queues)?;
        server.start_acceptor(acceptor, ShmAcceptor::run)?;
        Ok(server)
    }

    /// Serves `cache` over the tcp fabric with so many serving threads, beside the fabric's own.
    /// The threads spin while clients ask and sleep otherwise.
    ///
    /// # Errors
    /// [`HerdStartError`]; [`HerdStartError::Fabric`] if the address is taken, or is no loopback
    /// address and there is no secret, or if the device is not there.
    pub fn start_fabric(
        cache: Cache,
        options: &FabricServerOptions,
        threads: u32,
    ) -> Result<HerdServer, HerdStartError> {
        let FabricServerOptions { clients, windows, value_bytes, .. } = *options;
        let geometry = checked(Geometry { servers: threads, clients, windows, value_bytes })?;
        let requests = u64::from(windows) * u64::from(threads);
        for (option, value, max) in [
            ("fabric clients", clients.into(), FABRIC_CLIENTS_MAX),
            ("windows of all threads together", requests, FABRIC_REQUESTS_MAX),
            ("value bytes", value_bytes.into(), FABRIC_VALUE_BYTES_MAX),
        ] {
            if value > u64::from(max) {
                return Err(HerdStartError::BadOption { option, value, min: 1, max: max.into() });
            }
        }
        let geometry = Geometry { clients: 1, ..geometry };
        let (mut server, _) = HerdServer::begin(threads, clients)?;
        let device = options.device.as_deref();
        let rdma = device.map(|device| RdmaListener::open(device, &geometry)).transpose()?;
        let sources = (0..threads).zip(&server.bells).map(|(thread, bell)| {
            rdma.as_ref().map(|rdma| rdma.source(thread, Arc::clone(bell))).transpose()
        });
        let sources = sources.collect::<Result<_, _>>()?;
        let counters = Arc::clone(&server.counters);
        let serving = ServingOptions { cache, geometry, clients, counters };
        let queues = server.start_serving(&serving, options.pipeline, &options.clock, sources)?;
        let stop = Arc::clone(&server.stop);
        let acceptor = FabricAcceptor::new(&serving, options, stop, queues, rdma)?;
        server.addr = Some(acceptor.addr());
        server.start_acceptor(acceptor, FabricAcceptor::run)?;
        Ok(server)
    }

    pub fn counters(&self) -> &Arc<HerdCounters> {
        &self.counters
    }

    /// Where it listens, if it serves over a fabric.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Ends: clients are notified, threads are gone when this returns.
    pub fn stop(&mut self) {
        // Relaxed: the flag carries no data; the wake-ups below make threads look.
        self.is_stopping.store(true, Ordering::Relaxed);
        self.stop.notify();
        self.bells.iter().for_each(|bell| bell.notify());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }

    /// A server without threads, and the memory of its bells.
    fn begin(threads: u32, clients: u32) -> Result<(HerdServer, OwnedFd), HerdStartError> {
        let bytes = pair::bell_bytes(threads, clients);
        let (fd, bell) =
            Window::shared("rackpool-kv-bell", bytes).map_err(HerdStartError::io("memory"))?;
        let bells = (0..threads)
            .map(|server| Arc::new(Doorbell::new(pair::bitmap(&bell, server, clients), clients)));
        let server = HerdServer {
            bells: bells.collect(),
            stop: Arc::new(WakeEvent::new().map_err(HerdStartError::io("waking the doorkeeper"))?),
            is_stopping: Arc::default(),
            counters: Arc::new(HerdCounters::new(threads)),
            threads: Vec::new(),
            addr: None,
        };
        Ok((server, fd))
    }

    /// Starts the serving threads; the ways to them.
    fn start_serving<S: ClientTransport + Send>(
        &mut self,
        options: &ServingOptions,
        pipeline: Pipeline,
        clock: &Clock,
        sources: Vec<S::Source>,
    ) -> Result<Vec<Arc<CommandQueue<S>>>, HerdStartError>
    where
        S::Source: Send,
    {
        let queues = self.bells.iter().map(|bell| Arc::new(CommandQueue::new(Arc::clone(bell))));
        let queues: Vec<Arc<CommandQueue<S>>> = queues.collect();
        for ((server, queue), source) in (0..).zip(&queues).zip(sources) {
            let serving = Serving::new(server, options.clone(), Arc::clone(queue), source);
            let mut serving = serving.with_pipeline(pipeline).with_clock(clock.clone());
            let is_stopping = Arc::clone(&self.is_stopping);
            self.spawn(format!("herd-{server}"), move || serving.run(&is_stopping))?;
        }
        Ok(queues)
    }

    fn start_acceptor<K: Send + 'static>(
        &mut self,
        mut acceptor: K,
        run: fn(&mut K, &AtomicBool),
    ) -> Result<(), HerdStartError> {
        let is_stopping = Arc::clone(&self.is_stopping);
        self.spawn("herd-door".into(), move || run(&mut acceptor, &is_stopping))
    }

    fn spawn(
        &mut self,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), HerdStartError> {
        let thread = log::spawn(name, body);
        self.threads.push(thread.map_err(HerdStartError::io("starting a thread"))?);
        Ok(())
    }
}

impl Drop for HerdServer {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Options, partitions_for};
    use crate::herd::Client;
    use crate::herd::counters::HerdCounter;
    use std::collections::BTreeMap;

    /// The threads' look-ups so far, as soon as there are `count`.
    fn gets(server: &HerdServer, count: u64) -> Vec<u64> {
        while server.counters.get(HerdCounter::Gets) < count {
            std::thread::yield_now();
        }
        server.counters.0.iter().map(|counters| counters.get(HerdCounter::Gets)).collect()
    }

    #[test]
    fn a_partition_is_asked_by_one_thread_whatever_their_number() {
        for threads in [1, 2, 3, 17, 24, 33, 63] {
            let partitions = partitions_for(threads);
            let options = Options { memory: 256 << 20, partitions, seed: 9, ..Options::default() };
            let cache = Cache::new(options).unwrap();
            let name = format!("rackpool/test/{}/partitions{threads}", std::process::id());
            let server =
                HerdServer::start(cache.clone(), &ServerOptions::new(&name), threads).unwrap();
            let mut client = Client::connect(&name).unwrap();
            let mut before = gets(&server, 0);
            let mut owners = BTreeMap::new();
            for number in 1..=300u64 {
                let key = number.to_le_bytes();
                assert!(client.get(&key, &mut Vec::new()).unwrap().is_none());
                let now = gets(&server, number);
                let asked = before.iter().zip(&now).position(|(before, now)| before != now);
                let partition = cache.partition_of(&key) as u32;
                let owner = *owners.entry(partition).or_insert(asked);
                assert_eq!(asked, owner, "{threads} threads, partition {partition}");
                assert_eq!(asked, Some((partition * threads / partitions) as usize));
                before = now;
            }
        }
    }

    #[test]
    fn partitions_are_a_multiple_of_the_threads_and_few_enough() {
        for threads in 1..=64 {
            let partitions = partitions_for(threads);
            assert!(partitions.is_multiple_of(threads) && partitions <= 64, "{threads}");
        }
        let counts = [0, 1, 2, 16, 17, 32, 33, 64, 65, 1000].map(partitions_for);
        assert_eq!(counts, [1, 1, 8, 64, 51, 64, 33, 64, 64, 64]);
    }
}
