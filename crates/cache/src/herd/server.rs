//! A running server: its serving threads (`serving.rs`) and the thread of its acceptor, of shared
//! memory (`acceptor.rs`) or of a fabric (`fabric/connections.rs`).
//!
//! Source: HERD §4.2 (an initializer that sleeps, server processes that poll).

use super::acceptor::ShmAcceptor;
use super::admission::{Acceptor, Admission};
use super::counters::HerdCounters;
use super::error::{Error, Result, io_error};
use super::fabric::RdmaListener;
use super::fabric::connections::FabricAcceptor;
use super::geometry::{FABRIC_CLIENTS_MAX, FABRIC_REQUESTS_MAX, FABRIC_VALUE_BYTES_MAX, Geometry};
use super::options::{FabricServerOptions, ServerOptions};
use super::pair;
use super::serving::{ClientTransport, CommandQueue, Doorbell, Serving, ServingOptions};
use crate::cache::Cache;
use rackpool_mem::event::{Interest, Poller, WakeEvent};
use rackpool_mem::log;
use rackpool_mem::window::Window;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The token of the event that wakes the acceptor.
const TOKEN_WAKE: u64 = 0;
/// Pause of the acceptor if it cannot wait: out of kernel memory.
const WAIT_PAUSE: Duration = Duration::from_millis(20);

/// A running server; it ends when this is dropped, and its clients' calls answer
/// [`Error::Gone`](super::Error::Gone).
pub struct HerdServer {
    bells: Vec<Arc<Doorbell>>,
    wake: Arc<WakeEvent>,
    is_stopping: Arc<AtomicBool>,
    counters: Arc<HerdCounters>,
    threads: Vec<JoinHandle<()>>,
    addr: Option<SocketAddr>,
}

impl HerdServer {
    /// Serves `cache` to processes of this host with so many serving threads. The threads spin
    /// while clients ask and sleep otherwise.
    ///
    /// # Errors
    /// [`HerdStartError`](super::HerdStartError).
    pub fn start(cache: Cache, options: &ServerOptions, threads: u32) -> Result<HerdServer> {
        let ServerOptions { clients, windows, value_bytes, .. } = *options;
        Geometry { servers: threads, clients, windows, value_bytes }.checked()?;
        let geometry = Geometry { servers: threads, clients: 1, windows, value_bytes };
        let (pipeline, clock) = (options.pipeline, options.clock.clone());
        let counters = Arc::new(HerdCounters::new(threads));
        let serving = ServingOptions { cache, geometry, clients, counters, pipeline, clock };
        let (mut server, bell) = HerdServer::begin(&serving)?;
        let admission = server.start_serving(&serving, vec![(); threads as usize])?;
        server.start_acceptor(ShmAcceptor::new(&options.name, bell, admission)?)?;
        Ok(server)
    }

    /// Serves `cache` over the tcp fabric with so many serving threads, beside the fabric's own.
    /// The threads spin while clients ask and sleep otherwise.
    ///
    /// # Errors
    /// As [`HerdServer::start`]; [`Error::Fabric`] if the address is taken, or is no loopback
    /// address and there is no secret, or if the device is not there.
    pub fn start_fabric(
        cache: Cache,
        options: &FabricServerOptions,
        threads: u32,
    ) -> Result<HerdServer> {
        let FabricServerOptions { clients, windows, value_bytes, .. } = *options;
        let geometry = Geometry { servers: threads, clients, windows, value_bytes }.checked()?;
        let requests = u64::from(windows) * u64::from(threads);
        for (option, value, max) in [
            ("fabric clients", clients.into(), FABRIC_CLIENTS_MAX),
            ("windows of all threads together", requests, FABRIC_REQUESTS_MAX),
            ("value bytes", value_bytes.into(), FABRIC_VALUE_BYTES_MAX),
        ] {
            if value > u64::from(max) {
                return Err(Error::BadOption { option, value, min: 1, max: max.into() });
            }
        }
        let geometry = Geometry { clients: 1, ..geometry };
        let (pipeline, clock) = (options.pipeline, options.clock.clone());
        let counters = Arc::new(HerdCounters::new(threads));
        let serving = ServingOptions { cache, geometry, clients, counters, pipeline, clock };
        let (mut server, _) = HerdServer::begin(&serving)?;
        let device = options.device.as_deref();
        let rdma = device.map(|device| RdmaListener::open(device, &geometry)).transpose()?;
        let sources = (0..threads).zip(&server.bells).map(|(thread, bell)| {
            rdma.as_ref().map(|rdma| rdma.source(thread, Arc::clone(bell))).transpose()
        });
        let sources = sources.collect::<Result<_, _>>()?;
        let admission = server.start_serving(&serving, sources)?;
        let wake = Arc::clone(&server.wake);
        let acceptor = FabricAcceptor::start(options, wake, rdma, admission)?;
        server.addr = Some(acceptor.port().local_addr());
        server.start_acceptor(acceptor)?;
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
        self.wake.notify();
        self.bells.iter().for_each(|bell| bell.notify());
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }

    /// A server without threads, and the memory of its bells.
    fn begin(serving: &ServingOptions) -> Result<(HerdServer, OwnedFd)> {
        let (threads, clients) = (serving.geometry.servers, serving.clients);
        let bytes = pair::bell_bytes(threads, clients);
        let (fd, bell) =
            Window::shared("rackpool-cache-bell", bytes).map_err(io_error("memory"))?;
        let bells = (0..threads)
            .map(|server| Arc::new(Doorbell::new(pair::bitmap(&bell, server, clients), clients)));
        let wake = WakeEvent::new().map_err(io_error("waking the acceptor"))?;
        let server = HerdServer {
            bells: bells.collect(),
            wake: Arc::new(wake),
            is_stopping: Arc::default(),
            counters: Arc::clone(&serving.counters),
            threads: Vec::new(),
            addr: None,
        };
        Ok((server, fd))
    }

    /// Starts the serving threads; what the acceptor tells them by.
    fn start_serving<S: ClientTransport + Send>(
        &mut self,
        options: &ServingOptions,
        sources: Vec<S::Source>,
    ) -> Result<Admission<S>>
    where
        S::Source: Send,
    {
        let queues = self.bells.iter().map(|bell| Arc::new(CommandQueue::new(Arc::clone(bell))));
        let queues: Vec<Arc<CommandQueue<S>>> = queues.collect();
        for ((server, queue), source) in (0..).zip(&queues).zip(sources) {
            let mut serving = Serving::new(server, options.clone(), Arc::clone(queue), source);
            let is_stopping = Arc::clone(&self.is_stopping);
            self.spawn(format!("herd-{server}"), move || serving.run(&is_stopping))?;
        }
        Ok(Admission::new(options, queues))
    }

    fn start_acceptor(&mut self, mut acceptor: impl Acceptor) -> Result<()> {
        let poller = Poller::new().map_err(io_error("waiting for clients"))?;
        let added = poller.add(&*self.wake, TOKEN_WAKE, Interest::Read);
        let added = added.and_then(|()| acceptor.watch(&poller));
        added.map_err(io_error("waiting for clients"))?;
        let (is_stopping, wake) = (Arc::clone(&self.is_stopping), Arc::clone(&self.wake));
        self.spawn("herd-accept".into(), move || {
            let mut ready = Vec::new();
            // Relaxed: as in `HerdServer::stop`.
            while !is_stopping.load(Ordering::Relaxed) {
                if poller.wait(acceptor.poll_after(), &mut ready).is_err() {
                    std::thread::sleep(WAIT_PAUSE);
                }
                wake.drain();
                acceptor.poll_once(&poller, &ready);
            }
        })
    }

    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = log::spawn(name, body);
        self.threads.push(thread.map_err(io_error("starting a thread"))?);
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
