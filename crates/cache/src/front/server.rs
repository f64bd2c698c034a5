//! The server: listens, accepts clients, and gives each to the thread with the fewest. In: a cache
//! and its settings. Out: a running server, which ends when it is stopped or dropped.
//!
//! A thread of its own accepts; it sleeps unless a client connects. Another one answers to
//! Prometheus, and some do what takes long (`jobs.rs`).

use super::core::Core;
use super::counters::Count;
use super::jobs;
use super::listen::{self, Listener, SocketPaths};
use super::shared::{Protocol, Settings, Shared};
use super::stats;
use super::tls::{Channel, Tls};
use super::worker::{AcceptedConnection, Inbox, Worker};
use crate::cache::Cache;
use crate::constants::{
    ACCEPTS_MAX, KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES, LONG_THREADS,
};
use crate::herd;
use rackpool::Secret;
use rackpool::metrics::Endpoint;
use rackpool_mem::event::{Interest, Poller, WakeEvent};
use rackpool_mem::names::peer_addr;
use rackpool_mem::process::monotonic_ns;
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct ListenConfig {
    pub memcached: Option<SocketAddr>,
    pub resp: Option<SocketAddr>,
    /// Unix sockets, for processes of this host: without TLS, and as open as their files' rights.
    pub memcached_socket: Option<PathBuf>,
    pub resp_socket: Option<PathBuf>,
    /// Rights of the files of these sockets; `None`: their user's alone, 0700.
    pub socket_mode: Option<u32>,
    pub metrics: Option<SocketAddr>,
    /// What its readers have to send; without it only a loopback address may be.
    pub metrics_token: Option<Secret>,
    /// For clients of HERD's fast path, processes of this host and user.
    pub herd: Option<herd::ServerOptions>,
    pub herd_fabric: Option<herd::FabricServerOptions>,
    pub open_to_all: bool,
    pub tls: Option<Tls>,
}

/// Why a server did not start. Only `Io` may be worth a retry.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "{addr} can be reached from other machines without a password: listen at a loopback \
         address such as 127.0.0.1, set {remedy}, or say --insecure-open"
    )]
    Open { addr: SocketAddr, remedy: &'static str },
    #[error(transparent)]
    Herd(#[from] herd::HerdStartError),
    #[error(transparent)]
    Metrics(#[from] rackpool::Error),
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> StartError {
    let what = what.into();
    move |source| StartError::Io { what, source }
}

pub struct Server {
    shared: Arc<Shared>,
    inboxes: Arc<Vec<Inbox>>,
    stop: Arc<WakeEvent>,
    /// Notified when a thread failed.
    end: Arc<WakeEvent>,
    threads: Vec<JoinHandle<()>>,
    metrics: Option<Endpoint>,
    /// HERD's listeners: of shared memory, of the fabric.
    herd: Vec<herd::HerdServer>,
    addrs: (Option<SocketAddr>, Option<SocketAddr>),
}

impl Server {
    /// Listens and serves.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        cache: Cache,
        mut settings: Settings,
        listen: &ListenConfig,
    ) -> Result<Self, StartError> {
        check_open(&settings, listen)?;
        // Not granted: clients are refused one by one.
        let _ = raise_file_limit(settings.connections_max as u64);
        let listeners = listen::open(listen)?;
        let addr = |protocol| listen::addr_of(&listeners, protocol);
        let addrs = (addr(Protocol::Memcached), addr(Protocol::Resp));
        let threads = settings.threads.max(1);
        settings.clock = settings.clock.resumed(cache.timeline());
        let timeline = settings.clock.timeline();
        cache.keep_timeline(&timeline);
        let started = (monotonic_ns() / 1_000_000, timeline.wall);
        let mut shared = Shared::new(cache, settings, started);
        *shared.addrs.lock().unwrap_or_else(PoisonError::into_inner) = addrs;
        shared.sockets = SocketPaths::of(&listeners, listen);
        let shared = Arc::new(shared);
        let inboxes: io::Result<Vec<Inbox>> = (0..threads).map(|_| Inbox::new()).collect();
        let inboxes = Arc::new(inboxes.map_err(io_error("waking threads"))?);
        let woken = Arc::clone(&inboxes);
        let waker = Box::new(move |thread: usize| woken[thread].wake());
        assert!(shared.waker.set(waker).is_ok(), "a server sets its waker once");
        let stop = Arc::new(WakeEvent::new().map_err(io_error("waking threads"))?);
        let end = Arc::new(WakeEvent::new().map_err(io_error("waking threads"))?);
        shared.end.set(Arc::clone(&end)).expect("a server is started once");
        let (metrics, herd) = (None, Vec::new());
        let mut server =
            Self { shared, inboxes, stop, end, threads: Vec::new(), metrics, herd, addrs };
        for thread in 0..threads {
            server.start_worker(thread)?;
        }
        server.start_jobs()?;
        server.start_acceptor(listeners, listen.tls.clone())?;
        if let Some(addr) = listen.metrics {
            let (shared, token) = (Arc::clone(&server.shared), listen.metrics_token.clone());
            let pages = Box::new(move |page| stats::page(&shared, page));
            server.metrics = Some(Endpoint::start(addr, token, pages)?);
        }
        server.open_herd(listen)?;
        if server.shared.settings.populates {
            server.start_populating()?;
        }
        Ok(server)
    }

    /// Where it serves memcached's protocols and RESP.
    pub fn addrs(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        self.addrs
    }

    /// Where it answers to Prometheus.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Endpoint::local_addr)
    }

    /// Becomes readable when a thread has failed: the server serves no client any more, and
    /// [`Server::failure`] says why. Without that, when a client may and does ask for the end
    /// ([`Settings::allows_shutdown`]): the server is to be stopped.
    pub fn end_event(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Why the server ended by itself, if it did: the word of the error, and a sentence.
    pub fn failure(&self) -> Option<(&'static str, String)> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What its threads share: for tests, and for programs that embed it.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Where it serves HERD's fast path over a fabric.
    pub fn herd_addr(&self) -> Option<SocketAddr> {
        self.herd.iter().find_map(herd::HerdServer::addr)
    }

    /// Opens HERD's listeners, on the same cache and with as many threads each.
    fn open_herd(&mut self, listen: &ListenConfig) -> Result<(), StartError> {
        let threads = self.shared.settings.threads.max(1) as u32;
        let cache = &self.shared.cache;
        let shared = Arc::clone(&self.shared);
        let clock = || shared.settings.clock.clone();
        if let Some(protocol) = &listen.herd {
            let protocol = herd::ServerOptions { clock: clock(), ..protocol.clone() };
            self.herd.push(herd::HerdServer::start(cache.clone(), &protocol, threads)?);
        }
        if let Some(protocol) = &listen.herd_fabric {
            let protocol = herd::FabricServerOptions { clock: clock(), ..protocol.clone() };
            self.herd.push(herd::HerdServer::start_fabric(cache.clone(), &protocol, threads)?);
        }
        let counters = self.herd.iter().map(|server| Arc::clone(server.counters())).collect();
        self.shared.herd.set(counters).expect("a server opens its listeners once");
        Ok(())
    }

    fn start_worker(&mut self, thread: usize) -> Result<(), StartError> {
        let (shared, inboxes) = (Arc::clone(&self.shared), Arc::clone(&self.inboxes));
        let body = move || {
            let now = shared.look_at_clock();
            let core = Core::new(shared, thread, now);
            // Out of kernel memory or descriptors: the process is of no use without this thread.
            let served = Worker::new(core, &inboxes[thread]).and_then(|mut worker| worker.run());
            served.expect("a thread can wait for its connections");
        };
        self.spawn(format!("kv-{thread}"), body)
    }

    /// Does what takes long while the others serve.
    fn start_jobs(&mut self) -> Result<(), StartError> {
        self.shared.jobs.open();
        let inboxes = Arc::clone(&self.inboxes);
        self.shared.jobs.wake_by(move |thread| inboxes[thread].wake());
        for index in 0..LONG_THREADS {
            let (shared, inboxes) = (Arc::clone(&self.shared), Arc::clone(&self.inboxes));
            self.spawn(format!("kv-long-{index}"), move || {
                let (thread, now) = (inboxes.len() + 1 + index, shared.look_at_clock());
                jobs::run(&mut Core::new(shared, thread, now), |thread| inboxes[thread].wake());
            })?;
        }
        Ok(())
    }

    /// Takes the cache's memory from the system, behind what the processor has to do for clients.
    fn start_populating(&mut self) -> Result<(), StartError> {
        let (shared, ending) = (Arc::clone(&self.shared), self.ending());
        self.spawn("kv-memory".into(), move || {
            // Of this thread alone, on Linux. A thread that may not lower its priority does its
            // work sooner.
            let _ = rustix::process::nice(STEP_BACK);
            // Relaxed: as in `stop_all`.
            let taken = shared.cache.populate(|| !shared.stopping.load(Ordering::Relaxed));
            if let Err(error) = taken {
                rackpool_mem::counted::note_io(&error);
                ending.fail("full", format!("taking the memory of the file: {error}"));
            }
        })
    }

    /// Starts a thread. If it panics all end: clients that it served, or that are given to it,
    /// would wait for ever.
    fn spawn(
        &mut self,
        name: String,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartError> {
        let (ending, thread) = (self.ending(), name.clone());
        let guarded = move || {
            // What it shares with others has locks that are usable after a panic, and nothing more
            // is served from it.
            let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(body)) else { return };
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            let said = said.unwrap_or("no reason was given");
            ending.fail("internal", format!("thread {thread} failed: {said}"));
        };
        let thread = rackpool_mem::log::spawn(name, guarded);
        self.threads.push(thread.map_err(io_error("starting a thread"))?);
        Ok(())
    }

    fn ending(&self) -> Ending {
        let (shared, inboxes) = (Arc::clone(&self.shared), Arc::clone(&self.inboxes));
        Ending { shared, inboxes, stop: Arc::clone(&self.stop), end: Arc::clone(&self.end) }
    }

    fn start_acceptor(
        &mut self,
        listeners: Vec<Listener>,
        tls: Option<Tls>,
    ) -> Result<(), StartError> {
        let poller = Poller::new().map_err(io_error("waiting for clients"))?;
        let wait = |fd: &dyn AsFd, token| {
            poller.add(fd.as_fd(), token, Interest::Read).map_err(io_error("waiting for clients"))
        };
        wait(&*self.stop, STOP)?;
        for (index, listener) in listeners.iter().enumerate() {
            wait(listener, index as u64)?;
        }
        let (shared, inboxes) = (Arc::clone(&self.shared), Arc::clone(&self.inboxes));
        let assigned = vec![0; inboxes.len()];
        let stop = Arc::clone(&self.stop);
        let mut acceptor = Acceptor { shared, inboxes, assigned, listeners, poller, tls };
        self.spawn("kv-accept".into(), move || {
            let _held_open = stop;
            acceptor.run();
        })
    }

    /// Ends: connections are closed, threads are gone when this returns. Blocks for 1 s at most
    /// while clients read what they were answered.
    pub fn stop(&mut self) {
        stop_all(&self.shared, &self.stop, &self.inboxes);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        (self.metrics, self.herd) = (None, Vec::new());
    }
}

struct Ending {
    shared: Arc<Shared>,
    inboxes: Arc<Vec<Inbox>>,
    stop: Arc<WakeEvent>,
    end: Arc<WakeEvent>,
}

impl Ending {
    fn fail(&self, code: &'static str, why: String) {
        let mut failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert((code, why));
        drop(failure);
        stop_all(&self.shared, &self.stop, &self.inboxes);
        self.end.notify();
    }
}

fn stop_all(shared: &Shared, stop: &WakeEvent, inboxes: &[Inbox]) {
    // Relaxed: the flag carries no data; the wake-ups below make threads look.
    shared.stopping.store(true, Ordering::Relaxed);
    shared.jobs.close();
    stop.notify();
    inboxes.iter().for_each(Inbox::wake);
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Token of the end; listeners have those from 0 on.
const STOP: u64 = u64::MAX;
/// Descriptors beside those of connections.
const FILES_OF_OUR_OWN: u64 = 64;
/// Nice value of a thread in the background: it gets a tenth of a processor that is busy.
const STEP_BACK: i32 = 10;
/// Pause after a client could not be let in: out of descriptors, as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

struct Acceptor {
    shared: Arc<Shared>,
    inboxes: Arc<Vec<Inbox>>,
    assigned: Vec<u64>,
    listeners: Vec<Listener>,
    poller: Poller,
    tls: Option<Tls>,
}

impl Acceptor {
    fn run(&mut self) {
        let mut events = Vec::new();
        loop {
            if self.poller.wait(None, &mut events).is_err() {
                std::thread::sleep(ACCEPT_PAUSE);
            }
            // Relaxed: as in `stop_all`.
            if self.shared.stopping.load(Ordering::Relaxed) {
                return;
            }
            for event in events.iter().filter(|event| event.token != STOP) {
                self.accept(event.token as usize);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..ACCEPTS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listeners[index], flags) {
                Ok(fd) => self.register(index, fd),
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn register(&mut self, index: usize, fd: OwnedFd) {
        let closed = |thread: usize| self.shared.counters[thread].get(Count::Closed);
        let open = |thread: usize| self.assigned[thread] - closed(thread);
        let settings = &self.shared.settings;
        let all: u64 = (0..self.assigned.len()).map(open).sum();
        let most = self.shared.tunables.connections_max();
        let (protocol, socket_client) = self.listeners[index].clients();
        let is_unix = socket_client.is_some();
        let addr = peer_addr(&fd);
        let share = |addr: SocketAddr| settings.address_max(addr.ip(), most);
        let place = addr.map(|addr| self.shared.addresses.take(addr.ip(), share(addr)));
        let channel = Channel::Plain;
        let (is_too_many, is_refused) = (all >= most, place.as_ref().is_some_and(Option::is_none));
        let name = || addr.map_or_else(String::new, |addr| addr.to_string());
        let (addr, place) = (socket_client.unwrap_or_else(name), place.flatten());
        let mut accepted = AcceptedConnection { fd, protocol, addr, channel, place, is_too_many };
        // Those that wait for an idle one to be closed have descriptors, too.
        if is_refused || all >= most + ACCEPTS_MAX as u64 {
            let why = if is_refused { Count::AddressRejected } else { Count::Rejected };
            self.shared.counters[self.assigned.len()].add(why, 1);
            return accepted.refuse();
        }
        if let Some(tls) = self.tls.as_ref().filter(|_| !is_unix) {
            match tls.channel() {
                Ok(channel) => accepted.channel = channel,
                Err(_) => return std::thread::sleep(ACCEPT_PAUSE),
            }
        }
        if !is_unix {
            // A socket that refuses them has lost its client already.
            let _ = tune(&accepted.fd);
        }
        // One that takes another's place comes where most are, of which some are silent.
        let by_count =
            |thread: &usize| if is_too_many { u64::MAX - open(*thread) } else { open(*thread) };
        let thread = (0..self.assigned.len()).min_by_key(by_count).expect("there is a thread");
        self.assigned[thread] += 1;
        self.inboxes[thread].push(accepted);
    }
}

fn tune(fd: &OwnedFd) -> rustix::io::Result<()> {
    // Answers are sent whole; waiting for more to send would only delay them.
    sockopt::set_tcp_nodelay(fd, true)?;
    // Clients vanish without a FIN: their machine fails, a firewall drops their state.
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(KEEPALIVE_IDLE_S))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(KEEPALIVE_INTERVAL_S))?;
    sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES)
}

fn check_open(settings: &Settings, listen: &ListenConfig) -> Result<(), StartError> {
    let guarded = [
        (listen.memcached, !settings.users.is_empty(), "--auth-file"),
        (listen.resp, settings.password.is_some(), "--password-file"),
    ];
    for (addr, guarded, remedy) in guarded {
        if let Some(addr) = addr
            && !addr.ip().is_loopback()
            && !guarded
            && !listen.open_to_all
        {
            return Err(StartError::Open { addr, remedy });
        }
    }
    Ok(())
}

/// Connections need descriptors.
///
/// # Errors
/// For how many connections there are some.
pub fn raise_file_limit(connections: u64) -> Result<(), u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = connections.saturating_add(FILES_OF_OUR_OWN);
    let Some(before) = limit.current.filter(|current| *current < wanted) else { return Ok(()) };
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let raised = Rlimit { current: Some(current), maximum: limit.maximum };
    let now = setrlimit(Resource::Nofile, raised).map_or(before, |()| current);
    if now < wanted { Err(now.saturating_sub(FILES_OF_OUR_OWN)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Options;
    use std::net::TcpStream;
    use std::time::Instant;

    #[test]
    fn a_thread_that_panics_ends_the_server_with_its_reason() {
        let any = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listen = ListenConfig { resp: any, ..ListenConfig::default() };
        let options = Options { memory: 8 << 20, ..Options::default() };
        let cache = Cache::new(options).unwrap();
        let mut server = Server::start(cache, Settings::default(), &listen).unwrap();
        let addr = server.addrs().1.unwrap();
        drop(TcpStream::connect(addr).unwrap());
        assert_eq!(server.failure(), None);
        server.spawn("kv-7".into(), || panic!("on purpose, {} of it", 1)).unwrap();
        let poller = Poller::new().unwrap();
        poller.add(server.end_event(), 0, Interest::Read).unwrap();
        let mut events = Vec::new();
        assert_eq!(poller.wait(Some(Duration::from_secs(20)), &mut events).unwrap(), 1);
        let why = "thread kv-7 failed: on purpose, 1 of it";
        assert_eq!(server.failure().unwrap(), ("internal", why.to_owned()));
        // No client is let in that no thread would serve.
        let start = Instant::now();
        while TcpStream::connect(addr).is_ok() {
            assert!(start.elapsed() < Duration::from_secs(20), "clients still come in");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
